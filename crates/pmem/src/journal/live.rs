//! What the live records of a pool's journal have, so that a store beside the journal to any of it
//! is a panic: the invariants J2 and J3 of the [journal](super), checked.
//!
//! In builds with debug assertions only; in others nothing of it is kept. A pool has one journal.

#[cfg(debug_assertions)]
pub(crate) use checked::Live;
#[cfg(not(debug_assertions))]
pub(crate) use unchecked::Live;

/// Bytes of a word that a record has: bit *i* is byte *i*.
pub(crate) type Mask = u8;

#[cfg(debug_assertions)]
mod checked {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
    use std::thread::{self, ThreadId};

    use super::Mask;
    use crate::LINE;

    #[derive(Default)]
    pub(crate) struct Live {
        covered: RwLock<Covered>,
        /// Whether there is anything. Without a lock, which would order what a pool without a
        /// journal does not.
        any: AtomicBool,
    }

    #[derive(Default)]
    struct Covered {
        lines: BTreeMap<u64, Words>,
        head: u64,
        /// Lines at which those of records that are not live any more are dropped.
        drop_at: usize,
        /// Who stores the changes of a record.
        applies: Option<ThreadId>,
    }

    /// Of each word of a line: which bytes of it records have, and where the last of these ends.
    /// Records have words in runs, and a line is found in the time in which a word is.
    type Words = [(Mask, u64); LINE_WORDS];

    const LINE_WORDS: usize = (LINE / 8) as usize;

    /// The number of the line of a word, and the word's in it.
    fn place(word: u64) -> (u64, usize) {
        (word / LINE, (word % LINE / 8) as usize)
    }

    impl Live {
        /// Stores the changes of a record that ends there, and has these words, as live.
        pub(crate) fn cover(
            &self,
            words: impl Iterator<Item = (u64, Mask)>,
            end: u64,
            apply: impl FnOnce(),
        ) {
            self.any.store(true, Ordering::Release);
            let mut covered = self.write();
            let head = covered.head;
            let mut words = words.peekable();
            while let Some((word, mask)) = words.next() {
                let (line, number) = place(word);
                let its = covered.lines.entry(line).or_default();
                let mut add = |number: usize, mask| {
                    its[number] = match its[number] {
                        (live, until) if until > head => (live | mask, end),
                        _ => (mask, end),
                    };
                };
                add(number, mask);
                while let Some((word, mask)) = words.next_if(|&(word, _)| place(word).0 == line) {
                    add(place(word).1, mask);
                }
            }
            covered.applies = Some(thread::current().id());
            drop(covered);
            apply();
            self.write().applies = None;
        }

        /// The durable head is there.
        pub(crate) fn passed(&self, head: u64) {
            let mut covered = self.write();
            covered.head = head;
            if covered.lines.len() > covered.drop_at {
                let is_live = |words: &Words| words.iter().any(|&(_, end)| end > head);
                covered.lines.retain(|_, words| is_live(words));
                covered.drop_at = 2 * covered.lines.len() + 128;
            }
        }

        /// No record is live, or nobody knows.
        pub(crate) fn clear(&self) {
            *self.write() = Covered::default();
        }

        fn write(&self) -> RwLockWriteGuard<'_, Covered> {
            self.covered.write().unwrap_or_else(PoisonError::into_inner)
        }

        /// A range is stored to.
        #[track_caller]
        pub(crate) fn check(&self, off: u64, len: u64) {
            if !self.any.load(Ordering::Acquire) {
                return;
            }
            let covered = self.covered.read().unwrap_or_else(PoisonError::into_inner);
            let end = off.saturating_add(len);
            let stores = |word: u64, mask: Mask| {
                (0..8).any(|i| mask & 1 << i != 0 && (off..end).contains(&(word + i)))
            };
            let lines = covered.lines.range(off / LINE..end.div_ceil(LINE));
            let mut words = lines.flat_map(|(line, words)| {
                let words = words.iter().enumerate();
                words.map(move |(number, &word)| (line * LINE + 8 * number as u64, word))
            });
            let hit = words.find(|&(word, (mask, end))| end > covered.head && stores(word, mask));
            if let Some((word, _)) = hit
                && covered.applies != Some(thread::current().id())
            {
                drop(covered);
                panic!("a store to {word} bypasses a live record of the journal");
            }
        }
    }
}

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::Mask;

    #[derive(Default)]
    pub(crate) struct Live;

    impl Live {
        #[inline]
        pub(crate) fn cover(
            &self,
            _: impl Iterator<Item = (u64, Mask)>,
            _: u64,
            apply: impl FnOnce(),
        ) {
            apply();
        }

        #[inline]
        pub(crate) fn passed(&self, _: u64) {}

        #[inline]
        pub(crate) fn clear(&self) {}

        #[inline]
        pub(crate) fn check(&self, _: u64, _: u64) {}
    }
}

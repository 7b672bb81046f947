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

    #[derive(Default)]
    pub(crate) struct Live {
        covered: RwLock<Covered>,
        /// Whether there is anything. Without a lock, which would order what a pool without a
        /// journal does not.
        any: AtomicBool,
    }

    #[derive(Default)]
    struct Covered {
        /// By word: which bytes of it records have, and where the last of these ends.
        words: BTreeMap<u64, (Mask, u64)>,
        head: u64,
        /// Words at which those of records that are not live any more are dropped.
        drop_at: usize,
        /// Who stores the changes of a record.
        applies: Option<ThreadId>,
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
            for (word, mask) in words {
                let entry = covered.words.entry(word).or_default();
                *entry = (entry.0 | mask, end);
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
            if covered.words.len() > covered.drop_at {
                covered.words.retain(|_, &mut (_, end)| end > head);
                covered.drop_at = 2 * covered.words.len() + 1024;
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
            let mut words = covered.words.range(off & !7..end.max(off & !7));
            let hit = words.find(|&(&word, &(mask, end))| end > covered.head && stores(word, mask));
            if let Some((word, _)) = hit
                && covered.applies != Some(thread::current().id())
            {
                let word = *word;
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

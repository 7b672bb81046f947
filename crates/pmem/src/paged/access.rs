//! Loads and stores.
//!
//! Everything is done page by page: what is done at once, inside a guard, is within one page.

use std::sync::atomic::{AtomicU64, Ordering};

use super::bug::Bug;
use super::pages::{Flag, sector_bits};
use super::{Paged, Shared};
use crate::PAGE;
use crate::raw;

/// Words.
impl Paged {
    /// Loads the little-endian word at `off` (Acquire).
    #[inline]
    #[track_caller]
    pub fn load(&self, off: u64) -> u64 {
        let region = &self.shared.region;
        region.check_word(off);
        self.shared.loading(off, || region.load(off))
    }

    /// Stores the little-endian word at `off` (Release).
    #[inline]
    #[track_caller]
    pub fn store(&self, off: u64, value: u64) {
        self.update(off, |word| word.store(value.to_le(), Ordering::Release));
    }

    /// Changes the word at `off`, whose bytes are little-endian, when that is permitted.
    #[inline]
    #[track_caller]
    pub(crate) fn update<T>(&self, off: u64, update: impl FnOnce(&AtomicU64) -> T) -> T {
        let word = self.shared.region.word_mut(off);
        self.shared.storing(off, 8, || update(word))
    }
}

/// Ranges of bytes.
impl Paged {
    /// Copies out of the memory.
    #[track_caller]
    pub fn read(&self, off: u64, buf: &mut [u8]) {
        let region = &self.shared.region;
        region.check(off, buf.len() as u64);
        let mut rest = buf;
        for (at, len) in pieces(off, rest.len() as u64) {
            let (piece, more) = rest.split_at_mut(len as usize);
            self.shared.loading(at, || region.read(at, piece));
            rest = more;
        }
    }

    /// Copies into the memory. The order of the bytes within one call is not defined.
    #[track_caller]
    pub fn write(&self, off: u64, data: &[u8]) {
        let region = &self.shared.region;
        region.check(off, data.len() as u64);
        for (at, len) in pieces(off, data.len() as u64) {
            let piece = &data[(at - off) as usize..][..len as usize];
            self.shared.storing(at, len, || region.write(at, piece));
        }
    }

    /// Copies whole lines into the memory around the cache; in all that concerns order it is
    /// [`Paged::write`].
    ///
    /// # Panics
    /// Also if the range does not consist of whole lines.
    #[track_caller]
    pub fn write_lines(&self, off: u64, data: &[u8]) {
        let region = &self.shared.region;
        region.check(off, data.len() as u64);
        for (at, len) in pieces(off, data.len() as u64) {
            let piece = &data[(at - off) as usize..][..len as usize];
            self.shared.storing(at, len, || {
                region.write_lines_nt(at, piece);
                // Whoever waits for this guard is to find the lines stored.
                raw::store_fence();
            });
        }
    }

    /// Stores zeros.
    #[track_caller]
    pub fn zero(&self, off: u64, len: u64) {
        let region = &self.shared.region;
        region.check(off, len);
        for (at, len) in pieces(off, len) {
            self.shared.storing(at, len, || region.zero(at, len));
        }
    }
}

/// The parts of a range that lie in one page each.
fn pieces(off: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = off + len;
    let mut at = off;
    std::iter::from_fn(move || {
        let next = (at / PAGE + 1) * PAGE;
        let piece = (at, next.min(end) - at.min(end));
        at = next;
        (piece.1 > 0).then_some(piece)
    })
}

impl Shared {
    /// Loads from the page of a byte, when it is present.
    #[inline]
    fn loading<T>(&self, off: u64, load: impl FnOnce() -> T) -> T {
        if self.faults.is_some() {
            return load();
        }
        let page = off / PAGE;
        loop {
            let guard = self.guards.enter();
            if self.pages.is(page, Flag::PRESENT) {
                let loaded = load();
                drop(guard);
                return loaded;
            }
            drop(guard);
            self.bring_or_poison(&self.pages.lock(page));
        }
    }

    /// Stores to a range within one page, when that is permitted.
    #[inline]
    fn storing<T>(&self, off: u64, len: u64, store: impl FnOnce() -> T) -> T {
        let (page, mut bits) = (off / PAGE, sector_bits(off, len));
        if self.bugs.has(Bug::SecondNotPermitted) {
            bits &= bits.wrapping_neg();
        }
        loop {
            let guard = self.guards.enter();
            if self.pages.permits(page, bits) {
                let stored = store();
                drop(guard);
                return stored;
            }
            drop(guard);
            self.permit(page, bits);
        }
    }

    /// Permits stores to sectors of a page, for now: the permission may be gone on return.
    #[cold]
    fn permit(&self, page: u64, bits: u8) {
        loop {
            // Waits for room, if it must, while it holds no page.
            let room = (!self.pages.is(page, Flag::UNCLEAN)).then(|| self.room.take());
            let locked = self.pages.lock(page);
            if !locked.is(Flag::UNCLEAN) {
                let Some(room) = room else {
                    continue; // written out meanwhile
                };
                self.bring_or_poison(&locked);
                locked.set(Flag::UNCLEAN);
                locked.grant(bits);
                return room.keep();
            }
            return locked.grant(bits);
        }
    }
}

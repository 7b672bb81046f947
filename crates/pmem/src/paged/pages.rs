//! Two bytes for each page: the permission to store to its sectors, and its state with its lock.

use std::sync::atomic::{AtomicU8, Ordering};

use block::SECTOR;
use parking_lot::{Condvar, Mutex};

use crate::PAGE;
use crate::raw::zeroed_bytes;

/// Locks that are waited for in the same place.
const WAITING_PLACES: usize = 64;

/// A state of a page. Only who holds the page's lock changes it.
#[derive(Clone, Copy)]
pub(super) struct Flag(u8);

/// Somebody holds the lock.
const BUSY: u8 = 1;
/// Somebody waits for the lock.
const WAITED: u8 = 2;

impl Flag {
    /// The page may be loaded from. In the check's way of finding misses, loads test it.
    pub(super) const PRESENT: Flag = Flag(4);
    /// Not present, and its contents are in memory.
    pub(super) const STANDBY: Flag = Flag(8);
    /// It may differ from the disk: a bit of its permission is set, or was when a write that is in
    /// flight was made, or a write of it failed. Such a page is present.
    pub(super) const UNCLEAN: Flag = Flag(16);
    /// It could not be read, and has zeros in place of what the disk has.
    pub(super) const BLANK: Flag = Flag(32);
}

/// The pages of a pool.
pub(super) struct Pages {
    /// A bit for each sector: it may be stored to, and may differ from the disk. The page is
    /// present then. Only who holds the page's lock changes it; stores test it inside a guard.
    permits: Box<[AtomicU8]>,
    states: Box<[AtomicU8]>,
    waiting: Box<[Waiting]>,
}

#[repr(align(128))]
#[derive(Default)]
struct Waiting {
    lock: Mutex<()>,
    unlocked: Condvar,
}

/// Bits of the sectors of a range, which is not empty and within one page.
#[inline]
pub(super) fn sector_bits(off: u64, len: u64) -> u8 {
    let within = off % PAGE;
    let (first, last) = (within / SECTOR, (within + len - 1) / SECTOR);
    debug_assert!(len > 0 && last < 8, "{len} bytes at {off} are in one page");
    (u8::MAX << first) & (u8::MAX >> (7 - last))
}

impl Pages {
    pub(super) fn new(count: usize) -> Pages {
        Pages {
            permits: zeroed_bytes(count),
            states: zeroed_bytes(count),
            waiting: (0..WAITING_PLACES).map(|_| Waiting::default()).collect(),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.states.len() as u64
    }

    /// Whether all these sectors of a page may be stored to.
    #[inline]
    pub(super) fn permits(&self, page: u64, bits: u8) -> bool {
        self.permitted(page) & bits == bits
    }

    /// The sectors of a page that may be stored to.
    #[inline]
    pub(super) fn permitted(&self, page: u64) -> u8 {
        self.permits[page as usize].load(Ordering::Acquire)
    }

    /// Whether a page is in a state. Without its lock that may be over when this returns.
    #[inline]
    pub(super) fn is(&self, page: u64, flag: Flag) -> bool {
        self.states[page as usize].load(Ordering::Acquire) & flag.0 != 0
    }

    /// Locks a page. Who holds several has taken those that it waited for in ascending order, and
    /// no more than one of them for I/O.
    pub(super) fn lock(&self, page: u64) -> Locked<'_> {
        if let Some(locked) = self.try_lock(page) {
            return locked;
        }
        let waiting = &self.waiting[page as usize % WAITING_PLACES];
        let mut lock = waiting.lock.lock();
        // If it is free now, somebody is woken for nothing when we unlock it.
        while self.states[page as usize].fetch_or(BUSY | WAITED, Ordering::Acquire) & BUSY != 0 {
            waiting.unlocked.wait(&mut lock);
        }
        Locked { pages: self, page }
    }

    pub(super) fn try_lock(&self, page: u64) -> Option<Locked<'_>> {
        let before = self.states[page as usize].fetch_or(BUSY, Ordering::Acquire);
        // Not made to be dropped: that would unlock it.
        (before & BUSY == 0).then(|| Locked { pages: self, page })
    }
}

/// The lock of a page.
pub(super) struct Locked<'a> {
    pages: &'a Pages,
    page: u64,
}

impl Locked<'_> {
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    pub(super) fn is(&self, flag: Flag) -> bool {
        self.pages.is(self.page, flag)
    }

    pub(super) fn set(&self, flag: Flag) {
        self.pages.states[self.page as usize].fetch_or(flag.0, Ordering::Release);
    }

    pub(super) fn clear(&self, flag: Flag) {
        self.pages.states[self.page as usize].fetch_and(!flag.0, Ordering::Release);
    }

    /// Permits stores to sectors of a page that is present and unclean.
    pub(super) fn grant(&self, bits: u8) {
        debug_assert!(self.is(Flag::PRESENT) && self.is(Flag::UNCLEAN));
        self.pages.permits[self.page as usize].fetch_or(bits, Ordering::Release);
    }

    /// Permits no more stores to sectors; returns those that had been permitted. Stores to them may
    /// be under way until a grace period is over.
    pub(super) fn revoke(&self, bits: u8) -> u8 {
        self.pages.permits[self.page as usize].fetch_and(!bits, Ordering::AcqRel) & bits
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let state = &self.pages.states[self.page as usize];
        if state.fetch_and(!(BUSY | WAITED), Ordering::Release) & WAITED != 0 {
            let waiting = &self.pages.waiting[self.page as usize % WAITING_PLACES];
            drop(waiting.lock.lock());
            waiting.unlocked.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_range_are_those_of_its_sectors() {
        for (off, len, bits) in [
            (0, 1, 1),
            (0, 512, 1),
            (511, 2, 3),
            (4096 + 512, 512, 2),
            (0, 4096, 0xff),
            (4095, 1, 0x80),
            (3 * 512 + 8, 2 * 512, 0b11_1000),
        ] {
            assert_eq!(sector_bits(off, len), bits, "{len} bytes at {off}");
        }
    }
}

//! Contents that are given up: of the disk by a discard, and in memory with it, so that a page
//! reads the same whether it is in memory or not.

use block::BlockError;

use super::pages::{Flag, Locked};
use super::{Paged, Shared};
use crate::PAGE;

/// Pages that are given up at once: they are locked together.
const GIVEN_UP_TOGETHER: u64 = 512;

impl Paged {
    /// Gives the contents of whole pages up: they are zeros, now and after they were brought in
    /// again; or they stay, where the disk cannot. Neither is durable. Nobody else uses them
    /// meanwhile.
    ///
    /// # Errors
    /// The disk cannot, or has failed. What was not reached yet stays as it is.
    ///
    /// # Panics
    /// Also unless it is whole pages.
    #[track_caller]
    pub fn discard(&self, off: u64, len: u64) -> Result<(), BlockError> {
        self.shared.region.check(off, len);
        assert!(
            off.is_multiple_of(PAGE) && len.is_multiple_of(PAGE),
            "{len} bytes at {off} are not whole pages"
        );
        let (mut first, end) = (off / PAGE, (off + len) / PAGE);
        while first < end {
            let next = (first + GIVEN_UP_TOGETHER).min(end);
            self.shared.give_up(first, next)?;
            first = next;
        }
        Ok(())
    }
}

impl Shared {
    /// Gives pages up, from one to before another.
    fn give_up(&self, first: u64, end: u64) -> Result<(), BlockError> {
        // Nothing of them is in flight, or will be before this is over.
        let range = (first * PAGE, end * PAGE);
        let all = || (first..end).map(|page| (page, u8::MAX)).collect();
        let claim = self.flights.claim(&[range], all);
        let revoke = |page| {
            let locked = self.pages.lock(page);
            let revoked = locked.revoke(u8::MAX);
            (locked, revoked)
        };
        let pages: Vec<_> = (first..end).map(revoke).collect();
        self.guards.wait();
        let discarded = self.disk.discard(range.0, range.1 - range.0);
        let mut clean = 0;
        for (locked, revoked) in &pages {
            if discarded.is_ok() {
                clean += usize::from(self.clear(locked));
            } else if *revoked != 0 {
                locked.grant(*revoked);
            }
        }
        drop(pages);
        self.room.landed(clean, 0);
        drop(claim);
        self.room.released();
        discarded
    }

    /// Makes what memory has of a page zeros, as the disk has them. Whether it was unclean.
    fn clear(&self, locked: &Locked<'_>) -> bool {
        if locked.is(Flag::STANDBY) {
            self.bring_back(locked);
        }
        if locked.is(Flag::PRESENT) {
            self.region.zero(locked.page() * PAGE, PAGE);
        }
        let unclean = locked.is(Flag::UNCLEAN);
        locked.clear(Flag::UNCLEAN);
        unclean
    }
}

//! Fault injection in the allocator: of the allocations of a thread one fails, or all from one on.
//!
//! Without the feature `faults` none does, and what asks is a constant.

use vfs::Result;
#[cfg(feature = "faults")]
use vfs::{Errno, Error};

/// Which allocations fail, and how many have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// So many succeed before one fails.
    pub left: u64,
    /// All that follow fail as well, not that one alone.
    pub lasting: bool,
    /// How many have failed.
    pub struck: u64,
}

impl Shortage {
    /// None has failed yet.
    pub fn new(left: u64, lasting: bool) -> Shortage {
        Shortage {
            left,
            lasting,
            struck: 0,
        }
    }

    /// Whether the next allocation fails.
    #[cfg_attr(not(feature = "faults"), allow(dead_code))] // who would ask is not there
    fn strikes(&mut self) -> bool {
        let fails = self.left == 0 && (self.lasting || self.struck == 0);
        self.left = self.left.saturating_sub(1);
        self.struck += u64::from(fails);
        fails
    }
}

#[cfg(feature = "faults")]
mod state {
    use super::{Errno, Error, Result, Shortage};
    use std::cell::Cell;

    thread_local!(static SHORTAGE: Cell<Option<Shortage>> = const { Cell::new(None) });

    /// Ends it, also when what suffered it panics.
    struct Over;

    impl Drop for Over {
        fn drop(&mut self) {
            SHORTAGE.set(None);
        }
    }

    /// Do something while allocations of this thread fail, in whatever file system.
    pub fn suffer<T>(shortage: &mut Shortage, work: impl FnOnce() -> T) -> T {
        let _over = Over;
        SHORTAGE.set(Some(*shortage));
        let result = work();
        *shortage = SHORTAGE.get().unwrap_or(*shortage);
        result
    }

    /// Fails if this allocation is to.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn allocation() -> Result<()> {
        let Some(mut shortage) = SHORTAGE.get() else {
            return Ok(());
        };
        let fails = shortage.strikes();
        SHORTAGE.set(Some(shortage));
        match fails {
            true => Err(Error::Errno(Errno::NOSPC)),
            false => Ok(()),
        }
    }
}

#[cfg(not(feature = "faults"))]
mod state {
    use super::{Result, Shortage};

    /// Do something; nothing fails in this build.
    pub fn suffer<T>(_shortage: &mut Shortage, work: impl FnOnce() -> T) -> T {
        work()
    }

    #[inline(always)]
    pub(crate) fn allocation() -> Result<()> {
        Ok(())
    }
}

pub(crate) use state::allocation;
pub use state::suffer;

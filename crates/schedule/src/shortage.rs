//! Allocations that fail in a thread, for tests: one of them, or all from one on.
//!
//! An engine asks [`strikes`] before each allocation, and [`suffer`] says which of them fail while
//! a thread does something. Without the feature `points` none does, and what asks is a constant.

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
}

#[cfg(feature = "points")]
mod state {
    use super::Shortage;
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

    /// Whether this allocation fails.
    pub fn strikes() -> bool {
        let Some(mut shortage) = SHORTAGE.get() else {
            return false;
        };
        let fails = shortage.left == 0 && (shortage.lasting || shortage.struck == 0);
        shortage.left = shortage.left.saturating_sub(1);
        shortage.struck += u64::from(fails);
        SHORTAGE.set(Some(shortage));
        fails
    }
}

#[cfg(not(feature = "points"))]
mod state {
    use super::Shortage;

    /// Do something; nothing fails in this build.
    pub fn suffer<T>(_shortage: &mut Shortage, work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Whether this allocation fails.
    #[inline(always)]
    pub fn strikes() -> bool {
        false
    }
}

pub use state::{strikes, suffer};

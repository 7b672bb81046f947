//! How the judges get hold of what they judge.

use std::sync::Arc;

use vfs::{Clock, FileSystem, ManualClock};

/// A kind of file system under test.
///
/// A closure that takes an `Arc<dyn Clock>` and returns a fresh, empty file system is one already.
pub trait Engine: Sync {
    /// What it makes.
    type Fs: FileSystem;

    /// A fresh, empty file system that takes the time from `clock`.
    fn make(&self, clock: Arc<dyn Clock>) -> Self::Fs;

    /// Unmount cleanly and mount again. No node is held during this.
    fn remount(&self, fs: Self::Fs) -> Self::Fs {
        fs
    }

    /// Let what was put off happen now (persisters, say).
    fn settle(&self, _fs: &Self::Fs) {}

    /// Let time pass, so that what happens next is later.
    fn tick(&self, clock: &ManualClock) {
        clock.advance(1_000_000);
    }

    /// Why it cannot be judged on this; `None`, as for nearly all of every real engine: it can.
    fn lacks(&self, _feature: Feature) -> Option<&'static str> {
        None
    }
}

/// What a stand-in for an engine may be unable to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Timestamps come from the clock it was made with, and reading leaves them alone.
    Clock,
    /// `ctime` can be set.
    SetCtime,
    /// Times from 1678 on, not only from 1901.
    EarlyTimes,
    /// Nodes are found by number.
    ByNumber,
    /// Attributes change together with an extended attribute, and all at once.
    AtomicSetattr,
    /// Extended attributes of any name, from birth.
    Birth,
    /// Free space is its own.
    Space,
    /// The list of extended attributes is limited as documented.
    XattrLimits,
}

impl<F: FileSystem, M: Fn(Arc<dyn Clock>) -> F + Sync> Engine for M {
    type Fs = F;

    fn make(&self, clock: Arc<dyn Clock>) -> F {
        self(clock)
    }
}

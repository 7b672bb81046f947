//! Whether a path still leads where it led before.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::SeqCst};

/// Counts the changes after which a path may lead elsewhere or be barred although every directory
/// on it is still there: moves of directories, and changes of who may search one.
#[derive(Default)]
pub(crate) struct Layout {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change that is under way, until it is dropped.
pub(crate) struct Changing<'a>(&'a Layout);

impl Layout {
    /// The number of changes so far; `None` while one is under way.
    pub(crate) fn version(&self) -> Option<u64> {
        // In this order: `ended` never overtakes `begun`, so when they agree nothing was between.
        let ended = self.ended.load(Acquire);
        let begun = self.begun.load(Acquire);
        (begun == ended).then_some(begun)
    }

    /// Whether no change has begun since this version.
    #[inline]
    pub(crate) fn is_still(&self, version: u64) -> bool {
        self.begun.load(Acquire) == version
    }

    /// Begins a change: before anyone can see any of it.
    pub(crate) fn change(&self) -> Changing<'_> {
        self.begun.fetch_add(1, SeqCst);
        Changing(self)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_holds_until_a_change_begins_and_there_is_none_while_it_lasts() {
        let layout = Layout::default();
        let version = layout.version().unwrap();
        assert!(layout.is_still(version));
        let first = layout.change();
        let second = layout.change();
        assert!(!layout.is_still(version));
        drop(first);
        assert_eq!(layout.version(), None);
        drop(second);
        assert!(layout.version().is_some_and(|now| now != version));
    }
}

//! Operations on the names of a directory, as the persister will capture them (SoupFS table 2).

use crate::layout::{LINE_MASK, bucket};
use std::collections::VecDeque;

/// Locks of a directory. A base bucket and all that split off it belong to one.
pub const STRIPES: usize = 16;
const _: () = assert!(bucket::BASE.is_multiple_of(STRIPES as u64));
/// The operation number of an entry that the persister has captured.
pub const CAPTURED: u64 = LINE_MASK;

/// An operation that gives a name, and that the persister has not captured yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PendingName {
    /// The directory's inode number, and in the low bits the stripe.
    place: u64,
    /// The operation's number in the stripe.
    pub op: u64,
}

impl PendingName {
    /// Operation `op` of a stripe of a directory.
    pub fn new(dir: u64, stripe: usize, op: u64) -> PendingName {
        let place = dir * STRIPES as u64 + stripe as u64;
        PendingName { place, op }
    }

    /// Another operation there.
    pub fn with_op(self, op: u64) -> PendingName {
        PendingName { op, ..self }
    }

    /// The directory's inode number.
    pub fn dir(&self) -> u64 {
        self.place / STRIPES as u64
    }

    /// The stripe of the directory.
    pub fn stripe(&self) -> usize {
        (self.place % STRIPES as u64) as usize
    }
}

/// An addition.
#[derive(Debug, Clone, Copy)]
pub struct Addition {
    /// Line of the entry.
    pub dentry: u64,
    /// Number of what it names.
    pub child: u64,
    /// Part of a rename: goes with all up to the next [`DirOp::Tie`].
    pub tied: bool,
}

/// A change of a directory that the persister has not captured (SoupFS table 2).
pub enum DirOp {
    /// A new entry.
    Add {
        /// Line of the entry.
        dentry: u64,
        /// Number of what it names.
        child: u64,
        /// Part of a rename: goes with all up to the next [`DirOp::Tie`].
        tied: bool,
    },
    /// An entry to remove.
    Remove {
        /// Line of the entry.
        dentry: u64,
        /// Number of what it named.
        child: u64,
        /// Part of a rename: goes with all up to the next [`DirOp::Tie`].
        tied: bool,
    },
    /// The latest view split this bucket off its parent.
    Split {
        /// The new bucket.
        bucket: u64,
    },
    /// An addition that was undone before it was captured.
    Cancelled,
    /// The same, by a rename.
    MovedOn {
        /// The end of what that rename did.
        end: PendingName,
        /// The addition was part of an earlier rename, and this is still: it goes with all up to
        /// the next [`DirOp::Tie`].
        tied: bool,
    },
    /// The end of what a rename did in this stripe; leads to what it did in the other.
    Tie(PendingName),
}

/// Operations of one stripe, in order. The operation at index `i` has number `first + i`.
#[derive(Default)]
pub struct StripeOps {
    /// What the persister has not captured.
    pub ops: VecDeque<DirOp>,
    /// Number of the first of these.
    pub first: u64,
    /// Behind the last operation that is more than an addition or a split: what comes after may
    /// depend on it.
    pub(super) bound: u64,
    /// Journal words that these may take, as far as [`Locked::charge`] has not told anybody.
    pub(super) words: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_name_tells_where_it_is() {
        let name = PendingName::new(LINE_MASK, STRIPES - 1, 7);
        assert_eq!(
            (name.dir(), name.stripe(), name.op),
            (LINE_MASK, STRIPES - 1, 7)
        );
    }
}

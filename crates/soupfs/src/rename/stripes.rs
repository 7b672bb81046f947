//! The two stripes of a rename: how they are locked, and how what is done in them is tied.

use crate::dir::{self, Dir, Locked};
use crate::hash::Name;
use crate::inode::Inode;
use crate::namespace::Taken;
use triomphe::Arc;

/// A name of a rename, in its directory.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) inode: &'a Arc<Inode>,
    pub(super) dir: &'a Dir,
    pub(super) name: Name<'a>,
}

impl Side<'_> {
    pub(super) fn stripe(&self) -> usize {
        (self.name.hash % dir::STRIPES as u64) as usize
    }
}

/// Stripes locked for a rename; the second is absent when both names are in one stripe.
pub(super) struct TwoStripes<'a> {
    first: Locked<'a>,
    second: Option<Locked<'a>>,
}

impl<'a> TwoStripes<'a> {
    pub(super) fn from(&mut self) -> &mut Locked<'a> {
        &mut self.first
    }

    pub(super) fn to(&mut self) -> &mut Locked<'a> {
        self.second.as_mut().unwrap_or(&mut self.first)
    }
}

/// Lock the stripes of two names. Neither lock is waited for with the other held, except in one
/// directory, by number: so no order between directories is needed.
pub(super) fn lock_two<'a>(from: &Side<'a>, to: &Side<'a>) -> TwoStripes<'a> {
    let (a, b) = (from.stripe(), to.stripe());
    let (from, to) = (from.dir, to.dir);
    let two = |first, second| TwoStripes { first, second };
    if std::ptr::eq(from, to) {
        if a == b {
            return two(from.lock_stripe(a), None);
        }
        if a > b {
            let second = to.lock_stripe(b);
            return two(from.lock_stripe(a), Some(second));
        }
        let first = from.lock_stripe(a);
        return two(first, Some(to.lock_stripe(b)));
    }
    loop {
        let first = from.lock_stripe(a);
        if let Some(second) = to.try_lock_stripe(b) {
            return two(first, Some(second));
        }
        drop(first);
        let second = to.lock_stripe(b);
        if let Some(first) = from.try_lock_stripe(a) {
            return two(first, Some(second));
        }
    }
}

/// What ties the halves of a rename, so that they are captured together (R2), and with what was
/// there before: what is captured of a name that was given and never captured goes where this
/// rename takes it (R8).
pub(super) struct Ties {
    source: Taken,
    target: Option<Taken>,
    /// Something was put under the old name.
    back: bool,
    /// What was done before in the old name's stripe must not be missing.
    bound: bool,
}

impl Ties {
    /// To be called when the old names are taken, and the new ones not given yet.
    pub(super) fn of(
        locks: &mut TwoStripes<'_>,
        source: Taken,
        target: Option<Taken>,
        back: bool,
    ) -> Ties {
        Ties {
            source,
            target,
            back,
            bound: locks.from().is_bound(),
        }
    }

    /// All operations of the rename are recorded, both stripes are still locked.
    pub(super) fn record(self, locks: &mut TwoStripes<'_>, from: u64, to: u64) {
        let end = locks.to().next_name(to);
        let mut other = end;
        if locks.second.is_some() {
            let old = locks.from().next_name(from);
            match self.source {
                Taken::Cancelled { op } if !self.back => {
                    if self.bound {
                        other = old.with_op(op);
                    }
                }
                _ => {
                    other = old;
                    locks.from().tie(end);
                }
            }
        }
        locks.to().tie(other);
        if let Taken::Cancelled { op } = self.source {
            locks.from().moved_on(op, end);
        }
        if let Some(Taken::Cancelled { op }) = self.target {
            locks.to().moved_on(op, end);
        }
    }
}

//! In mode `strong` nobody sees a request before it is durable.
//!
//! Each inode has a *scope*, a lock. A request holds the scopes of all inodes that it changes alone,
//! from its first look until what it changed has committed; who only looks at an inode shares its
//! scope. From this follows:
//! - *Requests that meet come one after the other*, in one order for all inodes: each gives back
//!   nothing that it holds before it has all that it needs (two-phase locking).
//! - *What is pending in an inode whose scope is held is all of one request.* In one that nobody
//!   holds nothing is pending but times of access.
//!
//! Inodes share a fixed number of scopes, by their numbers: two that have the same one wait for each
//! other without need, which is rare, and right.
//!
//! Lock order: `moving` -> scopes, in ascending order, all at once -> all other locks. Whoever
//! shares a scope takes no second one. In other modes there is no gate, and nobody waits.

use crate::shards::CachePadded;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use schedule::{Mutex, MutexGuard, RwLock};
use smallvec::SmallVec;

/// log2 of the number of scopes.
const SCOPES_BITS: u32 = 9;

/// The gate of a mount.
pub struct Gate(Option<Scopes>);

struct Scopes {
    scopes: Box<[CachePadded<RwLock<()>>]>,
    /// Held by a request that moves a directory to another: where directories are stays as it is
    /// while it looks for cycles, and is durable.
    moving: Mutex<()>,
}

/// Scopes that a request holds.
#[derive(Default)]
#[must_use]
pub struct Held<'a> {
    _alone: SmallVec<[RwLockWriteGuard<'a, ()>; 4]>,
    _shared: Option<RwLockReadGuard<'a, ()>>,
}

/// Which scope an inode has.
fn scope_of(ino: u64) -> usize {
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SCOPES_BITS)) as usize
}

impl Gate {
    /// A gate, if the mode is `strong`.
    pub fn new(strong: bool) -> Gate {
        Gate(strong.then(|| {
            Scopes {
                scopes: (0..1 << SCOPES_BITS)
                    .map(|_| CachePadded::default())
                    .collect(),
                moving: Mutex::default(),
            }
        }))
    }

    /// Whether the mode is `strong`.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Hold inodes alone, for a change, and share one that is looked at besides.
    pub fn hold(&self, alone: impl Iterator<Item = u64>, shared: Option<u64>) -> Held<'_> {
        let mut held = Held::default();
        let Some(Scopes { scopes, .. }) = &self.0 else {
            return held;
        };
        let mut places: SmallVec<[(usize, bool); 6]> =
            alone.map(|ino| (scope_of(ino), false)).collect();
        places.extend(shared.map(|ino| (scope_of(ino), true)));
        places.sort_unstable();
        places.dedup_by_key(|&mut (place, _)| place); // what is held alone need not be shared
        for (place, shared) in places {
            match shared {
                false => held._alone.push(scopes[place].write()),
                true => held._shared = Some(scopes[place].read()),
            }
        }
        held
    }

    /// Share an inode, to look at it; `None` in other modes.
    #[inline]
    pub fn shared(&self, ino: u64) -> Option<impl Drop + '_> {
        let Scopes { scopes, .. } = self.0.as_ref()?;
        Some(scopes[scope_of(ino)].read())
    }

    /// Share an inode that no request holds; in other modes nothing.
    pub fn try_shared(&self, ino: u64) -> Option<impl Drop + '_> {
        let Scopes { scopes, .. } = self.0.as_ref()?;
        scopes[scope_of(ino)].try_read()
    }

    /// Directories stay where they are, but for those that the caller moves. Comes before scopes.
    pub fn moving(&self) -> Option<MutexGuard<'_, ()>> {
        Some(self.0.as_ref()?.moving.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_not_shared_and_the_rest_is() {
        let gate = Gate::new(true);
        let held = gate.hold([8, 2, 8].into_iter(), Some(2));
        assert!(gate.try_shared(8).is_none() && gate.try_shared(2).is_none());
        drop(held);
        let held = gate.hold([8].into_iter(), Some(2));
        assert!(gate.try_shared(8).is_none() && gate.try_shared(2).is_some());
        drop(held);
        assert!(gate.try_shared(8).is_some());
        assert!(gate.moving().is_some() && Gate::new(false).moving().is_none());
    }
}

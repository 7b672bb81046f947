//! In mode `strong` nobody sees a request before it is durable.
//!
//! Each inode has a *scope*: a lock, and two sequence numbers. A request holds the scopes of all
//! inodes that it changes alone, from its first look until what it changed has committed. From this
//! follows:
//! - *Requests that meet come one after the other*, in one order for all inodes: each gives back
//!   nothing that it holds before it has all that it needs (two-phase locking).
//! - *What is pending in an inode whose scope is held is all of one request.* In one that nobody
//!   holds nothing is pending but times of access: both views are the same (S1).
//!
//! Who only looks at an inode takes no lock ([`Gate::look`]). It has two views to choose from, each
//! with a number that says whether it stays as it is:
//!
//! ```text
//! held     odd while a request has the scope: it changes the latest view
//! stored   odd while a commit stores words in place: it changes the consistent view (S2)
//! ```
//!
//! So it looks at the latest view if nobody holds the scope, else at the consistent one, which
//! shows the state before the request until that is durable; and if the number is another one
//! afterwards it looks again. After 16 attempts it shares the scope. When a commit has failed the
//! latest view has what may never be durable: from then on all look at the consistent one
//! ([`Gate::fail`]).
//!
//! Who changes so little that a transaction of memory will do takes no lock either
//! ([`Gate::seen`]): it looks at the consistent view, and its transaction stands for what it has
//! seen if both numbers are as they were, and nobody shares the scope. They go up by two with it,
//! as one of its stores, so all others find that something has changed.
//!
//! Inodes share a fixed number of scopes, by their numbers: two that have the same one wait for
//! each other without need, which is rare, and right.
//!
//! Lock order: moves of directories -> scopes, in ascending order, all at once -> all other locks.
//! Whoever shares a scope takes no second one. In other modes there is no gate, and nobody waits.

use crate::fault::{Fault, injected};
use crate::shards::CachePadded;
use pmem::{Domain, Transaction};
use schedule::point;
use smallvec::SmallVec;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

mod scope;

/// What a scope is made of.
mod sync {
    pub use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
    pub use schedule::{RwLock, write_soon};
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
}

use scope::{Alone, Scope, Stored};
pub use scope::{Seen, Shared, View, Views};

/// log2 of the number of scopes.
const SCOPES_BITS: u32 = 9;

/// How often who wants a scope looks for it before it sleeps: some microseconds, as long as two
/// requests, and less than falling asleep and being woken takes. On a disk a request is longer.
const LOOKS: u32 = 256;

/// Looks that are disturbed so often in a row share the scope.
const TRIES: usize = 16;

/// The gate of a mount.
pub struct Gate(Option<Scopes>);

struct Scopes {
    scopes: Box<[CachePadded<Scope>]>,
    /// A commit has failed: nobody looks at the latest view of what the consistent one has.
    failed: AtomicBool,
    /// Whoever finds a scope held looks so often for its end before it sleeps.
    looks: u32,
}

/// Scopes that a request holds.
#[derive(Default)]
#[must_use]
pub struct Held<'a> {
    _alone: SmallVec<[Alone<'a>; 4]>,
    _shared: Option<Shared<'a>>,
}

/// Scopes whose inodes a commit changes in place until this is dropped.
#[derive(Default)]
#[must_use]
pub struct Storing<'a> {
    _scopes: SmallVec<[Stored<'a>; 8]>,
}

impl<'a> Seen<'a> {
    /// A transaction stands for what was seen only if that is as it was.
    pub fn validate(&self, transaction: &mut Transaction<'a>) {
        for (number, seen) in self.versions() {
            transaction.version(number, seen);
        }
        transaction.expect(self.shared(), 0);
    }
}

/// Which scope an inode has.
fn scope_of(ino: u64) -> usize {
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SCOPES_BITS)) as usize
}

/// The scopes of some inodes, a bit for each: so each is there once, and they come in their order,
/// without a list that is sorted.
struct Places([u64; 1 << (SCOPES_BITS - 6)]);

impl Places {
    #[inline]
    fn of(inos: impl Iterator<Item = u64>) -> Places {
        let mut places = Places([0; 1 << (SCOPES_BITS - 6)]);
        for ino in inos {
            places.add(scope_of(ino));
        }
        places
    }

    fn add(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    fn contains(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    /// In ascending order.
    #[inline]
    fn each(&self, mut with: impl FnMut(usize)) {
        for (i, &word) in self.0.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                with(64 * i + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    }
}

impl Gate {
    /// A gate, if the mode is `strong`, of requests that commit in this domain.
    pub fn new(strong: bool, domain: Domain) -> Gate {
        let several = || std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Gate(strong.then(|| {
            Scopes {
                looks: match domain {
                    Domain::Line | Domain::Cache if several() => LOOKS,
                    Domain::Line | Domain::Cache | Domain::Page => 0,
                },
                scopes: (0..1 << SCOPES_BITS)
                    .map(|_| CachePadded::default())
                    .collect(),
                failed: AtomicBool::new(false),
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
        let Some(Scopes { scopes, looks, .. }) = &self.0 else {
            return held;
        };
        let alone = Places::of(alone);
        let mut all = Places(alone.0);
        if let Some(ino) = shared {
            all.add(scope_of(ino));
        }
        all.each(|place| match alone.contains(place) {
            true => held._alone.push(Alone::take(&scopes[place], *looks)),
            false => held._shared = Some(scopes[place].share()),
        });
        held
    }

    /// Look at an inode. `look` is run until the view that it is told to look at stands behind it;
    /// what it found before does not count.
    ///
    /// In other modes there is the latest view alone.
    #[inline]
    pub fn look<T>(&self, ino: u64, views: Views, mut look: impl FnMut(&View<'_>) -> T) -> T {
        let Some(Scopes { scopes, failed, .. }) = &self.0 else {
            return look(&View::kept(true));
        };
        let scope = &scopes[scope_of(ino)];
        for _ in 0..TRIES {
            let Some(view) = scope.view(views, failed) else {
                std::hint::spin_loop();
                continue;
            };
            let found = look(&view);
            point("look: done");
            if view.stands() {
                return found;
            }
        }
        let _shared = scope.share();
        let latest = views == Views::Latest || !failed.load(Acquire);
        look(&View::kept(latest))
    }

    /// A commit has failed, and its scopes are still held: what the latest view has of it may never
    /// be durable. From now on looks are at the consistent view, which nothing changes any more;
    /// but for inodes that it does not hold.
    pub fn fail(&self) {
        if let Some(Scopes { failed, .. }) = &self.0 {
            failed.store(!injected(Fault::FailureUntold), Release);
        }
    }

    /// Whether a commit has failed, of a request that has given its scopes back.
    pub fn has_failed(&self) -> bool {
        let failed = self.0.as_ref().map(|scopes| &scopes.failed);
        failed.is_some_and(|failed| failed.load(Acquire))
    }

    /// A number that tells whether a look at an inode still stands when its scope is held
    /// ([`Gate::stands`]). Comes before the look.
    pub fn number(&self, ino: u64) -> u64 {
        let scopes = self.0.as_ref().map(|scopes| &scopes.scopes);
        scopes.map_or(0, |scopes| scopes[scope_of(ino)].number())
    }

    /// Whether nobody has held an inode since it had this number but the caller, who holds it.
    pub fn stands(&self, ino: u64, number: u64) -> bool {
        number.is_multiple_of(2) && self.number(ino) == number + 1
    }

    /// Share an inode, to look at it; `None` in other modes.
    #[inline]
    pub fn shared(&self, ino: u64) -> Option<Shared<'_>> {
        let Scopes { scopes, .. } = self.0.as_ref()?;
        Some(scopes[scope_of(ino)].share())
    }

    /// Share an inode that no request holds; in other modes nothing.
    pub fn try_shared(&self, ino: u64) -> Option<Shared<'_>> {
        let Scopes { scopes, .. } = self.0.as_ref()?;
        scopes[scope_of(ino)].try_share()
    }

    /// Begin to look at the consistent view of an inode, to change it without a lock; `None` if it
    /// is changing or somebody shares it, and in other modes.
    pub fn seen(&self, ino: u64) -> Option<Seen<'_>> {
        let Scopes { scopes, .. } = self.0.as_ref()?;
        scopes[scope_of(ino)].seen()
    }

    /// A commit is about to store words of these inodes in place. The caller has the lane.
    pub fn storing(&self, inos: impl Iterator<Item = u64>) -> Storing<'_> {
        let Some(Scopes { scopes, .. }) = &self.0 else {
            return Storing::default();
        };
        let mut storing = Storing::default();
        if !injected(Fault::NoOddPhase) {
            let places = Places::of(inos);
            places.each(|place| storing._scopes.push(scopes[place].storing()));
        }
        point("commit: the numbers are odd");
        storing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_not_shared_and_the_rest_is() {
        let gate = Gate::new(true, Domain::Line);
        let held = gate.hold([8, 2, 8].into_iter(), Some(2));
        assert!(gate.try_shared(8).is_none() && gate.try_shared(2).is_none());
        drop(held);
        let held = gate.hold([8].into_iter(), Some(2));
        assert!(gate.try_shared(8).is_none() && gate.try_shared(2).is_some());
        drop(held);
        assert!(gate.try_shared(8).is_some());
    }

    #[test]
    fn a_look_before_a_scope_is_held_stands_unless_somebody_had_it_meanwhile() {
        let gate = Gate::new(true, Domain::Line);
        let hold = || gate.hold([8].into_iter(), None);
        let number = gate.number(8);
        let held = hold();
        assert!(gate.stands(8, number));
        let number = gate.number(8);
        drop(held);
        let held = hold();
        assert!(!gate.stands(8, number), "it was just changing");
        drop(held);
        let number = gate.number(8);
        drop(hold());
        let held = hold();
        assert!(!gate.stands(8, number), "it was changed");
        drop(held);
    }

    /// What a look at an inode is at, each time that it looks.
    fn looks(gate: &Gate, mut meanwhile: impl FnMut(usize)) -> Vec<bool> {
        let mut views = Vec::new();
        gate.look(8, Views::Both, |view| {
            views.push(view.latest);
            meanwhile(views.len());
        });
        views
    }

    #[test]
    fn a_look_is_at_the_view_that_stays_as_it_is() {
        let gate = Gate::new(true, Domain::Line);
        let hold = || gate.hold([8].into_iter(), None);
        let store = || drop(gate.storing([8].into_iter()));
        assert_eq!(looks(&gate, |_| ()), [true]);
        // A sweep changes the consistent view alone.
        assert_eq!(looks(&gate, |_| store()), [true]);
        let held = hold();
        assert_eq!(looks(&gate, |_| ()), [false]);
        let once = |n| {
            if n == 1 {
                store()
            }
        };
        assert_eq!(looks(&gate, once), [false, false]);
        drop(held);
        let once = |n| {
            if n == 1 {
                drop(hold())
            }
        };
        assert_eq!(looks(&gate, once), [true, true]);
        // In the end it shares the scope.
        let often = |n| {
            if n <= TRIES {
                drop(hold())
            }
        };
        assert_eq!(looks(&gate, often).len(), TRIES + 1);
        assert_eq!(looks(&Gate::new(false, Domain::Line), |_| ()), [true]);
        let once = |n| {
            if n == 1 {
                let held = hold();
                gate.fail();
                drop(held);
            }
        };
        assert_eq!(looks(&gate, once), [true, false]);
        let often = |n| {
            if n <= TRIES {
                store()
            }
        };
        assert_eq!(looks(&gate, often), [false; TRIES + 1]);
    }
}

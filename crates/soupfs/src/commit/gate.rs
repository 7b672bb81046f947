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
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use pmem::{Domain, Transaction};
use schedule::{RwLock, point, write_soon};
use smallvec::SmallVec;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// log2 of the number of scopes.
const SCOPES_BITS: u32 = 9;

/// How often who wants a scope looks for it before it sleeps: some microseconds, as long as two
/// requests, and less than falling asleep and being woken takes. On a disk a request is longer.
const LOOKS: u32 = 256;

/// Looks that are disturbed so often in a row share the scope.
const TRIES: usize = 16;

/// Attempts at a transaction without a lock before the lock is taken, where it was not needed of
/// late (HTMFS §4).
const PATIENCE_MAX: u8 = 60;

/// The gate of a mount.
pub struct Gate(Option<Scopes>);

struct Scopes {
    scopes: Box<[CachePadded<Scope>]>,
    /// A commit has failed: nobody looks at the latest view of what the consistent one has.
    failed: AtomicBool,
    /// Whoever finds a scope held looks so often for its end before it sleeps.
    looks: u32,
}

struct Scope {
    lock: RwLock<()>,
    /// Odd while a request has the scope. Changed by whoever has it alone, and by transactions.
    held: AtomicU64,
    /// Odd while a commit stores words of its inodes in place.
    stored: AtomicU64,
    /// How many share it.
    shared: AtomicU64,
    /// Attempts at transactions without the lock that are worth the while.
    patience: AtomicU8,
}

impl Default for Scope {
    fn default() -> Scope {
        Scope {
            lock: RwLock::default(),
            held: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            patience: AtomicU8::new(PATIENCE_MAX),
        }
    }
}

/// A scope that others share, too.
pub struct Shared<'a> {
    count: &'a AtomicU64,
    _lock: RwLockReadGuard<'a, ()>,
}

impl Scope {
    fn share(&self) -> Shared<'_> {
        self.shared(self.lock.read())
    }

    fn shared<'a>(&'a self, _lock: RwLockReadGuard<'a, ()>) -> Shared<'a> {
        let count = &self.shared;
        count.fetch_add(1, SeqCst); // no transaction begins from here on
        while !self.held.load(SeqCst).is_multiple_of(2) {
            std::hint::spin_loop(); // one that has begun is some stores long
        }
        Shared { count, _lock }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Release);
    }
}

/// What a change without a lock was decided upon.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    scope: &'a Scope,
    held: u64,
    stored: u64,
}

impl<'a> Seen<'a> {
    /// A transaction stands for what was seen only if that is as it was.
    pub fn validate(&self, transaction: &mut Transaction<'a>) {
        transaction.version(&self.scope.held, self.held);
        transaction.version(&self.scope.stored, self.stored);
        transaction.expect(&self.scope.shared, 0);
    }

    /// Attempts that are worth the while: the fewer the more often they were in vain.
    pub fn patience(&self) -> u8 {
        self.scope.patience.load(Relaxed)
    }

    /// It went without the lock, or did not.
    pub fn learn(&self, went: bool) {
        let patience = self.patience();
        let next = match went {
            true => (patience + 1).min(PATIENCE_MAX),
            false => (patience / 2).max(1),
        };
        if next != patience {
            self.scope.patience.store(next, Relaxed);
        }
    }
}

/// A scope that a request has alone.
struct Alone<'a> {
    held: &'a AtomicU64,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl<'a> Alone<'a> {
    fn take(scope: &'a Scope, looks: u32) -> Alone<'a> {
        let _lock = write_soon(&scope.lock, looks);
        let held = &scope.held;
        let even = |held: u64| held.is_multiple_of(2).then_some(held + 1);
        while held.fetch_update(SeqCst, Relaxed, even).is_err() {
            std::hint::spin_loop(); // a transaction has begun, and is some stores long
        }
        fence(Release); // odd before anything changes
        Alone { held, _lock }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.held.store(self.held.load(Relaxed) + 1, Release);
    }
}

/// Scopes that a request holds.
#[derive(Default)]
#[must_use]
pub struct Held<'a> {
    _alone: SmallVec<[Alone<'a>; 4]>,
    _shared: Option<Shared<'a>>,
}

/// Scopes whose inodes a commit changes in place until this is dropped.
#[must_use]
pub struct Storing<'a>(SmallVec<[&'a AtomicU64; 8]>);

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        for stored in self.0.drain(..) {
            stored.fetch_add(1, Release);
        }
    }
}

/// Which view of an inode a look is at, and whether that has stayed as it was.
pub struct View<'a> {
    /// The latest view; else the consistent one.
    pub latest: bool,
    number: Option<(&'a AtomicU64, u64)>,
}

impl<'a> View<'a> {
    fn at(latest: bool, number: &'a AtomicU64) -> Option<View<'a>> {
        let before = number.load(Acquire);
        let number = Some((number, before));
        (before & 1 == 0).then_some(View { latest, number })
    }

    /// Whether nobody has changed it since the look began.
    pub fn stands(&self) -> bool {
        fence(Acquire); // what was read comes first
        self.number
            .is_none_or(|(number, before)| number.load(Relaxed) == before)
    }
}

/// Which views of an inode there are to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Views {
    /// The latest: nothing of it is published.
    Latest,
    /// Both. The latest is preferred, as it is in DRAM.
    Both,
    /// The consistent one, which says as much and has no locks.
    Consistent,
}

impl Scope {
    /// What to look at now; `None`: it is just changing.
    fn view(&self, views: Views, failed: &AtomicBool) -> Option<View<'_>> {
        let latest = (views != Views::Consistent).then(|| View::at(true, &self.held));
        // Behind the number: a request that fails says so before it gives its scopes back.
        let shown = |_: &View<'_>| views == Views::Latest || !failed.load(Acquire);
        let consistent = || (views != Views::Latest).then(|| View::at(false, &self.stored));
        let latest = latest.flatten().filter(shown);
        latest.or_else(|| consistent().flatten())
    }
}

/// Which scope an inode has.
fn scope_of(ino: u64) -> usize {
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SCOPES_BITS)) as usize
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
        let mut places: SmallVec<[(usize, bool); 6]> =
            alone.map(|ino| (scope_of(ino), false)).collect();
        places.extend(shared.map(|ino| (scope_of(ino), true)));
        places.sort_unstable();
        places.dedup_by_key(|&mut (place, _)| place); // what is held alone need not be shared
        for (place, shared) in places {
            match shared {
                false => held._alone.push(Alone::take(&scopes[place], *looks)),
                true => held._shared = Some(scopes[place].share()),
            }
        }
        held
    }

    /// Look at an inode. `look` is run until the view that it is told to look at stands behind it;
    /// what it found before does not count.
    ///
    /// In other modes there is the latest view alone.
    #[inline]
    pub fn look<T>(&self, ino: u64, views: Views, mut look: impl FnMut(&View<'_>) -> T) -> T {
        let only = View {
            latest: true,
            number: None,
        };
        let Some(Scopes { scopes, failed, .. }) = &self.0 else {
            return look(&only);
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
        look(&View { latest, ..only })
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
        scopes.map_or(0, |scopes| scopes[scope_of(ino)].held.load(Acquire))
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
        let scope = &scopes[scope_of(ino)];
        Some(scope.shared(scope.lock.try_read()?))
    }

    /// Begin to look at the consistent view of an inode, to change it without a lock; `None` if it
    /// is changing or somebody shares it, and in other modes.
    pub fn seen(&self, ino: u64) -> Option<Seen<'_>> {
        let Scopes { scopes, .. } = self.0.as_ref()?;
        let scope = &scopes[scope_of(ino)];
        let (held, stored) = (scope.held.load(Acquire), scope.stored.load(Acquire));
        let quiet = scope.shared.load(Acquire) == 0;
        let even = (held | stored).is_multiple_of(2);
        (quiet && even).then_some(Seen {
            scope,
            held,
            stored,
        })
    }

    /// A commit is about to store words of these inodes in place. The caller has the lane.
    pub fn storing(&self, inos: impl Iterator<Item = u64>) -> Storing<'_> {
        let Some(Scopes { scopes, .. }) = &self.0 else {
            return Storing(SmallVec::new());
        };
        let mut places: SmallVec<[usize; 8]> = inos.map(scope_of).collect();
        places.sort_unstable();
        places.dedup();
        if injected(Fault::NoOddPhase) {
            places.clear();
        }
        let odd = |place: usize| {
            // Of inodes that are held, or shared by a sweep: no transaction is at it.
            let stored = &scopes[place].stored;
            stored.fetch_add(1, AcqRel);
            stored
        };
        let storing = Storing(places.into_iter().map(odd).collect());
        fence(Release); // odd before anything changes
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

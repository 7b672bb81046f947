//! A scope: a lock, two sequence numbers and a count, and the orders in which they are stored and
//! read. [`crate::commit::gate`] says what they are for.
//!
//! Nothing here is of this crate but `sync`, its atomics and its lock: `tests/gate.rs` has those of
//! a tester of schedules and of memory orders in their place, and runs this code.

use super::sync::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    RwLock, RwLockReadGuard, RwLockWriteGuard, fence, spin_loop, write_soon,
};

/// Attempts at a transaction without a lock before the lock is taken, where it was not needed of
/// late (HTMFS §4).
const PATIENCE_MAX: u8 = 60;

/// See [`crate::commit::gate`].
pub struct Scope {
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
    /// Share it, behind whoever has it alone.
    pub fn share(&self) -> Shared<'_> {
        self.shared(self.lock.read())
    }

    /// Share it, if nobody has it alone.
    pub fn try_share(&self) -> Option<Shared<'_>> {
        Some(self.shared(self.lock.try_read()?))
    }

    /// What it is, to change it without the lock; `None` if it is changing or somebody shares it.
    pub fn seen(&self) -> Option<Seen<'_>> {
        let (held, stored) = (self.held.load(Acquire), self.stored.load(Acquire));
        let quiet = self.shared.load(Acquire) == 0;
        let even = (held | stored).is_multiple_of(2);
        (quiet && even).then_some(Seen {
            scope: self,
            held,
            stored,
        })
    }

    /// A number that tells whether somebody has held it meanwhile.
    pub fn number(&self) -> u64 {
        self.held.load(Acquire)
    }

    /// A commit stores words of its inodes in place until this is dropped. The caller has the lane,
    /// and the scope is held, or shared by a sweep: no transaction is at it.
    pub fn storing(&self) -> Stored<'_> {
        self.stored.fetch_add(1, AcqRel);
        fence(Release); // odd before anything changes
        Stored(&self.stored)
    }

    fn shared<'a>(&'a self, _lock: RwLockReadGuard<'a, ()>) -> Shared<'a> {
        let count = &self.shared;
        count.fetch_add(1, SeqCst); // no transaction begins from here on
        while !self.held.load(SeqCst).is_multiple_of(2) {
            spin_loop(); // one that has begun is some stores long
        }
        Shared { count, _lock }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Release);
    }
}

/// See [`Scope::storing`].
#[must_use]
pub struct Stored<'a>(&'a AtomicU64);

impl Drop for Stored<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Release);
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
    /// The numbers as they were seen, even both.
    pub fn versions(&self) -> [(&'a AtomicU64, u64); 2] {
        [
            (&self.scope.held, self.held),
            (&self.scope.stored, self.stored),
        ]
    }

    /// A word that is zero as long as nobody shares the scope.
    pub fn shared(&self) -> &'a AtomicU64 {
        &self.scope.shared
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
pub struct Alone<'a> {
    held: &'a AtomicU64,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl<'a> Alone<'a> {
    /// Wait until nobody else has it: look so often for that before sleeping.
    pub fn take(scope: &'a Scope, looks: u32) -> Alone<'a> {
        let _lock = write_soon(&scope.lock, looks);
        let held = &scope.held;
        let even = |held: u64| held.is_multiple_of(2).then_some(held + 1);
        while held.fetch_update(SeqCst, Relaxed, even).is_err() {
            spin_loop(); // a transaction has begun, and is some stores long
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

/// Which view of an inode a look is at, and whether that has stayed as it was.
pub struct View<'a> {
    /// The latest view; else the consistent one.
    pub latest: bool,
    number: Option<(&'a AtomicU64, u64)>,
}

impl<'a> View<'a> {
    /// One that nobody changes meanwhile.
    pub fn kept(latest: bool) -> View<'a> {
        let number = None;
        View { latest, number }
    }

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
    pub fn view(&self, views: Views, failed: &AtomicBool) -> Option<View<'_>> {
        let latest = (views != Views::Consistent).then(|| View::at(true, &self.held));
        // Behind the number: a request that fails says so before it gives its scopes back.
        let shown = |_: &View<'_>| views == Views::Latest || !failed.load(Acquire);
        let consistent = || (views != Views::Latest).then(|| View::at(false, &self.stored));
        let latest = latest.flatten().filter(shown);
        latest.or_else(|| consistent().flatten())
    }
}

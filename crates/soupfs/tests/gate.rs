//! The protocol of the gate, in mode `strong`, under `loom`: every interleaving of a few threads,
//! and every value that a load may return by the memory model. What runs is the engine's own code
//! (`src/commit/gate/scope.rs`, and of `pmem` `src/transaction/attempt.rs`) with other atomics.
//!
//! Threads: a request that holds the scope and commits; one who looks at either view; one who
//! shares it; a transaction without a lock. Each model has two or three of them, the smallest that
//! contains what it is about. What they change has two words in each view, of which nobody may see
//! one without the other.
//!
//! Each order that the protocol relies on is then weakened by itself, and some model must notice.

#[path = "../../pmem/src/transaction/attempt.rs"]
mod attempt;
#[allow(dead_code, reason = "not all that the engine uses is used here")]
#[path = "../src/commit/gate/scope.rs"]
mod scope;

use attempt::attempt;
use loom::thread;
use parking_lot::Mutex;
use scope::{Alone, Scope, Views};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8 as Weakened, Ordering::SeqCst as Always};
use sync::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Atomics and locks of `loom`, with one order of memory weakened if there is a bug.
mod sync {
    use super::Bug;
    use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
    use loom::sync::atomic;
    pub use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    pub use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

    /// A loop that waits for another thread.
    pub fn spin_loop() {
        loom::thread::yield_now();
    }

    /// How long somebody looks before it sleeps makes no difference here.
    pub fn write_soon<T>(lock: &RwLock<T>, _looks: u32) -> RwLockWriteGuard<'_, T> {
        lock.write()
    }

    pub fn fence(order: Ordering) {
        let gone = match order {
            Release => Bug::FenceRelease,
            Acquire => Bug::FenceAcquire,
            _ => Bug::SeqCst,
        };
        if !gone.is_on() {
            atomic::fence(order);
        }
    }

    /// `loom` takes an access that is `SeqCst` for one that acquires and releases, so here it has a
    /// fence on either side, which is at least as much.
    #[derive(Debug)]
    pub struct AtomicU64(atomic::AtomicU64);

    fn strongly<T>(order: Ordering, access: impl FnOnce(Ordering) -> T) -> T {
        let order = match order {
            SeqCst if Bug::SeqCst.is_on() => Relaxed,
            Release | AcqRel if Bug::Release.is_on() => Relaxed,
            Acquire if Bug::Acquire.is_on() => Relaxed,
            order => order,
        };
        if order != SeqCst {
            return access(order);
        }
        atomic::fence(SeqCst);
        let done = access(SeqCst);
        atomic::fence(SeqCst);
        done
    }

    impl AtomicU64 {
        pub fn new(value: u64) -> AtomicU64 {
            AtomicU64(atomic::AtomicU64::new(value))
        }

        pub fn load(&self, order: Ordering) -> u64 {
            let weaker = |order| match order {
                SeqCst => Acquire,
                order => order,
            };
            strongly(order, |order| self.0.load(weaker(order)))
        }

        pub fn store(&self, value: u64, order: Ordering) {
            strongly(order, |order| self.0.store(value, order));
        }

        pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            strongly(order, |order| self.0.fetch_add(value, order))
        }

        pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            strongly(order, |order| self.0.fetch_sub(value, order))
        }

        pub fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            order: Ordering,
            otherwise: Ordering,
        ) -> Result<u64, u64> {
            strongly(order, |order| {
                self.0.compare_exchange(old, new, order, otherwise)
            })
        }

        pub fn fetch_update(
            &self,
            order: Ordering,
            otherwise: Ordering,
            update: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            strongly(order, |order| self.0.fetch_update(order, otherwise, update))
        }
    }

    /// A lock without poison, as the engine's.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("nobody panics")
        }

        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("nobody panics")
        }
    }
}

/// What is weakened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Bug {
    None,
    /// The fences behind making a number odd are left out.
    FenceRelease,
    /// So is the one before a number is looked at again.
    FenceAcquire,
    /// Stores that make a number even release nothing.
    Release,
    /// Loads of numbers acquire nothing.
    Acquire,
    /// Who shares a scope and who begins a transaction may both miss the other.
    SeqCst,
}

/// The bug that is on, in all of the process.
static BUG: Weakened = Weakened::new(Bug::None as u8);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Bug {
    fn is_on(self) -> bool {
        BUG.load(Always) == self as u8
    }
}

/// Two words of each view, and whether what they hold is durable.
struct File {
    scope: Scope,
    failed: AtomicBool,
    latest: [AtomicU64; 2],
    consistent: [AtomicU64; 2],
    durable: AtomicU64,
}

impl File {
    fn new() -> Arc<File> {
        let words = || [0; 2].map(AtomicU64::new);
        Arc::new(File {
            scope: Scope::default(),
            failed: AtomicBool::new(false),
            latest: words(),
            consistent: words(),
            durable: AtomicU64::new(0),
        })
    }

    /// A request that adds one to each word.
    fn request(&self) {
        let held = Alone::take(&self.scope, 0);
        let next = self.latest[0].load(Relaxed) + 1;
        self.latest
            .iter()
            .for_each(|word| word.store(next, Relaxed));
        self.durable.store(next, Relaxed); // Commit point.
        let stored = self.scope.storing();
        self.consistent
            .iter()
            .for_each(|word| word.store(next, Relaxed));
        drop(stored);
        drop(held);
    }

    /// The same by a transaction without a lock, if it does.
    fn optimistic(&self) -> bool {
        let Some(seen) = self.scope.seen() else {
            return false;
        };
        let next = self.consistent[0].load(Relaxed) + 1;
        let store = || {
            let words = self.consistent.iter().chain(&self.latest);
            self.durable.store(next, Relaxed);
            words.for_each(|word| word.store(next, Relaxed));
        };
        attempt(&seen.versions(), &[(seen.shared(), 0)], store)
    }

    /// What one look finds, if it stands.
    fn look(&self, views: Views) -> Option<u64> {
        let view = self.scope.view(views, &self.failed)?;
        let words = match view.latest {
            true => &self.latest,
            false => &self.consistent,
        };
        let found = [0, 1].map(|n| words[n].load(Relaxed));
        if !view.stands() {
            return None;
        }
        assert_eq!(found[0], found[1], "half a request");
        let durable = self.durable.load(Relaxed);
        assert!(found[0] <= durable, "seen before it is durable");
        Some(found[0])
    }

    /// What somebody finds who shares it: it stays as it is.
    fn share(&self) {
        let _shared = self.scope.share();
        let found = self.latest.iter().chain(&self.consistent);
        let found: Vec<u64> = found.map(|word| word.load(Relaxed)).collect();
        assert!(found.iter().all(|word| *word == found[0]), "{found:?}");
    }

    /// What is left: each request has added one.
    fn left(&self, requests: u64) {
        let words = self.latest.iter().chain(&self.consistent);
        words.for_each(|word| assert_eq!(word.load(Relaxed), requests, "one is lost"));
        let seen = self.scope.seen().expect("nobody is there any more");
        let numbers = seen.versions().map(|(_, number)| number);
        assert_eq!(numbers, [2 * requests; 2], "nobody would notice a request");
    }
}

/// Run threads on one file, in all ways in which they are stopped half way at most so often; what
/// they return is how many requests each did.
fn model(threads: &'static [fn(&File) -> u64], stops: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(stops);
    builder.check(move || {
        let file = File::new();
        let run = |thread: &fn(&File) -> u64| {
            let (file, thread) = (file.clone(), *thread);
            thread::spawn(move || thread(&file))
        };
        let (first, others) = threads.split_first().expect("there are some");
        let others: Vec<_> = others.iter().map(run).collect();
        let mut done = first(&file);
        for other in others {
            done += other.join().expect("it asserts what it sees");
        }
        file.left(done);
    });
}

const REQUEST: fn(&File) -> u64 = |file| {
    file.request();
    1
};
const OPTIMISTIC: fn(&File) -> u64 = |file| file.optimistic().into();
/// Two looks: the second finds no older state.
const LOOKS: fn(&File) -> u64 = |file| {
    let looks = [Views::Both, Views::Consistent].map(|views| file.look(views));
    if let [Some(first), Some(second)] = looks {
        assert!(first <= second, "what was seen is gone");
    }
    0
};
const SHARES: fn(&File) -> u64 = |file| {
    file.share();
    0
};

/// Its name, and what each of its threads does.
type Model = (&'static str, &'static [fn(&File) -> u64]);

/// All models of two.
const MODELS: [Model; 6] = [
    ("a request, and who looks", &[REQUEST, LOOKS]),
    ("a request, and who shares", &[REQUEST, SHARES]),
    ("a transaction, and who looks", &[OPTIMISTIC, LOOKS]),
    ("a transaction, and who shares", &[OPTIMISTIC, SHARES]),
    ("two transactions", &[OPTIMISTIC, OPTIMISTIC]),
    ("a request and a transaction", &[REQUEST, OPTIMISTIC]),
];

/// The models that notice something.
fn noticed(bug: Bug) -> Vec<&'static str> {
    BUG.store(bug as u8, Always);
    let objects =
        |&(_, threads): &Model| catch_unwind(AssertUnwindSafe(|| model(threads, 3))).is_err();
    let all: Vec<_> = MODELS.iter().filter(|model| objects(model)).collect();
    BUG.store(Bug::None as u8, Always);
    all.into_iter().map(|(name, _)| *name).collect()
}

#[test]
fn nobody_sees_half_a_request_or_loses_one() {
    let _alone = ONE_AT_A_TIME.lock();
    for (name, threads) in MODELS {
        println!("{name}");
        model(threads, 3);
    }
    println!("three at once");
    model(&[REQUEST, OPTIMISTIC, LOOKS], 1);
}

#[test]
fn an_order_that_is_weaker_is_noticed() {
    let _alone = ONE_AT_A_TIME.lock();
    let bugs = [
        Bug::FenceRelease,
        Bug::FenceAcquire,
        Bug::Release,
        Bug::Acquire,
        Bug::SeqCst,
    ];
    for bug in bugs {
        let by = noticed(bug);
        println!("{bug:?}: {by:?}");
        assert!(!by.is_empty(), "nobody notices {bug:?}");
    }
}

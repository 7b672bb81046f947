//! The queue in which callers wait for the lane, under `loom`: every interleaving of two or three
//! threads. What runs is the engine's own code (`src/commit/requests.rs`) with other locks.
//!
//! Each thread has something that is to be served. It takes the lane at once, if nobody has it, or
//! queues. Whoever returns is served, nobody is served twice, and nobody waits for ever. If serving
//! fails, all who were to be served together say so, or one of their leader.

#[path = "../src/commit/requests.rs"]
#[allow(dead_code, reason = "what the engine's own tests use")]
mod requests;

use loom::sync::atomic::AtomicBool;
use loom::thread;
use parking_lot::Mutex as Turns;
use requests::Requests;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool as Injected, AtomicUsize, Ordering::SeqCst};
use sync::Mutex;

/// Locks of `loom`, without poison as the engine's.
mod sync {
    pub use loom::sync::{Arc, RwLockWriteGuard};
    use loom::sync::{MutexGuard, RwLockReadGuard};

    /// `loom` stops threads at each lock.
    pub fn point(_name: &'static str) {}

    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("nobody panics")
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    #[derive(Default)]
    pub struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("nobody panics")
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("nobody panics")
        }
    }
}

/// Bugs of the engine's list that this code has.
mod fault {
    use super::{EARLY, SeqCst};

    pub enum Fault {
        ServedEarly,
    }

    pub fn injected(fault: Fault) -> bool {
        match fault {
            Fault::ServedEarly => EARLY.load(SeqCst),
        }
    }
}

/// The bug is there, in all of the process.
static EARLY: Injected = Injected::new(false);
static ONE_AT_A_TIME: Turns<()> = Turns::new(());

/// The queue, and the lane with what was served.
struct Commits {
    queue: Requests<usize>,
    lane: Mutex<Vec<usize>>,
    /// Whoever is to be served together with this one is not.
    fails: Option<usize>,
    /// Serving takes time: here others may go on.
    serving: AtomicBool,
    /// The most that were served together, in all interleavings.
    together: &'static AtomicUsize,
}

impl Commits {
    fn serve(&self, served: &mut Vec<usize>, wanted: &[usize]) -> Result<(), ()> {
        self.together.fetch_max(wanted.len(), SeqCst);
        self.serving.store(true, SeqCst);
        match self.fails {
            Some(fails) if wanted.contains(&fails) => Err(()),
            _ => {
                served.extend(wanted);
                Ok(())
            }
        }
    }

    /// What a request does that is built. Whether it is served.
    fn commit(&self, own: usize) -> bool {
        if let Some(mut lane) = self.lane.try_lock() {
            return self.serve(&mut lane, &[own]).is_ok();
        }
        let serve = |lane: &mut loom::sync::MutexGuard<'_, Vec<usize>>, wanted: Vec<usize>| {
            assert!(wanted.contains(&own), "who leads is among those");
            self.serve(lane, &wanted)
        };
        let result = self.queue.share([own], || self.lane.lock(), serve);
        let is_served = result == Ok(true);
        let among_served = self.lane.lock().contains(&own);
        assert_eq!(is_served, among_served, "returned otherwise than it went");
        is_served
    }
}

/// Run so many threads; returns the most that were served together.
fn model(threads: usize, fails: Option<usize>, stops: usize) -> usize {
    let together: &'static AtomicUsize = Box::leak(Box::default());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(stops);
    builder.check(move || {
        let commits = Arc::new(Commits {
            queue: Requests::default(),
            lane: Mutex::new(Vec::new()),
            fails,
            serving: AtomicBool::new(false),
            together,
        });
        let run = |own| {
            let commits = commits.clone();
            thread::spawn(move || commits.commit(own))
        };
        let others: Vec<_> = (1..threads).map(run).collect();
        let mut all = vec![commits.commit(0)];
        all.extend(
            others
                .into_iter()
                .map(|other| other.join().expect("asserts")),
        );
        let mut served = commits.lane.lock().clone();
        served.sort_unstable();
        let those: Vec<usize> = (0..threads).filter(|&own| all[own]).collect();
        assert_eq!(served, those, "each once");
        assert!(fails.is_some() || served.len() == threads);
    });
    together.load(SeqCst)
}

#[test]
fn whoever_returns_is_served_once() {
    let _alone = ONE_AT_A_TIME.lock();
    assert_eq!(model(2, None, 4), 1);
    assert_eq!(
        model(3, None, 3),
        2,
        "one has the lane, and two come meanwhile"
    );
}

#[test]
fn whose_leader_fails_says_so() {
    let _alone = ONE_AT_A_TIME.lock();
    for fails in 0..3 {
        assert_eq!(model(3, Some(fails), 3), 2);
    }
}

/// Who comes while a group is served is told that it is over with that group.
#[test]
fn a_turn_that_lasts_too_long_is_noticed() {
    let _alone = ONE_AT_A_TIME.lock();
    EARLY.store(true, SeqCst);
    let noticed = catch_unwind(AssertUnwindSafe(|| model(3, None, 3))).is_err();
    EARLY.store(false, SeqCst);
    assert!(noticed);
}

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What happened, in order.
#[derive(Default)]
struct Log(parking_lot::Mutex<Vec<&'static str>>);

impl Log {
    fn add(&self, what: &'static str) {
        self.0.lock().push(what);
    }

    fn take(self) -> Vec<&'static str> {
        self.0.into_inner()
    }
}

#[test]
fn others_run_while_one_is_stopped() {
    let log = Log::default();
    let ended = run(vec![
        Task::stopping(1, || {
            point("first");
            log.add("a");
            point("second");
            log.add("b");
        }),
        Task::new(|| log.add("c")),
        Task::new(|| log.add("d")),
    ]);
    assert_eq!(log.take(), ["a", "c", "d", "b"]);
    let stopped: Vec<_> = ended.iter().map(|e| (e.stopped, e.waited)).collect();
    assert_eq!(
        stopped,
        [(Some("second"), false), (None, false), (None, false)]
    );
}

#[test]
fn whoever_waits_for_a_lock_of_the_one_that_stopped_lets_others_go_on_first() {
    let (log, lock) = (Log::default(), Mutex::new(()));
    let ended = run(vec![
        Task::stopping(0, || {
            let guard = lock.lock();
            point("with the lock");
            log.add("a");
            drop(guard);
            log.add("b");
        }),
        Task::new(|| {
            let _guard = lock.lock();
            log.add("c");
        }),
        Task::new(|| log.add("d")),
    ]);
    assert_eq!(log.take(), ["d", "a", "b", "c"]);
    assert!(ended[1].waited && !ended[0].waited && !ended[2].waited);
}

#[test]
fn two_that_wait_in_turn_both_come_to_their_ends() {
    let (one, other) = (Mutex::new(0), RwLock::new(0));
    for _ in 0..100 {
        let ended = run(vec![
            Task::stopping(0, || {
                let guard = one.lock();
                point("with one lock");
                drop(guard);
                *other.write() += 1;
            }),
            Task::new(|| {
                let mut held = other.write();
                *one.lock() += 1;
                *held += 1;
            }),
        ]);
        assert!(ended[0].waited && ended[1].waited);
    }
    assert_eq!((one.into_inner(), other.into_inner()), (100, 200));
}

#[test]
fn whoever_gives_way_goes_on_behind_those_that_waited() {
    let (log, lock) = (Log::default(), Mutex::new(()));
    run(vec![
        Task::stopping(0, || {
            let mut guard = lock.lock();
            point("with the lock");
            log.add("a");
            give_way(&lock, &mut guard);
            log.add("b");
        }),
        Task::new(|| {
            let _guard = lock.lock();
            log.add("c");
        }),
    ]);
    assert_eq!(log.take(), ["a", "c", "b"]);
}

#[test]
fn a_deadlock_is_a_panic_and_no_hang() {
    let (one, other) = (Mutex::new(()), Mutex::new(()));
    let both = |first: &Mutex<()>, second: &Mutex<()>| {
        let _first = first.lock();
        point("between two locks");
        let _second = second.lock();
    };
    let run = || {
        run(vec![
            Task::stopping(0, || both(&one, &other)),
            Task::new(|| both(&other, &one)),
        ])
    };
    catch_unwind(AssertUnwindSafe(run)).expect_err("they wait for each other");
}

#[test]
fn a_panic_of_one_lets_the_others_end() {
    let log = Log::default();
    let run = || {
        run(vec![
            Task::stopping(0, || {
                point("before the panic");
                panic!("as it should");
            }),
            Task::new(|| {
                point("passed");
                log.add("a");
            }),
        ])
    };
    catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    assert_eq!(log.take(), ["a"]);
}

#[test]
fn who_retries_lets_the_holder_go_on() {
    let (log, held) = (Log::default(), std::sync::atomic::AtomicBool::new(false));
    let taken = || held.swap(true, std::sync::atomic::Ordering::SeqCst);
    let free = || held.store(false, std::sync::atomic::Ordering::SeqCst);
    run(vec![
        Task::stopping(0, || {
            assert!(!taken());
            point("with a lock of another kind");
            log.add("a");
            free();
        }),
        Task::new(|| {
            let mut retry = Retry::default();
            while taken() {
                retry.again();
            }
            log.add("b");
        }),
    ]);
    assert_eq!(log.take(), ["a", "b"]);
}

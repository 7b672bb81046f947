//! Three ways to commit, in domain `cache`: a transaction without a lock, one with locks, and the
//! journal; and each fall-back between them. No machine is needed that has transactions of its own.

use crate::{INJECTING, new, pool_in, write};
use explorer::effort::Level;
use explorer::engine::Mode as Explored;
use explorer::explore::explore;
use explorer::families::family;
use explorer::op::Op;
use explorer::run::Run;
use explorer::trace::Event;
use explorer::workload::Workload;
use pmem::transaction::{Aborts, Software};
use pmem::{Abort, Domain, Stats};
use schedule::{Task, run};
use soupfs::fault::{Fault, fault};
use soupfs::{Mode, MountOptions, SoupFs};
use std::sync::Arc;
use vfs::{FileSystem, ManualClock, RenameMode, Time};

/// Each way, by what it is left to.
const WAYS: [Aborts; 3] = [
    Aborts::Never,
    Aborts::Optimistic(Abort::Conflict),
    Aborts::Always(Abort::Capacity),
];

/// Overwrites of all kinds, and what else a request is.
fn all_kinds() -> Workload {
    let ops = vec![
        Op::Create("foo".to_owned()),
        write(0, 10_000, b'a'),
        write(13, 6, b'b'),
        write(4090, 12, b'c'),
        write(100, 3000, b'd'),
        write(50, 9000, b'e'),
        write(9990, 300, b'f'),
        Op::Chmod("foo".to_owned(), 0o4710),
        Op::Rename("foo".to_owned(), "bar".to_owned(), RenameMode::Replace),
        Op::Create("foo".to_owned()),
        Op::Unlink("bar".to_owned()),
    ];
    Workload {
        mode: Explored::STRONG,
        setup: 2,
        ..Workload::new("all-kinds", ops)
    }
}

/// Transactions that a workload commits.
fn together(workload: Workload) -> usize {
    let run = Run::record(workload, Domain::Cache, false).expect("it runs");
    let is = |event: &&Event| matches!(event, Event::Together(_));
    run.events.iter().filter(is).count()
}

fn check(workload: &Workload) {
    let explored = explore(workload, Domain::Cache, Level::Quick.effort(0), None);
    if let Err(flaw) = explored {
        panic!(
            "{} with {:?}: {flaw:?}",
            workload.name, workload.transactions
        );
    }
}

#[test]
fn each_way_leaves_requests_whole_across_crashes() {
    let _injecting = INJECTING.lock();
    let mut workloads = vec![all_kinds()];
    for (name, count) in [("whole", 10), ("ace1", 12), ("random", 2)] {
        let family = family(name).expect("a family of this name");
        let numbers = (0..count).filter_map(|n| family.number(n, true));
        workloads.extend(numbers.map(|n| Workload {
            mode: Explored::STRONG,
            ..family.workload(n).expect("made")
        }));
    }
    for aborts in WAYS {
        for workload in &workloads {
            check(&Workload {
                transactions: Some(aborts),
                ..workload.clone()
            });
        }
    }
}

#[test]
fn an_abort_at_any_attempt_leaves_requests_whole() {
    let _injecting = INJECTING.lock();
    let with = |aborts| Workload {
        transactions: Some(aborts),
        ..all_kinds()
    };
    let attempts = together(with(Aborts::Never)) as u64;
    assert!(attempts > 9, "{attempts}");
    assert!(together(with(Aborts::Always(Abort::Other))) == 0);
    for first in 0..attempts {
        for cause in Abort::ALL {
            // Once, and until the way with locks gives up, too.
            for count in [1, 100] {
                check(&with(Aborts::From {
                    first,
                    count,
                    cause,
                }));
            }
        }
    }
}

#[test]
fn a_transaction_that_leaks_a_store_is_noticed() {
    let _injecting = INJECTING.lock();
    let leaks = pmem::fault::Fault::StoreLeaks;
    for aborts in [WAYS[0], WAYS[1]] {
        let workload = Workload {
            transactions: Some(aborts),
            ..all_kinds()
        };
        assert!(pmem::fault::fault(Some(leaks)), "a test build has faults");
        let noticed = explore(&workload, Domain::Cache, Level::Quick.effort(0), None).is_err();
        pmem::fault::fault(None);
        assert!(noticed, "nobody notices a leak with {aborts:?}");
    }
}

/// A file system whose transactions abort in this way, and the clock.
fn mounted(aborts: Aborts) -> (SoupFs, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Time(5)));
    let options = MountOptions {
        mode: Mode::Strong,
        manual: true,
        transactions: Some(Arc::new(Software::new(Software::LINES_MAX, aborts))),
        ..MountOptions::new(clock.clone())
    };
    let fs = SoupFs::mount(pool_in(Domain::Cache), options).expect("mount");
    (fs, clock)
}

/// What an overwrite of so many bytes spends.
fn overwritten(aborts: Aborts, len: usize) -> Stats {
    let (fs, _) = mounted(aborts);
    let file = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&file, 0, &[1; 20_000]).expect("written");
    let before = fs.pool().stats();
    fs.write(&file, 3, &vec![2; len]).expect("written");
    let spent = fs.pool().stats() - before;
    let mut bytes = vec![0; 20_000];
    fs.read(&file, 0, &mut bytes).expect("read");
    let expected = [&[1; 3][..], &vec![2; len], &vec![1; 20_000 - 3 - len]].concat();
    assert!(bytes == expected, "{aborts:?}");
    spent
}

#[test]
fn a_request_takes_the_way_that_fits_it_and_the_next_when_that_is_aborted() {
    let _injecting = INJECTING.lock();
    let ways = |aborts, len| {
        let spent = overwritten(aborts, len);
        (
            spent.commits_optimistic,
            spent.commits_transaction,
            spent.commits_log,
        )
    };
    assert_eq!(ways(Aborts::Never, 100), (1, 0, 0));
    assert_eq!(ways(Aborts::Never, 4096), (1, 0, 0));
    assert_eq!(ways(Aborts::Never, 10_000), (0, 1, 0), "its pointers alone");
    for cause in Abort::ALL {
        assert_eq!(ways(Aborts::Optimistic(cause), 100), (0, 1, 0));
        assert_eq!(ways(Aborts::Always(cause), 100), (0, 0, 1));
    }
    let conflict = |first, count| {
        let cause = Abort::Conflict;
        overwritten(
            Aborts::From {
                first,
                count,
                cause,
            },
            100,
        )
    };
    // Creating and writing the file takes two attempts.
    let spent = conflict(2, 59);
    assert_eq!((spent.commits_optimistic, spent.aborts_conflict), (1, 59));
    let spent = conflict(2, 60);
    assert_eq!((spent.commits_transaction, spent.aborts_conflict), (1, 60));
    let spent = conflict(2, 68);
    assert_eq!((spent.commits_log, spent.aborts_conflict), (1, 68));
}

#[test]
fn high_conflict_goes_to_the_locks_sooner_each_time_and_comes_back() {
    let _injecting = INJECTING.lock();
    let (first, count, cause) = (2, 60 + 30 + 15, Abort::Conflict);
    let (fs, _) = mounted(Aborts::From {
        first,
        count,
        cause,
    });
    let file = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&file, 0, &[1; 100]).expect("written");
    let aborts = |fs: &SoupFs| {
        let before = fs.pool().stats();
        fs.write(&file, 3, &[2; 9]).expect("written");
        let spent = fs.pool().stats() - before;
        (spent.aborts_conflict, spent.commits_optimistic)
    };
    let all: Vec<_> = (0..3).map(|_| aborts(&fs)).collect();
    // The second is aborted 30 times before it takes the locks, and 7 times behind.
    assert_eq!(all, [(60 + 8, 0), (30 + 7, 0), (0, 1)]);
}

/// An overwrite that stops behind so many points, and another one of the same word; where it
/// stopped, and what is left.
fn overwrites(points: u32) -> (Option<&'static str>, [u8; 8]) {
    let (fs, _) = mounted(Aborts::Never);
    let file = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&file, 0, &[1; 5000]).expect("written");
    let write = |at, fill| assert_eq!(fs.write(&file, at, &[fill; 4]), Ok(4));
    let ended = run(vec![
        Task::stopping(points, || write(0, 2)),
        Task::new(|| write(4, 3)),
    ]);
    let mut bytes = [0; 8];
    fs.read(&file, 0, &mut bytes).expect("read");
    (ended[0].stopped, bytes)
}

#[test]
fn what_was_decided_upon_old_bytes_is_decided_again() {
    let _injecting = INJECTING.lock();
    let left = || -> Vec<_> {
        let all = (0..).map(overwrites);
        all.take_while(|(stopped, _)| stopped.is_some()).collect()
    };
    let both = [2, 2, 2, 2, 3, 3, 3, 3];
    let all = left();
    assert!(
        all.iter()
            .any(|(at, _)| *at == Some("transaction: decided"))
    );
    assert!(all.iter().all(|(_, bytes)| *bytes == both), "{all:?}");
    assert!(fault(Some(Fault::StaleFallback)), "a test build has faults");
    let all = left();
    fault(None);
    assert!(
        all.iter().any(|(_, bytes)| *bytes != both),
        "nobody notices"
    );
}

/// A sweep of a time of access that stops behind so many points, and an overwrite; where it
/// stopped, and whether the medium has the times that callers see.
fn swept(points: u32) -> (Option<&'static str>, bool) {
    let (fs, clock) = mounted(Aborts::Never);
    let file = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&file, 0, &[1; 5000]).expect("written");
    fs.set_atime(&file, Time(6)).expect("set");
    let ended = run(vec![
        Task::stopping(points, || fs.syncfs().expect("synced")),
        Task::new(|| {
            clock.set(Time(9));
            fs.write(&file, 0, &[2; 4]).expect("written");
        }),
    ]);
    let seen = fs.attr(&file);
    assert_eq!(seen.mtime, Time(9));
    let ino = fs.ino(&file);
    let at = ino * pmem::LINE + soupfs::layout::inode::MTIME;
    (ended[0].stopped, fs.pool().load(at) == 9)
}

#[test]
fn a_sweep_holds_what_it_captured_until_that_is_published() {
    let _injecting = INJECTING.lock();
    let kept = || -> Vec<_> {
        let all = (0..).map(swept);
        all.take_while(|(stopped, _)| stopped.is_some()).collect()
    };
    let all = kept();
    assert!(
        all.len() > 5 && all.iter().all(|(_, kept)| *kept),
        "{all:?}"
    );
    assert!(fault(Some(Fault::SweepLetsGo)), "a test build has faults");
    let all = kept();
    fault(None);
    assert!(all.iter().any(|(_, kept)| !kept), "nobody notices: {all:?}");
}

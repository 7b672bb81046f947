//! Mode `strong` of SoupFS: bugs in it are noticed. In a program of its own, as a bug is injected
//! into all of a process.

use explorer::explore::{Level, explore};
use explorer::families::family;
use explorer::workload::Workload;
use pmem::{Domain, Options, Pool};
use schedule::{Task, run};
use soupfs::fault::{Fault, fault};
use soupfs::{FormatOptions, Mode, MountOptions, Node, SoupFs, format};
use std::sync::{Arc, Mutex};
use vfs::{FileSystem, ManualClock, NewKind, NewNode, Time};

/// A bug is injected in all of a process.
static PLANTING: Mutex<()> = Mutex::new(());

fn mounted() -> SoupFs {
    mounted_in(Domain::Line)
}

fn mounted_in(domain: Domain) -> SoupFs {
    mount(&pool_in(domain), Arc::new(ManualClock::new(Time(5))))
}

/// An empty file system.
fn pool_in(domain: Domain) -> Arc<Pool> {
    let options = Options {
        domain: Some(domain),
        ..Options::default()
    };
    let pool = Arc::new(Pool::anonymous(4 << 20, &options).expect("anonymous memory"));
    let options = FormatOptions {
        uuid: [7; 16],
        label: "test".into(),
        hash_key: [9; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &options).expect("format");
    pool
}

fn mount(pool: &Arc<Pool>, clock: Arc<ManualClock>) -> SoupFs {
    let options = MountOptions {
        mode: Mode::Strong,
        manual: true,
        ..MountOptions::new(clock)
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
}

fn batches(fs: &SoupFs) -> u64 {
    fs.status().backlog.batches
}

/// A change that is stopped half-way, and whether it can be seen, also of what was removed.
type Change = (fn(&SoupFs), fn(&SoupFs, &Node) -> bool);

fn new() -> NewNode<'static> {
    NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// Bytes, a size, a name that comes, one that goes, and the count of names of what it named.
const CHANGES: [Change; 5] = [
    (
        |fs| {
            let node = fs.lookup(&fs.root(), b"file").expect("there");
            fs.write(&node, 0, &[2; 5000]).expect("written");
        },
        |fs, _| {
            let (node, mut byte) = (fs.lookup(&fs.root(), b"file").expect("there"), [0]);
            fs.read(&node, 0, &mut byte).expect("read");
            byte == [2]
        },
    ),
    (
        |fs| {
            let node = fs.lookup(&fs.root(), b"file").expect("there");
            fs.append_with(&node, &[3; 100], None).expect("written");
        },
        |fs, _| {
            let node = fs.lookup(&fs.root(), b"file").expect("there");
            fs.attr(&node).size != 5000
        },
    ),
    (
        |fs| drop(fs.create(&fs.root(), b"new", &new()).expect("made")),
        |fs, _| fs.lookup(&fs.root(), b"new").is_ok(),
    ),
    (
        |fs| fs.unlink(&fs.root(), b"old", &|_| Ok(())).expect("removed"),
        |fs, _| {
            let mut names = Vec::new();
            let listed = fs.readdir(&fs.root(), 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            });
            listed.expect("listed");
            !names.contains(&b"old".to_vec())
        },
    ),
    (
        |fs| fs.unlink(&fs.root(), b"old", &|_| Ok(())).expect("removed"),
        |fs, old| fs.attr(old).nlink == 0,
    ),
];

/// Whether a thread that looks while a change is behind so many points sees it, and whether it was
/// committed by then; `None` behind the last point.
fn seen((change, is_seen): Change, points: u32) -> Option<(bool, bool)> {
    let fs = mounted();
    let node = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&node, 0, &[1; 5000]).expect("written");
    let old = fs.create(&fs.root(), b"old", &new()).expect("made");
    let before = batches(&fs);
    let ended = run(vec![
        Task::stopping(points, || {
            change(&fs);
            (false, false)
        }),
        Task::new(|| (is_seen(&fs, &old), batches(&fs) > before)),
    ]);
    ended[0].stopped.map(|_| ended[1].result)
}

/// Whether anybody sees what is not committed, of the changes at hand.
fn seen_early() -> [bool; 5] {
    CHANGES.map(|change| {
        let all: Vec<_> = (0..).map_while(|points| seen(change, points)).collect();
        assert!(all.len() > 3, "there are points: {all:?}");
        all.contains(&(true, false))
    })
}

#[test]
fn nobody_sees_what_is_not_durable() {
    let _injecting = PLANTING.lock();
    assert_eq!(seen_early(), [false; 5]);
    assert!(fault(Some(Fault::SeenEarly)), "a test build has faults");
    let noticed = seen_early();
    fault(None);
    assert_eq!(noticed, [true; 5], "this test sees nothing");
}

/// A file in each of so many directories.
fn files_apart(fs: &SoupFs, count: u8) -> Vec<Node> {
    let dir = NewNode {
        kind: NewKind::Dir,
        ..new()
    };
    let made = |i: u8| {
        let dir = fs.create(&fs.root(), &[b'a' + i], &dir)?;
        fs.create(&dir, b"file", &new())
    };
    (0..count).map(|i| made(i).expect("made")).collect()
}

/// A write that stops behind so many points, and others that begin then, of files in other
/// directories; which commits there were, and what became of the first.
fn writes_at_once(others: u8, points: u32) -> (u64, Option<&'static str>) {
    let fs = mounted_in(Domain::Page);
    let files = files_apart(&fs, others + 1);
    let before = fs.pool().stats();
    let write = |i: usize| {
        fs.write(&files[i], 0, &[1; 5000]).expect("written");
    };
    let mut tasks = vec![Task::stopping(points, || write(0))];
    tasks.extend((1..=usize::from(others)).map(|i| Task::new(move || write(i))));
    let ended = run(tasks);
    let spent = fs.pool().stats() - before;
    // One for what the record relies on, one for the record.
    assert!(spent.fences <= 2 * spent.commits_log, "{spent:?}");
    (spent.commits_log, ended[0].stopped)
}

#[test]
fn requests_that_wait_at_the_same_time_share_a_commit() {
    let _injecting = PLANTING.lock();
    let stopped_at = |name| {
        let all = (0..).map(|points| writes_at_once(7, points));
        let mut all = all.take_while(|(_, stopped)| stopped.is_some());
        all.find(|&(_, stopped)| stopped == Some(name))
    };
    let (commits, _) = stopped_at("commit: the record is not durable").expect("there is a record");
    assert_eq!(commits, 2, "all that came meanwhile are one record");
    // Not durable, and not in the way of others either: each has its own.
    let (commits, _) = stopped_at("request: not durable").expect("there is such a point");
    assert_eq!(commits, 8);
}

/// Whether somebody who does this waits for a write that is stopped behind so many points; `None`
/// behind the last.
fn waits(points: u32, other: fn(&SoupFs, &[Node])) -> Option<(bool, &'static str)> {
    let fs = mounted();
    let files = files_apart(&fs, 2);
    let ended = run(vec![
        Task::stopping(points, || {
            fs.write(&files[0], 0, &[1; 5000]).expect("written");
        }),
        Task::new(|| other(&fs, &files)),
    ]);
    ended[0].stopped.map(|point| (ended[1].waited, point))
}

#[test]
fn who_looks_at_another_file_waits_for_nobody() {
    let _injecting = PLANTING.lock();
    let all = |other: fn(&SoupFs, &[Node])| -> Vec<_> {
        (0..).map_while(|points| waits(points, other)).collect()
    };
    let look = all(|fs, files| {
        let dir = fs.lookup(&fs.root(), b"b").expect("there");
        fs.lookup(&dir, b"file").expect("there");
        fs.read(&files[1], 0, &mut [0; 100]).expect("read");
        fs.attr(&files[1]);
    });
    assert!(look.len() > 3 && look.iter().all(|(waited, _)| !waited));
    let same = all(|fs, files| {
        fs.attr(&files[0]);
    });
    assert!(same.iter().any(|&(waited, _)| waited), "it shows nothing");
    // Nor does who changes another one, but for the commit.
    let change = all(|fs, files| {
        fs.write(&files[1], 0, &[2; 5000]).expect("written");
        fs.unlink(&fs.root(), b"none", &|_| Ok(()))
            .expect_err("it is not there");
    });
    let waited = change.iter().filter(|(waited, _)| *waited);
    let in_commit = |point: &str| point.starts_with("batch") || point.starts_with("commit");
    let mut elsewhere = waited.filter(|(_, point)| !in_commit(point) && !point.contains("queue"));
    assert_eq!(elsewhere.next(), None);
}

/// A sweep persists a time of access, stopped behind so many points, and a small write of the same
/// file comes meanwhile: what the file holds then, and behind a remount. `None` behind the last
/// point.
fn written_beside_a_sweep(points: u32) -> Option<([u8; 2], &'static str)> {
    let pool = pool_in(Domain::Line);
    let mount = || mount(&pool, Arc::new(ManualClock::new(Time(5))));
    let fs = mount();
    let node = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&node, 0, &[1; 5000]).expect("written");
    fs.set_atime(&node, Time(9)).expect("set");
    let ended = run(vec![
        Task::stopping(points, || fs.syncfs().expect("synced")),
        Task::new(|| assert_eq!(fs.write(&node, 100, &[2; 50]), Ok(50))),
    ]);
    let byte = |fs: &SoupFs, node: &Node| {
        let mut byte = [0];
        fs.read(node, 120, &mut byte).expect("read");
        byte[0]
    };
    let seen = byte(&fs, &node);
    drop(node);
    fs.unmount().expect("unmounted");
    let fs = mount();
    let node = fs.lookup(&fs.root(), b"file").expect("there");
    let left = byte(&fs, &node);
    ended[0].stopped.map(|point| ([seen, left], point))
}

#[test]
fn a_write_that_comes_while_a_sweep_settles_is_not_lost() {
    let _injecting = PLANTING.lock();
    let all: Vec<_> = (0..).map_while(written_beside_a_sweep).collect();
    let has = |name| all.iter().any(|&(_, point)| point == name);
    assert!(has("batch: captured") && has("batch: committed"), "{all:?}");
    assert!(all.iter().all(|&(bytes, _)| bytes == [2; 2]), "{all:?}");
}

#[test]
fn what_is_half_done_or_late_is_noticed_in_all_domains() {
    let _injecting = PLANTING.lock();
    let whole = family("whole").expect("a family of this name");
    let workloads = || -> Vec<Workload> {
        let some = (0..12).filter_map(|n| whole.number(n, true));
        some.map(|n| whole.workload(n).expect("made")).collect()
    };
    for bug in [
        Fault::RequestUncommitted,
        Fault::TimesApart,
        Fault::WrittenInPlace,
    ] {
        for domain in [Domain::Line, Domain::Cache, Domain::Page] {
            assert!(fault(Some(bug)), "a test build has faults");
            let effort = Level::Quick.effort(0);
            let noticed = workloads()
                .iter()
                .any(|workload| explore(workload, domain, effort, None).is_err());
            fault(None);
            assert!(noticed, "nobody notices {bug:?} in {domain}");
        }
    }
}

//! Mode `strong` of SoupFS: bugs in it are noticed. In a program of its own, as a bug is injected
//! into all of a process.

mod failed;
mod moves;
mod records;
mod transactions;

use explorer::effort::{Effort, Level};
use explorer::explore::explore;
use explorer::families::family;
use explorer::op::Op;
use explorer::workload::Workload;
use pmem::{Domain, Options, Pool};
use schedule::{Task, run};
use soupfs::fault::{Fault, fault};
use soupfs::{FormatOptions, Mode, MountOptions, Node, SoupFs, format};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};
use vfs::{FileSystem, ManualClock, NewKind, NewNode, Place, RenameMode, SetAttr, Time};

/// A bug is injected in all of a process.
static INJECTING: Mutex<()> = Mutex::new(());

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

/// The names in the root.
fn names(fs: &SoupFs) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let listed = fs.readdir(&fs.root(), 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    listed.expect("listed");
    names
}

/// A write to `foo`.
fn write(at: u64, len: usize, fill: u8) -> Op {
    Op::Write {
        path: "foo".to_owned(),
        at: Some(at),
        len,
        fill,
    }
}

fn mount(pool: &Arc<Pool>, clock: Arc<ManualClock>) -> SoupFs {
    let options = MountOptions {
        mode: Mode::Strong,
        manual: true,
        ..MountOptions::new(clock)
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
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
        |fs, _| !names(fs).contains(&b"old".to_vec()),
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
    let commits = || fs.pool().stats().commits_log;
    let before = commits();
    let ended = run(vec![
        Task::stopping(points, || {
            change(&fs);
            (false, false)
        }),
        Task::new(|| (is_seen(&fs, &old), commits() > before)),
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
    let _injecting = INJECTING.lock();
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
    let _injecting = INJECTING.lock();
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
    let _injecting = INJECTING.lock();
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
    // Nor does who changes another one, while the first one builds; but for the commit.
    let change = all(|fs, files| {
        fs.write(&files[1], 0, &[2; 5000]).expect("written");
        fs.unlink(&fs.root(), b"none", &|_| Ok(()))
            .expect_err("it is not there");
    });
    let waited = change.iter().filter(|(waited, _)| *waited);
    let building = ["batch: before a capture", "batch: captured"];
    let met: Vec<_> = building
        .map(|at| change.iter().any(|(_, point)| *point == at))
        .into();
    assert_eq!(met, [true; 2], "it never stops there");
    let in_lane = |point: &str| {
        let batch = point.starts_with("batch") && !building.contains(&point);
        batch || point.starts_with("commit") || point.contains("queue")
    };
    let mut elsewhere = waited.filter(|(_, point)| !in_lane(point));
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
    let _injecting = INJECTING.lock();
    let all: Vec<_> = (0..).map_while(written_beside_a_sweep).collect();
    let has = |name| all.iter().any(|&(_, point)| point == name);
    assert!(has("batch: captured") && has("batch: committed"), "{all:?}");
    assert!(all.iter().all(|&(bytes, _)| bytes == [2; 2]), "{all:?}");
}

/// What somebody sees who looks, as one number for all: of one request all or nothing.
type Look = fn(&SoupFs, &Node) -> u64;
/// A change of a file or of names.
type Done = fn(&SoupFs, &Node);

/// Changes of a file of 5,000 bytes and names in the root, and looks that show them as a whole.
const WHOLE: [(Done, Look); 5] = [
    (
        |fs, file| assert_eq!(fs.write(file, 0, &[2; 5000]), Ok(5000)),
        |fs, file| {
            let mut bytes = [0; 5000];
            fs.read(file, 0, &mut bytes).expect("read");
            assert_eq!(bytes, [bytes[0]; 5000], "half a write");
            bytes[0].into()
        },
    ),
    (
        |fs, file| {
            fs.append_with(file, &[2; 9000], None).expect("written");
        },
        |fs, file| {
            let mut bytes = vec![0; 20_000];
            let len = fs.read(file, 0, &mut bytes).expect("read");
            let new = &bytes[5000..len];
            assert!(new.iter().all(|&byte| byte == 2), "half an append");
            assert!([5000, 14_000].contains(&len), "{len}");
            len as u64
        },
    ),
    (
        |fs, file| {
            let set = SetAttr {
                perm: Some(0o640),
                uid: Some(7),
                size: Some(1),
                ..SetAttr::default()
            };
            fs.setattr(file, &set).expect("changed");
        },
        |fs, file| {
            let attr = fs.attr(file);
            let seen = (attr.perm, attr.uid, attr.size);
            let whole = [(0o600, 0, 5000), (0o640, 7, 1)];
            assert!(whole.contains(&seen), "{seen:?}");
            attr.size
        },
    ),
    (
        |fs, _| {
            let root = fs.root();
            let (from, to) = (Place::new(&root, b"old"), Place::new(&root, b"new"));
            let moved = fs.rename(from, to, RenameMode::Replace, &|_| Ok(()));
            moved.expect("moved");
        },
        |fs, _| {
            let names = names(fs);
            let has = |name: &[u8]| names.iter().any(|found| *found == name);
            assert_ne!(has(b"old"), has(b"new"), "half a rename");
            has(b"new").into()
        },
    ),
    (
        |fs, _| fs.unlink(&fs.root(), b"old", &|_| Ok(())).expect("removed"),
        |fs, _| fs.lookup(&fs.root(), b"old").is_ok().into(),
    ),
];

/// A change and looks beside it, of which one stops behind so many points; what it saw and whether
/// it waited. `None` behind the last point.
fn looked(
    (change, look): (Done, Look),
    domain: Domain,
    (changing, points): (bool, u32),
) -> Option<(u64, bool, &'static str)> {
    let fs = mounted_in(domain);
    let file = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&file, 0, &[1; 5000]).expect("written");
    fs.create(&fs.root(), b"old", &new()).expect("made");
    let before = look(&fs, &file);
    let change = || {
        change(&fs, &file);
        0
    };
    let (change, look) = match changing {
        true => (
            Task::stopping(points, change),
            Task::new(|| look(&fs, &file)),
        ),
        false => (
            Task::new(change),
            Task::stopping(points, || look(&fs, &file)),
        ),
    };
    let ended = match changing {
        true => run(vec![change, look]),
        false => run(vec![look, change]),
    };
    let (look, stopped) = match changing {
        true => (&ended[1], ended[0].stopped),
        false => (&ended[0], ended[0].stopped),
    };
    let seen = u64::from(look.result != before);
    stopped.map(|point| (seen, look.waited, point))
}

/// All looks at all changes, the one or the other stopped at any of its points.
fn all_looks(domain: Domain) {
    for (number, whole) in WHOLE.into_iter().enumerate() {
        let stopping = |changing| move |points| looked(whole, domain, (changing, points));
        let looks: Vec<_> = (0..).map_while(stopping(true)).collect();
        assert!(looks.len() > 5, "there are points: {looks:?}");
        // While words go in place, and only then, who looks waits for the last of them.
        let in_place = |point: &str| {
            point == "commit: the numbers are odd" || point == "commit: some is in place"
        };
        let odd: Vec<_> = looks.iter().filter(|(.., at)| in_place(at)).collect();
        assert!(!odd.is_empty() && odd.iter().all(|(_, waited, _)| *waited));
        // While it works it has locks that are held for a few instructions.
        let works = looks
            .iter()
            .take_while(|(.., at)| *at != "request: not durable");
        let rest = &looks[works.count()..];
        let waits = rest
            .iter()
            .find(|&&(_, waited, at)| waited && !in_place(at));
        assert!(rest.len() > 5, "it passes these points: {rest:?}");
        assert_eq!(waits, None, "{number} in {domain}");
        let seen: Vec<_> = rest.iter().map(|&(seen, ..)| seen).collect();
        assert!(seen.is_sorted() && seen.contains(&1), "{number}: {looks:?}");
        let begun: Vec<_> = (0..).map_while(stopping(false)).collect();
        assert!(!begun.is_empty(), "who looks passes a point");
    }
}

#[test]
fn who_looks_sees_requests_whole_and_waits_for_no_medium() {
    let _injecting = INJECTING.lock();
    let domains = [Domain::Line, Domain::Cache, Domain::Page];
    domains.into_iter().for_each(all_looks);
    assert!(fault(Some(Fault::NoOddPhase)), "a test build has faults");
    let noticed = domains.map(|domain| catch_unwind(|| all_looks(domain)).is_err());
    fault(None);
    assert_eq!(noticed, [true; 3], "nobody notices that numbers stay even");
}

/// HTMFS, Table 6: 8 KiB are written over a file of 4 KiB. Each crash leaves nothing of it or all:
/// the size, the bytes, both times, and the space that is free once what leaked is found.
#[test]
fn a_write_over_the_end_of_a_file_is_there_with_its_size_times_and_space_or_not_at_all() {
    let _injecting = INJECTING.lock();
    let write = |len, fill| Op::Write {
        path: "foo".to_owned(),
        at: Some(0),
        len,
        fill,
    };
    let ops = vec![
        Op::Create("foo".to_owned()),
        write(4096, b'a'),
        write(8192, b'b'),
    ];
    let workload = Workload {
        mode: explorer::engine::Mode::STRONG,
        setup: 2,
        ..Workload::new("table-6", ops)
    };
    let effort = Effort {
        reclaimed: 1,
        ..Level::Quick.effort(0)
    };
    for domain in [Domain::Line, Domain::Cache, Domain::Page] {
        let explored = explore(&workload, domain, effort, None);
        let explored = explored.unwrap_or_else(|flaw| panic!("in {domain}: {flaw:?}"));
        assert!(explored.judged > 3, "in {domain}: {explored:?}");
        assert!(
            fault(Some(Fault::WrittenInPlace)),
            "a test build has faults"
        );
        let noticed = explore(&workload, domain, Level::Quick.effort(0), None).is_err();
        fault(None);
        assert!(
            noticed,
            "nobody notices bytes that are written in place in {domain}"
        );
    }
}

#[test]
fn what_is_half_done_or_late_is_noticed_in_all_domains() {
    let _injecting = INJECTING.lock();
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

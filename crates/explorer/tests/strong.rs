//! Mode `strong` of SoupFS: bugs in it are noticed. In a program of its own, as a bug is injected
//! into all of a process.

use explorer::explore::{Level, explore};
use explorer::families::family;
use explorer::workload::Workload;
use pmem::{Domain, Options, Pool};
use schedule::{Task, run};
use soupfs::fault::{Fault, fault};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use std::sync::{Arc, Mutex};
use vfs::{FileSystem, ManualClock, NewKind, NewNode, Time};

/// A bug is injected in all of a process.
static PLANTING: Mutex<()> = Mutex::new(());

fn mounted() -> SoupFs {
    let options = Options {
        domain: Some(Domain::Line),
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
    let options = MountOptions {
        mode: Mode::Strong,
        manual: true,
        ..MountOptions::new(Arc::new(ManualClock::new(Time(5))))
    };
    SoupFs::mount(pool, options).expect("mount")
}

fn batches(fs: &SoupFs) -> u64 {
    fs.status().backlog.batches
}

/// A change that is stopped half-way, and whether it can be seen.
type Change = (fn(&SoupFs), fn(&SoupFs) -> bool);

fn new() -> NewNode<'static> {
    NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// Bytes, a size, a name that comes, and one that goes.
const CHANGES: [Change; 4] = [
    (
        |fs| {
            let node = fs.lookup(&fs.root(), b"file").expect("there");
            fs.write(&node, 0, &[2; 5000]).expect("written");
        },
        |fs| {
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
        |fs| {
            let node = fs.lookup(&fs.root(), b"file").expect("there");
            fs.attr(&node).size != 5000
        },
    ),
    (
        |fs| drop(fs.create(&fs.root(), b"new", &new()).expect("made")),
        |fs| fs.lookup(&fs.root(), b"new").is_ok(),
    ),
    (
        |fs| fs.unlink(&fs.root(), b"old", &|_| Ok(())).expect("removed"),
        |fs| {
            let mut names = Vec::new();
            let listed = fs.readdir(&fs.root(), 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            });
            listed.expect("listed");
            !names.contains(&b"old".to_vec())
        },
    ),
];

/// Whether a thread that looks while a change is behind so many points sees it, and whether it was
/// committed by then; `None` behind the last point.
fn seen((change, is_seen): Change, points: u32) -> Option<(bool, bool)> {
    let fs = mounted();
    let node = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&node, 0, &[1; 5000]).expect("written");
    fs.create(&fs.root(), b"old", &new()).expect("made");
    let before = batches(&fs);
    let ended = run(vec![
        Task::stopping(points, || {
            change(&fs);
            (false, false)
        }),
        Task::new(|| (is_seen(&fs), batches(&fs) > before)),
    ]);
    ended[0].stopped.map(|_| ended[1].result)
}

/// Whether anybody sees what is not committed, of the changes at hand.
fn seen_early() -> [bool; 4] {
    CHANGES.map(|change| {
        let all: Vec<_> = (0..).map_while(|points| seen(change, points)).collect();
        assert!(all.len() > 3, "there are points: {all:?}");
        all.contains(&(true, false))
    })
}

#[test]
fn nobody_sees_what_is_not_durable() {
    let _injecting = PLANTING.lock();
    assert_eq!(seen_early(), [false; 4]);
    assert!(fault(Some(Fault::SeenEarly)), "a test build has faults");
    let noticed = seen_early();
    fault(None);
    assert_eq!(noticed, [true; 4], "this test sees nothing");
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

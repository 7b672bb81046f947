//! What the judges have been too lenient for once: bugs that only the rule in question notices.

use explorer::effort::Level;
use explorer::explore::{Wrong, explore, explore_run};
use explorer::families::by_name;
use explorer::op::{Op, contents};
use explorer::run::Run;
use explorer::trace::Event;
use explorer::workload::Workload;
use pmem::{Domain, LINE};
use soupfs::fault::{Fault, fault};
use std::sync::Mutex;
use vfs::{Fsync, RenameMode};

/// A bug is injected in all of a process.
static INJECTING: Mutex<()> = Mutex::new(());

fn write(len: usize, fill: u8) -> Op {
    Op::Write {
        path: "foo".into(),
        at: None,
        len,
        fill,
    }
}

/// What the judge says of a workload with a bug in the engine that it has nothing to say of
/// without.
fn flaw(name: &str, ops: Vec<Op>, bug: Fault) -> String {
    let _injecting = INJECTING.lock();
    let workload = Workload::new(name, ops);
    let effort = Level::Quick.effort(0);
    explore(&workload, Domain::Line, effort, None).expect("the engine is right");
    assert!(fault(Some(bug)), "a test build has faults");
    let wrong = explore(&workload, Domain::Line, effort, None);
    fault(None);
    match wrong {
        Err(Wrong::Quiescent(_, flaw)) => flaw,
        other => panic!("nobody notices: {other:?}"),
    }
}

#[test]
fn a_move_that_leaves_both_names_is_noticed_though_counts_of_links_are_right() {
    let ops = vec![
        Op::Mkdir("A".into()),
        Op::Create("foo".into()),
        Op::Link("foo".into(), "A/link".into()),
        Op::Syncfs,
        Op::Mkdir("B".into()),
        Op::Rename("foo".into(), "B/new".into(), RenameMode::Replace),
        Op::Fsync("B/new".into(), Fsync::All),
    ];
    let flaw = flaw("linked and moved", ops, Fault::NewNameAlone);
    assert!(flaw.contains("without it"), "{flaw}");
}

#[test]
fn a_replaced_name_that_goes_alone_is_noticed_though_no_file_that_is_left_is_lost() {
    let ops = vec![
        Op::Mkdir("A".into()),
        Op::Mkdir("B".into()),
        Op::Create("B/cfg".into()),
        Op::Syncfs,
        Op::Create("A/new".into()),
        Op::Rename("A/new".into(), "B/cfg".into(), RenameMode::Replace),
        Op::Rename("B/cfg".into(), "A/bak".into(), RenameMode::Replace),
        Op::Fsync("B".into(), Fsync::All),
    ];
    let flaw = flaw("replaced and moved on", ops, Fault::MovedOnAlone);
    assert!(flaw.contains("name cfg in"), "{flaw}");
}

#[test]
fn what_is_wrong_in_any_region_but_the_first_is_noticed() {
    let _injecting = INJECTING.lock();
    for (bug, family) in [
        (Fault::FirstRegionAlone, "regions-reclaim"),
        (Fault::RegionTakenForFree, "regions"),
    ] {
        let mut workloads = (0..24).map(|n| by_name(&format!("{family}-{n}")).expect("known"));
        let noticed = workloads.any(|workload| {
            assert!(fault(Some(bug)), "a test build has faults");
            let wrong = explore(&workload, Domain::Line, Level::Quick.effort(0), None);
            fault(None);
            wrong.is_err()
        });
        assert!(noticed, "nobody notices {bug:?}");
    }
}

#[test]
fn an_append_that_is_durable_after_its_size_is_noticed() {
    let _injecting = INJECTING.lock();
    // Into the rest of a page that the file has: the bytes behind its end are zeros.
    let ops = vec![write(6000, 1), Op::Syncfs, write(100, 2), Op::Syncfs];
    let ops = [vec![Op::Create("foo".into())], ops].concat();
    let workload = Workload {
        setup: 3,
        ..Workload::new("appended", ops)
    };
    let run = Run::record(workload, Domain::Line, false).expect("it runs");
    let effort = Level::Normal.effort(0);
    explore_run(&run, &run.events, effort, None).expect("the engine is right");
    let wrote = contents("foo", 2, 6000, 100);
    let stored = |event: &Event| matches!(event, Event::Store { bytes, .. } if *bytes == wrote);
    let stored = run.events.iter().position(stored).expect("in one piece");
    let Event::Store { at, .. } = run.events[stored] else {
        unreachable!("it is a store");
    };
    let appended = at / LINE..(at + 100).div_ceil(LINE);
    // Behind it flushed line by line; its own lines not at all.
    let mut events = run.events[..stored].to_vec();
    for event in &run.events[stored..] {
        let &Event::Flush { at, len, by, site } = event else {
            events.push(event.clone());
            continue;
        };
        let lines = at / LINE..(at + len).div_ceil(LINE);
        let lines = lines.filter(|line| !appended.contains(line));
        events.extend(lines.map(|line| Event::Flush {
            at: line * LINE,
            len: LINE,
            by,
            site,
        }));
    }
    let objection = explore_run(&run, &events, effort, None).expect_err("bytes are missing");
    assert!(!objection.moment.ended, "only when the sync has returned");
    assert!(
        objection.what.contains("is 0x0, which it never was"),
        "{}",
        objection.what
    );
}

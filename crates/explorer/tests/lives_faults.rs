//! Bugs that only a second life shows are found. In a program of its own, as a bug is injected into
//! all of a process.

use explorer::effort::{Effort, Level, OF_RUNS};
use explorer::families::by_name;
use explorer::lives::explore;
use explorer::run::Run;
use pmem::Domain;
use soupfs::fault::{Fault, fault};

/// What the judges say to the engine as it is now.
fn objection() -> Option<String> {
    let effort = Effort {
        lives: 40 * OF_RUNS,
        ..Level::Normal.effort(0)
    };
    let names = [
        "pair-12", "single-6", "zeroed-0", "script-5", "random-1", "churn-0",
    ];
    names.into_iter().find_map(|name| {
        let workload = by_name(name).expect("a workload of this name");
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        let explored = explore(&run, &run.events, effort, None, None);
        explored.err().map(|(_, objection)| objection.what)
    })
}

#[test]
fn claims_that_flush_less_and_bytes_that_are_not_inherited_or_not_marked_are_noticed() {
    assert_eq!(objection(), None);
    let bugs = [
        Fault::ClaimUnflushed,
        Fault::InheritedUnflushed,
        Fault::ZeroedUnmarked,
    ];
    for bug in bugs {
        assert!(fault(Some(bug)), "this build has no faults");
        let what = objection();
        fault(None);
        println!("{bug:?}: {what:?}");
        assert!(what.is_some(), "nobody notices {bug:?}");
    }
}

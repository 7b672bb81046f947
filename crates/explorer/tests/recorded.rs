//! What several threads did wrong is judged again exactly as it was, from its recorded run. In a
//! program of its own, as a bug is injected in all of a process.

mod common;

use explorer::campaign::{Campaign, Failure, Progress, replay};
use explorer::engine::Mode;
use explorer::token::Token;
use pmem::Domain;
use soupfs::fault::{Fault, fault};
use std::path::Path;

/// The first failure of a family while a bug is injected.
fn failure(name: &str, bug: Fault, traces: &Path) -> Failure {
    let campaign = Campaign {
        failures_max: 1,
        traces: traces.to_owned(),
        ..common::campaign(
            &[(name, u64::MAX)],
            &[Domain::Line.into()],
            &[Mode::DELAYED],
        )
    };
    assert!(fault(Some(bug)), "a test build has faults");
    let mut summary = campaign.run(&Progress::default());
    fault(None);
    assert!(!summary.failures.is_empty(), "nobody notices {bug:?}");
    summary.failures.swap_remove(0)
}

/// What is wrong, of an account.
fn wrong(account: &str) -> &str {
    let line = account
        .lines()
        .find(|line| line.contains("what is wrong") || line.contains("what is durable"));
    line.unwrap_or_else(|| panic!("an account says what is wrong: {account}"))
}

#[test]
fn a_failure_of_several_threads_replays_from_its_record_when_the_bug_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    // One that spoils the record; some spoil only recovering and using, which the judges do with
    // the engine as it is.
    let bug = Fault::LatestLinkCounts;
    for name in ["both", "threaded", "shared"] {
        let failure = failure(name, bug, dir.path());
        let minimal: Token = failure.minimal.parse().expect("a token");
        let full: Token = failure.token.parse().expect("a token");
        assert!(minimal.recorded.is_some() && full.recorded.is_some());
        // Each time the same state, with the same flaw.
        for _ in 0..3 {
            let account = replay(&minimal, dir.path())
                .err()
                .unwrap_or_else(|| panic!("right now: {}", failure.account));
            assert_eq!(wrong(&account), wrong(&failure.account), "{name}");
        }
        replay(&full, dir.path()).expect_err("so is the run that was found");
        let anew = Token {
            recorded: None,
            place: None,
            ..minimal.clone()
        };
        replay(&anew, dir.path()).expect("the engine is right now");
        let elsewhere = tempfile::tempdir().expect("a directory");
        let account = replay(&minimal, elsewhere.path()).expect_err("no record there");
        assert!(account.contains("the recorded run"), "{account}");
    }
}

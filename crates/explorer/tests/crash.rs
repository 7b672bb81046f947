//! Every state that a crash may leave of SoupFS is one that a user can go on with.
//!
//! A failure prints a token; `TUREEN_REPLAY=<token> cargo test -p explorer --test crash replay` (or `tureen
//! explore --replay <token>`) judges that state again. `TUREEN_CRASH_SECONDS=600` lets each family of workloads run
//! for so long.

use explorer::campaign::{Campaign, Progress, replay as replay_token};
use explorer::explore::Level;
use explorer::families::family;
use pmem::Domain;
use soupfs::Mode;
use std::time::Duration;

const DOMAINS: [Domain; 3] = [Domain::Line, Domain::Cache, Domain::Page];
const DELAYED: [Mode; 1] = [Mode::Delayed];
const MODES: [Mode; 2] = [Mode::Delayed, Mode::Sync];

/// For how long each family is to go on, if not only over its first workloads.
fn seconds() -> Option<Duration> {
    let text = std::env::var("TUREEN_CRASH_SECONDS").ok()?;
    text.parse().ok().map(Duration::from_secs)
}

/// Explore so many workloads of a family, or as many as there is time for.
fn explore(name: &str, count: u64, level: Level, domains: &[Domain], modes: &[Mode]) {
    let family = family(name).expect("a family of this name");
    let time = seconds();
    let campaign = Campaign {
        families: vec![(family, time.is_none().then_some(count))],
        domains: domains.to_vec(),
        modes: modes.to_vec(),
        level,
        seed: 0,
        time,
        jobs: 1,
        shard: (0, 1),
        spread: true,
        failures_max: 5,
    };
    let summary = campaign.run(&Progress::default());
    println!("{}", summary.text());
    let accounts: Vec<_> = summary.failures.iter().map(|f| &*f.account).collect();
    assert!(accounts.is_empty(), "{}", accounts.join("\n\n"));
}

#[test]
fn every_operation_of_ace_survives_every_crash() {
    explore("ace1", u64::MAX, Level::Quick, &DOMAINS, &MODES);
}

#[test]
fn pairs_of_operations_of_ace_survive_crashes() {
    explore("ace2", 40, Level::Quick, &DOMAINS, &MODES);
}

#[test]
fn every_form_of_every_operation_survives_crashes() {
    explore("single", 150, Level::Normal, &DOMAINS, &DELAYED);
}

#[test]
fn pairs_of_operations_survive_crashes() {
    explore("pair", 80, Level::Normal, &DOMAINS, &DELAYED);
}

#[test]
fn syncs_of_several_threads_survive_every_crash() {
    explore("threaded", 40, Level::Normal, &DOMAINS, &DELAYED);
}

#[test]
fn batches_that_several_persisters_flush_survive_every_crash() {
    explore("shared", 40, Level::Normal, &[Domain::Line], &DELAYED);
}

#[test]
fn situations_survive_crashes_with_syncs_at_every_position() {
    explore("script", 100, Level::Quick, &DOMAINS, &DELAYED);
    explore("script", 17, Level::Quick, &[Domain::Line], &[Mode::Sync]);
}

#[test]
fn operations_on_two_threads_at_once_survive_crashes() {
    explore(
        "both",
        54,
        Level::Normal,
        &[Domain::Line, Domain::Page],
        &MODES,
    );
}

#[test]
fn nearly_full_images_survive_crashes() {
    explore("full", 4, Level::Quick, &DOMAINS, &DELAYED);
    explore("full", 2, Level::Quick, &[Domain::Line], &[Mode::Sync]);
}

#[test]
fn growing_directories_survive_crashes() {
    explore(
        "growth",
        3,
        Level::Normal,
        &[Domain::Line, Domain::Cache],
        &DELAYED,
    );
}

#[test]
fn churning_directories_survive_crashes() {
    explore("churn", 2, Level::Quick, &[Domain::Line], &DELAYED);
}

#[test]
fn chains_of_directories_survive_crashes() {
    explore("chain", 4, Level::Normal, &DOMAINS, &DELAYED);
}

#[test]
fn random_sequences_survive_crashes() {
    explore("random", 14, Level::Normal, &DOMAINS, &DELAYED);
    explore("random", 3, Level::Quick, &[Domain::Line], &[Mode::Sync]);
}

#[test]
fn a_second_life_survives_crashes() {
    explore(
        "life",
        12,
        Level::Normal,
        &[Domain::Line, Domain::Cache],
        &DELAYED,
    );
}

#[test]
fn replay() {
    let Ok(token) = std::env::var("TUREEN_REPLAY") else {
        return;
    };
    match replay_token(&token.parse().expect("a token")) {
        Ok(explored) => println!("{} states, nothing wrong", explored.judged),
        Err(account) => panic!("{account}"),
    }
}

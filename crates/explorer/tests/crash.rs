//! Every state that a crash may leave of SoupFS is one that a user can go on with.
//!
//! A failure prints a token; `TUREEN_REPLAY=<token> cargo test -p explorer --test crash replay` (or
//! `tureen explore --replay <token>`) judges that state again. `TUREEN_CRASH_SECONDS=600` lets each
//! family of workloads run for so long. Of what `.ci/run explore` has all of, or much in a build
//! that is faster, here is a sample.

mod common;

use common::{holds, traces};
use explorer::campaign::{Campaign, replay as replay_token};
use explorer::effort::Level;
use explorer::engine::Mode;
use explorer::explore::explore_run;
use explorer::families::by_name;
use explorer::run::Run;
use explorer::trace::Event;
use pmem::Domain;
use std::time::Duration;

const DOMAINS: [Domain; 3] = [Domain::Line, Domain::Cache, Domain::Page];
const DELAYED: [Mode; 1] = [Mode::DELAYED];
const MODES: [Mode; 2] = [Mode::DELAYED, Mode::SYNC];
const STRONG: [Mode; 1] = [Mode::STRONG];

/// For how long each family is to go on, if not only over its first workloads.
fn seconds() -> Option<Duration> {
    let text = std::env::var("TUREEN_CRASH_SECONDS").ok()?;
    text.parse().ok().map(Duration::from_secs)
}

/// Explore so many workloads of a family, or as many as there is time for.
fn explore(name: &str, count: u64, level: Level, domains: &[Domain], modes: &[Mode]) {
    let rules: Vec<_> = domains.iter().map(|&domain| domain.into()).collect();
    let mut campaign = Campaign {
        level,
        time: seconds(),
        ..common::campaign(&[(name, count)], &rules, modes)
    };
    if campaign.time.is_some() {
        campaign.families[0].1 = None;
    }
    holds(&campaign);
}

#[test]
fn every_operation_of_ace_survives_every_crash() {
    explore("ace1", u64::MAX, Level::Quick, &DOMAINS, &MODES);
}

#[test]
fn in_mode_strong_every_operation_is_there_as_a_whole_or_not_at_all() {
    explore("ace1", u64::MAX, Level::Quick, &DOMAINS, &STRONG);
    explore("ace1x", u64::MAX, Level::Quick, &DOMAINS, &STRONG);
}

#[test]
fn in_mode_strong_so_is_each_of_two() {
    explore("ace2", 60, Level::Quick, &DOMAINS, &STRONG);
    explore("ace2x", 60, Level::Quick, &DOMAINS, &STRONG);
}

#[test]
fn in_mode_strong_a_change_of_bytes_is_there_as_a_whole_or_not_at_all() {
    explore("whole", 100, Level::Quick, &DOMAINS, &STRONG);
    explore("whole", 1, Level::Thorough, &DOMAINS[..1], &STRONG);
}

#[test]
fn in_mode_strong_what_finds_no_space_has_changed_nothing() {
    explore("nospace1", 120, Level::Quick, &DOMAINS, &STRONG);
    explore("full", 2, Level::Quick, &DOMAINS[..1], &STRONG);
}

#[test]
fn in_mode_strong_long_histories_survive_every_crash() {
    explore("wrap", 1, Level::Quick, &DOMAINS[..1], &STRONG);
    for name in ["random", "tangle", "script", "single", "both"] {
        explore(name, 3, Level::Quick, &DOMAINS, &STRONG);
    }
    for name in ["life", "reused", "inherited"] {
        explore(name, 1, Level::Quick, &DOMAINS[..1], &STRONG);
    }
}

#[test]
fn pairs_of_operations_of_ace_survive_crashes() {
    explore("ace2", 12, Level::Quick, &DOMAINS, &MODES);
}

#[test]
fn every_tear_of_every_store_survives_a_crash() {
    explore("ace1", 4, Level::Thorough, &[Domain::Line], &DELAYED);
    explore("ace1x", 2, Level::Thorough, &DOMAINS[1..], &DELAYED);
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
fn failed_syncs_leave_what_a_crash_before_them_may() {
    explore("failing", 120, Level::Normal, &[Domain::Page], &MODES);
}

#[test]
fn a_workload_makes_the_same_inodes_each_time() {
    // What a failed sync may leave is known from a run without it.
    let run = || {
        let workload = by_name("script-5").expect("a workload of this name");
        Run::record(workload, Domain::Page, false).expect("it runs")
    };
    let (one, other) = (run(), run());
    for (one, other) in one.steps.iter().zip(&other.steps) {
        assert_eq!(one.latest.difference(&other.latest), None, "{}", one.what);
    }
}

#[test]
fn a_failed_sync_that_is_taken_for_a_good_one_is_noticed() {
    // What an engine that goes on would do: the trace of a good run, where one sync was none.
    for name in ["single-6", "pair-12", "script-5"] {
        let workload = by_name(name).expect("a workload of this name");
        let run = Run::record(workload, Domain::Page, false).expect("it runs");
        let begun = |event: &Event| matches!(event, Event::Begin(1));
        let from = run.events.iter().position(begun).expect("a first step");
        let fences = run.events.iter().enumerate().skip(from);
        let fences: Vec<usize> = fences
            .filter(|(_, event)| matches!(event, Event::Fence { .. }))
            .map(|(i, _)| i)
            .collect();
        let noticed = fences.iter().filter(|&&fence| {
            let mut events = run.events.clone();
            events[fence] = Event::Fail;
            explore_run(&run, &events, Level::Normal.effort(0), None).is_err()
        });
        let noticed = noticed.count();
        println!("{name}: {noticed} of {}", fences.len());
        // What the fences of a checkpoint cover the records have, and the next fence covers it.
        assert!(
            noticed > 0 && noticed + 3 >= fences.len(),
            "{name}: {noticed} of {fences:?}"
        );
    }
}

#[test]
fn ranges_that_are_zeroed_and_written_again_survive_every_crash() {
    explore("zeroed", u64::MAX, Level::Quick, &DOMAINS, &MODES);
}

#[test]
fn contents_that_a_record_has_and_that_change_survive_every_crash() {
    explore("carried", 38, Level::Quick, &[Domain::Page], &MODES);
}

#[test]
fn situations_survive_crashes_with_syncs_at_every_position() {
    explore("script", 100, Level::Quick, &DOMAINS, &DELAYED);
    explore("script", 17, Level::Quick, &[Domain::Line], &[Mode::SYNC]);
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
    explore("full", 2, Level::Quick, &[Domain::Line], &[Mode::SYNC]);
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
fn a_journal_that_wraps_survives_crashes() {
    explore("wrap", 1, Level::Quick, &[Domain::Line], &MODES);
}

#[test]
fn chains_of_directories_survive_crashes() {
    explore("chain", 4, Level::Normal, &DOMAINS, &DELAYED);
}

#[test]
fn random_sequences_survive_crashes() {
    explore("random", 14, Level::Normal, &DOMAINS, &DELAYED);
    explore("random", 3, Level::Quick, &[Domain::Line], &[Mode::SYNC]);
}

#[test]
fn tangles_of_few_names_survive_crashes() {
    explore("tangle", 15, Level::Quick, &[Domain::Line], &DELAYED);
}

#[test]
fn names_of_one_bucket_survive_crashes() {
    for (name, count) in [
        ("script-clash", 30),
        ("tangle-clash", 12),
        ("random-clash", 2),
    ] {
        explore(name, count, Level::Quick, &[Domain::Line], &DELAYED);
    }
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
fn a_search_for_leaks_beside_callers_and_open_handles_survives_crashes() {
    explore("reclaim", 8, Level::Quick, &[Domain::Line], &DELAYED);
    explore("reclaim", 2, Level::Quick, &DOMAINS[1..], &DELAYED);
    explore("reclaim", 1, Level::Quick, &[Domain::Line], &[Mode::SYNC]);
}

#[test]
fn what_is_done_between_two_steps_of_the_search_for_leaks_survives_crashes() {
    explore("search", 10, Level::Quick, &[Domain::Line], &DELAYED);
    explore("search", 2, Level::Quick, &DOMAINS[1..], &DELAYED);
}

#[test]
fn images_of_several_regions_survive_crashes() {
    explore("regions", 6, Level::Quick, &DOMAINS, &MODES);
    explore(
        "regions-reclaim",
        2,
        Level::Quick,
        &[Domain::Line],
        &DELAYED,
    );
    explore("regions-reclaim", 1, Level::Quick, &DOMAINS[1..], &DELAYED);
}

#[test]
fn an_inode_that_lost_both_names_may_be_found_with_the_first() {
    // The fsync takes the second removal into its batch, not the first, which was in another
    // directory.
    are_right(&["ace3-19733", "ace3-44859", "ace3-30538", "ace3-13408"]);
}

#[test]
fn names_made_again_beside_moves_and_moves_that_do_nothing_are_no_half_moves() {
    // Between two links of one file; a link where a move has been; a name moved that was removed
    // and linked before.
    are_right(&[
        "ace3-37369",
        "ace3-42959",
        "ace3-19009",
        "ace3-18843",
        "ace3-41260",
    ]);
}

#[test]
fn a_file_that_was_held_has_the_time_of_its_removal_not_that_of_its_close() {
    // The first of two batches has the change of the removal, and the name yet.
    are_right(&["ace2-tight-2521"]);
}

/// So many workloads of each family, in domain `line` and mode `delayed`.
fn explore_each(families: &[(&str, u64)]) {
    for (name, count) in families {
        explore(name, *count, Level::Quick, &[Domain::Line], &DELAYED);
    }
}

#[test]
fn repairs_that_are_cut_short_lose_nothing() {
    explore("damaged", 30, Level::Quick, &[Domain::Line], &DELAYED);
    explore("damaged", 8, Level::Quick, &DOMAINS[1..], &DELAYED);
}

#[test]
fn operations_that_find_no_space_leave_everything_as_it_was() {
    explore_each(&[("nospace1", 300), ("nospace2", 60)]);
}

#[test]
fn a_write_that_space_divides_leaves_its_first_part_or_all_or_nothing() {
    explore(
        "nospace1",
        300,
        Level::Quick,
        &[Domain::Line],
        &[Mode::SYNC],
    );
    explore("nospace2", 60, Level::Quick, &[Domain::Line], &[Mode::SYNC]);
}

#[test]
fn mkfs_that_is_cut_short_leaves_all_of_a_file_system_or_none() {
    explore("mkfs", u64::MAX, Level::Normal, &DOMAINS, &DELAYED);
}

#[test]
fn operations_that_ace_does_not_have_survive_every_crash() {
    explore(
        "ace1x",
        u64::MAX,
        Level::Quick,
        &[Domain::Line],
        &[Mode::SYNC],
    );
    explore("ace1x", 20, Level::Quick, &DOMAINS, &DELAYED);
    explore_each(&[("ace2x", 20)]);
}

#[test]
fn sweeps_that_are_split_survive_crashes() {
    explore_each(&[
        ("ace1-tight", 100),
        ("ace2-tight", 12),
        ("ace2x-tight", 12),
        ("script-tight", 12),
        ("tangle-tight", 4),
        ("random-tight", 1),
    ]);
}

#[test]
fn callers_that_persist_what_is_pending_survive_crashes() {
    explore_each(&[
        ("ace2-crowded", 12),
        ("tangle-crowded", 4),
        ("random-crowded", 1),
    ]);
}

/// All states that a token names are as they may be.
fn is_right(token: &str) {
    if let Err(account) = replay_token(&token.parse().expect("a token"), &traces()) {
        panic!("{account}");
    }
}

/// All states of these workloads are as they may be.
fn are_right(workloads: &[&str]) {
    for name in workloads {
        is_right(&format!("{name}:line:delayed:quick.0"));
    }
}

/// A power cut left bits in a new file's inode that say where bytes are not durable. So the next
/// life's write carried the block as it was before, and replay stored that over the new bytes.
#[test]
fn a_power_cut_in_a_strong_append_does_no_harm_to_the_next_life() {
    is_right("ace2-2047:page:strong:quick.0");
}

#[test]
fn replay() {
    let Ok(token) = std::env::var("TUREEN_REPLAY") else {
        return;
    };
    match replay_token(&token.parse().expect("a token"), &traces()) {
        Ok(explored) => println!("{} states, nothing wrong", explored.judged),
        Err(account) => panic!("{account}"),
    }
}

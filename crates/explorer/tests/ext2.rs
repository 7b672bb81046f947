//! Every state that a crash may leave of an ext2 file system, by sectors, is one that a user can go
//! on with.
//!
//! A failure prints a token, which `tureen explore --replay TOKEN` judges again.

mod common;

use common::{holds, judge};
use explorer::campaign::{Campaign, Progress};
use explorer::effort::{Level, Until};
use explorer::engine::{Mode, Others};
use explorer::engines::{
    self,
    ffs::{ASYNC, JOURNAL, ORDERED, SOFT, SYNC},
};
use explorer::explore::explore as explore_one;
use explorer::families::family;
use explorer::rules::Rules;
use explorer::run::{Run, Step};
use explorer::scratch::Scratch;
use explorer::states::{Crash, Explorer};
use explorer::workload::Workload;

/// So many workloads of each of these families.
fn campaign(families: &[(&str, u64)], mode: Mode) -> Campaign {
    common::campaign(families, &[Rules::Sectors], &[mode])
}

#[test]
fn every_operation_of_ace_survives_every_crash() {
    for mode in [SOFT, SYNC, ORDERED, JOURNAL] {
        holds(&campaign(&[("ace1", u64::MAX)], mode));
    }
}

/// Any choice of blocks for a wave is as right as the usual one; so is it where pointers in
/// indirect blocks lead.
#[test]
fn whatever_waves_have_every_crash_is_survived() {
    let families = [
        ("ace1-tight", 60),
        ("script-tight", 60),
        ("tangle-tight", 20),
        ("far-tight", 60),
        ("far", 30),
    ];
    holds(&campaign(&families, SOFT));
}

/// What needs one edge of the graph each, without a sync, and with each at each position.
#[test]
fn each_edge_of_the_graph_is_kept() {
    let families = [
        ("edges", 90),
        ("edges-tight", 120),
        ("swaps", 60),
        ("swaps-tight", 60),
    ];
    holds(&campaign(&families, SOFT));
}

/// Snapshots that are made, held by a dump or a check, and removed: each that there is has what
/// there was when it was made.
#[test]
fn snapshots_survive_every_crash() {
    let families = [
        ("snapshots", 40),
        ("snapshots-three", 3),
        ("snapshots-random", 2),
    ];
    for mode in [SOFT, SYNC, ORDERED, JOURNAL] {
        holds(&campaign(&families, mode));
    }
    holds(&campaign(
        &[("snapshots-tight", 20), ("snapshots-three-tight", 5)],
        SOFT,
    ));
}

/// What a kill or a power cut left is served at once, and what was lost is found between the
/// operations of that life, which is killed in its turn.
#[test]
fn what_a_crash_left_is_used_while_it_is_mended() {
    holds(&campaign(&[("served", 12), ("served-tight", 6)], SOFT));
    holds(&campaign(&[("served", 4)], SYNC));
}

/// What a crash had left behind the end of a file was cleared, and the file grew over it: on the
/// disk it could be larger before it was cleared there.
#[test]
fn what_was_behind_the_end_of_a_file_is_gone_before_the_file_grows() {
    judge("served-tight-58:sectors:soft:quick.0");
}

/// A directory whose parent was moved was taken for one that was moved itself.
#[test]
fn a_directory_of_two_names_stays_where_it_is_when_its_parent_moves() {
    judge("served-152:sectors:soft:quick.0");
}

/// A check had marked the image clean, not yet that snapshots are whole in it: the next mount
/// dropped them all. So it was on mounting, and in fsck.
#[test]
fn a_check_that_is_cut_short_keeps_snapshots() {
    judge("snapshots-224[2-3,5]:sectors:soft:quick.0:p24.s7");
    judge("snapshots-386[0,2-3,6-9]:sectors:soft:quick.0:p50.s0");
}

/// A crash had left their directory, which was there for good then, and in the way.
#[test]
fn the_directory_of_snapshots_goes_if_a_crash_leaves_it_empty() {
    judge("snapshots-8:sectors:sync:quick.0:k57.s0");
}

/// What was freed, and not yet claimed by a snapshot that wants it, the check made free: copies
/// were put there, which waited for themselves, and the snapshot was lost.
#[test]
fn what_was_freed_is_not_free_behind_a_crash_if_a_snapshot_wants_it() {
    judge("snapshots-three-tight-20:sectors:soft:quick.0");
}

/// A file went on from its new place, for a whiteout: its first name may go before that is there.
#[test]
fn a_whiteout_may_come_when_what_it_stands_for_has_gone_on() {
    judge("snapshots-random-80:sectors:soft:quick.0");
}

/// Who finds no space waits for what is pending: nothing is used before it is durably free.
#[test]
fn a_full_disk_survives_every_crash() {
    for mode in [SOFT, ORDERED] {
        holds(&campaign(&[("full-blocks", 12)], mode));
    }
    let waited: usize = (0..12).map(writes_that_waited).sum();
    assert!(waited > 0, "space was there throughout");
}

/// Writes of such a workload that were done in transactions of their own: nothing else makes a
/// write wait. They are counted in a mode that has transactions.
fn writes_that_waited(number: u64) -> usize {
    let family = family("full-blocks").expect("a family of this name");
    let workload = Workload {
        mode: ORDERED,
        ..family.workload(number).expect("it is made")
    };
    let run = Run::record(workload, Rules::Sectors, false).expect("it runs");
    let waited = |step: &&Step| step.batches > 0 && step.what.starts_with("Write");
    run.steps.iter().filter(waited).count()
}

/// The first of them once lost a file: its old name went before the block with its new one could
/// be reached.
#[test]
fn directories_grow_and_shrink_through_crashes() {
    let family = family("growth").expect("a family of this name");
    let workload = Workload {
        engine: engines::on(Rules::Sectors),
        mode: SOFT,
        ..family.workload(1).expect("it is made")
    };
    let explored = explore_one(&workload, Rules::Sectors, Level::Quick.effort(0), None);
    assert!(explored.expect("nobody objects").judged > 0);
}

/// A new directory that was renamed in its place had a name that its parent did not count.
#[test]
fn the_new_name_of_a_new_directory_waits_for_its_count() {
    judge("tangle-3355:sectors:soft:quick.0");
}

/// A file that was first synced behind its moves has the names that it had then: that it had others
/// promises nothing.
#[test]
fn names_that_went_on_before_their_file_was_durable_promise_nothing() {
    for workload in ["tangle-3198", "tangle-3871", "tangle-crowded-3198"] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
}

/// Two directories that moved, with whiteouts, each below the other's old name: where the check has
/// to give up the name that a directory keeps, it goes to the whiteout.
#[test]
fn a_whiteout_gets_the_old_name_of_a_directory_that_is_reached_by_the_new_one() {
    judge("tangle-3992[1,3-4,6,8,10-11,13-14]:sectors:soft:quick.0");
}

/// A whiteout that was removed may be on disk yet, when a directory that is moved has its name.
#[test]
fn a_whiteout_that_is_gone_gets_no_name() {
    for workload in ["tangle-1900", "tangle-2532"] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
}

/// A name went, by the second step of an exchange that the check does, before another name of its
/// file was there.
#[test]
fn what_changes_places_has_its_other_names_first() {
    judge("tangle-8368[0-1,3,5,7-8,13-16]:sectors:soft:quick.0");
}

/// A directory that was never on disk was moved, and got a further name beside that: it was there
/// with the `..` of the place where it was made.
#[test]
fn a_new_directory_that_moves_twice_has_its_last_parent_first() {
    judge("tangle-tight-5194:sectors:soft:quick.0");
    judge("tangle-tight-5194[0-1,4-5,7,12-14,16,21,23-24,26-29,31]:sectors:soft:quick.0");
}

/// A file that is moved away, and another one made in its place: both entries were once there.
#[test]
fn a_name_that_is_used_again_is_not_there_twice() {
    judge("script-515:sectors:soft:quick.0");
}

/// What a killed process wrote was taken for durable, and repaired upon, by the next mount and the
/// check: a power cut then took it away (B9).
#[test]
fn what_a_killed_process_wrote_is_durable_before_anything_relies_on_it() {
    for workload in ["ace2-362", "ace2-480", "ace2-1975"] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
    // A commit block, and a check that replays.
    judge("ace2-2000:sectors:journal:quick.0");
}

/// A directory that was moved, and removed within the same round, was found at its old place, which
/// did not count it any more.
#[test]
fn a_directory_that_was_moved_is_counted_where_it_was_until_it_is_gone_there() {
    for workload in ["ace2-2331", "ace2-2387"] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
}

/// Of a directory with two names the check kept the old one, by its `..`: its new name, which had
/// been another directory's, led nowhere, or its old one, for which there is a whiteout.
#[test]
fn of_two_names_a_directory_keeps_the_one_that_may_not_be_missing() {
    for workload in ["tangle-crowded-5", "script-427", "tangle-21"] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
}

/// Of a file that was moved away from a whiteout the old name went before the new one was there,
/// as the whiteout was removed, too.
#[test]
fn an_entry_that_changes_twice_waits_for_what_it_named_first() {
    judge("tangle-9:sectors:soft:quick.0");
}

/// A directory was moved over an empty one, with a whiteout: of its two names the check removed the
/// old one, where the whiteout was to be.
#[test]
fn the_old_name_of_a_directory_that_replaced_another_one_goes_to_its_whiteout() {
    for workload in [
        "tangle-474",
        "tangle-173",
        "random-4",
        "tangle-crowded-375",
        "tangle-crowded-474",
    ] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
}

/// Of a file that passed through a name the next one was missing, and the name led to another file.
#[test]
fn a_name_that_a_file_has_passed_through_is_taken_behind_it() {
    for workload in ["tangle-218", "tangle-400"] {
        judge(&format!("{workload}:sectors:soft:quick.0"));
    }
}

/// A mount in mode soft was freeing what the journal had left in the list of orphans, and crashed:
/// the check refused that.
#[test]
fn a_crash_while_orphans_are_freed_is_mended() {
    for token in [
        "tangle-3[0-4,10-38]:sectors:journal:quick.0:p84.s0",
        // One led to another: the check took that for the rest of a list that is broken.
        "random-33[0-1,3-16,18,20-26]:sectors:journal:quick.0:p66.s0",
        "random-42[0-1,4-12,14-19,30-39]:sectors:ordered:quick.0:k130.s0",
    ] {
        judge(token);
    }
}

/// A directory that changes places with what is in another one is counted there before the check
/// may give it that name.
#[test]
fn what_the_check_gives_a_name_to_is_counted_before() {
    judge("tangle-tight-214:sectors:soft:quick.0");
}

/// The check made what was being written behind the end of a file part of it.
#[test]
fn what_is_behind_the_end_of_a_file_is_cut_off() {
    judge("script-390:sectors:soft:quick.0");
}

/// A name for which another one waits, as that is to go behind it, moved to where nothing leads
/// before that other one is gone.
#[test]
fn a_name_does_not_wait_for_itself() {
    judge("ace3-42380[0-2,4-9]:sectors:soft:quick.1:p24.s1");
    judge("tangle-790[0-2,5,7,11,13-14]:sectors:soft:quick.0");
}

#[test]
fn without_an_order_the_judges_object() {
    let summary = campaign(&[("ace1", u64::MAX)], ASYNC).run(&Progress::default());
    assert!(
        !summary.failures.is_empty(),
        "a judge that finds nothing is none"
    );
}

/// The judge that others made.
fn e2fsck() -> &'static dyn Others {
    let engine = engines::on(Rules::Sectors);
    engine.others().expect("there is e2fsck")
}

/// A sample of the crash states of a workload, shown to e2fsck alone: the first objection.
fn shown(number: u64, mode: Mode) -> Result<u64, String> {
    let family = family("random").expect("a family of this name");
    let workload = Workload {
        engine: engines::on(Rules::Sectors),
        mode,
        ..family.workload(number).expect("it is made")
    };
    let run = Run::record(workload, Rules::Sectors, false).expect("it runs");
    let (mut seen, mut shown) = (0_u64, 0);
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        seen += 1;
        if seen.is_multiple_of(20) {
            e2fsck().judge(&scratch.image(crash.overlay))?;
            shown += 1;
        }
        Ok(())
    };
    let explorer = Explorer {
        rules: Rules::Sectors,
        sampling: Level::Quick.effort(0).sampling,
        only: None,
        from: run.from,
        until: Until::Done,
        visit: &mut visit,
    };
    let explored = explorer.run(&run.events, &mut run.subject().scratch(run.start.clone()));
    explored.map_err(|objection| objection.what)?;
    Ok(shown)
}

#[test]
fn e2fsck_objects_to_what_has_no_order_and_to_nothing_else() {
    if !e2fsck().is_there() {
        testing::skip!("needs e2fsprogs (e2fsck)");
    }
    for mode in [SOFT, SYNC, ORDERED, JOURNAL] {
        for number in 0..2 {
            let shown = shown(number, mode).unwrap_or_else(|what| panic!("{}: {what}", mode.name));
            assert!(shown > 3, "{}: {shown} states", mode.name);
        }
    }
    assert!((0..4).any(|number| shown(number, ASYNC).is_err()));
}

#[test]
fn a_campaign_shows_a_sample_to_e2fsck() {
    if !e2fsck().is_there() {
        testing::skip!("needs e2fsprogs (e2fsck)");
    }
    for mode in [SOFT, JOURNAL] {
        let summary = holds(&Campaign {
            others: 10,
            ..campaign(&[("ace1", 20)], mode)
        });
        assert!(summary.explored().others > 10);
    }
}

//! What must be known of soft updates on ext2 to show that its judges notice.

use super::{Bug, Table};
use crate::engine::Mode;
use crate::engines::ffs::{JOURNAL, ORDERED, SOFT};
use crate::families::{by_name, family};
use crate::rules::Rules;
use crate::workload::Workload;
use ffs::fault::{Fault, fault};

/// What is known of it.
pub(super) fn table() -> Table {
    Table {
        tours: &[],
        domains: &[],
        gathers: |_| false,
        part: |_| "",
        excuses: &[],
        bugs: || {
            let usual = known().map(|fault| bug(fault, mode(fault)));
            let beside = beside_a_log().map(|(fault, mode)| Bug {
                name: format!("{fault:?}{IN}{}", mode.name),
                ..bug(fault, mode)
            });
            usual.chain(beside).collect()
        },
        inject: |name| {
            let name = name.map(|name| name.split(IN).next().expect("a name"));
            let is = |known: &Fault| name.is_some_and(|name| format!("{known:?}") == name);
            fault(known().find(is))
        },
        situations,
    }
}

/// Before the mode in the name of a bug that is tried in several.
const IN: &str = ", in mode ";

/// Bugs of snapshots that show in modes with a log, too. In mode `journal` what is written over is
/// there with the rest of its transaction, which has the copies. A block that is not claimed is
/// copied in either: `snapshot_faults` of `ffs` counts.
fn beside_a_log() -> impl Iterator<Item = (Fault, Mode)> {
    let both = [
        Fault::CopyForgotten,
        Fault::ClaimedFreed,
        Fault::SealedEarly,
        Fault::UnsealedTaken,
        Fault::BriefKept,
        Fault::UnwantedStale,
        Fault::CheckUnmarked,
    ];
    let in_ordered = [Fault::CopyUnawaited, Fault::EndedEarly];
    let ordered = both.into_iter().chain(in_ordered);
    let ordered = ordered.map(|fault| (fault, ORDERED));
    let journal = both.into_iter().chain(Fault::OF_PATCHES);
    ordered.chain(journal.map(|fault| (fault, JOURNAL)))
}

/// The bugs that there are: the slow one, if it is asked for by its name.
fn known() -> impl Iterator<Item = Fault> {
    let slow = format!("{:?}", Fault::SLOW);
    let is_asked_for = std::env::var("TUREEN_BUG").is_ok_and(|name| name == slow);
    let slow = is_asked_for.then_some(Fault::SLOW);
    let all = Fault::ALL.into_iter().chain(Fault::OF_SNAPSHOTS);
    let all = all.chain(Fault::OF_PATCHES).chain(Fault::OF_RECLAIM);
    all.chain(slow)
}

/// Workloads that lead to where bugs are, those first that found many before.
const KNOWN: [&str; 34] = [
    "swaps-3",
    "swaps-4",
    "swaps-31",
    "edges-20",
    "script-tight-233",
    "ace1-tight-0",
    "ace1-tight-58",
    "ace1-tight-246",
    "ace1-tight-89",
    "ace1-tight-29",
    "ace1-tight-110",
    "script-363",
    "script-tight-390",
    "script-tight-130",
    "script-tight-851",
    "far-tight-130",
    "far-tight-96",
    "far-tight-43",
    "far-tight-90",
    "tangle-tight-10",
    "script-515",
    "script-tight-515",
    "ace2-2331",
    "ace2-tight-2331",
    "tangle-9",
    "script-427",
    "tangle-21",
    "tangle-474",
    "tangle-tight-474",
    "tangle-218",
    "tangle-tight-218",
    "tangle-400",
    "tangle-3355",
    "script-tight-287",
];
/// Families that lead there, and how many workloads of each are tried behind those.
const FAMILIES: [(&str, u64); 4] = [
    ("ace1-tight", 40),
    ("far-tight", 40),
    ("script-tight", 40),
    ("tangle-tight", 40),
];

fn situations() -> Vec<Workload> {
    let known = KNOWN.into_iter().filter_map(|name| by_name(name).ok());
    let others = FAMILIES.into_iter().flat_map(|(name, count)| {
        let family = family(name).expect("a family of this name");
        let numbers = (0..count).filter_map(move |n| family.workload(family.number(n, true)?).ok());
        numbers.collect::<Vec<_>>()
    });
    known.chain(others).collect()
}

fn bug(fault: Fault, mode: Mode) -> Bug {
    Bug {
        name: format!("{fault:?}"),
        media: vec![Rules::Sectors],
        mode: Some(mode),
        reached_by: reached_by(fault),
        nests: matches!(
            fault,
            Fault::ReplayTailFirst
                | Fault::ReplayFlagFirst
                | Fault::MendedTogether
                | Fault::RepairUnflushed
                | Fault::CheckUnkept
        ),
        meets: None,
    }
}

/// The mode in which a bug shows.
fn mode(fault: Fault) -> Mode {
    match fault {
        Fault::FlagFirst
        | Fault::FlagLate
        | Fault::FlagEndUnflushed
        | Fault::TailFirst
        | Fault::CommitUnflushed
        | Fault::HomeUnflushed
        | Fault::TailUnflushed
        | Fault::CommitEarly
        | Fault::DataLate
        | Fault::RevokeForgotten
        | Fault::NotHeld
        | Fault::OrphansUnlisted
        | Fault::CountsForgotten
        | Fault::RevokeIgnored
        | Fault::UnsettledTaken
        | Fault::CopyLate
        | Fault::PatchUnrolled
        | Fault::PatchUncounted
        | Fault::PatchForgotten
        | Fault::LogShown => ORDERED,
        Fault::LastForgotten
        | Fault::ReplayTailFirst
        | Fault::ReplayFlagFirst
        | Fault::ReplayUnflushed => JOURNAL,
        _ => SOFT,
    }
}

/// Families that lead to where a bug is, and how many of their workloads are tried before all
/// others.
fn reached_by(fault: Fault) -> &'static [(&'static str, u64)] {
    if Fault::OF_SNAPSHOTS.contains(&fault) || Fault::OF_PATCHES.contains(&fault) {
        return match fault {
            Fault::CheckUnclaimed | Fault::ClaimForgotten => &[("snapshots-three-tight", 30)],
            Fault::PatchForgotten => &[("snapshots-three", 30), ("snapshots", 90)],
            _ => &[("snapshots-tight", 90), ("snapshots", 60)],
        };
    }
    if Fault::OF_RECLAIM.contains(&fault) {
        return &[("served", 200), ("served-tight", 200)];
    }
    match (mode(fault), fault) {
        (
            SOFT,
            Fault::TargetBeforeInode
            | Fault::InodeBeforeParent
            | Fault::PendingForgotten
            | Fault::WaitersMet
            | Fault::KeptTaken
            | Fault::KeptChanged
            | Fault::NameTwice
            | Fault::MovingMoved
            | Fault::ParentFirst
            | Fault::ParentLast
            | Fault::OldNameBeforeParent
            | Fault::TagLowered
            | Fault::NameBeforeWhiteout
            | Fault::MendedTogether
            | Fault::RepairUnflushed
            | Fault::MountUnflushed
            | Fault::UnmountUnflushed,
        ) => &[("edges-tight", 54), ("edges", 18)],
        (SOFT, Fault::NameBeforeOldCount) => &[("edges-tight", 399)],
        (SOFT, _) => &[],
        (_, Fault::OrphansUnlisted) => &[],
        (_, Fault::TailFirst | Fault::HomeUnflushed) => &[("ace1", 120)],
        (_, Fault::TailUnflushed) => &[("wrap", 2), ("ace1", 120)],
        (_, Fault::NotHeld | Fault::RevokeForgotten | Fault::RevokeIgnored) => {
            &[("far", 60), ("churn", 2), ("script", 60)]
        }
        _ => &[("ace1", 120), ("script", 60), ("tangle", 20)],
    }
}

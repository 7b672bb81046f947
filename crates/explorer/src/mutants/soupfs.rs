//! Mutants of SoupFS: the places that workloads come by, what need not be noticed and why, and
//! bugs.

use super::{Bug, Excuse, Flushed, Ground, Table, Tour};
use crate::engine::Mode;
use crate::families::{by_name, family, script_number, single_number, singles};
use crate::halfway::Case;
use crate::op::Op;
use crate::rules::Rules;
use crate::workload::Workload;
use pmem::{Domain, LINE, PAGE};
use soupfs::fault::{Fault, fault};
use soupfs::layout::{Geometry, inode};

/// All that must be known of the engine to make mutants of it.
pub(super) const TABLE: Table = Table {
    tours: &[
        Tour {
            name: "delayed",
            made: places,
        },
        Tour {
            name: "strong",
            made: strict_places,
        },
    ],
    domains: UNORDERED,
    gathers,
    part,
    excuses: &EXCUSES,
    bugs,
    inject,
    situations,
};

/// Domains in which a bug shows.
const LINE_ONLY: &[Domain] = &[Domain::Line];
const PAGE_ONLY: &[Domain] = &[Domain::Page];
const ALL: &[Domain] = &[Domain::Line, Domain::Cache, Domain::Page];
/// Memory that lasts by itself.
const LASTING: &[Domain] = &[Domain::Line, Domain::Cache];
/// Where a store may overtake another.
const UNORDERED: &[Domain] = &[Domain::Line, Domain::Page];

const HEAD: &str = "shows when the next record is written over several old ones, of which the old \
     head leads to the first";
const LEAKED: &str = "a bit that is still set leaks, which only a clean image must not; the next \
     fence of any thread covers the bit, and unmounting has more of them before it marks the \
     image clean";
const UNMOUNTED: &str = "unmounting fences again before it marks the image clean, and a kill \
     before that leaves an image that is not";

/// What need not be noticed.
const EXCUSES: [Excuse; 17] = [
    Excuse {
        of: "order format::put < format::format",
        domains: LINE_ONLY,
        ground: Ground::Assumptions(&[6, 16]),
        why: "the fence of the superblock's copy covers it before the superblock is stored; with \
              the copy alone an image is one that mkfs has not made, which is repaired or made \
              again",
    },
    Excuse {
        of: "order mount::keep_superblocks",
        domains: LINE_ONLY,
        ground: Ground::Assumptions(&[6, 15]),
        why: "mounting fences again, for its epoch, before it returns; until then a power cut may \
              leave what the killed mkfs might have left",
    },
    Excuse {
        of: "order area::flush_start < recovery::make_durable",
        domains: LINE_ONLY,
        ground: Ground::Assumptions(&[6, 15]),
        why: "mounting fences again, for its epoch, before it returns; until then nothing is \
              written over in the ring, and a power cut replays from the old head on, in order, \
              all that is replayed from the new one",
    },
    Excuse {
        of: "order journal::advance_head",
        domains: UNORDERED,
        ground: Ground::Tests("crates/pmem/tests/journal_crash.rs"),
        why: HEAD,
    },
    // The same place: in some builds `advance_head` is inlined.
    Excuse {
        of: "order journal::commit_log",
        domains: UNORDERED,
        ground: Ground::Tests("crates/pmem/tests/journal_crash.rs"),
        why: HEAD,
    },
    Excuse {
        of: "order places::flush < journal::flush_places < journal::pay",
        domains: UNORDERED,
        ground: Ground::Tests("crates/pmem/tests/journal_crash.rs"),
        why: "shows when the next commit moves the head past these places, and no live record has \
              them",
    },
    Excuse {
        of: "fence journal::move_head",
        domains: UNORDERED,
        ground: Ground::Tests("crates/pmem/tests/journal_crash.rs"),
        why: HEAD,
    },
    Excuse {
        of: "fence sweep::finish",
        domains: UNORDERED,
        ground: Ground::Assumptions(&[6, 12, 15]),
        why: UNMOUNTED,
    },
    Excuse {
        of: "order flush::run < lane::clear_emptied < sweep::finish",
        domains: UNORDERED,
        ground: Ground::Assumptions(&[6, 12, 15]),
        why: UNMOUNTED,
    },
    Excuse {
        of: "order flush::run < deferred::free < lane::free_deferred -> journal::commit",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < deferred::free < lane::free_deferred -> sweep::finish",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < deferred::free < lane::free_deferred -> journal::checkpoint_to",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < deferred::free_trees < lane::free_trees -> journal::commit",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < deferred::free_trees < lane::free_trees -> sweep::finish",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < deferred::free_trees < lane::free_trees -> journal::checkpoint_to",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < leaks::step < persister::between_batches -> journal::commit",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
    Excuse {
        of: "order flush::run < leaks::step < persister::between_batches -> sweep::finish",
        domains: PAGE_ONLY,
        ground: Ground::Assumptions(&[12, 15]),
        why: LEAKED,
    },
];

/// Whether a batch flushes at this place what it stored at many.
fn gathers(site: &str) -> bool {
    site.starts_with("flush::run < txn") || site.starts_with("helpers::")
}

/// Inodes, the maps, other words (entries, tables, index nodes), bytes (data, long names,
/// attributes).
fn part(flushed: &Flushed<'_>) -> &'static str {
    let line = flushed.line;
    let of_inode = (0..inode::LINES).any(|n| (flushed.is_inode)(line - n));
    match line {
        _ if of_inode => "inodes",
        _ if !Geometry::for_len(flushed.len).holds_page(line * LINE / PAGE) => "maps",
        _ if flushed.in_one_piece => "bytes",
        _ => "words",
    }
}

/// Inject a bug, by its name, or take it out.
fn inject(name: Option<&str>) -> bool {
    let is = |known: &dyn std::fmt::Debug| name.is_some_and(|name| format!("{known:?}") == name);
    pmem::fault::fault(pmem::fault::Fault::ALL.into_iter().find(|bug| is(bug)));
    fault(Fault::ALL.into_iter().find(|bug| is(bug)))
}

/// All bugs: those of the engine, and those of the journal, which are in each recovery.
fn bugs() -> Vec<Bug> {
    let in_journal = |fault: &pmem::fault::Fault| *fault != pmem::fault::Fault::StoreLeaks;
    let journal = pmem::fault::Fault::ALL.into_iter().filter(in_journal);
    let journal = journal.map(|fault| Bug {
        name: format!("{fault:?}"),
        media: lines(ALL),
        mode: None,
        reached_by: &[],
        nests: true,
        meets: None,
    });
    // No crash shows what others have seen too early, half, or behind a failure; nor what no
    // workload here leads to: transactions, moves beside each other, records that would be too
    // long.
    // `crates/explorer/tests/strong` does.
    let elsewhere = |fault: &Fault| {
        matches!(
            fault,
            Fault::SeenEarly
                | Fault::NoOddPhase
                | Fault::StaleFallback
                | Fault::SweepLetsGo
                | Fault::NodeInPlace
                | Fault::FailureUntold
                | Fault::MovePassed
        )
    };
    let shows = |fault: &Fault| !elsewhere(fault);
    let engine = Fault::ALL.into_iter().filter(shows).map(bug);
    engine.chain(journal).collect()
}

/// Memories of these domains.
fn lines(domains: &[Domain]) -> Vec<Rules> {
    domains.iter().map(|&domain| Rules::Lines(domain)).collect()
}

/// A bug of the engine.
fn bug(fault: Fault) -> Bug {
    Bug {
        name: format!("{fault:?}"),
        media: lines(domains(fault)),
        mode: None,
        reached_by: reached_by(fault),
        nests: nests(fault),
        meets: meets(fault),
    }
}

/// The domains in which a bug can show: all, but for what is about durability alone.
fn domains(fault: Fault) -> &'static [Domain] {
    match fault {
        // What a kill left is durable in `cache`, and in `page` behind the sync of opening.
        Fault::ClaimUnflushed
        | Fault::InheritedUnflushed
        | Fault::ZeroedUnmarked
        | Fault::RepairKeepsNothing => LINE_ONLY,
        // A flush, or the order of two, that is missing: in `cache` there is none.
        Fault::LongNameUnflushed
        | Fault::XattrsUnflushed
        | Fault::TargetUnflushed
        | Fault::StreamedUnflushed
        | Fault::SettledDirty
        | Fault::RescueNamesFirst => UNORDERED,
        // No record is live behind its commit in `cache`, so nothing is replayed over what is used.
        Fault::EarlyReuse => UNORDERED,
        // What `page` leaves `line` may leave, too, and in `page` these take the longest.
        Fault::Unannounced | Fault::ClearedLate => LASTING,
        // Records have contents of files that were not stored yet there alone. What a request of
        // mode `strong` logs is in the consistent view, and its page not free before the record is
        // checkpointed (J3): there nobody uses one that a live record has.
        Fault::CarriedComesBack | Fault::UsedWhileLogged => PAGE_ONLY,
        // Behind its commit no record is live in `cache`, and nothing need be fenced there.
        Fault::TailLive | Fault::StoredWhileLogged | Fault::PrivateUnfenced => UNORDERED,
        // Elsewhere pages do not come back so soon.
        Fault::RecycledEarly => LINE_ONLY,
        // What the search looks at is the same in all, and takes the longest.
        Fault::FirstRegionAlone
        | Fault::MovedUnqueued
        | Fault::ClaimsUnmarked
        | Fault::SearchEndsEarly => LINE_ONLY,
        _ => ALL,
    }
}

/// Whether a bug is in what follows a crash: in mounting, in the search for leaks or in fsck. Not
/// those that show only beside callers of the search, or in several regions: nobody calls where a
/// crash is tried again, and to try that takes minutes there.
fn nests(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::EpochReuse
            | Fault::RepairIgnored
            | Fault::ClaimUnflushed
            | Fault::InheritedUnflushed
            | Fault::XattrsUnmarked
            | Fault::LongNamesUnmarked
            | Fault::IndexesUnmarked
            | Fault::CleanEarly
            | Fault::CleanWithOrphans
            | Fault::RepairUnmarked
            | Fault::RepairMarksFirst
            | Fault::RepairKeepsLatest
            | Fault::RepairForgetsMaps
            | Fault::RescueNamesFirst
            | Fault::RepairKeepsNothing
    )
}

/// Families that lead to where a bug is, and how many of their workloads are tried before all
/// others.
fn reached_by(fault: Fault) -> &'static [(&'static str, u64)] {
    match fault {
        Fault::AnyAddition => &[("tangle-clash", 60)],
        Fault::SplitForgets => &[("script-tight", 60), ("ace2-tight", 200)],
        Fault::LongNameUnflushed
        | Fault::XattrsUnflushed
        | Fault::TargetUnflushed
        | Fault::AccessForgotten
        | Fault::StreamedUnflushed => &[("ace1x", 175)],
        Fault::FailedLinkCounts => &[("nospace1", 1092)],
        Fault::RepairUnmarked
        | Fault::RepairIgnored
        | Fault::RepairMarksFirst
        | Fault::RepairKeepsLatest
        | Fault::RepairForgetsMaps
        | Fault::RescueNamesFirst => &[("damaged", 276)],
        Fault::OrphansForgotten
        | Fault::SearchEndsEarly
        | Fault::ClaimsUnmarked
        | Fault::XattrsUnmarked
        | Fault::LongNamesUnmarked
        | Fault::IndexesUnmarked
        | Fault::MovedUnqueued
        | Fault::HeldForgotten => &[("search", 160), ("reclaim", 100)],
        Fault::CleanEarly => &[("life", 20)],
        Fault::CleanWithOrphans => &[("reused", 4)],
        Fault::ZeroedUnmarked => &[("zeroed", 45)],
        Fault::CarriedComesBack | Fault::UsedWhileLogged => &[("carried", 92)],
        Fault::TailLive
        | Fault::StoredWhileLogged
        | Fault::RecycledEarly
        | Fault::PrivateUnfenced => &[("strict", 20)],
        Fault::RequestUncommitted | Fault::TimesApart | Fault::WrittenInPlace => &[("whole", 40)],
        Fault::FirstRegionAlone => &[("regions-reclaim", 20)],
        Fault::RegionTakenForFree => &[("regions", 60)],
        _ => &[],
    }
}

/// Whether a bug may show in a case, of those that show only where operations meet half-way.
fn meets(fault: Fault) -> Option<fn(&Case) -> bool> {
    Some(match fault {
        Fault::Unannounced => |case| {
            matches!(case.slow, Op::Rename(..) | Op::Link(..))
                && case.others.iter().any(Op::only_syncs)
        },
        Fault::RefreshAlone => {
            |case| matches!(case.others[0], Op::SetXattr { .. } | Op::SetAcl { .. })
        }
        Fault::ClearedLate => |case| {
            let other = &case.others[0];
            case.slow == Op::Syncfs && other.target().is_some() && !other.only_syncs()
        },
        Fault::ServedEarly => |case| case.slow.only_syncs() && case.others[0].only_syncs(),
        Fault::SettledDirty => |case| matches!(case.others[0], Op::Write { .. }),
        _ => return None,
    })
}

/// The places of modes `delayed` and `sync`.
fn places() -> Vec<Workload> {
    let single = |op, sync| format!("single-{}", single_number(op, sync));
    let pair = single_number(12, 0) + singles() * single_number(0, 0);
    let names = [
        single(6, 0),
        single(12, 0), // removes a file of several blocks, and claims nothing behind that
        single(80, 0),
        single(53, 8),
        single(57, 12),
        format!("pair-{pair}"),
        format!("threaded-{}", single_number(0, 3)),
        format!("threaded-{}", single_number(12, 0)), // one thread frees, another unmounts
        format!("shared-{}", single_number(0, 0)),
        "chain-2".into(),
        "growth-0".into(),
        "inherited-0".into(),
        "inherited-1".into(),
        "inherited-2".into(),
        "inherited-3".into(),
        "churn-0".into(),
        "reused-0".into(),
        "reused-1".into(),
        "reused-2".into(),
        "mkfs-1".into(),
        "mkfs-4".into(),
        "wrap-0".into(),
    ];
    let mut workloads = made(&names);
    // In mode `sync` every operation hands over to the next one's thread.
    workloads.extend(made(&[format!("threaded-{}", single_number(0, 1))]));
    if let Some(last) = workloads.last_mut() {
        last.mode = Mode::SYNC;
    }
    workloads
}

/// The places of mode `strong`.
fn strict_places() -> Vec<Workload> {
    let some = |name: &'static str, count| {
        let family = family(name);
        let number = move |n| family?.number(n, true);
        (0..count).filter_map(move |n| Some(format!("{name}-{}", number(n)?)))
    };
    let lives = |name, count| (0..count).map(move |n| format!("{name}-{n}"));
    // Which thread hands the lane over last is chance, so these run again.
    let by_chance = ["strict-11", "strict-13"].repeat(2);
    // One thread frees, another unmounts.
    let threaded = [single_number(12, 0), single_number(0, 3)];
    let names = some("strict", 20)
        .chain(threaded.map(|number| format!("threaded-{number}")))
        .chain(lives("inherited", 5))
        .chain(some("whole", 12))
        .chain(some("ace1", 12))
        .chain(["growth-0", "churn-0"].map(String::from))
        .chain(by_chance.into_iter().map(String::from))
        .chain(lives("reused", 5))
        .chain(["mkfs-1", "mkfs-4", "wrap-0"].map(String::from));
    // Some begin in another mode: only their lives behind a kill are in this one.
    let strict = |workload: Workload| Workload {
        mode: workload.next_mode.map_or(Mode::STRONG, |_| workload.mode),
        ..workload
    };
    let names: Vec<String> = names.collect();
    made(&names).into_iter().map(strict).collect()
}

/// Workloads of the situations that the rules are for.
fn situations() -> Vec<Workload> {
    // First those that found some bug before; of the rest the cheap ones, in an order that is all
    // over the family.
    let known = [
        (0, 0),
        (14, 3),
        (16, 16),
        (6, 14),
        (8, 10),
        (5, 14),
        (17, 16),
        (12, 15),
        (15, 7),
    ];
    let known = known.map(|(script, form)| format!("script-{}", script_number(script, form)));
    let clash = format!("script-clash-{}", script_number(22, 0));
    let scripts = family("script").into_iter().flat_map(|scripts| {
        let numbers = (0..).map_while(move |n| scripts.number(n, true));
        numbers.map(|n| format!("script-{n}"))
    });
    let others = ["chain-2", "growth-0", "churn-0"].map(String::from);
    let random = (0..12).map(|n| format!("random-{n}"));
    let lives = (0..4).map(|n| format!("life-{n}"));
    let names: Vec<String> = known
        .into_iter()
        .chain([clash])
        .chain(scripts)
        .chain(others)
        .chain(random)
        .chain(lives)
        .collect();
    made(&names)
}

/// Workloads by name; the names are those of a table here.
fn made(names: &[String]) -> Vec<Workload> {
    names.iter().filter_map(|name| by_name(name).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::of;
    use super::*;
    use crate::engines::ffs::cached;
    use std::path::Path;

    /// A file of the repository.
    fn text(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(path)).expect("it is there")
    }

    #[test]
    fn an_excuse_names_assumptions_of_the_crash_model_or_tests_that_notice() {
        let model = text("docs/crash-model.md");
        let cached = of(&cached::ENGINE).expect("a table");
        for Excuse { of, ground, .. } in EXCUSES.iter().chain(cached.excuses) {
            match ground {
                Ground::Assumptions(numbers) => {
                    assert!(!numbers.is_empty(), "{of}");
                    for n in *numbers {
                        assert!(model.contains(&format!("- **M{n}. ")), "M{n}: {of}");
                    }
                }
                Ground::Tests(path) => assert!(text(path).contains("#[test]"), "{of}"),
            }
        }
    }
}

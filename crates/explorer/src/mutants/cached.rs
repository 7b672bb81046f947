//! What must be known of a cache to show that its judges notice.

use super::{Bug, Excuse, Ground, Table, Tour};
use crate::engines::ffs::cached::{ENGINE, SPINDLE, TINCA, known};
use crate::families::by_name;
use crate::rules::Rules;
use crate::workload::Workload;
use cache::fault::{Fault, fault};
use pmem::Domain;

/// What is known of it.
pub(super) fn table() -> Table {
    Table {
        tours: &[Tour {
            name: "any",
            made: || behind_both(&PLACES),
        }],
        domains: &[Domain::Line],
        gathers: |_| false,
        part: |_| "",
        excuses: &EXCUSES,
        bugs: || Fault::ALL.into_iter().map(bug).collect(),
        inject: |name| {
            // What was judged was so of another cache.
            known::forget();
            let is = |known: &Fault| name.is_some_and(|name| format!("{known:?}") == name);
            fault(Fault::ALL.into_iter().find(is))
        },
        situations: || behind_both(&SITUATIONS),
    }
}

/// Workloads that between them come by all places of the cache.
const PLACES: [&str; 14] = [
    "cache-0",
    "cache-tight-0",
    "cache-killed-4",
    "cache-killed-7",
    "cache-killed-8",
    "cache-killed-9",
    "cache-threads-0",
    "cache-threads-1",
    "cache-threads-2",
    "cache-threads-3",
    "cache-3",
    "cache-21",
    "cache-24",
    "cache-27",
];

/// Workloads that lead to where bugs are, the cheap ones first.
const SITUATIONS: [&str; 14] = [
    "ace1-12",
    "ace1-70",
    "cache-24",
    "cache-21",
    "cache-killed-0",
    "cache-killed-3",
    "cache-killed-4",
    "cache-0",
    "cache-3",
    "cache-6",
    "cache-9",
    "cache-12",
    "cache-18",
    "cache-19",
];

/// Workloads by name, behind each kind of cache.
fn behind_both(names: &[&str]) -> Vec<Workload> {
    let of_mode = |name: &&str| {
        let workload = by_name(name).ok();
        let with = |workload: Workload, mode| Workload {
            engine: &ENGINE,
            mode,
            ..workload
        };
        let workload = workload.into_iter();
        workload.flat_map(move |w| [with(w.clone(), SPINDLE), with(w, TINCA)])
    };
    names.iter().flat_map(of_mode).collect()
}

/// Domains of a memory of which what is visible need not be durable. Of what need not be noticed in
/// `line` `page` has no states that `line` has not.
const VOLATILE: &[Domain] = &[Domain::Line, Domain::Page];
/// What shows when a process that had the disk alone, or let it have all, was killed before.
const ALONE: Ground = Ground::Tests("crates/cache/tests/alone.rs");
/// What shows when the places of what was undone or forgotten are used before the first commit.
const OPEN: Ground = Ground::Tests("crates/cache/tests/opened.rs");

const UNTIL_OPEN: &str = "opening fences again, for Tail and for Head, before it returns; until \
     then a power cut may leave what it might have left before, and the next recovery begins anew";
const OPENED: &str = "opening the cache follows, which flushes and fences both superblocks before \
     anything is relied on; until then the disk has everything, and a cache of which both are torn \
     is none, and made anew";
const DETACHED: &str = "the disk has everything, and says so: a cache that still belongs to it \
     forgets what it has when it is opened, and so does one that is attached, whatever its entries \
     say; one of which both superblocks are torn is none";
const CLEANED: &str = "lost, a block is written again, as it is; before the disk says that it has \
     everything all entries are flushed again";
const FIRST_CLEANED: &str = "the disk says that it has everything: what is cached of it, the first \
     block too, is forgotten when the cache is opened";
const UNMARKED: &str = "a killed process may have taken the mark from the disk, not durably";
const FLUSHED: &str = "the disk was flushed as its identity was read (B3), and nobody has written \
     to it since";
const DURABLE: &str = "what opening has undone or forgotten is durable before its places are used \
     again, if need be before the first commit";
const ALL_ENTRIES: &str = "recovery flushes all entries again before its fence";
const TINCA_SLOT: &str = "the fence behind Tail covers the slot before the entry changes, and one \
     that Tail leads to too early is not of this lap";
const TINCA_STATE: &str = "an entry in role log counts as switched when Head is there, and it is \
     durable in one of the two versions a fence before that, as the switch has a fence of its own";

const fn excuse(of: &'static str, ground: Ground, why: &'static str) -> Excuse {
    Excuse {
        of,
        domains: VOLATILE,
        ground,
        why,
    }
}

/// What need not be noticed.
const EXCUSES: [Excuse; 28] = [
    excuse(
        "flush medium::flush_commit_line < recover::recover",
        Ground::Assumptions(&[5, 6, 15]),
        UNTIL_OPEN,
    ),
    excuse(
        "order medium::flush_commit_line < recover::recover",
        Ground::Assumptions(&[5, 6, 15]),
        UNTIL_OPEN,
    ),
    excuse(
        "order medium::flush_entries < recover::recover",
        Ground::Assumptions(&[6, 15]),
        UNTIL_OPEN,
    ),
    excuse(
        "order medium::flush_superblocks < recover::recover",
        Ground::Assumptions(&[6, 15]),
        UNTIL_OPEN,
    ),
    excuse(
        "barrier store::open < store::attach",
        Ground::Assumptions(&[15]),
        FLUSHED,
    ),
    excuse(
        "barrier store::open < store::create",
        Ground::Assumptions(&[15]),
        FLUSHED,
    ),
    excuse("barrier store::uuid_to_bind", ALONE, UNMARKED),
    excuse("flush recover::recover < store::open", OPEN, DURABLE),
    excuse("order recover::recover < store::open", OPEN, DURABLE),
    excuse(
        "fence medium::fence < store::drop_entries < store::forget",
        OPEN,
        DURABLE,
    ),
    excuse(
        "order medium::set_state < store::drop_entries < store::forget",
        OPEN,
        DURABLE,
    ),
    excuse(
        "flush medium::set_state < recover::undo_entries",
        Ground::Assumptions(&[6]),
        ALL_ENTRIES,
    ),
    excuse(
        "order medium::set_state < recover::undo_entries",
        Ground::Assumptions(&[6]),
        ALL_ENTRIES,
    ),
    excuse(
        "flush medium::set_state < write_out::write_wave",
        Ground::Assumptions(&[2, 6]),
        CLEANED,
    ),
    excuse(
        "order medium::set_state < write_out::write_wave",
        Ground::Assumptions(&[2, 6]),
        CLEANED,
    ),
    excuse(
        "flush medium::replace_superblock < medium::store_superblock < store::detach",
        Ground::Assumptions(&[2, 3]),
        DETACHED,
    ),
    excuse(
        "fence medium::replace_superblock < medium::store_superblock < store::detach",
        Ground::Assumptions(&[2, 3]),
        DETACHED,
    ),
    excuse(
        "order medium::replace_superblock < medium::store_superblock < store::detach",
        Ground::Assumptions(&[2, 3]),
        DETACHED,
    ),
    excuse(
        "order medium::replace_superblock < medium::store_superblock",
        Ground::Assumptions(&[2, 3, 6]),
        OPENED,
    ),
    excuse(
        "flush medium::replace_superblock < medium::store_superblock",
        Ground::Assumptions(&[3, 6]),
        OPENED,
    ),
    excuse(
        "fence medium::replace_superblock < medium::store_superblock",
        Ground::Assumptions(&[3, 6]),
        OPENED,
    ),
    excuse(
        "flush medium::set_state < store::drop_entries < store::detach",
        Ground::Assumptions(&[2]),
        DETACHED,
    ),
    excuse(
        "order medium::set_state < store::drop_entries < store::detach",
        Ground::Assumptions(&[2]),
        DETACHED,
    ),
    excuse(
        "fence medium::fence < store::drop_entries < store::detach",
        Ground::Assumptions(&[2]),
        DETACHED,
    ),
    excuse(
        "flush store::flush_locked",
        Ground::Assumptions(&[2]),
        FIRST_CLEANED,
    ),
    excuse(
        "order store::flush_locked",
        Ground::Assumptions(&[2]),
        FIRST_CLEANED,
    ),
    excuse(
        "order medium::set_slots < commit::tinca",
        Ground::Assumptions(&[6]),
        TINCA_SLOT,
    ),
    excuse(
        "order medium::set_state < commit::tinca",
        Ground::Assumptions(&[5, 6]),
        TINCA_STATE,
    ),
];

fn bug(fault: Fault) -> Bug {
    Bug {
        name: format!("{fault:?}"),
        media: match fault {
            // What is visible is durable in the other one (M8).
            Fault::HeadEarly | Fault::EvictedEarly | Fault::LapKept | Fault::VisibleBelieved => {
                vec![Rules::Both(Domain::Line)]
            }
            _ => [Domain::Line, Domain::Cache].map(Rules::Both).to_vec(),
        },
        // Each workload has its own.
        mode: None,
        reached_by: match fault {
            Fault::EvictedEarly => &[("cache", 1)],
            Fault::LapKept => &[("cache-killed", 10)],
            Fault::PastUnflushed | Fault::PastInUse | Fault::ReadKeptEarly => {
                &[("cache-tight", 33)]
            }
            _ => &[],
        },
        nests: matches!(fault, Fault::HeadBeforeTail | Fault::UnitsKept),
        meets: None,
    }
}

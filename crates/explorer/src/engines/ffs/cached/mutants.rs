//! What must be known of a cache to show that its judges notice.

use super::{ENGINE, SPINDLE, TINCA};
use crate::families::by_name;
use crate::mutants::{Bug, Excuse, Table};
use crate::workload::Workload;
use cache::fault::{Fault, fault};
use pmem::Domain;

/// What is known of it.
pub fn table() -> Table {
    Table {
        places: || behind_both(&PLACES),
        gathers: |_| false,
        part: |_| "",
        excuses: &EXCUSES,
        bugs: || Fault::ALL.into_iter().map(bug).collect(),
        inject: |name| {
            let is = |known: &Fault| name.is_some_and(|name| format!("{known:?}") == name);
            fault(Fault::ALL.into_iter().find(is))
        },
        situations: || behind_both(&SITUATIONS),
    }
}

/// Workloads that between them come by all places of the cache.
const PLACES: [&str; 6] = [
    "cache-0", "cache-3", "cache-18", "cache-21", "cache-24", "cache-27",
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

/// What need not be noticed.
const EXCUSES: [Excuse; 0] = [];

fn bug(fault: Fault) -> Bug {
    Bug {
        name: format!("{fault:?}"),
        domains: match fault {
            // What is visible is durable in the other one (M8).
            Fault::HeadEarly | Fault::EvictedEarly | Fault::VisibleBelieved => &[Domain::Line],
            _ => &[Domain::Line, Domain::Cache],
        },
        reached_by: match fault {
            Fault::EvictedEarly => &[("cache", 1)],
            _ => &[],
        },
        nests: matches!(fault, Fault::HeadBeforeTail | Fault::UnitsKept),
        meets: None,
    }
}

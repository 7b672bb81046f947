//! The judges can fail: with a flush, a fence or an order of the engine left out, one at a time, or with a bug
//! planted in it, some workload must be objected to; or there is a reason why not.
//!
//! - `flush F`: no flush of this place happens. `fence G`: no fence of it.
//! - `order F -> G`: what place F flushed is not durable at the fence of place G, only at the next one. So
//!   what comes behind G may reach the medium before what F flushed.
//! - `bug B`: see `soupfs::plant`.
//!
//! A place is named by the innermost functions of the engine there, the outermost last.

use crate::explore::{Effort, Wrong, explore, explore_run};
use crate::run::Run;
use crate::states::Sampling;
use crate::trace::Event;
use crate::tree::Flaw;
use crate::workload::Workload;
use parking_lot::Mutex;
use pmem::Domain;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What is left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// All flushes of a place.
    Flush(String),
    /// All fences of a place.
    Fence(String),
    /// That what the first place flushed is durable behind the fence of the second.
    Order(String, String),
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutant::Flush(site) => write!(f, "flush {site}"),
            Mutant::Fence(site) => write!(f, "fence {site}"),
            Mutant::Order(flush, fence) => write!(f, "order {flush} -> {fence}"),
        }
    }
}

/// Flushes, fences and orders that need not be noticed, each with the reason: what its name starts with.
pub const REDUNDANT: [(&str, &str); 3] = [
    (
        "fence Journal::retire_applied",
        "what is reused is private until the next commit, whose first fence covers the head",
    ),
    (
        "fence Journal::retire < Core::retire < Persister::finish",
        "in domain `line` the sweep before it has ended with a fence",
    ),
    (
        "fence Persister::finish",
        "unmounting fences again before it marks the image clean",
    ),
];

/// Why a mutant need not be noticed, if so.
pub fn excuse(mutant: &Mutant) -> Option<&'static str> {
    let name = mutant.to_string();
    let known = REDUNDANT.iter().find(|(known, _)| name.starts_with(known));
    known.map(|(_, reason)| *reason)
}

/// What became of a mutant.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    /// Workloads that it was tried with.
    pub tried: u32,
    /// The workload that noticed, and what its judge said.
    pub noticed: Option<(String, String)>,
}

/// Effort spent on a mutant in a workload.
const EFFORT: Effort = Effort {
    sampling: Sampling {
        exhaustive: 64,
        samples: 12,
        at_flush: 0,
        seed: 0,
    },
    used: 31,
    nested: u64::MAX,
    reclaimed: u64::MAX,
    depth: 1,
};

/// The mutants of a run: of its places, and of its pairs of places.
fn mutants(run: &Run) -> BTreeSet<Mutant> {
    let name = |site: u32| run.sites[site as usize].clone();
    let mut all = BTreeSet::new();
    let mut flushed = BTreeSet::new();
    for event in &run.events {
        match event {
            Event::Flush { site, .. } => {
                flushed.insert(*site);
                all.insert(Mutant::Flush(name(*site)));
            }
            Event::Fence { site, .. } => {
                all.insert(Mutant::Fence(name(*site)));
                for flush in std::mem::take(&mut flushed) {
                    all.insert(Mutant::Order(name(flush), name(*site)));
                }
            }
            _ => {}
        }
    }
    all
}

/// The trace of a run with something left out.
fn mutate(run: &Run, mutant: &Mutant) -> Vec<Event> {
    let is = |site: u32, name: &String| run.sites[site as usize] == *name;
    let mut events = Vec::with_capacity(run.events.len());
    let mut late: Vec<Event> = Vec::new();
    for event in &run.events {
        match (event, mutant) {
            (Event::Flush { site, .. }, Mutant::Flush(name)) if is(*site, name) => {}
            (Event::Fence { site, .. }, Mutant::Fence(name)) if is(*site, name) => {}
            (Event::Flush { site, .. }, Mutant::Order(flush, _)) if is(*site, flush) => {
                late.push(event.clone());
            }
            (Event::Fence { site, .. }, Mutant::Order(_, fence)) if is(*site, fence) => {
                events.push(event.clone());
                events.append(&mut late);
            }
            (Event::Fence { .. }, Mutant::Order(..)) => {
                events.append(&mut late);
                events.push(event.clone());
            }
            _ => events.push(event.clone()),
        }
    }
    events.append(&mut late);
    events
}

/// Try the mutants of these workloads, each until it is noticed; those with an excuse as well if `all`.
///
/// # Errors
/// A workload does not run.
pub fn run(
    workloads: &[Workload],
    domain: Domain,
    jobs: usize,
    all: bool,
) -> Result<BTreeMap<Mutant, Fate>, Flaw> {
    let mut fates: BTreeMap<Mutant, Fate> = BTreeMap::new();
    for workload in workloads {
        let run = Run::record(workload.clone(), domain, true)?;
        let here = mutants(&run);
        here.iter().for_each(|mutant| {
            fates.entry(mutant.clone()).or_default();
        });
        let open = |m: &&Mutant| fates[*m].noticed.is_none() && (all || excuse(m).is_none());
        let todo = Mutex::new(here.iter().filter(open).collect::<Vec<_>>());
        let done = Mutex::new(Vec::new());
        std::thread::scope(|s| {
            for _ in 0..jobs.max(1) {
                s.spawn(|| {
                    while let Some(mutant) = { todo.lock().pop() } {
                        let events = mutate(&run, mutant);
                        let objection = explore_run(&run, &events, EFFORT, None).err();
                        done.lock().push((mutant, objection.map(|o| o.what)));
                    }
                });
            }
        });
        for (mutant, what) in done.into_inner() {
            let fate = fates.entry(mutant.clone()).or_default();
            fate.tried += 1;
            fate.noticed = what.map(|what| (workload.name.clone(), what));
        }
    }
    Ok(fates)
}

/// Whether a workload objects to the engine as it is now.
pub fn objects(workload: &Workload, domain: Domain) -> Option<String> {
    match explore(workload, domain, EFFORT, None).err()? {
        Wrong::Run(what) => Some(what),
        Wrong::State(_, objection) => Some(objection.what),
    }
}

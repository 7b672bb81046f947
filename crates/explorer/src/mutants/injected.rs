//! Bugs that are injected into the engine.

use super::{EFFORT, Fate, Fates, Mutant, of};
use crate::effort::Effort;
use crate::engine::Engine;
use crate::explore::{Wrong, explore};
use crate::families::family;
use crate::halfway;
use crate::mutants::table::{Bug, Table};
use crate::parallel::first_in_parallel;
use crate::rules::Rules;
use crate::workload::Workload;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Cases of operations that meet half-way which a bug is tried with, at most.
const HALFWAY: usize = 2000;
/// Of so many states one is crashed again in the recovery and in fsck, and one in the reclaimer, if
/// a bug may be there.
const NESTED: u64 = 7;
const RECLAIMED: u64 = 301;
/// Of so many states one is shown to judges that others made.
const OTHERS: u64 = 4;
/// So many workloads are made at a time, for each thread that tries some.
const AT_ONCE: usize = 4;

/// Inject each bug of an engine in turn until a workload objects, on each medium on which it can
/// show; nothing if this build has none. `only`: those whose names have this in them.
pub fn put_in(
    engine: &'static dyn Engine,
    only: Option<&str>,
    jobs: usize,
    watch: &dyn Fn(&str),
) -> Fates {
    let mut fates = Fates::new();
    let Some(table) = of(engine) else {
        return fates;
    };
    if !(table.inject)(None) {
        return fates;
    }
    // Workloads to which nobody objects without a bug.
    let mut sound = BTreeSet::new();
    let chosen = |bug: &Bug| only.is_none_or(|part| bug.name.contains(part));
    for bug in (table.bugs)().into_iter().filter(chosen) {
        for &rules in &bug.media {
            (table.inject)(Some(&bug.name));
            let fate = match bug.meets {
                Some(meets) => half_way(&bug.name, (meets, rules), jobs, watch),
                None => found(&bug, (engine, &table), rules, (jobs, &mut sound), watch),
            };
            (table.inject)(None);
            let by = fate.noticed.as_ref().map_or("nobody", |(by, _)| by);
            watch(&format!("  {by}, of {}", fate.tried));
            fates.insert((Mutant::Bug(bug.name.clone()), rules), fate);
        }
    }
    fates
}

/// Whether a workload objects to a bug that is injected.
fn found(
    bug: &Bug,
    (engine, table): (&'static dyn Engine, &Table),
    rules: Rules,
    (jobs, sound): (usize, &mut BTreeSet<String>),
    watch: &dyn Fn(&str),
) -> Fate {
    watch(&format!("{} ({rules})", bug.name));
    let effort = match bug.nests {
        false => EFFORT,
        true => Effort {
            nested: NESTED,
            reclaimed: RECLAIMED,
            ..EFFORT
        },
    };
    let mut fate = Fate::default();
    // What its own judges do not see, others may: they are shown a sample, of what leads to it.
    let others = engine.others().filter(|others| others.is_there());
    let shown = Effort {
        others: OTHERS,
        ..effort
    };
    let again = leads(bug).filter(|_| others.is_some());
    let own = leads(bug).map(|workload| (workload, effort));
    let again = again.map(|workload| (workload, shown));
    let situations = (table.situations)().into_iter();
    let all = own.chain(again);
    let all = all.chain(situations.map(|workload| (workload, effort)));
    let mut workloads = all.map(|(workload, effort)| {
        let mode = bug.mode.unwrap_or(workload.mode);
        let workload = Workload {
            engine,
            mode,
            ..workload
        };
        (workload, effort)
    });
    loop {
        // What leads to it is made by an engine that is right, and so is the empty image.
        (table.inject)(None);
        let some: Vec<_> = workloads.by_ref().take(jobs.max(1) * AT_ONCE).collect();
        for (workload, _) in &some {
            engine.empty(workload.len, workload.mode);
        }
        (table.inject)(Some(&bug.name));
        let tried = AtomicU32::new(0);
        let noticed = first_in_parallel(some.iter(), jobs, |(workload, effort)| {
            tried.fetch_add(1, Relaxed);
            let what = objection(workload, rules, *effort)?;
            Some((workload, effort, what))
        });
        fate.tried += tried.into_inner();
        if let Some((workload, effort, what)) = noticed {
            (table.inject)(None);
            let key = format!(
                "{} {rules} {} {} {}",
                workload.name, workload.mode.name, bug.nests, effort.others
            );
            if sound.insert(key) {
                let without = objection(workload, rules, *effort);
                assert_eq!(without, None, "{}, without any bug", workload.name);
            }
            fate.noticed = Some((workload.name.clone(), what));
            return fate;
        }
        if some.is_empty() {
            return fate;
        }
    }
}

/// Workloads of the families that lead to a bug.
fn leads(bug: &Bug) -> impl Iterator<Item = Workload> {
    let leads = bug.reached_by.iter();
    leads.flat_map(|&(name, count)| first(name, count))
}

/// The first workloads of a family, in an order that is all over it.
fn first(name: &str, count: u64) -> impl Iterator<Item = Workload> {
    family(name).into_iter().flat_map(move |family| {
        let number = move |n| family.workload(family.number(n, true)?).ok();
        (0..count).filter_map(number)
    })
}

/// Whether a bug shows that is injected, where operations meet half-way.
fn half_way(
    name: &str,
    (meets, rules): (fn(&halfway::Case) -> bool, Rules),
    jobs: usize,
    watch: &dyn Fn(&str),
) -> Fate {
    watch(&format!("{name} ({rules})"));
    let domain = rules.domain().expect("operations meet on memory alone");
    let found = halfway::find(meets, domain, HALFWAY, jobs);
    Fate {
        tried: HALFWAY as u32,
        noticed: found.map(|(number, what)| (format!("halfway-{number}"), what)),
        excuse: None,
    }
}

/// What a workload objects to in the engine as it is now.
fn objection(workload: &Workload, rules: Rules, effort: Effort) -> Option<String> {
    let explored = || explore(workload, rules, effort, None);
    match catch_unwind(AssertUnwindSafe(explored)) {
        Ok(Ok(_)) => None,
        Ok(Err(Wrong::Run(what) | Wrong::Quiescent(_, what))) => Some(what),
        Ok(Err(Wrong::State(_, objection))) => Some(objection.what),
        Err(_) => Some("the engine panicked".into()),
    }
}

//! Bugs that are injected into the engine.

use super::hints::hint;
use super::{EFFORT, Fate, Fates, Mutant, of};
use crate::effort::{Effort, Until};
use crate::engine::Engine;
use crate::explore::{Wrong, explore};
use crate::families::{by_name, family};
use crate::halfway;
use crate::mutants::table::{Bug, Table};
use crate::parallel::{first_in_parallel, in_parallel};
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
/// So many workloads are made at a time, for each thread that tries some, at most. Most bugs are
/// noticed by the first or the second, so at first it is one.
const AT_ONCE: usize = 4;

/// Inject each bug of an engine in turn until a workload objects, on each medium on which it can
/// show; nothing if this build has none. `only`: those whose names have this in them.
pub fn inject_each(
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
    let mut objected = Objected::default();
    let chosen = |bug: &Bug| only.is_none_or(|part| bug.name.contains(part));
    for bug in (table.bugs)().into_iter().filter(chosen) {
        for &rules in &bug.media {
            (table.inject)(Some(&bug.name));
            let fate = match bug.meets {
                Some(meets) => half_way(&bug.name, (meets, rules), jobs, watch),
                None => found(&bug, (engine, &table), rules, (jobs, &mut objected), watch),
            };
            (table.inject)(None);
            let by = fate.noticed.as_ref().map_or("nobody", |(by, _)| by);
            watch(&format!("  {by}, of {}", fate.tried));
            fates.insert((Mutant::Bug(bug.name.clone()), rules), fate);
        }
    }
    watch("without any bug");
    in_parallel(&objected.tried, jobs, |(workload, rules, effort)| {
        let without = objection(workload, *rules, *effort);
        assert_eq!(without, None, "{}, without any bug", workload.name);
    });
    fates
}

/// What objected to a bug, each once: without any, nobody must object to it. That is tried at the
/// end, as then several can be at a time.
#[derive(Default)]
struct Objected {
    names: BTreeSet<String>,
    tried: Vec<(Workload, Rules, Effort<'static>)>,
}

/// Whether a workload objects to a bug that is injected.
fn found(
    bug: &Bug,
    (engine, table): (&'static dyn Engine, &Table),
    rules: Rules,
    (jobs, objected): (usize, &mut Objected),
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
    let own = leads(bug).map(|source| (source, effort));
    let again = again.map(|source| (source, shown));
    let situations = std::iter::once_with(table.situations).flatten();
    let situations = situations.map(|workload| (Source::Made(workload.into()), effort));
    let known = hint(engine.name(), &bug.name).and_then(|name| by_name(name).ok());
    let efforts: &[_] = if others.is_some() {
        &[effort, shown]
    } else {
        &[effort]
    };
    let known = known.into_iter().flat_map(|workload| {
        let made = move |&effort| (Source::Made(workload.clone().into()), effort);
        efforts.iter().map(made)
    });
    let mut sources = known.chain(own).chain(again).chain(situations);
    let make = |(source, effort): &(Source, Effort<'static>)| {
        let workload = source.workload()?;
        let mode = bug.mode.unwrap_or(workload.mode);
        engine.empty(workload.len, mode);
        let workload = Workload {
            engine,
            mode,
            ..workload
        };
        Some((workload, *effort))
    };
    let mut at_once = 1;
    loop {
        // What leads to it is made by an engine that is right, and so is the empty image.
        (table.inject)(None);
        let some: Vec<_> = sources.by_ref().take(jobs.max(1) * at_once).collect();
        at_once = (2 * at_once).min(AT_ONCE);
        let is_all = some.is_empty();
        let some: Vec<_> = in_parallel(&some, jobs, make)
            .into_iter()
            .flatten()
            .collect();
        (table.inject)(Some(&bug.name));
        let tried = AtomicU32::new(0);
        let noticed = first_in_parallel(some.iter(), jobs, |(workload, effort), wanted| {
            tried.fetch_add(1, Relaxed);
            let until = Until::Wanted(wanted);
            let what = objection(workload, rules, Effort { until, ..*effort })?;
            Some((workload, effort, what))
        });
        fate.tried += tried.into_inner();
        if let Some((workload, effort, what)) = noticed {
            let name = format!(
                "{} {rules} {} {} {}",
                workload.name, workload.mode.name, bug.nests, effort.others
            );
            if objected.names.insert(name) {
                objected.tried.push((workload.clone(), rules, *effort));
            }
            fate.noticed = Some((workload.name.clone(), what));
            return fate;
        }
        if is_all {
            return fate;
        }
    }
}

/// Where a workload comes from. To make some of them, the engine is run.
enum Source {
    /// From a family: its name, and a place in an order that is all over it.
    Family(&'static str, u64),
    Made(Box<Workload>),
}

impl Source {
    /// `None`: the family has not so many.
    fn workload(&self) -> Option<Workload> {
        match self {
            Source::Family(name, n) => {
                let family = family(name)?;
                family.workload(family.number(*n, true)?).ok()
            }
            Source::Made(workload) => Some((**workload).clone()),
        }
    }
}

/// Workloads of the families that lead to a bug.
fn leads(bug: &Bug) -> impl Iterator<Item = Source> {
    let leads = bug.reached_by.iter();
    leads.flat_map(|&(name, count)| (0..count).map(move |n| Source::Family(name, n)))
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
        noticed: found.map(|(number, what)| (format!("halfway-{number}:{domain}"), what)),
        excuse: None,
    }
}

/// What a workload objects to in the engine as it is now.
fn objection(workload: &Workload, rules: Rules, effort: Effort<'_>) -> Option<String> {
    let explored = || explore(workload, rules, effort, None);
    match catch_unwind(AssertUnwindSafe(explored)) {
        Ok(Ok(_)) => None,
        Ok(Err(Wrong::Run(what) | Wrong::Quiescent(_, what))) => Some(what),
        Ok(Err(Wrong::State(_, objection))) => Some(objection.what),
        Err(_) => Some("the engine panicked".into()),
    }
}

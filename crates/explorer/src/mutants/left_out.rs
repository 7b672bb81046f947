//! Flushes, fences, barriers and orders that are left out, by changing a trace.

use super::table::{Excuse, Flushed, Ground};
use super::{EFFORT, Fates, Mutant, of};
use crate::engine::Engine;
use crate::explore::explore_run;
use crate::lives;
use crate::parallel::in_parallel;
use crate::run::Run;
use crate::trace::{Event, Thread};
use crate::tree::Flaw;
use crate::workload::Workload;
use pmem::{Domain, LINE};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};

/// Bytes of a word.
const WORD: u64 = 8;

/// Try the mutants of these workloads' traces that are `chosen`, each until it is noticed; `all`:
/// also those with an excuse. `watch` is told of each workload.
///
/// # Errors
/// A workload does not run.
pub fn leave_out(
    workloads: &[Workload],
    domain: Domain,
    jobs: usize,
    (all, chosen): (bool, &dyn Fn(&Mutant) -> bool),
    watch: &dyn Fn(&str, usize),
) -> Result<Fates, Flaw> {
    let mut fates = Fates::new();
    for workload in workloads {
        let rules = workload.engine.rules(domain);
        let run = Run::record(workload.clone(), rules, true)?;
        let places = Places::new(&run);
        let mut here = mutants(&places);
        if workload.mkfs.is_some() {
            // What they do is in the lives after it.
            here.extend(fates.keys().map(|(mutant, _)| mutant.clone()));
        }
        let engine = workload.engine;
        if !workload.next.is_empty() {
            // The first life has no recovery that undoes something.
            here.extend(of_later_lives(&run)?);
        }
        here.retain(chosen);
        for mutant in &here {
            let fate = fates.entry((mutant.clone(), rules)).or_default();
            fate.excuse = excuse(engine, mutant, domain);
        }
        let open = |m: &&Mutant| {
            let fate = &fates[&((*m).clone(), rules)];
            fate.noticed.is_none() && (all || fate.excuse.is_none())
        };
        let todo: Vec<&Mutant> = here.iter().filter(open).collect();
        watch(&workload.name, todo.len());
        let done = in_parallel(&todo, jobs, |mutant| {
            let events = mutate(&places, mutant);
            let objection = explore_run(&run, &events, EFFORT, None).err();
            // The same is left out of all lives.
            let later = |run: &Run| mutate(&Places::new(run), mutant);
            let lives = || lives::explore(&run, &events, EFFORT, None, Some(&later)).err();
            let objection = objection.or_else(|| lives().map(|(_, objection)| objection));
            objection.map(|o| o.what)
        });
        for (mutant, what) in todo.into_iter().zip(done) {
            let fate = fates.entry((mutant.clone(), rules)).or_default();
            fate.tried += 1;
            fate.noticed = what.map(|what| (workload.name.clone(), what));
        }
    }
    Ok(fates)
}

/// The mutants of the lives behind a run's kills.
fn of_later_lives(run: &Run) -> Result<BTreeSet<Mutant>, Flaw> {
    let all = RefCell::new(BTreeSet::new());
    let look = |run: &Run| {
        all.borrow_mut().extend(mutants(&Places::new(run)));
        run.events.clone()
    };
    let explored = lives::explore(run, &run.events, EFFORT, None, Some(&look));
    explored.map_err(|(_, objection)| objection.what)?;
    Ok(all.into_inner())
}

/// Why a mutant need not be noticed, if so.
fn excuse(engine: &dyn Engine, mutant: &Mutant, domain: Domain) -> Option<String> {
    let name = mutant.to_string();
    let is_of = |excuse: &&Excuse| name.starts_with(excuse.of) && excuse.domains.contains(&domain);
    let table = of(engine)?;
    let excuse = table.excuses.iter().find(is_of)?;
    Some(match excuse.ground {
        Ground::Assumptions(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(|n| format!("M{n}")).collect();
            format!("{}: {}", numbers.join(", "), excuse.why)
        }
        Ground::Tests(path) => format!("{}: {path} notices", excuse.why),
    })
}

/// The traces of a run's mutants: its own, with flushes cut into lines, and the place of each.
struct Places<'a> {
    run: &'a Run,
    /// Each event, and the place of one that flushes.
    events: Vec<(Event, String)>,
}

impl<'a> Places<'a> {
    fn new(run: &'a Run) -> Places<'a> {
        let inodes = run.steps.iter().flat_map(|step| {
            step.latest
                .objects
                .keys()
                .chain(step.durable.objects.keys())
        });
        let inodes: HashSet<u64> = inodes.map(|id| id.0).collect();
        let len = run.start.len();
        let table = of(run.workload.engine);
        let table = table.as_ref();
        let gathers = |site: u32| table.is_some_and(|t| (t.gathers)(&run.sites[site as usize]));
        // Lines that were last stored to in one piece, not word by word.
        let mut pieces: HashSet<u64> = HashSet::new();
        let mut events = Vec::new();
        for event in &run.events {
            match event {
                Event::Store { at, bytes, .. } => {
                    let lines = at / LINE..(at + bytes.len() as u64).div_ceil(LINE);
                    if bytes.len() as u64 > WORD {
                        pieces.extend(lines);
                    } else {
                        pieces.remove(&lines.start); // a word is in one line
                    }
                    events.push((event.clone(), String::new()));
                }
                &Event::Flush {
                    at,
                    len: bytes,
                    by,
                    site,
                } if gathers(site) => {
                    for line in at / LINE..(at + bytes).div_ceil(LINE) {
                        let flushed = Flushed {
                            line,
                            len,
                            in_one_piece: pieces.contains(&line),
                            is_inode: &|number| inodes.contains(&number),
                        };
                        let part = table.map_or("", |table| (table.part)(&flushed));
                        let place = format!("{} of {part}", run.sites[site as usize]);
                        let (at, len) = (line * LINE, LINE);
                        events.push((Event::Flush { at, len, by, site }, place));
                    }
                }
                Event::Flush { site, .. } => {
                    events.push((event.clone(), run.sites[*site as usize].clone()));
                }
                _ => events.push((event.clone(), String::new())),
            }
        }
        Places { run, events }
    }

    fn fence(&self, site: u32) -> &str {
        &self.run.sites[site as usize]
    }

    /// Whether a fence of one thread orders what another one has flushed: in domain `page` it does
    /// (M12), in the others it does not (M6).
    fn orders(&self, by: Thread, flushed: Thread) -> bool {
        by == flushed || self.run.rules.domain() == Some(Domain::Page)
    }
}

/// The mutants of a run: of its places, and of its pairs of places.
fn mutants(places: &Places<'_>) -> BTreeSet<Mutant> {
    let mut all = BTreeSet::new();
    let mut flushed: HashSet<(Thread, &str)> = HashSet::new();
    for (event, place) in &places.events {
        match event {
            Event::Flush { by, .. } => {
                flushed.insert((*by, place));
                all.insert(Mutant::Flush(place.clone()));
            }
            Event::Fence { site, by } => {
                let fence = places.fence(*site);
                all.insert(Mutant::Fence(fence.to_owned()));
                for (_, flush) in flushed.iter().filter(|(of, _)| places.orders(*by, *of)) {
                    all.insert(Mutant::Order((*flush).to_owned(), fence.to_owned()));
                }
                flushed.retain(|(of, _)| !places.orders(*by, *of));
            }
            Event::Barrier { site, .. } => {
                all.insert(Mutant::Barrier(places.fence(*site).to_owned()));
            }
            _ => {}
        }
    }
    all
}

/// The trace of a run with something left out.
fn mutate(places: &Places<'_>, mutant: &Mutant) -> Vec<Event> {
    let mut events = Vec::with_capacity(places.events.len());
    let mut late: Vec<(Thread, Event)> = Vec::new();
    for (event, place) in &places.events {
        match (event, mutant) {
            (Event::Flush { .. }, Mutant::Flush(name)) if place == name => {}
            (Event::Fence { site, .. }, Mutant::Fence(name)) if places.fence(*site) == name => {}
            (Event::Barrier { site, .. }, Mutant::Barrier(name)) if places.fence(*site) == name => {
            }
            (Event::Flush { by, .. }, Mutant::Order(flush, _)) if place == flush => {
                late.push((*by, event.clone()));
            }
            (Event::Fence { site, by }, Mutant::Order(_, fence)) => {
                let mut its = take(&mut late, |of| places.orders(*by, of));
                if places.fence(*site) == fence {
                    events.push(event.clone());
                    events.append(&mut its);
                } else {
                    events.append(&mut its);
                    events.push(event.clone());
                }
            }
            _ => events.push(event.clone()),
        }
    }
    events.extend(late.into_iter().map(|(_, event)| event));
    events
}

/// Take the events of some threads out.
fn take(late: &mut Vec<(Thread, Event)>, of: impl Fn(Thread) -> bool) -> Vec<Event> {
    let (its, others) = std::mem::take(late)
        .into_iter()
        .partition(|(thread, _)| of(*thread));
    *late = others;
    let its: Vec<(Thread, Event)> = its;
    its.into_iter().map(|(_, event)| event).collect()
}

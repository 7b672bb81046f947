//! The judges can fail: with a flush, a fence or an order of the engine left out, one at a time, or
//! with a bug injected into it, some workload must be objected to; or there is a reason why not.
//!
//! - `flush F`: no flush of this place happens. `fence G`: no fence of it.
//! - `order F -> G`: what place F flushed is not durable at the fence of place G, only at the next
//!   one. So what comes behind G may reach the medium before what F flushed.
//! - `bug B`: see [`soupfs::fault`].
//!
//! A place is named by the innermost functions of the engine there, the outermost last. The first
//! three are made by changing a trace; their places are those that the workloads come by.

use crate::engine::Mode;
use crate::explore::{Effort, Wrong, explore, explore_run};
use crate::families::{Family, by_name, family, script_number, single_number, singles};
use crate::halfway;
use crate::lives;
use crate::medium::Tears;
use crate::run::Run;
use crate::states::Sampling;
use crate::trace::{Event, Thread};
use crate::tree::Flaw;
use crate::workload::Workload;
use parking_lot::Mutex;
use pmem::{Domain, LINE};
use soupfs::fault::{Fault, fault};
use soupfs::layout::{Geometry, PAGE};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is left out, or put in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// All flushes of a place.
    Flush(String),
    /// All fences of a place.
    Fence(String),
    /// That what the first place flushed is durable behind the fence of the second.
    Order(String, String),
    /// A bug, by its name.
    Bug(String),
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutant::Flush(site) => write!(f, "flush {site}"),
            Mutant::Fence(site) => write!(f, "fence {site}"),
            Mutant::Order(flush, fence) => write!(f, "order {flush} -> {fence}"),
            Mutant::Bug(name) => write!(f, "bug {name}"),
        }
    }
}

/// Why nobody here need notice a mutant.
struct Excuse {
    /// What its name starts with.
    of: &'static str,
    /// What the reason stands on.
    ground: Ground,
    /// The reason.
    why: &'static str,
}

/// What an excuse stands on.
enum Ground {
    /// These assumptions of `docs/crash-model.md`, by number: the engine is right without it, in
    /// every life.
    Assumptions(&'static [u8]),
    /// The engine is wrong without it, in a life that is not explored here. These tests notice.
    Tests(&'static str),
}

const START: &str = "shows when the reclaimer of a second life has freed what a word of the last record is in, \
     it is used again, and no commit has flushed the head since";
const HEAD: &str = "shows when the next record is written over several old ones, of which the old head leads to \
     the first";
const UNMOUNTED: &str = "unmounting fences again before it marks the image clean, and a kill before that leaves \
     an image that is not";

/// What need not be noticed here.
const EXCUSES: [Excuse; 8] = [
    Excuse {
        of: "order format::put < format::format",
        ground: Ground::Assumptions(&[6, 16]),
        why: "the fence of the superblock's copy covers it before the superblock is stored; with the copy alone an \
              image is one that mkfs has not made, which is repaired or made again",
    },
    Excuse {
        of: "order mount::keep_superblocks",
        ground: Ground::Assumptions(&[6, 15]),
        why: "mounting fences again, for its epoch, before it returns; until then a power cut may leave what the \
              killed mkfs might have left",
    },
    Excuse {
        of: "flush area::flush_start < recovery::make_durable",
        ground: Ground::Tests("crates/pmem/tests/second_life.rs"),
        why: START,
    },
    Excuse {
        of: "order area::flush_start < recovery::make_durable",
        ground: Ground::Tests("crates/pmem/tests/second_life.rs"),
        why: START,
    },
    Excuse {
        of: "order journal::advance_head",
        ground: Ground::Tests("crates/pmem/tests/journal_crash.rs"),
        why: HEAD,
    },
    Excuse {
        of: "fence journal::move_head",
        ground: Ground::Tests("crates/pmem/tests/journal_crash.rs"),
        why: HEAD,
    },
    Excuse {
        of: "fence sweep::finish",
        ground: Ground::Assumptions(&[6, 15]),
        why: UNMOUNTED,
    },
    Excuse {
        of: "order flush::run < lane::clear_emptied < sweep::finish",
        ground: Ground::Assumptions(&[6, 15]),
        why: UNMOUNTED,
    },
];

/// Why a mutant need not be noticed, if so.
pub fn excuse(mutant: &Mutant) -> Option<String> {
    let name = mutant.to_string();
    let known = EXCUSES.iter().find(|excuse| name.starts_with(excuse.of));
    known.map(|excuse| match excuse.ground {
        Ground::Assumptions(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(|n| format!("M{n}")).collect();
            format!("{}: {}", numbers.join(", "), excuse.why)
        }
        Ground::Tests(path) => format!("{}: {path} notices", excuse.why),
    })
}

/// What became of a mutant.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    /// Workloads that it was tried with.
    pub tried: u32,
    /// The workload that noticed, and what its judge said.
    pub noticed: Option<(String, String)>,
}

/// What became of each.
pub type Fates = BTreeMap<Mutant, Fate>;

/// Cases of operations that meet half-way which a bug is tried with, at most.
const HALFWAY: usize = 2000;

/// Bytes of a word.
const WORD: u64 = 8;

/// Effort spent on a mutant in a workload.
const EFFORT: Effort = Effort {
    sampling: Sampling {
        exhaustive: 64,
        samples: 12,
        at_flush: 0,
        tears: Tears::Some,
        seed: 0,
    },
    used: 31,
    nested: u64::MAX,
    reclaimed: u64::MAX,
    lives: 6 * lives::OF_RUNS,
    depth: 1,
    until: None,
};

/// Workloads that between them come by all places of the engine, the cheap ones first.
pub fn workloads() -> Vec<Workload> {
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
        "churn-0".into(),
        "wrap-0".into(),
        "mkfs-1".into(),
        "mkfs-4".into(),
    ];
    let mut workloads = made(&names);
    // In mode `sync` every operation hands over to the next one's thread.
    workloads.extend(made(&[format!("threaded-{}", single_number(0, 1))]));
    if let Some(last) = workloads.last_mut() {
        last.mode = Mode::SYNC;
    }
    workloads
}

/// Families that lead to where a bug is, and how many of their workloads are tried before all
/// others.
fn reached_by(bug: Fault) -> &'static [(&'static str, u64)] {
    match bug {
        Fault::AnyAddition => &[("tangle-clash", 60)],
        Fault::SplitForgets => &[("script-tight", 60), ("ace2-tight", 200)],
        Fault::LongNameUnflushed
        | Fault::XattrsUnflushed
        | Fault::TargetUnflushed
        | Fault::AccessForgotten
        | Fault::StreamedUnflushed => &[("ace1x", 175)],
        Fault::FailedLinkCounts => &[("nospace1", 1092)],
        Fault::RepairUnmarked => &[("damaged", 264)],
        Fault::ZeroedUnmarked => &[("zeroed", 45)],
        Fault::FirstRegionAlone => &[("regions-reclaim", 20)],
        Fault::RegionTakenForFree => &[("regions", 60)],
        _ => &[],
    }
}

/// The first workloads of a family, in an order that is all over it.
fn first(name: &str, count: u64) -> Vec<Workload> {
    let of = |family: Family| {
        let numbers = (0..count).filter_map(|n| family.number(n, true));
        numbers.filter_map(|n| family.workload(n).ok()).collect()
    };
    family(name).map(of).unwrap_or_default()
}

/// Workloads for an injected bug: those of its own families, and those of the situations that the
/// rules are for.
fn workloads_for_bug(bug: Fault) -> Vec<Workload> {
    let own = reached_by(bug)
        .iter()
        .flat_map(|&(name, count)| first(name, count));
    own.chain(workloads_for_bugs()).collect()
}

/// Workloads for injected bugs: those of the situations that the rules are for.
fn workloads_for_bugs() -> Vec<Workload> {
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
        let inodes: HashSet<u64> = inodes.flat_map(|id| [id.0, id.0 + 1]).collect();
        let geometry = Geometry::for_len(run.start.len());
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
                &Event::Flush { at, len, by, site } if is_gathered(&run.sites[site as usize]) => {
                    for line in at / LINE..(at + len).div_ceil(LINE) {
                        let kind = match line {
                            _ if inodes.contains(&line) => "inodes",
                            _ if !geometry.holds_page(line * LINE / PAGE) => "maps",
                            _ if pieces.contains(&line) => "bytes",
                            _ => "words",
                        };
                        let (at, len) = (line * LINE, LINE);
                        let place = format!("{} of {kind}", run.sites[site as usize]);
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
}

/// Whether a batch flushes at this place what it stored at many. Then what is flushed is told
/// apart: inodes, the maps, other words (entries, tables, index nodes), bytes (data, long names,
/// attributes).
fn is_gathered(site: &str) -> bool {
    site.starts_with("flush::run < txn") || site.starts_with("helpers::")
}

/// The mutants of a run: of its places, and of its pairs of places. A fence orders the flushes of
/// its own thread.
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
                for (_, flush) in flushed.iter().filter(|(thread, _)| thread == by) {
                    all.insert(Mutant::Order((*flush).to_owned(), fence.to_owned()));
                }
                flushed.retain(|(thread, _)| thread != by);
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
            (Event::Flush { by, .. }, Mutant::Order(flush, _)) if place == flush => {
                late.push((*by, event.clone()));
            }
            (Event::Fence { site, by }, Mutant::Order(_, fence)) => {
                let mut its = take(&mut late, *by);
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

/// Take the events of a thread out.
fn take(late: &mut Vec<(Thread, Event)>, by: Thread) -> Vec<Event> {
    let (its, others) = std::mem::take(late)
        .into_iter()
        .partition(|(t, _)| *t == by);
    *late = others;
    let its: Vec<(Thread, Event)> = its;
    its.into_iter().map(|(_, event)| event).collect()
}

/// Try the mutants of these workloads' traces, each until it is noticed; `all`: also those with an
/// excuse. `watch` is told of each workload.
///
/// # Errors
/// A workload does not run.
pub fn leave_out(
    workloads: &[Workload],
    jobs: usize,
    all: bool,
    watch: &dyn Fn(&str, usize),
) -> Result<Fates, Flaw> {
    let mut fates = Fates::new();
    for workload in workloads {
        let run = Run::record(workload.clone(), Domain::Line, true)?;
        let places = Places::new(&run);
        let mut here = mutants(&places);
        if workload.mkfs.is_some() {
            here.extend(fates.keys().cloned()); // what they do is in the lives after it
        }
        here.iter().for_each(|mutant| {
            fates.entry(mutant.clone()).or_default();
        });
        let open = |m: &&Mutant| fates[*m].noticed.is_none() && (all || excuse(m).is_none());
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
            let fate = fates.entry(mutant.clone()).or_default();
            fate.tried += 1;
            fate.noticed = what.map(|what| (workload.name.clone(), what));
        }
    }
    Ok(fates)
}

/// Inject each bug in turn until a workload objects; nothing if this build has none.
pub fn put_in(jobs: usize, watch: &dyn Fn(&str, usize)) -> Fates {
    let mut fates = Fates::new();
    if !fault(None) {
        return fates;
    }
    for bug in Fault::ALL {
        let name = format!("{bug:?}");
        if halfway::MEETING.contains(&bug) {
            watch(&name, HALFWAY);
            fates.insert(Mutant::Bug(name), half_way(bug));
            continue;
        }
        let workloads = workloads_for_bug(bug);
        watch(&name, workloads.len());
        fault(Some(bug));
        let mut fate = Fate::default();
        for some in workloads.chunks(jobs.max(1) * 2) {
            let done = in_parallel(some, jobs, objection);
            fate.tried += some.len() as u32;
            fate.noticed = some
                .iter()
                .zip(done)
                .find_map(|(workload, what)| Some((workload.name.clone(), what?)));
            if fate.noticed.is_some() {
                break;
            }
        }
        fault(None);
        fates.insert(Mutant::Bug(name), fate);
    }
    fates
}

/// Inject a bug that shows only if operations meet half-way.
fn half_way(bug: Fault) -> Fate {
    let found = halfway::find(bug, HALFWAY);
    Fate {
        tried: HALFWAY as u32,
        noticed: found.map(|(number, what)| (format!("halfway-{number}"), what)),
    }
}

/// What a workload objects to in the engine as it is now.
fn objection(workload: &Workload) -> Option<String> {
    let explored = || explore(workload, Domain::Line, EFFORT, None);
    match catch_unwind(AssertUnwindSafe(explored)) {
        Ok(Ok(_)) => None,
        Ok(Err(Wrong::Run(what) | Wrong::Quiescent(_, what))) => Some(what),
        Ok(Err(Wrong::State(_, objection))) => Some(objection.what),
        Err(_) => Some("the engine panicked".into()),
    }
}

/// Do this with each, on so many threads.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = Mutex::new(0..items.len());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..jobs.max(1) {
            s.spawn(|| {
                while let Some(i) = { next.lock().next() } {
                    let result = work(&items[i]);
                    done.lock().push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Those that nobody noticed, and that have no excuse.
pub fn survivors(fates: &Fates) -> Vec<String> {
    let open =
        |(mutant, fate): &(&Mutant, &Fate)| fate.noticed.is_none() && excuse(mutant).is_none();
    let open = fates.iter().filter(open);
    open.map(|(mutant, _)| mutant.to_string()).collect()
}

/// The table of mutants as a document.
pub fn document(fates: &Fates) -> String {
    let noticed = fates.values().filter(|fate| fate.noticed.is_some()).count();
    let mut text = format!(
        "# Mutants\n\n\
        What the crash explorer's judges notice, made by `tureen explore --mutants docs/crash-mutants.md` from a build with \
        `--features faults`. One at a\ntime something is left out of the engine, or a bug is injected in it (what the \
        names mean is in `crates/explorer/src/mutants.rs`,\nthe bugs are in `crates/soupfs/src/fault.rs`); some workload must be \
        objected to. Domain `line`.\n\n\
        {} mutants, {noticed} noticed, {} excused, {} neither.\n\n\
        | Left out, or injected | Noticed by | What the judge said, or why nobody need notice |\n|---|---|---|\n",
        fates.len(),
        fates.len() - noticed - survivors(fates).len(),
        survivors(fates).len(),
    );
    for (mutant, fate) in fates {
        let (by, what) = match (&fate.noticed, excuse(mutant)) {
            (Some((workload, what)), _) => (format!("`{workload}`"), brief(what)),
            (None, Some(reason)) => ("-".into(), reason),
            (None, None) => (
                "**nobody**".into(),
                format!("{} workloads tried", fate.tried),
            ),
        };
        text += &format!("| {mutant} | {by} | {what} |\n");
    }
    text
}

/// The first line or two of an objection, in a cell of a table. Of an audit, what is no mere leak.
fn brief(what: &str) -> String {
    let allowed = ["audit:", "journal:", "leak:", "counter:", "summary:"];
    let lines = what.lines().map(str::trim);
    let worse = lines
        .clone()
        .find(|line| !allowed.iter().any(|a| line.starts_with(a)));
    let text = match worse {
        Some(line) if what.starts_with("audit:") => format!("audit: {line}"),
        _ => lines.take(2).collect::<Vec<_>>().join(" "),
    };
    let text: String = text.chars().take(110).collect();
    text.replace('|', "/").replace("<", "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A file of the repository.
    fn text(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(path)).expect("it is there")
    }

    #[test]
    fn an_excuse_names_assumptions_of_the_crash_model_or_tests_that_notice() {
        let model = text("docs/crash-model.md");
        for excuse in &EXCUSES {
            match excuse.ground {
                Ground::Assumptions(numbers) => {
                    assert!(!numbers.is_empty(), "{}", excuse.of);
                    for n in numbers {
                        assert!(
                            model.contains(&format!("- **M{n}. ")),
                            "M{n}: {}",
                            excuse.of
                        );
                    }
                }
                Ground::Tests(path) => assert!(text(path).contains("#[test]"), "{}", excuse.of),
            }
        }
    }
}

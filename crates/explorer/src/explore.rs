//! Exploring the crash states of one workload.

use crate::damaged;
use crate::effort::Effort;
use crate::examine::Examiner;
use crate::judge;
use crate::lives;
use crate::nested::{After, again};
use crate::rules::Rules;
use crate::run::Run;
use crate::scratch::Scratch;
use crate::states::{Crash, Explored, Explorer, Objection, Place};
use crate::trace::Event;
use crate::tree::Flaw;
use crate::workload::Workload;
use block::Random;
use pmem::Domain;

/// How deep crashes in the reclaimer are nested. It runs so rarely that this costs little at any
/// level.
const RECLAIM_DEPTH: u32 = 2;

/// Why an exploration ended.
#[derive(Debug)]
pub enum Wrong {
    /// The workload did not run as on the model.
    Run(Flaw),
    /// It left what it may not even without a crash.
    Quiescent(Box<Run>, Flaw),
    /// A crash state is not what it may be.
    State(Box<Run>, Box<Objection>),
}

impl Wrong {
    /// The run, if it came to its end.
    pub fn run(&self) -> Option<&Run> {
        match self {
            Wrong::Run(_) => None,
            Wrong::Quiescent(run, _) | Wrong::State(run, _) => Some(run),
        }
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.workload.name)
    }
}

/// Explore the crash states of a workload; `only`: this one.
///
/// # Errors
/// The first objection.
pub fn explore(
    workload: &Workload,
    rules: impl Into<Rules>,
    effort: Effort,
    only: Option<Place>,
) -> Result<Explored, Wrong> {
    let rules = rules.into();
    if workload.fails.is_some() && !rules.are(Domain::Page) {
        return Ok(Explored::inapplicable()); // only syncs fail, and only files have them
    }
    if workload.damage.is_some() {
        return damaged::explore(workload, rules, effort.sampling).map_err(Wrong::Run);
    }
    let run = Run::record(workload.clone(), rules, false).map_err(Wrong::Run)?;
    explore_all(run, effort, only)
}

/// Judge a run, and explore its crash states.
///
/// # Errors
/// The first objection.
pub fn explore_all(run: Run, effort: Effort, only: Option<Place>) -> Result<Explored, Wrong> {
    if let Err(flaw) = judge::quiescent(&run) {
        return Err(Wrong::Quiescent(Box::new(run), flaw));
    }
    if run.from >= run.steps.len() {
        return Ok(Explored::inapplicable()); // nothing failed in it
    }
    let mut explored = Explored::default();
    if only.is_none_or(|place| !place.killed) {
        match explore_run(&run, &run.events, effort, only) {
            Ok(more) => explored.add(more),
            Err(objection) => return Err(Wrong::State(Box::new(run), objection)),
        }
    }
    // A run with a failed sync ends with a medium that is unknown (M13), and a kept one may lack
    // its history.
    if only.is_none_or(|place| place.killed) && run.workload.fails.is_none() {
        let more = lives::explore(&run, &run.events, effort, only, None);
        explored.add(more.map_err(|(run, objection)| Wrong::State(run, objection))?);
    }
    Ok(explored)
}

/// Explore the states of a run, whose trace may have been tampered with.
///
/// # Errors
/// The first objection.
pub fn explore_run(
    run: &Run,
    events: &[Event],
    effort: Effort,
    only: Option<Place>,
) -> Result<Explored, Box<Objection>> {
    let mut random = Random::new(effort.sampling.seed ^ run.own_seed());
    let subject = run.subject();
    // Whoever replays a state does not know who objected to it.
    let others = run.workload.engine.others();
    let others = others.filter(|others| match only {
        Some(_) => others.is_there(),
        None => effort.others > 0,
    });
    let mut shown = 0;
    let mut examiner = Examiner::new(run);
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        let mut one_in = |n: u64| only.is_some() || random.below(n) == 0;
        let (used, nested, reclaimed) = (
            one_in(effort.used),
            one_in(effort.nested),
            one_in(effort.reclaimed),
        );
        let tree = examiner.examine(crash, scratch, used)?;
        if run.is_being_made(crash.moment) {
            return Ok(()); // there may be nothing to mount
        }
        if let Some(others) = others.filter(|_| one_in(effort.others.max(1))) {
            others.judge(&scratch.image(crash.overlay))?;
            shown += 1;
        }
        if nested {
            for after in [After::Recovery, After::Fsck] {
                let image = scratch.image(crash.overlay);
                again(subject, image, &tree, after, effort.depth)?;
            }
        }
        if reclaimed {
            let image = scratch.image(crash.overlay);
            again(subject, image, &tree, After::Reclaim, RECLAIM_DEPTH)?;
        }
        Ok(())
    };
    let explorer = Explorer {
        rules: run.rules,
        sampling: effort.sampling,
        only,
        from: run.from,
        until: effort.until,
        visit: &mut visit,
    };
    let explored = explorer.run(events, &mut run.subject().scratch(run.start.clone()))?;
    Ok(Explored {
        others: shown,
        ..explored
    })
}

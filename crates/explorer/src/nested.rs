//! Crashes in what follows a crash: in the recovery at mount, in the reclaimer, in fsck. Each runs
//! on the image that the first crash left, recorded; whatever a second crash leaves must have the
//! same tree. One of these images goes deeper: the same runs on it again, and is interrupted again.

use crate::engine::{Engine, Subject};
use crate::examine::same;
use crate::image::Image;
use crate::known;
use crate::medium::Tears;
use crate::parallel::Until;
use crate::scratch::{Device, Scratch};
use crate::states::{Crash, Explorer, Sampling};
use crate::trace::Event;
use crate::tree::{Flaw, Tree};
use pmem::Domain;
use std::fmt;

/// What runs after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Mounting.
    Recovery,
    /// Mounting, and the background search for leaks to its end.
    Reclaim,
    /// fsck, with repairs.
    Fsck,
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            After::Recovery => "recovery",
            After::Reclaim => "the reclaimer",
            After::Fsck => "fsck",
        })
    }
}

/// States of a nested crash: few, as there are many crashes.
const SAMPLING: Sampling = Sampling {
    exhaustive: 16,
    samples: 8,
    at_flush: 0,
    tears: Tears::Some,
    seed: 0,
};

/// Crash again, `depth` times, in what follows a crash that left this image with this tree.
///
/// # Errors
/// What is wrong.
pub fn again(
    subject: Subject,
    image: Image,
    tree: &Tree,
    after: After,
    depth: u32,
) -> Result<(), Flaw> {
    let trace = subject.trace(false);
    let device = subject.recorded(&image, &trace);
    to_the_end(after, subject.engine, &device, tree)?;
    let (events, _) = trace.take();
    let mut scratch = subject.scratch(image.clone());
    scratch.apply(&events);
    let holds = device.holds(&scratch.image(&Vec::new()));
    holds.map_err(|_| format!("the trace of {after} lacks a store"))?;
    drop(device);
    let interrupted = |e| format!("{after} interrupted: {e}");
    match interrupt(subject, &events, image, tree).map_err(interrupted)? {
        Some(image) if depth > 1 => {
            again(subject, image, tree, after, depth - 1).map_err(interrupted)
        }
        _ => Ok(()),
    }
}

/// Crash in what this is the trace of. One of the images that are left, if lines are ahead of
/// others in any.
fn interrupt(
    subject: Subject,
    events: &[Event],
    image: Image,
    tree: &Tree,
) -> Result<Option<Image>, Flaw> {
    let engine = subject.engine;
    let in_order = subject.rules.domain() == Some(Domain::Cache);
    let mut deeper = None;
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        same(&*known::sound(engine, scratch, crash.overlay)?, tree)?;
        // The last state in which lines are ahead of others goes deeper; where none ever are, one
        // half-way.
        let halfway = in_order && crash.events <= events.len() / 2;
        if !crash.overlay.is_empty() || halfway {
            deeper = Some(scratch.image(crash.overlay));
        }
        Ok(())
    };
    let explorer = Explorer {
        rules: subject.rules,
        sampling: SAMPLING,
        only: None,
        from: 0,
        until: Until::Done,
        visit: &mut visit,
    };
    let explored = explorer.run(events, &mut subject.scratch(image));
    explored.map_err(|o| format!("p{}.s{}: {}", o.place.point, o.place.state, o.what))?;
    Ok(deeper)
}

/// Let it run to its end, and judge that.
///
/// # Errors
/// What is wrong.
pub fn to_the_end(
    after: After,
    engine: &dyn Engine,
    device: &Device,
    tree: &Tree,
) -> Result<(), Flaw> {
    let flawless = || {
        let left = engine.flawless(device).map(drop);
        left.map_err(|e| format!("after {after}: {e}"))
    };
    match after {
        After::Recovery => same(&engine.found(device)?, tree),
        After::Reclaim => {
            let seen = engine.reclaim(device)?;
            same(&seen, tree).map_err(|e| format!("while reclaiming: {e}"))?;
            flawless()
        }
        After::Fsck => {
            engine.repair(device)?;
            flawless()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::by_name;
    use crate::rules::Rules;
    use crate::run::Run;

    #[test]
    fn crashes_in_recovery_reclaim_and_fsck_are_explored_three_deep() {
        for (name, seed) in [("pair-12", 1), ("churn-0", 2), ("script-5", 3)] {
            let workload = by_name(name).expect("a workload of this name");
            let run = Run::record(workload, Domain::Line, false).expect("it runs");
            let image = run.some_image(seed);
            let subject = run.subject();
            let tree = subject
                .engine
                .found(&subject.device(&image))
                .expect("it mounts");
            for after in [After::Recovery, After::Reclaim, After::Fsck] {
                for domain in [Domain::Line, Domain::Cache, Domain::Page] {
                    let rules = Rules::Lines(domain);
                    let subject = Subject { rules, ..subject };
                    let crashed = again(subject, image.clone(), &tree, after, 3);
                    assert_eq!(crashed, Ok(()), "{name} {domain}");
                }
            }
        }
    }

    #[test]
    fn a_tree_that_changes_in_the_second_life_is_noticed() {
        let workload = by_name("single-6").expect("a workload of this name");
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        let image = run.some_image(1);
        let subject = run.subject();
        let mut tree = subject
            .engine
            .found(&subject.device(&image))
            .expect("it mounts");
        for object in tree.objects.values_mut() {
            object.perm ^= 1;
        }
        for after in [After::Recovery, After::Reclaim, After::Fsck] {
            let crashed = again(subject, image.clone(), &tree, after, 1);
            assert!(crashed.is_err(), "{after}");
        }
    }
}

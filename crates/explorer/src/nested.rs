//! Crashes in what follows a crash: in the recovery at mount, in the reclaimer, in fsck. Each runs
//! on the image that the first crash left, recorded; whatever a second crash leaves must have the
//! same tree. One of these images goes deeper: the same runs on it again, and is interrupted again.

use crate::examine::{clean, fsck, later, same, sound};
use crate::run::{mount, recovered};
use crate::scratch::{Scratch, pool_of};
use crate::states::{Crash, Explorer, Sampling};
use crate::trace::{Event, Trace};
use crate::tree::{Flaw, Tree};
use pmem::{Domain, Pool};
use soupfs::fsck::Outcome;
use soupfs::{Mode, MountOptions, SoupFs};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::SystemClock;

/// The reclaimer of so small an image ends within this.
const PATIENCE: Duration = Duration::from_secs(60);

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
    seed: 0,
};

/// Crash again, `depth` times, in what follows a crash that left this image with this tree.
///
/// # Errors
/// What is wrong.
pub fn again(
    image: Vec<u8>,
    tree: &Tree,
    domain: Domain,
    after: After,
    depth: u32,
) -> Result<(), Flaw> {
    let trace = Trace::new(false);
    let pool = pool_of(&image, domain, Some(trace.clone()));
    to_the_end(after, &pool, tree)?;
    let (events, _) = trace.take();
    let mut scratch = Scratch::new(image.clone());
    scratch.apply(&events);
    if scratch.image(&Vec::new()) != pool.snapshot() {
        return Err(format!("the trace of {after} lacks a store"));
    }
    drop(pool);
    explore(&events, image, tree, domain, after, depth)
        .map_err(|e| format!("{after} interrupted: {e}"))
}

fn explore(
    events: &[Event],
    image: Vec<u8>,
    tree: &Tree,
    domain: Domain,
    after: After,
    depth: u32,
) -> Result<(), Flaw> {
    let mut deeper = None;
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        scratch.with(crash.overlay, |pool| {
            sound(pool)?;
            same(&recovered(pool)?, tree)
        })?;
        // The last state in which lines are ahead of others goes deeper; where none ever are, one
        // half-way.
        let halfway = domain == Domain::Cache && crash.events <= events.len() / 2;
        if !crash.overlay.is_empty() || halfway {
            deeper = Some(scratch.image(crash.overlay));
        }
        Ok(())
    };
    let explorer = Explorer {
        domain,
        sampling: SAMPLING,
        only: None,
        from: 0,
        until: None,
        visit: &mut visit,
    };
    let explored = explorer.run(events, &mut Scratch::new(image));
    explored.map_err(|o| format!("p{}.s{}: {}", o.place.point, o.place.state, o.what))?;
    match deeper {
        Some(image) if depth > 1 => again(image, tree, domain, after, depth - 1),
        _ => Ok(()),
    }
}

/// Let it run to its end, and judge that.
///
/// # Errors
/// What is wrong.
pub fn to_the_end(after: After, pool: &Arc<Pool>, tree: &Tree) -> Result<(), Flaw> {
    match after {
        After::Recovery => {
            let fs = mount(pool.clone(), Mode::Delayed, 1, later())?;
            same(&Tree::of(&fs, &[])?, tree)
        }
        After::Reclaim => reclaim(pool, tree),
        After::Fsck => {
            let report = fsck(pool, true)?;
            if report.outcome == Outcome::ErrorsLeft {
                return Err(format!("fsck gives up:\n{report}"));
            }
            clean(pool)
                .map(drop)
                .map_err(|e| format!("after fsck: {e}"))
        }
    }
}

/// The background reclaimer finds all that was lost track of, and free space is exact afterwards.
fn reclaim(pool: &Arc<Pool>, tree: &Tree) -> Result<(), Flaw> {
    let options = MountOptions {
        bound: Duration::from_millis(1),
        ..MountOptions::new(Arc::new(SystemClock))
    };
    let fs = SoupFs::mount(pool.clone(), options).map_err(|e| e.to_string())?;
    let start = Instant::now();
    while fs.status().reclaimed_lines.is_none() {
        if start.elapsed() > PATIENCE {
            return Err("the reclaimer does not come to an end".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    same(&Tree::of(&fs, &[])?, tree).map_err(|e| format!("while reclaiming: {e}"))?;
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    clean(pool)
        .map(drop)
        .map_err(|e| format!("after the reclaimer: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::some_image;
    use crate::families::by_name;
    use crate::run::Run;

    #[test]
    fn crashes_in_recovery_reclaim_and_fsck_are_explored_three_deep() {
        for (name, seed) in [("pair-12", 1), ("churn-0", 2), ("script-5", 3)] {
            let workload = by_name(name).expect("a workload of this name");
            let run = Run::record(workload, Domain::Line, false).expect("it runs");
            let image = some_image(&run, seed);
            let tree = recovered(&pool_of(&image, Domain::Cache, None)).expect("it mounts");
            for after in [After::Recovery, After::Reclaim, After::Fsck] {
                for domain in [Domain::Line, Domain::Cache, Domain::Page] {
                    let crashed = again(image.clone(), &tree, domain, after, 3);
                    assert_eq!(crashed, Ok(()), "{name} {domain}");
                }
            }
        }
    }

    #[test]
    fn a_tree_that_changes_in_the_second_life_is_noticed() {
        let workload = by_name("single-6").expect("a workload of this name");
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        let image = some_image(&run, 1);
        let mut tree = recovered(&pool_of(&image, Domain::Cache, None)).expect("it mounts");
        for object in tree.objects.values_mut() {
            object.perm ^= 1;
        }
        for after in [After::Recovery, After::Reclaim, After::Fsck] {
            let crashed = again(image.clone(), &tree, Domain::Line, after, 1);
            assert!(crashed.is_err(), "{after}");
        }
    }
}

//! Exploring the crash states of workloads, and the account of what is wrong.

use crate::judge;
use crate::media::{Crash, Event, Explored, Explorer, Scratch, Trace};
use crate::op::{Op, Side};
use crate::random::Random;
use crate::run::{Run, Workload, mount, recovered};
use crate::tree::{Flaw, Tree};
use pmem::{Domain, Options, Pool};
use soupfs::audit::Class;
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::{Mode, MountOptions, SoupFs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{Kind, ManualClock, SystemClock, Time};

/// How thorough an exploration is.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// States tried at a point that has too many to try all.
    pub samples: usize,
    /// One in so many states is also repaired and used.
    pub used: u64,
    /// One in so many is crashed again while it recovers.
    pub nested: u64,
    /// One in so many is reclaimed in the background.
    pub reclaimed: u64,
}

impl Effort {
    /// Of a normal test run.
    pub const NORMAL: Effort = Effort {
        samples: 20,
        used: 61,
        nested: 211,
        reclaimed: 1999,
    };
}

/// Explore the crash states of a workload. The error is a full account that ends in a token.
pub fn explore(
    workload: &Workload,
    domain: Domain,
    effort: Effort,
    only: Option<(usize, usize)>,
) -> Result<Explored, String> {
    let token = format!("{}:{domain}", workload.name);
    let run =
        Run::record(workload.clone(), domain, false).map_err(|e| format!("{token}\n  {e}"))?;
    judge::quiescent(&run).map_err(|e| format!("{token}\n  {e}"))?;
    explore_run(&run, &run.events, effort, only)
        .map_err(|e| format!("{token}:{e}\n{}", run.account()))
}

/// Explore the states of a run, whose trace may have been tampered with.
pub fn explore_run(
    run: &Run,
    events: &[Event],
    effort: Effort,
    only: Option<(usize, usize)>,
) -> Result<Explored, String> {
    let mut scratch = Scratch::new(run.start.clone());
    let mut random = Random::new(1);
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        let one_in = |random: &mut Random, n: u64| only.is_some() || random.below(n) == 0;
        let used = one_in(&mut random, effort.used);
        scratch.with(crash.overlay, |pool| marked(run, crash, pool))?;
        scratch.with(crash.overlay, |pool| examine(run, crash, pool, used))?;
        if one_in(&mut random, effort.nested) {
            nested(run, crash, scratch.image(crash.overlay))?;
        }
        if one_in(&mut random, effort.reclaimed) {
            reclaim(run, crash, scratch.image(crash.overlay))?;
        }
        Ok(())
    };
    Explorer {
        domain: run.domain,
        samples: effort.samples,
        only,
        seed: 0,
        visit: &mut visit,
    }
    .run(events, &mut scratch)
}

/// What was unmounted cleanly is marked so.
fn marked(run: &Run, crash: &Crash<'_>, pool: &Arc<Pool>) -> Result<(), Flaw> {
    let unmounted = crash.moment.ended && crash.moment.step + 1 == run.steps.len();
    if unmounted && run.clean && !soupfs::inspect(pool).is_ok_and(|image| image.clean) {
        return Err("unmounted, and not clean".into());
    }
    Ok(())
}

fn examine(run: &Run, crash: &Crash<'_>, pool: &Arc<Pool>, used: bool) -> Result<(), Flaw> {
    sound(pool)?;
    let tree = recovered(pool)?;
    judge::crashed(run, crash.moment, &tree)?;
    if used {
        sound(pool).map_err(|e| format!("once mounted: {e}"))?;
        repair(pool, &tree)?;
        use_up(pool)?;
    }
    Ok(())
}

/// The auditor finds nothing but what a crash may leave.
fn sound(pool: &Arc<Pool>) -> Result<(), Flaw> {
    let report = check(
        pool,
        &CheckOptions {
            repair: false,
            threads: 1,
        },
        &|_| (),
    )
    .map_err(|e| e.to_string())?;
    let bad = report
        .left
        .iter()
        .any(|f| f.problem.class() == Class::Violation || report.was_clean);
    if bad || report.more > 0 {
        Err(format!("audit:\n{report}"))
    } else {
        Ok(())
    }
}

/// An image without any flaw, not even a leak.
fn clean(pool: &Arc<Pool>) -> Result<soupfs::audit::Totals, Flaw> {
    let report = check(
        pool,
        &CheckOptions {
            repair: false,
            threads: 1,
        },
        &|_| (),
    )
    .map_err(|e| e.to_string())?;
    if report.outcome != Outcome::Clean || !report.was_clean {
        return Err(format!("it is not clean:\n{report}"));
    }
    Ok(report.totals)
}

/// fsck leaves no leaks, exact counts, and the tree as it is.
fn repair(pool: &Arc<Pool>, tree: &Tree) -> Result<(), Flaw> {
    let report = check(
        pool,
        &CheckOptions {
            repair: true,
            threads: 1,
        },
        &|_| (),
    )
    .map_err(|e| e.to_string())?;
    if report.outcome == Outcome::ErrorsLeft {
        return Err(format!("fsck gives up:\n{report}"));
    }
    clean(pool).map_err(|e| format!("after fsck: {e}"))?;
    let now = recovered(pool)?;
    match now.difference(tree) {
        None if now.contents == tree.contents => Ok(()),
        difference => Err(format!("fsck changed the tree: {difference:?}")),
    }
}

/// Something can be made in every directory, everything can be removed, and all space is free then.
fn use_up(pool: &Arc<Pool>) -> Result<(), Flaw> {
    let mut side = Side::new(mount(
        pool.clone(),
        Mode::Delayed,
        Arc::new(ManualClock::new(Time(1 << 60))),
    )?);
    let tree = Tree::of(&side.fs, &[])?;
    let mut paths = vec![String::new()];
    let mut all = vec![];
    let mut at = vec![(tree.root, String::new())];
    while let Some((dir, path)) = at.pop() {
        for (name, child) in &tree.objects[&dir].names {
            let Ok(name) = std::str::from_utf8(name) else {
                return Err("a name that nobody gave".into());
            };
            let path = if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}/{name}")
            };
            let is_dir = tree.objects[child].kind == Kind::Dir;
            all.push((path.clone(), is_dir));
            if is_dir {
                paths.push(path.clone());
                at.push((*child, path));
            }
        }
    }
    let mut run = |op: Op| side.run(&op).map_err(|e| format!("using it, {op}: {e}"));
    for dir in &paths {
        let path = if dir.is_empty() {
            "fresh".to_owned()
        } else {
            format!("{dir}/fresh")
        };
        run(Op::Create(path.clone()))?;
        run(Op::Write {
            path: path.clone(),
            at: None,
            len: 5000,
            fill: 0xaa,
        })?;
        all.push((path, false));
    }
    run(Op::Syncfs)?;
    // What is deepest goes first.
    all.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
    for (path, is_dir) in all {
        run(if is_dir {
            Op::Rmdir(path)
        } else {
            Op::Unlink(path)
        })?;
    }
    run(Op::Syncfs)?;
    side.fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    drop(side);
    let totals = clean(pool).map_err(|e| format!("after using it: {e}"))?;
    if (totals.inodes, totals.names) != (1, 0) {
        return Err(format!("after everything was removed there are {totals:?}"));
    }
    Ok(())
}

/// Crash again, during the recovery.
fn nested(run: &Run, crash: &Crash<'_>, image: Vec<u8>) -> Result<(), Flaw> {
    let trace = Trace::new(false);
    let options = Options {
        domain: Some(run.domain),
        recorder: Some(trace.clone()),
        ..Options::default()
    };
    let pool = Arc::new(Pool::from_bytes(&image, &options).expect("anonymous memory"));
    let fs = mount(
        pool,
        Mode::Delayed,
        Arc::new(ManualClock::new(Time(1 << 60))),
    )?;
    let (events, _) = trace.take();
    drop(fs);
    let mut scratch = Scratch::new(image);
    let mut visit = |again: &Crash<'_>, scratch: &mut Scratch| {
        scratch
            .with(again.overlay, |pool| examine(run, crash, pool, false))
            .map_err(|e| format!("recovery interrupted: {e}"))
    };
    Explorer {
        domain: run.domain,
        samples: 8,
        only: None,
        seed: 0,
        visit: &mut visit,
    }
    .run(&events, &mut scratch)?;
    Ok(())
}

/// The background reclaimer finds all that was lost track of.
fn reclaim(run: &Run, crash: &Crash<'_>, image: Vec<u8>) -> Result<(), Flaw> {
    let options = Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    };
    let pool = Arc::new(Pool::from_bytes(&image, &options).expect("anonymous memory"));
    let bound = Duration::from_millis(1);
    let fs = SoupFs::mount(
        pool.clone(),
        MountOptions {
            bound,
            ..MountOptions::new(Arc::new(SystemClock))
        },
    )
    .map_err(|e| e.to_string())?;
    let start = Instant::now();
    while fs.status().reclaimed_lines.is_none() {
        if start.elapsed() > Duration::from_secs(20) {
            return Err("the reclaimer does not come to an end".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    judge::crashed(run, crash.moment, &Tree::of(&fs, &[])?)?;
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    clean(&pool)
        .map(drop)
        .map_err(|e| format!("after the reclaimer: {e}"))
}

/// The image that one of the crashes of a run leaves, for a second life.
pub fn some_image(run: &Run, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut scratch = Scratch::new(run.start.clone());
    let mut picked = run.start.clone();
    let mut seen = 0;
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        seen += 1;
        if random.below(seen) == 0 {
            picked = scratch.image(crash.overlay);
        }
        Ok(())
    };
    let visited = Explorer {
        domain: run.domain,
        samples: 2,
        only: None,
        seed: 0,
        visit: &mut visit,
    }
    .run(&run.events, &mut scratch);
    visited.map_or_else(|_| run.start.clone(), |_| picked)
}

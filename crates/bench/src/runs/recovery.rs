//! After a kill: checking a million files, and finding lost space while the file system is in use.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use soupfs::fsck::{CheckOptions, Outcome, Report, check};

use super::child::{Task, Tree, churn};
use crate::plan::Plan;
use crate::report::{Found, Run, Table};
use crate::series::Series;
use crate::target::Result;
use crate::target::{Engine, Setup};

const TREE: Tree = Tree {
    dirs: 1_000,
    files: 1_000,
    data_every: 10,
};
const ROUNDS_MAX: usize = 5;
/// Longer than this nobody would wait for the space.
const RECLAIM_MAX: Duration = Duration::from_secs(600);

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let tree = Tree {
        dirs: plan.scaled(TREE.dirs),
        ..TREE
    };
    let setup = Setup {
        len: 2 << 30,
        ..plan.setup()
    };
    let temp = plan.temp()?;
    let image = temp.path().join("image");
    let engine = setup.mount("SoupFS", setup.create(&image)?)?;
    tree.build(&engine)?;
    engine.unmount()?;
    let rounds = plan.rounds.min(ROUNDS_MAX);
    let tables = vec![
        checks(&setup, &image, rounds)?,
        reclaims(plan, &setup, &image, rounds)?,
    ];
    let mut run = Run::new(
        "recovery",
        format!(
            "{} files in {} directories, one in ten with a block of contents",
            tree.count(),
            tree.dirs
        ),
    );
    run.tables = tables;
    run.notes = vec![
            "reclaim: a process that makes and removes files is killed; the image is mounted at once, another \
             workload of that kind runs; the time is from the mount until all lost space has been found"
                .into(),
            "free space exact: after an unmount an offline check counts what is free by walking all names, and \
             agrees with the counters to the line"
                .into(),
        ];
    Ok((run, Vec::new()))
}

fn checks(setup: &Setup, image: &Path, rounds: usize) -> Result<Table> {
    let mut table = Table::new(
        "Offline check, nothing to repair",
        &["threads", "s", "inodes"],
    );
    for threads in [1, 2] {
        let (mut time, mut inodes) = (Series::default(), 0);
        for _ in 0..rounds {
            let start = Instant::now();
            let report = audit(setup, image, threads)?;
            time.push(start.elapsed().as_secs_f64());
            inodes = report.totals.inodes;
        }
        table.row([(threads as u64).into(), time.into(), inodes.into()]);
    }
    Ok(table)
}

/// A check without repair; an error if it finds anything.
fn audit(setup: &Setup, image: &Path, threads: usize) -> Result<Report> {
    let options = CheckOptions {
        repair: false,
        threads,
    };
    let report = check(&setup.open(image)?, &options, &|_| ())?;
    if (report.outcome, report.was_clean) != (Outcome::Clean, true) {
        return Err(format!("the image is not clean: {report}").into());
    }
    Ok(report)
}

/// What one kill and mount gave.
struct Reclaim {
    mount: Duration,
    search: Duration,
    lines: u64,
    /// Operations of the workload per second: during the search, and afterwards.
    during: f64,
    after: f64,
}

fn reclaims(plan: &Plan, setup: &Setup, image: &Path, rounds: usize) -> Result<Table> {
    let columns = [
        "round",
        "mount ms",
        "all found after ms",
        "MiB found",
        "workload meanwhile, 1000/s",
        "afterwards, 1000/s",
        "free space exact",
    ];
    let mut table = Table::new("Background reclaim after kill -9", &columns);
    for round in 1..=rounds as u64 {
        let task = Task::Churn {
            image: image.to_owned(),
        };
        let (process, _) = task.start(plan)?;
        drop(process);
        let found = reclaim(setup, image)?;
        audit(setup, image, 0)?;
        table.row([
            round.into(),
            (found.mount.as_secs_f64() * 1000.0).into(),
            (found.search.as_secs_f64() * 1000.0).into(),
            (found.lines as f64 * 64.0 / f64::from(1 << 20)).into(),
            (found.during / 1000.0).into(),
            (found.after / 1000.0).into(),
            "yes".into(),
        ]);
    }
    Ok(table)
}

fn reclaim(setup: &Setup, image: &Path) -> Result<Reclaim> {
    let pool = setup.open(image)?;
    let start = Instant::now();
    let engine = setup.mount("SoupFS", pool)?;
    let mount = start.elapsed();
    let (stop, ops) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = || {
        ops.fetch_add(1, Relaxed);
        stop.load(Relaxed)
    };
    let found = std::thread::scope(|scope| {
        let workload = scope.spawn(|| churn(&engine, || (), ask));
        let watched = watch(&engine, start, &ops);
        stop.store(true, Relaxed);
        workload.join().map_err(|_| "the workload panicked")??;
        watched
    });
    let (search, lines, during, after) = found?;
    engine.unmount()?;
    Ok(Reclaim {
        mount,
        search,
        lines,
        during,
        after,
    })
}

/// Waits until the space is found: after how long, lines found, operations per second meanwhile and
/// in as long a time afterwards.
fn watch(engine: &Engine, start: Instant, ops: &AtomicU64) -> Result<(Duration, u64, f64, f64)> {
    let lines = loop {
        if let Some(lines) = engine.status().reclaimed_lines {
            break lines;
        }
        if start.elapsed() > RECLAIM_MAX {
            return Err("the search for lost space does not end".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let (search, during) = (start.elapsed(), ops.load(Relaxed));
    let pause = search.max(Duration::from_millis(500));
    let begin = Instant::now();
    std::thread::sleep(pause);
    let after = (ops.load(Relaxed) - during) as f64 / begin.elapsed().as_secs_f64();
    Ok((search, lines, during as f64 / search.as_secs_f64(), after))
}

//! After a kill: checking a million files, and finding lost space while the file system is in use.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pmem::Journal;
use soupfs::fsck::{CheckOptions, Outcome, Report, check};
use soupfs::layout::{Geometry, page_at};

use crate::child::Task;
use crate::plan::Plan;
use crate::report::{Found, Run, Table};
use crate::runs::disk;
use crate::runs::scale::mount_once;
use crate::series::Series;
use crate::target::{Engine, Result, Setup};
use crate::workloads::tree::{Tree, churn};

const TREE: Tree = Tree {
    dirs: 1_000,
    files: 1_000,
    data_every: 10,
};
/// What a killed process leaves behind is searched among fewer, so that all of it takes less than a
/// minute.
const SEARCHED: Tree = Tree { dirs: 100, ..TREE };
const ROUNDS_MAX: usize = 5;
const SEARCHES_MAX: usize = 2;
/// After this the workload is stopped, and the search goes on without it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The workload is watched as long after the search as it took, within these.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longer than this nobody would wait for the space.
const RECLAIM_MAX: Duration = Duration::from_secs(600);

/// What goes on during a search: its name, whether there is a workload, and what each flushed line
/// takes more, so that a single caller makes more than the persister can take: ns.
const CASES: [(&str, bool, u32); 3] = [
    ("none", false, 0),
    ("one thread", true, 0),
    ("one thread, the persister saturated", true, 800),
];

/// Lengths of images on a disk: their journals have 8 and 64 MiB.
const ON_DISK: [u64; 2] = [1 << 30, 8 << 30];

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
    let rounds = plan.rounds.min(ROUNDS_MAX);
    let temp = plan.temp()?;
    let image = temp.path().join("image");
    build(&setup, &image, tree)?;
    let checked = checks(&setup, &image, rounds)?;
    std::fs::remove_file(&image)?;
    let searched = Tree {
        dirs: plan.scaled(SEARCHED.dirs),
        ..SEARCHED
    };
    build(&setup, &image, searched)?;
    let tables = vec![checked, reclaims(plan, &setup, &image)?, mounts(plan)?];
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
        format!(
            "reclaim: in an image with {} files a process that makes and removes files, and has a \
             thousand open \
             without a name, is killed; the image is mounted at once and the workload of that row \
             runs; the time is \
             from the mount until all lost space has been found",
            searched.count()
        ),
        format!(
            "saturated: each flushed line takes {} ns more; where the search is not done in {} s, \
             the workload is \
             stopped then, and the time is that until the search has ended without it",
            CASES[2].2,
            PATIENCE.as_secs()
        ),
        format!(
            "on a disk: a process that makes and removes files goes on for {} s and is killed; \
             replay: what its live records change, as a reader of the ring finds it beforehand, \
             which is nothing if the kill comes behind a checkpoint; the engine's cache is empty \
             and requests go past the host's, so all that the mount reads comes from the disk",
            plan.window.as_secs_f64()
        ),
        "free space exact: after an unmount an offline check counts what is free by walking all \
         names, and \
         agrees with the counters to the line"
            .into(),
    ];
    Ok((run, Vec::new()))
}

fn build(setup: &Setup, image: &Path, tree: Tree) -> Result<()> {
    let engine = setup.mount("SoupFS", setup.create(image)?)?;
    tree.build(&engine)?;
    engine.unmount().map(drop)
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
    /// It ended while the workload still ran.
    meanwhile: bool,
    lines: u64,
    /// Operations of the workload per second: during the search, and afterwards.
    during: f64,
    after: f64,
    /// The longest of them during the search, and afterwards.
    longest: [Duration; 2],
    /// The largest backlog that was seen during the search: a part of its limit.
    backlog: f64,
}

fn reclaims(plan: &Plan, setup: &Setup, image: &Path) -> Result<Table> {
    let columns = [
        "workload meanwhile",
        "round",
        "mount ms",
        "all found after ms",
        "with the workload",
        "MiB found",
        "backlog, % of its limit",
        "meanwhile, 1000/s",
        "afterwards, 1000/s",
        "longest meanwhile, ms",
        "longest afterwards, ms",
        "free space exact",
    ];
    let mut table = Table::new("Background reclaim after kill -9", &columns);
    let rounds = plan.rounds.min(SEARCHES_MAX);
    for (i, (name, busy, flush_ns)) in CASES.into_iter().enumerate() {
        for round in 1..=rounds {
            plan.progress
                .step(name, i * rounds + round, CASES.len() * rounds);
            let task = Task::Churn {
                image: image.to_owned(),
                on_disk: false,
            };
            let (process, _) = task.start(plan)?;
            drop(process);
            let mut slow = setup.clone();
            slow.latency.flush_ns += flush_ns;
            let found = reclaim(&slow, image, busy)?;
            audit(setup, image, 0)?;
            table.row([
                name.into(),
                (round as u64).into(),
                (found.mount.as_secs_f64() * 1000.0).into(),
                (found.search.as_secs_f64() * 1000.0).into(),
                match (busy, found.meanwhile) {
                    (false, _) => "".into(),
                    (true, true) => "yes".into(),
                    (true, false) => "no".into(),
                },
                (found.lines as f64 * 64.0 / f64::from(1 << 20)).into(),
                (100.0 * found.backlog).into(),
                (found.during / 1000.0).into(),
                (found.after / 1000.0).into(),
                (found.longest[0].as_secs_f64() * 1000.0).into(),
                (found.longest[1].as_secs_f64() * 1000.0).into(),
                "yes".into(),
            ]);
        }
    }
    Ok(table)
}

/// How soon an image on a disk is mounted again behind a kill, whatever records are live then.
fn mounts(plan: &Plan) -> Result<Table> {
    let columns = [
        "image, GiB",
        "journal, MiB",
        "to replay, words",
        "open ms",
        "mount ms",
    ];
    let mut table = Table::new("Mount on a disk after kill -9", &columns);
    let temp = plan.temp_on_disk()?;
    let rounds = plan.rounds.min(ROUNDS_MAX);
    for (i, len) in ON_DISK.into_iter().enumerate() {
        let setup = Setup {
            sparse: true,
            ..disk::setup(plan, len)
        };
        let image = temp.path().join("image");
        drop(setup.create(&image)?);
        let geometry = Geometry::for_len(len);
        let (mut words, mut open, mut mount) =
            (Series::default(), Series::default(), Series::default());
        for round in 1..=rounds {
            let (done, steps) = (i * rounds + round, ON_DISK.len() * rounds);
            plan.progress.step("mount on a disk", done, steps);
            let task = Task::Churn {
                image: image.clone(),
                on_disk: true,
            };
            let (process, _) = task.start(plan)?;
            std::thread::sleep(plan.window);
            drop(process);
            words.push(to_replay(&setup, &image, geometry)? as f64);
            let (opened, mounted) = mount_once(plan, &setup, &image)?;
            open.push(opened);
            mount.push(mounted);
        }
        table.row([
            (len >> 30).into(),
            (page_at(geometry.journal_pages) >> 20).into(),
            words.into(),
            open.into(),
            mount.into(),
        ]);
        std::fs::remove_file(&image)?;
    }
    Ok(table)
}

/// How many words a mount will replay.
fn to_replay(setup: &Setup, image: &Path, geometry: Geometry) -> Result<usize> {
    let pool = setup.open(image)?;
    let (at, len) = (page_at(geometry.journal), page_at(geometry.journal_pages));
    let words = Journal::peek(&pool, at, len, |word| geometry.holds_word(word))?;
    Ok(words.len())
}

fn reclaim(setup: &Setup, image: &Path, busy: bool) -> Result<Reclaim> {
    let pool = setup.open(image)?;
    let start = Instant::now();
    let engine = setup.mount("SoupFS", pool)?;
    let mount = start.elapsed();
    let stop = AtomicBool::new(!busy);
    let done = Done::default();
    let mut last = Instant::now();
    let ask = || {
        let now = Instant::now();
        done.one(now - last);
        last = now;
        stop.load(Relaxed)
    };
    let found = std::thread::scope(|scope| {
        let workload = scope.spawn(|| {
            if busy {
                churn(&engine, || (), ask)
            } else {
                Ok(())
            }
        });
        let watched = watch(&engine, start, &done, &stop);
        stop.store(true, Relaxed);
        workload.join().map_err(|_| "the workload panicked")??;
        watched
    })?;
    engine.unmount()?;
    Ok(Reclaim { mount, ..found })
}

/// What a workload has done.
#[derive(Default)]
struct Done {
    ops: AtomicU64,
    /// The longest since it was looked at: ns.
    longest: AtomicU64,
}

impl Done {
    fn one(&self, took: Duration) {
        self.ops.fetch_add(1, Relaxed);
        self.longest.fetch_max(took.as_nanos() as u64, Relaxed);
    }

    fn ops(&self) -> u64 {
        self.ops.load(Relaxed)
    }

    fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest.swap(0, Relaxed))
    }
}

/// Waits until the space is found, and as long again to see what the workload does without the
/// search.
fn watch(engine: &Engine, start: Instant, done: &Done, stop: &AtomicBool) -> Result<Reclaim> {
    let (mut backlog, mut during): (f64, Option<(u64, Duration)>) = (0.0, None);
    let lines = loop {
        let (status, time) = (engine.status(), start.elapsed());
        backlog = backlog.max(status.backlog.words as f64 / status.backlog.words_max as f64);
        if let Some(lines) = status.reclaimed_lines {
            break lines;
        }
        if time > PATIENCE && during.is_none() {
            during = Some((done.ops(), time));
            stop.store(true, Relaxed);
        }
        if time > RECLAIM_MAX {
            return Err("the search for lost space does not end".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let (search, meanwhile) = (start.elapsed(), !stop.load(Relaxed));
    let longest = done.take_longest();
    let (ops, time) = during.unwrap_or((done.ops(), search));
    let mut after = 0.0;
    if meanwhile {
        let begin = Instant::now();
        std::thread::sleep(search.clamp(PAUSE_MIN, PAUSE_MAX));
        after = (done.ops() - ops) as f64 / begin.elapsed().as_secs_f64();
    }
    Ok(Reclaim {
        mount: Duration::ZERO,
        search,
        meanwhile,
        lines,
        during: ops as f64 / time.as_secs_f64(),
        after,
        longest: [longest, done.take_longest()],
        backlog,
    })
}

//! Snapshots, the check and the dump of a file system that is in use: the time of each, and what it
//! takes from a program meanwhile.

use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ffs::{Ffs, Mode, MountOptions};
use vfs::SystemClock;

use crate::participants::OutsideDir;
use crate::plan::Plan;
use crate::report::Table;
use crate::series::Series;
use crate::target::{BlockSetup, Engine, Result, Target};
use crate::workloads::tree::Tree;

/// What is there.
const TREE: Tree = Tree {
    dirs: 100,
    files: 100,
    data_every: 1,
};
/// Of the image: bytes.
const LEN: u64 = 1 << 30;
/// Files that the program has at a time, and operations behind which it makes them durable.
const KEPT: u64 = 1_000;
/// Fewer than five rounds decide nothing.
const ROUNDS_MAX: usize = 5;
/// For all rounds, if they are more than two.
const TIME: Duration = Duration::from_secs(40);

const TITLE: &str = "Snapshots, live check and live dump, beside a program";

const NAME: &str = "bench";

type Job = fn(&Ffs) -> Result<()>;
const JOBS: [(&str, Job); 3] = [
    ("a snapshot made", snapshot),
    ("live check", check),
    ("live dump, level 0", dump),
];

/// What a job took.
#[derive(Default)]
struct Took {
    alone_ms: Series,
    beside_ms: Series,
    /// Operations were stopped for its snapshot, with the program there.
    stopped_ms: Series,
    /// Of the program meanwhile, over what it does alone.
    left: Series,
}

/// What stands in the notes.
pub fn note(plan: &Plan) -> String {
    format!(
        "beside a program: the image has {} files of 4 KiB; the program makes and removes files of \
         4 KiB, and makes them durable behind each {KEPT}",
        plan.scaled(TREE.dirs) * TREE.files
    )
}

/// Measures on an image on the plan's disk.
pub fn table(plan: &Plan) -> Result<Table> {
    let tree = Tree {
        dirs: plan.scaled(TREE.dirs),
        ..TREE
    };
    let columns = [
        "what",
        "alone, ms",
        "beside the program, ms",
        "all operations stopped, ms",
        "the program meanwhile, times as fast",
    ];
    let mut table = Table::new(TITLE, &columns);
    let temp = OutsideDir::new(&plan.disk)?;
    let setup = BlockSetup::in_mode(Mode::Soft, LEN);
    let blocks = setup.mount("FFS", setup.create(&temp.path().join("image"))?)?;
    let engine = &blocks.engine;
    tree.build(engine)?;
    engine.mkdir(c"program")?;
    let mut all = JOBS.map(|_| Took::default());
    let (part, rounds) = (plan.part(TIME), plan.rounds.min(ROUNDS_MAX));
    for round in 0..rounds {
        if round >= 2 && part.is_over() {
            break;
        }
        plan.progress
            .step("snapshots beside a program", round, rounds);
        for ((_, job), took) in JOBS.iter().zip(&mut all) {
            took.alone_ms.push(time(engine.fs(), *job)?);
        }
        beside(engine, plan.window, &mut all)?;
    }
    for ((name, _), took) in JOBS.iter().zip(all) {
        table.row([
            (*name).into(),
            took.alone_ms.into(),
            took.beside_ms.into(),
            took.stopped_ms.into(),
            took.left.into(),
        ]);
    }
    blocks.unmount()?;
    Ok(table)
}

/// Each job once, beside the program.
fn beside(engine: &Engine<Ffs>, window: Duration, all: &mut [Took]) -> Result<()> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    // Operations in a second, while something is done.
    let rate = |what: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let (begin, before) = (Instant::now(), done.load(Relaxed));
        what()?;
        Ok((done.load(Relaxed) - before) as f64 / begin.elapsed().as_secs_f64())
    };
    let mut quiet = || {
        std::thread::sleep(window);
        Ok(())
    };
    let measure = || -> Result<()> {
        // It has all its files, and makes one for each that it removes.
        while done.load(Relaxed) < KEPT && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for ((_, job), took) in JOBS.iter().zip(all) {
            let alone = rate(&mut quiet)?;
            let mut ms = 0.0;
            let meanwhile = rate(&mut || {
                ms = time(engine.fs(), *job)?;
                Ok(())
            })?;
            took.beside_ms.push(ms);
            let (_, suspension) = engine.fs().snapshot_counts();
            took.stopped_ms.push(suspension.ns as f64 / 1e6);
            took.left.push(meanwhile / alone);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let program = scope.spawn(|| {
            let result = program(engine, &stop, &done);
            stop.store(true, Relaxed);
            result
        });
        let measured = measure();
        stop.store(true, Relaxed);
        program.join().map_err(|_| "a thread panicked")??;
        measured
    })
}

/// Makes files of 4 KiB and removes the oldest ones, until it is stopped.
fn program(engine: &Engine<Ffs>, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let name = |i: u64| CString::new(format!("program/{i}"));
    let (first, data) = (done.load(Relaxed), [1; 4096]);
    let mut next = first;
    while !stop.load(Relaxed) {
        let file = engine.create(&name(next)?)?;
        engine.write(file, &data)?;
        engine.close(file)?;
        if next >= first + KEPT {
            engine.unlink(&name(next - KEPT)?)?;
        }
        next += 1;
        if next % KEPT == 0 {
            engine.sync()?;
        }
        done.store(next, Relaxed);
    }
    for left in next.saturating_sub(KEPT).max(first)..next {
        engine.unlink(&name(left)?)?;
    }
    engine.sync()
}

fn time(fs: &Ffs, job: Job) -> Result<f64> {
    let begin = Instant::now();
    job(fs)?;
    let took = begin.elapsed().as_secs_f64() * 1000.0;
    // Of a job that leaves its snapshot. That is not what is measured.
    if fs.snapshots().iter().any(|one| one.name == NAME) {
        fs.delete_snapshot(NAME)?;
    }
    Ok(took)
}

fn snapshot(fs: &Ffs) -> Result<()> {
    fs.create_snapshot(NAME, true)?;
    Ok(())
}

fn check(fs: &Ffs) -> Result<()> {
    let report = fs.check_live(false, &|_, _, _| true)?;
    if !report.findings.is_empty() {
        return Err("the live check found something".into());
    }
    Ok(())
}

/// As `tureen dump` does, into nothing.
fn dump(fs: &Ffs) -> Result<()> {
    fs.create_snapshot(NAME, true)?;
    let options = MountOptions {
        read_only: true,
        hash_key: [4; 16],
        cache_bytes: BlockSetup::default().cache_bytes,
        mode: Mode::Soft,
    };
    let then = Ffs::mount(fs.snapshot_disk(NAME)?, Arc::new(SystemClock), options)?;
    let options = dump::Options::default();
    dump::dump(&then, &options, &mut io::sink(), &|_, _, _| ())?;
    Ok(())
}

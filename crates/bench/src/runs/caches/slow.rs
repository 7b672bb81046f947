//! Caches before a slow disk, by its simulated clock: what a transaction of a database or a mail
//! takes with a cache and without, and what happens as more is written to than the cache holds.

use std::time::{Duration, Instant};

use block::Mechanics;
use cache::Kind;
use ffs::Mode;
use hdrhistogram::Histogram;
use pmem::{Domain, Latency};

use block::Random;

use crate::plan::Plan;
use crate::report::{Better, Chart, Check, Line, Point, Run, Shape, short};
use crate::runs::claims;
use crate::runs::soft_updates::Simulated;
use crate::target::{BLOCK_MODES, BlockSetup, CacheSetup, LogSetup, Result, Target};
use crate::workloads::paced::{Pace, Task};

const BLOCK: u64 = 4096;
const LEN: u64 = 256 << 20;
const CACHE_LEN: u64 = 32 << 20;
/// Transactions, and mails.
const COUNT: u64 = 200;
/// Writes for each working set.
const WRITES: u64 = 16_000;
const TOGETHER: u64 = 8;
/// Working sets over the cache.
const PARTS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

const TITLE: &str = "On a slow modelled disk, in-process";
const MEAN: &str = "Writes by working set, modelled disk: mean";
/// The calls that make writes durable, by how long a part of them takes at most.
const CALLS: [(&str, f64); 4] = [
    ("Syncs by working set, modelled disk: 50 %", 0.5),
    ("Syncs by working set, modelled disk: 99 %", 0.99),
    ("Syncs by working set, modelled disk: 99.9 %", 0.999),
    ("Syncs by working set, modelled disk: slowest", 1.0),
];

/// Names, and how the file system is set up: its modes, and the caches.
fn setups() -> Vec<(String, BlockSetup)> {
    let modes = BLOCK_MODES.into_iter().filter(|(name, _)| *name != "async");
    let modes = modes.map(|(name, mode)| (name.to_owned(), BlockSetup::in_mode(mode, LEN)));
    let caches = [Kind::Spindle, Kind::Tinca].map(|kind| {
        let cache = CacheSetup {
            writes_behind: false,
            ..CacheSetup::new(kind, CACHE_LEN)
        };
        let setup = BlockSetup {
            len: LEN,
            cache: Some(cache),
            ..BlockSetup::default()
        };
        (kind.to_string(), setup)
    });
    let log = LogSetup {
        domain: Domain::Line,
        latency: Latency::default(),
    };
    let in_memory = BlockSetup {
        log: Some(log),
        ..BlockSetup::in_mode(Mode::Journal, LEN)
    };
    let beside = [("journal log in memory".to_owned(), in_memory)];
    let all = modes.chain(beside).chain(caches);
    all.map(|(name, setup)| (format!("FFS in-process {name}"), setup))
        .collect()
}

/// Milliseconds that work takes: those of the simulated disk, and those that pass meanwhile.
pub fn ms(disk: &mut Simulated, work: impl FnOnce(&mut Simulated) -> Result<()>) -> Result<f64> {
    disk.start();
    let begin = Instant::now();
    work(disk)?;
    let own = begin.elapsed() + Duration::from_nanos(disk.waited_ns());
    Ok(own.as_secs_f64() * 1e3)
}

/// A database's transactions and a server's mails, durable at return.
pub fn databases(plan: &Plan) -> Result<Chart> {
    let mut chart = Chart::new(TITLE, "durable", "ms", Better::Less, Shape::Bars);
    let count = plan.scaled(COUNT).max(5);
    for (name, setup) in setups() {
        plan.progress.step(&format!("slow disk: {name}"), 0, 1);
        let mut points = Vec::new();
        for (what, is_wal) in [
            ("a transaction, WAL", true),
            ("a transaction, rollback", false),
        ] {
            let mut disk = Simulated::new(&setup, Mechanics::of_1999())?;
            let all = database(&mut disk, count, is_wal)?;
            points.push(Point::once(what, all / count as f64));
        }
        let mut disk = Simulated::new(&setup, Mechanics::of_1999())?;
        let engine = disk.again();
        Task::Mail.prepare(&engine, count)?;
        let all = ms(&mut disk, |disk| Task::Mail.run(&engine, disk, count))?;
        points.push(Point::once("a mail", all / count as f64));
        let target = name;
        chart.lines.push(Line { target, points });
    }
    Ok(chart)
}

/// What SQLite does for transactions that change two pages each: ms.
fn database(disk: &mut Simulated, count: u64, is_wal: bool) -> Result<f64> {
    const PAGES: u64 = 256;
    let (engine, page) = (disk.again(), [0x6b; BLOCK as usize]);
    let (mut random, file) = (Random::new(23), engine.create(c"db")?);
    (0..PAGES).try_for_each(|i| engine.write_at(file, &page, i * BLOCK))?;
    let wal = engine.create(c"db-wal")?;
    engine.sync()?;
    let transaction = |disk: &mut Simulated, i: u64, pages: [u64; 2]| {
        disk.call(&mut || match is_wal {
            true => {
                // A page has a header in the log.
                for frame in [2 * i, 2 * i + 1] {
                    engine.write_at(wal, &page, frame * (BLOCK + 24))?;
                }
                engine.fdatasync(wal)
            }
            false => {
                let journal = engine.create(c"db-journal")?;
                pages
                    .iter()
                    .try_for_each(|_| engine.write(journal, &page))?;
                engine.fsync(journal)?;
                for at in pages {
                    engine.write_at(file, &page, at * BLOCK)?;
                }
                engine.fsync(file)?;
                engine.close(journal)?;
                engine.unlink(c"db-journal")
            }
        })
    };
    let took = ms(disk, |disk| {
        (0..count).try_for_each(|i| {
            let pages = [random.below(PAGES), random.below(PAGES)];
            transaction(disk, i, pages)
        })
    })?;
    engine.close(wal)?;
    engine.close(file)?;
    Ok(took)
}

/// Writes of 4 KiB at random, some durable together, to more and more of a file: those of the
/// cache's size and beyond wait for the disk. The mean of a write, and how long a sync of some
/// takes with those before it.
pub fn working_sets(plan: &Plan) -> Result<Vec<Chart>> {
    let titles = std::iter::once(MEAN).chain(CALLS.map(|(title, _)| title));
    let chart = |title| {
        let x = "working set over the cache";
        Chart::new(title, x, "ms", Better::Less, Shape::Lines)
    };
    let mut charts: Vec<Chart> = titles.map(chart).collect();
    let writes = plan.scaled(WRITES).max(50);
    for (name, setup) in setups() {
        let mut points = vec![Vec::new(); charts.len()];
        for part in PARTS {
            plan.progress.step(&format!("working set: {name}"), 0, 1);
            let mut disk = Simulated::new(&setup, Mechanics::of_1999())?;
            let count = ((CACHE_LEN as f64 * part) as u64 / plan.divide / BLOCK).max(16);
            let times = working_set(&mut disk, writes, count)?;
            let at = |part| times.value_at_quantile(part) as f64 / 1e6;
            let mean = times.mean() / 1e6 / TOGETHER as f64;
            let found = std::iter::once(mean).chain(CALLS.map(|(_, part)| at(part)));
            for (points, ms) in points.iter_mut().zip(found) {
                points.push(Point::once(part, ms));
            }
        }
        for (chart, points) in charts.iter_mut().zip(points) {
            let target = name.clone();
            chart.lines.push(Line { target, points });
        }
    }
    Ok(charts)
}

/// How long it takes to write and make durable what is written together: ns.
fn working_set(disk: &mut Simulated, writes: u64, count: u64) -> Result<Histogram<u64>> {
    let (engine, data) = (disk.again(), [0x6c; BLOCK as usize]);
    let (mut random, file) = (Random::new(29), engine.create(c"file")?);
    (0..count).try_for_each(|i| engine.write_at(file, &data, i * BLOCK))?;
    engine.sync()?;
    let mut times = Histogram::<u64>::new(3)?;
    for _ in 0..writes / TOGETHER {
        let ms = ms(disk, |disk| {
            disk.call(&mut || {
                for _ in 0..TOGETHER {
                    engine.write_at(file, &data, random.below(count) * BLOCK)?;
                }
                engine.fdatasync(file)
            })
        })?;
        times.record((ms * 1e6) as u64)?;
    }
    engine.close(file)?;
    Ok(times)
}

/// What a cache is for.
pub fn checks(run: &Run) -> Vec<Check> {
    let at = |kind: &str, what: &str| {
        let line = run.chart(TITLE)?.line(&format!("FFS in-process {kind}"))?;
        Some(line.at(&what.into())?.rounds.median())
    };
    let gain = |what| Some(at("soft", what)? / at("spindle", what)?);
    let all = ["a transaction, WAL", "a transaction, rollback", "a mail"];
    let found: Vec<f64> = all.into_iter().filter_map(gain).collect();
    let said: Vec<_> = found.iter().map(|gain| short(*gain)).collect();
    vec![claims::check(
        "Spindle, section 5.3: what is made durable does not wait for the disk while there is room \
         in the cache.",
        (!found.is_empty()).then(|| found.iter().all(|gain| *gain > 10.0)),
        format!(
            "A transaction of a database with a log, with a rollback journal, and a mail, on the \
             modelled disk: {} times as fast as without a cache.",
            said.join(", ")
        ),
        "The disk's time is simulated, the memory's is real.",
    )]
}

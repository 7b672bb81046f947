//! What goes past a cache, and what is read into it: a working set, in calls that somebody waits
//! for, beside a file that is larger than the cache, before the slow modelled disk.

use block::{Mechanics, Random};
use cache::Kind;
use hdrhistogram::Histogram;

use super::slow::ms;
use crate::plan::Plan;
use crate::report::{Better, Chart, Check, Line, Point, Run, Shape, short};
use crate::runs::claims;
use crate::runs::soft_updates::Simulated;
use crate::target::{BlockSetup, CacheSetup, Result, Target};
use crate::workloads::paced::Pace;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const LEN: u64 = 256 << 20;
const CACHE_LEN: u64 = 32 << 20;
/// Half of the cache.
const SET: u64 = 16 << 20;
/// Three times the cache.
const LONG: u64 = 96 << 20;
/// Written in one piece, and durable, before the working set has its turn.
const PIECE: u64 = 4 << 20;
/// Syncs of the working set for each piece, and writes of each.
const SYNCS: u64 = 32;
const TOGETHER: u64 = 8;
/// Reads of the working set for each MiB that is read.
const READS: u64 = 128;
/// What goes past the cache.
const BYPASS: u64 = 1 << 20;
/// The file system's own, so that reads get to the cache: 4 MiB.
const DRAM: usize = 4 << 20;

const WRITTEN: &str = "A working set beside a long file that is written, modelled disk";
const READ: &str = "A working set beside a long file that is read, modelled disk";

const SYNC: [&str; 3] = ["a sync, 50 %", "a sync, 99 %", "a sync, slowest"];
const OF_LONG: &str = "a MiB of the file";
const ROOM: &str = "4 MiB and fsync, with room in the cache";
const READ_EACH: &str = "a read of the set, mean";
const READ_LAST: &str = "a read of the set, mean of the last quarter";

/// What is set, as charts call it: what goes past the cache, and whether reads are kept.
const WAYS: [(&str, u64, bool); 4] = [
    ("spindle", 0, false),
    ("spindle, bypass of 1 MiB", BYPASS, false),
    ("spindle, reads kept", 0, true),
    ("spindle, bypass of 1 MiB, reads kept", BYPASS, true),
];

fn disk((_, bypass, keeps_reads): (&str, u64, bool), plan: &Plan) -> Result<Simulated> {
    let cache = CacheSetup {
        writes_behind: false,
        bypass,
        keeps_reads,
        ..CacheSetup::new(Kind::Spindle, (CACHE_LEN / plan.divide).max(MIB))
    };
    let setup = BlockSetup {
        len: LEN,
        cache: Some(cache),
        cache_bytes: DRAM,
        ..BlockSetup::default()
    };
    Simulated::new(&setup, Mechanics::of_1999())
}

/// Written, and read.
pub fn charts(plan: &Plan) -> Result<[Chart; 2]> {
    let chart = |title| Chart::new(title, "what", "ms", Better::Less, Shape::Bars);
    let mut charts = [chart(WRITTEN), chart(READ)];
    for way in WAYS {
        plan.progress
            .step(&format!("beside a long file: {}", way.0), 0, 1);
        let found = [written(way, plan)?, read(way, plan)?];
        for (chart, points) in charts.iter_mut().zip(found) {
            let target = way.0.to_owned();
            chart.lines.push(Line { target, points });
        }
    }
    Ok(charts)
}

/// Bytes of a file at the plan's size, in whole blocks.
fn len(bytes: u64, plan: &Plan) -> u64 {
    (bytes / plan.divide / BLOCK).max(16) * BLOCK
}

/// A file of so many bytes, whose blocks are of this byte.
fn make(engine: &impl Target, path: &std::ffi::CStr, len: u64) -> Result<()> {
    let (file, data) = (engine.create(path)?, vec![0x6e; BLOCK as usize]);
    (0..len / BLOCK).try_for_each(|i| engine.write_at(file, &data, i * BLOCK))?;
    engine.close(file)?;
    engine.sync()
}

fn written(way: (&str, u64, bool), plan: &Plan) -> Result<Vec<Point>> {
    let mut disk = disk(way, plan)?;
    let (engine, data) = (disk.again(), [0x6d; BLOCK as usize]);
    let piece = vec![0x6f; len(PIECE, plan) as usize];
    // As long as there is room.
    let first = engine.create(c"first")?;
    let room = ms(&mut disk, |disk| {
        disk.call(&mut || {
            engine.write(first, &piece)?;
            engine.fsync(first)
        })
    })?;
    engine.close(first)?;
    let (set, long) = (len(SET, plan), len(LONG, plan));
    make(&engine, c"set", set)?;
    let mut random = Random::new(31);
    let (file, copy) = (engine.open(c"set", false)?, engine.create(c"copy")?);
    let mut times = Histogram::<u64>::new(3)?;
    let mut of_long = 0.0;
    for _ in 0..long / piece.len() as u64 {
        of_long += ms(&mut disk, |disk| {
            disk.call(&mut || {
                engine.write(copy, &piece)?;
                engine.fdatasync(copy)
            })
        })?;
        for _ in 0..SYNCS {
            let ms = ms(&mut disk, |disk| {
                disk.call(&mut || {
                    for _ in 0..TOGETHER {
                        engine.write_at(file, &data, random.below(set / BLOCK) * BLOCK)?;
                    }
                    engine.fdatasync(file)
                })
            })?;
            times.record((ms * 1e6) as u64)?;
        }
    }
    engine.close(file)?;
    engine.close(copy)?;
    let at = |part| times.value_at_quantile(part) as f64 / 1e6;
    let syncs = SYNC
        .into_iter()
        .zip([0.5, 0.99, 1.0])
        .map(|(name, part)| Point::once(name, at(part)));
    let others = [
        Point::once(OF_LONG, of_long / (long / MIB).max(1) as f64),
        Point::once(ROOM, room),
    ];
    Ok(syncs.chain(others).collect())
}

fn read(way: (&str, u64, bool), plan: &Plan) -> Result<Vec<Point>> {
    let mut disk = disk(way, plan)?;
    let engine = disk.again();
    let (set, long) = (len(SET, plan), len(LONG, plan));
    // The file that is made last displaces the set.
    make(&engine, c"set", set)?;
    make(&engine, c"long", long)?;
    disk.settle()?;
    let mut random = Random::new(37);
    let (file, scan) = (engine.open(c"set", false)?, engine.open(c"long", false)?);
    let part = MIB.min(long);
    let (mut data, mut piece) = ([0; BLOCK as usize], vec![0; part as usize]);
    let (mut times, mut of_long) = (Vec::new(), 0.0);
    for i in 0..long / part {
        of_long += ms(&mut disk, |disk| {
            disk.call(&mut || engine.read_at(scan, &mut piece, i * part))
        })?;
        times.push(ms(&mut disk, |disk| {
            (0..READS).try_for_each(|_| {
                let at = random.below(set / BLOCK) * BLOCK;
                disk.call(&mut || engine.read_at(file, &mut data, at))
            })
        })?);
    }
    engine.close(file)?;
    engine.close(scan)?;
    let mean = |times: &[f64]| times.iter().sum::<f64>() / (times.len() as u64 * READS) as f64;
    Ok(vec![
        Point::once(READ_EACH, mean(&times)),
        Point::once(READ_LAST, mean(&times[times.len() * 3 / 4..])),
        Point::once(OF_LONG, of_long / (long / part) as f64),
    ])
}

/// What either is for.
pub fn checks(run: &Run) -> Vec<Check> {
    let at = |title: &str, way: usize, what: &str| {
        let line = run.chart(title)?.line(WAYS[way].0)?;
        Some(line.at(&what.into())?.rounds.median())
    };
    let over = |title, way, what| Some(at(title, 0, what)? / at(title, way, what)?);
    let said = |times: Option<f64>| times.map_or("-".into(), short);
    let syncs = over(WRITTEN, 1, SYNC[1]);
    let reads = over(READ, 2, READ_LAST);
    vec![
        claims::check(
            "Aim: syncs of a working set do not wait for a long file beside them if that goes past \
             the cache.",
            syncs.map(|times| times > 2.0),
            format!(
                "99 of 100 syncs are {} times as fast with cache_bypass as without; 4 MiB and \
                 fsync, where the cache has room, {} times as fast.",
                said(syncs),
                said(over(WRITTEN, 1, ROOM))
            ),
            "What goes past the cache waits for the disk: that is why it has to be asked for.",
        ),
        claims::check(
            "Aim: a working set that is larger than the file system's memory is read from the \
             cache if reads are kept.",
            reads.map(|times| times > 2.0),
            format!(
                "Reads of the set, in the end, are {} times as fast with cache_reads as without, \
                 beside a long file that is read once; with cache_bypass, which keeps that out, \
                 {} times.",
                said(reads),
                said(over(READ, 3, READ_LAST))
            ),
            "The disk's time is simulated, the memory's is real.",
        ),
    ]
}

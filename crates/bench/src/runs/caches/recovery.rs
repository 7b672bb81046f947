//! How long a cache takes to be used again behind a crash, and what it takes in DRAM.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use cache::{BLOCK, Class, Kind, Transaction};
use rustix::fs::{FallocateFlags, fallocate};

use crate::child::{Reopened, Task};
use crate::machine::dram;
use crate::plan::Plan;
use crate::report::{Better, Chart, Line, Point, Shape};
use crate::series::Series;
use crate::target::{BlockSetup, CacheSetup, Result};

/// Sizes of caches: MiB.
const MIB: [u64; 5] = [1024, 2048, 4096, 8192, 16384];
const MIB_MIN: u64 = 4;
const ROUNDS_MAX: usize = 5;
/// Blocks of a transaction that fills a cache.
const TOGETHER: u64 = 256;
/// So many of them, and what they wrote is given up again.
const GIVEN_UP: u64 = 256;

/// Recovery in ms, and DRAM for each block in bytes, by the size of a cache that is full of dirty
/// blocks.
pub fn by_size(plan: &Plan) -> Result<(Vec<Chart>, Vec<String>)> {
    let mut recovery = Chart::new("Recovery", "MiB", "ms", Better::Less, Shape::Growth);
    let mut memory = Chart::new(
        "DRAM of a cached block",
        "MiB",
        "bytes",
        Better::Less,
        Shape::Growth,
    );
    let mut notes = vec![
        "recovery: of a cache file in memory, full of dirty blocks, whose process ended without a \
         word; the blocks' contents, which recovery does not read, are holes of the file by then, \
         so that 16 GiB fit everywhere"
            .into(),
    ];
    for kind in [Kind::Spindle, Kind::Tinca] {
        let mut points = [Vec::new(), Vec::new()];
        for (i, mib) in MIB.into_iter().enumerate() {
            plan.progress
                .step(&format!("recovery: {kind}, {mib} MiB"), i, MIB.len());
            let mib = (mib / plan.divide).max(MIB_MIN);
            let temp = plan.temp()?;
            let (path, setup) = (temp.path().join("cache"), CacheSetup::new(kind, mib << 20));
            let disk = temp.path().join("disk");
            fill(&setup, &path, &disk)?;
            let mut series: [Series; 2] = Default::default();
            for _ in 0..plan.rounds.min(ROUNDS_MAX) {
                // In a process of its own, whose memory is its own.
                let found = match plan.tureen {
                    Some(_) => {
                        let task = Task::Reopen {
                            cache: path.clone(),
                            disk: disk.clone(),
                        };
                        let (_process, line) = task.start(plan)?;
                        serde_json::from_str(&line)?
                    }
                    None => reopen(&path, &disk)?,
                };
                series[0].push(found.ns as f64 / 1e6);
                series[1].push(found.dram as f64 / found.blocks.max(1) as f64);
            }
            for (points, series) in points.iter_mut().zip(series) {
                points.push(Point::new(mib, series));
            }
        }
        for (chart, points) in [&mut recovery, &mut memory].into_iter().zip(points) {
            let target = kind.to_string();
            chart.lines.push(Line { target, points });
        }
    }
    if plan.tureen.is_none() {
        notes.push("no figures of DRAM: only `tureen bench` can start processes".into());
        return Ok((vec![recovery], notes));
    }
    Ok((vec![recovery, memory], notes))
}

/// A cache in which nearly every block is dirty, before a sparse disk that is as large. Of the
/// contents of its blocks there are only the last ones.
fn fill(setup: &CacheSetup, path: &Path, image: &Path) -> Result<()> {
    let len = 2 * setup.len;
    let blocks = BlockSetup {
        sparse: true,
        ..BlockSetup::in_mode(ffs::Mode::Async, len)
    };
    let disk = blocks.create(image)?;
    let cache = setup.create_sparse_at(path, &disk)?.cache;
    let file = File::options().write(true).open(path)?;
    let give_up = || {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Its superblock's copy, which is read if the other one is torn, stays.
        let blocks = cache.blocks();
        fallocate(&file, hole, blocks.start, blocks.end - blocks.start)
    };
    let (first, last) = (
        len / 4 / BLOCK,
        len / 4 / BLOCK + cache.status().blocks * 9 / 10,
    );
    let mut next = Transaction::default();
    for number in first..last {
        next.write(Class::Data, number * BLOCK, &[number as u8; BLOCK as usize]);
        if next.len() as u64 >= TOGETHER || number + 1 == last {
            cache.commit(std::mem::take(&mut next))?;
            if number % (TOGETHER * GIVEN_UP) < TOGETHER || number + 1 == last {
                give_up()?;
            }
        }
    }
    Ok(())
}

/// Opens a cache as after a crash.
pub fn reopen(path: &Path, image: &Path) -> Result<Reopened> {
    let disk = BlockSetup::default().open(image)?;
    let setup = CacheSetup::new(Kind::Spindle, 0);
    let (before, begin) = (dram(), Instant::now());
    let front = setup.open_at(path, &disk)?;
    let ns = begin.elapsed().as_nanos() as u64;
    Ok(Reopened {
        ns,
        dram: dram().saturating_sub(before),
        blocks: front.cache.status().cached,
    })
}

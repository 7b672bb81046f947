//! The modes on a modelled disk, by a simulated clock.

use std::sync::Arc;

use block::{Disk, Mechanics, Modelled, Stats};
use ffs::{Ffs, Mode};

use super::{ASYNCHRONOUS, NORMAL, SOFT, line, name_of};
use crate::plan::Plan;
use crate::report::{Better, Chart, Check, Point, Run, Shape, short};
use crate::runs::claims;
use crate::target::{BLOCK_MODES, BlockSetup, Blocks, Engine, Result, Target};
use crate::workloads::names;
use crate::workloads::paced::{Pace, Task, WRITE_EVERY_NS};

/// Of the modelled disk: bytes.
const LEN: u64 = 256 << 20;
const BLOCK: u64 = 4096;
/// What a call takes besides the disk.
const CALL_NS: u64 = 100_000;

/// Beside a time: writes that a caller waited for, and those behind him.
pub(super) const WAITED: &str = "waited for: requests";
pub(super) const BEHIND: &str = "behind: requests";

const CREATED: &str = "Files created on a modelled disk";
const REMOVED: &str = "Files removed on a modelled disk";
/// Sizes of files: bytes.
const SIZES: [u64; 5] = [0, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Files of each size.
const FILES: u64 = 200;

/// Requests and bytes that were written.
#[derive(Debug, Clone, Copy, Default)]
struct Writes {
    requests: u64,
    bytes: u64,
    flushes: u64,
}

impl Writes {
    fn add(&mut self, stats: &Stats) {
        self.requests += stats.writes;
        self.bytes += stats.bytes_written;
        self.flushes += stats.flushes;
    }
}

/// A mounted file system on a modelled disk, and its caller's clock.
///
/// The disk writes behind the caller while he computes. When he needs it he waits until it is done
/// with that, and then for his own requests.
pub struct Simulated {
    model: Arc<Modelled>,
    blocks: Blocks,
    now_ns: u64,
    waited_ns: u64,
    /// How long the disk will still be busy with what nobody waits for.
    behind_ns: u64,
    next_ns: u64,
    waited: Writes,
    behind: Writes,
}

impl Simulated {
    /// An empty file system as `setup` says, but for its length.
    pub fn new(setup: &BlockSetup, mechanics: Mechanics) -> Result<Simulated> {
        let model = Arc::new(Modelled::new(setup.len, mechanics));
        let disk = Disk::new(model.clone());
        setup.format(&disk)?;
        Ok(Simulated {
            blocks: setup.mount_new("modelled", model.clone())?,
            model,
            now_ns: 0,
            waited_ns: 0,
            behind_ns: 0,
            next_ns: WRITE_EVERY_NS,
            waited: Writes::default(),
            behind: Writes::default(),
        })
    }

    /// What is called.
    pub fn engine(&self) -> &Engine<Ffs> {
        &self.blocks.engine
    }

    /// The same, for calls while time passes.
    pub fn again(&self) -> Engine<Ffs> {
        Engine::of("modelled", self.engine().fs().clone())
    }

    /// Lets the disk have what is in the cache before it, which stays there, clean.
    pub fn settle(&self) -> Result<()> {
        self.engine().sync()?;
        if let Some(front) = &self.blocks.front {
            front.cache.flush()?;
        }
        Ok(())
    }

    /// How long calls waited for the disk since the clock began, nanoseconds.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// The clock begins.
    pub fn start(&mut self) {
        self.now_ns = 0;
        self.waited_ns = 0;
        self.behind_ns = 0;
        self.next_ns = WRITE_EVERY_NS;
        self.waited = Writes::default();
        self.behind = Writes::default();
    }

    /// How long work takes the disk, and what it writes.
    fn on_disk(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<(u64, Stats)> {
        let (before, stats) = (self.model.now_ns(), self.blocks.disk.stats());
        work()?;
        let took = self.model.now_ns() - before;
        Ok((took, self.blocks.disk.stats().since(&stats)))
    }

    /// What is dirty is written behind the caller.
    fn write_behind(&mut self) -> Result<()> {
        let engine = &self.blocks.engine;
        let (took, stats) = self.on_disk(&mut || engine.sync())?;
        self.behind_ns += took;
        self.behind.add(&stats);
        Ok(())
    }

    /// The caller's time until all is durable, nanoseconds.
    pub fn end(&mut self) -> Result<u64> {
        self.write_behind()?;
        self.now_ns += std::mem::take(&mut self.behind_ns);
        Ok(self.now_ns)
    }

    /// A task that `work` does on the file system.
    fn task(&mut self, task: Task, turns: u64) -> Result<Point> {
        let engine = self.again();
        task.prepare(&engine, turns)?;
        self.start();
        task.run(&engine, self, turns)?;
        let seconds = self.end()? as f64 / 1e9;
        Ok(self.point(task.name(), seconds, 1.0))
    }

    /// A figure with what was written for each of so many operations.
    fn point(&self, x: impl Into<crate::report::X>, value: f64, ops: f64) -> Point {
        let mut point = Point::once(x, value);
        let blocks = |writes: &Writes| (writes.bytes / BLOCK) as f64;
        let (waited, behind) = (&self.waited, &self.behind);
        point.extra = [
            (WAITED, waited.requests as f64),
            ("waited for: blocks", blocks(waited)),
            (BEHIND, behind.requests as f64),
            ("behind: blocks", blocks(behind)),
            ("flushes", (waited.flushes + behind.flushes) as f64),
        ]
        .map(|(name, count)| (name.to_owned(), count / ops))
        .into();
        point
    }
}

impl Pace for Simulated {
    fn call(&mut self, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let (took, stats) = self.on_disk(call)?;
        self.waited.add(&stats);
        if took > 0 {
            let waited = std::mem::take(&mut self.behind_ns) + took;
            self.now_ns += waited;
            self.waited_ns += waited;
        }
        self.compute(CALL_NS)
    }

    fn compute(&mut self, ns: u64) -> Result<()> {
        self.now_ns += ns;
        self.behind_ns = self.behind_ns.saturating_sub(ns);
        if self.now_ns >= self.next_ns {
            self.next_ns = self.now_ns + WRITE_EVERY_NS;
            self.write_behind()?;
        }
        Ok(())
    }
}

/// Each task in each mode: seconds of the simulated clock.
pub fn tasks(plan: &Plan, title: &str) -> Result<Chart> {
    let mut chart = Chart::new(title, "task", "s", Better::Less, Shape::Bars);
    chart.like = "Soft updates, section 5".into();
    for (i, (name, mode)) in BLOCK_MODES.into_iter().enumerate() {
        let mut points = Vec::new();
        for task in Task::ALL {
            let what = format!("{}, modelled: {name}", task.name());
            plan.progress.step(&what, i, BLOCK_MODES.len());
            let turns = plan.scaled(task.turns()).max(2);
            points.push(on(mode)?.task(task, turns)?);
        }
        chart.lines.push(line(name, points));
    }
    Ok(chart)
}

fn on(mode: Mode) -> Result<Simulated> {
    Simulated::new(&BlockSetup::in_mode(mode, LEN), Mechanics::of_1999())
}

/// Files made and removed, by their sizes: ms of the simulated clock for each.
pub fn files_by_size(plan: &Plan) -> Result<[Chart; 2]> {
    let files = names("f", plan.scaled(FILES).max(10))?;
    let mut charts = [CREATED, REMOVED]
        .map(|title| Chart::new(title, "bytes", "ms", Better::Less, Shape::Lines));
    for (name, mode) in BLOCK_MODES {
        let mut points = [Vec::new(), Vec::new()];
        for size in SIZES {
            let mut disk = on(mode)?;
            let engine = disk.again();
            let data = vec![0x66; size as usize];
            let ops = files.len() as f64;
            for (i, points) in points.iter_mut().enumerate() {
                disk.start();
                for file in &files {
                    disk.call(&mut || match i {
                        0 => {
                            let open = engine.create(file)?;
                            engine.write(open, &data)?;
                            engine.close(open)
                        }
                        _ => engine.unlink(file),
                    })?;
                }
                let ms = disk.end()? as f64 / 1e6 / ops;
                points.push(disk.point(size, ms, ops));
            }
        }
        for (chart, points) in charts.iter_mut().zip(points) {
            chart.lines.push(line(name, points));
        }
    }
    Ok(charts)
}

/// What the paper says of making and removing files.
pub fn checks(run: &Run) -> Vec<Check> {
    let at = |title: &str, mode: &str| {
        let line = run.chart(title)?.line(&name_of(mode))?;
        Some(line.at(&1024u64.into())?.rounds.median())
    };
    let gain = |title| Some(at(title, NORMAL)? / at(title, SOFT)?);
    let both = gain(CREATED).zip(gain(REMOVED));
    let near = |title| Some(at(title, SOFT)? / at(title, ASYNCHRONOUS)?);
    let said = both.zip(near(CREATED).zip(near(REMOVED)));
    vec![claims::check(
        "Soft updates, section 5: compared to synchronous writes, creation is twice as fast and \
         removal 20 times.",
        both.map(|(created, removed)| created >= 2.0 && removed >= 20.0),
        said.map_or(String::new(), |((created, removed), (c, r))| {
            format!(
                "Of files of 1 KiB, on the modelled disk: {} and {} times; of the time of async {} \
                 and {}.",
                short(created),
                short(removed),
                short(c),
                short(r)
            )
        }),
        "Until all is durable. In the paper until the calls return, mostly.",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of its turns the fifth is over before anything is written behind it: the tree of that one
    /// was never on disk, and the one of before is gone.
    #[test]
    fn the_torture_test_waits_for_no_write() {
        let mut disk = on(Mode::Soft).expect("a disk");
        let point = disk.task(Task::Torture, 6).expect("done");
        assert_eq!(point.extra(WAITED), Some(0.0));
        assert!(point.extra(BEHIND) > Some(0.0));
    }
}

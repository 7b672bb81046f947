//! Writing 4 KiB at a time: append and overwrite, beside a bare copy of the same bytes.

use std::cell::RefCell;
use std::ffi::CString;
use std::hint::black_box;

use pmem::{Options, Pool};

use crate::participants::Participants;
use crate::plan::{Plan, ns_each};
use crate::report::{Better, Found, OURS, Run, Shape, Table, X};
use crate::runner::run_rounds;
use crate::sampler::{Sampler, Workload, figure};
use crate::series::Series;
use crate::target::{Result, Target};
use crate::workloads::scattered;

const BLOCK: usize = 4096;
/// Length of the file: bytes.
const FILE: u64 = 64 << 20;
const LEN: u64 = 1 << 30;
const OPS: [&str; 4] = ["append", "overwrite", "overwrite, random", "read"];
/// Length of a file that the caches keep: bytes.
const SMALL: u64 = 1 << 20;
const AGAIN: [&str; 2] = ["overwrite", "read"];
/// fsyncs are few: on a peer with a disk each takes long.
const FSYNCS: u64 = 1000;
pub(super) const CHART: &str = "blocks";
pub(super) const AGAIN_CHART: &str = "again";
pub(super) const FSYNC_CHART: &str = "fsync";
const TITLE: &str = "Per block of 4 KiB";

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let participants = Participants::new(plan, LEN)?;
    let blocks = plan.scaled(FILE / BLOCK as u64).max(16);
    let work = Blocks::new(blocks, plan.scaled(FSYNCS))?;
    let measured = run_rounds(plan, &participants, "4 KiB", &work)?;
    let mut run = Run::new(
        "data",
        "4 KiB appended, overwritten, read, and made durable",
    );
    run.baseline = participants.baseline(plan);
    let chart = |key, title| measured.chart(key, (title, "operation"), Shape::Bars, Better::Less);
    run.charts = vec![
        chart(CHART, TITLE),
        chart(
            AGAIN_CHART,
            "Per block of 4 KiB, of a file small enough for the caches, again and again",
        ),
        chart(FSYNC_CHART, "Overwrite of 4 KiB, then fsync"),
    ];
    run.tables.push(over_bare(&run, &work));
    run.notes =
        vec![
        plan.clock_note(),
        format!(
            "a file of {} MiB; an image's blocks are allocated beforehand, others allocate as they \
             go (append) \
             or have \
             done so (overwrite)",
            (blocks * BLOCK as u64) >> 20
        ),
        format!("a file small enough for the caches: {} KiB", SMALL >> 10),
        "each round makes the file anew; between phases everything is persisted, which is not in \
         the figures".into(),
        "fsync: nothing else is pending; it is the caller who flushes and fences".into(),
        "bare copy: the same bytes to mapped anonymous memory, through the cache and around it; \
         waited for: with a fence \
         behind each block, before which no other thread may read it".into(),
    ];
    Ok((run, participants.peers()))
}

/// What ours takes over a bare copy of the same bytes.
fn over_bare(run: &Run, work: &Blocks) -> Table {
    let peer = run.baseline.as_str();
    let columns = [
        "copy".into(),
        "ns".into(),
        "append over it".into(),
        "overwrite over it".into(),
        "read over it".into(),
        format!("{peer}: append over it"),
        format!("{peer}: overwrite over it"),
    ];
    let mut table = Table::with_columns("A bare copy of 4 KiB", columns.into());
    for (name, series) in [
        ("through the cache", &work.cached),
        ("around the cache, waited for", &work.drained),
        ("around the cache, never waited for", &work.around),
    ] {
        let series = series.borrow().clone();
        let bare = series.median();
        let over = |target: &str, op: &str| {
            let found = super::claims::median(run, TITLE, target, X::from(op));
            found.map_or("".into(), |ns| (ns / bare).into())
        };
        table.row([
            name.into(),
            series.into(),
            over(OURS, OPS[0]),
            over(OURS, OPS[1]),
            over(OURS, OPS[3]),
            over(peer, OPS[0]),
            over(peer, OPS[1]),
        ]);
    }
    table
}

/// A long file and a short one, by blocks.
pub(super) struct Blocks {
    blocks: u64,
    fsyncs: u64,
    floor: Floor,
    /// ns per block of a bare copy, once for each round of each target.
    cached: RefCell<Series>,
    drained: RefCell<Series>,
    around: RefCell<Series>,
}

impl Blocks {
    /// So many blocks of the long file, at least some, of which some are made durable one by one.
    pub(super) fn new(blocks: u64, fsyncs: u64) -> Result<Blocks> {
        let blocks = blocks.max(16);
        Ok(Blocks {
            blocks,
            fsyncs: fsyncs.min(blocks),
            floor: Floor::new(blocks)?,
            cached: RefCell::default(),
            drained: RefCell::default(),
            around: RefCell::default(),
        })
    }

    /// As many blocks as the long file has, of a file that the caches keep.
    fn again<T: Target>(&self, target: &T, sampler: &mut Sampler<'_>) -> Result<()> {
        let path = CString::new("small")?;
        let file = target.create(&path)?;
        let mut data = vec![0x5a; SMALL as usize];
        target.write(file, &data)?;
        target.sync()?;
        let data = &mut data[..BLOCK];
        let offset = |i| i * BLOCK as u64 % SMALL;
        let count = self.blocks as usize;
        sampler.phase(figure(AGAIN_CHART, AGAIN[0]), count, || {
            (0..self.blocks).try_for_each(|i| target.write_at(file, data, offset(i)))
        })?;
        sampler.persist(target)?;
        sampler.phase(figure(AGAIN_CHART, AGAIN[1]), count, || {
            (0..self.blocks).try_for_each(|i| target.read_at(file, data, offset(i)))
        })?;
        target.close(file)?;
        target.unlink(&path)?;
        target.sync()
    }
}

impl Workload for Blocks {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    fn round<T: Target>(
        &self,
        target: &T,
        _state: &mut (),
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        let path = CString::new("file")?;
        target.create_close(&path)?;
        let (data, blocks) = (vec![0x5a; BLOCK], self.blocks);
        let count = blocks as usize;
        let all = |each: &mut dyn FnMut(u64) -> Result<()>| (0..blocks).try_for_each(each);
        let file = target.open(&path, true)?;
        sampler.phase(figure(CHART, OPS[0]), count, || {
            all(&mut |_| target.write(file, &data))
        })?;
        sampler.persist(target)?;
        target.close(file)?;

        let file = target.open(&path, false)?;
        let write = |block: u64| target.write_at(file, &data, block * BLOCK as u64);
        sampler.phase(figure(CHART, OPS[1]), count, || {
            all(&mut |block| write(block))
        })?;
        sampler.persist(target)?;
        sampler.phase(figure(CHART, OPS[2]), count, || {
            all(&mut |i| write(scattered(i, blocks)))
        })?;
        sampler.persist(target)?;
        let mut buf = vec![0; BLOCK];
        sampler.phase(figure(CHART, OPS[3]), count, || {
            all(&mut |block| target.read_at(file, &mut buf, block * BLOCK as u64))
        })?;
        self.again(target, sampler)?;
        sampler.settled(
            target,
            figure(FSYNC_CHART, "overwrite+fsync"),
            self.fsyncs as usize,
            || {
                (0..self.fsyncs).try_for_each(|block| {
                    write(block)?;
                    target.fsync(file)
                })
            },
        )?;
        target.close(file)?;
        target.unlink(&path)?;
        target.sync()?;
        let plan = sampler.plan();
        self.cached
            .borrow_mut()
            .push(self.floor.cached(plan, blocks)?);
        self.drained
            .borrow_mut()
            .push(self.floor.drained(plan, blocks)?);
        self.around
            .borrow_mut()
            .push(self.floor.around(plan, blocks)?);
        Ok(())
    }
}

/// What no file system can be faster than: copying the bytes to mapped memory.
struct Floor(Pool);

impl Floor {
    fn new(blocks: u64) -> Result<Floor> {
        let pool = Pool::anonymous(blocks * BLOCK as u64, &Options::default())?;
        pool.write(0, &vec![1; pool.len() as usize]);
        Ok(Floor(pool))
    }

    fn cached(&self, plan: &Plan, blocks: u64) -> Result<f64> {
        self.copy(plan, blocks, |off, data| {
            self.0.write(off, data);
            Ok(())
        })
    }

    fn around(&self, plan: &Plan, blocks: u64) -> Result<f64> {
        let ns = self.copy(plan, blocks, |off, data| {
            self.0.write_nt(off, data);
            Ok(())
        })?;
        self.0.fence()?;
        Ok(ns)
    }

    /// With a fence after each block, as whoever is to let others read it needs.
    fn drained(&self, plan: &Plan, blocks: u64) -> Result<f64> {
        self.copy(plan, blocks, |off, data| {
            self.0.write_nt(off, data);
            Ok(self.0.fence()?)
        })
    }

    fn copy(
        &self,
        plan: &Plan,
        blocks: u64,
        copy: impl Fn(u64, &[u8]) -> Result<()>,
    ) -> Result<f64> {
        let data = vec![0x5a; BLOCK];
        let time = plan.timed(|| {
            (0..blocks).try_for_each(|block| copy(block * BLOCK as u64, black_box(&data)))
        })?;
        Ok(ns_each(time, blocks as usize))
    }
}

//! Writing 4 KiB at a time: append and overwrite, beside a bare copy of the same bytes.

use std::ffi::CString;
use std::hint::black_box;

use pmem::{Options, Pool, Stats};

use super::{Pair, Plan, ns_each, scattered};
use crate::engine::Setup;
use crate::report::{Run, Table};
use crate::series::Series;
use crate::target::{Result, Target};

const BLOCK: usize = 4096;
/// Length of the file: bytes.
const FILE: u64 = 64 << 20;
const OPS: [&str; 4] = ["append", "overwrite", "overwrite, random", "read"];

/// What a round's phases took, in ns per block, and what the calling thread flushed and fenced.
#[derive(Default)]
struct Phases {
    ns: [f64; OPS.len()],
    caller: [Stats; OPS.len()],
}

impl Phases {
    fn take(
        &mut self,
        plan: &Plan,
        i: usize,
        blocks: u64,
        mut each: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let before = pmem::thread_stats();
        self.ns[i] = ns_each(
            plan.timed(|| (0..blocks).try_for_each(&mut each))?,
            blocks as usize,
        );
        self.caller[i] = pmem::thread_stats() - before;
        Ok(())
    }
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<Run> {
    let setup = Setup {
        len: 1 << 30,
        ..plan.setup()
    };
    let pair = Pair::new(plan, &setup)?;
    let blocks = plan.scaled(FILE / BLOCK as u64).max(16);
    let floor = Floor::new(blocks)?;
    let mut own: [Series; OPS.len()] = Default::default();
    let mut peer: [Series; OPS.len()] = Default::default();
    let (mut cached, mut around) = (Series::default(), Series::default());
    let mut caller = (0, 0);
    for number in 0..=plan.rounds {
        let (a, b) = if number % 2 == 0 {
            let a = round(plan, &pair.engine, blocks)?;
            (a, round(plan, &pair.kernel, blocks)?)
        } else {
            let b = round(plan, &pair.kernel, blocks)?;
            (round(plan, &pair.engine, blocks)?, b)
        };
        if number == 0 {
            continue;
        }
        for i in 0..OPS.len() {
            own[i].push(a.ns[i]);
            peer[i].push(b.ns[i]);
            caller.0 += a.caller[i].flushed_lines;
            caller.1 += a.caller[i].fences;
        }
        cached.push(floor.cached(plan, blocks)?);
        around.push(floor.around(plan, blocks)?);
    }
    let columns = [
        "operation",
        "SoupFS ns",
        "tmpfs ns",
        "speed-up",
        "of the best rounds",
        "over a bare copy",
    ];
    let mut table = Table::new("Per block of 4 KiB", &columns);
    for (i, name) in OPS.into_iter().enumerate() {
        let over = own[i].median() / cached.median();
        table.row([
            name.into(),
            own[i].clone().into(),
            peer[i].clone().into(),
            peer[i].over(&own[i]).into(),
            (peer[i].least() / own[i].least()).into(),
            over.into(),
        ]);
    }
    for (name, series) in [
        ("bare copy", cached),
        ("bare copy around the cache", around),
    ] {
        let none = || "".into();
        table.row([name.into(), series.into(), none(), none(), none(), none()]);
    }
    let notes = vec![
        plan.clock_note(),
        format!(
            "a file of {} MiB; the image's blocks are allocated beforehand, tmpfs allocates pages as it goes \
             (append) or has them (overwrite)",
            (blocks * BLOCK as u64) >> 20
        ),
        format!(
            "flushed lines and fences of the calling thread, all rounds: {} and {}",
            caller.0, caller.1
        ),
        "each round makes the file anew; between phases everything is persisted, which is not in the figures"
            .into(),
    ];
    Ok(Run {
        name: "data",
        about: "4 KiB appended, overwritten and read".into(),
        tables: vec![table],
        notes,
    })
}

fn round<T: Target>(plan: &Plan, target: &T, blocks: u64) -> Result<Phases> {
    let path = CString::new("file")?;
    target.create_close(&path)?;
    let data = vec![0x5a; BLOCK];
    let mut phases = Phases::default();
    let file = target.open(&path, true)?;
    phases.take(plan, 0, blocks, |_| target.write(file, &data))?;
    target.sync()?;
    target.close(file)?;

    let file = target.open(&path, false)?;
    let write = |block: u64| target.write_at(file, &data, block * BLOCK as u64);
    phases.take(plan, 1, blocks, write)?;
    target.sync()?;
    phases.take(plan, 2, blocks, |i| write(scattered(i, blocks)))?;
    target.sync()?;
    let mut buf = vec![0; BLOCK];
    phases.take(plan, 3, blocks, |block| {
        target.read_at(file, &mut buf, block * BLOCK as u64)
    })?;
    target.close(file)?;
    target.unlink(&path)?;
    target.sync()?;
    Ok(phases)
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
        self.copy(plan, blocks, |off, data| self.0.write(off, data))
    }

    fn around(&self, plan: &Plan, blocks: u64) -> Result<f64> {
        let ns = self.copy(plan, blocks, |off, data| self.0.write_nt(off, data))?;
        self.0.fence()?;
        Ok(ns)
    }

    fn copy(&self, plan: &Plan, blocks: u64, copy: impl Fn(u64, &[u8])) -> Result<f64> {
        let data = vec![0x5a; BLOCK];
        let time = plan.timed(|| {
            (0..blocks).for_each(|block| copy(block * BLOCK as u64, black_box(&data)));
            Ok(())
        })?;
        Ok(ns_each(time, blocks as usize))
    }
}

//! One file that grows: what 4 KiB cost in ever larger files.

use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Found, Run, Shape};
use crate::runner::{NO_WARM_UP, Take, Workload, rounds_of};
use crate::target::{Result, Target};
use crate::workloads::{Random, scattered};

const BLOCK: u64 = 4096;
/// Blocks of the smallest file, and of the largest for each name that growth goes up to: 10^8 bytes by
/// default.
const FIRST: u64 = 10;
const BYTES_EACH: u64 = 100;
/// Operations measured at each size, at most.
const SAMPLE: u64 = 2_000;
const ROUNDS_MAX: usize = 5;
const OPS: [&str; 4] = [
    "append to this size",
    "overwrite, at random",
    "read, at random",
    "overwrite at random, then fsync",
];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let last = (plan.scaled(plan.up_to) * BYTES_EACH / BLOCK).max(FIRST);
    let field = Field::new(plan, (512 << 20) + last * BLOCK * 2)?;
    let sizes = super::growth::powers(FIRST, last);
    let work = Growing { sizes: &sizes };
    let measured = rounds_of(plan, &field, "sizes", &work, 0, plan.rounds.min(ROUNDS_MAX))?;
    let mut run = Run::new("sizes", format!("one file of up to {} bytes", last * BLOCK));
    run.base = field.base(plan);
    run.charts = OPS
        .map(|op| measured.chart(op, op, "bytes", Shape::Growth, Better::Less))
        .into();
    let bytes: Vec<u64> = sizes.iter().map(|blocks| blocks * BLOCK).collect();
    run.tables.push(super::growth::factors(&run.charts, &bytes));
    run.notes = vec![
        plan.clock_note(),
        format!(
            "of each kind up to {SAMPLE} operations on 4 KiB at each size, no more than there are blocks"
        ),
        "append: the mean over all blocks since the size before; everything is persisted between"
            .into(),
        NO_WARM_UP.into(),
    ];
    Ok((run, field.peers()))
}

struct Growing<'a> {
    sizes: &'a [u64],
}

impl Workload for Growing<'_> {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    fn round<T: Target>(&self, target: &T, _state: &mut (), take: &mut Take<'_>) -> Result<()> {
        target.create_close(c"grown")?;
        let (append, file) = (target.open(c"grown", true)?, target.open(c"grown", false)?);
        let mut block = vec![0x66; BLOCK as usize];
        let mut have = 0;
        for &size in self.sizes {
            let (x, sample) = (size * BLOCK, SAMPLE.min(size));
            let blocks = (size - have) as usize;
            take.phase(OPS[0], x, blocks, || {
                (have..size).try_for_each(|_| target.write(append, &block))
            })?;
            target.sync()?;
            let first = Random::new(size).below(size);
            let at = |i| scattered(first + i, size) * BLOCK;
            take.phase(OPS[1], x, sample as usize, || {
                (0..sample).try_for_each(|i| target.write_at(file, &block, at(i)))
            })?;
            target.sync()?;
            take.phase(OPS[2], x, sample as usize, || {
                (0..sample).try_for_each(|i| target.read_at(file, &mut block, at(i)))
            })?;
            take.phase(OPS[3], x, sample as usize, || {
                (0..sample).try_for_each(|i| {
                    target.write_at(file, &block, at(i))?;
                    target.fsync(file)
                })
            })?;
            have = size;
        }
        target.close(append)?;
        target.close(file)?;
        target.unlink(c"grown")?;
        target.sync()
    }
}

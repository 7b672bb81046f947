//! What grows by factors of ten: what an operation costs among ever more names in one directory,
//! and in ever larger files.

use std::ffi::{CStr, CString};

use block::Random;

use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Cell, Chart, Found, Run, Shape, Table, X};
use crate::runner::{NO_WARM_UP, run_cold_rounds};
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Setup, Target, TargetSpec};
use crate::workloads::{names, scattered};

/// Names in the smallest directory.
const FIRST: u64 = 10;
/// What costs are compared with: small enough for the caches, large enough to time.
const REFERENCE: u64 = 10_000;
/// Operations measured at each size, at most.
const SAMPLE: u64 = 10_000;
/// Room for each name: its entry, its inode, its part of the table before and after it grew.
const BYTES_EACH: u64 = 640;
const OPS: [&str; 6] = [
    "create, new names",
    "stat, in order",
    "stat, at random",
    "unlink, just created",
    "unlink, at random",
    "create to this size",
];

/// Runs the family `growth`: one directory that grows.
pub fn run_directory(plan: &Plan) -> Result<Found> {
    let last = plan.scaled(plan.up_to).max(FIRST);
    let files = last + SAMPLE.min(last);
    let setup = Setup {
        len: (1 << 30) + last * BYTES_EACH,
        files: files + files / 8, // some more: inodes are handed out by groups
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs(plan), &setup)?;
    let sizes = powers(FIRST, last);
    let old = names("grown/o", last)?;
    let new = names("grown/n", SAMPLE.min(last))?;
    let about = format!("one directory of up to {last} names");
    let work = Directory {
        sizes: &sizes,
        old: &old,
        new: &new,
    };
    let measured = run_cold_rounds(plan, &participants, "growth", &work)?;
    let mut run = Run::new("growth", about);
    run.baseline = participants.baseline(plan);
    run.charts = OPS
        .map(|op| measured.chart(op, (op, "names"), Shape::Growth, Better::Less))
        .into();
    run.tables.push(factors(&run.charts, &sizes));
    run.notes = vec![
        plan.clock_note(),
        format!(
            "up to {} operations measured at each size, no more than there are names, everything \
             persisted \
             before; in order: \
             of creation",
            new.len()
        ),
        "create to this size: the mean over all creates since the size before".into(),
        NO_WARM_UP.into(),
    ];
    Ok((run, participants.peers()))
}

/// Who was asked for; the engine of ext2 beside that of SoupFS, unless somebody chose one of them.
fn specs(plan: &Plan) -> Vec<TargetSpec> {
    let mut specs = plan.targets.clone();
    let ext2 = TargetSpec::Blocks(Default::default());
    let soupfs = TargetSpec::Engine(Default::default());
    let at = specs.iter().position(|spec| *spec == soupfs);
    if let Some(at) = at.filter(|_| specs.contains(&TargetSpec::Tmpfs) && !specs.contains(&ext2)) {
        specs.insert(at + 1, ext2);
    }
    specs
}

/// From `first` on by factors of ten, and `last`.
pub fn powers(first: u64, last: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = std::iter::successors(Some(first), |size| size.checked_mul(10))
        .take_while(|size| *size < last)
        .collect();
    sizes.push(last);
    sizes
}

/// What each operation costs at each size over what it costs at the reference, or at the smallest.
pub fn factors(charts: &[Chart], sizes: &[u64]) -> Table {
    let reference = match sizes.contains(&REFERENCE) {
        true => REFERENCE,
        false => sizes[0],
    };
    let larger: Vec<u64> = sizes
        .iter()
        .copied()
        .filter(|size| *size > reference)
        .collect();
    let mut columns = vec!["operation".into(), "target".into()];
    columns.extend(larger.iter().map(|size| format!("{size} over {reference}")));
    let mut table = Table::with_columns("Growth of the cost", columns);
    for chart in charts {
        for line in &chart.lines {
            let Some(base) = line.at(&X::from(reference)) else {
                continue;
            };
            let factor = |size: &u64| {
                let point = line.at(&X::from(*size));
                point.map_or(Cell::Nothing, |point| {
                    point.rounds.over(&base.rounds).into()
                })
            };
            let mut row: Vec<Cell> = vec![chart.title.as_str().into(), line.target.as_str().into()];
            row.extend(larger.iter().map(factor));
            table.rows.push(row);
        }
    }
    table
}

struct Directory<'a> {
    sizes: &'a [u64],
    old: &'a [CString],
    new: &'a [CString],
}

type Op<T> = fn(&T, &CStr) -> Result<()>;

/// One operation on each of the names, timed; then everything is persisted.
fn measure<T: Target>(
    sampler: &mut Sampler<'_>,
    target: &T,
    (op, size): (&'static str, u64),
    names: &mut dyn Iterator<Item = &CString>,
    run: Op<T>,
) -> Result<()> {
    // Copied side by side, so that fetching a name costs the same however many there are.
    let names: Vec<CString> = names.cloned().collect();
    sampler.phase(figure(op, size), names.len(), || {
        names.iter().try_for_each(|name| run(target, name))
    })?;
    sampler.persist(target)
}

fn stat<T: Target>(target: &T, name: &CStr) -> Result<()> {
    target.stat(name).map(drop)
}

impl Workload for Directory<'_> {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    /// The directory is made anew, so that each round sees it grow.
    fn round<T: Target>(
        &self,
        target: &T,
        _state: &mut (),
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        target.mkdir(c"grown")?;
        let mut have = 0;
        for &size in self.sizes {
            let (old, new) = (&self.old[..size as usize], self.new);
            // Of the others some were removed at random and made again.
            let in_order = &old[have..];
            let sample = new.len().min(old.len());
            let random = |i: usize| &old[scattered(i as u64, size) as usize];
            let mut phase = |op, names: &mut dyn Iterator<Item = &CString>, run: Op<T>| {
                measure(sampler, target, (OPS[op], size), names, run)
            };
            phase(5, &mut in_order.iter(), T::create_close)?;
            phase(0, &mut new[..sample].iter(), T::create_close)?;
            phase(1, &mut in_order.iter().take(sample), stat)?;
            phase(2, &mut (0..sample).map(random), stat)?;
            phase(3, &mut new[..sample].iter(), T::unlink)?;
            phase(4, &mut (0..sample).map(random), T::unlink)?;
            (0..sample).try_for_each(|i| target.create_close(random(i)))?;
            target.sync()?;
            have = old.len();
        }
        self.old.iter().try_for_each(|name| target.unlink(name))?;
        target.rmdir(c"grown")?;
        target.sync()
    }
}

const BLOCK: u64 = 4096;
/// Blocks of the smallest file, and of the largest for each name that growth goes up to: 10^8 bytes
/// by default.
const BLOCKS_FIRST: u64 = 10;
const BYTES_OF_FILE: u64 = 100;
/// Operations measured at each size, at most.
const BLOCKS_SAMPLE: u64 = 2_000;
const FILE_OPS: [&str; 4] = [
    "append to this size",
    "overwrite, at random",
    "read, at random",
    "overwrite at random, then fsync",
];

/// Runs the family `sizes`: one file that grows.
pub fn run_file(plan: &Plan) -> Result<Found> {
    let last = (plan.scaled(plan.up_to) * BYTES_OF_FILE / BLOCK).max(BLOCKS_FIRST);
    let participants = Participants::new(plan, (512 << 20) + last * BLOCK * 2)?;
    let sizes = powers(BLOCKS_FIRST, last);
    let work = File { sizes: &sizes };
    let measured = run_cold_rounds(plan, &participants, "sizes", &work)?;
    let mut run = Run::new("sizes", format!("one file of up to {} bytes", last * BLOCK));
    run.baseline = participants.baseline(plan);
    run.charts = FILE_OPS
        .map(|op| measured.chart(op, (op, "bytes"), Shape::Growth, Better::Less))
        .into();
    let bytes: Vec<u64> = sizes.iter().map(|blocks| blocks * BLOCK).collect();
    run.tables.push(factors(&run.charts, &bytes));
    run.notes = vec![
        plan.clock_note(),
        format!(
            "of each kind up to {BLOCKS_SAMPLE} operations on 4 KiB at each size, no more than \
             there are blocks"
        ),
        "append: the mean over all blocks since the size before; everything is persisted between"
            .into(),
        NO_WARM_UP.into(),
    ];
    Ok((run, participants.peers()))
}

struct File<'a> {
    sizes: &'a [u64],
}

impl Workload for File<'_> {
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
        target.create_close(c"grown")?;
        let (append, file) = (target.open(c"grown", true)?, target.open(c"grown", false)?);
        let mut block = vec![0x66; BLOCK as usize];
        let mut have = 0;
        for &size in self.sizes {
            let (x, sample) = (size * BLOCK, BLOCKS_SAMPLE.min(size));
            let blocks = (size - have) as usize;
            sampler.phase(figure(FILE_OPS[0], x), blocks, || {
                (have..size).try_for_each(|_| target.write(append, &block))
            })?;
            sampler.persist(target)?;
            let first = Random::new(size).below(size);
            let at = |i| scattered(first + i, size) * BLOCK;
            sampler.phase(figure(FILE_OPS[1], x), sample as usize, || {
                (0..sample).try_for_each(|i| target.write_at(file, &block, at(i)))
            })?;
            sampler.persist(target)?;
            sampler.phase(figure(FILE_OPS[2], x), sample as usize, || {
                (0..sample).try_for_each(|i| target.read_at(file, &mut block, at(i)))
            })?;
            sampler.phase(figure(FILE_OPS[3], x), sample as usize, || {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_ten_and_end_where_asked() {
        assert_eq!(powers(100, 100_000), [100, 1000, 10_000, 100_000]);
        assert_eq!(powers(100, 5000), [100, 1000, 5000]);
        assert_eq!(powers(100, 100), [100]);
    }
}

//! One directory that grows: what an operation costs among ever more names.

use std::ffi::{CStr, CString};

use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Cell, Chart, Found, Run, Shape, Table, X};
use crate::runner::{NO_WARM_UP, Take, Workload, rounds_of};
use crate::target::{Result, Setup, Target};
use crate::workloads::{names, scattered};

/// Names in the smallest directory.
const FIRST: u64 = 100;
/// What costs are compared with: small enough for the caches, large enough to time.
const REFERENCE: u64 = 10_000;
/// Operations measured at each size, at most.
const SAMPLE: u64 = 10_000;
const ROUNDS_MAX: usize = 5;
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

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let last = plan.scaled(plan.up_to).max(FIRST);
    let files = last + SAMPLE.min(last);
    let setup = Setup {
        len: (1 << 30) + last * BYTES_EACH,
        files: files + files / 8, // some more: inodes are handed out by groups
        ..plan.setup()
    };
    let field = Field::of(plan, &plan.targets, &setup)?;
    let sizes = powers(FIRST, last);
    let old = names("grown/o", last)?;
    let new = names("grown/n", SAMPLE.min(last))?;
    let about = format!("one directory of up to {last} names");
    let work = Growing {
        sizes: &sizes,
        old: &old,
        new: &new,
    };
    let rounds = plan.rounds.min(ROUNDS_MAX);
    let measured = rounds_of(plan, &field, "growth", &work, 0, rounds)?;
    let mut run = Run::new("growth", about);
    run.base = field.base(plan);
    run.charts = OPS
        .map(|op| measured.chart(op, op, "names", Shape::Growth, Better::Less))
        .into();
    run.tables.push(factors(&run.charts, &sizes));
    run.notes = vec![
        plan.clock_note(),
        format!(
            "up to {} operations measured at each size, no more than there are names, everything persisted \
             before; in order: \
             of creation",
            new.len()
        ),
        "create to this size: the mean over all creates since the size before".into(),
        NO_WARM_UP.into(),
    ];
    Ok((run, field.peers()))
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

struct Growing<'a> {
    sizes: &'a [u64],
    old: &'a [CString],
    new: &'a [CString],
}

type Op<T> = fn(&T, &CStr) -> Result<()>;

/// One operation on each of the names, timed; then everything is persisted.
fn measure<T: Target>(
    take: &mut Take<'_>,
    target: &T,
    (op, size): (&'static str, u64),
    names: &mut dyn Iterator<Item = &CString>,
    run: Op<T>,
) -> Result<()> {
    // Copied side by side, so that fetching a name costs the same however many there are.
    let names: Vec<CString> = names.cloned().collect();
    take.phase(op, size, names.len(), || {
        names.iter().try_for_each(|name| run(target, name))
    })?;
    target.sync()
}

fn stat<T: Target>(target: &T, name: &CStr) -> Result<()> {
    target.stat(name).map(drop)
}

impl Workload for Growing<'_> {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    /// The directory is made anew, so that each round sees it grow.
    fn round<T: Target>(&self, target: &T, _state: &mut (), take: &mut Take<'_>) -> Result<()> {
        target.mkdir(c"grown")?;
        let mut have = 0;
        for &size in self.sizes {
            let (old, new) = (&self.old[..size as usize], self.new);
            // Of the others some were removed at random and made again.
            let in_order = &old[have..];
            let sample = new.len().min(old.len());
            let random = |i: usize| &old[scattered(i as u64, size) as usize];
            let mut phase = |op, names: &mut dyn Iterator<Item = &CString>, run: Op<T>| {
                measure(take, target, (OPS[op], size), names, run)
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

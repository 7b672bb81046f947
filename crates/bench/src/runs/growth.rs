//! One directory that grows: what an operation costs among 10,000, 100,000 and 1,000,000 names.

use std::ffi::{CStr, CString};

use super::{Pair, Plan, names, ns_each, scattered};
use crate::engine::Setup;
use crate::report::{Run, Table};
use crate::series::Series;
use crate::target::{Result, Target};

/// Names in the directory.
const SIZES: [u64; 3] = [10_000, 100_000, 1_000_000];
/// Operations measured at each size.
const SAMPLE: u64 = 10_000;
const ROUNDS_MAX: usize = 5;
const OPS: [&str; 6] = [
    "create, new names",
    "stat, in order",
    "stat, at random",
    "unlink, just created",
    "unlink, at random",
    "create to this size",
];

/// By size and operation.
type Figures = [[Series; OPS.len()]; SIZES.len()];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Run> {
    let sizes = SIZES.map(|size| plan.scaled(size));
    let sample = plan.scaled(SAMPLE);
    let old = names("o", sizes[SIZES.len() - 1])?;
    let new = names("n", sample)?;
    let (mut own, mut peer) = (Figures::default(), Figures::default());
    for _ in 0..plan.rounds.min(ROUNDS_MAX) {
        let setup = Setup {
            len: 2 << 30,
            ..plan.setup()
        };
        let pair = Pair::new(plan, &setup)?;
        grow(plan, &pair.engine, (&old, &new), &mut own)?;
        grow(plan, &pair.kernel, (&old, &new), &mut peer)?;
    }
    let mut tables = Vec::new();
    for (name, figures) in [("SoupFS", own), ("tmpfs, for comparison", peer)] {
        tables.push(table(name, &sizes, &figures));
    }
    Ok(Run {
        name: "growth",
        about: "one directory of up to 1,000,000 names".into(),
        tables,
        notes: vec![
            plan.clock_note(),
            format!(
                "{sample} operations measured at each size, everything persisted before; in order: of creation"
            ),
            "create to this size: the mean over all creates since the size before".into(),
        ],
    })
}

fn grow<T: Target>(
    plan: &Plan,
    target: &T,
    (old, new): (&[CString], &[CString]),
    figures: &mut Figures,
) -> Result<()> {
    let mut have = 0;
    for (i, size) in SIZES.into_iter().enumerate() {
        let size = plan.scaled(size) as usize;
        let mut measure = |op: usize, names: &mut dyn Iterator<Item = &CString>, run: Op<T>| {
            let mut count = 0;
            let time = plan.timed(|| {
                for name in names {
                    count += 1;
                    run(target, name)?;
                }
                Ok(())
            })?;
            figures[i][op].push(ns_each(time, count));
            target.sync()
        };
        let random = |i: usize| &old[scattered(i as u64, size as u64) as usize];
        let sample = new.len().min(size);
        measure(5, &mut old[have..size].iter(), T::create_close)?;
        measure(0, &mut new.iter(), T::create_close)?;
        measure(1, &mut old[..sample].iter(), stat)?;
        measure(2, &mut (0..sample).map(random), stat)?;
        measure(3, &mut new.iter(), T::unlink)?;
        measure(4, &mut (0..sample).map(random), T::unlink)?;
        (0..sample).try_for_each(|i| target.create_close(random(i)))?;
        target.sync()?;
        have = size;
    }
    Ok(())
}

type Op<T> = fn(&T, &CStr) -> Result<()>;

fn stat<T: Target>(target: &T, name: &CStr) -> Result<()> {
    target.stat(name).map(drop)
}

fn table(name: &str, sizes: &[u64], figures: &Figures) -> Table {
    let [a, b, c] = [0, 1, 2].map(|i| format!("{} names: ns", sizes[i]));
    let columns = [
        "operation",
        &a,
        &b,
        &c,
        "100,000 over 10,000",
        "1,000,000 over 10,000",
    ];
    let mut table = Table::new(name, &columns);
    for (op, name) in OPS.into_iter().enumerate() {
        let at = |size: usize| figures[size][op].clone();
        table.row([
            name.into(),
            at(0).into(),
            at(1).into(),
            at(2).into(),
            at(1).over(&at(0)).into(),
            at(2).over(&at(0)).into(),
        ]);
    }
    table
}

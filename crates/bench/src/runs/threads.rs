//! Two threads: how far they get in each other's way.

use std::ffi::{CStr, CString};
use std::sync::Barrier;
use std::time::Duration;

use super::{Pair, Plan, names, timed};
use crate::report::{Run, Table};
use crate::series::Series;
use crate::target::{Result, Target};

const NAMES: u64 = 20_000;
const OPS: [&str; 3] = ["create+close", "stat", "unlink"];

/// Millions of operations per second, in all threads together: one thread, two in separate
/// directories, two in one directory.
type Figures = [[Series; OPS.len()]; 3];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Run> {
    let pair = Pair::new(plan, &plan.setup())?;
    let count = plan.scaled(NAMES);
    let (mut own, mut peer) = (Figures::default(), Figures::default());
    for number in 0..=plan.rounds {
        let mut scrap = (Figures::default(), Figures::default());
        let (own, peer) = if number == 0 {
            (&mut scrap.0, &mut scrap.1)
        } else {
            (&mut own, &mut peer)
        };
        round(&pair.engine, count, own)?;
        round(&pair.kernel, count, peer)?;
    }
    let tables = vec![
        table(pair.engine.name(), &own),
        table(pair.kernel.name(), &peer),
    ];
    Ok(Run {
        name: "threads",
        about: format!("{count} names per thread"),
        tables,
        notes: vec![
            "millions of operations per second in all, and what two threads reach over one of the same round"
                .into(),
            "everything is persisted between phases; within a phase the persister wakes once a second, so on \
             two cores it takes a share of one now and then"
                .into(),
        ],
    })
}

fn round<T: Target>(target: &T, count: u64, figures: &mut Figures) -> Result<()> {
    let layouts: [&[&str]; 3] = [&["a/x"], &["a/x", "b/y"], &["a/x", "a/y"]];
    for (layout, figures) in layouts.into_iter().zip(figures) {
        target.mkdir(c"a")?;
        target.mkdir(c"b")?;
        let names: Vec<Vec<CString>> = layout
            .iter()
            .map(|prefix| names(prefix, count))
            .collect::<Result<_>>()?;
        let ops: [fn(&T, &CStr) -> Result<()>; OPS.len()] = [
            T::create_close,
            |target, name| target.stat(name).map(drop),
            T::unlink,
        ];
        for (op, series) in ops.into_iter().zip(figures) {
            let time = together(target, &names, op)?;
            let done = names.len() as f64 * count as f64;
            series.push(done / time.as_secs_f64() / 1e6);
            target.sync()?;
        }
        target.rmdir(c"a")?;
        target.rmdir(c"b")?;
        target.sync()?;
    }
    Ok(())
}

/// Runs an operation on all names of a list in a thread of its own per list; the time until the last
/// is done.
fn together<T: Target>(
    target: &T,
    lists: &[Vec<CString>],
    op: fn(&T, &CStr) -> Result<()>,
) -> Result<Duration> {
    let start = Barrier::new(lists.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = lists
            .iter()
            .map(|list| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    timed(|| list.iter().try_for_each(|name| op(target, name)))
                })
            })
            .collect();
        let mut longest = Duration::ZERO;
        for thread in threads {
            longest = longest.max(thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok(longest)
    })
}

fn table(name: &str, figures: &Figures) -> Table {
    let columns = [
        "operation",
        "one thread",
        "two, separate directories",
        "over one",
        "two, one directory",
        "over one",
    ];
    let mut table = Table::new(name, &columns);
    for (i, op) in OPS.into_iter().enumerate() {
        let at = |layout: usize| figures[layout][i].clone();
        table.row([
            op.into(),
            at(0).into(),
            at(1).into(),
            at(1).over(&at(0)).into(),
            at(2).into(),
            at(2).over(&at(0)).into(),
        ]);
    }
    table
}

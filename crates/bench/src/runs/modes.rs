//! Delayed against sync: what an operation costs its caller, and the medium.

use std::ffi::{CStr, CString};
use std::time::Duration;

use pmem::Stats;
use soupfs::Mode;
use soupfs::layout::{LINE, PAGE, dentry, inode};

use super::claims;
use crate::plan::{Plan, ns_each, timed};
use crate::report::{Better, Chart, Check, DELAYED, Found, Line, Point, Run, Shape, Table, short};
use crate::series::Series;
use crate::target::{Engine, Setup};
use crate::target::{Result, Target};
use crate::workloads::names;

/// The other mode; see [`DELAYED`].
const SYNC: &str = "in-process, sync";
const NAMES: u64 = 10_000;
const BLOCK: usize = 4096;
const OPS: [&str; 7] = [
    "create+close",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "append",
    "write+fsync",
];

/// What an operation cost in a mode.
#[derive(Default)]
struct Cost {
    /// ns of the caller per operation.
    caller_ns: Series,
    /// Operations per second, until all is durable.
    durable_rate: Series,
    /// What the caller did to the medium, and all did; all rounds.
    caller: Total,
    all: Total,
    ops: usize,
}

/// Sums of what `Stats` tells.
#[derive(Default)]
struct Total {
    flushed_lines: u64,
    fences: u64,
    bytes: u64,
}

impl Total {
    fn add(&mut self, stats: Stats) {
        self.flushed_lines += stats.flushed_lines;
        self.fences += stats.fences;
        self.bytes += stats.bytes_cached + stats.bytes_non_temporal;
    }
}

type Costs = [Cost; OPS.len()];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let old = names("f", plan.scaled(NAMES))?;
    let new = names("g", plan.scaled(NAMES))?;
    let temp = plan.temp()?;
    let mut cases = Vec::new();
    for (name, mode) in [(DELAYED, Mode::Delayed), (SYNC, Mode::Sync)] {
        let setup = Setup {
            mode,
            ..plan.setup()
        };
        let engine = setup.mount(name, setup.create(&temp.path().join(name))?)?;
        cases.push((engine, Costs::default()));
    }
    for number in 0..=plan.rounds {
        for (engine, costs) in &mut cases {
            let mut scrap = Costs::default();
            let costs = if number == 0 { &mut scrap } else { costs };
            round(engine, &old, &new, costs)?;
        }
    }

    let mut run = Run::new("modes", "delayed against sync, in-process, domain line");
    run.charts = times(&cases);
    run.tables = vec![counts(&cases)];
    run.checks = checks(&cases);
    run.baseline = SYNC.into();
    run.notes = vec![
        "durable: operations over the time until all of them are durable (delayed: a sync at \
             the end \
             of the phase; the persister works while the caller does)"
            .into(),
        format!(
            "counts per operation, over phases of {} operations; those of the persister are \
                 what is not \
                 the caller's",
            old.len()
        ),
    ];
    Ok((run, Vec::new()))
}

fn round(engine: &Engine, old: &[CString], new: &[CString], costs: &mut Costs) -> Result<()> {
    let data = vec![7; BLOCK];
    let all = |op: fn(&Engine, &CStr) -> Result<()>| {
        move || old.iter().try_for_each(|name| op(engine, name))
    };
    let count = old.len();
    costs[0].phase(engine, count, all(Engine::create_close))?;
    costs[1].phase(engine, count, || {
        let mut pairs = old.iter().zip(new);
        pairs.try_for_each(|(old, new)| engine.rename(old, new))
    })?;
    costs[2].phase(engine, count, || {
        new.iter().try_for_each(|name| engine.unlink(name))
    })?;
    costs[3].phase(engine, count, all(Engine::mkdir))?;
    costs[4].phase(engine, count, all(Engine::rmdir))?;

    let file = engine.create(c"appended")?;
    let handle = engine.open(c"appended", true)?;
    costs[5].phase(engine, count, || {
        (0..count).try_for_each(|_| engine.write(handle, &data))
    })?;
    engine.close(handle)?;
    costs[6].phase(engine, count, || {
        (0..count as u64).try_for_each(|i| {
            engine.write_at(file, &data, i * BLOCK as u64)?;
            engine.fsync(file)
        })
    })?;
    engine.close(file)?;
    engine.unlink(c"appended")?;
    engine.sync()
}

impl Cost {
    fn phase(
        &mut self,
        engine: &Engine,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (all, own) = (engine.pool().stats(), pmem::thread_stats());
        let caller = timed(work)?;
        self.caller.add(pmem::thread_stats() - own);
        let rest = timed(|| engine.sync())?;
        self.all.add(engine.pool().stats() - all);
        self.ops += ops;
        self.caller_ns.push(ns_each(caller, ops));
        self.durable_rate.push(per_second(ops, caller + rest));
        Ok(())
    }
}

fn per_second(ops: usize, time: Duration) -> f64 {
    ops as f64 / time.as_secs_f64()
}

/// What callers take, and what comes of it.
fn times(cases: &[(Engine, Costs)]) -> Vec<Chart> {
    let thousands = |cost: &Cost| {
        let rates = cost.durable_rate.values().iter();
        rates.map(|rate| rate / 1000.0).collect()
    };
    vec![
        chart(cases, ("Of the caller", "ns", Better::Less), |cost| {
            cost.caller_ns.clone()
        }),
        chart(
            cases,
            ("Deadline durable", "1000/s", Better::More),
            thousands,
        ),
    ]
}

fn chart(
    cases: &[(Engine, Costs)],
    (title, unit, better): (&str, &str, Better),
    figure: impl Fn(&Cost) -> Series,
) -> Chart {
    let mut chart = Chart::new(title, "operation", unit, better, Shape::Bars);
    for (engine, costs) in cases {
        let points = OPS.into_iter().zip(costs);
        chart.lines.push(Line {
            target: engine.name().into(),
            points: points
                .map(|(op, cost)| Point::new(op, figure(cost)))
                .collect(),
        });
    }
    chart
}

/// What the paper says of structures and flushes, which is counted and so not a matter of
/// intervals.
fn checks(cases: &[(Engine, Costs)]) -> Vec<Check> {
    // Of a create, in each mode.
    let each = |count: u64, cost: &Cost| count as f64 / cost.ops.max(1) as f64;
    let [delayed, sync] = [0, 1].map(|mode| &cases[mode].1[0]);
    let caller = |cost: &Cost| {
        let (lines, fences) = (cost.caller.flushed_lines, cost.caller.fences);
        format!(
            "{} lines and {} fences",
            short(each(lines, cost)),
            short(each(fences, cost))
        )
    };
    let none = delayed.caller.flushed_lines + delayed.caller.fences == 0;
    vec![
        claims::check(
            "SoupFS §2.2, Fig. 2: creating a file takes no flush before the call returns.",
            Some(none),
            format!(
                "In mode delayed the caller flushes {}; {} lines are flushed for each create \
                 later.",
                caller(delayed),
                short(each(delayed.all.flushed_lines, delayed)),
            ),
            "",
        ),
        claims::about_others(
            "SoupFS §2.2, Fig. 2: in a file system with a journal creating a file takes around 14 \
             flushes before the call returns.",
            format!("In our mode sync the caller flushes {}.", caller(sync)),
            "Our journal holds the few words that publish a create, and not copies of what they \
             lead to.",
        ),
        claims::check(
            "SoupFS Table 1: an inode takes 64 bytes, an entry 32 and its name apart; a page of \
             buckets, a node of \
             a tree and a block 4 KiB.",
            Some((inode::LEN, LINE) == (64, 32)),
            format!(
                "An inode takes {} bytes, an entry {LINE} with names of up to {} bytes in it; \
                 pages are {} KiB.",
                inode::LEN,
                dentry::INLINE,
                PAGE >> 10
            ),
            "The inode has times in nanoseconds, the time of birth, attributes and the parent of a \
             directory; with \
             the name inside, a lookup waits for one line less.",
        ),
    ]
}

fn counts(cases: &[(Engine, Costs)]) -> Table {
    let columns = [
        "operation",
        "mode",
        "lines flushed by caller",
        "fences by caller",
        "lines flushed in all",
        "fences in all",
        "bytes stored in all",
    ];
    let mut table = Table::new("What the medium sees, per operation", &columns);
    for (i, op) in OPS.into_iter().enumerate() {
        for (engine, costs) in cases {
            let cost = &costs[i];
            let each = |count: u64| (count as f64 / cost.ops.max(1) as f64).into();
            table.row([
                op.into(),
                engine.name().into(),
                each(cost.caller.flushed_lines),
                each(cost.caller.fences),
                each(cost.all.flushed_lines),
                each(cost.all.fences),
                each(cost.all.bytes),
            ]);
        }
    }
    table
}

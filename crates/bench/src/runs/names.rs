//! Making and removing names: the paper's filetest and dirtest (SoupFS §5.2, Fig. 9).
//!
//! Each round makes all files in one directory, removes them, makes directories, removes those.
//! Twice: *settled*, where each phase finds what the phase before did persisted (what a removal
//! then costs in the background is shown beside it), and *back to back*, as the paper has it.

use std::ffi::CString;
use std::time::Instant;

use hdrhistogram::Histogram;
use pmem::Stats;

use super::{Pair, Plan, name_ops, names, ns_each};
use crate::report::{Cell, Run, Table};
use crate::series::Series;
use crate::target::{Result, Target};

const NAMES: u64 = 10_000;
const OPS: usize = 4;
/// Rounds in which each operation is timed by itself.
const LATENCY_ROUNDS: usize = 3;

/// What the rounds of one target gave, by operation.
#[derive(Default)]
struct Figures {
    /// Nanoseconds per operation.
    ns: [Series; OPS],
    /// The same for persisting what the operations did.
    settle_ns: [Series; OPS],
    /// What the calling thread flushed and fenced.
    caller: [Stats; OPS],
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<Run> {
    let pair = Pair::new(plan, &plan.setup())?;
    let names = names("f", plan.scaled(NAMES))?;
    let mut tables = Vec::new();
    for settle in [true, false] {
        tables.push(rounds(plan, &pair, &names, settle)?);
    }
    tables.push(latencies(&pair, &names)?);
    let notes = vec![
        plan.clock_note(),
        "ns of the caller per operation: median over rounds (least to greatest); speed-up: tmpfs's over \
         SoupFS's of the same round, and of each one's best round"
            .into(),
        "persist: time of a sync right after the phase, divided by its operations; it is not part of \
         the caller's figure (tmpfs persists nothing)"
            .into(),
        "back to back: a removal mostly meets what is not persisted yet, and cancels it".into(),
    ];
    let about = format!("{} names made and removed in one directory", names.len());
    Ok(Run {
        name: "names",
        about,
        tables,
        notes,
    })
}

fn rounds(plan: &Plan, pair: &Pair, names: &[CString], settle: bool) -> Result<Table> {
    let (mut own, mut peer) = (Figures::default(), Figures::default());
    for number in 0..=plan.rounds {
        let (mut a, mut b) = (Figures::default(), Figures::default());
        // Who comes first alternates, so that neither always finds the caches warm.
        if number % 2 == 0 {
            round(plan, &pair.engine, names, settle, &mut a)?;
            round(plan, &pair.kernel, names, settle, &mut b)?;
        } else {
            round(plan, &pair.kernel, names, settle, &mut b)?;
            round(plan, &pair.engine, names, settle, &mut a)?;
        }
        if number > 0 {
            own.add(&a);
            peer.add(&b);
        }
    }
    let title = if settle { "Settled" } else { "Back to back" };
    let columns = [
        "operation",
        "SoupFS ns",
        "tmpfs ns",
        "speed-up",
        "of the best rounds",
        "persist ns",
        "caller's flushes",
        "caller's fences",
    ];
    let mut table = Table::new(title, &columns);
    for (i, (name, _)) in name_ops::<crate::Engine>().into_iter().enumerate() {
        let persist = own.settle_ns[i].clone();
        table.row([
            name.into(),
            own.ns[i].clone().into(),
            peer.ns[i].clone().into(),
            peer.ns[i].over(&own.ns[i]).into(),
            (peer.ns[i].least() / own.ns[i].least()).into(),
            if settle { persist.into() } else { "".into() },
            own.caller[i].flushed_lines.into(),
            own.caller[i].fences.into(),
        ]);
    }
    Ok(table)
}

fn round<T: Target>(
    plan: &Plan,
    target: &T,
    names: &[CString],
    settle: bool,
    figures: &mut Figures,
) -> Result<()> {
    for (i, (_, op)) in name_ops::<T>().into_iter().enumerate() {
        let before = pmem::thread_stats();
        let time = plan.timed(|| names.iter().try_for_each(|name| op(target, name)))?;
        figures.caller[i] = pmem::thread_stats() - before;
        figures.ns[i].push(ns_each(time, names.len()));
        if settle {
            let time = plan.timed(|| target.sync())?;
            figures.settle_ns[i].push(ns_each(time, names.len()));
        }
    }
    target.sync()
}

impl Figures {
    fn add(&mut self, round: &Figures) {
        for i in 0..OPS {
            let pour = |to: &mut Series, from: &Series| {
                from.values().iter().for_each(|&value| to.push(value));
            };
            pour(&mut self.ns[i], &round.ns[i]);
            pour(&mut self.settle_ns[i], &round.settle_ns[i]);
            self.caller[i].flushed_lines += round.caller[i].flushed_lines;
            self.caller[i].fences += round.caller[i].fences;
        }
    }
}

fn latencies(pair: &Pair, names: &[CString]) -> Result<Table> {
    let title = "Latency of single operations, settled, in ns (reading the clock included)";
    let columns = [
        "operation",
        "target",
        "50 %",
        "90 %",
        "99 %",
        "99.9 %",
        "max",
    ];
    let mut table = Table::new(title, &columns);
    let mut own = histograms()?;
    let mut peer = histograms()?;
    for _ in 0..LATENCY_ROUNDS {
        time_each(&pair.engine, names, &mut own)?;
        time_each(&pair.kernel, names, &mut peer)?;
    }
    for (i, (name, _)) in name_ops::<crate::Engine>().into_iter().enumerate() {
        for (target, histogram) in [
            (pair.engine.name(), &own[i]),
            (pair.kernel.name(), &peer[i]),
        ] {
            let at = |part: f64| Cell::from(histogram.value_at_quantile(part));
            let max = histogram.max().into();
            let quantiles = [0.5, 0.9, 0.99, 0.999].map(at);
            let [a, b, c, d] = quantiles;
            table.row([name.into(), target.into(), a, b, c, d, max]);
        }
    }
    Ok(table)
}

fn histograms() -> Result<Vec<Histogram<u64>>> {
    let histogram = Histogram::new(3)?;
    Ok(vec![histogram; OPS])
}

fn time_each<T: Target>(
    target: &T,
    names: &[CString],
    histograms: &mut [Histogram<u64>],
) -> Result<()> {
    for ((_, op), histogram) in name_ops::<T>().into_iter().zip(histograms) {
        for name in names {
            let start = Instant::now();
            op(target, name)?;
            histogram.record(start.elapsed().as_nanos() as u64)?;
        }
        target.sync()?;
    }
    Ok(())
}

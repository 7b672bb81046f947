//! Slow media: what a caller notices of the time that flushes take (SoupFS §5.4, Fig. 13).

use std::ffi::CString;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pmem::Latency;
use tempfile::TempDir;

use crate::plan::{Plan, ns_each};
use crate::report::{Peer, Run, Table};
use crate::series::Series;
use crate::target::{Engine, Setup};
use crate::target::{Result, Target};
use crate::workloads::names;

const NAMES: u64 = 20_000;
/// Extra nanoseconds per flushed line.
const FLUSH_NS: [u32; 4] = [0, 200, 400, 800];
/// A bound that makes the persister run all the time.
const BUSY: Duration = Duration::from_millis(2);

/// An engine on a medium of some latency, and what callers saw.
struct Case {
    flush_ns: u32,
    engine: Engine,
    _temp: TempDir,
    /// Mean of each round: ns per create.
    mean: Series,
    histogram: Histogram<u64>,
    /// Highest share of the backlog's limit that was seen: percent.
    backlog: f64,
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<(Run, Vec<Peer>)> {
    let names = names("f", plan.scaled(NAMES))?;
    let default = plan.setup().bound;
    let tables = vec![
        sweep(
            plan,
            &names,
            default,
            "The persister wakes once a second (default)",
        )?,
        sweep(
            plan,
            &names,
            BUSY,
            "The persister never rests (bound of 2 ms)",
        )?,
    ];
    let mut run = Run::new(
        "latency",
        format!(
            "create+close of {} names on media with slow flushes",
            names.len()
        ),
    );
    run.tables = tables;
    run.notes = vec![
            "the extra time is spun away by the thread that flushes: the persister's, which so takes a core \
             as long as it flushes"
                .into(),
            plan.clock_note(),
            "50 %, 99 %: of single creates, by the wall clock; over 0 ns: of the same round; reading the clock for each operation is part of all figures".into(),
        ];
    Ok((run, Vec::new()))
}

fn sweep(plan: &Plan, names: &[CString], bound: Duration, title: &str) -> Result<Table> {
    let mut cases = Vec::new();
    for flush_ns in FLUSH_NS {
        cases.push(Case::new(plan, flush_ns, bound)?);
    }
    for number in 0..=plan.rounds {
        for i in 0..cases.len() {
            // Each round begins with another one.
            let case = &mut cases[(i + number) % FLUSH_NS.len()];
            case.round(plan, names, number > 0)?;
        }
    }
    let columns = [
        "per flushed line",
        "create+close ns",
        "over 0 ns",
        "of the medians",
        "50 %",
        "99 %",
        "highest backlog, % of its limit",
    ];
    let mut table = Table::new(title, &columns);
    let base = cases[0].mean.clone();
    let base_median = cases[0].histogram.value_at_quantile(0.5) as f64;
    for case in cases {
        let at = |part: f64| case.histogram.value_at_quantile(part);
        table.row([
            format!("{} ns", case.flush_ns).into(),
            case.mean.clone().into(),
            case.mean.over(&base).into(),
            (at(0.5) as f64 / base_median).into(),
            at(0.5).into(),
            at(0.99).into(),
            case.backlog.into(),
        ]);
    }
    Ok(table)
}

impl Case {
    fn new(plan: &Plan, flush_ns: u32, bound: Duration) -> Result<Case> {
        let temp = plan.temp()?;
        let latency = Latency {
            flush_ns,
            ..Latency::default()
        };
        let setup = Setup {
            len: 256 << 20,
            latency,
            bound,
            ..plan.setup()
        };
        let engine = setup.mount("SoupFS", setup.create(&temp.path().join("image"))?)?;
        Ok(Case {
            flush_ns,
            engine,
            _temp: temp,
            mean: Series::default(),
            histogram: Histogram::new(3)?,
            backlog: 0.0,
        })
    }

    fn round(&mut self, plan: &Plan, names: &[CString], counts: bool) -> Result<()> {
        let (engine, histogram) = (&self.engine, &mut self.histogram);
        let time = plan.timed(|| {
            names.iter().try_for_each(|name| {
                let start = Instant::now();
                engine.create_close(name)?;
                let took = start.elapsed();
                if counts {
                    histogram.record(took.as_nanos() as u64)?;
                }
                Ok(())
            })
        })?;
        if counts {
            self.mean.push(ns_each(time, names.len()));
        }
        let backlog = self.engine.status().backlog;
        self.backlog = self
            .backlog
            .max(100.0 * backlog.ops as f64 / backlog.ops_max as f64);
        self.engine.sync()?;
        names.iter().try_for_each(|name| self.engine.unlink(name))?;
        self.engine.sync()
    }
}

//! filetest and dirtest (SoupFS §4.2): names made and removed in one directory.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::report::{Better, Chart, Line, Point, Shape};
use crate::runner::{Take, Workload};
use crate::target::{Result, Target};

/// An operation on a name of a target.
pub type NameOp<T> = fn(&T, &CStr) -> Result<()>;

/// What filetest and dirtest do, in order. Each phase undoes an earlier one.
pub fn name_ops<T: Target>() -> [(&'static str, NameOp<T>); 4] {
    [
        ("create+close", T::create_close),
        ("unlink", T::unlink),
        ("mkdir", T::mkdir),
        ("rmdir", T::rmdir),
    ]
}

/// All names made and removed, timed phase by phase.
pub struct Phases<'a> {
    /// The names.
    pub names: &'a [CString],
    /// Persist between phases, so that a removal meets what is on the medium.
    pub settle: bool,
}

/// The chart of [`Phases`].
pub const PHASES: &str = "phases";

impl Workload for Phases<'_> {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    fn round<T: Target>(&self, target: &T, _state: &mut (), take: &mut Take<'_>) -> Result<()> {
        let count = self.names.len();
        for (name, op) in name_ops::<T>() {
            let work = || self.names.iter().try_for_each(|name| op(target, name));
            if self.settle {
                take.settled(target, PHASES, name, count, work)?;
            } else {
                take.phase(PHASES, name, count, work)?;
            }
        }
        target.sync()
    }
}

/// By operation and target, one for each round that counts.
type Found = BTreeMap<(&'static str, String), Vec<Histogram<u64>>>;

/// The same, each operation timed by itself.
pub struct Singles<'a> {
    names: &'a [CString],
    found: Mutex<Found>,
}

/// The parts of a distribution that are kept.
const PARTS: [f64; 20] = [
    0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99,
    0.995, 0.999, 1.0,
];

impl<'a> Singles<'a> {
    /// Nothing timed so far.
    pub fn new(names: &'a [CString]) -> Singles<'a> {
        Singles {
            names,
            found: Mutex::default(),
        }
    }

    /// The distributions, a chart for each operation; targets in the order of `order`.
    pub fn charts<'n>(self, order: impl Iterator<Item = &'n str> + Clone) -> Vec<Chart> {
        let found = self
            .found
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let line = |op, target: &str| {
            let rounds = found.get(&(op, target.to_owned()))?;
            let points = PARTS.map(|part| {
                let each = rounds
                    .iter()
                    .map(|round| round.value_at_quantile(part) as f64);
                Point::new(part, each.collect())
            });
            Some(Line {
                target: target.into(),
                points: points.into(),
            })
        };
        let ops = name_ops::<crate::Engine>().map(|(name, _)| name);
        let chart = |op| {
            let title = format!("Latency of {op}");
            let x = "part of the operations";
            let lines = order.clone().filter_map(|target| line(op, target));
            let chart = Chart {
                lines: lines.collect(),
                ..Chart::new(title, x, "ns", Better::Less, Shape::Quantiles)
            };
            match op {
                "create+close" => chart.like("SoupFS Fig. 9(c)"),
                _ => chart,
            }
        };
        ops.map(chart).into()
    }
}

impl Workload for Singles<'_> {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    fn round<T: Target>(&self, target: &T, _state: &mut (), take: &mut Take<'_>) -> Result<()> {
        for (op, run) in name_ops::<T>() {
            let mut times = Histogram::<u64>::new(3)?;
            for name in self.names {
                let start = Instant::now();
                run(target, name)?;
                times.record(start.elapsed().as_nanos() as u64)?;
            }
            target.sync()?;
            if take.warms_up() {
                continue;
            }
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (op, target.name().to_owned());
            found.entry(key).or_default().push(times);
        }
        Ok(())
    }
}

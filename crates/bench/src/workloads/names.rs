//! filetest and dirtest (SoupFS §4.2): names made and removed in one directory.

use std::ffi::{CStr, CString};
use std::time::Instant;

use hdrhistogram::Histogram;

use crate::sampler::{Sampler, Workload, figure};
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

    fn round<T: Target>(
        &self,
        target: &T,
        _state: &mut (),
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        let count = self.names.len();
        for (name, op) in name_ops::<T>() {
            let work = || self.names.iter().try_for_each(|name| op(target, name));
            if self.settle {
                sampler.settled(target, figure(PHASES, name), count, work)?;
            } else {
                sampler.phase(figure(PHASES, name), count, work)?;
            }
        }
        match self.settle {
            true => target.sync(),
            false => sampler.persist(target),
        }
    }
}

/// The same, each operation timed by itself: a distribution of latencies for each.
pub struct Singles<'a> {
    /// The names.
    pub names: &'a [CString],
}

/// The charts of [`Singles`], one for each of [`name_ops`].
pub const LATENCIES: [&str; 4] = [
    "Latency of create+close",
    "Latency of unlink",
    "Latency of mkdir",
    "Latency of rmdir",
];

/// The quantiles that are kept.
const QUANTILES: [f64; 20] = [
    0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99,
    0.995, 0.999, 1.0,
];

impl Workload for Singles<'_> {
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
        for ((_, op), chart) in name_ops::<T>().into_iter().zip(LATENCIES) {
            let mut times = Histogram::<u64>::new(3)?;
            for name in self.names {
                let start = Instant::now();
                op(target, name)?;
                times.record(start.elapsed().as_nanos() as u64)?;
            }
            target.sync()?;
            for quantile in QUANTILES {
                let ns = times.value_at_quantile(quantile);
                sampler.value(figure(chart, quantile), ns as f64);
            }
        }
        Ok(())
    }
}

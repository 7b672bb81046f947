//! One round of a workload on one target, and the samples that it takes.
//!
//! A workload is generic over its target; it tells the sampler where the work that counts begins
//! and ends. The sampler reads the clock and the counters, and the runner collects what it has.

use std::time::Duration;

use crate::counters::{CounterSource, Counters, of_caller};
use crate::plan::{Plan, ns_each, timed};
use crate::report::{PERSIST, X};
use crate::target::{Result, Target};

/// What is measured: the same code for each kind of target.
pub trait Workload {
    /// What it keeps between rounds, for each target.
    type State;

    /// Before the first round: files that rounds need.
    ///
    /// # Errors
    /// If the target cannot do that.
    fn prepare<T: Target>(&self, target: &T) -> Result<Self::State>;

    /// One round. What it records, it records in each; of those that warm up the runner keeps
    /// nothing.
    ///
    /// # Errors
    /// If the target fails; no more rounds are run then.
    fn round<T: Target>(
        &self,
        target: &T,
        state: &mut Self::State,
        sampler: &mut Sampler<'_>,
    ) -> Result<()>;
}

/// Which figure a sample belongs to: the key of its chart, and the value of what is varied.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureId {
    chart: &'static str,
    x: X,
}

/// The figure of a chart at a value of what is varied.
pub fn figure(chart: &'static str, x: impl Into<X>) -> FigureId {
    let x = x.into();
    FigureId { chart, x }
}

/// Records the figures of one round on one target.
pub struct Sampler<'a> {
    plan: &'a Plan,
    counters: &'a CounterSource,
    in_process: bool,
    samples: Vec<Sample>,
    /// Of the samples, those whose operations were persisted in time that stands beside one.
    persisted: usize,
}

/// One figure of one round.
pub struct Sample {
    /// The key of its chart.
    pub chart: &'static str,
    /// The value of what is varied.
    pub x: X,
    /// The figure.
    pub value: f64,
    /// Operations that the counters are of.
    pub ops: f64,
    /// What was counted meanwhile.
    pub counts: Counters,
    /// Other figures: name and value.
    pub extra: Vec<(&'static str, f64)>,
}

/// What threads did.
#[derive(Debug, Clone, Copy)]
pub struct Throughput {
    /// Operations of all.
    pub ops: u64,
    /// From when the first began until the last was done.
    pub time: Duration,
    /// How often one slept: waiting for a lock, mostly.
    pub sleeps: u64,
}

impl<'a> Sampler<'a> {
    /// Nothing recorded so far; `in_process`: the calling thread's own flushes are the target's.
    pub(crate) fn new(
        plan: &'a Plan,
        counters: &'a CounterSource,
        in_process: bool,
    ) -> Sampler<'a> {
        Sampler {
            plan,
            counters,
            in_process,
            samples: Vec::new(),
            persisted: 0,
        }
    }

    /// What was recorded.
    pub(crate) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }

    /// What the run was asked for.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// Time `ops` operations of a single caller: ns for each, with its flushes and fences.
    ///
    /// # Errors
    /// That of the work.
    pub fn phase(
        &mut self,
        id: FigureId,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let own = of_caller();
        let time = self.plan.timed(work)?;
        let mut sample = Sample::new(id, ns_each(time, ops), ops);
        // Others have no flushes of their own in this process.
        if self.in_process {
            sample.counts = of_caller().since(&own);
        }
        self.samples.push(sample);
        Ok(())
    }

    /// The same, with what the target did meanwhile.
    ///
    /// # Errors
    /// That of the work.
    pub fn counted(
        &mut self,
        id: FigureId,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.counters.read();
        self.phase(id, ops, work)?;
        let counts = self.counters.read().since(&before);
        self.counted_also(&counts);
        Ok(())
    }

    /// What was counted elsewhere during the phase before.
    pub fn counted_also(&mut self, counts: &Counters) {
        if let Some(sample) = self.samples.last_mut() {
            sample.counts.add_all(counts);
        }
    }

    /// The same as a phase, then wait until everything is durable; what that took, and what the
    /// target did for both, stands beside.
    ///
    /// # Errors
    /// That of the work, or of persisting.
    pub fn settled<T: Target>(
        &mut self,
        target: &T,
        id: FigureId,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.counters.read();
        self.phase(id, ops, work)?;
        self.persist(target)?;
        let counts = self.counters.read().since(&before);
        self.counted_also(&counts);
        Ok(())
    }

    /// Wait until everything is durable. What that took stands beside all figures that were
    /// recorded since the last time: the same for each of their operations, as nobody can tell them
    /// apart.
    ///
    /// # Errors
    /// That of persisting.
    pub fn persist<T: Target>(&mut self, target: &T) -> Result<()> {
        let time = timed(|| target.sync())?;
        let mut new: Vec<&mut Sample> = self.samples[self.persisted..]
            .iter_mut()
            .filter(|sample| sample.ops > 0.0)
            .collect();
        let ops: f64 = new.iter().map(|sample| sample.ops).sum();
        let ns = ns_each(time, ops as usize);
        if target.sync_waits() {
            new.iter_mut()
                .for_each(|sample| sample.extra.push((PERSIST, ns)));
        }
        self.persisted = self.samples.len();
        Ok(())
    }

    /// Operations of several threads per second, in thousands, with what the target did meanwhile
    /// and how often threads slept. `work` returns the operations and the time they took.
    ///
    /// # Errors
    /// That of the work.
    pub fn rate(&mut self, id: FigureId, work: impl FnOnce() -> Result<Throughput>) -> Result<()> {
        let before = self.counters.read();
        let done = work()?;
        let seconds = done.time.as_secs_f64().max(1e-9);
        let rate = done.ops as f64 / seconds / 1000.0;
        let mut sample = Sample::new(id, rate, done.ops as usize);
        sample.counts = self.counters.read().since(&before);
        sample.counts.add("sleeps", done.sleeps);
        self.samples.push(sample);
        Ok(())
    }

    /// A figure that was come by otherwise.
    pub fn value(&mut self, id: FigureId, value: f64) {
        self.samples.push(Sample::new(id, value, 0));
    }
}

impl Sample {
    fn new(id: FigureId, value: f64, ops: usize) -> Sample {
        Sample {
            chart: id.chart,
            x: id.x,
            value,
            ops: ops as f64,
            counts: Counters::default(),
            extra: Vec::new(),
        }
    }
}

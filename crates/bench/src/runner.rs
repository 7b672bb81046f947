//! Rounds: all targets in turn, again and again, and what they gave.

use std::time::Duration;

use crate::counts::{Counts, of_caller};
use crate::field::{Contestant, Field, Place};
use crate::plan::{Plan, ns_each, timed};
use crate::report::{Better, Chart, Line, Point, Shape, X};
use crate::series::Series;
use crate::target::{Result, Target};

/// Rounds that count even if time is over: one alone has no range.
const ROUNDS_MIN: usize = 2;

/// What is measured: the same code for each kind of target.
pub trait Workload {
    /// What it keeps between rounds, for each target.
    type State;

    /// Before the first round: files that rounds need.
    fn prepare<T: Target>(&self, target: &T) -> Result<Self::State>;

    /// One round. What it records with `take`, it records in each round, also in those that warm up.
    fn round<T: Target>(
        &self,
        target: &T,
        state: &mut Self::State,
        take: &mut Take<'_>,
    ) -> Result<()>;
}

/// Records the figures of one round on one target.
pub struct Take<'a> {
    plan: &'a Plan,
    contestant: &'a Contestant,
    warms_up: bool,
    samples: Vec<Sample>,
}

/// One figure.
struct Sample {
    chart: &'static str,
    x: X,
    value: f64,
    /// Operations that the counters are of.
    ops: f64,
    counts: Counts,
    /// Other figures: name and value.
    extra: Vec<(&'static str, f64)>,
}

impl Take<'_> {
    /// What the run was asked for.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// The round is not counted: what a workload records by itself, it has to leave out.
    pub fn warms_up(&self) -> bool {
        self.warms_up
    }

    /// Time `ops` operations of a single caller: ns for each, with its flushes and fences.
    pub fn phase(
        &mut self,
        chart: &'static str,
        x: impl Into<X>,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let own = of_caller();
        let time = self.plan.timed(work)?;
        let mut sample = Sample::new(chart, x.into(), ns_each(time, ops), ops);
        // Others have no flushes of their own in this process.
        if matches!(self.contestant.place, Place::Engine(_)) {
            sample.counts = of_caller().since(&own);
        }
        self.samples.push(sample);
        Ok(())
    }

    /// The same, with what the target did meanwhile.
    pub fn counted(
        &mut self,
        chart: &'static str,
        x: impl Into<X>,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.contestant.probe.read();
        self.phase(chart, x, ops, work)?;
        let counts = self.contestant.probe.read().since(&before);
        if let Some(sample) = self.samples.last_mut() {
            sample.counts.add_all(&counts);
        }
        Ok(())
    }

    /// The same as a phase, then wait until everything is durable; what that took, and what the target did for
    /// both, stands beside.
    pub fn settled<T: Target>(
        &mut self,
        target: &T,
        chart: &'static str,
        x: impl Into<X>,
        ops: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.contestant.probe.read();
        self.phase(chart, x, ops, work)?;
        let time = timed(|| target.sync())?;
        let counts = self.contestant.probe.read().since(&before);
        if let Some(sample) = self.samples.last_mut() {
            sample.extra.push(("persist ns", ns_each(time, ops)));
            sample.counts.add_all(&counts);
        }
        Ok(())
    }

    /// Operations of several threads per second, in thousands, with what the target did meanwhile
    /// and how often threads slept. `work` returns the operations and the time they took.
    pub fn rate(
        &mut self,
        chart: &'static str,
        x: impl Into<X>,
        work: impl FnOnce() -> Result<Done>,
    ) -> Result<()> {
        let before = self.contestant.probe.read();
        let done = work()?;
        let seconds = done.time.as_secs_f64().max(1e-9);
        let rate = done.ops as f64 / seconds / 1000.0;
        let mut sample = Sample::new(chart, x.into(), rate, done.ops as usize);
        sample.counts = self.contestant.probe.read().since(&before);
        sample.counts.add("sleeps", done.sleeps);
        self.samples.push(sample);
        Ok(())
    }

    /// A figure that was come by otherwise.
    pub fn value(&mut self, chart: &'static str, x: impl Into<X>, value: f64) {
        self.samples.push(Sample::new(chart, x.into(), value, 0));
    }
}

/// What threads did.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Operations of all.
    pub ops: u64,
    /// From when the first began until the last was done.
    pub time: Duration,
    /// How often one slept: waiting for a lock, mostly.
    pub sleeps: u64,
}

impl Sample {
    fn new(chart: &'static str, x: X, value: f64, ops: usize) -> Sample {
        Sample {
            chart,
            x,
            value,
            ops: ops as f64,
            counts: Counts::default(),
            extra: Vec::new(),
        }
    }
}

/// What all rounds gave.
pub struct Measured {
    lines: Vec<(String, Vec<Gathered>)>,
}

/// All rounds of one figure.
struct Gathered {
    chart: &'static str,
    x: X,
    rounds: Series,
    ops: f64,
    counts: Counts,
    extra: Vec<(&'static str, Series)>,
}

/// Run all rounds of a workload: one that warms up, and those of the plan.
pub fn rounds<W: Workload>(plan: &Plan, field: &Field, what: &str, work: &W) -> Result<Measured> {
    rounds_of(plan, field, what, work, 1, plan.rounds)
}

/// For the notes of a run without rounds that warm up.
pub const NO_WARM_UP: &str =
    "no round warms up: each begins with nothing, and the first one counts";

/// The same with other numbers of rounds.
pub fn rounds_of<W: Workload>(
    plan: &Plan,
    field: &Field,
    what: &str,
    work: &W,
    warm_up: usize,
    rounds: usize,
) -> Result<Measured> {
    let all = &field.contestants;
    let steps = (warm_up + rounds + 1) * all.len();
    let named = |contestant: &Contestant| format!("{what}: {}", contestant.peer.name);
    let mut states = Vec::new();
    for (i, contestant) in all.iter().enumerate() {
        plan.progress.step(&named(contestant), i, steps);
        let state = match &contestant.place {
            Place::Engine(engine) => work.prepare(engine.as_ref()),
            Place::Directory(directory) => work.prepare(directory),
        };
        states.push(state.map_err(|why| contestant.failed(why))?);
    }
    let mut measured = Measured::new(field);
    for number in 0..warm_up + rounds {
        if number >= warm_up + ROUNDS_MIN && plan.is_over() {
            break;
        }
        for turn in 0..all.len() {
            // Each round begins with another one, so that none always finds the caches warm.
            let i = (turn + number) % all.len();
            plan.progress
                .step(&named(&all[i]), (number + 1) * all.len() + turn, steps);
            let mut take = Take {
                plan,
                contestant: &all[i],
                warms_up: number < warm_up,
                samples: Vec::new(),
            };
            let done = match &all[i].place {
                Place::Engine(engine) => work.round(engine.as_ref(), &mut states[i], &mut take),
                Place::Directory(dir) => work.round(dir, &mut states[i], &mut take),
            };
            done.map_err(|why| all[i].failed(why))?;
            if !take.warms_up {
                measured.add(i, take.samples);
            }
        }
    }
    Ok(measured)
}

impl Measured {
    fn new(field: &Field) -> Measured {
        let names = field.contestants.iter().map(|one| one.peer.name.clone());
        Measured {
            lines: names.map(|name| (name, Vec::new())).collect(),
        }
    }

    fn add(&mut self, i: usize, samples: Vec<Sample>) {
        let line = &mut self.lines[i].1;
        for sample in samples {
            let same = |own: &&mut Gathered| own.chart == sample.chart && own.x == sample.x;
            let own = match line.iter_mut().find(same) {
                Some(own) => own,
                None => {
                    line.push(Gathered::new(&sample));
                    line.last_mut().expect("was just pushed")
                }
            };
            own.take(sample);
        }
    }

    /// The figures that were recorded under `key`, as a chart.
    pub fn chart(
        &self,
        key: &str,
        title: impl Into<String>,
        x: &str,
        shape: Shape,
        better: Better,
    ) -> Chart {
        let lines = self.lines.iter().map(|(target, gathered)| Line {
            target: target.clone(),
            points: gathered
                .iter()
                .filter(|own| own.chart == key)
                .map(Gathered::point)
                .collect(),
        });
        let unit = match better {
            Better::Less => "ns",
            Better::More => "1000/s",
        };
        Chart {
            lines: lines.filter(|line| !line.points.is_empty()).collect(),
            ..Chart::new(title, x, unit, better, shape)
        }
    }
}

impl Gathered {
    fn new(first: &Sample) -> Gathered {
        Gathered {
            chart: first.chart,
            x: first.x.clone(),
            rounds: Series::default(),
            ops: 0.0,
            counts: Counts::default(),
            extra: Vec::new(),
        }
    }

    fn take(&mut self, sample: Sample) {
        self.rounds.push(sample.value);
        self.ops += sample.ops;
        self.counts.add_all(&sample.counts);
        for (name, value) in sample.extra {
            match self.extra.iter_mut().find(|(own, _)| *own == name) {
                Some((_, series)) => series.push(value),
                None => self.extra.push((name, [value].into_iter().collect())),
            }
        }
    }

    fn point(&self) -> Point {
        let other = self.extra.iter();
        let other = other.map(|(name, series)| ((*name).to_owned(), series.median()));
        Point {
            x: self.x.clone(),
            rounds: self.rounds.clone(),
            extra: other.chain(self.counts.per_op(self.ops)).collect(),
        }
    }
}

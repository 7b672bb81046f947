//! Rounds: all participants in turn, again and again, and the figures that they gave.

use crate::counters::Counters;
use crate::participants::{AnyTarget, Participant, Participants};
use crate::plan::Plan;
use crate::report::{Better, Chart, Line, Point, Shape, X};
use crate::sampler::{Sample, Sampler, Workload};
use crate::series::Series;
use crate::target::Result;

/// Rounds that count even if time is over: fewer decide nothing.
const ROUNDS_MIN: usize = 5;
/// Rounds that begin with nothing take long: no more than these.
const COLD_ROUNDS_MAX: usize = 5;

/// How many rounds a workload is run.
struct Rounds {
    warm_up: usize,
    counted: usize,
}

/// Run a workload on all participants: a round that warms up, then those of the plan. `what` names
/// it in the progress.
pub fn run_rounds<W: Workload>(
    plan: &Plan,
    participants: &Participants,
    what: &str,
    work: &W,
) -> Result<Measured> {
    let rounds = Rounds {
        warm_up: 1,
        counted: plan.rounds,
    };
    run_all(plan, participants, (what, rounds), work)
}

/// For the notes of a run without rounds that warm up.
pub const NO_WARM_UP: &str =
    "no round warms up: each begins with nothing, and the first one counts";

/// The same without a round that warms up, for a workload that begins with nothing in each round.
pub fn run_cold_rounds<W: Workload>(
    plan: &Plan,
    participants: &Participants,
    what: &str,
    work: &W,
) -> Result<Measured> {
    let rounds = Rounds {
        warm_up: 0,
        counted: plan.rounds.min(COLD_ROUNDS_MAX),
    };
    run_all(plan, participants, (what, rounds), work)
}

fn run_all<W: Workload>(
    plan: &Plan,
    participants: &Participants,
    (what, rounds): (&str, Rounds),
    work: &W,
) -> Result<Measured> {
    let mut states = Vec::new();
    for one in &participants.running {
        plan.progress
            .step(&format!("{what}: {}", one.peer.name), 0, 1);
        let state = match &one.target {
            AnyTarget::Engine(engine) => work.prepare(engine.as_ref()),
            AnyTarget::Blocks(blocks) => work.prepare(&blocks.engine),
            AnyTarget::Directory(directory) => work.prepare(directory),
        };
        states.push(state.map_err(|why| one.failed(why))?);
    }
    run_turns(plan, participants, (what, rounds), |i, one, sampler| {
        let state = &mut states[i];
        match &one.target {
            AnyTarget::Engine(engine) => work.round(engine.as_ref(), state, sampler),
            AnyTarget::Blocks(blocks) => work.round(&blocks.engine, state, sampler),
            AnyTarget::Directory(directory) => work.round(directory, state, sampler),
        }
    })
}

/// Rounds of what is done with a participant itself, rather than with its target: programs are run
/// there, or it is mounted again. The first round warms up.
pub fn run_each(
    plan: &Plan,
    participants: &Participants,
    what: &str,
    round: impl Fn(&Participant, &mut Sampler<'_>) -> Result<()>,
) -> Result<Measured> {
    let rounds = Rounds {
        warm_up: 1,
        counted: plan.rounds,
    };
    run_turns(plan, participants, (what, rounds), |_, one, sampler| {
        round(one, sampler)
    })
}

/// All participants in turn, round by round; `one_round` does one of the participant of a number.
fn run_turns(
    plan: &Plan,
    participants: &Participants,
    (what, rounds): (&str, Rounds),
    mut one_round: impl FnMut(usize, &Participant, &mut Sampler<'_>) -> Result<()>,
) -> Result<Measured> {
    let all = &participants.running;
    let count = rounds.warm_up + rounds.counted;
    let step = |done: usize, one: &Participant| {
        let steps = count * all.len();
        let what = format!("{what}: {}", one.peer.name);
        plan.progress.step(&what, done, steps);
    };
    let mut measured = Measured::new(participants);
    for number in 0..count {
        if number >= rounds.warm_up + ROUNDS_MIN && plan.is_over() {
            break;
        }
        let warms_up = number < rounds.warm_up;
        for turn in 0..all.len() {
            // Each round begins with another one, so that none always finds the caches warm.
            let i = (turn + number) % all.len();
            let one = &all[i];
            step(number * all.len() + turn, one);
            let in_process = !matches!(one.target, AnyTarget::Directory(_));
            let mut sampler = Sampler::new(plan, &one.counters, in_process);
            one_round(i, one, &mut sampler).map_err(|why| one.failed(why))?;
            if !warms_up {
                measured.add(i, sampler.into_samples());
            }
        }
    }
    Ok(measured)
}

/// What all rounds gave, by participant.
pub struct Measured {
    lines: Vec<(String, Vec<Figure>)>,
}

/// All rounds of one figure.
struct Figure {
    chart: &'static str,
    x: X,
    rounds: Series,
    ops: f64,
    counts: Counters,
    extra: Vec<(&'static str, Series)>,
}

impl Measured {
    fn new(participants: &Participants) -> Measured {
        let all = participants.running.iter();
        Measured {
            lines: all.map(|one| (one.peer.name.clone(), Vec::new())).collect(),
        }
    }

    fn add(&mut self, i: usize, samples: Vec<Sample>) {
        let line = &mut self.lines[i].1;
        for sample in samples {
            let same = |own: &&mut Figure| own.chart == sample.chart && own.x == sample.x;
            let own = match line.iter_mut().find(same) {
                Some(own) => own,
                None => {
                    line.push(Figure::new(&sample));
                    line.last_mut().expect("was just pushed")
                }
            };
            own.add(sample);
        }
    }

    /// The figures that were recorded under `key`: times if less is better, else rates.
    pub fn chart(
        &self,
        key: &str,
        (title, x): (impl Into<String>, &str),
        shape: Shape,
        better: Better,
    ) -> Chart {
        let lines = self.lines.iter().map(|(target, figures)| Line {
            target: target.clone(),
            points: figures
                .iter()
                .filter(|own| own.chart == key)
                .map(Figure::point)
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

impl Figure {
    fn new(first: &Sample) -> Figure {
        Figure {
            chart: first.chart,
            x: first.x.clone(),
            rounds: Series::default(),
            ops: 0.0,
            counts: Counters::default(),
            extra: Vec::new(),
        }
    }

    fn add(&mut self, sample: Sample) {
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

//! Long random sequences of operations, on an engine and on the [`Model`] side by side.
//!
//! Every return value is compared, and at intervals the whole tree. A sequence follows from a
//! seed and a [`Config`] alone; a failure prints them as one token, which [`replay`] runs again,
//! and the fewest operations found that still fail.

mod concurrent;
mod op;
mod shared;
mod side;
mod token;

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use op::{DIRS, DirSlot, Make, NODES, NameId, NodeSlot, Op};
pub use shared::check_shared;

use op::generate;
use side::{Outcome, Side, Subtree, disagreement};
use token::{decode, encode};
use vfs::{Clock, FileSystem, ManualClock, SetAttr, Time};

use crate::snapshot::{Snapshot, View};
use crate::{Engine, Feature, Model, Options};

/// The environment variable whose token [`check`] replays.
pub const REPLAY: &str = "TUREEN_REPLAY";

/// The environment variable that says how many seeds [`check`] runs, for long searches.
pub const SEEDS: &str = "TUREEN_SEEDS";

/// How long the search for a shorter sequence goes on.
const SHRINK_FOR: Duration = Duration::from_secs(30);

/// What sequences are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Operations in a sequence (of each thread).
    pub ops: u32,
    /// One operation in so many is an unmount and mount; 0: none.
    pub remount_one_in: u16,
    /// One in so many lets the engine settle; 0: none.
    pub settle_one_in: u16,
    /// One in so many compares the whole tree, besides the end; 0: none.
    pub check_one_in: u16,
    /// Threads; with more than one, each works in its own directory and in a shared one. Remounts
    /// then happen at the end only, and timestamps are not compared.
    pub threads: u8,
    /// Whether the far end of 16 TiB is used.
    pub far: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ops: 2000,
            remount_one_in: 400,
            settle_one_in: 100,
            check_one_in: 150,
            threads: 1,
            far: true,
        }
    }
}

/// What a run that found nothing did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    /// Operations done.
    pub ops: usize,
    /// Those of them that succeeded.
    pub succeeded: usize,
    /// Names in the tree at the end.
    pub names: usize,
}

/// The engine and the model differ.
pub struct Failure {
    /// Replays the failure: see [`replay`].
    pub token: String,
    /// What differed, after which operation.
    pub what: String,
    /// The fewest operations found that still fail, perhaps in another way.
    pub ops: Vec<Op>,
    /// What differs after these.
    pub shrunk: String,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}", self.token, self.what)?;
        writeln!(f, "Replay with {REPLAY}={}", self.token)?;
        writeln!(f, "Shortened to {} operations:", self.ops.len())?;
        for op in &self.ops {
            writeln!(f, "    {op:?}")?;
        }
        write!(f, "{}", self.shrunk)
    }
}

/// Run the sequence of this seed.
pub fn run<E: Engine>(config: Config, seed: u64, engine: &E) -> Result<Summary, Box<Failure>> {
    if config.threads > 1 {
        return concurrent::run(config, seed, engine);
    }
    let ops = generate(config, seed);
    attempt(engine, &ops).map_err(|(at, what)| {
        let (ops, shrunk) = shrink(engine, ops[..at].to_vec(), what.clone());
        Box::new(Failure {
            token: encode(config, seed),
            what,
            ops,
            shrunk,
        })
    })
}

/// Run operations that come from elsewhere than a seed, on fresh file systems; the slots that they
/// name are below [`DIRS`] and [`NODES`].
///
/// # Errors
/// What differs. What panics in the engine, or in looking at it, panics here.
pub fn run_ops<E: Engine>(ops: &[Op], engine: &E) -> Result<Summary, String> {
    Pair::new(engine).run(ops, &mut 0)
}

/// Run the sequence that a token of a [`Failure`] stands for; panics if it is no such token.
pub fn replay<E: Engine>(token: &str, engine: &E) -> Result<Summary, Box<Failure>> {
    let (config, seed) = decode(token).unwrap_or_else(|| panic!("{token:?} is no token"));
    run(config, seed, engine)
}

/// Run the sequences of these seeds, or, if the environment variable [`REPLAY`] is set, the one
/// it names; panics with the first failure. [`SEEDS`] in the environment sets another number of
/// seeds, from the same first one.
pub fn check<E: Engine>(config: Config, seeds: Range<u64>, engine: &E) {
    if let Ok(token) = std::env::var(REPLAY) {
        if let Err(failure) = replay(&token, engine) {
            panic!("{failure:?}");
        }
        return;
    }
    let count = std::env::var(SEEDS)
        .ok()
        .and_then(|count| count.parse().ok());
    let end = count.map_or(seeds.end, |count: u64| seeds.start.saturating_add(count));
    for seed in seeds.start..end {
        if let Err(failure) = run(config, seed, engine) {
            panic!("{failure:?}");
        }
    }
}

/// Where a run failed (operations done, that one included), and how.
type Broken = (usize, String);

/// Run these operations on fresh file systems; a panic counts as a failure.
fn attempt<E: Engine>(engine: &E, ops: &[Op]) -> Result<Summary, Broken> {
    let mut at = 0;
    let result = catch_unwind(AssertUnwindSafe(|| Pair::new(engine).run(ops, &mut at)));
    match result {
        Ok(Ok(summary)) => Ok(summary),
        Ok(Err(what)) => Err((at.min(ops.len()), what)),
        Err(panic) => Err((at.min(ops.len()), format!("panic: {}", panic_text(&*panic)))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_default()
}

/// Drop runs of operations, long ones first, while what is left still fails.
fn shrink<E: Engine>(engine: &E, mut ops: Vec<Op>, mut what: String) -> (Vec<Op>, String) {
    let until = Instant::now() + SHRINK_FOR;
    let mut chunk = ops.len().div_ceil(2);
    while chunk > 0 {
        let mut start = 0;
        let mut dropped = false;
        while start < ops.len() && Instant::now() < until {
            let end = ops.len().min(start + chunk);
            let rest = [&ops[..start], &ops[end..]].concat();
            match attempt(engine, &rest) {
                Err((at, now)) => {
                    ops = rest;
                    ops.truncate(at);
                    what = now;
                    dropped = true;
                }
                Ok(_) => start = end,
            }
        }
        // At single operations go on until none can be spared.
        if chunk > 1 || !dropped || Instant::now() >= until {
            chunk /= 2;
        }
    }
    (ops, what)
}

/// An engine and the model, on one clock.
struct Pair<'e, E: Engine> {
    engine: &'e E,
    clock: Arc<ManualClock>,
    view: View,
    /// `None` only while it is mounted again.
    fs: Option<E::Fs>,
    model: Model,
}

/// The view in which an engine is to equal the model.
fn view<E: Engine>(engine: &E) -> View {
    let exact = engine.lacks(Feature::Clock).is_none();
    View {
        times: exact,
        atime: exact,
    }
}

impl<'e, E: Engine> Pair<'e, E> {
    fn new(engine: &'e E) -> Pair<'e, E> {
        let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
        let fs = engine.make(clock.clone());
        let model = Model::with_options(clock.clone(), Options::of(fs.limits()));
        Pair {
            engine,
            view: view(engine),
            fs: Some(fs),
            model,
            clock,
        }
    }

    /// Run the operations; `at` counts those begun.
    fn run(&mut self, ops: &[Op], at: &mut usize) -> Result<Summary, String> {
        let mut summary = Summary::default();
        let mut done = 0;
        level(self.fs(), self.clock.now());
        level(&self.model, self.clock.now());
        // A remount needs all nodes given back: both sides start anew after it.
        loop {
            let rest = &ops[done..];
            let part = rest
                .iter()
                .position(|op| *op == Op::Remount)
                .unwrap_or(rest.len());
            self.run_mounted(&rest[..part], at, &mut summary)?;
            done += part;
            if done == ops.len() {
                break;
            }
            self.remount();
            *at += 1;
            done += 1;
        }
        self.remount();
        summary.names = self.compare()?;
        Ok(summary)
    }

    fn run_mounted(
        &mut self,
        ops: &[Op],
        at: &mut usize,
        summary: &mut Summary,
    ) -> Result<(), String> {
        let fs = self.fs.as_ref().expect("it is mounted");
        let mut left = Side::new(fs, Subtree::whole(fs));
        let mut right = Side::new(&self.model, Subtree::whole(&self.model));
        for op in ops {
            *at += 1;
            self.clock.advance(1000);
            match op {
                Op::Settle => self.engine.settle(fs),
                Op::Check => drop(self.compare().map_err(|what| format!("{what}\nat {at}"))?),
                _ => {
                    let outcome = step(&mut left, &mut right, op, self.engine, self.view)
                        .map_err(|what| format!("operation {at}, {op:?}: {what}"))?;
                    summary.ops += 1;
                    summary.succeeded += usize::from(outcome);
                }
            }
        }
        self.compare().map(drop)
    }

    fn remount(&mut self) {
        if let Some(fs) = self.fs.take() {
            self.fs = Some(self.engine.remount(fs));
        }
    }

    fn fs(&self) -> &E::Fs {
        self.fs.as_ref().expect("it is mounted")
    }

    /// Compare the whole trees; returns the number of names.
    fn compare(&self) -> Result<usize, String> {
        let fs = self.fs();
        let is = Snapshot::of(fs, &fs.root(), self.view).map_err(|error| error.to_string())?;
        let model = &self.model;
        let should = Snapshot::of(model, &model.root(), self.view).expect("the model can be read");
        match is.difference(&should) {
            Some(difference) => Err(format!("the trees differ:\n{difference}")),
            None => Ok(is.len()),
        }
    }
}

/// Bring the root to the same attributes on every engine.
fn level<F: FileSystem>(fs: &F, now: Time) {
    let set = SetAttr {
        perm: Some(0o755),
        uid: Some(0),
        gid: Some(0),
        size: None,
        atime: Some(now),
        mtime: Some(now),
        ctime: None,
    };
    fs.setattr(&fs.root(), &set)
        .expect("the root's attributes can be set");
}

/// Do one operation on both sides; returns whether it succeeded.
fn step<F: FileSystem, E: Engine>(
    left: &mut Side<'_, F>,
    right: &mut Side<'_, Model>,
    op: &Op,
    engine: &E,
    view: View,
) -> Result<bool, String> {
    let lacks = |feature| engine.lacks(feature).is_some();
    if op.needs().is_some_and(lacks) || !right.is_possible(op) {
        return Ok(false);
    }
    let should = right.apply(op, view);
    let is = left.apply(op, view);
    match disagreement(op, &is, &should, right) {
        Some(what) => Err(what),
        None => {
            left.same_identities(right)?;
            Ok(!matches!(is, Outcome::Failed(_) | Outcome::Skipped))
        }
    }
}

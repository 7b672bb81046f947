//! Running a workload: what it did to the medium, and what was true after each step.

mod failing;
mod making;
mod snapshots;

use crate::engine::{Leaves, Mounted, Mounting, Shortage, Subject};
use crate::image::Image;
use crate::medium::Tears;
use crate::op::{HANDLES, Op, Side};
use crate::parallel::Until;
use crate::rules::Rules;
use crate::scratch::{Device, Scratch};
use crate::states::{Crash, Explorer, Moment, Sampling};
use crate::trace::{Event, Trace};
use crate::tree::{Flaw, Id, Slot, Tree};
use crate::workload::Workload;
use block::Random;
use model::Model;
use pmem::Domain;
use serde::{Deserialize, Serialize};
use snapshots::Snapshots;
use std::sync::Arc;
use vfs::{Clock, Errno, ManualClock, RenameMode, Time};
use xxhash_rust::xxh3::xxh3_64;

/// What a step made durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Synced {
    /// Nothing that was asked for.
    Nothing,
    /// All that there is.
    Everything,
    /// All that there is, but for the contents of these inodes: an earlier life wrote to them.
    EverythingBut(Vec<Id>),
    /// All that there was before the step, whose change may be in it as a whole or not.
    EverythingBefore,
    /// These inodes; with their names if `true`.
    These(Vec<(Id, bool)>),
}

impl Synced {
    /// Whether the contents of this inode are durable.
    pub fn has(&self, id: Id) -> bool {
        match self {
            Synced::Nothing | Synced::EverythingBefore => false,
            Synced::Everything => true,
            Synced::EverythingBut(inodes) => !inodes.contains(&id),
            Synced::These(inodes) => inodes.iter().any(|(one, _)| *one == id),
        }
    }
}

/// A step of a run: mounting is the first, unmounting the last, between them are the operations.
#[derive(Clone, Serialize, Deserialize)]
pub struct Step {
    /// For people.
    pub what: String,
    /// The clock's time during it.
    #[serde(with = "crate::forms::time")]
    pub time: Time,
    /// What it made durable.
    pub synced: Synced,
    /// Batches that it published.
    pub batches: u64,
    /// Names that it moved: from and to.
    pub moved: Vec<(Slot, Slot)>,
    /// The file that it writes to while space is short, where what has found its space is durable
    /// at once, or before what waits for some: it may be there without the rest.
    #[serde(default)]
    pub written: Option<Id>,
    /// What all but the last of several batches left, in order, as far as they differ.
    pub between: Vec<Tree>,
    /// What callers saw afterwards, with what was held.
    pub latest: Tree,
    /// What a crash after it leaves if every store gets to the medium.
    pub durable: Tree,
}

/// A workload that was run.
pub struct Run {
    /// What was run.
    pub workload: Workload,
    /// Whose rules apply.
    pub rules: Rules,
    /// Until this step has ended the file system is being made: a crash may leave none.
    pub made: Option<usize>,
    /// The image from before.
    pub start: Image,
    /// Unmounting marked the image clean.
    pub clean: bool,
    /// The trace.
    pub events: Vec<Event>,
    /// Names of the places in the engine, if they were asked for.
    pub sites: Vec<String>,
    /// No crash before this step: what only prepares is the first.
    pub from: usize,
    /// What was true after each step.
    pub steps: Vec<Step>,
    /// If a sync fails, in the last step: what callers see later. Some of these bytes may get to
    /// the medium.
    pub later: Vec<Tree>,
}

/// Run an operation, in a mode in which what it changes is `durable` when it returns. What a read
/// changes is durable within the bound only, in all modes: with this the step syncs all.
fn run_alone(fs: &mut dyn Mounted, op: &Op, durable: bool) -> vfs::Result<()> {
    let done = fs.run(op);
    match op {
        Op::Access(_) if durable => fs.run(&Op::Syncfs).and(done),
        _ => done,
    }
}

/// Mount as a workload wants it.
fn mount(
    workload: &Workload,
    device: &Device,
    clock: Arc<ManualClock>,
) -> Result<Box<dyn Mounted>, Flaw> {
    let how = Mounting {
        mode: workload.mode,
        persisters: workload.persisters,
        thresholds: workload.thresholds,
        transactions: workload.transactions,
        searches: workload.searches(),
        mends_first: false,
        clock,
    };
    workload.engine.mount(device, &how)
}

struct Recording<'a> {
    workload: &'a Workload,
    clock: Arc<ManualClock>,
    trace: Arc<Trace>,
    device: Device,
    fs: Box<dyn Mounted>,
    model: Option<Side<Model>>,
    steps: Vec<Step>,
    /// Batches that steps have accounted for. An operation that failed, and is no step, may have
    /// published some.
    counted: u64,
    /// An allocation failed, and the operation with it.
    refused: bool,
    /// See [`Workload::shortage`].
    shortage: Option<Shortage>,
    /// What each snapshot is to have.
    snapshots: Snapshots,
    /// What the trace has stored so far, in full, and how many events that is.
    replayed: (Scratch, usize),
}

impl Run {
    /// Run a workload. An error: the engine did something that the model does not.
    pub fn record(workload: Workload, rules: impl Into<Rules>, sites: bool) -> Result<Run, Flaw> {
        let rules = rules.into();
        match workload.fails {
            _ if workload.mkfs.is_some() => making::record(workload, rules, sites),
            Some(number) if rules.are(Domain::Page) => failing::record(workload, number),
            _ => Run::record_good(workload, rules, sites),
        }
    }

    /// A seed of the run's own, so that the few states that are judged further are others in each.
    pub(crate) fn own_seed(&self) -> u64 {
        let (workload, rules) = (&self.workload, self.rules);
        xxh3_64(format!("{} {rules} {}", workload.name, workload.mode.name).as_bytes())
    }

    /// The image that one of the crashes of the run leaves, for a second life.
    pub fn some_image(&self, seed: u64) -> Image {
        let mut random = Random::new(seed);
        let mut picked = self.start.clone();
        let mut seen = 0;
        let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
            seen += 1;
            if random.below(seen) == 0 {
                picked = scratch.image(crash.overlay);
            }
            Ok(())
        };
        let explorer = Explorer {
            rules: self.rules,
            sampling: Sampling {
                exhaustive: 16,
                samples: 2,
                at_flush: 0,
                tears: Tears::Some,
                seed,
            },
            only: None,
            from: 0,
            until: Until::Done,
            visit: &mut visit,
        };
        // The visitor objects to nothing.
        let _ = explorer.run(
            &self.events,
            &mut self.subject().scratch(self.start.clone()),
        );
        picked
    }

    fn record_good(workload: Workload, rules: Rules, sites: bool) -> Result<Run, Flaw> {
        let engine = workload.engine;
        let subject = Subject { engine, rules };
        let start = workload
            .start
            .clone()
            .unwrap_or_else(|| engine.empty(workload.len, workload.mode));
        let trace = subject.trace(sites);
        let device = subject.recorded(&start, &trace);
        let clock = Arc::new(ManualClock::new(Time(1_000)));
        trace.mark(Event::Begin(0));
        let fs = mount(&workload, &device, clock.clone())?;
        let model = || {
            let options = model::Options::of(fs.limits());
            Side::new(Model::with_options(clock.clone(), options))
        };
        let model = workload.start.is_none().then(model);
        let mut recording = Recording {
            workload: &workload,
            clock,
            trace,
            device,
            fs,
            model,
            steps: Vec::new(),
            counted: 0,
            refused: false,
            shortage: workload.shortage,
            snapshots: Snapshots::default(),
            replayed: (subject.scratch(start.clone()), 0),
        };
        recording.prepare()?;
        for (i, op) in workload.ops.iter().enumerate().skip(workload.setup) {
            recording
                .step(op)
                .map_err(|e| format!("step {}, {op}: {e}\n{}", i + 1, account(&recording.steps)))?;
        }
        recording.unmount().map_err(|e| format!("unmount: {e}"))?;
        recording.escaped()?;
        let (events, sites) = recording.trace.take();
        let clean = engine.is_clean(&recording.device)?;
        let struck = recording.refused || recording.shortage.is_some_and(|s| s.struck > 0);
        let steps = recording.steps;
        let from = match workload.shortage {
            Some(_) if !struck => steps.len(), // nothing failed: the run is one like any other
            _ => usize::from(workload.setup > 0),
        };
        Ok(Run {
            from,
            workload,
            rules,
            made: None,
            start,
            clean,
            events,
            sites,
            steps,
            later: Vec::new(),
        })
    }

    /// Whether a crash at this moment may leave no file system.
    pub fn is_being_made(&self, moment: Moment) -> bool {
        let step = (moment.step, moment.ended);
        self.made.is_some_and(|made| step < (made, true))
    }

    /// The image when what only prepares was done, if all of it got to the medium.
    pub fn prepared(&self) -> Image {
        let done = self
            .events
            .iter()
            .take_while(|event| **event != Event::End(0));
        let events: Vec<Event> = done.cloned().collect();
        let mut scratch = self.subject().scratch(self.start.clone());
        scratch.apply(&events);
        scratch.image(&Vec::new())
    }

    /// What was run, and on what.
    pub fn subject(&self) -> Subject {
        Subject {
            engine: self.workload.engine,
            rules: self.rules,
        }
    }

    /// The steps, for people.
    pub fn account(&self) -> String {
        account(&self.steps)
    }
}

fn account(steps: &[Step]) -> String {
    let lines = steps
        .iter()
        .enumerate()
        .map(|(i, s)| format!("    {i}: {} ({} batches)\n", s.what, s.batches));
    lines.collect()
}

impl Recording<'_> {
    /// Mounting is done; do what only prepares, as the rest of the first step.
    fn prepare(&mut self) -> Result<(), Flaw> {
        if self.workload.start.is_some() {
            self.snapshots = Snapshots::of(&self.fs.tree()?);
        }
        for op in &self.workload.ops[..self.workload.setup] {
            self.clock.advance(1_000);
            if self.lacks(op)? {
                continue;
            }
            let done = self.fs.run(op).map_err(|e| e.errno());
            let op = match done {
                Ok(()) => &self.fs.as_far_as_it_went(op),
                Err(_) => op,
            };
            if op.is_of_snapshots() {
                self.snapshots.done(op, &self.fs.tree()?);
            }
            let expected = self
                .model
                .as_mut()
                .map(|model| model.run(op).map_err(|e| e.errno()));
            if expected.is_some_and(|expected| expected != done) {
                return Err(format!("preparing, {op}: {done:?}, not {expected:?}"));
            }
        }
        self.trace.mark(Event::End(0));
        self.counted = self.batches();
        let latest = self.fs.tree()?;
        let durable = self.durable()?;
        self.snapshots.are_in(&latest, &durable)?;
        self.steps.push(Step {
            what: match self.workload.setup {
                0 => "mount".into(),
                n => format!("mount, and {n} operations that prepare"),
            },
            time: self.clock.now(),
            synced: Synced::Everything,
            batches: 0,
            moved: Vec::new(),
            between: Vec::new(),
            written: None,
            durable,
            latest,
        });
        Ok(())
    }

    /// What a crash leaves if every store so far gets to the medium.
    fn durable(&mut self) -> Result<Tree, Flaw> {
        let engine = self.workload.engine;
        let (scratch, from) = &mut self.replayed;
        *from += self.trace.with(*from, |events| {
            scratch.apply(events);
            events.len()
        });
        scratch.look(|device| engine.found(device))
    }

    /// What the batches of a step left, if there were several: each is there at the fence that ends
    /// it, or at the next one. Not what the last left.
    fn between(&mut self, batches: u64) -> Result<Vec<Tree>, Flaw> {
        let mut trees: Vec<Tree> = Vec::new();
        if batches < 2 {
            return Ok(trees);
        }
        let engine = self.workload.engine;
        let (scratch, from) = &mut self.replayed;
        let trace = self.trace.clone();
        let mut last = scratch.look(|device| engine.found(device))?;
        *from += trace.with(*from, |events| -> Result<usize, Flaw> {
            let fenced =
                |event: &Event| matches!(event, Event::Fence { .. } | Event::Barrier { .. });
            for events in events.split_inclusive(fenced) {
                scratch.apply(events);
                let tree = scratch.look(|device| engine.found(device))?;
                if tree.objects != last.objects {
                    trees.push(tree.clone());
                    last = tree;
                }
            }
            Ok(events.len())
        })?;
        trees.pop();
        match trees.len() as u64 {
            n if n < batches => Ok(trees),
            n => Err(format!("{batches} batches leave {} trees", n + 1)),
        }
    }

    /// Nothing reached the medium but what the trace has.
    fn escaped(&self) -> Result<(), Flaw> {
        let holds = self.device.holds(&self.replayed.0.image(&Vec::new()));
        holds.map_err(|page| format!("the trace lacks what was stored in page {page}"))
    }

    /// Two operations on two threads at once. Of several errors the second's is returned, as of one
    /// thread.
    fn both(&self, one: &Op, other: &Op) -> Result<vfs::Result<()>, Flaw> {
        let (fs, start) = (&*self.fs, std::sync::Barrier::new(2));
        let run = |op| {
            start.wait();
            fs.act(op)
        };
        std::thread::scope(|s| {
            let first = s.spawn(|| run(one));
            let second = run(other);
            let first = first.join().map_err(|_| "the engine panicked")?;
            Ok(second.and(first))
        })
    }

    /// Whether the engine does not have an operation, which fails then, or is not judged for it.
    /// The reference has all.
    fn lacks(&mut self, op: &Op) -> Result<bool, Flaw> {
        let Workload { engine, mode, .. } = self.workload;
        if engine.skips(op, *mode) {
            return Ok(true);
        }
        if self.fs.limits().capabilities.contains(op.needs()) {
            return Ok(false);
        }
        // Before it is refused it may have persisted what was pending: as a part of the next step.
        self.trace.mark(Event::Begin(self.steps.len()));
        match self.fs.run(op) {
            Err(_) => Ok(true),
            Ok(()) => Err(format!("{op} succeeds, and the engine does not have it")),
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), Flaw> {
        self.clock.advance(1_000);
        if self.lacks(op)? {
            return Ok(());
        }
        let number = self.steps.len();
        let (moved, targets) = (self.moved(op), self.targets(op));
        self.trace.mark(Event::Begin(number));
        let mut batches = 0;
        let done = match op {
            Op::Remount => {
                self.fs.let_go();
                batches = self.leave()?;
                self.fs = mount(self.workload, &self.device, self.clock.clone())?;
                Ok(())
            }
            op if self.workload.threads && self.syncs(op) => {
                let (fs, durable) = (&mut self.fs, self.workload.mode.is_durable());
                std::thread::scope(|s| s.spawn(|| run_alone(&mut **fs, op, durable)).join())
                    .map_err(|_| "the engine panicked")?
            }
            Op::Both(one, other) => self.both(one, other)?,
            op => match &mut self.shortage {
                Some(shortage) if !matches!(op, Op::Access(_)) => self.fs.suffer(shortage, op),
                _ => run_alone(&mut *self.fs, op, self.workload.mode.is_durable()),
            },
        };
        let errno = done.as_ref().err().map(vfs::Error::errno);
        let is_step = errno.is_none() || self.workload.start.is_none();
        if is_step {
            self.trace.mark(Event::End(number));
        }
        if *op != Op::Remount {
            batches = self.batches() - self.counted;
        }
        if matches!(errno, Some(Errno::UCLEAN | Errno::IO)) {
            return Err(format!("{}", done.unwrap_err()));
        }
        if !is_step {
            return Ok(());
        }
        self.counted = self.batches();
        let latest = self.fs.tree()?;
        if let Some(model) = &mut self.model {
            if *op == Op::Remount {
                model.held = [const { None }; HANDLES];
            }
            // What found no space has changed nothing; what went a part of its way did that part.
            let refused =
                errno == Some(Errno::NOSPC) && self.shortage.is_some_and(|s| s.struck > 0);
            let expected = match refused {
                true => errno,
                false => {
                    let op = match errno {
                        None => self.fs.as_far_as_it_went(op),
                        Some(_) => op.clone(),
                    };
                    let refused = model.run(&op).err().map(|e| e.errno());
                    refused.or(self.snapshots.refuse(&op))
                }
            };
            if refused {
                self.shortage = None; // it is over
                self.refused = true;
            }
            if expected != errno {
                return Err(format!("it fails with {errno:?}, not {expected:?}"));
            }
            let held: Vec<_> = model.held.iter().flatten().collect();
            if let Some(difference) = latest.difference_by_path(&Tree::of(&model.fs, &held)?) {
                return Err(difference);
            }
        }
        let strict = self.workload.mode.is_durable();
        let synced = match targets {
            _ if op.syncs_all() => Synced::Everything,
            _ if errno.is_none() && self.workload.engine.settles(op, self.workload.mode) => {
                Synced::Everything
            }
            _ if strict => Synced::EverythingBut(Vec::new()),
            _ if errno.is_none() && op.syncs_all_beside() => Synced::EverythingBefore,
            targets if errno.is_none() && !targets.is_empty() => Synced::These(targets),
            _ => Synced::Nothing,
        };
        let mode = self.workload.mode;
        let in_parts = mode.is_durable() && mode.leaves() == Leaves::WholeButBytes;
        let is_short = self.workload.shortage.is_some() && in_parts;
        let is_short = is_short || self.workload.is_full;
        let written = is_short.then(|| self.written(op)).flatten();
        if errno.is_none() {
            self.snapshots.done(op, &latest);
        }
        let between = self.between(batches)?;
        let durable = self.durable()?;
        self.snapshots.are_in(&latest, &durable)?;
        self.steps.push(Step {
            what: format!(
                "{op}{} [{} free]",
                errno.map_or(String::new(), |e| format!(" -> {e:?}")),
                self.fs.free()
            ),
            time: self.clock.now(),
            synced,
            batches,
            moved: match errno {
                None => moved,
                Some(_) => Vec::new(),
            },
            written,
            between,
            durable,
            latest,
        });
        Ok(())
    }

    /// Whether the operation persists something before it returns.
    fn syncs(&self, op: &Op) -> bool {
        self.workload.mode.is_durable() || op.only_syncs() || matches!(op, Op::Search(_))
    }

    fn batches(&self) -> u64 {
        self.fs.batches()
    }

    /// Unmount; returns how many batches there were in it.
    fn leave(&self) -> Result<u64, Flaw> {
        let mut held = (0..HANDLES).filter_map(|handle| self.fs.held(handle));
        let keeps = held.any(|(_, names)| names == 0);
        self.fs.unmount().map_err(|e| e.to_string())?;
        let clean = self.workload.engine.is_clean(&self.device)?;
        if self.workload.ends_clean() && !keeps && !clean {
            return Err("the image is not clean afterwards".into());
        }
        Ok(self.batches() - self.counted)
    }

    fn unmount(&mut self) -> Result<(), Flaw> {
        let number = self.steps.len();
        let latest = self.fs.tree()?;
        self.trace.mark(Event::Begin(number));
        let batches = self.leave()?;
        self.trace.mark(Event::End(number));
        let between = self.between(batches)?;
        let durable = self.durable()?;
        self.snapshots.are_in(&latest, &durable)?;
        self.steps.push(Step {
            what: "unmount".into(),
            time: self.clock.now(),
            synced: Synced::Everything,
            batches,
            moved: Vec::new(),
            between,
            written: None,
            latest,
            durable,
        });
        Ok(())
    }

    fn slot(&self, path: &str) -> Option<Slot> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Some((self.fs.id(dir)?, name.as_bytes().to_vec()))
    }

    /// The file that an operation writes to.
    fn written(&self, op: &Op) -> Option<Id> {
        match op {
            Op::Write { path, .. } | Op::CopyRange { to: (path, _), .. } => self.fs.id(path),
            Op::WriteHeld { handle, .. } => self.fs.held(*handle).map(|(id, _)| id),
            _ => None,
        }
    }

    /// The names that an operation is to move.
    fn moved(&self, op: &Op) -> Vec<(Slot, Slot)> {
        match op {
            Op::Rename(from, to, mode) => {
                let Some((from, to)) = self.slot(from).zip(self.slot(to)) else {
                    return Vec::new();
                };
                match mode {
                    RenameMode::Exchange => vec![(from.clone(), to.clone()), (to, from)],
                    _ => vec![(from, to)],
                }
            }
            Op::Both(one, other) => [self.moved(one), self.moved(other)].concat(),
            _ => Vec::new(),
        }
    }

    /// What the operation is to make durable, and whether with its names.
    fn targets(&self, op: &Op) -> Vec<(Id, bool)> {
        let target = match op {
            Op::Fsync(path, what) => self.fs.id(path).map(|id| (id, *what == vfs::Fsync::All)),
            Op::FsyncHeld(handle) => self.fs.held(*handle).map(|(id, _)| (id, true)),
            // What syncs beside a change may have come before it.
            Op::Both(one, other) => {
                let (mut one, other) = (self.targets(one), self.targets(other));
                if one.is_empty() || other.is_empty() {
                    return Vec::new();
                }
                one.extend(other);
                return one;
            }
            _ => None,
        };
        target.into_iter().collect()
    }
}

//! Running a workload: what it did to the medium, and what was true after each step.

use crate::media::{Event, Trace};
use crate::op::{HANDLES, Op, Side};
use crate::tree::{Flaw, Id, Slot, Tree};
use model::Model;
use pmem::{Domain, Options, PAGE, Pool};
use soupfs::layout::Geometry;
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use std::sync::Arc;
use vfs::{Clock, Errno, FileSystem, ManualClock, RenameMode, Time};

/// What free space is filled with, so that none of it passes for a file's bytes or zeros.
pub const POISON: u8 = 0xdb;

/// Something to run.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Tells it from all others: the head of a token.
    pub name: String,
    pub ops: Vec<Op>,
    pub mode: Mode,
    /// What syncs runs on a thread of its own, each time.
    pub threads: bool,
    /// Length of the image.
    pub len: u64,
    /// Instead of an empty file system. Operations that fail are no steps then: nobody knows
    /// beforehand which do.
    pub start: Option<Vec<u8>>,
}

impl Workload {
    /// On an empty file system of 1 MiB, mode `delayed`.
    pub fn new(name: impl Into<String>, ops: Vec<Op>) -> Workload {
        Workload {
            name: name.into(),
            ops,
            mode: Mode::Delayed,
            threads: false,
            len: 1 << 20,
            start: None,
        }
    }
}

/// What a step made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    Nothing,
    Everything,
    /// This inode; with its names if `true`.
    One(Id, bool),
}

/// A step of a run: mounting is the first, unmounting the last, between them are the operations.
pub struct Step {
    pub what: String,
    pub synced: Synced,
    /// Batches that it published.
    pub batches: u64,
    /// Names that it moved: from and to.
    pub moved: Option<(Slot, Slot)>,
    /// What callers saw afterwards, with what was held.
    pub latest: Tree,
    /// What a crash after it leaves if every store gets to the medium.
    pub durable: Tree,
}

/// A workload that was run.
pub struct Run {
    pub workload: Workload,
    pub domain: Domain,
    pub start: Vec<u8>,
    /// Unmounting marked the image clean.
    pub clean: bool,
    pub events: Vec<Event>,
    pub sites: Vec<String>,
    pub steps: Vec<Step>,
}

/// An empty image with poison in its free space.
pub fn empty(len: u64) -> Vec<u8> {
    let options = Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    };
    let pool = Arc::new(Pool::anonymous(len, &options).expect("anonymous memory"));
    let options = FormatOptions {
        uuid: [7; 16],
        label: "crash".into(),
        hash_key: [9; 16],
        time: Time(1_000),
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &options).expect("format");
    let geometry = Geometry::for_len(len);
    for region in 0..geometry.regions() {
        let pages = geometry.allocatable(region);
        let first = if region == 0 {
            pages.start + 1
        } else {
            pages.start
        };
        for page in first..pages.end {
            pool.write(page * PAGE, &[POISON; PAGE as usize]);
        }
    }
    let root = geometry.allocatable(0).start * PAGE;
    pool.write(root + 128, &[POISON; PAGE as usize - 128]);
    pool.snapshot()
}

/// Mount without background threads.
pub fn mount(pool: Arc<Pool>, mode: Mode, clock: Arc<dyn Clock>) -> Result<SoupFs, Flaw> {
    let options = MountOptions {
        mode,
        manual: true,
        ..MountOptions::new(clock)
    };
    SoupFs::mount(pool, options).map_err(|e| format!("mount: {e}"))
}

/// What is found in an image after a crash.
pub fn recovered(pool: &Arc<Pool>) -> Result<Tree, Flaw> {
    let fs = mount(
        pool.clone(),
        Mode::Delayed,
        Arc::new(ManualClock::new(Time(1 << 60))),
    )?;
    Tree::of(&fs, &[])
}

fn recovered_copy(bytes: &[u8]) -> Result<Tree, Flaw> {
    let options = Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    };
    recovered(&Arc::new(
        Pool::from_bytes(bytes, &options).expect("anonymous memory"),
    ))
}

struct Recording<'a> {
    workload: &'a Workload,
    clock: Arc<ManualClock>,
    trace: Arc<Trace>,
    pool: Arc<Pool>,
    soup: Side<SoupFs>,
    model: Option<Side<Model>>,
    steps: Vec<Step>,
}

impl Run {
    /// Run a workload. An error: the engine did something that the model does not.
    pub fn record(workload: Workload, domain: Domain, sites: bool) -> Result<Run, Flaw> {
        let start = workload
            .start
            .clone()
            .unwrap_or_else(|| empty(workload.len));
        let trace = Trace::new(sites);
        let options = Options {
            domain: Some(domain),
            recorder: Some(trace.clone()),
            ..Options::default()
        };
        let pool = Arc::new(Pool::from_bytes(&start, &options).expect("anonymous memory"));
        let clock = Arc::new(ManualClock::new(Time(1_000)));
        let model = workload
            .start
            .is_none()
            .then(|| Side::new(Model::on(clock.clone())));
        trace.mark(Event::Begin(0));
        let soup = Side::new(mount(pool.clone(), workload.mode, clock.clone())?);
        trace.mark(Event::End(0));
        let tree = Tree::of(&soup.fs, &[])?;
        let mut recording = Recording {
            workload: &workload,
            clock,
            trace,
            pool,
            soup,
            model,
            steps: Vec::new(),
        };
        recording.steps.push(Step {
            what: "mount".into(),
            synced: Synced::Everything,
            batches: 0,
            moved: None,
            durable: recovered_copy(&start)?,
            latest: tree,
        });
        for (i, op) in workload.ops.iter().enumerate() {
            recording
                .step(op)
                .map_err(|e| format!("step {}, {op}: {e}\n{}", i + 1, account(&recording.steps)))?;
        }
        recording.unmount().map_err(|e| format!("unmount: {e}"))?;
        let (events, sites) = recording.trace.take();
        let clean = soupfs::inspect(&recording.pool)
            .map_err(|e| e.to_string())?
            .clean;
        let steps = recording.steps;
        Ok(Run {
            workload,
            domain,
            start,
            clean,
            events,
            sites,
            steps,
        })
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
    fn held(&self) -> Vec<&soupfs::Node> {
        self.soup.held.iter().flatten().collect()
    }

    fn step(&mut self, op: &Op) -> Result<(), Flaw> {
        self.clock.advance(1_000);
        let number = self.steps.len();
        let (moved, target) = (self.moved(op), self.target(op));
        let before = self.batches();
        self.trace.mark(Event::Begin(number));
        let mut batches = 0;
        let done = match op {
            Op::Remount => {
                self.soup.held = [const { None }; HANDLES];
                batches = self.leave()?;
                self.soup.fs = mount(self.pool.clone(), self.workload.mode, self.clock.clone())?;
                Ok(())
            }
            op if self.workload.threads
                && matches!(op, Op::Syncfs | Op::Fsync(..) | Op::FsyncHeld(_)) =>
            {
                let soup = &mut self.soup;
                std::thread::scope(|s| s.spawn(|| soup.run(op)).join())
                    .map_err(|_| "the engine panicked")?
            }
            op => self.soup.run(op),
        };
        let errno = done.as_ref().err().map(vfs::Error::errno);
        let is_step = errno.is_none() || self.workload.start.is_none();
        if is_step {
            self.trace.mark(Event::End(number));
        }
        if *op != Op::Remount {
            batches = self.batches() - before;
        }
        if matches!(errno, Some(Errno::UCLEAN | Errno::IO)) {
            return Err(format!("{}", done.unwrap_err()));
        }
        if !is_step {
            return Ok(());
        }
        let latest = Tree::of(&self.soup.fs, &self.held())?;
        if let Some(model) = &mut self.model {
            if *op == Op::Remount {
                model.held = [const { None }; HANDLES];
            }
            let expected = model.run(op).err().map(|e| e.errno());
            if expected != errno {
                return Err(format!("it fails with {errno:?}, not {expected:?}"));
            }
            let held: Vec<_> = model.held.iter().flatten().collect();
            if let Some(difference) = latest.difference_by_path(&Tree::of(&model.fs, &held)?) {
                return Err(difference);
            }
        }
        let full = matches!(op, Op::Syncfs | Op::Remount) || self.workload.mode == Mode::Sync;
        let synced = match target {
            _ if full => Synced::Everything,
            Some((id, names)) if errno.is_none() => Synced::One(id, names),
            _ => Synced::Nothing,
        };
        self.steps.push(Step {
            what: format!(
                "{op}{} [{} free]",
                errno.map_or(String::new(), |e| format!(" -> {e:?}")),
                self.soup.fs.statfs().free
            ),
            synced,
            batches,
            moved: moved.filter(|_| errno.is_none()),
            durable: recovered_copy(&self.pool.snapshot())?,
            latest,
        });
        Ok(())
    }

    fn batches(&self) -> u64 {
        self.soup.fs.status().backlog.batches
    }

    /// Unmount; returns how many batches there were in it.
    fn leave(&self) -> Result<u64, Flaw> {
        let before = self.batches();
        self.soup.fs.unmount().map_err(|e| e.to_string())?;
        Ok(self.batches() - before)
    }

    fn unmount(&mut self) -> Result<(), Flaw> {
        let number = self.steps.len();
        let latest = Tree::of(&self.soup.fs, &self.held())?;
        self.trace.mark(Event::Begin(number));
        let batches = self.leave()?;
        self.trace.mark(Event::End(number));
        let durable = recovered_copy(&self.pool.snapshot())?;
        self.steps.push(Step {
            what: "unmount".into(),
            synced: Synced::Everything,
            batches,
            moved: None,
            latest,
            durable,
        });
        Ok(())
    }

    fn id(&self, path: &str) -> Option<Id> {
        let attr = self.soup.fs.attr(&self.soup.find(path).ok()?);
        Some((attr.ino, attr.generation))
    }

    fn slot(&self, path: &str) -> Option<Slot> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Some((self.id(dir)?, name.as_bytes().to_vec()))
    }

    fn moved(&self, op: &Op) -> Option<(Slot, Slot)> {
        match op {
            Op::Rename(from, to, mode) if *mode != RenameMode::Whiteout => {
                Some((self.slot(from)?, self.slot(to)?))
            }
            _ => None,
        }
    }

    /// What the operation is to make durable, and whether with its names.
    fn target(&self, op: &Op) -> Option<(Id, bool)> {
        match op {
            Op::Fsync(path, what) => Some((self.id(path)?, *what == vfs::Fsync::All)),
            Op::FsyncHeld(handle) => {
                let attr = self.soup.fs.attr(self.soup.held[*handle].as_ref()?);
                Some(((attr.ino, attr.generation), true))
            }
            _ => None,
        }
    }
}

//! What all families are told: where, how much, by which clock, on what.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::target::{Result, Setup, TargetSpec};

/// Where families put their images and directories, and how much they do.
#[derive(Clone)]
pub struct Plan {
    /// A directory on tmpfs.
    pub scratch: PathBuf,
    /// A directory on an ordinary disk, for what is measured there.
    pub disk: PathBuf,
    /// Rounds that count; one more warms up, in most families.
    pub rounds: usize,
    /// All sizes are divided by this: for a quick look.
    pub divide: u64,
    /// How long a phase takes that is bounded by time.
    pub window: Duration,
    /// Counters of threads.
    pub threads: Vec<usize>,
    /// Growth goes up to this.
    pub up_to: u64,
    /// Ask for huge pages for images.
    pub huge_pages: bool,
    /// What times the operations of a single caller.
    pub clock: Clock,
    /// Who takes part where several can.
    pub targets: Vec<TargetSpec>,
    /// The target that others are compared with.
    pub baseline: String,
    /// The program `tureen`, for mounts and for work in a process of its own.
    pub tureen: Option<PathBuf>,
    /// No more rounds are begun after this than are needed.
    pub until: Option<Instant>,
    /// Programs are told where targets are: mounts of the kernel's need a path, in a namespace of
    /// their own ([`crate::participants::with_paths`]).
    pub paths: bool,
    /// Told how far it is.
    pub progress: Arc<dyn Progress>,
}

/// What times the operations of a single caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Time as it passes.
    Wall,
    /// Time that the calling thread computes, in the kernel too: what passes on a machine of
    /// one's own. On a busy one this leaves out the turns of others, but also waiting.
    Cpu,
}

/// Sees how far a family is.
pub trait Progress: Send + Sync {
    /// So many of so many steps are done; `what` is being done.
    fn step(&self, what: &str, done: usize, steps: usize);
}

/// Nobody looks.
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _what: &str, _done: usize, _steps: usize) {}
}

impl Plan {
    /// A directory of its own that goes away with the value.
    pub fn temp(&self) -> Result<TempDir> {
        temp_in(&self.scratch)
    }

    /// The same on the disk.
    pub fn temp_on_disk(&self) -> Result<TempDir> {
        temp_in(&self.disk)
    }

    /// The program `tureen`; an error where families were not started by it.
    pub fn program(&self) -> Result<&Path> {
        let program = self.tureen.as_deref();
        Ok(program.ok_or("only `tureen bench` can mount and start processes")?)
    }

    /// There is a target of this name.
    pub fn takes_part(&self, name: &str) -> bool {
        self.targets.iter().any(|target| target.name() == name)
    }

    /// The same for a part of a family that may take so long: no more rounds than are needed are
    /// begun after that.
    pub fn part(&self, time: Duration) -> Plan {
        let until = Instant::now() + time;
        Plan {
            until: Some(self.until.map_or(until, |all| all.min(until))),
            ..self.clone()
        }
    }

    /// The time for it is over.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// A size, made smaller for a quick look.
    pub fn scaled(&self, size: u64) -> u64 {
        (size / self.divide).max(1)
    }

    /// The time that `work` takes by the plan's clock.
    pub fn timed(&self, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let now = || {
            let now = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
        };
        match self.clock {
            Clock::Wall => timed(work),
            Clock::Cpu => {
                let start = now();
                work()?;
                Ok(now() - start)
            }
        }
    }

    /// By which clock, for the notes of a run.
    pub fn clock_note(&self) -> String {
        match self.clock {
            Clock::Wall => "times are wall-clock times".into(),
            Clock::Cpu => "times are CPU times of the calling thread, in the kernel too: the \
             machine was \
                           shared (the work of other processes, like that of a mount, is not in \
                           them)"
                .into(),
        }
    }

    /// The engine of the headline figures.
    pub fn setup(&self) -> Setup {
        Setup {
            huge_pages: self.huge_pages,
            ..Setup::default()
        }
    }
}

fn temp_in(dir: &Path) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    Ok(builder.prefix("tureen-bench").tempdir_in(dir)?)
}

/// The time that `work` takes.
pub fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Nanoseconds for each of `count`.
pub fn ns_each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count.max(1) as f64
}

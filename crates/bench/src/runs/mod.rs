//! What is measured: one module, one subject.

pub mod child;
pub mod data;
pub mod growth;
pub mod latency;
pub mod modes;
pub mod names;
pub mod overload;
pub mod recovery;
pub mod scale;
pub mod threads;

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::directory::Directory;
use crate::engine::{Engine, Setup};
use crate::target::{Result, Target};

/// Where runs put their images and directories, and how much they do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// A directory on tmpfs.
    pub scratch: PathBuf,
    /// Rounds that count; one more warms up.
    pub rounds: usize,
    /// All sizes are divided by this: for a quick look.
    pub divide: u64,
    /// Ask for huge pages for images.
    pub huge_pages: bool,
    /// What times the operations of a single caller.
    pub clock: Clock,
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

impl Plan {
    fn temp(&self) -> Result<TempDir> {
        let mut builder = tempfile::Builder::new();
        Ok(builder.prefix("soupfs-bench").tempdir_in(&self.scratch)?)
    }

    /// A size, made smaller for a quick look.
    fn scaled(&self, size: u64) -> u64 {
        (size / self.divide).max(1)
    }

    /// The time that `work` takes by the plan's clock.
    fn timed(&self, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
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

    fn clock_note(&self) -> String {
        match self.clock {
            Clock::Wall => "times are wall-clock times".into(),
            Clock::Cpu => "times are CPU times of the calling thread, in the kernel too: the machine was shared".into(),
        }
    }

    fn setup(&self) -> Setup {
        Setup {
            huge_pages: self.huge_pages,
            ..Setup::default()
        }
    }
}

/// An engine and a directory of the kernel's on the same tmpfs, to take turns.
struct Pair {
    engine: Engine,
    kernel: Directory,
    _temp: TempDir,
}

impl Pair {
    fn new(plan: &Plan, setup: &Setup) -> Result<Pair> {
        let temp = plan.temp()?;
        Ok(Pair {
            engine: setup.mount("SoupFS", setup.create(&temp.path().join("image"))?)?,
            kernel: kernel_dir("tmpfs", temp.path())?,
            _temp: temp,
        })
    }
}

fn kernel_dir(name: &str, parent: &Path) -> Result<Directory> {
    let path = parent.join("directory");
    std::fs::create_dir(&path)?;
    Directory::new(name, &path)
}

/// `count` names with a prefix, in order of their numbers.
fn names(prefix: &str, count: u64) -> Result<Vec<CString>> {
    let name = |number| CString::new(format!("{prefix}{number:07}"));
    Ok((0..count)
        .map(name)
        .collect::<std::result::Result<_, _>>()?)
}

/// The `i`th of `count` things in an order without locality, each once.
fn scattered(i: u64, count: u64) -> u64 {
    // A prime that no count here is a multiple of.
    i.wrapping_mul(2_654_435_761) % count
}

/// The time that `work` takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Nanoseconds for each of `count`.
fn ns_each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count.max(1) as f64
}

/// An operation on a name of a target.
type NameOp<T> = fn(&T, &CStr) -> Result<()>;

/// What filetest and dirtest do, in order. Each phase undoes an earlier one.
fn name_ops<T: Target>() -> [(&'static str, NameOp<T>); 4] {
    [
        ("create+close", T::create_close),
        ("unlink", T::unlink),
        ("mkdir", T::mkdir),
        ("rmdir", T::rmdir),
    ]
}

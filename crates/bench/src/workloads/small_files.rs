//! What programs do with small files: some of it durable at return, as editors, mail servers and
//! databases have it.

use std::ffi::{CStr, CString};
use std::sync::Mutex;

use super::threads::run_threads;
use super::{names, scattered};
use crate::report::{BARE_WRITE, DURABLE_CREATE};
use crate::sampler::{FigureId, Sampler, Workload, figure};
use crate::target::{Result, Target};

const BLOCK: u64 = 4096;

/// The chart that it records.
pub const CHART: &str = "small files";

/// The operations.
pub const OPS: [&str; 7] = [
    "create+close",
    "stat",
    "unlink",
    DURABLE_CREATE,
    "overwrite 4 KiB, fdatasync",
    "append 4 KiB, fsync",
    "save: new file, 4 KiB, fsync, rename over the old",
];

/// The chart of many threads that make files durable.
pub const CREW: &str = "threads";

/// So many threads.
pub const THREADS: usize = 16;

/// The charts of what a commit costs beside the disk's own.
pub const BARE: &str = "bare";

/// A file made durable, and what the disk itself takes for that much.
pub const BARE_OPS: [&str; 2] = [DURABLE_CREATE, BARE_WRITE];

/// So many of each.
pub struct SmallFiles {
    count: u64,
    empty: Vec<CString>,
    full: Vec<CString>,
}

impl SmallFiles {
    /// Of each operation so many.
    ///
    /// # Errors
    /// Never: names of files are text without zeros.
    pub fn new(count: u64) -> Result<SmallFiles> {
        Ok(SmallFiles {
            count,
            empty: names("dir/e", count)?,
            full: names("dir/f", count)?,
        })
    }

    /// Names made, looked at and removed; nobody waits until that is durable.
    fn names<T: Target>(&self, target: &T, sampler: &mut Sampler<'_>) -> Result<()> {
        let (all, count) = (&self.empty, self.empty.len());
        sampler.counted(of(0), count, || {
            all.iter().try_for_each(|name| target.create_close(name))
        })?;
        sampler.counted(of(1), count, || {
            all.iter().try_for_each(|name| target.stat(name).map(drop))
        })?;
        sampler.counted(of(2), count, || {
            all.iter().try_for_each(|name| target.unlink(name))
        })?;
        sampler.persist(target)
    }

    /// One file of blocks, overwritten at random, and one that is appended to: each time durably.
    fn blocks<T: Target>(&self, target: &T, sampler: &mut Sampler<'_>) -> Result<()> {
        let (count, block) = (self.count, vec![0x71; BLOCK as usize]);
        target.create_close(c"data")?;
        let file = target.open(c"data", false)?;
        (0..count).try_for_each(|i| target.write_at(file, &block, i * BLOCK))?;
        target.fsync(file)?;
        sampler.counted(of(4), count as usize, || {
            (0..count).try_for_each(|i| {
                target.write_at(file, &block, scattered(i, count) * BLOCK)?;
                target.fdatasync(file)
            })
        })?;
        target.close(file)?;
        target.create_close(c"log")?;
        let file = target.open(c"log", true)?;
        sampler.counted(of(5), count as usize, || {
            (0..count).try_for_each(|_| {
                target.write(file, &block)?;
                target.fsync(file)
            })
        })?;
        target.close(file)?;
        target.unlink(c"log")?;
        target.unlink(c"data")
    }
}

fn of(op: usize) -> FigureId {
    figure(CHART, OPS[op])
}

/// A new file with a block in it, durable.
fn made_durable<T: Target>(target: &T, name: &CStr) -> Result<()> {
    let file = target.create(name)?;
    target.write(file, &[0x72; BLOCK as usize])?;
    target.fsync(file)?;
    target.close(file)
}

impl Workload for SmallFiles {
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
        target.mkdir(c"dir")?;
        self.names(target, sampler)?;
        let count = self.full.len();
        sampler.counted(of(3), count, || {
            let mut all = self.full.iter();
            all.try_for_each(|name| made_durable(target, name))
        })?;
        self.blocks(target, sampler)?;
        sampler.counted(of(6), count, || {
            self.full.iter().try_for_each(|name| {
                made_durable(target, c"dir/new")?;
                target.rename(c"dir/new", name)
            })
        })?;
        self.full.iter().try_for_each(|name| target.unlink(name))?;
        crew(target, sampler)?;
        target.rmdir(c"dir")?;
        target.sync()
    }
}

/// Threads that make files durable in one directory, for as long as the plan says.
fn crew<T: Target>(target: &T, sampler: &mut Sampler<'_>) -> Result<()> {
    let window = sampler.plan().window;
    let made = Mutex::new(Vec::new());
    sampler.rate(figure(CREW, DURABLE_CREATE), || {
        run_threads(THREADS, Some(window), |number, until| {
            let name = |i| CString::new(format!("dir/{number}-{i}"));
            let done = until.repeat(u64::MAX, 1, |i| made_durable(target, &name(i)?))?;
            let names: std::result::Result<Vec<_>, _> = (0..done).map(name).collect();
            made.lock().map_err(|_| "a thread panicked")?.extend(names?);
            Ok(done)
        })
    })?;
    let made = made.into_inner().map_err(|_| "a thread panicked")?;
    made.iter().try_for_each(|name| target.unlink(name))
}

/// A new file made durable, and as much as that takes at least written to a file that is there.
pub struct Bare {
    files: Vec<CString>,
}

impl Bare {
    /// So many of each.
    ///
    /// # Errors
    /// Never: names of files are text without zeros.
    pub fn new(count: u64) -> Result<Bare> {
        Ok(Bare {
            files: names("b", count)?,
        })
    }
}

impl Workload for Bare {
    type State = ();

    fn prepare<T: Target>(&self, target: &T) -> Result<()> {
        target.create_close(c"file")?;
        let file = target.open(c"file", true)?;
        let block = [0x73; 2 * BLOCK as usize];
        self.files
            .iter()
            .try_for_each(|_| target.write(file, &block))?;
        target.fsync(file)?;
        target.close(file)
    }

    fn round<T: Target>(
        &self,
        target: &T,
        _state: &mut (),
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        let (all, count) = (&self.files, self.files.len());
        sampler.counted(figure(BARE, BARE_OPS[0]), count, || {
            all.iter().try_for_each(|name| made_durable(target, name))
        })?;
        let (file, block) = (target.open(c"file", false)?, [0x74; 2 * BLOCK as usize]);
        sampler.counted(figure(BARE, BARE_OPS[1]), count, || {
            (0..count as u64).try_for_each(|i| {
                target.write_at(file, &block, i * block.len() as u64)?;
                target.fdatasync(file)
            })
        })?;
        target.close(file)?;
        all.iter().try_for_each(|name| target.unlink(name))?;
        target.sync()
    }
}

//! One request of FUSE after the other, or the fewest that an operation takes.

use std::ffi::{CStr, CString};

use super::{names, scattered};
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Target};

const BLOCK: u64 = 4096;

/// The chart that it records.
pub const CHART: &str = "requests";

/// The operations, in the order in which they are measured.
pub const OPS: [&str; 9] = [
    "create+close",
    "stat",
    "lookup",
    "append 4K",
    "write 4K",
    "read 4K",
    "unlink",
    "mkdir",
    "rmdir",
];

/// So many of each operation. What the kernel could answer by itself is made to reach the file
/// system: attributes are asked for after a write, absent names are looked up, contents are read
/// uncached.
pub struct Requests {
    count: u64,
    files: Vec<CString>,
    absent: Vec<CString>,
}

impl Requests {
    /// Of each operation so many.
    pub fn new(count: u64) -> Result<Requests> {
        Ok(Requests {
            count,
            files: names("dir/f", count)?,
            absent: names("dir/absent", count)?,
        })
    }
}

impl Workload for Requests {
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
        self.each(sampler, 0, &self.files, |name| target.create_close(name))?;
        for name in &self.files {
            // The kernel drops attributes after a write.
            let file = target.open(name, false)?;
            target.write_at(file, b"x", 0)?;
            target.close(file)?;
        }
        self.each(sampler, 1, &self.files, |name| target.stat(name).map(drop))?;
        self.each(sampler, 2, &self.absent, |name| match target.stat(name) {
            Ok(_) => Err("a name is there that nobody made".into()),
            Err(_) => Ok(()),
        })?;
        self.blocks(target, sampler)?;
        self.each(sampler, 6, &self.files, |name| target.unlink(name))?;
        self.each(sampler, 7, &self.files, |name| target.mkdir(name))?;
        self.each(sampler, 8, &self.files, |name| target.rmdir(name))?;
        target.rmdir(c"dir")?;
        target.sync()
    }
}

impl Requests {
    fn each(
        &self,
        sampler: &mut Sampler<'_>,
        op: usize,
        names: &[CString],
        run: impl Fn(&CStr) -> Result<()>,
    ) -> Result<()> {
        sampler.counted(figure(CHART, OPS[op]), names.len(), || {
            names.iter().try_for_each(|name| run(name))
        })
    }

    fn blocks<T: Target>(&self, target: &T, sampler: &mut Sampler<'_>) -> Result<()> {
        let (count, mut block) = (self.count, vec![0x71; BLOCK as usize]);
        let at = |i| scattered(i, count) * BLOCK;
        target.create_close(c"data")?;
        let file = target.open(c"data", true)?;
        // Before its first write to an inode the kernel asks for its capabilities.
        target.write(file, &block)?;
        sampler.counted(figure(CHART, OPS[3]), count as usize, || {
            (0..count).try_for_each(|_| target.write(file, &block))
        })?;
        target.close(file)?;
        let file = target.open(c"data", false)?;
        sampler.counted(figure(CHART, OPS[4]), count as usize, || {
            (0..count).try_for_each(|i| target.write_at(file, &block, at(i)))
        })?;
        target.uncached(file)?;
        sampler.counted(figure(CHART, OPS[5]), count as usize, || {
            (0..count).try_for_each(|i| target.read_at(file, &mut block, at(i)))
        })?;
        target.close(file)?;
        target.unlink(c"data")
    }
}

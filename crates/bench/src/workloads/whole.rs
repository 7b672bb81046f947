//! Requests one by one, of each kind that mode strong makes whole and durable.

use std::ffi::CString;

use super::{names, scattered};
use crate::report::{DURABLE_REQUEST, REQUEST};
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Target};

const BLOCK: u64 = 4096;
/// Of a small write: bytes.
const SMALL: usize = 64;
/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 1024;

/// Writes, in the order in which they are measured.
const OVERWRITE_SMALL: &str = "overwrite 64 B";
const OVERWRITE: &str = "overwrite 4 KiB";
const APPEND: &str = "append 4 KiB";

/// Those that a bare copy can stand beside, and their lengths.
pub const COPIES: [(&str, usize); 2] = [(OVERWRITE_SMALL, SMALL), (OVERWRITE, BLOCK as usize)];

/// So many of each, as they are and with an fsync behind each.
pub struct Whole {
    names: Vec<CString>,
    others: Vec<CString>,
}

impl Whole {
    /// So many of each.
    ///
    /// # Errors
    /// Never: names of files are text without zeros.
    pub fn new(count: u64) -> Result<Whole> {
        Ok(Whole {
            names: names("f", count)?,
            others: names("g", count)?,
        })
    }

    /// Names made, moved and removed.
    fn names<T: Target>(&self, target: &T, sampler: &mut Sampler<'_>) -> Result<()> {
        let (all, count) = (&self.names, self.names.len());
        let mut each = |op, work: &dyn Fn(&CString) -> Result<()>| {
            sampler.counted(figure(REQUEST, op), count, || all.iter().try_for_each(work))
        };
        each("create+close", &|name| target.create_close(name))?;
        sampler.counted(figure(REQUEST, "rename"), count, || {
            let mut pairs = all.iter().zip(&self.others);
            pairs.try_for_each(|(old, new)| target.rename(old, new))
        })?;
        sampler.counted(figure(REQUEST, "unlink"), count, || {
            let mut others = self.others.iter();
            others.try_for_each(|name| target.unlink(name))
        })?;
        let mut each = |op, work: &dyn Fn(&CString) -> Result<()>| {
            sampler.counted(figure(REQUEST, op), count, || all.iter().try_for_each(work))
        };
        each("mkdir", &|name| target.mkdir(name))?;
        each("rmdir", &|name| target.rmdir(name))?;
        target.sync()
    }

    /// Writes, with an fsync behind each or none.
    fn writes<T: Target>(
        &self,
        target: &T,
        sampler: &mut Sampler<'_>,
        chart: &'static str,
    ) -> Result<()> {
        let (count, data) = (self.names.len() as u64, [0x68; BLOCK as usize]);
        let settle = |file| match chart == DURABLE_REQUEST {
            true => target.fsync(file),
            false => Ok(()),
        };
        target.create_close(c"data")?;
        let file = target.open(c"data", false)?;
        (0..BLOCKS).try_for_each(|i| target.write_at(file, &data, i * BLOCK))?;
        target.fsync(file)?;
        let at = |i| scattered(i, BLOCKS) * BLOCK;
        for (op, len) in COPIES {
            sampler.counted(figure(chart, op), count as usize, || {
                (0..count).try_for_each(|i| {
                    target.write_at(file, &data[..len], at(i))?;
                    settle(file)
                })
            })?;
        }
        target.close(file)?;
        target.create_close(c"log")?;
        let file = target.open(c"log", true)?;
        sampler.counted(figure(chart, APPEND), count as usize, || {
            (0..count).try_for_each(|_| {
                target.write(file, &data)?;
                settle(file)
            })
        })?;
        target.close(file)?;
        target.unlink(c"log")?;
        target.unlink(c"data")?;
        target.sync()
    }
}

impl Workload for Whole {
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
        self.names(target, sampler)?;
        self.writes(target, sampler, REQUEST)?;
        sampler.counted(figure(DURABLE_REQUEST, "create"), self.names.len(), || {
            self.names.iter().try_for_each(|name| {
                let file = target.create(name)?;
                target.fsync(file)?;
                target.close(file)
            })
        })?;
        self.names.iter().try_for_each(|name| target.unlink(name))?;
        self.writes(target, sampler, DURABLE_REQUEST)
    }
}

//! Threads that are kept on cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::target::Result;

/// Keeps this thread, and what it starts, on one core.
pub struct Pinned(CpuSet);

impl Pinned {
    /// On the last core that it may use.
    pub fn new() -> Result<Pinned> {
        Pinned::on(0)
    }

    /// On another core for each number, as long as there are so many, the last one first.
    pub fn on(number: usize) -> Result<Pinned> {
        let (before, cores) = Pinned::cores()?;
        let core = cores.get(number % cores.len().max(1));
        let core = *core.ok_or("no core to run on")?;
        Pinned::keep(before, &[core])
    }

    /// On the last so many cores, or all that there are.
    pub fn to(count: usize) -> Result<Pinned> {
        let (before, cores) = Pinned::cores()?;
        Pinned::keep(before, &cores[..count.min(cores.len())])
    }

    /// The cores that this thread may use, the last one first.
    fn cores() -> Result<(CpuSet, Vec<usize>)> {
        let before = sched_getaffinity(None)?;
        let cores = (0..CpuSet::MAX_CPU).rev();
        Ok((before, cores.filter(|&core| before.is_set(core)).collect()))
    }

    fn keep(before: CpuSet, cores: &[usize]) -> Result<Pinned> {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        sched_setaffinity(None, &set)?;
        Ok(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before; if it is not any more, the rest is measured on one core.
        let _ = sched_setaffinity(None, &self.0);
    }
}

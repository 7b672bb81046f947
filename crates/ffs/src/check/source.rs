//! Where a check reads.

use block::{Buffer, Disk};
use vfs::Error;

use super::failed;

/// Blocks that do not change while a check reads them.
pub trait Source: Send + Sync {
    /// Consecutive blocks.
    ///
    /// # Errors
    /// The disk failed.
    fn read(&self, first: u64, blocks: u32) -> Result<Buffer, Error>;

    /// Several runs of consecutive blocks: the first of each, and how many there are.
    ///
    /// # Errors
    /// The disk failed.
    fn read_all(&self, runs: &[(u64, u32)]) -> Result<Vec<Buffer>, Error> {
        let read = runs.iter().map(|&(first, blocks)| self.read(first, blocks));
        read.collect()
    }

    /// Whether consecutive blocks are known to be zeros without being read.
    fn is_hole(&self, _first: u64, _blocks: u32) -> bool {
        false
    }
}

/// A disk that nobody has mounted.
pub(super) struct OfDisk {
    pub(super) disk: Disk,
    pub(super) block_size: u32,
}

impl Source for OfDisk {
    fn read(&self, first: u64, blocks: u32) -> Result<Buffer, Error> {
        read(&self.disk, self.block_size, first, blocks)
    }

    /// All are in flight at once.
    fn read_all(&self, runs: &[(u64, u32)]) -> Result<Vec<Buffer>, Error> {
        let block_size = u64::from(self.block_size);
        let submitted = runs.iter().map(|&(first, blocks)| {
            let into = Buffer::zeroed((blocks * self.block_size) as usize);
            self.disk.submit_read(first * block_size, vec![into])
        });
        let submitted: Vec<_> = submitted.collect();
        let read = submitted.into_iter().map(|ticket| {
            let read = ticket.wait().map_err(failed)?.into_iter().next();
            Ok(read.expect("the buffer that was handed in"))
        });
        read.collect()
    }

    fn is_hole(&self, first: u64, blocks: u32) -> bool {
        let block_size = u64::from(self.block_size);
        let (at, len) = (first * block_size, u64::from(blocks) * block_size);
        self.disk.is_hole(at, len)
    }
}

/// Consecutive blocks of a disk.
pub(super) fn read(disk: &Disk, block_size: u32, first: u64, blocks: u32) -> Result<Buffer, Error> {
    let into = vec![Buffer::zeroed((blocks * block_size) as usize)];
    let read = disk.read(first * u64::from(block_size), into);
    let read = read.map_err(failed)?.into_iter().next();
    Ok(read.expect("the buffer that was handed in"))
}

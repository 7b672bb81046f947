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
}

/// Consecutive blocks of a disk.
pub(super) fn read(disk: &Disk, block_size: u32, first: u64, blocks: u32) -> Result<Buffer, Error> {
    let into = vec![Buffer::zeroed((blocks * block_size) as usize)];
    let read = disk.read(first * u64::from(block_size), into);
    let read = read.map_err(failed)?.into_iter().next();
    Ok(read.expect("the buffer that was handed in"))
}

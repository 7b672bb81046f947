//! What a workload runs on.

mod blocks;
mod directory;
mod engine;
mod log_in_memory;
mod spec;

use std::ffi::CStr;
use std::fmt;

pub use blocks::{BlockSetup, Blocks, CacheSetup, Front};
pub use directory::{Descriptor, Directory};
pub use engine::{Engine, Setup};
pub use log_in_memory::LogSetup;
pub use spec::{
    BLOCK_MODES, BlockSpec, EXT4_DATA_JOURNAL, EngineSpec, Ext2Mount, TargetSpec, mode_name,
};

/// Why a run ended early.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// Of a run or a step of it.
pub type Result<T> = std::result::Result<T, Failure>;

/// Something with files in it: an engine in-process, or a directory of the kernel's.
///
/// Paths are relative to the target's root, and zero-terminated so that no target pays for
/// a copy that another is spared. Workloads are generic over the target, so that what they measure
/// is the target's own code and not a dispatch.
pub trait Target: Send + Sync {
    /// An open file.
    type File: Copy + fmt::Debug + Send + Sync;

    /// What stands in the tables.
    fn name(&self) -> &str;

    /// Make a file, which must not exist, and open it.
    fn create(&self, path: &CStr) -> Result<Self::File>;

    /// Open a file for reading and writing; `append`: each write goes to the end.
    fn open(&self, path: &CStr, append: bool) -> Result<Self::File>;

    /// Close it.
    fn close(&self, file: Self::File) -> Result<()>;

    /// Remove a file's name.
    fn unlink(&self, path: &CStr) -> Result<()>;

    /// Make a directory.
    fn mkdir(&self, path: &CStr) -> Result<()>;

    /// Remove an empty directory.
    fn rmdir(&self, path: &CStr) -> Result<()>;

    /// Move a name.
    fn rename(&self, old: &CStr, new: &CStr) -> Result<()>;

    /// Ask for a file's attributes; returns its size in bytes.
    fn stat(&self, path: &CStr) -> Result<u64>;

    /// Write all of `data` where the file's position is.
    fn write(&self, file: Self::File, data: &[u8]) -> Result<()>;

    /// Write all of `data` at `offset`.
    fn write_at(&self, file: Self::File, data: &[u8], offset: u64) -> Result<()>;

    /// Read at `offset` until `data` is full.
    fn read_at(&self, file: Self::File, data: &mut [u8], offset: u64) -> Result<()>;

    /// Have the next reads of the file reach the file system, each by itself: drop what the kernel
    /// keeps of its contents. An engine in-process has nothing in front of it.
    fn uncached(&self, _file: Self::File) -> Result<()> {
        Ok(())
    }

    /// Set a file's size.
    fn truncate(&self, file: Self::File, size: u64) -> Result<()>;

    /// Go through all names in a directory; returns how many there are, with `.` and `..`.
    fn list(&self, path: &CStr) -> Result<u64>;

    /// Return when the file is durable.
    fn fsync(&self, file: Self::File) -> Result<()>;

    /// Return when the file's contents are durable, and what is needed to read them.
    fn fdatasync(&self, file: Self::File) -> Result<()>;

    /// Return when everything is durable.
    fn sync(&self) -> Result<()>;

    /// [`Target::sync`] really waits: a target that keeps nothing, or whose server is not told,
    /// returns at once.
    fn sync_waits(&self) -> bool {
        true
    }

    /// Make a file and close it.
    fn create_close(&self, path: &CStr) -> Result<()> {
        self.close(self.create(path)?)
    }
}

/// Write all of it, in as many calls as that takes, as programs do: where space is about to be free
/// again, a call may write a part. `write` is given what is left, and how much was written before.
pub(crate) fn write_all(
    data: &[u8],
    mut write: impl FnMut(&[u8], u64) -> Result<usize>,
) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        match write(&data[done..], done as u64)? {
            0 => return all_of(done, data.len()),
            written => done += written,
        }
    }
    Ok(())
}

/// A write or read moved fewer bytes than asked.
pub(crate) fn all_of(moved: usize, asked: usize) -> Result<()> {
    if moved == asked {
        return Ok(());
    }
    Err(format!("{moved} bytes moved of {asked}").into())
}

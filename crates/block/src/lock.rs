//! The lock on an image: one writer, or readers only.

use std::fs::File;
use std::ops::Deref;

use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr};

/// An open file that may be locked (`flock`); the lock is given back when this is dropped.
///
/// To close the file is not enough. A child of this process that has not begun its program yet has
/// a copy of each descriptor, and the lock lasts until the last copy is closed.
#[derive(Debug)]
pub struct LockedFile {
    file: File,
    locked: bool,
}

impl LockedFile {
    /// Takes the lock for writing, or shared with other readers, without waiting.
    ///
    /// # Errors
    /// [`Errno::WOULDBLOCK`]: another process, or another opening in this one, has it.
    pub fn lock(file: File, read_only: bool) -> Result<LockedFile, (File, Errno)> {
        let how = match read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match retry_on_intr(|| rustix::fs::flock(&file, how)) {
            Ok(()) => Ok(LockedFile { file, locked: true }),
            Err(errno) => Err((file, errno)),
        }
    }

    /// A file that needs no lock.
    pub fn without(file: File) -> LockedFile {
        let locked = false;
        LockedFile { file, locked }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.locked {
            // It fails for no descriptor that is open.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

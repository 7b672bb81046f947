//! Locks through descriptors.

use std::sync::atomic::Ordering;

use triomphe::Arc;

use super::files::{Fd, Files};
use crate::{Errno, FileSystem, LockKind, LockRange, RecordLock, Result};

impl<F: FileSystem> Files<F> {
    /// Takes a record lock for this process, in place of what it holds there; without `wait`,
    /// `EAGAIN` when another's is in the way. `EDEADLK` when waiting would never end. `EBADF`
    /// unless open for reading (shared) or writing (exclusive).
    pub fn lock(&self, fd: Fd, kind: LockKind, range: LockRange, wait: bool) -> Result<()> {
        let file = self.file(fd)?;
        match kind {
            LockKind::Shared => file.check_readable()?,
            LockKind::Exclusive => file.check_writable()?,
        }
        self.locked.store(true, Ordering::Release);
        let (locks, ino) = (self.vfs.locks(), self.vfs.fs().ino(&file.node));
        let want = self.record(kind, range);
        if wait {
            locks.wait_record(ino, &want)?;
        } else {
            locks.try_record(ino, &want)?;
        }
        // Another thread may have closed the descriptor meanwhile: then nothing would ever give
        // the lock up.
        if !self
            .table
            .get(fd.0)
            .is_some_and(|now| Arc::ptr_eq(&now, &file))
        {
            locks.unlock_record(ino, self.owner, range);
            return Err(Errno::BADF.into());
        }
        Ok(())
    }

    /// Gives up this process's record locks within the range.
    pub fn unlock(&self, fd: Fd, range: LockRange) -> Result<()> {
        let file = self.opened(fd)?;
        self.vfs
            .locks()
            .unlock_record(self.vfs.fs().ino(&file.node), self.owner, range);
        Ok(())
    }

    /// The first record lock that stands in the way of such a lock.
    pub fn test_lock(
        &self,
        fd: Fd,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Option<RecordLock>> {
        let file = self.opened(fd)?;
        let ino = self.vfs.fs().ino(&file.node);
        Ok(self.vfs.locks().test_record(ino, &self.record(kind, range)))
    }

    /// Locks the whole file for this open file, or with `None` unlocks it; without `wait`,
    /// `EAGAIN` when another open file's lock is in the way. A change of kind gives the old lock
    /// up first, and loses it if the new one is refused.
    pub fn flock(&self, fd: Fd, kind: Option<LockKind>, wait: bool) -> Result<()> {
        let file = self.opened(fd)?;
        let holder = file.flock(&self.vfs);
        let locks = self.vfs.locks();
        match kind {
            None => locks.unflock(holder.ino, holder.holder),
            Some(kind) if wait => locks.wait_flock(holder.ino, holder.holder, kind),
            Some(kind) => locks.try_flock(holder.ino, holder.holder, kind)?,
        }
        Ok(())
    }

    fn record(&self, kind: LockKind, range: LockRange) -> RecordLock {
        RecordLock {
            owner: self.owner,
            pid: self.owner as u32,
            kind,
            range,
        }
    }
}

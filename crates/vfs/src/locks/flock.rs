//! Locks on whole files, held by open files.

use super::{FileLocks, LockKind, Locks};
use crate::{Errno, Ino, Result};

impl Locks {
    /// Locks the file for `holder`; `EAGAIN` when another's lock is in the way.
    ///
    /// A holder's lock of the other kind is given up for it, also when the new one is refused: as
    /// flock(2) has it.
    pub fn try_flock(&self, ino: Ino, holder: u64, kind: LockKind) -> Result<()> {
        let locked = self
            .shard(ino)
            .change(ino, |file| file.try_flock(holder, kind));
        if locked {
            Ok(())
        } else {
            Err(Errno::AGAIN.into())
        }
    }

    /// Locks the file for `holder`, waiting as long as it takes. Deadlocks are not detected. A
    /// lock of the other kind is given up before the wait.
    pub fn wait_flock(&self, ino: Ino, holder: u64, kind: LockKind) {
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        loop {
            let (locked, freed) = table.change(ino, |file| file.try_flock(holder, kind));
            if freed {
                table.freed += 1;
                shard.freed.notify_all();
            }
            if locked {
                return;
            }
            shard.wait(&mut table);
        }
    }

    /// Gives up the lock of `holder`, if there is one.
    pub fn unflock(&self, ino: Ino, holder: u64) {
        self.shard(ino)
            .change(ino, |file| ((), file.drop_flock(holder).is_some()));
    }
}

impl FileLocks {
    /// Returns whether `holder` has the lock now, and whether another lock was given up.
    fn try_flock(&mut self, holder: u64, kind: LockKind) -> (bool, bool) {
        let dropped = self.drop_flock(holder);
        let free = !self.flocks.iter().any(|&(_, held)| held.excludes(kind));
        if free {
            self.flocks.push((holder, kind));
        }
        (free, dropped.is_some_and(|old| old != kind))
    }

    fn drop_flock(&mut self, holder: u64) -> Option<LockKind> {
        let at = self.flocks.iter().position(|&(id, _)| id == holder)?;
        Some(self.flocks.swap_remove(at).1)
    }
}

//! Advisory locks: record locks (`fcntl`) and whole-file locks (`flock`).
//!
//! A record lock belongs to an owner (a process), covers a range of bytes, and is taken over,
//! split and merged by later calls of that owner. An flock belongs to an open file. The two kinds
//! do not see each other.
//!
//! Tables are sharded by inode number. A caller that must wait enters itself into `waits`, where
//! deadlocks are looked for, and sleeps on the shard until something there is freed.
//!
//! Lock order: `waits` -> a shard. Never two shards.

mod flock;
mod record;

use std::collections::HashMap;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{Errno, Ino, Result};

use record::{Records, Waits};

const SHARDS: usize = 64;

/// Who holds a record lock: a process, usually.
pub type LockOwner = u64;

/// How a lock excludes others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Bears others of its kind.
    Shared,
    /// Bears none.
    Exclusive,
}

impl LockKind {
    fn excludes(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
}

/// A range of bytes, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; [`LockRange::TO_END`] for all to the end, wherever that will be.
    pub end: u64,
}

impl LockRange {
    /// The last byte that any file can have.
    pub const TO_END: u64 = i64::MAX as u64;

    /// `len` bytes from `start`; 0 for all to the end, a negative number for those before `start`.
    /// `EINVAL` when it begins below zero, `EOVERFLOW` when it ends beyond the largest offset.
    pub fn new(start: i64, len: i64) -> Result<LockRange> {
        let (first, last) = match len {
            0 => (start, i64::MAX),
            1.. => (start, start.checked_add(len - 1).ok_or(Errno::OVERFLOW)?),
            _ => (
                start.checked_add(len).ok_or(Errno::INVAL)?,
                start.wrapping_sub(1),
            ),
        };
        let start = u64::try_from(first).map_err(|_| Errno::INVAL)?;
        let end = u64::try_from(last).map_err(|_| Errno::INVAL)?;
        Ok(LockRange { start, end })
    }

    fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A record lock, held or wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLock {
    /// Who.
    pub owner: LockOwner,
    /// What `F_GETLK` names as the holder.
    pub pid: u32,
    /// How.
    pub kind: LockKind,
    /// Which bytes.
    pub range: LockRange,
}

/// All advisory locks of one file system.
pub struct Locks {
    shards: Box<[Shard]>,
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Shard {
    table: Mutex<Table>,
    freed: Condvar,
}

#[derive(Default)]
struct Table {
    files: HashMap<Ino, FileLocks>,
    /// Counts what was freed, so that who is about to sleep notices what they missed.
    freed: u64,
    /// Callers that wait for something to be freed.
    waiting: usize,
}

/// The locks on one file. There is no entry for a file without locks.
#[derive(Default)]
struct FileLocks {
    records: Records,
    flocks: Vec<(u64, LockKind)>,
}

impl Default for Locks {
    fn default() -> Locks {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Locks {
            shards,
            waits: Mutex::default(),
        }
    }
}

impl Locks {
    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino as usize % SHARDS]
    }

    /// How many callers wait for a lock.
    pub fn waiting(&self) -> usize {
        self.shards.iter().map(|s| s.table.lock().waiting).sum()
    }
}

impl Shard {
    /// Changes the locks of a file and wakes those who wait, if `change` says that it freed any.
    fn change<R>(&self, ino: Ino, change: impl FnOnce(&mut FileLocks) -> (R, bool)) -> R {
        let mut table = self.table.lock();
        let (result, freed) = table.change(ino, change);
        if freed {
            self.wake(table);
        }
        result
    }

    /// Waits until something here is freed.
    fn wait(&self, table: &mut MutexGuard<'_, Table>) {
        table.waiting += 1;
        self.freed.wait(table);
        table.waiting -= 1;
    }

    fn wake(&self, mut table: MutexGuard<'_, Table>) {
        table.freed += 1;
        drop(table);
        self.freed.notify_all();
    }
}

impl Table {
    fn change<R>(&mut self, ino: Ino, change: impl FnOnce(&mut FileLocks) -> R) -> R {
        let file = self.files.entry(ino).or_default();
        let result = change(file);
        if file.records.is_empty() && file.flocks.is_empty() {
            self.files.remove(&ino);
        }
        result
    }
}

//! Record locks: ranges of bytes, held by processes.

use std::collections::HashSet;

use super::{LockOwner, LockRange, Locks, RecordLock};
use crate::{Errno, Ino, Result};

/// The record locks on one file, by their first byte. Locks of one owner do not overlap; those of
/// one kind do not even touch. Locks of different owners overlap only if both are shared.
#[derive(Default)]
pub(super) struct Records(Vec<RecordLock>);

/// Who waits for what.
#[derive(Default)]
pub(super) struct Waits {
    waits: Vec<Wait>,
    next_id: u64,
}

#[derive(Clone, Copy)]
struct Wait {
    id: u64,
    ino: Ino,
    lock: RecordLock,
}

impl Locks {
    /// The first lock that is in the way of `want` (`F_GETLK`).
    pub fn test_record(&self, ino: Ino, want: &RecordLock) -> Option<RecordLock> {
        let table = self.shard(ino).table.lock();
        table
            .files
            .get(&ino)?
            .records
            .blockers(want)
            .next()
            .copied()
    }

    /// Takes a lock in place of what its owner holds there; `EAGAIN` when another's is in the way
    /// (`F_SETLK`).
    pub fn try_record(&self, ino: Ino, want: &RecordLock) -> Result<()> {
        let locked = self
            .shard(ino)
            .change(ino, |file| match file.records.try_set(want) {
                Some(freed) => (true, freed),
                None => (false, false),
            });
        if locked {
            Ok(())
        } else {
            Err(Errno::AGAIN.into())
        }
    }

    /// Takes a lock, waiting as long as it takes (`F_SETLKW`). `EDEADLK` when the wait would close
    /// a circle of owners who wait for each other.
    pub fn wait_record(&self, ino: Ino, want: &RecordLock) -> Result<()> {
        if self.try_record(ino, want).is_ok() {
            return Ok(());
        }
        let shard = self.shard(ino);
        let id = self.waits.lock().enter(ino, want);
        loop {
            // Under this lock nobody else begins to wait: of several who close a circle, the last
            // one sees all the others.
            let mut waits = self.waits.lock();
            let seen = shard.table.lock().freed;
            if self.try_record(ino, want).is_ok() {
                waits.leave(id);
                return Ok(());
            }
            if self.is_deadlock(&waits, ino, want) {
                waits.leave(id);
                return Err(Errno::DEADLK.into());
            }
            drop(waits);
            let mut table = shard.table.lock();
            while table.freed == seen {
                shard.wait(&mut table);
            }
        }
    }

    /// Gives up what the owner holds within the range (`F_UNLCK`), splitting locks that reach
    /// beyond it.
    pub fn unlock_record(&self, ino: Ino, owner: LockOwner, range: LockRange) {
        let shard = self.shard(ino);
        if shard.table.lock().files.contains_key(&ino) {
            shard.change(ino, |file| ((), file.records.clear(owner, range)));
        }
    }

    /// Gives up all that the owner holds on the file: what closing any of its descriptors does.
    pub fn release_records(&self, ino: Ino, owner: LockOwner) {
        self.unlock_record(
            ino,
            owner,
            LockRange {
                start: 0,
                end: LockRange::TO_END,
            },
        );
    }

    /// Whether those whom the owner of `want` would wait for wait for that owner themselves,
    /// perhaps through others. What each waits for is looked up afresh: locks come and go while
    /// their waiters sleep.
    fn is_deadlock(&self, waits: &Waits, ino: Ino, want: &RecordLock) -> bool {
        let mut seen = HashSet::new();
        let mut open = self.blockers(ino, want);
        while let Some(owner) = open.pop() {
            if owner == want.owner {
                return true;
            }
            if seen.insert(owner) {
                for wait in waits.waits.iter().filter(|wait| wait.lock.owner == owner) {
                    open.extend(self.blockers(wait.ino, &wait.lock));
                }
            }
        }
        false
    }

    fn blockers(&self, ino: Ino, want: &RecordLock) -> Vec<LockOwner> {
        let table = self.shard(ino).table.lock();
        let file = table.files.get(&ino);
        file.map_or(Vec::new(), |file| {
            file.records.blockers(want).map(|l| l.owner).collect()
        })
    }
}

impl Waits {
    fn enter(&mut self, ino: Ino, lock: &RecordLock) -> u64 {
        self.next_id += 1;
        self.waits.push(Wait {
            id: self.next_id,
            ino,
            lock: *lock,
        });
        self.next_id
    }

    fn leave(&mut self, id: u64) {
        self.waits.retain(|wait| wait.id != id);
    }
}

impl Records {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Locks of others that `want` cannot be beside.
    fn blockers(&self, want: &RecordLock) -> impl Iterator<Item = &RecordLock> {
        self.0.iter().filter(move |held| {
            held.owner != want.owner
                && held.range.overlaps(want.range)
                && held.kind.excludes(want.kind)
        })
    }

    /// Sets the lock unless another is in the way; returns whether that freed anything.
    fn try_set(&mut self, want: &RecordLock) -> Option<bool> {
        if self.blockers(want).next().is_some() {
            return None;
        }
        let freed = self.clear(want.owner, want.range);
        let mut merged = *want;
        self.0.retain(|held| {
            let joins = held.owner == merged.owner
                && held.kind == merged.kind
                && (held.range.end.checked_add(1) == Some(want.range.start)
                    || want.range.end.checked_add(1) == Some(held.range.start));
            if joins {
                merged.range.start = merged.range.start.min(held.range.start);
                merged.range.end = merged.range.end.max(held.range.end);
            }
            !joins
        });
        self.insert(merged);
        Some(freed)
    }

    /// Clears the range of the owner's locks; returns whether there were any.
    fn clear(&mut self, owner: LockOwner, range: LockRange) -> bool {
        let mut cut = Vec::new();
        self.0.retain(|held| {
            let hit = held.owner == owner && held.range.overlaps(range);
            if hit {
                cut.push(*held);
            }
            !hit
        });
        for held in &cut {
            if held.range.start < range.start {
                let left = LockRange {
                    start: held.range.start,
                    end: range.start - 1,
                };
                self.insert(RecordLock {
                    range: left,
                    ..*held
                });
            }
            if held.range.end > range.end {
                let right = LockRange {
                    start: range.end + 1,
                    end: held.range.end,
                };
                self.insert(RecordLock {
                    range: right,
                    ..*held
                });
            }
        }
        !cut.is_empty()
    }

    fn insert(&mut self, lock: RecordLock) {
        let at = self
            .0
            .partition_point(|held| held.range.start <= lock.range.start);
        self.0.insert(at, lock);
    }
}

//! What the connections of a process to one database share: its locks, and the index of its
//! write-ahead log. An image belongs to one process, so there is nobody else.
//!
//! SQLite's locks of a database, by what a connection may do:
//!
//! ```text
//! none -> shared -> reserved -> pending -> exclusive
//!         reads     alone       nobody     alone, no readers
//!                   of writers  else begins to read
//! ```

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::abi::{lock, shm};

/// What is shared. One for each file that is open.
#[derive(Default)]
pub struct Shared {
    database: Mutex<Database>,
    log: Mutex<LogIndex>,
}

/// Who has locked the database how far.
#[derive(Default)]
struct Database {
    /// Connections that have at least `SHARED`.
    readers: u32,
    /// One of them has at least `RESERVED`.
    reserved: bool,
    /// One of them has at least `PENDING`.
    pending: bool,
}

/// The index of a write-ahead log.
#[derive(Default)]
struct LogIndex {
    /// Connections that have the log open.
    logs: u32,
    /// Connections that have mapped it.
    users: u32,
    /// Its regions, which stay where they are. SQLite writes there.
    regions: Vec<Box<[AtomicU64]>>,
    /// For each lock how many share it; -1: one has it alone.
    locks: [i32; shm::LOCKS],
}

/// Somebody else has a lock.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

/// What one connection has.
#[derive(Default)]
pub struct Own {
    level: c_int,
    shared_locks: [bool; shm::LOCKS],
    alone_locks: [bool; shm::LOCKS],
    has_index: bool,
}

impl Own {
    /// Whether the connection has begun to write.
    pub fn writes(&self) -> bool {
        self.level >= lock::RESERVED
    }
}

impl Shared {
    /// Lock further, up to a level.
    ///
    /// # Errors
    /// Another connection is in the way. If only readers are, no more of them begin (`PENDING`).
    pub fn lock(&self, own: &mut Own, level: c_int) -> Result<(), Busy> {
        let mut all = self.database.lock();
        if own.level < lock::SHARED && level >= lock::SHARED {
            if all.pending {
                return Err(Busy);
            }
            all.readers += 1;
            own.level = lock::SHARED;
        }
        if own.level < lock::RESERVED && level >= lock::RESERVED {
            if all.reserved {
                return Err(Busy);
            }
            all.reserved = true;
            own.level = lock::RESERVED;
        }
        if own.level < lock::EXCLUSIVE && level >= lock::PENDING {
            all.pending = true;
            own.level = lock::PENDING;
            if level == lock::EXCLUSIVE {
                if all.readers > 1 {
                    return Err(Busy);
                }
                own.level = lock::EXCLUSIVE;
            }
        }
        Ok(())
    }

    /// Lock less far: `SHARED` or `NONE`.
    pub fn unlock(&self, own: &mut Own, level: c_int) {
        let mut all = self.database.lock();
        if own.level >= lock::PENDING {
            all.pending = false;
        }
        if own.level >= lock::RESERVED {
            all.reserved = false;
        }
        if own.level >= lock::SHARED && level == lock::NONE {
            all.readers -= 1;
        }
        own.level = own.level.min(level);
    }

    /// Whether anybody has begun to write.
    pub fn is_reserved(&self) -> bool {
        self.database.lock().reserved
    }

    /// The write-ahead log of this database was opened, or closed.
    pub fn log_is_open(&self, open: bool) {
        let logs = &mut self.log.lock().logs;
        *logs = if open { *logs + 1 } else { *logs - 1 };
    }

    /// Whether the database has a write-ahead log that is open.
    pub fn has_log(&self) -> bool {
        self.log.lock().logs > 0
    }

    /// Where a region of the index is; it is made if `extend` says so.
    pub fn map(&self, own: &mut Own, region: usize, bytes: usize, extend: bool) -> Option<*mut u8> {
        let mut index = self.log.lock();
        if !own.has_index {
            own.has_index = true;
            index.users += 1;
        }
        if index.regions.len() <= region && !extend {
            return None;
        }
        while index.regions.len() <= region {
            let words = bytes.div_ceil(size_of::<u64>());
            index
                .regions
                .push((0..words).map(|_| AtomicU64::new(0)).collect());
        }
        Some(index.regions[region].as_ptr().cast_mut().cast())
    }

    /// Take some locks of the index, together with others or alone.
    ///
    /// # Errors
    /// Another connection is in the way of one of them: none is taken.
    pub fn lock_index(
        &self,
        own: &mut Own,
        locks: std::ops::Range<usize>,
        together: bool,
    ) -> Result<(), Busy> {
        let mut index = self.log.lock();
        let is_free = |i: usize| match together {
            true => own.shared_locks[i] || index.locks[i] >= 0,
            false => own.alone_locks[i] || index.locks[i] == 0,
        };
        if !locks.clone().all(is_free) {
            return Err(Busy);
        }
        for i in locks {
            match together {
                true if !own.shared_locks[i] => {
                    index.locks[i] += 1;
                    own.shared_locks[i] = true;
                }
                false => {
                    index.locks[i] = -1;
                    own.alone_locks[i] = true;
                }
                true => {}
            }
        }
        Ok(())
    }

    /// Give back some locks of the index.
    pub fn unlock_index(&self, own: &mut Own, locks: std::ops::Range<usize>) {
        let mut index = self.log.lock();
        for i in locks {
            if std::mem::take(&mut own.shared_locks[i]) {
                index.locks[i] -= 1;
            }
            if std::mem::take(&mut own.alone_locks[i]) {
                index.locks[i] = 0;
            }
        }
    }

    /// The connection does not need the index any more. It goes with the last one.
    pub fn unmap(&self, own: &mut Own) {
        self.unlock_index(own, 0..shm::LOCKS);
        let mut index = self.log.lock();
        if std::mem::take(&mut own.has_index) {
            index.users -= 1;
            if index.users == 0 {
                index.regions.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writes_and_waits_for_those_who_read() {
        let shared = Shared::default();
        let [mut a, mut b, mut c] = [(); 3].map(|()| Own::default());
        assert_eq!(shared.lock(&mut a, lock::SHARED), Ok(()));
        assert_eq!(shared.lock(&mut b, lock::SHARED), Ok(()));
        assert_eq!(shared.lock(&mut a, lock::RESERVED), Ok(()));
        assert!(a.writes() && shared.is_reserved());
        assert_eq!(shared.lock(&mut b, lock::RESERVED), Err(Busy));
        assert_eq!(shared.lock(&mut a, lock::EXCLUSIVE), Err(Busy));
        assert_eq!(
            shared.lock(&mut c, lock::SHARED),
            Err(Busy),
            "nobody begins to read"
        );
        shared.unlock(&mut b, lock::NONE);
        assert_eq!(shared.lock(&mut a, lock::EXCLUSIVE), Ok(()));
        shared.unlock(&mut a, lock::SHARED);
        assert!(!a.writes() && !shared.is_reserved());
        assert_eq!(shared.lock(&mut c, lock::SHARED), Ok(()));
    }

    #[test]
    fn locks_of_the_index_are_shared_or_not() {
        let shared = Shared::default();
        let [mut a, mut b] = [(); 2].map(|()| Own::default());
        assert_eq!(shared.lock_index(&mut a, 3..4, true), Ok(()));
        assert_eq!(shared.lock_index(&mut b, 3..4, true), Ok(()));
        assert_eq!(shared.lock_index(&mut b, 2..5, false), Err(Busy));
        shared.unlock_index(&mut a, 3..4);
        shared.unlock_index(&mut b, 3..4);
        assert_eq!(shared.lock_index(&mut b, 2..5, false), Ok(()));
        assert_eq!(shared.lock_index(&mut a, 3..4, true), Err(Busy));
        shared.unmap(&mut b);
        assert_eq!(shared.lock_index(&mut a, 3..4, true), Ok(()));
    }
}

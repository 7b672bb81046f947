//! Domain `page`: flushes gather ranges, a fence syncs them.
//!
//! A *hull* is the smallest range that covers some flushed ranges. A flush widens one of a few
//! hulls (one per group of threads); a fence merges the hulls and syncs the merged one with a
//! single `msync(MS_SYNC)`. Why that and nothing finer or coarser: the kernel runs `msync` as a
//! data-only fsync of the byte range, so it writes the dirty pages of the hull, waits, and flushes
//! the device's cache once. One call per gathered range would flush the device each time.
//! `fdatasync` would write every dirty page of the image, which is never less than those of the
//! hull. `sync_file_range` promises nothing about metadata that the file system needs to find the
//! data again.
//!
//! # Concurrent fences
//! Syncs are numbered. A fence needs a sync that *starts* after it was called, as one that runs
//! already may have passed its pages. So it waits for the running one, then one of the waiters
//! leads the next sync for all. A fence that finds nothing gathered only waits for the running
//! sync, which may have taken its ranges.
//!
//! Lock order: `state` -> a shard.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::stats;

const SHARDS: usize = 16;

/// What is gathered until a fence takes it.
pub(crate) trait Collection: Default {
    fn is_empty(&self) -> bool;
    fn merge(&mut self, other: Self);
}

/// A range that covers all gathered ranges; empty if `start >= end`.
#[derive(Clone, Copy)]
pub(crate) struct Hull {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Hull {
    /// Adds a range that is not empty.
    pub(crate) fn add(&mut self, off: u64, len: u64) {
        self.merge(Hull {
            start: off,
            end: off + len,
        });
    }
}

impl Default for Hull {
    fn default() -> Self {
        Hull {
            start: u64::MAX,
            end: 0,
        }
    }
}

impl Collection for Hull {
    fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    fn merge(&mut self, other: Hull) {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
    }
}

#[repr(align(128))]
#[derive(Default)]
struct Shard<C>(Mutex<C>);

#[derive(Default)]
struct State {
    /// Number of the newest sync that started.
    started: u64,
    /// Number of the newest sync that ended.
    ended: u64,
}

impl State {
    fn running(&self) -> bool {
        self.ended < self.started
    }
}

/// The ranges flushed and not yet synced, and the syncs.
pub(crate) struct Gather<C> {
    shards: [Shard<C>; SHARDS],
    state: Mutex<State>,
    ended: Condvar,
    failed: AtomicBool,
}

impl<C: Collection> Gather<C> {
    pub(crate) fn new() -> Self {
        Gather {
            shards: std::array::from_fn(|_| Shard::default()),
            state: Mutex::new(State::default()),
            ended: Condvar::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// Adds to what is gathered.
    pub(crate) fn add(&self, add: impl FnOnce(&mut C)) {
        add(&mut self.shards[stats::slot() % SHARDS].0.lock());
    }

    /// Makes durable all whose `add` happened before. `sync` is run by at most one
    /// thread at a time, with no lock held. `false`: a sync failed, this one or an earlier one.
    pub(crate) fn fence(&self, sync: impl Fn(C) -> bool) -> bool {
        let mut state = self.state.lock();
        let needed = if self.is_empty() {
            state.started
        } else {
            state.started + 1
        };
        loop {
            if self.failed.load(Ordering::Acquire) {
                return false;
            }
            if state.ended >= needed {
                return true;
            }
            if state.running() {
                self.ended.wait(&mut state);
                continue;
            }
            let taken = self.take();
            if taken.is_empty() {
                // The sync that has just ended took what was ours.
                return true;
            }
            state.started += 1;
            let synced = parking_lot::MutexGuard::unlocked(&mut state, || sync(taken));
            if !synced {
                self.failed.store(true, Ordering::Release);
            }
            state.ended = state.started;
            self.ended.notify_all();
        }
    }

    fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_empty())
    }

    fn take(&self) -> C {
        let mut all = C::default();
        for shard in &self.shards {
            all.merge(std::mem::take(&mut *shard.0.lock()));
        }
        all
    }
}

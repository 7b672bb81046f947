//! The persisters: they bring the consistent view forward, in time or on demand (SoupFS §3.7).
//!
//! One batch runs at a time, so the consistent view has one writer. The background thread sweeps
//! the dirty inodes at each wake-up; a caller of fsync runs a batch of just what it needs itself.
//! Callers that arrive while a batch runs are served together by the next.
//!
//! Lock order: core -> a caller's locks (stripe, body, meta). So nobody may wait for the core with
//! one of these held.

use crate::alloc::{CachePadded, thread_slot};
use crate::batch::{Batch, DirMoves, Pull};
use crate::dir::STRIPES;
use crate::graveyard::Graveyard;
use crate::inode::{Body, Inode};
use crate::member::free_inode;
use crate::txn::medium;
use crate::volume::Volume;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pmem::{Domain, Journal};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;
use vfs::{Clock, Error, Result, Time};

/// DRAM that a pending operation takes, with its inode: bytes, on average.
pub const BYTES_PER_OP: u64 = 640;
/// Operations between two looks at the backlog, per core.
const THROTTLE_EVERY: i64 = 64;
/// Words in a batch where fences are cheap: some thousand operations.
const BATCH_WORDS: usize = 16384;
/// Delay per operation when the backlog is full; it grows with the square of the excess.
const DELAY_MAX: Duration = Duration::from_micros(50);

/// What the batches share, under one lock.
struct Core {
    /// Absent on a read-only mount, on which nothing is ever pending.
    journal: Option<Journal>,
    graveyard: Graveyard,
    /// Requests up to this generation are served.
    served: u64,
    last_sequence: u64,
}

#[derive(Default)]
struct Requests {
    pulls: Vec<Pull>,
    /// Of the requests that are queued now.
    generation: u64,
}

/// Dirty inodes and pending operations of one core's threads.
#[derive(Default)]
struct Shard {
    dirty: Mutex<Vec<u64>>,
    ops: AtomicI64,
    /// Lines that will be free when what was removed is persisted.
    removed_lines: AtomicI64,
}

/// Everything pending, and who persists it.
pub struct Persister {
    core: Mutex<Core>,
    requests: Mutex<Requests>,
    shards: Box<[CachePadded<Shard>]>,
    /// Operations that batches have taken.
    taken: AtomicI64,
    ops_max: i64,
    /// Moves of directories that are not captured.
    pub moves: DirMoves,
    /// Numbers of inodes without names that were in use when they lost the last. Some may be in use
    /// for something else by now.
    pub orphans: Mutex<Vec<u64>>,
    /// Of the lines in the shards, those that sweeps have dealt with.
    freed_lines: AtomicI64,
    wake: Mutex<bool>,
    wakeup: Condvar,
    stop: AtomicBool,
    /// A batch failed: nothing will be persisted any more.
    failed: AtomicBool,
    /// When the last sweep began: what is older is persisted.
    swept: AtomicI64,
    /// Batches, operations and inodes in them.
    batches: AtomicU64,
    captured: AtomicU64,
}

impl Core {
    fn journal(&mut self) -> Result<&mut Journal> {
        self.journal.as_mut().ok_or(Error::Errno(vfs::Errno::ROFS))
    }

    /// Journal words that a batch may gather. What it pulls in comes on top, so half the journal. On a
    /// disk a batch costs two syncs, whatever is in it; elsewhere fences cost nothing, and with
    /// small batches those who wait for the backlog to shrink wait for less.
    fn room(&mut self, volume: &Volume) -> Result<usize> {
        let half = self.journal()?.capacity() / 2;
        Ok(match volume.pool.domain() {
            Domain::Page => half,
            Domain::Line | Domain::Cache => half.min(BATCH_WORDS),
        })
    }

    /// Free what no replay can touch any more.
    fn free_graves(&mut self, volume: &Volume) -> Result<()> {
        let retired = self.journal()?.retired();
        self.graveyard.free(volume, retired);
        Ok(())
    }

    /// Make sure that nothing needs replaying, and free all graves.
    fn retire(&mut self, volume: &Volume) -> Result<()> {
        self.journal()?.retire().map_err(medium)?;
        self.free_graves(volume)
    }
}

/// Before another thread may run the next batch: it relies on what this one flushed, and in domain
/// `line` a fence covers its own thread's flushes only (M6). In `page` the next sync covers all.
fn hand_over(volume: &Volume) -> Result<()> {
    match volume.pool.domain() {
        Domain::Line => volume.pool.fence().map_err(medium),
        Domain::Cache | Domain::Page => Ok(()),
    }
}

/// Figures for `status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Operations that are not persisted.
    pub ops: u64,
    /// Above this callers are stopped.
    pub ops_max: u64,
    /// What was done before this is persisted, if anything is pending.
    pub swept: Time,
    /// Batches published since the mount.
    pub batches: u64,
    /// Operations and inodes in them.
    pub captured: u64,
}

impl Persister {
    /// Over an open journal. `backlog_max` bounds the DRAM for pending operations, in bytes.
    pub fn new(journal: Option<Journal>, backlog_max: u64) -> Persister {
        let shards = std::thread::available_parallelism()
            .map_or(4, |n| n.get() * 2)
            .next_power_of_two();
        Persister {
            core: Mutex::new(Core {
                journal,
                graveyard: Graveyard::default(),
                served: 0,
                last_sequence: 0,
            }),
            requests: Mutex::default(),
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            taken: AtomicI64::new(0),
            ops_max: (backlog_max / BYTES_PER_OP).max(1024) as i64,
            moves: DirMoves::default(),
            orphans: Mutex::default(),
            freed_lines: AtomicI64::new(0),
            wake: Mutex::new(false),
            wakeup: Condvar::new(),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            swept: AtomicI64::new(0),
            batches: AtomicU64::new(0),
            captured: AtomicU64::new(0),
        }
    }

    fn shard(&self) -> &Shard {
        &self.shards[thread_slot() & (self.shards.len() - 1)]
    }

    /// An operation on `inode` is pending. The caller may be slowed down: it holds no locks.
    #[inline]
    pub fn note(&self, inode: &Arc<Inode>) {
        if self.mark(inode) % THROTTLE_EVERY == 0 {
            self.throttle();
        }
    }

    /// An operation on `inode` is pending; the caller holds a lock. Returns how many this core's
    /// threads have noted.
    #[inline]
    pub fn mark(&self, inode: &Arc<Inode>) -> i64 {
        let shard = self.shard();
        if inode.mark_dirty() {
            shard.dirty.lock().push(inode.ino);
        }
        // An estimate: threads that share a shard may lose one now and then, and what is not counted
        // here is not counted off either.
        let ops = shard.ops.load(Relaxed);
        shard.ops.store(ops + 1, Relaxed);
        ops
    }

    /// So many lines will be free when what was removed is persisted: an estimate, like `mark`'s.
    pub fn will_free(&self, lines: i64) {
        let removed = &self.shard().removed_lines;
        removed.store(removed.load(Relaxed) + lines, Relaxed);
    }

    fn removed_lines(&self) -> i64 {
        let removed = |s: &CachePadded<Shard>| s.removed_lines.load(Relaxed);
        self.shards.iter().map(removed).sum()
    }

    fn pending(&self) -> i64 {
        self.shards.iter().map(|s| s.ops.load(Relaxed)).sum::<i64>() - self.taken.load(Relaxed)
    }

    /// Slow the caller down when the persister falls behind: gently at first, so that the rates
    /// meet; at the limit it waits, so that the backlog is bounded.
    fn throttle(&self) {
        let (mut pending, gentle) = (self.pending(), self.ops_max / 2);
        if pending < gentle {
            return;
        }
        self.kick();
        let gave_up = || self.stop.load(Relaxed) || self.failed.load(Relaxed);
        while pending >= self.ops_max && !gave_up() {
            std::thread::sleep(Duration::from_millis(1));
            pending = self.pending();
        }
        let excess = (pending - gentle).max(0) as f64 / (self.ops_max - gentle) as f64;
        let delay = DELAY_MAX.mul_f64(excess * excess * THROTTLE_EVERY as f64);
        if delay > Duration::from_micros(50) {
            std::thread::sleep(delay);
        }
    }

    /// Nothing is pending from before this time.
    pub fn set_swept(&self, time: Time) {
        self.swept.store(time.0, Relaxed);
    }

    /// Wake the background persister.
    pub fn kick(&self) {
        *self.wake.lock() = true;
        self.wakeup.notify_one();
    }

    /// Let the background persister end.
    pub fn stop(&self) {
        self.stop.store(true, Release);
        self.kick();
    }

    /// The background persister: sweep at least once in `bound`, until stopped.
    pub fn run(&self, volume: &Volume, bound: Duration, inodes_max: u64, clock: &dyn Clock) {
        while !self.stop.load(Acquire) {
            // Callers that are stopped by a full backlog kick nobody.
            let busy = self.pending() >= self.ops_max / 2 && volume.pool.poisoned().is_none();
            let mut wake = self.wake.lock();
            if !*wake && !busy {
                self.wakeup.wait_for(&mut wake, bound);
            }
            *wake = false;
            drop(wake);
            if volume.pool.poisoned().is_some() {
                continue;
            }
            let begun = clock.now();
            // A panic is a bug; callers must not wait for a thread that is gone.
            let sweep = catch_unwind(AssertUnwindSafe(|| self.sweep(volume, true)));
            match sweep.unwrap_or_else(|_| Err(Error::Medium("the persister panicked".into()))) {
                Ok(()) => self.swept.store(begun.0, Relaxed),
                Err(e) => self.fail(volume, &e),
            }
            if volume.table.len() > inodes_max {
                volume.table.evict(inodes_max / 2);
            }
        }
    }

    /// A batch failed half-way: what the medium holds is a consistent view, but DRAM and medium
    /// no longer fit together. Nothing further is accepted.
    fn fail(&self, volume: &Volume, error: &Error) {
        log::error!("persisting failed, no further changes are accepted: {error}");
        self.failed.store(true, Release);
        volume.pool.poison(&error.to_string());
    }

    /// Persist everything that is pending now. `reuse`: also make what was removed free.
    pub fn sweep(&self, volume: &Volume, reuse: bool) -> Result<()> {
        let mut core = self.core.lock();
        self.sweep_locked(volume, &mut core, reuse)
    }

    fn sweep_locked(
        &self,
        volume: &Volume,
        core: &mut MutexGuard<'_, Core>,
        reuse: bool,
    ) -> Result<()> {
        let removed = self.removed_lines();
        let room = core.room(volume)?;
        let mut pending = self.pending();
        let dirty: Vec<_> = self
            .shards
            .iter()
            .flat_map(|s| std::mem::take(&mut *s.dirty.lock()))
            .filter_map(|ino| volume.table.get(ino))
            .collect();
        // All at once, before the first capture: what changes after an inode was captured, by
        // whatever pulled it in, marks it anew.
        dirty.iter().for_each(|inode| inode.clear_dirty());
        let mut batch = Batch::new(volume, &self.moves);
        for inode in dirty {
            batch.pull(Pull::Inode(inode.clone()))?;
            if let Body::Dir(dir) = &inode.body
                && dir.is_changed()
            {
                for stripe in 0..STRIPES {
                    while !batch.sweep_stripe(&inode, stripe, room)? {
                        let full = std::mem::replace(&mut batch, Batch::new(volume, &self.moves));
                        pending -= self.publish(volume, core, full, pending)?;
                    }
                }
            }
            if batch.weight() >= room {
                let full = std::mem::replace(&mut batch, Batch::new(volume, &self.moves));
                pending -= self.publish(volume, core, full, pending)?;
            }
        }
        pending -= self.publish(volume, core, batch, pending)?;
        self.taken.fetch_add(pending, Relaxed); // what was cancelled, or counted for two
        self.freed_lines.store(removed, Relaxed);
        self.moves.lock().retain(|dir| dir.has_pending_names());
        self.free_orphans(volume, core)?;
        if reuse && !core.graveyard.is_empty() {
            core.retire(volume)?;
            self.clear_emptied(volume);
        }
        core.free_graves(volume)?;
        hand_over(volume)
    }

    /// Publish a batch. Of the `pending` operations it counts off as many as it had on names, so that those
    /// who wait for the backlog to shrink go on before the sweep ends; returns how many.
    fn publish(
        &self,
        volume: &Volume,
        core: &mut Core,
        batch: Batch<'_>,
        pending: i64,
    ) -> Result<i64> {
        if batch.is_empty() {
            return Ok(0);
        }
        let Core {
            journal: Some(journal),
            graveyard,
            ..
        } = core
        else {
            return Err(Error::Errno(vfs::Errno::ROFS));
        };
        let outcome = batch.publish(journal, graveyard, &self.orphans)?;
        core.last_sequence = outcome.sequence;
        core.free_graves(volume)?;
        self.batches.fetch_add(1, Relaxed);
        self.captured.fetch_add(outcome.captured, Relaxed);
        let done = pending.min(outcome.ops as i64);
        self.taken.fetch_add(done, Relaxed);
        Ok(done)
    }

    /// Free inodes that lost their last handle.
    fn free_orphans(&self, volume: &Volume, core: &mut Core) -> Result<()> {
        let orphans = std::mem::take(&mut *self.orphans.lock());
        for ino in orphans {
            let Some(inode) = volume.table.get(ino).filter(|i| i.is_nameless()) else {
                continue; // linked again; then its last removal brings it back here
            };
            match free_inode(volume, inode)? {
                Some(grave) => core.graveyard.bury(core.last_sequence, grave),
                None => self.orphans.lock().push(ino),
            }
        }
        Ok(())
    }

    /// Clear the bits of line pages that emptied: they can be used for anything.
    fn clear_emptied(&self, volume: &Volume) {
        for page in volume.alloc.take_emptied() {
            volume.alloc.release_pages(page..page + 1);
            volume.alloc.free_emptied(page);
        }
    }

    /// Persist these, and return when they are durable. Callers that wait meanwhile share a batch.
    pub fn persist(&self, volume: &Volume, pulls: impl IntoIterator<Item = Pull>) -> Result<()> {
        let ticket = {
            let mut requests = self.requests.lock();
            requests.pulls.extend(pulls);
            requests.generation
        };
        let mut core = self.core.lock();
        if core.served <= ticket {
            let requests = {
                let mut requests = self.requests.lock();
                requests.generation += 1;
                std::mem::take(&mut requests.pulls)
            };
            let result = self.serve(volume, &mut core, requests);
            core.served = ticket + 1;
            if let Err(e) = result {
                self.fail(volume, &e);
                return Err(e);
            }
        }
        check(volume)
    }

    fn serve(&self, volume: &Volume, core: &mut Core, pulls: Vec<Pull>) -> Result<()> {
        check(volume)?;
        let room = core.room(volume)?;
        let mut batch = Batch::new(volume, &self.moves);
        for pull in pulls {
            batch.pull(pull)?;
            if batch.weight() >= room {
                let full = std::mem::replace(&mut batch, Batch::new(volume, &self.moves));
                self.publish(volume, core, full, 0)?;
            }
        }
        self.publish(volume, core, batch, 0)?;
        hand_over(volume)
    }

    /// Persist everything and make all that was removed free. True: there may be more space now.
    pub fn make_space(&self, volume: &Volume) -> Result<bool> {
        check(volume)?;
        let before = volume.alloc.free_lines();
        let mut core = self.core.lock();
        let result = self.sweep_locked(volume, &mut core, true);
        if let Err(e) = result {
            self.fail(volume, &e);
            return Err(e);
        }
        let gained = volume.alloc.compact();
        if gained > 0 {
            self.clear_emptied(volume);
        }
        Ok(gained > 0 || volume.alloc.free_lines() > before)
    }

    /// Persist everything for good, at unmount: afterwards nothing needs replaying.
    pub fn finish(&self, volume: &Volume) -> Result<()> {
        self.sweep(volume, true)?;
        self.core.lock().retire(volume)?;
        volume
            .table
            .for_each(|inode| inode.give_back_reserves(volume));
        volume.alloc.compact();
        self.clear_emptied(volume);
        volume.pool.fence().map_err(medium)
    }

    /// Run something while no batch does.
    pub fn undisturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        let _core = self.core.lock();
        work()
    }

    /// Run something while no batch does and nothing is buried; it is given the inodes that only
    /// handles keep.
    pub fn with_nothing_buried<T>(
        &self,
        volume: &Volume,
        work: impl FnOnce(&[u64]) -> Result<T>,
    ) -> Result<T> {
        let mut core = self.core.lock();
        self.free_orphans(volume, &mut core)?;
        core.retire(volume)?;
        let orphans = self.orphans.lock();
        let published: Vec<u64> = orphans
            .iter()
            .copied()
            .filter(|&ino| volume.table.get(ino).is_some_and(|i| i.is_published()))
            .collect();
        drop(orphans);
        let result = work(&published)?;
        hand_over(volume)?;
        Ok(result)
    }

    /// Lines that will be free when what was removed is persisted.
    pub fn lines_to_come(&self) -> u64 {
        let to_come = self.removed_lines() - self.freed_lines.load(Relaxed);
        to_come.max(0) as u64
    }

    /// Figures.
    pub fn backlog(&self) -> Backlog {
        Backlog {
            ops: self.pending().max(0) as u64,
            ops_max: self.ops_max as u64,
            swept: Time(self.swept.load(Relaxed)),
            batches: self.batches.load(Relaxed),
            captured: self.captured.load(Relaxed),
        }
    }
}

/// The error that a failed medium left, if it did.
pub fn check(volume: &Volume) -> Result<()> {
    volume.pool.poisoned().map_or(Ok(()), |e| Err(medium(e)))
}

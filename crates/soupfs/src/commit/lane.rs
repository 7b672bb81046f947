//! The commit lane: one batch at a time, so that the consistent view has one writer.
//!
//! Whoever has the lane's lock runs batches. Lock order: sweeping -> lane -> a caller's locks
//! (stripe, slot, body, meta). So nobody may wait for the lane with one of these held.

use crate::alloc::ARENA_PAGES;
use crate::commit::batch::Orphans;
use crate::commit::build::Built;
use crate::commit::deferred::DeferredFrees;
use crate::commit::gate::Gate;
use crate::commit::helpers::Helpers;
use crate::commit::settle::{Outcome, free_inode};
use crate::commit::txn::Commit;
use crate::commit::withdrawn::Withdrawn;
use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::image::{cause, failure};
use crate::medium::failed;
use crate::volume::Volume;
use pmem::{Domain, Journal};
use schedule::{Mutex, MutexGuard, give_way, point};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use vfs::{Error, Result};

/// Lines that a step of a checkpoint flushes: a millisecond, about.
const CHECKPOINT_STEP: u64 = 32_768;

/// What batches share.
pub struct Lane {
    /// Absent on a read-only mount, on which nothing is ever pending, and when unmounted.
    journal: Option<Journal>,
    helpers: Helpers,
    pub(super) deferred: DeferredFrees,
    last: Commit,
    /// Whoever has the lane has flushed cleared bits of the maps, and not fenced them.
    unfenced: bool,
}

/// The lane, for one thread at a time.
pub struct LaneLock {
    lane: Mutex<Lane>,
    /// Threads that wait for it and may go between two batches of a sweep.
    waiting: AtomicI64,
}

/// The error that a failed medium left, if it did.
pub fn check(volume: &Volume) -> Result<()> {
    failure(&volume.pool).map_or(Ok(()), Err)
}

impl LaneLock {
    /// Over an open journal.
    pub fn new(journal: Option<Journal>, helpers: Helpers) -> LaneLock {
        LaneLock {
            lane: Mutex::new(Lane {
                journal,
                helpers,
                deferred: DeferredFrees::default(),
                last: Commit::BEFORE_MOUNT,
                unfenced: false,
            }),
            waiting: AtomicI64::new(0),
        }
    }

    /// Take it, for a sweep.
    pub fn lock(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock()
    }

    /// Take it, if nobody has it, or waits for it.
    pub fn at_once(&self) -> Option<MutexGuard<'_, Lane>> {
        if self.is_waited_for() {
            return None;
        }
        self.lane.try_lock()
    }

    /// Take it, from between two batches.
    pub fn wait(&self) -> MutexGuard<'_, Lane> {
        self.waiting.fetch_add(1, Relaxed);
        let lane = self.lane.lock();
        self.waiting.fetch_sub(1, Relaxed);
        lane
    }

    /// Whether somebody waits who may go between two batches.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Between two batches of a sweep: let those go first who wait for the lane, with an fsync or a
    /// step of the reclaimer. What they capture the sweep finds captured.
    pub fn give_way(&self, volume: &Volume, lane: &mut MutexGuard<'_, Lane>) -> Result<()> {
        point("sweep: between two batches");
        if !self.is_waited_for() {
            return Ok(());
        }
        lane.hand_over(volume)?;
        give_way(&self.lane, lane);
        check(volume)
    }
}

impl Lane {
    fn journal(&mut self) -> Result<&mut Journal> {
        self.journal.as_mut().ok_or(Error::Errno(vfs::Errno::ROFS))
    }

    /// An error if nothing is to be persisted, or any more.
    pub fn check_open(&mut self) -> Result<()> {
        self.journal().map(drop)
    }

    /// Nothing more is persisted.
    pub fn close(&mut self) {
        self.journal = None;
        self.helpers = Helpers::default(); // they hold the pool
    }

    /// Bring what was built into the consistent view.
    pub fn publish(
        &mut self,
        volume: &Volume,
        built: Box<Built>,
        orphans: &Orphans,
        gate: &Gate,
    ) -> Result<Outcome> {
        let journal = self.journal.as_mut();
        let journal = journal.ok_or(Error::Errno(vfs::Errno::ROFS))?;
        let committed = built.commit(volume, journal, &self.helpers, gate)?;
        self.unfenced = false; // a commit fences
        let outcome = committed.settle(&mut self.deferred, orphans)?;
        self.last = outcome.commit;
        Ok(outcome)
    }

    /// Free what no replay can touch any more; of trees, a step.
    pub fn free_deferred(&mut self, volume: &Volume) -> Result<()> {
        let checkpointed = self.journal()?.checkpointed();
        volume.logged.set_checkpointed(checkpointed);
        self.unfenced |= self.deferred.free(volume, checkpointed);
        self.free_trees(volume);
        Ok(())
    }

    /// A step of freeing trees.
    pub fn free_trees(&mut self, volume: &Volume) {
        self.unfenced |= self.deferred.free_trees(volume);
    }

    /// Clear the bits of line pages that emptied: they can be used for anything.
    pub fn clear_emptied(&mut self, volume: &Volume) {
        let mut flushes = Flushes::default();
        for page in volume.alloc.take_emptied() {
            volume.alloc.release_pages(page..page + 1, &mut flushes);
            volume.alloc.free_emptied(page);
        }
        self.unfenced |= flushes.run(&volume.pool);
    }

    /// Somebody else flushes cleared bits, and has the lane meanwhile.
    pub fn flushes_bits(&mut self) {
        self.unfenced = true;
    }

    /// Before another thread may have the lane: it may be that which marks the image clean, and in
    /// domain `line` a fence covers its own thread's flushes only (M6). In `page` the next sync
    /// covers all. Commits and checkpoints fence what they flush themselves.
    pub fn hand_over(&mut self, volume: &Volume) -> Result<()> {
        match volume.pool.domain() {
            Domain::Line if self.unfenced => volume.pool.fence().map_err(failed)?,
            Domain::Line | Domain::Cache | Domain::Page => {}
        }
        self.unfenced = false;
        Ok(())
    }

    /// A step towards a journal of which little is live, if much is, or if `all` is to be durable
    /// in place. Whether there is more to do.
    pub fn checkpoint_some(&mut self, all: bool) -> Result<bool> {
        let journal = self.journal()?;
        if !(all || journal.needs_checkpoint()) {
            return Ok(false);
        }
        journal.checkpoint_some(CHECKPOINT_STEP).map_err(failed)
    }

    /// If as many pages wait as one thread keeps at hand, bring the journal to where the next
    /// commit frees them. Who replaces pages throughout gets those that are in the caches and
    /// mapped, not one after the other of all the image. Costs a fence for so many, and few lines,
    /// as each is flushed once for all; on a disk that fence is a sync, which is more than it
    /// saves.
    pub fn recycle_pages(&mut self, volume: &Volume) -> Result<()> {
        match volume.pool.domain() {
            Domain::Line if self.deferred.pages() >= ARENA_PAGES as u64 => {
                if injected(Fault::RecycledEarly) {
                    self.deferred.free(volume, u64::MAX);
                    return Ok(());
                }
                self.checkpoint_some(true).map(drop)
            }
            Domain::Line | Domain::Cache | Domain::Page => Ok(()),
        }
    }

    /// Make sure that nothing needs replaying.
    pub fn checkpoint_journal(&mut self, volume: &Volume) -> Result<()> {
        let journal = self.journal()?;
        journal.checkpoint().map_err(failed)?;
        volume.logged.set_checkpointed(journal.checkpointed());
        Ok(())
    }

    /// The same, and free all that waits; of trees, a step.
    pub fn checkpoint(&mut self, volume: &Volume) -> Result<()> {
        self.checkpoint_journal(volume)?;
        self.free_deferred(volume)
    }

    /// Free inodes that lost their last handle.
    pub fn free_orphans(&mut self, volume: &Volume, orphans: &Orphans) {
        let mut withdrawn = Withdrawn::default();
        let all = std::mem::take(&mut *orphans.lock());
        for ino in all {
            let Some(inode) = volume.inodes.get(ino) else {
                continue;
            };
            let waits = if inode.is_nameless() {
                !free_inode(volume, inode, &mut withdrawn)
            } else {
                // Linked again; then its last removal brings it back here. Or it is about to lose
                // its last name.
                let image = volume.image().inode(ino);
                inode.is_published() && image.is_ok_and(|image| image.nlink == 0)
            };
            if waits {
                orphans.lock().push(ino);
            }
        }
        self.deferred.defer(self.last, withdrawn);
    }
}

/// Do something with the lane. If a batch fails half-way, what the medium holds is a consistent
/// view, but DRAM and medium no longer fit together: nothing further is accepted. So, too, if it
/// panics, which is a bug: nobody must take what it had for persisted, nor wait for it.
pub fn or_fail(
    volume: &Volume,
    lane: &mut MutexGuard<'_, Lane>,
    work: impl FnOnce(&mut MutexGuard<'_, Lane>) -> Result<()>,
) -> Result<()> {
    lane.check_open()?;
    fail_if(volume, || work(lane))
}

/// The same of what is done without the lane.
pub fn fail_if<T>(volume: &Volume, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::medium("persisting panicked")));
    let result = result.map_err(|error| cause(&volume.pool, error));
    result.inspect_err(|error| {
        log::error!("persisting failed, no further changes are accepted: {error}");
        volume.pool.poison(&error.to_string());
    })
}

//! A sweep: everything that is pending now becomes durable, in as many batches as it takes.

use crate::commit::capture::{Captured, Pull};
use crate::commit::lane::{Lane, check, or_fail};
use crate::commit::persister::Persister;
use crate::dir::STRIPES;
use crate::fault::{Fault, injected};
use crate::inode::Body;
use crate::medium::failed;
use crate::volume::Volume;
use schedule::{MutexGuard, point};
use std::sync::atomic::Ordering::Relaxed;
use vfs::Result;

/// Steps of freeing what removed files held that one sweep does: what is noted meanwhile waits for
/// it.
const TREE_STEPS: usize = 16;

/// Inodes that a sweep of mode `strong` shares at a time: requests wait for them until they are
/// published.
const SHARED_MAX: usize = 256;

impl Persister {
    /// Persist everything that is pending now. `reuse`: also make what was removed free.
    pub fn sweep(&self, volume: &Volume, reuse: bool) -> Result<()> {
        let _sweeping = self.sweeping.lock();
        self.inherit(volume)?;
        let mut lane = self.lane.lock();
        or_fail(volume, &mut lane, |lane| {
            self.sweep_locked(volume, lane, reuse)
        })
    }

    /// Make durable what a killed process wrote to files, once in a mount. Batches go between the
    /// steps.
    ///
    /// # Errors
    /// The medium failed.
    pub fn inherit(&self, volume: &Volume) -> Result<()> {
        while volume.inherited.is_pending() {
            self.undisturbed(|| volume.inherited.step(volume))?;
        }
        Ok(())
    }

    fn sweep_locked(
        &self,
        volume: &Volume,
        lane: &mut MutexGuard<'_, Lane>,
        reuse: bool,
    ) -> Result<()> {
        let removed = self.budget.notes.removed_lines();
        // What is noted by now is captured by the end.
        let noted = self.budget.notes.words();
        match self.gate.is_there() {
            true => self.publish_idle(volume, lane)?,
            false => self.publish_dirty(volume, lane)?,
        }
        self.budget.take_up_to(noted);
        self.deferred_lines.store(removed, Relaxed);
        self.moves.lock().retain(|dir| dir.has_pending_names());
        self.reuse_locked(volume, lane, reuse)
    }

    /// Free what was removed, as far as it is certain that nothing needs replaying; `reuse`: all of
    /// it.
    fn reuse_locked(
        &self,
        volume: &Volume,
        lane: &mut MutexGuard<'_, Lane>,
        reuse: bool,
    ) -> Result<()> {
        lane.free_orphans(volume, &self.orphans);
        let reuse = reuse && lane.deferred.waits();
        while lane.checkpoint_some(reuse)? {
            self.lane.give_way(volume, lane)?;
        }
        if reuse {
            lane.checkpoint(volume)?;
            lane.clear_emptied(volume);
        }
        lane.free_deferred(volume)?;
        for _ in 0..TREE_STEPS {
            if lane.deferred.has_trees() {
                self.lane.give_way(volume, lane)?;
                lane.free_trees(volume);
            }
        }
        self.count_waiting(lane);
        lane.hand_over(volume)
    }

    fn publish_dirty(&self, volume: &Volume, lane: &mut MutexGuard<'_, Lane>) -> Result<()> {
        let dirty = self.budget.notes.take_dirty();
        let dirty: Vec<_> = dirty.filter_map(|ino| volume.inodes.get(ino)).collect();
        // All at once, before the first capture: what changes after an inode was captured, by
        // whatever pulled it in, marks it anew.
        point("sweep: still marked");
        if !injected(Fault::ClearedLate) {
            dirty.iter().for_each(|inode| inode.clear_dirty());
        }
        point("sweep: nothing is captured");
        let mut batch = Captured::new(volume, &self.moves);
        for inode in dirty {
            batch.pull(Pull::Inode(inode.clone()))?;
            if injected(Fault::ClearedLate) {
                point("sweep: captured and marked");
                inode.clear_dirty();
            }
            if let Body::Dir(dir) = &inode.body
                && dir.is_changed()
            {
                for stripe in 0..STRIPES {
                    while !batch.pull_some(&inode, stripe, self.budget.room(batch.words()))? {
                        batch = self.publish_full(volume, lane, batch)?;
                    }
                }
            }
            batch = self.publish_full(volume, lane, batch)?;
        }
        self.publish(volume, lane, batch)
    }

    /// Mode `strong`: persist times of access. What requests change they commit themselves, so an
    /// inode that one may hold is left for the next sweep: whoever has the lane waits for no scope,
    /// as requests wait for the lane with scopes held. What is captured stays shared until it is
    /// published: else a transaction without a lock could come between, and its times be undone.
    fn publish_idle(&self, volume: &Volume, lane: &mut MutexGuard<'_, Lane>) -> Result<()> {
        let dirty: Vec<u64> = self.budget.notes.take_dirty().collect();
        let mut batch = Captured::new(volume, &self.moves);
        let mut shared = Vec::new();
        for ino in dirty {
            let Some(one) = self.gate.try_shared(ino) else {
                self.budget.notes.list_again(ino);
                continue;
            };
            point("sweep: shares an inode");
            let inode = volume.inodes.get(ino);
            if let Some(inode) = inode.filter(|inode| inode.is_dirty()) {
                inode.clear_dirty();
                batch.pull(Pull::Inode(inode))?;
                if !injected(Fault::SweepLetsGo) {
                    shared.push(one);
                }
            }
            if self.budget.fills_batch(batch.words()) || shared.len() >= SHARED_MAX {
                self.publish(volume, lane, batch)?;
                shared.clear();
                self.lane.give_way(volume, lane)?;
                batch = Captured::new(volume, &self.moves);
            }
        }
        self.publish(volume, lane, batch)
    }

    /// Publish a batch that has gathered as much as one may, and begin the next; others go on
    /// gathering.
    fn publish_full<'v>(
        &'v self,
        volume: &'v Volume,
        lane: &mut MutexGuard<'_, Lane>,
        batch: Captured<'v>,
    ) -> Result<Captured<'v>> {
        if !self.budget.fills_batch(batch.words()) {
            return Ok(batch);
        }
        self.publish(volume, lane, batch)?;
        self.lane.give_way(volume, lane)?;
        Ok(Captured::new(volume, &self.moves))
    }

    /// Persist everything and make all that was removed free. True: there is space now, or more is
    /// about to be free: what was made free others may have used already, and removed again.
    pub fn make_space(&self, volume: &Volume) -> Result<bool> {
        check(volume)?;
        let _sweeping = self.sweeping.lock();
        let mut lane = self.lane.lock();
        let mut gained = 0;
        or_fail(volume, &mut lane, |lane| {
            let before = volume.alloc.free_lines();
            // What is pending in mode `strong` is that of requests that are not done.
            match self.gate.is_there() {
                true => self.reuse_locked(volume, lane, true)?,
                false => self.sweep_locked(volume, lane, true)?,
            }
            // All of a tree is released before any page of it is handed out: for a large file that
            // takes more steps than one sweep does.
            while lane.deferred.has_trees() && volume.alloc.free_lines() <= before {
                self.lane.give_way(volume, lane)?;
                lane.free_trees(volume);
            }
            self.count_waiting(lane);
            gained = volume.alloc.compact();
            if gained > 0 {
                lane.clear_emptied(volume);
            }
            lane.hand_over(volume)
        })?;
        Ok(gained > 0 || volume.alloc.free_lines() > 0 || self.lines_to_come() > 0)
    }

    /// Persist everything for good, at unmount: afterwards nothing needs replaying, and nothing
    /// more is persisted.
    pub fn finish(&self, volume: &Volume) -> Result<()> {
        self.sweep(volume, true)?;
        let mut lane = self.lane.lock();
        lane.checkpoint(volume)?;
        while lane.deferred.has_trees() {
            lane.free_trees(volume);
        }
        volume
            .inodes
            .for_each(|inode| inode.give_back_reserves(volume));
        volume.alloc.compact();
        lane.clear_emptied(volume);
        lane.close();
        volume.pool.fence().map_err(failed)
    }
}

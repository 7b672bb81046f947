//! The persister: what is pending, and all that brings it forward, in time or on demand (SoupFS
//! §3.7).
//!
//! The background thread sweeps the dirty inodes at each wake-up ([`crate::commit::timing`]); a
//! caller of fsync runs a batch of just what it needs itself ([`crate::commit::requests`]). One
//! batch runs at a time ([`crate::commit::lane`]).

use crate::commit::alarm::Alarm;
use crate::commit::batch::Orphans;
use crate::commit::budget::{Budget, Limits};
use crate::commit::build::Built;
use crate::commit::capture::{Captured, DirMoves, Pull};
use crate::commit::gate::Gate;
use crate::commit::helpers::Helpers;
use crate::commit::lane::{Lane, LaneLock, check, or_fail};
use crate::commit::requests::Requests;
use crate::inode::Inode;
use crate::inode_state::ANY;
use crate::volume::Volume;
use pmem::{Journal, Transactions};
use schedule::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use triomphe::Arc;
use vfs::{Errno, Error, Result, Time};

/// Everything pending, and who persists it.
pub struct Persister {
    /// What requests of mode `strong` hold.
    pub gate: Gate,
    /// What makes transactions of memory, if anything does.
    pub transactions: Option<std::sync::Arc<dyn Transactions>>,
    pub(super) lane: LaneLock,
    /// Callers of fsync.
    pub(super) requests: Requests<Pull>,
    /// Requests of mode `strong`.
    pub(super) commits: Requests<Box<Built>>,
    pub(super) budget: Budget,
    pub(super) alarm: Alarm,
    /// Moves of directories that are not captured.
    pub moves: DirMoves,
    /// Inodes without names that are in use.
    pub orphans: Orphans,
    /// Of the lines that were noted as removed, those that are deferred, or that sweeps have dealt
    /// with.
    pub(super) deferred_lines: AtomicI64,
    /// Lines whose free is deferred, and whether some of it may be freed and is not yet.
    pub(super) waiting_lines: AtomicI64,
    pub(super) trees_wait: AtomicBool,
    /// Held during a sweep, which lets go of the lane between its batches: another sweep would not
    /// find what this one has taken off the dirty lists.
    pub(super) sweeping: Mutex<()>,
    /// Batches, operations and inodes in them.
    batches: AtomicU64,
    captured: AtomicU64,
}

/// Figures for `status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Words of the journal that persisting what is pending may take.
    pub words: u64,
    /// Above this callers are stopped.
    pub words_max: u64,
    /// What was done before this is persisted, if anything is pending.
    pub swept: Time,
    /// Batches published since the mount.
    pub batches: u64,
    /// Operations and inodes in them.
    pub captured: u64,
}

impl Persister {
    /// Over an open journal.
    pub fn new(
        volume: &Volume,
        journal: Option<Journal>,
        helpers: Helpers,
        mut limits: Limits,
        gate: Gate,
    ) -> Persister {
        let capacity = journal.as_ref().map_or(0, Journal::capacity);
        if gate.is_there() {
            // To these requests comes one that may take half the journal, and is not divided.
            let words = limits.knobs.batch_words.unwrap_or(usize::MAX);
            limits.knobs.batch_words = Some(words.min(capacity / 4));
        }
        let transactions = journal.as_ref().and_then(Journal::transactions).cloned();
        Persister {
            gate,
            transactions,
            budget: Budget::new(capacity, volume.pool.domain(), limits),
            lane: LaneLock::new(journal, helpers),
            requests: Requests::default(),
            commits: Requests::default(),
            alarm: Alarm::default(),
            moves: DirMoves::default(),
            orphans: Orphans::default(),
            deferred_lines: AtomicI64::new(0),
            waiting_lines: AtomicI64::new(0),
            trees_wait: AtomicBool::new(false),
            sweeping: Mutex::new(()),
            batches: AtomicU64::new(0),
            captured: AtomicU64::new(0),
        }
    }

    /// An operation on `inode` is pending that may take so many words of the journal besides the
    /// inode's own. The caller may be slowed down: it holds no lock that a batch takes.
    ///
    /// # Errors
    /// The backlog was full, nobody else persists, and persisting failed.
    #[inline]
    pub fn note(&self, volume: &Volume, inode: &Arc<Inode>, words: u64) -> Result<()> {
        if self.gate.is_there() {
            inode.mark_dirty(ANY); // the request that holds it commits it
            return Ok(());
        }
        match self.mark(inode, ANY, words) {
            true => self.look(volume),
            false => Ok(()),
        }
    }

    /// An operation on `inode` is pending, of which it needs [`crate::inode_state::TIME`] or
    /// [`ANY`] persisted; the caller holds a lock. True: it is time to look at the backlog.
    #[inline]
    pub fn mark(&self, inode: &Arc<Inode>, what: u8, words: u64) -> bool {
        self.budget.notes.mark(inode, what, words)
    }

    /// So many lines will be free when what was removed is persisted.
    pub fn will_free(&self, lines: i64) {
        if !self.gate.is_there() {
            self.budget.notes.will_free(lines);
        }
    }

    /// Persist these, and return when they are durable. Callers that wait meanwhile share a batch.
    pub fn persist(&self, volume: &Volume, pulls: impl IntoIterator<Item = Pull>) -> Result<()> {
        self.share(volume, &self.requests, pulls, Persister::serve)
    }

    /// Serve these, or have them served by another caller; on return that is done.
    pub(super) fn share<T>(
        &self,
        volume: &Volume,
        requests: &Requests<T>,
        wanted: impl IntoIterator<Item = T>,
        serve: impl FnOnce(&Persister, &Volume, &mut Lane, Vec<T>) -> Result<()>,
    ) -> Result<()> {
        let serve = |lane: &mut MutexGuard<'_, Lane>, queued| {
            or_fail(volume, lane, |lane| serve(self, volume, lane, queued))
        };
        let is_served = requests.share(wanted, || self.lane.wait(), serve)?;
        check(volume)?;
        match is_served {
            true => Ok(()),
            false => Err(Error::Errno(Errno::ROFS)), // as its leader found
        }
    }

    fn serve(&self, volume: &Volume, lane: &mut Lane, pulls: Vec<Pull>) -> Result<()> {
        check(volume)?;
        let mut batch = Captured::new(volume, &self.moves);
        for pull in pulls {
            batch.pull(pull)?;
            if self.budget.fills_batch(batch.words()) {
                let full = std::mem::replace(&mut batch, Captured::new(volume, &self.moves));
                self.publish(volume, lane, full)?;
            }
        }
        self.publish(volume, lane, batch)?;
        lane.hand_over(volume)
    }

    /// Publish a batch, and count off what it had.
    pub(super) fn publish(
        &self,
        volume: &Volume,
        lane: &mut Lane,
        batch: Captured<'_>,
    ) -> Result<()> {
        match batch.is_empty() {
            true => Ok(()),
            false => self.publish_built(volume, lane, batch.build()?),
        }
    }

    /// The same of what is built already.
    pub(super) fn publish_built(
        &self,
        volume: &Volume,
        lane: &mut Lane,
        built: Box<Built>,
    ) -> Result<()> {
        let before = lane.deferred.deferred_lines();
        let outcome = lane.publish(volume, built, &self.orphans, &self.gate)?;
        let deferred_lines = (lane.deferred.deferred_lines() - before) as i64;
        self.deferred_lines.fetch_add(deferred_lines, Relaxed);
        lane.free_deferred(volume)?;
        if self.gate.is_there() {
            lane.recycle_pages(volume)?;
        }
        self.count_waiting(lane);
        self.batches.fetch_add(1, Relaxed);
        self.captured.fetch_add(outcome.captured, Relaxed);
        if !self.gate.is_there() {
            self.budget.take(outcome.noted); // requests note nothing: they do not wait
        }
        Ok(())
    }

    /// Tell what waits to be freed.
    pub(super) fn count_waiting(&self, lane: &Lane) {
        let deferred = &lane.deferred;
        self.waiting_lines.store(deferred.lines() as i64, Relaxed);
        self.trees_wait.store(deferred.has_trees(), Relaxed);
    }

    /// Whether somebody waits for the end of what runs undisturbed, or between batches.
    pub fn is_waited_for(&self) -> bool {
        self.lane.is_waited_for()
    }

    /// Run something that reads the consistent view while no batch changes it.
    pub fn undisturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        let _lane = self.lane.wait();
        work()
    }

    /// Run something that clears bits of the maps, and flushes them, while no batch does.
    pub fn between_batches<T>(&self, volume: &Volume, work: impl FnOnce() -> T) -> Result<T> {
        let mut lane = self.lane.wait();
        check(volume)?;
        let result = work();
        lane.flushes_bits();
        lane.hand_over(volume)?;
        Ok(result)
    }

    /// Run something while no batch does and nothing is deferred; it is given the inodes that only
    /// handles keep. `None`: there is more to be freed first than a step does.
    pub fn with_nothing_deferred<T>(
        &self,
        volume: &Volume,
        work: impl FnOnce(&[u64]) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut lane = self.lane.wait();
        lane.free_orphans(volume, &self.orphans);
        lane.checkpoint(volume)?;
        self.count_waiting(&lane);
        if !lane.deferred.is_empty() {
            lane.hand_over(volume)?;
            return Ok(None);
        }
        let orphans = self.orphans.lock().clone();
        let published: Vec<u64> = orphans
            .into_iter()
            .filter(|&ino| volume.inodes.get(ino).is_some_and(|i| i.is_published()))
            .collect();
        let result = work(&published)?;
        lane.hand_over(volume)?;
        Ok(Some(result))
    }

    /// Lines that will be free when what was removed is persisted.
    pub fn lines_to_come(&self) -> u64 {
        let to_come = self.budget.notes.removed_lines() - self.deferred_lines.load(Relaxed);
        (to_come.max(0) + self.waiting_lines.load(Relaxed)) as u64
    }

    /// Figures.
    pub fn backlog(&self) -> Backlog {
        Backlog {
            words: self.budget.pending().max(0) as u64,
            words_max: self.budget.max() as u64,
            swept: self.alarm.swept(),
            batches: self.batches.load(Relaxed),
            captured: self.captured.load(Relaxed),
        }
    }
}

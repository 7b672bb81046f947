//! The persisters: they bring the consistent view forward, in time or on demand (SoupFS §3.7).
//!
//! One batch runs at a time, so the consistent view has one writer; further persisters help it to
//! flush ([`crate::commit::helpers`]). The background thread sweeps
//! the dirty inodes at each wake-up; a caller of fsync runs a batch of just what it needs itself.
//! Callers that arrive while a batch runs are served together by the next.
//!
//! Lock order: sweeping -> core -> a caller's locks (stripe, slot, body, meta). So nobody may wait
//! for the core with one of these held.

use crate::commit::capture::{Captured, DirMoves, Pull};
use crate::commit::deferred::DeferredFrees;
use crate::commit::helpers::Helpers;
use crate::commit::pressure::{Load, Pressure};
use crate::commit::settle::free_inode;
use crate::commit::txn::Commit;
use crate::commit::withdrawn::Withdrawn;
use crate::dir::STRIPES;
use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::inode::{Body, Inode};
use crate::inode_state::{ANY, TIME};
use crate::medium::failed;
use crate::options::Knobs;
use crate::shards::{CachePadded, thread_slot};
use crate::volume::Volume;
use parking_lot::Condvar;
use pmem::{Domain, Journal};
use schedule::{Mutex, MutexGuard, give_way, point};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;
use triomphe::Arc;
use vfs::{Clock, Error, Result, Time};

/// DRAM that a pending operation takes, with its inode: bytes, on average.
pub const BYTES_PER_OP: u64 = 640;
/// Operations between two looks at the backlog, per shard.
const THROTTLE_EVERY: i64 = 64;
/// Shards of which each belongs to one thread.
const OWN_SHARDS: usize = 32;
/// Shards that the other threads share.
const SHARED_SHARDS: usize = 32;

/// Journal words of an inode of which this is dirty.
fn inode_words(dirty: u8) -> i64 {
    match dirty {
        0 => 0,
        TIME => 1,
        _ => 11, // all but magic number and birth
    }
}
/// Words in a batch where fences are cheap: some thousand operations.
const BATCH_WORDS: usize = 16384;
/// Steps of freeing what removed files held that one sweep does: what is noted meanwhile waits for
/// it.
const TREE_STEPS: usize = 16;
/// What the batches share, under one lock.
struct Core {
    /// Absent on a read-only mount, on which nothing is ever pending, and when unmounted.
    journal: Option<Journal>,
    /// See [`Knobs::batch_words`].
    batch_words: Option<usize>,
    helpers: Helpers,
    deferred: DeferredFrees,
    /// Requests up to this generation are served.
    served: u64,
    last_commit: Commit,
}

#[derive(Default)]
struct Requests {
    pulls: Vec<Pull>,
    /// Of the requests that are queued now.
    generation: u64,
}

/// Dirty inodes and pending operations of a thread, or of several.
#[derive(Default)]
struct Shard {
    dirty: Mutex<Vec<u64>>,
    /// What was noted here since the mount, and what had been at the last look at the backlog.
    ops: AtomicI64,
    words: AtomicI64,
    ops_seen: AtomicI64,
    words_seen: AtomicI64,
    /// Lines that will be free when what was removed is persisted.
    removed_lines: AtomicI64,
}

impl Shard {
    /// More of an inode than was noted is dirty: so many more words of the journal. If nothing was,
    /// it comes on the list.
    #[inline(never)] // of directories, which are marked most often, all is noted nearly always
    fn list(&self, ino: u64, noted: u8, what: u8) -> i64 {
        if noted == 0 {
            self.dirty.lock().push(ino);
        }
        inode_words(noted | what) - inode_words(noted)
    }
}

/// Everything pending, and who persists it.
pub struct Persister {
    core: Mutex<Core>,
    requests: Mutex<Requests>,
    shards: Box<[CachePadded<Shard>]>,
    /// What batches have taken of all that was noted; changed under `core`.
    taken_ops: AtomicI64,
    taken_words: AtomicI64,
    pressure: Pressure,
    /// The background thread runs; without it callers persist when the backlog is full.
    running: AtomicBool,
    /// Moves of directories that are not captured.
    pub moves: DirMoves,
    /// Numbers of inodes without names that were in use when they lost the last. Some may be in use
    /// for something else by now.
    pub orphans: Mutex<Vec<u64>>,
    /// Of the lines in the shards, those that are deferred, or that sweeps have dealt with.
    deferred_lines: AtomicI64,
    /// Lines whose free is deferred, and whether some of it may be freed and is not yet.
    waiting_lines: AtomicI64,
    trees_wait: AtomicBool,
    /// Held during a sweep, which lets go of the core between its batches: another sweep would not
    /// find what this one has taken off the dirty lists.
    sweeping: Mutex<()>,
    /// Threads that wait for the core and may go between two batches.
    waiting: AtomicI64,
    wake: parking_lot::Mutex<bool>,
    wakeup: Condvar,
    stop: AtomicBool,
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

    /// Journal words that a batch may gather. What it pulls in comes on top, so half the journal.
    /// On a disk a batch costs two syncs, whatever is in it; elsewhere fences cost nothing, and
    /// with small batches those who wait for the backlog to shrink wait for less.
    fn room(&mut self, volume: &Volume) -> Result<usize> {
        let half = self.journal()?.capacity() / 2;
        Ok(match (self.batch_words, volume.pool.domain()) {
            (Some(words), _) => half.min(words),
            (None, Domain::Page) => half,
            (None, Domain::Line | Domain::Cache) => half.min(BATCH_WORDS),
        })
    }

    /// Free what no replay can touch any more; of trees, a step.
    fn free_deferred(&mut self, volume: &Volume) -> Result<()> {
        let checkpointed = self.journal()?.checkpointed();
        self.deferred.free(volume, checkpointed);
        self.deferred.free_trees(volume);
        Ok(())
    }

    /// Make sure that nothing needs replaying, and free all that waits; of trees, a step.
    fn checkpoint(&mut self, volume: &Volume) -> Result<()> {
        self.journal()?.checkpoint().map_err(failed)?;
        self.free_deferred(volume)
    }
}

/// Before another thread may run the next batch: it relies on what this one flushed, and in domain
/// `line` a fence covers its own thread's flushes only (M6). In `page` the next sync covers all.
fn hand_over(volume: &Volume) -> Result<()> {
    match volume.pool.domain() {
        Domain::Line => volume.pool.fence().map_err(failed),
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
    /// Words of the journal that persisting these may take.
    pub words: u64,
    /// Above this, too, callers are stopped.
    pub words_max: u64,
    /// What was done before this is persisted, if anything is pending.
    pub swept: Time,
    /// Batches published since the mount.
    pub batches: u64,
    /// Operations and inodes in them.
    pub captured: u64,
}

impl Persister {
    /// Over an open journal. `backlog_max` bounds the DRAM for pending operations, in bytes, and
    /// `bound` how late the consistent view may be; `knobs` may say otherwise.
    pub fn new(
        journal: Option<Journal>,
        helpers: Helpers,
        backlog_max: u64,
        bound: Duration,
        knobs: Knobs,
    ) -> Persister {
        let shards = OWN_SHARDS + SHARED_SHARDS;
        let ops_max = (backlog_max / BYTES_PER_OP).max(1024);
        let ops_max = knobs.pending_max.unwrap_or(ops_max) as i64;
        let capacity = journal.as_ref().map_or(0, Journal::capacity);
        Persister {
            pressure: Pressure::new(ops_max, capacity, shards, bound),
            core: Mutex::new(Core {
                journal,
                batch_words: knobs.batch_words,
                helpers,
                deferred: DeferredFrees::default(),
                served: 0,
                last_commit: Commit::BEFORE_MOUNT,
            }),
            requests: Mutex::default(),
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            taken_ops: AtomicI64::new(0),
            taken_words: AtomicI64::new(0),
            running: AtomicBool::new(false),
            moves: DirMoves::default(),
            orphans: Mutex::default(),
            deferred_lines: AtomicI64::new(0),
            waiting_lines: AtomicI64::new(0),
            trees_wait: AtomicBool::new(false),
            sweeping: Mutex::new(()),
            waiting: AtomicI64::new(0),
            wake: parking_lot::Mutex::new(false),
            wakeup: Condvar::new(),
            stop: AtomicBool::new(false),
            swept: AtomicI64::new(0),
            batches: AtomicU64::new(0),
            captured: AtomicU64::new(0),
        }
    }

    /// The calling thread's shard, and whether other threads have it, too.
    #[inline]
    fn shard(&self) -> (&Shard, bool) {
        let slot = thread_slot();
        if slot < OWN_SHARDS {
            return (&self.shards[slot], false);
        }
        (&self.shards[OWN_SHARDS + slot % SHARED_SHARDS], true)
    }

    /// An operation on `inode` is pending that may take so many words of the journal besides the
    /// inode's own. The caller may be slowed down: it holds no lock that a batch takes.
    ///
    /// # Errors
    /// The backlog was full, nobody else persists, and persisting failed.
    #[inline]
    pub fn note(&self, volume: &Volume, inode: &Arc<Inode>, words: u64) -> Result<()> {
        match self.mark(inode, ANY, words) {
            true => self.look(volume),
            false => Ok(()),
        }
    }

    /// Look at the backlog.
    #[cold]
    fn look(&self, volume: &Volume) -> Result<()> {
        // Only who does look says so: what was marked under a lock is looked at here.
        let shard = self.shard().0;
        shard.ops_seen.store(shard.ops.load(Relaxed), Relaxed);
        shard.words_seen.store(shard.words.load(Relaxed), Relaxed);
        self.throttle(volume)
    }

    /// An operation on `inode` is pending, of which it needs [`TIME`] or [`ANY`] persisted; the
    /// caller holds a lock. True: it is time to look at the backlog.
    #[inline]
    pub fn mark(&self, inode: &Arc<Inode>, what: u8, words: u64) -> bool {
        let (shard, shared) = self.shard();
        let noted = inode.mark_dirty(what);
        let mut words = words as i64;
        if noted & what != what {
            words += shard.list(inode.ino, noted, what);
        }
        // Exact, as the journal must not overflow: a shard is one thread's, or counts atomically.
        let add = |count: &AtomicI64, n: i64| match shared {
            false => {
                let now = count.load(Relaxed) + n;
                count.store(now, Relaxed);
                now
            }
            true => count.fetch_add(n, Relaxed) + n,
        };
        let (ops, words) = (add(&shard.ops, 1), add(&shard.words, words));
        ops - shard.ops_seen.load(Relaxed) >= THROTTLE_EVERY
            || words - shard.words_seen.load(Relaxed) >= self.pressure.unseen
    }

    /// So many lines will be free when what was removed is persisted: an estimate, as threads that
    /// share a shard may lose some.
    pub fn will_free(&self, lines: i64) {
        let removed = &self.shard().0.removed_lines;
        removed.store(removed.load(Relaxed) + lines, Relaxed);
    }

    fn removed_lines(&self) -> i64 {
        let removed = |s: &CachePadded<Shard>| s.removed_lines.load(Relaxed);
        self.shards.iter().map(removed).sum()
    }

    /// All that was noted since the mount.
    fn noted(&self) -> Load {
        self.shards.iter().fold(Load::default(), |sum, s| Load {
            ops: sum.ops + s.ops.load(Relaxed),
            words: sum.words + s.words.load(Relaxed),
        })
    }

    fn pending(&self) -> Load {
        let noted = self.noted();
        Load {
            ops: noted.ops - self.taken_ops.load(Relaxed),
            words: noted.words - self.taken_words.load(Relaxed),
        }
    }

    /// Slow the caller down when the persister falls behind; at a hard limit it waits, so that the
    /// backlog is bounded.
    fn throttle(&self, volume: &Volume) -> Result<()> {
        if !self.is_behind() {
            return Ok(());
        }
        let is_full = || self.pressure.fill(self.pending()) >= 1.0;
        if !self.running.load(Relaxed) {
            return match is_full() {
                true => self.sweep(volume, false),
                false => Ok(()),
            };
        }
        self.kick();
        // Whoever met the failure of the medium: nothing will be persisted any more.
        let goes_on = || !self.stop.load(Relaxed) && volume.pool.poisoned().is_none();
        while is_full() && goes_on() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(delay) = self.pressure.delay(self.pending(), THROTTLE_EVERY) {
            std::thread::sleep(delay);
        }
        Ok(())
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
        self.running.store(true, Relaxed);
        let mut took = Duration::ZERO;
        while !self.stop.load(Acquire) {
            // Callers that are stopped by a full backlog kick nobody.
            let busy = self.is_behind() || self.trees_wait.load(Relaxed);
            let busy = busy && volume.pool.poisoned().is_none();
            let mut wake = self.wake.lock();
            if !*wake && !busy {
                // What is noted now waits for a sweep that begins after this and ends.
                let pause = bound.saturating_sub(2 * took).max(bound / 2);
                self.wakeup.wait_for(&mut wake, pause);
            }
            *wake = false;
            drop(wake);
            if volume.pool.poisoned().is_some() {
                continue;
            }
            let (begun, taken) = (clock.now(), self.taken_ops.load(Relaxed));
            // If it fails, it has failed for all.
            if self.sweep(volume, true).is_ok() {
                self.swept.store(begun.0, Relaxed);
                took = Duration::from_nanos((clock.now().0 - begun.0).max(0) as u64);
                self.pressure
                    .learn(self.taken_ops.load(Relaxed) - taken, took);
            } else {
                continue; // what DRAM has of what was not persisted is all there is to read
            }
            if volume.inodes.len() > inodes_max {
                let forget = |inode: &Inode| inode.give_back_reserves(volume);
                volume.inodes.evict(inodes_max / 2, forget);
            }
        }
    }

    /// Persist something. If a batch fails half-way, what the medium holds is a consistent view,
    /// but DRAM and medium no longer fit together: nothing further is accepted. So, too, if it
    /// panics, which is a bug: nobody must take what it had for persisted, nor wait for it.
    fn or_fail(
        &self,
        volume: &Volume,
        core: &mut MutexGuard<'_, Core>,
        work: impl FnOnce(&mut MutexGuard<'_, Core>) -> Result<()>,
    ) -> Result<()> {
        core.journal()?;
        let result = catch_unwind(AssertUnwindSafe(|| work(core)))
            .unwrap_or_else(|_| Err(Error::medium("persisting panicked")));
        result.inspect_err(|error| {
            log::error!("persisting failed, no further changes are accepted: {error}");
            volume.pool.poison(&error.to_string());
        })
    }

    /// Persist everything that is pending now. `reuse`: also make what was removed free.
    pub fn sweep(&self, volume: &Volume, reuse: bool) -> Result<()> {
        let _sweeping = self.sweeping.lock();
        self.inherit(volume)?;
        let mut core = self.core.lock();
        self.or_fail(volume, &mut core, |core| {
            self.sweep_locked(volume, core, reuse)
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
        core: &mut MutexGuard<'_, Core>,
        reuse: bool,
    ) -> Result<()> {
        let removed = self.removed_lines();
        let room = core.room(volume)?;
        // What is noted by now is captured by the end.
        let noted = self.noted();
        let dirty: Vec<_> = self
            .shards
            .iter()
            .flat_map(|s| std::mem::take(&mut *s.dirty.lock()))
            .filter_map(|ino| volume.inodes.get(ino))
            .collect();
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
                    while !batch.sweep_stripe(&inode, stripe, room)? {
                        let full =
                            std::mem::replace(&mut batch, Captured::new(volume, &self.moves));
                        self.publish(volume, core, full)?;
                        self.give_way(volume, core)?;
                    }
                }
            }
            if batch.weight() >= room {
                let full = std::mem::replace(&mut batch, Captured::new(volume, &self.moves));
                self.publish(volume, core, full)?;
                self.give_way(volume, core)?;
            }
        }
        self.publish(volume, core, batch)?;
        // What was cancelled, counted for two, or noted with an inode.
        self.taken_ops.fetch_max(noted.ops, Relaxed);
        self.taken_ops.fetch_min(self.noted().ops, Relaxed); // a batch counts four for a whiteout that replaces, noted as three
        self.taken_words.fetch_max(noted.words, Relaxed);
        self.deferred_lines.store(removed, Relaxed);
        self.moves.lock().retain(|dir| dir.has_pending_names());
        self.free_orphans(volume, core)?;
        if reuse && core.deferred.waits() {
            core.checkpoint(volume)?;
            self.clear_emptied(volume);
        }
        core.free_deferred(volume)?;
        for _ in 0..TREE_STEPS {
            if core.deferred.has_trees() {
                self.give_way(volume, core)?;
                core.deferred.free_trees(volume);
            }
        }
        self.count_waiting(core);
        hand_over(volume)
    }

    /// Tell what waits to be freed.
    fn count_waiting(&self, core: &Core) {
        let deferred = &core.deferred;
        self.waiting_lines.store(deferred.lines() as i64, Relaxed);
        self.trees_wait.store(deferred.has_trees(), Relaxed);
    }

    /// Between two batches of a sweep: let those go first who wait for the core, with an fsync or a
    /// step of the reclaimer. What they capture the sweep finds captured.
    fn give_way(&self, volume: &Volume, core: &mut MutexGuard<'_, Core>) -> Result<()> {
        point("sweep: between two batches");
        if self.waiting.load(Relaxed) == 0 {
            return Ok(());
        }
        hand_over(volume)?;
        give_way(&self.core, core);
        check(volume)
    }

    /// Take the core, from between two batches.
    fn wait_for_core(&self) -> MutexGuard<'_, Core> {
        self.waiting.fetch_add(1, Relaxed);
        let core = self.core.lock();
        self.waiting.fetch_sub(1, Relaxed);
        core
    }

    /// Publish a batch. What it had is counted off, so that those who wait for the backlog to
    /// shrink go on before the sweep ends.
    fn publish(&self, volume: &Volume, core: &mut Core, batch: Captured<'_>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let Core {
            journal: Some(journal),
            helpers,
            deferred,
            ..
        } = core
        else {
            return Err(Error::Errno(vfs::Errno::ROFS));
        };
        let deferred_lines = deferred.deferred_lines();
        let outcome = batch
            .build()?
            .commit(journal, helpers)?
            .settle(deferred, &self.orphans)?;
        let deferred_lines = (deferred.deferred_lines() - deferred_lines) as i64;
        core.last_commit = outcome.commit;
        self.deferred_lines.fetch_add(deferred_lines, Relaxed);
        core.free_deferred(volume)?;
        self.count_waiting(core);
        self.batches.fetch_add(1, Relaxed);
        self.captured.fetch_add(outcome.captured, Relaxed);
        self.taken_ops.fetch_add(outcome.ops as i64, Relaxed);
        self.taken_words
            .fetch_add(outcome.noted_words as i64, Relaxed);
        Ok(())
    }

    /// Free inodes that lost their last handle.
    fn free_orphans(&self, volume: &Volume, core: &mut Core) -> Result<()> {
        let orphans = std::mem::take(&mut *self.orphans.lock());
        let mut withdrawn = Withdrawn::default();
        let freed = orphans.into_iter().try_for_each(|ino| {
            let Some(inode) = volume.inodes.get(ino) else {
                return Ok(());
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
                self.orphans.lock().push(ino);
            }
            Ok(())
        });
        core.deferred.defer(core.last_commit, withdrawn);
        freed
    }

    /// Clear the bits of line pages that emptied: they can be used for anything.
    fn clear_emptied(&self, volume: &Volume) {
        let mut flushes = Flushes::default();
        for page in volume.alloc.take_emptied() {
            volume.alloc.release_pages(page..page + 1, &mut flushes);
            volume.alloc.free_emptied(page);
        }
        flushes.run(&volume.pool);
    }

    /// Persist these, and return when they are durable. Callers that wait meanwhile share a batch.
    pub fn persist(&self, volume: &Volume, pulls: impl IntoIterator<Item = Pull>) -> Result<()> {
        let ticket = {
            let mut requests = self.requests.lock();
            requests.pulls.extend(pulls);
            requests.generation
        };
        point("sync: queued");
        let mut core = self.wait_for_core();
        core.journal()?;
        if core.served <= ticket {
            let requests = {
                let mut requests = self.requests.lock();
                requests.generation += u64::from(!injected(Fault::ServedEarly));
                std::mem::take(&mut requests.pulls)
            };
            point("sync: the queue is taken");
            let result = self.or_fail(volume, &mut core, |core| self.serve(volume, core, requests));
            if injected(Fault::ServedEarly) {
                self.requests.lock().generation += 1;
            }
            core.served = ticket + 1;
            result?;
        }
        check(volume)
    }

    fn serve(&self, volume: &Volume, core: &mut Core, pulls: Vec<Pull>) -> Result<()> {
        check(volume)?;
        let room = core.room(volume)?;
        let mut batch = Captured::new(volume, &self.moves);
        for pull in pulls {
            batch.pull(pull)?;
            if batch.weight() >= room {
                let full = std::mem::replace(&mut batch, Captured::new(volume, &self.moves));
                self.publish(volume, core, full)?;
            }
        }
        self.publish(volume, core, batch)?;
        hand_over(volume)
    }

    /// Persist everything and make all that was removed free. True: there is space now, or more is
    /// about to be free: what was made free others may have used already, and removed again.
    pub fn make_space(&self, volume: &Volume) -> Result<bool> {
        check(volume)?;
        let _sweeping = self.sweeping.lock();
        let mut core = self.core.lock();
        let mut gained = 0;
        self.or_fail(volume, &mut core, |core| {
            let before = volume.alloc.free_lines();
            self.sweep_locked(volume, core, true)?;
            // All of a tree is released before any page of it is handed out: for a large file that
            // takes more steps than one sweep does.
            while core.deferred.has_trees() && volume.alloc.free_lines() <= before {
                self.give_way(volume, core)?;
                core.deferred.free_trees(volume);
            }
            self.count_waiting(core);
            gained = volume.alloc.compact();
            if gained > 0 {
                self.clear_emptied(volume);
            }
            hand_over(volume)
        })?;
        Ok(gained > 0 || volume.alloc.free_lines() > 0 || self.lines_to_come() > 0)
    }

    /// Persist everything for good, at unmount: afterwards nothing needs replaying, and nothing
    /// more is persisted.
    pub fn finish(&self, volume: &Volume) -> Result<()> {
        self.sweep(volume, true)?;
        let mut core = self.core.lock();
        core.checkpoint(volume)?;
        while core.deferred.has_trees() {
            core.deferred.free_trees(volume);
        }
        volume
            .inodes
            .for_each(|inode| inode.give_back_reserves(volume));
        volume.alloc.compact();
        self.clear_emptied(volume);
        core.journal = None;
        core.helpers = Helpers::default(); // they hold the pool
        volume.pool.fence().map_err(failed)
    }

    /// Whether callers are slowed down because the backlog is large.
    pub fn is_behind(&self) -> bool {
        self.pressure.is_high(self.pending())
    }

    /// Run something that reads the consistent view while no batch changes it.
    pub fn undisturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        let _core = self.wait_for_core();
        work()
    }

    /// Run something that changes the maps while no batch does.
    pub fn between_batches<T>(&self, volume: &Volume, work: impl FnOnce() -> T) -> Result<T> {
        let _core = self.wait_for_core();
        check(volume)?;
        let result = work();
        hand_over(volume)?;
        Ok(result)
    }

    /// Run something while no batch does and nothing is deferred; it is given the inodes that only
    /// handles keep. `None`: there is more to be freed first than a step does.
    pub fn with_nothing_deferred<T>(
        &self,
        volume: &Volume,
        work: impl FnOnce(&[u64]) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut core = self.wait_for_core();
        self.free_orphans(volume, &mut core)?;
        core.checkpoint(volume)?;
        self.count_waiting(&core);
        if !core.deferred.is_empty() {
            hand_over(volume)?;
            return Ok(None);
        }
        let orphans = self.orphans.lock().clone();
        let published: Vec<u64> = orphans
            .into_iter()
            .filter(|&ino| volume.inodes.get(ino).is_some_and(|i| i.is_published()))
            .collect();
        let result = work(&published)?;
        hand_over(volume)?;
        Ok(Some(result))
    }

    /// Lines that will be free when what was removed is persisted.
    pub fn lines_to_come(&self) -> u64 {
        let to_come = self.removed_lines() - self.deferred_lines.load(Relaxed);
        (to_come.max(0) + self.waiting_lines.load(Relaxed)) as u64
    }

    /// Figures.
    pub fn backlog(&self) -> Backlog {
        let pending = self.pending();
        Backlog {
            ops: pending.ops.max(0) as u64,
            ops_max: self.pressure.full.ops as u64,
            words: pending.words.max(0) as u64,
            words_max: self.pressure.full.words as u64,
            swept: Time(self.swept.load(Relaxed)),
            batches: self.batches.load(Relaxed),
            captured: self.captured.load(Relaxed),
        }
    }
}

/// The error that a failed medium left, if it did.
pub fn check(volume: &Volume) -> Result<()> {
    volume.pool.poisoned().map_or(Ok(()), |e| Err(failed(e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::PendingName;
    use crate::inode::Node;
    use crate::mount::SoupFs;
    use crate::testing::{ends_clean, mount, mounted, new};
    use vfs::{Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, SetAttr, XattrMode};

    type Change = fn(&SoupFs, &Node) -> Result<()>;

    fn attribute(fs: &SoupFs, file: &Node, fill: u8) -> Result<()> {
        let also = SetAttr {
            perm: Some(0o640),
            ..SetAttr::default()
        };
        let value = vec![fill; 5000];
        fs.setxattr(file, b"user.a", &value, XattrMode::Any, &also)
    }

    fn resize(fs: &SoupFs, file: &Node, size: u64) -> Result<()> {
        let size = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(file, &size).map(drop)
    }

    /// Changes of the contents and attributes of a file of 9,000 bytes.
    const CHANGES: [Change; 8] = [
        |_, _| Ok(()),
        |fs, file| attribute(fs, file, 1),
        |fs, file| attribute(fs, file, 2),
        |fs, file| fs.removexattr(file, b"user.b").or(Ok(())), // it may be gone
        |fs, file| fs.append(file, &[3; 9000]).map(drop),
        |fs, file| resize(fs, file, 1),
        |fs, file| fs.write(file, 5 << 20, &[4; 5000]).map(drop),
        |fs, file| fs.fallocate(file, Fallocate::Punch, 0, 8192),
    ];

    /// An inode that a batch takes up before a change and again after it: all of the change is in
    /// the batch.
    #[test]
    fn what_is_captured_twice_is_captured_whole() {
        for first in CHANGES {
            for second in CHANGES {
                captured_twice(first, second).expect("captured twice");
            }
        }
    }

    fn captured_twice(first: Change, second: Change) -> Result<()> {
        let (pool, fs) = mounted();
        let root = fs.root();
        let file = fs.create(
            &root,
            b"file",
            &NewNode {
                xattrs: &[(b"user.b", b"born with")],
                ..new(NewKind::File)
            },
        )?;
        fs.append(&file, &[5; 9000])?;
        fs.syncfs()?;
        first(&fs, &file)?;
        fs.link(&file, &root, b"other")?;

        let (volume, persister) = (&fs.shared.volume, &fs.shared.persister);
        let mut core = persister.core.lock();
        let mut batch = Captured::new(volume, &persister.moves);
        batch.pull(Pull::Inode(file.inode().clone()))?;
        second(&fs, &file)?;
        batch.pull(Pull::Dir(root.inode().clone()))?;
        persister.publish(volume, &mut core, batch)?;
        drop(core);

        let (is, latest) = (volume.image().inode(file.inode().ino)?, fs.attr(&file));
        assert_eq!((is.ctime, is.mtime), (latest.ctime, latest.mtime));
        assert_eq!((is.perm, is.size), (latest.perm, latest.size));
        assert_eq!((is.nlink, is.pages * 8), (2, latest.blocks));
        assert_eq!(is.xattr != 0, latest.has_xattrs);
        drop((root, file));
        ends_clean(&pool, fs);
        Ok(())
    }

    /// The tree that a batch under way makes tall is cut off again before that batch ends, and a
    /// block comes in front of it: it takes nodes down from a top that the tree does not have yet.
    #[test]
    fn nodes_are_set_aside_for_a_tree_that_a_batch_is_about_to_make_tall() -> Result<()> {
        let (pool, fs) = mounted();
        let (root, volume, persister) = (fs.root(), &fs.shared.volume, &fs.shared.persister);
        let file = fs.create(&root, b"file", &new(NewKind::File))?;
        fs.syncfs()?;
        fs.write(&file, 1 << 40, b"far")?;
        let mut core = persister.core.lock();
        let mut batch = Captured::new(volume, &persister.moves);
        batch.pull(Pull::Inode(file.inode().clone()))?;
        resize(&fs, &file, 0)?;
        fs.write(&file, 0, b"near")?;
        let mut all = Vec::new();
        while let Ok(run) = volume.alloc.pages(512) {
            all.push(run);
        }
        persister.publish(volume, &mut core, batch)?;
        drop(core);
        fs.syncfs()?;
        all.into_iter().for_each(|run| volume.alloc.free_pages(run));
        drop((root, file));
        ends_clean(&pool, fs);
        Ok(())
    }

    /// What a panic in the middle of an operation leaves.
    #[test]
    fn a_name_that_is_announced_and_never_given_ends_persisting() {
        let (pool, fs) = mounted();
        let file = fs
            .create(&fs.root(), b"file", &new(NewKind::File))
            .expect("create");
        fs.syncfs().expect("syncfs");
        let name = PendingName::new(fs.root().inode().ino, 0, 1000);
        file.inode().meta.lock().adds.push(name);
        fs.unlink(&fs.root(), b"file", &|_| Ok(())).expect("unlink");
        fs.syncfs().expect_err("there is no such operation");
        assert!(pool.poisoned().is_some());
    }

    /// The image may be mounted again: its journal is another one's by then.
    #[test]
    fn a_handle_of_a_mount_that_ended_persists_nothing() -> Result<()> {
        let (pool, ended) = mounted();
        let old = ended.create(&ended.root(), b"file", &new(NewKind::File))?;
        ended.unmount()?;
        let fs = mount(&pool);
        let file = fs.lookup(&fs.root(), b"file")?;
        fs.append(&file, &[1; 5000])?;
        fs.fsync(&file, Fsync::All)?;
        let refused =
            |result: Result<()>| assert_eq!(result.map_err(|e| e.errno()), Err(Errno::ROFS));
        refused(ended.fsync(&old, Fsync::All));
        refused(ended.syncfs());
        let size = fs.shared.volume.image().inode(file.inode().ino)?.size;
        assert_eq!((size, pool.poisoned()), (5000, None));
        drop((file, old, ended));
        ends_clean(&pool, fs);
        Ok(())
    }

    /// Between two batches the consistent view may have no name for an inode although the latest
    /// still counts one: whoever takes it away has withdrawn its addition and not counted it down
    /// yet.
    #[test]
    fn an_inode_without_consistent_names_is_not_lost_track_of() -> Result<()> {
        let (pool, fs) = mounted();
        let root = fs.root();
        let file = fs.create(&root, b"file", &new(NewKind::File))?;
        fs.append(&file, &[5; 9000])?;
        fs.syncfs()?;
        let (volume, persister) = (&fs.shared.volume, &fs.shared.persister);
        let in_use = || -> Result<Vec<u64>> {
            let all = |orphans: &[u64]| Ok(orphans.to_vec());
            Ok(persister
                .with_nothing_deferred(volume, all)?
                .expect("little is deferred"))
        };
        assert_eq!(in_use()?, []);

        let inode = file.inode();
        inode.gain_name(); // as if it had another, which is about to go
        fs.unlink(&root, b"file", &|_| Ok(()))?;
        fs.syncfs()?;
        assert_eq!(volume.image().inode(inode.ino)?.nlink, 0);
        for _ in 0..2 {
            assert_eq!(in_use()?, [inode.ino]);
        }
        inode.lose_names(1, false);
        assert_eq!(in_use()?, [inode.ino]);
        drop(file);
        assert_eq!(in_use()?, []);
        drop(root);
        ends_clean(&pool, fs);
        Ok(())
    }
}

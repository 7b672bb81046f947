//! When sweeps run, and how long callers wait for them.

use crate::commit::persister::Persister;
use crate::inode::Inode;
use crate::volume::Volume;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use vfs::{Clock, Result, Time};

impl Persister {
    /// Nothing is pending from before this time.
    pub fn set_swept(&self, time: Time) {
        self.alarm.set_swept(time);
    }

    /// Let the background persister end.
    pub fn stop(&self) {
        self.alarm.stop();
    }

    /// Whether callers are slowed down because the backlog is large.
    pub fn is_behind(&self) -> bool {
        self.budget.is_high()
    }

    /// The background persister: sweep at least once in `bound`, until stopped.
    pub fn run(&self, volume: &Volume, bound: Duration, inodes_max: u64, clock: &dyn Clock) {
        self.alarm.begin();
        let mut took = Duration::ZERO;
        while !self.alarm.is_stopped() {
            // Callers that are stopped by a full backlog kick nobody.
            let busy = self.is_behind() || self.trees_wait.load(Relaxed);
            let busy = busy && volume.pool.poisoned().is_none();
            // What is noted now waits for a sweep that begins after this and ends.
            let pause = bound.saturating_sub(2 * took).max(bound / 2);
            self.alarm.wait((!busy).then_some(pause));
            if volume.pool.poisoned().is_some() {
                continue;
            }
            let (begun, taken) = (clock.now(), self.budget.taken());
            if self.sweep(volume, true).is_err() {
                // It has failed for all: what DRAM has of what was not persisted is all there is
                // to read.
                continue;
            }
            self.set_swept(begun);
            took = Duration::from_nanos((clock.now().0 - begun.0).max(0) as u64);
            self.budget.learn(self.budget.taken() - taken, took);
            if volume.inodes.len() > inodes_max {
                let forget = |inode: &Inode| inode.give_back_reserves(volume);
                volume.inodes.evict(inodes_max / 2, forget);
            }
        }
    }

    /// Look at the backlog. Slow the caller down when the persister falls behind; at the hard limit
    /// it waits, so that the backlog is bounded.
    /// In mode `strong` the caller holds no scope.
    ///
    /// # Errors
    /// As [`Persister::note`].
    #[cold]
    pub fn look(&self, volume: &Volume) -> Result<()> {
        let words = self.budget.notes.look();
        if !self.is_behind() {
            return Ok(());
        }
        if !self.alarm.has_begun() {
            return match self.budget.is_full() {
                true => self.sweep(volume, false),
                false => Ok(()),
            };
        }
        self.alarm.kick();
        // Whoever met the failure of the medium: nothing will be persisted any more.
        let goes_on = || !self.alarm.is_stopped() && volume.pool.poisoned().is_none();
        while self.budget.is_full() && goes_on() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(delay) = self.budget.delay(words) {
            std::thread::sleep(delay);
        }
        Ok(())
    }
}

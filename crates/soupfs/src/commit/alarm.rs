//! What the background persister and callers tell each other.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{
    AtomicBool, AtomicI64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;
use vfs::Time;

/// What wakes the background persister.
#[derive(Default)]
pub struct Alarm {
    wake: Mutex<bool>,
    wakeup: Condvar,
    stop: AtomicBool,
    /// The background thread runs; without it callers persist when the backlog is full.
    running: AtomicBool,
    /// When the last sweep began: what is older is persisted.
    swept: AtomicI64,
}

impl Alarm {
    /// When the last sweep began.
    pub fn swept(&self) -> Time {
        Time(self.swept.load(Relaxed))
    }

    /// Nothing is pending from before this time.
    pub fn set_swept(&self, time: Time) {
        self.swept.store(time.0, Relaxed);
    }

    /// The background persister begins.
    pub fn begin(&self) {
        self.running.store(true, Relaxed);
    }

    /// Whether the background persister runs, or ran.
    pub fn has_begun(&self) -> bool {
        self.running.load(Relaxed)
    }

    /// The background persister is to end.
    pub fn stop(&self) {
        self.stop.store(true, Release);
        self.kick();
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Wait until somebody kicks, for so long at most; not at all without a time.
    pub fn wait(&self, pause: Option<Duration>) {
        let mut wake = self.wake.lock();
        if let Some(pause) = pause.filter(|_| !*wake) {
            self.wakeup.wait_for(&mut wake, pause);
        }
        *wake = false;
    }

    /// Wake the background persister.
    pub fn kick(&self) {
        *self.wake.lock() = true;
        self.wakeup.notify_one();
    }
}

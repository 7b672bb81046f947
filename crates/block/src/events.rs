//! An event count: a waiter says what it has seen, so no event between its look and its sleep is
//! lost.

use parking_lot::{Condvar, Mutex};

/// Counts events and wakes who waits for the next one.
#[derive(Default)]
pub struct Events {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Events {
    /// How many there were.
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// There is another one.
    pub fn announce(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Blocks until the count is not `seen`.
    pub fn wait(&self, seen: u64) {
        let mut count = self.count.lock();
        while *count == seen {
            self.changed.wait(&mut count);
        }
    }
}

//! Whether requests are still served: closed when the mount ends while it is in use, or after a
//! panic, when what is in memory can no longer be trusted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Passes requests until it is closed. Once closed it stays so.
#[derive(Debug, Default)]
pub struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
}

/// One request inside; leaves on drop.
#[must_use]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// Let one request in, or `None` when closed.
    pub fn enter(&self) -> Option<Pass<'_>> {
        // Both sides write one variable and then read the other, so both need the total order:
        // either this sees `closed`, or `wait_until_empty` sees this one inside.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let pass = Pass(self);
        (!self.closed.load(Ordering::SeqCst)).then_some(pass)
    }

    /// Let nobody in from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Wait until all requests have left; false when some are still inside after `limit`. Polls,
    /// because it is used once in the life of a mount.
    pub fn wait_until_empty(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_nobody_in_and_empties() {
        let gate = Gate::default();
        let pass = gate.enter().expect("open");
        gate.close();
        assert!(gate.enter().is_none());
        assert!(!gate.wait_until_empty(Duration::from_millis(5)));
        drop(pass);
        assert!(gate.wait_until_empty(Duration::from_millis(5)));
    }
}

//! Shards: data that all threads write, split so that threads share no cache line.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Keeps what different cores write on different cache lines.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A small number for the calling thread; threads get them in turn.
pub(crate) fn thread_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SLOT: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed)));
    SLOT.with(Cell::get)
}

/// Into how many parts what every thread changes is split: a power of two.
pub fn shards() -> usize {
    // The answer takes the system a dozen calls, longer than all the rest of a mount.
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let cores = std::thread::available_parallelism();
        cores.map_or(4, |n| n.get() * 2).next_power_of_two()
    })
}

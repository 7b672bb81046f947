//! Guards: who is storing, and how to wait until those who saw an old state are done.
//!
//! A thread enters, tests a page's byte, accesses the page, and leaves. Who takes a permission away
//! clears it first, and then waits until all who may have seen it have left:
//!
//! ```text
//! thread:      slot = odd;  test the byte;  store;  slot = even
//! write-out:   clear the byte;  barrier;  wait for each slot that is odd to change;  copy
//! ```
//!
//! Either the thread's test finds the byte cleared, or the barrier has made its odd number visible.
//! That takes a full fence between the first two steps of each side. The thread leaves its one out
//! where `membarrier` can make up for it: it runs a fence on all cores that run this process.
//!
//! Nobody who has entered waits for anything: neither for a lock nor, as its page is there, for a
//! page. So the wait is short, but for a thread that is not scheduled.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::stats;

/// Slots that one thread at a time owns. Two lines apart: the prefetcher takes lines in pairs.
#[repr(align(128))]
struct Slot(AtomicU64);

/// A slot for each thread, odd while it is inside.
pub(super) struct Guards {
    slots: Box<[Slot]>,
    /// Threads that own no slot are inside while they hold this.
    shared: RwLock<()>,
    /// `membarrier` stands in for the fence of who enters.
    asymmetric: bool,
}

/// The thread is inside until this is dropped.
pub(super) enum Guard<'a> {
    Own(&'a AtomicU64),
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>),
}

impl Guards {
    /// `asymmetric`: with `membarrier`, if the kernel has it.
    pub(super) fn new(asymmetric: bool) -> Guards {
        let slots = (0..stats::SHARED).map(|_| Slot(AtomicU64::new(0)));
        Guards {
            slots: slots.collect(),
            shared: RwLock::new(()),
            asymmetric: asymmetric && barrier::register(),
        }
    }

    /// Enters. A thread enters once at a time, and waits for nothing while it is inside.
    #[inline]
    pub(super) fn enter(&self) -> Guard<'_> {
        let Some(Slot(slot)) = self.slots.get(stats::slot()) else {
            return Guard::Shared(self.shared.read());
        };
        let even = slot.load(Ordering::Relaxed);
        debug_assert!(even % 2 == 0, "a thread enters once at a time");
        slot.store(even + 1, Ordering::Relaxed);
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        Guard::Own(slot)
    }

    /// Returns when all have left who were inside, and may have seen what the caller has changed
    /// since. The caller is not inside.
    pub(super) fn wait(&self) {
        if self.asymmetric {
            barrier::run();
        } else {
            fence(Ordering::SeqCst);
        }
        drop(self.shared.write());
        for Slot(slot) in &self.slots {
            let seen = slot.load(Ordering::Acquire);
            while seen % 2 == 1 && slot.load(Ordering::Acquire) == seen {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Guard::Own(slot) = self {
            // Only its thread stores to a slot.
            slot.store(slot.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }
}

/// A fence on all cores that run this process.
#[cfg(not(miri))]
mod barrier {
    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether the kernel can.
    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    pub(super) fn run() {
        // A registered process is refused only for a moment, for lack of memory.
        while let Err(error) = membarrier(MembarrierCommand::PrivateExpedited) {
            log::debug!("membarrier: {error}");
            std::thread::yield_now();
        }
    }
}

#[cfg(miri)]
mod barrier {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn run() {}
}

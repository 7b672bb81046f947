//! What all threads use at once, laid out so that they do not meet on one line of a processor's
//! cache.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::near::RUN;

/// Keeps what different threads write on different lines.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A lock that is held for some instructions, never over I/O. To sleep and be woken takes much
/// longer than that, so who finds it locked looks again for a while before he sleeps.
#[derive(Debug, Default)]
pub struct BriefMutex<T>(Mutex<T>);

/// How often he looks: some microseconds in all.
const LOOKS: usize = 64;

impl<T> BriefMutex<T> {
    /// One that protects this.
    pub fn new(value: T) -> BriefMutex<T> {
        BriefMutex(Mutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        for _ in 0..LOOKS {
            if let Some(locked) = self.0.try_lock() {
                return locked;
            }
            std::hint::spin_loop();
        }
        self.0.lock()
    }
}

/// Into how many parts something is split that is found by a number. It is a prime: what lies at
/// the same place of each group of blocks or inodes is in different parts.
pub const PARTS: usize = 17;

/// The part of a number. Neighbours are in one: a thread that uses them in turn has that to itself.
pub fn part_of(number: u64) -> usize {
    (number / RUN % PARTS as u64) as usize
}

/// Parts of a [`BigReaderLock`]: so many threads share it without meeting.
const READERS: usize = 8;

/// A lock that each operation shares, and that hardly anybody wants alone: a big-reader lock. Who
/// shares it locks the part of his thread; who wants it alone locks all of them, in their order.
#[derive(Debug, Default)]
pub struct BigReaderLock {
    parts: [Padded<RwLock<()>>; READERS],
}

/// A [`BigReaderLock`] that somebody has alone.
#[derive(Debug)]
pub struct Alone<'a>(
    #[expect(dead_code, reason = "the lock is held as long as this is there")]
    [RwLockWriteGuard<'a, ()>; READERS],
);

impl BigReaderLock {
    /// Shares it. A thread may share it again: nobody gets it between.
    pub fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.parts[thread_part()].read_recursive()
    }

    /// Waits for all who share it, and for who has it alone.
    pub fn alone(&self) -> Alone<'_> {
        Alone(std::array::from_fn(|part| self.parts[part].write()))
    }
}

/// The part of the calling thread; threads get them in turn.
fn thread_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PART: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed) % READERS));
    PART.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn who_has_it_alone_waits_for_all_who_share_it() {
        let lock = BigReaderLock::default();
        let (shared, is_alone) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 * READERS {
                scope.spawn(|| {
                    let _outer = lock.share();
                    shared.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                    // Also where somebody waits already.
                    let _inner = lock.share();
                    assert!(!is_alone.load(Relaxed));
                    shared.fetch_sub(1, Relaxed);
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let _alone = lock.alone();
                    assert_eq!(shared.load(Relaxed), 0);
                    assert!(!is_alone.swap(true, Relaxed));
                    std::thread::sleep(Duration::from_millis(2));
                    is_alone.store(false, Relaxed);
                });
            }
        });
    }
}

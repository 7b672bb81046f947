//! What the running transaction frees, as far as snapshots may keep it: then it changes their
//! pointers, too, for which it is to have room.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// Blocks of pointers that one range may change: it may lie in two.
const POINTERS: usize = 2;

/// Ranges of blocks of the disk, each as long as one block of pointers reaches.
#[derive(Default)]
pub struct Freed {
    /// There are snapshots.
    keeps: AtomicBool,
    ranges: Mutex<FxHashSet<u64>>,
    /// How many they are.
    len: AtomicUsize,
}

impl Freed {
    /// There are snapshots from here on.
    pub fn keep(&self) {
        self.keeps.store(true, Ordering::SeqCst);
    }

    fn keeps(&self) -> bool {
        self.keeps.load(Ordering::SeqCst)
    }

    /// Blocks that change for each range, or group, of which something is freed: its bitmap, too.
    pub fn of_each(&self) -> usize {
        match self.keeps() {
            true => 1 + POINTERS,
            false => 1,
        }
    }

    /// The range of a block; 0 without snapshots.
    pub fn range(&self, block: u64, block_size: usize) -> u64 {
        match self.keeps() {
            true => block / (block_size as u64 / 4),
            false => 0,
        }
    }

    /// A block is freed.
    pub fn note(&self, block: u64, block_size: usize) {
        if self.keeps() && self.ranges.lock().insert(self.range(block, block_size)) {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Blocks of pointers that may change for what was freed.
    pub fn blocks(&self) -> usize {
        POINTERS * self.len.load(Ordering::Relaxed)
    }

    /// What is freed from here on is another transaction's.
    pub fn take(&self) {
        let mut ranges = self.ranges.lock();
        ranges.clear();
        self.len.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_counted_once_for_what_one_block_of_them_reaches() {
        let freed = Freed::default();
        freed.note(5, 1024);
        assert_eq!((freed.blocks(), freed.of_each()), (0, 1));
        freed.keep();
        for block in [5, 255, 256, 300] {
            freed.note(block, 1024);
        }
        assert_eq!((freed.blocks(), freed.of_each()), (4, 3));
        freed.take();
        assert_eq!(freed.blocks(), 0);
    }
}

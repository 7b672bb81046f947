//! Accounting of pending operations: which inodes are dirty, how many words of the journal it may
//! take to persist them, and how much space that will free.
//!
//! A thread notes without a shared counter: it has a shard of its own, or is one of many that share
//! the others.

use crate::inode::Inode;
use crate::inode_state::TIME;
use crate::shards::{CachePadded, thread_slot};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use triomphe::Arc;

/// Journal words of an inode: all but magic number and birth.
pub const INODE_WORDS: u64 = 11;

/// Shards of which each belongs to one thread.
const OWN_SHARDS: usize = 32;
/// Shards that the other threads share.
const SHARED_SHARDS: usize = 32;
/// All of them.
pub const SHARDS: usize = OWN_SHARDS + SHARED_SHARDS;

/// Journal words of an inode of which this is dirty.
fn inode_words(dirty: u8) -> i64 {
    match dirty {
        0 => 0,
        TIME => 1,
        _ => INODE_WORDS as i64,
    }
}

/// What a thread noted, or several.
#[derive(Default)]
struct Shard {
    dirty: Mutex<Vec<u64>>,
    /// Words that were noted since the mount, and what had been at the last look at the backlog.
    words: AtomicI64,
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

/// What all threads noted.
pub struct Notes {
    shards: Box<[CachePadded<Shard>]>,
    /// Words that a shard's threads note between two looks at the backlog.
    look_every: i64,
}

impl Notes {
    /// Nothing is noted yet.
    pub fn new(look_every: i64) -> Notes {
        Notes {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            look_every,
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

    /// Of an inode `what` is dirty, and so many words besides are to be persisted. True: it is time
    /// to look at the backlog.
    #[inline]
    pub fn mark(&self, inode: &Arc<Inode>, what: u8, words: u64) -> bool {
        let (shard, shared) = self.shard();
        let noted = inode.mark_dirty(what);
        let mut words = words as i64;
        if noted & what != what {
            words += shard.list(inode.ino, noted, what);
        }
        // Exact, as the journal must not overflow: a shard is one thread's, or counts atomically.
        let now = match shared {
            false => {
                let now = shard.words.load(Relaxed) + words;
                shard.words.store(now, Relaxed);
                now
            }
            true => shard.words.fetch_add(words, Relaxed) + words,
        };
        now - shard.words_seen.load(Relaxed) >= self.look_every
    }

    /// See [`Notes::new`].
    #[cfg(test)]
    pub fn look_every(&self) -> i64 {
        self.look_every
    }

    /// The calling thread looks at the backlog. Returns the words that were noted in its shard
    /// since the last look: whoever marked under a lock has left that to others.
    pub fn look(&self) -> i64 {
        let shard = self.shard().0;
        let words = shard.words.load(Relaxed);
        words - shard.words_seen.swap(words, Relaxed)
    }

    /// All words that were noted since the mount.
    pub fn words(&self) -> i64 {
        self.shards.iter().map(|s| s.words.load(Relaxed)).sum()
    }

    /// An inode that was taken off the lists stays dirty.
    pub fn list_again(&self, ino: u64) {
        self.shard().0.dirty.lock().push(ino);
    }

    /// Take all dirty inodes off the lists.
    pub fn take_dirty(&self) -> impl Iterator<Item = u64> {
        let lists = self.shards.iter();
        lists.flat_map(|s| std::mem::take(&mut *s.dirty.lock()))
    }

    /// So many lines will be free when what was removed is persisted: an estimate, as threads that
    /// share a shard may lose some.
    pub fn will_free(&self, lines: i64) {
        let removed = &self.shard().0.removed_lines;
        removed.store(removed.load(Relaxed) + lines, Relaxed);
    }

    /// All such lines since the mount.
    pub fn removed_lines(&self) -> i64 {
        let removed = |s: &CachePadded<Shard>| s.removed_lines.load(Relaxed);
        self.shards.iter().map(removed).sum()
    }
}

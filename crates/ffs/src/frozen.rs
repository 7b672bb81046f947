//! What blocks were at one moment, kept when they are written: for a check of that moment while the
//! file system is in use.
//!
//! From [`Frozen::begin`] on, whoever writes a block keeps what the disk had before he writes, if
//! that may have been metadata: what was changed as such, and what was freed since and is used
//! again. So what is here, and else what is durable, is what was durable then. Who reads looks here
//! *behind* his read: had the block been written before that was over, it would be here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use block::Buffer;
use parking_lot::Mutex;

/// Bytes that are counted for a number that is remembered.
const NUMBER: usize = 16;

/// Blocks as they were at one moment.
#[derive(Default)]
pub struct Frozen {
    /// Old contents are kept.
    keeps: AtomicBool,
    /// It is remembered what is freed.
    follows: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: HashMap<u64, Buffer>,
    bytes: usize,
    freed_blocks: HashSet<u64>,
    freed_inodes: HashSet<u32>,
}

impl Frozen {
    /// The moment is now: nothing is being written, and nothing waits to be.
    pub fn begin(&self) {
        *self.state.lock() = State::default();
        self.follows.store(true, Ordering::SeqCst);
        self.keeps.store(true, Ordering::SeqCst);
    }

    /// From now on it is remembered which inodes are freed; old contents are not kept.
    pub fn follow(&self) {
        *self.state.lock() = State::default();
        self.follows.store(true, Ordering::SeqCst);
    }

    /// Nobody reads what was then any more.
    pub fn thaw(&self) {
        self.keeps.store(false, Ordering::SeqCst);
        let mut state = self.state.lock();
        let freed_inodes = std::mem::take(&mut state.freed_inodes);
        *state = State {
            freed_inodes,
            ..State::default()
        };
    }

    /// Nobody asks any more what was freed since.
    pub fn end(&self) {
        self.thaw();
        self.follows.store(false, Ordering::SeqCst);
        self.state.lock().freed_inodes = HashSet::new();
    }

    /// Bytes of memory that are used for it.
    pub fn bytes(&self) -> usize {
        let state = self.state.lock();
        let numbers = state.freed_blocks.len() + state.freed_inodes.len();
        state.bytes + NUMBER * numbers
    }

    /// Whether old contents are kept.
    pub fn keeps(&self) -> bool {
        self.keeps.load(Ordering::SeqCst)
    }

    /// Whether what the disk has of a block is to be kept before it is written. `is_known`: it was
    /// changed as metadata.
    pub fn wants(&self, block: u64, is_known: bool) -> bool {
        let state = self.state.lock();
        self.keeps()
            && !state.kept.contains_key(&block)
            && (is_known || state.freed_blocks.contains(&block))
    }

    /// Keeps what the disk has of a block, which is about to be written.
    pub fn keep(&self, block: u64, bytes: Buffer) {
        let mut state = self.state.lock();
        if self.keeps() {
            state.bytes += bytes.len();
            state.kept.insert(block, bytes);
        }
    }

    /// What a block was, if it was written since.
    pub fn kept(&self, block: u64) -> Option<Buffer> {
        self.state.lock().kept.get(&block).cloned()
    }

    /// A block is free.
    pub fn block_freed(&self, block: u64) {
        if self.keeps() {
            self.state.lock().freed_blocks.insert(block);
        }
    }

    /// An inode is free.
    pub fn inode_freed(&self, ino: u32) {
        if self.follows.load(Ordering::SeqCst) {
            self.state.lock().freed_inodes.insert(ino);
        }
    }

    /// Whether an inode has been free since.
    pub fn was_freed(&self, ino: u32) -> bool {
        self.state.lock().freed_inodes.contains(&ino)
    }
}

//! The inodes in DRAM, by number: each is there once, as long as somebody uses it.

use std::sync::{Arc, Weak};

use vfs::Result;

use crate::inode::{Inode, Node};
use crate::near::NearMap;
use crate::shared::{BriefMutex, PARTS, Padded, part_of};

/// A part with fewer entries is not searched for those that nobody uses.
const SWEEP_MIN: usize = 64;

/// Inodes by number.
#[derive(Default)]
pub struct InodeTable {
    shards: [Padded<BriefMutex<Shard>>; PARTS],
}

#[derive(Default)]
struct Shard {
    inodes: NearMap<u32, Weak<Inode>>,
    /// Look for entries that nobody uses when there are so many.
    sweep_at: usize,
}

impl InodeTable {
    /// The inode of this number; what `read` makes of it, if nobody uses it yet.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get(&self, ino: u32, read: impl FnOnce() -> Result<Inode>) -> Result<Node> {
        let shard = &self.shards[part_of(ino.into())];
        if let Some(inode) = shard.lock().find(ino) {
            return Ok(Node(inode));
        }
        // Not under the lock: it does I/O. Who was faster is asked once more.
        let inode = Arc::new(read()?);
        let mut shard = shard.lock();
        if let Some(inode) = shard.find(ino) {
            return Ok(Node(inode));
        }
        shard.insert(ino, &inode);
        Ok(Node(inode))
    }
}

impl InodeTable {
    /// Those that somebody uses.
    pub fn in_use(&self) -> Vec<Arc<Inode>> {
        let of = |shard: &Padded<BriefMutex<Shard>>| {
            let shard = shard.lock();
            shard
                .inodes
                .values()
                .filter_map(Weak::upgrade)
                .collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }
}

impl Shard {
    fn find(&self, ino: u32) -> Option<Arc<Inode>> {
        self.inodes.get(&ino)?.upgrade()
    }

    fn insert(&mut self, ino: u32, inode: &Arc<Inode>) {
        if self.inodes.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.inodes.retain(|_, inode| inode.strong_count() > 0);
            self.sweep_at = 2 * self.inodes.len();
        }
        self.inodes.insert(ino, Arc::downgrade(inode));
    }
}

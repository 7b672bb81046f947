//! Blocks of the disk in DRAM, found by their number. Of a bounded number: others make way, those
//! first that nobody asked for since it was last their turn (second chance).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use block::{Buffer, Disk};
use parking_lot::Mutex;
use vfs::{Error, Result};

/// Parts with a lock each.
const SHARDS: usize = 16;

/// Blocks of a disk.
pub struct Cache {
    disk: Disk,
    block_size: usize,
    shards: [Mutex<Shard>; SHARDS],
    /// Most blocks of a shard.
    shard_max: usize,
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Cached>,
    /// Their numbers, whose turn is next in front.
    turns: VecDeque<u64>,
}

struct Cached {
    bytes: Arc<Buffer>,
    /// Asked for since it was last its turn.
    used: bool,
}

impl Cache {
    /// A cache of up to `bytes` bytes of a disk, in blocks of `block_size`.
    pub fn new(disk: Disk, block_size: u32, bytes: usize) -> Cache {
        let block_size = block_size as usize;
        Cache {
            disk,
            block_size,
            shards: Default::default(),
            shard_max: (bytes / block_size / SHARDS).max(1),
        }
    }

    /// The block of this number. Two who ask at once may both read it.
    ///
    /// # Errors
    /// The disk failed.
    ///
    /// # Panics
    /// If the disk has no such block.
    pub fn read(&self, block: u64) -> Result<Arc<Buffer>> {
        let shard = &self.shards[block as usize % SHARDS];
        if let Some(cached) = shard.lock().blocks.get_mut(&block) {
            cached.used = true;
            return Ok(cached.bytes.clone());
        }
        let into = vec![Buffer::zeroed(self.block_size)];
        let read = self.disk.read(block * self.block_size as u64, into);
        let read = read.map_err(|error| Error::medium(error.to_string()))?;
        let bytes = read
            .into_iter()
            .next()
            .expect("the buffer that was handed in");
        Ok(shard.lock().insert(block, Arc::new(bytes), self.shard_max))
    }
}

impl Shard {
    fn insert(&mut self, block: u64, bytes: Arc<Buffer>, max: usize) -> Arc<Buffer> {
        if let Some(cached) = self.blocks.get(&block) {
            return cached.bytes.clone();
        }
        while self.blocks.len() >= max {
            self.make_way();
        }
        self.turns.push_back(block);
        let cached = Cached {
            bytes: bytes.clone(),
            used: false,
        };
        self.blocks.insert(block, cached);
        bytes
    }

    /// Whose turn it is goes, or has another turn if it was used.
    fn make_way(&mut self) {
        let block = self.turns.pop_front().expect("each block has a turn");
        let cached = self.blocks.get_mut(&block).expect("turns are of blocks");
        if std::mem::take(&mut cached.used) {
            self.turns.push_back(block);
        } else {
            self.blocks.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;

    #[test]
    fn what_is_used_stays_and_the_rest_makes_way() {
        let disk = Disk::new(Arc::new(Memory::new(1 << 20)));
        // Two blocks a shard.
        let cache = Cache::new(disk, 1024, 32 * 1024);
        let reads = || cache.disk.stats().reads;
        cache.read(0).expect("read");
        cache.read(16).expect("read");
        cache.read(0).expect("read");
        assert_eq!(reads(), 2);
        cache.read(32).expect("16 makes way");
        cache.read(0).expect("read");
        assert_eq!(reads(), 3);
        cache.read(16).expect("read");
        assert_eq!(reads(), 4);
    }
}

//! Blocks of the disk in DRAM, found by their number, and which of them are to be written. Those
//! that are neither in use nor to be written are of a bounded number: others make way, those first
//! that nobody asked for since it was last their turn (second chance).
//!
//! A block is changed in DRAM, and is *dirty* until [`Cache::sync`] has written it. Locks: that of
//! writing, then that of a shard or of the dirty blocks, then that of one block's bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use block::{Buffer, Disk, Wave};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use vfs::{Error, Result};

/// Parts with a lock each.
const SHARDS: usize = 16;
/// Writes of a wave.
const WAVE_MAX: usize = 1024;

/// Blocks of a disk.
pub struct Cache {
    disk: Disk,
    block_size: usize,
    shards: [Mutex<Shard>; SHARDS],
    /// Blocks of a shard from which on others make way.
    shard_max: usize,
    dirty: Mutex<BTreeMap<u64, Arc<Block>>>,
    /// Held by who writes.
    writing: Mutex<()>,
}

/// A block in DRAM.
pub struct Block {
    bytes: RwLock<Buffer>,
}

impl Block {
    /// The bytes.
    pub fn bytes(&self) -> RwLockReadGuard<'_, Buffer> {
        self.bytes.read()
    }
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Cached>,
    /// Their numbers, whose turn is next in front.
    turns: VecDeque<u64>,
}

struct Cached {
    block: Arc<Block>,
    /// Asked for since it was last its turn.
    used: bool,
}

fn failed(error: impl ToString) -> Error {
    Error::medium(error.to_string())
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
            dirty: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// The disk, for what is not in blocks.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The disk again. What was to be written is lost.
    pub fn into_disk(self) -> Disk {
        self.disk
    }

    /// The block of this number. Two who ask at once may both read it.
    ///
    /// # Errors
    /// The disk failed.
    ///
    /// # Panics
    /// If the disk has no such block.
    pub fn read(&self, number: u64) -> Result<Arc<Block>> {
        let shard = self.shard(number);
        if let Some(cached) = shard.lock().blocks.get_mut(&number) {
            cached.used = true;
            return Ok(cached.block.clone());
        }
        let into = vec![Buffer::zeroed(self.block_size)];
        let read = self.disk.read(number * self.block_size as u64, into);
        let bytes = read.map_err(failed)?.into_iter().next();
        let bytes = bytes.expect("the buffer that was handed in");
        Ok(shard.lock().insert(number, bytes, self.shard_max))
    }

    /// Changes a block.
    ///
    /// # Errors
    /// The disk failed.
    pub fn change<T>(&self, number: u64, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let block = self.read(number)?;
        let done = change(&mut block.bytes.write());
        self.dirty.lock().insert(number, block);
        Ok(done)
    }

    /// Makes a block read as zeros, whatever the disk has.
    pub fn clear(&self, number: u64) {
        let zeros = Buffer::zeroed(self.block_size);
        let block = self
            .shard(number)
            .lock()
            .insert(number, zeros, self.shard_max);
        block.bytes.write().fill(0);
        self.dirty.lock().insert(number, block);
    }

    /// Forgets what was to be written of a block that is free now.
    pub fn forget(&self, number: u64) {
        self.dirty.lock().remove(&number);
    }

    /// Bytes that are to be written.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty.lock().len() * self.block_size
    }

    /// Makes durable what was changed before.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sync(&self) -> Result<()> {
        let _writing = self.writing.lock();
        let dirty = std::mem::take(&mut *self.dirty.lock());
        let dirty: Vec<_> = dirty.into_iter().collect();
        // An empty one is a flush, for what others have written. Blocks stay in use, and so in the
        // cache, until they are written; what is changed meanwhile is dirty again.
        for blocks in dirty
            .chunks(WAVE_MAX)
            .chain(dirty.is_empty().then_some(&[][..]))
        {
            let mut wave = Wave::new();
            for (number, block) in blocks {
                wave.write(number * self.block_size as u64, block.bytes().clone());
            }
            self.disk.commit(wave).map_err(failed)?;
        }
        Ok(())
    }

    fn shard(&self, number: u64) -> &Mutex<Shard> {
        &self.shards[number as usize % SHARDS]
    }
}

impl Shard {
    /// The block, if it is there; else one with these bytes.
    fn insert(&mut self, number: u64, bytes: Buffer, max: usize) -> Arc<Block> {
        if let Some(cached) = self.blocks.get(&number) {
            return cached.block.clone();
        }
        self.make_way(max);
        self.turns.push_back(number);
        let block = Arc::new(Block {
            bytes: RwLock::new(bytes),
        });
        let cached = Cached {
            block: block.clone(),
            used: false,
        };
        self.blocks.insert(number, cached);
        block
    }

    /// Lets blocks go until there are fewer than `max`, or all that are left are in use: those that
    /// are dirty, too, as who writes them has them.
    fn make_way(&mut self, max: usize) {
        for _ in 0..2 * self.turns.len() {
            if self.blocks.len() < max {
                return;
            }
            let number = self.turns.pop_front().expect("each block has a turn");
            let cached = self.blocks.get_mut(&number).expect("turns are of blocks");
            let in_use = Arc::strong_count(&cached.block) > 1;
            if std::mem::take(&mut cached.used) || in_use {
                self.turns.push_back(number);
            } else {
                self.blocks.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;

    fn cache(memory: &Arc<Memory>) -> Cache {
        // Two blocks a shard.
        Cache::new(Disk::new(memory.clone()), 1024, 32 * 1024)
    }

    #[test]
    fn what_is_used_stays_and_the_rest_makes_way() {
        let cache = cache(&Arc::new(Memory::new(1 << 20)));
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

    #[test]
    fn what_is_changed_stays_until_it_is_written() {
        let memory = Arc::new(Memory::new(1 << 20));
        let cache = cache(&memory);
        for number in 0..500 {
            cache
                .change(number, |bytes| bytes[0] = number as u8)
                .expect("read");
        }
        assert!(memory.contents().iter().all(|&byte| byte == 0));
        cache.sync().expect("written");
        assert_eq!(cache.dirty_bytes(), 0);
        let contents = memory.contents();
        let is_there = |number: usize| contents[number * 1024] == number as u8;
        assert!((0..500).all(is_there));
    }
}

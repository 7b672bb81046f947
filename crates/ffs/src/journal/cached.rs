//! A persistent cache in place of the log: transactions are durable in memory, and the disk gets
//! their blocks later.

use std::sync::Arc;

use ::cache::{BLOCK, Binding, Cache, Cached, Class};
use block::{Buffer, Disk};
use vfs::Result;
use zerocopy::{FromBytes, IntoBytes};

use super::failed;
use crate::features::TUREEN_CACHE;
use crate::layout::{SUPERBLOCK_AT, SUPERBLOCK_LEN, Superblock};
use crate::transaction::{Transaction, TransactionStore};

/// A cache that takes transactions of a file system.
pub struct CacheStore {
    cache: Arc<Cache>,
    block_size: u64,
}

impl CacheStore {
    /// Of a cache, for blocks of a size.
    pub fn new(cache: Arc<Cache>, block_size: u32) -> CacheStore {
        let block_size = block_size.into();
        CacheStore { cache, block_size }
    }

    /// The disk as it is through the cache.
    pub fn disk(cache: &Arc<Cache>) -> Disk {
        Disk::new(Arc::new(Cached::new(cache.clone())))
    }

    /// Blocks of the cache that a transaction changes at most. What is freed need not be in it.
    fn units(&self, transaction: &Transaction) -> usize {
        let blocks = transaction.copies.len() + transaction.data.len() + transaction.placed.len();
        let of_each = self.block_size.div_ceil(BLOCK) as usize;
        blocks * of_each
    }
}

impl TransactionStore for CacheStore {
    fn commit(&self, _: &Disk, transaction: Transaction) -> Result<()> {
        let mut units = ::cache::Transaction::default();
        // A block that is smaller than one of the cache shares that with others.
        if self.block_size >= BLOCK {
            let of_each = self.block_size / BLOCK;
            // As many as there is room for: the disk gets what others held, in vain.
            let room = self.cache.transaction_max() - self.units(&transaction);
            let max = room / of_each as usize;
            for block in transaction.freed.into_iter().take(max) {
                (block * of_each..(block + 1) * of_each).for_each(|unit| units.free(unit));
            }
        }
        for (block, bytes) in transaction.copies {
            units.write(Class::Metadata, block * self.block_size, &bytes);
        }
        for (block, bytes) in transaction.data {
            let at = block * self.block_size;
            match transaction.new.contains(&block) {
                true => units.write_new(at, &bytes),
                false => units.write(Class::Data, at, &bytes),
            }
        }
        for (block, bytes) in transaction.placed {
            units.write_new(block * self.block_size, &bytes);
        }
        self.cache.commit(units).map_err(failed)
    }

    fn fits(&self, transaction: &Transaction) -> bool {
        self.units(transaction) <= self.cache.transaction_max()
    }

    fn capacity(&self) -> usize {
        self.cache.transaction_max() / self.block_size.div_ceil(BLOCK) as usize
    }

    fn takes_data(&self) -> bool {
        true
    }

    /// The disk is read through the cache.
    fn newest(&self, _: u64) -> Option<Arc<Buffer>> {
        None
    }

    fn settle(&self, _: &Disk) -> Result<()> {
        self.cache.flush().map_err(failed)
    }
}

/// How a file system of ext2 is known to a cache: by its UUID, and when it has to be read through
/// one by a feature that no other system knows, with the cache's UUID in the place of an external
/// journal's.
pub struct Ext2Binding;

/// The superblock in the first block of a cache.
fn superblock(first: &[u8]) -> Option<&Superblock> {
    let bytes = first.get(SUPERBLOCK_AT as usize..)?.get(..SUPERBLOCK_LEN)?;
    let superblock = Superblock::ref_from_bytes(bytes).ok()?;
    (superblock.magic.get() == crate::layout::MAGIC).then_some(superblock)
}

impl Binding for Ext2Binding {
    fn uuid(&self, first: &[u8]) -> Option<[u8; 16]> {
        superblock(first).map(|superblock| superblock.uuid)
    }

    fn mark(&self, first: &mut [u8], cache: &[u8; 16]) {
        let Some(superblock) = superblock(first) else {
            return;
        };
        let mut marked = superblock.clone();
        marked.feature_incompat |= TUREEN_CACHE;
        marked.journal_uuid = *cache;
        let at = SUPERBLOCK_AT as usize;
        first[at..at + SUPERBLOCK_LEN].copy_from_slice(marked.as_bytes());
    }

    fn marked(&self, first: &[u8]) -> Option<[u8; 16]> {
        let superblock = superblock(first)?;
        let is_marked = superblock.feature_incompat.get() & TUREEN_CACHE != 0;
        is_marked.then_some(superblock.journal_uuid)
    }
}

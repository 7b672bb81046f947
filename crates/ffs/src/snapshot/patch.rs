//! What snapshots get, where rounds are transactions: committed by itself, before the transaction
//! of what operations have changed.
//!
//! Both change the same blocks: bitmaps, descriptors, the superblock, blocks of inodes. Of these a
//! patch takes what is committed, and changes that: a bit is set, a count lower, the inode of a
//! snapshot another. (The same changes are in DRAM, where the transaction has them.) Blocks of
//! pointers are a snapshot's alone, and its copies are nobody's before. So what is committed is at
//! each moment what operations had left, with more or fewer copies.

use std::collections::{BTreeMap, BTreeSet};

use block::Buffer;
use vfs::Result;
use zerocopy::FromBytes;

use crate::alloc::Alloc;
use crate::fault::{Fault, injected};
use crate::layout::{GroupDescriptor, SUPERBLOCK_AT, Superblock};
use crate::medium::Medium;

/// Blocks of the log that a snapshot gets with one block, at most: that, three of pointers, bitmaps
/// and descriptors of these, its inode, and the superblock.
const ONE: usize = 4 + 2 * 4 + 2;

/// Copies that are written at once.
const COPIES_MAX: usize = 1024;

/// What is to be committed.
#[derive(Default)]
pub struct Patch {
    /// Blocks that are shared with others: as they are committed, and changed.
    shared: BTreeMap<u64, Buffer>,
    /// Blocks of pointers; and copies where a snapshot wants what is in place.
    own: BTreeSet<u64>,
    /// Copies.
    copies: BTreeSet<u64>,
    /// All those of which no snapshot wants what they were, but for what is here.
    asked: BTreeSet<u64>,
    /// Snapshots that are none any more. Their files are not removed before this is committed.
    ended: Vec<u32>,
}

impl Patch {
    fn change(
        &mut self,
        medium: &Medium,
        block: u64,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let bytes = match self.shared.remove(&block) {
            Some(bytes) => Ok(bytes),
            None if injected(Fault::PatchUnrolled) => {
                medium.cache.read(block).map(|block| block.bytes().clone())
            }
            None => medium.cache.committed(block),
        };
        let bytes = self.shared.entry(block).or_insert(bytes?);
        change(bytes);
        Ok(())
    }

    /// Blocks are in use from here on.
    ///
    /// # Errors
    /// The disk failed.
    pub fn take(&mut self, medium: &Medium, alloc: &Alloc, blocks: &[u32]) -> Result<()> {
        let g = &medium.geometry;
        for &block in blocks {
            let group = ((u64::from(block) - g.first_block) / u64::from(g.blocks_per_group)) as u32;
            let bit = (u64::from(block) - g.group_start(group)) as usize;
            self.change(medium, alloc.block_bitmap(medium, block), |bytes| {
                bytes[bit / 8] |= 1 << (bit % 8);
            })?;
            if injected(Fault::PatchUncounted) {
                continue;
            }
            let (at, offset) = medium.descriptor(group);
            self.change(medium, at, |bytes| {
                let (stored, _) = GroupDescriptor::mut_from_prefix(&mut bytes[offset..])
                    .expect("descriptors are whole");
                let free = stored.free_blocks_count_lo.get().saturating_sub(1);
                stored.free_blocks_count_lo = free.into();
            })?;
            let block_size = u64::from(g.block_size);
            let (at, offset) = (SUPERBLOCK_AT / block_size, SUPERBLOCK_AT % block_size);
            self.change(medium, at, |bytes| {
                let (stored, _) = Superblock::mut_from_prefix(&mut bytes[offset as usize..])
                    .expect("it is in one block");
                let free = stored.free_blocks_count_lo.get().saturating_sub(1);
                stored.free_blocks_count_lo = free.into();
            })?;
        }
        Ok(())
    }

    /// The inode of a snapshot is as it is in DRAM.
    ///
    /// # Errors
    /// The disk failed.
    pub fn store(&mut self, medium: &Medium, ino: u32) -> Result<()> {
        let (at, offset) = medium.inode_place(ino)?;
        let range = offset..offset + medium.geometry.inode_size as usize;
        let stored = medium.cache.read(at)?.bytes()[range.clone()].to_vec();
        self.change(medium, at, |bytes| bytes[range].copy_from_slice(&stored))
    }

    /// Some blocks of pointers are as they are in DRAM.
    pub fn point(&mut self, blocks: impl Iterator<Item = u64>) {
        self.own.extend(blocks);
    }

    /// A block is a copy.
    pub fn copy(&mut self, block: u64) {
        self.copies.insert(block);
    }

    /// A snapshot is none any more. What it has got here stays its own until this is committed.
    ///
    /// # Errors
    /// The disk failed.
    pub fn end(&mut self, medium: &Medium, ino: u32) -> Result<()> {
        self.ended.push(ino);
        let (at, _) = medium.inode_place(ino)?;
        match self.shared.contains_key(&at) {
            true => self.store(medium, ino),
            false => Ok(()),
        }
    }

    /// A copy that is put where a snapshot wants what is there is in the log: until this
    /// is committed that stays in place.
    pub fn log(&mut self, block: u64) {
        if self.copies.remove(&block) {
            self.own.insert(block);
        }
    }

    /// The blocks of this that were not told before: who knows asks whether a snapshot wants them.
    pub fn unasked(&mut self) -> Vec<u64> {
        let all = self.shared.keys().chain(&self.own).chain(&self.copies);
        let unasked = all.copied().filter(|block| !self.asked.contains(block));
        let unasked: Vec<u64> = unasked.collect();
        self.asked.extend(&unasked);
        unasked
    }

    /// Whether it is to be committed before there is more.
    pub fn is_full(&self, medium: &Medium) -> bool {
        self.len() > Patch::max(medium) / 2 || self.copies.len() >= COPIES_MAX
    }

    /// Whether there is room for what a snapshot gets with one block more.
    pub fn has_room(&self, medium: &Medium) -> bool {
        self.len() + ONE < Patch::max(medium)
    }

    /// Blocks of the log that it takes.
    fn len(&self) -> usize {
        self.shared.len() + self.own.len()
    }

    fn max(medium: &Medium) -> usize {
        medium.cache.together_max() / medium.cache.block_size()
    }

    /// Makes it durable: the snapshots whose files may be removed then.
    ///
    /// # Errors
    /// The disk failed.
    pub fn commit(self, medium: &Medium) -> Result<Vec<u32>> {
        let is_empty = self.shared.is_empty() && self.own.is_empty() && self.copies.is_empty();
        // What is left out is in the next transaction.
        if !is_empty && !injected(Fault::CopyUnawaited) {
            let blocks = [self.own, self.copies];
            let copies = blocks.map(|blocks| medium.cache.copy_dirty(blocks, usize::MAX));
            medium.cache.commit_apart(self.shared, copies)?;
        }
        Ok(self.ended)
    }
}

//! Which blocks and inodes are free: the bitmaps of the groups, and how many each has free.
//!
//! A group's lock is a leaf but for that of its bitmaps' blocks. Counts come from the descriptors
//! of an image that was unmounted cleanly. Behind a crash those are a guess: of each group the
//! bitmaps are counted before it is first used, or when the reclaim comes to it.

mod held;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use vfs::{Errno, Result};
use zerocopy::FromBytes;

use crate::fault::{Fault, injected};
use crate::image::Group;
use crate::layout::{GroupDescriptor, ROOT_INO};
use crate::medium::Medium;
use crate::order::graph::On;
use crate::shared::BriefMutex;
use held::Held;

/// Groups among which directories in the root take turns: enough for the threads of a machine, and
/// no reason to read bitmaps all over a long disk.
const SPREAD_MAX: u32 = 16;

/// Free blocks and inodes.
pub struct Alloc {
    groups: Vec<BriefMutex<State>>,
    free_blocks: AtomicU64,
    free_inodes: AtomicU64,
    /// Counts directories that are made in the root.
    next_group: AtomicU32,
    /// Groups whose counts are not in their descriptors. A leaf behind the lock of a group.
    changed: Mutex<Vec<u32>>,
    /// Groups that hold blocks back: by the running transaction, and by the one that is committed.
    /// A leaf likewise.
    holding: Mutex<(Vec<u32>, Vec<u32>)>,
}

/// What is known of a group.
struct State {
    group: Group,
    free_blocks: u32,
    free_inodes: u32,
    held: Held,
    /// No bit before these is clear and not held back, in the bitmaps of blocks and of inodes.
    full: (u32, u32),
    /// Behind a crash it may be wrong, until the reclaim says by how much.
    dirs: i64,
    /// The counts of what is free are those of its bitmaps.
    is_counted: bool,
    /// It is among those that changed.
    is_changed: bool,
}

impl Alloc {
    /// Reads the descriptors of all groups. `is_counted`: their counts are right.
    ///
    /// # Errors
    /// One is damaged, or the disk failed.
    pub fn new(medium: &Medium, is_counted: bool) -> Result<Alloc> {
        let (mut groups, mut free) = (Vec::new(), (0, 0));
        for number in 0..medium.geometry.groups {
            let group = medium.group(number)?;
            let (at, offset) = medium.descriptor(number);
            let block = medium.cache.read(at)?;
            let (stored, _) = GroupDescriptor::read_from_prefix(&block.bytes()[offset..])
                .expect("descriptors are whole");
            let blocks = u32::from(stored.free_blocks_count_lo.get());
            let inodes = u32::from(stored.free_inodes_count_lo.get());
            if blocks > medium.geometry.group_blocks(number)
                || inodes > medium.geometry.inodes_per_group
            {
                let what = format_args!("group {number}: {blocks} free blocks, {inodes} inodes");
                return Err(medium.geometry.damage(at, what));
            }
            free = (free.0 + u64::from(blocks), free.1 + u64::from(inodes));
            groups.push(BriefMutex::new(State {
                group,
                free_blocks: blocks,
                free_inodes: inodes,
                dirs: stored.used_dirs_count_lo.get().into(),
                held: Held::default(),
                full: (0, 0),
                is_counted,
                is_changed: false,
            }));
        }
        Ok(Alloc {
            groups,
            free_blocks: AtomicU64::new(free.0),
            free_inodes: AtomicU64::new(free.1),
            next_group: AtomicU32::new(0),
            changed: Mutex::default(),
            holding: Mutex::default(),
        })
    }

    /// The counts of a group change.
    fn note(&self, number: u32, state: &mut State) {
        if !std::mem::replace(&mut state.is_changed, true) {
            self.changed.lock().push(number);
        }
    }

    /// A group, whose counts of what is free are right.
    fn group(&self, medium: &Medium, number: u32) -> Result<MutexGuard<'_, State>> {
        let mut state = self.groups[number as usize].lock();
        if state.is_counted {
            return Ok(state);
        }
        let g = &medium.geometry;
        let blocks = clear_bits(medium, state.group.block_bitmap, g.group_blocks(number))?;
        let inodes = clear_bits(medium, state.group.inode_bitmap, g.inodes_per_group)?;
        let add = |count: &AtomicU64, now: u32, before: u32| {
            let by = u64::from(now).wrapping_sub(u64::from(before));
            count.fetch_add(by, Ordering::Relaxed);
        };
        add(&self.free_blocks, blocks, state.free_blocks);
        add(&self.free_inodes, inodes, state.free_inodes);
        (state.free_blocks, state.free_inodes) = (blocks, inodes);
        state.full = (0, 0);
        state.is_counted = true;
        self.note(number, &mut state);
        Ok(state)
    }

    /// Lets the counts of a group be right; it has so many more directories than it counted.
    ///
    /// # Errors
    /// The disk failed.
    pub fn count(&self, medium: &Medium, number: u32, dirs: i64) -> Result<()> {
        let mut state = self.group(medium, number)?;
        if dirs != 0 {
            state.dirs += dirs;
            self.note(number, &mut state);
        }
        Ok(())
    }

    /// Lets what is free be counted again in each group, when it is used next.
    pub fn recount(&self) {
        for group in &self.groups {
            group.lock().is_counted = false;
        }
    }

    /// The directories that each group counts.
    pub fn dirs(&self) -> Vec<i64> {
        self.groups.iter().map(|group| group.lock().dirs).collect()
    }

    /// Free blocks and inodes.
    pub fn free(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.free_blocks), load(&self.free_inodes))
    }

    /// Takes a block: `goal` if it is free, else one behind it, else any. Its contents are zeros.
    ///
    /// # Errors
    /// `ENOSPC`; the disk failed.
    pub fn take_block(&self, medium: &Medium, goal: u64) -> Result<u32> {
        let g = &medium.geometry;
        let goal = if g.has_block(goal) {
            goal
        } else {
            g.first_block
        };
        let first = ((goal - g.first_block) / u64::from(g.blocks_per_group)) as u32;
        let mut from = (goal - g.group_start(first)) as u32;
        for number in (first..g.groups).chain(0..=first) {
            let mut state = self.group(medium, number)?;
            if state.free_blocks > 0 {
                let (bitmap, len) = (state.group.block_bitmap, g.group_blocks(number));
                let held = |byte| match injected(Fault::NotHeld) {
                    true => 0,
                    false => state.held.byte(byte),
                };
                let from = from.max(state.full.0);
                if let Some(bit) = take_bit(medium, bitmap, from, len, &held)? {
                    if from == state.full.0 {
                        state.full.0 = bit + 1;
                    }
                    self.note(number, &mut state);
                    state.free_blocks -= 1;
                    self.free_blocks.fetch_sub(1, Ordering::Relaxed);
                    let block = g.group_start(number) + u64::from(bit);
                    medium.cache.clear(block);
                    return Ok(block as u32);
                }
            }
            from = 0;
        }
        Err(Errno::NOSPC.into())
    }

    /// Gives a block back, that something in block `holder` led to.
    ///
    /// # Errors
    /// There is no such block, or it is free: the holder is damaged. The disk failed.
    pub fn free_block(&self, medium: &Medium, holder: u64, block: u32) -> Result<()> {
        let g = &medium.geometry;
        let block = u64::from(block);
        if !g.has_block(block) {
            return Err(g.damage(holder, format_args!("block {block} is to be freed")));
        }
        let number = ((block - g.first_block) / u64::from(g.blocks_per_group)) as u32;
        let mut state = self.group(medium, number)?;
        let bit = (block - g.group_start(number)) as u32;
        // Before somebody else may take it.
        medium.cache.forget(block);
        medium.order.discard(block);
        if !clear_bit(medium, state.group.block_bitmap, bit)? {
            let what = format_args!("block {block} is to be freed, and is free");
            return Err(g.damage(holder, what));
        }
        self.note(number, &mut state);
        state.free_blocks += 1;
        state.full.0 = state.full.0.min(bit);
        self.free_blocks.fetch_add(1, Ordering::Relaxed);
        medium.cache.note_freed(block);
        if medium.order.is_journal() && state.held.hold(bit, medium.cache.block_size()) {
            self.holding.lock().0.push(number);
        }
        Ok(())
    }

    /// A block that the running transaction frees stays in use.
    ///
    /// # Errors
    /// The disk failed.
    pub fn retake(&self, medium: &Medium, block: u64) -> Result<()> {
        let g = &medium.geometry;
        let number = ((block - g.first_block) / u64::from(g.blocks_per_group)) as u32;
        let mut state = self.group(medium, number)?;
        let bit = (block - g.group_start(number)) as usize;
        medium.cache.change(state.group.block_bitmap, |bytes| {
            bytes[bit / 8] |= 1 << (bit % 8);
        })?;
        self.note(number, &mut state);
        state.free_blocks -= 1;
        self.free_blocks.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// The running transaction is copied, while there is no operation: the blocks that it frees,
    /// which nobody gets until it has [ended](Alloc::ended).
    pub fn copied(&self, medium: &Medium) -> Vec<u64> {
        let mut freed = Vec::new();
        let mut holding = self.holding.lock();
        holding.1 = std::mem::take(&mut holding.0);
        let numbers = holding.1.clone();
        drop(holding);
        medium.cache.take_freed();
        for number in numbers {
            let first = medium.geometry.group_start(number);
            let bits = self.groups[number as usize].lock().held.copied();
            freed.extend(bits.into_iter().map(|bit| first + u64::from(bit)));
        }
        freed
    }

    /// The transaction that was copied is durable: who wants them gets its blocks. Or (false) it
    /// failed, and they are the next one's.
    pub fn ended(&self, is_durable: bool) {
        let numbers = std::mem::take(&mut self.holding.lock().1);
        for number in numbers {
            let mut state = self.groups[number as usize].lock();
            let is_first = state.held.ended(is_durable);
            state.full.0 = 0;
            if is_first {
                self.holding.lock().0.push(number);
            }
        }
    }

    /// Blocks that count as free are held back.
    pub fn is_holding(&self) -> bool {
        let holding = self.holding.lock();
        !(holding.0.is_empty() && holding.1.is_empty())
    }

    /// Takes an inode, near another one. Directories in the root are near nothing: they take turns
    /// among some groups, so that those who use different ones do not meet at bitmaps and inodes.
    ///
    /// # Errors
    /// `ENOSPC`; the disk failed.
    pub fn take_inode(&self, medium: &Medium, near: u32, is_dir: bool) -> Result<u32> {
        let g = &medium.geometry;
        let first = match is_dir && near == ROOT_INO {
            true => self.next_group.fetch_add(1, Ordering::Relaxed) % g.groups.min(SPREAD_MAX),
            false => (near - 1) / g.inodes_per_group,
        };
        for number in (first..g.groups).chain(0..first) {
            let mut state = self.group(medium, number)?;
            if state.free_inodes == 0 {
                continue;
            }
            let reserved = if number == 0 { g.first_ino - 1 } else { 0 };
            let from = state.full.1.max(reserved);
            let (bitmap, len) = (state.group.inode_bitmap, g.inodes_per_group);
            if let Some(bit) = take_bit(medium, bitmap, from, len, &|_| 0)? {
                state.full.1 = bit + 1;
                self.note(number, &mut state);
                state.free_inodes -= 1;
                state.dirs += i64::from(is_dir);
                self.free_inodes.fetch_sub(1, Ordering::Relaxed);
                return Ok(number * g.inodes_per_group + bit + 1);
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Gives an inode back.
    ///
    /// # Errors
    /// It is free: the bitmap is damaged. The disk failed.
    pub fn free_inode(&self, medium: &Medium, ino: u32, is_dir: bool) -> Result<()> {
        let g = &medium.geometry;
        if ino < g.first_ino {
            let what = format_args!("inode {ino} is to be freed, and is reserved");
            return Err(g.damage(g.first_block, what));
        }
        let number = (ino - 1) / g.inodes_per_group;
        let mut state = self.group(medium, number)?;
        let bitmap = state.group.inode_bitmap;
        // Before somebody else may take it.
        medium.cache.frozen().inode_freed(ino);
        let bit = (ino - 1) % g.inodes_per_group;
        if !clear_bit(medium, bitmap, bit)? {
            let what = format_args!("inode {ino} is to be freed, and is free");
            return Err(g.damage(bitmap, what));
        }
        self.note(number, &mut state);
        state.free_inodes += 1;
        state.full.1 = state.full.1.min(bit);
        state.dirs -= i64::from(is_dir);
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The block of the bitmap that has the bit of a block.
    pub fn block_bitmap(&self, medium: &Medium, block: u32) -> u64 {
        let g = &medium.geometry;
        let number = (u64::from(block) - g.first_block) / u64::from(g.blocks_per_group);
        self.groups[number as usize].lock().group.block_bitmap
    }

    /// The block of the bitmap that has the bit of an inode.
    pub fn inode_bitmap(&self, medium: &Medium, ino: u32) -> u64 {
        let number = (ino - 1) / medium.geometry.inodes_per_group;
        self.groups[number as usize].lock().group.inode_bitmap
    }

    /// What has to be durable before something leads to a new block: its bit, and what it holds.
    pub fn claimed(&self, medium: &Medium, block: u32) -> [On; 2] {
        let (bit, contents) = (self.block_bitmap(medium, block), u64::from(block));
        if injected(Fault::PointerBeforeBit) {
            return [On::Block(contents); 2];
        }
        if injected(Fault::PointerBeforeContents) {
            return [On::Block(bit); 2];
        }
        [On::Block(bit), On::Block(contents)]
    }

    /// Gives blocks back that something in block `holder` led to.
    ///
    /// # Errors
    /// As [`Alloc::free_block`]; those behind it stay.
    pub fn free_blocks(&self, medium: &Medium, holder: u64, blocks: &[u32]) -> Result<()> {
        let free = |&block| self.free_block(medium, holder, block);
        blocks.iter().try_for_each(free)
    }

    /// The first block of the group of an inode: a goal for what it has.
    pub fn goal(&self, medium: &Medium, ino: u32) -> u64 {
        let g = &medium.geometry;
        g.group_start((ino - 1) / g.inodes_per_group)
    }

    /// Whether there are counts that have changed and are not in the descriptors.
    pub fn has_changed(&self) -> bool {
        !self.changed.lock().is_empty()
    }

    /// Writes the counts that have changed into the descriptors.
    ///
    /// # Errors
    /// The disk failed.
    pub fn store(&self, medium: &Medium) -> Result<()> {
        loop {
            let Some(number) = self.changed.lock().pop() else {
                return Ok(());
            };
            let mut state = self.groups[number as usize].lock();
            state.is_changed = false;
            let stored = store_counts(medium, number, &state);
            stored.inspect_err(|_| self.note(number, &mut state))?;
        }
    }
}

fn store_counts(medium: &Medium, number: u32, state: &State) -> Result<()> {
    let (at, offset) = medium.descriptor(number);
    medium.cache.change(at, |bytes| {
        let (stored, _) =
            GroupDescriptor::mut_from_prefix(&mut bytes[offset..]).expect("descriptors are whole");
        stored.free_blocks_count_lo = (state.free_blocks as u16).into();
        stored.free_inodes_count_lo = (state.free_inodes as u16).into();
        // Negative only behind a crash, where nobody trusts it.
        stored.used_dirs_count_lo = (state.dirs.max(0) as u16).into();
    })
}

/// Sets the first clear bit of the first `len` of a bitmap, from bit `from` on and then from the
/// beginning, that is not held back; `None`: there is none.
fn take_bit(
    medium: &Medium,
    bitmap: u64,
    from: u32,
    len: u32,
    held: &dyn Fn(usize) -> u8,
) -> Result<Option<u32>> {
    let find = |bytes: &[u8]| {
        let taken = |byte: usize| bytes[byte] | held(byte);
        let clear = |bit: u32| taken(bit as usize / 8) & (1 << (bit % 8)) == 0;
        // Bytes that are full are passed over.
        let in_range = |range: std::ops::Range<u32>| {
            let mut bit = range.start;
            while bit < range.end {
                if bit.is_multiple_of(8) && taken(bit as usize / 8) == 0xFF {
                    bit += 8;
                } else if clear(bit) {
                    return Some(bit);
                } else {
                    bit += 1;
                }
            }
            None
        };
        in_range(from..len).or_else(|| in_range(0..from))
    };
    let set = |bytes: &mut [u8], bit: &u32| bytes[*bit as usize / 8] |= 1 << (bit % 8);
    medium.cache.change_found(bitmap, find, set)
}

/// How many of the first `len` bits of a bitmap are clear.
fn clear_bits(medium: &Medium, bitmap: u64, len: u32) -> Result<u32> {
    let block = medium.cache.read(bitmap)?;
    let bytes = block.bytes();
    let (whole, rest) = (len as usize / 8, len % 8);
    let clear: u32 = bytes[..whole].iter().map(|byte| byte.count_zeros()).sum();
    let last = match rest {
        0 => 0,
        _ => (!bytes[whole] & ((1 << rest) - 1)).count_ones(),
    };
    Ok(clear + last)
}

/// Clears a bit of a bitmap; false: it was clear.
fn clear_bit(medium: &Medium, bitmap: u64, bit: u32) -> Result<bool> {
    medium.cache.change(bitmap, |bytes| {
        let (byte, mask) = (&mut bytes[bit as usize / 8], 1 << (bit % 8));
        let was_set = *byte & mask != 0;
        *byte &= !mask;
        was_set
    })
}

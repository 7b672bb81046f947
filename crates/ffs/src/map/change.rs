//! Changes of pointers: blocks are added to a file and taken from it.

use std::collections::BTreeSet;
use std::ops::Range;

use vfs::{Errno, Kind, Result};

use super::{le32, run};
use crate::alloc::Alloc;
use crate::fault::{Fault, injected, unless};
use crate::image::StoredInode;
use crate::layout::{DIRECT, POINTERS};
use crate::medium::Medium;
use crate::order::Action;
use crate::order::graph::{On, Place};

/// The block of a file, which it is given if it has none. A new one reads as zeros.
///
/// # Errors
/// `ENOSPC`, `EFBIG`; a pointer is damaged, or the disk failed.
pub fn assign(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    logical: u64,
) -> Result<u64> {
    add(medium, alloc, inode, logical, How::Grows)
}

/// How a block is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The size, which may grow with it, waits for its pointer.
    Grows,
    /// The size stays, and waits for nothing.
    Stays,
    /// The size stays; the block is the one of the disk that has this number, which is in use, is
    /// durable, and belongs to nobody.
    Adopts,
    /// Only the indirect blocks on the way to it are, so that none is needed when it is adopted.
    Prepares,
}

/// The block of a file, which it is given if it has none. A new one reads as zeros.
///
/// # Errors
/// As [`assign`].
pub fn add(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    logical: u64,
    how: How,
) -> Result<u64> {
    add_noting(medium, alloc, inode, logical, how, &mut Vec::new())
}

/// The same. `taken`: the blocks that it took for that, also where it fails.
///
/// # Errors
/// As [`assign`].
pub fn add_noting(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    logical: u64,
    how: How,
    taken: &mut Vec<u32>,
) -> Result<u64> {
    if let Some(block) = run(medium, inode, logical, 1)?.block {
        return Ok(block);
    }
    let goal = match logical.checked_sub(1) {
        Some(before) => run(medium, inode, before, 1)?.block.map(|block| block + 1),
        None => None,
    };
    let goal = goal.unwrap_or_else(|| alloc.goal(medium, inode.ino));
    let mut adding = Adding {
        medium,
        alloc,
        goal,
        added: 0,
        taken,
        how,
    };
    let done = adding.add(inode, logical);
    let added = adding.added;
    inode.attributes.sectors += added * u64::from(medium.geometry.block_size / 512);
    done
}

struct Adding<'a> {
    medium: &'a Medium,
    alloc: &'a Alloc,
    goal: u64,
    added: u64,
    taken: &'a mut Vec<u32>,
    how: How,
}

impl Adding<'_> {
    fn add(&mut self, inode: &mut StoredInode, logical: u64) -> Result<u64> {
        if logical < DIRECT as u64 {
            let block = match self.how {
                How::Prepares => return Ok(0),
                How::Adopts => self.adopt(logical),
                How::Grows | How::Stays => self.take_for(inode)?,
            };
            inode.attributes.pointers[logical as usize] = block;
            return Ok(block.into());
        }
        let per_block = self.medium.geometry.pointers_per_block();
        let mut index = logical - DIRECT as u64;
        for level in 1..=3 {
            let reach = per_block.pow(level);
            if index < reach {
                let top = DIRECT + level as usize - 1;
                if inode.attributes.pointers[top] == 0 {
                    inode.attributes.pointers[top] = self.take_for(inode)?;
                }
                return self.below(inode, logical, level, index);
            }
            index -= reach;
        }
        Err(Errno::FBIG.into())
    }

    /// Adds block `index` below the inode's pointer to so many levels of indirect blocks.
    fn below(
        &mut self,
        inode: &StoredInode,
        logical: u64,
        level: u32,
        mut index: u64,
    ) -> Result<u64> {
        let top = DIRECT + level as usize - 1;
        let mut holder = u64::from(inode.attributes.pointers[top]);
        let per_block = self.medium.geometry.pointers_per_block();
        for level in (0..level).rev() {
            let slot = (index / per_block.pow(level)) as usize * 4;
            index %= per_block.pow(level);
            let pointer = le32(&self.medium.cache.read(holder)?.bytes()[slot..slot + 4]);
            let pointer = match pointer {
                0 if level == 0 && self.how == How::Prepares => return Ok(0),
                0 => {
                    let is_adopted = level == 0 && self.how == How::Adopts;
                    let new = match is_adopted {
                        true => self.adopt(logical),
                        false => self.take()?,
                    };
                    self.medium.cache.change(holder, |bytes| {
                        bytes[slot..slot + 4].copy_from_slice(&new.to_le_bytes());
                    })?;
                    let place = Place::new(holder, slot);
                    let Medium { cache, order, .. } = self.medium;
                    if !is_adopted {
                        let claimed = self.alloc.claimed(self.medium, new);
                        order.publish_pointer(cache, place, &claimed);
                    }
                    if self.how == How::Grows && !injected(Fault::SizeBeforePointer) {
                        // The size waits for the pointer.
                        self.medium.hold(inode.ino, &[On::Place(place)])?;
                    }
                    new
                }
                pointer => pointer,
            };
            // It was followed before, to find that there is no block.
            holder = pointer.into();
        }
        Ok(holder)
    }

    /// Takes the block of the disk that has this number.
    fn adopt(&mut self, logical: u64) -> u32 {
        self.added += 1;
        logical as u32
    }

    /// Takes a block that the inode leads to.
    fn take_for(&mut self, inode: &StoredInode) -> Result<u32> {
        let block = self.take()?;
        let claimed = self.alloc.claimed(self.medium, block);
        self.medium.hold(inode.ino, &claimed)?;
        Ok(block)
    }

    fn take(&mut self) -> Result<u32> {
        let block = self.alloc.take_block(self.medium, self.goal)?;
        self.goal = u64::from(block) + 1;
        self.added += 1;
        self.taken.push(block);
        Ok(block)
    }
}

/// Takes a range of blocks from a file, from its end on, and the indirect blocks that are empty
/// then; no more than one operation may. Says from which block on the range is gone: all of it is
/// if that is its start.
///
/// # Errors
/// A pointer is damaged, or the disk failed; some blocks may be gone.
pub fn remove(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    range: Range<u64>,
) -> Result<u64> {
    let start = range.start;
    let mut removing = Removing {
        medium,
        range,
        is_dir: inode.attributes.kind == Kind::Dir,
        places: BTreeSet::new(),
        reached: None,
        removed: Vec::new(),
        after: Vec::new(),
    };
    let done = removing.top(inode);
    let reached = removing.reached.unwrap_or(start);
    let Removing { removed, after, .. } = removing;
    if removed.is_empty() && after.is_empty() {
        return done.map(|()| reached);
    }
    let sectors = removed.len() as u64 * u64::from(medium.geometry.block_size / 512);
    let left = &mut inode.attributes.sectors;
    *left = left.saturating_sub(sectors);
    // The size waits for pointers that were cut in indirect blocks.
    medium.hold(inode.ino, unless(Fault::SizeBeforeCut, &after))?;
    // They are nobody's when the inode is there without them, and it goes behind what was cut in
    // indirect blocks, and behind the names in the blocks of a directory.
    let after = [On::Place(medium.place(inode.ino)?)];
    let after = unless(Fault::BlocksFreedEarly, &after);
    let action = Action::FreeBlocks {
        holder: inode.at,
        blocks: removed,
    };
    if let Some(Action::FreeBlocks { holder, blocks }) =
        medium.order.after(&medium.cache, action, after)
    {
        alloc.free_blocks(medium, holder, &blocks)?;
    }
    done.map(|()| reached)
}

struct Removing<'a> {
    medium: &'a Medium,
    range: Range<u64>,
    is_dir: bool,
    /// Those of what is removed: their bitmaps will change, and what keeps what is freed there.
    places: BTreeSet<(u64, u64)>,
    /// Where it ended, as it would have been of too many places.
    reached: Option<u64>,
    removed: Vec<u32>,
    /// What has to be durable before the inode is stored without them.
    after: Vec<On>,
}

impl Removing<'_> {
    fn top(&mut self, inode: &mut StoredInode) -> Result<()> {
        let per_block = self.medium.geometry.pointers_per_block();
        let level = |slot: usize| (slot + 1).saturating_sub(DIRECT) as u32;
        let mut start: u64 = (0..POINTERS).map(|slot| per_block.pow(level(slot))).sum();
        for slot in (0..POINTERS).rev() {
            start -= per_block.pow(level(slot));
            let pointer = inode.attributes.pointers[slot];
            inode.attributes.pointers[slot] = self.cut(inode.at, pointer, level(slot), start)?;
        }
        Ok(())
    }

    /// Removes what is in the range below a pointer in block `holder`, which leads to blocks from
    /// `start` on: what the pointer is then.
    fn cut(&mut self, holder: u64, pointer: u32, level: u32, start: u64) -> Result<u32> {
        let per_block = self.medium.geometry.pointers_per_block();
        let end = start + per_block.pow(level);
        let is_outside = end <= self.range.start || start >= self.range.end;
        if pointer == 0 || is_outside || self.reached.is_some() {
            return Ok(pointer);
        }
        if level > 0 {
            let block = self.medium.follow(holder, pointer.into())?;
            let mut pointers: Vec<u32> = block.bytes().chunks_exact(4).map(le32).collect();
            let reach = per_block.pow(level - 1);
            for (slot, child) in pointers.iter_mut().enumerate().rev() {
                let start = start + slot as u64 * reach;
                *child = self.cut(pointer.into(), *child, level - 1, start)?;
            }
            let is_empty = pointers.iter().all(|&child| child == 0);
            if !is_empty || !self.may_free(pointer) {
                if is_empty {
                    self.reached = Some(start);
                }
                self.withdraw(pointer.into(), &pointers);
                let bytes: Vec<u8> = pointers
                    .iter()
                    .flat_map(|child| child.to_le_bytes())
                    .collect();
                let cache = &self.medium.cache;
                cache.change(pointer.into(), |block| block.copy_from_slice(&bytes))?;
                self.after.push(On::Block(pointer.into()));
                return Ok(pointer);
            }
        }
        if !self.may_free(pointer) {
            self.reached = Some(end);
            return Ok(pointer);
        }
        self.give_up(holder, pointer, level)?;
        Ok(0)
    }

    /// Whether a block may be freed by this operation.
    fn may_free(&mut self, block: u32) -> bool {
        let g = &self.medium.geometry;
        // Others are damage, which is found when they are given up.
        let group = u64::from(block).saturating_sub(g.first_block) / u64::from(g.blocks_per_group);
        let cache = &self.medium.cache;
        let place = cache.freed_place(group, block.into());
        let has_room = self.places.len() < cache.freed_max();
        has_room && self.places.insert(place) || self.places.contains(&place)
    }

    /// Pointers of an indirect block are 0 now that may have been guarded.
    fn withdraw(&self, block: u64, pointers: &[u32]) {
        for (slot, _) in (0..).zip(pointers).filter(|&(_, &pointer)| pointer == 0) {
            let offset = 4 * slot;
            self.medium.order.forget(Place::new(block, offset));
        }
    }

    /// A block is not needed any more.
    fn give_up(&mut self, holder: u64, block: u32, level: u32) -> Result<()> {
        let Medium {
            geometry,
            cache,
            order,
            ..
        } = self.medium;
        if !geometry.has_block(block.into()) {
            let what = format_args!("block {block} is to be freed");
            return Err(geometry.damage(holder, what));
        }
        if self.is_dir && level == 0 {
            // Names that went from it are gone from the disk only with it.
            self.after.extend(order.of_block(block.into()));
        } else {
            cache.forget(block.into());
            order.discard(block.into());
        }
        self.removed.push(block);
        Ok(())
    }
}

/// The blocks that an inode has, with indirect ones and that of extended attributes.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn count(medium: &Medium, inode: &StoredInode) -> Result<u64> {
    let mut blocks = u64::from(inode.attributes.xattr_block != 0);
    if inode.attributes.has_blocks() {
        for (slot, &pointer) in inode.attributes.pointers.iter().enumerate() {
            let level = (slot + 1).saturating_sub(DIRECT);
            blocks += count_below(medium, inode.at, pointer, level)?;
        }
    }
    Ok(blocks)
}

/// Those that a pointer in block `holder` leads to.
fn count_below(medium: &Medium, holder: u64, pointer: u32, level: usize) -> Result<u64> {
    if pointer == 0 {
        return Ok(0);
    }
    let mut blocks = 1;
    if level > 0 {
        let block = medium.follow(holder, pointer.into())?;
        let children: Vec<u32> = block.bytes().chunks_exact(4).map(le32).collect();
        for child in children {
            blocks += count_below(medium, pointer.into(), child, level - 1)?;
        }
    }
    Ok(blocks)
}

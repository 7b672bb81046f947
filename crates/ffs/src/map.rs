//! From blocks of a file to blocks of the disk: direct and indirect pointers, and trees of extents.

pub mod change;
mod extents;

use vfs::Result;

use crate::image::StoredInode;
use crate::layout::{DIRECT, InodeFlags};
use crate::medium::Medium;
use crate::order::graph::Place;

/// Consecutive blocks of a file that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where the first is on the disk, and the others behind it; `None`: they read as zeros.
    pub block: Option<u64>,
    /// How many there are; at least one.
    pub len: u64,
}

impl Run {
    fn hole(len: u64) -> Run {
        Run { block: None, len }
    }
}

/// What block `logical` of a file is, and those that follow, `max` in all, as far as that is known
/// without reading more. Holes may be longer, and those of a tree of extents may go on behind the
/// run.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn run(medium: &Medium, inode: &StoredInode, logical: u64, max: u64) -> Result<Run> {
    if inode.attributes.flags.contains(InodeFlags::EXTENTS) {
        extents::run(medium, inode, logical)
    } else {
        pointers(medium, inode, logical, max)
    }
}

fn pointers(medium: &Medium, inode: &StoredInode, logical: u64, max: u64) -> Result<Run> {
    let pointers = &inode.attributes.pointers;
    if logical < DIRECT as u64 {
        let rest = pointers[logical as usize..DIRECT].iter().copied();
        return alike(medium, inode.at, rest, max);
    }
    let per_block = medium.geometry.pointers_per_block();
    let mut index = logical - DIRECT as u64;
    for (level, &top) in (1..).zip(&pointers[DIRECT..]) {
        let reach = per_block.pow(level);
        if index < reach {
            return indirect(medium, (inode.at, top), level, index, max);
        }
        index -= reach;
    }
    // Beyond what pointers can reach.
    Ok(Run::hole(u64::MAX - logical))
}

/// What block `index` is under a pointer to `levels` levels of indirect blocks, and the block that
/// holds the pointer.
fn indirect(
    medium: &Medium,
    (mut holder, mut pointer): (u64, u32),
    levels: u32,
    mut index: u64,
    max: u64,
) -> Result<Run> {
    let per_block = medium.geometry.pointers_per_block();
    for level in (0..levels).rev() {
        if pointer == 0 {
            return Ok(Run::hole(per_block.pow(level + 1) - index));
        }
        let block = medium.follow(holder, pointer.into())?;
        holder = pointer.into();
        let slot = (index / per_block.pow(level)) as usize;
        index %= per_block.pow(level);
        let bytes = block.bytes();
        let mut rest = bytes[4 * slot..].chunks_exact(4).map(le32);
        if level == 0 {
            return alike(medium, holder, rest, max);
        }
        pointer = rest.next().expect("an index below the level's reach");
    }
    unreachable!("there is at least one level")
}

/// Where the pointers are that lead to block `logical` of a file, in indirect blocks, as far as
/// there are such.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn places(medium: &Medium, inode: &StoredInode, logical: u64) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    let Some(mut index) = logical.checked_sub(DIRECT as u64) else {
        return Ok(places);
    };
    let per_block = medium.geometry.pointers_per_block();
    for (levels, &top) in (1..).zip(&inode.attributes.pointers[DIRECT..]) {
        let reach = per_block.pow(levels);
        if index >= reach {
            index -= reach;
            continue;
        }
        let (mut holder, mut pointer) = (inode.at, top);
        for level in (0..levels).rev() {
            if pointer == 0 {
                break;
            }
            let block = medium.follow(holder, pointer.into())?;
            holder = pointer.into();
            let offset = 4 * (index / per_block.pow(level)) as usize;
            index %= per_block.pow(level);
            places.push(Place::new(holder, offset));
            pointer = le32(&block.bytes()[offset..][..4]);
        }
        break;
    }
    Ok(places)
}

fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// How far pointers that lie in block `holder` go on as they begin, up to `max` of them.
fn alike(
    medium: &Medium,
    holder: u64,
    mut pointers: impl Iterator<Item = u32>,
    max: u64,
) -> Result<Run> {
    let first = u64::from(pointers.next().expect("at least one pointer"));
    let pointers = pointers.take(usize::try_from(max).unwrap_or(usize::MAX) - 1);
    if first == 0 {
        let more = pointers.take_while(|&pointer| pointer == 0).count();
        return Ok(Run::hole(1 + more as u64));
    }
    let next = (first + 1)..;
    let more = pointers
        .zip(next)
        .take_while(|&(pointer, next)| u64::from(pointer) == next)
        .count();
    checked(medium, holder, first, 1 + more as u64)
}

/// A run of blocks that are all on the disk.
fn checked(medium: &Medium, holder: u64, first: u64, len: u64) -> Result<Run> {
    let geometry = &medium.geometry;
    let last = first.saturating_add(len - 1);
    if !geometry.has_block(first) || !geometry.has_block(last) {
        let what = format_args!("it leads to block {last}, outside the disk");
        return Err(geometry.damage(holder, what));
    }
    Ok(Run {
        block: Some(first),
        len,
    })
}

//! Contents of files, and of whatever has contents in blocks.

use std::ops::Range;

use vfs::{Errno, Result, SeekFor};

use crate::alloc::Alloc;
use crate::image::StoredInode;
use crate::map;
use crate::medium::Medium;
use crate::order::graph::On;

/// Reads from byte `offset` on; returns the bytes read, fewer only at the end.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn read(medium: &Medium, inode: &StoredInode, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let left = inode.attributes.size.saturating_sub(offset);
    let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    let block_size = u64::from(medium.geometry.block_size);
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let wanted = (offset + len as u64 - 1) / block_size - at / block_size + 1;
        let run = map::run(medium, inode, at / block_size, wanted)?;
        let run_bytes = run.len.saturating_mul(block_size) - at % block_size;
        let part = usize::try_from(run_bytes).unwrap_or(usize::MAX);
        let part = part.min(len - done);
        let to = &mut buf[done..done + part];
        match run.block {
            Some(first) => copy(medium, first, (at % block_size) as usize, to)?,
            None => to.fill(0),
        }
        done += part;
    }
    Ok(len)
}

/// Copies bytes of consecutive blocks, from byte `skip` of the first on.
fn copy(medium: &Medium, first: u64, mut skip: usize, mut to: &mut [u8]) -> Result<()> {
    let block_size = medium.geometry.block_size as usize;
    for block in first.. {
        let left = (skip + to.len()).div_ceil(block_size);
        let block = medium.cache.read_with(block, left as u64)?;
        let bytes = block.bytes();
        let part = to.len().min(bytes.len() - skip);
        let (now, rest) = to.split_at_mut(part);
        now.copy_from_slice(&bytes[skip..skip + part]);
        (to, skip) = (rest, 0);
        if to.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Writes from byte `offset` on; returns the bytes written, fewer only when space ran out or the
/// disk failed. The size grows with them.
///
/// # Errors
/// `ENOSPC` if nothing could be written; a pointer is damaged, or the disk failed.
pub fn write(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    offset: u64,
    data: &[u8],
) -> Result<usize> {
    let block_size = u64::from(medium.geometry.block_size);
    if !data.is_empty() {
        clear_behind(medium, inode, offset + data.len() as u64)?;
    }
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let skip = (at % block_size) as usize;
        let part = (data.len() - done).min(block_size as usize - skip);
        let block = match map::change::assign(medium, alloc, inode, at / block_size) {
            Ok(block) => block,
            Err(error) if done > 0 => {
                medium.cache.note_failure(&error);
                break;
            }
            Err(error) => return Err(error),
        };
        let from = &data[done..done + part];
        match part as u64 == block_size {
            true => medium.cache.replace(block, inode.ino, from),
            false => medium.cache.overwrite(block, inode.ino, |bytes| {
                bytes[skip..skip + part].copy_from_slice(from)
            })?,
        }
        done += part;
        inode.attributes.size = inode.attributes.size.max(at + part as u64);
    }
    Ok(done)
}

/// Makes a range of bytes read as zeros; whole blocks of it become a hole. What is too much for one
/// operation is done from its end on: says from where on it is; if that is not its start, go on
/// with what is before.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn punch(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    Range { start, end }: Range<u64>,
) -> Result<u64> {
    let block_size = u64::from(medium.geometry.block_size);
    let (first, last) = (start.div_ceil(block_size), end / block_size);
    if first > last {
        // Within a block.
        clear(medium, inode, start..end)?;
        return Ok(start);
    }
    clear(medium, inode, start..first * block_size)?;
    clear(medium, inode, last * block_size..end)?;
    match map::change::remove(medium, alloc, inode, first..last)? {
        reached if reached == first => Ok(start),
        reached => Ok(reached * block_size),
    }
}

/// A file may be about to grow to `size`: what its last block has behind its end reads as zeros
/// from then on. A crash may have left there what was being written: that is gone from the disk
/// before the file has its new size.
fn clear_behind(medium: &Medium, inode: &StoredInode, size: u64) -> Result<()> {
    let (block_size, end) = (u64::from(medium.geometry.block_size), inode.attributes.size);
    let range = end..size.min(end.next_multiple_of(block_size));
    if range.is_empty() {
        return Ok(());
    }
    let Some(block) = map::run(medium, inode, end / block_size, 1)?.block else {
        return Ok(());
    };
    let from = (end % block_size) as usize;
    let behind = from..from + (range.end - range.start) as usize;
    let left = medium.cache.read(block)?;
    if left.bytes()[behind.clone()].iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    clear(medium, inode, range)?;
    medium.hold(inode.ino, &[On::Block(block)])
}

/// What a crash has left behind the end of a file, in its last block, reads as zeros from here on,
/// and is gone from the disk before the inode is as it is stored next.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn clear_end(medium: &Medium, inode: &StoredInode) -> Result<()> {
    clear_behind(medium, inode, u64::MAX)
}

/// Clears bytes within a block, if there is one.
fn clear(medium: &Medium, inode: &StoredInode, range: Range<u64>) -> Result<()> {
    let block_size = u64::from(medium.geometry.block_size);
    if range.is_empty() {
        return Ok(());
    }
    let Some(block) = map::run(medium, inode, range.start / block_size, 1)?.block else {
        return Ok(());
    };
    let skip = (range.start % block_size) as usize;
    let len = (range.end - range.start) as usize;
    medium
        .cache
        .overwrite(block, inode.ino, |bytes| bytes[skip..skip + len].fill(0))
}

/// Changes the size. What is cut off is gone, and reads as zeros should the size grow again. What
/// is too much for one operation is cut off from the end on: `false` if the size is not yet what it
/// is to be; go on.
///
/// # Errors
/// A pointer is damaged, or the disk failed.
pub fn truncate(
    medium: &Medium,
    alloc: &Alloc,
    inode: &mut StoredInode,
    size: u64,
) -> Result<bool> {
    let block_size = u64::from(medium.geometry.block_size);
    if size < inode.attributes.size {
        let kept = size.div_ceil(block_size);
        let reached = map::change::remove(medium, alloc, inode, kept..u64::MAX)?;
        if reached > kept {
            let left = reached.saturating_mul(block_size);
            inode.attributes.size = inode.attributes.size.min(left);
            return Ok(false);
        }
        clear(medium, inode, size..kept * block_size)?;
    } else {
        clear_behind(medium, inode, size)?;
    }
    inode.attributes.size = size;
    Ok(true)
}

/// The next byte at or after `offset` that is data, or a hole; `ENXIO` if there is none.
///
/// # Errors
/// That one; a pointer is damaged, or the disk failed.
pub fn seek(medium: &Medium, inode: &StoredInode, offset: u64, what: SeekFor) -> Result<u64> {
    let size = inode.attributes.size;
    if offset >= size {
        return Err(Errno::NXIO.into());
    }
    let block_size = u64::from(medium.geometry.block_size);
    let mut at = offset;
    while at < size {
        let run = map::run(medium, inode, at / block_size, u64::MAX)?;
        if run.block.is_some() == (what == SeekFor::Data) {
            return Ok(at);
        }
        at = (at / block_size)
            .saturating_add(run.len)
            .saturating_mul(block_size);
    }
    match what {
        SeekFor::Hole => Ok(size),
        SeekFor::Data => Err(Errno::NXIO.into()),
    }
}

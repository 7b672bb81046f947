//! Contents of files, and of whatever has contents in blocks.

use vfs::{Errno, Result, SeekFor};

use crate::image::StoredInode;
use crate::map;
use crate::medium::Medium;

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
        let run = map::run(medium, inode, at / block_size)?;
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
    for block in first.. {
        let bytes = medium.cache.read(block)?;
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
        let run = map::run(medium, inode, at / block_size)?;
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

//! Blocks behind a sparse image file.
//!
//! A store to a hole of a mapped file makes the host file system allocate inside the page fault;
//! when it is full the process gets SIGBUS. So blocks are asked for first, in chunks, and a
//! bitmap remembers the chunks that have them.

use std::fs::File;
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::open::{free_space, retry};
use crate::{MediumError, PAGE};

/// Bytes allocated at once; also the unit of the bitmap.
const CHUNK: u64 = 2 << 20;

/// What is known of the blocks of a sparse image.
pub(crate) struct Backing {
    len: u64,
    /// A bit per chunk that surely has all its blocks. Bits are set and cleared under `change`.
    backed: Box<[AtomicU64]>,
    /// Held while blocks are added or taken.
    change: Mutex<()>,
    warned: Once,
}

impl Backing {
    pub(crate) fn new(len: u64) -> Self {
        let words = len.div_ceil(CHUNK).div_ceil(64) as usize;
        Backing {
            len,
            backed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            change: Mutex::new(()),
            warned: Once::new(),
        }
    }

    /// Makes sure that the range, which lies in the file, has blocks.
    #[inline]
    pub(crate) fn back(
        &self,
        pool: &dyn Fn() -> String,
        file: &File,
        off: u64,
        len: u64,
    ) -> Result<(), MediumError> {
        for chunk in chunks(off, len) {
            if !self.is_backed(chunk) {
                self.back_chunk(pool, file, chunk, off, len)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn back_chunk(
        &self,
        pool: &dyn Fn() -> String,
        file: &File,
        chunk: u64,
        off: u64,
        len: u64,
    ) -> Result<(), MediumError> {
        let _change = self.change.lock();
        if self.is_backed(chunk) {
            return Ok(());
        }
        let (start, end) = self.bounds(chunk);
        // Allocating what is allocated costs nothing on a disk; on tmpfs it visits, and at first clears, every page.
        let hole = hole_from(file, start);
        if hole >= end {
            // All that was passed over is known, too: tmpfs finds a hole by looking at each page before it.
            self.set_backed(chunk..self.whole_chunks(hole));
            return Ok(());
        }
        match allocate(file, start, end) {
            Ok(()) => {
                self.set_backed(chunk..chunk + 1);
                return Ok(());
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.warn_unallocated(&pool());
                return Ok(());
            }
            Err(_) => {}
        }
        // No room for the whole chunk: what is needed of it may still fit.
        let start = start.max(off / PAGE * PAGE);
        let end = end.min((off + len).next_multiple_of(PAGE));
        if hole >= end {
            return Ok(());
        }
        allocate(file, start, end).map_err(|error| match error {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM => MediumError::HostFull {
                pool: pool(),
                need: end - start,
                free: free_space(file),
            },
            error => MediumError::BackFailed {
                pool: pool(),
                off: start,
                len: end - start,
                cause: error.to_string(),
            },
        })
    }

    /// Says once that the host file system cannot allocate in advance.
    fn warn_unallocated(&self, pool: &str) {
        self.warned.call_once(|| {
            log::warn!(
                "{pool}: its file system cannot allocate blocks in advance; should it become \
                 full, the process will be killed (SIGBUS)"
            );
        });
    }

    /// Gives the blocks of the whole pages within the range back to the host file system.
    pub(crate) fn unback(&self, file: &File, off: u64, len: u64) {
        let start = off.next_multiple_of(PAGE);
        let end = (off + len) / PAGE * PAGE;
        if start >= end {
            return;
        }
        let _change = self.change.lock();
        for chunk in chunks(start, end - start) {
            self.word(chunk).fetch_and(!bit(chunk), Ordering::Release);
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = retry(|| rustix::fs::fallocate(file, punch, start, end - start)) {
            // The space stays allocated: wasteful, not wrong.
            log::debug!(
                "cannot punch a hole of {} bytes at {start}: {error}",
                end - start
            );
        }
    }

    fn is_backed(&self, chunk: u64) -> bool {
        self.word(chunk).load(Ordering::Acquire) & bit(chunk) != 0
    }

    fn set_backed(&self, chunks: Range<u64>) {
        for chunk in chunks {
            self.word(chunk).fetch_or(bit(chunk), Ordering::Release);
        }
    }

    /// Chunks that end before this offset, or here if it is the end.
    fn whole_chunks(&self, end: u64) -> u64 {
        match end >= self.len {
            true => self.len.div_ceil(CHUNK),
            false => end / CHUNK,
        }
    }

    fn word(&self, chunk: u64) -> &AtomicU64 {
        &self.backed[(chunk / 64) as usize]
    }

    /// First byte and end of a chunk.
    fn bounds(&self, chunk: u64) -> (u64, u64) {
        (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.len))
    }
}

fn bit(chunk: u64) -> u64 {
    1 << (chunk % 64)
}

fn chunks(off: u64, len: u64) -> Range<u64> {
    if len == 0 {
        0..0
    } else {
        off / CHUNK..(off + len - 1) / CHUNK + 1
    }
}

fn allocate(file: &File, start: u64, end: u64) -> rustix::io::Result<()> {
    retry(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, start, end - start))
}

/// Where the data that begins here, and so has blocks, ends; here if that cannot be told.
fn hole_from(file: &File, start: u64) -> u64 {
    rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_tells_of_all_chunks_before_the_next_hole() {
        let len = 9 * CHUNK / 2; // the last chunk is half a one
        let file = tempfile::tempfile().expect("a file");
        file.set_len(len).expect("length");
        let allocated = |from: u64, to: u64| allocate(&file, from, to).expect("space");
        let write = |from: u64, to: u64| {
            allocated(from, to);
            let zeros = vec![0; (to - from) as usize];
            std::os::unix::fs::FileExt::write_all_at(&file, &zeros, from).expect("written");
        };
        // Chunks 0 to 2, and half of the third.
        write(0, 3 * CHUNK + CHUNK / 2);
        let backing = Backing::new(len);
        let name = || "pool".to_owned();
        let known = |backing: &Backing| {
            let chunks = 0..len.div_ceil(CHUNK);
            chunks.filter(|&c| backing.is_backed(c)).collect::<Vec<_>>()
        };
        backing.back(&name, &file, CHUNK, 1).expect("space");
        assert_eq!(known(&backing), [1, 2]);
        // The rest of the third is allocated now, and what is behind it is not.
        backing.back(&name, &file, 3 * CHUNK, 1).expect("space");
        assert_eq!(known(&backing), [1, 2, 3]);
        write(4 * CHUNK, len);
        backing.back(&name, &file, 4 * CHUNK, 1).expect("space");
        assert_eq!(known(&backing), [1, 2, 3, 4]);
    }
}

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
        // Allocating what is allocated costs next to nothing on a disk, and 50 us on tmpfs, which
        // visits the pages. To ask first where the next hole is could take longer by far: tmpfs
        // looks at all pages before it.
        let (start, end) = self.bounds(chunk);
        let refused = allocate(file, start, end).err();
        // A host that is full, or cannot allocate, may refuse although all of it is there.
        if refused.is_none() || hole_from(file, start) >= end {
            self.word(chunk).fetch_or(bit(chunk), Ordering::Release);
            return Ok(());
        }
        if let Some(Errno::OPNOTSUPP | Errno::NOSYS) = refused {
            self.warn_unallocated(&pool());
            return Ok(());
        }
        // No room for the whole chunk: what is needed of it may still fit, or be there.
        let start = start.max(off / PAGE * PAGE);
        let end = end.min((off + len).next_multiple_of(PAGE));
        if hole_from(file, start) >= end {
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

    /// Gives the blocks of the whole pages within the range back, as `punch` does.
    pub(crate) fn unback(
        &self,
        off: u64,
        len: u64,
        punch: impl FnOnce(u64, u64) -> Result<(), String>,
    ) {
        let start = off.next_multiple_of(PAGE);
        let end = (off + len) / PAGE * PAGE;
        if start >= end {
            return;
        }
        let _change = self.change.lock();
        for chunk in chunks(start, end - start) {
            self.word(chunk).fetch_and(!bit(chunk), Ordering::Release);
        }
        if let Err(error) = punch(start, end - start) {
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

/// Makes a hole.
pub(crate) fn punch(file: &File, off: u64, len: u64) -> rustix::io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry(|| rustix::fs::fallocate(file, punch, off, len))
}

/// Whether no byte of the range has a block; not, as far as is known, if the file cannot tell.
pub(crate) fn is_hole(file: &File, off: u64, len: u64) -> bool {
    data_from(file, off) >= off + len
}

/// Where the first block at or behind `off` is; there if the file cannot tell, at no place at all
/// if there is none.
pub(crate) fn data_from(file: &File, off: u64) -> u64 {
    match rustix::fs::seek(file, SeekFrom::Data(off)) {
        Ok(data) => data,
        Err(Errno::NXIO) => u64::MAX,
        Err(_) => off,
    }
}

/// Where the data that begins here, and so has blocks, ends; here if that cannot be told.
fn hole_from(file: &File, start: u64) -> u64 {
    rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_with_a_store_in_it_gets_all_its_blocks() {
        let len = 5 * CHUNK / 2; // the last chunk is half a one
        let file = tempfile::tempfile().expect("a file");
        file.set_len(len).expect("length");
        allocate(&file, CHUNK, 3 * CHUNK / 2).expect("space");
        let backing = Backing::new(len);
        let back = |off, len| backing.back(&|| "pool".into(), &file, off, len);
        let known = || (0..3).map(|c| backing.is_backed(c)).collect::<Vec<_>>();
        let blocks = || rustix::fs::fstat(&file).expect("stat").st_blocks as u64 * 512;
        back(2 * CHUNK - 1, 2).expect("space");
        assert_eq!(known(), [false, true, true]);
        assert_eq!(blocks(), len - CHUNK);
        backing.unback(CHUNK, CHUNK, |off, len| {
            punch(&file, off, len).map_err(|error| error.to_string())
        });
        assert_eq!((known(), blocks()), (vec![false, false, true], CHUNK / 2));
        back(CHUNK, 1).expect("space");
        assert_eq!((known(), blocks()), (vec![false, true, true], len - CHUNK));
    }

    #[test]
    fn a_host_that_refuses_what_is_there_is_overruled() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(2 * CHUNK).expect("length");
        allocate(file.as_file(), 0, CHUNK).expect("space");
        // Data, as some file systems take what is allocated and was never written for a hole.
        let ones = vec![1; CHUNK as usize];
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), &ones, 0).expect("written");
        let refusing = File::open(file.path()).expect("open for reading only");
        let backing = Backing::new(2 * CHUNK);
        let back = |off| backing.back(&|| "pool".into(), &refusing, off, 1);
        back(PAGE).expect("it is there");
        assert!(backing.is_backed(0));
        assert!(matches!(back(CHUNK), Err(MediumError::BackFailed { .. })));
        assert!(!backing.is_backed(1));
    }
}

//! Writing: bytes go straight into their page.

use super::File;
use super::overlay::Pending;
use crate::fault::{Fault, injected};
use crate::image::Pointer;
use crate::inode_state::InodeState;
use crate::layout::{FILE_MAX, PAGE, page_at};
use crate::medium::Medium;
use crate::tree::Run;
use pmem::Streaming;
use schedule::point;
use std::sync::atomic::Ordering::{Relaxed, Release};
use vfs::{Errno, Error, Result};

/// Blocks whose pages are looked up at once when a file is overwritten from one block to the next.
const AHEAD: u64 = 64;
/// At most so many bytes behind a write are prefetched before the next one.
const EXPECTED_MAX: u64 = PAGE / 2;
/// Files up to here are taken to be in a near cache ...
const NEAR: u64 = 1 << 20;
/// ... and up to here in a far one.
const FAR: u64 = 16 << 20;
/// So many bytes in sequence go around the caches sooner than their lines come into them.
const STREAM_MIN: usize = 16 << 10;

impl File {
    /// Write; returns the bytes written, fewer only when space ran out or the file is to be
    /// persisted first, and what is to be dropped before anyone else may read them. The caller has
    /// checked the range.
    pub fn write(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        offset: u64,
        data: &[u8],
    ) -> Result<(usize, Option<Streaming>)> {
        let size = inode.attrs.size.load(Relaxed);
        if data.is_empty() {
            return Ok((0, None));
        }
        let mut streaming = None;
        if offset > size {
            self.zero_tail(medium, inode, size, offset)?;
        }
        let mut done = 0;
        while done < data.len() {
            match self.write_run(medium, inode, offset + done as u64, &data[done..]) {
                Ok((n, more)) => {
                    done += n;
                    self.pending().written_to = offset + done as u64;
                    streaming = more.or(streaming);
                    if self.has_many_dirty() {
                        break;
                    }
                }
                Err(Error::Errno(Errno::NOSPC)) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        point("write: the size is old");
        if offset + done as u64 > size {
            inode.attrs.size.store(offset + done as u64, Release);
        }
        Ok((done, streaming))
    }

    /// Write as far as the blocks are mapped in the same way.
    fn write_run(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        at: u64,
        data: &[u8],
    ) -> Result<(usize, Option<Streaming>)> {
        let (block, inside) = (at / PAGE, at % PAGE);
        let want = (inside + data.len() as u64).div_ceil(PAGE);
        let written_to = |pending: &Pending| pending.written_to;
        let sequential = self.pending.as_deref().map_or(0, written_to) == at;
        let piece = |n| Piece {
            at,
            data: &data[..n],
            sequential,
        };
        let goes_on = |pending: &Pending| pending.recent.end == block && block > 0;
        let ahead = self.pending.as_deref().is_some_and(goes_on);
        let max = if ahead { want.max(AHEAD) } else { want };
        let (pointer, run) = self.mapping(medium, block, max)?;
        let bytes_in = |blocks: u64| ((blocks * PAGE - inside) as usize).min(data.len());
        if let Some(first) = pointer.filter(|pointer| !pointer.unwritten) {
            let n = bytes_in(run.min(want));
            let len = run;
            let run = Run { block, len, first };
            let streaming = self.overwrite(medium, inode, run, piece(n))?;
            return Ok((n, streaming));
        }
        let run = run.min(want);
        let (run, in_tree) = match pointer {
            // Into reserved space: the tree keeps the page, only the flag goes.
            Some(Pointer { page, .. }) => {
                medium.alloc.back(page_at(page), run * PAGE)?;
                (written(block, run, page), self.is_known(block))
            }
            None => {
                self.provide(medium, block..block + run)?;
                let pages = medium.alloc.pages(run)?;
                let run = written(block, pages.end - pages.start, pages.start);
                inode.attrs.pages.fetch_add(run.len as i64, Relaxed);
                (run, false)
            }
        };
        let n = bytes_in(run.len);
        let streaming = fill(medium, run, piece(n));
        self.map_pages(medium, run, in_tree);
        Ok((n, streaming))
    }

    /// Write to blocks that have contents: into their pages.
    #[inline]
    fn overwrite(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        run: Run,
        piece: Piece<'_>,
    ) -> Result<Option<Streaming>> {
        let Run { block, len, first } = run;
        let end = piece.at + piece.data.len() as u64;
        let to = page_at(first.page) + piece.at % PAGE;
        let to = to..to + piece.data.len() as u64;
        medium.alloc.back(to.start, to.end - to.start)?;
        self.mark(medium, inode, block..end.div_ceil(PAGE));
        point("write: marked and not stored");
        let streaming = put(medium, to.start, piece);
        let pending = self.pending();
        if streaming.is_none() || !injected(Fault::StreamedUnflushed) {
            pending.dirty.add(to.clone());
        }
        if pending.recent(block).is_none() {
            (pending.recent, pending.recent_page) = (block..block + len, first.page);
        }
        if pending.recent(end / PAGE).is_some() {
            piece.expect_next(medium, to.end, &streaming);
        }
        Ok(streaming)
    }
}

/// A part of a write, to blocks that are mapped in the same way.
#[derive(Clone, Copy)]
pub(super) struct Piece<'d> {
    /// Where in the file.
    pub(super) at: u64,
    pub(super) data: &'d [u8],
    /// The last write ended here.
    pub(super) sequential: bool,
}

impl Piece<'_> {
    /// If writes go on in sequence and through the caches, what comes next will be stored from this
    /// offset of the pool on.
    fn expect_next(&self, medium: &Medium, next: u64, streaming: &Option<Streaming>) {
        if self.sequential && streaming.is_none() {
            let len = EXPECTED_MAX.min(self.data.len() as u64);
            medium.pool.prefetch_range_for_write(next, len);
        }
    }
}

/// A run of pages with contents.
fn written(block: u64, len: u64, page: u64) -> Run {
    let first = Pointer {
        page,
        unwritten: false,
    };
    Run { block, len, first }
}

/// Put data into fresh pages, zeros around it.
fn fill(medium: &Medium, run: Run, piece: Piece<'_>) -> Option<Streaming> {
    let at = page_at(run.first.page);
    let inside = piece.at % PAGE;
    let end = inside + piece.data.len() as u64;
    if inside > 0 {
        medium.pool.zero(at, inside);
    }
    if end < run.len * PAGE {
        medium.pool.zero(at + end, run.len * PAGE - end);
    }
    let streaming = put(medium, at + inside, piece);
    piece.expect_next(medium, at + run.len * PAGE, &streaming); // likely mapped next
    streaming
}

/// Put data into its place in the pool: through the caches if they may have the place already, or
/// are to have it when it is read, and if that takes no longer.
pub(super) fn put(medium: &Medium, to: u64, piece: Piece<'_>) -> Option<Streaming> {
    let Piece {
        at,
        data,
        sequential,
    } = piece;
    let end = at + data.len() as u64;
    let long = data.len() >= STREAM_MIN && end > NEAR;
    let scattered = !sequential && data.len() as u64 >= PAGE && end > FAR;
    if long || scattered {
        return Some(medium.pool.write_streaming(to, data));
    }
    medium.pool.write(to, data);
    None
}

/// Check the range of a write: `EFBIG` when it begins beyond the largest file; returns how much
/// of it fits.
pub fn clamp(offset: u64, len: usize) -> Result<usize> {
    if offset >= FILE_MAX && len > 0 {
        return Err(Error::Errno(Errno::FBIG));
    }
    Ok((len as u64).min(FILE_MAX.saturating_sub(offset)) as usize)
}

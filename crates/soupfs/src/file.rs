//! A file's latest view: its contents as callers read and write them (SoupFS §3.4, §3.6).
//!
//! The index tree on the medium is the consistent view. What callers mapped or cut since is the
//! *overlay*: extents of pages, and of holes, that win over the tree until the persister has put
//! them there. Bytes go straight into their page: data is not dual (as in the paper), but a page
//! that the consistent view cannot reach shows nothing to anybody before it is published, and it
//! is published only when durable, so no crash shows what another file left in it.
//!
//! Invariants:
//! - F1 A page of the overlay that is neither captured nor in the tree is private: it can be freed
//!   at once.
//! - F2 A captured extent is in the batch being persisted; whatever replaces it here waits for the
//!   next one, which finds the old page in the tree and frees it.
//! - F3 Bytes of the last block beyond the size are void; who makes the size grow zeroes them.
//! - F4 For every leaf that the overlay will need in the tree, nodes have been set aside; in mode
//!   `strong` for every leaf in which it changes pointers, and as many are enough to copy the path
//!   to it.
//! - F5 The run that was written to last is remembered until anything is mapped otherwise.
//! - F6 Before a byte is stored in a page that the consistent view leads to, or will with the batch
//!   under way, the bit of its block is set in the inode on the medium ([`crate::inherited`]): by
//!   the write, or by what voided a page that the consistent view has as written.

mod capture;
mod dirty;
mod overlay;
mod space;
mod whole;
mod write;

pub use capture::FileCapture;
pub use overlay::{Extent, Mapping};
pub use whole::Plan;
pub use write::clamp;

use crate::attributes::Attributes;
use crate::image::Pointer;
use crate::inherited::bits_of;
use crate::inode_state::InodeState;
use crate::layout::{PAGE, index, inode, line_at, page_at};
use crate::medium::{Medium, failed};
use crate::tree::{self, Run};
use overlay::Pending;
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;
use vfs::{Errno, Error, Result, SeekFor};

/// The contents of a regular file.
pub struct File {
    /// Root word of the consistent tree.
    root: u64,
    /// Absent while the tree alone says what the file holds.
    pending: Option<Box<Pending>>,
}

impl File {
    /// An empty file.
    pub fn fresh() -> File {
        File {
            root: 0,
            pending: None,
        }
    }

    /// A file of the consistent view.
    pub fn load(image: &Attributes) -> File {
        let inherited = (image.unflushed != 0).then(|| Pending {
            marked: image.unflushed,
            inherited: image.unflushed,
            ..Pending::default()
        });
        File {
            root: image.root,
            pending: inherited.map(Box::new),
        }
    }

    fn pending(&mut self) -> &mut Pending {
        self.pending.get_or_insert_default()
    }

    /// Say on the medium that these blocks, at least one, are written in place (F6).
    #[inline]
    fn mark(&mut self, medium: &Medium, inode: &InodeState, blocks: Range<u64>) {
        let bits = bits_of(blocks);
        let pending = self.pending();
        if bits & !pending.since != 0 {
            pending.mark(medium, inode, bits);
        }
    }

    /// The bits that the inode has on the medium (F6).
    pub fn marked(&self) -> u64 {
        self.pending.as_ref().map_or(0, |pending| pending.marked)
    }

    /// What `block` is mapped to, and for how many blocks (at most `max`) that goes on.
    fn mapping(&self, medium: &Medium, block: u64, max: u64) -> Result<(Option<Pointer>, u64)> {
        let mut max = max;
        if let Some(pending) = self.pending.as_deref() {
            if let Some((pointer, run)) = pending.recent(block) {
                return Ok((Some(pointer), run.min(max)));
            }
            let overlay = &pending.overlay;
            if let Some((&start, extent)) = overlay.range(..=block).next_back()
                && block < start + extent.len
            {
                let rest = extent.skip(block - start);
                return Ok(match rest.to {
                    Mapping::Pages { first, .. } => (Some(first), rest.len.min(max)),
                    Mapping::Hole => (None, rest.len.min(max)),
                });
            }
            if max > 1
                && let Some((&next, _)) = overlay.range(block + 1..).next()
            {
                max = max.min(next - block);
            }
        }
        tree::run(&medium, self.root, block, max)
    }

    /// Read up to `size`.
    pub fn read(&self, medium: &Medium, size: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mapping = |block, max| self.mapping(medium, block, max);
        read_mapped(medium, size, offset, buf, mapping)
    }

    /// Whether the page of a mapped block is in the tree, or will be with the batch under way.
    fn is_known(&self, block: u64) -> bool {
        let overlay = self.pending.as_ref().map(|pending| &pending.overlay);
        match overlay.and_then(|overlay| overlay.range(..=block).next_back()) {
            Some((&start, e)) if block < start + e.len => {
                e.captured || matches!(e.to, Mapping::Pages { in_tree: true, .. })
            }
            _ => true,
        }
    }

    /// Set nodes aside for the leaves of a range (F4).
    fn provide(&mut self, medium: &Medium, blocks: Range<u64>) -> Result<()> {
        for leaf in blocks.start / index::FANOUT..=(blocks.end - 1) / index::FANOUT {
            if self.pending().provided.contains(&leaf) {
                continue;
            }
            let height = tree::height_for(blocks.end.max(self.blocks_end()) - 1);
            if height == 0 {
                return Ok(()); // the root itself will point at block 0
            }
            // What the tree has by then is not known: batches and pending operations may take nodes
            // away, or add levels. At most it is a block without any node: then a leaf takes all
            // levels on top of that, and a path below the new top.
            let mut want = 2 * height - 1;
            let pending = self.pending();
            while want > 0 {
                let run = medium.alloc.pages(want)?;
                want -= run.end - run.start;
                pending.nodes.push(run);
            }
            pending.provided.insert(leaf);
        }
        Ok(())
    }

    /// Set nodes aside for what of a range has pages that are written: their pointers are to
    /// change, by a transaction that may copy nodes.
    pub fn provide_mapped(&mut self, medium: &Medium, blocks: Range<u64>) -> Result<()> {
        let (mut block, end) = (blocks.start, blocks.end.min(self.blocks_end()));
        while block < end {
            let (pointer, run) = self.mapping(medium, block, end - block)?;
            if pointer.is_some_and(|page| !page.unwritten) {
                self.provide(medium, block..block + run)?;
            }
            block += run;
        }
        Ok(())
    }

    /// Let the overlay map a range to pages. What it mapped there are holes, or these very pages.
    fn map_pages(&mut self, medium: &Medium, run: Run, in_tree: bool) {
        let Run { block, len, first } = run;
        let pending = self.pending();
        let mut before = pending.overlay.range_mut(..block + len).next_back();
        if before
            .as_ref()
            .is_some_and(|(start, e)| *start + e.len > block)
        {
            self.drop_range(medium, block..block + len, true);
            before = self.pending().overlay.range_mut(..block).next_back();
        } else {
            pending.recent = 0..0; // F5
        }
        // Sequential writing extends the last extent instead of adding one.
        if let Some((&start, last)) = before
            && let Mapping::Pages {
                first: before,
                in_tree: was,
            } = last.to
            && start + last.len == block
            && !last.captured
            && was == in_tree
            && before.unwritten == first.unwritten
            && before.page + last.len == first.page
        {
            last.len += len;
            return;
        }
        self.pending()
            .add(block, len, Mapping::Pages { first, in_tree });
    }

    /// Remove a range from the overlay. Private pages are freed (F1), unless `keep` says that the
    /// new mapping goes on using them.
    fn drop_range(&mut self, medium: &Medium, range: Range<u64>, keep: bool) {
        let Some(pending) = self.pending.as_deref_mut() else {
            return;
        };
        pending.recent = 0..0; // F5
        let overlay = &mut pending.overlay;
        while let Some((&start, &extent)) = overlay.range(..range.end).next_back() {
            let end = start + extent.len;
            if end <= range.start {
                break;
            }
            overlay.remove(&start);
            if end > range.end {
                overlay.insert(range.end, extent.skip(range.end - start));
            }
            if start < range.start {
                overlay.insert(
                    start,
                    Extent {
                        len: range.start - start,
                        ..extent
                    },
                );
            }
            let (from, to) = (start.max(range.start), end.min(range.end));
            if let Mapping::Pages { first, in_tree } = extent.to {
                let first = first.page + from - start;
                if !keep && !in_tree && !extent.captured {
                    medium.alloc.free_pages(first..first + to - from);
                }
            }
        }
    }

    fn in_flight(&self) -> Option<u64> {
        self.pending.as_ref().and_then(|pending| pending.in_flight)
    }

    /// One past the last block that may be mapped, or that the tree may lead to.
    fn blocks_end(&self) -> u64 {
        let tree = if self.root == 0 {
            0
        } else {
            index::span(self.root & 7)
        };
        let overlay = self.pending.as_ref().and_then(|pending| {
            pending
                .overlay
                .iter()
                .rev()
                .find(|(_, e)| e.to != Mapping::Hole)
        });
        tree.max(overlay.map_or(0, |(start, e)| start + e.len))
            .max(self.in_flight().unwrap_or(0))
    }

    /// Whether bytes behind the end of the file are in a page that a live record stores to.
    pub fn tail_is_logged(&self, medium: &Medium, size: u64) -> Result<bool> {
        if size.is_multiple_of(PAGE) {
            return Ok(false);
        }
        let (pointer, _) = self.mapping(medium, size / PAGE, 1)?;
        Ok(pointer.is_some_and(|p| medium.logged.has(p.page..p.page + 1)))
    }

    /// Find data or a hole at or after an offset.
    pub fn seek(&self, medium: &Medium, size: u64, offset: u64, what: SeekFor) -> Result<u64> {
        seek_mapped(size, offset, what, |block, max| {
            self.mapping(medium, block, max)
        })
    }
}

/// What blocks are mapped to, from one on, and for how many blocks (at most a bound) that goes on.
type Mapped = (Option<Pointer>, u64);

/// Read up to `size` what blocks are mapped to.
fn read_mapped(
    medium: &Medium,
    size: u64,
    offset: u64,
    buf: &mut [u8],
    mapping: impl Fn(u64, u64) -> Result<Mapped>,
) -> Result<usize> {
    if offset >= size {
        return Ok(0);
    }
    let len = (buf.len() as u64).min(size - offset) as usize;
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let (block, inside) = (at / PAGE, at % PAGE);
        let want = (inside + (len - done) as u64).div_ceil(PAGE);
        let (pointer, run) = mapping(block, want)?;
        let n = ((run * PAGE - inside) as usize).min(len - done);
        match pointer {
            Some(p) if !p.unwritten => medium
                .pool
                .try_read(page_at(p.page) + inside, &mut buf[done..done + n])
                .map_err(failed)?,
            _ => buf[done..done + n].fill(0),
        }
        done += n;
    }
    Ok(len)
}

/// Find data or a hole at or after an offset, in what blocks are mapped to.
fn seek_mapped(
    size: u64,
    offset: u64,
    what: SeekFor,
    mapping: impl Fn(u64, u64) -> Result<Mapped>,
) -> Result<u64> {
    if offset >= size {
        return Err(Error::Errno(Errno::NXIO));
    }
    let end = size.div_ceil(PAGE);
    let mut block = offset / PAGE;
    while block < end {
        let (pointer, run) = mapping(block, end - block)?;
        let data = pointer.is_some_and(|p| !p.unwritten);
        if data == (what == SeekFor::Data) {
            return Ok(offset.max(block * PAGE));
        }
        block += run;
    }
    match what {
        SeekFor::Hole => Ok(size),
        SeekFor::Data => Err(Error::Errno(Errno::NXIO)),
    }
}

/// A file of the consistent view, for who looks at that without a lock.
pub struct Consistent<'a> {
    medium: &'a Medium,
    size: u64,
    root: u64,
}

impl<'a> Consistent<'a> {
    /// The file that an inode is.
    pub fn of(medium: &'a Medium, ino: u64) -> Consistent<'a> {
        let word = |field| medium.pool.load(line_at(ino) + field);
        Consistent {
            medium,
            size: word(inode::SIZE),
            root: word(inode::ROOT),
        }
    }

    /// Read.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mapping = |block, max| tree::run(&self.medium, self.root, block, max);
        read_mapped(self.medium, self.size, offset, buf, mapping)
    }

    /// Its size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where in the pool the bytes of a range are, by offsets and lengths; `None` if not all of it
    /// is written, in the file or right behind its end in the last block: there bytes are void
    /// (F3).
    pub fn places(&self, offset: u64, len: u64) -> Result<Option<Vec<(u64, u64)>>> {
        let room = self.size.checked_next_multiple_of(PAGE);
        let fits = |&end: &u64| offset <= self.size && room.is_some_and(|room| end <= room);
        let end = offset.checked_add(len).filter(fits);
        let (Some(end), mut at, mut places) = (end, offset, Vec::new()) else {
            return Ok(None);
        };
        while at < end {
            let (pointer, _) = tree::run(&self.medium, self.root, at / PAGE, 1)?;
            let Some(page) = pointer.filter(|p| !p.unwritten) else {
                return Ok(None);
            };
            let len = (PAGE - at % PAGE).min(end - at);
            places.push((page_at(page.page) + at % PAGE, len));
            at += len;
        }
        Ok(Some(places))
    }

    /// Find data or a hole at or after an offset.
    pub fn seek(&self, offset: u64, what: SeekFor) -> Result<u64> {
        let mapping = |block, max| tree::run(&self.medium, self.root, block, max);
        seek_mapped(self.size, offset, what, mapping)
    }
}

/// The size, for readers without a lock.
pub fn size(inode: &InodeState) -> u64 {
    inode.attrs.size.load(Acquire)
}

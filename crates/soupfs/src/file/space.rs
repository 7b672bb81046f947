//! Size and space: truncating, reserving, punching holes, zeroing.

use super::overlay::Mapping;
use super::{File, Plan};
use crate::fault::{Fault, injected};
use crate::image::Pointer;
use crate::inode_state::InodeState;
use crate::layout::{PAGE, index, page_at};
use crate::medium::Medium;
use crate::tree::Run;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use vfs::Result;

/// One past the last block there can be.
const BLOCKS_MAX: u64 = 1 << 36;

impl File {
    /// Make a range a hole. Returns the number of pages that were mapped there.
    fn cut(&mut self, medium: &Medium, range: Range<u64>) -> Result<u64> {
        let mut mapped = 0;
        let mut at = range.start;
        let end = range.end.min(self.blocks_end());
        while at < end {
            let (pointer, run) = self.mapping(medium, at, end - at)?;
            mapped += if pointer.is_some() { run } else { 0 };
            at += run;
        }
        self.drop_range(medium, range.clone(), false);
        // Only where the tree may lead to something, which was looked at: a root that cannot be
        // read is an error above.
        if range.start < end && (self.root != 0 || self.in_flight().is_some()) {
            let len = range.end - range.start;
            self.pending().add(range.start, len, Mapping::Hole);
        }
        Ok(mapped)
    }

    /// Zero the void bytes of the last block up to the new size, or to where writing begins (F3).
    pub(super) fn zero_tail(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        size: u64,
        new: u64,
    ) -> Result<()> {
        if injected(Fault::TailNotZeroed) {
            return Ok(());
        }
        self.zero_bytes(medium, inode, size..size.next_multiple_of(PAGE).min(new))
    }

    /// Zero bytes within one block, where it has any.
    fn zero_bytes(&mut self, medium: &Medium, inode: &InodeState, bytes: Range<u64>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let (Some(p), _) = self.mapping(medium, bytes.start / PAGE, 1)?
            && !p.unwritten
        {
            let at = page_at(p.page) + bytes.start % PAGE;
            let len = bytes.end - bytes.start;
            medium.alloc.back(at, len)?;
            let block = bytes.start / PAGE;
            self.mark(medium, inode, block..block + 1);
            medium.pool.zero(at, len);
            self.pending().dirty.add(at..at + len);
        }
        Ok(())
    }

    /// Set the size. Returns how many blocks were cut off.
    pub fn truncate(&mut self, medium: &Medium, inode: &InodeState, size: u64) -> Result<u64> {
        let old = inode.attrs.size.load(Relaxed);
        let mut mapped = 0;
        if size < old {
            mapped = self.cut(medium, size.div_ceil(PAGE)..BLOCKS_MAX)?;
            inode.attrs.pages.fetch_sub(mapped as i64, Relaxed);
        } else if size > old {
            self.zero_tail(medium, inode, old, size)?;
        }
        inode.attrs.size.store(size, Release);
        Ok(mapped)
    }

    /// Map the holes in a range of blocks to pages that read as zeros, all of them or none; returns
    /// which they were.
    pub fn reserve(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        blocks: Range<u64>,
    ) -> Result<Vec<Range<u64>>> {
        let mut reserved = Vec::new();
        match self.fill_holes(medium, inode, blocks, &mut reserved) {
            Ok(()) => Ok(reserved),
            Err(e) => {
                for blocks in reserved {
                    self.give_up(medium, inode, blocks)?;
                }
                Err(e)
            }
        }
    }

    /// Blocks that were reserved are holes again, but for those that were written since. Returns
    /// how many.
    pub fn give_up(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        blocks: Range<u64>,
    ) -> Result<u64> {
        let (mut block, mut cut) = (blocks.start, 0);
        while block < blocks.end {
            let (pointer, run) = self.mapping(medium, block, blocks.end - block)?;
            if pointer.is_some_and(|p| p.unwritten) {
                cut += self.cut(medium, block..block + run)?;
            }
            block += run;
        }
        inode.attrs.pages.fetch_sub(cut as i64, Relaxed);
        Ok(cut)
    }

    /// The size becomes at least `end`.
    pub fn extend(&mut self, medium: &Medium, inode: &InodeState, end: u64) -> Result<()> {
        let size = inode.attrs.size.load(Relaxed);
        if end > size {
            self.zero_tail(medium, inode, size, end)?;
            inode.attrs.size.store(end, Release);
        }
        Ok(())
    }

    /// Make sure that what [`File::void`] zeroes in place, and what [`File::extend`] does, has
    /// blocks of the host.
    pub fn back_ends(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        range: Range<u64>,
    ) -> Result<()> {
        let size = inode.attrs.size.load(Relaxed);
        for block in [range.start / PAGE, range.end / PAGE, size / PAGE] {
            if let (Some(p), _) = self.mapping(medium, block, 1)?
                && !p.unwritten
            {
                medium.alloc.back(page_at(p.page), PAGE)?;
            }
        }
        Ok(())
    }

    /// Map the holes in a range to pages that read as zeros; `reserved` is told which they were.
    fn fill_holes(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        blocks: Range<u64>,
        reserved: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let (mut block, end) = (blocks.start, blocks.end);
        while block < end {
            let (pointer, run) = self.mapping(medium, block, end - block)?;
            if pointer.is_some() {
                block += run;
                continue;
            }
            let run = run.min(index::FANOUT);
            self.provide(medium, block..block + run)?;
            let pages = medium.alloc.pages(run)?;
            let run = pages.end - pages.start;
            inode.attrs.pages.fetch_add(run as i64, Relaxed);
            let first = Pointer {
                page: pages.start,
                unwritten: true,
            };
            let len = run;
            self.map_pages(medium, Run { block, len, first }, false);
            match reserved.last_mut() {
                Some(last) if last.end == block => last.end += run,
                _ => reserved.push(block..block + run),
            }
            block += run;
        }
        Ok(())
    }

    /// Zero the parts of blocks at the ends of a range, in place unless there is a plan; returns
    /// the whole blocks between them.
    fn zero_ends(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        range: Range<u64>,
        plan: Option<Plan>,
    ) -> Result<Range<u64>> {
        let (first, end) = (range.start.div_ceil(PAGE), range.end / PAGE);
        if let Some(plan) = plan {
            self.adopt(medium, inode, plan);
            return Ok(first..end.max(first));
        }
        if first > end {
            self.zero_bytes(medium, inode, range)?; // within one block
            return Ok(0..0);
        }
        self.zero_bytes(medium, inode, range.start..first * PAGE)?;
        self.zero_bytes(medium, inode, end * PAGE..range.end)?;
        Ok(first..end)
    }

    /// Whole blocks become holes, parts of blocks are zeroed, as planned. Returns how many blocks
    /// were cut.
    pub fn punch(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        range: Range<u64>,
        ends: Option<Plan>,
    ) -> Result<u64> {
        let blocks = self.zero_ends(medium, inode, range, ends)?;
        if blocks.is_empty() {
            return Ok(0);
        }
        let mapped = self.cut(medium, blocks)?;
        inode.attrs.pages.fetch_sub(mapped as i64, Relaxed);
        Ok(mapped)
    }

    /// Whole blocks keep their pages, as unwritten, parts of blocks are zeroed, as planned: it
    /// takes no further space. Returns how many blocks were written before.
    pub fn void(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        range: Range<u64>,
        ends: Option<Plan>,
    ) -> Result<u64> {
        let Range { mut start, end } = self.zero_ends(medium, inode, range, ends)?;
        let end = end.min(self.blocks_end());
        let mut void = 0;
        while start < end {
            let (pointer, run) = self.mapping(medium, start, end - start)?;
            if let Some(page) = pointer.filter(|page| !page.unwritten) {
                let known = self.is_known(start);
                if known && !injected(Fault::ZeroedUnmarked) {
                    // Whoever writes there next does not look at the tree, which has the page as
                    // written until a batch has taken this up (F6).
                    self.mark(medium, inode, start..start + run);
                }
                let first = Pointer {
                    unwritten: true,
                    ..page
                };
                let (block, len) = (start, run);
                self.map_pages(medium, Run { block, len, first }, known);
                void += run;
            }
            start += run;
        }
        Ok(void)
    }
}

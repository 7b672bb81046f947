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
//! - F4 For every leaf that the overlay will need in the tree, nodes have been set aside.
//! - F5 The run that was written to last is remembered until anything is mapped otherwise.
//! - F6 Before a byte is stored in a page that the consistent view leads to, or will with the batch
//!   under way, the bit of its block is set in the inode on the medium ([`crate::inherited`]): by
//!   the write, or by what voided a page that the consistent view has as written.

use crate::attributes::Attributes;
use crate::dirty::Dirty;
use crate::fault::{Fault, injected};
use crate::image::Pointer;
use crate::inherited::bits_of;
use crate::inode::Inode;
use crate::layout::{FILE_MAX, PAGE, index, inode as layout, line_at, page_at};
use crate::tree;
use crate::volume::Volume;
use pmem::Streaming;
use schedule::point;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vfs::{Errno, Error, Result, SeekFor};

/// One past the last block there can be.
const BLOCKS_MAX: u64 = 1 << 36;
/// Blocks whose pages are looked up at once when a file is overwritten from one block to the next.
const AHEAD: u64 = 64;
/// At most so many bytes behind a write are prefetched before the next one.
const ASK_AHEAD: u64 = PAGE / 2;
/// Files up to here are taken to be in a near cache ...
const NEAR: u64 = 1 << 20;
/// ... and up to here in a far one.
const FAR: u64 = 16 << 20;
/// So many bytes in sequence go around the caches sooner than their lines come into them.
const STREAM_MIN: usize = 16 << 10;

/// What an overlay extent maps its blocks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// Consecutive pages from this one on. `in_tree`: the tree has them already, as unwritten.
    Pages {
        /// Page of the first block.
        first: Pointer,
        /// The tree leads to it, too.
        in_tree: bool,
    },
    /// Nothing, whatever the tree says.
    Hole,
}

/// An extent of the overlay; its first block is its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Blocks.
    pub len: u64,
    /// What they are mapped to.
    pub to: Mapping,
    /// The persister is putting it into the tree.
    pub captured: bool,
}

/// The contents of a regular file.
pub struct File {
    /// Root word of the consistent tree.
    root: u64,
    /// Absent while the tree alone says what the file holds.
    pending: Option<Box<Pending>>,
}

/// What of a file is not in the consistent view.
#[derive(Default)]
struct Pending {
    overlay: BTreeMap<u64, Extent>,
    /// Set when an extent is added, cleared when all are captured: a file with many that is
    /// captured again and again is not searched each time.
    uncaptured: bool,
    /// A batch has captured extents: the tree will have them, whatever the overlay says by now, and
    /// may lead to blocks up to this one.
    in_flight: Option<u64>,
    /// What of the pool was written in place, to be flushed.
    dirty: Dirty,
    /// Leaves (block / 512) for which nodes are set aside.
    provided: BTreeSet<u64>,
    /// The nodes.
    nodes: Vec<Range<u64>>,
    /// Blocks that were found to be mapped to consecutive pages, from this one on (F5).
    recent: Range<u64>,
    recent_page: u64,
    /// Bits of the blocks that were written in place since the last capture (F6).
    since: u64,
    /// Bits that the inode has on the medium: of `since`, of a batch under way, and `inherited`.
    marked: u64,
    /// Bits that the inode had when it was loaded.
    inherited: u64,
    /// Where in the file a write ended last: if the next one begins there, one more is likely.
    written_to: u64,
}

/// What the persister takes from a file.
pub struct FileCapture {
    /// Extents in the order in which they go into the tree: first block and extent.
    pub extents: Vec<(u64, Extent)>,
    /// Ranges of the pool to flush.
    pub dirty: Vec<Range<u64>>,
    /// Pages for index nodes; what is not used goes back.
    pub nodes: Vec<Range<u64>>,
    /// Root word of the consistent tree.
    pub root: u64,
    /// Where a killed process may have left bytes that are not durable.
    pub inherited: u64,
}

impl FileCapture {
    /// The file was captured once more before the batch was built.
    pub fn append(&mut self, later: FileCapture) {
        self.extents.extend(later.extents);
        self.dirty.extend(later.dirty);
        self.nodes.extend(later.nodes);
        self.inherited |= later.inherited;
    }
}

impl Extent {
    /// The part of an extent from its `skip`th block on.
    fn skip(mut self, skip: u64) -> Extent {
        self.len -= skip;
        if let Mapping::Pages { first, .. } = &mut self.to {
            first.page += skip;
        }
        self
    }
}

impl Pending {
    /// What a block is mapped to, and for how many blocks, if that is remembered.
    #[inline]
    fn recent(&self, block: u64) -> Option<(Pointer, u64)> {
        let page = self.recent_page + block.checked_sub(self.recent.start)?;
        let pointer = Pointer {
            page,
            unwritten: false,
        };
        (block < self.recent.end).then(|| (pointer, self.recent.end - block))
    }

    /// Map blocks that the overlay says nothing of.
    fn add(&mut self, block: u64, len: u64, to: Mapping) {
        self.uncaptured = true;
        let captured = false;
        self.overlay.insert(block, Extent { len, to, captured });
    }

    /// Blocks are about to be written in place (F6). What no batch ever took up is not reachable.
    #[cold]
    fn mark(&mut self, volume: &Volume, inode: &Inode, bits: u64) {
        self.since |= bits;
        if volume.marks_bytes && !inode.is_fresh() {
            self.set_marked(volume, inode, self.marked | bits);
        }
    }

    fn set_marked(&mut self, volume: &Volume, inode: &Inode, bits: u64) {
        if self.marked != bits {
            self.marked = bits;
            let at = line_at(inode.ino) + layout::UNFLUSHED;
            volume.pool.store(at, bits);
        }
    }
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
    fn mark(&mut self, volume: &Volume, inode: &Inode, blocks: Range<u64>) {
        let bits = bits_of(blocks);
        let pending = self.pending();
        if bits & !pending.since != 0 {
            pending.mark(volume, inode, bits);
        }
    }

    /// The bits that the inode has on the medium (F6).
    pub fn marked(&self) -> u64 {
        self.pending.as_ref().map_or(0, |pending| pending.marked)
    }

    /// What `block` is mapped to, and for how many blocks (at most `max`) that goes on.
    fn mapping(&self, volume: &Volume, block: u64, max: u64) -> Result<(Option<Pointer>, u64)> {
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
        tree::run(&*volume.pool, &volume.image(), self.root, block, max)
    }

    /// Read up to `size`.
    pub fn read(&self, volume: &Volume, size: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if offset >= size {
            return Ok(0);
        }
        let len = (buf.len() as u64).min(size - offset) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (block, inside) = (at / PAGE, at % PAGE);
            let want = (inside + (len - done) as u64).div_ceil(PAGE);
            let (pointer, run) = self.mapping(volume, block, want)?;
            let n = ((run * PAGE - inside) as usize).min(len - done);
            match pointer {
                Some(p) if !p.unwritten => volume
                    .pool
                    .read(page_at(p.page) + inside, &mut buf[done..done + n]),
                _ => buf[done..done + n].fill(0),
            }
            done += n;
        }
        Ok(len)
    }

    /// Write; returns the bytes written, fewer only when space ran out or the file is to be
    /// persisted first, and what is to be dropped before anyone else may read them. The caller has
    /// checked the range.
    pub fn write(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        offset: u64,
        data: &[u8],
    ) -> Result<(usize, Option<Streaming>)> {
        let size = inode.attrs.size.load(Relaxed);
        if data.is_empty() {
            return Ok((0, None));
        }
        let mut streaming = None;
        if offset > size {
            self.zero_tail(volume, inode, size, offset)?;
        }
        let mut done = 0;
        while done < data.len() {
            match self.write_run(volume, inode, offset + done as u64, &data[done..]) {
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
        volume: &Volume,
        inode: &Inode,
        at: u64,
        data: &[u8],
    ) -> Result<(usize, Option<Streaming>)> {
        let (block, inside) = (at / PAGE, at % PAGE);
        let want = (inside + data.len() as u64).div_ceil(PAGE);
        let written_to = |pending: &Pending| pending.written_to;
        let sequential = self.pending.as_deref().map_or(0, written_to) == at;
        let goes_on = |pending: &Pending| pending.recent.end == block && block > 0;
        let ahead = self.pending.as_deref().is_some_and(goes_on);
        let ask = if ahead { want.max(AHEAD) } else { want };
        let (pointer, run) = self.mapping(volume, block, ask)?;
        let (first, run) = match (pointer, run.min(want)) {
            (Some(p), wanted) if !p.unwritten => {
                let n = ((wanted * PAGE - inside) as usize).min(data.len());
                let to = page_at(p.page) + inside;
                volume.alloc.back(to, n as u64)?;
                self.mark(volume, inode, block..(at + n as u64).div_ceil(PAGE));
                point("write: marked and not stored");
                let streaming = put(volume, at, to, &data[..n], sequential);
                let pending = self.pending();
                if streaming.is_none() || !injected(Fault::StreamedUnflushed) {
                    pending.dirty.add(to..to + n as u64);
                }
                if pending.recent(block).is_none() {
                    (pending.recent, pending.recent_page) = (block..block + run, p.page);
                }
                let next = pending.recent((at + n as u64) / PAGE);
                if sequential && streaming.is_none() && next.is_some() {
                    volume
                        .pool
                        .prefetch_range_for_write(to + n as u64, ASK_AHEAD.min(n as u64));
                }
                return Ok((n, streaming));
            }
            (Some(p), run) => {
                // Into reserved space: the tree keeps the page, only the flag goes.
                let known = self.is_known(block);
                let n = ((run * PAGE - inside) as usize).min(data.len());
                volume.alloc.back(page_at(p.page), run * PAGE)?;
                let streaming = fill(volume, at, p.page, run, &data[..n], sequential);
                self.map_pages(
                    volume,
                    block,
                    run,
                    Pointer {
                        unwritten: false,
                        ..p
                    },
                    known,
                );
                return Ok((n, streaming));
            }
            (None, run) => {
                self.provide(volume, block..block + run)?;
                let pages = volume.alloc.pages(run)?;
                inode
                    .attrs
                    .pages
                    .fetch_add((pages.end - pages.start) as i64, Relaxed);
                (pages.start, pages.end - pages.start)
            }
        };
        let n = ((run * PAGE - inside) as usize).min(data.len());
        let streaming = fill(volume, at, first, run, &data[..n], sequential);
        self.map_pages(
            volume,
            block,
            run,
            Pointer {
                page: first,
                unwritten: false,
            },
            false,
        );
        Ok((n, streaming))
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
    fn provide(&mut self, volume: &Volume, blocks: Range<u64>) -> Result<()> {
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
                let run = volume.alloc.pages(want)?;
                want -= run.end - run.start;
                pending.nodes.push(run);
            }
            pending.provided.insert(leaf);
        }
        Ok(())
    }

    /// Let the overlay map a range to pages. What it mapped there are holes, or these very pages.
    fn map_pages(&mut self, volume: &Volume, block: u64, len: u64, first: Pointer, in_tree: bool) {
        let pending = self.pending();
        let mut before = pending.overlay.range_mut(..block + len).next_back();
        if before
            .as_ref()
            .is_some_and(|(start, e)| *start + e.len > block)
        {
            self.drop_range(volume, block..block + len, true);
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
    fn drop_range(&mut self, volume: &Volume, range: Range<u64>, keep: bool) {
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
                    volume.alloc.free_pages(first..first + to - from);
                }
            }
        }
    }

    /// Make a range a hole. Returns the number of pages that were mapped there.
    fn cut(&mut self, volume: &Volume, range: Range<u64>) -> Result<u64> {
        let mut mapped = 0;
        let mut at = range.start;
        let end = range.end.min(self.blocks_end());
        while at < end {
            let (pointer, run) = self.mapping(volume, at, end - at)?;
            mapped += if pointer.is_some() { run } else { 0 };
            at += run;
        }
        self.drop_range(volume, range.clone(), false);
        // Only where the tree may lead to something, which was looked at: a root that cannot be
        // read is an error above.
        if range.start < end && (self.root != 0 || self.in_flight().is_some()) {
            let len = range.end - range.start;
            self.pending().add(range.start, len, Mapping::Hole);
        }
        Ok(mapped)
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

    /// Zero the void bytes of the last block up to the new size, or to where writing begins (F3).
    fn zero_tail(&mut self, volume: &Volume, inode: &Inode, size: u64, new: u64) -> Result<()> {
        if injected(Fault::TailNotZeroed) {
            return Ok(());
        }
        self.zero_bytes(volume, inode, size..size.next_multiple_of(PAGE).min(new))
    }

    /// Zero bytes within one block, where it has any.
    fn zero_bytes(&mut self, volume: &Volume, inode: &Inode, bytes: Range<u64>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let (Some(p), _) = self.mapping(volume, bytes.start / PAGE, 1)?
            && !p.unwritten
        {
            let at = page_at(p.page) + bytes.start % PAGE;
            let len = bytes.end - bytes.start;
            volume.alloc.back(at, len)?;
            let block = bytes.start / PAGE;
            self.mark(volume, inode, block..block + 1);
            volume.pool.zero(at, len);
            self.pending().dirty.add(at..at + len);
        }
        Ok(())
    }

    /// Set the size. Returns how many blocks were cut off.
    pub fn truncate(&mut self, volume: &Volume, inode: &Inode, size: u64) -> Result<u64> {
        let old = inode.attrs.size.load(Relaxed);
        let mut mapped = 0;
        if size < old {
            mapped = self.cut(volume, size.div_ceil(PAGE)..BLOCKS_MAX)?;
            inode.attrs.pages.fetch_sub(mapped as i64, Relaxed);
        } else if size > old {
            self.zero_tail(volume, inode, old, size)?;
        }
        inode.attrs.size.store(size, Release);
        Ok(mapped)
    }

    /// Map the holes in a range of blocks to pages that read as zeros, all of them or none; returns
    /// which they were.
    pub fn reserve(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        blocks: Range<u64>,
    ) -> Result<Vec<Range<u64>>> {
        let mut reserved = Vec::new();
        match self.fill_holes(volume, inode, blocks, &mut reserved) {
            Ok(()) => Ok(reserved),
            Err(e) => {
                for blocks in reserved {
                    self.give_up(volume, inode, blocks)?;
                }
                Err(e)
            }
        }
    }

    /// Blocks that were reserved are holes again, but for those that were written since. Returns
    /// how many.
    pub fn give_up(&mut self, volume: &Volume, inode: &Inode, blocks: Range<u64>) -> Result<u64> {
        let (mut block, mut cut) = (blocks.start, 0);
        while block < blocks.end {
            let (pointer, run) = self.mapping(volume, block, blocks.end - block)?;
            if pointer.is_some_and(|p| p.unwritten) {
                cut += self.cut(volume, block..block + run)?;
            }
            block += run;
        }
        inode.attrs.pages.fetch_sub(cut as i64, Relaxed);
        Ok(cut)
    }

    /// The size becomes at least `end`.
    pub fn extend(&mut self, volume: &Volume, inode: &Inode, end: u64) -> Result<()> {
        let size = inode.attrs.size.load(Relaxed);
        if end > size {
            self.zero_tail(volume, inode, size, end)?;
            inode.attrs.size.store(end, Release);
        }
        Ok(())
    }

    /// Make sure that what [`File::void`] zeroes in place, and what [`File::extend`] does, has
    /// blocks of the host.
    pub fn back_ends(&mut self, volume: &Volume, inode: &Inode, range: Range<u64>) -> Result<()> {
        let size = inode.attrs.size.load(Relaxed);
        for block in [range.start / PAGE, range.end / PAGE, size / PAGE] {
            if let (Some(p), _) = self.mapping(volume, block, 1)?
                && !p.unwritten
            {
                volume.alloc.back(page_at(p.page), PAGE)?;
            }
        }
        Ok(())
    }

    /// Map the holes in a range to pages that read as zeros; `reserved` is told which they were.
    fn fill_holes(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        blocks: Range<u64>,
        reserved: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let (mut block, end) = (blocks.start, blocks.end);
        while block < end {
            let (pointer, run) = self.mapping(volume, block, end - block)?;
            if pointer.is_some() {
                block += run;
                continue;
            }
            let run = run.min(index::FANOUT);
            self.provide(volume, block..block + run)?;
            let pages = volume.alloc.pages(run)?;
            let run = pages.end - pages.start;
            inode.attrs.pages.fetch_add(run as i64, Relaxed);
            let first = Pointer {
                page: pages.start,
                unwritten: true,
            };
            self.map_pages(volume, block, run, first, false);
            match reserved.last_mut() {
                Some(last) if last.end == block => last.end += run,
                _ => reserved.push(block..block + run),
            }
            block += run;
        }
        Ok(())
    }

    /// Zero the parts of blocks at the ends of a range; returns the whole blocks between them.
    fn zero_ends(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        range: Range<u64>,
    ) -> Result<Range<u64>> {
        let (first, end) = (range.start.div_ceil(PAGE), range.end / PAGE);
        if first > end {
            self.zero_bytes(volume, inode, range)?; // within one block
            return Ok(0..0);
        }
        self.zero_bytes(volume, inode, range.start..first * PAGE)?;
        self.zero_bytes(volume, inode, end * PAGE..range.end)?;
        Ok(first..end)
    }

    /// Whole blocks become holes, parts of blocks are zeroed. Returns how many blocks were cut.
    pub fn punch(&mut self, volume: &Volume, inode: &Inode, range: Range<u64>) -> Result<u64> {
        let blocks = self.zero_ends(volume, inode, range)?;
        if blocks.is_empty() {
            return Ok(0);
        }
        let mapped = self.cut(volume, blocks)?;
        inode.attrs.pages.fetch_sub(mapped as i64, Relaxed);
        Ok(mapped)
    }

    /// Whole blocks keep their pages, as unwritten, parts of blocks are zeroed: it takes no space.
    /// Returns how many blocks were written before.
    pub fn void(&mut self, volume: &Volume, inode: &Inode, range: Range<u64>) -> Result<u64> {
        let Range { mut start, end } = self.zero_ends(volume, inode, range)?;
        let end = end.min(self.blocks_end());
        let mut void = 0;
        while start < end {
            let (pointer, run) = self.mapping(volume, start, end - start)?;
            if let Some(page) = pointer.filter(|page| !page.unwritten) {
                let known = self.is_known(start);
                if known {
                    // Whoever writes there next does not look at the tree, which has the page as
                    // written until a batch has taken this up (F6).
                    self.mark(volume, inode, start..start + run);
                }
                let unwritten = Pointer {
                    unwritten: true,
                    ..page
                };
                self.map_pages(volume, start, run, unwritten, known);
                void += run;
            }
            start += run;
        }
        Ok(void)
    }

    /// Find data or a hole at or after an offset.
    pub fn seek(&self, volume: &Volume, size: u64, offset: u64, what: SeekFor) -> Result<u64> {
        if offset >= size {
            return Err(Error::Errno(Errno::NXIO));
        }
        let end = size.div_ceil(PAGE);
        let mut block = offset / PAGE;
        while block < end {
            let (pointer, run) = self.mapping(volume, block, end - block)?;
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

    /// Take the nodes set aside.
    pub fn take_reserve(&mut self) -> Vec<Range<u64>> {
        let Some(pending) = &mut self.pending else {
            return Vec::new();
        };
        pending.provided.clear();
        std::mem::take(&mut pending.nodes)
    }

    /// Take everything that is to be persisted and was not captured before.
    pub fn capture(&mut self) -> Option<FileCapture> {
        let nodes = self.take_reserve();
        let end = self.blocks_end();
        let pending = self.pending.as_mut()?;
        if !pending.overlay.is_empty() {
            pending.in_flight = Some(end);
        }
        pending.since = 0;
        let inherited = std::mem::take(&mut pending.inherited);
        let mut extents = Vec::new();
        if std::mem::take(&mut pending.uncaptured) {
            let new = pending.overlay.iter_mut().filter(|(_, e)| !e.captured);
            extents.extend(new.map(|(&block, extent)| {
                extent.captured = true;
                (block, *extent)
            }));
        }
        debug_assert!(pending.overlay.values().all(|e| e.captured));
        Some(FileCapture {
            extents,
            dirty: pending.dirty.take(),
            nodes,
            root: self.root,
            inherited,
        })
    }

    /// What was captured is durable, and the extents are in the tree, whose root word is now
    /// `root`.
    pub fn persisted(&mut self, volume: &Volume, inode: &Inode, root: u64) {
        self.root = root;
        let Some(pending) = &mut self.pending else {
            return;
        };
        pending.overlay.retain(|_, e| !e.captured);
        pending.in_flight = None;
        pending.set_marked(volume, inode, pending.marked & pending.since);
        if pending.overlay.is_empty() && pending.dirty.is_empty() && pending.nodes.is_empty() {
            self.pending = None;
        }
    }

    /// Whether so much was overwritten in so many places that the file is to be persisted.
    pub fn has_many_dirty(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| pending.dirty.is_full())
    }

    /// Private space of a file that is being freed, and its root word. `false` in the second
    /// place: nothing of it was ever captured.
    pub fn tear_down(&mut self, volume: &Volume) -> u64 {
        if let Some(pending) = self.pending.take() {
            let Pending { overlay, nodes, .. } = *pending;
            (nodes.into_iter()).for_each(|run| volume.alloc.free_pages(run));
            for extent in overlay.into_values() {
                if let Mapping::Pages {
                    first,
                    in_tree: false,
                } = extent.to
                {
                    debug_assert!(!extent.captured, "freed while a batch holds it");
                    volume.alloc.free_pages(first.page..first.page + extent.len);
                }
            }
        }
        std::mem::take(&mut self.root)
    }
}

/// Put data that a file has at `offset` into fresh pages, zeros around it.
fn fill(
    volume: &Volume,
    offset: u64,
    first: u64,
    run: u64,
    data: &[u8],
    sequential: bool,
) -> Option<Streaming> {
    let at = page_at(first);
    let inside = offset % PAGE;
    let end = inside + data.len() as u64;
    if inside > 0 {
        volume.pool.zero(at, inside);
    }
    if end < run * PAGE {
        volume.pool.zero(at + end, run * PAGE - end);
    }
    let streaming = put(volume, offset, at + inside, data, sequential);
    if sequential && streaming.is_none() {
        // What is mapped next is likely what follows.
        let next = at + run * PAGE;
        volume
            .pool
            .prefetch_range_for_write(next, ASK_AHEAD.min(data.len() as u64));
    }
    streaming
}

/// Put data that a file has at `offset` into its place in the pool: through the caches if they may
/// have the place already, or are to have it when it is read, and if that takes no longer.
fn put(volume: &Volume, offset: u64, to: u64, data: &[u8], sequential: bool) -> Option<Streaming> {
    let end = offset + data.len() as u64;
    let long = data.len() >= STREAM_MIN && end > NEAR;
    let scattered = !sequential && data.len() as u64 >= PAGE && end > FAR;
    if long || scattered {
        return Some(volume.pool.write_streaming(to, data));
    }
    volume.pool.write(to, data);
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

/// The size, for readers without a lock.
pub fn size(inode: &Inode) -> u64 {
    inode.attrs.size.load(Acquire)
}

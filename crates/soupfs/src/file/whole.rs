//! Bytes that are stored where the consistent view shows nothing: so a change of them is there with
//! its commit, as a whole, or not at all (mode `strong`).
//!
//! ```text
//! plan    all space is taken: it may fail, and nothing has changed
//! store   bytes go to their pages, which nobody is led to, or behind the end of the file
//! adopt   the latest view leads to them: it cannot fail
//! ```
//!
//! A few bytes of blocks with contents go to no page: the record of the commit has them, and the
//! commit stores them. While that record is live nobody stores to these pages in place (J2): what
//! would is done otherwise ([`crate::logged`]).

use super::File;
use super::write::{Piece, put};
use crate::fault::{Fault, injected};
use crate::image::Pointer;
use crate::inode_state::InodeState;
use crate::layout::{PAGE, page_at};
use crate::medium::Medium;
use crate::tree::Run;
use pmem::Streaming;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use vfs::Result;

/// Zeros, for parts of a block.
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// Where the bytes of a change go.
#[derive(Default)]
#[must_use]
pub struct Plan {
    /// In ascending order.
    parts: Vec<Part>,
    /// The file ends here, unless it is longer.
    end: u64,
}

/// Consecutive blocks that are changed in the same way.
struct Part {
    /// Bytes of the file that change.
    bytes: Range<u64>,
    /// The pages that they go to.
    run: Run,
    how: How,
    /// If they are logged: what is stored of them.
    logged: Vec<u8>,
}

/// What becomes of the blocks of a part.
#[derive(Clone, Copy)]
enum How {
    /// They keep their pages: the bytes are void, or nothing on the medium leads to the page.
    Stay,
    /// They get pages that they have reserved, and that the tree may have.
    Reserved { in_tree: bool },
    /// The same, and they get other pages, as a live record stores to these.
    Replaced,
    /// They were holes.
    Fresh,
    /// They get other pages, and keep the rest of what is in these, from this one on.
    Copied { old: u64 },
    /// They keep their pages, and the record has the bytes.
    Logged,
}

/// What is to be planned.
#[derive(Clone, Copy)]
struct Wanted {
    /// Also where the file has no bytes yet.
    all: bool,
    /// The record may have the bytes: they are few in all.
    may_log: bool,
}

impl How {
    /// Whether it takes pages.
    fn takes_pages(self) -> bool {
        matches!(self, How::Fresh | How::Replaced | How::Copied { .. })
    }
}

impl Part {
    /// Where in the pool a byte of the file goes.
    fn place(&self, at: u64) -> u64 {
        page_at(self.run.first.page) + at - self.run.block * PAGE
    }

    /// Bytes of its first block that do not change, and of its last.
    fn edges(&self) -> [Range<u64>; 2] {
        let Run { block, len, .. } = self.run;
        let (start, end) = (block * PAGE, (block + len) * PAGE);
        [start..self.bytes.start, self.bytes.end..end]
    }

    /// Store what is in its first and its last page besides.
    fn store_edges(&self, medium: &Medium) {
        for edge in self.edges().into_iter().filter(|edge| !edge.is_empty()) {
            let (to, len) = (self.place(edge.start), edge.end - edge.start);
            match self.how {
                How::Stay | How::Logged => {}
                How::Reserved { .. } | How::Replaced | How::Fresh => medium.pool.zero(to, len),
                How::Copied { old } => {
                    let from = page_at(old) + edge.start - self.run.block * PAGE;
                    medium.pool.copy(from, to, len);
                }
            }
        }
    }
}

impl Plan {
    /// Store bytes of the file, from `at` on. What comes back is to be dropped before anybody reads
    /// them.
    pub fn store(&mut self, medium: &Medium, at: u64, data: &[u8]) -> Option<Streaming> {
        let end = at + data.len() as u64;
        let first = self.parts.partition_point(|part| part.bytes.end <= at);
        let parts = self.parts[first..].iter_mut();
        let mut streaming = None;
        for part in parts.take_while(|part| part.bytes.start < end) {
            let (from, to) = (part.bytes.start.max(at), part.bytes.end.min(end));
            let data = &data[(from - at) as usize..(to - at) as usize];
            if let How::Logged = part.how {
                part.logged.extend_from_slice(data);
                continue;
            }
            let piece = Piece {
                at: from,
                data,
                sequential: true,
            };
            streaming = put(medium, part.place(from), piece).or(streaming);
        }
        streaming
    }

    /// Give back what was taken for it: it is not carried out.
    pub fn discard(self, medium: &Medium) {
        for Part { run, how, .. } in self.parts {
            if how.takes_pages() {
                medium
                    .alloc
                    .free_pages(run.first.page..run.first.page + run.len);
            }
        }
    }
}

impl File {
    /// Plan a write.
    ///
    /// # Errors
    /// There is too little space: nothing has changed.
    pub fn plan_write(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        bytes: Range<u64>,
    ) -> Result<Plan> {
        self.plan_parts(medium, inode, &[bytes])
    }

    /// Plan to write several parts, in ascending order, of which no two touch the same block.
    ///
    /// # Errors
    /// There is too little space: nothing has changed.
    pub fn plan_parts(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        parts: &[Range<u64>],
    ) -> Result<Plan> {
        let last = parts.last().filter(|bytes| !bytes.is_empty());
        let size = inode.attrs.size.load(Relaxed);
        if let Some(last) = last.filter(|last| last.start > size) {
            self.zero_tail(medium, inode, size, last.start)?; // void until the size is larger
        }
        let end = last.map_or(0, |bytes| bytes.end);
        let plan = self.planned(medium, inode, parts, true)?;
        Ok(Plan { end, ..plan })
    }

    /// Plan to zero what the ends of a range have in part.
    ///
    /// # Errors
    /// There is too little space: nothing has changed.
    pub fn plan_ends(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        range: &Range<u64>,
    ) -> Result<Plan> {
        let (first, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
        let ends = match first > end {
            true => [range.clone(), 0..0], // within one block
            false => [range.start..first, end..range.end],
        };
        let mut plan = self.planned(medium, inode, &ends, false)?;
        let ranges: Vec<_> = plan.parts.iter().map(|part| part.bytes.clone()).collect();
        for bytes in ranges {
            let len = bytes.end - bytes.start;
            drop(plan.store(medium, bytes.start, &ZEROS[..len as usize]));
        }
        Ok(plan)
    }

    /// Plan to change these ranges of bytes; `all`: also where the file has none yet.
    fn planned(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        ranges: &[Range<u64>],
        all: bool,
    ) -> Result<Plan> {
        let mut plan = Plan::default();
        let len = |bytes: &Range<u64>| bytes.end.saturating_sub(bytes.start);
        let wanted = Wanted {
            all,
            may_log: ranges.iter().map(len).sum::<u64>() <= medium.logged_max,
        };
        for bytes in ranges {
            let mut at = bytes.start;
            while at < bytes.end {
                match self.plan_run(medium, inode, at..bytes.end, wanted) {
                    Ok((end, part)) => {
                        at = end;
                        part.iter().for_each(|part| part.store_edges(medium));
                        plan.parts.extend(part);
                    }
                    Err(e) => {
                        plan.discard(medium);
                        return Err(e);
                    }
                }
            }
        }
        Ok(plan)
    }

    /// Plan as far as the blocks are mapped in the same way; how far that is.
    fn plan_run(
        &mut self,
        medium: &Medium,
        inode: &InodeState,
        bytes: Range<u64>,
        wanted: Wanted,
    ) -> Result<(u64, Option<Part>)> {
        let block = bytes.start / PAGE;
        let want = bytes.end.div_ceil(PAGE) - block;
        let (pointer, mut len) = self.mapping(medium, block, want)?;
        let is_logged = |p: Pointer| {
            medium.logged.has(p.page..p.page + len) && !injected(Fault::StoredWhileLogged)
        };
        let how = match pointer {
            Some(p) if !p.unwritten => {
                let void = bytes.start >= inode.attrs.size.load(Relaxed) && !is_logged(p);
                let stays = void || !self.is_known(block) || injected(Fault::WrittenInPlace);
                match stays {
                    true => How::Stay,
                    false if wanted.may_log => How::Logged,
                    false => How::Copied { old: p.page },
                }
            }
            _ if !wanted.all => return Ok(((block + len) * PAGE, None)),
            Some(p) if is_logged(p) => How::Replaced,
            Some(_) => How::Reserved {
                in_tree: self.is_known(block),
            },
            None => How::Fresh,
        };
        let mut page = pointer.map_or(0, |p| p.page);
        if how.takes_pages() {
            self.provide(medium, block..block + len)?;
            let pages = medium.alloc.pages(len)?;
            (page, len) = (pages.start, pages.end - pages.start);
        } else {
            if matches!(how, How::Reserved { .. }) {
                self.provide(medium, block..block + len)?;
            }
            medium.alloc.back(page_at(page), len * PAGE)?;
        }
        let first = Pointer {
            page,
            unwritten: false,
        };
        let run = Run { block, len, first };
        let end = bytes.end.min((block + len) * PAGE);
        let bytes = bytes.start..end;
        let part = Part {
            bytes,
            run,
            how,
            logged: Vec::new(),
        };
        if matches!(how, How::Stay) {
            self.mark(medium, inode, block..block + len);
            let to = part.place(part.bytes.start)..part.place(part.bytes.end);
            self.pending().dirty.add(to);
        }
        Ok((end, Some(part)))
    }

    /// The bytes of a plan are stored: lead to them. Returns how many pointers to blocks change.
    pub fn adopt(&mut self, medium: &Medium, inode: &InodeState, plan: Plan) -> u64 {
        let mut changed = 0;
        for part in plan.parts {
            let (run, how) = (part.run, part.how);
            let in_tree = match how {
                How::Stay => continue,
                How::Logged => {
                    let at = part.place(part.bytes.start);
                    self.pending().logged.push((at, part.logged));
                    continue;
                }
                How::Reserved { in_tree } => in_tree,
                How::Fresh => {
                    inode.attrs.pages.fetch_add(run.len as i64, Relaxed);
                    false
                }
                How::Replaced | How::Copied { .. } => false,
            };
            changed += run.len;
            self.map_pages(medium, run, in_tree);
        }
        if plan.end > inode.attrs.size.load(Relaxed) {
            inode.attrs.size.store(plan.end, Release);
        }
        changed
    }
}

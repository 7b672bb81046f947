//! Inherited stores: a killed process left them visible, and perhaps not durable (M15), in the maps
//! and in files.
//!
//! The words of the consistent view are durable once the journal is recovered, and what they lead
//! to was durable before them. Two things are left: the maps, and the bytes of files.
//!
//! *Maps.* Whoever puts space to use flushes its bits, whatever they were. But the bits of space
//! that the dead process had freed look right, and need not be: the image must not be marked clean
//! before they are durable. So the first sweep flushes all maps.
//!
//! *Files.* Bytes go straight into their page, so a mount that is killed leaves some that are
//! visible and that a power cut may take back. Whoever syncs the file in a later mount must not
//! believe them. So before a byte of a published file is stored in place, a bit in the file's inode
//! says where ([`layout::UNFLUSHED`]). The bit is stored and never flushed: after a kill it is
//! visible, as all stores are, and after a power cut what is visible is durable, and nobody needs
//! it.
//!
//! Two ways lead from the bits to the bytes:
//! - A file that is loaded with bits set has them flushed with its next capture (see
//!   [`crate::file`]): an fsync covers them.
//! - The first sweep of a mount after an unclean end, which goes through the maps anyway, looks at
//!   all inodes and flushes what their bits say. So syncfs and unmounting cover all files, and the
//!   background persister does within the bound, once it has looked at all. The search for lost
//!   space begins after that: when it has ended the image may be marked clean.
//!
//! A bit that a power cut left behind costs one needless flush. Only domain `line` has any of this:
//! in `page` opening the image has synced it, in `cache` what is visible is durable. There nobody
//! believes the bits, either: no commit that takes a file into use has them, so behind a power cut
//! they are what the line held before.

use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::image::Image;
use crate::layout::{LINES_PER_PAGE, PAGE, REGION_PAGES, index, inode as layout, line_at, page_at};
use crate::medium::Medium;
use schedule::Mutex;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use vfs::{Kind, Result};

/// Bits of a file's mark.
const BITS: u64 = 64;
/// What a step may cost, in lines that are read or flushed: about a millisecond.
const STEP: u64 = 100_000;
/// Pages whose bits are in one word.
const PER_WORD: u64 = 64;
/// How often all pages of an image may be flushed before the indexes are damaged: nodes are flushed
/// once for each leaf below them, and what was freed last may look as if it were in use.
const ROUNDS_MAX: u64 = 16;

/// The bits of a range of blocks that is not empty.
#[inline]
pub fn bits_of(blocks: Range<u64>) -> u64 {
    let (first, last) = (
        blocks.start / index::FANOUT,
        (blocks.end - 1) / index::FANOUT,
    );
    match last - first {
        0 => 1 << (first % BITS),
        more if more < BITS => (u64::MAX >> (BITS - 1 - more)).rotate_left((first % BITS) as u32),
        _ => u64::MAX,
    }
}

/// The search for what is inherited.
pub struct Inherited {
    pending: AtomicBool,
    at: Mutex<Cursor>,
}

/// How far it has come.
#[derive(Default)]
struct Cursor {
    /// The next line to be looked at.
    line: u64,
    /// The next block of the file that this line is.
    block: u64,
    /// Pages of files that were flushed.
    pages: u64,
    /// An index that leads to the same pages again and again was met: files are passed over.
    only_maps: bool,
}

impl Inherited {
    /// `pending`: there may be something.
    pub fn new(pending: bool) -> Inherited {
        Inherited {
            pending: AtomicBool::new(pending),
            at: Mutex::default(),
        }
    }

    /// Whether there may be something that is not durable.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Acquire)
    }

    /// Make a part of it durable. No batch runs meanwhile.
    ///
    /// # Errors
    /// The medium failed.
    pub fn step(&self, medium: &Medium) -> Result<()> {
        let mut at = self.at.lock();
        let mut flushes = Flushes::default();
        let mut budget = STEP as i64;
        let end = medium.geometry().pages * LINES_PER_PAGE;
        while budget > 0 && at.line < end {
            let page = at.line / LINES_PER_PAGE;
            if at.line.is_multiple_of(REGION_PAGES * LINES_PER_PAGE) {
                let region = page / REGION_PAGES;
                budget -= flush_map(medium, region, &mut flushes);
                if is_unused(medium, region) {
                    at.line += REGION_PAGES * LINES_PER_PAGE;
                    continue;
                }
            }
            let (skip, cost) = match at.line.is_multiple_of(LINES_PER_PAGE) {
                true => unused_lines(medium, page),
                false => (0, 0),
            };
            budget -= cost;
            at.line += skip;
            if skip == 0 {
                look_at(medium, &mut at, &mut flushes, &mut budget);
            }
            if !at.only_maps && at.pages > pages_max(&medium.image()) {
                endless(medium);
                at.only_maps = true;
            }
        }
        let over = at.line >= end;
        flushes.run(&medium.pool);
        medium.pool.fence().map_err(crate::medium::failed)?;
        if over {
            self.pending.store(false, Release);
        }
        Ok(())
    }
}

/// Whether a region's map is a hole of a sparse image, so that there is nothing to look at: reading
/// it would take memory of the host.
fn is_unused(medium: &Medium, region: u64) -> bool {
    let geometry = medium.geometry();
    let (start, end) = (geometry.map_start(region), geometry.map_end(region));
    medium.pool.is_hole(page_at(start), (end - start) * PAGE)
}

/// Flush the map of a region, unless it was never stored to; returns what that costs.
fn flush_map(medium: &Medium, region: u64, flushes: &mut Flushes) -> i64 {
    let geometry = medium.geometry();
    let (start, end) = (geometry.map_start(region), geometry.map_end(region));
    let (at, len) = (page_at(start), (end - start) * PAGE);
    if injected(Fault::ClaimUnflushed) || is_unused(medium, region) {
        return 1;
    }
    flushes.add(at, len);
    (len / pmem::LINE) as i64
}

/// How many lines from the start of this page on hold no inodes, by the maps, and what it cost to
/// look.
fn unused_lines(medium: &Medium, page: u64) -> (u64, i64) {
    let geometry = medium.geometry();
    let (word, bit) = geometry.page_bit(page);
    let used = medium.pool.load(word);
    if used == 0 && page.is_multiple_of(PER_WORD) {
        return (PER_WORD * LINES_PER_PAGE, 1);
    }
    let holds_lines = used & bit != 0
        && geometry.allocatable(page / REGION_PAGES).contains(&page)
        && medium.pool.load(geometry.line_word(page)) != 0;
    match holds_lines {
        true => (0, 1),
        false => (LINES_PER_PAGE, 1),
    }
}

/// Look at the line where the cursor is, and go on: flush what it says if it is the inode of a
/// file.
fn look_at(medium: &Medium, at: &mut Cursor, flushes: &mut Flushes, budget: &mut i64) {
    let ino = at.line;
    let lines = medium.geometry().line_word(ino / LINES_PER_PAGE);
    let in_use = medium.pool.load(lines) >> (ino % LINES_PER_PAGE) & 3 == 3;
    if in_use
        && !at.only_maps
        && let Some((root, bits)) = marked_file(medium, ino)
    {
        let mut pages = 0;
        let mut flush = |at| {
            pages += 1;
            flushes.add(at, PAGE);
        };
        let next = flush_leaf(&medium.image(), root, bits, at.block, &mut flush);
        *budget -= (pages * LINES_PER_PAGE) as i64;
        at.pages += pages;
        if let Some(block) = next {
            at.block = block;
            return;
        }
    }
    *budget -= 1;
    at.line = ino + layout::LINES;
    at.block = 0;
}

/// Pages that may be flushed before the indexes are damaged.
fn pages_max(image: &Image<'_>) -> u64 {
    ROUNDS_MAX * image.geometry.pages
}

/// An index was met that leads to the same pages again and again. The image is not marked clean.
fn endless(medium: &Medium) {
    log::error!(
        "what a killed process wrote may not be durable: an index has more pages than the image; \
         run `tureen fsck`"
    );
    medium.lost_space.store(true, Relaxed);
}

/// Root word and bits of a file that has any set. What looks like an inode and is none, or leads
/// nowhere, does no harm: it is flushed in vain.
fn marked_file(medium: &Medium, ino: u64) -> Option<(u64, u64)> {
    if injected(Fault::InheritedUnflushed) {
        return None;
    }
    let word = |field| medium.pool.load(line_at(ino) + field);
    if word(layout::MAGIC_GENERATION) as u32 != layout::MAGIC || word(layout::UNFLUSHED) == 0 {
        return None;
    }
    let inode = medium.image().inode(ino).ok()?;
    (inode.kind == Kind::File).then_some((inode.root, inode.unflushed))
}

/// All pages of a file that the bits stand for, and the index nodes above them, by where they are;
/// of a damaged index that leads in a circle, some.
pub fn each_page(medium: &Medium, root: u64, bits: u64, flush: &mut dyn FnMut(u64)) {
    let image = medium.image();
    let (mut block, mut pages) = (0, 0);
    while pages <= pages_max(&image) {
        let mut count = |at| {
            pages += 1;
            flush(at);
        };
        match flush_leaf(&image, root, bits, block, &mut count) {
            Some(next) => block = next,
            None => return,
        }
    }
    endless(medium);
}

/// The first leaf from `block` on that is marked; returns where to go on. A pointer that cannot be
/// followed leads to nothing that anybody could read.
fn flush_leaf(
    image: &Image<'_>,
    root: u64,
    bits: u64,
    block: u64,
    flush: &mut dyn FnMut(u64),
) -> Option<u64> {
    let root = image.root(0, root).ok()??;
    let leaf = block / index::FANOUT;
    let ahead = bits.rotate_right((leaf % BITS) as u32).trailing_zeros();
    let block = match ahead {
        0 => block,
        ahead => (leaf + u64::from(ahead)) * index::FANOUT,
    };
    if bits == 0 || block >= index::span(root.height) {
        return None;
    }
    let (mut node, mut height) = (root.top.page, root.height);
    while height > 1 {
        flush(page_at(node));
        let span = index::span(height - 1);
        let at = page_at(node) + block / span % index::FANOUT * 8;
        match image.pointer(at, image.pool.load(at), false) {
            Ok(Some(next)) => node = next.page,
            _ => return Some((block / span + to_next_child(image, node, block / span)) * span),
        }
        height -= 1;
    }
    flush(page_at(node)); // the leaf; or, without one, the only page
    for i in 0..index::FANOUT * height {
        let at = page_at(node) + i * 8;
        if let Ok(Some(page)) = image.pointer(at, image.pool.load(at), true)
            && !page.unwritten
        {
            flush(page_at(page.page));
        }
    }
    Some((block / index::FANOUT + 1) * index::FANOUT)
}

/// How many slots of a node lie between this one, by its number modulo those of a node, and the
/// next that is not empty, or the end of the node.
fn to_next_child(image: &Image<'_>, node: u64, slot: u64) -> u64 {
    let is_empty = |slot: &u64| image.pool.load(page_at(node) + slot * 8) == 0;
    let behind = slot % index::FANOUT + 1..index::FANOUT;
    1 + behind.take_while(is_empty).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::SoupFs;
    use crate::options::{Mode, MountOptions};
    use crate::testing::{mounted, new};
    use pmem::{Domain, Options, Pool};
    use std::sync::Arc;
    use vfs::{FileSystem, NewKind, SystemClock};

    /// Bits that a power cut left in a file's inode make its first commit flush its pages, but not
    /// where what is visible at the mount is durable.
    #[test]
    fn bits_are_believed_in_domain_line_alone() -> Result<()> {
        let (pool, fs) = mounted();
        let file = fs.create(&fs.root(), b"file", &new(NewKind::File))?;
        fs.append(&file, &[1; 256 << 10])?;
        let at = line_at(file.inode().ino) + layout::UNFLUSHED;
        drop(file);
        fs.unmount()?;
        drop(fs);
        pool.store(at, u64::MAX);
        for domain in [Domain::Line, Domain::Page] {
            let domain_options = Options {
                domain: Some(domain),
                ..Options::default()
            };
            let left = Pool::from_bytes(&pool.snapshot(), &domain_options).expect("memory");
            let options = MountOptions {
                manual: true,
                mode: Mode::Strong,
                ..MountOptions::new(Arc::new(SystemClock))
            };
            let left = Arc::new(left);
            let fs = SoupFs::mount(left.clone(), options).expect("mount");
            let file = fs.lookup(&fs.root(), b"file")?;
            let before = left.stats().flushed_lines;
            fs.write(&file, 10, &[2; 20])?;
            let flushed = left.stats().flushed_lines - before;
            let pages = 64 * LINES_PER_PAGE;
            assert_eq!(
                flushed >= pages,
                domain == Domain::Line,
                "{flushed} in {domain}"
            );
        }
        Ok(())
    }

    #[test]
    fn each_leaf_has_a_bit_and_the_65th_that_of_the_first() {
        assert_eq!(bits_of(0..1), 1);
        assert_eq!(bits_of(511..513), 3);
        assert_eq!(bits_of(512 * 63..512 * 65), 1 << 63 | 1);
        assert_eq!(bits_of(512 * 66..512 * 67), 4);
        assert_eq!(bits_of(512 * 5..512 * 68), !(1 << 4));
        assert_eq!(bits_of(512 * 5..512 * 69), u64::MAX);
        assert_eq!(bits_of(0..1 << 30), u64::MAX);
    }
}

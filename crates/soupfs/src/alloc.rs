//! The allocator: lines and pages, whatever they are for (SoupFS §3.2).
//!
//! The bitmaps on the medium are the consistent view: the persister alone changes them, through
//! [`Allocator::claim_lines`] and its siblings. What this module hands out lives in DRAM, the
//! latest view: per region a copy of the page bits (read when the region is first used), per
//! core an [`Arena`] of free lines, pairs of lines and a run of pages, and between arenas a depot.
//! A free thing is in exactly one of these places.
//!
//! ```text
//! region bits --run--> arena run --page--> arena lines/pairs --> caller
//!      ^                                        ^   |
//!      +---- whole pages <---- depot <----------+---+ freed, once durable (persister)
//! ```
//!
//! Lock order: arena -> depot -> region. None is held while anything else is taken.

mod leaks;

pub use leaks::Leaks;

use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::layout::{Geometry, LINES_PER_PAGE, PAGE, REGION_PAGES, line_at, page_at, state};
use crate::lock::{SpinLock, takes_long};
use crate::marks::Marks;
use crate::shortage;
use pmem::{MediumError, Pool};
use schedule::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};
use vfs::{Error, Result};

/// Longest run of pages that an arena takes from a region: 2 MiB.
const RUN_PAGES: u64 = 512;
/// Free pages an arena keeps for itself before they go back to their region.
const ARENA_PAGES: usize = 64;
/// Lines or pairs that move between an arena and the depot at once.
const MAGAZINE: usize = 256;
/// Free lines or pairs in an arena above which a magazine goes to the depot.
const ARENA_LINES: usize = 4 * MAGAZINE;
/// Generations that an arena takes at once.
const GENERATIONS: u32 = 256;

/// No space: the caller undoes what it began; the file system may free some and try again.
fn no_space() -> Error {
    Error::Errno(vfs::Errno::NOSPC)
}

/// What no other inode has.
pub struct Identity {
    /// Its number: the first of two adjacent lines, even.
    pub ino: u64,
    /// Tells it from all that had this number before: this mount gives each once, until it has
    /// given all of 32 bits.
    pub generation: u32,
}

/// Free space of one core's threads.
type Arena = SpinLock<ArenaFree>;

/// Free space of one region, as DRAM has it.
struct Region {
    inner: Mutex<RegionFree>,
    /// Lines that were free when it was read: a page counts as 64.
    free_when_read: u64,
}

struct RegionFree {
    /// Bit set: the page is free and in no arena.
    free: Box<[u64]>,
    free_pages: u64,
    /// No free page lies before this index.
    cursor: u64,
    /// Pages of lines that were partly used when the region was read: page, free lines.
    partial: Vec<(u64, u64)>,
}

#[derive(Default)]
struct ArenaFree {
    /// Lines taken from free space, less lines given back, by this arena's threads.
    used_lines: i64,
    run: Range<u64>,
    pages: Vec<u64>,
    lines: Vec<u64>,
    pairs: Vec<u64>,
    region: usize,
    /// The next generation to give, unless a range of them ends here.
    generation: u32,
}

#[derive(Default)]
struct Depot {
    lines: Vec<u64>,
    pairs: Vec<u64>,
}

/// The allocator of one mounted image.
pub struct Allocator {
    pool: Arc<Pool>,
    geometry: Geometry,
    regions: Box<[OnceLock<Region>]>,
    arenas: Box<[CachePadded<Arena>]>,
    depot: Mutex<Depot>,
    /// What is added to all generations.
    first_generation: u32,
    /// Where the next range of generations begins.
    generations: AtomicU32,
    /// Whether the summaries on the medium may be believed.
    summaries_hold: bool,
    /// Free lines when mounted (unclean: an estimate until [`Allocator::set_free_at_mount`]).
    free_at_mount: AtomicI64,
    /// Line pages that became free as a whole: the persister clears their page bits.
    emptied: Mutex<Vec<u64>>,
    /// Why the host gave no blocks when it was last asked for some.
    host_full: Mutex<Option<String>>,
    /// Whether there is such a reason.
    refused: AtomicBool,
    /// What is in use, while the reclaimer searches.
    marks: Mutex<Option<Marks>>,
    marking: AtomicBool,
}

/// Keeps what different cores write on different cache lines.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A small number for the calling thread; threads get them in turn.
pub(crate) fn thread_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SLOT: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed)));
    SLOT.with(Cell::get)
}

/// Into how many parts what every thread changes is split: a power of two.
pub fn shards() -> usize {
    // The answer takes the system a dozen calls, longer than all the rest of a mount.
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let cores = std::thread::available_parallelism();
        cores.map_or(4, |n| n.get() * 2).next_power_of_two()
    })
}

impl Allocator {
    /// The allocator of an image that is in its `epoch`th mount. Reads nothing but two words:
    /// regions are read when first used.
    pub fn new(pool: Arc<Pool>, geometry: Geometry, clean: bool, epoch: u64) -> Allocator {
        let arenas = shards();
        let free = pool
            .load(state::FREE_LINES)
            .min(geometry.pages * LINES_PER_PAGE);
        Allocator {
            regions: (0..geometry.regions()).map(|_| OnceLock::new()).collect(),
            arenas: (0..arenas).map(|_| CachePadded::default()).collect(),
            depot: Mutex::default(),
            first_generation: (epoch as u32).wrapping_mul(0x9e37_79b1),
            generations: AtomicU32::new(0),
            summaries_hold: clean,
            free_at_mount: AtomicI64::new(free as i64),
            emptied: Mutex::default(),
            marks: Mutex::default(),
            marking: AtomicBool::new(false),
            host_full: Mutex::default(),
            refused: AtomicBool::new(false),
            pool,
            geometry,
        }
    }

    fn arena(&self) -> &Arena {
        takes_long(); // it may have to look for space
        &self.arenas[thread_slot() & (self.arenas.len() - 1)]
    }

    /// A line.
    pub fn line(&self) -> Result<u64> {
        self.pop_line(&mut self.arena().lock())
    }

    /// Two adjacent lines for an inode, and a line for its entry. `expect` is told the number that
    /// the next inode will probably have.
    pub fn inode_and_line(&self, expect: impl FnOnce(u64)) -> Result<(Identity, u64)> {
        let mut a = self.arena().lock();
        let pair = self.pop_pair(&mut a)?;
        a.pairs.last().copied().map(expect);
        match self.pop_line(&mut a) {
            Ok(line) => Ok((self.identity(&mut a, pair), line)),
            Err(e) => {
                a.used_lines -= 2;
                a.pairs.push(pair);
                Err(e)
            }
        }
    }

    /// Two adjacent lines for an inode without a name.
    pub fn inode(&self) -> Result<Identity> {
        let mut a = self.arena().lock();
        let pair = self.pop_pair(&mut a)?;
        Ok(self.identity(&mut a, pair))
    }

    fn identity(&self, a: &mut ArenaFree, ino: u64) -> Identity {
        if a.generation.is_multiple_of(GENERATIONS) {
            a.generation = self.generations.fetch_add(GENERATIONS, Relaxed);
        }
        let generation = self.first_generation.wrapping_add(a.generation);
        a.generation = a.generation.wrapping_add(1);
        Identity { ino, generation }
    }

    fn pop_line(&self, a: &mut ArenaFree) -> Result<u64> {
        shortage::allocation()?;
        loop {
            if let Some(line) = a.lines.pop() {
                if let Some(&next) = a.lines.last() {
                    self.pool.prefetch_for_write(line_at(next)); // it has probably left the cache
                }
                a.used_lines += 1;
                return Ok(line);
            }
            if !self.refill_lines(a)? {
                let pair = self.find_pair(a)?;
                a.lines.extend([pair + 1, pair]);
            }
        }
    }

    /// A run of 1 to `want` pages, as long as it can be had at once.
    pub fn pages(&self, want: u64) -> Result<Range<u64>> {
        shortage::allocation()?;
        let mut a = self.arena().lock();
        let run = self.take_pages(&mut a, want)?;
        a.used_lines += ((run.end - run.start) * LINES_PER_PAGE) as i64;
        Ok(run)
    }

    /// One page.
    pub fn page(&self) -> Result<u64> {
        Ok(self.pages(1)?.start)
    }

    fn take_pages(&self, a: &mut ArenaFree, want: u64) -> Result<Range<u64>> {
        if want == 1
            && let Some(page) = a.pages.pop()
        {
            return Ok(page..page + 1);
        }
        if a.run.is_empty() {
            match self.find_run(&mut a.region)? {
                Some(run) => a.run = run,
                None => {
                    let page = a.pages.pop().ok_or_else(no_space)?;
                    return Ok(page..page + 1);
                }
            }
        }
        let end = a.run.end.min(a.run.start + want);
        let run = a.run.start..end;
        a.run.start = end;
        Ok(run)
    }

    /// A run of free pages from the first region at or after `hint` that has any, and blocks behind
    /// them. If the host has no more of these, from one that was used before.
    fn find_run(&self, hint: &mut usize) -> Result<Option<Range<u64>>> {
        let mut refused = None;
        for step in 0..self.regions.len() {
            let r = (*hint + step) % self.regions.len();
            if self.regions[r].get().is_none()
                && (self.summary_says_full(r as u64, 0)
                    || refused.is_some() && self.summary_says_unused(r as u64))
            {
                continue;
            }
            let region = match self.region(r as u64) {
                Ok(region) => region,
                Err(e) => {
                    refused = Some(e);
                    continue;
                }
            };
            let mut free = region.inner.lock();
            // When space is short no arena may take what others need.
            let fair = free.free_pages / (2 * self.arenas.len() as u64);
            if let Some(run) = free.take_run(fair.clamp(1, RUN_PAGES)) {
                drop(free);
                let start = self.geometry.region_start(r as u64);
                let run = start + run.start..start + run.end;
                match self.back(page_at(run.start), (run.end - run.start) * PAGE) {
                    Ok(()) => {
                        *hint = r;
                        return Ok(Some(run));
                    }
                    Err(e) => {
                        self.give_back(run);
                        refused = Some(e);
                    }
                }
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Make sure a sparse image has blocks behind a range, before it is stored to: also behind what
    /// is in use, if it may be all zeros, as a copy of an image may have holes there.
    #[inline]
    pub fn back(&self, at: u64, len: u64) -> Result<()> {
        match self.pool.back(at, len) {
            Ok(()) if !self.refused.load(Relaxed) => Ok(()),
            backed => self.note_backing(backed),
        }
    }

    #[cold]
    fn note_backing(&self, backed: std::result::Result<(), MediumError>) -> Result<()> {
        let mut last = self.host_full.lock();
        let said = last.is_some();
        *last = backed.err().map(|e| e.to_string());
        self.refused.store(last.is_some(), Relaxed);
        match &*last {
            None => Ok(()),
            Some(why) => {
                if !said {
                    log::error!("no space behind the image: {why}");
                }
                Err(no_space())
            }
        }
    }

    /// Why the host gave no blocks for a sparse image when it was last asked for some.
    pub fn host_full(&self) -> Option<String> {
        self.host_full.lock().clone()
    }

    fn summary_says_full(&self, region: u64, shift: u32) -> bool {
        self.summaries_hold
            && (self.pool.load(self.geometry.summary_at(region)) >> shift) as u32 == 0
    }

    fn summary_says_unused(&self, region: u64) -> bool {
        let free = self.pool.load(self.geometry.summary_at(region)) as u32;
        let allocatable = self.geometry.allocatable(region);
        self.summaries_hold && u64::from(free) == allocatable.end - allocatable.start
    }

    fn pop_pair(&self, a: &mut ArenaFree) -> Result<u64> {
        shortage::allocation()?;
        let pair = self.find_pair(a)?;
        a.used_lines += 2;
        Ok(pair)
    }

    fn find_pair(&self, a: &mut ArenaFree) -> Result<u64> {
        loop {
            if let Some(pair) = a.pairs.pop() {
                return Ok(pair);
            }
            if !self.refill_lines(a)? || a.pairs.is_empty() {
                let page = self.take_pages(a, 1)?.start;
                let first = page * LINES_PER_PAGE;
                a.pairs
                    .extend((0..LINES_PER_PAGE / 2).rev().map(|i| first + 2 * i));
            }
        }
    }

    /// Bring free lines or pairs from the depot or a partly used page; false: there are none.
    fn refill_lines(&self, a: &mut ArenaFree) -> Result<bool> {
        {
            let mut depot = self.depot.lock();
            let before = a.lines.len() + a.pairs.len();
            let keep = depot.lines.len().saturating_sub(MAGAZINE);
            a.lines.extend(depot.lines.drain(keep..));
            let keep = depot.pairs.len().saturating_sub(MAGAZINE);
            a.pairs.extend(depot.pairs.drain(keep..));
            if a.lines.len() + a.pairs.len() > before {
                return Ok(true);
            }
        }
        let region = match self.regions[a.region].get() {
            Some(region) => region,
            None if self.summary_says_full(a.region as u64, 32) => return Ok(false),
            None => self.region(a.region as u64)?,
        };
        let Some((page, free)) = region.inner.lock().partial.pop() else {
            return Ok(false);
        };
        split_lines(page, free, &mut a.lines, &mut a.pairs);
        Ok(true)
    }

    /// A line is free again: nothing on the medium leads to it, at any crash.
    pub fn free_line(&self, line: u64) {
        self.free(None, &[line]);
    }

    /// A pair is free again.
    pub fn free_pair(&self, pair: u64) {
        self.free(Some(pair), &[]);
    }

    /// A pair and lines are free again.
    pub fn free(&self, pair: Option<u64>, lines: &[u64]) {
        let mut a = self.arena().lock();
        a.used_lines -= lines.len() as i64;
        a.lines.extend_from_slice(lines);
        if let Some(pair) = pair {
            a.used_lines -= 2;
            a.pairs.push(pair);
        }
        if a.lines.len().max(a.pairs.len()) > ARENA_LINES {
            let (a, depot) = (&mut *a, &mut *self.depot.lock());
            for (own, others) in [
                (&mut a.lines, &mut depot.lines),
                (&mut a.pairs, &mut depot.pairs),
            ] {
                let keep = own.len().min(ARENA_LINES - MAGAZINE);
                others.extend(own.drain(keep..));
            }
        }
    }

    /// A run of pages is free again.
    pub fn free_pages(&self, run: Range<u64>) {
        let mut a = self.arena().lock();
        a.used_lines -= ((run.end - run.start) * LINES_PER_PAGE) as i64;
        if run.end - run.start == 1 && a.pages.len() < ARENA_PAGES {
            a.pages.push(run.start);
        } else {
            drop(a);
            self.give_back(run);
        }
    }

    /// Pages return to their region's bits. The run lies in one region, which has been read.
    fn give_back(&self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        let r = run.start / REGION_PAGES;
        let mut free = self.read_once(r).inner.lock();
        let base = self.geometry.region_start(r);
        for page in run {
            free.put(page - base);
        }
    }

    /// Take all free lines and pages from arenas and depot, make whole pages of the lines where
    /// that goes, and give pages back to their regions. For a shortage: takes every lock. Returns
    /// the number of pages that others can have now.
    pub fn compact(&self) -> u64 {
        self.read_one_with_lines();
        let mut masks: HashMap<u64, u64> = HashMap::new();
        let mut arenas: Vec<_> = self.arenas.iter().map(|a| a.lock()).collect();
        let mut depot = self.depot.lock();
        let mut add = |line: u64, mask: u64| {
            *masks.entry(line / LINES_PER_PAGE).or_default() |= mask << (line % LINES_PER_PAGE);
        };
        let mut gained = 0;
        for a in &mut arenas {
            a.lines.drain(..).for_each(|l| add(l, 1));
            a.pairs.drain(..).for_each(|l| add(l, 3));
            let run = std::mem::take(&mut a.run);
            for run in a.pages.drain(..).map(|page| page..page + 1).chain([run]) {
                gained += run.end - run.start;
                self.give_back(run);
            }
        }
        depot.lines.drain(..).for_each(|l| add(l, 1));
        depot.pairs.drain(..).for_each(|l| add(l, 3));
        for region in self.regions.iter().filter_map(OnceLock::get) {
            for (page, free) in region.inner.lock().partial.drain(..) {
                add(page * LINES_PER_PAGE, free);
            }
        }
        let depot = &mut *depot;
        for (page, free) in masks {
            if free == u64::MAX {
                self.emptied.lock().push(page);
                gained += 1;
            } else {
                split_lines(page, free, &mut depot.lines, &mut depot.pairs);
            }
        }
        gained
    }

    /// Read a region that has lines to give and no pages: whoever looks for pages passes it over.
    /// One at a time is enough for whoever is short of lines.
    fn read_one_with_lines(&self) {
        let regions = 0..self.geometry.regions();
        let unread = |r: &u64| self.regions[*r as usize].get().is_none();
        let mut with_lines = regions.filter(|r| unread(r) && !self.summary_says_full(*r, 32));
        if let Some(Err(e)) = with_lines.next().map(|r| self.region(r)) {
            log::debug!("a region with free lines cannot be used: {e}");
        }
    }

    /// Line pages that became free as a whole. Their bits on the medium are still set: the
    /// persister clears these, then hands the pages to [`Allocator::free_emptied`].
    pub fn take_emptied(&self) -> Vec<u64> {
        std::mem::take(&mut *self.emptied.lock())
    }

    /// The pages of [`Allocator::take_emptied`] can be used for anything. They count as free
    /// already.
    pub fn free_emptied(&self, page: u64) {
        self.give_back(page..page + 1);
    }

    /// The region's free space, to take from it: its map has blocks behind it.
    fn region(&self, r: u64) -> Result<&Region> {
        if let Some(region) = self.regions[r as usize].get() {
            return Ok(region);
        }
        let map = self.geometry.map_start(r);
        self.back(page_at(map), (self.geometry.map_end(r) - map) * PAGE)?;
        Ok(self.read_once(r))
    }

    /// The region's free space, read from the medium at the first call: before any bit there
    /// changes, so that what is freed later is not found twice.
    fn read_once(&self, r: u64) -> &Region {
        self.regions[r as usize].get_or_init(|| {
            let free = self.read_region(r);
            Region {
                free_when_read: free.free_pages * LINES_PER_PAGE + free.partial_lines(),
                inner: Mutex::new(free),
            }
        })
    }

    fn read_region(&self, r: u64) -> RegionFree {
        let (start, end) = (self.geometry.region_start(r), self.geometry.region_end(r));
        let allocatable = self.geometry.allocatable(r);
        let mut free = vec![0; (end - start).div_ceil(64) as usize].into_boxed_slice();
        let (mut free_pages, mut partial) = (0, Vec::new());
        for (i, word) in free.iter_mut().enumerate() {
            let first = start + i as u64 * 64;
            let used = self.pool.load(self.geometry.page_bit(first).0);
            let valid = mask_of(allocatable.clone(), first);
            *word = !used & valid;
            free_pages += u64::from(word.count_ones());
            let mut lines = used & valid;
            while lines != 0 {
                let page = first + u64::from(lines.trailing_zeros());
                lines &= lines - 1;
                let taken = self.pool.load(self.geometry.line_word(page));
                if taken != 0 && taken != u64::MAX {
                    partial.push((page, !taken));
                }
            }
        }
        RegionFree {
            free,
            free_pages,
            cursor: 0,
            partial,
        }
    }

    /// Free lines: a page counts as 64.
    pub fn free_lines(&self) -> u64 {
        let used: i64 = self.arenas.iter().map(|a| a.lock().used_lines).sum();
        (self.free_at_mount.load(Relaxed) - used).max(0) as u64
    }

    /// Write the summary of each region that was read, from its bits on the medium, and flush it;
    /// in an image that was not clean, of all regions, and maps that are holes are not read for
    /// that. For unmounting: nobody allocates any more. Returns how many lines are free, by all
    /// summaries.
    pub fn write_summaries(&self) -> u64 {
        let mut total = 0;
        for (r, region) in self.regions.iter().enumerate() {
            if region.get().is_none() && self.summaries_hold {
                let summary = self.pool.load(self.geometry.summary_at(r as u64));
                total += (summary & u64::from(u32::MAX)) * LINES_PER_PAGE + (summary >> 32);
                continue;
            }
            let (pages, lines) = match self.is_untouched(r as u64) {
                true => (self.all_lines(r as u64) / LINES_PER_PAGE, 0),
                false => {
                    let now = self.read_region(r as u64);
                    (now.free_pages, now.partial_lines())
                }
            };
            let at = self.geometry.summary_at(r as u64);
            self.pool.store(at, pages | lines << 32);
            self.pool.flush(at, 8);
            total += pages * LINES_PER_PAGE + lines;
        }
        total
    }

    // The consistent view. Only the persister calls these, before the commit that publishes what
    // lies there (claim), or after the one that withdraws it (release). They store, and say what
    // is to be flushed.

    /// Mark lines of one page as used.
    pub fn claim_lines(&self, line: u64, count: u64, flushes: &mut Flushes) {
        let page = line / LINES_PER_PAGE;
        self.with_marks(|m| {
            m.hold(page);
            m.lines(line, count);
        });
        let mask = ((1 << count) - 1) << (line % LINES_PER_PAGE);
        let word = self.geometry.line_word(page);
        let (at, bit) = self.geometry.page_bit(page);
        let in_use = self.pool.load(at) & bit != 0;
        if in_use {
            self.pool.fetch_or(word, mask);
        } else {
            // The page was free as a whole, so bits that are set are those of a batch that a crash
            // cut off.
            self.pool.store(word, mask);
            self.pool.fetch_or(at, bit);
        }
        // Both words, whatever they were: a killed process may have stored them without flushing
        // (M15).
        flushes.add(word, 8);
        if !(in_use && injected(Fault::ClaimUnflushed)) {
            flushes.add(at, 8);
        }
    }

    /// Mark lines of one page as free. False: they were not in use, so they are damaged, and not to
    /// be handed out.
    pub fn release_lines(&self, line: u64, count: u64, flushes: &mut Flushes) -> bool {
        self.with_marks(|m| m.hold(line / LINES_PER_PAGE));
        self.read_once(line / LINES_PER_PAGE / REGION_PAGES);
        let mask = ((1 << count) - 1) << (line % LINES_PER_PAGE);
        let at = self.geometry.line_word(line / LINES_PER_PAGE);
        let was = self.pool.fetch_and(at, !mask);
        flushes.add(at, 8);
        was & mask == mask
    }

    /// Mark pages as used whole.
    pub fn claim_pages(&self, run: Range<u64>, flushes: &mut Flushes) {
        if injected(Fault::Unclaimed) {
            return;
        }
        self.with_marks(|m| m.pages(run.clone()));
        for page in run.clone() {
            let at = self.geometry.line_word(page);
            let held_lines = self.pool.load(at) != 0;
            if held_lines {
                // Of which a crash left some behind.
                self.pool.store(at, 0);
            }
            // Also if it is zero already: a killed process may have cleared it without flushing
            // (M15).
            if held_lines || !injected(Fault::ClaimUnflushed) {
                flushes.add(at, 8);
            }
        }
        self.change_page_bits(run, flushes, |at, mask| {
            self.pool.fetch_or(at, mask);
        });
    }

    /// Mark pages as free. False: some were not in use, so they are damaged, and none is to be
    /// handed out.
    pub fn release_pages(&self, run: Range<u64>, flushes: &mut Flushes) -> bool {
        self.read_once(run.start / REGION_PAGES);
        let mut were_used = true;
        self.change_page_bits(run, flushes, |at, mask| {
            were_used &= self.pool.fetch_and(at, !mask) & mask == mask;
        });
        were_used
    }

    /// From now on, note what is claimed.
    pub fn start_marking(&self) {
        *self.marks.lock() = Some(Marks::default());
        self.marking.store(true, Release);
    }

    /// Forget all marks.
    pub fn end_marking(&self) {
        self.marking.store(false, Release);
        *self.marks.lock() = None;
    }

    /// Work on the marks, if the reclaimer searches.
    #[inline]
    pub fn with_marks<T>(&self, work: impl FnOnce(&mut Marks) -> T) -> Option<T> {
        if !self.marking.load(Acquire) {
            return None;
        }
        self.marks.lock().as_mut().map(work)
    }

    fn change_page_bits(
        &self,
        run: Range<u64>,
        flushes: &mut Flushes,
        mut change: impl FnMut(u64, u64),
    ) {
        let mut page = run.start;
        while page < run.end {
            let first = page / 64 * 64;
            let (at, _) = self.geometry.page_bit(first);
            change(at, mask_of(run.clone(), first));
            flushes.add(at, 8);
            page = first + 64;
        }
    }
}

/// The bits of the 64 pages from `first` on that lie in `range`.
fn mask_of(range: Range<u64>, first: u64) -> u64 {
    let below = |page: u64| -> u64 {
        match page.saturating_sub(first) {
            n if n >= 64 => u64::MAX,
            n => (1 << n) - 1,
        }
    };
    below(range.end) & !below(range.start)
}

/// Free lines of a page, as pairs where both are free.
fn split_lines(page: u64, free: u64, lines: &mut Vec<u64>, pairs: &mut Vec<u64>) {
    let first = page * LINES_PER_PAGE;
    for i in (0..LINES_PER_PAGE).step_by(2) {
        match free >> i & 3 {
            3 => pairs.push(first + i),
            1 => lines.push(first + i),
            2 => lines.push(first + i + 1),
            _ => {}
        }
    }
}

impl RegionFree {
    /// Free lines in pages of lines, while nobody has taken any.
    fn partial_lines(&self) -> u64 {
        let free = |(_, free): &(u64, u64)| u64::from(free.count_ones());
        self.partial.iter().map(free).sum()
    }

    /// Take the first run of free pages, at most `max` long; indexes within the region.
    fn take_run(&mut self, max: u64) -> Option<Range<u64>> {
        let mut word = (self.cursor / 64) as usize;
        while word < self.free.len() && self.free[word] == 0 {
            word += 1;
        }
        let Some(bits) = self.free.get(word) else {
            self.cursor = self.free.len() as u64 * 64;
            return None;
        };
        let start = word as u64 * 64 + u64::from(bits.trailing_zeros());
        let mut end = start;
        while end - start < max && self.is_free(end) {
            self.free[(end / 64) as usize] &= !(1 << (end % 64));
            end += 1;
        }
        self.free_pages -= end - start;
        self.cursor = end;
        Some(start..end)
    }

    fn is_free(&self, index: u64) -> bool {
        self.free
            .get((index / 64) as usize)
            .is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    fn put(&mut self, index: u64) {
        if self.is_free(index) {
            // Only an image in which two things claim one page leads here; fsck tells them apart.
            log::error!("a page was freed twice: the image is corrupt, run fsck");
            return;
        }
        self.free[(index / 64) as usize] |= 1 << (index % 64);
        self.free_pages += 1;
        self.cursor = self.cursor.min(index);
    }
}

//! Free space by region: read from the maps when a region is first used, written as summaries.

use super::Allocator;
use super::maps::mask_of;
use crate::fault::{Fault, injected};
use crate::layout::{LINES_PER_PAGE, PAGE, REGION_PAGES, page_at};
use schedule::Mutex;
use std::ops::Range;
use vfs::Result;

/// Longest run of pages that an arena takes from a region: 2 MiB.
const RUN_PAGES: u64 = 512;
/// Free space of one region, as DRAM has it.
pub(super) struct Region {
    pub(super) inner: Mutex<RegionFree>,
    /// Lines that were free when it was read: a page counts as 64.
    pub(super) free_when_read: u64,
}

pub(super) struct RegionFree {
    /// Bit set: the page is free and in no arena.
    pub(super) free: Box<[u64]>,
    pub(super) free_pages: u64,
    /// No free page lies before this index.
    pub(super) cursor: u64,
    /// Pages of lines that were partly used when the region was read: page, free lines.
    pub(super) partial: Vec<(u64, u64)>,
}

impl Allocator {
    /// A run of free pages from the first region at or after `hint` that has any, and blocks behind
    /// them. If the host has no more of these, from one that was used before.
    pub(super) fn find_run(&self, hint: &mut usize) -> Result<Option<Range<u64>>> {
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

    /// Pages return to their region's bits. The run lies in one region, which has been read.
    pub(super) fn give_back(&self, run: Range<u64>) {
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

    /// Read a region that has lines to give and no pages: whoever looks for pages passes it over.
    /// One at a time is enough for whoever is short of lines.
    pub(super) fn read_one_with_lines(&self) {
        let regions = 0..self.geometry.regions();
        let unread = |r: &u64| self.regions[*r as usize].get().is_none();
        let mut with_lines = regions.filter(|r| unread(r) && !self.summary_says_full(*r, 32));
        if let Some(Err(e)) = with_lines.next().map(|r| self.region(r)) {
            log::debug!("a region with free lines cannot be used: {e}");
        }
    }

    pub(super) fn summary_says_full(&self, region: u64, shift: u32) -> bool {
        self.summaries_hold
            && (self.pool.load(self.geometry.summary_at(region)) >> shift) as u32 == 0
    }

    pub(super) fn summary_says_unused(&self, region: u64) -> bool {
        let free = self.pool.load(self.geometry.summary_at(region)) as u32;
        let allocatable = self.geometry.allocatable(region);
        self.summaries_hold && u64::from(free) == allocatable.end - allocatable.start
    }

    /// The region's free space, to take from it: its map has blocks behind it.
    pub(super) fn region(&self, r: u64) -> Result<&Region> {
        if let Some(region) = self.regions[r as usize].get() {
            return Ok(region);
        }
        let map = self.geometry.map_start(r);
        self.back(page_at(map), (self.geometry.map_end(r) - map) * PAGE)?;
        Ok(self.read_once(r))
    }

    /// The region's free space, read from the medium at the first call: before any bit there
    /// changes, so that what is freed later is not found twice.
    pub(super) fn read_once(&self, r: u64) -> &Region {
        self.regions[r as usize].get_or_init(|| {
            let free = self.read_region(r);
            Region {
                free_when_read: free.free_pages * LINES_PER_PAGE + free.partial_lines(),
                inner: Mutex::new(free),
            }
        })
    }

    pub(super) fn read_region(&self, r: u64) -> RegionFree {
        let (start, end) = (self.geometry.region_start(r), self.geometry.region_end(r));
        let allocatable = self.geometry.allocatable(r);
        let mut free = vec![0; (end - start).div_ceil(64) as usize].into_boxed_slice();
        let (mut free_pages, mut partial) = (0, Vec::new());
        for (i, word) in free.iter_mut().enumerate() {
            let first = start + i as u64 * 64;
            let used = match r > 0 && injected(Fault::RegionTakenForFree) {
                false => self.pool.load(self.geometry.page_bit(first).0),
                true => 0,
            };
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
}

impl RegionFree {
    /// Free lines in pages of lines, while nobody has taken any.
    pub(super) fn partial_lines(&self) -> u64 {
        let free = |(_, free): &(u64, u64)| u64::from(free.count_ones());
        self.partial.iter().map(free).sum()
    }

    /// Take the first run of free pages, at most `max` long; indexes within the region.
    pub(super) fn take_run(&mut self, max: u64) -> Option<Range<u64>> {
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

    pub(super) fn is_free(&self, index: u64) -> bool {
        self.free
            .get((index / 64) as usize)
            .is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    pub(super) fn put(&mut self, index: u64) {
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

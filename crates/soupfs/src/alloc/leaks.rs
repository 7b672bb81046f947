//! The end of the search for leaks: what the maps have in use and nothing has marked is free.
//!
//! This goes through the regions in steps, and batches run between two steps. That is right once
//! everything reachable is marked and nothing waits to be freed (`reclaim`):
//! - what a batch puts to use it claims, and claiming marks. So what is set and not marked is a
//!   leak, at each step;
//! - what a batch withdraws was reachable or claimed, so it is marked, and stays among the deferred
//!   frees;
//! - a page of which DRAM holds free lines is held ([`crate::marks::Marks::hold`]) and never freed
//!   as a whole.
//!
//! A map that is a hole of a sparse image has no bit set. It is neither read, which takes memory on
//! tmpfs, nor given blocks, which a full host does not have.

use super::region::Region;
use super::{Allocator, Allowance};
use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::layout::{LINES_PER_PAGE, PAGE, REGION_PAGES, WORDS_PER_PAGE, page_at};
use schedule::point;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// How far the maps have been looked at, and what was found.
#[derive(Debug, Default)]
pub struct Leaks {
    /// The next page to look at.
    next: u64,
    /// No map has a bit set between the last one looked at and this byte.
    data: u64,
    /// Lines that were free in the regions so far when these were first read.
    free: u64,
    /// Lines that were leaked.
    pub lines: u64,
    /// Regions whose maps were looked at.
    pub regions: u64,
}

impl Leaks {
    /// Go on until the allowance (of pages looked at, lines freed, words read) is spent or, which
    /// is `true`, all regions have been looked at. The caller has the consistent view to itself,
    /// and afterwards makes durable what was flushed before anybody else changes it.
    pub fn step(&mut self, alloc: &Allocator, allowance: &mut Allowance<'_>) -> bool {
        let geometry = &alloc.geometry;
        let regions = match injected(Fault::FirstRegionAlone) {
            false => geometry.regions(),
            true => 1,
        };
        let mut flushes = Flushes::default();
        let before = self.lines;
        while !allowance.is_spent() && self.next / REGION_PAGES < regions {
            let r = self.next / REGION_PAGES;
            if self.next == geometry.region_start(r) && !self.enter(alloc, r, allowance) {
                self.next += REGION_PAGES;
                continue;
            }
            self.go_on(alloc, r, allowance, &mut flushes);
        }
        if self.lines > before {
            point("search: freed and not flushed");
        }
        flushes.run(&alloc.pool);
        self.next / REGION_PAGES >= regions || injected(Fault::SearchEndsEarly)
    }

    /// Begin with a region; false if its map is a hole.
    fn enter(&mut self, alloc: &Allocator, r: u64, allowance: &mut Allowance<'_>) -> bool {
        allowance.spend(1);
        let free = alloc.used_region(r, &mut self.data);
        self.free += match free {
            Some(region) => region.free_when_read,
            None => alloc.all_lines(r),
        };
        if free.is_some() {
            // Behind the map, so it is not entered again.
            self.next = alloc.geometry.allocatable(r).start;
            self.regions += 1;
            allowance.spend(REGION_PAGES / 64);
        }
        free.is_some()
    }

    /// Look at pages of a region, at most those that one page of words tells of.
    fn go_on(
        &mut self,
        alloc: &Allocator,
        r: u64,
        allowance: &mut Allowance<'_>,
        flushes: &mut Flushes,
    ) {
        let geometry = &alloc.geometry;
        let allocatable = geometry.allocatable(r);
        let start = geometry.region_start(r);
        let group = (self.next - start) / WORDS_PER_PAGE;
        let words = page_at(geometry.map_start(r) + 1 + group);
        let hole = alloc.pool.is_hole(words, PAGE);
        let group_end = start + (group + 1) * WORDS_PER_PAGE;
        while !allowance.is_spent() && self.next < group_end {
            let page = self.next;
            self.next += 1;
            if allocatable.contains(&page) {
                let lines = alloc.free_unmarked(page, hole, flushes);
                self.lines += lines;
                allowance.spend(1 + lines);
            }
        }
        if self.next >= geometry.region_end(r) {
            self.next = start + REGION_PAGES;
        }
    }
}

impl Allocator {
    /// The region, read if it never was, unless its map is a hole. `data`: up to where holes are
    /// known to go on.
    fn used_region(&self, r: u64, data: &mut u64) -> Option<&Region> {
        let map = self.map_bytes(r);
        if self.regions[r as usize].get().is_none() {
            if *data < map.end {
                *data = self.pool.next_data(map.start);
            }
            if *data >= map.end {
                return None;
            }
        }
        Some(self.read_once(r))
    }

    /// Where the map of a region is.
    fn map_bytes(&self, r: u64) -> Range<u64> {
        page_at(self.geometry.map_start(r))..page_at(self.geometry.map_end(r))
    }

    /// The lines of a region that nothing uses.
    pub(super) fn all_lines(&self, r: u64) -> u64 {
        let pages = self.geometry.allocatable(r);
        (pages.end - pages.start) * LINES_PER_PAGE
    }

    /// Whether a region was never used: nobody has read it, and its map is a hole.
    pub(super) fn is_untouched(&self, r: u64) -> bool {
        let map = self.map_bytes(r);
        self.regions[r as usize].get().is_none()
            && self.pool.is_hole(map.start, map.end - map.start)
    }

    /// Free what of a page is set in the maps and not marked; returns the number of lines. `hole`:
    /// the word of its lines lies in a hole.
    fn free_unmarked(&self, page: u64, hole: bool, flushes: &mut Flushes) -> u64 {
        let (at, bit) = self.geometry.page_bit(page);
        let word = self.geometry.line_word(page);
        let used = if hole { 0 } else { self.pool.load(word) };
        let forget_lines = |flushes: &mut Flushes| {
            if used != 0 {
                self.pool.store(word, 0);
                flushes.add(word, 8);
            }
        };
        if self.pool.load(at) & bit == 0 {
            forget_lines(flushes);
            return 0;
        }
        let (keeps, marked) = self
            .with_marks(|m| (m.keeps_page(page), m.lines_of(page)))
            .unwrap_or((true, u64::MAX));
        if marked == 0 && !keeps && (used == 0 || used == u64::MAX) {
            forget_lines(flushes);
            self.release_pages(page..page + 1, flushes);
            self.free_pages(page..page + 1);
            return LINES_PER_PAGE;
        }
        let mut freed = 0;
        for i in (0..LINES_PER_PAGE).filter(|i| (used & !marked) >> i & 1 == 1) {
            let line = page * LINES_PER_PAGE + i;
            self.release_lines(line, 1, flushes);
            self.free_line(line);
            freed += 1;
        }
        freed
    }

    /// All regions have been looked at: what is free is known exactly, whatever callers did
    /// meanwhile. Arenas count what was taken and given back since the mount, so what was free then
    /// is all there is to know.
    pub fn set_free_at_mount(&self, leaks: &Leaks) {
        self.free_at_mount.store(leaks.free as i64, Relaxed);
    }
}

//! The reclaimer's marks: space that it has found in use, and the queue of what it has still to
//! visit.

use crate::fault::{Fault, injected};
use crate::layout::{LINES_PER_PAGE, inode};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

/// Marks of one search.
#[derive(Default)]
pub struct Marks {
    /// Pages in use as a whole, by 64.
    pages: HashMap<u64, u64>,
    /// Lines in use, by page.
    lines: HashMap<u64, u64>,
    /// Pages of which DRAM holds free lines: never free as a whole.
    held: HashSet<u64>,
    /// Inodes to be looked at.
    pub queue: VecDeque<u64>,
}

impl Marks {
    /// Pages are in use.
    pub fn pages(&mut self, run: Range<u64>) {
        for page in run {
            *self.pages.entry(page / 64).or_default() |= 1 << (page % 64);
        }
    }

    /// Lines of one page are in use.
    pub fn lines(&mut self, line: u64, count: u64) {
        *self.lines.entry(line / LINES_PER_PAGE).or_default() |=
            ((1 << count) - 1) << (line % LINES_PER_PAGE);
    }

    /// DRAM has lines of this page in its free space.
    pub fn hold(&mut self, page: u64) {
        self.held.insert(page);
    }

    /// An inode is reachable: mark it, and look at what it holds unless that was done.
    pub fn inode(&mut self, ino: u64) {
        let (page, bit) = (ino / LINES_PER_PAGE, 1 << (ino % LINES_PER_PAGE));
        if self.lines.get(&page).is_none_or(|marked| marked & bit == 0) {
            self.lines(ino, inode::LINES);
            self.queue.push_back(ino);
        }
    }

    /// Whether a page is in use as a whole, or held.
    pub fn keeps_page(&self, page: u64) -> bool {
        self.held.contains(&page) && !injected(Fault::HeldForgotten)
            || self
                .pages
                .get(&(page / 64))
                .is_some_and(|w| w >> (page % 64) & 1 == 1)
    }

    /// The lines of a page that are in use.
    pub fn lines_of(&self, page: u64) -> u64 {
        self.lines.get(&page).copied().unwrap_or(0)
    }
}

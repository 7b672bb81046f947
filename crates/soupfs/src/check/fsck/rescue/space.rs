//! Where what a repair makes is put.

use crate::check::audit::{Audit, is_marked};
use crate::image::Image;
use crate::layout::LINES_PER_PAGE;
use std::collections::HashSet;

/// The even bits of those that are set in pairs.
pub(super) fn pairs(lines: u64) -> u64 {
    lines & lines >> 1 & (u64::MAX / 3)
}

/// Space that neither the maps nor the walk know in use.
pub(super) struct Space<'a> {
    image: Image<'a>,
    audit: &'a Audit,
    /// Lines are taken from here on upwards, whole pages downwards.
    lines_from: u64,
    pages_from: u64,
    /// Lines taken in the page of `lines_from`.
    taken: u64,
    /// Pages of which all that was to be had is taken.
    pages: HashSet<u64>,
    /// Whether a page that its bit calls free, and the word of its lines used, is free.
    is_wide: bool,
}

impl<'a> Space<'a> {
    pub(super) fn new(image: Image<'a>, audit: &'a Audit) -> Space<'a> {
        Space {
            image,
            audit,
            lines_from: 0,
            pages_from: image.geometry.pages,
            taken: 0,
            pages: HashSet::new(),
            is_wide: false,
        }
    }

    /// Take what may be free where the maps contradict themselves, too: there is nothing else any
    /// more. False if it was taken already.
    pub(super) fn widen(&mut self) -> bool {
        if self.is_wide {
            return false;
        }
        self.leave_page();
        (self.lines_from, self.pages_from) = (0, self.image.geometry.pages);
        self.is_wide = true;
        true
    }

    /// Take no more lines in the page of `lines_from`.
    fn leave_page(&mut self) {
        if std::mem::take(&mut self.taken) != 0 {
            self.pages.insert(self.lines_from);
        }
    }

    /// Whether neither maps nor walk know anything in a region.
    pub(super) fn is_unused(&self, region: u64) -> bool {
        !self.audit.claims.any_in(region) && !is_marked(&self.image, region)
    }

    pub(super) fn is_unclaimed(&self, page: u64) -> bool {
        self.audit.claims.lines_of(page) == 0
            && self.audit.claims.whole_pages(page & !63) >> (page % 64) & 1 == 0
    }

    /// The free lines of a page.
    fn free_lines(&self, page: u64) -> u64 {
        let claimed = self.audit.claims.whole_pages(page & !63) >> (page % 64) & 1 == 1;
        if !self.image.geometry.holds_page(page) || claimed || self.pages.contains(&page) {
            return 0;
        }
        let (at, bit) = self.image.geometry.page_bit(page);
        let used = self.image.pool.load(at) & bit != 0;
        let lines = self.image.pool.load(self.image.geometry.line_word(page));
        match used {
            // Used whole.
            true if lines == 0 => 0,
            true => !(lines | self.audit.claims.lines_of(page)),
            false if (lines == 0 || self.is_wide) && self.is_unclaimed(page) => u64::MAX,
            false => 0,
        }
    }

    /// Adjacent lines, one or the two of an inode.
    pub(super) fn lines(&mut self, count: u64) -> Option<u64> {
        while self.lines_from < self.image.geometry.pages {
            let free = self.free_lines(self.lines_from) & !self.taken;
            let fits = if count == 1 { free } else { pairs(free) };
            if fits != 0 {
                let first = u64::from(fits.trailing_zeros());
                self.taken |= ((1 << count) - 1) << first;
                return Some(self.lines_from * LINES_PER_PAGE + first);
            }
            self.leave_page();
            self.lines_from += 1;
        }
        None
    }

    /// A whole page.
    pub(super) fn page(&mut self) -> Option<u64> {
        while self.pages_from > self.lines_from + 1 {
            self.pages_from -= 1;
            if self.free_lines(self.pages_from) == u64::MAX {
                self.pages.insert(self.pages_from);
                return Some(self.pages_from);
            }
        }
        None
    }
}

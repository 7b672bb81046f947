//! The maps on the medium, which are the consistent view of space. Only the persister changes them:
//! it claims before the commit that publishes what lies there, and releases after the one that
//! withdrew it. What is stored here is flushed by the caller, which is told where.

use super::Allocator;
use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::layout::{LINES_PER_PAGE, REGION_PAGES};
use std::ops::Range;

impl Allocator {
    /// Mark lines of one page as used.
    pub fn claim_lines(&self, line: u64, count: u64, flushes: &mut Flushes) {
        let page = line / LINES_PER_PAGE;
        self.with_marks(|m| {
            m.hold(page);
            if !injected(Fault::ClaimsUnmarked) {
                m.lines(line, count);
            }
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
        flushes.add_bits(word, mask);
        if !(in_use && injected(Fault::ClaimUnflushed)) {
            flushes.add_bits(at, bit);
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
        if !injected(Fault::ClaimsUnmarked) {
            self.with_marks(|m| m.pages(run.clone()));
        }
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
                flushes.add_zero(at);
            }
        }
        self.change_page_bits(run, |at, mask| {
            self.pool.fetch_or(at, mask);
            flushes.add_bits(at, mask);
        });
    }

    /// Mark pages as free. False: some were not in use, so they are damaged, and none is to be
    /// handed out.
    pub fn release_pages(&self, run: Range<u64>, flushes: &mut Flushes) -> bool {
        self.read_once(run.start / REGION_PAGES);
        let mut were_used = true;
        self.change_page_bits(run, |at, mask| {
            were_used &= self.pool.fetch_and(at, !mask) & mask == mask;
            flushes.add(at, 8);
        });
        were_used
    }

    fn change_page_bits(&self, run: Range<u64>, mut change: impl FnMut(u64, u64)) {
        let mut page = run.start;
        while page < run.end {
            let first = page / 64 * 64;
            let (at, _) = self.geometry.page_bit(first);
            change(at, mask_of(run.clone(), first));
            page = first + 64;
        }
    }
}

/// The bits of the 64 pages from `first` on that lie in `range`.
pub(super) fn mask_of(range: Range<u64>, first: u64) -> u64 {
    let below = |page: u64| -> u64 {
        match page.saturating_sub(first) {
            n if n >= 64 => u64::MAX,
            n => (1 << n) - 1,
        }
    };
    below(range.end) & !below(range.start)
}

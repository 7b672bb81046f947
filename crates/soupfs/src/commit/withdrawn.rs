//! Withdrawn space: the consistent view no longer leads to it once the transaction has committed.

use crate::layout::LINES_PER_PAGE;
use std::ops::Range;

/// What one transaction withdrew.
#[derive(Default)]
pub struct Withdrawn {
    /// Single lines: entries and names.
    pub lines: Vec<u64>,
    /// Inodes.
    pub pairs: Vec<u64>,
    /// Pages.
    pub pages: Vec<Range<u64>>,
    /// Trees.
    pub trees: Vec<WithdrawnTree>,
}

/// An index tree, or a part of one, with all that it leads to. It is kept as it is, a few words for
/// any size.
pub struct WithdrawnTree {
    /// Its top node.
    pub top: u64,
    /// Levels of nodes: at least 1.
    pub height: u64,
    /// Lines that it has, as far as known.
    pub lines: u64,
}

impl Withdrawn {
    /// Add a page, to the last run if it continues that.
    pub fn page(&mut self, page: u64) {
        match self.pages.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => self.pages.push(page..page + 1),
        }
    }

    /// Add a tree by its top, which is a page of data at height 0. `pages`: what it has as far as
    /// is known.
    pub fn tree(&mut self, top: u64, height: u64, pages: u64) {
        match height {
            0 => self.page(top),
            _ => self.trees.push(WithdrawnTree {
                top,
                height,
                lines: pages * LINES_PER_PAGE,
            }),
        }
    }

    /// All of both.
    pub fn extend(&mut self, other: Withdrawn) {
        self.lines.extend(other.lines);
        self.pairs.extend(other.pairs);
        self.pages.extend(other.pages);
        self.trees.extend(other.trees);
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        let Withdrawn {
            lines,
            pairs,
            pages,
            trees,
        } = self;
        lines.is_empty() && pairs.is_empty() && pages.is_empty() && trees.is_empty()
    }

    /// Pages in it, but for those of trees.
    pub fn page_count(&self) -> u64 {
        self.pages.iter().map(|run| run.end - run.start).sum()
    }

    /// Lines in it, as far as known.
    pub fn count(&self) -> u64 {
        let pages = self.page_count();
        let trees: u64 = self.trees.iter().map(|tree| tree.lines).sum();
        (self.lines.len() + 2 * self.pairs.len()) as u64 + pages * LINES_PER_PAGE + trees
    }
}

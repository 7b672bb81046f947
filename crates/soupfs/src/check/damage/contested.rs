//! Space that more than one thing claims: of these, who is to keep it.

use crate::check::finding::{FINDINGS_MAX, Fix};
use std::collections::HashSet;

/// What was claimed more than once, so that all claimants have to be found.
#[derive(Default)]
pub(crate) struct Suspects {
    /// Pages, themselves or lines in them.
    pub pages: HashSet<u64>,
    /// Directories with several names: the one in the directory that `PARENT` says counts, whenever
    /// it is met.
    pub directories: HashSet<u64>,
}

impl Suspects {
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.directories.is_empty()
    }

    /// Note a page, unless there are too many: the next audit finds it again.
    pub(crate) fn page(&mut self, page: u64) {
        if self.pages.len() < FINDINGS_MAX {
            self.pages.insert(page);
        }
    }

    /// Note a directory, unless there are too many: of others the name that is met first counts.
    pub(crate) fn directory(&mut self, ino: u64) {
        if self.directories.len() < FINDINGS_MAX {
            self.directories.insert(ino);
        }
    }

    pub(crate) fn absorb(&mut self, other: Suspects) {
        other.pages.into_iter().for_each(|page| self.page(page));
        let directories = other.directories.into_iter();
        directories.for_each(|ino| self.directory(ino));
    }
}

/// One claim on lines of a page or all of it, in a page under suspicion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub page: u64,
    /// Lines of the page; all of them for a page that is used whole.
    pub mask: u64,
    /// The inode that makes it; 0 for the root directory, which always stays.
    pub owner: u64,
    /// Order of the walk.
    pub seq: usize,
    /// Several names may lead to one inode: such claims do not exclude each other.
    pub inode: bool,
    pub at: u64,
    pub fix: Fix,
}

/// The claims that have to go. The root directory's own lines stay. Whether a page is one of lines
/// is else for the map to say; then, of claims on the same space, the lowest inode's stays.
pub(crate) fn losers(claims: &mut [Claim], holds_lines: impl Fn(u64) -> bool) -> Vec<Claim> {
    let mut losers = Vec::new();
    claims.sort_unstable_by_key(|c| (c.page, c.owner, c.seq));
    for on_page in claims.chunk_by_mut(|a, b| a.page == b.page) {
        let lines = holds_lines(on_page[0].page);
        let is_root = |c: &Claim| c.inode && c.owner == 0;
        on_page.sort_by_key(|c| (!is_root(c), (c.mask != u64::MAX) != lines));
        let mut taken = 0;
        let mut inodes = HashSet::new();
        for claim in on_page {
            if taken & claim.mask == 0 {
                taken |= claim.mask;
                if claim.inode {
                    inodes.insert(claim.owner);
                }
            } else if !(claim.inode && inodes.contains(&claim.owner)) {
                losers.push(*claim);
            }
        }
    }
    losers
}

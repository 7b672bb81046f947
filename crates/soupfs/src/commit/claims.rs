//! What a transaction takes into use: said while it is put together, marked in the maps when it
//! commits.
//!
//! Only whoever has the lane changes the maps, and the reclaimer reads them there. Requests of mode
//! `strong` put their transactions together without the lane.

use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::layout::LINES_PER_PAGE;
use crate::volume::Volume;
use smallvec::SmallVec;
use std::ops::Range;

enum Claim {
    /// Lines of one page: the first, and how many.
    Lines(u64, u64),
    Pages(Range<u64>),
    /// An inode that was in use, and has a name in another place.
    Moved(u64),
}

/// Claims of one transaction, or of several that commit together.
#[derive(Default)]
pub struct Claims(SmallVec<[Claim; 4]>);

impl Claims {
    /// Lines of one page come into use.
    pub fn lines(&mut self, line: u64, count: u64) {
        self.0.push(Claim::Lines(line, count));
    }

    /// Pages come into use whole.
    pub fn pages(&mut self, run: Range<u64>) {
        match self.0.last_mut() {
            Some(Claim::Pages(last)) if last.end == run.start => last.end = run.end,
            _ => self.0.push(Claim::Pages(run)),
        }
    }

    /// An inode that is in use gets a name.
    pub fn moved(&mut self, ino: u64) {
        self.0.push(Claim::Moved(ino));
    }

    /// All of both.
    pub fn extend(&mut self, other: Claims) {
        self.0.extend(other.0);
    }

    /// Mark all of them in the maps, which are to be durable before the commit. For whoever has the
    /// lane. Whether a live record has contents of a page among them: it may be one that an earlier
    /// commit withdrew, as callers overwrote them before they cut the file off. So the page can be
    /// free, and be put to use, while that record is live: then the journal is checkpointed before
    /// this commits (J3, also of loose ranges).
    pub fn make(self, volume: &Volume, flushes: &mut Flushes) -> bool {
        let (alloc, mut uses_logged) = (&volume.alloc, false);
        for claim in self.0 {
            let pages = match claim {
                Claim::Lines(line, count) => {
                    alloc.claim_lines(line, count, flushes);
                    line / LINES_PER_PAGE..line / LINES_PER_PAGE + 1
                }
                Claim::Pages(run) => {
                    alloc.claim_pages(run.clone(), flushes);
                    run
                }
                Claim::Moved(ino) => {
                    // The reclaimer may have been where it goes, and not yet where it was.
                    alloc.with_marks(|marks| marks.inode(ino));
                    continue;
                }
            };
            uses_logged |= volume.logged.has(pages);
        }
        uses_logged && !injected(Fault::EarlyReuse) && !injected(Fault::UsedWhileLogged)
    }
}

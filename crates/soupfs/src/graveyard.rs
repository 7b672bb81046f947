//! Space that the consistent view no longer leads to, until it may be used again.
//!
//! A commit that withdraws something makes it unreachable, but as long as the journal may replay
//! an earlier transaction that stored into it, or that very one, it must keep its contents
//! (rule C2 of soft updates). So it waits here for the journal to retire the commit. Nothing
//! callers do waits for that, except when space runs out.

use crate::flush::Flushes;
use crate::plant::{Plant, planted};
use crate::volume::Volume;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// What one transaction withdrew.
#[derive(Default)]
pub struct Grave {
    /// Single lines: entries and names.
    pub lines: Vec<u64>,
    /// Inodes.
    pub pairs: Vec<u64>,
    /// Pages.
    pub pages: Vec<Range<u64>>,
}

impl Grave {
    /// Add a page, to the last run if it continues that.
    pub fn page(&mut self, page: u64) {
        match self.pages.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => self.pages.push(page..page + 1),
        }
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.pairs.is_empty() && self.pages.is_empty()
    }

    /// Free everything: first in the bitmaps (a crash before that is durable leaks it), then for
    /// callers.
    fn free(self, volume: &Volume, flushes: &mut Flushes) {
        let alloc = &volume.alloc;
        // What was free already may be somebody else's by the time it is handed out again.
        let mut were_used = true;
        let mut check = |was_used: bool| {
            were_used &= was_used;
            was_used
        };
        for &line in &self.lines {
            if check(alloc.release_lines(line, 1, flushes)) {
                alloc.free_line(line);
            }
        }
        for &pair in &self.pairs {
            if check(alloc.release_lines(pair, 2, flushes)) {
                alloc.free_pair(pair);
            }
        }
        for run in self.pages {
            if check(alloc.release_pages(run.clone(), flushes)) {
                alloc.free_pages(run);
            }
        }
        if !were_used {
            log::error!(
                "what was removed was free already: the image is damaged, run `tureen fsck`"
            );
            volume.lost_space.store(true, Relaxed);
        }
    }
}

/// All graves, oldest first.
#[derive(Default)]
pub struct Graveyard {
    graves: VecDeque<(u64, Grave)>,
}

impl Graveyard {
    /// What transaction `sequence` withdrew.
    pub fn bury(&mut self, sequence: u64, grave: Grave) {
        if !grave.is_empty() {
            self.graves.push_back((sequence, grave));
        }
    }

    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.graves.is_empty()
    }

    /// Free what was withdrawn up to `retired`.
    pub fn free(&mut self, volume: &Volume, retired: u64) {
        let mut flushes = Flushes::default();
        while self
            .graves
            .front()
            .is_some_and(|&(sequence, _)| sequence <= retired || planted(Plant::EarlyReuse))
        {
            if let Some((_, grave)) = self.graves.pop_front() {
                grave.free(volume, &mut flushes);
            }
        }
        flushes.run(&volume.pool);
    }
}

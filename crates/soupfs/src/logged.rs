//! Pages of files that live records of the journal have bytes of.
//!
//! A crash stores these bytes again. So in mode `strong`, until the record is checkpointed, nobody
//! stores to such a page in place (J2), also where its bytes are void. In the other modes callers
//! do store there, and a batch makes nothing of that durable in place, but by a later record, or
//! after a checkpoint (J5). Whoever would looks here. A page is used for
//! something else only when a later commit, which withdrew it, is checkpointed (J3).

use crate::hash::NumberMap;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Release},
};

/// Pages below which those that are not live any more are left in the table.
const FEW: usize = 1024;

/// The pages of a mount.
#[derive(Default)]
pub struct Logged {
    /// The last commit that stores to a page, by the page.
    pages: Mutex<NumberMap<u64>>,
    /// How many there may be at most.
    count: AtomicUsize,
    /// Commits up to this one are never replayed.
    checkpointed: AtomicU64,
}

impl Logged {
    /// A commit has stored to these pages.
    pub fn committed(&self, pages: Range<u64>, commit: u64) {
        let checkpointed = self.checkpointed.load(Acquire);
        let mut all = self.pages.lock();
        if all.len() >= FEW && all.len() == all.capacity() {
            all.retain(|_, commit| *commit > checkpointed);
        }
        all.extend(pages.map(|page| (page, commit)));
        self.count.store(all.len(), Release);
    }

    /// Commits up to this one are never replayed.
    pub fn set_checkpointed(&self, commit: u64) {
        self.checkpointed.store(commit, Release);
    }

    /// Whether a live record stores to any of these pages.
    pub fn has(&self, pages: Range<u64>) -> bool {
        if self.count.load(Acquire) == 0 {
            return false;
        }
        let (all, checkpointed) = (self.pages.lock(), self.checkpointed.load(Acquire));
        let is_live = |commit: &u64| *commit > checkpointed;
        match pages.end - pages.start > all.len() as u64 {
            true => all
                .iter()
                .any(|(page, commit)| pages.contains(page) && is_live(commit)),
            false => pages
                .clone()
                .any(|page| all.get(&page).is_some_and(is_live)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_there_until_its_last_commit_is_checkpointed() {
        let logged = Logged::default();
        assert!(!logged.has(0..100));
        logged.committed(3..4, 10);
        logged.committed(5..7, 10);
        logged.committed(5..6, 20);
        logged.set_checkpointed(10);
        assert!(!logged.has(3..5) && logged.has(5..6) && logged.has(0..100));
        assert!(!logged.has(6..100));
        logged.set_checkpointed(20);
        assert!(!logged.has(0..100));
    }

    #[test]
    fn what_is_checkpointed_takes_no_memory_for_ever() {
        let logged = Logged::default();
        for commit in 1..100_000 {
            logged.committed(commit..commit + 1, commit);
            logged.set_checkpointed(commit.saturating_sub(100));
        }
        assert!(logged.pages.lock().len() < 10 * FEW);
        assert!(logged.has(99_950..99_951) && !logged.has(0..99_800));
    }
}

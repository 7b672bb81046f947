//! Growth of a directory's table: a larger table, and chains that are split.

use super::cache::SEGMENTS;
use super::links::latest_next;
use super::ops::{DirOp, STRIPES};
use super::stripe::{Lines, Locked, SPLIT_WORDS};
use crate::layout::{WORDS_PER_PAGE, bucket, dentry, line_at, page_at};
use crate::medium::Medium;
use crate::tree;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::{Relaxed, Release};
use vfs::Result;

/// Entries for so many buckets that call for a larger table. Fewer would spread the cached buckets
/// over more cache lines; with more, chains longer than what is cached would no longer be rare (one
/// in forty here).
const LOAD: (i64, i64) = (5, 2);
/// Buckets that are looked at before a table grows for names of an earlier mount ...
const SAMPLES: u64 = 32;
/// ... and entries in each, on average, below which the count of names is not believed: a fifth of
/// what it says.
const SPARSE: f64 = 0.5;

impl Locked<'_> {
    /// Provide for one more entry: the table's first page, and a larger table when the stripe is
    /// full. Growing is optional; only the first page can fail for want of space. Also splits
    /// the chain that the last search went through, if that was long.
    pub fn provide(&mut self, medium: &Medium, hash: u64) -> Result<()> {
        // An operation that failed may have left a split that nobody paid for: one, not more.
        let split = || matches!(self.ops.ops.back(), Some(DirOp::Split { .. }));
        if std::mem::take(&mut self.long) && !split() {
            let (b, _) = self.home(medium, hash)?;
            self.split_once(medium, b)?;
        }
        let level = self.active.level.load(Relaxed);
        let here = self.active.stripes[self.index].entries.load(Relaxed)
            + (self.dir.loaded_entries / STRIPES as u64) as i64;
        let room = (bucket::BASE / STRIPES as u64) as i64 * LOAD.0 / LOAD.1;
        let is_full = here >= room << level && (level as usize) < SEGMENTS - 1;
        if is_full && self.is_crowded(medium, room << level) {
            let _ = self.provide_level(medium, level + 1);
            Ok(())
        } else if self.dir.root.load(Relaxed) == 0 {
            self.provide_level(medium, level)
        } else {
            Ok(())
        }
    }

    /// Whether the buckets bear out that there are about this many entries in the stripe: the count
    /// on the medium may be damaged, and a table for names that are not there would take what space
    /// there is.
    fn is_crowded(&self, medium: &Medium, entries: i64) -> bool {
        if self.active.stripes[self.index].entries.load(Relaxed) >= entries {
            return true; // they came since
        }
        let buckets = bucket::BASE << self.active.level.load(Relaxed);
        let mine = buckets / STRIPES as u64;
        let step = (mine / SAMPLES).max(1);
        let (mut found, mut looked) = (0.0, 0.0);
        for i in (0..mine).step_by(step as usize) {
            let hash = i * STRIPES as u64 + self.index as u64;
            let Ok((b, chain)) = self.search(medium, hash) else {
                continue; // damaged: who needs it is told
            };
            // The entries of those that are not split off are with their parent.
            let own = (b + 1).next_power_of_two().max(bucket::BASE);
            let shared_by = (buckets / own).max(1);
            if let Ok(lines) = self.entries(medium, chain) {
                found += lines.len() as f64 / shared_by as f64;
            }
            looked += 1.0;
        }
        found >= SPARSE * looked
    }

    fn provide_level(&mut self, medium: &Medium, level: u32) -> Result<()> {
        let active = self.active;
        let mut growth = active.growth.lock();
        let now = self.active.level.load(Relaxed);
        if now > level {
            return Ok(());
        }
        let blocks = bucket::blocks(level);
        let want = (blocks + tree::nodes_for(blocks))
            .saturating_sub(growth.blocks + tree::nodes_for(growth.blocks));
        let mut got = Vec::new();
        let give_back = |got: Vec<_>| {
            got.into_iter().for_each(|run| medium.alloc.free_pages(run));
        };
        let mut have = 0;
        while have < want {
            match medium.alloc.pages(want - have) {
                Ok(run) => {
                    have += run.end - run.start;
                    got.push(run);
                }
                Err(e) => {
                    give_back(got);
                    return Err(e);
                }
            }
        }
        if now < level && self.is_in_use(medium, level) {
            give_back(got);
            return Ok(());
        }
        growth.pages.extend(got);
        let added = blocks.saturating_sub(growth.blocks);
        self.active.added.fetch_add(added, Relaxed);
        growth.blocks += added;
        self.ops.words += want;
        self.active.level.store(level, Release);
        Ok(())
    }

    /// Whether the medium has anything where the buckets will be that come with a level: damage has
    /// lowered the directory's, or made a pointer there. Whatever that is, in neither view may it
    /// become names.
    fn is_in_use(&self, medium: &Medium, level: u32) -> bool {
        let root = self.dir.consistent_root();
        let find = |block| tree::find(&medium, root, block);
        let in_first = (bucket::BASE << (level - 1)..bucket::BASE << level)
            .take_while(|&b| b < WORDS_PER_PAGE);
        let is_used = |page| {
            let mut words = in_first.map(|b| page_at(page) + b * 8);
            words.any(|at| medium.pool.load(at) != 0)
        };
        let mut further = bucket::blocks(level - 1)..bucket::blocks(level);
        match find(0) {
            Ok(Some(first)) if is_used(first.page) => true,
            _ => further.any(|block| !matches!(find(block), Ok(None))),
        }
    }

    /// Split the first bucket off `b` that is not split off yet, if the table is large enough.
    fn split_once(&mut self, medium: &Medium, b: u64) -> Result<()> {
        let level = self.active.level.load(Relaxed);
        let is_below = |k: &u32| b < bucket::BASE << k;
        let child = |k| b | bucket::BASE << k;
        // Children are split off in this order, so the last one mostly tells that there is nothing
        // left to do.
        match level.checked_sub(1).filter(is_below) {
            Some(last) if self.is_unsplit(medium, child(last))? => {}
            _ => return Ok(()),
        }
        for k in (0..level).filter(is_below) {
            if self.is_unsplit(medium, child(k))? && self.has_place(medium, child(k))? {
                let mask = (bucket::BASE << (k + 1)) - 1;
                return self.split(medium, b, child(k), mask);
            }
        }
        Ok(())
    }

    /// Whether a bucket has a place on the medium, or will have: damage may have left holes in the
    /// table. What the consistent view cannot split off the latest one must not (D4).
    fn has_place(&self, medium: &Medium, b: u64) -> Result<bool> {
        Ok(self.active.cache.has_grown_to(b) || self.dir.consistent_bucket(medium, b)? != (0, 0))
    }

    fn split(&mut self, medium: &Medium, b: u64, child: u64, mask: u64) -> Result<()> {
        let (home, chain) = self.home(medium, b)?;
        self.home = None;
        debug_assert_eq!(home, b);
        let hash = |line: &u64| medium.pool.load(line_at(*line) + dentry::HASH);
        let (go, stay): (Lines, Lines) = self
            .entries(medium, chain)?
            .into_iter()
            .partition(|line| hash(line) & mask == child);
        let mut relinks = SmallVec::<[(u64, u64); 8]>::new();
        for chain in [&stay, &go] {
            for (i, &line) in chain.iter().enumerate() {
                let next = chain.get(i + 1).copied();
                if latest_next(medium, line)? != next {
                    relinks.push((line, next.unwrap_or(0)));
                }
            }
        }
        self.ops.words += SPLIT_WORDS + relinks.len() as u64;
        self.rearrange(|| {
            for (line, next) in relinks {
                medium
                    .pool
                    .store(line_at(line) + dentry::LATEST_NEXT, medium.tagged(next));
            }
            self.active.cache.set(medium, child, &go);
            self.active.cache.set(medium, b, &stay);
        });
        self.push(DirOp::Split { bucket: child });
        Ok(())
    }
}

//! Arenas: free lines, pairs of lines and pages of a core's threads, and the depot between them.

use super::Allocator;
use crate::layout::{LINES_PER_PAGE, line_at};
use crate::lock::{SpinLock, takes_long};
use crate::shards::thread_slot;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Error, Result};

/// Free pages an arena keeps for itself before they go back to their region.
pub const ARENA_PAGES: usize = 64;
/// Lines or pairs that move between an arena and the depot at once.
const MAGAZINE: usize = 256;
/// Free lines or pairs in an arena above which a magazine goes to the depot.
const ARENA_LINES: usize = 4 * MAGAZINE;
/// Generations that an arena takes at once.
const GENERATIONS: u32 = 256;

/// What no other inode has.
pub struct Identity {
    /// Its number: the first of two adjacent lines, even.
    pub ino: u64,
    /// Tells it from all that had this number before: this mount gives each once, until it has
    /// given all of 32 bits.
    pub generation: u32,
}

/// Free space of one core's threads.
pub(super) type Arena = SpinLock<ArenaFree>;

#[derive(Default)]
pub(super) struct ArenaFree {
    /// Lines taken from free space, less lines given back, by this arena's threads.
    pub(super) used_lines: i64,
    pub(super) run: Range<u64>,
    pub(super) pages: Vec<u64>,
    pub(super) lines: Vec<u64>,
    pub(super) pairs: Vec<u64>,
    pub(super) region: usize,
    /// The next generation to give, unless a range of them ends here.
    pub(super) generation: u32,
}

#[derive(Default)]
pub(super) struct Depot {
    pub(super) lines: Vec<u64>,
    pub(super) pairs: Vec<u64>,
}

/// No space: the caller undoes what it began; the file system may free some and try again.
pub(super) fn no_space() -> Error {
    Error::Errno(vfs::Errno::NOSPC)
}

impl Allocator {
    fn arena(&self) -> &Arena {
        takes_long(); // it may have to look for space
        &self.arenas[thread_slot() & (self.arenas.len() - 1)]
    }

    /// A line.
    pub fn line(&self) -> Result<u64> {
        self.pop_line(&mut self.arena().lock())
    }

    /// Two adjacent lines for an inode, and a line for its entry. `expect` is told the number that
    /// the next inode will probably have.
    pub fn inode_and_line(&self, expect: impl FnOnce(u64)) -> Result<(Identity, u64)> {
        let mut a = self.arena().lock();
        let pair = self.pop_pair(&mut a)?;
        a.pairs.last().copied().map(expect);
        match self.pop_line(&mut a) {
            Ok(line) => Ok((self.identity(&mut a, pair), line)),
            Err(e) => {
                a.used_lines -= 2;
                a.pairs.push(pair);
                Err(e)
            }
        }
    }

    /// Two adjacent lines for an inode without a name.
    pub fn inode(&self) -> Result<Identity> {
        let mut a = self.arena().lock();
        let pair = self.pop_pair(&mut a)?;
        Ok(self.identity(&mut a, pair))
    }

    fn identity(&self, a: &mut ArenaFree, ino: u64) -> Identity {
        if a.generation.is_multiple_of(GENERATIONS) {
            a.generation = self.generations.fetch_add(GENERATIONS, Relaxed);
        }
        let generation = self.first_generation.wrapping_add(a.generation);
        a.generation = a.generation.wrapping_add(1);
        Identity { ino, generation }
    }

    fn pop_line(&self, a: &mut ArenaFree) -> Result<u64> {
        check_shortage()?;
        loop {
            if let Some(line) = a.lines.pop() {
                if let Some(&next) = a.lines.last() {
                    self.pool.prefetch_for_write(line_at(next)); // it has probably left the cache
                }
                a.used_lines += 1;
                return Ok(line);
            }
            if !self.refill_lines(a)? {
                let pair = self.find_pair(a)?;
                a.lines.extend([pair + 1, pair]);
            }
        }
    }

    /// A run of 1 to `want` pages, as long as it can be had at once.
    pub fn pages(&self, want: u64) -> Result<Range<u64>> {
        check_shortage()?;
        let mut a = self.arena().lock();
        let run = self.take_pages(&mut a, want)?;
        a.used_lines += ((run.end - run.start) * LINES_PER_PAGE) as i64;
        Ok(run)
    }

    /// One page.
    pub fn page(&self) -> Result<u64> {
        Ok(self.pages(1)?.start)
    }

    fn take_pages(&self, a: &mut ArenaFree, want: u64) -> Result<Range<u64>> {
        if want == 1
            && let Some(page) = a.pages.pop()
        {
            return Ok(page..page + 1);
        }
        if a.run.is_empty() {
            match self.find_run(&mut a.region)? {
                Some(run) => a.run = run,
                None => {
                    let page = a.pages.pop().ok_or_else(no_space)?;
                    return Ok(page..page + 1);
                }
            }
        }
        let end = a.run.end.min(a.run.start + want);
        let run = a.run.start..end;
        a.run.start = end;
        Ok(run)
    }

    fn pop_pair(&self, a: &mut ArenaFree) -> Result<u64> {
        check_shortage()?;
        let pair = self.find_pair(a)?;
        a.used_lines += 2;
        Ok(pair)
    }

    fn find_pair(&self, a: &mut ArenaFree) -> Result<u64> {
        loop {
            if let Some(pair) = a.pairs.pop() {
                return Ok(pair);
            }
            if !self.refill_lines(a)? || a.pairs.is_empty() {
                let page = self.take_pages(a, 1)?.start;
                let first = page * LINES_PER_PAGE;
                a.pairs
                    .extend((0..LINES_PER_PAGE / 2).rev().map(|i| first + 2 * i));
            }
        }
    }

    /// Bring free lines or pairs from the depot or a partly used page; false: there are none.
    fn refill_lines(&self, a: &mut ArenaFree) -> Result<bool> {
        {
            let mut depot = self.depot.lock();
            let before = a.lines.len() + a.pairs.len();
            let keep = depot.lines.len().saturating_sub(MAGAZINE);
            a.lines.extend(depot.lines.drain(keep..));
            let keep = depot.pairs.len().saturating_sub(MAGAZINE);
            a.pairs.extend(depot.pairs.drain(keep..));
            if a.lines.len() + a.pairs.len() > before {
                return Ok(true);
            }
        }
        let region = match self.regions[a.region].get() {
            Some(region) => region,
            None if self.summary_says_full(a.region as u64, 32) => return Ok(false),
            None => self.region(a.region as u64)?,
        };
        let Some((page, free)) = region.inner.lock().partial.pop() else {
            return Ok(false);
        };
        split_lines(page, free, &mut a.lines, &mut a.pairs);
        Ok(true)
    }

    /// A line is free again: nothing on the medium leads to it, at any crash.
    pub fn free_line(&self, line: u64) {
        self.free(None, &[line]);
    }

    /// A pair is free again.
    pub fn free_pair(&self, pair: u64) {
        self.free(Some(pair), &[]);
    }

    /// A pair and lines are free again.
    pub fn free(&self, pair: Option<u64>, lines: &[u64]) {
        let mut a = self.arena().lock();
        a.used_lines -= lines.len() as i64;
        a.lines.extend_from_slice(lines);
        if let Some(pair) = pair {
            a.used_lines -= 2;
            a.pairs.push(pair);
        }
        if a.lines.len().max(a.pairs.len()) > ARENA_LINES {
            let (a, depot) = (&mut *a, &mut *self.depot.lock());
            for (own, others) in [
                (&mut a.lines, &mut depot.lines),
                (&mut a.pairs, &mut depot.pairs),
            ] {
                let keep = own.len().min(ARENA_LINES - MAGAZINE);
                others.extend(own.drain(keep..));
            }
        }
    }

    /// A run of pages is free again.
    pub fn free_pages(&self, run: Range<u64>) {
        let mut a = self.arena().lock();
        a.used_lines -= ((run.end - run.start) * LINES_PER_PAGE) as i64;
        if run.end - run.start == 1 && a.pages.len() < ARENA_PAGES {
            a.pages.push(run.start);
        } else {
            drop(a);
            self.give_back(run);
        }
    }

    /// Take all free lines and pages from arenas and depot, make whole pages of the lines where
    /// that goes, and give pages back to their regions. For a shortage: takes every lock. Returns
    /// the number of pages that others can have now.
    pub fn compact(&self) -> u64 {
        self.read_one_with_lines();
        let mut masks: HashMap<u64, u64> = HashMap::new();
        let mut arenas: Vec<_> = self.arenas.iter().map(|a| a.lock()).collect();
        let mut depot = self.depot.lock();
        let mut add = |line: u64, mask: u64| {
            *masks.entry(line / LINES_PER_PAGE).or_default() |= mask << (line % LINES_PER_PAGE);
        };
        let mut gained = 0;
        for a in &mut arenas {
            a.lines.drain(..).for_each(|l| add(l, 1));
            a.pairs.drain(..).for_each(|l| add(l, 3));
            let run = std::mem::take(&mut a.run);
            for run in a.pages.drain(..).map(|page| page..page + 1).chain([run]) {
                gained += run.end - run.start;
                self.give_back(run);
            }
        }
        depot.lines.drain(..).for_each(|l| add(l, 1));
        depot.pairs.drain(..).for_each(|l| add(l, 3));
        for region in self.regions.iter().filter_map(OnceLock::get) {
            for (page, free) in region.inner.lock().partial.drain(..) {
                add(page * LINES_PER_PAGE, free);
            }
        }
        let depot = &mut *depot;
        for (page, free) in masks {
            if free == u64::MAX {
                self.emptied.lock().push(page);
                gained += 1;
            } else {
                split_lines(page, free, &mut depot.lines, &mut depot.pairs);
            }
        }
        gained
    }

    /// Line pages that became free as a whole. Their bits on the medium are still set: the
    /// persister clears these, then hands the pages to [`Allocator::free_emptied`].
    pub fn take_emptied(&self) -> Vec<u64> {
        std::mem::take(&mut *self.emptied.lock())
    }

    /// The pages of [`Allocator::take_emptied`] can be used for anything. They count as free
    /// already.
    pub fn free_emptied(&self, page: u64) {
        self.give_back(page..page + 1);
    }
}

/// Free lines of a page, as pairs where both are free.
fn split_lines(page: u64, free: u64, lines: &mut Vec<u64>, pairs: &mut Vec<u64>) {
    let first = page * LINES_PER_PAGE;
    for i in (0..LINES_PER_PAGE).step_by(2) {
        match free >> i & 3 {
            3 => pairs.push(first + i),
            1 => lines.push(first + i),
            2 => lines.push(first + i + 1),
            _ => {}
        }
    }
}

/// Fails if a test wants this allocation to.
fn check_shortage() -> Result<()> {
    match schedule::shortage::strikes() {
        true => Err(Errno::NOSPC.into()),
        false => Ok(()),
    }
}

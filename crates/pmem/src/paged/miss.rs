//! Misses: absent pages are brought in, and those around them if they seem to be next.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{BlockError, Buffer};

use super::Shared;
use super::bug::Bug;
use super::pages::{Flag, Locked};
use crate::PAGE;

impl Shared {
    /// Makes a page present. If it cannot be read, what is loaded cannot be right: then nothing is
    /// written any more, and the page is zeros, which no reader takes for valid contents.
    pub(super) fn bring_or_poison(&self, locked: &Locked<'_>) {
        if let Err(error) = self.bring(locked) {
            self.poison(error);
            self.make_room(1);
            // Before anybody can find zeros there.
            self.has_blanks.store(true, Ordering::Release);
            locked.set(Flag::BLANK);
            self.arrive(
                std::slice::from_ref(&locked),
                &Buffer::zeroed(PAGE as usize),
            );
        }
    }

    /// Makes a page present.
    pub(super) fn bring(&self, locked: &Locked<'_>) -> Result<(), BlockError> {
        if locked.is(Flag::PRESENT) {
            return Ok(());
        }
        if locked.is(Flag::STANDBY) {
            self.bring_back(locked);
            return Ok(());
        }
        self.bring_in(locked)
    }

    /// Brings in an absent page, and those around it that are to be read ahead.
    fn bring_in(&self, locked: &Locked<'_>) -> Result<(), BlockError> {
        let (before, behind) = self.lock_around(locked.page());
        let pages = before.iter().rev().chain([locked]).chain(&behind);
        let pages: Vec<_> = pages.collect();
        if pages.len() > 1 && self.read_in(&pages).is_ok() {
            return Ok(());
        }
        // What is not needed yet may be what cannot be read.
        drop((before, behind));
        self.read_in(&[locked])
    }

    /// Locks absent pages before and behind a missed one, the nearest first.
    fn lock_around(&self, missed: u64) -> (Vec<Locked<'_>>, Vec<Locked<'_>>) {
        let run = self.ahead.missed(missed, self.residents.together_max());
        let absent = |page| self.lock_absent(page);
        let end = run.end.min(self.pages.count());
        let before = (run.start..missed).rev().map_while(absent);
        let behind = (missed + 1..end).map_while(absent);
        (before.collect(), behind.collect())
    }

    /// Locks a page, if it is absent and nobody else has it locked.
    fn lock_absent(&self, page: u64) -> Option<Locked<'_>> {
        let locked = self.pages.try_lock(page)?;
        let absent = !locked.is(Flag::PRESENT) && !locked.is(Flag::STANDBY);
        absent.then_some(locked)
    }

    /// Brings in pages, in ascending order, that are absent and that nobody is bringing in: many
    /// reads are in flight at a time. What cannot be read is left to those who need it.
    pub(super) fn bring_many(&self, pages: impl IntoIterator<Item = u64>) {
        let together = self.residents.together_max().min(MANY_PAGES) as usize;
        let mut absent = pages.into_iter().filter_map(|page| self.lock_absent(page));
        loop {
            let locked: Vec<_> = absent.by_ref().take(together).collect();
            if locked.is_empty() {
                return;
            }
            self.read_many(&locked);
        }
    }

    /// Reads absent pages, which are in ascending order.
    fn read_many(&self, pages: &[Locked<'_>]) {
        self.make_room(pages.len());
        let pages: Vec<_> = pages.iter().collect();
        let read = |run: &[&Locked<'_>]| {
            let (at, len) = (run[0].page() * PAGE, run.len() as u64 * PAGE);
            let buffer = Buffer::zeroed(len as usize);
            match self.disk.is_hole(at, len) {
                true => Err(buffer),
                false => Ok(self.disk.submit_read(at, vec![buffer])),
            }
        };
        let runs = pages.chunk_by(|one, next| one.page() + 1 == next.page());
        let reads: Vec<_> = runs.map(|run| (run, read(run))).collect();
        for (run, read) in reads {
            match read.map(|ticket| ticket.wait()) {
                Ok(Ok(buffers)) => self.arrive(run, &buffers[0]),
                Ok(Err(_)) => self.residents.give_back(run.len()),
                Err(zeros) => self.arrive(run, &zeros),
            }
        }
    }

    /// Reads absent pages, which are consecutive.
    fn read_in(&self, pages: &[&Locked<'_>]) -> Result<(), BlockError> {
        self.make_room(pages.len());
        let first = pages[0].page();
        let len = pages.len() * PAGE as usize;
        let buffer = Buffer::zeroed(len);
        // No write of any of them is in flight (P5).
        if self.disk.is_hole(first * PAGE, len as u64) {
            self.arrive(pages, &buffer);
            return Ok(());
        }
        match self.disk.read(first * PAGE, vec![buffer]) {
            Ok(buffers) => {
                self.arrive(pages, &buffers[0]);
                Ok(())
            }
            Err(_) if self.bugs.has(Bug::UnreadPresent) => {
                self.arrive(pages, &Buffer::zeroed(len));
                Ok(())
            }
            Err(error) => {
                self.residents.give_back(pages.len());
                Err(error)
            }
        }
    }

    /// Gives absent pages, which are consecutive, their contents.
    fn arrive(&self, pages: &[&Locked<'_>], contents: &[u8]) {
        self.residents.missed(pages.len());
        self.fill(pages[0].page(), contents);
        for locked in pages {
            locked.set(Flag::PRESENT);
        }
        self.residents
            .arrived(pages.iter().map(|locked| locked.page()));
    }
}

/// Pages of which reads are in flight at a time, where many are known to be needed.
const MANY_PAGES: u64 = 512;

/// Pages that are watched together for misses in order.
const WINDOW_PAGES: u64 = 64;
/// Pages that the second miss in a window brings in, and later ones at most.
const RUN_PAGES_MIN: u64 = 16;
const RUN_PAGES_MAX: u64 = 64;
/// Bits of an entry for the length of a run.
const RUN_BITS: u32 = 8;

/// Misses in a window, in any order, from which on so many pages around each are brought in: files
/// of a directory lie side by side, and are not read in that order.
const AROUND: [(u64, u64); 2] = [(4, WINDOW_PAGES), (3, RUN_PAGES_MIN)];
/// Bits of an entry for the number of misses.
const COUNT_BITS: u32 = 8;

/// Where misses were lately, by window, in tables that forget. Races lose a hint, no more.
pub(super) struct ReadAhead {
    /// The end of the run that was brought in last, and its length.
    runs: [AtomicU64; 64],
    /// The window, and the misses there since another one had the entry.
    counts: [AtomicU64; 64],
}

impl Default for ReadAhead {
    fn default() -> Self {
        let none = || std::array::from_fn(|_| AtomicU64::new(0));
        ReadAhead {
            runs: none(),
            counts: none(),
        }
    }
}

impl ReadAhead {
    fn run(&self, page: u64) -> &AtomicU64 {
        &self.runs[(page / WINDOW_PAGES) as usize % self.runs.len()]
    }

    /// A page is missed; which ones are to be brought in with it, at most `max`.
    fn missed(&self, page: u64, max: u64) -> Range<u64> {
        let misses = self.count(page / WINDOW_PAGES);
        // A run may have ended where the page's window begins.
        let before = self.run(page.saturating_sub(1)).load(Ordering::Relaxed);
        let (end, last) = (before >> RUN_BITS, before & ((1 << RUN_BITS) - 1));
        let in_order = end > 0 && end <= page && page - end < WINDOW_PAGES;
        let around = AROUND
            .into_iter()
            .find(|&(from, pages)| misses >= from && pages <= max);
        let run = match around {
            _ if in_order => page..page + (4 * last).clamp(RUN_PAGES_MIN, RUN_PAGES_MAX).min(max),
            Some((_, pages)) => page / pages * pages..(page / pages + 1) * pages,
            None => page..page + 1,
        };
        let entry = run.end << RUN_BITS | (run.end - run.start);
        self.run(run.end - 1).store(entry, Ordering::Relaxed);
        run
    }

    /// Counts a miss in a window; returns how many there were.
    fn count(&self, window: u64) -> u64 {
        let entry = &self.counts[window as usize % self.counts.len()];
        let before = entry.load(Ordering::Relaxed);
        let (known, misses) = (before >> COUNT_BITS, before & ((1 << COUNT_BITS) - 1));
        let misses = match known == window {
            true => (misses + 1).min((1 << COUNT_BITS) - 1),
            false => 1,
        };
        entry.store(window << COUNT_BITS | misses, Ordering::Relaxed);
        misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(run: Range<u64>) -> u64 {
        run.end - run.start
    }

    #[test]
    fn misses_in_order_read_ahead_and_scattered_ones_do_not() {
        let ahead = ReadAhead::default();
        let (mut page, mut runs) = (1000, Vec::new());
        for _ in 0..5 {
            let run = ahead.missed(page, 1000);
            assert_eq!(run.start, page);
            page = run.end;
            runs.push(len(run));
        }
        assert_eq!(runs, [1, 16, 64, 64, 64]);
        for page in [5000, 4000, 9000, 100_000, 6000] {
            assert_eq!(len(ahead.missed(page, 1000)), 1);
        }
        assert_eq!(len(ahead.missed(6001, 2)), 2);
    }

    #[test]
    fn misses_side_by_side_in_any_order_bring_in_what_is_around_them() {
        let ahead = ReadAhead::default();
        let first = 10 * WINDOW_PAGES;
        let missed = |page| ahead.missed(first + page, 1000);
        assert_eq!(len(missed(60)), 1);
        assert_eq!(len(missed(40)), 1);
        assert_eq!(missed(20), first + 16..first + 32);
        assert_eq!(missed(10), first..first + 64);
        // The next window knows nothing of that, unless it is met in order.
        assert_eq!(len(ahead.missed(first + 5 * WINDOW_PAGES, 1000)), 1);
        // Another window comes between.
        let other = |n| first + (ahead.counts.len() as u64 + n) * WINDOW_PAGES;
        let ahead = ReadAhead::default();
        for n in [60, 40, 30, 20, 10] {
            assert_eq!(len(ahead.missed(first + n, 1000)), 1);
            assert_eq!(len(ahead.missed(other(0), 1000)), 1);
        }
        // Where so many may not be brought in together.
        let ahead = ReadAhead::default();
        for n in [60, 40, 30, 20, 10] {
            assert_eq!(len(ahead.missed(first + n, 15)), 1);
        }
        assert_eq!(len(ahead.missed(first + 5, 20)), 16);
    }
}

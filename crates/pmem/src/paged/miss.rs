//! Misses: absent pages are brought in, and those behind them if they seem to be next.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{BlockError, Buffer};

use super::Shared;
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

    /// Brings in an absent page, and those behind it that are to be read ahead.
    fn bring_in(&self, locked: &Locked<'_>) -> Result<(), BlockError> {
        let ahead = self.lock_ahead(locked.page());
        let pages: Vec<_> = std::iter::once(locked).chain(&ahead).collect();
        if !ahead.is_empty() && self.read_in(&pages).is_ok() {
            return Ok(());
        }
        // What is not needed yet may be what cannot be read.
        drop(ahead);
        self.read_in(&[locked])
    }

    /// Locks absent pages behind a missed one.
    fn lock_ahead(&self, missed: u64) -> Vec<Locked<'_>> {
        let run = self.ahead.missed(missed, self.residents.together_max());
        let absent = |page| {
            let locked = self.pages.try_lock(page)?;
            let absent = !locked.is(Flag::PRESENT) && !locked.is(Flag::STANDBY);
            absent.then_some(locked)
        };
        let end = (missed + run).min(self.pages.count());
        (missed + 1..end).map_while(absent).collect()
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

/// Pages that are watched together for misses in order.
const WINDOW_PAGES: u64 = 64;
/// Pages that the second miss in a window brings in, and later ones at most.
const RUN_PAGES_MIN: u64 = 16;
const RUN_PAGES_MAX: u64 = 64;
/// Bits of an entry for the length of a run.
const RUN_BITS: u32 = 8;

/// Where misses were lately, by window, in a table that forgets. An entry has the end of the run
/// that was brought in, and its length. Races lose a hint, no more.
pub(super) struct ReadAhead([AtomicU64; 64]);

impl Default for ReadAhead {
    fn default() -> Self {
        ReadAhead(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl ReadAhead {
    fn entry(&self, page: u64) -> &AtomicU64 {
        &self.0[(page / WINDOW_PAGES) as usize % self.0.len()]
    }

    /// A page is missed; how many are to be brought in from it on, at most `max`.
    fn missed(&self, page: u64, max: u64) -> u64 {
        // A run may have ended where the page's window begins.
        let before = self.entry(page.saturating_sub(1)).load(Ordering::Relaxed);
        let (end, last) = (before >> RUN_BITS, before & ((1 << RUN_BITS) - 1));
        let behind = end > 0 && end <= page && page - end < WINDOW_PAGES;
        let run = if behind {
            (4 * last).clamp(RUN_PAGES_MIN, RUN_PAGES_MAX)
        } else {
            1
        };
        let run = run.min(max);
        let entry = (page + run) << RUN_BITS | run;
        self.entry(page + run - 1).store(entry, Ordering::Relaxed);
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_in_order_read_ahead_and_scattered_ones_do_not() {
        let ahead = ReadAhead::default();
        let (mut page, mut runs) = (1000, Vec::new());
        for _ in 0..5 {
            let run = ahead.missed(page, 1000);
            runs.push(run);
            page += run;
        }
        assert_eq!(runs, [1, 16, 64, 64, 64]);
        for page in [5000, 4000, 9000, 100_000, 6000] {
            assert_eq!(ahead.missed(page, 1000), 1);
        }
        assert_eq!(ahead.missed(6001, 2), 2);
    }
}

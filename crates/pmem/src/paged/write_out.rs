//! Write-out: sectors that may differ from the disk are copied at one instant each, and the copies
//! are written. For a fence, or because too many pages are unclean.
//!
//! 1. Claim the pages: nobody else writes them until the claim is given back (P4).
//! 2. Lock some of them, take their permissions away, and wait for the guards: now nobody stores to
//!    them (P2). Copy the sectors, and unlock the pages: now they may be stored to again (P3).
//! 3. Write the copies, those of many pages in pieces: the next is copied while others are in
//!    flight. One flush behind all of them.
//! 4. Pages that were not stored to since are clean.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use block::{BlockError, Buffer, SECTOR, Ticket, Wave};
use parking_lot::{Condvar, Mutex};

use super::bug::{Bug, Bugs};
use super::pages::{Flag, Locked, sector_bits};
use super::{Shared, Stats};
use crate::PAGE;

/// Pages that are locked together to be copied: they share a grace period.
const COPIED_TOGETHER: usize = 64;
/// Pages of a piece: 4 MiB, in this crate's tests less than they write together. With fewer all
/// copies are one wave.
const PIECE: usize = if cfg!(test) { 3 } else { 1024 };
/// Pieces in flight while the next one is copied.
const PIECES: usize = 2;

/// A page, and a bit for each of its sectors that is concerned.
pub(super) type PageBits = (u64, u8);

/// Pages of which writes are in flight, or about to be.
pub(super) struct Flights {
    pages: Mutex<BTreeSet<u64>>,
    landed: Condvar,
    bugs: Bugs,
}

/// Pages that nobody else writes; until this is dropped.
pub(super) struct Claim<'a> {
    flights: &'a Flights,
    pages: Vec<PageBits>,
}

/// Copies of a write-out.
#[derive(Default)]
struct Copies {
    /// Pages that were copied, and their sectors that were.
    written: Vec<PageBits>,
    /// Buffers of pages that have been written. Fresh memory costs more than the copy, as the
    /// kernel clears it.
    spare: Vec<Buffer>,
}

impl Copies {
    fn buffer(&mut self, len: usize) -> Buffer {
        let spare = (len as u64 == PAGE).then(|| self.spare.pop()).flatten();
        spare.unwrap_or_else(|| Buffer::zeroed(len))
    }

    /// Waits for a piece, all of it.
    fn take_back(&mut self, piece: Option<Vec<Ticket>>) -> Result<(), BlockError> {
        let mut outcome = Ok(());
        for ticket in piece.into_iter().flatten() {
            let written = ticket.wait().map(|buffers| {
                let whole = buffers.into_iter().filter(|b| b.len() as u64 == PAGE);
                self.spare.extend(whole);
            });
            outcome = outcome.and(written);
        }
        outcome
    }
}

impl Flights {
    pub(super) fn new(bugs: Bugs) -> Flights {
        Flights {
            pages: Mutex::default(),
            landed: Condvar::new(),
            bugs,
        }
    }

    /// Claims the pages that `find` finds and that are not in flight, when none of those in
    /// `ranges` (of bytes) is.
    pub(super) fn claim(
        &self,
        ranges: &[(u64, u64)],
        find: impl Fn() -> Vec<PageBits>,
    ) -> Claim<'_> {
        loop {
            let mut pages = find();
            let mut flying = self.pages.lock();
            let in_flight = |&(start, end): &(u64, u64)| {
                let mut within = flying.range(start / PAGE..end.div_ceil(PAGE));
                within.next().is_some()
            };
            let must_wait = ranges.iter().any(in_flight) && !self.bugs.has(Bug::FlightNotAwaited);
            if must_wait {
                self.landed.wait(&mut flying);
                continue;
            }
            let again = self.bugs.has(Bug::ClaimedTwice);
            pages.retain(|(page, _)| flying.insert(*page) || again);
            return Claim {
                flights: self,
                pages,
            };
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut flying = self.flights.pages.lock();
        for (page, _) in &self.pages {
            flying.remove(page);
        }
        self.flights.landed.notify_all();
    }
}

impl Shared {
    pub(super) fn fence(&self) -> Result<(), BlockError> {
        self.check_poison()?;
        if self.fence_by(|_, write| write().is_ok()) {
            return Ok(());
        }
        self.check_poison()?;
        unreachable!("a write-out failed without poisoning")
    }

    /// A fence whose write-out is run by `sync`, with a range that covers all that was flushed.
    /// `false`: it failed, this time or earlier.
    pub(super) fn fence_by(
        &self,
        sync: impl Fn(Range<u64>, &dyn Fn() -> Result<(), BlockError>) -> bool,
    ) -> bool {
        self.gather.fence(|ranges| {
            let ranges = ranges.into_sorted();
            if ranges.len() < 2 && self.bugs.has(Bug::FenceForgotten) {
                return true;
            }
            let start = ranges.first().map_or(0, |range| range.0);
            let end = ranges.last().map_or(0, |range| range.1);
            sync(start..end, &|| self.write_ranges(&ranges))
        })
    }

    /// Makes what the ranges hold durable. They are in ascending order.
    fn write_ranges(&self, ranges: &[(u64, u64)]) -> Result<(), BlockError> {
        // What another write-out has taken is durable when its claim is gone.
        let claim = self
            .flights
            .claim(ranges, || self.unclean_in(ranges, usize::MAX));
        self.write_out(claim)
    }

    /// The first pages in ranges of bytes, in ascending order, that have sectors there which may
    /// differ from the disk.
    fn unclean_in(&self, ranges: &[(u64, u64)], limit: usize) -> Vec<PageBits> {
        let mut found: Vec<PageBits> = Vec::new();
        for &(start, end) in ranges {
            for page in start / PAGE..end.div_ceil(PAGE) {
                if found.len() == limit {
                    return found;
                }
                let permitted = self.pages.permitted(page);
                if permitted == 0 {
                    continue;
                }
                let (from, to) = (start.max(page * PAGE), end.min((page + 1) * PAGE));
                match (permitted & sector_bits(from, to - from), found.last_mut()) {
                    (0, _) => {}
                    (bits, Some((last, all))) if *last == page => *all |= bits,
                    (bits, _) => found.push((page, bits)),
                }
            }
        }
        found
    }

    /// Writes the sectors of claimed pages that may be stored to.
    fn write_out(&self, claim: Claim<'_>) -> Result<(), BlockError> {
        self.check_poison()?;
        let mut copies = Copies::default();
        let mut outcome = self.write_copies(&claim.pages, &mut copies);
        if self.bugs.has(Bug::FailureIgnored) {
            outcome = Ok(());
        }
        let written = copies.written;
        let clean = self.landed(&written, outcome.is_ok());
        let sectors = written.iter().map(|(_, bits)| u64::from(bits.count_ones()));
        self.room.landed(clean, sectors.sum());
        drop(claim);
        // Who was told of the room may have found the same pages claimed.
        self.room.released();
        outcome.inspect_err(|error| self.poison(error.clone()))
    }

    /// Copies pages, and writes the copies, with a flush behind them. Nothing is in flight on
    /// return.
    fn write_copies(&self, pages: &[PageBits], copies: &mut Copies) -> Result<(), BlockError> {
        let mut pieces = VecDeque::new();
        let mut outcome = Ok(());
        let mut rest = pages;
        while outcome.is_ok() && rest.len() > PIECE {
            let (piece, behind) = rest.split_at(PIECE);
            rest = behind;
            pieces.push_back(self.disk.submit_writes(self.copy_out(piece, copies)));
            if pieces.len() > PIECES {
                outcome = copies.take_back(pieces.pop_front());
            }
        }
        // All is over before the flush is asked for, which else might pass it by.
        for piece in pieces {
            outcome = outcome.and(copies.take_back(Some(piece)));
        }
        outcome?;
        self.disk.commit(self.copy_out(rest, copies)).map(drop)
    }

    /// Copies sectors that may be stored to, which they may not be any more.
    fn copy_out(&self, pages: &[PageBits], copies: &mut Copies) -> Wave {
        let mut wave = Wave::new();
        for pages in pages.chunks(COPIED_TOGETHER) {
            self.copy_together(pages, &mut wave, copies);
        }
        wave
    }

    /// Takes permissions of sectors away, and adds copies of those that had one to a wave.
    fn copy_together(&self, pages: &[PageBits], wave: &mut Wave, copies: &mut Copies) {
        let revoke = |&(page, bits): &PageBits| {
            let locked = self.pages.lock(page);
            let revoked = locked.revoke(bits);
            (revoked != 0).then_some((locked, revoked))
        };
        // All who wait for several locks wait for pages that they have claimed.
        let revoked: Vec<_> = pages.iter().filter_map(revoke).collect();
        if revoked.is_empty() {
            return;
        }
        if !self.bugs.has(Bug::GuardsNotAwaited) {
            self.guards.wait();
        }
        for (locked, bits) in &revoked {
            self.copy_page(locked, *bits, wave, copies);
            copies.written.push((locked.page(), *bits));
        }
    }

    /// Adds copies of sectors that nobody stores to.
    fn copy_page(&self, locked: &Locked<'_>, bits: u8, wave: &mut Wave, copies: &mut Copies) {
        let mut sector = 0;
        while bits >> sector != 0 {
            sector += (bits >> sector).trailing_zeros();
            let count = (bits >> sector).trailing_ones();
            let at = locked.page() * PAGE + u64::from(sector) * SECTOR;
            let mut copy = copies.buffer((u64::from(count) * SECTOR) as usize);
            self.region.read(at, &mut copy);
            wave.write(at, copy);
            sector += count;
            if sector == 8 || self.bugs.has(Bug::SectorsForgotten) {
                return;
            }
        }
    }

    /// Writes of sectors are over. Returns how many pages are clean now.
    fn landed(&self, written: &[PageBits], ok: bool) -> usize {
        let mut clean = 0;
        for &(page, bits) in written {
            let locked = self.pages.lock(page);
            if !ok {
                // Memory alone has them now: the page must stay.
                locked.grant(bits);
            } else if self.pages.permitted(page) == 0 || self.bugs.has(Bug::CleanThoughStored) {
                locked.clear(Flag::UNCLEAN);
                clean += 1;
            }
        }
        clean
    }

    /// Writes pages out while too many are unclean, until the room is closed.
    pub(super) fn write_out_for_room(&self) {
        let mut from = 0;
        let mut seen = None;
        while let Some(now) = self.room.await_work(seen) {
            let end = self.region.len();
            let limit = self.room.together_max();
            let ranges = [(from * PAGE, end), (0, from * PAGE)];
            let claim = self.flights.claim(&[], || self.unclean_in(&ranges, limit));
            // If there is nothing to write, what is too much is in flight, or being brought in.
            seen = claim.pages.is_empty().then_some(now);
            if let Some((last, _)) = claim.pages.last() {
                from = last + 1;
                // A failure has poisoned: nobody waits for room any more.
                let _ = self.write_out(claim);
            }
        }
    }
}

/// How many pages are unclean, and may be.
pub(super) struct Room {
    /// Pages of the cache.
    capacity: usize,
    state: Mutex<State>,
    /// There is more room.
    freed: Condvar,
    /// There may be something to write.
    work: Condvar,
}

#[derive(Default)]
struct State {
    unclean: usize,
    /// How often something changed.
    changes: u64,
    sectors_written: u64,
    /// Nothing is written any more, so nobody waits for room.
    unbound: bool,
    stopped: bool,
}

/// Room for one more unclean page; given back unless it is kept.
#[must_use]
pub(super) struct Taken<'a>(&'a Room);

impl Room {
    pub(super) fn new(capacity: usize) -> Room {
        Room {
            capacity,
            state: Mutex::default(),
            freed: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// How many pages are written together, at most.
    fn together_max(&self) -> usize {
        (self.capacity / 4).max(1)
    }

    /// Something has changed; wakes the thread that writes out, if there is too much.
    fn changed(&self, state: &mut State) {
        state.changes += 1;
        if state.unclean > self.capacity / 2 {
            self.work.notify_one();
        }
    }

    /// Takes room for one more unclean page, when no more than three quarters of the cache are
    /// unclean with it. The caller holds no page.
    pub(super) fn take(&self) -> Taken<'_> {
        let mut state = self.state.lock();
        while state.unclean >= self.capacity / 4 * 3 && !state.unbound {
            self.work.notify_one();
            self.freed.wait(&mut state);
        }
        state.unclean += 1;
        Taken(self)
    }

    /// Pages are clean.
    pub(super) fn landed(&self, clean: usize, sectors: u64) {
        let mut state = self.state.lock();
        state.unclean -= clean;
        state.sectors_written += sectors;
        self.changed(&mut state);
        self.freed.notify_all();
    }

    /// Pages are no longer claimed.
    pub(super) fn released(&self) {
        self.changed(&mut self.state.lock());
    }

    /// Nobody waits for room any more.
    pub(super) fn unbind(&self) {
        self.state.lock().unbound = true;
        self.freed.notify_all();
    }

    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_one();
    }

    /// Waits until more than half of the cache is unclean, and something has changed since `seen`.
    /// Returns what has been seen then; `None`: it is over.
    fn await_work(&self, seen: Option<u64>) -> Option<u64> {
        let mut state = self.state.lock();
        let idle = |state: &State| {
            state.unbound || state.unclean <= self.capacity / 2 || seen == Some(state.changes)
        };
        while !state.stopped && idle(&state) {
            self.work.wait(&mut state);
        }
        (!state.stopped).then_some(state.changes)
    }

    pub(super) fn add_to(&self, stats: &mut Stats) {
        let state = self.state.lock();
        stats.unclean = state.unclean as u64;
        stats.sectors_written = state.sectors_written;
    }
}

impl Taken<'_> {
    /// The page is unclean, and may be written out.
    pub(super) fn keep(self) {
        self.0.changed(&mut self.0.state.lock());
        std::mem::forget(self);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.unclean -= 1;
        self.0.changed(&mut state);
        self.0.freed.notify_one();
    }
}

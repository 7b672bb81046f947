//! A modelled disk: contents in memory, and a simulated clock that tells how long a disk with
//! platters would take.
//!
//! Time passes only when somebody waits for a request, or says that time passes ([`advance`]). So a
//! run takes the same simulated time on every machine. The disk serves one request at a time, of
//! those that have arrived the next one in the direction of rising cylinders (C-LOOK).
//!
//! With a volatile cache a write is complete when the cache has it. What is dirty there goes to the
//! platters for a flush, when the cache is full, or when the disk is idle. What a crash leaves is
//! not this layer's matter, but the recorder's.
//!
//! [`advance`]: Modelled::advance

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::device::{Device, Info, Io, Op, Request, SECTOR};
use crate::events::Events;
use crate::memory::Memory;

/// The mechanics of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mechanics {
    /// Turns a minute.
    pub rpm: u64,
    /// Sectors of a track.
    pub track_sectors: u64,
    /// Tracks of a cylinder.
    pub heads: u64,
    /// Seek to the next cylinder, nanoseconds.
    pub seek_ns_min: u64,
    /// Seek across all cylinders, nanoseconds.
    pub seek_ns_max: u64,
    /// What each request costs beside everything else, nanoseconds.
    pub command_ns: u64,
    /// Bytes that the bus moves in a second.
    pub bus_bytes_per_s: u64,
    /// Bytes of dirty data that the volatile cache takes; 0: writes go to the platters at once.
    pub cache_bytes: u64,
}

impl Mechanics {
    /// A server's disk of 1999, its cache for writes off, as file systems without flushes need it.
    pub fn of_1999() -> Mechanics {
        Mechanics {
            rpm: 7200,
            track_sectors: 200,
            heads: 10,
            seek_ns_min: 1_000_000,
            seek_ns_max: 16_000_000,
            command_ns: 300_000,
            bus_bytes_per_s: 40_000_000,
            cache_bytes: 0,
        }
    }

    fn turn_ns(&self) -> u64 {
        60_000_000_000 / self.rpm
    }

    fn cylinder(&self, sector: u64) -> u64 {
        sector / (self.track_sectors * self.heads)
    }

    fn seek_ns(&self, distance: u64, cylinders: u64) -> u64 {
        if distance == 0 {
            return 0;
        }
        let far = (distance as f64 / cylinders.max(1) as f64).sqrt();
        self.seek_ns_min + ((self.seek_ns_max - self.seek_ns_min) as f64 * far) as u64
    }

    fn bus_ns(&self, bytes: u64) -> u64 {
        bytes * 1_000_000_000 / self.bus_bytes_per_s
    }
}

/// A device with a simulated clock.
pub struct Modelled {
    info: Info,
    mechanics: Mechanics,
    memory: Memory,
    state: Mutex<State>,
    events: Events,
}

#[derive(Default)]
struct State {
    now_ns: u64,
    /// When the disk is done with what it has served.
    free_ns: u64,
    busy_ns: u64,
    /// Where the head is.
    sector: u64,
    /// With the time of arrival, in that order.
    pending: Vec<(u64, Io)>,
    /// Runs of dirty sectors in the cache: first sector and count. They do not touch each other.
    dirty: BTreeMap<u64, u64>,
}

/// How long a piece of work takes, and what it leaves.
struct Work {
    end_ns: u64,
    sector: u64,
    /// Runs of the cache that are clean behind it.
    cleaned: Vec<u64>,
}

impl Modelled {
    /// A zeroed device of `len` bytes.
    ///
    /// # Panics
    /// Unless `len` is a positive multiple of [`SECTOR`].
    pub fn new(len: u64, mechanics: Mechanics) -> Modelled {
        let memory = Memory::new(len);
        let how = format!(
            "modelled disk: {} turns a minute, {} bytes of cache",
            mechanics.rpm, mechanics.cache_bytes
        );
        let info = Info {
            name: "modelled disk".to_owned(),
            how,
            ..memory.info().clone()
        };
        Modelled {
            info,
            mechanics,
            memory,
            state: Mutex::default(),
            events: Events::default(),
        }
    }

    /// The simulated time, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    /// How long the disk was busy so far, nanoseconds of simulated time.
    pub fn busy_ns(&self) -> u64 {
        self.state.lock().busy_ns
    }

    /// A copy of the contents.
    pub fn contents(&self) -> Vec<u8> {
        self.memory.contents()
    }

    /// Lets time pass, in which nobody waits for the disk: it serves what has arrived, and writes
    /// back what is dirty in its cache.
    pub fn advance(&self, ns: u64) {
        let until = {
            let mut state = self.state.lock();
            state.now_ns += ns;
            state.now_ns
        };
        loop {
            let served = {
                let mut state = self.state.lock();
                let served = self.serve(&mut state, Some(until));
                if served.is_none() && !self.write_back(&mut state, until) {
                    return;
                }
                served
            };
            self.finish(served);
        }
    }

    /// Serves the next request; `None`: there is none, or it would take longer than `until_ns`.
    fn serve(&self, state: &mut State, until_ns: Option<u64>) -> Option<Io> {
        let next = self.next(state)?;
        let (arrived, io) = &state.pending[next];
        let work = self.work(state, *arrived, &io.request);
        if until_ns.is_some_and(|until| work.end_ns > until) {
            return None;
        }
        let (arrived, io) = state.pending.remove(next);
        self.is_done(state, arrived, work);
        let action = io.request.action();
        if self.is_cached(&io.request) {
            make_dirty(&mut state.dirty, action.at / SECTOR, action.len / SECTOR);
        } else if action.op != Op::Read {
            // Whatever of it the cache had is replaced; a discard drops it.
            make_clean(&mut state.dirty, action.at / SECTOR, action.len / SECTOR);
        }
        Some(io)
    }

    /// The place in `pending` of the request to serve next.
    fn next(&self, state: &State) -> Option<usize> {
        let start = state.pending.iter().map(|(arrived, _)| *arrived).min()?;
        let start = start.max(state.free_ns);
        let head = state.sector;
        let arrived = state
            .pending
            .iter()
            .enumerate()
            .filter(|(_, (at, _))| *at <= start);
        let order = |(_, (at, io)): &(usize, &(u64, Io))| {
            let sector = io.request.action().at / SECTOR;
            // A flush has no place; it goes last, so that it does not stop the others.
            (
                io.request.action().op == Op::Flush,
                sector < head,
                sector,
                *at,
            )
        };
        arrived.min_by_key(order).map(|(i, _)| i)
    }

    fn is_cached(&self, request: &Request) -> bool {
        let fits = request.action().len <= self.mechanics.cache_bytes;
        fits && matches!(request, Request::Write { flush: false, .. })
    }

    /// What a request that arrived at a time takes.
    fn work(&self, state: &State, arrived: u64, request: &Request) -> Work {
        let action = request.action();
        let (sector, count) = (action.at / SECTOR, action.len / SECTOR);
        let mut work = Work {
            end_ns: state.free_ns.max(arrived) + self.mechanics.command_ns,
            sector: state.sector,
            cleaned: Vec::new(),
        };
        match action.op {
            Op::Write if self.is_cached(request) => {
                self.make_room(state, action.len, &mut work);
                work.end_ns += self.mechanics.bus_ns(action.len);
            }
            Op::Read if covers(&state.dirty, sector, count) => {
                work.end_ns += self.mechanics.bus_ns(action.len);
            }
            Op::Read | Op::Write | Op::Zero => self.move_sectors(sector, count, &mut work),
            Op::Flush | Op::Discard | Op::Allocate => {}
        }
        if request.flushes() {
            self.clean(state, u64::MAX, &mut work);
        }
        work
    }

    /// Seeks, waits for the first sector to come round, and reads or writes.
    fn move_sectors(&self, sector: u64, count: u64, work: &mut Work) {
        let mechanics = &self.mechanics;
        let (from, to) = (mechanics.cylinder(work.sector), mechanics.cylinder(sector));
        let cylinders = mechanics.cylinder(self.info.len / SECTOR);
        work.end_ns += mechanics.seek_ns(from.abs_diff(to), cylinders);
        let turn = mechanics.turn_ns();
        let place = |sector: u64| sector % mechanics.track_sectors * turn / mechanics.track_sectors;
        work.end_ns += (place(sector) + turn - work.end_ns % turn) % turn;
        let crossed = mechanics.cylinder(sector + count) - to;
        work.end_ns += count * turn / mechanics.track_sectors + crossed * mechanics.seek_ns_min;
        work.sector = sector + count;
    }

    /// Cleans so much of the cache that `bytes` more fit.
    fn make_room(&self, state: &State, bytes: u64, work: &mut Work) {
        let dirty: u64 = state.dirty.values().map(|count| count * SECTOR).sum();
        let room = self.mechanics.cache_bytes - dirty.min(self.mechanics.cache_bytes);
        if bytes > room {
            self.clean(state, bytes - room, work);
        }
    }

    /// Writes dirty runs to the platters, from the head on upward and then from the lowest one,
    /// until `bytes` are clean.
    fn clean(&self, state: &State, bytes: u64, work: &mut Work) {
        let ahead = state.dirty.range(state.sector..);
        let behind = state.dirty.range(..state.sector);
        let mut cleaned = 0;
        for (&sector, &count) in ahead.chain(behind) {
            if cleaned >= bytes {
                return;
            }
            self.move_sectors(sector, count, work);
            work.cleaned.push(sector);
            cleaned += count * SECTOR;
        }
    }

    /// Writes back one dirty run of an idle disk, if it takes no longer than `until_ns`.
    fn write_back(&self, state: &mut State, until_ns: u64) -> bool {
        if !state.pending.is_empty() || state.dirty.is_empty() {
            return false;
        }
        let start = state.free_ns;
        let mut work = Work {
            end_ns: start,
            sector: state.sector,
            cleaned: Vec::new(),
        };
        self.clean(state, 1, &mut work);
        let fits = work.end_ns <= until_ns;
        if fits {
            self.is_done(state, start, work);
        }
        fits
    }

    fn is_done(&self, state: &mut State, arrived: u64, work: Work) {
        state.busy_ns += work.end_ns - state.free_ns.max(arrived);
        state.free_ns = work.end_ns;
        state.sector = work.sector;
        for run in work.cleaned {
            state.dirty.remove(&run);
        }
    }

    /// Does what was served, and tells.
    fn finish(&self, served: Option<Io>) {
        let Some(Io { request, done }) = served else {
            return;
        };
        done(self.memory.execute(request));
        self.events.announce();
    }
}

/// Adds sectors to the dirty runs, and joins what touches.
fn make_dirty(dirty: &mut BTreeMap<u64, u64>, sector: u64, count: u64) {
    make_clean(dirty, sector, count);
    let (mut first, mut end) = (sector, sector + count);
    if let Some((&before, &run)) = dirty.range(..first).next_back()
        && before + run == first
    {
        first = before;
    }
    if let Some(behind) = dirty.remove(&end) {
        end += behind;
    }
    dirty.insert(first, end - first);
}

/// Takes sectors out of the dirty runs.
fn make_clean(dirty: &mut BTreeMap<u64, u64>, sector: u64, count: u64) {
    let end = sector + count;
    let overlapping: Vec<_> = dirty
        .range(..end)
        .rev()
        .map(|(&first, &run)| (first, run))
        .take_while(|(first, run)| first + run > sector)
        .collect();
    for (first, run) in overlapping {
        dirty.remove(&first);
        if first < sector {
            dirty.insert(first, sector - first);
        }
        if first + run > end {
            dirty.insert(end, first + run - end);
        }
    }
}

/// Whether all these sectors are dirty.
fn covers(dirty: &BTreeMap<u64, u64>, sector: u64, count: u64) -> bool {
    let run = dirty.range(..=sector).next_back();
    run.is_some_and(|(&first, &run)| first + run >= sector + count)
}

impl Device for Modelled {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, ios: Vec<Io>) {
        let mut state = self.state.lock();
        let now = state.now_ns;
        state.pending.extend(ios.into_iter().map(|io| (now, io)));
        drop(state);
        // One that found nothing to serve looks again.
        self.events.announce();
    }

    fn delivered(&self) -> u64 {
        self.events.count()
    }

    fn wait(&self, seen: u64) {
        let served = {
            let mut state = self.state.lock();
            if self.events.count() != seen {
                return;
            }
            let served = self.serve(&mut state, None);
            state.now_ns = state.now_ns.max(state.free_ns);
            served
        };
        match served {
            Some(io) => self.finish(Some(io)),
            // Another thread is calling callbacks.
            None => self.events.wait(seen),
        }
    }

    fn notify(&self) {
        self.events.announce();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_runs_join_and_split() {
        let mut dirty = BTreeMap::new();
        make_dirty(&mut dirty, 10, 5);
        make_dirty(&mut dirty, 20, 5);
        make_dirty(&mut dirty, 15, 5);
        assert_eq!(dirty, BTreeMap::from([(10, 15)]));
        assert!(covers(&dirty, 12, 13) && !covers(&dirty, 12, 14) && !covers(&dirty, 9, 2));
        make_clean(&mut dirty, 12, 3);
        assert_eq!(dirty, BTreeMap::from([(10, 2), (15, 10)]));
        make_dirty(&mut dirty, 11, 5);
        assert_eq!(dirty, BTreeMap::from([(10, 15)]));
        make_clean(&mut dirty, 0, 100);
        assert!(dirty.is_empty());
    }
}

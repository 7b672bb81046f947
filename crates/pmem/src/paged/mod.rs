//! Paged memory: bytes of a disk in memory of bounded size, which are written to the disk when this
//! module says so, and at no other time.
//!
//! Loads and stores are those of mapped memory, from any thread, under any lock, without an error
//! to return. `docs/design/page.md` has the reasons, and the rules P1 to P5 that the parts keep:
//!
//! - `pages`: two bytes for each page. One has a bit for each sector: it may be stored to. The
//!   other has the page's state and lock.
//! - `guards`: who is storing, and how to wait until they are done.
//! - `access`: loads and stores; a store without permission goes the slow way.
//! - `write_out`: takes permissions away, copies sectors, and writes the copies: what a fence asks
//!   for, or what is too much. `ranges`: what was flushed and waits for a fence.
//! - `give_up`: contents that nobody needs any more.
//! - `miss`: brings an absent page in. Absent pages are found by the MMU, and `serving` has the
//!   threads that serve those who load from them, by `faults`; or by a test at each load.
//!   `resident`: which pages are in memory, and which one goes. `tables`: page tables go with the
//!   last page that they map.
//!
//! ```text
//! absent --miss--> present, clean --permission to store--> present, unclean
//!    ^                |  ^  ^                                      |
//!    |            idle|  |  +--------- written to the disk --------+
//!    |                v  |used again
//!    +----dropped---standby
//! ```
//!
//! Lock order: flights; (a page's lock, in ascending order) -> (residents, room, gathered ranges:
//! leaves). Inside a guard nothing is waited for, so who holds any lock may wait for guards.

mod access;
mod bug;
#[allow(unsafe_code, reason = "system calls on address space")]
mod faults;
mod give_up;
mod guards;
mod memory;
mod miss;
mod pages;
mod ranges;
mod resident;
mod serving;
mod tables;
#[cfg(test)]
mod tests;
mod write_out;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use block::{BlockError, Disk};

use crate::gather::Gather;
use crate::map::Mapping;
use crate::raw::Region;
use crate::{PAGE, PoolError};
use bug::Bugs;
use faults::Faults;
use guards::Guards;
use miss::ReadAhead;
use pages::{Flag, Pages};
use ranges::Ranges;
use resident::Residents;
use serving::Serving;
use tables::Tables;
use write_out::{Flights, Room};

/// The fewest pages that a cache has.
const CACHE_PAGES_MIN: u64 = 8;

/// How a disk is held in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Bytes of memory for pages; rounded to whole pages, and to eight of them at least. While
    /// pages are being brought in there may be a few more.
    pub cache_bytes: u64,
    /// Let the MMU find absent pages, by `userfaultfd`, where that is allowed: loads cost nothing
    /// then.
    pub faults: bool,
    /// Let `membarrier` make up for a fence of each store, where the kernel has it.
    pub membarrier: bool,
    #[cfg(test)]
    bugs: Bugs,
}

impl Options {
    /// A cache of so many bytes.
    pub fn new(cache_bytes: u64) -> Options {
        Options {
            cache_bytes,
            faults: true,
            membarrier: true,
            #[cfg(test)]
            bugs: Bugs::default(),
        }
    }
}

impl Default for Options {
    /// A cache of a quarter of the memory that this process may use.
    fn default() -> Options {
        static QUARTER: OnceLock<u64> = OnceLock::new();
        Options::new(*QUARTER.get_or_init(|| memory::usable() / 4))
    }
}

/// What is in memory now, and what was done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of memory that pages may take.
    pub cache_bytes: u64,
    /// Pages in memory, on standby too.
    pub pages: u64,
    /// Pages on standby.
    pub standby: u64,
    /// Pages that may differ from the disk.
    pub unclean: u64,
    /// Pages that were read from the disk, or found to be a hole, as they were needed.
    pub misses: u64,
    /// Pages that were brought in ahead of need.
    pub read_ahead: u64,
    /// Pages that came back from standby.
    pub soft_misses: u64,
    /// Pages that were dropped from memory.
    pub dropped: u64,
    /// Sectors written.
    pub sectors_written: u64,
}

/// The bytes of a disk, as memory. Offsets are bytes from its start.
///
/// Methods take `&self` and may be called from any thread. Offsets out of range and misaligned
/// words are programmer mistakes and panic. Accesses that race yield some mixture of the bytes, but
/// of words that were stored whole.
///
/// Nothing is written when this is dropped: a user who wants its stores on the disk flushes and
/// fences them, as for a process that is killed.
pub struct Paged {
    shared: Arc<Shared>,
    writing_out: Option<JoinHandle<()>>,
}

/// What the threads that work on the pages share.
struct Shared {
    region: Region,
    /// `None`: loads test whether their page is present.
    faults: Option<Faults>,
    serving: Serving,
    pages: Pages,
    tables: Tables,
    guards: Guards,
    disk: Disk,
    residents: Residents,
    ahead: ReadAhead,
    room: Room,
    flights: Flights,
    gather: Gather<Ranges>,
    poison: OnceLock<BlockError>,
    /// Some page is or was [`Flag::BLANK`].
    has_blanks: AtomicBool,
    bugs: Bugs,
}

impl Paged {
    /// The whole pages of a disk. It is flushed first: what an earlier process left there is
    /// durable from then on (B9 of `docs/design/block.md`).
    ///
    /// # Errors
    /// It has not even one page, there is no address space for it, or it cannot be flushed.
    pub fn new(disk: Disk, options: &Options) -> Result<Paged, PoolError> {
        let path = std::path::PathBuf::from(&disk.info().name);
        let count = disk.len() / PAGE;
        if count == 0 {
            let have = disk.len();
            let need = PAGE;
            return Err(PoolError::TooSmall { path, need, have });
        }
        let io = |action: &'static str, source: std::io::Error| PoolError::Io {
            path: path.clone(),
            action,
            source,
        };
        let flushed = disk.flush();
        flushed.map_err(|error| io("flushing the disk", std::io::Error::other(error)))?;
        let mapping = Mapping::in_pages((count * PAGE) as usize);
        let mut region = Region::new(mapping.map_err(|error| io("mapping", error))?);
        region.set_access(true, true, true);
        let faults = options.faults.then(|| Faults::start(region.address()));
        let faults = faults.and_then(|faults| {
            let refused = |error: &_| log::info!("{}: loads test: {error}", path.display());
            faults.inspect_err(refused).ok()
        });
        let cache = (options.cache_bytes / PAGE).max(CACHE_PAGES_MIN);
        #[cfg(test)]
        let bugs = options.bugs;
        #[cfg(not(test))]
        let bugs = Bugs::default();
        let shared = Arc::new(Shared {
            tables: Tables::new(region.address().start, count),
            region,
            faults,
            serving: Serving::default(),
            pages: Pages::new(count as usize),
            guards: Guards::new(options.membarrier),
            disk,
            residents: Residents::new(cache as usize),
            ahead: ReadAhead::default(),
            room: Room::new(cache as usize),
            flights: Flights::new(bugs),
            gather: Gather::new(),
            poison: OnceLock::new(),
            has_blanks: AtomicBool::new(false),
            bugs,
        });
        let mut paged = Paged {
            shared: shared.clone(),
            writing_out: None,
        };
        let started = |error| io("starting a thread", error);
        let thread = std::thread::Builder::new().name("write-out".to_owned());
        let thread = thread.spawn({
            let shared = shared.clone();
            move || shared.write_out_for_room()
        });
        paged.writing_out = Some(thread.map_err(started)?);
        if paged.by_faults() {
            shared.start_serving().map_err(started)?;
        }
        Ok(paged)
    }

    /// Whether the MMU finds absent pages.
    pub fn by_faults(&self) -> bool {
        self.shared.faults.is_some()
    }

    /// Length in bytes, a multiple of [`PAGE`].
    #[allow(clippy::len_without_is_empty, reason = "there is at least one page")]
    pub fn len(&self) -> u64 {
        self.shared.region.len()
    }

    /// Asks for a range to be written at the next fence, of whichever thread.
    #[track_caller]
    pub fn flush(&self, off: u64, len: u64) {
        self.shared.region.check(off, len);
        if len > 0 {
            self.shared.gather.add(|ranges| ranges.add(off, len));
        }
    }

    /// Writes those sectors of all flushed ranges that may differ from the disk, and no others,
    /// together, with one flush behind them. On return all that had been flushed before, by
    /// whichever thread, is durable, in the version it had at its flush or a later one.
    ///
    /// # Errors
    /// The disk failed, now or earlier: nothing is written any more, and every later fence fails.
    pub fn fence(&self) -> Result<(), BlockError> {
        self.shared.fence()
    }

    /// [`Paged::fence`], with each write-out run by `sync`, for a range that covers all that was
    /// flushed. `false`: it failed, this time or earlier.
    pub(crate) fn fence_by(
        &self,
        sync: impl Fn(Range<u64>, &dyn Fn() -> Result<(), BlockError>) -> bool,
    ) -> bool {
        self.shared.fence_by(sync)
    }

    /// The same memory. It is loaded from through this if [`Paged::by_faults`]; nobody stores.
    pub(crate) fn region(&self) -> Region {
        self.shared.region.share()
    }

    /// How the disk does its I/O, and how absent pages are found, for users.
    pub fn how(&self) -> String {
        let absent = match self.by_faults() {
            true => "page faults",
            false => "a test of each load",
        };
        format!(
            "{}; absent pages are found by {absent}",
            self.shared.disk.info().how
        )
    }

    /// The first byte of the first page, from that of `off` on, which may differ from the disk; if
    /// that is behind `end`, `end`. What never was in memory costs next to nothing, at any size.
    pub fn differs_from(&self, off: u64, end: u64) -> u64 {
        let Shared { pages, tables, .. } = &*self.shared;
        let unclean = |page: &u64| pages.is(*page, Flag::UNCLEAN);
        let range = off / PAGE..end.div_ceil(PAGE);
        let first = tables.in_use(range).flatten().find(unclean); // such a page has memory
        first.map_or(end, |page| (page * PAGE).max(off))
    }

    /// Why nothing is written any more, if so. Loads and stores go on, in memory; what is loaded
    /// may be zeros, if it was a read that failed.
    pub fn poisoned(&self) -> Option<BlockError> {
        self.shared.poison.get().cloned()
    }

    /// Whether loads may have found zeros in place of what the disk has, as that could not be read:
    /// what is missing then need not be missing. True of loads that are over.
    #[inline]
    pub fn has_blanks(&self) -> bool {
        self.shared.has_blanks.load(Ordering::Acquire)
    }

    /// Brings a range into memory, as far as it has room there.
    ///
    /// # Errors
    /// The disk cannot be read, or could not when somebody loaded from there. Unlike a failed load
    /// this has no consequences.
    #[track_caller]
    pub fn prefetch(&self, off: u64, len: u64) -> Result<(), BlockError> {
        self.shared.region.check(off, len);
        let pages = &self.shared.pages;
        let range = off / PAGE..(off + len).div_ceil(PAGE);
        let mut absent = range.clone().filter(|page| !pages.is(*page, Flag::PRESENT));
        absent.try_for_each(|page| self.shared.bring(&pages.lock(page)))?;
        let is_blank = |page| self.has_blanks() && pages.is(page, Flag::BLANK);
        match range.into_iter().any(is_blank) {
            true => self.shared.check_poison(),
            false => Ok(()),
        }
    }

    /// Brings the pages of scattered ranges into memory, as far as it has room there, with many
    /// reads in flight. What cannot be read stays absent: whoever needs it finds out.
    pub(crate) fn prefetch_many(&self, ranges: impl Iterator<Item = (u64, u64)>) {
        let pages = |(off, len): (u64, u64)| off / PAGE..(off + len).div_ceil(PAGE);
        let pages: BTreeSet<u64> = ranges.flat_map(pages).collect();
        self.shared.bring_many(pages);
    }

    /// What is in memory, and what was done so far: no consistent cut while others are at work.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.residents.stats();
        self.shared.room.add_to(&mut stats);
        stats
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        self.shared.room.stop();
        self.shared.stop_serving();
        join(self.writing_out.take());
    }
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            log::error!("a thread of paged memory has panicked");
        }
    }
}

impl Shared {
    /// Nothing is written from now on.
    fn poison(&self, error: BlockError) {
        // The first reason stays: later ones follow from it.
        if self.poison.set(error.clone()).is_ok() {
            log::error!("{error}; no more writes are accepted");
            self.room.unbind();
        }
    }

    fn check_poison(&self) -> Result<(), BlockError> {
        match self.poison.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

//! The allocator: lines and pages, whatever they are for (SoupFS §3.2).
//!
//! The bitmaps on the medium are the consistent view: the persister alone changes them, through
//! [`Allocator::claim_lines`] and its siblings. What this module hands out lives in DRAM, the
//! latest view: per region a copy of the page bits (read when the region is first used), per
//! core an [`Arena`] of free lines, pairs of lines and a run of pages, and between arenas a depot.
//! A free thing is in exactly one of these places.
//!
//! ```text
//! region bits --run--> arena run --page--> arena lines/pairs --> caller
//!      ^                                        ^   |
//!      +---- whole pages <---- depot <----------+---+ freed, once durable (persister)
//! ```
//!
//! Lock order: arena -> depot -> region. None is held while anything else is taken.

mod allowance;
mod arena;
mod leaks;
mod maps;
mod region;

pub use allowance::Allowance;
pub use arena::ARENA_PAGES;
pub use leaks::Leaks;

use crate::layout::{Geometry, LINES_PER_PAGE, state};
use crate::marks::Marks;
use crate::shards::{CachePadded, shards};
use arena::{Arena, Depot, no_space};
use pmem::{MediumError, Pool};
use region::Region;
use schedule::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};
use vfs::Result;

/// The allocator of one mounted image.
pub struct Allocator {
    pool: Arc<Pool>,
    geometry: Geometry,
    regions: Box<[OnceLock<Region>]>,
    arenas: Box<[CachePadded<Arena>]>,
    depot: Mutex<Depot>,
    /// What is added to all generations.
    first_generation: u32,
    /// Where the next range of generations begins.
    generations: AtomicU32,
    /// Whether the summaries on the medium may be believed.
    summaries_hold: bool,
    /// Free lines when mounted (unclean: an estimate until [`Allocator::set_free_at_mount`]).
    free_at_mount: AtomicI64,
    /// Line pages that became free as a whole: the persister clears their page bits.
    emptied: Mutex<Vec<u64>>,
    /// Why the host gave no blocks when it was last asked for some.
    host_full: Mutex<Option<String>>,
    /// Whether there is such a reason.
    refused: AtomicBool,
    /// What is in use, while the reclaimer searches.
    marks: Mutex<Option<Marks>>,
    marking: AtomicBool,
}

impl Allocator {
    /// The allocator of an image that is in its `epoch`th mount. Reads nothing but two words:
    /// regions are read when first used.
    pub fn new(pool: Arc<Pool>, geometry: Geometry, clean: bool, epoch: u64) -> Allocator {
        let arenas = shards();
        let free = pool
            .load(state::FREE_LINES)
            .min(geometry.pages * LINES_PER_PAGE);
        Allocator {
            regions: (0..geometry.regions()).map(|_| OnceLock::new()).collect(),
            arenas: (0..arenas).map(|_| CachePadded::default()).collect(),
            depot: Mutex::default(),
            first_generation: (epoch as u32).wrapping_mul(0x9e37_79b1),
            generations: AtomicU32::new(0),
            summaries_hold: clean,
            free_at_mount: AtomicI64::new(free as i64),
            emptied: Mutex::default(),
            marks: Mutex::default(),
            marking: AtomicBool::new(false),
            host_full: Mutex::default(),
            refused: AtomicBool::new(false),
            pool,
            geometry,
        }
    }

    /// Make sure a sparse image has blocks behind a range, before it is stored to: also behind what
    /// is in use, if it may be all zeros, as a copy of an image may have holes there.
    #[inline]
    pub fn back(&self, at: u64, len: u64) -> Result<()> {
        match self.pool.back(at, len) {
            Ok(()) if !self.refused.load(Relaxed) => Ok(()),
            backed => self.note_backing(backed),
        }
    }

    #[cold]
    fn note_backing(&self, backed: std::result::Result<(), MediumError>) -> Result<()> {
        let mut last = self.host_full.lock();
        let said = last.is_some();
        *last = backed.err().map(|e| e.to_string());
        self.refused.store(last.is_some(), Relaxed);
        match &*last {
            None => Ok(()),
            Some(why) => {
                if !said {
                    log::error!("no space behind the image: {why}");
                }
                Err(no_space())
            }
        }
    }

    /// Why the host gave no blocks for a sparse image when it was last asked for some.
    pub fn host_full(&self) -> Option<String> {
        self.host_full.lock().clone()
    }

    /// Free lines: a page counts as 64.
    pub fn free_lines(&self) -> u64 {
        let used: i64 = self.arenas.iter().map(|a| a.lock().used_lines).sum();
        (self.free_at_mount.load(Relaxed) - used).max(0) as u64
    }
    /// From now on, note what is claimed.
    pub fn start_marking(&self) {
        *self.marks.lock() = Some(Marks::default());
        self.marking.store(true, Release);
    }

    /// Forget all marks.
    pub fn end_marking(&self) {
        self.marking.store(false, Release);
        *self.marks.lock() = None;
    }

    /// Work on the marks, if the reclaimer searches.
    #[inline]
    pub fn with_marks<T>(&self, work: impl FnOnce(&mut Marks) -> T) -> Option<T> {
        if !self.marking.load(Acquire) {
            return None;
        }
        self.marks.lock().as_mut().map(work)
    }
}

//! Online reclaim: finding leaked space after a crash, while the file system is in use (SoupFS
//! §3.9).
//!
//! A crash leaks: bits are set in the maps for what no name leads to. The reclaimer walks the
//! consistent view from the root, a little at a time, under the persister's lock, so that the view
//! holds still; it marks all it reaches. When nothing is left to look at it goes through the maps,
//! a little at a time as well ([`crate::alloc::Leaks`]): what is set there and not marked is free.
//! A step ends when somebody begins to wait for that lock: on a disk, each thing that is looked at
//! may have to be read.
//!
//! Between two steps batches change the view. Why the walk finds all the same:
//! - what a batch puts to use it claims in the maps, and claiming marks;
//! - an inode that a batch names may have been moved to where the walk has been: it is queued,
//!   unless it is new, and so all that it holds was claimed;
//! - entries move within a directory only when a bucket splits, to a bucket of a higher number, and
//!   buckets are visited in ascending order;
//! - a block stays at its place in its file until it is freed, and blocks are visited in ascending
//!   order, each step descending from the root as it is then;
//! - inodes without names, which only handles keep, are walked like others once nothing else is
//!   left; what a batch leaves without a name later had one before, and so was walked.

#[cfg(test)]
mod tests;
mod walk;

use crate::alloc::{Allowance, Leaks};
use crate::commit::persister::Persister;
use crate::fault::{Fault, injected};
use crate::image::cause;
use crate::volume::Volume;
use schedule::{Mutex, point};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use vfs::{Kind, Result};
use walk::{Walk, check_named};

/// Entries, inodes, pointers and bits looked at in one step: a few milliseconds.
const STEP: u64 = 16384;
/// The same while callers are slowed down by a large backlog. Then there is a step after each
/// batch, of some thousand operations, which are several times as much work.
const STEP_BEHIND: u64 = 4096;
/// Pause between steps, so that batches get their turn.
const PAUSE: Duration = Duration::from_micros(100);

/// The search for leaks of one mount.
pub struct Reclaimer {
    reclaimed: Mutex<Option<u64>>,
    /// How far it has come.
    search: Mutex<Search>,
    stop: AtomicBool,
}

impl Reclaimer {
    /// `clean`: there is nothing to search for.
    pub fn new(clean: bool) -> Reclaimer {
        Reclaimer {
            reclaimed: Mutex::new(clean.then_some(0)),
            search: Mutex::new(Search::default()),
            stop: AtomicBool::new(false),
        }
    }

    /// Lines that were found and freed; `None` until the search has ended.
    pub fn reclaimed(&self) -> Option<u64> {
        *self.reclaimed.lock()
    }

    /// Let the search end early; the next mount starts it anew.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Note from now on what is put to use. Nobody has changed anything since the mount: of an
    /// inode whose pages were claimed before, and its lines behind, the walk would believe that it
    /// has been there.
    pub fn begin(&self, volume: &Volume) {
        if self.reclaimed().is_none() {
            volume.alloc.start_marking();
            volume.alloc.with_marks(|m| m.inode(volume.superblock.root));
        }
    }

    /// Search, free, and correct the counters, after [`Reclaimer::begin`].
    pub fn run(&self, volume: &Volume, persister: &Persister) {
        let budget = || match persister.is_behind() {
            true => STEP_BEHIND,
            false => STEP,
        };
        while !self.stop.load(Relaxed) {
            match self.step(volume, persister, budget()) {
                Ok(true) => return,
                Ok(false) => std::thread::sleep(PAUSE),
                Err(e) => {
                    let e = cause(&volume.pool, e);
                    log::error!("the search for lost space met damage: {e}; run `tureen fsck`");
                    break;
                }
            }
        }
        volume.alloc.end_marking();
    }

    /// One step of that, in which so much is looked at. Whether the search has ended.
    pub fn step(&self, volume: &Volume, persister: &Persister, budget: u64) -> Result<bool> {
        if self.reclaimed().is_some() {
            return Ok(true);
        }
        let mut search = self.search.lock();
        if !search.step(volume, persister, budget)? {
            return Ok(false);
        }
        let leaks = &search.leaks;
        volume.alloc.set_free_at_mount(leaks);
        log::info!(
            "reclaimed {} KiB that a crash lost track of, from {} regions",
            leaks.lines * 64 / 1024,
            leaks.regions
        );
        *self.reclaimed.lock() = Some(leaks.lines);
        volume.alloc.end_marking();
        Ok(true)
    }
}

/// A search under way.
#[derive(Default)]
struct Search {
    begun: bool,
    walk: Walk,
    /// All that is reachable is marked.
    all_marked: bool,
    leaks: Leaks,
}

impl Search {
    /// Look at so much. Whether there is nothing left to look at.
    fn step(&mut self, volume: &Volume, persister: &Persister, budget: u64) -> Result<bool> {
        if !self.begun {
            check_named(volume, volume.superblock.root, Kind::Dir)?;
            self.begun = true;
        }
        point("search: between two steps");
        let others_wait = || persister.is_waited_for();
        let allowance = &mut Allowance::new(budget, &others_wait);
        if self.all_marked {
            return persister.between_batches(volume, || self.leaks.step(&volume.alloc, allowance));
        }
        let walk = &mut self.walk;
        if persister.undisturbed(|| walk.advance(volume, allowance))? {
            point("search: nothing is left to look at");
            let marked = persister.with_nothing_deferred(volume, |orphans| {
                // A batch may have come between, and moved something to where the walk has been.
                if !injected(Fault::OrphansForgotten) {
                    walk.add_orphans(volume, orphans)?;
                }
                walk.advance(volume, allowance)
            })?;
            self.all_marked = marked == Some(true);
        }
        Ok(false)
    }
}

//! Which pages are in memory, and which one goes.
//!
//! Nobody tells of a load that finds its page. So a page that is to go is put on *standby* first:
//! its contents stay in memory, but the next load notices. Pages that came back from there have
//! been used twice, and are in a queue of their own, for longer. (That is the two queues of Johnson
//! and Shasha, with a soft miss in place of a reference bit.)

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::Mutex;

use super::bug::Bug;
use super::pages::{Flag, Locked};
use super::{Shared, Stats};
use crate::PAGE;

/// Pages that are dropped together: they share a grace period.
const DROPPED_TOGETHER: usize = 16;
/// Pages of a queue that are looked at for one that can be put on standby. Those that are unclean
/// or busy are looked at again later.
const LOOKED_AT_MAX: usize = 256;

pub(super) struct Residents {
    /// The most pages in memory.
    capacity: usize,
    queues: Mutex<Queues>,
}

/// All pages in memory are in one of the three queues, but for those whose lock somebody holds.
#[derive(Default)]
struct Queues {
    /// Pages in memory, and those for which there is room already.
    pages: usize,
    /// Used once, as far as is known, in the order in which they came.
    fresh: VecDeque<u64>,
    /// Used again, in the order in which they came back.
    hot: VecDeque<u64>,
    standby: Standby,
    stats: Stats,
}

/// Pages on standby, in the order in which they got there. Only who holds a page's lock adds and
/// removes it.
#[derive(Default)]
struct Standby {
    next: u64,
    order: BTreeMap<u64, u64>,
    places: HashMap<u64, Place>,
}

struct Place {
    order: u64,
    /// `None`: they are where they were.
    contents: Option<Box<[u8]>>,
}

impl Standby {
    fn len(&self) -> usize {
        self.order.len()
    }

    fn push(&mut self, page: u64, contents: Option<Box<[u8]>>) {
        let order = self.next;
        self.next += 1;
        self.order.insert(order, page);
        self.places.insert(page, Place { order, contents });
    }

    fn remove(&mut self, page: u64) -> Option<Place> {
        let place = self.places.remove(&page)?;
        self.order.remove(&place.order);
        Some(place)
    }

    fn oldest(&self) -> Option<u64> {
        Some(*self.order.first_key_value()?.1)
    }

    /// Puts a page behind the others, if it is still here.
    fn postpone(&mut self, page: u64) {
        if let Some(place) = self.remove(page) {
            self.push(page, place.contents);
        }
    }
}

impl Residents {
    pub(super) fn new(capacity: usize) -> Residents {
        Residents {
            capacity,
            queues: Mutex::default(),
        }
    }

    /// How many pages may be brought in at once.
    pub(super) fn together_max(&self) -> u64 {
        (self.capacity as u64 / 8).max(1)
    }

    /// Pages that were brought in with one miss are about to be in memory. It is counted before
    /// anybody can load from them: who has seen all of them finds all of them counted.
    pub(super) fn missed(&self, pages: usize) {
        let mut queues = self.queues.lock();
        queues.stats.misses += 1;
        queues.stats.read_ahead += pages as u64 - 1;
    }

    /// Pages that were brought in are in memory.
    pub(super) fn arrived(&self, pages: impl Iterator<Item = u64>) {
        self.queues.lock().fresh.extend(pages);
    }

    /// Room that was made is not needed.
    pub(super) fn give_back(&self, pages: usize) {
        self.queues.lock().pages -= pages;
    }

    pub(super) fn stats(&self) -> Stats {
        let queues = self.queues.lock();
        Stats {
            cache_bytes: self.capacity as u64 * PAGE,
            pages: queues.pages as u64,
            standby: queues.standby.len() as u64,
            ..queues.stats
        }
    }

    /// How many pages are too many.
    fn excess(&self) -> usize {
        self.queues.lock().pages.saturating_sub(self.capacity)
    }

    /// Whether pages that were used twice have to go first, as they are so many.
    fn hot_first(&self) -> bool {
        self.queues.lock().hot.len() > self.capacity / 2
    }

    /// How many pages are in a queue.
    fn queued(&self, hot: bool) -> usize {
        self.queues.lock().queue(hot).len()
    }

    /// The next page to be put on standby, if it can be; `None`: there need not be more, or there
    /// is none.
    fn next_idle(&self, hot: bool) -> Option<u64> {
        let mut queues = self.queues.lock();
        let enough = queues.standby.len() >= self.capacity / 4;
        if enough {
            None
        } else {
            queues.queue(hot).pop_front()
        }
    }

    /// A page cannot be put on standby now: it goes behind the others.
    fn not_idle(&self, page: u64, hot: bool) {
        self.queues.lock().queue(hot).push_back(page);
    }
}

impl Queues {
    fn queue(&mut self, hot: bool) -> &mut VecDeque<u64> {
        if hot { &mut self.hot } else { &mut self.fresh }
    }
}

impl Shared {
    /// Makes room for pages. Waits for no I/O: if there are too few pages that can go, there are
    /// too many in memory for a while.
    pub(super) fn make_room(&self, pages: usize) {
        let residents = &self.residents;
        residents.queues.lock().pages += pages;
        if residents.excess() == 0 {
            return;
        }
        self.put_on_standby();
        let together = DROPPED_TOGETHER.min(residents.capacity / 8);
        self.drop_pages(residents.excess().max(together));
    }

    /// Puts clean pages on standby, until there are enough.
    fn put_on_standby(&self) {
        let hot_first = self.residents.hot_first();
        for hot in [hot_first, !hot_first] {
            for _ in 0..self.residents.queued(hot).min(LOOKED_AT_MAX) {
                let Some(page) = self.residents.next_idle(hot) else {
                    break;
                };
                let may_go = |locked: &Locked<'_>| {
                    !locked.is(Flag::UNCLEAN) || self.bugs.has(Bug::UncleanDropped)
                };
                match self.pages.try_lock(page) {
                    Some(locked) if may_go(&locked) => self.demote(&locked),
                    _ => self.residents.not_idle(page, hot),
                }
            }
        }
    }

    /// Puts a clean page on standby. Where the MMU is to notice its next use, its contents go
    /// elsewhere; nobody stores to it, and loads find either the old memory or a fault.
    fn demote(&self, locked: &Locked<'_>) {
        let page = locked.page();
        locked.clear(Flag::PRESENT);
        locked.set(Flag::STANDBY);
        let contents = self.faults.is_some().then(|| {
            let mut contents = vec![0; PAGE as usize].into_boxed_slice();
            self.region.read(page * PAGE, &mut contents);
            self.discard(page, 1);
            contents
        });
        self.residents.queues.lock().standby.push(page, contents);
    }

    /// Brings a page back from standby.
    pub(super) fn bring_back(&self, locked: &Locked<'_>) {
        let page = locked.page();
        let place = self.residents.queues.lock().standby.remove(page);
        if let Some(contents) = place.and_then(|place| place.contents) {
            self.fill(page, &contents);
        }
        locked.clear(Flag::STANDBY);
        locked.set(Flag::PRESENT);
        let mut queues = self.residents.queues.lock();
        queues.hot.push_back(page);
        queues.stats.soft_misses += 1;
    }

    /// Drops the pages that are longest on standby, if there are so many.
    fn drop_pages(&self, count: usize) {
        let mut dropped = Vec::new();
        let standby = self.residents.queues.lock().standby.len();
        for _ in 0..standby {
            if dropped.len() == count {
                break;
            }
            let Some(page) = self.residents.queues.lock().standby.oldest() else {
                break;
            };
            let Some(locked) = self.pages.try_lock(page) else {
                self.residents.queues.lock().standby.postpone(page);
                continue;
            };
            // Unless somebody has brought it back since we looked.
            if self.residents.queues.lock().standby.remove(page).is_some() {
                locked.clear(Flag::STANDBY);
                locked.clear(Flag::BLANK);
                dropped.push(locked);
            }
        }
        self.forget(&dropped);
        let mut queues = self.residents.queues.lock();
        queues.pages -= dropped.len();
        queues.stats.dropped += dropped.len() as u64;
    }

    /// Takes the memory of pages away that are neither present nor on standby.
    fn forget(&self, dropped: &[Locked<'_>]) {
        if dropped.is_empty() || self.faults.is_some() {
            return; // nothing is there any more
        }
        // P5: a load that has found its page present is over.
        self.guards.wait();
        let mut pages: Vec<_> = dropped.iter().map(Locked::page).collect();
        pages.sort_unstable();
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            self.discard(run[0], run.len() as u64);
        }
    }
}

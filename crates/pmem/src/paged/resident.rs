//! Which pages are in memory, and which one goes.
//!
//! Nobody tells of a load that finds its page. So a page that is to go is put on *standby* first:
//! its contents stay in memory, but the next load notices. Pages that came back from there have
//! been used twice, and are in a queue of their own, for longer. (That is the two queues of Johnson
//! and Shasha, with a soft miss in place of a reference bit.)

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::Mutex;

use super::pages::{Flag, Locked};
use super::{Shared, Stats};

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

/// Pages on standby, in the order in which they got there.
#[derive(Default)]
struct Standby {
    next: u64,
    order: BTreeMap<u64, u64>,
    places: HashMap<u64, u64>,
}

impl Standby {
    fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds a page as the last one.
    fn push(&mut self, page: u64) {
        self.remove(page);
        self.order.insert(self.next, page);
        self.places.insert(page, self.next);
        self.next += 1;
    }

    fn pop(&mut self) -> Option<u64> {
        let (_, page) = self.order.pop_first()?;
        self.places.remove(&page);
        Some(page)
    }

    fn remove(&mut self, page: u64) {
        if let Some(place) = self.places.remove(&page) {
            self.order.remove(&place);
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

    /// Pages that were brought in with one miss are in memory.
    pub(super) fn arrived(&self, pages: impl ExactSizeIterator<Item = u64>) {
        let mut queues = self.queues.lock();
        queues.stats.misses += 1;
        queues.stats.read_ahead += pages.len() as u64 - 1;
        queues.fresh.extend(pages);
    }

    /// Room that was made is not needed.
    pub(super) fn give_back(&self, pages: usize) {
        self.queues.lock().pages -= pages;
    }

    pub(super) fn stats(&self) -> Stats {
        let queues = self.queues.lock();
        Stats {
            cache_bytes: self.capacity as u64 * crate::PAGE,
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
                match self.pages.try_lock(page) {
                    Some(locked) if !locked.is(Flag::UNCLEAN) => self.retire(&locked),
                    _ => self.residents.not_idle(page, hot),
                }
            }
        }
    }

    /// Puts a clean page on standby.
    fn retire(&self, locked: &Locked<'_>) {
        locked.clear(Flag::PRESENT);
        locked.set(Flag::STANDBY);
        self.residents.queues.lock().standby.push(locked.page());
    }

    /// Brings a page back from standby.
    pub(super) fn bring_back(&self, locked: &Locked<'_>) {
        locked.clear(Flag::STANDBY);
        locked.set(Flag::PRESENT);
        let mut queues = self.residents.queues.lock();
        queues.standby.remove(locked.page());
        queues.hot.push_back(locked.page());
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
            let Some(page) = self.residents.queues.lock().standby.pop() else {
                break;
            };
            match self.pages.try_lock(page) {
                Some(locked) if locked.is(Flag::STANDBY) => {
                    locked.clear(Flag::STANDBY);
                    dropped.push(locked);
                }
                // It came back before it was entered here again, below.
                Some(_) => {}
                // Somebody may be bringing it back. If not, this is its only entry.
                None => self.residents.queues.lock().standby.push(page),
            }
        }
        self.forget(&dropped);
        let mut queues = self.residents.queues.lock();
        queues.pages -= dropped.len();
        queues.stats.dropped += dropped.len() as u64;
    }

    /// Takes the memory of pages away that are neither present nor on standby.
    fn forget(&self, dropped: &[Locked<'_>]) {
        if dropped.is_empty() {
            return;
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

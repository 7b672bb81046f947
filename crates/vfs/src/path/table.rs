//! The table behind descriptors.
//!
//! A descriptor is an index into one of a few shards. A thread takes new ones from a shard of its
//! own, so threads that open and close do not meet; POSIX's lowest free number would make them.
//! Slots stay where they are once made, so a lookup takes no lock but the slot's.
//!
//! Lock order: a slot -> a shard's list of free slots.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use spin::Yield;
use spin::mutex::SpinMutex;
use triomphe::Arc;

const SHARDS: usize = 16;
/// Slots of a shard come in chunks, each twice as long as the one before.
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 22;

/// Locks are held for a few instructions, so they spin: giving one back is a mere store.
type Slot<T> = SpinMutex<Option<Arc<T>>, Yield>;

/// Open things by number.
pub(super) struct Table<T> {
    shards: Box<[Shard<T>]>,
}

// Two cache lines: neighbours are fetched in pairs.
#[repr(align(128))]
struct Shard<T> {
    free: SpinMutex<Free, Yield>,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
}

/// Slots that may be taken.
struct Free {
    /// Used before and given back.
    again: Vec<u32>,
    /// From here on never used.
    fresh: u32,
    /// How many there may be.
    limit: u32,
}

/// A slot taken but not filled; given back when dropped.
pub(super) struct Reserved<'a, T> {
    table: &'a Table<T>,
    fd: u32,
    filled: bool,
}

impl<T> Table<T> {
    /// An empty table for at most `limit` entries.
    pub(super) fn new(limit: u32) -> Table<T> {
        let most = (FIRST_CHUNK << CHUNKS) - FIRST_CHUNK;
        let shard = |index: usize| {
            let share = (limit as usize + SHARDS - 1 - index) / SHARDS;
            let free = Free {
                again: Vec::new(),
                fresh: 0,
                limit: share.min(most) as u32,
            };
            Shard {
                free: SpinMutex::new(free),
                chunks: [const { OnceLock::new() }; CHUNKS],
            }
        };
        Table {
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    /// Takes a slot; `None` when all are in use.
    pub(super) fn reserve(&self) -> Option<Reserved<'_, T>> {
        let own = own_shard();
        for shard in (own..SHARDS).chain(0..own) {
            if let Some(index) = self.shards[shard].free.lock().take() {
                let fd = index * SHARDS as u32 + shard as u32;
                return Some(Reserved {
                    table: self,
                    fd,
                    filled: false,
                });
            }
        }
        None
    }

    /// The entry of this number.
    pub(super) fn get(&self, fd: u32) -> Option<Arc<T>> {
        self.slot(fd)?.lock().clone()
    }

    /// Takes the entry of this number out.
    pub(super) fn remove(&self, fd: u32) -> Option<Arc<T>> {
        let mut slot = self.slot(fd)?.lock();
        let entry = slot.take()?;
        self.free(fd);
        Some(entry)
    }

    /// The numbers in use now.
    pub(super) fn used(&self) -> Vec<u32> {
        let fds = self.shards.iter().enumerate().flat_map(|(at, shard)| {
            (0..shard.free.lock().fresh).map(move |index| index * SHARDS as u32 + at as u32)
        });
        fds.filter(|&fd| self.get(fd).is_some()).collect()
    }

    fn slot(&self, fd: u32) -> Option<&Slot<T>> {
        let shard = &self.shards[fd as usize % SHARDS];
        let (chunk, at) = place(fd as usize / SHARDS);
        shard.chunks.get(chunk)?.get().map(|slots| &slots[at])
    }

    fn free(&self, fd: u32) {
        self.shards[fd as usize % SHARDS]
            .free
            .lock()
            .again
            .push(fd / SHARDS as u32);
    }
}

impl Free {
    fn take(&mut self) -> Option<u32> {
        // The one given back last is the one most likely still in the processor's cache.
        self.again.pop().or_else(|| {
            let index = self.fresh;
            self.fresh += u32::from(index < self.limit);
            (index < self.limit).then_some(index)
        })
    }
}

impl<T> Reserved<'_, T> {
    /// Fills the slot; returns its number.
    pub(super) fn fill(mut self, entry: Arc<T>) -> u32 {
        let shard = &self.table.shards[self.fd as usize % SHARDS];
        let (chunk, at) = place(self.fd as usize / SHARDS);
        let slots = shard.chunks[chunk]
            .get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Slot::new(None)).collect());
        *slots[at].lock() = Some(entry);
        self.filled = true;
        self.fd
    }
}

impl<T> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        if !self.filled {
            self.table.free(self.fd);
        }
    }
}

/// The chunk that holds a shard's slot, and the place in it.
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - ((FIRST_CHUNK << chunk) - FIRST_CHUNK))
}

/// The shard that this thread takes new slots from.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    OWN.with(|&shard| shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(table: &Table<u32>, value: u32) -> Option<u32> {
        Some(table.reserve()?.fill(Arc::new(value)))
    }

    #[test]
    fn every_slot_has_one_place() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn the_limit_is_exact_and_room_comes_back() {
        for limit in [0, 1, 15, 16, 17, 1000] {
            let table = Table::new(limit);
            let fds: Vec<u32> = (0..limit).map(|i| fill(&table, i).unwrap()).collect();
            assert_eq!(fill(&table, 0), None, "limit {limit}");
            assert_eq!(table.used().len(), limit as usize);
            for (i, &fd) in fds.iter().enumerate() {
                assert_eq!(*table.get(fd).unwrap(), i as u32);
            }
            if let Some(&fd) = fds.first() {
                assert!(table.remove(fd).is_some());
                assert!(table.remove(fd).is_none(), "removed twice");
                assert_eq!(fill(&table, 7), Some(fd));
            }
        }
    }

    #[test]
    fn a_reservation_that_is_dropped_leaves_room() {
        let table = Table::<u32>::new(1);
        drop(table.reserve().unwrap());
        assert!(fill(&table, 1).is_some());
    }

    #[test]
    fn numbers_that_never_were_are_not_there() {
        let table = Table::<u32>::new(10);
        for fd in [0, 5, 1 << 20, u32::MAX] {
            assert!(table.get(fd).is_none());
            assert!(table.remove(fd).is_none());
        }
    }
}

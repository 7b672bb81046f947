//! Counters, per pool and per thread.
//!
//! Each thread owns a slot and counts in its own cache line of the pool, with plain additions:
//! no line is shared on the hot path. Threads beyond the owned slots share the last one and add
//! atomically there.

use std::cell::{Cell, RefCell};
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// What a pool, or a thread, has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lines whose write-back was requested (in domain `page` lines of the gathered ranges).
    pub flushed_lines: u64,
    /// Fences.
    pub fences: u64,
    /// Syncs of the host file (several fences may share one).
    pub syncs: u64,
    /// Bytes stored through the cache.
    pub bytes_cached: u64,
    /// Bytes stored around the cache.
    pub bytes_non_temporal: u64,
    /// Journal commits of one word, stored directly.
    pub commits_word: u64,
    /// Journal commits through a log record.
    pub commits_log: u64,
    /// Journal commits in a [transaction](crate::transaction).
    pub commits_transaction: u64,
    /// Commits in a transaction that was decided upon without a lock, beside the journal.
    pub commits_optimistic: u64,
    /// Attempts at transactions that were aborted by what others did.
    pub aborts_conflict: u64,
    /// Attempts that were aborted because they stored to too many lines.
    pub aborts_capacity: u64,
    /// Attempts that were aborted by anything else.
    pub aborts_other: u64,
}

impl Sub for Stats {
    type Output = Stats;

    /// What happened between `earlier` and `self`.
    fn sub(self, earlier: Stats) -> Stats {
        Stats {
            flushed_lines: self.flushed_lines - earlier.flushed_lines,
            fences: self.fences - earlier.fences,
            syncs: self.syncs - earlier.syncs,
            bytes_cached: self.bytes_cached - earlier.bytes_cached,
            bytes_non_temporal: self.bytes_non_temporal - earlier.bytes_non_temporal,
            commits_word: self.commits_word - earlier.commits_word,
            commits_log: self.commits_log - earlier.commits_log,
            commits_transaction: self.commits_transaction - earlier.commits_transaction,
            commits_optimistic: self.commits_optimistic - earlier.commits_optimistic,
            aborts_conflict: self.aborts_conflict - earlier.aborts_conflict,
            aborts_capacity: self.aborts_capacity - earlier.aborts_capacity,
            aborts_other: self.aborts_other - earlier.aborts_other,
        }
    }
}

/// What the calling thread has done so far, over all pools.
pub fn thread_stats() -> Stats {
    LOCAL.with(|local| collect(|counter| local.counts[counter as usize].get()))
}

/// Index of a counter.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    FlushedLines,
    Fences,
    Syncs,
    BytesCached,
    BytesNonTemporal,
    CommitsWord,
    CommitsLog,
    CommitsTransaction,
    CommitsOptimistic,
    AbortsConflict,
    AbortsCapacity,
    AbortsOther,
}

const COUNTERS: usize = Counter::AbortsOther as usize + 1;
const SLOTS: usize = 64;
/// The slot that all threads beyond the first `SLOTS - 1` share.
pub(crate) const SHARED: usize = SLOTS - 1;
const UNASSIGNED: usize = usize::MAX;

fn collect(value: impl Fn(Counter) -> u64) -> Stats {
    Stats {
        flushed_lines: value(Counter::FlushedLines),
        fences: value(Counter::Fences),
        syncs: value(Counter::Syncs),
        bytes_cached: value(Counter::BytesCached),
        bytes_non_temporal: value(Counter::BytesNonTemporal),
        commits_word: value(Counter::CommitsWord),
        commits_log: value(Counter::CommitsLog),
        commits_transaction: value(Counter::CommitsTransaction),
        commits_optimistic: value(Counter::CommitsOptimistic),
        aborts_conflict: value(Counter::AbortsConflict),
        aborts_capacity: value(Counter::AbortsCapacity),
        aborts_other: value(Counter::AbortsOther),
    }
}

/// One thread's counters of one pool. Two lines apart: the prefetcher takes lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Slot([AtomicU64; COUNTERS]);

/// The counters of a pool.
pub(crate) struct Counters(Box<[Slot; SLOTS]>);

impl Counters {
    pub(crate) fn new() -> Self {
        Counters(Box::new(std::array::from_fn(|_| Slot::default())))
    }

    /// Adds to a counter of the pool and of the calling thread.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        LOCAL.with(|local| {
            let own = &local.counts[counter as usize];
            own.set(own.get().wrapping_add(n));
            let slot = local.slot.get();
            if slot < SHARED {
                // Only the owner writes its slot, so no addition is lost.
                let count = &self.0[slot].0[counter as usize];
                count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
            } else {
                self.add_slow(counter, n);
            }
        });
    }

    #[cold]
    fn add_slow(&self, counter: Counter, n: u64) {
        self.0[slot()].0[counter as usize].fetch_add(n, Relaxed);
    }

    pub(crate) fn sum(&self) -> Stats {
        collect(|counter| {
            self.0
                .iter()
                .map(|slot| slot.0[counter as usize].load(Relaxed))
                .sum()
        })
    }
}

struct Local {
    slot: Cell<usize>,
    counts: [Cell<u64>; COUNTERS],
}

thread_local! {
    // Without a destructor, so that access is one instruction; `OWNED` gives the slot back.
    static LOCAL: Local = const {
        Local { slot: Cell::new(UNASSIGNED), counts: [const { Cell::new(0) }; COUNTERS] }
    };
    static OWNED: RefCell<Option<OwnedSlot>> = const { RefCell::new(None) };
}

/// Slots that no thread owns.
static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { used: 0 });

struct FreeSlots {
    /// Bit per owned slot.
    used: u64,
}

struct OwnedSlot(usize);

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        // Whatever this thread still counts while it ends goes where additions are atomic.
        LOCAL.with(|local| local.slot.set(SHARED));
        FREE.lock().used &= !(1 << self.0);
    }
}

/// The calling thread's slot, assigned on first use: below `SHARED` it is this thread's alone.
pub(crate) fn slot() -> usize {
    let slot = LOCAL.with(|local| local.slot.get());
    if slot == UNASSIGNED {
        assign_slot()
    } else {
        slot
    }
}

#[cold]
fn assign_slot() -> usize {
    let slot = {
        let mut free = FREE.lock();
        let slot = (free.used.trailing_ones() as usize).min(SHARED);
        if slot < SHARED {
            free.used |= 1 << slot;
        }
        slot
    };
    LOCAL.with(|local| local.slot.set(slot));
    if slot < SHARED {
        let owned = OwnedSlot(slot);
        // In a thread that is already ending this drops `owned`, and the shared slot remains.
        let _ = OWNED.try_with(|cell| *cell.borrow_mut() = Some(owned));
    }
    LOCAL.with(|local| local.slot.get())
}

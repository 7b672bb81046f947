//! A directory's latest view: what callers see and change (SoupFS §3.1, §3.4).
//!
//! The table on the medium and the `NEXT` pointers are the consistent view, which the persister
//! alone changes. The latest view shares the entries: a bucket's latest entries are cached in DRAM
//! ([`cache`]) if this mount changed the bucket, else they begin with the head on the medium; an
//! entry's latest successor is its `LATEST_NEXT` if that carries this mount's tag, else its `NEXT`.
//!
//! Invariants:
//! - D1 New entries go to the head of their bucket, in both views. So both views have the entries
//!   of a bucket in the order of their insertion, and where the views hold the same entries, their
//!   pointers agree.
//! - D2 An entry not yet in the consistent view has a tagged `LATEST_NEXT`, and `PENDING` in
//!   `NEXT`.
//! - D3 If an entry's `LATEST_NEXT` is void then its successor is the same in both views; so when
//!   the persister changes a `NEXT` or a bucket, the latest view has its own pointer there already.
//! - D4 The latest table is split at least as far as the consistent one, and no further than that
//!   can follow: not into blocks that damage has taken out of the table.
//!
//! Lookups take no lock. They read the stripe's sequence before and after: a removal or a split
//! in between (either may let them read a line that is something else by now) makes them start
//! over. What they read meanwhile may be nonsense, which the checks of [`crate::image`] and a bound
//! on steps keep harmless.

mod cache;
pub mod entry;
mod growth;
mod links;
mod lookup;
mod moves;
mod ops;
mod stripe;

pub(crate) use links::{CHAIN_MAX, latest_next};
pub use lookup::{Cell, Found, read_by_cells, read_cell};
pub use moves::MoveNumber;
pub use ops::{Addition, CAPTURED, DirOp, PendingName, STRIPES, StripeOps};
pub use stripe::{ADD_WORDS, Locked, REMOVE_WORDS, SPLIT_WORDS};

use crate::attributes::Attributes;
use crate::layout::{WORDS_PER_PAGE, bucket, page_at};
use crate::medium::Medium;
use crate::tree;
use cache::BucketCache;
use schedule::Mutex;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use vfs::{Errno, Error, Result};

#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    /// Odd while chains are rearranged; changes with every removal and split.
    seq: AtomicU64,
    /// Entries added less entries removed since the directory was loaded.
    entries: AtomicI64,
    ops: Mutex<StripeOps>,
}

impl Stripe {
    fn begin(&self) {
        self.seq.store(self.seq.load(Relaxed) + 1, Relaxed);
        fence(Release);
    }

    fn end(&self) {
        self.seq.store(self.seq.load(Relaxed) + 1, Release);
    }
}

/// What a directory needs in DRAM once it is changed.
struct Active {
    /// The latest table has `BASE << level` buckets.
    level: AtomicU32,
    /// A bit for each stripe that has operations, or had: set and cleared under its lock, so that
    /// who captures all need not lock the others.
    waiting: AtomicU32,
    stripes: [Stripe; STRIPES],
    /// The latest buckets. Under the stripe's lock what the medium says is cached here, so that it
    /// need not be asked again: a bucket of the consistent view changes only after the latest one
    /// has (D3, D4).
    cache: BucketCache,
    growth: Mutex<Growth>,
    /// Table blocks that came since the directory was loaded.
    added: AtomicU64,
}

/// Pages that the table on the medium will need, taken in advance, so that persisting never runs
/// out of space.
#[derive(Default)]
struct Growth {
    /// Table blocks that exist or are provided for.
    blocks: u64,
    pages: Vec<Range<u64>>,
}

/// States of a directory: see [`kill`].
const ALIVE: u8 = 0;
const DOUBTFUL: u8 = 1;
const DEAD: u8 = 2;

/// A level as it is kept.
fn small(level: u32) -> u8 {
    u8::try_from(level).expect("a table has fewer buckets than a pool has words")
}

/// A directory in DRAM.
pub struct Dir {
    /// Root of the consistent table. The persister writes it.
    root: AtomicU64,
    /// Level of the consistent table. The persister writes it.
    level: AtomicU8,
    /// Line of the parent's inode, latest.
    pub parent: AtomicU64,
    /// Tells of changes of the parent.
    pub moves: MoveNumber,
    loaded_entries: u64,
    /// [`ALIVE`], or removed: nothing may be added any more.
    life: AtomicU8,
    /// Whether there has ever been a [`DirOp::Tie`] or a [`DirOp::MovedOn`].
    tied: AtomicBool,
    active: OnceLock<Box<Active>>,
}

impl Dir {
    /// A new directory.
    pub fn fresh(parent: u64) -> Dir {
        Dir {
            root: AtomicU64::new(0),
            level: AtomicU8::new(0),
            parent: AtomicU64::new(parent),
            moves: MoveNumber::default(),
            loaded_entries: 0,
            life: AtomicU8::new(ALIVE),
            tied: AtomicBool::new(false),
            active: OnceLock::new(),
        }
    }

    /// A directory of the consistent view.
    pub fn load(image: &Attributes) -> Dir {
        Dir {
            root: AtomicU64::new(image.root),
            level: AtomicU8::new(small(image.level)),
            parent: AtomicU64::new(image.parent),
            moves: MoveNumber::default(),
            loaded_entries: image.size,
            life: AtomicU8::new(ALIVE),
            tied: AtomicBool::new(false),
            active: OnceLock::new(),
        }
    }

    fn consistent_level(&self) -> u32 {
        self.level.load(Acquire).into()
    }

    /// The persister changed the consistent table.
    pub fn set_consistent(&self, root: u64, level: u32) {
        self.root.store(root, Release);
        self.level.store(small(level), Release);
    }

    /// Root word of the consistent table.
    pub fn consistent_root(&self) -> u64 {
        self.root.load(Acquire)
    }

    /// Names in the latest view.
    pub fn entries(&self) -> u64 {
        let change: i64 = self.active.get().map_or(0, |a| {
            a.stripes.iter().map(|s| s.entries.load(Relaxed)).sum()
        });
        self.loaded_entries.saturating_add_signed(change)
    }

    fn active(&self) -> &Active {
        if let Some(active) = self.active.get() {
            return active;
        }
        let active = self.active.get_or_init(|| {
            let level = self.consistent_level();
            let exists = self.root.load(Acquire) != 0;
            Box::new(Active {
                level: AtomicU32::new(level),
                waiting: AtomicU32::new(0),
                stripes: Default::default(),
                cache: BucketCache::new(bucket::BASE << level),
                growth: Mutex::new(Growth {
                    blocks: if exists { bucket::blocks(level) } else { 0 },
                    pages: Vec::new(),
                }),
                added: AtomicU64::new(0),
            })
        });
        fence(SeqCst); // before the caller looks whether it is dead: see `kill`
        active
    }

    /// Blocks that the latest table has more than when the directory was loaded.
    pub fn table_growth(&self) -> u64 {
        (self.active.get()).map_or(0, |active| active.added.load(Relaxed))
    }

    /// Take the pages provided for the table, with the level they are for.
    pub fn take_growth(&self) -> (u32, Vec<Range<u64>>) {
        let Some(active) = self.active.get() else {
            return (self.consistent_level(), Vec::new());
        };
        let mut growth = active.growth.lock();
        (
            active.level.load(Acquire),
            std::mem::take(&mut growth.pages),
        )
    }

    /// Whether operations wait in a stripe, or somebody has one locked. Operations that failed may
    /// leave splits in a directory that is not dirty.
    pub fn has_operations(&self) -> bool {
        let waits = |stripe: &Stripe| stripe.ops.try_lock().is_none_or(|ops| !ops.ops.is_empty());
        (self.active.get()).is_some_and(|active| active.stripes.iter().any(waits))
    }

    /// Whether renames of names in it may wait, which others depend on.
    pub fn has_ties(&self) -> bool {
        self.tied.load(Relaxed) && self.has_operations()
    }

    /// Stripes that may have operations: all of those that were recorded before.
    pub fn waiting_stripes(&self) -> impl Iterator<Item = usize> + use<> {
        let active = self.active.get();
        let waiting = active.map_or(0, |active| active.waiting.load(Relaxed));
        (0..STRIPES).filter(move |stripe| waiting & 1 << stripe != 0)
    }

    /// Whether any stripe has operations, that is, whether there is anything to capture.
    pub fn is_changed(&self) -> bool {
        self.active.get().is_some()
    }

    /// The first entry of a bucket on the medium; `None`: it is not split off its parent.
    fn consistent_head(&self, medium: &Medium, b: u64) -> Result<Option<Option<u64>>> {
        match self.consistent_bucket(medium, b)? {
            (_, 0) if b < bucket::BASE => Ok(Some(None)),
            (_, 0) => Ok(None),
            (at, word) => medium.image().bucket(at, word).map(Some),
        }
    }

    /// Place and word of a bucket on the medium; 0 if there is none.
    fn consistent_bucket(&self, medium: &Medium, b: u64) -> Result<(u64, u64)> {
        if b >= bucket::BASE << self.consistent_level() {
            return Ok((0, 0));
        }
        let root = self.root.load(Acquire);
        match tree::find(&medium, root, b / WORDS_PER_PAGE)? {
            Some(block) => {
                let at = page_at(block.page) + b % WORDS_PER_PAGE * 8;
                Ok((at, medium.pool.load(at)))
            }
            None => Ok((0, 0)),
        }
    }
}

/// Declare a directory removed. `ENOTEMPTY` if it has entries; else nothing can be added from here
/// on, and readers find nothing.
///
/// One that was never changed has no stripes to lock. Whoever is about to change it makes them,
/// then looks whether it is dead; we doubt that it lives, then look whether there are stripes. So
/// one of the two notices the other, and who meets the doubt waits for what comes of it.
///
/// False: somebody has a stripe locked, and `wait` is not set.
pub fn kill(dir: &Dir, wait: bool) -> Result<bool> {
    if dir.active.get().is_none() && dir.loaded_entries == 0 {
        dir.life.store(DOUBTFUL, Relaxed);
        fence(SeqCst);
        let dies = dir.active.get().is_none();
        dir.life.store(if dies { DEAD } else { ALIVE }, Release);
        if dies {
            return Ok(true);
        }
    }
    let active = dir.active();
    let guards: Option<Vec<_>> = (active.stripes.iter())
        .map(|stripe| match wait {
            true => Some(stripe.ops.lock()),
            false => stripe.ops.try_lock(),
        })
        .collect();
    let Some(guards) = guards else {
        return Ok(false);
    };
    if dir.entries() > 0 {
        return Err(Error::Errno(Errno::NOTEMPTY));
    }
    dir.life.store(DEAD, Release);
    for stripe in &active.stripes {
        stripe.begin();
        stripe.end();
    }
    drop(guards);
    Ok(true)
}

/// Whether the directory was removed.
pub fn is_dead(dir: &Dir) -> bool {
    loop {
        match dir.life.load(Acquire) {
            DOUBTFUL => std::hint::spin_loop(),
            life => return life == DEAD,
        }
    }
}

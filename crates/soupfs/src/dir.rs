//! A directory's latest view: what callers see and change (SoupFS §3.1, §3.4).
//!
//! The table on the medium and the `NEXT` pointers are the consistent view, which the persister
//! alone changes. The latest view shares the entries: a bucket's latest entries are cached in DRAM
//! ([`latest`]) if this mount changed the bucket, else they begin with the head on the medium; an
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

mod latest;
mod stripe;

pub use stripe::{ADD_WORDS, Locked, REMOVE_WORDS, SPLIT_WORDS};

use crate::attributes::Attributes;
use crate::image::DentryImage;
use crate::inode::Inode;
use crate::layout::{LINE_MASK, WORDS_PER_PAGE, bucket, dentry, line_at, page_at};
use crate::tree;
use crate::volume::Volume;
use latest::{Bucket, CACHED, Chain, Latest, SEGMENTS};
use schedule::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use vfs::{COOKIE_FIRST, Errno, Error, Kind, NAME_MAX, Result};

/// Locks of a directory. A base bucket and all that split off it belong to one.
pub const STRIPES: usize = 16;
const _: () = assert!(bucket::BASE.is_multiple_of(STRIPES as u64));
/// No chain is this long unless the medium is corrupt or the reader is on a stale line.
pub(crate) const CHAIN_MAX: usize = 1 << 20;
/// A chain as long as this is split when something is inserted.
const LONG_CHAIN: usize = 2;
/// Lookups that meet this many changes in a row take the stripe's lock.
const RETRIES: usize = 16;

/// Bits of a position in the order of `readdir`: a cookie is positive as a signed number.
const ORDER_BITS: u32 = 62;

/// The operation number of an entry that the persister has captured.
pub const CAPTURED: u64 = LINE_MASK;

/// An operation that gives a name, and that the persister has not captured yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PendingName {
    /// The directory's inode number, and in the low bits the stripe.
    place: u64,
    /// The operation's number in the stripe.
    pub op: u64,
}

impl PendingName {
    /// Operation `op` of a stripe of a directory.
    pub fn new(dir: u64, stripe: usize, op: u64) -> PendingName {
        let place = dir * STRIPES as u64 + stripe as u64;
        PendingName { place, op }
    }

    /// Another operation there.
    pub fn with_op(self, op: u64) -> PendingName {
        PendingName { op, ..self }
    }

    /// The directory's inode number.
    pub fn dir(&self) -> u64 {
        self.place / STRIPES as u64
    }

    /// The stripe of the directory.
    pub fn stripe(&self) -> usize {
        (self.place % STRIPES as u64) as usize
    }
}

/// A change of a directory that the persister has not captured (SoupFS table 2).
pub enum DirOp {
    /// A new entry.
    Add {
        /// Line of the entry.
        dentry: u64,
        /// Number of what it names.
        child: u64,
        /// Part of a rename: goes with all up to the next [`DirOp::Tie`].
        tied: bool,
    },
    /// An entry to remove.
    Remove {
        /// Line of the entry.
        dentry: u64,
        /// Number of what it named.
        child: u64,
        /// Part of a rename: goes with all up to the next [`DirOp::Tie`].
        tied: bool,
    },
    /// The latest view split this bucket off its parent.
    Split {
        /// The new bucket.
        bucket: u64,
    },
    /// An addition that was undone before it was captured.
    Cancelled,
    /// The same, by a rename.
    MovedOn {
        /// The end of what that rename did.
        end: PendingName,
        /// The addition was part of an earlier rename, and this is still: it goes with all up to
        /// the next [`DirOp::Tie`].
        tied: bool,
    },
    /// The end of what a rename did in this stripe; leads to what it did in the other.
    Tie(PendingName),
}

/// Operations of one stripe, in order. The operation at index `i` has number `first + i`.
#[derive(Default)]
pub struct StripeOps {
    /// What the persister has not captured.
    pub ops: VecDeque<DirOp>,
    /// Number of the first of these.
    pub first: u64,
    /// Behind the last operation that is more than an addition or a split: what comes after may
    /// depend on it.
    bound: u64,
    /// Journal words that these may take, as far as [`Locked::charge`] has not told anybody.
    words: u64,
}

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
    stripes: [Stripe; STRIPES],
    /// Latest buckets. Under the stripe's lock what the medium says is cached here, so that it need
    /// not be asked again: a bucket of the consistent view changes only after the latest one has
    /// (D3, D4).
    latest: Latest,
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

/// A directory in DRAM.
pub struct Dir {
    /// Root of the consistent table. The persister writes it.
    root: AtomicU64,
    /// Level of the consistent table. The persister writes it.
    level: AtomicU32,
    /// Line of the parent's inode, latest.
    pub parent: AtomicU64,
    loaded_entries: u64,
    /// [`ALIVE`], or removed: nothing may be added any more.
    life: AtomicU8,
    /// Whether there has ever been a [`DirOp::Tie`] or a [`DirOp::MovedOn`].
    tied: AtomicBool,
    active: OnceLock<Box<Active>>,
}

/// Takes inode number, kind, name and cookie of an entry; false to stop before it.
pub type Emit<'a> = &'a mut dyn FnMut(u64, Kind, &[u8], u64) -> bool;

/// An entry found in the latest view, with what is needed to remove it.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Line of the entry.
    pub line: u64,
    /// Number of what it names.
    pub ino: u64,
}

/// Blocks of a table of this level.
pub fn table_blocks(level: u32) -> u64 {
    ((bucket::BASE << level) / WORDS_PER_PAGE).max(1)
}

/// Position of an entry in the order of `readdir`: buckets in bit-reversed order, so that splits
/// move nothing. Two names with the same 62 bits of keyed hash would share a cookie.
fn order(hash: u64) -> u64 {
    hash.reverse_bits() >> (64 - ORDER_BITS)
}

impl Dir {
    /// A new directory.
    pub fn fresh(parent: u64) -> Dir {
        Dir {
            root: AtomicU64::new(0),
            level: AtomicU32::new(0),
            parent: AtomicU64::new(parent),
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
            level: AtomicU32::new(image.level),
            parent: AtomicU64::new(image.parent),
            loaded_entries: image.size,
            life: AtomicU8::new(ALIVE),
            tied: AtomicBool::new(false),
            active: OnceLock::new(),
        }
    }

    /// The persister changed the consistent table.
    pub fn set_consistent(&self, root: u64, level: u32) {
        self.root.store(root, Release);
        self.level.store(level, Release);
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
            let level = self.level.load(Acquire);
            let exists = self.root.load(Acquire) != 0;
            Box::new(Active {
                level: AtomicU32::new(level),
                stripes: Default::default(),
                latest: Latest::new(bucket::BASE << level),
                growth: Mutex::new(Growth {
                    blocks: if exists { table_blocks(level) } else { 0 },
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
            return (self.level.load(Acquire), Vec::new());
        };
        let mut growth = active.growth.lock();
        (
            active.level.load(Acquire),
            std::mem::take(&mut growth.pages),
        )
    }

    /// Lock the stripe that names of this hash belong to, and prefetch the hash's bucket.
    pub fn lock(&self, hash: u64) -> Locked<'_> {
        let active = self.active();
        let buckets = bucket::BASE << active.level.load(Relaxed);
        let b = hash & (buckets - 1);
        active.latest.prefetch_for_write(b);
        active.latest.prefetch_parent(b);
        self.lock_stripe((hash % STRIPES as u64) as usize)
    }

    /// Lock a stripe.
    pub fn lock_stripe(&self, index: usize) -> Locked<'_> {
        let active = self.active();
        Locked::new(self, active, index, active.stripes[index].ops.lock())
    }

    /// Lock a stripe, if nobody holds it.
    pub fn try_lock_stripe(&self, index: usize) -> Option<Locked<'_>> {
        let active = self.active();
        let ops = active.stripes[index].ops.try_lock()?;
        Some(Locked::new(self, active, index, ops))
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

    /// Whether any stripe has operations, that is, whether there is anything to capture.
    pub fn is_changed(&self) -> bool {
        self.active.get().is_some()
    }

    /// The latest bucket that a hash belongs to: its entries.
    fn home<'a>(
        &self,
        volume: &Volume,
        active: Option<&'a Active>,
        hash: u64,
    ) -> Result<Chain<'a>> {
        let level = active.map_or_else(|| self.level.load(Acquire), |a| a.level.load(Acquire));
        let mut b = hash & ((bucket::BASE << level) - 1);
        if let Some(active) = active {
            active.latest.prefetch_parent(b);
        }
        loop {
            match active.map_or(Bucket::Unknown, |a| a.latest.get(b)) {
                Bucket::Chain(chain) => return Ok(chain),
                Bucket::Unsplit => {}
                Bucket::Unknown => {
                    if let Some(head) = self.consistent_head(volume, b)? {
                        return Ok(Chain::Linked(head));
                    }
                }
            }
            b = bucket::parent(b);
        }
    }

    /// The first entry of a bucket on the medium; `None`: it is not split off its parent.
    fn consistent_head(&self, volume: &Volume, b: u64) -> Result<Option<Option<u64>>> {
        match self.consistent_bucket(volume, b)? {
            (_, 0) if b < bucket::BASE => Ok(Some(None)),
            (_, 0) => Ok(None),
            (at, word) => volume.image().bucket(at, word).map(Some),
        }
    }

    /// Place and word of a bucket on the medium; 0 if there is none.
    fn consistent_bucket(&self, volume: &Volume, b: u64) -> Result<(u64, u64)> {
        if b >= bucket::BASE << self.level.load(Acquire) {
            return Ok((0, 0));
        }
        let root = self.root.load(Acquire);
        match tree::find(&*volume.pool, &volume.image(), root, b / WORDS_PER_PAGE)? {
            Some(block) => {
                let at = page_at(block.page) + b % WORDS_PER_PAGE * 8;
                Ok((at, volume.pool.load(at)))
            }
            None => Ok((0, 0)),
        }
    }

    /// Run `read` on the chain of a hash until it ran undisturbed; `ENOENT` in a removed directory.
    /// `confirm` tells, at any time during the read, whether it has been undisturbed so far.
    fn undisturbed<T>(
        &self,
        stripe: usize,
        mut read: impl FnMut(Option<&Active>, &dyn Fn() -> bool) -> Result<T>,
    ) -> Result<T> {
        for _ in 0..RETRIES {
            let active = self.active.get().map(|a| &**a);
            let seq = active.map(|a| a.stripes[stripe].seq.load(Acquire));
            if seq.is_some_and(|s| s & 1 == 1) {
                std::hint::spin_loop();
                continue;
            }
            let confirm = || {
                fence(Acquire);
                self.active
                    .get()
                    .map(|a| a.stripes[stripe].seq.load(Relaxed))
                    == seq
                    || (seq.is_none() && self.active().stripes[stripe].seq.load(Acquire) == 0)
            };
            let result = read(active, &confirm);
            if is_dead(self) {
                return Err(Error::Errno(Errno::NOENT));
            }
            if confirm() {
                return result;
            }
        }
        let locked = self.lock_stripe(stripe);
        if is_dead(self) {
            return Err(Error::Errno(Errno::NOENT));
        }
        read(Some(locked.active), &|| true)
    }

    /// Look a name up in the latest view. `inode` turns the number into the inode; it is given a
    /// check that says whether the name still stands.
    pub fn lookup<T>(
        &self,
        volume: &Volume,
        hash: u64,
        name: &[u8],
        mut inode: impl FnMut(u64, &dyn Fn() -> bool) -> Result<T>,
    ) -> Result<T> {
        self.undisturbed((hash % STRIPES as u64) as usize, |active, confirm| {
            let chain = self.home(volume, active, hash)?;
            let ask = |_: &_, _, ino| volume.table.prefetch(ino, Inode::ASKED_FOR);
            match find(volume, chain, hash, name, ask)?.0 {
                Some(found) => inode(found.ino, confirm),
                None => Err(Error::Errno(Errno::NOENT)),
            }
        })
    }

    /// Hand out the entries from `cookie` on, in order, until `emit` refuses one.
    pub fn read(&self, volume: &Volume, cookie: u64, emit: Emit<'_>) -> Result<()> {
        let mut key = if cookie < COOKIE_FIRST {
            0
        } else {
            cookie - COOKIE_FIRST + 1
        };
        let mut found: Vec<(u64, DentryImage, Vec<u8>)> = Vec::new();
        while key < 1 << ORDER_BITS {
            let low = (key << (64 - ORDER_BITS)).reverse_bits();
            let read = self.undisturbed((low % STRIPES as u64) as usize, |active, _| {
                found.clear();
                self.read_cell(volume, active, key, &mut found)
            });
            let next = match read {
                Err(Error::Errno(Errno::NOENT)) => return Ok(()), // removed: it is empty
                next => next?,
            };
            found.sort_unstable_by_key(|&(key, ..)| key);
            for (key, entry, name) in &found {
                if !emit(entry.ino, entry.kind, name, key + COOKIE_FIRST) {
                    return Ok(());
                }
            }
            key = next;
        }
        Ok(())
    }

    /// Collect the entries at or after `key` that belong to the same bucket of the full table (it
    /// may not be split off yet); returns the first key of the next one. As buckets go by their
    /// reversed number, what belongs to one are the keys between the two.
    fn read_cell(
        &self,
        volume: &Volume,
        active: Option<&Active>,
        key: u64,
        found: &mut Vec<(u64, DentryImage, Vec<u8>)>,
    ) -> Result<u64> {
        let level = active.map_or_else(|| self.level.load(Acquire), |a| a.level.load(Acquire));
        let bits = bucket::BASE.trailing_zeros() + level;
        let mask = (1u64 << bits) - 1;
        let low = (key << (64 - ORDER_BITS)).reverse_bits() & mask;
        let mut chain = self.home(volume, active, low)?;
        for _ in 0..CHAIN_MAX {
            let Some(line) = chain.pop(volume)? else {
                return Ok(((key >> (ORDER_BITS - bits)) + 1) << (ORDER_BITS - bits));
            };
            let entry = volume.image().dentry(line)?;
            if entry.hash & mask == low && order(entry.hash) >= key {
                let mut buf = [0; NAME_MAX];
                let name = volume.image().name(&entry, &mut buf)?.to_vec();
                found.push((order(entry.hash), entry, name));
            }
        }
        Err(Error::corrupt(0, "directory chain without end"))
    }
}

/// The entry behind `line` in the latest view.
#[inline]
pub(crate) fn latest_next(volume: &Volume, line: u64) -> Result<Option<u64>> {
    let at = line_at(line) + dentry::LATEST_NEXT;
    match volume.untagged(volume.pool.load(at)) {
        // A reader may be on a line that is something else by now, and an image may be damaged.
        Some(next) => volume.image().link(at, next),
        None => volume.image().next(line),
    }
}

/// Search a latest chain; if the name is not there, also how long the chain is. `probable` is told
/// where it is probably cached and which inode it means, before the entry itself is looked at.
fn find(
    volume: &Volume,
    mut chain: Chain<'_>,
    hash: u64,
    name: &[u8],
    probable: impl Fn(&latest::Words, usize, u64),
) -> Result<(Option<Found>, usize)> {
    if let Chain::Cached(words, len) = chain {
        for i in latest::tagged(words, hash) {
            let (line, ino) = latest::entry(words, i);
            probable(words, i, ino);
            if let Some(ino) = volume.image().named(line, hash, name)? {
                return Ok((Some(Found { line, ino }), len));
            }
        }
        return Ok((None, len));
    }
    let head = chain.head();
    for len in 0..CHAIN_MAX {
        match chain.pop(volume)? {
            None => return Ok((None, len)),
            Some(line) => {
                if let Some(ino) = volume.image().named(line, hash, name)? {
                    return Ok((Some(Found { line, ino }), len));
                }
            }
        }
    }
    Err(Error::corrupt(
        line_at(head.unwrap_or(0)),
        "directory chain without end",
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_name_tells_where_it_is() {
        let name = PendingName::new(LINE_MASK, STRIPES - 1, 7);
        assert_eq!(
            (name.dir(), name.stripe(), name.op),
            (LINE_MASK, STRIPES - 1, 7)
        );
    }
}

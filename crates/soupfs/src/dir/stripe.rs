//! Changes of names, made with the directory's stripe locked.

use super::cache::{self, Bucket, CACHED, Chain, Hint};
use super::links::CHAIN_MAX;
use super::lookup::{Found, find};
use super::ops::{Addition, CAPTURED, DirOp, PendingName, STRIPES, StripeOps};
use super::{Active, Dir, is_dead};
use crate::hash::Name;
use crate::image::Source;
use crate::layout::{LINE_MASK, bucket, dentry, line_at};
use crate::medium::Medium;
use crate::prefetch;
use schedule::MutexGuard;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Error, Result};

/// Journal words of an addition: the bucket's.
pub const ADD_WORDS: u64 = 1;
/// Of a removal: what led to the entry, and its inode's count of links.
pub const REMOVE_WORDS: u64 = 2;
/// Of a split, besides the entries that it relinks: two buckets'.
pub const SPLIT_WORDS: u64 = 2;

/// A chain as long as this is split when something is inserted.
const LONG_CHAIN: usize = 2;
/// The entries of a chain: hardly ever more than these.
pub(super) type Lines = SmallVec<[u64; 8]>;

/// A locked stripe of a directory: what changes names.
pub struct Locked<'a> {
    pub(super) dir: &'a Dir,
    pub(super) active: &'a Active,
    pub(super) index: usize,
    /// Of the last search: the hash, its bucket and the entries there; until they change.
    pub(super) home: Option<(u64, u64, Chain<'a>)>,
    /// The last search went through a long chain: the next insertion splits it.
    pub(super) long: bool,
    exclusive: bool,
    /// The operations to be captured.
    pub ops: MutexGuard<'a, StripeOps>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.exclusive {
            self.active.stripes[self.index].end();
        }
    }
}

impl Dir {
    /// Lock the stripe that names of this hash belong to, and prefetch the hash's bucket.
    pub fn lock(&self, hash: u64) -> Locked<'_> {
        let active = self.active();
        let buckets = bucket::BASE << active.level.load(Relaxed);
        active.cache.expect_change(hash & (buckets - 1));
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
}

impl<'a> Locked<'a> {
    /// A stripe of a directory, locked.
    pub(super) fn new(
        dir: &'a Dir,
        active: &'a Active,
        index: usize,
        ops: MutexGuard<'a, StripeOps>,
    ) -> Locked<'a> {
        Locked {
            dir,
            active,
            index,
            home: None,
            long: false,
            exclusive: false,
            ops,
        }
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The bucket that a hash belongs to, and its entries: cached if they were not.
    #[inline]
    pub(super) fn home(&mut self, medium: &Medium, hash: u64) -> Result<(u64, Chain<'a>)> {
        if let Some((of, b, chain)) = self.home
            && of == hash
        {
            return Ok((b, chain));
        }
        let (b, chain) = self.search(medium, hash)?;
        self.home = Some((hash, b, chain));
        Ok((b, chain))
    }

    pub(super) fn search(&self, medium: &Medium, hash: u64) -> Result<(u64, Chain<'a>)> {
        let mut b = hash & ((bucket::BASE << self.active.level.load(Relaxed)) - 1);
        loop {
            match self.active.cache.get(b) {
                Bucket::Chain(chain) => return Ok((b, chain)),
                Bucket::Unsplit => b = bucket::parent(b),
                Bucket::Unknown => self.fill(medium, b)?,
            }
        }
    }

    /// Note what the medium says of a bucket.
    #[cold]
    fn fill(&self, medium: &Medium, b: u64) -> Result<()> {
        match self.dir.consistent_head(medium, b)? {
            None => self.active.cache.set_unsplit(b),
            Some(head) => {
                let mut first = Lines::new();
                let mut chain = Chain::Linked(head);
                while let Some(line) = chain.pop(medium)? {
                    first.push(line);
                    if first.len() > CACHED {
                        break;
                    }
                }
                self.active.cache.set(medium, b, &first);
            }
        }
        Ok(())
    }

    /// Whether a bucket is not split off its parent.
    pub(super) fn is_unsplit(&self, medium: &Medium, b: u64) -> Result<bool> {
        loop {
            match self.active.cache.get(b) {
                Bucket::Chain(_) => return Ok(false),
                Bucket::Unsplit => return Ok(true),
                Bucket::Unknown => self.fill(medium, b)?,
            }
        }
    }

    /// All entries of a chain.
    pub(super) fn entries(&self, medium: &Medium, mut chain: Chain<'_>) -> Result<Lines> {
        let mut lines = Lines::new();
        while let Some(line) = chain.pop(medium)? {
            lines.push(line);
            if lines.len() > CHAIN_MAX {
                return Err(Error::corrupt(line_at(line), "directory chain without end"));
            }
        }
        Ok(lines)
    }

    /// Find a name; `ENOENT` in a removed directory.
    pub fn find(&mut self, medium: &Medium, name: Name<'_>) -> Result<Option<Found>> {
        self.find_expecting(medium, name, |_| ())
    }

    /// Find a name that is to be removed. `expect` is told which inode will probably be meant.
    pub fn find_to_remove(
        &mut self,
        medium: &Medium,
        name: Name<'_>,
        expect: impl Fn(u64),
    ) -> Result<Option<Found>> {
        self.find_expecting(medium, name, |hint| {
            expect(hint.ino);
            cache::expect_removal(medium, &hint);
        })
    }

    fn find_expecting(
        &mut self,
        medium: &Medium,
        name: Name<'_>,
        expect: impl Fn(Hint<'_>),
    ) -> Result<Option<Found>> {
        if is_dead(self.dir) {
            return Err(Error::Errno(Errno::NOENT));
        }
        let (_, chain) = self.home(medium, name.hash)?;
        let (found, len) = find(medium, chain, name, expect)?;
        self.long = len >= LONG_CHAIN;
        if found.is_none() {
            medium.pool.check_absence()?;
        }
        Ok(found)
    }

    /// Put an entry, all of whose words but its links are stored, at the head of its bucket, and
    /// record the operation. Returns the operation's number.
    pub fn insert(&mut self, medium: &Medium, hash: u64, addition: Addition) -> Result<u64> {
        let Addition {
            dentry: line,
            child,
            tied,
        } = addition;
        let (b, chain) = self.home(medium, hash)?;
        self.home = None; // it changes
        let op = self.next_op();
        let at = line_at(line);
        medium.pool.store(at + dentry::NEXT, dentry::PENDING | op);
        medium.pool.store(
            at + dentry::LATEST_NEXT,
            medium.tagged(chain.head().unwrap_or(0)),
        );
        match chain {
            Chain::Cached(words, len) if len < CACHED => cache::add(words, len, line, hash, child),
            Chain::Cached(..) => self.rearrange(|| self.active.cache.set_long(b, line)),
            Chain::Linked(_) => self.active.cache.set_long(b, line),
        }
        self.push(DirOp::Add {
            dentry: line,
            child,
            tied,
        });
        self.count(1);
        self.ops.words += ADD_WORDS;
        Ok(op)
    }

    /// Take an entry out of the latest view. The caller records the operation.
    pub fn unlink(&mut self, medium: &Medium, found: &Found) -> Result<()> {
        let hash = medium.pool.load(line_at(found.line) + dentry::HASH);
        let (b, chain) = match self.home.take() {
            Some((of, b, chain)) if of == hash => (b, chain),
            _ => self.search(medium, hash)?,
        };
        let relink = |before: Option<u64>, next: Option<u64>| {
            if let Some(before) = before {
                let next = medium.tagged(next.unwrap_or(0));
                let at = line_at(before) + dentry::LATEST_NEXT;
                medium.pool.store(at, next);
            }
        };
        let missing = || Error::corrupt(line_at(found.line), "entry missing in its bucket");
        match chain {
            Chain::Cached(words, len) => {
                let i = cache::position(words, found.line).ok_or_else(missing)?;
                let (before, next) = cache::neighbours(words, len, i);
                self.rearrange(|| {
                    relink(before, next);
                    cache::remove(words, i);
                });
            }
            Chain::Linked(_) => {
                let mut lines = self.entries(medium, chain)?;
                let i = lines.iter().position(|&line| line == found.line);
                let i = i.ok_or_else(missing)?;
                lines.remove(i);
                let before = lines[..i].last().copied();
                self.rearrange(|| {
                    relink(before, lines.get(i).copied());
                    self.active.cache.set(medium, b, &lines);
                });
            }
        }
        self.count(-1);
        Ok(())
    }

    /// Record an operation.
    pub(super) fn push(&mut self, op: DirOp) {
        self.ops.ops.push_back(op);
        let (waiting, bit) = (&self.active.waiting, 1 << self.index);
        if waiting.load(Relaxed) & bit == 0 {
            waiting.fetch_or(bit, Relaxed);
        }
        prefetch::next_place(&self.ops.ops);
    }

    /// Operations were captured.
    pub fn captured(&self) {
        if self.ops.ops.is_empty() {
            self.active.waiting.fetch_and(!(1 << self.index), Relaxed);
        }
    }

    /// One entry more or less. Under the stripe's lock, so no atomic addition is needed.
    fn count(&self, by: i64) {
        let entries = &self.active.stripes[self.index].entries;
        entries.store(entries.load(Relaxed) + by, Relaxed);
    }

    /// The number that the next operation will get.
    pub fn next_op(&self) -> u64 {
        self.ops.first + self.ops.ops.len() as u64
    }

    /// What the next operation will be, as the name that it gives in this directory.
    pub fn next_name(&self, dir: u64) -> PendingName {
        PendingName::new(dir, self.index, self.next_op())
    }

    /// The number of the addition of this entry, if the persister has not captured it.
    pub fn pending(&self, medium: &Medium, line: u64) -> Option<u64> {
        let next = medium.pool.load(line_at(line) + dentry::NEXT);
        (next & dentry::PENDING != 0 && next & LINE_MASK != CAPTURED).then_some(next & LINE_MASK)
    }

    /// Undo an addition that was not captured. If a rename does, the caller says where that ends
    /// ([`Locked::moved_on`]).
    pub fn cancel(&mut self, op: PendingName, by_rename: bool) {
        let index = (op.op - self.ops.first) as usize;
        let undone = &mut self.ops.ops[index];
        debug_assert!(
            matches!(undone, DirOp::Add { .. }),
            "a pending entry's number is its addition's"
        );
        let tied = matches!(undone, DirOp::Add { tied: true, .. });
        *undone = match by_rename {
            true => DirOp::MovedOn { end: op, tied },
            false => DirOp::Cancelled,
        };
        while let Some(DirOp::Cancelled) = self.ops.ops.front() {
            self.ops.ops.pop_front();
            self.ops.first += 1;
        }
    }

    /// Record the removal of an entry that the persister has captured.
    pub fn record_removal(&mut self, line: u64, child: u64, tied: bool) {
        self.push(DirOp::Remove {
            dentry: line,
            child,
            tied,
        });
        self.ops.words += REMOVE_WORDS;
        self.ops.bound = self.next_op();
    }

    /// Whether operations wait on which an addition here may depend: a removal of the same name, or
    /// a rename.
    pub fn is_bound(&self) -> bool {
        self.ops.bound > self.ops.first
    }

    /// End what a rename does in this stripe, and tie it to what it does in the other.
    pub fn tie(&mut self, other: PendingName) {
        self.dir.tied.store(true, Relaxed);
        self.push(DirOp::Tie(other));
        self.ops.bound = self.next_op();
    }

    /// Where the rename ends that has cancelled this addition.
    pub fn moved_on(&mut self, op: u64, to: PendingName) {
        let index = (op - self.ops.first) as usize;
        if let DirOp::MovedOn { end, .. } = &mut self.ops.ops[index] {
            *end = to;
        }
        self.dir.tied.store(true, Relaxed);
        self.ops.bound = self.ops.bound.max(op + 1);
    }

    /// Take what the operations of this stripe may need in the journal, in words: the caller adds
    /// it to the backlog when it has unlocked.
    pub fn charge(&mut self) -> u64 {
        std::mem::take(&mut self.ops.words)
    }

    /// Let lookups wait until the lock is dropped: what is done until then they see at once.
    pub fn exclusive(&mut self) {
        if !std::mem::replace(&mut self.exclusive, true) {
            self.active.stripes[self.index].begin();
        }
    }

    pub(super) fn rearrange(&self, change: impl FnOnce()) {
        let stripe = &self.active.stripes[self.index];
        if self.exclusive {
            return change();
        }
        stripe.begin();
        change();
        stripe.end();
    }
}

//! The latest buckets: which entries are in each, cached in DRAM on demand (SoupFS §3.1).
//!
//! A bucket takes a cache line and holds its entries, oldest first, each with a tag of its
//! hash and with the number of what it names. So a search reads the entry that it means and
//! hardly ever another, while the inode is on its way to the cache already; it is known without
//! reading any entry that a name is not there, and so are an entry's neighbours. Of a chain that
//! is longer only the first entry is cached, and the links of the entries lead on.
//!
//! Buckets change under their stripe's lock. Readers take none: an entry is added by one store;
//! what takes more than that is done with the stripe's sequence number odd, or where a reader had
//! nothing yet.

use super::links::latest_next;
use crate::layout::{LINE_BITS, LINE_MASK, bucket, dentry, line_at};
use crate::medium::Medium;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use vfs::Result;
use zerocopy::FromZeros;

/// Entries that a cached bucket holds.
pub const CACHED: usize = 5;
/// The first segment has the base buckets, each further one doubles the table.
pub const SEGMENTS: usize = bucket::LEVEL_MAX as usize + 1;

// The first word of a bucket that does not hold entries. Line 0 is never an entry's.
/// Nothing: see [`BucketCache::get`].
const UNCACHED: u64 = 0;
/// No entry.
const EMPTY: u64 = 1 << LINE_BITS;
/// Its entries are with its parent, in both views.
const UNSPLIT: u64 = 2 << LINE_BITS;
/// More than [`CACHED`] entries: the second word is the first of them.
const LONG: u64 = 3 << LINE_BITS;

/// The latest buckets of a directory.
pub struct BucketCache {
    segments: [OnceLock<Box<[CachedBucket]>>; SEGMENTS],
    /// Buckets from this one on came with a larger table after this was made. So of these, what is
    /// not cached is not split off, in either view, and the medium need not be asked: a table's
    /// words begin as zero (I2), the consistent view splits after the latest one (D4), and what was
    /// cached never becomes zero again.
    grown: u64,
}

/// The words of a bucket.
#[derive(FromZeros)]
#[repr(C, align(64))]
pub struct CachedBucket {
    /// The entries, each with the tag of its hash.
    lines: [AtomicU64; CACHED],
    /// The low bits of the numbers of what they name: hints, for it to be on its way to the cache
    /// before the entry tells.
    inos: [AtomicU32; CACHED],
}

/// What is cached of a bucket.
pub enum Bucket<'a> {
    /// Nothing: it is as on the medium.
    Unknown,
    /// Its entries are with its parent.
    Unsplit,
    /// Its entries.
    Chain(Chain<'a>),
}

/// The entries of a bucket, the newest first.
#[derive(Clone, Copy)]
pub enum Chain<'a> {
    /// So many, which are all: cached from the oldest on.
    Cached(&'a CachedBucket, usize),
    /// The first of them; the others follow by their links.
    Linked(Option<u64>),
}

impl Chain<'_> {
    /// The first entry.
    pub fn head(&self) -> Option<u64> {
        match *self {
            Chain::Cached(words, len) => Some(line_of(words.lines.get(len.wrapping_sub(1))?)),
            Chain::Linked(head) => head,
        }
    }

    /// Take the first entry off.
    pub fn pop(&mut self, medium: &Medium) -> Result<Option<u64>> {
        let first = self.head();
        match (self, first) {
            (Chain::Cached(_, len), Some(_)) => *len -= 1,
            (Chain::Linked(head), Some(line)) => *head = latest_next(medium, line)?,
            (_, None) => {}
        }
        Ok(first)
    }
}

/// Which words hold. All are looked at, whatever is found: how full a bucket is cannot be
/// predicted, and a branch that was predicted wrongly costs more than they do.
#[inline]
fn which(words: &CachedBucket, holds: impl Fn(u64) -> bool) -> u32 {
    let bit = |i: usize| u32::from(holds(words.lines[i].load(Acquire))) << i;
    (0..CACHED).fold(0, |all, i| all | bit(i))
}

/// What a cached bucket says of an entry, before the entry itself is read.
pub struct Hint<'a> {
    /// The entry.
    pub line: u64,
    /// What it probably names.
    pub ino: u64,
    bucket: &'a CachedBucket,
    index: usize,
}

/// The entries that are cached with the tag of a hash, the newest first.
#[inline]
pub fn tagged(bucket: &CachedBucket, hash: u64) -> impl Iterator<Item = Hint<'_>> {
    let mut left = which(bucket, |word| word >> LINE_BITS == hash >> LINE_BITS);
    std::iter::from_fn(move || {
        let index = left.checked_ilog2()?;
        left &= !(1 << index);
        let index = index as usize;
        let line = line_of(&bucket.lines[index]);
        Some(Hint {
            line,
            ino: near(line, bucket.inos[index].load(Relaxed)),
            bucket,
            index,
        })
    })
}

/// Where an entry is cached.
#[inline]
pub fn position(words: &CachedBucket, line: u64) -> Option<usize> {
    match which(words, |word| word & LINE_MASK == line) {
        0 => None,
        found => Some(found.trailing_zeros() as usize),
    }
}

/// The number with these low bits that lies in the same 256 GiB of the image as the entry.
fn near(line: u64, low: u32) -> u64 {
    line >> u32::BITS << u32::BITS | u64::from(low)
}

/// The next newer entry than the one at an index, which comes before it in the chain; without the
/// lock it may be there or not.
#[inline]
fn newer(words: &CachedBucket, i: usize) -> Option<u64> {
    let line = line_of(words.lines.get(i + 1)?);
    (line != 0).then_some(line)
}

/// An entry will be taken out of its chain: what comes before it will be linked anew.
#[inline]
pub fn expect_removal(medium: &Medium, entry: &Hint<'_>) {
    if let Some(line) = newer(entry.bucket, entry.index) {
        let at = line_at(line) + dentry::LATEST_NEXT;
        medium.pool.prefetch_for_write(at);
    }
}

/// The neighbours of the entry at index `i`, of so many: the one before it, which is newer, and the
/// one behind.
#[inline]
pub fn neighbours(words: &CachedBucket, len: usize, i: usize) -> (Option<u64>, Option<u64>) {
    let lines = &words.lines[..len];
    (
        lines.get(i + 1).map(line_of),
        lines[..i].last().map(line_of),
    )
}

/// The entry in a cached word.
#[inline]
fn line_of(word: &AtomicU64) -> u64 {
    word.load(Acquire) & LINE_MASK
}

/// Note one entry more in a bucket, behind the `len` that it has: readers see it at once.
#[inline]
pub fn add(words: &CachedBucket, len: usize, line: u64, hash: u64, ino: u64) {
    words.inos[len].store(ino as u32, Relaxed);
    words.lines[len].store(tag(line, hash), Release);
}

/// Note one entry less: the one at index `i`.
#[inline]
pub fn remove(words: &CachedBucket, i: usize) {
    for at in 0..CACHED {
        let from = at + usize::from(at >= i);
        let line = words.lines.get(from).map_or(0, |line| line.load(Acquire));
        let ino = words.inos.get(from).map_or(0, |ino| ino.load(Relaxed));
        let empty = if at == 0 && line == 0 { EMPTY } else { 0 };
        words.inos[at].store(ino, Relaxed);
        words.lines[at].store(line | empty, Release);
    }
}

impl BucketCache {
    /// Nothing cached; the consistent table, and the latest one so far, has so many buckets.
    pub fn new(buckets: u64) -> BucketCache {
        BucketCache {
            segments: Default::default(),
            grown: buckets,
        }
    }

    /// What is cached of a bucket.
    #[inline]
    pub fn get(&self, b: u64) -> Bucket<'_> {
        let (segment, index) = place(b);
        let Some(words) = self.segments[segment].get().and_then(|s| s.get(index)) else {
            return self.uncached(b);
        };
        let first = words.lines[0].load(Acquire);
        if first & LINE_MASK != 0 {
            // Added up, not counted as bits: that takes an instruction which not every processor
            // has.
            let len = (words.lines.iter())
                .map(|word| usize::from(word.load(Acquire) != 0))
                .sum();
            return Bucket::Chain(Chain::Cached(words, len));
        }
        match first {
            UNCACHED => self.uncached(b),
            UNSPLIT => Bucket::Unsplit,
            LONG => Bucket::Chain(Chain::Linked(Some(line_of(&words.lines[1])))),
            _ => Bucket::Chain(Chain::Cached(words, 0)), // EMPTY
        }
    }

    #[inline]
    fn uncached(&self, b: u64) -> Bucket<'_> {
        match self.has_grown_to(b) {
            false => Bucket::Unknown,
            true => Bucket::Unsplit,
        }
    }

    /// Whether a bucket came with a larger table.
    #[inline]
    pub fn has_grown_to(&self, b: u64) -> bool {
        b >= self.grown
    }

    /// A bucket will be looked at: its parent is to come beside it, as the entries are there if it
    /// is not split off.
    #[inline]
    pub fn expect_lookup(&self, b: u64) {
        if b < bucket::BASE {
            return;
        }
        let (segment, index) = place(bucket::parent(b));
        if let Some(segment) = self.segments[segment].get() {
            pmem::prefetch(&raw const segment[index]);
        }
    }

    /// A bucket will be changed.
    #[inline]
    pub fn expect_change(&self, b: u64) {
        let (segment, index) = place(b);
        if let Some(segment) = self.segments[segment].get() {
            pmem::prefetch_for_write(&raw const segment[index]);
        }
        self.expect_lookup(b);
    }

    fn make(&self, b: u64) -> &CachedBucket {
        let (segment, index) = place(b);
        let words = self.segments[segment].get_or_init(|| {
            let buckets = bucket::BASE << segment.saturating_sub(1);
            <[CachedBucket]>::new_box_zeroed_with_elems(buckets as usize)
                .expect("memory for the names of a directory")
        });
        &words[index]
    }

    /// Note that a bucket's entries are with its parent.
    pub fn set_unsplit(&self, b: u64) {
        self.make(b).lines[0].store(UNSPLIT, Release);
    }

    /// Note the entries of a bucket, the newest first. Readers see this while it is half done,
    /// unless nothing was cached before.
    pub fn set(&self, medium: &Medium, b: u64, lines: &[u64]) {
        if lines.len() > CACHED {
            return self.set_long(b, lines[0]);
        }
        let word = |line, at| medium.pool.load(line_at(line) + at);
        let words = self.make(b);
        // The first word last: it says that there is something.
        for i in (0..CACHED).rev() {
            let (mut cached, mut ino) = (if i == 0 { EMPTY } else { 0 }, 0);
            if let Some(&line) = lines.iter().rev().nth(i) {
                cached = tag(line, word(line, dentry::HASH));
                ino = word(line, dentry::TARGET) as u32;
            }
            words.inos[i].store(ino, Relaxed);
            words.lines[i].store(cached, Release);
        }
    }

    /// Note the first entry of a bucket that has too many, or one more of them.
    pub fn set_long(&self, b: u64, head: u64) {
        let words = self.make(b);
        words.lines[1].store(head, Release);
        words.lines[0].store(LONG, Release);
    }
}

/// Segment of a latest bucket, and index there.
#[inline]
fn place(b: u64) -> (usize, usize) {
    let segment = (u64::BITS - (b / bucket::BASE).leading_zeros()) as usize;
    // The base buckets come first, and twice as many with each further segment.
    let first = bucket::BASE << segment >> 1 & !(bucket::BASE - 1);
    (segment, (b - first) as usize)
}

fn tag(line: u64, hash: u64) -> u64 {
    line | hash & !LINE_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_places_of_their_own() {
        let mut places: Vec<_> = (0..4096).map(place).collect();
        assert_eq!(places[..2], [(0, 0), (0, 1)]);
        assert_eq!(places[32..34], [(1, 0), (1, 1)]);
        assert_eq!(places[64..66], [(2, 0), (2, 1)]);
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 4096);
        for (segment, index) in places {
            assert!(index < (bucket::BASE << segment.saturating_sub(1)) as usize);
        }
    }

    #[test]
    fn what_came_with_a_larger_table_is_known_not_to_be_split_off() {
        let cache = BucketCache::new(64);
        for (b, cached_beside) in [(63, 62), (64, 65)] {
            let known = b >= 64;
            assert_eq!(matches!(cache.get(b), Bucket::Unsplit), known);
            cache.set_long(cached_beside, 700);
            assert_eq!(matches!(cache.get(b), Bucket::Unsplit), known);
            assert_eq!(matches!(cache.get(b), Bucket::Unknown), !known);
        }
    }

    #[test]
    fn what_is_cached_is_read_again() {
        let cache = BucketCache::new(64);
        let hash = |line: u64| line << LINE_BITS | 33;
        let lines = |cache: &BucketCache| match cache.get(33) {
            Bucket::Chain(Chain::Cached(words, len)) => {
                words.lines[..len].iter().map(line_of).collect()
            }
            _ => vec![],
        };
        let found = |words: &CachedBucket, line| -> Vec<_> {
            tagged(words, hash(line))
                .map(|hint| (hint.line, hint.ino))
                .collect()
        };
        assert!(matches!(cache.get(33), Bucket::Unknown));
        cache.set_unsplit(33);
        assert!(matches!(cache.get(33), Bucket::Unsplit));
        for (len, line) in [700, 800, 900].into_iter().enumerate() {
            add(cache.make(33), len, line, hash(line), line + 1);
        }
        let Bucket::Chain(chain @ Chain::Cached(words, 3)) = cache.get(33) else {
            panic!("three entries were cached");
        };
        assert_eq!(chain.head(), Some(900));
        assert_eq!(found(words, 800), [(800, 801)]);
        assert_eq!([0, 2, 4].map(|i| newer(words, i)), [Some(800), None, None]);
        assert_eq!(neighbours(words, 3, 0), (Some(800), None));
        assert_eq!(neighbours(words, 3, 2), (None, Some(800)));
        remove(words, 0);
        assert_eq!(found(words, 800), [(800, 801)]);
        assert_eq!(lines(&cache), [800, 900]);
        remove(words, 1);
        assert_eq!(lines(&cache), [800]);
        remove(words, 0);
        assert!(matches!(cache.get(33), Bucket::Chain(Chain::Cached(_, 0))));
        cache.set_long(33, 1000);
        assert!(matches!(
            cache.get(33),
            Bucket::Chain(Chain::Linked(Some(1000)))
        ));
    }
}

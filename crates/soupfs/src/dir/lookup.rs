//! Reading names, which takes no lock: lookups and `readdir`.

use super::cache::{self, Bucket, Chain, Hint};
use super::links::CHAIN_MAX;
use super::ops::STRIPES;
use super::{Active, Dir, is_dead};
use crate::hash::Name;
use crate::image::{DentryImage, Source};
use crate::layout::{bucket, line_at};
use crate::medium::Medium;
use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};
use vfs::{COOKIE_FIRST, Errno, Error, Kind, NAME_MAX, Result};

/// Lookups that meet this many changes in a row take the stripe's lock.
const RETRIES: usize = 16;

/// Bits of a position in the order of `readdir`: a cookie is positive as a signed number.
const ORDER_BITS: u32 = 62;

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

/// Position of an entry in the order of `readdir`: buckets in bit-reversed order, so that splits
/// move nothing. Two names with the same 62 bits of keyed hash would share a cookie.
fn order(hash: u64) -> u64 {
    hash.reverse_bits() >> (64 - ORDER_BITS)
}

impl Dir {
    /// The latest bucket that a hash belongs to: its entries.
    fn home<'a>(
        &self,
        medium: &Medium,
        active: Option<&'a Active>,
        hash: u64,
    ) -> Result<Chain<'a>> {
        let level = active.map_or_else(|| self.consistent_level(), |a| a.level.load(Acquire));
        let mut b = hash & ((bucket::BASE << level) - 1);
        if let Some(active) = active {
            active.cache.expect_lookup(b);
        }
        loop {
            match active.map_or(Bucket::Unknown, |a| a.cache.get(b)) {
                Bucket::Chain(chain) => return Ok(chain),
                Bucket::Unsplit => {}
                Bucket::Unknown => {
                    if let Some(head) = self.consistent_head(medium, b)? {
                        return Ok(Chain::Linked(head));
                    }
                }
            }
            b = bucket::parent(b);
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

    /// Look a name up in the latest view. `expect` is told which inode will probably be meant,
    /// ahead of its entry. `inode` turns the number into the inode; it is given a check that says
    /// whether the name still stands.
    pub fn lookup<T>(
        &self,
        medium: &Medium,
        name: Name<'_>,
        expect: impl Fn(u64),
        mut inode: impl FnMut(u64, &dyn Fn() -> bool) -> Result<T>,
    ) -> Result<T> {
        self.undisturbed((name.hash % STRIPES as u64) as usize, |active, confirm| {
            let chain = self.home(medium, active, name.hash)?;
            match find(medium, chain, name, |hint| expect(hint.ino))?.0 {
                Some(found) => inode(found.ino, confirm),
                None => {
                    medium.pool.check_absence()?;
                    Err(Error::Errno(Errno::NOENT))
                }
            }
        })
    }

    /// Hand out the entries from `cookie` on, in order, until `emit` refuses one.
    pub fn read(&self, medium: &Medium, cookie: u64, emit: Emit<'_>) -> Result<()> {
        let read = |key: u64, found: &mut Cell| {
            let stripe = (low_bits(key) % STRIPES as u64) as usize;
            self.undisturbed(stripe, |active, _| {
                found.clear();
                let level = |a: &Active| a.level.load(Acquire);
                let level = active.map_or_else(|| self.consistent_level(), level);
                read_cell(medium, level, key, found, |hash| {
                    let mut chain = self.home(medium, active, hash)?;
                    Ok(std::iter::from_fn(move || chain.pop(medium).transpose()).take(CHAIN_MAX))
                })
            })
        };
        read_by_cells(cookie, read, emit)
    }
}

/// Entries that belong to one bucket of the full table, with their positions and names.
pub type Cell = Vec<(u64, DentryImage, Vec<u8>)>;

/// The bits of the hashes at a position.
fn low_bits(key: u64) -> u64 {
    (key << (64 - ORDER_BITS)).reverse_bits()
}

/// Hand out the entries from `cookie` on, in order, until `emit` refuses one; `read` reads the cell
/// of a position and returns the position of the next; `ENOENT` in a removed directory.
pub fn read_by_cells(
    cookie: u64,
    mut read: impl FnMut(u64, &mut Cell) -> Result<u64>,
    emit: Emit<'_>,
) -> Result<()> {
    let mut key = if cookie < COOKIE_FIRST {
        0
    } else {
        cookie - COOKIE_FIRST + 1
    };
    let mut found = Cell::new();
    while key < 1 << ORDER_BITS {
        let next = match read(key, &mut found) {
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

/// Collect the entries at or after `key` that belong to the same bucket of a full table of this
/// level (it may not be split off yet); returns the first key of the next one. As buckets go by
/// their reversed number, what belongs to one are the keys between the two. `chain` gives the
/// entries of a bucket by a hash in it.
pub fn read_cell<C: Iterator<Item = Result<u64>>>(
    medium: &Medium,
    level: u32,
    key: u64,
    found: &mut Cell,
    chain: impl FnOnce(u64) -> Result<C>,
) -> Result<u64> {
    let bits = bucket::BASE.trailing_zeros() + level;
    let mask = (1u64 << bits) - 1;
    let low = low_bits(key) & mask;
    let mut steps = 0;
    for line in chain(low)? {
        let entry = medium.image().dentry(line?)?;
        if entry.hash & mask == low && order(entry.hash) >= key {
            let mut buf = [0; NAME_MAX];
            let name = medium.image().name(&entry, &mut buf)?.to_vec();
            found.push((order(entry.hash), entry, name));
        }
        steps += 1;
    }
    medium.pool.check_absence()?;
    match steps < CHAIN_MAX {
        true => Ok(((key >> (ORDER_BITS - bits)) + 1) << (ORDER_BITS - bits)),
        false => Err(Error::corrupt(0, "directory chain without end")),
    }
}

/// Search a latest chain; if the name is not there, also how long the chain is. `expect` is told of
/// each entry that it may be.
pub(super) fn find(
    medium: &Medium,
    mut chain: Chain<'_>,
    name: Name<'_>,
    expect: impl Fn(Hint<'_>),
) -> Result<(Option<Found>, usize)> {
    let named = |line| medium.image().named(line, name.hash, name.bytes);
    if let Chain::Cached(bucket, len) = chain {
        for hint in cache::tagged(bucket, name.hash) {
            let line = hint.line;
            expect(hint);
            if let Some(ino) = named(line)? {
                return Ok((Some(Found { line, ino }), len));
            }
        }
        return Ok((None, len));
    }
    let head = chain.head();
    for len in 0..CHAIN_MAX {
        match chain.pop(medium)? {
            None => return Ok((None, len)),
            Some(line) => {
                if let Some(ino) = named(line)? {
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

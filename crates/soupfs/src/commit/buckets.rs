//! A directory's table in the consistent view, as a transaction changes it.
//!
//! The counterpart of [`crate::dir`]: the same buckets and chains, along `NEXT`. Entries are added
//! at the head (D1), and buckets are split as the latest view has split them (D4).

use crate::commit::txn::Txn;
use crate::dir::CHAIN_MAX;
use crate::fault::{Fault, injected};
use crate::layout::{WORDS_PER_PAGE, bucket, dentry, line_at, page_at};
use crate::tree;
use crate::words::Words;
use vfs::{Error, Result};

/// Where a directory's table is.
#[derive(Debug, Clone, Copy)]
pub struct BucketTable {
    /// Root word of its index tree.
    pub root: u64,
    /// It has at most `BASE << level` buckets.
    pub level: u32,
}

/// Place and word of a bucket; `None`: the table has no such bucket.
fn table_word<'a>(words: &impl Words<'a>, t: BucketTable, b: u64) -> Result<Option<(u64, u64)>> {
    if b >= bucket::BASE << t.level {
        return Ok(None);
    }
    let block = tree::find(words, t.root, b / WORDS_PER_PAGE)?;
    Ok(block.map(|block| {
        let at = page_at(block.page) + b % WORDS_PER_PAGE * 8;
        (at, words.word(at))
    }))
}

/// The bucket that a hash belongs to, with the place of its word and its first entry.
fn home<'a>(words: &impl Words<'a>, t: BucketTable, hash: u64) -> Result<(u64, u64, Option<u64>)> {
    let mut b = hash & ((bucket::BASE << t.level) - 1);
    loop {
        match table_word(words, t, b)? {
            Some((at, word)) if word != 0 || b < bucket::BASE => {
                return Ok((b, at, words.image().bucket(at, word)?));
            }
            _ if b < bucket::BASE => return Err(Error::corrupt(0, "directory without a table")),
            _ => b = bucket::parent(b),
        }
    }
}

/// The word of a bucket whose first entry this is.
fn bucket_word(b: u64, head: Option<u64>) -> u64 {
    head.unwrap_or(if b < bucket::BASE { 0 } else { bucket::EMPTY })
}

/// A damaged chain may go in a circle.
fn check_length(line: u64, steps: usize) -> Result<()> {
    match steps > CHAIN_MAX {
        true => Err(Error::corrupt(line_at(line), "directory chain without end")),
        false => Ok(()),
    }
}

fn next<'a>(words: &impl Words<'a>, line: u64) -> Result<Option<u64>> {
    let at = line_at(line) + dentry::NEXT;
    words.image().link(at, words.word(at))
}

/// The entries of the bucket that a hash belongs to, the newest first. Those of a directory without
/// a table are none. Whoever has no part in commits may be led astray, and ends at last.
pub fn chain<'a, W: Words<'a>>(
    words: &W,
    t: BucketTable,
    hash: u64,
) -> Result<impl Iterator<Item = Result<u64>>> {
    let head = match t.root {
        0 => None,
        _ => home(words, t, hash)?.2,
    };
    let mut at_hand = Ok(head);
    Ok(std::iter::from_fn(move || {
        let line = match std::mem::replace(&mut at_hand, Ok(None)) {
            Ok(line) => line?,
            Err(error) => return Some(Err(error)),
        };
        at_hand = next(words, line);
        Some(Ok(line))
    })
    .take(CHAIN_MAX))
}

/// Link an entry: directly while it is private.
fn set_next(txn: &mut Txn<'_>, line: u64, to: Option<u64>) {
    match txn.private_entry(line) {
        Some(private) => txn.store_private(&private, dentry::NEXT, to.unwrap_or(0)),
        None => txn.set(line_at(line) + dentry::NEXT, to.unwrap_or(0)),
    }
}

/// Put an entry at the head of its bucket (D1).
pub fn add_entry(txn: &mut Txn<'_>, t: BucketTable, line: u64) -> Result<()> {
    let hash = txn.volume().pool.load(line_at(line) + dentry::HASH);
    let (_, at, mut head) = home(txn, t, hash)?;
    if injected(Fault::LatestNext) {
        head = crate::dir::latest_next(txn.volume(), line)?;
    }
    set_next(txn, line, head);
    txn.set(at, line);
    Ok(())
}

/// Take an entry out of its bucket and withdraw it.
pub fn remove_entry(txn: &mut Txn<'_>, t: BucketTable, line: u64) -> Result<()> {
    let entry = txn.image().dentry(line)?;
    let (b, at, head) = home(txn, t, entry.hash)?;
    let (mut before, mut at_hand, mut steps) = (None, head, 0);
    while let Some(here) = at_hand.filter(|&here| here != line) {
        before = Some(here);
        at_hand = next(txn, here)?;
        steps += 1;
        check_length(line, steps)?;
    }
    if at_hand.is_none() {
        return Err(Error::corrupt(line_at(line), "entry missing in its bucket"));
    }
    let after = next(txn, line)?;
    match before {
        Some(before) => set_next(txn, before, after),
        None => txn.set(at, bucket_word(b, after)),
    }
    withdraw_entry(txn, line)
}

/// The space of an entry is free once the commit is checkpointed.
pub fn withdraw_entry(txn: &mut Txn<'_>, line: u64) -> Result<()> {
    let entry = txn.image().dentry(line)?;
    let more = txn.image().name_lines(&entry)?;
    txn.withdrawn().lines.push(line);
    txn.withdrawn().lines.extend(more);
    Ok(())
}

/// Split a bucket off its parent, as the latest view has done.
pub fn split(txn: &mut Txn<'_>, t: BucketTable, child: u64) -> Result<()> {
    let Some((child_at, 0)) = table_word(txn, t, child)? else {
        return Ok(());
    };
    let parent = bucket::parent(child);
    let Some((parent_at, word)) = table_word(txn, t, parent)? else {
        return Ok(());
    };
    if word == 0 && parent >= bucket::BASE {
        return Err(Error::corrupt(
            parent_at,
            "a bucket split off one that is not split off",
        ));
    }
    let mask = (2u64 << (63 - child.leading_zeros())) - 1;
    let (mut stay, mut go) = (Vec::new(), Vec::new());
    let mut at_hand = txn.image().bucket(parent_at, word)?;
    while let Some(line) = at_hand {
        let hash = txn.volume().pool.load(line_at(line) + dentry::HASH);
        if hash & mask == child {
            go.push(line)
        } else {
            stay.push(line)
        }
        at_hand = next(txn, line)?;
        check_length(line, stay.len() + go.len())?;
    }
    for chain in [&stay, &go] {
        for (i, &line) in chain.iter().enumerate() {
            let to = chain.get(i + 1).copied();
            if next(txn, line)? != to {
                set_next(txn, line, to);
            }
        }
    }
    txn.set(parent_at, bucket_word(parent, stay.first().copied()));
    txn.set(child_at, bucket_word(child, go.first().copied()));
    Ok(())
}

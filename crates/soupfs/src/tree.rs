//! The index tree: 512-way nodes of a page each, under the root word of an inode (SoupFS §3.3).
//!
//! Both views share it. Only the persister changes it, through a [`Txn`]: new nodes are private
//! until the transaction publishes them, pointers in published nodes change with the commit. What
//! callers mapped or cut since is in DRAM, on top (see [`crate::file`]). A directory's table hangs
//! under the same tree.

use crate::image::{Image, Pointer, Root};
use crate::layout::{index, page_at};
use crate::txn::Txn;
use crate::volume::Words;
use std::ops::Range;
use vfs::{Error, Result};

/// Index nodes of a dense tree over `blocks` blocks.
pub fn nodes_for(blocks: u64) -> u64 {
    let (mut nodes, mut level) = (0, blocks);
    while level > 1 {
        level = level.div_ceil(index::FANOUT);
        nodes += level;
    }
    nodes
}

/// Levels of nodes needed to reach this block.
pub fn height_for(block: u64) -> u64 {
    (0..)
        .find(|&h| block < index::span(h))
        .unwrap_or(index::HEIGHT_MAX)
}

/// Byte offset of the pointer to the child that holds `block`, in a node `height` levels up.
fn slot(node: u64, height: u64, block: u64) -> u64 {
    page_at(node) + (block / index::span(height - 1) % index::FANOUT) * 8
}

/// The pointer to a block; `None` in a hole.
#[inline]
pub fn find(
    words: &impl Words,
    image: &Image<'_>,
    root: u64,
    block: u64,
) -> Result<Option<Pointer>> {
    Ok(run(words, image, root, block, 1)?.0)
}

/// The pointer to a block, and for how many blocks (at most `max`, at least 1) the mapping goes on
/// in the same way: consecutive pages of the same kind, or a hole.
pub fn run(
    words: &impl Words,
    image: &Image<'_>,
    root: u64,
    block: u64,
    max: u64,
) -> Result<(Option<Pointer>, u64)> {
    let Some(root) = image.root(0, root)? else {
        return Ok((None, max));
    };
    if block >= index::span(root.height) {
        return Ok((None, max));
    }
    let (mut node, mut height) = (root.top, root.height);
    while height > 0 {
        let at = slot(node.page, height, block);
        match image.pointer(at, words.word(at), height == 1)? {
            None => {
                let span = index::span(height - 1);
                return Ok((None, max.min(span - block % span)));
            }
            Some(next) if height == 1 => {
                return Ok((Some(next), extent(words, image, at, next, block, max)));
            }
            Some(next) => node = next,
        }
        height -= 1;
    }
    Ok((Some(node), 1))
}

/// For how many blocks the leaf goes on with consecutive pages. A damaged pointer ends that, too: who gets
/// there says so.
fn extent(
    words: &impl Words,
    image: &Image<'_>,
    at: u64,
    first: Pointer,
    block: u64,
    max: u64,
) -> u64 {
    let max = max.min(index::FANOUT - block % index::FANOUT);
    let goes_on = |len: u64| {
        let next = Pointer {
            page: first.page + len,
            ..first
        };
        let at = at + len * 8;
        image.pointer(at, words.word(at), true) == Ok(Some(next))
    };
    1 + (1..max).take_while(|&len| goes_on(len)).count() as u64
}

/// Map `block` and those behind it to consecutive pages. New nodes come from `node`; pages that
/// were mapped there are handed to `old`. `root` is the new root word.
pub fn insert(
    txn: &mut Txn<'_>,
    root: &mut u64,
    block: u64,
    first: Pointer,
    len: u64,
    node: &mut dyn FnMut() -> Result<u64>,
    old: &mut dyn FnMut(Pointer),
) -> Result<()> {
    let image = txn.image();
    let last = block + len - 1;
    let mut top = image.root(0, *root)?;
    if last == 0 && top.is_none_or(|t| t.height == 0) {
        if let Some(Root { top, .. }) = top.filter(|t| t.top.page != first.page) {
            old(top);
        }
        *root = Root {
            top: first,
            height: 0,
        }
        .encode();
        return Ok(());
    }
    let want = height_for(last).max(1);
    let mut current = match top.take() {
        Some(root) => root,
        None => Root {
            top: Pointer {
                page: fresh_node(txn, node)?,
                unwritten: false,
            },
            height: want,
        },
    };
    while current.height < want {
        let page = fresh_node(txn, node)?;
        // Only a block directly under the root can be unwritten; its flag moves into the leaf.
        txn.set(page_at(page), current.top.encode());
        current = Root {
            top: Pointer {
                page,
                unwritten: false,
            },
            height: current.height + 1,
        };
    }
    *root = current.encode();
    let mut done = 0;
    while done < len {
        let at = leaf(txn, &image, current, block + done, node)?;
        let here = (len - done).min(index::FANOUT - (block + done) % index::FANOUT);
        for i in 0..here {
            let at = at + i * 8;
            let new = Pointer {
                page: first.page + done + i,
                ..first
            };
            if let Some(was) = image
                .pointer(at, txn.word(at), true)?
                .filter(|was| was.page != new.page)
            {
                old(was);
            }
            txn.set(at, new.encode());
        }
        done += here;
    }
    Ok(())
}

/// Byte offset of the leaf pointer to `block`; nodes on the way are made as needed.
fn leaf(
    txn: &mut Txn<'_>,
    image: &Image<'_>,
    root: Root,
    block: u64,
    node: &mut dyn FnMut() -> Result<u64>,
) -> Result<u64> {
    let (mut page, mut height) = (root.top.page, root.height);
    loop {
        let at = slot(page, height, block);
        if height == 1 {
            return Ok(at);
        }
        page = match image.pointer(at, txn.word(at), false)? {
            Some(next) => next.page,
            None => {
                let next = fresh_node(txn, node)?;
                let pointer = Pointer {
                    page: next,
                    unwritten: false,
                };
                txn.set_at_commit(at, pointer.encode());
                next
            }
        };
        height -= 1;
    }
}

fn fresh_node(txn: &mut Txn<'_>, node: &mut dyn FnMut() -> Result<u64>) -> Result<u64> {
    let page = node()?;
    txn.fresh_page(page);
    Ok(page)
}

/// Unmap the blocks of a range; `data` and `nodes` are handed what is no longer reachable.
/// Whole subtrees are cut by one pointer. `root` is the new root word.
pub fn clear(
    txn: &mut Txn<'_>,
    root: &mut u64,
    range: Range<u64>,
    freed: &mut dyn FnMut(Freed),
) -> Result<()> {
    let image = txn.image();
    let Some(Root { top, height }) = image.root(0, *root)? else {
        return Ok(());
    };
    let range = range.start..range.end.min(index::span(height));
    if range.is_empty() {
        return Ok(());
    }
    if range.start == 0 && range.end == index::span(height) {
        *root = 0;
        return collect(txn, &image, top, height, freed);
    }
    clear_below(txn, &image, top.page, height, 0, &range, freed)
}

/// A page that left the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// It held data.
    Data(u64),
    /// It was an index node.
    Node(u64),
}

fn clear_below(
    txn: &mut Txn<'_>,
    image: &Image<'_>,
    node: u64,
    height: u64,
    base: u64,
    range: &Range<u64>,
    freed: &mut dyn FnMut(Freed),
) -> Result<()> {
    let span = index::span(height - 1);
    let first = range.start.saturating_sub(base) / span;
    let end = (range.end - base).div_ceil(span).min(index::FANOUT);
    for i in first..end {
        let at = page_at(node) + i * 8;
        let Some(child) = image.pointer(at, txn.word(at), height == 1)? else {
            continue;
        };
        let start = base + i * span;
        if range.start <= start && start + span <= range.end {
            txn.set(at, 0);
            collect(txn, image, child, height - 1, freed)?;
        } else {
            clear_below(txn, image, child.page, height - 1, start, range, freed)?;
        }
    }
    Ok(())
}

/// All pages of a subtree.
pub fn collect(
    words: &impl Words,
    image: &Image<'_>,
    top: Pointer,
    height: u64,
    freed: &mut dyn FnMut(Freed),
) -> Result<()> {
    let mut left = image.geometry.pages;
    collect_below(words, image, top, height, &mut left, freed)
}

/// `left`: pages that there may be yet, as a damaged tree may lead to the same ones again and again.
fn collect_below(
    words: &impl Words,
    image: &Image<'_>,
    top: Pointer,
    height: u64,
    left: &mut u64,
    freed: &mut dyn FnMut(Freed),
) -> Result<()> {
    let more = || Error::corrupt(page_at(top.page), "an index with more pages than there are");
    *left = left.checked_sub(1).ok_or_else(more)?;
    if height == 0 {
        freed(Freed::Data(top.page));
        return Ok(());
    }
    for i in 0..index::FANOUT {
        let at = page_at(top.page) + i * 8;
        if let Some(child) = image.pointer(at, words.word(at), height == 1)? {
            collect_below(words, image, child, height - 1, left, freed)?;
        }
    }
    freed(Freed::Node(top.page));
    Ok(())
}

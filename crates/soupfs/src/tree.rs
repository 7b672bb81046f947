//! The index tree: 512-way nodes of a page each, under the root word of an inode (SoupFS §3.3).
//!
//! Both views share it. Only the persister changes it, through a [`Txn`]: new nodes are private
//! until the transaction publishes them, pointers in published nodes change with the commit. What
//! callers mapped or cut since is in DRAM, on top (see [`crate::file`]). A directory's table hangs
//! under the same tree.

use crate::commit::txn::Txn;
use crate::image::{Image, Pointer, Root};
use crate::layout::{index, page_at};
use crate::lock::takes_long;
use crate::volume::Words;
use smallvec::SmallVec;
use std::ops::Range;
use vfs::Result;

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
    takes_long();
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

/// For how many blocks the leaf goes on with consecutive pages. A damaged pointer ends that, too:
/// who gets there says so.
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
                txn.set(at, pointer.encode());
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

/// Unmap the blocks of a range; `cut` is handed what is no longer reachable: the top of a subtree,
/// and its height (of a page of data 0). Whole subtrees are cut by one pointer and not looked into.
/// `root` is the new root word.
pub fn clear(
    txn: &mut Txn<'_>,
    root: &mut u64,
    range: Range<u64>,
    cut: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let image = txn.image();
    let Some(Root { top, height }) = image.root(0, *root)? else {
        return Ok(());
    };
    let range = range.start..range.end.min(index::span(height));
    if range.is_empty() {
        return Ok(());
    }
    let all = range.start == 0 && range.end == index::span(height);
    if all || clear_below(txn, &image, top.page, height, 0, &range, cut)? {
        *root = 0;
        cut(top.page, height);
        return Ok(());
    }
    lower(txn, root, cut)
}

/// Clear what of a range lies below a node; whether nothing is left there. Nodes that become empty
/// are cut, too: a call that maps blocks, fails and unmaps them leaves the tree as it was.
fn clear_below(
    txn: &mut Txn<'_>,
    image: &Image<'_>,
    node: u64,
    height: u64,
    base: u64,
    range: &Range<u64>,
    cut: &mut dyn FnMut(u64, u64),
) -> Result<bool> {
    let span = index::span(height - 1);
    let first = range.start.saturating_sub(base) / span;
    let end = (range.end - base).div_ceil(span).min(index::FANOUT);
    for i in first..end {
        let at = page_at(node) + i * 8;
        let Some(child) = image.pointer(at, txn.word(at), height == 1)? else {
            continue;
        };
        let start = base + i * span;
        let all = range.start <= start && start + span <= range.end;
        if all || clear_below(txn, image, child.page, height - 1, start, range, cut)? {
            txn.set(at, 0);
            cut(child.page, height - 1);
        }
    }
    let mut words = (0..index::FANOUT).map(|i| txn.word(page_at(node) + i * 8));
    Ok(words.all(|word| word == 0))
}

/// Take away the top for as long as it leads to its first child alone.
fn lower(txn: &mut Txn<'_>, root: &mut u64, cut: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let image = txn.image();
    while let Some(Root { top, height }) = image.root(0, *root)?.filter(|root| root.height > 0) {
        let at = page_at(top.page);
        let mut others = (1..index::FANOUT).map(|i| txn.word(at + i * 8));
        let Some(first) = image.pointer(at, txn.word(at), height == 1)? else {
            return Ok(());
        };
        if others.any(|word| word != 0) {
            return Ok(());
        }
        txn.set(at, 0); // for whoever frees the top, and must not come by what stays
        cut(top.page, height);
        *root = Root {
            top: first,
            height: height - 1,
        }
        .encode();
    }
    Ok(())
}

/// A walk through all pages of a tree that nothing leads to any more, so that nobody changes it.
/// Children come before their node, so a node may be reused as soon as it was handed out. It takes
/// a word of DRAM for each level.
#[derive(Debug)]
pub struct Walk {
    /// Nodes from the top down, their height, and the pointer to look at next.
    path: SmallVec<[(u64, u64, u64); index::HEIGHT_MAX as usize + 1]>,
}

/// What a step of a [`Walk`] comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Pages of the tree.
    Pages(Range<u64>),
    /// The budget is used up.
    Pause,
    /// There are no more.
    End,
}

impl Walk {
    /// From the beginning.
    pub fn new(top: u64, height: u64) -> Walk {
        let path = SmallVec::from_slice(&[(top, height, 0)]);
        Walk { path }
    }

    /// The next pages of the tree. `budget`: pointers that may be looked at.
    pub fn next(&mut self, image: &Image<'_>, budget: &mut u64) -> Result<Step> {
        while *budget > 0 {
            let Some((page, height, slot)) = self.path.last_mut() else {
                return Ok(Step::End);
            };
            if *height == 0 || *slot == index::FANOUT {
                let page = *page;
                self.path.pop();
                return Ok(Step::Pages(page..page + 1));
            }
            *budget -= 1;
            let at = page_at(*page) + *slot * 8;
            let leaf = *height == 1;
            *slot += 1;
            let Some(child) = image.pointer(at, image.pool.load(at), leaf)? else {
                continue;
            };
            if !leaf {
                let below = (child.page, *height - 1, 0);
                self.path.push(below);
                continue;
            }
            let mut run = child.page..child.page + 1;
            while *slot < index::FANOUT {
                let at = page_at(*page) + *slot * 8;
                match image.pointer(at, image.pool.load(at), true) {
                    Ok(Some(next)) if next.page == run.end => run.end += 1,
                    _ => break,
                }
                *slot += 1;
                *budget = budget.saturating_sub(1);
            }
            return Ok(Step::Pages(run));
        }
        Ok(Step::Pause)
    }
}

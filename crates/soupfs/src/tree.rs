//! The index tree: 512-way nodes of a page each, under the root word of an inode (SoupFS §3.3).
//!
//! Both views share it. Here it is read; only a batch changes it (`commit`). What callers mapped or
//! cut since is in DRAM, on top (`file`). A directory's table hangs under the same tree.

use crate::image::{Image, Pointer};
use crate::layout::{index, page_at};
use crate::lock::takes_long;
use crate::words::Words;
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
pub(crate) fn slot(node: u64, height: u64, block: u64) -> u64 {
    page_at(node) + (block / index::span(height - 1) % index::FANOUT) * 8
}

/// The pointer to a block; `None` in a hole.
#[inline]
pub fn find<'a>(words: &impl Words<'a>, root: u64, block: u64) -> Result<Option<Pointer>> {
    Ok(run(words, root, block, 1)?.0)
}

/// The pointer to a block, and for how many blocks (at most `max`, at least 1) the mapping goes on
/// in the same way: consecutive pages of the same kind, or a hole.
pub fn run<'a>(
    words: &impl Words<'a>,
    root: u64,
    block: u64,
    max: u64,
) -> Result<(Option<Pointer>, u64)> {
    takes_long();
    let image = words.image();
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
                let max = max.min(index::FANOUT - block % index::FANOUT);
                return Ok((Some(next), extent(words, at, next, max)));
            }
            Some(next) => node = next,
        }
        height -= 1;
    }
    Ok((Some(node), 1))
}

/// For how many pointers of a leaf, from the one at `at` on, consecutive pages go on. A damaged
/// pointer ends that, too: who gets there says so.
fn extent<'a>(words: &impl Words<'a>, at: u64, first: Pointer, max: u64) -> u64 {
    let image = words.image();
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

/// Consecutive blocks that are mapped to consecutive pages.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The first block.
    pub block: u64,
    /// Blocks.
    pub len: u64,
    /// What the first block is mapped to.
    pub first: Pointer,
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

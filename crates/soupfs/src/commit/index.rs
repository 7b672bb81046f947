//! An index tree as a transaction changes it: the counterpart of [`crate::tree`], which reads.
//!
//! New nodes are private until the transaction commits; pointers in nodes that the consistent view
//! leads to change with the commit. A node may be copied instead ([`crate::commit::copies`]).

use crate::commit::copies::Copies;
use crate::commit::txn::Txn;
use crate::fault::{Fault, injected};
use crate::image::{Image, Pointer, Root};
use crate::layout::{PAGE, index, page_at};
use crate::tree::{height_for, slot};
use crate::volume::Volume;
use crate::words::Words;
use std::ops::Range;
use vfs::{Error, Result};

/// A tree that is being changed.
pub struct Index<'t, 'v> {
    txn: &'t mut Txn<'v>,
    /// The root word, new as soon as it changes.
    pub root: u64,
    /// Pages set aside for nodes, and for the tables of directories.
    pages: &'t mut Vec<Range<u64>>,
    /// Nodes that are copied before a pointer in them changes.
    copies: &'t Copies,
}

/// Part of a tree: a node, its height, and the first block below it.
struct Part {
    node: u64,
    height: u64,
    base: u64,
}

fn written(page: u64) -> Pointer {
    Pointer {
        page,
        unwritten: false,
    }
}

/// A page from those set aside; from free space if, against F4, there are none left.
fn take_page(volume: &Volume, runs: &mut Vec<Range<u64>>) -> Result<u64> {
    while let Some(run) = runs.last_mut() {
        if let Some(page) = run.next() {
            return Ok(page);
        }
        runs.pop();
    }
    volume.alloc.page()
}

impl<'t, 'v> Index<'t, 'v> {
    /// The tree under a root word; `pages` are for its new nodes and copies.
    pub fn new(
        txn: &'t mut Txn<'v>,
        root: u64,
        pages: &'t mut Vec<Range<u64>>,
        copies: &'t Copies,
    ) -> Index<'t, 'v> {
        Index {
            txn,
            root,
            pages,
            copies,
        }
    }

    /// A page that nothing leads to, all zeros.
    pub fn fresh_page(&mut self) -> Result<u64> {
        let page = take_page(self.txn.volume(), self.pages)?;
        self.txn.fresh_page(page);
        Ok(page)
    }

    /// Map `block` and those behind it to consecutive pages; pages that were mapped there are
    /// handed to `old`.
    pub fn map(&mut self, block: u64, first: Pointer, len: u64, old: &mut Vec<u64>) -> Result<()> {
        let image = self.txn.image();
        let last = block + len - 1;
        let top = image.root(0, self.root)?;
        if last == 0 && top.is_none_or(|t| t.height == 0) {
            old.extend(top.map(|t| t.top.page).filter(|&page| page != first.page));
            let root = Root {
                top: first,
                height: 0,
            };
            self.root = root.encode();
            return Ok(());
        }
        self.raise(top, height_for(last).max(1))?;
        let mut done = 0;
        while done < len {
            let at = self.leaf(&image, block + done)?;
            let here = (len - done).min(index::FANOUT - (block + done) % index::FANOUT);
            for i in 0..here {
                let at = at + i * 8;
                let new = Pointer {
                    page: first.page + done + i,
                    ..first
                };
                let was = image.pointer(at, self.txn.word(at), true)?;
                old.extend(was.map(|was| was.page).filter(|&page| page != new.page));
                self.txn.set(at, new.encode());
            }
            done += here;
        }
        Ok(())
    }

    /// Make the tree at least so high.
    fn raise(&mut self, top: Option<Root>, height: u64) -> Result<()> {
        let mut current = match top {
            Some(root) => root,
            None => Root {
                top: written(self.fresh_page()?),
                height,
            },
        };
        while current.height < height {
            let page = self.fresh_page()?;
            // Only a block directly under the root can be unwritten; its flag moves into the leaf.
            self.txn.set(page_at(page), current.top.encode());
            current = Root {
                top: written(page),
                height: current.height + 1,
            };
        }
        self.root = current.encode();
        Ok(())
    }

    /// Byte offset of the leaf pointer to `block`, in a tree of that height; nodes on the way are
    /// made or copied as needed.
    fn leaf(&mut self, image: &Image<'_>, block: u64) -> Result<u64> {
        let Some(Root { top, mut height }) = image.root(0, self.root)? else {
            return Err(Error::corrupt(0, "a tree that was raised is empty"));
        };
        let mut page = self.copied(top.page, height, block)?;
        if page != top.page {
            let top = written(page);
            self.root = Root { top, height }.encode();
        }
        loop {
            let at = slot(page, height, block);
            if height == 1 {
                return Ok(at);
            }
            page = match image.pointer(at, self.txn.word(at), false)? {
                Some(next) => {
                    let copy = self.copied(next.page, height - 1, block)?;
                    if copy != next.page {
                        self.txn.set(at, written(copy).encode());
                    }
                    copy
                }
                None => {
                    let next = self.fresh_page()?;
                    self.txn.set(at, written(next).encode());
                    next
                }
            };
            height -= 1;
        }
    }

    /// The node of this height above a block, or a copy that takes its place if it is to be copied.
    fn copied(&mut self, node: u64, height: u64, block: u64) -> Result<u64> {
        if !self.copies.has(height, block) || self.txn.is_fresh(node) {
            return Ok(node);
        }
        if injected(Fault::NodeInPlace) {
            self.txn.take_for_fresh(node);
            return Ok(node);
        }
        let copy = self.fresh_page()?;
        for at in (0..PAGE).step_by(8) {
            let word = self.txn.word(page_at(node) + at);
            if word != 0 {
                self.txn.set(page_at(copy) + at, word);
            }
        }
        // That page alone: what it leads to stays.
        self.txn.withdrawn().page(node);
        Ok(copy)
    }

    /// Unmap the blocks of a range, and withdraw what is no longer reachable. Whole subtrees are
    /// cut by one pointer and not looked into.
    pub fn clear(&mut self, range: Range<u64>) -> Result<()> {
        let image = self.txn.image();
        let Some(Root { top, height }) = image.root(0, self.root)? else {
            return Ok(());
        };
        let range = range.start..range.end.min(index::span(height));
        if range.is_empty() {
            return Ok(());
        }
        let all = range.start == 0 && range.end == index::span(height);
        let part = Part {
            node: top.page,
            height,
            base: 0,
        };
        if all || self.clear_below(&image, &part, &range)? {
            self.root = 0;
            self.txn.withdrawn().tree(top.page, height, 0);
            return Ok(());
        }
        self.lower()
    }

    /// Clear what of a range lies below a node; whether nothing is left there. Nodes that become
    /// empty are cut, too: a call that maps blocks, fails and unmaps them leaves the tree as it
    /// was.
    fn clear_below(&mut self, image: &Image<'_>, part: &Part, range: &Range<u64>) -> Result<bool> {
        let &Part { node, height, base } = part;
        let span = index::span(height - 1);
        let first = range.start.saturating_sub(base) / span;
        let end = (range.end - base).div_ceil(span).min(index::FANOUT);
        for i in first..end {
            let at = page_at(node) + i * 8;
            let Some(child) = image.pointer(at, self.txn.word(at), height == 1)? else {
                continue;
            };
            let below = Part {
                node: child.page,
                height: height - 1,
                base: base + i * span,
            };
            let all = range.start <= below.base && below.base + span <= range.end;
            if all || self.clear_below(image, &below, range)? {
                self.txn.set(at, 0);
                self.txn.withdrawn().tree(child.page, height - 1, 0);
            }
        }
        let mut words = (0..index::FANOUT).map(|i| self.txn.word(page_at(node) + i * 8));
        Ok(words.all(|word| word == 0))
    }

    /// Take away the top for as long as it leads to its first child alone.
    fn lower(&mut self) -> Result<()> {
        let image = self.txn.image();
        while let Some(Root { top, height }) =
            image.root(0, self.root)?.filter(|root| root.height > 0)
        {
            let at = page_at(top.page);
            let mut others = (1..index::FANOUT).map(|i| self.txn.word(at + i * 8));
            let Some(first) = image.pointer(at, self.txn.word(at), height == 1)? else {
                return Ok(());
            };
            if others.any(|word| word != 0) {
                return Ok(());
            }
            // That page alone: what it leads to stays. It goes on leading there, as callers come by
            // it until the batch is settled.
            self.txn.withdrawn().page(top.page);
            let root = Root {
                top: first,
                height: height - 1,
            };
            self.root = root.encode();
        }
        Ok(())
    }
}

//! The overlay: extents of a file that the consistent view does not have yet.

use super::dirty::Dirty;
use crate::image::Pointer;
use crate::inode_state::InodeState;
use crate::layout::{inode as layout, line_at};
use crate::medium::Medium;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What an overlay extent maps its blocks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// Consecutive pages from this one on. `in_tree`: the tree has them already, as unwritten.
    Pages {
        /// Page of the first block.
        first: Pointer,
        /// The tree leads to it, too.
        in_tree: bool,
    },
    /// Nothing, whatever the tree says.
    Hole,
}

/// An extent of the overlay; its first block is its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Blocks.
    pub len: u64,
    /// What they are mapped to.
    pub to: Mapping,
    /// The persister is putting it into the tree.
    pub captured: bool,
}

impl Extent {
    /// The part of an extent from its `skip`th block on.
    pub(super) fn skip(mut self, skip: u64) -> Extent {
        self.len -= skip;
        if let Mapping::Pages { first, .. } = &mut self.to {
            first.page += skip;
        }
        self
    }
}

/// What of a file is not in the consistent view.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) overlay: BTreeMap<u64, Extent>,
    /// Set when an extent is added, cleared when all are captured: a file with many that is
    /// captured again and again is not searched each time.
    pub(super) uncaptured: bool,
    /// A batch has captured extents: the tree will have them, whatever the overlay says by now, and
    /// may lead to blocks up to this one.
    pub(super) in_flight: Option<u64>,
    /// What of the pool was written in place, to be flushed.
    pub(super) dirty: Dirty,
    /// Bytes that the next record stores, by their places in the pool (mode `strong`).
    pub(super) logged: Vec<(u64, Vec<u8>)>,
    /// Leaves (block / 512) for which nodes are set aside.
    pub(super) provided: BTreeSet<u64>,
    /// The nodes.
    pub(super) nodes: Vec<Range<u64>>,
    /// Blocks that were found to be mapped to consecutive pages, from this one on (F5).
    pub(super) recent: Range<u64>,
    pub(super) recent_page: u64,
    /// Bits of the blocks that were written in place since the last capture (F6).
    pub(super) since: u64,
    /// Bits that the inode has on the medium: of `since`, of a batch under way, and `inherited`.
    pub(super) marked: u64,
    /// Bits that the inode had when it was loaded.
    pub(super) inherited: u64,
    /// Where in the file a write ended last: if the next one begins there, one more is likely.
    pub(super) written_to: u64,
}

impl Pending {
    /// What a block is mapped to, and for how many blocks, if that is remembered.
    #[inline]
    pub(super) fn recent(&self, block: u64) -> Option<(Pointer, u64)> {
        let page = self.recent_page + block.checked_sub(self.recent.start)?;
        let pointer = Pointer {
            page,
            unwritten: false,
        };
        (block < self.recent.end).then(|| (pointer, self.recent.end - block))
    }

    /// Map blocks that the overlay says nothing of.
    pub(super) fn add(&mut self, block: u64, len: u64, to: Mapping) {
        self.uncaptured = true;
        let captured = false;
        self.overlay.insert(block, Extent { len, to, captured });
    }

    /// Blocks are about to be written in place (F6). What no batch ever took up is not reachable.
    #[cold]
    pub(super) fn mark(&mut self, medium: &Medium, inode: &InodeState, bits: u64) {
        self.since |= bits;
        if medium.marks_bytes && !inode.is_fresh() {
            self.set_marked(medium, inode, self.marked | bits);
        }
    }

    pub(super) fn set_marked(&mut self, medium: &Medium, inode: &InodeState, bits: u64) {
        if self.marked != bits {
            self.marked = bits;
            let at = line_at(inode.ino) + layout::UNFLUSHED;
            medium.pool.store(at, bits);
        }
    }
}

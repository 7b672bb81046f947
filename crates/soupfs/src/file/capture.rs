//! Capture of a file: the persister takes its changes, and tells it afterwards what became of them.

use super::File;
use super::overlay::{Extent, Mapping, Pending};
use crate::fault::{Fault, injected};
use crate::inode_state::InodeState;
use crate::medium::Medium;
use std::collections::BTreeSet;
use std::ops::Range;

/// What the persister takes from a file.
pub struct FileCapture {
    /// Extents in the order in which they go into the tree: first block and extent.
    pub extents: Vec<(u64, Extent)>,
    /// Ranges of the pool to flush.
    pub dirty: Vec<Range<u64>>,
    /// Bytes that the commit stores, and where in the pool.
    pub logged: Vec<(u64, Vec<u8>)>,
    /// Pages for index nodes; what is not used goes back.
    pub nodes: Vec<Range<u64>>,
    /// Leaves for which these are.
    pub provided: BTreeSet<u64>,
    /// Root word of the consistent tree.
    pub root: u64,
    /// Where a killed process may have left bytes that are not durable.
    pub inherited: u64,
}

impl FileCapture {
    /// The file was captured once more before the batch was built.
    pub fn append(&mut self, later: FileCapture) {
        self.extents.extend(later.extents);
        self.dirty.extend(later.dirty);
        self.logged.extend(later.logged);
        self.nodes.extend(later.nodes);
        self.provided.extend(later.provided);
        self.inherited |= later.inherited;
    }
}

impl File {
    /// Take the nodes set aside, and for which leaves they are.
    pub fn take_reserve(&mut self) -> (Vec<Range<u64>>, BTreeSet<u64>) {
        let taken = self.pending.as_mut().map(|pending| {
            let provided = std::mem::take(&mut pending.provided);
            (std::mem::take(&mut pending.nodes), provided)
        });
        taken.unwrap_or_default()
    }

    /// Take everything that is to be persisted and was not captured before.
    pub fn capture(&mut self) -> Option<FileCapture> {
        let (nodes, provided) = self.take_reserve();
        let end = self.blocks_end();
        let pending = self.pending.as_mut()?;
        if !pending.overlay.is_empty() {
            pending.in_flight = Some(end);
        }
        pending.since = 0;
        let inherited = std::mem::take(&mut pending.inherited);
        let mut extents = Vec::new();
        if std::mem::take(&mut pending.uncaptured) {
            let new = pending.overlay.iter_mut().filter(|(_, e)| !e.captured);
            extents.extend(new.map(|(&block, extent)| {
                extent.captured = true;
                (block, *extent)
            }));
        }
        debug_assert!(pending.overlay.values().all(|e| e.captured));
        Some(FileCapture {
            extents,
            dirty: pending.dirty.take(),
            logged: std::mem::take(&mut pending.logged),
            nodes,
            provided,
            root: self.root,
            inherited,
        })
    }

    /// What was captured is durable, and the extents are in the tree, whose root word is now
    /// `root`.
    pub fn persisted(&mut self, medium: &Medium, inode: &InodeState, root: u64) {
        self.root = root;
        let Some(pending) = &mut self.pending else {
            return;
        };
        pending.overlay.retain(|_, e| !e.captured);
        pending.in_flight = None;
        if injected(Fault::SettledDirty) {
            pending.dirty.take();
        }
        pending.set_marked(medium, inode, pending.marked & pending.since);
        // A request may have come since the capture: its bytes wait for its own commit.
        let is_done = pending.overlay.is_empty()
            && pending.dirty.is_empty()
            && pending.logged.is_empty()
            && pending.nodes.is_empty();
        if is_done {
            self.pending = None;
        }
    }

    /// Whether so much was overwritten in so many places that the file is to be persisted.
    pub fn has_many_dirty(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| pending.dirty.is_full())
    }

    /// Private space of a file that is being freed, and its root word. `false` in the second
    /// place: nothing of it was ever captured.
    pub fn tear_down(&mut self, medium: &Medium) -> u64 {
        if let Some(pending) = self.pending.take() {
            let Pending { overlay, nodes, .. } = *pending;
            (nodes.into_iter()).for_each(|run| medium.alloc.free_pages(run));
            for extent in overlay.into_values() {
                if let Mapping::Pages {
                    first,
                    in_tree: false,
                } = extent.to
                {
                    debug_assert!(!extent.captured, "freed while a batch holds it");
                    medium.alloc.free_pages(first.page..first.page + extent.len);
                }
            }
        }
        std::mem::take(&mut self.root)
    }
}

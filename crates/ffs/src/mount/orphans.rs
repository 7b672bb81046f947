//! What a crash left in the list of orphans.

use std::sync::Arc;

use vfs::{Kind, Result};

use super::Ffs;
use crate::file;
use crate::inode::Node;
use crate::layout::Superblock;
use crate::orphans::{self, List};
use crate::volume::Volume;

impl Volume {
    /// The orphans that a crash left, each in DRAM; where the list is kept, that is the one of this
    /// mount from here on. All before the first is freed: it leads to nobody then.
    ///
    /// # Errors
    /// The list or an inode in it is damaged; the disk failed.
    pub(super) fn adopt(self: &Arc<Volume>, superblock: &Superblock) -> Result<Vec<Node>> {
        let stored = orphans::read(&self.medium, superblock)?;
        if self.medium.order.is_journal() {
            *self.orphans.lock() = List::new(&stored);
        }
        let adopted = stored.into_iter().map(|orphan| self.orphan(orphan));
        adopted.collect()
    }

    /// Frees of what an orphan that has names has behind its end as much as one operation may:
    /// `false` if there is more. One without names is freed when it is dropped.
    fn cut_orphan(&self, node: &Node) -> Result<bool> {
        let mut state = node.state.write();
        let stored = &mut state.stored;
        if stored.attributes.links == 0 {
            return Ok(true);
        }
        let size = stored.attributes.size;
        if node.kind == Kind::File && size < self.file_max() {
            let block_size = u64::from(self.medium.geometry.block_size);
            let end = self.file_max().next_multiple_of(block_size);
            if file::punch(&self.medium, &self.alloc, stored, size..end)? > size {
                let now = self.clock.now();
                self.orphans.lock().keep(&self.medium, stored, now)?;
                return Ok(false);
            }
        }
        self.store(stored)?;
        Ok(true)
    }
}

impl Ffs {
    /// Frees orphans, or cuts them off, and then empties the list.
    pub(super) fn free_orphans(&self, orphans: Vec<Node>) -> Result<()> {
        if orphans.is_empty() {
            return Ok(());
        }
        ::log::info!("{} orphans are freed or cut off", orphans.len());
        for node in orphans {
            while !self.change(|volume| volume.cut_orphan(&node))? {}
        }
        self.sync()?;
        match self.volume.medium.order.is_journal() {
            // Each left it with what freed it.
            true => Ok(()),
            false => self.store_superblock(|superblock, _| superblock.last_orphan = 0.into()),
        }
    }
}

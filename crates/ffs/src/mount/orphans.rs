//! What a crash left in the list of orphans.

use std::sync::Arc;

use block::Disk;
use vfs::{Kind, ManualClock, Result, Time};

use super::{Ffs, MountOptions};
use crate::features::HAS_JOURNAL;
use crate::file;
use crate::geometry::MountError;
use crate::inode::Node;
use crate::inspect::superblock;
use crate::layout::Superblock;
use crate::mark;
use crate::order::Mode;
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
            // Until that is durable the list leads to inodes that a check leaves as they are.
            false => self.store_superblock(None, |superblock, _| superblock.last_orphan = 0.into()),
        }
    }
}

/// Bytes of blocks that are kept by who mounts it for its orphans alone.
const CACHE_BYTES: usize = 16 << 20;

/// Frees, or cuts off, what is in the list of orphans of an image that nobody has mounted and that
/// is clean otherwise.
///
/// # Errors
/// It cannot be mounted for writing, or the disk failed.
pub(crate) fn free_orphans(disk: &Disk, now: Time) -> std::result::Result<(), MountError> {
    let superblock = superblock(disk)?;
    let has_journal = superblock.feature_compat.get() & HAS_JOURNAL != 0;
    let options = MountOptions {
        read_only: false,
        // Whoever chose the names in it, none is looked for.
        hash_key: [0; 16],
        cache_bytes: CACHE_BYTES,
        mode: match has_journal && !mark::is_mendable(&superblock) {
            true => Mode::Ordered,
            false => Mode::Soft,
        },
    };
    let fs = Ffs::mount(disk.clone(), Arc::new(ManualClock::new(now)), options)?;
    Ok(fs.unmount()?)
}

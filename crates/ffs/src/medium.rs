//! What there is of a mount before any inode: the blocks, and where things lie in them.

use std::sync::Arc;

use block::Buffer;
use vfs::Result;

use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::image::{self, Group, StoredInode};

/// The blocks of a file system.
pub struct Medium {
    /// Where everything lies.
    pub geometry: Geometry,
    /// The blocks.
    pub cache: Cache,
}

impl Medium {
    /// A block that something in block `holder` leads to.
    ///
    /// # Errors
    /// There is no such block: the holder is damaged. The disk failed.
    pub fn follow(&self, holder: u64, block: u64) -> Result<Arc<Buffer>> {
        if !self.geometry.has_block(block) {
            let what = format_args!("it leads to block {block}, outside the disk");
            return Err(self.geometry.damage(holder, what));
        }
        self.cache.read(block)
    }

    /// Where the parts of a group lie.
    ///
    /// # Errors
    /// Its descriptor is damaged, or the disk failed.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn group(&self, group: u32) -> Result<Group> {
        let g = &self.geometry;
        assert!(group < g.groups, "group {group} of {}", g.groups);
        let (block, index) = (
            group / g.descriptors_per_block(),
            group % g.descriptors_per_block(),
        );
        let at = g.first_block + 1 + u64::from(block);
        let bytes = self.cache.read(at)?;
        let offset = (index * g.descriptor_size) as usize;
        image::group(g, group, at, &bytes[offset..][..g.descriptor_size as usize])
    }

    /// The inode of this number; `None` if there is none, or it is free.
    ///
    /// # Errors
    /// It is damaged, or the disk failed.
    pub fn inode(&self, ino: u32) -> Result<Option<StoredInode>> {
        let g = &self.geometry;
        if !g.has_inode(ino) {
            return Ok(None);
        }
        let (group, index) = (
            (ino - 1) / g.inodes_per_group,
            (ino - 1) % g.inodes_per_group,
        );
        let byte = u64::from(index) * u64::from(g.inode_size);
        let at = self.group(group)?.inode_table + byte / u64::from(g.block_size);
        let bytes = self.cache.read(at)?;
        let offset = (byte % u64::from(g.block_size)) as usize;
        image::inode(g, ino, at, &bytes[offset..][..g.inode_size as usize])
    }
}

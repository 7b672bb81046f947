//! What there is of a mount before any inode: the blocks, and where things lie in them.

use std::sync::Arc;

use vfs::{Result, Time};

use crate::attributes::Attributes;
use crate::cache::{Block, Cache};
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
    pub fn follow(&self, holder: u64, block: u64) -> Result<Arc<Block>> {
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
        let (at, offset) = self.descriptor(group);
        let block = self.cache.read(at)?;
        let bytes = &block.bytes()[offset..][..g.descriptor_size as usize];
        image::group(g, group, at, bytes)
    }

    /// Where a group's descriptor is: the block, and the byte in it.
    pub fn descriptor(&self, group: u32) -> (u64, usize) {
        self.geometry.descriptor(group)
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
        let (at, offset) = self.inode_place(ino)?;
        let block = self.cache.read(at)?;
        let bytes = &block.bytes()[offset..][..g.inode_size as usize];
        image::inode(g, ino, at, bytes)
    }

    /// An inode of this number, of which there is one, that may have no names any more, and the
    /// number of the next orphan.
    ///
    /// # Errors
    /// It is damaged, or the disk failed.
    pub fn orphan(&self, ino: u32) -> Result<(StoredInode, u32)> {
        let (at, offset) = self.inode_place(ino)?;
        let block = self.cache.read(at)?;
        let bytes = &block.bytes()[offset..][..self.geometry.inode_size as usize];
        image::orphan(&self.geometry, ino, at, bytes)
    }

    /// Where an inode is, of which there is one: the block, and the byte in it.
    ///
    /// # Errors
    /// The descriptor of its group is damaged, or the disk failed.
    pub fn inode_place(&self, ino: u32) -> Result<(u64, usize)> {
        let g = &self.geometry;
        let index = ino - 1;
        let group = self.group(index / g.inodes_per_group)?;
        let byte = u64::from(index % g.inodes_per_group) * u64::from(g.inode_size);
        let block_size = u64::from(g.block_size);
        let block = group.inode_table + byte / block_size;
        Ok((block, (byte % block_size) as usize))
    }

    /// Lets an inode have no attributes, and room for all that there are.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn clear_inode(&self, ino: u32) -> Result<()> {
        let (at, offset) = self.inode_place(ino)?;
        let size = self.geometry.inode_size as usize;
        let clear = |bytes: &mut [u8]| Attributes::clear(&mut bytes[offset..offset + size]);
        self.cache.change(at, clear)
    }

    /// Stores an inode, which was removed at `dtime`, if it was.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn store_inode(&self, inode: &StoredInode, dtime: Option<Time>) -> Result<()> {
        let (at, offset) = self.inode_place(inode.ino)?;
        // A small time is taken for the number of an inode, in a list of those to be removed.
        let least = self.geometry.inodes;
        let dtime = dtime.map_or(0, |time| (time.secs() as u32).max(least));
        let size = self.geometry.inode_size as usize;
        self.cache.change(at, |bytes| {
            let bytes = &mut bytes[offset..offset + size];
            inode.attributes.store(bytes, dtime);
            let room = size - inode.xattrs.len();
            bytes[room..].copy_from_slice(&inode.xattrs);
        })
    }
}

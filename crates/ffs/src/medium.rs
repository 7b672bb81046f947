//! What there is of a mount before any inode: the blocks, and where things lie in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vfs::{Result, Time};
use zerocopy::FromBytes;

use crate::attributes::Attributes;
use crate::cache::{Block, Cache};
use crate::geometry::Geometry;
use crate::image::{self, Group, StoredInode};
use crate::layout::Inode;
use crate::order::graph::{On, Place};
use crate::order::{Mode, Order};

/// The blocks of a file system.
pub struct Medium {
    /// Where everything lies.
    pub geometry: Geometry,
    /// The blocks.
    pub cache: Cache,
    /// The order in which they may be written.
    pub order: Order,
    /// Where the inode table of each group begins, when that was asked for; 0: it was not.
    tables: Box<[AtomicU64]>,
}

/// Blocks of an inode table that are read together.
const TABLE_RUN: u64 = 8;

fn unknown(geometry: &Geometry) -> Box<[AtomicU64]> {
    (0..geometry.groups).map(|_| AtomicU64::new(0)).collect()
}

impl Medium {
    /// Blocks that are written in no order.
    pub fn unordered(geometry: Geometry, cache: Cache) -> Medium {
        Medium::new(geometry, cache, Order::new(Mode::Async))
    }

    /// Blocks that are written in an order.
    pub fn new(geometry: Geometry, cache: Cache, order: Order) -> Medium {
        Medium {
            tables: unknown(&geometry),
            geometry,
            cache,
            order,
        }
    }

    /// Everything lies as is said now.
    pub fn set_geometry(&mut self, geometry: Geometry) {
        self.tables = unknown(&geometry);
        self.geometry = geometry;
    }

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
        // Who reads one inode soon reads its neighbours.
        let end = self.table((ino - 1) / g.inodes_per_group)? + u64::from(g.table_blocks());
        let block = self.cache.read_with(at, TABLE_RUN.min(end - at))?;
        let bytes = block.bytes();
        let stored = image::inode(g, ino, at, &bytes[offset..][..g.inode_size as usize])?;
        // With its block locked, as it is for who changes either.
        let (surplus, _) = self.order.beside(ino);
        Ok(stored.and_then(|mut stored| {
            let links = &mut stored.attributes.links;
            *links = links.saturating_sub(surplus);
            (*links > 0).then_some(stored)
        }))
    }

    /// Where an inode is, for statements.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn place(&self, ino: u32) -> Result<Place> {
        let (block, offset) = self.inode_place(ino)?;
        Ok(Place::new(block, offset))
    }

    /// What is stored in an inode next is not on disk before conditions hold.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn hold(&self, ino: u32, after: &[On]) -> Result<()> {
        let (at, offset) = self.inode_place(ino)?;
        let size = self.geometry.inode_size as usize;
        // The block is to be written, whatever becomes of the change.
        let old = self
            .cache
            .change(at, |bytes| bytes[offset..offset + size].to_vec())?;
        self.order.hold(&self.cache, self.place(ino)?, &old, after);
        Ok(())
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
        let table = self.table(index / g.inodes_per_group)?;
        let byte = u64::from(index % g.inodes_per_group) * u64::from(g.inode_size);
        let block_size = u64::from(g.block_size);
        Ok((table + byte / block_size, (byte % block_size) as usize))
    }

    /// Where the inode table of a group begins. It never moves.
    fn table(&self, group: u32) -> Result<u64> {
        let known = &self.tables[group as usize];
        match known.load(Ordering::Relaxed) {
            0 => {
                let table = self.group(group)?.inode_table;
                known.store(table, Ordering::Relaxed);
                Ok(table)
            }
            table => Ok(table),
        }
    }

    /// Stores an inode where one was free, with room for all attributes that there are. It stays
    /// free on disk until conditions hold.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn make_inode(&self, inode: &StoredInode, now: Time, after: &[On]) -> Result<()> {
        let (at, offset) = self.inode_place(inode.ino)?;
        let size = self.geometry.inode_size as usize;
        self.cache.change(at, |bytes| {
            let bytes = &mut bytes[offset..offset + size];
            let place = Place::new(at, offset);
            self.order.new_inode(&self.cache, place, bytes, after);
            Attributes::clear(bytes);
            self.put_into(bytes, inode, &|links| self.dtime_of(links, now));
        })
    }

    /// Stores an inode at a time, at which it was removed if nothing refers to it.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn store_inode(&self, inode: &StoredInode, now: Time) -> Result<()> {
        self.put_inode(inode, &|links| self.dtime_of(links, now))
    }

    /// Stores an inode without names that leads to the next orphan; 0: there is none.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn store_orphan(&self, inode: &StoredInode, next: u32) -> Result<()> {
        self.put_inode(inode, &|_| next)
    }

    /// Lets an orphan lead to another one.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn set_next_orphan(&self, ino: u32, next: u32) -> Result<()> {
        let (at, offset) = self.inode_place(ino)?;
        self.cache.change(at, |bytes| {
            let (stored, _) = Inode::mut_from_prefix(&mut bytes[offset..]).expect("inodes fit");
            stored.dtime = next.into();
        })
    }

    fn put_inode(&self, inode: &StoredInode, dtime: &dyn Fn(u16) -> u32) -> Result<()> {
        let (at, offset) = self.inode_place(inode.ino)?;
        let size = self.geometry.inode_size as usize;
        self.cache.change(at, |bytes| {
            self.put_into(&mut bytes[offset..offset + size], inode, dtime)
        })
    }

    /// The same, in the bytes that it has.
    fn put_into(&self, bytes: &mut [u8], inode: &StoredInode, dtime: &dyn Fn(u16) -> u32) {
        let (surplus, tag) = self.order.beside(inode.ino);
        let mut attributes = inode.attributes.clone();
        attributes.links = attributes.links.saturating_add(surplus);
        attributes.store(bytes, dtime(attributes.links));
        if let Some(tag) = tag {
            let (stored, _) = Inode::mut_from_prefix(&mut *bytes).expect("inodes fit");
            stored.set_tag(tag);
        }
        let room = bytes.len() - inode.xattrs.len();
        bytes[room..].copy_from_slice(&inode.xattrs);
    }

    /// Lowers the count of an inode on disk, by what it exceeds what callers see.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn lower(&self, ino: u32, by: u16, now: Time) -> Result<()> {
        let (at, offset) = self.inode_place(ino)?;
        self.cache.change(at, |bytes| {
            self.order.lower(ino, by);
            let (stored, _) = Inode::mut_from_prefix(&mut bytes[offset..]).expect("inodes fit");
            let links = stored.links_count.get().saturating_sub(by);
            stored.links_count = links.into();
            if links == 0 {
                stored.dtime = self.dtime(now).into();
            }
        })
    }

    /// A directory is not being moved any more.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn untag(&self, ino: u32, tag: Option<u32>) -> Result<()> {
        self.order.untag(ino, tag);
        self.forget_tag(ino)
    }

    /// The tag is void that a crash left of a directory, unless that is being moved again.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn forget_tag(&self, ino: u32) -> Result<()> {
        let (at, offset) = self.inode_place(ino)?;
        self.cache.change(at, |bytes| {
            let (stored, _) = Inode::mut_from_prefix(&mut bytes[offset..]).expect("inodes fit");
            stored.set_tag(self.order.tag(ino).unwrap_or(0));
        })
    }

    /// Lets a free inode have a time of removal.
    ///
    /// # Errors
    /// As [`Medium::inode_place`].
    pub fn date_removal(&self, ino: u32, now: Time) -> Result<()> {
        let (at, offset) = self.inode_place(ino)?;
        self.cache.change(at, |bytes| {
            let (stored, _) = Inode::mut_from_prefix(&mut bytes[offset..]).expect("inodes fit");
            let is_free = stored.links_count.get() == 0 && stored.mode.get() != 0;
            if is_free && stored.dtime.get() == 0 {
                stored.dtime = self.dtime(now).into();
            }
        })
    }

    /// That of an inode with so many links.
    fn dtime_of(&self, links: u16, now: Time) -> u32 {
        match links {
            0 => self.dtime(now),
            _ => 0,
        }
    }

    /// The time of a removal. A small one is taken for the number of an inode, in a list of those
    /// to be removed.
    fn dtime(&self, now: Time) -> u32 {
        (now.secs() as u32).max(self.geometry.inodes)
    }
}

//! Orphans: inodes that were removed while somebody used them, or were being cut off, when a
//! journaling file system crashed. The superblock leads to the first, each to the next, in the
//! place of its time of deletion.
//!
//! They are freed, or cut off, by a mount for writing, as by any caller. Without a journal the list
//! is emptied when that is durable; until then the image is not clean. Where rounds are
//! transactions each mount keeps the [`List`], and an inode leaves it with what frees it.
//!
//! Locks: that of the list, then those of blocks.

use std::collections::{BTreeSet, HashMap};

use vfs::{Result, Time};

use crate::image::StoredInode;
use crate::layout::Superblock;
use crate::medium::Medium;

/// The orphans of a superblock, in the order of their list.
///
/// # Errors
/// The list or an inode in it is damaged; the disk failed.
pub fn read(medium: &Medium, superblock: &Superblock) -> Result<Vec<StoredInode>> {
    let mut orphans = Vec::new();
    let (mut next, mut seen) = (superblock.last_orphan.get(), BTreeSet::new());
    let g = &medium.geometry;
    let mut holder = g.first_block;
    while next != 0 {
        if next < g.first_ino || !g.has_inode(next) || !seen.insert(next) {
            let what = format_args!("inode {next} cannot be the next in the list of orphans");
            return Err(g.damage(holder, what));
        }
        let (orphan, after) = medium.orphan(next)?;
        (holder, next) = (orphan.at, after);
        orphans.push(orphan);
    }
    Ok(orphans)
}

/// The list of a mount. New orphans are put in front.
#[derive(Default)]
pub struct List {
    first: u32,
    links: HashMap<u32, Links>,
}

#[derive(Default, Clone, Copy)]
struct Links {
    before: u32,
    next: u32,
}

impl List {
    /// The list that the disk has.
    pub fn new(orphans: &[StoredInode]) -> List {
        let mut list = List::default();
        for orphan in orphans.iter().rev() {
            list.put(orphan.ino);
        }
        list
    }

    /// The first, for the superblock; 0: there is none.
    pub fn first(&self) -> u32 {
        self.first
    }

    fn put(&mut self, ino: u32) {
        let next = std::mem::replace(&mut self.first, ino);
        if let Some(links) = self.links.get_mut(&next) {
            links.before = ino;
        }
        self.links.insert(ino, Links { before: 0, next });
    }

    /// Stores an inode in its block: without names it is an orphan from then on, else it is none.
    ///
    /// # Errors
    /// The disk failed.
    pub fn store(&mut self, medium: &Medium, inode: &StoredInode, now: Time) -> Result<()> {
        if inode.attributes.links > 0 {
            self.remove(medium, inode.ino)?;
            return medium.store_inode(inode, now);
        }
        if !self.links.contains_key(&inode.ino) {
            self.put(inode.ino);
        }
        medium.store_orphan(inode, self.links[&inode.ino].next)
    }

    /// Stores an inode that has names: as an orphan, if it is one.
    ///
    /// # Errors
    /// The disk failed.
    pub fn keep(&self, medium: &Medium, inode: &StoredInode, now: Time) -> Result<()> {
        match self.links.get(&inode.ino) {
            Some(links) => medium.store_orphan(inode, links.next),
            None => medium.store_inode(inode, now),
        }
    }

    /// An inode is no orphan any more, if it was one. The caller stores it.
    ///
    /// # Errors
    /// The disk failed.
    pub fn remove(&mut self, medium: &Medium, ino: u32) -> Result<()> {
        let Some(Links { before, next }) = self.links.remove(&ino) else {
            return Ok(());
        };
        if let Some(links) = self.links.get_mut(&next) {
            links.before = before;
        }
        match self.links.get_mut(&before) {
            Some(links) => {
                links.next = next;
                medium.set_next_orphan(before, next)
            }
            None => {
                self.first = next;
                Ok(())
            }
        }
    }
}

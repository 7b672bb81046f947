//! The volume: the medium and the inodes in DRAM, which every part of a mounted file system needs.

use crate::image::Superblock;
use crate::inherited::Inherited;
use crate::inode_table::InodeTable;
use crate::layout::inode;
use crate::medium::Medium;
use pmem::{Domain, Pool};
use schedule::{Mutex, MutexGuard};
use std::ops::Deref;
use std::sync::Arc;

/// A mounted image with its inodes, without what runs on it.
pub struct Volume {
    medium: Medium,
    /// Inodes in DRAM.
    pub inodes: InodeTable,
    /// What a killed process wrote to files.
    pub inherited: Inherited,
    /// Held, by the inode's number, while space is reserved for a file: a call that fails takes
    /// back what it reserved, on which another one must not rely. Taken before all other locks.
    reserving: [Mutex<()>; 16],
    /// Mode `strong`: words of a record that pointers of one height may take; if there are more,
    /// their nodes are copied.
    pub record_words: Option<u64>,
}

impl Deref for Volume {
    type Target = Medium;

    #[inline]
    fn deref(&self) -> &Medium {
        &self.medium
    }
}

impl Volume {
    /// Put together at mount, in an `epoch` of its own if it is one for writing.
    pub fn new(pool: Arc<Pool>, superblock: Superblock, epoch: Option<u64>, clean: bool) -> Volume {
        Volume {
            inodes: InodeTable::new(superblock.geometry.pages),
            inherited: Inherited::new(!clean && epoch.is_some() && pool.domain() == Domain::Line),
            reserving: Default::default(),
            record_words: None,
            medium: Medium::new(pool, superblock, epoch, clean),
        }
    }

    /// Mode `strong`: so many bytes of blocks with contents are in a record, at most.
    pub fn set_logged_max(&mut self, bytes: u64) {
        self.medium.logged_max = bytes;
    }

    /// Keep others from reserving space for a file.
    pub fn lock_reserving(&self, ino: u64) -> MutexGuard<'_, ()> {
        let index = ino / inode::LINES % self.reserving.len() as u64;
        self.reserving[index as usize].lock()
    }
}

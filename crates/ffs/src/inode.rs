//! An inode in DRAM.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::dir::Index;
use crate::image::StoredInode;
use crate::image::xattr;

/// An inode in DRAM: shared by all who use it.
pub struct Inode {
    /// What the disk has.
    pub stored: StoredInode,
    /// Where the names of a directory are: found when one is first asked for.
    pub(crate) index: OnceLock<Index>,
}

impl Inode {
    /// An inode that was read.
    pub fn new(stored: StoredInode) -> Inode {
        Inode {
            stored,
            index: OnceLock::new(),
        }
    }

    /// Whether it has an extended attribute.
    pub fn has_xattrs(&self) -> bool {
        let stored = &self.stored;
        stored.attributes.xattr_block != 0 || xattr::are_in_inode(&stored.xattrs)
    }
}

/// A counted reference to an inode.
#[derive(Clone)]
pub struct Node(pub(crate) Arc<Inode>);

impl Deref for Node {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.0
    }
}

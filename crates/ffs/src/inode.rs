//! An inode in DRAM, shared by all who use it.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::RwLock;
use vfs::{Attr, Kind};

use crate::dir::Index;
use crate::image::StoredInode;
use crate::image::xattr;

/// An inode in DRAM. What it holds is stored in its block with each change, so an inode may leave
/// DRAM at any time. One without names is freed then.
pub struct Inode {
    /// Its number.
    pub ino: u32,
    /// What it is.
    pub kind: Kind,
    pub(crate) owner: Arc<dyn Owner>,
    /// Of a directory: held by who changes names in it, shared by who reads them. That of a
    /// directory comes before those of the directories in it.
    pub(crate) names: RwLock<()>,
    pub(crate) state: RwLock<State>,
}

/// What its lock protects.
pub struct State {
    /// As it is stored; a directory that was removed has no names in it.
    pub(crate) stored: StoredInode,
    /// Where the names of a directory are: read when one is first asked for.
    pub(crate) index: Option<Index>,
    /// Made without a name, and not named since: only then may one without names get one.
    pub(crate) is_tmpfile: bool,
    /// A file that has nothing behind its end which a crash left.
    pub(crate) is_trimmed: bool,
}

impl State {
    /// Of an inode that was read.
    pub(crate) fn new(stored: StoredInode) -> State {
        State {
            stored,
            index: None,
            is_tmpfile: false,
            is_trimmed: false,
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        let stored = &self.stored;
        let has_xattrs = stored.attributes.xattr_block != 0 || xattr::are_in_inode(&stored.xattrs);
        stored.attributes.attr(stored.ino, has_xattrs)
    }
}

/// Who frees inodes.
pub(crate) trait Owner: Send + Sync {
    /// An inode without names has left DRAM: nobody can find it any more.
    fn nameless(&self, inode: &mut StoredInode);
}

impl Drop for Inode {
    fn drop(&mut self) {
        let stored = &mut self.state.get_mut().stored;
        if stored.attributes.links == 0 {
            self.owner.nameless(stored);
        }
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

//! The inode in DRAM: the latest view of one inode.
//!
//! Whoever uses an inode has a counted reference to it, handed out by
//! [`crate::inode_table::InodeTable`], or its slot there locked; what only waits (operations, the
//! dirty list) goes by its number. So an inode without names is free to go as soon as the table has
//! the only reference.
//!
//! Locks: a directory's stripe -> the slot -> the file's body -> [`Inode::meta`]. What callers set
//! directly is in the inode's state ([`crate::inode_state`]), single atomic words.

use crate::attributes::Attributes;
use crate::dir::{Dir, PendingName};
use crate::file::File;
use crate::inode_state::InodeState;
use crate::layout::index;
use crate::lock::SpinLock;
use crate::medium::Medium;
use crate::xattr::Xattrs;
use schedule::RwLock;
use smallvec::SmallVec;
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::Arc;
use vfs::{Attr, Error, Kind, Result};

/// An inode in DRAM.
///
/// Behind the count of an [`Arc`] this fills three cache lines (a test), as inodes leave the caches
/// between a creation and what comes later.
#[repr(C)]
pub struct Inode {
    state: InodeState,
    /// Names and extended attributes, and what of them is pending.
    pub meta: SpinLock<Meta>,
    /// What it holds.
    pub body: Body,
}

impl Deref for Inode {
    type Target = InodeState;

    #[inline]
    fn deref(&self) -> &InodeState {
        &self.state
    }
}

/// What an inode holds, by kind.
pub enum Body {
    /// Names.
    Dir(Dir),
    /// Bytes.
    File(RwLock<File>),
    /// A target, in this page from birth to death.
    Symlink {
        /// Page with the target.
        page: u64,
    },
    /// Nothing: fifo, socket, device.
    Special {
        /// Device number, of a device.
        rdev: u32,
    },
}

/// Pending operations on the inode's names, and its extended attributes.
#[derive(Default)]
pub struct Meta {
    /// Names that were given and are not captured.
    pub adds: SmallVec<[PendingName; 1]>,
    rare: Option<Box<Rare>>,
}

/// What few inodes have.
#[derive(Default)]
pub struct Rare {
    /// Made without a name (`O_TMPFILE`) and not linked yet: the one case of a first name.
    pub linkable: bool,
    /// Loaded at first use.
    pub xattrs: Option<Xattrs>,
}

impl Meta {
    /// What few inodes have, if this one does.
    pub fn rare(&mut self) -> Option<&mut Rare> {
        self.rare.as_deref_mut()
    }

    /// What few inodes have, from now on this one.
    pub fn make_rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The first name that was given and is not captured.
    pub fn first_pending(&self) -> Option<PendingName> {
        self.adds.first().copied()
    }
}

impl Inode {
    /// A byte of the cache line that `stat` needs besides the first.
    pub const STAT_LINE: usize = offset_of!(Inode, state) + InodeState::SIZE;
    /// A byte of the line that removing a directory needs besides, or a file that was never
    /// persisted.
    pub const BODY_LINE: usize = offset_of!(Inode, body);

    /// A new inode, of which these are the names that are to be captured.
    pub fn fresh(attributes: &Attributes, body: Body, names: &[PendingName]) -> Inode {
        Inode {
            state: InodeState::fresh(attributes),
            meta: SpinLock::new(Meta {
                adds: SmallVec::from_slice(names),
                rare: None,
            }),
            body,
        }
    }

    /// An inode of the consistent view.
    pub fn load(attributes: &Attributes) -> Result<Inode> {
        let body = match attributes.kind {
            Kind::Dir => Body::Dir(Dir::load(attributes)),
            Kind::File => Body::File(RwLock::new(File::load(attributes))),
            Kind::Symlink => Body::Symlink {
                page: attributes.root >> index::SHIFT,
            },
            _ => Body::Special {
                rdev: attributes.root as u32,
            },
        };
        Ok(Inode {
            state: InodeState::published(attributes),
            meta: SpinLock::default(),
            body,
        })
    }

    /// Give back space set aside for persisting what turned out not to need it. Only at unmount.
    pub fn give_back_reserves(&self, medium: &Medium) {
        let runs = match &self.body {
            Body::Dir(dir) => dir.take_growth().1,
            Body::File(file) => file.write().take_reserve().0,
            _ => return,
        };
        runs.into_iter()
            .for_each(|run| medium.alloc.free_pages(run));
    }

    /// The directory in it.
    pub fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Error::Errno(vfs::Errno::NOTDIR)),
        }
    }

    /// The file in it.
    pub fn file(&self) -> Result<&RwLock<File>> {
        match &self.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(Error::Errno(vfs::Errno::ISDIR)),
            _ => Err(Error::Errno(vfs::Errno::INVAL)),
        }
    }

    /// Whether DRAM may forget it, if nobody refers to it: the consistent view holds it, and
    /// nothing waits to be persisted.
    pub fn is_idle(&self) -> bool {
        self.is_published()
            && !self.is_dirty()
            && self.nlink() > 0
            && !self.has_removals()
            && !self.has_pending_names()
            && !matches!(&self.body, Body::Dir(dir) if dir.has_operations())
    }

    /// Whether a name was given that the persister has not captured.
    pub fn has_pending_names(&self) -> bool {
        self.meta.lock().first_pending().is_some()
    }

    /// Whether it is a directory with renames that wait, which others depend on.
    pub fn has_ties(&self) -> bool {
        matches!(&self.body, Body::Dir(dir) if dir.has_ties())
    }

    /// The latest attributes, with the root word of what has no index tree. The persister holds
    /// `meta`, so no change is half done.
    #[inline]
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.state.attributes();
        match &self.body {
            Body::Dir(dir) => attributes.parent = dir.parent.load(Relaxed),
            Body::File(_) => {}
            Body::Symlink { page } => attributes.root = page << index::SHIFT,
            Body::Special { rdev } => attributes.root = u64::from(*rdev),
        }
        attributes
    }

    /// What callers are told.
    pub fn stat(&self) -> Attr {
        let mut attributes = self.attributes();
        if let Body::Dir(dir) = &self.body {
            let pages = self.attrs.pages.load(Relaxed) + dir.table_growth() as i64;
            attributes.pages = pages.max(0) as u64;
        }
        attributes.stat(self.has_xattrs.load(Relaxed))
    }
}

/// A counted reference from outside: what the VFS holds.
#[derive(Clone)]
pub struct Node(Arc<Inode>);

impl Node {
    /// A reference for the VFS.
    pub fn new(inode: Arc<Inode>) -> Node {
        Node(inode)
    }

    /// The inode.
    #[inline]
    pub fn inode(&self) -> &Arc<Inode> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_takes_three_cache_lines_with_its_count() {
        let count = size_of::<usize>();
        assert!(count + size_of::<Inode>() <= 192);
        assert!(count + Inode::STAT_LINE == 64);
        assert!(count + offset_of!(Inode, meta) < 128);
        assert!(count + Inode::BODY_LINE >= 128);
    }
}

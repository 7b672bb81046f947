//! Private space: nothing in the consistent view leads to it yet, so it may be stored to directly.
//!
//! Everything else on the medium changes only by the commit ([`crate::commit::txn`]). So whoever
//! stores directly shows a [`Private`], which is made in two ways only: by looking at what says
//! that nothing leads there ([`Private::inode`], [`Private::entry`]), and by a transaction, of what
//! it takes into use itself. It is private until the batch at hand commits, so none is kept.

use crate::inode::Inode;
use crate::layout::{LINE, dentry, inode, line_at};
use pmem::Pool;

/// Lines that nothing in the consistent view leads to, while a batch is captured and built.
pub struct Private {
    at: u64,
    len: u64,
}

impl Private {
    /// The lines of an inode, unless the consistent view holds it. Only settling a batch publishes
    /// inodes, and there is one batch at a time.
    pub fn inode(inode: &Inode) -> Option<Private> {
        (!inode.is_published()).then(|| Private {
            at: line_at(inode.ino),
            len: inode::LEN,
        })
    }

    /// The first line of a directory entry, unless it was part of a batch. That is on the medium:
    /// an entry is [`dentry::FRESH`] from when it is made until its batch is complete.
    pub fn entry(pool: &Pool, line: u64) -> Option<Private> {
        let at = line_at(line);
        let fresh = pool.load(at + dentry::TARGET) & dentry::FRESH != 0;
        fresh.then_some(Private { at, len: LINE })
    }

    /// Store a word at a byte offset.
    #[inline]
    pub fn store(&self, pool: &Pool, field: u64, value: u64) {
        debug_assert!(field + 8 <= self.len, "a word beyond what is private");
        pool.store(self.at + field, value);
    }
}

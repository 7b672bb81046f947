//! The model with one fault: what judges engines must find it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use model::{Model, Node};
use parking_lot::Mutex;
use vfs::{
    Also, At, Attr, Change, DirEntry, Fallocate, FileSystem, Fsync, Ino, Limits, NewNode, Place,
    RenameMode, Result, Rights, SeekFor, SetAttr, StatFs, Veto,
};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The inode that a rename replaces keeps its link count.
    LinkCountAfterReplace,
    /// Truncation leaves the bytes in the last block, and extension shows them.
    StaleAfterExtend,
    /// Removing a name does not touch the ctime of an inode that has others.
    UnlinkKeepsCtime,
    /// Listing a directory of four names or more leaves out the last.
    ListingLacksLast,
    /// An exchange panics.
    PanicsOnExchange,
}

/// The model with a fault.
pub struct Broken {
    inner: Model,
    fault: Fault,
    /// Inodes whose link count is shown one too high.
    too_high: Mutex<BTreeSet<Ino>>,
    /// The size that an inode was cut to, and the bytes that were left in its last block.
    rests: Mutex<BTreeMap<Ino, (u64, Vec<u8>)>>,
}

impl Broken {
    /// `inner` with `fault`.
    pub fn new(inner: Model, fault: Fault) -> Broken {
        Broken {
            inner,
            fault,
            too_high: Mutex::default(),
            rests: Mutex::default(),
        }
    }

    /// Set the size as an engine does that forgets to clear the rest of the last block.
    fn resize(&self, node: &Node, set: &SetAttr, size: u64) -> Result<Attr> {
        let mut rests = self.rests.lock();
        let before = self.inner.attr(node);
        let mut rest = vec![0; (size.next_multiple_of(4096) - size) as usize];
        self.inner.read(node, size, &mut rest)?;
        let attr = self.inner.setattr(node, set)?;
        if size < before.size {
            rests.insert(attr.ino, (size, rest));
        } else if let Some((at, rest)) = rests.remove(&attr.ino)
            && at == before.size
        {
            let shown = rest.len().min((size - at) as usize);
            self.inner.write(node, at, &rest[..shown])?;
            let (mtime, ctime) = (Some(attr.mtime), Some(attr.ctime));
            return self.inner.setattr(
                node,
                &SetAttr {
                    mtime,
                    ctime,
                    ..SetAttr::default()
                },
            );
        }
        Ok(attr)
    }
}

impl FileSystem for Broken {
    type Node = Node;

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn root(&self) -> Node {
        self.inner.root()
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        self.inner.node(ino)
    }

    fn ino(&self, node: &Node) -> Ino {
        self.inner.ino(node)
    }

    fn attr(&self, node: &Node) -> Attr {
        let mut attr = self.inner.attr(node);
        attr.nlink += u32::from(self.too_high.lock().contains(&attr.ino));
        attr
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.inner.lookup(dir, name)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        self.inner.parent(dir)
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        self.inner.create(dir, name, new)
    }

    fn tmpfile(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        self.inner.tmpfile(dir, new)
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.inner.link(node, dir, name)
    }

    fn unlink(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        let node = self.inner.lookup(dir, name)?;
        let before = self.inner.attr(&node);
        self.inner.unlink(dir, name, veto)?;
        if self.fault == Fault::UnlinkKeepsCtime && before.nlink > 1 {
            let set = SetAttr {
                ctime: Some(before.ctime),
                ..SetAttr::default()
            };
            self.inner.setattr(&node, &set)?;
        }
        Ok(())
    }

    fn rmdir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.inner.rmdir(dir, name, veto)
    }

    fn rename(
        &self,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        let exchange = mode == RenameMode::Exchange;
        assert!(
            !(exchange && self.fault == Fault::PanicsOnExchange),
            "exchange"
        );
        let replaced = Cell::new(None);
        let spy = |victim: &Rights| {
            replaced.set(Some(victim.ino));
            veto(victim)
        };
        let had_target = self.inner.lookup(to.dir, to.name).is_ok();
        self.inner.rename(from, to, mode, &spy)?;
        if let (true, false, Fault::LinkCountAfterReplace, Some(ino)) =
            (had_target, exchange, self.fault, replaced.get())
        {
            self.too_high.lock().insert(ino);
        }
        Ok(())
    }

    fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        self.inner.readlink(node)
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut count = 0;
        self.inner.readdir(dir, 0, &mut |_| {
            count += 1;
            true
        })?;
        let mut left = if self.fault == Fault::ListingLacksLast && count > 3 {
            count - 1
        } else {
            count
        };
        self.inner.readdir(dir, cookie, &mut |entry| {
            left -= 1;
            left >= 0 && emit(entry)
        })
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.inner.read(node, offset, buf)
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
        self.inner.write_with(node, offset, data, also)
    }

    fn append_with(&self, node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)> {
        self.inner.append_with(node, data, also)
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        match (self.fault, change.set.size) {
            (Fault::StaleAfterExtend, Some(size)) => self.resize(node, &change.set, size),
            _ => self.inner.apply(node, change),
        }
    }

    fn fallocate_with(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        self.inner.fallocate_with(node, mode, range, also)
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        self.inner.seek(node, offset, what)
    }

    fn copy_range_with(
        &self,
        from: At<'_, Node>,
        to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        self.inner.copy_range_with(from, to, len, also)
    }

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.getxattr(node, name)
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        self.inner.listxattr(node)
    }

    fn fsync(&self, node: &Node, what: Fsync) -> Result<()> {
        self.inner.fsync(node, what)
    }

    fn syncfs(&self) -> Result<()> {
        self.inner.syncfs()
    }

    fn statfs(&self) -> StatFs {
        self.inner.statfs()
    }
}

//! The trait that every engine implements, at the level of inodes.
//!
//! The engine keeps names, inodes and contents consistent and durable. Who may do what, how a
//! path is walked, what an open file is: that is decided above (see [`crate::Vfs`]), once for all
//! engines.

use std::ops::Range;

use crate::{
    At, Attr, Change, DirEntry, Errno, Fallocate, Fsync, Ino, Kind, Limits, NewNode, Place,
    RenameMode, Result, Rights, SeekFor, SetAttr, StatFs, Time, XattrChange, XattrMode,
};

/// Asked about the victim of a removal, under the lock that makes the answer hold; an error
/// vetoes the removal (the sticky bit, say). It may not call the engine, whose locks are held.
pub type Veto<'a> = &'a dyn Fn(&Rights) -> Result<()>;

/// What else a request changes of the inode whose contents it changes: rights that must not outlive
/// them. It has no size.
///
/// It is made in the same operation: nobody, and no crash, finds new contents that the engine has
/// persisted without it. If the operation fails after it was checked, it may have been made alone.
pub type Also<'a> = Option<&'a Change<'a>>;

/// A file system, at the level of inodes. All methods may be called from many threads.
///
/// Names passed in are 1 to 255 bytes without `/` or zero, and never `.` or `..`: the VFS has
/// seen to that. Every mutating call is atomic for other callers: they see it whole or not at all.
/// Unless said otherwise the kind of a node is checked: `ENOTDIR`, `EISDIR`, `EINVAL`.
pub trait FileSystem: Send + Sync + 'static {
    /// A counted reference to an inode. While one exists the inode stays usable, even with no
    /// name left; dropping the last reference of an inode without names frees it.
    type Node: Clone + Send + Sync + 'static;

    /// What it can hold and do; asked by nearly every call, so it should be constants.
    fn limits(&self) -> Limits;

    /// The root directory.
    fn root(&self) -> Self::Node;

    /// The inode of this number; `ESTALE` when there is none.
    fn node(&self, ino: Ino) -> Result<Self::Node>;

    /// The inode's number.
    fn ino(&self, node: &Self::Node) -> Ino;

    /// The latest attributes.
    fn attr(&self, node: &Self::Node) -> Attr;

    /// What of the attributes decides who may do what: asked by nearly every call, so it should
    /// cost little.
    fn rights(&self, node: &Self::Node) -> Rights {
        self.attr(node).rights()
    }

    /// What the inode is; asked once for each component of a path.
    fn kind(&self, node: &Self::Node) -> Kind {
        self.attr(node).kind
    }

    /// Whether the directory was removed: nothing is in it, and nothing will be.
    fn is_removed(&self, dir: &Self::Node) -> bool {
        self.attr(dir).nlink == 0
    }

    /// The inode that `name` refers to in `dir`; `ENOENT` when none.
    fn lookup(&self, dir: &Self::Node, name: &[u8]) -> Result<Self::Node>;

    /// The directory that holds `dir`; the root holds itself. Of a directory that was removed, or
    /// is while this is asked, any answer may come: see [`FileSystem::is_removed`].
    fn parent(&self, dir: &Self::Node) -> Result<Self::Node>;

    /// Make an inode and name it. `EEXIST`, `ENOSPC`, `EMLINK`; `ENOENT` when `dir` was removed.
    fn create(&self, dir: &Self::Node, name: &[u8], new: &NewNode<'_>) -> Result<Self::Node>;

    /// Make a regular file without a name (`O_TMPFILE`); `link` may name it later.
    fn tmpfile(&self, dir: &Self::Node, new: &NewNode<'_>) -> Result<Self::Node>;

    /// Give an inode, not a directory, a further name.
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Result<()>;

    /// Remove a name that is not a directory's (`EISDIR`).
    fn unlink(&self, dir: &Self::Node, name: &[u8], veto: Veto<'_>) -> Result<()>;

    /// Remove an empty directory (`ENOTEMPTY`, `ENOTDIR`).
    fn rmdir(&self, dir: &Self::Node, name: &[u8], veto: Veto<'_>) -> Result<()>;

    /// Move the name `from` to `to`, as `renameat2` has it: names of the same inode are left
    /// alone; a directory never goes below itself (`EINVAL`); an existing target must match in kind
    /// (`EISDIR`, `ENOTDIR`) and be empty (`ENOTEMPTY`). `veto` is asked about the moved inode and
    /// about the one replaced or exchanged.
    fn rename(
        &self,
        from: Place<'_, Self::Node>,
        to: Place<'_, Self::Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()>;

    /// The target of a symbolic link.
    fn readlink(&self, node: &Self::Node) -> Result<Vec<u8>>;

    /// Hand out entries after `cookie` (0: from the start) until there are no more or `emit`
    /// returns false; an entry that was refused is not consumed. `.` and `..` are not among
    /// them. An entry that is there throughout is handed out exactly once, whatever else changes.
    fn readdir(
        &self,
        dir: &Self::Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Read contents; returns the bytes read, fewer only at the end of the file. Leaves times
    /// alone.
    fn read(&self, node: &Self::Node, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Write contents; returns the bytes written, fewer (but some) only when space ran out on the
    /// way. Sets mtime and ctime. `EFBIG` beyond the largest size.
    ///
    /// `also` is part of the operation (see [`Also`]).
    fn write_with(
        &self,
        node: &Self::Node,
        offset: u64,
        data: &[u8],
        also: Also<'_>,
    ) -> Result<usize>;

    /// [`FileSystem::write_with`] and nothing else.
    fn write(&self, node: &Self::Node, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_with(node, offset, data, None)
    }

    /// Write several parts of a file, each with its offset: in ascending order, none empty, apart
    /// from each other. With [`Capabilities::WHOLE_WRITES`](crate::Capabilities::WHOLE_WRITES) all
    /// of them are one operation, else one after the other, and an error may leave some.
    ///
    /// # Panics
    /// An engine may, if the parts are not as said.
    fn write_parts(&self, node: &Self::Node, parts: &[(u64, &[u8])]) -> Result<()> {
        for &(offset, data) in parts {
            if self.write(node, offset, data)? < data.len() {
                return Err(Errno::NOSPC.into());
            }
        }
        Ok(())
    }

    /// Write at the end, atomically; returns the offset written at and the bytes written. `also` is
    /// part of the operation.
    fn append_with(&self, node: &Self::Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)>;

    /// [`FileSystem::append_with`] and nothing else.
    fn append(&self, node: &Self::Node, data: &[u8]) -> Result<(u64, usize)> {
        self.append_with(node, data, None)
    }

    /// Change attributes and extended attributes, all or none of them; returns the new attributes.
    fn apply(&self, node: &Self::Node, change: &Change<'_>) -> Result<Attr>;

    /// Change attributes, all or none of them; returns the new ones.
    fn setattr(&self, node: &Self::Node, set: &SetAttr) -> Result<Attr> {
        self.apply(
            node,
            &Change {
                set: *set,
                xattrs: &[],
            },
        )
    }

    /// Set the access time and leave ctime alone: the inode was read. An engine that can do so
    /// atomically, or cheaper than by `setattr`, should.
    fn set_atime(&self, node: &Self::Node, atime: Time) -> Result<()> {
        let ctime = self.attr(node).ctime;
        self.setattr(
            node,
            &SetAttr {
                atime: Some(atime),
                ctime: Some(ctime),
                ..SetAttr::default()
            },
        )?;
        Ok(())
    }

    /// Reserve, punch or zero a range. `also` is part of the operation.
    fn fallocate_with(
        &self,
        node: &Self::Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()>;

    /// [`FileSystem::fallocate_with`] and nothing else. `EFBIG` where the end of the range is not
    /// a number.
    fn fallocate(&self, node: &Self::Node, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        self.fallocate_with(node, mode, offset..end, None)
    }

    /// Find data or a hole; `ENXIO` beyond the end.
    fn seek(&self, node: &Self::Node, offset: u64, what: SeekFor) -> Result<u64>;

    /// Copy contents within the file system; returns the bytes copied, 0 at the end of
    /// `from`.
    /// Overlapping ranges of one file are `EINVAL`. `also` is part of the operation; it changes
    /// `to`.
    fn copy_range_with(
        &self,
        from: At<'_, Self::Node>,
        to: At<'_, Self::Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64>;

    /// [`FileSystem::copy_range_with`] and nothing else.
    fn copy_range(
        &self,
        from: At<'_, Self::Node>,
        to: At<'_, Self::Node>,
        len: u64,
    ) -> Result<u64> {
        self.copy_range_with(from, to, len, None)
    }

    /// The value of an extended attribute; `ENODATA` when there is none.
    fn getxattr(&self, node: &Self::Node, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of all extended attributes.
    fn listxattr(&self, node: &Self::Node) -> Result<Vec<Vec<u8>>>;

    /// Set an extended attribute, and attributes with it (an ACL changes the mode), atomically.
    fn setxattr(
        &self,
        node: &Self::Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        also: &SetAttr,
    ) -> Result<()> {
        let value = Some(value);
        let change = Change {
            set: *also,
            xattrs: &[XattrChange { name, value, mode }],
        };
        self.apply(node, &change).map(drop)
    }

    /// Remove an extended attribute; `ENODATA` when there is none.
    fn removexattr(&self, node: &Self::Node, name: &[u8]) -> Result<()> {
        let removed = XattrChange {
            mode: XattrMode::Replace,
            ..XattrChange::remove(name)
        };
        let change = Change {
            xattrs: &[removed],
            ..Change::default()
        };
        self.apply(node, &change).map(drop)
    }

    /// Return when the inode is durable to the extent asked.
    fn fsync(&self, node: &Self::Node, what: Fsync) -> Result<()>;

    /// Return when everything done before the call is durable.
    fn syncfs(&self) -> Result<()>;

    /// Space, used and free.
    fn statfs(&self) -> StatFs;
}

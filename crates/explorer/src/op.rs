//! Operations, on the engine and on the model alike.

use block::Random;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{
    At, Capabilities, Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, Place, RenameMode,
    Result, SetAttr, Time, XattrMode,
};

/// Slots for nodes that are held open.
pub const HANDLES: usize = 3;

/// By so much an access moves the access time.
const ACCESSED_NS: i64 = 500;
/// Where an access list is kept. What is in it matters to the VFS alone.
const ACL: &[u8] = b"system.posix_acl_access";

/// Bytes of a file, or of an attribute, from offset `at` on. Each word says which file, which write
/// and which place it belongs to: so words, lines or blocks that are swapped, or of another file,
/// show.
pub fn contents(file: &str, write: u8, at: u64, len: usize) -> Vec<u8> {
    let tag = file.bytes().fold(0x811c_9dc5_u32, |tag, byte| {
        (tag ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [_, _, tag, also] = tag.to_le_bytes();
    let byte = |at: u64| {
        let [low, middle, high, ..] = (at / 8).to_le_bytes();
        [write, tag, also, low, middle, high, write, tag][(at % 8) as usize]
    };
    (at..at + len as u64).map(byte).collect()
}

/// An operation. Paths start at the root, without a leading slash; the empty one is the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Make a file.
    Create(String),
    /// Make a directory.
    Mkdir(String),
    /// Make a symlink whose target has so many bytes.
    Symlink(String, usize),
    /// Make a device with this number.
    Mknod(String, u32),
    /// Make something that has an extended attribute from the beginning, as an inherited list.
    Inherit {
        /// What.
        path: String,
        /// A directory, not a file.
        dir: bool,
        /// Bytes of the attribute's value.
        len: usize,
        /// Marks all of them: see [`contents`].
        fill: u8,
    },
    /// Write to a file.
    Write {
        /// Which.
        path: String,
        /// `None`: append.
        at: Option<u64>,
        /// How many bytes.
        len: usize,
        /// Marks all of them: see [`contents`].
        fill: u8,
    },
    /// Set a file's size.
    Truncate(String, u64),
    /// Mode, start and length.
    Fallocate(String, Fallocate, u64, u64),
    /// From, to.
    Link(String, String),
    /// Remove a name.
    Unlink(String),
    /// Remove a directory.
    Rmdir(String),
    /// From, to.
    Rename(String, String, RenameMode),
    /// Set the permissions.
    Chmod(String, u16),
    /// Set the owner.
    Chown(String, u32),
    /// Set the modification time to half of it.
    Touch(String),
    /// Set an extended attribute.
    SetXattr {
        /// Of which file.
        path: String,
        /// Behind `user.`.
        name: u8,
        /// Bytes of the value.
        len: usize,
        /// Marks all of them: see [`contents`].
        fill: u8,
    },
    /// Set the access list, which changes the permissions with it.
    SetAcl {
        /// Of which file.
        path: String,
        /// The permissions.
        perm: u16,
        /// Bytes of the list.
        len: usize,
        /// Marks all of them: see [`contents`].
        fill: u8,
    },
    /// Remove an extended attribute.
    RemoveXattr(String, u8),
    /// Hold a file in a slot.
    Open(String, usize),
    /// Make a file without a name in a directory and hold it.
    Tmpfile(String, usize),
    /// Write to what is held.
    WriteHeld {
        /// In which slot.
        handle: usize,
        /// Where.
        at: u64,
        /// How many bytes.
        len: usize,
        /// Marks all of them: see [`contents`].
        fill: u8,
    },
    /// Set the size of what is held.
    TruncateHeld(usize, u64),
    /// Give what is held a name.
    LinkHeld(usize, String),
    /// Make what is held durable.
    FsyncHeld(usize),
    /// Let go.
    Close(usize),
    /// Copy bytes from one file to another, by one call.
    CopyRange {
        /// From which, and where in it.
        from: (String, u64),
        /// To which, and where in it.
        to: (String, u64),
        /// How many bytes, at most.
        len: u64,
    },
    /// Note that something was read: its access time becomes a later one.
    Access(String),
    /// Make a file durable.
    Fsync(String, Fsync),
    /// Make everything durable: a run of the persister.
    Syncfs,
    /// A step of the search for leaks, in which so much is looked at.
    Search(u64),
    /// Unmount, and mount again.
    Remount,
    /// Tell the cache before the disk something. Nothing is held if that unmounts.
    Cache(CacheOp),
    /// Make a snapshot.
    Snapshot {
        /// Its name.
        name: String,
        /// It does not outlive the mount, as that of a dump that is under way.
        is_brief: bool,
    },
    /// Remove a snapshot.
    DropSnapshot(String),
    /// Check the file system while it is in use, by a snapshot. There is nothing to be found.
    CheckLive,
    /// Two operations at once, on two threads. They commute, and neither holds nor lets go of
    /// anything.
    Both(Box<Op>, Box<Op>),
}

/// What a cache before a disk is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOp {
    /// The disk is to have everything.
    Flush,
    /// Commits wait for the disk, or not.
    Through(bool),
    /// Unmount, let the disk have everything, and mount.
    FlushUnmounted,
    /// Unmount, detach it, attach it again, and mount.
    Detach,
    /// The same, but make it anew in place of attaching it.
    Renew,
    /// Unmount, make it larger or smaller, and mount.
    Resize {
        /// It takes all of the memory, or else as little as it can.
        is_large: bool,
    },
}

impl Op {
    /// Whether everything is durable when it has returned.
    pub fn syncs_all(&self) -> bool {
        match self {
            Op::Syncfs | Op::Remount => true,
            Op::Cache(told) => !matches!(told, CacheOp::Flush | CacheOp::Through(_)),
            // What syncs all beside a change may have come before it.
            Op::Both(one, other) => {
                one.syncs_all() && other.only_syncs() || one.only_syncs() && other.syncs_all()
            }
            _ => false,
        }
    }

    /// Whether everything from before it is durable when it has returned, beside a change.
    pub fn syncs_all_beside(&self) -> bool {
        matches!(self, Op::Both(one, other) if one.syncs_all() || other.syncs_all())
    }

    /// Whether it makes something durable, and changes nothing.
    pub fn only_syncs(&self) -> bool {
        matches!(self, Op::Syncfs | Op::Fsync(..) | Op::FsyncHeld(_))
    }

    /// Whether it has to do with snapshots.
    pub fn is_of_snapshots(&self) -> bool {
        matches!(
            self,
            Op::Snapshot { .. } | Op::DropSnapshot(_) | Op::CheckLive
        )
    }

    /// What not every engine can do, and it needs.
    pub fn needs(&self) -> Capabilities {
        match self {
            Op::Fallocate(_, mode, ..) => Capabilities::of_fallocate(*mode),
            Op::Rename(_, _, mode) => Capabilities::of_rename(*mode),
            Op::Tmpfile(..) => Capabilities::TMPFILE,
            _ => Capabilities::empty(),
        }
    }

    /// What it is done to, if that is a file or directory and not its name.
    pub fn target(&self) -> Option<&str> {
        match self {
            Op::Write { path, .. }
            | Op::SetXattr { path, .. }
            | Op::SetAcl { path, .. }
            | Op::Truncate(path, _)
            | Op::Fallocate(path, ..)
            | Op::Chmod(path, _)
            | Op::Chown(path, _)
            | Op::Touch(path)
            | Op::RemoveXattr(path, _)
            | Op::Access(path)
            | Op::Link(path, _)
            | Op::Fsync(path, _) => Some(path),
            _ => None,
        }
    }

    /// All paths in it.
    pub fn paths_mut(&mut self) -> Vec<&mut String> {
        match self {
            Op::Create(path)
            | Op::Mkdir(path)
            | Op::Mknod(path, _)
            | Op::Inherit { path, .. }
            | Op::SetAcl { path, .. }
            | Op::Symlink(path, _)
            | Op::Write { path, .. }
            | Op::Truncate(path, _)
            | Op::Fallocate(path, ..)
            | Op::Unlink(path)
            | Op::Rmdir(path)
            | Op::Chmod(path, _)
            | Op::Chown(path, _)
            | Op::Touch(path)
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr(path, _)
            | Op::Open(path, _)
            | Op::Tmpfile(path, _)
            | Op::LinkHeld(_, path)
            | Op::Access(path)
            | Op::Fsync(path, _) => vec![path],
            Op::Link(from, to) | Op::Rename(from, to, _) => vec![from, to],
            Op::CopyRange { from, to, .. } => vec![&mut from.0, &mut to.0],
            Op::Both(one, other) => one
                .paths_mut()
                .into_iter()
                .chain(other.paths_mut())
                .collect(),
            Op::WriteHeld { .. }
            | Op::TruncateHeld(..)
            | Op::FsyncHeld(_)
            | Op::Close(_)
            | Op::Syncfs
            | Op::Search(_)
            | Op::Cache(_)
            | Op::Snapshot { .. }
            | Op::DropSnapshot(_)
            | Op::CheckLive
            | Op::Remount => Vec::new(),
        }
    }
}

/// Looks at all that is left to be looked at.
pub(crate) const TO_THE_END: Op = Op::Search(1 << 32);
/// So much is looked at in a step between operations, at most.
const STEP_MAX: u64 = 200;
/// Steps at the end: the walk, perhaps again after what was deferred is free, the maps.
const STEPS_AT_END: usize = 4;

/// The search for leaks to its end, if nothing is deferred that takes long.
pub(crate) fn search_to_the_end() -> impl Iterator<Item = Op> {
    std::iter::repeat_n(TO_THE_END, STEPS_AT_END)
}

/// Operations with the search for leaks beside them: at their beginning as a whole, or a step
/// before each.
pub(crate) fn with_search(ops: Vec<Op>, random: &mut Random) -> Vec<Op> {
    match random.below(2) {
        0 => search_to_the_end().chain(ops).collect(),
        _ => {
            let step = |op| [Op::Search(1 + random.below(STEP_MAX)), op];
            ops.into_iter().flat_map(step).collect()
        }
    }
}

/// Operations at whose end nothing is held and the search for leaks has ended.
pub(crate) fn searched(mut ops: Vec<Op>) -> Vec<Op> {
    ops.extend((0..HANDLES).map(Op::Close));
    ops.extend(search_to_the_end());
    ops
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A file system and the nodes held of it.
pub struct Side<F: FileSystem> {
    /// The file system.
    pub fs: F,
    /// What is held.
    pub held: [Option<F::Node>; HANDLES],
    /// Paths that lead where they once did, as for who has opened them.
    pub opened: BTreeMap<String, F::Node>,
    /// Bytes that the last write or copy stored: fewer than were to be if space ran out.
    wrote: AtomicU64,
}

impl<F: FileSystem> Side<F> {
    /// Nothing is held.
    pub fn new(fs: F) -> Side<F> {
        Side {
            fs,
            held: [const { None }; HANDLES],
            opened: BTreeMap::new(),
            wrote: AtomicU64::new(0),
        }
    }

    /// An operation that has just succeeded, as far as it went.
    pub fn as_far_as_it_went(&self, op: &Op) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::Write { len, .. } | Op::WriteHeld { len, .. } => {
                *len = self.wrote.load(Relaxed) as usize;
            }
            Op::CopyRange { len, .. } => *len = self.wrote.load(Relaxed),
            _ => {}
        }
        op
    }

    /// Let a path lead where it leads now.
    ///
    /// # Errors
    /// As a lookup.
    pub fn open(&mut self, path: &str) -> Result<()> {
        let node = self.find(path)?;
        self.opened.insert(path.to_owned(), node);
        Ok(())
    }

    /// The node of a path.
    ///
    /// # Errors
    /// As a lookup.
    pub fn find(&self, path: &str) -> Result<F::Node> {
        if let Some(node) = self.opened.get(path) {
            return Ok(node.clone());
        }
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(self.fs.root(), |dir, name| {
            self.fs.lookup(&dir, name.as_bytes())
        })
    }

    fn place<'p>(&self, path: &'p str) -> Result<(F::Node, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(dir)?, name.as_bytes()))
    }

    fn handle(&self, handle: usize) -> Result<&F::Node> {
        self.held[handle].as_ref().ok_or(Errno::BADF.into())
    }

    fn make(&self, path: &str, kind: NewKind<'_>, xattrs: &[(&[u8], &[u8])]) -> Result<()> {
        let (dir, name) = self.place(path)?;
        let perm = if kind == NewKind::Dir { 0o755 } else { 0o644 };
        self.fs
            .create(
                &dir,
                name,
                &NewNode {
                    kind,
                    perm,
                    uid: 0,
                    gid: 0,
                    xattrs,
                },
            )
            .map(drop)
    }

    /// Run an operation; `Remount` is the caller's, and so is doing both of `Both` at once.
    pub fn run(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Open(path, handle) => self.held[*handle] = Some(self.find(path)?),
            Op::Tmpfile(path, handle) => {
                let new = NewNode {
                    kind: NewKind::File,
                    perm: 0o600,
                    uid: 0,
                    gid: 0,
                    xattrs: &[],
                };
                self.held[*handle] = Some(self.fs.tmpfile(&self.find(path)?, &new)?);
            }
            Op::Close(handle) => self.held[*handle] = None,
            Op::Both(one, other) => {
                let first = self.run(one);
                self.run(other).and(first)?;
            }
            op => self.act(op)?,
        }
        Ok(())
    }

    /// Run an operation that neither holds nor lets go of anything.
    pub fn act(&self, op: &Op) -> Result<()> {
        let fs = &self.fs;
        match op {
            Op::Create(path) => self.make(path, NewKind::File, &[]),
            Op::Mkdir(path) => self.make(path, NewKind::Dir, &[]),
            Op::Mknod(path, number) => self.make(path, NewKind::CharDev(*number), &[]),
            Op::Inherit {
                path,
                dir,
                len,
                fill,
            } => {
                let kind = if *dir { NewKind::Dir } else { NewKind::File };
                self.make(path, kind, &[(ACL, &contents(path, *fill, 0, *len))])
            }
            Op::Symlink(path, len) => self.make(
                path,
                NewKind::Symlink(
                    &path
                        .as_bytes()
                        .iter()
                        .copied()
                        .cycle()
                        .take(*len)
                        .collect::<Vec<_>>(),
                ),
                &[],
            ),
            Op::Write {
                path,
                at,
                len,
                fill,
            } => {
                let node = self.find(path)?;
                let start = at.unwrap_or_else(|| fs.attr(&node).size);
                let data = contents(path, *fill, start, *len);
                let wrote = match at {
                    Some(at) => fs.write(&node, *at, &data)?,
                    None => fs.append(&node, &data)?.1,
                };
                self.wrote.store(wrote as u64, Relaxed);
                Ok(())
            }
            Op::Truncate(path, size) => fs
                .setattr(
                    &self.find(path)?,
                    &SetAttr {
                        size: Some(*size),
                        ..SetAttr::default()
                    },
                )
                .map(drop),
            Op::Fallocate(path, mode, at, len) => fs.fallocate(&self.find(path)?, *mode, *at, *len),
            Op::Link(from, to) => {
                let (dir, name) = self.place(to)?;
                fs.link(&self.find(from)?, &dir, name)
            }
            Op::Unlink(path) => {
                let (dir, name) = self.place(path)?;
                fs.unlink(&dir, name, &|_| Ok(()))
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.place(path)?;
                fs.rmdir(&dir, name, &|_| Ok(()))
            }
            Op::Rename(from, to, mode) => {
                let ((from, name), (to, new)) = (self.place(from)?, self.place(to)?);
                fs.rename(
                    Place::new(&from, name),
                    Place::new(&to, new),
                    *mode,
                    &|_| Ok(()),
                )
            }
            Op::Chmod(path, perm) => fs
                .setattr(
                    &self.find(path)?,
                    &SetAttr {
                        perm: Some(*perm),
                        ..SetAttr::default()
                    },
                )
                .map(drop),
            Op::Chown(path, uid) => fs
                .setattr(
                    &self.find(path)?,
                    &SetAttr {
                        uid: Some(*uid),
                        ..SetAttr::default()
                    },
                )
                .map(drop),
            Op::Touch(path) => {
                let node = self.find(path)?;
                let mtime = Some(Time(fs.attr(&node).mtime.0 / 2));
                fs.setattr(
                    &node,
                    &SetAttr {
                        mtime,
                        ..SetAttr::default()
                    },
                )
                .map(drop)
            }
            Op::SetXattr {
                path,
                name,
                len,
                fill,
            } => {
                let name = [b"user.".as_slice(), &[*name]].concat();
                fs.setxattr(
                    &self.find(path)?,
                    &name,
                    &contents(path, *fill, 0, *len),
                    XattrMode::Any,
                    &SetAttr::default(),
                )
            }
            Op::SetAcl {
                path,
                perm,
                len,
                fill,
            } => {
                let also = SetAttr {
                    perm: Some(*perm),
                    ..SetAttr::default()
                };
                let (node, value) = (self.find(path)?, contents(path, *fill, 0, *len));
                fs.setxattr(&node, ACL, &value, XattrMode::Any, &also)
            }
            Op::RemoveXattr(path, name) => {
                fs.removexattr(&self.find(path)?, &[b"user.".as_slice(), &[*name]].concat())
            }
            Op::WriteHeld {
                handle,
                at,
                len,
                fill,
            } => fs
                .write(
                    self.handle(*handle)?,
                    *at,
                    &contents(&format!("held {handle}"), *fill, *at, *len),
                )
                .map(|wrote| self.wrote.store(wrote as u64, Relaxed)),
            Op::TruncateHeld(handle, size) => fs
                .setattr(
                    self.handle(*handle)?,
                    &SetAttr {
                        size: Some(*size),
                        ..SetAttr::default()
                    },
                )
                .map(drop),
            Op::LinkHeld(handle, path) => {
                let (dir, name) = self.place(path)?;
                fs.link(self.handle(*handle)?, &dir, name)
            }
            Op::CopyRange { from, to, len } => {
                let (source, target) = (self.find(&from.0)?, self.find(&to.0)?);
                let wrote =
                    fs.copy_range(At::new(&source, from.1), At::new(&target, to.1), *len)?;
                self.wrote.store(wrote, Relaxed);
                Ok(())
            }
            Op::Access(path) => {
                let node = self.find(path)?;
                fs.set_atime(&node, Time(fs.attr(&node).atime.0 + ACCESSED_NS))
            }
            Op::FsyncHeld(handle) => fs.fsync(self.handle(*handle)?, Fsync::All),
            Op::Fsync(path, what) => fs.fsync(&self.find(path)?, *what),
            Op::Syncfs => fs.syncfs(),
            // The mount's, as is `Remount`: [`crate::engine::Mounted`].
            Op::Search(_) | Op::Cache(_) | Op::Remount => Ok(()),
            Op::Snapshot { .. } | Op::DropSnapshot(_) | Op::CheckLive => Ok(()),
            Op::Open(..) | Op::Tmpfile(..) | Op::Close(_) | Op::Both(..) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::contents;
    use std::collections::BTreeSet;

    #[test]
    fn no_line_of_contents_is_like_another() {
        let mut lines = BTreeSet::new();
        let mut count = 0;
        for file in ["a", "b", "dir/a", "held 0"] {
            for write in [1, 2, 190] {
                for line in contents(file, write, 0, 1 << 16).chunks(64) {
                    lines.insert(line.to_vec());
                    count += 1;
                }
            }
        }
        assert_eq!(lines.len(), count);
        assert_eq!(contents("a", 7, 4093, 100)[3..], contents("a", 7, 4096, 97));
    }
}

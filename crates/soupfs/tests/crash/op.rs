//! Operations, on the engine and on the model alike.

use std::fmt;
use vfs::{
    Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, RenameMode, Result, SetAttr, XattrMode,
};

/// Slots for nodes that are held open.
pub const HANDLES: usize = 3;

/// An operation. Paths start at the root, without a leading slash; the empty one is the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create(String),
    Mkdir(String),
    Symlink(String, usize),
    /// `None`: append. The bytes are all `fill`.
    Write {
        path: String,
        at: Option<u64>,
        len: usize,
        fill: u8,
    },
    Truncate(String, u64),
    Fallocate(String, Fallocate, u64, u64),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameMode),
    Chmod(String, u16),
    Chown(String, u32),
    Touch(String),
    SetXattr {
        path: String,
        name: u8,
        len: usize,
        fill: u8,
    },
    RemoveXattr(String, u8),
    Open(String, usize),
    Tmpfile(String, usize),
    WriteHeld {
        handle: usize,
        at: u64,
        len: usize,
        fill: u8,
    },
    TruncateHeld(usize, u64),
    LinkHeld(usize, String),
    FsyncHeld(usize),
    Close(usize),
    Fsync(String, Fsync),
    Syncfs,
    /// Unmount, and mount again.
    Remount,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A file system and the nodes held of it.
pub struct Side<F: FileSystem> {
    pub fs: F,
    pub held: [Option<F::Node>; HANDLES],
}

impl<F: FileSystem> Side<F> {
    /// Nothing is held.
    pub fn new(fs: F) -> Side<F> {
        Side {
            fs,
            held: [const { None }; HANDLES],
        }
    }

    /// The node of a path.
    pub fn find(&self, path: &str) -> Result<F::Node> {
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

    fn make(&self, path: &str, kind: NewKind<'_>) -> Result<()> {
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
                    xattrs: &[],
                },
            )
            .map(drop)
    }

    /// Run an operation; `Remount` is the caller's.
    pub fn run(&mut self, op: &Op) -> Result<()> {
        let fs = &self.fs;
        match op {
            Op::Create(path) => self.make(path, NewKind::File),
            Op::Mkdir(path) => self.make(path, NewKind::Dir),
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
            ),
            Op::Write {
                path,
                at,
                len,
                fill,
            } => {
                let node = self.find(path)?;
                let data = vec![*fill; *len];
                match at {
                    Some(at) => fs.write(&node, *at, &data).map(drop),
                    None => fs.append(&node, &data).map(drop),
                }
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
                fs.rename(&from, name, &to, new, *mode, &|_| Ok(()))
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
                let mtime = Some(vfs::Time(fs.attr(&node).mtime.0 / 2));
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
                    &vec![*fill; *len],
                    XattrMode::Any,
                    &SetAttr::default(),
                )
            }
            Op::RemoveXattr(path, name) => {
                fs.removexattr(&self.find(path)?, &[b"user.".as_slice(), &[*name]].concat())
            }
            Op::Open(path, handle) => {
                self.held[*handle] = Some(self.find(path)?);
                Ok(())
            }
            Op::Tmpfile(path, handle) => {
                let new = NewNode {
                    kind: NewKind::File,
                    perm: 0o600,
                    uid: 0,
                    gid: 0,
                    xattrs: &[],
                };
                self.held[*handle] = Some(fs.tmpfile(&self.find(path)?, &new)?);
                Ok(())
            }
            Op::WriteHeld {
                handle,
                at,
                len,
                fill,
            } => fs
                .write(self.handle(*handle)?, *at, &vec![*fill; *len])
                .map(drop),
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
            Op::FsyncHeld(handle) => fs.fsync(self.handle(*handle)?, Fsync::All),
            Op::Close(handle) => {
                self.held[*handle] = None;
                Ok(())
            }
            Op::Fsync(path, what) => fs.fsync(&self.find(path)?, *what),
            Op::Syncfs => fs.syncfs(),
            Op::Remount => Ok(()),
        }
    }
}

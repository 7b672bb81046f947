//! What a process has and what a thread acts with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::open::{OpenFile, OpenFlags};
use super::table::Table;
use super::trail::Trails;
use super::walk::Walk;
use crate::{Cred, Errno, FileSystem, Kind, LockOwner, Result, Vfs};

/// A descriptor: a small number that stands for an open file in one [`Files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fd(pub u32);

/// What a thread acts with: each has its own.
pub struct Context<F: FileSystem> {
    /// On whose behalf.
    pub cred: Cred,
    /// Permission bits that nothing new gets.
    pub umask: u16,
    /// Where `/` is; `..` does not lead out of it.
    pub root: F::Node,
    /// Where relative paths start.
    pub cwd: F::Node,
    /// Where the last walks went.
    pub(super) trails: Trails<F::Node>,
}

impl<F: FileSystem> Context<F> {
    /// At the root of the file system, umask 022.
    pub fn new(vfs: &Vfs<F>, cred: Cred) -> Context<F> {
        let root = vfs.fs().root();
        Context {
            cred,
            umask: 0o022,
            cwd: root.clone(),
            root,
            trails: Trails::default(),
        }
    }

    /// The same, on behalf of someone else.
    pub fn for_cred(&self, cred: Cred) -> Context<F> {
        Context {
            cred,
            ..self.clone()
        }
    }
}

// Derived, it would ask for an engine that can be cloned.
impl<F: FileSystem> Clone for Context<F> {
    fn clone(&self) -> Context<F> {
        Context {
            cred: self.cred.clone(),
            umask: self.umask,
            root: self.root.clone(),
            cwd: self.cwd.clone(),
            trails: Trails::default(),
        }
    }
}

/// Where a relative path starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// At the working directory.
    Cwd,
    /// At an open directory.
    Dir(Fd),
    /// There is no path: the open file itself is meant.
    File(Fd),
}

/// A file to act on: by path from the working directory (`"a/b".into()`), by path from an open
/// directory (`(fd, "b").into()`), or an open file itself (`fd.into()`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathAt<'a> {
    pub(super) base: Base,
    pub(super) path: &'a [u8],
    pub(super) follow: bool,
}

impl<'a> PathAt<'a> {
    /// With a symbolic link at the end, means the link itself.
    pub fn nofollow(self) -> PathAt<'a> {
        PathAt {
            follow: false,
            ..self
        }
    }
}

impl<'a> From<&'a [u8]> for PathAt<'a> {
    fn from(path: &'a [u8]) -> PathAt<'a> {
        PathAt {
            base: Base::Cwd,
            path,
            follow: true,
        }
    }
}

impl<'a> From<&'a str> for PathAt<'a> {
    fn from(path: &'a str) -> PathAt<'a> {
        path.as_bytes().into()
    }
}

impl<'a> From<(Fd, &'a [u8])> for PathAt<'a> {
    fn from((dir, path): (Fd, &'a [u8])) -> PathAt<'a> {
        PathAt {
            base: Base::Dir(dir),
            path,
            follow: true,
        }
    }
}

impl<'a> From<(Fd, &'a str)> for PathAt<'a> {
    fn from((dir, path): (Fd, &'a str)) -> PathAt<'a> {
        (dir, path.as_bytes()).into()
    }
}

impl From<Fd> for PathAt<'_> {
    fn from(file: Fd) -> Self {
        PathAt {
            base: Base::File(file),
            path: b"",
            follow: true,
        }
    }
}

/// What a process has: open files, and the record locks it owns.
///
/// All methods may be called from many threads. Dropping it closes all descriptors.
pub struct Files<F: FileSystem> {
    pub(super) vfs: Arc<Vfs<F>>,
    pub(super) table: Table<OpenFile<F>>,
    pub(super) owner: LockOwner,
    /// Whether a record lock was ever taken: spares `close` a look.
    pub(super) locked: AtomicBool,
}

impl<F: FileSystem> Files<F> {
    /// No files yet, and room for `limit` descriptors.
    pub fn new(vfs: Arc<Vfs<F>>, limit: u32) -> Files<F> {
        static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        Files {
            vfs,
            table: Table::new(limit),
            owner,
            locked: AtomicBool::new(false),
        }
    }

    /// The file system below.
    pub fn vfs(&self) -> &Vfs<F> {
        &self.vfs
    }

    /// Makes `path` the working directory. Needs search permission on it.
    pub fn chdir<'p>(&self, ctx: &mut Context<F>, path: impl Into<PathAt<'p>>) -> Result<()> {
        let node = self.node(ctx, path.into())?;
        self.vfs.check_dir(&node)?;
        self.vfs.check_search(&ctx.cred, &node)?;
        ctx.cwd = node;
        Ok(())
    }

    /// The open file of a descriptor; `EBADF`.
    pub(super) fn file(&self, fd: Fd) -> Result<triomphe::Arc<OpenFile<F>>> {
        self.table.get(fd.0).ok_or(Errno::BADF.into())
    }

    /// The open file of a descriptor that is more than a place; `EBADF`.
    pub(super) fn opened(&self, fd: Fd) -> Result<triomphe::Arc<OpenFile<F>>> {
        let file = self.file(fd)?;
        if file.flags.contains(OpenFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        Ok(file)
    }

    /// A walk along the path, at its beginning.
    #[inline(always)]
    pub(super) fn walk<'a>(&'a self, ctx: &'a Context<F>, at: PathAt<'a>) -> Result<Walk<'a, F>> {
        match at.base {
            Base::Dir(fd) if !at.path.starts_with(b"/") => {
                let file = self.file(fd)?;
                if self.vfs.fs().kind(&file.node) != Kind::Dir {
                    return Err(Errno::NOTDIR.into());
                }
                Walk::from_node(&self.vfs, ctx, file.node.clone(), at.path)
            }
            _ => Walk::new(&self.vfs, ctx, at.path),
        }
    }

    /// The inode meant.
    pub(super) fn node(&self, ctx: &Context<F>, at: PathAt<'_>) -> Result<F::Node> {
        match at.base {
            Base::File(fd) => Ok(self.file(fd)?.node.clone()),
            _ => self.walk(ctx, at)?.into_node(at.follow),
        }
    }
}

impl<F: FileSystem> Drop for Files<F> {
    fn drop(&mut self) {
        for fd in self.table.used() {
            // Nobody else has this table: the descriptor is there to be closed.
            let _ = self.close(Fd(fd));
        }
    }
}

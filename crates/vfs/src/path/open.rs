//! Opening and closing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bitflags::bitflags;
use parking_lot::Mutex;

use super::files::{Context, Fd, Files, PathAt};
use crate::vfs::is_dots;
use crate::{Access, Errno, Error, FileSystem, Ino, Kind, NewKind, NewNodeRequest, Result, Vfs};

bitflags! {
    /// How to open a file. At least one of `READ`, `WRITE` and `PATH` is needed: `EINVAL`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 1 << 1;
        /// Each write goes to the end.
        const APPEND = 1 << 2;
        /// Make the file if there is none.
        const CREATE = 1 << 3;
        /// With `CREATE`: `EEXIST` if there is one, be it a dangling symbolic link. With
        /// `TMPFILE`: it will never get a name.
        const EXCL = 1 << 4;
        /// Cut it off at zero.
        const TRUNC = 1 << 5;
        /// `ENOTDIR` unless it is a directory.
        const DIRECTORY = 1 << 6;
        /// `ELOOP` if it is a symbolic link.
        const NOFOLLOW = 1 << 7;
        /// Only as a place: to start paths from, to ask for attributes. Needs no permission on the
        /// file itself, and gives none.
        const PATH = 1 << 8;
        /// Make a file without a name in the directory given.
        const TMPFILE = 1 << 9;
        /// A write returns when contents and attributes are durable.
        const SYNC = 1 << 10;
        /// A write returns when the contents are durable.
        const DSYNC = 1 << 11;
        /// Reading leaves the access time alone; `EPERM` for others than the owner.
        const NOATIME = 1 << 12;
    }
}

/// An open file description: what descriptors made by `dup` have in common.
pub(super) struct OpenFile<F: FileSystem> {
    pub(super) node: F::Node,
    pub(super) flags: OpenFlags,
    /// Where `read` and `write` go on; of a directory, the cookie. Locked for the whole of such
    /// a call, so that two of them get different parts.
    pub(super) position: Mutex<u64>,
    flock: OnceLock<Flock<F>>,
}

/// The identity under which an open file holds its flock. Given up with the last descriptor.
pub(super) struct Flock<F: FileSystem> {
    vfs: Arc<Vfs<F>>,
    pub(super) ino: Ino,
    pub(super) holder: u64,
}

impl<F: FileSystem> OpenFile<F> {
    /// `EBADF` unless opened for reading.
    pub(super) fn check_readable(&self) -> Result<()> {
        self.check_flag(OpenFlags::READ)
    }

    /// `EBADF` unless opened for writing.
    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_flag(OpenFlags::WRITE)
    }

    fn check_flag(&self, flag: OpenFlags) -> Result<()> {
        if self.flags.contains(flag) {
            Ok(())
        } else {
            Err(Errno::BADF.into())
        }
    }

    /// The identity for flocks; most files never have one.
    pub(super) fn flock(&self, vfs: &Arc<Vfs<F>>) -> &Flock<F> {
        static NEXT_HOLDER: AtomicU64 = AtomicU64::new(1);
        self.flock.get_or_init(|| Flock {
            vfs: vfs.clone(),
            ino: vfs.fs().ino(&self.node),
            holder: NEXT_HOLDER.fetch_add(1, Ordering::Relaxed),
        })
    }
}

impl<F: FileSystem> Drop for Flock<F> {
    fn drop(&mut self) {
        self.vfs.locks().unflock(self.ino, self.holder);
    }
}

impl<F: FileSystem> Files<F> {
    /// Opens a file, made with `perm` if need be; `EMFILE` when there is no room, and everything
    /// that open(2) names. Pipes, sockets and devices can only be opened as places: `ENXIO`.
    ///
    /// The descriptor is not necessarily the lowest free number.
    pub fn open<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        flags: OpenFlags,
        perm: u16,
    ) -> Result<Fd> {
        let at = path.into();
        let flags = effective(flags)?;
        // First of all, so that a full table leaves nothing behind.
        let slot = self.table.reserve().ok_or(Errno::MFILE)?;
        let node = if flags.contains(OpenFlags::TMPFILE) {
            self.open_tmpfile(ctx, at, flags, perm)?
        } else if flags.contains(OpenFlags::CREATE) {
            self.open_or_create(ctx, at, flags, perm)?
        } else {
            let follow = at.follow && !flags.contains(OpenFlags::NOFOLLOW);
            let node = self.walk(ctx, at)?.into_node(follow)?;
            self.check_open(ctx, &node, flags)?;
            node
        };
        let file = OpenFile {
            node,
            flags,
            position: Mutex::new(0),
            flock: OnceLock::new(),
        };
        Ok(Fd(slot.fill(triomphe::Arc::new(file))))
    }

    /// Closes a descriptor and gives up all record locks that this process has on the file, unless
    /// the descriptor was only a place.
    pub fn close(&self, fd: Fd) -> Result<()> {
        let file = self.table.remove(fd.0).ok_or(Errno::BADF)?;
        if self.locked.load(Ordering::Acquire) && !file.flags.contains(OpenFlags::PATH) {
            self.vfs
                .locks()
                .release_records(self.vfs.fs().ino(&file.node), self.owner);
        }
        // Hardly ever has anybody else it open: then no reference need be counted down.
        drop(triomphe::Arc::try_unwrap(file));
        Ok(())
    }

    /// A second descriptor of the same open file: they share position and flock.
    pub fn dup(&self, fd: Fd) -> Result<Fd> {
        let file = self.file(fd)?;
        let slot = self.table.reserve().ok_or(Errno::MFILE)?;
        Ok(Fd(slot.fill(file)))
    }

    fn open_tmpfile(
        &self,
        ctx: &Context<F>,
        at: PathAt<'_>,
        flags: OpenFlags,
        perm: u16,
    ) -> Result<F::Node> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Errno::INVAL.into());
        }
        let follow = at.follow && !flags.contains(OpenFlags::NOFOLLOW);
        let dir = self.walk(ctx, at)?.into_node(follow)?;
        self.vfs.tmpfile(&ctx.cred, &dir, perm, ctx.umask)
    }

    fn open_or_create(
        &self,
        ctx: &Context<F>,
        at: PathAt<'_>,
        flags: OpenFlags,
        perm: u16,
    ) -> Result<F::Node> {
        let exclusive = flags.contains(OpenFlags::EXCL);
        let mut walk = self.walk(ctx, at)?;
        let mut last = walk.reach_parent()?;
        loop {
            if last.slash && !is_dots(walk.name(last)) {
                return Err(Errno::ISDIR.into());
            }
            if !exclusive {
                match walk.lookup(last) {
                    Ok(node) if self.follows(at, flags, &node) => {
                        walk.follow(&node, last)?;
                        last = walk.reach_parent()?;
                        continue;
                    }
                    Ok(node) => {
                        self.check_open(ctx, &node, flags)?;
                        return Ok(node);
                    }
                    // From a removed directory `..` leads nowhere, and nobody will make it.
                    Err(Error::Errno(Errno::NOENT)) if !is_dots(walk.name(last)) => {}
                    Err(error) => return Err(error),
                }
            }
            let name = walk.name(last);
            match self.vfs.create(
                &ctx.cred,
                walk.dir(),
                name,
                &NewNodeRequest::new(NewKind::File, perm, ctx.umask),
            ) {
                // Someone else was faster: open theirs.
                Err(Error::Errno(Errno::EXIST)) if !exclusive => {}
                done => return done,
            }
        }
    }

    fn follows(&self, at: PathAt<'_>, flags: OpenFlags, node: &F::Node) -> bool {
        let follow = at.follow && !flags.contains(OpenFlags::NOFOLLOW);
        follow && self.vfs.fs().kind(node) == Kind::Symlink
    }

    /// Checks that an existing file may be opened like this, and cuts it off if asked.
    fn check_open(&self, ctx: &Context<F>, node: &F::Node, flags: OpenFlags) -> Result<()> {
        let attr = self.vfs.getattr(node);
        if flags.contains(OpenFlags::DIRECTORY) && attr.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        if flags.contains(OpenFlags::PATH) {
            return Ok(());
        }
        let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC | OpenFlags::CREATE);
        match attr.kind {
            Kind::Symlink => return Err(Errno::LOOP.into()),
            Kind::Dir if changes => return Err(Errno::ISDIR.into()),
            _ => {}
        }
        let mut want = Access::empty();
        want.set(Access::R, flags.contains(OpenFlags::READ));
        want.set(
            Access::W,
            flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC),
        );
        self.vfs.check_use(&ctx.cred, node, &attr.rights(), want)?;
        if !matches!(attr.kind, Kind::File | Kind::Dir) {
            return Err(Errno::NXIO.into());
        }
        if flags.contains(OpenFlags::NOATIME) && !ctx.cred.owns(attr.uid) {
            return Err(Errno::PERM.into());
        }
        if flags.contains(OpenFlags::TRUNC) {
            self.vfs.truncate(&ctx.cred, node, 0)?;
        }
        Ok(())
    }
}

/// The flags that count; `EINVAL` for combinations without a meaning.
fn effective(flags: OpenFlags) -> Result<OpenFlags> {
    if flags.contains(OpenFlags::PATH) {
        let kept = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        return Ok(flags & kept);
    }
    let opens = flags.intersects(OpenFlags::READ | OpenFlags::WRITE);
    if !opens || flags.contains(OpenFlags::CREATE | OpenFlags::DIRECTORY) {
        return Err(Errno::INVAL.into());
    }
    Ok(flags)
}

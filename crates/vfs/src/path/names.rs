//! Names by path: make, link, remove, rename.

use super::files::{Base, Context, Files, PathAt};
use super::open::OpenFlags;
use super::walk::{Last, Walk};
use crate::vfs::{check_target, is_dots};
use crate::{Errno, Error, FileSystem, Kind, NewKind, NewNodeRequest, Place, RenameMode, Result};

impl<F: FileSystem> Files<F> {
    /// Makes a directory.
    pub fn mkdir<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        perm: u16,
    ) -> Result<()> {
        self.make(ctx, path.into(), NewKind::Dir, perm)
    }

    /// Makes a file, pipe, socket or device; `EPERM` for a directory.
    pub fn mknod<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        kind: NewKind<'_>,
        perm: u16,
    ) -> Result<()> {
        match kind {
            NewKind::Dir => Err(Errno::PERM.into()),
            NewKind::Symlink(_) => Err(Errno::INVAL.into()),
            _ => self.make(ctx, path.into(), kind, perm),
        }
    }

    /// Makes a symbolic link to `target`. `ENOENT` for an empty target, `ENAMETOOLONG` for one too
    /// long.
    pub fn symlink<'p>(
        &self,
        ctx: &Context<F>,
        target: &[u8],
        path: impl Into<PathAt<'p>>,
    ) -> Result<()> {
        // Before anything that may be wrong with the path.
        check_target(target, self.vfs().fs().limits().symlink_max)?;
        self.make(ctx, path.into(), NewKind::Symlink(target), 0o777)
    }

    /// Gives a file a further name. A symbolic link at the end of `old` is followed only if
    /// `follow`. `old` may be a descriptor, of a file without a name too (`O_TMPFILE`, but not
    /// with `O_EXCL`: `ENOENT`).
    pub fn link<'p>(
        &self,
        ctx: &Context<F>,
        old: impl Into<PathAt<'p>>,
        new: impl Into<PathAt<'p>>,
        follow: bool,
    ) -> Result<()> {
        let old = old.into();
        if let Base::File(fd) = old.base {
            let never = OpenFlags::TMPFILE | OpenFlags::EXCL;
            if self.file(fd)?.flags.contains(never) {
                return Err(Errno::NOENT.into());
            }
        }
        let node = self.node(ctx, PathAt { follow, ..old })?;
        let mut walk = self.walk(ctx, new.into())?;
        let last = self.new_name(&mut walk, false)?;
        self.vfs.link(&ctx.cred, &node, walk.dir(), walk.name(last))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink<'p>(&self, ctx: &Context<F>, path: impl Into<PathAt<'p>>) -> Result<()> {
        let mut walk = self.walk(ctx, path.into())?;
        let last = walk.reach_parent()?;
        if last.slash {
            let dir = self.vfs.fs().kind(&walk.lookup(last)?) == Kind::Dir;
            return Err(if dir { Errno::ISDIR } else { Errno::NOTDIR }.into());
        }
        self.vfs.unlink(&ctx.cred, walk.dir(), walk.name(last))
    }

    /// Removes an empty directory.
    pub fn rmdir<'p>(&self, ctx: &Context<F>, path: impl Into<PathAt<'p>>) -> Result<()> {
        let at = path.into();
        let mut walk = self.walk(ctx, at)?;
        let last = walk.reach_parent()?;
        if at.path.iter().all(|&byte| byte == b'/') {
            return Err(Errno::BUSY.into());
        }
        self.vfs.rmdir(&ctx.cred, walk.dir(), walk.name(last))?;
        ctx.trails.forget_removed(self.vfs.fs());
        Ok(())
    }

    /// Moves a name; symbolic links at either end are not followed.
    pub fn rename<'p>(
        &self,
        ctx: &Context<F>,
        old: impl Into<PathAt<'p>>,
        new: impl Into<PathAt<'p>>,
        mode: RenameMode,
    ) -> Result<()> {
        let mut from = self.walk(ctx, old.into())?;
        let name = from.reach_parent()?;
        // Before anything that may be wrong with the other path.
        from.check_here()?;
        let mut to = self.walk(ctx, new.into())?;
        let new_name = to.reach_parent()?;
        if name.slash || new_name.slash {
            self.check_slashes((&from, name), (&to, new_name), mode)?;
        }
        let (name, new_name) = (from.name(name), to.name(new_name));
        self.vfs.rename(
            &ctx.cred,
            Place::new(from.dir(), name),
            Place::new(to.dir(), new_name),
            mode,
        )?;
        ctx.trails.forget_removed(self.vfs.fs());
        Ok(())
    }

    fn make(&self, ctx: &Context<F>, at: PathAt<'_>, kind: NewKind<'_>, perm: u16) -> Result<()> {
        let mut walk = self.walk(ctx, at)?;
        let last = self.new_name(&mut walk, kind == NewKind::Dir)?;
        let (dir, name) = (walk.dir(), walk.name(last));
        self.vfs.create(
            &ctx.cred,
            dir,
            name,
            &NewNodeRequest::new(kind, perm, ctx.umask),
        )?;
        Ok(())
    }

    /// Walks to the place for a new name. Only a directory's may end in a slash: else `ENOENT`, or
    /// `EEXIST` if it is there.
    fn new_name(&self, walk: &mut Walk<'_, F>, dir: bool) -> Result<Last> {
        let last = walk.reach_parent()?;
        if !last.slash || dir {
            return Ok(last);
        }
        match walk.lookup(last) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(error) => Err(error),
        }
    }

    /// A slash after a name insists on a directory: `ENOTDIR`. What is there or not is told first.
    fn check_slashes(
        &self,
        (from, name): (&Walk<'_, F>, Last),
        (to, new_name): (&Walk<'_, F>, Last),
        mode: RenameMode,
    ) -> Result<()> {
        if is_dots(from.name(name)) || is_dots(to.name(new_name)) {
            // Never allowed; the error does not depend on slashes.
            return Ok(());
        }
        let fs = self.vfs.fs();
        let old_is_dir = fs.kind(&from.lookup(name)?) == Kind::Dir;
        let new_is_dir = match to.lookup(new_name) {
            Ok(node) => Some(fs.kind(&node) == Kind::Dir),
            Err(Error::Errno(Errno::NOENT)) => None,
            Err(error) => return Err(error),
        };
        let refusal = match (mode, new_is_dir) {
            (RenameMode::NoReplace, Some(_)) => Some(Errno::EXIST),
            (RenameMode::Exchange, None) => Some(Errno::NOENT),
            (RenameMode::Exchange, Some(false)) if new_name.slash => Some(Errno::NOTDIR),
            (RenameMode::Exchange, _) if !name.slash => None,
            _ => (!old_is_dir).then_some(Errno::NOTDIR),
        };
        refusal.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

//! Attributes by path or descriptor.

use super::files::{Context, Files, PathAt};
use crate::{Access, Attr, FileSystem, Result, SetAttrRequest, StatFs, TimeOrNow, XattrMode};

impl<F: FileSystem> Files<F> {
    /// Attributes; of the file that a symbolic link leads to. Of an open file, by descriptor.
    pub fn stat<'p>(&self, ctx: &Context<F>, path: impl Into<PathAt<'p>>) -> Result<Attr> {
        Ok(self.vfs.getattr(&self.node(ctx, path.into())?))
    }

    /// Attributes; of a symbolic link itself.
    pub fn lstat<'p>(&self, ctx: &Context<F>, path: impl Into<PathAt<'p>>) -> Result<Attr> {
        self.stat(ctx, path.into().nofollow())
    }

    /// Whether the file can be used in these ways; with none, whether it is there.
    pub fn access<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        want: Access,
    ) -> Result<()> {
        self.vfs
            .access(&ctx.cred, &self.node(ctx, path.into())?, want)
    }

    /// The target of a symbolic link; `EINVAL` for anything else.
    pub fn readlink<'p>(&self, ctx: &Context<F>, path: impl Into<PathAt<'p>>) -> Result<Vec<u8>> {
        self.vfs.readlink(&self.node(ctx, path.into().nofollow())?)
    }

    /// Sets permission, set-id and sticky bits.
    pub fn chmod<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        perm: u16,
    ) -> Result<()> {
        let request = SetAttrRequest {
            perm: Some(perm),
            ..SetAttrRequest::default()
        };
        self.setattr(ctx, path.into(), &request)
    }

    /// Sets owner and group. (`lchown` is this with [`PathAt::nofollow`].)
    pub fn chown<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.setattr(
            ctx,
            path.into(),
            &SetAttrRequest {
                uid,
                gid,
                ..SetAttrRequest::default()
            },
        )
    }

    /// Sets owner and group, of a symbolic link itself.
    pub fn lchown<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.chown(ctx, path.into().nofollow(), uid, gid)
    }

    /// Sets times of access and change; `None` leaves one alone.
    pub fn utimens<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
    ) -> Result<()> {
        let request = SetAttrRequest {
            atime,
            mtime,
            ..SetAttrRequest::default()
        };
        self.setattr(ctx, path.into(), &request)
    }

    /// Sets the size. Needs write permission; through a descriptor open for writing, use
    /// [`Files::ftruncate`].
    pub fn truncate<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        size: u64,
    ) -> Result<()> {
        let request = SetAttrRequest {
            size: Some(size),
            ..SetAttrRequest::default()
        };
        self.setattr(ctx, path.into(), &request)
    }

    /// The value of an extended attribute.
    pub fn getxattr<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        name: &[u8],
    ) -> Result<Vec<u8>> {
        self.vfs
            .getxattr(&ctx.cred, &self.node(ctx, path.into())?, name)
    }

    /// The names of all extended attributes.
    pub fn listxattr<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
    ) -> Result<Vec<Vec<u8>>> {
        self.vfs.listxattr(&ctx.cred, &self.node(ctx, path.into())?)
    }

    /// Sets an extended attribute.
    pub fn setxattr<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.vfs
            .setxattr(&ctx.cred, &self.node(ctx, path.into())?, name, value, mode)
    }

    /// Removes an extended attribute.
    pub fn removexattr<'p>(
        &self,
        ctx: &Context<F>,
        path: impl Into<PathAt<'p>>,
        name: &[u8],
    ) -> Result<()> {
        self.vfs
            .removexattr(&ctx.cred, &self.node(ctx, path.into())?, name)
    }

    /// Space and limits.
    pub fn statfs(&self) -> StatFs {
        self.vfs.statfs()
    }

    fn setattr(&self, ctx: &Context<F>, at: PathAt<'_>, request: &SetAttrRequest) -> Result<()> {
        self.vfs.setattr(&ctx.cred, &self.node(ctx, at)?, request)?;
        Ok(())
    }
}

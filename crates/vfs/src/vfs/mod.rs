//! Operations on inodes on behalf of a caller: what POSIX decides above an engine.
//!
//! [`Vfs`] wraps an engine; the FUSE adapter and the path layer both stand on it. It checks
//! permissions, decides owner, group and mode of what is made, keeps modes and ACLs in step, and
//! follows the policy for access times. Calls are as concurrent as the engine's. The only locks
//! here are those that keep a change of mode, owner or ACL in one piece (see `attr`), and they are
//! innermost but for the engine's own.

mod attr;
mod data;
mod layout;
mod names;
mod xattr;

use std::sync::Arc;

use parking_lot::Mutex;

pub use attr::{SetAttrRequest, TimeOrNow};
pub(crate) use layout::Layout;
pub use names::NewNodeRequest;
use names::can_be_name;
pub(crate) use names::{check_target, is_dots};

use crate::access::{caps_permit, perm_permits};
use crate::{
    ACL_ACCESS, Access, Acl, Capabilities, Caps, Clock, Cred, Errno, Error, FileSystem, Kind,
    Locks, Result, Rights, SystemClock, Time,
};

/// How many locks guard changes of attributes, each for its share of the inodes.
const ATTR_LOCKS: usize = 64;

/// When reading updates the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// Never.
    No,
    /// When it is not later than the last change, or a day old.
    #[default]
    Relative,
    /// Always.
    Strict,
}

/// Policies of a [`Vfs`].
#[derive(Clone)]
pub struct VfsOptions {
    /// When reading updates the access time.
    pub atime: Atime,
    /// Where the time comes from; the engine should have the same.
    pub clock: Arc<dyn Clock>,
    /// Refuse all changes, with `EROFS`.
    pub read_only: bool,
}

impl Default for VfsOptions {
    fn default() -> VfsOptions {
        VfsOptions {
            atime: Atime::default(),
            clock: Arc::new(SystemClock),
            read_only: false,
        }
    }
}

/// An engine with the rules of POSIX around it.
pub struct Vfs<F: FileSystem> {
    fs: F,
    options: VfsOptions,
    attr_locks: [Mutex<()>; ATTR_LOCKS],
    locks: Locks,
    layout: Layout,
}

impl<F: FileSystem> Vfs<F> {
    /// Puts the rules around an engine.
    pub fn new(fs: F, options: VfsOptions) -> Vfs<F> {
        let attr_locks = std::array::from_fn(|_| Mutex::new(()));
        Vfs {
            fs,
            options,
            attr_locks,
            locks: Locks::default(),
            layout: Layout::default(),
        }
    }

    /// The engine.
    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// The engine, alone again.
    pub fn into_inner(self) -> F {
        self.fs
    }

    /// The record locks and flocks on its files.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// What tells whether a path still leads where it led.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.options.clock.now()
    }

    /// Whether the caller may use the inode in these ways: `EACCES` if not, `EROFS` for writing
    /// what cannot change.
    pub fn access(&self, cred: &Cred, node: &F::Node, want: Access) -> Result<()> {
        self.check_use(cred, node, &self.fs.rights(node), want)
    }

    /// [`Vfs::access`] when the rights are at hand.
    pub(crate) fn check_use(
        &self,
        cred: &Cred,
        node: &F::Node,
        of: &Rights,
        want: Access,
    ) -> Result<()> {
        // Pipes, sockets and devices are written to elsewhere.
        let changes = matches!(of.kind, Kind::File | Kind::Dir | Kind::Symlink);
        if changes && want.contains(Access::W) {
            self.check_writable()?;
        }
        self.check(cred, node, of, want)
    }

    /// Whether the caller may use the inode, whose rights these are: else `EACCES`.
    #[inline]
    fn check(&self, cred: &Cred, node: &F::Node, of: &Rights, want: Access) -> Result<()> {
        if caps_permit(cred, of.kind, of.perm, want) || self.permits(cred, node, of, want)? {
            return Ok(());
        }
        Err(Errno::ACCESS.into())
    }

    /// Whether ACL or permission bits grant it, privileges aside.
    fn permits(&self, cred: &Cred, node: &F::Node, of: &Rights, want: Access) -> Result<bool> {
        // The owner's entry always equals the owner's bits: no need to fetch the list. (Linux does
        // not fetch it without group bits either, and takes a named user for one of the others
        // then; acl(5) has it that the mask denies them, and so it is here.)
        if of.has_xattrs
            && cred.uid != of.uid
            && let Some(acl) = self.acl(node, ACL_ACCESS)?
        {
            return Ok(acl.permits(cred, of, want));
        }
        Ok(perm_permits(cred, of, want))
    }

    /// Whether the caller may search the directory. For the privileged, that it is one is left to
    /// the engine.
    pub(crate) fn check_search(&self, cred: &Cred, dir: &F::Node) -> Result<()> {
        // The most frequent check of all: privileged callers do not even fetch the rights.
        if cred
            .caps
            .intersects(Caps::DAC_OVERRIDE | Caps::DAC_READ_SEARCH)
        {
            return Ok(());
        }
        let rights = self.dir_rights(dir)?;
        self.check(cred, dir, &rights, Access::X)
    }

    /// The inode's list of this name, if it has one.
    fn acl(&self, node: &F::Node, name: &[u8]) -> Result<Option<Acl>> {
        match self.fs.getxattr(node, name) {
            Ok(value) => Acl::parse(&value),
            Err(Error::Errno(Errno::NODATA)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `ENAMETOOLONG` for a name that the engine cannot hold, `ENOENT` for none.
    fn check_length(&self, name: &[u8]) -> Result<()> {
        match name.len() {
            0 => Err(Errno::NOENT.into()),
            len if len > self.fs.limits().name_max => Err(Errno::NAMETOOLONG.into()),
            _ => Ok(()),
        }
    }

    /// `EINVAL` for bytes that no name can hold, on top of the length.
    fn check_name(&self, name: &[u8]) -> Result<()> {
        self.check_length(name)?;
        if !can_be_name(name) {
            return Err(Errno::INVAL.into());
        }
        Ok(())
    }

    /// `otherwise` for what the engine cannot do.
    fn check_capable(&self, need: Capabilities, otherwise: Errno) -> Result<()> {
        if self.fs.limits().capabilities.contains(need) {
            Ok(())
        } else {
            Err(otherwise.into())
        }
    }

    /// `EROFS` when mounted so.
    fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            Err(Errno::ROFS.into())
        } else {
            Ok(())
        }
    }
}

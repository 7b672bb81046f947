//! Changes of attributes: `chmod`, `chown`, `utimensat`, `truncate`.
//!
//! Mode, owner, group and access ACL depend on each other, and a change reads before it writes.
//! So whoever changes one of them holds the inode's lock (one of a few, by inode number).

use parking_lot::MutexGuard;

use super::layout::Changing;
use super::{ATTR_LOCKS, Vfs};
use crate::access::without_set_id;
use crate::{
    ACL_ACCESS, Access, Also, Attr, Caps, Change, Cred, Errno, Error, FileSystem, Kind, Result,
    Rights, SetAttr, Time, XattrChange,
};

const CAPABILITY: &[u8] = b"security.capability";

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOrNow {
    /// This one.
    At(Time),
    /// The time of the call.
    Now,
}

/// Changes of attributes that a caller asks for; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttrRequest {
    /// Permission, set-id and sticky bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeOrNow>,
    /// Last change of the contents.
    pub mtime: Option<TimeOrNow>,
    /// Last change of attributes: only for a kernel that keeps times itself (write-back caching).
    pub ctime: Option<Time>,
}

/// Holds while mode, owner, group or ACLs of an inode change.
pub(super) struct AttrLock<'a> {
    _locked: MutexGuard<'a, ()>,
    _changing: Option<Changing<'a>>,
}

/// What a change of contents takes away. As long as it exists, nobody gives it back.
#[derive(Default)]
pub(super) struct Stripping<'a> {
    change: Option<Change<'static>>,
    _lock: Option<AttrLock<'a>>,
}

impl Stripping<'_> {
    /// As an engine's operation takes it.
    pub(super) fn also(&self) -> Also<'_> {
        self.change.as_ref()
    }
}

impl<F: FileSystem> Vfs<F> {
    /// The attributes now.
    pub fn getattr(&self, node: &F::Node) -> Attr {
        self.fs.attr(node)
    }

    /// Changes attributes; returns the new ones.
    ///
    /// `EPERM` for what only the owner or the privileged may do: change mode, owner, group (the
    /// owner: to one of their groups), set times other than both to now. `EACCES` without write
    /// permission for a size, or for both times to now by another than the owner. `EOPNOTSUPP` for
    /// the mode of a symbolic link.
    pub fn setattr(&self, cred: &Cred, node: &F::Node, request: &SetAttrRequest) -> Result<Attr> {
        if *request == SetAttrRequest::default() {
            return Ok(self.fs.attr(node));
        }
        self.check_writable()?;
        let _lock = self.attr_lock(node);
        let attr = self.fs.attr(node);
        self.check_setattr(cred, node, &attr, request)?;
        if request.size.is_some() {
            check_has_size(&attr)?;
            self.check(cred, node, &attr.rights(), Access::W)?;
        }
        self.apply(cred, node, &attr, request)
    }

    /// Changes the size through a descriptor that was opened for writing: no permission is needed
    /// any more.
    pub fn truncate(&self, cred: &Cred, node: &F::Node, size: u64) -> Result<Attr> {
        self.check_writable()?;
        let _lock = self.attr_lock(node);
        let attr = self.fs.attr(node);
        check_has_size(&attr)?;
        let request = SetAttrRequest {
            size: Some(size),
            ..SetAttrRequest::default()
        };
        self.apply(cred, node, &attr, &request)
    }

    fn check_setattr(
        &self,
        cred: &Cred,
        node: &F::Node,
        attr: &Attr,
        request: &SetAttrRequest,
    ) -> Result<()> {
        let owner = cred.uid == attr.uid;
        let mut allowed = true;
        if let Some(uid) = request.uid {
            allowed &= cred.has(Caps::CHOWN) || (owner && uid == attr.uid);
        }
        if let Some(gid) = request.gid {
            allowed &= cred.has(Caps::CHOWN) || (owner && (gid == attr.gid || cred.in_group(gid)));
        }
        if request.perm.is_some() {
            if attr.kind == Kind::Symlink {
                return Err(Errno::OPNOTSUPP.into());
            }
            allowed &= cred.owns(attr.uid);
        }
        allowed &= request.ctime.is_none() || cred.has(Caps::FOWNER);
        match (request.atime, request.mtime) {
            (None, None) => {}
            (Some(TimeOrNow::Now), Some(TimeOrNow::Now)) => {
                if !cred.owns(attr.uid) {
                    self.check(cred, node, &attr.rights(), Access::W)?;
                }
            }
            _ => allowed &= cred.owns(attr.uid),
        }
        if allowed {
            Ok(())
        } else {
            Err(Errno::PERM.into())
        }
    }

    /// Applies what has been allowed, with its consequences for set-id bits and the ACL.
    fn apply(
        &self,
        cred: &Cred,
        node: &F::Node,
        attr: &Attr,
        request: &SetAttrRequest,
    ) -> Result<Attr> {
        let chown = request.uid.is_some() || request.gid.is_some();
        let strip_contents = request.size.is_some() && !cred.has(Caps::FSETID);
        let drop_capability = chown || request.size.is_some();
        let perm = match request.perm {
            Some(perm) if cred.keeps_set_gid(request.gid.unwrap_or(attr.gid)) => {
                Some(perm & 0o7777)
            }
            Some(perm) => Some(perm & 0o5777),
            // Nobody keeps the bits of a file that changes hands.
            None if (chown && attr.kind != Kind::Dir)
                || (strip_contents && attr.kind == Kind::File) =>
            {
                Some(without_set_id(cred, &attr.rights())).filter(|&perm| perm != attr.perm)
            }
            None => None,
        };
        // One look at the clock: times that are set together are the same.
        let now = self.now();
        let resolve = |time| match time {
            TimeOrNow::At(time) => time,
            TimeOrNow::Now => now,
        };
        let set = SetAttr {
            perm,
            uid: request.uid,
            gid: request.gid,
            size: request.size,
            atime: request.atime.map(resolve),
            mtime: request.mtime.map(resolve),
            ctime: request.ctime,
        };
        if !attr.has_xattrs {
            return self.fs.setattr(node, &set);
        }
        let mut xattrs = Vec::new();
        if drop_capability && self.has_capability(cred, node, &attr.rights())? {
            xattrs.push(XattrChange::remove(CAPABILITY));
        }
        let acl = match request.perm {
            Some(_) => self.acl(node, ACL_ACCESS)?,
            None => None,
        };
        let acl = acl.map(|mut acl| {
            acl.chmod(perm.unwrap_or(attr.perm));
            acl.to_xattr()
        });
        xattrs.extend(acl.as_ref().map(|list| XattrChange::set(ACL_ACCESS, list)));
        let xattrs = &xattrs;
        self.fs.apply(node, &Change { set, xattrs })
    }

    /// What must not outlive a change of contents: file capabilities, and set-id bits unless the
    /// caller may keep them. To be made by the operation that changes the contents.
    pub(super) fn stripping(&self, cred: &Cred, node: &F::Node) -> Result<Stripping<'_>> {
        if self.stripped(cred, node)?.is_none() {
            return Ok(Stripping::default());
        }
        // The bits may change until nobody else may change them.
        let lock = self.attr_lock(node);
        Ok(Stripping {
            change: self.stripped(cred, node)?,
            _lock: Some(lock),
        })
    }

    /// What a change of contents takes away; `None`: nothing, as nearly always.
    fn stripped(&self, cred: &Cred, node: &F::Node) -> Result<Option<Change<'static>>> {
        let rights = self.fs.rights(node);
        let keeps_set_id = rights.perm & 0o6000 == 0 || cred.has(Caps::FSETID);
        let has_capability = self.has_capability(cred, node, &rights)?;
        if rights.kind != Kind::File || (keeps_set_id && !has_capability) {
            return Ok(None);
        }
        let perm = match keeps_set_id {
            true => rights.perm,
            false => without_set_id(cred, &rights),
        };
        let change = Change {
            set: SetAttr {
                perm: (perm != rights.perm).then_some(perm),
                ..SetAttr::default()
            },
            xattrs: match has_capability {
                true => const { &[XattrChange::remove(CAPABILITY)] },
                false => &[],
            },
        };
        Ok((!change.is_empty()).then_some(change))
    }

    /// Whether the file has capabilities that are for us to take away.
    fn has_capability(&self, cred: &Cred, node: &F::Node, of: &Rights) -> Result<bool> {
        if of.kind != Kind::File || !of.has_xattrs || cred.capabilities_done {
            return Ok(false);
        }
        match self.fs.getxattr(node, CAPABILITY) {
            Ok(_) => Ok(true),
            Err(Error::Errno(Errno::NODATA)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The lock under which mode, owner, group and ACLs of the inode change.
    pub(super) fn attr_lock(&self, node: &F::Node) -> AttrLock<'_> {
        let lock = &self.attr_locks[self.fs.ino(node) as usize % ATTR_LOCKS];
        let is_dir = self.fs.kind(node) == Kind::Dir;
        AttrLock {
            _locked: lock.lock(),
            // Who may search it may change.
            _changing: is_dir.then(|| self.layout.change()),
        }
    }
}

/// Only regular files have a size to set: `EISDIR`, else `EINVAL`.
fn check_has_size(attr: &Attr) -> Result<()> {
    match attr.kind {
        Kind::File => Ok(()),
        Kind::Dir => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

//! Extended attributes and their namespaces.

use super::Vfs;
use crate::{
    ACL_ACCESS, ACL_DEFAULT, Access, Acl, Attr, Capabilities, Caps, Change, Cred, Errno, Error,
    FileSystem, Kind, Result, SetAttr, XATTR_NAME_MAX, XattrChange, XattrMode,
};

/// Who may use an attribute is decided by how its name starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// `user.`: who may read or write the contents; of files and directories only.
    User,
    /// `trusted.`: the privileged; hidden from others.
    Trusted,
    /// `security.`: everyone reads, the privileged write.
    Security,
    /// A POSIX ACL: everyone reads, the owner writes.
    Acl,
}

impl Space {
    /// `EOPNOTSUPP` for a name of no known space.
    fn of(name: &[u8]) -> Result<Space> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Err(Errno::RANGE.into());
        }
        if name == ACL_ACCESS || name == ACL_DEFAULT {
            return Ok(Space::Acl);
        }
        let spaces: [(&[u8], Space); 3] = [
            (b"user.", Space::User),
            (b"trusted.", Space::Trusted),
            (b"security.", Space::Security),
        ];
        for (prefix, space) in spaces {
            if let Some(rest) = name.strip_prefix(prefix) {
                return if rest.is_empty() {
                    Err(Errno::INVAL.into())
                } else {
                    Ok(space)
                };
            }
        }
        Err(Errno::OPNOTSUPP.into())
    }
}

impl<F: FileSystem> Vfs<F> {
    /// The value of an extended attribute; `ENODATA` when there is none, or none to be seen.
    pub fn getxattr(&self, cred: &Cred, node: &F::Node, name: &[u8]) -> Result<Vec<u8>> {
        match Space::of(name)? {
            Space::Security => {}
            Space::Trusted if cred.has(Caps::SYS_ADMIN) => {}
            Space::Trusted => return Err(Errno::NODATA.into()),
            Space::Acl if self.fs.kind(node) == Kind::Symlink => {
                return Err(Errno::OPNOTSUPP.into());
            }
            Space::Acl => {}
            Space::User => {
                let attr = self.fs.attr(node);
                if !matches!(attr.kind, Kind::File | Kind::Dir) {
                    return Err(Errno::NODATA.into());
                }
                self.check(cred, node, &attr.rights(), Access::R)?;
            }
        }
        self.fs.getxattr(node, name)
    }

    /// The names of all extended attributes that the caller may know of.
    pub fn listxattr(&self, cred: &Cred, node: &F::Node) -> Result<Vec<Vec<u8>>> {
        let mut names = self.fs.listxattr(node)?;
        if !cred.has(Caps::SYS_ADMIN) {
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    /// Sets an extended attribute. An access ACL sets the permission bits as well, and is not kept
    /// when they say as much. `ERANGE` and `E2BIG` for a name or value too long.
    pub fn setxattr(
        &self,
        cred: &Cred,
        node: &F::Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.check_capable(Capabilities::XATTRS, Errno::OPNOTSUPP)?;
        let space = Space::of(name)?;
        if value.len() > self.fs.limits().xattr_size_max {
            return Err(Errno::TOOBIG.into());
        }
        self.check_writable()?;
        let _lock = self.attr_lock(node);
        let attr = self.fs.attr(node);
        self.check_change(cred, node, &attr, space)?;
        if space == Space::Acl {
            return self.set_acl(cred, node, &attr, name, Acl::parse(value)?);
        }
        self.fs
            .setxattr(node, name, value, mode, &SetAttr::default())
    }

    /// Removes an extended attribute; `ENODATA` when there is none, except for ACLs, where that is
    /// a success.
    pub fn removexattr(&self, cred: &Cred, node: &F::Node, name: &[u8]) -> Result<()> {
        let space = Space::of(name)?;
        self.check_writable()?;
        let _lock = self.attr_lock(node);
        let attr = self.fs.attr(node);
        self.check_change(cred, node, &attr, space)?;
        match space {
            Space::Acl => self.set_acl(cred, node, &attr, name, None),
            _ => self.fs.removexattr(node, name),
        }
    }

    fn check_change(&self, cred: &Cred, node: &F::Node, attr: &Attr, space: Space) -> Result<()> {
        let allowed = match space {
            Space::Security | Space::Trusted => cred.has(Caps::SYS_ADMIN),
            Space::Acl if attr.kind == Kind::Symlink => return Err(Errno::OPNOTSUPP.into()),
            // Whose it is, `set_acl` checks.
            Space::Acl => true,
            Space::User => {
                // In a shared directory, an attribute of the directory is its owner's alone.
                let shared = attr.kind == Kind::Dir && attr.perm & 0o1000 != 0;
                matches!(attr.kind, Kind::File | Kind::Dir) && (!shared || cred.owns(attr.uid))
            }
        };
        if !allowed {
            return Err(Errno::PERM.into());
        }
        if space == Space::User {
            self.check(cred, node, &attr.rights(), Access::W)
        } else {
            Ok(())
        }
    }

    /// Sets or removes an ACL: `EPERM` for others than the owner, `EACCES` for a default ACL on
    /// what is no directory.
    fn set_acl(
        &self,
        cred: &Cred,
        node: &F::Node,
        attr: &Attr,
        name: &[u8],
        acl: Option<Acl>,
    ) -> Result<()> {
        if name == ACL_DEFAULT && attr.kind != Kind::Dir {
            // There is none to remove, and none to be had.
            return if acl.is_some() {
                Err(Errno::ACCESS.into())
            } else {
                Ok(())
            };
        }
        if !cred.owns(attr.uid) {
            return Err(Errno::PERM.into());
        }
        let Some(acl) = acl else {
            return self.drop_acl(node, name);
        };
        if name == ACL_DEFAULT {
            return self.put_acl(node, name, &acl, &SetAttr::default());
        }
        let mut perm = attr.perm & 0o7000 | acl.perm();
        if !cred.keeps_set_gid(attr.gid) {
            perm &= !0o2000;
        }
        let also = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        if !acl.is_minimal() {
            return self.put_acl(node, name, &acl, &also);
        }
        if self.acl(node, ACL_ACCESS)?.is_none() {
            return self.fs.setattr(node, &also).map(drop);
        }
        let change = Change {
            set: also,
            xattrs: &[XattrChange::remove(name)],
        };
        self.fs.apply(node, &change).map(drop)
    }

    fn put_acl(&self, node: &F::Node, name: &[u8], acl: &Acl, also: &SetAttr) -> Result<()> {
        self.fs
            .setxattr(node, name, &acl.to_xattr(), XattrMode::Any, also)
    }

    fn drop_acl(&self, node: &F::Node, name: &[u8]) -> Result<()> {
        match self.fs.removexattr(node, name) {
            Err(Error::Errno(Errno::NODATA)) => Ok(()),
            done => done,
        }
    }
}

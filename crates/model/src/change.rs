//! Changes of attributes and extended attributes, alone and with a change of contents.

use std::collections::BTreeMap;

use vfs::{Also, Change, Errno, Ino, Limits, Result, SetAttr, Time, XattrMode};

use crate::inode::{Body, Inode};
use crate::tree::{Tree, check_xattr, check_xattr_list, check_xattr_name};

/// Extended attributes by name.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

impl Tree {
    /// Change attributes and extended attributes, all or none of them.
    pub(crate) fn change(&mut self, ino: Ino, change: &Change<'_>, now: Time) -> Result<()> {
        self.with_also(ino, Some(change), now, |_| Ok(()))
    }

    /// Run an operation on an inode and change what else the request changes: both, or neither.
    pub(crate) fn with_also<T>(
        &mut self,
        ino: Ino,
        also: Also<'_>,
        now: Time,
        op: impl FnOnce(&mut Tree) -> Result<T>,
    ) -> Result<T> {
        let Some(change) = also else { return op(self) };
        let limits = self.options.limits;
        let inode = self.get(ino);
        let xattrs = changed_xattrs(inode, change, &limits)?;
        check_setattr(inode, &change.set, limits.file_max)?;
        let done = op(self)?;
        let inode = self.get_mut(ino);
        if !change.xattrs.is_empty() {
            inode.xattrs = xattrs;
            inode.ctime = now;
        }
        apply_setattr(inode, &change.set, now);
        Ok(done)
    }
}

/// The extended attributes that an inode has after a change.
fn changed_xattrs(inode: &Inode, change: &Change<'_>, limits: &Limits) -> Result<Xattrs> {
    let mut xattrs = inode.xattrs.clone();
    for change in change.xattrs {
        match change.value {
            Some(value) => check_xattr(change.name, value, limits)?,
            None => check_xattr_name(change.name)?,
        }
        match (change.mode, xattrs.contains_key(change.name)) {
            (XattrMode::Create, true) => return Err(Errno::EXIST.into()),
            (XattrMode::Replace, false) => return Err(Errno::NODATA.into()),
            (_, false) if change.value.is_some() => {
                check_xattr_list(&xattrs, change.name.len(), limits)?;
            }
            _ => {}
        }
        match change.value {
            Some(value) => xattrs.insert(change.name.to_vec(), value.to_vec()),
            None => xattrs.remove(change.name),
        };
    }
    Ok(xattrs)
}

fn check_setattr(inode: &Inode, set: &SetAttr, file_max: u64) -> Result<()> {
    if let Some(size) = set.size {
        inode.file()?;
        if size > file_max {
            return Err(Errno::FBIG.into());
        }
    }
    Ok(())
}

/// Apply what [`check_setattr`] has let pass.
fn apply_setattr(inode: &mut Inode, set: &SetAttr, now: Time) {
    if *set == SetAttr::default() {
        return;
    }
    if let (Some(size), Body::File(contents)) = (set.size, &mut inode.body) {
        contents.truncate(size);
        inode.mtime = now;
    }
    inode.perm = set.perm.map_or(inode.perm, |perm| perm & 0o7777);
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    inode.atime = set.atime.unwrap_or(inode.atime);
    inode.mtime = set.mtime.unwrap_or(inode.mtime);
    inode.ctime = set.ctime.unwrap_or(now);
}

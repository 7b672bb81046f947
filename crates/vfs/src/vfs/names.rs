//! Names: look up, make, link, remove, rename.

use std::cell::OnceCell;

use super::Vfs;
use crate::access::check_sticky;
use crate::{
    ACL_ACCESS, ACL_DEFAULT, Access, Capabilities, Caps, Cred, Errno, FileSystem, Kind, NewKind,
    NewNode, Place, RenameMode, Result, Rights,
};

const DIR_ACCESS: Access = Access::W.union(Access::X);

/// What a name refers to, with its rights.
type Found<F> = (<F as FileSystem>::Node, Rights);

/// What the maker of a new inode asks for.
#[derive(Debug, Clone, Copy)]
pub struct NewNodeRequest<'a> {
    /// What to make.
    pub kind: NewKind<'a>,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Permission bits to take away, unless the directory has a default ACL.
    pub umask: u16,
}

impl<'a> NewNodeRequest<'a> {
    /// All of it.
    pub fn new(kind: NewKind<'a>, perm: u16, umask: u16) -> NewNodeRequest<'a> {
        NewNodeRequest { kind, perm, umask }
    }
}

impl<F: FileSystem> Vfs<F> {
    /// The inode that `name` refers to in `dir`; `.` and `..` are understood. Needs search
    /// permission on `dir`: `EACCES`. `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`. From a directory that
    /// was removed, `..` leads nowhere: `ENOENT`.
    pub fn lookup(&self, cred: &Cred, dir: &F::Node, name: &[u8]) -> Result<F::Node> {
        self.check_length(name)?;
        if is_dots(name) {
            self.check_dir(dir)?;
            self.check_search(cred, dir)?;
            return if name == b"." {
                Ok(dir.clone())
            } else {
                self.parent(dir)
            };
        }
        self.check_search(cred, dir)?;
        self.fs.lookup(dir, name)
    }

    /// The directory that holds `dir`; `ENOENT` when `dir` was removed: what held it may be gone as
    /// well, and its number another's.
    pub(super) fn parent(&self, dir: &F::Node) -> Result<F::Node> {
        let parent = self.fs.parent(dir);
        // Asked last: who is not removed by now has not been.
        if self.fs.is_removed(dir) {
            return Err(Errno::NOENT.into());
        }
        parent
    }

    /// Makes an inode: `mkdir`, `mknod`, `symlink`, and `open` with `O_CREAT | O_EXCL`.
    ///
    /// For the target of a symbolic link, `ENOENT` when empty, `ENAMETOOLONG` when too long.
    /// `EEXIST`, `EACCES` without write and search permission on `dir`, `EPERM` for a device
    /// without the privilege, `EROFS`, and what the engine reports.
    pub fn create(
        &self,
        cred: &Cred,
        dir: &F::Node,
        name: &[u8],
        asked: &NewNodeRequest<'_>,
    ) -> Result<F::Node> {
        if let NewKind::Symlink(target) = asked.kind {
            check_target(target, self.fs.limits().symlink_max)?;
        }
        let dir_rights = self.fs.rights(dir);
        self.check_new_name(cred, dir, &dir_rights, name)?;
        // A character device 0/0 is a whiteout: harmless, and free for all to make.
        let device = matches!(asked.kind, NewKind::BlockDev(_) | NewKind::CharDev(1..));
        if device && !cred.has(Caps::MKNOD) {
            return Err(Errno::PERM.into());
        }
        self.with_new(cred, dir, &dir_rights, asked, |new| {
            self.fs.create(dir, name, new)
        })
    }

    /// Makes a regular file without a name. Needs write and search permission on `dir`.
    pub fn tmpfile(&self, cred: &Cred, dir: &F::Node, perm: u16, umask: u16) -> Result<F::Node> {
        self.check_capable(Capabilities::TMPFILE, Errno::OPNOTSUPP)?;
        self.check_writable()?;
        let dir_rights = self.dir_rights(dir)?;
        self.check(cred, dir, &dir_rights, DIR_ACCESS)?;
        let asked = NewNodeRequest::new(NewKind::File, perm, umask);
        self.with_new(cred, dir, &dir_rights, &asked, |new| {
            self.fs.tmpfile(dir, new)
        })
    }

    /// Gives an inode a further name; `EPERM` for a directory.
    pub fn link(&self, cred: &Cred, node: &F::Node, dir: &F::Node, name: &[u8]) -> Result<()> {
        self.check_new_name(cred, dir, &self.fs.rights(dir), name)?;
        if self.fs.kind(node) == Kind::Dir {
            let exists = self.fs.lookup(dir, name).is_ok();
            return Err(if exists { Errno::EXIST } else { Errno::PERM }.into());
        }
        self.fs.link(node, dir, name)
    }

    /// Removes a name that is not a directory's. `EACCES` without write and search permission on
    /// `dir`, `EPERM` by the sticky rule, `EISDIR`, `ENOENT`.
    pub fn unlink(&self, cred: &Cred, dir: &F::Node, name: &[u8]) -> Result<()> {
        if is_dots(name) {
            return Err(Errno::ISDIR.into());
        }
        let dir_rights = self.fs.rights(dir);
        self.check_old_name(cred, dir, &dir_rights, name)?;
        self.fs
            .unlink(dir, name, &|victim| check_sticky(cred, &dir_rights, victim))
    }

    /// Removes an empty directory. `EACCES` and `EPERM` as for [`Vfs::unlink`]; `EINVAL` for `.`;
    /// `ENOTEMPTY`, `ENOTDIR`, `ENOENT`.
    pub fn rmdir(&self, cred: &Cred, dir: &F::Node, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Errno::INVAL.into()),
            b".." => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        let dir_rights = self.fs.rights(dir);
        self.check_old_name(cred, dir, &dir_rights, name)?;
        self.fs
            .rmdir(dir, name, &|victim| check_sticky(cred, &dir_rights, victim))
    }

    /// Moves the name `from` to `to`. Needs write and search permission on both directories,
    /// and write permission on a directory that gets another parent (its `..` changes); the sticky
    /// rule holds for what is moved and for what is replaced.
    pub fn rename(
        &self,
        cred: &Cred,
        from: Place<'_, F::Node>,
        to: Place<'_, F::Node>,
        mode: RenameMode,
    ) -> Result<()> {
        if is_dots(from.name) || is_dots(to.name) {
            self.check_search(cred, from.dir)?;
            self.check_search(cred, to.dir)?;
            let exists = mode == RenameMode::NoReplace && !is_dots(from.name);
            return Err(if exists { Errno::EXIST } else { Errno::BUSY }.into());
        }
        self.check_capable(Capabilities::of_rename(mode), Errno::INVAL)?;
        self.check_writable()?;
        self.check_name(from.name)?;
        let (from_rights, to_rights) = (self.dir_rights(from.dir)?, self.dir_rights(to.dir)?);
        self.check(cred, from.dir, &from_rights, Access::X)?;
        self.check(cred, to.dir, &to_rights, Access::X)?;
        if let Err(error) = self.check_name(to.name) {
            self.fs.lookup(from.dir, from.name)?;
            return Err(error);
        }
        let changing = OnceCell::new();
        let note = |victim: &Rights| {
            if victim.kind == Kind::Dir {
                changing.get_or_init(|| self.layout.change());
            }
        };
        let across = from_rights.ino != to_rights.ino;
        if !across || cred.has(Caps::FOWNER | Caps::DAC_OVERRIDE) {
            let verdict = self.check(cred, from.dir, &from_rights, Access::W);
            // Where nothing may be renamed, the engine still says first what is there or not.
            let veto = |victim: &Rights| {
                verdict.clone()?;
                check_sticky(cred, &from_rights, victim)?;
                note(victim);
                Ok(())
            };
            return self.fs.rename(from, to, mode, &veto);
        }
        let moved = self.look(from)?;
        let replaced = self.look(to).ok();
        let verdict = self.check_across(
            cred,
            (from.dir, &from_rights, &moved),
            (to.dir, &to_rights, replaced.as_ref()),
            mode,
        );
        let moved = moved.1.ino;
        let replaced = replaced.map(|(_, rights)| rights.ino);
        // Which directory's rule applies depends on which of the two is asked about. Should a name
        // have come to mean another inode since, both rules apply, and a directory has to be the
        // caller's: strict, but never lax.
        let veto = |victim: &Rights| {
            verdict.clone()?;
            if Some(victim.ino) != replaced {
                check_sticky(cred, &from_rights, victim)?;
            }
            if victim.ino != moved {
                check_sticky(cred, &to_rights, victim)?;
            }
            let known = victim.ino == moved || Some(victim.ino) == replaced;
            if !known && victim.kind == Kind::Dir && !cred.owns(victim.uid) {
                return Err(Errno::ACCESS.into());
            }
            note(victim);
            Ok(())
        };
        self.fs.rename(from, to, mode, &veto)
    }

    /// Whether a name may move to another directory, and what it meets there give way. The order is
    /// Linux's.
    fn check_across(
        &self,
        cred: &Cred,
        (from, from_rights, moved): (&F::Node, &Rights, &Found<F>),
        (to, to_rights, replaced): (&F::Node, &Rights, Option<&Found<F>>),
        mode: RenameMode,
    ) -> Result<()> {
        self.check_leave(cred, (from, from_rights), Some(moved))?;
        self.check_leave(cred, (to, to_rights), replaced)?;
        let exchange = mode == RenameMode::Exchange;
        if let Some((_, victim)) = replaced
            && !exchange
            && moved.1.kind == Kind::Dir
            && victim.kind != Kind::Dir
        {
            return Err(Errno::NOTDIR.into());
        }
        self.check_reparent(cred, moved)?;
        match replaced {
            Some(other) if exchange => self.check_reparent(cred, other),
            _ => Ok(()),
        }
    }

    fn look(&self, at: Place<'_, F::Node>) -> Result<Found<F>> {
        let node = self.fs.lookup(at.dir, at.name)?;
        let rights = self.fs.rights(&node);
        Ok((node, rights))
    }

    /// Checks that names in the directory may change, and that this one may leave it.
    fn check_leave(
        &self,
        cred: &Cred,
        (dir, dir_rights): (&F::Node, &Rights),
        victim: Option<&Found<F>>,
    ) -> Result<()> {
        self.check(cred, dir, dir_rights, Access::W)?;
        victim.map_or(Ok(()), |(_, victim)| check_sticky(cred, dir_rights, victim))
    }

    /// Checks that the inode may get another parent: of a directory, that changes the contents.
    fn check_reparent(&self, cred: &Cred, (node, rights): &Found<F>) -> Result<()> {
        if rights.kind != Kind::Dir {
            return Ok(());
        }
        self.check(cred, node, rights, Access::W)
    }

    /// `ENOTDIR` unless it is a directory.
    pub(crate) fn check_dir(&self, node: &F::Node) -> Result<()> {
        if self.fs.kind(node) == Kind::Dir {
            Ok(())
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    /// The rights of a directory; else `ENOTDIR`.
    pub(super) fn dir_rights(&self, dir: &F::Node) -> Result<Rights> {
        let rights = self.fs.rights(dir);
        check_is_dir(&rights)?;
        Ok(rights)
    }

    /// Checks that the caller may make `name` in `dir`, which has these rights. A name that
    /// exists is `EEXIST` before it is `EACCES` or `EROFS`.
    fn check_new_name(
        &self,
        cred: &Cred,
        dir: &F::Node,
        dir_rights: &Rights,
        name: &[u8],
    ) -> Result<()> {
        if is_dots(name) {
            return Err(Errno::EXIST.into());
        }
        self.check_name(name)?;
        check_is_dir(dir_rights)?;
        let allowed = self
            .check_writable()
            .and_then(|()| self.check(cred, dir, dir_rights, DIR_ACCESS));
        if let Err(refusal) = allowed {
            let exists = self.lookup(cred, dir, name).is_ok();
            return Err(if exists { Errno::EXIST.into() } else { refusal });
        }
        Ok(())
    }

    /// Checks that the caller may remove `name` from `dir`, which has these rights. A name
    /// that does not exist is `ENOENT` before it is `EACCES`.
    fn check_old_name(
        &self,
        cred: &Cred,
        dir: &F::Node,
        dir_rights: &Rights,
        name: &[u8],
    ) -> Result<()> {
        self.check_writable()?;
        self.check_name(name)?;
        check_is_dir(dir_rights)?;
        if let Err(refusal) = self.check(cred, dir, dir_rights, DIR_ACCESS) {
            self.lookup(cred, dir, name)?;
            return Err(refusal);
        }
        Ok(())
    }

    /// Decides owner, group, mode and ACLs of a new inode and hands it to `make`.
    fn with_new(
        &self,
        cred: &Cred,
        dir: &F::Node,
        dir_rights: &Rights,
        asked: &NewNodeRequest<'_>,
        make: impl FnOnce(&NewNode<'_>) -> Result<F::Node>,
    ) -> Result<F::Node> {
        let set_gid = dir_rights.perm & 0o2000 != 0;
        let mut new = NewNode {
            kind: asked.kind,
            perm: 0o777,
            uid: cred.uid,
            gid: if set_gid { dir_rights.gid } else { cred.gid },
            xattrs: &[],
        };
        let kind = asked.kind.kind();
        if kind == Kind::Symlink {
            return make(&new);
        }
        let mut perm = asked.perm & 0o7777;
        // By what was asked for: whether umask or list leave group execute makes no difference.
        if perm & 0o010 != 0 && !cred.keeps_set_gid(new.gid) {
            perm &= !0o2000;
        }
        let own = |perm| match kind {
            // mkdir(2) takes no set-id bits, but directories hand down set-gid.
            Kind::Dir => perm & 0o1777 | dir_rights.perm & 0o2000,
            _ => perm,
        };
        let default = match dir_rights.has_xattrs {
            true => self.acl(dir, ACL_DEFAULT)?,
            false => None,
        };
        let Some(mut acl) = default else {
            new.perm = own(perm & !asked.umask);
            return make(&new);
        };
        let default = (kind == Kind::Dir).then(|| acl.to_xattr());
        new.perm = own(acl.inherit(perm));
        let access = (!acl.is_minimal()).then(|| acl.to_xattr());
        let mut xattrs: [(&[u8], &[u8]); 2] = [(b"", b""); 2];
        let mut count = 0;
        for (name, value) in [(ACL_ACCESS, &access), (ACL_DEFAULT, &default)] {
            if let Some(value) = value {
                xattrs[count] = (name, value);
                count += 1;
            }
        }
        new.xattrs = &xattrs[..count];
        make(&new)
    }
}

/// Whether it is `.` or `..`.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// `ENOTDIR` unless these are the rights of a directory.
fn check_is_dir(rights: &Rights) -> Result<()> {
    match rights.kind {
        Kind::Dir => Ok(()),
        _ => Err(Errno::NOTDIR.into()),
    }
}

/// Whether there is neither a slash nor a zero: eight bytes at a time, for this is asked often, and
/// of too few bytes for vectors to pay.
pub(super) fn can_be_name(name: &[u8]) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7) != 0;
    let (words, rest) = name.as_chunks();
    let bad_word = |bytes: &[u8; 8]| {
        let word = u64::from_le_bytes(*bytes);
        has_zero(word) | has_zero(word ^ (ONES * u64::from(b'/')))
    };
    !words.iter().any(bad_word) && !rest.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// Whether it can be the target of a symbolic link, of at most `max` bytes: else `ENOENT` or
/// `ENAMETOOLONG`, or `EINVAL` for a zero byte, which no caller in C could give.
pub(crate) fn check_target(target: &[u8], max: usize) -> Result<()> {
    match target.len() {
        0 => Err(Errno::NOENT.into()),
        len if len > max => Err(Errno::NAMETOOLONG.into()),
        _ if target.contains(&0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{can_be_name, check_target};
    use crate::Errno;

    #[test]
    fn a_target_has_no_zero_byte() {
        assert_eq!(check_target(b"a/b", 3), Ok(()));
        assert_eq!(check_target(b"a\0b", 3), Err(Errno::INVAL.into()));
        assert_eq!(check_target(b"a/bc", 3), Err(Errno::NAMETOOLONG.into()));
    }

    #[test]
    fn no_name_has_a_slash_or_a_zero_anywhere() {
        for len in 1..40 {
            let mut name: Vec<u8> = (0..len).map(|i| b'0' - 2 + i as u8).collect();
            name.iter_mut()
                .for_each(|byte| *byte += u8::from(*byte == b'/') * 128);
            assert!(can_be_name(&name), "{name:?}");
            for at in 0..len {
                for bad in [0, b'/'] {
                    let good = std::mem::replace(&mut name[at], bad);
                    assert!(!can_be_name(&name), "{name:?}");
                    name[at] = good;
                }
                for good in [1, b'/' - 1, b'/' + 1, b'/' + 128, 128, 255] {
                    let old = std::mem::replace(&mut name[at], good);
                    assert!(can_be_name(&name), "{name:?}");
                    name[at] = old;
                }
            }
        }
    }
}

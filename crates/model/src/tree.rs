//! All inodes and the names between them: what the mutex of a [`Model`](crate::Model) protects.
//!
//! Each operation first checks everything that can fail, in the order in which Linux does, and
//! then changes; so a failure changes nothing.

use std::collections::BTreeMap;

use vfs::{
    Errno, Ino, Kind, Limits, NewKind, NewNode, RenameMode, Result, Time, Veto, XATTR_NAME_MAX,
};

use crate::Options;
use crate::inode::{Body, Dir, Inode};

pub(crate) const ROOT: Ino = 1;

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) options: Options,
    inodes: BTreeMap<Ino, Inode>,
    next_ino: Ino,
}

impl Tree {
    pub(crate) fn new(options: Options, now: Time) -> Tree {
        let new = NewNode {
            kind: NewKind::Dir,
            perm: 0o755,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        let mut root = Inode::new(&new, ROOT, now);
        root.nlink = 2;
        Tree {
            options,
            inodes: BTreeMap::from([(ROOT, root)]),
            next_ino: ROOT + 1,
        }
    }

    pub(crate) fn find(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE.into())
    }

    /// The inode of a held node or an existing name: it exists.
    pub(crate) fn get(&self, ino: Ino) -> &Inode {
        self.inodes.get(&ino).expect("a held or named inode exists")
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> &mut Inode {
        self.inodes
            .get_mut(&ino)
            .expect("a held or named inode exists")
    }

    pub(crate) fn hold(&mut self, ino: Ino) {
        self.get_mut(ino).held += 1;
    }

    pub(crate) fn release(&mut self, ino: Ino) {
        self.get_mut(ino).held -= 1;
        self.free_if_unused(ino);
    }

    fn free_if_unused(&mut self, ino: Ino) {
        let inode = self.get(ino);
        if inode.held == 0 && inode.nlink == 0 {
            self.inodes.remove(&ino);
        }
    }

    /// How many inodes there are.
    pub(crate) fn inode_count(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Units of space in use: an inode is one, a block of contents is one.
    pub(crate) fn used(&self) -> u64 {
        let blocks = |inode: &Inode| inode.file().map_or(0, |contents| contents.blocks());
        self.inode_count() + self.inodes.values().map(blocks).sum::<u64>()
    }

    /// Units of space that are left.
    pub(crate) fn room(&self) -> u64 {
        match self.options.capacity {
            Some(capacity) => capacity.saturating_sub(self.used()),
            None => u64::MAX,
        }
    }

    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let dir = self.get(dir).dir()?;
        if name.len() > self.options.limits.name_max {
            return Err(Errno::NAMETOOLONG.into());
        }
        dir.get(name).ok_or(Errno::NOENT.into())
    }

    /// `dir` can take the new name `name`.
    fn may_add(&self, dir: Ino, name: &[u8]) -> Result<()> {
        match self.lookup(dir, name) {
            Ok(_) => Err(Errno::EXIST.into()),
            // Also what a removed directory answers; nothing may be made there.
            Err(error) if error.errno() == Errno::NOENT => self.get(dir).dir().map(|_| ()),
            Err(error) => Err(error),
        }
    }

    fn may_make(&self, new: &NewNode<'_>) -> Result<()> {
        if let NewKind::Symlink(target) = new.kind
            && target.len() > self.options.limits.symlink_max
        {
            return Err(Errno::NAMETOOLONG.into());
        }
        for (name, value) in new.xattrs {
            check_xattr(name, value, &self.options.limits)?;
        }
        if self.room() == 0 {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    fn insert(&mut self, inode: Inode) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    pub(crate) fn create(
        &mut self,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
        now: Time,
    ) -> Result<Ino> {
        self.may_add(dir, name)?;
        self.may_make(new)?;
        let is_dir = new.kind.kind() == Kind::Dir;
        if is_dir && self.get(dir).nlink >= self.options.limits.link_max {
            return Err(Errno::MLINK.into());
        }

        let mut inode = Inode::new(new, dir, now);
        inode.nlink = if is_dir { 2 } else { 1 };
        let ino = self.insert(inode);
        self.dir_mut(dir).set(name, ino);
        let parent = self.get_mut(dir);
        parent.nlink += u32::from(is_dir);
        parent.modified(now);
        Ok(ino)
    }

    pub(crate) fn tmpfile(&mut self, dir: Ino, new: &NewNode<'_>, now: Time) -> Result<Ino> {
        self.get(dir).dir()?;
        if new.kind != NewKind::File {
            return Err(Errno::INVAL.into());
        }
        self.may_make(new)?;
        let mut inode = Inode::new(new, dir, now);
        inode.nameless = true;
        Ok(self.insert(inode))
    }

    pub(crate) fn link(&mut self, ino: Ino, dir: Ino, name: &[u8], now: Time) -> Result<()> {
        self.may_add(dir, name)?;
        let inode = self.get(ino);
        if inode.kind() == Kind::Dir {
            return Err(Errno::PERM.into());
        }
        if inode.nlink == 0 && !inode.nameless {
            return Err(Errno::NOENT.into());
        }
        if inode.nlink >= self.options.limits.link_max {
            return Err(Errno::MLINK.into());
        }

        let inode = self.get_mut(ino);
        inode.nlink += 1;
        inode.nameless = false;
        inode.ctime = now;
        self.dir_mut(dir).set(name, ino);
        self.get_mut(dir).modified(now);
        Ok(())
    }

    pub(crate) fn unlink(
        &mut self,
        dir: Ino,
        name: &[u8],
        veto: Veto<'_>,
        now: Time,
    ) -> Result<()> {
        let ino = self.lookup(dir, name)?;
        veto(&self.get(ino).attr(ino).rights())?;
        if self.get(ino).kind() == Kind::Dir {
            return Err(Errno::ISDIR.into());
        }

        self.dir_mut(dir).remove(name);
        self.get_mut(dir).modified(now);
        self.drop_name(ino, now);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, dir: Ino, name: &[u8], veto: Veto<'_>, now: Time) -> Result<()> {
        let ino = self.lookup(dir, name)?;
        veto(&self.get(ino).attr(ino).rights())?;
        if !self.get(ino).dir()?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }

        self.dir_mut(dir).remove(name);
        let parent = self.get_mut(dir);
        parent.nlink -= 1;
        parent.modified(now);
        self.drop_name(ino, now);
        Ok(())
    }

    /// A name of `ino` is gone: for a directory, its only one.
    fn drop_name(&mut self, ino: Ino, now: Time) {
        let inode = self.get_mut(ino);
        inode.nlink = if inode.kind() == Kind::Dir {
            0
        } else {
            inode.nlink - 1
        };
        inode.ctime = now;
        self.free_if_unused(ino);
    }

    pub(crate) fn rename(
        &mut self,
        (from, name): (Ino, &[u8]),
        (to, new_name): (Ino, &[u8]),
        mode: RenameMode,
        veto: Veto<'_>,
        now: Time,
    ) -> Result<()> {
        for dir in [from, to] {
            if self.get(dir).kind() != Kind::Dir {
                return Err(Errno::NOTDIR.into());
            }
        }
        let moved = self.lookup(from, name)?;
        let target = match self.lookup(to, new_name) {
            Ok(ino) => Some(ino),
            Err(error) if error.errno() == Errno::NOENT => {
                self.get(to).dir()?;
                None
            }
            Err(error) => return Err(error),
        };
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            _ => {}
        }
        if self.is_below(to, moved) {
            return Err(Errno::INVAL.into());
        }
        if target.is_some_and(|target| self.is_below(from, target)) {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            }
            .into());
        }
        if target == Some(moved) {
            return Ok(());
        }
        veto(&self.get(moved).attr(moved).rights())?;
        if let Some(target) = target {
            veto(&self.get(target).attr(target).rights())?;
            if mode != RenameMode::Exchange {
                self.may_replace(moved, target)?;
            }
        }

        let subdirs = |ino: Option<Ino>| match ino {
            Some(ino) => u32::from(self.get(ino).kind() == Kind::Dir),
            None => 0,
        };
        let (moved_dirs, target_dirs) = (subdirs(Some(moved)), subdirs(target));
        if from != to {
            // Directories that arrive less those that leave.
            let back = if mode == RenameMode::Exchange {
                target_dirs
            } else {
                0
            };
            self.check_links(to, moved_dirs, target_dirs)?;
            self.check_links(from, back, moved_dirs)?;
        }

        if mode == RenameMode::Exchange {
            let target = target.expect("checked above: both names exist");
            self.place(from, name, target, target_dirs, moved_dirs);
            self.place(to, new_name, moved, moved_dirs, target_dirs);
            self.get_mut(target).ctime = now;
        } else {
            if mode == RenameMode::Whiteout {
                let whiteout = self.make_whiteout(now)?;
                self.place(from, name, whiteout, 0, moved_dirs);
            } else {
                self.dir_mut(from).remove(name);
                self.get_mut(from).nlink -= moved_dirs;
            }
            self.place(to, new_name, moved, moved_dirs, target_dirs);
            if let Some(target) = target {
                self.drop_name(target, now);
            }
        }
        self.get_mut(moved).ctime = now;
        self.get_mut(from).modified(now);
        self.get_mut(to).modified(now);
        Ok(())
    }

    /// Whether `ino` is `ancestor`, or lies below it.
    fn is_below(&self, mut ino: Ino, ancestor: Ino) -> bool {
        while ino != ancestor {
            match &self.get(ino).body {
                Body::Dir(dir) if ino != ROOT => ino = dir.parent,
                _ => return false,
            }
        }
        true
    }

    fn check_links(&self, dir: Ino, arriving: u32, leaving: u32) -> Result<()> {
        let nlink = u64::from(self.get(dir).nlink) + u64::from(arriving);
        if arriving > leaving && nlink > u64::from(self.options.limits.link_max) {
            return Err(Errno::MLINK.into());
        }
        Ok(())
    }

    fn may_replace(&self, moved: Ino, target: Ino) -> Result<()> {
        let (moved, target) = (self.get(moved), self.get(target));
        match (moved.kind() == Kind::Dir, target.kind() == Kind::Dir) {
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            (true, true) if !target.dir()?.is_empty() => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// Let `dir/name` refer to `ino`, whose part in the link count of `dir` is `arriving`, in
    /// place of something whose part was `leaving`.
    fn place(&mut self, dir: Ino, name: &[u8], ino: Ino, arriving: u32, leaving: u32) {
        self.dir_mut(dir).set(name, ino);
        let parent = self.get_mut(dir);
        parent.nlink = parent.nlink + arriving - leaving;
        if let Body::Dir(child) = &mut self.get_mut(ino).body {
            child.parent = dir;
        }
    }

    fn make_whiteout(&mut self, now: Time) -> Result<Ino> {
        let new = NewNode {
            kind: NewKind::CharDev(0),
            perm: 0,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        self.may_make(&new)?;
        let mut inode = Inode::new(&new, ROOT, now);
        inode.nlink = 1;
        Ok(self.insert(inode))
    }

    /// The names of a directory that the caller has checked to be one.
    fn dir_mut(&mut self, ino: Ino) -> &mut Dir {
        self.get_mut(ino)
            .dir_mut()
            .expect("the caller has checked that it is a directory")
    }
}

/// Name and value of an extended attribute are within their limits.
pub(crate) fn check_xattr(name: &[u8], value: &[u8], limits: &Limits) -> Result<()> {
    if value.len() > limits.xattr_size_max {
        return Err(Errno::TOOBIG.into());
    }
    check_xattr_name(name)
}

pub(crate) fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Errno::RANGE.into());
    }
    Ok(())
}

/// A further name of `added` bytes fits the list (each name is followed by a zero there).
pub(crate) fn check_xattr_list(
    xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
    added: usize,
    limits: &Limits,
) -> Result<()> {
    let listed: usize = xattrs.keys().map(|name| name.len() + 1).sum();
    if listed + added + 1 > limits.xattr_list_max {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

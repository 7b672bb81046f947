//! Names: looked up, made and removed.

use std::sync::Arc;

use vfs::{Attr, Errno, Error, Kind, NAME_MAX, NewKind, NewNode, Result, Time, Veto};

use crate::attributes::Attributes;
use crate::dir::{self, Changing, Found, Index, NOT_YET, NewName, Withdrawn};
use crate::fault::{Fault, unless};
use crate::inode::{Node, State};
use crate::layout::InodeFlags;
use crate::order::graph::On;
use crate::order::{Action, Leaving};
use crate::volume::Volume;

/// Most names of an inode.
pub const LINK_MAX: u16 = 32_000;

impl Volume {
    /// The entry of a name, `.` and `..` too. `ENOTDIR`, `ENAMETOOLONG`, `ENOENT`.
    pub(crate) fn find(&self, dir: &Node, name: &[u8]) -> Result<Found> {
        self.find_hashed(dir, (dir::hash(&self.hash_key, name), name))
    }

    /// The same, of a name that has this hash.
    fn find_hashed(&self, dir: &Node, name: (u64, &[u8])) -> Result<Found> {
        check_dir(dir)?;
        if name.1.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        {
            let state = dir.state.read();
            check_there(&state)?;
            if let Some(index) = &state.index {
                return index.find(&self.medium, &state.stored, name);
            }
        }
        let mut state = dir.state.write();
        let State { stored, index, .. } = &mut *state;
        let index = self.indexed(stored, index)?;
        index.find(&self.medium, stored, name)
    }

    fn indexed<'a>(
        &self,
        stored: &crate::image::StoredInode,
        index: &'a mut Option<Index>,
    ) -> Result<&'a mut Index> {
        if index.is_none() {
            *index = Some(Index::new(&self.medium, stored, &self.hash_key)?);
        }
        Ok(index.as_mut().expect("it was just read"))
    }

    /// The inode that a name refers to, and the name's entry.
    pub(crate) fn child(self: &Arc<Volume>, dir: &Node, name: &[u8]) -> Result<(Node, Found)> {
        let found = self.find(dir, name)?;
        let at = dir.state.read().stored.at;
        let damage = |what: String| {
            let what = format_args!("directory {}: {what}", dir.ino);
            self.medium.geometry.damage(at, what)
        };
        let ino = found.ino;
        let node = self.inode(ino, || {
            damage(format!("a name leads to inode {ino}, which is free"))
        })?;
        match found.kind {
            Some(kind) if kind != node.kind => Err(damage(format!(
                "a name says that inode {ino} is a {kind:?}, not a {:?}",
                node.kind
            ))),
            _ => Ok((node, found)),
        }
    }

    /// The directory above a directory.
    pub(crate) fn parent(self: &Arc<Volume>, dir: &Node) -> Result<Node> {
        let parent = match self.child(dir, b"..") {
            Err(Error::Errno(Errno::NOENT)) if dir.state.read().stored.attributes.links > 0 => None,
            Err(error) => return Err(error),
            Ok((parent, _)) => Some(parent),
        };
        parent
            .filter(|parent| parent.kind == Kind::Dir)
            .ok_or_else(|| {
                let what = format_args!("directory {}: '..' leads to no directory", dir.ino);
                self.medium
                    .geometry
                    .damage(dir.state.read().stored.at, what)
            })
    }

    /// Changes entries of a directory, and its times.
    pub(crate) fn change_dir<T>(
        &self,
        dir: &Node,
        change: impl FnOnce(&mut Changing<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change_dir_at(dir, Some(self.clock.now()), change)
    }

    /// The same where what a crash has left is mended: callers have changed nothing, so its times
    /// stay as they are.
    pub(crate) fn mend_dir<T>(
        &self,
        dir: &Node,
        change: impl FnOnce(&mut Changing<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change_dir_at(dir, None, change)
    }

    fn change_dir_at<T>(
        &self,
        dir: &Node,
        time: Option<Time>,
        change: impl FnOnce(&mut Changing<'_>) -> Result<T>,
    ) -> Result<T> {
        check_dir(dir)?;
        let mut state = dir.state.write();
        check_there(&state)?;
        let State { stored, index, .. } = &mut *state;
        let index = self.indexed(stored, index)?;
        let before = stored.attributes.clone();
        let done = change(&mut Changing {
            medium: &self.medium,
            alloc: &self.alloc,
            inode: stored,
            index,
        });
        if let (Ok(_), Some(time)) = (&done, time) {
            modified(&mut stored.attributes, time);
        }
        // It may have grown in vain. And the clock shows one time for as long as many changes take.
        if stored.attributes != before {
            self.store(stored)?;
        }
        done
    }

    /// Changes attributes of an inode.
    pub(crate) fn update(&self, node: &Node, change: impl FnOnce(&mut Attributes)) -> Result<Attr> {
        let mut state = node.state.write();
        change(&mut state.stored.attributes);
        self.store(&state.stored)?;
        Ok(state.attr())
    }

    /// A directory can take a new name: its hash. [`NOT_YET`], and what [`Volume::find`] says.
    fn may_add(&self, dir: &Node, name: &[u8]) -> Result<u64> {
        let hash = dir::hash(&self.hash_key, name);
        match self.find_hashed(dir, (hash, name)) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(Error::Errno(Errno::NOENT)) => self.may_take(dir, hash).map(|()| hash),
            Err(error) => Err(error),
        }
    }

    /// The same, of a name of this hash, which was looked for.
    pub(crate) fn may_take(&self, dir: &Node, hash: u64) -> Result<()> {
        let is_indexed = {
            let state = dir.state.read();
            check_there(&state)?;
            state.stored.attributes.flags.contains(InodeFlags::INDEX)
        };
        if is_indexed {
            dir::drop_index(&self.medium, &mut dir.state.write().stored)?;
        }
        let place = self.medium.place(dir.ino)?;
        match self.medium.order.may_take((dir.ino, hash), place) {
            true => Ok(()),
            false => Err(NOT_YET.into()),
        }
    }

    /// Makes an inode and names it.
    pub(crate) fn create(
        self: &Arc<Volume>,
        dir: &Node,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Node> {
        let _names = self.names.share();
        let _of_dir = dir.names.write();
        let hash = self.may_add(dir, name)?;
        let is_dir = new.kind.kind() == Kind::Dir;
        if is_dir && dir.state.read().stored.attributes.links >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }
        let node = self.make(new, dir.ino, if is_dir { 2 } else { 1 })?;
        let new = NewName {
            name,
            hash,
            ino: node.ino,
            kind: node.kind,
        };
        let named = self.change_dir(dir, |dir| {
            let after = self.count_child(dir, is_dir)?;
            let done = dir.insert(new, &after);
            if done.is_err() {
                dir.inode.attributes.links -= u16::from(is_dir);
            }
            done
        });
        if let Err(error) = named {
            // Dropped without names, it is freed.
            self.update(&node, |attributes| attributes.links = 0)?;
            return Err(error);
        }
        Ok(node)
    }

    /// Makes a file without a name.
    pub(crate) fn tmpfile(self: &Arc<Volume>, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        check_dir(dir)?;
        check_there(&dir.state.read())?;
        match new.kind {
            NewKind::File => self.make(new, dir.ino, 0),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Gives an inode a further name.
    pub(crate) fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        let _names = self.names.alone();
        let hash = self.may_add(dir, name)?;
        if node.kind == Kind::Dir {
            return Err(Errno::PERM.into());
        }
        {
            let state = node.state.read();
            match state.stored.attributes.links {
                0 if !state.is_tmpfile => return Err(Errno::NOENT.into()),
                LINK_MAX.. => return Err(Errno::MLINK.into()),
                _ => {}
            }
        }
        let new = NewName {
            name,
            hash,
            ino: node.ino,
            kind: node.kind,
        };
        self.update(node, |attributes| attributes.links += 1)?;
        if let Err(error) = self.change_dir(dir, |dir| dir.insert(new, &[])) {
            self.update(node, drop_link)?;
            return Err(error);
        }
        node.state.write().is_tmpfile = false;
        self.update(node, |attributes| attributes.ctime = self.clock.now())?;
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub(crate) fn unlink(
        self: &Arc<Volume>,
        dir: &Node,
        name: &[u8],
        veto: Veto<'_>,
    ) -> Result<()> {
        {
            let _names = self.names.share();
            let _of_dir = dir.names.write();
            let (node, found) = self.child(dir, name)?;
            if node.state.read().stored.attributes.links == 1 {
                return self.unlink_found(dir, (&node, &found), veto);
            }
        }
        let _names = self.names.alone();
        let (node, found) = self.child(dir, name)?;
        self.unlink_found(dir, (&node, &found), veto)
    }

    /// The same. Of an inode that has further names, this is called by who has all names alone.
    fn unlink_found(
        &self,
        dir: &Node,
        (node, found): (&Node, &Found),
        veto: Veto<'_>,
    ) -> Result<()> {
        veto(&node.state.read().attr().rights())?;
        if node.kind == Kind::Dir {
            return Err(Errno::ISDIR.into());
        }
        self.may_leave(dir, (node, found), (&[], &[]))?;
        let gone = self.change_dir(dir, |dir| dir.remove(found, &[]))?;
        self.drop_name(node, &gone)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(self: &Arc<Volume>, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        // These lead to no directory in this one: its lock would not come first.
        if !matches!(name, b"." | b"..") {
            let _names = self.names.share();
            let _of_dir = dir.names.write();
            let (node, found) = self.child(dir, name)?;
            // Not waited for: damage may have put a directory into itself, or into one below it.
            if let Some(_of_node) = node.names.try_write() {
                let pending = self.pending_if_empty(&node)?;
                if pending.is_empty() {
                    return self.rmdir_found(dir, (&node, &found), (&pending, veto));
                }
            }
        }
        let _names = self.names.alone();
        let (node, found) = self.child(dir, name)?;
        let pending = self.pending_if_empty(&node)?;
        self.rmdir_found(dir, (&node, &found), (&pending, veto))
    }

    /// Changes of names in a directory that is empty, if the disk does not have them.
    fn pending_if_empty(&self, node: &Node) -> Result<Vec<On>> {
        match node.kind == Kind::Dir && self.is_empty(node)? {
            true => dir::pending(&self.medium, &node.state.read().stored),
            false => Ok(Vec::new()),
        }
    }

    /// The same. Of a directory in which changes are pending, this is called by who has all names
    /// alone.
    fn rmdir_found(
        &self,
        dir: &Node,
        (node, found): (&Node, &Found),
        (pending, veto): (&[On], Veto<'_>),
    ) -> Result<()> {
        veto(&node.state.read().attr().rights())?;
        check_dir(node)?;
        if !self.is_empty(node)? {
            return Err(Errno::NOTEMPTY.into());
        }
        self.may_leave(dir, (node, found), (&[], pending))?;
        let gone = self.change_dir(dir, |dir| dir.remove(found, pending))?;
        self.drop_name(node, &gone)?;
        self.lower(dir, 1, &gone)
    }

    /// Something may lose its name, which was found in `dir`: the disk has no directory by that
    /// which callers do not see there, and of one that callers see no other name; what passed
    /// through the name is where it went; and it has not just changed places. Nor does what it goes
    /// behind wait for it: its other names, those of inodes `others`, and `after`. [`NOT_YET`].
    pub(crate) fn may_leave(
        &self,
        dir: &Node,
        (node, found): (&Node, &Found),
        behind: (&[u32], &[On]),
    ) -> Result<()> {
        let place = dir::place_of(&self.medium, &dir.state.read().stored, found)?;
        let leaving = Leaving {
            place,
            name: (dir.ino, found.hash),
            ino: node.ino,
            is_dir: node.kind == Kind::Dir,
            behind,
        };
        match self.medium.order.may_leave(&leaving) {
            true => Ok(()),
            false => Err(NOT_YET.into()),
        }
    }

    pub(crate) fn is_empty(&self, dir: &Node) -> Result<bool> {
        let mut state = dir.state.write();
        let State { stored, index, .. } = &mut *state;
        Ok(self.indexed(stored, index)?.is_empty())
    }

    /// A name of the inode is gone: of a directory the only one.
    pub(crate) fn drop_name(&self, node: &Node, gone: &Withdrawn) -> Result<()> {
        let now = self.clock.now();
        let by = match node.kind {
            Kind::Dir => node.state.read().stored.attributes.links,
            _ => 1,
        };
        self.lower_at(node, by, gone, |attributes| attributes.ctime = now)
    }

    /// Lowers the count of names that callers see. On disk it falls after what was counted is gone.
    pub(crate) fn lower(&self, node: &Node, by: u16, gone: &Withdrawn) -> Result<()> {
        self.lower_at(node, by, gone, |_| ())
    }

    /// The same, with another change of its attributes.
    fn lower_at(
        &self,
        node: &Node,
        by: u16,
        gone: &Withdrawn,
        change: impl FnOnce(&mut Attributes),
    ) -> Result<()> {
        let mut state = node.state.write();
        change(&mut state.stored.attributes);
        let links = &mut state.stored.attributes.links;
        // Damage may have counted too few.
        let by = by.min(*links);
        *links -= by;
        if gone.after().is_empty() || by == 0 {
            return self.store(&state.stored);
        }
        self.medium.order.raise(node.ino, by);
        self.store(&state.stored)?;
        self.lower_after(node, by, gone.after());
        Ok(())
    }

    /// By so many the count on disk exceeds what callers see, until conditions hold.
    pub(crate) fn lower_after(&self, node: &Node, by: u16, after: &[On]) {
        let action = Action::Lower { ino: node.ino, by };
        let after = unless(Fault::CountLowered, after);
        // Without an order the disk has the count that callers see.
        let _ = self.medium.order.after(&self.medium.cache, action, after);
    }

    /// A directory is going to have one more below it, if `is_child`. Its count says so on disk
    /// before.
    pub(crate) fn count_child(&self, dir: &mut Changing<'_>, is_child: bool) -> Result<Vec<On>> {
        if !is_child {
            return Ok(Vec::new());
        }
        let links = &mut dir.inode.attributes.links;
        *links = links.saturating_add(1);
        self.store(dir.inode)?;
        let place = [On::Place(self.medium.place(dir.inode.ino)?)];
        Ok(unless(Fault::NameBeforeCount, &place).to_vec())
    }
}

/// Counts a name less; damage may have counted too few.
pub(crate) fn drop_link(attributes: &mut Attributes) {
    attributes.links = attributes.links.saturating_sub(1);
}

/// The contents changed.
pub(crate) fn modified(attributes: &mut Attributes, now: Time) {
    (attributes.mtime, attributes.ctime) = (now, now);
}

pub(crate) fn check_dir(node: &Node) -> Result<()> {
    match node.kind {
        Kind::Dir => Ok(()),
        _ => Err(Errno::NOTDIR.into()),
    }
}

/// Of a directory that was removed: `ENOENT`.
pub(crate) fn check_there(state: &State) -> Result<()> {
    match state.stored.attributes.links {
        0 => Err(Errno::NOENT.into()),
        _ => Ok(()),
    }
}

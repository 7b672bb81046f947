//! Operations on names, in the latest view (SoupFS §3.6).
//!
//! Each is: lock the stripes of the names; check everything and take all space it needs, so that
//! what follows cannot fail; change the latest view and record the operations; unlock. Nothing is
//! flushed or fenced here.
//!
//! Lock order: moves of directories -> stripe of the parent -> stripes of a directory that is
//! removed -> slot of an inode -> body -> meta. A slot's lock is a leaf among slots: take no second
//! one while holding it. Of two parents the second is only tried for.

mod names;
mod new_inode;

pub(crate) use names::{NewName, Taken};

use crate::commit::capture::Pull;
use crate::dir::{self, Addition, entry};
use crate::fault::{Fault, injected};
use crate::inode::{Inode, Node};
use crate::inode_table::{Counted, Kept};
use crate::layout::{LINK_MAX, line_at};
use crate::mount::{SoupFs, load_named};
use crate::options::Mode;
use crate::slot::Blank;
use schedule::point;
use triomphe::Arc;
use vfs::{Errno, Error, Kind, NAME_MAX, NewKind, NewNode, Result, Veto};

/// Journal words of an inode that gets a further name: its count of links, and the time.
const LINK_WORDS: u64 = 2;

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

impl SoupFs {
    /// Find an inode by name, without locks.
    pub(crate) fn find(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let volume = &self.shared.volume;
        let (dir, name) = (dir.inode().dir()?, volume.hash.name(name));
        let expect = |ino| volume.inodes.expect_lookup(ino);
        dir.lookup(volume, name, expect, |ino, still_named| {
            let inode = match volume.geometry().holds_line(ino) {
                true => volume.inodes.get_or_load(ino, || {
                    // With the slot locked: if the name still stands then the inode is not
                    // freed.
                    let image = volume.image().inode(ino)?;
                    match still_named() {
                        true => load_named(&image),
                        false => Err(Errno::NOENT.into()),
                    }
                })?,
                false => return Err(Error::corrupt(0, format!("entry names inode {ino}"))),
            };
            Ok(Node::new(inode))
        })
    }

    /// Find the number of an inode by name, without locks: it will lose the name, probably.
    pub(crate) fn find_number(&self, dir: &Node, name: &[u8]) -> Result<u64> {
        check_name(name)?;
        let volume = &self.shared.volume;
        let (dir, name) = (dir.inode().dir()?, volume.hash.name(name));
        let expect = |ino| volume.inodes.expect_removal(ino);
        dir.lookup(volume, name, expect, |ino, _| Ok(ino))
    }

    /// After an operation: mark the directories dirty, slow down if need be, and in mode `sync`
    /// make it durable. `words`: what it may take in the journal, besides the directories' own.
    #[inline]
    pub(crate) fn changed(&self, dirs: &[(&Arc<Inode>, usize)], words: u64) -> Result<()> {
        let shared = &self.shared;
        for (i, (dir, _)) in dirs.iter().enumerate() {
            let words = if i == 0 { words } else { 0 };
            shared.persister.note(&shared.volume, dir, words)?;
        }
        match shared.options.mode {
            Mode::Sync => self.persist_names(dirs),
            Mode::Delayed | Mode::Strong => Ok(()),
        }
    }

    /// Make the changes of names in these stripes durable.
    #[cold]
    fn persist_names(&self, dirs: &[(&Arc<Inode>, usize)]) -> Result<()> {
        let pulls = dirs
            .iter()
            .map(|&(dir, stripe)| Pull::Stripe(dir.clone(), stripe));
        self.shared.persister.persist(&self.shared.volume, pulls)
    }

    /// Make an inode and name it.
    pub(crate) fn make(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        check_name(name)?;
        let (volume, parent) = (&self.shared.volume, dir.inode());
        let d = parent.dir()?;
        let name = volume.hash.name(name);
        let mut at = d.lock(name.hash);
        let memory = Blank::new(); // it comes while we look at the names
        let now = self.now(); // while the bucket comes
        if at.find(volume, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let is_dir = new.kind == NewKind::Dir;
        if is_dir && parent.nlink() >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }
        at.provide(volume, name.hash)?;
        let named = at.next_name(parent.ino);
        let (inode, line) = self.make_inode(memory, parent.ino, new, now, &[named])?;
        point("create: the name is announced");
        let placed = entry::fill(volume, line, &inode, name).and_then(|dentry| {
            let addition = Addition {
                dentry,
                child: inode.ino,
                tied: false,
            };
            at.insert(volume, name.hash, addition)
                .inspect_err(|_| entry::discard(volume, dentry))
        });
        if let Err(e) = placed {
            inode.lose_names(inode.nlink(), false);
            inode.meta.lock().adds.clear();
            self.lost_name(Counted(inode), None);
            return Err(e);
        }
        point("create: the name is recorded");
        if is_dir {
            parent.gain_name();
        }
        parent.attrs.touch(now);
        let (stripe, words) = (at.index(), at.charge());
        drop(at);
        point("create: not noted");
        self.changed(&[(parent, stripe)], words)?;
        Ok(Node::new(inode))
    }

    /// Make a file without a name.
    pub(crate) fn make_nameless(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        if dir::is_dead(dir.inode().dir()?) {
            return Err(Errno::NOENT.into());
        }
        let (inode, _) = self.make_inode(Blank::new(), 0, new, self.now(), &[])?;
        inode.lose_names(inode.nlink(), false);
        inode.meta.lock().make_rare().linkable = true;
        self.shared.persister.orphans.lock().push(inode.ino);
        Ok(Node::new(inode))
    }

    /// Give an inode a further name.
    pub(crate) fn add_link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let (volume, parent, child) = (&self.shared.volume, dir.inode(), node.inode());
        let d = parent.dir()?;
        let name = volume.hash.name(name);
        let mut at = d.lock(name.hash);
        if at.find(volume, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if child.kind == Kind::Dir {
            return Err(Errno::PERM.into());
        }
        at.provide(volume, name.hash)?;
        let line = entry::make(volume, child, name);
        if line.is_err() && injected(Fault::FailedLinkCounts) {
            child.gain_name();
        }
        let line = line?;
        // Counted and announced together: whoever takes another name away meanwhile leaves this one
        // (R1).
        let named = at.next_name(parent.ino);
        let counted = {
            let mut meta = child.meta.lock();
            let linkable = meta.rare().is_some_and(|rare| rare.linkable);
            let counted = child.try_gain_name(|n| n < LINK_MAX && (n > 0 || linkable));
            if counted.is_ok() {
                if !injected(Fault::Unannounced) {
                    meta.adds.push(named);
                }
                if let Some(rare) = meta.rare() {
                    rare.linkable = false;
                }
            }
            counted
        };
        if let Err(nlink) = counted {
            entry::discard(volume, line);
            return Err(if nlink == 0 {
                Errno::NOENT
            } else {
                Errno::MLINK
            }
            .into());
        }
        let new = NewName {
            announced: named,
            line,
            hash: name.hash,
            by_rename: false,
        };
        point("link: the name is announced");
        if let Err(e) = self.add_name(&mut at, child, &new) {
            child.meta.lock().adds.retain(|name| *name != named);
            child.lose_names(1, false);
            entry::discard(volume, line);
            return Err(e);
        }
        point("link: the name is recorded");
        let now = self.now();
        child.attrs.touch_ctime(now);
        parent.attrs.touch(now);
        let (stripe, words) = (at.index(), at.charge());
        drop(at);
        point("link: not noted");
        self.changed(&[(parent, stripe)], words + LINK_WORDS)
    }

    /// Remove a name that is not a directory's.
    pub(crate) fn remove_file(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.remove(dir, name, false, veto, SoupFs::hold)
    }

    /// Remove an empty directory.
    pub(crate) fn remove_dir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        let counted = |fs: &SoupFs, ino| fs.load(ino).map(Counted);
        self.remove(dir, name, true, veto, counted)
    }

    /// Remove a name; `directory` says which kind is meant. `keep` finds the inode that an entry
    /// names.
    fn remove<'a, K: Kept>(
        &'a self,
        dir: &Node,
        name: &[u8],
        directory: bool,
        veto: Veto<'_>,
        keep: impl FnOnce(&'a SoupFs, u64) -> Result<K>,
    ) -> Result<()> {
        check_name(name)?;
        let (volume, parent) = (&self.shared.volume, dir.inode());
        let d = parent.dir()?;
        let name = volume.hash.name(name);
        let mut at = d.lock(name.hash);
        let now = self.now(); // while the bucket comes
        let expect = |ino| volume.inodes.expect_removal(ino);
        let found = at.find_to_remove(volume, name, expect)?;
        let found = found.ok_or(Errno::NOENT)?;
        if found.ino == parent.ino {
            return Err(Error::corrupt(
                line_at(parent.ino),
                "a directory is in itself",
            ));
        }
        let child = keep(self, found.ino)?;
        veto(&child.rights())?;
        match (directory, child.kind == Kind::Dir) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, true) => self.kill(&child, parent)?,
            (false, false) => {}
        }
        point("unlink: the name stands");
        let taken = self.take_name(&mut at, parent.ino, &found, &child, false)?;
        point("unlink: the name is counted");
        let recorded = taken == Taken::Recorded;
        if directory {
            child.lose_names(child.nlink(), recorded);
            parent.lose_names(1, false);
        } else {
            child.lose_names(1, recorded);
        }
        point("unlink: times are old");
        self.name_changed(&child, now);
        parent.attrs.touch(now);
        let (stripe, words) = (at.index(), at.charge());
        drop(at);
        point("unlink: what it held is kept");
        self.lost_name(child, (!recorded).then_some(found.line));
        point("unlink: not noted");
        self.changed(&[(parent, stripe)], words)
    }
}

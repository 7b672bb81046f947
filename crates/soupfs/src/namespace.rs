//! Operations on names, in the latest view (SoupFS §3.6).
//!
//! Each is: lock the stripes of the names; check everything and take all space it needs, so that
//! what follows cannot fail; change the latest view and record the operations; unlock. Nothing is
//! flushed or fenced here.
//!
//! Lock order: `dir_moves` -> stripe of the parent -> stripes of a directory that is removed ->
//! slot of an inode -> body -> meta. Who has a slot takes no other. Of two parents the second is
//! only tried for.

use crate::attributes::Attributes;
use crate::commit::capture::Pull;
use crate::dir::{self, Addition, Dir, Found, Locked, PendingName, entry};
use crate::fault::{Fault, injected};
use crate::file::File;
use crate::inode::{Body, Inode, Node};
use crate::inode_state::{ANY, TIME};
use crate::inode_table::{Counted, Kept};
use crate::layout::{LINES_PER_PAGE, LINK_MAX, inode as layout, line_at, page_at};
use crate::mount::{SoupFs, load_named};
use crate::options::Mode;
use crate::slot::Blank;
use crate::volume::Volume;
use crate::xattr::Xattrs;
use schedule::{RwLock, point};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::{Arc, UniqueArc};
use vfs::{Errno, Error, Kind, NAME_MAX, NewKind, NewNode, PATH_MAX, Result, Time, Veto};

/// Journal words of an inode that gets a further name: its count of links, and the time.
const LINK_WORDS: u64 = 2;

fn free_runs(volume: &Volume, runs: Vec<Range<u64>>) {
    runs.into_iter()
        .for_each(|run| volume.alloc.free_pages(run));
}

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

/// What became of a name that was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Its removal is recorded.
    Recorded,
    /// Its addition was cancelled, before it was captured.
    Cancelled {
        /// The number of the addition.
        op: u64,
    },
}

/// A name that is given: announced, with its entry made and not inserted.
pub(crate) struct NewName {
    /// What its inode tells meanwhile.
    pub announced: PendingName,
    /// The entry.
    pub line: u64,
    /// The hash of the name.
    pub hash: u64,
    /// Part of a rename.
    pub by_rename: bool,
}

impl NewName {
    fn addition(&self, child: &Inode) -> Addition {
        Addition {
            dentry: self.line,
            child: child.ino,
            tied: self.by_rename,
        }
    }
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

    /// An inode that nothing refers to, in the table, and a line for an entry if it is born with
    /// names. Space is taken; an error leaves none taken.
    pub(crate) fn make_inode(
        &self,
        memory: Blank<Inode>,
        parent: u64,
        new: &NewNode<'_>,
        now: Time,
        names: &[PendingName],
    ) -> Result<(Arc<Inode>, u64)> {
        let volume = &self.shared.volume;
        let xattrs = match new.xattrs {
            [] => None,
            pairs => Some(Xattrs::fresh(volume, pairs)?),
        };
        let made = self.make_body(parent, new).and_then(|(body, size)| {
            let space = match names {
                [] => volume.alloc.inode().map(|identity| (identity, 0)),
                _ => (volume.alloc).inode_and_line(|ino| volume.inodes.expect_creation(ino)),
            };
            let (identity, line) = space.inspect_err(|_| self.drop_body(&body))?;
            let kind = new.kind.kind();
            let attributes = Attributes {
                perm: new.perm,
                nlink: if kind == Kind::Dir { 2 } else { 1 },
                uid: new.uid,
                gid: new.gid,
                size,
                pages: u64::from(kind == Kind::Symlink),
                ..Attributes::new(identity.ino, identity.generation, kind, now)
            };
            Ok((memory.fill(Inode::fresh(&attributes, body, names)), line))
        });
        match (made, xattrs) {
            (Ok((inode, line)), xattrs) => {
                if let Some(xattrs) = xattrs {
                    inode.attrs.pages.fetch_add(xattrs.pages() as i64, Relaxed);
                    inode.has_xattrs.store(true, Relaxed);
                    inode.meta.lock().make_rare().xattrs = Some(xattrs);
                }
                if let Err(e) = volume.inodes.insert(inode.clone()) {
                    // The pair is somebody else's, but nothing else is.
                    self.drop_body(&inode.body);
                    if let Some(x) = inode.meta.lock().rare().and_then(|r| r.xattrs.as_mut()) {
                        x.tear_down(volume);
                    }
                    if !names.is_empty() {
                        volume.alloc.free_line(line);
                    }
                    return Err(e);
                }
                Ok((inode, line))
            }
            (Err(e), Some(mut xattrs)) => {
                xattrs.tear_down(volume);
                Err(e)
            }
            (Err(e), None) => Err(e),
        }
    }

    fn make_body(&self, parent: u64, new: &NewNode<'_>) -> Result<(Body, u64)> {
        let volume = &self.shared.volume;
        Ok(match new.kind {
            NewKind::File => (Body::File(RwLock::new(File::fresh())), 0),
            NewKind::Dir => (Body::Dir(Dir::fresh(parent)), 0),
            NewKind::Symlink(target) => {
                if target.is_empty() {
                    return Err(Errno::NOENT.into());
                }
                if target.len() >= PATH_MAX {
                    return Err(Errno::NAMETOOLONG.into());
                }
                let page = volume.alloc.page()?;
                volume.pool.write(page_at(page), target);
                (Body::Symlink { page }, target.len() as u64)
            }
            NewKind::CharDev(rdev) | NewKind::BlockDev(rdev) => (Body::Special { rdev }, 0),
            NewKind::Fifo | NewKind::Socket => (Body::Special { rdev: 0 }, 0),
        })
    }

    fn drop_body(&self, body: &Body) {
        if let Body::Symlink { page } = body {
            self.shared.volume.alloc.free_pages(*page..page + 1);
        }
    }

    /// Free an inode that was taken out of the table while fresh, and lines: nothing on the medium
    /// leads to them.
    fn discard(&self, mut inode: UniqueArc<Inode>, lines: &[u64]) {
        let volume = &self.shared.volume;
        match &mut inode.body {
            Body::File(file) => {
                file.get_mut().tear_down(volume);
            }
            Body::Dir(dir) => free_runs(volume, dir.take_growth().1),
            body => self.drop_body(body),
        }
        if let Some(xattrs) = (inode.meta.get_mut().rare()).and_then(|rare| rare.xattrs.as_mut()) {
            xattrs.tear_down(volume);
        }
        volume.alloc.free(Some(inode.ino), lines);
    }

    /// Insert an entry and note the pending name with its inode, instead of the announced one.
    pub(crate) fn add_name(
        &self,
        at: &mut Locked<'_>,
        child: &Arc<Inode>,
        new: &NewName,
    ) -> Result<()> {
        let op = at.insert(&self.shared.volume, new.hash, new.addition(child))?;
        point("name: recorded and announced");
        let mut meta = child.meta.lock();
        meta.adds.retain(|name| *name != new.announced);
        meta.adds.push(new.announced.with_op(op));
        Ok(())
    }

    /// Take a name away: by an operation, whose removal the caller counts, or at once if the
    /// persister never saw it; then the caller frees the entry.
    pub(crate) fn take_name(
        &self,
        at: &mut Locked<'_>,
        dir: u64,
        found: &Found,
        child: &Arc<Inode>,
        by_rename: bool,
    ) -> Result<Taken> {
        let volume = &self.shared.volume;
        at.unlink(volume, found)?;
        point("name: gone and not recorded");
        match at.pending(volume, found.line) {
            Some(op) => {
                let pending = PendingName::new(dir, at.index(), op);
                at.cancel(pending, by_rename);
                child.meta.lock().adds.retain(|name| *name != pending);
                Ok(Taken::Cancelled { op })
            }
            None => {
                at.record_removal(found.line, child.ino, by_rename);
                Ok(Taken::Recorded)
            }
        }
    }

    /// A name of an inode went or moved. It may be that no operation is left which would bring the
    /// new time along, so the inode is marked, after it has it.
    pub(crate) fn name_changed(&self, inode: &Arc<Inode>, now: Time) {
        if inode.nlink() == 0 {
            return inode.attrs.touch_ctime(now); // its removal brings it along
        }
        {
            let _meta = inode.meta.lock(); // whoever captures it beside this sees the time, or the mark behind it
            inode.attrs.touch_ctime(now);
        }
        // A directory that moved has another parent, too.
        let what = if inode.kind == Kind::Dir { ANY } else { TIME };
        self.shared.persister.mark(inode, what, 0);
    }

    /// An inode lost a name, and an entry nothing leads to was freed with it or not. If the name
    /// was the last and nobody uses the inode, free it, too, or leave it to whoever can.
    pub(crate) fn lost_name(&self, inode: impl Kept, entry: Option<u64>) {
        let lines = entry.map_or_else(SmallVec::new, |line| {
            entry::lines(&self.shared.volume, line)
        });
        let (volume, persister, ino) = (&self.shared.volume, &self.shared.persister, inode.ino);
        if inode.is_nameless() {
            match inode.take_unused(&volume.inodes, |inode| {
                inode.is_fresh() && !inode.has_ties()
            }) {
                Some(inode) => return self.discard(inode, &lines),
                None => persister.orphans.lock().push(ino),
            }
        } else if inode.nlink() == 0 {
            let pages = inode.attrs.pages.load(Relaxed);
            persister.will_free(pages * LINES_PER_PAGE as i64 + layout::LINES as i64);
        }
        if !lines.is_empty() {
            volume.alloc.free(None, &lines);
        }
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
            Mode::Delayed => Ok(()),
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

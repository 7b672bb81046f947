//! Renames, in the latest view (SoupFS §3.6): the operations that change two names at once.
//!
//! Lookups wait while one changes the stripes, so they see both names before or both after it.

mod stripes;

use crate::dir::{self, Found, Locked, PendingName, entry};
use crate::fault::{Fault, injected};
use crate::inode::{Body, Inode, Node};
use crate::inode_table::Counted;
use crate::layout::{LINK_MAX, line_at};
use crate::mount::SoupFs;
use crate::namespace::{NewName, Taken, check_name};
use crate::slot::Blank;
use schedule::point;
use std::sync::atomic::Ordering::{Acquire, Release};
use stripes::{Side, Ties, TwoStripes, lock_two};
use triomphe::Arc;
use vfs::{Errno, Error, Kind, NewKind, NewNode, Place, RenameMode, Result, Time, Veto};

/// A rename that was asked for.
struct Rename<'a> {
    from: Side<'a>,
    to: Side<'a>,
    mode: RenameMode,
    veto: Veto<'a>,
}

impl Rename<'_> {
    /// Whether the names are in different directories.
    fn crosses(&self) -> bool {
        self.from.inode.ino != self.to.inode.ino
    }

    fn exchanges(&self) -> bool {
        self.mode == RenameMode::Exchange
    }
}

/// What the two names stand for before a rename.
struct Subjects {
    /// What is moved.
    child: Arc<Inode>,
    /// What is exchanged with it, or replaced.
    victim: Option<Arc<Inode>>,
}

fn is_dir(inode: &Inode) -> bool {
    inode.kind == Kind::Dir
}

impl Subjects {
    fn victim_dir(&self) -> Option<&Arc<Inode>> {
        self.victim.as_ref().filter(|victim| is_dir(victim))
    }

    /// What loses its name altogether.
    fn replaced(&self, rename: &Rename<'_>) -> Option<&Arc<Inode>> {
        self.victim.as_ref().filter(|_| !rename.exchanges())
    }

    /// Whether a directory gets another place.
    fn moves_dir(&self, rename: &Rename<'_>) -> bool {
        is_dir(&self.child) || rename.exchanges() && self.victim_dir().is_some()
    }
}

/// The entries that a rename makes. Nothing leads to them.
struct Entries {
    /// Under the new name.
    line: u64,
    /// Under the old name, and what it names: the exchanged inode, or a whiteout.
    back: Option<(u64, Arc<Inode>)>,
}

/// The names that a rename gives, as operations of its two stripes.
struct Announced {
    back: PendingName,
    new: PendingName,
}

impl Announced {
    /// Before the old names go: a batch that meets an inode now would find it without a pending
    /// name. It waits for these stripes instead, and then finds the names.
    fn announce(&self, child: &Inode, entries: &Entries) {
        let announce = |inode: &Inode, name| {
            if !injected(Fault::Unannounced) {
                inode.meta.lock().adds.push(name);
            }
        };
        announce(child, self.new);
        (entries.back.iter()).for_each(|(_, inode)| announce(inode, self.back));
    }

    /// The names will not be given: nobody is to wait for them.
    fn revoke(&self, child: &Inode, entries: &Entries) {
        let revoke = |inode: &Inode, name| inode.meta.lock().adds.retain(|n| *n != name);
        revoke(child, self.new);
        (entries.back.iter()).for_each(|(_, inode)| revoke(inode, self.back));
    }
}

impl SoupFs {
    /// Whether directory `above` is `below` or above it. Holds on only under `dir_moves`.
    fn is_above(&self, above: u64, below: &Arc<Inode>) -> Result<bool> {
        let mut at = below.clone();
        let root = self.shared.volume.superblock.root;
        // In a damaged image they may go in a circle: then one is met that was noted after a power
        // of two of steps.
        let (mut noted, mut steps) = (at.ino, 0u64);
        while at.ino != above {
            if at.ino == root {
                return Ok(false);
            }
            at = self.load_parent(&at)?;
            if at.ino == noted {
                return Err(Error::corrupt(
                    line_at(at.ino),
                    "a directory is below itself",
                ));
            }
            steps += 1;
            if steps.is_power_of_two() {
                noted = at.ino;
            }
        }
        Ok(true)
    }

    /// Declare a directory removed whose name in `parent` is locked: see [`dir::kill`].
    ///
    /// In a tree it may wait for the stripes, as who has one waits for nothing above it. In a
    /// damaged image two may be below each other, and two removals would wait for each other; so
    /// before it waits it looks, and that is an error.
    pub(crate) fn kill(&self, victim: &Arc<Inode>, parent: &Arc<Inode>) -> Result<()> {
        let dir = victim.dir()?;
        if dir::kill(dir, false)? {
            return Ok(());
        }
        let is_circle = || self.is_above(victim.ino, parent);
        if dir.parent.load(Acquire) == parent.ino && matches!(is_circle(), Ok(false)) {
            return dir::kill(dir, true).map(drop);
        }
        // Moves of directories meanwhile could make a tree look so, or as if it had a circle.
        match self.shared.dir_moves.try_lock() {
            None => Err(Errno::BUSY.into()),
            Some(_) if dir.parent.load(Acquire) == parent.ino && !is_circle()? => {
                Err(Errno::BUSY.into())
            }
            Some(_) => Err(Error::corrupt(
                line_at(victim.ino),
                "a directory is below itself, or not where it says",
            )),
        }
    }

    /// Move or exchange names.
    pub(crate) fn move_name(
        &self,
        from: &Place<'_, Node>,
        to: &Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        let rename = Rename {
            from: self.side(from)?,
            to: self.side(to)?,
            mode,
            veto,
        };
        // Only moves of directories between directories need the lock; whether this is one shows
        // when the names are locked, and may have changed since this look.
        let crosses = rename.crosses();
        let names_dir = |at: &Place<'_, Node>| {
            let found = self.find(at.dir, at.name);
            found.is_ok_and(|node| is_dir(node.inode()))
        };
        let mut is_dir_move = crosses && (names_dir(from) || rename.exchanges() && names_dir(to));
        loop {
            let guard = is_dir_move.then(|| self.shared.dir_moves.lock());
            let may_move_dir = guard.is_some() || !crosses;
            match self.try_move(&rename, may_move_dir)? {
                Some(()) => return Ok(()),
                None => is_dir_move = true,
            }
        }
    }

    fn side<'a>(&self, place: &Place<'a, Node>) -> Result<Side<'a>> {
        let inode = place.dir.inode();
        Ok(Side {
            inode,
            dir: inode.dir()?,
            name: self.shared.volume.hash.name(place.name),
        })
    }

    /// One attempt at a move; `None`: it moves a directory, and the caller does not hold the lock
    /// for that.
    fn try_move(&self, rename: &Rename<'_>, may_move_dir: bool) -> Result<Option<()>> {
        let Rename { from, to, mode, .. } = rename;
        point("rename: nothing is locked");
        let mut locks = lock_two(from, to);

        // Check.
        let subjects = self.find_subjects(rename, &mut locks)?;
        match (mode, &subjects.victim) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            (_, Some(victim)) if victim.ino == subjects.child.ino => return Ok(Some(())),
            _ => {}
        }
        if !may_move_dir && subjects.moves_dir(rename) {
            return Ok(None);
        }
        self.check_tree(rename, &subjects)?;
        check_kinds(rename, &subjects)?;
        check_links(rename, &subjects)?;

        // Take space.
        let now = self.now();
        let entries = self.make_entries(rename, &subjects, &mut locks, now)?;

        // Change the latest view.
        let announced = Announced {
            new: locks.to().next_name(to.inode.ino),
            back: locks.from().next_name(from.inode.ino),
        };
        announced.announce(&subjects.child, &entries);
        point("rename: the names are announced");
        let moved = self.move_entries(rename, &subjects, &entries, &announced, &mut locks);
        if let Err(e) = moved {
            // The image is damaged, so what was done so far stays.
            announced.revoke(&subjects.child, &entries);
            return Err(e);
        }
        point("rename: counts are old");
        self.account_move(rename, &subjects, now);
        let stripes = [
            (from.inode, locks.from().index()),
            (to.inode, locks.to().index()),
        ];
        let words = locks.from().charge() + locks.to().charge();
        drop(locks);
        point("rename: what was replaced is kept");
        let Subjects { victim, .. } = subjects;
        if let Some(replaced) = victim.filter(|_| !rename.exchanges()) {
            self.lost_name(Counted(replaced), None);
        }
        point("rename: not noted");
        self.changed(&stripes, words)?;
        Ok(Some(()))
    }

    /// What the names stand for.
    fn find_subjects(&self, rename: &Rename<'_>, locks: &mut TwoStripes<'_>) -> Result<Subjects> {
        let volume = &self.shared.volume;
        let expect = |ino| volume.inodes.expect_removal(ino);
        let (old, new) = (rename.from.name, rename.to.name);
        let source = locks.from().find_to_remove(volume, old, expect)?;
        let source = source.ok_or(Errno::NOENT)?;
        let target = locks.to().find_to_remove(volume, new, expect)?;
        Ok(Subjects {
            child: self.load(source.ino)?,
            victim: target.map(|target| self.load(target.ino)).transpose()?,
        })
    }

    /// Whether the tree stays one.
    fn check_tree(&self, rename: &Rename<'_>, subjects: &Subjects) -> Result<()> {
        let (from, to) = (rename.from.inode, rename.to.inode);
        let crosses = rename.crosses();
        if crosses && is_dir(&subjects.child) && self.is_above(subjects.child.ino, to)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(victim) = subjects.victim_dir().filter(|_| crosses)
            && self.is_above(victim.ino, from)?
        {
            // It holds the source, so it is neither empty nor can it go below itself.
            return Err(match rename.exchanges() {
                true => Errno::INVAL.into(),
                false => Errno::NOTEMPTY.into(),
            });
        }
        match subjects.replaced(rename) {
            // Above the source it would hold it; so it is in itself.
            Some(victim) if victim.ino == to.ino || victim.ino == from.ino => Err(Error::corrupt(
                line_at(victim.ino),
                "a directory is in itself",
            )),
            _ => Ok(()),
        }
    }

    /// Make the entries, and declare a directory that is replaced removed. An error leaves nothing
    /// taken.
    fn make_entries(
        &self,
        rename: &Rename<'_>,
        subjects: &Subjects,
        locks: &mut TwoStripes<'_>,
        now: Time,
    ) -> Result<Entries> {
        let (volume, to) = (&self.shared.volume, &rename.to);
        locks.to().provide(volume, to.name.hash)?;
        let line = entry::make(volume, &subjects.child, to.name)?;
        let back = self
            .entry_for_old_name(rename, subjects.victim.as_ref(), locks, now)
            .inspect_err(|_| entry::discard(volume, line))?;
        let is_replaced = subjects.replaced(rename).is_some();
        if let Some(victim) = subjects.victim_dir().filter(|_| is_replaced)
            && let Err(e) = self.kill(victim, to.inode)
        {
            entry::discard(volume, line);
            if let Some((line, whiteout)) = back {
                entry::discard(volume, line);
                self.forget_whiteout(whiteout);
            }
            return Err(e);
        }
        Ok(Entries { line, back })
    }

    /// What stands under the old name afterwards: the exchanged inode, a whiteout, or nothing.
    fn entry_for_old_name(
        &self,
        rename: &Rename<'_>,
        victim: Option<&Arc<Inode>>,
        locks: &mut TwoStripes<'_>,
        now: Time,
    ) -> Result<Option<(u64, Arc<Inode>)>> {
        let (volume, from) = (&self.shared.volume, &rename.from);
        let inode = match (rename.mode, victim) {
            (RenameMode::Exchange, Some(victim)) => victim.clone(),
            (RenameMode::Whiteout, _) => {
                let new = NewNode {
                    kind: NewKind::CharDev(0),
                    perm: 0,
                    uid: 0,
                    gid: 0,
                    xattrs: &[],
                };
                self.make_inode(Blank::new(), from.inode.ino, &new, now, &[])?
                    .0
            }
            _ => return Ok(None),
        };
        let line = locks
            .from()
            .provide(volume, from.name.hash)
            .and_then(|()| entry::make(volume, &inode, from.name));
        match line {
            Ok(line) => Ok(Some((line, inode))),
            Err(e) => {
                if rename.mode == RenameMode::Whiteout {
                    self.forget_whiteout(inode);
                }
                Err(e)
            }
        }
    }

    fn forget_whiteout(&self, whiteout: Arc<Inode>) {
        whiteout.lose_names(whiteout.nlink(), false);
        self.lost_name(Counted(whiteout), None);
    }

    /// Change the latest view; lookups wait meanwhile. It fails only if the image is damaged.
    fn move_entries(
        &self,
        rename: &Rename<'_>,
        subjects: &Subjects,
        entries: &Entries,
        announced: &Announced,
        locks: &mut TwoStripes<'_>,
    ) -> Result<()> {
        let (volume, from, to) = (&self.shared.volume, &rename.from, &rename.to);
        let Subjects { child, victim } = subjects;
        locks.from().exclusive();
        locks.to().exclusive();
        // Found anew, here and below: what was done since may have changed what is before it.
        let source = locks.from().find(volume, from.name)?;
        let source = source.ok_or(Errno::NOENT)?;
        let source = self.take_moved(locks.from(), from.inode.ino, &source, child)?;
        let mut target = None;
        if let Some(victim) = victim {
            let found = locks.to().find(volume, to.name)?;
            let found = found.ok_or(Errno::NOENT)?;
            target = Some(self.take_moved(locks.to(), to.inode.ino, &found, victim)?);
        }
        point("rename: the old names are taken");
        let ties = Ties::of(locks, source, target, entries.back.is_some());
        if let Some((line, inode)) = &entries.back {
            let back = NewName {
                announced: announced.back,
                line: *line,
                hash: from.name.hash,
                by_rename: true,
            };
            self.add_name(locks.from(), inode, &back)?;
        }
        let new = NewName {
            announced: announced.new,
            line: entries.line,
            hash: to.name.hash,
            by_rename: true,
        };
        self.add_name(locks.to(), child, &new)?;
        point("rename: not tied");
        ties.record(locks, from.inode.ino, to.inode.ino);
        Ok(())
    }

    /// Take a name away for a rename.
    fn take_moved(
        &self,
        at: &mut Locked<'_>,
        dir: u64,
        found: &Found,
        child: &Arc<Inode>,
    ) -> Result<Taken> {
        let taken = self.take_name(at, dir, found, child, true)?;
        match taken {
            Taken::Recorded => child.lose_names(0, true),
            Taken::Cancelled { .. } => entry::discard(&self.shared.volume, found.line),
        }
        Ok(taken)
    }

    /// Link counts, parents and times after a move.
    fn account_move(&self, rename: &Rename<'_>, subjects: &Subjects, now: Time) {
        let (from, to) = (rename.from.inode, rename.to.inode);
        let reparent = |inode: &Arc<Inode>, old: &Inode, new: &Inode| {
            if let Body::Dir(dir) = &inode.body
                && old.ino != new.ino
            {
                dir.parent.store(new.ino, Release);
                old.lose_names(1, false);
                new.gain_name();
                self.shared.persister.moves.lock().push(inode.clone());
            }
        };
        let Subjects { child, victim } = subjects;
        reparent(child, from, to);
        if let Some(victim) = victim {
            if rename.exchanges() {
                reparent(victim, to, from);
            } else if is_dir(victim) {
                victim.lose_names(victim.nlink(), false);
                to.lose_names(1, false);
            } else {
                victim.lose_names(1, false);
            }
            self.name_changed(victim, now);
        }
        self.name_changed(child, now);
        from.attrs.touch(now);
        to.attrs.touch(now);
    }
}

/// Whether the caller may move what it moves, and one may stand in the place of the other.
fn check_kinds(rename: &Rename<'_>, subjects: &Subjects) -> Result<()> {
    let Subjects { child, victim } = subjects;
    (rename.veto)(&child.rights())?;
    let Some(victim) = victim else {
        return Ok(());
    };
    (rename.veto)(&victim.rights())?;
    match (is_dir(child), is_dir(victim)) {
        (true, false) if !rename.exchanges() => Err(Errno::NOTDIR.into()),
        (false, true) if !rename.exchanges() => Err(Errno::ISDIR.into()),
        _ => Ok(()),
    }
}

/// Whether a directory that gets a subdirectory may have one more.
fn check_links(rename: &Rename<'_>, subjects: &Subjects) -> Result<()> {
    let (moves, meets) = (is_dir(&subjects.child), subjects.victim_dir().is_some());
    let is_full = |dir: &Inode, comes: bool, goes: bool| comes && !goes && dir.nlink() >= LINK_MAX;
    let to_is_full = is_full(rename.to.inode, moves, meets);
    let from_is_full = rename.exchanges() && is_full(rename.from.inode, meets, moves);
    match rename.crosses() && (to_is_full || from_is_full) {
        true => Err(Errno::MLINK.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::LINK_MAX;
    use crate::testing::{ends_clean, mounted, new};
    use vfs::{Errno, FileSystem, NewKind, Place, RenameMode, Result};

    #[test]
    fn a_directory_gets_no_more_subdirectories_than_it_may_have() -> Result<()> {
        let (pool, fs) = mounted();
        let root = fs.root();
        let full = fs.create(&root, b"full", &new(NewKind::Dir))?;
        let other = fs.create(&root, b"other", &new(NewKind::Dir))?;
        for dir in [&full, &other] {
            fs.create(dir, b"dir", &new(NewKind::Dir))?;
            fs.create(dir, b"file", &new(NewKind::File))?;
        }
        let missing = LINK_MAX - full.inode().nlink();
        (0..missing).for_each(|_| full.inode().gain_name());
        let exchange = |a: (_, &str), b: (_, &str)| {
            let (mode, veto) = (RenameMode::Exchange, &|_: &vfs::Rights| Ok(()));
            let moved = fs.rename(
                Place::new(a.0, a.1.as_bytes()),
                Place::new(b.0, b.1.as_bytes()),
                mode,
                veto,
            );
            moved.map_err(|e| e.errno())
        };
        assert_eq!(exchange((&full, "dir"), (&other, "dir")), Ok(()));
        assert_eq!(
            exchange((&other, "dir"), (&full, "file")),
            Err(Errno::MLINK)
        );
        assert_eq!(
            exchange((&full, "file"), (&other, "dir")),
            Err(Errno::MLINK)
        );
        assert_eq!(exchange((&full, "dir"), (&other, "file")), Ok(()));
        full.inode().lose_names(missing, false);
        drop((root, full, other));
        ends_clean(&pool, fs);
        Ok(())
    }
}

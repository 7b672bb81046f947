//! Renames, in the latest view (SoupFS §3.6): the operations that change two names at once.
//!
//! Lookups wait while one changes the stripes, so they see both names before or both after it.
//!
//! A rename locks the stripes of its names, looks what they stand for, checks, takes space, changes
//! the latest view, and counts. `stripes` locks and ties; `checks`, `entries` and `moves` are the
//! steps, in this order; `ancestry` knows what is above what.

mod ancestry;
mod checks;
mod entries;
mod moves;
mod stripes;

use crate::inode::{Inode, Node};
use crate::inode_table::Counted;
use crate::mount::SoupFs;
use crate::namespace::check_name;
use checks::check_presence;
use schedule::point;
use stripes::{Side, TwoStripes, lock_two};
use triomphe::Arc;
use vfs::{Errno, Kind, Place, RenameMode, Result, Veto};

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
    /// Whether both names are the same inode's: then there is nothing to do.
    fn are_one(&self) -> bool {
        (self.victim.as_ref()).is_some_and(|victim| victim.ino == self.child.ino)
    }

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

impl SoupFs {
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
        point("rename: nothing is locked");
        let mut locks = lock_two(&rename.from, &rename.to);
        let subjects = self.find_subjects(rename, &mut locks)?;
        check_presence(rename, &subjects)?;
        if subjects.are_one() {
            return Ok(Some(()));
        }
        if !may_move_dir && subjects.moves_dir(rename) {
            return Ok(None);
        }
        self.check_rename(rename, &subjects)?;

        let now = self.now();
        let entries = self.make_entries(rename, &subjects, &mut locks, now)?;
        // Space is taken: from here on only damage is an error.
        self.change_view(rename, &subjects, &entries, &mut locks)?;
        point("rename: counts are old");
        self.account_move(rename, &subjects, now);
        self.end_move(rename, subjects, locks).map(Some)
    }

    /// Give the locks back, give up what was replaced, and note what is pending.
    fn end_move(
        &self,
        rename: &Rename<'_>,
        subjects: Subjects,
        mut locks: TwoStripes<'_>,
    ) -> Result<()> {
        let stripes = [
            (rename.from.inode, locks.from().index()),
            (rename.to.inode, locks.to().index()),
        ];
        let words = locks.from().charge() + locks.to().charge();
        drop(locks);
        point("rename: what was replaced is kept");
        let Subjects { victim, .. } = subjects;
        if let Some(replaced) = victim.filter(|_| !rename.exchanges()) {
            self.lost_name(Counted(replaced), None);
        }
        point("rename: not noted");
        self.changed(&stripes, words)
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
}

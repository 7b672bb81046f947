//! Renames, in the latest view (SoupFS §3.6): the operations that change two names at once.
//!
//! Lookups wait while one changes the stripes, so they see both names before or both after it.
//!
//! A rename locks the stripes of its names, looks what they stand for, checks, takes space, changes
//! the latest view, and counts. `stripes` locks and ties; `checks`, `entries` and `moves` are the
//! steps, in this order; `ancestry` knows what is above what, and `moving` keeps it so.

mod ancestry;
mod checks;
mod entries;
mod moves;
mod moving;
mod stripes;

use crate::inode::{Inode, Node};
use crate::inode_table::Counted;
use crate::mount::SoupFs;
use crate::namespace::check_name;
use checks::check_presence;
pub(crate) use moving::{Moves, Moving, moves};
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

    /// Directories that get another place, or lose theirs to one.
    fn moved_dirs(&self, rename: &Rename<'_>) -> impl Iterator<Item = &Arc<Inode>> {
        let moves = is_dir(&self.child) || rename.exchanges();
        let child = Some(&self.child).filter(|child| is_dir(child));
        child.into_iter().chain(self.victim_dir().filter(|_| moves))
    }
}

impl SoupFs {
    /// Move or exchange names. In mode `strong` the request has begun the moves of directories.
    pub(crate) fn move_name(
        &self,
        from: &Place<'_, Node>,
        to: &Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
        moving: Option<&Moving<'_>>,
    ) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        let rename = Rename {
            from: self.side(from)?,
            to: self.side(to)?,
            mode,
            veto,
        };
        // What moves shows when the names are locked, and may have changed since this look.
        loop {
            let own = match self.gate().is_there() {
                true => None,
                false => self.begin_moves(&self.moves_of(from, to, mode))?,
            };
            if let Some(()) = self.try_move(&rename, own.as_ref().or(moving))? {
                return Ok(());
            }
        }
    }

    /// What a rename would move between directories, if the names stand for what they do now.
    fn moves_of<'a>(
        &self,
        from: &Place<'a, Node>,
        to: &Place<'a, Node>,
        mode: RenameMode,
    ) -> Moves<'a> {
        let find = |at: &Place<'_, Node>| self.find(at.dir, at.name).ok();
        let crosses = from.dir.inode().ino != to.dir.inode().ino;
        let child = crosses.then(|| find(from)).flatten();
        // What a file replaces does not move: most renames look no further.
        let moves_dir = child.as_ref().is_some_and(|node| is_dir(node.inode()));
        let exchanges = crosses && mode == RenameMode::Exchange;
        if !(moves_dir || exchanges) {
            return Moves::new();
        }
        moves([from.dir, to.dir], [child.as_ref(), find(to).as_ref()])
    }

    fn side<'a>(&self, place: &Place<'a, Node>) -> Result<Side<'a>> {
        let inode = place.dir.inode();
        Ok(Side {
            inode,
            dir: inode.dir()?,
            name: self.shared.volume.hash.name(place.name),
        })
    }

    /// One attempt at a move; `None`: it moves a directory between directories, and that has not
    /// begun.
    fn try_move(&self, rename: &Rename<'_>, moving: Option<&Moving<'_>>) -> Result<Option<()>> {
        point("rename: nothing is locked");
        let mut locks = lock_two(&rename.from, &rename.to);
        let subjects = self.find_subjects(rename, &mut locks)?;
        check_presence(rename, &subjects)?;
        if subjects.are_one() {
            return Ok(Some(()));
        }
        let has_begun = |dir: &Arc<Inode>| moving.is_some_and(|m| m.is_above(dir.ino).is_some());
        if rename.crosses() && !subjects.moved_dirs(rename).all(has_begun) {
            return Ok(None);
        }
        self.check_rename(rename, &subjects, moving)?;

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

//! What a rename checks before it takes space or changes anything.

use super::moving::Moving;
use super::{Rename, Subjects, is_dir};
use crate::inode::Inode;
use crate::layout::{LINK_MAX, line_at};
use crate::mount::SoupFs;
use triomphe::Arc;
use vfs::{Errno, Error, RenameMode, Result};

/// Whether the mode wants something under the new name, or nothing.
pub(super) fn check_presence(rename: &Rename<'_>, subjects: &Subjects) -> Result<()> {
    match (rename.mode, &subjects.victim) {
        (RenameMode::NoReplace, Some(_)) => Err(Errno::EXIST.into()),
        (RenameMode::Exchange, None) => Err(Errno::NOENT.into()),
        _ => Ok(()),
    }
}

impl SoupFs {
    /// All else, in the order in which the errors come before each other.
    pub(super) fn check_rename(
        &self,
        rename: &Rename<'_>,
        subjects: &Subjects,
        moving: Option<&Moving<'_>>,
    ) -> Result<()> {
        self.check_tree(rename, subjects, moving)?;
        check_kinds(rename, subjects)?;
        check_links(rename, subjects)
    }

    /// Whether the tree stays one.
    fn check_tree(
        &self,
        rename: &Rename<'_>,
        subjects: &Subjects,
        moving: Option<&Moving<'_>>,
    ) -> Result<()> {
        let (from, to) = (rename.from.inode, rename.to.inode);
        // Of what is not moving it matters for the error alone.
        let is_above = |dir: &Inode, other: &Arc<Inode>| {
            let known = moving.and_then(|moving| moving.is_above(dir.ino));
            known.map_or_else(|| self.is_above(dir.ino, other), Ok)
        };
        let crosses = rename.crosses();
        if crosses && is_dir(&subjects.child) && is_above(&subjects.child, to)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(victim) = subjects.victim_dir().filter(|_| crosses)
            && is_above(victim, from)?
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

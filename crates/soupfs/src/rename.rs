//! Renames, in the latest view (SoupFS §3.6): the operations that change two names at once.
//!
//! Lookups wait while one changes the stripes, so they see both names before or both after it.

use crate::dir::{self, Dir, Found, Locked, PendingName};
use crate::inode::{Inode, Node};
use crate::inode_table::Counted;
use crate::layout::{LINK_MAX, line_at};
use crate::mount::SoupFs;
use crate::namespace::{Taken, check_name};
use crate::slot::Blank;
use schedule::point;
use std::sync::atomic::Ordering::{Acquire, Release};
use triomphe::Arc;
use vfs::{Errno, Error, Kind, NewKind, NewNode, RenameMode, Result, Time, Veto};

/// Stripes locked for a rename; the second is absent when both names are in one stripe.
struct TwoStripes<'a> {
    first: Locked<'a>,
    second: Option<Locked<'a>>,
}

impl<'a> TwoStripes<'a> {
    fn from(&mut self) -> &mut Locked<'a> {
        &mut self.first
    }

    fn to(&mut self) -> &mut Locked<'a> {
        self.second.as_mut().unwrap_or(&mut self.first)
    }
}

/// Lock the stripes of two names. Neither lock is waited for with the other held, except in one
/// directory, by number: so no order between directories is needed.
fn lock_two<'a>(from: &'a Dir, hash: u64, to: &'a Dir, new_hash: u64) -> TwoStripes<'a> {
    let stripe = |hash: u64| (hash % dir::STRIPES as u64) as usize;
    let (a, b) = (stripe(hash), stripe(new_hash));
    if std::ptr::eq(from, to) {
        if a == b {
            return TwoStripes {
                first: from.lock_stripe(a),
                second: None,
            };
        }
        if a > b {
            let second = Some(to.lock_stripe(b));
            return TwoStripes {
                first: from.lock_stripe(a),
                second,
            };
        }
        return TwoStripes {
            first: from.lock_stripe(a),
            second: Some(to.lock_stripe(b)),
        };
    }
    loop {
        let first = from.lock_stripe(a);
        if let Some(second) = to.try_lock_stripe(b) {
            return TwoStripes {
                first,
                second: Some(second),
            };
        }
        drop(first);
        let second = to.lock_stripe(b);
        if let Some(first) = from.try_lock_stripe(a) {
            return TwoStripes {
                first,
                second: Some(second),
            };
        }
    }
}

/// What ties the halves of a rename, so that they are captured together (R2), and with what was
/// there before: what is captured of a name that was given and never captured goes where this
/// rename takes it (R8).
struct Ties {
    source: Taken,
    target: Option<Taken>,
    /// Something was put under the old name.
    back: bool,
    /// What was done before in the old name's stripe must not be missing.
    bound: bool,
}

impl Ties {
    /// To be called when the old names are taken, and the new ones not given yet.
    fn of(locks: &mut TwoStripes<'_>, source: Taken, target: Option<Taken>, back: bool) -> Ties {
        Ties {
            source,
            target,
            back,
            bound: locks.from().is_bound(),
        }
    }

    /// All operations of the rename are recorded, both stripes are still locked.
    fn record(self, locks: &mut TwoStripes<'_>, from: u64, to: u64) {
        let end = locks.to().next_name(to);
        let mut other = end;
        if locks.second.is_some() {
            let old = locks.from().next_name(from);
            match self.source {
                Taken::Cancelled { op } if !self.back => {
                    if self.bound {
                        other = old.with_op(op);
                    }
                }
                _ => {
                    other = old;
                    locks.from().tie(end);
                }
            }
        }
        locks.to().tie(other);
        if let Taken::Cancelled { op } = self.source {
            locks.from().moved_on(op, end);
        }
        if let Some(Taken::Cancelled { op }) = self.target {
            locks.to().moved_on(op, end);
        }
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
        from: &Node,
        name: &[u8],
        to: &Node,
        new_name: &[u8],
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let crosses = from.inode().ino != to.inode().ino;
        // Only moves of directories between directories need the lock; whether this is one shows
        // when the names are locked, and may have changed since this look.
        let mut is_dir_move = crosses
            && (self
                .find(from, name)
                .is_ok_and(|n| n.inode().kind == Kind::Dir)
                || (mode == RenameMode::Exchange
                    && self
                        .find(to, new_name)
                        .is_ok_and(|n| n.inode().kind == Kind::Dir)));
        loop {
            let guard = is_dir_move.then(|| self.shared.dir_moves.lock());
            match self.try_move(
                from,
                name,
                to,
                new_name,
                mode,
                veto,
                guard.is_some() || !crosses,
            )? {
                Some(()) => return Ok(()),
                None => is_dir_move = true,
            }
        }
    }

    /// One attempt at a move; `None`: it moves a directory, and the caller does not hold the lock
    /// for that.
    #[allow(clippy::too_many_arguments)]
    fn try_move(
        &self,
        from: &Node,
        name: &[u8],
        to: &Node,
        new_name: &[u8],
        mode: RenameMode,
        veto: Veto<'_>,
        may_move_dir: bool,
    ) -> Result<Option<()>> {
        let volume = &self.shared.volume;
        let (from, to) = (from.inode(), to.inode());
        let (from_dir, to_dir) = (from.dir()?, to.dir()?);
        let (hash, new_hash) = (volume.hash.hash(name), volume.hash.hash(new_name));
        point("rename: nothing is locked");
        let mut locks = lock_two(from_dir, hash, to_dir, new_hash);

        // Check.
        let source = locks.from().find(volume, hash, name)?.ok_or(Errno::NOENT)?;
        let target = locks.to().find(volume, new_hash, new_name)?;
        let child = self.load(source.ino)?;
        let victim = target.map(|t| self.load(t.ino)).transpose()?;
        match (mode, &victim) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            (_, Some(victim)) if victim.ino == child.ino => return Ok(Some(())),
            _ => {}
        }
        let moves_dir = |inode: &Inode| inode.kind == Kind::Dir;
        if !may_move_dir
            && (moves_dir(&child)
                || (mode == RenameMode::Exchange && victim.as_ref().is_some_and(|v| moves_dir(v))))
        {
            return Ok(None);
        }
        let crosses = from.ino != to.ino;
        if crosses && moves_dir(&child) && self.is_above(child.ino, to)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(victim) = victim.as_ref().filter(|v| crosses && moves_dir(v))
            && self.is_above(victim.ino, from)?
        {
            // It holds the source, so it is neither empty nor can it go below itself.
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            }
            .into());
        }
        if let Some(victim) = victim
            .as_ref()
            .filter(|v| v.ino == to.ino || v.ino == from.ino)
            && mode != RenameMode::Exchange
        {
            // Above the source it would hold it; so it is in itself.
            return Err(Error::corrupt(
                line_at(victim.ino),
                "a directory is in itself",
            ));
        }
        veto(&child.rights())?;
        if let Some(victim) = &victim {
            veto(&victim.rights())?;
            match (moves_dir(&child), moves_dir(victim)) {
                (true, false) if mode != RenameMode::Exchange => return Err(Errno::NOTDIR.into()),
                (false, true) if mode != RenameMode::Exchange => return Err(Errno::ISDIR.into()),
                _ => {}
            }
        }
        let replaced = mode != RenameMode::Exchange && victim.is_some();
        let victim_is_dir = victim.as_ref().is_some_and(|victim| moves_dir(victim));
        let is_full =
            |dir: &Inode, comes: bool, goes: bool| comes && !goes && dir.nlink() >= LINK_MAX;
        if crosses
            && (is_full(to, moves_dir(&child), victim_is_dir)
                || mode == RenameMode::Exchange && is_full(from, victim_is_dir, moves_dir(&child)))
        {
            return Err(Errno::MLINK.into());
        }

        // Take space.
        let now = self.now();
        locks.to().provide(volume, new_hash)?;
        let entry = self.make_entry(child.ino, child.kind, new_hash, new_name)?;
        let back =
            match self.entry_for_old_name(from, &mut locks, mode, hash, name, victim.as_ref(), now)
            {
                Ok(back) => back,
                Err(e) => {
                    self.drop_entry(entry);
                    return Err(e);
                }
            };
        if replaced
            && let Some(victim) = victim.as_ref().filter(|v| moves_dir(v))
            && let Err(e) = self.kill(victim, to)
        {
            self.drop_entry(entry);
            if let Some((line, whiteout)) = back {
                self.drop_entry(line);
                whiteout.lose_names(whiteout.nlink(), false);
                self.lost_name(Counted(whiteout), None);
            }
            return Err(e);
        }

        // Announced before the old names go: a batch that meets an inode now would find it without
        // a pending name. It waits for these stripes instead, and then finds the names.
        let to_name = locks.to().next_name(to.ino);
        let from_name = locks.from().next_name(from.ino);
        let announce = |inode: &Inode, name| inode.meta.lock().adds.push(name);
        announce(&child, to_name);
        back.iter()
            .for_each(|(_, inode)| announce(inode, from_name));
        point("rename: the names are announced");
        let moved = self.move_entries(
            (from, name, hash),
            (to, new_name, new_hash),
            &child,
            victim.as_ref(),
            entry,
            back.as_ref(),
            &mut locks,
            [from_name, to_name],
        );
        if let Err(e) = moved {
            // The image is damaged, so what was done so far stays; but nobody is to wait for these
            // names.
            let forget = |inode: &Inode, name| inode.meta.lock().adds.retain(|n| *n != name);
            forget(&child, to_name);
            back.iter().for_each(|(_, inode)| forget(inode, from_name));
            return Err(e);
        }

        point("rename: counts are old");
        self.account_move(from, to, &child, victim.as_ref(), mode, now);
        let stripes = [(from, locks.from().index()), (to, locks.to().index())];
        let words = locks.from().charge() + locks.to().charge();
        drop(locks);
        point("rename: what was replaced is kept");
        if let Some(victim) = victim.filter(|_| replaced) {
            self.lost_name(Counted(victim), None);
        }
        point("rename: not noted");
        self.changed(&stripes, words)?;
        Ok(Some(()))
    }

    /// Change the latest view; lookups wait meanwhile. It fails only if the image is damaged.
    #[allow(clippy::too_many_arguments)]
    fn move_entries(
        &self,
        (from, name, hash): (&Arc<Inode>, &[u8], u64),
        (to, new_name, new_hash): (&Arc<Inode>, &[u8], u64),
        child: &Arc<Inode>,
        victim: Option<&Arc<Inode>>,
        entry: u64,
        back: Option<&(u64, Arc<Inode>)>,
        locks: &mut TwoStripes<'_>,
        [from_name, to_name]: [PendingName; 2],
    ) -> Result<()> {
        let volume = &self.shared.volume;
        locks.from().exclusive();
        locks.to().exclusive();
        // Found anew, here and below: what was done since may have changed what is before it.
        let source = locks.from().find(volume, hash, name)?.ok_or(Errno::NOENT)?;
        let source = self.take_moved(locks.from(), from.ino, &source, child)?;
        let mut target = None;
        if let Some(victim) = victim {
            let found = locks.to().find(volume, new_hash, new_name)?;
            let found = found.ok_or(Errno::NOENT)?;
            target = Some(self.take_moved(locks.to(), to.ino, &found, victim)?);
        }
        point("rename: the old names are taken");
        let ties = Ties::of(locks, source, target, back.is_some());
        if let Some((line, inode)) = back {
            self.add_name(locks.from(), from_name, *line, hash, inode, true)?;
        }
        self.add_name(locks.to(), to_name, entry, new_hash, child, true)?;
        point("rename: not tied");
        ties.record(locks, from.ino, to.ino);
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
            Taken::Cancelled { .. } => self.drop_entry(found.line),
        }
        Ok(taken)
    }

    /// What stands under the old name afterwards: the exchanged inode, a whiteout, or nothing.
    #[allow(clippy::too_many_arguments)]
    fn entry_for_old_name(
        &self,
        from: &Arc<Inode>,
        locks: &mut TwoStripes<'_>,
        mode: RenameMode,
        hash: u64,
        name: &[u8],
        victim: Option<&Arc<Inode>>,
        now: Time,
    ) -> Result<Option<(u64, Arc<Inode>)>> {
        let inode = match (mode, victim) {
            (RenameMode::Exchange, Some(victim)) => victim.clone(),
            (RenameMode::Whiteout, _) => {
                let new = NewNode {
                    kind: NewKind::CharDev(0),
                    perm: 0,
                    uid: 0,
                    gid: 0,
                    xattrs: &[],
                };
                self.make_inode(Blank::new(), from.ino, &new, now, &[])?.0
            }
            _ => return Ok(None),
        };
        let line = locks
            .from()
            .provide(&self.shared.volume, hash)
            .and_then(|()| self.make_entry(inode.ino, inode.kind, hash, name));
        match line {
            Ok(line) => Ok(Some((line, inode))),
            Err(e) => {
                if mode == RenameMode::Whiteout {
                    inode.lose_names(inode.nlink(), false);
                    self.lost_name(Counted(inode), None);
                }
                Err(e)
            }
        }
    }

    /// Link counts, parents and times after a move.
    fn account_move(
        &self,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        child: &Arc<Inode>,
        victim: Option<&Arc<Inode>>,
        mode: RenameMode,
        now: Time,
    ) {
        let reparent = |inode: &Arc<Inode>, old: &Inode, new: &Inode| {
            if inode.kind == Kind::Dir && old.ino != new.ino {
                if let Ok(dir) = inode.dir() {
                    dir.parent.store(new.ino, Release);
                }
                old.lose_names(1, false);
                new.gain_name();
                self.shared.persister.moves.lock().push(inode.clone());
            }
        };
        reparent(child, from, to);
        if let Some(victim) = victim {
            if mode == RenameMode::Exchange {
                reparent(victim, to, from);
            } else if victim.kind == Kind::Dir {
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

//! The change of the latest view by a rename.

use super::entries::{Announced, Entries};
use super::stripes::{Ties, TwoStripes};
use super::{Rename, Subjects, is_dir};
use crate::dir::{Found, Locked, entry};
use crate::inode::{Body, Inode};
use crate::mount::SoupFs;
use crate::namespace::{NewName, Taken};
use schedule::point;
use std::sync::atomic::Ordering::Release;
use triomphe::Arc;
use vfs::{Errno, Result, Time};

impl SoupFs {
    /// Announce the names and move the entries.
    ///
    /// # Errors
    /// The image is damaged: what was done so far stays.
    pub(super) fn change_view(
        &self,
        rename: &Rename<'_>,
        subjects: &Subjects,
        entries: &Entries,
        locks: &mut TwoStripes<'_>,
    ) -> Result<()> {
        let announced = Announced {
            new: locks.to().next_name(rename.to.inode.ino),
            back: locks.from().next_name(rename.from.inode.ino),
        };
        announced.announce(&subjects.child, entries);
        point("rename: the names are announced");
        self.move_entries(rename, subjects, entries, &announced, locks)
            .inspect_err(|_| announced.revoke(&subjects.child, entries))
    }

    /// Take the old entries out and put the new ones in; lookups wait meanwhile. It fails only if
    /// the image is damaged.
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
    pub(super) fn account_move(&self, rename: &Rename<'_>, subjects: &Subjects, now: Time) {
        let (from, to) = (rename.from.inode, rename.to.inode);
        let reparent = |inode: &Arc<Inode>, old: &Inode, new: &Inode| {
            if let Body::Dir(dir) = &inode.body
                && old.ino != new.ino
            {
                dir.parent.store(new.ino, Release);
                old.lose_names(1, false);
                new.gain_name();
                // In mode `strong` all earlier moves are durable.
                if !self.gate().is_there() {
                    self.shared.persister.moves.lock().push(inode.clone());
                }
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

//! The entries that a rename makes, and their announcement.

use super::stripes::TwoStripes;
use super::{Rename, Subjects};
use crate::dir::{PendingName, entry};
use crate::fault::{Fault, injected};
use crate::inode::Inode;
use crate::inode_table::Counted;
use crate::mount::SoupFs;
use crate::slot::Blank;
use triomphe::Arc;
use vfs::{NewKind, NewNode, RenameMode, Result, Time};

/// The entries that a rename makes. Nothing leads to them.
pub(super) struct Entries {
    /// Under the new name.
    pub(super) line: u64,
    /// Under the old name, and what it names: the exchanged inode, or a whiteout.
    pub(super) back: Option<(u64, Arc<Inode>)>,
}

/// The names that a rename gives, as operations of its two stripes.
pub(super) struct Announced {
    pub(super) back: PendingName,
    pub(super) new: PendingName,
}

impl Announced {
    /// Before the old names go: a batch that meets an inode now would find it without a pending
    /// name. It waits for these stripes instead, and then finds the names.
    pub(super) fn announce(&self, child: &Inode, entries: &Entries) {
        let announce = |inode: &Inode, name| {
            if !injected(Fault::Unannounced) {
                inode.meta.lock().adds.push(name);
            }
        };
        announce(child, self.new);
        (entries.back.iter()).for_each(|(_, inode)| announce(inode, self.back));
    }

    /// The names will not be given: nobody is to wait for them.
    pub(super) fn revoke(&self, child: &Inode, entries: &Entries) {
        let revoke = |inode: &Inode, name| inode.meta.lock().adds.retain(|n| *n != name);
        revoke(child, self.new);
        (entries.back.iter()).for_each(|(_, inode)| revoke(inode, self.back));
    }
}

impl SoupFs {
    /// Make the entries, and declare a directory that is replaced removed. An error leaves nothing
    /// taken.
    pub(super) fn make_entries(
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
}

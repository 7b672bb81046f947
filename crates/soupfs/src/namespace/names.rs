//! Names that are given and taken away: the steps that the operations on names share.

use crate::dir::{Addition, Found, Locked, PendingName, entry};
use crate::inode::Inode;
use crate::inode_state::{ANY, TIME};
use crate::inode_table::Kept;
use crate::layout::{LINES_PER_PAGE, inode as layout};
use crate::mount::SoupFs;
use schedule::point;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::Arc;
use vfs::{Kind, Result, Time};

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
            // Whoever captures it beside this sees the time, or the mark behind it.
            let _meta = inode.meta.lock();
            inode.attrs.touch_ctime(now);
        }
        // A directory that moved has another parent, too.
        let what = if inode.kind == Kind::Dir { ANY } else { TIME };
        // In mode `strong` no operation is ever cancelled by another.
        if !self.gate().is_there() {
            self.shared.persister.mark(inode, what, 0);
        }
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
}

//! Settling: DRAM is told what has committed, and what was withdrawn waits to be free.
//!
//! Only a [`Committed`] batch can be settled, so neither can come before the commit. Nothing of it
//! is on the medium: a crash in between leaves the new state, and what was withdrawn is a leak,
//! which the reclaimer finds.

use crate::commit::batch::Batch;
use crate::commit::batch::Orphans;
use crate::commit::deferred::DeferredFrees;
use crate::commit::member::Member;
use crate::commit::txn::Commit;
use crate::commit::withdrawn::Withdrawn;
use crate::dir::DirOp;
use crate::image::Root;
use crate::inode::{Body, Inode};
use crate::inode_table::{Counted, Kept};
use crate::layout::{index, inode as layout, line_at};
use crate::volume::Volume;
use schedule::point;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::Arc;
use vfs::Result;

/// A batch that the consistent view has, durably, and that DRAM is to be told of.
#[must_use]
pub struct Committed<'a> {
    volume: &'a Volume,
    commit: Commit,
    withdrawn: Withdrawn,
    batches: SmallVec<[Batch; 1]>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Its commit.
    pub commit: Commit,
    /// Words of the journal that were noted for what is in it, at least.
    pub noted: u64,
    /// Operations and inodes in it.
    pub captured: u64,
}

impl<'a> Committed<'a> {
    /// What has just committed.
    pub(super) fn new(
        volume: &'a Volume,
        commit: Commit,
        withdrawn: Withdrawn,
        batches: SmallVec<[Batch; 1]>,
    ) -> Committed<'a> {
        Committed {
            volume,
            commit,
            withdrawn,
            batches,
        }
    }

    /// Tell the latest view, and defer the free of what was withdrawn. Inodes without names are
    /// freed with it; those that are still in use go to `orphans`.
    pub fn settle(mut self, deferred: &mut DeferredFrees, orphans: &Orphans) -> Result<Outcome> {
        point("batch: committed");
        let outcome = Outcome {
            commit: self.commit,
            noted: self.batches.iter().map(|batch| batch.noted).sum(),
            captured: self.batches.iter().map(|batch| batch.len() as u64).sum(),
        };
        let mut batches = std::mem::take(&mut self.batches);
        let members = batches.iter_mut().flat_map(|batch| &mut batch.members);
        members.for_each(|member| member.settle(self.volume));
        point("batch: settled");
        let mut all = batches.into_iter();
        let freed = all.try_for_each(|batch| self.free_nameless(batch, orphans));
        deferred.defer(self.commit, self.withdrawn);
        freed.map(|()| outcome)
    }

    /// Free the inodes that lost their last name, or leave them to whoever has them open.
    fn free_nameless(&mut self, batch: Batch, orphans: &Orphans) -> Result<()> {
        for (_, op) in &batch.ops {
            if let DirOp::Remove { child, .. } = op {
                let place = batch.place(*child)?;
                batch.members[place].inode.removal_done();
            }
        }
        for Member { inode, .. } in batch.members.into_iter().filter(|m| m.lost_all) {
            let ino = inode.ino;
            // In use, or about to lose a name that was never captured: who searches for lost space
            // has to know of it.
            if !(inode.is_nameless() && free_inode(self.volume, inode, &mut self.withdrawn)) {
                orphans.lock().push(ino);
            }
        }
        Ok(())
    }
}

impl Member {
    /// Its batch has committed: tell the latest view.
    fn settle(&mut self, volume: &Volume) {
        let inode = &self.inode;
        match &inode.body {
            Body::File(file) => file.write().persisted(volume, inode, self.consistent.root),
            Body::Dir(dir) => dir.set_consistent(self.consistent.root, self.consistent.level),
            Body::Symlink { .. } | Body::Special { .. } => {}
        }
        inode.set_published();
        let nodes = self.file.as_mut().map(|f| std::mem::take(&mut f.nodes));
        let blocks = self.growth.take();
        for run in nodes
            .into_iter()
            .chain(blocks)
            .flatten()
            .filter(|run| !run.is_empty())
        {
            volume.alloc.free_pages(run);
        }
    }
}

/// Free an inode without names if nobody uses it, and no rename that waits depends on it (else
/// false): DRAM forgets it, and what it holds is withdrawn, or is free at once if the
/// consistent view never had it. For the persister, between batches or after the commit that
/// removed it.
pub fn free_inode(volume: &Volume, inode: Arc<Inode>, withdrawn: &mut Withdrawn) -> bool {
    let Some(inode) = Counted(inode).take_unused(&volume.inodes, |inode| !inode.has_ties()) else {
        return false;
    };
    let published = inode.is_published();
    match published {
        true => withdrawn.pairs.push(inode.ino),
        false => volume.alloc.free_pair(inode.ino),
    }
    let damaged = |e| {
        log::error!(
            "what a removed inode held stays in use, as it is damaged: {e}; run `tureen fsck`"
        );
        volume.lost_space.store(true, Relaxed);
    };
    let xattrs = free_xattrs(volume, &inode).map_err(damaged);
    for page in xattrs.unwrap_or_default() {
        match published {
            true => withdrawn.page(page),
            false => volume.alloc.free_pages(page..page + 1),
        }
    }
    if let Ok(Some(Root { top, height })) = take_contents(volume, &inode).map_err(damaged) {
        match (published, height) {
            // The target of a symbolic link.
            (false, 0) => volume.alloc.free_pages(top.page..top.page + 1),
            _ => {
                let pages = inode.attrs.pages.load(Relaxed).max(0) as u64;
                withdrawn.tree(top.page, height, pages);
            }
        }
    }
    true
}

/// The pages of the extended attributes of an inode that is being freed.
fn free_xattrs(volume: &Volume, inode: &Inode) -> Result<Vec<u64>> {
    let xattrs = inode.meta.lock().rare().and_then(|rare| rare.xattrs.take());
    match xattrs {
        Some(mut xattrs) => Ok(xattrs.tear_down(volume)),
        None if inode.is_published() => {
            let first = volume.pool.load(line_at(inode.ino) + layout::XATTR);
            Ok(volume.image().xattr_bytes(inode.ino, first)?.0)
        }
        None => Ok(Vec::new()),
    }
}

/// What leads to the contents of an inode that is being freed; what is private is freed at once.
fn take_contents(volume: &Volume, inode: &Inode) -> Result<Option<Root>> {
    let root = match &inode.body {
        Body::File(file) => file.write().tear_down(volume),
        Body::Dir(dir) => {
            for run in dir.take_growth().1 {
                volume.alloc.free_pages(run);
            }
            let root = dir.consistent_root();
            dir.set_consistent(0, 0);
            root
        }
        Body::Symlink { page } => page << index::SHIFT,
        Body::Special { .. } => 0,
    };
    volume.image().root(inode.ino, root)
}

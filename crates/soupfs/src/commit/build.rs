//! Build: what is new is stored where nothing leads to it yet, and what will lead to it is put
//! together.
//!
//! As all that was captured commits at once, its inner order does not matter, and stored link
//! counts and directory sizes are exact at every crash. A crash while a batch is built leaves the
//! old state; what was claimed in the maps is a leak, which the reclaimer finds.

use crate::commit::batch::Batch;
use crate::commit::buckets;
use crate::commit::capture::Captured;
use crate::commit::gate::Gate;
use crate::commit::helpers::Helpers;
use crate::commit::settle::Committed;
use crate::commit::txn::{Sealed, Txn};
use crate::dir::DirOp;
use crate::fault::{Fault, injected};
use crate::hash::NumberMap;
use crate::volume::Volume;
use pmem::Journal;
use schedule::point;
use smallvec::SmallVec;
use vfs::{Kind, Result};

/// Batches whose private parts are stored, and whose words are known: ready to commit, together.
#[must_use]
pub struct Built {
    txn: Sealed,
    batches: SmallVec<[Batch; 1]>,
}

impl<'a> Captured<'a> {
    /// Store what is private, and put together the words to change.
    pub fn build(self) -> Result<Box<Built>> {
        self.build_with(|_| ())
    }

    /// The same without the lane: what takes long is done before the commit.
    pub fn build_aside(self) -> Result<Box<Built>> {
        let volume = self.volume;
        let mut built = self.build_with(|txn| txn.flush_contents())?;
        built.txn.fence(volume)?;
        Ok(built)
    }

    fn build_with(self, contents_built: impl FnOnce(&mut Txn<'_>)) -> Result<Box<Built>> {
        point("batch: captured");
        let mut batch = self.batch;
        // An addition changes a bucket; a removal what led to the entry, and a count.
        let mut txn = Txn::new(self.volume, batch.ops.len() * 2);
        for member in &mut batch.members {
            member.build_contents(&mut txn)?;
        }
        contents_built(&mut txn);
        batch.build_names(&mut txn)?;
        let txn = txn.seal()?;
        let batches = SmallVec::from_buf([batch]);
        Ok(Box::new(Built { txn, batches }))
    }
}

impl Built {
    /// Words of the journal that it may take; what is private takes none.
    pub fn words(&self) -> usize {
        self.batches.iter().map(Batch::words).sum()
    }

    /// Two requests of mode `strong` share a commit.
    pub fn join(&mut self, other: Box<Built>) {
        self.txn.join(other.txn);
        self.batches.extend(other.batches);
    }

    /// Make all that is private durable, then publish everything at once.
    pub fn commit<'a>(
        mut self: Box<Self>,
        volume: &'a Volume,
        journal: &mut Journal,
        helpers: &Helpers,
        gate: &Gate,
    ) -> Result<Committed<'a>> {
        point("batch: built");
        let members = self.batches.iter().flat_map(|batch| &batch.members);
        let inos = members.map(|member| member.inode.ino);
        let show = || gate.storing(inos.clone());
        let (commit, withdrawn) = self.txn.commit(volume, journal, helpers, show)?; // Commit point.
        Ok(Committed::new(volume, commit, withdrawn, self.batches))
    }
}

impl Batch {
    /// Names, and the words of all inodes.
    fn build_names(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        let ops = std::mem::take(&mut self.ops);
        self.find_doomed(&ops);
        for (dir, op) in &ops {
            self.build_op(txn, *dir, op)?;
        }
        self.ops = ops;
        for member in &self.members {
            member.build_words(txn);
        }
        Ok(())
    }

    /// Directories that this batch removes, with all their operations (R3). The consistent view
    /// does not lead to their tables afterwards, so these need not change: a tree that is removed
    /// from below takes a word for each directory, which every journal has room for.
    fn find_doomed(&mut self, ops: &[(usize, DirOp)]) {
        let mut change = NumberMap::<i64>::default();
        for (_, op) in ops {
            let (child, by) = match op {
                DirOp::Add { child, .. } => (child, 1),
                DirOp::Remove { child, .. } => (child, -1),
                _ => continue,
            };
            let Some(place) = self.find(*child) else {
                continue;
            };
            let member = &mut self.members[place];
            if member.inode.kind == Kind::Dir {
                let change = change.entry(*child).or_default();
                *change += by;
                member.doomed = member.names + *change == 0;
            }
        }
    }

    fn build_op(&mut self, txn: &mut Txn<'_>, dir: usize, op: &DirOp) -> Result<()> {
        if let DirOp::Add { dentry, .. } = op {
            txn.fresh_entry(*dentry);
        }
        match op {
            DirOp::Cancelled | DirOp::MovedOn { .. } | DirOp::Tie(_) => {}
            DirOp::Split { .. } if self.members[dir].doomed => {}
            DirOp::Add { child, .. } if self.members[dir].doomed => {
                self.count_name(dir, *child, 1)?;
            }
            DirOp::Remove { dentry, child, .. } if self.members[dir].doomed => {
                buckets::withdraw_entry(txn, *dentry)?;
                self.count_name(dir, *child, -1)?;
            }
            DirOp::Split { bucket } => {
                self.members[dir].grow(txn)?;
                buckets::split(txn, self.members[dir].table(), *bucket)?;
            }
            DirOp::Add { dentry, child, .. } => {
                self.members[dir].grow(txn)?;
                buckets::add_entry(txn, self.members[dir].table(), *dentry)?;
                // What is new was nowhere, and all that it holds is claimed, and so marked.
                let fresh = self.members[self.place(*child)?].fresh;
                if !fresh && !injected(Fault::MovedUnqueued) {
                    txn.moves(*child);
                }
                self.count_name(dir, *child, 1)?;
            }
            DirOp::Remove { dentry, child, .. } => {
                buckets::remove_entry(txn, self.members[dir].table(), *dentry)?;
                self.count_name(dir, *child, -1)?;
            }
        }
        Ok(())
    }

    /// One name more or less in a directory, for an inode.
    fn count_name(&mut self, dir: usize, child: u64, by: i64) -> Result<()> {
        let place = self.place(child)?;
        let is_dir = self.members[place].inode.kind == Kind::Dir;
        let dir_ino = self.members[dir].inode.ino;
        let dir = &mut self.members[dir].consistent;
        dir.size = dir.size.saturating_add_signed(by);
        if is_dir {
            dir.nlink = dir.nlink.saturating_add_signed(by as i32);
        }
        let member = &mut self.members[place];
        member.names += by;
        member.lost_all = member.names == 0;
        if !is_dir {
            member.consistent.nlink = member.consistent.nlink.saturating_add_signed(by as i32);
        } else if by > 0 {
            member.consistent.parent = dir_ino;
        }
        Ok(())
    }
}

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
use pmem::Journal;
use schedule::point;
use vfs::{Kind, Result};

/// A batch whose private parts are stored, and whose words are known: ready to commit.
#[must_use]
pub struct Built<'a> {
    txn: Sealed<'a>,
    batch: Batch,
}

impl<'a> Captured<'a> {
    /// Store what is private, and put together the words to change.
    pub fn build(self) -> Result<Built<'a>> {
        point("batch: captured");
        let mut batch = self.batch;
        // An addition changes a bucket; a removal what led to the entry, and a count.
        let mut txn = Txn::new(self.volume, batch.ops.len() * 2);
        batch.build(&mut txn)?;
        let txn = txn.seal()?;
        Ok(Built { txn, batch })
    }
}

impl<'a> Built<'a> {
    /// Make all that is private durable, then publish everything at once.
    pub fn commit(
        self,
        journal: &mut Journal,
        helpers: &Helpers,
        gate: &Gate,
    ) -> Result<Committed<'a>> {
        point("batch: built");
        let volume = self.txn.volume();
        let inos = self.batch.members.iter().map(|member| member.inode.ino);
        let show = || gate.storing(inos.clone());
        let (commit, withdrawn) = self.txn.commit(journal, helpers, show)?; // Commit point.
        Ok(Committed::new(volume, commit, withdrawn, self.batch))
    }
}

impl Batch {
    fn build(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        for member in &mut self.members {
            member.build_contents(txn)?;
        }
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
                // The reclaimer may have been where it goes, and not yet where it was. What is new
                // was nowhere, and all that it holds is claimed, and so marked.
                let fresh = self.members[self.place(*child)?].fresh;
                if !fresh && !injected(Fault::MovedUnqueued) {
                    txn.volume().alloc.with_marks(|m| m.inode(*child));
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

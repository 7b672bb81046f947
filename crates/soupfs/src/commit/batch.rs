//! A batch: operations captured from the latest view and brought into the consistent one (SoupFS
//! §3.7).
//!
//! ```text
//! capture   take operations and attributes, under the callers' locks, one object at a time
//! build     store and flush what is private; put together the words to change
//! publish   fence; commit all words at once                            (the commit point)
//! settle    tell DRAM; defer the free of what was withdrawn
//! ```
//!
//! Capturing is not atomic: callers go on meanwhile. So an operation pulls in what must not come
//! after it:
//! - R1 a removal pulls the pending additions of the same inode: no name goes before the new one;
//! - R2 what a rename did in a stripe pulls what it did in the other, and is not cut apart: its
//!   names change together;
//! - R3 the removal of a directory pulls all its operations: it leaves empty;
//! - R4 an operation in a directory that is not published pulls that directory's own addition: what
//!   is published is reachable from the root;
//! - R5 the move of a directory pulls all earlier moves of directories: no cycle cuts itself off;
//! - R6 an addition pulls its inode with its contents: a new name shows them;
//! - R7 operations of a stripe are captured in order: a name is removed before it is given again;
//! - R8 a name that was given, and that a rename took before it was captured, pulls that rename:
//!   what came before and after it on this name is in the batch only with what has become of it.
//!
//! As all that was captured commits at once, its inner order does not matter, and stored link
//! counts and directory sizes are exact at every crash.

use crate::commit::buckets;
use crate::commit::deferred::{DeferredFrees, Withdrawn};
use crate::commit::helpers::Helpers;
use crate::commit::member::{Member, free_inode};
use crate::commit::txn::Txn;
use crate::dir::{ADD_WORDS, CAPTURED, DirOp, Locked, PendingName, REMOVE_WORDS, SPLIT_WORDS};
use crate::fault::{Fault, injected};
use crate::hash::NumberMap;
use crate::inode::{Body, Inode};
use crate::layout::{dentry, line_at};
use crate::volume::Volume;
use pmem::Journal;
use schedule::{Mutex, point};
use triomphe::Arc;
use vfs::{Error, Kind, Result};

fn gone(ino: u64) -> Error {
    Error::corrupt(line_at(ino), "the inode of a pending operation is gone")
}

/// Journal words that an operation on a name takes, on average.
const OP_WEIGHT: usize = 4;

/// Something to be captured.
pub enum Pull {
    /// An inode's attributes and contents.
    Inode(Arc<Inode>),
    /// All operations of a directory.
    Dir(Arc<Inode>),
    /// The operations of one stripe of a directory.
    Stripe(Arc<Inode>, usize),
    /// The pending additions of an inode's names.
    Names(Arc<Inode>),
    /// The operations of a stripe up to this one, of which a rename did one.
    Tied(PendingName),
}

/// Directories that were moved, in order, since the last batch that had a move in it (R5).
pub type DirMoves = Mutex<Vec<Arc<Inode>>>;

/// A batch that is being put together.
pub struct Batch<'a> {
    volume: &'a Volume,
    moves: &'a DirMoves,
    pulls: Vec<Pull>,
    members: Vec<Member>,
    places: NumberMap<usize>,
    /// Directory (index of its member) and operation, in order within each stripe.
    ops: Vec<(usize, DirOp)>,
    weight: usize,
    /// See [`Outcome`].
    names: u64,
    noted_words: u64,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Of its commit in the journal.
    pub sequence: u64,
    /// Operations on names in it.
    pub ops: u64,
    /// Of the words that were noted for what is in it, at least so many.
    pub noted_words: u64,
    /// These, and inodes.
    pub captured: u64,
}

impl<'a> Batch<'a> {
    /// An empty batch.
    pub fn new(volume: &'a Volume, moves: &'a DirMoves) -> Batch<'a> {
        Batch {
            volume,
            moves,
            pulls: Vec::new(),
            members: Vec::new(),
            places: NumberMap::default(),
            ops: Vec::new(),
            weight: 0,
            names: 0,
            noted_words: 0,
        }
    }

    /// Journal words that the batch may need, roughly; what is private needs none.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.ops.is_empty()
    }

    /// Capture something and all that it pulls in.
    pub fn pull(&mut self, pull: Pull) -> Result<()> {
        self.pulls.push(pull);
        while let Some(pull) = self.pulls.pop() {
            match pull {
                Pull::Inode(inode) => self.pull_inode(inode)?,
                Pull::Dir(dir) => {
                    for stripe in 0..crate::dir::STRIPES {
                        self.capture_stripe(&dir, stripe, u64::MAX)?;
                    }
                }
                Pull::Stripe(dir, stripe) => self.capture_stripe(&dir, stripe, u64::MAX)?,
                Pull::Names(inode) => self.pull_names(&inode)?,
                Pull::Tied(to) => self.pull_tied(to)?,
            }
        }
        Ok(())
    }

    /// Capture a stripe's operations, as many as the batch has room for; true: that was all.
    pub fn sweep_stripe(&mut self, dir: &Arc<Inode>, stripe: usize, room: usize) -> Result<bool> {
        let upto = {
            let locked = dir.dir()?.lock_stripe(stripe);
            let (first, count) = (locked.ops.first, locked.ops.ops.len() as u64);
            let take = count.min(room.saturating_sub(self.weight) as u64 / OP_WEIGHT as u64 + 1);
            if count == 0 {
                return Ok(true);
            }
            (first + take - 1, take == count)
        };
        self.capture_stripe(dir, stripe, upto.0)?;
        if injected(Fault::SplitForgets) && !upto.1 {
            self.pulls.clear();
        }
        while let Some(pull) = self.pulls.pop() {
            self.pull(pull)?;
        }
        Ok(upto.1)
    }

    fn pull_inode(&mut self, inode: Arc<Inode>) -> Result<()> {
        if !inode.is_published() {
            return self.pull_names(&inode); // its additions bring it along
        }
        // Also without names: the consistent view may have one yet, and what was cut off is free
        // once it is captured.
        self.capture_inode(&inode).map(drop)
    }

    fn pull_names(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let mut last = None;
        loop {
            let next = inode.meta.lock().first_pending();
            // The operation that announced it, if it is not recorded, holds the stripe: by now it
            // is, and captured.
            if next.is_some() && next == last {
                let what = "a name is announced that no operation gives";
                return Err(Error::corrupt(line_at(inode.ino), what));
            }
            last = next;
            let Some(name) = next else {
                // R3: it may have been removed since its removal was captured as half of a move.
                if let Body::Dir(dir) = &inode.body
                    && crate::dir::is_dead(dir)
                {
                    self.pull_unless(Fault::RemovedWithEntries, Pull::Dir(inode.clone()));
                }
                return Ok(());
            };
            match self.volume.table.get(name.dir()) {
                Some(dir) if dir.kind == Kind::Dir => {
                    self.capture_stripe(&dir, name.stripe(), name.op)?;
                }
                _ => return Err(gone(name.dir())),
            }
        }
    }

    fn pull_tied(&mut self, to: PendingName) -> Result<()> {
        match self.volume.table.get(to.dir()) {
            Some(dir) if dir.kind == Kind::Dir => self.capture_stripe(&dir, to.stripe(), to.op),
            // It was captured, and its directory is gone from DRAM or something else by now.
            _ => Ok(()),
        }
    }

    /// Take the operations of a stripe up to number `upto` (R7).
    fn capture_stripe(&mut self, dir: &Arc<Inode>, stripe: usize, upto: u64) -> Result<()> {
        if !dir.dir()?.is_changed() {
            return Ok(());
        }
        let mut locked = dir.dir()?.lock_stripe(stripe);
        if locked.ops.ops.is_empty() {
            return Ok(());
        }
        if dir.is_fresh() && crate::dir::is_dead(dir.dir()?) {
            self.pull_ties(&mut locked);
            return Ok(());
        }
        let member = self.capture_inode(dir)?;
        // Between the first and the last operation of a rename.
        let mut in_rename = false;
        while in_rename || locked.ops.first <= upto {
            let number = locked.ops.first;
            let Some(op) = locked.ops.ops.pop_front() else {
                break;
            };
            locked.ops.first += 1;
            let mine = PendingName::new(dir.ino, stripe, number);
            match &op {
                DirOp::Cancelled => continue,
                DirOp::MovedOn { end, tied } => {
                    in_rename |= *tied;
                    self.pull_unless(Fault::MovedOnAlone, Pull::Tied(*end)); // R8
                    continue;
                }
                DirOp::Tie(other) => {
                    in_rename = false;
                    if *other != mine {
                        self.pull_unless(Fault::NewNameAlone, Pull::Tied(*other)); // R2
                    }
                    continue;
                }
                DirOp::Split { .. } => self.noted_words += SPLIT_WORDS,
                DirOp::Add {
                    dentry,
                    child,
                    tied,
                } => {
                    in_rename = (in_rename || *tied) && !injected(Fault::AnyAddition);
                    self.names += 1;
                    self.noted_words += ADD_WORDS;
                    let at = line_at(*dentry) + dentry::NEXT;
                    self.volume.pool.store(at, dentry::PENDING | CAPTURED);
                    let child = self.child(*child)?;
                    child.meta.lock().adds.retain(|name| *name != mine);
                    self.capture_inode(&child)?; // R6
                    if *tied {
                        self.pull_moves(&child); // R5
                    }
                }
                DirOp::Remove { child, tied, .. } => {
                    in_rename |= *tied;
                    let child = self.child(*child)?;
                    self.names += 1;
                    self.noted_words += REMOVE_WORDS;
                    self.capture_inode(&child)?;
                    self.pull_unless(Fault::OldNameFirst, Pull::Names(child.clone())); // R1
                    if child.kind == Kind::Dir {
                        self.pull_moves(&child); // R5
                        if crate::dir::is_dead(child.dir()?) {
                            self.pull_unless(Fault::RemovedWithEntries, Pull::Dir(child.clone())); // R3
                        }
                    }
                }
            }
            self.weight += OP_WEIGHT;
            self.ops.push((member, op));
        }
        drop(locked);
        if self.members[member].fresh {
            self.pull_unless(Fault::Unreachable, Pull::Names(dir.clone())); // R4
        }
        Ok(())
    }

    /// Take the operations of a directory that no batch ever took up, and none will: all its names
    /// were undone. But renames into it and out of it tie others.
    fn pull_ties(&mut self, locked: &mut Locked<'_>) {
        locked.ops.first = locked.next_op();
        let ops = locked.ops.ops.drain(..);
        self.pulls.extend(ops.filter_map(|op| match op {
            DirOp::MovedOn { end: to, .. } | DirOp::Tie(to) => Some(Pull::Tied(to)),
            _ => None,
        }));
    }

    fn pull_unless(&mut self, bug: Fault, pull: Pull) {
        if !injected(bug) {
            self.pulls.push(pull);
        }
    }

    fn pull_moves(&mut self, child: &Inode) {
        if child.kind == Kind::Dir && !injected(Fault::MovesAlone) {
            self.pulls
                .extend(self.moves.lock().drain(..).map(Pull::Names));
        }
    }

    /// The inode that an operation is about: DRAM does not forget it before that.
    fn child(&self, ino: u64) -> Result<Arc<Inode>> {
        self.volume.table.get(ino).ok_or_else(|| gone(ino))
    }

    /// Make an inode a member, with a snapshot of its attributes and its pending contents.
    fn capture_inode(&mut self, inode: &Arc<Inode>) -> Result<usize> {
        point("batch: before a capture");
        inode.set_captured();
        let place = match self.places.get(&inode.ino) {
            Some(&place) => {
                let member = &mut self.members[place];
                self.weight -= member.weight();
                self.noted_words -= member.blocks();
                member.refresh(self.volume);
                place
            }
            None => {
                self.members.push(Member::capture(self.volume, inode)?);
                self.places.insert(inode.ino, self.members.len() - 1);
                self.members.len() - 1
            }
        };
        self.weight += self.members[place].weight();
        self.noted_words += self.members[place].blocks();
        Ok(place)
    }

    /// Bring what was captured into the consistent view. Inodes without names are freed; those
    /// that are still in use go to `orphans`.
    pub fn publish(
        mut self,
        journal: &mut Journal,
        helpers: &Helpers,
        deferred: &mut DeferredFrees,
        orphans: &Mutex<Vec<u64>>,
    ) -> Result<Outcome> {
        // An addition changes a bucket; a removal what led to the entry, and a count.
        let mut txn = Txn::new(self.volume, self.ops.len() * 2);
        point("batch: captured");
        self.build(&mut txn)?;
        point("batch: built");
        let (sequence, mut withdrawn) = txn.publish(journal, helpers)?;
        point("batch: committed");
        let outcome = Outcome {
            sequence,
            ops: self.names,
            noted_words: self.noted_words,
            captured: (self.ops.len() + self.members.len()) as u64,
        };
        self.settle();
        point("batch: settled");
        let freed = self.free_nameless(&mut withdrawn, orphans);
        deferred.defer(sequence, withdrawn);
        freed.map(|()| outcome)
    }

    /// Free the inodes that lost their last name, or leave them to whoever has them open.
    fn free_nameless(self, withdrawn: &mut Withdrawn, orphans: &Mutex<Vec<u64>>) -> Result<()> {
        for (_, op) in &self.ops {
            if let DirOp::Remove { child, .. } = op {
                self.members[self.place(*child)?].inode.removal_done();
            }
        }
        for member in self.members.into_iter().filter(|m| m.lost_all) {
            let ino = member.inode.ino;
            // In use, or about to lose a name that was never captured: who searches for lost space
            // has to know of it.
            if !(member.inode.is_nameless() && free_inode(self.volume, member.inode, withdrawn)) {
                orphans.lock().push(ino);
            }
        }
        Ok(())
    }

    fn build(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        for member in &mut self.members {
            member.build_contents(txn)?;
        }
        let ops = std::mem::take(&mut self.ops);
        self.find_doomed(&ops);
        for (dir, op) in &ops {
            self.build_op(txn, *dir, op)?;
        }
        for (_, op) in &ops {
            if let DirOp::Add { dentry, .. } = op {
                buckets::finish_entry(txn, *dentry)?;
            }
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
            let Some(&place) = self.places.get(child) else {
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
                if !self.members[self.place(*child)?].fresh {
                    self.volume.alloc.with_marks(|m| m.inode(*child));
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

    /// The member that this inode is.
    fn place(&self, ino: u64) -> Result<usize> {
        let missing = || Error::corrupt(line_at(ino), "a name's inode is not in its batch");
        self.places.get(&ino).copied().ok_or_else(missing)
    }

    /// The batch is durable and applied: tell the latest view.
    fn settle(&mut self) {
        self.members
            .iter_mut()
            .for_each(|member| member.settle(self.volume));
    }
}

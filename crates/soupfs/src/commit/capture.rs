//! Capture: operations and attributes are taken from the latest view, under the callers' locks, one
//! object at a time.
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

use crate::commit::batch::Batch;
use crate::commit::private::Private;
use crate::dir::{ADD_WORDS, CAPTURED, DirOp, Locked, PendingName, REMOVE_WORDS, SPLIT_WORDS};
use crate::fault::{Fault, injected};
use crate::inode::{Body, Inode};
use crate::layout::{dentry, line_at};
use crate::volume::Volume;
use schedule::{Mutex, point};
use smallvec::SmallVec;
use triomphe::Arc;
use vfs::{Error, Kind, Result};

fn gone(ino: u64) -> Error {
    Error::corrupt(line_at(ino), "the inode of a pending operation is gone")
}

/// Words of the journal that an operation on a name takes with what it pulls in, on average.
const OP_WORDS: u64 = 4;

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
    /// An inode that a request of mode `strong` holds, so that what was captured of it already is
    /// all of it.
    Held(Arc<Inode>),
    /// All that a request of mode `strong` has changed: these inodes, and what they name.
    Request(SmallVec<[Arc<Inode>; 2]>),
}

/// Directories that were moved, in order, since the last batch that had a move in it (R5).
pub type DirMoves = Mutex<Vec<Arc<Inode>>>;

/// What was captured so far: closed under R1 to R8 after each call.
pub struct Captured<'a> {
    pub(super) volume: &'a Volume,
    moves: &'a DirMoves,
    pulls: SmallVec<[Pull; 4]>,
    pub(super) batch: Batch,
}

impl<'a> Captured<'a> {
    /// Nothing yet.
    pub fn new(volume: &'a Volume, moves: &'a DirMoves) -> Captured<'a> {
        Captured {
            volume,
            moves,
            pulls: SmallVec::new(),
            batch: Batch::default(),
        }
    }

    /// Words of the journal that the batch may take; what is private takes none.
    pub fn words(&self) -> usize {
        self.batch.words()
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Capture something and all that it pulls in.
    pub fn pull(&mut self, pull: Pull) -> Result<()> {
        self.pulls.push(pull);
        while let Some(pull) = self.pulls.pop() {
            match pull {
                Pull::Inode(inode) => self.pull_inode(inode)?,
                Pull::Held(inode) if self.batch.find(inode.ino).is_some() => {}
                Pull::Held(inode) => self.pull_inode(inode)?,
                Pull::Dir(dir) => {
                    for stripe in dir.dir()?.waiting_stripes() {
                        self.capture_stripe(&dir, stripe, u64::MAX)?;
                    }
                }
                Pull::Stripe(dir, stripe) => self.capture_stripe(&dir, stripe, u64::MAX)?,
                Pull::Names(inode) => self.pull_names(&inode)?,
                Pull::Tied(to) => self.pull_tied(to)?,
                Pull::Request(inodes) => self.pull_request(inodes),
            }
        }
        Ok(())
    }

    fn pull_request(&mut self, inodes: SmallVec<[Arc<Inode>; 2]>) {
        for inode in inodes {
            let changed = matches!(&inode.body, Body::Dir(dir) if dir.is_changed());
            self.pulls.push(Pull::Held(inode.clone()));
            if changed {
                self.pulls.push(Pull::Dir(inode)); // these first
            }
        }
    }

    /// Capture of a stripe's operations about as many as take `room` words, at least one; true:
    /// that was all.
    pub fn pull_some(&mut self, dir: &Arc<Inode>, stripe: usize, room: usize) -> Result<bool> {
        let (last, all) = {
            let locked = dir.dir()?.lock_stripe(stripe);
            let (first, count) = (locked.ops.first, locked.ops.ops.len() as u64);
            let take = count.min(room as u64 / OP_WORDS + 1);
            if count == 0 {
                return Ok(true);
            }
            (first + take - 1, take == count)
        };
        self.capture_stripe(dir, stripe, last)?;
        if injected(Fault::SplitForgets) && !all {
            self.pulls.clear();
        }
        while let Some(pull) = self.pulls.pop() {
            self.pull(pull)?;
        }
        Ok(all)
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
            match self.volume.inodes.get(name.dir()) {
                Some(dir) if dir.kind == Kind::Dir => {
                    self.capture_stripe(&dir, name.stripe(), name.op)?;
                }
                _ => return Err(gone(name.dir())),
            }
        }
    }

    fn pull_tied(&mut self, to: PendingName) -> Result<()> {
        match self.volume.inodes.get(to.dir()) {
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
                DirOp::Split { .. } => self.batch.noted += SPLIT_WORDS,
                DirOp::Add {
                    dentry,
                    child,
                    tied,
                } => {
                    in_rename = (in_rename || *tied) && !injected(Fault::AnyAddition);
                    self.batch.noted += ADD_WORDS;
                    self.mark_captured(*dentry)?;
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
                    self.batch.noted += REMOVE_WORDS;
                    self.capture_inode(&child)?;
                    self.pull_unless(Fault::OldNameFirst, Pull::Names(child.clone())); // R1
                    if child.kind == Kind::Dir {
                        self.pull_moves(&child); // R5
                        if crate::dir::is_dead(child.dir()?) {
                            // R3
                            self.pull_unless(Fault::RemovedWithEntries, Pull::Dir(child.clone()));
                        }
                    }
                }
            }
            self.batch.ops.push((member, op));
        }
        locked.captured();
        drop(locked);
        if self.batch.members[member].fresh {
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
        locked.captured();
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

    /// Whoever removes this entry from now on records that: it is in a batch.
    fn mark_captured(&self, line: u64) -> Result<()> {
        let pool = &self.volume.pool;
        let what = "an entry that is to be added is in the consistent view";
        let private = Private::entry(pool, line);
        let private = private.ok_or_else(|| Error::corrupt(line_at(line), what))?;
        private.store(pool, dentry::NEXT, dentry::PENDING | CAPTURED);
        Ok(())
    }

    /// The inode that an operation is about: DRAM does not forget it before that.
    fn child(&self, ino: u64) -> Result<Arc<Inode>> {
        self.volume.inodes.get(ino).ok_or_else(|| gone(ino))
    }

    /// Make an inode a member, with a snapshot of its attributes and its pending contents.
    fn capture_inode(&mut self, inode: &Arc<Inode>) -> Result<usize> {
        point("batch: before a capture");
        inode.set_captured();
        self.batch.take_up(self.volume, inode)
    }
}

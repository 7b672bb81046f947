//! A batch: operations captured from the latest view and brought into the consistent one (SoupFS
//! §3.7).
//!
//! ```text
//! capture   take operations and attributes, under the callers' locks, one object at a time
//! build     store and flush what is private; put together the words to change
//! publish   fence; commit all words at once                            (the commit point)
//! settle    tell DRAM; bury what was withdrawn
//! ```
//!
//! Capturing is not atomic: callers go on meanwhile. So an operation pulls in what must not come
//! after it:
//! - R1 a removal pulls the pending additions of the same inode: no name goes before the new one;
//! - R2 an addition that is part of a rename pulls the removal that belongs to it;
//! - R3 the removal of a directory pulls all its operations: it leaves empty;
//! - R4 an operation in a directory that is not published pulls that directory's own addition: what
//!   is published is reachable from the root;
//! - R5 the move of a directory pulls all earlier moves of directories: no cycle cuts itself off;
//! - R6 an addition pulls its inode with its contents: a new name shows them;
//! - R7 operations of a stripe are captured in order: a name is removed before it is given again.
//!
//! As all that was captured commits at once, its inner order does not matter, and stored link
//! counts and directory sizes are exact at every crash.

use crate::buckets;
use crate::dir::{CAPTURED, DirOp, table_blocks};
use crate::file::{FileCapture, Mapping};
use crate::graveyard::{Grave, Graveyard};
use crate::image::Pointer;
use crate::inode::{AttrImage, Body, Inode, PendingName};
use crate::layout::{PAGE, dentry, index, inode as layout, line_at, page_at};
use crate::tree::{self, Freed};
use crate::txn::Txn;
use crate::volume::Volume;
use crate::xattr::{self, XattrCapture};
use parking_lot::Mutex;
use pmem::Journal;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Error, Kind, Result};

/// Journal words that an operation on a name takes, on average; and an inode.
const OP_WEIGHT: usize = 4;
const INODE_WEIGHT: usize = 10;

/// Something to be captured.
pub enum Pull {
    /// An inode's attributes and contents.
    Inode(Arc<Inode>),
    /// All operations of a directory.
    Dir(Arc<Inode>),
    /// The operations of one stripe of a directory.
    Stripe(Arc<Inode>, usize),
    /// The pending operations on an inode's own names.
    Names(Arc<Inode>),
}

/// Directories that were moved, in order, since the last batch that had a move in it (R5).
pub type DirMoves = Mutex<Vec<Arc<Inode>>>;

/// Words of an inode as the consistent view has them, or will.
#[derive(Default)]
struct Consistent {
    nlink: u32,
    size: u64,
    root: u64,
    pages: u64,
    xattr: u64,
    parent: u64,
    level: u32,
}

/// An inode in a batch.
struct Member {
    inode: Arc<Inode>,
    /// The consistent view does not hold it yet.
    fresh: bool,
    attrs: AttrImage,
    consistent: Consistent,
    /// Names in the consistent view, those of this batch included.
    names: i64,
    /// This batch removes the last of them.
    lost_all: bool,
    /// A directory that this batch removes.
    doomed: bool,
    file: Option<FileCapture>,
    xattrs: Option<XattrCapture>,
    growth: Option<(u32, Vec<Range<u64>>)>,
}

/// A batch that is being put together.
pub struct Batch<'a> {
    volume: &'a Volume,
    moves: &'a DirMoves,
    pulls: Vec<Pull>,
    members: Vec<Member>,
    places: HashMap<u64, usize>,
    /// Directory (index of its member) and operation, in order within each stripe.
    ops: Vec<(usize, DirOp)>,
    weight: usize,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Of its commit in the journal.
    pub sequence: u64,
    /// Operations and inodes captured.
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
            places: HashMap::new(),
            ops: Vec::new(),
            weight: 0,
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
        while let Some(pull) = self.pulls.pop() {
            self.pull(pull)?;
        }
        Ok(upto.1)
    }

    fn pull_inode(&mut self, inode: Arc<Inode>) -> Result<()> {
        if inode.is_published() {
            if inode.nlink() > 0 {
                self.capture_inode(&inode)?;
            }
            Ok(())
        } else {
            self.pull_names(&inode) // its additions bring it along
        }
    }

    fn pull_names(&mut self, inode: &Arc<Inode>) -> Result<()> {
        loop {
            let next = inode.meta.lock().first_pending();
            let Some(PendingName { dir, stripe, op }) = next else {
                return Ok(());
            };
            let Some(dir) = self.volume.table.get(dir) else {
                return Err(Error::corrupt(
                    line_at(dir),
                    "a pending name's directory is gone",
                ));
            };
            self.capture_stripe(&dir, stripe as usize, op)?;
        }
    }

    /// Take the operations of a stripe up to number `upto` (R7).
    fn capture_stripe(&mut self, dir: &Arc<Inode>, stripe: usize, upto: u64) -> Result<()> {
        if !dir.dir()?.is_changed() {
            return Ok(());
        }
        let mut locked = dir.dir()?.lock_stripe(stripe);
        let Some(member) = self.capture_inode(dir)? else {
            return Ok(());
        };
        let mut with_next = false;
        while with_next || locked.ops.first <= upto {
            let number = locked.ops.first;
            let Some(op) = locked.ops.ops.pop_front() else {
                break;
            };
            locked.ops.first += 1;
            let mine = PendingName {
                dir: dir.ino,
                stripe: stripe as u32,
                op: number,
            };
            match &op {
                DirOp::Cancelled => continue,
                DirOp::Split { .. } => {}
                DirOp::Add {
                    dentry,
                    child,
                    moved,
                } => {
                    with_next = false;
                    let at = line_at(*dentry) + dentry::NEXT;
                    self.volume.pool.store(at, dentry::PENDING | CAPTURED);
                    child.meta.lock().adds.retain(|name| *name != mine);
                    self.capture_inode(child)?; // R6
                    if *moved {
                        self.pulls.push(Pull::Names(child.clone())); // R2
                        self.pull_moves(child); // R5
                    }
                }
                DirOp::Remove {
                    child,
                    with_next: next,
                    ..
                } => {
                    with_next |= *next;
                    if let Some(rare) = child.meta.lock().rare() {
                        rare.moves.retain(|name| *name != mine);
                    }
                    self.capture_inode(child)?;
                    self.pulls.push(Pull::Names(child.clone())); // R1
                    if child.kind == Kind::Dir {
                        self.pull_moves(child); // R5
                        if crate::dir::is_dead(child.dir()?) {
                            self.pulls.push(Pull::Dir(child.clone())); // R3
                        }
                    }
                }
            }
            self.weight += OP_WEIGHT;
            self.ops.push((member, op));
        }
        drop(locked);
        if self.members[member].fresh {
            self.pulls.push(Pull::Names(dir.clone())); // R4
        }
        Ok(())
    }

    fn pull_moves(&mut self, child: &Inode) {
        if child.kind == Kind::Dir {
            self.pulls
                .extend(self.moves.lock().drain(..).map(Pull::Names));
        }
    }

    /// Make an inode a member, with a snapshot of its attributes and its pending contents. `None`:
    /// it vanished before anything of it was captured.
    fn capture_inode(&mut self, inode: &Arc<Inode>) -> Result<Option<usize>> {
        if !inode.set_captured() {
            return Ok(None); // its number may be another inode's by now
        }
        if let Some(&place) = self.places.get(&inode.ino) {
            self.members[place].refresh();
            return Ok(Some(place));
        }
        let fresh = !inode.is_published();
        let consistent = match (fresh, &inode.body) {
            (false, _) => Consistent::of(self.volume, inode.ino)?,
            (true, Body::Dir(dir)) => Consistent {
                nlink: 2,
                parent: dir.parent.load(Relaxed),
                ..Consistent::default()
            },
            (true, Body::Symlink { page }) => Consistent {
                root: page << index::SHIFT,
                pages: 1,
                ..Consistent::default()
            },
            (true, Body::Special) => Consistent {
                root: u64::from(inode.rdev),
                ..Consistent::default()
            },
            (true, Body::File(_)) => Consistent::default(),
        };
        let mut body = match &inode.body {
            Body::File(file) => Some(file.write()),
            _ => None,
        };
        let mut meta = inode.meta.lock();
        let file = body.as_mut().map(|file| file.capture());
        let member = Member {
            fresh,
            attrs: inode.attr_image(),
            xattrs: meta.rare().and_then(|rare| rare.xattrs.as_mut()?.capture()),
            file,
            growth: None,
            names: if inode.kind == Kind::Dir {
                i64::from(!fresh)
            } else {
                i64::from(consistent.nlink)
            },
            lost_all: false,
            doomed: false,
            consistent,
            inode: inode.clone(),
        };
        drop(meta);
        drop(body);
        let words = if fresh {
            0
        } else {
            INODE_WEIGHT + member.file.as_ref().map_or(0, FileCapture::weight)
        };
        self.weight += words;
        self.members.push(member);
        self.places.insert(inode.ino, self.members.len() - 1);
        Ok(Some(self.members.len() - 1))
    }

    /// Bring what was captured into the consistent view. Inodes without names and handles are
    /// freed; those that are still open go to `orphans`.
    pub fn publish(
        mut self,
        journal: &mut Journal,
        graveyard: &mut Graveyard,
        orphans: &Mutex<Vec<Arc<Inode>>>,
    ) -> Result<Outcome> {
        let mut txn = Txn::new(self.volume, journal.capacity());
        self.build(&mut txn)?;
        let (sequence, grave) = txn.publish(journal)?;
        graveyard.bury(sequence, grave);
        let outcome = Outcome {
            sequence,
            captured: (self.ops.len() + self.members.len()) as u64,
        };
        self.settle();
        for (_, op) in &self.ops {
            if let DirOp::Remove { child, .. } = op {
                child.removal_done();
            }
        }
        for member in self
            .members
            .iter()
            .filter(|m| m.lost_all && m.inode.nlink() == 0)
        {
            match free_inode(self.volume, &member.inode)? {
                Some(grave) => graveyard.bury(sequence, grave),
                None => orphans.lock().push(member.inode.clone()),
            }
        }
        Ok(outcome)
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
        let mut names: HashMap<u64, i64> = HashMap::new();
        for (_, op) in ops {
            match op {
                DirOp::Add { child, .. } if child.kind == Kind::Dir => {
                    *names.entry(child.ino).or_default() += 1;
                }
                DirOp::Remove { child, .. } if child.kind == Kind::Dir => {
                    *names.entry(child.ino).or_default() -= 1;
                }
                _ => {}
            }
        }
        for (ino, change) in names {
            if let Some(&place) = self.places.get(&ino) {
                let member = &mut self.members[place];
                member.doomed = member.names + change == 0;
            }
        }
    }

    fn build_op(&mut self, txn: &mut Txn<'_>, dir: usize, op: &DirOp) -> Result<()> {
        match op {
            DirOp::Cancelled => {}
            DirOp::Split { .. } if self.members[dir].doomed => {}
            DirOp::Add { child, .. } if self.members[dir].doomed => {
                self.count_name(dir, child, 1)?;
            }
            DirOp::Remove { dentry, child, .. } if self.members[dir].doomed => {
                buckets::bury_entry(txn, *dentry)?;
                self.count_name(dir, child, -1)?;
            }
            DirOp::Split { bucket } => {
                self.members[dir].grow(txn)?;
                buckets::split(txn, self.members[dir].table(), *bucket)?;
            }
            DirOp::Add { dentry, child, .. } => {
                self.members[dir].grow(txn)?;
                buckets::add_entry(txn, self.members[dir].table(), *dentry)?;
                // The reclaimer may have been where it goes, and not yet where it was.
                self.volume.alloc.with_marks(|m| m.inode(child.ino));
                self.count_name(dir, child, 1)?;
            }
            DirOp::Remove { dentry, child, .. } => {
                buckets::remove_entry(txn, self.members[dir].table(), *dentry)?;
                self.count_name(dir, child, -1)?;
            }
        }
        Ok(())
    }

    /// One name more or less in a directory, for an inode.
    fn count_name(&mut self, dir: usize, child: &Inode, by: i64) -> Result<()> {
        let dir_ino = self.members[dir].inode.ino;
        let dir = &mut self.members[dir].consistent;
        dir.size = dir.size.saturating_add_signed(by);
        if child.kind == Kind::Dir {
            dir.nlink = dir.nlink.saturating_add_signed(by as i32);
        }
        let Some(&place) = self.places.get(&child.ino) else {
            return Err(Error::corrupt(
                line_at(child.ino),
                "a name's inode is not in its batch",
            ));
        };
        let member = &mut self.members[place];
        member.names += by;
        member.lost_all = member.names == 0;
        if child.kind != Kind::Dir {
            member.consistent.nlink = member.consistent.nlink.saturating_add_signed(by as i32);
        } else if by > 0 {
            member.consistent.parent = dir_ino;
        }
        Ok(())
    }

    /// The batch is durable and applied: tell the latest view.
    fn settle(&mut self) {
        for member in &mut self.members {
            let inode = &member.inode;
            match &inode.body {
                Body::File(file) => {
                    let mut file = file.write();
                    file.persisted(member.consistent.root);
                    if file.is_plain() {
                        inode
                            .attrs
                            .pages
                            .store(member.consistent.pages as i64, Relaxed);
                    }
                }
                Body::Dir(dir) => {
                    dir.set_consistent(member.consistent.root, member.consistent.level);
                    inode
                        .attrs
                        .pages
                        .store(member.consistent.pages as i64, Relaxed);
                }
                _ => inode
                    .attrs
                    .pages
                    .store(member.consistent.pages as i64, Relaxed),
            }
            inode.set_published();
            let nodes = member.file.as_mut().map(|f| std::mem::take(&mut f.nodes));
            let blocks = member.growth.take().map(|(_, runs)| runs);
            for run in nodes
                .into_iter()
                .chain(blocks)
                .flatten()
                .filter(|run| !run.is_empty())
            {
                self.volume.alloc.free_pages(run);
            }
        }
    }
}

impl FileCapture {
    /// Journal words that its index pointers may need. What replaces holes below the old size may
    /// change early, so it is bounded; the rest fills at most a leaf and a few pointers.
    fn weight(&self) -> usize {
        self.extents
            .iter()
            .map(|(_, e)| e.len.min(index::FANOUT) as usize)
            .sum::<usize>()
            .min(4096)
    }
}

impl Consistent {
    fn of(volume: &Volume, ino: u64) -> Result<Consistent> {
        let image = volume.image().inode(ino)?;
        Ok(Consistent {
            nlink: image.nlink,
            size: image.size,
            root: image.root,
            pages: image.pages,
            xattr: image.xattr,
            parent: image.parent,
            level: image.level,
        })
    }
}

impl Member {
    /// The directory's table, with what this batch has added to it so far.
    fn table(&self) -> buckets::Table {
        buckets::Table {
            root: self.consistent.root,
            level: self.consistent.level,
        }
    }

    /// An operation captured after the inode was may have changed its attributes: take them again.
    /// Not the size, which belongs to the captured contents; who changes these marks the inode.
    fn refresh(&mut self) {
        let _meta = self.inode.meta.lock();
        let size = self.attrs.size;
        self.attrs = AttrImage {
            size,
            ..self.inode.attr_image()
        };
    }

    /// Contents and extended attributes: flush what is private, put it into the tree.
    fn build_contents(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(XattrCapture { new, old }) = &self.xattrs {
            xattr::flush(txn.volume(), new);
            new.iter()
                .for_each(|&page| txn.volume().alloc.claim_pages(page..page + 1));
            old.iter().for_each(|&page| txn.bury().page(page));
            self.consistent.pages =
                (self.consistent.pages + new.len() as u64).saturating_sub(old.len() as u64);
            self.consistent.xattr = new.first().copied().unwrap_or(0);
        }
        match (&self.inode.body, &mut self.file) {
            (Body::Symlink { page }, _) if self.fresh => {
                txn.flush(page_at(*page), self.attrs.size);
                txn.volume().alloc.claim_pages(*page..page + 1);
            }
            (_, Some(file)) => file.build(txn, &mut self.consistent)?,
            _ => {}
        }
        if !matches!(self.inode.body, Body::Dir(_)) {
            self.consistent.size = self.attrs.size;
        }
        Ok(())
    }

    /// Bring the consistent table to the size of the latest one (D4), once in a batch.
    fn grow(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        if self.growth.is_some() {
            return Ok(());
        }
        let volume = txn.volume();
        let (level, mut runs) = self.inode.dir()?.take_growth();
        let c = &mut self.consistent;
        let have = if c.root == 0 {
            0
        } else {
            table_blocks(c.level)
        };
        for block in have..table_blocks(level) {
            let page = take_page(volume, &mut runs)?;
            txn.fresh_page(page);
            let first = Pointer {
                page,
                unwritten: false,
            };
            let mut nodes = 0;
            let mut node = || {
                nodes += 1;
                take_page(volume, &mut runs)
            };
            tree::insert(txn, &mut c.root, block, first, 1, &mut node, &mut |_| ())?;
            c.pages += nodes + 1;
        }
        c.level = c.level.max(level);
        self.growth = Some((level, runs));
        Ok(())
    }

    /// All words of the inode: private for a fresh one, else those that change.
    fn build_words(&self, txn: &mut Txn<'_>) {
        let (c, a, inode) = (&self.consistent, &self.attrs, &self.inode);
        let words = [
            (
                layout::MODE_NLINK,
                u64::from(a.mode) | u64::from(c.nlink) << 32,
            ),
            (layout::OWNER, a.owner),
            (layout::SIZE, c.size),
            (layout::ROOT, c.root),
            (layout::MTIME, a.times[1].0 as u64),
            (layout::CTIME, a.times[2].0 as u64),
            (layout::ATIME, a.times[0].0 as u64),
            (layout::PAGES, c.pages),
            (layout::BTIME, inode.btime.0 as u64),
            (layout::XATTR, c.xattr),
            (layout::PARENT, c.parent),
            (
                layout::MAGIC_GENERATION,
                u64::from(layout::MAGIC) | u64::from(inode.generation) << 32,
            ),
            (layout::LEVEL, u64::from(c.level)),
        ];
        let at = line_at(inode.ino);
        if self.fresh {
            words
                .iter()
                .for_each(|&(field, value)| txn.store_private(at + field, value));
            layout::RESERVED
                .iter()
                .for_each(|&field| txn.store_private(at + field, 0));
            txn.flush(at, layout::LEN);
            txn.volume().alloc.claim_lines(inode.ino, layout::LINES);
            return;
        }
        if self.lost_all && inode.nlink() == 0 {
            // Unreachable from the commit on. Its number is not to be believed any more.
            txn.set(at + layout::MODE_NLINK, u64::from(a.mode));
            return;
        }
        for (field, value) in words {
            if txn.volume().pool.load(at + field) != value {
                txn.set(at + field, value);
            }
        }
    }
}

/// A page from those set aside; from free space if, against F4, there are none left.
fn take_page(volume: &Volume, runs: &mut Vec<Range<u64>>) -> Result<u64> {
    while let Some(run) = runs.last_mut() {
        if let Some(page) = run.next() {
            return Ok(page);
        }
        runs.pop();
    }
    volume.alloc.page()
}

impl FileCapture {
    fn build(&mut self, txn: &mut Txn<'_>, c: &mut Consistent) -> Result<()> {
        for range in &self.dirty {
            txn.flush(range.start, range.end - range.start);
        }
        let volume = txn.volume();
        let (nodes, mut root) = (&mut self.nodes, self.root);
        let mut pages = c.pages as i64;
        for (block, extent) in &self.extents {
            match extent.to {
                Mapping::Hole => {
                    let mut gone = Vec::new();
                    tree::clear(txn, &mut root, *block..block + extent.len, &mut |freed| {
                        gone.push(freed)
                    })?;
                    pages -= gone.len() as i64;
                    for Freed::Data(page) | Freed::Node(page) in gone {
                        txn.bury().page(page);
                    }
                }
                Mapping::Pages { first, in_tree } => {
                    if !first.unwritten {
                        txn.flush(page_at(first.page), extent.len * PAGE);
                    }
                    if !in_tree {
                        volume
                            .alloc
                            .claim_pages(first.page..first.page + extent.len);
                        pages += extent.len as i64;
                    }
                    txn.set_eager((block + extent.len) * PAGE <= c.size);
                    let mut added = 0;
                    let mut old = Vec::new();
                    let mut node = || {
                        added += 1;
                        take_page(volume, nodes)
                    };
                    tree::insert(
                        txn,
                        &mut root,
                        *block,
                        first,
                        extent.len,
                        &mut node,
                        &mut |p| old.push(p),
                    )?;
                    txn.set_eager(false);
                    pages += added - old.len() as i64;
                    for Pointer { page, .. } in old {
                        txn.bury().page(page);
                    }
                }
            }
        }
        c.pages = pages.max(0) as u64;
        c.root = root;
        Ok(())
    }
}

/// Free an inode without names and handles, if it is: DRAM forgets it, and what it holds is
/// returned to be buried. For the persister, between batches or after the commit that removed it.
pub fn free_inode(volume: &Volume, inode: &Inode) -> Result<Option<Grave>> {
    if !inode.is_freed() && !inode.try_free() {
        return Ok(None);
    }
    let published = inode.is_published();
    if !inode.set_discarded() {
        return Ok(Some(Grave::default()));
    }
    volume.table.remove(inode.ino);
    let mut grave = Grave {
        pairs: vec![inode.ino],
        ..Grave::default()
    };
    let xattrs = inode.meta.lock().rare().and_then(|rare| rare.xattrs.take());
    if let Some(mut xattrs) = xattrs {
        xattrs
            .tear_down(volume)
            .into_iter()
            .for_each(|page| grave.page(page));
    } else if published {
        let first = volume.pool.load(line_at(inode.ino) + layout::XATTR);
        let (pages, _) = volume.image().xattr_bytes(inode.ino, first)?;
        pages.into_iter().for_each(|page| grave.page(page));
    }
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
        Body::Special => 0,
    };
    if let Some(root) = volume.image().root(inode.ino, root)? {
        tree::collect(
            &*volume.pool,
            &volume.image(),
            root.top,
            root.height,
            &mut |freed| {
                let (Freed::Data(page) | Freed::Node(page)) = freed;
                grave.page(page);
            },
        )?;
    }
    Ok(Some(grave))
}

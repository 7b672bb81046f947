//! What a mount has: the blocks, what of them is free, and the inodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use vfs::{Clock, Errno, Error, Kind, NewKind, NewNode, Result};

use crate::alloc::Alloc;
use crate::attributes::{Attributes, FAST_SYMLINK_MAX};
use crate::dir;
use crate::fault::{Fault, unless};
use crate::features;
use crate::file;
use crate::image::StoredInode;
use crate::image::xattr::{self, Xattr};
use crate::inode::{Inode, Node, Owner, State};
use crate::inode_table::InodeTable;
use crate::layout::{INODE_EXTRA_LEN, INODE_LEN, InodeFlags, POINTERS};
use crate::map;
use crate::medium::Medium;
use crate::order::Action;
use crate::order::graph::On;
use crate::order::wave;
use crate::orphans::List;
use crate::shared::BigReaderLock;
use crate::snapshot::Snapshots;

/// A mounted file system's parts.
pub struct Volume {
    pub(crate) medium: Medium,
    pub(crate) alloc: Alloc,
    pub(crate) inodes: InodeTable,
    pub(crate) clock: Arc<dyn Clock>,
    /// Key of the hash of names.
    pub(crate) hash_key: [u8; 16],
    pub(crate) is_writable: bool,
    /// Shared by who changes names of one directory, with those [locked](Inode::names), or reads
    /// them; who changes more than that has it alone. Locks of directories come after it, then
    /// those of inodes; of the latter a thread has one at a time.
    pub(crate) names: BigReaderLock,
    /// Inodes that have no names, and are not free; if rounds are transactions.
    pub(crate) orphans: Mutex<List>,
    /// Of those, the ones that nobody uses any more. Freeing one is an operation by itself.
    pub(crate) doomed: Mutex<Vec<StoredInode>>,
    /// A crash has left things that are being searched for.
    pub(crate) reclaiming: AtomicBool,
    /// The next inode's generation.
    pub(crate) generation: AtomicU32,
    /// What keeps blocks as they were.
    pub(crate) snapshots: Snapshots,
}

impl Volume {
    /// What is on a medium.
    pub(crate) fn new(
        medium: Medium,
        alloc: Alloc,
        clock: Arc<dyn Clock>,
        hash_key: [u8; 16],
        is_writable: bool,
    ) -> Volume {
        Volume {
            medium,
            alloc,
            inodes: InodeTable::default(),
            hash_key,
            is_writable,
            reclaiming: AtomicBool::default(),
            names: BigReaderLock::default(),
            orphans: Mutex::default(),
            doomed: Mutex::default(),
            generation: AtomicU32::new(clock.now().0 as u32),
            snapshots: Snapshots::default(),
            clock,
        }
    }

    /// The inode of this number, in DRAM; what `missing` says if there is none.
    pub(crate) fn inode(
        self: &Arc<Volume>,
        ino: u32,
        missing: impl FnOnce() -> Error,
    ) -> Result<Node> {
        self.inodes.get(ino, || match self.medium.inode(ino)? {
            Some(stored) => Ok(self.in_dram(State::new(stored))),
            None => Err(missing()),
        })
    }

    /// An inode that a crash left, in DRAM: it is freed with its last user if it has no names.
    pub(crate) fn orphan(self: &Arc<Volume>, stored: StoredInode) -> Result<Node> {
        let ino = stored.ino;
        self.inodes
            .get(ino, || Ok(self.in_dram(State::new(stored))))
    }

    fn in_dram(self: &Arc<Volume>, state: State) -> Inode {
        Inode {
            ino: state.stored.ino,
            kind: state.stored.attributes.kind,
            owner: self.clone(),
            names: RwLock::default(),
            state: RwLock::new(state),
        }
    }

    /// Makes an inode that has `links` names; a directory in `parent`.
    ///
    /// # Errors
    /// `ENOSPC`, `ENAMETOOLONG`; what extended attributes may fail with. The disk failed.
    pub(crate) fn make(
        self: &Arc<Volume>,
        new: &NewNode<'_>,
        parent: u32,
        links: u16,
    ) -> Result<Node> {
        let kind = new.kind.kind();
        let ino = self
            .alloc
            .take_inode(&self.medium, parent, kind == Kind::Dir)?;
        let bit = [On::Block(self.alloc.inode_bitmap(&self.medium, ino))];
        let mut after = unless(Fault::InodeBeforeBit, &bit).to_vec();
        let above = self.medium.place(parent)?;
        if kind == Kind::Dir && self.medium.order.is_guarded(above) {
            // What its `..` names is there before.
            after.extend(unless(Fault::InodeBeforeParent, &[On::Place(above)]));
        }
        let mut stored = match self.new_inode(new, ino, links) {
            Ok(stored) => stored,
            Err(error) => {
                self.alloc
                    .free_inode(&self.medium, ino, kind == Kind::Dir)?;
                return Err(error);
            }
        };
        self.medium.make_inode(&stored, self.clock.now(), &after)?;
        self.snapshots.note(&stored);
        if let Err(error) = self.fill(new, parent, &mut stored) {
            self.free(&mut stored)?;
            return Err(error);
        }
        let has_more = matches!(new.kind, NewKind::Dir | NewKind::Symlink(_));
        if has_more || !new.xattrs.is_empty() || links == 0 {
            self.store(&stored)?;
        }
        let mut state = State::new(stored);
        state.is_tmpfile = links == 0;
        state.is_trimmed = true;
        self.inodes.get(ino, || Ok(self.in_dram(state)))
    }

    /// An inode without contents.
    fn new_inode(&self, new: &NewNode<'_>, ino: u32, links: u16) -> Result<StoredInode> {
        let now = self.clock.now();
        let mut pointers = [0; POINTERS];
        if let NewKind::CharDev(rdev) | NewKind::BlockDev(rdev) = new.kind {
            // The old form has 8 bits each for the two parts of the number.
            let is_old = rdev & !0xFFFF == 0 && rdev != 0;
            pointers[usize::from(!is_old)] = rdev;
        }
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let attributes = Attributes {
            kind: new.kind.kind(),
            perm: new.perm & 0o7777,
            links,
            uid: new.uid,
            gid: new.gid,
            size: 0,
            sectors: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            has_fine_times: self.medium.geometry.inode_size as usize > INODE_LEN,
            flags: InodeFlags::empty(),
            generation: generation.wrapping_add(1),
            pointers,
            xattr_block: 0,
        };
        let room = self.medium.geometry.inode_size as usize - INODE_LEN;
        let (at, _) = self.medium.inode_place(ino)?;
        Ok(StoredInode {
            ino,
            at,
            attributes,
            xattrs: vec![0; room.saturating_sub(INODE_EXTRA_LEN)],
        })
    }

    /// Gives a new inode what it is born with.
    fn fill(&self, new: &NewNode<'_>, parent: u32, stored: &mut StoredInode) -> Result<()> {
        let (medium, block_size) = (&self.medium, self.medium.geometry.block_size as usize);
        match new.kind {
            NewKind::Dir => {
                let at = map::change::assign(medium, &self.alloc, stored, 0)?;
                let has_kinds = medium.geometry.features.incompat & features::FILETYPE != 0;
                medium.cache.change(at, |block| {
                    dir::set_up_first_block(block, has_kinds, stored.ino, parent)
                })?;
                stored.attributes.size = block_size as u64;
            }
            NewKind::Symlink(target) if target.len() as u64 <= FAST_SYMLINK_MAX => {
                let mut bytes = [0; 4 * POINTERS];
                bytes[..target.len()].copy_from_slice(target);
                for (pointer, word) in stored
                    .attributes
                    .pointers
                    .iter_mut()
                    .zip(bytes.chunks_exact(4))
                {
                    *pointer = u32::from_le_bytes(word.try_into().expect("four bytes"));
                }
                stored.attributes.size = target.len() as u64;
            }
            NewKind::Symlink(target) if target.len() < block_size => {
                file::write(medium, &self.alloc, stored, 0, target)?;
            }
            NewKind::Symlink(_) => return Err(Errno::NAMETOOLONG.into()),
            _ => {}
        }
        let xattrs = new
            .xattrs
            .iter()
            .map(|(name, value)| (name.to_vec(), value.to_vec()));
        let xattrs: Vec<Xattr> = xattrs.collect();
        match xattrs.is_empty() {
            true => Ok(()),
            false => self.set_xattrs(stored, &xattrs),
        }
    }

    /// Replaces all extended attributes. If that fails, they are as before.
    ///
    /// # Errors
    /// `ENOSPC`, `EOPNOTSUPP`, `EINVAL`; the disk failed.
    pub(crate) fn set_xattrs(&self, stored: &mut StoredInode, all: &[Xattr]) -> Result<()> {
        let medium = &self.medium;
        // Where the superblock does not list the feature, no inode may have a block of them.
        let room = match medium.geometry.features.compat & features::EXT_ATTR {
            0 => 0,
            _ => medium.geometry.block_size as usize,
        };
        let (inside, block) = xattr::encode(all, stored.xattrs.len(), room)?;
        let sectors = u64::from(medium.geometry.block_size / 512);
        let old = stored.attributes.xattr_block;
        // A new block: an old one may be shared with other inodes.
        let new = match &block {
            Some(bytes) => {
                let goal = self.alloc.goal(medium, stored.ino);
                let new = self.alloc.take_block(medium, goal)?;
                medium
                    .cache
                    .change(new.into(), |to| to.copy_from_slice(bytes))?;
                stored.attributes.sectors += sectors;
                let claimed = self.alloc.claimed(medium, new);
                medium.hold(stored.ino, unless(Fault::XattrsFirst, &claimed))?;
                u64::from(new)
            }
            None => 0,
        };
        stored.xattrs = inside;
        stored.attributes.xattr_block = new;
        if old != 0 {
            stored.attributes.sectors = stored.attributes.sectors.saturating_sub(sectors);
            self.give_up_xattrs(stored, old)?;
        }
        Ok(())
    }

    /// An inode has no use for a block of attributes any more.
    fn give_up_xattrs(&self, stored: &StoredInode, block: u64) -> Result<()> {
        let medium = &self.medium;
        medium.follow(stored.at, block)?;
        // The inode is about to be stored: its block is to be written.
        medium.hold(stored.ino, &[])?;
        let holder = stored.at;
        let action = Action::DropXattrs { holder, block };
        let after = [On::Place(medium.place(stored.ino)?)];
        let after = unless(Fault::XattrsFreedEarly, &after);
        match medium.order.after(&medium.cache, action, after) {
            Some(action) => self.run(action),
            None => Ok(()),
        }
    }

    /// An inode that is in block `holder` does not refer to a block of attributes any more.
    fn drop_xattr_block(&self, holder: u64, block: u64) -> Result<()> {
        let cache = &self.medium.cache;
        self.medium.follow(holder, block)?;
        let is_shared = cache.change(block, |bytes| {
            let count = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
            bytes[4..8].copy_from_slice(&count.saturating_sub(1).to_le_bytes());
            count > 1
        })?;
        match is_shared {
            true => Ok(()),
            false => self.free_blocks(holder, &[block as u32]),
        }
    }

    /// Gives blocks back that something in block `holder` led to: to a snapshot that has a use for
    /// them, or to all. Of what a transaction frees snapshots take what they want when that is
    /// complete.
    pub(crate) fn free_blocks(&self, holder: u64, blocks: &[u32]) -> Result<()> {
        let Volume { medium, alloc, .. } = self;
        for &block in blocks {
            let is_claimed =
                !medium.order.is_journal() && self.snapshots.claim(medium, alloc, block.into());
            if !is_claimed {
                alloc.free_block(medium, holder, block)?;
            }
        }
        Ok(())
    }

    /// Stores an inode in its block.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn store(&self, stored: &StoredInode) -> Result<()> {
        let now = self.clock.now();
        self.snapshots.note(stored);
        match self.medium.order.is_journal() {
            true => self.orphans.lock().store(&self.medium, stored, now),
            false => self.medium.store_inode(stored, now),
        }
    }

    /// Does what nothing on disk speaks against any more.
    ///
    /// # Errors
    /// The disk failed, or damage was found.
    pub(crate) fn run(&self, action: Action) -> Result<()> {
        let medium = &self.medium;
        match action {
            Action::Arrived { ino, tag } => {
                medium.untag(ino, tag)?;
                self.run(Action::Lower { ino, by: 1 })
            }
            Action::FreeBlocks { holder, blocks } => self.free_blocks(holder, &blocks),
            Action::Release { block } => {
                self.snapshots.release(block);
                Ok(())
            }
            Action::Reached(reached) => {
                reached.store(true, Ordering::Release);
                Ok(())
            }
            Action::Dropped { ino } => {
                self.snapshots.dropped(ino);
                Ok(())
            }
            Action::DropXattrs { holder, block } => self.drop_xattr_block(holder, block),
            Action::Lower { ino, by } => {
                medium.lower(ino, by, self.clock.now())?;
                match medium.order.unnamed(&medium.cache, ino) {
                    Some(mut stored) => self.free(&mut stored).map(drop),
                    None => Ok(()),
                }
            }
            Action::FreeInode(mut stored) => self.free(&mut stored).map(drop),
            Action::FreeInodeBit { ino, is_dir } => self.alloc.free_inode(medium, ino, is_dir),
        }
    }

    /// Frees an inode that nobody uses, and all that it has: `false` if some of that is left for
    /// the next operation.
    ///
    /// # Errors
    /// It is damaged, or the disk failed: something may stay in use.
    pub(crate) fn free(&self, stored: &mut StoredInode) -> Result<bool> {
        if stored.attributes.has_blocks()
            && map::change::remove(&self.medium, &self.alloc, stored, 0..u64::MAX)? > 0
        {
            self.store(stored)?;
            return Ok(false);
        }
        self.free_empty(stored).map(|()| true)
    }

    /// The same of one that has no blocks.
    fn free_empty(&self, stored: &mut StoredInode) -> Result<()> {
        let xattrs = std::mem::take(&mut stored.attributes.xattr_block);
        if xattrs != 0 {
            self.give_up_xattrs(stored, xattrs)?;
        }
        let attributes = &mut stored.attributes;
        (attributes.links, attributes.size, attributes.sectors) = (0, 0, 0);
        self.orphans.lock().remove(&self.medium, stored.ino)?;
        self.medium.store_inode(stored, self.clock.now())?;
        self.snapshots.note_free(stored.ino);
        let action = Action::FreeInodeBit {
            ino: stored.ino,
            is_dir: stored.attributes.kind == Kind::Dir,
        };
        let medium = &self.medium;
        let place = medium.place(stored.ino)?;
        let after = [On::Place(place)];
        let after = unless(Fault::InodeBitFirst, &after);
        if let Some(action) = medium.order.after(&medium.cache, action, after) {
            return self.run(action);
        }
        // One that was never on disk is free at once, and its block as it was.
        if let Some(old) = medium.order.fresh_inode(place) {
            let offset = place.offset();
            medium.cache.change(place.block(), |bytes| {
                bytes[offset..offset + old.len()].copy_from_slice(&old)
            })?;
            // From here on somebody else may use it.
            medium.order.forget(place);
        }
        let ready = medium.order.take_ready(&medium.cache);
        ready.into_iter().try_for_each(|action| self.run(action))
    }
}

impl Volume {
    /// Nothing is in use that nobody has.
    pub(crate) fn is_whole(&self) -> bool {
        !self.reclaiming.load(Ordering::SeqCst) && !self.medium.cache.may_have_lost()
    }

    /// An inode that nobody uses, and that is to be freed.
    pub(crate) fn next_doomed(&self) -> Option<StoredInode> {
        self.doomed.lock().pop()
    }

    /// Whether there is one.
    pub(crate) fn has_doomed(&self) -> bool {
        !self.doomed.lock().is_empty()
    }

    /// Blocks and inodes that are going to be free.
    pub(crate) fn coming(&self) -> (u64, u64) {
        let block_size = self.medium.cache.block_size() as u64;
        let doomed = self.doomed.lock();
        let blocks = doomed
            .iter()
            .map(|inode| inode.attributes.sectors * 512 / block_size);
        let (blocks, inodes) = (blocks.sum::<u64>(), doomed.len() as u64);
        let (tasks_blocks, tasks_inodes) = self.medium.order.coming();
        (blocks + tasks_blocks, inodes + tasks_inodes)
    }
}

impl wave::Mount for Volume {
    fn run(&self, action: Action) -> Result<()> {
        Volume::run(self, action)
    }

    /// There are no transactions.
    fn complete(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    fn ended(&self, _: bool) {}

    fn keep(&self, blocks: &dyn Fn() -> Vec<u64>) -> Result<()> {
        self.snapshots.keep(&self.medium, &self.alloc, blocks)
    }

    fn may_write(&self, block: u64) -> bool {
        self.snapshots.may_write(&self.medium, block)
    }

    fn give_up_keeping(&self) -> Result<bool> {
        self.snapshots.give_up(&self.medium)
    }
}

impl Owner for Volume {
    fn nameless(&self, inode: &mut StoredInode) {
        if !self.is_writable {
            return;
        }
        if self.medium.order.is_journal() {
            self.doomed.lock().push(inode.clone());
            return;
        }
        let _operation = self.medium.order.begin();
        let Medium { order, cache, .. } = &self.medium;
        if order.nameless(cache, inode) {
            return;
        }
        if let Err(error) = self.free(inode) {
            log::error!("inode {}: not all of it is freed: {error}", inode.ino);
            self.medium.cache.note_failure(&error);
        }
    }
}

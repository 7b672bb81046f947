//! Snapshots: what keeps blocks as they were when each was made (section 6 of the paper).
//!
//! A snapshot is a sparse file as long as the disk. Where it has a hole the disk has what was there
//! (or nothing was); where it has a block, that is a copy, or block N itself at N: it was freed
//! since, and nobody else may have it. Its copies of the bitmaps, made with it, say what was in
//! use. States: *making*, nothing is kept yet; *active*; *ending*, nothing is copied any more, and
//! what it wants is not overwritten until it is durably none; *given up*, the same, but it is
//! damaged, and nothing waits for it; *gone*.
//!
//! Before a wave [`Snapshots::keep`] gives each active snapshot copies of the dirty blocks that it
//! wants, and [`Snapshots::may_write`] lets those be written when the copies can be reached from
//! the snapshot's inode on disk. What is written for that (bitmaps, copies, the snapshot's indirect
//! blocks and its inode) no snapshot wants: so it never waits for itself. [`Snapshots::claim`] is
//! asked before a block becomes free.
//!
//! Where rounds are transactions nothing waits: what `keep` gives is durable when it returns (see
//! [`patch`]), and [`Snapshots::adopt`] takes what a transaction frees. Who writes calls both.
//!
//! Locks: the list, then a snapshot's inode, then as for any other inode.

mod patch;
mod record;
mod transactions;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use block::Buffer;
use parking_lot::{Mutex, MutexGuard};
use schedule::RwLock;
use vfs::{Error, Result, Time};

use crate::alloc::Alloc;
use crate::fault::{Fault, injected, unless};
use crate::image::StoredInode;
use crate::layout::InodeFlags;
use crate::map;
use crate::map::change::How;
use crate::medium::Medium;
use crate::near::NearSet;
use crate::order::Action;
use crate::order::graph::On;
use crate::shared::{BriefMutex, PARTS, Padded, part_of};

use patch::Patch;
pub use record::{NAME as RECORD_NAME, Record};

/// The directory in the root that has them.
pub const DIR_NAME: &[u8] = b".snapshots";
/// How many there may be.
pub const COUNT_MAX: usize = 20;
/// Blocks that are read at once to be copied.
const READS_MAX: usize = 256;
/// Blocks of which it is remembered that nobody wants them.
const UNWANTED_MAX: usize = 1 << 20;
/// Bitmaps that are remembered of a snapshot.
const BITMAPS_MAX: usize = 1024;

/// Where a snapshot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It keeps nothing yet.
    Making,
    /// It keeps what it wants.
    Active,
    /// It is about to be none, durably.
    Ending,
    /// The same, and nothing waits for that.
    GivenUp,
    /// It is none.
    Gone,
}

/// One of them.
pub struct Snapshot {
    /// Its inode.
    pub ino: u32,
    /// Its name.
    pub name: String,
    /// What it says of itself.
    pub record: Record,
    state: Mutex<State>,
    /// As it is stored.
    stored: RwLock<StoredInode>,
    /// Bitmaps of groups, as they were.
    bitmaps: Mutex<HashMap<u32, Arc<[u8]>>>,
}

impl Snapshot {
    /// Of an inode.
    pub fn new(name: String, record: Record, stored: StoredInode, state: State) -> Snapshot {
        Snapshot {
            ino: stored.ino,
            name,
            record,
            state: Mutex::new(state),
            stored: RwLock::new(stored),
            bitmaps: Mutex::default(),
        }
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        *self.state.lock()
    }

    pub(crate) fn set_state(&self, state: State) {
        *self.state.lock() = state;
    }

    /// Its inode, as it is now.
    pub fn stored(&self) -> StoredInode {
        self.stored.read().clone()
    }

    /// Where on the disk it has block `block` and how many that follow it in both, or lack in it;
    /// `None`: it has none.
    ///
    /// # Errors
    /// It is damaged, or the disk failed.
    pub fn run(&self, medium: &Medium, block: u64) -> Result<map::Run> {
        map::run(medium, &self.stored.read(), block, u64::MAX)
    }

    /// Whether a block was in use.
    ///
    /// # Errors
    /// It is damaged, or the disk failed.
    pub fn in_use(&self, medium: &Medium, block: u64) -> Result<bool> {
        let g = &medium.geometry;
        if block < g.first_block || block >= g.blocks {
            // In front of the groups, where there is no bit.
            return Ok(block < g.first_block);
        }
        let group = ((block - g.first_block) / u64::from(g.blocks_per_group)) as u32;
        let bit = (block - g.group_start(group)) as usize;
        let bitmap = self.bitmaps.lock().get(&group).cloned();
        let bitmap = match bitmap {
            Some(bitmap) => bitmap,
            None => self.read_bitmap(medium, group)?,
        };
        Ok(bitmap[bit / 8] & (1 << (bit % 8)) != 0)
    }

    fn read_bitmap(&self, medium: &Medium, group: u32) -> Result<Arc<[u8]>> {
        let number = medium.group(group)?.block_bitmap;
        let Some(copy) = self.run(medium, number)?.block else {
            let at = self.stored.read().at;
            let what = format_args!(
                "snapshot {}: it has no copy of the bitmap of group {group}",
                self.name
            );
            return Err(medium.geometry.damage(at, what));
        };
        let bytes: Arc<[u8]> = medium.cache.read(copy)?.bytes()[..].into();
        let mut bitmaps = self.bitmaps.lock();
        if bitmaps.len() >= BITMAPS_MAX {
            bitmaps.clear();
        }
        bitmaps.insert(group, bytes.clone());
        Ok(bytes)
    }

    /// Whether it has to have what is on disk in a block.
    fn wants(&self, medium: &Medium, block: u64) -> Result<bool> {
        if !medium.geometry.has_block(block) || !self.in_use(medium, block)? {
            return Ok(false);
        }
        Ok(self.run(medium, block)?.block.is_none())
    }

    /// Gives it room for a block.
    ///
    /// # Errors
    /// `ENOSPC`; the disk failed.
    pub fn reserve(&self, medium: &Medium, alloc: &Alloc, block: u64) -> Result<()> {
        self.add(medium, alloc, &mut self.stored.write(), block, How::Stays)
            .map(drop)
    }

    /// Lets it have `bytes` as a block. They are durable when the conditions hold.
    ///
    /// # Errors
    /// `ENOSPC`; the disk failed.
    pub fn put(&self, medium: &Medium, alloc: &Alloc, block: u64, bytes: &[u8]) -> Result<Vec<On>> {
        let mut stored = self.stored.write();
        let copy = self.add(medium, alloc, &mut stored, block, How::Stays)?;
        let write = |to: &mut [u8]| to.copy_from_slice(bytes);
        medium.cache.overwrite(copy, 0, write)?;
        // What is not guarded was durable before: the pointers on the way here.
        let mut places = map::places(medium, &stored, block)?;
        places.push(medium.place(self.ino)?);
        places.retain(|&place| medium.order.is_guarded(place));
        Ok(places.into_iter().map(On::Place).collect())
    }

    /// Takes a block that is about to be free, if it wants it.
    fn claim(&self, medium: &Medium, alloc: &Alloc, block: u64) -> Result<bool> {
        if !self.wants(medium, block)? {
            return Ok(false);
        }
        self.add(medium, alloc, &mut self.stored.write(), block, How::Adopts)?;
        Ok(true)
    }

    fn add(
        &self,
        medium: &Medium,
        alloc: &Alloc,
        stored: &mut StoredInode,
        block: u64,
        how: How,
    ) -> Result<u64> {
        let added = map::change::add(medium, alloc, stored, block, how);
        // It may have got indirect blocks in vain.
        medium.store_inode(stored, Time::default())?;
        added
    }

    /// Lets it be one, or none, on disk: durably, when its inode is.
    ///
    /// # Errors
    /// The disk failed.
    pub fn seal(&self, medium: &Medium, is_one: bool) -> Result<()> {
        let mut stored = self.stored.write();
        stored.attributes.flags.set(InodeFlags::IMMUTABLE, is_one);
        medium.store_inode(&stored, Time::default())
    }

    /// Bytes of the disk that it takes.
    pub fn space(&self) -> u64 {
        self.stored.read().attributes.sectors * 512
    }
}

/// How long operations were stopped for a snapshot, and what was written meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suspension {
    /// Nanoseconds, by the clock of the mount.
    pub ns: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// What was done for snapshots since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that were copied before they were overwritten.
    pub copied: u64,
    /// Blocks that were kept when they were freed.
    pub claimed: u64,
    /// Snapshots that were given up for want of space.
    pub lost: u64,
}

/// Those of a mount.
#[derive(Default)]
pub struct Snapshots {
    /// How many are in the list.
    len: AtomicUsize,
    /// Older ones first.
    list: RwLock<Vec<Arc<Snapshot>>>,
    /// The directory that they are in; 0: there is none.
    dir: AtomicU32,
    /// Held by who makes one, or removes files of them.
    pub(crate) making: Mutex<()>,
    /// How many copies of a block are not durable yet.
    held: Mutex<HashMap<u64, usize>>,
    /// Blocks that nobody wants.
    unwanted: Mutex<HashSet<u64>>,
    /// Files that are none any more, to be removed.
    pub(crate) files: Mutex<Vec<Arc<Snapshot>>>,
    /// Inodes that have no names and are not free, in parts.
    nameless: [Padded<BriefMutex<NearSet<u32>>>; PARTS],
    /// How many there are.
    nameless_len: AtomicUsize,
    /// What they have got that is not committed, where rounds are transactions: of who writes.
    patch: Mutex<Patch>,
    copied: AtomicU64,
    claimed: AtomicU64,
    lost: AtomicU64,
    /// How long the last one stopped operations.
    pub(crate) suspended: Mutex<Suspension>,
}

impl Snapshots {
    /// All of them, older ones first.
    pub fn all(&self) -> Vec<Arc<Snapshot>> {
        match self.len.load(Ordering::Acquire) {
            0 => Vec::new(),
            _ => self.list.read().clone(),
        }
    }

    /// The one with this inode.
    pub fn of(&self, ino: u32) -> Option<Arc<Snapshot>> {
        self.all().into_iter().find(|one| one.ino == ino)
    }

    /// The number of their directory.
    pub fn dir(&self) -> Option<u32> {
        Some(self.dir.load(Ordering::Acquire)).filter(|&ino| ino != 0)
    }

    pub(crate) fn set_dir(&self, ino: Option<u32>) {
        self.dir.store(ino.unwrap_or(0), Ordering::Release);
    }

    /// Whether an inode is one of them, or their directory: only they are changed, by what is here.
    pub fn owns(&self, ino: u32) -> bool {
        self.dir() == Some(ino) || self.of(ino).is_some()
    }

    /// A new one.
    pub fn insert(&self, one: Arc<Snapshot>) {
        let mut list = self.list.write();
        list.push(one);
        list.sort_by_key(|one| one.record.sequence);
        self.len.store(list.len(), Ordering::Release);
        self.forget_unwanted();
    }

    /// A snapshot keeps what it wants from here on.
    pub fn activate(&self, one: &Snapshot) {
        one.set_state(State::Active);
        self.forget_unwanted();
    }

    fn forget_unwanted(&self) {
        if !injected(Fault::UnwantedStale) {
            self.unwanted.lock().clear();
        }
    }

    /// Takes one from the list: nothing is kept for it.
    pub fn remove(&self, ino: u32) -> Option<Arc<Snapshot>> {
        let mut list = self.list.write();
        let place = list.iter().position(|one| one.ino == ino)?;
        let one = list.remove(place);
        self.len.store(list.len(), Ordering::Release);
        one.set_state(State::Gone);
        Some(one)
    }

    /// What was done.
    pub fn counts(&self) -> Counts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            copied: load(&self.copied),
            claimed: load(&self.claimed),
            lost: load(&self.lost),
        }
    }

    /// An inode is stored, by who has it locked.
    pub fn note(&self, stored: &StoredInode) {
        let ino = stored.ino;
        if stored.attributes.links > 0 {
            self.note_free(ino);
        } else if self.nameless_beside(ino).insert(ino) {
            self.nameless_len.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An inode is free, or has names.
    pub fn note_free(&self, ino: u32) {
        // If this one is there, it was counted by who had it locked before.
        let is_any = self.nameless_len.load(Ordering::Relaxed) > 0;
        if is_any && self.nameless_beside(ino).remove(&ino) {
            self.nameless_len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Inodes that have no names, and are not free.
    pub fn nameless(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for part in &self.nameless {
            all.extend(part.lock().iter().copied());
        }
        all
    }

    fn nameless_beside(&self, ino: u32) -> MutexGuard<'_, NearSet<u32>> {
        self.nameless[part_of(ino.into())].lock()
    }

    /// Gives snapshots copies of dirty blocks that they want. Called by who writes, while no write
    /// is in flight. What cannot have a copy ends.
    ///
    /// # Errors
    /// The disk failed.
    pub fn keep(
        &self,
        medium: &Medium,
        alloc: &Alloc,
        blocks: &dyn Fn() -> Vec<u64>,
    ) -> Result<()> {
        if self.len.load(Ordering::Acquire) == 0 || injected(Fault::CopyForgotten) {
            return Ok(());
        }
        self.keep_blocks(medium, alloc, &blocks())
    }

    /// Gives snapshots copies of blocks that they want.
    ///
    /// # Errors
    /// The disk failed.
    pub fn keep_blocks(&self, medium: &Medium, alloc: &Alloc, blocks: &[u64]) -> Result<()> {
        let mut wanted = Vec::new();
        for &block in blocks {
            let wants = self.wanting(medium, block)?;
            if !wants.is_empty() {
                wanted.push((block, wants));
            } else if medium.order.is_journal() {
                self.note_unwanted(block);
            }
        }
        let block_size = u64::from(medium.geometry.block_size);
        let failed = |error: block::BlockError| Error::medium(error.to_string());
        for part in wanted.chunks(READS_MAX) {
            let read = |&(block, _): &(u64, _)| {
                let into = vec![Buffer::zeroed(block_size as usize)];
                medium.cache.disk().submit_read(block * block_size, into)
            };
            let tickets: Vec<_> = part.iter().map(read).collect();
            for ((block, wants), ticket) in part.iter().zip(tickets) {
                let bytes = ticket.wait().map_err(failed)?.remove(0);
                for one in wants.iter().filter(|one| one.state() == State::Active) {
                    self.copy(medium, alloc, one, (*block, &bytes))?;
                }
            }
        }
        match medium.order.is_journal() {
            true => self.commit(medium, alloc),
            false => Ok(()),
        }
    }

    /// The snapshots that have to have a copy of a block first, newer ones in front.
    fn wanting(&self, medium: &Medium, block: u64) -> Result<Vec<Arc<Snapshot>>> {
        if self.unwanted.lock().contains(&block) {
            return Ok(Vec::new());
        }
        let mut wanting = Vec::new();
        for one in self.all().into_iter().rev() {
            if one.state() != State::Active {
                continue;
            }
            match one.wants(medium, block) {
                Ok(true) => wanting.push(one),
                Ok(false) => {}
                Err(error) => self.lose(medium, &one, &error)?,
            }
        }
        Ok(wanting)
    }

    fn copy(
        &self,
        medium: &Medium,
        alloc: &Alloc,
        one: &Arc<Snapshot>,
        (block, bytes): (u64, &[u8]),
    ) -> Result<()> {
        if medium.order.is_journal() {
            return self.copy_apart(medium, alloc, one, (block, bytes));
        }
        let after = match one.put(medium, alloc, block, bytes) {
            Ok(after) => after,
            Err(error) => return self.lose(medium, one, &error),
        };
        self.copied.fetch_add(1, Ordering::Relaxed);
        *self.held.lock().entry(block).or_default() += 1;
        let action = Action::Release { block };
        if medium.order.after(&medium.cache, action, &after).is_some() {
            self.release(block);
        }
        Ok(())
    }

    /// One cannot be kept: it ends.
    fn lose(&self, medium: &Medium, one: &Arc<Snapshot>, why: &Error) -> Result<()> {
        log::error!("snapshot {} is lost, and is removed: {why}", one.name);
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.end(medium, one)
    }

    /// Ends a snapshot: it is none when its inode is durable, and then goes from the list. Where
    /// rounds are transactions, who writes calls this, and then [`Snapshots::commit`].
    ///
    /// # Errors
    /// The disk failed.
    pub fn end(&self, medium: &Medium, one: &Arc<Snapshot>) -> Result<()> {
        {
            let mut state = one.state.lock();
            if matches!(*state, State::Ending | State::GivenUp | State::Gone) {
                return Ok(());
            }
            *state = State::Ending;
        }
        one.seal(medium, false)?;
        if medium.order.is_journal() {
            return self.end_apart(medium, one);
        }
        let action = Action::Dropped { ino: one.ino };
        let after = [On::Place(medium.place(one.ino)?)];
        let after = unless(Fault::EndedEarly, &after);
        if medium.order.after(&medium.cache, action, after).is_some() {
            self.dropped(one.ino);
        }
        Ok(())
    }

    /// Nothing can be written, as snapshots want what their own copies are in. No sound one does:
    /// its bitmaps say that this was free. All of them end, and nothing waits for them. False:
    /// there are none.
    ///
    /// # Errors
    /// The disk failed.
    pub fn give_up(&self, medium: &Medium) -> Result<bool> {
        let keeps = |one: &Arc<Snapshot>| matches!(one.state(), State::Active | State::Ending);
        let all: Vec<_> = self.all().into_iter().filter(keeps).collect();
        for one in &all {
            if one.state() == State::Active {
                let why = medium
                    .geometry
                    .damage(one.stored().at, "it wants its own blocks");
                self.lose(medium, one, &why)?;
            }
            one.set_state(State::GivenUp);
        }
        self.held.lock().clear();
        Ok(!all.is_empty())
    }

    /// A snapshot is durably none.
    pub fn dropped(&self, ino: u32) {
        if let Some(one) = self.remove(ino) {
            self.files.lock().push(one);
        }
    }

    /// A copy of a block is durable.
    pub fn release(&self, block: u64) {
        let mut held = self.held.lock();
        let Some(count) = held.get_mut(&block) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            held.remove(&block);
        }
    }

    /// Whether a block may be written: all who want what it was have it, durably.
    pub fn may_write(&self, medium: &Medium, block: u64) -> bool {
        if self.len.load(Ordering::Acquire) == 0 || self.unwanted.lock().contains(&block) {
            return true;
        }
        if injected(Fault::CopyForgotten) {
            return true;
        }
        if self.held.lock().contains_key(&block) && !injected(Fault::CopyUnawaited) {
            return false;
        }
        let wants = |one: &Arc<Snapshot>| match one.state() {
            State::Making | State::GivenUp | State::Gone => false,
            // One that cannot tell is about to be lost; then it is in nobody's way, nor in its own:
            // its inode has to be written.
            state @ (State::Active | State::Ending) => {
                let wants = one.wants(medium, block);
                wants.unwrap_or(state == State::Active)
            }
        };
        if self.all().iter().any(wants) {
            return false;
        }
        self.note_unwanted(block);
        true
    }

    /// Nobody wants a block, until there is another snapshot.
    fn note_unwanted(&self, block: u64) {
        let mut unwanted = self.unwanted.lock();
        if unwanted.len() >= UNWANTED_MAX {
            unwanted.clear();
        }
        unwanted.insert(block);
    }

    /// A block is about to be free: the newest snapshot that wants it takes it. If that fails, what
    /// it held is copied when it is overwritten.
    pub fn claim(&self, medium: &Medium, alloc: &Alloc, block: u64) -> bool {
        for one in self.all().into_iter().rev() {
            if one.state() != State::Active || injected(Fault::ClaimForgotten) {
                continue;
            }
            match one.claim(medium, alloc, block) {
                Ok(true) => {
                    if injected(Fault::ClaimedFreed) {
                        return false;
                    }
                    // Nobody writes it any more.
                    medium.cache.forget(block);
                    medium.order.discard(block);
                    self.claimed.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Ok(false) => {}
                Err(error) => {
                    log::warn!(
                        "snapshot {}: block {block} is not claimed: {error}",
                        one.name
                    );
                    return false;
                }
            }
        }
        false
    }
}

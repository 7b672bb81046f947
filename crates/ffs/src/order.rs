//! What operations state about their changes, and what the modes make of it.
//!
//! An operation [begins](Order::begin), changes blocks in the cache, and makes a statement about
//! each change before which something else has to be durable. In the mode `async` a statement is
//! nothing, and what it gives up is free at once. In the mode `soft` it becomes guards and tasks of
//! the [`graph`], and [`wave::round`] writes what they admit.
//!
//! Locks: that of operations, shared by each and exclusive for who copies blocks; blocks; then that
//! of the state, then what is dirty.

mod before;
pub mod graph;
mod inodes;
mod place;
mod places;
pub mod wave;

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLockReadGuard;
use rustc_hash::FxHashMap;

use crate::cache::Cache;
use crate::fault::{Fault, injected};
use crate::image::StoredInode;
use crate::layout::DIR_CHUNK;
use crate::near::{NearMap, NearSet};
use crate::shared::{Alone, BigReaderLock, BriefMutex};
use before::Before;
use graph::{Form, Gone, Graph, Held, On, Place, Urgency};
use inodes::Inodes;
use place::Few;

/// What keeps order among the changes of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Nothing: a crash may leave anything.
    Async,
    /// Soft updates: a crash leaves a sound file system, but for space that nobody uses and link
    /// counts that are too high.
    #[default]
    Soft,
    /// Soft updates, and each operation that changes names settles them before it returns.
    Sync,
    /// Rounds are transactions in the journal of the image; contents of files are written before
    /// the transaction that leads to them.
    Ordered,
    /// Likewise, and contents are in the journal, too.
    Journal,
}

impl Mode {
    /// Whether it takes a journal.
    pub fn is_journaled(self) -> bool {
        matches!(self, Mode::Ordered | Mode::Journal)
    }

    /// Whether it takes soft updates.
    pub fn is_soft(self) -> bool {
        matches!(self, Mode::Soft | Mode::Sync)
    }
}

/// The order among the changes of a mount.
pub enum Order {
    /// There is none. The lock of operations.
    Async(BigReaderLock),
    /// There is none, as rounds are transactions.
    Journal(Journal),
    /// Soft updates.
    Soft(Box<Soft>),
}

/// Operations whose rounds are transactions.
#[derive(Default)]
pub struct Journal {
    operations: BigReaderLock,
    /// That were admitted, and have not ended.
    under_way: AtomicUsize,
}

/// An operation that was admitted, until this is dropped.
pub struct Admitted<'a>(&'a AtomicUsize);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Journal {
    /// Blocks that an operation may change beside [`Cache::operation_max`]. A rename between two
    /// directories that both grow takes the most: in each a block, and up to four that are new or
    /// lead there, with the bitmaps of those; the block of `..`, and those of four inodes.
    const BLOCKS: usize = 24;

    /// Bytes that an operation may change.
    fn each(cache: &Cache) -> usize {
        cache.operation_max() + Journal::BLOCKS * cache.block_size()
    }

    /// Lets an operation begin unless what all that are under way may change would, with what is
    /// dirty, not fit a transaction. One that is alone fits behind a round: see
    /// [`operation_blocks`].
    fn admit(&self, cache: &Cache) -> Option<Admitted<'_>> {
        let count = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        let admitted = Admitted(&self.under_way);
        let fits = cache.together() + count * Journal::each(cache) <= cache.together_max();
        fits.then_some(admitted)
    }
}

/// Blocks that an operation may change, where rounds are transactions.
pub fn operation_blocks(cache: &Cache) -> usize {
    Journal::each(cache).div_ceil(cache.block_size())
}

/// The state of soft updates.
#[derive(Default)]
pub struct Soft {
    operations: BigReaderLock,
    state: BriefMutex<State>,
    inodes: Inodes,
    coming: Coming,
    /// As often as [`SIZE_STEP`] fits into the number of guards and tasks, or of names that were
    /// left. It is looked at before each operation, and changes hardly ever.
    size: AtomicUsize,
    /// The number of the next wave that takes what chance has; 0: none does.
    scattered: AtomicUsize,
}

/// How exactly it is known how much there is, for who only wants to know whether it is too much.
const SIZE_STEP: usize = 512;

/// Blocks and inodes that tasks are going to free.
#[derive(Default)]
struct Coming(AtomicU64, AtomicU64);

impl Coming {
    fn add(&self, (blocks, inodes): (u64, u64)) {
        for (count, by) in [(&self.0, blocks), (&self.1, inodes)] {
            if by > 0 {
                count.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    fn sub(&self, (blocks, inodes): (u64, u64)) {
        for (count, by) in [(&self.0, blocks), (&self.1, inodes)] {
            if by > 0 {
                count.fetch_sub(by, Ordering::Relaxed);
            }
        }
    }

    fn get(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.0), get(&self.1))
    }
}

#[derive(Default)]
struct State {
    graph: Graph<Action>,
    /// Where an inode has names that may not be on disk yet.
    names: NearMap<u32, Few<Place>>,
    /// Where the disk may still have a name that an inode has lost.
    lost: NearMap<u32, Few<Place>>,
    /// Names that directories have lost, newer ones in front.
    left: [Left; 2],
    /// Directories that have lost the kernel's index of their names: whether the disk has it no
    /// more.
    unindexed: NearMap<u32, Arc<AtomicBool>>,
    /// Before what operations may not go on.
    before: Vec<On>,
    /// Snapshots are to have what these blocks were: the tasks that say so.
    held: Held,
    /// Inodes whose names changed places. They go when a round ends.
    exchanged: NearSet<u32>,
}

/// What is remembered of names that directories have lost. Some of it is not true any more until it
/// is forgotten: that does no harm.
#[derive(Default)]
struct Left {
    /// Where the disk may still have them.
    places: FxHashMap<Name, Few<Place>>,
    /// The inodes of the disk that moved on from them.
    passed: FxHashMap<Name, Vec<u32>>,
}

impl Left {
    fn len(&self) -> usize {
        self.places.len() + self.passed.len()
    }
}

/// The places that an inode has in a map.
fn all_of(places: &NearMap<u32, Few<Place>>, ino: u32) -> impl Iterator<Item = &Place> {
    places.get(&ino).map(Few::all).into_iter().flatten()
}

/// A name in a directory: the directory's number, and the hash of the name.
pub type Name = (u32, u64);

/// What is done when nothing on disk speaks against it any more.
#[derive(Debug)]
pub enum Action {
    /// Clears the bits of blocks that something in block `holder` led to.
    FreeBlocks {
        /// It is to blame if they are free.
        holder: u64,
        /// They.
        blocks: Vec<u32>,
    },
    /// An inode less refers to a block of extended attributes.
    DropXattrs {
        /// That inode's block.
        holder: u64,
        /// The block.
        block: u64,
    },
    /// Lowers a link count.
    Lower {
        /// Of this inode.
        ino: u32,
        /// By so many.
        by: u16,
    },
    /// A directory that was moved has its new name alone, or the whiteout that was left behind its
    /// name, or names have changed places: the tag goes, and the count is one lower.
    Arrived {
        /// Its number.
        ino: u32,
        /// The tag, if it had one. By the time that this runs it may have been moved again.
        tag: Option<u32>,
    },
    /// Frees an inode and all that it has.
    FreeInode(Box<StoredInode>),
    /// A snapshot has durably what a block was: that may be overwritten.
    Release {
        /// The block.
        block: u64,
    },
    /// A snapshot is durably none any more: nothing is kept for it.
    Dropped {
        /// Its inode.
        ino: u32,
    },
    /// Says that what somebody waits for is durable.
    Reached(Arc<AtomicBool>),
    /// Clears the bit of an inode.
    FreeInodeBit {
        /// Its number.
        ino: u32,
        /// It was a directory.
        is_dir: bool,
    },
}

impl Action {
    /// Blocks and inodes that it frees.
    fn frees(&self, block_size: u64) -> (u64, u64) {
        match self {
            Action::FreeBlocks { blocks, .. } => (blocks.len() as u64, 0),
            Action::DropXattrs { .. } => (1, 0),
            Action::FreeInodeBit { .. } => (0, 1),
            Action::FreeInode(stored) => freed_with(stored, block_size),
            Action::Lower { .. } | Action::Arrived { .. } => (0, 0),
            Action::Release { .. } | Action::Dropped { .. } | Action::Reached(_) => (0, 0),
        }
    }
}

/// Blocks and inodes that are freed with an inode.
fn freed_with(stored: &StoredInode, block_size: u64) -> (u64, u64) {
    (stored.attributes.sectors * 512 / block_size, 1)
}

/// A change of a directory entry.
pub struct Renaming<'a> {
    /// The entry.
    pub place: Place,
    /// Which name it is.
    pub name: Name,
    /// Its first eight bytes before and after.
    pub bytes: ([u8; 8], [u8; 8]),
    /// The inode that loses this name, if one does, and where it is.
    pub leaving: Option<(u32, Place)>,
    /// The inode that gets it, if one does.
    pub arriving: Option<u32>,
    /// What else has to be durable before.
    pub after: &'a [On],
    /// Places, of which those that are guarded have to be durable before.
    pub behind: &'a [Place],
}

/// A name that its inode is to lose.
pub struct Leaving<'a> {
    /// Its entry.
    pub place: Place,
    /// Which name it is.
    pub name: Name,
    /// The inode.
    pub ino: u32,
    /// That is a directory.
    pub is_dir: bool,
    /// Inodes behind whose names it is to go, and what else.
    pub behind: (&'a [u32], &'a [On]),
}

impl Order {
    /// The order of a mode. One with a journal has none until there is one.
    pub fn new(mode: Mode) -> Order {
        match mode.is_soft() {
            true => Order::Soft(Box::default()),
            false => Order::Async(BigReaderLock::default()),
        }
    }

    /// The order of changes of which each round is a transaction.
    pub fn journal() -> Order {
        Order::Journal(Journal::default())
    }

    /// Admits an operation, as long as the result is kept; `None`: what there is has to be written
    /// first.
    pub fn admit(&self, cache: &Cache) -> Option<Option<Admitted<'_>>> {
        match self {
            Order::Journal(journal) => journal.admit(cache).map(Some),
            Order::Async(_) | Order::Soft(_) => Some(None),
        }
    }

    /// Whether each round is a transaction.
    pub fn is_journal(&self) -> bool {
        matches!(self, Order::Journal(_))
    }

    fn soft(&self) -> Option<&Soft> {
        match self {
            Order::Async(_) | Order::Journal(_) => None,
            Order::Soft(soft) => Some(soft),
        }
    }

    /// Begins an operation, which ends when the result is dropped. An operation may begin within
    /// another one.
    pub fn begin(&self) -> RwLockReadGuard<'_, ()> {
        self.operations().share()
    }

    /// Lets no operation begin, and waits for those that have.
    pub fn exclude(&self) -> Alone<'_> {
        self.operations().alone()
    }

    /// From here on a wave takes some of the blocks that it might, as chance has it.
    pub fn scatter(&self) {
        if let Some(soft) = self.soft() {
            soft.scattered.store(1, Ordering::Relaxed);
        }
    }

    /// Whether it does.
    pub fn is_scattered(&self) -> bool {
        let is_scattered = |soft: &Soft| soft.scattered.load(Ordering::Relaxed) > 0;
        self.soft().is_some_and(is_scattered)
    }

    /// Whether it is that of soft updates.
    pub fn is_soft(&self) -> bool {
        self.soft().is_some()
    }

    /// Waits for the operations that have begun.
    pub fn wait(&self) {
        drop(self.operations().alone());
    }

    fn operations(&self) -> &BigReaderLock {
        match self {
            Order::Async(operations) => operations,
            Order::Journal(journal) => &journal.operations,
            Order::Soft(soft) => &soft.operations,
        }
    }

    /// An inode is about to be made in place of a free one: on disk it stays free until its bit is
    /// durable, and `after` holds.
    pub fn new_inode(&self, cache: &Cache, place: Place, old: &[u8], after: &[On]) {
        let Some(soft) = self.soft() else { return };
        let graph = &mut soft.state.lock().graph;
        graph.unguard(place);
        graph.guard(place, old, Form::Whole, true);
        for on in after {
            graph.wait(place, *on, &|block| cache.is_dirty(block));
        }
    }

    /// What is stored at a place, an inode mostly, is on disk only after something else: until then
    /// the disk has what it has.
    pub fn hold(&self, cache: &Cache, place: Place, old: &[u8], after: &[On]) {
        let Some(soft) = self.soft() else { return };
        let graph = &mut soft.state.lock().graph;
        if !graph.is_guarded(place) {
            graph.guard(place, old, Form::Whole, false);
        }
        for on in after {
            graph.wait(place, *on, &|block| cache.is_dirty(block));
        }
        graph.drop_idle(place);
    }

    /// A pointer in an indirect block was 0, and leads to a block whose contents and bit have to be
    /// durable before.
    pub fn publish_pointer(&self, cache: &Cache, place: Place, after: &[On]) {
        let Some(soft) = self.soft() else { return };
        let graph = &mut soft.state.lock().graph;
        graph.unguard(place);
        if injected(Fault::PointerUnguarded) {
            return;
        }
        graph.guard(place, &[0; 4], Form::Whole, false);
        for on in after {
            graph.wait(place, *on, &|block| cache.is_dirty(block));
        }
    }

    /// A block is free whose contents do not matter.
    pub fn discard(&self, block: u64) {
        if let Some(soft) = self.soft() {
            soft.state.lock().graph.discard(block);
        }
    }

    /// A directory entry names something else, or nothing, or something again. What it named before
    /// stays on disk until the other names of that are there. Says after what the disk has no name
    /// any more that this inode has lost; nothing: it has none.
    pub fn rename(&self, cache: &Cache, renaming: &Renaming<'_>) -> Vec<On> {
        let Some(soft) = self.soft() else {
            return Vec::new();
        };
        let mut state = soft.state.lock();
        let never = state.rename(cache, renaming);
        soft.note_size(&state);
        match renaming.leaving {
            Some((ino, _)) => state.lose(ino, renaming.place, never),
            None => Vec::new(),
        }
    }

    /// Whether an entry is guarded: its place is not free for another name.
    pub fn is_guarded(&self, place: Place) -> bool {
        let is_guarded = |soft: &Soft| soft.state.lock().graph.is_guarded(place);
        self.soft().is_some_and(is_guarded)
    }

    /// Whether a directory, whose inode is at a place, may take a name: the disk does not keep it
    /// until another one is there, what passed through it is where it went, and there is no index
    /// of the kernel any more.
    pub fn may_take(&self, name: Name, dir: Place) -> bool {
        !self.is_blocked(|state| {
            let kept = state.kept(name).or_else(|| state.passed(name));
            kept.or_else(|| state.indexed(name.0, dir))
        })
    }

    /// Whether an inode may lose a name: a directory has no other one on disk; it has not just
    /// changed places; the name would not wait for itself; what passed through it is where it went;
    /// and the disk has no directory by it that callers do not see there.
    pub fn may_leave(&self, leaving: &Leaving<'_>) -> bool {
        !self.is_blocked(|state| {
            let moving = leaving.is_dir.then(|| state.moving(leaving.ino)).flatten();
            moving
                .or_else(|| state.exchanged(leaving.ino))
                .or_else(|| state.ring(leaving))
                .or_else(|| state.passed(leaving.name))
                .or_else(|| state.kept_dir(leaving.place))
        })
    }

    /// A directory has lost the kernel's index of its names, where its inode is.
    pub fn unindexed(&self, cache: &Cache, ino: u32, place: Place) {
        let Some(soft) = self.soft() else { return };
        let (state, gone) = (&mut *soft.state.lock(), Arc::new(AtomicBool::new(false)));
        let action = Action::Reached(gone.clone());
        let is_dirty = |block| cache.is_dirty(block);
        state.graph.task(action, &[On::Place(place)], &is_dirty);
        state.unindexed.insert(ino, gone);
    }

    /// Whether there is something before which an operation may not go on: that is remembered.
    fn is_blocked(&self, by: impl FnOnce(&State) -> Before) -> bool {
        let Some(soft) = self.soft() else {
            return false;
        };
        let mut state = soft.state.lock();
        let before = by(&state);
        let is_blocked = before.is_some();
        state.before.extend(before.into_iter().flatten());
        is_blocked
    }

    /// What is to be durable before operations go on that were blocked since this was asked last,
    /// as far as that is known.
    pub fn take_before(&self) -> Vec<On> {
        let take = |soft: &Soft| std::mem::take(&mut soft.state.lock().before);
        self.soft().map_or(Vec::new(), take)
    }

    /// Names change places: that of the first inode, which is to have the name of this tag, and
    /// that of the second, which is promised another.
    pub fn exchange(&self, first: (u32, u32), second: (u32, u32)) {
        let Some(soft) = self.soft() else { return };
        for (ino, tag) in [first, second] {
            if !injected(Fault::ExchangeUntagged) {
                soft.inodes.set_tag(ino, tag);
            }
            soft.state.lock().exchanged.insert(ino);
        }
    }

    /// Whether an inode has changed places with another one since the last round: it keeps all its
    /// names until the disk has no trace of that.
    pub fn is_exchanged(&self, ino: u32) -> bool {
        let is_exchanged = |soft: &Soft| soft.state.lock().exchanged(ino).is_some();
        self.soft().is_some_and(is_exchanged)
    }

    /// Whether anything waits, or is remembered until a round ends.
    pub fn is_pending(&self) -> bool {
        let is_pending = |soft: &Soft| {
            let state = soft.state.lock();
            let has_left = state.left.iter().any(|left| left.len() > 0);
            let is_moving = !(state.lost.is_empty() && state.exchanged.is_empty());
            has_left || is_moving || state.graph.len() > 0
        };
        self.soft().is_some_and(is_pending)
    }

    /// When the disk has the names of an inode that it does not have yet.
    pub fn names_to_come(&self, ino: u32) -> Vec<On> {
        let Some(soft) = self.soft() else {
            return Vec::new();
        };
        let state = soft.state.lock();
        let names = all_of(&state.names, ino);
        names.map(|&name| On::Place(name)).collect()
    }

    /// When the disk has the names of an inode that lead there: its own, those that it has lost,
    /// and those of all directories that are being moved, as it may be below one.
    pub fn names_of(&self, ino: u32) -> Vec<On> {
        let Some(soft) = self.soft() else {
            return Vec::new();
        };
        let inodes = soft.inodes.tagged().into_iter().chain([ino]);
        let state = soft.state.lock();
        let both = [&state.names, &state.lost];
        let places = inodes.flat_map(|ino| both.map(|names| all_of(names, ino)));
        let places = places.flatten();
        places.map(|&place| On::Place(place)).collect()
    }

    /// All that a block waits for, and the block itself.
    pub fn of_block(&self, block: u64) -> Vec<On> {
        let Some(soft) = self.soft() else {
            return Vec::new();
        };
        let places = soft.state.lock().graph.guarded(block);
        let places = places.into_iter().map(On::Place);
        places.chain([On::Block(block)]).collect()
    }

    /// States what is to be done after conditions hold. What need not wait for them is handed back.
    #[must_use = "it is to be done"]
    pub fn after(&self, cache: &Cache, action: Action, after: &[On]) -> Option<Action> {
        let Some(soft) = self.soft() else {
            return Some(action);
        };
        soft.coming.add(action.frees(cache.block_size() as u64));
        let mut state = soft.state.lock();
        let is_dirty = |block| cache.is_dirty(block);
        let released = match action {
            Action::Release { block } => Some(block),
            _ => None,
        };
        let task = state.graph.task(action, after, &is_dirty);
        soft.note_size(&state);
        if let (Some(block), Some(task)) = (released, task) {
            state.held.entry(block).or_default().push(task);
        }
        None
    }

    /// Tasks whose conditions hold.
    pub fn take_ready(&self, cache: &Cache) -> Vec<Action> {
        self.soft()
            .map_or(Vec::new(), |soft| soft.take_ready(cache))
    }

    /// The count of an inode on disk is to exceed what callers see, by so many more.
    pub fn raise(&self, ino: u32, by: u16) {
        if let Some(soft) = self.soft() {
            soft.inodes.raise(ino, by);
        }
    }

    /// A directory is being moved, and keeps the name of this tag after a crash; or a whiteout gets
    /// it.
    pub fn set_tag(&self, ino: u32, tag: u32) {
        if let Some(soft) = self.soft() {
            soft.inodes.set_tag(ino, tag);
        }
    }

    /// That tag.
    pub fn tag(&self, ino: u32) -> Option<u32> {
        self.beside(ino).1
    }

    /// What had this tag is there: it has none, unless it was moved again and has another one.
    pub fn untag(&self, ino: u32, tag: Option<u32>) {
        if let Some(soft) = self.soft() {
            soft.inodes.untag(ino, tag);
        }
    }

    /// By how much the count of an inode on disk exceeds what callers see, and its tag.
    pub fn beside(&self, ino: u32) -> (u16, Option<u32>) {
        self.soft().map_or((0, None), |soft| soft.inodes.of(ino))
    }

    /// It is to exceed it by so many less.
    pub fn lower(&self, ino: u32, by: u16) {
        if let Some(soft) = self.soft() {
            soft.inodes.lower(ino, by);
        }
    }

    /// Nobody uses an inode that has no names. If the disk has some, it is kept until
    /// [`Order::unnamed`]; else (false) it is to be freed.
    #[must_use = "it is to be freed"]
    pub fn nameless(&self, cache: &Cache, stored: &StoredInode) -> bool {
        let Some(soft) = self.soft() else {
            return false;
        };
        // Before somebody takes it.
        let frees = freed_with(stored, cache.block_size() as u64);
        soft.coming.add(frees);
        let is_kept = !injected(Fault::FreedBeforeNames) && soft.inodes.keep(stored);
        if !is_kept {
            soft.coming.sub(frees);
        }
        is_kept
    }

    /// The inode that nobody uses, and of which the disk has no names any more.
    pub fn unnamed(&self, cache: &Cache, ino: u32) -> Option<Box<StoredInode>> {
        let soft = self.soft()?;
        let stored = soft.inodes.take(ino)?;
        soft.coming
            .sub(freed_with(&stored, cache.block_size() as u64));
        Some(stored)
    }

    /// What the disk has in place of an inode that was never there, if this is one.
    pub fn fresh_inode(&self, place: Place) -> Option<Box<[u8]>> {
        self.soft()?.state.lock().graph.fresh(place)
    }

    /// A place is as the disk has it: nobody waits for it.
    pub fn forget(&self, place: Place) {
        if let Some(soft) = self.soft() {
            soft.state.lock().graph.unguard(place);
        }
    }

    /// Blocks and inodes that are going to be free.
    pub fn coming(&self) -> (u64, u64) {
        self.soft().map_or((0, 0), |soft| soft.coming.get())
    }

    /// Whether there are more guards and tasks, or names that were left, than about so many: a
    /// round for all forgets them.
    pub fn exceeds(&self, max: usize) -> bool {
        let size = |soft: &Soft| soft.size.load(Ordering::Relaxed) * SIZE_STEP;
        self.soft().is_some_and(|soft| size(soft) > max)
    }

    /// Guards and tasks.
    pub fn len(&self) -> usize {
        self.soft().map_or(0, |soft| soft.state.lock().graph.len())
    }

    /// How often a place was rolled back in what was written, since the mount.
    pub fn rolled_back(&self) -> u64 {
        self.soft()
            .map_or(0, |soft| soft.state.lock().graph.rolled_back())
    }

    /// How often changes waited for each other, and one was written without its order, since the
    /// mount.
    pub fn forced(&self) -> u64 {
        self.soft()
            .map_or(0, |soft| soft.state.lock().graph.forced())
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.soft()
            .map_or(0, |soft| soft.state.lock().graph.bytes())
    }
}

impl State {
    /// Names whose guards are gone are not to come any more, nor does the disk keep them. Only
    /// those are looked at: there are many others, and a flush for each wave of an fsync.
    fn forget_gone(&mut self) {
        let State {
            graph, names, lost, ..
        } = self;
        let mut is_free = false;
        for Gone { place, before, now } in graph.take_gone() {
            // Both may have been changed again since, which has a guard of its own.
            let keeps = |old: &[u8]| old[..4] == before.to_le_bytes();
            if !graph.old(place).is_some_and(keeps) {
                forget_name(lost, before, place);
            }
            match now {
                Some(ino) if !graph.is_guarded(place) => forget_name(names, ino, place),
                Some(_) => {}
                None => is_free = true,
            }
        }
        if is_free {
            names.retain(|_, places| {
                places.retain(|place| graph.is_guarded(place));
                !places.is_empty()
            });
        }
        let all = names.values().chain(lost.values()).flat_map(Few::all);
        debug_assert!(
            all.copied().all(|place| graph.is_guarded(place)),
            "a name is remembered that has no guard"
        );
    }

    /// A task has run that a block was held for.
    fn released(&mut self, block: u64) {
        if let Some(tasks) = self.held.get_mut(&block) {
            tasks.retain(|&task| self.graph.has_task(task));
            if tasks.is_empty() {
                self.held.remove(&block);
            }
        }
    }

    /// An inode has lost the name at a place: after what the disk has none of those that it lost.
    /// Only the places count at which the disk has its name, however many it has had meanwhile.
    fn lose(&mut self, ino: u32, place: Place, never: bool) -> Vec<On> {
        let old = self.graph.old(place);
        if old.is_some_and(|old| old[..4] == ino.to_le_bytes()) {
            let lost = self.lost.entry(ino).or_default();
            if !lost.all().contains(&place) {
                lost.push(place);
            }
        }
        let lost = all_of(&self.lost, ino).copied();
        let own = (!never).then_some(place);
        let places = lost.filter(|&other| other != place).chain(own);
        places.map(On::Place).collect()
    }

    /// Where the disk may still have a name.
    fn vacated_by(&self, name: Name) -> impl Iterator<Item = Place> {
        let left = self.left.iter();
        let places = left.flat_map(move |left| left.places.get(&name).map(Few::all));
        places.flatten().copied()
    }

    fn rename(&mut self, cache: &Cache, renaming: &Renaming<'_>) -> bool {
        let Renaming {
            place, name, bytes, ..
        } = *renaming;
        let leaving = renaming.leaving.map(|(ino, _)| ino);
        if let Some((ino, at)) = renaming.leaving {
            let mut has_others = false;
            if let Some(names) = self.names.get_mut(&ino) {
                names.retain(|name| name != place);
                has_others = !names.is_empty();
            }
            if has_others && self.graph.fresh(at).is_none() {
                self.left[0].passed.entry(name).or_default().push(ino);
            }
            let may_be_there = self.graph.old(place).is_none_or(|old| old[..4] != [0; 4]);
            if renaming.arriving.is_none() && may_be_there {
                let places = self.left[0].places.entry(name).or_default();
                if !places.all().contains(&place) {
                    places.push(place);
                }
            }
        }
        if !self.graph.is_guarded(place) {
            self.graph.guard(place, &bytes.0, Form::Entry, false);
        } else if self.graph.change(place, &bytes.1) {
            return true;
        }
        let is_dirty = |block| cache.is_dirty(block);
        let names_of = |ino: Option<u32>| ino.map(|ino| all_of(&self.names, ino));
        // Rule C3: the last name goes after another one is there. (Nobody changes the entry again
        // before that: see `is_passed`.) And a name that is there can be reached, as its
        // directory's names were there before.
        let dir = renaming.arriving.map(|_| name.0);
        let dir = dir.filter(|_| !injected(Fault::NameBeforeDir));
        let leaving = leaving.filter(|_| !injected(Fault::OldNameFirst));
        let names = [names_of(leaving), names_of(dir)];
        let names = names.into_iter().flatten().flatten();
        let names = names.map(|&name| On::Place(name));
        // Nor is it there twice: where it was it is gone before, or with it in one sector.
        let chunk = |place: Place| (place.block(), place.offset() / DIR_CHUNK);
        let before = renaming.arriving.filter(|_| !injected(Fault::NameTwice));
        let before = before.map(|_| self.vacated_by(name));
        let before = before.into_iter().flatten();
        let before = before.filter(|&before| chunk(before) != chunk(place));
        let before: Vec<_> = before.map(|before| On::Block(before.block())).collect();
        for on in names.chain(renaming.after.iter().copied()).chain(before) {
            self.graph.wait(place, on, &is_dirty);
        }
        for &other in renaming.behind {
            if self.graph.is_guarded(other) {
                self.graph.wait(place, On::Place(other), &is_dirty);
            }
        }
        match renaming.arriving {
            Some(ino) => self.names.entry(ino).or_default().push(place),
            None => self.graph.drop_idle(place),
        }
        false
    }
}

impl Soft {
    /// Notes how much there is.
    fn note_size(&self, state: &State) {
        let left = state.left.iter().map(Left::len).sum();
        let size = state.graph.len().max(left) / SIZE_STEP;
        if self.size.load(Ordering::Relaxed) != size {
            self.size.store(size, Ordering::Relaxed);
        }
    }

    /// Lets no operation begin, and waits for those that have.
    fn exclude(&self) -> Alone<'_> {
        self.operations.alone()
    }

    fn take_ready(&self, cache: &Cache) -> Vec<Action> {
        let mut state = self.state.lock();
        let ready = state.graph.take_ready();
        for action in &ready {
            self.coming.sub(action.frees(cache.block_size() as u64));
            if let Action::Release { block } = action {
                state.released(*block);
            }
        }
        self.note_size(&state);
        ready
    }

    fn is_open(&self, block: u64) -> bool {
        self.state.lock().graph.is_open(block)
    }

    /// Somebody waits until conditions hold, which are stated as an operation: then the result is
    /// true.
    fn want(&self, cache: &Cache, after: &[On], urgency: Urgency) -> Arc<AtomicBool> {
        let reached = Arc::new(AtomicBool::new(false));
        let graph = &mut self.state.lock().graph;
        let is_dirty = |block| cache.is_dirty(block);
        if let Some(task) = graph.task(Action::Reached(reached.clone()), after, &is_dirty) {
            graph.want(task, urgency);
        }
        reached
    }

    /// Blocks to write for what is wanted so urgently.
    fn next(&self, urgency: Urgency) -> BTreeSet<u64> {
        let state = self.state.lock();
        state.graph.next(urgency, &state.held)
    }

    /// The time is that of so many ticks. Returns what is guarded since before `due`.
    fn tick(&self, now: u32, due: u32) -> Vec<On> {
        let graph = &mut self.state.lock().graph;
        graph.set_now(now);
        graph.since(due)
    }

    /// What was remembered of names when this was called before is durably over.
    fn forget_left(&self) {
        let state = &mut *self.state.lock();
        state.left[1] = std::mem::take(&mut state.left[0]);
        self.note_size(state);
    }

    /// Nothing is dirty or in flight: the disk has no name that a directory, or an inode, has lost,
    /// and no tag of what has arrived.
    fn all_is_durable(&self) {
        let mut state = self.state.lock();
        state.left = Default::default();
        state.lost.clear();
        state.exchanged.clear();
        state.unindexed.clear();
        self.note_size(&state);
    }

    fn is_idle(&self) -> bool {
        self.state.lock().graph.len() == 0
    }

    /// The copies that were taken are durable. Says whether anybody waited for that.
    fn flushed(&self) -> bool {
        let mut state = self.state.lock();
        let any = state.graph.flushed();
        state.forget_gone();
        any
    }

    fn is_waiting(&self) -> bool {
        self.state.lock().graph.is_waiting()
    }

    fn force(&self) -> bool {
        self.state.lock().graph.force()
    }
}

/// An inode has no name at a place any more, of those that are remembered.
fn forget_name(names: &mut NearMap<u32, Few<Place>>, ino: u32, place: Place) {
    if let Entry::Occupied(mut of) = names.entry(ino) {
        of.get_mut().retain(|other| other != place);
        if of.get().is_empty() {
            of.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::{Buffer, Disk, Memory};

    use super::*;
    use crate::transaction::{Transaction, TransactionStore};

    /// Transactions of so many blocks, which go nowhere.
    struct Room(usize);

    impl TransactionStore for Room {
        fn commit(&self, _: &Disk, _: Transaction) -> vfs::Result<()> {
            Ok(())
        }

        fn fits(&self, _: &Transaction) -> bool {
            true
        }

        fn capacity(&self) -> usize {
            self.0
        }

        fn takes_data(&self) -> bool {
            true
        }

        fn newest(&self, _: u64) -> Option<Arc<Buffer>> {
            None
        }

        fn settle(&self, _: &Disk) -> vfs::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_operations_change_together_fits_a_transaction() {
        let disk = Disk::new(Arc::new(Memory::new(1 << 20)));
        let cache = Cache::new(disk, 1024, 1 << 20).journaled(Arc::new(Room(180)), 4);
        for number in 0..40 {
            cache.change(number, |bytes| bytes[0] = 1).expect("read");
        }
        let order = Order::journal();
        let mut admitted = Vec::new();
        while let Some(one) = order.admit(&cache) {
            admitted.push(one);
        }
        // Each may change a quarter of 176 blocks, and 24 more.
        assert_eq!(admitted.len(), 2);
        admitted.pop();
        assert!(order.admit(&cache).is_some());
        assert!(Order::new(Mode::Async).admit(&cache).is_some());
    }

    /// A flush allows the next move of a directory, and its tag, before it is told that the last
    /// one is over.
    #[test]
    fn who_has_arrived_does_not_lose_the_tag_of_the_next_move() {
        let order = Order::new(Mode::Soft);
        order.set_tag(12, 1);
        let first = order.tag(12);
        order.set_tag(12, 2);
        order.untag(12, first);
        assert_eq!(order.tag(12), Some(2));
        order.untag(12, Some(2));
        assert_eq!(order.tag(12), None);
    }

    /// So many new names, each of an inode of its own, 16 in a block from this one on.
    fn named(order: &Order, cache: &Cache, count: u32, first: u64) {
        let entry = |ino: u32| [ino.to_le_bytes(), [16, 0, 1, 1]].concat();
        for ino in 1..=count {
            let block = first + u64::from(ino / 16);
            cache.change(block, |bytes| bytes[0] ^= 1).expect("read");
            let renaming = Renaming {
                place: Place::new(block, 16 * (ino % 16) as usize),
                name: (5000, ino.into()),
                bytes: ([0; 8], entry(ino).try_into().expect("eight bytes")),
                leaving: None,
                arriving: Some(ino),
                after: &[],
                behind: &[],
            };
            order.rename(cache, &renaming);
        }
    }

    #[test]
    fn a_flush_looks_at_the_names_that_it_covers_and_at_no_others() {
        let cache = Cache::new(Disk::new(Arc::new(Memory::new(1 << 20))), 1024, 1 << 20);
        let order = Order::new(Mode::Soft);
        named(&order, &cache, 1000, 5);
        let soft = order.soft().expect("soft updates");
        let flush_block = |block| {
            let graph = &mut soft.state.lock().graph;
            graph.copy(block, &mut [7; 1024]);
            graph.flushed();
            graph.take_gone().len()
        };
        assert_eq!(
            [flush_block(5 + 10), flush_block(5 + 20), flush_block(3)],
            [16, 16, 0]
        );
    }

    #[test]
    fn names_are_remembered_until_they_are_durable_or_their_block_is_free() {
        let cache = Cache::new(Disk::new(Arc::new(Memory::new(1 << 20))), 1024, 1 << 20);
        let order = Order::new(Mode::Soft);
        named(&order, &cache, 1000, 5);
        let soft = order.soft().expect("soft updates");
        let count = || soft.state.lock().names.len();
        let mut copy = [0; 1024];
        for entry in 0..16 {
            copy[16 * entry..][..4].copy_from_slice(&(160 + entry as u32).to_le_bytes());
        }
        soft.state.lock().graph.copy(5 + 10, &mut copy);
        assert_eq!(count(), 1000, "the copy is in flight");
        soft.flushed();
        assert_eq!(count(), 984);
        assert_eq!(order.names_to_come(160), []);
        assert_eq!(order.names_to_come(176).len(), 1);
        order.discard(5 + 20);
        soft.flushed();
        assert_eq!(count(), 968);
    }

    #[test]
    fn a_name_that_moves_often_waits_for_what_the_disk_has_of_it() {
        let cache = Cache::new(Disk::new(Arc::new(Memory::new(1 << 20))), 1024, 1 << 20);
        let order = Order::new(Mode::Soft);
        let named = [12, 0, 0, 0, 16, 0, 1, 1];
        let inode = Place::new(4, 128);
        let place = |step: u32| Place::new(5, 16 * step as usize);
        cache
            .change(5, |bytes| bytes[..8].copy_from_slice(&named))
            .expect("read");
        cache.sync().expect("written");
        for step in 0..60 {
            cache.change(5, |bytes| bytes[0] ^= 1).expect("read");
            let arrives = Renaming {
                place: place(step + 1),
                name: (2, u64::from(step) + 1),
                bytes: ([0; 8], named),
                leaving: None,
                arriving: Some(12),
                after: &[],
                behind: &[],
            };
            order.rename(&cache, &arrives);
            let leaves = Renaming {
                place: place(step),
                name: (2, u64::from(step)),
                bytes: (named, [0; 8]),
                leaving: Some((12, inode)),
                arriving: None,
                after: &[],
                behind: &[],
            };
            let after = order.rename(&cache, &leaves);
            assert!(after.contains(&On::Place(place(0))), "{after:?}");
            assert!(after.len() <= 2, "{after:?}");
        }
    }
}

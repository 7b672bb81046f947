//! The inodes in DRAM, by number: a radix tree whose leaves are slots.
//!
//! Finding an inode takes one lock, that of its own slot, so lookups of different inodes never
//! wait for each other. Nodes of the tree are made when first needed and stay.

use crate::inode::Inode;
use crate::layout::{LINES_PER_PAGE, inode, line_at};
use crate::shards::{CachePadded, thread_slot};
use crate::slot;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicI64,
    Ordering::{Acquire, Relaxed},
    fence,
};
use triomphe::{Arc, UniqueArc};
use vfs::{Error, Result};

/// Slots of a leaf: for 64 KiB of inodes. Few slots would make for many leaves, and what leads to
/// them would not stay in the caches; many would waste memory where inodes are few among data.
const SLOTS: usize = 512;
/// Children of a node.
const FANOUT: usize = 512;

type Slot = slot::Slot<Inode>;
type Leaf = Box<[Slot; SLOTS]>;
type Level<T> = Box<[OnceLock<T>]>;

/// All inodes that DRAM holds.
pub struct InodeTable {
    /// By 16 GiB, by 32 MiB, by 64 KiB of the image.
    top: Level<Level<Level<Leaf>>>,
    /// Inodes, counted by the threads that added and removed them.
    counts: [CachePadded<AtomicI64>; 64],
    count_of_others: AtomicI64,
}

/// An inode that stays in the table at least as long as this.
pub trait Kept: Deref<Target = Arc<Inode>> {
    /// Take the inode out if it has no names, nobody has a reference to it but the table and this,
    /// and `when` holds of it.
    fn take_unused(
        self,
        table: &InodeTable,
        when: impl FnOnce(&Inode) -> bool,
    ) -> Option<UniqueArc<Inode>>;
}

/// Kept by its slot's lock: no reference need be counted. For no longer than it takes to do
/// something to the inode itself, and not to a directory: locks of its own are held by those who
/// look inodes up.
pub struct Held<'a>(slot::Guard<'a, Inode>);

/// Kept by a reference.
pub struct Counted(pub Arc<Inode>);

impl Deref for Held<'_> {
    type Target = Arc<Inode>;

    #[inline]
    fn deref(&self) -> &Arc<Inode> {
        let Some(inode) = &*self.0 else {
            unreachable!("only a slot with an inode is held");
        };
        inode
    }
}

impl Deref for Counted {
    type Target = Arc<Inode>;

    #[inline]
    fn deref(&self) -> &Arc<Inode> {
        &self.0
    }
}

impl Kept for Held<'_> {
    fn take_unused(
        mut self,
        table: &InodeTable,
        when: impl FnOnce(&Inode) -> bool,
    ) -> Option<UniqueArc<Inode>> {
        // With the slot locked, nobody gets a reference who has none.
        if Arc::strong_count(&self) > 1 {
            return None;
        }
        fence(Acquire); // what those did who gave theirs back
        if !self.is_nameless() || !when(&self) {
            return None;
        }
        table.count(-1);
        Arc::try_unique(self.0.take()?).ok()
    }
}

impl Kept for Counted {
    fn take_unused(
        self,
        table: &InodeTable,
        when: impl FnOnce(&Inode) -> bool,
    ) -> Option<UniqueArc<Inode>> {
        let held = Held(table.slot(self.ino).lock());
        drop(self);
        held.take_unused(table, when)
    }
}

fn level<T>() -> Level<T> {
    (0..FANOUT).map(|_| OnceLock::new()).collect()
}

fn leaf() -> Leaf {
    Box::new(std::array::from_fn(|_| Slot::default()))
}

/// Number of an inode's slot.
fn index(ino: u64) -> usize {
    (ino / inode::LINES) as usize
}

impl InodeTable {
    /// An empty table for an image of `pages` pages.
    pub fn new(pages: u64) -> InodeTable {
        let top = (0..=index(pages * LINES_PER_PAGE) / (SLOTS * FANOUT * FANOUT))
            .map(|_| OnceLock::new())
            .collect();
        InodeTable {
            top,
            counts: std::array::from_fn(|_| CachePadded::default()),
            count_of_others: AtomicI64::new(0),
        }
    }

    /// The slot of an inode number, which the caller has checked to be in range.
    fn slot(&self, ino: u64) -> &Slot {
        let index = index(ino);
        let at = index / SLOTS;
        let node = self.top[at / FANOUT / FANOUT].get_or_init(level)[at / FANOUT % FANOUT]
            .get_or_init(level);
        &node[at % FANOUT].get_or_init(leaf)[index % SLOTS]
    }

    /// An inode will probably be looked up, and its attributes read. Any number will do, here and
    /// below.
    #[inline]
    pub fn expect_lookup(&self, ino: u64) {
        if let Some(slot) = self.present(ino) {
            slot.prefetch(Inode::STAT_LINE);
        }
    }

    /// A name of an inode will probably be taken away.
    #[inline]
    pub fn expect_removal(&self, ino: u64) {
        if let Some(slot) = self.present(ino) {
            slot.prefetch(Inode::BODY_LINE);
        }
    }

    /// An inode of this number may come into being.
    #[inline]
    pub fn expect_creation(&self, ino: u64) {
        if let Some(slot) = self.present(ino) {
            slot.prefetch_for_write();
        }
    }

    /// The slot of an inode number, if there is one.
    #[inline]
    fn present(&self, ino: u64) -> Option<&Slot> {
        let index = index(ino);
        let at = index / SLOTS;
        let node = self.top.get(at / FANOUT / FANOUT)?.get()?[at / FANOUT % FANOUT].get()?;
        Some(&node[at % FANOUT].get()?[index % SLOTS])
    }

    /// The inode, if DRAM holds it.
    pub fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.slot(ino).lock().clone()
    }

    /// The inode, made by `load` if DRAM does not hold it.
    pub fn get_or_load(
        &self,
        ino: u64,
        load: impl FnOnce() -> Result<Inode>,
    ) -> Result<Arc<Inode>> {
        Ok(Arc::clone(&*self.hold_or_load(ino, load)?))
    }

    /// The same, its slot locked: it stays without a reference being counted, and nobody finds it
    /// meanwhile.
    pub fn hold_or_load(&self, ino: u64, load: impl FnOnce() -> Result<Inode>) -> Result<Held<'_>> {
        let mut slot = self.slot(ino).lock();
        if slot.is_none() {
            *slot = Some(Arc::new(load()?));
            self.count(1);
        }
        Ok(Held(slot))
    }

    /// Put a new inode into its slot. An error if the number is in use: then a map on the medium
    /// says that lines are free which are not.
    pub fn insert(&self, inode: Arc<Inode>) -> Result<()> {
        let ino = inode.ino;
        let mut slot = self.slot(ino).lock();
        if slot.is_some() {
            return Err(Error::corrupt(
                line_at(ino),
                "a map counts an inode in use as free space",
            ));
        }
        *slot = Some(inode);
        drop(slot);
        self.count(1);
        Ok(())
    }

    fn count(&self, by: i64) {
        // A thread's own count takes no atomic addition.
        match self.counts.get(thread_slot()) {
            Some(own) => own.store(own.load(Relaxed) + by, Relaxed),
            None => drop(self.count_of_others.fetch_add(by, Relaxed)),
        }
    }

    /// Inodes in DRAM.
    pub fn len(&self) -> u64 {
        let own: i64 = self.counts.iter().map(|c| c.load(Relaxed)).sum();
        (own + self.count_of_others.load(Relaxed)).max(0) as u64
    }

    /// Forget inodes that nobody uses and that have nothing to persist, until `keep` are left. Each
    /// is shown to `forget` first: it may hold space.
    pub fn evict(&self, keep: u64, forget: impl Fn(&Inode)) {
        let leaves = self
            .top
            .iter()
            .filter_map(OnceLock::get)
            .flatten()
            .filter_map(OnceLock::get);
        for leaf in leaves.flatten().filter_map(OnceLock::get) {
            if self.len() <= keep {
                return;
            }
            for slot in leaf.iter() {
                let mut slot = slot.lock();
                let is_unused = |inode: &Arc<Inode>| {
                    let alone = Arc::strong_count(inode) == 1;
                    fence(Acquire); // what the last user did is to be seen
                    alone && inode.is_idle()
                };
                if let Some(inode) = slot.take_if(|inode| is_unused(inode)) {
                    forget(&inode);
                    self.count(-1);
                }
            }
        }
    }

    /// Visit all inodes. Nobody else uses the table.
    pub fn for_each(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        let leaves = self
            .top
            .iter()
            .filter_map(OnceLock::get)
            .flatten()
            .filter_map(OnceLock::get);
        for slot in leaves
            .flatten()
            .filter_map(OnceLock::get)
            .flat_map(|leaf| leaf.iter())
        {
            if let Some(inode) = &*slot.lock() {
                visit(inode);
            }
        }
    }
}

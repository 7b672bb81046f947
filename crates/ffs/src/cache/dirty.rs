//! Which blocks are to be written, and of which class each is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Block;
use crate::near::{NearMap, NearSet};

/// What a block is to the file system, as who changed it last has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// All but contents of files.
    Metadata,
    /// Contents of a file.
    Data {
        /// Whose; 0: it was cleared, and is to become somebody's.
        ino: u32,
    },
}

impl Class {
    /// That of a block that was cleared, and is to become somebody's.
    pub const CLEARED: Class = Class::Data { ino: 0 };
}

/// What a block itself has of that: whether it is to be written, and of which class it is. It
/// changes with [`Dirty`] locked. Who has the bytes of a block in use locked for writing knows that
/// it stays: who copies them takes that lock, too.
#[derive(Default)]
pub struct Flag(AtomicU64);

impl Flag {
    const CLEAN: u64 = 0;

    fn code(class: Class) -> u64 {
        match class {
            Class::Metadata => 1,
            Class::Data { ino } => 2 + u64::from(ino),
        }
    }

    /// The block is to be written, and is of this class.
    pub fn is(&self, class: Class) -> bool {
        self.0.load(Ordering::Acquire) == Flag::code(class)
    }

    fn set(&self, class: Option<Class>) {
        let code = class.map_or(Flag::CLEAN, Flag::code);
        self.0.store(code, Ordering::Release);
    }
}

/// How many blocks are to be written, for who does not lock [`Dirty`].
#[derive(Default)]
pub struct Counts {
    all: AtomicUsize,
    metadata: AtomicUsize,
}

impl Counts {
    /// How many there are.
    pub fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// How many of them are metadata.
    pub fn metadata(&self) -> usize {
        self.metadata.load(Ordering::Relaxed)
    }
}

/// The blocks that are to be written.
#[derive(Default)]
pub struct Dirty {
    blocks: NearMap<u64, Entry>,
    /// Of those that are contents their numbers, by the file.
    files: NearMap<u32, NearSet<u64>>,
    counts: Arc<Counts>,
    /// The time, in ticks.
    now: u32,
}

/// One of them.
struct Entry {
    block: Arc<Block>,
    class: Class,
    since: u32,
}

impl Dirty {
    /// How many there are at any time.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Adds a block, or changes its class; whether it was there.
    pub fn insert(&mut self, number: u64, block: Arc<Block>, class: Class) -> bool {
        block.dirty.set(Some(class));
        let before = self.blocks.get(&number);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(&before.block, &block)) {
            before.block.dirty.set(None);
        }
        let since = before.map_or(self.now, |before| before.since);
        let entry = Entry {
            block,
            class,
            since,
        };
        let before = self.blocks.insert(number, entry);
        let before = before.map(|before| before.class);
        self.count(number, before, Some(class));
        before.is_some()
    }

    /// Takes a block out; whether it was there.
    pub fn remove(&mut self, number: u64) -> bool {
        let Some(Entry { block, class, .. }) = self.blocks.remove(&number) else {
            return false;
        };
        block.dirty.set(None);
        self.count(number, Some(class), None);
        true
    }

    /// A block that was of a class, or not to be written, is of another one.
    fn count(&mut self, number: u64, before: Option<Class>, now: Option<Class>) {
        if before != now {
            if let Some(Class::Data { ino }) = before {
                self.leave_file(ino, number);
            }
            if let Some(Class::Data { ino }) = now {
                self.files.entry(ino).or_default().insert(number);
            }
        }
        let change = |count: &AtomicUsize, before: bool, now: bool| match (before, now) {
            (false, true) => drop(count.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(count.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        };
        let is_metadata = |class| class == Some(Class::Metadata);
        change(&self.counts.all, before.is_some(), now.is_some());
        change(&self.counts.metadata, is_metadata(before), is_metadata(now));
    }

    /// The block of this number.
    pub fn get(&self, number: u64) -> Option<(&Arc<Block>, Class)> {
        let entry = self.blocks.get(&number)?;
        Some((&entry.block, entry.class))
    }

    /// The numbers of those that are since before a time, in order.
    pub fn since(&self, time: u32) -> Vec<u64> {
        let blocks = self.blocks.iter().filter(|(_, entry)| entry.since < time);
        sorted(blocks.map(|(&number, _)| number))
    }

    /// A tick has passed. How many have in all.
    pub fn tick(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// Their numbers, in order.
    pub fn numbers(&self) -> Vec<u64> {
        sorted(self.blocks.keys().copied())
    }

    /// The numbers of those that are contents of a file, in order.
    pub fn of_file(&self, ino: u32) -> Vec<u64> {
        sorted(self.files.get(&ino).into_iter().flatten().copied())
    }

    fn leave_file(&mut self, ino: u32, number: u64) {
        if let Some(numbers) = self.files.get_mut(&ino) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.files.remove(&ino);
            }
        }
    }
}

fn sorted(numbers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

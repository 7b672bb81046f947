//! Where blocks of the disk are cached: what a reader looks at, in DRAM, in parts with a lock each.
//!
//! A reader holds its part's lock, shared, while it copies a block. So a block that a part led to
//! is read by nobody once that part was changed, and no reader waits for a flush, a fence or the
//! disk. Parts are changed by [`crate::index::Index`] alone, whose lock is taken before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::RwLock;

use crate::layout::BLOCK;
use crate::medium::Medium;

/// Parts with a lock each.
const PARTS: usize = 64;
/// Turns of replacement that a block stays for its last uses, at most.
pub const USES_MAX: u8 = 7;

/// Where blocks of the disk are cached.
pub struct Map {
    parts: [RwLock<Part>; PARTS],
    /// Of each entry, how often it was asked for since it was last its turn.
    uses: Vec<AtomicU8>,
}

#[derive(Default)]
struct Part {
    places: HashMap<u64, Place>,
    /// What blocks were before the transaction that changes them in place.
    before: HashMap<u64, Box<[u8]>>,
    /// Counts changes: who found nothing and read the disk knows that this is still so.
    version: u64,
}

/// Where a block of the disk is cached.
#[derive(Clone, Copy)]
struct Place {
    entry: u32,
    block: u32,
}

/// What a reader finds.
pub enum Look {
    /// The block, which was copied.
    Hit,
    /// Nothing, in this version of its part.
    Miss(u64),
}

impl Map {
    /// An empty one, of so many entries.
    pub fn new(entries: usize) -> Map {
        Map {
            parts: std::array::from_fn(|_| RwLock::default()),
            uses: (0..entries).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    fn part(&self, disk: u64) -> &RwLock<Part> {
        &self.parts[disk as usize % PARTS]
    }

    /// Copies from a block of the disk, as it was when the last transaction was committed, for
    /// somebody who asked for it.
    pub fn read(&self, medium: &Medium, disk: u64, offset: usize, into: &mut [u8]) -> Look {
        if let Some(entry) = self.find(disk) {
            self.touch(entry);
        }
        self.copy(medium, disk, offset, into)
    }

    /// The same, for the disk.
    pub fn copy(&self, medium: &Medium, disk: u64, offset: usize, into: &mut [u8]) -> Look {
        let part = self.part(disk).read();
        let Some(place) = part.places.get(&disk) else {
            return Look::Miss(part.version);
        };
        match part.before.get(&disk) {
            Some(before) => into.copy_from_slice(&before[offset..offset + into.len()]),
            None => medium.read_block(place.block, offset, into),
        }
        Look::Hit
    }

    /// Whether nothing of a part has changed since this version.
    pub fn is_unchanged(&self, disk: u64, version: u64) -> bool {
        self.part(disk).read().version == version
    }

    /// The disk has something else in the place of a block that is not cached.
    pub fn changed(&self, disk: u64) {
        self.part(disk).write().version += 1;
    }

    /// The entry of a block of the disk.
    pub fn find(&self, disk: u64) -> Option<u32> {
        let part = self.part(disk).read();
        part.places.get(&disk).map(|place| place.entry)
    }

    /// A block is cached here, or nowhere any more.
    pub fn set(&self, disk: u64, place: Option<(u32, u32)>) {
        let mut part = self.part(disk).write();
        part.version += 1;
        part.before.remove(&disk);
        match place {
            Some((entry, block)) => part.places.insert(disk, Place { entry, block }),
            None => part.places.remove(&disk),
        };
    }

    /// A block is about to be changed in place: until it is [set](Map::set), readers have a copy of
    /// what it is.
    pub fn keep(&self, medium: &Medium, disk: u64) {
        let mut part = self.part(disk).write();
        let Some(&place) = part.places.get(&disk) else {
            return;
        };
        let mut before = vec![0; BLOCK as usize].into_boxed_slice();
        medium.read_block(place.block, 0, &mut before);
        part.before.insert(disk, before);
    }

    /// A block was asked for.
    pub fn touch(&self, entry: u32) {
        let uses = &self.uses[entry as usize];
        let now = uses.load(Ordering::Relaxed);
        if now < USES_MAX {
            // Of two who do so at once one may not count.
            uses.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Nobody asked for a block yet, or will again for all that is known.
    pub fn forget_uses(&self, entry: u32) {
        self.uses[entry as usize].store(0, Ordering::Relaxed);
    }

    /// It is its turn to be replaced, and it stays for at most so many: whether it does.
    pub fn stays(&self, entry: u32, max: u8) -> bool {
        let uses = &self.uses[entry as usize];
        let now = uses.load(Ordering::Relaxed).min(max);
        uses.store(now.saturating_sub(1), Ordering::Relaxed);
        now > 0
    }

    /// Entries that lead somewhere.
    pub fn entries(&self) -> Vec<u32> {
        let of = |part: &RwLock<Part>| {
            let part = part.read();
            part.places
                .values()
                .map(|place| place.entry)
                .collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of).collect()
    }

    /// Blocks that are cached.
    pub fn len(&self) -> u64 {
        self.parts
            .iter()
            .map(|part| part.read().places.len() as u64)
            .sum()
    }
}

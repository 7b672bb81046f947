//! What the disk has of inodes beside what callers see, by number.
//!
//! Its locks are leaves. What is stored of an inode changes with the inode's block locked, and so
//! does what is here of it.

use parking_lot::MutexGuard;

use crate::image::StoredInode;
use crate::near::NearMap;
use crate::shared::{BriefMutex, PARTS, Padded, part_of};

/// That of all inodes.
#[derive(Default)]
pub struct Inodes {
    parts: [Padded<BriefMutex<Part>>; PARTS],
}

/// That of some of them.
#[derive(Default)]
struct Part {
    /// By how much the count of an inode on disk exceeds what callers see.
    surplus: NearMap<u32, u16>,
    /// The names that directories which are being moved keep after a crash, those that whiteouts
    /// get, and those of what changes places: see [`tag_of`](crate::image::dir::tag_of) and
    /// [`promise_of`](crate::image::dir::promise_of).
    tags: NearMap<u32, u32>,
    /// Inodes that nobody uses, to be freed when their names are gone from the disk.
    nameless: NearMap<u32, Box<StoredInode>>,
}

impl Inodes {
    fn part(&self, ino: u32) -> MutexGuard<'_, Part> {
        self.parts[part_of(ino.into())].lock()
    }

    /// By how much the count of an inode exceeds what callers see, and its tag.
    pub fn of(&self, ino: u32) -> (u16, Option<u32>) {
        let part = self.part(ino);
        let surplus = part.surplus.get(&ino).copied().unwrap_or(0);
        (surplus, part.tags.get(&ino).copied())
    }

    /// It exceeds it by so many more.
    pub fn raise(&self, ino: u32, by: u16) {
        *self.part(ino).surplus.entry(ino).or_default() += by;
    }

    /// It exceeds it by so many less.
    pub fn lower(&self, ino: u32, by: u16) {
        let surplus = &mut self.part(ino).surplus;
        let left = surplus.get(&ino).map_or(0, |left| left.saturating_sub(by));
        match left {
            0 => drop(surplus.remove(&ino)),
            _ => drop(surplus.insert(ino, left)),
        }
    }

    /// An inode has this tag.
    pub fn set_tag(&self, ino: u32, tag: u32) {
        self.part(ino).tags.insert(ino, tag);
    }

    /// It has none, unless it has another one than this.
    pub fn untag(&self, ino: u32, tag: Option<u32>) {
        let tags = &mut self.part(ino).tags;
        if tags.get(&ino).copied() == tag {
            tags.remove(&ino);
        }
    }

    /// Those that have a tag.
    pub fn tagged(&self) -> Vec<u32> {
        let parts = self.parts.iter().map(|part| part.lock());
        parts
            .flat_map(|part| part.tags.keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Keeps an inode that nobody uses until the disk has no name of it; false: it has none.
    pub fn keep(&self, stored: &StoredInode) -> bool {
        let mut part = self.part(stored.ino);
        let has_names = part.surplus.contains_key(&stored.ino);
        if has_names {
            part.nameless.insert(stored.ino, Box::new(stored.clone()));
        }
        has_names
    }

    /// The inode that nobody uses, and of which the disk has no names any more.
    pub fn take(&self, ino: u32) -> Option<Box<StoredInode>> {
        let mut part = self.part(ino);
        match part.surplus.contains_key(&ino) {
            true => None,
            false => part.nameless.remove(&ino),
        }
    }
}

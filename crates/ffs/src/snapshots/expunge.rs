//! What a snapshot has not: snapshots, and inodes without names.
//!
//! The file system that a snapshot is to be lies on a disk that nobody writes. It is mounted there
//! once more, in a cache that is never written, and changed without any order: snapshots and
//! nameless inodes are removed, free counts are true, and the superblock is clean, with no log to
//! be replayed. The blocks that this changes are copied into the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::Buffer;
use vfs::{Errno, Error, Result};

use crate::alloc::Alloc;
use crate::cache::Cache;
use crate::journal::without_flag;
use crate::layout::{ROOT_INO, STATE_ERROR, STATE_VALID, Superblock};
use crate::medium::Medium;
use crate::mount::{count_free, put_superblock};
use crate::snapshot::DIR_NAME;
use crate::volume::Volume;

/// Bytes of blocks that are kept beside the changed ones.
const CACHE_BYTES: usize = 8 << 20;

/// The file system without them.
pub struct Expunged {
    volume: Arc<Volume>,
    changed: BTreeMap<u64, Buffer>,
}

impl Expunged {
    /// A block of it.
    ///
    /// # Errors
    /// The disk failed.
    pub fn bytes(&self, block: u64) -> Result<Buffer> {
        match self.changed.get(&block) {
            Some(bytes) => Ok(bytes.clone()),
            None => Ok(self.volume.medium.cache.read(block)?.bytes().clone()),
        }
    }

    /// The blocks that differ from those of the disk, and that of the superblock.
    pub fn changed(&self) -> impl Iterator<Item = (u64, &Buffer)> {
        self.changed.iter().map(|(&block, bytes)| (block, bytes))
    }
}

/// Removes snapshots and nameless inodes from what is on the disk of a volume, which nobody writes
/// meanwhile.
///
/// # Errors
/// What is there is damaged; the disk failed.
pub fn expunge(of: &Arc<Volume>, mut superblock: Superblock, nameless: &[u32]) -> Result<Expunged> {
    let geometry = of.medium.geometry.clone();
    let disk = of.medium.cache.disk().clone();
    let cache = Cache::new(disk, geometry.block_size, CACHE_BYTES);
    let medium = Medium::unordered(geometry, cache);
    let alloc = Alloc::new(&medium, true)?;
    let clock = of.clock.clone();
    let volume = Arc::new(Volume::new(medium, alloc, clock, of.hash_key, true));
    for &ino in nameless {
        let (mut stored, _) = volume.medium.orphan(ino)?;
        while !volume.free(&mut stored)? {}
    }
    if of.snapshots.dir().is_some() {
        remove_dir(&volume)?;
    }
    volume.alloc.store(&volume.medium)?;
    count_free(&mut superblock, &volume.alloc);
    let state = superblock.state.get() & !STATE_ERROR | STATE_VALID;
    superblock.state = state.into();
    superblock = without_flag(&superblock);
    superblock.last_orphan = 0.into();
    put_superblock(&volume.medium, &superblock)?;
    let geometry = &volume.medium.geometry;
    let at = crate::layout::SUPERBLOCK_AT / u64::from(geometry.block_size);
    let cache = &volume.medium.cache;
    let superblock = cache.read(at)?.bytes().clone();
    let copies = cache.copy_dirty(cache.dirty_numbers(), usize::MAX);
    let copies = copies.into_iter().filter(|copied| !copied.is_there());
    let mut changed: BTreeMap<u64, Buffer> =
        copies.map(|copied| (copied.number, copied.bytes)).collect();
    // It is written past the cache, where nobody asks what it was.
    changed.insert(at, superblock);
    Ok(Expunged { volume, changed })
}

/// Removes the directory of snapshots, and leaves no trace in the root.
fn remove_dir(volume: &Arc<Volume>) -> Result<()> {
    let missing = || Error::from(Errno::STALE);
    let root = volume.inode(ROOT_INO, missing)?;
    let before = root.state.read().stored.attributes.clone();
    let (dir, _) = volume.child(&root, DIR_NAME)?;
    let names = volume.names_of(&dir)?;
    for name in names {
        volume.unlink(&dir, &name, &|_| Ok(()))?;
    }
    volume.rmdir(&root, DIR_NAME, &|_| Ok(()))?;
    drop(dir);
    volume.update(&root, |root| {
        (root.mtime, root.ctime) = (before.mtime, before.ctime);
    })?;
    Ok(())
}

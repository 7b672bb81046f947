//! What every part of a mounted file system needs: the medium, its geometry, allocator and inodes.

use crate::alloc::Allocator;
use crate::hash::NameHash;
use crate::image::{Image, Superblock};
use crate::inherited::Inherited;
use crate::inode_table::InodeTable;
use crate::layout::{Geometry, LINE_BITS, LINE_MASK, inode};
use pmem::{Domain, Pool};
use schedule::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The tag of a mount for reading, which makes no latest pointers and follows none: no word has it.
const NO_TAG: u64 = 1;

/// A mounted image, without what runs on it.
pub struct Volume {
    /// The medium.
    pub pool: Arc<Pool>,
    /// The superblock.
    pub superblock: Superblock,
    /// Hashes names.
    pub hash: NameHash,
    /// Free space.
    pub alloc: Allocator,
    /// Inodes in DRAM.
    pub table: InodeTable,
    /// Damage was met, and space is lost track of for it: the image is not clean at the end.
    pub lost_space: AtomicBool,
    /// What a killed process wrote to files.
    pub inherited: Inherited,
    /// Whether a killed process may leave bytes that are visible and not durable, and that the next
    /// mount does not make so by syncing the whole image: then files say where they are written to.
    pub marks_bytes: bool,
    /// Held, by the inode's number, while space is reserved for a file: a call that fails takes
    /// back what it reserved, on which another one must not rely. Taken before all other locks.
    reserving: [Mutex<()>; 16],
    /// This mount's tag of latest pointers, in place.
    tag: u64,
}

impl Volume {
    /// Put together at mount, in an `epoch` of its own if it is one for writing.
    pub fn new(pool: Arc<Pool>, superblock: Superblock, epoch: Option<u64>, clean: bool) -> Volume {
        Volume {
            hash: NameHash::new(superblock.hash_key),
            alloc: Allocator::new(
                pool.clone(),
                superblock.geometry,
                clean,
                epoch.unwrap_or_default(), // read only: makes no inodes
            ),
            table: InodeTable::new(superblock.geometry.pages),
            tag: epoch.map_or(NO_TAG, |epoch| epoch << LINE_BITS),
            lost_space: AtomicBool::new(false),
            inherited: Inherited::new(!clean && epoch.is_some() && pool.domain() == Domain::Line),
            marks_bytes: pool.domain() == Domain::Line,
            reserving: Default::default(),
            pool,
            superblock,
        }
    }

    /// Keep others from reserving space for a file.
    pub fn lock_reserving(&self, ino: u64) -> MutexGuard<'_, ()> {
        let index = ino / inode::LINES % self.reserving.len() as u64;
        self.reserving[index as usize].lock()
    }

    /// Where everything is.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// The consistent view, validated.
    #[inline]
    pub fn image(&self) -> Image<'_> {
        Image::new(&self.pool, &self.superblock.geometry)
    }

    /// A latest pointer to `line` (0: the end).
    #[inline]
    pub fn tagged(&self, line: u64) -> u64 {
        self.tag | line
    }

    /// The line that a latest pointer leads to (0: the end), unless an earlier mount left it.
    #[inline]
    pub fn untagged(&self, word: u64) -> Option<u64> {
        (word & !LINE_MASK == self.tag).then_some(word & LINE_MASK)
    }
}

/// The words of the consistent view: those of the medium, or with a batch's changes on top.
pub trait Words {
    /// The word at a byte offset.
    fn word(&self, at: u64) -> u64;
}

impl Words for Pool {
    #[inline]
    fn word(&self, at: u64) -> u64 {
        self.load(at)
    }
}

//! A mounted image, without the inodes in DRAM: the pool, its geometry and free space, and what
//! tells this mount's pointers from those of earlier ones.

use crate::alloc::Allocator;
use crate::hash::NameHash;
use crate::image::{Image, Superblock};
use crate::layout::{Geometry, LINE_BITS, LINE_MASK, PAGE};
use crate::logged::Logged;
use pmem::{Domain, Pool};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vfs::Error;

/// The tag of a mount for reading, which makes no latest pointers and follows none: no word has it.
const NO_TAG: u64 = 1;

/// Up to half a page the record wins, as measured, and flushes no more lines than another page
/// would have; on a disk a sync is dear (docs/design/strong.md, section 6).
fn logged_max(domain: Domain) -> u64 {
    match domain {
        Domain::Line => PAGE / 2,
        Domain::Cache => PAGE / 4,
        Domain::Page => PAGE,
    }
}

/// The medium of a mounted image.
pub struct Medium {
    /// Its bytes.
    pub pool: Arc<Pool>,
    /// The superblock.
    pub superblock: Superblock,
    /// Hashes names.
    pub hash: NameHash,
    /// Free space.
    pub alloc: Allocator,
    /// Pages of files that live records have bytes of.
    pub logged: Logged,
    /// Mode `strong`: bytes of blocks with contents that a record has instead of their getting
    /// other pages, at most.
    pub logged_max: u64,
    /// Damage was met, and space is lost track of for it: the image is not clean at the end.
    pub lost_space: AtomicBool,
    /// Whether a killed process may leave bytes that are visible and not durable, and that the next
    /// mount does not make so by syncing the whole image: then files say where they are written to.
    pub marks_bytes: bool,
    /// This mount's tag of latest pointers, in place.
    tag: u64,
}

impl Medium {
    /// Of a mount in an `epoch` of its own if it is one for writing.
    pub fn new(pool: Arc<Pool>, superblock: Superblock, epoch: Option<u64>, clean: bool) -> Medium {
        Medium {
            hash: NameHash::new(superblock.hash_key),
            alloc: Allocator::new(
                pool.clone(),
                superblock.geometry,
                clean,
                epoch.unwrap_or_default(), // read only: makes no inodes
            ),
            logged: Logged::default(),
            logged_max: logged_max(pool.domain()),
            tag: epoch.map_or(NO_TAG, |epoch| epoch << LINE_BITS),
            lost_space: AtomicBool::new(false),
            marks_bytes: pool.domain() == Domain::Line,
            pool,
            superblock,
        }
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

/// A failure of the medium, for callers.
pub fn failed(error: pmem::MediumError) -> Error {
    Error::medium(error.to_string())
}

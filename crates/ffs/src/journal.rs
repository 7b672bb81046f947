//! The journal of ext3 and ext4, in the format of JBD2: a log of blocks, which are written to their
//! places (*home*) when their transaction is durable in the log.
//!
//! [`layout`], [`codec`], [`superblock`]: the structures, read; the check does that, too.
//! [`ring`]: where the log lies. [`encode`]: blocks of it, written. [`replay`]: what a crash left
//! in it is written home. [`log`]: the log, written. [`cached`]: a persistent cache in its place.

pub mod cached;
pub mod encode;
pub mod log;
pub mod replay;
pub mod ring;

pub use crate::image::journal::{codec, layout, superblock};

use std::ops::Range;

use block::{Buffer, Disk, Wave};
use vfs::{Error, Kind, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::cache::Cache;
use crate::crc::crc32c;
use crate::fault::{Fault, injected};
use crate::features;
use crate::geometry::{Geometry, MountError};
use crate::image::{StoredInode, journal as image};
use crate::layout::{SUPERBLOCK_AT, SUPERBLOCK_LEN, Superblock};
use crate::medium::Medium;
use codec::Codec;
use layout::JournalSuperblock;
use ring::Ring;

/// Bytes of blocks that are kept by who only asks where a journal is.
const LOOK_BYTES: usize = 1 << 20;

/// A journal, found and validated.
pub struct Journal {
    /// Where its blocks are.
    pub ring: Ring,
    /// How they are read.
    pub codec: Codec,
    /// Its superblock, as it is stored.
    superblock: JournalSuperblock,
}

impl Journal {
    /// The journal of a file system.
    ///
    /// # Errors
    /// There is none, or it is on another device, has features that are not supported, or is
    /// damaged. The disk failed.
    pub fn open(medium: &Medium, owner: &Superblock) -> Result<Journal> {
        let g = &medium.geometry;
        let ino = owner.journal_inum.get();
        if g.features.compat & features::HAS_JOURNAL == 0 || ino == 0 {
            return Err(g.damage(g.first_block, "superblock: the journal is not in a file"));
        }
        let damage = |at, what| g.damage(at, format_args!("inode {ino}, the journal, {what}"));
        let stored = match medium.inode(ino) {
            Ok(Some(inode)) if inode.attributes.kind == Kind::File => Ok(inode),
            Ok(Some(inode)) => Err(damage(inode.at, "is no file")),
            Ok(None) => Err(damage(g.first_block, "is free")),
            Err(error) => Err(error),
        };
        let opened = stored.and_then(|inode| Journal::in_file(medium, &inode));
        // Its inode may be in the log itself, or damaged: e2fsck takes the copy then, too.
        match (opened, image::backup(owner)) {
            (Err(error), Some(attributes)) => {
                let copy = StoredInode {
                    ino,
                    at: g.first_block,
                    attributes,
                    xattrs: Vec::new(),
                };
                Journal::in_file(medium, &copy).map_err(|of_copy| match of_copy {
                    Error::Medium(_) => of_copy,
                    _ => error,
                })
            }
            (opened, _) => opened,
        }
    }

    /// The journal in a file.
    fn in_file(medium: &Medium, inode: &StoredInode) -> Result<Journal> {
        let g = &medium.geometry;
        let blocks = inode.attributes.size / u64::from(g.block_size);
        let first = ring::runs(medium, inode, 1)?;
        let at = first[0].at;
        let bytes = medium.cache.read(at)?;
        let checked = superblock::check(g, at, &bytes.bytes(), blocks)?;
        let runs = ring::runs(medium, inode, checked.stored.maxlen.get().into())?;
        Ok(Journal {
            ring: Ring::new(runs, checked.stored.first.get()..checked.end),
            codec: checked.codec,
            superblock: checked.stored,
        })
    }

    /// Where the log begins, and with which transaction; `None`: it is empty.
    pub fn start(&self) -> Option<(u32, u32)> {
        let (start, sequence) = (self.superblock.start.get(), self.superblock.sequence.get());
        (start != 0).then_some((start, sequence))
    }

    /// Lets a block of the disk, if it is one of the journal, be as in an empty one.
    pub fn empty(&self, block: u64, bytes: &mut [u8]) {
        if block == self.ring.disk_block(0) {
            let (stored, _) = JournalSuperblock::mut_from_prefix(bytes).expect("it is validated");
            stored.start = 0.into();
            self.codec.seal_superblock(stored);
        } else if self.ring.contains(block) {
            bytes.fill(0);
        }
    }

    /// The number of the next transaction, if the log is empty.
    fn sequence(&self) -> u32 {
        self.superblock.sequence.get()
    }

    /// Lets there be revokes in the log, when its superblock is written next.
    fn allow_revokes(&mut self) {
        let features = self.superblock.feature_incompat.get();
        self.superblock.feature_incompat = (features | layout::INCOMPAT_REVOKE).into();
    }

    /// Lets the log begin at a block, or with `None` be empty, and with this transaction: durably.
    ///
    /// # Errors
    /// The disk failed.
    pub fn set_start(&mut self, disk: &Disk, start: Option<u32>, sequence: u32) -> Result<()> {
        let stored = &mut self.superblock;
        stored.start = start.unwrap_or(0).into();
        stored.sequence = sequence.into();
        self.codec.seal_superblock(stored);
        let at = self.ring.disk_block(0) * self.codec.block_size as u64;
        write_durably(disk, at, stored.as_bytes(), Some(Fault::TailUnflushed))
    }
}

/// Where the journal of an image is on its disk: ranges of bytes, in order, that do not touch. For
/// who keeps it elsewhere.
///
/// # Errors
/// There is none, or it is damaged; the disk failed.
pub fn places(disk: &Disk) -> std::result::Result<Vec<Range<u64>>, MountError> {
    let superblock = crate::inspect::superblock(disk)?;
    let geometry = geometry(&superblock, disk)?;
    let block_size = u64::from(geometry.block_size);
    let cache = Cache::new(disk.clone(), geometry.block_size, LOOK_BYTES);
    let journal = Journal::open(&Medium::unordered(geometry, cache), &superblock)?;
    let mut places: Vec<Range<u64>> = Vec::new();
    for run in journal.ring.runs() {
        let (start, end) = (run.at * block_size, (run.at + run.len) * block_size);
        match places.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => places.push(start..end),
        }
    }
    Ok(places)
}

/// Whether the superblock says that the journal has to be replayed.
pub fn needs_recovery(superblock: &Superblock) -> bool {
    superblock.feature_incompat.get() & features::NEEDS_RECOVERY != 0
}

/// The superblock, as if nothing had to be replayed.
pub fn without_flag(superblock: &Superblock) -> Superblock {
    let mut superblock = superblock.clone();
    superblock.feature_incompat =
        (superblock.feature_incompat.get() & !features::NEEDS_RECOVERY).into();
    superblock
}

/// The geometry of a file system whose journal may have to be replayed.
///
/// # Errors
/// As [`Geometry::new`].
pub fn geometry(superblock: &Superblock, disk: &Disk) -> std::result::Result<Geometry, MountError> {
    Geometry::new(&without_flag(superblock), disk.len())
}

/// Lets a superblock, the disk's too, say whether the journal has to be replayed: durably.
///
/// # Errors
/// The disk failed.
fn set_flag(disk: &Disk, superblock: &mut Superblock, needs_recovery: bool) -> Result<()> {
    *superblock = without_flag(superblock);
    if needs_recovery {
        superblock.feature_incompat |= features::NEEDS_RECOVERY;
    }
    if superblock.feature_ro_compat.get() & features::METADATA_CSUM != 0 {
        let sum = crc32c(!0, &superblock.as_bytes()[..SUPERBLOCK_LEN - 4]);
        superblock.checksum = sum.into();
    }
    // That it has to be is flushed once more, with the log's own superblock (B3): no bug.
    let bug = (!needs_recovery).then_some(Fault::FlagEndUnflushed);
    write_durably(disk, SUPERBLOCK_AT, superblock.as_bytes(), bug)
}

/// Writes bytes at a byte offset, and flushes, unless that is the bug.
fn write_durably(disk: &Disk, at: u64, bytes: &[u8], bug: Option<Fault>) -> Result<()> {
    if bug.is_some_and(injected) {
        let written = disk.write(at, vec![Buffer::copy_of(bytes)]);
        return written.map(drop).map_err(failed);
    }
    let mut wave = Wave::new();
    wave.write(at, Buffer::copy_of(bytes));
    disk.commit(wave).map(drop).map_err(failed)
}

fn failed(error: impl ToString) -> Error {
    Error::medium(error.to_string())
}

//! The superblock of the journal, validated.

use vfs::Result;
use zerocopy::{FromBytes, FromZeros};

use super::codec::{Checksums, Codec, superblock_sum};
use super::layout::{
    CRC32C, INCOMPAT_64BIT, INCOMPAT_ASYNC_COMMIT, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3,
    INCOMPAT_REVOKE, JournalSuperblock, MAGIC, SUPERBLOCK_V1, SUPERBLOCK_V2,
};
use crate::geometry::Geometry;

/// A superblock that makes sense.
pub struct Checked {
    /// As it is stored.
    pub stored: JournalSuperblock,
    /// How the blocks of its log are read.
    pub codec: Codec,
    /// The log ends before this block of the journal.
    pub end: u32,
}

/// Features of logs that e2fsprogs has a name for.
const FEATURES: [(u32, &str); 6] = [
    (INCOMPAT_REVOKE, "revoke"),
    (INCOMPAT_64BIT, "64bit"),
    (INCOMPAT_ASYNC_COMMIT, "async_commit"),
    (INCOMPAT_CSUM_V2, "checksum_v2"),
    (INCOMPAT_CSUM_V3, "checksum_v3"),
    (0x20, "fast_commit"),
];
const SUPPORTED: u32 = INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3;

/// The superblock in `bytes`, which are block `at` of the disk, of a journal whose file has
/// `blocks` blocks.
///
/// # Errors
/// It makes no sense, or has features that are not supported.
pub fn check(geometry: &Geometry, at: u64, bytes: &[u8], blocks: u64) -> Result<Checked> {
    let damage = |what: String| geometry.damage(at, format_args!("journal: {what}"));
    let (mut stored, _) = JournalSuperblock::read_from_prefix(bytes)
        .map_err(|_| damage("its superblock is cut off".to_owned()))?;
    if stored.header.magic.get() != MAGIC {
        return Err(damage(format!("magic {:#010x}", stored.header.magic.get())));
    }
    match stored.header.kind.get() {
        SUPERBLOCK_V1 => to_version_2(&mut stored),
        SUPERBLOCK_V2 => {}
        kind => return Err(damage(format!("a superblock of kind {kind}"))),
    }
    if stored.blocksize.get() != geometry.block_size {
        return Err(damage(format!(
            "blocks of {} bytes",
            stored.blocksize.get()
        )));
    }
    let codec = codec(geometry, &stored).map_err(damage)?;
    if codec.checksums != Checksums::None && stored.checksum.get() != superblock_sum(&stored) {
        return Err(damage("wrong checksum of its superblock".to_owned()));
    }
    let (len, first, start) = (stored.maxlen.get(), stored.first.get(), stored.start.get());
    if u64::from(len) > blocks.min(geometry.blocks) {
        return Err(damage(format!("{len} blocks, and its file has {blocks}")));
    }
    // So much that any transaction of one block has room.
    if first == 0 || first >= len || len - first < LOG_MIN {
        return Err(damage(format!("a log from block {first} to {len}")));
    }
    if start != 0 && !(first..len).contains(&start) {
        return Err(damage(format!("the log begins at its block {start}")));
    }
    let end = len;
    Ok(Checked { stored, codec, end })
}

/// The least blocks of a log.
const LOG_MIN: u32 = 16;

/// The superblock of an empty log in a file of so many blocks.
pub fn empty(block_size: u32, blocks: u32) -> JournalSuperblock {
    let mut new = JournalSuperblock::new_zeroed();
    new.header.magic = MAGIC.into();
    new.header.kind = SUPERBLOCK_V2.into();
    (new.blocksize, new.maxlen) = (block_size.into(), blocks.into());
    (new.first, new.sequence) = (1.into(), 1.into());
    new.nr_users = 1.into();
    new
}

/// A superblock of version 1 ends before the features.
fn to_version_2(stored: &mut JournalSuperblock) {
    let old = stored.clone();
    *stored = JournalSuperblock::new_zeroed();
    stored.header = old.header;
    stored.header.kind = SUPERBLOCK_V2.into();
    (stored.blocksize, stored.maxlen, stored.first) = (old.blocksize, old.maxlen, old.first);
    (stored.sequence, stored.start, stored.errno) = (old.sequence, old.start, old.errno);
    stored.nr_users = 1.into();
}

fn codec(geometry: &Geometry, stored: &JournalSuperblock) -> std::result::Result<Codec, String> {
    let features = stored.feature_incompat.get();
    let unknown = features & !SUPPORTED | stored.feature_ro_compat.get();
    if unknown != 0 {
        let named = FEATURES.iter().find(|row| row.0 & unknown != 0);
        let name = named.map_or_else(|| format!("{unknown:#x}"), |row| row.1.to_owned());
        return Err(format!("its feature {name} is not supported"));
    }
    let checksums = match features & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) {
        0 => Checksums::None,
        INCOMPAT_CSUM_V2 => Checksums::V2,
        INCOMPAT_CSUM_V3 => Checksums::V3,
        _ => return Err("two versions of checksums".to_owned()),
    };
    if checksums != Checksums::None && stored.checksum_type != CRC32C {
        return Err(format!("checksums of kind {}", stored.checksum_type));
    }
    Ok(Codec {
        block_size: geometry.block_size as usize,
        checksums,
        is_64bit: features & INCOMPAT_64BIT != 0,
        uuid: stored.uuid,
    })
}

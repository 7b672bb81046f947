//! The journal's file, and the structures of its log.

pub mod codec;
pub mod layout;
pub mod superblock;

use vfs::{Kind, Time};
use zerocopy::little_endian::U32;

use crate::attributes::Attributes;
use crate::features;
use crate::layout::{InodeFlags, POINTERS, Superblock};

/// The least blocks of a journal's file.
pub const BLOCKS_MIN: u64 = 1024;

/// [`Superblock::jnl_backup_type`]: there is a copy.
const BACKUP: u8 = 1;

/// The inode of the journal by the copy of its pointers and its size that the superblock has, if it
/// has one, and of pointers, not of extents.
pub fn backup(superblock: &Superblock) -> Option<Attributes> {
    let copy = superblock.jnl_blocks.map(U32::get);
    let (pointers, size) = copy.split_at(POINTERS);
    let has_extents = superblock.feature_incompat.get() & features::EXTENT != 0;
    let has_copy = superblock.jnl_backup_type == BACKUP && !has_extents;
    has_copy.then(|| Attributes {
        kind: Kind::File,
        perm: 0o600,
        links: 1,
        uid: 0,
        gid: 0,
        size: u64::from(size[0]) << 32 | u64::from(size[1]),
        sectors: 0,
        atime: Time::new(0, 0),
        mtime: Time::new(0, 0),
        ctime: Time::new(0, 0),
        btime: Time::new(0, 0),
        has_fine_times: false,
        flags: InodeFlags::empty(),
        generation: 0,
        pointers: pointers.try_into().expect("so many"),
        xattr_block: 0,
    })
}

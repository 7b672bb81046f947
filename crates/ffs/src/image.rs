//! What is read from an image, validated: the boundary of trust. Whatever the bytes are, the result
//! is a value that makes sense by itself, or an error that names the block and what is wrong.

pub mod dir;
pub mod journal;
pub mod xattr;

use vfs::{Kind, Result};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::attributes::{Attributes, TIMES_LEN, time};
use crate::features;
use crate::geometry::Geometry;
use crate::layout::{
    DESCRIPTOR_LEN, GroupDescriptor, GroupDescriptorHigh, INODE_LEN, Inode, InodeExtra, InodeFlags,
};

/// Where the parts of a group lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The bitmap of its blocks.
    pub block_bitmap: u64,
    /// The bitmap of its inodes.
    pub inode_bitmap: u64,
    /// The first block of its part of the inode table.
    pub inode_table: u64,
}

/// The group that a descriptor describes. `bytes` are the descriptor's, which is in block `at`.
///
/// # Errors
/// Something would lie outside the disk.
pub fn group(geometry: &Geometry, number: u32, at: u64, bytes: &[u8]) -> Result<Group> {
    let short = || geometry.damage(at, format_args!("descriptor of group {number} is cut off"));
    let (low, rest) = GroupDescriptor::read_from_prefix(bytes).map_err(|_| short())?;
    let high = match geometry.descriptor_size as usize > DESCRIPTOR_LEN {
        true => {
            GroupDescriptorHigh::read_from_prefix(rest)
                .map_err(|_| short())?
                .0
        }
        false => GroupDescriptorHigh::default(),
    };
    let wide = |low: U32, high: U32| u64::from(high.get()) << 32 | u64::from(low.get());
    let group = Group {
        block_bitmap: wide(low.block_bitmap_lo, high.block_bitmap_hi),
        inode_bitmap: wide(low.inode_bitmap_lo, high.inode_bitmap_hi),
        inode_table: wide(low.inode_table_lo, high.inode_table_hi),
    };
    let parts = [
        ("block bitmap", group.block_bitmap, 1),
        ("inode bitmap", group.inode_bitmap, 1),
        ("inode table", group.inode_table, geometry.table_blocks()),
    ];
    for (part, first, blocks) in parts {
        let last = first.saturating_add(u64::from(blocks) - 1);
        if !geometry.has_block(first) || !geometry.has_block(last) {
            let what = format_args!("{part} of group {number} at block {first}, outside the disk");
            return Err(geometry.damage(at, what));
        }
    }
    Ok(group)
}

/// An inode as the disk has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredInode {
    /// Its number.
    pub ino: u32,
    /// The block that it is in.
    pub at: u64,
    /// Its attributes and pointers.
    pub attributes: Attributes,
    /// The room for extended attributes that follows them; empty if there is none.
    pub xattrs: Vec<u8>,
}

/// The inode in `bytes`, which are in block `at`; `None` if it is free.
///
/// # Errors
/// It is in use and makes no sense.
pub fn inode(geometry: &Geometry, ino: u32, at: u64, bytes: &[u8]) -> Result<Option<StoredInode>> {
    let (base, _) = split(geometry, ino, at, bytes)?;
    match base.links_count.get() {
        0 => Ok(None),
        _ => in_use(geometry, ino, at, bytes).map(Some),
    }
}

/// The attributes of the inode in `bytes`, which are in block `at`; `None` if it is free.
///
/// # Errors
/// It is in use and makes no sense.
pub fn attributes(
    geometry: &Geometry,
    ino: u32,
    at: u64,
    bytes: &[u8],
) -> Result<Option<Attributes>> {
    let (base, rest) = split(geometry, ino, at, bytes)?;
    match base.links_count.get() {
        0 => Ok(None),
        _ => parts(geometry, ino, at, (base, rest)).map(|(attributes, _)| Some(attributes)),
    }
}

/// The room for extended attributes of the inode in `bytes`, which are in block `at`.
///
/// # Errors
/// It makes no sense.
pub fn xattr_room<'b>(g: &Geometry, ino: u32, at: u64, bytes: &'b [u8]) -> Result<&'b [u8]> {
    let (_, rest) = split(g, ino, at, bytes)?;
    let damage = |what: String| g.damage(at, format_args!("inode {ino}: {what}"));
    Ok(extra(rest).map_err(damage)?.1)
}

/// An inode that may have lost all its names, but not what it has: an orphan; and the number of
/// the next one in their list.
///
/// # Errors
/// It makes no sense.
pub fn orphan(geometry: &Geometry, ino: u32, at: u64, bytes: &[u8]) -> Result<(StoredInode, u32)> {
    let (base, _) = split(geometry, ino, at, bytes)?;
    Ok((in_use(geometry, ino, at, bytes)?, base.dtime.get()))
}

/// The part of an inode that each has, and the rest.
fn split<'b>(g: &Geometry, ino: u32, at: u64, bytes: &'b [u8]) -> Result<(Inode, &'b [u8])> {
    let cut_off = || g.damage(at, format_args!("inode {ino}: is cut off"));
    Inode::read_from_prefix(bytes).map_err(|_| cut_off())
}

fn in_use(geometry: &Geometry, ino: u32, at: u64, bytes: &[u8]) -> Result<StoredInode> {
    let split = split(geometry, ino, at, bytes)?;
    let (attributes, xattrs) = parts(geometry, ino, at, split)?;
    Ok(StoredInode {
        ino,
        at,
        attributes,
        xattrs: xattrs.to_vec(),
    })
}

/// What the parts of an inode say, and the room for extended attributes.
fn parts<'b>(
    geometry: &Geometry,
    ino: u32,
    at: u64,
    (base, rest): (Inode, &'b [u8]),
) -> Result<(Attributes, &'b [u8])> {
    let damage = |what: String| geometry.damage(at, format_args!("inode {ino}: {what}"));
    let mode = base.mode.get();
    let kind = Kind::from_mode(mode.into())
        .ok_or_else(|| damage(format!("mode {mode:#o} is of no kind")))?;
    let (extra, xattrs) = extra(rest).map_err(&damage)?;
    let joined = |low: U32, high: u16| u64::from(high) << 32 | u64::from(low.get());
    let is_wide = geometry.features.incompat & features::BIT64 != 0;
    let flags = InodeFlags::from_bits_retain(base.flags.get());
    let no_crtime = extra.crtime.get() == 0 && extra.crtime_extra.get() == 0;
    let ctime = time(base.ctime, extra.ctime_extra);
    let attributes = Attributes {
        kind,
        perm: mode & 0o7777,
        links: base.links_count.get(),
        uid: u32::from(base.uid_hi.get()) << 16 | u32::from(base.uid_lo.get()),
        gid: u32::from(base.gid_hi.get()) << 16 | u32::from(base.gid_lo.get()),
        size: u64::from(base.size_hi.get()) << 32 | u64::from(base.size_lo.get()),
        sectors: sectors(geometry, &base),
        atime: time(base.atime, extra.atime_extra),
        mtime: time(base.mtime, extra.mtime_extra),
        ctime,
        btime: match no_crtime {
            true => ctime,
            false => time(extra.crtime, extra.crtime_extra),
        },
        has_fine_times: usize::from(extra.extra_isize.get()) >= TIMES_LEN,
        flags,
        generation: base.generation.get(),
        pointers: base.block.map(U32::get),
        xattr_block: joined(
            base.file_acl_lo,
            if is_wide { base.file_acl_hi.get() } else { 0 },
        ),
    };
    check(geometry, &attributes).map_err(damage)?;
    Ok((attributes, xattrs))
}

/// What follows the part that each inode has: further fields, as many as there are, and the rest.
fn extra(rest: &[u8]) -> std::result::Result<(InodeExtra, &[u8]), String> {
    let Some(len) = rest.first_chunk::<2>() else {
        return Ok((InodeExtra::default(), &[]));
    };
    let len = usize::from(u16::from_le_bytes(*len));
    if len == 0 {
        // Made by those who know no further fields; nothing follows.
        return Ok((InodeExtra::default(), &[]));
    }
    if len < 4 || len > rest.len() || !len.is_multiple_of(4) {
        return Err(format!("{len} further bytes after {INODE_LEN}"));
    }
    let (there, xattrs) = rest.split_at(len);
    let mut padded = [0; size_of::<InodeExtra>()];
    let known = len.min(padded.len());
    padded[..known].copy_from_slice(&there[..known]);
    let extra = InodeExtra::read_from_bytes(&padded).expect("of that size");
    Ok((extra, xattrs))
}

fn sectors(geometry: &Geometry, base: &Inode) -> u64 {
    let low = u64::from(base.blocks_lo.get());
    if geometry.features.ro_compat & features::HUGE_FILE == 0 {
        return low;
    }
    let blocks = u64::from(base.blocks_hi.get()) << 32 | low;
    match base.flags.get() & InodeFlags::HUGE_FILE.bits() {
        0 => blocks,
        _ => blocks * u64::from(geometry.block_size / 512),
    }
}

fn check(geometry: &Geometry, attributes: &Attributes) -> std::result::Result<(), String> {
    let mut unsupported = InodeFlags::COMPRESSED | InodeFlags::ENCRYPTED | InodeFlags::INLINE_DATA;
    // Whoever writes relies on this: he does not know how to change them.
    if geometry.features.incompat & features::EXTENT == 0 {
        unsupported |= InodeFlags::EXTENTS;
    }
    let flags = attributes.flags & unsupported;
    if !flags.is_empty() {
        return Err(format!("flags {:#x} are not supported", flags.bits()));
    }
    let (size, block_size) = (attributes.size, u64::from(geometry.block_size));
    let sensible = match attributes.kind {
        Kind::Dir => {
            let disk = geometry.blocks * block_size;
            size > 0 && size.is_multiple_of(block_size) && size <= disk
        }
        Kind::Symlink => size > 0 && size < block_size.min(vfs::PATH_MAX as u64),
        Kind::File => size <= i64::MAX as u64,
        _ => true,
    };
    if !sensible {
        return Err(format!("{:?} of {size} bytes", attributes.kind));
    }
    let xattrs = attributes.xattr_block;
    if xattrs != 0 && !geometry.has_block(xattrs) {
        return Err(format!(
            "extended attributes in block {xattrs}, outside the disk"
        ));
    }
    Ok(())
}

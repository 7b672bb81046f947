//! How a new file system is divided: as mke2fs does it, so that the two can be compared.

use super::{FormatError, FormatOptions, Parts, features};
use crate::geometry::Geometry;
use crate::layout::{BLOCK_SIZES, DESCRIPTOR_LEN, FIRST_INO, INODE_LEN};

/// Bytes that the kernel reads at once.
const PAGE: u64 = 4096;
/// Free blocks that a group has at least; a smaller one at the end is left out.
const GROUP_FREE_MIN: u64 = 50;
/// Free blocks that the first group needs: root directory, lost+found, resize inode.
const FIRST_FREE_MIN: u64 = 16;
/// Most bytes for which there is one inode.
const BYTES_PER_INODE_MAX: u32 = 64 << 20;
/// The table of descriptors may grow until it describes so many times the blocks of now.
const GROWTH: u64 = 1024;

/// Where everything will lie on a disk of `len` bytes.
pub(super) fn geometry(len: u64, options: &FormatOptions) -> Result<Geometry, FormatError> {
    check(options)?;
    let block_size = options.block_size;
    // Whole pages of the kernel's.
    let blocks = len / PAGE * (PAGE / u64::from(block_size));
    if blocks > u32::MAX.into() {
        let max = u64::from(u32::MAX) * u64::from(block_size) / PAGE * PAGE;
        return Err(FormatError::Large { len, max });
    }
    let first_block = u64::from(block_size == 1024);
    let mut geometry = Geometry {
        block_size,
        blocks,
        first_block,
        blocks_per_group: block_size * 8,
        inodes_per_group: 0,
        groups: 0,
        inodes: 0,
        inode_size: options.inode_size,
        first_ino: FIRST_INO,
        descriptor_size: DESCRIPTOR_LEN as u32,
        reserved_descriptor_blocks: 0,
        features: features(options),
    };
    let wanted = (len / u64::from(options.bytes_per_inode)).min(u32::MAX.into());
    loop {
        if geometry.blocks < first_block + FIRST_FREE_MIN {
            return Err(FormatError::Size(len, "small"));
        }
        divide(&mut geometry, wanted);
        let last = geometry.groups - 1;
        let end = geometry.group_start(last) + u64::from(geometry.group_blocks(last));
        let needed = Parts::of(&geometry, last).free + GROUP_FREE_MIN;
        if end >= needed || last == 0 && geometry.group_blocks(0) == geometry.blocks_per_group {
            break;
        }
        if last == 0 {
            // The only one may be small.
            match end >= Parts::of(&geometry, 0).free + FIRST_FREE_MIN {
                true => break,
                false => return Err(FormatError::Size(len, "small")),
            }
        }
        geometry.blocks = geometry.group_start(last);
    }
    let group = u64::from(geometry.blocks_per_group);
    if Parts::of(&geometry, 0).free + FIRST_FREE_MIN > first_block + group {
        return Err(FormatError::Option(
            "bytes per inode",
            options.bytes_per_inode,
        ));
    }
    Ok(geometry)
}

fn check(options: &FormatOptions) -> Result<(), FormatError> {
    let (block, inode) = (options.block_size, options.inode_size);
    if !block.is_power_of_two() || !BLOCK_SIZES.contains(&block) {
        return Err(FormatError::Option("block size", block));
    }
    if !inode.is_power_of_two() || !(INODE_LEN as u32..=block).contains(&inode) {
        return Err(FormatError::Option("inode size", inode));
    }
    // With fewer bytes a group's bitmap would have no room for its inodes.
    match options.bytes_per_inode {
        bytes if (block..=BYTES_PER_INODE_MAX).contains(&bytes) => Ok(()),
        bytes => Err(FormatError::Option("bytes per inode", bytes)),
    }
}

/// Groups, their inodes, and the room for more descriptors; `wanted` inodes in all, about.
fn divide(geometry: &mut Geometry, wanted: u64) {
    let g = geometry;
    let per_group = u64::from(g.blocks_per_group);
    let groups = (g.blocks - g.first_block).div_ceil(per_group);
    g.groups = groups as u32;
    // As many as fill blocks of the table and bytes of the bitmap.
    let per_block = u64::from(g.block_size / g.inode_size);
    let least = u64::from(FIRST_INO + 1).next_multiple_of(8);
    let each = wanted.div_ceil(groups).max(least);
    let each = each.next_multiple_of(per_block).min(per_group);
    g.inodes_per_group = (each & !7) as u32;
    let inodes = |each: u32| u64::from(each) * groups;
    while inodes(g.inodes_per_group) > u32::MAX.into() {
        g.inodes_per_group -= 8;
    }
    g.inodes = inodes(g.inodes_per_group) as u32;

    let grown = (g.blocks * GROWTH).min(u32::MAX.into());
    let grown_groups = (grown - g.first_block).div_ceil(per_group);
    let descriptor_blocks = grown_groups.div_ceil(g.descriptors_per_block().into());
    let reserved = descriptor_blocks.saturating_sub(g.descriptor_blocks());
    g.reserved_descriptor_blocks = reserved.min(g.pointers_per_block()) as u32;
}

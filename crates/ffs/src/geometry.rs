//! The superblock, validated: where everything lies, and what numbers there can be.

use std::fmt::Display;

use vfs::Error;

use crate::features::{self, Features};
use crate::layout::{
    BLOCK_SIZES, DESCRIPTOR_LEN, DESCRIPTOR_LEN_64BIT, DIRECT, FIRST_INO, INODE_LEN, MAGIC,
    SUPERBLOCK_AT, Superblock,
};

/// Why an image cannot be mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// It is something else.
    #[error("no file system of ext2, ext3 or ext4: the magic number is {0:#06x}, not 0xef53")]
    NotOurs(u16),
    /// The device is too short to hold a superblock.
    #[error("no file system of ext2, ext3 or ext4: the device has only {0} bytes")]
    TooSmall(u64),
    /// It uses what is not supported: names of features, separated by commas.
    #[error("this file system has features that are not supported: {0}")]
    Features(String),
    /// It uses what can be read only: names of features, separated by commas.
    #[error("this file system can be mounted for reading only, because of its features {0}")]
    ReadOnly(String),
    /// It uses what the check does not know: names of features, separated by commas.
    #[error("the check does not know its features {0}: check it with e2fsck")]
    Unchecked(String),
    /// It has snapshots, which a mount of this kind would not keep.
    #[error(
        "it has snapshots, which a mount in mode async or with a cache does not keep: mount it \
         otherwise, or delete them with tureen snapshot delete"
    )]
    Snapshots,
    /// It was not unmounted cleanly, or has errors.
    #[error("this file system is not clean: run tureen fsck, or mount it with -o ro")]
    NotClean,
    /// A changed journal has to be replayed first.
    #[error("the journal has to be replayed first: run tureen fsck")]
    NeedsRecovery,
    /// It has no journal, and one is wanted.
    #[error(
        "this file system has no journal, as the modes ordered and journal want one: add it with \
         tune2fs -j, make the image with tureen mkfs --type ext2 --journal, or mount it with \
         -o mode=soft"
    )]
    NoJournal,
    /// Its journal has no room for what one operation may change.
    #[error(
        "the journal takes {have} blocks in a transaction, and a file system of this size may \
         need {need} for one operation: make a larger one with tune2fs, or mount it with \
         -o mode=soft"
    )]
    JournalTooSmall {
        /// Blocks needed.
        need: usize,
        /// Blocks there.
        have: usize,
    },
    /// A persistent cache has no room for what one operation may change.
    #[error(
        "the cache takes {have} blocks in a transaction, and a file system of this size may \
         need {need} for one operation: use a larger cache"
    )]
    CacheTooSmall {
        /// Blocks needed.
        need: usize,
        /// Blocks there.
        have: usize,
    },
    /// It is damaged, or the device failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Where everything lies, from a superblock that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block: a power of two, in [`BLOCK_SIZES`].
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// The first block of group 0: 1 if blocks have 1024 bytes, else 0.
    pub first_block: u64,
    /// Blocks of each group but the last.
    pub blocks_per_group: u32,
    /// Inodes of each group.
    pub inodes_per_group: u32,
    /// Groups; at least one.
    pub groups: u32,
    /// All inodes; they are numbered from 1.
    pub inodes: u32,
    /// Bytes of an inode.
    pub inode_size: u32,
    /// The first inode that is not reserved.
    pub first_ino: u32,
    /// Bytes of a group descriptor.
    pub descriptor_size: u32,
    /// Blocks kept for further group descriptors, behind the descriptors.
    pub reserved_descriptor_blocks: u32,
    /// The features.
    pub features: Features,
}

/// Damage of the superblock.
fn damaged(what: impl Display) -> MountError {
    let what = format!("block 0 or 1: superblock: {what}");
    MountError::Failed(Error::corrupt(SUPERBLOCK_AT, what))
}

/// Damage, unless `holds`.
fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), MountError> {
    match holds {
        true => Ok(()),
        false => Err(damaged(what())),
    }
}

impl Geometry {
    /// From the superblock of a device of `len` bytes.
    ///
    /// # Errors
    /// It is no superblock, has features that are refused, or makes no sense.
    pub fn new(superblock: &Superblock, len: u64) -> Result<Geometry, MountError> {
        if superblock.magic.get() != MAGIC {
            return Err(MountError::NotOurs(superblock.magic.get()));
        }
        let revision = superblock.rev_level.get();
        check(revision <= 1, || format!("revision {revision}"))?;
        let features = Features::of(superblock);
        if features.incompat & features::NEEDS_RECOVERY != 0 {
            return Err(MountError::NeedsRecovery);
        }
        let refused = features.refused();
        if !refused.is_empty() {
            return Err(MountError::Features(refused.join(", ")));
        }
        let (inode_size, first_ino) = match revision {
            0 => (INODE_LEN as u32, FIRST_INO),
            _ => (
                superblock.inode_size.get().into(),
                superblock.first_ino.get(),
            ),
        };
        let is_64bit = features.incompat & features::BIT64 != 0;
        let high = |high: u32| if is_64bit { u64::from(high) << 32 } else { 0 };
        let geometry = Geometry {
            block_size: block_size(superblock)?,
            blocks: u64::from(superblock.blocks_count_lo.get())
                | high(superblock.blocks_count_hi.get()),
            first_block: superblock.first_data_block.get().into(),
            blocks_per_group: superblock.blocks_per_group.get(),
            inodes_per_group: superblock.inodes_per_group.get(),
            groups: 0,
            inodes: superblock.inodes_count.get(),
            inode_size,
            first_ino,
            descriptor_size: match is_64bit {
                true => superblock.desc_size.get().into(),
                false => DESCRIPTOR_LEN as u32,
            },
            reserved_descriptor_blocks: superblock.reserved_gdt_blocks.get().into(),
            features,
        };
        geometry.check_sizes()?;
        geometry.with_groups(len)
    }

    /// The parts that stand alone.
    fn check_sizes(&self) -> Result<(), MountError> {
        let bits = self.block_size * 8;
        let first = u64::from(self.block_size == 1024);
        check(self.first_block == first, || {
            format!("the first block is {}, not {first}", self.first_block)
        })?;
        let per_group = self.blocks_per_group;
        check(
            per_group >= 8 && per_group <= bits && per_group.is_multiple_of(8),
            || format!("{per_group} blocks in a group"),
        )?;
        let per_group = self.inodes_per_group;
        check(per_group >= 1 && per_group <= bits, || {
            format!("{per_group} inodes in a group")
        })?;
        let size = self.inode_size;
        let sizes = INODE_LEN as u32..=self.block_size;
        check(size.is_power_of_two() && sizes.contains(&size), || {
            format!("an inode has {size} bytes")
        })?;
        let size = self.descriptor_size;
        let wide = self.features.incompat & features::BIT64 != 0;
        let sizes = DESCRIPTOR_LEN_64BIT as u32..=1024;
        check(
            !wide || size.is_power_of_two() && sizes.contains(&size),
            || format!("a group descriptor has {size} bytes"),
        )?;
        let reserved = self.reserved_descriptor_blocks;
        check(reserved <= self.block_size / 4, || {
            format!("{reserved} blocks are kept for group descriptors")
        })
    }

    /// The number of groups, and what depends on it.
    fn with_groups(self, len: u64) -> Result<Geometry, MountError> {
        let held = len / u64::from(self.block_size);
        check(self.blocks <= held, || {
            format!("{} blocks, and the device has {held}", self.blocks)
        })?;
        check(self.blocks > self.first_block, || {
            format!("{} blocks", self.blocks)
        })?;
        let groups = (self.blocks - self.first_block).div_ceil(self.blocks_per_group.into());
        let inodes = groups.checked_mul(self.inodes_per_group.into());
        check(inodes == Some(self.inodes.into()), || {
            let each = self.inodes_per_group;
            format!("{} inodes in {groups} groups of {each}", self.inodes)
        })?;
        check(
            self.first_ino >= FIRST_INO && self.first_ino <= self.inodes,
            || format!("the first inode is {}", self.first_ino),
        )?;
        let geometry = Geometry {
            groups: groups as u32,
            ..self
        };
        let table = geometry.first_block + 1 + geometry.descriptor_blocks();
        check(table <= geometry.blocks, || {
            format!(
                "{} blocks have no room for {groups} groups",
                geometry.blocks
            )
        })?;
        Ok(geometry)
    }

    /// Damage in a block of the disk: its number, and what is wrong.
    #[cold]
    pub fn damage(&self, block: u64, what: impl Display) -> Error {
        let at = block.saturating_mul(self.block_size.into());
        Error::corrupt(at, format!("block {block}: {what}"))
    }

    /// Whether something may be in this block: it is one of the disk, and not the superblock.
    pub fn has_block(&self, block: u64) -> bool {
        block > self.first_block && block < self.blocks
    }

    /// Whether there is an inode of this number.
    pub fn has_inode(&self, ino: u32) -> bool {
        (1..=self.inodes).contains(&ino)
    }

    /// The first block of a group.
    pub fn group_start(&self, group: u32) -> u64 {
        self.first_block + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group; only the last has fewer than others.
    pub fn group_blocks(&self, group: u32) -> u32 {
        let rest = self.blocks - self.group_start(group);
        rest.min(self.blocks_per_group.into()) as u32
    }

    /// Blocks of a group's part of the inode table.
    pub fn table_blocks(&self) -> u32 {
        (self.inodes_per_group * self.inode_size).div_ceil(self.block_size)
    }

    /// Group descriptors in a block.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size / self.descriptor_size
    }

    /// Where a group's descriptor is: the block, and the byte in it.
    pub fn descriptor(&self, group: u32) -> (u64, usize) {
        let per_block = self.descriptors_per_block();
        let at = self.first_block + 1 + u64::from(group / per_block);
        (at, (group % per_block * self.descriptor_size) as usize)
    }

    /// Blocks of all group descriptors.
    pub fn descriptor_blocks(&self) -> u64 {
        self.groups.div_ceil(self.descriptors_per_block()).into()
    }

    /// Pointers in an indirect block.
    pub fn pointers_per_block(&self) -> u64 {
        u64::from(self.block_size / 4)
    }

    /// Bytes of a file that pointers reach.
    pub fn reach(&self) -> u64 {
        let per_block = self.pointers_per_block();
        let blocks = DIRECT as u64 + per_block + per_block.pow(2) + per_block.pow(3);
        blocks * u64::from(self.block_size)
    }

    /// Bytes of a file whose blocks, with the indirect ones, a count of sectors in 32 bits can
    /// have. The kernel takes a longer one for damage, whatever it has.
    pub fn countable(&self) -> u64 {
        let per_block = self.pointers_per_block();
        let blocks = u64::from(u32::MAX / (self.block_size / 512));
        let below_third = blocks - DIRECT as u64 - per_block - per_block.pow(2);
        let of_third = below_third.div_ceil(per_block) + below_third.div_ceil(per_block.pow(2));
        let indirect = 1 + (1 + per_block) + (1 + of_third);
        (blocks - indirect) * u64::from(self.block_size)
    }

    /// Whether a group has a copy of the superblock and of the descriptors (group 0: the
    /// originals). Of `sparse_super2`, whose superblock says which, only group 0 is known.
    pub fn has_superblock(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.compat & features::SPARSE_SUPER2 != 0 {
            return false;
        }
        if group == 1 || self.features.ro_compat & features::SPARSE_SUPER == 0 {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }

    /// Blocks at the start of a group that has a superblock, and in all others none.
    pub fn superblock_blocks(&self, group: u32) -> u64 {
        match self.has_superblock(group) {
            true => 1 + self.descriptor_blocks() + u64::from(self.reserved_descriptor_blocks),
            false => 0,
        }
    }

    /// Blocks that hold no files: superblocks, descriptors, bitmaps, inode tables.
    pub fn overhead(&self) -> u64 {
        let each = 2 + u64::from(self.table_blocks());
        let copies = (0..self.groups).map(|group| self.superblock_blocks(group));
        self.first_block + u64::from(self.groups) * each + copies.sum::<u64>()
    }
}

fn block_size(superblock: &Superblock) -> Result<u32, MountError> {
    let log = superblock.log_block_size.get();
    let size = 1024_u32.checked_shl(log).filter(|_| log <= 6);
    let size = size.ok_or_else(|| damaged(format_args!("block size 1024 << {log}")))?;
    match BLOCK_SIZES.contains(&size) {
        true => Ok(size),
        false => Err(MountError::Features(format!("blocks of {size} bytes"))),
    }
}

fn is_power_of(number: u32, base: u32) -> bool {
    let mut power = u64::from(base);
    while power < number.into() {
        power *= u64::from(base);
    }
    power == number.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let mut superblock = Superblock {
            inodes_count: 64.into(),
            blocks_count_lo: 1024.into(),
            first_data_block: 1.into(),
            blocks_per_group: 8192.into(),
            inodes_per_group: 64.into(),
            magic: MAGIC.into(),
            rev_level: 1.into(),
            first_ino: 11.into(),
            inode_size: 256.into(),
            ..Superblock::default()
        };
        superblock.feature_ro_compat = features::SPARSE_SUPER.into();
        superblock
    }

    fn refused(change: impl FnOnce(&mut Superblock)) -> String {
        let mut superblock = superblock();
        change(&mut superblock);
        match Geometry::new(&superblock, 1 << 20) {
            Ok(geometry) => panic!("accepted: {geometry:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_superblock_that_makes_no_sense_is_refused_with_what_is_wrong() {
        Geometry::new(&superblock(), 1 << 20).expect("sound");
        assert!(refused(|s| s.magic = 0.into()).contains("magic number is 0x0000"));
        assert!(refused(|s| s.log_block_size = 33.into()).contains("1024 << 33"));
        assert!(refused(|s| s.log_block_size = 4.into()).contains("blocks of 16384 bytes"));
        assert!(refused(|s| s.first_data_block = 0.into()).contains("the first block is 0"));
        assert!(refused(|s| s.blocks_per_group = 0.into()).contains("0 blocks in a group"));
        assert!(refused(|s| s.inodes_per_group = 8193.into()).contains("8193 inodes in a group"));
        assert!(refused(|s| s.inodes_count = 65.into()).contains("65 inodes in 1 groups of 64"));
        assert!(refused(|s| s.inode_size = 100.into()).contains("an inode has 100 bytes"));
        assert!(refused(|s| s.blocks_count_lo = 1025.into()).contains("the device has 1024"));
        assert!(refused(|s| s.blocks_count_lo = 1.into()).contains("1 blocks"));
        assert!(refused(|s| s.first_ino = 10.into()).contains("the first inode is 10"));
        assert!(refused(|s| s.reserved_gdt_blocks = 257.into()).contains("257 blocks are kept"));
        assert!(refused(|s| s.feature_incompat = 4.into()).contains("journal"));
        assert!(refused(|s| s.feature_incompat = 0x8000.into()).contains("inline_data"));
    }

    #[test]
    fn copies_of_the_superblock_are_in_groups_of_powers_of_3_5_and_7() {
        let geometry = Geometry::new(&superblock(), 1 << 20).expect("sound");
        let with_copies = (0..130).filter(|&group| geometry.has_superblock(group));
        assert_eq!(
            with_copies.collect::<Vec<_>>(),
            [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]
        );
    }
}

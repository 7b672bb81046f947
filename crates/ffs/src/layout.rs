//! The structures on disk: bytes only, nothing is checked here. All numbers are little-endian.
//!
//! ```text
//! byte 1024            superblock
//! first block + g*n    group g, n blocks. Some groups begin with a copy of the superblock, the
//!                      group descriptors, and blocks kept for more descriptors. Then, anywhere in
//!                      the group: block bitmap, inode bitmap, inode table
//! ```
//!
//! The names of fields are those of the documents of ext2, without their prefix.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Byte offset of the superblock.
pub const SUPERBLOCK_AT: u64 = 1024;
/// Bytes of the superblock.
pub const SUPERBLOCK_LEN: usize = 1024;
/// [`Superblock::magic`].
pub const MAGIC: u16 = 0xEF53;
/// Bit of [`Superblock::state`]: unmounted cleanly.
pub const STATE_VALID: u16 = 1;
/// Bit of [`Superblock::state`]: an error was found.
pub const STATE_ERROR: u16 = 2;

/// Smallest and largest block that is supported here, in bytes.
pub const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 1024..=4096;

/// Number of the inode of the root directory.
pub const ROOT_INO: u32 = 2;
/// Number of the inode that owns the blocks for further group descriptors.
pub const RESIZE_INO: u32 = 7;
/// Number of the inode of the journal.
pub const JOURNAL_INO: u32 = 8;
/// The first inode that is nobody's, where the superblock does not say.
pub const FIRST_INO: u32 = 11;

/// The superblock.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext2")]
pub struct Superblock {
    pub inodes_count: U32,
    pub blocks_count_lo: U32,
    pub r_blocks_count_lo: U32,
    pub free_blocks_count_lo: U32,
    pub free_inodes_count: U32,
    pub first_data_block: U32,
    pub log_block_size: U32,
    pub log_cluster_size: U32,
    pub blocks_per_group: U32,
    pub clusters_per_group: U32,
    pub inodes_per_group: U32,
    pub mtime: U32,
    pub wtime: U32,
    pub mnt_count: U16,
    pub max_mnt_count: U16,
    pub magic: U16,
    pub state: U16,
    pub errors: U16,
    pub minor_rev_level: U16,
    pub lastcheck: U32,
    pub checkinterval: U32,
    pub creator_os: U32,
    pub rev_level: U32,
    pub def_resuid: U16,
    pub def_resgid: U16,
    pub first_ino: U32,
    pub inode_size: U16,
    pub block_group_nr: U16,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage_bitmap: U32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_inum: U32,
    pub journal_dev: U32,
    pub last_orphan: U32,
    pub hash_seed: [u8; 16],
    pub def_hash_version: u8,
    pub jnl_backup_type: u8,
    pub desc_size: U16,
    pub default_mount_opts: U32,
    pub first_meta_bg: U32,
    pub mkfs_time: U32,
    pub jnl_blocks: [U32; 17],
    pub blocks_count_hi: U32,
    pub r_blocks_count_hi: U32,
    pub free_blocks_count_hi: U32,
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub raid_stride: U16,
    pub mmp_interval: U16,
    pub mmp_block: U64,
    pub raid_stripe_width: U32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub reserved_pad: U16,
    pub kbytes_written: U64,
    pub unused_before_overhead: [u8; 200],
    pub overhead_clusters: U32,
    pub unused_before_checksum: [u8; 432],
    pub checksum: U32,
}

/// [`Superblock::flags`]: names are hashed as signed characters.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// [`Superblock::flags`]: names are hashed as unsigned characters.
pub const FLAG_UNSIGNED_HASH: u32 = 2;

const _: () = {
    assert!(size_of::<Superblock>() == SUPERBLOCK_LEN);
    assert!(offset_of!(Superblock, magic) == 0x38);
    assert!(offset_of!(Superblock, uuid) == 0x68);
    assert!(offset_of!(Superblock, journal_inum) == 0xE0);
    assert!(offset_of!(Superblock, jnl_blocks) == 0x10C);
    assert!(offset_of!(Superblock, blocks_count_hi) == 0x150);
    assert!(offset_of!(Superblock, checksum_type) == 0x175);
    assert!(offset_of!(Superblock, overhead_clusters) == 0x248);
    assert!(offset_of!(Superblock, checksum) == 0x3FC);
};

impl Default for Superblock {
    /// All zeros.
    fn default() -> Superblock {
        Superblock::new_zeroed()
    }
}

/// The descriptor of a group: where its maps and its part of the inode table lie.
#[derive(Clone, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext2")]
pub struct GroupDescriptor {
    pub block_bitmap_lo: U32,
    pub inode_bitmap_lo: U32,
    pub inode_table_lo: U32,
    pub free_blocks_count_lo: U16,
    pub free_inodes_count_lo: U16,
    pub used_dirs_count_lo: U16,
    pub flags: U16,
    pub exclude_bitmap_lo: U32,
    pub block_bitmap_csum_lo: U16,
    pub inode_bitmap_csum_lo: U16,
    pub itable_unused_lo: U16,
    pub checksum: U16,
}

/// What follows a [`GroupDescriptor`] with the feature `64bit`, as far as it is used here.
#[derive(Clone, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext4")]
pub struct GroupDescriptorHigh {
    pub block_bitmap_hi: U32,
    pub inode_bitmap_hi: U32,
    pub inode_table_hi: U32,
}

/// Bytes of a descriptor without the feature `64bit`.
pub const DESCRIPTOR_LEN: usize = 32;
/// Least bytes of one with it.
pub const DESCRIPTOR_LEN_64BIT: usize = 64;

const _: () = {
    assert!(size_of::<GroupDescriptor>() == DESCRIPTOR_LEN);
    assert!(size_of::<GroupDescriptorHigh>() <= DESCRIPTOR_LEN_64BIT - DESCRIPTOR_LEN);
};

/// Pointers in an inode to blocks of data.
pub const DIRECT: usize = 12;
/// All pointers in an inode: direct ones, then to one, two and three levels of indirect blocks.
pub const POINTERS: usize = 15;
/// Bytes of the pointers of an inode.
pub const POINTERS_LEN: usize = POINTERS * 4;

/// The part of an inode that each has.
#[derive(Clone, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext2")]
pub struct Inode {
    pub mode: U16,
    pub uid_lo: U16,
    pub size_lo: U32,
    pub atime: U32,
    pub ctime: U32,
    pub mtime: U32,
    pub dtime: U32,
    pub gid_lo: U16,
    pub links_count: U16,
    pub blocks_lo: U32,
    pub flags: U32,
    pub osd1: U32,
    pub block: [U32; POINTERS],
    pub generation: U32,
    pub file_acl_lo: U32,
    pub size_hi: U32,
    pub faddr: U32,
    pub blocks_hi: U16,
    pub file_acl_hi: U16,
    pub uid_hi: U16,
    pub gid_hi: U16,
    pub checksum_lo: U16,
    pub reserved: U16,
}

impl Inode {
    /// Of a directory that is being moved: [`tag_of`](crate::image::dir::tag_of) the name that it
    /// keeps after a crash; 0: none. In fields that nobody else uses without `metadata_csum`.
    pub fn tag(&self) -> u32 {
        u32::from(self.reserved.get()) << 16 | u32::from(self.checksum_lo.get())
    }

    /// Sets it.
    pub fn set_tag(&mut self, tag: u32) {
        self.checksum_lo = (tag as u16).into();
        self.reserved = ((tag >> 16) as u16).into();
    }
}

/// What follows an [`Inode`] in inodes of 256 bytes or more. `extra_isize` says how much of it is
/// there; extended attributes follow.
#[derive(Clone, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext4")]
pub struct InodeExtra {
    pub extra_isize: U16,
    pub checksum_hi: U16,
    pub ctime_extra: U32,
    pub mtime_extra: U32,
    pub atime_extra: U32,
    pub crtime: U32,
    pub crtime_extra: U32,
    pub version_hi: U32,
    pub projid: U32,
}

/// Bytes of the part of an inode that each has.
pub const INODE_LEN: usize = 128;
/// Bytes of [`InodeExtra`]: what is written here.
pub const INODE_EXTRA_LEN: usize = 32;

const _: () = {
    assert!(size_of::<Inode>() == INODE_LEN);
    assert!(offset_of!(Inode, block) == 40);
    assert!(offset_of!(Inode, checksum_lo) == 124);
    assert!(size_of::<InodeExtra>() == INODE_EXTRA_LEN);
    assert!(offset_of!(InodeExtra, crtime) == 16);
};

bitflags::bitflags! {
    /// Flags of an inode that matter here.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Contents are compressed.
        const COMPRESSED = 0x4;
        /// It may not be changed.
        const IMMUTABLE = 0x10;
        /// It may only be appended to.
        const APPEND = 0x20;
        /// Contents are encrypted.
        const ENCRYPTED = 0x800;
        /// The directory has a hash index of the kernel.
        const INDEX = 0x1000;
        /// It is found by its number.
        const IMAGIC = 0x2000;
        /// `blocks` counts blocks, not sectors (feature `huge_file`).
        const HUGE_FILE = 0x4_0000;
        /// Pointers are a tree of extents.
        const EXTENTS = 0x8_0000;
        /// An extended attribute's value.
        const EA_INODE = 0x20_0000;
        /// Contents are in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// Names in the directory are the same in capitals.
        const CASEFOLD = 0x4000_0000;
    }
}

/// What each directory entry begins with; its name follows.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext2")]
pub struct DirEntry {
    pub inode: U32,
    pub rec_len: U16,
    pub name_len: u8,
    /// With the feature `filetype`; else the upper half of `name_len`.
    pub file_type: u8,
}

/// Bytes of [`DirEntry`], before the name.
pub const DIR_ENTRY_LEN: usize = 8;
/// Directory blocks are made of chunks of this size, which no entry crosses: those that are made
/// here. A sector is what a crash leaves old or new as a whole.
pub const DIR_CHUNK: usize = 512;

const _: () = assert!(size_of::<DirEntry>() == DIR_ENTRY_LEN);

/// What a node of a tree of extents begins with.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext4")]
pub struct ExtentHeader {
    pub magic: U16,
    pub entries: U16,
    pub max: U16,
    pub depth: U16,
    pub generation: U32,
}

/// [`ExtentHeader::magic`].
pub const EXTENT_MAGIC: u16 = 0xF30A;
/// Most levels of a tree of extents above its leaves.
pub const EXTENT_DEPTH_MAX: u16 = 5;
/// An extent longer than this is unwritten, and as much shorter: it reads as zeros.
pub const EXTENT_WRITTEN_MAX: u16 = 32768;

/// An entry of a node: an extent in a leaf; above leaves `len` and `start_hi` are the upper half of
/// the block number and nothing, see [`ExtentIndex`].
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext4")]
pub struct Extent {
    pub block: U32,
    pub len: U16,
    pub start_hi: U16,
    pub start_lo: U32,
}

/// An entry of a node above the leaves.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext4")]
pub struct ExtentIndex {
    pub block: U32,
    pub leaf_lo: U32,
    pub leaf_hi: U16,
    pub unused: U16,
}

const _: () = {
    assert!(size_of::<ExtentHeader>() == 12);
    assert!(size_of::<Extent>() == 12 && size_of::<ExtentIndex>() == 12);
};

/// What extended attributes begin with, in an inode and in a block.
pub const XATTR_MAGIC: u32 = 0xEA02_0000;
/// Bytes before the entries in an inode: the magic number.
pub const XATTR_INODE_HEADER_LEN: usize = 4;

/// What a block of extended attributes begins with.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext2")]
pub struct XattrHeader {
    pub magic: U32,
    pub refcount: U32,
    pub blocks: U32,
    pub hash: U32,
    pub checksum: U32,
    pub reserved: [U32; 3],
}

/// An extended attribute; its name follows, without what `name_index` says.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of ext2")]
pub struct XattrEntry {
    pub name_len: u8,
    pub name_index: u8,
    pub value_offs: U16,
    pub value_inum: U32,
    pub value_size: U32,
    pub hash: U32,
}

/// Bytes of [`XattrHeader`].
pub const XATTR_HEADER_LEN: usize = 32;
/// Bytes of [`XattrEntry`], before the name.
pub const XATTR_ENTRY_LEN: usize = 16;

const _: () = {
    assert!(size_of::<XattrHeader>() == XATTR_HEADER_LEN);
    assert!(size_of::<XattrEntry>() == XATTR_ENTRY_LEN);
};

//! The structures of the log: bytes only, nothing is checked here. All numbers are big-endian.
//!
//! ```text
//! block 0                 superblock of the journal
//! first ... maxlen - 1    the log, a ring of transactions. Each is
//!     revoke blocks       blocks of which no copy up to this transaction may be written home
//!     descriptor, copies  what block each of the copies behind it is one of; any number of these
//!     commit block        the transaction counts if this is there
//! ```

use std::mem::{offset_of, size_of};

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What each block of the log begins with that is no copy; a copy that does is *escaped*: it has
/// zeros there.
pub const MAGIC: u32 = 0xC03B_3998;

/// [`Header::kind`] of a descriptor.
pub const DESCRIPTOR: u32 = 1;
/// [`Header::kind`] of a commit block.
pub const COMMIT: u32 = 2;
/// [`Header::kind`] of a superblock without features.
pub const SUPERBLOCK_V1: u32 = 3;
/// [`Header::kind`] of a superblock.
pub const SUPERBLOCK_V2: u32 = 4;
/// [`Header::kind`] of a block of revokes.
pub const REVOKE: u32 = 5;

/// Feature of the log: there may be revokes.
pub const INCOMPAT_REVOKE: u32 = 0x1;
/// Feature of the log: numbers of blocks have 64 bits.
pub const INCOMPAT_64BIT: u32 = 0x2;
/// Feature of the log: a commit block may be written before what it commits.
pub const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
/// Feature of the log: checksums, of which a tag has 16 bits.
pub const INCOMPAT_CSUM_V2: u32 = 0x8;
/// Feature of the log: checksums.
pub const INCOMPAT_CSUM_V3: u32 = 0x10;
/// All such features that e2fsprogs knows.
pub const INCOMPAT_KNOWN: u32 = 0x3F;
/// [`JournalSuperblock::checksum_type`]: CRC-32C.
pub const CRC32C: u8 = 4;

/// What each block of the log begins with that is no copy.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of JBD2")]
pub struct Header {
    pub magic: U32,
    pub kind: U32,
    pub sequence: U32,
}

/// The superblock of the journal.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of JBD2")]
pub struct JournalSuperblock {
    pub header: Header,
    pub blocksize: U32,
    pub maxlen: U32,
    pub first: U32,
    pub sequence: U32,
    pub start: U32,
    pub errno: U32,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub nr_users: U32,
    pub dynsuper: U32,
    pub max_transaction: U32,
    pub max_trans_data: U32,
    pub checksum_type: u8,
    pub padding: [u8; 3],
    pub num_fc_blocks: U32,
    pub head: U32,
    pub unused: [u8; 160],
    pub checksum: U32,
    pub users: [u8; 768],
}

/// Bytes of [`JournalSuperblock`].
pub const SUPERBLOCK_LEN: usize = 1024;

const _: () = {
    assert!(size_of::<Header>() == 12);
    assert!(size_of::<JournalSuperblock>() == SUPERBLOCK_LEN);
    assert!(offset_of!(JournalSuperblock, start) == 0x1C);
    assert!(offset_of!(JournalSuperblock, feature_incompat) == 0x28);
    assert!(offset_of!(JournalSuperblock, checksum_type) == 0x50);
    assert!(offset_of!(JournalSuperblock, head) == 0x58);
    assert!(offset_of!(JournalSuperblock, checksum) == 0xFC);
};

/// A tag of a descriptor, without checksums or with those of version 2. With 64 bits the upper half
/// of the number follows; with checksums of version 2 two unused bytes.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of JBD2")]
pub struct Tag {
    pub block: U32,
    pub checksum: U16,
    pub flags: U16,
}

/// A tag with checksums of version 3.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of JBD2")]
pub struct Tag3 {
    pub block: U32,
    pub flags: U32,
    pub block_high: U32,
    pub checksum: U32,
}

/// Flag of a tag: the copy is escaped.
pub const TAG_ESCAPED: u32 = 1;
/// Flag of a tag: no UUID follows it.
pub const TAG_SAME_UUID: u32 = 2;
/// Flag of a tag: it is the descriptor's last.
pub const TAG_LAST: u32 = 8;
/// Bytes of the UUID behind a tag.
pub const UUID_LEN: usize = 16;

/// What a block of revokes begins with; numbers of blocks follow.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of JBD2")]
pub struct RevokeHeader {
    pub header: Header,
    /// Bytes that are in use, these among them.
    pub count: U32,
}

/// A commit block.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields of the documents of JBD2")]
pub struct Commit {
    pub header: Header,
    pub checksum_type: u8,
    pub checksum_size: u8,
    pub padding: [u8; 2],
    pub checksum: [U32; 8],
    pub seconds: U64,
    pub nanoseconds: U32,
}

/// Bytes of the checksum at the end of descriptors and revoke blocks.
pub const TAIL_LEN: usize = 4;

const _: () = {
    assert!(size_of::<Tag>() == 8 && size_of::<Tag3>() == 16);
    assert!(size_of::<RevokeHeader>() == 16);
    assert!(size_of::<Commit>() == 60);
    assert!(offset_of!(Commit, checksum) == 16 && offset_of!(Commit, seconds) == 48);
};

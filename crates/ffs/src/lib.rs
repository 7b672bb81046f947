//! FFS: soft updates on blocks, on the on-disk format of ext2.
//!
//! What is here so far makes file systems ([`format()`]), and mounts them ([`Ffs`]): ext2, and ext3
//! after a clean unmount, for writing with soft updates or without any order ([`Mode`]); most of
//! ext4 for reading. The design, of which this is the beginning, is argued in
//! `docs/design/ffs.md`.
//!
//! Layers, from the disk up. A module uses those above it in this list, and none below (a test):
//! 1. [`layout`]: the structures on disk. `crc`: checksums. [`features`]: what is read, written or
//!    refused. [`fault`]: faults for tests of tests. `near`: maps from numbers. `shared`: what all
//!    threads use at once.
//! 2. [`geometry`]: the superblock, validated. `attributes`: those of an inode. [`image`]: all else
//!    that is read, validated.
//! 3. `format`: an empty image. `mark`: who mounted it last, and how. `inspect`: what one says of
//!    itself. [`check`](mod@check): whether that is so, and repairs.
//! 4. [`transaction`]: what is to become durable together. `frozen`: what blocks were at one
//!    moment. `cache`: blocks in DRAM. `order`: when
//!    they may be written.
//! 5. `medium`: blocks, and where things lie in them. `alloc`: what is free. `orphans`: the list of
//!    inodes without names.
//! 6. `map`: from blocks of a file to blocks of the disk. [`journal`]: the log of ext3. `dir`,
//!    `file`, `xattr`: contents. `snapshot`: what keeps blocks as they were.
//! 7. `inode`, `inode_table`, `volume`: inodes in DRAM, and all of these, of one mount.
//!    `view`: a snapshot as a disk.
//! 8. `reclaim`: what a crash lost. `mount`: a mount's life. `snapshots`: those of snapshots.
//!    `live_check`: a check while it is in use.
//! 9. `namespace`, `rename`, `contents`, `fs`: the operations of [`vfs::FileSystem`].

mod alloc;
mod attributes;
mod cache;
pub mod check;
mod contents;
mod crc;
mod dir;
pub mod fault;
pub mod features;
mod file;
mod format;
mod frozen;
mod fs;
pub mod geometry;
pub mod image;
mod inode;
mod inode_table;
mod inspect;
pub mod journal;
pub mod layout;
mod live_check;
mod map;
mod mark;
mod medium;
mod mount;
mod namespace;
mod near;
mod order;
mod orphans;
mod reclaim;
mod rename;
mod shared;
mod snapshot;
mod snapshots;
pub mod transaction;
mod view;
mod volume;
mod xattr;

pub use attributes::Attributes;
pub use format::{FormatError, FormatOptions, check_len, format};
pub use geometry::MountError;
pub use inode::Node;
pub use inspect::{Info, inspect, superblock};
pub use journal::cached::{CacheStore, Ext2Binding};
pub use journal::places as journal_places;
pub use journal::replay::recover;
pub use live_check::{GoOn, LiveCheckError};
pub use mount::{Ffs, MountOptions, Status, mounts_at_once};
pub use order::Mode;
pub use reclaim::Progress as ReclaimProgress;
pub use snapshot::{Counts as SnapshotCounts, DIR_NAME as SNAPSHOTS_DIR, Suspension};
pub use snapshots::{SnapshotError, SnapshotInfo, check as check_keeping};

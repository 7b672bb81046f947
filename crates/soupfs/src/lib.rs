//! SoupFS: soft updates with pointer-based dual views, on a [`pmem::Pool`].
//!
//! Callers change the *latest view*, which is in DRAM and in parts of the medium that a mount after
//! a crash ignores; nothing is flushed in their path. Persisters bring the *consistent view* on the
//! medium forward, in batches that commit atomically; it is what a mount finds, with no check. The
//! design is argued in `docs/design/soupfs.md`, the format described in `docs/format/soupfs.md`.
//!
//! Map, from the medium up:
//! - [`layout`]: the format. [`image`]: its words, validated. `format`: an empty one.
//! - `alloc`, `deferred`, `marks`: space. `tree`: index trees. `txn`, `flush`: atomic change.
//! - `inode`, `table`, `slot`, `dir`, `file`, `xattr`: the latest view.
//! - `batch`, `member`, `buckets`, `persister`, `helpers`: from one view to the other. `reclaim`:
//!   what crashes lost.
//! - `namespace`, `rename`, `fs`, `mount`: the operations of [`vfs::FileSystem`], and a mount's
//!   life.
//! - [`fault`]: bugs for tests of tests.
//! - [`audit`], [`fsck`]: is the consistent view what it should be?

mod alloc;
pub mod audit;
mod batch;
mod buckets;
mod deferred;
mod dir;
mod dirty;
pub mod fault;
mod file;
mod flush;
mod format;
mod fs;
pub mod fsck;
mod hash;
mod helpers;
pub mod image;
mod inherited;
mod inode;
pub mod layout;
mod lock;
mod marks;
mod member;
mod mount;
mod namespace;
mod persister;
mod pressure;
mod reclaim;
mod rename;
pub mod shortage;
#[allow(
    unsafe_code,
    reason = "counted references in single words, memory prefetched"
)]
mod slot;
mod table;
#[cfg(test)]
mod testing;
mod tree;
mod txn;
mod volume;
mod xattr;

pub use format::{FormatError, FormatOptions, check_len, format};
pub use inode::Node;
pub use mount::{ImageInfo, Knobs, Mode, MountError, MountOptions, SoupFs, Status, inspect};
pub use persister::Backlog;

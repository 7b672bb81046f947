//! SoupFS: soft updates with pointer-based dual views, on a [`pmem::Pool`].
//!
//! Callers change the *latest view*, which is in DRAM and in parts of the medium that a mount after
//! a crash ignores; nothing is flushed in their path. Persisters bring the *consistent view* on the
//! medium forward, in batches that commit atomically; it is what a mount finds, with no check. The
//! design is argued in `docs/design/soupfs.md`, the format described in `docs/format/soupfs.md`.
//!
//! Map, from the medium up:
//! - [`layout`]: the format. `attributes`: those of an inode. [`image`]: words of the medium,
//!   validated. `format`: an empty one.
//! - `flush`, `alloc`, `marks`: lines to be flushed; space. `tree`: index trees.
//! - `inode`, `inode_state`, `inode_table`, `slot`, `dir`, `file`, `xattr`: the latest view.
//! - `commit`: from one view to the other. `reclaim`: what crashes lost.
//! - `namespace`, `rename`, `change`, `fs`, `mount`: the operations of [`vfs::FileSystem`], and a
//!   mount's life.
//! - [`fault`]: bugs for tests of tests.
//! - [`audit`], [`fsck`]: is the consistent view what it should be?

mod alloc;
mod attributes;
pub mod audit;
mod change;
mod commit;
mod dir;
mod dirty;
pub mod fault;
mod file;
mod flush;
mod format;
mod fs;
pub mod fsck;
mod hash;
pub mod image;
mod inherited;
mod inode;
mod inode_state;
mod inode_table;
pub mod layout;
mod lock;
mod marks;
mod mount;
mod namespace;
mod reclaim;
mod rename;
pub mod shortage;
#[allow(
    unsafe_code,
    reason = "counted references in single words, memory prefetched"
)]
mod slot;
#[cfg(test)]
mod testing;
mod tree;
mod volume;
mod xattr;

pub use commit::persister::Backlog;
pub use format::{FormatError, FormatOptions, check_len, format};
pub use inode::Node;
pub use mount::{ImageInfo, Knobs, Mode, MountError, MountOptions, SoupFs, Status, inspect};

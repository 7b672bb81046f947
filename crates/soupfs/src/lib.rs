//! SoupFS: soft updates with pointer-based dual views, on a [`pmem::Pool`].
//!
//! Callers change the *latest view*, which is in DRAM and in parts of the medium that a mount after
//! a crash ignores; nothing is flushed in their path. Persisters bring the *consistent view* on the
//! medium forward, in batches that commit atomically; it is what a mount finds, with no check. The
//! design is argued in `docs/design/soupfs.md`, the format described in `docs/format/soupfs.md`.
//!
//! Layers, from the medium up. A module uses those above it in this list, and none below (a test):
//! 1. [`layout`]: the format. `options`: how to mount. `hash`, `lock`, `shards`, `prefetch`:
//!    tools. [`fault`]: faults for tests of tests.
//! 2. `attributes`: those of an inode. [`image`]: words of the medium, validated. `format`: an
//!    empty image.
//! 3. `logged`, `flush`, `marks`, `alloc`: pages that records have bytes of; lines to be flushed;
//!    space.
//! 4. `medium`: all of these, of one mount. `words`, `tree`: index trees. `inherited`: what a
//!    killed process left.
//! 5. `inode_state`, `dir`, `file`, `xattr`: the latest view, part by part.
//! 6. `inode`, `slot`, `inode_table`: its inodes. `volume`: they and the medium.
//! 7. `commit`: from the latest view to the consistent one.
//! 8. `reclaim`: what crashes lost.
//! 9. `mount`, `status`: a mount's life.
//! 10. `namespace`, `rename`, `contents`, `change`, `strong`, `optimistic`, `fs`: the operations
//!     of [`vfs::FileSystem`].
//! 11. `check`, on 1 and 2 alone: [`audit`], [`fsck`]. Is the consistent view what it should be?

mod alloc;
mod attributes;
mod change;
mod check;
mod commit;
mod contents;
mod dir;
pub mod fault;
mod file;
mod flush;
mod format;
mod fs;
mod hash;
pub mod image;
mod inherited;
mod inode;
mod inode_state;
mod inode_table;
pub mod layout;
mod lock;
mod logged;
mod marks;
mod medium;
mod mount;
mod namespace;
mod optimistic;
mod options;
mod prefetch;
mod reclaim;
mod rename;
mod shards;
#[allow(
    unsafe_code,
    reason = "counted references in single words, memory prefetched"
)]
mod slot;
mod status;
mod strong;
#[cfg(test)]
mod testing;
mod tree;
mod volume;
mod words;
mod xattr;

pub use check::{audit, fsck};
pub use commit::persister::Backlog;
pub use format::{FormatError, FormatOptions, check_len, format};
pub use inode::Node;
pub use mount::{MountError, SoupFs};
pub use options::{Knobs, Mode, MountOptions};
pub use status::{ImageInfo, Status, ended_well, inspect};

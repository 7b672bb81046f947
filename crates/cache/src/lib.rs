//! Persistent caches in byte-addressable memory between a journaling file system and its disk,
//! which take the journal's place: Spindle, and Tinca as its baseline.
//!
//! A [`Cache`] is a transactional store of the disk's blocks. [`Cache::commit`] makes a
//! [`Transaction`] durable, whole or not at all, at the cost of memory; the disk gets the blocks
//! later. [`Cached`] is the disk as it is through the cache, for whoever knows nothing of it. The
//! design, and why each crash is survived, is in `docs/design/cache.md`; K1 to K5 are its rules.
//!
//! Layers, from the medium up. A module uses those above it in this list:
//! 1. [`layout`]: what is stored. `medium`: typed access to it.
//! 2. [`transaction`]: what is to become durable together. `map`: what is cached where, in DRAM,
//!    for readers. `index`: the same for who changes it.
//! 3. `plan`: what a transaction will change. `commit`: the protocols that change it.
//! 4. `recover`: what a crash left, undone and checked.
//! 5. [`Cache`]: the life of a cache. `write_out`: blocks go to the disk, and make way. `past`:
//!    large runs of blocks go there past the cache. `read`: blocks are read, and kept.
//! 6. `cached`: the disk through the cache.
//!
//! [`fault`]: bugs, for tests of tests. `testing`: what tests of several crates share.

mod cached;
mod commit;
mod error;
pub mod fault;
mod index;
pub mod layout;
mod map;
mod medium;
mod past;
mod plan;
mod read;
mod recover;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transaction;
mod write_out;

pub use cached::Cached;
pub use error::CacheError;
pub use layout::{BLOCK, Kind};
pub use store::{Binding, Cache, CreateOptions, Status, examine, is_bound};
pub use transaction::{Class, Transaction};
pub use write_out::Writer;

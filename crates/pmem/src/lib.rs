//! The medium: pools of persistent memory, and stores, flushes and fences on them.
//!
//! A [`Pool`] is a range of bytes on device DAX, in a file, or in anonymous memory, with a
//! persistence [`Domain`] that says what flush and fence have to do there. Whatever the domain,
//! one discipline holds: stores may reach the medium at any time and in any order; what was
//! flushed is durable once a later [`Pool::fence`] of the same thread returns. The assumptions
//! are numbered in `docs/crash-model.md`. A [`Journal`] commits several words at once.
//!
//! ```
//! use pmem::{Options, Pool};
//!
//! let pool = Pool::anonymous(1 << 20, &Options::default())?;
//! pool.write(4096, b"contents");
//! pool.flush(4096, 8);
//! pool.fence()?; // the contents are durable ...
//! pool.store(64, 4096); // ... before the pointer that publishes them
//! pool.flush(64, 8);
//! pool.fence()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Map: `pool` and `access` (the interface), `options`, `domain`, `error`; `open` finds out what a
//! path is; `backing` gives a sparse image blocks; `gather` groups the syncs of domain `page`;
//! `stats` counts; `journal` commits, and `transaction` in domain `cache` without a record. `paged`
//! holds a disk in memory: pools of domain `page` on a file do their own I/O by it. `raw`, `map`,
//! `rtm` and `paged::faults` hold all `unsafe` of this crate, but for the `fork` of a test:
//! `stepped` decodes what the processor really did.

mod access;
mod backing;
mod domain;
mod error;
pub mod fault;
mod gather;
mod info;
pub mod journal;
#[allow(unsafe_code, reason = "system calls on address space")]
mod map;
mod open;
mod options;
pub mod paged;
mod pool;
#[allow(unsafe_code, reason = "access to mapped memory")]
mod raw;
#[allow(unsafe_code, reason = "hardware transactions in assembly")]
mod rtm;
mod stats;
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
#[allow(unsafe_code, reason = "a test forks to be traced")]
mod stepped;
pub mod transaction;

pub use access::Streaming;
pub use domain::{Domain, UnknownDomain};
pub use error::{MediumError, PoolError};
pub use info::{HugePages, Kind, PoolInfo};
pub use journal::{Journal, JournalError, Record, Recovered};
pub use options::{HEAD_LEN, Latency, Options, Recorder, StoreKind};
pub use pool::{Pool, Syncer};
pub use raw::{FlushInstruction, prefetch, prefetch_for_write};
pub use rtm::Rtm;
pub use stats::{Stats, thread_stats};
pub use transaction::{Abort, Transaction, Transactions};

/// Bytes in a cache line.
pub const LINE: u64 = 64;
/// Bytes in a page.
pub const PAGE: u64 = 4096;

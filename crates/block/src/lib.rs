//! Block devices: requests in flight, flushes behind them, and everything that can go wrong.
//!
//! An engine uses a [`Disk`]: it submits reads and writes, waits for them, and flushes. A
//! [`Wave`] is what most of them need: writes that are in flight together, with one flush behind.
//! Nothing is ordered but by waiting, nothing durable but by a flush: a disk has a volatile cache.
//! The assumptions are numbered in `docs/design/block.md`.
//!
//! ```
//! use std::sync::Arc;
//! use block::{Buffer, Disk, Memory, Wave};
//!
//! let disk = Disk::new(Arc::new(Memory::new(1 << 20)));
//! let mut wave = Wave::new();
//! wave.write(4096, Buffer::copy_of(b"contents"));
//! wave.write(65536, Buffer::copy_of(b"more"));
//! disk.commit(wave)?; // both are durable ...
//! let mut wave = Wave::new();
//! wave.write(0, Buffer::copy_of(b"pointer"));
//! disk.commit(wave)?; // ... before what refers to them
//! let read = disk.read(4096, vec![Buffer::zeroed(512)])?;
//! assert_eq!(&read[0][..8], b"contents");
//! # Ok::<(), block::BlockError>(())
//! ```
//!
//! Map: `disk` (the interface: tickets, shared flushes, poison), `wave`, `buffer`, `stats`, `lock`;
//! `device` is what backends and layers implement. Backends: `file` (image files and block
//! devices, by `file::ring` or `file::pool`), `memory` and `modelled` (a simulated clock). Layers:
//! `record` (the rules of a crash, and its states) and `faults`. `unsafe` is in `buffer` and
//! `file::ring`.

#[allow(unsafe_code, reason = "aligned memory")]
mod buffer;
pub mod device;
mod disk;
mod error;
mod events;
mod faults;
mod file;
mod lock;
mod memory;
mod modelled;
mod random;
pub mod record;
mod stats;
mod wave;

pub use buffer::Buffer;
pub use device::{Action, Device, Identity, Info, Op, SECTOR};
pub use disk::{Disk, Outcome, Ticket};
pub use error::{BlockError, OpenError};
pub use events::Events;
pub use faults::{Fault, Faults};
pub use file::OpenOptions;
pub use lock::LockedFile;
pub use memory::Memory;
pub use modelled::{Mechanics, Modelled};
pub use random::Random;
pub use record::Recorder;
pub use stats::Stats;
pub use wave::Wave;

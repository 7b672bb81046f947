//! Fuzz targets: functions that take any bytes and panic when something is wrong.
//!
//! - [`image`]: an image is damaged, then mounted, walked, read, changed, checked, repaired. What
//!   it must not do is panic, hang, or touch memory that is not its own; what was repaired must be
//!   sound.
//! - [`ext2`]: the same of a disk with ext2 or ext3.
//! - [`operations`]: the bytes are operations, done on SoupFS and on the reference file system side
//!   by side, with syncs, remounts and ends without an unmount in between.
//! - [`cache`](mod@cache): the memory of a persistent cache holds what it should not, and is
//!   opened, used, and given back.
//!
//! Under cargo-fuzz, which watches what code an input reaches, the programs in `fuzz_targets/` are
//! libFuzzer's. Built by any other compiler they run random inputs instead: see [`driver`].
//!
//! Any bytes are a valid input, and an operation is a few bytes at a fixed place, so that an input
//! with a byte changed, or an operation cut out, means nearly the same as before.

mod base;
mod bytes;
pub mod cache;
mod damage;
pub mod driver;
pub mod ext2;
pub mod image;
pub mod operations;
mod user;

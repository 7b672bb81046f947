//! Crash states: runs workloads on an engine, takes apart what they did to the medium, and judges
//! what each crash may leave. The design is in `docs/design/explorer.md`, how to use it in
//! `docs/testing.md`.
//!
//! Map, in the order in which things happen:
//! - [`op`], [`workload`], [`families`]: what is run.
//! - [`engine`], [`engines`]: what it is run on. Only [`engines::soupfs`] knows SoupFS, and
//!   only [`engines::ffs`] ext2.
//! - [`trace`], [`run`]: what it did to the medium, and what was true after each step.
//! - [`medium`], [`states`], [`image`], [`scratch`]: the images that a crash may leave, by
//!   `docs/crash-model.md`.
//! - [`tree`], [`judge`]: the tree that is found, and the trees that history allows.
//! - [`examine`], [`nested`]: all that an image must be fit for; crashes in recovery, reclaim and
//!   fsck.
//! - [`lives`]: kills, and the lives after them, on a medium that keeps what was not durable.
//! - `damaged`: repairs that are cut short.
//! - [`halfway`]: operations that meet half-way.
//! - [`explore`], [`campaign`]: one workload; many, on all cores.
//! - [`token`], [`kept`], [`minimise`], [`report`]: a failure that replays, made small, for people.
//! - [`mutants`]: the judges can fail.

pub mod campaign;
mod damaged;
pub mod disk;
pub mod engine;
pub mod engines;
pub mod examine;
pub mod explore;
pub mod families;
pub mod halfway;
pub mod image;
pub mod judge;
pub mod kept;
pub mod lives;
pub mod medium;
pub mod minimise;
pub mod mutants;
pub mod nested;
pub mod op;
mod parallel;
pub mod report;
pub mod run;
pub mod scratch;
pub mod states;
pub mod token;
pub mod trace;
pub mod tree;
pub mod workload;

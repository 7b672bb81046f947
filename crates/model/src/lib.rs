//! The judges of every engine.
//!
//! - [`Model`]: a reference file system in memory, written to be read, on Linux's rules.
//! - [`cases`]: what every engine must do, one named case at a time.
//! - [`disk_faults`]: a disk of which each request fails in turn.
//! - [`differential`]: long random sequences of operations on an engine and the model side by side.
//!
//! The model itself is judged by the kernel: `tests/kernel.rs` runs the cases and the sequences on
//! tmpfs. An engine joins with a test file like this one:
//!
//! ```
//! use std::sync::Arc;
//!
//! use model::differential::{self, Config};
//! use model::{Engine, Model};
//! use vfs::Clock;
//!
//! struct MyEngine;
//!
//! impl Engine for MyEngine {
//!     type Fs = Model;
//!
//!     fn make(&self, clock: Arc<dyn Clock>) -> Model {
//!         Model::on(clock)
//!     }
//!
//!     fn remount(&self, fs: Model) -> Model {
//!         fs // an engine on a medium unmounts and mounts here
//!     }
//! }
//!
//! model::engine_cases!(MyEngine);
//!
//! // #[test]
//! fn it_equals_the_model() {
//!     differential::check(Config { ops: 500, ..Config::default() }, 0..3, &MyEngine);
//! }
//! # it_equals_the_model();
//! ```
//!
//! A failure of a sequence prints a token; `TUREEN_REPLAY=<token> cargo test it_equals_the_model`
//! runs it again, and `TUREEN_SEEDS=1000` runs that many seeds.

pub mod cases;
mod change;
mod contents;
pub mod differential;
pub mod disk_faults;
mod engine;
mod inode;
pub mod linear;
mod model;
mod snapshot;
mod tree;

pub use engine::{Engine, Feature};
pub use model::{LIMITS, Model, Node, Options};

//! The life of a volume, whatever engine serves it: recognised, made, checked, mounted, served.
//!
//! [`vfs::FileSystem`] is what an engine does while it is mounted; this is the rest, and what the
//! command line knows of an engine. It is object-safe throughout, so that one program serves any
//! engine by what an image holds:
//!
//! 1. [`Engines::of`] asks each [`Engine`] in turn whether the image is one of its own.
//! 2. [`Engine::open`] opens it with its medium: a [`Volume`], which can be inspected, formatted
//!    and checked.
//! 3. [`Volume::mount`] makes it a [`Mounted`] one, which is served, synced, asked how it is doing,
//!    and unmounted.
//!
//! The options of a mount that only an engine understands are [`Settings`]: the engine reads and
//! writes them, everyone else carries them about.
//!
//! An engine's crate depends on none of this. What implements these traits for it joins it with its
//! medium, and may depend on everything below the command line.

mod engine;
mod engines;
mod foreign;
mod settings;

pub use engine::{
    Access, Check, Engine, Error, Format, GoOn, Mounted, Own, Progress, Report, Result, Snapshots,
    Volume,
};
pub use engines::{Engines, Image};
pub use settings::Settings;

//! The engines that are explored.

pub mod soupfs;

use crate::engine::Engine;

/// The one that workloads run on if they do not say.
pub fn usual() -> &'static dyn Engine {
    &soupfs::ENGINE
}

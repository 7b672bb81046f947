//! The engines that are explored.

pub mod ffs;
pub mod soupfs;

use crate::engine::Engine;
use crate::rules::Rules;

/// All of them.
pub fn all() -> [&'static dyn Engine; 3] {
    [&soupfs::ENGINE, &ffs::ENGINE, &ffs::cached::ENGINE]
}

/// The one that workloads run on if they do not say.
pub fn usual() -> &'static dyn Engine {
    &soupfs::ENGINE
}

/// The one that runs on a medium.
///
/// # Panics
/// If none does.
pub fn on(rules: Rules) -> &'static dyn Engine {
    let mut all = all().into_iter();
    let runs = all.find(|engine| engine.media().contains(&rules));
    runs.expect("each medium has an engine")
}

//! The engines that this program serves: each joined with its medium, in a file of its own. Nothing
//! else here knows one of them.

pub mod ext2;
mod memory;
mod reclaimer;
mod soupfs;
#[cfg(test)]
mod volatile;

use volume::Engines;

/// All of them, in the order in which they are asked whose an image is.
pub static ENGINES: Engines = Engines(&[
    &soupfs::Soup,
    &ext2::Ext2,
    #[cfg(test)]
    &volatile::Volatile,
]);

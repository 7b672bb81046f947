//! Words of the consistent view: as the medium has them, or as a transaction will leave them.

use crate::image::Image;
use crate::medium::Medium;

/// Words that can be read.
pub trait Words<'a> {
    /// The word at a byte offset.
    fn word(&self, at: u64) -> u64;
    /// What validates them.
    fn image(&self) -> Image<'a>;
}

impl<'a> Words<'a> for &'a Medium {
    #[inline]
    fn word(&self, at: u64) -> u64 {
        self.pool.load(at)
    }

    #[inline]
    fn image(&self) -> Image<'a> {
        Medium::image(self)
    }
}

//! Errors.

use block::BlockError;
use pmem::MediumError;

/// Why a cache cannot be made, opened or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The memory failed.
    #[error("the cache's memory failed: {0}")]
    Medium(#[from] MediumError),
    /// The disk failed.
    #[error("the disk behind the cache failed: {0}; what it lacks stays in the cache")]
    Disk(#[from] BlockError),
    /// There is no cache.
    #[error("no cache: {0}; make one with `tureen cache create`")]
    NotACache(String),
    /// The cache holds what cannot be.
    #[error("corrupt cache: {what} at byte {at:#x}")]
    Corrupt {
        /// What was found.
        what: String,
        /// Where.
        at: u64,
    },
    /// Cache and disk do not belong together.
    #[error("{0}")]
    Unbound(String),
    /// A transaction can never fit. Nothing was changed.
    #[error(
        "a transaction of {blocks} blocks does not fit a cache that takes {max}; \
         nothing was changed; use a larger cache"
    )]
    TooLarge {
        /// Blocks of 4 KiB of the transaction.
        blocks: usize,
        /// How many it may have.
        max: usize,
    },
    /// The memory is too small for a cache.
    #[error("{have} bytes are too few for a cache; it needs {need} at least")]
    TooSmall {
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
}

impl CacheError {
    pub(crate) fn corrupt(at: u64, what: impl Into<String>) -> CacheError {
        CacheError::Corrupt {
            what: what.into(),
            at,
        }
    }
}

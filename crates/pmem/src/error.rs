//! Errors: of opening a pool, and of the medium while in use.

use std::io;
use std::path::PathBuf;

/// Why a pool could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No such file.
    #[error("{path}: no such image; create one, or check the path", path = path.display())]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// `create` met an existing file.
    #[error(
        "{path}: already exists; open it, or remove it to create a new one",
        path = path.display()
    )]
    Exists {
        /// The path given.
        path: PathBuf,
    },
    /// The file or device is too small for what is asked.
    #[error(
        "{path}: too small: {need} bytes are needed, it has {have}; enlarge it or use another",
        path = path.display()
    )]
    TooSmall {
        /// The path given.
        path: PathBuf,
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// Another process (or another pool of this one) has it locked.
    #[error(
        "{path}: in use by {holder}; unmount it there first",
        path = path.display(),
        holder = holder(*pid)
    )]
    InUse {
        /// The path given.
        path: PathBuf,
        /// The process that holds the lock, where the system tells.
        pid: Option<u32>,
    },
    /// The host file system (or the host's memory) cannot hold the pool.
    #[error(
        "{path}: not enough space: {need} bytes are needed, {free} are free; \
         free some, use a smaller size, or create a sparse image",
        path = path.display()
    )]
    NoSpace {
        /// The path given.
        path: PathBuf,
        /// Bytes needed.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// The file is of a kind, or on a file system, that cannot carry a pool.
    #[error("{path}: cannot carry a pool: {what}", path = path.display())]
    Unsupported {
        /// The path given.
        path: PathBuf,
        /// What is missing and what to use in place.
        what: String,
    },
    /// Anything else that the system refused.
    #[error("{path}: {action} failed: {source}", path = path.display())]
    Io {
        /// The path given.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

/// Why the medium could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    /// A sync failed: what the medium holds of the stores since the last sync is unknown.
    #[error("{pool}: sync of {len} bytes at {off} failed: {cause}; no more writes are accepted")]
    SyncFailed {
        /// The pool.
        pool: String,
        /// Start of the range.
        off: u64,
        /// Its length in bytes.
        len: u64,
        /// What the system said.
        cause: String,
    },
    /// The disk could not be read, or written to make room in memory.
    #[error("{cause}; no more writes are accepted")]
    Disk {
        /// What was tried, where, and what the system said.
        cause: String,
    },
    /// A part of the disk could not be read. The pool stays usable.
    #[error("{cause}")]
    Unreadable {
        /// What was tried, where, and what the system said.
        cause: String,
    },
    /// The pool was poisoned by its user.
    #[error("{pool}: no more writes are accepted: {cause}")]
    Poisoned {
        /// The pool.
        pool: String,
        /// Why.
        cause: String,
    },
    /// The host file system has no space for a sparse image to grow. The pool stays usable.
    #[error(
        "{pool}: the host file system is full: {need} bytes are needed, {free} are free; \
         free some there"
    )]
    HostFull {
        /// The pool.
        pool: String,
        /// Bytes needed.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// The host file system refused to allocate blocks for another reason.
    #[error("{pool}: allocating {len} bytes at {off} failed: {cause}")]
    BackFailed {
        /// The pool.
        pool: String,
        /// Start of the range.
        off: u64,
        /// Its length in bytes.
        len: u64,
        /// What the system said.
        cause: String,
    },
}

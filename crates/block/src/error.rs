//! Errors: of I/O, and of opening.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::Action;

/// A request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {action} failed: {errno}")]
pub struct BlockError {
    /// The device's name.
    pub device: String,
    /// What was to be done: of a poisoned disk, the first thing that failed.
    pub action: Action,
    /// Why not.
    pub errno: Errno,
}

/// An image or device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("{path}: {action} failed: {source}")]
    Io {
        /// Of the image or device.
        path: PathBuf,
        /// What was to be done.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path}: in use by another process, or mounted; unmount it first")]
    InUse {
        /// Of the image or device.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: not an image file or a block device")]
    NotABlockDevice {
        /// What it is not.
        path: PathBuf,
    },
    /// Not even one sector.
    #[error("{path}: only {len} bytes; a device has 512 at least")]
    TooSmall {
        /// Of the image or device.
        path: PathBuf,
        /// Bytes that it has.
        len: u64,
    },
}

//! What the command line knows of an engine.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use fuse::StatusFn;
use serde_json::Value;

use crate::{Image, Settings};

/// Why something could not be done, in words for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else holds the image. It may be about to finish.
    #[error("{0}")]
    InUse(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// What came of an operation on a volume.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure, in these words.
    pub fn new(what: impl Display) -> Error {
        Error::Failed(what.to_string())
    }

    /// A failure at a path.
    pub fn at(path: &Path, what: impl Display) -> Error {
        Error::new(format_args!("{}: {what}", path.display()))
    }
}

/// What a volume is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To look at it: nothing is changed, and others may do the same.
    Look,
    /// To mount it so that it does not change: what a crash left is put right in memory.
    MountReadOnly,
    /// To change it, alone.
    Write,
}

/// What a new file system is to be like.
#[derive(Debug, Clone)]
pub struct Format {
    /// Its identifier.
    pub uuid: [u8; 16],
    /// A name for people.
    pub label: String,
    /// Whether the medium is known to hold nothing but zeros.
    pub zeroed: bool,
    /// With a journal, if the engine has such ([`Engine::has_journals`]).
    pub journal: bool,
}

/// How to check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Repair what can be repaired.
    pub repair: bool,
    /// Threads; 0: as many as there are processors.
    pub threads: usize,
}

/// Told while a check goes on: what is being done, how much of it is done, and how much there is,
/// as far as that is known.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64, u64) + Sync);

/// The same, of a check that may be ended: whether to go on.
pub type GoOn<'a> = &'a (dyn Fn(&'static str, u64, u64) -> bool + Sync);

/// What a check found and did.
#[derive(Debug, Clone)]
pub struct Report {
    /// For people: findings, a line each, and a verdict last.
    pub text: String,
    /// For scripts.
    pub json: Value,
    /// The exit code that fsck(8) has for it.
    pub code: u8,
}

/// Whether an image is an engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// It is not.
    No,
    /// By a copy of what makes it so. Somebody else may have made it theirs since.
    ByCopy,
    /// It is.
    Yes,
}

/// A kind of file system that images may hold.
pub trait Engine: Send + Sync {
    /// What `mkfs --type` calls it.
    fn name(&self) -> &'static str;

    /// Whether the image holds one of its own, however damaged.
    fn owns(&self, image: &Image) -> io::Result<Own>;

    /// Whether it can be on a device that can be mapped and not read (device DAX), where nobody can
    /// be asked whose it is.
    fn can_be_mapped(&self) -> bool {
        false
    }

    /// Whether a new file system can have a journal beside its contents.
    fn has_journals(&self) -> bool {
        false
    }

    /// What a mount without options is like.
    fn settings(&self) -> Settings;

    /// Applies an option of `mount -o`; false: it is not one of this engine's. An error says what
    /// would be right.
    fn set(
        &self,
        settings: &mut Settings,
        name: &str,
        value: Option<&str>,
    ) -> std::result::Result<bool, String>;

    /// Applies the option `sync`, or takes it back: that changes of names are durable when a call
    /// returns, as far as it can. Contents the kernel syncs itself.
    fn set_sync(&self, settings: &mut Settings, on: bool);

    /// Its options for the help of `mount -o`: a line each, or several.
    fn options_help(&self) -> &'static str;

    /// The names of its options, separated by commas, for the message about an unknown one.
    fn option_names(&self) -> &'static str;

    /// Refuses a length that no image may have: before a file is made.
    fn check_len(&self, len: u64) -> Result<()>;

    /// Makes an image file of this length, with nothing in it; `sparse`: without blocks. Of the
    /// settings those count that concern the medium.
    fn create(
        &self,
        path: &Path,
        len: u64,
        sparse: bool,
        settings: &Settings,
    ) -> Result<Arc<dyn Volume>>;

    /// Opens an image, whatever it holds, alone unless to look at it: else [`Error::InUse`].
    fn open(&self, path: &Path, access: Access, settings: &Settings) -> Result<Arc<dyn Volume>>;
}

/// An open image. Dropping the last reference gives it free.
pub trait Volume: Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads bytes within the length.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()>;

    /// Makes an empty file system; its root directory belongs to the caller.
    fn format(&self, format: &Format) -> Result<()>;

    /// What it says of itself: facts by their names, as [`Mounted::status`]. `clean` and `damaged`
    /// (what is) tell whether all is well.
    fn inspect(&self) -> Result<Value>;

    /// Whether it was unmounted cleanly; `None`: it does not tell.
    fn is_clean(&self) -> Option<bool>;

    /// What carries it, and what survives a crash there.
    fn medium(&self) -> Value;

    /// Checks it.
    fn check(&self, check: &Check, progress: Progress<'_>) -> Result<Report>;

    /// Mounts it; for reading only too if it cannot be written. What the user should know about how
    /// that went is logged.
    fn mount(&self, settings: &Settings, read_only: bool) -> Result<Arc<dyn Mounted>>;

    /// Lets nothing become durable any more: the medium fails from now on, for this reason. Takes
    /// no lock that an operation could hold.
    fn poison(&self, why: &str);
}

/// A mounted volume.
pub trait Mounted: Send + Sync {
    /// Whether all changes are refused.
    fn is_read_only(&self) -> bool;

    /// What it says of itself while it is live: facts by their names, which end in `_bytes`, `_ms`
    /// or, for seconds since 1970, `_at`. Whether all is well tell `failed`, `host_full` and
    /// `notice` (what and why), `reclaiming`, and `late_ms`. What is counted is in an object
    /// `counters`.
    fn status(&self) -> Value;

    /// Makes durable everything that was done before.
    fn sync(&self) -> vfs::Result<()>;

    /// Runs a command of the engine's own.
    ///
    /// # Errors
    /// There is none of that name, or it failed.
    fn control(&self, command: &str) -> Result<()> {
        Err(Error::new(format_args!(
            "{command}: not a command of this file system"
        )))
    }

    /// Checks it while it is in use; with `repair`, repairs what can be repaired then.
    ///
    /// # Errors
    /// It cannot be checked so, or is being checked, or was to be ended; the disk failed.
    fn check_live(&self, _repair: bool, _go_on: GoOn<'_>) -> Result<Report> {
        Err(Error::new(
            "this type of file system is not checked while it is mounted: unmount it first",
        ))
    }

    /// Makes everything durable and marks the image clean. Nothing can be done after it.
    fn unmount(&self) -> Result<()>;

    /// Its snapshots; `None`: the engine has none.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Dumps it, or what of it changed: [`dump::dump()`] of its file system. Nobody may change it
    /// meanwhile.
    fn dump(
        &self,
        options: &dump::Options,
        out: &mut dyn io::Write,
        progress: dump::Progress<'_>,
    ) -> dump::Result<dump::Summary>;

    /// Serves it on a directory: [`fuse::mount()`] of its file system.
    fn serve(
        &self,
        dir: &Path,
        options: &fuse::Options,
        status: StatusFn,
    ) -> io::Result<fuse::Mount>;
}

/// Snapshots of a mounted volume: each is an image of it as it was, which can be read like any
/// other.
pub trait Snapshots {
    /// Makes one of what there is now. A temporary one is gone with the next mount. Facts about it,
    /// by their names.
    fn create(&self, name: &str, temporary: bool) -> Result<Value>;

    /// Removes one.
    fn delete(&self, name: &str) -> Result<()>;

    /// All of them, older ones first: of each `name`, `created_at`, `space_bytes`, `temporary`.
    fn list(&self) -> Vec<Value>;

    /// The directory in the root of the mount where their images are, by their names.
    fn dir(&self) -> &'static str;
}

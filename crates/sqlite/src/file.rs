//! Open files, as SQLite sees them.
//!
//! In a strong image a database commits like this:
//!
//! ```text
//! lock     RESERVED
//! write    into memory, where only this connection sees it
//! sync     all of it is one write of the engine               (the commit point)
//! unlock   what is not committed by now is void
//! ```
//!
//! So a crash leaves each transaction as a whole or not at all, whatever the journal mode is, and
//! the rollback journal serves only to roll back: it is in memory. One that is found in the image
//! (the database was copied there after a crash elsewhere) is used as it is.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use soupfs::Node;
use vfs::{Errno, FileSystem, Fsync};

use crate::abi::{Code, code, control, promise};
use crate::images::Lease;
use crate::locks::{Own, Shared};
use crate::pending::Pending;

/// An open file.
pub enum Open {
    /// In an image.
    Stored(Stored),
    /// In memory: it goes when it is closed.
    Memory(Vec<u8>),
}

/// An open file of an image.
pub struct Stored {
    image: Lease,
    node: Node,
    /// What the connections to the database share; a log has that of its database.
    shared: Arc<Shared>,
    own: Own,
    role: Role,
    pending: Pending,
    /// Bytes that may be pending.
    pending_max: usize,
    /// Between the begin of an atomic write and its end.
    in_batch: bool,
    /// Removed when it is closed.
    remove: Option<PathBuf>,
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A database.
    Database,
    /// A write-ahead log.
    Log,
    /// Something else.
    Other,
}

/// The code for an error; `otherwise` if there is none of its own.
pub fn of(error: &vfs::Error, otherwise: Code) -> Code {
    match error {
        vfs::Error::Errno(Errno::NOSPC | Errno::FBIG | Errno::DQUOT) => code::FULL,
        vfs::Error::Errno(Errno::ROFS) => code::READONLY,
        vfs::Error::Errno(_) => otherwise,
        vfs::Error::Corrupt(why) => {
            log::error!("{why}");
            code::CORRUPT
        }
        vfs::Error::Medium(why) => {
            log::error!("{why}");
            otherwise
        }
    }
}

impl Stored {
    /// A file of an image.
    pub fn new(image: Lease, node: Node, role: Role, shared: Arc<Shared>) -> Stored {
        if role == Role::Log {
            shared.log_is_open(true);
        }
        Stored {
            image,
            node,
            shared,
            own: Own::default(),
            role,
            pending: Pending::default(),
            pending_max: PENDING_MAX,
            in_batch: false,
            remove: None,
        }
    }

    /// At most so many bytes may be pending: beyond them the transaction fails.
    pub fn set_pending_max(&mut self, pending_max: usize) {
        self.pending_max = pending_max;
    }

    /// It is removed when it is closed.
    pub fn removed_at_close(&mut self, path: PathBuf) {
        self.remove = Some(path);
    }

    /// What the medium of its image was asked for since that was mounted, as a JSON object.
    pub fn counters(&self) -> String {
        let all = self.image.fs().pool().stats();
        let stored = all.bytes_cached + all.bytes_non_temporal;
        format!(
            r#"{{"flushed_lines":{},"fences":{},"syncs":{},"stored_bytes":{stored}}}"#,
            all.flushed_lines, all.fences, all.syncs
        )
    }

    /// What the connections share, and what this one has of it.
    pub fn locks(&mut self) -> (&Shared, &mut Own) {
        (&self.shared, &mut self.own)
    }

    /// Whether what is written waits for the commit. Not if there is a write-ahead log: what is
    /// copied from that into the database is committed, and no transaction.
    fn gathers(&self) -> bool {
        let writes = self.in_batch || (self.own.writes() && !self.shared.has_log());
        self.role == Role::Database && self.image.is_strong() && writes
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Code> {
        let read = self.image.fs().read(&self.node, at, buf);
        let read = read.map_err(|e| of(&e, code::IOERR_READ))?;
        buf[read..].fill(0);
        self.pending.lay_over(at, buf);
        let end = self.size().saturating_sub(at).min(buf.len() as u64);
        Ok(end as usize)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Code> {
        if self.gathers() {
            if self.pending.bytes() + data.len() > self.pending_max {
                log::error!(
                    "a transaction changes more than {} bytes: make it smaller, or raise the \
                     parameter `pending` of the database's name",
                    self.pending_max
                );
                return Err(code::FULL);
            }
            self.pending.write(at, data);
            return Ok(());
        }
        self.commit()?;
        let parts = [(at, data)];
        let parts = if data.is_empty() { &parts[..0] } else { &parts };
        let written = self.image.fs().write_parts(&self.node, parts);
        written.map_err(|e| of(&e, code::IOERR_WRITE))
    }

    fn size(&self) -> u64 {
        let size = self.image.fs().attr(&self.node).size;
        size.max(self.pending.end())
    }

    /// Make the file shorter, or longer with zeros. A file is cut off when a transaction was
    /// committed that does not use its end, or to what it was when one is rolled back: so this need
    /// not be part of a commit.
    fn truncate(&mut self, size: u64) -> Result<(), Code> {
        self.pending.truncate(size);
        if self.image.fs().attr(&self.node).size == size {
            return Ok(());
        }
        let set = vfs::SetAttr {
            size: Some(size),
            ..vfs::SetAttr::default()
        };
        let cut = self.image.fs().setattr(&self.node, &set).map(drop);
        cut.map_err(|e| of(&e, code::IOERR_TRUNCATE))
    }

    /// What is pending is durable, as a whole, when this returns.
    fn commit(&mut self) -> Result<(), Code> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // Commit point.
        let written = (self.image.fs()).write_parts(&self.node, &self.pending.parts());
        written.map_err(|e| of(&e, code::IOERR_WRITE))?;
        self.pending.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Code> {
        if self.in_batch {
            return Ok(());
        }
        self.commit()?;
        match self.image.is_strong() {
            true => Ok(()),
            false => {
                let synced = self.image.fs().fsync(&self.node, Fsync::All);
                synced.map_err(|e| of(&e, code::IOERR_FSYNC))
            }
        }
    }

    /// Lock less far. What is pending was not committed: it is void.
    pub fn unlock(&mut self, level: c_int) {
        self.shared.unlock(&mut self.own, level);
        if !self.own.writes() {
            self.pending.clear();
            self.in_batch = false;
        }
    }

    fn control(&mut self, operation: c_int) -> Result<(), Code> {
        match operation {
            // A sync follows, or would if syncs were not switched off.
            control::SYNC => self.commit(),
            control::BEGIN_ATOMIC_WRITE if !self.image.is_strong() => Err(code::NOTFOUND),
            control::BEGIN_ATOMIC_WRITE => match self.pending.is_empty() {
                true => {
                    self.in_batch = true;
                    Ok(())
                }
                false => Err(code::IOERR_BEGIN_ATOMIC),
            },
            control::COMMIT_ATOMIC_WRITE => {
                self.in_batch = false;
                log::trace!("an atomic batch of {} bytes", self.pending.bytes());
                self.commit()
            }
            control::ROLLBACK_ATOMIC_WRITE => {
                self.in_batch = false;
                self.pending.clear();
                Ok(())
            }
            _ => Err(code::NOTFOUND),
        }
    }

    fn promises(&self) -> c_int {
        let any = promise::POWERSAFE_OVERWRITE | promise::SAFE_APPEND;
        match self.image.is_strong() {
            true => any | promise::ATOMIC | promise::SEQUENTIAL | promise::BATCH_ATOMIC,
            false => any,
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.shared.unmap(&mut self.own);
        self.shared.unlock(&mut self.own, crate::abi::lock::NONE);
        if self.role == Role::Log {
            self.shared.log_is_open(false);
        }
        if let Some(path) = self.remove.take()
            && let Err(why) = self.image.remove(&path)
        {
            log::error!("{}: {why}", path.display());
        }
    }
}

/// Bytes that may be pending, unless the parameter `pending` says otherwise.
const PENDING_MAX: usize = 1 << 30;

impl Open {
    /// Read; how many bytes there were. The rest of the buffer is zeros.
    ///
    /// # Errors
    /// The medium failed, or is damaged.
    pub fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<usize, Code> {
        match self {
            Open::Stored(file) => file.read(at, buf),
            Open::Memory(bytes) => {
                let from = (at as usize).min(bytes.len());
                let there = &bytes[from..bytes.len().min(from + buf.len())];
                buf[..there.len()].copy_from_slice(there);
                buf[there.len()..].fill(0);
                Ok(there.len())
            }
        }
    }

    /// Write all of the data.
    ///
    /// # Errors
    /// There is no space, or the medium failed.
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Code> {
        match self {
            Open::Stored(file) => file.write(at, data),
            Open::Memory(bytes) => {
                let (from, to) = (at as usize, at as usize + data.len());
                if bytes.len() < to {
                    bytes.resize(to, 0);
                }
                bytes[from..to].copy_from_slice(data);
                Ok(())
            }
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Open::Stored(file) => file.size(),
            Open::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Set its size.
    ///
    /// # Errors
    /// As [`Open::write`].
    pub fn truncate(&mut self, size: u64) -> Result<(), Code> {
        match self {
            Open::Stored(file) => file.truncate(size),
            Open::Memory(bytes) => {
                bytes.resize(size as usize, 0);
                Ok(())
            }
        }
    }

    /// Make it durable.
    ///
    /// # Errors
    /// As [`Open::write`].
    pub fn sync(&mut self) -> Result<(), Code> {
        match self {
            Open::Stored(file) => file.sync(),
            Open::Memory(_) => Ok(()),
        }
    }

    /// An operation of `xFileControl`.
    ///
    /// # Errors
    /// It is not known, or as [`Open::write`].
    pub fn control(&mut self, operation: c_int) -> Result<(), Code> {
        match self {
            Open::Stored(file) if file.role == Role::Database => file.control(operation),
            _ => Err(code::NOTFOUND),
        }
    }

    /// What it promises (`xDeviceCharacteristics`).
    pub fn promises(&self) -> c_int {
        match self {
            Open::Stored(file) => file.promises(),
            Open::Memory(_) => promise::SAFE_APPEND | promise::SEQUENTIAL,
        }
    }
}

//! Paths and descriptors: an in-process interface shaped like the system calls.
//!
//! [`Files`] is what a process has: a table of descriptors and an identity as owner of record
//! locks. [`Context`] is what a thread acts with: credentials, umask, root and working directory.
//! A typical sequence:
//!
//! ```text
//! let files = Files::new(vfs, limit);                    // once
//! let ctx = Context::new(files.vfs(), Cred::new(uid, gid, &groups));
//! let fd = files.open(&ctx, "a/b", OpenFlags::WRITE | OpenFlags::CREATE, 0o644)?;
//! files.write(&ctx, fd, b"hello")?;
//! files.close(fd)?;
//! ```
//!
//! No lock is shared by all: descriptors live in shards, a thread makes its own in its own shard,
//! and a path that goes on from where one of the thread's last walks was is not walked again.

mod attrs;
mod files;
mod io;
mod lock;
mod names;
mod open;
mod table;
mod trail;
mod walk;

pub use files::{Context, Fd, Files, PathAt};
pub use io::Whence;
pub use open::OpenFlags;

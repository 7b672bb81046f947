//! The mount: any [`vfs::FileSystem`] served through the kernel's FUSE.
//!
//! [`mount()`] sets a mount up and serves it from threads of its own; [`Mount::wait`] returns when
//! it has ended, by `umount` or by [`Unmounter::stop`], and then the engine can be unmounted.
//! Nothing outside this crate names the FUSE library.
//!
//! # What counts
//!
//! A request costs two context switches, tens of times what the engine needs for the operation. So
//! the mount is tuned for few requests, and it may be: the image belongs to this mount alone,
//! nobody else changes it, and so the kernel may believe what it was told for as long as it likes.
//! Which of its caches that concerns, why each stays true, and how many requests each operation
//! takes is written down in `docs/design/fuse.md`; `tests/mount` asserts both.
//!
//! | Operation | Requests |
//! |---|---|
//! | stat, open, close of a known file; read of a cached page; a known absence | 0 |
//! | create + close | 2: LOOKUP, MKNOD (1 where the absence was known) |
//! | unlink, rmdir, rename, link, chmod, truncate of known names | 1 |
//! | mkdir, symlink | 2: LOOKUP, MKDIR or SYMLINK |
//! | read or write of up to 1 MiB | 1 (the first write to an inode: 2) |
//! | listing a directory again | 1: GETATTR, for the access time |
//! | the first use of a directory after names in it changed | 1 more: GETATTR |
//!
//! # Who decides what
//!
//! The kernel checks permissions and ACLs (`default_permissions`, `FUSE_POSIX_ACL`) and keeps
//! locks: with one owner, local locks are right. The VFS decides what is inherited and what a
//! change takes away. The adapter only translates; it holds no open files, only inodes (see
//! `table`).
//!
//! # Map
//!
//! `mount`: options, threads, the end. `requests`: each request as one call. `adapter`: what they
//! all need. `table`: inodes that the kernel holds. `holes`: data and holes, in spite of mapped
//! pages. `follow`: threads run where their client runs. `gate`: no requests after the end.
//! `monitor`: counters and the last failure. `shutdown`: an end as if the process were killed, for
//! tests. `convert`: vocabulary. `null`: a file system that does nothing, to compare with.

mod adapter;
mod convert;
mod follow;
mod gate;
mod holes;
mod monitor;
mod mount;
mod null;
mod requests;
mod shutdown;
mod table;

pub use monitor::{Monitor, Request};
pub use mount::{
    ControlFn, Device, Done, Mount, Options, StatusFn, Unmounter, device, mount, unmount,
};
pub use null::mount_nothing;
pub use shutdown::{How, ShutdownFn};

/// The extended attribute whose reading makes durable everything that was done before: what
/// syncfs(2) would do if the kernel passed it on. Any file of the mount has it. Not listed.
pub const SYNC_XATTR: &str = "tureen.sync";

/// The extended attribute that tells the status of the mount. Each of its files has it, since a
/// bind mount may have any of them for its root. Not listed; answered from the callback given to
/// [`mount()`].
pub const STATUS_XATTR: &str = "tureen.status";

/// With a command behind it, the extended attribute whose reading runs that: [`Options::control`].
/// Its value is the answer. Any file of the mount has it, for root and for who serves the mount,
/// with a buffer of at least 4096 bytes. Not listed.
pub const CONTROL_XATTR: &str = "tureen.control.";

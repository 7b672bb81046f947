//! The mount: any [`vfs::FileSystem`] served through the kernel's FUSE.
//!
//! [`mount()`] sets a mount up and serves it from threads of its own; [`Mount::wait`] returns when
//! it has ended, by `umount` or by [`Unmounter::stop`], and then the engine can be unmounted.
//! Nothing outside this crate names the FUSE library, which mounts and shakes hands.
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
//! Layers, from the bottom. A module uses those above it in this list, and none below (a test):
//! 1. `xattrs`: what a mount is asked by. `convert`: vocabulary. `wire`: the bytes of requests.
//!    `gate`: no requests after the end. `monitor`: counters and the last failure. `table`: inodes
//!    that the kernel holds.
//! 2. `crew`: how many threads wait for requests. `reply`: answers. `follow`: threads run where
//!    their client runs. `shutdown`: an end as if the process were killed, for tests.
//! 3. `handler`: what serves requests. `handshake`: what a mount and the kernel agree on.
//!    `device`, `ring`: requests by `/dev/fuse`, and by a queue for each core.
//! 4. `options`: how to mount.
//! 5. `adapter`: what all requests need. `holes`: data and holes, in spite of mapped pages.
//! 6. `requests`: each request as one call.
//! 7. `mount`: a mount from beginning to end.
//! 8. `null`: a file system that does nothing, to compare with.

mod adapter;
mod convert;
mod crew;
mod device;
mod follow;
mod gate;
mod handler;
mod handshake;
mod holes;
mod monitor;
mod mount;
mod null;
mod options;
mod reply;
mod requests;
mod ring;
mod shutdown;
mod table;
mod wire;
mod xattrs;

pub use monitor::{Monitor, Request, Transport};
pub use mount::{Device, Mount, Unmounter, device, mount, unmount};
pub use null::mount_nothing;
pub use options::{ControlFn, Done, Options, StatusFn};
pub use shutdown::{How, ShutdownFn};
pub use xattrs::{CONTROL_XATTR, STATUS_XATTR, SYNC_XATTR};

#[cfg(test)]
#[test]
fn no_module_uses_one_further_down() {
    let uses = testing::layers::check(env!("CARGO_MANIFEST_DIR"));
    assert!(uses > 30, "sources were read");
}

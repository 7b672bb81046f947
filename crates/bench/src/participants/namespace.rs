//! Mounts that have a path, and that nobody else sees: for programs, which are told names.
//!
//! They are made by a thread with a namespace of mounts of its own. It ends with that thread and
//! the programs that it started, if only because the process was killed, and all of its mounts with
//! it.

use std::path::PathBuf;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::target::Result;

/// Do `work` where mounts are seen by nobody else. Who may not have that (only root may) has no
/// mounts of the kernel's either, and works where it is.
///
/// # Errors
/// Those of the work; if a namespace cannot be had by root.
pub fn with_paths<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter()?;
            work()
        });
        thread.join().map_err(|_| "a thread panicked")?
    })
}

/// A path with a mount on it, which goes away with the value: else nobody could remove the
/// directory as long as the namespace is there.
pub(super) struct Attached(pub PathBuf);

impl Drop for Attached {
    fn drop(&mut self) {
        // It ends with the namespace anyway.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[allow(
    unsafe_code,
    reason = "other flags would take descriptors away from this process"
)]
fn enter() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // SAFETY: descriptors stay shared with all threads.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    // What is mounted here is not mounted anywhere else.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", private)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_do_not_see_what_is_mounted_there() {
        let namespace = || std::fs::read_link("/proc/thread-self/ns/mnt").unwrap();
        let (before, other) = (namespace(), with_paths(|| Ok(namespace())).unwrap());
        let root = rustix::process::geteuid().is_root();
        assert_eq!(before != other, root);
        assert_eq!(namespace(), before);
    }
}

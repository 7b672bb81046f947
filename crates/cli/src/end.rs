//! The end of a mount by a signal, wherever the file system is mounted by then.

use std::fs::File;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use signal_hook::iterator::Signals;

use crate::mounts::{self, LiveMount};

/// How long users of the mount may finish after a signal told it to end.
const GRACE: Duration = Duration::from_secs(5);

/// Ends the mount on this directory when one of the signals comes, from a thread of its own.
pub fn on_signals(mut signals: Signals, dir: &Path, unmounter: fuse::Unmounter) {
    let mount = mounts::on(dir);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            match &mount {
                Some(mount) => end(mount, &unmounter),
                None => unmounter.stop(GRACE), // no list of mounts here
            }
        }
    });
}

fn end(mount: &LiveMount, unmounter: &fuse::Unmounter) {
    write_back(mount);
    let is_used_elsewhere = detach_elsewhere(mount);
    if !is_ours_to_unmount(mount) {
        log::error!(
            "{dir}: something else is mounted here by now; the file system is served until its users are done, or until \
             that is unmounted and another signal comes",
            dir = mount.dir.display()
        );
        return;
    }
    // It is the use of this directory that `stop` looks at, to give users their grace and then end without them.
    let _user = is_used_elsewhere.then(|| File::open(&mount.dir));
    unmounter.stop(GRACE);
}

/// Has the kernel hand over what it holds of files that stay open longer than the grace, mapped into memory or with `writeback`:
/// detaching alone leaves that for the last close.
fn write_back(mount: &LiveMount) {
    let mounts = mounts::of_file_system(mount);
    let Some(mount) = mounts.iter().find(|mount| is_on_top(mount)) else {
        return; // detached already: nothing leads there any more
    };
    let written = File::open(&mount.dir).and_then(|root| Ok(rustix::fs::syncfs(root)?));
    if let Err(error) = written {
        log::error!(
            "{}: what files in use have of unwritten data may be lost: {error}",
            mount.dir.display()
        );
    }
}

/// Detaches the file system from all directories but the one that it was mounted on first; whether that found users.
fn detach_elsewhere(mount: &LiveMount) -> bool {
    let mut others = mounts::of_file_system(mount);
    if let Some(first) = others.iter().position(|other| other.dir == mount.dir) {
        others.remove(first);
    }
    let mut is_used = false;
    // The last first: it may cover others, or be mounted in one.
    for other in others.iter().rev().filter(|other| is_on_top(other)) {
        is_used |= detach(&other.dir);
    }
    is_used
}

/// Detaches what is mounted on a directory; whether it was in use.
fn detach(dir: &Path) -> bool {
    if fuse::unmount(dir, false).is_ok() {
        return false;
    }
    log::warn!("{} is in use: detached", dir.display());
    if let Err(error) = fuse::unmount(dir, true) {
        log::error!("cannot detach {}: {error}", dir.display());
    }
    true
}

/// Whether the directory leads to this mount's file system, and not to one that covers it.
fn is_on_top(mount: &LiveMount) -> bool {
    let stat = std::fs::metadata(&mount.dir);
    stat.is_ok_and(|stat| rustix::fs::minor(stat.st_dev()) == mount.minor)
}

/// Whether unmounting the directory takes nothing else away: neither what covers the mount, nor what is there when the mount
/// is not, having been unmounted from here alone.
fn is_ours_to_unmount(mount: &LiveMount) -> bool {
    let stat = statx(CWD, &mount.dir, AtFlags::empty(), StatxFlags::empty());
    let is_mounted_on = stat.is_ok_and(|s| s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    !is_mounted_on || is_on_top(mount)
}

//! The end of a mount by a signal, wherever the file system is mounted by then.

use std::fs::File;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use signal_hook::iterator::Signals;

use crate::mounts::{self, Hold, LiveMount};

/// How long users of the mount may finish after a signal told it to end.
const GRACE: Duration = Duration::from_secs(5);

/// Ends the mount on this directory when one of the signals comes, from a thread of its own.
pub fn on_signals(mut signals: Signals, dir: &Path, unmounter: fuse::Unmounter) {
    let mount = mounts::on(dir).map(|mount| (Hold::on(&mount), mount));
    std::thread::spawn(move || {
        for _ in signals.forever() {
            match &mount {
                Some((hold, mount)) => end(mount, hold, &unmounter),
                None => unmounter.stop(GRACE), // no list of mounts here
            }
        }
    });
}

fn end(mount: &LiveMount, hold: &Hold, unmounter: &fuse::Unmounter) {
    write_back(mount);
    detach_elsewhere(mount);
    let start = Instant::now();
    // `stop` waits for users of this directory alone. It is called once more when others hold the file system: another mount
    // namespace, users of what was detached elsewhere. Then it finds nothing to unmount, and gives them their grace.
    loop {
        if !is_ours_to_unmount(mount) {
            return log::error!(
                "{}: something else is mounted here by now; the file system is served until its users are done, or \
                 until that is unmounted and another signal comes",
                mount.dir.display()
            );
        }
        unmounter.stop(GRACE);
        if !hold.lasts() || start.elapsed() >= GRACE {
            return;
        }
    }
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

/// Detaches the file system from all directories but the one that it was mounted on first.
fn detach_elsewhere(mount: &LiveMount) {
    let mut others = mounts::of_file_system(mount);
    if let Some(first) = others.iter().position(|other| other.dir == mount.dir) {
        others.remove(first);
    }
    // The last first: it may cover others, or be mounted in one.
    for other in others.iter().rev().filter(|other| is_on_top(other)) {
        if let Err(error) = fuse::unmount(&other.dir, true) {
            log::error!("cannot detach {}: {error}", other.dir.display());
        }
    }
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

//! The end of a mount by a signal, wherever the file system is mounted by then.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use signal_hook::iterator::Signals;

use crate::mounts::{self, LiveMount};

/// Ends the mount on this directory when one of the signals comes, from a thread of its own. Users
/// of the mount may finish within the grace.
pub fn on_signals(mut signals: Signals, dir: &Path, unmounter: fuse::Unmounter, grace: Duration) {
    let mount = mounts::on(dir);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            match &mount {
                Some(mount) => end(mount, &unmounter, grace),
                None => unmounter.stop(grace), // no list of mounts here
            }
        }
    });
}

fn end(mount: &LiveMount, unmounter: &fuse::Unmounter, grace: Duration) {
    write_back_all(mount);
    unmounter.write_back(); // those above do not wait for all of it
    detach(mount);
    unmounter.finish(grace);
}

/// Has the kernel hand over what it holds of files that stay open longer than the grace, mapped
/// into memory or with `writeback`: detaching alone leaves that for the last close.
fn write_back_all(mount: &LiveMount) {
    let mounts = mounts::of_file_system(mount);
    let Some(mount) = mounts.iter().find(|mount| !mounts::is_covered(mount)) else {
        return; // nothing leads there any more
    };
    write_back(&mount.dir);
}

/// Has the kernel hand over what it holds of the file system on this directory. Its requests must
/// be served meanwhile.
pub fn write_back(dir: &Path) {
    let written = File::open(dir).and_then(|root| Ok(rustix::fs::syncfs(root)?));
    if let Err(error) = written {
        log::error!(
            "{}: what files in use have of unwritten data may be lost: {error}",
            dir.display()
        );
    }
}

/// Detaches the file system from all directories in sight, but for those where unmounting takes
/// away what covers it.
fn detach(mount: &LiveMount) {
    // The last first: it may cover others, or be mounted in one.
    for mount in mounts::of_file_system(mount).iter().rev() {
        let dir = mount.dir.display();
        if !mounts::live().contains(mount) {
            continue; // went with its copy in another directory
        }
        if mounts::is_covered(mount) {
            log::warn!(
                "{dir}: this mount ends under another one that covers it; unmount that, and then: \
                 tureen umount {dir}"
            );
        } else if let Err(error) = fuse::unmount(&mount.dir, true) {
            log::error!("cannot detach {dir}: {error}");
        }
    }
}

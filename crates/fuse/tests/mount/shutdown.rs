//! `FS_IOC_SHUTDOWN`: who may, with which flags, and what is left.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fuse::How;
use parking_lot::Mutex;
use rustix::io::Errno;
use testing::raw::shut_down;

use crate::common::Mounted;

/// A mount that notes what a shutdown was asked to do first.
fn noting() -> (Mounted, Arc<Mutex<Vec<How>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let mount = Mounted::with(|options| {
        options.shutdown = Some(Arc::new(move |how| {
            noted.lock().push(how);
            Ok(())
        }));
    });
    (mount, asked)
}

fn errno(result: io::Result<()>) -> Option<Errno> {
    let error = result.err()?;
    Some(Errno::from_raw_os_error(
        error.raw_os_error().expect("of a system call"),
    ))
}

#[test]
fn a_mount_that_is_shut_down_answers_eio_and_can_be_unmounted() {
    testing::needs_root!();
    for (flags, how) in [(0, How::SyncAll), (1, How::Sync), (2, How::Cut)] {
        let (mut mount, asked) = noting();
        fs::write(mount.path("f"), b"x").expect("write");
        let (root, file) = (File::open(mount.root()), File::create(mount.path("g")));
        let (root, file) = (root.expect("open"), file.expect("create"));
        // As others' tests do it, by the directory.
        shut_down(&root, flags).expect("shut down");
        assert_eq!(*asked.lock(), [how]);
        assert_eq!(errno(file.write_all_at(b"y", 0)), Some(Errno::IO));
        assert_eq!(errno(file.sync_all()), Some(Errno::IO));
        assert_eq!(errno(fs::create_dir(mount.path("d"))), Some(Errno::IO));
        assert_eq!(errno(shut_down(&file, flags)), None, "it is");
        drop((root, file));
        fuse::unmount(mount.root(), false).expect("unmount");
        mount.wait().expect("a clean end");
    }
}

#[test]
fn a_shutdown_is_refused_to_all_but_root_and_with_unknown_flags() {
    testing::needs_root!();
    let (mount, asked) = noting();
    let file = File::create(mount.path("f")).expect("create");
    assert_eq!(errno(shut_down(&file, 3)), Some(Errno::INVAL));
    std::thread::scope(|scope| {
        // Identities are per thread, below the C library.
        scope.spawn(|| {
            let nobody = Some(rustix::fs::Uid::from_raw(65534));
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("become nobody");
            assert_eq!(errno(shut_down(&file, 2)), Some(Errno::PERM));
        });
    });
    assert_eq!(*asked.lock(), []);
    file.write_all_at(b"x", 0).expect("it is still served");
}

#[test]
fn a_shutdown_whose_sync_fails_does_not_happen_and_one_that_is_not_offered_is_unknown() {
    testing::needs_root!();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let mount = Mounted::with(|options| {
        options.shutdown = Some(Arc::new(move |_| match failing.load(SeqCst) {
            true => Err(vfs::Errno::NOSPC.into()),
            false => Ok(()),
        }));
    });
    let file = File::create(mount.path("f")).expect("create");
    assert_eq!(errno(shut_down(&file, 1)), Some(Errno::NOSPC));
    file.write_all_at(b"x", 0).expect("it is still served");
    fails.store(false, SeqCst);
    shut_down(&file, 1).expect("shut down");

    let plain = Mounted::with(|_| {});
    let file = File::create(plain.path("f")).expect("create");
    assert_eq!(errno(shut_down(&file, 2)), Some(Errno::NOTTY));
}

//! How many requests the kernel sends for common operations: the table in `docs/design/fuse.md`.
//!
//! Exact numbers are a property of the kernel as much as of the adapter (these are of Linux 6.18),
//! so what an older kernel may need more is allowed for where it is known.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::common::Mounted;

/// A mount after the first open, opendir and flush, with which the kernel learns that they are not
/// needed, and with the root's attributes known.
fn warm() -> Mounted {
    let mount = Mounted::counted(|_| {});
    File::create(mount.path("warm")).expect("create");
    fs::read(mount.path("warm")).expect("read");
    fs::read_dir(mount.root()).expect("list").count();
    fs::metadata(mount.root()).expect("stat");
    mount
}

#[test]
fn creating_and_closing_a_file_is_a_lookup_and_a_mknod() {
    let mount = warm();
    let new = mount.path("new");
    assert_eq!(
        mount.requests(|| drop(File::create(&new))),
        [("lookup", 1), ("mknod", 1)]
    );
    // Making a name changed the directory, so its attributes are asked for once.
    let next = mount.path("next");
    assert_eq!(
        mount.requests(|| drop(File::create(&next))),
        [("lookup", 1), ("getattr", 1), ("mknod", 1)]
    );
}

#[test]
fn no_file_is_ever_released() {
    let mount = Mounted::counted(|_| {});
    let requests = mount.requests(|| {
        for name in 0..10 {
            fs::write(mount.path(&format!("{name}")), b"x").expect("write");
        }
        fs::read(mount.path("1")).expect("read");
    });
    let count = |wanted| {
        requests
            .iter()
            .find(|(name, _)| *name == wanted)
            .map_or(0, |r| r.1)
    };
    assert_eq!(
        ["create", "open", "flush", "release"].map(count),
        [1, 1, 1, 0],
        "{requests:?}"
    );
}

#[test]
fn an_absent_name_is_looked_up_once() {
    let mount = warm();
    let path = mount.path("absent");
    assert_eq!(
        mount.requests(|| fs::metadata(&path).is_err()),
        [("lookup", 1)]
    );
    assert_eq!(mount.requests(|| fs::metadata(&path).is_err()), []);
    assert_eq!(mount.requests(|| drop(File::create(&path))), [("mknod", 1)]);
}

#[test]
fn stat_open_read_and_close_of_a_known_file_need_no_request() {
    let mount = warm();
    let path = mount.path("file");
    fs::write(&path, [7; 4096]).expect("write");
    fs::metadata(&path).expect("stat");
    assert_eq!(mount.requests(|| fs::metadata(&path).expect("stat")), []);
    // What was just written is still cached: nothing to read either.
    assert_eq!(mount.requests(|| fs::read(&path).expect("read")), []);
}

#[test]
fn reading_what_is_not_cached_is_one_request() {
    let mount = warm();
    let path = mount.path("file");
    fs::write(&path, [7; 4096]).expect("write");
    let file = File::open(&path).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drop the cache");
    let mut buf = [0; 4096];
    assert_eq!(
        mount.requests(|| file.read_exact_at(&mut buf, 0)),
        [("read", 1)]
    );
    assert_eq!(mount.requests(|| file.read_exact_at(&mut buf, 0)), []);
}

#[test]
fn each_small_write_is_one_request_and_large_ones_are_cut_at_a_mebibyte() {
    let mount = warm();
    let file = File::create(mount.path("file")).expect("create");
    // Before its first write to an inode the kernel asks for file capabilities.
    assert_eq!(
        mount.requests(|| file.write_all_at(&[1; 4096], 0)),
        [("write", 1), ("getxattr", 1)]
    );
    assert_eq!(
        mount.requests(|| file.write_all_at(&[1; 4096], 4096)),
        [("write", 1)]
    );
    let large = vec![1; 8 << 20];
    assert_eq!(
        mount.requests(|| file.write_all_at(&large, 0)),
        [("write", 8)]
    );
    assert_eq!(mount.requests(|| file.sync_all()), [("fsync", 1)]);
}

#[test]
fn a_write_to_a_file_opened_for_synchronous_writing_is_followed_by_an_fsync() {
    let mount = warm();
    for (name, flags) in [
        ("sync", rustix::fs::OFlags::SYNC),
        ("dsync", rustix::fs::OFlags::DSYNC),
        (
            "direct",
            rustix::fs::OFlags::DSYNC | rustix::fs::OFlags::DIRECT,
        ),
    ] {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .custom_flags(flags.bits().cast_signed());
        let file = options.open(mount.path(name)).expect("open");
        file.write_at(&[], 0).expect("nothing");
        assert_eq!(
            mount.requests(|| file.write_all_at(&[0; 4096], 0)),
            [("write", 1), ("fsync", 1), ("getxattr", 1)],
            "{name}"
        );
    }
}

#[test]
fn a_mount_with_the_option_sync_follows_each_write_with_an_fsync() {
    let mount = Mounted::counted(|options| options.sync = true);
    let mut file = File::create(mount.path("file")).expect("create");
    file.write_all(b"first").expect("write");
    assert_eq!(
        mount.requests(|| file.write_all(b"more")),
        [("write", 1), ("fsync", 1)]
    );
}

#[test]
fn removing_a_known_file_is_one_request() {
    let mount = warm();
    let path = mount.path("file");
    drop(File::create(&path));
    fs::metadata(mount.root()).expect("stat");
    assert_eq!(mount.requests(|| fs::remove_file(&path)), [("unlink", 1)]);
}

#[test]
fn renaming_is_a_lookup_of_the_new_name_even_if_it_is_known_and_a_rename() {
    let mount = warm();
    let (new, saved) = (mount.path("new"), mount.path("saved"));
    drop(File::create(&new));
    for target in ["absent", "known"] {
        fs::metadata(mount.root()).expect("stat");
        assert_eq!(
            mount.requests(|| fs::rename(&new, &saved)),
            [("lookup", 1), ("rename", 1)],
            "{target}"
        );
        drop(File::create(&new));
    }
}

#[test]
fn linking_a_known_file_is_a_lookup_of_the_new_name_and_a_link() {
    let mount = warm();
    let (old, new) = (mount.path("old"), mount.path("new"));
    drop(File::create(&old));
    fs::metadata(mount.root()).expect("stat");
    assert_eq!(
        mount.requests(|| fs::hard_link(&old, &new)),
        [("lookup", 1), ("link", 1)]
    );
}

#[test]
fn making_a_directory_is_a_lookup_and_a_mkdir_and_removing_it_one_request() {
    let mount = warm();
    let path = mount.path("dir");
    assert_eq!(
        mount.requests(|| fs::create_dir(&path)),
        [("lookup", 1), ("mkdir", 1)]
    );
    fs::metadata(mount.root()).expect("stat");
    assert_eq!(mount.requests(|| fs::remove_dir(&path)), [("rmdir", 1)]);
}

#[test]
fn listing_an_unchanged_directory_again_sends_nothing_but_for_its_access_time() {
    let mount = warm();
    let dir = mount.path("dir");
    fs::create_dir(&dir).expect("mkdir");
    for name in 0..1000 {
        drop(File::create(dir.join(format!("{name}"))));
    }
    let list = || fs::read_dir(&dir).expect("list").count();
    let first: u64 = mount.requests(list).iter().map(|&(_, count)| count).sum();
    assert!(
        first <= 6,
        "{first} requests for a first listing of 1000 names"
    );
    let again = mount.requests(list);
    assert!(
        again
            .iter()
            .all(|&(name, count)| name == "getattr" && count == 1),
        "{again:?}"
    );
    // A change is seen: the cached listing is not used.
    drop(File::create(dir.join("new")));
    assert_eq!(list(), 1001);
}

#[test]
fn with_write_back_small_writes_reach_the_file_system_together() {
    let mount = Mounted::counted(|options| options.writeback = true);
    let mut file = File::create(mount.path("file")).expect("create");
    file.write_all(b"first").expect("write");
    let writes = mount.requests(|| (0..100).try_for_each(|_| file.write_all(&[3; 100])));
    assert_eq!(writes, [], "the kernel keeps them");
    let synced = mount.requests(|| file.sync_all());
    assert!(
        synced.contains(&("write", 1)) && synced.contains(&("fsync", 1)),
        "{synced:?}"
    );
}

#[test]
fn a_file_system_that_does_nothing_gets_the_same_requests_as_one_that_works() {
    let all = |mount: &Mounted| -> Vec<Vec<(&'static str, u64)>> {
        let (file, dir) = (mount.path("file"), mount.path("dir"));
        let options = || OpenOptions::new().read(true).write(true).open(&file);
        let made = mount.requests(|| drop(File::create(&file).expect("create")));
        let open = options().expect("open");
        rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::Random).expect("advise");
        let uncached = || {
            rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).expect("advise");
        };
        let mut buf = [0; 4096];
        vec![
            made,
            mount.requests(|| open.write_all_at(&[1; 4096], 0).expect("write")),
            mount.requests(|| open.write_all_at(&[1; 4096], 0).expect("write")),
            mount.requests(|| {
                uncached();
                open.read_exact_at(&mut buf, 0).expect("read");
            }),
            mount.requests(|| fs::create_dir(&dir).expect("mkdir")),
            mount.requests(|| fs::remove_dir(&dir).expect("rmdir")),
            mount.requests(|| fs::remove_file(&file).expect("unlink")),
            mount.requests(|| assert!(!mount.path("absent").exists())),
        ]
    };
    let (works, nothing) = (warm(), Mounted::nothing());
    File::create(nothing.path("warm")).expect("create");
    fs::metadata(nothing.root()).expect("stat");
    let requests = all(&nothing);
    assert_eq!(requests, all(&works));
    assert!(requests.iter().all(|each| !each.is_empty()), "{requests:?}");
}

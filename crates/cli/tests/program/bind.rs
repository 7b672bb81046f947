//! One file system on several directories: bind mounts, which the serving process hears nothing of.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::scene::{Scene, wait_until};

/// For tests in which somebody uses the mount until it ends: so long they wait for that.
const SHORT_GRACE: &str = "grace=100ms";

/// A file system on `mnt`, and on `other` what this path has. Nothing when it may not be made.
fn bound(source: &str) -> Option<Scene> {
    bound_with(source, "rw")
}

/// The same, mounted with these options.
fn bound_with(source: &str, options: &str) -> Option<Scene> {
    testing::needs_root!(None); // for the bind mount
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M", "-o", options]);
    fs::create_dir(scene.path("mnt/dir")).expect("mkdir");
    fs::create_dir(scene.path("other")).expect("mkdir");
    mount_bind(scene.path(source), scene.path("other")).expect("a bind mount");
    Some(scene)
}

/// Mounts something else on `mnt`.
#[track_caller]
fn cover(scene: &Scene) {
    let dir = scene.path("mnt");
    mount("tmpfs", dir, "tmpfs", MountFlags::empty(), None).expect("mount");
}

/// Sends SIGTERM to the serving process and waits for its end.
#[track_caller]
fn terminate(daemon: Pid) {
    kill_process(daemon, Signal::TERM).expect("signal");
    wait_until("the process has ended", || {
        test_kill_process(daemon).is_err()
    });
}

#[track_caller]
fn is_durable(scene: &Scene, name: &str, contents: &[u8]) {
    scene.must(&["fsck", "-n", "disk.img"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    let found = fs::read(scene.path("mnt").join(name)).expect("read");
    assert!(found == contents, "{} bytes", found.len());
    scene.must(&["umount", "mnt"]);
}

#[test]
fn unmounting_one_of_two_directories_says_where_the_other_is() {
    for (source, name) in [("mnt", "file"), ("mnt/dir", "dir/file")] {
        let Some(scene) = bound(source) else { return };
        scene.tells(&["umount", "mnt"], "still mounted on");
        assert!(!scene.is_mounted());
        fs::write(scene.path("other/file"), b"x").expect("it is still served");
        scene.must(&["umount", "other"]);
        is_durable(&scene, name, b"x");
    }
}

#[test]
fn unmounting_does_not_wait_for_users_of_what_was_detached() {
    let Some(scene) = bound("mnt") else { return };
    let user = File::create(scene.path("other/file")).expect("create");
    scene.must(&["umount", "--lazy", "other"]);
    scene.fails(&["umount", "mnt"], 1, "still in use");
    drop(user);
    is_durable(&scene, "file", b"");
}

#[test]
fn a_signal_ends_the_mounts_on_all_directories() {
    for (source, name) in [("mnt", "file"), ("mnt/dir", "dir/file")] {
        let Some(scene) = bound(source) else { return };
        // On one directory twice, and in itself.
        for dir in ["mnt", "mnt/dir"] {
            mount_bind(scene.path("mnt"), scene.path(dir)).expect("a bind mount");
        }
        fs::write(scene.path("other/file"), b"x").expect("write");
        terminate(scene.daemon());
        assert!(!scene.is_mounted());
        fs::remove_dir(scene.path("other")).expect("nothing is mounted there");
        is_durable(&scene, name, b"x");
    }
}

#[test]
fn users_of_another_directory_have_their_grace_after_a_signal() {
    let Some(scene) = bound("mnt") else { return };
    let user = File::create(scene.path("other/file")).expect("create");
    let daemon = scene.daemon();
    kill_process(daemon, Signal::TERM).expect("signal");
    wait_until("detached", || !scene.is_mounted());
    assert!(!scene.path("other/file").exists());
    user.write_at(b"x", 0).expect("it is still served");
    wait_until("the process has ended", || {
        test_kill_process(daemon).is_err()
    });
    user.write_at(b"y", 0).expect_err("no longer served");
    is_durable(&scene, "file", b"x");
}

#[test]
fn a_signal_ends_what_stayed_mounted_elsewhere() {
    let Some(scene) = bound("mnt") else { return };
    fs::write(scene.path("mnt/file"), b"x").expect("write");
    let daemon = scene.daemon();
    scene.tells(&["umount", "mnt"], "still mounted on");
    // The signal is not for what came to the directory since.
    cover(&scene);
    terminate(daemon);
    assert!(scene.is_mounted());
    fuse::unmount(&scene.path("mnt"), false).expect("unmount");
    is_durable(&scene, "file", b"x");
}

#[test]
fn a_signal_leaves_alone_what_came_to_the_directory_since() {
    let Some(scene) = bound("mnt") else { return };
    let user = File::create(scene.path("other/file")).expect("create");
    let daemon = scene.daemon();
    scene.tells(&["umount", "mnt"], "still mounted on");
    cover(&scene);
    kill_process(daemon, Signal::TERM).expect("signal");
    wait_until("detached", || !scene.path("other/file").exists());
    drop(user);
    wait_until("the process has ended", || {
        test_kill_process(daemon).is_err()
    });
    assert!(scene.is_mounted());
    fuse::unmount(&scene.path("mnt"), false).expect("unmount");
    is_durable(&scene, "file", b"");
}

#[test]
fn a_signal_ends_a_mount_that_another_namespace_has_a_copy_of() {
    testing::needs_root!(); // for the namespace
    let scene = Scene::new();
    let options = ["--create", "64M", "-o", SHORT_GRACE];
    scene.must(&[&["mount", "disk.img", "mnt"], &options[..]].concat());
    fs::write(scene.path("mnt/file"), b"x").expect("write");
    let daemon = scene.daemon();
    let mut holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("echo && read _")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare");
    let said = holder.stdout.take().expect("a pipe").read(&mut [0]);
    assert_eq!(said.expect("it is in its namespace"), 1);
    terminate(daemon);
    holder.kill().expect("kill");
    holder.wait().expect("it ends");
    is_durable(&scene, "file", b"x");
}

#[test]
fn a_signal_ends_a_mount_that_is_covered_and_used_elsewhere() {
    let Some(scene) = bound_with("mnt", SHORT_GRACE) else {
        return;
    };
    let user = File::create(scene.path("other/file")).expect("create");
    user.write_at(b"x", 0).expect("write");
    let daemon = scene.daemon();
    cover(&scene);
    terminate(daemon);
    user.write_at(b"y", 0).expect_err("no longer served");
    drop(user);
    assert!(scene.is_mounted());
    fuse::unmount(&scene.path("mnt"), false).expect("the cover is still there");
    scene.must(&["umount", "mnt"]);
    is_durable(&scene, "file", b"x");
}

#[test]
fn a_signal_to_a_mount_that_is_used_elsewhere_is_no_failure_to_detach() {
    testing::needs_root!();
    let scene = Scene::new();
    let log = scene.path("log");
    let options = format!("{SHORT_GRACE},log={}", log.display());
    scene.must(&[
        "mount", "disk.img", "mnt", "--create", "64M", "-o", &options,
    ]);
    fs::create_dir(scene.path("other")).expect("mkdir");
    mount_bind(scene.path("mnt"), scene.path("other")).expect("a bind mount");
    let user = File::create(scene.path("other/file")).expect("create");
    terminate(scene.daemon());
    drop(user);
    let said = fs::read_to_string(log).expect("a log");
    assert!(
        said.contains("in use") && !said.contains("cannot"),
        "{said}"
    );
}

#[test]
fn unmounting_leaves_alone_what_covers_the_mount() {
    let Some(scene) = bound("mnt") else { return };
    cover(&scene);
    let hint = "another file system is mounted over";
    scene.fails(&["umount", "mnt"], 1, hint);
    scene.fails(&["umount", "--lazy", "mnt"], 1, hint);
    fs::write(scene.path("other/file"), b"x").expect("nothing was unmounted");
    scene.fails(&["umount", "disk.img"], 1, "still mounted on"); // but not on `other`
    scene.fails(&["umount", "disk.img"], 1, hint);
    fuse::unmount(&scene.path("mnt"), false).expect("the cover is still there");
    scene.must(&["umount", "mnt"]);
    is_durable(&scene, "file", b"x");
}

#[test]
fn the_status_is_told_wherever_the_file_system_is_mounted() {
    let Some(scene) = bound("mnt/dir") else {
        return;
    };
    let daemon = scene.status()["pid"].clone();
    let pid = |what: &str| {
        let said = scene.must(&["stat", "--json", what]);
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")["pid"].clone()
    };
    assert_eq!(
        (pid("disk.img"), pid("other")),
        (daemon.clone(), daemon.clone())
    );
    cover(&scene);
    assert_eq!(pid("disk.img"), daemon);
    scene.fails(&["stat", "mnt"], 1, "another file system is mounted over");
    fuse::unmount(&scene.path("mnt"), false).expect("unmount the cover");
    mount(
        "tmpfs",
        scene.path("other"),
        "tmpfs",
        MountFlags::empty(),
        None,
    )
    .expect("mount");
    assert_eq!(pid("disk.img"), daemon, "from where it can be asked");
}

#[test]
fn unmounting_a_bind_mount_succeeds_and_names_the_other_directory() {
    for by_helper in [false, true] {
        let Some(scene) = bound("mnt/dir") else {
            return;
        };
        scene.must(&["install", "--prefix", "root"]);
        let helper = scene.path("root/sbin/umount.fuse.tureen");
        let ended = match by_helper {
            true => scene.run_as(&helper, &["other"]),
            false => scene.unmount(&["umount", "other"]),
        };
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert!(said.contains("still mounted on"), "{said}");
        assert!(scene.is_mounted());
        scene.must(&["umount", "mnt"]);
    }
}

/// umount(8) as people call it, in a namespace where the helpers are installed: with an absolute
/// path it calls no helper for what it knows as `fuse` only. Then the image would still be held
/// when it returns.
#[test]
fn umount_waits_by_an_absolute_path_too() {
    testing::needs_root!();
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["install", "--prefix", "root"]);
    // Much is pending when it is unmounted, and the medium is slow.
    let script = "set -e
        mkdir -p /run/mount
        mount -t tmpfs none /run/mount
        mount -t overlay -o lowerdir=$PWD/root/sbin:/usr/sbin none $(realpath /sbin)
        mount -t fuse.tureen -o domain=line,flush_ns=200000,bound=60m $PWD/disk.img $PWD/mnt
        grep -q TARGET=$PWD/mnt /run/mount/utab
        for i in $(seq 200); do echo x > mnt/$i; done
        umount $PWD/mnt
        flock --nonblock disk.img true
        ! grep -q TARGET=$PWD/mnt /run/mount/utab";
    let unshare = ["--mount", "--propagation", "private", "sh", "-c", script];
    let ended = scene.run_as("unshare".as_ref(), &unshare);
    assert!(ended.status.success(), "{ended:?}");
}

//! One file system on several directories: bind mounts, which the serving process hears nothing of.

use std::fs::{self, File};

use rustix::mount::mount_bind;
use rustix::process::geteuid;

use crate::scene::Scene;

/// A file system on `mnt`, and on `other` what this path has. Nothing when it may not be made: a bind mount is root's.
fn bound(source: &str) -> Option<Scene> {
    if !geteuid().is_root() {
        return None;
    }
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    fs::create_dir(scene.path("mnt/dir")).expect("mkdir");
    fs::create_dir(scene.path("other")).expect("mkdir");
    mount_bind(scene.path(source), scene.path("other")).expect("a bind mount");
    Some(scene)
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
        scene.fails(&["umount", "mnt"], 1, "still mounted on");
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

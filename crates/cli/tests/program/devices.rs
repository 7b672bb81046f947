//! Block devices: file systems made, served, checked and dumped there, and what else is on them.

use std::fs::{self, File};
use std::path::Path;

use rustix::process::{Signal, kill_process};
use testing::Loop;

use crate::ext2::{assert_same, has_e2fsprogs, make_tree, tool};
use crate::scene::{Scene, wait_until};

const LEN: u64 = 64 << 20;

/// A loop device of 64 MiB, over a file of the scene.
fn device(scene: &Scene) -> Loop {
    let file = File::create(scene.path("disk.img")).expect("a file");
    file.set_len(LEN).expect("its length");
    Loop::attach(&scene.path("disk.img"))
}

fn name(device: &Loop) -> &str {
    device.path().to_str().expect("text")
}

/// Nobody else gets a device that is mounted.
fn assert_in_use(scene: &Scene, disk: &str) {
    let mounted = format!("mounted on {}", scene.path("mnt").display());
    scene.fails(&["mount", disk, "other"], 1, &mounted);
    scene.fails(&["mkfs", disk, "--force"], 1, &mounted);
    scene.fails(&["fsck", disk], 8, &mounted);
    let taken = tool(scene, "mke2fs", &["-q", disk]);
    assert!(!taken.status.success(), "it is opened exclusively");
}

/// Makes a file or a directory durable.
fn sync(path: &Path) {
    let opened = File::open(path);
    opened.and_then(|file| file.sync_all()).expect("durable");
}

#[test]
fn a_block_device_carries_a_file_system_through_its_life() {
    testing::needs_root!();
    let scene = Scene::new();
    let attached = device(&scene);
    let disk = name(&attached);
    scene.must(&["mkfs", disk, "--label", "on a disk"]);
    make_tree(&scene);
    scene.must(&["mount", disk, "mnt"]);
    let status = scene.status();
    assert_eq!(status["medium"]["kind"], "block device");
    assert_eq!(status["medium"]["domain"], "page");
    assert_eq!(status["medium"]["size_bytes"], LEN);
    let copied = tool(&scene, "cp", &["-a", "tree", "mnt/"]);
    assert!(copied.status.success(), "{copied:?}");

    assert_in_use(&scene, disk);

    // A kill loses nothing of what is durable, and the device is free after it.
    sync(&scene.path("mnt/tree/large"));
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", disk, "mnt"]);
    let synced = scene.path("mnt/synced");
    fs::write(&synced, "contents").expect("written");
    sync(&synced);
    kill_process(scene.daemon(), Signal::KILL).expect("kill");
    scene.must(&["mount", disk, "mnt", "-o", "ro"]);
    assert_eq!(fs::read(&synced).expect("read"), b"contents");
    assert_same(&scene.path("tree"), &scene.path("mnt/tree"), true);
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", disk, "mnt", "-o", "mode=strong"]);
    assert_eq!(fs::read(&synced).expect("read"), b"contents");
    scene.must(&["umount", "mnt"]);

    scene.must(&["fsck", disk]);
    assert!(scene.must(&["stat", disk]).contains("on a disk"));
    scene.must(&["dump", disk, "--file", "disk.dump"]);
    let len = fs::metadata(scene.path("disk.dump")).expect("a dump").len();
    assert!(len > 3_000_000, "{len}");
    scene.fails(
        &["mount", disk, "mnt", "-o", "domain=cache"],
        1,
        "no persistence domain but page",
    );
}

#[test]
fn a_block_device_carries_ext2_through_its_life() {
    testing::needs_root!();
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    let scene = Scene::new();
    let attached = device(&scene);
    let disk = name(&attached);
    scene.must(&["mkfs", disk, "--type", "ext2", "--label", "on a disk"]);
    let judged = || {
        let checked = tool(&scene, "e2fsck", &["-fn", disk]);
        assert!(checked.status.success(), "{checked:?}");
    };
    judged();
    make_tree(&scene);
    scene.must(&["mount", disk, "mnt"]);
    let status = scene.status();
    assert_eq!(status["medium"]["kind"], "block device");
    assert_eq!(status["file_system"]["type"], "ext2");
    assert_eq!(status["file_system"]["size_bytes"], LEN);
    let copied = tool(&scene, "cp", &["-a", "tree", "mnt/"]);
    assert!(copied.status.success(), "{copied:?}");

    assert_in_use(&scene, disk);
    let ext2 = ["mkfs", disk, "--force", "--type", "ext2"];
    scene.fails(&ext2, 1, "mounted on");

    // A kill loses nothing of what is durable, the device is free after it, and is served at once.
    sync(&scene.path("mnt/tree/dir"));
    scene.must(&["umount", "mnt"]);
    judged();
    scene.must(&["mount", disk, "mnt"]);
    let synced = scene.path("mnt/synced");
    fs::write(&synced, "contents").expect("written");
    sync(&synced);
    kill_process(scene.daemon(), Signal::KILL).expect("kill");
    scene.tells(&["mount", disk, "mnt"], "searched for while it is in use");
    assert_eq!(fs::read(&synced).expect("read"), b"contents");
    assert_same(&scene.path("tree"), &scene.path("mnt/tree"), true);
    wait_until("what was lost is found", || {
        scene.status()["file_system"]["reclaiming"] == false
    });
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", disk]);
    judged();
    assert!(scene.must(&["stat", disk]).contains("on a disk"));
}

#[test]
fn what_a_block_device_holds_is_overwritten_only_by_force() {
    testing::needs_root!();
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    let scene = Scene::new();
    let attached = device(&scene);
    let disk = name(&attached);
    let made = tool(&scene, "mke2fs", &["-q", disk]);
    assert!(made.status.success(), "{made:?}");
    scene.fails(&["mkfs", disk], 1, "holds something already");
    scene.fails(
        &["mkfs", disk, "--size", "1G", "--force"],
        1,
        "leave out --size",
    );

    // What the kernel uses is left alone, forced or not.
    let mounted = tool(&scene, "mount", &[disk, "mnt"]);
    assert!(mounted.status.success(), "{mounted:?}");
    let hint = format!("umount {}", scene.path("mnt").display());
    scene.fails(&["mkfs", disk, "--force"], 1, &hint);
    scene.fails(&["mkfs", disk, "--force", "--type", "ext2"], 1, &hint);
    let unmounted = tool(&scene, "umount", &["mnt"]);
    assert!(unmounted.status.success(), "{unmounted:?}");
    let checked = tool(&scene, "e2fsck", &["-fn", disk]);
    assert!(checked.status.success(), "{checked:?}");

    scene.must(&["mkfs", disk, "--force"]);
    scene.must(&["fsck", disk]);
    let mounted = tool(&scene, "mount", &[disk, "mnt"]);
    assert!(!mounted.status.success(), "nothing of ext2 is left");
    scene.must(&["mkfs", disk, "--force"]);
}

#[test]
fn swap_space_in_use_is_left_alone() {
    testing::needs_root!();
    let scene = Scene::new();
    let attached = device(&scene);
    let disk = name(&attached);
    let made = tool(&scene, "mkswap", &[disk]);
    assert!(made.status.success(), "{made:?}");
    if !tool(&scene, "swapon", &[disk]).status.success() {
        testing::skip!("the kernel has no swap space");
    }
    let refused = scene.run(&["mkfs", disk, "--force"]);
    let off = tool(&scene, "swapoff", &[disk]);
    assert!(off.status.success(), "{off:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("swapoff {disk}")), "{said}");
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    testing::needs_root!();
    let scene = Scene::new();
    let file = File::create(scene.path("disk.img")).expect("a file");
    file.set_len(512 << 10).expect("its length");
    let attached = Loop::attach(Path::new(&scene.path("disk.img")));
    scene.fails(&["mkfs", name(&attached)], 1, "an image has");
}

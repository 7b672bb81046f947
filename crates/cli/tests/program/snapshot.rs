//! Snapshots by commands: made, changed behind, read, deleted, across kills; dumps of what is in
//! use.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::dump::{copy, has_restore};
use crate::ext2::{assert_same, make_tree};
use crate::scene::{Scene, wait_until};

fn image(scene: &Scene) {
    scene.must(&["mkfs", "--type", "ext2", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt"]);
}

fn names(scene: &Scene, of: &str) -> Vec<String> {
    let list = scene.must(&["snapshot", "list", of, "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let all = list.as_array().expect("a list").iter();
    all.map(|one| one["name"].as_str().expect("a name").to_owned())
        .collect()
}

fn kill(scene: &Scene) {
    kill_process(scene.daemon(), Signal::KILL).expect("killed");
    scene.must(&["umount", "mnt", "--lazy"]);
}

#[test]
fn a_snapshot_outlives_changes_and_kills() {
    testing::needs_root!();
    let scene = Scene::new();
    make_tree(&scene);
    let (tree, mnt) = (scene.path("tree"), scene.path("mnt"));
    image(&scene);
    copy(&tree, &mnt);
    let said = scene.must(&["snapshot", "create", "mnt", "monday"]);
    assert!(said.contains("monday: made"), "{said}");
    for name in ["large", "dir/deeper/again"] {
        fs::remove_file(mnt.join(name)).expect("removed");
    }
    fs::rename(mnt.join("dir"), mnt.join("moved")).expect("renamed");
    fs::write(mnt.join("new"), vec![7; 3 << 20]).expect("written");
    scene.must(&["snapshot", "create", "mnt", "tuesday"]);
    fs::create_dir(scene.path("other")).expect("a directory");
    let is_monday = || {
        assert_same(&tree, &scene.path("other"), true);
        scene.must(&["umount", "other"]);
    };
    scene.must(&["snapshot", "mount", "mnt", "monday", "other"]);
    scene.fails(&["snapshot", "delete", "mnt", "monday"], 1, "is mounted");
    is_monday();
    let status = scene.status();
    let snapshots = &status["file_system"]["snapshots"];
    assert_eq!(snapshots["names"], "monday, tuesday", "{status}");
    assert!(snapshots["claimed"].as_u64() > Some(0), "{status}");

    kill(&scene);
    assert_eq!(names(&scene, "disk.img"), ["monday", "tuesday"]);
    scene.must(&["snapshot", "mount", "disk.img", "monday", "other"]);
    is_monday();
    // What repairs overwrite is copied before, by the command as by the mount.
    let repaired = scene.run(&["fsck", "disk.img"]);
    assert_eq!(repaired.status.code(), Some(1), "{repaired:?}");
    assert_eq!(names(&scene, "disk.img"), ["monday", "tuesday"]);
    scene.must(&["snapshot", "mount", "disk.img", "monday", "other"]);
    is_monday();
    scene.must(&["mount", "disk.img", "mnt"]);
    fs::remove_dir_all(mnt.join("moved")).expect("removed");
    kill(&scene);
    scene.must(&["mount", "disk.img", "mnt"]);
    assert_eq!(names(&scene, "mnt"), ["monday", "tuesday"]);
    scene.must(&["snapshot", "mount", "mnt", "monday", "other"]);
    is_monday();
    scene.must(&["snapshot", "delete", "mnt", "tuesday"]);
    assert_eq!(names(&scene, "mnt"), ["monday"]);
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
    scene.must(&["snapshot", "create", "disk.img", "later"]);
    scene.must(&["snapshot", "delete", "disk.img", "monday"]);
    assert_eq!(names(&scene, "disk.img"), ["later"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

#[test]
fn what_cannot_be_is_told() {
    testing::needs_root!();
    let scene = Scene::new();
    scene.must(&["mkfs", "soup.img", "--size", "16M"]);
    scene.must(&["mount", "soup.img", "mnt"]);
    scene.fails(&["snapshot", "create", "mnt", "a"], 1, "has no snapshots");
    scene.must(&["umount", "mnt"]);
    scene.fails(&["snapshot", "list", "soup.img"], 1, "has no snapshots");
    scene.fails(&["snapshot", "list", "mnt"], 1, "no Tureen file system");
    image(&scene);
    scene.must(&["snapshot", "create", "mnt", "a"]);
    scene.fails(
        &["snapshot", "create", "mnt", "a"],
        1,
        "a snapshot a already",
    );
    scene.fails(&["snapshot", "create", "mnt", "a/b"], 1, "cannot be a name");
    scene.fails(&["snapshot", "delete", "mnt", "b"], 1, "no snapshot b");
    scene.fails(&["snapshot", "mount", "mnt", "b", "."], 1, "no snapshot b");
    scene.must(&["umount", "mnt"]);
    let async_mount = ["mount", "disk.img", "mnt", "-o", "mode=async"];
    scene.fails(&async_mount, 1, "it has snapshots");
    let writing = ["mount", "disk.img", "mnt", "-o", "snapshot=a"];
    scene.fails(&writing, 1, "-o ro");
}

#[test]
fn what_is_in_use_is_dumped() {
    testing::needs_root!();
    if !has_restore() {
        testing::skip!("needs restore (Debian: dump)");
    }
    let scene = Scene::new();
    make_tree(&scene);
    image(&scene);
    copy(&scene.path("tree"), &scene.path("mnt"));
    scene.must(&["dump", "mnt", "-f", "dump"]);
    assert!(names(&scene, "mnt").is_empty());
    let output = Command::new("restore")
        .args(["-C", "-f"])
        .arg(scene.path("dump"))
        .args(["-D".as_ref(), scene.path("mnt").as_os_str()])
        .current_dir(scene.path("."))
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    // Interrupted, it leaves nothing.
    let pipe = scene.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("it runs");
    assert!(made.success());
    let mut child = scene.spawn(&["dump", "mnt", "-f", "pipe"]);
    wait_until("there is a snapshot", || !names(&scene, "mnt").is_empty());
    let pid = rustix::process::Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("interrupted");
    let code = child.wait().expect("it ends").code();
    assert_eq!(code, Some(130));
    assert!(names(&scene, "mnt").is_empty());
    // Killed, it leaves what the next mount removes.
    let mut child = scene.spawn(&["dump", "mnt", "-f", "pipe"]);
    wait_until("there is a snapshot", || !names(&scene, "mnt").is_empty());
    child.kill().expect("killed");
    child.wait().expect("it ends");
    assert_eq!(names(&scene, "mnt").len(), 1);
    kill(&scene);
    scene.must(&["mount", "disk.img", "mnt"]);
    wait_until("it is removed", || names(&scene, "mnt").is_empty());
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

//! Images that are given another name while they are mounted.

use std::fs::{self, File};
use std::process::{Output, Stdio};

use rustix::process::{Signal, kill_process};

use crate::scene::{Scene, wait_until};

/// A mount of what was `disk.img` and is `moved.img` by now, that takes a while to end: much is
/// pending, and the medium is slow.
fn moved() -> Scene {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    let slow = "domain=line,flush_ns=200000,bound=60m";
    scene.must(&["mount", "disk.img", "mnt", "-o", slow]);
    for i in 0..200 {
        fs::write(scene.path(&format!("mnt/{i}")), b"x").expect("write");
    }
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).expect("rename");
    scene
}

/// The same, and another image has the old name.
fn replaced() -> Scene {
    let scene = moved();
    scene.must(&["mkfs", "disk.img", "--size", "32M"]);
    scene
}

#[test]
fn unmounting_waits_for_the_image_whatever_its_name() {
    for scene in [moved(), replaced()] {
        scene.must(&["umount", "mnt"]);
        let image = File::open(scene.path("moved.img")).expect("open");
        image.try_lock().expect("it is free");
        drop(image);
        let report = scene.must(&["stat", "--json", "moved.img"]);
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["file_system"]["clean"], true);
    }
}

/// Unmounts it, and kills the process while it makes durable what is pending.
fn killed_at_the_end(scene: &Scene) -> Output {
    let daemon = scene.daemon();
    let mut command = std::process::Command::new(crate::scene::TUREEN);
    command.args(["umount", "mnt"]).current_dir(scene.path(""));
    let unmounting = command.stderr(Stdio::piped()).spawn().expect("it runs");
    wait_until("unmounted", || !scene.is_mounted());
    kill_process(daemon, Signal::KILL).expect("kill");
    unmounting.wait_with_output().expect("it ends")
}

#[test]
fn an_end_that_fails_is_told_whatever_the_name_of_the_image() {
    for scene in [moved(), replaced()] {
        let ended = killed_at_the_end(&scene);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains("not cleanly"), "{said}");
        assert!(said.contains("moved.img"), "{said}");
    }
}

#[test]
fn an_image_is_not_taken_for_the_one_that_had_its_name() {
    let scene = replaced();
    let report = scene.must(&["stat", "--json", "disk.img"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["file_system"]["mounts"], 0, "{report}");
    scene.fails(&["umount", "disk.img"], 1, "no Tureen file system");
    assert!(scene.is_mounted());
    scene.must(&["umount", "mnt"]);
}

//! `tureen fsck --live`: what is mounted is checked and repaired by the process that serves it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::scene::Scene;

fn image(scene: &Scene, mode: &str, commands: &[&str]) {
    let mut mkfs = vec!["mkfs", "--type", "ext2", "disk.img", "--size", "64M"];
    if mode != "soft" {
        mkfs.push("--journal");
    }
    scene.must(&mkfs);
    for command in commands {
        let mut debugfs = Command::new("debugfs");
        let output = debugfs
            .args(["-w", "-R", command])
            .arg(scene.path("disk.img"));
        let output = output.output().expect("debugfs runs");
        assert!(output.status.success(), "{output:?}");
    }
    let mode = format!("mode={mode}");
    scene.must(&["mount", "disk.img", "mnt", "-o", &mode]);
}

#[test]
fn losses_are_found_and_repaired() {
    testing::needs_root!();
    for mode in ["soft", "ordered", "journal"] {
        losses_are_repaired(mode);
    }
}

fn losses_are_repaired(mode: &str) {
    let scene = Scene::new();
    // More findings than one answer has room for.
    let seti = |i: u32| format!("seti <{}>", 100 + i);
    let many: Vec<String> = (0..40).map(seti).collect();
    let mut commands: Vec<&str> = many.iter().map(String::as_str).collect();
    commands.push("setb 9000 100");
    image(&scene, mode, &commands);
    fs::write(scene.path("mnt/file"), vec![7; 100_000]).expect("written");
    let open = fs::File::open(scene.path("mnt/file")).expect("open");
    fs::remove_file(scene.path("mnt/file")).expect("removed");
    let looked = scene.run(&["fsck", "--live", "-n", "mnt"]);
    assert_eq!(looked.status.code(), Some(4), "{looked:?}");
    let text = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(
        text.contains("100 blocks are free and marked as in use"),
        "{text}"
    );
    assert!(text.contains("40 inodes are free and marked"), "{text}");
    let repaired = scene.run(&["fsck", "--live", "disk.img", "--json"]);
    assert_eq!(repaired.status.code(), Some(1), "{repaired:?}");
    let json: Value = serde_json::from_slice(&repaired.stdout).expect("JSON");
    assert_eq!(json["outcome"], "repaired", "{json}");
    let said = scene.must(&["fsck", "--live", "mnt"]);
    assert!(said.starts_with("mnt: clean"), "{said}");
    drop(open);
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

#[test]
fn a_report_of_any_length_arrives() {
    testing::needs_root!();
    let scene = Scene::new();
    scene.must(&["mkfs", "--type", "ext2", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    let name = |i: u32| format!("mnt/{}{i}", "\u{e4}".repeat(100));
    for i in 0..500 {
        fs::write(scene.path(&name(i)), b"").expect("written");
    }
    scene.must(&["umount", "mnt"]);
    let mut debugfs = Command::new("debugfs");
    let commands = scene.path("commands");
    let clri = |i: u32| format!("clri <{}>\n", 12 + i);
    fs::write(&commands, (0..500).map(clri).collect::<String>()).expect("written");
    let debugfs = debugfs.arg("-w").arg("-f").arg(commands);
    let output = debugfs.arg(scene.path("disk.img")).output();
    assert!(output.expect("debugfs runs").status.success());
    scene.must(&["mount", "disk.img", "mnt"]);
    let found = scene.run(&["fsck", "--live", "mnt"]);
    assert_eq!(found.status.code(), Some(4), "{found:?}");
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(
        text.lines().count() > 500 && text.len() > 64 << 10,
        "{text}"
    );
    assert!(text.contains("unmount it and run tureen fsck"), "{text}");
    scene.fails(&["umount", "mnt"], 1, "not cleanly");
    let refused = scene.run(&["fsck", "-n", "disk.img"]);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
}

#[test]
fn what_cannot_be_checked_in_use_is_told() {
    testing::needs_root!();
    let scene = Scene::new();
    scene.must(&["mkfs", "demo.img", "--size", "16M"]);
    let absent = "it is not mounted: leave out --live";
    scene.fails(&["fsck", "--live", "demo.img"], 8, absent);
    scene.must(&["mount", "demo.img", "mnt"]);
    scene.fails(
        &["fsck", "--live", "mnt"],
        8,
        "is not checked while it is mounted",
    );
    scene.must(&["umount", "mnt"]);
    scene.must(&["mkfs", "--type", "ext2", "disk.img", "--size", "16M"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", "mode=async"]);
    scene.fails(&["fsck", "--live", "mnt"], 8, "snapshots need an order");
    scene.must(&["umount", "mnt"]);
}

//! Ends and half-ends of a mount that somebody counts on: a remount as a barrier, an image that is
//! only read although a crash left work to do, a shutdown for tests.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::process::{Signal, kill_process, test_kill_process};
use testing::raw::shut_down;

use crate::scene::{Scene, wait_until};

/// Nothing becomes durable by itself.
const NEVER: &str = "bound=60m";

/// Kills the serving process and removes the mount.
pub fn kill(scene: &Scene) {
    let daemon = scene.daemon();
    kill_process(daemon, Signal::KILL).expect("kill");
    wait_until("dead", || test_kill_process(daemon).is_err());
    scene.must(&["umount", "mnt"]);
}

fn mounted(options: &str) -> Scene {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", options]);
    scene
}

/// The helper of mount(8), by its name.
fn helper(scene: &Scene) -> PathBuf {
    scene.must(&["install", "--prefix", "root"]);
    scene.path("root/sbin/mount.fuse.tureen")
}

#[test]
fn what_was_done_before_a_remount_for_reading_survives_a_kill() {
    testing::needs_root!();
    for options in [NEVER, "bound=60m,writeback"] {
        let scene = mounted(options);
        let helper = helper(&scene);
        fs::create_dir(scene.path("mnt/dir")).expect("mkdir");
        // Still open, so that the kernel may keep what was written.
        let mut file = File::create(scene.path("mnt/dir/file")).expect("create");
        file.write_all_at(&[7; 100_000], 0).expect("write");
        file = File::open(scene.path("mnt/dir/file")).expect("open");
        let remounted = scene.run_as(&helper, &["disk.img", "mnt", "-o", "remount,ro"]);
        assert!(remounted.status.success(), "{remounted:?}");
        drop(file);
        kill(&scene);
        scene.must(&["mount", "disk.img", "mnt"]);
        let found = fs::read(scene.path("mnt/dir/file")).expect("it is there");
        assert!(found == [7; 100_000], "{options}: {} bytes", found.len());
        scene.must(&["umount", "mnt"]);
    }
}

#[test]
fn an_image_that_a_crash_left_is_mounted_for_reading_without_being_changed() {
    for domain in ["page", "cache", "line"] {
        let scene = mounted(&format!("{NEVER},domain={domain}"));
        // What is committed and not known to be in place is replayed: the last commit, at least.
        for i in 0..20 {
            let path = scene.path(&format!("mnt/{i}"));
            fs::write(&path, i.to_string().repeat(3000)).expect("write");
            File::open(&path)
                .and_then(|file| file.sync_all())
                .expect("sync");
        }
        kill(&scene);
        let before = fs::read(scene.path("disk.img")).expect("read");
        let clean = |scene: &Scene| {
            let said = scene.must(&["stat", "--json", "disk.img"]);
            let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            said["file_system"]["clean"].clone()
        };
        assert_eq!(clean(&scene), false);
        for _ in 0..2 {
            scene.must(&[
                "mount",
                "disk.img",
                "mnt",
                "-o",
                &format!("ro,domain={domain}"),
            ]);
            for i in 0..20 {
                let found = fs::read_to_string(scene.path(&format!("mnt/{i}"))).expect("read");
                assert!(found == i.to_string().repeat(3000), "{domain}: {i}");
            }
            File::create(scene.path("mnt/new")).expect_err("read-only");
            // Another reader may come, a writer not.
            scene.fails(&["fsck", "disk.img"], 8, "is mounted on");
            scene.must(&["umount", "mnt"]);
        }
        let after = fs::read(scene.path("disk.img")).expect("read");
        assert!(before == after, "{domain}: the image was written to");
        scene.must(&["mount", "disk.img", "mnt"]);
        let found = fs::read_to_string(scene.path("mnt/19")).expect("read");
        assert!(found == "19".repeat(3000));
        scene.must(&["umount", "mnt"]);
        scene.must(&["fsck", "-n", "disk.img"]);
    }
}

#[test]
fn a_shutdown_leaves_what_a_kill_would_or_what_was_synced() {
    testing::needs_root!();
    for (flags, survives) in [(0, true), (1, true), (2, false)] {
        let scene = mounted(NEVER);
        let durable = File::create(scene.path("mnt/durable")).expect("create");
        durable.write_all_at(b"x", 0).expect("write");
        durable.sync_all().expect("sync");
        fs::write(scene.path("mnt/pending"), b"y").expect("write");
        shut_down(&File::open(scene.path("mnt")).expect("open"), flags).expect("shut down");
        durable
            .write_all_at(b"z", 0)
            .expect_err("nothing is served");
        fs::create_dir(scene.path("mnt/dir")).expect_err("nothing is served");
        drop(durable);
        assert_eq!(scene.status()["shut_down"], true);
        scene.must(&["umount", "mnt"]);
        scene.must(&["fsck", "-n", "disk.img"]);
        scene.must(&["mount", "disk.img", "mnt"]);
        assert_eq!(fs::read(scene.path("mnt/durable")).expect("read"), b"x");
        let pending = fs::read(scene.path("mnt/pending"));
        assert_eq!(pending.is_ok(), survives, "flags {flags}: {pending:?}");
        assert!(!scene.path("mnt/dir").exists());
        scene.must(&["umount", "mnt"]);
    }
}

#[test]
fn a_shutdown_hands_over_what_the_kernel_holds_if_asked_to() {
    testing::needs_root!();
    assert_eq!(length_after_a_shutdown(0), 5);
    // A `sync` of anybody hands it over too, so it may take more than one attempt.
    let left_behind = (0..5).any(|_| length_after_a_shutdown(1) == 0);
    assert!(left_behind, "what was dirty is always handed over");
}

/// The length of a file of 5 dirty bytes behind a shutdown with these flags.
fn length_after_a_shutdown(flags: u32) -> u64 {
    let scene = mounted("bound=60m,writeback");
    let file = File::create(scene.path("mnt/file")).expect("create");
    file.write_all_at(b"dirty", 0).expect("write");
    shut_down(&file, flags).expect("shut down");
    drop(file);
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    let found = fs::metadata(scene.path("mnt/file")).expect("it is there");
    scene.must(&["umount", "mnt"]);
    found.len()
}

#[test]
fn the_serving_process_is_called_tureen() {
    let scene = mounted("rw");
    let pid = scene.daemon().as_raw_nonzero();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).expect("its name");
    assert_eq!(name, "tureen\n");
    scene.must(&["umount", "mnt"]);
}

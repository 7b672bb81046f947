//! A cache before the disk of an image, through all of its life.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::ext2::{assert_clean, assert_same, has_e2fsprogs, make_tree, tool};
use crate::scene::{Scene, wait_until};

const MEMORY: &str = "/dev/shm";

/// An image with a cache that is far smaller than what it will hold, in memory.
fn scene(kind: &str) -> Scene {
    let scene = Scene::below(Path::new(MEMORY));
    scene.must(&["mkfs", "--type", "ext2", "disk.img", "--size", "64M"]);
    let create = [
        "cache", "create", "c", "--for", "disk.img", "--size", "2M", "--kind", kind,
    ];
    scene.must(&create);
    scene
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(to)
        .status();
    assert!(copied.expect("it runs").success());
}

#[test]
fn an_image_is_used_through_its_cache_and_then_alone() {
    if !Path::new(MEMORY).is_dir() || !has_e2fsprogs() {
        testing::skip!("needs /dev/shm and e2fsprogs");
    }
    for kind in ["spindle", "tinca"] {
        let scene = scene(kind);
        make_tree(&scene);
        let tree = scene.path("tree");
        let mount = ["mount", "disk.img", "mnt", "-o", "cache=c"];
        scene.must(&mount);
        copy(&tree, &scene.path("mnt"));
        let status = scene.status();
        assert_eq!(status["file_system"]["cache"]["kind"], kind, "{status}");
        scene.must(&["umount", "mnt"]);

        // The disk alone is of no use, and everybody says so.
        scene.fails(&["mount", "disk.img", "mnt"], 1, "cache flush");
        scene.fails(
            &["cache", "create", "d", "--for", "disk.img", "--size", "2M"],
            1,
            "has a cache",
        );
        let judged = tool(&scene, "e2fsck", &["-fn", "disk.img"]);
        assert!(!judged.status.success(), "{judged:?}");
        scene.must(&["fsck", "disk.img", "--cache", "c"]);
        assert!(scene.must(&["cache", "stat", "c"]).contains(kind));
        scene.must(&["cache", "check", "c"]);
        let again = ["cache", "create", "c", "--for", "other.img"];
        scene.must(&["mkfs", "--type", "ext2", "other.img", "--size", "16M"]);
        scene.fails(&again, 1, "lacks");
        scene.fails(&[&again[..], &["--force"]].concat(), 1, "lacks");
        fs::write(scene.path("precious"), vec![1; 4 << 20]).expect("write");
        let over = ["cache", "create", "precious", "--for", "other.img"];
        scene.fails(&over, 1, "holds something");
        assert!(fs::read(scene.path("precious")).expect("read") == vec![1; 4 << 20]);
        scene.must(&[&over[..], &["--force"]].concat());

        scene.must(&mount);
        assert_same(&tree, &scene.path("mnt"), true);
        scene.must(&["umount", "mnt"]);
        // What it refuses changes nothing.
        let resize = ["cache", "resize", "c", "--for", "disk.img", "--size"];
        scene.fails(&[&resize[..], &["64K"]].concat(), 1, "too few");
        scene.fails(
            &["cache", "flush", "c", "--for", "other.img"],
            1,
            "another disk",
        );
        scene.must(&["cache", "check", "c"]);
        scene.must(&["cache", "resize", "c", "--for", "disk.img", "--size", "3M"]);
        assert_clean(&scene);
        scene.must(&mount);
        fs::remove_dir_all(scene.path("mnt/dir")).expect("remove");
        scene.must(&["umount", "mnt"]);
        scene.must(&["cache", "mode", "c", "write-through", "--for", "disk.img"]);
        scene.must(&mount);
        fs::write(scene.path("mnt/through"), "through").expect("write");
        scene.must(&["umount", "mnt"]);
        scene.must(&["cache", "detach", "c", "--for", "disk.img"]);
        assert_clean(&scene);
        scene.must(&["mount", "disk.img", "mnt"]);
        assert_eq!(
            fs::read(scene.path("mnt/through")).expect("read"),
            b"through"
        );
        assert!(!scene.path("mnt/dir").exists());
        scene.must(&["umount", "mnt"]);
        scene.must(&["cache", "attach", "c", "--for", "disk.img"]);
        scene.must(&mount);
        scene.must(&["umount", "mnt"]);
        scene.must(&["cache", "flush", "c", "--for", "disk.img"]);
        assert_clean(&scene);
    }
}

/// While it is mounted: what was done before a flush is on the disk then, which is marked again by
/// what comes after; and the mode is switched.
#[test]
fn a_cache_obeys_while_its_image_is_mounted() {
    if !Path::new(MEMORY).is_dir() || !has_e2fsprogs() {
        testing::skip!("needs /dev/shm and e2fsprogs");
    }
    let scene = scene("spindle");
    scene.must(&["mount", "disk.img", "mnt", "-o", "cache=c"]);
    let judge = || {
        fs::copy(scene.path("disk.img"), scene.path("copy.img")).expect("copied");
        tool(&scene, "e2fsck", &["-fn", "copy.img"])
            .status
            .success()
    };
    let cache = || scene.status()["file_system"]["cache"].clone();
    fs::write(scene.path("mnt/first"), vec![1; 300_000]).expect("write");
    assert_eq!(cache()["write_through"], false);
    scene.must(&["cache", "flush", "mnt"]);
    assert_eq!(cache()["dirty"], 0);
    assert!(judge(), "the disk has everything");
    fs::write(scene.path("mnt/second"), vec![2; 300_000]).expect("write");
    scene.must(&["umount", "mnt"]);
    assert!(!judge(), "and now lacks something");
    scene.must(&["mount", "disk.img", "mnt", "-o", "cache=c"]);
    scene.must(&["cache", "mode", "mnt", "write-through"]);
    fs::write(scene.path("mnt/third"), vec![3; 300_000]).expect("write");
    scene.must(&["cache", "mode", "mnt", "write-through"]);
    let facts = scene.must(&["cache", "stat", "mnt", "--json"]);
    assert!(facts.contains("\"write_through\":true"), "{facts}");
    assert!(scene.must(&["cache", "stat", "mnt"]).contains("spindle"));
    scene.must(&["cache", "mode", "mnt", "write-back"]);
    assert_eq!(cache()["write_through"], false);

    scene.fails(
        &["cache", "flush", "mnt", "--for", "disk.img"],
        1,
        "leave out --for",
    );
    scene.fails(&["cache", "flush", "c"], 1, "--for");
    scene.must(&["umount", "mnt"]);
    scene.must(&["cache", "detach", "c", "--for", "disk.img"]);
    assert_clean(&scene);
    scene.must(&["mount", "disk.img", "mnt"]);
    scene.fails(&["cache", "flush", "mnt"], 1, "no cache");
    scene.fails(&["cache", "stat", "mnt"], 1, "no cache");
    assert_eq!(
        fs::read(scene.path("mnt/third")).expect("read"),
        vec![3; 300_000]
    );
    scene.must(&["umount", "mnt"]);
}

/// A large file goes past the cache, and what is read is kept, if that is wanted.
#[test]
fn large_files_go_past_the_cache_and_reads_into_it() {
    if !Path::new(MEMORY).is_dir() || !has_e2fsprogs() {
        testing::skip!("needs /dev/shm and e2fsprogs");
    }
    let scene = scene("spindle");
    let cache = || scene.status()["file_system"]["cache"].clone();
    let count = |name: &str| cache()[name].as_u64().expect("a number");
    let large: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 4096) as u8 | 1).collect();
    let options = "cache=c,cache_kind=spindle,cache_bypass=64K,cache_reads,domain=line,flush_ns=10";
    scene.must(&["mount", "disk.img", "mnt", "-o", options]);
    fs::write(scene.path("mnt/large"), &large).expect("write");
    fs::write(scene.path("mnt/small"), vec![2; 30_000]).expect("write");
    let sync = |name: &str| {
        let file = fs::File::open(scene.path(name)).expect("open");
        file.sync_all().expect("sync");
    };
    sync("mnt/large");
    sync("mnt/small");
    assert_eq!(cache()["bypass_bytes"], 64 << 10);
    assert_eq!(cache()["domain"], "line");
    assert!(count("bypassed") > 1500, "{}", cache());
    assert!(count("data_misses") < 500, "{}", cache());
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "disk.img", "--cache", "c"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", options]);
    assert!(fs::read(scene.path("mnt/large")).expect("read") == large);
    assert!(fs::read(scene.path("mnt/small")).expect("read") == vec![2; 30_000]);
    assert_eq!(cache()["keeps_reads"], true);
    assert!(count("reads_kept") > 0, "{}", cache());
    scene.must(&["umount", "mnt"]);
    scene.must(&["cache", "detach", "c", "--for", "disk.img"]);
    assert_clean(&scene);
    scene.fails(
        &["mount", "disk.img", "mnt", "-o", "cache_bypass=1M"],
        1,
        "cache=FILE",
    );
    let of_memory = ["mount", "disk.img", "mnt", "-o", "domain=line"];
    scene.fails(&of_memory, 1, "cache=FILE");
    scene.must(&["cache", "attach", "c", "--for", "disk.img"]);
    let other = ["mount", "disk.img", "mnt", "-o", "cache=c,cache_kind=tinca"];
    scene.fails(&other, 1, "kind spindle");
    scene.must(&["cache", "detach", "c", "--for", "disk.img"]);
    let unknown = ["mount", "disk.img", "mnt", "-o", "cache_reads=some"];
    scene.fails(&unknown, 2, "on or off");
    scene.must(&["mount", "disk.img", "mnt"]);
    assert!(fs::read(scene.path("mnt/large")).expect("read") == large);
    scene.must(&["umount", "mnt"]);
}

/// What was synced outlives the process, by the cache alone.
#[test]
fn what_was_synced_outlives_a_kill() {
    if !Path::new(MEMORY).is_dir() || !has_e2fsprogs() {
        testing::skip!("needs /dev/shm and e2fsprogs");
    }
    let scene = scene("spindle");
    for round in 0..6_u8 {
        scene.must(&["mount", "disk.img", "mnt", "-o", "cache=c"]);
        for earlier in 0..round {
            let found = fs::read(scene.path(&format!("mnt/{earlier}/synced"))).expect("read");
            assert!(
                found == vec![earlier; 1 << 20],
                "round {round}, file {earlier}"
            );
        }
        let dir = scene.path(&format!("mnt/{round}"));
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("synced"), vec![round; 1 << 20]).expect("write");
        fs::File::open(dir.join("synced"))
            .expect("open")
            .sync_all()
            .expect("sync");
        fs::write(dir.join("not"), vec![round; 100_000]).expect("write");
        let daemon = scene.daemon();
        kill_process(daemon, Signal::KILL).expect("kill");
        wait_until("it is dead", || {
            rustix::process::test_kill_process(daemon).is_err()
        });
        scene.must(&["umount", "mnt"]);
    }
    scene.must(&["mount", "disk.img", "mnt", "-o", "cache=c"]);
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "disk.img", "--cache", "c"]);
    scene.must(&["cache", "detach", "c", "--for", "disk.img"]);
    assert_clean(&scene);
}

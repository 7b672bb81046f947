//! Images of ext2 and ext3, ours and those of mke2fs, judged by e2fsck.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Signal, kill_process};

use crate::scene::{Scene, wait_until};

/// A tool of others, also where users have no /usr/sbin in their path.
pub fn tool(scene: &Scene, name: &str, args: &[&str]) -> Output {
    let found = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"]
        .map(|dir| Path::new(dir).join(name))
        .into_iter()
        .find(|path| path.exists());
    scene.run_as(&found.expect("it is installed"), args)
}

pub fn has_e2fsprogs() -> bool {
    ["/sbin/e2fsck", "/usr/sbin/e2fsck"]
        .iter()
        .any(|path| Path::new(path).exists())
}

/// Demands that e2fsck has nothing to say against the image.
#[track_caller]
pub fn assert_clean(scene: &Scene) {
    let output = tool(scene, "e2fsck", &["-fn", "disk.img"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for sign in ["ixed", "<y>", "? no", "rror"] {
        assert!(!text.contains(sign), "{text}");
    }
}

fn mke2fs(scene: &Scene, args: &[&str]) {
    let args = [&["-q", "-F"], args, &["disk.img", "32M"]].concat();
    let made = tool(scene, "mke2fs", &args);
    assert!(made.status.success(), "{made:?}");
}

/// A tree with one of everything that `cp -a` takes along.
pub fn make_tree(scene: &Scene) {
    let tree = scene.path("tree");
    fs::create_dir_all(tree.join("dir/deeper")).expect("mkdir");
    for i in 0..300_usize {
        let name = format!("dir/{}{i}", "name".repeat(i % 12));
        fs::write(tree.join(name), vec![i as u8; i * 97]).expect("write");
    }
    fs::write(tree.join("large"), vec![7; 3_000_000]).expect("write");
    let sparse = fs::File::create(tree.join("sparse")).expect("create");
    sparse.write_all_at(b"end", 5 << 20).expect("write");
    symlink("large", tree.join("short")).expect("symlink");
    symlink("l".repeat(200), tree.join("long")).expect("symlink");
    fs::hard_link(tree.join("large"), tree.join("dir/deeper/again")).expect("link");
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(tree.join("dir/deeper"), fs::Permissions::from_mode(0o1770))
        .expect("chmod");
    fs::set_permissions(tree.join("sparse"), mode).expect("chmod");
    Command::new("mkfifo")
        .arg(tree.join("fifo"))
        .status()
        .expect("mkfifo");
}

/// Demands that two trees have the same names, contents and attributes.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path, nanoseconds: bool) {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).expect("a directory");
        let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
        names.retain(|name| name != "lost+found");
        names.sort();
        names
    };
    let list = names(one);
    assert_eq!(list, names(other), "{}", one.display());
    for name in list {
        let (one, other) = (one.join(&name), other.join(&name));
        let [a, b] = [&one, &other].map(|path| fs::symlink_metadata(path).expect("stat"));
        let shape = |m: &fs::Metadata| {
            let nanoseconds = nanoseconds.then(|| m.mtime_nsec());
            (m.mode(), m.uid(), m.gid(), m.mtime(), nanoseconds)
        };
        assert_eq!(shape(&a), shape(&b), "{}", one.display());
        if a.is_dir() {
            assert_same(&one, &other, nanoseconds);
        } else if a.is_symlink() {
            let targets = [&one, &other].map(|path| fs::read_link(path).expect("readlink"));
            assert_eq!(targets[0], targets[1]);
        } else {
            assert_eq!(
                (a.nlink(), a.len()),
                (b.nlink(), b.len()),
                "{}",
                one.display()
            );
            if a.is_file() {
                let contents = [&one, &other].map(|path| fs::read(path).expect("read"));
                assert!(contents[0] == contents[1], "{}", one.display());
            }
        }
    }
}

/// Mounts the image, puts a tree in it and takes some away, and looks again after a second mount.
fn work(scene: &Scene) {
    make_tree(scene);
    scene.must(&["mount", "disk.img", "mnt"]);
    let copied = tool(scene, "cp", &["-a", "tree", "mnt/"]);
    assert!(copied.status.success(), "{copied:?}");
    let copied = tool(scene, "cp", &["-a", "tree", "mnt/other"]);
    assert!(copied.status.success(), "{copied:?}");
    fs::remove_dir_all(scene.path("mnt/other")).expect("removed");
    scene.must(&["umount", "mnt"]);
    assert_clean(scene);
    scene.must(&["mount", "disk.img", "mnt", "-o", "ro"]);
    assert_same(&scene.path("tree"), &scene.path("mnt/tree"), true);
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    fs::remove_dir_all(scene.path("mnt/tree")).expect("removed");
    scene.must(&["umount", "mnt"]);
    assert_clean(scene);
}

#[test]
fn images_made_here_hold_a_tree_and_are_clean() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    for journal in [&[][..], &["--journal"]] {
        let scene = Scene::new();
        let args = [
            "mkfs", "--type", "ext2", "-s", "32M", "-L", "work", "disk.img",
        ];
        scene.must(&[&args, journal].concat());
        assert_clean(&scene);
        let report: serde_json::Value =
            serde_json::from_str(&scene.must(&["stat", "--json", "disk.img"])).expect("JSON");
        let facts = &report["file_system"];
        assert_eq!(
            (&facts["type"], &facts["label"]),
            (&"ext2".into(), &"work".into())
        );
        assert_eq!(
            (&facts["clean"], &facts["mounts"]),
            (&true.into(), &0.into())
        );
        let features = facts["features"].as_str().expect("text");
        assert_eq!(features.contains("has_journal"), !journal.is_empty());
        work(&scene);
    }
}

#[test]
fn images_of_mke2fs_are_mounted_by_what_they_hold() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    let kinds: [&[&str]; 3] = [
        &["-t", "ext2"],
        &["-t", "ext3", "-b", "1024", "-I", "256"],
        &["-t", "ext2", "-b", "4096", "-O", "^filetype,^resize_inode"],
    ];
    for kind in kinds {
        let scene = Scene::new();
        mke2fs(&scene, &[kind, &["-I", "256"]].concat());
        work(&scene);
    }
}

#[test]
fn a_mount_that_was_killed_is_served_again_at_once() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    let scene = Scene::new();
    scene.must(&[
        "mount", "--type", "ext2", "--create", "32M", "disk.img", "mnt",
    ]);
    fs::create_dir(scene.path("mnt/dir")).expect("mkdir");
    for i in 0..50 {
        fs::write(scene.path(&format!("mnt/dir/{i}")), b"data").expect("write");
    }
    // That of a directory takes all along, that of a file only the file.
    let dir = fs::File::open(scene.path("mnt/dir")).expect("open");
    dir.sync_all().expect("fsync");
    let file = fs::File::create(scene.path("mnt/dir/precious")).expect("create");
    file.write_all_at(b"gold", 0).expect("write");
    file.sync_all().expect("fsync");
    drop(file);
    kill_process(scene.daemon(), Signal::KILL).expect("kill");
    scene.tells(
        &["mount", "disk.img", "mnt"],
        "searched for while it is in use",
    );
    // Whether the search was over or not, the next mount goes on.
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    fs::write(scene.path("mnt/dir/new"), b"at once").expect("write");
    wait_until("what was lost is found", || {
        scene.status()["file_system"]["reclaiming"] == false
    });
    let found = fs::read(scene.path("mnt/dir/precious")).expect("read");
    assert_eq!(found, b"gold");
    assert_eq!(
        fs::read_dir(scene.path("mnt/dir")).expect("list").count(),
        52
    );
    scene.must(&["umount", "mnt"]);
    assert_clean(&scene);
}

/// Kills the daemon while files come and go, one of them removed and open, and mounts again.
fn kill_in(mode: &str, journal: bool) {
    let scene = Scene::new();
    let kind = if journal { "ext3" } else { "ext2" };
    mke2fs(&scene, &["-t", kind]);
    let mount = ["mount", "disk.img", "mnt", "-o", mode];
    for life in 0..3_u8 {
        scene.must(&mount);
        let dir = scene.path(&format!("mnt/dir{life}"));
        fs::create_dir(&dir).expect("mkdir");
        let removed = fs::File::create(dir.join("removed")).expect("create");
        removed.write_all_at(&[1; 100_000], 0).expect("write");
        fs::remove_file(dir.join("removed")).expect("removed");
        let file = fs::File::create(dir.join("precious")).expect("create");
        file.write_all_at(&[life; 30_000], 0).expect("write");
        file.sync_all().expect("fsync");
        for i in 0..60 {
            fs::write(dir.join(format!("{i}")), vec![life; 3000]).expect("write");
        }
        fs::rename(dir.join("7"), dir.join("moved")).expect("moved");
        kill_process(scene.daemon(), Signal::KILL).expect("kill");
        drop((file, removed));
        if journal {
            let output = scene.run(&mount);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.is_empty(), "{mode}: {text}");
        } else {
            scene.tells(&mount, "searched for while it is in use");
        }
        for before in 0..=life {
            let found = fs::read(scene.path(&format!("mnt/dir{before}/precious"))).expect("read");
            assert!(found == [before; 30_000], "{mode}");
        }
        if mode == "mode=sync" {
            // Names returned, so they are durable.
            let names = fs::read_dir(&dir).expect("list").count();
            assert_eq!(names, 61, "{mode}");
            assert!(dir.join("moved").exists() && !dir.join("7").exists());
        }
        wait_until("what was lost is found", || {
            scene.status()["file_system"]["reclaiming"] == false
        });
        scene.must(&["umount", "mnt"]);
        assert_clean(&scene);
    }
}

#[test]
fn after_a_kill_a_journal_is_replayed_and_nothing_is_checked() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    kill_in("mode=ordered", true);
    kill_in("mode=journal", true);
}

#[test]
fn names_that_were_made_in_mode_sync_survive_a_kill() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    kill_in("mode=sync", false);
}

#[test]
fn a_mode_that_wants_a_journal_says_how_to_make_one() {
    let scene = Scene::new();
    scene.must(&["mkfs", "--type", "ext2", "--size", "16M", "disk.img"]);
    for mode in ["mode=ordered", "mode=journal"] {
        scene.fails(&["mount", "disk.img", "mnt", "-o", mode], 1, "tune2fs -j");
    }
    // A mode of another engine.
    let mount = ["mount", "disk.img", "mnt", "-o", "mode=delayed"];
    scene.fails(&mount, 2, "use soft, sync, ordered, journal or async");
    scene.must(&["mount", "disk.img", "mnt", "-o", "sync"]);
    assert_eq!(scene.status()["settings"]["mode"], "sync");
    scene.must(&["umount", "mnt"]);
}

#[test]
fn fsck_reports_repairs_and_leaves_what_needs_decisions() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    let scene = Scene::new();
    mke2fs(&scene, &["-t", "ext2"]);
    let damage = |command| {
        let done = tool(&scene, "debugfs", &["-w", "-R", command, "disk.img"]);
        assert!(done.status.success(), "{done:?}");
    };
    let fsck = |args: &[&str]| {
        let output = scene.run(&[&["fsck"], args, &["disk.img"]].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().expect("a code"), text)
    };
    assert_eq!(fsck(&[]).0, 0);
    damage("sif lost+found links_count 7");
    let (code, text) = fsck(&["-n"]);
    assert!(
        code == 4 && text.contains("has 2 names, and counts 7"),
        "{text}"
    );
    assert_eq!(fsck(&[]).0, 1);
    assert_eq!(fsck(&["-n"]).0, 0);
    assert_clean(&scene);
    damage("unlink lost+found");
    damage("ssv state 0");
    let (code, text) = fsck(&[]);
    assert!(code == 4 && text.contains("run e2fsck"), "{text}");
    scene.fails(&["mount", "disk.img", "mnt"], 1, "needs decisions");
    scene.must(&["mount", "disk.img", "mnt", "-o", "ro"]);
    scene.must(&["umount", "mnt"]);
}

#[test]
fn a_live_mount_tells_what_it_serves() {
    let scene = Scene::new();
    scene.must(&[
        "mount", "--type", "ext2", "--create", "16M", "disk.img", "mnt",
    ]);
    fs::write(scene.path("mnt/file"), b"data").expect("write");
    let status = scene.status();
    assert_eq!(status["file_system"]["type"], "ext2");
    assert_eq!(status["file_system"]["mounts"], 1);
    assert_eq!(status["medium"]["kind"], "image file");
    assert_eq!(status["settings"]["mode"], "soft");
    assert_eq!(status["read_only"], false);
    let text = scene.must(&["stat", "mnt"]);
    assert!(text.starts_with("All is well"), "{text}");
    scene.fails(
        &["mkfs", "--force", "--type", "ext2", "disk.img"],
        1,
        "unmount it first",
    );
    scene.must(&["umount", "disk.img"]);
}

/// What keeps order among changes, what that takes, and what was written for it.
#[test]
fn a_live_mount_tells_what_waits_and_what_was_flushed() {
    let scene = Scene::new();
    scene.must(&[
        "mount", "--type", "ext2", "--create", "32M", "disk.img", "mnt",
    ]);
    let counters = || {
        let status = scene.status();
        let (own, medium) = (&status["file_system"]["counters"], &status["medium"]);
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let of = |name: &str| number(&own[name]);
        let flushes = number(&medium["counters"]["flushes"]);
        [
            of("dependencies"),
            of("dependency_bytes"),
            of("pending_bytes"),
            of("rolled_back"),
            of("out_of_order"),
            flushes,
        ]
    };
    let dir = scene.path("mnt/dir");
    fs::create_dir(&dir).expect("mkdir");
    for i in 0..200 {
        fs::write(dir.join(i.to_string()), "contents").expect("write");
    }
    let [waits, bytes, pending, ..] = counters();
    assert!(
        waits > 200 && bytes > 10_000 && pending > 100_000,
        "{waits}, {bytes}, {pending}"
    );
    // One of them, beside which the others are rolled back.
    let [.., before] = counters();
    let one = fs::File::open(dir.join("7")).and_then(|file| file.sync_all());
    one.expect("fsync");
    let [_, _, _, rolled_back, _, flushes] = counters();
    assert!(
        rolled_back > 0 && flushes > before,
        "{rolled_back}, {flushes}"
    );
    // The rest is written by age.
    wait_until("nothing waits", || counters()[..3] == [0, 0, 0]);
    let [.., out_of_order, _] = counters();
    assert_eq!(out_of_order, 0);
    scene.must(&["umount", "mnt"]);
}

#[test]
fn what_is_larger_than_16_tib_is_refused_with_the_limit() {
    // ext4 has no files of this size.
    let memory = Path::new("/dev/shm");
    let scene = match memory.is_dir() {
        true => Scene::below(memory),
        false => Scene::new(),
    };
    let mkfs = ["mkfs", "--type", "ext2", "disk.img"];
    let sized = [&mkfs[..], &["--size", "17T"]].concat();
    scene.fails(&sized, 1, "at most");
    assert!(!scene.path("disk.img").exists());
    let file = fs::File::create(scene.path("disk.img")).expect("create");
    if let Err(error) = file.set_len((16 << 40) + (1 << 30)) {
        testing::skip!(&format!(
            "needs a file system with files of 16 TiB: {error}"
        ));
    }
    scene.fails(&mkfs, 1, "at most");
    let made = [
        "mount", "--type", "ext2", "--create", "17T", "new.img", "mnt",
    ];
    scene.fails(&made, 1, "at most");
}

#[test]
fn what_can_only_be_read_is_mounted_for_that_and_what_cannot_is_refused_by_name() {
    if !has_e2fsprogs() {
        testing::skip!("needs e2fsprogs");
    }
    let scene = Scene::new();
    make_tree(&scene);
    let ext4 = ["-t", "ext4", "-O", "^orphan_file", "-d", "tree"];
    mke2fs(&scene, &ext4);
    let before = fs::read(scene.path("disk.img")).expect("read");
    scene.tells(
        &["mount", "disk.img", "mnt"],
        "mounted read-only, because of",
    );
    // What mke2fs copies has whole seconds.
    assert_same(&scene.path("tree"), &scene.path("mnt"), false);
    let error = fs::write(scene.path("mnt/new"), b"x").expect_err("read-only");
    assert_eq!(error.raw_os_error(), Some(30));
    assert_eq!(scene.status()["read_only"], true);
    scene.must(&["umount", "mnt"]);
    assert!(before == fs::read(scene.path("disk.img")).expect("read"));
    scene.fails(&["fsck", "-n", "disk.img"], 8, "check it with e2fsck");

    mke2fs(&scene, &["-t", "ext4", "-O", "inline_data"]);
    scene.fails(
        &["mount", "disk.img", "mnt"],
        1,
        "not supported: inline_data",
    );
    let text = scene.must(&["stat", "disk.img"]);
    assert!(
        text.contains("none: ") && text.contains("inline_data"),
        "{text}"
    );
    scene.fails(
        &["mkfs", "--journal", "--size", "16M", "new.img"],
        2,
        "have no journal",
    );
}

//! Snapshots by commands: made, changed behind, read, deleted, across kills; dumps of what is in
//! use.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::dump::{copy, has_restore, restore, same};
use crate::ext2::{assert_same, make_tree};
use crate::scene::{Scene, wait_until};

/// Modes that keep snapshots, each in its own way.
const MODES: [&str; 3] = ["soft", "ordered", "journal"];

fn image(scene: &Scene, mode: &str) {
    let mut mkfs = vec!["mkfs", "--type", "ext2", "disk.img", "--size", "64M"];
    if mode != "soft" {
        mkfs.push("--journal");
    }
    scene.must(&mkfs);
    mount(scene, mode);
}

fn mount(scene: &Scene, mode: &str) {
    let mode = format!("mode={mode}");
    scene.must(&["mount", "disk.img", "mnt", "-o", &mode]);
}

/// A pipe with a name, by which a dump waits for who reads it.
fn fifo(scene: &Scene) -> PathBuf {
    let pipe = scene.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("it runs");
    assert!(made.success());
    pipe
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
    MODES.into_iter().for_each(outlives_changes_and_kills);
}

fn outlives_changes_and_kills(mode: &str) {
    let scene = Scene::new();
    make_tree(&scene);
    let (tree, mnt) = (scene.path("tree"), scene.path("mnt"));
    image(&scene, mode);
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
    // A log is replayed, and nothing is left to be repaired.
    let code = i32::from(mode == "soft");
    assert_eq!(repaired.status.code(), Some(code), "{mode}: {repaired:?}");
    assert_eq!(names(&scene, "disk.img"), ["monday", "tuesday"]);
    scene.must(&["snapshot", "mount", "disk.img", "monday", "other"]);
    is_monday();
    mount(&scene, mode);
    fs::remove_dir_all(mnt.join("moved")).expect("removed");
    kill(&scene);
    mount(&scene, mode);
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
    image(&scene, "soft");
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
    MODES.into_iter().for_each(in_use_it_is_dumped);
}

fn in_use_it_is_dumped(mode: &str) {
    let scene = Scene::new();
    make_tree(&scene);
    image(&scene, mode);
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
    fifo(&scene);
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
    mount(&scene, mode);
    wait_until("it is removed", || names(&scene, "mnt").is_empty());
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

#[test]
fn what_changed_since_is_dumped_while_it_is_in_use() {
    testing::needs_root!();
    if !has_restore() {
        testing::skip!("needs restore (Debian: dump)");
    }
    let scene = Scene::new();
    make_tree(&scene);
    let (tree, mnt) = (scene.path("tree"), scene.path("mnt"));
    image(&scene, "soft");
    copy(&tree, &mnt);
    fs::create_dir(scene.path("to")).expect("made");
    let dump = |level: &str, file: &str| -> Value {
        let args = [
            "dump", "mnt", "--json", "-ul", level, "-f", file, "--dates", "dates",
        ];
        serde_json::from_str(&scene.must(&args)).expect("JSON")
    };
    let zero = dump("0", "zero");
    restore(&scene, "zero");
    same(&scene);
    // Who has it open goes on writing.
    let mut open = File::create(mnt.join("open")).expect("made");
    io::Write::write_all(&mut open, b"contents").expect("written");
    fs::write(tree.join("open"), "contents").expect("written");
    for root in [&tree, &mnt] {
        fs::rename(root.join("dir"), root.join("moved")).expect("renamed");
        fs::remove_file(root.join("sparse")).expect("removed");
        fs::write(root.join("moved/new"), "new").expect("written");
        fs::hard_link(root.join("large"), root.join("moved/linked")).expect("linked");
    }
    for name in ["open", "moved/new"] {
        let times = Command::new("touch")
            .args(["-r".as_ref(), mnt.join(name).as_os_str()])
            .arg(tree.join(name))
            .status();
        assert!(times.expect("touch").success());
    }
    let one = dump("1", "one");
    assert_eq!(one["since_at"], zero["date_at"]);
    let len = |name: &str| fs::metadata(scene.path(name)).expect("there").len();
    // What has not changed is not in it, but for what may have within the second.
    assert!(len("one") <= len("zero"));
    restore(&scene, "one");
    same(&scene);
    assert!(names(&scene, "mnt").is_empty());
    drop(open);
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

/// The contents of a file of [`make_in_order`].
fn contents(number: usize) -> Vec<u8> {
    number.to_string().repeat(1 + number % 700).into_bytes()
}

/// So many files there is room for in any case.
const FILES_MAX: usize = 4000;

/// Makes files, one after the other, each under its name when it is whole; then the same again. How
/// many.
fn make_in_order(dir: &Path, stop: &AtomicBool) -> usize {
    let mut made = 0;
    while !stop.load(Ordering::SeqCst) {
        let (new, number) = (dir.join("new"), made % FILES_MAX);
        fs::write(&new, contents(number)).expect("written");
        fs::rename(&new, dir.join(number.to_string())).expect("renamed");
        made += 1;
    }
    made
}

/// A dump that read the files as they are would have what came later: all is changed behind the
/// snapshot, before any of it can be read. What is made meanwhile is there as at one moment.
#[test]
fn a_dump_beside_writers_has_what_there_was_at_its_snapshot() {
    testing::needs_root!();
    if !has_restore() {
        testing::skip!("needs restore (Debian: dump)");
    }
    MODES.into_iter().for_each(dumped_beside_writers);
}

fn dumped_beside_writers(mode: &str) {
    let scene = Scene::new();
    make_tree(&scene);
    image(&scene, mode);
    let (at, busy) = (scene.path("mnt/tree"), scene.path("mnt/busy"));
    fs::create_dir(&at).expect("made");
    fs::create_dir(&busy).expect("made");
    copy(&scene.path("tree"), &at);
    let pipe = fifo(&scene);
    let stop = AtomicBool::new(false);
    let (before, after) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| make_in_order(&busy, &stop));
        wait_until("files are made", || busy.join("20").exists());
        let before = fs::read_dir(&busy).expect("listed").count();
        let mut child = scene.spawn(&["dump", "mnt", "-f", "pipe"]);
        wait_until("there is a snapshot", || !names(&scene, "mnt").is_empty());
        fs::remove_file(at.join("sparse")).expect("removed");
        fs::write(at.join("large"), "other").expect("written");
        fs::rename(at.join("dir"), at.join("moved")).expect("renamed");
        for (number, entry) in fs::read_dir(at.join("moved")).expect("listed").enumerate() {
            let path = entry.expect("an entry").path();
            match number % 3 {
                _ if path.is_dir() => {}
                0 => fs::remove_file(path).expect("removed"),
                _ => fs::write(path, vec![0xEE; 5000]).expect("written"),
            }
        }
        let mut from = File::open(&pipe).expect("opened");
        let mut to = File::create(scene.path("dump")).expect("made");
        io::copy(&mut from, &mut to).expect("dumped");
        assert!(child.wait().expect("it ends").success());
        stop.store(true, Ordering::SeqCst);
        (before, writer.join().expect("it writes"))
    });
    fs::create_dir(scene.path("to")).expect("made");
    restore(&scene, "dump");
    // A dump has whole seconds.
    assert_same(&scene.path("tree"), &scene.path("to/tree"), false);
    let found = fs::read_dir(scene.path("to/busy")).expect("listed");
    let mut numbers: Vec<usize> = found
        .filter_map(|entry| entry.expect("an entry").file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let count = numbers.len();
    assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
    assert!(
        before <= count + 1 && count < after,
        "{before}, {count}, {after}"
    );
    for number in numbers {
        let bytes = fs::read(scene.path(&format!("to/busy/{number}"))).expect("read");
        assert!(bytes == contents(number), "{number}");
    }
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

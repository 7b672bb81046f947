//! Each subcommand, as people and scripts call it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scene::{Scene, TUREEN, wait_until};

#[test]
fn an_image_is_made_mounted_used_unmounted_and_mounted_again() {
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    fs::write(scene.path("mnt/greeting"), b"hello").expect("write");
    fs::create_dir(scene.path("mnt/dir")).expect("mkdir");
    scene.must(&["umount", "mnt"]);
    assert!(!scene.path("mnt/greeting").exists());
    scene.must(&["fsck", "-n", "disk.img"]);
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    assert_eq!(
        fs::read(scene.path("mnt/greeting")).expect("read"),
        b"hello"
    );
    assert!(scene.path("mnt/dir").is_dir());
    scene.must(&["umount", "disk.img"]);
}

#[test]
fn the_directory_is_made_too_when_the_image_may_be() {
    let scene = Scene::new();
    fs::remove_dir(scene.path("mnt")).expect("rmdir");
    scene.fails(&["mount", "disk.img", "mnt"], 1, "no such image");
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    scene.must(&["umount", "mnt"]);
    fs::remove_dir(scene.path("mnt")).expect("rmdir");
    scene.fails(&["mount", "disk.img", "mnt"], 1, "no such directory");
    for front in [&[][..], &["-f"]] {
        let args = ["mount", "small.img", "mnt", "--create", "100K"];
        scene.fails(&[&args, front].concat(), 1, "an image has");
        assert!(!scene.path("mnt").exists() && !scene.path("small.img").exists());
    }
}

#[test]
fn a_mounted_image_is_refused_to_everyone_else() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    fs::create_dir(scene.path("other")).expect("mkdir");
    scene.fails(&["mount", "disk.img", "other"], 1, "is mounted on");
    scene.fails(&["fsck", "disk.img"], 8, "unmount it first");
    scene.fails(&["fsck", "-n", "disk.img"], 8, "unmount it first");
    scene.fails(&["mkfs", "--force", "disk.img"], 1, "unmount it first");
    scene.must(&["mkfs", "other.img", "--size", "64M"]);
    scene.fails(&["mount", "other.img", "mnt"], 1, "mounted here already");
    scene.must(&["umount", "mnt"]);
}

#[test]
fn a_mount_that_lives_is_not_taken_away_for_another() {
    let scene = Scene::new();
    fs::create_dir(scene.path("other")).expect("mkdir");
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", "ro"]);
    for options in ["ro", "rw"] {
        let args = ["mount", "disk.img", "other", "-o", options];
        scene.fails(&args, 1, "is mounted on");
        assert!(scene.is_mounted());
    }
    // Another image comes to the name of the mounted one.
    fs::rename(scene.path("disk.img"), scene.path("old.img")).expect("rename");
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "other"]);
    assert!(scene.is_mounted());
    scene.must(&["umount", "other"]);
    scene.must(&["umount", "mnt"]);
}

#[test]
fn a_log_that_cannot_be_written_is_told_before_anything_is_mounted() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    for front in [&[][..], &["-f"]] {
        let args = ["mount", "disk.img", "mnt", "-o", "log=missing/log"];
        scene.fails(&[&args, front].concat(), 1, "cannot write the log");
        assert!(!scene.is_mounted());
    }
    scene.must(&["fsck", "-n", "disk.img"]);
}

#[test]
fn what_an_image_holds_is_not_overwritten_by_accident() {
    let scene = Scene::new();
    // A file system whose first words come late.
    let mut other = vec![0; 4 << 20];
    other[0x10040..0x10048].copy_from_slice(b"_BHRfS_M");
    fs::write(scene.path("disk.img"), &other).expect("write");
    scene.fails(&["mkfs", "disk.img"], 1, "--force");
    assert!(fs::read(scene.path("disk.img")).expect("read") == other);
    fs::remove_file(scene.path("disk.img")).expect("remove");
    scene.fails(&["mkfs", "disk.img"], 1, "--size");
    let report = scene.must(&[
        "mkfs", "disk.img", "--size", "64M", "--label", "work", "--json",
    ]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["size_bytes"], 64 << 20);
    scene.fails(&["mkfs", "disk.img"], 1, "--force");
    scene.must(&["mkfs", "disk.img", "--force"]);
    scene.must(&["mkfs", "disk.img", "--force", "--size", "32M"]);
    assert_eq!(
        fs::metadata(scene.path("disk.img")).expect("stat").len(),
        32 << 20
    );
    // What cannot be made leaves what is there.
    let before = fs::read(scene.path("disk.img")).expect("read");
    for size in ["0", "100K", "65T"] {
        let words = "an image has 1048576 to";
        scene.fails(&["mkfs", "disk.img", "--force", "--size", size], 1, words);
        assert!(fs::read(scene.path("disk.img")).expect("read") == before);
    }
    assert_eq!(fs::read_dir(scene.path(".")).expect("list").count(), 2);
    // A file made to be filled holds nothing yet.
    let blank = fs::File::create(scene.path("blank.img")).expect("create");
    blank.set_len(64 << 20).expect("truncate");
    scene.must(&["mkfs", "blank.img"]);
}

#[test]
fn errors_before_the_mount_is_ready_reach_the_caller() {
    let scene = Scene::new();
    fs::write(scene.path("text.img"), vec![b'x'; 1 << 20]).expect("write");
    scene.fails(
        &["mount", "text.img", "mnt"],
        1,
        "not a Tureen image: it holds text",
    );
    scene.fails(
        &["mount", "text.img", "mnt", "-o", "compress"],
        2,
        "unknown mount option",
    );
    for (kind, modes) in [
        ("soupfs", "use delayed, sync or strong"),
        ("ext2", "use soft, sync, ordered, journal or async"),
    ] {
        let image = format!("{kind}.img");
        scene.must(&["mkfs", "--type", kind, "--size", "16M", &image]);
        scene.fails(&["mount", &image, "mnt", "-o", "mode=fast"], 2, modes);
    }
    assert!(!scene.is_mounted());
}

/// The value of a fact that `tureen stat` shows.
fn said<'a>(text: &'a str, fact: &str) -> Option<&'a str> {
    let mut facts = text.lines().filter_map(|line| line.trim().split_once("  "));
    facts.find_map(|(name, value)| (name == fact).then_some(value.trim()))
}

#[test]
fn the_status_of_a_mount_and_of_an_image_can_be_read() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M", "--label", "notes"]);
    let image = scene.must(&["stat", "disk.img"]);
    assert!(
        image.starts_with("All is well: it was unmounted cleanly.\n\n"),
        "{image}"
    );
    for (fact, value) in [
        ("size", "64 MiB"),
        ("mounts", "0"),
        ("label", "notes"),
        ("clean", "yes"),
    ] {
        assert_eq!(said(&image, fact), Some(value), "{image}");
    }
    scene.must(&["mount", "disk.img", "mnt", "-o", "mode=sync,bound=2s"]);
    let status = scene.status();
    assert_eq!(
        (&status["settings"]["mode"], &status["settings"]["bound"]),
        (&"sync".into(), &"2s".into())
    );
    assert!(status["pid"].as_u64().is_some_and(|pid| pid > 1));
    assert!(status["medium"]["domain"].is_string());
    // `tureen bench` counts by it.
    assert!(status["medium"]["counters"]["fences"].is_u64());
    assert!(status["medium"]["counters"]["commits"]["journal"].is_u64());
    assert!(status["medium"]["counters"]["transactions_aborted"]["by_conflict"].is_u64());
    assert_eq!(status["file_system"]["mounts"], 1);
    assert_eq!(status["file_system"]["late_ms"], 0, "nothing is pending");
    let live = scene.must(&["stat", "disk.img"]);
    assert!(live.starts_with("All is well"), "{live}");
    let dir = scene.path("mnt");
    assert_eq!(said(&live, "mounted on"), dir.to_str(), "of the live mount");
    assert!(
        said(&live, "mounted").is_some_and(|date| date.starts_with("20")),
        "{live}"
    );
    assert!(
        said(&live, "fences").is_none() && !live.contains("requests"),
        "{live}"
    );
    let counted = scene.must(&["stat", "--counters", "mnt"]);
    assert!(said(&counted, "fences").is_some(), "{counted}");
    assert!(said(&counted, "getxattr").is_some(), "{counted}");
    scene.must(&["umount", "mnt"]);
    scene.fails(&["stat", "mnt"], 1, "no Tureen file system");
}

#[test]
fn in_front_a_signal_ends_the_mount_cleanly() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    let mut front = scene.spawn(&["mount", "-f", "disk.img", "mnt"]);
    wait_until("mounted", || scene.is_mounted());
    fs::write(scene.path("mnt/kept"), b"x").expect("write");
    let pid = rustix::process::Pid::from_child(&front);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
    assert!(front.wait().expect("it ends").success());
    assert!(!scene.is_mounted());
    scene.must(&["fsck", "-n", "disk.img"]);
}

#[test]
fn what_was_written_before_a_signal_is_durable_however_long_its_file_stays_open() {
    let scene = Scene::new();
    let options = ["--create", "64M", "-o", "writeback,grace=100ms"];
    scene.must(&[&["mount", "disk.img", "mnt"], &options[..]].concat());
    let daemon = scene.daemon();
    // In a process that closes no copy of the descriptor, as one that starts programs does: each
    // close writes back.
    let mut user = Command::new("sh")
        .args(["-c", "exec > file && printf dirty && read _"])
        .current_dir(scene.path("mnt"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    wait_until("written", || {
        fs::metadata(scene.path("mnt/file")).is_ok_and(|file| file.len() == 5)
    });
    rustix::process::kill_process(daemon, rustix::process::Signal::TERM).expect("signal");
    wait_until("the process has ended", || {
        rustix::process::test_kill_process(daemon).is_err()
    });
    drop(user.stdin.take());
    user.wait().expect("it ends");
    scene.must(&["mount", "disk.img", "mnt"]);
    let found = fs::read_to_string(scene.path("mnt/file")).expect("read");
    assert_eq!(found, "dirty");
    scene.must(&["umount", "mnt"]);
}

#[test]
fn a_mount_whose_process_was_killed_can_be_removed_and_replaced() {
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    let pid = i32::try_from(scene.status()["pid"].as_i64().expect("a number")).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("signal");
    wait_until("dead", || fs::read_dir(scene.path("mnt")).is_err());
    scene.fails(&["stat", "mnt"], 1, "tureen umount");
    scene.must(&["fsck", "-n", "disk.img"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    fs::write(scene.path("mnt/new"), b"x").expect("write");
    scene.must(&["umount", "mnt"]);
    assert!(!scene.is_mounted());
}

#[test]
fn a_directory_in_use_is_only_unmounted_lazily() {
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    let user = fs::File::create(scene.path("mnt/open")).expect("create");
    scene.fails(&["umount", "mnt"], 1, "in use");
    scene.must(&["umount", "--lazy", "mnt"]);
    assert!(!scene.is_mounted());
    drop(user);
    // The last user is gone: the image becomes free, and the next mount waits for that.
    scene.must(&["mount", "disk.img", "mnt"]);
    scene.must(&["umount", "mnt"]);
}

#[test]
fn the_helpers_of_mount_and_umount_work() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["install", "--prefix", "root"]);
    let helper = |name: &str| scene.path("root/sbin").join(name);
    assert_eq!(
        fs::read_link(helper("mount.fuse.tureen"))
            .expect("a link")
            .file_name(),
        Path::new(TUREEN).file_name()
    );
    let (image, dir) = (scene.path("disk.img"), scene.path("mnt"));
    let (image, dir) = (image.to_str().expect("text"), dir.to_str().expect("text"));
    let options = "rw,nosuid,user,x-gvfs-show";
    let mount = scene.run_as(
        &helper("mount.fuse.tureen"),
        &[image, dir, "-o", options, "-t", "fuse.tureen"],
    );
    assert!(mount.status.success(), "{mount:?}");
    assert!(scene.is_mounted());
    let again = scene.run_as(&helper("mount.fuse.tureen"), &[image, dir]);
    assert_eq!(again.status.code(), Some(32), "{again:?}");
    let umount = scene.run_as(&helper("umount.fuse.tureen"), &[dir]);
    assert!(umount.status.success(), "{umount:?}");
    assert!(!scene.is_mounted());
}

#[test]
fn a_remount_refuses_what_it_could_not_change() {
    testing::needs_root!();
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["install", "--prefix", "root"]);
    let remount = |options: &str| {
        let helper = scene.path("root/sbin/mount.fuse.tureen");
        scene.run_as(
            &helper,
            &["disk.img", "mnt", "-o", &format!("remount,{options}")],
        )
    };
    for (served, options, is_done) in [
        ("bound=2s", "ro", true),
        ("bound=2s", "rw,noexec,bound=2s", true),
        ("bound=2s", "mode=sync", false),
        ("bound=2s", "sync", false),
        ("sync", "rw,sync", true),
        ("relatime", "rw,noatime", false),
        ("noatime", "rw,noatime,nosuid", true),
        ("noatime", "rw,relatime", false),
        ("strictatime", "ro,strictatime", true),
        ("strictatime", "ro,relatime", true),
        ("strictatime", "noatime", false),
        ("rw", "bound=10s", false),
        ("rw", "backlog=1M", false),
        ("backlog=1M", "ro,backlog=1024K", true),
        ("rw", "threads=3", false),
        ("threads=3", "ro, nodev, threads=3", true),
        ("rw", "writeback", false),
        ("writeback", "ro,writeback", true),
        ("rw", "noallow_other", false),
        ("rw", "persisters=2", false),
        ("rw", "flush_ns=100", false),
        ("log=messages", "ro,log=messages", true),
        ("log=messages", "ro,log=elsewhere", false),
        ("ro", "ro,noexec", true),
        ("ro", "rw", false),
    ] {
        scene.must(&["mount", "disk.img", "mnt", "-o", served]);
        let ended = remount(options);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(
            ended.status.success(),
            is_done,
            "{served} {options}: {said}"
        );
        assert!(
            is_done || said.contains("mount it again"),
            "{served} {options}: {said}"
        );
        scene.must(&["umount", "mnt"]);
    }
}

#[test]
fn a_helper_that_is_no_link_of_ours_is_left_alone() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("root/sbin")).expect("mkdir");
    fs::write(scene.path("root/sbin/mount.fuse.tureen"), b"other").expect("write");
    scene.fails(&["install", "--prefix", "root"], 1, "not a link");
    fs::remove_file(scene.path("root/sbin/mount.fuse.tureen")).expect("rm");
    symlink("/old/tureen", scene.path("root/sbin/mount.fuse.tureen")).expect("symlink");
    scene.must(&["install", "--prefix", "root"]);
}

#[test]
fn fsck_ends_with_the_codes_of_fsck() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    // As e2fsck takes them, and people type them.
    let several = [&["-fn"][..], &["-fy"], &["-f", "-p"], &["-a", "-y"]];
    for flags in [&["-n"][..], &["-y"], &["-p"], &["-a"], &["-f"], &[]]
        .into_iter()
        .chain(several)
    {
        let args: Vec<&str> = ["fsck"]
            .iter()
            .chain(flags)
            .chain(&["disk.img"])
            .copied()
            .collect();
        scene.must(&args);
    }
    scene.fails(&["fsck", "absent.img"], 8, "no such image");
    scene.fails(&["fsck"], 16, "IMAGE");
    scene.fails(&["fsck", "--colour", "disk.img"], 16, "--colour");
    scene.fails(&["fsck", "-n", "-y", "disk.img"], 16, "one of them");
    fs::write(scene.path("text.img"), vec![b'x'; 1 << 20]).expect("write");
    scene.fails(&["fsck", "text.img"], 8, "not a Tureen image");
}

#[test]
fn damage_is_reported_then_repaired_then_gone() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    let image = fs::OpenOptions::new()
        .write(true)
        .open(scene.path("disk.img"))
        .expect("open");
    image
        .write_all_at(&[0xFF; 4096], 0)
        .expect("overwrite the superblock");
    let check = |flags: &[&str]| {
        let output = scene.run(&[&["fsck", "--json", "disk.img"], flags].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (
            output.status.code(),
            report["outcome"].as_str().map(str::to_owned),
        )
    };
    assert_eq!(check(&["-n"]), (Some(4), Some("errors left".into())));
    assert_eq!(check(&["-y"]), (Some(1), Some("repaired".into())));
    assert_eq!(check(&["-n"]), (Some(0), Some("clean".into())));
}

#[test]
fn messages_of_the_background_go_to_the_log() {
    let scene = Scene::new();
    scene.must(&[
        "mount",
        "disk.img",
        "mnt",
        "--create",
        "64M",
        "-o",
        "log=messages",
    ]);
    let user = fs::File::create(scene.path("mnt/open")).expect("create");
    let pid = i32::try_from(scene.status()["pid"].as_i64().expect("a number")).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
    wait_until("the log tells that it is in use", || {
        fs::read_to_string(scene.path("messages")).is_ok_and(|log| log.contains("in use"))
    });
    drop(user);
    wait_until("unmounted", || !scene.is_mounted());
}

#[test]
fn an_image_in_use_elsewhere_is_waited_for_and_that_is_said() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    let holder = fs::File::open(scene.path("disk.img")).expect("open");
    holder.lock().expect("lock");
    let mut fsck = Command::new(TUREEN)
        .args(["fsck", "disk.img"])
        .current_dir(scene.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = String::new();
    let stderr = fsck.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut said).expect("a line");
    assert!(
        said.contains("in use by") && said.contains("waiting"),
        "{said}"
    );
    drop(holder);
    let ended = fsck.wait().expect("it ends");
    assert!(ended.success(), "{ended:?}");
}

#[test]
fn a_page_that_cannot_be_written_is_told_before_anything_is_measured() {
    let scene = Scene::new();
    for option in ["--html", "--report"] {
        let args = ["bench", "names", "--scratch", ".", option, "no/such/file"];
        scene.fails(&args, 1, "no/such/file: No such file");
        assert!(scene.run(&args).stdout.is_empty(), "it has measured");
    }
    scene.fails(&["bench", "--threads", "65535"], 2, "1..=1024");
}

/// A descriptor that nobody reads from the other end of.
fn unread() -> std::io::PipeWriter {
    std::io::pipe().expect("a pipe").1
}

#[test]
fn a_reader_that_has_seen_enough_changes_nothing_else() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    for (args, code) in [
        (&["fsck", "-n", "disk.img"][..], 0),
        (&["fsck", "-n", "--json", "disk.img"], 0),
        (&["stat", "disk.img"], 0),
        (&["stat", "--json", "disk.img"], 0),
        (&["mkfs", "--force", "disk.img"], 0),
        (&["install", "--prefix", "root"], 0),
        (&["explore", "--list"], 0),
        (&["fsck", "absent.img"], 8),
    ] {
        let mut command = Command::new(TUREEN);
        command.args(args).current_dir(scene.path(""));
        let ended = command.stdout(unread()).stderr(unread()).status();
        assert_eq!(ended.expect("it runs").code(), Some(code), "{args:?}");
    }
    for name in ["mount.fuse.tureen", "umount.fuse.tureen"] {
        fs::read_link(scene.path("root/sbin").join(name)).expect("all of the work was done");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    for (args, code) in [(&["stat", "disk.img"], 1), (&["fsck", "disk.img"], 8)] {
        let full = fs::File::options().write(true).open("/dev/full");
        let mut command = Command::new(TUREEN);
        command.args(args).current_dir(scene.path(""));
        let ended = command.stdout(full.expect("open")).output();
        let ended = ended.expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains("No space left"), "{args:?}: {said}");
    }
}

#[test]
fn an_image_whose_path_is_no_text_can_be_used_but_for_mounting() {
    let scene = Scene::new();
    let image = std::ffi::OsStr::from_bytes(b"disk\xff.img");
    let run = |before: &[&str], after: &[&str]| {
        let mut command = Command::new(TUREEN);
        command.args(before).arg(image).args(after);
        let ended = command.current_dir(scene.path("")).output();
        let ended = ended.expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code(), said)
    };
    let refused = |(code, said): (Option<i32>, String)| {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("not UTF-8"), "{said}");
        assert!(!scene.is_mounted());
    };
    refused(run(&["mount", "--create", "64M"], &["mnt"]));
    refused(run(&["mount", "--create", "64M"], &["new"]));
    assert!(!scene.path("new").exists() && !scene.path("").join(image).exists());
    let (code, said) = run(&["mkfs", "--json", "--size", "64M"], &[]);
    assert_eq!(code, Some(0), "{said}");
    refused(run(&["mount"], &["mnt"]));
    for command in ["fsck", "stat"] {
        let (code, said) = run(&[command], &["--json"]);
        assert_eq!(code, Some(0), "{command}: {said}");
    }
}

#[test]
fn the_log_is_where_it_was_said_to_be() {
    let outer = Scene::new();
    fs::create_dir(outer.path("a,b")).expect("mkdir");
    let scene = Scene::below(&outer.path("a,b"));
    for (options, log) in [("log=first", "first"), ("ro, log=second", "second")] {
        scene.must(&["mount", "disk.img", "mnt", "--create", "64M", "-o", options]);
        let path = scene.path(log);
        assert!(path.exists(), "{options}");
        assert_eq!(scene.status()["log"], path.to_str().expect("text"));
        scene.must(&["umount", "mnt"]);
    }
}

//! What does not fit: full images, full host disks, long names, deep trees.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::scene::Scene;

fn full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

#[test]
fn a_full_image_says_so_keeps_what_it_has_and_can_be_emptied() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "16M"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    for _ in 0..3 {
        let mut files = 0;
        let block = [7; 64 << 10];
        let error = loop {
            let path = scene.path(&format!("mnt/{files}"));
            match File::create(path).and_then(|mut file| file.write_all(&block)) {
                Ok(()) => files += 1,
                Err(error) => break error,
            }
        };
        assert!(full(&error), "{error}");
        assert!(files > 150, "{files} files of 64 KiB in 16 MiB");
        let error = (0..).find_map(|i| fs::create_dir(scene.path(&format!("mnt/d{i}"))).err());
        assert!(full(&error.expect("an error")));
        for i in 0..files {
            let found = fs::read(scene.path(&format!("mnt/{i}"))).expect("read");
            assert!(found == block, "{i}");
        }
        // Removing needs no space, and what is removed can be used at once.
        for entry in fs::read_dir(scene.path("mnt")).expect("list").flatten() {
            match entry.file_type().expect("a type").is_dir() {
                true => fs::remove_dir(entry.path()).expect("rmdir"),
                false => fs::remove_file(entry.path()).expect("unlink"),
            }
        }
    }
    fs::write(scene.path("mnt/last"), vec![1; 8 << 20]).expect("there is space again");
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

/// Files of 64 KiB that use up all space, and how many.
fn fill(scene: &Scene) -> usize {
    let reserve = |i: &usize| {
        let file = File::create(scene.path(&format!("mnt/{i}"))).ok()?;
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, 64 << 10).ok()
    };
    (0..).take_while(|i| reserve(i).is_some()).count()
}

#[test]
fn what_the_page_cache_holds_is_written_as_a_whole_or_fsync_says_so() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "16M"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", "writeback"]);
    let files = fill(&scene);
    assert!(files > 150, "{files} files of 64 KiB in 16 MiB");
    let contents = vec![0xab; 512 << 10];
    let write = |name: &str| {
        let mut file = File::create(scene.path(name))?;
        file.write_all(&contents)?;
        file.sync_all()
    };
    let remove = |files: std::ops::Range<usize>| {
        for i in files {
            fs::remove_file(scene.path(&format!("mnt/{i}"))).expect("unlink");
        }
    };
    // Some fits, not all.
    remove(0..4);
    let error = write("mnt/too much").expect_err("256 KiB are free");
    assert!(full(&error), "{error}");
    fs::remove_file(scene.path("mnt/too much")).expect("unlink");
    // All fits, once what was removed is persisted.
    remove(4..16);
    write("mnt/enough").expect("1 MiB is free");
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    assert!(fs::read(scene.path("mnt/enough")).expect("read") == contents);
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

/// A host file system of this size in `host`; unmounted again when `run` has returned.
fn on_a_small_host(size: &CStr, run: impl FnOnce(&Scene)) {
    testing::needs_root!(); // to mount one
    let scene = Scene::new();
    let host = scene.path("host");
    fs::create_dir(&host).expect("mkdir");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &host, "tmpfs", flags, Some(size)).expect("a tmpfs");
    run(&scene);
    rustix::mount::unmount(&host, rustix::mount::UnmountFlags::DETACH).expect("umount");
}

#[test]
fn a_full_host_disk_is_an_error_before_anything_is_promised() {
    on_a_small_host(c"size=24M", |scene| {
        scene.fails(&["mkfs", "host/disk.img", "--size", "64M"], 1, "space");
        assert!(
            !scene.path("host/disk.img").exists(),
            "half an image is left behind"
        );
        scene.must(&["mkfs", "host/disk.img", "--size", "64M", "--sparse"]);
        let mounted = scene.run(&["mount", "host/disk.img", "mnt"]);
        if mounted.status.success() {
            // A sparse image on purpose: then the error may come as late as the write, but as an
            // error.
            let error = (0..64).find_map(|i| {
                let file = File::create(scene.path(&format!("mnt/{i}")));
                file.and_then(|mut file| file.write_all(&vec![1; 1 << 20]))
                    .err()
            });
            assert!(full(&error.expect("64 MiB do not fit into 24")));
            let why = &scene.status()["file_system"]["host_full"];
            assert!(
                why.as_str().is_some_and(|why| why.contains("host")),
                "{why}"
            );
            fs::metadata(scene.path("mnt")).expect("the mount is alive");
            assert_eq!(
                fs::read(scene.path("mnt/0")).expect("read"),
                vec![1; 1 << 20]
            );
            // The host has room again: then so has the file system, all that it should have.
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount_remount(scene.path("host"), flags, "size=128M")
                .expect("a larger tmpfs");
            let error = (64..)
                .find_map(|i| fs::write(scene.path(&format!("mnt/{i}")), vec![1; 1 << 20]).err());
            assert!(full(&error.expect("it is full at last")));
            let files = fs::read_dir(scene.path("mnt")).expect("list").count();
            assert!(files > 54, "{files} MiB in an image of 64");
            scene.must(&["umount", "mnt"]);
            scene.must(&["fsck", "-n", "host/disk.img"]);
        } else {
            let said = String::from_utf8_lossy(&mounted.stderr);
            assert!(said.contains("space"), "{said}");
        }
    });
}

#[test]
fn what_is_removed_on_a_full_host_is_space_for_more() {
    on_a_small_host(c"size=200M", |scene| {
        scene.must(&["mkfs", "host/disk.img", "--size", "1G", "--sparse"]);
        scene.must(&["mount", "host/disk.img", "mnt"]);
        let fill = || {
            let write = |i: &i32| fs::write(scene.path(&format!("mnt/{i}")), vec![1; 1 << 20]);
            let (files, error) = (0..)
                .find_map(|i| write(&i).err().map(|error| (i, error)))
                .expect("it is full at last");
            assert!(full(&error), "{error}");
            files
        };
        // The first files lie in the first 128 MiB, what came last in those behind.
        let first = fill();
        assert!(first > 140, "{first} MiB on a host of 200");
        for i in 0..=first {
            fs::remove_file(scene.path(&format!("mnt/{i}"))).expect("unlink");
        }
        let again = fill();
        assert!(again + 4 > first, "{again} MiB after {first} were removed");
        scene.must(&["umount", "mnt"]);
        scene.must(&["fsck", "-n", "host/disk.img"]);
    });
}

#[test]
fn a_copy_with_holes_on_a_full_host_refuses_what_it_has_no_blocks_for() {
    on_a_small_host(c"size=96M", |scene| {
        scene.must(&["mkfs", "host/disk.img", "--size", "32M"]);
        scene.must(&["mount", "host/disk.img", "mnt"]);
        let reserved = File::create(scene.path("mnt/reserved")).expect("create");
        let keep = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&reserved, keep, 0, 4 << 20).expect("fallocate");
        drop(reserved);
        fs::write(scene.path("mnt/zeros"), vec![0; 4 << 20]).expect("write");
        scene.must(&["umount", "mnt"]);
        let copy = std::process::Command::new("cp")
            .args(["--sparse=always", "host/disk.img", "host/copy.img"])
            .current_dir(scene.path(""))
            .status();
        assert!(copy.expect("cp").success());
        fs::remove_file(scene.path("host/disk.img")).expect("remove");

        scene.must(&["mount", "host/copy.img", "mnt"]);
        let filler = scene.path("host/filler");
        let error = fs::write(&filler, vec![1; 128 << 20]).expect_err("128 MiB do not fit into 96");
        assert!(full(&error), "{error}");
        let write = |name: &str| -> io::Result<()> {
            let mut file = File::options().write(true).open(scene.path(name))?;
            file.write_all(&vec![1; 4 << 20])
        };
        for name in ["mnt/reserved", "mnt/zeros"] {
            let error = write(name).expect_err("there are no blocks");
            assert!(full(&error), "{name}: {error}");
        }
        fs::remove_file(&filler).expect("remove");
        for name in ["mnt/reserved", "mnt/zeros"] {
            write(name).expect("there are blocks again");
        }
        scene.must(&["umount", "mnt"]);
        scene.must(&["fsck", "-n", "host/copy.img"]);
    });
}

#[test]
fn names_have_255_bytes_and_no_more() {
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "16M"]);
    for len in [1, 47, 48, 63, 64, 254, 255] {
        for letter in ["x", "y"] {
            let path = scene.path("mnt").join(letter.repeat(len));
            fs::write(&path, format!("{letter}{len}")).expect("create");
        }
    }
    let long = scene.path("mnt").join("x".repeat(256));
    let errno = |error: io::Error| {
        error
            .raw_os_error()
            .and_then(|e| Errno::from_raw_os_error(e).into())
    };
    let too_long = Some(Errno::NAMETOOLONG);
    assert_eq!(errno(File::create(&long).expect_err("create")), too_long);
    assert_eq!(errno(fs::create_dir(&long).expect_err("mkdir")), too_long);
    assert_eq!(errno(fs::metadata(&long).expect_err("stat")), too_long);
    let target = "t".repeat(4095);
    std::os::unix::fs::symlink(&target, scene.path("mnt/link")).expect("symlink");
    scene.must(&["umount", "mnt"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    let read = fs::read_to_string(scene.path("mnt").join("y".repeat(255)));
    assert_eq!(read.expect("read"), "y255");
    let read = fs::read_link(scene.path("mnt/link")).expect("readlink");
    assert_eq!(read.as_os_str(), target.as_str());
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

/// Not for the processes that other tests start meanwhile: these would keep the mount busy.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// Opens a directory by its name in another; its path would be too long.
fn down(dir: &OwnedFd) -> OwnedFd {
    rustix::fs::openat(dir, "d", DIRECTORY, Mode::empty()).expect("open")
}

#[test]
fn a_tree_of_ten_thousand_levels_is_made_walked_checked_moved_and_removed() {
    const LEVELS: usize = 10_000;
    let scene = Scene::new();
    scene.must(&["mount", "disk.img", "mnt", "--create", "64M"]);
    let root = || rustix::fs::open(scene.path("mnt"), DIRECTORY, Mode::empty()).expect("open");
    let mut dir = root();
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).expect("mkdir");
        dir = down(&dir);
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(&dir, "end", flags, Mode::RUSR | Mode::WUSR).expect("create");
    rustix::fs::fsync(&dir).expect("fsync");
    drop(dir);
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
    scene.must(&["mount", "disk.img", "mnt"]);
    let long = scene.path("mnt").join("d/".repeat(LEVELS));
    let error = fs::metadata(long).expect_err("longer than PATH_MAX");
    assert_eq!(
        error.raw_os_error(),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
    let mut dirs = vec![root()];
    // Not all at once: there is a limit of open files.
    let mut dir = down(&dirs[0]);
    for _ in 1..LEVELS {
        dir = down(&dir);
    }
    rustix::fs::accessat(&dir, "end", rustix::fs::Access::EXISTS, AtFlags::empty()).expect("end");
    // A directory does not go below itself, however far down.
    let moved = rustix::fs::renameat(&dirs[0], "d", &dir, "d");
    assert_eq!(moved, Err(Errno::INVAL));
    rustix::fs::mkdirat(&dirs[0], "to", Mode::RWXU).expect("mkdir");
    rustix::fs::renameat(&dirs[0], "d", &dirs[0], "to/d").expect("rename");
    rustix::fs::unlinkat(&dir, "end", AtFlags::empty()).expect("unlink");
    for _ in 0..LEVELS {
        let up = rustix::fs::openat(&dir, "..", DIRECTORY, Mode::empty()).expect("up");
        rustix::fs::unlinkat(&up, "d", AtFlags::REMOVEDIR).expect("rmdir");
        dir = up;
    }
    dirs.clear();
    drop(dir);
    fs::remove_dir(scene.path("mnt/to")).expect("rmdir");
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}

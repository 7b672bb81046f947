//! Large images: what a mount behind a crash costs, and a check. With few files, and 64 GiB, unless
//! `TUREEN_FILES` says how many: then the image has 1 TiB. Measured so:
//!
//! ```sh
//! TMPDIR=/dev/shm TUREEN_FILES=1000000 \
//!     cargo test --release -p ffs --test large -- --nocapture --test-threads=1
//! ```

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Image, TIME, format_options, mount_options};
use ffs::check::{Report, check};
use ffs::{Ffs, Mode, Node, format};
use vfs::{FileSystem, ManualClock, NewKind, NewNode};

const GIB: u64 = 1 << 30;
/// Names in a directory.
const IN_DIR: u64 = 500;
/// Bytes of blocks that a mount keeps in DRAM.
const CACHE_BYTES: usize = 64 << 20;

/// How many files there are.
fn files() -> u64 {
    wanted().unwrap_or(2_000)
}

/// How many were asked for.
fn wanted() -> Option<u64> {
    let number = std::env::var("TUREEN_FILES").ok();
    number.map(|text| text.parse().expect("a number"))
}

fn mounted(image: &Image, mode: Mode) -> Ffs {
    let options = ffs::MountOptions {
        cache_bytes: CACHE_BYTES,
        ..mount_options(false, mode)
    };
    let clock = Arc::new(ManualClock::new(TIME));
    Ffs::mount(image.disk(), clock, options).expect("it mounts")
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// Makes so many files of one block each.
fn fill(fs: &Ffs, files: u64) {
    let mut dir = fs.root();
    for number in 0..files {
        if number % IN_DIR == 0 {
            let name = format!("d{number}");
            let made = fs.create(&fs.root(), name.as_bytes(), &new(NewKind::Dir));
            dir = made.expect("a directory");
        }
        let name = format!("a file with the number {number}");
        let made = fs.create(&dir, name.as_bytes(), &new(NewKind::File));
        fs.write(&made.expect("a file"), 0, &[1; 100])
            .expect("written");
    }
}

/// A new file system of this length, in a sparse file.
fn formatted(len: u64) -> Image {
    let image = Image::new(len);
    format(&image.disk(), &format_options()).expect("formatted");
    image
}

fn checked(image: &Image) -> (Report, Duration) {
    let disk = image.disk();
    let start = Instant::now();
    let report = check(&disk, false, TIME, &|_, _, _| ()).expect("it can be checked");
    (report, start.elapsed())
}

/// Files of one block each, beside e2fsck.
#[test]
fn a_check_of_many_files_says_the_same_as_e2fsck() {
    needs_e2fsprogs!();
    let files = files();
    let image = formatted((files * 17_000).max(GIB));
    let fs = mounted(&image, Mode::Async);
    fill(&fs, files);
    fs.unmount().expect("unmounted");
    drop(fs);
    let all = files + files.div_ceil(IN_DIR) + 2;
    for _ in 0..3 {
        let (report, ours) = checked(&image);
        assert_eq!((report.exit_code(), report.inodes), (0, all), "{report}");
        let start = Instant::now();
        image.assert_clean();
        let theirs = start.elapsed();
        println!("{files} files: check {ours:?}, e2fsck -fn {theirs:?}");
    }
}

/// Files that are in use and have no name any more, which they had in this directory.
fn nameless(fs: &Ffs, dir: &Node) -> Vec<Node> {
    let names: Vec<_> = (0..100).map(|i| format!("nameless {i}")).collect();
    let open = names.iter().map(|name| {
        let made = fs.create(dir, name.as_bytes(), &new(NewKind::File));
        let file = made.expect("a file");
        fs.write(&file, 0, &[2; 100_000]).expect("written");
        file
    });
    let open = open.collect();
    for name in names {
        let removed = fs.unlink(dir, name.as_bytes(), &|_| Ok(()));
        removed.expect("removed");
    }
    open
}

/// All that a mount reads are the superblock, the descriptors and the root. What was lost is found
/// while it is in use.
#[test]
fn a_large_image_is_mounted_at_once_behind_a_crash() {
    let (files, gib) = (files(), wanted().map_or(64, |_| 1024));
    let image = formatted(gib * GIB);
    let fs = mounted(&image, Mode::Soft);
    fill(&fs, files);
    let dir = fs.create(&fs.root(), b"open", &new(NewKind::Dir));
    let dir = dir.expect("a directory");
    // It gets as long as it is going to be.
    drop(nameless(&fs, &dir));
    fs.syncfs().expect("synced");
    let free = (fs.statfs().free, fs.status().inodes_free);
    let open = nameless(&fs, &dir);
    fs.syncfs().expect("synced");
    drop((open, dir, fs));
    let disk = image.disk();
    let options = ffs::MountOptions {
        cache_bytes: CACHE_BYTES,
        ..mount_options(false, Mode::Soft)
    };
    let clock = Arc::new(ManualClock::new(TIME));
    let (start, before) = (Instant::now(), disk.stats());
    let fs = Ffs::mount(disk.clone(), clock, options).expect("it mounts");
    let (took, after) = (start.elapsed(), disk.stats());
    let reads = after.reads - before.reads;
    let bytes = after.bytes_read - before.bytes_read;
    println!("{files} files in {gib} GiB: mounted in {took:?}, {reads} reads of {bytes} bytes");
    assert!(fs.is_reclaiming());
    // A block of descriptors has those of 16 GiB, and one of the root at least 50 names.
    let most = 15 + gib / 16 + files / IN_DIR / 50;
    assert!(reads < most, "{reads} reads, not below {most}");
    let dir = fs.lookup(&fs.root(), b"open").expect("there");
    fs.create(&dir, b"at once", &new(NewKind::File))
        .expect("made");
    let start = Instant::now();
    let mut steps = 1;
    while fs.reclaim_step().expect("nothing is damaged") {
        steps += 1;
    }
    println!("all was found in {:?}, {steps} steps", start.elapsed());
    assert_eq!((fs.statfs().free, fs.status().inodes_free + 1), free);
    fs.unmount().expect("unmounted");
    drop((dir, fs, disk));
    let (report, took) = checked(&image);
    println!("checked in {took:?}");
    assert_eq!(report.exit_code(), 0, "{report}");
}

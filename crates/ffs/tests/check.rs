//! The check, beside e2fsck: images that are sound, images that debugfs damaged, and what is left
//! of a mount that was never ended.

#[path = "check/bytes.rs"]
mod bytes;
mod common;
#[path = "check/index.rs"]
mod index;

use std::path::Path;
use std::sync::Arc;

use block::{Buffer, Disk, Memory, Random};
use bytes::Bytes;
use common::{Image, format_options};
use ffs::check::{Problem, Report, check};
use ffs::format;
use vfs::{FileSystem, ManualClock, NewKind, NewNode};

fn checked(disk: &Disk, repair: bool) -> Report {
    check(disk, repair, common::TIME, &|_, _, _| {}).expect("it can be checked")
}

fn problems(report: &Report) -> Vec<Problem> {
    let mut problems: Vec<_> = report.findings.iter().map(|f| f.problem).collect();
    problems.dedup();
    problems
}

/// An image with a tree in it.
fn populated(kind: &[&str]) -> Image {
    let source = tempfile::tempdir().expect("a folder");
    let at = |name: &str| source.path().join(name);
    std::fs::create_dir(at("dir")).expect("made");
    std::fs::write(at("dir/file"), vec![1; 300_000]).expect("written");
    std::fs::write(at("empty"), b"").expect("written");
    for i in 0..200 {
        std::fs::write(
            at(&format!("dir/{}{i}", "n".repeat(i % 50))),
            vec![2; i * 9],
        )
        .expect("written");
    }
    let from = source.path().to_str().expect("a path");
    Image::mke2fs(8 << 20, &[kind, &["-d", from]].concat())
}

const KINDS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "1024", "-I", "256", "-J", "size=1"],
    &["-t", "ext2", "-b", "4096", "-O", "^filetype,^resize_inode"],
];

#[test]
fn what_is_sound_is_left_alone() {
    needs_e2fsprogs!();
    for kind in KINDS {
        let image = populated(kind);
        let before = common::read(&image.path);
        let report = checked(&image.disk(), false);
        assert_eq!(
            (report.exit_code(), report.was_clean),
            (0, true),
            "{report}"
        );
        assert!(report.inodes > 200 && report.directories >= 3, "{report}");
        assert!(before == common::read(&image.path), "it was only looked at");
        assert_eq!(checked(&image.disk(), true).exit_code(), 0);
        image.assert_clean();
    }
    for journal in [false, true] {
        let image = Image::new(16 << 20);
        let options = ffs::FormatOptions {
            journal,
            ..format_options()
        };
        format(&image.disk(), &options).expect("formatted");
        assert_eq!(checked(&image.disk(), false).exit_code(), 0);
    }
}

/// What debugfs does to an image, and what is then wrong.
const DAMAGE: &[(&str, &[Problem])] = &[
    ("setb 5000 3", &[Problem::BlockBitmap]),
    ("seti <500>", &[Problem::InodeBitmap]),
    ("freei dir/file", &[Problem::InodeBitmap]),
    ("sif dir/file links_count 5", &[Problem::LinkCount]),
    ("sif dir links_count 9", &[Problem::LinkCount]),
    ("ln dir/file again", &[Problem::LinkCount]),
    (
        "sif dir/file block[IND] 0",
        &[Problem::BlockCount, Problem::BlockBitmap],
    ),
    ("sif dir/file blocks 9", &[Problem::BlockCount]),
    ("sif dir/file dtime 20200101", &[Problem::RemovalTime]),
    ("sif dir/file size 100", &[Problem::Size]),
    ("unlink empty", &[Problem::Orphan]),
    ("sif empty mode 010644", &[Problem::Damage]),
    ("clri empty", &[Problem::DeadEntry, Problem::InodeBitmap]),
    ("ssv free_blocks_count 3", &[Problem::FreeCounts]),
    ("set_bg 0 free_inodes_count 3", &[Problem::GroupCounts]),
    ("unlink dir/file", &[Problem::Nameless]),
    ("unlink dir", &[Problem::Nameless]),
    ("ln dir twice", &[Problem::Damage]),
    ("sif dir/file block[2] 4000000", &[Problem::Damage]),
    ("sif dir block[0] 0", &[Problem::Damage]),
    ("clri <2>", &[Problem::Damage]),
];

fn debug(path: &Path, command: &str) {
    let path = path.to_str().expect("a path");
    common::run("debugfs", ["-w", "-R", command, path]);
}

#[test]
fn damage_is_found_and_repaired_as_e2fsck_does() {
    needs_e2fsprogs!();
    let mut wrong = Vec::new();
    for kind in &KINDS[..2] {
        let image = populated(kind);
        let sound = common::read(&image.path);
        for (command, expected) in DAMAGE {
            std::fs::write(&image.path, &sound).expect("written");
            debug(&image.path, command);
            let damaged = common::read(&image.path);
            let report = checked(&image.disk(), false);
            let found = problems(&report);
            if report.exit_code() != 4 || !expected.iter().all(|p| found.contains(p)) {
                wrong.push(format!("{command}: {report}"));
                continue;
            }
            assert!(
                damaged == common::read(&image.path),
                "it was only looked at"
            );
            let repaired = checked(&image.disk(), true).exit_code();
            if repaired == 1 {
                let again = checked(&image.disk(), false);
                let judged = common::e2fsck(&image.path, "-fn");
                if again.exit_code() != 0 || judged.0 != Some(0) {
                    wrong.push(format!("{command}: after repair {again} {}", judged.1));
                }
            } else {
                assert!(damaged == common::read(&image.path), "nothing is repaired");
            }
            std::fs::write(&image.path, &damaged).expect("written");
            let theirs = common::e2fsck(&image.path, "-fp");
            if theirs.0 != Some(repaired.into()) {
                wrong.push(format!(
                    "{command}: {repaired}, e2fsck {theirs:?}: {report}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// It was restored there from the superblock's copy, and cleared as reserved, at once.
#[test]
fn a_journal_in_a_reserved_inode_is_damage() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(8 << 20, &["-t", "ext3"]);
    debug(&image.path, "ssv journal_inum 3");
    let report = checked(&image.disk(), true);
    assert_eq!(report.exit_code(), 4, "{report}");
    assert!(report.to_string().contains("not in a file"), "{report}");
}

#[test]
fn a_name_that_is_twice_in_a_directory_is_damage_in_whichever_of_its_blocks() {
    needs_e2fsprogs!();
    for first in ["empty", "dir/nnnn4"] {
        let image = populated(KINDS[0]);
        let (other, name) = (
            format!("{first}+"),
            first.rsplit('/').next().expect("a name"),
        );
        debug(&image.path, &format!("ln empty {other}"));
        debug(&image.path, "sif empty links_count 2");
        let mut bytes = common::read(&image.path);
        let made = format!("{name}+").into_bytes();
        let mut places = bytes.windows(made.len());
        let at = places.position(|there| there == made).expect("an entry");
        // The length of a name is two bytes before it.
        bytes[at - 2] -= 1;
        std::fs::write(&image.path, &bytes).expect("written");
        let report = checked(&image.disk(), true);
        let twice = format!("has '{name}' twice");
        let is_told = |finding: &ffs::check::Finding| finding.detail.ends_with(&twice);
        assert!(report.findings.iter().any(is_told), "{report}");
        assert!(bytes == common::read(&image.path), "it is left");
        if first == "empty" {
            // It compares the names of one block.
            assert_eq!(common::e2fsck(&image.path, "-fp").0, Some(4));
        }
    }
}

/// A mount once left such entries in directories of others: nobody here minds them.
#[test]
fn a_free_entry_with_the_length_of_a_longer_name_is_put_right() {
    needs_e2fsprogs!();
    let image = populated(KINDS[0]);
    let mut bytes = Bytes(common::read(&image.path));
    let root = bytes.pointer(2, 0) * 1024;
    // The last entry reaches to the end of the block.
    let (mut last, mut len) = (0, 0);
    while last + len < 1024 {
        last += len;
        len = bytes.word(root + last + 4) & 0xFFFF;
    }
    let used = 8 + (bytes.word(root + last + 6) & 0xFF).next_multiple_of(4);
    let (free, rest) = (last + used, last + used + 12);
    bytes.put(root + last + 4, &(used as u16).to_le_bytes());
    bytes.put(root + free, &[0, 0, 0, 0, 12, 0, 49, 1]);
    let left = (1024 - rest) as u16;
    let empty = [[0; 4], (u32::from(left)).to_le_bytes()].concat();
    bytes.put(root + rest, &empty);
    std::fs::write(&image.path, &bytes.0).expect("written");
    assert_ne!(common::e2fsck(&image.path, "-fn").0, Some(0));
    let report = checked(&image.disk(), false);
    assert_eq!(problems(&report), [Problem::Field], "{report}");
    assert_eq!(checked(&image.disk(), true).exit_code(), 1);
    assert_eq!(checked(&image.disk(), false).exit_code(), 0);
    image.assert_clean();
}

#[test]
fn a_mount_that_was_not_ended_is_put_right() {
    needs_e2fsprogs!();
    let image = populated(KINDS[0]);
    let clock = Arc::new(ManualClock::new(common::TIME));
    let fs = common::mount_at(image.disk(), false, clock).expect("it is clean");
    let new = |kind| NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    let dir = fs
        .create(&fs.root(), b"new", &new(NewKind::Dir))
        .expect("made");
    for i in 0..50 {
        let name = format!("file{i}");
        let file = fs
            .create(&dir, name.as_bytes(), &new(NewKind::File))
            .expect("made");
        fs.write(&file, 0, &[3; 5000]).expect("written");
    }
    let open = fs.lookup(&dir, b"file7").expect("there");
    fs.unlink(&dir, b"file7", &|_| Ok(())).expect("removed");
    fs.syncfs().expect("synced");
    let into = vec![Buffer::zeroed(fs.disk().len() as usize)];
    let bytes = fs.disk().read(0, into).expect("read")[0].to_vec();
    drop((open, dir, fs));
    std::fs::write(&image.path, bytes).expect("written");
    let report = checked(&image.disk(), true);
    assert_eq!(
        (report.exit_code(), report.was_clean),
        (1, false),
        "{report}"
    );
    image.assert_clean();
    assert_eq!(checked(&image.disk(), false).exit_code(), 0);
}

#[test]
fn what_is_damaged_at_random_is_checked_without_a_panic_and_e2fsck_finds_nothing_behind_it() {
    needs_e2fsprogs!();
    let images: Vec<_> = KINDS
        .iter()
        .map(|kind| common::read(&populated(kind).path))
        .collect();
    for seed in common::seeds(400) {
        let mut random = Random::new(seed);
        let mut bytes = images[random.below(images.len() as u64) as usize].clone();
        let places: Vec<usize> = (1024..400_000).filter(|&at| bytes[at] > 1).collect();
        for _ in 0..=random.below(20) {
            let at = places[random.below(places.len() as u64) as usize];
            bytes[at] = random.number() as u8;
        }
        let survived = std::panic::catch_unwind(|| {
            let device = Arc::new(Memory::from_bytes(bytes));
            let disk = Disk::new(device.clone());
            let check = |repair| check(&disk, repair, common::TIME, &|_, _, _| {});
            if check(true).is_ok_and(|report| report.exit_code() < 4) {
                let again = check(false).expect("it can be checked");
                assert_eq!(again.exit_code(), 0, "{again}");
                let image = Image::new(0);
                std::fs::write(&image.path, device.contents()).expect("written");
                let theirs = common::e2fsck(&image.path, "-fn");
                assert_eq!(theirs.0, Some(0), "{}", theirs.1);
            }
        });
        assert!(survived.is_ok(), "TUREEN_REPLAY={seed}");
    }
}

/// Inodes 12 and 14 have no names, 13 is to end at byte 1500; all three are in the list of orphans.
fn with_orphans(kind: &[&str]) -> Image {
    let image = Image::mke2fs(16 << 20, kind);
    let contents = image.folder.path().join("contents");
    std::fs::write(&contents, vec![7; 40_000]).expect("written");
    let writes = ["a", "b", "c"].map(|name| format!("write {} {name}", contents.display()));
    let rest = [
        "unlink a",
        "unlink c",
        "sif <12> links_count 0",
        "sif <12> dtime @13",
        "sif <13> dtime @14",
        "sif <13> size 1500",
        "sif <14> links_count 0",
        "sif <14> dtime @0",
        "ssv last_orphan 12",
    ];
    let rest = rest.map(str::to_owned);
    for command in writes.iter().chain(&rest) {
        debug(&image.path, command);
    }
    image
}

/// The size of the file that is cut, and what is free.
fn left(image: &Image) -> (u64, u64, u32) {
    image.assert_clean();
    let info = ffs::inspect(&image.disk()).expect("an image");
    let fs = image.mount();
    let file = fs.lookup(&fs.root(), b"b").expect("it has a name");
    (fs.attr(&file).size, info.bytes_free, info.inodes_free)
}

#[test]
fn a_list_of_orphans_is_emptied_as_e2fsck_does() {
    needs_e2fsprogs!();
    for kind in KINDS {
        let image = with_orphans(kind);
        let before = common::read(&image.path);
        let report = checked(&image.disk(), false);
        assert_eq!(problems(&report), [Problem::Orphan], "{report}");
        assert_eq!((report.orphans, report.exit_code()), (3, 4), "{report}");
        assert!(before == common::read(&image.path), "it was only looked at");
        assert_eq!(common::e2fsck(&image.path, "-fn").0, Some(4));
        let report = ffs::check_keeping(&image.disk(), true, common::TIME, &|_, _, _| {});
        let report = report.expect("it can be checked");
        assert_eq!(
            (report.findings.len(), report.exit_code()),
            (3, 1),
            "{report}"
        );
        let ours = left(&image);
        assert_eq!(ours.0, 1500);
        std::fs::write(&image.path, &before).expect("written");
        let theirs = common::e2fsck(&image.path, "-p");
        assert!(matches!(theirs.0, Some(0 | 1)), "{theirs:?}");
        assert_eq!(ours, left(&image));
    }
}

#[test]
fn a_list_of_orphans_is_left_alone_if_there_is_damage() {
    needs_e2fsprogs!();
    let image = with_orphans(KINDS[1]);
    let sound = common::read(&image.path);
    for command in [
        "ssv last_orphan 5",
        "ssv last_orphan 100000",
        "sif <14> dtime @12",
        "sif <13> mode 0",
        "sif <12> block[2] 4000000",
        "clri <2>",
    ] {
        std::fs::write(&image.path, &sound).expect("written");
        debug(&image.path, command);
        let damaged = common::read(&image.path);
        let report = ffs::check_keeping(&image.disk(), true, common::TIME, &|_, _, _| {});
        let report = report.expect("it can be checked");
        assert!(
            problems(&report).contains(&Problem::Damage),
            "{command}: {report}"
        );
        assert!(
            damaged == common::read(&image.path),
            "{command}: it is left"
        );
    }
}

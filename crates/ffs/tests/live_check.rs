//! The check of a file system that is in use: it finds what is wrong and nothing else, and repairs
//! it beside those who change the file system.

mod changes;
mod common;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use block::Random;
use changes::{MOVES, change};
use common::{Image, TIME};
use ffs::check::Problem::{self, *};
use ffs::{Ffs, LiveCheckError, Mode};
use vfs::ManualClock;

const MODES: [Mode; 3] = [Mode::Soft, Mode::Ordered, Mode::Journal];

/// An image with a tree in it, for mounts of a mode.
fn populated(mode: Mode) -> Image {
    let source = tempfile::tempdir().expect("a folder");
    let at = |name: &str| source.path().join(name);
    std::fs::create_dir(at("dir")).expect("made");
    std::fs::write(at("dir/file"), vec![1; 300_000]).expect("written");
    std::fs::write(at("empty"), b"").expect("written");
    let from = source.path().to_str().expect("a path");
    let with = ["-b", "1024", "-I", "256", "-d", from];
    match mode.is_journaled() {
        // The journal is in the second group.
        true => Image::mke2fs(16 << 20, &[&["-J", "size=2"][..], &with].concat()),
        false => Image::mke2fs(8 << 20, &with),
    }
}

fn debug(path: &Path, command: &str) {
    let path = path.to_str().expect("a path");
    common::run("debugfs", ["-w", "-R", command, path]);
}

fn mounted(image: &Image, mode: Mode) -> Ffs {
    let clock = Arc::new(ManualClock::new(TIME));
    common::mount_in(image.disk(), false, clock, mode).expect("it mounts")
}

/// Checks it, with a random change of the file system between any two steps, if there is a source.
fn check_beside(
    fs: &Ffs,
    random: Option<&RefCell<Random>>,
    repair: bool,
) -> Result<ffs::check::Report, LiveCheckError> {
    let step = RefCell::new(0);
    fs.check_live(repair, &|_, _, _| {
        *step.borrow_mut() += 1;
        if let Some(random) = random {
            change(fs, &mut random.borrow_mut(), *step.borrow(), MOVES);
        }
        true
    })
}

/// What debugfs does to an image, and what is then wrong.
const DAMAGE: &[(&str, &[Problem])] = &[
    ("setb 5000 3", &[BlockBitmap]),
    ("seti <500>", &[InodeBitmap]),
    ("sif dir/file links_count 5", &[LinkCount]),
    ("sif dir links_count 9", &[LinkCount]),
    ("ln dir/file again", &[LinkCount]),
    (
        "sif dir/file block[IND] 0",
        &[BlockCount, BlockBitmap, GroupCounts],
    ),
    ("sif dir/file blocks 9", &[BlockCount]),
    ("unlink empty", &[Orphan]),
    ("set_bg 0 free_inodes_count 3", &[GroupCounts]),
    ("set_bg 0 used_dirs_count 9", &[GroupCounts]),
];

#[test]
fn what_is_wrong_is_repaired_while_the_file_system_is_in_use() {
    needs_e2fsprogs!();
    MODES.into_iter().for_each(what_is_wrong_is_repaired);
}

fn what_is_wrong_is_repaired(mode: Mode) {
    let image = populated(mode);
    let sound = common::read(&image.path);
    for (number, (command, expected)) in DAMAGE.iter().enumerate() {
        std::fs::write(&image.path, &sound).expect("written");
        debug(&image.path, command);
        let fs = mounted(&image, mode);
        if number % 2 == 0 {
            fs.create_snapshot("kept", false).expect("made");
        }
        let random = RefCell::new(Random::new(number as u64));
        // Too low a count frees what has names, if somebody removes one of them before the repair.
        let random = (*command != "ln dir/file again").then_some(&random);
        let report = check_beside(&fs, None, false).expect("checked");
        let found: Vec<_> = report.findings.iter().map(|one| one.problem).collect();
        assert_eq!(found, *expected, "{mode:?}, {command}: {report}");
        assert_eq!(report.exit_code(), 4, "{command}");
        let report = check_beside(&fs, random, true).expect("checked");
        assert_eq!(report.findings.len(), expected.len(), "{command}: {report}");
        assert_eq!(report.exit_code(), 1, "{command}");
        let report = check_beside(&fs, random, true).expect("checked");
        assert_eq!(report.exit_code(), 0, "{command}: {report}");
        if number % 2 == 0 {
            fs.delete_snapshot("kept").expect("deleted");
        }
        fs.unmount().expect("unmounted");
        drop(fs);
        image.assert_clean();
    }
}

#[test]
fn damage_is_left_alone_and_asks_for_a_check() {
    needs_e2fsprogs!();
    MODES.into_iter().for_each(damage_is_left_alone);
}

fn damage_is_left_alone(mode: Mode) {
    let commands = [
        "ln dir twice",
        "unlink dir/file",
        "clri empty",
        "sif dir/file size 100",
    ];
    for command in commands {
        let image = populated(mode);
        debug(&image.path, command);
        debug(&image.path, "setb 5000 3");
        let fs = mounted(&image, mode);
        // Who only looks changes nothing.
        let report = fs.check_live(false, &|_, _, _| true).expect("checked");
        assert_eq!(report.exit_code(), 4, "{command}: {report}");
        let asks = |fs: &Ffs| {
            let superblock = ffs::superblock(fs.disk()).expect("read");
            superblock.state.get() & ffs::layout::STATE_ERROR != 0
        };
        assert!(!asks(&fs), "{command}");
        let is_in_place = !mode.is_journaled();
        let report = fs.check_live(true, &|_, _, _| true).expect("checked");
        assert_eq!(report.exit_code(), 4, "{command}: {report}");
        assert_eq!(asks(&fs), is_in_place, "{command}");
        let lost = |report: &ffs::check::Report| {
            let mut findings = report.findings.iter();
            findings.any(|one| one.problem == BlockBitmap)
        };
        assert!(lost(&report), "{command}: {report}");
        fs.unmount().expect("unmounted");
        drop(fs);
        let disk = image.disk();
        let report = ffs::check::check(&disk, false, TIME, &|_, _, _| {}).expect("checked");
        assert!(lost(&report) && !report.was_clean, "{command}: {report}");
    }
}

#[test]
fn what_is_sound_is_called_sound_whatever_is_done_meanwhile() {
    needs_e2fsprogs!();
    let seeds = MODES
        .into_iter()
        .flat_map(|mode| common::seeds(4).map(move |seed| (mode, seed)));
    for (mode, seed) in seeds {
        let image = populated(mode);
        let fs = mounted(&image, mode);
        let random = RefCell::new(Random::new(seed));
        for _ in 0..6 {
            let report = check_beside(&fs, Some(&random), true).expect("checked");
            assert_eq!(
                report.exit_code(),
                0,
                "TUREEN_REPLAY={seed}, {mode:?}: {report}"
            );
        }
        assert!(fs.snapshots().is_empty());
        fs.unmount().expect("unmounted");
        drop(fs);
        image.assert_clean();
    }
}

#[test]
fn it_can_be_ended_and_is_done_once_at_a_time() {
    needs_e2fsprogs!();
    let image = populated(Mode::Soft);
    debug(&image.path, "setb 5000 3");
    let fs = mounted(&image, Mode::Soft);
    let ended = fs.check_live(true, &|stage, _, _| stage != "names");
    assert!(matches!(ended, Err(LiveCheckError::Ended)));
    assert!(fs.snapshots().is_empty());
    let report = fs.check_live(true, &|_, _, _| {
        let other = fs.check_live(false, &|_, _, _| true);
        assert!(matches!(other, Err(LiveCheckError::Busy)));
        true
    });
    assert_eq!(report.expect("checked").exit_code(), 1);
    fs.unmount().expect("unmounted");
    drop(fs);
    image.assert_clean();
    let fs = common::mount(image.disk(), true).expect("it mounts");
    let refused = fs.check_live(false, &|_, _, _| true);
    assert!(matches!(refused, Err(LiveCheckError::Snapshot(_))));
}

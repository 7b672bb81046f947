//! Crashes of file systems that others made: entries of their directories reach from one sector
//! into the next.

use super::*;
use common::{FOREIGN, foreign};

/// Judges states that a crash may leave of what `work` does to an image.
fn judge(made: &Image, (limit, seed): (usize, u64), work: impl FnOnce(&Ffs)) {
    let device = Arc::new(Memory::from_bytes(common::read(&made.path)));
    let recorder = Arc::new(Recorder::new(device));
    let clock = Arc::new(ManualClock::new(TIME));
    let fs = mount_in(Disk::new(recorder.clone()), false, clock, Mode::Soft);
    let fs = fs.expect("it mounts");
    // Else blocks without guards are always written first.
    fs.scatter_waves();
    work(&fs);
    fs.unmount().expect("unmounted");
    let (trace, image) = (recorder.trace(), Image::new(0));
    for point in trace.points() {
        for token in trace.crash(point).states(limit, seed) {
            let bytes = trace.replay(token).expect("a state of it");
            std::fs::write(&image.path, &bytes).expect("written");
            let codes = problems(&image);
            let bad = codes.iter().find(|&&code| !is_harmless(code));
            let what = format!("state {token}: TUREEN_REPLAY={seed}");
            assert_eq!(bad.map(|code| format!("{code:#x}")), None, "{what}");
            let report = check(&memory(bytes.clone()), false, TIME, &|_, _, _| ());
            let mut findings = report.expect("an image").findings.into_iter();
            let index = findings.find(|finding| finding.problem == Problem::Index);
            assert_eq!(index.map(|finding| finding.detail), None, "{what}");
            mended(bytes, &image).unwrap_or_else(|error| panic!("{error}: {what}"));
        }
    }
}

/// The first name of each sector comes out of an entry that reached into it.
#[test]
fn a_directory_of_others_that_is_filled_is_whole_after_a_crash() {
    crate::needs_e2fsprogs!();
    for block_size in ["1024", "4096"] {
        let made = Image::mke2fs(2 << 20, &["-t", "ext2", "-b", block_size]);
        judge(&made, (12, 1), |fs| {
            for number in 0..30 {
                let name = format!("a name of some length {number:2}");
                fs.create(&fs.root(), name.as_bytes(), &FILE).expect("made");
                if number % 3 == 2 {
                    fs.syncfs().expect("synced");
                }
            }
        });
    }
}

/// A new name takes room of the kernel's index, which the disk does not have any more then.
#[test]
fn an_index_of_others_is_gone_before_names_take_its_room() {
    crate::needs_e2fsprogs!();
    let source = tempfile::tempdir().expect("a folder");
    for number in 0..400 {
        let dir = source.path().join(format!("d{}", number % 8));
        std::fs::create_dir_all(&dir).expect("made");
        let name = format!("a name of some length {number:3}");
        std::fs::write(dir.join(name), []).expect("written");
    }
    let from = source.path().to_str().expect("a path");
    let kind = [
        "-t",
        "ext2",
        "-b",
        "1024",
        "-N",
        "512",
        "-O",
        "dir_index",
        "-d",
        from,
    ];
    let made = Image::mke2fs(2 << 20, &kind);
    common::e2fsck(&made.path, "-fyD");
    let path = made.path.to_str().expect("a path");
    let stat = common::run("debugfs", ["-R", "stat d3", path]);
    assert!(stat.contains("Flags: 0x1000"), "it has an index: {stat}");
    judge(&made, (12, 1), |fs| {
        for number in 0..8 {
            let dir = fs.lookup(&fs.root(), format!("d{number}").as_bytes());
            let made = fs.create(&dir.expect("there"), b"another name", &FILE);
            made.expect("made");
        }
    });
}

/// Names come into directories that mke2fs made, and go.
#[test]
fn directories_of_others_are_whole_after_a_crash() {
    crate::needs_e2fsprogs!();
    for seed in common::seeds(3) {
        let kind = FOREIGN[(seed % FOREIGN.len() as u64) as usize];
        judge(&foreign(kind), (3, seed), |fs| {
            let mut random = Random::new(seed);
            for step in 0..25 {
                change(fs, &mut random, step, MOVES);
                if random.one_in(6) {
                    fs.syncfs().expect("synced");
                }
            }
        });
    }
}

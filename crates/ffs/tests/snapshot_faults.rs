//! Bugs injected into what keeps snapshots are found. In a program of its own, as a bug is injected
//! into all of a process.

mod changes;
mod common;
mod kept;

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::sync::Arc;

use block::{Disk, Recorder};
use changes::{DIR, FILE};
use common::{Image, memory, mount};
use ffs::Mode;
use ffs::fault::{Fault, fault};
use kept::MODES;
use schedule::Task;
use vfs::FileSystem;

/// Random runs that are tried.
const SEEDS: u64 = 4;

/// What these runs lead to; the explorer has more.
fn bugs(mode: Mode) -> Vec<Fault> {
    let own: &[Fault] = match mode {
        Mode::Ordered => &[Fault::CopyUnawaited, Fault::EndedEarly],
        // What a transaction has is there with the copies for it.
        Mode::Journal => &[],
        _ => &[
            Fault::PointerBeforeContents,
            Fault::CopyUnawaited,
            Fault::EndedEarly,
            Fault::CheckUnkept,
        ],
    };
    let of_patches = match mode.is_journaled() {
        true => [&Fault::OF_THREADS[..], &Fault::OF_PATCHES].concat(),
        false => Vec::new(),
    };
    [
        &[Fault::CopyForgotten, Fault::ClaimForgotten],
        own,
        &of_patches,
    ]
    .concat()
}

/// Whether what is freed while there is a snapshot is claimed for it, not copied.
fn assert_claimed(mode: Mode) {
    let fs = kept::mounted(kept::formatted(4 << 20, mode), mode);
    let root = fs.root();
    let file = fs.create(&root, b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 50_000]).expect("written");
    fs.create_snapshot("one", false).expect("made");
    drop(file);
    fs.unlink(&root, b"file", &|_| Ok(())).expect("removed");
    fs.syncfs().expect("synced");
    let (counts, _) = fs.snapshot_counts();
    assert!(counts.claimed >= 49, "{counts:?}");
    fs.unmount().expect("unmounted");
}

/// Whether a snapshot that is being made, and then deleted, is one in no state in which it is not
/// whole.
fn assert_whole(mode: Mode) {
    let recorder = Arc::new(Recorder::new(kept::formatted(4 << 20, mode)));
    let fs = kept::mounted_on(Disk::new(recorder.clone()), mode);
    let root = fs.root();
    let file = fs.create(&root, b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 50_000]).expect("written");
    let from = recorder.trace().events.len();
    fs.create_snapshot("one", false).expect("made");
    let before = kept::picture(&fs).expect("sound");
    fs.write(&file, 0, &[2; 50_000]).expect("written");
    fs.delete_snapshot("one").expect("deleted");
    let trace = recorder.trace();
    for point in trace.points().into_iter().filter(|&point| point > from) {
        for token in trace.crash(point).states(20, 1) {
            let bytes = trace.replay(token).expect("a state of it");
            let left = mount(memory(bytes), true).expect("it mounts");
            for one in left.snapshots() {
                let now = kept::picture_of(&left, &one.name);
                kept::assert_same(&before, &now, &format!("state {token}"));
            }
        }
    }
}

/// Whether a snapshot that is made beside changes has what there was before all, or behind all, and
/// still has it when the log was written home.
fn assert_of_one_moment(mode: Mode) {
    for points in 0.. {
        let device = kept::formatted(2 << 20, mode);
        let fs = kept::mounted(device.clone(), mode);
        let root = fs.root();
        // In another block of inodes than the snapshot, and its names in another than that has.
        let dir = fs.create(&root, b"dir", &DIR).expect("made");
        for name in [b"a", b"b", b"c", b"d"] {
            fs.create(&dir, name, &FILE).expect("made");
        }
        let before = kept::picture(&fs).expect("sound");
        let change = || {
            fs.unlink(&dir, b"a", &|_| Ok(())).expect("removed");
        };
        let make = || {
            fs.create_snapshot("one", false).expect("made");
        };
        let ended = schedule::run(vec![Task::stopping(points, make), Task::new(change)]);
        let behind = kept::picture(&fs).expect("sound");
        let made = kept::picture_of(&fs, "one");
        assert!(made == before || made == behind, "{points}");
        fs.unmount().expect("unmounted");
        drop((dir, root, fs));
        let fs = kept::mounted(device, mode);
        kept::assert_same(&made, &kept::picture_of(&fs, "one"), "mounted again");
        if ended[0].stopped.is_none() {
            return;
        }
    }
}

/// What is tried in a mode, in turn: three cases, then random runs.
fn objects(mode: Mode, trial: u64, image: &Image) -> bool {
    let judged = catch_unwind(|| match trial {
        0 => assert_claimed(mode),
        1 => assert_whole(mode),
        2 => assert_of_one_moment(mode),
        _ => drop(kept::judge(trial - 3, mode, image)),
    });
    judged.is_err()
}

/// The first trial that objects to a bug.
fn noticed(mode: Mode, bug: Fault, image: &Image) -> Option<u64> {
    assert!(fault(Some(bug)), "a build with bugs");
    let noticed = (0..3 + SEEDS).find(|&trial| objects(mode, trial, image));
    fault(None);
    noticed
}

/// A random run takes seconds if nothing objects, so without a bug only those are tried that have
/// objected to one: `snapshots.rs` has others.
#[test]
fn faults_of_snapshots_are_found() {
    needs_e2fsprogs!();
    let (mut missed, image) = (Vec::new(), Image::new(0));
    for mode in MODES {
        let mut objected = BTreeSet::new();
        for bug in bugs(mode) {
            match noticed(mode, bug, &image) {
                Some(trial) => drop(objected.insert(trial)),
                None => missed.push((mode, bug)),
            }
        }
        for trial in objected {
            let what = format!("{mode:?}, trial {trial}, without any bug");
            assert!(!objects(mode, trial, &image), "{what}");
        }
    }
    assert!(missed.is_empty(), "nobody notices these: {missed:?}");
}

//! Bugs injected into what keeps snapshots are found. In a program of its own, as a bug is injected
//! into all of a process.

mod changes;
mod common;
mod kept;

use std::panic::catch_unwind;
use std::sync::Arc;

use block::{Disk, Recorder};
use changes::FILE;
use common::{Image, TIME, memory, mount, mount_in};
use ffs::Mode;
use ffs::fault::{Fault, fault};
use vfs::{FileSystem, ManualClock};

/// Random runs that are tried.
const SEEDS: u64 = 4;
/// What these runs lead to; the explorer has more.
const BUGS: [Fault; 6] = [
    Fault::PointerBeforeContents,
    Fault::CopyForgotten,
    Fault::CopyUnawaited,
    Fault::ClaimForgotten,
    Fault::EndedEarly,
    Fault::CheckUnkept,
];

/// Whether what is freed while there is a snapshot is claimed for it, not copied.
fn assert_claimed() {
    let fs = kept::mounted(kept::formatted(4 << 20));
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
fn assert_whole() {
    let recorder = Arc::new(Recorder::new(kept::formatted(4 << 20)));
    let clock = Arc::new(ManualClock::new(TIME));
    let disk = Disk::new(recorder.clone());
    let fs = mount_in(disk, false, clock, Mode::Soft).expect("it mounts");
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

/// Whether some run objects.
fn is_noticed(bug: Option<Fault>) -> bool {
    assert!(fault(bug), "a build with bugs");
    let image = Image::new(0);
    let tried = |seed| {
        let judged = catch_unwind(|| kept::judge(seed, &image));
        judged.is_err()
    };
    let cases = [assert_claimed, assert_whole];
    let noticed = cases.into_iter().any(|case| catch_unwind(case).is_err());
    let noticed = noticed || (0..SEEDS).any(tried);
    fault(None);
    noticed
}

#[test]
fn faults_of_snapshots_are_found() {
    needs_e2fsprogs!();
    assert!(!is_noticed(None), "without any bug");
    let bugs = BUGS.into_iter();
    let missed: Vec<_> = bugs.filter(|&bug| !is_noticed(Some(bug))).collect();
    assert!(missed.is_empty(), "nobody notices these: {missed:?}");
}

//! Flushes of mkfs, and of what the superblock says for the next mount, are noticed when they are
//! left out. In a program of its own, as a bug is injected into all of a process.

mod changes;
mod common;
mod formatted;
mod kept;

use std::panic::catch_unwind;
use std::sync::Arc;

use block::record::Trace;
use block::{Disk, Memory, Recorder};
use changes::FILE;
use common::{Image, TIME, memory, mount_in};
use ffs::fault::{Fault, fault};
use ffs::{Ffs, Mode, check_keeping, inspect, mounts_at_once};
use vfs::{FileSystem, ManualClock};

/// Offset of the number of mounts, and of the state.
const MOUNTS: usize = 1024 + 52;
const STATE: usize = 1024 + 58;
/// The bit of a state that asks for a check.
const ERRORS: u8 = 2;

/// A mount in mode soft, whose writes are recorded.
fn recorded(bytes: Vec<u8>) -> (Ffs, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(Arc::new(Memory::from_bytes(bytes))));
    let clock = Arc::new(ManualClock::new(TIME));
    let fs = mount_in(Disk::new(recorder.clone()), false, clock, Mode::Soft);
    (fs.expect("it mounts"), recorder)
}

/// All states of a crash behind a trace.
fn at_the_end(trace: &Trace) -> Vec<Vec<u8>> {
    let states = trace.crash(trace.events.len()).states(64, 1);
    let replay = |token| trace.replay(token).expect("a state of it");
    states.into_iter().map(replay).collect()
}

fn assert_asks_for_a_check(recorder: &Recorder) {
    for bytes in at_the_end(&recorder.trace()) {
        assert!(bytes[STATE] & ERRORS != 0, "nobody asks for a check");
    }
}

/// What a reclaim finds that no crash leaves is there behind a crash.
fn assert_damage_is_noted() {
    let device = kept::formatted(4 << 20, Mode::Soft);
    let fs = kept::mounted(device.clone(), Mode::Soft);
    fs.create(&fs.root(), b"file", &FILE).expect("made");
    fs.syncfs().expect("synced");
    let mut bytes = device.contents();
    // All bits of blocks are clear.
    let descriptor = &bytes[2048..2052];
    let bitmap = u32::from_le_bytes(descriptor.try_into().expect("four bytes")) as usize;
    bytes[bitmap * 1024..][..256].fill(0);
    let (fs, recorder) = recorded(bytes);
    let ended = std::iter::repeat_with(|| fs.reclaim_step()).find(|step| *step != Ok(true));
    assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    assert_asks_for_a_check(&recorder);
}

/// So is what a live check finds and cannot repair.
fn assert_live_damage_is_noted() {
    let device = kept::formatted(4 << 20, Mode::Soft);
    let fs = kept::mounted(device.clone(), Mode::Soft);
    let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 5000]).expect("written");
    drop(file);
    fs.unmount().expect("unmounted");
    let image = Image::new(0);
    std::fs::write(&image.path, device.contents()).expect("written");
    let path = image.path.to_str().expect("a path");
    common::run("debugfs", ["-w", "-R", "sif file block[1] 999999", path]);
    let (fs, recorder) = recorded(common::read(&image.path));
    let report = fs.check_live(true, &|_, _, _| true).expect("it is checked");
    assert!(!report.repaired && !report.findings.is_empty(), "{report}");
    assert_asks_for_a_check(&recorder);
}

/// Over a snapshot that others may have written over none is found, whenever a crash comes.
fn assert_strangers_are_noticed() {
    let device = kept::formatted(4 << 20, Mode::Soft);
    let fs = kept::mounted(device.clone(), Mode::Soft);
    fs.create_snapshot("long", false).expect("made");
    fs.unmount().expect("unmounted");
    // As a mount by somebody else leaves it: the mount counts.
    let mut bytes = device.contents();
    bytes[MOUNTS] += 1;
    let (_, recorder) = recorded(bytes);
    let trace = recorder.trace();
    let points = trace.points().into_iter();
    for token in points.flat_map(|point| trace.crash(point).states(20, 1)) {
        let disk = memory(trace.replay(token).expect("a state of it"));
        let is_clean = inspect(&disk).expect("an image").clean;
        if !is_clean && !mounts_at_once(&disk).expect("an image") {
            let report = check_keeping(&disk, true, TIME, &|_, _, _| ()).expect("an image");
            assert!(report.exit_code() <= 1, "{token}: {report}");
        }
        let clock = Arc::new(ManualClock::new(TIME));
        let left = mount_in(disk, false, clock, Mode::Soft).expect("it mounts");
        assert!(left.snapshots().is_empty(), "{token}");
    }
}

/// What notices each bug.
const NOTICED: [(Fault, fn()); 6] = [
    (
        Fault::FormatOldUnflushed,
        formatted::assert_each_crash_leaves_one,
    ),
    (
        Fault::FormatUnflushed,
        formatted::assert_each_crash_leaves_one,
    ),
    (
        Fault::FormatEndUnflushed,
        formatted::assert_each_crash_leaves_one,
    ),
    (Fault::DamageUnflushed, assert_damage_is_noted),
    (Fault::LiveDamageUnflushed, assert_live_damage_is_noted),
    (Fault::StrangersFlagged, assert_strangers_are_noticed),
];

#[test]
fn flushes_that_are_left_out_are_noticed() {
    needs_e2fsprogs!();
    for bug in Fault::OF_TESTS {
        let noticed = NOTICED.iter().find(|(of, _)| *of == bug);
        let (_, judge) = noticed.unwrap_or_else(|| panic!("nobody looks for {bug:?}"));
        judge();
        assert!(fault(Some(bug)), "a build with bugs");
        let objection = catch_unwind(judge);
        fault(None);
        assert!(objection.is_err(), "nobody notices {bug:?}");
    }
}

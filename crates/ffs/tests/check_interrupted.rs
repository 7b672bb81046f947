//! A check that a crash cut short, and a mount behind it that serves at once.

mod changes;
mod common;

use std::sync::Arc;

use block::{Disk, Memory, Random, Recorder};
use changes::{MOVES, change};
use common::{TIME, format_options, memory, mount_in};
use ffs::check::check;
use ffs::{Ffs, FormatOptions, Mode, format, mounts_at_once};
use vfs::{FileSystem, ManualClock};

fn mounted(disk: Disk) -> Ffs {
    let clock = Arc::new(ManualClock::new(TIME));
    mount_in(disk, false, clock, Mode::Soft).expect("it mounts")
}

/// A random run on a small file system, with rounds in between.
fn recorded(seed: u64) -> Arc<Recorder> {
    let device = Arc::new(Memory::new(1 << 20));
    let options = FormatOptions {
        block_size: 1024,
        bytes_per_inode: 4096,
        ..format_options()
    };
    format(&Disk::new(device.clone()), &options).expect("formatted");
    let recorder = Arc::new(Recorder::new(device));
    let fs = mounted(Disk::new(recorder.clone()));
    let mut random = Random::new(seed);
    // Behind an exchange the check goes first.
    let moves = &MOVES[..1 + (seed % 2) as usize];
    for step in 0..40 {
        change(&fs, &mut random, step, moves);
        if random.one_in(10) {
            fs.syncfs().expect("synced");
        }
    }
    fs.unmount().expect("unmounted");
    recorder
}

/// Bits were cleared, and counts lowered, in one wave with what they are for: of an inode that was
/// still there without its bit the mount knew nothing, and left it.
#[test]
fn what_a_check_left_half_done_is_found_by_the_mount() {
    let mut served = 0;
    for seed in common::seeds(4) {
        let trace = recorded(seed).trace();
        for point in trace.points() {
            for token in trace.crash(point).states(3, seed) {
                let bytes = trace.replay(token).expect("a state of it");
                let recorder = Arc::new(Recorder::new(memory_of(bytes)));
                let checked = check(&Disk::new(recorder.clone()), true, TIME, &|_, _, _| ());
                checked.expect("an image");
                let repair = recorder.trace();
                for point in repair.points() {
                    for half in repair.crash(point).states(4, seed) {
                        let bytes = repair.replay(half).expect("a state of it");
                        let what = format!("TUREEN_REPLAY={seed}, state {token}, of it {half}");
                        served += u32::from(goes_on(bytes, &what));
                    }
                }
            }
        }
    }
    assert!(served > 100, "{served} served at once");
}

fn memory_of(bytes: Vec<u8>) -> Arc<Memory> {
    Arc::new(Memory::from_bytes(bytes))
}

/// If a state may serve at once: mounts it, finds what was lost, and unmounts it; else a check
/// mends it. Then there is nothing more to be found.
fn goes_on(bytes: Vec<u8>, what: &str) -> bool {
    let device = memory_of(bytes);
    let disk = || Disk::new(device.clone());
    if !mounts_at_once(&disk()).expect("an image") {
        let report = check(&disk(), true, TIME, &|_, _, _| ()).expect("an image");
        assert!(report.exit_code() <= 1, "{what}:\n{report}");
        return false;
    }
    let fs = mounted(disk());
    while fs
        .reclaim_step()
        .unwrap_or_else(|error| panic!("{what}: {error}"))
    {}
    fs.unmount().expect("unmounted");
    drop(fs);
    let report = check(&memory(device.contents()), false, TIME, &|_, _, _| ());
    let report = report.expect("an image");
    assert!(report.findings.is_empty(), "{what}:\n{report}");
    true
}

//! The target `ext2`: a damaged disk on its way through mount, use, check, repair and use again.
//!
//! An input is: a byte that chooses the disk, a byte of switches, the damage, and what the user
//! does.
//!
//! What must hold: nothing panics or hangs; a check that may not repair writes nothing; a repair
//! that needs no decision ends with a disk that the check finds no fault with; that can be mounted,
//! walked without an error, and used, and has no fault afterwards.

mod base;

use std::sync::Arc;

use block::{Disk, Memory};
use ffs::check::Report;
use ffs::{Ffs, Mode, MountError, check_keeping, inspect};
use vfs::FileSystem;

use crate::bytes::Bytes;
use crate::user::{change, walk};
use base::{Base, TIME, bases, clock, damaged, options};

/// In the byte of switches: use the damaged disk before it is repaired.
const USE: u8 = 1;
/// Only look at it, on a mount for reading.
const READ_ONLY: u8 = 2;
/// End without unmounting.
const CRASH: u8 = 4;
/// Check it while it is in use.
const LIVE: u8 = 8;
/// A snapshot is made, and deleted.
const SNAPSHOT: u8 = 16;
/// The mode is the second of two; those of the journal, if there is one and the other bit is set.
const SECOND: u8 = 32;
const JOURNALED: u8 = 64;

/// Most steps of the search for what a crash lost, before others get on.
const STEPS: usize = 3;

/// Runs an input.
///
/// # Panics
/// When something is wrong.
pub fn run(input: &[u8]) {
    let mut input = Bytes::new(input);
    let base = &bases()[input.below(bases().len())];
    let switches = input.byte();
    let device = Arc::new(Memory::from_bytes(damaged(base, &mut input)));
    let _ = inspect(&disk(&device));
    if switches & USE != 0 {
        use_damaged(&device, (base, switches), &mut input);
    }
    if repaired(&device) {
        use_repaired(&device, &mut input);
    }
}

fn disk(device: &Arc<Memory>) -> Disk {
    Disk::new(device.clone())
}

fn mode(base: &Base, switches: u8) -> Mode {
    let is_journaled = base.is_journaled && switches & JOURNALED != 0;
    match (is_journaled, switches & SECOND != 0) {
        (false, false) => Mode::Soft,
        (false, true) => Mode::Async,
        (true, false) => Mode::Ordered,
        (true, true) => Mode::Journal,
    }
}

/// Mounts the damaged disk and uses it.
fn use_damaged(device: &Arc<Memory>, (base, switches): (&Base, u8), input: &mut Bytes<'_>) {
    let options = options(mode(base, switches), switches & READ_ONLY != 0);
    let Ok(fs) = Ffs::mount(disk(device), clock(), options) else {
        return;
    };
    let _ = (0..STEPS).try_for_each(|_| fs.reclaim_step().map(drop));
    let found = walk(&fs);
    if switches & SNAPSHOT != 0 {
        let _ = fs.create_snapshot("new", false);
    }
    change(&fs, &found, input);
    if switches & LIVE != 0 {
        let _ = fs.check_live(true, &|_, _, _| true);
    }
    let _ = fs.syncfs();
    walk(&fs);
    drop(found);
    if switches & SNAPSHOT != 0 {
        let _ = fs.delete_snapshot("new");
    }
    while let Ok(true) = fs.reclaim_step() {}
    if switches & CRASH == 0 {
        let _ = fs.unmount();
    }
}

fn checked(device: &Arc<Memory>, repair: bool) -> Result<Report, MountError> {
    check_keeping(&disk(device), repair, TIME, &|_, _, _| ())
}

/// Checks the disk and repairs it; false: there is no way, or it needs a decision.
fn repaired(device: &Arc<Memory>) -> bool {
    let before = device.contents();
    let dry = checked(device, false).map(|report| report.to_string());
    assert!(
        device.contents() == before,
        "a check without repair changed the disk"
    );
    let Ok(report) = checked(device, true) else {
        return false;
    };
    if report.needs_decision() {
        return false;
    }
    let again = checked(device, false).expect("a checked disk can be checked");
    let is_sound = report.exit_code() < 4 && again.exit_code() == 0 && again.was_clean;
    assert!(is_sound, "not repaired: {dry:?}\n{report}\n{again}");
    true
}

/// Uses a repaired disk, in which nothing is wrong any more.
fn use_repaired(device: &Arc<Memory>, input: &mut Bytes<'_>) {
    let fs = Ffs::mount(disk(device), clock(), options(Mode::Soft, false));
    let fs = fs.expect("a repaired disk can be mounted");
    let found = walk(&fs);
    assert_eq!(found.error, None, "on a repaired disk");
    change(&fs, &found, input);
    drop(found);
    fs.syncfs().expect("a repaired disk can be synced");
    assert_eq!(walk(&fs).error, None, "after changes to a repaired disk");
    fs.unmount().expect("a repaired disk can be unmounted");
    drop(fs);
    let report = checked(device, false).expect("it can be checked");
    let is_sound = report.exit_code() == 0 && report.was_clean;
    assert!(is_sound, "after changes to a repaired disk: {report}");
}

//! The target `image`: a damaged image on its way through mount, use, check, repair and use again.
//!
//! An input is: a byte that chooses the image, a byte of switches, the damage, and what the user
//! does.
//!
//! What must hold: nothing panics or hangs; a check that may not repair stores nothing; a repair
//! ends with an image that the auditor finds no fault with, or says what is left, and only the loss
//! of the root may be, or what no space is left to name again; a repaired image can be mounted,
//! walked without an error, and used, and is exact afterwards.

use std::sync::Arc;

use pmem::Pool;
use soupfs::audit::Problem;
use soupfs::fsck::{CheckError, CheckOptions, Outcome, Report, check};
use soupfs::{MountOptions, SoupFs, inspect};
use vfs::FileSystem;

use crate::base;
use crate::bytes::Bytes;
use crate::damage::damaged;
use crate::user::{change, walk};

/// In the byte of switches: use the damaged image before it is repaired.
const USE: u8 = 1;
/// Only look at it, on a mount for reading.
const READ_ONLY: u8 = 2;
/// End without unmounting.
const CRASH: u8 = 4;
/// With the background threads, the search for leaks among them. They make runs differ, so
/// this takes two bits.
const THREADS: u8 = 8 | 16;

/// Runs an input.
///
/// # Panics
/// When something is wrong.
pub fn run(input: &[u8]) {
    let mut input = Bytes::new(input);
    let base = &base::bases()[input.below(base::bases().len())];
    let switches = input.byte();
    let pool = Arc::new(base::pool(&damaged(base, &mut input)));
    let _ = inspect(&pool);
    let pool = match switches & USE {
        0 => pool,
        _ => used(pool, switches, &mut input),
    };
    if repaired(&pool) {
        use_repaired(pool, &mut input);
    }
}

fn options(switches: u8) -> MountOptions {
    MountOptions {
        read_only: switches & READ_ONLY != 0,
        manual: switches & THREADS != THREADS,
        ..base::options()
    }
}

/// Mounts the damaged image and uses it; what is left of it.
fn used(pool: Arc<Pool>, switches: u8, input: &mut Bytes<'_>) -> Arc<Pool> {
    let Ok(fs) = SoupFs::mount(pool.clone(), options(switches)) else {
        return pool;
    };
    let found = walk(&fs);
    change(&fs, &found, input);
    let _ = fs.syncfs();
    walk(&fs);
    drop(found);
    if switches & CRASH == 0 {
        let _ = fs.unmount();
    }
    // Opened anew: after an error the old one takes no more writes.
    Arc::new(base::pool(&pool.snapshot()))
}

fn checked(pool: &Arc<Pool>, repair: bool) -> Result<Report, CheckError> {
    check(pool, &CheckOptions { repair, threads: 1 }, &|_| ())
}

/// Checks the image and repairs it; false: there is nothing to repair, or no way.
fn repaired(pool: &Arc<Pool>) -> bool {
    let before = pool.snapshot();
    let dry = checked(pool, false);
    assert!(
        pool.snapshot() == before,
        "a check without repair changed the image"
    );
    let report = match checked(pool, true) {
        Ok(report) => report,
        Err(CheckError::Superblock(_) | CheckError::Features(_)) => return false,
        Err(error) => panic!("{error}"),
    };
    let again = checked(pool, false).expect("a checked image can be checked");
    if report.outcome == Outcome::ErrorsLeft {
        assert_eq!(again.outcome, Outcome::ErrorsLeft, "{report}\n{again}");
        let mut left = report.left.iter().map(|finding| finding.problem);
        let needed = left.any(|problem| matches!(problem, Problem::Root | Problem::Lost));
        assert!(needed, "given up without need: {report}");
        return false;
    }
    let exact = again.outcome == Outcome::Clean && again.was_clean && again.left.is_empty();
    assert!(exact, "not repaired: {dry:?}\n{report}\n{again}");
    true
}

/// Uses a repaired image, in which nothing is wrong any more.
fn use_repaired(pool: Arc<Pool>, input: &mut Bytes<'_>) {
    let fs = SoupFs::mount(pool.clone(), options(0)).expect("a repaired image can be mounted");
    let found = walk(&fs);
    assert_eq!(found.error, None, "in a repaired image");
    change(&fs, &found, input);
    drop(found);
    fs.syncfs().expect("a repaired image can be synced");
    assert_eq!(walk(&fs).error, None, "after changes to a repaired image");
    fs.unmount().expect("a repaired image can be unmounted");
    drop(fs);
    let report = checked(&pool, false).expect("it can be checked");
    let exact = report.outcome == Outcome::Clean && report.was_clean && report.left.is_empty();
    assert!(exact, "after changes to a repaired image: {report}");
}

//! The check of a whole image, with what takes more than the check: of a file system with
//! snapshots, what repairs overwrite is copied into them before; a list of orphans is emptied
//! behind repairs.

use std::sync::Arc;

use block::Disk;
use vfs::{ManualClock, Time};

use crate::alloc::Alloc;
use crate::cache::Cache;
use crate::check::{self, Keeper, Progress, Report};
use crate::fault::{Fault, injected};
use crate::geometry::{Geometry, MountError};
use crate::inspect::superblock;
use crate::layout::STATE_VALID;
use crate::mark;
use crate::medium::Medium;
use crate::mount::{free_orphans, names_snapshots, read_root};
use crate::order::{Mode, Order, wave};
use crate::volume::Volume;

/// Bytes of blocks in memory while snapshots get copies.
const CACHE_BYTES: usize = 16 << 20;

/// Checks the image on a disk as [`check::check`], and keeps its snapshots whole: before anything
/// is repaired, they get copies of the blocks that repairs are going to change, and claim those
/// that nothing else has. With `repair`, and if nothing needs a decision, what is in the list of
/// orphans is freed, or cut off, behind that.
///
/// # Errors
/// As there.
pub fn check(
    disk: &Disk,
    repair: bool,
    now: Time,
    progress: Progress<'_>,
) -> Result<Report, MountError> {
    let beside = match repair && !injected(Fault::CheckUnkept) {
        true => Beside::find(disk, now)?,
        false => None,
    };
    let keeper = beside.as_ref().map(|beside| beside as &dyn Keeper);
    let mut report = check::check_beside(disk, repair, keeper, now, progress)?;
    if !repair || report.orphans == 0 || report.needs_decision() {
        return Ok(report);
    }
    // By a mount: it has the transactions, or the order, for that.
    free_orphans(disk, now)?;
    let behind = check::check(disk, true, now, progress)?;
    report.repaired = behind.orphans == 0 && behind.exit_code() <= 1;
    report.findings.extend(behind.findings);
    Ok(Report {
        findings: report.findings,
        repaired: report.repaired,
        was_clean: report.was_clean,
        ..behind
    })
}

/// An image that has snapshots, which are whole behind a crash.
struct Beside {
    disk: Disk,
    now: Time,
    geometry: Geometry,
}

impl Beside {
    /// `None`: it is none, or has none; or that cannot be told, and the check has more to say.
    fn find(disk: &Disk, now: Time) -> Result<Option<Beside>, MountError> {
        let superblock = superblock(disk)?;
        if !mark::is_ours(&superblock) || superblock.state.get() & STATE_VALID != 0 {
            return Ok(None);
        }
        match names_snapshots(disk, &superblock) {
            Ok(Some(true)) => Ok(Some(Beside {
                disk: disk.clone(),
                now,
                geometry: Geometry::new(&superblock, disk.len())?,
            })),
            _ => Ok(None),
        }
    }
}

impl Keeper for Beside {
    /// A crash has lost claims to what was freed. If that were free, copies might be put there: a
    /// snapshot would wait for itself. So what is free is what bits say, which are all set that
    /// have to be (S5).
    fn keep(&self, written: &[u64], mut unused: Vec<u64>) -> Result<(bool, Vec<u64>), MountError> {
        let geometry = self.geometry.clone();
        let cache = Cache::new(self.disk.clone(), geometry.block_size, CACHE_BYTES);
        let medium = Medium::new(geometry, cache, Order::new(Mode::Soft));
        let alloc = Alloc::new(&medium, false)?;
        let clock = Arc::new(ManualClock::new(self.now));
        let volume = Arc::new(Volume::new(medium, alloc, clock, [0; 16], true));
        let root = read_root(&volume)?;
        let found = volume.find_snapshots(&root)?;
        let whole = found.iter().filter(|one| one.1);
        whole.for_each(|one| volume.admit(&one.0));
        let Volume {
            medium,
            alloc,
            snapshots,
            ..
        } = &*volume;
        snapshots.keep_blocks(medium, alloc, written)?;
        wave::round(&medium.order, &medium.cache, &*volume)?;
        if !injected(Fault::CheckUnclaimed) {
            unused.retain(|&block| !snapshots.claim(medium, alloc, block));
            wave::round(&medium.order, &medium.cache, &*volume)?;
        }
        Ok((!snapshots.all().is_empty(), unused))
    }
}

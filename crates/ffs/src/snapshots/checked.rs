//! The check of a whole image, with what takes more than the check: of a file system with
//! snapshots, what repairs overwrite is copied into them before; a list of orphans is emptied
//! behind repairs.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::device::{Immediate, Info, Request};
use block::{Buffer, Disk, Events, SECTOR};
use parking_lot::Mutex;
use rustix::io::Errno;
use vfs::{ManualClock, Time};
use zerocopy::IntoBytes;

use crate::alloc::Alloc;
use crate::cache::Cache;
use crate::check::{self, Progress, Report};
use crate::fault::{Fault, injected};
use crate::geometry::{Geometry, MountError};
use crate::inspect::superblock;
use crate::layout::{STATE_VALID, SUPERBLOCK_AT, Superblock};
use crate::mark;
use crate::medium::Medium;
use crate::mount::{free_orphans, read_root};
use crate::order::{Mode, Order, wave};
use crate::volume::Volume;

/// Bytes of blocks in memory while snapshots get copies.
const CACHE_BYTES: usize = 16 << 20;

/// Checks the image on a disk as [`check::check`], and keeps its snapshots whole: before anything
/// is repaired, they get copies of the blocks that repairs are going to change. With `repair`, and
/// if nothing needs a decision, what is in the list of orphans is freed, or cut off, behind that.
///
/// # Errors
/// As there.
pub fn check(
    disk: &Disk,
    repair: bool,
    now: Time,
    progress: Progress<'_>,
) -> Result<Report, MountError> {
    let mut report = check_image(disk, repair, now, progress)?;
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

/// Checks it, with snapshots and without the list of orphans.
fn check_image(
    disk: &Disk,
    repair: bool,
    now: Time,
    progress: Progress<'_>,
) -> Result<Report, MountError> {
    let was_ours = repair && mark::is_ours(&superblock(disk)?);
    let are_kept = was_ours && !injected(Fault::CheckUnkept) && keep(disk, now)?;
    let report = check::check(disk, repair, now, progress)?;
    // Where nothing was wrong, snapshots have what they had.
    let are_kept = are_kept || was_ours && report.exit_code() == 0;
    if !are_kept {
        return Ok(report);
    }
    let mut now = superblock(disk)?;
    if !mark::is_mendable(&now) {
        // All that was written was written here.
        mark::keep(&mut now);
        store(disk, &now)?;
    }
    Ok(report)
}

fn store(disk: &Disk, superblock: &Superblock) -> Result<(), MountError> {
    let bytes = Buffer::copy_of(superblock.as_bytes());
    let written = disk.write(SUPERBLOCK_AT, vec![bytes]);
    let flushed = written.and_then(|_| disk.flush());
    flushed.map_err(|error| vfs::Error::medium(error.to_string()))?;
    Ok(())
}

/// Gives snapshots copies of what repairs would change; whether they are whole then.
fn keep(disk: &Disk, now: Time) -> Result<bool, MountError> {
    let before = superblock(disk)?;
    if !mark::is_ours(&before) || before.state.get() & STATE_VALID != 0 {
        return Ok(false);
    }
    let overlay = Arc::new(Overlay::new(disk.clone()));
    let report = check::check(&Disk::new(overlay.clone()), true, now, &|_, _, _| {})?;
    match report.exit_code() {
        0 => return Ok(true), // only the superblock is written
        1 => {}
        _ => return Ok(false), // nothing is repaired
    }
    let geometry = Geometry::new(&before, disk.len())?;
    let blocks = overlay.blocks(geometry.block_size.into());
    let cache = Cache::new(disk.clone(), geometry.block_size, CACHE_BYTES);
    let medium = Medium::new(geometry, cache, Order::new(Mode::Soft));
    let alloc = Alloc::new(&medium, false)?;
    let clock = Arc::new(ManualClock::new(now));
    let volume = Arc::new(Volume::new(medium, alloc, clock, [0; 16], true));
    let root = read_root(&volume)?;
    let found = volume.find_snapshots(&root)?;
    let whole = found.iter().filter(|one| one.1);
    whole.for_each(|one| volume.admit(&one.0));
    let Volume {
        medium, snapshots, ..
    } = &*volume;
    // What is not clean has all bits set that it needs: what is free can be taken.
    snapshots.keep_blocks(medium, &volume.alloc, &blocks)?;
    wave::round(&medium.order, &medium.cache, &*volume)?;
    Ok(!snapshots.all().is_empty())
}

/// A disk whose writes stay in memory.
struct Overlay {
    disk: Disk,
    info: Info,
    sectors: Mutex<BTreeMap<u64, Vec<u8>>>,
    events: Events,
}

impl Overlay {
    fn new(disk: Disk) -> Overlay {
        Overlay {
            info: disk.info().clone(),
            disk,
            sectors: Mutex::default(),
            events: Events::default(),
        }
    }

    /// The blocks that were written.
    fn blocks(&self, block_size: u64) -> Vec<u64> {
        let sectors = self.sectors.lock();
        let mut blocks: Vec<u64> = sectors.keys().map(|at| at / block_size).collect();
        blocks.dedup();
        blocks
    }
}

impl Immediate for Overlay {
    fn info(&self) -> &Info {
        &self.info
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn run(&self, request: &mut Request) -> Result<(), Errno> {
        let mut sectors = self.sectors.lock();
        match request {
            Request::Read { at, into } => {
                let mut at = *at;
                for buffer in into {
                    let read = self.disk.read(at, vec![Buffer::zeroed(buffer.len())]);
                    buffer.copy_from_slice(&read.map_err(|error| error.errno)?[0]);
                    for (&sector, bytes) in sectors.range(at..at + buffer.len() as u64) {
                        let from = (sector - at) as usize;
                        buffer[from..from + bytes.len()].copy_from_slice(bytes);
                    }
                    at += buffer.len() as u64;
                }
            }
            Request::Write { at, from, .. } => {
                let mut at = *at;
                for buffer in from {
                    for bytes in buffer.chunks(SECTOR as usize) {
                        sectors.insert(at, bytes.to_vec());
                        at += SECTOR;
                    }
                }
            }
            Request::Flush => {}
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(())
    }
}

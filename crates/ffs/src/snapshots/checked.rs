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

use crate::alloc::Alloc;
use crate::cache::Cache;
use crate::check::{self, Progress, Report};
use crate::fault::{Fault, injected};
use crate::geometry::{Geometry, MountError};
use crate::inspect::{make_durable, superblock};
use crate::layout::STATE_VALID;
use crate::mark;
use crate::medium::Medium;
use crate::mount::{free_orphans, names_snapshots, read_root};
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
    let are_kept = repair && !injected(Fault::CheckUnkept) && keep(disk, now, false)?;
    let mut report = check::check_marked(disk, (repair, are_kept), now, progress)?;
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

/// Gives snapshots copies of what repairs would change, and what these would free; whether they are
/// whole then. A crash has lost claims to what was freed. If that were free, copies might be put
/// there: a snapshot would wait for itself.
///
/// `is_again`: repairs behind which more is found were made.
fn keep(disk: &Disk, now: Time, is_again: bool) -> Result<bool, MountError> {
    let before = superblock(disk)?;
    if !mark::is_ours(&before) || before.state.get() & STATE_VALID != 0 {
        return Ok(false);
    }
    // Where that cannot be told, the check has more to say.
    if !matches!(names_snapshots(disk, &before), Ok(Some(true))) {
        return Ok(false);
    }
    make_durable(disk)?;
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
    if snapshots.all().is_empty() || injected(Fault::CheckUnclaimed) {
        return Ok(!snapshots.all().is_empty());
    }
    if !is_again && check::repair_first(disk, now)? {
        // What is to be free belongs to nobody from here on.
        return keep(disk, now, true);
    }
    for block in overlay.freed(medium)? {
        snapshots.claim(medium, &volume.alloc, block);
    }
    wave::round(&medium.order, &medium.cache, &*volume)?;
    Ok(true)
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

    /// The blocks that are free by what was written, and in use on the disk.
    fn freed(self: &Arc<Overlay>, medium: &Medium) -> vfs::Result<Vec<u64>> {
        let geometry = &medium.geometry;
        let read = |disk: &Disk, block: u64| {
            let at = block * u64::from(geometry.block_size);
            let into = vec![Buffer::zeroed(geometry.block_size as usize)];
            let read = disk.read(at, into);
            read.map_err(|error| vfs::Error::medium(error.to_string()))
        };
        let written = Disk::new(self.clone());
        let mut freed = Vec::new();
        for group in 0..geometry.groups {
            let bitmap = medium.group(group)?.block_bitmap;
            let [before, after] = [read(&self.disk, bitmap)?, read(&written, bitmap)?];
            let bytes = before[0].iter().zip(after[0].iter());
            for (number, (before, after)) in (0..).zip(bytes) {
                let bits = (0..8).filter(|bit| before & !after & (1 << bit) != 0);
                freed.extend(bits.map(|bit| geometry.group_start(group) + number * 8 + bit));
            }
        }
        Ok(freed)
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

//! Checking an image that nobody has mounted, and repairing what e2fsck repairs without asking
//! (`e2fsck -p`).
//!
//! ```text
//! groups      what superblocks, descriptors, bitmaps and tables take of the blocks (`audit`)
//! superblock  what others insist on
//! journal     whether it is one, and empty
//! inodes      each table: what an inode is (`fields`), and which blocks it has (`claims`)
//! indexes     hashes of names, as the kernel has them in directories (`index`)
//! names       what each entry names, and who is named how often: all at once (`survey`), or from
//!             the root
//! maps        bitmaps and counts, beside what was found
//! ```
//!
//! Groups, and directories, are looked at by several threads (`parallel`), unless the file system
//! is in use (`delta`).
//!
//! Each finding brings the bytes that repair it (an `Edit`); one that brings none needs a decision,
//! for which there is e2fsck. If there is such a one nothing is repaired: what else was found may
//! follow from it. A repair that is cut short is found by the next check.
//!
//! Of a journal's image the inodes in the list of orphans are whole until a mount frees them or
//! cuts them off (`orphans`): they are told, and left to that.

mod audit;
mod claims;
mod delta;
mod fields;
mod index;
mod inodes;
mod journal;
mod maps;
mod names;
mod orphans;
mod parallel;
mod resize;
mod source;
mod superblock;
mod survey;
mod table;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use block::{Buffer, Disk, Wave};
use vfs::{Error, Time};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::fault::{Fault, injected};
use crate::geometry::{Geometry, MountError};
use crate::inspect::{make_durable, superblock};
use crate::layout::{STATE_ERROR, STATE_VALID, SUPERBLOCK_AT, Superblock};
use crate::mark;

use audit::Audit;
pub(crate) use delta::{Delta, Moment, Scan};
pub(crate) use source::Source;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Problem {
    /// Something makes no sense, or two things contradict each other: only e2fsck can help.
    Damage,
    /// A file or directory that has contents and no name: e2fsck gives it one.
    Nameless,
    /// The same behind a crash in mode soft: it was being made or removed, and is cleared.
    Interrupted,
    /// A directory was being moved when a mount in mode soft crashed: it keeps one of its names.
    TwoNames,
    /// An inode that has neither a name nor contents; or one in the list of orphans, which is to be
    /// freed or cut off.
    Orphan,
    /// An entry of a directory names an inode that is free.
    DeadEntry,
    /// An entry does not say of what kind its inode is.
    EntryKind,
    /// The journal is damaged, or there is one where none should be.
    Journal,
    /// A removed inode has no time of removal, or one in use has one.
    RemovalTime,
    /// A field of an inode, a descriptor or a free entry has a value that it may not have.
    Field,
    /// The index of a directory's names is wrong.
    Index,
    /// The superblock does not list a feature that is there.
    Features,
    /// The size of a file ends before its blocks do.
    Size,
    /// An inode counts another number of blocks than it has.
    BlockCount,
    /// An inode counts another number of names than it has.
    LinkCount,
    /// A bitmap says other blocks than are in use.
    BlockBitmap,
    /// A bitmap says other inodes than are in use.
    InodeBitmap,
    /// Bits of a bitmap that stand for nothing are clear.
    Padding,
    /// A group counts other numbers of what is free.
    GroupCounts,
    /// The superblock counts other numbers of what is free.
    FreeCounts,
}

impl Problem {
    /// Its name for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Problem::Damage => "damage",
            Problem::Nameless => "nameless",
            Problem::Interrupted => "interrupted",
            Problem::TwoNames => "two names",
            Problem::Orphan => "orphan",
            Problem::DeadEntry => "dead entry",
            Problem::EntryKind => "kind of an entry",
            Problem::Journal => "journal",
            Problem::RemovalTime => "time of removal",
            Problem::Field => "field",
            Problem::Index => "index of names",
            Problem::Features => "features",
            Problem::Size => "size",
            Problem::BlockCount => "block count",
            Problem::LinkCount => "link count",
            Problem::BlockBitmap => "block bitmap",
            Problem::InodeBitmap => "inode bitmap",
            Problem::Padding => "padding of a bitmap",
            Problem::GroupCounts => "counts of a group",
            Problem::FreeCounts => "free counts",
        }
    }

    /// Whether it is repaired, if nothing stands in the way.
    pub fn is_mendable(self) -> bool {
        !matches!(self, Problem::Damage | Problem::Nameless)
    }
}

/// What repairs something, in a block.
#[derive(Debug, Clone)]
struct Edit {
    block: u64,
    offset: usize,
    new: New,
}

/// What is there then.
#[derive(Debug, Clone)]
enum New {
    Bytes(Vec<u8>),
    /// A number of four bytes is so much more, whatever snapshots have added to it meanwhile.
    More(u32),
}

impl Edit {
    fn new(block: u64, offset: usize, bytes: Vec<u8>) -> Edit {
        Edit {
            block,
            offset,
            new: New::Bytes(bytes),
        }
    }

    /// In the bytes of the block from byte `from` on.
    fn apply(&self, bytes: &mut [u8], from: usize) {
        let at = &mut bytes[self.offset - from..];
        match &self.new {
            New::Bytes(bytes) => at[..bytes.len()].copy_from_slice(bytes),
            New::More(by) => {
                let (number, _) = U32::mut_from_prefix(at).expect("fields are whole");
                *number = number.get().wrapping_add(*by).into();
            }
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What.
    pub problem: Problem,
    /// Where, and what it should be.
    pub detail: String,
    edits: Vec<Edit>,
    /// What repairs it while the file system is in use, if that is possible.
    delta: Option<Delta>,
}

/// What a check found and did.
#[derive(Debug, Clone)]
pub struct Report {
    /// What is wrong, or was.
    pub findings: Vec<Finding>,
    /// All of it was repaired.
    pub repaired: bool,
    /// It had been unmounted, or is in use.
    pub was_clean: bool,
    /// It is in use.
    pub in_use: bool,
    /// Inodes in the list of orphans, which a mount for writing frees or cuts off.
    pub orphans: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Free blocks.
    pub blocks_free: u64,
}

impl Finding {
    /// Whether it is a `..` that is to name another directory.
    fn is_parent(&self) -> bool {
        matches!(self.delta, Some(Delta::Parent { .. }))
    }

    /// What repairs it while the file system is in use; `None`: nothing does.
    pub(crate) fn into_delta(self) -> Option<Delta> {
        self.delta
    }
}

impl Report {
    /// The exit code that e2fsck has for it.
    pub fn exit_code(&self) -> u8 {
        match (self.findings.is_empty(), self.repaired) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 4,
        }
    }

    /// Whether something was found that cannot be repaired while the file system is in use.
    pub(crate) fn needs_unmount(&self) -> bool {
        self.findings.iter().any(|finding| finding.delta.is_none())
    }

    /// Whether something was found that is not repaired here.
    pub fn needs_decision(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| !finding.problem.is_mendable())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{}: {}", finding.problem.name(), finding.detail)?;
        }
        let (inodes, dirs) = (self.inodes, self.directories);
        match (self.findings.len(), self.repaired) {
            (0, _) => write!(
                f,
                "clean, {inodes} inodes in use, {dirs} of them directories"
            ),
            (found, true) => write!(f, "{found} errors repaired"),
            (found, false) if self.in_use && self.needs_unmount() => write!(
                f,
                "{found} errors, and some cannot be repaired while it is in use: nothing was \
                 changed; unmount it and run tureen fsck"
            ),
            (found, false) if self.needs_decision() => write!(
                f,
                "{found} errors, and some need decisions: nothing was changed; run e2fsck"
            ),
            (found, false) => write!(f, "{found} errors left"),
        }
    }
}

/// Told while a check goes on: what is being done, how much of it is done, and how much there is.
pub type Progress<'a> = &'a dyn Fn(&'static str, u64, u64);

/// Checks the image on a disk, which nobody changes meanwhile; with `repair`, repairs it and marks
/// it clean, as of `now`. Behind a crash in mode soft (`mark`) inodes without a name are cleared,
/// directories of two names keep one, and files are cut at their end; what the cleared and cut ones
/// had is found when they are: without `repair` it is not told. A list of orphans that no such
/// crash left is not emptied.
///
/// # Errors
/// It is none that can be written here, or its descriptors are damaged, or the disk failed.
pub fn check(
    disk: &Disk,
    repair: bool,
    now: Time,
    progress: Progress<'_>,
) -> Result<Report, MountError> {
    check_beside(disk, repair, None, now, progress)
}

/// What snapshots have to have before repairs.
pub(crate) trait Keeper {
    /// Blocks are about to be written, and others to be free that are in use by their bits alone.
    /// Snapshots get copies of the one, and claim the other, durably. Whether there are any, and
    /// what is still to be free. For that they may take what is free.
    ///
    /// # Errors
    /// The disk failed.
    fn keep(&self, written: &[u64], unused: Vec<u64>) -> Result<(bool, Vec<u64>), MountError>;
}

/// The same. With a keeper, what repairs overwrite is in snapshots before, and the mark says so
/// from when the image is clean on.
pub(crate) fn check_beside(
    disk: &Disk,
    repair: bool,
    keeper: Option<&dyn Keeper>,
    now: Time,
    progress: Progress<'_>,
) -> Result<Report, MountError> {
    let repairs = |is_again| Repairs { keeper, is_again };
    if !repair {
        return audit(disk, None, now, progress);
    }
    make_durable(disk)?;
    let mut first = audit(disk, Some(repairs(false)), now, progress)?;
    if first.needs_decision() || !first.findings.iter().any(has_more_behind) {
        return Ok(first);
    }
    // What these had belongs to nobody now. The rest is found again.
    first.findings.retain(has_more_behind);
    let mut report = audit(disk, Some(repairs(true)), now, progress)?;
    report.repaired |= report.findings.is_empty();
    report.findings.splice(..0, first.findings);
    Ok(report)
}

/// Whether there is more to be found behind the repair: blocks and inodes that nobody has, as an
/// inode was cleared or a file cut; and what counts a name that is gone. What is found beside that
/// is repaired behind it, as a mount that serves at once relies on bits and counts: each is there
/// as long as the disk may have what it is for (S5).
fn has_more_behind(finding: &Finding) -> bool {
    let first = [
        Problem::Interrupted,
        Problem::Journal,
        Problem::Orphan,
        Problem::Size,
        Problem::TwoNames,
    ];
    first.contains(&finding.problem) && !finding.edits.is_empty()
}

/// How repairs are made.
struct Repairs<'a> {
    keeper: Option<&'a dyn Keeper>,
    /// Those behind which more is found were made.
    is_again: bool,
}

fn audit(
    disk: &Disk,
    repairs: Option<Repairs<'_>>,
    now: Time,
    progress: Progress<'_>,
) -> Result<Report, MountError> {
    let mut superblock = superblock(disk)?;
    let geometry = Geometry::new(&superblock, disk.len())?;
    let features = geometry.features.read_only();
    if !features.is_empty() {
        return Err(MountError::Unchecked(features.join(", ")));
    }
    let source = source::OfDisk {
        disk: disk.clone(),
        block_size: geometry.block_size,
    };
    let soft = mark::is_crashed(&superblock);
    let held = HashSet::new();
    let mut audit = Audit::new(Arc::new(source), geometry.clone(), now, (soft, held))?;
    let orphan = superblock.last_orphan.get();
    match orphan {
        0 => {}
        // A mount was about to remove them: what is left of that is what any removal leaves.
        _ if soft => audit.found(
            Problem::Orphan,
            format!("inode {orphan} was being removed, or cut"),
            (Vec::new(), None),
        ),
        first => audit.orphans(first)?,
    }
    audit.superblock(&superblock);
    audit.journal(&mut superblock)?;
    audit.inodes(progress)?;
    audit.indexes()?;
    audit.names(progress)?;
    audit.large_files(&mut superblock);
    let before_maps = audit.findings.0.len();
    let mut free = audit.maps(progress)?;
    let counted = (
        u64::from(superblock.free_blocks_count_lo.get()),
        u64::from(superblock.free_inodes_count.get()),
    );
    let was_clean = superblock.state.get() & (STATE_VALID | STATE_ERROR) == STATE_VALID;
    // Who has it mounted brings these up to date when it is unmounted.
    if was_clean && counted != free {
        let ((blocks, inodes), (blocks_free, inodes_free)) = (counted, free);
        audit.found(
            Problem::FreeCounts,
            format!(
                "{blocks} blocks and {inodes} inodes are free by the superblock, in fact \
                 {blocks_free} and {inodes_free}"
            ),
            (Vec::new(), None),
        );
    }
    let mut report = audit.report(free.0, was_clean);
    let Some(Repairs { keeper, is_again }) = repairs else {
        return Ok(report);
    };
    if report.needs_decision() {
        return Ok(report);
    }
    let written = blocks_of(&report.findings);
    let first: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|one| has_more_behind(one))
        .collect();
    if !first.is_empty() {
        if let Some(keeper) = keeper {
            keeper.keep(&written, Vec::new())?;
        }
        // Not clean yet, and still marked: a crash here is followed by the same.
        match injected(Fault::MendedTogether) {
            true => write(disk, &geometry, &report.findings)?,
            false => {
                // A name goes behind the `..` that does not agree with it.
                let parents = first.iter().copied().filter(|one| one.is_parent());
                write(disk, &geometry, parents)?;
                write(disk, &geometry, first)?;
            }
        }
        return Ok(report);
    }
    // A list of orphans is left to a mount, which keeps snapshots.
    let mut is_kept = written.is_empty() && !is_again;
    if let Some(keeper) = keeper.filter(|_| !is_kept) {
        let (are_there, unused) = keeper.keep(&written, audit.unused()?)?;
        is_kept = are_there;
        // What they have taken is in use.
        audit.use_all_but(&unused)?;
        report.findings.truncate(before_maps);
        free = audit.maps(&|_, _, _| ())?;
        report.findings.append(&mut audit.findings.0);
        report.blocks_free = free.0;
    }
    write(disk, &geometry, &report.findings)?;
    if report.orphans == 0 {
        superblock.last_orphan = 0.into();
    }
    mark_clean(disk, superblock, (free, is_kept), now)?;
    report.repaired = !report.findings.is_empty() && report.orphans == 0;
    Ok(report)
}

/// Says that an image is clean, with so many blocks and inodes that are free, durably; and whether
/// snapshots are whole in it.
fn mark_clean(
    disk: &Disk,
    mut superblock: Superblock,
    (free, is_kept): ((u64, u64), bool),
    now: Time,
) -> Result<(), Error> {
    superblock.free_blocks_count_lo = (free.0 as u32).into();
    superblock.free_inodes_count = (free.1 as u32).into();
    superblock.state = (superblock.state.get() & !STATE_ERROR | STATE_VALID).into();
    superblock.lastcheck = (now.secs() as u32).into();
    // In one sector with what voids it: no crash comes between.
    let is_ours = mark::is_ours(&superblock);
    superblock.mnt_count = 0.into();
    if is_ours && is_kept && !injected(Fault::CheckUnmarked) {
        mark::keep(&mut superblock);
    }
    let mut wave = Wave::new();
    wave.write(SUPERBLOCK_AT, Buffer::copy_of(superblock.as_bytes()));
    disk.commit(wave).map(drop).map_err(failed)
}

/// The blocks that repairs change.
fn blocks_of(findings: &[Finding]) -> Vec<u64> {
    let edits = findings.iter().flat_map(|finding| &finding.edits);
    let blocks: BTreeSet<u64> = edits.map(|edit| edit.block).collect();
    blocks.into_iter().collect()
}

/// Writes what repairs the findings, durably.
fn write<'a>(
    disk: &Disk,
    geometry: &Geometry,
    findings: impl IntoIterator<Item = &'a Finding>,
) -> Result<(), Error> {
    let mut blocks: BTreeMap<u64, Buffer> = BTreeMap::new();
    for edit in findings.into_iter().flat_map(|finding| &finding.edits) {
        let block = match blocks.entry(edit.block) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(source::read(disk, geometry.block_size, edit.block, 1)?)
            }
        };
        edit.apply(block, 0);
    }
    let blocks = blocks.into_iter();
    let mut blocks = blocks.map(|(number, block)| (number * u64::from(geometry.block_size), block));
    if injected(Fault::RepairUnflushed) {
        return blocks
            .try_for_each(|(at, block)| disk.write(at, vec![block]).map(drop).map_err(failed));
    }
    let mut wave = Wave::new();
    blocks.for_each(|(at, block)| wave.write(at, block));
    disk.commit(wave).map(drop).map_err(failed)
}

fn failed(error: block::BlockError) -> Error {
    Error::medium(error.to_string())
}

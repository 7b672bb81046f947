//! The file system in blocks, as the explorer knows it.

pub mod cached;
mod device;
mod others;
mod served;
mod snapshots;

use crate::engine::{
    Census, Engine, LATER, Leaves, Mode, Mounted, Mounting, Others, POISON, Thresholds, Volume,
    looking,
};
use crate::image::Image;
use crate::op::{Op, Side, TO_THE_END};
use crate::rules::Rules;
use crate::scratch::Device;
use crate::tree::{Flaw, Tree};
use block::Disk;
use ffs::check::{Finding, Problem, Report, check};
use ffs::{Ffs, FormatOptions, MountOptions, check_keeping, format, mounts_at_once};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{Clock, FileSystem, ManualClock, Time};

/// The engine.
pub static ENGINE: FfsEngine = FfsEngine;

/// Soft updates.
pub const SOFT: Mode = Mode::new("soft", false, Leaves::Parts);
/// Soft updates, and what changes names is durable, with all before it, when it has returned.
pub const SYNC: Mode = Mode::new("sync", false, Leaves::Parts);
/// Transactions; contents of files are in place before them.
pub const ORDERED: Mode = Mode::new("ordered", false, Leaves::WholeButBytes);
/// Transactions, with contents.
pub const JOURNAL: Mode = Mode::new("journal", false, Leaves::Whole);
/// No order: what soft updates promise is not kept.
pub const ASYNC: Mode = Mode {
    is_kept: false,
    ..Mode::new("async", false, Leaves::Parts)
};

/// Bytes of a block: few, so that files soon have indirect blocks, and directories several.
const BLOCK: u32 = 1024;
/// One inode for so many bytes.
const BYTES_PER_INODE: u32 = 4096;
/// Bytes that may wait to be written.
const DIRTY_MAX: usize = 1 << 20;
/// The same where callers write within their operations.
const DIRTY_FEW: usize = 4096;
/// Bytes that an image has for its journal.
const JOURNAL_LEN: u64 = 2 << 20;
const LOST: &[u8] = b"lost+found";
/// Of so many steps of a reclaim it is looked at what callers see meanwhile.
const LOOKED_AT: usize = 8;
/// A step of the reclaim does more than the smallest step of a search for leaks.
const OF_A_STEP: u64 = 100;

/// Soft updates on blocks.
pub struct FfsEngine;

impl Engine for FfsEngine {
    fn name(&self) -> &'static str {
        "ext2"
    }

    fn modes(&self) -> &'static [Mode] {
        &[SOFT, SYNC, ORDERED, JOURNAL, ASYNC]
    }

    fn media(&self) -> &'static [Rules] {
        &[Rules::Sectors]
    }

    /// A journal has 1 MiB at least.
    fn empty(&self, len: u64, mode: Mode) -> Image {
        static MADE: Mutex<BTreeMap<(u64, bool), Image>> = Mutex::new(BTreeMap::new());
        let has_journal = is_journaled(mode);
        let all = len + if has_journal { JOURNAL_LEN } else { 0 };
        let mut made = MADE.lock();
        let made = made.entry((all, has_journal));
        made.or_insert_with(|| empty(all, BLOCK, has_journal))
            .clone()
    }

    fn settles(&self, op: &Op, mode: Mode) -> bool {
        let changes_names = matches!(
            op,
            Op::Create(_)
                | Op::Mkdir(_)
                | Op::Symlink(..)
                | Op::Mknod(..)
                | Op::Link(..)
                | Op::LinkHeld(..)
                | Op::Unlink(_)
                | Op::Rmdir(_)
                | Op::Rename(..)
        );
        // What a snapshot has is on the disk.
        mode == SYNC && changes_names || matches!(op, Op::Snapshot { .. })
    }

    fn format(&self, device: &Device) -> Result<(), Flaw> {
        format(&disk(device), &format_options(false, BLOCK, false)).map_err(|e| e.to_string())
    }

    /// What was not unmounted is replayed, served at once, or checked first: as `tureen mount` has
    /// it, unless the check is to go first.
    fn mount(&self, device: &Device, how: &Mounting) -> Result<Box<dyn Mounted>, Flaw> {
        if needs_replay(device)? || self.is_clean(device)? {
            return Ok(Box::new(Side::new(mounted(device, how)?)));
        }
        let is_soft = how.mode == SOFT || how.mode == SYNC;
        let is_at_once = || mounts_at_once(&disk(device)).map_err(|e| e.to_string());
        if !how.mends_first && is_soft && is_at_once()? {
            return Ok(Box::new(served::at_once(device, how)?));
        }
        checked(device, how.clock.now())?;
        Ok(Box::new(Side::new(mounted(device, how)?)))
    }

    fn is_clean(&self, device: &Device) -> Result<bool, Flaw> {
        let info = ffs::inspect(&disk(device)).map_err(|e| e.to_string())?;
        Ok(info.clean)
    }

    fn edition(&self) -> Option<u64> {
        Some(pmem::fault::all_injected())
    }

    /// What is to be replayed is audited behind that, on a copy, and so is what has orphans.
    fn audit(&self, device: &Device) -> Result<(), Flaw> {
        if is_unsettled(device)? {
            let copy = Device::of(&device.image(), Rules::Sectors);
            settle(&copy)?;
            return self.audit(&copy);
        }
        let report = fsck(device, false, LATER)?;
        let bad = |finding: &Finding| report.was_clean || !may_be_left(finding);
        if report.findings.iter().any(bad) || has_stray_parent(&report) {
            return Err(format!("audit:\n{report}"));
        }
        // What a journal has left in its list of orphans, a mount in mode soft frees as a list no
        // more.
        match report.was_clean || superblock(device)?.last_orphan.get() != 0 {
            true => Ok(()),
            false => counts_are_supersets(device),
        }
    }

    fn flawless(&self, device: &Device) -> Result<Census, Flaw> {
        let report = fsck(device, false, LATER)?;
        if !report.findings.is_empty() || !report.was_clean {
            return Err(format!("it is not clean:\n{report}"));
        }
        let fs = reading(disk(device))?;
        let tree = Tree::without(&fs, &[], fs.own())?;
        Ok(Census {
            inodes: report.inodes,
            names: tree.objects.values().map(|o| o.names.len() as u64).sum(),
        })
    }

    fn repair(&self, device: &Device) -> Result<(), Flaw> {
        settle(device)?;
        let report = fsck(device, true, LATER)?;
        match report.exit_code() {
            0 | 1 => Ok(()),
            _ => Err(format!("fsck gives up:\n{report}")),
        }
    }

    /// Served at once, if it may be.
    fn reclaim(&self, device: &Device) -> Result<Tree, Flaw> {
        let how = Mounting {
            mends_first: false,
            ..looking(self.modes(), LATER)
        };
        let fs = self.mount(device, &how)?;
        let tree = fs.tree()?;
        let steps = std::iter::repeat_n(Op::Search(1), LOOKED_AT).chain([TO_THE_END]);
        for step in steps {
            fs.act(&step).map_err(|e| format!("reclaiming: {e}"))?;
            if let Some(difference) = fs.tree()?.difference(&tree) {
                return Err(format!("it changes meanwhile:\n{difference}"));
            }
        }
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        Ok(tree)
    }

    fn others(&self) -> Option<&'static dyn Others> {
        Some(&others::E2fsck)
    }

    /// Access lists are stored in another form than callers have them, so they must be some.
    fn skips(&self, op: &Op, mode: Mode) -> bool {
        let is_async = mode == ASYNC;
        matches!(op, Op::SetAcl { .. } | Op::Inherit { .. }) || op.is_of_snapshots() && is_async
    }

    fn place(&self, at: u64, _len: u64, _inode: &dyn Fn(u64) -> bool) -> String {
        format!(
            "{at} (block {}, byte {})",
            at / u64::from(BLOCK),
            at % u64::from(BLOCK)
        )
    }
}

/// Mounts what is clean, or may be served at once.
fn mounted(device: &Device, how: &Mounting) -> Result<Ffs, Flaw> {
    let options = MountOptions {
        read_only: false,
        hash_key: [9; 16],
        cache_bytes: match how.thresholds {
            Thresholds::Usual | Thresholds::Tight => DIRTY_MAX,
            Thresholds::Crowded => DIRTY_FEW,
        },
        mode: match how.mode {
            ASYNC => ffs::Mode::Async,
            SYNC => ffs::Mode::Sync,
            ORDERED => ffs::Mode::Ordered,
            JOURNAL => ffs::Mode::Journal,
            _ => ffs::Mode::Soft,
        },
    };
    let fs = Ffs::mount(disk(device), how.clock.clone(), options);
    let fs = fs.map_err(|e| format!("mount: {e}"))?;
    if how.thresholds == Thresholds::Tight {
        fs.scatter_waves();
    }
    Ok(fs)
}

/// Checks what was not unmounted, with repairs.
fn checked(device: &Device, now: Time) -> Result<(), Flaw> {
    let report = fsck(device, true, now)?;
    match report.exit_code() {
        0 | 1 => Ok(()),
        _ => Err(format!("mount: it needs decisions:\n{report}")),
    }
}

/// The disk of a device.
fn disk(device: &Device) -> Disk {
    device::disk(device.disk())
}

fn clock(time: Time) -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(time))
}

/// Mounts what is on a disk, for reading.
fn reading(disk: Disk) -> Result<Ffs, Flaw> {
    let options = MountOptions {
        read_only: true,
        hash_key: [9; 16],
        cache_bytes: DIRTY_MAX,
        mode: ffs::Mode::Async,
    };
    Ffs::mount(disk, clock(LATER), options).map_err(|e| e.to_string())
}

/// Whether a mode needs a journal.
fn is_journaled(mode: Mode) -> bool {
    mode == ORDERED || mode == JOURNAL
}

fn superblock(device: &Device) -> Result<ffs::layout::Superblock, Flaw> {
    ffs::superblock(&disk(device)).map_err(|e| e.to_string())
}

fn needs_replay(device: &Device) -> Result<bool, Flaw> {
    Ok(ffs::journal::needs_recovery(&superblock(device)?))
}

/// Whether a mount has to come before the check: there is something to be replayed, or to be freed.
fn is_unsettled(device: &Device) -> Result<bool, Flaw> {
    Ok(needs_replay(device)? || has_orphans(device)?)
}

/// Whether a clean image lists inodes that are to be freed.
fn has_orphans(device: &Device) -> Result<bool, Flaw> {
    Ok(superblock(device)?.last_orphan.get() != 0 && ENGINE.is_clean(device)?)
}

/// Replays the journal, if that is needed, and frees the orphans that there are then.
fn settle(device: &Device) -> Result<(), Flaw> {
    ffs::recover(disk(device), &superblock(device)?).map_err(|e| format!("replay: {e}"))?;
    if !has_orphans(device)? {
        return Ok(());
    }
    let fs = (&ENGINE as &dyn Engine).mount_at(device, LATER)?;
    fs.unmount().map_err(|e| format!("unmount: {e}"))
}

fn format_options(zeroed: bool, block_size: u32, journal: bool) -> FormatOptions {
    FormatOptions {
        uuid: [7; 16],
        label: "crash".into(),
        hash_seed: [8; 16],
        time: Time(1_000),
        owner: (0, 0),
        zeroed,
        block_size,
        inode_size: 256,
        bytes_per_inode: BYTES_PER_INODE,
        journal,
    }
}

/// An empty file system, with poison in the blocks that are free, and without the directory that
/// the reference does not have.
fn empty(len: u64, block_size: u32, journal: bool) -> Image {
    let device = Device::of(&Image::zeros(len), Rules::Sectors);
    format(&disk(&device), &format_options(true, block_size, journal)).expect("format");
    let options = MountOptions {
        read_only: false,
        hash_key: [9; 16],
        cache_bytes: DIRTY_MAX,
        mode: ffs::Mode::Soft,
    };
    let fs = Ffs::mount(disk(&device), clock(Time(1_000)), options).expect("mount");
    let removed = fs.rmdir(&fs.root(), LOST, &|_| Ok(()));
    removed.expect("it is empty");
    fs.unmount().expect("unmount");
    drop(fs);
    let mut image = device.image();
    let poison = vec![POISON; block_size as usize];
    for block in free_blocks(&image, block_size.into()) {
        image.write(block * u64::from(block_size), &poison);
    }
    image
}

/// The blocks that the bitmaps of an image have as free.
fn free_blocks(image: &Image, block_size: u64) -> Vec<u64> {
    let word = |at: u64| {
        let mut bytes = [0; 4];
        image.read(at, &mut bytes);
        u64::from(u32::from_le_bytes(bytes))
    };
    // Of the superblock: blocks, the first one, and those of a group; then the descriptors.
    let superblock = ffs::layout::SUPERBLOCK_AT;
    let (blocks, first) = (word(superblock + 4), word(superblock + 20));
    let per_group = word(superblock + 32);
    let groups = (blocks - first).div_ceil(per_group);
    let mut free = Vec::new();
    for group in 0..groups {
        let bitmap = word((first + 1) * block_size + group * 32);
        let blocks = per_group.min(blocks - first - group * per_group);
        for bit in 0..blocks {
            let mut byte = [0];
            image.read(bitmap * block_size + bit / 8, &mut byte);
            if byte[0] & 1 << (bit % 8) == 0 {
                free.push(first + group * per_group + bit);
            }
        }
    }
    free
}

/// The check, which keeps snapshots when it repairs.
fn fsck(device: &Device, repair: bool, now: Time) -> Result<Report, Flaw> {
    check_keeping(&disk(device), repair, now, &|_, _, _| ()).map_err(|e| e.to_string())
}

/// S5: bitmaps have all that is stored, and counts all names, before anything is mended. The check
/// behind a crash in mode soft would mend inodes without names and directories of two first, so the
/// image is looked at as if it had no mark.
///
/// # Errors
/// Where they have not.
fn counts_are_supersets(device: &Device) -> Result<(), Flaw> {
    let unmarked = device::unmarked(device.disk());
    let report = check(&unmarked, false, LATER, &|_, _, _| ()).map_err(|e| e.to_string())?;
    let counts = |finding: &&Finding| {
        let counts = [
            Problem::LinkCount,
            Problem::BlockBitmap,
            Problem::InodeBitmap,
        ];
        counts.contains(&finding.problem)
    };
    let mut counts = report.findings.iter().filter(counts);
    match counts.all(may_be_left) {
        true => Ok(()),
        false => Err(format!("audit of what is stored:\n{report}")),
    }
}

/// Whether the `..` of a directory of one name does not lead where that is. Only that of one with
/// two names may lead to either, and that of one with none anywhere.
fn has_stray_parent(report: &Report) -> bool {
    let details = report.findings.iter().map(|finding| &*finding.detail);
    // "directory 14: 'C' names 16, which was moved", or "which changed places with 17"
    let other_names = details.clone().flat_map(|detail| {
        let Some((named, what)) = detail.rsplit_once(", which ") else {
            return [None; 2];
        };
        let named = named.rsplit_once(" names ").map(|(_, ino)| ino);
        [named, what.strip_prefix("changed places with ")]
    });
    let other_names: Vec<&str> = other_names.flatten().collect();
    // "directory 16: '..' names 14, not 15"
    let mut parents = details.filter_map(|detail| {
        let (dir, _) = detail.split_once(": '..' names ")?;
        dir.strip_prefix("directory ")
    });
    parents.any(|dir| !other_names.contains(&dir))
}

/// Whether a crash may leave this, by the table of the design: bits of what nobody uses, counts
/// that are too high, inodes that were being made or removed, and directories that were being
/// moved.
fn may_be_left(finding: &Finding) -> bool {
    let numbers = || {
        let parts = finding.detail.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse::<u64>().ok())
    };
    match finding.problem {
        Problem::Damage
        | Problem::Nameless
        | Problem::Journal
        | Problem::Field
        | Problem::Features
        | Problem::Index
        | Problem::Padding
        | Problem::DeadEntry
        | Problem::EntryKind => false,
        // "inode 12 has 2 names, and counts 3"
        Problem::LinkCount => {
            matches!(numbers().collect::<Vec<_>>()[..], [_, has, counts] if counts > has)
        }
        // "group 0: 3 blocks are free and marked as in use, 0 are in use and marked as free"
        Problem::BlockBitmap | Problem::InodeBitmap => numbers().next_back() == Some(0),
        Problem::Interrupted
        | Problem::TwoNames
        | Problem::Orphan
        | Problem::RemovalTime
        | Problem::Size
        | Problem::BlockCount
        | Problem::GroupCounts
        | Problem::FreeCounts => true,
    }
}

impl Volume for Ffs {
    /// Without a journal nothing is durable together.
    fn batches(&self) -> u64 {
        self.transactions()
    }

    fn unmount(&self) -> vfs::Result<()> {
        Ffs::unmount(self)?;
        match self.status().out_of_order {
            0 => Ok(()),
            _ => Err(vfs::Error::medium("changes waited for each other")),
        }
    }

    /// Steps of the reclaim: how much each looks at is not to be chosen.
    fn search(&self, budget: u64) -> vfs::Result<()> {
        let mut steps = 0..1 + budget / OF_A_STEP;
        while steps.next().is_some() && self.reclaim_step()? {}
        Ok(())
    }

    fn snapshot(&self, op: &Op) -> vfs::Result<()> {
        snapshots::run(self, op)
    }

    fn own(&self) -> Option<&'static [u8]> {
        Some(ffs::SNAPSHOTS_DIR)
    }

    fn snapshot_trees(&self) -> Result<BTreeMap<String, Tree>, Flaw> {
        snapshots::trees(self)
    }

    fn time_passes(&self) -> vfs::Result<()> {
        match self.scatters_waves() {
            true => self.tick(),
            false => Ok(()),
        }
    }
}

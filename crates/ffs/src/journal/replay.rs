//! Replay: what a crash left in the log is written home.
//!
//! 1. *Scan*: the log is read from its start to the last transaction that is whole. Of each block
//!    the newest copy counts, unless that transaction or a newer one revoked it.
//! 2. *Verify*: those copies have the checksums of their tags. Until here nothing is changed.
//! 3. *Write* them home; flush; mark the log empty, durably; only then clear `needs_recovery`.
//!
//! A crash within finds the same log again and writes the same copies, or finds it empty and all
//! copies durable. After it transactions go on with a number that the scan has not seen, so what
//! is left in the log of one without a commit block is never taken for a part of a later one.

use std::collections::{BTreeMap, HashMap};

use block::{Buffer, Disk};
use vfs::{Error, Result};
use zerocopy::FromBytes;

use super::codec::{BlockKind, Checksums};
use super::{Journal, failed, geometry, needs_recovery, set_flag, without_flag};
use crate::cache::Cache;
use crate::fault::{Fault, injected};
use crate::geometry::{Geometry, MountError};
use crate::inspect::make_durable;
use crate::layout::{SUPERBLOCK_AT, SUPERBLOCK_LEN, Superblock};
use crate::medium::Medium;

/// Bytes of blocks that are in DRAM during a replay, about.
const CACHE_BYTES: usize = 16 << 20;

/// Replays the journal of a file system that says it needs that, with orphans left for later, and
/// returns the disk. Images that cannot be mounted for writing are replayed, too.
///
/// # Errors
/// The image or its journal is damaged: nothing is changed. The disk failed: as after a crash.
pub fn recover(disk: Disk, superblock: &Superblock) -> std::result::Result<Disk, MountError> {
    if !needs_recovery(superblock) {
        return Ok(disk);
    }
    // A commit block that a killed process wrote, and that homes are written upon.
    if !injected(Fault::ReplayUnflushed) {
        make_durable(&disk)?;
    }
    if injected(Fault::ReplayFlagFirst) {
        clear_flag(&disk)?;
    }
    let geometry = geometry(superblock, &disk)?;
    let cache = Cache::new(disk, geometry.block_size, CACHE_BYTES);
    let medium = Medium::unordered(geometry, cache);
    let mut journal = Journal::open(&medium, superblock)?;
    if journal.start().is_some() {
        let plan = Plan::scan(&medium, &journal)?;
        plan.verify(&medium, &journal)?;
        plan.write(&medium, &journal)?;
        if injected(Fault::ReplayTailFirst) {
            journal.set_start(medium.cache.disk(), None, plan.next)?;
        }
        // Their homes are durable before the log forgets them.
        medium.cache.sync()?;
        journal.set_start(medium.cache.disk(), None, plan.next)?;
        log::info!("journal: {} transactions replayed", plan.transactions);
    }
    let disk = medium.cache.into_disk();
    clear_flag(&disk)?;
    Ok(disk)
}

/// Lets the blocks in DRAM be what a replay would make of them, for who only reads. Returns the
/// superblock that results.
///
/// # Errors
/// As [`recover`].
pub fn recover_in_memory(
    medium: &mut Medium,
    superblock: &Superblock,
) -> std::result::Result<Superblock, MountError> {
    let journal = Journal::open(medium, superblock)?;
    if journal.start().is_some() {
        let plan = Plan::scan(medium, &journal)?;
        plan.verify(medium, &journal)?;
        for (&home, copy) in &plan.copies {
            plan.put(medium, &journal, home, copy)?;
        }
    }
    let block_size = u64::from(medium.geometry.block_size);
    let block = medium.cache.read(SUPERBLOCK_AT / block_size)?;
    let at = (SUPERBLOCK_AT % block_size) as usize;
    let bytes = block.bytes();
    let read = Superblock::read_from_bytes(&bytes[at..at + SUPERBLOCK_LEN]);
    let superblock = without_flag(&read.expect("of that size"));
    // Also the superblock may be in the log: with a feature more, say.
    let geometry = geometry(&superblock, medium.cache.disk())?;
    if geometry.block_size != medium.geometry.block_size {
        let what = "superblock: its copy in the journal has another block size";
        return Err(geometry.damage(geometry.first_block, what).into());
    }
    medium.set_geometry(geometry);
    Ok(superblock)
}

/// Clears `needs_recovery`, durably. The log is empty.
fn clear_flag(disk: &Disk) -> Result<()> {
    let read = disk.read(SUPERBLOCK_AT, vec![Buffer::zeroed(SUPERBLOCK_LEN)]);
    let read = read.map_err(failed)?;
    let mut superblock = Superblock::read_from_bytes(&read[0]).expect("of that size");
    set_flag(disk, &mut superblock, false)
}

/// What is to be written home.
pub(super) struct Plan {
    /// By home: the newest copy of each block.
    copies: BTreeMap<u64, LoggedCopy>,
    /// Transactions in the log.
    transactions: u32,
    /// The first number of a transaction that the log does not have.
    pub(super) next: u32,
}

/// A copy in the log.
#[derive(Clone, Copy)]
struct LoggedCopy {
    /// Where it is in the journal.
    block: u32,
    /// The number of its transaction, and how many whole ones are before that.
    sequence: u32,
    index: u32,
    escaped: bool,
    sum: u32,
}

/// The scan of a log.
struct Scan<'a> {
    medium: &'a Medium,
    journal: &'a Journal,
    /// The next block, and how many were passed.
    at: u32,
    passed: u32,
    sequence: u32,
    copies: BTreeMap<u64, LoggedCopy>,
    /// Blocks that were revoked, and the last transaction that did it.
    revoked: HashMap<u64, u32>,
    transactions: u32,
    last_commit: (u64, u32),
}

/// What was found of a transaction whose end is not reached.
#[derive(Default)]
struct Open {
    copies: Vec<(u64, LoggedCopy)>,
    revoked: Vec<u64>,
    /// The first thing that is wrong with it: matters only if it was committed.
    damage: Option<Error>,
}

impl Plan {
    /// What a log that is not empty has.
    ///
    /// # Errors
    /// It is damaged; the disk failed.
    pub(super) fn scan(medium: &Medium, journal: &Journal) -> Result<Plan> {
        let (at, sequence) = journal.start().expect("a log that is not empty");
        let mut scan = Scan {
            medium,
            journal,
            at,
            passed: 0,
            sequence,
            copies: BTreeMap::new(),
            revoked: HashMap::new(),
            transactions: 0,
            last_commit: (0, 0),
        };
        while scan.transaction()? {}
        let Scan {
            mut copies,
            revoked,
            ..
        } = scan;
        // A revoke holds for its own transaction and all before.
        copies.retain(|home, copy| {
            let until = revoked
                .get(home)
                .filter(|_| !injected(Fault::RevokeIgnored));
            until.is_none_or(|&until| copy.index > until)
        });
        if injected(Fault::LastForgotten) {
            copies.retain(|_, copy| copy.index + 1 < scan.transactions);
        }
        Ok(Plan {
            copies,
            transactions: scan.transactions,
            // One is left out: parts of it may be in the log.
            next: scan.sequence.wrapping_add(1),
        })
    }

    /// Checks the checksums of all copies.
    fn verify(&self, medium: &Medium, journal: &Journal) -> Result<()> {
        if journal.codec.checksums == Checksums::None {
            return Ok(());
        }
        for (home, copy) in &self.copies {
            let bytes = read(medium, journal, copy.block)?;
            if journal.codec.copy_sum(copy.sequence, &bytes) != copy.sum {
                let at = journal.ring.disk_block(copy.block);
                let what = format_args!("journal: wrong checksum of a copy of block {home}");
                return Err(medium.geometry.damage(at, what));
            }
        }
        Ok(())
    }

    /// Writes all copies home, not yet durably.
    fn write(&self, medium: &Medium, journal: &Journal) -> Result<()> {
        for (&home, copy) in &self.copies {
            self.put(medium, journal, home, copy)?;
            if medium.cache.dirty_bytes() >= CACHE_BYTES / 2 {
                medium.cache.sync()?;
            }
        }
        Ok(())
    }

    fn put(&self, medium: &Medium, journal: &Journal, home: u64, copy: &LoggedCopy) -> Result<()> {
        let mut bytes = read(medium, journal, copy.block)?;
        if copy.escaped {
            journal.codec.unescape(&mut bytes);
        }
        let replace = |block: &mut [u8]| block.copy_from_slice(&bytes);
        medium.cache.change(home, replace)
    }
}

/// Reads a block of the journal.
fn read(medium: &Medium, journal: &Journal, block: u32) -> Result<Buffer> {
    let size = journal.codec.block_size;
    let at = journal.ring.disk_block(block) * size as u64;
    let read = medium.cache.disk().read(at, vec![Buffer::zeroed(size)]);
    let read = read.map_err(failed)?.into_iter().next();
    Ok(read.expect("the buffer that was handed in"))
}

impl Scan<'_> {
    /// Passes a transaction; false: the log ends before it is whole.
    fn transaction(&mut self) -> Result<bool> {
        let codec = &self.journal.codec;
        let mut open = Open::default();
        loop {
            if self.passed >= self.journal.ring.blocks() {
                return Ok(false);
            }
            let bytes = read(self.medium, self.journal, self.at)?;
            let Some((kind, _)) = codec
                .header(&bytes)
                .filter(|found| found.1 == self.sequence)
            else {
                return Ok(false);
            };
            if !codec.is_sound(kind, &bytes) {
                self.damaged(&mut open, "wrong checksum");
            }
            match kind {
                BlockKind::Commit => return self.commit(open, codec.commit_time(&bytes)),
                BlockKind::Revoke => match codec.revokes(&bytes) {
                    Ok(blocks) => open.revoked.extend(blocks),
                    Err(what) => self.damaged(&mut open, &what),
                },
                BlockKind::Descriptor => self.descriptor(&mut open, &bytes),
            }
            self.pass(1);
        }
    }

    /// Passes the copies of a descriptor, which itself is passed by the caller.
    fn descriptor(&mut self, open: &mut Open, bytes: &[u8]) {
        let tags = self.journal.codec.tags(bytes);
        if let Some(tag) = tags.iter().find(|tag| !self.may_be_home(tag.home)) {
            let what = format!("it has a copy of block {}, which cannot be", tag.home);
            self.damaged(open, &what);
        }
        for tag in tags {
            self.pass(1);
            let copy = LoggedCopy {
                block: self.at,
                sequence: self.sequence,
                index: self.transactions,
                escaped: tag.escaped,
                sum: tag.sum,
            };
            open.copies.push((tag.home, copy));
        }
    }

    /// Copies may be of all blocks but the journal's own, the superblock's among them.
    fn may_be_home(&self, block: u64) -> bool {
        let g: &Geometry = &self.medium.geometry;
        let is_ours = block == g.first_block || g.has_block(block);
        is_ours && !self.journal.ring.contains(block)
    }

    /// The commit block of a transaction was reached.
    fn commit(&mut self, open: Open, time: (u64, u32)) -> Result<bool> {
        if let Some(damage) = open.damage {
            // An older one was left behind by an earlier lap of the log.
            return if time < self.last_commit {
                Ok(false)
            } else {
                Err(damage)
            };
        }
        self.copies.extend(open.copies);
        let revoked = open.revoked.into_iter();
        self.revoked
            .extend(revoked.map(|block| (block, self.transactions)));
        self.pass(1);
        self.last_commit = time;
        self.transactions += 1;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(true)
    }

    fn pass(&mut self, blocks: u32) {
        self.at = self.journal.ring.after(self.at, blocks);
        self.passed = self.passed.saturating_add(blocks);
    }

    fn damaged(&self, open: &mut Open, what: &str) {
        let at = self.journal.ring.disk_block(self.at);
        let damage = || {
            self.medium
                .geometry
                .damage(at, format_args!("journal: {what}"))
        };
        open.damage.get_or_insert_with(damage);
    }
}

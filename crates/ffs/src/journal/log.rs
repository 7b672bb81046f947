//! The log, written: JBD2's commit and checkpoint.
//!
//! ```text
//! commit      data of mode ordered, copies for snapshots, revokes, descriptors, copies, zeros for
//!             the commit block
//!             flush
//!             commit block; flush                                  the commit point
//! checkpoint  copies home; flush; only then the tail moves; flush
//! ```
//!
//! - **L1.** `needs_recovery` is durable before the log begins anywhere, and cleared when it is
//!   durably empty.
//! - **L2.** A commit block is written when all that it stands for is durable. It is one sector: of
//!   the rest zeros are durable before, so a crash leaves it as a whole or not at all.
//! - **L3.** Room in the log is used again when the tail is durably behind it, and the tail moves
//!   when the newest copies of what it passes are durably home, or in the log behind it.
//! - **L4.** A freed block of which the log has a copy is revoked by the transaction that frees it,
//!   and not written home from then on. It is used for data behind that commit only.
//!
//! One thread writes at a time. Who commits meanwhile joins the next transaction (group commit).
//!
//! ```text
//! lock order: group -> (none); writer -> unsettled
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use block::{Buffer, Disk, Wave};
use parking_lot::{Condvar, Mutex, MutexGuard};
use vfs::{Clock, Error, Result, Time};
use zerocopy::IntoBytes;

use super::codec::CopyTag;
use super::layout::Commit;
use super::replay::Plan;
use super::{Journal, failed, set_flag, write_durably};
use crate::fault::{Fault, injected};
use crate::layout::Superblock;
use crate::medium::Medium;
use crate::transaction::{Transaction, TransactionStore};

/// Blocks of a wave of the checkpoint.
const WAVE_MAX: usize = 1024;

/// What is done with blocks of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataMode {
    /// They are written in place before the commit.
    Ordered,
    /// They are in the log, as metadata are.
    Journaled,
}

/// A log in use.
pub struct Log {
    mode: DataMode,
    clock: Arc<dyn Clock>,
    block_size: usize,
    /// Blocks of the largest transaction, with descriptors and commit block.
    room: usize,
    tags_max: usize,
    revokes_max: usize,
    group: Mutex<Group>,
    /// A transaction was written.
    written: Condvar,
    writer: Mutex<Writer>,
    /// The newest copies in the log of blocks that were not freed since.
    unsettled: Mutex<BTreeMap<u64, Unsettled>>,
}

/// Those who wait for their commit.
#[derive(Default)]
struct Group {
    /// What they want to be durable.
    next: Transaction,
    /// Transactions that were begun, and that are durable.
    begun: u64,
    done: u64,
    is_writing: bool,
    failed: Option<Error>,
}

struct Writer {
    journal: Journal,
    /// The next transaction: where, and its number.
    head: u32,
    sequence: u32,
    /// Transactions in the log, oldest first.
    live: VecDeque<Live>,
    /// Transactions that were written, all in all.
    count: u64,
    last_time: Time,
}

/// A transaction in the log.
struct Live {
    start: u32,
    sequence: u32,
    blocks: u32,
    /// How many were written before it.
    index: u64,
}

struct Unsettled {
    /// [`Live::index`] of its transaction.
    index: u64,
    copy: Arc<Buffer>,
}

impl Log {
    /// Begins to use the journal of a file system, which needs no recovery until then; in
    /// `superblock` and on the disk it does on return, until [`Log::close`].
    ///
    /// # Errors
    /// The journal is damaged or not supported; the disk failed.
    ///
    /// # Panics
    /// If it has to be replayed first.
    pub fn open(
        medium: &Medium,
        superblock: &mut Superblock,
        mode: DataMode,
        clock: Arc<dyn Clock>,
    ) -> Result<Log> {
        assert!(
            !super::needs_recovery(superblock),
            "a journal to be replayed first"
        );
        let mut journal = Journal::open(medium, superblock)?;
        // What was left in it, without the flag, does not count, but must not be taken for ours.
        let sequence = match journal.start() {
            Some(_) => Plan::scan(medium, &journal)?.next,
            None => journal.sequence(),
        };
        journal.allow_revokes();
        let (disk, first) = (medium.cache.disk(), journal.ring.first());
        if !injected(Fault::FlagLate) {
            set_flag(disk, superblock, true)?;
        }
        journal.set_start(disk, Some(first), sequence)?;
        let codec = &journal.codec;
        Ok(Log {
            mode,
            clock,
            block_size: codec.block_size,
            room: journal.ring.blocks() as usize - 1,
            tags_max: codec.tags_max(),
            revokes_max: codec.revokes_max(),
            group: Mutex::default(),
            written: Condvar::new(),
            writer: Mutex::new(Writer {
                journal,
                head: first,
                sequence,
                live: VecDeque::new(),
                count: 0,
                last_time: Time(0),
            }),
            unsettled: Mutex::default(),
        })
    }

    /// Makes the disk alone have all that was committed, the log empty, and then lets the
    /// superblock say so.
    ///
    /// # Errors
    /// The disk failed: the journal has to be replayed.
    pub fn close(&self, disk: &Disk, superblock: &mut Superblock) -> Result<()> {
        let mut writer = self.writer.lock();
        if injected(Fault::FlagFirst) {
            set_flag(disk, superblock, false)?;
        }
        self.checkpoint(disk, &mut writer, self.room)?;
        let sequence = writer.sequence;
        writer.journal.set_start(disk, None, sequence)?;
        set_flag(disk, superblock, false)
    }

    /// Blocks of the log that so many copies and revokes take.
    fn blocks(&self, copies: usize, revokes: usize) -> usize {
        revokes.div_ceil(self.revokes_max) + copies.div_ceil(self.tags_max) + copies + 1
    }

    /// Blocks of the log that a transaction takes at most.
    fn blocks_max(&self, transactions: &[&Transaction]) -> usize {
        let data = |t: &Transaction| match self.mode {
            DataMode::Ordered => 0,
            DataMode::Journaled => t.data.len(),
        };
        let copies = transactions.iter().map(|t| t.copies.len() + data(t)).sum();
        let freed: usize = transactions.iter().map(|t| t.freed.len()).sum();
        // What the log has no copy of is not revoked.
        self.blocks(copies, freed.min(self.room))
    }

    /// Writes the next transaction, or waits for who writes.
    fn step(&self, disk: &Disk, group: &mut MutexGuard<'_, Group>) -> Result<()> {
        if let Some(error) = &group.failed {
            return Err(error.clone());
        }
        if group.is_writing {
            self.written.wait(group);
            return Ok(());
        }
        group.is_writing = true;
        group.begun += 1;
        let transaction = std::mem::take(&mut group.next);
        let result = MutexGuard::unlocked(group, || self.write(disk, transaction));
        group.is_writing = false;
        group.done = group.begun;
        group.failed = result.clone().err();
        self.written.notify_all();
        result
    }

    fn write(&self, disk: &Disk, mut transaction: Transaction) -> Result<()> {
        let mut writer = self.writer.lock();
        if self.mode == DataMode::Journaled {
            let data = std::mem::take(&mut transaction.data);
            transaction.copies.extend(data);
        }
        let Transaction {
            copies,
            data,
            placed,
            freed,
            ..
        } = transaction;
        let mut blocks = copies.keys().chain(data.keys()).chain(placed.keys());
        if let Some(block) = blocks.find(|&&block| writer.journal.ring.contains(block)) {
            let what = format!("block {block}: it is in use, and the journal lies there");
            return Err(Error::corrupt(block * self.block_size as u64, what));
        }
        {
            let unsettled = self.unsettled.lock();
            let is_logged = placed.keys().any(|block| unsettled.contains_key(block));
            assert!(
                !is_logged,
                "a block in place, which the log would write over"
            );
        }
        // L4: of other blocks the log has no copy.
        let revoked: Vec<u64> = {
            let unsettled = self.unsettled.lock();
            let is_logged =
                |block: &u64| unsettled.contains_key(block) && !injected(Fault::RevokeForgotten);
            freed.into_iter().filter(is_logged).collect()
        };
        let needed = self.blocks(copies.len(), revoked.len());
        if writer.free() < needed {
            self.checkpoint(disk, &mut writer, needed)?;
        }
        let (mut wave, mut late) = (Wave::new(), Wave::new());
        for (in_place, bug) in [(data, Fault::DataLate), (placed, Fault::CopyLate)] {
            let wave = match injected(bug) {
                true => &mut late,
                false => &mut wave,
            };
            for (block, bytes) in in_place {
                wave.write(block * self.block_size as u64, bytes);
            }
        }
        let end = writer.put(&mut wave, &copies, &revoked);
        disk.commit(wave).map_err(failed)?;
        writer.commit(disk, end, self.clock.now())?;
        if !late.is_empty() {
            disk.commit(late).map_err(failed)?;
        }
        let index = writer.enter(end, needed as u32);
        let mut unsettled = self.unsettled.lock();
        for block in revoked {
            unsettled.remove(&block);
        }
        for (block, bytes) in copies {
            let copy = Arc::new(bytes);
            unsettled.insert(block, Unsettled { index, copy });
        }
        Ok(())
    }

    /// Writes copies home, from the oldest transaction on, until the log has so many free blocks,
    /// and some more.
    fn checkpoint(&self, disk: &Disk, writer: &mut Writer, needed: usize) -> Result<()> {
        let goal = needed.max(self.room / 4);
        let mut free = writer.free();
        let leave = |live: &&Live| {
            let leaves = free < goal;
            free += live.blocks as usize;
            leaves
        };
        let leaving = writer.live.iter().take_while(leave).count();
        let Some(last) = leaving.checked_sub(1).map(|last| writer.live[last].index) else {
            return Ok(());
        };
        if injected(Fault::TailFirst) {
            writer.leave(disk, leaving)?;
        }
        let unsettled = self.unsettled.lock();
        let old = unsettled.iter().filter(|(_, one)| one.index <= last);
        let old: Vec<_> = old.map(|(&block, one)| (block, one.copy.clone())).collect();
        drop(unsettled);
        for copies in old.chunks(WAVE_MAX) {
            let copies = copies.iter();
            let mut copies =
                copies.map(|(block, copy)| (block * self.block_size as u64, Buffer::clone(copy)));
            if injected(Fault::HomeUnflushed) {
                copies.try_for_each(|(at, copy)| {
                    disk.write(at, vec![copy]).map(drop).map_err(failed)
                })?;
                continue;
            }
            let mut wave = Wave::new();
            copies.for_each(|(at, copy)| wave.write(at, copy));
            disk.commit(wave).map_err(failed)?;
        }
        // L3: only now.
        if !injected(Fault::TailFirst) {
            writer.leave(disk, leaving)?;
        }
        self.unsettled.lock().retain(|_, one| one.index > last);
        Ok(())
    }
}

impl TransactionStore for Log {
    fn commit(&self, disk: &Disk, transaction: Transaction) -> Result<()> {
        assert!(self.fits(&transaction), "a transaction larger than the log");
        let mut group = self.group.lock();
        // What is next then is not written any more, and not to be joined.
        if let Some(error) = &group.failed {
            return Err(error.clone());
        }
        while self.blocks_max(&[&group.next, &transaction]) > self.room {
            self.step(disk, &mut group)?;
        }
        group.next.absorb(transaction);
        let own = group.begun + 1;
        while group.done < own {
            self.step(disk, &mut group)?;
        }
        Ok(())
    }

    fn fits(&self, transaction: &Transaction) -> bool {
        self.blocks_max(&[transaction]) <= self.room
    }

    fn capacity(&self) -> usize {
        // Each has a copy, and at worst a descriptor and a revoke beside it.
        self.room / 3
    }

    fn takes_data(&self) -> bool {
        self.mode == DataMode::Journaled
    }

    fn newest(&self, block: u64) -> Option<Arc<Buffer>> {
        let unsettled = self.unsettled.lock();
        unsettled.get(&block).map(|one| one.copy.clone())
    }

    fn settle(&self, disk: &Disk) -> Result<()> {
        self.checkpoint(disk, &mut self.writer.lock(), self.room)
    }
}

impl Writer {
    /// Blocks of the log that may be used. One stays unused.
    fn free(&self) -> usize {
        let used: u32 = self.live.iter().map(|live| live.blocks).sum();
        (self.journal.ring.blocks() - used) as usize - 1
    }

    /// Puts all of a transaction but its commit block into a wave: the block for that.
    fn put(&self, wave: &mut Wave, copies: &BTreeMap<u64, Buffer>, revoked: &[u64]) -> u32 {
        let (codec, ring) = (&self.journal.codec, &self.journal.ring);
        let mut at = self.head;
        let mut put = |bytes: Buffer| {
            wave.write(ring.disk_block(at) * codec.block_size as u64, bytes);
            at = ring.after(at, 1);
        };
        for blocks in revoked.chunks(codec.revokes_max()) {
            put(Buffer::copy_of(&codec.put_revokes(self.sequence, blocks)));
        }
        let copies: Vec<_> = copies.iter().collect();
        for copies in copies.chunks(codec.tags_max()) {
            let (mut tags, mut escaped) = (Vec::new(), Vec::new());
            for &(&home, copy) in copies {
                let mut copy = copy.clone();
                let is_escaped = codec.escape(&mut copy);
                tags.push(CopyTag {
                    home,
                    escaped: is_escaped,
                    sum: codec.copy_sum(self.sequence, &copy),
                });
                escaped.push(copy);
            }
            put(Buffer::copy_of(&codec.put_descriptor(self.sequence, &tags)));
            escaped.into_iter().for_each(&mut put);
        }
        // L2: of the commit block only the first sector changes behind the flush.
        let (end, mut zeros) = (at, Buffer::zeroed(codec.block_size));
        if injected(Fault::CommitEarly) {
            zeros[..size_of::<Commit>()].copy_from_slice(self.commit_block().as_bytes());
        }
        wave.write(ring.disk_block(end) * codec.block_size as u64, zeros);
        end
    }

    /// What the commit block of the next transaction begins with.
    fn commit_block(&self) -> Commit {
        let time = (self.last_time.secs() as u64, self.last_time.nanos());
        self.journal.codec.put_commit(self.sequence, time)
    }

    /// Commits a transaction of which all else is durable, by the commit block `end`.
    fn commit(&mut self, disk: &Disk, end: u32, now: Time) -> Result<()> {
        // Replay takes an older time for a sign that the block is of an earlier lap.
        self.last_time = self.last_time.max(now);
        let commit = self.commit_block();
        let at = self.journal.ring.disk_block(end) * self.journal.codec.block_size as u64;
        // Commit point.
        write_durably(disk, at, commit.as_bytes(), Some(Fault::CommitUnflushed))
    }

    /// Lets the log begin behind its oldest transactions, of which there are so many, durably.
    fn leave(&mut self, disk: &Disk, leaving: usize) -> Result<()> {
        self.live.drain(..leaving);
        let (start, sequence) = match self.live.front() {
            Some(oldest) => (oldest.start, oldest.sequence),
            None => (self.head, self.sequence),
        };
        self.journal.set_start(disk, Some(start), sequence)
    }

    /// Counts the transaction in that ends at `end`: its index.
    fn enter(&mut self, end: u32, blocks: u32) -> u64 {
        let index = self.count;
        self.live.push_back(Live {
            start: self.head,
            sequence: self.sequence,
            blocks,
            index,
        });
        self.head = self.journal.ring.after(end, 1);
        self.sequence = self.sequence.wrapping_add(1);
        self.count += 1;
        index
    }
}

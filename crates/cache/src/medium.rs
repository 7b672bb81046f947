//! Typed access to what is stored.

use std::sync::Arc;

use pmem::Pool;

use crate::fault::{Fault, injected};
use crate::layout::{BLOCK, COMMIT_AT, Record, SUPERBLOCK_LEN, Slot, State, Superblock};
use crate::{CacheError, Kind};

/// The memory of a cache.
pub struct Medium {
    pool: Arc<Pool>,
    /// Where everything lies.
    pub geometry: Superblock,
}

impl Medium {
    /// The cache that is in a pool.
    ///
    /// # Errors
    /// There is none, or its superblock and the copy are damaged.
    pub fn open(pool: Arc<Pool>) -> Result<Medium, CacheError> {
        let read = |at: u64| {
            let mut bytes = [0; SUPERBLOCK_LEN];
            pool.read(at, &mut bytes);
            Superblock::read(&bytes, pool.len())
        };
        if pool.len() < 3 * BLOCK {
            return Err(CacheError::NotACache("it is too small for one".to_owned()));
        }
        // The copy is the last page of what the cache was made to fill.
        let geometry = read(0).or_else(|error| read(last_page(&pool)).map_err(|_| error))?;
        Ok(Medium { pool, geometry })
    }

    /// Makes an empty cache in a pool, durably.
    ///
    /// # Errors
    /// The memory failed.
    pub fn create(pool: Arc<Pool>, geometry: Superblock) -> Result<Medium, CacheError> {
        // It is none until all of it is there, and from the moment on at which anything of the one
        // before may be gone.
        for at in [last_page(&pool), 0] {
            pool.zero(at, SUPERBLOCK_LEN as u64);
            pool.flush(at, SUPERBLOCK_LEN as u64);
        }
        pool.fence()?;
        for (at, len) in [(0, geometry.blocks_at()), (last_page(&pool), BLOCK)] {
            pool.zero(at, len);
            pool.flush(at, len);
        }
        pool.fence()?;
        let medium = Medium { pool, geometry };
        medium.store_superblock()?;
        Ok(medium)
    }

    /// Stores the superblock: the copy first, then the other, so that one of them is whole.
    ///
    /// # Errors
    /// The memory failed.
    pub fn store_superblock(&self) -> Result<(), CacheError> {
        self.replace_superblock(&self.geometry)
    }

    /// Stores another superblock in its place.
    ///
    /// # Errors
    /// The memory failed.
    pub fn replace_superblock(&self, superblock: &Superblock) -> Result<(), CacheError> {
        for at in [last_page(&self.pool), 0] {
            self.pool.write(at, &superblock.bytes());
            self.pool.flush(at, SUPERBLOCK_LEN as u64);
            self.pool.fence()?;
        }
        Ok(())
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The lowest position of the transaction that is being committed, and the one behind it.
    pub fn head_and_tail(&self) -> (u64, u64) {
        (self.pool.load(COMMIT_AT), self.pool.load(COMMIT_AT + 8))
    }

    /// Moves Head.
    pub fn set_head(&self, head: u64) {
        self.pool.store(COMMIT_AT, head);
        self.pool.flush(COMMIT_AT, 8);
    }

    /// Moves Tail.
    pub fn set_tail(&self, tail: u64) {
        self.pool.store(COMMIT_AT + 8, tail);
        self.pool.flush(COMMIT_AT + 8, 8);
    }

    /// Requests write-back of the superblock and its copy.
    pub fn flush_superblocks(&self) {
        for at in [last_page(&self.pool), 0] {
            self.pool.flush(at, SUPERBLOCK_LEN as u64);
        }
    }

    /// Requests write-back of the commit line.
    pub fn flush_commit_line(&self) {
        self.pool.flush(COMMIT_AT, 16);
    }

    /// The memory has not failed. Behind a failure nothing is stored any more: what was being
    /// changed then, and what undoes it, stay as they are for the next life; readers have copies of
    /// what was before.
    ///
    /// # Errors
    /// It has.
    pub fn check(&self) -> Result<(), CacheError> {
        self.pool
            .poisoned()
            .map_or(Ok(()), |error| Err(error.into()))
    }

    /// All that was flushed before is durable.
    ///
    /// # Errors
    /// The memory failed.
    pub fn fence(&self) -> Result<(), CacheError> {
        Ok(self.pool.fence()?)
    }

    fn slot_at(&self, position: u64) -> u64 {
        self.geometry.ring_at() + position % self.geometry.slots * 16
    }

    fn lap(&self, position: u64) -> u64 {
        position / self.geometry.slots
    }

    /// The slot at a position, if it is of its lap.
    pub fn slot(&self, position: u64) -> Option<Slot> {
        let at = self.slot_at(position);
        let words = [self.pool.load(at), self.pool.load(at + 8)];
        Slot::of(words, self.lap(position))
    }

    /// Stores slots from a position on.
    pub fn set_slots(&self, position: u64, slots: &[Slot]) {
        for (slot, position) in slots.iter().zip(position..) {
            let at = self.slot_at(position);
            let [entry, old] = slot.words(self.lap(position));
            self.pool.store(at, entry);
            self.pool.store(at + 8, old);
        }
        let first = position % self.geometry.slots;
        let before_the_end = (slots.len() as u64).min(self.geometry.slots - first);
        self.pool.flush(self.slot_at(position), before_the_end * 16);
        let rest = slots.len() as u64 - before_the_end;
        self.pool.flush(self.geometry.ring_at(), rest * 16);
    }

    fn record_at(&self, number: u64) -> u64 {
        self.geometry.log_at() + number * self.geometry.record_len()
    }

    /// A record of the log, if it is of the transaction with this Tail, and what it keeps.
    pub fn record(&self, number: u64, tail: u64) -> Option<(Record, Vec<u8>)> {
        let at = self.record_at(number);
        let words = [0, 8, 16].map(|word| self.pool.load(at + word));
        if words[0] != tail && !injected(Fault::StaleRecord) {
            return None;
        }
        let mut bytes = vec![0; self.geometry.unit as usize];
        self.pool.read(at + crate::layout::LINE, &mut bytes);
        Record::of(words, &bytes, tail).map(|record| (record, bytes))
    }

    /// Stores a record: what a unit is before a transaction.
    pub fn set_record(&self, number: u64, record: Record) {
        let at = self.record_at(number);
        let mut old = [0; BLOCK as usize];
        let old = &mut old[..self.geometry.unit as usize];
        self.pool.read(record.at, old);
        for (word, offset) in record.words(old).into_iter().zip((0..).step_by(8)) {
            self.pool.store(at + offset, word);
        }
        self.pool.write(at + crate::layout::LINE, old);
        self.pool.flush(at, self.geometry.record_len());
    }

    /// Where an entry is.
    pub fn entry_at(&self, entry: u32) -> u64 {
        self.geometry.entries_at() + u64::from(entry) * 16
    }

    /// What an entry says: the disk's block, and of it.
    pub fn entry(&self, entry: u32) -> (u64, State) {
        let at = self.entry_at(entry);
        (self.pool.load(at), State::of(self.pool.load(at + 8)))
    }

    /// Changes what an entry says, and requests write-back of that.
    pub fn set_state(&self, entry: u32, state: State) {
        self.store_state(entry, state);
        self.pool.flush(self.entry_at(entry), 16);
    }

    /// Changes what an entry says.
    pub fn store_state(&self, entry: u32, state: State) {
        self.pool.store(self.entry_at(entry) + 8, state.word());
    }

    /// Lets an entry that is free be of another block of the disk: in the line of its state, so no
    /// crash has the state that follows without it (M5).
    pub fn set_disk(&self, entry: u32, disk: u64) {
        self.pool.store(self.entry_at(entry), disk);
    }

    /// Requests write-back of all entries.
    pub fn flush_entries(&self) {
        self.pool
            .flush(self.geometry.entries_at(), self.geometry.blocks * 16);
    }

    /// Where a block is.
    pub fn block_at(&self, block: u32) -> u64 {
        self.geometry.blocks_at() + u64::from(block) * BLOCK
    }

    /// Whether a unit of a block begins here.
    pub fn is_unit(&self, at: u64) -> bool {
        let blocks = self.geometry.blocks_at()..self.geometry.copy_at();
        blocks.contains(&at) && (at - blocks.start).is_multiple_of(self.geometry.unit)
    }

    /// Reads from a block.
    pub fn read_block(&self, block: u32, offset: usize, into: &mut [u8]) {
        self.pool.read(self.block_at(block) + offset as u64, into);
    }

    /// Fills a block that nothing leads to; durable behind the next fence.
    pub fn write_block(&self, block: u32, bytes: &[u8]) {
        let at = self.block_at(block);
        self.pool.write_nt(at, bytes);
        // Around the cache there is nothing to flush but where memory is a cache of a disk.
        if self.pool.domain() == pmem::Domain::Page {
            self.pool.flush(at, BLOCK);
        }
    }

    /// Changes a unit in its place.
    pub fn write_unit(&self, at: u64, bytes: &[u8]) {
        self.pool.write(at, bytes);
        self.pool.flush(at, bytes.len() as u64);
    }

    /// The protocol.
    pub fn kind(&self) -> Kind {
        self.geometry.kind
    }
}

fn last_page(pool: &Pool) -> u64 {
    pool.len() / BLOCK * BLOCK - BLOCK
}

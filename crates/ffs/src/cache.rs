//! Blocks of the disk in DRAM, found by their number, and which of them are to be written. Those
//! that are neither in use nor to be written are of a bounded number: others make way, those first
//! that nobody asked for since it was last their turn (second chance).
//!
//! A block is changed in DRAM, and is *dirty* until a copy of it is taken to be written. Of a dirty
//! block that may well be as the disk has it again, the bytes of the disk are kept beside it: it is
//! not written then.
//!
//! A block is in its shard before it is read, and its bytes are locked meanwhile: whoever asks for
//! it, or changes it, waits for what the disk has. So there is one copy of a block at any time, and
//! nobody brings back what the disk had before somebody else changed and wrote it.
//!
//! Where what is written together is a transaction, and some of it has to be durable before the
//! rest, that is [committed apart](Cache::commit_apart), in blocks [as they are
//! committed](Cache::committed).
//!
//! Locks: that of writing, then that of one block's bytes, then that of the dirty blocks. The lock
//! of a shard is a leaf: nobody takes another one, or reads, with it held.

mod dirty;
mod freed;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Buffer, Disk, Wave};
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use schedule::RwLock;
use vfs::{Error, Result};

use crate::fault::{Fault, injected};
use crate::frozen::Frozen;
use crate::near::NearMap;
use crate::shared::{BriefMutex, PARTS, Padded, part_of};
use crate::transaction::{Transaction, TransactionStore};
pub use dirty::Class;
use dirty::{Counts, Dirty, Flag};
use freed::Freed;

/// Writes of a wave.
pub const WAVE_MAX: usize = 1024;
/// Blocks that one request reads.
const RUN_MAX: u64 = 256;
/// Bytes that an operation changes beside a fixed number of blocks, where what is written together
/// is bounded.
const OPERATION_MAX: usize = 4 << 20;

/// Blocks of a disk.
pub struct Cache {
    disk: Disk,
    block_size: usize,
    shards: [Padded<BriefMutex<Shard>>; PARTS],
    /// Blocks of a shard from which on others make way.
    shard_max: usize,
    dirty: BriefMutex<Dirty>,
    dirty_counts: Arc<Counts>,
    /// Held by who writes.
    writing: Mutex<()>,
    /// Who makes transactions durable, if they are.
    store: Option<Arc<dyn TransactionStore>>,
    /// Blocks of a transaction that are kept for what no operation changes.
    reserved: usize,
    /// What blocks were at some moment.
    frozen: Frozen,
    /// What the next transaction frees.
    freed: Freed,
    /// The disk failed a change on its way: something may be in use that nobody has.
    may_have_lost: AtomicBool,
}

/// A block in DRAM.
pub struct Block {
    bytes: RwLock<Buffer>,
    /// The bytes are the block's: they were read, or made here. Becomes true with them locked;
    /// until then they are zeros.
    is_there: AtomicBool,
    /// Whether it is to be written.
    dirty: Flag,
    /// It was nobody's when the last transaction was copied. Changes with the bytes locked, for
    /// writing or by who writes.
    is_new: AtomicBool,
    /// Of a dirty block, if it is worth it: what the disk has.
    durable: Mutex<Option<Buffer>>,
}

/// What is to be written of a block.
pub struct Copied {
    /// Its number.
    pub number: u64,
    block: Arc<Block>,
    class: Class,
    /// It is nobody's until what is written together with it is durable.
    is_new: bool,
    /// Its bytes, as the disk may have them.
    pub bytes: Buffer,
    /// What the disk has, if that was kept. Who changes the block from here on takes what is
    /// being written for that.
    before: Option<Buffer>,
}

impl Copied {
    /// Whether the disk has it already.
    pub fn is_there(&self) -> bool {
        self.before
            .as_ref()
            .is_some_and(|before| **before == *self.bytes)
    }
}

impl Block {
    /// One that is to be read.
    fn unread(len: usize) -> Block {
        Block {
            bytes: RwLock::new(Buffer::zeroed(len)),
            is_there: AtomicBool::new(false),
            dirty: Flag::default(),
            is_new: AtomicBool::new(false),
            durable: Mutex::default(),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> RwLockReadGuard<'_, Buffer> {
        self.bytes.read()
    }
}

#[derive(Default)]
struct Shard {
    blocks: NearMap<u64, Cached>,
    /// Their numbers, whose turn is next in front.
    turns: VecDeque<u64>,
}

struct Cached {
    block: Arc<Block>,
    /// Asked for since it was last its turn.
    used: bool,
}

fn failed(error: impl ToString) -> Error {
    Error::medium(error.to_string())
}

impl Cache {
    /// A cache of up to `bytes` bytes of a disk, in blocks of `block_size`.
    pub fn new(disk: Disk, block_size: u32, bytes: usize) -> Cache {
        let block_size = block_size as usize;
        let dirty = Dirty::default();
        Cache {
            disk,
            block_size,
            shards: Default::default(),
            shard_max: (bytes / block_size / PARTS).max(1),
            dirty_counts: dirty.counts(),
            dirty: BriefMutex::new(dirty),
            writing: Mutex::default(),
            store: None,
            reserved: 0,
            frozen: Frozen::default(),
            freed: Freed::default(),
            may_have_lost: AtomicBool::default(),
        }
    }

    /// The same, of which what is written together is a transaction. Of its blocks so many are kept
    /// for what is changed between operations.
    pub fn journaled(self, store: Arc<dyn TransactionStore>, reserved: usize) -> Cache {
        Cache {
            store: Some(store),
            reserved,
            ..self
        }
    }

    /// Bytes of blocks that operations change and that may be written together.
    pub fn together_max(&self) -> usize {
        let capacity = |store: &Arc<dyn TransactionStore>| store.capacity();
        let blocks = self.store.as_ref().map_or(usize::MAX, capacity);
        let blocks = blocks.saturating_sub(self.reserved);
        blocks.saturating_mul(self.block_size)
    }

    /// Bytes that are to be written and take room in the next transaction.
    pub fn together(&self) -> usize {
        let blocks = match self.takes_data() {
            true => self.dirty_counts.all(),
            false => self.dirty_counts.metadata(),
        };
        (blocks + self.freed.blocks()) * self.block_size
    }

    /// Whether contents of files take room in a transaction.
    pub fn takes_data(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.takes_data())
    }

    /// Bytes of contents that one operation changes at most. Each block of them may be the only new
    /// one of its group, so with bitmaps it is twice as much; the other half is for what is freed.
    pub fn contents_max(&self) -> usize {
        (self.operation_max() / 4).max(self.block_size)
    }

    /// Of so many [places](Cache::freed_place) one operation frees blocks at most.
    pub fn freed_max(&self) -> usize {
        let blocks = self.operation_max() / self.block_size / 2;
        (blocks / self.freed.of_each()).max(1)
    }

    /// From here on there are snapshots, which may keep what a transaction frees.
    pub fn keep_freed(&self) {
        self.freed.keep();
    }

    /// Where a block is, for who counts what changes if it is freed: those of one place cost no
    /// more than one.
    pub fn freed_place(&self, group: u64, number: u64) -> (u64, u64) {
        (group, self.freed.range(number, self.block_size))
    }

    /// The running transaction frees a block.
    pub fn note_freed(&self, number: u64) {
        if self.store.is_some() {
            self.freed.note(number, self.block_size);
        }
    }

    /// What the running transaction frees is known by who completes it.
    pub fn take_freed(&self) {
        self.freed.take();
    }

    /// Bytes that one operation changes at most, beside a fixed number of blocks, so that some have
    /// room in what is written together.
    pub fn operation_max(&self) -> usize {
        match self.store {
            Some(_) => (self.together_max() / 4).min(OPERATION_MAX),
            None => usize::MAX,
        }
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The disk, for what is not in blocks.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The disk again. What was to be written is lost.
    pub fn into_disk(self) -> Disk {
        self.disk
    }

    /// The block of this number. Who asks first reads it, and others wait for him; if he fails, the
    /// next one tries.
    ///
    /// # Errors
    /// The disk failed.
    ///
    /// # Panics
    /// If the disk has no such block.
    pub fn read(&self, number: u64) -> Result<Arc<Block>> {
        self.read_with(number, 1)
    }

    /// The same. If it has to be read, so are those behind it, up to `count` in all, in one
    /// request, as far as they are not in DRAM, and nobody has them.
    ///
    /// # Errors
    /// The disk failed to read this block.
    ///
    /// # Panics
    /// If the disk has no such block.
    pub fn read_with(&self, number: u64, count: u64) -> Result<Arc<Block>> {
        let block = self.block(number);
        if !block.is_there.load(Ordering::Acquire) {
            let mut bytes = block.bytes.write();
            if !block.is_there.load(Ordering::Relaxed) {
                if count == 1 || !self.read_run(number, &mut bytes, count) {
                    self.read_into(number, &mut bytes)?;
                }
                schedule::point("a block was read");
                block.is_there.store(true, Ordering::Release);
            }
        }
        Ok(block)
    }

    /// Reads a block, and those behind it, which nobody is kept waiting for; false: it has to be
    /// read alone, and nothing has changed.
    fn read_run(&self, number: u64, bytes: &mut Buffer, count: u64) -> bool {
        // Part of the disk as it was committed is elsewhere.
        let is_elsewhere =
            |number| matches!(&self.store, Some(store) if store.newest(number).is_some());
        if is_elsewhere(number) {
            return false;
        }
        let is_there = |block: &Block| block.is_there.load(Ordering::Acquire);
        let behind: Vec<_> = (number + 1..number + count.min(RUN_MAX))
            .take_while(|&number| !is_elsewhere(number))
            .map(|number| self.block(number))
            .take_while(|block| !is_there(block))
            .collect();
        let mut latched: Vec<RwLockWriteGuard<'_, Buffer>> = Vec::new();
        for block in &behind {
            // Somebody may have been faster.
            let Some(bytes) = block.bytes.try_write().filter(|_| !is_there(block)) else {
                break;
            };
            latched.push(bytes);
        }
        if latched.is_empty() {
            return false;
        }
        let into = (0..=latched.len()).map(|_| Buffer::zeroed(self.block_size));
        let at = number * self.block_size as u64;
        // What fails is read again, alone: it may be what nobody has asked for.
        let Ok(read) = self.disk.read(at, into.collect()) else {
            return false;
        };
        let mut read = read.into_iter();
        *bytes = read.next().expect("the buffers that were handed in");
        for ((block, latched), read) in behind.iter().zip(&mut latched).zip(read) {
            **latched = read;
            block.is_there.store(true, Ordering::Release);
        }
        true
    }

    /// The block of this number, which may have to be read.
    fn block(&self, number: u64) -> Arc<Block> {
        let shard = self.shard(number);
        if let Some(block) = shard.lock().find(number) {
            return block;
        }
        let block = Arc::new(Block::unread(self.block_size));
        let mut shard = shard.lock();
        if let Some(block) = shard.find(number) {
            return block;
        }
        shard.insert(number, block.clone(), self.shard_max);
        block
    }

    /// Lets bytes be what is durable of a block.
    fn read_into(&self, number: u64, bytes: &mut Buffer) -> Result<()> {
        if let Some(newest) = self.store.as_ref().and_then(|store| store.newest(number)) {
            bytes.copy_from_slice(&newest);
            return Ok(());
        }
        *bytes = self.read_in_place(number)?;
        Ok(())
    }

    /// A change has failed on its way. If that was the disk, something may be in use that nobody
    /// has, until that was searched for.
    pub fn note_failure(&self, error: &Error) {
        if matches!(error, Error::Medium(_)) {
            self.may_have_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a change has.
    pub fn may_have_lost(&self) -> bool {
        self.may_have_lost.load(Ordering::Relaxed)
    }

    /// What blocks were at some moment, for who checks that.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// Consecutive blocks as they were at the frozen moment, past what is in DRAM.
    ///
    /// # Errors
    /// The disk failed.
    pub fn read_frozen(&self, first: u64, blocks: u32) -> Result<Buffer> {
        let mut all = Buffer::zeroed(self.block_size * blocks as usize);
        if self.store.is_none() {
            let read = self.disk.read(first * self.block_size as u64, vec![all]);
            let read = read.map_err(failed)?.into_iter().next();
            all = read.expect("the buffer that was handed in");
        }
        for (number, bytes) in (first..).zip(all.chunks_exact_mut(self.block_size)) {
            if self.store.is_some() {
                let mut one = Buffer::zeroed(self.block_size);
                self.read_into(number, &mut one)?;
                bytes.copy_from_slice(&one);
            }
            let kept = self.frozen.kept(number);
            if let Some(kept) = kept.filter(|_| !injected(Fault::FrozenIgnored)) {
                bytes.copy_from_slice(&kept);
            }
        }
        Ok(all)
    }

    /// Keeps what is about to be written over, if somebody wants to see it.
    fn keep(&self, copies: &[Copied]) -> Result<()> {
        if !self.frozen.keeps() {
            return Ok(());
        }
        for copied in copies.iter().filter(|copied| !copied.is_there()) {
            let number = copied.number;
            if !self.frozen.wants(number, copied.before.is_some()) {
                continue;
            }
            let before = match &copied.before {
                Some(before) => before.clone(),
                None => {
                    let mut before = Buffer::zeroed(self.block_size);
                    self.read_into(number, &mut before)?;
                    before
                }
            };
            self.frozen.keep(number, before);
        }
        Ok(())
    }

    /// Changes a block.
    ///
    /// # Errors
    /// The disk failed.
    pub fn change<T>(&self, number: u64, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change_block(number, Class::Metadata, change)
    }

    /// Changes a block if something is found in it: that.
    ///
    /// # Errors
    /// The disk failed.
    pub fn change_found<T>(
        &self,
        number: u64,
        find: impl FnOnce(&[u8]) -> Option<T>,
        change: impl FnOnce(&mut [u8], &T),
    ) -> Result<Option<T>> {
        let block = self.read(number)?;
        let mut bytes = block.bytes.write();
        let Some(found) = find(&bytes) else {
            return Ok(None);
        };
        self.dirty(number, &block, Class::Metadata, || Some(bytes.clone()));
        change(&mut bytes, &found);
        Ok(Some(found))
    }

    /// Changes a block of data of an inode, of which nobody expects that it will be as it was.
    ///
    /// # Errors
    /// The disk failed.
    pub fn overwrite(&self, number: u64, ino: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        self.change_block(number, Class::Data { ino }, change)
    }

    fn change_block<T>(
        &self,
        number: u64,
        class: Class,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let block = self.read(number)?;
        let mut bytes = block.bytes.write();
        let may_return = class == Class::Metadata;
        self.dirty(number, &block, class, || may_return.then(|| bytes.clone()));
        Ok(change(&mut bytes))
    }

    /// Lets a block of data of an inode be other bytes, whatever the disk has: that is not read.
    ///
    /// # Panics
    /// Unless they are a whole block.
    pub fn replace(&self, number: u64, ino: u32, from: &[u8]) {
        let (block, class) = (self.block(number), Class::Data { ino });
        let mut bytes = block.bytes.write();
        bytes.copy_from_slice(from);
        block.is_there.store(true, Ordering::Release);
        self.dirty(number, &block, class, || None);
    }

    /// A block is to be written, its bytes locked by who changes them; `durable`: what the disk has
    /// of it, if that is worth it.
    fn dirty(
        &self,
        number: u64,
        block: &Arc<Block>,
        class: Class,
        durable: impl FnOnce() -> Option<Buffer>,
    ) {
        if !block.dirty.is(class) && !self.dirty.lock().insert(number, block.clone(), class) {
            *block.durable.lock() = durable();
        }
    }

    /// Makes a block read as zeros, whatever the disk has.
    pub fn clear(&self, number: u64) {
        let block = self.block(number);
        let mut bytes = block.bytes.write();
        // What was not read is zeros.
        if block.is_there.swap(true, Ordering::AcqRel) {
            bytes.fill(0);
        }
        block.is_new.store(true, Ordering::Release);
        *block.durable.lock() = None;
        let mut dirty = self.dirty.lock();
        dirty.insert(number, block.clone(), Class::CLEARED);
    }

    /// Forgets what was to be written of a block that is free now. It is cleared before it is
    /// changed again: what is here then is not what the disk has.
    pub fn forget(&self, number: u64) {
        if !injected(Fault::FreedUnkept) {
            self.frozen.block_freed(number);
        }
        self.dirty.lock().remove(number);
    }

    /// Blocks that are to be written.
    pub fn dirty_len(&self) -> usize {
        self.dirty_counts.all()
    }

    /// The numbers of blocks that are to be written.
    pub fn dirty_numbers(&self) -> Vec<u64> {
        self.dirty.lock().numbers()
    }

    /// The numbers of those that are since before a time, in ticks.
    pub fn dirty_since(&self, time: u32) -> Vec<u64> {
        self.dirty.lock().since(time)
    }

    /// A tick has passed. How many have in all.
    pub fn tick(&self) -> u32 {
        self.dirty.lock().tick()
    }

    /// Bytes that are to be written.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty_len() * self.block_size
    }

    /// A block is to be written.
    pub fn is_dirty(&self, number: u64) -> bool {
        self.dirty.lock().get(number).is_some()
    }

    /// Becomes the one who writes.
    pub fn writer(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// The blocks of an inode's data that are to be written.
    pub fn dirty_data(&self, ino: u32) -> Vec<u64> {
        self.dirty.lock().of_file(ino)
    }

    /// Copies those of these blocks that are dirty, at most `max`. They are not dirty any more.
    pub fn copy_dirty(&self, blocks: impl IntoIterator<Item = u64>, max: usize) -> Vec<Copied> {
        let copies = blocks.into_iter().filter_map(|number| self.copy(number));
        copies.take(max).collect()
    }

    /// The copy of a block, if it is dirty. Nobody changes it between the copy and its being clean:
    /// he would take what is here for what the disk has.
    fn copy(&self, number: u64) -> Option<Copied> {
        let block = self.dirty.lock().get(number)?.0.clone();
        let (bytes, before, class, is_new) = {
            let latched = block.bytes();
            let mut dirty = self.dirty.lock();
            // Freed and claimed meanwhile, it is another one.
            let (now, class) = dirty.get(number)?;
            if !Arc::ptr_eq(now, &block) {
                return None;
            }
            dirty.remove(number);
            // If this copy fails it is like any other block from then on.
            let is_new = block.is_new.swap(false, Ordering::AcqRel);
            (latched.clone(), block.durable.lock().take(), class, is_new)
        };
        Some(Copied {
            number,
            block,
            class,
            is_new,
            bytes,
            before,
        })
    }

    /// A block that was copied has more to be written.
    pub fn again(&self, copied: &Copied) {
        let mut dirty = self.dirty.lock();
        if dirty.get(copied.number).is_none() {
            dirty.insert(copied.number, copied.block.clone(), copied.class);
        }
    }

    /// Makes copies durable, as one transaction, in which blocks were freed. If that fails they are
    /// dirty again.
    ///
    /// # Errors
    /// They do not fit a transaction, or the disk failed before: nothing is written. The store
    /// failed.
    ///
    /// # Panics
    /// Unless this is journaled.
    pub fn commit(&self, copies: Vec<Copied>, freed: &[u64]) -> Result<()> {
        let store = self.store.as_ref().expect("a store of transactions");
        // It is written past this disk, which may have been stopped.
        let stopped = self.disk.poisoned().map(failed);
        let mut transaction = Transaction::default();
        freed.iter().for_each(|&block| transaction.free(block));
        let mut damage = None;
        for copied in copies.iter().filter(|copied| !copied.is_there()) {
            let bytes = copied.bytes.clone();
            if matches!(copied.class, Class::Data { .. }) && transaction.frees(copied.number) {
                let what = format!("block {}: it was freed, and is a file's", copied.number);
                let at = copied.number * self.block_size as u64;
                damage = Some(Error::corrupt(at, what));
                break;
            }
            match copied.class {
                Class::Metadata => transaction.write(copied.number, bytes),
                Class::Data { .. } if copied.is_new => {
                    transaction.write_new_data(copied.number, bytes);
                }
                Class::Data { .. } => transaction.write_data(copied.number, bytes),
            }
        }
        let committed = match stopped.or(damage) {
            Some(error) => Err(error),
            None if transaction.is_empty() => Ok(()),
            None if store.fits(&transaction) => {
                let kept = self.keep(&copies);
                kept.and_then(|()| store.commit(&self.disk, transaction))
            }
            None => Err(failed(format_args!(
                "{} changed blocks do not fit a transaction: use a larger cache or journal",
                copies.len()
            ))),
        };
        match committed {
            Ok(()) => self.are_durable(copies),
            Err(_) => copies.iter().for_each(|copied| self.again(copied)),
        }
        committed
    }

    /// What is committed of a block, whatever was changed since. Called by who writes.
    ///
    /// # Errors
    /// The disk failed.
    pub fn committed(&self, number: u64) -> Result<Buffer> {
        let block = self.read(number)?;
        let bytes = block.bytes();
        if !self.is_dirty(number) {
            return Ok(bytes.clone());
        }
        if let Some(durable) = &*block.durable.lock() {
            return Ok(durable.clone());
        }
        let mut committed = Buffer::zeroed(self.block_size);
        self.read_into(number, &mut committed)?;
        Ok(committed)
    }

    /// What the disk has in the place of a block.
    ///
    /// # Errors
    /// The disk failed.
    pub fn read_in_place(&self, number: u64) -> Result<Buffer> {
        let into = vec![Buffer::zeroed(self.block_size)];
        let read = self.disk.read(number * self.block_size as u64, into);
        let read = read.map_err(failed)?.into_iter().next();
        Ok(read.expect("the buffer that was handed in"))
    }

    /// Makes some blocks durable, as a transaction of their own: `shared`, of which operations have
    /// changed more, as they are here; `own`; and `placed`, which are nobody's before, in their
    /// places. Called by who writes.
    ///
    /// # Errors
    /// They do not fit a transaction, or the disk failed.
    ///
    /// # Panics
    /// Unless this is journaled.
    pub fn commit_apart(
        &self,
        shared: BTreeMap<u64, Buffer>,
        [own, placed]: [Vec<Copied>; 2],
    ) -> Result<()> {
        let store = self.store.as_ref().expect("a store of transactions");
        let mut transaction = Transaction::default();
        for (&number, bytes) in &shared {
            transaction.write(number, bytes.clone());
        }
        for copied in &own {
            transaction.write(copied.number, copied.bytes.clone());
        }
        for copied in &placed {
            transaction.place(copied.number, copied.bytes.clone());
        }
        let committed = match self.check() {
            Ok(()) if store.fits(&transaction) => store.commit(&self.disk, transaction),
            Ok(()) => Err(failed("what snapshots get does not fit a transaction")),
            Err(error) => Err(error),
        };
        let copies = own.into_iter().chain(placed);
        if committed.is_err() {
            copies.for_each(|copied| self.again(&copied));
            return committed;
        }
        self.are_durable(copies.collect());
        for (number, bytes) in shared {
            let block = self.read(number)?;
            let mut latched = block.bytes.write();
            match self.is_dirty(number) {
                _ if injected(Fault::PatchForgotten) => {}
                true => *block.durable.lock() = Some(bytes),
                // What is counted elsewhere is not changed here before a round is complete.
                false => *latched = bytes,
            }
        }
        Ok(())
    }

    /// Makes the disk alone have all that was committed. Called by who writes.
    ///
    /// # Errors
    /// The disk failed.
    ///
    /// # Panics
    /// Unless this is journaled.
    pub fn settle(&self) -> Result<()> {
        let store = self.store.as_ref().expect("a store of transactions");
        store.settle(&self.disk)
    }

    /// Makes copies durable, in one wave. Those that are as the disk has them are not written; says
    /// whether there were others. If that fails they are dirty again.
    ///
    /// # Errors
    /// The disk failed.
    pub fn write(&self, copies: Vec<Copied>) -> Result<bool> {
        let mut wave = Wave::new();
        for copied in copies.iter().filter(|copied| !copied.is_there()) {
            wave.write(copied.number * self.block_size as u64, copied.bytes.clone());
        }
        let any = !wave.is_empty();
        if any {
            let kept = self.keep(&copies);
            let committed = kept.and_then(|()| self.commit_wave(wave, &copies));
            // What the disk does not have stays here, where callers find it.
            committed.inspect_err(|_| copies.iter().for_each(|copied| self.again(copied)))?;
        }
        self.are_durable(copies);
        Ok(any)
    }

    /// Writes copies, whose wave this is, and waits until they are durable.
    fn commit_wave(&self, wave: Wave, copies: &[Copied]) -> Result<()> {
        if injected(Fault::WaveUnflushed) {
            let at = |copied: &Copied| copied.number * self.block_size as u64;
            let write = |copied: &Copied| self.disk.write(at(copied), vec![copied.bytes.clone()]);
            return copies
                .iter()
                .try_for_each(|one| write(one).map(drop).map_err(failed));
        }
        self.disk.commit(wave).map(drop).map_err(failed)
    }

    /// Copies are what the disk has: of those that were changed meanwhile that is kept.
    fn are_durable(&self, copies: Vec<Copied>) {
        for copied in copies {
            let _latch = copied.block.bytes();
            let is_dirty = self.is_dirty(copied.number);
            *copied.block.durable.lock() = is_dirty.then_some(copied.bytes);
        }
    }

    /// Makes durable what was changed before, in no order.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sync(&self) -> Result<()> {
        self.sync_since(u32::MAX)
    }

    /// The same, of what is dirty since before a time, in ticks.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sync_since(&self, time: u32) -> Result<()> {
        let _writer = self.writer();
        let dirty = self.dirty_since(time);
        let mut any = false;
        for numbers in dirty.chunks(WAVE_MAX) {
            let copies = numbers.iter().filter_map(|&number| self.copy(number));
            any |= self.write(copies.collect())?;
        }
        match any {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Whether what was written is durable.
    ///
    /// # Errors
    /// The disk failed: it may not be.
    pub fn check(&self) -> Result<()> {
        self.disk
            .poisoned()
            .map_or(Ok(()), |error| Err(failed(error)))
    }

    /// Makes durable what others have written.
    ///
    /// # Errors
    /// The disk failed.
    pub fn flush(&self) -> Result<()> {
        self.disk.flush().map_err(failed)
    }

    fn shard(&self, number: u64) -> &BriefMutex<Shard> {
        &self.shards[part_of(number)]
    }
}

impl Shard {
    fn find(&mut self, number: u64) -> Option<Arc<Block>> {
        let cached = self.blocks.get_mut(&number)?;
        cached.used = true;
        Some(cached.block.clone())
    }

    /// Adds a block, which is not there.
    fn insert(&mut self, number: u64, block: Arc<Block>, max: usize) {
        self.make_way(max);
        self.turns.push_back(number);
        let used = false;
        self.blocks.insert(number, Cached { block, used });
    }

    /// Lets blocks go until there are fewer than `max`, or all that are left are in use: those that
    /// are dirty, too, as who writes them has them.
    fn make_way(&mut self, max: usize) {
        for _ in 0..2 * self.turns.len() {
            if self.blocks.len() < max {
                return;
            }
            let number = self.turns.pop_front().expect("each block has a turn");
            let cached = self.blocks.get_mut(&number).expect("turns are of blocks");
            let in_use = Arc::strong_count(&cached.block) > 1;
            if std::mem::take(&mut cached.used) || in_use {
                self.turns.push_back(number);
            } else {
                self.blocks.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;

    fn cache(memory: &Arc<Memory>) -> Cache {
        // Two blocks a shard.
        Cache::new(Disk::new(memory.clone()), 1024, 2 * 1024 * PARTS)
    }

    #[test]
    fn what_is_used_stays_and_the_rest_makes_way() {
        let cache = cache(&Arc::new(Memory::new(1 << 20)));
        let reads = || cache.disk.stats().reads;
        // Of one shard.
        let [first, second, third] = [0, 1, 2];
        cache.read(first).expect("read");
        cache.read(second).expect("read");
        cache.read(first).expect("read");
        assert_eq!(reads(), 2);
        cache.read(third).expect("the second makes way");
        cache.read(first).expect("read");
        assert_eq!(reads(), 3);
        cache.read(second).expect("read");
        assert_eq!(reads(), 4);
    }

    #[test]
    fn what_is_changed_stays_until_it_is_written() {
        let memory = Arc::new(Memory::new(1 << 20));
        let cache = cache(&memory);
        for number in 0..500 {
            cache
                .change(number, |bytes| bytes[0] = number as u8)
                .expect("read");
        }
        assert!(memory.contents().iter().all(|&byte| byte == 0));
        cache
            .write(cache.copy_dirty(cache.dirty_numbers(), usize::MAX))
            .expect("written");
        assert_eq!(cache.dirty_bytes(), 0);
        let contents = memory.contents();
        let is_there = |number: usize| contents[number * 1024] == number as u8;
        assert!((0..500).all(is_there));
    }

    #[test]
    fn a_block_that_could_not_be_read_is_read_by_the_next_one() {
        let memory = Arc::new(Memory::from_bytes(vec![5; 1 << 20]));
        let faults = Arc::new(block::Faults::new(memory));
        let cache = Cache::new(Disk::new(faults.clone()), 1024, 32 * 1024);
        faults.plan(0, block::Fault::Fail(rustix::io::Errno::IO));
        assert!(cache.read(3).is_err());
        assert_eq!(cache.read(3).expect("read").bytes()[0], 5);
    }

    #[test]
    fn a_run_of_blocks_is_read_with_one_request() {
        let bytes: Vec<u8> = (0..1024 * 1024).map(|i| (i / 1024) as u8).collect();
        let faults = Arc::new(block::Faults::new(Arc::new(Memory::from_bytes(bytes))));
        let cache = Cache::new(Disk::new(faults.clone()), 1024, 1 << 20);
        let reads = || cache.disk.stats().reads;
        let holds = |number: u64| {
            let block = cache.read(number).expect("read");
            assert!(block.bytes().iter().all(|&byte| byte == number as u8));
        };
        // As far as the first that is there.
        cache.read(20).expect("read");
        cache.read_with(10, 100).expect("read");
        assert_eq!(reads(), 2);
        (10..21).for_each(holds);
        assert_eq!(reads(), 2);
        // What cannot be read behind it is not its own failure, and is read again.
        faults.plan(0, block::Fault::Fail(rustix::io::Errno::IO));
        cache.read_with(30, 4).expect("read alone");
        assert_eq!(reads(), 3);
        (30..34).for_each(holds);
        // Nobody who has one of them is waited for.
        let block = cache.block(42);
        let latch = block.bytes.write();
        cache.read_with(40, 4).expect("read");
        drop(latch);
        assert!(!block.is_there.load(Ordering::Acquire));
        (40..44).for_each(holds);
    }

    /// Who reads a block while another one changes it, writes it and lets it go, does not leave
    /// there what he has read.
    #[test]
    fn a_block_that_is_being_read_does_not_become_an_older_one() {
        use schedule::Task;
        let memory = Arc::new(Memory::new(1 << 20));
        let cache = cache(&memory);
        let reads = || drop(cache.read(3).expect("read"));
        let changes = || {
            cache.change(3, |bytes| bytes.fill(1)).expect("read");
            cache.sync().expect("written");
            for number in 1..10 {
                cache.read(3 + number).expect("3 makes way");
            }
        };
        let ended = schedule::run(vec![Task::stopping(0, reads), Task::new(changes)]);
        assert_eq!(ended[0].stopped, Some("a block was read"));
        assert!(ended[1].waited, "it changes the block that is being read");
        let there = cache.read(3).expect("read").bytes()[0];
        assert_eq!((there, memory.contents()[3 * 1024]), (1, 1));
    }

    /// Who changes a block between its copy and the write of that does not keep it from being
    /// written.
    #[test]
    fn what_is_changed_after_it_was_copied_is_written_as_it_was_copied() {
        let memory = Arc::new(Memory::new(1 << 20));
        let cache = cache(&memory);
        cache.change(3, |bytes| bytes.fill(1)).expect("read");
        let copies = cache.copy_dirty(cache.dirty_numbers(), usize::MAX);
        cache.change(3, |bytes| bytes.fill(2)).expect("read");
        assert!(cache.write(copies).expect("written"));
        assert_eq!(memory.contents()[3 * 1024], 1);
        cache.change(3, |bytes| bytes.fill(1)).expect("read");
        cache.sync().expect("written");
        assert_eq!(memory.contents()[3 * 1024], 1);
    }

    /// A change that changes nothing, between the two halves of a write, is no reason not to write
    /// what was changed before.
    #[test]
    fn what_is_stored_again_while_it_is_written_is_written() {
        let memory = Arc::new(Memory::new(1 << 20));
        let cache = cache(&memory);
        for round in 1..=200_u8 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..100 {
                        cache.change(3, |bytes| bytes.fill(round)).expect("read");
                    }
                });
                scope.spawn(|| cache.sync().expect("written"));
            });
            cache.sync().expect("written");
            assert_eq!(memory.contents()[3 * 1024], round);
        }
    }
}

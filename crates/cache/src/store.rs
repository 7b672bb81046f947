//! The life of a cache.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{Buffer, Disk, Wave};
use parking_lot::{Condvar, Mutex};
use pmem::{Domain, Pool};

use crate::CacheError;
use crate::commit;
use crate::fault::{Fault, injected};
use crate::index::Index;
use crate::layout::{BLOCK, FIRST, Kind, LINE, State, Superblock};
use crate::map::Map;
use crate::medium::Medium;
use crate::plan::Plan;
use crate::recover::recover;
use crate::transaction::{Class, Transaction};

/// Blocks that make way together at least, behind one fence.
const EVICTED_MIN: usize = 64;

/// How a disk is known, and says that it has to be read through a cache.
pub trait Binding: Send + Sync {
    /// The identity of what is on the disk, by its first block.
    fn uuid(&self, first: &[u8]) -> Option<[u8; 16]>;

    /// Lets a first block say that there is a cache: so that nobody uses the disk without it. What
    /// it changes is in one sector of 512 bytes.
    fn mark(&self, first: &mut [u8], cache: &[u8; 16]);

    /// The cache that a first block speaks of.
    fn marked(&self, first: &[u8]) -> Option<[u8; 16]>;
}

/// How to make a cache.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Which protocol.
    pub kind: Kind,
    /// Its identity.
    pub uuid: [u8; 16],
    /// Bytes of metadata that are logged and changed together: a power of two of 64 to 4096.
    pub unit: u64,
    /// Bytes of metadata that replacement leaves in peace.
    pub metadata: u64,
}

impl CreateOptions {
    /// Whether a cache like this can fill so many bytes.
    ///
    /// # Errors
    /// They are too few; or a unit cannot have this size.
    pub fn check(&self, len: u64) -> Result<(), CacheError> {
        self.geometry(len).map(drop)
    }

    /// Of a cache that is detached, and takes so many bytes.
    fn geometry(&self, len: u64) -> Result<Superblock, CacheError> {
        if !self.unit.is_power_of_two() || !(LINE..=BLOCK).contains(&self.unit) {
            let what = format!("{}: a unit has 64 to 4096 bytes, a power of two", self.unit);
            return Err(CacheError::Unbound(what));
        }
        let superblock = Superblock {
            kind: self.kind,
            uuid: self.uuid,
            disk_uuid: [0; 16],
            disk_len: 0,
            blocks: 0,
            slots: 0,
            records: 0,
            unit: self.unit,
            metadata_min: self.metadata / BLOCK,
            is_through: false,
        };
        superblock.fill(len)
    }
}

/// A cache before a disk. All methods may be called from any thread.
pub struct Cache {
    pub(crate) medium: Medium,
    pub(crate) disk: Disk,
    binding: Arc<dyn Binding>,
    /// What readers look at.
    pub(crate) map: Arc<Map>,
    pub(crate) index: Mutex<Index>,
    /// Held by who changes what is cached, over flushes and fences; taken before `writing`.
    pub(crate) committing: Mutex<()>,
    /// Held by who writes to the disk; taken before the index. The block of the disk from which on
    /// the next wave is written.
    pub(crate) writing: Mutex<u64>,
    /// Waves that were written.
    pub(crate) waves: AtomicU64,
    is_marked: AtomicBool,
    is_through: AtomicBool,
    /// Bytes of a run of blocks that go past the cache; 0: none does.
    pub(crate) bypass: AtomicU64,
    /// Blocks that are read are kept.
    pub(crate) keeps_reads: AtomicBool,
    /// Told when more than the watermark is dirty.
    pub(crate) is_full: Condvar,
    pub(crate) counters: Counters,
}

/// What was done since the cache was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub write_hits: [AtomicU64; 2],
    pub write_misses: [AtomicU64; 2],
    pub units: AtomicU64,
    pub blocks: [AtomicU64; 2],
    pub evictions: AtomicU64,
    pub written_out: [AtomicU64; 2],
    pub past: AtomicU64,
    pub reads_kept: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// How a cache is doing. Counts are since it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Which protocol.
    pub kind: Kind,
    /// Its identity.
    pub uuid: [u8; 16],
    /// What its memory is taken to promise.
    pub domain: Domain,
    /// Of the disk that it belongs to; zeros: to none.
    pub disk_uuid: [u8; 16],
    /// Blocks of 4 KiB that it has.
    pub blocks: u64,
    /// Of them in use.
    pub cached: u64,
    /// Of those of metadata.
    pub metadata: u64,
    /// Blocks of metadata that replacement leaves in peace.
    pub metadata_min: u64,
    /// Blocks that the disk lacks.
    pub dirty: u64,
    /// Of those of metadata.
    pub dirty_metadata: u64,
    /// Bytes of metadata that are logged together.
    pub unit: u64,
    /// Commits wait for the disk.
    pub is_through: bool,
    /// Transactions.
    pub commits: u64,
    /// Blocks that were read from it.
    pub hits: u64,
    /// Blocks that were read from the disk.
    pub misses: u64,
    /// Blocks of data, of metadata that were written and cached already.
    pub write_hits: [u64; 2],
    /// And that were not.
    pub write_misses: [u64; 2],
    /// Units of metadata that were changed in place.
    pub units: u64,
    /// Blocks of data, of metadata that were written whole.
    pub blocks_written: [u64; 2],
    /// Blocks that made way.
    pub evictions: u64,
    /// Blocks of data, of metadata that were written to the disk.
    pub written_out: [u64; 2],
    /// Bytes of a run of blocks that go past the cache; 0: none does.
    pub bypass: u64,
    /// Blocks that were written to the disk past the cache.
    pub past: u64,
    /// Blocks that are read are kept.
    pub keeps_reads: bool,
    /// Blocks that were read from the disk and kept.
    pub reads_kept: u64,
}

impl Status {
    /// Bytes that were written to the memory for each byte of data, of metadata that was to be
    /// written. What entries and slots take is not in it: less than a line for a block.
    pub fn memory_amplification(&self) -> [f64; 2] {
        // A unit is logged with a line of header, and changed in place.
        let in_place = self.units * (LINE + 2 * self.unit);
        [0, 1].map(|class| {
            let units = if class == 1 { in_place } else { 0 };
            let bytes = self.blocks_written[class] * BLOCK + units;
            bytes as f64 / (self.writes(class).max(1) * BLOCK) as f64
        })
    }

    /// The same of the disk, through the cache.
    pub fn disk_amplification(&self) -> [f64; 2] {
        [0, 1].map(|class| self.written_out[class] as f64 / self.writes(class).max(1) as f64)
    }

    fn writes(&self, class: usize) -> u64 {
        self.write_hits[class] + self.write_misses[class]
    }
}

/// Whether the cache in a pool belongs to a disk.
///
/// # Errors
/// There is none, or it is damaged.
pub fn is_bound(pool: Arc<Pool>) -> Result<bool, CacheError> {
    let medium = Medium::open(pool)?;
    Ok(medium.geometry.disk_uuid != [0; 16])
}

/// What a pool says of the cache in it, without a disk. What a crash left is recovered: a pool that
/// was opened privately stays as it is.
///
/// # Errors
/// There is none, or it is damaged.
pub fn examine(pool: Arc<Pool>) -> Result<Status, CacheError> {
    let medium = Medium::open(pool)?;
    recover(&medium)?;
    let index = Index::read(&medium)?;
    let counters = Counters::default();
    Ok(status(&medium, &index, &counters))
}

fn status(medium: &Medium, index: &Index, counters: &Counters) -> Status {
    let geometry = &medium.geometry;
    let (cached, metadata) = index.cached();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let both = |counters: &[AtomicU64; 2]| [read(&counters[0]), read(&counters[1])];
    Status {
        kind: geometry.kind,
        uuid: geometry.uuid,
        domain: medium.pool().domain(),
        disk_uuid: geometry.disk_uuid,
        blocks: geometry.blocks,
        cached,
        metadata,
        metadata_min: geometry.metadata_min,
        dirty: index.dirty_len() as u64,
        dirty_metadata: index.dirty_metadata(),
        unit: geometry.unit,
        is_through: geometry.is_through,
        commits: read(&counters.commits),
        hits: read(&counters.hits),
        misses: read(&counters.misses),
        write_hits: both(&counters.write_hits),
        write_misses: both(&counters.write_misses),
        units: read(&counters.units),
        blocks_written: both(&counters.blocks),
        evictions: read(&counters.evictions),
        written_out: both(&counters.written_out),
        bypass: 0,
        past: read(&counters.past),
        keeps_reads: false,
        reads_kept: read(&counters.reads_kept),
    }
}

impl Cache {
    /// Makes a cache that fills a pool, for a disk.
    ///
    /// # Errors
    /// The disk has another cache, or nothing on it that can be bound; the pool is too small; the
    /// memory or the disk failed.
    pub fn create(
        pool: Arc<Pool>,
        disk: Disk,
        binding: Arc<dyn Binding>,
        options: &CreateOptions,
    ) -> Result<Cache, CacheError> {
        let len = pool.len();
        Cache::create_within(pool, len, disk, binding, options)
    }

    /// The same, but it takes so many bytes of the pool.
    ///
    /// # Errors
    /// Likewise.
    pub fn create_within(
        pool: Arc<Pool>,
        len: u64,
        disk: Disk,
        binding: Arc<dyn Binding>,
        options: &CreateOptions,
    ) -> Result<Cache, CacheError> {
        check_fits(len, &pool)?;
        let geometry = Superblock {
            disk_uuid: uuid_to_bind(&disk, &*binding)?,
            disk_len: disk.len(),
            ..options.geometry(len)?
        };
        Medium::create(pool.clone(), geometry)?;
        Cache::open(pool, disk, binding)
    }

    /// Opens a cache and its disk: what a crash left is recovered.
    ///
    /// # Errors
    /// There is none, or it is damaged, or does not belong to the disk; the memory or the disk
    /// failed.
    pub fn open(
        pool: Arc<Pool>,
        disk: Disk,
        binding: Arc<dyn Binding>,
    ) -> Result<Cache, CacheError> {
        let medium = Medium::open(pool)?;
        // What a killed process wrote is visible, not durable, and relied on from here on.
        if !disk.info().read_only {
            disk.flush()?;
        }
        let first = read_first(&disk)?;
        let is_marked = check_bound(&medium.geometry, &disk, &*binding, &first)?;
        if recover(&medium)? {
            log::info!("cache: a transaction that was not committed was undone");
        }
        let index = Index::read(&medium)?;
        if is_marked
            && index
                .find(FIRST)
                .is_none_or(|(_, first)| !first.state.is_dirty())
        {
            let what = "the first block, which the disk lacks, is not there";
            return Err(CacheError::corrupt(medium.geometry.entries_at(), what));
        }
        let is_through = AtomicBool::new(medium.geometry.is_through);
        let cache = Cache {
            medium,
            disk,
            binding,
            map: index.map(),
            index: Mutex::new(index),
            committing: Mutex::default(),
            writing: Mutex::default(),
            waves: AtomicU64::new(0),
            is_marked: AtomicBool::new(is_marked),
            is_through,
            bypass: AtomicU64::new(0),
            keeps_reads: AtomicBool::new(false),
            is_full: Condvar::new(),
            counters: Counters::default(),
        };
        if !is_marked {
            cache.forget()?;
        }
        Ok(cache)
    }

    /// The disk alone is consistent, and may have been changed without the cache: nothing of that
    /// is believed.
    fn forget(&self) -> Result<(), CacheError> {
        let mut index = self.index.lock();
        let lacking = index.dirty_from(FIRST + 1).count();
        if lacking > 0 {
            let what = format!(
                "the cache has {lacking} blocks for a disk that says it has all; \
                 was the disk copied or restored? Put back the disk, or make the cache anew"
            );
            return Err(CacheError::Unbound(what));
        }
        let valid = index.valid();
        self.drop_entries(&mut index, &valid)
    }

    /// Lets entries lead nowhere; their blocks are free on return.
    pub(crate) fn drop_entries(
        &self,
        index: &mut Index,
        entries: &[u32],
    ) -> Result<(), CacheError> {
        for &entry in entries {
            let known = index.entry(entry);
            self.medium.set_state(entry, State::FREE);
            index.set(entry, known.disk, State::FREE);
            index.leave(known.state.block().expect("it is cached"));
        }
        if !injected(Fault::EvictedEarly) {
            self.medium.fence()?;
        }
        index.fenced();
        Ok(())
    }

    /// Blocks of 4 KiB that a transaction may touch.
    pub fn transaction_max(&self) -> usize {
        let geometry = &self.medium.geometry;
        (geometry.slots.min(geometry.blocks - 2)) as usize
    }

    /// Makes a transaction durable, whole or not at all.
    ///
    /// # Errors
    /// It can never fit, or the disk failed where it had to be read, or written to make room:
    /// nothing is changed. The memory failed: it is durable or not, whole. In write-through the
    /// disk failed: it is durable here.
    pub fn commit(&self, mut transaction: Transaction) -> Result<(), CacheError> {
        if transaction.is_empty() {
            return Ok(());
        }
        let _committing = self.committing.lock();
        self.medium.check()?;
        let past = self.take_past(&mut transaction);
        let (blocks, max) = (transaction.len(), self.transaction_max());
        if blocks > max {
            return Err(CacheError::TooLarge { blocks, max });
        }
        self.mark_disk()?;
        self.write_past(past)?;
        self.commit_marked(transaction)?;
        if self.is_through.load(Ordering::SeqCst) {
            while self.write_out(usize::MAX)? > 0 {}
        }
        Ok(())
    }

    fn commit_marked(&self, mut transaction: Transaction) -> Result<(), CacheError> {
        for (&disk, write) in &mut transaction.writes {
            if !write.is_complete() {
                let mut now = [0; BLOCK as usize];
                let len = self.block_len(disk);
                self.read(disk * BLOCK, &mut now[..len])?;
                write.complete(&now);
            }
        }
        self.make_room(transaction.writes.len())?;
        let plan = {
            let mut index = self.index.lock();
            let plan = Plan::new(&self.medium, &mut index, &transaction);
            plan.begin(&self.medium, &mut index);
            plan
        };
        if plan.is_empty() {
            return Ok(());
        }
        commit::run(&self.medium, &plan)?;
        let mut index = self.index.lock();
        plan.apply(&mut index);
        count(&self.counters.commits, 1);
        count(&self.counters.units, plan.units.len() as u64);
        for class in 0..2 {
            count(&self.counters.blocks[class], plan.whole[class]);
            count(&self.counters.write_hits[class], plan.hits[class]);
            count(&self.counters.write_misses[class], plan.misses[class]);
        }
        if index.dirty_len() > self.watermarks().0 {
            self.is_full.notify_one();
        }
        Ok(())
    }

    /// Lets so many blocks be free: clean ones make way; if these are too few, dirty ones are
    /// written to the disk.
    fn make_room(&self, need: usize) -> Result<(), CacheError> {
        loop {
            let mut index = self.index.lock();
            let lacking = need.saturating_sub(index.free_blocks.len());
            if lacking == 0 {
                return Ok(());
            }
            let count_max = self.victims_max(lacking);
            let kept = self.medium.geometry.metadata_min;
            let mut victims = index.victims(count_max, kept);
            if victims.is_empty() && index.dirty_from(FIRST + 1).next().is_none() {
                victims = index.victims(count_max, 0);
            }
            if !victims.is_empty() {
                count(&self.counters.evictions, victims.len() as u64);
                self.drop_entries(&mut index, &victims)?;
                continue;
            }
            let waves = self.waves();
            drop(index);
            self.write_out_for(lacking, waves)?;
        }
    }

    /// Blocks that make way at once if so many are lacking.
    pub(crate) fn victims_max(&self, lacking: usize) -> usize {
        lacking.max(EVICTED_MIN.min(self.medium.geometry.blocks as usize / 8))
    }

    /// Bytes of a block of the disk: fewer at its end.
    pub(crate) fn block_len(&self, disk: u64) -> usize {
        BLOCK.min(self.disk.len() - disk * BLOCK) as usize
    }

    /// Before the cache has what the disk lacks, the disk says so, durably. What it says otherwise
    /// is in the cache before.
    fn mark_disk(&self) -> Result<(), CacheError> {
        if self.is_marked.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut first = read_first(&self.disk)?;
        let mut transaction = Transaction::default();
        transaction.write(Class::Metadata, FIRST * BLOCK, &first);
        self.commit_marked(transaction)?;
        if !injected(Fault::Unmarked) {
            self.binding.mark(&mut first, &self.medium.geometry.uuid);
            self.write_first(&first)?;
        }
        self.is_marked.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn write_first(&self, first: &[u8]) -> Result<(), CacheError> {
        let mut wave = Wave::new();
        wave.write(FIRST * BLOCK, Buffer::copy_of(first));
        self.disk.commit(wave)?;
        Ok(())
    }

    /// Lets the disk have all that was committed, and be consistent without the cache.
    ///
    /// # Errors
    /// The disk or the memory failed.
    pub fn flush(&self) -> Result<(), CacheError> {
        let _committing = self.committing.lock();
        self.flush_locked()
    }

    fn flush_locked(&self) -> Result<(), CacheError> {
        if injected(Fault::UnmarkedEarly) && self.is_marked.load(Ordering::SeqCst) {
            let mut first = vec![0; BLOCK as usize];
            self.read(FIRST * BLOCK, &mut first)?;
            self.write_first(&first)?;
        }
        while self.write_out(usize::MAX)? > 0 {}
        // What is clean is so durably before the disk says that it has all.
        self.medium.flush_entries();
        self.medium.fence()?;
        if !self.is_marked.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut first = vec![0; BLOCK as usize];
        self.read(FIRST * BLOCK, &mut first)?;
        // It has more than the mark, and a write may be torn: all else is there before the mark
        // goes, which is in one sector.
        let mut marked = first.clone();
        self.binding.mark(&mut marked, &self.medium.geometry.uuid);
        self.write_first(&marked)?;
        self.write_first(&first)?;
        self.is_marked.store(false, Ordering::SeqCst);
        let mut index = self.index.lock();
        if let Some((entry, known)) = index.find(FIRST)
            && let Some(state) = index.clean(entry, known.version)
        {
            self.medium.set_state(entry, state);
            self.medium.fence()?;
        }
        Ok(())
    }

    /// Flushes, and gives the cache back: the disk is as if there had never been one, and the cache
    /// may be made anew.
    ///
    /// # Errors
    /// The disk or the memory failed.
    pub fn detach(self) -> Result<(), CacheError> {
        self.flush()?;
        let valid = self.index.lock().valid();
        self.drop_entries(&mut self.index.lock(), &valid)?;
        let mut medium = self.medium;
        (medium.geometry.disk_uuid, medium.geometry.disk_len) = ([0; 16], 0);
        medium.store_superblock()
    }

    /// Detaches, and makes the cache anew, with the same identity and mode, in so many bytes of the
    /// same memory. A crash leaves the old one, one that is detached, none, or the new one; and the
    /// disk has everything.
    ///
    /// # Errors
    /// That is too little, or more than there is: nothing is changed. The disk or the memory
    /// failed.
    pub fn resize(self, len: u64) -> Result<Cache, CacheError> {
        let (pool, disk) = (self.medium.pool().clone(), self.disk.clone());
        let binding = self.binding.clone();
        check_fits(len, &pool)?;
        let geometry = Superblock {
            is_through: self.is_through.load(Ordering::SeqCst),
            ..self.medium.geometry.clone()
        };
        let geometry = geometry.fill(len)?;
        self.detach()?;
        Medium::create(pool.clone(), geometry)?;
        Cache::open(pool, disk, binding)
    }

    /// Binds a cache that is detached to a disk.
    ///
    /// # Errors
    /// It is not detached, or the disk cannot be bound; the memory or the disk failed.
    pub fn attach(
        pool: Arc<Pool>,
        disk: Disk,
        binding: Arc<dyn Binding>,
    ) -> Result<Cache, CacheError> {
        let mut medium = Medium::open(pool.clone())?;
        if medium.geometry.disk_uuid != [0; 16] {
            let what = "the cache belongs to a disk; detach it from that first";
            return Err(CacheError::Unbound(what.to_owned()));
        }
        let uuid = uuid_to_bind(&disk, &*binding)?;
        (medium.geometry.disk_uuid, medium.geometry.disk_len) = (uuid, disk.len());
        medium.store_superblock()?;
        Cache::open(pool, disk, binding)
    }

    /// Lets commits wait until the disk has what they change, or not: from the next one on, and
    /// when the cache is opened again.
    ///
    /// # Errors
    /// The disk or the memory failed.
    pub fn set_through(&self, is_through: bool) -> Result<(), CacheError> {
        let _committing = self.committing.lock();
        let geometry = Superblock {
            is_through,
            ..self.medium.geometry.clone()
        };
        self.medium.replace_superblock(&geometry)?;
        self.is_through.store(is_through, Ordering::SeqCst);
        match is_through {
            true => self.flush_locked(),
            false => Ok(()),
        }
    }

    /// Where in its memory the contents of blocks are: what recovery does not read.
    pub fn blocks(&self) -> Range<u64> {
        let geometry = &self.medium.geometry;
        geometry.blocks_at()..geometry.copy_at()
    }

    /// The disk behind it.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        Status {
            is_through: self.is_through.load(Ordering::SeqCst),
            bypass: self.bypass.load(Ordering::Relaxed),
            keeps_reads: self.keeps_reads.load(Ordering::Relaxed),
            ..status(&self.medium, &self.index.lock(), &self.counters)
        }
    }
}

/// A cache can take so many bytes of a pool.
fn check_fits(len: u64, pool: &Pool) -> Result<(), CacheError> {
    match pool.len() {
        have if len <= have => Ok(()),
        have => Err(CacheError::Unbound(format!(
            "the memory has {have} bytes, and the cache is to take {len}"
        ))),
    }
}

/// The first block of a disk, as that has it.
fn read_first(disk: &Disk) -> Result<Buffer, CacheError> {
    if disk.len() < 2 * BLOCK {
        let what = format!("the disk has only {} bytes", disk.len());
        return Err(CacheError::Unbound(what));
    }
    let read = disk.read(FIRST * BLOCK, vec![Buffer::zeroed(BLOCK as usize)])?;
    Ok(read
        .into_iter()
        .next()
        .expect("the buffer that was handed in"))
}

/// The identity of what is on a disk that has no cache, durably: a killed process may have taken
/// the mark from it, and a power cut still brings that back (B9).
fn uuid_to_bind(disk: &Disk, binding: &dyn Binding) -> Result<[u8; 16], CacheError> {
    if !disk.info().read_only {
        disk.flush()?;
    }
    let first = read_first(disk)?;
    let unbound = |what: &str| Err(CacheError::Unbound(what.to_owned()));
    if binding.marked(&first).is_some() {
        return unbound(
            "the disk has a cache that holds blocks which it lacks; \
             flush that with `tureen cache flush` first",
        );
    }
    match binding.uuid(&first) {
        Some(uuid) => Ok(uuid),
        None => unbound("the disk has nothing that a cache can be bound to; make an ext2 on it"),
    }
}

/// Whether the disk says that it has to be read through this cache.
fn check_bound(
    geometry: &Superblock,
    disk: &Disk,
    binding: &dyn Binding,
    first: &[u8],
) -> Result<bool, CacheError> {
    let unbound = |what: &str| Err(CacheError::Unbound(what.to_owned()));
    if geometry.disk_uuid == [0; 16] {
        return unbound("the cache is detached; `tureen cache attach` binds it to a disk");
    }
    if binding.uuid(first) != Some(geometry.disk_uuid) || disk.len() != geometry.disk_len {
        return unbound("the cache belongs to another disk: its UUID or length is not this one's");
    }
    match binding.marked(first) {
        Some(uuid) if uuid != geometry.uuid => unbound("the disk belongs to another cache"),
        marked => Ok(marked.is_some()),
    }
}

//! The pool: every access to the medium.
//!
//! Typical sequence: `write`/`store` -> `flush` -> `fence`, then `store` of the pointer that
//! publishes -> `flush` -> `fence`.
//!
//! Lock order: recording order -> gather state -> a shard's hull. Without a recorder and outside
//! domain `page` no lock is taken.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use block::{Disk, LockedFile};
use parking_lot::Mutex;

use crate::backing::Backing;
use crate::gather::{Gather, Hull};
use crate::journal::live::Live;
use crate::map::Mapping;
use crate::open::Contents;
use crate::paged::Paged;
use crate::raw::{self, Region};
use crate::stats::{Counter, Counters};
use crate::transaction::Abort;
use crate::{
    Domain, FlushInstruction, HugePages, Kind, Latency, MediumError, Options, PAGE, PoolError,
    PoolInfo, Recorder, Rtm, Stats, open, paged,
};

/// Runs the syncs of domain `page`, and asks the host for blocks. Tests replace it to inject
/// faults.
pub trait Syncer: Send + Sync {
    /// Makes `len` bytes at `off` durable. `medium` does it for real; it may be left out.
    fn sync(&self, off: u64, len: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()>;

    /// Gets blocks behind `len` bytes at `off`. `medium` does it for real; it may be left out.
    ///
    /// # Errors
    /// The host gives none.
    fn back(
        &self,
        _off: u64,
        _len: u64,
        medium: &dyn Fn() -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        medium()
    }
}

/// Who watches, and the lock that makes the order of records the order of events.
pub(crate) struct Recording {
    pub(crate) recorder: Arc<dyn Recorder>,
    pub(crate) order: Mutex<()>,
}

/// A mapped range of persistent memory. Offsets are bytes from its start.
///
/// Methods take `&self` and may be called from any thread. Bulk accesses that race yield some
/// mixture of the bytes. Offsets out of range, misaligned words and stores to a read-only pool
/// are programmer mistakes and panic.
pub struct Pool {
    pub(crate) region: Region,
    /// What holds the region's bytes, if they are not mapped: all accesses but loads by the fast
    /// way go through it.
    pub(crate) paged: Option<Paged>,
    domain: Domain,
    pub(crate) flush: FlushInstruction,
    pub(crate) latency: Latency,
    pub(crate) recording: Option<Recording>,
    pub(crate) counters: Counters,
    pub(crate) live: Live,
    gather: Gather<Hull>,
    syncer: Option<Arc<dyn Syncer>>,
    poison: OnceLock<MediumError>,
    /// Present if the image may lack blocks.
    backing: Option<Backing>,
    /// The file; keeps the lock. `None` for anonymous memory.
    file: Option<LockedFile>,
    path: Option<PathBuf>,
    kind: Kind,
    detected: Domain,
    forced: bool,
    huge_pages_asked: bool,
    /// Stores are not seen by the file.
    private: bool,
}

/// What holds a pool's bytes.
enum Bytes {
    Mapped(Mapping),
    Paged(Paged),
}

/// A pool that may show what a process before this one stored, and what is not durable (M15).
/// Nobody reads from it: the only thing to be done with it is [`Unsynced::sync`].
struct Unsynced(Pool);

impl Unsynced {
    /// Makes what the pool shows durable where only a sync of all of it can: in domain `page`. It
    /// costs a system call when nothing is dirty. What the host still caches of a pool that did not
    /// end well is dropped after it. In domain `cache` what is visible is durable
    /// (M9). In `line` nobody can know which of the lines are in the caches: whoever relies on one
    /// flushes it.
    ///
    /// # Errors
    /// The sync failed: what is visible may differ from what is on the disk (M13).
    fn sync(self, ended_well: fn(&[u8]) -> bool) -> io::Result<Pool> {
        let Unsynced(pool) = self;
        if pool.domain != Domain::Page {
            return Ok(pool);
        }
        let len = pool.len();
        // A disk was flushed when it was opened. Else not through the mapping, which may be
        // private.
        let file = || match (&pool.paged, &pool.file) {
            (Some(_), _) => Ok(()),
            (None, Some(file)) => file.sync_data(),
            (None, None) => pool.region.sync(0, len),
        };
        pool.run_sync(0, len, &file)?;
        // Nothing has been read through the mapping: the host keeps pages that are mapped.
        if let Some(file) = &pool.file {
            open::drop_stale(file, ended_well)?;
        }
        if let Some(recording) = &pool.recording {
            recording.recorder.flush(0, len);
            recording.recorder.fence();
        }
        Ok(pool)
    }
}

impl Pool {
    /// Creates an image file of `len` bytes (rounded up to whole pages) with its blocks
    /// allocated, unless `sparse`; or takes a DAX device that has at least `len` bytes.
    ///
    /// # Errors
    /// [`PoolError::Exists`] if the file exists; an incomplete file is removed.
    pub fn create(path: &Path, len: u64, options: &Options) -> Result<Pool, PoolError> {
        Pool::from_opened(path, open::create(path, len, options)?, options)
    }

    /// Opens an image file (its whole pages) or a DAX device. In domain `page` the file is synced
    /// before anything is read, also if it is opened for reading: what a killed process left
    /// is durable from then on. Unless its last user ended well ([`Options::ended_well`]) the pool
    /// is then read from the disk anew.
    ///
    /// # Errors
    /// [`PoolError::TooSmall`] if it has not even one page; [`PoolError::Io`] if the sync fails.
    pub fn open(path: &Path, options: &Options) -> Result<Pool, PoolError> {
        Pool::from_opened(path, open::open(path, options)?, options)
    }

    /// Zeroed anonymous memory of `len` bytes (rounded up to whole pages), domain `cache` unless
    /// forced.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] if there is no address space for it.
    pub fn anonymous(len: u64, options: &Options) -> Result<Pool, PoolError> {
        let path = Path::new("anonymous memory");
        let len = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .and_then(|n| usize::try_from(n).ok());
        let mapping = len
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
            .and_then(|len| Mapping::anonymous(len, options.huge_pages))
            .map_err(|source| PoolError::Io {
                path: path.into(),
                action: "mapping",
                source,
            })?;
        let bytes = Bytes::Mapped(mapping);
        Pool::new(path, bytes, Kind::Anonymous, Domain::Cache, options)
    }

    /// The whole pages of a disk, in domain `page`, held in memory as `options.paged` says, or by
    /// default. What an earlier process left there is made durable first.
    ///
    /// # Errors
    /// [`PoolError::TooSmall`] if it has not even one page; [`PoolError::Io`] if it fails.
    pub fn on_disk(disk: Disk, options: &Options) -> Result<Pool, PoolError> {
        let path = PathBuf::from(&disk.info().name);
        let options = Options {
            domain: None,
            read_only: options.read_only || disk.info().read_only,
            ..options.clone()
        };
        let how = options.paged.clone().unwrap_or_default();
        let bytes = Bytes::Paged(Paged::new(disk, &how)?);
        let pool = Pool::new(&path, bytes, Kind::Disk, Domain::Page, &options)?;
        Pool::usable(&path, Unsynced(pool), &options)
    }

    /// Anonymous memory that holds a copy of the whole pages of `bytes`, opened like a file: a
    /// recorder sees the sync at opening.
    ///
    /// # Errors
    /// [`PoolError::TooSmall`] if there is not even one page.
    pub fn from_bytes(bytes: &[u8], options: &Options) -> Result<Pool, PoolError> {
        let len = bytes.len() as u64 / PAGE * PAGE;
        if len == 0 {
            let path = PathBuf::from("anonymous memory");
            return Err(PoolError::TooSmall {
                path,
                need: PAGE,
                have: bytes.len() as u64,
            });
        }
        Pool::from_parts(len, [(0, &bytes[..len as usize])], options)
    }

    /// Anonymous memory of `len` bytes (rounded up to whole pages) that holds these parts, each an
    /// offset and bytes, and zeros elsewhere, which take no memory. It is opened like a file, as by
    /// [`Pool::from_bytes`].
    ///
    /// # Errors
    /// As [`Pool::anonymous`].
    ///
    /// # Panics
    /// If a part is not within the pool.
    pub fn from_parts<'a>(
        len: u64,
        parts: impl IntoIterator<Item = (u64, &'a [u8])>,
        options: &Options,
    ) -> Result<Pool, PoolError> {
        let writable = Options {
            read_only: false,
            recorder: None,
            ..options.clone()
        };
        let mut pool = Pool::anonymous(len, &writable)?;
        for (at, bytes) in parts {
            pool.region.write(at, bytes);
        }
        // The copy is no event of the pool's life, so the options count only from here on.
        pool.set_access(options);
        Pool::usable(Path::new("anonymous memory"), Unsynced(pool), options)
    }

    fn usable(path: &Path, pool: Unsynced, options: &Options) -> Result<Pool, PoolError> {
        pool.sync(options.ended_well)
            .map_err(|source| PoolError::Io {
                path: path.into(),
                action: "syncing what an earlier process may have left",
                source,
            })
    }

    fn from_opened(
        path: &Path,
        opened: open::Opened,
        options: &Options,
    ) -> Result<Pool, PoolError> {
        let open::Opened {
            file,
            contents,
            kind,
            detected,
            sparse,
        } = opened;
        let bytes = match (contents, &options.paged) {
            (Contents::Mapped(mapping), _) => Bytes::Mapped(mapping),
            (Contents::Disk(disk), how) => {
                Bytes::Paged(Paged::new(disk, &how.clone().unwrap_or_default())?)
            }
        };
        let mut pool = Pool::new(path, bytes, kind, detected, options)?;
        pool.path = Some(path.to_owned());
        pool.backing = sparse.then(|| Backing::new(pool.len()));
        pool.file = Some(file);
        Pool::usable(path, Unsynced(pool), options)
    }

    fn new(
        path: &Path,
        bytes: Bytes,
        kind: Kind,
        detected: Domain,
        options: &Options,
    ) -> Result<Pool, PoolError> {
        let domain = options.domain.unwrap_or(detected);
        let instruction = FlushInstruction::detect();
        let line = domain == Domain::Line;
        if line && instruction == FlushInstruction::None && !cfg!(miri) {
            let what = "this processor has no instruction that writes a line back; \
                        force domain page"
                .to_owned();
            return Err(PoolError::Unsupported {
                path: path.into(),
                what,
            });
        }
        let (region, paged) = match bytes {
            Bytes::Mapped(mapping) => (Region::new(mapping), None),
            Bytes::Paged(paged) => (paged.region(), Some(paged)),
        };
        let mut pool = Pool {
            region,
            paged,
            domain,
            flush: if line {
                instruction
            } else {
                FlushInstruction::None
            },
            latency: options.latency,
            recording: None,
            counters: Counters::new(),
            live: Live::default(),
            gather: Gather::new(),
            syncer: options.syncer.clone(),
            poison: OnceLock::new(),
            backing: None,
            file: None,
            path: None,
            kind,
            detected,
            forced: options.domain.is_some(),
            huge_pages_asked: options.huge_pages,
            private: options.private,
        };
        pool.set_access(options);
        Ok(pool)
    }

    /// Sends accesses the slow way where something has to watch, delay or refuse them.
    fn set_access(&mut self, options: &Options) {
        self.recording = options.recorder.as_ref().map(|recorder| Recording {
            recorder: recorder.clone(),
            order: Mutex::new(()),
        });
        let paged = self.paged.as_ref();
        let fast_load = self.latency.read_ns == 0 && paged.is_none_or(Paged::by_faults);
        let fast_store = self.recording.is_none() && paged.is_none();
        self.region
            .set_access(!options.read_only, fast_load, fast_store);
    }

    /// Length in bytes, a multiple of [`PAGE`].
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a pool is never empty")]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// The persistence domain in force.
    #[inline]
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Whether stores are refused (with a panic) because the pool is mapped for reading.
    pub fn read_only(&self) -> bool {
        !self.region.writable()
    }

    /// Whether the pool is mapped privately: stores change this process's memory alone.
    pub fn private(&self) -> bool {
        self.private
    }

    /// What the pool is made of. Reads `/proc`: not for hot paths.
    pub fn info(&self) -> PoolInfo {
        PoolInfo {
            path: self.path.clone(),
            kind: self.kind.clone(),
            len: self.len(),
            domain: self.domain,
            detected: self.detected,
            forced: self.forced,
            flush: self.flush,
            huge_pages: HugePages {
                asked: self.huge_pages_asked,
                bytes: crate::info::huge_bytes(self.region.address()),
            },
            rtm: Rtm::detect(),
            read_only: self.read_only(),
            sparse: self.backing.is_some(),
            io: self.paged.as_ref().map(Paged::how),
        }
    }

    /// The pool's name in messages.
    pub(crate) fn name(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => "anonymous memory".to_owned(),
        }
    }

    /// A copy of the contents.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len() as usize];
        self.read_medium(0, &mut bytes);
        bytes
    }

    /// The pages of anonymous memory, by number, that may hold anything but zeros: those that were
    /// read or stored to, as far as the system tells, else all.
    pub fn touched(&self) -> Vec<u64> {
        let all = 0..self.len() / PAGE;
        let told = match (&self.file, &self.paged) {
            (None, None) => crate::info::present(self.region.address()),
            _ => None,
        };
        match told {
            Some(present) => all.filter(|&page| present[page as usize]).collect(),
            None => all.collect(),
        }
    }

    /// What of the pool is in memory, if its I/O is done here.
    pub fn cache(&self) -> Option<paged::Stats> {
        self.paged.as_ref().map(Paged::stats)
    }

    /// Counters, summed over threads; not a consistent cut while others run.
    pub fn stats(&self) -> Stats {
        self.counters.sum()
    }

    /// Whether a recorder watches.
    pub(crate) fn recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Stores words of DRAM and of the pool in one hardware transaction, if others have these
    /// values. Not for recorded pools.
    #[track_caller]
    pub(crate) fn store_in_hardware(
        &self,
        expected: &[(&AtomicU64, u64)],
        memory: &[(&AtomicU64, u64)],
        words: &[(u64, u64)],
    ) -> Result<(), Abort> {
        assert!(!self.recorded(), "a recorder does not see it");
        words.iter().for_each(|&(off, _)| self.live.check(off, 8));
        self.region.store_in_hardware(expected, memory, words)?;
        self.counters
            .add(Counter::BytesCached, 8 * words.len() as u64);
        Ok(())
    }

    /// Stores words (offset, value), which a recorder sees as one event. Whoever is killed
    /// meanwhile leaves half of it, so it is for memory that does not outlive the process.
    ///
    /// # Panics
    /// If the pool has a file.
    #[track_caller]
    pub(crate) fn store_together(&self, words: &[(u64, u64)]) {
        let lives_on = self.file.is_some() || self.paged.is_some();
        assert!(!lives_on, "a kill would leave half of it");
        words.iter().for_each(|&(off, _)| self.live.check(off, 8));
        let store = || {
            for &(off, value) in words {
                let word = self.region.word_mut(off);
                word.store(value.to_le(), Ordering::Release);
            }
            self.counters
                .add(Counter::BytesCached, 8 * words.len() as u64);
        };
        let Some(recording) = &self.recording else {
            return store();
        };
        let _order = recording.order.lock();
        store();
        recording.recorder.store_together(words);
    }

    pub(crate) fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    // Ordering.

    /// Requests write-back of the lines of a range; only a later [`fence`](Pool::fence) of the
    /// same thread says that they are durable.
    #[inline]
    #[track_caller]
    pub fn flush(&self, off: u64, len: u64) {
        self.region.check(off, len);
        if len == 0 {
            return;
        }
        let lines = raw::lines(off, len);
        self.counters.add(Counter::FlushedLines, lines);
        match &self.recording {
            None => self.flush_medium(off, len),
            Some(recording) => {
                let _order = recording.order.lock();
                self.flush_medium(off, len);
                recording.recorder.flush(off, len);
            }
        }
        if self.latency.flush_ns != 0 {
            spin_ns(self.latency.flush_ns, lines);
        }
    }

    #[inline]
    fn flush_medium(&self, off: u64, len: u64) {
        match self.domain {
            Domain::Line => self.region.write_back(self.flush, off, len),
            Domain::Cache => {}
            Domain::Page => match &self.paged {
                None => self.gather.add(|hull| hull.add(off, len)),
                Some(paged) => paged.flush(off, len),
            },
        }
    }

    /// Returns once everything that this thread flushed before, or stored non-temporally, is
    /// durable (in domain `page`: and everything that other threads flushed before).
    ///
    /// # Errors
    /// The medium failed, now or earlier: the pool is poisoned, and every later fence fails.
    #[inline]
    pub fn fence(&self) -> Result<(), MediumError> {
        match &self.recording {
            None => self.fence_medium()?,
            Some(recording) => {
                // Held throughout: what another thread stores meanwhile comes after the fence.
                let _order = recording.order.lock();
                self.fence_medium()?;
                recording.recorder.fence();
            }
        }
        self.counters.add(Counter::Fences, 1);
        if self.latency.fence_ns != 0 {
            spin_ns(self.latency.fence_ns, 1);
        }
        Ok(())
    }

    #[inline]
    fn fence_medium(&self) -> Result<(), MediumError> {
        if let Some(error) = self.poisoned() {
            return Err(error);
        }
        raw::store_fence();
        if self.domain != Domain::Page || self.fence_pages() {
            return Ok(());
        }
        // A failed sync poisons before it reports.
        match self.poisoned() {
            Some(error) => Err(error),
            None => unreachable!("a sync failed without poisoning"),
        }
    }

    /// Syncs what was flushed, in domain `page`; `false` and poison if that fails.
    fn fence_pages(&self) -> bool {
        match &self.paged {
            None => self.gather.fence(|hull| {
                let off = hull.start / PAGE * PAGE;
                let len = hull.end.next_multiple_of(PAGE) - off;
                self.sync(off, len, &|| self.region.sync(off, len))
            }),
            Some(paged) => paged.fence_by(|hull, write| {
                let write = || write().map_err(io::Error::other);
                self.sync(hull.start, hull.end - hull.start, &write)
            }),
        }
    }

    /// Runs a sync of what was flushed within a range; `false` and poison if that fails.
    fn sync(&self, off: u64, len: u64, medium: &dyn Fn() -> io::Result<()>) -> bool {
        let synced = self.run_sync(off, len, medium);
        if let Err(error) = &synced {
            let (pool, cause) = (self.name(), error.to_string());
            self.poison_with(MediumError::SyncFailed {
                pool,
                off,
                len,
                cause,
            });
        }
        synced.is_ok()
    }

    fn run_sync(&self, off: u64, len: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        self.counters.add(Counter::Syncs, 1);
        match &self.syncer {
            None => medium(),
            Some(syncer) => syncer.sync(off, len, medium),
        }
    }

    /// Replaces what runs the syncs of domain `page` from now on, and asks for blocks, to inject
    /// faults.
    pub fn with_syncer(mut self, syncer: Arc<dyn Syncer>) -> Pool {
        self.syncer = Some(syncer);
        self
    }

    /// Why the pool accepts no more fences, if so. Stores still reach memory, and may reach the
    /// medium; nothing more is promised of them.
    #[inline]
    pub fn poisoned(&self) -> Option<MediumError> {
        if let Some(paged) = &self.paged {
            self.take_over_failure(paged);
        }
        self.poison.get().cloned()
    }

    /// Whether loads may have found zeros in place of what the medium has, as it could not be read.
    /// The pool is poisoned then, but what is missing may also be missing for this reason: who
    /// reports that something is not there looks here behind its loads.
    #[inline]
    pub fn has_blanks(&self) -> bool {
        self.paged.as_ref().is_some_and(Paged::has_blanks)
    }

    /// A disk that failed, unless in a fence, poisons the pool.
    fn take_over_failure(&self, paged: &Paged) {
        if self.poison.get().is_none()
            && let Some(error) = paged.poisoned()
        {
            let cause = error.to_string();
            self.poison_with(MediumError::Disk { cause });
        }
    }

    /// Makes every later fence fail, for a user of the pool that cannot go on safely.
    pub fn poison(&self, cause: &str) {
        if self.poisoned().is_some() {
            return; // its cause may be a consequence
        }
        self.poison_with(MediumError::Poisoned {
            pool: self.name(),
            cause: cause.to_owned(),
        });
    }

    fn poison_with(&self, error: MediumError) {
        // The first reason stays: later ones follow from it.
        if self.poison.set(error.clone()).is_ok() {
            log::error!("{error}");
        }
    }

    // Space behind a sparse image.

    /// Makes sure that a range of a sparse image has blocks, before it is stored to. Costs a
    /// load per 2 MiB where it has.
    ///
    /// # Errors
    /// [`MediumError::HostFull`]; the pool stays usable.
    #[inline]
    #[track_caller]
    pub fn back(&self, off: u64, len: u64) -> Result<(), MediumError> {
        self.region.check(off, len);
        match &self.syncer {
            None => self.back_medium(off, len),
            Some(syncer) => syncer.back(off, len, &|| self.back_medium(off, len)),
        }
    }

    #[inline]
    fn back_medium(&self, off: u64, len: u64) -> Result<(), MediumError> {
        match (&self.backing, &self.file) {
            (Some(backing), Some(file)) => backing.back(&|| self.name(), file, off, len),
            _ => Ok(()),
        }
    }

    /// Whether the range is a hole of a sparse image: all zeros. To read it would be to the same
    /// effect, but on tmpfs takes memory as a store does, and SIGBUS when there is none. Never of a
    /// private pool: what was stored to it is not in the file.
    pub fn is_hole(&self, off: u64, len: u64) -> bool {
        self.region.check(off, len);
        let file = self.file.as_ref().filter(|_| !self.private);
        file.is_some_and(|file| {
            // In this order: what does not differ from the file any more is in it.
            self.differs_from(off, off + len) == off + len
                && crate::backing::is_hole(file, off, len)
        })
    }

    /// Where the first bytes at or behind `off` are that may not be zeros: holes of a sparse image
    /// are passed over without being read. The pool's length if there are none.
    pub fn next_data(&self, off: u64) -> u64 {
        self.region.check(off, 0);
        let Some(file) = &self.file else { return off };
        loop {
            let data = crate::backing::data_from(file, off).min(self.len());
            let differs = self.differs_from(off, data);
            // What did not differ any more when it was looked at may be in the file only since.
            if differs < data || crate::backing::data_from(file, off) >= data {
                return differs;
            }
        }
    }

    /// Where the first bytes from `off` on are that may not be in the file yet; else `end`.
    fn differs_from(&self, off: u64, end: u64) -> u64 {
        let paged = self.paged.as_ref();
        paged.map_or(end, |paged| paged.differs_from(off, end))
    }

    /// Gives the blocks of whole pages of a freed range of a sparse image back to the host file
    /// system, where it can take them. The contents become zeros, or stay; nobody else may use
    /// the range meanwhile.
    #[track_caller]
    pub fn unback(&self, off: u64, len: u64) {
        self.region.check(off, len);
        assert!(!self.read_only(), "the pool is read-only");
        if let (Some(backing), Some(file)) = (&self.backing, &self.file) {
            backing.unback(off, len, |off, len| match &self.paged {
                None => crate::backing::punch(file, off, len).map_err(|error| error.to_string()),
                Some(paged) => paged.discard(off, len).map_err(|error| error.to_string()),
            });
        }
    }

    /// Tells the recorder, if there is one, where an operation stands.
    #[inline]
    pub fn mark(&self, text: impl FnOnce() -> String) {
        if let Some(recording) = &self.recording {
            let text = text();
            let _order = recording.order.lock();
            recording.recorder.mark(&text);
        }
    }
}

/// Spins for `n` times `ns` nanoseconds.
#[cold]
pub(crate) fn spin_ns(ns: u32, n: u64) {
    if ns == 0 {
        return;
    }
    let start = Instant::now();
    let time = Duration::from_nanos(u64::from(ns).saturating_mul(n));
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

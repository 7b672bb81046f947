//! Mounting and unmounting: constant time, whatever the image holds.
//!
//! Mounting reads the superblock and the mount state, lets the journal replay what a crash left,
//! and raises the epoch, durably, before the first operation: latest pointers of earlier mounts are
//! void from then on. Nothing is scanned. Unmounting persists everything, writes the counters and
//! marks the image clean, in this order.

use crate::attributes::Attributes;
use crate::commit::budget::Limits;
use crate::commit::gate::Gate;
use crate::commit::helpers::Helpers;
use crate::commit::persister::Persister;
use crate::dir::is_dead;
use crate::fault::{Fault, injected};
use crate::image::{BadSuperblock, Image, Superblock, cause};
use crate::inode::{Inode, Node};
use crate::inode_table::Held;
use crate::layout::{self, EPOCH_MAX, PAGE, line_at, page_at, state};
use crate::options::{Mode, MountOptions};
use crate::reclaim::Reclaimer;
use crate::volume::Volume;
use pmem::{Domain, Journal, Pool};
use schedule::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed},
};
use std::thread::JoinHandle;
use vfs::{Clock, Error, Result, Time};

/// Why an image was not mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// Not an image, damaged, of another version, truncated.
    #[error("{0}")]
    Superblock(#[from] BadSuperblock),
    /// The journal cannot be replayed.
    #[error("the journal cannot be replayed: {0}; run `tureen fsck`")]
    Journal(String),
    /// A read-only mount of an image that needs its journal replayed, in a pool that is not
    /// private.
    #[error(
        "a crash left {0} transactions to replay, which a read-only mount cannot; mount it for \
         writing once, or run `tureen fsck`"
    )]
    NeedsReplay(usize),
    /// The epoch would wrap.
    #[error(
        "the image has been mounted {EPOCH_MAX} times and needs its epoch reset: run `tureen fsck`"
    )]
    Epoch,
    /// One of the counters of mounts is damaged: what earlier mounts left could be taken for this
    /// one's.
    #[error("the counters of mounts contradict each other; run `tureen fsck`")]
    Counters,
    /// What the repair has not come to yet would be taken for free space.
    #[error(
        "a repair of the image was cut short; run `tureen fsck` again, or mount it with `-o ro`"
    )]
    Repairing,
    /// Only a later version may change the image.
    #[error(
        "the image has features {0:#x} that only a later version may write; mount it with `-o ro`"
    )]
    Features(u64),
    /// The root directory cannot be read.
    #[error("the root directory cannot be read: {0}; run `tureen fsck`")]
    Root(Error),
    /// The medium failed.
    #[error("medium failed: {0}")]
    Medium(String),
    /// A background thread could not be started: nothing would be persisted in time.
    #[error("cannot start a thread, {0}; is the limit of threads or of memory reached?")]
    Thread(String),
}

impl From<pmem::MediumError> for MountError {
    fn from(e: pmem::MediumError) -> MountError {
        MountError::Medium(e.to_string())
    }
}

/// A mounted file system; a handle that can be cloned. Dropping the last one unmounts; call
/// [`SoupFs::unmount`] to learn whether that went well.
#[derive(Clone)]
pub struct SoupFs {
    pub(crate) shared: Arc<Shared>,
    _mounted: Arc<Mounted>,
}

/// Unmounts when the last handle goes (the background threads share the rest, too).
struct Mounted(Arc<Shared>);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = self.0.unmount() {
            log::error!("unmounting failed: {e}");
        }
    }
}

/// What all handles share.
pub(crate) struct Shared {
    pub(crate) volume: Volume,
    pub(crate) persister: Persister,
    pub(crate) reclaimer: Reclaimer,
    pub(crate) options: MountOptions,
    /// Shared by moves of directories, and taken alone by one that has met another
    /// ([`crate::rename`]).
    pub(crate) moves: RwLock<()>,
    pub(crate) persisters: usize,
    pub(crate) epoch: u64,
    /// What the user should know about how the mount went.
    pub(crate) notice: Option<String>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    unmounted: AtomicBool,
    /// How that went.
    ended: Mutex<Option<Result<()>>>,
}

/// Pointers of one height take at most one in so many words of the journal. There are up to five
/// heights, with the root, and a request may take half of them.
const RECORD_PARTS: u64 = 16;

impl SoupFs {
    /// Mount the image in a pool.
    ///
    /// # Errors
    /// [`MountError`]; of a medium that failed that it did, whatever was found there.
    pub fn mount(
        pool: Arc<Pool>,
        options: MountOptions,
    ) -> std::result::Result<SoupFs, MountError> {
        SoupFs::mount_readable(pool.clone(), options).map_err(|error| match pool.poisoned() {
            Some(why) => why.into(),
            None => error,
        })
    }

    fn mount_readable(
        pool: Arc<Pool>,
        options: MountOptions,
    ) -> std::result::Result<SoupFs, MountError> {
        let (superblock, damaged) = Superblock::find(&pool)?;
        let mut notice = damaged.map(|why| {
            format!(
                "the first superblock is damaged ({why}), its copy was used; run `tureen fsck` to \
                 restore it"
            )
        });
        let g = superblock.geometry;
        let (at, len) = (page_at(g.journal), g.journal_pages * PAGE);
        let clean = pool.load(state::CLEAN_EPOCH) == pool.load(state::EPOCH);
        if options.read_only {
            let pending = Journal::peek(&pool, at, len, |word| g.holds_word(word))
                .map_err(|e| MountError::Journal(e.to_string()))?;
            match pending.len() {
                0 => {}
                // Into this process's memory: the image stays as it is.
                _ if pool.private() => {
                    Journal::recover(&pool, at, len, |word| g.holds_word(word))
                        .map_err(|e| MountError::Journal(e.to_string()))?;
                }
                transactions => return Err(MountError::NeedsReplay(transactions)),
            }
        }
        if !options.read_only {
            match pool.load(state::CLEAN_EPOCH) {
                epoch if epoch & state::REPAIRING != 0 && !injected(Fault::RepairIgnored) => {
                    return Err(MountError::Repairing);
                }
                _ if Image::new(&*pool, &g).epoch().is_none() => return Err(MountError::Counters),
                _ => {}
            }
            if superblock.ro_compat != 0 {
                return Err(MountError::Features(superblock.ro_compat));
            }
        }
        let raises = !options.read_only && !injected(Fault::EpochReuse);
        let epoch = pool.load(state::EPOCH).saturating_add(u64::from(raises));
        if epoch > EPOCH_MAX {
            return Err(MountError::Epoch);
        }
        let journal = if options.read_only {
            None
        } else {
            keep_superblocks(&pool, &superblock);
            let (mut journal, recovered) =
                Journal::recover(&pool, at, len, |word| g.holds_word(word))
                    .map_err(|e| MountError::Journal(e.to_string()))?;
            if let Some(transactions) = &options.transactions
                && pool.domain() == Domain::Cache
            {
                journal.set_transactions(transactions.clone());
            }
            if recovered.transactions > 0 {
                log::info!(
                    "replayed {} transactions ({} words)",
                    recovered.transactions,
                    recovered.words
                );
            }
            pool.store(state::EPOCH, epoch);
            pool.flush(state::EPOCH, 8);
            pool.fence()?;
            Some(journal)
        };
        if !clean {
            let text = match pool.load(state::CLEAN_EPOCH) & state::REPAIRING != 0 {
                true => "a repair was cut short: run `tureen fsck` again",
                false => "the image was not unmounted cleanly",
            };
            notice = Some(notice.map_or(text.into(), |n| format!("{n}; {text}")));
        }
        let helpers = match options.read_only {
            true => Helpers::default(),
            false => Helpers::start(&pool, options.persisters.saturating_sub(1), options.manual),
        };
        let persisters = helpers.count() + 1;
        let root = superblock.root;
        let own_epoch = (!options.read_only).then_some(epoch);
        let now = options.clock.now();
        let mut volume = Volume::new(pool, superblock, own_epoch, clean);
        if options.mode == Mode::Strong {
            let usual = journal.as_ref().map_or(0, Journal::capacity) as u64 / RECORD_PARTS;
            volume.record_words = Some(options.knobs.record_words.unwrap_or(usual));
            if let Some(bytes) = options.knobs.logged_bytes {
                volume.set_logged_max(bytes);
            }
        }
        let limits = Limits {
            memory: match options.manual {
                true => u64::MAX,
                false => options.backlog_max,
            },
            bound: options.bound,
            knobs: options.knobs,
        };
        let strong = options.mode == Mode::Strong && !options.read_only;
        let gate = Gate::new(strong, volume.pool.domain());
        let persister = Persister::new(&volume, journal, helpers, limits, gate);
        let shared = Arc::new(Shared {
            volume,
            persister,
            reclaimer: Reclaimer::new(clean || options.read_only),
            moves: RwLock::new(()),
            persisters,
            options,
            epoch,
            notice,
            threads: Mutex::default(),
            unmounted: AtomicBool::new(false),
            ended: Mutex::default(),
        });
        shared.persister.set_swept(now);
        let fs = SoupFs {
            _mounted: Arc::new(Mounted(shared.clone())),
            shared,
        };
        let inode = fs.load(root).map_err(MountError::Root)?;
        inode.dir().map_err(MountError::Root)?;
        if !fs.shared.options.manual && !fs.shared.options.read_only {
            fs.start()?;
        }
        Ok(fs)
    }

    fn start(&self) -> std::result::Result<(), MountError> {
        self.shared.reclaimer.begin(&self.shared.volume);
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(name.into());
            let thread = thread.spawn(move || run(&shared));
            let thread = thread.map_err(|e| MountError::Thread(format!("{name}: {e}")))?;
            self.shared.threads.lock().push(thread);
            Ok(())
        };
        spawn("persister", |s| {
            let MountOptions {
                bound,
                inodes_max,
                clock,
                ..
            } = &s.options;
            s.persister.run(&s.volume, *bound, *inodes_max, &**clock);
        })?;
        spawn("reclaimer", |s| {
            // When nothing is lost any more the image may be marked clean: the maps must be
            // durable.
            if s.persister.inherit(&s.volume).is_ok() {
                s.reclaimer.run(&s.volume, &s.persister);
            }
        })
    }

    /// Begin the search for leaks, in a mount in which nothing happens in the background. Comes
    /// before its first change. What the medium holds is durable afterwards.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn begin_search(&self) -> Result<()> {
        let shared = &self.shared;
        shared.reclaimer.begin(&shared.volume);
        shared.persister.inherit(&shared.volume)
    }

    /// One step of that search, in which so many entries, inodes, pointers and bits are looked at.
    /// Whether it has ended.
    ///
    /// # Errors
    /// It met damage.
    pub fn search(&self, budget: u64) -> Result<bool> {
        let shared = &self.shared;
        let (volume, persister) = (&shared.volume, &shared.persister);
        shared.reclaimer.step(volume, persister, budget)
    }

    /// Persist everything, mark the image clean and end the background threads. Further changes
    /// fail with `EROFS`; one that runs meanwhile may not be persisted. Who calls it again is told
    /// how it went; handles and nodes may still exist.
    pub fn unmount(&self) -> Result<()> {
        self.shared.unmount()
    }

    /// The medium.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.volume.pool
    }

    /// What tells the time.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.options.clock
    }

    /// Whether changes are refused, and why.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.shared.options.read_only || self.shared.unmounted.load(Relaxed) {
            return Err(vfs::Errno::ROFS.into());
        }
        crate::commit::lane::check(&self.shared.volume)
    }

    /// The result of an operation, as callers are told: damage that was met on a medium which
    /// failed may be a consequence of that.
    #[inline]
    pub(crate) fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| cause(&self.shared.volume.pool, error))
    }

    pub(crate) fn now(&self) -> Time {
        self.shared.options.clock.now()
    }

    /// The inode of the consistent view, loaded if DRAM does not hold it.
    pub(crate) fn load(&self, ino: u64) -> Result<triomphe::Arc<Inode>> {
        Ok(triomphe::Arc::clone(&*self.hold(ino)?))
    }

    /// The inode of a number that an entry has, its slot locked.
    pub(crate) fn hold(&self, ino: u64) -> Result<Held<'_>> {
        let volume = &self.shared.volume;
        self.check_number(ino)?;
        volume
            .inodes
            .hold_or_load(ino, || load_named(&volume.image().inode(ino)?))
    }

    fn check_number(&self, ino: u64) -> Result<()> {
        match self.shared.volume.geometry().holds_line(ino) {
            true => Ok(()),
            false => Err(Error::corrupt(
                0,
                format!("inode number {ino} out of range"),
            )),
        }
    }

    /// The directory that a directory is in; `ENOENT` if that was removed: what it was in may be
    /// gone as well, and its number free, or another's.
    pub(crate) fn load_parent(&self, inode: &Inode) -> Result<triomphe::Arc<Inode>> {
        let (volume, dir) = (&self.shared.volume, inode.dir()?);
        loop {
            let number = dir.parent.load(Acquire);
            self.check_number(number)?;
            let parent = volume.inodes.get_or_load(number, || {
                let image = volume.image().inode(number)?;
                match image.nlink {
                    0 => Err(vfs::Errno::NOENT.into()),
                    _ => Inode::load(&image),
                }
            });
            if is_dead(dir) {
                return Err(vfs::Errno::NOENT.into());
            }
            // It may have moved meanwhile.
            if dir.parent.load(Acquire) == number {
                return parent;
            }
        }
    }

    pub(crate) fn root_node(&self) -> Option<Node> {
        self.load(self.shared.volume.superblock.root)
            .ok()
            .map(Node::new)
    }
}

/// Flush the superblocks: a mkfs or fsck that was killed may have left them visible only (M15). The
/// journal's recovery fences. In domain `page` opening the pool has synced them.
fn keep_superblocks(pool: &Pool, superblock: &Superblock) {
    if pool.domain() == Domain::Line {
        for page in [0, superblock.geometry.superblock_copy()] {
            pool.flush(page_at(page), layout::superblock::LEN as u64);
        }
    }
}

/// An inode that a name leads to. That no name is counted is damage: it is removed, or was, and
/// what it held is free.
pub(crate) fn load_named(image: &Attributes) -> Result<Inode> {
    match image.nlink {
        0 => Err(Error::corrupt(
            line_at(image.ino),
            "a name leads to a removed inode",
        )),
        _ => Inode::load(image),
    }
}

impl Shared {
    fn unmount(&self) -> Result<()> {
        self.unmounted.store(true, Relaxed);
        self.ended.lock().get_or_insert_with(|| self.end()).clone()
    }

    fn end(&self) -> Result<()> {
        self.reclaimer.stop();
        self.persister.stop();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                self.volume.pool.poison("a background thread panicked");
            }
        }
        if self.options.read_only {
            return Ok(());
        }
        crate::commit::lane::check(&self.volume)?;
        self.persister.finish(&self.volume)?;
        let volume = &self.volume;
        let searches = self.reclaimer.reclaimed().is_none() && !injected(Fault::CleanEarly);
        let keeps_orphans = !self.persister.orphans.lock().is_empty();
        if searches
            || (keeps_orphans && !injected(Fault::CleanWithOrphans))
            || volume.lost_space.load(Relaxed)
        {
            // Space is still lost track of: the next mount goes on searching.
            return Ok(());
        }
        let free_lines = volume.alloc.write_summaries();
        let pool = &volume.pool;
        pool.store(state::FREE_LINES, free_lines);
        pool.flush(state::FREE_LINES, 8);
        pool.fence().map_err(crate::medium::failed)?;
        pool.store(state::CLEAN_EPOCH, self.epoch);
        pool.flush(state::CLEAN_EPOCH, 8);
        pool.fence().map_err(crate::medium::failed)
    }
}

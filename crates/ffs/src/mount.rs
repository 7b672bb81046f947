//! A mount's life.

mod log;
mod orphans;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use block::{Buffer, Disk};
use parking_lot::Mutex;
use vfs::{Clock, Errno, Error, Kind, Result};
use zerocopy::IntoBytes;

use crate::alloc::Alloc;
use crate::cache::Cache;
use crate::check::Moment;
use crate::dir::{self, NOT_YET};
use crate::fault::{Fault, injected, unless};
use crate::geometry::{Geometry, MountError};
use crate::inode::Node;
use crate::inspect::{label, make_durable, superblock};
use crate::journal::cached::CacheStore;
use crate::journal::log::Log;
use crate::journal::{self, Journal, replay};
use crate::layout::{ROOT_INO, STATE_ERROR, STATE_VALID, SUPERBLOCK_AT, Superblock};
use crate::mark;
use crate::medium::Medium;
use crate::order::graph::On;
use crate::order::{self, Action, Mode, Order, wave};
use crate::reclaim::{Progress, Reclaim, Step};
use crate::snapshot::DIR_NAME;
use crate::transaction::TransactionStore;
use crate::volume::Volume;

pub(crate) use orphans::free_orphans;

/// Guards and tasks, and names that were left, from which on a change waits for a round, if nothing
/// else was asked for.
const NODES_MAX: usize = 400_000;

/// Bytes of blocks that are kept by who only looks for a name in the root.
const LOOK_BYTES: usize = 1 << 20;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Nothing is written.
    pub read_only: bool,
    /// Key of the hash of names: random and secret.
    pub hash_key: [u8; 16],
    /// Bytes of blocks that are kept in DRAM; so many more may be there that are to be written.
    pub cache_bytes: usize,
    /// What a crash may leave.
    pub mode: Mode,
}

/// How a mounted file system is doing.
#[derive(Debug, Clone)]
pub struct Status {
    /// Identifier.
    pub uuid: [u8; 16],
    /// A name for people.
    pub label: String,
    /// Mounts for writing since the last full check.
    pub mounts: u16,
    /// Size.
    pub bytes: u64,
    /// Of it free.
    pub bytes_free: u64,
    /// Inodes that can be made.
    pub inodes_free: u64,
    /// Changes are refused.
    pub read_only: bool,
    /// What was changed and is not written.
    pub bytes_dirty: usize,
    /// What keeps order among it: guards and tasks; and inodes that are to be freed.
    pub dependencies: usize,
    /// DRAM that these take, more or less: bytes.
    pub dependency_bytes: usize,
    /// How often what was written had something rolled back, since the mount.
    pub rolled_back: u64,
    /// How often changes waited for each other, and one was written without its order, since the
    /// mount: a bug.
    pub out_of_order: u64,
    /// Inodes that somebody uses.
    pub inodes_in_use: usize,
    /// What a crash lost is being searched for: how far that is, and what it has done.
    pub reclaim: Progress,
    /// Why nothing more becomes durable, or is changed.
    pub failed: Option<String>,
}

/// How often an operation that could not begin waits for what blocked it alone.
const UNBLOCKED_ALONE: usize = 2;

/// A mounted file system. Clones are the same one.
///
/// Changes are made in DRAM, and written, in the order of the [`Mode`], when a call asks for
/// durability, when there are many, and by [`Ffs::unmount`]. Who drops it without that loses them.
#[derive(Clone)]
pub struct Ffs {
    pub(crate) volume: Arc<Volume>,
    pub(crate) superblock: Arc<Mutex<Superblock>>,
    pub(crate) root: Node,
    cache_bytes: usize,
    /// Guards and tasks, and names that were left, from which on a change waits for a round.
    nodes_max: Arc<AtomicUsize>,
    /// Who changes names waits until that is durable.
    are_names_durable: bool,
    is_open: Arc<AtomicBool>,
    /// What makes transactions durable, if the image's journal does.
    pub(crate) log: Option<Arc<Log>>,
    /// The image's journal, for views of snapshots: found when it was first asked for.
    pub(crate) journal: Arc<OnceLock<Option<Arc<Journal>>>>,
    /// That is closed.
    is_log_closed: Arc<AtomicBool>,
    /// That were made durable.
    transactions: Arc<AtomicU64>,
    pub(crate) reclaim: Arc<Reclaim>,
    /// It is being checked in use.
    pub(crate) checking: Arc<Mutex<()>>,
    /// What the reclaim found that no crash leaves.
    damage: Arc<Mutex<Option<String>>>,
}

impl Ffs {
    /// Mounts what is on a disk, and replays its journal if that is needed. For writing it has to
    /// be clean, or be one that [`mounts_at_once`], for mode soft or sync: then it serves at once,
    /// and what the crash lost is found by [`Ffs::reclaim_step`]. It is not clean until it is
    /// unmounted.
    ///
    /// # Errors
    /// It is no file system of ext2, ext3 or ext4, or one with features that are not supported, or
    /// a damaged one, or for writing not a clean one; or the disk failed.
    pub fn mount(
        disk: Disk,
        clock: Arc<dyn Clock>,
        options: MountOptions,
    ) -> std::result::Result<Ffs, MountError> {
        if !options.read_only {
            make_durable(&disk)?;
        }
        let (medium, mut superblock) = open(disk, &options, options.mode.is_soft())?;
        let (medium, log) = match options.read_only {
            true => (medium, None),
            false => log::open(medium, &mut superblock, options.mode, &clock)?,
        };
        Ffs::start(medium, superblock, clock, options, log)
    }

    fn start(
        medium: Medium,
        superblock: Superblock,
        clock: Arc<dyn Clock>,
        options: MountOptions,
        log: Option<Arc<Log>>,
    ) -> std::result::Result<Ffs, MountError> {
        let is_crashed = !options.read_only && check_clean(&superblock).is_err();
        let is_counted = !is_crashed || injected(Fault::CountsBelieved);
        let alloc = Alloc::new(&medium, is_counted)?;
        let (key, is_writable) = (options.hash_key, !options.read_only);
        let volume = Arc::new(Volume::new(medium, alloc, clock, key, is_writable));
        volume.reclaiming.store(is_crashed, Ordering::SeqCst);
        let root = read_root(&volume)?;
        let fs = Ffs {
            volume,
            superblock: Arc::new(Mutex::new(superblock)),
            root,
            cache_bytes: options.cache_bytes,
            nodes_max: Arc::new(AtomicUsize::new(NODES_MAX)),
            are_names_durable: options.mode == Mode::Sync,
            is_open: Arc::new(AtomicBool::new(!options.read_only)),
            log,
            journal: Arc::default(),
            is_log_closed: Arc::default(),
            transactions: Arc::default(),
            reclaim: Arc::default(),
            checking: Arc::default(),
            damage: Arc::default(),
        };
        if is_crashed {
            let moment = Moment {
                is_crash: true,
                held: Default::default(),
                dirs: Some(fs.volume.alloc.dirs()),
            };
            fs.reclaim.begin(&fs.volume, moment);
        }
        let is_journaled = fs.volume.medium.order.is_journal();
        fs.load_snapshots()?;
        if !options.read_only {
            let stored = fs.superblock.lock().clone();
            let orphans = fs.volume.adopt(&stored)?;
            fs.store_superblock(Some(Fault::MountUnflushed), |superblock, now| {
                if !is_journaled && !injected(Fault::DirtyUnmarked) {
                    superblock.state = (superblock.state.get() & !STATE_VALID).into();
                }
                superblock.mnt_count = superblock.mnt_count.get().saturating_add(1).into();
                superblock.mtime = now.into();
                let is_marked = options.mode.is_soft() && !is_journaled;
                let is_dropped = is_crashed && injected(Fault::MarkDropped);
                match fs.log.is_some() {
                    true => mark::keep(superblock),
                    false => mark::set(superblock, is_marked && !is_dropped),
                }
            })?;
            fs.free_orphans(orphans)?;
            fs.remove_snapshots();
            fs.remove_left_dir();
        }
        Ok(fs)
    }

    /// Mounts what is on a disk that is read through a persistent cache, for writing unless it has
    /// to be read only: what is written together is a transaction of the cache, whatever the mode.
    ///
    /// # Errors
    /// As [`Ffs::mount`].
    pub fn mount_cached(
        cache: &Arc<::cache::Cache>,
        clock: Arc<dyn Clock>,
        options: MountOptions,
    ) -> std::result::Result<Ffs, MountError> {
        let disk = CacheStore::disk(cache);
        let (mut medium, superblock) = open(disk, &options, false)?;
        let store = CacheStore::new(cache.clone(), medium.geometry.block_size);
        let reserved = log::reserved(&medium.geometry);
        let have = store.capacity();
        medium.cache = medium.cache.journaled(Arc::new(store), reserved);
        let need = reserved + order::operation_blocks(&medium.cache);
        if have < need {
            return Err(MountError::CacheTooSmall { need, have });
        }
        medium.order = Order::journal();
        Ffs::start(medium, superblock, clock, options, None)
    }

    /// Makes everything durable, and the image clean unless inodes without names are in use, what a
    /// crash lost was not all found, or the disk failed a change on its way. After it changes are
    /// `EROFS`.
    ///
    /// # Errors
    /// The disk failed: the image is not clean.
    pub fn unmount(&self) -> Result<()> {
        let volume = &self.volume;
        if !self.is_open.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        volume.medium.order.wait();
        if injected(Fault::CleanFirst) {
            self.store_superblock(None, |superblock, _| {
                superblock.state = (superblock.state.get() | STATE_VALID).into();
            })?;
        }
        // All frees are done before they are counted.
        self.sync()?;
        volume.alloc.store(&volume.medium)?;
        self.sync()?;
        let nameless = volume.inodes.in_use().into_iter();
        let nameless = nameless
            .filter(|inode| inode.state.read().stored.attributes.links == 0)
            .count();
        let are_listed = volume.medium.order.is_journal();
        self.store_superblock(Some(Fault::UnmountUnflushed), |superblock, _| {
            count_free(superblock, &volume.alloc);
            let is_whole = volume.is_whole() || injected(Fault::CleanUnreclaimed);
            if (nameless == 0 || are_listed) && is_whole {
                superblock.state = (superblock.state.get() | STATE_VALID).into();
            }
        })?;
        let Some(log) = &self.log else { return Ok(()) };
        self.is_log_closed.store(true, Ordering::SeqCst);
        log.close(self.disk(), &mut self.superblock.lock())
    }

    /// Which blocks a wave has is nobody's condition: from here on each takes some of those that it
    /// might, as chance has it. For tests of the order, of which the usual choice shows little: it
    /// writes all bitmaps and data first. Without soft updates nothing changes.
    pub fn scatter_waves(&self) {
        self.volume.medium.order.scatter();
    }

    /// Whether that was asked for, and there are any.
    pub fn scatters_waves(&self) -> bool {
        self.volume.medium.order.is_scattered()
    }

    /// From here on a change waits for a round if there are more guards and tasks than so many. For
    /// tests, in which there are never as many as else.
    pub fn bound_dependencies(&self, max: usize) {
        self.nodes_max.store(max, Ordering::Relaxed);
    }

    fn has_many_nodes(&self) -> bool {
        let max = self.nodes_max.load(Ordering::Relaxed);
        self.volume.medium.order.exceeds(max)
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        let geometry = &self.volume.medium.geometry;
        let superblock = self.superblock.lock();
        let (free, inodes_free) = self.volume.alloc.free();
        Status {
            uuid: superblock.uuid,
            label: label(&superblock),
            mounts: superblock.mnt_count.get(),
            bytes: geometry.blocks * u64::from(geometry.block_size),
            bytes_free: free * u64::from(geometry.block_size),
            inodes_free,
            read_only: !self.volume.is_writable,
            dependencies: self.volume.medium.order.len() + self.volume.coming().1 as usize,
            dependency_bytes: self.volume.medium.order.bytes(),
            rolled_back: self.volume.medium.order.rolled_back(),
            out_of_order: self.volume.medium.order.forced(),
            bytes_dirty: self.volume.medium.cache.dirty_bytes(),
            inodes_in_use: self.volume.inodes.in_use().len(),
            reclaim: self.reclaim.progress(),
            failed: match self.disk().poisoned() {
                Some(error) => Some(error.to_string()),
                None => self.damage.lock().clone(),
            },
        }
    }

    /// Something was changed that is not durable, or is to be freed.
    pub fn is_changed(&self) -> bool {
        let medium = &self.volume.medium;
        let waits = medium.order.len() > 0 || self.volume.coming() != (0, 0);
        waits || medium.cache.dirty_len() > 0
    }

    /// Where its times come from.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.volume.clock.clone()
    }

    /// Transactions that were made durable since it was mounted, where rounds are such.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::SeqCst)
    }

    /// The disk that it is on.
    pub fn disk(&self) -> &Disk {
        self.volume.medium.cache.disk()
    }

    /// Makes a change, with no lock held before: if much is to be written, or waits, that is
    /// written first. If there is no space, and some is going to be free, it is made again then; so
    /// is one that takes a name which the disk keeps.
    pub(crate) fn change<T>(&self, change: impl Fn(&Arc<Volume>) -> Result<T>) -> Result<T> {
        let done = self.operate(|volume| {
            if !self.is_open.load(Ordering::SeqCst) {
                return Err(Errno::ROFS.into());
            }
            let done = change(volume);
            // It may have been the last user of one, which is freed with it if that is a step. Who
            // found no space is to know that there were some: it begins again behind that.
            if done.as_ref().err() != Some(&Errno::NOSPC.into()) {
                self.free_step();
            }
            done
        });
        self.free_doomed();
        done
    }

    /// Makes a change of names, which is durable then if the mode has it so.
    pub(crate) fn change_names<T>(&self, change: impl Fn(&Arc<Volume>) -> Result<T>) -> Result<T> {
        let done = self.change(change)?;
        if self.are_names_durable {
            self.sync()?;
        }
        Ok(done)
    }

    /// The same, also after an unmount has begun.
    fn operate<T>(&self, change: impl Fn(&Arc<Volume>) -> Result<T>) -> Result<T> {
        let mut blocked = 0;
        loop {
            let Medium { cache, order, .. } = &self.volume.medium;
            let is_full = cache.dirty_bytes() > self.cache_bytes;
            let is_full = is_full || self.has_many_nodes();
            if is_full || cache.together() > cache.together_max() / 4 {
                self.round()?;
            }
            let done = {
                let Some(_admitted) = order.admit(cache) else {
                    self.round()?;
                    continue;
                };
                let _operation = order.begin();
                change(&self.volume)
            };
            match done {
                Err(Error::Errno(Errno::NOSPC)) if self.volume.has_doomed() => self.free_doomed(),
                Err(Error::Errno(Errno::NOSPC))
                    if order.coming() != (0, 0) || self.volume.alloc.is_holding() =>
                {
                    self.round()?
                }
                Err(Error::Errno(NOT_YET)) if order.is_pending() => {
                    self.unblock(blocked)?;
                    blocked += 1;
                }
                Err(Error::Errno(Errno::NOSPC)) if self.is_reclaiming() => self.reclaim()?,
                done => return done.inspect_err(|error| cache.note_failure(error)),
            }
        }
    }

    /// Makes durable what operations wait for that could not begin. That alone, if it is known;
    /// and unless one was blocked so often before, as others may go on with the same names.
    fn unblock(&self, blocked: usize) -> Result<()> {
        let Medium { order, cache, .. } = &self.volume.medium;
        let before = order.take_before();
        match before.is_empty() || blocked >= UNBLOCKED_ALONE {
            true => self.round(),
            false => wave::fsync(order, cache, self, &|| Ok(before.clone())),
        }
    }

    /// Frees inodes that nobody uses, where that is an operation like others, or several.
    fn free_doomed(&self) {
        while self.volume.has_doomed() {
            let freed = self.operate(|_| {
                self.free_step();
                Ok(())
            });
            if let Err(error) = freed {
                ::log::error!("inodes without names are not freed: {error}");
                return;
            }
        }
    }

    /// Frees of such an inode what an operation may beside its change. What fails to be freed
    /// stays in use, and the check finds it.
    fn free_step(&self) {
        let Some(mut stored) = self.volume.next_doomed() else {
            return;
        };
        match self.volume.free(&mut stored) {
            Ok(true) => {}
            Ok(false) => self.volume.doomed.lock().push(stored),
            Err(error) => {
                ::log::error!("inode {}: not all of it is freed: {error}", stored.ino);
                self.volume.medium.cache.note_failure(&error);
            }
        }
    }

    /// Makes durable all that was changed before, and frees what was given up. No lock is held, and
    /// no operation is under way in this thread.
    ///
    /// # Errors
    /// The disk failed, or damage was found.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.is_log_closed.load(Ordering::SeqCst) {
            // All is durable. Inodes that lost their last user since stay orphans.
            return Ok(());
        }
        self.free_doomed();
        self.round()?;
        self.remove_snapshots();
        Ok(())
    }

    /// Whether there is still a log to commit to.
    pub(crate) fn check_log(&self) -> Result<()> {
        match self.is_log_closed.load(Ordering::SeqCst) {
            true => Err(Errno::ROFS.into()),
            false => Ok(()),
        }
    }

    /// To be called once a second, or so: makes durable what was changed five calls ago, or before,
    /// and is not. No lock is held.
    ///
    /// # Errors
    /// The disk failed, or damage was found.
    pub fn tick(&self) -> Result<()> {
        if self.is_log_closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.free_doomed();
        self.reclaim.make_room(&self.volume, self.cache_bytes / 2)?;
        let Medium { order, cache, .. } = &self.volume.medium;
        wave::tick(order, cache, self)?;
        self.remove_snapshots();
        Ok(())
    }

    /// Makes durable all that was changed of a file or directory: contents, attributes and names.
    /// In a mode with an order that is not all that was changed.
    pub(crate) fn sync_node(&self, node: &Node) -> Result<()> {
        let Medium { order, cache, .. } = &self.volume.medium;
        if !order.is_soft() {
            return self.sync();
        }
        self.reclaim.make_room(&self.volume, self.cache_bytes / 2)?;
        let conditions = || {
            let contents = match node.kind {
                Kind::Dir => dir::all_of(&self.volume.medium, &node.state.read().stored)?,
                _ => cache
                    .dirty_data(node.ino)
                    .into_iter()
                    .map(On::Block)
                    .collect(),
            };
            let mut after = unless(Fault::FsyncWithoutData, &contents).to_vec();
            let names = order.names_of(node.ino);
            after.extend(unless(Fault::FsyncWithoutNames, &names));
            let inode = [On::Place(self.volume.medium.place(node.ino)?)];
            after.extend(unless(Fault::FsyncWithoutInode, &inode));
            Ok(after)
        };
        wave::fsync(order, cache, self, &conditions)
    }

    /// Makes durable all that was changed before.
    fn round(&self) -> Result<()> {
        self.reclaim.make_room(&self.volume, self.cache_bytes / 2)?;
        let Medium { order, cache, .. } = &self.volume.medium;
        wave::round(order, cache, self)
    }

    /// What a crash lost is being searched for.
    pub fn is_reclaiming(&self) -> bool {
        self.volume.reclaiming.load(Ordering::SeqCst)
    }

    /// Does a step of the search for what a crash lost; false: there is none left. No lock is held,
    /// and no operation is under way in this thread.
    ///
    /// # Errors
    /// The disk failed, or what there is was left by no crash in mode soft: from then on nothing is
    /// changed any more, and the image asks for a check.
    pub fn reclaim_step(&self) -> Result<bool> {
        if !self.is_open.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let cache = &self.volume.medium.cache;
        if cache.dirty_bytes() > self.cache_bytes || self.has_many_nodes() {
            self.sync()?;
        }
        // What a step changes has room in a transaction.
        let _admitted = loop {
            match self.volume.medium.order.admit(cache) {
                Some(admitted) => break admitted,
                None => self.round()?,
            }
        };
        match self.reclaim.step(&self.volume, &|| self.round()) {
            Ok(step) => Ok(step != Step::End),
            Err(error) => {
                self.give_up(&error);
                Err(error)
            }
        }
    }

    /// What was found is not what a crash leaves: what was changed until now is made durable, and
    /// nothing more is changed.
    fn give_up(&self, error: &Error) {
        if !self.is_open.swap(false, Ordering::SeqCst) {
            return;
        }
        *self.damage.lock() = Some(format!("{error}: run tureen fsck or e2fsck"));
        self.volume.medium.order.wait();
        let done = self.round().and_then(|()| {
            self.store_superblock(Some(Fault::DamageUnflushed), |superblock, _| {
                superblock.state = (superblock.state.get() | STATE_ERROR).into();
            })
        });
        if let Err(error) = done {
            ::log::error!("{error}");
        }
    }

    /// Finds what a crash lost, to the end.
    pub(crate) fn reclaim(&self) -> Result<()> {
        while self.is_reclaiming() && self.reclaim_step()? {}
        Ok(())
    }

    /// A name is about to be moved or removed. If a crash may have left a directory another one,
    /// that is gone before. A directory that gets this name later was made or moved since, so it
    /// has one name.
    pub(crate) fn check_moves(&self, dir: &Node, name: &[u8]) -> Result<()> {
        if !self.is_reclaiming() || injected(Fault::SecondNameMoved) {
            return Ok(());
        }
        let may_have_two = {
            let _names = self.volume.names.alone();
            match self.volume.child(dir, name) {
                Ok((node, _)) if node.kind == Kind::Dir => self.volume.may_have_two_names(&node)?,
                // That is for the operation to say.
                _ => false,
            }
        };
        match may_have_two {
            true => self.reclaim(),
            false => Ok(()),
        }
    }

    /// Whether a directory lies below another one is found by `..`, which of a directory that a
    /// crash left with two names may be the wrong one: then the reclaim goes first.
    pub(crate) fn check_above(&self, dir: &Node) -> Result<()> {
        if !self.is_reclaiming() {
            return Ok(());
        }
        let may_have_two = {
            let _names = self.volume.names.alone();
            self.volume.is_below_one_of_two_names(dir)?
        };
        match may_have_two {
            true => self.reclaim(),
            false => Ok(()),
        }
    }

    /// From now on a crash may leave inodes without a name, to which the check gives one before
    /// they are used.
    pub(crate) fn note_exchange(&self) -> Result<()> {
        if !mark::is_set(&self.superblock.lock()) {
            return Ok(());
        }
        // What this is for comes behind a flush of the tags, which covers it.
        self.store_superblock(None, |superblock, _| mark::note_exchange(superblock))
    }

    /// Stores what is changed in the superblock, durably, unless the bug of the caller is that this
    /// is not flushed.
    pub(crate) fn store_superblock(
        &self,
        unflushed: Option<Fault>,
        change: impl FnOnce(&mut Superblock, u32),
    ) -> Result<()> {
        let now = self.volume.clock.now().secs() as u32;
        let mut superblock = self.superblock.lock();
        change(&mut superblock, now);
        superblock.wtime = now.into();
        if self.volume.medium.order.is_journal() {
            put_superblock(&self.volume.medium, &superblock)?;
            drop(superblock);
            return self.sync();
        }
        let bytes = Buffer::copy_of(superblock.as_bytes());
        let disk = self.disk();
        let written = disk.write(SUPERBLOCK_AT, vec![bytes]);
        let flushed = match unflushed.is_some_and(injected) {
            true => written.map(drop),
            false => written.and_then(|_| disk.flush()),
        };
        flushed.map_err(|error| Error::medium(error.to_string()))
    }
}

impl wave::Mount for Ffs {
    fn run(&self, action: Action) -> Result<()> {
        let done = self.volume.run(action);
        done.inspect_err(|error| self.volume.medium.cache.note_failure(error))
    }

    /// With its counts the file system is complete, and the superblock among them says that it is
    /// clean, and where the orphans are. Behind the descriptors nothing is changed any more that a
    /// snapshot may want.
    fn complete(&self) -> Result<Vec<u64>> {
        let Volume {
            medium,
            alloc,
            orphans,
            snapshots,
            ..
        } = &*self.volume;
        let count = || match injected(Fault::CountsForgotten) {
            true => Ok(()),
            false => alloc.store(medium),
        };
        count()?;
        self.volume.keep(&|| medium.cache.dirty_numbers())?;
        let freed = snapshots.adopt(medium, alloc, alloc.copied(medium))?;
        // What snapshots have got counts, too.
        count()?;
        let mut superblock = self.superblock.lock();
        count_free(&mut superblock, alloc);
        let state = superblock.state.get() & !STATE_VALID;
        let is_whole = !medium.cache.may_have_lost();
        superblock.state = (state | if is_whole { STATE_VALID } else { 0 }).into();
        if !injected(Fault::OrphansUnlisted) {
            superblock.last_orphan = orphans.lock().first().into();
        }
        put_superblock(medium, &superblock)?;
        Ok(freed)
    }

    fn ended(&self, is_durable: bool) {
        self.volume.alloc.ended(is_durable);
        self.transactions
            .fetch_add(is_durable.into(), Ordering::SeqCst);
    }

    fn keep(&self, blocks: &dyn Fn() -> Vec<u64>) -> Result<()> {
        self.volume.keep(blocks)
    }

    fn may_write(&self, block: u64) -> bool {
        self.volume.may_write(block)
    }

    fn give_up_keeping(&self) -> Result<bool> {
        self.volume.give_up_keeping()
    }
}

/// Lets the superblock say how much is free.
pub(crate) fn count_free(superblock: &mut Superblock, alloc: &Alloc) {
    let (blocks, inodes) = alloc.free();
    superblock.free_blocks_count_lo = (blocks as u32).into();
    superblock.free_inodes_count = (inodes as u32).into();
}

/// Changes the superblock in its block.
pub(crate) fn put_superblock(medium: &Medium, superblock: &Superblock) -> Result<()> {
    let block_size = u64::from(medium.geometry.block_size);
    let (at, offset) = (SUPERBLOCK_AT / block_size, SUPERBLOCK_AT % block_size);
    let bytes = superblock.as_bytes();
    let there = offset as usize..offset as usize + bytes.len();
    if medium.cache.read(at)?.bytes()[there.clone()] == *bytes {
        return Ok(());
    }
    let store = |block: &mut [u8]| block[there].copy_from_slice(bytes);
    medium.cache.change(at, store)
}

/// The blocks, with the journal replayed, in DRAM alone for who only reads, and the superblock.
fn open(
    disk: Disk,
    options: &MountOptions,
    may_reclaim: bool,
) -> std::result::Result<(Medium, Superblock), MountError> {
    let mut superblock = self::superblock(&disk)?;
    let needs_recovery = journal::needs_recovery(&superblock);
    let mut geometry = journal::geometry(&superblock, &disk)?;
    let mut disk = disk;
    if !options.read_only {
        check_features(&geometry)?;
        if needs_recovery {
            disk = replay::recover(disk, &superblock)?;
            superblock = self::superblock(&disk)?;
            geometry = Geometry::new(&superblock, disk.len())?;
        }
        check_features(&geometry)?;
        if !(may_reclaim && mounts_at_once(&disk)?) {
            check_clean(&superblock)?;
        }
    }
    let cache = Cache::new(disk, geometry.block_size, options.cache_bytes);
    let mut medium = Medium::new(geometry, cache, Order::new(options.mode));
    if options.read_only && needs_recovery {
        superblock = replay::recover_in_memory(&mut medium, &superblock)?;
    }
    Ok((medium, superblock))
}

/// Whether what is on a disk is not clean, but was left by a crash in mode soft: it may be mounted
/// for writing in that mode at once. Where names changed places before, the check goes first. What
/// has snapshots, or the name of their directory, may not:
/// [`crate::check_keeping`] goes first.
///
/// # Errors
/// It is no file system, or a damaged one; or the disk failed.
pub fn mounts_at_once(disk: &Disk) -> std::result::Result<bool, MountError> {
    let superblock = superblock(disk)?;
    if !mark::is_usable(&superblock) || superblock.last_orphan.get() != 0 {
        return Ok(false);
    }
    Ok(names_snapshots(disk, &superblock)? == Some(false))
}

/// Whether the root of what is on a disk has the name of the directory of snapshots; `None`: there
/// is no root.
pub(crate) fn names_snapshots(
    disk: &Disk,
    superblock: &Superblock,
) -> std::result::Result<Option<bool>, MountError> {
    let geometry = Geometry::new(superblock, disk.len())?;
    let cache = Cache::new(disk.clone(), geometry.block_size, LOOK_BYTES);
    let medium = Medium::unordered(geometry, cache);
    let Some(root) = medium.inode(ROOT_INO)? else {
        return Ok(None);
    };
    let mut has_snapshots = false;
    dir::scan(&medium, &root, 0, &mut |_, entry| {
        has_snapshots |= entry.name == DIR_NAME;
        !has_snapshots
    })?;
    Ok(Some(has_snapshots))
}

/// Whether its features may be written.
fn check_features(geometry: &Geometry) -> std::result::Result<(), MountError> {
    let features = geometry.features.read_only();
    match features.is_empty() {
        true => Ok(()),
        false => Err(MountError::ReadOnly(features.join(", "))),
    }
}

/// Whether it was unmounted cleanly.
fn check_clean(superblock: &Superblock) -> std::result::Result<(), MountError> {
    match superblock.state.get() & (STATE_VALID | STATE_ERROR) {
        STATE_VALID => Ok(()),
        _ => Err(MountError::NotClean),
    }
}

/// The root directory.
pub(crate) fn read_root(volume: &Arc<Volume>) -> Result<Node> {
    let geometry = &volume.medium.geometry;
    let at = volume.medium.group(0)?.inode_table;
    let damage = || {
        let what = format_args!("inode {ROOT_INO}, the root, is no directory");
        geometry.damage(at, what)
    };
    let root = volume.inode(ROOT_INO, damage)?;
    match root.kind {
        Kind::Dir => Ok(root),
        _ => Err(damage()),
    }
}

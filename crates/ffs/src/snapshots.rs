//! The life of snapshots: made, listed, read, removed.
//!
//! *Made*: a file in `/.snapshots` with a record, and room for copies of the bitmaps of blocks;
//! then, while nobody else writes, a round with no operation under way, which leaves on disk what
//! the snapshot is to be; copies of the bitmaps, and of what [`expunge`] changes in it; from here
//! on blocks are kept. When all of that is durable the file gets the flag that makes it a snapshot
//! (immutable): the commit point. Where rounds are transactions these are several: one of what
//! there is, which is then written home; those of the copies; that of the flag. *Removed*: it
//! loses the flag; when that is durable nothing is kept any more, and the file goes. A crash
//! between leaves a file with a record and no flag, which the next mount for writing removes.

mod checked;
mod expunge;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use block::Disk;
use vfs::{Errno, Error, Kind, NewKind, NewNode, Result, Time};

use crate::dir;
use crate::fault::{Fault, injected};
use crate::features;
use crate::geometry::MountError;
use crate::inode::Node;
use crate::journal::Journal;
use crate::layout::InodeFlags;
use crate::mark;
use crate::medium::Medium;
use crate::mount::Ffs;
use crate::order::wave;
use crate::snapshot::{
    COUNT_MAX, Counts, DIR_NAME, RECORD_NAME, Record, Snapshot, State, Suspension,
};
use crate::view::View;
use crate::volume::Volume;

pub use checked::check;
use expunge::Expunged;

/// Groups whose bitmaps get room in one operation.
const GROUPS_TOGETHER: usize = 64;
/// Blocks that change for the bitmap of one of them, at most: its copy, and blocks that lead there,
/// each with a bitmap.
const GROUP_BLOCKS: usize = 8;
/// Longest name.
const NAME_MAX: usize = 100;

/// Why a snapshot is not made, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Of the mount's mode.
    #[error("snapshots need an order: mount it with another mode than async, and without a cache")]
    Mode,
    /// It is mounted for reading.
    #[error("it is mounted read-only")]
    ReadOnly,
    /// There is one of this name.
    #[error("there is a snapshot {0} already")]
    Exists(String),
    /// There is none.
    #[error("there is no snapshot {0}")]
    Missing(String),
    /// There are too many.
    #[error("there are {COUNT_MAX} snapshots already: delete one first")]
    TooMany,
    /// Of the name.
    #[error("{0:?} cannot be a name: use 1 to {NAME_MAX} letters, digits, and '.', '-', '_'")]
    Name(String),
    /// Something else has the name of the directory.
    #[error("there is something else named .snapshots in the root: rename it first")]
    InTheWay,
    /// No file is as long as the disk.
    #[error("the disk is larger than a file can be: {0}")]
    TooLarge(&'static str),
    /// There is no space for it.
    #[error("no space is left for it: remove files, or a snapshot with tureen snapshot delete")]
    NoSpace,
    /// Anything else.
    #[error(transparent)]
    Fs(Error),
}

impl From<Error> for SnapshotError {
    fn from(error: Error) -> SnapshotError {
        match error {
            Error::Errno(Errno::NOSPC) => SnapshotError::NoSpace,
            error => SnapshotError::Fs(error),
        }
    }
}

/// One that there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Time,
    /// It is removed by the next mount, if not before.
    pub temporary: bool,
    /// Bytes of the disk that it takes.
    pub space: u64,
}

/// Whether something may be a snapshot's name.
fn check_name(name: &str) -> std::result::Result<(), SnapshotError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let ok = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_plain);
    match ok && name != "." && name != ".." {
        true => Ok(()),
        false => Err(SnapshotError::Name(name.to_owned())),
    }
}

impl Ffs {
    /// Makes a snapshot: all as it is at some moment of this call. Operations are stopped for one
    /// round. A `temporary` one does not outlive the mount.
    ///
    /// # Errors
    /// The mount keeps none, or has too many; the name is not good or taken; there is no space; the
    /// disk failed.
    pub fn create_snapshot(
        &self,
        name: &str,
        temporary: bool,
    ) -> std::result::Result<Suspension, SnapshotError> {
        let snapshots = &self.volume.snapshots;
        check_name(name)?;
        self.check_kept()?;
        // There are no snapshots until what a crash lost was found.
        self.reclaim()?;
        let _making = snapshots.making.lock();
        self.check_room()?;
        let all = snapshots.all();
        if all.iter().any(|one| one.name == name) {
            return Err(SnapshotError::Exists(name.to_owned()));
        }
        if all.len() >= COUNT_MAX {
            return Err(SnapshotError::TooMany);
        }
        let sequence = all.last().map_or(1, |last| last.record.sequence + 1);
        let record = Record {
            temporary,
            sequence,
            created: self.volume.clock.now(),
        };
        self.volume.medium.cache.keep_freed();
        let one = self.new_file(name, record)?;
        snapshots.insert(one.clone());
        let made = self.fill(&one);
        if made.is_err() {
            // Before, it is none on disk.
            if one.state() == State::Active {
                let _ = self.end(&one);
            }
            snapshots.dropped(one.ino);
            drop(_making);
            self.remove_snapshots();
        }
        Ok(made?)
    }

    /// Whether copies are durable before what they are copies of is written over.
    fn keeps_snapshots(&self) -> bool {
        self.volume.medium.order.is_soft() || self.log.is_some()
    }

    fn check_kept(&self) -> std::result::Result<(), SnapshotError> {
        match (self.keeps_snapshots(), self.volume.is_writable) {
            (_, false) => Err(SnapshotError::ReadOnly),
            (false, _) => Err(SnapshotError::Mode),
            (true, true) => Ok(()),
        }
    }

    /// Whether a file can be as long as the disk.
    fn check_room(&self) -> std::result::Result<(), SnapshotError> {
        let geometry = &self.volume.medium.geometry;
        let len = geometry.blocks * u64::from(geometry.block_size);
        let has_large = geometry.features.ro_compat & features::LARGE_FILE != 0;
        match () {
            () if len > self.volume.file_max() => {
                Err(SnapshotError::TooLarge("it reaches as far as pointers do"))
            }
            () if len > i32::MAX as u64 && !has_large => {
                Err(SnapshotError::TooLarge("the feature large_file is missing"))
            }
            () => Ok(()),
        }
    }

    /// A file with a record.
    fn new_file(
        &self,
        name: &str,
        record: Record,
    ) -> std::result::Result<Arc<Snapshot>, SnapshotError> {
        let volume = &self.volume;
        let dir = self.snapshot_dir(record.created)?;
        let owner = self.root.state.read().stored.attributes.clone();
        let value = record.encode();
        let new = NewNode {
            kind: NewKind::File,
            perm: 0o400,
            uid: owner.uid,
            gid: owner.gid,
            xattrs: &[(RECORD_NAME, &value)],
        };
        let file = self.change(|volume| volume.create(&dir, name.as_bytes(), &new))?;
        let geometry = &volume.medium.geometry;
        let mut stored = file.state.read().stored.clone();
        stored.attributes.size = geometry.blocks * u64::from(geometry.block_size);
        self.change(|volume| volume.store(&stored))?;
        let name = name.to_owned();
        Ok(Arc::new(Snapshot::new(name, record, stored, State::Making)))
    }

    /// The directory of snapshots, which is made if there is none. By its record a mount knows it
    /// when a crash has left nothing else of a snapshot.
    fn snapshot_dir(&self, created: Time) -> std::result::Result<Node, SnapshotError> {
        let volume = &self.volume;
        let snapshots = &volume.snapshots;
        if let Some(ino) = snapshots.dir() {
            return Ok(volume.inode(ino, || Errno::STALE.into())?);
        }
        let owner = self.root.state.read().stored.attributes.clone();
        let record = Record {
            temporary: false,
            sequence: 0,
            created,
        };
        let new = NewNode {
            kind: NewKind::Dir,
            perm: 0o700,
            uid: owner.uid,
            gid: owner.gid,
            xattrs: &[(RECORD_NAME, &record.encode())],
        };
        let made = self.change(|volume| volume.create(&self.root, DIR_NAME, &new));
        let dir = match made {
            Err(Error::Errno(Errno::EXIST)) => return Err(SnapshotError::InTheWay),
            made => made?,
        };
        snapshots.set_dir(Some(dir.ino));
        self.put_back(owner.mtime, owner.ctime)?;
        Ok(dir)
    }

    /// Gives the root the times that it had.
    fn put_back(&self, mtime: Time, ctime: Time) -> Result<()> {
        self.change(|volume| {
            volume.update(&self.root, |root| {
                (root.mtime, root.ctime) = (mtime, ctime);
            })
        })
        .map(drop)
    }

    /// Makes a file with a record a snapshot of what there is.
    fn fill(&self, one: &Arc<Snapshot>) -> Result<Suspension> {
        let volume = &self.volume;
        let Medium {
            geometry, cache, ..
        } = &volume.medium;
        let groups: Vec<u32> = (0..geometry.groups).collect();
        // Where rounds are transactions an operation changes so much at most.
        let blocks = cache.operation_max() / cache.block_size();
        let together = (blocks / GROUP_BLOCKS).clamp(1, GROUPS_TOGETHER);
        for groups in groups.chunks(together) {
            self.change(|volume| {
                groups.iter().try_for_each(|&group| {
                    let bitmap = volume.medium.group(group)?.block_bitmap;
                    one.reserve(&volume.medium, &volume.alloc, bitmap)
                })
            })?;
        }
        // So that the next round, with operations stopped, is a short one.
        self.sync()?;
        if self.log.is_some() && !injected(Fault::UnsettledTaken) {
            let _writer = cache.writer();
            cache.settle()?;
        }
        if injected(Fault::SealedEarly) && self.log.is_some() {
            self.change(|volume| one.seal(&volume.medium, true))?;
            self.sync()?;
        }
        schedule::point("operations are about to be stopped for a snapshot");
        let suspension = self.freeze(one)?;
        if !injected(Fault::SealedEarly) {
            self.sync()?;
        }
        self.change(|volume| one.seal(&volume.medium, true))?;
        // Commit point.
        self.sync()?;
        Ok(suspension)
    }

    /// Lets a snapshot keep what is there now.
    fn freeze(&self, one: &Arc<Snapshot>) -> Result<Suspension> {
        let volume = &self.volume;
        let Medium { cache, order, .. } = &volume.medium;
        // Until this is dropped, the disk stays as the round leaves it.
        let _writer = cache.writer();
        let (superblock, nameless, suspension) = {
            let _quiet = order.exclude();
            let (start, before) = (volume.clock.exact(), cache.disk().stats());
            match self.log.is_some() {
                true => {
                    wave::quiet_transaction(cache, self)?;
                    // J1.
                    if !injected(Fault::UnsettledTaken) && !injected(Fault::SettledEarly) {
                        cache.settle()?;
                    }
                }
                false => {
                    while cache.dirty_len() > 0 || order.len() > 0 || volume.alloc.has_changed() {
                        volume.alloc.store(&volume.medium)?;
                        wave::quiet_round(order, cache, self)?;
                    }
                }
            }
            let after = cache.disk().stats();
            let suspension = Suspension {
                ns: (volume.clock.exact().0 - start.0).max(0).cast_unsigned(),
                writes: after.writes - before.writes,
                flushes: after.flushes - before.flushes,
            };
            let superblock = self.superblock.lock().clone();
            (superblock, volume.snapshots.nameless(), suspension)
        };
        // Operations go on, in memory.
        let view = expunge::expunge(volume, superblock, &nameless)?;
        let filled = self.fill_with(one, &view);
        if self.log.is_some() {
            // Also what was given in vain: it has the blocks for that.
            volume.snapshots.commit(&volume.medium, &volume.alloc)?;
        }
        filled?;
        assert!(!self.is_reclaiming(), "a reclaim ends before a snapshot");
        volume.snapshots.activate(one);
        *volume.snapshots.suspended.lock() = suspension;
        Ok(suspension)
    }

    /// Gives a snapshot what differs in it from what there is, and the bitmaps.
    fn fill_with(&self, one: &Snapshot, view: &Expunged) -> Result<()> {
        let Volume {
            medium,
            alloc,
            snapshots,
            ..
        } = &*self.volume;
        let put = |block, bytes: &[u8]| match self.log.is_some() {
            true => snapshots.give(medium, alloc, one, (block, bytes)),
            false => one.put(medium, alloc, block, bytes).map(drop),
        };
        for group in 0..medium.geometry.groups {
            let bitmap = medium.group(group)?.block_bitmap;
            put(bitmap, &view.bytes(bitmap)?)?;
        }
        // There was room for these. What the others take is counted in the log at once.
        let mut counts = BTreeMap::new();
        if self.log.is_some() {
            for group in 0..medium.geometry.groups {
                let (at, _) = medium.descriptor(group);
                if let Entry::Vacant(entry) = counts.entry(at) {
                    entry.insert(view.bytes(at)?);
                }
            }
        }
        let others = view.changed().filter(|(at, _)| !counts.contains_key(at));
        let counts = counts.iter().map(|(&at, bytes)| (at, bytes));
        let mut all = counts.chain(others);
        all.try_for_each(|(block, bytes)| put(block, bytes))
    }

    /// Ends a snapshot; where rounds are transactions it is none, durably, when this returns.
    fn end(&self, one: &Arc<Snapshot>) -> Result<()> {
        let Volume {
            medium,
            alloc,
            snapshots,
            ..
        } = &*self.volume;
        if self.log.is_some() {
            let _writer = medium.cache.writer();
            self.check_log()?;
            snapshots.end(medium, one)?;
            return snapshots.commit(medium, alloc);
        }
        let _operation = medium.order.begin();
        snapshots.end(medium, one)
    }

    /// Removes a snapshot. Who reads it is told that it is none any more.
    ///
    /// # Errors
    /// There is none of this name; the disk failed.
    pub fn delete_snapshot(&self, name: &str) -> std::result::Result<(), SnapshotError> {
        self.check_kept()?;
        let one = self.snapshot(name)?;
        self.end(&one)?;
        // Then it is none durably, and its file goes.
        self.sync()?;
        self.sync()?;
        Ok(())
    }

    pub(crate) fn snapshot(&self, name: &str) -> std::result::Result<Arc<Snapshot>, SnapshotError> {
        let all = self.volume.snapshots.all();
        let active = |one: &Arc<Snapshot>| one.name == name && one.state() == State::Active;
        let found = all.into_iter().find(active);
        found.ok_or_else(|| SnapshotError::Missing(name.to_owned()))
    }

    /// Those that there are, older ones first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let mut all = self.volume.snapshots.all();
        all.retain(|one| one.state() == State::Active);
        let info = |one: Arc<Snapshot>| SnapshotInfo {
            name: one.name.clone(),
            created: one.record.created,
            temporary: one.record.temporary,
            space: one.space(),
        };
        all.into_iter().map(info).collect()
    }

    /// What was done for them since the mount, and how long the last one stopped operations.
    pub fn snapshot_counts(&self) -> (Counts, Suspension) {
        let snapshots = &self.volume.snapshots;
        (snapshots.counts(), *snapshots.suspended.lock())
    }

    /// A snapshot as a disk, on which nothing is written.
    ///
    /// # Errors
    /// There is none of this name; the disk failed.
    pub fn snapshot_disk(&self, name: &str) -> std::result::Result<Disk, SnapshotError> {
        Ok(self.view(name)?.into_disk())
    }

    pub(crate) fn view(&self, name: &str) -> std::result::Result<View, SnapshotError> {
        Ok(self.view_of(self.snapshot(name)?)?)
    }

    /// # Errors
    /// The disk failed to read where the journal is: the next caller tries again.
    pub(crate) fn view_of(&self, one: Arc<Snapshot>) -> Result<View> {
        let journal = match self.journal.get() {
            Some(found) => found.clone(),
            None => {
                let found = self.find_journal()?;
                self.journal.get_or_init(|| found).clone()
            }
        };
        Ok(View::new(self.volume.clone(), one, journal))
    }

    fn find_journal(&self) -> Result<Option<Arc<Journal>>> {
        let medium = &self.volume.medium;
        if medium.geometry.features.compat & features::HAS_JOURNAL == 0 {
            return Ok(None);
        }
        let superblock = self.superblock.lock().clone();
        match Journal::open(medium, &superblock) {
            Ok(journal) => Ok(Some(Arc::new(journal))),
            Err(error @ Error::Medium(_)) => Err(error),
            // Nobody uses one that makes no sense.
            Err(_) => Ok(None),
        }
    }

    /// Finds the snapshots of a file system that is being mounted. Those that a mount by somebody
    /// else may have written over are none any more, durably, when this returns.
    pub(crate) fn load_snapshots(&self) -> std::result::Result<(), MountError> {
        let volume = &self.volume;
        let is_ours = mark::is_ours(&self.superblock.lock());
        let found = match volume.find_snapshots(&self.root) {
            Ok(found) => found,
            // Who could write would not keep what they want.
            Err(error @ Error::Medium(_)) if volume.is_writable => return Err(error.into()),
            Err(error) => {
                log::warn!("snapshots cannot be read: {error}");
                return Ok(());
            }
        };
        let whole: Vec<_> = found.iter().filter(|one| one.1).map(|one| &one.0).collect();
        if !volume.is_writable {
            if is_ours {
                whole.iter().for_each(|one| volume.admit(one));
            }
            return Ok(());
        }
        if !self.keeps_snapshots() {
            return match whole.is_empty() || !is_ours {
                true => Ok(()),
                false => Err(MountError::Snapshots),
            };
        }
        for (one, is_whole) in &found {
            if *is_whole && is_ours {
                volume.admit(one);
                continue;
            }
            if *is_whole {
                let name = &one.name;
                log::warn!("snapshot {name} is dropped: somebody else has mounted the file system");
                match self.log.is_some() {
                    true => self.end(one)?,
                    false => one.seal(&volume.medium, false)?,
                }
            }
            volume.snapshots.files.lock().push(one.clone());
        }
        let is_journaled = self.log.is_some();
        let is_left = is_journaled || injected(Fault::StrangersFlagged);
        if !is_ours && !whole.is_empty() && !is_left {
            // Before the mark says that all was written here.
            let Medium { order, cache, .. } = &volume.medium;
            wave::round(order, cache, self)?;
        }
        for one in volume.snapshots.all() {
            if one.record.temporary && !injected(Fault::BriefKept) {
                log::info!(
                    "snapshot {} was for another mount, and is removed",
                    one.name
                );
                self.end(&one)?;
            }
        }
        Ok(())
    }

    /// Removes the files that are no snapshots any more. What fails is left to the next mount.
    pub(crate) fn remove_snapshots(&self) {
        let snapshots = &self.volume.snapshots;
        if snapshots.files.lock().is_empty() {
            return;
        }
        loop {
            let Some(one) = snapshots.files.lock().pop() else {
                return;
            };
            match self.remove_file(&one) {
                Ok(()) | Err(Error::Errno(Errno::ROFS)) => {}
                Err(error) => log::warn!("snapshot {}: its file stays: {error}", one.name),
            }
        }
    }

    fn remove_file(&self, one: &Snapshot) -> Result<()> {
        let volume = &self.volume;
        let Some(ino) = volume.snapshots.dir() else {
            return Ok(());
        };
        let stale = || Error::from(Errno::STALE);
        let dir = volume.inode(ino, stale)?;
        self.change(|volume| {
            let node = volume.inode(one.ino, stale)?;
            // Until now it was changed without it.
            node.state.write().stored = one.stored();
            volume.unlink(&dir, one.name.as_bytes(), &|_| Ok(()))
        })?;
        self.remove_empty_dir(&dir)
    }

    /// Removes the directory of snapshots if a crash has left it without any. If that fails, it is
    /// left to the next mount.
    pub(crate) fn remove_left_dir(&self) {
        let volume = &self.volume;
        let Some(ino) = volume.snapshots.dir().filter(|_| self.keeps_snapshots()) else {
            return;
        };
        let dir = volume.inode(ino, || Errno::STALE.into());
        if let Err(error) = dir.and_then(|dir| self.remove_empty_dir(&dir)) {
            log::warn!("the directory of snapshots stays: {error}");
        }
    }

    fn remove_empty_dir(&self, dir: &Node) -> Result<()> {
        let volume = &self.volume;
        if !volume.is_empty(dir)? {
            return Ok(());
        }
        let owner = self.root.state.read().stored.attributes.clone();
        volume.snapshots.set_dir(None);
        self.change(|volume| volume.rmdir(&self.root, DIR_NAME, &|_| Ok(())))?;
        self.put_back(owner.mtime, owner.ctime)
    }
}

impl Volume {
    /// All files that have records, older ones first, and whether they are whole.
    fn find_snapshots(self: &Arc<Volume>, root: &Node) -> Result<Vec<(Arc<Snapshot>, bool)>> {
        let dir = match self.child(root, DIR_NAME) {
            Ok((dir, _)) if dir.kind == Kind::Dir => dir,
            Ok(_) | Err(Error::Errno(Errno::NOENT)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names = self.names_of(&dir)?;
        let geometry = &self.medium.geometry;
        let len = geometry.blocks * u64::from(geometry.block_size);
        let mut found = Vec::new();
        for name in names {
            let (node, _) = self.child(&dir, &name)?;
            let stored = node.state.read().stored.clone();
            let record = Record::of(&self.medium, &stored)?;
            let (Some(record), Ok(name)) = (record, String::from_utf8(name)) else {
                continue;
            };
            let attributes = &stored.attributes;
            let is_sealed = attributes.flags.contains(InodeFlags::IMMUTABLE);
            let is_whole = (is_sealed || injected(Fault::UnsealedTaken))
                && attributes.kind == Kind::File
                && attributes.size == len
                && found.len() < COUNT_MAX;
            let one = Snapshot::new(name, record, stored, State::Making);
            found.push((Arc::new(one), is_whole));
        }
        found.sort_by_key(|one| one.0.record.sequence);
        let of_dir = Record::of(&self.medium, &dir.state.read().stored)?;
        if !found.is_empty() || of_dir.is_some() {
            self.snapshots.set_dir(Some(dir.ino));
        }
        Ok(found)
    }

    /// The names in a directory.
    fn names_of(&self, dir: &Node) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let state = dir.state.read();
        dir::scan(&self.medium, &state.stored, 0, &mut |_, entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        names.retain(|name| name != b"." && name != b"..");
        Ok(names)
    }

    /// A snapshot that was found is one of this mount.
    fn admit(&self, one: &Arc<Snapshot>) {
        one.set_state(State::Active);
        self.medium.cache.keep_freed();
        self.snapshots.insert(one.clone());
    }
}

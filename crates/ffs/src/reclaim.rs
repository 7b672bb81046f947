//! Reclaim: what a crash in mode soft lost is found and given back while the file system is in use.
//!
//! A mount behind such a crash serves at once. All that is wrong is bits and counts that are too
//! high, inodes without names, directories of two names, and blocks behind the end of files. The
//! reclaim finds it by a check of the blocks as they were at the mount ([`Frozen`]), and mends it
//! by deltas, which hold whatever callers did meanwhile:
//!
//! ```text
//! scan        the frozen blocks, a part in each step; nothing is written
//! first       names that a directory has too many, inodes without names
//!             a round: these are durably gone
//! then        counts, blocks behind ends, bits
//!             a round: only now is the image clean when it is unmounted
//! ```
//!
//! A crash at any point leaves a state of the same kind, and the mark: the next mount begins again.
//! Deltas are changes like any, so they need no crash argument of their own.
//!
//! What callers have to know until it has ended: a directory may have a second name, and is then
//! neither moved nor removed ([`may_have_two_names`]); a file may have blocks behind its end, which
//! are cut off before it grows (`Volume::trim`).
//!
//! *Memory.* Old contents of blocks are kept only during the scan, which needs nobody else to come
//! to its end: who is about to write, and finds that too much is kept, scans to the end first
//! ([`Reclaim::make_room`]).
//!
//! Locks: that of the reclaim comes before all others. [`Frozen`]: crate::frozen::Frozen

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::Buffer;
use parking_lot::Mutex;
use vfs::{Error, Kind, Result};

use crate::check::{Delta, Finding, Moment, Scan, Source};
use crate::dir;
use crate::fault::{Fault, injected, unless};
use crate::inode::{Node, State};
use crate::map::change::count;
use crate::order::graph::On;
use crate::volume::Volume;

/// Blocks whose bits are cleared in one step.
const BITS_MAX: usize = 4096;

/// What a reclaim has done, and how far it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing; empty: it has ended, or there was nothing to do.
    pub stage: &'static str,
    /// How much of that is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
    /// Deltas that were applied.
    pub deltas: u64,
}

/// The reclaim of a mount.
#[derive(Default)]
pub struct Reclaim {
    job: Mutex<Option<Job>>,
    progress: Mutex<Progress>,
    deltas: AtomicU64,
}

enum Job {
    Scan(Box<Scan>),
    Mend {
        first: VecDeque<Delta>,
        then: VecDeque<Delta>,
        total: u64,
        /// The next group whose counts are to be right.
        group: u32,
    },
    /// A step failed, and none is done any more.
    Failed(Error),
}

/// What a step left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// All that was done is to be durable before there is more.
    Settle,
    /// There is nothing left.
    End,
}

/// The blocks of a mount, as they were.
struct View(Arc<Volume>);

impl Source for View {
    fn read(&self, first: u64, blocks: u32) -> Result<Buffer> {
        self.0.medium.cache.read_frozen(first, blocks)
    }
}

impl Reclaim {
    /// Begins, at a moment at which the disk has all there is, and nobody changes anything.
    pub fn begin(&self, volume: &Arc<Volume>, moment: Moment) {
        let view = Arc::new(View(volume.clone()));
        let geometry = volume.medium.geometry.clone();
        let scan = Scan::new(view, geometry, volume.clock.now(), moment);
        volume.medium.cache.frozen().begin();
        let mut job = self.job.lock();
        self.note(&scan);
        *job = Some(Job::Scan(Box::new(scan)));
    }

    /// Begins with what a check found at a moment since when `Frozen` follows what is freed.
    ///
    /// # Errors
    /// An earlier step failed; something was found that has no delta.
    pub fn begin_repairs(&self, volume: &Volume, findings: Vec<Finding>) -> Result<()> {
        let mut job = self.job.lock();
        if let Some(Job::Failed(error)) = &*job {
            return Err(error.clone());
        }
        assert!(job.is_none(), "a check begins behind the reclaim");
        *job = Some(mending(volume, findings)?);
        volume.alloc.recount();
        Ok(())
    }

    /// Whether nothing is left to be done.
    pub fn has_ended(&self) -> bool {
        self.job.lock().is_none()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress {
            deltas: self.deltas.load(Ordering::Relaxed),
            ..self.progress.lock().clone()
        }
    }

    fn note(&self, scan: &Scan) {
        let (stage, done, total) = scan.progress();
        *self.progress.lock() = Progress {
            stage,
            done,
            total,
            deltas: 0,
        };
    }

    /// Reads to the end of the scan, if more than `max` bytes are kept for it.
    ///
    /// # Errors
    /// The disk failed, or something is damaged.
    pub fn make_room(&self, volume: &Arc<Volume>, max: usize) -> Result<()> {
        let frozen = volume.medium.cache.frozen();
        if !frozen.keeps() || frozen.bytes() <= max {
            return Ok(());
        }
        let mut job = self.job.lock();
        while let Some(Job::Scan(_)) = &*job {
            let done = self.step_of(&mut job, volume, &|| Ok(()));
            done.map_err(|error| self.failed(&mut job, volume, error))?;
        }
        Ok(())
    }

    /// No step is done any more.
    fn failed(&self, job: &mut Option<Job>, volume: &Volume, error: Error) -> Error {
        *job = Some(Job::Failed(error.clone()));
        volume.medium.cache.frozen().end();
        error
    }

    /// Does a step, as an operation. `sync` makes all that was done durable, with no lock held but
    /// that of the reclaim.
    ///
    /// # Errors
    /// The disk failed, or something is wrong that no crash leaves. All further steps fail, too.
    pub fn step(&self, volume: &Arc<Volume>, sync: &dyn Fn() -> Result<()>) -> Result<Step> {
        let mut job = self.job.lock();
        let done = self.step_of(&mut job, volume, sync);
        done.map_err(|error| self.failed(&mut job, volume, error))
    }

    fn step_of(
        &self,
        job: &mut Option<Job>,
        volume: &Arc<Volume>,
        sync: &dyn Fn() -> Result<()>,
    ) -> Result<Step> {
        let step = match job {
            None => return Ok(Step::End),
            Some(Job::Failed(error)) => return Err(error.clone()),
            Some(Job::Scan(scan)) => {
                let found = scan.step()?;
                self.note(scan);
                if let Some(report) = found {
                    *job = Some(mending(volume, report.findings)?);
                }
                Step::More
            }
            Some(mend) => {
                let _operation = volume.medium.order.begin();
                self.mend(volume, mend)?
            }
        };
        match step {
            Step::More => {}
            Step::Settle => sync()?,
            Step::End => {
                sync()?;
                *job = None;
                volume.medium.cache.frozen().end();
                volume.reclaiming.store(false, Ordering::SeqCst);
                *self.progress.lock() = Progress::default();
            }
        }
        Ok(step)
    }

    fn mend(&self, volume: &Arc<Volume>, job: &mut Job) -> Result<Step> {
        let Job::Mend {
            first,
            then,
            total,
            group,
        } = job
        else {
            unreachable!("the scan has ended");
        };
        let done = *total - (first.len() + then.len()) as u64;
        *self.progress.lock() = Progress {
            stage: "repairs",
            done,
            total: *total,
            deltas: 0,
        };
        if let Some(delta) = first.pop_front() {
            self.deltas.fetch_add(1, Ordering::Relaxed);
            volume.mend(delta)?;
            return Ok(
                match first.is_empty() && !injected(Fault::MendedUnsettled) {
                    true => Step::Settle,
                    false => Step::More,
                },
            );
        }
        if let Some(delta) = then.pop_front() {
            self.deltas.fetch_add(1, Ordering::Relaxed);
            volume.mend(delta)?;
            return Ok(Step::More);
        }
        if *group < volume.medium.geometry.groups && !injected(Fault::GroupsUncounted) {
            volume.alloc.count(&volume.medium, *group, 0)?;
            *group += 1;
            return Ok(Step::More);
        }
        Ok(Step::End)
    }
}

/// What is to be done about findings. They are no longer followed by what blocks were.
///
/// # Errors
/// One is no loss behind a crash, but damage.
fn mending(volume: &Volume, findings: Vec<Finding>) -> Result<Job> {
    let (mut first, mut then) = (VecDeque::new(), VecDeque::new());
    for finding in findings {
        let detail = finding.detail.clone();
        log::debug!("{}: {detail}", finding.problem.name());
        match finding.into_delta() {
            // A name goes behind the `..` that does not agree with it.
            Some(delta @ Delta::Parent { .. }) => first.push_front(delta),
            Some(delta) if delta.is_first() => first.push_back(delta),
            Some(delta) => then.extend(in_parts(delta)),
            None => return Err(Error::medium(detail)),
        }
    }
    volume.medium.cache.frozen().thaw();
    let total = (first.len() + then.len()) as u64;
    Ok(Job::Mend {
        first,
        then,
        total,
        group: 0,
    })
}

/// A delta in parts that are short.
fn in_parts(delta: Delta) -> Vec<Delta> {
    match delta {
        Delta::Blocks { bitmap, blocks } => {
            let parts = blocks.chunks(BITS_MAX).map(<[u32]>::to_vec);
            parts
                .map(|blocks| Delta::Blocks { bitmap, blocks })
                .collect()
        }
        delta => vec![delta],
    }
}

impl Volume {
    /// Applies a delta.
    fn mend(self: &Arc<Volume>, delta: Delta) -> Result<()> {
        match delta {
            Delta::ExtraName {
                dir,
                name,
                ino,
                whiteout,
            } => self.remove_extra((dir, &name), ino, whiteout),
            Delta::Parent { dir, parent } => {
                let _names = self.names.alone();
                let Some(node) = self.there(dir)? else {
                    return Ok(());
                };
                let found = self.find(&node, b"..")?;
                self.mend_dir(&node, |dir| dir.move_to(&found, parent, &[]))
                    .map(drop)
            }
            Delta::Nameless { ino } => {
                let _names = self.names.alone();
                match self.there(ino)? {
                    // Dropped without names, it is freed.
                    Some(node) => self
                        .update(&node, |attributes| attributes.links = 0)
                        .map(drop),
                    None => Ok(()),
                }
            }
            Delta::Links { ino, by } => {
                let _names = self.names.alone();
                match self.there(ino)? {
                    Some(node) => {
                        self.medium.forget_tag(ino)?;
                        self.update(&node, |attributes| {
                            let right = i32::from(attributes.links) + by;
                            attributes.links = right.clamp(0, u16::MAX.into()) as u16;
                        })?;
                        if injected(Fault::HeldReclaimed) {
                            let mut stored = node.state.read().stored.clone();
                            if stored.attributes.links == 0 {
                                self.free(&mut stored)?;
                            }
                        }
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
            Delta::Size { ino } => match self.there(ino)? {
                Some(node) => {
                    let mut state = node.state.write();
                    match node.kind {
                        Kind::Dir => dir::grow(&self.medium, &mut state.stored)?,
                        _ => self.trim(&mut state)?,
                    }
                    self.store(&state.stored)
                }
                None => Ok(()),
            },
            Delta::BlockCount { ino } => match self.there(ino)? {
                Some(node) => {
                    let mut state = node.state.write();
                    let blocks = count(&self.medium, &state.stored)?;
                    let sectors = blocks * u64::from(self.medium.geometry.block_size / 512);
                    state.stored.attributes.sectors = sectors;
                    self.store(&state.stored)
                }
                None => Ok(()),
            },
            Delta::RemovalTime { ino } => self.medium.date_removal(ino, self.clock.now()),
            Delta::Blocks { bitmap, blocks } => self.free_blocks(bitmap, &blocks),
            Delta::Inodes(inodes) => inodes
                .into_iter()
                .try_for_each(|ino| self.alloc.free_inode(&self.medium, ino, false)),
            Delta::Dirs { group, by } => self.alloc.count(&self.medium, group, by),
        }
    }

    /// The inode that had this number at the moment of the check, unless it was removed since.
    fn there(self: &Arc<Volume>, ino: u32) -> Result<Option<Node>> {
        let missing = || vfs::Errno::STALE.into();
        let node = match self.inode(ino, missing) {
            Ok(node) => node,
            Err(Error::Errno(vfs::Errno::STALE)) => return Ok(None),
            Err(error) => return Err(error),
        };
        // As it is in use here, it is not freed from here on.
        let is_it = !self.medium.cache.frozen().was_freed(ino);
        Ok(is_it.then_some(node))
    }

    /// Removes a name of a directory that has another one, with which its `..` agrees, or gives it
    /// to a whiteout, which nobody has found before.
    fn remove_extra(
        self: &Arc<Volume>,
        (dir, name): (u32, &[u8]),
        ino: u32,
        whiteout: Option<u32>,
    ) -> Result<()> {
        let _names = self.names.alone();
        let node = self.there(dir)?.ok_or_else(|| self.moved(ino))?;
        let found = self.find(&node, name)?;
        if found.ino != ino {
            return Err(self.moved(ino));
        }
        let moved = self.there(ino)?.ok_or_else(|| self.moved(ino))?;
        let parent = self.find(&moved, b"..")?;
        let parent = dir::place_of(&self.medium, &moved.state.read().stored, &parent)?;
        let after = [On::Place(parent)];
        let after = unless(Fault::SecondNameFirst, &after);
        self.mend_dir(&node, |dir| match whiteout {
            Some(whiteout) => dir.replace(&found, (whiteout, Kind::CharDev), after),
            None => dir.remove(&found, after),
        })
        .map(drop)
    }

    fn moved(&self, ino: u32) -> Error {
        let what = format_args!("directory {ino} was moved while it had two names");
        let g = &self.medium.geometry;
        g.damage(g.first_block, what)
    }

    /// Cuts off what a crash left behind the end of a file, before the file grows. It is gone, and
    /// does not become part of what is written behind it.
    pub(crate) fn trim(&self, state: &mut State) -> Result<()> {
        let is_file = state.stored.attributes.kind == Kind::File;
        let is_whole = state.is_trimmed || injected(Fault::EndsUntrimmed);
        if is_whole || !is_file || !self.reclaiming.load(Ordering::SeqCst) {
            return Ok(());
        }
        let stored = &mut state.stored;
        // Who grows the file finds zeros there, and does not wait for them.
        if !injected(Fault::EndUnawaited) {
            crate::file::clear_end(&self.medium, stored)?;
        }
        let size = std::mem::replace(&mut stored.attributes.size, self.file_max());
        // One operation at a time may cut off less.
        let cut = loop {
            match crate::file::truncate(&self.medium, &self.alloc, stored, size) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        stored.attributes.size = size;
        cut?;
        state.is_trimmed = true;
        Ok(())
    }

    /// Whether a directory may have a second name, which a crash left. It does not, if its count is
    /// that of its only name, `.`, and the `..` of the directories in it: on disk each name is
    /// counted before it is there.
    pub(crate) fn may_have_two_names(self: &Arc<Volume>, dir: &Node) -> Result<bool> {
        let stored = dir.state.read().stored.clone();
        if stored.attributes.links <= 2 {
            return Ok(false);
        }
        let mut children = Vec::new();
        dir::scan(&self.medium, &stored, 0, &mut |_, entry| {
            let is_own = entry.name == b"." || entry.name == b"..";
            if !is_own && entry.kind.is_none_or(|kind| kind == Kind::Dir) {
                children.push(entry.ino);
            }
            true
        })?;
        let mut counted = 2;
        for child in children {
            let Some(child) = self.there(child)?.filter(|child| child.kind == Kind::Dir) else {
                continue;
            };
            if self.find(&child, b"..")?.ino == dir.ino {
                counted += 1;
            }
        }
        Ok(u32::from(stored.attributes.links) > counted)
    }
}

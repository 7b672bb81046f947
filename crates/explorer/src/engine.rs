//! The seam to what is explored: all that the explorer must know of an engine.
//!
//! An [`Engine`] makes empty images and mounts them, and says what is wrong with an image by
//! itself. What a mount can do is [`Mounted`]; a [`vfs::FileSystem`] comes by it through
//! [`Volume`]. What only one engine has (damage that its fsck knows, names that clash in its
//! tables, allocations that fail) is asked for by methods whose defaults say that there is none.

use crate::image::Image;
use crate::op::{Op, Side};
use crate::rules::Rules;
use crate::scratch::{Device, Scratch};
use crate::trace::{Event, Trace};
use crate::tree::{Flaw, Id, Tree};
use pmem::Domain;
use pmem::transaction::Aborts;
use schedule::shortage::suffer;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use vfs::{Clock, FileSystem, Limits, ManualClock, Result, Time};

pub use schedule::shortage::Shortage;

/// What is promised of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantee {
    /// What is done is durable when its call has returned; else once it is synced.
    pub is_durable: bool,
    /// What any crash leaves.
    pub leaves: Leaves,
}

/// What a crash leaves of changes that nothing has made durable yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// Each inode and each name as it was at one time since it was durable, not all of the same
    /// time. What has names all the time keeps one, and a name that moves goes from its old place
    /// after it is at the new one. Each byte of a file is one that it had since it was synced.
    Parts,
    /// All of what became durable together or nothing of it, but for bytes of files: each of these
    /// is one that it had since it was synced.
    WholeButBytes,
    /// All of it or nothing, bytes of files with it.
    Whole,
}

/// A way to mount an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// As a user says it.
    pub name: &'static str,
    /// What it is judged for.
    pub guarantee: Guarantee,
    /// Whether it keeps that. One that does not shows that the judges can fail.
    pub is_kept: bool,
}

impl Mode {
    /// What is done is durable within a bound, or once it is synced.
    pub const DELAYED: Mode = Mode::new("delayed", false, Leaves::WholeButBytes);
    /// What is done is durable.
    pub const SYNC: Mode = Mode::new("sync", true, Leaves::WholeButBytes);
    /// What is done is durable, and there as a whole or not at all.
    pub const STRONG: Mode = Mode::new("strong", true, Leaves::Whole);

    /// One that keeps its promise.
    pub const fn new(name: &'static str, is_durable: bool, leaves: Leaves) -> Mode {
        Mode {
            name,
            guarantee: Guarantee { is_durable, leaves },
            is_kept: true,
        }
    }

    /// Whether what is done is durable when its call has returned.
    pub fn is_durable(self) -> bool {
        self.guarantee.is_durable
    }

    /// What a crash leaves of what is not.
    pub fn leaves(self) -> Leaves {
        self.guarantee.leaves
    }
}

/// Thresholds of an engine: low ones lead to where a small file system does not come otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thresholds {
    /// As usual.
    #[default]
    Usual,
    /// What becomes durable is split wherever it can be; of what is written in waves, each takes
    /// some as chance has it.
    Tight,
    /// So it is, and callers persist what is pending within their own operations.
    Crowded,
}

/// How an image is mounted. Nothing happens in the background.
#[derive(Clone)]
pub struct Mounting {
    /// What is promised.
    pub mode: Mode,
    /// Threads that share the work of making something durable.
    pub persisters: usize,
    /// Of the engine.
    pub thresholds: Thresholds,
    /// It commits by transactions of memory, where these will do; which attempts end in an abort.
    /// For domain `cache`.
    pub transactions: Option<Aborts>,
    /// There will be [`Op::Search`].
    pub searches: bool,
    /// What a crash has left is mended first, also by an engine that would serve it at once: so
    /// mounts who judges it.
    pub mends_first: bool,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
}

/// What there is in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Inodes, the root's with them.
    pub inodes: u64,
    /// Names.
    pub names: u64,
}

/// An engine, as the explorer knows it.
pub trait Engine: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The ways to mount it. The first is that of who only looks.
    fn modes(&self) -> &'static [Mode];

    /// The media that it runs on. No two engines have one in common, so that a token says by its
    /// medium what is run.
    fn media(&self) -> &'static [Rules] {
        const {
            &[
                Rules::Lines(Domain::Line),
                Rules::Lines(Domain::Cache),
                Rules::Lines(Domain::Page),
            ]
        }
    }

    /// An empty file system of so many bytes, for a mode. What is free in it holds [`POISON`], so
    /// that none of it passes for a file's bytes or zeros; if it has several regions, the first
    /// 4 MiB of each. Of two media, the memory is in the image beside these bytes.
    fn empty(&self, len: u64, mode: Mode) -> Image;

    /// Whether a mode promises of an operation that all is durable when it has returned.
    fn settles(&self, _op: &Op, _mode: Mode) -> bool {
        false
    }

    /// Bytes of a region, if space is managed in such: a longer image has several of them.
    fn region(&self) -> Option<u64> {
        None
    }

    /// Make an empty file system on a device, whatever that holds.
    ///
    /// # Errors
    /// It does not fit.
    fn format(&self, device: &Device) -> std::result::Result<(), Flaw>;

    /// Mount what is on a device.
    ///
    /// # Errors
    /// It cannot be mounted.
    fn mount(&self, device: &Device, how: &Mounting)
    -> std::result::Result<Box<dyn Mounted>, Flaw>;

    /// Whether an image says that it was unmounted.
    ///
    /// # Errors
    /// There is no file system: why it is refused, for people.
    fn is_clean(&self, device: &Device) -> std::result::Result<bool, Flaw>;

    /// The auditor finds nothing but what a crash may leave; in an image that says that it was
    /// unmounted, nothing.
    ///
    /// # Errors
    /// What it finds.
    fn audit(&self, device: &Device) -> std::result::Result<(), Flaw>;

    /// A number of the engine as it is now, with a bug that was injected, say. `Some` if what is
    /// sound, and what is found then, follows from the bytes of an image and from this number.
    fn edition(&self) -> Option<u64> {
        None
    }

    /// What is found in an image in which the auditor finds nothing but what a crash may leave. Of
    /// an image that was judged so before, an engine may say what was found then.
    ///
    /// # Errors
    /// What the auditor finds; it cannot be mounted or read.
    fn sound(&self, device: &Device) -> std::result::Result<Arc<Tree>, Flaw> {
        self.audit(device)?;
        let found = self.mount(device, &looking(self.modes(), LATER))?;
        found.tree().map(Arc::new)
    }

    /// An image without any flaw, not even a leak; it says that it was unmounted.
    ///
    /// # Errors
    /// What is wrong.
    fn flawless(&self, device: &Device) -> std::result::Result<Census, Flaw>;

    /// Run fsck, with repairs.
    ///
    /// # Errors
    /// It gives up.
    fn repair(&self, device: &Device) -> std::result::Result<(), Flaw>;

    /// Mount, let what searches for leaks in the background come to its end, and unmount. What
    /// callers see meanwhile.
    ///
    /// # Errors
    /// It does not come to its end.
    fn reclaim(&self, device: &Device) -> std::result::Result<Tree, Flaw>;

    /// A judge of its images that others made, if there is one.
    fn others(&self) -> Option<&'static dyn Others> {
        None
    }

    /// Whether allocations can be made to fail.
    fn has_shortages(&self) -> bool {
        false
    }

    /// How many kinds of damage [`damage`](Self::damage) knows.
    fn damages(&self) -> u64 {
        0
    }

    /// Damage an image with this tree, in the way of this number; what that is called. `None`: the
    /// image lacks what is to be damaged.
    fn damage(&self, _number: u64, _device: &Device, _tree: &Tree) -> Option<&'static str> {
        None
    }

    /// Whether an operation is not run: by the engine's design a mode promises nothing of it, or
    /// the engine looks at what is arbitrary here, or it has no snapshots.
    fn skips(&self, op: &Op, _mode: Mode) -> bool {
        op.is_of_snapshots()
    }

    /// Whether an event may say that the image was unmounted.
    fn marks(&self, _event: &Event) -> bool {
        false
    }

    /// The first of `name~0`, `name~1` and so on that clashes with all others of this kind in the
    /// table of any directory; `None` if none can.
    fn clashing(&self, _name: &str) -> Option<String> {
        None
    }

    /// What is at an offset of an image of so many bytes, for people. `inode` tells whether there
    /// was an inode of a number.
    fn place(&self, at: u64, _len: u64, _inode: &dyn Fn(u64) -> bool) -> String {
        at.to_string()
    }

    /// Parts of the paths of its sources: what is in them is a place of the engine.
    fn sources(&self) -> &'static [&'static str] {
        &[]
    }
}

/// A judge that others made: it knows the format of an engine's images, and not the engine. It
/// costs so much that it is shown a sample of them.
pub trait Others: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Whether it is installed.
    fn is_there(&self) -> bool;

    /// The image of a crash: whether there is nothing but what a crash may leave, and nothing at
    /// all once the engine has put it right.
    ///
    /// # Errors
    /// What is wrong with it; the judge is not there.
    fn judge(&self, image: &Image) -> std::result::Result<(), Flaw>;
}

/// What free space is filled with.
pub const POISON: u8 = 0xdb;

impl fmt::Debug for dyn Engine + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An engine on a medium: what is explored.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// The engine.
    pub engine: &'static dyn Engine,
    /// Whose rules apply to its medium.
    pub rules: Rules,
}

impl Subject {
    /// A device with an image, recorded.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn recorded(self, image: &Image, trace: &Arc<Trace>) -> Device {
        Device::new(image, self.rules, Some(trace.clone()))
    }

    /// A trace of what happens to a device; `sites`: note which places of the engine flush.
    pub fn trace(self, sites: bool) -> Arc<Trace> {
        Trace::new(if sites { self.engine.sources() } else { &[] })
    }

    /// A device with an image.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn device(self, image: &Image) -> Device {
        Device::of(image, self.rules)
    }

    /// An image that is brought into one state after another.
    pub fn scratch(self, image: Image) -> Scratch {
        Scratch::on(self.rules, image)
    }
}

/// How who only looks mounts an engine of these modes, at a time.
pub(crate) fn looking(modes: &[Mode], time: Time) -> Mounting {
    Mounting {
        mode: modes[0],
        persisters: 1,
        thresholds: Thresholds::Usual,
        transactions: None,
        searches: false,
        mends_first: true,
        clock: Arc::new(ManualClock::new(time)),
    }
}

impl dyn Engine + '_ {
    /// Mount in the first mode, at this time.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn mount_at(
        &self,
        device: &Device,
        time: Time,
    ) -> std::result::Result<Box<dyn Mounted>, Flaw> {
        self.mount(device, &looking(self.modes(), time))
    }

    /// The rules of its media of which the memory has this domain.
    ///
    /// # Panics
    /// If there are none.
    pub fn rules(&self, domain: Domain) -> Rules {
        let mut all = self.media().iter();
        let rules = all.find(|rules| rules.domain() == Some(domain));
        *rules.expect("it runs in this domain")
    }

    /// What is found in an image, after a crash say.
    ///
    /// # Errors
    /// It cannot be mounted or read.
    pub fn found(&self, device: &Device) -> std::result::Result<Tree, Flaw> {
        self.mount_at(device, LATER)?.tree()
    }
}

/// A time after everything that a workload does.
pub const LATER: Time = Time(1 << 60);

/// A mounted file system, and what is held of it.
pub trait Mounted: Send + Sync {
    /// Run an operation; `Remount` is the caller's, and so is doing both of `Both` at once.
    ///
    /// # Errors
    /// As the operation.
    fn run(&mut self, op: &Op) -> Result<()>;

    /// Run an operation that neither holds nor lets go of anything.
    ///
    /// # Errors
    /// As the operation.
    fn act(&self, op: &Op) -> Result<()>;

    /// Run an operation while allocations fail.
    ///
    /// # Errors
    /// As the operation.
    fn suffer(&mut self, shortage: &mut Shortage, op: &Op) -> Result<()>;

    /// An operation that has just succeeded, as far as it went.
    fn as_far_as_it_went(&self, op: &Op) -> Op;

    /// What callers see, with what is held.
    ///
    /// # Errors
    /// It contradicts itself.
    fn tree(&self) -> std::result::Result<Tree, Flaw>;

    /// What a path leads to.
    fn id(&self, path: &str) -> Option<Id>;

    /// What is held in a slot, and how many names it has.
    fn held(&self, handle: usize) -> Option<(Id, u32)>;

    /// Let a path lead where it leads now, as for who has opened it.
    ///
    /// # Errors
    /// As a lookup.
    fn open(&mut self, path: &str) -> Result<()>;

    /// Let go of all that is held or opened.
    fn let_go(&mut self);

    /// What it can hold and do.
    fn limits(&self) -> Limits;

    /// Blocks that are free.
    fn free(&self) -> u64;

    /// Batches that were published since it was mounted: what several operations do in one of them
    /// is durable together.
    fn batches(&self) -> u64;

    /// Unmount.
    ///
    /// # Errors
    /// What is pending cannot be made durable.
    fn unmount(&self) -> Result<()>;
}

/// What a [`FileSystem`] must tell beyond that to be [`Mounted`].
pub trait Volume: FileSystem {
    /// See [`Mounted::batches`].
    fn batches(&self) -> u64;

    /// See [`Mounted::unmount`].
    ///
    /// # Errors
    /// As that.
    fn unmount(&self) -> Result<()>;

    /// A step of the search for leaks, in which so much is looked at. The mount was told of it
    /// ([`Mounting::searches`]).
    ///
    /// # Errors
    /// It met damage.
    fn search(&self, _budget: u64) -> Result<()> {
        Ok(())
    }

    /// Does what has to do with snapshots, if it has any ([`Engine::skips`]).
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`: of the name. A live check found something; as other operations.
    fn snapshot(&self, _op: &Op) -> Result<()> {
        Ok(())
    }

    /// A directory in the root that is the engine's own.
    fn own(&self) -> Option<&'static [u8]> {
        None
    }

    /// What each snapshot has.
    ///
    /// # Errors
    /// One contradicts itself.
    fn snapshot_trees(&self) -> std::result::Result<BTreeMap<String, Tree>, Flaw> {
        Ok(BTreeMap::new())
    }

    /// An operation has ended: what a mount does as time passes, if it is to do that so often.
    ///
    /// # Errors
    /// The medium failed.
    fn time_passes(&self) -> Result<()> {
        Ok(())
    }
}

impl<F: Volume> Mounted for Side<F> {
    fn run(&mut self, op: &Op) -> Result<()> {
        let done = match op {
            Op::Search(_) => Mounted::act(self, op),
            op if op.is_of_snapshots() => Mounted::act(self, op),
            op => Side::run(self, op),
        };
        done.and_then(|()| self.fs.time_passes())
    }

    fn act(&self, op: &Op) -> Result<()> {
        match op {
            Op::Search(budget) => self.fs.search(*budget),
            op if op.is_of_snapshots() => self.fs.snapshot(op),
            op => Side::act(self, op),
        }
    }

    fn suffer(&mut self, shortage: &mut Shortage, op: &Op) -> Result<()> {
        suffer(shortage, || Side::run(self, op))
    }

    fn as_far_as_it_went(&self, op: &Op) -> Op {
        Side::as_far_as_it_went(self, op)
    }

    fn tree(&self) -> std::result::Result<Tree, Flaw> {
        let held: Vec<_> = self.held.iter().flatten().collect();
        Ok(Tree {
            snapshots: self.fs.snapshot_trees()?,
            ..Tree::without(&self.fs, &held, self.fs.own())?
        })
    }

    fn id(&self, path: &str) -> Option<Id> {
        let attr = self.fs.attr(&self.find(path).ok()?);
        Some((attr.ino, attr.generation))
    }

    fn held(&self, handle: usize) -> Option<(Id, u32)> {
        let attr = self.fs.attr(self.held[handle].as_ref()?);
        Some(((attr.ino, attr.generation), attr.nlink))
    }

    fn open(&mut self, path: &str) -> Result<()> {
        Side::open(self, path)
    }

    fn let_go(&mut self) {
        self.held = Default::default();
        self.opened.clear();
    }

    fn limits(&self) -> Limits {
        self.fs.limits()
    }

    fn free(&self) -> u64 {
        self.fs.statfs().free
    }

    fn batches(&self) -> u64 {
        self.fs.batches()
    }

    fn unmount(&self) -> Result<()> {
        self.fs.unmount()
    }
}

/// The reference file system: nothing of it is on a medium.
impl Volume for model::Model {
    fn batches(&self) -> u64 {
        0
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

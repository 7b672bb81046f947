//! What every inode in DRAM has, whatever it holds: its latest attributes, how many names it has,
//! and what of it is still to be persisted.
//!
//! States: *fresh* (only DRAM holds it), *captured* (a batch has taken it up for the first time),
//! *published* (the consistent view holds it).

use crate::attributes::{Attributes, LatestAttributes};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use vfs::{Kind, Rights, Time};

/// One removal in `InodeState::names`.
const REMOVAL: u64 = 1 << 32;

/// `InodeState::phase`: the consistent view does not hold it; only DRAM does.
const FRESH: u8 = 0;
/// A batch has taken it up.
const CAPTURED: u8 = 1;
/// The consistent view holds it.
const PUBLISHED: u8 = 2;

/// `InodeState::dirty`: no more than the time of its last change is to be persisted.
pub const TIME: u8 = 1;
/// Anything may be to be persisted.
pub const ANY: u8 = 3;

/// What every inode has. The first cache line of an inode begins with this, and has what taking a
/// name away needs; the second what `stat` needs besides.
#[repr(C)]
pub struct InodeState {
    /// Its number: the line that it has on the medium.
    pub ino: u64,
    /// Names in the latest view (a directory counts 2 and its subdirectories), and in units of
    /// [`REMOVAL`] the removals that are recorded and not published.
    names: AtomicU64,
    /// Told apart from earlier inodes of the same number by this.
    pub generation: u32,
    /// What it is.
    pub kind: Kind,
    /// [`FRESH`], [`CAPTURED`] or [`PUBLISHED`].
    phase: AtomicU8,
    /// What of it is to be persisted: [`TIME`], [`ANY`]. Not zero: it is on the list of dirty
    /// inodes.
    dirty: AtomicU8,
    /// Whether there are extended attributes.
    pub has_xattrs: AtomicBool,
    /// Attributes that callers set.
    pub attrs: LatestAttributes,
    /// Birth.
    pub btime: Time,
}

impl InodeState {
    /// Where the latest size is: in the cache line that `stat` needs besides the first.
    pub const SIZE: usize = offset_of!(InodeState, attrs) + LatestAttributes::SIZE;

    /// Of an inode that only DRAM holds.
    pub fn fresh(attributes: &Attributes) -> InodeState {
        InodeState::new(attributes, FRESH)
    }

    /// Of an inode that the consistent view holds.
    pub fn published(attributes: &Attributes) -> InodeState {
        InodeState::new(attributes, PUBLISHED)
    }

    fn new(attributes: &Attributes, phase: u8) -> InodeState {
        InodeState {
            ino: attributes.ino,
            names: AtomicU64::new(u64::from(attributes.nlink)),
            generation: attributes.generation,
            kind: attributes.kind,
            phase: AtomicU8::new(phase),
            dirty: AtomicU8::new(0),
            has_xattrs: AtomicBool::new(attributes.xattr != 0),
            attrs: LatestAttributes::new(attributes),
            btime: attributes.btime,
        }
    }

    /// The latest attributes, as far as they do not depend on what it holds.
    #[inline]
    pub fn attributes(&self) -> Attributes {
        let mut attributes = Attributes {
            nlink: self.nlink(),
            ..Attributes::new(self.ino, self.generation, self.kind, self.btime)
        };
        self.attrs.update(&mut attributes);
        attributes
    }

    /// What decides who may do what with it.
    #[inline]
    pub fn rights(&self) -> Rights {
        let (perm, uid, gid) = self.attrs.rights();
        Rights {
            ino: self.ino,
            kind: self.kind,
            has_xattrs: self.has_xattrs.load(Relaxed),
            perm,
            uid,
            gid,
        }
    }

    /// Whether the consistent view holds it.
    pub fn is_published(&self) -> bool {
        self.phase.load(Acquire) == PUBLISHED
    }

    /// The consistent view holds it from now on. The persister alone calls this.
    pub fn set_published(&self) {
        self.phase.store(PUBLISHED, Release);
    }

    /// A batch takes it up.
    pub fn set_captured(&self) {
        if self.phase.load(Relaxed) == FRESH {
            self.phase.store(CAPTURED, Release);
        }
    }

    /// Whether no batch ever took it up: nothing on the medium leads to it.
    pub fn is_fresh(&self) -> bool {
        self.phase.load(Acquire) == FRESH
    }

    /// Note that there is something to persist: [`TIME`] or [`ANY`]. Returns what had been noted;
    /// if that is nothing, the caller puts it on the dirty list.
    #[inline]
    pub fn mark_dirty(&self, what: u8) -> u8 {
        let noted = self.dirty.load(Relaxed);
        if noted & what == what {
            return noted;
        }
        self.dirty.fetch_or(what, Acquire)
    }

    /// Taken off the dirty list, before its operations are captured: what comes later marks anew.
    pub fn clear_dirty(&self) {
        self.dirty.store(0, Release);
    }

    /// Whether there is something to persist.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Acquire) != 0
    }

    /// Whether it has no name, in either view, and no change of names waits.
    pub fn is_nameless(&self) -> bool {
        self.names.load(SeqCst) == 0
    }

    /// Names in the latest view.
    pub fn nlink(&self) -> u32 {
        self.names.load(SeqCst) as u32
    }

    /// One name more: for a directory, a subdirectory.
    pub fn gain_name(&self) {
        self.names.fetch_add(1, SeqCst);
    }

    /// One name more, if the count now allows it; else the count.
    pub fn try_gain_name(&self, allowed: impl Fn(u32) -> bool) -> std::result::Result<(), u32> {
        self.names
            .fetch_update(SeqCst, SeqCst, |n| allowed(n as u32).then_some(n + 1))
            .map(|_| ())
            .map_err(|n| n as u32)
    }

    /// So many names less: for a directory, subdirectories; all are those of a directory that is
    /// removed, and of what was never named. `recorded`: by a removal that is recorded, and
    /// whoever publishes the last of these sees to the inode.
    pub fn lose_names(&self, count: u32, recorded: bool) {
        let count = count.min(self.nlink()); // a damaged count may be too low
        let removals = if recorded { REMOVAL } else { 0 };
        self.names
            .fetch_add(removals.wrapping_sub(u64::from(count)), SeqCst);
    }

    /// A removal is published. If it was the last, and no name is left, then the caller sees to
    /// the inode; and who takes the last name sees to it unless there are removals.
    pub fn removal_done(&self) {
        self.names.fetch_sub(REMOVAL, SeqCst);
    }

    /// Whether a removal is recorded and not published.
    pub fn has_removals(&self) -> bool {
        self.removals() > 0
    }

    /// Removals that are recorded and not published.
    pub fn removals(&self) -> u64 {
        self.names.load(SeqCst) / REMOVAL
    }
}

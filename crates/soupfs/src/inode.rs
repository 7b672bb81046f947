//! The inode in DRAM: the latest view of one inode, and what of it is still to be persisted.
//!
//! States: *fresh* (only DRAM holds it), *captured* (a batch has taken it up for the first time),
//! *published* (the consistent view holds it).
//!
//! Whoever uses an inode has a counted reference to it, handed out by [`crate::table::Table`], or
//! its slot there locked; what
//! only waits (operations, the dirty list) goes by its number. So an inode without names is free to
//! go as soon as the table has the only reference.
//!
//! Locks: a directory's stripe -> the slot -> the file's body -> [`Inode::meta`]. Attributes are
//! single atomic words; those that must change together do so under `meta`, with `attr_seq` odd,
//! and readers that need them together retry.

use crate::alloc::Identity;
use crate::dir::{Dir, STRIPES};
use crate::file::File;
use crate::image::InodeImage;
use crate::layout::PAGE;
use crate::lock::SpinLock;
use crate::volume::Volume;
use crate::xattr::Xattrs;
use parking_lot::RwLock;
use smallvec::SmallVec;
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use triomphe::Arc;
use vfs::{Attr, Error, Kind, Result, Rights, Time};

/// One removal in `Inode::names`.
const REMOVAL: u64 = 1 << 32;

/// `Inode::state`: the consistent view does not hold it; only DRAM does.
const FRESH: u8 = 0;
/// A batch has taken it up.
const CAPTURED: u8 = 1;
/// The consistent view holds it.
const PUBLISHED: u8 = 2;

/// `Inode::dirty`: no more than the time of its last change is to be persisted.
pub const TIME: u8 = 1;
/// Anything may be to be persisted.
pub const ANY: u8 = 3;

/// An inode in DRAM.
///
/// Behind the count of an [`Arc`] this fills three cache lines (a test), as inodes leave the caches
/// between a creation and what comes later. The first has what taking a name away needs, the second
/// what `stat` needs besides.
#[repr(C)]
pub struct Inode {
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
    state: AtomicU8,
    /// What of it is to be persisted: [`TIME`], [`ANY`]. Not zero: it is on the list of dirty
    /// inodes.
    dirty: AtomicU8,
    /// Whether there are extended attributes.
    pub has_xattrs: AtomicBool,
    /// Attributes that change.
    pub attrs: Attrs,
    /// Birth.
    pub btime: Time,
    /// Names and extended attributes, and what of them is pending.
    pub meta: SpinLock<Meta>,
    /// What it holds.
    pub body: Body,
}

/// What an inode holds, by kind.
pub enum Body {
    /// Names.
    Dir(Dir),
    /// Bytes.
    File(RwLock<File>),
    /// A target, in this page from birth to death.
    Symlink {
        /// Page with the target.
        page: u64,
    },
    /// Nothing: fifo, socket, device.
    Special {
        /// Device number, of a device.
        rdev: u32,
    },
}

/// Attributes as single words.
#[derive(Default)]
#[repr(C)]
pub struct Attrs {
    ctime: AtomicI64,
    /// Odd while several change together.
    seq: AtomicU32,
    perm: AtomicU32,
    /// uid | gid << 32.
    owner: AtomicU64,
    /// Pages of the latest contents and extended attributes, and of a directory's table as it was
    /// loaded: changed by the calls that map, cut or replace them alone, never by persisting.
    pub pages: AtomicI64,
    /// Bytes of a file or target; 0 for a directory.
    pub size: AtomicU64,
    mtime: AtomicI64,
    atime: AtomicI64,
}

/// A name operation on this inode that the persister has not captured yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PendingName {
    /// The directory's inode number, and in the low bits the stripe.
    place: u64,
    /// The operation's number in the stripe.
    pub op: u64,
}

impl PendingName {
    /// Operation `op` of a stripe of a directory.
    pub fn new(dir: u64, stripe: usize, op: u64) -> PendingName {
        let place = dir * STRIPES as u64 + stripe as u64;
        PendingName { place, op }
    }

    /// Another operation there.
    pub fn with_op(self, op: u64) -> PendingName {
        PendingName { op, ..self }
    }

    /// The directory's inode number.
    pub fn dir(&self) -> u64 {
        self.place / STRIPES as u64
    }

    /// The stripe of the directory.
    pub fn stripe(&self) -> usize {
        (self.place % STRIPES as u64) as usize
    }
}

/// Pending operations on the inode's names, and its extended attributes.
#[derive(Default)]
pub struct Meta {
    /// Names that were given and are not captured.
    pub adds: SmallVec<[PendingName; 1]>,
    rare: Option<Box<Rare>>,
}

/// What few inodes have.
#[derive(Default)]
pub struct Rare {
    /// Made without a name (`O_TMPFILE`) and not linked yet: the one case of a first name.
    pub linkable: bool,
    /// Loaded at first use.
    pub xattrs: Option<Xattrs>,
}

impl Meta {
    /// What few inodes have, if this one does.
    pub fn rare(&mut self) -> Option<&mut Rare> {
        self.rare.as_deref_mut()
    }

    /// What few inodes have, from now on this one.
    pub fn make_rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The first name that was given and is not captured.
    pub fn first_pending(&self) -> Option<PendingName> {
        self.adds.first().copied()
    }
}

/// A consistent set of attributes that the persister writes.
#[derive(Debug, Clone, Copy)]
pub struct AttrImage {
    /// Permissions and kind, as in `st_mode`.
    pub mode: u32,
    /// uid | gid << 32.
    pub owner: u64,
    /// Bytes (not of a directory).
    pub size: u64,
    /// Last access, change of contents, change of anything.
    pub times: [Time; 3],
}

impl Inode {
    /// A byte of the cache line that `stat` needs besides the first.
    pub const ASKED_FOR: usize = offset_of!(Inode, attrs) + offset_of!(Attrs, size);
    /// A byte of the line that removing a directory needs besides, or a file that was never
    /// persisted.
    pub const REMOVED: usize = offset_of!(Inode, body);

    /// A new inode with one name, or none yet if `names` is empty.
    #[allow(clippy::too_many_arguments)]
    pub fn fresh(
        Identity { ino, generation }: Identity,
        kind: Kind,
        perm: u16,
        owner: (u32, u32),
        now: Time,
        body: Body,
        size: u64,
        names: &[PendingName],
    ) -> Inode {
        let pages = if let Body::Symlink { .. } = body {
            1
        } else {
            0
        };
        Inode {
            ino,
            generation,
            kind,
            btime: now,
            attrs: Attrs {
                perm: AtomicU32::new(u32::from(perm)),
                owner: AtomicU64::new(u64::from(owner.0) | u64::from(owner.1) << 32),
                atime: AtomicI64::new(now.0),
                mtime: AtomicI64::new(now.0),
                ctime: AtomicI64::new(now.0),
                size: AtomicU64::new(size),
                pages: AtomicI64::new(pages),
                ..Attrs::default()
            },
            names: AtomicU64::new(if kind == Kind::Dir { 2 } else { 1 }),
            state: AtomicU8::new(FRESH),
            dirty: AtomicU8::new(0),
            has_xattrs: AtomicBool::new(false),
            meta: SpinLock::new(Meta {
                adds: SmallVec::from_slice(names),
                rare: None,
            }),
            body,
        }
    }

    /// An inode of the consistent view.
    pub fn load(image: &InodeImage) -> Result<Inode> {
        let body = match image.kind {
            Kind::Dir => Body::Dir(Dir::load(image)),
            Kind::File => Body::File(RwLock::new(File::load(image))),
            Kind::Symlink => Body::Symlink {
                page: image.root >> crate::layout::index::SHIFT,
            },
            _ => Body::Special {
                rdev: image.root as u32,
            },
        };
        Ok(Inode {
            ino: image.ino,
            generation: image.generation,
            kind: image.kind,
            btime: image.btime,
            attrs: Attrs {
                seq: AtomicU32::new(0),
                perm: AtomicU32::new(u32::from(image.perm)),
                owner: AtomicU64::new(u64::from(image.uid) | u64::from(image.gid) << 32),
                size: AtomicU64::new(if image.kind == Kind::Dir {
                    0
                } else {
                    image.size
                }),
                pages: AtomicI64::new(image.sane_pages() as i64),
                atime: AtomicI64::new(image.atime.0),
                mtime: AtomicI64::new(image.mtime.0),
                ctime: AtomicI64::new(image.ctime.0),
            },
            has_xattrs: AtomicBool::new(image.xattr != 0),
            names: AtomicU64::new(u64::from(image.nlink)),
            state: AtomicU8::new(PUBLISHED),
            dirty: AtomicU8::new(0),
            meta: SpinLock::default(),
            body,
        })
    }

    /// Give back space set aside for persisting what turned out not to need it. Only at unmount.
    pub fn give_back_reserves(&self, volume: &Volume) {
        let runs = match &self.body {
            Body::Dir(dir) => dir.take_growth().1,
            Body::File(file) => file.write().take_reserve(),
            _ => return,
        };
        runs.into_iter()
            .for_each(|run| volume.alloc.free_pages(run));
    }

    /// The directory in it.
    pub fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Error::Errno(vfs::Errno::NOTDIR)),
        }
    }

    /// The file in it.
    pub fn file(&self) -> Result<&RwLock<File>> {
        match &self.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(Error::Errno(vfs::Errno::ISDIR)),
            _ => Err(Error::Errno(vfs::Errno::INVAL)),
        }
    }

    /// Whether the consistent view holds it.
    pub fn is_published(&self) -> bool {
        self.state.load(Acquire) == PUBLISHED
    }

    /// The consistent view holds it from now on. The persister alone calls this.
    pub fn set_published(&self) {
        self.state.store(PUBLISHED, Release);
    }

    /// A batch takes it up.
    pub fn set_captured(&self) {
        if self.state.load(Relaxed) == FRESH {
            self.state.store(CAPTURED, Release);
        }
    }

    /// Whether no batch ever took it up: nothing on the medium leads to it.
    pub fn is_fresh(&self) -> bool {
        self.state.load(Acquire) == FRESH
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

    /// Whether DRAM may forget it, if nobody refers to it: the consistent view holds it, and
    /// nothing waits to be persisted.
    pub fn is_idle(&self) -> bool {
        self.is_published()
            && self.dirty.load(Acquire) == 0
            && self.nlink() > 0
            && !self.has_removals()
            && !self.has_pending_names()
            && !matches!(&self.body, Body::Dir(dir) if dir.has_operations())
    }

    /// Whether a name was given that the persister has not captured.
    pub fn has_pending_names(&self) -> bool {
        self.meta.lock().first_pending().is_some()
    }

    /// Whether it is a directory with renames that wait, which others depend on.
    pub fn has_ties(&self) -> bool {
        matches!(&self.body, Body::Dir(dir) if dir.has_ties())
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

    fn rdev(&self) -> u32 {
        match self.body {
            Body::Special { rdev } => rdev,
            _ => 0,
        }
    }

    /// What decides who may do what with it.
    #[inline]
    pub fn rights(&self) -> Rights {
        let (perm, owner) = self
            .attrs
            .together(|a| (a.perm.load(Relaxed), a.owner.load(Relaxed)));
        Rights {
            ino: self.ino,
            kind: self.kind,
            has_xattrs: self.has_xattrs.load(Relaxed),
            perm: perm as u16 & 0o7777,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
        }
    }

    /// The latest attributes.
    pub fn attr(&self) -> Attr {
        let a = &self.attrs;
        let image = a.read();
        let table = match &self.body {
            Body::Dir(dir) => dir.table_growth() as i64,
            _ => 0,
        };
        let pages = (a.pages.load(Relaxed) + table).max(0) as u64;
        let size = match self.kind {
            Kind::Dir => pages.max(1) * PAGE,
            _ => image.size,
        };
        Attr {
            ino: self.ino,
            generation: self.generation,
            kind: self.kind,
            perm: image.mode as u16 & 0o7777,
            nlink: self.nlink(),
            uid: image.owner as u32,
            gid: (image.owner >> 32) as u32,
            rdev: match self.kind {
                Kind::File | Kind::Dir => 0, // and what they hold is not looked at
                _ => self.rdev(),
            },
            size,
            blocks: pages * (PAGE / 512),
            atime: image.times[0],
            mtime: image.times[1],
            ctime: image.times[2],
            btime: self.btime,
            has_xattrs: self.has_xattrs.load(Relaxed),
        }
    }

    /// The attributes for the persister. It holds `meta`, so no change is half done.
    pub fn attr_image(&self) -> AttrImage {
        let mut image = self.attrs.read();
        image.mode |= self.kind.mode_bits();
        image
    }
}

impl Attrs {
    fn read(&self) -> AttrImage {
        self.together(|a| AttrImage {
            mode: a.perm.load(Relaxed),
            owner: a.owner.load(Relaxed),
            size: a.size.load(Acquire),
            times: [&a.atime, &a.mtime, &a.ctime].map(|t| Time(t.load(Relaxed))),
        })
    }

    /// What `read` finds while no change is half done.
    #[inline]
    fn together<T>(&self, read: impl Fn(&Attrs) -> T) -> T {
        loop {
            let before = self.seq.load(Acquire);
            let found = read(self);
            fence(Acquire);
            if before & 1 == 0 && self.seq.load(Relaxed) == before {
                return found;
            }
            // Whoever changes them may wait for its turn on this very core.
            std::thread::yield_now();
        }
    }

    /// Change several attributes so that readers see all or none. The caller holds `meta`.
    pub fn change(&self, set: &vfs::SetAttr, now: Time) {
        self.seq.fetch_add(1, Relaxed);
        fence(Release); // odd before anything changes
        if let Some(perm) = set.perm {
            self.perm.store(u32::from(perm & 0o7777), Relaxed);
        }
        let owner = self.owner.load(Relaxed);
        let uid = set.uid.unwrap_or(owner as u32);
        let gid = set.gid.unwrap_or((owner >> 32) as u32);
        self.owner
            .store(u64::from(uid) | u64::from(gid) << 32, Relaxed);
        if let Some(time) = set.atime {
            self.atime.store(time.0, Relaxed);
        }
        if let Some(time) = set.mtime {
            self.mtime.store(time.0, Relaxed);
        }
        self.ctime.store(set.ctime.unwrap_or(now).0, Relaxed);
        self.seq.fetch_add(1, Release);
    }

    /// Contents changed. The clock is coarse, so usually nothing is stored and the line stays
    /// shared between cores.
    #[inline]
    pub fn touch(&self, now: Time) {
        if self.mtime.load(Relaxed) != now.0 {
            self.mtime.store(now.0, Relaxed);
        }
        self.touch_ctime(now);
    }

    /// Contents were read.
    pub fn set_atime(&self, atime: Time) {
        self.atime.store(atime.0, Relaxed);
    }

    /// Attributes changed.
    #[inline]
    pub fn touch_ctime(&self, now: Time) {
        if self.ctime.load(Relaxed) != now.0 {
            self.ctime.store(now.0, Relaxed);
        }
    }
}

/// A counted reference from outside: what the VFS holds.
#[derive(Clone)]
pub struct Node(Arc<Inode>);

impl Node {
    /// A reference for the VFS.
    pub fn new(inode: Arc<Inode>) -> Node {
        Node(inode)
    }

    /// The inode.
    #[inline]
    pub fn inode(&self) -> &Arc<Inode> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_takes_three_cache_lines_with_its_count() {
        let count = size_of::<usize>();
        assert!(count + size_of::<Inode>() <= 192);
        assert!(count + Inode::ASKED_FOR == 64);
        assert!(count + offset_of!(Inode, meta) < 128);
        assert!(count + Inode::REMOVED >= 128);
    }

    #[test]
    fn a_pending_name_tells_where_it_is() {
        let name = PendingName::new(crate::layout::LINE_MASK, STRIPES - 1, 7);
        assert_eq!(
            (name.dir(), name.stripe(), name.op),
            (crate::layout::LINE_MASK, STRIPES - 1, 7)
        );
    }
}

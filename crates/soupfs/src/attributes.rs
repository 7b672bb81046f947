//! The attributes of an inode.
//!
//! [`Attributes`] has all of them, as plain values: what the two lines on the medium hold, what a
//! batch captures, and what the consistent view is to have. Its place among the words of an inode
//! stands here once, in [`Attributes::decode`] and [`Attributes::words`].
//!
//! [`LatestAttributes`] is the copy that callers read and change, in DRAM and without a lock: those
//! attributes that they set directly, each a single atomic word. It is made of an [`Attributes`],
//! and brings one up to date. The other attributes have no latest copy of this kind: names are
//! counted by operations, and what leads to contents changes when these are persisted.

use crate::layout::{IMAGE_MAX, PAGE, inode};
use schedule::{Retry, point};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use vfs::{Attr, Kind, Rights, SetAttr, Time};

/// The attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Its number: the line it starts at.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Names that refer to it (a directory: 2 and its subdirectories).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; names in a directory.
    pub size: u64,
    /// The root word: index tree, or device number.
    pub root: u64,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Last access.
    pub atime: Time,
    /// Birth.
    pub btime: Time,
    /// Pages of contents or table, and of extended attributes.
    pub pages: u64,
    /// First page of the extended attributes, or 0.
    pub xattr: u64,
    /// Directory: line of the parent.
    pub parent: u64,
    /// Told apart from earlier inodes of the same number by this.
    pub generation: u32,
    /// Directory: its table has at most `BASE << level` buckets. Others: 0.
    pub level: u32,
    /// File: see [`inode::UNFLUSHED`]. Others: 0.
    pub unflushed: u64,
}

impl Attributes {
    /// Of something new that holds nothing, is nobody's and has no name.
    pub fn new(ino: u64, generation: u32, kind: Kind, now: Time) -> Attributes {
        Attributes {
            ino,
            kind,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            size: 0,
            root: 0,
            mtime: now,
            ctime: now,
            atime: now,
            btime: now,
            pages: 0,
            xattr: 0,
            parent: 0,
            generation,
            level: 0,
            unflushed: 0,
        }
    }

    /// From the words on the medium, of which `word` gives the one at an offset.
    pub fn decode(ino: u64, kind: Kind, word: impl Fn(u64) -> u64) -> Attributes {
        let mode_nlink = word(inode::MODE_NLINK);
        let owner = word(inode::OWNER);
        let time = |field| Time(word(field) as i64);
        Attributes {
            ino,
            kind,
            perm: mode_nlink as u16 & 0o7777,
            nlink: (mode_nlink >> 32) as u32,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            size: word(inode::SIZE),
            root: word(inode::ROOT),
            mtime: time(inode::MTIME),
            ctime: time(inode::CTIME),
            atime: time(inode::ATIME),
            btime: time(inode::BTIME),
            pages: word(inode::PAGES),
            xattr: word(inode::XATTR),
            parent: word(inode::PARENT),
            generation: (word(inode::MAGIC_GENERATION) >> 32) as u32,
            level: match kind {
                Kind::Dir => u32::try_from(word(inode::LEVEL)).unwrap_or(u32::MAX),
                _ => 0,
            },
            unflushed: match kind {
                Kind::File => word(inode::UNFLUSHED),
                _ => 0,
            },
        }
    }

    /// The words that a batch stores, and their offsets; [`inode::UNFLUSHED`] is stored by callers.
    pub fn words(&self) -> [(u64, u64); 13] {
        let magic_generation = u64::from(inode::MAGIC) | u64::from(self.generation) << 32;
        [
            (inode::MODE_NLINK, self.mode_nlink_word()),
            (inode::OWNER, self.owner_word()),
            (inode::SIZE, self.size),
            (inode::ROOT, self.root),
            (inode::MTIME, self.mtime.0 as u64),
            (inode::CTIME, self.ctime.0 as u64),
            (inode::ATIME, self.atime.0 as u64),
            (inode::PAGES, self.pages),
            (inode::BTIME, self.btime.0 as u64),
            (inode::XATTR, self.xattr),
            (inode::PARENT, self.parent),
            (inode::MAGIC_GENERATION, magic_generation),
            (inode::LEVEL, u64::from(self.level)),
        ]
    }

    /// Mode and count of names, as they are in a word.
    pub fn mode_nlink_word(&self) -> u64 {
        u64::from(self.mode()) | u64::from(self.nlink) << 32
    }

    /// Owner and group, as they are in a word.
    pub fn owner_word(&self) -> u64 {
        owner_word(self.uid, self.gid)
    }

    /// All words of the inode, in order.
    pub fn encode(&self) -> [u64; (inode::LEN / 8) as usize] {
        let mut all = [0; (inode::LEN / 8) as usize];
        let unflushed = (inode::UNFLUSHED, self.unflushed);
        for (field, value) in self.words().into_iter().chain([unflushed]) {
            all[(field / 8) as usize] = value;
        }
        all
    }

    /// Permissions and kind, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.perm)
    }

    /// The count of pages, to calculate with: a damaged one is for fsck to mend and nobody's error.
    pub fn sane_pages(&self) -> u64 {
        self.pages.min(IMAGE_MAX / PAGE)
    }

    /// What decides who may do what with it.
    pub fn rights(&self) -> Rights {
        Rights {
            ino: self.ino,
            kind: self.kind,
            has_xattrs: self.xattr != 0,
            perm: self.perm & 0o7777,
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// As callers are told them; `pages` are those of the latest contents.
    pub fn stat(&self, has_xattrs: bool) -> Attr {
        Attr {
            ino: self.ino,
            generation: self.generation,
            kind: self.kind,
            perm: self.perm & 0o7777,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: match self.kind {
                Kind::File | Kind::Dir | Kind::Symlink => 0,
                _ => self.root as u32,
            },
            size: match self.kind {
                Kind::Dir => self.pages.max(1) * PAGE,
                _ => self.size,
            },
            blocks: self.pages * (PAGE / 512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            has_xattrs,
        }
    }
}

/// The word of permissions with others, and the same number of changes.
fn with_perm(word: u64, perm: u16) -> u64 {
    word & !(ONE - 1) | u64::from(perm & 0o7777)
}

fn owner_word(uid: u32, gid: u32) -> u64 {
    u64::from(uid) | u64::from(gid) << 32
}

/// A time that is a word.
#[derive(Default)]
#[repr(transparent)]
struct AtomicTime(AtomicU64);

impl AtomicTime {
    fn new(time: Time) -> AtomicTime {
        AtomicTime(AtomicU64::new(time.0 as u64))
    }

    #[inline]
    fn load(&self) -> Time {
        Time(self.0.load(Relaxed) as i64)
    }

    #[inline]
    fn store(&self, time: Time) {
        self.0.store(time.0 as u64, Relaxed);
    }
}

/// One more in the number of changes, which is the upper half of its word.
const ONE: u64 = 1 << 32;

/// The attributes that callers set directly, as they are now: single atomic words. Those that must
/// change together do so under the inode's `meta`, with the number of changes odd, and readers that
/// need them together retry.
#[derive(Default)]
#[repr(C)]
pub struct LatestAttributes {
    ctime: AtomicTime,
    /// Permissions; in units of [`ONE`] a number that is odd while several attributes change
    /// together.
    perm: AtomicU64,
    /// uid | gid << 32.
    owner: AtomicU64,
    /// Pages of the latest contents and extended attributes, and of a directory's table as it was
    /// loaded: changed by the calls that map, cut or replace them alone, never by persisting.
    pub pages: AtomicI64,
    /// Bytes of a file or target; 0 for a directory.
    pub size: AtomicU64,
    mtime: AtomicTime,
    atime: AtomicTime,
}

impl LatestAttributes {
    /// Where the size is.
    pub const SIZE: usize = offset_of!(LatestAttributes, size);

    /// The latest copy of what the consistent view has, or will.
    pub fn new(from: &Attributes) -> LatestAttributes {
        LatestAttributes {
            ctime: AtomicTime::new(from.ctime),
            perm: AtomicU64::new(u64::from(from.perm)),
            owner: AtomicU64::new(owner_word(from.uid, from.gid)),
            pages: AtomicI64::new(from.sane_pages() as i64),
            size: AtomicU64::new(match from.kind {
                Kind::Dir => 0,
                _ => from.size,
            }),
            mtime: AtomicTime::new(from.mtime),
            atime: AtomicTime::new(from.atime),
        }
    }

    /// Bring attributes up to date, with no change half done. What a directory has, names and
    /// pages, is for the operations on it to say.
    #[inline]
    pub fn update(&self, attributes: &mut Attributes) {
        let (perm, owner, size) = self.together(|latest| {
            attributes.atime = latest.atime.load();
            attributes.mtime = latest.mtime.load();
            attributes.ctime = latest.ctime.load();
            let (perm, owner) = (latest.perm.load(Relaxed), latest.owner.load(Relaxed));
            (perm, owner, latest.size.load(Acquire))
        });
        attributes.perm = perm as u16;
        (attributes.uid, attributes.gid) = (owner as u32, (owner >> 32) as u32);
        if attributes.kind != Kind::Dir {
            attributes.size = size;
            attributes.pages = self.pages.load(Relaxed).max(0) as u64;
        }
    }

    /// Permissions, owner and group.
    #[inline]
    pub fn rights(&self) -> (u16, u32, u32) {
        let (perm, owner) =
            self.together(|latest| (latest.perm.load(Relaxed), latest.owner.load(Relaxed)));
        (perm as u16 & 0o7777, owner as u32, (owner >> 32) as u32)
    }

    /// What `read` finds while no change is half done.
    #[inline]
    fn together<T>(&self, mut read: impl FnMut(&LatestAttributes) -> T) -> T {
        let mut retry = Retry::default();
        loop {
            let before = self.perm.load(Acquire);
            let found = read(self);
            fence(Acquire);
            if before & ONE == 0 && self.perm.load(Relaxed) == before {
                return found;
            }
            // Whoever changes them may wait for its turn on this very core.
            retry.again();
        }
    }

    /// Change several attributes so that readers see all or none. The caller holds `meta`.
    pub fn change(&self, set: &SetAttr, now: Time) {
        let perm = self.perm.fetch_add(ONE, Relaxed).wrapping_add(ONE);
        fence(Release); // odd before anything changes
        point("attributes: none changed");
        if let Some(set) = set.perm {
            self.perm.store(with_perm(perm, set), Relaxed);
        }
        let owner = self.owner.load(Relaxed);
        let uid = set.uid.unwrap_or(owner as u32);
        let gid = set.gid.unwrap_or((owner >> 32) as u32);
        self.owner.store(owner_word(uid, gid), Relaxed);
        if let Some(time) = set.atime {
            self.atime.store(time);
        }
        if let Some(time) = set.mtime {
            self.mtime.store(time);
        }
        point("attributes: all but ctime changed");
        self.ctime.store(set.ctime.unwrap_or(now));
        self.perm.fetch_add(ONE, Release);
    }

    /// Contents changed. The clock is coarse, so usually nothing is stored and the line stays
    /// shared between cores.
    #[inline]
    pub fn touch(&self, now: Time) {
        if self.mtime.load() != now {
            self.mtime.store(now);
        }
        self.touch_ctime(now);
    }

    /// When contents and when anything changed last, and the last access, as words: for
    /// transactions that store them.
    pub fn times(&self) -> [&AtomicU64; 3] {
        [&self.mtime.0, &self.ctime.0, &self.atime.0]
    }

    /// Owner and group, as a word: likewise.
    pub fn owner(&self) -> &AtomicU64 {
        &self.owner
    }

    /// The word of the permissions: likewise; and what it is with others.
    pub fn perm_word(&self, perm: u16) -> (&AtomicU64, u64) {
        (&self.perm, with_perm(self.perm.load(Acquire), perm))
    }

    /// Contents were read.
    pub fn set_atime(&self, atime: Time) {
        self.atime.store(atime);
    }

    /// Attributes changed.
    #[inline]
    pub fn touch_ctime(&self, now: Time) {
        if self.ctime.load() != now {
            self.ctime.store(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again() {
        for kind in [Kind::Dir, Kind::File, Kind::CharDev] {
            let attributes = Attributes {
                perm: 0o4751,
                nlink: 3,
                uid: u32::MAX,
                gid: 7,
                size: 4,
                root: 5 << 12 | 1,
                mtime: Time(-6),
                ctime: Time(7),
                atime: Time(8),
                pages: 9,
                xattr: 10,
                parent: 12,
                level: if kind == Kind::Dir { 13 } else { 0 },
                unflushed: if kind == Kind::File { 14 } else { 0 },
                ..Attributes::new(16, 15, kind, Time(11))
            };
            let words = attributes.encode();
            let word = |field: u64| words[(field / 8) as usize];
            assert_eq!(Attributes::decode(16, kind, word), attributes);
            assert_eq!(inode::RESERVED.map(word), [0, 0]);
            assert_eq!(word(inode::MAGIC_GENERATION) as u32, inode::MAGIC);
        }
    }

    #[test]
    fn the_latest_copy_brings_attributes_up_to_date() {
        let made = Attributes::new(16, 1, Kind::File, Time(1));
        let latest = LatestAttributes::new(&made);
        let set = SetAttr {
            perm: Some(0o640),
            uid: Some(2),
            ..SetAttr::default()
        };
        latest.change(&set, Time(3));
        latest.size.store(4, Relaxed);
        latest.pages.store(5, Relaxed);
        let mut now = made;
        latest.update(&mut now);
        let expected = Attributes {
            perm: 0o640,
            uid: 2,
            ctime: Time(3),
            size: 4,
            pages: 5,
            ..made
        };
        assert_eq!(now, expected);
        assert_eq!(latest.rights(), (0o640, 2, 0));
    }
}

//! The vocabulary that file systems and their users share.

use std::fmt;

/// An inode number, unique among the inodes alive in one file system.
pub type Ino = u64;

/// Linux's longest name of a directory entry, in bytes. An engine may have a lower limit.
pub const NAME_MAX: usize = 255;
/// Linux's longest path, in bytes, with its terminating zero.
pub const PATH_MAX: usize = 4096;
/// Linux's longest name of an extended attribute, in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Linux's longest value of an extended attribute, in bytes. An engine may have a lower limit.
pub const XATTR_SIZE_MAX: usize = 65536;
/// Linux's longest list of extended attribute names, in bytes, each with a zero behind it.
pub const XATTR_LIST_MAX: usize = 65536;
/// What an extended attribute counts in [`Limits::xattr_room`] besides its name and its value.
pub const XATTR_OVERHEAD: usize = 32;

/// Directory cookies below this are the VFS's own: 0 is the start, 1 is after `.`, 2 after `..`.
pub const COOKIE_FIRST: u64 = 3;

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDev,
    /// A block device.
    BlockDev,
}

impl Kind {
    /// The file-type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::Fifo => 0o010000,
            Kind::CharDev => 0o020000,
            Kind::Dir => 0o040000,
            Kind::BlockDev => 0o060000,
            Kind::File => 0o100000,
            Kind::Symlink => 0o120000,
            Kind::Socket => 0o140000,
        }
    }

    /// The kind that the file-type bits of `mode` name, if any.
    pub fn from_mode(mode: u32) -> Option<Kind> {
        Some(match mode & 0o170000 {
            0o010000 => Kind::Fifo,
            0o020000 => Kind::CharDev,
            0o040000 => Kind::Dir,
            0o060000 => Kind::BlockDev,
            0o100000 => Kind::File,
            0o120000 => Kind::Symlink,
            0o140000 => Kind::Socket,
            _ => return None,
        })
    }
}

/// A point in time: nanoseconds since 1970-01-01 UTC. Covers the years 1678 to 2262.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub i64);

impl Time {
    /// From seconds and nanoseconds; what lies outside the range is clamped to its ends.
    pub fn new(secs: i64, nanos: u32) -> Time {
        Time(
            secs.saturating_mul(1_000_000_000)
                .saturating_add(i64::from(nanos)),
        )
    }

    /// Whole seconds, rounded down.
    pub fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Nanoseconds within the second.
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.secs(), self.nanos())
    }
}

/// The attributes of an inode, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Told apart from earlier inodes of the same number by this.
    pub generation: u32,
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits (`0o7777`).
    pub perm: u16,
    /// Names that refer to it; for a directory 2 and one for each subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, of a device.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
    /// Whether it has any extended attribute.
    pub has_xattrs: bool,
}

/// What of an inode decides who may do what with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Whether it has any extended attribute: false spares the lookup of an ACL.
    pub has_xattrs: bool,
    /// Permission, set-id and sticky bits (`0o7777`).
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Attr {
    /// What of them decides who may do what with the inode.
    pub fn rights(&self) -> Rights {
        Rights {
            ino: self.ino,
            kind: self.kind,
            has_xattrs: self.has_xattrs,
            perm: self.perm,
            uid: self.uid,
            gid: self.gid,
        }
    }
}

/// What kind of inode to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device with this number.
    CharDev(u32),
    /// A block device with this number.
    BlockDev(u32),
}

impl NewKind<'_> {
    /// The kind without its contents.
    pub fn kind(&self) -> Kind {
        match self {
            NewKind::File => Kind::File,
            NewKind::Dir => Kind::Dir,
            NewKind::Symlink(_) => Kind::Symlink,
            NewKind::Fifo => Kind::Fifo,
            NewKind::Socket => Kind::Socket,
            NewKind::CharDev(_) => Kind::CharDev,
            NewKind::BlockDev(_) => Kind::BlockDev,
        }
    }
}

/// A new inode: all of it decided (umask, set-gid directory, default ACL already applied).
#[derive(Debug, Clone, Copy)]
pub struct NewNode<'a> {
    /// What to make.
    pub kind: NewKind<'a>,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes that it is born with (inherited ACLs): name and value.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

/// Changes of attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size; shorter cuts off, longer reads as zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the contents.
    pub mtime: Option<Time>,
    /// Last change of attributes; `None` means now, if anything else is set.
    pub ctime: Option<Time>,
}

/// What to do when a rename meets an existing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `EEXIST`.
    NoReplace,
    /// Let both names change places; both must exist.
    Exchange,
    /// Replace, and leave a whiteout (character device 0/0) under the old name.
    Whiteout,
}

/// Forms of `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserve space; what was a hole still reads as zeros.
    Allocate {
        /// Leave the size as it is, even when the range ends beyond it.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    Punch,
    /// Make the range read as zeros, space reserved.
    Zero {
        /// Leave the size as it is, even when the range ends beyond it.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekFor {
    /// The next byte at or after the offset that may be other than a hole.
    Data,
    /// The next hole at or after the offset; the end of the file counts as one.
    Hole,
}

/// Which extended attributes `setxattr` accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// New or replaced.
    Any,
    /// Only new: `EEXIST` otherwise.
    Create,
    /// Only replaced: `ENODATA` otherwise.
    Replace,
}

/// How much `fsync` makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// The contents and what is needed to read them (`fdatasync`).
    Data,
    /// Everything of the inode, and its names up to the root.
    All,
}

/// One name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode it names.
    pub ino: Ino,
    /// What that is.
    pub kind: Kind,
    /// The name.
    pub name: &'a [u8],
    /// Continue after this entry by passing this to `readdir`. At least [`COOKIE_FIRST`].
    pub cookie: u64,
}

bitflags::bitflags! {
    /// What an engine can do that not every format can. [`crate::Vfs`] refuses the rest.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Files without a name that get one later (`O_TMPFILE`).
        const TMPFILE = 1;
        /// [`RenameMode::Exchange`].
        const EXCHANGE = 1 << 1;
        /// [`RenameMode::Whiteout`].
        const WHITEOUT = 1 << 2;
        /// [`Fallocate::Allocate`].
        const ALLOCATE = 1 << 3;
        /// [`Fallocate::Punch`].
        const PUNCH = 1 << 4;
        /// [`Fallocate::Zero`].
        const ZERO = 1 << 5;
        /// Extended attributes, and so ACLs.
        const XATTRS = 1 << 6;
        /// Any crash leaves a [`FileSystem::write_parts`](crate::FileSystem::write_parts) whole or
        /// not at all, and it is durable when it returns.
        const WHOLE_WRITES = 1 << 7;
    }
}

impl Capabilities {
    /// What this form of `fallocate` needs.
    pub fn of_fallocate(mode: Fallocate) -> Capabilities {
        match mode {
            Fallocate::Allocate { .. } => Capabilities::ALLOCATE,
            Fallocate::Punch => Capabilities::PUNCH,
            Fallocate::Zero { .. } => Capabilities::ZERO,
        }
    }

    /// What this form of `rename` needs.
    pub fn of_rename(mode: RenameMode) -> Capabilities {
        match mode {
            RenameMode::Replace | RenameMode::NoReplace => Capabilities::empty(),
            RenameMode::Exchange => Capabilities::EXCHANGE,
            RenameMode::Whiteout => Capabilities::WHITEOUT,
        }
    }
}

/// What an engine can hold and do. The same as long as it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest name of a directory entry, in bytes; at most [`NAME_MAX`].
    pub name_max: usize,
    /// Longest target of a symbolic link, in bytes; less than [`PATH_MAX`].
    pub symlink_max: usize,
    /// Most names of one inode; of a directory, 2 more than its subdirectories.
    pub link_max: u32,
    /// Largest size of a file, in bytes.
    pub file_max: u64,
    /// Longest value of an extended attribute, in bytes; at most [`XATTR_SIZE_MAX`].
    pub xattr_size_max: usize,
    /// Longest list of the names of extended attributes, in bytes, each with a zero behind it; at
    /// most [`XATTR_LIST_MAX`].
    pub xattr_list_max: usize,
    /// Bytes of the names and values of one inode's extended attributes, each with
    /// [`XATTR_OVERHEAD`] more, that have room together. More of them may have it or not.
    pub xattr_room: usize,
    /// What it can do.
    pub capabilities: Capabilities,
}

impl Limits {
    /// Whether extended attributes of these lengths (name, value) surely have room in one inode.
    pub fn have_room(&self, xattrs: impl IntoIterator<Item = (usize, usize)>) -> bool {
        let taken = xattrs
            .into_iter()
            .map(|(name, value)| name + value + XATTR_OVERHEAD);
        taken.sum::<usize>() <= self.xattr_room
    }
}

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of `blocks`, `free`: bytes.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks, those about to be free included.
    pub free: u64,
    /// Most inodes there can be (inodes come from the common space: an estimate).
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
    /// Identifier of the file system.
    pub fsid: u64,
}

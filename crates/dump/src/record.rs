//! The headers of a dump: records of 1024 bytes, before each inode, map and run of contents.
//!
//! The format is that of 4.4BSD with the additions of Linux: `protocols/dumprestore.h` of the
//! package `dump`, numbers in little endian.

use vfs::{Attr, Kind, Time};
use zerocopy::little_endian::{I16, I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a record: what headers take, and the unit of contents.
pub const RECORD: usize = 1024;

/// Records that are written together; a dump is a multiple of them.
pub const RECORDS_IN_BLOCK: u32 = 10;

/// Records of contents that one header describes, at most.
pub const DESCRIBED: usize = 512;

/// The inode number of the root directory.
pub const ROOT: u32 = 2;

const MAGIC: i32 = 60_012;
/// What the words of a header add up to.
const SUM: u32 = 84_446;
/// The header has the fields of 4.3BSD and later.
const NEW_HEADER: i32 = 1;
/// Entries of directories have the kind of what they name.
const NEW_DIRECTORIES: i32 = 2;
/// The record holds extended attributes.
const ATTRIBUTES: i32 = 0x8000;
/// Of which kind those are: those of Linux.
const ATTRIBUTES_OF_LINUX: i32 = 3;

/// What follows a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Nothing: the dump begins.
    Begin = 1,
    /// An inode's contents.
    Inode = 2,
    /// The map of the inodes that are in the dump.
    Dumped = 3,
    /// More of the contents of the last inode.
    More = 4,
    /// Nothing: the dump ends.
    End = 5,
    /// The map of the inodes that are in use.
    InUse = 6,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Seconds {
    secs: U32,
    micros: U32,
}

impl Seconds {
    /// The format has the years 1970 to 2106: what lies outside becomes the nearest.
    fn of(time: Time) -> Seconds {
        let (secs, micros) = match u32::try_from(time.secs()) {
            Ok(secs) => (secs, time.0.rem_euclid(1_000_000_000) as u32 / 1000),
            Err(_) if time.secs() < 0 => (0, 0),
            Err(_) => (u32::MAX, 0),
        };
        Seconds {
            secs: secs.into(),
            micros: micros.into(),
        }
    }
}

/// An inode, as 4.4BSD has it on disk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Inode {
    mode: U16,
    links: I16,
    inumber: U32,
    size: U64,
    atime: Seconds,
    mtime: Seconds,
    ctime: Seconds,
    /// Pointers: of a device its number.
    rdev: U32,
    other_pointers: [U32; 14],
    flags: U32,
    blocks: U32,
    generation: U32,
    uid: U32,
    gid: U32,
    spare: [U32; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Raw {
    what: I32,
    date: U32,
    since: U32,
    volume: I32,
    place: U32,
    ino: U32,
    magic: I32,
    sum: U32,
    inode: Inode,
    count: I32,
    present: [u8; DESCRIBED],
    label: [u8; 16],
    level: I32,
    file_system: [u8; 64],
    device: [u8; 64],
    host: [u8; 64],
    flags: I32,
    first: I32,
    block: U32,
    attributes: I32,
    spare: [U32; 30],
}

const _: () = assert!(size_of::<Raw>() == RECORD && size_of::<Inode>() == 128);

/// What all headers of a dump have in common.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Of the dump.
    pub label: String,
    /// Of the directory where the file system is mounted.
    pub file_system: String,
    /// Of the image.
    pub device: String,
    /// Of the machine.
    pub host: String,
}

/// A header.
#[derive(Clone, Copy)]
pub struct Header(Raw);

impl Header {
    /// That of the beginning, on which the others build. Dates are seconds since 1970: of this
    /// dump, and of the one that it builds on (0: of none).
    pub fn begin(names: &Names, level: u8, date: u32, since: u32) -> Header {
        let mut raw = Raw::read_from_bytes(&[0; RECORD]).expect("of that size");
        raw.what = (What::Begin as i32).into();
        raw.date = date.into();
        raw.since = since.into();
        raw.volume = 1.into();
        raw.magic = MAGIC.into();
        raw.level = i32::from(level).into();
        raw.flags = (NEW_HEADER | NEW_DIRECTORIES).into();
        raw.block = RECORDS_IN_BLOCK.into();
        put(&mut raw.label, &names.label);
        put(&mut raw.file_system, &names.file_system);
        put(&mut raw.device, &names.device);
        put(&mut raw.host, &names.host);
        Header(raw)
    }

    /// That of a map over the inodes up to `last`, of so many records.
    pub fn map(mut self, what: What, last: u32, records: u32) -> Header {
        self.0.what = (what as i32).into();
        self.0.ino = last.into();
        self.0.count = (records as i32).into();
        self.0.flags = NEW_DIRECTORIES.into();
        self
    }

    /// That of an inode. Contents are described by [`Header::describe`].
    pub fn inode(mut self, ino: u32, attr: &Attr) -> Header {
        self.0.what = (What::Inode as i32).into();
        self.0.flags = NEW_DIRECTORIES.into();
        self.0.ino = ino.into();
        self.0.inode = Inode {
            mode: (attr.kind.mode_bits() as u16 | attr.perm).into(),
            links: i16::try_from(attr.nlink).unwrap_or(i16::MAX).into(),
            inumber: 0.into(),
            size: attr.size.into(),
            atime: Seconds::of(attr.atime),
            mtime: Seconds::of(attr.mtime),
            ctime: Seconds::of(attr.ctime),
            rdev: match attr.kind {
                Kind::CharDev | Kind::BlockDev => attr.rdev.into(),
                _ => 0.into(),
            },
            other_pointers: [0.into(); 14],
            flags: 0.into(),
            blocks: u32::try_from(attr.blocks).unwrap_or(u32::MAX).into(),
            generation: attr.generation.into(),
            uid: attr.uid.into(),
            gid: attr.gid.into(),
            spare: [0.into(); 2],
        };
        self
    }

    /// That of the extended attributes of an inode, of so many bytes.
    pub fn attributes(mut self, len: usize) -> Header {
        self.0.inode.size = (len as u64).into();
        self.0.flags = (NEW_DIRECTORIES | ATTRIBUTES).into();
        self.0.attributes = ATTRIBUTES_OF_LINUX.into();
        self
    }

    /// With the next records of contents: whether each follows, or is a hole.
    pub fn describe(mut self, present: &[bool]) -> Header {
        self.0.present = [0; DESCRIBED];
        for (to, &is_there) in self.0.present.iter_mut().zip(present) {
            *to = is_there.into();
        }
        self.0.count = (present.len() as i32).into();
        self
    }

    /// For more contents of the same inode.
    pub fn more(mut self) -> Header {
        self.0.what = (What::More as i32).into();
        self
    }

    /// That of the end, over inodes up to `last`.
    pub fn end(self, last: u32) -> Header {
        self.map(What::End, last, 0)
    }

    /// Its bytes, as record number `place` of the dump.
    pub fn bytes(mut self, place: u32) -> [u8; RECORD] {
        self.0.place = place.into();
        self.0.sum = 0.into();
        let words = self.0.as_bytes().as_chunks::<4>().0.iter();
        let sum = words.fold(0_u32, |sum, &word| {
            sum.wrapping_add(u32::from_le_bytes(word))
        });
        self.0.sum = SUM.wrapping_sub(sum).into();
        self.0.as_bytes().try_into().expect("of that size")
    }
}

/// Text with a zero behind it, cut off if it must be.
fn put(to: &mut [u8], text: &str) {
    let len = text.len().min(to.len() - 1);
    to[..len].copy_from_slice(&text.as_bytes()[..len]);
}

//! Directory blocks: entries one behind the other, each saying where the next one begins.

pub mod hash;

use std::mem::offset_of;

use vfs::{Kind, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::features;
use crate::geometry::Geometry;
use crate::layout::{DIR_CHUNK, DIR_ENTRY_LEN, DirEntry, ROOT_INO};

/// Tells a name, in the directory of this number, from the other one that a directory has while it
/// is being moved. Not 0.
pub fn tag_of(dir: u32, name: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&dir.to_le_bytes()), name).max(1)
}

/// The tag of what has no name on disk, and is to get this one, which something else has beside its
/// own: they change places. Not 0.
pub fn promise_of(dir: u32, name: &[u8]) -> u32 {
    (!tag_of(dir, name)).max(1)
}

/// The tag of a whiteout that is to get this name of directory `moved`, which `keeps` it or another
/// one. It says so, since a whiteout may be gone, and its inode and tag be on disk yet, when
/// the name is given to something else. Not 0.
pub fn whiteout_of(dir: u32, name: &[u8], moved: u32, keeps: bool) -> u32 {
    let tag = crc32c::crc32c_append(tag_of(dir, name), &moved.to_le_bytes());
    crc32c::crc32c_append(tag, &[u8::from(keeps)]).max(1)
}

/// An entry in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it begins in its block, in bytes.
    pub offset: usize,
    /// What it names.
    pub ino: u32,
    /// Of what kind that is, if the entry says so.
    pub kind: Option<Kind>,
    /// The name: `.` and `..` too.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Whether there is a zero behind the name, in the bytes of its block: others want one behind
    /// `.` and `..`.
    pub fn is_ended(&self, bytes: &[u8]) -> bool {
        bytes.get(self.offset + DIR_ENTRY_LEN + self.name.len()) == Some(&0)
    }
}

/// The entries in use of a directory's block, which is block `at` of the disk. After an error there
/// are no more.
pub fn entries<'a>(
    geometry: &'a Geometry,
    at: u64,
    bytes: &'a [u8],
) -> impl Iterator<Item = Result<Entry<'a>>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        while next < bytes.len() {
            let offset = next;
            match entry_at(geometry, at, bytes, offset) {
                Ok((len, entry)) => {
                    next += len;
                    if let Some(entry) = entry {
                        return Some(Ok(entry));
                    }
                }
                Err(damage) => {
                    next = bytes.len();
                    return Some(Err(damage));
                }
            }
        }
        None
    })
}

/// Where the free entries of a directory's block are whose names, of which nothing is left, are
/// longer than they: nobody here reads those, but others call the directory corrupted. Up to an
/// entry that makes no sense.
pub fn overlong<'a>(geometry: &'a Geometry, bytes: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let mut next = 0;
    std::iter::from_fn(move || {
        while next < bytes.len() {
            let offset = next;
            let (len, entry) = parse(geometry, bytes, offset).ok()?;
            next += len;
            let name_len = bytes[offset + offset_of!(DirEntry, name_len)];
            if entry.is_none() && DIR_ENTRY_LEN + usize::from(name_len) > len {
                return Some(offset);
            }
        }
        None
    })
}

/// The entry of a directory's block, which is block `at` of the disk, that begins at an offset:
/// its length, and the entry if it is in use.
///
/// # Errors
/// None does.
pub fn entry_at<'a>(
    geometry: &Geometry,
    at: u64,
    bytes: &'a [u8],
    offset: usize,
) -> Result<(usize, Option<Entry<'a>>)> {
    parse(geometry, bytes, offset).map_err(|what| {
        let what = format_args!("directory entry at byte {offset}: {what}");
        geometry.damage(at, what)
    })
}

/// The entry at an offset, if it is in use, and its length.
fn parse<'a>(
    geometry: &Geometry,
    bytes: &'a [u8],
    offset: usize,
) -> std::result::Result<(usize, Option<Entry<'a>>), String> {
    let rest = &bytes[offset..];
    let Ok((header, names)) = DirEntry::read_from_prefix(rest) else {
        return Err(format!("{} bytes are left for it", rest.len()));
    };
    let len = usize::from(header.rec_len.get());
    if len < DIR_ENTRY_LEN || !len.is_multiple_of(4) || len > rest.len() {
        return Err(format!("length {len}, where {} are left", rest.len()));
    }
    let ino = header.inode.get();
    if ino == 0 {
        return Ok((len, None));
    }
    let has_kinds = geometry.features.incompat & features::FILETYPE != 0;
    if !has_kinds && header.file_type != 0 {
        let len = usize::from(header.file_type) << 8 | usize::from(header.name_len);
        return Err(format!("a name of {len} bytes"));
    }
    let name_len = usize::from(header.name_len);
    if name_len == 0 || name_len > len - DIR_ENTRY_LEN {
        return Err(format!("a name of {name_len} bytes in {len}"));
    }
    let name = &names[..name_len];
    if name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(format!("name '{}'", name.escape_ascii()));
    }
    if !geometry.has_inode(ino) {
        return Err(format!("it names inode {ino} of {}", geometry.inodes));
    }
    if ino < geometry.first_ino && ino != ROOT_INO {
        return Err(format!("it names inode {ino}, which is reserved"));
    }
    let kind = match has_kinds {
        true => kind(header.file_type)?,
        false => None,
    };
    let entry = Entry {
        offset,
        ino,
        kind,
        name,
    };
    Ok((len, Some(entry)))
}

/// The kinds by their number in entries, from 1.
const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Dir,
    Kind::CharDev,
    Kind::BlockDev,
    Kind::Fifo,
    Kind::Socket,
    Kind::Symlink,
];

fn kind(number: u8) -> std::result::Result<Option<Kind>, String> {
    match number {
        0 => Ok(None),
        1..=7 => Ok(Some(KINDS[usize::from(number) - 1])),
        _ => Err(format!("kind {number}")),
    }
}

/// The number that entries have for a kind.
pub fn number_of(kind: Kind) -> u8 {
    let index = KINDS.iter().position(|&other| other == kind);
    index.expect("each kind has a number") as u8 + 1
}

/// Bytes of an entry with a name of so many bytes.
pub fn entry_len(name: usize) -> usize {
    (DIR_ENTRY_LEN + name).next_multiple_of(4)
}

/// Makes zeros a block of a directory: chunks, of which the first has these names, all of
/// directories, and the others are free.
pub fn set_up_block(block: &mut [u8], has_kinds: bool, names: &[(u32, &[u8])]) {
    let (mut at, end) = (0, block.len());
    let mut entry = |ino: u32, rec_len: usize, name: &[u8]| {
        let has_kind = has_kinds && ino != 0;
        let header = DirEntry {
            inode: ino.into(),
            rec_len: (rec_len as u16).into(),
            name_len: name.len() as u8,
            file_type: if has_kind { number_of(Kind::Dir) } else { 0 },
        };
        let (to, rest) = block[at..at + rec_len].split_at_mut(DIR_ENTRY_LEN);
        to.copy_from_slice(header.as_bytes());
        rest[..name.len()].copy_from_slice(name);
        at += rec_len;
    };
    if let Some(((last, last_name), others)) = names.split_last() {
        let mut left = DIR_CHUNK;
        for (ino, name) in others {
            let len = entry_len(name.len());
            entry(*ino, len, name);
            left -= len;
        }
        entry(*last, left, last_name);
    }
    let used = usize::from(!names.is_empty());
    for _ in used..end / DIR_CHUNK {
        entry(0, DIR_CHUNK, b"");
    }
}

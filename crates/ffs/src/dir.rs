//! Directories: entries in blocks, and in DRAM where each name is.
//!
//! An entry never moves as long as it is there: readers find the others while names come and go, by
//! the offset at which they stopped. A removal frees an entry in place; an insertion joins free
//! neighbours of its chunk. Entries made here do not cross chunks (see [`DIR_CHUNK`]).

use std::hash::Hasher;
use std::hint::black_box;
use std::mem::offset_of;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use vfs::{Errno, Kind, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::Alloc;
use crate::fault::{Fault, injected, unless};
use crate::features;
use crate::image::StoredInode;
use crate::image::dir::{self, entries, entry_len, number_of, set_up_block};
use crate::layout::{DIR_CHUNK, DIR_ENTRY_LEN, DirEntry, InodeFlags};
use crate::map;
use crate::medium::Medium;
use crate::order::Renaming;
use crate::order::graph::{On, Place};

/// An operation is to begin again behind a round: the disk keeps the name that it takes, or has the
/// directory that it moves or removes under two.
pub const NOT_YET: Errno = Errno::AGAIN;

/// Where the names of a directory are: by hash, the byte offset in the directory. So a lookup reads
/// the block that has the name, and hardly ever another.
pub struct Index {
    places: HashTable<Named>,
    /// The first block that may have room, and an entry of it: they are searched from there on.
    room: (u64, usize),
}

/// A name of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    hash: u64,
    /// Where it is: bytes from the beginning of the directory.
    offset: u64,
}

/// A name's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it names.
    pub ino: u32,
    /// Of what kind that is, if the entry says so.
    pub kind: Option<Kind>,
    /// Where it is: bytes from the beginning of the directory.
    pub offset: u64,
    /// The name's hash.
    pub hash: u64,
}

/// A name, and what it is to lead to.
#[derive(Debug, Clone, Copy)]
pub struct NewName<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Its hash.
    pub hash: u64,
    /// The inode.
    pub ino: u32,
    /// Of which kind that is.
    pub kind: Kind,
}

/// Hash of a name. The key is secret, so that nobody can make names collide.
pub fn hash(key: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(name);
    hasher.finish()
}

/// Calls `visit` with each entry in use whose offset in the directory is at least `from`, and its
/// offset, until that returns false.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn scan(
    medium: &Medium,
    dir: &StoredInode,
    from: u64,
    visit: &mut dyn FnMut(u64, dir::Entry<'_>) -> bool,
) -> Result<()> {
    let block_size = u64::from(medium.geometry.block_size);
    for logical in from / block_size..dir.attributes.size / block_size {
        let start = logical * block_size;
        let at = block(medium, dir, logical)?;
        let block = medium.cache.read(at)?;
        let bytes = block.bytes();
        fetch(&bytes);
        for entry in entries(&medium.geometry, at, &bytes) {
            let entry = entry?;
            let offset = start + entry.offset as u64;
            if offset >= from && !visit(offset, entry) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Brings the first line of each chunk of a block into the processor's cache, all at once. Who
/// follows the lengths of entries waits for one after the other.
fn fetch(block: &[u8]) {
    let lines = block.iter().step_by(DIR_CHUNK);
    black_box(lines.fold(0, |all, byte| all | byte));
}

/// The block of the disk that has block `logical` of a directory, which has no holes.
fn block(medium: &Medium, dir: &StoredInode, logical: u64) -> Result<u64> {
    let found = map::run(medium, dir, logical, 1)?.block;
    found.ok_or_else(|| {
        let what = format_args!("directory {} has a hole at its block {logical}", dir.ino);
        medium.geometry.damage(dir.at, what)
    })
}

/// Lets a directory have the blocks that a crash left behind its end. The caller stores its inode.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn grow(medium: &Medium, dir: &mut StoredInode) -> Result<()> {
    let block_size = u64::from(medium.geometry.block_size);
    while map::run(medium, dir, dir.attributes.size / block_size, 1)?
        .block
        .is_some()
    {
        dir.attributes.size += block_size;
    }
    Ok(())
}

impl Index {
    /// Reads a directory. `key` is that of the hash.
    ///
    /// # Errors
    /// The directory is damaged, or the disk failed.
    pub fn new(medium: &Medium, dir: &StoredInode, key: &[u8; 16]) -> Result<Index> {
        let mut index = Index {
            places: HashTable::new(),
            room: (0, 0),
        };
        scan(medium, dir, 0, &mut |offset, entry| {
            index.insert(hash(key, entry.name), offset);
            true
        })?;
        Ok(index)
    }

    fn insert(&mut self, hash: u64, offset: u64) {
        let named = Named { hash, offset };
        self.places.insert_unique(hash, named, |named| named.hash);
    }

    fn remove(&mut self, hash: u64, offset: u64) {
        let named = Named { hash, offset };
        if let Ok(entry) = self.places.find_entry(hash, |other| *other == named) {
            entry.remove();
        }
    }

    /// Whether it has no names but `.` and `..`.
    pub fn is_empty(&self) -> bool {
        self.places.len() <= 2
    }

    /// The entry of a name, which has this hash; `ENOENT` if there is none.
    ///
    /// # Errors
    /// That one; the directory is damaged, or the disk failed.
    pub fn find(
        &self,
        medium: &Medium,
        dir: &StoredInode,
        (hash, name): (u64, &[u8]),
    ) -> Result<Found> {
        let block_size = u64::from(medium.geometry.block_size);
        let named = self.places.iter_hash(hash);
        for &Named { offset, .. } in named.filter(|named| named.hash == hash) {
            let at = block(medium, dir, offset / block_size)?;
            let block = medium.cache.read(at)?;
            let (bytes, within) = (block.bytes(), (offset % block_size) as usize);
            match dir::entry_at(&medium.geometry, at, &bytes, within)?.1 {
                Some(entry) if entry.name == name => {
                    return Ok(Found {
                        ino: entry.ino,
                        kind: entry.kind,
                        offset,
                        hash,
                    });
                }
                _ => {}
            }
        }
        Err(Errno::NOENT.into())
    }
}

/// An entry that does not name any more what it did.
#[derive(Debug, Clone)]
pub struct Withdrawn {
    /// Where it is.
    pub place: Place,
    after: Vec<On>,
}

impl Withdrawn {
    /// What holds when the disk does not have that name any more, nor another one of the inode that
    /// went before. Nothing: it never had one.
    pub fn after(&self) -> &[On] {
        &self.after
    }

    /// When that holds, and the disk has at a place what is there now.
    pub fn and(&self, place: Place) -> Withdrawn {
        let mut both = self.clone();
        both.after.push(On::Place(place));
        both
    }
}

impl From<Place> for Withdrawn {
    /// One that the disk has.
    fn from(place: Place) -> Withdrawn {
        Withdrawn {
            place,
            after: vec![On::Place(place)],
        }
    }
}

/// A directory that is changed. What an entry names, and what else is said behind `after`, is
/// durable before the entry is.
pub struct Changing<'a> {
    /// Its blocks.
    pub medium: &'a Medium,
    /// Where it gets more.
    pub alloc: &'a Alloc,
    /// Its inode, which the caller stores.
    pub inode: &'a mut StoredInode,
    /// Where its names are.
    pub index: &'a mut Index,
}

impl Changing<'_> {
    /// Adds a name, which is not there yet: where it is.
    ///
    /// # Errors
    /// `ENOSPC`; the directory is damaged, or the disk failed.
    pub fn insert(&mut self, new: NewName<'_>, after: &[On]) -> Result<Place> {
        debug_assert!(!self.inode.attributes.flags.contains(InodeFlags::INDEX));
        let mut after = after.to_vec();
        let inode = [On::Place(self.medium.place(new.ino)?)];
        after.extend(unless(Fault::NameBeforeInode, &inode));
        let block_size = u64::from(self.medium.geometry.block_size);
        let blocks = self.inode.attributes.size / block_size;
        let (first, mut from) = self.index.room;
        for logical in first..blocks {
            let at = block(self.medium, self.inode, logical)?;
            if let Some(place) = self.insert_into((at, from), new, &after)? {
                self.index.room = (logical, place.offset());
                let offset = logical * block_size + place.offset() as u64;
                self.index.insert(new.hash, offset);
                return Ok(place);
            }
            from = 0;
        }
        let at = map::change::assign(self.medium, self.alloc, self.inode, blocks)?;
        let cache = &self.medium.cache;
        cache.change(at, |bytes| set_up_block(bytes, false, &[]))?;
        self.inode.attributes.size += block_size;
        let place = self.insert_into((at, 0), new, &after)?;
        let place = place.expect("an empty block has room");
        self.index.room = (blocks, place.offset());
        let offset = blocks * block_size + place.offset() as u64;
        self.index.insert(new.hash, offset);
        Ok(place)
    }

    /// Puts a name into a block, at or behind an entry of it: where, if there is room.
    fn insert_into(
        &self,
        (at, from): (u64, usize),
        new: NewName<'_>,
        after: &[On],
    ) -> Result<Option<Place>> {
        let has_kinds = self.has_kinds();
        let Medium { order, cache, .. } = self.medium;
        let place = |offset: usize| Place::new(at, offset);
        // On disk something else may still be named there, or it may be longer.
        let is_taken = |offset| {
            let is_kept = order.is_guarded(place(offset)) && !injected(Fault::KeptTaken);
            is_kept || order.is_guarded(place(offset + LEN_AT))
        };
        let room = self.medium.cache.change(at, |bytes| {
            let len_at = |bytes: &[u8], offset| {
                let entry = dir::entry_at(&self.medium.geometry, at, bytes, offset);
                entry.map(|(len, _)| len)
            };
            let needed = entry_len(new.name.len());
            let Some(room) = find_room(bytes, from, needed, &len_at, &is_taken)? else {
                return Ok(None);
            };
            let Room { offset, len, .. } = room;
            let header = DirEntry {
                inode: new.ino.into(),
                rec_len: (len as u16).into(),
                name_len: new.name.len() as u8,
                file_type: if has_kinds { number_of(new.kind) } else { 0 },
            };
            let name = offset + DIR_ENTRY_LEN;
            bytes[offset..name].copy_from_slice(header.as_bytes());
            bytes[name..name + new.name.len()].copy_from_slice(new.name);
            vfs::Result::Ok(Some((room, first_eight(bytes, offset))))
        })??;
        let Some((room, now)) = room else {
            return Ok(None);
        };
        let Room { offset, of, .. } = room;
        let len = place(of + LEN_AT);
        if sector(len.offset()) != sector(offset) && of != offset {
            // What it led into is an entry there, durably, before it leads to that.
            order.hold(cache, len, &room.before.to_le_bytes(), &[On::Block(at)]);
        }
        // All blocks of the directory can be reached: a name in one of them is there only then, and
        // the inode's old name may go.
        let reached = [self.medium.place(self.inode.ino)?];
        let reached = unless(Fault::NameUnreached, &reached);
        let behind: &[Place] = match reached {
            &[reached] => &[reached, len],
            _ => &[len],
        };
        let renaming = Renaming {
            place: place(offset),
            name: (self.inode.ino, new.hash),
            bytes: ([0; 8], now),
            leaving: None,
            arriving: Some(new.ino),
            after,
            behind,
        };
        order.rename(cache, &renaming);
        Ok(Some(place(offset)))
    }

    /// Removes a name, which was found.
    ///
    /// # Errors
    /// The disk failed.
    pub fn remove(&mut self, found: &Found, after: &[On]) -> Result<Withdrawn> {
        let names = (Some(found.ino), None);
        let withdrawn = self.change(found, names, after, |entry| entry.inode = 0.into())?;
        self.index.remove(found.hash, found.offset);
        let block = found.offset / u64::from(self.medium.geometry.block_size);
        // It may be joined to a free one in front of it.
        self.index.room = self.index.room.min((block, 0));
        Ok(withdrawn)
    }

    /// Lets a name that was found lead to another inode.
    ///
    /// # Errors
    /// The disk failed.
    pub fn replace(
        &mut self,
        found: &Found,
        (ino, kind): (u32, Kind),
        after: &[On],
    ) -> Result<Withdrawn> {
        let has_kinds = self.has_kinds();
        let mut after = after.to_vec();
        let inode = [On::Place(self.medium.place(ino)?)];
        after.extend(unless(Fault::TargetBeforeInode, &inode));
        self.change(found, (Some(found.ino), Some(ino)), &after, |entry| {
            entry.inode = ino.into();
            entry.file_type = if has_kinds { number_of(kind) } else { 0 };
        })
    }

    /// Lets `..`, which was found, lead to another directory.
    ///
    /// # Errors
    /// The disk failed.
    pub fn move_to(&mut self, found: &Found, parent: u32, after: &[On]) -> Result<Place> {
        let change = |entry: &mut DirEntry| entry.inode = parent.into();
        let changed = self.change(found, (None, None), after, change)?;
        Ok(changed.place)
    }

    fn has_kinds(&self) -> bool {
        self.medium.geometry.features.incompat & features::FILETYPE != 0
    }

    /// Changes an entry that named the first of two inodes, and names the second.
    fn change(
        &mut self,
        &Found { offset, hash, .. }: &Found,
        (leaving, arriving): (Option<u32>, Option<u32>),
        after: &[On],
        change: impl FnOnce(&mut DirEntry),
    ) -> Result<Withdrawn> {
        let place_of = |ino| self.medium.place(ino).map(|place| (ino, place));
        let leaving = leaving.map(place_of).transpose()?;
        let block_size = u64::from(self.medium.geometry.block_size);
        let at = block(self.medium, self.inode, offset / block_size)?;
        let offset = (offset % block_size) as usize;
        let bytes = self.medium.cache.change(at, |bytes| {
            let before = first_eight(bytes, offset);
            let rest = &mut bytes[offset..];
            let (entry, _) = DirEntry::mut_from_prefix(rest).expect("it was found there");
            change(entry);
            (before, first_eight(bytes, offset))
        })?;
        let place = Place::new(at, offset);
        let renaming = Renaming {
            place,
            name: (self.inode.ino, hash),
            bytes,
            leaving,
            arriving,
            after,
            behind: &[],
        };
        let after = self.medium.order.rename(&self.medium.cache, &renaming);
        Ok(Withdrawn { place, after })
    }
}

/// Lets a directory have no index of names of the kernel: a new name may take the room of a part of
/// it, when the disk has it no more.
///
/// # Errors
/// The disk failed.
pub fn drop_index(medium: &Medium, dir: &mut StoredInode) -> Result<()> {
    let place = medium.place(dir.ino)?;
    dir.attributes.flags.remove(InodeFlags::INDEX);
    medium.store_inode(dir, dir.attributes.ctime)?;
    medium.order.unindexed(&medium.cache, dir.ino, place);
    Ok(())
}

/// Whether the disk does not have an entry, which was found, as callers see it.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn is_unshown(medium: &Medium, dir: &StoredInode, found: &Found) -> Result<bool> {
    Ok(medium.order.is_guarded(place_of(medium, dir, found)?))
}

/// Where an entry is, which was found, for statements.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn place_of(medium: &Medium, dir: &StoredInode, found: &Found) -> Result<Place> {
    let block_size = u64::from(medium.geometry.block_size);
    let block = block(medium, dir, found.offset / block_size)?;
    Ok(Place::new(block, (found.offset % block_size) as usize))
}

/// When the disk has all names of a directory, and none that it has lost.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn all_of(medium: &Medium, dir: &StoredInode) -> Result<Vec<On>> {
    let block_size = u64::from(medium.geometry.block_size);
    let blocks = 0..dir.attributes.size / block_size;
    let of_block = |logical| Ok(medium.order.of_block(block(medium, dir, logical)?));
    let all: Result<Vec<_>> = blocks.map(of_block).collect();
    Ok(all?.concat())
}

/// Changes of a directory's names that are not on disk yet: where. That of its `..` goes with it.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn pending(medium: &Medium, dir: &StoredInode) -> Result<Vec<On>> {
    if medium.order.len() == 0 || injected(Fault::PendingForgotten) {
        return Ok(Vec::new());
    }
    let mut all = all_of(medium, dir)?;
    all.retain(|on| matches!(on, On::Place(_)));
    if all.is_empty() {
        return Ok(all);
    }
    let mut parent = None;
    scan(medium, dir, 0, &mut |offset, entry| {
        parent = (entry.name == b"..").then_some(offset as usize);
        parent.is_none()
    })?;
    if let Some(offset) = parent {
        let block = block(medium, dir, 0)?;
        all.retain(|&on| on != On::Place(Place::new(block, offset)));
    }
    Ok(all)
}

fn first_eight(bytes: &[u8], offset: usize) -> [u8; 8] {
    let bytes = bytes[offset..].first_chunk();
    *bytes.expect("an entry has eight bytes at least")
}

/// Makes zeros the first block of a directory: with `.` and `..`.
pub fn set_up_first_block(block: &mut [u8], has_kinds: bool, ino: u32, parent: u32) {
    set_up_block(block, has_kinds, &[(ino, b"."), (parent, b"..")])
}

/// Where the length of an entry is.
const LEN_AT: usize = 4;

/// The sector of a block that has a byte.
fn sector(offset: usize) -> usize {
    offset / block::SECTOR as usize
}

/// Room for an entry.
#[derive(Debug, PartialEq, Eq)]
struct Room {
    /// Where it begins.
    offset: usize,
    /// Its bytes.
    len: usize,
    /// Where the entry begins that had it, which ends there now unless it is all of that.
    of: usize,
    /// How long that was.
    before: u16,
}

/// Finds room for an entry of `needed` bytes in a block, from an entry of it on, and makes an entry
/// of it. Neighbouring free entries of a chunk are joined on the way. Free entries that are taken
/// all the same are left alone. `len_at`: how long the entry at an offset is, if it makes sense.
///
/// # Errors
/// One does not.
fn find_room(
    bytes: &mut [u8],
    from: usize,
    needed: usize,
    len_at: &dyn Fn(&[u8], usize) -> Result<usize>,
    is_taken: &dyn Fn(usize) -> bool,
) -> Result<Option<Room>> {
    let header = |bytes: &[u8], at: usize| {
        let (entry, _) = DirEntry::read_from_prefix(&bytes[at..]).expect("entries make sense");
        entry
    };
    let set_len = |bytes: &mut [u8], at: usize, len: usize| {
        bytes[at + LEN_AT..][..2].copy_from_slice(&(len as u16).to_le_bytes());
    };
    let mut at = from;
    while at < bytes.len() {
        let mut len = len_at(bytes, at)?;
        let entry = header(bytes, at);
        let is_taken = |at: usize, ino: u32| ino != 0 || is_taken(at);
        let is_free = !is_taken(at, entry.inode.get());
        while is_free && at + len < bytes.len() {
            let joined = len + len_at(bytes, at + len)?;
            let next = header(bytes, at + len);
            if is_taken(at + len, next.inode.get())
                || at / DIR_CHUNK != (at + joined - 1) / DIR_CHUNK
            {
                break;
            }
            len = joined;
            set_len(bytes, at, len);
        }
        let used = match is_free {
            true => 0,
            false => entry_len(entry.name_len.into()),
        };
        // An entry of others may reach into further chunks: the next one's beginning will do, too.
        for start in [at + used, (at + used).next_multiple_of(DIR_CHUNK)] {
            let fits = start + needed <= at + len;
            let in_chunk = start / DIR_CHUNK == (start + needed - 1) / DIR_CHUNK;
            // What stays before it is an entry, too, free or not.
            let leaves_one = start >= at + entry_len(1) || start == at && is_free;
            if fits && in_chunk && leaves_one {
                if start > at {
                    set_len(bytes, at, start - at);
                    if is_free {
                        // Others want the name of a free entry to fit, too.
                        bytes[at + offset_of!(DirEntry, name_len)] = 0;
                    }
                }
                return Ok(Some(Room {
                    offset: start,
                    len: at + len - start,
                    of: at,
                    before: len as u16,
                }));
            }
        }
        at += len;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others let entries reach over the border of a chunk. One that is free, and begins so near to
    /// it that nothing fits before, has to stay as it is.
    #[test]
    fn room_behind_a_border_leaves_an_entry_before_it() {
        for (at, found) in [
            (496, Some((512, 512))),
            (500, Some((512, 512))),
            (504, None),
        ] {
            let mut bytes = vec![0; 1024];
            let mut entry = |start: usize, ino: u32, len: usize| {
                bytes[start..start + 4].copy_from_slice(&ino.to_le_bytes());
                bytes[start + 4..start + 6].copy_from_slice(&(len as u16).to_le_bytes());
                bytes[start + 6] = 200;
            };
            entry(0, 12, 208);
            entry(208, 13, at - 208);
            entry(at, 0, 1024 - at);
            let len_at = |bytes: &[u8], at: usize| {
                Ok(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]).into())
            };
            let room = find_room(&mut bytes, 0, 100, &len_at, &|_| false).expect("entries");
            let expected = found.map(|(offset, len)| Room {
                offset,
                len,
                of: at,
                before: 1024 - at as u16,
            });
            assert_eq!(room, expected, "{at}");
            let (mut start, end) = (0, found.map_or(1024, |(start, _)| start));
            while start < end {
                let len = len_at(&bytes, start).expect("a length");
                assert!(len >= 12, "an entry of {len} bytes at {start}");
                let name_len = usize::from(bytes[start + 6]);
                assert!(8 + name_len <= len, "{name_len} in {len} bytes at {start}");
                start += len;
            }
        }
    }
}

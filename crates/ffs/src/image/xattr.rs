//! Extended attributes: entries, and their values behind them, in an inode or in a block.

mod encode;

use std::ops::Range;

use vfs::{ACL_ACCESS, ACL_DEFAULT, Errno, Result};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::geometry::Geometry;
use crate::layout::{
    XATTR_ENTRY_LEN, XATTR_HEADER_LEN, XATTR_INODE_HEADER_LEN, XATTR_MAGIC, XattrEntry, XattrHeader,
};

pub use encode::encode;

/// An extended attribute: name and value as programs see them.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// What goes before a name, by the number in its entry.
const PREFIXES: &[(u8, &[u8])] = &[
    (1, b"user."),
    (4, b"trusted."),
    (6, b"security."),
    (7, b"system."),
];
const INDEX_ACL_ACCESS: u8 = 2;
const INDEX_ACL_DEFAULT: u8 = 3;

/// Whether the room for attributes in an inode has any.
pub fn are_in_inode(room: &[u8]) -> bool {
    room.first_chunk() == Some(&XATTR_MAGIC.to_le_bytes())
}

/// The attributes in the room for them of inode `ino`, which is in block `at`.
///
/// # Errors
/// They make no sense.
pub fn in_inode(geometry: &Geometry, ino: u32, at: u64, room: &[u8]) -> Result<Vec<Xattr>> {
    if !are_in_inode(room) {
        return Ok(Vec::new());
    }
    // Values are found from the first entry on.
    let body = &room[XATTR_INODE_HEADER_LEN..];
    parse(body, 0).map_err(|what| {
        geometry.damage(at, format_args!("inode {ino}: extended attributes: {what}"))
    })
}

/// The attributes in block `at`.
///
/// # Errors
/// They make no sense.
pub fn in_block(geometry: &Geometry, at: u64, bytes: &[u8]) -> Result<Vec<Xattr>> {
    let damage = |what| geometry.damage(at, format_args!("extended attributes: {what}"));
    let header = XattrHeader::read_from_prefix(bytes);
    let (header, _) = header.map_err(|_| damage("cut off".to_owned()))?;
    if (header.magic.get(), header.blocks.get()) != (XATTR_MAGIC, 1) {
        let (magic, blocks) = (header.magic.get(), header.blocks.get());
        return Err(damage(format!("magic {magic:#010x}, {blocks} blocks")));
    }
    parse(bytes, XATTR_HEADER_LEN).map_err(damage)
}

/// The attributes whose entries begin at `entries`; offsets of values count from the beginning.
fn parse(bytes: &[u8], entries: usize) -> std::result::Result<Vec<Xattr>, String> {
    let mut found: Vec<Xattr> = Vec::new();
    let mut at = entries;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(first) = rest.first_chunk::<4>() else {
            return Err(format!("no end at byte {at}"));
        };
        if *first == [0; 4] {
            return Ok(found);
        }
        let Ok((entry, names)) = XattrEntry::read_from_prefix(rest) else {
            return Err(format!("an entry is cut off at byte {at}"));
        };
        let name_len = usize::from(entry.name_len);
        let Some(name) = names.get(..name_len) else {
            return Err(format!("a name is cut off at byte {at}"));
        };
        let Some(name) = full_name(entry.name_index, name) else {
            let index = entry.name_index;
            return Err(format!("a name of kind {index} at byte {at}"));
        };
        if entry.value_inum != U32::ZERO {
            return Err(format!("a value in an inode of its own at byte {at}"));
        }
        let after = at + (XATTR_ENTRY_LEN + name_len).next_multiple_of(4);
        let value = value(bytes, &entry, after)?;
        let value = match entry.name_index {
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => acl_to_xattr(value)?,
            _ => value.to_vec(),
        };
        if found.iter().any(|(other, _)| *other == name) {
            return Err(format!("'{}' twice", name.escape_ascii()));
        }
        found.push((name, value));
        at = after;
    }
}

/// Whether attributes of inode `ino`, in the room for them, which is in block `at`, are such that
/// others take them: see [`verify_block`].
///
/// # Errors
/// They are not.
pub fn verify_inode(geometry: &Geometry, ino: u32, at: u64, room: &[u8]) -> Result<()> {
    in_inode(geometry, ino, at, room)?;
    if !are_in_inode(room) {
        return Ok(());
    }
    verify(&room[XATTR_INODE_HEADER_LEN..], 0).map_err(|what| {
        geometry.damage(at, format_args!("inode {ino}: extended attributes: {what}"))
    })
}

/// Whether attributes in block `at` are such that others take them: nothing overlaps, and entries
/// have the hashes of their names and values, or in inodes none.
///
/// # Errors
/// They are not.
pub fn verify_block(geometry: &Geometry, at: u64, bytes: &[u8]) -> Result<()> {
    in_block(geometry, at, bytes)?;
    verify(bytes, XATTR_HEADER_LEN)
        .map_err(|what| geometry.damage(at, format_args!("extended attributes: {what}")))
}

/// What can be parsed, with entries from `entries` on.
fn verify(bytes: &[u8], entries: usize) -> std::result::Result<(), String> {
    let (mut at, mut values) = (entries, Vec::new());
    while bytes[at..at + 4] != [0; 4] {
        let (entry, names) = XattrEntry::read_from_prefix(&bytes[at..]).expect("it was parsed");
        let name = &names[..usize::from(entry.name_len)];
        let len = entry.value_size.get() as usize;
        let start = usize::from(entry.value_offs.get());
        let value = match len {
            0 => &[],
            _ => &bytes[start..start + len],
        };
        if len > 0 {
            values.push(start..(start + len).next_multiple_of(4));
        }
        let hash = entry.hash.get();
        // Names were hashed as signed characters, too.
        let is_right = [false, true]
            .into_iter()
            .any(|signed| hash == hash_of(name, value, signed));
        if !is_right && (hash != 0 || entries != 0) {
            return Err(format!("a wrong hash at byte {at}"));
        }
        at += (XATTR_ENTRY_LEN + name.len()).next_multiple_of(4);
    }
    values.push(entries..at + 4);
    values.sort_by_key(|range| range.start);
    match values.windows(2).find(|pair| pair[0].end > pair[1].start) {
        Some(pair) => Err(format!("two things at byte {}", pair[1].start)),
        None => Ok(()),
    }
}

/// The hash of name and value that entries in blocks have.
fn hash_of(name: &[u8], value: &[u8], is_signed: bool) -> u32 {
    let mut hash = 0_u32;
    for &byte in name {
        let character = match is_signed {
            true => byte as i8 as u32,
            false => byte.into(),
        };
        hash = hash.rotate_left(5) ^ character;
    }
    for word in value.chunks(4) {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        hash = hash.rotate_left(16) ^ u32::from_le_bytes(padded);
    }
    hash
}

/// The value of an entry. It may not lie before the end of the entry.
fn value<'a>(
    bytes: &'a [u8],
    entry: &XattrEntry,
    after: usize,
) -> std::result::Result<&'a [u8], String> {
    let (start, len) = (
        usize::from(entry.value_offs.get()),
        entry.value_size.get() as usize,
    );
    if len == 0 {
        return Ok(&[]);
    }
    let range: Range<usize> = start..start.saturating_add(len);
    match bytes.get(range) {
        Some(value) if start >= after => Ok(value),
        _ => Err(format!("a value of {len} bytes at byte {start}")),
    }
}

fn full_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    match index {
        INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT if !name.is_empty() => None,
        INDEX_ACL_ACCESS => Some(ACL_ACCESS.to_vec()),
        INDEX_ACL_DEFAULT => Some(ACL_DEFAULT.to_vec()),
        _ if name.is_empty() => None,
        _ => {
            let prefix = PREFIXES.iter().find(|prefix| prefix.0 == index)?;
            Some([prefix.1, name].concat())
        }
    }
}

/// Tags of entries of access control lists that have the number of a user or a group.
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x08;

/// An access control list as programs see it (version 2, each entry with a number) from its form on
/// disk (version 1, numbers only where they mean something).
fn acl_to_xattr(stored: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let Some((&[1, 0, 0, 0], mut rest)) = stored.split_first_chunk::<4>() else {
        return Err("an access control list of an unknown version".to_owned());
    };
    let mut list = 2_u32.to_le_bytes().to_vec();
    while let Some((entry, more)) = rest.split_first_chunk::<4>() {
        list.extend_from_slice(entry);
        rest = more;
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let id = match tag {
            ACL_USER | ACL_GROUP => {
                let cut_off = || "an access control list that is cut off".to_owned();
                let (id, more) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
                rest = more;
                *id
            }
            _ => [0xFF; 4],
        };
        list.extend_from_slice(&id);
    }
    match rest {
        [] => Ok(list),
        _ => Err("an access control list that is cut off".to_owned()),
    }
}

/// The form on disk of an access control list.
///
/// # Errors
/// `EINVAL`: it is none.
fn acl_from_xattr(list: &[u8]) -> Result<Vec<u8>> {
    let Some((&[2, 0, 0, 0], entries)) = list.split_first_chunk::<4>() else {
        return Err(Errno::INVAL.into());
    };
    let mut stored = vec![1, 0, 0, 0];
    let entries = entries.chunks(8);
    for entry in entries {
        let entry: &[u8; 8] = entry.try_into().map_err(|_| Errno::INVAL)?;
        stored.extend_from_slice(&entry[..4]);
        if matches!(
            u16::from_le_bytes([entry[0], entry[1]]),
            ACL_USER | ACL_GROUP
        ) {
            stored.extend_from_slice(&entry[4..]);
        }
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Acl;

    #[test]
    fn an_access_control_list_is_as_programs_know_it() {
        // user::rw-, user:1000:r--, group::r--, mask::r--, other::---
        let stored = [
            &[1, 0, 0, 0][..],
            &[1, 0, 6, 0],
            &[2, 0, 4, 0],
            &1000_u32.to_le_bytes(),
            &[4, 0, 4, 0],
            &[16, 0, 4, 0],
            &[32, 0, 0, 0],
        ]
        .concat();
        let list = acl_to_xattr(&stored).expect("sound");
        let acl = Acl::parse(&list).expect("sound").expect("not empty");
        assert_eq!(acl.users.len(), 1);
        assert_eq!(acl.users[0].0, 1000);
        assert_eq!(acl.to_xattr(), list);
        assert_eq!(acl_from_xattr(&list), Ok(stored.clone()));
        assert!(acl_to_xattr(&stored[..10]).is_err());
        assert!(acl_to_xattr(&[2, 0, 0, 0]).is_err());
    }
}

//! Extended attributes as the disk has them: what is put into an inode, and what into a block.

use vfs::{ACL_ACCESS, ACL_DEFAULT, Errno, Result};
use zerocopy::IntoBytes;

use super::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, PREFIXES, Xattr, acl_from_xattr, hash_of};
use crate::layout::{
    XATTR_ENTRY_LEN, XATTR_HEADER_LEN, XATTR_INODE_HEADER_LEN, XATTR_MAGIC, XattrEntry, XattrHeader,
};

/// Bytes behind the last entry that say so.
const END_LEN: usize = 4;

/// An attribute as an entry has it.
struct Stored {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Stored {
    fn new((name, value): &Xattr) -> Result<Stored> {
        let (index, rest, value) = match &name[..] {
            ACL_ACCESS => (INDEX_ACL_ACCESS, &b""[..], acl_from_xattr(value)?),
            ACL_DEFAULT => (INDEX_ACL_DEFAULT, &b""[..], acl_from_xattr(value)?),
            _ => {
                let prefix = PREFIXES.iter().find(|prefix| name.starts_with(prefix.1));
                let prefix = prefix.ok_or(Errno::OPNOTSUPP)?;
                let rest = &name[prefix.1.len()..];
                if rest.is_empty() {
                    return Err(Errno::INVAL.into());
                }
                (prefix.0, rest, value.clone())
            }
        };
        Ok(Stored {
            index,
            name: rest.to_vec(),
            value,
        })
    }

    fn entry_len(&self) -> usize {
        (XATTR_ENTRY_LEN + self.name.len()).next_multiple_of(4)
    }

    fn len(&self) -> usize {
        self.entry_len() + self.value.len().next_multiple_of(4)
    }

    fn hash(&self) -> u32 {
        hash_of(&self.name, &self.value, false)
    }
}

/// The attributes for an inode with room for `room` bytes, and those for a block of `block_size`
/// bytes (0: there may be none), if that is needed.
///
/// # Errors
/// `ENOSPC`: they do not fit. `EOPNOTSUPP`: a name of a kind that the format does not have.
/// `EINVAL`: a list of access rights that is none.
pub fn encode(all: &[Xattr], room: usize, block_size: usize) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    let mut left = room.saturating_sub(XATTR_INODE_HEADER_LEN + END_LEN);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for xattr in all {
        let stored = Stored::new(xattr)?;
        if stored.len() <= left {
            left -= stored.len();
            inside.push(stored);
        } else {
            outside.push(stored);
        }
    }
    let len: usize = outside.iter().map(Stored::len).sum();
    if !outside.is_empty() && XATTR_HEADER_LEN + len + END_LEN > block_size {
        return Err(Errno::NOSPC.into());
    }
    let block = (!outside.is_empty()).then(|| block(outside, block_size));
    Ok((in_inode(&inside, room), block))
}

fn in_inode(stored: &[Stored], room: usize) -> Vec<u8> {
    let mut bytes = vec![0; room];
    if !stored.is_empty() {
        let (magic, body) = bytes.split_at_mut(XATTR_INODE_HEADER_LEN);
        magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
        // Entries in inodes need no hash.
        put(body, 0, stored, |_| 0);
    }
    bytes
}

fn block(mut stored: Vec<Stored>, block_size: usize) -> Vec<u8> {
    // Readers expect this order.
    stored.sort_by(|a, b| {
        let key = |stored: &Stored| (stored.index, stored.name.len());
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    let mut bytes = vec![0; block_size];
    put(&mut bytes, XATTR_HEADER_LEN, &stored, Stored::hash);
    let mut hash = 0_u32;
    for stored in &stored {
        hash = match stored.hash() {
            // It cannot be shared.
            0 => 0,
            one => hash.rotate_left(16) ^ one,
        };
    }
    let header = XattrHeader {
        magic: XATTR_MAGIC.into(),
        refcount: 1.into(),
        blocks: 1.into(),
        hash: hash.into(),
        checksum: 0.into(),
        reserved: [0.into(); 3],
    };
    bytes[..XATTR_HEADER_LEN].copy_from_slice(header.as_bytes());
    bytes
}

/// Puts entries from `at` on, and values from the end backwards.
fn put(bytes: &mut [u8], mut at: usize, stored: &[Stored], hash: impl Fn(&Stored) -> u32) {
    let mut end = bytes.len() & !3;
    for stored in stored {
        end -= stored.value.len().next_multiple_of(4);
        bytes[end..][..stored.value.len()].copy_from_slice(&stored.value);
        let offset = if stored.value.is_empty() {
            0
        } else {
            end as u16
        };
        let entry = XattrEntry {
            name_len: stored.name.len() as u8,
            name_index: stored.index,
            value_offs: offset.into(),
            value_inum: 0.into(),
            value_size: (stored.value.len() as u32).into(),
            hash: hash(stored).into(),
        };
        bytes[at..][..XATTR_ENTRY_LEN].copy_from_slice(entry.as_bytes());
        bytes[at + XATTR_ENTRY_LEN..][..stored.name.len()].copy_from_slice(&stored.name);
        at += stored.entry_len();
    }
}

//! What makes a file a snapshot: an extended attribute of it.

use vfs::{Result, Time};

use crate::image::StoredInode;
use crate::medium::Medium;
use crate::xattr;

/// Name of the attribute.
pub const NAME: &[u8] = b"trusted.tureen.snapshot";
/// Bytes of its value.
pub const LEN: usize = 24;
const VERSION: u32 = 1;
/// It is removed by the next mount.
const TEMPORARY: u32 = 1;

/// What the attribute says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// It is not to outlive the mount that made it.
    pub temporary: bool,
    /// Later ones have higher numbers.
    pub sequence: u64,
    /// When it was made.
    pub created: Time,
}

impl Record {
    /// The value.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let flags = if self.temporary { TEMPORARY } else { 0 };
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[4..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.created.0.to_le_bytes());
        bytes
    }

    /// What a value says; `None`: it is of another version, or none.
    pub fn decode(value: &[u8]) -> Option<Record> {
        let value: &[u8; LEN] = value.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(value[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("eight"));
        (word(0) == VERSION).then(|| Record {
            temporary: word(4) & TEMPORARY != 0,
            sequence: long(8),
            created: Time(long(16).cast_signed()),
        })
    }

    /// That of an inode, if it has one.
    ///
    /// # Errors
    /// Its attributes are damaged, or the disk failed.
    pub fn of(medium: &Medium, inode: &StoredInode) -> Result<Option<Record>> {
        let all = xattr::all(medium, inode)?;
        let found = all.iter().find(|xattr| xattr.0 == NAME);
        Ok(found.and_then(|xattr| Record::decode(&xattr.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_was_written() {
        let record = Record {
            temporary: true,
            sequence: 7,
            created: Time(-3),
        };
        assert_eq!(Record::decode(&record.encode()), Some(record));
        assert_eq!(Record::decode(&[0; LEN]), None);
        assert_eq!(Record::decode(b"short"), None);
    }
}

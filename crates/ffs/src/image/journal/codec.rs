//! Blocks of the log, read. Whatever their bytes are, the result of reading makes sense
//! by itself; numbers of blocks are any.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{
    COMMIT, Commit, DESCRIPTOR, Header, JournalSuperblock, MAGIC, REVOKE, RevokeHeader,
    TAG_ESCAPED, TAG_LAST, TAG_SAME_UUID, TAIL_LEN, Tag, Tag3, UUID_LEN,
};
use crate::crc::crc32c;

/// The checksums of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// None.
    None,
    /// Those of version 2: of a copy 16 bits.
    V2,
    /// Those of version 3.
    V3,
}

/// How blocks of a log are read.
#[derive(Debug, Clone)]
pub struct Codec {
    /// Bytes of a block.
    pub block_size: usize,
    /// Its checksums.
    pub checksums: Checksums,
    /// Numbers of blocks have 64 bits.
    pub is_64bit: bool,
    /// The UUID of the journal.
    pub uuid: [u8; 16],
}

/// What a block of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// It says of which blocks the copies are that follow.
    Descriptor,
    /// The end of a transaction.
    Commit,
    /// Blocks that are not to be written home.
    Revoke,
}

/// A copy in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyTag {
    /// The block that it is one of.
    pub home: u64,
    /// It begins with zeros instead of the magic number.
    pub escaped: bool,
    /// Its checksum; 0 if there are none.
    pub sum: u32,
}

impl Codec {
    /// What a block is, and of which transaction; `None`: something else.
    pub fn header(&self, bytes: &[u8]) -> Option<(BlockKind, u32)> {
        let (header, _) = Header::ref_from_prefix(bytes).ok()?;
        let kind = match header.kind.get() {
            DESCRIPTOR => BlockKind::Descriptor,
            COMMIT => BlockKind::Commit,
            REVOKE => BlockKind::Revoke,
            _ => return None,
        };
        (header.magic.get() == MAGIC).then_some((kind, header.sequence.get()))
    }

    /// Whether a block that is no copy has the checksum that it should have. Of a commit block the
    /// first sector counts: the rest is zeros, and may not have reached the disk.
    pub fn is_sound(&self, kind: BlockKind, bytes: &[u8]) -> bool {
        if self.checksums == Checksums::None {
            return true;
        }
        let stored = |at: usize| {
            U32::ref_from_prefix(&bytes[at..])
                .expect("four bytes")
                .0
                .get()
        };
        match kind {
            BlockKind::Commit => {
                let mut block = vec![0; self.block_size];
                block[..size_of::<Commit>()].copy_from_slice(&bytes[..size_of::<Commit>()]);
                block[COMMIT_SUM_AT..COMMIT_SUM_AT + 4].fill(0);
                crc32c(self.seed(), &block) == stored(COMMIT_SUM_AT)
            }
            BlockKind::Descriptor | BlockKind::Revoke => {
                let at = self.room();
                let sum = crc32c(self.seed(), &bytes[..at]);
                crc32c(sum, &[0; TAIL_LEN]) == stored(at)
            }
        }
    }

    /// The tags of a descriptor.
    pub fn tags(&self, bytes: &[u8]) -> Vec<CopyTag> {
        let mut tags = Vec::new();
        let mut at = size_of::<Header>();
        while at + self.tag_len() <= self.room() {
            let (tag, flags) = self.tag(&bytes[at..]);
            tags.push(tag);
            if flags & TAG_LAST != 0 {
                break;
            }
            at += self.tag_len();
            if flags & TAG_SAME_UUID == 0 {
                at += UUID_LEN;
            }
        }
        tags
    }

    /// The tag that bytes begin with, and its flags.
    fn tag(&self, bytes: &[u8]) -> (CopyTag, u32) {
        let wide = |low: U32, high: u32| u64::from(high) << 32 | u64::from(low.get());
        let high = |high: u32| if self.is_64bit { high } else { 0 };
        let (home, flags, sum) = match self.checksums {
            Checksums::V3 => {
                let (tag, _) = Tag3::ref_from_prefix(bytes).expect("a tag's bytes");
                let home = wide(tag.block, high(tag.block_high.get()));
                (home, tag.flags.get(), tag.checksum.get())
            }
            Checksums::None | Checksums::V2 => {
                let (tag, rest) = Tag::ref_from_prefix(bytes).expect("a tag's bytes");
                let upper = U32::ref_from_prefix(rest).map_or(0, |(upper, _)| upper.get());
                let home = wide(tag.block, high(upper));
                (home, tag.flags.get().into(), tag.checksum.get().into())
            }
        };
        let escaped = flags & TAG_ESCAPED != 0;
        let tag = CopyTag { home, escaped, sum };
        (tag, flags)
    }

    /// The blocks that a block of revokes has.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn revokes(&self, bytes: &[u8]) -> Result<Vec<u64>, String> {
        let (header, _) = RevokeHeader::ref_from_prefix(bytes).expect("a block is longer");
        let used = header.count.get() as usize;
        let Some(numbers) = bytes[..self.room()].get(size_of::<RevokeHeader>()..used) else {
            return Err(format!("revokes of {used} bytes"));
        };
        let numbers = numbers.chunks_exact(self.number_len());
        Ok(numbers
            .map(|bytes| {
                let number = bytes.iter();
                number.fold(0, |number, &byte| number << 8 | u64::from(byte))
            })
            .collect())
    }

    /// When a transaction was committed: seconds and nanoseconds.
    pub fn commit_time(&self, bytes: &[u8]) -> (u64, u32) {
        let (commit, _) = Commit::ref_from_prefix(bytes).expect("a block is longer");
        (commit.seconds.get(), commit.nanoseconds.get())
    }

    /// The checksum of a copy, as it is in the log, of which a tag has as much as it has room for.
    pub fn copy_sum(&self, sequence: u32, copy: &[u8]) -> u32 {
        let sum = crc32c(self.seed(), &sequence.to_be_bytes());
        match self.checksums {
            Checksums::None => 0,
            Checksums::V2 => crc32c(sum, copy) & 0xFFFF,
            Checksums::V3 => crc32c(sum, copy),
        }
    }

    /// Makes an escaped copy what it was.
    pub fn unescape(&self, copy: &mut [u8]) {
        copy[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }

    /// Gives a superblock of the journal its checksum.
    pub fn seal_superblock(&self, superblock: &mut JournalSuperblock) {
        if self.checksums != Checksums::None {
            superblock.checksum = superblock_sum(superblock).into();
        }
    }

    /// Bytes of a descriptor or revoke block before its checksum.
    pub(crate) fn room(&self) -> usize {
        match self.checksums {
            Checksums::None => self.block_size,
            Checksums::V2 | Checksums::V3 => self.block_size - TAIL_LEN,
        }
    }

    pub(crate) fn tag_len(&self) -> usize {
        let narrow = size_of::<Tag>() + if self.is_64bit { 4 } else { 0 };
        match self.checksums {
            Checksums::None => narrow,
            Checksums::V2 => narrow + 2,
            Checksums::V3 => size_of::<Tag3>(),
        }
    }

    /// Bytes of a block's number in a revoke.
    pub(crate) fn number_len(&self) -> usize {
        if self.is_64bit { 8 } else { 4 }
    }

    pub(crate) fn seed(&self) -> u32 {
        crc32c(!0, &self.uuid)
    }
}

const COMMIT_SUM_AT: usize = 16;

/// The checksum that a superblock of the journal should have.
pub fn superblock_sum(superblock: &JournalSuperblock) -> u32 {
    let mut superblock = superblock.clone();
    superblock.checksum = U32::ZERO;
    crc32c(!0, superblock.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Codec> {
        let sums = [Checksums::None, Checksums::V2, Checksums::V3];
        let of = |checksums| [false, true].map(|is_64bit| (checksums, is_64bit));
        sums.into_iter()
            .flat_map(of)
            .map(|(checksums, is_64bit)| Codec {
                block_size: 1024,
                checksums,
                is_64bit,
                uuid: *b"0123456789abcdef",
            })
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        for codec in all() {
            for byte in 0..=255 {
                let mut bytes = vec![byte; 1024];
                codec.tags(&bytes);
                let _ = codec.revokes(&bytes);
                bytes[12..16].copy_from_slice(&1025_u32.to_be_bytes());
                assert!(codec.revokes(&bytes).is_err());
                bytes[12..16].copy_from_slice(&15_u32.to_be_bytes());
                assert!(codec.revokes(&bytes).is_err());
            }
        }
    }
}

//! Blocks of the log, written.

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::codec::{Checksums, Codec, CopyTag};
use super::layout::{
    COMMIT, Commit, DESCRIPTOR, Header, MAGIC, REVOKE, RevokeHeader, TAG_ESCAPED, TAG_LAST,
    TAG_SAME_UUID, Tag, Tag3, UUID_LEN,
};
use crate::crc::crc32c;

impl Codec {
    /// Escapes a copy for the log, if it must be.
    pub fn escape(&self, copy: &mut [u8]) -> bool {
        let must = copy.starts_with(&MAGIC.to_be_bytes());
        if must {
            copy[..4].fill(0);
        }
        must
    }

    /// Tags that a descriptor has room for.
    pub fn tags_max(&self) -> usize {
        (self.room() - size_of::<Header>() - UUID_LEN) / self.tag_len()
    }

    /// Revokes that a block has room for.
    pub fn revokes_max(&self) -> usize {
        (self.room() - size_of::<RevokeHeader>()) / self.number_len()
    }

    /// A descriptor of copies.
    ///
    /// # Panics
    /// If there are none, or more than [`Codec::tags_max`].
    pub fn put_descriptor(&self, sequence: u32, tags: &[CopyTag]) -> Vec<u8> {
        assert!(!tags.is_empty() && tags.len() <= self.tags_max());
        let mut bytes = Vec::with_capacity(self.block_size);
        bytes.extend_from_slice(header(DESCRIPTOR, sequence).as_bytes());
        for (i, tag) in tags.iter().enumerate() {
            let mut flags = if tag.escaped { TAG_ESCAPED } else { 0 };
            flags |= if i > 0 { TAG_SAME_UUID } else { 0 };
            flags |= if i + 1 == tags.len() { TAG_LAST } else { 0 };
            self.put_tag(&mut bytes, tag, flags);
            if i == 0 {
                bytes.extend_from_slice(&self.uuid);
            }
        }
        self.sealed(bytes)
    }

    fn put_tag(&self, bytes: &mut Vec<u8>, tag: &CopyTag, flags: u32) {
        let (block, high) = (U32::new(tag.home as u32), U32::new((tag.home >> 32) as u32));
        let end = bytes.len() + self.tag_len();
        if self.checksums == Checksums::V3 {
            let tag = Tag3 {
                block,
                flags: flags.into(),
                block_high: high,
                checksum: tag.sum.into(),
            };
            bytes.extend_from_slice(tag.as_bytes());
        } else {
            let tag = Tag {
                block,
                checksum: U16::new(tag.sum as u16),
                flags: U16::new(flags as u16),
            };
            bytes.extend_from_slice(tag.as_bytes());
            if self.is_64bit {
                bytes.extend_from_slice(high.as_bytes());
            }
        }
        bytes.resize(end, 0);
    }

    /// A block of revokes.
    ///
    /// # Panics
    /// If there are more than [`Codec::revokes_max`].
    pub fn put_revokes(&self, sequence: u32, blocks: &[u64]) -> Vec<u8> {
        assert!(blocks.len() <= self.revokes_max());
        let count = size_of::<RevokeHeader>() + blocks.len() * self.number_len();
        let header = RevokeHeader {
            header: header(REVOKE, sequence),
            count: U32::new(count as u32),
        };
        let mut bytes = header.as_bytes().to_vec();
        for block in blocks {
            bytes.extend_from_slice(&block.to_be_bytes()[8 - self.number_len()..]);
        }
        self.sealed(bytes)
    }

    /// A commit block: what of it is not zeros.
    pub fn put_commit(&self, sequence: u32, (seconds, nanoseconds): (u64, u32)) -> Commit {
        let mut commit = Commit {
            header: header(COMMIT, sequence),
            checksum_type: 0,
            checksum_size: 0,
            padding: [0; 2],
            checksum: [U32::ZERO; 8],
            seconds: U64::new(seconds),
            nanoseconds: U32::new(nanoseconds),
        };
        if self.checksums != Checksums::None {
            let mut block = vec![0; self.block_size];
            block[..size_of::<Commit>()].copy_from_slice(commit.as_bytes());
            commit.checksum[0] = crc32c(self.seed(), &block).into();
        }
        commit
    }

    /// A block with these bytes, zeros and, if there are checksums, its own at the end.
    fn sealed(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(self.block_size, 0);
        if self.checksums != Checksums::None {
            let sum = crc32c(self.seed(), &bytes);
            let at = self.room();
            bytes[at..].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }
}

fn header(kind: u32, sequence: u32) -> Header {
    Header {
        magic: MAGIC.into(),
        kind: kind.into(),
        sequence: sequence.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::codec::BlockKind;

    fn all() -> impl Iterator<Item = Codec> {
        let sums = [Checksums::None, Checksums::V2, Checksums::V3];
        let of = |checksums| [false, true].map(|is_64bit| (checksums, is_64bit));
        let all = sums.into_iter().flat_map(of);
        all.map(|(checksums, is_64bit)| Codec {
            block_size: 1024,
            checksums,
            is_64bit,
            uuid: *b"0123456789abcdef",
        })
    }

    #[test]
    fn what_is_written_is_read_and_a_changed_byte_is_noticed() {
        for codec in all() {
            let high = if codec.is_64bit { 1 << 40 } else { 0 };
            let sum = codec.copy_sum(7, &[1; 1024]);
            let tag = |i: u64| CopyTag {
                home: high + i,
                escaped: i.is_multiple_of(3),
                sum,
            };
            let tags: Vec<CopyTag> = (0..codec.tags_max() as u64).map(tag).collect();
            let homes: Vec<u64> = (0..codec.revokes_max() as u64).map(|i| high + i).collect();
            let descriptor = codec.put_descriptor(7, &tags);
            let revokes = codec.put_revokes(7, &homes);
            assert_eq!(codec.tags(&descriptor), tags, "{codec:?}");
            assert_eq!(codec.tags(&codec.put_descriptor(7, &tags[..3])), tags[..3]);
            assert_eq!(codec.revokes(&revokes), Ok(homes));
            let mut commit = codec.put_commit(7, (5, 6)).as_bytes().to_vec();
            commit.resize(1024, 0);
            assert_eq!(codec.commit_time(&commit), (5, 6));
            for (kind, mut bytes) in [
                (BlockKind::Descriptor, descriptor),
                (BlockKind::Revoke, revokes),
                (BlockKind::Commit, commit),
            ] {
                assert_eq!(codec.header(&bytes), Some((kind, 7)));
                assert!(codec.is_sound(kind, &bytes));
                bytes[57] ^= 1;
                assert_eq!(
                    codec.is_sound(kind, &bytes),
                    codec.checksums == Checksums::None
                );
            }
        }
    }
}

//! What is stored: a superblock, the commit line, the ring, the log, entries, and blocks.
//!
//! ```text
//! page 0         superblock; a copy is the last page
//! page 1         commit line: Head, Tail
//! ring           slots of 16 bytes
//! log            records: a line of header, and a unit of old bytes
//! entries        16 bytes for each block
//! blocks         4 KiB each
//! ```

use std::fmt;
use std::str::FromStr;

use crate::CacheError;
use crate::fault::{Fault, injected};

/// Bytes of a block, of the cache and of the disk.
pub const BLOCK: u64 = 4096;
/// Bytes of a line.
pub const LINE: u64 = pmem::LINE;
/// Bytes of the superblock that mean something, its checksum last.
pub const SUPERBLOCK_LEN: usize = 128;
/// Where Head is; Tail is in the next word.
pub const COMMIT_AT: u64 = BLOCK;

/// The block of the disk that says whether the disk alone is consistent. It is written last.
pub const FIRST: u64 = 0;

const MAGIC: &[u8; 8] = b"TUREENKA";
const VERSION: u32 = 1;
/// Blocks of the smallest cache.
const BLOCKS_MIN: u64 = 64;
const SLOTS_MAX: u64 = 1 << 16;
const RECORDS_MAX: u64 = 1 << 15;

/// Which protocol keeps a cache consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Metadata is changed in place, in units, behind an undo log; one commit point for a
    /// transaction (paper, section 3).
    Spindle,
    /// Whole blocks, each with a role that is switched by itself: the baseline.
    Tinca,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Spindle => "spindle",
            Kind::Tinca => "tinca",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        match text {
            "spindle" => Ok(Kind::Spindle),
            "tinca" => Ok(Kind::Tinca),
            _ => Err(format!("{text}: not a kind of cache: spindle or tinca")),
        }
    }
}

/// The superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Which protocol.
    pub kind: Kind,
    /// Of the cache.
    pub uuid: [u8; 16],
    /// Of what is on the disk.
    pub disk_uuid: [u8; 16],
    /// Bytes of the disk.
    pub disk_len: u64,
    /// Blocks, and entries.
    pub blocks: u64,
    /// Slots of the ring.
    pub slots: u64,
    /// Records of the log.
    pub records: u64,
    /// Bytes of metadata that are logged and changed together: a power of two of 64 to 4096.
    pub unit: u64,
    /// Blocks of metadata that replacement leaves in peace.
    pub metadata_min: u64,
    /// A commit returns when the disk has it, too.
    pub is_through: bool,
}

impl Superblock {
    /// The geometry of a cache that fills `len` bytes.
    ///
    /// # Errors
    /// [`CacheError::TooSmall`].
    pub fn fill(mut self, len: u64) -> Result<Superblock, CacheError> {
        let need = |blocks: u64| {
            let with = self.with_blocks(blocks);
            with.copy_at() + BLOCK
        };
        if need(BLOCKS_MIN) > len {
            return Err(CacheError::TooSmall {
                need: need(BLOCKS_MIN),
                have: len,
            });
        }
        // The largest number that fits: it grows with the length.
        let (mut low, mut high) = (BLOCKS_MIN, len / BLOCK);
        while low < high {
            let middle = (low + high).div_ceil(2);
            match need(middle) <= len {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        self = self.with_blocks(low.min(u64::from(u32::MAX)));
        self.metadata_min = self.metadata_min.min(self.blocks / 2);
        Ok(self)
    }

    fn with_blocks(&self, blocks: u64) -> Superblock {
        Superblock {
            blocks,
            slots: blocks.next_power_of_two().min(SLOTS_MAX),
            records: match self.kind {
                Kind::Spindle => blocks.next_power_of_two().min(RECORDS_MAX),
                Kind::Tinca => 0,
            },
            ..self.clone()
        }
    }

    /// Bytes of a record of the log.
    pub fn record_len(&self) -> u64 {
        LINE + self.unit
    }

    /// Where the ring is.
    pub fn ring_at(&self) -> u64 {
        2 * BLOCK
    }

    /// Where the log is.
    pub fn log_at(&self) -> u64 {
        (self.ring_at() + self.slots * 16).next_multiple_of(BLOCK)
    }

    /// Where the entries are.
    pub fn entries_at(&self) -> u64 {
        (self.log_at() + self.records * self.record_len()).next_multiple_of(BLOCK)
    }

    /// Where the blocks are.
    pub fn blocks_at(&self) -> u64 {
        (self.entries_at() + self.blocks * 16).next_multiple_of(BLOCK)
    }

    /// Where the copy of the superblock is.
    pub fn copy_at(&self) -> u64 {
        self.blocks_at() + self.blocks * BLOCK
    }

    /// As it is stored.
    pub fn bytes(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = u8::from(self.kind == Kind::Tinca);
        bytes[13] = u8::from(self.is_through);
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..48].copy_from_slice(&self.disk_uuid);
        let words = [
            self.disk_len,
            self.blocks,
            self.slots,
            self.records,
            self.unit,
            self.metadata_min,
        ];
        for (word, at) in words.iter().zip((48..).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[..SUPERBLOCK_LEN - 4]);
        bytes[SUPERBLOCK_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads one, of a medium of `len` bytes.
    ///
    /// # Errors
    /// It is none, or one that cannot be.
    pub fn read(bytes: &[u8; SUPERBLOCK_LEN], len: u64) -> Result<Superblock, CacheError> {
        let not = |what: &str| Err(CacheError::NotACache(what.to_owned()));
        if &bytes[..8] != MAGIC {
            return not("there is no superblock of one");
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let sum = crc32c::crc32c(&bytes[..SUPERBLOCK_LEN - 4]);
        if bytes[SUPERBLOCK_LEN - 4..] != sum.to_le_bytes() {
            return not("the checksum of its superblock is wrong");
        }
        if bytes[8..12] != VERSION.to_le_bytes() {
            return not("its version is not known here");
        }
        let superblock = Superblock {
            kind: match bytes[12] {
                0 => Kind::Spindle,
                _ => Kind::Tinca,
            },
            uuid: bytes[16..32].try_into().expect("16 bytes"),
            disk_uuid: bytes[32..48].try_into().expect("16 bytes"),
            disk_len: word(48),
            blocks: word(56),
            slots: word(64),
            records: word(72),
            unit: word(80),
            metadata_min: word(88),
            is_through: bytes[13] != 0,
        };
        let is_sane = superblock.unit.is_power_of_two()
            && (LINE..=BLOCK).contains(&superblock.unit)
            && (BLOCKS_MIN..=len / BLOCK).contains(&superblock.blocks)
            && superblock.slots.is_power_of_two()
            && superblock.slots <= SLOTS_MAX
            && superblock.records <= RECORDS_MAX
            && superblock.disk_len <= u64::MAX / 2
            && superblock.copy_at() + BLOCK <= len;
        match is_sane {
            true => Ok(superblock),
            false => Err(CacheError::corrupt(
                0,
                "a superblock of impossible geometry",
            )),
        }
    }
}

/// What an entry says of the block that it leads to: a word, the unit of atomicity (M1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State(u64);

impl State {
    const VALID: u64 = 1 << 32;
    const DIRTY: u64 = 1 << 33;
    const METADATA: u64 = 1 << 34;
    const LOGGED: u64 = 1 << 35;
    /// Bits of a state.
    pub const BITS: u32 = 36;
    /// An entry that leads nowhere.
    pub const FREE: State = State(0);

    /// Leads to a block that the disk does not have.
    pub fn dirty(block: u32, is_metadata: bool) -> State {
        let class = if is_metadata { State::METADATA } else { 0 };
        State(u64::from(block) | State::VALID | State::DIRTY | class)
    }

    /// Leads to a block of data that the disk has.
    pub fn clean(block: u32) -> State {
        State::dirty(block, false).cleaned()
    }

    /// The word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Of a word; other bits are ignored.
    pub fn of(word: u64) -> State {
        State(word & ((1 << State::BITS) - 1))
    }

    /// The block that it leads to.
    pub fn block(self) -> Option<u32> {
        self.is_valid().then_some(self.0 as u32)
    }

    /// Whether it leads anywhere.
    pub fn is_valid(self) -> bool {
        self.0 & State::VALID != 0
    }

    /// Whether the disk lacks the block.
    pub fn is_dirty(self) -> bool {
        self.is_valid() && self.0 & State::DIRTY != 0
    }

    /// Whether the block is of metadata.
    pub fn is_metadata(self) -> bool {
        self.0 & State::METADATA != 0
    }

    /// As it is when the disk has the block.
    pub fn cleaned(self) -> State {
        State(self.0 & !State::DIRTY)
    }

    /// Tinca: of a transaction that is not committed.
    pub fn logged(self) -> State {
        State(self.0 | State::LOGGED)
    }

    /// Tinca: of a transaction that is.
    pub fn switched(self) -> State {
        State(self.0 & !State::LOGGED)
    }
}

/// A slot of the ring: what an entry said before the transaction at whose position it is. Each of
/// its words says for itself of which lap it is, so a stale one is known (open point 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The entry; `None`: the slot only makes Tail move.
    pub entry: Option<u32>,
    /// What it said.
    pub old: State,
}

impl Slot {
    const NOBODY: u32 = u32::MAX;

    /// As it is stored in a lap.
    pub fn words(self, lap: u64) -> [u64; 2] {
        let entry = self.entry.unwrap_or(Slot::NOBODY);
        [
            u64::from(entry) | lap << 32,
            self.old.word() | lap << State::BITS,
        ]
    }

    /// Of what is stored; `None` if it is not of this lap.
    pub fn of(words: [u64; 2], lap: u64) -> Option<Slot> {
        let is_current = words[0] >> 32 == lap & 0xffff_ffff
            && words[1] >> State::BITS == lap & ((1 << (64 - State::BITS)) - 1);
        (is_current || injected(Fault::StaleSlot)).then(|| Slot {
            entry: Some(words[0] as u32).filter(|&entry| entry != Slot::NOBODY),
            old: State::of(words[1]),
        })
    }
}

/// The header of a record of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Tail of the transaction that it undoes (K4).
    pub tail: u64,
    /// Where its bytes were.
    pub at: u64,
}

impl Record {
    /// As it is stored, with the bytes.
    pub fn words(self, bytes: &[u8]) -> [u64; 3] {
        [self.tail, self.at, self.sum(bytes)]
    }

    /// Of what is stored; `None` if it is torn, or of another transaction.
    pub fn of(words: [u64; 3], bytes: &[u8], tail: u64) -> Option<Record> {
        let record = Record {
            tail: words[0],
            at: words[1],
        };
        let is_current = record.tail == tail || injected(Fault::StaleRecord);
        (is_current && words[2] == record.sum(bytes)).then_some(record)
    }

    fn sum(self, bytes: &[u8]) -> u64 {
        let sum = crc32c::crc32c(&self.tail.to_le_bytes());
        let sum = crc32c::crc32c_append(sum, &self.at.to_le_bytes());
        u64::from(crc32c::crc32c_append(sum, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(kind: Kind) -> Superblock {
        Superblock {
            kind,
            uuid: [1; 16],
            disk_uuid: [2; 16],
            disk_len: 1 << 30,
            blocks: 0,
            slots: 0,
            records: 0,
            unit: 64,
            metadata_min: 10,
            is_through: false,
        }
    }

    #[test]
    fn a_superblock_is_read_as_it_was_stored() {
        for (kind, len) in [(Kind::Spindle, 1 << 20), (Kind::Tinca, 16 << 30)] {
            let stored = superblock(kind).fill(len).expect("it fits");
            assert!(stored.copy_at() + BLOCK <= len);
            assert!(stored.copy_at() + 3 * BLOCK + 16 > len, "{stored:?}");
            assert_eq!(Superblock::read(&stored.bytes(), len), Ok(stored));
        }
    }

    #[test]
    fn a_changed_superblock_is_refused() {
        let stored = superblock(Kind::Spindle).fill(1 << 20).expect("it fits");
        for at in 0..SUPERBLOCK_LEN {
            let mut bytes = stored.bytes();
            bytes[at] ^= 4;
            assert!(Superblock::read(&bytes, 1 << 20).is_err(), "byte {at}");
        }
        assert!(Superblock::read(&stored.bytes(), 1 << 19).is_err());
    }

    #[test]
    fn slots_and_records_of_another_time_are_not_believed() {
        let slot = Slot {
            entry: Some(7),
            old: State::dirty(9, true),
        };
        assert_eq!(Slot::of(slot.words(3), 3), Some(slot));
        assert_eq!(Slot::of(slot.words(3), 4), None);
        assert_eq!(Slot::of([slot.words(4)[0], slot.words(3)[1]], 4), None);
        assert_eq!(Slot::of([slot.words(3)[0], slot.words(4)[1]], 4), None);
        let record = Record { tail: 5, at: 640 };
        assert_eq!(Record::of(record.words(b"old"), b"old", 5), Some(record));
        assert_eq!(Record::of(record.words(b"old"), b"old", 6), None);
        assert_eq!(Record::of(record.words(b"old"), b"odd", 5), None);
    }
}

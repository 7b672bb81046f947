//! The bytes of a journal area, and reading them without trust.
//!
//! ```text
//! line 0    header: magic, version, nonce, lines of the ring, checksum
//! line 1    head: the position of the first record that is not checkpointed, with check bits
//! line 2..  ring of records; position p is in ring line p % lines of the ring
//! ```
//! A position counts ring lines ever used, so it never repeats: it is also the sequence number
//! of the record that starts there. A [record](super::record) takes whole lines and may wrap
//! around.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::JournalError;
use super::record::{HEADER_BYTES, LINE_BYTES, PAIR_BYTES, Record, Start};
use crate::{LINE, Pool};

const MAGIC: u64 = u64::from_le_bytes(*b"TUREENJL");
const VERSION: u64 = 2;
/// Lines before the ring.
const RING_START: u64 = 2;
/// Low bits of the head word that check the rest.
const HEAD_CHECK_BITS: u32 = 12;
/// No journal gets here (at a million transactions a second it takes 35 years): a head beyond
/// is damaged, and one below leaves room for as many positions again.
const POSITION_MAX: u64 = 1 << 51;

/// Where an area lies and what identifies its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) off: u64,
    pub(super) ring_lines: u64,
    nonce: u64,
}

/// A record found in the ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) position: u64,
    pub(super) record: Record,
}

impl Placed {
    /// The position behind it.
    pub(super) fn end(&self) -> u64 {
        self.position + self.record.lines()
    }
}

impl Area {
    /// An area that is to be formatted.
    pub(super) fn new(off: u64, len: u64, nonce: u64) -> Area {
        assert!(off.is_multiple_of(LINE), "a journal area starts at a line");
        assert!(
            len >= super::LEN_MIN,
            "a journal area has at least {} bytes",
            super::LEN_MIN
        );
        Area {
            off,
            ring_lines: len / LINE - RING_START,
            nonce,
        }
    }

    /// Reads and checks the header and the head of an area; returns the head's position.
    pub(super) fn open(pool: &Pool, off: u64, len: u64) -> Result<(Area, u64), JournalError> {
        let fits = off.is_multiple_of(LINE)
            && len >= super::LEN_MIN
            && len <= pool.len()
            && off <= pool.len() - len;
        if !fits {
            return Err(JournalError::Area {
                off,
                len,
                pool: pool.len(),
            });
        }
        let header: [u64; 5] = std::array::from_fn(|i| pool.load(off + 8 * i as u64));
        let [magic, version, nonce, ring_lines, checksum] = header;
        let bad = |what| Err(JournalError::Header { off, what });
        if magic != MAGIC {
            return bad("no journal is here");
        }
        match version {
            VERSION => {}
            1 => {
                return bad(
                    "it has format 1, of an earlier version: unmount the image there, then \
                     run `tureen fsck` here, which makes its journal anew",
                );
            }
            _ => return bad("it has a format that this version does not know"),
        }
        let area = Area {
            off,
            ring_lines,
            nonce,
        };
        if checksum != area.header_checksum() {
            return bad("its checksum does not match");
        }
        if ring_lines != len / LINE - RING_START {
            return bad("its length is not that of the area");
        }
        let head = pool.load(area.head_off());
        let position = head >> HEAD_CHECK_BITS;
        if head != area.head_word(position) || position >= POSITION_MAX {
            return Err(JournalError::Head {
                off: area.head_off(),
                found: head,
            });
        }
        Ok((area, position))
    }

    /// Writes header and head of an empty journal, and flushes them.
    pub(super) fn format(&self, pool: &Pool) {
        self.store_head(pool, 0);
        let checksum = self.header_checksum();
        let header = [MAGIC, VERSION, self.nonce, self.ring_lines, checksum];
        for (i, word) in header.into_iter().enumerate() {
            pool.store(self.off + 8 * i as u64, word);
        }
        pool.flush(self.off, LINE);
    }

    fn header_checksum(&self) -> u64 {
        let words = [MAGIC, VERSION, self.nonce, self.ring_lines];
        xxh3_64_with_seed(words.map(u64::to_le_bytes).as_flattened(), 0)
    }

    fn head_off(&self) -> u64 {
        self.off + LINE
    }

    fn head_word(&self, position: u64) -> u64 {
        let check = xxh3_64_with_seed(&position.to_le_bytes(), self.nonce);
        position << HEAD_CHECK_BITS | check & ((1 << HEAD_CHECK_BITS) - 1)
    }

    /// Stores the head and flushes it: records below `position` are checkpointed at the next fence.
    pub(super) fn store_head(&self, pool: &Pool, position: u64) {
        pool.store(self.head_off(), self.head_word(position));
        pool.flush(self.head_off(), 8);
    }

    /// Flushes header and head.
    pub(super) fn flush_start(&self, pool: &Pool) {
        pool.flush(self.off, RING_START * LINE);
    }

    /// Flushes a record.
    pub(super) fn flush_record(&self, pool: &Pool, found: &Placed) {
        let len = found.record.lines() as usize * LINE_BYTES;
        let first = self.until_wrap(found.position).min(len);
        pool.flush(self.ring_off(found.position), first as u64);
        pool.flush(self.ring_off(0), (len - first) as u64);
    }

    /// Words in the largest record that has nothing else.
    pub(super) fn capacity(&self) -> usize {
        (self.ring_lines as usize * LINE_BYTES - HEADER_BYTES) / PAIR_BYTES
    }

    /// Whether the word overlaps the area.
    pub(super) fn contains(&self, word: u64) -> bool {
        self.overlaps(word, 1)
    }

    /// Whether a range does.
    pub(super) fn overlaps(&self, off: u64, len: u64) -> bool {
        let end = self.off + (RING_START + self.ring_lines) * LINE;
        off < end && off.saturating_add(len) > self.off
    }

    /// Writes a record and flushes it; `bytes` is scratch space.
    pub(super) fn write_record(
        &self,
        pool: &Pool,
        position: u64,
        record: &Record,
        bytes: &mut Vec<u8>,
    ) {
        bytes.clear();
        record.encode(self.nonce, position, bytes);
        let (first, second) = bytes.split_at(self.until_wrap(position).min(bytes.len()));
        for (off, part) in [(self.ring_off(position), first), (self.ring_off(0), second)] {
            pool.write(off, part);
            pool.flush(off, part.len() as u64);
        }
    }

    fn ring_off(&self, position: u64) -> u64 {
        self.off + (RING_START + position % self.ring_lines) * LINE
    }

    /// Bytes from a position to the ring's end.
    fn until_wrap(&self, position: u64) -> usize {
        (self.ring_lines - position % self.ring_lines) as usize * LINE_BYTES
    }

    fn read_ring(&self, pool: &Pool, position: u64, bytes: &mut [u8]) {
        let (first, second) = bytes.split_at_mut(self.until_wrap(position).min(bytes.len()));
        pool.read(self.ring_off(position), first);
        pool.read(self.ring_off(0), second);
    }

    /// The committed records from `head` on, in order, with their targets checked.
    pub(super) fn records(
        &self,
        pool: &Pool,
        head: u64,
        valid: impl Fn(u64) -> bool,
    ) -> Result<Vec<Placed>, JournalError> {
        let mut records = Vec::new();
        let mut position = head;
        while let Some(record) = self.read_record(pool, head, position) {
            let inside = |word: u64| word.is_multiple_of(8) && word < pool.len();
            let may = |word: u64| inside(word) && !self.contains(word) && valid(word);
            if let Some(word) = record.targets().find(|&word| !may(word)) {
                return Err(JournalError::Target {
                    off: self.ring_off(position),
                    sequence: position,
                    word,
                });
            }
            let found = Placed { position, record };
            position = found.end();
            records.push(found);
        }
        Ok(records)
    }

    /// The record at `position`, if it was committed. Anything else is what a crash leaves of
    /// an unfinished one, or of an older lap.
    fn read_record(&self, pool: &Pool, head: u64, position: u64) -> Option<Record> {
        let space = self.ring_lines - (position - head);
        let mut first = [0; LINE_BYTES];
        if space == 0 {
            return None;
        }
        self.read_ring(pool, position, &mut first);
        let lines = Start::read(&first)?.lines()?;
        if lines > space {
            return None;
        }
        let mut bytes = vec![0; lines as usize * LINE_BYTES];
        self.read_ring(pool, position, &mut bytes);
        Record::decode(&bytes, self.nonce, position)
    }
}

//! What a transaction changes, and its bytes in the ring.
//!
//! ```text
//! word 0    checksum of the rest, seeded with the area's nonce
//! word 1    sequence: the position where the record starts
//! word 2    words to store (low half), words to set bits in (high half)
//! word 3    bytes of the ranges, with their headers
//! then      offset, value: of each word to store
//!           offset, bits: of each word to set bits in
//!           offset, length, bytes up to a multiple of 8: of each range, first of those carried
//! ```
//! Zeros fill up the last line. All words are little-endian.

use std::collections::BTreeMap;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::live::Mask;
use crate::fault::{Fault, injected};
use crate::transaction::merge_bytes;
use crate::{LINE, Pool};

pub(super) const LINE_BYTES: usize = LINE as usize;
pub(super) const HEADER_BYTES: usize = 32;
pub(super) const PAIR_BYTES: usize = 16;

/// A transaction that is being put together: all of it takes effect at once, in
/// [`Journal::commit`](super::Journal::commit).
///
/// Within a transaction ranges are stored first, then words, then bits are set; of two changes of
/// one kind to one place the later counts. What is carried is in place before any of this.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    pub(super) words: Vec<(u64, u64)>,
    pub(super) bits: Vec<(u64, u64)>,
    pub(super) ranges: Vec<Bytes>,
    /// The bytes of all ranges.
    contents: Vec<u8>,
    /// The same as they are stored in the ring, with what they are headed by.
    range_bytes: usize,
    pub(super) relies_on_flushed: bool,
}

/// A range of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) off: u64,
    len: usize,
    /// Where its bytes are in the record's contents.
    at: usize,
    /// The commit stores it. Else it is in place already.
    pub(super) store: bool,
    /// A word of it that may change beside the journal.
    void: Option<u64>,
    /// All of it may.
    loose: bool,
}

impl Record {
    /// Changes nothing yet.
    pub fn new() -> Record {
        Record::default()
    }

    /// A word gets this value.
    pub fn set(&mut self, off: u64, value: u64) {
        self.words.push((off, value));
    }

    /// Bits of a word are set, and its others stay. Others may change beside the journal.
    pub fn set_bits(&mut self, off: u64, bits: u64) {
        self.bits.push((off, bits));
    }

    /// Bytes are stored.
    pub fn write(&mut self, off: u64, bytes: &[u8]) {
        self.push(off, bytes.len(), true, None)
            .copy_from_slice(bytes);
    }

    /// A range that is in place and private becomes durable with the transaction: the record has a
    /// copy of it, so it needs neither a flush nor a fence of its own.
    ///
    /// # Panics
    /// If the range is not in the pool.
    pub fn carry(&mut self, pool: &Pool, off: u64, len: u64) {
        pool.read(off, self.push(off, len as usize, false, None));
    }

    /// The same, but for a word that means nothing after a crash: it may change beside the journal,
    /// and a crash may bring back what it is now.
    ///
    /// # Panics
    /// As [`carry`](Record::carry).
    pub fn carry_but(&mut self, pool: &Pool, off: u64, len: u64, void: u64) {
        pool.read(off, self.push(off, len as usize, false, Some(void)));
    }

    /// The same for a range that may be stored to beside the journal, where a crash may bring back
    /// what it is now (J5). Whoever makes newer bytes of it durable does so by a later record, or
    /// [checkpoints](super::Journal::checkpoint) this one first.
    ///
    /// # Panics
    /// As [`carry`](Record::carry).
    pub fn carry_loose(&mut self, pool: &Pool, off: u64, len: u64) {
        self.carry(pool, off, len);
        if let Some(range) = self.ranges.last_mut() {
            range.loose = true;
        }
    }

    /// Another range; returns room for its bytes.
    fn push(&mut self, off: u64, len: usize, store: bool, void: Option<u64>) -> &mut [u8] {
        self.range_bytes += PAIR_BYTES + len.next_multiple_of(8);
        let at = self.contents.len();
        self.ranges.push(Bytes {
            off,
            len,
            at,
            store,
            void,
            loose: false,
        });
        self.contents.resize(at + len, 0);
        &mut self.contents[at..]
    }

    /// The bytes of a range.
    pub(super) fn bytes(&self, range: &Bytes) -> &[u8] {
        &self.contents[range.at..range.at + range.len]
    }

    /// It changes nothing, and keeps its memory for what it is to change next.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.bits.clear();
        self.ranges.clear();
        self.contents.clear();
        (self.range_bytes, self.relies_on_flushed) = (0, false);
    }

    /// Bytes of memory that it keeps, about.
    pub(super) fn memory(&self) -> usize {
        let pairs = self.words.capacity() + self.bits.capacity();
        PAIR_BYTES * pairs + size_of::<Bytes>() * self.ranges.capacity() + self.contents.capacity()
    }

    /// What this publishes was flushed by the committing thread, and not fenced: the commit fences
    /// it before the record can become durable. Costs a fence; what is carried needs none.
    pub fn rely_on_flushed(&mut self) {
        self.relies_on_flushed = true;
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.bits.is_empty() && self.ranges.is_empty()
    }

    /// Words that it stores, or sets bits in.
    pub fn words(&self) -> usize {
        self.words.len() + self.bits.len()
    }

    /// Lines that it takes in the ring.
    pub fn lines(&self) -> u64 {
        let pairs = PAIR_BYTES * self.words();
        (HEADER_BYTES + pairs + self.range_bytes).div_ceil(LINE_BYTES) as u64
    }

    /// Lines that it changes, as runs, in no order.
    pub(super) fn home(&self) -> impl Iterator<Item = Range<u64>> {
        let words = self.words.iter().chain(&self.bits);
        let words = words.map(|&(off, _)| off / LINE..off / LINE + 1);
        let ranges = self.ranges.iter();
        let ranges = ranges.map(|r| r.off / LINE..r.end().div_ceil(LINE));
        words.chain(ranges)
    }

    /// What nobody may store to beside the journal while it is live: words, and which of their
    /// bytes.
    pub(super) fn covers(&self) -> impl Iterator<Item = (u64, Mask)> {
        let words = self.words.iter().map(|&(off, _)| (off, Mask::MAX));
        let strict = self.ranges.iter().filter(|range| !range.loose);
        let ranges = strict.flat_map(|range| {
            let words = (range.off & !7..range.end()).step_by(8);
            let words = words.map(|word| (word, within(word, range.off..range.end())));
            words.filter(|&(word, _)| Some(word) != range.void)
        });
        words.chain(ranges)
    }

    /// What it stores, as whole words; `None` if it has anything else. Other bytes of these words
    /// are as they are in the pool, and nobody changes them meanwhile.
    pub(super) fn as_words(&self, pool: &Pool) -> Option<Vec<(u64, u64)>> {
        if !self.bits.is_empty() || self.ranges.iter().any(|range| !range.store) {
            return None;
        }
        if self.ranges.is_empty() {
            return Some(self.words.clone());
        }
        let mut words = BTreeMap::new();
        for range in &self.ranges {
            merge_bytes(pool, range.off, self.bytes(range), &mut words);
        }
        words.extend(self.words.iter().copied());
        Some(words.into_iter().collect())
    }

    /// What it changes: offsets and lengths.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        let words = self
            .words
            .iter()
            .chain(&self.bits)
            .map(|&(off, _)| (off, 8));
        let ranges = self.ranges.iter();
        words.chain(ranges.map(|range| (range.off, range.len as u64)))
    }

    /// The words that it changes, whole or in part.
    pub(super) fn targets(&self) -> impl Iterator<Item = u64> {
        let words = self.words.iter().chain(&self.bits).map(|&(off, _)| off);
        let ranges = self
            .ranges
            .iter()
            .flat_map(|range| (range.off & !7..range.end()).step_by(8));
        words.chain(ranges)
    }

    /// Its bytes for this position, into `out`.
    pub(super) fn encode(&self, nonce: u64, position: u64, out: &mut Vec<u8>) {
        let mut put = |word: u64| out.extend_from_slice(&word.to_le_bytes());
        put(0);
        put(position);
        put(self.words.len() as u64 | (self.bits.len() as u64) << 32);
        put(self.range_bytes as u64);
        for &(off, value) in self.words.iter().chain(&self.bits) {
            put(off);
            put(value);
        }
        // What is carried was in place before anything is stored, as replay then has it: a line of
        // a file may be carried of which the record stores some bytes.
        let carried = self.ranges.iter().filter(|range| !range.store);
        let stored = self.ranges.iter().filter(|range| range.store);
        for range in carried.chain(stored) {
            out.extend_from_slice(&range.off.to_le_bytes());
            out.extend_from_slice(&(range.len as u64).to_le_bytes());
            out.extend_from_slice(self.bytes(range));
            out.resize(out.len().next_multiple_of(8), 0);
        }
        out.resize(self.lines() as usize * LINE_BYTES, 0);
        let checksum = checksum(out, nonce);
        out[..8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads a record of which `bytes` has all lines; `None` if it was not committed.
    pub(super) fn decode(bytes: &[u8], nonce: u64, position: u64) -> Option<Record> {
        let start = Start::read(bytes.get(..HEADER_BYTES)?)?;
        let is_whole = start.checksum == checksum(bytes, nonce) || injected(Fault::TornReplayed);
        if start.position != position || bytes.len() as u64 != start.lines()? * LINE || !is_whole {
            return None;
        }
        let (pairs, ranges) = bytes[HEADER_BYTES..].split_at(start.pairs() * PAIR_BYTES);
        let mut pairs = pairs.chunks_exact(PAIR_BYTES).map(pair);
        let mut record = Record {
            words: pairs.by_ref().take(start.words).collect(),
            bits: pairs.collect(),
            ..Record::default()
        };
        let mut rest = &ranges[..start.range_bytes];
        while let Some((header, bytes)) = rest.split_at_checked(PAIR_BYTES) {
            let (off, len) = pair(header);
            let len = usize::try_from(len).ok()?;
            record.write(off, bytes.get(..len)?);
            rest = bytes.get(len.checked_next_multiple_of(8)?..)?;
        }
        (record.range_bytes == start.range_bytes).then_some(record)
    }
}

impl Bytes {
    /// Behind its last byte.
    fn end(&self) -> u64 {
        self.off.saturating_add(self.len as u64)
    }
}

impl FromIterator<(u64, u64)> for Record {
    /// Stores words (offset, value).
    fn from_iter<T: IntoIterator<Item = (u64, u64)>>(words: T) -> Record {
        Record {
            words: words.into_iter().collect(),
            ..Record::default()
        }
    }
}

/// The first words of a record, not to be believed before the checksum is.
pub(super) struct Start {
    checksum: u64,
    position: u64,
    words: usize,
    bits: usize,
    range_bytes: usize,
}

impl Start {
    pub(super) fn read(bytes: &[u8]) -> Option<Start> {
        let mut words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&b| u64::from_le_bytes(b));
        let mut next = || words.next();
        let (checksum, position, counts) = (next()?, next()?, next()?);
        Some(Start {
            checksum,
            position,
            words: counts as u32 as usize,
            bits: (counts >> 32) as usize,
            range_bytes: usize::try_from(next()?).ok()?,
        })
    }

    fn pairs(&self) -> usize {
        self.words + self.bits
    }

    /// Lines of the whole record, if such a number can be.
    pub(super) fn lines(&self) -> Option<u64> {
        let pairs = self.pairs().checked_mul(PAIR_BYTES)?;
        let bytes = pairs.checked_add(self.range_bytes)?;
        Some(bytes.checked_add(HEADER_BYTES)?.div_ceil(LINE_BYTES) as u64)
    }
}

fn checksum(bytes: &[u8], nonce: u64) -> u64 {
    xxh3_64_with_seed(&bytes[8..], nonce)
}

fn pair(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    (word(0), word(8))
}

/// Which bytes of a word are in a range.
fn within(word: u64, range: Range<u64>) -> Mask {
    let below = |end: u64| (1u16 << end.saturating_sub(word).min(8)) - 1;
    (below(range.end) & !below(range.start)) as Mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        let mut record = Record::new();
        record.set(4096, 7);
        record.set_bits(8192, 5);
        record.write(12290, b"odd");
        record.write(16384, &[9; 200]);
        record
    }

    #[test]
    fn a_record_is_read_as_it_was_written_at_its_position_alone() {
        for record in [Record::new(), sample()] {
            let mut bytes = Vec::new();
            record.encode(1, 2, &mut bytes);
            assert_eq!(bytes.len() as u64, record.lines() * LINE);
            assert_eq!(Record::decode(&bytes, 1, 2), Some(record));
            assert_eq!(Record::decode(&bytes, 1, 3), None);
            assert_eq!(Record::decode(&bytes, 2, 2), None);
        }
    }

    #[test]
    fn no_flipped_bit_and_no_length_is_believed() {
        let mut bytes = Vec::new();
        sample().encode(1, 2, &mut bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bytes, 1, 2), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..len], 1, 2), None);
        }
    }

    #[test]
    fn a_checksum_that_fits_nonsense_does_not_make_it_sense() {
        let mut bytes = Vec::new();
        sample().encode(1, 2, &mut bytes);
        for word in 2..bytes.len() / 8 {
            for value in [0, 1, 1 << 32, u64::MAX, u64::MAX - 7] {
                let mut bytes = bytes.clone();
                bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
                let checksum = checksum(&bytes, 1);
                bytes[..8].copy_from_slice(&checksum.to_le_bytes());
                if let Some(record) = Record::decode(&bytes, 1, 2) {
                    assert_eq!(record.lines() * LINE, bytes.len() as u64);
                }
            }
        }
    }

    #[test]
    fn the_lines_and_words_of_a_range_are_those_that_it_touches() {
        let mut record = Record::new();
        record.write(126, &[1; 4]);
        assert!(record.home().eq(std::iter::once(1..3)));
        assert_eq!(record.targets().collect::<Vec<_>>(), [120, 128]);
    }
}

//! Lines to be durable before a commit, gathered so that each is flushed once.
//!
//! A batch changes the same lines of the maps for many inodes and entries, and lines next to each
//! other. What it has stored is flushed together, before the fence that orders it. If that is
//! little the record of the commit carries it instead, and needs no fence before its own.

use crate::layout::{LINE, PAGE};
use crate::logged::Logged;
use pmem::{Domain, Pool, Record};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes of parts that a record carries on a disk, and those that it may in a journal of any size.
/// These are lines here and there, each of which would be written in a sector of its own first:
/// more bytes, and more requests, than a part takes in the record.
const PARTS_MAX: u64 = 256 << 10;
const PARTS_MIN: u64 = 16 << 10;

/// Bytes of contents of files that a record carries, besides. More is written in place before the
/// record: a flush costs as much as to write so many bytes twice (docs/design/page.md, section 6).
const DATA_MAX: u64 = 64 << 10;

/// A record may take one part in so many of the journal for parts, and one for contents.
const RING_PARTS: u64 = 8;

/// A record that carries anything takes one part in so many of the journal, at most.
const RECORD_PARTS: u64 = 2;

/// Lines that were stored to and are to be durable.
#[derive(Default)]
#[must_use]
pub struct Flushes {
    /// In any order, perhaps overlapping: line numbers, but for those of contents of files.
    runs: SmallVec<[Range<u64>; 8]>,
    /// The same as parts of a record, which takes so many bytes for them. They are kept while these
    /// are not more than a record may carry.
    parts: SmallVec<[Part; 8]>,
    bytes: u64,
    kept_max: u64,
    /// Contents of files: where, and how many bytes.
    data: Vec<(u64, u64)>,
    data_bytes: u64,
    /// Something is among them that no record may carry.
    only_lines: bool,
}

/// What a record carries.
enum Part {
    /// Bytes that nobody changes but by further commits, but for a word that is void after a crash.
    Bytes {
        at: u64,
        len: u64,
        void: Option<u64>,
    },
    /// Bits of a word that are set.
    Bits { at: u64, mask: u64 },
    /// A word that is zero.
    Zero { at: u64 },
}

/// Bytes of parts that a record may carry; a fence costs as much as a longer one. What is durable
/// in domain `cache` anyway nobody has to carry.
fn parts_max(domain: Domain) -> u64 {
    match domain {
        Domain::Line => 8 * LINE,
        Domain::Page => PARTS_MAX,
        Domain::Cache => 0,
    }
}

/// Whether a record carries so many bytes of parts and of contents besides what it has, in a
/// journal of so many.
fn may_carry(domain: Domain, record: &Record, [parts, data]: [u64; 2], journal: u64) -> bool {
    match domain {
        Domain::Line => 16 * record.words() as u64 + parts <= parts_max(domain) && data == 0,
        Domain::Page => {
            let part = journal / RING_PARTS;
            parts <= part.clamp(PARTS_MIN, PARTS_MAX)
                && data <= part.min(DATA_MAX)
                && record.lines() * LINE + parts + data <= journal / RECORD_PARTS
        }
        Domain::Cache => record.is_empty() && parts + data == 0,
    }
}

impl Flushes {
    /// None yet, of which a record may carry some.
    pub fn for_record(domain: Domain) -> Flushes {
        Flushes {
            kept_max: parts_max(domain),
            ..Flushes::default()
        }
    }

    /// A range of bytes is to be flushed: it may change beside the journal.
    pub fn add(&mut self, at: u64, len: u64) {
        self.only_lines |= len > 0;
        self.add_lines(at, len);
    }

    /// A range of bytes is to be durable, which changes by commits alone from now on; but for a
    /// word that is void after a crash.
    pub fn add_bytes(&mut self, at: u64, len: u64, void: Option<u64>) {
        self.add_lines(at, len);
        if len > 0 {
            self.add_part(Part::Bytes { at, len, void }, 16 + len);
        }
    }

    /// Contents of a file are to be durable. They may change beside the journal: see
    /// [`pmem::Record::carry_loose`].
    pub fn add_data(&mut self, at: u64, len: u64) {
        if len > 0 {
            self.data_bytes += 16 + len;
            self.data.push((at, len));
        }
    }

    /// Bits are set in a word, and are to be durable.
    pub fn add_bits(&mut self, at: u64, mask: u64) {
        self.add_lines(at, 8);
        let same = |part: &&mut Part| matches!(part, Part::Bits { at: there, .. } if *there == at);
        match self.parts.iter_mut().rev().take(4).find(same) {
            Some(Part::Bits { mask: all, .. }) => *all |= mask,
            _ => self.add_part(Part::Bits { at, mask }, 16),
        }
    }

    /// A word is zero, and is to be durable.
    pub fn add_zero(&mut self, at: u64) {
        self.add_lines(at, 8);
        self.add_part(Part::Zero { at }, 16);
    }

    fn add_part(&mut self, part: Part, bytes: u64) {
        self.bytes += bytes;
        if !self.only_lines && self.bytes <= self.kept_max {
            self.parts.push(part);
        }
    }

    fn add_lines(&mut self, at: u64, len: u64) {
        if len == 0 {
            return;
        }
        let run = at / LINE..(at + len).div_ceil(LINE);
        match self.runs.last_mut() {
            Some(last) if run.start >= last.start && run.start <= last.end => {
                last.end = last.end.max(run.end);
            }
            _ => self.runs.push(run),
        }
    }

    /// Let a record of a pool carry all of them, if it may and that is not too much, in a journal
    /// of so many bytes. Nothing is carried by a record that has no word to change, unless a live
    /// one has some of these contents.
    pub fn carry(&self, pool: &Pool, record: &mut Record, journal: u64, logged: &Logged) -> bool {
        let (domain, bytes) = (pool.domain(), [self.bytes, self.data_bytes]);
        let all_kept = !self.only_lines && self.bytes <= self.kept_max;
        if !all_kept || !may_carry(domain, record, bytes, journal) {
            return false;
        }
        if record.is_empty() && self.parts.is_empty() && !self.is_logged(logged) {
            return false;
        }
        for part in &self.parts {
            match *part {
                Part::Bytes {
                    at,
                    len,
                    void: Some(void),
                } => record.carry_but(pool, at, len, void),
                Part::Bytes { at, len, .. } => record.carry(pool, at, len),
                Part::Bits { at, mask } => record.set_bits(at, mask),
                Part::Zero { at } => record.set(at, 0),
            }
        }
        for &(at, len) in &self.data {
            record.carry_loose(pool, at, len);
        }
        true
    }

    /// Whether live records have some of the contents: a crash would bring these back over what is
    /// flushed in place.
    pub fn is_logged(&self, logged: &Logged) -> bool {
        self.data
            .iter()
            .any(|&(at, len)| logged.has(pages(at, len)))
    }

    /// The pages that the contents are in.
    pub fn data_pages(&self) -> impl Iterator<Item = Range<u64>> {
        self.data.iter().map(|&(at, len)| pages(at, len))
    }

    /// All of both, of which one record may carry as much as of one of them.
    pub fn extend(&mut self, other: Flushes) {
        self.runs.extend(other.runs);
        self.bytes += other.bytes;
        self.parts.extend(other.parts);
        self.data.extend(other.data);
        self.data_bytes += other.data_bytes;
        self.only_lines |= other.only_lines;
    }

    /// Flush the contents of files now, unless live records have some of them. Whether there were
    /// any.
    pub fn run_contents(&mut self, pool: &Pool, logged: &Logged) -> bool {
        if self.data.is_empty() || self.is_logged(logged) {
            return false;
        }
        self.data_bytes = 0;
        let data = std::mem::take(&mut self.data);
        Flushes {
            data,
            ..Flushes::default()
        }
        .run(pool)
    }

    /// Flush all of them, each once, in ascending order. Whether there are any.
    pub fn run(self, pool: &Pool) -> bool {
        let runs = self.merged();
        for run in &runs {
            pool.flush(run.start * LINE, (run.end - run.start) * LINE);
        }
        !runs.is_empty()
    }

    /// The lines in ascending order, each once.
    pub fn merged(mut self) -> SmallVec<[Range<u64>; 8]> {
        for (at, len) in std::mem::take(&mut self.data) {
            self.add_lines(at, len);
        }
        self.runs.sort_unstable_by_key(|run| run.start);
        self.runs.dedup_by(|next, run| {
            let joins = next.start <= run.end;
            if joins {
                run.end = run.end.max(next.end);
            }
            joins
        });
        self.runs
    }
}

/// The pages that a range of bytes is in.
fn pages(at: u64, len: u64) -> Range<u64> {
    at / PAGE..(at + len).div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_that_was_added_is_there_once() {
        let mut flushes = Flushes::default();
        for (at, len) in [
            (640, 1),
            (0, 64),
            (63, 2),
            (640, 64),
            (8, 8),
            (600, 8),
            (300, 0),
        ] {
            flushes.add(at, len);
        }
        assert_eq!(flushes.merged()[..], [0..2, 9..11]);
    }
}

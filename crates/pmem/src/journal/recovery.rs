//! What a process that died left in a journal, and putting it into place.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::area::{Area, Placed};
use super::record::Record;
use super::{Journal, JournalError, Recovered};
use crate::fault::{Fault, injected};
use crate::{Domain, MediumError, Pool};

/// What recovery reads of an area: visible, and perhaps not durable.
pub(super) struct Found {
    area: Area,
    head: u64,
    records: Vec<Placed>,
}

/// The same, durable: only this can be replayed.
pub(super) struct Durable(Found);

impl Found {
    pub(super) fn read(
        pool: &Pool,
        off: u64,
        len: u64,
        valid: impl Fn(u64) -> bool,
    ) -> Result<Found, JournalError> {
        let (area, head) = Area::open(pool, off, len)?;
        let mut records = area.records(pool, head, valid)?;
        if injected(Fault::LastForgotten) {
            records.pop();
        }
        Ok(Found {
            area,
            head,
            records,
        })
    }

    pub(super) fn recovered(&self) -> Recovered {
        let words = |found: &Placed| found.record.targets().count() as u64;
        Recovered {
            transactions: self.records.len() as u64,
            words: self.records.iter().map(words).sum(),
            lines: self.records.iter().map(|found| found.record.lines()).sum(),
        }
    }

    /// The words that replay changes, with their values after it.
    pub(super) fn words(&self, pool: &Pool) -> BTreeMap<u64, u64> {
        let mut words = BTreeMap::new();
        for Placed { record, .. } in &self.records {
            record.lay_over(&mut words, |off| pool.load(off));
        }
        words
    }

    /// A journal with nothing to replay, for a pool that is not changed.
    pub(super) fn unchanged(self, pool: &Arc<Pool>) -> Journal {
        Journal::at(pool, self.area, self.head)
    }

    /// In domain `page` opening the pool has synced all that is visible (M12, M15), and in `cache`
    /// it is durable (M9).
    pub(super) fn make_durable(self, pool: &Pool) -> Result<Durable, MediumError> {
        if pool.domain() == Domain::Line {
            self.area.flush_start(pool);
            for found in &self.records {
                self.area.flush_record(pool, found);
            }
            pool.fence()?;
        }
        Ok(Durable(self))
    }
}

impl Durable {
    /// Stores what all records change, and checkpoints these.
    pub(super) fn replay(self, pool: &Arc<Pool>) -> Result<Journal, MediumError> {
        let Found {
            area,
            head,
            records,
        } = self.0;
        let mut journal = Journal::at(pool, area, head);
        if injected(Fault::HeadFirst) {
            area.store_head(pool, records.last().map_or(head, Placed::end));
            pool.fence()?;
        }
        let pieces = records.iter().flat_map(|found| found.record.pieces());
        pool.prefetch_many(pieces);
        for mut found in records {
            let end = found.end();
            if injected(Fault::HalfReplayed) {
                found.record.words.pop();
            }
            for (off, len) in found.record.pieces() {
                pool.back(off, len)?;
            }
            journal.apply(&found.record, end);
        }
        journal.checkpoint()?;
        Ok(journal)
    }
}

impl Record {
    /// Lays what the record changes over `words`, whose others are as `load` says.
    fn lay_over(&self, words: &mut BTreeMap<u64, u64>, load: impl Fn(u64) -> u64) {
        for range in &self.ranges {
            let (mut off, mut bytes) = (range.off, self.bytes(range));
            // Word by word: records hold whole pages.
            while !bytes.is_empty() {
                let within = (off & 7) as usize;
                let (now, later) = bytes.split_at(bytes.len().min(8 - within));
                let word = words.entry(off - within as u64);
                let word = word.or_insert_with_key(|&off| match now.len() {
                    8 => 0,
                    _ => load(off),
                });
                let mut all = word.to_le_bytes();
                all[within..within + now.len()].copy_from_slice(now);
                *word = u64::from_le_bytes(all);
                (off, bytes) = (off + now.len() as u64, later);
            }
        }
        words.extend(self.words.iter().copied());
        for &(off, bits) in &self.bits {
            *words.entry(off).or_insert_with(|| load(off)) |= bits;
        }
    }
}

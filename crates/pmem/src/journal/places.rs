//! The lines that live records change, until they are flushed.
//!
//! Lines are queued as records commit, and taken off the queue by chunks. A chunk is sorted and
//! merged, so a line that many records change is flushed once for all that are in the chunk, and a
//! chunk is small enough that to sort it takes nobody long. It is flushed in parts of any size:
//!
//! ```text
//! queued --take--> due --flush--> flushed, for a fence to make durable
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use crate::{LINE, Pool};

/// Lines in a chunk, or as many as one run has more.
pub(super) const CHUNK: u64 = 4096;

/// What live records change and was not flushed since.
#[derive(Default)]
pub(super) struct Places {
    /// Records of which not all is flushed: where each ends in the ring, and how many runs were
    /// ever queued up to it.
    records: VecDeque<(u64, u64)>,
    queued: VecDeque<Range<u64>>,
    /// Runs that were ever taken off the queue, and of these those that are flushed.
    taken: u64,
    flushed: u64,
    /// The chunk that is being flushed, the last line first.
    due: Vec<Range<u64>>,
}

impl Places {
    /// A record that ends there has changed these runs of lines.
    pub(super) fn add(&mut self, end: u64, runs: impl Iterator<Item = Range<u64>>) {
        let others = self.queued.len();
        for run in runs {
            let of_this = self.queued.len() > others;
            match self.queued.back_mut().filter(|_| of_this) {
                // Changes come in order mostly: neighbours become one run.
                Some(last) if (last.start..=last.end).contains(&run.start) => {
                    last.end = last.end.max(run.end);
                }
                _ => self.queued.push_back(run),
            }
        }
        let runs = self.taken + self.queued.len() as u64;
        self.records.push_back((end, runs));
    }

    /// Flushes at most so many lines, those of the oldest records first. Returns the end of the
    /// newest record of which all became flushed, if any did.
    pub(super) fn flush(&mut self, pool: &Pool, lines: u64) -> Option<u64> {
        let mut left = lines;
        while left > 0
            && let Some(run) = self.next_due()
        {
            let count = left.min(run.end - run.start);
            pool.flush(run.start * LINE, count * LINE);
            run.start += count;
            left -= count;
        }
        if self.next_due().is_none() {
            self.flushed = self.taken;
        }
        let mut end = None;
        while let Some(&(record, runs)) = self.records.front()
            && runs <= self.flushed
        {
            self.records.pop_front();
            end = Some(record);
        }
        end
    }

    /// Nothing is left to be flushed.
    pub(super) fn clear(&mut self) {
        *self = Places::default();
    }

    /// What is to be flushed next.
    fn next_due(&mut self) -> Option<&mut Range<u64>> {
        while self.due.pop_if(|run| run.is_empty()).is_some() {}
        if self.due.is_empty() {
            self.flushed = self.taken;
            self.take();
        }
        self.due.last_mut()
    }

    /// Takes the next chunk off the queue.
    fn take(&mut self) {
        let mut lines = 0;
        while lines < CHUNK
            && let Some(run) = self.queued.pop_front()
        {
            lines += run.end - run.start;
            self.taken += 1;
            self.due.push(run);
        }
        self.due
            .sort_unstable_by_key(|run| std::cmp::Reverse(run.start));
        self.due.dedup_by(|lower, run| {
            let joins = run.start <= lower.end;
            if joins {
                *run = lower.start..run.end.max(lower.end);
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use std::iter::once;

    fn pool() -> Pool {
        Pool::anonymous(1 << 20, &Options::default()).expect("memory")
    }

    #[test]
    fn a_line_of_many_records_is_flushed_once_and_records_are_done_in_order() {
        let pool = pool();
        let mut places = Places::default();
        places.add(10, [5..6, 6..8, 1..2].into_iter());
        places.add(20, [5..6, 30..40].into_iter());
        assert_eq!(places.flush(&pool, 3), None);
        // Behind what is being flushed.
        places.add(30, once(1..2));
        assert_eq!(places.flush(&pool, 11), Some(20));
        assert_eq!(pool.stats().flushed_lines, 1 + 3 + 10);
        assert_eq!(places.flush(&pool, u64::MAX), Some(30));
        assert_eq!(pool.stats().flushed_lines, 15);
        assert_eq!(places.flush(&pool, u64::MAX), None);
    }

    #[test]
    fn a_record_that_changes_nothing_is_flushed_with_the_ones_before() {
        let pool = pool();
        let mut places = Places::default();
        places.add(1, std::iter::empty());
        assert_eq!(places.flush(&pool, 1), Some(1));
        places.add(2, once(7..8));
        places.add(3, std::iter::empty());
        assert_eq!(places.flush(&pool, 1), Some(3));
    }
}

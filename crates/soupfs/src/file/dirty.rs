//! Which lines of the pool a file's callers have stored to in place: what is to be flushed, and
//! little else.
//!
//! Ranges are kept as they come, and put in order when they have doubled; so adding one takes a few
//! nanoseconds, whatever the pattern. How many there are is bounded twice. A file that has [`MANY`]
//! is to be persisted by whoever added the last ([`Dirty::is_full`]), which is exact. Should that
//! not happen, twice as many are made half as many by closing the smallest gaps, never by taking
//! the hull of all.

use crate::layout::LINE;
use std::ops::Range;

/// Ranges of one file from which on it is persisted: 1 MiB of DRAM.
pub const MANY: usize = 1 << 16;
/// Ranges below which they are not put in order.
const FEW: usize = 256;

/// Ranges of bytes of the pool, of whole lines.
#[derive(Default)]
pub struct Dirty {
    ranges: Vec<Range<u64>>,
    /// So many from the beginning on are in order, and do not touch.
    ordered: usize,
}

impl Dirty {
    /// A range was stored to.
    #[inline]
    pub fn add(&mut self, range: Range<u64>) {
        let range = range.start / LINE * LINE..range.end.next_multiple_of(LINE);
        let is_new = self.ordered < self.ranges.len();
        if let Some(last) = self.ranges.last_mut() {
            if range.start >= last.start && range.end <= last.end {
                return;
            }
            if range.start == last.end && is_new {
                last.end = range.end;
                return;
            }
        }
        if self.ranges.len() >= self.ordered + self.ordered.clamp(FEW, MANY / 2) {
            self.put_in_order();
        }
        self.ranges.push(range);
    }

    /// Whether it is time to persist the file.
    pub fn is_full(&self) -> bool {
        self.ordered >= MANY
    }

    /// Whether nothing was stored to.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All ranges, in any order.
    pub fn take(&mut self) -> Vec<Range<u64>> {
        self.ordered = 0;
        std::mem::take(&mut self.ranges)
    }

    #[cold]
    fn put_in_order(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.close_gaps(0);
        if self.ranges.len() > 2 * MANY {
            let gap = |pair: &[Range<u64>]| pair[1].start - pair[0].end;
            let mut gaps: Vec<u64> = self.ranges.windows(2).map(gap).collect();
            let middle = gaps.len() / 2;
            let (_, &mut median, _) = gaps.select_nth_unstable(middle);
            self.close_gaps(median);
        }
        self.ordered = self.ranges.len();
        assert!(self.ordered <= 2 * MANY);
    }

    /// Make one of neighbours that are not farther apart than this.
    fn close_gaps(&mut self, gap: u64) {
        self.ranges.dedup_by(|next, range| {
            let joins = next.start <= range.end + gap;
            if joins {
                range.end = range.end.max(next.end);
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Random;

    fn lines(ranges: Vec<Range<u64>>) -> std::collections::BTreeSet<u64> {
        let lines = |range: Range<u64>| range.start / LINE..range.end / LINE;
        ranges.into_iter().flat_map(lines).collect()
    }

    #[test]
    fn what_was_added_is_there_and_nothing_else() {
        let mut random = Random::new(1);
        for (span, len) in [
            (1 << 16, 1),
            (1 << 24, 100),
            (1 << 30, 4096),
            (1 << 20, 9000),
        ] {
            let (mut dirty, mut all) = (Dirty::default(), Vec::new());
            for _ in 0..20_000 {
                let at = random.below(span);
                dirty.add(at..at + len);
                all.push(at / LINE * LINE..(at + len).next_multiple_of(LINE));
            }
            assert_eq!(lines(dirty.take()), lines(all), "{len} bytes within {span}");
        }
    }

    #[test]
    fn ranges_without_end_take_bounded_memory_and_only_the_smallest_gaps_close() {
        let mut dirty = Dirty::default();
        // Pairs of lines with a gap of a line, far from the next pair.
        for i in 0..10 * MANY as u64 {
            let at = i / 2 * (1 << 20) + i % 2 * 2 * LINE;
            dirty.add(at..at + 1);
            assert!(dirty.ranges.len() <= 5 * MANY / 2);
            assert!(!dirty.is_full() || i >= MANY as u64);
        }
        assert!(dirty.is_full());
        let taken = dirty.take();
        assert!(dirty.is_empty() && !dirty.is_full());
        // Closing stops at the median gap, so some pairs of pairs have become one at the most.
        let longest = taken.iter().map(|range| range.end - range.start).max();
        assert!(longest >= Some(3 * LINE));
        assert!(taken.len() >= MANY, "{} ranges", taken.len());
    }
}

//! Ranges that were flushed, and wait for a fence.

use crate::gather::Collection;

/// A list shorter than this is not tidied.
const TIDY_MIN: usize = 1 << 10;

/// Ranges of bytes.
#[derive(Default)]
pub(super) struct Ranges {
    /// First byte and end.
    ranges: Vec<(u64, u64)>,
    /// How many there were when the list was last tidied.
    tidied: usize,
}

impl Ranges {
    /// Adds a range that is not empty.
    pub(super) fn add(&mut self, off: u64, len: u64) {
        if let Some((start, end)) = self.ranges.last_mut()
            && *start <= off
            && off <= *end
        {
            *end = (*end).max(off + len);
            return;
        }
        self.ranges.push((off, off + len));
        if self.ranges.len() >= TIDY_MIN.max(2 * self.tidied) {
            self.tidy();
        }
    }

    /// The ranges in ascending order, without overlap.
    pub(super) fn into_sorted(mut self) -> Vec<(u64, u64)> {
        self.tidy();
        self.ranges
    }

    fn tidy(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|later, earlier| {
            let touches = later.0 <= earlier.1;
            if touches {
                earlier.1 = earlier.1.max(later.1);
            }
            touches
        });
        self.tidied = self.ranges.len();
    }
}

impl Collection for Ranges {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn merge(&mut self, mut other: Ranges) {
        self.ranges.append(&mut other.ranges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_merged_and_do_not_pile_up() {
        let mut ranges = Ranges::default();
        for (off, len) in [(100, 10), (0, 5), (3, 7), (110, 1), (200, 1)] {
            ranges.add(off, len);
        }
        assert_eq!(ranges.into_sorted(), [(0, 10), (100, 111), (200, 201)]);
        let mut again = Ranges::default();
        for i in 0..100_000 {
            again.add(i % 3 * 1000, 8);
        }
        assert!(again.ranges.len() <= TIDY_MIN);
    }
}

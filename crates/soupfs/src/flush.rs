//! Lines to be flushed, gathered so that each is flushed once.
//!
//! A batch changes the same lines of the maps for many inodes and entries, and lines next to each
//! other. What it has stored is flushed together, before the fence that orders it.

use crate::layout::LINE;
use pmem::Pool;
use std::ops::Range;

/// Lines that were stored to and are to be flushed.
#[derive(Default)]
#[must_use]
pub struct Flushes {
    /// In any order, perhaps overlapping: line numbers.
    runs: Vec<Range<u64>>,
}

impl Flushes {
    /// A range of bytes is to be flushed.
    pub fn add(&mut self, at: u64, len: u64) {
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

    /// Flush all of them, each once, in ascending order. Whether there are any.
    pub fn run(self, pool: &Pool) -> bool {
        let runs = self.merged();
        for run in &runs {
            pool.flush(run.start * LINE, (run.end - run.start) * LINE);
        }
        !runs.is_empty()
    }

    /// The lines in ascending order, each once.
    pub fn merged(mut self) -> Vec<Range<u64>> {
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
        assert_eq!(flushes.merged(), [0..2, 9..11]);
    }
}

//! What a transaction has written and not committed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a file that nobody else sees yet: pieces by offset, none empty, apart from each other.
#[derive(Default)]
pub struct Pending {
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Pending {
    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of memory for contents.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the file ends, if nothing else has more.
    pub fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(at, piece)| at + piece.len() as u64)
    }

    /// The pieces, in ascending order.
    pub fn parts(&self) -> Vec<(u64, &[u8])> {
        let parts = self.pieces.iter();
        parts.map(|(&at, piece)| (at, piece.as_slice())).collect()
    }

    /// All of it is void, or committed.
    pub fn clear(&mut self) {
        *self = Pending::default();
    }

    /// Write.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        // A page that is written again, as most are.
        if let Some(piece) = self.pieces.get_mut(&at)
            && piece.len() == data.len()
        {
            piece.copy_from_slice(data);
            return;
        }
        if data.is_empty() {
            return;
        }
        self.remove(at..at + data.len() as u64);
        self.bytes += data.len();
        self.pieces.insert(at, data.to_vec());
    }

    /// Cut off what is behind `size`.
    pub fn truncate(&mut self, size: u64) {
        self.remove(size..u64::MAX);
    }

    /// Put what is pending over what was read of the file from `at` on.
    pub fn lay_over(&self, at: u64, buf: &mut [u8]) {
        let end = at + buf.len() as u64;
        for (start, piece) in self.overlapping(at..end) {
            let (from, to) = (start.max(at), (start + piece.len() as u64).min(end));
            let data = &piece[(from - start) as usize..(to - start) as usize];
            buf[(from - at) as usize..(to - at) as usize].copy_from_slice(data);
        }
    }

    /// Pieces that have bytes in a range.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        let before = self.pieces.range(..range.start).next_back();
        let before = before.filter(|(at, piece)| *at + piece.len() as u64 > range.start);
        let within = self.pieces.range(range);
        before
            .into_iter()
            .chain(within)
            .map(|(&at, piece)| (at, piece))
    }

    /// Take a range out of the pieces.
    fn remove(&mut self, range: Range<u64>) {
        let overlapping: Vec<u64> = self.overlapping(range.clone()).map(|(at, _)| at).collect();
        for at in overlapping {
            let mut piece = self.pieces.remove(&at).unwrap_or_default();
            self.bytes -= piece.len();
            let end = at + piece.len() as u64;
            if end > range.end {
                let behind = piece.split_off((range.end - at) as usize);
                self.bytes += behind.len();
                self.pieces.insert(range.end, behind);
            }
            if at < range.start {
                piece.truncate((range.start - at) as usize);
                self.bytes += piece.len();
                self.pieces.insert(at, piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside an array of bytes, in a sequence that a seed repeats.
    fn beside_an_array(seed: u64) {
        let mut random = seed;
        let mut below = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % n
        };
        let (mut pending, mut array) = (Pending::default(), [None; 100]);
        for step in 0..200 {
            let at = below(90);
            let len = below(10) + 1;
            if below(8) == 0 {
                pending.truncate(at);
                array[at as usize..].fill(None);
            } else {
                pending.write(at, &vec![step; len as usize]);
                array[at as usize..(at + len) as usize].fill(Some(step));
            }
            let mut read = [255; 100];
            pending.lay_over(0, &mut read);
            let expected = array.map(|byte| byte.unwrap_or(255));
            assert_eq!(read, expected, "seed {seed}, step {step}");
            let there = array.iter().flatten().count();
            assert_eq!(pending.bytes(), there, "seed {seed}, step {step}");
            let end = array.iter().rposition(Option::is_some);
            assert_eq!(pending.end(), end.map_or(0, |at| at as u64 + 1));
            let parts = pending.parts();
            assert!(parts.iter().all(|part| !part.1.is_empty()));
            let apart = |pair: &[(u64, &[u8])]| pair[0].0 + pair[0].1.len() as u64 <= pair[1].0;
            assert!(parts.windows(2).all(apart));
        }
    }

    #[test]
    fn what_is_pending_is_what_was_written_last() {
        (0..200).for_each(beside_an_array);
    }
}

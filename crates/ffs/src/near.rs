//! Maps from numbers of blocks and inodes, in which those of neighbours lie next to each other.
//!
//! Who makes many files or writes a long one uses numbers in turn. A hash that scatters them takes
//! a line of the processor's cache for each; this one keeps runs of [`RUN`] together.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map from a number.
pub type NearMap<K, V> = HashMap<K, V, BuildHasherDefault<Near>>;
/// A set of numbers.
pub type NearSet<K> = HashSet<K, BuildHasherDefault<Near>>;

/// Bits of a number that stay as they are: it is one of so many neighbours.
const RUN_BITS: u32 = 6;
/// Numbers that lie next to each other.
pub const RUN: u64 = 1 << RUN_BITS;

/// Hashes one number. Of the result the table takes the low bits for a place, and the high ones to
/// tell numbers in places side by side apart: both differ among neighbours.
#[derive(Debug, Default)]
pub struct Near(u64);

impl Hasher for Near {
    fn write(&mut self, _: &[u8]) {
        unreachable!("numbers alone are hashed");
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let within = number % RUN;
        // That of the golden ratio: Fibonacci hashing, whose high bits are good.
        let run = (number / RUN)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(32);
        self.0 = (run & !(RUN - 1) | within) ^ within << (u64::BITS - RUN_BITS);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        let mut hasher = Near::default();
        hasher.write_u64(number);
        hasher.finish()
    }

    #[test]
    fn neighbours_are_next_to_each_other_and_told_apart() {
        for first in [0, RUN, 77 * RUN, 1 << 40] {
            let all = (first..first + RUN).map(hash);
            let places: Vec<u64> = all.clone().map(|hash| hash % (1 << 20)).collect();
            assert!(
                places.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "{first}"
            );
            let high: HashSet<u64> = all.map(|hash| hash >> 57).collect();
            assert!(high.len() >= RUN as usize / 2, "{first}");
        }
    }

    /// Numbers with the same distance, as those of what each group has, do not meet.
    #[test]
    fn numbers_far_apart_are_scattered() {
        for step in [64, 512, 8192, 32768, 32768 * 16, 1 << 32] {
            let places: HashSet<u64> = (0..1000)
                .map(|i| hash(i * step) % (1 << 14) / RUN)
                .collect();
            // Of 256 runs chance would have all but five.
            assert!(places.len() > 200, "step {step}: {} of 256", places.len());
        }
    }
}

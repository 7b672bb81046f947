//! What several families do to their targets.

pub mod filebench;
pub mod fileset;
pub mod fxmark;
pub mod names;
pub mod paced;
pub mod postmark;
pub mod requests;
pub mod small_files;
pub mod threads;
pub mod tree;
pub mod whole;

use std::ffi::CString;

use crate::target::Result;

/// `count` names with a prefix, in order of their numbers.
pub fn names(prefix: &str, count: u64) -> Result<Vec<CString>> {
    let name = |number| CString::new(format!("{prefix}{number:07}"));
    Ok((0..count)
        .map(name)
        .collect::<std::result::Result<_, _>>()?)
}

/// The `i`th of `count` things in an order without locality, each once.
pub fn scattered(i: u64, count: u64) -> u64 {
    // A prime that no count here is a multiple of.
    i.wrapping_mul(2_654_435_761) % count
}

/// Numbers that look random and are the same each time (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Any number of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: no division, and no bias that matters here.
        ((u128::from(self.number()) * u128::from(end)) >> 64) as u64
    }

    /// Above 0, at most 1.
    fn part(&mut self) -> f64 {
        ((self.number() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// From a gamma distribution with shape 1.5 and this mean, as Filebench draws sizes of files:
    /// at least 1. The sum of an exponential part (shape 1) and half the square of a normal one
    /// (0.5).
    pub fn gamma(&mut self, mean: f64) -> u64 {
        let exponential = -self.part().ln();
        let angle = std::f64::consts::TAU * self.part();
        let normal = (-2.0 * self.part().ln()).sqrt() * angle.cos();
        let sum = exponential + normal * normal / 2.0;
        ((sum / 1.5 * mean).round() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_spread_of_a_gamma_distribution() {
        let mut random = Random::new(1);
        let sizes: Vec<f64> = (0..100_000).map(|_| random.gamma(1000.0) as f64).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let square = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>();
        let deviation = (square / sizes.len() as f64).sqrt();
        assert!((980.0..1020.0).contains(&mean), "{mean}");
        // The mean over the root of the shape.
        assert!((790.0..845.0).contains(&deviation), "{deviation}");
    }

    #[test]
    fn numbers_below_an_end_reach_all_of_them() {
        let mut random = Random::new(7);
        let mut seen = [false; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] = true);
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn scattered_reaches_each_thing_once() {
        let mut seen: Vec<u64> = (0..1000).map(|i| scattered(i, 1000)).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000));
    }
}

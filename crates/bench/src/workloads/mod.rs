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

use block::Random;

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

/// Above 0, at most 1.
fn part(random: &mut Random) -> f64 {
    ((random.number() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// From a gamma distribution with shape 1.5 and this mean, as Filebench draws sizes of files:
/// at least 1. The sum of an exponential part (shape 1) and half the square of a normal one
/// (0.5).
pub fn gamma(random: &mut Random, mean: f64) -> u64 {
    let exponential = -part(random).ln();
    let angle = std::f64::consts::TAU * part(random);
    let normal = (-2.0 * part(random).ln()).sqrt() * angle.cos();
    let sum = exponential + normal * normal / 2.0;
    ((sum / 1.5 * mean).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_spread_of_a_gamma_distribution() {
        let mut random = Random::new(1);
        let sizes: Vec<f64> = (0..100_000)
            .map(|_| gamma(&mut random, 1000.0) as f64)
            .collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let square = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>();
        let deviation = (square / sizes.len() as f64).sqrt();
        assert!((980.0..1020.0).contains(&mean), "{mean}");
        // The mean over the root of the shape.
        assert!((790.0..845.0).contains(&deviation), "{deviation}");
    }

    #[test]
    fn scattered_reaches_each_thing_once() {
        let mut seen: Vec<u64> = (0..1000).map(|i| scattered(i, 1000)).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000));
    }
}

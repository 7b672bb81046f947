//! Figures from several rounds.

use serde::{Deserialize, Serialize};

/// What a confidence interval should cover.
const LEVEL: f64 = 0.95;

/// The same figure from several rounds. Tables show the median, and the range.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series(Vec<f64>);

/// Where the median of a figure lies, as far as its rounds tell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The median of the rounds.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// How often such an interval contains the true median: a part of one.
    pub covers: f64,
}

impl Series {
    /// Add a round's figure.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Add the rounds of another one.
    pub fn extend(&mut self, other: &Series) {
        self.0.extend(&other.0);
    }

    /// The rounds' figures, in order.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// No rounds.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle one; the mean of the middle two; zero without any.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => 0.0,
            n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
        }
    }

    /// The least and the greatest; zeros without any.
    pub fn range(&self) -> (f64, f64) {
        let sorted = self.sorted();
        match (sorted.first(), sorted.last()) {
            (Some(&least), Some(&greatest)) => (least, greatest),
            _ => (0.0, 0.0),
        }
    }

    /// The least, and so what the machine does undisturbed; zero without any.
    pub fn least(&self) -> f64 {
        self.range().0
    }

    /// Round by round, this over `base`: both ran in the same round, so that what disturbed one has
    /// likely disturbed the other.
    pub fn over(&self, base: &Series) -> Series {
        let pairs = self.0.iter().zip(&base.0);
        Series(pairs.map(|(own, base)| own / base).collect())
    }

    /// An interval for the median that assumes nothing about how the figures are distributed: from
    /// the k-th least to the k-th greatest, with the greatest k that still covers it with 95 %.
    /// With fewer than six rounds none does, and it is the range; `covers` tells.
    pub fn interval(&self) -> Interval {
        let sorted = self.sorted();
        let (k, covers) = order(sorted.len());
        let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
        Interval {
            median: self.median(),
            low: at(k - 1),
            high: at(sorted.len().saturating_sub(k)),
            covers,
        }
    }
}

/// Which order statistics bound the median of `n` values: from the k-th to the k-th last, k from 1
/// on, and what that covers. Each value lies below the true median with an even chance.
fn order(n: usize) -> (usize, f64) {
    let covers = |k: usize| {
        let mut chance = 0.5f64.powi(n as i32);
        let mut below = 0.0;
        for i in 0..k {
            below += chance;
            chance *= (n - i) as f64 / (i + 1) as f64;
        }
        (1.0 - 2.0 * below).max(0.0)
    };
    let good = (1..=n / 2).rev().find(|&k| covers(k) >= LEVEL);
    let k = good.unwrap_or(1);
    (k, if n == 0 { 0.0 } else { covers(k.min(n)) })
}

impl FromIterator<f64> for Series {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Series {
        Series(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_rounds_lies_between_the_middle_two() {
        let series: Series = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        assert_eq!(series.median(), 2.5);
        assert_eq!(series.range(), (1.0, 4.0));
    }

    #[test]
    fn a_ratio_pairs_the_rounds() {
        let own: Series = [1.0, 2.0].into_iter().collect();
        let other: Series = [6.0, 6.0].into_iter().collect();
        assert_eq!(other.over(&own).values(), [6.0, 3.0]);
    }

    #[test]
    fn no_rounds_give_zero() {
        let none = Series::default();
        assert_eq!(none.median(), 0.0);
        assert_eq!(none.range(), (0.0, 0.0));
        assert_eq!(none.interval().covers, 0.0);
    }

    #[test]
    fn the_interval_is_the_range_until_six_rounds_and_narrower_from_nine_on() {
        let rounds = |n: usize| -> Series { (1..=n).map(|i| i as f64).collect() };
        let of = |n| {
            let interval = rounds(n).interval();
            (
                interval.low,
                interval.high,
                (interval.covers * 1000.0).round(),
            )
        };
        assert_eq!(of(1), (1.0, 1.0, 0.0));
        assert_eq!(of(5), (1.0, 5.0, 938.0));
        assert_eq!(of(6), (1.0, 6.0, 969.0));
        assert_eq!(of(9), (2.0, 8.0, 961.0));
        assert_eq!(of(10), (2.0, 9.0, 979.0));
    }
}

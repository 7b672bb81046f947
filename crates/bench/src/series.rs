//! Figures from several rounds.

use serde::Serialize;

/// The same figure from several rounds. Tables show the median, and the range.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Series(Vec<f64>);

impl Series {
    /// Add a round's figure.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The rounds' figures, in order.
    pub fn values(&self) -> &[f64] {
        &self.0
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
        assert_eq!(Series::default().median(), 0.0);
        assert_eq!(Series::default().range(), (0.0, 0.0));
    }
}

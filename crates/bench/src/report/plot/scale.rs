//! Axes: from values to places, with ticks.

use crate::report::table::short;

/// About so many ticks.
const TICKS: f64 = 5.0;
/// Decades up to which an axis shows 2 and 5 too.
const FINE_DECADES: f64 = 2.0;

/// Maps values between two ends to places between two others.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// From the least value to a round number above the greatest.
    pub fn linear(values: &[f64], from: f64, to: f64) -> Scale {
        let scale = Scale::within(values, from, to);
        let step = scale.step();
        Scale {
            high: (scale.high / step - 1e-9).ceil() * step,
            ..scale
        }
    }

    /// From the least value to the greatest.
    pub fn within(values: &[f64], from: f64, to: f64) -> Scale {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() {
            (low, high)
        } else {
            (0.0, 1.0)
        };
        Scale {
            low,
            // A single value gets room above.
            high: if high > low {
                high
            } else {
                low + low.abs().max(1.0)
            },
            from,
            to,
            log: false,
        }
    }

    /// Logarithmic, with some room at both ends; values that are not positive lie at the lower one.
    pub fn log(values: &[f64], from: f64, to: f64) -> Scale {
        let positive: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| *value > 0.0)
            .collect();
        let Scale { low, high, .. } = Scale::within(&positive, from, to);
        let low = if low > 0.0 { low } else { 1.0 };
        Scale {
            low: low / 1.25,
            high: high.max(low) * 1.25,
            from,
            to,
            log: true,
        }
    }

    /// It is logarithmic.
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// The place of a value; beyond an end it is the end.
    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = match self.log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + part * (self.to - self.from)
    }

    /// 1, 2 or 5 times a power of ten, so that there are about as many ticks as wanted.
    fn step(&self) -> f64 {
        let rough = (self.high - self.low) / TICKS;
        let power = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|factor| factor * power >= rough * 0.999);
        factor.unwrap_or(10.0) * power
    }

    /// Round values within, with their texts.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values: Vec<f64> = match self.log {
            true => self.log_ticks(),
            false => {
                let step = self.step();
                let first = (self.low / step - 1e-9).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last).map(|i| i as f64 * step).collect()
            }
        };
        values
            .into_iter()
            .map(|value| (value, tick(value)))
            .collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let fine = (self.high / self.low).log10() <= FINE_DECADES;
        let factors: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = decades.flat_map(|decade| {
            factors
                .iter()
                .map(move |factor| factor * 10f64.powi(decade))
        });
        all.filter(|value| (self.low..=self.high).contains(value))
            .collect()
    }
}

/// A value as an axis shows it: thousands and millions by a letter.
pub fn tick(value: f64) -> String {
    let plain = |value: f64| {
        let text = short(value);
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        }
    };
    match value.abs() {
        n if n >= 1e9 => format!("{}G", plain(value / 1e9)),
        n if n >= 1e6 => format!("{}M", plain(value / 1e6)),
        n if n >= 1e4 => format!("{}k", plain(value / 1e3)),
        _ => plain(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: Scale) -> String {
        let ticks = scale.ticks().into_iter().map(|(_, text)| text);
        ticks.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(
            texts(Scale::linear(&[0.0, 1834.0], 0.0, 1.0)),
            "0 500 1000 1500 2000"
        );
        assert_eq!(
            texts(Scale::linear(&[0.0, 0.9], 0.0, 1.0)),
            "0 0.2 0.4 0.6 0.8 1"
        );
        assert_eq!(
            texts(Scale::log(&[100.0, 1e6], 0.0, 1.0)),
            "100 1000 10k 100k 1M"
        );
    }

    #[test]
    fn places_grow_from_one_end_to_the_other_and_stay_within() {
        let scale = Scale::linear(&[0.0, 100.0], 200.0, 0.0);
        assert_eq!(
            [0.0, 50.0, 100.0, 1e9].map(|value| scale.at(value)),
            [200.0, 100.0, 0.0, 0.0]
        );
        let scale = Scale::log(&[1.0, 1e4], 0.0, 1.0);
        assert!((scale.at(100.0) - 0.5).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 0.0);
    }
}

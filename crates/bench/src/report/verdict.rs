//! What the rounds of a figure decide: an interval has to lie on one side of a bound as a whole.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::series::{Interval, Series};

/// Whether ours shows what a paper's figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It does.
    Agrees,
    /// It does not.
    Differs,
    /// The figures of this run are too far apart to tell.
    Coarse,
    /// It cannot be seen on this machine, or was not measured in this run.
    Unseen,
    /// It is about somebody who took no part: what is seen here stands for nobody else.
    Absent,
}

impl From<Option<bool>> for Verdict {
    /// Whether it is the same; `None` where that is not to be seen.
    fn from(same: Option<bool>) -> Verdict {
        match same {
            Some(true) => Verdict::Agrees,
            Some(false) => Verdict::Differs,
            None => Verdict::Unseen,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Agrees => "agrees",
            Verdict::Differs => "differs",
            Verdict::Coarse => "too coarse to tell",
            Verdict::Unseen => "not to be seen",
            Verdict::Absent => "not decided, as whom it is about took no part",
        })
    }
}

/// An interval that covers the median less often than this decides nothing: five rounds suffice.
const COVERS_MIN: f64 = 0.9;

/// Whether all figures lie at `bound` or above, as far as their intervals tell: all of each
/// interval has to. Not to be seen if one is missing, or there are none.
pub fn above(figures: impl IntoIterator<Item = Option<Series>>, bound: f64) -> Verdict {
    decide(figures, |found| (found.low >= bound, found.high < bound))
}

/// Whether all lie at it or below.
pub fn below(figures: impl IntoIterator<Item = Option<Series>>, bound: f64) -> Verdict {
    decide(figures, |found| (found.high <= bound, found.low > bound))
}

/// Whether all lie between two bounds: a figure that is as good as the same is neither larger nor
/// smaller.
pub fn within(
    figures: impl IntoIterator<Item = Option<Series>>,
    (least, most): (f64, f64),
) -> Verdict {
    decide(figures, |found| {
        let inside = found.low >= least && found.high <= most;
        (inside, found.high < least || found.low > most)
    })
}

/// `judge` says whether a figure surely is as claimed, and whether it surely is not.
fn decide(
    figures: impl IntoIterator<Item = Option<Series>>,
    judge: impl Fn(&Interval) -> (bool, bool),
) -> Verdict {
    let all: Option<Vec<Series>> = figures.into_iter().collect();
    let all: Vec<Interval> = match &all {
        Some(all) if !all.is_empty() => all.iter().map(Series::interval).collect(),
        _ => return Verdict::Unseen,
    };
    if all.iter().any(|found| found.covers < COVERS_MIN) {
        Verdict::Coarse
    } else if all.iter().any(|found| judge(found).1) {
        Verdict::Differs
    } else if all.iter().all(|found| judge(found).0) {
        Verdict::Agrees
    } else {
        Verdict::Coarse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_decided_by_whole_intervals_of_enough_rounds_and_by_nothing_less() {
        let rounds = |values: &[f64]| Some(values.iter().copied().collect::<Series>());
        let over = rounds(&[1.1, 1.2, 1.3, 1.4, 1.5]);
        let around = rounds(&[0.8, 0.9, 1.2, 1.4, 1.5]);
        let under = rounds(&[0.5, 0.6, 0.7, 0.8, 0.9]);
        assert_eq!(above([over.clone()], 1.0), Verdict::Agrees);
        assert_eq!(above([over.clone(), around.clone()], 1.0), Verdict::Coarse);
        assert_eq!(above([over.clone(), under.clone()], 1.0), Verdict::Differs);
        assert_eq!(below([under], 1.0), Verdict::Agrees);
        assert_eq!(below([over.clone()], 1.0), Verdict::Differs);
        assert_eq!(above([over, None], 1.0), Verdict::Unseen);
        assert_eq!(above([], 1.0), Verdict::Unseen);
        assert_eq!(above([rounds(&[2.0, 2.1, 2.2])], 1.0), Verdict::Coarse);
    }

    #[test]
    fn what_is_within_five_percent_is_neither_more_nor_less() {
        let within = |middle: f64| {
            let rounds = [-0.01, -0.005, 0.0, 0.005, 0.01];
            let figure = rounds.into_iter().map(|off| middle + off).collect();
            within([Some(figure)], (0.95, 1.05))
        };
        assert_eq!(within(1.0), Verdict::Agrees);
        assert_eq!(within(0.86), Verdict::Differs);
        assert_eq!(within(1.1), Verdict::Differs);
        assert_eq!(within(0.95), Verdict::Coarse);
    }
}

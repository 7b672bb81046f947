//! Reading our figures beside those of the papers.

use crate::report::{Cell, Chart, Check, Run, Table, Verdict, X, short};
use crate::series::{Interval, Series};

/// The engine of the headline figures, as charts name it.
pub const OURS: &str = "SoupFS";

/// A figure of a paper beside ours.
pub fn check(paper: &str, verdict: impl Into<Verdict>, here: String, why: &str) -> Check {
    let verdict = verdict.into();
    Check {
        paper: paper.into(),
        here: match verdict {
            Verdict::Unseen => String::new(),
            _ => here,
        },
        verdict,
        why: why.into(),
    }
}

/// Our figures in one chart over those of the base.
pub struct Compared<'a> {
    chart: Option<&'a Chart>,
    base: &'a str,
}

impl<'a> Compared<'a> {
    /// The chart of a run with this title.
    pub fn new(run: &'a Run, title: &str) -> Compared<'a> {
        Compared {
            chart: run.chart(title),
            base: &run.base,
        }
    }

    /// How many times as good ours is, at each x, round by round; nothing where ours is alone.
    pub fn ratios(&self) -> Vec<(String, Series)> {
        let Some(chart) = self.chart.filter(|_| self.base != OURS) else {
            return Vec::new();
        };
        let at = |x: &X| Some((name(x), chart.ratio(OURS, self.base, x)?));
        chart.xs().into_iter().filter_map(at).collect()
    }

    /// The first of them.
    pub fn first(&self) -> Option<Series> {
        self.ratios().into_iter().next().map(|(_, ratio)| ratio)
    }

    /// Whether ours is better at each x.
    pub fn better(&self) -> Verdict {
        above(self.ratios().into_iter().map(|(_, ratio)| Some(ratio)), 1.0)
    }
}

/// An interval that covers the median less often than this decides nothing: five rounds suffice.
const COVERS_MIN: f64 = 0.9;

/// Whether all figures lie above `bound`, as far as their intervals tell: all of each interval has to.
/// Not to be seen if one is missing, or there are none.
pub fn above(figures: impl IntoIterator<Item = Option<Series>>, bound: f64) -> Verdict {
    decide(figures, |found| (found.low > bound, found.high < bound))
}

/// Whether all lie below it.
pub fn below(figures: impl IntoIterator<Item = Option<Series>>, bound: f64) -> Verdict {
    decide(figures, |found| (found.high < bound, found.low > bound))
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

fn name(x: &X) -> String {
    match x {
        X::Word(word) => word.clone(),
        X::Number(number) if number.fract() == 0.0 => format!("{number}"),
        X::Number(number) => short(*number),
    }
}

/// A figure with its interval: `4.2 [3.9 to 4.4]`.
pub fn told(figure: &Series) -> String {
    Cell::Ratio(figure.clone()).to_string()
}

/// Figures with their names: `4.2 [3.9 to 4.4] (create), 3.9 [3.1 to 4.5] (unlink)`.
pub fn list(figures: &[(String, Series)]) -> String {
    let each = figures
        .iter()
        .map(|(name, figure)| format!("{} ({name})", told(figure)));
    each.collect::<Vec<_>>().join(", ")
}

/// The rounds of a target at a value of what is varied.
pub fn rounds<'a>(run: &'a Run, title: &str, target: &str, x: impl Into<X>) -> Option<&'a Series> {
    let line = run.chart(title)?.line(target)?;
    Some(&line.at(&x.into())?.rounds)
}

/// The median of them.
pub fn median(run: &Run, title: &str, target: &str, x: impl Into<X>) -> Option<f64> {
    rounds(run, title, target, x).map(Series::median)
}

/// What a target reaches with the most threads over the fewest, in a chart that has threads for its x.
pub fn scaled(chart: &Chart, target: &str) -> Option<Series> {
    let xs = chart.xs();
    let (first, last) = (xs.first()?, xs.last()?);
    let at = |x: &X| Some(&chart.line(target)?.at(x)?.rounds);
    (first != last).then_some(())?;
    Some(at(last)?.over(at(first)?))
}

/// What the most threads reach over the fewest, in each chart that has threads for its x.
pub fn scaling(charts: &[Chart]) -> Table {
    let mut columns = vec!["what".into(), "target".into()];
    let counts: Vec<X> = charts.first().map_or(Vec::new(), |chart| {
        chart.xs().into_iter().cloned().collect()
    });
    let Some((first, more)) = counts.split_first() else {
        return Table::with_columns("Scaling", columns);
    };
    columns.extend(
        more.iter()
            .map(|x| format!("{} threads over {}", name(x), name(first))),
    );
    let mut table = Table::with_columns("Scaling", columns);
    for chart in charts {
        for line in &chart.lines {
            let mut row: Vec<Cell> = vec![chart.title.as_str().into(), line.target.as_str().into()];
            let base = line.at(first);
            row.extend(more.iter().map(|x| match (line.at(x), base) {
                (Some(own), Some(base)) => own.rounds.over(&base.rounds).into(),
                _ => Cell::Nothing,
            }));
            table.rows.push(row);
        }
    }
    table
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
}

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

    /// How many times as good ours is, at each x; nothing where ours is alone.
    pub fn ratios(&self) -> Vec<(String, f64)> {
        let all = self.all().into_iter();
        all.map(|(name, ratio)| (name, ratio.median())).collect()
    }

    /// Whether ours is better at each x: so that the whole interval of the ratio says so.
    pub fn better(&self) -> Verdict {
        let all: Vec<Interval> = self
            .all()
            .iter()
            .map(|(_, ratio)| ratio.interval())
            .collect();
        if all.is_empty() {
            Verdict::Unseen
        } else if all.iter().all(|ratio| ratio.low > 1.0) {
            Verdict::Agrees
        } else if all.iter().any(|ratio| ratio.high < 1.0) {
            Verdict::Differs
        } else {
            Verdict::Coarse
        }
    }

    fn all(&self) -> Vec<(String, Series)> {
        let Some(chart) = self.chart.filter(|_| self.base != OURS) else {
            return Vec::new();
        };
        let at = |x: &X| Some((name(x), chart.ratio(OURS, self.base, x)?));
        chart.xs().into_iter().filter_map(at).collect()
    }
}

fn name(x: &X) -> String {
    match x {
        X::Word(word) => word.clone(),
        X::Number(number) if number.fract() == 0.0 => format!("{number}"),
        X::Number(number) => short(*number),
    }
}

/// Figures with their names: `4.2 (create), 3.9 (unlink)`.
pub fn list(figures: &[(String, f64)]) -> String {
    let each = figures
        .iter()
        .map(|(name, figure)| format!("{} ({name})", short(*figure)));
    each.collect::<Vec<_>>().join(", ")
}

/// The median of a target at a value of what is varied.
pub fn median(run: &Run, title: &str, target: &str, x: impl Into<X>) -> Option<f64> {
    let line = run.chart(title)?.line(target)?;
    Some(line.at(&x.into())?.rounds.median())
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

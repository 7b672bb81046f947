//! Claims of the papers beside our figures.

use crate::report::{Cell, Chart, Check, OURS, Run, Table, Verdict, X, short};
use crate::series::Series;

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

/// A claim about others, none of which can take part here: what is seen decides nothing.
pub fn about_others(paper: &str, here: String, why: &str) -> Check {
    Check {
        paper: paper.into(),
        verdict: Verdict::Absent,
        here,
        why: why.into(),
    }
}

/// Our figures in one chart over those of the base.
pub struct Compared<'a> {
    chart: Option<&'a Chart>,
    baseline: &'a str,
}

impl<'a> Compared<'a> {
    /// The chart of a run with this title.
    pub fn new(run: &'a Run, title: &str) -> Compared<'a> {
        Compared {
            chart: run.chart(title),
            baseline: &run.baseline,
        }
    }

    /// How many times as good ours is, at each x, round by round; nothing where ours is alone.
    pub fn ratios(&self) -> Vec<(String, Series)> {
        let Some(chart) = self.chart.filter(|_| self.baseline != OURS) else {
            return Vec::new();
        };
        let at = |x: &X| Some((name(x), chart.ratio(OURS, self.baseline, x)?));
        chart.xs().into_iter().filter_map(at).collect()
    }

    /// The first of them.
    pub fn first(&self) -> Option<Series> {
        self.ratios().into_iter().next().map(|(_, ratio)| ratio)
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
pub fn with_interval(figure: &Series) -> String {
    Cell::Ratio(figure.clone()).to_string()
}

/// Figures with their names: `4.2 [3.9 to 4.4] (create), 3.9 [3.1 to 4.5] (unlink)`.
pub fn list(figures: &[(String, Series)]) -> String {
    let each = figures
        .iter()
        .map(|(name, figure)| format!("{} ({name})", with_interval(figure)));
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

/// What a target reaches with the most threads over the fewest, in a chart that has threads for its
/// x.
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

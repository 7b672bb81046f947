//! The comparison that a reader wants to see first.

use super::chart::{Chart, Shape, X};
use super::result::{OURS, Report, Run};
use super::table::{Cell, Table};

/// The mount with default options, as charts name it.
const MOUNT: &str = "mount";

impl Report {
    /// Our figures beside the base's, one for each operation or workload: what a reader wants to
    /// see first. With a column of the mount's if it takes part.
    pub fn summary(&self) -> Table {
        let mounted = self
            .peers
            .iter()
            .any(|peer| peer.name == MOUNT && peer.missing.is_none());
        let mut columns = vec!["what", "", "unit", "ours"];
        columns.extend(mounted.then_some("ours, mounted"));
        columns.extend(["theirs", "times as fast", "as"]);
        let mut table = Table::new("", &columns);
        for run in self.runs.iter().filter(|run| run.baseline != OURS) {
            for chart in &run.charts {
                let rows = shown(chart).into_iter();
                table
                    .rows
                    .extend(rows.filter_map(|x| summed(run, chart, x, mounted)));
            }
        }
        table
    }
}

/// A row of the summary.
fn summed(run: &Run, chart: &Chart, x: &X, mounted: bool) -> Option<Vec<Cell>> {
    let median = |target: &str| Some(chart.line(target)?.at(x)?.rounds.median());
    let (own, base) = median(OURS).zip(median(&run.baseline))?;
    let mut row: Vec<Cell> = vec![
        format!("{}: {}", run.name, chart.title).into(),
        chart.label(x).into(),
        chart.unit.as_str().into(),
        own.into(),
    ];
    row.extend(mounted.then(|| median(MOUNT).map_or(Cell::Nothing, Cell::from)));
    row.extend([
        base.into(),
        chart
            .ratio(OURS, &run.baseline, x)
            .map_or(Cell::Nothing, Cell::Ratio),
        run.baseline.as_str().into(),
    ]);
    Some(row)
}

/// What a summary shows of a chart: each operation, or the most threads.
fn shown(chart: &Chart) -> Vec<&X> {
    let xs = chart.xs();
    match chart.shape {
        Shape::Bars => xs,
        Shape::Lines => xs.last().copied().into_iter().collect(),
        Shape::Growth | Shape::Quantiles | Shape::Timeline => Vec::new(),
    }
}

//! Two results, before and after a change: what became faster or slower, beyond the noise.

use super::chart::{Better, Chart, Shape, X};
use super::result::Report;
use super::table::{Cell, Table};
use crate::series::Series;

/// An interval that covers the median less often than this decides nothing.
const COVERS_MIN: f64 = 0.9;

/// A figure of both results.
struct Pair<'a> {
    run: &'a str,
    chart: &'a Chart,
    target: &'a str,
    x: &'a X,
    before: f64,
    after: f64,
    /// Times as good as before, round by round.
    ratio: Series,
}

/// What changed: for each family the geometric mean over its figures, of our targets and of the
/// others, which show how much the machine itself changed; then each of our figures whose whole
/// interval lies on one side of 1. The rounds of the two are paired in order: best are results that
/// were made in turns.
pub fn compare(before: &Report, after: &Report) -> [Table; 2] {
    let pairs: Vec<Pair<'_>> = pairs(before, after).collect();
    [means(after, &pairs), beyond_noise(&pairs)]
}

fn pairs<'a>(before: &'a Report, after: &'a Report) -> impl Iterator<Item = Pair<'a>> {
    let charts = after.runs.iter().flat_map(|run| {
        let charts = run.charts.iter().filter(|chart| is_repeatable(chart.shape));
        charts.map(|chart| (run.name.as_str(), chart))
    });
    charts.flat_map(move |(run, chart)| {
        let own = before.runs.iter().find(|own| own.name == run);
        let earlier = own.and_then(|own| own.chart(&chart.title));
        let lines = chart.lines.iter();
        lines.flat_map(move |line| {
            let old = earlier.and_then(|earlier| earlier.line(&line.target));
            line.points.iter().filter_map(move |point| {
                let old = &old?.at(&point.x)?.rounds;
                let ratio = match chart.better {
                    Better::Less => old.over(&point.rounds),
                    Better::More => point.rounds.over(old),
                };
                let sane = ratio
                    .values()
                    .iter()
                    .all(|one| *one > 0.0 && one.is_finite());
                (sane && !ratio.is_empty()).then(|| Pair {
                    run,
                    chart,
                    target: &line.target,
                    x: &point.x,
                    before: old.median(),
                    after: point.rounds.median(),
                    ratio,
                })
            })
        })
    })
}

/// A point of a timeline is one moment, not a figure to be found again.
fn is_repeatable(shape: Shape) -> bool {
    shape != Shape::Timeline
}

/// A target of ours: the engine in-process or the mount, with whatever options.
fn is_ours(target: &str) -> bool {
    let parts = ["SoupFS", "in-process", "mount"];
    parts.iter().any(|part| target.starts_with(part))
}

fn means(after: &Report, pairs: &[Pair<'_>]) -> Table {
    let columns = ["family", "figures", "times as fast as before", "others"];
    let mut table = Table::new("Geometric means", &columns);
    for run in &after.runs {
        let of = |ours: bool| {
            let own = pairs.iter().filter(|pair| pair.run == run.name);
            let own = own.filter(|pair| is_ours(pair.target) == ours);
            own.map(|pair| pair.ratio.median()).collect::<Vec<f64>>()
        };
        let ours = of(true);
        if ours.is_empty() {
            continue;
        }
        table.row([
            run.name.as_str().into(),
            (ours.len() as u64).into(),
            mean(&ours).into(),
            mean(&of(false)).into(),
        ]);
    }
    table
}

/// The geometric mean; not a number without any.
fn mean(ratios: &[f64]) -> f64 {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (sum / ratios.len() as f64).exp()
}

fn beyond_noise(pairs: &[Pair<'_>]) -> Table {
    let ours = || pairs.iter().filter(|pair| is_ours(pair.target));
    let decided: Vec<_> = ours()
        .map(|pair| (pair, pair.ratio.interval()))
        .filter(|(_, found)| found.covers >= COVERS_MIN)
        .collect();
    let chance: f64 = decided.iter().map(|(_, found)| 1.0 - found.covers).sum();
    let mut changed: Vec<_> = decided
        .iter()
        .filter(|(_, found)| found.low > 1.0 || found.high < 1.0)
        .collect();
    changed.sort_by(|(_, one), (_, other)| one.median.total_cmp(&other.median));
    let title = format!(
        "Beyond the noise: {} of {} figures, where chance alone would give {chance:.0}; {} have \
         fewer than five rounds, which decide nothing",
        changed.len(),
        decided.len(),
        ours().count() - decided.len()
    );
    let columns = [
        "figure",
        "",
        "target",
        "unit",
        "before",
        "after",
        "times as fast",
    ];
    let mut table = Table::new(title, &columns);
    for (pair, _) in changed {
        table.row([
            format!("{}: {}", pair.run, pair.chart.title).into(),
            pair.chart.label(pair.x).into(),
            pair.target.into(),
            pair.chart.unit.as_str().into(),
            pair.before.into(),
            pair.after.into(),
            Cell::Ratio(pair.ratio.clone()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Line, OURS, Point, Run};

    /// A result with two figures of ours and one of tmpfs, in nanoseconds.
    fn report(ours: [&[f64]; 2], tmpfs: &[f64]) -> Report {
        let rounds = |values: &[f64]| values.iter().copied().collect::<Series>();
        let line = |target: &str, points: Vec<Point>| Line {
            target: target.into(),
            points,
        };
        let [create, stat] = ours;
        let own = vec![
            Point::new("create", rounds(create)),
            Point::new("stat", rounds(stat)),
        ];
        let lines = vec![
            line(OURS, own),
            line("tmpfs", vec![Point::new("create", rounds(tmpfs))]),
        ];
        let chart = Chart {
            lines,
            ..Chart::new("Names", "operation", "ns", Better::Less, Shape::Bars)
        };
        Report {
            machine: Machine::here(),
            peers: Vec::new(),
            runs: vec![Run {
                charts: vec![chart],
                ..Run::new("names", "")
            }],
        }
    }

    fn texts(row: &[Cell]) -> Vec<String> {
        row.iter().map(Cell::to_string).collect()
    }

    const FLAT: [f64; 5] = [100.0; 5];

    #[test]
    fn a_figure_is_listed_if_its_whole_interval_lies_on_one_side_and_others_show_the_machine() {
        let before = report([&FLAT, &FLAT], &FLAT);
        let slower = [190.0, 195.0, 200.0, 205.0, 210.0];
        let same = [80.0, 95.0, 100.0, 105.0, 130.0];
        let after = report([&slower, &same], &[50.0; 5]);
        let [means, changed] = compare(&before, &after);
        assert_eq!(texts(&means.rows[0]), ["names", "2", "0.71", "2.00"]);
        assert_eq!(changed.rows.len(), 1, "{changed}");
        let row = texts(&changed.rows[0]);
        assert_eq!(row[1..6], ["create", OURS, "ns", "100", "200"]);
        assert!(
            changed.title.contains("1 of 2 figures"),
            "{}",
            changed.title
        );
    }

    #[test]
    fn fewer_than_five_rounds_decide_nothing_until_more_results_are_joined() {
        let (few, slow) = ([100.0; 3], [300.0; 3]);
        let (mut before, mut after) = (report([&few; 2], &few), report([&slow; 2], &few));
        assert!(compare(&before, &after)[1].rows.is_empty());
        before.join(before.clone());
        after.join(after.clone());
        assert_eq!(compare(&before, &after)[1].rows.len(), 2);
    }
}

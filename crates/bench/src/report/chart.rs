//! Figures of several targets over one quantity: what tables and plots are made from.

use serde::{Deserialize, Serialize};

use super::table::{Cell, Table};
use crate::series::Series;

/// One figure of a report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The paper's figure that it mirrors; empty if there is none.
    #[serde(default)]
    pub like: String,
    /// What is varied.
    pub x: String,
    /// Of the values.
    pub unit: String,
    /// Which values are better.
    pub better: Better,
    /// How it is drawn.
    pub shape: Shape,
    /// One for each target.
    pub lines: Vec<Line>,
}

/// Which values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Better {
    /// Small ones: times.
    Less,
    /// Large ones: rates.
    More,
}

/// How a chart is drawn, and what its table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Groups of bars: x are words.
    Bars,
    /// Lines over numbers.
    Lines,
    /// Lines over numbers that grow by factors.
    Growth,
    /// The part of operations that took at most so long: x are parts of one, values are times.
    Quantiles,
    /// Lines over time: many points, each measured once.
    Timeline,
}

/// The figures of one target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// Its name.
    pub target: String,
    /// In the order in which they are shown.
    pub points: Vec<Point>,
}

/// One figure, with what belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// At which value of what is varied.
    pub x: X,
    /// The figure, from each round.
    pub rounds: Series,
    /// Other figures of the same work, by name with unit: persisting it, counters per operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<(String, f64)>,
}

/// A value of what is varied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum X {
    /// A count, a size, a time.
    Number(f64),
    /// An operation, a workload.
    Word(String),
}

impl From<&str> for X {
    fn from(word: &str) -> X {
        X::Word(word.into())
    }
}

impl From<f64> for X {
    fn from(number: f64) -> X {
        X::Number(number)
    }
}

impl From<u64> for X {
    fn from(number: u64) -> X {
        X::Number(number as f64)
    }
}

impl From<usize> for X {
    fn from(number: usize) -> X {
        X::Number(number as f64)
    }
}

impl X {
    /// For tables.
    fn cell(&self) -> Cell {
        match self {
            X::Word(word) => Cell::Text(word.clone()),
            X::Number(number) if number.fract() == 0.0 && *number >= 0.0 => {
                Cell::Count(*number as u64)
            }
            X::Number(number) => Cell::Number(*number),
        }
    }

    /// The number; words have none.
    pub fn number(&self) -> Option<f64> {
        match self {
            X::Number(number) => Some(*number),
            X::Word(_) => None,
        }
    }
}

/// The parts that tables of distributions show.
const PARTS: [(f64, &str); 5] = [
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (1.0, "max"),
];
/// Counters that are below this everywhere are left out of tables: of the background, seen by
/// chance.
const NOTABLE: f64 = 0.0005;
/// Rows that the table of a timeline has at most.
const STEPS_MAX: usize = 20;

impl Chart {
    /// A chart without lines.
    pub fn new(
        title: impl Into<String>,
        x: &str,
        unit: &str,
        better: Better,
        shape: Shape,
    ) -> Chart {
        Chart {
            title: title.into(),
            like: String::new(),
            x: x.into(),
            unit: unit.into(),
            better,
            shape,
            lines: Vec::new(),
        }
    }

    /// The same, with the paper's figure that it mirrors.
    pub fn like(self, figure: &str) -> Chart {
        Chart {
            like: figure.into(),
            ..self
        }
    }

    /// A value of what is varied, in words.
    pub fn label(&self, x: &X) -> String {
        match x {
            X::Word(word) => word.clone(),
            X::Number(number) => format!("{number} {}", self.x),
        }
    }

    /// The line of a target.
    pub fn line(&self, target: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.target == target)
    }

    /// All values of what is varied, in order of appearance.
    pub fn xs(&self) -> Vec<&X> {
        let mut xs: Vec<&X> = Vec::new();
        for point in self.lines.iter().flat_map(|line| &line.points) {
            if !xs.contains(&&point.x) {
                xs.push(&point.x);
            }
        }
        xs
    }

    /// How many times as good as `base` a target is at `x`, round by round.
    pub fn ratio(&self, target: &str, base: &str, x: &X) -> Option<Series> {
        let own = &self.line(target)?.at(x)?.rounds;
        let base = &self.line(base)?.at(x)?.rounds;
        Some(match self.better {
            Better::Less => base.over(own),
            Better::More => own.over(base),
        })
    }

    /// Add the rounds of the same figures of another chart.
    pub(super) fn join(&mut self, other: Chart) {
        for line in other.lines {
            let Some(own) = self.lines.iter_mut().find(|own| own.target == line.target) else {
                self.lines.push(line);
                continue;
            };
            for point in line.points {
                match own.points.iter_mut().find(|own| own.x == point.x) {
                    Some(own) => own.rounds.extend(&point.rounds),
                    None => own.points.push(point),
                }
            }
        }
    }

    /// The figures as a table, with ratios to `base` if it takes part and is not alone.
    pub fn table(&self, base: &str) -> Table {
        match self.shape {
            Shape::Quantiles => self.quantiles(),
            Shape::Timeline => self.steps(),
            Shape::Bars | Shape::Lines | Shape::Growth => self.rows(base),
        }
    }

    fn rows(&self, base: &str) -> Table {
        let compared = self.lines.len() > 1 && self.line(base).is_some();
        let extras = self.extras();
        let mut columns = vec![self.x.clone(), "target".into(), self.unit.clone()];
        if compared {
            columns.push(format!("times as fast as {base}"));
            columns.push("of the best rounds".into());
        }
        columns.extend(extras.iter().map(|&name| name.to_owned()));
        let mut table = Table::with_columns(&self.title, columns);
        for x in self.xs() {
            for line in &self.lines {
                let Some(point) = line.at(x) else { continue };
                let mut row = vec![
                    x.cell(),
                    line.target.as_str().into(),
                    point.rounds.clone().into(),
                ];
                if compared {
                    row.extend(self.compared(line, base, x));
                }
                for &name in &extras {
                    row.push(point.extra(name).map_or("".into(), Cell::from));
                }
                table.rows.push(row);
            }
        }
        table
    }

    /// The ratio with its interval, and that of the best rounds.
    fn compared(&self, line: &Line, base: &str, x: &X) -> [Cell; 2] {
        let blank = ["".into(), "".into()];
        if line.target == base {
            return blank;
        }
        let (Some(ratio), Some(own), Some(base)) = (
            self.ratio(&line.target, base, x),
            line.at(x),
            self.line(base).and_then(|line| line.at(x)),
        ) else {
            return blank;
        };
        let best = match self.better {
            Better::Less => base.rounds.least() / own.rounds.least(),
            Better::More => own.rounds.range().1 / base.rounds.range().1,
        };
        [Cell::Ratio(ratio), best.into()]
    }

    /// The names of other figures, without those that are nothing everywhere.
    fn extras(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for point in self.lines.iter().flat_map(|line| &line.points) {
            for (name, value) in &point.extra {
                if *value >= NOTABLE && !names.contains(&name.as_str()) {
                    names.push(name);
                }
            }
        }
        names
    }

    fn quantiles(&self) -> Table {
        let mut columns = vec!["target".into()];
        columns.extend(PARTS.map(|(_, name)| format!("{name}: {}", self.unit)));
        let mut table = Table::with_columns(&self.title, columns);
        for line in &self.lines {
            let mut row: Vec<Cell> = vec![line.target.as_str().into()];
            for (part, _) in PARTS {
                let point = line.at(&X::Number(part));
                row.push(point.map_or("".into(), |point| {
                    Cell::Count(point.rounds.median().round() as u64)
                }));
            }
            table.rows.push(row);
        }
        table
    }

    fn steps(&self) -> Table {
        let xs = self.xs();
        let every = xs.len().div_ceil(STEPS_MAX).max(1);
        let title = match every {
            1 => self.title.clone(),
            every => format!("{} (one step in {every} is shown)", self.title),
        };
        let mut columns = vec![self.x.clone()];
        columns.extend(
            self.lines
                .iter()
                .map(|line| format!("{}: {}", line.target, self.unit)),
        );
        let mut table = Table::with_columns(&title, columns);
        for x in xs.into_iter().step_by(every) {
            let mut row = vec![x.cell()];
            for line in &self.lines {
                row.push(
                    line.at(x)
                        .map_or("".into(), |point| point.rounds.median().into()),
                );
            }
            table.rows.push(row);
        }
        table
    }
}

impl Line {
    /// The point at a value of what is varied.
    pub fn at(&self, x: &X) -> Option<&Point> {
        self.points.iter().find(|point| point.x == *x)
    }
}

impl Point {
    /// A figure with nothing beside it.
    pub fn new(x: impl Into<X>, rounds: Series) -> Point {
        Point {
            x: x.into(),
            rounds,
            extra: Vec::new(),
        }
    }

    /// A figure that was measured once.
    pub fn once(x: impl Into<X>, value: f64) -> Point {
        Point::new(x, [value].into_iter().collect())
    }

    /// Another figure of the same work.
    pub fn extra(&self, name: &str) -> Option<f64> {
        let found = self.extra.iter().find(|(own, _)| own == name);
        found.map(|&(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(better: Better) -> Chart {
        let line = |target: &str, values: [f64; 2]| Line {
            target: target.into(),
            points: vec![Point {
                x: "create".into(),
                rounds: values.into_iter().collect(),
                extra: vec![("fences".into(), 0.5)],
            }],
        };
        Chart {
            title: "Names".into(),
            like: String::new(),
            x: "operation".into(),
            unit: "ns".into(),
            better,
            shape: Shape::Bars,
            lines: vec![line("a", [10.0, 20.0]), line("b", [40.0, 40.0])],
        }
    }

    #[test]
    fn a_ratio_above_one_is_better_for_times_and_for_rates() {
        let ratio = |better| chart(better).ratio("a", "b", &"create".into()).unwrap();
        assert_eq!(ratio(Better::Less).values(), [4.0, 2.0]);
        assert_eq!(ratio(Better::More).values(), [0.25, 0.5]);
    }

    #[test]
    fn a_table_has_a_row_for_each_target_and_a_ratio_for_all_but_the_base() {
        let table = chart(Better::Less).table("b");
        assert_eq!(table.rows.len(), 2);
        assert_eq!(
            table.columns,
            [
                "operation",
                "target",
                "ns",
                "times as fast as b",
                "of the best rounds",
                "fences"
            ]
        );
        assert_eq!(table.rows[0][3].to_string(), "3.00 [2.00 to 4.00]");
        assert_eq!(table.rows[1][3].to_string(), "");
    }

    #[test]
    fn a_base_that_does_not_take_part_gives_no_ratios() {
        assert_eq!(chart(Better::Less).table("c").columns.len(), 4);
    }

    #[test]
    fn a_chart_survives_json() {
        let json = serde_json::to_string(&chart(Better::More)).unwrap();
        let back: Chart = serde_json::from_str(&json).unwrap();
        assert_eq!(
            back.table("b").to_string(),
            chart(Better::More).table("b").to_string()
        );
    }
}

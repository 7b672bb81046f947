//! Tables: Markdown, aligned so that it reads well in a terminal too.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::series::Series;

/// Figures side by side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Of each column, with its unit.
    pub columns: Vec<String>,
    /// As many cells in each as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// A figure, or a word.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A word.
    Text(String),
    /// Something counted.
    Count(u64),
    /// Something measured once.
    Number(f64),
    /// Something measured in each round: the median with the range.
    Rounds(Series),
    /// A ratio of each round: the median with its interval. Stands in tables that charts make.
    #[serde(skip)]
    Ratio(Series),
    /// There is no such figure.
    Nothing,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        match text {
            "" => Cell::Nothing,
            text => Cell::Text(text.into()),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Count(count)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        match number.is_finite() {
            true => Cell::Number(number),
            false => Cell::Nothing,
        }
    }
}

impl From<Series> for Cell {
    fn from(series: Series) -> Cell {
        // A ratio to a round in which nothing was done is none.
        match series.values().iter().all(|value| value.is_finite()) {
            true => Cell::Rounds(series),
            false => Cell::Nothing,
        }
    }
}

/// Three digits that matter.
pub fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 0.1 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

impl Cell {
    /// A figure: tables align it to the right.
    pub fn is_figure(&self) -> bool {
        !matches!(self, Cell::Text(_) | Cell::Nothing)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Text(text) => f.pad(text),
            Cell::Count(count) => f.pad(&count.to_string()),
            Cell::Number(number) => f.pad(&short(*number)),
            Cell::Rounds(series) => {
                let (least, greatest) = series.range();
                match series.values() {
                    [only] => f.pad(&short(*only)),
                    _ => f.pad(&format!(
                        "{} ({} to {})",
                        short(series.median()),
                        short(least),
                        short(greatest)
                    )),
                }
            }
            Cell::Ratio(series) => {
                let found = series.interval();
                match series.values() {
                    [only] => f.pad(&short(*only)),
                    _ => f.pad(&format!(
                        "{} [{} to {}]",
                        short(found.median),
                        short(found.low),
                        short(found.high)
                    )),
                }
            }
            Cell::Nothing => f.pad(""),
        }
    }
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.iter().map(|&column| column.into()).collect(),
            rows: Vec::new(),
        }
    }

    /// A table without rows, with columns that were put together.
    pub fn with_columns(title: &str, columns: Vec<String>) -> Table {
        Table {
            title: title.into(),
            columns,
            rows: Vec::new(),
        }
    }

    /// Add a row.
    ///
    /// # Panics
    /// If it does not have a cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        assert_eq!(N, self.columns.len(), "a cell for each column");
        self.rows.push(cells.into());
    }
}

/// As Markdown, aligned so that it reads well in a terminal too.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::to_string).collect())
            .collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let column = cells.iter().map(|row| row[i].chars().count());
                column
                    .max()
                    .unwrap_or(0)
                    .max(self.columns[i].chars().count())
            })
            .collect();
        if !self.title.is_empty() {
            writeln!(f, "{}\n", self.title)?;
        }
        line(f, &widths, &self.columns)?;
        let rules: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        line(f, &widths, &rules)?;
        cells.iter().try_for_each(|row| line(f, &widths, row))
    }
}

fn line(f: &mut fmt::Formatter<'_>, widths: &[usize], cells: &[String]) -> fmt::Result {
    for (cell, width) in cells.iter().zip(widths) {
        write!(f, "| {cell:width$} ")?;
    }
    writeln!(f, "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_markdown() {
        let mut table = Table::new("", &["operation", "ns"]);
        table.row(["create".into(), 412.3.into()]);
        table.row(["unlink".into(), 1u64.into()]);
        let expected = "\
| operation | ns  |
| --------- | --- |
| create    | 412 |
| unlink    | 1   |
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn numbers_keep_three_digits_that_matter() {
        assert_eq!(
            [1234.5, 12.345, 1.2345, 0.0012, 0.0].map(short),
            ["1234", "12.3", "1.23", "0.0012", "0"]
        );
    }

    #[test]
    fn cells_survive_json() {
        let cells: [Cell; 6] = [
            "word".into(),
            7u64.into(),
            0.5.into(),
            [1.0, 2.0].into_iter().collect::<Series>().into(),
            f64::NAN.into(),
            [1.0, f64::INFINITY].into_iter().collect::<Series>().into(),
        ];
        let json = serde_json::to_string(&cells).unwrap();
        let back: Vec<Cell> = serde_json::from_str(&json).unwrap();
        let text = |cells: &[Cell]| cells.iter().map(Cell::to_string).collect::<Vec<_>>();
        assert_eq!(text(&back), text(&cells));
    }
}

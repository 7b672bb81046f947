//! What was aimed at, and how far it is reached.

use super::{Cell, Chart, Report, Table, X, short};

/// The engine of the headline figures.
const OURS: &str = "SoupFS";

/// Something that a report can decide: what is aimed at, what was measured, whether that is enough.
struct Aim {
    text: String,
    measured: String,
    met: bool,
}

impl Report {
    /// The aims that the runs of this report decide.
    pub fn aims(&self) -> Table {
        let mut table = Table::new("", &["aim", "measured", "met"]);
        for aim in self.decided() {
            let met = if aim.met { "yes" } else { "no" };
            table.row([aim.text.into(), aim.measured.into(), met.into()]);
        }
        table
    }

    /// Our figures beside the base's, one for each operation or workload: what a reader wants to see first.
    pub fn summary(&self) -> Table {
        let columns = ["what", "", "unit", "ours", "theirs", "times as fast", "as"];
        let mut table = Table::new("", &columns);
        for run in &self.runs {
            for chart in &run.charts {
                let Some((own, base)) = chart.line(OURS).zip(chart.line(&run.base)) else {
                    continue;
                };
                if run.base == OURS {
                    continue;
                }
                for x in shown(chart) {
                    let Some((a, b)) = own.at(x).zip(base.at(x)) else {
                        continue;
                    };
                    let ratio = chart
                        .ratio(OURS, &run.base, x)
                        .map_or(Cell::Nothing, Cell::Ratio);
                    table.row([
                        format!("{}: {}", run.name, chart.title).into(),
                        name(chart, x).into(),
                        chart.unit.as_str().into(),
                        a.rounds.median().into(),
                        b.rounds.median().into(),
                        ratio,
                        run.base.as_str().into(),
                    ]);
                }
            }
        }
        table
    }

    fn chart(&self, run: &str, title: &str) -> Option<&Chart> {
        let run = self.runs.iter().find(|own| own.name == run)?;
        run.chart(title)
    }

    fn decided(&self) -> Vec<Aim> {
        let names = ["create+close", "unlink", "mkdir", "rmdir"];
        let mut aims: Vec<Aim> = names.iter().filter_map(|op| self.ten_times(op)).collect();
        aims.extend(self.no_flush());
        aims.extend(
            ["append", "overwrite"]
                .iter()
                .filter_map(|op| self.near_copy(op)),
        );
        for (place, factor) in [("separate directories", 1.9), ("one directory", 1.7)] {
            for op in ["create+close", "stat", "unlink"] {
                aims.extend(self.two_threads(op, place, factor));
            }
        }
        aims.extend(self.fsync());
        aims.extend(self.slow_flushes());
        for op in ["create, new names", "stat, at random", "unlink, at random"] {
            aims.extend(self.growth(op));
        }
        aims.extend(self.mounts("Time of a mount", "mount", "mount", 10.0));
        aims.extend(self.mounts("Time of an offline check", "check", "check", 2000.0));
        aims
    }

    /// In-process ten times tmpfs's system calls, on one thread.
    fn ten_times(&self, op: &str) -> Option<Aim> {
        let ratio = self
            .chart("names", "Settled")?
            .ratio(OURS, "tmpfs", &op.into())?;
        Some(Aim {
            text: format!("{op}: 10 times as fast as tmpfs's system calls"),
            measured: short(ratio.median()),
            met: ratio.median() >= 10.0,
        })
    }

    /// The caller flushes and fences nothing.
    fn no_flush(&self) -> Option<Aim> {
        let line = self.chart("names", "Settled")?.line(OURS)?;
        let sum = |name: &str| -> f64 {
            let each = line.points.iter().filter_map(|point| point.extra(name));
            each.sum()
        };
        let (lines, fences) = (sum("caller's lines/op"), sum("caller's fences/op"));
        Some(Aim {
            text: "no flush and no fence in the caller's path".into(),
            measured: format!("{} and {}", short(lines), short(fences)),
            met: lines == 0.0 && fences == 0.0,
        })
    }

    /// 4 KiB within half as much again as a bare copy of the same bytes.
    fn near_copy(&self, op: &str) -> Option<Aim> {
        let run = self.runs.iter().find(|run| run.name == "data")?;
        let own = run.charts.first()?.line(OURS)?.at(&op.into())?;
        let table = run.tables.first()?;
        let Cell::Rounds(bare) = table.rows.first()?.get(1)? else {
            return None;
        };
        let over = own.rounds.median() / bare.median();
        Some(Aim {
            text: format!("{op} of 4 KiB within 1.5 times a bare copy"),
            measured: short(over),
            met: over <= 1.5,
        })
    }

    fn two_threads(&self, op: &str, place: &str, factor: f64) -> Option<Aim> {
        let line = self
            .chart("threads", &format!("{op}, {place}"))?
            .line(OURS)?;
        let (one, two) = line.at(&X::from(1u64)).zip(line.at(&X::from(2u64)))?;
        let gained = two.rounds.over(&one.rounds).median();
        Some(Aim {
            text: format!("{op}: two threads in {place} at {factor} times one"),
            measured: short(gained),
            met: gained >= factor,
        })
    }

    /// A small file made durable while the persister is idle.
    fn fsync(&self) -> Option<Aim> {
        let chart = self.chart("data", "Overwrite of 4 KiB, then fsync")?;
        let ns = chart.line(OURS)?.points.first()?.rounds.median();
        Some(Aim {
            text: "overwrite of 4 KiB and fsync, domain line, under 2000 ns".into(),
            measured: format!("{} ns", short(ns)),
            met: ns < 2000.0,
        })
    }

    fn slow_flushes(&self) -> Option<Aim> {
        let line = self.chart("latency", "create+close")?.line("delayed")?;
        let (none, slow) = line.at(&X::from(0u64)).zip(line.at(&X::from(800u64)))?;
        let over = slow.rounds.over(&none.rounds).median();
        Some(Aim {
            text: "create with 800 ns per flushed line within 5 % of that with none".into(),
            measured: short(over),
            met: over <= 1.05,
        })
    }

    fn growth(&self, op: &str) -> Option<Aim> {
        let line = self.chart("growth", op)?.line(OURS)?;
        let (small, large) = line
            .at(&X::from(10_000u64))
            .zip(line.at(&X::from(1_000_000u64)))?;
        let over = large.rounds.over(&small.rounds).median();
        Some(Aim {
            text: format!("{op}: among 1,000,000 names at most 1.5 times the cost among 10,000"),
            measured: short(over),
            met: over <= 1.5,
        })
    }

    fn mounts(&self, chart: &str, line: &str, what: &str, ms_max: f64) -> Option<Aim> {
        let point = self.chart("mounts", chart)?.line(line)?.points.last()?;
        let (files, ms) = (point.x.number()?, point.rounds.median());
        Some(Aim {
            text: format!("{what} of an image with {files} files in under {ms_max} ms"),
            measured: format!("{} ms", short(ms)),
            met: ms < ms_max,
        })
    }
}

/// What a summary shows of a chart: each operation, or the most threads.
fn shown(chart: &Chart) -> Vec<&X> {
    use super::Shape;
    let xs = chart.xs();
    match chart.shape {
        Shape::Bars => xs,
        Shape::Lines => xs.last().copied().into_iter().collect(),
        Shape::Growth | Shape::Quantiles | Shape::Timeline => Vec::new(),
    }
}

fn name(chart: &Chart, x: &X) -> String {
    match x {
        X::Word(word) => word.clone(),
        X::Number(number) => format!("{number} {}", chart.x),
    }
}

//! What was aimed at, and how far it is reached.

use super::chart::{Chart, X};
use super::result::{
    DELAYED, DURABLE_REQUEST, E2FSCK, EXT2_BLOCKS, EXT2_NAMES, FSCK, IN_SYNC, MOUNT, OUR_EXT2,
    OURS, PERSIST, REQUEST, Report, STRONG,
};
use super::table::{Cell, Table, short};
use super::verdict::{Verdict, above, below, within};
use crate::series::Series;

/// The chart of requests through FUSE beside a file system that does nothing.
pub const THROUGH_FUSE: &str = "Through FUSE, on one core";

/// What requests of mode strong may take in domain line: ns.
const STRONG_NS_MAX: [(&str, f64); 6] = [
    ("create+close", 1000.0),
    ("rename", 1200.0),
    ("unlink", 1000.0),
    ("overwrite 64 B", 600.0),
    ("overwrite 4 KiB", 1200.0),
    ("append 4 KiB", 1200.0),
];

/// How much faster than e2fsck a check of many files is to be.
const FSCK_GAIN: f64 = 5.0;

/// The chart of mounts right after mkfs.
pub const FIRST_MOUNT: &str = "Time of the first mount";

/// Something that a report can decide: what is aimed at, what was measured, whether that is enough.
pub(super) struct Aim {
    text: String,
    measured: Cell,
    met: Verdict,
}

impl Aim {
    /// At least so much.
    pub(super) fn at_least(text: String, measured: Series, least: f64) -> Aim {
        let met = above([Some(measured.clone())], least);
        Aim::new(text, measured, met)
    }

    /// At most so much.
    pub(super) fn at_most(text: String, measured: Series, most: f64) -> Aim {
        let met = below([Some(measured.clone())], most);
        Aim::new(text, measured, met)
    }

    /// No less and no more.
    fn between(text: String, measured: Series, bounds: (f64, f64)) -> Aim {
        let met = within([Some(measured.clone())], bounds);
        Aim::new(text, measured, met)
    }

    /// Something counted: at most so much.
    pub(super) fn counted(text: String, count: f64, most: f64) -> Aim {
        Aim {
            text,
            measured: short(count).into(),
            met: Verdict::from(Some(count <= most)),
        }
    }

    fn new(text: String, measured: Series, met: Verdict) -> Aim {
        let measured = Cell::Ratio(measured);
        Aim {
            text,
            measured,
            met,
        }
    }
}

impl Report {
    /// The aims that the runs of this report decide.
    pub fn aims(&self) -> Table {
        let mut table = Table::new("", &["aim", "measured", "met"]);
        for aim in self.decided() {
            let met = match aim.met {
                Verdict::Agrees => "yes",
                Verdict::Differs => "no",
                Verdict::Coarse | Verdict::Unseen | Verdict::Absent => "too coarse to tell",
            };
            table.row([aim.text.into(), aim.measured, met.into()]);
        }
        table
    }

    pub(super) fn chart(&self, run: &str, title: &str) -> Option<&Chart> {
        let run = self.runs.iter().find(|own| own.name == run)?;
        run.chart(title)
    }

    fn decided(&self) -> Vec<Aim> {
        let mut aims = self.mounted_aims();
        let names = ["create+close", "unlink", "mkdir", "rmdir"];
        aims.extend(names.iter().filter_map(|op| self.ten_times(op)));
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
        aims.extend(self.strong());
        aims.extend(self.ext2());
        aims.extend(self.fsync());
        aims.extend(self.slow_flushes());
        for (target, place) in [
            (OURS, "in-process"),
            (OUR_EXT2, "ext2 in-process"),
            (MOUNT, "mount"),
        ] {
            for op in ["create, new names", "stat, at random", "unlink, at random"] {
                aims.extend(self.growth(target, place, op));
            }
        }
        aims.extend(self.through_fuse());
        aims.extend(self.mounts("Time of a mount", "mount", 10.0));
        aims.extend(self.mounts("Time of an offline check", "check", 2000.0));
        aims.extend(self.first_mount());
        aims.extend(self.fsck());
        aims
    }

    /// In-process ten times tmpfs's system calls, on one thread.
    fn ten_times(&self, op: &str) -> Option<Aim> {
        let chart = self.chart("names", "Settled")?;
        let ratio = chart.ratio(OURS, "tmpfs", &op.into())?;
        let point = chart.line(OURS)?.at(&op.into())?;
        let persisting = point.extra(PERSIST).map_or(String::new(), |ns| {
            format!(
                "; persisting takes {} ns more, behind the caller",
                short(ns)
            )
        });
        let text = format!(
            "{op}: function calls in-process 10 times as fast as tmpfs's system calls{persisting}"
        );
        Some(Aim::at_least(text, ratio, 10.0))
    }

    /// Requests of mode strong: what they may take, beside mode delayed and beside mode sync.
    fn strong(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        if let Some(line) = self
            .chart("strong", REQUEST)
            .and_then(|chart| chart.line(STRONG))
        {
            aims.extend(STRONG_NS_MAX.iter().filter_map(|&(op, most)| {
                let ns = line.at(&op.into())?.rounds.clone();
                let text = format!("strong in-process, domain line, {op}: at most {most} ns");
                Some(Aim::at_most(text, ns, most))
            }));
        }
        let runs = self.runs.iter().filter(|run| run.name == "strong");
        for chart in runs.flat_map(|run| &run.charts) {
            for x in chart.xs() {
                let what = format!("strong, {}, {}", chart.title, chart.label(x));
                if chart.title != DURABLE_REQUEST
                    && let Some(ratio) = chart.ratio(STRONG, OURS, x)
                {
                    let text = format!("{what}: within 1.1 times mode delayed");
                    aims.push(Aim::at_least(text, ratio, 1.0 / 1.1));
                }
                // Elsewhere mode sync does not make contents durable.
                if chart.title == DURABLE_REQUEST
                    && let Some(ratio) = chart.ratio(STRONG, IN_SYNC, x)
                {
                    let text = format!("{what}: faster than mode sync");
                    aims.push(Aim::at_least(text, ratio, 1.0));
                }
            }
        }
        aims
    }

    /// The engine of ext2 in-process beside tmpfs's system calls, and two threads beside one.
    fn ext2(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        for (title, ops, least) in [
            (
                EXT2_NAMES,
                &["create+close", "unlink", "mkdir", "rmdir"][..],
                3.0,
            ),
            (EXT2_BLOCKS, &["read", "overwrite"][..], 2.0),
        ] {
            let chart = self.chart("ext2", title);
            aims.extend(ops.iter().filter_map(|&op| {
                let ratio = chart?.ratio(OUR_EXT2, "tmpfs", &op.into())?;
                let text = format!(
                    "ext2, {op}: function calls in-process {least} times as fast as tmpfs's system \
                     calls"
                );
                Some(Aim::at_least(text, ratio, least))
            }));
        }
        for op in ["create+close", "stat", "unlink"] {
            let title = format!("{op}, separate directories");
            let gained = self.over("ext2", &title, OUR_EXT2, (2, 1));
            let text = format!("ext2, {op}: two threads in separate directories at 1.6 times one");
            aims.extend(gained.map(|gained| Aim::at_least(text, gained, 1.6)));
        }
        aims
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
            measured: format!("{} and {}", short(lines), short(fences)).into(),
            // Counted, and so the same in each round.
            met: Verdict::from(Some(lines == 0.0 && fences == 0.0)),
        })
    }

    /// 4 KiB within half as much again as a bare copy of the same bytes.
    fn near_copy(&self, op: &str) -> Option<Aim> {
        let run = self.runs.iter().find(|run| run.name == "data")?;
        let own = run.charts.first()?.line(OURS)?.at(&op.into())?;
        let Cell::Rounds(bare) = run.tables.first()?.rows.first()?.get(1)? else {
            return None;
        };
        // The bare copies were not made in the same rounds.
        let bare = bare.median();
        let over = own.rounds.values().iter().map(|ns| ns / bare).collect();
        let text = format!("{op} of 4 KiB within 1.5 times a bare copy");
        Some(Aim::at_most(text, over, 1.5))
    }

    fn two_threads(&self, op: &str, place: &str, factor: f64) -> Option<Aim> {
        let gained = self.over("threads", &format!("{op}, {place}"), OURS, (2, 1))?;
        let text = format!("{op}: two threads in {place} at {factor} times one");
        Some(Aim::at_least(text, gained, factor))
    }

    /// A small file made durable while the persister is idle.
    fn fsync(&self) -> Option<Aim> {
        let chart = self.chart("data", "Overwrite of 4 KiB, then fsync")?;
        let ns = chart.line(OURS)?.points.first()?.rounds.clone();
        let text = "overwrite of 4 KiB and fsync, domain line, under 2000 ns".into();
        Some(Aim::at_most(text, ns, 2000.0))
    }

    fn slow_flushes(&self) -> Option<Aim> {
        let over = self.over("latency", "create+close", DELAYED, (800, 0))?;
        let text = "create with 800 ns per flushed line within 5 % of that with none".into();
        Some(Aim::between(text, over, (0.95, 1.05)))
    }

    fn growth(&self, target: &str, place: &str, op: &str) -> Option<Aim> {
        let over = self.over("growth", op, target, (1_000_000, 10_000))?;
        let text =
            format!("{place}, {op}: among 1,000,000 names at most 1.5 times the cost among 10,000");
        Some(Aim::at_most(text, over, 1.5))
    }

    /// The mount within 10 % of a FUSE file system that does nothing, for each operation.
    fn through_fuse(&self) -> Vec<Aim> {
        let Some(chart) = self.chart("mounts", THROUGH_FUSE) else {
            return Vec::new();
        };
        let over = |x: &X| {
            // Times as fast as the mount: what the mount takes over what it takes to do nothing.
            let over = chart.ratio("nullfs", MOUNT, x)?;
            let text = format!(
                "mount, on one core: {} within 1.1 times a FUSE file system that does nothing",
                chart.label(x)
            );
            Some(Aim::at_most(text, over, 1.1))
        };
        chart.xs().into_iter().filter_map(over).collect()
    }

    /// A target's figures at one x over those at another.
    fn over(&self, run: &str, chart: &str, target: &str, (x, base): (u64, u64)) -> Option<Series> {
        let line = self.chart(run, chart)?.line(target)?;
        let (own, base) = line.at(&X::from(x)).zip(line.at(&X::from(base)))?;
        Some(own.rounds.over(&base.rounds))
    }

    /// The check of an image beside e2fsck.
    fn fsck(&self) -> Vec<Aim> {
        let run = self.runs.iter().find(|run| run.name == "fsck");
        let Some(chart) = run.and_then(|run| run.charts.first()) else {
            return Vec::new();
        };
        let beside = |x: &X| {
            let ratio = chart.ratio(FSCK, E2FSCK, x)?;
            let text = format!(
                "{}, {}: {FSCK} at least {FSCK_GAIN} times as fast as {E2FSCK}",
                chart.title,
                chart.label(x)
            );
            Some(Aim::at_least(text, ratio, FSCK_GAIN))
        };
        chart.xs().into_iter().filter_map(beside).collect()
    }

    fn first_mount(&self) -> Option<Aim> {
        let point = self
            .chart("mounts", FIRST_MOUNT)?
            .line("mount")?
            .points
            .last()?;
        let gib = point.x.number()?;
        let text = format!("first mount of a sparse image of {gib} GiB in under 10 ms");
        Some(Aim::at_most(text, point.rounds.clone(), 10.0))
    }

    fn mounts(&self, chart: &str, line: &str, ms_max: f64) -> Option<Aim> {
        let point = self.chart("mounts", chart)?.line(line)?.points.last()?;
        let files = point.x.number()?;
        let text = format!("{line} of an image with {files} files in under {ms_max} ms");
        Some(Aim::at_most(text, point.rounds.clone(), ms_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Better, Line, Point, Run, Shape};

    fn rounds(values: &[f64]) -> Series {
        values.iter().copied().collect()
    }

    #[test]
    fn an_aim_within_the_interval_is_not_decided() {
        let at_least = |values| Aim::at_least(String::new(), rounds(values), 10.0).met;
        assert_eq!(at_least(&[11.0, 12.0, 13.0, 14.0, 15.0]), Verdict::Agrees);
        assert_eq!(at_least(&[6.0, 7.0, 8.0, 9.0, 9.5]), Verdict::Differs);
        assert_eq!(at_least(&[2.0, 28.0, 45.0, 46.0, 47.0]), Verdict::Coarse);
        let at_most = |values| Aim::at_most(String::new(), rounds(values), 10.0).met;
        assert_eq!(at_most(&[6.0, 7.0, 8.0, 9.0, 9.5]), Verdict::Agrees);
        assert_eq!(at_most(&[11.0, 12.0, 13.0, 14.0, 15.0]), Verdict::Differs);
        assert_eq!(at_most(&[8.0, 9.0, 10.0, 11.0, 12.0]), Verdict::Coarse);
    }

    #[test]
    fn a_check_is_held_to_e2fsck_and_names_of_ext2_to_those_of_a_smaller_directory() {
        let line = |target: &str, figures: &[(X, f64)]| Line {
            target: target.into(),
            points: figures
                .iter()
                .map(|(x, value)| Point::new(x.clone(), rounds(&[*value; 5])))
                .collect(),
        };
        let run = |name: &str, title: &str, lines: Vec<Line>| Run {
            charts: vec![Chart {
                lines,
                ..Chart::new(title, "", "ms", Better::Less, Shape::Bars)
            }],
            ..Run::new(name, "")
        };
        let figures = |clean, killed| [("clean, -n".into(), clean), ("killed, -p".into(), killed)];
        let checked = vec![
            line(FSCK, &figures(100.0, 100.0)),
            line(E2FSCK, &figures(600.0, 400.0)),
        ];
        let sizes = [(X::from(10_000u64), 500.0), (X::from(1_000_000u64), 900.0)];
        let report = Report {
            machine: Machine::here(),
            peers: Vec::new(),
            runs: vec![
                run("fsck", "Check of an image", checked),
                run("growth", "stat, at random", vec![line(OUR_EXT2, &sizes)]),
            ],
        };
        let aims = report.aims().rows;
        let said = aims.iter().map(|row| format!("{}: {}", row[0], row[2]));
        let five = "tureen fsck at least 5 times as fast as e2fsck";
        assert_eq!(
            said.collect::<Vec<_>>(),
            [
                "ext2 in-process, stat, at random: among 1,000,000 names at most 1.5 times the \
                 cost among 10,000: no"
                    .to_owned(),
                format!("Check of an image, clean, -n: {five}: yes"),
                format!("Check of an image, killed, -p: {five}: no"),
            ]
        );
    }

    #[test]
    fn fewer_than_five_rounds_decide_no_aim() {
        let few = rounds(&[11.0, 12.0, 13.0, 14.0]);
        let aims = [
            Aim::at_least(String::new(), few.clone(), 10.0),
            Aim::at_most(String::new(), few.clone(), 20.0),
            Aim::between(String::new(), few, (10.0, 20.0)),
        ];
        assert_eq!(aims.map(|aim| aim.met), [Verdict::Coarse; 3]);
    }
}

//! The comparisons that a reader wants to see first: what a user of the mount gets, then
//! in-process.

use super::chart::{Chart, Point, Shape, X};
use super::result::{MOUNT, MOUNT_EXT2, OUR_EXT2, OURS, PERSIST, Report, Run};
use super::table::{Cell, Table};

impl Report {
    /// What a user of the mount gets, beside what else could be there: a row for each operation, a
    /// column for each file system that took part, in units that a person reads. Behind each mount
    /// of ours is what persisting takes where that is not in its figure. Of all runs whose figures
    /// are compared with the mount's.
    pub fn mounted(&self) -> Table {
        let runs = self.runs.iter().filter(|run| run.baseline == MOUNT);
        let charts: Vec<(&Run, &Chart)> = runs
            .flat_map(|run| run.charts.iter().map(move |chart| (run, chart)))
            .filter(|(_, chart)| chart.line(MOUNT).is_some() && !shown(chart).is_empty())
            .collect();
        let mut others: Vec<&str> = Vec::new();
        for line in charts.iter().flat_map(|(_, chart)| &chart.lines) {
            if line.target != MOUNT && !others.contains(&line.target.as_str()) {
                others.push(&line.target);
            }
        }
        let targets = [&[MOUNT], &others[..]].concat();
        let mut columns = vec!["what".to_owned(), "".into(), "unit".into()];
        for &name in &targets {
            columns.push(name.to_owned());
            columns.extend(persists(name).then(|| "persist".to_owned()));
        }
        let rivals = others.iter().filter(|name| RIVALS.contains(name));
        let rivals: Vec<&str> = rivals.copied().collect();
        columns.extend(rivals.iter().map(|name| format!("times as fast as {name}")));
        let mut table = Table::with_columns("", columns);
        for (run, chart) in charts {
            for (i, x) in shown(chart).into_iter().enumerate() {
                let mut row = self.mounted_row((run, chart), x, &targets, &rivals);
                // Once for all rows of a chart.
                if i > 0 {
                    row[0] = Cell::Nothing;
                }
                table.rows.push(row);
            }
        }
        table
    }

    /// Function calls of the engine in-process beside the system calls of the baseline, one row for
    /// each operation or workload. With what persisting takes, and a column of the mount's if it
    /// takes part.
    pub fn in_process(&self) -> Table {
        let mounted = self.has(MOUNT);
        let mut columns = vec!["what", "", "unit", "in-process, function calls", PERSIST];
        columns.extend(mounted.then_some("mount, system calls"));
        columns.extend(["theirs, system calls", PERSIST, "times as fast", "as"]);
        let mut table = Table::new("", &columns);
        let in_process = |run: &&Run| ![OURS, MOUNT].contains(&run.baseline.as_str());
        for run in self.runs.iter().filter(in_process) {
            for chart in &run.charts {
                let rows = shown(chart).into_iter();
                table
                    .rows
                    .extend(rows.filter_map(|x| self.row(run, chart, x)));
            }
        }
        table
    }

    fn mounted_row(
        &self,
        (run, chart): (&Run, &Chart),
        x: &X,
        targets: &[&str],
        rivals: &[&str],
    ) -> Vec<Cell> {
        let points = targets.iter().map(|target| chart.line(target)?.at(x));
        let points: Vec<Option<&Point>> = points.collect();
        let medians = points.iter().flatten().map(|point| point.rounds.median());
        let (unit, divide) = readable(&chart.unit, medians.fold(0.0, f64::max));
        let what = format!("{}: {}", run.name, chart.title);
        let label = self.mounted_label(chart, x);
        let mut row: Vec<Cell> = vec![what.into(), label.into(), unit.into()];
        for (target, point) in targets.iter().zip(points) {
            let cell = |found: f64| Cell::from(found / divide);
            row.push(point.map_or(Cell::Nothing, |point| cell(point.rounds.median())));
            if persists(target) {
                let ns = point.and_then(|point| point.extra(PERSIST));
                // Beside a rate nothing of the same unit could stand.
                let ns = ns.filter(|_| chart.unit == "ns");
                row.push(ns.map_or(Cell::Nothing, cell));
            }
        }
        let ratios = rivals.iter().map(|name| chart.ratio(MOUNT, name, x));
        row.extend(ratios.map(|ratio| ratio.map_or(Cell::Nothing, Cell::Ratio)));
        row
    }

    /// The operation; an append with who allocates blocks then, and not beforehand.
    fn mounted_label(&self, chart: &Chart, x: &X) -> String {
        let label = chart.label(x);
        let named = |name: &str| self.peers.iter().find(|peer| peer.name == name);
        let peer = |name: &str| {
            // Others of the same name have their images in memory.
            let there = named(&format!("{name}, on a disk"));
            there
                .filter(|_| chart.title.contains("on a disk"))
                .or(named(name))
        };
        let mut by: Vec<(&str, Vec<&str>)> = Vec::new();
        for line in &chart.lines {
            let Some(blocks) = peer(&line.target).map(|peer| peer.blocks.as_str()) else {
                continue;
            };
            match by.iter_mut().find(|(own, _)| *own == blocks) {
                Some((_, names)) => names.push(&line.target),
                None => by.push((blocks, vec![&line.target])),
            }
        }
        by.retain(|(blocks, _)| !blocks.is_empty());
        if by.is_empty() || !label.contains("append") {
            return label;
        }
        let each = by
            .iter()
            .map(|(blocks, names)| format!("{blocks}: {}", names.join(", ")));
        format!("{label} (blocks {})", each.collect::<Vec<_>>().join("; "))
    }

    fn has(&self, name: &str) -> bool {
        let mut there = self.peers.iter().filter(|peer| peer.missing.is_none());
        there.any(|peer| peer.name == name)
    }

    /// A row of the table of what is in-process.
    fn row(&self, run: &Run, chart: &Chart, x: &X) -> Option<Vec<Cell>> {
        let at = |target: &str| chart.line(target)?.at(x);
        // A chart has one of our engines, or both apart.
        let ours = [OURS, OUR_EXT2]
            .into_iter()
            .find(|name| at(name).is_some())?;
        let median = |target: &str| Some(Cell::from(at(target)?.rounds.median()));
        let persisted = |target: &str| {
            let ns = at(target).and_then(|point| point.extra(PERSIST));
            ns.map_or(Cell::Nothing, Cell::from)
        };
        let mut row: Vec<Cell> = vec![
            format!("{}: {}", run.name, chart.title).into(),
            self.label(run, chart, x).into(),
            chart.unit.as_str().into(),
            median(ours)?,
            persisted(ours),
        ];
        if self.has(MOUNT) {
            row.push(median(MOUNT).unwrap_or(Cell::Nothing));
        }
        row.extend([
            median(&run.baseline)?,
            persisted(&run.baseline),
            chart
                .ratio(ours, &run.baseline, x)
                .map_or(Cell::Nothing, Cell::Ratio),
            run.baseline.as_str().into(),
        ]);
        Some(row)
    }

    /// The operation; an append with where its blocks come from.
    fn label(&self, run: &Run, chart: &Chart, x: &X) -> String {
        let label = chart.label(x);
        let blocks = |name: &str| {
            let peer = self.peers.iter().find(|peer| peer.name == name)?;
            (!peer.blocks.is_empty()).then_some(&peer.blocks)
        };
        let ours = match chart.line(OURS) {
            Some(_) => OURS,
            None => OUR_EXT2,
        };
        match blocks(ours).zip(blocks(&run.baseline)) {
            Some((ours, theirs)) if label.contains("append") => {
                format!("{label} (blocks: ours {ours}, theirs {theirs})")
            }
            _ => label,
        }
    }
}

/// Those whom the mount's user could have in its place on the same disk.
const RIVALS: [&str; 2] = ["ext4", "fuse2fs"];

/// A mount of ours, of which it is known what persisting takes.
fn persists(target: &str) -> bool {
    [MOUNT, MOUNT_EXT2].contains(&target)
}

/// A unit in which a row's figures have few digits before the point, and how many of the chart's
/// make one.
fn readable(unit: &str, greatest: f64) -> (&str, f64) {
    match unit {
        "ns" if greatest >= 1e7 => ("ms", 1e6),
        "ns" if greatest >= 1e4 => ("us", 1e3),
        unit => (unit, 1.0),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Better, Line, ON_DISK, Peer};

    fn peer(name: &str, blocks: &str) -> Peer {
        Peer {
            name: name.into(),
            about: String::new(),
            durability: String::new(),
            blocks: blocks.into(),
            missing: None,
        }
    }

    /// A chart with the same figure of each target in five rounds.
    fn chart(title: &str, op: &str, targets: &[(&str, f64)]) -> Chart {
        let line = |&(name, ns): &(&str, f64)| Line {
            target: name.into(),
            points: vec![Point {
                extra: vec![(PERSIST.into(), ns / 2.0)],
                ..Point::new(op, [ns; 5].into_iter().collect())
            }],
        };
        Chart {
            lines: targets.iter().map(line).collect(),
            ..Chart::new(title, "operation", "ns", Better::Less, Shape::Bars)
        }
    }

    fn report(name: &str, baseline: &str, chart: Chart) -> Report {
        let run = Run {
            baseline: baseline.into(),
            charts: vec![chart],
            ..Run::new(name, "")
        };
        Report {
            machine: Machine::here(),
            peers: vec![peer(OURS, "there before"), peer("tmpfs", "made then")],
            runs: vec![run],
        }
    }

    fn texts(table: &Table) -> Vec<String> {
        table.rows[0].iter().map(Cell::to_string).collect()
    }

    #[test]
    fn a_user_of_the_mount_sees_it_beside_each_other_file_system() {
        let targets = [(MOUNT, 1e5), (MOUNT_EXT2, 2e5), ("ext4", 3e5)];
        let report = report("disk", MOUNT, chart(ON_DISK, "stat", &targets));
        let table = report.mounted();
        let columns = ["mount", "persist", "mount ext2", "persist", "ext4"];
        assert_eq!(table.columns[3..8], columns);
        let what = format!("disk: {ON_DISK}");
        let row = [&what, "stat", "us", "100", "50.0", "200", "100", "300"];
        assert_eq!(texts(&table)[..8], row);
        assert_eq!(texts(&table)[8], "3.00 [3.00 to 3.00]");
    }

    #[test]
    fn what_ends_in_fsync_has_persisting_in_its_figure_and_a_rate_has_none_beside() {
        let targets = [(MOUNT, 1e5), ("ext4", 3e5)];
        let mut durable = chart(ON_DISK, "append 4 KiB, fsync", &targets);
        for line in &mut durable.lines {
            line.points[0].extra.clear();
        }
        let mut rate = chart(ON_DISK, "create", &targets);
        rate.unit = "1000/s".into();
        for chart in [durable, rate] {
            let row = texts(&report("disk", MOUNT, chart).mounted());
            assert_eq!(row[4], "", "{row:?}");
        }
    }

    #[test]
    fn an_append_through_a_mount_says_on_whom_blocks_are_allocated_then() {
        let targets = [(MOUNT, 1e5), ("ext4", 3e5), ("host", 2e5), ("tmpfs", 1e4)];
        let mut report = report("disk", MOUNT, chart(ON_DISK, "append 4 KiB", &targets));
        report.peers = vec![
            peer("ext4", "made then"),
            peer("mount, on a disk", "there before"),
            peer("ext4, on a disk", "there before"),
            peer("host", "made then"),
            peer("tmpfs", "made then"),
        ];
        let said = "append 4 KiB (blocks there before: mount, ext4; made then: host, tmpfs)";
        assert_eq!(texts(&report.mounted())[1], said);
        report.runs[0].charts[0] = chart(ON_DISK, "stat", &targets);
        assert_eq!(texts(&report.mounted())[1], "stat");
    }

    #[test]
    fn persisting_stands_beside_and_an_append_says_where_its_blocks_come_from() {
        let targets = [(OURS, 100.0), ("tmpfs", 300.0)];
        let report = report("data", "tmpfs", chart("4 KiB", "append", &targets));
        let row = texts(&report.in_process());
        assert_eq!(
            row[1],
            "append (blocks: ours there before, theirs made then)"
        );
        assert_eq!(row[3..7], ["100", "50.0", "300", "150"]);
    }
}

//! What is aimed at for users of the mount, and of an engine on an ordinary disk.

use super::aims::Aim;
use super::chart::{Chart, X};
use super::result::{
    BARE_WRITE, BESIDE_WRITER, CLIENTS, DATABASES, DURABLE_CREATE, HOST, IN_PROCESS_ON_DISK, LARGE,
    MEDIAN_REQUEST, MOUNT, MOUNT_EXT2, ON_DISK, ONE_CORE, OURS, PROGRAMS, PROGRAMS_IN_MEMORY,
    QUIET, Report, SLOW_REQUEST, SMALL_FSYNC, THREADS_ON_DISK,
};
use crate::series::Series;

/// What a create with 4 KiB and fsync may write to the disk: bytes, and writes.
const WRITTEN_MAX: [(&str, f64); 2] = [("disk bytes", 16384.0), ("disk writes", 2.0)];

/// How much faster than fuse2fs a mount of ext2 is to be, with programs that look at, make and
/// remove many small files, and with those of which contents are the larger part.
const METADATA_GAIN: f64 = 3.0;
/// See [`METADATA_GAIN`].
const DATA_GAIN: f64 = 1.2;

/// Programs that read and write contents, or compute, for the larger part of their time: three
/// times as fast as fuse2fs, some of them would be faster than on tmpfs.
const OF_DATA: [&str; 4] = ["grep -r", "cargo build", "git clone", "git gc"];

/// How much slower than that of SoupFS a mount of ext2 may be.
const BESIDE_SOUPFS: f64 = 1.0 / 1.5;

impl Report {
    /// The aims of the mount that the runs of this report decide.
    pub(super) fn mounted_aims(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        for (run, what, title) in [
            ("disk", "disk", ON_DISK),
            ("disk", "disk, 16 threads", THREADS_ON_DISK),
            ("databases", "databases", DATABASES),
        ] {
            aims.extend(self.as_fast((run, what, title), (MOUNT, "ext4"), 1.0));
        }
        aims.extend(self.written());
        aims.extend(self.bare());
        aims.extend(self.as_fast(("large", "large", LARGE), (MOUNT, "ext4"), 1.0 / 1.1));
        aims.extend(self.beside_writer());
        aims.extend(self.requests());
        let programs = ("programs", "programs", PROGRAMS);
        aims.extend(self.as_fast(programs, (MOUNT, "ext4"), 1.0 / 1.5));
        aims.extend(self.as_fast(programs, (MOUNT, "fuse2fs"), 1.0));
        aims.extend(self.mounted_ext2());
        aims
    }

    /// A mount of ext2 beside fuse2fs, and beside that of SoupFS.
    fn mounted_ext2(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        let of_program = |op: &str| match OF_DATA.contains(&op) {
            true => DATA_GAIN,
            false => METADATA_GAIN,
        };
        let of_data = |_: &str| DATA_GAIN;
        let programs = [
            ("programs", "programs", PROGRAMS),
            ("programs", "programs in memory", PROGRAMS_IN_MEMORY),
        ];
        let databases = ("databases", "databases", DATABASES);
        let (own, fuse2fs) = (MOUNT_EXT2, "fuse2fs");
        for programs in programs {
            aims.extend(self.as_fast_by(programs, (own, fuse2fs), &of_program));
        }
        for data in [databases, ("large", "large", LARGE)] {
            aims.extend(self.as_fast_by(data, (own, fuse2fs), &of_data));
        }
        for place in programs.into_iter().chain([databases]) {
            aims.extend(self.as_fast(place, (own, MOUNT), BESIDE_SOUPFS));
        }
        aims
    }

    /// A mount at least so many times as fast as another target, in each operation of a chart of a
    /// run; of small files in those that are durable at return.
    fn as_fast(&self, place: (&str, &str, &str), targets: (&str, &str), least: f64) -> Vec<Aim> {
        self.as_fast_by(place, targets, &|_| least)
    }

    /// The same, with a number for each operation.
    fn as_fast_by(
        &self,
        (run, what, title): (&str, &str, &str),
        (own, other): (&str, &str),
        least: &dyn Fn(&str) -> f64,
    ) -> Vec<Aim> {
        let Some(chart) = self.chart(run, title) else {
            return Vec::new();
        };
        let how = |least: f64| match least {
            1.0 => format!("at least as fast as {other}"),
            least if least > 1.0 => format!("{least} times as fast as {other}"),
            least => format!("within {:.1} times {other}", 1.0 / least),
        };
        let beside = |x: &X| {
            let op = chart.label(x);
            let least = least(&op);
            let how = how(least);
            let ratio = chart.ratio(own, other, x)?;
            let durable = title != ON_DISK || op.contains("sync");
            durable.then(|| Aim::at_least(format!("{own}, {what}, {op}: {how}"), ratio, least))
        };
        chart.xs().into_iter().filter_map(beside).collect()
    }

    /// What reaches the disk for a small file that is made durable.
    fn written(&self) -> Vec<Aim> {
        let Some(chart) = self.chart("disk", ON_DISK) else {
            return Vec::new();
        };
        let point = chart
            .line(MOUNT)
            .and_then(|line| line.at(&DURABLE_CREATE.into()));
        let each = WRITTEN_MAX.iter().filter_map(|(name, most)| {
            let count = point?.extra(&format!("{name}/op"))?;
            let text = format!("mount, disk, {DURABLE_CREATE}: at most {most} {name}");
            Some(Aim::counted(text, count, *most))
        });
        each.collect()
    }

    /// A commit in-process beside what the disk takes for as many bytes.
    fn bare(&self) -> Option<Aim> {
        let chart = self.chart("disk", IN_PROCESS_ON_DISK)?;
        let own = rounds(chart, OURS, DURABLE_CREATE)?;
        let bare = rounds(chart, HOST, BARE_WRITE)?;
        let text = format!(
            "in-process on a disk, {DURABLE_CREATE}: within 1.3 times a bare 8 KiB and fdatasync"
        );
        Some(Aim::at_most(text, own.over(bare), 1.3))
    }

    /// A slow fsync beside a writer over a slow one with nobody beside.
    fn beside_writer(&self) -> Option<Aim> {
        let chart = self.chart("large", SMALL_FSYNC)?;
        let beside = rounds(chart, MOUNT, BESIDE_WRITER[1])?;
        let over = beside.over(rounds(chart, MOUNT, QUIET[1])?);
        let text = "mount, large, fsync beside a writer: 99 % within 5 times those of a quiet disk";
        Some(Aim::at_most(text.into(), over, 5.0))
    }

    /// Requests of clients anywhere beside those on the server's core.
    fn requests(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        for (title, part, most) in [
            (MEDIAN_REQUEST, "the median", 1.3),
            (SLOW_REQUEST, "90 %", 2.0),
        ] {
            let Some(chart) = self.chart("requests", title) else {
                continue;
            };
            aims.extend(chart.xs().into_iter().filter_map(|x| {
                let over = chart.ratio(ONE_CORE, MOUNT, x)?;
                let text = format!(
                    "mount, requests, {}: {part} within {most} times that on one core",
                    chart.label(x)
                );
                Some(Aim::at_most(text, over, most))
            }));
        }
        let two = self.chart("requests", CLIENTS).and_then(|chart| {
            let line = chart.line(MOUNT)?;
            let (two, one) = line.at(&2u64.into()).zip(line.at(&1u64.into()))?;
            Some(two.rounds.over(&one.rounds))
        });
        let text = "mount, requests: two clients on two cores at 1.6 times one";
        aims.extend(two.map(|two| Aim::at_least(text.into(), two, 1.6)));
        aims
    }
}

fn rounds<'a>(chart: &'a Chart, target: &str, x: &str) -> Option<&'a Series> {
    Some(&chart.line(target)?.at(&x.into())?.rounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Better, Line, Point, Run, Shape};

    /// A report with one chart: targets with their figures at each x, the same in five rounds.
    fn report(run: &str, title: &str, better: Better, lines: &[(&str, &[(&str, f64)])]) -> Report {
        let line = |&(target, figures): &(&str, &[(&str, f64)])| Line {
            target: target.into(),
            points: figures
                .iter()
                .map(|&(x, value)| Point {
                    extra: vec![
                        ("disk bytes/op".into(), value),
                        ("disk writes/op".into(), 3.0),
                    ],
                    ..Point::new(x, [value; 5].into_iter().collect())
                })
                .collect(),
        };
        let chart = Chart {
            lines: lines.iter().map(line).collect(),
            ..Chart::new(title, "operation", "ns", better, Shape::Bars)
        };
        Report {
            machine: Machine::here(),
            peers: Vec::new(),
            runs: vec![Run {
                charts: vec![chart],
                ..Run::new(run, "")
            }],
        }
    }

    fn met(report: &Report) -> Vec<String> {
        let rows = report.aims().rows;
        rows.iter().map(|row| row[2].to_string()).collect()
    }

    #[test]
    fn the_mount_is_held_to_ext4_where_it_is_durable_and_to_what_reaches_the_disk() {
        let figures = |ns: f64| [("stat", ns), (DURABLE_CREATE, ns)];
        let (own, other) = (figures(10_000.0), figures(9_000.0));
        let lines = [(MOUNT, &own[..]), ("ext4", &other[..])];
        let slower = report("disk", ON_DISK, Better::Less, &lines);
        // As fast as ext4; at most 16 KiB; at most 2 writes.
        assert_eq!(met(&slower), ["no", "yes", "no"]);
    }

    #[test]
    fn a_commit_in_process_is_held_to_a_bare_write_of_the_same_disk() {
        let lines = [
            (OURS, &[(DURABLE_CREATE, 120.0)][..]),
            (HOST, &[(DURABLE_CREATE, 500.0), (BARE_WRITE, 100.0)][..]),
        ];
        let near = report("disk", IN_PROCESS_ON_DISK, Better::Less, &lines);
        assert_eq!(met(&near), ["yes"]);
    }

    #[test]
    fn programs_are_held_to_ext4_and_to_fuse2fs_and_requests_to_one_core() {
        let lines = [
            (MOUNT, &[("cp -a", 140.0)][..]),
            ("ext4", &[("cp -a", 100.0)][..]),
            ("fuse2fs", &[("cp -a", 120.0)][..]),
        ];
        let programs = report("programs", PROGRAMS, Better::Less, &lines);
        assert_eq!(met(&programs), ["yes", "no"]);
        let lines = [
            (MOUNT, &[("plain loop", 20.0)][..]),
            (ONE_CORE, &[("plain loop", 10.0)][..]),
        ];
        let requests = report("requests", MEDIAN_REQUEST, Better::Less, &lines);
        assert_eq!(met(&requests), ["no"]);
    }

    #[test]
    fn a_mount_of_ext2_is_held_to_fuse2fs_by_what_a_program_does_and_to_the_mount_of_soupfs() {
        let figures = |ns: f64| [("tar x", ns), ("git gc", ns)];
        let [own, soupfs, fuse2fs] = [100.0, 90.0, 150.0].map(figures);
        let lines = [
            (MOUNT_EXT2, &own[..]),
            (MOUNT, &soupfs[..]),
            ("fuse2fs", &fuse2fs[..]),
        ];
        let said = |run: &str, title: &str| -> Vec<(String, String)> {
            let rows = report(run, title, Better::Less, &lines).aims().rows;
            let rows = rows
                .iter()
                .map(|row| (row[0].to_string(), row[2].to_string()));
            rows.filter(|(aim, _)| aim.starts_with(MOUNT_EXT2))
                .collect()
        };
        let rows = |aims: &[(&str, &str)]| -> Vec<(String, String)> {
            let aims = aims
                .iter()
                .map(|(aim, met)| (format!("mount ext2, {aim}"), (*met).into()));
            aims.collect()
        };
        assert_eq!(
            said("programs", PROGRAMS_IN_MEMORY),
            rows(&[
                (
                    "programs in memory, tar x: 3 times as fast as fuse2fs",
                    "no"
                ),
                (
                    "programs in memory, git gc: 1.2 times as fast as fuse2fs",
                    "yes"
                ),
                ("programs in memory, tar x: within 1.5 times mount", "yes"),
                ("programs in memory, git gc: within 1.5 times mount", "yes"),
            ])
        );
        let databases = said("databases", DATABASES);
        let met = databases.iter().map(|(_, met)| met.as_str());
        assert_eq!(met.collect::<Vec<_>>(), ["yes"; 4]);
    }

    #[test]
    fn an_fsync_beside_a_writer_is_held_to_a_quiet_one() {
        let figures = [(QUIET[1], 100.0), (BESIDE_WRITER[1], 600.0)];
        let lines = [(MOUNT, &figures[..])];
        let large = report("large", SMALL_FSYNC, Better::Less, &lines);
        assert_eq!(met(&large), ["no"]);
    }
}

//! Families run, small, and what they give can be kept, merged and shown.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bench::machine::Machine;
use bench::participants::Participants;
use bench::plan::{Plan, Progress};
use bench::report::{Report, Verdict, document, page};
use bench::suite::{Family, Size};
use bench::{Setup, Target, TargetSpec};

/// A disk that nobody waits for.
fn memory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() {
        shm
    } else {
        std::env::temp_dir()
    }
}

/// A plan that takes moments: its figures mean nothing.
fn plan() -> Plan {
    Plan {
        scratch: std::env::temp_dir(),
        disk: memory(),
        rounds: 2,
        divide: 500,
        window: Duration::from_millis(2),
        threads: vec![1, 2],
        ..Size::Full.plan()
    }
}

/// Families that run at a time: they wait for disks and programs, and their figures mean nothing.
const SIDE_BY_SIDE: usize = 2;

/// What these families give, in their order.
fn report(families: &[&str]) -> Report {
    let next = AtomicUsize::new(0);
    let found: Vec<_> = families.iter().map(|_| OnceLock::new()).collect();
    let run_some = || {
        while let Some((name, found)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            families.get(i).zip(found.get(i))
        } {
            let family = Family::of(name).unwrap();
            let result = family.run(&plan(), Size::Full, "a test").unwrap();
            assert!(found.set(result).is_ok());
        }
    };
    std::thread::scope(|scope| (0..SIDE_BY_SIDE).for_each(|_| drop(scope.spawn(run_some))));
    let mut report = Report {
        machine: Machine::here(),
        peers: Vec::new(),
        runs: Vec::new(),
    };
    for found in found {
        let (run, peers) = found.into_inner().unwrap();
        report.merge(Report {
            machine: Machine::here(),
            peers,
            runs: vec![run],
        });
    }
    report
}

/// Families without a time of their own that a test would have to wait for.
const FAST: [&str; 23] = [
    "disk",
    "databases",
    "sqlite",
    "large",
    "programs",
    "names",
    "data",
    "postmark",
    "filebench",
    "ext2",
    "soft-updates",
    "caches",
    "latency",
    "fxmark",
    "strong",
    "sharing",
    "threads",
    "growth",
    "sizes",
    "mounts",
    "fsck",
    "endurance",
    "modes",
];

/// Of all of these, run once for all tests that only look at what they give.
static REPORT: LazyLock<Report> = LazyLock::new(|| report(&FAST));

#[test]
fn each_family_gives_figures_that_survive_json_and_can_be_shown() {
    let report = &*REPORT;
    let json = serde_json::to_string(&report).unwrap();
    let back: Report = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
    assert_eq!(document(&back, "t", &[]), document(report, "t", &[]));
    assert_eq!(page(&back), page(report));
    for run in &report.runs {
        let figures = run.charts.iter().flat_map(|chart| &chart.lines);
        let empty = figures.filter(|line| line.points.is_empty()).count();
        assert_eq!(empty, 0, "{}", run.name);
        assert!(!run.all_tables().is_empty(), "{}", run.name);
        for point in run
            .charts
            .iter()
            .flat_map(|chart| &chart.lines)
            .flat_map(|line| &line.points)
        {
            let values = point.rounds.values();
            assert!(
                values.iter().all(|value| value.is_finite()),
                "{}: {point:?}",
                run.name
            );
        }
    }
    let svgs = page(report).matches("<svg").count();
    let charts: usize = report.runs.iter().map(|run| run.charts.len()).sum();
    assert_eq!(svgs, charts);
}

#[test]
fn a_later_result_takes_the_place_of_an_earlier_one_of_the_same_family() {
    let mut first = REPORT.clone();
    first
        .runs
        .retain(|run| ["postmark", "sharing"].contains(&run.name.as_str()));
    let mut second = first.clone();
    second.runs.truncate(1);
    second.runs[0].command = "again".into();
    first.merge(second);
    let commands: Vec<_> = first.runs.iter().map(|run| run.command.as_str()).collect();
    assert_eq!(commands, ["again", "a test"]);
}

#[test]
fn callers_of_the_engine_flush_nothing_and_the_report_says_so() {
    let aims = REPORT.aims();
    let row = aims
        .rows
        .iter()
        .find(|row| row[0].to_string().contains("no flush"));
    assert_eq!(row.unwrap()[2].to_string(), "yes");
}

#[test]
fn a_claim_over_somebody_who_took_no_part_is_not_said_to_agree() {
    let others = ["NOVA", "PMFS", "EXT4", "HTMFS scales", "in HTMFS"];
    for run in &REPORT.runs {
        for check in &run.checks {
            if others.iter().any(|name| check.paper.contains(name)) {
                assert_eq!(check.verdict, Verdict::Absent, "{check}");
            }
        }
    }
}

#[test]
fn all_targets_run_in_each_round_and_each_round_begins_with_another_one() {
    struct Steps(Mutex<Vec<String>>);
    impl Progress for Steps {
        fn step(&self, what: &str, _done: usize, _steps: usize) {
            self.0.lock().unwrap().push(what.to_owned());
        }
    }
    let seen = std::sync::Arc::new(Steps(Mutex::default()));
    let plan = Plan {
        progress: seen.clone(),
        ..plan()
    };
    Family::of("postmark")
        .unwrap()
        .run(&plan, Size::Full, "")
        .unwrap();
    let (a, b) = ("postmark: SoupFS in-process", "postmark: tmpfs");
    // Preparing, warming up, and two rounds.
    assert_eq!(*seen.0.lock().unwrap(), [a, b, a, b, b, a, a, b]);
}

#[test]
fn the_engine_and_a_directory_list_the_same_names() {
    let setup = Setup {
        len: 64 << 20,
        ..Setup::default()
    };
    let specs = ["soupfs", "ffs", "ffs:mode=async,cache=tinca", "tmpfs"];
    let specs = specs.map(|spec| spec.parse().unwrap());
    let participants = Participants::of(&plan(), &specs, &setup).unwrap();
    for participant in &participants.running {
        use bench::participants::AnyTarget::{Blocks, Directory, Engine};
        let listed = match &participant.target {
            Engine(engine) => listed(engine.as_ref()),
            Blocks(blocks) => listed(&blocks.engine),
            Directory(directory) => listed(directory),
        };
        assert_eq!(listed, 3002, "{}", participant.peer.name);
    }
}

fn listed<T: Target>(target: &T) -> u64 {
    target.mkdir(c"dir").unwrap();
    for i in 0..3000 {
        let name = std::ffi::CString::new(format!("dir/{i}")).unwrap();
        target.create_close(&name).unwrap();
    }
    target.list(c"dir").unwrap()
}

#[test]
fn filebench_has_files_for_each_of_many_threads() {
    let many = Plan {
        targets: vec!["soupfs".parse().unwrap()],
        threads: vec![32],
        divide: 100,
        rounds: 1,
        ..plan()
    };
    let family = Family::of("filebench").unwrap();
    let (run, _) = family.run(&many, Size::Full, "").unwrap();
    assert!(
        run.notes[0].contains("fileserver 320 files"),
        "{}",
        run.notes[0]
    );
}

#[test]
fn what_warms_up_is_counted_nowhere_and_where_nothing_does_the_notes_say_so() {
    let found = REPORT
        .runs
        .iter()
        .filter(|run| ["names", "growth", "sizes"].contains(&run.name.as_str()));
    for run in found {
        let points = run.charts.iter().flat_map(|chart| &chart.lines);
        for point in points.flat_map(|line| &line.points) {
            assert_eq!(point.rounds.values().len(), plan().rounds, "{point:?}");
        }
        let said = run.notes.iter().any(|note| note.contains("warms up"));
        assert_eq!(said, run.name != "names", "{}: {:?}", run.name, run.notes);
    }
}

/// Root has loop devices, mostly; others learn why there is no such target.
#[test]
fn a_kernel_file_system_takes_part_and_leaves_nothing_or_says_why_not() {
    let scratch = tempfile::tempdir().unwrap();
    let own = scratch.path().to_string_lossy();
    // Others on this machine have loop devices of theirs.
    let devices = || {
        let found = std::process::Command::new("losetup").arg("--all").output();
        found.map_or(String::new(), |found| {
            let text = String::from_utf8_lossy(&found.stdout).into_owned();
            let ours = text.lines().filter(|line| line.contains(&*own));
            ours.collect::<Vec<_>>().join("\n")
        })
    };
    let setup = Setup {
        len: 64 << 20,
        ..Setup::default()
    };
    let specs = ["tmpfs", "ext4", "ext3", "ext2", "ext4:data=journal"];
    let specs: [TargetSpec; 5] = specs.map(|spec| spec.parse().unwrap());
    let plan = Plan {
        scratch: scratch.path().into(),
        ..plan()
    };
    let participants = Participants::of(&plan, &specs, &setup).unwrap();
    let peers = participants.peers();
    for (name, mkfs) in [
        ("ext4", "mkfs.ext4"),
        ("ext3", "mkfs.ext3"),
        ("ext2", "mkfs.ext2"),
        ("ext4 data=journal", "mounted with data=journal"),
    ] {
        let peer = peers.iter().find(|peer| peer.name == name).unwrap();
        match &peer.missing {
            Some(why) => assert!(!why.is_empty()),
            None => {
                assert!(peer.about.contains(mkfs), "{}", peer.about);
                assert_ne!(devices(), "", "the device is seen while it is there");
            }
        }
    }
    drop(participants);
    // Whoever looks at all devices has this one open for a moment; the last one to close it frees
    // it.
    let begin = Instant::now();
    while !devices().is_empty() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::yield_now();
    }
    assert_eq!(devices(), "");
}

/// Directories that mounts were attached to are removed, too.
#[test]
fn programs_leave_nothing_on_the_disk() {
    let disk = tempfile::tempdir_in(memory()).unwrap();
    let plan = Plan {
        disk: disk.path().into(),
        ..plan()
    };
    for family in ["programs", "databases", "sqlite"] {
        Family::of(family)
            .unwrap()
            .run(&plan, Size::Full, "")
            .unwrap();
        let left: Vec<_> = std::fs::read_dir(disk.path()).unwrap().collect();
        assert!(left.is_empty(), "{family}: {left:?}");
    }
}

/// The same program and statements for all; in an image a transaction is one write, by count.
#[test]
fn sqlite_in_an_image_is_measured_beside_sqlite_on_file_systems() {
    let run = REPORT.runs.iter().find(|run| run.name == "sqlite").unwrap();
    if run
        .notes
        .iter()
        .any(|note| note.contains("is not installed"))
    {
        testing::skip!("needs sqlite3");
    }
    let complained = run.notes.iter().find(|note| note.starts_with("no figure"));
    assert_eq!(complained, None);
    for chart in &run.charts {
        for target in [
            "VFS, no journal",
            "VFS, rollback journal",
            "VFS, WAL",
            "tmpfs, rollback journal",
            "tmpfs, WAL",
        ] {
            let line = chart.line(target).unwrap();
            let xs: Vec<_> = line.points.iter().map(|point| point.x.clone()).collect();
            let both = ["an insert", "TPC-C, a transaction"];
            assert_eq!(xs, both.map(|x| x.into()), "{}, {target}", chart.title);
        }
        let insert = &chart.line("VFS, no journal").unwrap().points[0];
        let count = |name: &str| insert.extra.iter().find(|(own, _)| own == name);
        let (_, fences) = count("fences/op").unwrap();
        assert!((1.0..3.0).contains(fences), "{}: {fences}", chart.title);
    }
}

#[test]
fn what_makes_requests_of_a_mount_runs_on_any_target_and_cleans_up() {
    use bench::runner::run_rounds;
    use bench::workloads::requests::{CHART, OPS, Requests};
    let setup = Setup {
        len: 64 << 20,
        ..Setup::default()
    };
    let specs = ["soupfs", "ffs", "ffs:cache=spindle", "tmpfs"];
    let specs = specs.map(|spec| spec.parse().unwrap());
    let participants = Participants::of(&plan(), &specs, &setup).unwrap();
    // Several rounds: each finds what the one before left.
    let measured = run_rounds(&plan(), &participants, "", &Requests::new(50).unwrap()).unwrap();
    let (shape, better) = (bench::report::Shape::Bars, bench::report::Better::Less);
    let chart = measured.chart(CHART, ("", "operation"), shape, better);
    assert_eq!(
        chart.xs(),
        OPS.map(|op| op.into()).iter().collect::<Vec<_>>()
    );
}

#[test]
fn without_a_program_to_trace_or_to_mount_the_notes_say_so() {
    for (family, said) in [
        ("scaling", "nothing was traced"),
        ("mounts", "no figures of the mount"),
        ("requests", "no figures of the mount"),
        ("fsck", "no figures of a killed image"),
    ] {
        let run = report(&[family]).runs.remove(0);
        assert!(
            run.notes.iter().any(|note| note.contains(said)),
            "{:?}",
            run.notes
        );
    }
}

#[test]
fn in_one_run_of_all_families_the_kernels_file_systems_take_part_where_the_papers_have_them() {
    let plan = Plan {
        targets: vec!["soupfs".parse().unwrap(), "ext4".parse().unwrap()],
        rounds: 1,
        ..plan()
    };
    let peers = |family: &str, size| {
        let (_, peers) = Family::of(family).unwrap().run(&plan, size, "").unwrap();
        peers.into_iter().map(|peer| peer.name).collect::<Vec<_>>()
    };
    assert_eq!(peers("postmark", Size::All), ["SoupFS in-process", "ext4"]);
    assert_eq!(peers("threads", Size::All), ["SoupFS in-process"]);
    assert_eq!(peers("threads", Size::Full), ["SoupFS in-process", "ext4"]);
}

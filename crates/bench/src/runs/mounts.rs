//! The mount: its requests beside those of a FUSE file system that does nothing, and among ever
//! more files the time of a mount and of an offline check.

use std::path::Path;
use std::time::Instant;

use soupfs::fsck::{CheckOptions, Outcome, check};

use super::growth::powers;
use super::pinned::Pinned;
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{
    Better, Chart, FIRST_MOUNT, Found, Line, Peer, Point, Run, Shape, THROUGH_FUSE,
};
use crate::runner::run_rounds;
use crate::series::Series;
use crate::target::{Engine, Result, Setup, TargetSpec};
use crate::workloads::requests::{self, Requests};
use crate::workloads::tree::Tree;

const FIRST: u64 = 100;
const FILES_PER_DIR: u64 = 1_000;
const DATA_EVERY: u64 = 10;
/// Fewer than five rounds decide nothing.
const CHECKS_MAX: usize = 5;
/// Room for each file: an inode, an entry, a block of contents for some.
const BYTES_EACH: u64 = 2048;
const OPEN: &str = "open";
const MOUNT: &str = "mount";
const CHECK: &str = "check";
/// The same as [`THROUGH_FUSE`], with the cores that there are.
const ACROSS_CORES: &str = "Through FUSE, across cores";
/// Sizes of images that are mounted after mkfs: GiB.
const EMPTY_GIB: [u64; 3] = [1, 32, 1024];
/// Of each operation through FUSE, and no fewer than that, which is some ten milliseconds.
const REQUESTS: u64 = 2_000;
const REQUESTS_MIN: u64 = 500;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let last = plan.scaled(plan.up_to).max(FIRST);
    let setup = Setup {
        len: (256 << 20) + last * BYTES_EACH,
        ..plan.setup()
    };
    let temp = plan.temp()?;
    let image = temp.path().join("image");
    setup.create(&image)?;
    let sizes = powers(FIRST, last);
    let mut lines = [OPEN, MOUNT, CHECK].map(|name| Line {
        target: name.into(),
        points: Vec::new(),
    });
    for (i, &size) in sizes.iter().enumerate() {
        plan.progress.step(&format!("{size} files"), i, sizes.len());
        let have = if i == 0 { 0 } else { sizes[i - 1] };
        let engine = setup.mount("SoupFS", setup.open(&image)?)?;
        build(&engine, i, size - have)?;
        engine.unmount()?;
        for (line, rounds) in lines.iter_mut().zip(measure(plan, &setup, &image)?) {
            line.points.push(Point::new(size, rounds));
        }
    }
    let about = format!("requests through FUSE; an image with up to {last} files");
    let mut run = Run::new("mounts", about);
    let peers = through_fuse(plan, &mut run)?;
    let [open, mount, check] = lines;
    run.charts.extend([
        chart("Time of a mount", vec![open, mount]),
        chart("Time of an offline check", vec![check]),
        first_mounts(plan)?,
    ]);
    run.notes.extend([
        format!(
            "files in directories of {FILES_PER_DIR}, one in {DATA_EVERY} with 4 KiB; after a \
         clean unmount"
        ),
        "open: map the image file and find out what it is; mount: until the file system can be \
         used"
            .into(),
        "first mount: of a sparse image, right after mkfs, each round a new one".into(),
        "check: all names and maps, nothing to repair, on all cores".into(),
    ]);
    Ok((run, peers))
}

/// What operations take through FUSE, beside a file system that does nothing. Where there is no
/// FUSE, the notes say so.
fn through_fuse(plan: &Plan, run: &mut Run) -> Result<Vec<Peer>> {
    let work = Requests::new(plan.scaled(REQUESTS).max(REQUESTS_MIN))?;
    let mut peers = Vec::new();
    for title in [THROUGH_FUSE, ACROSS_CORES] {
        let _pinned = (title == THROUGH_FUSE).then(Pinned::new).transpose()?;
        let participants = match both(plan) {
            Ok(both) => both,
            Err(why) => {
                run.notes.push(format!("no figures of the mount: {why}"));
                return Ok(Vec::new());
            }
        };
        let measured = run_rounds(plan, &participants, title, &work)?;
        let (x, shape) = ("operation", Shape::Bars);
        run.charts
            .push(measured.chart(requests::CHART, (title, x), shape, Better::Less));
        peers = participants.peers();
    }
    run.baseline = TargetSpec::Null.name();
    run.notes.extend([
        "nullfs: the same library, threads and session as the mount, answers are constants; so \
         what it takes \
         is the kernel's and the library's"
            .into(),
        "one core: caller, serving process and persister share it, so that what is seen is what \
         each request \
         computes; across cores most of the time is waking a core, which differs widely from \
         moment to moment"
            .into(),
        "requests: FORGET is not counted (nobody waits for it), nor is what reads the \
         counters"
            .into(),
        "stat: after a write, so that the kernel has to ask; lookup: of a name that does not \
         exist; read: not \
         cached, without read-ahead; append, write: to a file that has been written before"
            .into(),
    ]);
    Ok(peers)
}

/// The mount and the file system that does nothing: an error if one of them cannot take part.
fn both(plan: &Plan) -> Result<Participants> {
    let specs = [TargetSpec::Mount(String::new()), TargetSpec::Null];
    let setup = Setup {
        len: 512 << 20,
        ..plan.setup()
    };
    let both = Participants::of(plan, &specs, &setup)?;
    match both.missing.first() {
        None => Ok(both),
        Some(peer) => Err(format!("{} {}", peer.name, peer.told()).into()),
    }
}

/// Empty images, mounted for the first time after mkfs: sizes of the medium that nothing is on.
fn first_mounts(plan: &Plan) -> Result<Chart> {
    let temp = plan.temp()?;
    let image = temp.path().join("image");
    let mut lines = [OPEN, MOUNT].map(|name| Line {
        target: name.into(),
        points: Vec::new(),
    });
    for gib in EMPTY_GIB {
        plan.progress.step(&format!("{gib} GiB, empty"), 0, 1);
        let setup = Setup {
            len: gib << 30,
            sparse: true,
            ..plan.setup()
        };
        let mut series: [Series; 2] = Default::default();
        for _ in 0..plan.rounds {
            drop(setup.create(&image)?);
            let (open, mount) = super::scale::mount_once(plan, &setup, &image)?;
            series[0].push(open);
            series[1].push(mount);
            std::fs::remove_file(&image)?;
        }
        for (line, rounds) in lines.iter_mut().zip(series) {
            line.points.push(Point::new(gib, rounds));
        }
    }
    let shape = Shape::Growth;
    Ok(Chart {
        lines: lines.into(),
        ..Chart::new(FIRST_MOUNT, "GiB", "ms", Better::Less, shape)
    })
}

fn chart(title: &str, lines: Vec<Line>) -> Chart {
    Chart {
        lines,
        ..Chart::new(title, "files", "ms", Better::Less, Shape::Growth)
    }
}

/// `count` more files, in a directory for this step.
fn build(engine: &Engine, step: usize, count: u64) -> Result<()> {
    let tree = Tree {
        dirs: count.div_ceil(FILES_PER_DIR),
        files: FILES_PER_DIR.min(count),
        data_every: DATA_EVERY,
    };
    tree.build_in(engine, &format!("step{step}"))
}

/// Rounds of opening, mounting and checking: ms.
fn measure(plan: &Plan, setup: &Setup, image: &Path) -> Result<[Series; 3]> {
    let mut series: [Series; 3] = Default::default();
    for round in 0..=plan.rounds {
        let (open, mount) = super::scale::mount_once(plan, setup, image)?;
        // The first touches the image's pages.
        if round > 0 {
            series[0].push(open);
            series[1].push(mount);
        }
    }
    for _ in 0..plan.rounds.min(CHECKS_MAX) {
        let pool = setup.open(image)?;
        let options = CheckOptions {
            repair: false,
            threads: 0,
        };
        let start = Instant::now();
        let report = check(&pool, &options, &|_| ())?;
        series[2].push(start.elapsed().as_secs_f64() * 1000.0);
        if report.outcome != Outcome::Clean {
            return Err(format!("the image is not clean: {report}").into());
        }
    }
    Ok(series)
}

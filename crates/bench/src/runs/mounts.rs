//! Ever more files: the time of a mount and of an offline check.

use std::path::Path;
use std::time::Instant;

use soupfs::fsck::{CheckOptions, Outcome, check};

use super::child::Tree;
use super::growth::powers;
use crate::plan::Plan;
use crate::report::{Better, Chart, Found, Line, Point, Run, Shape};
use crate::series::Series;
use crate::target::{Result, Setup};

const FIRST: u64 = 100;
const FILES_PER_DIR: u64 = 1_000;
const DATA_EVERY: u64 = 10;
const CHECKS_MAX: usize = 3;
/// Room for each file: an inode, an entry, a block of contents for some.
const BYTES_EACH: u64 = 2048;
const OPEN: &str = "open";
const MOUNT: &str = "mount";
const CHECK: &str = "check";

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
    let mut run = Run::new("mounts", format!("an image with up to {last} files"));
    let [open, mount, check] = lines;
    run.charts = vec![
        chart("Time of a mount", vec![open, mount]),
        chart("Time of an offline check", vec![check]),
    ];
    run.notes = vec![
        format!("files in directories of {FILES_PER_DIR}, one in {DATA_EVERY} with 4 KiB; after a clean unmount"),
        "open: map the image file and find out what it is; mount: until the file system can be used".into(),
        "check: all names and maps, nothing to repair, on all cores".into(),
    ];
    Ok((run, Vec::new()))
}

fn chart(title: &str, lines: Vec<Line>) -> Chart {
    Chart {
        lines,
        ..Chart::new(title, "files", "ms", Better::Less, Shape::Growth)
    }
}

/// `count` more files, in a directory for this step.
fn build(engine: &crate::Engine, step: usize, count: u64) -> Result<()> {
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

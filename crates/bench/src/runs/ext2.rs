//! The engine of ext2 in-process: names and blocks beside tmpfs and the kernel's file systems of
//! the same format, and two threads beside one.

use std::time::Duration;

use super::data::{self, Blocks};
use super::threads::{self, Threads};
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, EXT2_BLOCKS, EXT2_NAMES, Found, Run, Shape};
use crate::runner::run_rounds;
use crate::target::{Result, Setup, TargetSpec};
use crate::workloads::names as make_names;
use crate::workloads::names::{PHASES, Phases};

const NAMES: u64 = 10_000;
const THREADS_NAMES: u64 = 10_000;
/// Blocks of 4 KiB in the long file.
const BLOCKS: u64 = 4096;
const LEN: u64 = 1 << 30;
/// Each part takes no more rounds than are needed after so long.
const TIME: Duration = Duration::from_secs(20);

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let specs: std::result::Result<Vec<TargetSpec>, _> = ["ffs", "tmpfs", "ext2", "ext3", "ext4"]
        .map(str::parse)
        .into_iter()
        .collect();
    let specs = specs?;
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs, &setup)?;
    let names = make_names("f", plan.scaled(NAMES))?;
    let mut run = Run::new(
        "ext2",
        "the engine of ext2 in-process: names, blocks, threads",
    );
    run.baseline = TargetSpec::Tmpfs.name();
    let work = Phases {
        names: &names,
        settle: true,
    };
    let (x, shape) = ("operation", Shape::Bars);
    let measured = run_rounds(&plan.part(TIME), &participants, "ext2: names", &work)?;
    run.charts
        .push(measured.chart(PHASES, (EXT2_NAMES, x), shape, Better::Less));
    let work = Blocks::new(plan.scaled(BLOCKS), plan.scaled(100))?;
    let measured = run_rounds(&plan.part(TIME), &participants, "ext2: blocks", &work)?;
    for (key, title) in [
        (data::CHART, EXT2_BLOCKS),
        (
            data::AGAIN_CHART,
            "Per block of 4 KiB of ext2, of a small file",
        ),
        (data::FSYNC_CHART, "Overwrite of 4 KiB of ext2, then fsync"),
    ] {
        run.charts
            .push(measured.chart(key, (title, x), shape, Better::Less));
    }
    let peers = participants.peers();
    drop(participants);
    let participants = Participants::of(plan, &specs[..2], &setup)?;
    let work = Threads::new(plan.scaled(THREADS_NAMES));
    let measured = run_rounds(&plan.part(TIME), &participants, "ext2: threads", &work)?;
    let charts = threads::CHARTS
        .iter()
        .flatten()
        .map(|key| measured.chart(key, (*key, "threads"), Shape::Lines, Better::More));
    let charts: Vec<_> = charts.collect();
    run.tables.push(super::claims::scaling(&charts));
    run.charts.extend(charts);
    run.notes = vec![
        plan.clock_note(),
        format!(
            "{} names in one directory; persisting stands beside (persist ns); images and loop \
             devices over files on tmpfs",
            names.len()
        ),
        "FFS in-process is called by function calls, the others by system calls".into(),
    ];
    Ok((run, peers))
}

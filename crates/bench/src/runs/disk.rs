//! What a user of the mount gets on an ordinary disk, beside ext4 on a loop device there, fuse2fs
//! and tmpfs.

use pmem::Domain;

use crate::participants::{Participants, file_system_of};
use crate::plan::Plan;
use crate::report::{Better, Found, MOUNT, ON_DISK, Run, Shape};
use crate::runner::run_rounds;
use crate::target::{Result, Setup, TargetSpec};
use crate::workloads::small_files::{CHART, SmallFiles};

/// Of each operation; no fewer than some, or a figure is one disk's mood.
const COUNT: u64 = 500;
const COUNT_MIN: u64 = 20;
const LEN: u64 = 512 << 20;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let specs = [
        TargetSpec::Mount(String::new()),
        TargetSpec::Kernel("ext4"),
        TargetSpec::Fuse2fs,
        TargetSpec::Tmpfs,
    ];
    // As `tureen mount` has it on a disk.
    let setup = Setup {
        len: LEN,
        domain: Domain::Page,
        ..plan.setup()
    };
    let participants = Participants::on_disk(plan, &specs, &setup)?;
    let count = plan.scaled(COUNT).max(COUNT_MIN);
    let measured = run_rounds(plan, &participants, "disk", &SmallFiles::new(count)?)?;
    let on = file_system_of(&plan.disk);
    let about = format!("small files by system calls, images on {on}");
    let mut run = Run::new("disk", about);
    let chart = measured.chart(CHART, (ON_DISK, "operation"), Shape::Bars, Better::Less);
    run.baseline = match chart.line(MOUNT) {
        Some(_) => MOUNT.into(),
        None => participants.baseline(plan),
    };
    run.charts = vec![chart];
    run.notes = vec![
        plan.clock_note(),
        format!(
            "{count} of each operation; images are files in a directory on {on} ({}), loop devices \
             lie \
             over such files; tmpfs is memory and keeps nothing",
            plan.disk.display()
        ),
        "what ends in fsync is durable at return, so that persisting is in its figure; of the \
         others it stands beside (persist ns: what syncfs took behind them, and of the mount its \
         attribute tureen.sync); nothing waits for fuse2fs"
            .into(),
        "save: what an editor does; the rename is durable with what comes later".into(),
    ];
    Ok((run, participants.peers()))
}

//! What a user of the mounts gets on an ordinary disk, beside ext4 on a loop device there, the
//! disk's own file system, fuse2fs and tmpfs; and what a commit in-process takes beside a bare
//! write.

use std::time::Duration;

use pmem::Domain;

use crate::participants::{Participants, file_system_of};
use crate::plan::Plan;
use crate::report::{
    Better, Found, IN_PROCESS_ON_DISK, MOUNT, ON_DISK, Peer, Run, Shape, THREADS_ON_DISK,
};
use crate::runner::run_rounds;
use crate::target::{Result, Setup, TargetSpec};
use crate::workloads::small_files::{BARE, Bare, CHART, CREW, SmallFiles, THREADS};

/// Of each operation; no fewer than some, or a figure is one disk's mood.
const COUNT: u64 = 500;
const COUNT_MIN: u64 = 20;
const LEN: u64 = 512 << 20;
/// Threads make files for so long at most: all of them have to be removed again.
const WINDOW_MAX: Duration = Duration::from_millis(300);
/// A slow disk has fewer rounds.
const TIME: Duration = Duration::from_secs(120);
const TIME_BARE: Duration = Duration::from_secs(30);

/// As `tureen mount` has it on a disk.
pub fn setup(plan: &Plan, len: u64) -> Setup {
    Setup {
        len,
        domain: Domain::Page,
        ..plan.setup()
    }
}

/// Who is compared with the mounts on a disk, and the mounts.
pub fn specs() -> Vec<TargetSpec> {
    vec![
        TargetSpec::Mount(String::new()),
        TargetSpec::MountExt2(Default::default()),
        TargetSpec::Kernel("ext4"),
        TargetSpec::Host,
        TargetSpec::Fuse2fs,
    ]
}

/// The mount is what others are compared with, where there is one.
pub fn baseline(plan: &Plan, participants: &Participants) -> String {
    let mut names = participants.running.iter().map(|one| &one.peer.name);
    match names.any(|name| name == MOUNT) {
        true => MOUNT.into(),
        false => participants.baseline(plan),
    }
}

/// What the report says of them: others of the same names have their images in memory.
pub fn peers(participants: &Participants) -> Vec<Peer> {
    let all = participants.peers().into_iter();
    let named = all.map(|peer| match peer.name.as_str() {
        "host" | "tmpfs" => peer,
        name => {
            let name = format!("{name}, on a disk");
            peer.named(&name)
        }
    });
    named.collect()
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let specs = [specs(), vec![TargetSpec::Tmpfs]].concat();
    let participants = Participants::on_disk(plan, &specs, &setup(plan, LEN))?;
    let count = plan.scaled(COUNT).max(COUNT_MIN);
    let part = Plan {
        window: plan.window.min(WINDOW_MAX),
        ..plan.part(TIME)
    };
    let measured = run_rounds(&part, &participants, "disk", &SmallFiles::new(count)?)?;
    let on = file_system_of(&plan.disk);
    let about = format!("small files by system calls, images on {on}");
    let mut run = Run::new("disk", about);
    run.baseline = baseline(plan, &participants);
    let (x, shape) = ("operation", Shape::Bars);
    run.charts = vec![
        measured.chart(CHART, (ON_DISK, x), shape, Better::Less),
        measured.chart(CREW, (THREADS_ON_DISK, x), shape, Better::More),
    ];
    let mut peers = peers(&participants);
    drop(participants);
    let specs = [TargetSpec::Engine(Default::default()), TargetSpec::Host];
    let participants = Participants::on_disk(plan, &specs, &setup(plan, LEN))?;
    let measured = run_rounds(
        &plan.part(TIME_BARE),
        &participants,
        "bare",
        &Bare::new(count)?,
    )?;
    run.charts
        .push(measured.chart(BARE, (IN_PROCESS_ON_DISK, x), shape, Better::Less));
    peers.extend(self::peers(&participants).into_iter().take(1));
    run.notes = notes(plan, count, &on);
    Ok((run, peers))
}

fn notes(plan: &Plan, count: u64, on: &str) -> Vec<String> {
    vec![
        plan.clock_note(),
        format!(
            "{count} of each operation; images are files in a directory on {on} ({}), loop devices \
             lie over such files; host is a directory beside them; tmpfs is memory and keeps \
             nothing",
            plan.disk.display()
        ),
        "what ends in fsync is durable at return, so that persisting is in its figure; of the \
         others it stands beside (persist ns: what syncfs took behind them, and of the mount its \
         attribute tureen.sync); nothing waits for fuse2fs"
            .into(),
        "disk writes, bytes, flushes: what reached the disk per operation, by its own counters; \
         what other programs wrote meanwhile is in them, and without a block device below there \
         are none"
            .into(),
        "save: what an editor does; the rename is durable with what comes later".into(),
        format!("{THREADS} threads make files in one directory"),
        "in-process: function calls; a bare 8 KiB is what a record and a block would take at \
         least"
            .into(),
    ]
}

//! What a process does that was started for a part of a family.

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pmem::Domain;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vfs::SystemClock;

use crate::child::{Task, Touched};
use crate::machine::dram;
use crate::target::{Result, Setup, Target};
use crate::workloads::tree::{Tree, churn, orphans};

/// How long users of a mount may finish after it was told to end.
const GRACE: Duration = Duration::from_secs(1);

/// Do a task, in the process that was started for it.
pub fn perform(task: &Task) -> Result<()> {
    match task {
        Task::Null { dir } => null(dir),
        Task::Trace { dir, threads } => super::trace::perform(dir, *threads),
        Task::Churn { image, on_disk } => {
            let mut setup = Setup::default();
            if *on_disk {
                setup.domain = Domain::Page;
            }
            let engine = setup.mount("SoupFS", setup.open(image)?)?;
            orphans(&engine)?;
            churn(&engine, || println!("ready"), || false)
        }
        Task::ChurnExt2 { image } => super::fsck::churn(image),
        Task::Reopen { cache, disk } => {
            let found = super::caches::reopen(cache, disk)?;
            println!("{}", serde_json::to_string(&found)?);
            Ok(())
        }
        Task::Touch {
            image,
            tree,
            inodes_max,
        } => {
            let touched = touch(image, *tree, *inodes_max)?;
            println!("{}", serde_json::to_string(&touched)?);
            Ok(())
        }
    }
}

/// Serves a file system that does nothing; its status counts requests, as that of a `tureen mount`
/// does.
fn null(dir: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let options = fuse::Options::new("null", Arc::new(SystemClock));
    let monitor = options.monitor.clone();
    let status = move || {
        let counts = monitor.counts().into_iter();
        let requests: serde_json::Map<_, _> = counts
            .map(|(request, count)| (request.name().to_owned(), count.into()))
            .collect();
        serde_json::json!({ "requests": requests })
            .to_string()
            .into_bytes()
    };
    let mount = fuse::mount_nothing(dir, &options, Arc::new(status))?;
    let unmounter = mount.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            unmounter.stop(GRACE);
        }
    });
    Ok(mount.wait()?)
}

fn path(dir: u64, file: u64) -> Result<CString> {
    Ok(CString::new(format!("{dir}/{file}"))?)
}

fn touch(image: &Path, tree: Tree, inodes_max: u64) -> Result<Touched> {
    let setup = Setup {
        inodes_max,
        // Evict often: what was freed meanwhile stays with the process.
        bound: Duration::from_millis(5),
        ..Setup::default()
    };
    let before = dram();
    let engine = setup.mount("SoupFS", setup.open(image)?)?;
    let mounted = dram();
    for dir in 0..tree.dirs {
        for file in 0..tree.files {
            engine.stat(&path(dir, file)?)?;
        }
    }
    // Idle for a while, so that inodes beyond the limit are dropped.
    std::thread::sleep(Duration::from_secs(1));
    Ok(Touched {
        mount: mounted.saturating_sub(before),
        files: dram().saturating_sub(mounted),
        inodes: engine.status().inodes_cached,
    })
}

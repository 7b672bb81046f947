//! The adapter without an engine: mounts the reference file system, which lives in memory and is
//! gone when it is unmounted. For tests of the adapter, and to see what FUSE itself costs.
//!
//! `cargo run --release -p fuse --example mount_model -- DIR [OPTION...]`, with the options
//! `writeback`, `strictatime` and `allow_other`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuse::{Monitor, Options};
use model::Model;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vfs::{Atime, Clock, SystemClock};

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next().map(PathBuf::from) else {
        eprintln!("usage: mount_model DIR [writeback] [strictatime] [allow_other]");
        std::process::exit(16);
    };
    let mut options = Options::new("model", Arc::new(SystemClock));
    for arg in args {
        match arg.as_str() {
            "writeback" => options.writeback = true,
            "strictatime" => options.atime = Atime::Strict,
            "allow_other" => options.allow_other = true,
            other => eprintln!("mount_model: ignoring unknown option {other}"),
        }
    }
    if rustix::process::geteuid().is_root() {
        (options.dev, options.suid) = (true, true);
    }
    let monitor = options.monitor.clone();
    let status = Arc::new(move || report(&monitor).into_bytes());
    let mount = fuse::mount(
        Model::new(Arc::new(|| SystemClock.now())),
        &dir,
        &options,
        status,
    )?;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let unmounter = mount.unmounter();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            unmounter.stop(Duration::from_secs(5));
        }
    });
    let ended = mount.wait();
    eprint!("{}", report(&options.monitor));
    ended
}

fn report(monitor: &Monitor) -> String {
    monitor
        .counts()
        .iter()
        .map(|(request, n)| format!("{} {n}\n", request.name()))
        .collect()
}

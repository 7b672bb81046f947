//! `tureen mount`: serve an image on a directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pmem::Pool;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vfs::SystemClock;

use crate::failure::{Failure, Outcome};
use crate::options::{self, MountOptions};
use crate::status::Status;
use crate::units::parse_size;
use crate::{daemon, end, engine, image, mkfs, mounts, utab};

/// Mount an image on a directory
///
/// Returns when the directory can be used; the file system is then served in the background until
/// it is unmounted. SIGINT and SIGTERM unmount it too, from all directories that it was bound to
/// since; everything is durable before the process ends.
#[derive(clap::Args)]
#[command(after_help = options::HELP)]
pub struct Args {
    /// The file, or persistent-memory device, with the file system
    image: PathBuf,
    /// The directory to mount on
    dir: PathBuf,
    /// If the image does not exist, make one of this size, like 512M or 4G; if the directory does
    /// not exist, make it too
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    create: Option<u64>,
    /// Options, separated by commas (see below)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in front until unmounted; messages go to standard error
    #[arg(long, short)]
    foreground: bool,
    /// This is the run in the background.
    #[arg(long, hide = true)]
    background_run: bool,
}

/// Where messages and the one who waits for the mount are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Front,
    Background,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let mut options = MountOptions::new(rustix::process::geteuid().is_root());
    for list in &args.options {
        options.apply(list, false).map_err(Failure::usage)?;
    }
    let what = What::find(&args.image, &args.dir, args.create)?;
    if args.background_run {
        daemon::detach()?;
        return serve(&what, &options, Place::Background);
    }
    let outcome = match args.foreground {
        true => serve(&what, &options, Place::Front),
        false => what.in_background(&args.options),
    };
    if what.is_new_dir && !matches!(outcome, Ok(0)) {
        // It holds nothing, or this does nothing.
        let _ = std::fs::remove_dir(&what.dir);
    }
    outcome
}

/// What to mount where.
pub struct What {
    image: PathBuf,
    dir: PathBuf,
    create: Option<u64>,
    /// The directory was made for this mount.
    is_new_dir: bool,
}

impl What {
    /// Finds image and directory, with absolute paths, and refuses what cannot work.
    pub fn find(image: &Path, dir: &Path, create: Option<u64>) -> Result<What, Failure> {
        let image = match create {
            Some(_) => image::absolute(image)?,
            None => image::existing(image)?,
        };
        check_name(&image)?;
        image::check_unmounted(&image)?;
        remove_dead_mounts(&image);
        // A dead mount is in the way of a directory, too: that is told below.
        let is_new_dir = create.is_some()
            && std::fs::symlink_metadata(dir)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_new_dir {
            std::fs::create_dir(dir)
                .map_err(|error| Failure::at(dir, format!("cannot be made: {error}")))?;
        }
        let found = dir.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::at(dir, "no such directory to mount on; make it with mkdir")
            }
            std::io::ErrorKind::NotConnected => Failure::at(
                dir,
                format!(
                    "a mount whose process has died is in the way: tureen umount {}",
                    dir.display()
                ),
            ),
            _ => Failure::at(dir, error),
        })?;
        if !found.is_dir() {
            return Err(Failure::at(dir, "is not a directory"));
        }
        if let Some(mount) = mounts::on(&found) {
            let message = format!("{} is mounted here already", mount.image.display());
            return Err(Failure::at(dir, message));
        }
        Ok(What {
            image,
            dir: found,
            create,
            is_new_dir,
        })
    }

    /// Mounts it by a run of this program in the background.
    pub fn in_background(&self, options: &[String]) -> Outcome {
        let mut args: Vec<OsString> = vec!["mount".into(), "--background-run".into()];
        if let Some(size) = self.create {
            args.extend(["--create".into(), size.to_string().into()]);
        }
        for list in options {
            args.extend(["-o".into(), list.into()]);
        }
        args.extend([
            "--".into(),
            self.image.clone().into(),
            self.dir.clone().into(),
        ]);
        daemon::start(args)
    }
}

/// Refuses a path that would not be the same in the list of mounts, by which an image is known to
/// be mounted: the FUSE library takes nothing but text for that.
fn check_name(image: &Path) -> Result<(), Failure> {
    match image.to_str() {
        Some(_) => Ok(()),
        None => Err(Failure::at(
            image,
            "its path is not UTF-8, as that of a mounted image has to be: rename it",
        )),
    }
}

/// Takes away what a killed process left of an earlier mount of the image. One that lives may have
/// the image's name, too: of an image that was given another name since.
fn remove_dead_mounts(image: &Path) {
    for mount in mounts::live()
        .into_iter()
        .filter(|mount| mount.image == image && mounts::is_dead(&mount.dir))
    {
        if let Err(error) = fuse::unmount(&mount.dir, true) {
            log::warn!("a dead mount stays on {}: {error}", mount.dir.display());
        }
    }
}

/// Has a panic of any thread stop all changes of the medium before the thread unwinds and lets go
/// of its locks: what it leaves half changed in memory must not become durable. Poisoning takes no
/// lock that the thread could hold.
fn poison_on_panic(pool: &Arc<Pool>) {
    let pool = Arc::downgrade(pool); // the image is to be free when the mount has ended
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(pool) = pool.upgrade() {
            pool.poison(&panic.to_string().replace('\n', " "));
        }
        report(panic);
    }));
}

/// Mounts, serves until the end, and leaves the image durable and clean.
fn serve(what: &What, options: &MountOptions, place: Place) -> Outcome {
    if let Some(log) = &options.log {
        daemon::open_log(log)?; // while there is no mount to take back
    }
    let pool = open(what, options)?;
    poison_on_panic(&pool);
    // From here on a signal must not end the process halfway.
    let signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    let fs = engine::mount(&pool, options)?;
    let shut_down = Arc::default();
    let mount = match start(what, options, (&pool, &fs), &shut_down) {
        Ok(mount) => mount,
        Err(failure) => {
            engine::unmount(&fs)?;
            return Err(failure);
        }
    };
    utab::enter(&what.image, &what.dir);
    end::on_signals(signals, &what.dir, mount.unmounter());
    match place {
        Place::Background => daemon::ready(options.log.as_deref())?,
        Place::Front => {
            if let Some(log) = &options.log {
                let log = daemon::open_log(log)?;
                rustix::stdio::dup2_stderr(&log).map_err(Failure::new)?;
            }
        }
    }
    let served = mount.wait();
    utab::leave(&what.image, &what.dir);
    let unmounted = engine::unmount(&fs);
    if let Err(failure) = &unmounted {
        // In the background nobody reads what `main` reports but the log.
        log::error!("{}: {}", what.image.display(), failure.message);
    }
    served.map_err(|error| Failure::at(&what.dir, format!("serving ended early: {error}")))?;
    unmounted.map(|()| 0)
}

fn open(what: &What, options: &MountOptions) -> Result<Arc<Pool>, Failure> {
    let pool_options = pmem::Options {
        domain: options.domain,
        read_only: options.read_only,
        huge_pages: options.huge,
        latency: options.latency,
        ..pmem::Options::default()
    };
    let pool = match what.create {
        Some(size) if !what.image.exists() => mkfs::create_plain(&what.image, size, &pool_options)?,
        _ => image::open(&what.image, &pool_options)?,
    };
    if !(options.read_only && engine::is_unclean(&pool)) {
        return Ok(pool);
    }
    // What a crash left is replayed in memory. The first pool keeps writers out until the second is
    // there.
    let private = pmem::Options {
        private: true,
        read_only: false,
        ..pool_options
    };
    image::open(&what.image, &private)
}

fn start(
    what: &What,
    options: &MountOptions,
    (pool, fs): (&Arc<Pool>, &engine::Engine),
    shut_down: &Arc<AtomicBool>,
) -> Result<fuse::Mount, Failure> {
    let fuse_options = fuse::Options {
        allow_other: options.allow_other,
        read_only: options.read_only,
        atime: options.atime,
        sync: options.sync,
        dev: options.dev,
        suid: options.suid,
        exec: options.exec,
        writeback: options.writeback,
        threads: options.threads,
        shutdown: Some(shutdown(what, pool, fs, shut_down)),
        ..fuse::Options::new(what.image.to_string_lossy(), Arc::new(SystemClock))
    };
    let status = Status::new(
        &what.image,
        &what.dir,
        options,
        pool,
        fs,
        &fuse_options.monitor,
        shut_down,
    );
    let answer = Arc::new(move || status.to_json().to_string().into_bytes());
    fuse::mount(fs.clone(), &what.dir, &fuse_options, answer).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => {
                ": /dev/fuse or fusermount3 is missing (modprobe fuse; apt install fuse3)"
            }
            std::io::ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => {
                ": users other than root need write permission on the directory and /dev/fuse, and \
                 for allow_other the line user_allow_other in /etc/fuse.conf"
            }
            _ => "",
        };
        let error = error.to_string();
        Failure::at(&what.dir, format!("cannot mount: {}{hint}", error.trim()))
    })
}

/// Cuts the medium off, for tests: nothing becomes durable after it, as if the process were killed.
fn shutdown(
    what: &What,
    pool: &Arc<Pool>,
    fs: &engine::Engine,
    shut_down: &Arc<AtomicBool>,
) -> fuse::ShutdownFn {
    let (dir, shut_down) = (what.dir.clone(), shut_down.clone());
    let (pool, fs) = (pool.clone(), fs.clone());
    Arc::new(move |how| {
        if how == fuse::How::SyncAll {
            end::write_back(&dir);
        }
        if how != fuse::How::Cut {
            engine::sync(&fs)?;
        }
        shut_down.store(true, Relaxed); // before anybody can see the consequences
        pool.poison("shut down by FS_IOC_SHUTDOWN");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::Engine;
    use vfs::{Cred, Errno, FileSystem, NewKind, NewNodeRequest, Vfs, VfsOptions};

    fn mounted(pool: &Arc<Pool>) -> Vfs<Engine> {
        let mut options = MountOptions::new(false);
        options.bound = Duration::from_secs(3600); // durable is what was synced
        let fs = engine::mount(pool, &options).expect("mount");
        Vfs::new(fs, VfsOptions::default())
    }

    fn make(vfs: &Vfs<Engine>, name: &str) -> vfs::Result<()> {
        let (root, cred) = (vfs.fs().root(), Cred::root());
        let made = vfs.create(
            &cred,
            &root,
            name.as_bytes(),
            &NewNodeRequest::new(NewKind::File, 0o644, 0),
        );
        made.map(|_| ())
    }

    fn is_there(vfs: &Vfs<Engine>, name: &str) -> bool {
        let found = vfs.lookup(&Cred::root(), &vfs.fs().root(), name.as_bytes());
        found.is_ok()
    }

    #[test]
    fn a_panic_stops_all_changes_and_the_next_mount_finds_what_was_durable() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        let pool = mkfs::create_plain(&image, 64 << 20, &pmem::Options::default());
        let pool = pool.expect("an image");
        poison_on_panic(&pool);
        let vfs = mounted(&pool);
        make(&vfs, "durable").expect("make");
        vfs.syncfs().expect("sync");
        make(&vfs, "pending").expect("make");

        // In the middle of a change, with the engine's locks held.
        let veto = |_: &vfs::Rights| panic!("as a test");
        let root = vfs.fs().root();
        let request = || vfs.fs().unlink(&root, b"durable", &veto);
        let panicked = std::thread::scope(|scope| scope.spawn(request).join().is_err());
        assert!(panicked);
        let why = pool.poisoned().expect("poisoned").to_string();
        assert!(why.contains("as a test"), "{why}");
        let error = make(&vfs, "late").expect_err("no more changes");
        assert_eq!(error.errno(), Errno::IO);
        assert!(engine::unmount(vfs.fs()).is_err());
        drop((root, vfs, pool));
        assert_eq!(engine::is_clean(&image), Some(false));

        let pool = image::open(&image, &pmem::Options::default());
        let pool = pool.expect("the image is free");
        let vfs = mounted(&pool);
        let found = ["durable", "pending", "late"].map(|name| is_there(&vfs, name));
        assert_eq!(found, [true, false, false]);
        while vfs.fs().status().reclaimed_lines.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        engine::unmount(vfs.fs()).expect("unmount");
        drop((vfs, pool));
        assert_eq!(engine::is_clean(&image), Some(true));
    }
}

//! A mount from opening the image to leaving it durable and clean.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vfs::SystemClock;
use volume::{Access, Settings, Volume};

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::live_check::{self, LiveCheck};
use crate::options::MountOptions;
use crate::report::{Asked, Report, Served};
use crate::what::{New, What};
use crate::{daemon, end, exclusive, mkfs, snapshot, status, utab};

/// Where messages and the one who waits for the mount are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In front.
    Front,
    /// In the background.
    Background,
}

/// Has a panic of any thread stop all changes of the medium before the thread unwinds and lets go
/// of its locks: what it leaves half changed in memory must not become durable. Poisoning takes no
/// lock that the thread could hold.
pub fn poison_on_panic(volume: &Arc<dyn Volume>) {
    let volume = Arc::downgrade(volume); // the image is to be free when the mount has ended
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(volume) = volume.upgrade() {
            volume.poison(&panic.to_string().replace('\n', " "));
        }
        report(panic);
    }));
}

/// Mounts, serves until the end, and leaves the image durable and clean.
pub fn serve(what: &What, options: &MountOptions, place: Place) -> Outcome {
    if let Some(log) = &options.log {
        daemon::open_log(log)?; // while there is no mount to take back
    }
    let (volume, settings) = open(what, options)?;
    poison_on_panic(&volume);
    // From here on a signal must not end the process halfway.
    let signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    let mounted = volume.mount(&settings, options.read_only)?;
    let served = Served {
        volume,
        mounted,
        shut_down: Arc::default(),
        check: LiveCheck::default(),
    };
    let mut options = options.clone();
    options.read_only = served.mounted.is_read_only();
    let asked = Asked { options, settings };
    let options = &asked.options;
    let mount = match start(what, &asked, &served) {
        Ok(mount) => mount,
        Err(failure) => {
            served.mounted.unmount()?;
            return Err(failure);
        }
    };
    utab::enter(&what.image, &what.dir);
    end::on_signals(signals, &what.dir, mount.unmounter(), options.grace);
    match place {
        Place::Background => daemon::ready(options.log.as_deref())?,
        Place::Front => {
            if let Some(log) = &options.log {
                let log = daemon::open_log(log)?;
                rustix::stdio::dup2_stderr(&log).map_err(Failure::new)?;
            }
        }
    }
    let ended = mount.wait();
    utab::leave(&what.image, &what.dir);
    served.check.end();
    let unmounted = served.mounted.unmount();
    if let Err(error) = &unmounted {
        // In the background nobody reads what `main` reports but the log.
        log::error!("{}: {error}", what.image.display());
    }
    ended.map_err(|error| Failure::at(&what.dir, format!("serving ended early: {error}")))?;
    Ok(unmounted.map(|()| 0)?)
}

/// Opens the image, or makes it, with the engine that it is for.
fn open(what: &What, options: &MountOptions) -> Result<(Arc<dyn Volume>, Settings), Failure> {
    let settings = |engine| options.settings(engine).map_err(Failure::usage);
    if let Some(New { size, engine }) = what.create
        && !what.image.exists()
    {
        let settings = settings(engine)?;
        let volume = mkfs::create_plain(&what.image, size, engine, &settings)?;
        return Ok((volume, settings));
    }
    let engine = ENGINES.of(&what.image)?;
    let settings = settings(engine)?;
    let access = match options.read_only {
        true => Access::MountReadOnly,
        false => Access::Write,
    };
    let volume = exclusive::open(&what.image, engine, access, &settings)?;
    Ok((volume, settings))
}

fn start(what: &What, asked: &Asked, served: &Served) -> Result<fuse::Mount, Failure> {
    let options = &asked.options;
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
        transport: options.transport,
        shutdown: Some(shutdown(what, served)),
        control: Some(control(served)),
        ..fuse::Options::new(what.image.to_string_lossy(), Arc::new(SystemClock))
    };
    let (paths, monitor) = ((&*what.image, &*what.dir), &fuse_options.monitor);
    let report = Report::new(paths, asked, served, monitor);
    let answer = Arc::new(move || report.to_json().to_string().into_bytes());
    let mount = served.mounted.serve(&what.dir, &fuse_options, answer);
    mount.map_err(|error| {
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

/// Runs commands for other runs of this program: those about snapshots and checks, and the engine's
/// own.
fn control(served: &Served) -> fuse::ControlFn {
    let served = served.clone();
    Arc::new(move |command| {
        let text = |error: volume::Error| error.to_string();
        let (done, changed) = if let Some(words) = command.strip_prefix(snapshot::COMMANDS) {
            match served.mounted.snapshots() {
                Some(all) => (snapshot::act(all, words), Some(all.dir())),
                None => (Err(snapshot::NONE.to_owned()), None),
            }
        } else if let Some(word) = command.strip_prefix(live_check::COMMANDS) {
            (served.check.act(&served.mounted, word), None)
        } else {
            let done = served.mounted.control(command).map(|()| Value::Null);
            (done.map_err(text), None)
        };
        fuse::Done {
            answer: status::answer(done),
            changed,
        }
    })
}

/// Cuts the medium off, for tests: nothing becomes durable after it, as if the process were killed.
fn shutdown(what: &What, served: &Served) -> fuse::ShutdownFn {
    let (dir, served) = (what.dir.clone(), served.clone());
    Arc::new(move |how| {
        if how == fuse::How::SyncAll {
            end::write_back(&dir);
        }
        if how != fuse::How::Cut {
            served.mounted.sync()?;
        }
        served.shut_down.store(true, Relaxed); // before anybody can see the consequences
        served.volume.poison("shut down by FS_IOC_SHUTDOWN");
        Ok(())
    })
}

//! `tureen umount`: end a mount, and return when the image is durable and free.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use volume::{Access, Error};

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::mounts::{self, Hold, LiveMount};
use crate::{image, status};

/// How often to look whether the image has become free.
const POLL: Duration = Duration::from_millis(2);

/// When to tell the user what is being waited for, or that there is nothing to wait for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Unmount a directory
///
/// Returns when everything is durable and the image is free: to be copied, checked or mounted
/// again. It cannot become free while the file system is mounted on another directory, too (mount
/// --bind): then that is said. The exit code is 1 where the image was to be unmounted, or nobody
/// can see who holds it; a directory that was to be unmounted is.
#[derive(clap::Args)]
pub struct Args {
    /// The directory (or the image) that is mounted
    dir: PathBuf,
    /// Detach it even if it is in use; it ends when its last user is done
    #[arg(long, short)]
    lazy: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let is_dir = mounts::on(&mounts::resolve(&args.dir)).is_some();
    match unmount(&args.dir, args.lazy)? {
        Left::Nothing => {}
        Left::Mounted(what) if is_dir => eprintln!("tureen: {}: {what}", args.dir.display()),
        Left::Mounted(what) | Left::Held(what) => return Err(Failure::at(&args.dir, what)),
    }
    Ok(0)
}

/// What is left of a file system after one of its directories was unmounted.
pub enum Left {
    /// Nothing: the image is free. Or it was not waited for.
    Nothing,
    /// Another directory, in so many words.
    Mounted(String),
    /// Something that cannot be seen from here, in so many words.
    Held(String),
}

/// Unmounts what is mounted on `dir`, or what the image `dir` is mounted as.
pub fn unmount(dir: &Path, lazy: bool) -> Result<Left, Failure> {
    let mount = find(dir)?;
    mounts::check_uncovered(&mount)?;
    // Before unmounting: afterwards nobody tells any more.
    let status = status::ask(&mount.dir).unwrap_or_default();
    let server = Server::of(&mount, &status);
    let hold = Hold::on(&mount);
    fuse::unmount(&mount.dir, lazy).map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Failure::at(
            dir,
            format!(
                "is in use; 'fuser -vm {}' shows by whom; --lazy detaches it all the same",
                mount.dir.display()
            ),
        ),
        _ if rustix::process::geteuid().is_root() => {
            Failure::at(dir, format!("cannot unmount: {error}"))
        }
        _ => Failure::at(
            dir,
            format!("cannot unmount: {error}; only root and the user who mounted it may"),
        ),
    })?;
    if lazy {
        return Ok(Left::Nothing);
    }
    let left = server.wait_until_done(&mount, &hold);
    if let Left::Nothing = left {
        server.check_durable(&mount.image, &status)?;
    }
    Ok(left)
}

/// Another directory that the file system is mounted on: not to be waited for, as that may be for
/// ever.
fn still_mounted(mount: &LiveMount) -> Option<String> {
    let mut others = mounts::of_file_system(mount).into_iter();
    let other = others.find(|other| !mounts::is_dead(&other.dir))?;
    Some(format!(
        "unmounted here, but still mounted on {dir}: the image is in use until that is unmounted, \
         too: tureen umount {dir}",
        dir = other.dir.display()
    ))
}

/// Why the image stays in use though no mount is to be seen.
fn still_used(image: &Path) -> String {
    format!(
        "unmounted here, but still in use, in another mount namespace or by users of a mount that \
         was detached; until they are done the image is in use, too: 'fuser -v {}' shows the \
         process that serves them",
        image.display()
    )
}

fn find(path: &Path) -> Result<LiveMount, Failure> {
    let absolute = mounts::resolve(path);
    mounts::on(&absolute)
        .or_else(|| mounts::of(&absolute))
        .ok_or_else(|| Failure::at(path, "no Tureen file system is mounted here"))
}

/// The process that serves a mount, and the image that it leaves; as far as they can be seen.
struct Server {
    process: Option<OwnedFd>,
    /// Open since before the end: its path may lead to another one.
    image: Option<File>,
}

impl Server {
    fn of(mount: &LiveMount, status: &Value) -> Server {
        let pid = status["pid"]
            .as_i64()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        Server {
            process: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            image: image::of_mount(&mount.image, status),
        }
    }

    /// Waits until the image is free or the process is gone, whichever is seen first: not every
    /// user may look at the lock, nor is the process seen from every container.
    ///
    /// The process is not done before the kernel lets go, so it is not waited for when the kernel
    /// does not.
    fn wait_until_done(&self, mount: &LiveMount, hold: &Hold) -> Left {
        let start = Instant::now();
        let mut told = false;
        if self.is_at_work()
            && let Some(other) = still_mounted(mount)
        {
            return Left::Mounted(other);
        }
        while self.is_at_work() {
            if !told && start.elapsed() > PATIENCE {
                if hold.lasts() {
                    return Left::Held(still_used(&mount.image));
                }
                eprintln!("tureen: waiting until everything is durable");
                told = true;
            }
            std::thread::sleep(POLL);
        }
        Left::Nothing
    }

    fn is_at_work(&self) -> bool {
        match self.image.as_ref().and_then(image::is_unlocked) {
            Some(free) => !free && !self.is_gone(),
            None => self.process.is_some() && !self.is_gone(),
        }
    }

    fn is_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(process) = &self.process else {
            return false;
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the process ended well, as far as can be told from outside: it says nothing when
    /// it ends, but it leaves the image marked clean.
    fn check_durable(&self, mounted: &Path, status: &Value) -> Result<(), Failure> {
        if status["shut_down"] == true {
            return Ok(()); // so that nothing would be durable any more
        }
        let file_system = &status["file_system"];
        if let Some(why) = file_system["failed"].as_str() {
            let message = format!("unmounted, but the last changes are not durable: {why}");
            return Err(Failure::at(mounted, message));
        }
        let was_written = status["read_only"] == false;
        let Some(image) = self.image.as_ref().filter(|_| was_written) else {
            return Ok(());
        };
        let image = image::path_of(image);
        // While it searches for what a crash lost, an image stays unclean with good reason.
        let is_to_be_clean = file_system["reclaiming"] == false;
        let message = match is_clean(&image) {
            Ok(Some(false)) if is_to_be_clean => {
                "unmounted, but not cleanly: the last changes may not be durable; run tureen fsck, \
                 and see the log of the mount (option log=FILE)"
                    .to_owned()
            }
            Ok(_) => return Ok(()),
            Err(why) => format!(
                "unmounted, but the last changes may not be durable, as the image cannot be read \
                 any more: {why}; see the log of the mount (option log=FILE)"
            ),
        };
        let image = image.read_link().unwrap_or_else(|_| mounted.to_owned());
        Err(Failure::at(&image, message))
    }
}

/// Whether an image, which may be read, was unmounted cleanly; `None` when that cannot be found
/// out.
///
/// # Errors
/// It cannot be read any more.
fn is_clean(image: &Path) -> volume::Result<Option<bool>> {
    let opened = ENGINES.of(image).and_then(|engine| {
        let settings = engine.settings();
        engine.open(image, Access::Look, &settings)
    });
    match opened {
        Ok(volume) => Ok(volume.is_clean()),
        Err(Error::InUse(_)) => Ok(None), // mounted again already
        Err(error) => Err(error),
    }
}

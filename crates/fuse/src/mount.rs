//! A mount from beginning to end: set up, serve, unmount.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fuser::Session;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::UnmountFlags;
use vfs::{Atime, FileSystem, Vfs, VfsOptions};

use crate::adapter::{Adapter, Behaviour, End, EndSignal, Invalidator, Pages};
use crate::crew::Crew;
use crate::device::start as start_device;
use crate::follow::Follower;
use crate::gate::Gate;
use crate::handler::Handler;
use crate::handshake::Handshake;
use crate::monitor::Transport;
use crate::options::{Options, StatusFn};
use crate::requests::Server;
use crate::ring::{self, Possible};
use crate::shutdown::Shutdown;
use crate::table::InodeTable;

/// Read-ahead of the mount in KiB, where we may set it: eight requests, so that the next are read
/// from the disk while one is answered. The kernel's default is 128 KiB.
const READ_AHEAD_KIB: u32 = 8192;

/// A live mount.
pub struct Mount {
    ended: Receiver<End>,
    unmounter: Unmounter,
}

/// Ends a mount from another thread.
#[derive(Clone)]
pub struct Unmounter {
    dir: PathBuf,
    /// Of the file system, to tell it from what else may come to the directory.
    device: Device,
    gate: Arc<Gate>,
    connection: Arc<Connection>,
    /// What the kernel holds of files; gone when nothing is served any more.
    pages: Weak<dyn Pages>,
    /// Tells [`Mount::wait`] not to wait any longer.
    abandon: Sender<End>,
}

/// Our end of the connection to the kernel, to ask whether it is still there.
struct Connection(OwnedFd);

impl Connection {
    /// Whether the kernel still holds the mount, attached to a directory or not.
    fn is_alive(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut device = [PollFd::new(&self.0, PollFlags::IN)];
        match rustix::event::poll(&mut device, Some(&now)) {
            Ok(_) => !device[0].revents().contains(PollFlags::ERR),
            Err(_) => true,
        }
    }
}

/// Mount `fs` on the directory `dir` and serve it from threads of its own.
///
/// Returns once the kernel has accepted the mount: the directory can be used from then on.
///
/// # Errors
/// When `dir` is no directory, the options do not go together, or the kernel or `fusermount3`
/// refuses.
pub fn mount<F: FileSystem>(
    fs: F,
    dir: &Path,
    options: &Options,
    status: StatusFn,
) -> io::Result<Mount> {
    let root = fs.root();
    let root_ino = fs.ino(&root);
    let vfs_options = VfsOptions {
        atime: options.atime,
        clock: options.clock.clone(),
        read_only: options.read_only,
    };
    serve(dir, options, options.writeback, |gate, invalidator, end| {
        let adapter = Arc::new(Adapter {
            vfs: Vfs::new(fs, vfs_options),
            table: InodeTable::new(root, root_ino),
            control: options.control.clone(),
            shutdown: options.shutdown.as_ref().map(|cut| Shutdown {
                cut: Arc::clone(cut),
                gate: Arc::clone(&gate),
                monitor: Arc::clone(&options.monitor),
            }),
            gate,
            monitor: options.monitor.clone(),
            crew: Crew::new(options.threads()),
            follower: Follower::default(),
            invalidator,
            status,
            behaviour: Behaviour {
                writeback: options.writeback,
                reads_must_be_seen: options.atime == Atime::Strict,
            },
            _end: end,
        });
        let pages = Arc::downgrade(&adapter) as Weak<dyn Pages>;
        (Server(adapter), pages)
    })
}

/// Mount whatever answers requests; it is made with the gate that closes at the end, with the way
/// to the kernel's caches, and with what tells of the end when it is dropped. With it comes what
/// the kernel holds of its files.
pub fn serve<H: Handler>(
    dir: &Path,
    options: &Options,
    writeback: bool,
    make: impl FnOnce(Arc<Gate>, Invalidator, EndSignal) -> (H, Weak<dyn Pages>),
) -> io::Result<Mount> {
    let dir = dir.canonicalize()?;
    if !dir.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory));
    }
    let gate = Arc::new(Gate::default());
    let (abandon, ended) = channel();
    let invalidator = Invalidator::default();
    let end = EndSignal(abandon.clone());
    let (handler, pages) = make(gate.clone(), invalidator.clone(), end);
    let queues = match options.transport {
        Transport::Device => None,
        Transport::Ring => ring::possible(),
    };
    let agreed = Arc::new(AtomicBool::new(false));
    let handshake = Handshake {
        writeback,
        ring: queues.is_some(),
        ring_agreed: Arc::clone(&agreed),
    };
    let session = Session::new(handshake, &dir, &options.config())?;
    invalidator.get_or_init(|| session.notifier());
    let connection = Arc::new(Connection(session.as_fd().try_clone_to_owned()?));
    let kernel = session.as_fd().try_clone_to_owned()?;
    let device = device(&dir)?;
    let queues = queues.filter(|_| agreed.load(Ordering::Relaxed));
    serve_by(&Arc::new(handler), options, kernel, queues)?;
    // Forgotten, because dropping it would unmount once more whatever is on the directory by then:
    // the library (0.18) takes a closed connection for an open one.
    std::mem::forget(session);
    raise_read_ahead(device);
    Ok(Mount {
        ended,
        unmounter: Unmounter {
            dir,
            device,
            gate,
            connection,
            pages,
            abandon,
        },
    })
}

/// Serve by queues, if there are to be any and that works; else by the device alone.
fn serve_by<H: Handler>(
    handler: &Arc<H>,
    options: &Options,
    kernel: OwnedFd,
    queues: Option<Possible>,
) -> io::Result<()> {
    if options.transport == Transport::Ring && queues.is_none() {
        log::warn!("requests come by /dev/fuse: they are not to be had by io_uring here");
    }
    // What comes there beside queues waits for nothing, so that one thread is enough.
    start_device(handler, &kernel, 1)?;
    let by_ring = match queues {
        Some(queues) => ring::start(handler, &kernel, queues, options.threads())?,
        None => false,
    };
    let transport = match by_ring {
        true => Transport::Ring,
        false => Transport::Device,
    };
    options.monitor.serves_by(transport);
    match by_ring {
        true => Ok(()),
        false => start_device(handler, &kernel, options.threads() - 1),
    }
}

/// Best effort: only root may, and only where sysfs is writable.
fn raise_read_ahead((major, minor): Device) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&file, READ_AHEAD_KIB.to_string()) {
        log::debug!("read-ahead stays at the kernel's default: {file}: {error}");
    }
}

impl Mount {
    /// A handle that can end this mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Wait until the mount has ended, by `umount` from anywhere or by [`Unmounter::stop`]. No
    /// request is served after that: the engine may be unmounted.
    ///
    /// # Errors
    /// When serving ended although the mount was still there; it is detached from its directory
    /// then.
    pub fn wait(self) -> io::Result<()> {
        // The unmounter keeps a sender, so that this cannot fail.
        let end = self.ended.recv().unwrap_or(End::Served);
        if end == End::Served && self.unmounter.connection.is_alive() {
            self.unmounter.detach();
            return Err(io::Error::other("the connection to the kernel failed"));
        }
        Ok(())
    }
}

impl Unmounter {
    /// End the mount, in use or not: [`Mount::wait`] returns within about `grace`.
    ///
    /// It disappears from the directory that it was mounted on, and those who use it may finish.
    /// After `grace` they get `EIO`, and `ENOTCONN` once the process is gone.
    pub fn stop(&self, grace: Duration) {
        self.detach();
        self.finish(grace);
    }

    /// Have the kernel write back what it holds of files, those too that stay open or mapped, and
    /// wait until that has been served.
    pub fn write_back(&self) {
        if let Some(pages) = self.pages.upgrade() {
            pages.write_back();
        }
    }

    /// Take the mount off its directory, in use or not, and nothing else that may be there by now.
    fn detach(&self) {
        let is_elsewhere = device(&self.dir).is_ok_and(|found| found != self.device);
        // A connection that has ended leaves its device number to others.
        if is_elsewhere || !self.connection.is_alive() {
            return;
        }
        if let Err(error) = unmount(&self.dir, true) {
            log::error!("cannot detach {}: {error}", self.dir.display());
        }
    }

    /// The last part of [`Unmounter::stop`], for who has detached the mount from all its
    /// directories: it unmounts nothing, waits for users as long as `grace` and then ends without
    /// them.
    pub fn finish(&self, grace: Duration) {
        if !self.connection.is_alive() {
            return;
        }
        log::warn!("{} is in use: waiting for its users", self.dir.display());
        let start = Instant::now();
        while start.elapsed() < grace {
            if !self.connection.is_alive() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.gate.close();
        if !self.gate.wait_until_empty(grace) {
            log::error!("requests are still being served; ending without them");
        }
        // When nobody waits there is nobody to tell.
        let _ = self.abandon.send(End::Abandoned);
    }
}

/// The device number of a file system, major and minor.
pub type Device = (u32, u32);

/// Which file system a path leads to. Asks no process that may serve it, and is told whether it may
/// be looked into or not.
///
/// # Errors
/// When nothing is there, or the way there is barred.
pub fn device(path: &Path) -> io::Result<Device> {
    // What to tell is nothing but what comes with every answer.
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Unmount the file system on `dir`; with `lazy`, detach it even if it is in use.
///
/// Tries the system call, and `fusermount3` for a user who may not use that. Returns when the
/// kernel has let go; the process that served the mount may still be making things durable.
///
/// # Errors
/// `EBUSY` when it is in use, `EINVAL` when nothing is mounted there, and what `fusermount3` says.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    let path = CString::new(dir.as_os_str().as_bytes())?;
    match rustix::mount::unmount(path.as_c_str(), flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => unmount_as_user(dir, lazy),
        Err(errno) => Err(errno.into()),
    }
}

fn unmount_as_user(dir: &Path, lazy: bool) -> io::Result<()> {
    let arguments: &[&str] = if lazy { &["-u", "-z"] } else { &["-u"] };
    let output = Command::new("fusermount3")
        .args(arguments)
        .arg(OsStr::new("--"))
        .arg(dir)
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("fusermount3: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    let kind = if said.contains("busy") {
        io::ErrorKind::ResourceBusy
    } else {
        io::ErrorKind::Other
    };
    Err(io::Error::new(kind, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serving_that_ends_early_takes_nothing_else_away() {
        testing::needs_root!(); // to mount something else
        let dir = tempfile::tempdir().expect("a directory");
        // Alive as long as the other end is there.
        let (connection, _other_end) = rustix::pipe::pipe().expect("a pipe");
        let (abandon, ended) = channel();
        let unmounter = Unmounter {
            dir: dir.path().to_owned(),
            device: device(dir.path()).expect("a file system"),
            gate: Arc::default(),
            connection: Arc::new(Connection(connection)),
            pages: Weak::<crate::null::NoPages>::new(),
            abandon: abandon.clone(),
        };
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, None).expect("mount");
        abandon.send(End::Served).expect("somebody waits");
        let waited = Mount { ended, unmounter }.wait();
        let unmounted = unmount(dir.path(), false);
        waited.expect_err("the connection failed");
        unmounted.expect("what else is mounted there still was");
    }
}

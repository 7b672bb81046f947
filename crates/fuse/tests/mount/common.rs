//! A mount of the reference file system that goes away with the test, however the test ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuse::{Monitor, Mount, Options, Request, StatusFn, Transport, Unmounter};
use model::Model;
use vfs::{Clock, FileSystem, SystemClock};

/// The reference file system, with the time of the system.
pub fn model() -> Model {
    Model::new(Arc::new(|| SystemClock.now()))
}

/// The variable that says by which transport the tests of this program mount; the device if it is
/// not there.
pub const TRANSPORT: &str = "TUREEN_TEST_TRANSPORT";

/// How mounts are served that do not ask for a transport of their own.
pub fn transport() -> Transport {
    let name = std::env::var(TRANSPORT);
    let found = Transport::ALL
        .into_iter()
        .find(|(_, known)| name.as_deref() == Ok(known));
    found.map_or(Transport::Device, |(transport, _)| transport)
}

/// A live mount; unmounted on drop.
pub struct Mounted {
    dir: tempfile::TempDir,
    monitor: Arc<Monitor>,
    threads: Option<usize>,
    unmounter: Unmounter,
    mount: Option<Mount>,
}

impl Mounted {
    /// Mount with changed options.
    pub fn with(change: impl FnOnce(&mut Options)) -> Mounted {
        Mounted::by(change, |dir, options, status| {
            fuse::mount(model(), dir, options, status)
        })
    }

    /// Mount this.
    pub fn of(fs: impl FileSystem) -> Mounted {
        Mounted::of_with(fs, |_| {})
    }

    /// Mount this with changed options.
    pub fn of_with(fs: impl FileSystem, change: impl FnOnce(&mut Options)) -> Mounted {
        Mounted::by(change, |dir, options, status| {
            fuse::mount(fs, dir, options, status)
        })
    }

    /// Mount with one thread that reads the device, and which makes up the status.
    pub fn telling(status: StatusFn) -> Mounted {
        Mounted::by(
            |options| (options.threads, options.transport) = (Some(1), Transport::Device),
            |dir, options, _| fuse::mount(model(), dir, options, status),
        )
    }

    /// Mount with changed options, and one thread, so that requests can be counted.
    pub fn counted(change: impl FnOnce(&mut Options)) -> Mounted {
        Mounted::with(|options| {
            options.threads = Some(1);
            change(options);
        })
    }

    /// Mount a file system that does nothing, and whose requests can be counted.
    pub fn nothing() -> Mounted {
        Mounted::by(|options| options.threads = Some(1), fuse::mount_nothing)
    }

    fn by(
        change: impl FnOnce(&mut Options),
        mount: impl FnOnce(&Path, &Options, StatusFn) -> std::io::Result<Mount>,
    ) -> Mounted {
        let mut options = Options::new("model", Arc::new(SystemClock));
        if testing::is_root() {
            (options.dev, options.suid, options.allow_other) = (true, true, true);
        }
        options.transport = transport();
        change(&mut options);
        let dir = tempfile::tempdir().expect("a directory to mount on");
        let monitor = options.monitor.clone();
        let status = Arc::new(|| b"alive".to_vec());
        let mount = mount(dir.path(), &options, status).expect("mount");
        Mounted {
            dir,
            monitor,
            threads: options.threads,
            unmounter: mount.unmounter(),
            mount: Some(mount),
        }
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The directory mounted on.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Returns when all requests that the kernel sent before have been counted: they are served in
    /// order, by one thread, and this is one more. Forgets have a queue of their own.
    fn settle(&self) {
        assert_eq!(self.threads, Some(1), "or requests overtake each other");
        rustix::fs::statfs(self.root()).expect("statfs");
    }

    /// The requests that `work` causes on a mount with one thread: name and count, but for forgets
    /// and statfs. What `work` returns is closed or dropped after counting.
    pub fn requests<T>(&self, work: impl FnOnce() -> T) -> Vec<(&'static str, u64)> {
        self.settle();
        let before: Vec<u64> = Request::ALL
            .iter()
            .map(|&r| self.monitor.count(r))
            .collect();
        let kept = work();
        self.settle();
        let counts = Request::ALL
            .iter()
            .zip(before)
            .filter(|&(&request, _)| !matches!(request, Request::Forget | Request::StatFs))
            .map(|(&request, before)| (request.name(), self.monitor.count(request) - before))
            .filter(|&(_, count)| count > 0)
            .collect();
        drop(kept);
        counts
    }

    /// What the mount has seen.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// A handle to end the mount with.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Wait for the end of the mount, which something else brings about.
    pub fn wait(&mut self) -> std::io::Result<()> {
        self.mount.take().expect("still mounted").wait()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            self.unmounter.stop(Duration::from_millis(100));
            let _ = mount.wait();
        }
    }
}

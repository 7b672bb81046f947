//! How to mount.

use std::sync::Arc;

use fuser::{Config, MountOption, SessionACL};
use vfs::{Atime, Clock};

use crate::monitor::{Monitor, Transport};
use crate::shutdown::ShutdownFn;
#[cfg(doc)]
use crate::xattrs::{CONTROL_XATTR, STATUS_XATTR};

/// Answers the status attribute (see [`STATUS_XATTR`]): a text of at most 64 KiB.
pub type StatusFn = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// What a command came to (see [`CONTROL_XATTR`]).
pub struct Done {
    /// The answer, at most 64 KiB.
    pub answer: Vec<u8>,
    /// A name in the root that may lead elsewhere now.
    pub changed: Option<&'static str>,
}

/// Runs a command (see [`CONTROL_XATTR`]).
pub type ControlFn = Arc<dyn Fn(&str) -> Done + Send + Sync>;

/// How to mount.
#[derive(Clone)]
pub struct Options {
    /// What `mount` and `/proc/mounts` show as the source: the image.
    pub fsname: String,
    /// Let users other than the one who mounts in. For others than root, `/etc/fuse.conf` must
    /// have `user_allow_other`.
    pub allow_other: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// When reading updates the access time.
    pub atime: Atime,
    /// Follow each write with an fsync (`MS_SYNCHRONOUS`).
    pub sync: bool,
    /// Honour device nodes. Only root may ask for it.
    pub dev: bool,
    /// Honour set-id bits. Only root may ask for it.
    pub suid: bool,
    /// Allow programs to be executed.
    pub exec: bool,
    /// Let the kernel keep written data and send it later: small writes become few requests, and
    /// what was written but not yet synced waits in the kernel, beyond the bound of the engine.
    pub writeback: bool,
    /// What `FS_IOC_SHUTDOWN` does before all requests are answered `EIO`; `None`: it is not
    /// offered.
    pub shutdown: Option<ShutdownFn>,
    /// Runs commands; `None`: there are none.
    pub control: Option<ControlFn>,
    /// Threads that serve requests, 16 by default: so many may wait for the medium at a time. Few
    /// of them wait for requests.
    pub threads: Option<usize>,
    /// How requests come.
    pub transport: Transport,
    /// Where times come from.
    pub clock: Arc<dyn Clock>,
    /// Where to count requests and note failures.
    pub monitor: Arc<Monitor>,
}

/// Threads that serve requests, unless told otherwise.
const THREADS: usize = 16;

impl Options {
    /// Read-write with the defaults of `mount(8)` for an ordinary user: `nodev,nosuid,relatime`.
    pub fn new(fsname: impl Into<String>, clock: Arc<dyn Clock>) -> Options {
        Options {
            fsname: fsname.into(),
            allow_other: false,
            read_only: false,
            atime: Atime::Relative,
            sync: false,
            dev: false,
            suid: false,
            exec: true,
            writeback: false,
            shutdown: None,
            control: None,
            threads: None,
            transport: Transport::Device,
            clock,
            monitor: Arc::default(),
        }
    }

    /// What the library is told.
    pub(crate) fn config(&self) -> Config {
        let switch = |on, yes: MountOption, no: MountOption| if on { yes } else { no };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(self.source()),
            // Not `Subtype`: the library hands that to fusermount3 only, not to the kernel.
            MountOption::CUSTOM("subtype=tureen".to_string()),
            MountOption::DefaultPermissions,
            switch(self.read_only, MountOption::RO, MountOption::RW),
            switch(self.dev, MountOption::Dev, MountOption::NoDev),
            switch(self.suid, MountOption::Suid, MountOption::NoSuid),
            switch(self.exec, MountOption::Exec, MountOption::NoExec),
        ];
        if self.atime == Atime::No {
            config.mount_options.push(MountOption::NoAtime);
        }
        if self.sync {
            config.mount_options.push(MountOption::Sync);
        }
        config.acl = if self.allow_other {
            SessionACL::All
        } else {
            SessionACL::Owner
        };
        config
    }

    /// How many threads serve requests.
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or(THREADS).max(1)
    }

    /// The source as the mount helper wants it: only `fusermount3`, which root does not need, takes
    /// it out of a list of options.
    fn source(&self) -> String {
        if rustix::process::geteuid().is_root() {
            return self.fsname.clone();
        }
        self.fsname.replace('\\', "\\\\").replace(',', "\\,")
    }
}

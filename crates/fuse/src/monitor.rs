//! What a mount has seen: requests by kind, and the last failure worth telling the user.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

macro_rules! requests {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// The kinds of request that the kernel sends.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is named after its FUSE operation")]
        pub enum Request { $($variant),* }

        impl Request {
            /// All kinds, in the order of their numbers here.
            pub const ALL: &'static [Request] = &[$(Request::$variant),*];

            /// The name of the operation, as FUSE has it, in lower case.
            pub fn name(self) -> &'static str {
                match self { $(Request::$variant => $name),* }
            }
        }
    };
}

requests! {
    Lookup "lookup", Forget "forget", GetAttr "getattr", SetAttr "setattr", ReadLink "readlink",
    Symlink "symlink", MkNod "mknod", MkDir "mkdir", Unlink "unlink", RmDir "rmdir",
    Rename "rename", Link "link", Open "open", Read "read", Write "write", StatFs "statfs",
    Release "release", FSync "fsync", SetXattr "setxattr", GetXattr "getxattr",
    ListXattr "listxattr", RemoveXattr "removexattr", Flush "flush", OpenDir "opendir",
    ReadDir "readdir", ReadDirPlus "readdirplus", ReleaseDir "releasedir", FSyncDir "fsyncdir",
    Access "access", Create "create", Ioctl "ioctl", Poll "poll", FAllocate "fallocate",
    Lseek "lseek", CopyFileRange "copy_file_range",
}

/// The way that requests come and answers go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `/dev/fuse`, read by all threads.
    Device,
    /// io_uring, with a queue for each core; where the kernel offers that, else the device.
    Ring,
}

impl Transport {
    /// Both, with their names.
    pub const ALL: [(Transport, &'static str); 2] =
        [(Transport::Device, "device"), (Transport::Ring, "ring")];

    /// As users have it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Device => "device",
            Transport::Ring => "ring",
        }
    }
}

/// What a mount has seen. Shared between the mount and whoever reports on it.
#[derive(Debug)]
pub struct Monitor {
    counts: Box<[AtomicU64]>,
    last_error: Mutex<Option<String>>,
    transport: OnceLock<Transport>,
}

impl Default for Monitor {
    fn default() -> Monitor {
        Monitor {
            counts: Request::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            last_error: Mutex::new(None),
            transport: OnceLock::new(),
        }
    }
}

impl Monitor {
    /// Requests of one kind so far. Forgets count one for each inode, though
    /// the kernel sends them in batches and expects no answer.
    pub fn count(&self, request: Request) -> u64 {
        // Relaxed: a statistic, ordered with nothing.
        self.counts[request as usize].load(Ordering::Relaxed)
    }

    /// The kinds seen so far with their counts.
    pub fn counts(&self) -> Vec<(Request, u64)> {
        Request::ALL
            .iter()
            .map(|&r| (r, self.count(r)))
            .filter(|&(_, n)| n > 0)
            .collect()
    }

    /// The last failure of the medium or the image, or panic in a request; nothing that POSIX
    /// names.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// How requests come; `None` before they do.
    pub fn transport(&self) -> Option<Transport> {
        self.transport.get().copied()
    }

    /// Requests come this way.
    pub(crate) fn serves_by(&self, transport: Transport) {
        self.transport.get_or_init(|| transport);
    }

    /// Count one request.
    pub(crate) fn saw(&self, request: Request) {
        self.counts[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Log a failure and keep it; one that repeats is logged once.
    pub(crate) fn failed(&self, what: String) {
        let mut last = self.last_error.lock();
        if last.as_deref() != Some(what.as_str()) {
            log::error!("{what}");
            *last = Some(what);
        }
    }
}

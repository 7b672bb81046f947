//! What a block device is, for those who write one: backends, and layers over them.
//!
//! A request is submitted with a callback, and in flight until the callback has been called. A
//! device may complete requests by itself, or only while somebody drives it with [`Device::reap`]
//! or [`Device::wait`]. Who waits for a request waits as [`Device::execute`] does:
//!
//! 1. `seen = delivered()`,
//! 2. return if the callback has been called,
//! 3. `wait(seen)`, which returns at once if anything was delivered since step 1; then step 1.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{Buffer, Events};

/// Bytes of a sector: unit of every request, and what a crash leaves old or new as a whole.
pub const SECTOR: u64 = 512;

/// What is to be done.
#[derive(Debug)]
pub enum Request {
    /// Fills the buffers from consecutive sectors.
    Read {
        /// First byte.
        at: u64,
        /// Filled in order.
        into: Vec<Buffer>,
    },
    /// Writes the buffers to consecutive sectors.
    Write {
        /// First byte.
        at: u64,
        /// Written in order.
        from: Vec<Buffer>,
        /// A flush follows once they are written; the request completes with that.
        flush: bool,
    },
    /// Makes durable what had completed before this was submitted.
    Flush,
    /// Makes sectors read as zeros; durable like a write. `EOPNOTSUPP` where the host cannot.
    Zero {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Gives up the contents of sectors: each may read as it was or as zeros until it is written.
    /// `EOPNOTSUPP` where the host cannot.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Reserves space, so that later writes do not fail for lack of it. Contents stay.
    Allocate {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
}

/// The kind of a [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// [`Request::Read`].
    Read,
    /// [`Request::Write`], with or without a flush.
    Write,
    /// [`Request::Flush`].
    Flush,
    /// [`Request::Zero`].
    Zero,
    /// [`Request::Discard`].
    Discard,
    /// [`Request::Allocate`].
    Allocate,
}

/// What a request is about, without its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// Its kind.
    pub op: Op,
    /// First byte; 0 for a flush.
    pub at: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.op {
            Op::Read => "reading",
            Op::Write => "writing",
            Op::Flush => return f.write_str("flushing"),
            Op::Zero => "zeroing",
            Op::Discard => "discarding",
            Op::Allocate => "allocating",
        };
        write!(f, "{verb} {} bytes at {}", self.len, self.at)
    }
}

impl Request {
    /// What the request is about.
    pub fn action(&self) -> Action {
        let (op, at, len) = match self {
            Request::Read { at, into } => (Op::Read, *at, bytes(into)),
            Request::Write { at, from, .. } => (Op::Write, *at, bytes(from)),
            Request::Flush => (Op::Flush, 0, 0),
            Request::Zero { at, len } => (Op::Zero, *at, *len),
            Request::Discard { at, len } => (Op::Discard, *at, *len),
            Request::Allocate { at, len } => (Op::Allocate, *at, *len),
        };
        Action { op, at, len }
    }

    /// Whether it ends with a flush.
    pub fn flushes(&self) -> bool {
        matches!(self, Request::Flush | Request::Write { flush: true, .. })
    }

    /// Its buffers.
    pub fn into_buffers(self) -> Vec<Buffer> {
        match self {
            Request::Read { into: buffers, .. } | Request::Write { from: buffers, .. } => buffers,
            _ => Vec::new(),
        }
    }
}

/// Bytes in buffers.
fn bytes(buffers: &[Buffer]) -> u64 {
    buffers.iter().map(|buffer| buffer.len() as u64).sum()
}

/// The end of a request, which comes back with its buffers.
#[derive(Debug)]
pub struct Completion {
    /// As it was submitted; a read has filled its buffers if it succeeded.
    pub request: Request,
    /// Whether all of it was done.
    pub result: Result<(), Errno>,
}

/// Called once, when a request is complete, by any thread that submits to the device or drives it,
/// or by one of the device's own. It may submit; it must not wait.
pub type Done = Box<dyn FnOnce(Completion) + Send>;

/// A request and what follows it.
pub struct Io {
    /// What is to be done.
    pub request: Request,
    /// Called when it is.
    pub done: Done,
}

impl Io {
    /// Ends it.
    pub fn complete(self, result: Result<(), Errno>) {
        (self.done)(Completion {
            request: self.request,
            result,
        });
    }
}

/// Tells whether two paths lead to the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number of the file system that holds the image, or of the block device.
    pub device: u64,
    /// Inode of the image; 0 for a block device.
    pub inode: u64,
}

/// What a device is.
#[derive(Debug, Clone)]
pub struct Info {
    /// Its name in messages.
    pub name: String,
    /// How I/O is done, for users: `O_DIRECT, io_uring`.
    pub how: String,
    /// Bytes, a positive multiple of [`SECTOR`].
    pub len: u64,
    /// None if it has no name outside this process.
    pub identity: Option<Identity>,
    /// Writes are refused.
    pub read_only: bool,
}

/// A block device. Requests in flight are unordered among each other.
///
/// Requests lie within the device and cover whole sectors: [`Disk`](crate::Disk) checks.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> &Info;

    /// Where the first byte at or behind `at` is that may not read as zeros, as far as the device
    /// knows without reading; `at` if it does not. What has been written counts as soon as the
    /// write has completed.
    fn data_from(&self, at: u64) -> u64 {
        at
    }

    /// Starts requests. Does not block for I/O, unless the device has no other way.
    fn submit(&self, ios: Vec<Io>);

    /// A count that changes after each callback.
    fn delivered(&self) -> u64;

    /// Calls the callbacks of what has completed, without blocking.
    fn reap(&self) {}

    /// Blocks until [`delivered`](Device::delivered) is not `seen`, and delivers meanwhile. Only
    /// for a caller whose request is in flight, or was when it looked at the count.
    fn wait(&self, seen: u64);

    /// Counts as a delivery: wakes who waits. For a callback that was called without the device.
    fn notify(&self);

    /// Does one request; for a caller that has nothing better to do than to wait.
    fn execute(&self, request: Request) -> Completion {
        let place = Arc::new(Mutex::new(None));
        let done: Done = {
            let place = place.clone();
            Box::new(move |completion| *place.lock() = Some(completion))
        };
        self.submit(vec![Io { request, done }]);
        loop {
            let seen = self.delivered();
            if let Some(completion) = place.lock().take() {
                return completion;
            }
            self.wait(seen);
        }
    }
}

/// A device that does each request at once, in the thread that submits it. Whoever implements this
/// has a [`Device`].
pub trait Immediate: Send + Sync {
    /// What it is.
    fn info(&self) -> &Info;

    /// Counts the requests that were done.
    fn events(&self) -> &Events;

    /// Does a request.
    ///
    /// # Errors
    /// What the request fails with.
    fn run(&self, request: &mut Request) -> Result<(), Errno>;
}

impl<D: Immediate> Device for D {
    fn info(&self) -> &Info {
        Immediate::info(self)
    }

    fn submit(&self, ios: Vec<Io>) {
        for mut io in ios {
            let result = self.run(&mut io.request);
            io.complete(result);
            self.events().announce();
        }
    }

    fn delivered(&self) -> u64 {
        self.events().count()
    }

    fn wait(&self, seen: u64) {
        self.events().wait(seen);
    }

    fn notify(&self) {
        self.events().announce();
    }

    fn execute(&self, mut request: Request) -> Completion {
        let result = self.run(&mut request);
        Completion { request, result }
    }
}

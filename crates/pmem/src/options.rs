//! How a pool is opened, and what may watch it.

use std::sync::Arc;

use crate::{Domain, PAGE, Syncer, paged};

/// Bytes at the start of a pool that tell whether its last user ended well.
pub const HEAD_LEN: usize = 2 * PAGE as usize;

/// Extra time that the medium is made to take, in nanoseconds. The default adds nothing.
///
/// The calling thread spins for the time, as the papers inject it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// Per flushed line, and per line that [`Pool::write_nt`](crate::Pool::write_nt) stores around
    /// the cache, unless it has to be flushed all the same (domain `page`).
    pub flush_ns: u32,
    /// Per fence.
    pub fence_ns: u32,
    /// Per line read (a `load` reads one).
    pub read_ns: u32,
}

/// How a pool is created or opened.
#[derive(Clone)]
pub struct Options {
    /// The persistence domain to assume; `None` detects it.
    pub domain: Option<Domain>,
    /// Map for reading only. Stores then panic: they are a programmer's mistake.
    pub read_only: bool,
    /// Map what [`Pool::open`](crate::Pool::open) opens privately: stores change this process's
    /// memory, and the file never. It is opened for reading only, and locked as if `read_only`. Not
    /// for device DAX.
    pub private: bool,
    /// Ask for huge pages where the medium leaves a choice (anonymous memory, tmpfs). Not for files
    /// on a disk, where the kernel would write a whole huge page back for each changed line.
    pub huge_pages: bool,
    /// Extra latency to emulate.
    pub latency: Latency,
    /// Who sees every store, flush, fence and mark.
    pub recorder: Option<Arc<dyn Recorder>>,
    /// Runs the syncs of domain `page`, that at opening included. Tests inject faults with it.
    pub syncer: Option<Arc<dyn Syncer>>,
    /// Whether the last process that wrote to the pool ended well, told by up to [`HEAD_LEN`] bytes
    /// from its start, as the disk has them. Asked when a file of domain `page` is opened; if not,
    /// what the host caches of the file is dropped (M13).
    pub ended_well: fn(&[u8]) -> bool,
    /// Lock the file or device (`flock`): exclusively, or shared when `read_only` or `private`.
    pub exclusive: bool,
    /// Hold a file of domain `page` in memory of bounded size, and do its I/O in this process; not
    /// if it is opened `private`. `None`: map it, and leave its I/O to the host.
    pub paged: Option<paged::Options>,
    /// Create the file without blocks; [`Pool::back`](crate::Pool::back) adds them.
    pub sparse: bool,
}

impl Default for Options {
    /// Detect the domain, lock, allocate blocks up front, add nothing, trust no cache.
    fn default() -> Self {
        Options {
            domain: None,
            read_only: false,
            private: false,
            huge_pages: false,
            latency: Latency::default(),
            recorder: None,
            syncer: None,
            ended_well: |_| false,
            exclusive: true,
            paged: Some(paged::Options::default()),
            sparse: false,
        }
    }
}

/// How a recorded store reached memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// Through the cache.
    Cached,
    /// Around the cache: unordered against all other stores until a fence.
    NonTemporal,
}

/// Sees all that happens to a pool, in the order in which it happens.
///
/// The pool serialises its calls: the order of calls is the order in which the stores took
/// effect, over all threads. Each call is made on the thread that stores, flushes or fences (so
/// a recorder may tell threads apart), with a lock held: a recorder must not call the pool.
pub trait Recorder: Send + Sync {
    /// `bytes` were stored at `off`.
    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind);
    /// Words (offset, value) were stored at once, by a [transaction](crate::transaction): a crash
    /// finds all of them or none. Unless a recorder knows that, it sees them one after another.
    fn store_together(&self, words: &[(u64, u64)]) {
        for &(off, value) in words {
            self.store(off, &value.to_le_bytes(), StoreKind::Cached);
        }
    }
    /// Write-back of the range was requested.
    fn flush(&self, off: u64, len: u64);
    /// A fence completed.
    fn fence(&self);
    /// An operation mark.
    fn mark(&self, text: &str);
}

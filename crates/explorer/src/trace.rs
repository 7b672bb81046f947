//! The trace: everything that happens to a pool, in the order in which it took effect.
//!
//! A [`Trace`] is a recorder of `pmem`. That nothing which reaches the medium escapes it is checked in each
//! run: the trace replayed over the image from before must give the image from after (see `run`).

use parking_lot::Mutex;
use pmem::{Recorder, StoreKind};
use std::backtrace::Backtrace;
use std::sync::Arc;
use std::thread::ThreadId;

/// Something that happened to a pool. Offsets and lengths are in bytes.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were stored.
    Store {
        /// Where.
        at: u64,
        /// What.
        bytes: Vec<u8>,
        /// Around the cache: the thread that must fence it.
        around: Option<ThreadId>,
    },
    /// Write-back of a range was requested.
    Flush {
        /// Where.
        at: u64,
        /// How much.
        len: u64,
        /// By which thread.
        by: ThreadId,
        /// Number of the place in the engine.
        site: u32,
    },
    /// A fence completed.
    Fence {
        /// Of which thread.
        by: ThreadId,
        /// Number of the place in the engine.
        site: u32,
    },
    /// A step of the workload begins.
    Begin(usize),
    /// A step of the workload has ended.
    End(usize),
}

/// Records what happens to a pool, and on demand where in the engine flushes and fences come from.
#[derive(Default)]
pub struct Trace {
    events: Mutex<Vec<Event>>,
    sites: Option<Mutex<Vec<String>>>,
}

impl Trace {
    /// An empty trace; `sites`: note who flushes and fences (slow).
    pub fn new(sites: bool) -> Arc<Trace> {
        Arc::new(Trace {
            events: Mutex::default(),
            sites: sites.then(Mutex::default),
        })
    }

    /// What has happened so far, and the names of the sites.
    pub fn take(&self) -> (Vec<Event>, Vec<String>) {
        let sites = self.sites.as_ref().map(|s| std::mem::take(&mut *s.lock()));
        (
            std::mem::take(&mut *self.events.lock()),
            sites.unwrap_or_default(),
        )
    }

    /// Note a step's begin or end.
    pub fn mark(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// Number of events so far.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }

    /// Whether nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Look at the events from number `from` on.
    pub fn with<T>(&self, from: usize, look: impl FnOnce(&[Event]) -> T) -> T {
        look(&self.events.lock()[from..])
    }

    fn site(&self) -> u32 {
        let Some(sites) = &self.sites else { return 0 };
        let name = caller(&Backtrace::force_capture().to_string());
        let mut sites = sites.lock();
        let known = sites.iter().position(|site| *site == name);
        known.unwrap_or_else(|| {
            sites.push(name);
            sites.len() - 1
        }) as u32
    }
}

/// The innermost functions of the engine on a stack, outermost last.
fn caller(stack: &str) -> String {
    let of_engine = |name: &&str| {
        ["soupfs::", "pmem::journal", "<soupfs::", "<pmem::journal"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let frames = stack
        .lines()
        .filter_map(|line| Some(line.trim().split_once(": ")?.1))
        .filter(of_engine)
        .map(|name| name.split("::h").next().unwrap_or(name))
        .filter(|name| !name.contains("closure"))
        .map(|name| {
            let parts: Vec<&str> = name.rsplit("::").take(2).collect();
            parts.into_iter().rev().collect::<Vec<_>>().join("::")
        });
    frames.take(3).collect::<Vec<_>>().join(" < ")
}

impl Recorder for Trace {
    fn store(&self, at: u64, bytes: &[u8], kind: StoreKind) {
        self.events.lock().push(Event::Store {
            at,
            bytes: bytes.to_vec(),
            around: (kind == StoreKind::NonTemporal).then(|| std::thread::current().id()),
        });
    }

    fn flush(&self, at: u64, len: u64) {
        let site = self.site();
        self.events.lock().push(Event::Flush {
            at,
            len,
            by: std::thread::current().id(),
            site,
        });
    }

    fn fence(&self) {
        let site = self.site();
        self.events.lock().push(Event::Fence {
            by: std::thread::current().id(),
            site,
        });
    }

    fn mark(&self, _text: &str) {}
}

//! The trace: everything that happens to a pool, in the order in which it took effect.
//!
//! A [`Trace`] is a recorder of `pmem`. That nothing which reaches the medium escapes it is checked
//! in each run: the trace replayed over the image from before must give the image from after (see
//! `run`).

use parking_lot::Mutex;
use pmem::{Recorder, StoreKind};
use serde::{Deserialize, Serialize};
use std::backtrace::Backtrace;
use std::sync::Arc;
use std::thread::ThreadId;

/// A thread of a run: threads are numbered as they appear in its trace, from 0 on.
pub type Thread = u32;

/// Something that happened to a pool. Offsets and lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Bytes were stored.
    Store {
        /// Where.
        at: u64,
        /// What.
        #[serde(with = "crate::forms::bytes")]
        bytes: Vec<u8>,
        /// Around the cache: the thread that must fence it.
        around: Option<Thread>,
    },
    /// Words were stored at once: where, and what.
    Together(Vec<(u64, u64)>),
    /// Write-back of a range was requested.
    Flush {
        /// Where.
        at: u64,
        /// How much.
        len: u64,
        /// By which thread.
        by: Thread,
        /// Number of the place in the engine.
        site: u32,
    },
    /// A fence completed.
    Fence {
        /// Of which thread.
        by: Thread,
        /// Number of the place in the engine.
        site: u32,
    },
    /// A disk's barrier completed.
    Barrier {
        /// Of which thread.
        by: Thread,
        /// Number of the place in the engine.
        site: u32,
    },
    /// A sync failed, and with it the fence that ran it.
    Fail,
    /// A step of the workload begins.
    Begin(usize),
    /// A step of the workload has ended.
    End(usize),
}

/// Records what happens to a pool, and on demand where in the engine flushes and fences come from.
#[derive(Default)]
pub struct Trace {
    events: Mutex<Vec<Event>>,
    threads: Mutex<Vec<ThreadId>>,
    /// Parts of the paths of the engine's sources; none: nobody asks who flushes.
    sources: &'static [&'static str],
    sites: Mutex<Vec<String>>,
}

impl Trace {
    /// An empty trace. `sources`: note which places of sources with these parts of a path flush and
    /// fence (slow); none if it is empty.
    pub fn new(sources: &'static [&'static str]) -> Arc<Trace> {
        Arc::new(Trace {
            events: Mutex::default(),
            threads: Mutex::default(),
            sources,
            sites: Mutex::default(),
        })
    }

    /// What has happened so far, and the names of the sites.
    pub fn take(&self) -> (Vec<Event>, Vec<String>) {
        (
            std::mem::take(&mut *self.events.lock()),
            std::mem::take(&mut *self.sites.lock()),
        )
    }

    /// Note a step's begin or end.
    pub fn mark(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// Note that a disk's barrier has completed.
    pub fn barrier(&self) {
        let (site, by) = (self.site(), self.thread());
        self.mark(Event::Barrier { by, site });
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

    /// The calling thread's number.
    fn thread(&self) -> Thread {
        let (id, mut threads) = (std::thread::current().id(), self.threads.lock());
        let known = threads.iter().position(|thread| *thread == id);
        known.unwrap_or_else(|| {
            threads.push(id);
            threads.len() - 1
        }) as Thread
    }

    fn site(&self) -> u32 {
        if self.sources.is_empty() {
            return 0;
        }
        let name = caller(&Backtrace::force_capture().to_string(), self.sources);
        let mut sites = self.sites.lock();
        let known = sites.iter().position(|site| *site == name);
        known.unwrap_or_else(|| {
            sites.push(name);
            sites.len() - 1
        }) as u32
    }
}

/// The innermost functions of the engine on a stack, outermost last, each with its file. A build
/// may know functions by their last name only, so the file says what is the engine's.
fn caller(stack: &str, sources: &[&str]) -> String {
    let mut frames = Vec::new();
    let mut function = "";
    for line in stack.lines().map(str::trim) {
        match line.strip_prefix("at ") {
            None => function = line.split_once(": ").map_or("", |(_, name)| name),
            Some(place) => frames.extend(frame(function, place, sources)),
        }
    }
    if frames.is_empty() {
        return "outside of the engine".to_owned();
    }
    frames.truncate(3);
    frames.join(" < ")
}

/// A symbol without the hash at its end, `::h` and 16 digits.
fn without_hash(symbol: &str) -> &str {
    match symbol.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => symbol,
    }
}

/// A function of the engine by file and name, from its name and its place in the source.
fn frame(function: &str, place: &str, sources: &[&str]) -> Option<String> {
    let path = place.split(':').next().unwrap_or(place);
    let of_engine = sources.iter().any(|source| path.contains(source));
    let name = without_hash(function);
    if !of_engine || name.contains("closure") {
        return None;
    }
    // Without the types that it is for: `persist::<[Pull; 1]>`, `<Txn as Words>::word`.
    let name = name.rsplit(">::").next().unwrap_or(name);
    let name = name.split('<').next().unwrap_or(name);
    let name = name.trim_end_matches("::");
    let name = name.rsplit("::").next().unwrap_or(name);
    let file = path.rsplit('/').next().unwrap_or(path);
    Some(format!("{}::{name}", file.trim_end_matches(".rs")))
}

impl Recorder for Trace {
    fn store(&self, at: u64, bytes: &[u8], kind: StoreKind) {
        let around = (kind == StoreKind::NonTemporal).then(|| self.thread());
        self.events.lock().push(Event::Store {
            at,
            bytes: bytes.to_vec(),
            around,
        });
    }

    fn store_together(&self, words: &[(u64, u64)]) {
        self.events.lock().push(Event::Together(words.to_vec()));
    }

    fn flush(&self, at: u64, len: u64) {
        let (site, by) = (self.site(), self.thread());
        self.events.lock().push(Event::Flush { at, len, by, site });
    }

    fn fence(&self) {
        let (site, by) = (self.site(), self.thread());
        self.events.lock().push(Event::Fence { by, site });
    }

    fn mark(&self, _text: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: &[&str] = &["engine/src/"];

    #[test]
    fn a_place_is_named_alike_whatever_the_build_knows() {
        let full = "   3: engine::txn::Txn::publish\n             \
                    at ./crates/engine/src/txn.rs:120:9\n   \
                    4: engine::persister::Persister::sweep::{{closure}}\n             \
                    at ./crates/engine/src/persister.rs:1:2\n   \
                    5: engine::persister::Persister::sweep\n             \
                    at ./crates/engine/src/persister.rs:1:2\n";
        let short = "   3: publish\n             at /x/crates/engine/src/txn.rs:120:9\n   \
                     5: sweep\n             at /x/crates/engine/src/persister.rs:1:2\n   \
                     6: main\n             at /x/main.rs:1:2\n";
        assert_eq!(caller(full, SOURCES), "txn::publish < persister::sweep");
        assert_eq!(caller(short, SOURCES), caller(full, SOURCES));
        let place = "./crates/engine/src/persister.rs:1:2";
        let handed = frame(
            "engine::persister::hand_over::h0123456789abcdef",
            place,
            SOURCES,
        );
        assert_eq!(handed.as_deref(), Some("persister::hand_over"));
        for name in [
            "engine::persister::Persister::persist::<[engine::batch::Pull; 1]>",
            "persist<[engine::batch::Pull; 1]>",
            "<engine::persister::Persister>::persist",
        ] {
            let frame = frame(name, place, SOURCES);
            assert_eq!(frame.as_deref(), Some("persister::persist"), "{name}");
        }
    }
}

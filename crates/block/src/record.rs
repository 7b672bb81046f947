//! A recorder over a device: what was written, zeroed, discarded and flushed, and when it
//! completed. From that, [`crash`](Trace::crash) makes what a crash may leave.

mod crash;
mod sectors;
mod token;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::Buffer;
use crate::device::{Completion, Device, Done, Info, Io, Request};

pub use crash::{Crash, State};
pub use sectors::{Sectors, Version};
pub use token::{BadToken, Token};

/// The number of a recorded change, in the order of submission.
pub type ChangeId = usize;

/// What changes a device, or makes changes durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes written at a byte offset.
    Write {
        /// First byte.
        at: u64,
        /// What was written.
        bytes: Arc<[u8]>,
    },
    /// A range zeroed.
    Zero {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// A range discarded.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// A flush.
    Flush,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A change is in flight from here on. They are numbered from 0.
    Submitted(Change),
    /// A change is complete.
    Completed {
        /// Which one.
        id: ChangeId,
        /// Without an error.
        ok: bool,
    },
    /// What whoever recorded wanted to remember here, such as what it had been promised.
    Mark(String),
}

/// What was recorded: contents at first, and events in an order that they may have had. A flush
/// that stands behind a completion was submitted after it.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The device when recording began, all of it durable.
    pub initial: Arc<[u8]>,
    /// What followed.
    pub events: Vec<Event>,
    changes: usize,
}

impl Trace {
    /// An empty trace of a device with these contents.
    pub fn new(initial: impl Into<Arc<[u8]>>) -> Trace {
        Trace {
            initial: initial.into(),
            events: Vec::new(),
            changes: 0,
        }
    }

    /// A change is submitted.
    pub fn submit(&mut self, change: Change) -> ChangeId {
        self.events.push(Event::Submitted(change));
        self.changes += 1;
        self.changes - 1
    }

    /// A change is complete.
    pub fn complete(&mut self, id: ChangeId, ok: bool) {
        self.events.push(Event::Completed { id, ok });
    }

    /// What a crash may leave behind the first `point` events.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn crash(&self, point: usize) -> Crash<'_> {
        Crash::new(self, point)
    }

    /// The first events of it.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn before(&self, point: usize) -> Trace {
        let events = self.events[..point].to_vec();
        let is_change = |event: &&Event| matches!(event, Event::Submitted(_));
        Trace {
            initial: self.initial.clone(),
            changes: events.iter().filter(is_change).count(),
            events,
        }
    }

    /// The points before each flush that succeeded, and the end. What a crash may leave at any
    /// other point it may also leave at the next of these.
    pub fn points(&self) -> Vec<usize> {
        let mut flushes = Vec::new();
        let mut points = Vec::new();
        let mut id = 0;
        for (i, event) in self.events.iter().enumerate() {
            match event {
                Event::Submitted(change) => {
                    flushes.extend((*change == Change::Flush).then_some(id));
                    id += 1;
                }
                Event::Completed { id, ok: true } if flushes.contains(id) => points.push(i),
                _ => {}
            }
        }
        points.push(self.events.len());
        points
    }

    /// The marks before a point.
    pub fn marks(&self, point: usize) -> impl Iterator<Item = &str> {
        self.events[..point].iter().filter_map(|event| match event {
            Event::Mark(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The image that a token names.
    ///
    /// # Errors
    /// This trace has no such state.
    pub fn replay(&self, token: Token) -> Result<Vec<u8>, BadToken> {
        let unknown = || BadToken(token.to_string());
        if token.point > self.events.len() {
            return Err(unknown());
        }
        self.crash(token.point)
            .image(token.state)
            .ok_or_else(unknown)
    }
}

/// Records what passes through to a device.
pub struct Recorder {
    inner: Arc<dyn Device>,
    trace: Arc<Mutex<Trace>>,
}

impl Recorder {
    /// A recorder over a device, whose contents it reads first and takes for durable.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn new(inner: Arc<dyn Device>) -> Recorder {
        let read = inner.execute(Request::Read {
            at: 0,
            into: vec![Buffer::zeroed(inner.info().len as usize)],
        });
        read.result.expect("a device that is recorded can be read");
        let initial = read.request.into_buffers().remove(0);
        Recorder {
            inner,
            trace: Arc::new(Mutex::new(Trace::new(&initial[..]))),
        }
    }

    /// A recorder over a device that holds what a trace ends with, all that had completed: the
    /// process that used it was killed, and another one goes on (B9).
    pub fn resume(inner: Arc<dyn Device>, trace: Trace) -> Recorder {
        Recorder {
            inner,
            trace: Arc::new(Mutex::new(trace)),
        }
    }

    /// How many events were recorded so far.
    #[allow(clippy::len_without_is_empty, reason = "a position, not a collection")]
    pub fn len(&self) -> usize {
        self.trace.lock().events.len()
    }

    /// Remembers something between what completed before and what is submitted after.
    pub fn mark(&self, text: impl Into<String>) {
        self.trace.lock().events.push(Event::Mark(text.into()));
    }

    /// What was recorded so far.
    pub fn trace(&self) -> Trace {
        self.trace.lock().clone()
    }

    /// Records a request, and its completion when that comes.
    fn record(&self, io: Io) -> Io {
        let Some(change) = change(&io.request) else {
            return io;
        };
        let chained = matches!(io.request, Request::Write { flush: true, .. });
        let id = self.trace.lock().submit(change);
        let trace = self.trace.clone();
        let done: Done = Box::new(move |completion: Completion| {
            {
                let mut trace = trace.lock();
                let ok = completion.result.is_ok();
                trace.complete(id, ok);
                if chained && ok {
                    let flush = trace.submit(Change::Flush);
                    trace.complete(flush, ok);
                }
            }
            (io.done)(completion);
        });
        Io {
            request: io.request,
            done,
        }
    }
}

fn change(request: &Request) -> Option<Change> {
    Some(match request {
        Request::Write { at, from, .. } => Change::Write {
            at: *at,
            bytes: from
                .iter()
                .flat_map(|buffer| buffer.iter().copied())
                .collect(),
        },
        Request::Zero { at, len } => Change::Zero { at: *at, len: *len },
        Request::Discard { at, len } => Change::Discard { at: *at, len: *len },
        Request::Flush => Change::Flush,
        Request::Read { .. } | Request::Allocate { .. } => return None,
    })
}

impl Device for Recorder {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn data_from(&self, at: u64) -> u64 {
        self.inner.data_from(at)
    }

    fn submit(&self, ios: Vec<Io>) {
        let ios = ios.into_iter().map(|io| self.record(io)).collect();
        self.inner.submit(ios);
    }

    fn delivered(&self) -> u64 {
        self.inner.delivered()
    }

    fn reap(&self) {
        self.inner.reap();
    }

    fn wait(&self, seen: u64) {
        self.inner.wait(seen);
    }

    fn notify(&self) {
        self.inner.notify();
    }
}

//! Faults: a layer that fails requests, loses the device, and delivers completions late and in any
//! order.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::device::{Completion, Device, Done, Info, Io, Op, Request, SECTOR};
use crate::{Buffer, Random};

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and nothing of it is done.
    Fail(Errno),
    /// It is done, and fails nevertheless.
    FailDone(Errno),
    /// Of a write the first half of its sectors is written, then it fails. As [`Fault::Fail`] of
    /// anything else, and of a single sector.
    Short(Errno),
    /// The device is gone: this and all later requests fail with `ENODEV`.
    Vanish,
}

/// A layer that injects faults. Requests are numbered from 0 in the order of submission.
pub struct Faults {
    inner: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

struct State {
    planned: BTreeMap<usize, Fault>,
    /// The kind of each request so far.
    seen: Vec<Op>,
    gone: bool,
    /// Chooses which completion is delivered next, if they are held back.
    reorder: Option<Random>,
    /// Completions that are held back.
    held: Vec<(Done, Completion)>,
    /// Requests that are in flight below.
    below: usize,
}

impl Faults {
    /// A layer over a device, without faults at first.
    pub fn new(inner: Arc<dyn Device>) -> Faults {
        let state = State {
            planned: BTreeMap::new(),
            seen: Vec::new(),
            gone: false,
            reorder: None,
            held: Vec::new(),
            below: 0,
        };
        Faults {
            inner,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Plans a fault of the request with a number.
    pub fn plan(&self, number: usize, fault: Fault) {
        self.state.lock().planned.insert(number, fault);
    }

    /// Holds completions back from now on, and delivers them when somebody waits, in random order.
    pub fn reorder(&self, seed: u64) {
        self.state.lock().reorder = Some(Random::new(seed));
    }

    /// The kinds of all requests so far.
    pub fn seen(&self) -> Vec<Op> {
        self.state.lock().seen.clone()
    }

    /// Sends a request down, with its fault. `Err`: it fails at once.
    fn pass(&self, io: Io) -> Result<Io, (Io, Errno)> {
        let mut state = self.state.lock();
        let number = state.seen.len();
        state.seen.push(io.request.action().op);
        let fault = state.planned.remove(&number);
        state.gone |= fault == Some(Fault::Vanish);
        if state.gone {
            return Err((io, Errno::NODEV));
        }
        let io = match fault {
            None | Some(Fault::Vanish) => io,
            Some(Fault::Fail(errno)) => return Err((io, errno)),
            Some(Fault::FailDone(errno)) => fail_done(io, errno),
            Some(Fault::Short(errno)) => match shortened(io, errno) {
                Ok(io) => io,
                Err(io) => return Err((io, errno)),
            },
        };
        state.below += 1;
        Ok(self.held_back(io))
    }

    /// The request with a callback that keeps its completion here, if they are held back then.
    fn held_back(&self, io: Io) -> Io {
        let state = self.state.clone();
        let done: Done = Box::new(move |completion| {
            let mut state = state.lock();
            state.below -= 1;
            if state.reorder.is_some() {
                state.held.push((io.done, completion));
            } else {
                drop(state);
                (io.done)(completion);
            }
        });
        Io {
            request: io.request,
            done,
        }
    }

    /// Delivers one completion that was held back; `false`: there is none.
    fn release(&self) -> bool {
        let next = {
            let mut state = self.state.lock();
            let count = state.held.len() as u64;
            match &mut state.reorder {
                Some(random) if count > 0 => {
                    let one = random.below(count) as usize;
                    Some(state.held.swap_remove(one))
                }
                _ => None,
            }
        };
        let Some((done, completion)) = next else {
            return false;
        };
        done(completion);
        self.inner.notify();
        true
    }
}

/// The request, with a failure in place of its success.
fn fail_done(io: Io, errno: Errno) -> Io {
    let done: Done = Box::new(move |completion| {
        (io.done)(Completion {
            result: completion.result.and(Err(errno)),
            ..completion
        });
    });
    Io {
        request: io.request,
        done,
    }
}

/// A write of the first half, which fails as the whole; `Err`: it has no half.
fn shortened(io: Io, errno: Errno) -> Result<Io, Io> {
    let Request::Write { at, from, .. } = &io.request else {
        return Err(io);
    };
    let at = *at;
    let mut left = (io.request.action().len / 2 / SECTOR * SECTOR) as usize;
    let mut half = Vec::new();
    for buffer in from {
        let part = left.min(buffer.len());
        left -= part;
        half.extend((part > 0).then(|| Buffer::copy_of(&buffer[..part])));
    }
    if half.is_empty() {
        return Err(io);
    }
    let request = Request::Write {
        at,
        from: half,
        flush: false,
    };
    let done: Done = Box::new(move |completion| {
        io.complete(completion.result.and(Err(errno)));
    });
    Ok(Io { request, done })
}

impl Device for Faults {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn data_from(&self, at: u64) -> u64 {
        self.inner.data_from(at)
    }

    fn submit(&self, ios: Vec<Io>) {
        let (mut passed, mut failed) = (Vec::new(), Vec::new());
        for io in ios {
            match self.pass(io) {
                Ok(io) => passed.push(io),
                Err(io) => failed.push(io),
            }
        }
        if !passed.is_empty() {
            self.inner.submit(passed);
        }
        for (io, errno) in failed {
            io.complete(Err(errno));
            self.inner.notify();
        }
    }

    fn delivered(&self) -> u64 {
        self.inner.delivered()
    }

    fn reap(&self) {
        self.inner.reap();
        self.release();
    }

    fn wait(&self, seen: u64) {
        if self.delivered() != seen {
            return;
        }
        // What is below comes up first, so that there is something to choose from.
        let below = self.state.lock().below;
        if below > 0 || !self.release() {
            self.inner.wait(seen);
        }
    }

    fn notify(&self) {
        self.inner.notify();
    }
}

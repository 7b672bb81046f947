//! A layer that checks what is in flight together, and can hold reads or writes back.

use std::sync::Arc;
use std::time::Duration;

use block::device::{Completion, Device, Done, Info, Io, Op};
use parking_lot::{Condvar, Mutex};

/// Longer than anything here takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Watch {
    inner: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Reads and writes in flight: whether it writes, start and end.
    flying: Vec<(bool, u64, u64)>,
    holds: Option<Op>,
    held: Vec<Io>,
}

impl Watch {
    pub(super) fn new(inner: Arc<dyn Device>) -> Watch {
        Watch {
            inner,
            state: Arc::default(),
            changed: Condvar::new(),
        }
    }

    /// Holds requests of a kind back until what is returned is dropped.
    pub(super) fn hold(&self, op: Op) -> Held<'_> {
        self.state.lock().holds = Some(op);
        Held(self)
    }

    /// Waits until so many requests are held back, together.
    #[track_caller]
    pub(super) fn await_held(&self, count: usize) {
        let fewer = |state: &mut State| state.held.len() < count;
        let mut state = self.state.lock();
        let waited = self.changed.wait_while_for(&mut state, fewer, PATIENCE);
        let held = state.held.len();
        assert!(!waited.timed_out(), "{held} requests at once, not {count}");
    }

    fn release(&self) {
        let held = {
            let mut state = self.state.lock();
            state.holds = None;
            std::mem::take(&mut state.held)
        };
        self.inner.submit(held);
        self.inner.notify();
    }

    /// B5: no two writes of a sector in flight at once, nor a read with a write.
    fn watched(&self, io: Io) -> Io {
        let action = io.request.action();
        let writes = match action.op {
            Op::Write => true,
            Op::Read => false,
            _ => return io,
        };
        let this = (writes, action.at, action.at + action.len);
        let mut state = self.state.lock();
        for &(other_writes, start, end) in &state.flying {
            let apart = action.at >= end || this.2 <= start || !(writes || other_writes);
            assert!(apart, "{action}, and bytes {start} to {end} are in flight");
        }
        state.flying.push(this);
        let all = self.state.clone();
        let done: Done = Box::new(move |completion: Completion| {
            let mut state = all.lock();
            let place = state.flying.iter().position(|flying| *flying == this);
            state.flying.remove(place.expect("it is in flight"));
            drop(state);
            (io.done)(completion);
        });
        Io {
            request: io.request,
            done,
        }
    }
}

/// Requests are held back until this is dropped.
#[must_use]
pub(super) struct Held<'a>(&'a Watch);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Device for Watch {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn data_from(&self, at: u64) -> u64 {
        self.inner.data_from(at)
    }

    fn submit(&self, ios: Vec<Io>) {
        let mut passed: Vec<_> = ios.into_iter().map(|io| self.watched(io)).collect();
        {
            let mut state = self.state.lock();
            if let Some(op) = state.holds {
                let held = |io: &mut Io| io.request.action().op == op;
                state.held.extend(passed.extract_if(.., held));
                self.changed.notify_all();
            }
        }
        self.inner.submit(passed);
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

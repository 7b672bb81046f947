//! Requests of fsync: callers that arrive while a batch runs are served together by the next.

use crate::commit::capture::Pull;
use crate::fault::{Fault, injected};
use schedule::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What callers wait for.
#[derive(Default)]
pub struct Requests {
    queue: Mutex<Queue>,
    /// Requests up to this generation are served. Whoever has the lane changes it.
    served: AtomicU64,
}

#[derive(Default)]
struct Queue {
    pulls: Vec<Pull>,
    /// Of the requests that are queued now.
    generation: u64,
}

/// What a request is known by: its generation.
#[derive(Clone, Copy)]
pub struct Ticket(u64);

impl Requests {
    /// Queue a request.
    pub fn queue(&self, pulls: impl IntoIterator<Item = Pull>) -> Ticket {
        let mut queue = self.queue.lock();
        queue.pulls.extend(pulls);
        Ticket(queue.generation)
    }

    /// Take all that is queued, with the lane held, unless somebody has served the request
    /// meanwhile. It counts as served from now on: if that fails, it fails for all.
    pub fn take(&self, Ticket(generation): Ticket) -> Option<Vec<Pull>> {
        if self.served.load(Relaxed) > generation {
            return None;
        }
        self.served.store(generation + 1, Relaxed);
        let mut queue = self.queue.lock();
        queue.generation += u64::from(!injected(Fault::ServedEarly));
        Some(std::mem::take(&mut queue.pulls))
    }

    /// What was taken is served, or that failed.
    pub fn end(&self) {
        if injected(Fault::ServedEarly) {
            self.queue.lock().generation += 1;
        }
    }
}

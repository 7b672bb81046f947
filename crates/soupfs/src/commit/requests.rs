//! Requests that wait for the lane: callers that arrive while a batch runs are served together by
//! the next.
//!
//! The first one in the queue *leads*: it waits for the lane, takes the queue, and runs the batch.
//! The others wait for its [`Turn`], not for the lane. So all of them go on as soon as their batch
//! is durable: none waits for the next one, which may have the lane before they run.
//!
//! Nothing here is of this crate but `sync`, its locks, and the bugs of tests: `tests/queue.rs` has
//! those of a tester of schedules in their place, and runs this code.

use super::sync::{Arc, Mutex, RwLock, RwLockWriteGuard, point};
use crate::fault::{Fault, injected};

/// What callers wait for.
pub struct Requests<T> {
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    wanted: Vec<T>,
    /// Of who leads these; none: nobody does yet.
    turn: Option<Arc<Turn>>,
}

impl<T> Default for Requests<T> {
    fn default() -> Requests<T> {
        let (wanted, turn) = (Vec::new(), None);
        let queue = Mutex::new(Queue { wanted, turn });
        Requests { queue }
    }
}

/// What those wait for who are served together. Their leader holds it meanwhile.
#[derive(Default)]
struct Turn {
    is_served: RwLock<bool>,
}

impl Turn {
    /// Let others wait until this is dropped; true if they are served then.
    fn hold(&self) -> RwLockWriteGuard<'_, bool> {
        self.is_served.write()
    }

    /// Wait for the end. False: the leader could not serve anybody.
    fn wait(&self) -> bool {
        *self.is_served.read()
    }
}

impl<T> Requests<T> {
    /// Queue, and return when a leader has served all who are queued: the caller, who takes the
    /// lane for it, or another one. False: the other one failed.
    ///
    /// # Errors
    /// The caller led, and what served failed.
    pub fn share<L, E>(
        &self,
        wanted: impl IntoIterator<Item = T>,
        lane: impl FnOnce() -> L,
        serve: impl FnOnce(&mut L, Vec<T>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let turn = Arc::new(Turn::default());
        let mut held = turn.hold();
        let other = self.queue(wanted, &turn);
        point("sync: queued");
        if let Some(turn) = other {
            return Ok(turn.wait());
        }
        let mut lane = lane();
        let queued = self.take();
        point("sync: the queue is taken");
        let result = serve(&mut lane, queued);
        self.end();
        *held = result.is_ok();
        result.map(|()| true)
    }

    /// Queue a request. The caller waits for the turn that is returned; or, if there is none, its
    /// own turn has begun, which it holds: it leads.
    fn queue(&self, wanted: impl IntoIterator<Item = T>, own: &Arc<Turn>) -> Option<Arc<Turn>> {
        let mut queue = self.queue.lock();
        queue.wanted.extend(wanted);
        match &queue.turn {
            Some(turn) => Some(turn.clone()),
            None => {
                queue.turn = Some(own.clone());
                None
            }
        }
    }

    /// Take all that is queued: for its leader, who has the lane. Who comes later is not among it.
    fn take(&self) -> Vec<T> {
        let mut queue = self.queue.lock();
        if !injected(Fault::ServedEarly) {
            queue.turn = None;
        }
        std::mem::take(&mut queue.wanted)
    }

    /// What is queued.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.lock().wanted.len()
    }

    /// What was taken is served, or that failed.
    fn end(&self) {
        if injected(Fault::ServedEarly) {
            self.queue.lock().turn = None;
        }
    }
}

//! Requests that wait for the lane: callers that arrive while a batch runs are served together by
//! the next.
//!
//! The first one in the queue *leads*: it waits for the lane, takes the queue, and runs the batch.
//! The others wait for its [`Turn`], not for the lane. So all of them go on as soon as their batch
//! is durable: none waits for the next one, which may have the lane before they run.

use crate::fault::{Fault, injected};
use schedule::{Mutex, RwLock, RwLockWriteGuard};
use triomphe::Arc;

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
pub struct Turn {
    is_served: RwLock<bool>,
}

impl Turn {
    /// Let others wait until this is dropped; true if they are served then.
    pub fn hold(&self) -> RwLockWriteGuard<'_, bool> {
        self.is_served.write()
    }

    /// Wait for the end. False: the leader could not serve anybody.
    pub fn wait(&self) -> bool {
        *self.is_served.read()
    }
}

impl<T> Requests<T> {
    /// Queue a request. The caller waits for the turn that is returned; or, if there is none, its
    /// own turn has begun, which it holds: it leads.
    pub fn queue(&self, wanted: impl IntoIterator<Item = T>, own: &Arc<Turn>) -> Option<Arc<Turn>> {
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
    pub fn take(&self) -> Vec<T> {
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
    pub fn end(&self) {
        if injected(Fault::ServedEarly) {
            self.queue.lock().turn = None;
        }
    }
}

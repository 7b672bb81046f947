//! The threads that serve page faults.
//!
//! One of them waits for the next fault. When it has one it hands its turn on, and brings the page
//! in; if nobody is there to take the turn, another thread is started first. So a fault waits for
//! no other's read, up to a bound, and it wakes one thread.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;

use super::Shared;
use crate::PAGE;

/// As many reads are in flight for faults at most. A disk gets no faster with more.
const THREADS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Serving {
    /// Held by the thread that waits for a fault.
    turn: Mutex<()>,
    crew: Mutex<Crew>,
}

#[derive(Default)]
struct Crew {
    /// Threads that wait for their turn.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Shared {
    /// Starts a thread that serves faults, unless there are enough.
    pub(super) fn start_serving(self: &Arc<Self>) -> std::io::Result<()> {
        let mut crew = self.serving.crew.lock();
        if crew.threads.len() < THREADS_MAX {
            let shared = self.clone();
            let thread = Builder::new().name("page faults".to_owned());
            let thread = thread.spawn(move || shared.serve_faults())?;
            crew.threads.push(thread);
        }
        Ok(())
    }

    /// Serves threads that have loaded from absent pages, until that is to stop.
    fn serve_faults(self: &Arc<Self>) {
        let (Some(faults), serving) = (&self.faults, &self.serving) else {
            return;
        };
        loop {
            serving.crew.lock().idle += 1;
            let turn = serving.turn.lock();
            serving.crew.lock().idle -= 1;
            let Some(off) = faults.next() else { return };
            if serving.crew.lock().idle == 0
                && let Err(error) = self.start_serving()
            {
                // The next fault waits until this thread is done.
                log::debug!("no further thread for page faults: {error}");
            }
            drop(turn);
            let locked = self.pages.lock(off / PAGE);
            self.bring_or_poison(&locked);
            // If it was there already, nobody has been woken yet who came to wait since.
            faults.wake(off);
        }
    }

    /// Ends the threads that serve faults, when nobody loads any more.
    pub(super) fn stop_serving(&self) {
        if let Some(faults) = &self.faults {
            faults.stop();
        }
        // The last of them may have started another one.
        loop {
            let threads = std::mem::take(&mut self.serving.crew.lock().threads);
            if threads.is_empty() {
                return;
            }
            super::join(threads);
        }
    }
}

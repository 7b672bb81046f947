//! I/O by threads that make plain system calls, where io_uring is not to be had.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use super::host::Host;
use crate::device::{Completion, Device, Info, Io, Request};
use crate::events::Events;

/// The file, and threads that serve a queue of requests.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    host: Host,
    queue: Mutex<Queue>,
    /// Signalled when something is queued, or all is over.
    queued: Condvar,
    events: Events,
}

#[derive(Default)]
struct Queue {
    ios: VecDeque<Io>,
    over: bool,
}

impl Pool {
    /// `why` there are threads and no ring.
    pub(super) fn new(mut host: Host, threads: usize, why: &str) -> Pool {
        host.info.how += &format!(", {threads} threads (io_uring: {why})");
        let shared = Arc::new(Shared {
            host,
            queue: Mutex::default(),
            queued: Condvar::new(),
            events: Events::default(),
        });
        let serve = |_| {
            let shared = shared.clone();
            thread::spawn(move || shared.serve())
        };
        Pool {
            threads: (0..threads).map(serve).collect(),
            shared,
        }
    }
}

impl Shared {
    fn serve(&self) {
        while let Some(mut io) = self.next() {
            let result = self.host.run(&mut io.request);
            io.complete(result);
            self.events.announce();
        }
    }

    /// The next request; `None` when all is over.
    fn next(&self) -> Option<Io> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(io) = queue.ios.pop_front() {
                return Some(io);
            }
            if queue.over {
                return None;
            }
            self.queued.wait(&mut queue);
        }
    }
}

impl Device for Pool {
    fn info(&self) -> &Info {
        &self.shared.host.info
    }

    fn data_from(&self, at: u64) -> u64 {
        self.shared.host.data_from(at)
    }

    fn submit(&self, ios: Vec<Io>) {
        let many = ios.len() > 1;
        self.shared.queue.lock().ios.extend(ios);
        if many {
            self.shared.queued.notify_all();
        } else {
            self.shared.queued.notify_one();
        }
    }

    fn delivered(&self) -> u64 {
        self.shared.events.count()
    }

    fn wait(&self, seen: u64) {
        self.shared.events.wait(seen);
    }

    fn notify(&self) {
        self.shared.events.announce();
    }

    /// By the caller's own thread: nobody has to be woken.
    fn execute(&self, mut request: Request) -> Completion {
        let result = self.shared.host.run(&mut request);
        Completion { request, result }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().over = true;
        self.shared.queued.notify_all();
        for thread in self.threads.drain(..) {
            // The last callback may hold the last reference: then this is one of the threads.
            if thread.thread().id() != thread::current().id() {
                // A thread that panicked has said so; the others are not to be left behind.
                let _ = thread.join();
            }
        }
    }
}

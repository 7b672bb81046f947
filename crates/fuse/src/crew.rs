//! How many of the serving threads wait for requests.
//!
//! The kernel hands requests to those that wait, in turn. With many, each is cold when its turn
//! comes, and when a client moves to another core all have to follow it. With few, slow requests
//! keep others waiting. So two threads wait for requests: while one serves a client, the other is
//! there for the next one. Those that are not needed rest. Whoever takes a request and leaves
//! nobody waiting calls one of them, the one that has rested for the shortest time.
//!
//! - *If somebody rests, somebody waits for requests*, or has just taken one and calls another: a
//!   thread goes to rest only as one of three or more that wait, in one step with counting that.
//! - *At the end all wake*: some thread that has served does not rest, so it is told by the kernel,
//!   and wakes the others when it ends.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, Thread};

use parking_lot::Mutex;
use threads::idle_class;

/// Threads that wait for requests when there is no more to do than one client asks for.
const ENOUGH: usize = 2;

/// Requests in a row behind which a thread was not needed, before it rests. To call one costs more
/// than a request.
const PATIENCE: u32 = 64;

/// The serving threads of one mount.
pub struct Crew {
    /// Those that wait for a request, or are about to. One that has taken a request which another
    /// thread answers is not among them until its next one, so that one is called too early.
    waiting: AtomicUsize,
    resting: Mutex<Resting>,
}

#[derive(Default)]
struct Resting {
    /// The last one has rested for the shortest time.
    threads: Vec<Arc<Call>>,
    /// Threads that have served and have not ended; only these can rest.
    known: usize,
    /// One has ended: the others are about to.
    ended: bool,
}

/// Calls a thread that rests.
struct Call {
    thread: Thread,
    called: AtomicBool,
}

/// What a serving thread knows of itself.
struct Seat {
    crew: Arc<Crew>,
    call: Arc<Call>,
    /// It has taken a request that it has not served.
    serves: Cell<bool>,
    /// Requests in a row behind which it was not needed.
    idle: Cell<u32>,
}

thread_local! {
    /// This thread is none of a crew.
    static OUT: Cell<bool> = const { Cell::new(false) };
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

impl Crew {
    /// Of so many threads; all wait for a request.
    pub fn new(threads: usize) -> Arc<Crew> {
        Arc::new(Crew {
            waiting: AtomicUsize::new(threads),
            resting: Mutex::default(),
        })
    }

    /// The calling thread has taken a request.
    pub fn take(self: &Arc<Crew>) {
        if OUT.get() {
            return;
        }
        SEAT.with_borrow_mut(|seat| {
            let seat = seat.get_or_insert_with(|| self.seat());
            if !seat.serves.replace(true) && self.waiting.fetch_sub(1, SeqCst) == 1 {
                self.call();
            }
        });
    }

    fn seat(self: &Arc<Crew>) -> Seat {
        self.resting.lock().known += 1;
        Seat {
            crew: Arc::clone(self),
            call: Arc::new(Call {
                thread: thread::current(),
                called: AtomicBool::new(false),
            }),
            serves: Cell::new(false),
            // At first there are too many: each that rests soon has no memory of large requests.
            idle: Cell::new(PATIENCE - 1),
        }
    }

    /// Have one more wait for requests, if one rests.
    fn call(&self) {
        if let Some(call) = self.resting.lock().threads.pop() {
            self.waiting.fetch_add(1, SeqCst);
            call.wake();
        }
    }
}

impl Call {
    fn wake(&self) {
        self.called.store(true, SeqCst);
        self.thread.unpark();
    }
}

/// The calling thread is never one of a crew: it serves requests that come to it alone.
pub fn stay_out() {
    OUT.set(true);
}

/// Sends the answer to the request that the calling thread has taken, or does nothing if there is
/// none to be sent. Then the thread waits for the next request, or rests.
pub fn send<T>(reply: impl FnOnce() -> T) -> T {
    idle_class::enter();
    // Before the client goes on: its next request is not to find that nobody waits.
    let is_needed = SEAT.with_borrow(|seat| seat.as_ref().is_none_or(Seat::waits));
    let sent = reply();
    if !is_needed {
        SEAT.with_borrow(|seat| seat.iter().for_each(Seat::rest));
    }
    sent
}

impl Seat {
    /// It is about to wait for a request; false: it was not needed for long.
    fn waits(&self) -> bool {
        if !self.serves.replace(false) {
            return true;
        }
        let waiting = self.crew.waiting.fetch_add(1, SeqCst) + 1;
        let idle = match waiting > ENOUGH {
            true => self.idle.get() + 1,
            false => 0,
        };
        self.idle.set(idle % PATIENCE);
        idle < PATIENCE
    }

    /// Unless it is needed by now.
    fn rest(&self) {
        {
            let mut resting = self.crew.resting.lock();
            let others = resting.known - resting.threads.len() > 1;
            let one_less = |waiting| (waiting > ENOUGH).then(|| waiting - 1);
            let waiting = &self.crew.waiting;
            if resting.ended || !others || waiting.fetch_update(SeqCst, SeqCst, one_less).is_err() {
                return;
            }
            resting.threads.push(Arc::clone(&self.call));
        }
        while !self.call.called.swap(false, SeqCst) {
            thread::park();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut resting = self.crew.resting.lock();
        resting.known -= 1;
        resting.ended = true;
        for call in resting.threads.drain(..) {
            self.crew.waiting.fetch_add(1, SeqCst);
            call.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// A device: what arrives is served by whichever thread waits; ends when it is dropped.
    struct Device {
        requests: Sender<Box<dyn FnOnce() + Send>>,
        threads: Vec<thread::JoinHandle<u32>>,
        crew: Arc<Crew>,
    }

    /// Serves until the device has ended; returns how many.
    fn serve(crew: &Arc<Crew>, device: &Mutex<Receiver<Box<dyn FnOnce() + Send>>>) -> u32 {
        for served in 0.. {
            let request = device.lock().recv();
            let Ok(request) = request else { return served };
            crew.take();
            request();
            send(|| ());
        }
        unreachable!("there is no end to numbers")
    }

    impl Device {
        fn new(threads: usize) -> Device {
            let (requests, device) = channel();
            let (crew, device) = (Crew::new(threads), Arc::new(Mutex::new(device)));
            let start = |_| {
                let (crew, device) = (Arc::clone(&crew), Arc::clone(&device));
                thread::spawn(move || serve(&crew, &device))
            };
            let threads = (0..threads).map(start).collect();
            Device {
                requests,
                threads,
                crew,
            }
        }

        /// A request of a client that waits for the answer.
        fn ask(&self) {
            let (done, is_done) = channel();
            let request = Box::new(move || done.send(()).expect("somebody waits"));
            self.requests.send(request).expect("somebody serves");
            is_done.recv().expect("it is served");
        }

        fn resting(&self) -> usize {
            self.crew.resting.lock().threads.len()
        }

        fn end(self) -> Vec<u32> {
            drop(self.requests);
            let threads = self.threads.into_iter();
            threads.map(|one| one.join().expect("no panic")).collect()
        }
    }

    #[test]
    fn for_one_client_two_wait_and_at_the_end_all_wake() {
        let device = Device::new(8);
        for _ in 0..16 * PATIENCE {
            device.ask();
        }
        // The lock of this device lets one wait at a time, and not in turn: so some may not have
        // served yet.
        assert!(device.resting() <= 6);
        let served = device.end();
        assert_eq!(served.iter().sum::<u32>(), 16 * PATIENCE);
    }

    #[test]
    fn whoever_leaves_nobody_waiting_calls_one() {
        let crew = Crew::new(4);
        let (taken, is_taken) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let may_go_on = Arc::new(Mutex::new(may_go_on));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (crew, taken) = (Arc::clone(&crew), taken.clone());
                let may_go_on = Arc::clone(&may_go_on);
                thread::spawn(move || {
                    for _ in 0..PATIENCE {
                        crew.take();
                        send(|| ());
                    }
                    // Some rest here, until they are called.
                    crew.take();
                    taken.send(()).expect("the test waits");
                    may_go_on.lock().recv().expect("the test sends");
                    send(|| ());
                })
            })
            .collect();
        // All four come to serve at the same time.
        for _ in 0..4 {
            let soon = Duration::from_secs(60);
            is_taken.recv_timeout(soon).expect("one more is called");
        }
        assert_eq!(crew.waiting.load(SeqCst), 0);
        (0..4).for_each(|_| go_on.send(()).expect("they wait"));
        threads
            .into_iter()
            .for_each(|one| one.join().expect("no panic"));
    }

    #[test]
    fn the_last_that_is_known_does_not_rest() {
        let crew = Crew::new(8);
        let alone = thread::spawn({
            let crew = Arc::clone(&crew);
            move || {
                for _ in 0..4 * PATIENCE {
                    crew.take();
                    send(|| ());
                }
            }
        });
        alone
            .join()
            .expect("it does not rest, as nobody would wake it");
        assert!(crew.resting.lock().ended);
    }
}

//! A disk: what engines use. Tickets, waves, shared flushes, counters, and poison.
//!
//! ```text
//! lock order: flushes -> (the device's own locks); no lock is held when a callback is called
//! ```
//!
//! **Flushes are shared.** One flush is in flight at a time. Who asks meanwhile joins the next one,
//! which starts when that one is over, so it covers all that they had seen complete. This saves
//! flushes; and it is needed: the kernel reports a lost write to *one* of two calls of `fdatasync`
//! that run at once, and the other must not be taken for a success.
//!
//! **Poison.** The first failed write, zeroing or flush poisons the disk. Every later one, and
//! every flush in flight, fails with that first error. Reads go on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::device::{Action, Completion, Device, Done, Info, Io, Op, Request, SECTOR};
use crate::stats::{Counters, Stats};
use crate::{BlockError, Buffer, Wave};

/// The longest write of zeros.
const ZEROS_BYTES_MAX: u64 = 1 << 20;

/// What a request comes to: its buffers back, in order.
pub type Outcome = Result<Vec<Buffer>, BlockError>;

/// Called with the outcome.
type Then = Box<dyn FnOnce(Outcome) + Send>;

/// Whether the caller has something else to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    Waits,
    GoesOn,
}

/// A block device as engines use it. Dropping it waits for everything in flight.
///
/// All methods may be called from any thread. Ranges must be whole sectors within the device;
/// anything else panics. Requests in flight have no order among each other: order is made by
/// waiting, durability by a flush that was asked for after the wait.
#[derive(Clone)]
pub struct Disk {
    inner: Arc<Inner>,
}

struct Inner {
    device: Arc<dyn Device>,
    poison: OnceLock<BlockError>,
    counters: Counters,
    flushes: Mutex<Flushes>,
}

/// Flushes asked for.
#[derive(Default)]
struct Flushes {
    /// One is in flight.
    running: bool,
    /// They share the next one.
    waiting: Vec<Then>,
}

impl Disk {
    /// A disk on a device.
    pub fn new(device: Arc<dyn Device>) -> Disk {
        let inner = Inner {
            device,
            poison: OnceLock::new(),
            counters: Counters::default(),
            flushes: Mutex::default(),
        };
        Disk {
            inner: Arc::new(inner),
        }
    }

    /// What the device is.
    pub fn info(&self) -> &Info {
        self.inner.device.info()
    }

    /// Whether a range is known to read as zeros without being read: it lies in a hole of an image.
    /// No write to it is in flight.
    pub fn is_hole(&self, at: u64, len: u64) -> bool {
        self.inner.device.data_from(at) >= at + len
    }

    /// Bytes of the device.
    #[allow(clippy::len_without_is_empty, reason = "a device is never empty")]
    pub fn len(&self) -> u64 {
        self.info().len
    }

    /// Counters since the disk was made.
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    /// The failure after which nothing more is written, if there was one.
    pub fn poisoned(&self) -> Option<BlockError> {
        self.inner.poison.get().cloned()
    }

    /// Lets nothing more be written, as if the device had failed. Takes no lock.
    pub fn stop(&self) {
        let device = self.info().name.clone();
        let action = Action {
            op: Op::Flush,
            at: 0,
            len: 0,
        };
        let errno = Errno::CANCELED;
        // An earlier failure stays.
        let _ = self.inner.poison.set(BlockError {
            device,
            action,
            errno,
        });
    }

    /// Starts to fill `into` from byte `at` on.
    pub fn submit_read(&self, at: u64, into: Vec<Buffer>) -> Ticket {
        self.submit(Request::Read { at, into })
    }

    /// Starts a write, durable only after a flush that is asked for when it has completed.
    pub fn submit_write(&self, at: u64, from: Vec<Buffer>) -> Ticket {
        self.submit(write(at, from))
    }

    /// Starts all writes of a wave at once, and no flush: they are durable only after one that is
    /// asked for when all have completed. One ticket for each run of neighbours.
    pub fn submit_writes(&self, wave: Wave) -> Vec<Ticket> {
        let promised = wave.into_requests().into_iter().map(|request| {
            let (then, ticket) = self.promise();
            ((request, then), ticket)
        });
        let (requests, tickets) = promised.unzip();
        self.inner.start_all(requests, Caller::GoesOn);
        tickets
    }

    /// Starts a flush of everything that has completed.
    pub fn submit_flush(&self) -> Ticket {
        self.ticket(|then| self.inner.flush(then, Caller::GoesOn))
    }

    /// Starts all writes of a wave at once; its flush starts when they have completed. The ticket
    /// yields the buffers in the order of the device.
    ///
    /// The flush is started by whoever drives the device then: a thread that waits for anything, or
    /// polls a ticket.
    pub fn submit_wave(&self, wave: Wave) -> Ticket {
        self.ticket(|then| self.inner.wave(wave, then, Caller::GoesOn))
    }

    /// Reads.
    ///
    /// # Errors
    /// The device failed. The disk stays usable.
    pub fn read(&self, at: u64, into: Vec<Buffer>) -> Outcome {
        self.run(Request::Read { at, into })
    }

    /// Writes, not durably.
    ///
    /// # Errors
    /// The device failed, now or earlier: the disk is poisoned.
    pub fn write(&self, at: u64, from: Vec<Buffer>) -> Outcome {
        self.run(write(at, from))
    }

    /// Makes everything durable that has completed.
    ///
    /// # Errors
    /// The device failed, now or earlier: the disk is poisoned.
    pub fn flush(&self) -> Result<(), BlockError> {
        let ticket = self.ticket(|then| self.inner.flush(then, Caller::Waits));
        ticket.wait().map(drop)
    }

    /// Does a wave: all its writes are durable on return.
    ///
    /// # Errors
    /// The device failed, now or earlier: the disk is poisoned, and any subset of the wave's
    /// sectors is written.
    pub fn commit(&self, wave: Wave) -> Outcome {
        let ticket = self.ticket(|then| self.inner.wave(wave, then, Caller::Waits));
        ticket.wait()
    }

    /// Makes a range read as zeros, not durably. Where the host cannot, zeros are written.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn zero(&self, at: u64, len: u64) -> Result<(), BlockError> {
        match self.run(Request::Zero { at, len }) {
            Err(error) if error.errno == Errno::OPNOTSUPP => self.write_zeros(at, len),
            outcome => outcome.map(drop),
        }
    }

    fn write_zeros(&self, at: u64, len: u64) -> Result<(), BlockError> {
        let end = at + len;
        let mut zeros = Vec::new();
        for at in (at..end).step_by(ZEROS_BYTES_MAX as usize) {
            let count = (end - at).min(ZEROS_BYTES_MAX);
            if count < ZEROS_BYTES_MAX || zeros.is_empty() {
                zeros = vec![Buffer::zeroed(count as usize)];
            }
            zeros = self.write(at, zeros)?;
        }
        Ok(())
    }

    /// Gives up the contents of a range: its sectors read as before or as zeros until written.
    ///
    /// # Errors
    /// The device failed or cannot. The disk stays usable.
    pub fn discard(&self, at: u64, len: u64) -> Result<(), BlockError> {
        self.run(Request::Discard { at, len }).map(drop)
    }

    /// Reserves space for a range of a sparse image, so that writes do not fail for lack of it.
    ///
    /// # Errors
    /// `ENOSPC` if there is none. The disk stays usable.
    pub fn allocate(&self, at: u64, len: u64) -> Result<(), BlockError> {
        self.run(Request::Allocate { at, len }).map(drop)
    }

    fn submit(&self, request: Request) -> Ticket {
        self.ticket(|then| self.inner.start(request, then, Caller::GoesOn))
    }

    fn run(&self, request: Request) -> Outcome {
        let ticket = self.ticket(|then| self.inner.start(request, then, Caller::Waits));
        ticket.wait()
    }

    fn ticket(&self, start: impl FnOnce(Then)) -> Ticket {
        let (then, ticket) = self.promise();
        start(then);
        ticket
    }

    /// What takes an outcome, and the ticket that yields it.
    fn promise(&self) -> (Then, Ticket) {
        let outcome = Arc::new(Mutex::new(None));
        let place = outcome.clone();
        let ticket = Ticket {
            inner: self.inner.clone(),
            outcome,
        };
        (Box::new(move |result| *place.lock() = Some(result)), ticket)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let inner = &self.inner;
        inner.drive_until(|| (inner.counters.read().in_flight == 0).then_some(()));
    }
}

fn write(at: u64, from: Vec<Buffer>) -> Request {
    Request::Write {
        at,
        from,
        flush: false,
    }
}

/// A promise of an outcome. Dropping it loses the outcome, not the request.
#[must_use = "a request has succeeded only when its ticket says so"]
pub struct Ticket {
    inner: Arc<Inner>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Ticket {
    /// Blocks until the request is complete.
    ///
    /// # Errors
    /// The device failed, now or earlier.
    pub fn wait(self) -> Outcome {
        self.inner.drive_until(|| self.outcome.lock().take())
    }

    /// Whether the request is complete. Moves it forward, without blocking.
    pub fn is_done(&self) -> bool {
        self.inner.device.reap();
        self.outcome.lock().is_some()
    }
}

impl Inner {
    /// Drives the device until there is a result.
    fn drive_until<T>(&self, mut result: impl FnMut() -> Option<T>) -> T {
        loop {
            let seen = self.device.delivered();
            if let Some(result) = result() {
                return result;
            }
            self.device.wait(seen);
        }
    }

    fn start(self: &Arc<Self>, request: Request, then: Then, caller: Caller) {
        self.start_all(vec![(request, then)], caller);
    }

    /// Starts requests together, unless the disk is poisoned. A caller that waits does the last one
    /// itself, where the device lets it.
    fn start_all(self: &Arc<Self>, requests: Vec<(Request, Then)>, caller: Caller) {
        let mut ios = Vec::with_capacity(requests.len());
        for (request, then) in requests {
            self.check(&request);
            match self.poison.get() {
                Some(first) if request.action().op != Op::Read => {
                    then(Err(first.clone()));
                    self.device.notify();
                }
                _ => ios.push(self.io(request, then)),
            }
        }
        let last = if caller == Caller::Waits {
            ios.pop()
        } else {
            None
        };
        if !ios.is_empty() {
            self.device.submit(ios);
        }
        if let Some(Io { request, done }) = last {
            done(self.device.execute(request));
            // No delivery has told who waits until nothing is in flight.
            self.device.notify();
        }
    }

    /// Counts a request as in flight.
    fn io(self: &Arc<Self>, request: Request, then: Then) -> Io {
        self.counters.start(&request);
        let inner = self.clone();
        let done: Done = Box::new(move |completion| {
            then(inner.outcome(completion));
            // Behind what followed directly, so that in between the disk does not look idle.
            inner.counters.end();
        });
        Io { request, done }
    }

    /// Panics unless the request lies in the device.
    fn check(&self, request: &Request) {
        let action = request.action();
        let len = self.device.info().len;
        let whole = action.at.is_multiple_of(SECTOR) && action.len.is_multiple_of(SECTOR);
        let within = action.len <= len && action.at <= len - action.len;
        let empty = action.len == 0 && action.op != Op::Flush;
        assert!(
            whole && within && !empty,
            "{action}: not whole sectors within the device's {len} bytes"
        );
    }

    /// What a completion means to who asked; poisons if it must.
    fn outcome(&self, completion: Completion) -> Outcome {
        let action = completion.request.action();
        let flushed = completion.request.flushes();
        if let Err(errno) = completion.result {
            let error = BlockError {
                device: self.device.info().name.clone(),
                action,
                errno,
            };
            return Err(self.failed(error));
        }
        match self.poison.get() {
            Some(first) if flushed => Err(first.clone()),
            _ => Ok(completion.request.into_buffers()),
        }
    }

    /// Poisons, if the failure leaves unknown contents. The first failure stays.
    fn failed(&self, error: BlockError) -> BlockError {
        let poisons = match error.action.op {
            Op::Write | Op::Flush => true,
            Op::Zero => error.errno != Errno::OPNOTSUPP,
            Op::Read | Op::Discard | Op::Allocate => false,
        };
        if !poisons {
            return error;
        }
        if self.poison.set(error.clone()).is_ok() {
            log::error!("{error}; nothing more is written to it");
        }
        self.poison.get().cloned().unwrap_or(error)
    }

    fn wave(self: &Arc<Self>, wave: Wave, then: Then, caller: Caller) {
        let mut requests = wave.into_requests();
        match requests.len() {
            0 => self.flush(then, caller),
            1 if self.claim_flush() => {
                if let Some(Request::Write { flush, .. }) = requests.first_mut() {
                    *flush = true;
                }
                self.start_claimed(requests.remove(0), vec![then], caller);
            }
            writes => {
                let rest = Arc::new(Rest::new(writes, then));
                let gather = |(i, request)| {
                    let (inner, rest) = (self.clone(), rest.clone());
                    let one: Then = Box::new(move |outcome| rest.one(&inner, i, outcome));
                    (request, one)
                };
                self.start_all(
                    requests.into_iter().enumerate().map(gather).collect(),
                    caller,
                );
            }
        }
    }

    fn flush(self: &Arc<Self>, then: Then, caller: Caller) {
        {
            let mut flushes = self.flushes.lock();
            if flushes.running {
                flushes.waiting.push(then);
                return;
            }
            flushes.running = true;
        }
        self.start_claimed(Request::Flush, vec![then], caller);
    }

    /// Becomes the one flush in flight, unless there is one.
    fn claim_flush(&self) -> bool {
        !std::mem::replace(&mut self.flushes.lock().running, true)
    }

    /// Starts the one request in flight that flushes.
    fn start_claimed(self: &Arc<Self>, request: Request, thens: Vec<Then>, caller: Caller) {
        let inner = self.clone();
        let over: Then = Box::new(move |outcome| inner.flush_over(outcome, thens));
        self.start(request, over, caller);
    }

    /// Starts the next flush, if anybody waits for one, and tells those of this one.
    fn flush_over(self: &Arc<Self>, outcome: Outcome, thens: Vec<Then>) {
        let waiting = {
            let mut flushes = self.flushes.lock();
            flushes.running = !flushes.waiting.is_empty();
            std::mem::take(&mut flushes.waiting)
        };
        if !waiting.is_empty() {
            self.start_claimed(Request::Flush, waiting, Caller::GoesOn);
        }
        let error = outcome.as_ref().err().cloned();
        let mut buffers = outcome.unwrap_or_default();
        for then in thens {
            // Only a write with a flush has buffers, and is for one caller.
            then(match &error {
                None => Ok(std::mem::take(&mut buffers)),
                Some(error) => Err(error.clone()),
            });
        }
    }
}

/// The writes of a wave that are not complete.
struct Rest {
    left: AtomicUsize,
    outcomes: Mutex<(Vec<Outcome>, Option<Then>)>,
}

impl Rest {
    fn new(writes: usize, then: Then) -> Rest {
        let none = (0..writes).map(|_| Ok(Vec::new())).collect();
        Rest {
            left: AtomicUsize::new(writes),
            outcomes: Mutex::new((none, Some(then))),
        }
    }

    /// One write is complete. The last one starts the flush, if all went well.
    fn one(&self, inner: &Arc<Inner>, i: usize, outcome: Outcome) {
        self.outcomes.lock().0[i] = outcome;
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let (outcomes, then) = std::mem::take(&mut *self.outcomes.lock());
        let Some(then) = then else { return };
        match outcomes.into_iter().collect::<Result<Vec<_>, _>>() {
            Err(error) => then(Err(error)),
            Ok(buffers) => {
                let buffers = buffers.into_iter().flatten().collect();
                let behind: Then = Box::new(|flushed| then(flushed.map(|_| buffers)));
                inner.flush(behind, Caller::GoesOn);
            }
        }
    }
}

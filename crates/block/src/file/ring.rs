//! I/O by io_uring.
//!
//! The kernel owns a request's buffers from its submission to its completion, so they live in
//! `Flights` meanwhile, and the ring is not dropped before they are back.
//!
//! **Driving.** Completions are taken by a thread that waits, the *driver*: nobody else has to be
//! woken for it. Other waiters sleep on the event count. The driver announces twice: before it lets
//! go of `driver`, so that the next one does not block for what has been delivered; and behind
//! that, so that one that found `driver` taken tries again.
//!
//! ```text
//! lock order: driver -> flights; callbacks run under driver alone
//! ```
//!
//! A write with a flush is a chain of two entries. A chain holds within one submission only, so
//! submissions are made under the lock of `flights`, and the driver submits nothing.

use std::collections::VecDeque;
use std::io;
use std::mem;

use io_uring::squeue::Flags;
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use threads::idle_class;

use super::host::{Host, VECTORS_MAX, progress, resume};
use crate::device::{Completion, Device, Info, Io, Request};
use crate::events::Events;

/// Entries of the submission queue. No more are in the kernel, so the completion queue, which is
/// twice as long, does not overflow. Further requests wait here.
const ENTRIES: usize = 256;

/// In an entry's user data, beside the flight's number: the entry is the flush.
const FLUSH: u64 = 1;

/// The file, and the ring that serves it.
pub(super) struct Ring {
    ring: IoUring,
    host: Host,
    flights: Mutex<Flights>,
    /// Held by the one thread that takes completions.
    driver: Mutex<()>,
    events: Events,
}

/// Requests that were submitted.
#[derive(Default)]
struct Flights {
    /// In the kernel, by number.
    flying: Vec<Option<Flight>>,
    /// Numbers that are free.
    free: Vec<usize>,
    /// Not in the kernel yet.
    queued: VecDeque<Io>,
    /// Entries in the kernel, or in the submission queue.
    entries: usize,
}

/// A request in the kernel.
struct Flight {
    io: Io,
    /// What the kernel reads while the request is there: where the buffers are.
    vectors: Box<[libc::iovec]>,
    /// Bytes read or written, or all if it is neither and was done.
    moved: u64,
    /// The flush behind it is done.
    flushed: bool,
    /// The chain may have been cut, so that its flush did not wait for its write.
    cut: bool,
    /// Entries that are not back.
    entries: usize,
    error: Option<Errno>,
}

// SAFETY: the pointers in `vectors` are into the buffers of `io`, which are `Send`, and only the
// kernel follows them.
unsafe impl Send for Flight {}

impl Ring {
    /// A ring, if this kernel and this process's limits give one that can do all of it.
    pub(super) fn start() -> Result<IoUring, String> {
        let ring = IoUring::new(ENTRIES as u32).map_err(|error| error.to_string())?;
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe);
        probed.map_err(|error| error.to_string())?;
        let needed = [
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
        ];
        if needed.iter().all(|&code| probe.is_supported(code)) && ring.params().is_feature_nodrop()
        {
            Ok(ring)
        } else {
            Err("this kernel's is too old".to_owned())
        }
    }

    pub(super) fn new(ring: IoUring, mut host: Host) -> Ring {
        host.info.how += ", io_uring";
        Ring {
            ring,
            host,
            flights: Mutex::default(),
            driver: Mutex::default(),
            events: Events::default(),
        }
    }

    /// Queues entries for what is left of a request.
    fn push(&self, flights: &mut Flights, number: usize) {
        let Some(flight) = &mut flights.flying[number] else {
            unreachable!("only a request in flight is pushed")
        };
        let entries = flight.next_entries(&self.host, number as u64);
        flight.entries = entries.len();
        flights.entries += entries.len();
        // SAFETY: the submission queue is used under the lock of `flights` alone. What the entries
        // point at, vectors and buffers, is in `flying` until they are back.
        let pushed = unsafe { self.ring.submission_shared().push_multiple(&entries) };
        pushed.expect("there are never more entries than the queue has room for");
    }

    /// Sends requests to the kernel that wait for room there.
    fn fill(&self, flights: &mut Flights) {
        while flights.entries + 2 <= ENTRIES
            && let Some(io) = flights.queued.pop_front()
        {
            let number = flights.free.pop().unwrap_or_else(|| {
                flights.flying.push(None);
                flights.flying.len() - 1
            });
            flights.flying[number] = Some(Flight::new(io));
            self.push(flights, number);
        }
        self.enter(flights);
    }

    /// Lets the kernel take what is in the submission queue.
    fn enter(&self, flights: &mut Flights) {
        // The kernel's threads that do what would block inherit the class of who submits.
        idle_class::leave();
        loop {
            // SAFETY: used under the lock of `flights` alone.
            let waiting = unsafe { self.ring.submission_shared().len() };
            if waiting == 0 {
                return;
            }
            match self.ring.submit() {
                Ok(taken) if taken == waiting => return,
                // It stopped within the queue, so possibly within a chain.
                Ok(_) => flights.distrust_chains(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Short of memory: whoever drives next tries again.
                Err(error) => {
                    flights.distrust_chains();
                    log::debug!("{}: submitting: {error}", self.host.info.name);
                    return;
                }
            }
        }
    }

    /// Takes completions and calls callbacks; `block`: waits for one first. The caller is the
    /// driver. `false`: nothing is in the kernel.
    fn drive(&self, block: bool) -> bool {
        let stuck = {
            let mut flights = self.flights.lock();
            if flights.entries == 0 {
                return false;
            }
            self.enter(&mut flights);
            // SAFETY: used under the lock of `flights` alone.
            unsafe { self.ring.submission_shared().len() == flights.entries }
        };
        if stuck {
            // The kernel has nothing of ours that could wake us.
            std::thread::yield_now();
            return true;
        }
        let mut completed = self.completed();
        if completed.is_empty() && block {
            self.block();
            completed = self.completed();
        }
        let over = {
            let mut flights = self.flights.lock();
            let over: Vec<_> = completed
                .into_iter()
                .filter_map(|entry| self.arrived(&mut flights, &entry))
                .collect();
            self.fill(&mut flights);
            over
        };
        for (io, result) in over {
            io.complete(result);
        }
        true
    }

    fn completed(&self) -> Vec<cqueue::Entry> {
        // SAFETY: only the driver uses the completion queue.
        unsafe { self.ring.completion_shared() }.collect()
    }

    /// Blocks until there is a completion.
    fn block(&self) {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no argument, so no pointer is passed.
        let entered = unsafe { self.ring.submitter().enter::<()>(0, 1, flags, None) };
        if let Err(error) = entered
            && error.kind() != io::ErrorKind::Interrupted
        {
            log::debug!("{}: waiting: {error}", self.host.info.name);
        }
    }

    /// An entry is back. What is not done of its request is pushed again; one that is over is
    /// returned.
    fn arrived(
        &self,
        flights: &mut Flights,
        entry: &cqueue::Entry,
    ) -> Option<(Io, Result<(), Errno>)> {
        let number = (entry.user_data() >> 1) as usize;
        flights.entries -= 1;
        let Some(flight) = &mut flights.flying[number] else {
            unreachable!("the kernel completes what is in flight")
        };
        flight.arrived(entry.user_data() & FLUSH != 0, entry.result());
        if flight.entries > 0 {
            return None;
        }
        let result = match flight.error {
            Some(errno) => Err(errno),
            None if flight.is_over() => Ok(()),
            None => {
                self.push(flights, number);
                return None;
            }
        };
        let flight = flights.flying[number].take()?;
        flights.free.push(number);
        Some((flight.io, result))
    }
}

impl Flights {
    /// No flush behind a write counts that is in the kernel now.
    fn distrust_chains(&mut self) {
        for flight in self.flying.iter_mut().flatten() {
            flight.cut = true;
        }
    }
}

impl Flight {
    fn new(io: Io) -> Flight {
        Flight {
            io,
            vectors: Box::default(),
            moved: 0,
            flushed: false,
            cut: false,
            entries: 0,
            error: None,
        }
    }

    fn is_over(&self) -> bool {
        self.moved == self.io.request.action().len && self.flushed == self.io.request.flushes()
    }

    /// The entries for what is left: the data, the flush, or a chain of both.
    fn next_entries(&mut self, host: &Host, number: u64) -> Vec<squeue::Entry> {
        let fd = types::Fd(host.file.as_raw_fd());
        let action = self.io.request.action();
        let at = action.at + self.moved;
        self.cut = false;
        let mut entries = Vec::with_capacity(2);
        if self.moved < action.len {
            self.vectors = vectors(&self.io.request, self.moved);
            let (vectors, count) = (self.vectors.as_ptr(), self.vectors.len() as u32);
            entries.push(match &self.io.request {
                Request::Read { .. } => opcode::Readv::new(fd, vectors, count).offset(at).build(),
                Request::Write { .. } => opcode::Writev::new(fd, vectors, count).offset(at).build(),
                request => match host.fallocate_mode(request) {
                    Some(mode) => opcode::Fallocate::new(fd, action.len)
                        .offset(at)
                        .mode(mode.bits() as i32)
                        .build(),
                    None => opcode::Nop::new().build(),
                },
            });
        }
        if self.io.request.flushes() {
            if let Some(write) = entries.pop() {
                entries.push(write.flags(Flags::IO_LINK));
            }
            let data = types::FsyncFlags::DATASYNC;
            entries.push(opcode::Fsync::new(fd).flags(data).build());
        }
        let last = entries.len() - 1;
        let tag = |(i, entry): (usize, squeue::Entry)| {
            let flush = self.io.request.flushes() && i == last;
            entry.user_data(number << 1 | u64::from(flush))
        };
        entries.into_iter().enumerate().map(tag).collect()
    }

    /// Takes the result of one of its entries.
    fn arrived(&mut self, flush: bool, result: i32) {
        self.entries -= 1;
        let action = self.io.request.action();
        let result = match u32::try_from(result) {
            Ok(moved) => Ok(moved as usize),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        match (result, &self.io.request) {
            (Err(errno), _) if is_cut_off(errno) => {}
            (Err(errno), _) => {
                self.error.get_or_insert(errno);
            }
            (Ok(_), _) if flush => self.flushed = self.moved == action.len && !self.cut,
            (Ok(moved), Request::Read { .. } | Request::Write { .. }) => {
                match progress(self.moved, moved) {
                    Ok(moved) => self.moved = moved,
                    Err(errno) => self.error = Some(errno),
                }
            }
            (Ok(_), _) => self.moved = action.len,
        }
    }
}

/// Whether an entry was not done through no fault of its own. Entries that need the thread that
/// submitted them once more are cut off when it exits: with ECANCELED, or EFAULT where nothing of
/// its memory is left to use. (Our buffers are mapped.)
fn is_cut_off(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::INTR | Errno::AGAIN | Errno::CANCELED | Errno::FAULT
    )
}

/// Where the buffers of a request are, behind the bytes that were moved.
fn vectors(request: &Request, moved: u64) -> Box<[libc::iovec]> {
    let (Request::Read { into: buffers, .. } | Request::Write { from: buffers, .. }) = request
    else {
        return Box::default();
    };
    let (first, skip) = resume(buffers.iter().map(|buffer| buffer.len()), moved);
    let vector = |(i, buffer): (usize, &crate::Buffer)| {
        let skip = if i == 0 { skip } else { 0 };
        libc::iovec {
            iov_base: buffer.base().wrapping_add(skip).cast(),
            iov_len: buffer.len() - skip,
        }
    };
    let rest = buffers[first..].iter().take(VECTORS_MAX);
    rest.enumerate().map(vector).collect()
}

impl Device for Ring {
    fn info(&self) -> &Info {
        &self.host.info
    }

    fn data_from(&self, at: u64) -> u64 {
        self.host.data_from(at)
    }

    fn submit(&self, ios: Vec<Io>) {
        let was_idle = {
            let mut flights = self.flights.lock();
            let was_idle = flights.entries == 0;
            flights.queued.extend(ios);
            self.fill(&mut flights);
            was_idle
        };
        if was_idle {
            // One that found nothing to wait for in the kernel looks again.
            self.events.announce();
        }
    }

    fn delivered(&self) -> u64 {
        self.events.count()
    }

    fn reap(&self) {
        let Some(driver) = self.driver.try_lock() else {
            return;
        };
        self.drive(false);
        self.events.announce();
        drop(driver);
        self.events.announce();
    }

    fn wait(&self, seen: u64) {
        // Nothing is in the kernel of the ring's: another thread is calling callbacks, about to
        // submit, or does a request itself.
        if self.flights.lock().entries == 0 {
            return self.events.wait(seen);
        }
        let Some(driver) = self.driver.try_lock() else {
            return self.events.wait(seen);
        };
        if self.events.count() == seen {
            self.drive(true);
            self.events.announce();
        }
        drop(driver);
        self.events.announce();
    }

    fn notify(&self) {
        self.events.announce();
    }

    /// By the caller's own thread. The kernel's threads that would do it otherwise, as most files
    /// block, have to be woken, and so has the caller.
    fn execute(&self, mut request: Request) -> Completion {
        // Others may want the core when this has waited for the disk.
        idle_class::leave();
        let result = self.host.run(&mut request);
        Completion { request, result }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.drive(true) {}
        let flights = mem::take(self.flights.get_mut());
        debug_assert!(flights.flying.iter().all(Option::is_none));
    }
}

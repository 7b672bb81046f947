//! Requests by io_uring: a queue for each core, whose requests are served there.
//!
//! The kernel has a queue of requests for each core that there may ever be, and lays a request into
//! the queue of the core on which its client runs. Each queue has threads of its own, bound to that
//! core if they may run there, and each thread has one entry, into which one request goes. The
//! kernel takes the entry that came back last. So as long as requests are served at once, one
//! thread of a queue serves them all; while it waits for the medium or for a lock, the next one
//! takes what comes.
//!
//! A request that finds no entry waits until an answer gives one back. *A new entry does not take
//! what waits* (Linux 6.18). So the threads are there from the beginning, as many as the mount may
//! have, for each core that is there: they sleep, and have touched little memory. On a machine of
//! very many cores there are fewer, as each has an open file.
//!
//! A request that another thread answers (`holes`, `shutdown`) keeps its entry until then. It may
//! wait for further requests. So before such a request is served, another entry of its queue is
//! with the kernel, beyond the limit if need be. What has that entry goes on: it is served at once,
//! or is such a request itself.
//!
//! All queues must be there before the kernel uses any; until then it holds back requests. If one
//! fails, the kernel is told by an entry that it cannot take, and all goes by `/dev/fuse`.

#[allow(unsafe_code, reason = "no safe wrapper submits commands to a device")]
mod entry;

use std::cell::Cell;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use threads::idle_class::{self, IdleClass};
use threads::scout::Core;

use crate::crew;
use crate::follow;
use crate::handler::{Handler, dispatch};
use crate::reply::{Outcome, Slot, To, Unanswered};
use crate::wire::{Incoming, Opcode};
use entry::{Entry, Ring};

/// The cores that there may ever be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Those that there are.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Threads of all queues together, at most. Each has an open file.
const THREADS_MAX: usize = 1024;

/// No queue has this number, as there are not so many: the kernel does not take an entry of it.
const NO_QUEUE: u16 = u16::MAX;

/// The queues of a mount.
struct Queues<H> {
    handler: Arc<H>,
    device: OwnedFd,
    queues: Vec<Queue>,
    /// Threads that a queue may have, unless more are needed to go on at all.
    most: usize,
    /// The same of all queues together.
    room: usize,
}

/// One for each core.
#[derive(Default)]
struct Queue {
    /// Threads that wait for a request, or are about to.
    waiting: AtomicUsize,
    /// Threads in all.
    threads: AtomicUsize,
    idle_class: Arc<IdleClass>,
}

/// Queues that there can be.
pub struct Possible {
    count: u16,
    /// Threads of all of them.
    room: usize,
    /// To tell the kernel with that there will be none after all: at that time there may be no room
    /// for another one.
    spare: Ring,
}

/// The queues that there have to be, if this process can have them.
pub fn possible() -> Option<Possible> {
    let spare = Ring::new().inspect_err(|error| log::info!("no io_uring: {error}"));
    let count = count(&fs::read_to_string(POSSIBLE).ok()?)?;
    // The other half is for whom we serve.
    let files = getrlimit(Resource::Nofile).current.map(|limit| limit / 2);
    let files = files.and_then(|limit| usize::try_from(limit).ok());
    let room = THREADS_MAX.min(files.unwrap_or(THREADS_MAX));
    if usize::from(count) > room {
        log::info!("no queues: {count} cores, and open files for {room}");
        return None;
    }
    Some(Possible {
        count,
        room,
        spare: spare.ok()?,
    })
}

/// The parts of a list like `0-3,8`.
fn parts(list: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').map(part).collect()
}

/// How many numbers a list has.
fn count(list: &str) -> Option<u16> {
    let count: usize = parts(list)?.into_iter().map(Iterator::count).sum();
    u16::try_from(count).ok().filter(|&count| count > 0)
}

/// Start the queues, with up to `most` threads each. They end with the connection. False: it does
/// not work, and the kernel does without.
///
/// # Errors
/// When the kernel waits for queues that there will not be.
pub fn start<H: Handler>(
    handler: &Arc<H>,
    device: &OwnedFd,
    Possible { count, room, spare }: Possible,
    most: usize,
) -> io::Result<bool> {
    let queues = Arc::new(Queues {
        handler: Arc::clone(handler),
        device: device.try_clone()?,
        queues: (0..count).map(|_| Queue::default()).collect(),
        most,
        room,
    });
    let online = fs::read_to_string(ONLINE).ok();
    let online = online.and_then(|list| parts(&list)).unwrap_or_default();
    let first = most.min(room / usize::from(count));
    let started = (0..count).try_for_each(|number| {
        let is_online = online.iter().any(|part| part.contains(&number));
        let threads = if is_online { first } else { 1 };
        let (tell, told) = channel();
        for _ in 0..threads {
            queues.spawn(number, &tell);
        }
        drop(tell);
        // One is enough. When all queues have one, the kernel does not go back.
        let told: Vec<io::Result<()>> = told.iter().collect();
        match told.iter().any(Result::is_ok) {
            true => Ok(()),
            false => told.into_iter().collect(),
        }
    });
    let Err(error) = started else {
        return Ok(true);
    };
    log::warn!("requests come by /dev/fuse, as io_uring does not work: {error}");
    // One entry that the kernel does not take is enough.
    match Entry::register(spare, device, NO_QUEUE) {
        Ok(_) => Err(error),
        Err(_) => Ok(false),
    }
}

impl<H: Handler> Queues<H> {
    /// Start one more thread for a queue. Whether the kernel has taken its entry is told.
    fn spawn(self: &Arc<Self>, number: u16, tell: &Sender<io::Result<()>>) {
        let queue = &self.queues[usize::from(number)];
        queue.threads.fetch_add(1, SeqCst);
        queue.waiting.fetch_add(1, SeqCst);
        let (all, tell_it) = (Arc::clone(self), tell.clone());
        let thread = std::thread::Builder::new().name(format!("fuse-ring-{number}"));
        let run = move || {
            threads::as_usual();
            all.run(number, tell_it);
        };
        if let Err(error) = thread.spawn(run) {
            self.lost(number, error, tell);
        }
    }

    /// A thread could not be had.
    fn lost(&self, number: u16, error: io::Error, tell: &Sender<io::Result<()>>) {
        log::debug!("a queue gets no more threads: {error}");
        let queue = &self.queues[usize::from(number)];
        queue.threads.fetch_sub(1, SeqCst);
        queue.waiting.fetch_sub(1, SeqCst);
        // There may be nobody to tell.
        let _ = tell.send(Err(error));
    }

    fn has_room(&self, queue: &Queue) -> bool {
        let threads = |queue: &Queue| queue.threads.load(SeqCst);
        threads(queue) < self.most && self.queues.iter().map(threads).sum::<usize>() < self.room
    }

    /// See to it that somebody is left to wait in a queue. If what comes now `may_need` further
    /// requests, returns when that is so.
    fn attend(self: &Arc<Self>, number: u16, may_need: bool) {
        let queue = &self.queues[usize::from(number)];
        let waiting = queue.waiting.load(SeqCst);
        let wanted = match may_need {
            true => waiting == 0,
            false => waiting <= 1 && self.has_room(queue),
        };
        if !wanted {
            return;
        }
        // New threads inherit the class.
        idle_class::leave();
        let (tell, told) = channel();
        self.spawn(number, &tell);
        drop(tell);
        if may_need {
            // If that failed, it has been logged.
            let _ = told.recv();
        }
    }

    /// A thread of a queue.
    fn run(self: &Arc<Self>, number: u16, tell: Sender<io::Result<()>>) {
        let queue = &self.queues[usize::from(number)];
        crew::stay_out();
        follow::stay(Core::from(number), &queue.idle_class);
        let ring = Ring::new();
        let registered = ring.and_then(|ring| Entry::register(ring, &self.device, number));
        let mut entry = match registered {
            Ok(entry) => entry,
            Err(error) => return self.lost(number, error, &tell),
        };
        let _ = tell.send(Ok(()));
        drop(tell);
        let slot = Arc::new(Slot::default());
        loop {
            idle_class::enter();
            if let Err(error) = entry.next() {
                let end = [Errno::NOTCONN, Errno::CONNABORTED].map(Some);
                if !end.contains(&Errno::from_io_error(&error)) {
                    log::error!("a queue has lost a thread: {error}");
                }
                entry.free();
                return;
            }
            queue.waiting.fetch_sub(1, SeqCst);
            let (unique, outcome) = self.serve(number, &mut entry, &slot);
            queue.waiting.fetch_add(1, SeqCst);
            entry.answer(unique, outcome);
        }
    }

    /// Serve the request in an entry.
    fn serve(self: &Arc<Self>, number: u16, entry: &mut Entry, slot: &Arc<Slot>) -> (u64, Outcome) {
        // A request without further arguments leaves room for its answer.
        let (_, _, rest) = entry.request();
        let mut room = (rest == 0).then(|| entry.payload.take()).flatten();
        let mut payload = entry.payload.take();
        let (header, fixed, rest) = entry.request();
        let bytes = payload.as_mut().map(|payload| &*payload.bytes());
        let rest = bytes.unwrap_or_default().get(..rest).unwrap_or_default();
        let request = match Incoming::pieces(header, fixed, rest) {
            Ok(request) => request,
            Err(_) => unreachable!("a header has its length"),
        };
        let unique = request.caller.unique();
        self.attend(
            number,
            matches!(request.opcode, Opcode::Lseek | Opcode::Ioctl),
        );
        let has_answer = Cell::new(false);
        let answer = || {
            has_answer.set(true);
            Unanswered::new(unique, To::Slot(Arc::clone(slot), room.take()))
        };
        // A panic has left the answer that says so.
        let served = catch_unwind(AssertUnwindSafe(|| {
            dispatch(&*self.handler, request, answer)
        }));
        if let Ok(Err(_)) = served {
            log::error!("request {unique} is too short");
        }
        entry.payload = payload;
        let mut outcome = match slot.take() {
            Some(outcome) => outcome,
            // Another thread has the reply.
            None if has_answer.get() => slot.wait(),
            None => Outcome::error(0),
        };
        if outcome.payload.is_none() {
            outcome.payload = room;
        }
        (unique, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_of_a_list_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3\n"), Some(4));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for nonsense in ["", "a", "3-0", "0-65535", "0-65536"] {
            assert_eq!(count(nonsense), None, "{nonsense}");
        }
    }
}

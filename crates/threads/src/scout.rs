//! Where threads of other processes run.
//!
//! `/proc/PID/stat` tells, and who reads it may wait (Linux 6.18). While PID is in `execve` it is
//! for the end of that, as both take `exec_update_lock`. And a reader who is left with the last
//! reference to PID's memory takes that down, and has the files written back that are mapped there.
//! Either may need requests of a mount to be served. So who serves some looks by itself
//! ([`Proc`]) only for a thread that can do neither, and has a [`Scout`] look for others.
//!
//! A scout is a thread that nobody waits for. It has no open files of its process, with which it
//! would keep a connection to the kernel alive that it waits for: when the process is killed, the
//! connection ends and so does the waiting.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

/// A processor's number.
pub type Core = u32;

/// The id of a thread of any process; 0 is none.
pub type Tid = u32;

/// Looks where threads run; keeps open what tells it of the last one.
#[derive(Default)]
pub struct Proc {
    thread: Tid,
    stat: Option<File>,
}

impl Proc {
    /// Where a thread runs, or ran last. None: that is not to be had, as in another process
    /// namespace.
    pub fn core_of(&mut self, thread: Tid) -> Option<Core> {
        let mut text = [0; 1024];
        if thread == self.thread
            && let Some(len) = self
                .stat
                .as_ref()
                .and_then(|s| s.read_at(&mut text, 0).ok())
        {
            return processor(&text[..len]);
        }
        let stat = File::open(format!("/proc/{thread}/stat")).ok()?;
        let len = stat.read_at(&mut text, 0).ok()?;
        (self.thread, self.stat) = (thread, Some(stat));
        processor(&text[..len])
    }
}

/// The processor in `/proc/PID/stat`: field 39. The second is the program's name in parentheses,
/// with any bytes in it.
fn processor(stat: &[u8]) -> Option<Core> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

/// Has a thread of its own look where others run.
#[derive(Default)]
pub struct Scout {
    shared: Arc<Shared>,
    thread: Option<Thread>,
    asked: u32,
}

/// A question that a scout was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticket(u32);

#[derive(Default)]
struct Shared {
    /// The latest question: its ticket in the upper half, and the thread. 0: there is none.
    asked: AtomicU64,
    /// The latest answer: the ticket in the upper half, and the core. 0: there is none.
    answered: AtomicU64,
    ended: AtomicBool,
}

/// Stands for no core.
const NONE: Core = Core::MAX;

impl Scout {
    /// Have it look for a thread. What was asked before need not be answered any more.
    pub fn ask(&mut self, thread: Tid) -> Ticket {
        // No ticket is 0.
        self.asked = self.asked.wrapping_add(1).max(1);
        let asked = both(self.asked, thread);
        self.shared.asked.store(asked, Ordering::Release);
        self.call();
        Ticket(self.asked)
    }

    /// What came of it so far; within, none: the thread is nowhere to be found. Waits for nothing.
    pub fn answer(&self, ticket: Ticket) -> Option<Option<Core>> {
        let answered = self.shared.answered.load(Ordering::Acquire);
        let core = answered as Core;
        (answered >> 32 == u64::from(ticket.0)).then(|| (core != NONE).then_some(core))
    }

    /// Wake the thread; it is started if there is none yet.
    fn call(&mut self) {
        if let Some(thread) = &self.thread {
            return thread.unpark();
        }
        let shared = Arc::clone(&self.shared);
        let scout = thread::Builder::new().name("scout".to_owned());
        match scout.spawn(move || shared.look()) {
            Ok(scout) => self.thread = Some(scout.thread().clone()),
            Err(error) => log::debug!("nobody looks where clients run that only read: {error}"),
        }
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

fn both(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

impl Shared {
    fn look(&self) {
        crate::as_usual();
        // From here on nothing is logged: the log may be a file.
        if let Err(error) = crate::files::let_go() {
            return log::debug!("nobody looks where clients run that only read: {error}");
        }
        let mut proc = Proc::default();
        while !self.ended.load(Ordering::Acquire) {
            let asked = self.asked.swap(0, Ordering::Acquire);
            if asked == 0 {
                thread::park();
                continue;
            }
            let core = proc.core_of(asked as Tid).unwrap_or(NONE);
            let answered = both((asked >> 32) as u32, core);
            self.answered.store(answered, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    fn myself() -> Tid {
        let myself = rustix::thread::gettid().as_raw_nonzero();
        myself.get().cast_unsigned()
    }

    /// Asks and waits for the answer.
    fn find(scout: &mut Scout, thread: Tid) -> Option<Core> {
        let ticket = scout.ask(thread);
        until(|| scout.answer(ticket).is_some(), "no answer");
        scout.answer(ticket).expect("it is there")
    }

    #[test]
    fn the_processor_is_found_behind_any_name() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("123 (a) b (c) S {}\n", fields.join(" "));
        assert_eq!(processor(stat.as_bytes()), Some(39));
        assert_eq!(processor(b"123 (cut"), None);
        assert_eq!(processor(b"123 (cut) S 1 2"), None);
        let mut proc = Proc::default();
        for _ in 0..2 {
            assert!(proc.core_of(myself()).is_some());
        }
        assert_eq!(proc.core_of(Tid::MAX), None);
    }

    #[test]
    fn a_scout_answers_what_it_was_asked_last_and_nothing_else() {
        let mut scout = Scout::default();
        for _ in 0..3 {
            assert!(find(&mut scout, myself()).is_some());
            assert_eq!(find(&mut scout, Tid::MAX), None);
        }
        let before = scout.ask(myself());
        assert_eq!(find(&mut scout, Tid::MAX), None);
        assert_eq!(scout.answer(before), None, "that is not asked any more");
        scout.asked = u32::MAX;
        assert!(find(&mut scout, myself()).is_some());
    }

    /// The ids of the threads of this process that are called so.
    fn called(name: &str) -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
        let ids = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
        let name = format!("{name}\n");
        ids.filter(|id| {
            let comm = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
            comm.is_ok_and(|comm| comm == name)
        })
        .collect()
    }

    /// What a thread of this process has open.
    fn files(thread: &str) -> Vec<PathBuf> {
        let files = std::fs::read_dir(format!("/proc/self/task/{thread}/fd"));
        let links = files.into_iter().flatten().flatten();
        links
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .collect()
    }

    /// Waits until something is so.
    fn until(is_so: impl Fn() -> bool, else_what: &str) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "{else_what}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_scout_holds_no_files_of_its_process_and_ends_with_who_asks() {
        let (_pipe, _other_end) = std::io::pipe().expect("a pipe");
        let is_pipe = |file: &PathBuf| file.to_string_lossy().starts_with("pipe:[");
        let mine = files(&myself().to_string());
        let pipe = mine.iter().rfind(|&file| is_pipe(file));
        let pipe = pipe.expect("it is open here");
        let mut scout = Scout::default();
        assert!(find(&mut scout, myself()).is_some());
        // Those of other tests, too, once they have begun.
        let scouts = || called("scout");
        assert!(!scouts().is_empty());
        until(
            || !scouts().iter().any(|scout| files(scout).contains(pipe)),
            "it holds files",
        );
        let shared = Arc::clone(&scout.shared);
        drop(scout);
        until(|| Arc::strong_count(&shared) == 1, "it stays");
    }
}

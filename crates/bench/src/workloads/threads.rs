//! Several threads on one target.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::sampler::Throughput;
use crate::target::Result;

/// When a thread of a crew has done enough.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    begin: Instant,
    window: Option<Duration>,
}

impl Deadline {
    /// Do `step` until the time is over, or `most` times; returns how often that was. The clock is
    /// looked at before each `every`th step only, as looking takes 30 ns.
    pub fn repeat(
        &self,
        most: u64,
        every: u64,
        mut step: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let over = |time: Duration| self.window.is_some_and(|window| time >= window);
        for done in 0..most {
            if done.is_multiple_of(every) && over(self.begin.elapsed()) {
                return Ok(done);
            }
            step(done)?;
        }
        Ok(most)
    }
}

/// What one thread did, and when.
struct ThreadRun {
    ops: u64,
    begin: Instant,
    end: Instant,
    sleeps: u64,
}

/// Run `work` in so many threads at once, each told its number and until when; it returns what it
/// has done. Without a window each decides for itself when it is finished.
pub fn run_threads(
    threads: usize,
    window: Option<Duration>,
    work: impl Fn(usize, Deadline) -> Result<u64> + Sync,
) -> Result<Throughput> {
    let start = Barrier::new(threads);
    let one = |number: usize| -> Result<ThreadRun> {
        let slept = sleeps();
        start.wait();
        let begin = Instant::now();
        let ops = work(number, Deadline { begin, window })?;
        Ok(ThreadRun {
            ops,
            begin,
            end: Instant::now(),
            sleeps: sleeps().saturating_sub(slept),
        })
    };
    let runs = std::thread::scope(|scope| {
        let one = &one;
        let spawned: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let joined = spawned.into_iter().map(|thread| thread.join());
        joined
            .map(|run| run.map_err(|_| "a thread panicked")?)
            .collect::<Result<Vec<ThreadRun>>>()
    })?;
    Ok(all(&runs))
}

/// Threads leave the barrier one after the other, so none of them sees all of the time.
fn all(runs: &[ThreadRun]) -> Throughput {
    let begin = runs.iter().map(|run| run.begin).min();
    let end = runs.iter().map(|run| run.end).max();
    Throughput {
        ops: runs.iter().map(|run| run.ops).sum(),
        time: begin
            .zip(end)
            .map_or(Duration::ZERO, |(begin, end)| end - begin),
        sleeps: runs.iter().map(|run| run.sleeps).sum(),
    }
}

/// How often the calling thread has given up its core to wait: for a lock, here, and once for the
/// barrier.
fn sleeps() -> u64 {
    let path = format!("/proc/self/task/{}/status", gettid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn all_threads_work_and_their_operations_are_added() {
        let seen = AtomicU64::new(0);
        let done = run_threads(3, None, |number, until| {
            seen.fetch_or(1 << number, Relaxed);
            until.repeat(100, 1, |_| Ok(()))
        })
        .unwrap();
        assert_eq!((done.ops, seen.load(Relaxed)), (300, 0b111));
    }

    #[test]
    fn a_window_ends_work_that_could_go_on() {
        let window = Duration::from_millis(10);
        let done = run_threads(2, Some(window), |_, until| {
            until.repeat(u64::MAX, 16, |_| Ok(()))
        })
        .unwrap();
        assert!(done.time >= window && done.ops > 0);
    }

    /// Threads that outnumber the cores, so that some begin when others are done.
    #[test]
    fn the_time_goes_from_the_first_begin_to_the_last_end() {
        let seen = Mutex::new(Vec::new());
        let done = run_threads(32, None, |_, _| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(1) {}
            seen.lock().unwrap().push((begin, Instant::now()));
            Ok(1)
        })
        .unwrap();
        let seen = seen.into_inner().unwrap();
        let begin = seen.iter().map(|(begin, _)| *begin).min().unwrap();
        let end = seen.iter().map(|(_, end)| *end).max().unwrap();
        assert!(done.time >= end - begin, "{done:?} {:?}", end - begin);
    }

    #[test]
    fn an_error_of_one_thread_is_the_error_of_all() {
        let failed = run_threads(2, None, |number, _| match number {
            0 => Ok(0),
            _ => Err("no".into()),
        });
        assert!(failed.is_err());
    }
}

//! Further persisters: threads that share the flushing of a batch.
//!
//! A batch has one builder and one commit. Between them it waits for its lines to be written back,
//! and in that several cores go faster than one. So the lines are dealt out; each thread flushes
//! its part and fences it, as a fence covers the own thread's flushes only (M6); when all have said
//! that they are done, the builder commits. What a helper flushes was stored before it was dealt
//! out, by the builder or by callers whose locks the builder has held since, so it sees those
//! stores.

use crate::flush::Flushes;
use crate::layout::LINE;
use crate::medium::failed;
use pmem::{Domain, MediumError, Pool};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use vfs::{Error, Result};

/// Lines that make it worth while to wake a thread, where a flush takes no extra time.
const PART_LINES: u64 = 1024;

/// Runs of lines, and what became of them.
type Part = Vec<Range<u64>>;
type Done = std::result::Result<(), MediumError>;

fn gone() -> Error {
    Error::medium("a persister is gone")
}

struct Helper {
    parts: Option<Sender<Part>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

/// The helpers of one mount. Dropping them ends their threads.
#[derive(Default)]
pub struct Helpers {
    helpers: Vec<Helper>,
    /// Lines below which the builder flushes alone, for each thread.
    part_lines: u64,
}

impl Helpers {
    /// So many, on a pool whose fences cover a thread only; elsewhere flushing takes no time, and
    /// none are started. `eager`: wake them for any number of lines.
    pub fn start(pool: &Arc<Pool>, count: usize, eager: bool) -> Helpers {
        let count = if pool.domain() == Domain::Line {
            count
        } else {
            0
        };
        let mut helpers = Vec::new();
        for i in 0..count {
            match Helper::start(pool.clone(), i) {
                Ok(helper) => helpers.push(helper),
                Err(e) => log::warn!("a persister did not start, there are fewer: {e}"),
            }
        }
        Helpers {
            helpers,
            part_lines: if eager { 1 } else { PART_LINES },
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.helpers.len()
    }

    /// Flush all of `flushes`. When this returns, the calling thread's next fence makes all of it
    /// durable.
    ///
    /// # Errors
    /// The medium failed, or a helper is gone.
    pub fn flush(&self, pool: &Pool, flushes: Flushes) -> Result<()> {
        let runs = flushes.merged();
        if self.helpers.is_empty() {
            flush_part(pool, &runs);
            return Ok(());
        }
        let runs = runs.into_vec();
        let lines: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let threads = (lines / self.part_lines.max(1)).min(self.helpers.len() as u64 + 1);
        let mut parts = deal(runs, lines, threads.max(1)).into_iter();
        let own = parts.next().unwrap_or_default();
        let busy = &self.helpers[..parts.len()];
        for (helper, part) in busy.iter().zip(parts) {
            let sent = helper.parts.as_ref().map(|parts| parts.send(part));
            if !matches!(sent, Some(Ok(()))) {
                return Err(gone());
            }
        }
        flush_part(pool, &own);
        // All are waited for, so that none is still at it when the next batch begins.
        let done: Vec<Result<()>> = busy
            .iter()
            .map(|helper| match helper.done.recv() {
                Ok(fenced) => fenced.map_err(failed),
                Err(_) => Err(gone()),
            })
            .collect();
        done.into_iter().collect()
    }
}

impl Helper {
    fn start(pool: Arc<Pool>, number: usize) -> std::io::Result<Helper> {
        let (parts, todo) = channel::<Part>();
        let (tell, done) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("persister {}", number + 2))
            .spawn(move || Helper::serve(&pool, &todo, &tell))?;
        Ok(Helper {
            parts: Some(parts),
            done,
            thread: Some(thread),
        })
    }

    fn serve(pool: &Pool, todo: &Receiver<Part>, tell: &Sender<Done>) {
        while let Ok(part) = todo.recv() {
            flush_part(pool, &part);
            if tell.send(pool.fence()).is_err() {
                return;
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.parts = None; // ends the thread's loop
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a persister panicked");
        }
    }
}

fn flush_part(pool: &Pool, part: &[Range<u64>]) {
    for run in part {
        pool.flush(run.start * LINE, (run.end - run.start) * LINE);
    }
}

/// Deal runs of so many lines out into parts of about the same number of lines.
fn deal(runs: Vec<Range<u64>>, lines: u64, parts: u64) -> Vec<Part> {
    let share = lines.div_ceil(parts).max(1);
    let mut dealt = vec![Part::new()];
    let mut room = share;
    for mut run in runs {
        while !run.is_empty() {
            if room == 0 {
                dealt.push(Part::new());
                room = share;
            }
            let end = run.end.min(run.start + room);
            room -= end - run.start;
            if let Some(part) = dealt.last_mut() {
                part.push(run.start..end);
            }
            run.start = end;
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_as_large_as_each_other_and_are_all_there_is() {
        let lines = |part: &Part| part.iter().cloned().flatten().collect::<Vec<u64>>();
        let dealt = deal(vec![0..5, 8..9, 20..30], 16, 3);
        assert_eq!(lines(&dealt[0]), [0, 1, 2, 3, 4, 8]);
        assert_eq!(lines(&dealt[1]), [20, 21, 22, 23, 24, 25]);
        assert_eq!(lines(&dealt[2]), [26, 27, 28, 29]);
        assert_eq!(dealt.len(), 3);
        assert_eq!(deal(Vec::new(), 0, 2), [Part::new()]);
    }

    #[test]
    fn helpers_flush_and_fence_what_is_dealt_to_them() {
        let options = pmem::Options {
            domain: Some(Domain::Line),
            ..pmem::Options::default()
        };
        let pool = Arc::new(Pool::anonymous(1 << 20, &options).expect("memory"));
        let helpers = Helpers::start(&pool, 2, true);
        let (before, own) = (pool.stats(), pmem::thread_stats());
        let mut flushes = Flushes::default();
        flushes.add(0, 90 * LINE);
        helpers.flush(&pool, flushes).expect("flushed");
        let (all, own) = (pool.stats() - before, pmem::thread_stats() - own);
        assert_eq!((all.flushed_lines, all.fences), (90, 2));
        assert_eq!((own.flushed_lines, own.fences), (30, 0));
    }

    #[test]
    fn a_failed_medium_is_an_error() {
        let options = pmem::Options {
            domain: Some(Domain::Line),
            ..pmem::Options::default()
        };
        let pool = Arc::new(Pool::anonymous(1 << 20, &options).expect("memory"));
        let helpers = Helpers::start(&pool, 1, true);
        pool.poison("test");
        let mut flushes = Flushes::default();
        flushes.add(0, 2 * LINE);
        assert!(helpers.flush(&pool, flushes).is_err());
    }
}

//! Beyond the cores of this machine: what threads write that others wrote before, counted.
//!
//! A line that one core wrote and another one writes next has to travel between them, and only one
//! core can have it at a time. So an operation that takes over the same line each time cannot be
//! done more often than lines can travel, with any number of cores. Threads take turns here,
//! operation by operation: the worst case, and the same counts on any machine.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

use pmem::{Recorder, StoreKind};

use crate::plan::Plan;
use crate::report::{Found, Run, Table};
use crate::target::{Engine, Result, Setup};
use crate::workloads::fxmark::{Kind, Stage};

const LINE: u64 = 64;
const LEN: u64 = 256 << 20;
const THREADS: [usize; 3] = [2, 8, 32];
/// Steps of all threads together.
const STEPS: u64 = 3_200;
/// What a line takes from one core to another: an assumption, about what is measured within a
/// socket.
const TRANSFER_NS: f64 = 100.0;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let columns = [
        "what",
        "threads",
        "lines written/op",
        "taken over/op",
        "hottest line/op",
        "bound, million/s",
    ];
    let mut table = Table::new(
        "Lines of the medium that change hands, in-process",
        &columns,
    );
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.writes()).collect();
    for (i, &kind) in kinds.iter().enumerate() {
        plan.progress.step(kind.name(), i, kinds.len());
        for threads in THREADS {
            let found = count(kind, threads, plan.scaled(STEPS))?;
            let each = |count: u64| count as f64 / found.ops as f64;
            let hottest = each(found.hottest);
            table.row([
                format!("{}: {}", kind.name(), kind.about()).into(),
                (threads as u64).into(),
                each(found.written).into(),
                each(found.taken_over).into(),
                hottest.into(),
                // None where no line is taken over often enough to bound anything.
                if found.hottest * 100 < found.ops {
                    "none".into()
                } else {
                    (1000.0 / (hottest * TRANSFER_NS)).into()
                },
            ]);
        }
    }
    let mut run = Run::new("sharing", "what threads write that others wrote before");
    run.tables = vec![table];
    run.notes =
        vec![
        "threads take turns operation by operation, in mode delayed, nothing is persisted \
         meanwhile; the same \
         on any machine".into(),
        "taken over: lines whose last writer was another thread; hottest: how often that befell \
         the line that \
         it befell most".into(),
        format!(
            "bound: what any number of cores can reach if that line takes {TRANSFER_NS} ns to \
             travel (an assumption)"
        ),
        "only lines of the medium are seen: locks and counters in DRAM are not; what they do at \
         this machine's \
         cores is in \
         fxmark, with the sleeps"
            .into(),
    ];
    Ok((run, Vec::new()))
}

/// What was counted.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Counted {
    ops: u64,
    written: u64,
    taken_over: u64,
    hottest: u64,
}

fn count(kind: Kind, threads: usize, steps: u64) -> Result<Counted> {
    let lines = Arc::new(Lines::default());
    let setup = Setup {
        len: LEN,
        manual: true,
        ..Setup::default()
    };
    let engine = setup.mount("SoupFS", setup.recorded(lines.clone())?)?;
    let each = (steps / threads as u64).max(2);
    let stage = Stage::new(kind, &engine, threads, each)?;
    lines.start();
    take_turns(&stage, threads, each)?;
    let mut found = lines.stop();
    found.ops = each * threads as u64;
    stage.clear(&vec![each; threads])?;
    Ok(found)
}

/// Each thread does a step when it is its turn.
fn take_turns(stage: &Stage<'_, Engine>, threads: usize, each: u64) -> Result<()> {
    let (turn, next) = (Mutex::new(0u64), Condvar::new());
    let work = |thread: usize| -> Result<()> {
        let mut block = [0x68; 4096];
        let mut result = Ok(());
        for i in 0..each {
            let mine = i * threads as u64 + thread as u64;
            let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let mut turn = next
                .wait_while(turn, |turn| *turn != mine)
                .unwrap_or_else(PoisonError::into_inner);
            // Whoever fails still passes on its turns, or the others would wait for ever.
            if result.is_ok() {
                result = stage.step(thread, i, &mut block).map(drop);
            }
            *turn += 1;
            next.notify_all();
        }
        result
    };
    std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        all.into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Sees who wrote which line last.
#[derive(Default)]
struct Lines(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    on: bool,
    found: Counted,
    lines: HashMap<u64, (ThreadId, u64)>,
}

impl Lines {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        self.seen().on = true;
    }

    fn stop(&self) -> Counted {
        let mut seen = self.seen();
        seen.on = false;
        let hottest = seen.lines.values().map(|(_, count)| *count).max();
        seen.found.hottest = hottest.unwrap_or(0);
        seen.found
    }
}

impl Recorder for Lines {
    fn store(&self, off: u64, bytes: &[u8], _kind: StoreKind) {
        let mut seen = self.seen();
        let seen = &mut *seen;
        if !seen.on || bytes.is_empty() {
            return;
        }
        let own = std::thread::current().id();
        for line in off / LINE..=(off + bytes.len() as u64 - 1) / LINE {
            let (writer, taken) = seen.lines.entry(line).or_insert((own, 0));
            seen.found.written += 1;
            if *writer != own {
                (*writer, *taken) = (own, *taken + 1);
                seen.found.taken_over += 1;
            }
        }
    }

    fn flush(&self, _off: u64, _len: u64) {}

    fn fence(&self) {}

    fn mark(&self, _text: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_of_one_file_changes_hands_with_each_overwrite_and_private_files_never() {
        let shared = count(Kind::Dwoh, 2, 20).unwrap();
        assert!(shared.taken_over >= 64 * (shared.ops - 1), "{shared:?}");
        let private = count(Kind::Dwol, 2, 20).unwrap();
        assert_eq!(private.taken_over, 0, "{private:?}");
    }
}

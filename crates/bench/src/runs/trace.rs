//! Cache lines that threads take from each other, counted in a trace of all memory accesses.
//!
//! A process of its own (this program, see [`Task::Trace`]) does FxMark's steps, thread by thread
//! in turns, under valgrind's tool `lackey`, which prints each instruction, load and store. The
//! process stores to bytes of [`MARKS`] to tell where in the trace a step begins and ends. Here the
//! trace is read and played through the simplest of coherent caches: one for each thread, none ever
//! full. Threads own their caches, so what is counted does not depend on the machine.
//!
//! A line *changes hands* when a thread writes what another one has in its cache, or reads what
//! another one has written since. The first touch of a line counts as nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::child::Task;
use crate::plan::Plan;
use crate::target::{Engine, Result, Setup};
use crate::workloads::fxmark::{Kind, Stage};

const LINE: u64 = 64;
const LEN: u64 = 8 << 20;
/// Steps of each thread that only fill its cache, and those that count.
const WARM_UP: u64 = 4;
const COUNTED: u64 = 12;

/// What is traced. Not MRDL: threads list directories of their own, which takes half a million
/// instructions each time and touches nothing that is shared.
pub fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| *kind != Kind::Mrdl)
}

/// Bytes that are stored to so that the trace shows it: the first between steps, the next ones by
/// the threads at the beginning of a step.
static MARKS: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

/// What the traced process says before the steps of a workload begin; it waits for an answer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Ready {
    /// Where [`MARKS`] are.
    marks: u64,
    /// Where the medium is.
    medium: (u64, u64),
}

/// What one workload did, summed over its steps.
#[derive(Debug, Default, Clone)]
pub struct Traced {
    /// Steps that were counted.
    pub ops: u64,
    /// Instructions in them.
    pub instructions: u64,
    /// Lines that changed hands, in DRAM and on the medium.
    pub dram: u64,
    /// The same, on the medium.
    pub medium: u64,
    /// By line: how often it changed hands, and instructions from its first use to its last in
    /// those steps.
    lines: HashMap<u64, (u64, u64)>,
}

/// A line that bounds how often an operation can be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hot {
    /// How often it changes hands in an operation.
    pub times: f64,
    /// The part of the operation between its first and its last use: what is serial if it is a
    /// lock.
    pub held: f64,
}

impl Traced {
    /// The line that changes hands most often.
    pub fn hottest(&self) -> Hot {
        self.hot()
            .max_by(|a, b| a.times.total_cmp(&b.times))
            .unwrap_or(COLD)
    }

    /// The line that takes longest if each is a lock: per operation `ns` long, with `transfer` for
    /// a change of hands.
    pub fn slowest(&self, ns: f64, transfer: f64) -> Hot {
        let takes = |hot: &Hot| hot.times * transfer + hot.held * ns;
        self.hot()
            .max_by(|a, b| takes(a).total_cmp(&takes(b)))
            .unwrap_or(COLD)
    }

    fn hot(&self) -> impl Iterator<Item = Hot> {
        let (ops, instructions) = (self.ops.max(1) as f64, self.instructions.max(1) as f64);
        self.lines.values().map(move |&(times, held)| Hot {
            times: times as f64 / ops,
            held: held as f64 / instructions,
        })
    }
}

const COLD: Hot = Hot {
    times: 0.0,
    held: 0.0,
};

/// Traces all workloads with so many threads, at most 64; says why if it cannot.
pub fn trace(plan: &Plan, threads: usize) -> Result<Vec<Traced>> {
    let program = plan.program()?;
    let dir = plan.temp()?;
    let task = Task::Trace {
        dir: dir.path().into(),
        threads,
    };
    let mut child = Command::new("valgrind")
        .args([
            "--quiet",
            "--tool=lackey",
            "--basic-counts=no",
            "--trace-mem=yes",
        ])
        .arg(program)
        .args(task.arguments()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|why| format!("valgrind: {why} (it is needed to trace memory accesses)"))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut answers), Some(said), Some(traced)) = pipes else {
        return Err("no pipes to the traced process".into());
    };
    let places = Arc::new(Places::default());
    let told = places.clone();
    let listener = std::thread::spawn(move || -> Result<()> {
        for (i, line) in BufReader::new(said).lines().enumerate() {
            told.set(serde_json::from_str(&line?)?);
            told.workload.store(i as u64 + 1, SeqCst);
            answers.write_all(b"go\n")?;
        }
        Ok(())
    });
    let read = read(BufReader::with_capacity(1 << 20, traced), plan, &places);
    let status = child.wait()?;
    listener.join().map_err(|_| "the listener panicked")??;
    match status.success() {
        true => read,
        false => Err(format!("valgrind ended with {status}").into()),
    }
}

/// Where things are in the traced process, as it tells.
#[derive(Default)]
struct Places {
    ready: Mutex<Option<Ready>>,
    /// Workloads begun.
    workload: AtomicU64,
}

impl Places {
    fn set(&self, ready: Ready) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(ready);
    }

    fn get(&self) -> Option<Ready> {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a trace to its end.
fn read(mut trace: impl BufRead, plan: &Plan, places: &Places) -> Result<Vec<Traced>> {
    let mut all: Vec<Caches> = Vec::new();
    let (mut line, mut ready) = (Vec::new(), None);
    loop {
        line.clear();
        if trace.read_until(b'\n', &mut line)? == 0 {
            return Ok(all.into_iter().map(|caches| caches.found).collect());
        }
        // It tells where things are before it uses them, so that is known when the use is read.
        if places.workload.load(SeqCst) > all.len() as u64 {
            let what = kinds().nth(all.len()).map_or("", Kind::name);
            plan.progress.step(what, all.len(), kinds().count());
            ready = places.get();
            all.push(Caches::default());
        }
        if let Some((access, ready, caches)) = access(&line)
            .zip(ready)
            .zip(all.last_mut())
            .map(|((access, ready), caches)| (access, ready, caches))
        {
            caches.see(access, &ready);
        }
    }
}

/// A line of the trace.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Access {
    Instruction,
    /// Address, bytes, whether it stores.
    Data(u64, u64, bool),
}

/// Such as `I  04016b80,3` or ` S 1ffeffe7e0,8`; loads are `L`, what loads and stores at once is
/// `M`.
fn access(line: &[u8]) -> Option<Access> {
    let stores = match line.get(..2)? {
        b"I " => return Some(Access::Instruction),
        b" L" => false,
        b" S" | b" M" => true,
        _ => return None,
    };
    let mut fields = line.get(3..)?.trim_ascii_end().split(|byte| *byte == b',');
    let number = |digits: &[u8], base: u64| {
        digits.iter().try_fold(0, |number: u64, digit| {
            let digit = char::from(*digit).to_digit(base as u32)?;
            number.checked_mul(base)?.checked_add(digit.into())
        })
    };
    let (at, len) = (number(fields.next()?, 16)?, number(fields.next()?, 10)?);
    Some(Access::Data(at, len, stores))
}

/// A cache for each thread.
#[derive(Default)]
struct Caches {
    found: Traced,
    lines: HashMap<u64, Cached>,
    /// Whose step it is, the number of its steps, and whether they count.
    step: Option<usize>,
    steps: HashMap<usize, u64>,
    /// Instructions in this step, and of each line it used those before its first and its last use,
    /// and whether it changed hands.
    instructions: u64,
    used: HashMap<u64, (u64, u64, bool)>,
}

/// Who has a line.
#[derive(Default, Clone, Copy)]
struct Cached {
    /// A bit for each thread.
    holders: u64,
    /// It has one holder, which has written it.
    dirty: bool,
}

impl Caches {
    fn see(&mut self, access: Access, ready: &Ready) {
        match access {
            Access::Instruction => self.instructions += 1,
            Access::Data(at, _, true)
                if (ready.marks..ready.marks + MARKS.len() as u64).contains(&at) =>
            {
                self.end(ready);
                self.step = usize::try_from(at - ready.marks)
                    .ok()
                    .and_then(|mark| mark.checked_sub(1));
            }
            Access::Data(at, len, stores) => {
                if let Some(thread) = self.step {
                    for line in at / LINE..=(at + len.max(1) - 1) / LINE {
                        self.touch(thread, line, stores);
                    }
                }
            }
        }
    }

    fn touch(&mut self, thread: usize, line: u64, stores: bool) {
        let own = 1 << thread;
        let cached = self.lines.entry(line).or_default();
        let changes = match stores {
            true => cached.holders & !own != 0,
            false => cached.holders & own == 0 && cached.dirty,
        };
        *cached = match stores {
            true => Cached {
                holders: own,
                dirty: true,
            },
            false => Cached {
                holders: cached.holders | own,
                dirty: cached.dirty && !changes,
            },
        };
        let now = self.instructions;
        let used = self.used.entry(line).or_insert((now, now, false));
        (used.1, used.2) = (now, used.2 || changes);
    }

    /// The end of a step, if one was going on.
    fn end(&mut self, ready: &Ready) {
        if let Some(thread) = self.step.take() {
            let steps = self.steps.entry(thread).or_default();
            *steps += 1;
            if *steps > WARM_UP {
                self.found.add(self.instructions, &self.used, ready.medium);
            }
        }
        self.instructions = 0;
        self.used.clear();
    }
}

impl Traced {
    fn add(
        &mut self,
        instructions: u64,
        used: &HashMap<u64, (u64, u64, bool)>,
        medium: (u64, u64),
    ) {
        self.ops += 1;
        self.instructions += instructions;
        for (&line, &(first, last, changed)) in used {
            if !changed {
                continue;
            }
            let on_medium = (medium.0..medium.1).contains(&(line * LINE));
            *(if on_medium {
                &mut self.medium
            } else {
                &mut self.dram
            }) += 1;
            let (times, held) = self.lines.entry(line).or_default();
            (*times, *held) = (*times + 1, *held + last - first);
        }
    }
}

/// The traced process: all workloads, one after the other.
pub fn perform(dir: &Path, threads: usize) -> Result<()> {
    for (i, kind) in kinds().enumerate() {
        let image = dir.join(i.to_string());
        let setup = Setup {
            len: LEN,
            manual: true,
            ..Setup::default()
        };
        let engine = setup.mount("SoupFS", setup.create(&image)?)?;
        let stage = Stage::new(kind, &engine, threads, WARM_UP + COUNTED)?;
        let ready = Ready {
            marks: MARKS.as_ptr().addr() as u64,
            medium: mapped(&image)?,
        };
        println!("{}", serde_json::to_string(&ready)?);
        std::io::stdin().read_line(&mut String::new())?;
        take_turns(&stage, threads, WARM_UP + COUNTED)?;
        std::fs::remove_file(&image)?;
    }
    Ok(())
}

/// Where a file is mapped.
fn mapped(file: &Path) -> Result<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let name = file.to_string_lossy();
    let ranges = maps.lines().filter(|line| line.ends_with(&*name));
    let ranges: Option<Vec<(u64, u64)>> = ranges
        .map(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            number(start).zip(number(end))
        })
        .collect();
    let ranges = ranges.ok_or("the table of mappings makes no sense")?;
    let start = ranges.iter().map(|range| range.0).min();
    let end = ranges.iter().map(|range| range.1).max();
    Ok(start.zip(end).ok_or("the image is not mapped")?)
}

/// Each thread does a step and wakes the next one, so that only one of them ever runs in a step.
fn take_turns(stage: &Stage<'_, Engine>, threads: usize, steps: u64) -> Result<()> {
    let (turns, mut waits): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel::<()>()).unzip();
    let work =
        |thread: usize, wait: std::sync::mpsc::Receiver<()>, next: std::sync::mpsc::Sender<()>| {
            let mut block = [0x68; 4096];
            (0..steps).try_for_each(|i| -> Result<()> {
                wait.recv()?;
                MARKS[1 + thread].store(1, Relaxed);
                let done = stage.step(thread, i, &mut block);
                MARKS[0].store(1, Relaxed);
                // The last ones find nobody who waits.
                let _ = next.send(());
                done.map(drop)
            })
        };
    std::thread::scope(|scope| {
        let work = &work;
        let mut all = Vec::new();
        for (thread, wait) in waits.drain(..).enumerate() {
            let next = turns[(thread + 1) % threads].clone();
            all.push(scope.spawn(move || work(thread, wait, next)));
        }
        turns[0].send(())?;
        drop(turns);
        all.into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Ready = Ready {
        marks: 0x1000,
        medium: (0x10_0000, 0x20_0000),
    };

    /// Plays steps of (thread, accesses), after enough others that they count.
    fn play(steps: &[(usize, &[(u64, bool)])]) -> Traced {
        let mut caches = Caches::default();
        let mut step = |thread: u64, accesses: &[(u64, bool)]| {
            caches.see(Access::Data(READY.marks + 1 + thread, 1, true), &READY);
            for &(at, stores) in accesses {
                caches.see(Access::Instruction, &READY);
                caches.see(Access::Data(at, 8, stores), &READY);
            }
            caches.see(Access::Data(READY.marks, 1, true), &READY);
            // What happens between steps is nobody's.
            caches.see(Access::Data(0x5000, 8, true), &READY);
        };
        for thread in 0..2 {
            (0..WARM_UP).for_each(|_| step(thread, &[]));
        }
        for &(thread, accesses) in steps {
            step(thread as u64, accesses);
        }
        caches.found
    }

    #[test]
    fn lines_of_the_trace_are_understood() {
        assert_eq!(access(b"I  04016b80,3\n"), Some(Access::Instruction));
        assert_eq!(access(b" S 1ffe,8\n"), Some(Access::Data(0x1ffe, 8, true)));
        assert_eq!(access(b" M 10,4\n"), Some(Access::Data(0x10, 4, true)));
        assert_eq!(access(b" L 10,4\n"), Some(Access::Data(0x10, 4, false)));
        assert_eq!(access(b"==12== something\n"), None);
    }

    #[test]
    fn a_line_changes_hands_when_it_is_written_elsewhere_or_read_after_that_and_not_before() {
        let (read, write) = (false, true);
        let found = play(&[
            (0, &[(0x2000, read)]),
            (1, &[(0x2000, read)]),  // Both have it: nothing.
            (0, &[(0x2000, write)]), // Taken from the other: 1.
            (0, &[(0x2000, write)]), // Its own.
            (1, &[(0x2008, read)]),  // Written by the other: 2.
            (1, &[(0x2040, write)]), // Another line, first touch.
            (0, &[(0x10_0000, write)]),
            (1, &[(0x10_0000, write)]), // The medium: 1.
            (1, &[(0x5000, read)]),     // Written between steps only.
        ]);
        assert_eq!((found.ops, found.dram, found.medium), (9, 2, 1));
    }

    #[test]
    fn a_lock_is_held_from_its_first_use_to_its_last() {
        let lock = (0x2000, true);
        let work = (0x3000, false);
        let steps: &[(u64, bool)] = &[lock, work, work, lock, (0x4000, false)];
        let found = play(&[(0, steps), (1, steps), (0, steps), (1, steps), (0, steps)]);
        let hot = found.hottest();
        assert_eq!(hot.times, 0.8);
        // Three of five instructions, in four of five steps.
        assert!((hot.held - 0.48).abs() < 1e-9, "{hot:?}");
        assert_eq!(found.slowest(100.0, 1.0), hot);
    }
}

//! Several sequences at once on one engine, each compared with a model of its own.
//!
//! Each thread works in a private directory and in one that all share, under names with a prefix
//! of its own: so what each of them sees and leaves does not depend on the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;

use vfs::{FileSystem, ManualClock, NewKind, NewNode, Time};

use super::op::{Op, generate};
use super::side::{Side, Subtree};
use super::token::encode;
use super::{Config, Failure, Summary, panic_text, step};
use crate::snapshot::{Snapshot, View};
use crate::{Engine, Model, Options};

const SHARED: &[u8] = b"shared";

fn private(thread: u8) -> Vec<u8> {
    format!("private{thread}").into_bytes()
}

fn prefix(thread: u8) -> String {
    format!("t{thread}-")
}

fn mkdir<F: FileSystem>(fs: &F, name: &[u8]) {
    let new = NewNode {
        kind: NewKind::Dir,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(&fs.root(), name, &new)
        .expect("the root takes a directory");
}

fn subtree<F: FileSystem>(fs: &F, thread: u8) -> Subtree<F> {
    let find = |name: &[u8]| {
        fs.lookup(&fs.root(), name)
            .expect("it was made at the start")
    };
    Subtree::of_thread(find(&private(thread)), find(SHARED), prefix(thread))
}

/// Run one sequence in each of the threads.
pub(super) fn run<E: Engine>(
    config: Config,
    seed: u64,
    engine: &E,
) -> Result<Summary, Box<Failure>> {
    all_threads(config, seed, engine).map_err(|what| {
        let token = encode(config, seed);
        let shrunk = "Not shortened: what happens depends on how the threads meet.".to_owned();
        Box::new(Failure {
            token,
            what,
            ops: Vec::new(),
            shrunk,
        })
    })
}

fn all_threads<E: Engine>(config: Config, seed: u64, engine: &E) -> Result<Summary, String> {
    let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
    let fs = engine.make(clock.clone());
    // Threads share the clock: timestamps depend on how they meet.
    let view = View {
        times: false,
        atime: false,
    };
    let models: Vec<Model> = (0..config.threads)
        .map(|_| Model::with_options(clock.clone(), Options::of(fs.limits())))
        .collect();
    mkdir(&fs, SHARED);
    for (thread, model) in (0..).zip(&models) {
        mkdir(&fs, &private(thread));
        mkdir(model, &private(thread));
        mkdir(model, SHARED);
    }

    let barrier = Barrier::new(models.len());
    let results: Vec<Result<Summary, String>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&models)
            .map(|(thread, model)| {
                let ops = generate(config, seed.wrapping_add(u64::from(thread) << 32));
                let worker = Worker {
                    engine,
                    fs: &fs,
                    model,
                    clock: &clock,
                    view,
                    thread,
                };
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    catch_unwind(AssertUnwindSafe(|| worker.run(&ops)))
                        .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))))
                        .map_err(|what| format!("thread {thread}: {what}"))
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|_| Err("a thread died".to_owned())))
            .collect()
    });
    let mut summary = Summary::default();
    for result in results {
        let part = result?;
        summary.ops += part.ops;
        summary.succeeded += part.succeeded;
    }

    compare_all(&fs, &models, view)?;
    let fs = engine.remount(fs);
    summary.names = compare_all(&fs, &models, view)
        .map_err(|what| format!("after unmounting and mounting: {what}"))?;
    Ok(summary)
}

fn compare_all<F: FileSystem>(fs: &F, models: &[Model], view: View) -> Result<usize, String> {
    let mut names = 0;
    for (thread, model) in (0..).zip(models) {
        names += compare(fs, model, view, thread)
            .map_err(|what| format!("what thread {thread} left differs:\n{what}"))?;
    }
    Ok(names)
}

/// Compare what one thread has made; returns the number of names.
fn compare<F: FileSystem>(fs: &F, model: &Model, view: View, thread: u8) -> Result<usize, String> {
    let [is, should] = [of_thread(fs, view, thread), of_thread(model, view, thread)];
    let is = is.map_err(|error| error.to_string())?;
    let should = should.expect("the model can be read");
    for (is, should) in is.iter().zip(&should) {
        if let Some(difference) = is.difference(should) {
            return Err(difference);
        }
    }
    Ok(is.iter().map(Snapshot::len).sum())
}

/// The private directory, and the thread's own names in the shared one.
fn of_thread<F: FileSystem>(fs: &F, view: View, thread: u8) -> vfs::Result<[Snapshot; 2]> {
    let root = fs.root();
    let prefix = prefix(thread);
    let own = |name: &[u8]| name.starts_with(prefix.as_bytes());
    Ok([
        Snapshot::of(fs, &fs.lookup(&root, &private(thread))?, view)?,
        Snapshot::of_names(fs, &fs.lookup(&root, SHARED)?, view, own)?,
    ])
}

/// One thread's view of the run.
struct Worker<'r, E: Engine> {
    engine: &'r E,
    fs: &'r E::Fs,
    model: &'r Model,
    clock: &'r ManualClock,
    view: View,
    thread: u8,
}

impl<E: Engine> Worker<'_, E> {
    fn run(&self, ops: &[Op]) -> Result<Summary, String> {
        let mut left = Side::new(self.fs, subtree(self.fs, self.thread));
        let mut right = Side::new(self.model, subtree(self.model, self.thread));
        let mut summary = Summary::default();
        for (at, op) in ops.iter().enumerate() {
            self.clock.advance(1000);
            match op {
                Op::Settle => self.engine.settle(self.fs),
                Op::Check => drop(compare(self.fs, self.model, self.view, self.thread)?),
                _ => {
                    let done = step(&mut left, &mut right, op, self.engine, self.view)
                        .map_err(|what| format!("operation {at}, {op:?}: {what}"))?;
                    summary.ops += 1;
                    summary.succeeded += usize::from(done);
                }
            }
        }
        Ok(summary)
    }
}

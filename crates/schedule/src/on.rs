//! Builds in which threads can be stopped: who runs, and locks that say when they are waited for.

use crate::{Ended, Task};
use parking_lot::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Whether threads can be stopped.
pub const AVAILABLE: bool = true;

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// It runs, or could.
    Ready,
    /// At its point.
    Stopped,
    /// For a lock; it found it held after so many moves.
    Waiting(u64),
    Ended,
}

#[derive(Default)]
struct State {
    tasks: Vec<Status>,
    running: usize,
    /// How often a task has done something: each may have given a lock back.
    moves: u64,
    deadlock: bool,
}

impl State {
    /// The task that goes on; `None`: all have ended, or none can.
    fn next(&mut self) -> Option<usize> {
        let place = |tasks: &[Status], status| tasks.iter().position(|s| *s == status);
        if let Some(ready) = place(&self.tasks, Status::Ready) {
            return Some(ready);
        }
        let moves = self.moves;
        let waits = |(task, status): (usize, &Status)| match *status {
            Status::Waiting(since) if since < moves => Some((since, task)),
            _ => None,
        };
        if let Some((_, task)) = self.tasks.iter().enumerate().filter_map(waits).min() {
            return Some(task);
        }
        let stopped = place(&self.tasks, Status::Stopped)?;
        self.tasks[stopped] = Status::Ready;
        Some(stopped)
    }
}

/// Which thread runs.
#[derive(Default)]
struct Board {
    state: parking_lot::Mutex<State>,
    changed: Condvar,
}

impl Board {
    /// Wait until it is this task's turn.
    fn await_turn(&self, task: usize, mut state: MutexGuard<'_, State>) {
        let others = |state: &mut State| state.running != task && !state.deadlock;
        self.changed.wait_while(&mut state, others);
        let (dead, tasks) = (state.deadlock, state.tasks.clone());
        drop(state);
        assert!(!dead, "tasks wait for each other: {tasks:?}");
    }

    /// The task is in another state, and lets others go on. Returns when it is its turn again.
    /// `moved`: it has done something since it began to run.
    fn hand_over(&self, task: usize, moved: bool, status: impl FnOnce(u64) -> Status) {
        let mut state = self.state.lock();
        state.moves += u64::from(moved);
        let status = status(state.moves);
        state.tasks[task] = status;
        match state.next() {
            Some(next) => state.running = next,
            None => state.deadlock = state.tasks.iter().any(|s| *s != Status::Ended),
        }
        self.changed.notify_all();
        if status != Status::Ended {
            self.await_turn(task, state);
        }
    }
}

/// The task that a thread is.
struct Own {
    board: Arc<Board>,
    number: usize,
    /// Behind so many points it stops.
    stop: Option<u32>,
    passed: Cell<u32>,
    stopped: Cell<Option<&'static str>>,
    waited: Cell<bool>,
}

thread_local!(static OWN: RefCell<Option<Own>> = const { RefCell::new(None) });

impl Own {
    fn pass(&self, name: &'static str) {
        let passed = self.passed.replace(self.passed.get() + 1);
        if self.stop == Some(passed) {
            self.stopped.set(Some(name));
            self.board.hand_over(self.number, true, |_| Status::Stopped);
        }
    }

    /// What it waits for is not there.
    fn wait(&self, moved: bool) {
        self.waited.set(true);
        self.board.hand_over(self.number, moved, Status::Waiting);
    }

    /// It is there.
    fn goes_on(&self) {
        self.board.state.lock().tasks[self.number] = Status::Ready;
    }
}

/// A place in an operation at which a thread can be stopped.
pub fn point(name: &'static str) {
    OWN.with_borrow(|own| {
        if let Some(own) = own {
            own.pass(name);
        }
    });
}

/// Attempt until it succeeds, and let the other tasks go on meanwhile; `None`: this thread is no
/// task.
fn attempt<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    OWN.with_borrow(|own| {
        let own = own.as_ref()?;
        let mut moved = true;
        loop {
            if let Some(done) = attempt() {
                own.goes_on();
                return Some(done);
            }
            own.wait(moved);
            moved = false;
        }
    })
}

/// How a loop waits for another thread that holds no lock of this crate, or has a lock of the
/// loop's own.
#[derive(Default)]
pub struct Retry {
    waits: bool,
}

impl Retry {
    /// Let others go on.
    pub fn again(&mut self) {
        let moved = !std::mem::replace(&mut self.waits, true);
        OWN.with_borrow(|own| match own {
            Some(own) => own.wait(moved),
            None => std::thread::yield_now(),
        });
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        if self.waits {
            OWN.with_borrow(|own| own.iter().for_each(Own::goes_on));
        }
    }
}

/// A lock that one thread has at a time.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    /// Lock it, as soon as nobody has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let free = self.0.try_lock();
        free.or_else(|| attempt(|| self.0.try_lock()))
            .unwrap_or_else(|| self.0.lock())
    }

    /// Lock it, if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// The value, which nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// A lock that one thread has for writing, or several for reading.
#[derive(Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(parking_lot::RwLock::new(value))
    }

    /// Lock it for reading, as soon as nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let free = self.0.try_read();
        free.or_else(|| attempt(|| self.0.try_read()))
            .unwrap_or_else(|| self.0.read())
    }

    /// Lock it for reading, if nobody writes or waits to.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    /// Lock it for writing, as soon as nobody has it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let free = self.0.try_write();
        free.or_else(|| attempt(|| self.0.try_write()))
            .unwrap_or_else(|| self.0.write())
    }

    /// Lock it for writing, if nobody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write()
    }

    /// The value, which nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// Take a lock that is mostly given back before a thread could fall asleep. Nobody looks: it stays
/// as it is while this thread runs.
pub fn write_soon<T>(lock: &RwLock<T>, _looks: u32) -> RwLockWriteGuard<'_, T> {
    lock.write()
}

/// Give a lock to whoever waits for it, and take it again behind them.
pub fn give_way<T>(mutex: &Mutex<T>, guard: &mut MutexGuard<'_, T>) {
    if OWN.with_borrow(Option::is_none) {
        return MutexGuard::bump(guard);
    }
    MutexGuard::unlocked(guard, || {
        OWN.with_borrow(|own| own.iter().for_each(|own| own.wait(true)));
        // Once it is free nobody else runs, so it can be taken without waiting.
        attempt(|| mutex.0.try_lock().map(drop));
    });
}

/// Ends a task, also one that panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let own = OWN.take().expect("a task is one to its end");
        own.board.hand_over(own.number, true, |_| Status::Ended);
        OWN.set(None);
    }
}

fn run_one<R>(board: Arc<Board>, number: usize, task: Task<'_, R>) -> Ended<R> {
    OWN.set(Some(Own {
        board: board.clone(),
        number,
        stop: task.stop,
        passed: Cell::new(0),
        stopped: Cell::new(None),
        waited: Cell::new(false),
    }));
    let _end = End;
    board.await_turn(number, board.state.lock());
    let result = (task.work)();
    OWN.with_borrow(|own| {
        let own = own.as_ref().expect("a task is one to its end");
        Ended {
            result,
            stopped: own.stopped.get(),
            passed: own.passed.get(),
            waited: own.waited.get(),
        }
    })
}

/// Run tasks, each on a thread of its own, one at a time. Returns what became of each.
///
/// # Panics
/// A task panics, or all that are left wait for each other.
pub fn run<R: Send>(tasks: Vec<Task<'_, R>>) -> Vec<Ended<R>> {
    let board = Arc::new(Board::default());
    board.state.lock().tasks = vec![Status::Ready; tasks.len()];
    std::thread::scope(|scope| {
        let spawn = |(number, task)| {
            let board = board.clone();
            scope.spawn(move || run_one(board, number, task))
        };
        let threads: Vec<_> = tasks.into_iter().enumerate().map(spawn).collect();
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let ended = joined.into_iter();
        ended
            .map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests;

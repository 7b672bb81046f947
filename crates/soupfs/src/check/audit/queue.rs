//! Work shared between threads: each has a stack of its own and gives from it when others starve.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Tasks that no thread has yet.
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    wake: Condvar,
    /// Threads that wait. Changed under the lock, read without it: a stale value delays sharing
    /// by one task.
    waiting: AtomicUsize,
}

struct Inner<T> {
    tasks: Vec<T>,
    /// Threads that work or wait.
    threads: usize,
    /// Nothing is left, or a thread has failed.
    over: bool,
}

impl<T: Send> Queue<T> {
    pub(super) fn new(tasks: Vec<T>) -> Queue<T> {
        let inner = Mutex::new(Inner {
            tasks,
            threads: 0,
            over: false,
        });
        Queue {
            inner,
            wake: Condvar::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Add a task; before anybody works.
    pub(super) fn push(&self, task: T) {
        self.inner.lock().tasks.push(task);
    }

    /// Run tasks until there are none anywhere. `step` may push further ones.
    pub(super) fn work(&self, mut step: impl FnMut(T, &mut Vec<T>)) {
        self.inner.lock().threads += 1;
        let _guard = Guard(self);
        let mut own = Vec::new();
        while let Some(task) = own.pop().or_else(|| self.take()) {
            step(task, &mut own);
            if own.len() > 1 && self.waiting.load(Relaxed) > 0 {
                self.share(&mut own);
            }
        }
    }

    /// Give away the older half: tasks near the root, which bring most work with them.
    fn share(&self, own: &mut Vec<T>) {
        let half = own.len() / 2;
        self.inner.lock().tasks.extend(own.drain(..half));
        self.wake.notify_all();
    }

    fn take(&self) -> Option<T> {
        let mut inner = self.inner.lock();
        loop {
            if inner.over {
                return None;
            }
            if let Some(task) = inner.tasks.pop() {
                return Some(task);
            }
            // Whoever waits has nothing: if all do there is nothing. A thread that comes later
            // finds it over.
            if self.waiting.fetch_add(1, Relaxed) + 1 == inner.threads {
                inner.over = true;
                self.wake.notify_all();
                return None;
            }
            self.wake.wait(&mut inner);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }
}

/// Lets nobody wait for a thread that has ended, whichever way.
struct Guard<'a, T>(&'a Queue<T>);

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.inner.lock().over = true;
        self.0.wake.notify_all();
    }
}

/// The results of `work` on up to `threads` threads, of which the caller's is one. If the system
/// gives fewer, these do it all.
pub(super) fn on_threads<R: Send>(threads: usize, work: impl Fn() -> R + Sync) -> Vec<R> {
    let parts = Mutex::new(Vec::new());
    let run = || {
        let part = work();
        parts.lock().push(part);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if let Err(why) = std::thread::Builder::new().spawn_scoped(scope, run) {
                log::warn!("the audit goes on with fewer threads: {why}");
                break;
            }
        }
        run();
    });
    parts.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_task_runs_once_however_many_threads_there_are() {
        for threads in [1, 2, 7] {
            let queue = Queue::new(vec![12_u64]);
            let done = AtomicU64::new(0);
            let parts = on_threads(threads, || {
                queue.work(|depth, own| {
                    done.fetch_add(1, Relaxed);
                    own.extend((0..2 * u64::from(depth > 0)).map(|_| depth - 1));
                });
            });
            assert_eq!((parts.len(), done.into_inner()), (threads, (1 << 13) - 1));
        }
    }
}

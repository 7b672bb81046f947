//! Work shared between threads: each has a stack of its own and gives from it when others starve.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Tasks that no thread has yet.
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    wake: Condvar,
    /// Threads that wait. Read without the lock: a stale value delays sharing by one task.
    waiting: AtomicUsize,
    threads: usize,
}

struct Inner<T> {
    tasks: Vec<T>,
    /// Nothing is left, or a thread has failed.
    over: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(tasks: Vec<T>, threads: usize) -> Queue<T> {
        let inner = Mutex::new(Inner { tasks, over: false });
        Queue {
            inner,
            wake: Condvar::new(),
            waiting: AtomicUsize::new(0),
            threads,
        }
    }

    /// Run tasks until there are none anywhere. `step` may push further ones.
    pub(super) fn work(&self, mut step: impl FnMut(T, &mut Vec<T>)) {
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
            if self.waiting.fetch_add(1, Relaxed) + 1 == self.threads {
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

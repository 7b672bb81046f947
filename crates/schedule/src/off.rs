//! Builds in which nothing stops.

use crate::{Ended, Task};
use parking_lot::{MutexGuard, RwLockWriteGuard};

pub use parking_lot::{Mutex, RwLock};

/// Whether threads can be stopped.
pub const AVAILABLE: bool = false;

/// A place in an operation at which a thread can be stopped.
#[inline(always)]
pub fn point(_name: &'static str) {}

/// How a loop waits for another thread that holds no lock of this crate, or has a lock of the
/// loop's own.
#[derive(Default)]
pub struct Retry {}

impl Retry {
    /// Let others go on.
    #[inline]
    pub fn again(&mut self) {
        std::thread::yield_now();
    }
}

/// Take a lock that is mostly given back before a thread could fall asleep: look so often whether
/// it is.
#[inline]
pub fn write_soon<T>(lock: &RwLock<T>, looks: u32) -> RwLockWriteGuard<'_, T> {
    if let Some(guard) = lock.try_write() {
        return guard;
    }
    for _ in 0..looks {
        std::hint::spin_loop();
        if !lock.is_locked()
            && let Some(guard) = lock.try_write()
        {
            return guard;
        }
    }
    lock.write()
}

/// Give a lock to whoever waits for it, and take it again behind them.
pub fn give_way<T>(_mutex: &Mutex<T>, guard: &mut MutexGuard<'_, T>) {
    MutexGuard::bump(guard);
}

/// Run tasks, one after another.
pub fn run<R: Send>(tasks: Vec<Task<'_, R>>) -> Vec<Ended<R>> {
    let ended = |task: Task<'_, R>| Ended {
        result: (task.work)(),
        stopped: None,
        passed: 0,
        waited: false,
    };
    tasks.into_iter().map(ended).collect()
}

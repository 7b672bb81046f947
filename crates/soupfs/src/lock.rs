//! The lock for sections of a few instructions.
//!
//! Taking a blocking lock and giving it back are two atomic exchanges; giving back a spin lock is a
//! store. A create takes several such locks, almost never contended, and atomic exchanges are most
//! of what it costs. A holder that loses its processor is waited for by yielding.
//!
//! Locks that are held for longer (a stripe, a file, the persister's core) block. What takes longer
//! than a few instructions, taking space or following an index, says so ([`takes_long`]): while a
//! spin lock is held that is a bug, which builds with debug assertions find.

use schedule::Retry;
use std::ops::{Deref, DerefMut};

/// A spin lock that yields.
#[derive(Default)]
pub struct SpinLock<T>(spin::mutex::SpinMutex<T, spin::Yield>);

/// A locked [`SpinLock`].
pub struct SpinGuard<'a, T> {
    guard: spin::mutex::SpinMutexGuard<'a, T, spin::Yield>,
    _held: Held,
}

impl<T> SpinLock<T> {
    /// A lock around a value.
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock(spin::mutex::SpinMutex::new(value))
    }

    /// The value, which nobody else has.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Lock it. Whoever waits yields.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let mut retry = Retry::default();
        loop {
            if let Some(guard) = self.0.try_lock() {
                let _held = Held::new();
                return SpinGuard { guard, _held };
            }
            retry.again();
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    thread_local!(static HELD: Cell<u32> = const { Cell::new(0) });

    /// The calling thread holds a spin lock.
    pub struct Held;

    impl Held {
        pub fn new() -> Held {
            HELD.set(HELD.get() + 1);
            Held
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }

    /// # Panics
    /// The calling thread holds a spin lock.
    pub fn takes_long() {
        assert_eq!(HELD.get(), 0, "a spin lock is held over something long");
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// Nothing is counted.
    pub struct Held;

    impl Held {
        #[inline(always)]
        pub fn new() -> Held {
            Held
        }
    }

    /// Nothing is checked.
    #[inline(always)]
    pub fn takes_long() {}
}

use held::Held;
pub use held::takes_long;

//! The lock for sections of a few instructions.
//!
//! Taking a blocking lock and giving it back are two atomic exchanges; giving back a spin lock is a
//! store. A create takes several such locks, almost never contended, and atomic exchanges are most of
//! what it costs. A holder that loses its processor is waited for by yielding.
//!
//! Locks that are held for longer (a stripe, a file, the persister's core) block.

/// A spin lock that yields.
pub type SpinLock<T> = spin::mutex::SpinMutex<T, spin::Yield>;

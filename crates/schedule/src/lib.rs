//! Schedules of a few threads: one is stopped in the middle of an operation, at a named point,
//! while others go on; the same each time.
//!
//! An engine names its points with [`point`] and locks with the [`Mutex`] and [`RwLock`] of this
//! crate. A test hands [`run`] some tasks, and says behind how many points each stops. Then one
//! thread runs at a time:
//!
//! 1. a task runs until it stops at its point, meets a lock that is held, or ends;
//! 2. then the first one goes on that has not begun, or whose lock may have been given back;
//! 3. if there is none, the first that stopped goes on;
//! 4. if there is none either, all wait for each other: that is a deadlock, and a panic.
//!
//! So nothing is waited for by time, and what a schedule does depends on the tasks alone. Threads
//! that no schedule has pass points and take locks as ever. So do the tasks' own locks of other
//! kinds: nobody may be stopped with one of these held that others wait for.
//!
//! Without the feature `points` all of this is nothing: a point is an empty function, the locks are
//! those of `parking_lot`, and [`run`] runs one task after another.
//!
//! [`shortage`] is apart from that: allocations that fail in a thread.

#[cfg(not(feature = "points"))]
mod off;
#[cfg(feature = "points")]
mod on;
pub mod shortage;

#[cfg(not(feature = "points"))]
pub use off::*;
#[cfg(feature = "points")]
pub use on::*;

pub use parking_lot::{MutexGuard, RwLockWriteGuard};

/// A thread of a schedule.
pub struct Task<'a, R> {
    /// It stops at the point that comes behind so many others, if it passes so many.
    #[cfg_attr(
        not(feature = "points"),
        expect(dead_code, reason = "nothing stops there")
    )]
    stop: Option<u32>,
    work: Box<dyn FnOnce() -> R + Send + 'a>,
}

impl<'a, R> Task<'a, R> {
    /// A task that stops nowhere.
    pub fn new(work: impl FnOnce() -> R + Send + 'a) -> Task<'a, R> {
        let work = Box::new(work);
        Task { stop: None, work }
    }

    /// A task that stops at the point that comes behind `points` others, if it passes so many.
    pub fn stopping(points: u32, work: impl FnOnce() -> R + Send + 'a) -> Task<'a, R> {
        Task {
            stop: Some(points),
            ..Task::new(work)
        }
    }
}

/// What became of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended<R> {
    /// What it returned.
    pub result: R,
    /// The point at which it stopped.
    pub stopped: Option<&'static str>,
    /// Points that it passed.
    pub passed: u32,
    /// It met a lock that another one held.
    pub waited: bool,
}

//! Where the time comes from.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::Time;

/// A source of time stamps.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Time;

    /// The time now to the nanosecond, for what is shorter than a tick of [`Clock::now`].
    fn exact(&self) -> Time {
        self.now()
    }
}

/// The system's real-time clock in its coarse form, as kernel file systems use it.
///
/// Reading it costs about 3 ns (the precise form costs ten times that). It advances with the timer
/// tick, every 1 to 10 ms: changes in quick succession bear the same time.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Time::new(now.tv_sec, now.tv_nsec as u32)
    }

    fn exact(&self) -> Time {
        let now = clock_gettime(ClockId::Realtime);
        Time::new(now.tv_sec, now.tv_nsec as u32)
    }
}

/// A clock that stands still until it is set: for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Time) -> ManualClock {
        ManualClock(AtomicI64::new(start.0))
    }

    /// Let it show `time`.
    pub fn set(&self, time: Time) {
        self.0.store(time.0, Ordering::SeqCst);
    }

    /// Let `nanos` nanoseconds pass.
    pub fn advance(&self, nanos: i64) {
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::SeqCst))
    }
}

//! Back-pressure: how much may be pending, and how callers are slowed down before it is too much.
//!
//! Three things bound what is pending. DRAM and the journal are hard limits: at either callers
//! wait. The third is time: what is pending is to be durable within the bound, so from the pace at
//! which the persister took operations lately follows how many may be pending. From half of any of
//! the three on, each operation is delayed, by as much of the persister's pace as the excess
//! demands, so that the rates meet.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The part of a limit from which on callers are slowed down.
const GENTLE: f64 = 0.5;
/// Delay of an operation at the limit, in what it takes the persister: as many callers are slowed
/// down to its rate.
const STEEP: f64 = 16.0;
/// Delays are put together to at least this: shorter ones cannot be slept.
const DELAY_MIN: Duration = Duration::from_micros(50);
/// No caller is delayed for longer at once.
const DELAY_MAX: Duration = Duration::from_millis(10);
/// Nanoseconds that an operation takes the persister, until it is known.
const PACE_FIRST: u64 = 1_000;
/// More are not believed: the clock was set.
const PACE_MAX: u64 = 1_000_000;
/// A sweep with fewer operations says more of syncs than of operations.
const SWEEP_MIN: i64 = 1024;
/// A shorter time is not known well: the clock is coarse.
const TIME_MIN: Duration = Duration::from_millis(20);

/// An amount of work: operations, and the journal words that these may take at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Operations.
    pub ops: i64,
    /// Words.
    pub words: i64,
}

/// How much may be pending.
pub struct Pressure {
    /// Hard: from the DRAM that may be used, and from the journal.
    pub full: Load,
    /// Words that a shard's threads may note between two looks at the backlog.
    pub unseen: i64,
    bound: Duration,
    /// Nanoseconds that an operation took the persister lately.
    pace: AtomicU64,
}

impl Pressure {
    /// For a journal of this capacity, noted by threads of so many `shards`. All pending operations
    /// together fit into it, so any part of them does: of its words, 3/8 may be noted and seen,
    /// 1/16 noted and not seen, 1/2 be pointers to blocks that operations under way are changing,
    /// and 1/16 is for their names.
    pub fn new(ops_max: i64, capacity: usize, shards: usize, bound: Duration) -> Pressure {
        let capacity = capacity as i64;
        Pressure {
            full: Load {
                ops: ops_max,
                words: capacity * 3 / 8,
            },
            unseen: capacity / 16 / shards as i64,
            bound,
            pace: AtomicU64::new(PACE_FIRST),
        }
    }

    /// The part of the hard limits that is used.
    pub fn fill(&self, pending: Load) -> f64 {
        let ops = pending.ops as f64 / self.full.ops as f64;
        ops.max(pending.words as f64 / self.full.words as f64)
    }

    /// The part of all limits that is used. What comes while a sweep runs waits for the next one:
    /// twice as long as what is pending takes.
    fn part(&self, pending: Load) -> f64 {
        let late = 2.0 * pending.ops as f64 * self.pace.load(Relaxed) as f64;
        self.fill(pending).max(late / self.bound.as_nanos() as f64)
    }

    /// Whether callers are to be slowed down.
    pub fn is_high(&self, pending: Load) -> bool {
        self.part(pending) >= GENTLE
    }

    /// How long a caller that noted so many operations is to pause for them; `None`: it is not
    /// worth a pause.
    pub fn delay(&self, pending: Load, ops: i64) -> Option<Duration> {
        let excess = (self.part(pending).min(1.0) - GENTLE).max(0.0) / (1.0 - GENTLE);
        let each = Duration::from_nanos(self.pace.load(Relaxed));
        let delay = each.mul_f64(STEEP * excess * excess * ops as f64);
        (delay > DELAY_MIN).then(|| delay.min(DELAY_MAX))
    }

    /// A sweep took so many operations in this time.
    pub fn learn(&self, ops: i64, took: Duration) {
        if ops < SWEEP_MIN {
            return;
        }
        let before = self.pace.load(Relaxed);
        let pace = took.max(TIME_MIN).as_nanos() as u64 / ops as u64;
        let pace = match took < TIME_MIN {
            true => pace.min(before),
            false => pace.min(PACE_MAX),
        };
        self.pace.store((3 * before + pace) / 4, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(1);

    fn pressure() -> Pressure {
        Pressure::new(100_000, 1_000_000, 64, BOUND)
    }

    fn ops(ops: i64) -> Load {
        Load { ops, words: 0 }
    }

    #[test]
    fn callers_are_slowed_down_from_half_of_a_limit_on() {
        let pressure = pressure();
        assert!(!pressure.is_high(ops(49_000)) && pressure.is_high(ops(50_000)));
        let words = |words| Load { ops: 0, words };
        assert!(!pressure.is_high(words(187_000)) && pressure.is_high(words(187_500)));
        assert_eq!(pressure.delay(ops(50_000), 64), None);
        let delays = [65_000, 80_000, 100_000].map(|n| pressure.delay(ops(n), 64));
        assert!(
            delays.is_sorted() && delays[0] > Some(DELAY_MIN),
            "{delays:?}"
        );
        // At the limit, sixteen callers together are as fast as the persister.
        let most = Duration::from_nanos(PACE_FIRST * 64 * 16);
        assert_eq!(delays[2], Some(most));
    }

    #[test]
    fn a_slow_persister_lets_less_be_pending() {
        let pressure = pressure();
        assert!(!pressure.is_high(ops(25_000)));
        for _ in 0..20 {
            pressure.learn(10_000, Duration::from_millis(100)); // 10 us each
        }
        // 25,000 take a quarter of a second, and what comes meanwhile half a second.
        assert!(pressure.is_high(ops(25_500)) && !pressure.is_high(ops(24_000)));
        assert!(pressure.fill(ops(60_000)) < 1.0, "time alone stops nobody");
        let longest = pressure.delay(ops(60_000), 64);
        assert!(longest > Some(Duration::from_millis(8)), "{longest:?}");
        for _ in 0..20 {
            pressure.learn(1_000_000, Duration::from_millis(100));
        }
        assert!(!pressure.is_high(ops(45_000)));
    }

    #[test]
    fn what_cannot_be_told_of_the_pace_is_not_believed() {
        let pressure = pressure();
        let pace = || pressure.pace.load(Relaxed);
        pressure.learn(100, Duration::from_millis(100)); // two syncs of a disk
        pressure.learn(5_000, Duration::ZERO); // less than a tick of the clock
        assert_eq!(pace(), PACE_FIRST);
        for _ in 0..50 {
            pressure.learn(5_000, Duration::from_secs(86_400)); // the clock was set
        }
        assert!(pace() <= PACE_MAX);
        assert_eq!(pressure.delay(ops(90_000), 64), Some(DELAY_MAX));
    }
}

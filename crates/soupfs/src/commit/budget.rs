//! The budget: how much is pending, how much may be, and how much a batch may gather. All of it in
//! words of the journal.
//!
//! What is pending is what was noted less what batches have taken. Each operation notes how many
//! words of the consistent view it may change at most, so
//!
//! ```text
//! any batch  <=  all that is pending  <=  the journal's capacity
//! ```
//!
//! whatever has to be in one batch. Of the capacity 3/8 may be noted and seen; 1/16 noted and not
//! seen, as threads look only now and then; 1/2 be pointers to blocks that operations under way are
//! changing; and 1/16 is for their names.
//!
//! What is pending also takes DRAM, so many bytes for each word. That and the journal are a hard
//! limit: at it callers wait. Time is a gentle one: what is pending is to be durable within the
//! bound, so from the pace at which the persister took words lately follows how many may be
//! pending. From half of either limit on, each caller is delayed, by as much of the persister's
//! pace as the excess demands, so that the rates meet.

use crate::commit::notes::{Notes, SHARDS};
use crate::options::Knobs;
use pmem::Domain;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// DRAM for each word that is pending: bytes. A file that is made takes one word, and so much; with
/// a block of contents it takes two.
const BYTES_PER_WORD: u64 = 320;
/// Words that may be pending whatever the DRAM.
const WORDS_MIN: u64 = 1024;
/// Words between two looks at the backlog, per shard.
const LOOK_EVERY: i64 = 128;
/// Words that a batch gathers where fences are cheap: some thousand operations. Those who wait for
/// the backlog to shrink, or for the next batch, wait for no more.
const BATCH_WORDS: usize = 12_288;

/// The part of a limit from which on callers are slowed down.
const GENTLE: f64 = 0.5;
/// Delay of a word at the limit, in what it takes the persister: as many callers are slowed down to
/// its rate.
const STEEP: f64 = 16.0;
/// Delays are put together to at least this: shorter ones cannot be slept.
const DELAY_MIN: Duration = Duration::from_micros(50);
/// No caller is delayed for longer at once.
const DELAY_MAX: Duration = Duration::from_millis(10);
/// Nanoseconds that a word takes the persister, until it is known.
const PACE_FIRST: u64 = 500;
/// More are not believed: the clock was set.
const PACE_MAX: u64 = 1_000_000;
/// A sweep with fewer words says more of syncs than of words.
const SWEEP_MIN: i64 = 1024;
/// A shorter time is not known well: the clock is coarse.
const TIME_MIN: Duration = Duration::from_millis(20);

/// What bounds the backlog besides the journal.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// DRAM for what is pending: bytes.
    pub memory: u64,
    /// How late the consistent view may be.
    pub bound: Duration,
    /// These may say otherwise.
    pub knobs: Knobs,
}

/// How much is pending, how much may be, and how much a batch may gather: words of the journal.
pub struct Budget {
    /// What was noted since the mount.
    pub notes: Notes,
    /// What batches have taken of it; changed by whoever has the lane.
    taken: AtomicI64,
    /// Most that may be pending.
    max: i64,
    /// Most that a batch gathers by itself; what that pulls in comes on top.
    batch: usize,
    bound: Duration,
    /// Nanoseconds that a word took the persister lately.
    pace: AtomicU64,
}

impl Budget {
    /// For a journal of this capacity, in a pool of this domain. On a disk a batch costs two syncs,
    /// whatever is in it, so it gathers half the journal; elsewhere fences cost nothing.
    pub fn new(capacity: usize, domain: Domain, limits: Limits) -> Budget {
        let Limits {
            memory,
            bound,
            knobs,
        } = limits;
        let dram = (memory / BYTES_PER_WORD).max(WORDS_MIN);
        let max = knobs.pending_max.unwrap_or(dram);
        let usual = match domain {
            Domain::Page => usize::MAX,
            Domain::Line | Domain::Cache => BATCH_WORDS,
        };
        let unseen = capacity / 16 / SHARDS;
        Budget {
            notes: Notes::new(LOOK_EVERY.min(unseen as i64)),
            taken: AtomicI64::new(0),
            max: max.min(capacity as u64 * 3 / 8).max(1) as i64,
            batch: knobs.batch_words.unwrap_or(usual).min(capacity / 2),
            bound,
            pace: AtomicU64::new(PACE_FIRST),
        }
    }

    /// What is pending.
    pub fn pending(&self) -> i64 {
        self.notes.words() - self.taken.load(Relaxed)
    }

    /// Most that may be pending: at this callers wait.
    pub fn max(&self) -> i64 {
        self.max
    }

    /// Whether callers wait.
    pub fn is_full(&self) -> bool {
        self.pending() >= self.max
    }

    /// Whether callers are slowed down.
    pub fn is_high(&self) -> bool {
        self.part(self.pending()) >= GENTLE
    }

    /// Whether a batch with so many words is to be published before it gathers more.
    pub fn fills_batch(&self, words: usize) -> bool {
        words >= self.batch
    }

    /// Words that a batch with so many may gather yet.
    pub fn room(&self, words: usize) -> usize {
        self.batch.saturating_sub(words)
    }

    /// What batches have taken since the mount.
    pub fn taken(&self) -> i64 {
        self.taken.load(Relaxed)
    }

    /// A batch has taken so many words, no more than were noted for what is in it. So those who
    /// wait for the backlog to shrink go on before the sweep ends.
    pub fn take(&self, words: u64) {
        self.taken.fetch_add(words as i64, Relaxed);
    }

    /// A sweep has taken all that was noted up to here: also what was cancelled, counted for two,
    /// or noted with an inode.
    pub fn take_up_to(&self, noted: i64) {
        self.taken.fetch_max(noted, Relaxed);
    }

    /// The part of all limits that is used. What comes while a sweep runs waits for the next one:
    /// twice as long as what is pending takes.
    fn part(&self, pending: i64) -> f64 {
        let late = 2.0 * pending as f64 * self.pace.load(Relaxed) as f64;
        let full = pending as f64 / self.max as f64;
        full.max(late / self.bound.as_nanos() as f64)
    }

    /// How long a caller that noted so many words is to pause for them; `None`: it is not worth a
    /// pause.
    pub fn delay(&self, words: i64) -> Option<Duration> {
        self.delay_at(self.pending(), words)
    }

    fn delay_at(&self, pending: i64, words: i64) -> Option<Duration> {
        let excess = (self.part(pending).min(1.0) - GENTLE).max(0.0) / (1.0 - GENTLE);
        let each = Duration::from_nanos(self.pace.load(Relaxed));
        let delay = each.mul_f64(STEEP * excess * excess * words.max(0) as f64);
        (delay > DELAY_MIN).then(|| delay.min(DELAY_MAX))
    }

    /// A sweep took so many words in this time.
    pub fn learn(&self, words: i64, took: Duration) {
        if words < SWEEP_MIN {
            return;
        }
        let before = self.pace.load(Relaxed);
        let pace = took.max(TIME_MIN).as_nanos() as u64 / words as u64;
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

    fn budget(capacity: usize) -> Budget {
        let limits = Limits {
            memory: 100_000 * BYTES_PER_WORD,
            bound: Duration::from_secs(1),
            knobs: Knobs::default(),
        };
        Budget::new(capacity, Domain::Cache, limits)
    }

    fn is_high(budget: &Budget, pending: i64) -> bool {
        budget.part(pending) >= GENTLE
    }

    #[test]
    fn callers_are_slowed_down_from_half_of_a_limit_on() {
        let small = budget(100_000);
        assert!(!is_high(&small, 18_000) && is_high(&small, 18_750));
        let budget = budget(1_000_000);
        assert!(!is_high(&budget, 49_000) && is_high(&budget, 50_000));
        assert_eq!(budget.delay_at(50_000, 64), None);
        let delays = [70_000, 80_000, 100_000].map(|n| budget.delay_at(n, 64));
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
        let budget = budget(1_000_000);
        assert!(!is_high(&budget, 25_000));
        for _ in 0..20 {
            budget.learn(10_000, Duration::from_millis(100)); // 10 us each
        }
        // 25,000 take a quarter of a second, and what comes meanwhile half a second.
        assert!(is_high(&budget, 25_500) && !is_high(&budget, 24_000));
        let longest = budget.delay_at(60_000, 64);
        assert!(longest > Some(Duration::from_millis(8)), "{longest:?}");
        for _ in 0..20 {
            budget.learn(1_000_000, Duration::from_millis(100));
        }
        assert!(!is_high(&budget, 45_000));
    }

    #[test]
    fn what_cannot_be_told_of_the_pace_is_not_believed() {
        let budget = budget(1_000_000);
        let pace = || budget.pace.load(Relaxed);
        budget.learn(100, Duration::from_millis(100)); // two syncs of a disk
        budget.learn(5_000, Duration::ZERO); // less than a tick of the clock
        assert_eq!(pace(), PACE_FIRST);
        for _ in 0..50 {
            budget.learn(5_000, Duration::from_secs(86_400)); // the clock was set
        }
        assert!(pace() <= PACE_MAX);
        assert_eq!(budget.delay_at(90_000, 64), Some(DELAY_MAX));
    }

    #[test]
    fn what_may_be_pending_leaves_room_in_the_journal() {
        for capacity in [512, 10_000, 262_144, 4 << 20] {
            let budget = budget(capacity);
            let unseen = SHARDS as i64 * budget.notes.look_every();
            let blocks = capacity as i64 / 2;
            let names = capacity as i64 / 16;
            assert!(budget.max + unseen + blocks + names <= capacity as i64);
            assert!(budget.batch <= capacity / 2);
        }
    }
}

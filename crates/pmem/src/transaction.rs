//! Transactions of memory: some words change at once for everybody who looks, if what they were
//! decided upon still is as it was (HTMFS §3.1).
//!
//! In domain `cache` what is visible is durable (M8), so a transaction's stores become durable at
//! once, too: a crash finds all of them or none. In the other domains a store may be durable alone,
//! and the instruction that makes it so would abort a hardware transaction. There only a
//! [`Journal`](crate::Journal) will do.
//!
//! A [`Transaction`] is put together, and then tried:
//!
//! ```text
//! versions   numbers that must be as they were seen, and go up by two: even before and behind it
//! expected   other words that must have a value
//! memory     words of DRAM to store
//! words      words of the pool to store
//! ```
//!
//! Who tries it is a [`Transactions`]: [`Hardware`], or [`Software`], which no image in a file may
//! be trusted to. An attempt either has its whole effect or ends in an [`Abort`] without any.
//! *Nobody waits in an attempt*, and none is sure to succeed: whoever tries has another way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::fault::{Fault, injected};
use crate::stats::Counter;
use crate::{LINE, Pool, Rtm};

mod attempt;

/// What an attempt is made of.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Why an attempt had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// Somebody has changed what it was decided upon, or was at the same lines.
    Conflict,
    /// It has more lines than a transaction may: another attempt will not do either.
    Capacity,
    /// Anything else, say an interrupt.
    Other,
}

impl Abort {
    /// All causes.
    pub const ALL: [Abort; 3] = [Abort::Conflict, Abort::Capacity, Abort::Other];
}

/// A word of DRAM, and a value.
type Word<'a> = (&'a AtomicU64, u64);

/// What is to change at once, and what it was decided upon.
#[derive(Default)]
pub struct Transaction<'a> {
    versions: Vec<Word<'a>>,
    expected: Vec<Word<'a>>,
    memory: Vec<Word<'a>>,
    words: Vec<(u64, u64)>,
}

impl<'a> Transaction<'a> {
    /// Of words of the pool alone: offsets and values.
    pub fn of_words(words: Vec<(u64, u64)>) -> Transaction<'a> {
        Transaction {
            words,
            ..Transaction::default()
        }
    }

    /// A number that was `seen` when the transaction was decided upon, and goes up by two with it.
    ///
    /// # Panics
    /// If it was odd: then it was just changing.
    pub fn version(&mut self, number: &'a AtomicU64, seen: u64) {
        assert!(seen.is_multiple_of(2), "it was just changing");
        self.versions.push((number, seen));
    }

    /// A word of DRAM that must have this value.
    pub fn expect(&mut self, word: &'a AtomicU64, value: u64) {
        self.expected.push((word, value));
    }

    /// A word of DRAM gets this value.
    pub fn set_memory(&mut self, word: &'a AtomicU64, value: u64) {
        self.memory.push((word, value));
    }

    /// The word at a byte offset of the pool gets this value.
    pub fn set(&mut self, off: u64, value: u64) {
        self.words.push((off, value));
    }

    /// Bytes from an offset of the pool on get these values; the other bytes of their words stay as
    /// they are, or as the transaction has them. At least one byte.
    pub fn write(&mut self, pool: &Pool, off: u64, bytes: &[u8]) {
        let mut words = BTreeMap::new();
        let last = off + bytes.len() as u64 - 1;
        for end in [off & !7, last & !7] {
            if let Some(have) = self.words.iter().position(|&(word, _)| word == end) {
                words.extend([self.words.swap_remove(have)]);
            }
        }
        merge_bytes(pool, off, bytes, &mut words);
        self.words.extend(words);
    }

    /// The words of the pool that it stores.
    pub fn into_words(self) -> Vec<(u64, u64)> {
        self.words
    }

    /// Whether it was decided upon something that others may change.
    pub fn is_optimistic(&self) -> bool {
        !self.versions.is_empty()
    }

    /// Lines that it stores to, in pool and DRAM.
    pub fn lines(&self) -> usize {
        let pool = self.words.iter().map(|&(off, _)| (false, off / LINE));
        let memory = self.memory.iter().chain(&self.versions);
        let memory = memory.map(|&(word, _)| (true, std::ptr::from_ref(word) as u64 / LINE));
        pool.chain(memory).collect::<BTreeSet<_>>().len()
    }

    /// What must be as it was, and what is stored, in the pool beside: as a processor needs it.
    fn in_memory(&self) -> (Vec<Word<'a>>, Vec<Word<'a>>) {
        let expected = self.versions.iter().chain(&self.expected).copied();
        let raised = self.versions.iter().map(|&(word, seen)| (word, seen + 2));
        (
            expected.collect(),
            raised.chain(self.memory.iter().copied()).collect(),
        )
    }
}

/// Puts bytes into whole words, by their offsets; the other bytes of these are as they are in
/// `words`, or else in the pool.
pub(crate) fn merge_bytes(pool: &Pool, off: u64, bytes: &[u8], words: &mut BTreeMap<u64, u64>) {
    let mut at = off;
    while at < off + bytes.len() as u64 {
        let (word, end) = (at & !7, ((at & !7) + 8).min(off + bytes.len() as u64));
        let entry = words.entry(word).or_insert_with(|| pool.load(word));
        let mut whole = entry.to_le_bytes();
        let part = &bytes[(at - off) as usize..(end - off) as usize];
        whole[(at - word) as usize..(end - word) as usize].copy_from_slice(part);
        *entry = u64::from_le_bytes(whole);
        at = end;
    }
}

/// Something that makes transactions of a pool in domain `cache`.
pub trait Transactions: Send + Sync {
    /// Tries a transaction once.
    ///
    /// # Errors
    /// Why it had no effect.
    ///
    /// # Panics
    /// If a word is misaligned or out of the pool, or a live record of the journal has it (J2).
    fn run(&self, pool: &Pool, transaction: &Transaction<'_>) -> Result<(), Abort>;

    /// What it is, for people.
    fn name(&self) -> &'static str;
}

impl dyn Transactions + '_ {
    /// Tries a transaction once, and counts what became of it.
    ///
    /// # Errors
    /// Why it had no effect.
    ///
    /// # Panics
    /// As [`run`](Transactions::run), and if the pool's domain is another one.
    pub fn attempt(&self, pool: &Pool, transaction: &Transaction<'_>) -> Result<(), Abort> {
        assert_eq!(
            pool.domain(),
            crate::Domain::Cache,
            "what is visible is not durable"
        );
        let done = self.run(pool, transaction);
        pool.count(match (done, transaction.is_optimistic()) {
            (Ok(()), true) => Counter::CommitsOptimistic,
            (Ok(()), false) => Counter::CommitsTransaction,
            (Err(Abort::Conflict), _) => Counter::AbortsConflict,
            (Err(Abort::Capacity), _) => Counter::AbortsCapacity,
            (Err(Abort::Other), _) => Counter::AbortsOther,
        });
        done
    }
}

impl fmt::Debug for dyn Transactions + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The processor's.
pub struct Hardware(());

impl Hardware {
    /// If the processor has them, and commits any.
    pub fn detect() -> Option<Hardware> {
        (Rtm::detect() == Rtm::Usable).then_some(Hardware(()))
    }
}

impl Transactions for Hardware {
    fn run(&self, pool: &Pool, transaction: &Transaction<'_>) -> Result<(), Abort> {
        let (expected, memory) = transaction.in_memory();
        pool.store_in_hardware(&expected, &memory, &transaction.words)
    }

    fn name(&self) -> &'static str {
        "hardware transactions (RTM)"
    }
}

/// Which attempts of a [`Software`] end in an abort, besides those that must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aborts {
    /// None.
    Never,
    /// Each.
    Always(Abort),
    /// Each that was decided upon what others may change.
    Optimistic(Abort),
    /// So many from one on, which counts from zero.
    From {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
        /// Why.
        cause: Abort,
    },
}

impl Aborts {
    fn of(self, attempt: u64, optimistic: bool) -> Option<Abort> {
        match self {
            Aborts::Always(cause) => Some(cause),
            Aborts::Optimistic(cause) => optimistic.then_some(cause),
            Aborts::From {
                first,
                count,
                cause,
            } => (first..first + count).contains(&attempt).then_some(cause),
            Aborts::Never => None,
        }
    }
}

/// A transaction without the processor's help, for anonymous memory: it is one event for a
/// [`Recorder`](crate::Recorder), so tests try by it what hardware would do. A process that is
/// killed in it would leave half, so pools with a file refuse it.
///
/// It makes the versions odd by comparing and exchanging, which fails if somebody else was there;
/// then it looks at what is expected, stores, and makes the versions even. So whoever changes what
/// transactions are decided upon makes these odd in the same way, and who looks at a word of
/// `expected` behind storing it waits while they are odd.
pub struct Software {
    lines_max: usize,
    aborts: Aborts,
    attempts: AtomicU64,
}

impl Software {
    /// Lines that a transaction may store to unless somebody says otherwise: a page, and some
    /// besides. The first cache of a processor has some 500, in sets of eight or twelve.
    pub const LINES_MAX: usize = 128;

    /// One whose transactions store to at most so many lines, and abort besides.
    pub fn new(lines_max: usize, aborts: Aborts) -> Software {
        Software {
            lines_max,
            aborts,
            attempts: AtomicU64::new(0),
        }
    }

    /// Attempts so far.
    pub fn attempts(&self) -> u64 {
        self.attempts.load(Relaxed)
    }

    /// Stores what the transaction stores, as everything is as it was.
    fn store(pool: &Pool, transaction: &Transaction<'_>) {
        let mut words = &transaction.words[..];
        if injected(Fault::StoreLeaks)
            && let Some((first, rest)) = words.split_first()
        {
            pool.store(first.0, first.1);
            words = rest;
        }
        // Commit point.
        pool.store_together(words);
        for &(word, value) in &transaction.memory {
            word.store(value, Relaxed);
        }
    }
}

impl Transactions for Software {
    fn run(&self, pool: &Pool, transaction: &Transaction<'_>) -> Result<(), Abort> {
        let attempt = self.attempts.fetch_add(1, Relaxed);
        if let Some(cause) = self.aborts.of(attempt, transaction.is_optimistic()) {
            return Err(cause);
        }
        if transaction.lines() > self.lines_max {
            return Err(Abort::Capacity);
        }
        let Transaction {
            versions, expected, ..
        } = transaction;
        let store = || Software::store(pool, transaction);
        let done = attempt::attempt(versions, expected, store);
        if done { Ok(()) } else { Err(Abort::Conflict) }
    }

    fn name(&self) -> &'static str {
        "software transactions"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    fn pool() -> Arc<Pool> {
        Arc::new(Pool::anonymous(1 << 16, &Options::default()).expect("memory"))
    }

    fn try_it(software: Software, pool: &Pool, transaction: &Transaction<'_>) -> Result<(), Abort> {
        let software: &dyn Transactions = &software;
        software.attempt(pool, transaction)
    }

    fn usual() -> Software {
        Software::new(Software::LINES_MAX, Aborts::Never)
    }

    #[test]
    fn all_of_a_transaction_takes_effect_or_nothing() {
        let (pool, number, free, time) = (pool(), 4.into(), 0.into(), AtomicU64::new(1));
        let transaction = |seen| {
            let mut all = Transaction::of_words(vec![(64, 7)]);
            all.version(&number, seen);
            all.expect(&free, 0);
            all.set_memory(&time, 5);
            all.set(4096, 8);
            all
        };
        let state = || {
            (
                pool.load(64),
                pool.load(4096),
                number.load(Relaxed),
                time.load(Relaxed),
            )
        };
        let software = usual();
        assert_eq!(
            try_it(usual(), &pool, &transaction(2)),
            Err(Abort::Conflict)
        );
        free.store(1, Relaxed);
        assert_eq!(
            try_it(usual(), &pool, &transaction(4)),
            Err(Abort::Conflict)
        );
        free.store(0, Relaxed);
        let small = Software::new(2, Aborts::Never);
        assert!(transaction(4).lines() > 2);
        assert_eq!(try_it(small, &pool, &transaction(4)), Err(Abort::Capacity));
        for cause in Abort::ALL {
            for aborts in [Aborts::Always(cause), Aborts::Optimistic(cause)] {
                let aborting = Software::new(100, aborts);
                assert_eq!(try_it(aborting, &pool, &transaction(4)), Err(cause));
            }
        }
        assert_eq!(state(), (0, 0, 4, 1), "nothing of it");
        assert_eq!(try_it(software, &pool, &transaction(4)), Ok(()));
        assert_eq!(state(), (7, 8, 6, 5), "all of it");
        let stats = pool.stats();
        let aborts = (
            stats.aborts_conflict,
            stats.aborts_capacity,
            stats.aborts_other,
        );
        assert_eq!((stats.commits_optimistic, aborts), (1, (4, 3, 2)));
    }

    #[test]
    fn bytes_are_merged_into_words() {
        let pool = pool();
        pool.write(0, &[1; 32]);
        let mut all = Transaction::default();
        all.write(&pool, 6, &[2; 3]);
        all.write(&pool, 9, &[3; 8]);
        all.write(&pool, 2, &[4]);
        assert_eq!(usual().run(&pool, &all), Ok(()));
        let mut found = [0; 32];
        pool.read(0, &mut found);
        let expected = [&[1, 1, 4, 1, 1, 1, 2, 2, 2][..], &[3; 8], &[1; 15]].concat();
        assert_eq!(found, expected[..]);
    }

    #[test]
    fn attempts_abort_as_they_were_told() {
        let (first, count, cause) = (1, 2, Abort::Other);
        let software = Software::new(
            8,
            Aborts::From {
                first,
                count,
                cause,
            },
        );
        let (pool, words) = (pool(), Transaction::of_words(vec![(0, 1), (64, 2)]));
        let all: Vec<_> = (0..4).map(|_| software.run(&pool, &words)).collect();
        assert_eq!(all, [Ok(()), Err(cause), Err(cause), Ok(())]);
        assert_eq!(software.attempts(), 4);
        assert_eq!(Aborts::Optimistic(cause).of(0, false), None);
    }

    /// Two threads add to two words each, of which they look at one; none is lost.
    #[test]
    fn who_decides_upon_what_another_changes_decides_again() {
        let (pool, number) = (pool(), AtomicU64::new(0));
        let add = || {
            let software = usual();
            for _ in 0..2000 {
                loop {
                    let seen = number.load(SeqCst);
                    if !seen.is_multiple_of(2) {
                        std::hint::spin_loop();
                        continue;
                    }
                    let next = pool.load(0) + 1;
                    let mut all = Transaction::of_words(vec![(0, next), (4096, next)]);
                    all.version(&number, seen);
                    if software.run(&pool, &all).is_ok() {
                        break;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(add);
            scope.spawn(add);
        });
        let found = (pool.load(0), pool.load(4096), number.load(Relaxed));
        assert_eq!(found, (4000, 4000, 8000));
    }

    #[test]
    fn a_processor_without_them_is_not_asked() {
        assert_eq!(Hardware::detect().is_some(), Rtm::detect() == Rtm::Usable);
        if let Some(hardware) = Hardware::detect() {
            let (pool, number) = (pool(), AtomicU64::new(2));
            let mut all = Transaction::of_words(vec![(64, 7), (4096, 8)]);
            all.version(&number, 2);
            let mut tries = (0..1000).map(|_| hardware.run(&pool, &all));
            assert!(tries.any(|tried| tried.is_ok()), "it committed others");
            assert_eq!((pool.load(64), pool.load(4096)), (7, 8));
            let seldom = (0..1000).filter(|_| hardware.run(&pool, &all).is_ok());
            assert_eq!(seldom.count(), 0, "the number is another one");
            assert_eq!(number.load(Relaxed), 4);
        }
    }
}

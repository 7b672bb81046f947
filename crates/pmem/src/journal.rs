//! Atomic commit of several words: a redo log.
//!
//! A medium stores one 8-byte word atomically; a [`Journal`] makes a set of words take effect
//! all at once, across any crash. It owns a fixed area of the pool, and is used by one thread at
//! a time (`&mut`).
//!
//! Typical sequence: [`Journal::format`] and a fence once; [`Journal::recover`] at each mount;
//! then [`Journal::commit`] for each set of words, and [`Journal::checkpoint`] before memory that
//! committed words lie in is used for something else.
//!
//! # Protocol of a logged commit
//! 1. Fence. What the words publish, and the words that earlier commits applied, are durable.
//! 2. Store the head past all earlier records and flush it; write the record and flush it.
//! 3. Fence. When the record is on the medium the transaction is committed.
//! 4. Store the words in place and flush them. The next commit's step 1 fences them.
//!
//! # Crash cases
//! 1. *Before or in step 1.* The newest record on the medium is the previous one. Its words may
//!    be in place or not; the head does not pass it, so recovery stores them (again).
//! 2. *In step 2 or 3, the record incomplete on the medium.* Its checksum fails, so recovery ends
//!    before it. The head is the old one: the previous record is replayed, over words that have
//!    these very values since step 1. Or it is the new one: nothing is replayed. Both give the
//!    state before.
//! 3. *In step 2 or 3, the record complete.* Old head: the previous record and this one are
//!    replayed, in this order. New head: this one is. Both give the state after.
//! 4. *In step 4, or later up to the next step 2.* The record is durable and the head does not
//!    pass it: replay gives every word its new value, whichever were in place.
//! 5. *In recovery.* What recovery has read may be visible only (M15). It flushes and fences the
//!    header, the head and the records before it stores a word in place, so from then on every
//!    crash finds the same records. Before, the medium holds any earlier state of the journal, and
//!    nothing has been stored: cases 1 to 4. The head moves only after a fence behind the replayed
//!    words, so a crash leaves all records for the next recovery, which stores the same values.
//! 6. *A stale record where the next is expected.* A sequence number is a position that counts
//!    ring lines ever used, so an older lap's record carries a smaller one; an earlier format's
//!    carries another nonce, which also seeds the checksum. An unfinished record that a crash
//!    left has the number that is expected, but recovery either takes it as committed or the
//!    next record replaces it; a mixture of both fails the checksum.
//! 7. *A record that is still needed is overwritten.* Never: a record is written only where the
//!    durable head has passed. If the ring has no such room, the commit checkpoints first.
//!
//! # Process crashes
//! A killed process leaves all its stores visible, but durable only up to its last fences (M15).
//! The next process sees the state after a prefix of the protocol, and a power cut later may take
//! back what was not fenced. Recovery fences what it relies on:
//! 1. *The head is visible and not durable.* It was stored behind step 1, so the words of all
//!    records that it passes are durable in place. Recovery makes it durable before a later commit
//!    can rely on it, so no power cut brings those records back over what that commit stored.
//! 2. *A record is visible and not durable.* It was written behind step 1, so what it publishes is
//!    durable. Recovery makes it durable as a whole before it stores the first of its words.
//! 3. *A word is visible in place and not durable.* It was stored behind step 3, so its record is
//!    durable, and the head has not passed it: recovery stores it again, and fences. This is why
//!    a transaction of one word has a record, too: a word that was stored in place with
//!    nothing behind it would be visible, and nobody would know that it is not durable.
//!
//! # One word in domain `cache`
//! What is visible is durable there (M9), so a transaction of one word needs no record. The head is
//! stored past all records, then the word: with the old head a record that may have the same
//! word gives it the value that it had, with the new one nothing is replayed.
//!
//! # Hardware transactions
//! In domain `cache` up to 16 words are stored in one hardware transaction where the processor
//! commits such (see [`Rtm`]): visible together is durable together there. The head is stored past
//! all records before, in the order in which stores are durable there. If the transaction keeps
//! aborting, the log is used. With a recorder the log is used always, as a recorder has no event
//! for several stores at once.

mod area;

use std::fmt;
use std::sync::Arc;

use area::{Area, Record, record_lines};
use schedule::point;

use crate::stats::Counter;
use crate::{Domain, LINE, MediumError, Pool, Rtm, rtm};

/// Bytes in the smallest journal area: header, head, and a ring of two lines.
pub const LEN_MIN: u64 = 4 * LINE;

/// Attempts at a hardware transaction before the log is used.
const RTM_ATTEMPTS: usize = 8;

/// Why a journal area cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The area does not fit the pool.
    #[error("journal area of {len} bytes at {off}: misplaced in a pool of {pool} bytes")]
    Area {
        /// Start of the area.
        off: u64,
        /// Its length in bytes.
        len: u64,
        /// The pool's length in bytes.
        pool: u64,
    },
    /// The header is not that of this journal.
    #[error("journal header at {off}: {what}")]
    Header {
        /// Start of the area.
        off: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The head is damaged: what is to be replayed cannot be told.
    #[error("journal head at {off}: {found:#x} is damaged")]
    Head {
        /// Where.
        off: u64,
        /// The word found there.
        found: u64,
    },
    /// A committed record stores where no transaction may.
    #[error("journal record {sequence} at {off}: it stores to {word}, where none may")]
    Target {
        /// Start of the record.
        off: u64,
        /// Its sequence number.
        sequence: u64,
        /// The offset that it stores to.
        word: u64,
    },
    /// Transactions have to be replayed, and the pool is read-only.
    #[error("journal at {off}: {transactions} transactions are to be replayed; open for writing")]
    ReadOnly {
        /// Start of the area.
        off: u64,
        /// How many.
        transactions: u64,
    },
    /// The medium failed.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// What a recovery replayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Transactions.
    pub transactions: u64,
    /// Words in them.
    pub words: u64,
}

/// How a journal commits small sets of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Through a log record.
    Log,
    /// In a hardware transaction, falling back to the log.
    Rtm,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Method::Log => "log",
            Method::Rtm => "hardware transactions, log as fall-back",
        })
    }
}

/// Commits sets of words atomically. See the [module](self).
///
/// Invariants: `head <= tail <= head + ring`; the head on the medium is `head`; at most one
/// record is live (not durably checkpointed) between calls.
pub struct Journal {
    pool: Arc<Pool>,
    area: Area,
    /// The durable head: records below it will never be replayed.
    head: u64,
    /// Where the next record goes; all below is applied, though perhaps not fenced.
    tail: u64,
    method: Method,
    scratch: Vec<u8>,
}

impl Journal {
    /// Makes `len` bytes at `off` an empty journal. Flushes; the caller fences.
    ///
    /// # Panics
    /// If `off` is not a multiple of 64, or `len` is below [`LEN_MIN`].
    pub fn format(pool: &Pool, off: u64, len: u64) {
        Area::new(off, len, nonce()).format(pool);
    }

    /// Opens a journal: replays, in order, the committed transactions that may not be in place,
    /// and checkpoints them. `valid` says whether a transaction may store to an offset (which is
    /// a multiple of 8, in the pool and outside the area). Nothing is stored if any is not.
    ///
    /// # Errors
    /// The area's contents are damaged or hostile, or the medium fails.
    pub fn recover(
        pool: &Arc<Pool>,
        off: u64,
        len: u64,
        valid: impl Fn(u64) -> bool,
    ) -> Result<(Journal, Recovered), JournalError> {
        let found = Found::read(pool, off, len, valid)?;
        let recovered = found.recovered();
        if pool.read_only() {
            if recovered.transactions > 0 {
                return Err(JournalError::ReadOnly {
                    off,
                    transactions: recovered.transactions,
                });
            }
            return Ok((Journal::at(pool, found.area, found.head), recovered));
        }
        pool.back(off, len)?;
        let journal = found.make_durable(pool)?.replay(pool)?;
        Ok((journal, recovered))
    }

    /// A journal whose durable head is this, with no record behind it.
    fn at(pool: &Arc<Pool>, area: Area, head: u64) -> Journal {
        Journal {
            pool: pool.clone(),
            area,
            head,
            tail: head,
            method: method(pool),
            scratch: Vec::new(),
        }
    }

    /// The words (offset, value) that [`recover`](Journal::recover) would store, in order; stores
    /// nothing.
    ///
    /// # Errors
    /// As `recover`.
    pub fn peek(
        pool: &Pool,
        off: u64,
        len: u64,
        valid: impl Fn(u64) -> bool,
    ) -> Result<Vec<(u64, u64)>, JournalError> {
        let found = Found::read(pool, off, len, valid)?;
        let words = found.records.into_iter().flat_map(|record| record.words);
        Ok(words.collect())
    }

    /// Words in the largest transaction.
    pub fn capacity(&self) -> usize {
        self.area.capacity()
    }

    /// How small sets of words are committed here.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Stores words (offset, value) all at once, durably: when this returns, every crash leaves
    /// all of them stored; before, all or none. If an offset occurs twice the later value counts.
    ///
    /// Precondition: everything that the words publish has been stored and flushed by this
    /// thread (not necessarily fenced).
    ///
    /// Until the transaction is [checkpointed](Journal::checkpointed), its words may be changed
    /// only by later commits of this journal, as a crash may store them again.
    ///
    /// Returns a number that never falls: once [`checkpointed`](Journal::checkpointed) has reached
    /// it, this transaction will never be replayed.
    ///
    /// # Errors
    /// The medium failed; whether the transaction is durable is unknown.
    ///
    /// # Panics
    /// If there are more words than `capacity`, or an offset is misaligned, out of the pool or
    /// in the journal's area.
    pub fn commit(&mut self, words: &[(u64, u64)]) -> Result<u64, MediumError> {
        self.check(words);
        self.pool.fence()?;
        match words {
            [] => {}
            &[(off, value)] if self.pool.domain() == Domain::Cache => {
                self.commit_word(off, value)?;
            }
            words => {
                if !(self.method == Method::Rtm && self.commit_rtm(words)) {
                    self.commit_log(words)?;
                }
            }
        }
        Ok(self.tail)
    }

    fn check(&self, words: &[(u64, u64)]) {
        assert!(
            words.len() <= self.capacity(),
            "the transaction exceeds the journal's capacity"
        );
        for &(off, _) in words {
            let inside = off.is_multiple_of(8) && off < self.pool.len();
            assert!(
                inside && !self.area.contains(off),
                "no transaction may store to {off}"
            );
        }
    }

    /// Steps 2 to 4 of the protocol.
    fn commit_log(&mut self, words: &[(u64, u64)]) -> Result<(), MediumError> {
        let lines = record_lines(words.len());
        if self.tail + lines - self.head > self.area.ring_lines {
            self.checkpoint_applied()?;
        }
        point("commit: no record");
        // The record first: head and record reach the medium in any order.
        self.area
            .write_record(&self.pool, self.tail, words, &mut self.scratch);
        self.advance_head();
        point("commit: the record is not durable");
        // Commit point.
        self.pool.fence()?;
        point("commit: nothing is in place");
        self.head = self.tail;
        self.tail += lines;
        self.apply(words);
        self.pool.count(Counter::CommitsLog);
        Ok(())
    }

    /// Stores words in place and flushes them.
    fn apply(&self, words: &[(u64, u64)]) {
        for (i, &(off, value)) in words.iter().enumerate() {
            self.pool.store(off, value);
            // One flush for neighbours in a line.
            let next = words.get(i + 1);
            if next.is_none_or(|&(next, _)| next / LINE != off / LINE) {
                self.pool.flush(off, 8);
            }
        }
    }

    /// Domain `cache`: a word needs no record.
    fn commit_word(&mut self, off: u64, value: u64) -> Result<(), MediumError> {
        self.advance_head();
        self.pool.store(off, value);
        self.pool.flush(off, 8);
        // Commit point, with the head past any record of the same word.
        self.pool.fence()?;
        self.head = self.tail;
        self.pool.count(Counter::CommitsWord);
        Ok(())
    }

    /// Tries a hardware transaction; `false`: no word was stored.
    fn commit_rtm(&mut self, words: &[(u64, u64)]) -> bool {
        if words.len() > rtm::WORDS_MAX {
            return false;
        }
        // In domain `cache` the head is durable as soon as it is stored.
        self.advance_head();
        self.head = self.tail;
        // Commit point.
        let committed = (0..RTM_ATTEMPTS).any(|_| self.pool.store_in_transaction(words));
        if committed {
            self.pool.count(Counter::CommitsRtm);
        }
        committed
    }

    /// Makes all transactions so far durable in place, so that none will be replayed.
    ///
    /// # Errors
    /// The medium failed.
    pub fn checkpoint(&mut self) -> Result<(), MediumError> {
        self.pool.fence()?;
        self.checkpoint_applied()
    }

    /// Transactions whose number (as `commit` returned it) is at most this will never be
    /// replayed, durably: memory that they stored to may be used for something else.
    pub fn checkpointed(&self) -> u64 {
        self.head
    }

    /// Checkpoints all records; their words have been fenced.
    fn checkpoint_applied(&mut self) -> Result<(), MediumError> {
        if self.head == self.tail {
            return Ok(());
        }
        self.advance_head();
        self.pool.fence()?;
        self.head = self.tail;
        Ok(())
    }

    /// Stores the head past all records, whose words have been fenced. The next fence makes it
    /// durable.
    fn advance_head(&self) {
        if self.head < self.tail {
            self.area.store_head(&self.pool, self.tail);
        }
    }
}

/// What recovery reads of an area: visible, and perhaps not durable.
struct Found {
    area: Area,
    head: u64,
    records: Vec<Record>,
}

/// The same, durable: only this can be replayed.
struct Durable(Found);

impl Found {
    fn read(
        pool: &Pool,
        off: u64,
        len: u64,
        valid: impl Fn(u64) -> bool,
    ) -> Result<Found, JournalError> {
        let (area, head) = Area::open(pool, off, len)?;
        let records = area.records(pool, head, valid)?;
        Ok(Found {
            area,
            head,
            records,
        })
    }

    fn recovered(&self) -> Recovered {
        Recovered {
            transactions: self.records.len() as u64,
            words: self.records.iter().map(|r| r.words.len() as u64).sum(),
        }
    }

    fn make_durable(self, pool: &Pool) -> Result<Durable, MediumError> {
        self.area.flush_start(pool);
        for record in &self.records {
            self.area.flush_record(pool, record);
        }
        pool.fence()?;
        Ok(Durable(self))
    }
}

impl Durable {
    /// Stores the words of all records, and checkpoints these.
    fn replay(self, pool: &Arc<Pool>) -> Result<Journal, MediumError> {
        let Found {
            area,
            head,
            records,
        } = self.0;
        let mut journal = Journal::at(pool, area, head);
        for record in &records {
            for &(word, _) in &record.words {
                pool.back(word, 8)?;
            }
            journal.apply(&record.words);
            journal.tail = record.sequence + record.lines;
        }
        if !records.is_empty() {
            journal.checkpoint()?;
        }
        Ok(journal)
    }
}

fn method(pool: &Pool) -> Method {
    let rtm = pool.domain() == Domain::Cache && !pool.recorded() && Rtm::detect() == Rtm::Usable;
    if rtm { Method::Rtm } else { Method::Log }
}

/// A number that no earlier format of the area had.
fn nonce() -> u64 {
    let mut bytes = [0; 8];
    let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if random == Ok(bytes.len()) {
        return u64::from_le_bytes(bytes);
    }
    // Without getrandom: the time since the epoch differs between formats just as well.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

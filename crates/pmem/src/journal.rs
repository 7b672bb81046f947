//! Atomic commit of any set of changes: a redo log that checkpoints lazily.
//!
//! A medium stores one 8-byte word atomically; a [`Journal`] makes the changes of a [`Record`]
//! (words, bits, ranges of bytes) take effect all at once, across any crash. It owns a fixed area
//! of the pool, and is used by one thread at a time (`&mut`).
//!
//! Typical sequence: [`Journal::format`] and a fence once; [`Journal::recover`] at each mount;
//! then [`Journal::commit`] for each record; [`Journal::checkpoint_some`] in the background, and
//! [`Journal::checkpoint`] before memory that records name is used for something else.
//!
//! # Protocol of a logged commit
//! 1. If much is live, flush some places of the oldest records. If the ring has no room for this
//!    one even so: checkpoint. Then, if the record [relies on what was
//!    flushed](Record::rely_on_flushed): fence.
//! 2. Write the record behind the last one, and flush it. If older records are durable in place,
//!    store the head past them and flush that, too.
//! 3. Fence. When the record is on the medium the transaction is committed.
//! 4. Store the changes in place. They are not flushed: the record has them.
//!
//! A *checkpoint* makes places durable: flush the lines that the oldest records change, fence; then
//! the head may pass these records, and the ring has room again. It is done in parts of any size:
//! by whoever has time for it, and a little by each commit that finds much to be live. So what a
//! commit costs is in proportion to its own record, however full the ring is:
//!
//! - A ring line of a record has changes of at most 6 lines: two bytes that lie in two lines take
//!   24 of its 64.
//! - From half of the *window* on, which is what may be live, a commit of *n* ring lines flushes
//!   12 *n* lines. When a quarter of the window more has been written, all that was live at the
//!   half is durable in place. So the ring never fills up, unless with records larger than a 16th
//!   of it, and these wait for as much as they take.
//! - The window is the ring, but at most 2 MiB: that much a mount replays in some milliseconds,
//!   where places need not be read from a disk (`docs/design/page.md`, case 7 there). A larger
//!   record is checkpointed at once.
//!
//! # Invariants
//! - J1 `head <= clean <= flushed <= tail <= head + ring`. Records from the durable head to the
//!   tail are *live*: a crash replays all of them, in order. What records below `clean` change is
//!   durable in place; what is below `flushed` will be with the next fence.
//! - J2 *No store bypasses a live record*: a word, or byte of a range, that a live record has is
//!   changed by later records alone. Else a crash brings the old value back. (A bit that is cleared
//!   beside the journal may come back; who does that must not mind.)
//! - J3 *What a live record names is not used for something else*: see [`Journal::checkpointed`].
//! - J4 A record is written only where the durable head has passed.
//! - J5 *What is loose may come back*: bytes of a [loose](Record::carry_loose) range are exempt
//!   from J2. A crash may bring back what the newest live record has of them. So newer bytes are
//!   promised to nobody but by a later record that has them, or behind a checkpoint.
//!
//! J1 and J4 are asserted. So are J2 and J3 in builds with debug assertions: there every store to a
//! pool is compared with what the live records have (`journal/live.rs`).
//!
//! # Crash cases
//! 1. *Before or in step 1.* The live records are durable, and replayed: over places that have
//!    their values, or have not.
//! 2. *In step 2 or 3, the record incomplete on the medium.* Its checksum fails, so recovery ends
//!    before it. What it publishes is private. The head is the old one or the new one: the records
//!    between them store values that are durable in place, or that later records store again, as
//!    they are all replayed in order.
//! 3. *In step 2 or 3, the record complete.* It is replayed behind all earlier live ones. What it
//!    relies on was fenced in step 1, what it carries is in it.
//! 4. *In step 4, or any time before it is checkpointed.* The record is durable: replay gives every
//!    place its new value, whichever were stored or durable. Places have no order to keep.
//! 5. *In a checkpoint.* Places become durable, which is nothing new. The head moves only after the
//!    fence behind them, in step 2 of a later commit or at the checkpoint's end.
//! 6. *In recovery.* What recovery has read may be visible only (M15). In domain `line` it flushes
//!    and fences the header, the head and the records before it stores anything in place, so from
//!    then on every crash finds the same records. In domain `page` opening the pool has synced them
//!    (M12). Before, the medium holds any earlier state of the journal, and nothing has been
//!    stored: cases 1 to 5. The head moves only after a fence behind the replayed places.
//! 7. *A stale record where the next is expected.* A sequence number is a position that counts
//!    ring lines ever used, so an older lap's record carries a smaller one; an earlier format's
//!    has a checksum of another seed, and so has whatever a user stored that looks like a record.
//!    An unfinished record that a crash left has the number that is expected, but recovery either
//!    takes it as committed or the next record replaces it; a mixture of both fails the checksum.
//!
//! # Process crashes
//! A killed process leaves all its stores visible, but durable only up to its last fences (M15).
//! The next process sees the state after a prefix of the protocol, and a power cut later may take
//! back what was not fenced. Recovery fences what it relies on, where opening the pool has not:
//! 1. *The head is visible and not durable.* It was stored when all places of the records that it
//!    passes were durable. Recovery makes it durable before a later commit can rely on it.
//! 2. *A record is visible and not durable.* What it relies on is durable since step 1. Recovery
//!    makes the record durable as a whole before it stores the first of its changes.
//! 3. *A change is visible in place and not durable.* Its record is durable, and live until a
//!    checkpoint has flushed the place: recovery stores it again, flushes and fences. This is why
//!    a transaction of one word has a record, too: a word that was stored in place with nothing
//!    behind it would be visible, and nobody would know that it is not durable.
//!
//! # Domain `cache`
//! What is visible is durable there (M9), so places need no flush: each commit ends with the head
//! behind its own record, and nothing stays live. A transaction of one word needs no record.
//!
//! # Transactions
//! In domain `cache` a record may be stored without the log, in one
//! [transaction](crate::transaction): visible together is durable together there. Nothing is live
//! then, so its words may be stored beside the log. The processor's transactions are used where
//! there are any ([`Rtm`](crate::Rtm)), but with a recorder, which does not see them. A record of
//! many lines is not tried: it would exceed what a processor has room for, and to find that out
//! costs as much as the log. If one is aborted for want of room, twice for an unknown cause or 8
//! times by others, the log is used: nothing of it was stored, and its words are as they were, as
//! whoever commits has locked what they were decided upon.

mod area;
pub(crate) mod live;
mod places;
mod record;
mod recovery;

use std::sync::Arc;

use area::Area;
use places::Places;
use recovery::Found;
use schedule::point;

pub use record::Record;

use crate::stats::Counter;
use crate::transaction::Hardware;
use crate::{Abort, Domain, LINE, MediumError, Pool, Transaction, Transactions};

/// Bytes in the smallest journal area: header, head, and a ring of two lines.
pub const LEN_MIN: u64 = 4 * LINE;

/// Ring lines that may be live between calls, or as many as half the ring's more.
const WINDOW_MAX: u64 = (2 << 20) / LINE;
/// Lines of places that a commit flushes for each of its ring lines, if half the window is live:
/// two for each that these can change.
const PAY: u64 = 12;

/// Words of a record before which a schedule may stop whoever stores them in place.
const STOPS: usize = 4;

/// Bytes of memory that are kept for the next record.
const SPARE_MAX: usize = 64 << 10;

/// Attempts at a transaction that others disturb before the log is used.
const ATTEMPTS: usize = 8;

/// Lines of the largest record that is tried in a transaction, if each of its words is in one of
/// its own. Processors have room for some hundreds.
const LINES_MAX: u64 = 128;

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
    /// Lines that they take in the ring.
    pub lines: u64,
}

/// Commits records atomically. See the [module](self).
pub struct Journal {
    pool: Arc<Pool>,
    area: Area,
    /// The durable head: records below it will never be replayed.
    head: u64,
    /// The head as it is stored.
    head_stored: u64,
    /// What records below this change is durable in place: the head may pass them.
    clean: u64,
    /// What records below this change was flushed by this thread, which fences it before it lets
    /// go of the journal.
    flushed: u64,
    /// Where the next record goes; all below is stored in place.
    tail: u64,
    /// What records change behind `flushed`.
    places: Places,
    /// What commits records without the log, where something does.
    transactions: Option<Arc<dyn Transactions>>,
    scratch: Vec<u8>,
    /// One that was committed, for its memory.
    spare: Record,
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
    /// and checkpoints them. `valid` says whether a transaction may change the word at an offset
    /// (which is a multiple of 8, in the pool and outside the area). Nothing is stored if any is
    /// not.
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
            return Ok((found.unchanged(pool), recovered));
        }
        pool.back(off, len)?;
        let journal = found.make_durable(pool)?.replay(pool)?;
        Ok((journal, recovered))
    }

    /// A journal whose durable head is this, with no record behind it.
    fn at(pool: &Arc<Pool>, area: Area, head: u64) -> Journal {
        pool.live.clear();
        Journal {
            pool: pool.clone(),
            area,
            head,
            head_stored: head,
            clean: head,
            flushed: head,
            tail: head,
            places: Places::default(),
            transactions: hardware(pool),
            scratch: Vec::new(),
            spare: Record::default(),
        }
    }

    /// The words (offset, value) that [`recover`](Journal::recover) would change, by offset; stores
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
        Ok(found.words(pool).into_iter().collect())
    }

    /// Words in the largest transaction that has nothing else.
    pub fn capacity(&self) -> usize {
        self.area.capacity()
    }

    /// Lines of the ring, which a record may take all.
    pub fn ring_lines(&self) -> u64 {
        self.area.ring_lines
    }

    /// Lines of the ring that records take which are not checkpointed.
    pub fn live_lines(&self) -> u64 {
        self.tail - self.clean
    }

    /// Whether so much is live that somebody who has time should checkpoint some of it. From twice
    /// as much on commits do it.
    pub fn needs_checkpoint(&self) -> bool {
        self.live_lines() > self.window() / 4
    }

    /// What commits records without the log, where something does.
    pub fn transactions(&self) -> Option<&Arc<dyn Transactions>> {
        self.transactions.as_ref()
    }

    /// Commit records by these transactions where they will do.
    ///
    /// # Panics
    /// If the domain is not `cache`: what is visible is not durable there.
    pub fn set_transactions(&mut self, transactions: Arc<dyn Transactions>) {
        assert_eq!(
            self.pool.domain(),
            Domain::Cache,
            "only a record is durable"
        );
        self.transactions = Some(transactions);
    }

    /// A record that changes nothing yet, in the memory of one that was [taken
    /// back](Journal::take_back).
    pub fn empty_record(&mut self) -> Record {
        std::mem::take(&mut self.spare)
    }

    /// A record was committed, and is not needed any more.
    pub fn take_back(&mut self, mut record: Record) {
        if record.memory() <= SPARE_MAX {
            record.clear();
            self.spare = record;
        }
    }

    /// Makes the record's changes all at once, durably: when this returns, every crash leaves all
    /// of them; before, all or none. What it carries was stored by this thread, or is visible to
    /// it; what it [relies on](Record::rely_on_flushed) was flushed by this thread.
    ///
    /// Until the transaction is [checkpointed](Journal::checkpointed), what it changes may be
    /// changed only by later commits of this journal, as a crash may store it again (J2).
    ///
    /// Flushes lines in proportion to the record, however much is live.
    ///
    /// Returns a number that never falls: once [`checkpointed`](Journal::checkpointed) has reached
    /// it, this transaction will never be replayed.
    ///
    /// # Errors
    /// The medium failed; whether the transaction is durable is unknown.
    ///
    /// # Panics
    /// If the record is longer than the ring, or a word misaligned, or anything out of the pool or
    /// in the journal's area.
    pub fn commit(&mut self, record: &Record) -> Result<u64, MediumError> {
        self.commit_and_show(record, || ())
    }

    /// The same, for who lets others look at what it changes: `show` is called when the record is
    /// durable and nothing is in place, and what it returns is dropped when all is; before that
    /// around attempts to store all in a transaction. If nothing changes it is not called.
    ///
    /// # Errors
    /// As [`commit`](Journal::commit); `show` was not called.
    ///
    /// # Panics
    /// As `commit`.
    pub fn commit_and_show<G>(
        &mut self,
        record: &Record,
        show: impl Fn() -> G,
    ) -> Result<u64, MediumError> {
        self.check(record);
        if record.is_empty() {
            if record.relies_on_flushed {
                self.pool.fence()?;
                self.fenced();
            }
            return Ok(self.tail);
        }
        self.pay(record.lines());
        let fenced = self.make_room(record.lines())?;
        if record.relies_on_flushed && !fenced {
            self.pool.fence()?;
            self.fenced();
        }
        let words_only = record.bits.is_empty() && record.ranges.is_empty();
        match &record.words[..] {
            &[(off, value)] if words_only && self.pool.domain() == Domain::Cache => {
                let _shown = show();
                self.commit_word(off, value)?;
            }
            _ if self.commit_in_transaction(record, &show) => {}
            _ => self.commit_log(record, show)?,
        }
        if record.lines() > self.window() {
            self.checkpoint()?;
        }
        debug_assert_eq!(self.flushed, self.clean, "flushed by a thread that may go");
        Ok(self.tail)
    }

    /// Ring lines that may be live.
    fn window(&self) -> u64 {
        self.area.ring_lines.min(WINDOW_MAX)
    }

    fn check(&self, record: &Record) {
        assert!(
            record.lines() <= self.area.ring_lines,
            "the transaction exceeds the journal's capacity"
        );
        for &(off, _) in record.words.iter().chain(&record.bits) {
            assert!(
                off.is_multiple_of(8),
                "{off} is not the place of a word, which a transaction stores"
            );
        }
        for (off, len) in record.pieces() {
            assert!(
                off.checked_add(len)
                    .is_some_and(|end| end <= self.pool.len())
                    && !self.area.overlaps(off, len),
                "no transaction may store to {off}"
            );
        }
    }

    /// Flushes some places, if much is live, for a record of so many lines. The commit fences them.
    fn pay(&mut self, lines: u64) {
        if self.live_lines() + lines > self.window() / 2 {
            self.flush_places(PAY * lines);
        }
    }

    /// Makes room for so many lines in the ring (J4), by a checkpoint if need be. Returns whether
    /// that was needed: it ends with a fence.
    fn make_room(&mut self, lines: u64) -> Result<bool, MediumError> {
        let head = (self.tail + lines).saturating_sub(self.area.ring_lines);
        let full = head > self.head;
        if full {
            self.checkpoint_to(head)?;
        }
        Ok(full)
    }

    /// Steps 2 to 4 of the protocol.
    fn commit_log<G>(&mut self, record: &Record, show: impl Fn() -> G) -> Result<(), MediumError> {
        let end = self.tail + record.lines();
        assert!(
            end <= self.head + self.area.ring_lines,
            "a record is written over live ones"
        );
        point("commit: no record");
        // Head and record reach the medium in any order.
        self.area
            .write_record(&self.pool, self.tail, record, &mut self.scratch);
        self.advance_head();
        point("commit: the record is not durable");
        // Commit point.
        self.pool.fence()?;
        self.fenced();
        point("commit: nothing is in place");
        let shown = show();
        self.apply(record, end);
        drop(shown);
        self.pool.count(Counter::CommitsLog);
        if self.pool.domain() == Domain::Cache {
            self.checkpoint_visible();
        }
        Ok(())
    }

    /// Stores the changes of a committed record that ends at `end` in place, as live.
    fn apply(&mut self, record: &Record, end: u64) {
        let pool = &self.pool;
        pool.live.cover(record.covers(), end, || {
            for range in record.ranges.iter().filter(|range| range.store) {
                pool.write(range.off, record.bytes(range));
            }
            for (i, &(off, value)) in record.words.iter().enumerate() {
                if i < STOPS {
                    point("commit: some is in place");
                }
                pool.store(off, value);
            }
            for &(off, bits) in &record.bits {
                pool.fetch_or(off, bits);
            }
        });
        self.places.add(end, record.home());
        self.tail = end;
    }

    /// Flushes places of the oldest records, so many lines.
    fn flush_places(&mut self, lines: u64) {
        if let Some(flushed) = self.places.flush(&self.pool, lines) {
            self.flushed = flushed;
        }
    }

    /// After a fence: what was flushed is durable, and the head as it is stored.
    fn fenced(&mut self) {
        (self.head, self.clean) = (self.head_stored, self.flushed);
        self.pool.live.passed(self.head);
        assert!(
            self.head <= self.clean
                && self.clean <= self.tail
                && self.tail <= self.head + self.area.ring_lines,
            "the journal's positions contradict each other"
        );
    }

    /// Domain `cache`: a word needs no record.
    fn commit_word(&mut self, off: u64, value: u64) -> Result<(), MediumError> {
        self.pool.store(off, value);
        self.pool.flush(off, 8);
        // Commit point: no record of the word is live.
        self.pool.fence()?;
        self.pool.count(Counter::CommitsWord);
        Ok(())
    }

    /// Tries to store a record's changes in one transaction; `false`: nothing was stored.
    fn commit_in_transaction<G>(&self, record: &Record, show: impl Fn() -> G) -> bool {
        let Some(transactions) = self.transactions.as_deref() else {
            return false;
        };
        let lines = |(off, len)| (off + len - 1) / LINE - off / LINE + 1;
        if record.pieces().map(lines).sum::<u64>() > LINES_MAX {
            return false;
        }
        let Some(words) = record.as_words(&self.pool) else {
            return false;
        };
        let transaction = Transaction::of_words(words);
        let mut others = 0;
        for _ in 0..ATTEMPTS {
            let shown = show();
            // Commit point: no record of these words is live.
            let done = transactions.attempt(&self.pool, &transaction);
            drop(shown);
            match done {
                Ok(()) => return true,
                Err(Abort::Conflict) => {}
                Err(Abort::Other) if others == 0 => others += 1,
                Err(Abort::Other | Abort::Capacity) => return false,
            }
        }
        false
    }

    /// Makes all transactions so far durable in place, and the head that says so: none of them
    /// will be replayed.
    ///
    /// # Errors
    /// The medium failed.
    pub fn checkpoint(&mut self) -> Result<(), MediumError> {
        self.checkpoint_to(self.tail)
    }

    /// Checkpoints all records up to a position, and the one that it is in.
    fn checkpoint_to(&mut self, position: u64) -> Result<(), MediumError> {
        while self.flushed < position {
            self.flush_places(places::CHUNK);
        }
        if self.clean < self.flushed {
            point("checkpoint: flushed and not fenced");
            self.pool.fence()?;
            self.fenced();
        }
        self.move_head()
    }

    /// Moves the head past all records that are durable in place.
    fn move_head(&mut self) -> Result<(), MediumError> {
        if self.head < self.clean {
            point("checkpoint: the head is old");
            self.advance_head();
            point("checkpoint: the head is not durable");
            self.pool.fence()?;
            self.fenced();
        }
        Ok(())
    }

    /// Makes the oldest transactions durable in place, as far as flushing so many lines does. The
    /// next commit moves the head past them. Returns whether any is left.
    ///
    /// # Errors
    /// The medium failed.
    pub fn checkpoint_some(&mut self, lines: u64) -> Result<bool, MediumError> {
        if self.clean < self.tail {
            self.flush_places(lines);
            point("checkpoint: flushed and not fenced");
            self.pool.fence()?;
            self.fenced();
        }
        Ok(self.clean < self.tail)
    }

    /// Transactions whose number (as `commit` returned it) is at most this will never be
    /// replayed, durably: memory that they name may be used for something else (J3).
    pub fn checkpointed(&self) -> u64 {
        self.head
    }

    /// Domain `cache`: what is stored in place is durable, and so is the head.
    fn checkpoint_visible(&mut self) {
        self.places.clear();
        (self.flushed, self.clean) = (self.tail, self.tail);
        self.advance_head();
        self.head = self.head_stored;
        self.pool.live.passed(self.head);
    }

    /// Stores the head past all records that are durable in place. The next fence makes it durable.
    fn advance_head(&mut self) {
        if self.head_stored < self.clean {
            self.area.store_head(&self.pool, self.clean);
            self.head_stored = self.clean;
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.pool.live.clear();
    }
}

fn hardware(pool: &Pool) -> Option<Arc<dyn Transactions>> {
    let may = pool.domain() == Domain::Cache && !pool.recorded();
    let hardware = may.then(Hardware::detect).flatten()?;
    Some(Arc::new(hardware))
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

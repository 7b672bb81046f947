//! The journal without crashes: what it accepts, counts, reports and refuses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use block::Random;
use pmem::journal::LEN_MIN;
use pmem::transaction::{Aborts, Software};
use pmem::{
    Abort, Domain, Journal, JournalError, LINE, MediumError, Options, Pool, Record, Recovered, Rtm,
    Stats,
};

const OFF: u64 = 64;
const LEN: u64 = 16 * 64;
const WORDS: u64 = 4096;

fn options(domain: Domain) -> Options {
    Options {
        domain: Some(domain),
        ..Options::default()
    }
}

fn pool(domain: Domain) -> Arc<Pool> {
    let pool = Pool::anonymous(16384, &options(domain)).expect("memory");
    Journal::format(&pool, OFF, LEN);
    pool.fence().expect("fence");
    Arc::new(pool)
}

fn open(pool: &Arc<Pool>) -> Journal {
    recover(pool).expect("journal").0
}

fn copy_of(pool: &Pool) -> Arc<Pool> {
    Arc::new(Pool::from_bytes(&pool.snapshot(), &options(Domain::Line)).expect("memory"))
}

fn recover(pool: &Arc<Pool>) -> Result<(Journal, Recovered), JournalError> {
    Journal::recover(pool, OFF, LEN, |_| true)
}

fn words(range: std::ops::Range<u64>, value: u64) -> Vec<(u64, u64)> {
    range.map(|i| (WORDS + 8 * i, value)).collect()
}

fn commit(journal: &mut Journal, words: &[(u64, u64)]) -> Result<u64, MediumError> {
    journal.commit(&words.iter().copied().collect())
}

#[test]
fn a_new_journal_has_nothing_to_replay() {
    let pool = pool(Domain::Line);
    let (journal, found) = recover(&pool).expect("journal");
    assert_eq!(found, Recovered::default());
    assert_eq!(journal.checkpointed(), 0);
    assert_eq!(Journal::peek(&pool, OFF, LEN, |_| true), Ok(vec![]));
}

#[test]
fn commits_of_every_size_up_to_the_capacity_store_their_words() {
    for domain in [Domain::Line, Domain::Cache, Domain::Page] {
        let pool = pool(domain);
        let mut journal = open(&pool);
        let capacity = journal.capacity();
        assert_eq!(capacity, 14 * 4 - 2);
        for count in 0..=capacity as u64 {
            commit(&mut journal, &words(0..count, count)).expect("commit");
            for i in 0..capacity as u64 {
                let expected = if i < count { count } else { 0 };
                assert_eq!(pool.load(WORDS + 8 * i), expected, "word {i} of {count}");
            }
            journal = open(&pool);
        }
    }
}

#[test]
fn an_uncheckpointed_commit_is_replayed_and_a_checkpointed_one_is_not() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    let sequence = commit(&mut journal, &words(0..3, 7)).expect("commit");
    assert!(journal.checkpointed() < sequence);
    assert_eq!(Journal::peek(&pool, OFF, LEN, |_| true), Ok(words(0..3, 7)));

    let copy = copy_of(&pool);
    copy.zero(WORDS, 64);
    let (_, found) = recover(&copy).expect("journal");
    assert_eq!(
        found,
        Recovered {
            transactions: 1,
            words: 3,
            lines: 2,
        }
    );
    assert_eq!([0, 8, 16, 24].map(|i| copy.load(WORDS + i)), [7, 7, 7, 0]);

    journal.checkpoint().expect("checkpoint");
    assert!(journal.checkpointed() >= sequence);
    assert_eq!(Journal::peek(&pool, OFF, LEN, |_| true), Ok(vec![]));
    pool.zero(WORDS, 64);
    assert_eq!(recover(&pool).expect("journal").1, Recovered::default());
    assert_eq!(pool.load(WORDS), 0);
}

#[test]
fn many_transactions_are_live_until_they_take_half_of_the_ring() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    // One line each; the ring has 14.
    let sequences: Vec<u64> = (0..7)
        .map(|i| commit(&mut journal, &words(0..2, i)).expect("commit"))
        .collect();
    assert!(sequences.is_sorted_by(|a, b| a < b));
    assert_eq!((journal.checkpointed(), journal.live_lines()), (0, 7));
    let (_, found) = recover(&copy_of(&pool)).expect("journal");
    assert_eq!((found.transactions, found.lines), (7, 7));
    // The next one flushes their places, which the one after lets the head pass.
    for head in [0, sequences[6]] {
        commit(&mut journal, &words(0..2, 99)).expect("commit");
        assert_eq!(journal.checkpointed(), head);
    }
    let (_, found) = recover(&copy_of(&pool)).expect("journal");
    assert_eq!((found.transactions, found.lines), (2, 2));
}

/// A journal in a pool of its own, whose ring has so many lines.
fn ring(lines: u64, pool: u64) -> (Arc<Pool>, Journal, u64) {
    let len = (2 + lines) * 64;
    let pool = Arc::new(Pool::anonymous(pool, &options(Domain::Line)).expect("memory"));
    Journal::format(&pool, 0, len);
    let (journal, _) = Journal::recover(&pool, 0, len, |_| true).expect("journal");
    (pool, journal, len)
}

#[test]
fn a_commit_costs_in_proportion_to_its_record_however_full_the_ring_is() {
    let mut random = Random::new(1);
    const RING: u64 = 512;
    for most in [1, 5, RING / 16, RING] {
        let (pool, mut journal, len) = ring(RING, 4 << 20);
        let (mut live_most, mut written) = (0, 0);
        while written < 40 * RING {
            let lines = 1 + random.below(most);
            let mut record = Record::new();
            // Two bytes in two lines are the most lines that so little of a record changes.
            while record.is_empty() || record.lines() < lines {
                let line = (len / 64).next_multiple_of(64) + random.below(60_000);
                record.write(line * 64 + 63, &[1, 2]);
                record.set((line ^ 1) * 64 + 8 * random.below(7), 3);
            }
            if random.below(2) == 0 {
                record.rely_on_flushed();
            }
            if record.lines() > RING {
                continue;
            }
            let before = pool.stats();
            journal.commit(&record).expect("commit");
            let took = pool.stats() - before;
            let n = record.lines();
            // Its own lines, the head, and what it pays for the others.
            let flushed = match most <= RING / 16 {
                true => n + 1 + 12 * n,
                false => n + 2 + 12 * n.max(RING),
            };
            assert!(took.flushed_lines <= flushed, "{n} lines: {took:?}");
            let fences = if most <= RING / 16 { 2 } else { 3 };
            assert!(took.fences <= fences, "{n} lines: {took:?}");
            written += n;
            live_most = live_most.max(journal.live_lines());
        }
        assert!(live_most >= RING / 2, "{live_most} of {RING} are used");
        let (_, found) = Journal::recover(&copy_of(&pool), 0, len, |_| true).expect("journal");
        assert!(found.lines <= RING, "{found:?}");
    }
}

#[test]
fn what_a_mount_replays_is_bounded_however_large_the_ring_is() {
    const WINDOW: u64 = (2 << 20) / 64;
    let (pool, mut journal, len) = ring(4 * WINDOW, 16 << 20);
    let all = |count: u64, value| -> Record {
        (0..count)
            .map(|i| (len + 8 * (i % 100_000), value))
            .collect()
    };
    for (count, commits) in [(3, 40_000), (1000, 300), (20_000, 10)] {
        for i in 0..commits {
            journal.commit(&all(count, i)).expect("commit");
            assert!(journal.live_lines() <= WINDOW, "of {count} words");
        }
        let copy = copy_of(&pool);
        let (_, found) = Journal::recover(&copy, 0, len, |_| true).expect("journal");
        assert!((1..=WINDOW).contains(&found.lines), "{found:?}");
    }
    journal.commit(&all(200_000, 7)).expect("commit");
    assert_eq!(journal.live_lines(), 0);
    let (_, found) = Journal::recover(&copy_of(&pool), 0, len, |_| true).expect("journal");
    assert_eq!(found, Recovered::default());
}

#[test]
#[cfg(debug_assertions)]
fn a_store_that_bypasses_a_live_record_is_a_panic() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    let mut record = Record::new();
    record.set(WORDS, 1);
    record.write(WORDS + 62, &[1, 2, 3, 4]);
    record.set_bits(WORDS + 256, 1);
    journal.commit(&record).expect("commit");
    let bypasses = |store: &dyn Fn()| catch_unwind(AssertUnwindSafe(store)).is_err();
    let fetch_or = || {
        pool.fetch_or(WORDS, 2);
    };
    let compare_exchange = || {
        let _ = pool.compare_exchange(WORDS, 1, 2);
    };
    // Beside what the record has, and the other bits.
    pool.store(WORDS + 8, 5);
    pool.write(WORDS + 40, &[9; 22]);
    pool.write(WORDS + 66, &[9; 8]);
    pool.fetch_and(WORDS + 256, 0);
    assert!(bypasses(&|| pool.store(WORDS, 2)));
    assert!(bypasses(&fetch_or));
    assert!(bypasses(&compare_exchange));
    assert!(bypasses(&|| pool.write(WORDS + 61, &[0, 0])));
    assert!(bypasses(&|| drop(
        pool.write_streaming(WORDS - 64, &[0; 4096])
    )));
    assert!(bypasses(&|| pool.write_nt(WORDS, &[0; 64])));
    assert!(bypasses(&|| pool.zero(WORDS - 64, 127)));
    assert!(bypasses(&|| pool.copy(WORDS + 640, WORDS + 65, 8)));
    // Later records may.
    commit(&mut journal, &[(WORDS, 2), (WORDS + 64, 2)]).expect("commit");
    assert!(bypasses(&|| pool.store(WORDS + 64, 2)));
    journal.checkpoint().expect("checkpoint");
    pool.zero(WORDS, 256);
    // What a record had that is none any more, beside what one has, in the same word and line.
    let mut record = Record::new();
    record.write(WORDS + 65, &[1, 2]);
    journal.commit(&record).expect("commit");
    pool.write(WORDS + 62, &[0; 3]);
    pool.write(WORDS + 67, &[0; 9]);
    assert!(bypasses(&|| pool.write(WORDS + 62, &[0; 4])));
    assert!(bypasses(&|| pool.write(WORDS + 66, &[0])));
}

#[test]
fn a_checkpoint_is_made_in_parts_between_commits() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    let line = |i| [(WORDS + 64 * i, i)];
    let sequences: Vec<u64> = (0..5)
        .map(|i| commit(&mut journal, &line(i)).expect("commit"))
        .collect();
    assert_eq!(journal.checkpoint_some(3), Ok(true));
    assert_eq!((journal.checkpointed(), journal.live_lines()), (0, 5));
    commit(&mut journal, &line(5)).expect("commit");
    // The rest of the five; the head follows with the next commit.
    assert_eq!(journal.checkpoint_some(2), Ok(true));
    assert_eq!((journal.checkpointed(), journal.live_lines()), (0, 1));
    commit(&mut journal, &line(6)).expect("commit");
    assert_eq!(journal.checkpointed(), sequences[4]);
    assert_eq!(journal.checkpoint_some(u64::MAX), Ok(false));
    assert_eq!(journal.live_lines(), 0);
    journal.checkpoint().expect("checkpoint");
    assert_eq!(Journal::peek(&pool, OFF, LEN, |_| true), Ok(vec![]));
}

#[test]
fn a_line_that_many_transactions_change_is_flushed_once_by_a_checkpoint() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    for i in 0..10 {
        commit(&mut journal, &words(0..2, i)).expect("commit");
    }
    let before = pool.stats();
    journal.checkpoint().expect("checkpoint");
    let took = pool.stats() - before;
    // The line, and the head.
    assert_eq!((took.flushed_lines, took.fences), (2, 2));
}

#[test]
fn numbers_never_fall() {
    for domain in [Domain::Line, Domain::Cache] {
        let pool = pool(domain);
        let mut journal = open(&pool);
        let (mut newest, mut checkpointed) = (0, 0);
        for i in 0..100u64 {
            let sequence = commit(&mut journal, &words(0..1 + i % 9, i)).expect("commit");
            assert!(sequence >= newest && journal.checkpointed() >= checkpointed);
            (newest, checkpointed) = (sequence, journal.checkpointed());
            // What is visible is durable there.
            assert!(domain == Domain::Line || checkpointed == newest);
        }
    }
}

#[test]
fn bits_ranges_and_what_is_carried_are_stored_and_replayed() {
    for domain in [Domain::Line, Domain::Cache, Domain::Page] {
        let pool = pool(domain);
        let mut journal = open(&pool);
        pool.store(WORDS, 0b1000);
        pool.write(WORDS + 500, b"private");
        let mut record = Record::new();
        record.set_bits(WORDS, 0b11);
        record.write(WORDS + 61, b"over two lines");
        record.carry(&pool, WORDS + 500, 7);
        record.set(WORDS + 256, 9);
        journal.commit(&record).expect("commit");
        let is_there = |pool: &Pool| {
            let mut bytes = [0; 512];
            pool.read(WORDS, &mut bytes);
            assert_eq!(bytes[0], 0b1011);
            assert_eq!(&bytes[61..75], b"over two lines");
            assert_eq!(bytes[256], 9);
            assert_eq!(&bytes[500..507], b"private");
        };
        is_there(&pool);
        let copy = copy_of(&pool);
        let replays = domain != Domain::Cache; // there all is durable at once
        if replays {
            copy.zero(WORDS, 512);
            copy.store(WORDS, 0b1000);
        }
        let peeked = Journal::peek(&copy, OFF, LEN, |_| true).expect("readable");
        let (_, found) = recover(&copy).expect("journal");
        assert_eq!(found.transactions, u64::from(replays));
        is_there(&copy);
        for (off, value) in peeked {
            assert_eq!(copy.load(off), value);
        }
    }
}

/// Whatever the order in which they were put together: what is carried was in place before.
#[test]
fn what_a_record_stores_is_newer_than_what_it_carries_there() {
    for carried_last in [true, false] {
        let pool = pool(Domain::Page);
        let mut journal = open(&pool);
        pool.write(WORDS, b"from before");
        let mut record = Record::new();
        if !carried_last {
            record.carry_loose(&pool, WORDS, 64);
        }
        record.write(WORDS + 5, b"behind");
        if carried_last {
            record.carry_loose(&pool, WORDS, 64);
        }
        record.write(WORDS + 9, b"ld");
        journal.commit(&record).expect("commit");
        let is_there = |pool: &Pool| {
            let mut bytes = [0; 11];
            pool.read(WORDS, &mut bytes);
            assert_eq!(&bytes, b"from behild");
        };
        is_there(&pool);
        let copy = copy_of(&pool);
        recover(&copy).expect("journal");
        is_there(&copy);
    }
}

#[test]
fn a_commit_of_one_word_is_not_undone_by_an_older_record() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    commit(&mut journal, &words(0..4, 1)).expect("commit");
    commit(&mut journal, &[(WORDS, 2)]).expect("commit");
    let (_, found) = recover(&pool).expect("journal");
    let expected = Recovered {
        transactions: 2,
        words: 5,
        lines: 3,
    };
    assert_eq!(found, expected);
    assert_eq!([0, 8].map(|i| pool.load(WORDS + i)), [2, 1]);
}

#[test]
fn of_two_values_for_a_word_the_later_counts() {
    for domain in [Domain::Line, Domain::Cache] {
        let pool = pool(domain);
        commit(&mut open(&pool), &[(WORDS, 1), (WORDS + 64, 2), (WORDS, 3)]).expect("commit");
        recover(&pool).expect("journal");
        assert_eq!(pool.load(WORDS), 3);
    }
}

#[test]
fn records_of_an_earlier_format_are_never_replayed() {
    let pool = pool(Domain::Line);
    for _ in 0..50 {
        commit(&mut open(&pool), &words(0..6, 1)).expect("commit");
        Journal::format(&pool, OFF, LEN);
        pool.zero(WORDS, 64);
        assert_eq!(recover(&pool).expect("journal").1, Recovered::default());
        assert_eq!(pool.load(WORDS), 0);
    }
}

#[test]
fn a_target_that_is_not_valid_is_reported_and_nothing_is_stored() {
    let pool = pool(Domain::Line);
    commit(&mut open(&pool), &[(WORDS, 1), (WORDS + 64, 1)]).expect("commit");
    pool.zero(WORDS, 128);
    let refused = Journal::recover(&pool, OFF, LEN, |word| word != WORDS + 64);
    let Err(JournalError::Target {
        sequence: 0, word, ..
    }) = refused.map(|_| ())
    else {
        panic!("accepted")
    };
    assert_eq!(word, WORDS + 64);
    assert_eq!(pool.load(WORDS), 0);
}

#[test]
fn a_read_only_pool_is_peeked_and_not_recovered() {
    let pool = pool(Domain::Line);
    commit(&mut open(&pool), &words(0..2, 5)).expect("commit");
    let read_only = Options {
        read_only: true,
        ..Options::default()
    };
    let pool = Arc::new(Pool::from_bytes(&pool.snapshot(), &read_only).expect("memory"));
    assert_eq!(Journal::peek(&pool, OFF, LEN, |_| true), Ok(words(0..2, 5)));
    let refused = recover(&pool).map(|_| ());
    assert_eq!(
        refused,
        Err(JournalError::ReadOnly {
            off: OFF,
            transactions: 1
        })
    );
}

#[test]
fn an_area_that_does_not_fit_is_an_error() {
    let pool = pool(Domain::Line);
    let areas = [
        (1, LEN),
        (OFF, LEN_MIN - 1),
        (OFF, u64::MAX),
        (16384, LEN),
        (u64::MAX - 63, LEN),
    ];
    for (off, len) in areas {
        let refused = Journal::recover(&pool, off, len, |_| true).map(|_| ());
        assert!(
            matches!(refused, Err(JournalError::Area { .. })),
            "{len} at {off}: {refused:?}"
        );
    }
    let shorter = Journal::peek(&pool, OFF, LEN - 64, |_| true);
    assert!(
        matches!(shorter, Err(JournalError::Header { .. })),
        "{shorter:?}"
    );
}

#[test]
fn damage_anywhere_is_an_error_or_no_transaction_but_never_a_panic() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    for i in 0..20 {
        commit(&mut journal, &words(0..7, i)).expect("commit");
    }
    let image = pool.snapshot();
    let mut random = Random::new(1);
    for round in 0..4000 {
        let mut damaged = image.clone();
        for _ in 0..1 + round % 3 {
            let at = (OFF + random.below(LEN)) as usize;
            damaged[at] = match round % 2 {
                0 => damaged[at] ^ 1 << random.below(8),
                _ => random.number() as u8,
            };
        }
        let pool = Arc::new(Pool::from_bytes(&damaged, &options(Domain::Line)).expect("memory"));
        if let Ok((mut journal, _)) = recover(&pool) {
            commit(&mut journal, &words(0..3, 99)).expect("commit");
            assert_eq!(pool.load(WORDS), 99);
        }
    }
    // Nothing of sense at all.
    for byte in [0, 0xff, 0x55] {
        pool.write(OFF, &[byte; LEN as usize]);
        assert!(matches!(
            recover(&pool).map(|_| ()),
            Err(JournalError::Header { .. })
        ));
    }
}

#[test]
fn every_flipped_bit_of_header_and_head_is_noticed_or_harmless() {
    let pool = pool(Domain::Line);
    commit(&mut open(&pool), &words(0..2, 1)).expect("commit");
    let image = pool.snapshot();
    let mut unnoticed = 0;
    for bit in 0..(40 + 8) * 8usize {
        let at = if bit < 40 * 8 {
            OFF as usize + bit / 8
        } else {
            OFF as usize + 64 + bit / 8 - 40
        };
        let mut damaged = image.clone();
        damaged[at] ^= 1 << (bit % 8);
        let pool = Arc::new(Pool::from_bytes(&damaged, &options(Domain::Line)).expect("memory"));
        unnoticed += usize::from(recover(&pool).is_ok());
    }
    // The head has 12 check bits: a damaged one passes once in 4096.
    assert!(unnoticed <= 1, "{unnoticed} pass");
}

#[test]
fn mistakes_of_the_caller_panic_before_anything_is_stored() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    let too_many = words(0..journal.capacity() as u64 + 1, 1);
    let in_the_area = vec![(WORDS, 1), (OFF + 128, 1)];
    for bad in [
        vec![(WORDS + 4, 1)],
        vec![(WORDS, 1), (1 << 40, 1)],
        in_the_area,
        too_many,
    ] {
        let before = pool.snapshot();
        let result = catch_unwind(AssertUnwindSafe(|| commit(&mut journal, &bad)));
        assert!(result.is_err() && pool.snapshot() == before);
    }
}

#[test]
fn commits_are_counted_by_the_way_they_took() {
    for domain in [Domain::Line, Domain::Cache] {
        let pool = pool(domain);
        let mut journal = open(&pool);
        commit(&mut journal, &words(0..1, 1)).expect("commit");
        for i in 0..100 {
            commit(&mut journal, &words(0..4, i)).expect("commit");
        }
        commit(&mut journal, &words(0..17, 1)).expect("commit");
        let stats = pool.stats();
        // Without a record the next process could not know that a word it sees is not durable
        // (M15).
        assert_eq!(stats.commits_word, u64::from(domain == Domain::Cache));
        let all = stats.commits_word + stats.commits_log + stats.commits_transaction;
        assert_eq!(all, 102);
        let expected = domain == Domain::Cache && Rtm::detect() == Rtm::Usable;
        assert_eq!(journal.transactions().is_some(), expected);
        assert!(expected || stats.commits_transaction == 0);
    }
}

/// What becomes of a record that stores words in so many lines, and bytes beside one of them.
fn committed(aborts: Aborts, lines: u64) -> Stats {
    let pool = pool(Domain::Cache);
    let mut journal = open(&pool);
    journal.set_transactions(Arc::new(Software::new(20, aborts)));
    let before = pool.stats();
    let mut record: Record = (0..lines).map(|n| (WORDS + n * 64, n + 1)).collect();
    record.write(WORDS + 13, &[7; 6]);
    journal.commit(&record).expect("commit");
    assert_eq!(journal.live_lines(), 0);
    let word = |n: u64| pool.load(WORDS + n * 8);
    let whole = (0..lines).all(|n| pool.load(WORDS + n * 64) == n + 1);
    assert!(
        whole && (word(1), word(2)) == (0x07_0707 << 40, 0x07_0707),
        "{aborts:?}"
    );
    pool.stats() - before
}

#[test]
fn a_record_that_no_transaction_commits_is_logged() {
    let ways = |aborts, lines| {
        let spent = committed(aborts, lines);
        let aborted = (
            spent.aborts_conflict,
            spent.aborts_capacity,
            spent.aborts_other,
        );
        (spent.commits_transaction, spent.commits_log, aborted)
    };
    assert_eq!(ways(Aborts::Never, 20), (1, 0, (0, 0, 0)));
    assert_eq!(ways(Aborts::Never, 21), (0, 1, (0, 1, 0)));
    for (cause, aborted) in [
        (Abort::Conflict, (8, 0, 0)),
        (Abort::Capacity, (0, 1, 0)),
        (Abort::Other, (0, 0, 2)),
    ] {
        assert_eq!(ways(Aborts::Always(cause), 20), (0, 1, aborted));
    }
    let (first, cause) = (0, Abort::Conflict);
    let count = 7;
    let some = Aborts::From {
        first,
        count,
        cause,
    };
    assert_eq!(ways(some, 20), (1, 0, (7, 0, 0)));
}

/// To find out that it does not fit would cost a batch of the persister as much as the log does.
#[test]
fn a_record_of_many_lines_is_not_tried_in_a_transaction() {
    let (len, first) = (66 * LINE, 4096 * 4);
    let pool = Pool::anonymous(1 << 20, &options(Domain::Cache)).expect("memory");
    Journal::format(&pool, 0, len);
    let pool = Arc::new(pool);
    let (mut journal, _) = Journal::recover(&pool, 0, len, |_| true).expect("journal");
    let software = Arc::new(Software::new(1000, Aborts::Never));
    journal.set_transactions(software.clone());
    for (lines, bytes, tried) in [(128, 0, 1), (129, 0, 0), (127, 64, 1), (127, 65, 0)] {
        let before = software.attempts();
        let mut record: Record = (0..lines).map(|n| (first + n * LINE, n)).collect();
        if bytes > 0 {
            record.write(first - 2 * LINE, &vec![7; bytes]);
        }
        journal.commit(&record).expect("commit");
        assert_eq!(software.attempts() - before, tried, "{lines}, {bytes}");
    }
}

#[test]
fn a_hardware_transaction_is_not_undone_by_an_older_record() {
    // In domain cache either may be a hardware transaction, or logged.
    let pool = pool(Domain::Cache);
    let mut journal = open(&pool);
    for i in 1..200 {
        commit(&mut journal, &words(0..20, 2 * i)).expect("commit");
        commit(&mut journal, &words(3..9, 2 * i + 1)).expect("commit");
        recover(&pool).expect("journal");
        journal = open(&pool);
        let expected: Vec<u64> = (0..20)
            .map(|w| 2 * i + u64::from((3..9).contains(&w)))
            .collect();
        assert_eq!(
            (0..20)
                .map(|w| pool.load(WORDS + 8 * w))
                .collect::<Vec<_>>(),
            expected
        );
    }
}

#[test]
fn a_logged_commit_takes_a_fence_and_its_record_s_lines() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    let mut record: Record = [(WORDS, 2), (WORDS + 640, 2)].into_iter().collect();
    for fences in [1, 2] {
        let before = pool.stats();
        journal.commit(&record).expect("commit");
        let took = pool.stats() - before;
        assert_eq!((took.fences, took.flushed_lines), (fences, 1));
        record.rely_on_flushed();
    }
}

#[test]
fn a_journal_of_the_first_format_is_refused_with_what_to_do() {
    let pool = pool(Domain::Line);
    pool.store(OFF + 8, 1);
    let refused = recover(&pool).map(|_| ()).expect_err("another format");
    assert!(
        refused.to_string().contains("run `tureen fsck`"),
        "{refused}"
    );
}

#[test]
fn a_poisoned_pool_commits_nothing() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    pool.poison("a test");
    assert!(commit(&mut journal, &words(0..2, 1)).is_err());
    assert_eq!(pool.load(WORDS), 0);
}

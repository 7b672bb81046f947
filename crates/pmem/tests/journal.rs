//! The journal without crashes: what it accepts, counts, reports and refuses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pmem::journal::{LEN_MIN, Method};
use pmem::{Domain, Journal, JournalError, Options, Pool, Recovered, Rtm};

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

fn recover(pool: &Arc<Pool>) -> Result<(Journal, Recovered), JournalError> {
    Journal::recover(pool, OFF, LEN, |_| true)
}

fn words(range: std::ops::Range<u64>, value: u64) -> Vec<(u64, u64)> {
    range.map(|i| (WORDS + 8 * i, value)).collect()
}

#[test]
fn a_new_journal_has_nothing_to_replay() {
    let pool = pool(Domain::Line);
    let (journal, found) = recover(&pool).expect("journal");
    assert_eq!(
        found,
        Recovered {
            transactions: 0,
            words: 0
        }
    );
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
            journal.commit(&words(0..count, count)).expect("commit");
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
    let sequence = journal.commit(&words(0..3, 7)).expect("commit");
    assert!(journal.checkpointed() < sequence);
    assert_eq!(Journal::peek(&pool, OFF, LEN, |_| true), Ok(words(0..3, 7)));

    let image = pool.snapshot();
    let copy = Arc::new(Pool::from_bytes(&image, &options(Domain::Line)).expect("memory"));
    copy.zero(WORDS, 64);
    let (_, found) = recover(&copy).expect("journal");
    assert_eq!(
        found,
        Recovered {
            transactions: 1,
            words: 3
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
fn numbers_never_fall_and_each_commit_checkpoints_the_one_before() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    let mut newest = 0;
    for i in 0..100u64 {
        let sequence = journal.commit(&words(0..1 + i % 9, i)).expect("commit");
        assert!(sequence >= newest && journal.checkpointed() >= newest);
        newest = sequence;
    }
}

#[test]
fn a_commit_of_one_word_is_not_undone_by_an_older_record() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    journal.commit(&words(0..4, 1)).expect("commit");
    journal.commit(&[(WORDS, 2)]).expect("commit");
    let (_, found) = recover(&pool).expect("journal");
    let expected = Recovered {
        transactions: 1,
        words: 1,
    };
    assert_eq!(found, expected);
    assert_eq!([0, 8].map(|i| pool.load(WORDS + i)), [2, 1]);
}

#[test]
fn of_two_values_for_a_word_the_later_counts() {
    for domain in [Domain::Line, Domain::Cache] {
        let pool = pool(domain);
        open(&pool)
            .commit(&[(WORDS, 1), (WORDS + 64, 2), (WORDS, 3)])
            .expect("commit");
        recover(&pool).expect("journal");
        assert_eq!(pool.load(WORDS), 3);
    }
}

#[test]
fn records_of_an_earlier_format_are_never_replayed() {
    let pool = pool(Domain::Line);
    for _ in 0..50 {
        open(&pool).commit(&words(0..6, 1)).expect("commit");
        Journal::format(&pool, OFF, LEN);
        pool.zero(WORDS, 64);
        assert_eq!(recover(&pool).expect("journal").1, Recovered::default());
        assert_eq!(pool.load(WORDS), 0);
    }
}

#[test]
fn a_target_that_is_not_valid_is_reported_and_nothing_is_stored() {
    let pool = pool(Domain::Line);
    open(&pool)
        .commit(&[(WORDS, 1), (WORDS + 64, 1)])
        .expect("commit");
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
    open(&pool).commit(&words(0..2, 5)).expect("commit");
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
        journal.commit(&words(0..7, i)).expect("commit");
    }
    let image = pool.snapshot();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..4000 {
        let mut damaged = image.clone();
        for _ in 0..1 + round % 3 {
            let at = (OFF + random() % LEN) as usize;
            damaged[at] = match round % 2 {
                0 => damaged[at] ^ 1 << (random() % 8),
                _ => random() as u8,
            };
        }
        let pool = Arc::new(Pool::from_bytes(&damaged, &options(Domain::Line)).expect("memory"));
        if let Ok((mut journal, _)) = recover(&pool) {
            journal.commit(&words(0..3, 99)).expect("commit");
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
    open(&pool).commit(&words(0..2, 1)).expect("commit");
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
        let result = catch_unwind(AssertUnwindSafe(|| journal.commit(&bad)));
        assert!(result.is_err() && pool.snapshot() == before);
    }
}

#[test]
fn commits_are_counted_by_the_way_they_took() {
    for domain in [Domain::Line, Domain::Cache] {
        let pool = pool(domain);
        let mut journal = open(&pool);
        journal.commit(&words(0..1, 1)).expect("commit");
        for i in 0..100 {
            journal.commit(&words(0..4, i)).expect("commit");
        }
        journal.commit(&words(0..17, 1)).expect("commit");
        let stats = pool.stats();
        // Without a record the next process could not know that a word it sees is not durable
        // (M15).
        assert_eq!(stats.commits_word, u64::from(domain == Domain::Cache));
        let all = stats.commits_word + stats.commits_log + stats.commits_rtm;
        assert_eq!(all, 102);
        match journal.method() {
            Method::Log => assert_eq!(stats.commits_rtm, 0),
            Method::Rtm => assert!(stats.commits_log >= 1, "17 words are too many"),
        }
        let expected = domain == Domain::Cache && Rtm::detect() == Rtm::Usable;
        assert_eq!(journal.method() == Method::Rtm, expected);
    }
}

#[test]
fn a_hardware_transaction_is_not_undone_by_an_older_record() {
    // In domain cache: more than 16 words are logged, fewer may be a hardware transaction.
    let pool = pool(Domain::Cache);
    let mut journal = open(&pool);
    for i in 1..200 {
        journal.commit(&words(0..20, 2 * i)).expect("commit");
        journal.commit(&words(3..9, 2 * i + 1)).expect("commit");
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
fn a_logged_commit_takes_two_fences_and_few_lines() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    journal.commit(&words(0..2, 1)).expect("commit");
    let before = pool.stats();
    journal
        .commit(&[(WORDS, 2), (WORDS + 640, 2)])
        .expect("commit");
    let took = pool.stats() - before;
    // Record, head, and the two words' lines.
    assert_eq!((took.fences, took.flushed_lines), (2, 4));
}

#[test]
fn a_poisoned_pool_commits_nothing() {
    let pool = pool(Domain::Line);
    let mut journal = open(&pool);
    pool.poison("a test");
    assert!(journal.commit(&words(0..2, 1)).is_err());
    assert_eq!(pool.load(WORDS), 0);
}

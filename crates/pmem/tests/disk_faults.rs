//! A pool on a disk of which one request fails, whichever it is: what was committed before is there
//! afterwards, by whole transactions, and the pool says that it failed.

use std::sync::Arc;

use block::{Disk, Fault, Faults, Memory, Op};
use pmem::{Journal, Options, PAGE, Pool, paged};
use rustix::io::Errno;

const PAGES: u64 = 64;
const JOURNAL_LEN: u64 = 4 * PAGE;
/// In a page each, more of them than there is room for.
const WORDS: std::ops::Range<u64> = 8..32;
const ROUNDS: u64 = 3;

/// A cache of the fewest pages, so that pages go and are written to make room.
fn options(faults: bool) -> Options {
    let small = paged::Options::new(0);
    Options {
        paged: Some(paged::Options { faults, ..small }),
        ..Options::default()
    }
}

fn word(number: u64) -> u64 {
    number * PAGE + 8 * (number % 512)
}

fn formatted() -> Vec<u8> {
    let memory = Arc::new(Memory::new(PAGES * PAGE));
    let pool = Pool::on_disk(Disk::new(memory.clone()), &options(false)).expect("a pool");
    Journal::format(&pool, 0, JOURNAL_LEN);
    pool.fence().expect("no fault");
    drop(pool);
    memory.contents()
}

/// Commits values to all words at once, one after another, until the disk fails. Returns the last
/// value that was committed, and whether it failed.
fn commit_all(device: Arc<Faults>, options: &Options) -> (u64, bool) {
    let Ok(pool) = Pool::on_disk(Disk::new(device), options) else {
        return (0, true);
    };
    let pool = Arc::new(pool);
    let Ok((mut journal, _)) = Journal::recover(&pool, 0, JOURNAL_LEN, |_| true) else {
        assert!(pool.poisoned().is_some());
        return (0, true);
    };
    for value in 1..=ROUNDS {
        let record = WORDS.map(|number| (word(number), value)).collect();
        // A page of its own, which the record does not cover, beside: room is made by writing it.
        pool.store((56 + value % 8) * PAGE, value);
        if journal.commit(&record).is_err() {
            assert!(pool.poisoned().is_some());
            pool.fence().expect_err("poisoned for good");
            return (value - 1, true);
        }
    }
    // What was written to make room may fail until here.
    pool.flush(0, pool.len());
    (ROUNDS, pool.fence().is_err())
}

/// The value in all words, once recovered.
fn recovered(image: Vec<u8>) -> u64 {
    let disk = Disk::new(Arc::new(Memory::from_bytes(image)));
    let pool = Arc::new(Pool::on_disk(disk, &options(false)).expect("a pool"));
    Journal::recover(&pool, 0, JOURNAL_LEN, |_| true).expect("a journal");
    let values: Vec<u64> = WORDS.map(|number| pool.load(word(number))).collect();
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    values[0]
}

#[test]
fn whichever_request_fails_what_was_committed_is_there() {
    let start = formatted();
    let run = |faults: bool, fault: Option<(usize, Fault)>| {
        let memory = Arc::new(Memory::from_bytes(start.clone()));
        let device = Arc::new(Faults::new(memory.clone()));
        if let Some((at, fault)) = fault {
            device.plan(at, fault);
        }
        let (committed, failed) = commit_all(device.clone(), &options(faults));
        (committed, failed, device.seen(), memory.contents())
    };
    for faults in [false, true] {
        let (committed, failed, seen, image) = run(faults, None);
        assert!(!failed && committed == ROUNDS && recovered(image) == ROUNDS);
        assert!(
            [Op::Read, Op::Write, Op::Flush]
                .iter()
                .all(|op| seen.contains(op))
        );
        for at in 0..seen.len() {
            for fault in [
                Fault::Fail(Errno::NOSPC),
                Fault::FailDone(Errno::IO),
                Fault::Short(Errno::IO),
                Fault::Vanish,
            ] {
                let context = format!("request {at} of {}: {fault:?}", seen.len());
                let (committed, failed, seen, image) = run(faults, Some((at, fault)));
                // A read that was only ahead of need may fail without anybody's notice.
                let noticed = failed || seen.get(at).is_none_or(|op| *op == Op::Read);
                assert!(noticed, "{context}");
                let found = recovered(image);
                let possible = committed..=(committed + 1).min(ROUNDS);
                assert!(
                    possible.contains(&found),
                    "{context}: {found} after {committed}"
                );
            }
        }
    }
}

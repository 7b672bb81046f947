//! The properties: calls of a pool do what a recorder is told, and the comparison can fail.

use std::sync::Arc;

use block::Random;
use parking_lot::Mutex;

use super::compare::{Told, Watched, compare};
use super::{Event, observe};
use crate::{
    Domain, FlushInstruction, Journal, LINE, Options, PAGE, Pool, Recorder, StoreKind, raw,
};

const DOMAINS: [Domain; 3] = [Domain::Line, Domain::Cache, Domain::Page];
const LEN: u64 = 8 * PAGE;
/// Calls of a random program.
const CALLS: usize = 40;
const PROGRAMS: u64 = 3;

/// Keeps what it is told.
#[derive(Default)]
struct Log(Mutex<Vec<Told>>);

impl Recorder for Log {
    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        let len = bytes.len() as u64;
        self.0.lock().push(Told::Store { off, len, kind });
    }
    fn flush(&self, off: u64, len: u64) {
        self.0.lock().push(Told::Flush { off, len });
    }
    fn fence(&self) {
        self.0.lock().push(Told::Fence);
    }
    fn mark(&self, _: &str) {}
}

fn pool(bytes: &[u8], domain: Domain, recorder: Option<Arc<dyn Recorder>>) -> Arc<Pool> {
    let options = Options {
        domain: Some(domain),
        recorder,
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

fn watched(pool: &Pool, how: FlushInstruction) -> Watched {
    Watched {
        addresses: pool.region.address(),
        domain: pool.domain(),
        how,
    }
}

/// Runs a program on a recorded pool, and on another one as it runs in production, step by step.
fn check(
    start: &[u8],
    domain: Domain,
    how: FlushInstruction,
    program: impl Fn(&Arc<Pool>),
) -> Result<(), String> {
    let log = Arc::new(Log::default());
    let recorded = pool(start, domain, Some(log.clone()));
    log.0.lock().clear(); // of the sync at opening, which nobody steps through
    program(&recorded);
    let mut plain = pool(start, domain, None);
    let flushed_by = &mut Arc::get_mut(&mut plain).expect("nobody else has it").flush;
    if domain == Domain::Line {
        *flushed_by = how;
    }
    let watched = watched(&plain, how);
    let done = observe(watched.addresses.clone(), || program(&plain));
    compare(&log.0.lock(), &done, &watched)
}

/// The instructions that this processor has: whoever has a better one has the worse ones too.
fn instructions() -> Vec<FlushInstruction> {
    let all = [
        FlushInstruction::Clwb,
        FlushInstruction::Clflushopt,
        FlushInstruction::Clflush,
    ];
    let best = FlushInstruction::detect();
    all.into_iter().skip_while(|how| *how != best).collect()
}

/// A call of a pool.
#[derive(Debug, Clone, Copy)]
enum Call {
    Store(u64),
    FetchOr(u64),
    FetchAnd(u64),
    /// The flag: whether the word is as expected.
    CompareExchange(u64, bool),
    Write(u64, u64),
    WriteNt(u64, u64),
    WriteStreaming(u64, u64),
    Zero(u64, u64),
    Copy(u64, u64, u64),
    Flush(u64, u64),
    Fence,
}

impl Call {
    fn make(self, pool: &Pool) {
        // Not made when needed: that would be most of the steps.
        static DATA: [u8; 2 * PAGE as usize] = [0xa5; 2 * PAGE as usize];
        let data = |len: u64| &DATA[..len as usize];
        match self {
            Call::Store(off) => pool.store(off, 7),
            Call::FetchOr(off) => drop(pool.fetch_or(off, 5)),
            Call::FetchAnd(off) => drop(pool.fetch_and(off, 5)),
            Call::CompareExchange(off, fits) => {
                let current = pool.load(off);
                let expected = if fits { current } else { !current };
                assert_eq!(pool.compare_exchange(off, expected, 9).is_ok(), fits);
            }
            Call::Write(off, len) => pool.write(off, data(len)),
            Call::WriteNt(off, len) => pool.write_nt(off, data(len)),
            Call::WriteStreaming(off, len) => drop(pool.write_streaming(off, data(len))),
            Call::Zero(off, len) => pool.zero(off, len),
            Call::Copy(from, to, len) => pool.copy(from, to, len),
            Call::Flush(off, len) => pool.flush(off, len),
            Call::Fence => pool.fence().expect("fence"),
        }
    }
}

/// Random calls. The token of a failure is the seed.
struct Program(Random);

impl Program {
    fn word(&mut self) -> u64 {
        8 * self.0.below(LEN / 8)
    }

    /// Mostly a few lines at any alignment, at times beyond each threshold of the copies. Few are
    /// long, as each byte of them is a step.
    fn range(&mut self) -> (u64, u64) {
        let len = match self.0.below(32) {
            0 => self.0.below(3 * PAGE / 2),
            1..=3 => self.0.below(300),
            4..=7 => LINE * self.0.below(6),
            _ => self.0.below(3 * LINE),
        };
        (self.0.below(LEN - len), len)
    }

    fn call(&mut self) -> Call {
        let (off, len) = self.range();
        match self.0.below(20) {
            0 => Call::Store(self.word()),
            1 => Call::FetchOr(self.word()),
            2 => Call::FetchAnd(self.word()),
            3 => Call::CompareExchange(self.word(), self.0.below(2) == 0),
            4 | 5 => Call::Write(off, len),
            6 => Call::WriteNt(off, len),
            7 => Call::WriteStreaming(self.0.below(2 * PAGE), PAGE + self.0.below(128)),
            8 => Call::Zero(off, len),
            9 => Call::Copy(off, self.0.below(LEN - len), len),
            10..=15 => Call::Flush(off, len),
            16 => {
                let len = self.0.below(4 * PAGE);
                Call::Flush(self.0.below(LEN - len), len)
            }
            _ => Call::Fence,
        }
    }
}

fn check_random_calls(seed: u64, domain: Domain, how: FlushInstruction) {
    let mut program = Program(Random::new(seed));
    let calls: Vec<Call> = (0..CALLS).map(|_| program.call()).collect();
    let program = |pool: &Arc<Pool>| calls.iter().for_each(|call| call.make(pool));
    if let Err(why) = check(&vec![1; LEN as usize], domain, how, program) {
        let (replay, how) = (format!("PMEM_SEED={seed}"), how.name());
        panic!("{replay}, domain {domain}, {how}: {why}; of {calls:?}");
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("PMEM_SEED") {
        Ok(seed) => vec![seed.parse().expect("PMEM_SEED is a number")],
        Err(_) => (0..PROGRAMS).collect(),
    }
}

#[test]
fn in_domain_line_each_call_does_what_the_recorder_is_told_with_each_flush_instruction() {
    assert!(!instructions().is_empty());
    for how in instructions() {
        for seed in seeds() {
            check_random_calls(seed, Domain::Line, how);
        }
    }
}

#[test]
fn in_domain_cache_fences_and_nothing_is_written_back() {
    for seed in seeds() {
        check_random_calls(seed, Domain::Cache, FlushInstruction::None);
    }
}

#[test]
fn in_domain_page_each_fence_syncs_the_pages_of_all_flushed_ranges() {
    for seed in seeds() {
        check_random_calls(seed, Domain::Page, FlushInstruction::None);
    }
}

#[test]
fn a_mapped_image_file_is_synced_as_anonymous_memory_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        domain: Some(Domain::Page),
        paged: None,
        ..Options::default()
    };
    let pool = Pool::create(&dir.path().join("image"), LEN, &options).expect("create");
    let watched = watched(&pool, FlushInstruction::None);
    let done = observe(watched.addresses.clone(), || {
        pool.store(PAGE, 1);
        pool.flush(PAGE, 8);
        pool.flush(3 * PAGE - 1, 2);
        pool.fence().expect("fence");
        pool.fence().expect("fence");
    });
    let told = [
        stored(PAGE, 8),
        flushed(PAGE, 8),
        flushed(3 * PAGE - 1, 2),
        Told::Fence,
        Told::Fence,
    ];
    compare(&told, &done, &watched).expect("equal");
}

#[test]
fn commits_of_a_journal_and_its_recovery_do_what_the_recorder_is_told() {
    const JOURNAL: u64 = 1024;
    let formatted = pool(&vec![0; LEN as usize], Domain::Line, None);
    Journal::format(&formatted, 0, JOURNAL);
    let start = formatted.snapshot();
    let program = |pool: &Arc<Pool>| {
        let commits = |from: u64| {
            let (mut journal, found) =
                Journal::recover(pool, 0, JOURNAL, |_| true).expect("a journal");
            for i in from..from + 4 {
                let words = [4096, 4104, 8192, 12_288].map(|word| (word, i));
                let words = words.into_iter().take(i as usize % 4);
                journal.commit(&words.collect()).expect("commit");
            }
            found.transactions
        };
        assert_eq!(commits(0), 0);
        // As after a crash: what was not checkpointed is replayed.
        assert_eq!(commits(5), 3);
        pool.fence().expect("fence");
    };
    // In domain `cache` commits may be hardware transactions, which are never recorded.
    for domain in [Domain::Line, Domain::Page] {
        check(&start, domain, FlushInstruction::detect(), program).expect("equal");
    }
}

#[test]
fn write_back_takes_every_instruction_the_processor_has() {
    // Two lines by a word across their border, and the last line by its last byte.
    const BORDER: u64 = LINE - 4;
    const LAST: u64 = LEN - LINE;
    let pool = pool(&vec![1; LEN as usize], Domain::Line, None);
    let base = pool.region.address().start;
    let weakest = [FlushInstruction::None];
    for how in instructions().into_iter().chain(weakest) {
        let done = observe(pool.region.address(), || {
            pool.region.write(BORDER, &[2; 8]);
            pool.region.write(LEN - 1, &[3]);
            pool.region.write_back(how, BORDER, 8);
            pool.region.write_back(how, LEN - 1, 1);
            raw::store_fence();
            // A panic here is one of the test.
            let mut lines = [0; 2 * LINE as usize];
            pool.region.read(0, &mut lines);
            let border = BORDER as usize..BORDER as usize + 8;
            let other = |at: &usize| !border.contains(at);
            assert_eq!(lines[border.clone()], [2; 8]);
            assert!((0..lines.len()).filter(other).all(|at| lines[at] == 1));
            let last = &mut lines[..LINE as usize];
            pool.region.read(LAST, last);
            assert_eq!(
                last.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
                LINE + 2
            );
            assert_eq!(last.last(), Some(&3));
        });
        let is_store = |event: &Event| matches!(event, Event::Store { .. });
        let (stores, others): (Vec<Event>, Vec<Event>) = done.into_iter().partition(is_store);
        assert!(!stores.is_empty(), "{how:?}");
        let lines = match how {
            FlushInstruction::None => &[][..],
            _ => &[0, LINE, LAST],
        };
        let written_back = lines.iter().map(|&off| {
            let at = base + off as usize;
            Event::WriteBack { at, how }
        });
        let should: Vec<Event> = written_back.chain([Event::StoreFence]).collect();
        assert_eq!(others, should, "{how:?}");
    }
}

fn stored(off: u64, len: u64) -> Told {
    let kind = StoreKind::Cached;
    Told::Store { off, len, kind }
}

fn flushed(off: u64, len: u64) -> Told {
    Told::Flush { off, len }
}

/// Holds what a faulty program does against what it should do: the difference must be seen.
#[track_caller]
fn is_seen(domain: Domain, should: &[Told], hint: &str, faulty: impl FnOnce(&Pool)) {
    let pool = pool(&vec![1; LEN as usize], domain, None);
    let watched = watched(&pool, pool.flush);
    let done = observe(watched.addresses.clone(), || faulty(&pool));
    match compare(should, &done, &watched) {
        Err(why) => assert!(why.contains(hint), "seen otherwise: {why}"),
        Ok(()) => panic!("not seen in {} events", done.len()),
    }
}

#[test]
fn a_write_back_that_is_left_out_or_short_or_of_other_lines_is_seen() {
    let should = [flushed(100, 200), Told::Fence];
    let line = |hint: &str, ranges: &[(u64, u64)]| {
        is_seen(Domain::Line, &should, hint, |pool| {
            for (off, len) in ranges {
                pool.region.write_back(pool.flush, *off, *len);
            }
            raw::store_fence();
        });
    };
    line("lines were not written back", &[]);
    line("lines were not written back", &[(100, 100)]);
    line("lines were not written back", &[(164, 136)]);
    line("is not of it", &[(36, 264)]);
    line("is not of it, or twice", &[(100, 128), (100, 72)]);
    line("no sfence", &[(100, 264)]);
}

#[test]
fn a_write_back_by_another_instruction_is_seen() {
    let (told, clflush) = ([flushed(0, 8)], FlushInstruction::Clflush);
    if FlushInstruction::detect() == clflush {
        testing::skip!("this processor has only one flush instruction");
    }
    is_seen(Domain::Line, &told, "is not cl", |pool| {
        pool.region.write_back(clflush, 0, 8);
    });
}

#[test]
fn a_fence_without_sfence_or_before_the_last_write_back_is_seen() {
    let should = [stored(0, 8), flushed(0, 72), Told::Fence, stored(64, 8)];
    is_seen(Domain::Line, &should, "no sfence", |pool| {
        pool.store(0, 1);
        pool.flush(0, 72);
        pool.store(64, 1);
    });
    is_seen(Domain::Line, &should, "lines were not written", |pool| {
        pool.store(0, 1);
        pool.region.write_back(pool.flush, 0, 8);
        raw::store_fence();
        pool.region.write_back(pool.flush, 64, 8);
        pool.store(64, 1);
    });
}

#[test]
fn a_streaming_store_that_is_not_drained_is_seen() {
    for domain in DOMAINS {
        let should = [stored(64, PAGE), stored(0, 8)];
        is_seen(domain, &should, "were not drained", |pool| {
            std::mem::forget(pool.write_streaming(64, &[7; PAGE as usize]));
            pool.store(0, 1);
        });
        is_seen(domain, &should[..1], "were not drained", |pool| {
            std::mem::forget(pool.write_streaming(64, &[7; PAGE as usize]));
        });
    }
}

#[test]
fn a_store_through_the_cache_that_was_told_as_non_temporal_is_seen() {
    let kind = StoreKind::NonTemporal;
    let (off, len) = (128, 64);
    let should = [Told::Store { off, len, kind }];
    let hint = "went through the cache";
    is_seen(Domain::Line, &should, hint, |pool| {
        pool.write(128, &[1; 64]);
    });
}

#[test]
fn a_store_that_is_short_or_of_other_bytes_is_seen() {
    let should = [stored(8, 8), flushed(8, 8)];
    is_seen(Domain::Line, &should, "were not stored", |pool| {
        pool.write(8, &[2; 4]);
        pool.flush(8, 8);
    });
    is_seen(Domain::Line, &should, "were not written back", |pool| {
        pool.write(8, &[2; 9]);
        pool.flush(8, 8);
    });
}

#[test]
fn a_sync_that_is_left_out_or_short_or_late_is_seen() {
    let should = [flushed(PAGE, 8), flushed(2 * PAGE, 8), Told::Fence];
    let sync = |off, len| {
        is_seen(Domain::Page, &should, "not Sync", |pool| {
            raw::store_fence();
            if len > 0 {
                pool.region.sync(off, len).expect("sync");
            }
        });
    };
    sync(0, 0);
    sync(PAGE, PAGE);
    sync(2 * PAGE, PAGE);
    is_seen(Domain::Page, &should, "no sfence", |pool| {
        pool.region.sync(PAGE, 2 * PAGE).expect("sync");
        raw::store_fence();
    });
}

#[test]
fn what_nobody_asked_for_is_seen() {
    is_seen(Domain::Line, &[], "nobody was told", |pool| {
        pool.region.write_back(pool.flush, 0, 8);
    });
    is_seen(Domain::Cache, &[flushed(0, 8)], "nobody was told", |pool| {
        pool.region.write_back(FlushInstruction::Clflush, 0, 8);
    });
}

#[test]
fn a_failing_compare_exchange_is_no_store_and_a_long_copy_is_seen_whole() {
    let pool = pool(&vec![1; LEN as usize], Domain::Cache, None);
    let base = pool.region.address().start;
    let done = observe(pool.region.address(), || {
        pool.compare_exchange(64, 0, 1).expect_err("it is not 0");
        pool.write(PAGE, &[3; 300]);
    });
    let done: Vec<Event> = (done.into_iter())
        .filter(|event| *event != Event::Drain)
        .collect();
    let bytes: Vec<(usize, usize)> = (done.iter())
        .map(|event| match event {
            Event::Store { at, len, .. } => (at - base, *len),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bytes[0], (PAGE as usize, 1));
    assert_eq!(bytes.len(), 300);
}

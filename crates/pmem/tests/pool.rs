//! Pools: access, counters, recorder, latency.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pmem::{Domain, Latency, Options, PAGE, Pool, PoolError, Recorder, StoreKind, thread_stats};

fn anonymous(options: &Options) -> Pool {
    Pool::anonymous(4 * PAGE, options).expect("memory")
}

fn domain(domain: Domain) -> Options {
    Options {
        domain: Some(domain),
        ..Options::default()
    }
}

fn panics(action: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(action)).is_err()
}

/// Every event as text.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Recorder for Log {
    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        self.0
            .lock()
            .push(format!("{kind:?} {off}+{}", bytes.len()));
    }
    fn flush(&self, off: u64, len: u64) {
        self.0.lock().push(format!("flush {off}+{len}"));
    }
    fn fence(&self) {
        self.0.lock().push("fence".to_owned());
    }
    fn mark(&self, text: &str) {
        self.0.lock().push(text.to_owned());
    }
}

fn recorded() -> (Pool, Arc<Log>) {
    let log = Arc::new(Log::default());
    let pool = anonymous(&Options {
        recorder: Some(log.clone()),
        ..domain(Domain::Line)
    });
    (pool, log)
}

#[test]
fn words_are_stored_loaded_and_updated() {
    let recorder: Option<Arc<dyn Recorder>> = Some(Arc::new(Log::default()));
    for recorder in [None, recorder] {
        let pool = anonymous(&Options {
            recorder,
            ..Options::default()
        });
        pool.store(8, 0b1100);
        assert_eq!(pool.fetch_or(8, 0b0011), 0b1100);
        assert_eq!(pool.fetch_and(8, 0b0110), 0b1111);
        assert_eq!(pool.compare_exchange(8, 1, 2), Err(0b0110));
        assert_eq!(pool.compare_exchange(8, 0b0110, 2), Ok(0b0110));
        assert_eq!(pool.load(8), 2);
        assert_eq!(pool.snapshot()[8..16], [2, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn misaligned_words_and_ranges_beyond_the_end_panic() {
    let read_ns = Latency {
        read_ns: 1,
        ..Latency::default()
    };
    let slow = Options {
        latency: read_ns,
        recorder: Some(Arc::new(Log::default())),
        ..domain(Domain::Page)
    };
    for options in [Options::default(), slow] {
        let pool = anonymous(&options);
        let len = pool.len();
        for off in [1, 4, 7, len - 4, len, len + 8, u64::MAX, u64::MAX - 7] {
            assert!(panics(|| _ = pool.load(off)), "load {off}");
            assert!(panics(|| pool.store(off, 1)), "store {off}");
            assert!(panics(|| _ = pool.fetch_or(off, 1)), "fetch_or {off}");
            assert!(
                panics(|| _ = pool.compare_exchange(off, 0, 1)),
                "compare_exchange {off}"
            );
        }
        for off in [len - 3, len + 1, u64::MAX] {
            assert!(panics(|| pool.read(off, &mut [0; 4])), "read {off}");
            assert!(panics(|| pool.write(off, &[1; 4])), "write {off}");
            assert!(panics(|| pool.write_nt(off, &[1; 4])), "write_nt {off}");
            assert!(panics(|| pool.zero(off, 4)), "zero {off}");
            assert!(panics(|| pool.copy(off, 0, 4)), "copy from {off}");
            assert!(panics(|| pool.copy(0, off, 4)), "copy to {off}");
            assert!(panics(|| pool.flush(off, 4)), "flush {off}");
            assert!(panics(|| _ = pool.back(off, 4)), "back {off}");
        }
        pool.prefetch(u64::MAX);
        assert!(pool.snapshot().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn empty_ranges_are_fine_up_to_the_end() {
    let (pool, log) = recorded();
    for off in [0, 1, pool.len()] {
        pool.read(off, &mut []);
        pool.write(off, &[]);
        pool.write_nt(off, &[]);
        pool.zero(off, 0);
        pool.copy(off, 0, 0);
        pool.flush(off, 0);
    }
    assert_eq!(log.take(), Vec::<String>::new());
    assert_eq!(pool.stats().flushed_lines, 0);
}

#[test]
fn copies_may_overlap_either_way() {
    let (watched, _) = recorded();
    for pool in [
        Pool::anonymous(64 * PAGE, &Options::default()).expect("memory"),
        watched,
    ] {
        let len = pool.len() as usize;
        let cases = [
            (0, 1, len - 1),
            (1, 0, len - 1),
            (0, 0, len),
            (7, 4000, 9000),
            (5000, 3, 9999),
        ];
        for (from, to, n) in cases {
            let mut expected: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            pool.write(0, &expected);
            pool.copy(from as u64, to as u64, n as u64);
            expected.copy_within(from..from + n, to);
            assert!(pool.snapshot() == expected, "{n} bytes from {from} to {to}");
        }
    }
}

#[test]
fn non_temporal_writes_take_whole_lines_around_the_cache() {
    let (pool, log) = recorded();
    let data: Vec<u8> = (0..200).map(|i| i as u8).collect();
    pool.write_nt(60, &data);
    pool.fence().expect("fence");
    assert_eq!(pool.snapshot()[60..260], data);
    let expected = ["Cached 60+4", "NonTemporal 64+192", "Cached 256+4", "fence"];
    assert_eq!(log.take(), expected);
    let stats = pool.stats();
    assert_eq!((stats.bytes_cached, stats.bytes_non_temporal), (8, 192));
}

#[test]
fn a_read_only_pool_gives_its_bytes_and_refuses_stores() {
    let bytes = vec![7; PAGE as usize];
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let pool = Pool::from_bytes(&bytes, &options).expect("memory");
    assert!(pool.read_only());
    assert_eq!(pool.load(0), 0x0707_0707_0707_0707);
    assert!(panics(|| pool.store(0, 1)));
    assert!(panics(|| _ = pool.fetch_or(0, 1)));
    assert!(panics(|| pool.write(0, &[1])));
    assert!(panics(|| pool.write_nt(0, &[1; 64])));
    assert!(panics(|| pool.zero(0, 8)));
    assert!(panics(|| pool.copy(0, 64, 8)));
    assert!(panics(|| pool.unback(0, PAGE)));
    assert_eq!(pool.snapshot(), bytes);
}

#[test]
fn bytes_become_a_pool_of_their_whole_pages() {
    let bytes: Vec<u8> = (0..PAGE as usize + 100).map(|i| i as u8).collect();
    let pool = Pool::from_bytes(&bytes, &Options::default()).expect("memory");
    assert_eq!(pool.snapshot(), bytes[..PAGE as usize]);
    assert_eq!(pool.stats(), pmem::Stats::default());
    let short = Pool::from_bytes(&bytes[..100], &Options::default()).map(|_| ());
    assert!(matches!(
        short,
        Err(PoolError::TooSmall {
            need: PAGE,
            have: 100,
            ..
        })
    ));
}

#[test]
fn the_counters_of_pool_and_thread_agree() {
    let pool = anonymous(&domain(Domain::Line));
    let before = thread_stats();
    pool.store(0, 1);
    let _ = pool.fetch_or(8, 1);
    pool.write(100, &[1; 50]);
    pool.write_nt(128, &[1; 128]);
    pool.zero(1000, 10);
    pool.copy(0, 2000, 20);
    pool.flush(60, 8);
    pool.flush(0, 4096);
    pool.fence().expect("fence");
    let stats = pool.stats();
    assert_eq!(stats.bytes_cached, 8 + 8 + 50 + 10 + 20);
    assert_eq!(stats.bytes_non_temporal, 128);
    assert_eq!(
        (stats.flushed_lines, stats.fences, stats.syncs),
        (2 + 64, 1, 0)
    );
    assert_eq!(thread_stats() - before, stats);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(thread_stats(), pmem::Stats::default());
            pool.flush(0, 1);
            assert_eq!(thread_stats().flushed_lines, 1);
        });
    });
    assert_eq!(thread_stats() - before, stats);
    assert_eq!(pool.stats().flushed_lines, stats.flushed_lines + 1);
}

#[test]
fn no_count_is_lost_among_more_threads_than_slots() {
    let pool = anonymous(&Options::default());
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| (0..1000).for_each(|i| pool.store(8 * (i % 8), i)));
            }
        });
    }
    assert_eq!(pool.stats().bytes_cached, 2 * 100 * 1000 * 8);
}

#[test]
fn the_recorder_sees_all_in_order() {
    let (pool, log) = recorded();
    pool.mark(|| "begin".to_owned());
    pool.store(0, 1);
    let _ = pool.fetch_or(8, 1);
    let _ = pool.fetch_and(8, 1);
    let _ = pool.compare_exchange(8, 5, 6);
    let _ = pool.compare_exchange(8, 1, 6);
    pool.write(3, &[1; 10]);
    pool.zero(64, 3);
    pool.copy(64, 128, 5);
    pool.flush(0, 100);
    pool.fence().expect("fence");
    pool.mark(|| "end".to_owned());
    let expected = [
        "begin",
        "Cached 0+8",
        "Cached 8+8",
        "Cached 8+8",
        "Cached 8+8",
        "Cached 3+10",
        "Cached 64+3",
        "Cached 128+5",
        "flush 0+100",
        "fence",
        "end",
    ];
    assert_eq!(log.take(), expected);
}

/// Replays stores to a copy.
struct Replay(Mutex<Vec<u8>>);

impl Recorder for Replay {
    fn store(&self, off: u64, bytes: &[u8], _: StoreKind) {
        self.0.lock()[off as usize..off as usize + bytes.len()].copy_from_slice(bytes);
    }
    fn flush(&self, _: u64, _: u64) {}
    fn fence(&self) {}
    fn mark(&self, _: &str) {}
}

#[test]
fn the_order_of_records_is_the_order_of_stores_of_all_threads() {
    let replay = Arc::new(Replay(Mutex::new(vec![0; 4 * PAGE as usize])));
    let pool = anonymous(&Options {
        recorder: Some(replay.clone()),
        ..Options::default()
    });
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let pool = &pool;
            scope.spawn(move || {
                for i in 0..2000u64 {
                    let off = i * 8 % 64;
                    match i % 5 {
                        0 => pool.store(off, thread << 32 | i),
                        1 => _ = pool.fetch_or(off, 1 << (i % 64)),
                        2 => _ = pool.fetch_and(off, !(1 << (i % 64))),
                        3 => _ = pool.compare_exchange(off, pool.load(off), i),
                        _ => pool.write(off, &[thread as u8; 20]),
                    }
                }
            });
        }
    });
    assert!(*replay.0.lock() == pool.snapshot());
}

#[test]
fn a_mark_costs_nothing_without_a_recorder() {
    anonymous(&Options::default()).mark(|| panic!("text is made"));
}

#[test]
fn emulated_latency_is_spent_per_line_fence_and_read() {
    const NS: u32 = 200_000;
    let took = |latency: Latency, action: &dyn Fn(&Pool)| {
        let pool = anonymous(&Options {
            latency,
            ..domain(Domain::Line)
        });
        let start = Instant::now();
        action(&pool);
        start.elapsed()
    };
    let unit = Duration::from_nanos(NS.into());
    let flush = Latency {
        flush_ns: NS,
        ..Latency::default()
    };
    let fence = Latency {
        fence_ns: NS,
        ..Latency::default()
    };
    let read = Latency {
        read_ns: NS,
        ..Latency::default()
    };
    assert!(took(flush, &|pool| pool.flush(0, 4 * 64)) >= 4 * unit);
    // Around the cache nothing is flushed, and the line is written all the same.
    assert!(took(flush, &|pool| pool.write_nt(32, &[1; 3 * 64])) >= 2 * unit);
    assert!(took(fence, &|pool| pool.fence().expect("fence")) >= unit);
    assert!(took(read, &|pool| _ = pool.load(0)) >= unit);
    assert!(took(read, &|pool| pool.read(32, &mut [0; 64])) >= 2 * unit);
}

#[test]
fn domains_have_names_and_say_what_survives() {
    for (name, domain) in [
        ("line", Domain::Line),
        ("cache", Domain::Cache),
        ("page", Domain::Page),
    ] {
        assert_eq!(name.parse(), Ok(domain));
        assert_eq!(domain.to_string(), name);
        for word in ["process crash", "kernel crash", "power cut"] {
            assert!(domain.survives().contains(word));
        }
    }
    let unknown = "sector".parse::<Domain>().expect_err("unknown");
    assert_eq!(
        unknown.to_string(),
        "'sector' is not a persistence domain; use line, cache or page"
    );
}

#[test]
fn a_pool_tells_what_it_is_made_of() {
    let detected = anonymous(&Options::default()).info();
    assert_eq!((detected.domain, detected.forced), (Domain::Cache, false));
    let forced = anonymous(&domain(Domain::Page)).info();
    assert_eq!(
        (forced.domain, forced.detected, forced.forced),
        (Domain::Page, Domain::Cache, true)
    );
    assert!(
        forced.to_string().contains("domain: page (forced"),
        "{forced}"
    );
}

#[test]
fn huge_pages_are_used_where_the_system_gives_them() {
    let options = Options {
        huge_pages: true,
        ..Options::default()
    };
    let pool = Pool::anonymous(8 << 20, &options).expect("memory");
    pool.zero(0, pool.len());
    let huge = pool.info().huge_pages;
    assert!(huge.asked && huge.bytes <= pool.len());
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if mode.is_ok_and(|mode| !mode.contains("[never]")) {
        assert_eq!(huge.bytes, pool.len());
    }
}

#[test]
fn parts_are_where_they_belong_and_nothing_else_takes_memory() {
    let parts: [(u64, &[u8]); 2] = [(PAGE - 1, &[1, 2]), ((1 << 30) - 3, &[3, 4, 5])];
    let pool = Pool::from_parts(1 << 30, parts, &domain(Domain::Cache)).expect("memory");
    assert_eq!(pool.touched(), [0, 1, (1 << 30) / PAGE - 1]);
    let mut bytes = [0; 4];
    pool.read(PAGE - 2, &mut bytes);
    assert_eq!(bytes, [0, 1, 2, 0]);
    pool.read((1 << 30) - 4, &mut bytes);
    assert_eq!(bytes, [0, 3, 4, 5]);
}

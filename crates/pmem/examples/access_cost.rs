//! What accesses cost, and what watching them costs: `cargo run --release -p pmem --example
//! access_cost`.
//!
//! "plain" is a loop over atomics in ordinary memory; "checked" and "counted" add by hand what a
//! pool has besides the recorder's hook: the range check, and counters of the thread and of the
//! pool. The pool's hook costs nothing on top, as the comparison that checks the range also sends
//! the stores of a watched pool the slow way. The best of several rounds counts, in nanoseconds
//! per operation.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pmem::{Domain, Journal, Options, PAGE, Pool, Recorder, StoreKind};

const POOL: u64 = 1 << 20;
const ROUNDS: usize = 15;

/// Watches and does nothing.
struct Idle;

impl Recorder for Idle {
    fn store(&self, _: u64, _: &[u8], _: StoreKind) {}
    fn flush(&self, _: u64, _: u64) {}
    fn fence(&self) {}
    fn mark(&self, _: &str) {}
}

/// Nanoseconds per call, over `count` calls with numbers from 0.
fn cost(count: u64, mut operation: impl FnMut(u64)) -> f64 {
    let round = || {
        let start = Instant::now();
        for i in 0..count {
            operation(black_box(i));
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    std::iter::repeat_with(round)
        .take(ROUNDS)
        .fold(f64::MAX, f64::min)
}

fn pool(options: Options) -> Arc<Pool> {
    let pool = Pool::anonymous(POOL, &options).expect("memory");
    pool.zero(0, POOL);
    Arc::new(pool)
}

fn show(name: &str, ns: f64) {
    println!("{name:<44} {ns:9.2} ns");
}

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(3) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// A store as the pool does it, without a hook.
#[inline]
fn counted_store(words: &[AtomicU64], counters: &[AtomicU64], off: u64, value: u64) {
    words[off.rotate_right(3) as usize].store(value, Ordering::Release);
    COUNT.with(|count| count.set(count.get() + 8));
    let counter = &counters[SLOT.with(Cell::get)];
    counter.store(counter.load(Ordering::Relaxed) + 8, Ordering::Relaxed);
}

fn words(pool: &Pool, recorded: &Pool) {
    const STORES: u64 = 1_000_000;
    // 4 KiB, so that the cache's speed is not what is measured.
    let plain: Vec<AtomicU64> = (0..PAGE / 8).map(|_| AtomicU64::new(0)).collect();
    let slot = |i: u64| (i & (PAGE / 8 - 1)) as usize;
    show(
        "plain store",
        cost(STORES, |i| plain[slot(i)].store(i, Ordering::Release)),
    );
    let checked = |i: u64| {
        let off = 8 * slot(i) as u64;
        plain[off.rotate_right(3) as usize].store(i, Ordering::Release);
    };
    show("checked store", cost(STORES, checked));
    let counters: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let counted = |i: u64| counted_store(&plain, &counters, 8 * slot(i) as u64, i);
    show("checked and counted store (no hook)", cost(STORES, counted));
    show(
        "pool store, no recorder",
        cost(STORES, |i| pool.store(8 * slot(i) as u64, i)),
    );
    show(
        "pool store, idle recorder",
        cost(STORES, |i| recorded.store(8 * slot(i) as u64, i)),
    );
    let mut sum = 0;
    show(
        "plain load",
        cost(STORES, |i| sum += plain[slot(i)].load(Ordering::Acquire)),
    );
    show(
        "pool load",
        cost(STORES, |i| sum += pool.load(8 * slot(i) as u64)),
    );
    black_box(sum);
    show(
        "mark, no recorder",
        cost(STORES, |i| pool.mark(|| format!("mark {i}"))),
    );
}

fn ranges(pool: &Pool) {
    for len in [16, 64, 256, 4096] {
        let mut data = vec![1u8; len];
        let at = |i: u64| (i * len as u64) % POOL;
        let hot = |i: u64| at(i) % 8192;
        show(
            &format!("write {len} B"),
            cost(20_000, |i| pool.write(hot(i), &data)),
        );
        show(
            &format!("read {len} B"),
            cost(20_000, |i| pool.read(hot(i), &mut data)),
        );
    }
    let data = [1u8; 4096];
    show(
        "write_nt 4096 B",
        cost(20_000, |i| pool.write_nt(i * 4096 % POOL, &data)),
    );
    show(
        "zero 4096 B",
        cost(20_000, |i| pool.zero(i * 4096 % 8192, 4096)),
    );
}

fn ordering(pool: &Pool) {
    let flush = |i: u64| {
        let off = i * 64 % POOL;
        pool.store(off, i);
        pool.flush(off, 8);
    };
    show("store + flush, other lines", cost(20_000, flush));
    let fenced = |i: u64| {
        flush(i);
        pool.fence().expect("fence");
    };
    show("store + flush + fence", cost(20_000, fenced));
}

fn commits(domain: Domain) {
    let pool = pool(Options {
        domain: Some(domain),
        ..Options::default()
    });
    Journal::format(&pool, 0, 64 << 10);
    let (mut journal, _) = Journal::recover(&pool, 0, 64 << 10, |_| true).expect("journal");
    for count in [1, 2, 8, 64] {
        let name = format!(
            "commit {count} words, domain {domain} ({})",
            journal.transactions().map_or("log", |all| all.name())
        );
        let commit = |i: u64| {
            let words: Vec<_> = (0..count).map(|w| ((128 << 10) + 64 * w, i)).collect();
            journal
                .commit(&words.iter().copied().collect())
                .expect("commit");
        };
        show(&name, cost(20_000, commit));
    }
    let stats = pool.stats();
    println!(
        "  hardware transactions: {}, log: {}",
        stats.commits_transaction, stats.commits_log
    );
}

fn main() {
    let line = Options {
        domain: Some(Domain::Line),
        ..Options::default()
    };
    let plain = pool(line.clone());
    println!("{}\n", plain.info());
    words(
        &plain,
        &pool(Options {
            recorder: Some(Arc::new(Idle)),
            ..line
        }),
    );
    ranges(&plain);
    ordering(&plain);
    commits(Domain::Line);
    commits(Domain::Cache);
}

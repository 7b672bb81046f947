//! What operations cost, counted: the same on any machine.
//!
//! The bounds are what the engine does today, with little room. Whoever makes it cheaper lowers
//! them; a change that breaks one has to say why it is worth it (see `docs/performance.md`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::LazyLock;

use bench::{Engine, Setup, Target};
use pmem::Stats;
use soupfs::Mode;

/// Operations in a batch.
const BATCH: u64 = 10_000;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[allow(unsafe_code, reason = "only an allocator can count allocations")]
// SAFETY: everything is handed to the system's allocator; counting touches only a `Cell` of the
// thread that needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// An engine on anonymous memory that persists only when told.
fn engine(mode: Mode) -> Engine {
    let setup = Setup {
        len: 256 << 20,
        mode,
        manual: true,
        ..Setup::default()
    };
    setup.mount("SoupFS", setup.anonymous().unwrap()).unwrap()
}

fn names(prefix: &str) -> Vec<CString> {
    let name = |i| CString::new(format!("{prefix}{i:07}")).unwrap();
    (0..BATCH).map(name).collect()
}

/// Costs of one operation, averaged over a batch.
#[derive(Debug)]
struct Cost {
    /// Of the caller.
    caller: Stats,
    allocations: f64,
    /// Of persisting it.
    lines: f64,
    bytes: f64,
    /// Of persisting all of the batch.
    fences: u64,
    commits: u64,
}

fn cost(engine: &Engine, mut each: impl FnMut(usize)) -> Cost {
    let (own, allocations) = (pmem::thread_stats(), ALLOCATIONS.get());
    (0..BATCH as usize).for_each(&mut each);
    let allocations = ALLOCATIONS.get() - allocations;
    let caller = pmem::thread_stats() - own;
    let before = engine.pool().stats();
    engine.sync().unwrap();
    let batch = engine.pool().stats() - before;
    let part = |count: u64| count as f64 / BATCH as f64;
    Cost {
        caller,
        allocations: part(allocations),
        lines: part(batch.flushed_lines),
        bytes: part(batch.bytes_cached + batch.bytes_non_temporal),
        fences: batch.fences,
        commits: batch.commits_log + batch.commits_transaction + batch.commits_word,
    }
}

/// Costs of operations, counted once for all tests that look at them.
static COSTS: LazyLock<Vec<(&'static str, Cost)>> = LazyLock::new(costs);

/// Costs of operations, by name: made, moved, removed; a file's data written.
fn costs() -> Vec<(&'static str, Cost)> {
    let engine = engine(Mode::Delayed);
    let (old, new) = (names("f"), names("g"));
    let on = |names: &[CString], op: fn(&Engine, &CStr) -> bench::Result<()>| {
        cost(&engine, |i| op(&engine, &names[i]).unwrap())
    };
    // The first batch grows the directory; it is not counted.
    on(&old, Engine::create_close);
    on(&old, Engine::unlink);
    let data = [7; 4096];
    let mut costs = vec![("create+close", on(&old, Engine::create_close))];
    costs.push((
        "rename",
        cost(&engine, |i| engine.rename(&old[i], &new[i]).unwrap()),
    ));
    costs.push(("unlink", on(&new, Engine::unlink)));
    costs.push(("mkdir", on(&old, Engine::mkdir)));
    costs.push(("rmdir", on(&old, Engine::rmdir)));
    let file = engine.create(c"file").unwrap();
    let at = |i: usize| i as u64 * data.len() as u64;
    let write = |i| engine.write_at(file, &data, at(i)).unwrap();
    costs.push(("append", cost(&engine, write)));
    costs.push(("overwrite", cost(&engine, write)));
    let stat = |_| assert!(engine.stat(c"file").is_ok());
    costs.push(("stat", cost(&engine, stat)));
    costs
}

#[test]
fn callers_flush_and_fence_nothing() {
    for (name, cost) in &*COSTS {
        let spent = (
            cost.caller.flushed_lines,
            cost.caller.fences,
            cost.caller.syncs,
        );
        assert_eq!(spent, (0, 0, 0), "{name}");
    }
}

/// Upper bounds for one operation in a batch of 10,000.
struct Bound {
    name: &'static str,
    /// By the caller.
    allocations: f64,
    /// To persist it: lines flushed, bytes stored (journal included).
    lines: f64,
    bytes: f64,
}

const fn bound(name: &'static str, allocations: f64, lines: f64, bytes: f64) -> Bound {
    Bound {
        name,
        allocations,
        lines,
        bytes,
    }
}

const BOUNDS: [Bound; 8] = [
    bound("create+close", 3.0, 3.6, 190.0),
    bound("rename", 3.0, 3.4, 110.0),
    bound("unlink", 0.01, 2.5, 70.0),
    bound("mkdir", 2.0, 3.7, 190.0),
    bound("rmdir", 0.01, 2.5, 70.0),
    // A page that is claimed has both words of the maps flushed, though a neighbour's claim may
    // have: what looks set may be what a killed process stored and never flushed.
    bound("append", 0.01, 64.3, 20.0),
    bound("overwrite", 0.01, 64.1, 1.0),
    bound("stat", 0.0, 0.0, 0.0),
];
/// For all 10,000, which are published in parts: a part gathers 12,288 words, which is some
/// thousand operations, and takes two fences; making space and the end of the sweep take three
/// more.
const FENCES_MAX: u64 = 16;
const COMMITS_MAX: u64 = 5;

#[test]
fn operations_in_a_batch_stay_within_their_bounds() {
    let costs = &*COSTS;
    assert_eq!(costs.len(), BOUNDS.len());
    for ((name, cost), bound) in costs.iter().zip(&BOUNDS) {
        assert_eq!(*name, bound.name);
        assert!(cost.allocations <= bound.allocations, "{name}: {cost:?}");
        assert!(cost.lines <= bound.lines, "{name}: {cost:?}");
        assert!(cost.bytes <= bound.bytes, "{name}: {cost:?}");
        assert!(cost.fences <= FENCES_MAX, "{name}: {cost:?}");
        assert!(cost.commits <= COMMITS_MAX, "{name}: {cost:?}");
    }
}

#[test]
fn a_synchronous_create_takes_one_fence_and_one_commit() {
    let engine = engine(Mode::Sync);
    let names = names("f");
    let before = engine.pool().stats();
    for name in &names {
        engine.create_close(name).unwrap();
    }
    let spent = engine.pool().stats() - before;
    let commits = spent.commits_log + spent.commits_transaction + spent.commits_word;
    // Now and then one more: the directory grows meanwhile.
    assert!((BATCH..BATCH * 101 / 100).contains(&commits), "{spent:?}");
    assert!(
        (BATCH..BATCH * 101 / 100).contains(&spent.fences),
        "{spent:?}"
    );
    assert!(spent.flushed_lines <= BATCH * 9, "{spent:?}");
}

/// Upper bounds for one request in mode `strong`: lines flushed, the journal's with them, and
/// fences. A few take more: a table grows, and what was removed becomes free; of pages that are
/// replaced 64 at a time, with two fences. Where the clock ticks with each request its times take
/// up to a line more.
const STRONG: [(&str, f64, f64); 6] = [
    ("create+close", 11.5, 1.01),
    ("rename", 7.5, 1.01),
    ("unlink", 5.5, 1.01),
    ("append 4 KiB", 71.0, 2.01),
    ("overwrite 4 KiB", 68.5, 2.04),
    ("overwrite 64 B", 4.5, 1.01),
];

#[test]
fn a_strong_request_takes_one_fence_if_its_record_has_all_of_it() {
    let engine = engine(Mode::Strong);
    let (old, new) = (names("f"), names("g"));
    let all = |mut each: Box<dyn FnMut(usize) + '_>| {
        let before = engine.pool().stats();
        (0..BATCH as usize).for_each(&mut each);
        let spent = engine.pool().stats() - before;
        let part = |count: u64| count as f64 / BATCH as f64;
        (part(spent.flushed_lines), part(spent.fences))
    };
    // The directory grows first.
    let create = |names: &[CString], i: usize| engine.create_close(&names[i]).unwrap();
    all(Box::new(|i| create(&old, i)));
    all(Box::new(|i| engine.unlink(&old[i]).unwrap()));
    let mut spent = vec![all(Box::new(|i| create(&old, i)))];
    spent.push(all(Box::new(|i| engine.rename(&old[i], &new[i]).unwrap())));
    spent.push(all(Box::new(|i| engine.unlink(&new[i]).unwrap())));
    let file = engine.create(c"file").unwrap();
    let write = |len: usize, i: usize| engine.write_at(file, &[7; 4096][..len], i as u64 * 4096);
    spent.push(all(Box::new(|i| write(4096, i).unwrap())));
    spent.push(all(Box::new(|i| write(4096, i).unwrap())));
    spent.push(all(Box::new(|i| write(64, i).unwrap())));
    assert_eq!(spent.len(), STRONG.len());
    for ((lines, fences), (name, lines_max, fences_max)) in spent.into_iter().zip(STRONG) {
        assert!(
            lines <= lines_max && fences <= fences_max,
            "{name}: {lines}, {fences}"
        );
    }
}

#[test]
fn an_fsync_of_one_block_flushes_its_lines_and_few_others() {
    let engine = engine(Mode::Delayed);
    let file = engine.create(c"file").unwrap();
    engine.write(file, &[1; 4096]).unwrap();
    engine.fsync(file).unwrap();
    engine.write_at(file, &[2; 4096], 0).unwrap();
    let before = engine.pool().stats();
    engine.fsync(file).unwrap();
    let spent = engine.pool().stats() - before;
    assert!(spent.flushed_lines <= 64 + 8, "{spent:?}");
    assert!(spent.fences <= 4, "{spent:?}");
}

//! Pools that many threads map and drop at a time: none is ever mapped over another one's memory.
//!
//! A pool is mapped over a reservation of address space. If a mapping that the file refuses takes
//! the reservation away, another thread may be given these addresses before the next mapping is
//! made over them, and finds foreign bytes there.

use std::path::Path;
use std::sync::Barrier;

use pmem::{Options, PAGE, Pool};

const THREADS: u64 = 8;
const ROUNDS: u64 = 300;
const LEN: u64 = 2 * PAGE;

/// Each word tells whose it is.
fn word(thread: u64, round: u64, off: u64) -> u64 {
    thread << 48 | round << 32 | off
}

#[track_caller]
fn is_ours(load: impl Fn(u64) -> u64, thread: u64, round: u64, what: &str) {
    for off in (0..LEN).step_by(8) {
        let (found, ours) = (load(off), word(thread, round, off));
        assert_eq!(
            found, ours,
            "{what} of thread {thread}, round {round}, at {off}"
        );
    }
}

/// A pool of a file is made or opened, filled, read and dropped, again and again. On a disk every
/// other one is mapped, and the others do their own I/O.
fn map_and_drop(dir: &Path, thread: u64) {
    let path = dir.join(thread.to_string());
    let mut options = Options::default();
    if thread % 2 == 1 {
        options.paged = None;
    }
    drop(Pool::create(&path, LEN, &options).expect("create"));
    for round in 1..=ROUNDS {
        let pool = Pool::open(&path, &options).expect("open");
        if round > 1 {
            is_ours(|off| pool.load(off), thread, round - 1, "what was kept");
        }
        for off in (0..LEN).step_by(8) {
            pool.store(off, word(thread, round, off));
        }
        std::thread::yield_now();
        is_ours(|off| pool.load(off), thread, round, "a pool");
        pool.flush(0, LEN);
        pool.fence().expect("a fence");
    }
}

/// The same on memory that belongs to no file.
fn take_and_give(thread: u64) {
    for round in 1..=4 * ROUNDS {
        let pool = Pool::anonymous(LEN, &Options::default()).expect("memory");
        assert_eq!(pool.load(8 * (round % 512)), 0, "new memory is zeros");
        for off in (0..LEN).step_by(8) {
            pool.store(off, word(thread, round, off));
        }
        std::thread::yield_now();
        is_ours(|off| pool.load(off), thread, round, "memory");
    }
}

#[test]
fn pools_that_many_threads_map_and_drop_are_never_mapped_over_others() {
    // A disk, whose file system takes MAP_SYNC for a mistake, and memory.
    let disk = env!("CARGO_TARGET_TMPDIR");
    let dirs = [disk, "/dev/shm"].map(tempfile::tempdir_in);
    for dir in dirs {
        let Ok(dir) = dir else {
            testing::skip!("needs /dev/shm and the target directory");
        };
        let start = Barrier::new(2 * THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (dir, start) = (dir.path(), &start);
                scope.spawn(move || {
                    start.wait();
                    map_and_drop(dir, thread);
                });
                scope.spawn(move || {
                    start.wait();
                    take_and_give(THREADS + thread);
                });
            }
        });
    }
}

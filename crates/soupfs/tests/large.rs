//! Mode `strong`: a write of 1 GiB is one transaction, however scattered its blocks are, and takes
//! memory for its runs, not for its bytes. In a program of its own, as an allocator
//! counts for all of a process.

mod common;

use common::{Soup, audit, clock, image};
use pmem::{Domain, PAGE};
use soupfs::{Mode, Node, SoupFs};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use vfs::{Fallocate, FileSystem, NewKind, NewNode, Time};

/// Bytes of a write.
const LEN: u64 = 1 << 30;
/// Bytes of memory that it may take where each of its blocks is a run of its own: 384 for each.
const BYTES_MAX: usize = 96 << 20;

/// Bytes that are allocated, and the most that were since [`peak`] began to look.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn more(len: usize) {
        let now = NOW.fetch_add(len, Relaxed) + len;
        MOST.fetch_max(now, Relaxed);
    }
}

#[allow(unsafe_code, reason = "only an allocator knows what is allocated")]
// SAFETY: everything is handed to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::more(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::more(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Bytes that something allocates at most, besides what there is.
fn peak(mut work: impl FnMut()) -> usize {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    work();
    MOST.load(Relaxed) - before
}

fn soup(mode: Mode) -> Soup {
    Soup {
        mode,
        manual: true,
        ..Soup::default()
    }
}

fn file(fs: &SoupFs, name: &[u8]) -> Node {
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(&fs.root(), name, &new).expect("made")
}

/// A file of reserved blocks that lie apart from each other, and behind each a free one; besides
/// there is little space.
fn scattered() -> (SoupFs, Node) {
    let pool = image(2 * LEN + (64 << 20), Domain::Line, Time(1));
    let fs = soup(Mode::Delayed).mount(pool.clone(), clock());
    let (node, other) = (file(&fs, b"file"), file(&fs, b"other"));
    let allocate = Fallocate::Allocate { keep_size: true };
    for block in 0..LEN / PAGE {
        for node in [&node, &other] {
            let reserved = fs.fallocate(node, allocate, block * PAGE, PAGE);
            reserved.expect("reserved");
        }
    }
    drop((node, other));
    fs.unlink(&fs.root(), b"other", &|_| Ok(()))
        .expect("removed");
    fs.unmount().expect("unmounted");
    drop(fs);
    let fs = soup(Mode::Strong).mount(pool, clock());
    let node = fs.lookup(&fs.root(), b"file").expect("there");
    (fs, node)
}

/// Write all of the file; bytes of memory that it took.
fn written(fs: &SoupFs, node: &Node, data: &[u8]) -> usize {
    let before = (fs.status().backlog.batches, fs.pool().stats().commits_log);
    let most = peak(|| assert_eq!(fs.write(node, 0, data), Ok(data.len())));
    let after = (fs.status().backlog.batches, fs.pool().stats().commits_log);
    assert_eq!(after, (before.0 + 1, before.1 + 1), "one transaction");
    for at in places() {
        let mut found = [0; 100];
        fs.read(node, at as u64, &mut found).expect("read");
        assert!(found == data[at..at + found.len()], "at {at}");
    }
    most
}

/// Where the contents are looked at, across the ends of blocks.
fn places() -> impl Iterator<Item = usize> {
    (0..LEN as usize - 100).step_by((32 << 20) + 4050)
}

#[test]
fn a_write_of_a_gibibyte_is_one_transaction_in_bounded_memory() {
    let (fs, node) = scattered();
    // The rest of it is never stored to, and takes no memory.
    let mut data = vec![0; LEN as usize];
    let mut write = |fill: u8| {
        places().for_each(|at| data[at..at + 100].fill(fill));
        written(&fs, &node, &data)
    };
    let most = [write(1), write(2)];
    println!("{most:?}");
    assert!(most.iter().all(|&most| most < BYTES_MAX), "{most:?}");
    drop(node);
    fs.unmount().expect("unmounted");
    audit(fs.pool());
}

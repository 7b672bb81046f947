//! What a cache before a disk has to do with: blocks make way in the middle of a transaction, the
//! log overflows, a block is freed and used for something else, the cache is flushed, switched,
//! detached and made anew. The disk has four times as many blocks as the cache.

use super::{fill_in, s, write};
use crate::engine::Thresholds;
use crate::engines::ffs::cached::{ENGINE, SPINDLE};
use crate::op::{CacheOp, Op};
use crate::workload::Workload;
use vfs::Fsync;

/// Bytes that are written at once: few enough for a part of a transaction.
const PART: usize = 12 << 10;
/// Bytes of a file that is large for the cache.
const MUCH: usize = 4 * PART;
/// Files whose inodes have more lines than the log has records.
const FILES: usize = 40;

fn tell(op: CacheOp) -> Op {
    Op::Cache(op)
}

fn resize(is_large: bool) -> Op {
    tell(CacheOp::Resize { is_large })
}

fn fsync(path: &str) -> Op {
    Op::Fsync(s(path), Fsync::All)
}

fn create(path: &str) -> Op {
    Op::Create(s(path))
}

/// Bytes that are appended to a file.
fn append(path: &str, len: usize) -> Vec<Op> {
    let parts = (0..len).step_by(PART);
    parts
        .map(|at| write(path, None, PART.min(len - at)))
        .collect()
}

/// Files of so many bytes each.
fn files(names: &[&str], len: usize) -> Vec<Op> {
    let make = |name: &&str| [vec![create(name)], append(name, len)].concat();
    names.iter().flat_map(make).collect()
}

/// So many names in a directory, which take blocks of their own.
fn names(dir: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |n| format!("{dir}/{}{n}", "n".repeat(90)))
}

/// What is prepared, and what is done then.
type Situation = (Vec<Op>, Vec<Op>);

/// All of the cache is in use; `is_clean`: the disk has all of it.
fn filled(is_clean: bool) -> Vec<Op> {
    let mut ops = files(&["one", "two", "three", "four", "five"], MUCH);
    ops.push(Op::Syncfs);
    if is_clean {
        ops.push(tell(CacheOp::Flush));
    }
    ops
}

fn situations() -> Vec<Situation> {
    let work = || {
        vec![
            write("one", Some(3000), 9000),
            create("six"),
            write("six", None, PART),
            Op::Unlink(s("two")),
        ]
    };
    let many: Vec<String> = (0..FILES).map(|n| format!("f{n}")).collect();
    let made = many.iter().map(|name| create(name)).collect::<Vec<_>>();
    let changed = many.iter().map(|name| Op::Chmod(s(name), 0o600));
    let mut tree = vec![Op::Mkdir(s("D"))];
    tree.extend(names("D", 60).map(Op::Create));
    tree.push(Op::Syncfs);
    let mut removed: Vec<Op> = names("D", 60).map(Op::Unlink).collect();
    removed.push(Op::Rmdir(s("D")));
    let reused = [vec![Op::Syncfs], files(&["data"], 30_000)].concat();
    vec![
        // Clean blocks make way; dirty ones are written out within a commit.
        (filled(true), work()),
        (filled(false), work()),
        // More changes than there are records.
        ([made.clone(), vec![Op::Syncfs]].concat(), changed.collect()),
        // Metadata becomes data: a directory's blocks, and those that lead to a file's.
        (tree.clone(), [removed.clone(), reused.clone()].concat()),
        (
            [files(&["one"], MUCH), append("one", MUCH)].concat(),
            [vec![Op::Truncate(s("one"), 5000)], reused].concat(),
        ),
        // Data becomes metadata.
        (
            [files(&["one"], MUCH), vec![Op::Syncfs]].concat(),
            [vec![Op::Unlink(s("one")), Op::Syncfs], tree].concat(),
        ),
        // The disk gets everything, and changes again.
        (
            filled(false),
            [
                vec![tell(CacheOp::Flush)],
                work(),
                vec![Op::Syncfs, tell(CacheOp::Flush)],
            ]
            .concat(),
        ),
        (
            files(&["one", "two"], 10_000),
            [
                vec![tell(CacheOp::Through(true))],
                work(),
                vec![tell(CacheOp::Through(false)), write("one", None, 5000)],
            ]
            .concat(),
        ),
        (
            files(&["one", "two"], 10_000),
            [vec![tell(CacheOp::Detach)], work()].concat(),
        ),
        (
            files(&["one", "two"], 10_000),
            [vec![tell(CacheOp::Renew)], work()].concat(),
        ),
        // It grows, and shrinks again below what is in it.
        (
            files(&["one", "two"], 10_000),
            [
                vec![resize(true)],
                files(&["three", "four", "five"], MUCH),
                vec![resize(false)],
                work(),
            ]
            .concat(),
        ),
    ]
}

/// How a situation is synced: at its end, behind each operation, or a file of it.
const SYNCS: u64 = 3;

/// How many there are.
pub fn count() -> u64 {
    situations().len() as u64 * SYNCS
}

/// A situation, synced in one of the ways.
pub fn cached(number: u64) -> Workload {
    let mut all = situations();
    let (setup, ops) = all.swap_remove((number / SYNCS) as usize);
    let ops = ops.into_iter();
    let ops: Vec<Op> = match number % SYNCS {
        0 => ops.chain([Op::Syncfs]).collect(),
        1 => ops.flat_map(|op| [op, Op::Syncfs]).collect(),
        _ => {
            let synced = |op: Op| match &op {
                Op::Write { path, .. } => {
                    let path = path.clone();
                    vec![op, fsync(&path)]
                }
                _ => vec![op],
            };
            ops.flat_map(synced).collect()
        }
    };
    let setup = [setup, vec![Op::Syncfs]].concat();
    let len = setup.len();
    Workload {
        engine: &ENGINE,
        mode: SPINDLE,
        setup: len,
        ..Workload::new(format!("cache-{number}"), fill_in([setup, ops].concat()))
    }
}

/// How many there are of those that are killed.
pub fn killed_count() -> u64 {
    TOLD.len() as u64 + 3
}

const TOLD: [CacheOp; 7] = [
    CacheOp::Flush,
    CacheOp::Through(true),
    CacheOp::Through(false),
    CacheOp::Detach,
    CacheOp::Renew,
    CacheOp::Resize { is_large: true },
    CacheOp::Resize { is_large: false },
];

/// Positions of the ring at which what is explored begins: it has 64 slots, or 128, and commits
/// three or four blocks for each of these.
const TURNS: u64 = 22;

/// How many there are of those in which the ring begins again.
pub fn ring_count() -> u64 {
    2 * TURNS
}

/// The ring begins again in the middle of what is done: in a transaction of many blocks, of which
/// the cache has none free, or in one of several small ones.
pub fn ring(number: u64) -> Workload {
    let (turns, is_large) = (number / 2, number.is_multiple_of(2));
    let mut setup = filled(false);
    for turn in 0..turns {
        setup.push(write("one", Some(turn % 4 * 4096), PART));
        setup.push(fsync("one"));
    }
    let mut ops = Vec::new();
    for name in ["six", "seven", "eight", "nine", "ten"] {
        ops.extend([create(name), write(name, None, PART)]);
        if !is_large {
            ops.push(fsync(name));
        }
    }
    ops.extend([write("two", Some(5000), 6000), Op::Syncfs]);
    let len = setup.len();
    Workload {
        engine: &ENGINE,
        mode: SPINDLE,
        setup: len,
        ..Workload::new(
            format!("cache-ring-{number}"),
            fill_in([setup, ops].concat()),
        )
    }
}

/// The process is killed before each of the cache's fences, and the next life changes something,
/// and syncs it.
pub fn killed(number: u64) -> Workload {
    let (setup, ops, next) = match number.checked_sub(TOLD.len() as u64) {
        None => told(Some(TOLD[number as usize])),
        Some(0) => told(None),
        Some(1) => undone_data(),
        Some(_) => undone_metadata(),
    };
    let len = setup.len();
    Workload {
        engine: &ENGINE,
        mode: SPINDLE,
        setup: len,
        next: fill_in(next),
        ..Workload::new(
            format!("cache-killed-{number}"),
            fill_in([setup, ops].concat()),
        )
    }
}

/// What is prepared, what is done, and what the next life does.
type Lives = (Vec<Op>, Vec<Op>, Vec<Op>);

/// The cache is told something; or nothing: the disk, which had everything, is marked again.
fn told(what: Option<CacheOp>) -> Lives {
    let mut setup = [files(&["one", "two"], 10_000), vec![Op::Syncfs]].concat();
    let mut ops = vec![write("one", Some(100), 5000)];
    match what {
        Some(told) => ops.push(tell(told)),
        None => {
            setup.push(tell(CacheOp::Flush));
            ops.push(fsync("one"));
        }
    }
    let next = vec![write("two", Some(100), 5000), fsync("two")];
    (setup, ops, next)
}

/// The transaction that is undone replaces clean blocks all over the cache. The next life's first
/// one finds no free block: some of those that were put back make way for it, and others' contents
/// are in their places before it moves Tail.
fn undone_data() -> Lives {
    const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
    let mut ops: Vec<Op> = NAMES
        .iter()
        .map(|name| write(name, Some(0), 2 * 4096))
        .collect();
    ops.push(Op::Syncfs);
    let next = [files(&["six"], MUCH), vec![fsync("six")]].concat();
    (filled(true), ops, next)
}

/// The transaction that is undone changes metadata in place.
fn undone_metadata() -> Lives {
    let setup = [files(&["one", "two"], 10_000), vec![Op::Syncfs]].concat();
    let ops = vec![
        Op::Chmod(s("one"), 0o600),
        Op::Rename(s("two"), s("three"), vfs::RenameMode::Replace),
        Op::Syncfs,
    ];
    let next = vec![write("one", Some(100), 5000), fsync("one")];
    (setup, ops, next)
}

/// How many there are of those with several threads.
pub fn threads_count() -> u64 {
    4
}

/// What is synced is so by a thread of its own, each time, and what the cache is told, or reads, by
/// another one: a fence is for what its own thread has flushed (M6). In every other one blocks that
/// are read are kept.
pub fn threads(number: u64) -> Workload {
    let changes = |ops: &mut Vec<Op>| {
        for at in [0, 4096, 2 * 4096] {
            ops.extend([write("one", Some(at), 2 * 4096), fsync("one")]);
        }
        ops.extend([write("two", Some(0), 5000), fsync("two")]);
    };
    let mut ops = Vec::new();
    let setup = match number / 2 {
        // What a commit has let the disk have is clean before the disk says that it has all.
        0 => {
            ops.extend([tell(CacheOp::Through(true)), write("one", Some(0), 5000)]);
            ops.extend([fsync("one"), tell(CacheOp::Flush)]);
            changes(&mut ops);
            ops.push(tell(CacheOp::Through(true)));
            [files(&["one", "two"], 10_000), vec![Op::Syncfs]].concat()
        }
        // What is forgotten when a cache is opened is so before its blocks are used again.
        _ => {
            ops.push(tell(CacheOp::FlushUnmounted));
            changes(&mut ops);
            filled(true)
        }
    };
    let len = setup.len();
    let workload = Workload {
        engine: &ENGINE,
        mode: SPINDLE,
        setup: len,
        threads: true,
        ..Workload::new(
            format!("cache-threads-{number}"),
            fill_in([setup, ops].concat()),
        )
    };
    match number % 2 {
        0 => workload,
        _ => Workload {
            thresholds: Thresholds::Tight,
            ..workload
        },
    }
}

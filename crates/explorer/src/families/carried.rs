//! Contents that a record of the journal has, and that change, or whose page is used for something
//! else, before it is checkpointed: replay must not bring back what a later sync has promised
//! otherwise.

use super::{fill_in, s, write, xattr};
use crate::op::Op;
use crate::workload::Workload;
use vfs::{Fallocate, Fsync};

/// What happens to a file of nearly a block whose contents a record has. Some of it fits a
/// record again, some does not.
fn changes() -> Vec<Vec<Op>> {
    let zero = Fallocate::Zero { keep_size: true };
    let fallocate = |mode, at, len| Op::Fallocate(s("foo"), mode, at, len);
    let truncate = |len| Op::Truncate(s("foo"), len);
    let large = || write("foo", Some(0), 20_000);
    let copy = |from: (&str, u64), to: (&str, u64), len| Op::CopyRange {
        from: (s(from.0), from.1),
        to: (s(to.0), to.1),
        len,
    };
    vec![
        vec![write("foo", Some(100), 100)],
        vec![large()],
        vec![write("foo", None, 100)],
        vec![write("foo", None, 20_000)],
        vec![write("foo", Some(4000), 200), write("bar", None, 20_000)],
        vec![truncate(100)],
        vec![truncate(100), truncate(5000)],
        vec![
            truncate(100),
            truncate(30_000),
            write("foo", Some(9000), 20_000),
        ],
        vec![truncate(0), large()],
        vec![fallocate(Fallocate::Punch, 100, 2000)],
        vec![fallocate(Fallocate::Punch, 0, 4096), large()],
        vec![fallocate(zero, 0, 6000), write("foo", Some(10), 100)],
        vec![fallocate(zero, 0, 6000), large()],
        vec![copy(("bar", 0), ("foo", 0), 9000)],
        vec![Op::Unlink(s("foo")), write("bar", None, 20_000)],
    ]
}

/// How the change is synced.
fn syncs() -> Vec<Vec<Op>> {
    vec![
        vec![Op::Fsync(s("foo"), Fsync::All)],
        vec![Op::Fsync(s("foo"), Fsync::Data)],
        vec![Op::Syncfs],
        vec![],
    ]
}

/// A page that a record has contents of is used for something else: how many forms that takes.
const REUSES: u64 = 32;

/// How many there are.
pub fn count() -> u64 {
    changes_count() + REUSES
}

fn changes_count() -> u64 {
    (changes().len() * syncs().len()) as u64
}

/// A file is synced, changed, synced, and changed again; or the page of one is reused.
pub fn carried(number: u64) -> Workload {
    let (setup, ops) = match number.checked_sub(changes_count()) {
        None => changed(number),
        Some(reuse) => reused(reuse),
    };
    Workload {
        setup,
        ..Workload::new(format!("carried-{number}"), fill_in(ops))
    }
}

/// What prepares, and all operations: contents that a record has change.
fn changed(number: u64) -> (usize, Vec<Op>) {
    let (changes, syncs) = (changes(), syncs());
    let n = changes.len() as u64;
    let mut ops = vec![
        Op::Create(s("bar")),
        Op::Create(s("foo")),
        write("bar", None, 9000),
        Op::Syncfs,
        write("foo", None, 4000),
        Op::Fsync(s("foo"), Fsync::All),
    ];
    ops.extend(changes[(number % n) as usize].clone());
    ops.extend(syncs[(number / n) as usize % syncs.len()].clone());
    ops.extend([write("foo", Some(50), 10), Op::Syncfs]);
    (4, ops)
}

/// The same: a file is cut off with bytes that were overwritten and not synced. So the record of
/// its sync has contents of a page that is free, or somebody else's; and what that page is used for
/// is flushed in place, as it does not fit the next record.
fn reused(number: u64) -> (usize, Vec<Op>) {
    let bit = |i: u64| number >> i & 1 == 1;
    let (before, by_record, only_data) = (bit(0), bit(1), bit(2));
    let mut ops = vec![
        Op::Create(s("bar")),
        Op::Create(s("foo")),
        Op::Syncfs,
        write("foo", None, 4000),
    ];
    // The page is in the tree; or nobody but its file knows of it.
    ops.extend(by_record.then(|| Op::Fsync(s("foo"), Fsync::All)));
    ops.extend([write("foo", Some(50), 10), Op::Truncate(s("foo"), 0)]);
    let large = write("bar", None, 20_000);
    let uses = match number >> 3 {
        0 => vec![large],                            // a node of its index
        1 => vec![xattr("bar", b'a', 3000), large],  // its extended attributes
        2 => vec![Op::Symlink(s("to"), 200), large], // a target
        _ => vec![write("bar", None, 100), large],   // contents
    };
    let sync = match only_data {
        true => Op::Fsync(s("foo"), Fsync::Data),
        false => Op::Fsync(s("foo"), Fsync::All),
    };
    match before {
        true => ops.extend(uses.into_iter().chain([sync])),
        false => ops.extend([sync].into_iter().chain(uses)),
    }
    ops.extend([Op::Syncfs, write("foo", None, 10)]);
    (3, ops)
}

//! Contents that a record of the journal has, and that change before it is checkpointed: replay must
//! not bring back what a later sync has promised otherwise.

use super::{fill_in, s, write};
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

/// How many there are.
pub fn count() -> u64 {
    (changes().len() * syncs().len()) as u64
}

/// A file is synced, changed, synced, and changed again.
pub fn carried(number: u64) -> Workload {
    let (changes, syncs) = (changes(), syncs());
    let n = changes.len() as u64;
    let mut ops = vec![
        write("bar", None, 9000),
        Op::Syncfs,
        write("foo", None, 4000),
        Op::Fsync(s("foo"), Fsync::All),
    ];
    let setup = 2;
    ops.extend(changes[(number % n) as usize].clone());
    ops.extend(syncs[(number / n) as usize % syncs.len()].clone());
    ops.extend([write("foo", Some(50), 10), Op::Syncfs]);
    ops.insert(0, Op::Create(s("bar")));
    ops.insert(1, Op::Create(s("foo")));
    Workload {
        setup: setup + 2,
        ..Workload::new(format!("carried-{number}"), fill_in(ops))
    }
}

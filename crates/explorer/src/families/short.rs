//! Short workloads: every operation, and pairs of them, on a small tree that is durable, each
//! followed by one of many ways to sync.

use super::{fill_in, s};
use crate::op::Op;
use crate::workload::Workload;
use vfs::{Fallocate, Fsync, RenameMode};

/// Byte values of the contents that are there from the start.
const BASE_FILLS: [u8; 2] = [191, 192];

/// What the short workloads start from, durable: some files and directories.
pub fn base() -> Vec<Op> {
    vec![
        Op::Mkdir(s("A")),
        Op::Mkdir(s("B")),
        Op::Mkdir(s("A/C")),
        Op::Create(s("foo")),
        Op::Write {
            path: s("foo"),
            at: None,
            len: 6000,
            fill: BASE_FILLS[0],
        },
        Op::Create(s("A/foo")),
        Op::Write {
            path: s("A/foo"),
            at: None,
            len: 100,
            fill: BASE_FILLS[1],
        },
        Op::Create(s("B/baz")),
        Op::Syncfs,
    ]
}

/// All operations on the names of ACE: files foo, bar, A/foo, A/bar, directories A, B, A/C.
pub fn operations() -> Vec<Op> {
    use Fallocate::{Allocate, Punch, Zero};
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    let mut ops = vec![
        Op::Create(s("bar")),
        Op::Create(s("A/bar")),
        Op::Create(s("A/C/bar")),
        Op::Mkdir(s("D")),
        Op::Mkdir(s("A/D")),
        Op::Mkdir(s("D/E")),
        Op::Symlink(s("bar"), 40),
        Op::Symlink(s("A/C/bar"), 4000),
        Op::Create("B/".to_owned() + &"long".repeat(40)),
        Op::Link(s("foo"), s("bar")),
        Op::Link(s("foo"), s("A/bar")),
        Op::Link(s("A/foo"), s("A/C/bar")),
        Op::Unlink(s("foo")),
        Op::Unlink(s("A/foo")),
        Op::Unlink(s("bar")),
        Op::Unlink(s("A/bar")),
        Op::Rmdir(s("B")),
        Op::Rmdir(s("A/C")),
        Op::Rmdir(s("D")),
        Op::Chmod(s("foo"), 0o600),
        Op::Chmod(s("A"), 0o700),
        Op::Chown(s("A/foo"), 7),
        Op::Touch(s("foo")),
        Op::RemoveXattr(s("foo"), b'x'),
        Op::Tmpfile(s("A"), 0),
        Op::LinkHeld(0, s("bar")),
        Op::LinkHeld(0, s("A/C/bar")),
        Op::TruncateHeld(0, 50),
        Op::FsyncHeld(0),
        Op::Open(s("foo"), 0),
        Op::Open(s("A/foo"), 0),
        Op::Close(0),
    ];
    for (from, to, mode) in [
        ("foo", "bar", Replace),
        ("foo", "A/foo", Replace),
        ("A/foo", "foo", Replace),
        ("foo", "A/bar", NoReplace),
        ("A/foo", "A/bar", Replace),
        ("bar", "A/C/bar", Replace),
        ("bar", "foo", Replace),
        ("foo", "A/foo", Exchange),
        ("A", "B", Exchange),
        ("A/C", "foo", Exchange),
        ("foo", "bar", Whiteout),
        ("A/foo", "foo", Whiteout),
        ("A/C", "B", Replace),
        ("A/C", "B/C", Replace),
        ("B", "A/C", Replace),
        ("B", "A/C/B", Replace),
        ("A", "B/A", Replace),
        ("D", "B/D", Replace),
        ("A/C", "D/C", Replace),
        ("foo", "D/foo", Replace),
        ("A", "E", Replace),
    ] {
        ops.push(Op::Rename(s(from), s(to), mode));
    }
    for (path, at, len) in [
        ("foo", None, 3000),
        ("foo", Some(0), 6000),
        ("foo", Some(4000), 200),
        ("foo", Some(20_000), 100),
        ("foo", Some(3 << 20), 5000),
        ("A/foo", None, 9000),
        ("bar", None, 5000),
        ("A/bar", Some(5000), 5000),
        ("A/C/bar", Some(0), 64),
    ] {
        ops.push(Op::Write {
            path: s(path),
            at,
            len,
            fill: 0,
        });
    }
    ops.push(Op::WriteHeld {
        handle: 0,
        at: 0,
        len: 5000,
        fill: 0,
    });
    for (path, size) in [
        ("foo", 0),
        ("foo", 100),
        ("foo", 4096),
        ("foo", 5000),
        ("foo", 30_000),
        ("A/foo", 50),
        ("bar", 4000),
    ] {
        ops.push(Op::Truncate(s(path), size));
    }
    for (path, mode, at, len) in [
        ("foo", Allocate { keep_size: false }, 0, 20_000),
        ("foo", Allocate { keep_size: true }, 8192, 9000),
        ("foo", Punch, 0, 4096),
        ("foo", Punch, 1000, 4000),
        ("foo", Punch, 0, 1 << 20),
        ("foo", Zero { keep_size: false }, 100, 9000),
        ("foo", Zero { keep_size: true }, 4096, 9000),
        ("A/foo", Allocate { keep_size: false }, 0, 5000),
        ("A/foo", Punch, 10, 20),
        ("bar", Allocate { keep_size: false }, 4096, 9000),
    ] {
        ops.push(Op::Fallocate(s(path), mode, at, len));
    }
    for (path, name, len) in [
        ("foo", b'x', 10),
        ("foo", b'y', 6000),
        ("A", b'x', 30),
        ("bar", b'z', 5),
    ] {
        ops.push(Op::SetXattr {
            path: s(path),
            name,
            len,
            fill: 0,
        });
    }
    for (path, perm, len) in [("foo", 0o640, 44), ("A", 0o770, 36), ("A/foo", 0o600, 5000)] {
        ops.push(Op::SetAcl {
            path: s(path),
            perm,
            len,
            fill: 0,
        });
    }
    for (path, dir, len) in [
        ("bar", false, 44),
        ("D", true, 5000),
        ("A/C/bar", false, 9000),
    ] {
        ops.push(Op::Inherit {
            path: s(path),
            dir,
            len,
            fill: 0,
        });
    }
    ops.push(Op::Mknod(s("A/bar"), 0x0103));
    ops
}

/// Ways to make something durable, between and after operations.
pub fn syncs() -> Vec<Vec<Op>> {
    let fsync = |path: &str| Op::Fsync(s(path), Fsync::All);
    vec![
        vec![Op::Syncfs],
        vec![],
        vec![fsync("foo")],
        vec![fsync("bar")],
        vec![fsync("A/foo")],
        vec![fsync("A")],
        vec![fsync("")],
        vec![fsync("B")],
        vec![fsync("A/bar")],
        vec![fsync("A/C/bar")],
        vec![Op::Fsync(s("foo"), Fsync::Data)],
        vec![Op::FsyncHeld(0)],
        vec![fsync("D")],
        vec![fsync("A/C")],
        vec![fsync("D"), fsync("A")],
    ]
}

fn workload(name: String, ops: Vec<Op>) -> Workload {
    Workload {
        setup: base().len(),
        ..Workload::new(name, fill_in([base(), ops].concat()))
    }
}

/// How many workloads `single` and `threaded` have: each operation with each sync.
pub fn singles() -> u64 {
    (operations().len() * syncs().len()) as u64
}

/// Number of the workload with this operation and this way to sync.
pub fn single_number(op: usize, sync: usize) -> u64 {
    (sync * operations().len() + op) as u64
}

/// One operation, then a sync. First each with a sweep, then with other syncs.
pub fn single(number: u64) -> Workload {
    let (all, syncs) = (operations(), syncs());
    let (op, sync) = (number as usize % all.len(), number as usize / all.len());
    let mut ops = vec![all[op].clone()];
    ops.extend(syncs[sync % syncs.len()].clone());
    ops.push(Op::Syncfs);
    workload(format!("single-{number}"), ops)
}

/// As `single`, with each sync on a thread of its own.
pub fn threaded(number: u64) -> Workload {
    Workload {
        threads: true,
        name: format!("threaded-{number}"),
        ..single(number)
    }
}

/// The same, with three threads that share the flushing of each batch. In which order these flush
/// differs from run to run.
pub fn shared(number: u64) -> Workload {
    Workload {
        persisters: 3,
        name: format!("shared-{number}"),
        ..single(number)
    }
}

/// How many workloads [`pair`] has.
pub fn pairs() -> u64 {
    singles() * singles()
}

/// Two operations, each with a sync of its own: two numbers of [`single`] in one.
pub fn pair(number: u64) -> Workload {
    let (all, syncs) = (operations(), syncs());
    let mut ops = Vec::new();
    for number in [number % singles(), number / singles() % singles()] {
        let (op, sync) = (number as usize % all.len(), number as usize / all.len());
        ops.push(all[op].clone());
        ops.extend(syncs[sync].clone());
    }
    ops.push(Op::Syncfs);
    workload(format!("pair-{number}"), ops)
}

/// Where [`zeroed`] writes to a file of 6000 bytes, and how much: within a block, from one block
/// into the next, all.
const REWRITES: [(u64, usize); 3] = [(100, 100), (4000, 200), (0, 6000)];

/// How many workloads [`zeroed`] has.
pub fn zeroeds() -> u64 {
    (REWRITES.len() * syncs().len()) as u64
}

/// A file is made to read as zeros and written again before that is persisted. The medium has the
/// blocks as written, the latest view has not.
pub fn zeroed(number: u64) -> Workload {
    let (at, len) = REWRITES[number as usize % REWRITES.len()];
    let syncs = syncs();
    let zero = Fallocate::Zero { keep_size: true };
    let mut ops = vec![
        Op::Fallocate(s("foo"), zero, 0, 8192),
        Op::Write {
            path: s("foo"),
            at: Some(at),
            len,
            fill: 0,
        },
    ];
    ops.extend(syncs[number as usize / REWRITES.len() % syncs.len()].clone());
    ops.push(Op::Syncfs);
    workload(format!("zeroed-{number}"), ops)
}

/// Syncs of which one fails in [`failing`]: most pairs have so many, some fewer.
const FAILURES: u64 = 8;

/// How many workloads [`failing`] has.
pub fn failings() -> u64 {
    pairs() * FAILURES
}

/// As `pair`, where one of the syncs fails.
pub fn failing(number: u64) -> Workload {
    Workload {
        fails: Some(number % FAILURES),
        name: format!("failing-{number}"),
        ..pair(number / FAILURES)
    }
}

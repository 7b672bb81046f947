//! Requests of mode `strong` that come by what no other mode does: checkpoints before bytes are
//! stored in place, pages that come back soon, nodes that are copied, pages in place of reserved
//! ones, a ring that begins again.

use super::{fill_in, s, whole, write, xattr};
use crate::engine::{Mode, Thresholds};
use crate::op::Op;
use crate::workload::Workload;
use pmem::Abort;
use pmem::transaction::Aborts;
use vfs::{Fallocate, RenameMode};

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Blocks that one node of an index leads to.
const FANOUT: u64 = 512;
/// As many replaced pages as a thread keeps at hand: then the journal is checkpointed.
const RECYCLED: usize = 64;

/// What prepares, and what follows.
type Ops = (Vec<Op>, Vec<Op>);

/// All of them, by one thread, and then some with a thread for each request.
fn all() -> Vec<(Ops, Thresholds, bool)> {
    let usual = [
        names(),
        contents(),
        tails(),
        reserved(),
        recycled(),
        attributes(),
        ring(),
    ];
    let usual = usual.map(|ops| (ops, Thresholds::Usual, false));
    let tight = [copied(), reserved()].map(|ops| (ops, Thresholds::Tight, false));
    let threaded = [names(), contents(), tails(), attributes(), freed_last()];
    let threaded = threaded.map(|ops| (ops, Thresholds::Usual, true));
    usual.into_iter().chain(tight).chain(threaded).collect()
}

/// How many there are.
pub fn count() -> u64 {
    all().len() as u64
}

/// One of them.
pub fn strict(number: u64) -> Workload {
    let ((setup, more), thresholds, threads) = all().swap_remove(number as usize);
    let prepares = setup.len();
    Workload {
        mode: Mode::STRONG,
        thresholds,
        threads,
        setup: prepares,
        ..Workload::new(
            format!("strict-{number}"),
            fill_in(setup.into_iter().chain(more).collect()),
        )
    }
}

/// Ways of domain `cache` to commit, by which transactions abort: none, and all without a lock.
const WAYS: [Aborts; 2] = [Aborts::Never, Aborts::Optimistic(Abort::Conflict)];

/// How many [`by_transactions`] there are.
pub fn by_transactions_count() -> u64 {
    WAYS.len() as u64 * (count() + whole::count())
}

/// All of `whole` and of this family by software transactions, where the domain has any.
pub fn by_transactions(number: u64) -> Workload {
    let ways = WAYS.len() as u64;
    let of = number / ways;
    let workload = match of.checked_sub(count()) {
        None => strict(of),
        Some(of) => whole::whole(of),
    };
    Workload {
        name: format!("transactions-{number}"),
        transactions: Some(WAYS[(number % ways) as usize]),
        ..workload
    }
}

/// Each request on names; some of more lines than a record carries.
fn names() -> Ops {
    let long = "a-name-that-takes-several-lines".repeat(6);
    let rename = |from: &str, to: &str, mode| Op::Rename(s(from), s(to), mode);
    let ops = vec![
        Op::Mkdir(s("A")),
        Op::Create(s("A/foo")),
        Op::Create(format!("A/{long}")),
        Op::Symlink(s("short"), 20),
        Op::Symlink(s("long"), 3000),
        Op::Mknod(s("A/device"), 7),
        Op::Link(s("A/foo"), s("bar")),
        Op::Mkdir(s("B")),
        rename("A/foo", "B/foo", RenameMode::Replace),
        rename("bar", "short", RenameMode::Exchange),
        rename("A/device", "B/device", RenameMode::Whiteout),
        rename("A", "B/A", RenameMode::Replace),
        rename("long", "B/foo", RenameMode::Replace),
        Op::Unlink(format!("B/A/{long}")),
        Op::Unlink(s("B/A/device")),
        Op::Rmdir(s("B/A")),
        Op::Unlink(s("B/foo")),
        Op::Create(s("last")),
    ];
    (vec![], ops)
}

/// Bytes by the record, by other pages, and both behind each other.
fn contents() -> Ops {
    let ops = vec![
        write("foo", None, 3000),
        write("foo", Some(100), 100),
        write("foo", None, 200),
        write("foo", Some(200), 9000),
        write("foo", Some(300), 2000),
        write("foo", Some(0), 5000),
        Op::CopyRange {
            from: (s("foo"), 3),
            to: (s("foo"), 20_000),
            len: 9000,
        },
        Op::CopyRange {
            from: (s("foo"), 3),
            to: (s("foo"), 5000),
            len: 70,
        },
        Op::Truncate(s("foo"), 4500),
        Op::Unlink(s("foo")),
        Op::Create(s("bar")),
        write("bar", None, 30_000),
    ];
    (vec![Op::Create(s("foo"))], ops)
}

/// The size grows over bytes that a live record has.
fn tails() -> Ops {
    let mut ops = Vec::new();
    let grows = [
        Op::Truncate(s("foo"), 3500),
        write("foo", Some(3500), 300),
        write("foo", Some(9000), 300),
        Op::Fallocate(s("foo"), Fallocate::Allocate { keep_size: false }, 0, 3700),
        Op::CopyRange {
            from: (s("bar"), 0),
            to: (s("foo"), 3600),
            len: 100,
        },
    ];
    for grow in grows {
        ops.extend([
            write("foo", Some(2900), 100),
            Op::Truncate(s("foo"), 2950),
            grow,
            // The ring goes on with something else.
            Op::Create(s("new")),
            Op::Unlink(s("new")),
            Op::Truncate(s("foo"), 3000),
        ]);
    }
    let setup = vec![
        Op::Create(s("foo")),
        write("foo", None, 3000),
        Op::Create(s("bar")),
        write("bar", None, 3000),
    ];
    (setup, ops)
}

/// The size grows over them once more, and that checkpoints: so the commit frees what was removed
/// before, and is the last to change the maps. Another thread unmounts.
fn freed_last() -> Ops {
    let setup = vec![
        Op::Create(s("foo")),
        write("foo", None, 3000),
        Op::Create(s("bar")),
        write("bar", None, 9000),
    ];
    let ops = vec![
        write("foo", Some(2900), 100),
        Op::Truncate(s("foo"), 2950),
        Op::Truncate(s("bar"), 0),
        Op::Truncate(s("foo"), 3500),
    ];
    (setup, ops)
}

/// Bytes in a record, of blocks that read as zeros then and are written again.
fn reserved() -> Ops {
    let zero = Fallocate::Zero { keep_size: true };
    let fallocate = |mode, at, len| Op::Fallocate(s("foo"), mode, at, len);
    let ops = vec![
        write("foo", Some(100), 100),
        fallocate(zero, 0, 9000),
        write("foo", Some(200), 20),
        write("foo", Some(4090), 100),
        fallocate(zero, 0, 4096),
        write("foo", Some(0), 8000),
        fallocate(Fallocate::Punch, 50, 20),
        fallocate(Fallocate::Punch, 4000, 5000),
        write("foo", None, 10),
    ];
    (vec![Op::Create(s("foo")), write("foo", None, 12_000)], ops)
}

/// Blocks are replaced until the journal is checkpointed for their pages, and these come back;
/// records have some bytes of them.
fn recycled() -> Ops {
    let len = RECYCLED / 2 * BLOCK;
    let setup = vec![
        Op::Create(s("bar")),
        Op::Create(s("foo")),
        write("foo", None, len),
        write("foo", Some(0), len),
    ];
    let few = |block: usize| write("foo", Some((block * BLOCK + 100) as u64), 10);
    let ops = (0..12).map(few).chain([
        write("foo", Some(0), len),
        Op::Chmod(s("foo"), 0o640), // its record is all that it takes
        write("bar", None, len),
        write("foo", Some(0), 3 * BLOCK),
        write("bar", Some(4 * BLOCK as u64), 3 * BLOCK),
    ]);
    (setup, ops.collect())
}

/// What a request changes besides bytes and names; a time of access, which no request waits for.
fn attributes() -> Ops {
    let ops = vec![
        Op::Chmod(s("foo"), 0o4755),
        Op::Chown(s("foo"), 7),
        write("foo", Some(10), 10),
        Op::Touch(s("foo")),
        xattr("foo", b'a', 30),
        xattr("foo", b'b', 3000),
        xattr("foo", b'b', 2000),
        Op::RemoveXattr(s("foo"), b'a'),
        Op::RemoveXattr(s("foo"), b'b'),
        Op::Access(s("foo")),
        Op::Syncfs,
        Op::Tmpfile(s(""), 0),
        Op::WriteHeld {
            handle: 0,
            at: 0,
            len: 5000,
            fill: 0,
        },
        Op::LinkHeld(0, s("held")),
        Op::Unlink(s("held")),
        Op::Close(0),
        Op::Create(s("bar")),
    ];
    (vec![Op::Create(s("foo")), write("foo", None, 3000)], ops)
}

/// Requests of all sizes until the ring of the journal begins again, and some behind that.
fn ring() -> Ops {
    let round = |n: usize| {
        let file = format!("f{}", n % 3);
        [
            write("foo", Some(n as u64 * 37 % 9000), 30),
            Op::Create(file.clone()),
            write("foo", Some(n as u64 * 91 % 6000), 5000),
            Op::Rename(file, s("to"), RenameMode::Replace),
            Op::Truncate(s("foo"), 9000 + n as u64),
        ]
    };
    let begin = [Op::Create(s("foo")), write("foo", None, 9000)];
    let mut setup: Vec<Op> = begin.into_iter().chain((0..80).flat_map(round)).collect();
    let ops = setup.split_off(setup.len() - 40);
    (setup, ops)
}

/// Changes of so many blocks that nodes are copied, in two leaves of an index.
fn copied() -> Ops {
    let edge = |blocks: i64| FANOUT.wrapping_add_signed(blocks) * BLOCK as u64;
    let zero = Fallocate::Zero { keep_size: false };
    let setup = vec![Op::Create(s("foo")), write("foo", Some(edge(-3)), 24_576)];
    let ops = vec![
        write("foo", Some(edge(-2) + 100), 17_000),
        write("foo", Some(edge(-3)), 24_576),
        Op::Fallocate(s("foo"), zero, edge(-3) + 1, edge(3) - edge(-3)),
        write("foo", Some(edge(-2)), 12_000),
        Op::CopyRange {
            from: (s("foo"), edge(-3)),
            to: (s("foo"), 0),
            len: 24_576,
        },
        Op::Fallocate(s("foo"), Fallocate::Punch, edge(-3), edge(2) - edge(-3)),
        Op::Unlink(s("foo")),
        Op::Create(s("bar")),
        write("bar", None, 20_000),
    ];
    (setup, ops)
}

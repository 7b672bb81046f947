//! Long workloads that lead to one place: directories that grow and churn, a journal that wraps, chains of fresh directories.

use super::s;
use crate::op::Op;
use crate::workload::Workload;
use soupfs::Mode;
use vfs::{Fsync, RenameMode};

/// How many workloads [`wrap`] has. The tree after each step is kept, so one takes memory by the square of its
/// length.
pub const WRAPS: u64 = 4;
/// How many workloads [`chain`] has, for the same reason.
pub const CHAINS: u64 = 40;

/// A directory that grows until its buckets split and its table is enlarged, then shrinks.
pub fn growth(number: u64) -> Workload {
    let (names, syncs) = match number {
        0 => (40, 3),
        1 => (80, 0),
        2 => (200, 4),
        3 => (300, 9),
        n => (33 + n as usize * 37 % 300, n as usize % 10),
    };
    let mut ops = vec![Op::Mkdir(s("dir")), Op::Syncfs];
    let name = |i: usize| {
        format!(
            "dir/{i}{}",
            if i % 16 == 3 {
                "-and-a-name-that-does-not-fit".repeat(3)
            } else {
                String::new()
            }
        )
    };
    for i in 0..names {
        ops.push(Op::Create(name(i)));
        if syncs > 0 && i % (names / syncs) == names / syncs - 1 {
            ops.push(if i % 2 == 0 {
                Op::Syncfs
            } else {
                Op::Fsync(name(i), Fsync::All)
            });
        }
    }
    ops.push(Op::Syncfs);
    for i in (0..names).step_by(3) {
        ops.push(if i % 2 == 0 {
            Op::Unlink(name(i))
        } else {
            Op::Rename(name(i), format!("dir/moved{i}"), RenameMode::Replace)
        });
    }
    ops.push(Op::Fsync(s("dir"), Fsync::All));
    ops.push(Op::Syncfs);
    Workload {
        len: 2 << 20,
        ..Workload::new(format!("growth-{number}"), ops)
    }
}

/// A directory whose names all change in each round: space is used again, and the journal wraps.
pub fn churn(number: u64) -> Workload {
    let (names, rounds) = match number {
        0 => (12, 5),
        1 => (40, 16),
        2 => (70, 12),
        n => (10 + n as usize * 13 % 80, 3 + n as usize % 15),
    };
    let mut ops = vec![Op::Mkdir(s("dir")), Op::Syncfs];
    for round in 0..rounds {
        for i in 0..names {
            let name = |round: usize| format!("dir/{i}-{round}");
            match (round, i % 4) {
                (0, _) => ops.push(Op::Create(name(0))),
                (_, 0) => ops.push(Op::Rename(
                    name(round - 1),
                    name(round),
                    RenameMode::Replace,
                )),
                (_, 1) if round % 2 == 1 => {
                    ops.extend([Op::Unlink(name(round - 1)), Op::Mkdir(name(round))])
                }
                (_, 1) => ops.extend([Op::Rmdir(name(round - 1)), Op::Create(name(round))]),
                _ => ops.extend([Op::Unlink(name(round - 1)), Op::Create(name(round))]),
            }
        }
        ops.push(Op::Syncfs);
    }
    Workload::new(format!("churn-{number}"), ops)
}

/// So many commits, none of which removes anything, that the journal wraps.
pub fn wrap(number: u64) -> Workload {
    let links = 600 + 100 * number as usize;
    let mut ops = vec![Op::Create(s("foo"))];
    ops.extend((0..links).map(|i| Op::Link(s("foo"), format!("link{i}"))));
    // The ring is longer than what so many commits take. What prepares is durable in any mode.
    let prepares = 1 + links / 3;
    ops.insert(prepares, Op::Syncfs);
    Workload {
        mode: Mode::Sync,
        setup: prepares + 1,
        ..Workload::new(format!("wrap-{number}"), ops)
    }
}

/// A chain of fresh directories; only its leaf is synced.
pub fn chain(number: u64) -> Workload {
    let depth = 2 + number as usize;
    let dir = |n: usize| vec!["d"; n].join("/");
    let mut ops: Vec<Op> = (1..=depth).map(|n| Op::Mkdir(dir(n))).collect();
    let leaf = dir(depth) + "/leaf";
    ops.extend([
        Op::Create(leaf.clone()),
        Op::Write {
            path: leaf.clone(),
            at: None,
            len: 5000,
            fill: 9,
        },
        Op::Fsync(leaf.clone(), Fsync::All),
        Op::Rename(dir(depth), s("top"), RenameMode::Replace),
        Op::Mkdir(s("other")),
        Op::Rename(s("d"), s("other/d"), RenameMode::Replace),
        Op::Rename(
            s("top"),
            dir(depth - 1).replacen('d', "other/d", 1) + "/back",
            RenameMode::Replace,
        ),
        Op::Fsync(s("other"), Fsync::All),
        Op::Syncfs,
    ]);
    Workload::new(format!("chain-{number}"), ops)
}

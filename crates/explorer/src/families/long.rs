//! Long workloads that lead to one place: directories that grow and churn, a journal that wraps,
//! chains of fresh directories.

use super::s;
use crate::engine::Mode;
use crate::op::Op;
use crate::workload::Workload;
use vfs::{Fsync, RenameMode};

/// How many workloads [`wrap`] has.
pub const WRAPS: u64 = 4;
/// How many workloads [`chain`] has. The tree after each step is kept, so one takes memory, and
/// time, by the square of its length: the longest 2 MB of trees.
pub const CHAINS: u64 = 40;

/// A directory that grows beyond a size at which its buckets split and its table is enlarged (32,
/// 64, 128 and 256 names), then shrinks. It is filled to just below that before crashes are tried.
pub fn growth(number: u64) -> Workload {
    let n = number as usize;
    let (before, more, syncs) = match n {
        0 => (56, 20, 3),
        1 => (24, 90, 0),
        2 => (120, 24, 4),
        3 => (248, 16, 2),
        _ => ([40, 56, 100, 120, 230, 248][n % 6], 12 + n * 37 % 80, n % 6),
    };
    let mut ops = vec![Op::Mkdir(s("dir"))];
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
    ops.extend((0..before).map(|i| Op::Create(name(i))));
    ops.push(Op::Syncfs);
    let setup = ops.len();
    let names = before + more;
    for i in before..names {
        ops.push(Op::Create(name(i)));
        if syncs > 0 && (i - before) % (more / syncs) == more / syncs - 1 {
            ops.push(if i % 2 == 0 {
                Op::Syncfs
            } else {
                Op::Fsync(name(i), Fsync::All)
            });
        }
    }
    ops.push(Op::Syncfs);
    for i in (before - 20..names).step_by(3) {
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
        setup,
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

/// So many commits, none of which removes anything, that the journal wraps. All but those around
/// that only prepare.
pub fn wrap(number: u64) -> Workload {
    let (prepares, links) = (210 - 40 * number as usize, 310);
    let mut ops = vec![Op::Create(s("foo"))];
    for i in 0..links {
        let link = format!("link{i}");
        ops.push(Op::Link(s("foo"), link.clone()));
        ops.push(Op::Fsync(link, Fsync::All));
    }
    Workload {
        mode: Mode::SYNC,
        setup: 1 + 2 * prepares,
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

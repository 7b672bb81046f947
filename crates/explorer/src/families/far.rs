//! Files and directories so large that pointers in indirect blocks lead to their ends (in ext2 with
//! blocks of 1 KiB: behind 12 of them), and attributes in blocks, with a sync of each kind at each
//! position.

use super::short::base;
use super::situations::{SYNCS, sync};
use super::{fill_in, s, write, xattr};
use crate::op::Op;
use crate::workload::Workload;
use vfs::{Fallocate, RenameMode};

/// Positions in a script.
const POSITIONS: u64 = 5;
/// Names in a directory that has as many as direct pointers lead to: of those four fill a block.
const NAMES: usize = 46;

/// A name of which few have room in a block.
fn name(number: usize) -> String {
    format!("D/{number:03}{}", "x".repeat(230))
}

/// What is durable, and what is done then: scripts of so many operations.
fn scripts() -> Vec<(Vec<Op>, Vec<Op>)> {
    let truncate = |size| Op::Truncate(s("foo"), size);
    let punch = |at, len| Op::Fallocate(s("foo"), Fallocate::Punch, at, len);
    let create = |number| Op::Create(name(number));
    let rename = |from: String, to: String| Op::Rename(from, to, RenameMode::Replace);
    let whole = || vec![write("foo", Some(0), 30_000)];
    let full = || {
        let names = (0..NAMES).map(create);
        [Op::Mkdir(s("D"))].into_iter().chain(names).collect()
    };
    vec![
        // A file grows into indirect blocks, and in them.
        (
            vec![],
            vec![
                write("foo", None, 12_000),
                write("foo", None, 8000),
                write("foo", Some(40_000), 5000),
                write("foo", Some(300_000), 3000),
                write("foo", Some(30_000), 3000),
            ],
        ),
        // It gets smaller, and large again.
        (
            whole(),
            vec![
                truncate(15_000),
                truncate(30_000),
                write("foo", Some(25_000), 100),
                truncate(5000),
                write("foo", Some(28_000), 3000),
            ],
        ),
        // What it gives up others get.
        (
            whole(),
            vec![
                truncate(14_000),
                write("A/foo", None, 9000),
                truncate(3000),
                write("B/baz", None, 9000),
                write("foo", None, 20_000),
            ],
        ),
        // Holes come, and are filled.
        (
            whole(),
            vec![
                punch(16_384, 8192),
                write("A/foo", None, 6000),
                write("foo", Some(18_000), 3000),
                punch(12_288, 20_000),
                write("foo", Some(20_000), 3000),
            ],
        ),
        // A directory grows into an indirect block, and its names come and go there.
        (
            full(),
            vec![
                create(NAMES),
                create(NAMES + 1),
                create(NAMES + 2),
                Op::Unlink(name(NAMES + 1)),
                create(NAMES + 3),
            ],
        ),
        // What is moved there has its old name until it can be reached.
        (
            full(),
            vec![
                create(NAMES),
                create(NAMES + 1),
                rename(s("foo"), name(NAMES + 2)),
                rename(s("A/C"), name(NAMES + 3)),
                rename(name(NAMES + 2), s("B/foo")),
            ],
        ),
        // Extended attributes that need a block of their own.
        (
            vec![xattr("foo", b'a', 300), xattr("A", b'a', 200)],
            vec![
                xattr("foo", b'a', 400),
                write("A/foo", None, 3000),
                Op::RemoveXattr(s("A"), b'a'),
                xattr("B/baz", b'a', 500),
                Op::Unlink(s("foo")),
            ],
        ),
    ]
}

/// How many workloads there are.
pub fn count() -> u64 {
    scripts().len() as u64 * POSITIONS * SYNCS
}

/// A script with a sync at one position.
pub fn far(number: u64) -> Workload {
    let mut all = scripts();
    let count = all.len() as u64;
    let (before, script) = all.swap_remove((number % count) as usize);
    let position = (number / count % POSITIONS) as usize;
    let mut ops = [base(), before, vec![Op::Syncfs]].concat();
    let setup = ops.len();
    ops.extend(script);
    let at = setup + position;
    ops.insert(at + 1, sync(number / count / POSITIONS, &ops[at]));
    ops.push(Op::Syncfs);
    Workload {
        setup,
        ..Workload::new(format!("far-{number}"), fill_in(ops))
    }
}

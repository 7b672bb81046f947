//! A record of the redo log, and what it stores to used for something else in the next life: killed
//! when the head has passed the record, visibly and not durably. The next life finds what was
//! leaked, frees and uses it, and none of its commits has a reason to flush the head.

use super::{fill_in, s, write};
use crate::engine::Mode;
use crate::op::{Op, search_to_the_end};
use crate::workload::Workload;

/// Files that use all lines that are free in the page of what was removed.
const FILES: usize = 24;

/// How many workloads [`reused`] has: what is removed last, by what follows it.
pub const COUNT: u64 = 5;

/// A workload that is killed before each fence.
pub fn reused(number: u64) -> Workload {
    // In mode `strong` all records of the next life are replayed behind that one, and have all that
    // they lead to but what is too long.
    let (then_strong, old) = (number == 4, "old");
    let more = if then_strong {
        "-with-a-long-name".repeat(11)
    } else {
        String::new()
    };
    let name = |i: usize| format!("new-{i}{more}");
    let mut ops = vec![
        Op::Create(s(old)),
        write(old, None, 9000),
        Op::Mkdir(s("A")),
        Op::Create(s("A/other")),
        Op::Syncfs,
    ];
    let setup = ops.len();
    // The record that removes it stores more of its inode than that it has no names: words that are
    // others' by then.
    let removed = |path: &str| {
        let change = Op::SetXattr {
            path: s(path),
            name: b'a',
            len: 100,
            fill: 0,
        };
        vec![write(path, None, 60_000), change, Op::Unlink(s(path))]
    };
    match number {
        0 | 4 => ops.extend(removed(old)), // unmounting syncs
        1 => ops.extend([removed(old), vec![Op::Syncfs]].concat()),
        2 => ops.extend([
            Op::Open(s(old), 0),
            Op::Unlink(s(old)),
            Op::WriteHeld {
                handle: 0,
                at: 100_000,
                len: 60_000,
                fill: 0,
            },
            Op::Close(0),
            Op::Syncfs,
        ]),
        // Unmounted while it is held: it is lost track of, and the image is not clean.
        _ => ops.extend([Op::Open(s(old), 0), Op::Unlink(s(old)), Op::Syncfs]),
    }
    let mut next: Vec<Op> = search_to_the_end().collect();
    next.extend((0..FILES).map(|i| Op::Create(name(i))));
    next.extend([write(&name(0), None, 9000), Op::Syncfs]);
    Workload {
        mode: Mode::DELAYED,
        setup,
        next: fill_in(next),
        next_mode: then_strong.then_some(Mode::STRONG),
        ..Workload::new(format!("reused-{number}"), fill_in(ops))
    }
}

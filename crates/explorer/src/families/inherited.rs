//! What a killed process left visible and perhaps not durable, and what it lost track of, in a next
//! life that does hardly anything else than to search for it, or to sync it. In a small image all
//! that is put to use shares a line of the maps with what was freed, so a life that uses anything
//! flushes that line, and hides that somebody else did not.

use super::{fill_in, s, write};
use crate::engine::Mode;
use crate::op::{Op, search_to_the_end};
use crate::workload::Workload;

/// How many workloads [`inherited`] has.
pub const COUNT: u64 = 5;

/// A workload that is killed before each fence.
pub fn inherited(number: u64) -> Workload {
    let old = "old";
    let made = |path: &str| [Op::Create(s(path)), write(path, None, 60_000)];
    let mut ops = [made(old), made("other")].concat();
    ops.push(Op::Syncfs);
    let setup = ops.len();
    let searched = || search_to_the_end().collect::<Vec<Op>>();
    // Unmounting frees what was removed: killed before that it is lost track of, killed behind it
    // it is free visibly.
    let removed = vec![Op::Unlink(s(old))];
    let (last, next) = match number {
        0 | 1 => (removed, searched()),
        2 | 4 => (vec![write(old, Some(100), 300)], vec![Op::Syncfs]),
        // What this life removes itself is freed within the search, too.
        _ => {
            let also = vec![Op::Unlink(s("other")), Op::Syncfs];
            (removed, [also, searched()].concat())
        }
    };
    ops.extend(last);
    Workload {
        // Mode `strong` itself leaves no such bytes where anybody reads them.
        next_mode: (number == 4).then_some(Mode::STRONG),
        threads: number % 2 == 1, // another thread than that which marks the image clean
        setup,
        next,
        ..Workload::new(format!("inherited-{number}"), fill_in(ops))
    }
}

//! Changes of bytes in mode `strong`: each is there as a whole or not at all, whatever the file
//! held and wherever in it they are.

use super::{fill, s, write};
use crate::engine::Mode;
use crate::op::Op;
use crate::workload::Workload;
use vfs::Fallocate;

/// Block size.
const BLOCK: u64 = 4096;

/// What the file holds before.
fn states() -> Vec<Vec<Op>> {
    let allocate = Fallocate::Allocate { keep_size: false };
    let behind = Fallocate::Allocate { keep_size: true };
    vec![
        vec![],
        vec![write("foo", None, 10_000)],
        // Holes.
        vec![write("foo", None, 3000), write("foo", Some(20_000), 5000)],
        // Reserved, in part written.
        vec![
            Op::Fallocate(s("foo"), allocate, 0, 20_000),
            write("foo", Some(5000), 100),
        ],
        vec![
            write("foo", None, 5000),
            Op::Fallocate(s("foo"), behind, 0, 30_000),
        ],
        // Bytes of old behind the end.
        vec![write("foo", None, 10_000), Op::Truncate(s("foo"), 6001)],
        // Scattered: each block is a run of its own.
        (0..6)
            .rev()
            .map(|block| write("foo", Some(block * BLOCK), BLOCK as usize))
            .collect(),
    ]
}

/// The change that is cut short.
fn changes() -> Vec<Op> {
    let copy = |from: (&str, u64), to: (&str, u64), len| Op::CopyRange {
        from: (s(from.0), from.1),
        to: (s(to.0), to.1),
        len,
    };
    let zero = Fallocate::Zero { keep_size: false };
    let zero_kept = Fallocate::Zero { keep_size: true };
    let allocate = Fallocate::Allocate { keep_size: false };
    let fallocate = |mode, at, len| Op::Fallocate(s("foo"), mode, at, len);
    let mut changes: Vec<Op> = [
        (0, 1),
        (1, 7),
        (5, 64),
        (4090, 12),
        (4096, 4096),
        (0, 8192),
        (100, 9000),
        (0, 10_000),
        (2999, 18_000),
        (5999, 2),
        (6001, 1),
        (9999, 2),
        (10_000, 1),
        (9000, 5000),
        (12_288, 10),
        (30_000, 100),
        (4000, 40_000),
    ]
    .map(|(at, len)| write("foo", Some(at), len))
    .into();
    changes.extend([1, 64, 4096, 20_000].map(|len| write("foo", None, len)));
    changes.extend([0, 1, 4096, 5000, 6002, 8192, 40_000].map(|n| Op::Truncate(s("foo"), n)));
    changes.extend([
        fallocate(Fallocate::Punch, 100, 50),
        fallocate(Fallocate::Punch, 100, 9000),
        fallocate(Fallocate::Punch, 4096, 4096),
        fallocate(Fallocate::Punch, 1, 40_000),
        fallocate(zero, 100, 50),
        fallocate(zero, 100, 9000),
        fallocate(zero, 5000, 30_000),
        fallocate(zero_kept, 100, 50_000),
        fallocate(allocate, 100, 50_000),
        copy(("bar", 0), ("foo", 0), 9000),
        copy(("bar", 100), ("foo", 5000), 7000),
        copy(("foo", 10), ("foo", 30_000), 9000),
        copy(("foo", 3000), ("foo", 0), 1500),
        copy(("foo", 0), ("bar", 4095), 20_000),
        // From within the last block over the end of the file.
        fallocate(zero, 9000, 20_000),
        fallocate(zero, 5999, 5),
    ]);
    changes
}

/// How many there are.
pub fn count() -> u64 {
    (states().len() * changes().len()) as u64
}

/// A change, and some more: what is overwritten, cut off and removed then was written by it.
pub fn whole(number: u64) -> Workload {
    let (states, changes) = (states(), changes());
    let n = states.len() as u64;
    let mut ops = vec![Op::Create(s("foo")), Op::Create(s("bar"))];
    ops.push(write("bar", None, 9000));
    ops.extend(states[(number % n) as usize].clone());
    let setup = ops.len();
    ops.extend([
        changes[(number / n) as usize].clone(),
        write("foo", Some(4000), 200),
        write("foo", None, 3),
        Op::Truncate(s("foo"), 4001),
        write("foo", Some(9000), 2),
        Op::Unlink(s("foo")),
    ]);
    let mut written = 0;
    for op in &mut ops {
        if let Op::Write { fill: byte, .. } = op {
            *byte = fill(written);
            written += 1;
        }
    }
    Workload {
        mode: Mode::STRONG,
        setup,
        ..Workload::new(format!("whole-{number}"), ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use pmem::Domain;

    #[test]
    fn every_request_is_one_batch() {
        for number in (0..count()).step_by(7) {
            let run = Run::record(whole(number), Domain::Line, false).expect("it runs");
            for step in &run.steps {
                assert!(step.batches <= 1, "whole-{number}, {}", step.what);
            }
        }
    }
}

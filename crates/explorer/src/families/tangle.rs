//! Long random sequences on few names: hard links, exchanges, whiteouts, directories that move,
//! syncs anywhere.

use super::s;
use crate::engine::Mode;
use crate::op::{Op, Side};
use crate::workload::Workload;
use block::Random;
use model::Model;
use std::sync::Arc;
use vfs::{Fsync, RenameMode, SystemClock};

/// A tangle of names.
pub fn tangle(seed: u64) -> Workload {
    let mut random = Random::new(seed ^ 0x7a4617);
    let flavour = random.below(4); // 0: files only; 1: directories mostly; 2, 3: both
    let dirs: &[&str] = match random.below(4) {
        0 => &[""],
        1 => &["A/", "B/"],
        2 => &["", "A/", "A/a/", "b/"],
        _ => &["", "a/", "b/", "a/b/", "b/a/", "c/", "a/c/", "c/a/"],
    };
    let names: &[&str] = match random.below(3) {
        0 => &["a", "b"],
        1 => &["a", "b", "c"],
        _ => &["a", "b", "c", "d", "a-name-of-more-than-thirty-two-bytes"],
    };
    let count = 8 + random.below(40) as usize;
    let sync_every = [3, 5, 8, 100][random.below(4) as usize];
    let mut model = Side::new(Model::on(Arc::new(SystemClock)));
    let mut ops = Vec::new();
    for dir in ["A", "B"] {
        if dirs.contains(&&*format!("{dir}/")) {
            ops.push(Op::Mkdir(s(dir)));
        }
    }
    if random.below(2) == 0 {
        ops.push(Op::Syncfs);
    }
    ops.iter().for_each(|op| drop(model.run(op)));
    let path = |random: &mut Random| format!("{}{}", random.pick(dirs), random.pick(names));
    while ops.len() < count {
        let op = (0..40)
            .map(|_| {
                let (from, to) = (path(&mut random), path(&mut random));
                match random.below(20) {
                    0..3 if flavour != 1 => Op::Create(from),
                    0 => Op::Create(from),
                    1..3 => Op::Mkdir(from),
                    3 if flavour != 0 => Op::Mkdir(from),
                    3..6 => Op::Link(from, to),
                    6..8 => Op::Unlink(from),
                    8 => Op::Rmdir(from),
                    9..14 => Op::Rename(from, to, RenameMode::Replace),
                    14..17 => Op::Rename(from, to, RenameMode::Exchange),
                    17..19 => Op::Rename(from, to, RenameMode::Whiteout),
                    _ => match random.below(3) {
                        0 => Op::Open(from, 0),
                        1 => Op::LinkHeld(0, to),
                        _ => Op::Tmpfile(s(""), 0),
                    },
                }
            })
            .find(|op| model.run(op).is_ok());
        ops.extend(op);
        if random.below(sync_every) == 0 {
            let path = (0..10)
                .map(|_| path(&mut random))
                .find(|path| model.find(path).is_ok())
                .unwrap_or_default();
            ops.push(match random.below(10) {
                0..2 => Op::Syncfs,
                2..7 => Op::Fsync(path, Fsync::All),
                7 => Op::Fsync(
                    random.pick(dirs).trim_end_matches('/').to_owned(),
                    Fsync::All,
                ),
                8 => Op::Fsync(path, Fsync::Data),
                _ => Op::FsyncHeld(0),
            });
            if let Op::Fsync(path, _) = ops.last().unwrap()
                && model.find(path).is_err()
            {
                ops.pop();
            }
            if ops.last() == Some(&Op::FsyncHeld(0)) && model.held[0].is_none() {
                ops.pop();
            }
        }
    }
    Workload {
        mode: if random.below(10) == 0 {
            Mode::SYNC
        } else {
            Mode::DELAYED
        },
        threads: random.below(4) == 0,
        ..Workload::new(format!("tangle-{seed}"), ops)
    }
}

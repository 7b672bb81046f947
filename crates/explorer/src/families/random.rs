//! Random sequences, from a seed; and what follows a crash in the middle of one.

use super::short::base;
use super::{fill, s};
use crate::engine::Mode;
use crate::op::{HANDLES, Op, Side};
use crate::run::Run;
use crate::tree::Flaw;
use crate::workload::Workload;
use block::Random;
use model::Model;
use pmem::Domain;
use std::sync::Arc;
use vfs::{Fallocate, Fsync, RenameMode, SystemClock};

/// A random sequence. Most of its operations succeed: they are tried on a model first.
pub fn random(seed: u64) -> Workload {
    let mut random = Random::new(seed ^ 0xabcd);
    let mode = if random.below(6) == 0 {
        Mode::SYNC
    } else {
        Mode::DELAYED
    };
    let threads = random.below(3) == 0;
    let count = 10 + random.below(50) as usize;
    let sync_every = 2 + random.below(12);
    let mut model = Side::new(Model::on(Arc::new(SystemClock)));
    let mut ops = if random.below(2) == 0 {
        base()
    } else {
        vec![Op::Mkdir(s("A")), Op::Mkdir(s("B"))]
    };
    ops.iter().for_each(|op| drop(model.run(op)));
    while ops.len() < count {
        let op = (0..20)
            .map(|_| random_op(&mut random, ops.len()))
            .find(|op| model.run(op).is_ok());
        ops.extend(op);
        if random.below(sync_every) == 0 {
            let path = (0..10)
                .map(|_| random_path(&mut random))
                .find(|path| model.find(path).is_ok())
                .unwrap_or_default();
            ops.push(match random.below(8) {
                0..3 => Op::Syncfs,
                3..6 => Op::Fsync(path, Fsync::All),
                6 => Op::Fsync(path, Fsync::Data),
                _ if random.below(3) == 0 => Op::Remount,
                _ => Op::FsyncHeld(random.below(HANDLES as u64) as usize),
            });
            if ops.last() == Some(&Op::Remount) {
                model.held = Default::default();
            }
        }
    }
    Workload {
        mode,
        threads,
        len: 2 << 20,
        ..Workload::new(format!("random-{seed}"), ops)
    }
}

/// What follows a crash in the middle of a random sequence.
pub fn second_life(seed: u64) -> Result<Workload, Flaw> {
    life_after(random(seed ^ 0x5eed), seed)
}

/// What follows a crash in the middle of a workload. Its operations are random; most fail, and
/// those are no steps of the run.
pub fn life_after(first: Workload, seed: u64) -> Result<Workload, Flaw> {
    let run = Run::record(first, Domain::Line, false)?;
    let mut random = Random::new(seed);
    let mut ops = Vec::new();
    for number in 0..150 {
        ops.push(random_op(&mut random, 60 + number));
        if random.below(15) == 0 {
            let path = random_path(&mut random);
            ops.push(match random.below(3) {
                0 => Op::Syncfs,
                1 => Op::Fsync(path, Fsync::All),
                _ => Op::Fsync(String::new(), Fsync::All),
            });
        }
    }
    let start = Some(run.some_image(seed));
    Ok(Workload {
        start,
        ..Workload::new(format!("life-{seed}"), ops)
    })
}

fn random_path(random: &mut Random) -> String {
    let dirs = ["", "", "A/", "B/", "A/C/", "A/B/", "B/A/", "A/C/A/"];
    let names = [
        "foo",
        "bar",
        "A",
        "B",
        "C",
        "a-name-of-more-than-thirty-two-bytes",
        "x",
    ];
    format!("{}{}", random.pick(&dirs), random.pick(&names))
}

/// An operation, whose contents come from `number`.
pub fn random_op(random: &mut Random, number: usize) -> Op {
    let path = random_path(random);
    let fill = fill(number);
    let size = |random: &mut Random| match random.below(6) {
        0 => random.below(100),
        1 => 4096 * random.below(5),
        2 => 4096 * 512 * random.below(3) + random.below(9000),
        _ => random.below(20_000),
    };
    let len = |random: &mut Random| {
        1 + if random.below(2) == 0 {
            random.below(300)
        } else {
            random.below(12_000)
        }
    };
    match random.below(43) {
        0..5 => Op::Create(path),
        5..9 => Op::Mkdir(path),
        9 => Op::Symlink(path, 1 + random.below(4000) as usize),
        10..14 => Op::Write {
            path,
            at: None,
            len: len(random) as usize,
            fill,
        },
        14..19 => Op::Write {
            path,
            at: Some(size(random)),
            len: len(random) as usize,
            fill,
        },
        19..21 => Op::Truncate(path, size(random)),
        21..24 => {
            let keep_size = random.below(2) == 0;
            let mode = *random.pick(&[
                Fallocate::Punch,
                Fallocate::Allocate { keep_size },
                Fallocate::Zero { keep_size },
            ]);
            Op::Fallocate(path, mode, size(random), len(random))
        }
        24..26 => Op::Link(path, random_path(random)),
        26..28 => Op::Unlink(path),
        28 => Op::Rmdir(path),
        29..33 => {
            let mode = *random.pick(&[
                RenameMode::Replace,
                RenameMode::Replace,
                RenameMode::Exchange,
                RenameMode::NoReplace,
                RenameMode::Whiteout,
            ]);
            Op::Rename(path, random_path(random), mode)
        }
        33 => Op::Chmod(path, 0o400 + random.below(256) as u16),
        34 => Op::SetXattr {
            path,
            name: b'a' + random.below(3) as u8,
            len: random.below(9000) as usize,
            fill,
        },
        35 => Op::RemoveXattr(path, b'a' + random.below(3) as u8),
        36 => Op::Open(path, random.below(HANDLES as u64) as usize),
        37 => Op::Tmpfile(s("A"), random.below(HANDLES as u64) as usize),
        38 => Op::SetAcl {
            path,
            perm: 0o400 + random.below(256) as u16,
            len: random.below(5000) as usize,
            fill,
        },
        39 => Op::Inherit {
            path,
            dir: random.below(2) == 0,
            len: random.below(9000) as usize,
            fill,
        },
        40 => Op::Mknod(path, random.below(1 << 20) as u32),
        41 => Op::WriteHeld {
            handle: random.below(HANDLES as u64) as usize,
            at: size(random),
            len: len(random) as usize,
            fill,
        },
        _ => match random.below(3) {
            0 => Op::LinkHeld(random.below(HANDLES as u64) as usize, path),
            1 => Op::Close(random.below(HANDLES as u64) as usize),
            _ => Op::Touch(path),
        },
    }
}

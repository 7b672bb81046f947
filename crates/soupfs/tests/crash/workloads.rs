//! What is run: every operation, every pair of operations (as ACE has them), and long random sequences.

use crate::explore::some_image;
use crate::op::{HANDLES, Op, Side};
use crate::random::Random;
use crate::run::{Run, Workload};
use model::Model;
use pmem::Domain;
use soupfs::Mode;
use std::sync::Arc;
use vfs::{Fallocate, Fsync, RenameMode, SystemClock};

/// Every byte value that is used for contents once; never zero, nor the poison.
fn fill(number: usize) -> u8 {
    1 + (number % 200) as u8
}

fn s(path: &str) -> String {
    path.to_owned()
}

/// What the short workloads start from, durable: some files and directories.
fn base() -> Vec<Op> {
    vec![
        Op::Mkdir(s("A")),
        Op::Mkdir(s("B")),
        Op::Mkdir(s("A/C")),
        Op::Create(s("foo")),
        Op::Write {
            path: s("foo"),
            at: None,
            len: 6000,
            fill: fill(190),
        },
        Op::Create(s("A/foo")),
        Op::Write {
            path: s("A/foo"),
            at: None,
            len: 100,
            fill: fill(191),
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
    ops
}

/// Ways to make something durable, between and after operations.
pub fn syncs() -> Vec<Vec<Op>> {
    let fsync = |path: &str| Op::Fsync(s(path), Fsync::All);
    vec![
        vec![],
        vec![Op::Syncfs],
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

/// Give every write of a sequence bytes of its own.
fn numbered(mut ops: Vec<Op>) -> Vec<Op> {
    for (i, op) in ops.iter_mut().enumerate() {
        match op {
            Op::Write { fill: f, .. }
            | Op::WriteHeld { fill: f, .. }
            | Op::SetXattr { fill: f, .. }
                if *f == 0 =>
            {
                *f = fill(i)
            }
            _ => {}
        }
    }
    ops
}

/// One operation on the base, then a sync.
pub fn single(op: usize, sync: usize) -> Workload {
    let mut ops = base();
    ops.push(operations()[op].clone());
    ops.extend(syncs()[sync].clone());
    ops.push(Op::Syncfs);
    Workload::new(format!("single-{op}-{sync}"), numbered(ops))
}

/// Two operations on the base, each with a sync of its own.
pub fn pair(a: usize, sync_a: usize, b: usize, sync_b: usize) -> Workload {
    let all = operations();
    let mut ops = base();
    ops.push(all[a].clone());
    ops.extend(syncs()[sync_a].clone());
    ops.push(all[b].clone());
    ops.extend(syncs()[sync_b].clone());
    ops.push(Op::Syncfs);
    Workload::new(format!("pair-{a}-{sync_a}-{b}-{sync_b}"), numbered(ops))
}

/// As `single`, with each sync on a thread of its own.
pub fn threaded(op: usize, sync: usize) -> Workload {
    Workload {
        threads: true,
        name: format!("threaded-{op}-{sync}"),
        ..single(op, sync)
    }
}

/// The pair of this number, with syncs that follow from it.
pub fn some_pair(number: u64) -> Workload {
    let mut random = Random::new(number);
    let (ops, syncs) = (operations().len() as u64, syncs().len() as u64);
    let mut below = |n| random.below(n) as usize;
    pair(below(ops), below(syncs), below(ops), below(syncs))
}

/// A directory that grows until its buckets split and its table is enlarged, then shrinks.
pub fn growth(names: usize, syncs: usize) -> Workload {
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
        ..Workload::new(format!("growth-{names}-{syncs}"), ops)
    }
}

/// A directory whose names all change in each round: space is used again, and the journal wraps.
pub fn churn(names: usize, rounds: usize) -> Workload {
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
    Workload::new(format!("churn-{names}-{rounds}"), ops)
}

/// So many commits, none of which removes anything, that the journal wraps.
pub fn wrap(links: usize) -> Workload {
    let mut ops = vec![Op::Create(s("foo"))];
    ops.extend((0..links).map(|i| Op::Link(s("foo"), format!("link{i}"))));
    Workload {
        mode: Mode::Sync,
        ..Workload::new(format!("wrap-{links}"), ops)
    }
}

/// A chain of fresh directories; only its leaf is synced.
pub fn chain(depth: usize) -> Workload {
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
    Workload::new(format!("chain-{depth}"), ops)
}

/// A random sequence. Most of its operations succeed: they are tried on a model first.
pub fn random(seed: u64) -> Workload {
    let mut random = Random::new(seed ^ 0xabcd);
    let mode = if random.below(6) == 0 {
        Mode::Sync
    } else {
        Mode::Delayed
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

/// What follows a crash in the middle of a random sequence. Its operations are random as well;
/// most fail, and those are no steps of the run.
pub fn second_life(seed: u64) -> Result<Workload, String> {
    let first = random(seed ^ 0x5eed);
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
    let start = Some(some_image(&run, seed));
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

fn random_op(random: &mut Random, number: usize) -> Op {
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
    match random.below(40) {
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
        38 => Op::WriteHeld {
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

/// The workload that a token names.
pub fn by_name(name: &str) -> Option<Workload> {
    let (family, rest) = name.split_once('-')?;
    let rest = rest.split('-').map(str::parse);
    let n: Vec<usize> = rest.collect::<Result<_, _>>().ok()?;
    Some(match (family, &n[..]) {
        ("single", &[op, sync]) => single(op, sync),
        ("threaded", &[op, sync]) => threaded(op, sync),
        ("pair", &[a, sync_a, b, sync_b]) => pair(a, sync_a, b, sync_b),
        ("growth", &[names, syncs]) => growth(names, syncs),
        ("wrap", &[links]) => wrap(links),
        ("churn", &[names, rounds]) => churn(names, rounds),
        ("life", &[seed]) => second_life(seed as u64).ok()?,
        ("chain", &[depth]) => chain(depth),
        ("random", &[seed]) => random(seed as u64),
        _ => return None,
    })
}

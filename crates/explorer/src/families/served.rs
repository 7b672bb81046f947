//! What a kill has left is served at once, and what was lost is found meanwhile: steps of the
//! reclaim come between the operations of the next life, which are on the names of the life before.

use super::{edges, fill_in, s, situations, tangle, write};
use crate::op::{HANDLES, Op, TO_THE_END};
use crate::workload::Workload;
use block::Random;
use std::collections::BTreeSet;
use vfs::{Fallocate, Fsync, RenameMode};

/// Things that the next life does.
const THINGS: u64 = 8;
/// Tangles among which one is chosen.
const TANGLES: u64 = 1_000;

/// A workload that is killed before each flush, and what is done then.
pub fn served(number: u64) -> Workload {
    let mut random = Random::new(number ^ 0x0005_e7ed);
    let first = match number % 4 {
        0 => edges::edges(random.below(edges::count())),
        1 => situations::script(random.below(situations::script_count())),
        2 => grown(&mut random),
        _ => tangle::tangle(random.below(TANGLES)),
    };
    let next = next(&first.ops, &mut random);
    Workload {
        name: format!("served-{number}"),
        threads: false,
        next,
        ..first
    }
}

/// Files that grow, by appends and behind holes, shrink, and have more names than one.
fn grown(random: &mut Random) -> Workload {
    let names = ["a", "b", "D/a", "D/b"];
    let mut ops = vec![Op::Mkdir(s("D")), Op::Mkdir(s("E"))];
    ops.extend(names.map(|name| Op::Create(s(name))));
    // Two of them have indirect blocks.
    let sizes = [3000, 20_000, 3000, 40_000];
    let contents = names.into_iter().zip(sizes);
    ops.extend(contents.map(|(name, len)| write(name, None, len)));
    ops.push(Op::Syncfs);
    let setup = ops.len();
    for number in 0..4 + random.below(6) {
        let name = *random.pick(&names);
        ops.push(match random.below(8) {
            0 | 1 => write(name, None, 1 + random.below(20_000) as usize),
            2 => write(name, Some(random.below(300_000)), 2000),
            3 => Op::Truncate(s(name), random.below(30_000)),
            4 => Op::Link(s(name), format!("E/{number}")),
            5 => Op::Mkdir(format!("E/d{number}")),
            6 => Op::Fsync(s(name), Fsync::All),
            _ => Op::Unlink(s(name)),
        });
    }
    Workload {
        setup,
        len: 2 << 20,
        ..Workload::new("grown", fill_in(ops))
    }
}

/// What the next life does, with steps of the reclaim between: none, some, or many. At the end it
/// lets go of all, and unmounts behind the reclaim's end, in the middle of it, or before its
/// first step.
fn next(before: &[Op], random: &mut Random) -> Vec<Op> {
    let paths: BTreeSet<String> = before
        .iter()
        .flat_map(|op| {
            let mut op = op.clone();
            let paths = op.paths_mut();
            paths.into_iter().map(std::mem::take).collect::<Vec<_>>()
        })
        .filter(|path| !path.is_empty())
        .collect();
    let paths: Vec<String> = paths.into_iter().collect();
    let eager = random.below(4);
    let mut ops = Vec::new();
    for number in 0..THINGS {
        for op in thing(&paths, number, random) {
            ops.extend((0..random.below(1 + eager)).map(|_| Op::Search(1)));
            ops.push(op);
        }
    }
    ops.extend((0..HANDLES).map(Op::Close));
    match random.below(4) {
        0 if eager == 0 => {}
        0 => ops.push(Op::Search(1)),
        _ => ops.push(TO_THE_END),
    }
    fill_in(ops)
}

/// One thing that is done.
fn thing(paths: &[String], number: u64, random: &mut Random) -> Vec<Op> {
    let any = |random: &mut Random| random.pick(paths).clone();
    let (path, other) = (any(random), any(random));
    let fresh = match random.below(2) {
        0 => format!("next-{number}"),
        _ => format!("{}/next-{number}", any(random)),
    };
    let to = match random.below(2) {
        0 => fresh.clone(),
        _ => other,
    };
    match random.below(19) {
        // What is free is used.
        0 | 1 => {
            let len = 1 + random.below(30_000) as usize;
            vec![Op::Create(fresh.clone()), write(&fresh, None, len)]
        }
        2 => vec![Op::Mkdir(fresh)],
        3 => vec![Op::Link(path, to)],
        4 | 5 => vec![Op::Unlink(path)],
        6 => vec![Op::Rmdir(path)],
        7 | 8 => vec![Op::Rename(path, to, RenameMode::Replace)],
        9 => {
            let mode = *random.pick(&[RenameMode::Exchange, RenameMode::Whiteout]);
            vec![Op::Rename(path, to, mode)]
        }
        // It grows over what may be behind its end.
        10 => vec![write(&path, Some(random.below(300_000)), 300)],
        11 => vec![Op::Truncate(path, random.below(300_000))],
        12 => vec![Op::Fallocate(
            path,
            Fallocate::Punch,
            random.below(9000),
            5000,
        )],
        // A handle keeps what has no name.
        13 => {
            let handle = random.below(HANDLES as u64) as usize;
            let held = |at| Op::WriteHeld {
                handle,
                at,
                len: 3000,
                fill: 0,
            };
            vec![
                Op::Open(path.clone(), handle),
                Op::Unlink(path),
                held(random.below(20_000)),
                Op::Create(fresh.clone()),
                write(&fresh, None, 5000),
                held(500),
            ]
        }
        // What led to something, and is to be looked at yet, is contents.
        14 | 15 => vec![
            Op::Unlink(path),
            Op::Syncfs,
            Op::Create(fresh.clone()),
            write(&fresh, None, 90_000),
            Op::Syncfs,
        ],
        // A directory would go into one that was moved into it.
        16 => {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            vec![Op::Rename(
                s(above),
                format!("{path}/next-{number}"),
                RenameMode::Replace,
            )]
        }
        17 => vec![Op::Fsync(path, Fsync::All)],
        _ => vec![Op::Syncfs],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines;
    use crate::engines::ffs::SOFT;
    use crate::rules::Rules;
    use crate::run::Run;

    /// Lives behind power cuts have something to reclaim, at the beginning and in their middle.
    #[test]
    fn steps_of_the_reclaim_come_between_operations() {
        let (mut gained, mut steps) = (0, 0);
        for number in 0..24 {
            let first = Workload {
                engine: engines::on(Rules::Sectors),
                mode: SOFT,
                ..served(number)
            };
            let next = first.next.clone();
            let run = Run::record(first.clone(), Rules::Sectors, false).expect("it runs");
            let life = Workload {
                start: Some(run.some_image(number)),
                ops: next,
                setup: 0,
                ..first
            };
            let run = Run::record(life, Rules::Sectors, false).expect("it runs");
            let free = |what: &str| -> u64 {
                let (_, free) = what.rsplit_once('[').expect("free blocks");
                free.trim_end_matches(" free]").parse().expect("a number")
            };
            let within = run.steps[1..run.steps.len() - 1].windows(2);
            let searches = within.filter(|two| two[1].what.starts_with("Search"));
            for two in searches {
                steps += 1;
                gained += usize::from(free(&two[1].what) > free(&two[0].what));
            }
        }
        println!("{steps} steps, {gained} of them gave blocks back");
        assert!(steps > 100 && gained > 4);
    }
}

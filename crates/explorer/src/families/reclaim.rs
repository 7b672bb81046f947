//! The search for leaks beside callers and open handles, after a crash: its steps come between
//! random operations, and between those of a file that is held, loses its name and is let go; or
//! files of before the crash move, and lose their names, half-way through it. Then what was leaked
//! is used again.

use super::random::{life_after, random};
use super::{fill_in, s, write};
use crate::op::{Op, search_to_the_end, searched, with_search};
use crate::tree::Flaw;
use crate::workload::Workload;
use block::Random;
use vfs::{Fsync, RenameMode};

/// A small step: an inode, and a block of it.
const A_STEP: Op = Op::Search(2);
/// So many of these the search has made first, at most.
const STEPS: u64 = 6;
/// Files that move to and fro then, two at a time.
const MOVES: usize = 8;
/// Files that take more lines than a page has.
const BRIEF: usize = 44;

/// A file that is held while its names change and go, and space that is used behind that.
fn held() -> Vec<Op> {
    let fsync = |path: &str| Op::Fsync(s(path), Fsync::All);
    fill_in(vec![
        Op::Create(s("held")),
        write("held", None, 9000),
        Op::Create(s("kept")),
        write("kept", None, 20_000),
        Op::Syncfs,
        Op::Open(s("held"), 0),
        Op::Rename(s("held"), s("moved"), RenameMode::Replace),
        Op::Unlink(s("moved")),
        fsync(""),
        Op::WriteHeld {
            handle: 0,
            at: 30_000,
            len: 5000,
            fill: 0,
        },
        Op::Truncate(s("kept"), 3000),
        Op::FsyncHeld(0),
        Op::Close(0),
        Op::Create(s("again")),
        write("again", None, 40_000),
        fsync("again"),
        Op::Rename(s("again"), s("kept"), RenameMode::Replace),
    ])
}

/// Files that the next life moves and holds, and one that is held and has lost its name: a crash
/// leaks it.
fn before() -> Vec<Op> {
    let mut ops = vec![Op::Mkdir(s("P")), Op::Mkdir(s("Q"))];
    for i in 0..MOVES {
        let make = |path: String| [Op::Create(path.clone()), write(&path, None, 5000)];
        ops.extend(make(format!("P/x{i}")));
        ops.extend(make(format!("Q/y{i}")));
    }
    ops.extend([
        Op::Create(s("old")),
        write("old", None, 30_000),
        Op::Create(s("lost")),
        write("lost", None, 60_000),
        Op::Syncfs,
        Op::Open(s("lost"), 0),
        Op::Unlink(s("lost")),
        Op::Syncfs,
    ]);
    fill_in(ops)
}

/// Between steps of the search files change places that the crash has left, before or behind them
/// one loses its name, files are made where the search has been, and so many others come and go
/// that all lines of a page do; then what is free is used.
fn half_way(random: &mut Random) -> Vec<Op> {
    let mut ops = vec![Op::Open(s("old"), 1)];
    // The walk never finds it if it loses its name first, and else does, as it has come by the
    // name.
    let lost_first = random.below(2) == 0;
    let lost = [Op::Unlink(s("old")), Op::Syncfs];
    if lost_first {
        ops.extend(lost.clone());
    }
    ops.extend((0..random.below(STEPS)).map(|_| A_STEP));
    let moves = |from: String, to: String| Op::Rename(from, to, RenameMode::Replace);
    for i in 0..MOVES {
        ops.extend([
            A_STEP,
            A_STEP,
            moves(format!("P/x{i}"), format!("Q/x{i}")),
            moves(format!("Q/y{i}"), format!("P/y{i}")),
            Op::Syncfs,
        ]);
    }
    let brief = || (0..BRIEF).map(|i| format!("brief-{i}"));
    ops.extend([Op::Create(s("young")), write("young", None, 9000)]);
    ops.extend(brief().map(Op::Create));
    ops.push(Op::Syncfs);
    ops.extend(brief().map(Op::Unlink));
    ops.push(Op::Syncfs);
    if !lost_first {
        ops.extend(lost);
    }
    ops.extend(search_to_the_end());
    ops.extend(brief().map(Op::Create));
    ops.extend([
        Op::Create(s("taker")),
        write("taker", None, 60_000),
        Op::Syncfs,
        Op::WriteHeld {
            handle: 1,
            at: 100,
            len: 5000,
            fill: 0,
        },
        Op::FsyncHeld(1),
    ]);
    fill_in(ops)
}

/// A workload on what a crash has left, most often with leaks.
pub fn reclaim(seed: u64) -> Result<Workload, Flaw> {
    let mut first = random(!seed);
    first.ops.splice(0..0, before());
    let life = life_after(first, seed)?;
    let mut random = Random::new(seed);
    let mut ops = life.ops;
    let at = random.below(ops.len() as u64) as usize;
    ops.splice(at..at, held());
    Ok(Workload {
        name: format!("reclaim-{seed}"),
        ops: searched(match random.below(3) {
            0 => [half_way(&mut random), ops].concat(),
            _ => with_search(ops, &mut random),
        }),
        ..life
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use pmem::Domain;

    #[test]
    fn the_search_ends_and_frees_blocks_beside_callers() {
        let mut freed = 0;
        for seed in 0..16 {
            let workload = reclaim(seed).expect("a workload");
            let run = Run::record(workload, Domain::Line, false).expect("it runs");
            assert!(run.clean, "reclaim-{seed}");
            let free = |what: &str| -> u64 {
                let (_, free) = what.rsplit_once('[').expect("free blocks");
                free.trim_end_matches(" free]").parse().expect("a number")
            };
            let steps = run.steps[1..run.steps.len() - 1].windows(2);
            freed += steps
                .filter(|two| two[1].what.starts_with("Search"))
                .filter(|two| free(&two[1].what) > free(&two[0].what))
                .count();
        }
        println!("{freed} steps freed blocks");
        assert!(freed >= 4);
    }
}

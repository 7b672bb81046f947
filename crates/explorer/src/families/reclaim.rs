//! The search for leaks beside callers and open handles, after a crash: its steps come between
//! random operations, and between those of a file that is held, loses its name and is let go. Then
//! what was leaked is used again.

use super::random::{life_after, random};
use super::{fill_in, s, write};
use crate::op::{Op, with_search};
use crate::random::Random;
use crate::tree::Flaw;
use crate::workload::Workload;
use vfs::{Fsync, RenameMode};

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

/// A file that is held and has lost its name: a crash leaks it.
fn lost() -> Vec<Op> {
    fill_in(vec![
        Op::Create(s("lost")),
        write("lost", None, 60_000),
        Op::Syncfs,
        Op::Open(s("lost"), 0),
        Op::Unlink(s("lost")),
        Op::Syncfs,
    ])
}

/// A workload on what a crash has left, most often with leaks.
pub fn reclaim(seed: u64) -> Result<Workload, Flaw> {
    let mut first = random(!seed);
    first.ops.splice(0..0, lost());
    let life = life_after(first, seed)?;
    let mut random = Random::new(seed);
    let mut ops = life.ops;
    let at = random.below(ops.len() as u64) as usize;
    ops.splice(at..at, held());
    Ok(Workload {
        name: format!("reclaim-{seed}"),
        ops: with_search(ops, &mut random),
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

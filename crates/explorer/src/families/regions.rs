//! Images of several regions. All but the last are full, but for some pages in each; so what is
//! made takes space of all of them, and so does what is removed.

use super::random::life_after;
use super::short::base;
use super::situations::{SYNCS, sync};
use super::{fill_in, s, write, xattr};
use crate::engines;
use crate::op::{Op, searched, with_search};
use crate::tree::Flaw;
use crate::workload::Workload;
use block::Random;
use vfs::{Fallocate, Fsync, RenameMode};

/// Regions of the images.
const REGIONS: [u64; 2] = [2, 3];
/// Bytes of the last one.
const LAST: u64 = 4 << 20;
/// Bytes that are free in each of the others.
const FREE: u64 = 16 * 4096;
/// Operations of a random sequence beside the search for leaks.
const RANDOM: usize = 40;

/// Bytes of a region.
fn region() -> u64 {
    let region = engines::usual().region();
    region.expect("the usual engine has regions")
}

/// The file that fills a region. Its first bytes are in that one, its last in the next.
fn filler(region: u64) -> String {
    format!("filler-{region}")
}

/// A piece of a filler becomes free.
fn punch(region: u64, at: u64) -> Op {
    Op::Fallocate(filler(region), Fallocate::Punch, at, FREE)
}

/// The small tree of the short workloads, and all regions but the last filled.
fn filled(regions: u64) -> Vec<Op> {
    let keep = Fallocate::Allocate { keep_size: true };
    let mut ops = base();
    for full in 0..regions - 1 {
        ops.push(Op::Create(filler(full)));
        ops.push(Op::Fallocate(filler(full), keep, 0, region()));
    }
    ops.push(Op::Syncfs);
    ops.extend((0..regions - 1).map(|full| punch(full, 1 << 20)));
    ops.push(Op::Syncfs);
    ops
}

/// What is done on such an image.
fn scripts(regions: u64) -> Vec<Vec<Op>> {
    let create = |path: &str| Op::Create(s(path));
    let unlink = |path: &str| Op::Unlink(s(path));
    let replace = |from: &str, to: &str| Op::Rename(s(from), s(to), RenameMode::Replace);
    let punch_all = |at| (0..regions - 1).map(move |full| punch(full, at));
    vec![
        // Made, removed, and made again.
        vec![
            create("one"),
            write("one", None, 150_000),
            create("two"),
            write("two", None, 5000),
            unlink("one"),
            Op::Truncate(s("foo"), 0),
            create("three"),
            write("three", None, 200_000),
        ],
        // Regions are read anew.
        vec![
            write("foo", None, 200_000),
            Op::Remount,
            Op::Mkdir(s("D")),
            create("D/x"),
            write("D/x", None, 100_000),
            unlink("foo"),
            Op::Remount,
            write("D/x", None, 100_000),
        ],
        // Free in all of them at once, then used.
        [
            vec![write("foo", None, 30_000)],
            punch_all(2 << 20).collect(),
            vec![create("one"), write("one", None, 120_000)],
            punch_all(3 << 20).collect(),
            vec![Op::Fallocate(
                filler(0),
                Fallocate::Punch,
                region() - FREE,
                FREE,
            )],
            vec![unlink("one"), write("A/foo", None, 90_000)],
        ]
        .concat(),
        // Replaced.
        vec![
            create("t"),
            write("t", None, 100_000),
            replace("t", "foo"),
            create("t"),
            write("t", None, 60_000),
            replace("t", "A/foo"),
            xattr("foo", b'a', 30_000),
        ],
        // Held without a name: a crash leaks it.
        vec![
            create("lost"),
            write("lost", None, 150_000),
            Op::Open(s("lost"), 0),
            Op::Fsync(s("lost"), Fsync::All),
            unlink("lost"),
            Op::WriteHeld {
                handle: 0,
                at: 200_000,
                len: 9000,
                fill: 0,
            },
            Op::Close(0),
            create("again"),
            write("again", None, 150_000),
        ],
        // Inodes and entries, when no page of the first region is free.
        vec![
            write("A/foo", None, 100_000),
            Op::Mkdir(s("D")),
            create("D/1"),
            Op::Remount,
            create("D/2"),
            Op::Mkdir(s("D/E")),
            unlink("D/1"),
            create("D/E/3"),
            replace("D/2", "D/E/3"),
        ],
    ]
}

const SCRIPTS: u64 = 6;
/// Positions in a script; a script that is shorter has some twice.
const POSITIONS: u64 = 9;

/// How many workloads [`script`] has.
pub fn count() -> u64 {
    SCRIPTS * REGIONS.len() as u64 * POSITIONS * SYNCS
}

/// A script with a sync at one position.
pub fn script(number: u64) -> Workload {
    let (script, rest) = (number % SCRIPTS, number / SCRIPTS);
    let (regions, rest) = (rest % REGIONS.len() as u64, rest / REGIONS.len() as u64);
    let regions = REGIONS[regions as usize];
    let mut script = scripts(regions).swap_remove(script as usize);
    let position = (rest % POSITIONS) as usize % script.len();
    script.insert(position + 1, sync(rest / POSITIONS, &script[position]));
    script.push(Op::Syncfs);
    let setup = filled(regions);
    Workload {
        len: (regions - 1) * region() + LAST,
        setup: setup.len(),
        ..Workload::new(
            format!("regions-{number}"),
            fill_in([setup, script].concat()),
        )
    }
}

/// The search for leaks on what a crash in one of these leaves, with random operations beside it.
///
/// # Errors
/// The workload before it does not run.
pub fn reclaim(seed: u64) -> Result<Workload, Flaw> {
    let mut random = Random::new(seed ^ 0x4e9);
    let life = life_after(script(random.below(count())), seed)?;
    let mut ops = life.ops;
    ops.truncate(RANDOM);
    ops.extend(fill_in(vec![
        Op::Create(s("used")),
        write("used", None, 200_000),
        Op::Syncfs,
    ]));
    Ok(Workload {
        name: format!("regions-reclaim-{seed}"),
        ops: searched(with_search(ops, &mut random)),
        ..life
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use crate::trace::Event;
    use pmem::Domain;
    use std::collections::BTreeSet;

    /// The regions that a run stores to after its preparation.
    fn used(run: &Run) -> BTreeSet<u64> {
        let begun = |event: &Event| *event == Event::Begin(1);
        let from = run.events.iter().position(begun).expect("a first step");
        let at = run.events[from..].iter().filter_map(|event| match event {
            Event::Store { at, .. } => Some(at / region()),
            _ => None,
        });
        at.collect()
    }

    #[test]
    fn all_regions_are_used_and_few_of_their_pages_take_memory() {
        assert_eq!(scripts(2).len() as u64, SCRIPTS);
        for number in 0..SCRIPTS * REGIONS.len() as u64 {
            let workload = script(number);
            let regions = workload.len.div_ceil(region());
            let run = Run::record(workload, Domain::Line, false).expect("it runs");
            assert!(run.start.pages().count() < 4000);
            assert_eq!(used(&run), (0..regions).collect(), "regions-{number}");
        }
    }
}

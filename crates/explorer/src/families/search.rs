//! The search for leaks on what a crash has left, with one thing done between two of its smallest
//! steps, at each of them; then its rest, and what is free is used. What the search must be told of
//! by a batch shows if the batch comes at one certain step: here it comes at each.

use super::{fill_in, s, write, xattr};
use crate::op::{Op, search_to_the_end, searched};
use crate::run::Run;
use crate::tree::Flaw;
use crate::workload::Workload;
use pmem::Domain;
use vfs::{Fsync, RenameMode};

/// The smallest step: an inode and a block of it, or another block.
const A_STEP: Op = Op::Search(1);
/// So many of these come before what is done, at most: more than the walk has.
const STEPS: u64 = 32;
/// What is done, see [`done`].
const THINGS: u64 = 5;
/// Files that take all lines of a page, and more.
const BRIEF: usize = 44;
/// Files of a page each.
const SMALL: usize = 12;
/// A directory that the walk comes to late: it goes from level to level.
const DEEP: &str = "D/E/F";

/// How many workloads [`search`] has.
pub const COUNT: u64 = STEPS * THINGS;

fn moves(from: String, to: String) -> Op {
    Op::Rename(from, to, RenameMode::Replace)
}

/// A file with contents, a long name, attributes and an index.
fn made(path: &str) -> Vec<Op> {
    let long = format!("{path}-{}", "n".repeat(100));
    vec![
        Op::Create(s(path)),
        write(path, None, 5000),
        xattr(path, b'a', 5000),
        Op::Create(long.clone()),
        write(&long, None, 3000),
    ]
}

/// What the crash leaves: a tree, a file that the next life holds, and one that this one held and
/// that had lost its name. It is leaked.
fn before() -> Vec<Op> {
    let mut ops = vec![Op::Mkdir(s("P"))];
    let parents = DEEP.match_indices('/').map(|(end, _)| &DEEP[..end]);
    ops.extend(parents.chain([DEEP]).map(|path| Op::Mkdir(s(path))));
    ops.extend(made("P/x"));
    ops.extend(made(&deep("y")));
    ops.extend(brief().map(Op::Create));
    ops.extend([
        Op::Create(deep("old")),
        write(&deep("old"), None, 30_000),
        Op::Create(s("lost")),
        write("lost", None, 9000),
        Op::Open(s("lost"), 0),
        Op::Syncfs,
        Op::Unlink(s("lost")),
        Op::Syncfs,
    ]);
    fill_in(ops)
}

fn deep(name: &str) -> String {
    format!("{DEEP}/{name}")
}

fn brief() -> impl Iterator<Item = String> {
    (0..BRIEF).map(|i| deep(&format!("brief-{i}")))
}

/// What is done between two steps.
fn done(thing: u64) -> Vec<Op> {
    let mut ops: Vec<Op> = match thing {
        // To where the walk has been soon, and to where it comes late.
        0 => vec![moves(deep("y"), s("P/y")), moves(s("P/x"), deep("x"))],
        // So does a directory with all that is in it.
        1 => vec![moves(s(DEEP), s("P/F"))],
        // A handle keeps a file without a name.
        2 => vec![Op::Unlink(deep("old"))],
        // All lines of a page become free.
        3 => brief().map(Op::Unlink).collect(),
        // What is new is claimed.
        _ => [
            made("P/young"),
            vec![Op::Mkdir(s("P/D"))],
            made("P/D/young"),
        ]
        .concat(),
    };
    ops.push(Op::Syncfs);
    ops
}

/// All that is free may be used: lines, single pages, and many at once.
fn used() -> Vec<Op> {
    let small = |i| {
        let path = format!("small-{i}");
        [Op::Create(path.clone()), write(&path, None, 3000)]
    };
    let mut ops: Vec<Op> = (0..SMALL).flat_map(small).collect();
    ops.extend((0..BRIEF).map(|i| Op::Create(format!("again-{i}"))));
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
        Op::Fsync(s("taker"), Fsync::All),
    ]);
    ops
}

/// A thing that is done behind so many steps.
///
/// # Errors
/// What comes before the crash does not run.
pub fn search(number: u64) -> Result<Workload, Flaw> {
    let (thing, steps) = (number % THINGS, number / THINGS);
    let mut ops = vec![Op::Open(deep("old"), 1)];
    ops.extend((0..steps).map(|_| A_STEP));
    ops.extend(done(thing));
    ops.extend(search_to_the_end());
    ops.extend(used());
    let before = before();
    let before = Workload {
        setup: before.len(),
        ..Workload::new("before", before)
    };
    let run = Run::record(before, Domain::Line, false)?;
    Ok(Workload {
        start: Some(run.prepared()),
        ..Workload::new(format!("search-{number}"), searched(fill_in(ops)))
    })
}

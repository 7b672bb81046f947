//! Sequences that need one edge each of the graph of dependencies of soft updates: what waits for
//! what is said at each. With no sync between the operations, and with each at each position.

use super::short::base;
use super::situations::{SYNCS, sync};
use super::{fill_in, s, write};
use crate::op::Op;
use crate::workload::Workload;
use vfs::RenameMode;

/// Positions of a sync in a script; a script that is shorter has some twice.
const POSITIONS: u64 = 4;

/// A name of which two fit a sector.
fn long(first: char) -> String {
    format!("{first}{}", "x".repeat(199))
}

/// What is durable, beside the small tree, and what is done then.
fn scripts() -> Vec<(Vec<Op>, Vec<Op>)> {
    use RenameMode::{Replace, Whiteout};
    let rename = |from: &str, to: &str, mode| Op::Rename(s(from), s(to), mode);
    let moved = |from: &str, to: &str| rename(from, to, Replace);
    let create = |path: &str| Op::Create(s(path));
    let mkdir = |path: &str| Op::Mkdir(s(path));
    let unlink = |path: &str| Op::Unlink(s(path));
    let rmdir = |path: &str| Op::Rmdir(s(path));
    let [x, y, z] = ['x', 'y', 'z'].map(long);
    let dir_with_file = || vec![mkdir("D"), create("D/f"), write("D/f", None, 100)];
    vec![
        // A name that is used again, in another sector, waits until it is gone where it was.
        (
            vec![create(&x), create(&y), create(&z)],
            vec![unlink(&x), unlink(&z), create(&z)],
        ),
        // A directory's name goes behind that of what moved out of it, and is taken behind that.
        (
            dir_with_file(),
            vec![moved("D/f", "A/C/f"), rmdir("D"), mkdir("D")],
        ),
        // The same name leads to another directory meanwhile.
        (
            dir_with_file(),
            vec![
                moved("D/f", "A/C/f"),
                mkdir("N"),
                moved("N", "D"),
                rmdir("D"),
            ],
        ),
        // The room of an old name is taken when that is gone.
        (vec![], vec![moved("foo", "A/C/bar"), create("bar")]),
        // A directory that replaced another one moves on, or is removed.
        (
            vec![mkdir("B/E")],
            vec![moved("A/C", "B/E"), moved("B/E", "D"), mkdir("A/C")],
        ),
        (
            vec![],
            vec![
                moved("A/C", "B/C"),
                moved("B/C", "C"),
                rmdir("C"),
                create("C"),
            ],
        ),
        // A directory is moved: its name, its `..`, its old name.
        (vec![], vec![moved("A/C", "B/C"), moved("B", "A/B")]),
        // A directory that was never there is moved, and the one that it was made in is removed.
        (vec![], vec![mkdir("A/N"), moved("A/N", "B/N")]),
        (
            vec![],
            vec![
                mkdir("N"),
                mkdir("N/M"),
                moved("N/M", "B/M"),
                moved("foo", "B/M/foo"),
                rmdir("N"),
            ],
        ),
        // A directory goes behind what moved out of it.
        (vec![], vec![moved("B/baz", "A/C/baz"), rmdir("B")]),
        // A file passes through a directory that was never there.
        (
            vec![],
            vec![
                mkdir("D"),
                moved("foo", "D/foo"),
                moved("D/foo", "A/C/bar"),
                rmdir("D"),
            ],
        ),
        // A file goes, and its directory, before the disk has it without that file. Their inodes
        // are in different blocks.
        (
            ["D", "A/p", "A/q", "A/r", "D/f"]
                .map(|path| {
                    if path == "D" {
                        mkdir(path)
                    } else {
                        create(path)
                    }
                })
                .to_vec(),
            vec![unlink("D/f"), rmdir("D"), create("B/new"), mkdir("D")],
        ),
        // What was moved away from a whiteout is there before that goes, too.
        (
            vec![],
            vec![rename("foo", "A/C/bar", Whiteout), unlink("foo")],
        ),
        // A new file takes the name of an old one.
        (
            vec![],
            vec![create("t"), write("t", None, 3000), moved("t", "foo")],
        ),
        // New directories in new directories.
        (vec![], vec![mkdir("N"), mkdir("N/M"), mkdir("N/M/L")]),
        // A new directory gets another name in its place.
        (vec![], vec![mkdir("A/N"), moved("A/N", "A/M")]),
        // A directory replaces another one, and leaves a whiteout or nothing.
        (vec![mkdir("B/E")], vec![rename("A/C", "B/E", Whiteout)]),
        (vec![mkdir("B/E")], vec![moved("A/C", "B/E")]),
        // A file moves on before anything of it was written.
        (
            vec![],
            vec![moved("foo", "A/bar"), moved("A/bar", "B/bar"), mkdir("N")],
        ),
        // A directory that was never there is moved, and gets another name in its new place.
        (
            vec![],
            vec![mkdir("A/N"), moved("A/N", "B/N"), moved("B/N", "B/M")],
        ),
        // A directory replaces one that a file moved out of, into it; and it moves on, with a
        // whiteout.
        (
            vec![mkdir("D"), mkdir("B/E"), create("B/E/f")],
            vec![
                moved("B/E/f", "D/f"),
                moved("D", "B/E"),
                rename("B/E/f", "f", Whiteout),
            ],
        ),
    ]
}

/// The same, of names that change places.
fn swaps_scripts() -> Vec<(Vec<Op>, Vec<Op>)> {
    let swapped = |from: &str, to: &str| Op::Rename(s(from), s(to), RenameMode::Exchange);
    let moved = |from: &str, to: &str| Op::Rename(s(from), s(to), RenameMode::Replace);
    let create = |path: &str| Op::Create(s(path));
    vec![
        // Of inodes in different blocks, of a file and a directory, of directories.
        (vec![], vec![swapped("foo", "B")]),
        (vec![], vec![swapped("A/C", "B/baz")]),
        (
            vec![Op::Mkdir(s("B/E")), create("B/E/f")],
            vec![swapped("A/C", "B/E")],
        ),
        // With a name that was never there.
        (
            vec![],
            vec![create("t"), write("t", None, 3000), swapped("t", "foo")],
        ),
        // What changed places is removed, or changes places again.
        (
            vec![],
            vec![swapped("foo", "A/foo"), Op::Unlink(s("A/foo"))],
        ),
        (
            vec![],
            vec![swapped("foo", "A/foo"), swapped("A/foo", "B/baz")],
        ),
        // A file with other names changes places.
        (
            vec![Op::Link(s("foo"), s("A/C/link"))],
            vec![swapped("A/foo", "foo"), Op::Unlink(s("A/C/link"))],
        ),
        // Another name of it was moved before: that it is the same file does not matter to the
        // second move, which does nothing.
        (
            vec![Op::Link(s("foo"), s("A/C/link"))],
            vec![
                moved("A/C/link", "B/link"),
                moved("foo", "B/link"),
                swapped("foo", "A/foo"),
            ],
        ),
    ]
}

/// Forms of each script.
const FORMS: u64 = 1 + POSITIONS * SYNCS;

/// How many workloads there are.
pub fn count() -> u64 {
    scripts().len() as u64 * FORMS
}

/// And of those of names that change places.
pub fn swaps_count() -> u64 {
    swaps_scripts().len() as u64 * FORMS
}

/// A script, first without a sync, then with one at a position.
pub fn edges(number: u64) -> Workload {
    form("edges", scripts(), number)
}

/// The same, of names that change places.
pub fn swaps(number: u64) -> Workload {
    form("swaps", swaps_scripts(), number)
}

fn form(family: &str, mut all: Vec<(Vec<Op>, Vec<Op>)>, number: u64) -> Workload {
    let count = all.len() as u64;
    let (before, script) = all.swap_remove((number % count) as usize);
    let mut ops = [base(), before, vec![Op::Syncfs]].concat();
    let setup = ops.len();
    let len = script.len();
    ops.extend(script);
    if let Some(form) = (number / count % FORMS).checked_sub(1) {
        let at = setup + (form % POSITIONS) as usize % len;
        ops.insert(at + 1, sync(form / POSITIONS, &ops[at]));
    }
    ops.push(Op::Syncfs);
    Workload {
        setup,
        ..Workload::new(format!("{family}-{number}"), fill_in(ops))
    }
}

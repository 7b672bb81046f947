//! Snapshots that are made, held and removed while the file system changes.
//!
//! Short ones: an operation of ACE, with a snapshot before it or behind it, a second one, and what
//! is removed in between or at the end. Scripts: three snapshots, removed in each order. Random
//! ones: sequences of other families, with snapshots anywhere.

use super::ace::{self, AceOp};
use super::short::base;
use super::{fill_in, random, s, tangle, write, xattr};
use crate::op::Op;
use crate::workload::Workload;
use block::Random;
use vfs::{Fallocate, RenameMode};

/// Bytes of an image of random ones: copies need space.
const LEN: u64 = 4 << 20;
/// Snapshots that a random sequence has at a time.
const MAX: usize = 3;
/// No sync behind an operation.
const UNSYNCED: u64 = 4;

fn snapshot(name: &str) -> Op {
    let (name, is_brief) = (s(name), false);
    Op::Snapshot { name, is_brief }
}

/// One that a dump or a check holds.
fn brief(name: &str) -> Op {
    let (name, is_brief) = (s(name), true);
    Op::Snapshot { name, is_brief }
}

fn remove(name: &str) -> Op {
    Op::DropSnapshot(s(name))
}

/// Where snapshots are made and removed.
struct Form {
    before: Vec<Op>,
    /// What is done behind the first operation; then there is a second one.
    between: Vec<Op>,
    after: Vec<Op>,
}

fn forms() -> Vec<Form> {
    let form = |before, between, after| Form {
        before,
        between,
        after,
    };
    let (a, b) = (|| snapshot("a"), || snapshot("b"));
    vec![
        form(vec![a()], vec![], vec![]),
        form(vec![a()], vec![], vec![remove("a")]),
        form(vec![], vec![a()], vec![]),
        form(vec![a()], vec![b()], vec![remove("a")]),
        form(vec![a()], vec![b()], vec![remove("b"), remove("a")]),
        form(vec![brief("a")], vec![b()], vec![remove("a")]),
        form(vec![a()], vec![Op::CheckLive], vec![]),
        form(vec![a()], vec![Op::Remount], vec![remove("a")]),
    ]
}

/// Operations behind another one.
fn seconds() -> [AceOp; 5] {
    [
        vec![write("foo", Some(0), 6000)],
        vec![Op::Unlink(s("foo"))],
        vec![write("A/foo", None, 5000)],
        vec![Op::Rename(s("A/foo"), s("bar"), RenameMode::Replace)],
        vec![Op::Truncate(s("A/foo"), 1000)],
    ]
}

/// What is durable beside the small tree, and what changes behind each of three snapshots.
type Script = (Vec<Op>, [Vec<Op>; 3]);

fn scripts() -> Vec<Script> {
    let punch = |path: &str, at, len| Op::Fallocate(s(path), Fallocate::Punch, at, len);
    let unlink = |path: &str| Op::Unlink(s(path));
    let many = |first: usize| (0..20).map(move |i| Op::Create(format!("A/{:0>50}", first + i)));
    vec![
        // A file that needs indirect blocks: written to, cut, removed, and its blocks used again.
        (
            vec![Op::Create(s("big")), write("big", None, 30_000)],
            [
                vec![write("big", Some(14_000), 3000)],
                vec![punch("big", 2000, 20_000), Op::Truncate(s("big"), 5000)],
                vec![unlink("big"), Op::Syncfs, write("foo", None, 30_000)],
            ],
        ),
        // A directory that grows, and whose names all go.
        (
            vec![],
            [
                many(0).collect(),
                many(20).collect(),
                (0..40).map(|i| Op::Unlink(format!("A/{i:0>50}"))).collect(),
            ],
        ),
        // Attributes in a block of their own.
        (
            vec![xattr("foo", b'a', 600)],
            [
                vec![xattr("foo", b'a', 500)],
                vec![Op::RemoveXattr(s("foo"), b'a')],
                vec![xattr("foo", b'b', 600), Op::Syncfs, unlink("foo")],
            ],
        ),
        // What is removed comes back under its name, in the room that it had.
        (
            vec![],
            [
                vec![unlink("foo"), Op::Syncfs, Op::Create(s("foo"))],
                vec![write("foo", None, 9000), Op::Syncfs, unlink("foo")],
                vec![Op::Mkdir(s("foo")), Op::Syncfs, Op::Rmdir(s("foo"))],
            ],
        ),
        // Directories that move.
        (
            vec![],
            [
                vec![Op::Rename(s("A/C"), s("B/C"), RenameMode::Replace)],
                vec![Op::Rename(s("B"), s("A/B"), RenameMode::Replace)],
                vec![Op::Rename(s("A"), s("foo"), RenameMode::Exchange)],
            ],
        ),
    ]
}

/// The orders in which three are removed.
const ORDERS: [[&str; 3]; 6] = [
    ["a", "b", "c"],
    ["a", "c", "b"],
    ["b", "a", "c"],
    ["b", "c", "a"],
    ["c", "a", "b"],
    ["c", "b", "a"],
];

/// How many there are with operations of ACE.
pub fn count() -> u64 {
    (ace::all().len() * forms().len()) as u64
}

/// Scripts, in each order.
pub fn threes() -> u64 {
    (scripts().len() * ORDERS.len()) as u64
}

/// One or two operations of ACE, in a form.
pub fn snapshots(number: u64) -> Workload {
    let all = ace::all();
    let (op, form) = (number % all.len() as u64, number / all.len() as u64);
    let mut forms = forms();
    let Form {
        before,
        between,
        after,
    } = forms.swap_remove(form as usize);
    let seconds = seconds();
    let second = &seconds[((op + form) % seconds.len() as u64) as usize];
    // With each of two forms that come one behind the other an operation is synced in another way.
    let syncs = [UNSYNCED, 0, UNSYNCED, 1, UNSYNCED];
    let sync = |at: u64| syncs[(at % syncs.len() as u64) as usize];
    let [between, after] = [between, after].map(|ops| ops.into_iter().map(|op| vec![op]));
    let [between, after]: [Vec<AceOp>; 2] = [between.collect(), after.collect()];
    let mut chosen = vec![(&all[op as usize], sync(op + form))];
    if !between.is_empty() {
        chosen.extend(between.iter().map(|ops| (ops, UNSYNCED)));
        chosen.push((second, sync(op / 2 + form)));
    }
    chosen.extend(after.iter().map(|ops| (ops, UNSYNCED)));
    let mut workload = ace::workload(format!("snapshots-{number}"), &chosen);
    let setup = workload.setup;
    workload.ops.splice(setup..setup, before);
    workload
}

/// A script, with its three snapshots removed in one order.
pub fn three(number: u64) -> Workload {
    let mut scripts = scripts();
    let count = scripts.len() as u64;
    let (before, changes) = scripts.swap_remove((number % count) as usize);
    let order = ORDERS[(number / count) as usize];
    let mut ops = [base(), before, vec![Op::Syncfs]].concat();
    let setup = ops.len();
    for (name, changes) in ["a", "b", "c"].into_iter().zip(changes) {
        ops.push(snapshot(name));
        ops.extend(changes);
    }
    let [first, second, third] = order.map(remove);
    ops.extend([first, write("A/foo", Some(100), 2000), second, third]);
    ops.push(Op::Syncfs);
    Workload {
        setup,
        ..Workload::new(format!("snapshots-three-{number}"), fill_in(ops))
    }
}

/// A random sequence, of names or of all operations, with snapshots anywhere.
pub fn anywhere(seed: u64) -> Workload {
    let mut random = Random::new(seed ^ 0x5a95);
    let workload = match random.below(2) {
        0 => tangle::tangle(seed),
        _ => random::random(seed),
    };
    let mut there: Vec<Op> = Vec::new();
    let mut ops = Vec::new();
    for (i, op) in workload.ops.into_iter().enumerate() {
        if op == Op::Remount {
            there.retain(|op| matches!(op, Op::Snapshot { is_brief, .. } if !is_brief));
        }
        ops.push(op);
        match random.below(14) {
            0 | 1 if there.len() < MAX => {
                let name = format!("s{i}");
                let one = match random.below(4) {
                    0 => brief(&name),
                    _ => snapshot(&name),
                };
                there.push(one.clone());
                ops.push(one);
            }
            2 if !there.is_empty() => {
                let one = there.swap_remove(random.below(there.len() as u64) as usize);
                if let Op::Snapshot { name, .. } = one {
                    ops.push(Op::DropSnapshot(name));
                }
            }
            3 if random.below(3) == 0 => ops.push(Op::CheckLive),
            _ => {}
        }
    }
    Workload {
        name: format!("snapshots-random-{seed}"),
        ops,
        len: LEN,
        ..workload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_makes_snapshots() {
        let makes = |workload: Workload| workload.ops.iter().any(Op::is_of_snapshots);
        assert!((0..count()).all(|number| makes(snapshots(number))));
        assert!((0..threes()).all(|number| makes(three(number))));
        assert!((0..20).filter(|&seed| makes(anywhere(seed))).count() > 15);
    }
}

//! The bounded workloads of ACE for persistent memory: all sequences of one and two operations of
//! 56, and of three of 37 (writes, links, removals and renames).
//!
//! Names: first files foo, A/foo; second files bar, A/bar, A/C/bar; directories A, B, A/C. As in
//! ACE a file is linked and renamed to a second one, and what an operation needs is made before it:
//! for the first operation durably, for the later ones not. ACE's `remove` is here the removal of a
//! file that is open.
//!
//! ACE has no syncs on persistent memory, where every operation is durable at once; as here few
//! are, each operation is followed by a way to sync that depends on the number of the workload, and
//! `ace2-syncs` has every one for each pair.

use super::{fill_in, s};
use crate::op::{Op, Side};
use crate::workload::Workload;
use model::Model;
use std::sync::Arc;
use vfs::{Fallocate, FileSystem, Fsync, Kind, ManualClock, RenameMode, Time};

const FIRST: [&str; 2] = ["foo", "A/foo"];
const SECOND: [&str; 3] = ["bar", "A/bar", "A/C/bar"];
const DIRS: [&str; 3] = ["A", "B", "A/C"];
/// Slot in which `remove` holds the file that it removes.
pub(super) const HELD: usize = 0;
/// Ways to sync behind an operation.
pub(super) const SYNCS: u64 = 5;

/// An operation of ACE: some operations of ours.
pub(super) type AceOp = Vec<Op>;

fn files() -> impl Iterator<Item = &'static str> {
    FIRST.into_iter().chain(SECOND)
}

fn rename(from: &str, to: &str) -> AceOp {
    vec![Op::Rename(s(from), s(to), RenameMode::Replace)]
}

/// write, link, unlink, rename: those of which there are sequences of three.
fn core() -> Vec<AceOp> {
    let mut ops = Vec::new();
    for path in FIRST {
        for (at, len) in [(None, 5000), (Some(2000), 3000)] {
            ops.push(vec![Op::Write {
                path: s(path),
                at,
                len,
                fill: 0,
            }]);
        }
    }
    let to_second = || {
        let pairs = files().flat_map(|from| SECOND.map(|to| (from, to)));
        pairs.filter(|(from, to)| from != to)
    };
    ops.extend(to_second().map(|(from, to)| vec![Op::Link(s(from), s(to))]));
    ops.extend(files().map(|path| vec![Op::Unlink(s(path))]));
    ops.extend(to_second().map(|(from, to)| rename(from, to)));
    let dirs = DIRS
        .iter()
        .flat_map(|from| DIRS[1..].iter().map(move |to| (from, to)));
    ops.extend(
        dirs.filter(|(from, to)| from != to)
            .map(|(from, to)| rename(from, to)),
    );
    ops
}

/// All operations, those of [`core`] first.
pub(super) fn all() -> Vec<AceOp> {
    let mut ops = core();
    ops.extend(FIRST.map(|path| vec![Op::Create(s(path))]));
    ops.extend(DIRS.map(|path| vec![Op::Mkdir(s(path))]));
    ops.extend(DIRS.map(|path| vec![Op::Rmdir(s(path))]));
    ops.extend(files().map(|path| {
        vec![
            Op::Open(s(path), HELD),
            Op::Unlink(s(path)),
            Op::Close(HELD),
        ]
    }));
    ops.extend([("foo", 1000), ("A/foo", 4096)].map(|(path, n)| vec![Op::Truncate(s(path), n)]));
    for path in FIRST {
        for mode in [Fallocate::Punch, Fallocate::Allocate { keep_size: true }] {
            ops.push(vec![Op::Fallocate(s(path), mode, 3000, 9000)]);
        }
    }
    ops
}

/// Workloads of one operation, with each way to sync.
pub fn ones() -> u64 {
    all().len() as u64 * SYNCS
}

/// Workloads of two operations.
pub fn twos() -> u64 {
    (all().len() as u64).pow(2)
}

/// Workloads of two operations with all ways to sync.
pub fn twos_with_syncs() -> u64 {
    twos() * SYNCS * SYNCS
}

/// Workloads of three operations.
pub fn threes() -> u64 {
    (core().len() as u64).pow(3)
}

/// One operation: number of the operation, and above that of the way to sync.
pub fn one(number: u64) -> Workload {
    let ops = all();
    let (op, sync) = (number % ops.len() as u64, number / ops.len() as u64);
    workload(format!("ace1-{number}"), &[(&ops[op as usize], sync)])
}

/// Two operations.
pub fn two(number: u64) -> Workload {
    let ops = all();
    let (first, second) = (number % ops.len() as u64, number / ops.len() as u64);
    let syncs = syncs_of_two(number);
    let chosen = [
        (&ops[first as usize], syncs[0]),
        (&ops[second as usize], syncs[1]),
    ];
    workload(format!("ace2-{number}"), &chosen)
}

/// Ways to sync behind the first and the second of two: nothing between them for three in five, so
/// that they meet in one batch.
pub(super) fn syncs_of_two(number: u64) -> [u64; 2] {
    [[4, 4, 4, 0, 1][(number % 5) as usize], (number / 5) % SYNCS]
}

/// Two operations with any way to sync behind each.
pub fn two_with_syncs(number: u64) -> Workload {
    let ops = all();
    let (pair, syncs) = (number % twos(), number / twos());
    let (first, second) = (pair % ops.len() as u64, pair / ops.len() as u64);
    let chosen = [
        (&ops[first as usize], syncs % SYNCS),
        (&ops[second as usize], syncs / SYNCS),
    ];
    workload(format!("ace2-syncs-{number}"), &chosen)
}

/// Three operations.
pub fn three(number: u64) -> Workload {
    let ops = core();
    let n = ops.len() as u64;
    let number_of = [number % n, number / n % n, number / (n * n)];
    let between = |n: u64| [4, 4, 4, 0, 1, 2][(n % 6) as usize];
    let syncs = [between(number), between(number / 6), number / 36 % SYNCS];
    let chosen: Vec<_> = number_of
        .iter()
        .map(|&op| &ops[op as usize])
        .zip(syncs)
        .collect();
    workload(format!("ace3-{number}"), &chosen)
}

/// The operations in a row, with what they need.
pub(super) fn workload(name: String, chosen: &[(&AceOp, u64)]) -> Workload {
    let mut provider = Provider {
        model: Side::new(Model::on(Arc::new(ManualClock::new(Time(0))))),
        ops: Vec::new(),
    };
    let mut setup = 0;
    for (i, (ace, sync)) in chosen.iter().enumerate() {
        provider.provide(&ace[0]);
        if i == 0 {
            provider.run(Op::Syncfs);
            setup = provider.ops.len();
        }
        ace.iter().for_each(|op| provider.run(op.clone()));
        let what = if ace.len() == 1 { &ace[0] } else { &ace[1] };
        if let Some(sync) = sync_behind(what, *sync) {
            provider.run(sync);
        }
    }
    provider.run(Op::Syncfs);
    Workload {
        setup,
        ..Workload::new(name, fill_in(provider.ops))
    }
}

/// The way to sync of this number, behind an operation; none for the last.
fn sync_behind(op: &Op, number: u64) -> Option<Op> {
    let fsync = |path: &str| Some(Op::Fsync(s(path), Fsync::All));
    let (one, other) = match op {
        Op::Link(from, to) | Op::Rename(from, to, _) => (to.as_str(), from.as_str()),
        Op::Unlink(path) | Op::Rmdir(path) => (parent(path), sibling(path)),
        Op::Create(path) | Op::Mkdir(path) | Op::Write { path, .. } => {
            (path.as_str(), sibling(path))
        }
        Op::Truncate(path, _) | Op::Fallocate(path, ..) => (path.as_str(), sibling(path)),
        Op::CopyRange { from, to, .. } => (to.0.as_str(), from.0.as_str()),
        Op::SetXattr { path, .. } | Op::RemoveXattr(path, _) | Op::SetAcl { path, .. } => {
            (path.as_str(), sibling(path))
        }
        Op::Chmod(path, _) | Op::Chown(path, _) | Op::Touch(path) | Op::Access(path) => {
            (path.as_str(), sibling(path))
        }
        Op::Symlink(path, _) | Op::Mknod(path, _) | Op::LinkHeld(_, path) => {
            (path.as_str(), sibling(path))
        }
        Op::Inherit { path, .. } => (path.as_str(), sibling(path)),
        _ => ("", ""),
    };
    match number {
        0 => Some(Op::Syncfs),
        1 => fsync(one),
        2 => fsync(other),
        3 => fsync(parent(one)),
        _ => None,
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn sibling(path: &str) -> &'static str {
    match path {
        "foo" => "bar",
        "A/foo" => "A/bar",
        "A/bar" => "A/foo",
        "A/C/bar" => "A/C",
        "A" => "B",
        "B" => "A",
        _ => "foo",
    }
}

/// Makes what operations need, as far as it is not there.
struct Provider {
    model: Side<Model>,
    ops: Vec<Op>,
}

impl Provider {
    fn run(&mut self, op: Op) {
        // Whether it succeeds does not matter: the run compares.
        let _ = self.model.run(&op);
        self.ops.push(op);
    }

    fn kind(&self, path: &str) -> Option<Kind> {
        let node = self.model.find(path).ok()?;
        Some(self.model.fs.attr(&node).kind)
    }

    fn provide(&mut self, op: &Op) {
        match op {
            Op::Create(path) => self.make_room(path),
            Op::Mkdir(path) => self.make_room(path),
            Op::Rmdir(path) => {
                self.make(path, true);
                self.empty(path);
            }
            Op::Link(from, to) => {
                self.make(from, false);
                self.make_room(to);
            }
            Op::Rename(from, to, RenameMode::Exchange) => {
                let is_dir = |path: &String| DIRS.contains(&path.as_str());
                self.make(from, is_dir(from));
                self.make(to, is_dir(to));
            }
            Op::Rename(from, to, _) if DIRS.contains(&from.as_str()) => {
                self.make(from, true);
                self.make_parent(to);
                let below = from.starts_with(to.as_str()) || to.starts_with(from.as_str());
                if self.kind(to).is_some() && !below {
                    self.empty(to);
                }
            }
            Op::Rename(from, to, _) => {
                self.make(from, false);
                self.make_parent(to);
            }
            Op::Unlink(path) | Op::Open(path, _) => self.make(path, false),
            Op::Write { path, .. } | Op::Truncate(path, _) | Op::Fallocate(path, ..) => {
                self.make(path, false);
            }
            Op::CopyRange { from, to, .. } => {
                self.make(&from.0, false);
                self.make(&to.0, false);
            }
            Op::SetXattr { path, .. } | Op::SetAcl { path, .. } => self.make_kind(path),
            Op::Chmod(path, _) | Op::Chown(path, _) | Op::Touch(path) | Op::Access(path) => {
                self.make_kind(path);
            }
            Op::RemoveXattr(path, name) => {
                self.make_kind(path);
                self.run(Op::SetXattr {
                    path: path.clone(),
                    name: *name,
                    len: 5000,
                    fill: 0,
                });
            }
            Op::Symlink(path, _) | Op::Mknod(path, _) | Op::Inherit { path, .. } => {
                self.make_room(path);
            }
            Op::Tmpfile(dir, _) => self.make(dir, true),
            _ => {}
        }
    }

    fn make_parent(&mut self, path: &str) {
        let parent = parent(path);
        if !parent.is_empty() {
            self.make(parent, true);
        }
    }

    /// What a name of ACE stands for is there: a directory, or a file.
    fn make_kind(&mut self, path: &str) {
        self.make(path, DIRS.contains(&path));
    }

    /// Something is at a path; a file has contents.
    fn make(&mut self, path: &str, dir: bool) {
        if self.kind(path).is_some() {
            return;
        }
        self.make_parent(path);
        if dir {
            self.run(Op::Mkdir(s(path)));
            return;
        }
        self.run(Op::Create(s(path)));
        self.run(Op::Write {
            path: s(path),
            at: None,
            len: 6000,
            fill: 0,
        });
    }

    /// Nothing is at a path, and its directory is there.
    fn make_room(&mut self, path: &str) {
        self.make_parent(path);
        match self.kind(path) {
            None => {}
            Some(Kind::Dir) => {
                self.empty(path);
                self.run(Op::Rmdir(s(path)));
            }
            Some(_) => self.run(Op::Unlink(s(path))),
        }
    }

    /// Nothing is in a directory.
    fn empty(&mut self, path: &str) {
        let mut names = Vec::new();
        if let Ok(dir) = self.model.find(path) {
            // A directory that cannot be read is left as it is: then what follows fails, in the
            // engine as well.
            let _ = self.model.fs.readdir(&dir, 0, &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            });
        }
        for name in names {
            let path = format!("{path}/{name}");
            if self.kind(&path) == Some(Kind::Dir) {
                self.empty(&path);
                self.run(Op::Rmdir(path));
            } else {
                self.run(Op::Unlink(path));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_ace_has() {
        assert_eq!((all().len(), core().len()), (56, 37));
        assert_eq!((twos(), threes()), (3136, 50653));
    }
}

//! The bound of ACE with the operations that ACE does not have: `ace1x` each of them by itself,
//! `ace2x` each before and behind each other one and each of ACE.
//!
//! Names are those of ACE, and two long ones, which fill an entry of several lines.

use super::ace::{AceOp, HELD, SYNCS, all, syncs_of_two, workload};
use super::{s, write, xattr};
use crate::op::Op;
use crate::workload::Workload;
use vfs::{Fallocate, RenameMode};

/// From here on a write of [`STREAMED`] bytes goes around the cache.
const FAR: u64 = 1 << 20;
/// As much as that takes.
const STREAMED: usize = 20_000;

/// A name of so many bytes that its entry has further lines.
fn long(dir: &str, name: char, len: usize) -> String {
    dir.to_owned() + &name.to_string().repeat(len)
}

fn copy(from: (&str, u64), to: (&str, u64), len: u64) -> Op {
    Op::CopyRange {
        from: (s(from.0), from.1),
        to: (s(to.0), to.1),
        len,
    }
}

/// The operations that ACE does not have.
pub(super) fn extras() -> Vec<AceOp> {
    use RenameMode::{Exchange, Replace, Whiteout};
    let (two, five) = (long("", 'l', 40), long("A/", 'L', 255));
    let rename = |from: &str, to: &str, mode| vec![Op::Rename(s(from), s(to), mode)];
    let mut extras = names(&two, &five);
    extras.extend([
        rename("foo", "A/foo", Exchange),
        rename("A", "B", Exchange),
        rename("A/C", "foo", Exchange),
        rename("foo", "bar", Whiteout),
        rename("A/foo", "foo", Whiteout),
        vec![Op::Symlink(s("bar"), 40)],
        vec![Op::Symlink(s("A/bar"), 4000)],
        vec![
            Op::Symlink(s("bar"), 4000),
            Op::Rename(s("bar"), s("foo"), Replace),
        ],
        vec![copy(("foo", 0), ("bar", 0), 6000)],
        vec![copy(("A/foo", 100), ("foo", 5000), 5000)],
        vec![write("foo", Some(FAR), STREAMED)],
        vec![
            write("A/foo", Some(FAR + 100), STREAMED),
            Op::Syncfs,
            write("A/foo", Some(FAR), STREAMED),
        ],
        vec![Op::Access(s("foo"))],
        vec![Op::Access(s("A"))],
        vec![xattr("foo", b'x', 10)],
        vec![xattr("foo", b'y', 6000)],
        vec![xattr("A", b'x', 30)],
        vec![Op::RemoveXattr(s("A/foo"), b'x')],
        vec![Op::SetAcl {
            path: s("foo"),
            perm: 0o640,
            len: 5000,
            fill: 0,
        }],
        vec![Op::Inherit {
            path: s("bar"),
            dir: false,
            len: 5000,
            fill: 0,
        }],
        vec![Op::Inherit {
            path: s("B"),
            dir: true,
            len: 44,
            fill: 0,
        }],
        vec![Op::Mknod(s("A/bar"), 0x0103)],
        vec![Op::Chmod(s("foo"), 0o600)],
        vec![Op::Chown(s("A"), 7)],
        vec![Op::Touch(s("A/foo"))],
        vec![
            Op::Tmpfile(s("A"), HELD),
            Op::LinkHeld(HELD, s("A/bar")),
            Op::WriteHeld {
                handle: HELD,
                at: 0,
                len: 5000,
                fill: 0,
            },
            Op::Close(HELD),
        ],
        vec![Op::Fallocate(
            s("foo"),
            Fallocate::Zero { keep_size: false },
            100,
            9000,
        )],
        vec![Op::Fallocate(
            s("A/foo"),
            Fallocate::Allocate { keep_size: false },
            0,
            20_000,
        )],
    ]);
    extras
}

/// Those on long names, of two lines and of five.
fn names(two: &str, five: &str) -> Vec<AceOp> {
    let rename = |from: &str, to: &str| Op::Rename(s(from), s(to), RenameMode::Replace);
    let ops = [
        Op::Create(s(two)),
        Op::Mkdir(s(five)),
        Op::Link(s("foo"), s(five)),
        Op::Unlink(s(two)),
        rename("foo", five),
        rename(two, five),
        rename(five, "foo"),
    ];
    ops.into_iter().map(|op| vec![op]).collect()
}

/// Workloads of one operation, with each way to sync.
pub fn ones() -> u64 {
    extras().len() as u64 * SYNCS
}

/// One operation.
pub fn one(number: u64) -> Workload {
    let ops = extras();
    let (op, sync) = (number % ops.len() as u64, number / ops.len() as u64);
    workload(format!("ace1x-{number}"), &[(&ops[op as usize], sync)])
}

/// Workloads of two operations.
pub fn twos() -> u64 {
    let (extras, others) = (extras().len() as u64, all().len() as u64);
    extras * (extras + 2 * others)
}

/// Two operations: one of these, before or behind another one or one of ACE.
pub fn two(number: u64) -> Workload {
    let (extras, others) = (extras(), all());
    let n = extras.len() as u64;
    let (one, other) = (&extras[(number % n) as usize], (number / n) as usize);
    let (first, second) = match other.checked_sub(extras.len()) {
        None => (one, &extras[other]),
        Some(other) if other < others.len() => (one, &others[other]),
        Some(other) => (&others[other - others.len()], one),
    };
    let syncs = syncs_of_two(number);
    workload(
        format!("ace2x-{number}"),
        &[(first, syncs[0]), (second, syncs[1])],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use pmem::Domain;

    #[test]
    fn every_operation_succeeds_by_itself() {
        for number in 0..extras().len() as u64 {
            let run = Run::record(one(number), Domain::Line, false).expect("it runs");
            let failed: Vec<_> = run.steps.iter().filter(|s| s.what.contains("->")).collect();
            assert!(failed.is_empty(), "{}", failed[0].what);
        }
    }

    #[test]
    fn each_is_before_and_behind_each_of_ace() {
        let (n, others) = (extras().len(), all().len());
        assert_eq!(twos() as usize, n * n + 2 * n * others);
        let before = two((n * n) as u64);
        let behind = two((n * (n + others)) as u64);
        let position = |w: &Workload, op: &Op| w.ops.iter().position(|one| one == op);
        let (extra, ace) = (&extras()[0][0], Op::Syncfs);
        assert!(position(&before, extra) < position(&behind, extra));
        assert_eq!(before.ops.last(), Some(&ace));
    }
}

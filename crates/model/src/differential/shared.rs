//! Histories of a few threads on the *same* names, each of which some order of the operations has
//! to explain.
//!
//! Threads do a handful of operations at once, in directories and on a file that they all hold.
//! What each operation returned, and what is there at the end, must be as if they had been done one
//! at a time, none before another that had returned when it was called (linearizability):
//! [`linear`](crate::linear) searches for such an order.
//!
//! Each operation is one call of the file system, as what a path means may change between two.
//! Listing a directory is none of them: it promises no single moment.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

use fastrand::Rng;
use vfs::{Errno, FileSystem, Kind, ManualClock, NewKind, NewNode, RenameMode, Result, Time};

use super::{REPLAY, SEEDS};
use crate::linear::{Call, Sequential, explains};
use crate::{Engine, Model};

/// Directories that threads hold; the first has the others in it at the beginning.
const DIRS: usize = 3;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"d1", b"d2"];
const PREFIX: &str = "SHARED-";
/// How often the operations of a token are run: how threads meet is not in it.
const REPLAYS: u64 = 10_000;

/// A name in one of the directories.
type Place = (usize, usize);

/// An operation. What is made has permissions of its own, by which it is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Make(Place, NewKind<'static>, u16),
    /// A name for the file that is held.
    Link(Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, RenameMode),
    Look(Place),
}

/// What it returned: the permissions of what a lookup found.
type Answer = std::result::Result<Option<u16>, Errno>;

/// An operation that was done, and when.
type Done = Call<Op, Answer>;

/// All names, each with the permissions and link count of what it leads to.
type Tree = Vec<(Vec<u8>, u16, u32)>;

/// A directory in which names are shared.
struct Arena<'f, F: FileSystem> {
    fs: &'f F,
    dirs: [F::Node; DIRS],
    file: F::Node,
}

fn new(kind: NewKind<'_>, perm: u16) -> NewNode<'_> {
    NewNode {
        kind,
        perm,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

impl<'f, F: FileSystem> Arena<'f, F> {
    fn new(fs: &'f F, name: &[u8]) -> Result<Arena<'f, F>> {
        let make = |dir: &F::Node, name: &[u8], kind, perm| fs.create(dir, name, &new(kind, perm));
        let root = make(&fs.root(), name, NewKind::Dir, 0o700)?;
        let d1 = make(&root, b"d1", NewKind::Dir, 0o701)?;
        let d2 = make(&root, b"d2", NewKind::Dir, 0o702)?;
        let file = make(&root, b"a", NewKind::File, 0o703)?;
        Ok(Arena {
            fs,
            dirs: [root, d1, d2],
            file,
        })
    }

    fn run(&self, op: Op) -> Answer {
        let at = |(dir, name): Place| (&self.dirs[dir], NAMES[name]);
        let veto = &|_: &vfs::Rights| Ok(());
        let done = match op {
            Op::Make(place, kind, perm) => {
                let (dir, name) = at(place);
                self.fs.create(dir, name, &new(kind, perm)).map(drop)
            }
            Op::Link(place) => self.fs.link(&self.file, at(place).0, at(place).1),
            Op::Unlink(place) => self.fs.unlink(at(place).0, at(place).1, veto),
            Op::Rmdir(place) => self.fs.rmdir(at(place).0, at(place).1, veto),
            Op::Rename(from, to, mode) => {
                let ((from, name), (to, new)) = (at(from), at(to));
                self.fs.rename(
                    vfs::Place::new(from, name),
                    vfs::Place::new(to, new),
                    mode,
                    veto,
                )
            }
            Op::Look(place) => {
                let found = self.fs.lookup(at(place).0, at(place).1);
                return match found {
                    Ok(node) => Ok(Some(self.fs.attr(&node).perm)),
                    Err(e) => Err(e.errno()),
                };
            }
        };
        done.map(|()| None).map_err(|e| e.errno())
    }

    fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        let mut left = vec![(self.dirs[0].clone(), Vec::new())];
        while let Some((dir, path)) = left.pop() {
            let mut names = Vec::new();
            self.fs.readdir(&dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })?;
            for name in names {
                let node = self.fs.lookup(&dir, &name)?;
                let (attr, path) = (self.fs.attr(&node), [&path, &b"/"[..], &name].concat());
                tree.push((path.clone(), attr.perm, attr.nlink));
                if attr.kind == Kind::Dir {
                    left.push((node, path));
                }
            }
        }
        tree.sort();
        Ok(tree)
    }
}

fn generate(seed: u64) -> Vec<Vec<Op>> {
    let mut rng = Rng::with_seed(seed);
    let threads = rng.usize(2..=3);
    // On few names, so that they meet.
    let (dirs, names) = (rng.usize(1..=DIRS), rng.usize(2..=NAMES.len()));
    let mut made = 0;
    let mut op = || {
        let mut place = || (rng.usize(0..dirs), rng.usize(0..names));
        let (from, to) = (place(), place());
        made += 1;
        match rng.usize(0..18) {
            0..2 => Op::Make(from, NewKind::File, made),
            2 => Op::Make(from, NewKind::Dir, made),
            3 => Op::Link(from),
            4..6 => Op::Unlink(from),
            6 => Op::Rmdir(from),
            7..10 => Op::Rename(from, to, RenameMode::Replace),
            10 => Op::Rename(from, to, RenameMode::Exchange),
            11 => Op::Rename(from, to, RenameMode::NoReplace),
            _ => Op::Look(from),
        }
    };
    let ops = if threads == 2 { 4 } else { 3 };
    (0..threads)
        .map(|_| (0..ops).map(|_| op()).collect())
        .collect()
}

/// Run each thread's operations, all threads at once.
fn meet<F: FileSystem>(arena: &Arena<'_, F>, ops: &[Vec<Op>]) -> Vec<Vec<Done>> {
    let (time, ready) = (AtomicU64::new(0), AtomicUsize::new(0));
    let threads = ops.len();
    let run = |ops: &[Op]| {
        ready.fetch_add(1, SeqCst);
        // Not a barrier that sleeps: waking takes longer than all that is done here.
        while ready.load(SeqCst) < threads {
            thread::yield_now();
        }
        let one = |&op: &Op| {
            let called = time.fetch_add(1, SeqCst);
            let answer = arena.run(op);
            let returned = time.fetch_add(1, SeqCst);
            Done {
                op,
                called,
                returned: Some((returned, answer)),
            }
        };
        ops.iter().map(one).collect()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = ops.iter().map(|ops| scope.spawn(|| run(ops))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// What operations leave on the model, one after another: two states are the same if what is there
/// is.
#[derive(Debug, Clone)]
struct State {
    /// The model cannot be copied: its operations are done again.
    order: Vec<Op>,
    tree: Tree,
}

impl State {
    fn new() -> State {
        let (tree, _) = outcome(&[]);
        let order = Vec::new();
        State { order, tree }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.tree == other.tree
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.tree.hash(hasher);
    }
}

impl Sequential for State {
    type Op = Op;
    type Answer = Answer;

    fn run(&mut self, op: &Op) -> Answer {
        self.order.push(*op);
        let (tree, answer) = outcome(&self.order);
        self.tree = tree;
        answer
    }
}

/// What these operations leave on the model, one after another, and what the last of them returns.
fn outcome(order: &[Op]) -> (Tree, Answer) {
    let model = Model::on(Arc::new(ManualClock::new(Time(1_000_000_000))));
    let arena = Arena::new(&model, b"arena").expect("the model takes names");
    let answers: Vec<Answer> = order.iter().map(|&op| arena.run(op)).collect();
    let last = answers.last().copied().unwrap_or(Ok(None));
    (arena.tree().expect("the model can be read"), last)
}

/// Whether some order explains a history, and what was there at the end.
fn explained(history: &[Vec<Done>], last: &Tree) -> bool {
    explains(&State::new(), history, |state| state.tree == *last)
}

/// A history that no order explains.
struct Unexplained {
    seed: u64,
    history: Vec<Vec<Done>>,
    last: Tree,
}

impl fmt::Debug for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "No order of these operations explains what they returned and left."
        )?;
        for (thread, ops) in self.history.iter().enumerate() {
            writeln!(f, "  thread {thread}:")?;
            for done in ops {
                let (to, answer) = done.returned.expect("all have returned");
                writeln!(
                    f,
                    "    {:3}..{to:3} {:?} -> {answer:?}",
                    done.called, done.op
                )?;
            }
        }
        writeln!(f, "  left:")?;
        for (path, perm, nlink) in &self.last {
            writeln!(
                f,
                "    {} is {perm:o} with {nlink} links",
                path.escape_ascii()
            )?;
        }
        let seed = self.seed;
        write!(
            f,
            "Run it {REPLAYS} times with {REPLAY}={PREFIX}{seed:016x}"
        )
    }
}

/// Run the operations of this seed once, in a directory of their own.
fn run<F: FileSystem>(fs: &F, seed: u64, name: &str) -> std::result::Result<(), Box<Unexplained>> {
    let arena = Arena::new(fs, name.as_bytes()).expect("the root takes names");
    let history = meet(&arena, &generate(seed));
    let last = arena.tree().expect("what was made can be read");
    match explained(&history, &last) {
        true => Ok(()),
        false => Err(Box::new(Unexplained {
            seed,
            history,
            last,
        })),
    }
}

/// Run the operations of these seeds on names that their threads share, or those of a token in the
/// environment variable [`REPLAY`]; panics with the first history that no order of its operations
/// explains. [`SEEDS`] in the environment sets another number of seeds, from the same first one.
pub fn check_shared<E: Engine>(seeds: Range<u64>, engine: &E) {
    let fs = engine.make(Arc::new(ManualClock::new(Time(1_000_000_000))));
    let token = std::env::var(REPLAY).ok();
    let token = token
        .as_deref()
        .and_then(|token| token.strip_prefix(PREFIX));
    let replayed = token.map(|token| u64::from_str_radix(token, 16).expect("a token"));
    let count = std::env::var(SEEDS)
        .ok()
        .and_then(|count| count.parse().ok());
    let end = count.map_or(seeds.end, |count: u64| seeds.start.saturating_add(count));
    let all: Box<dyn Iterator<Item = u64>> = match replayed {
        Some(seed) => Box::new((0..REPLAYS).map(move |_| seed)),
        None => Box::new(seeds.start..end),
    };
    for (number, seed) in all.enumerate() {
        if let Err(unexplained) = run(&fs, seed, &number.to_string()) {
            panic!("{unexplained:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(op: Op, answer: Answer, called: u64, returned: u64) -> Done {
        let returned = Some((returned, answer));
        Done {
            op,
            called,
            returned,
        }
    }

    const A: Place = (0, 0);
    const B: Place = (0, 1);

    fn tree(ops: &[Op]) -> Tree {
        outcome(ops).0
    }

    #[test]
    fn a_file_that_is_at_neither_name_while_it_moves_is_explained_by_no_order() {
        let moves = Op::Rename(A, B, RenameMode::Replace);
        let look = |at, found: bool, called, returned| {
            let answer = if found {
                Ok(Some(0o703))
            } else {
                Err(Errno::NOENT)
            };
            done(Op::Look(at), answer, called, returned)
        };
        let moved = || vec![done(moves, Ok(None), 0, 9)];
        let explained = |looks: Vec<Done>| explained(&[moved(), looks], &tree(&[moves]));
        assert!(explained(vec![look(B, false, 1, 2), look(A, true, 3, 4)]));
        assert!(explained(vec![look(A, false, 1, 2), look(B, true, 3, 4)]));
        assert!(explained(vec![look(B, false, 1, 2), look(A, false, 3, 4)]));
        assert!(!explained(vec![look(A, false, 1, 2), look(B, false, 3, 4)]));
        assert!(!explained(vec![look(B, true, 1, 2), look(A, true, 3, 4)]));
    }

    #[test]
    fn what_had_returned_comes_before_what_is_called_then() {
        let make = |perm| Op::Make(B, NewKind::File, perm);
        let (first, second) = (
            done(make(1), Ok(None), 0, 1),
            done(make(2), Err(Errno::EXIST), 2, 3),
        );
        let last = tree(&[make(1)]);
        assert!(explained(&[vec![first], vec![second]], &last));
        let late = Done {
            called: 4,
            returned: Some((5, Ok(None))),
            ..first
        };
        assert!(!explained(&[vec![late], vec![second]], &last));
        assert!(!explained(&[vec![first], vec![second]], &Tree::new()));
    }

    #[test]
    fn what_the_model_does_under_a_lock_is_explained() {
        let model = |clock: Arc<dyn vfs::Clock>| Model::on(clock);
        check_shared(0..300, &model);
    }
}

//! Moves of directories beside each other, in modes `delayed` and `strong`: whichever of them are
//! stopped half-way, the tree stays one.

use super::{INJECTING, new, pool_in};
use pmem::Domain;
use schedule::{Task, run};
use soupfs::fault::{Fault, fault};
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::{Mode, MountOptions, Node, SoupFs};
use std::sync::Arc;
use vfs::{Errno, FileSystem, ManualClock, NewKind, NewNode, Place, RenameMode, Time};

/// A move: directories by their letters. Names are the same everywhere.
type Move = (u8, u8);

/// Directories of the root, of which each move puts one into another.
const DIRS: [u8; 4] = *b"abcd";

/// What is done at the same time: all would close a cycle; two of three; moves that share a way and
/// close none; moves that do not meet.
const CASES: [&[Move]; 5] = [
    &[(b'a', b'b'), (b'b', b'a')],
    &[(b'a', b'b'), (b'b', b'c'), (b'c', b'a')],
    &[(b'a', b'b'), (b'b', b'a'), (b'c', b'b')],
    &[(b'a', b'c'), (b'b', b'c')],
    &[(b'a', b'b'), (b'c', b'd')],
];

fn mount(pool: &Arc<pmem::Pool>, mode: Mode) -> SoupFs {
    let options = MountOptions {
        mode,
        manual: true,
        ..MountOptions::new(Arc::new(ManualClock::new(Time(5))))
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
}

fn look_up(fs: &SoupFs, name: u8) -> Node {
    fs.lookup(&fs.root(), &[name]).expect("there")
}

/// What became of some moves: whether each was refused, and how many points it has passed.
struct Done {
    refused: Vec<bool>,
    passed: Vec<u32>,
}

/// Does moves at the same time; each stops behind so many points. An error: the tree is none.
fn moved(mode: Mode, moves: &[Move], stops: &[u32]) -> Result<Done, String> {
    let pool = pool_in(Domain::Line);
    let fs = mount(&pool, mode);
    let dir = NewNode {
        kind: NewKind::Dir,
        ..new()
    };
    for name in DIRS {
        fs.create(&fs.root(), &[name], &dir).expect("made");
    }
    let (root, fs_ref) = (fs.root(), &fs);
    let task = |(&(what, to), &stop): (&Move, &u32)| {
        let (to, root) = (look_up(fs_ref, to), &root);
        Task::stopping(stop, move || {
            let name = [what];
            let (from, to) = (Place::new(root, &name), Place::new(&to, &name));
            fs_ref.rename(from, to, RenameMode::Replace, &|_| Ok(()))
        })
    };
    let ended = run(moves.iter().zip(stops).map(task).collect());
    let mut done = Done {
        refused: Vec::new(),
        passed: Vec::new(),
    };
    for one in ended {
        match one.result {
            Ok(()) => done.refused.push(false),
            Err(error) if error.errno() == Errno::INVAL => done.refused.push(true),
            Err(error) => return Err(format!("{error}")),
        }
        done.passed.push(one.passed);
    }
    drop(root);
    fs.unmount().map_err(|error| error.to_string())?;
    let options = CheckOptions {
        repair: false,
        threads: 1,
    };
    let report = check(&pool, &options, &|_| ()).map_err(|error| error.to_string())?;
    match report.outcome {
        Outcome::Clean => Ok(done),
        _ => Err(format!("{report}")),
    }
}

/// All stops of the first two moves; the others stop nowhere. Returns what was wrong in how many
/// schedules of how many.
fn explored(mode: Mode, moves: &[Move], closes: usize) -> (usize, usize) {
    let (mut wrong, mut tried) = (0, 0);
    let alone = moved(mode, moves, &vec![u32::MAX; moves.len()]).expect("one after the other");
    let most = alone.passed.iter().max().expect("a move") + 8;
    for first in 0..most {
        for second in 0..most {
            let mut stops = vec![u32::MAX; moves.len()];
            (stops[0], stops[1]) = (first, second);
            let refused = moved(mode, moves, &stops)
                .map(|done| done.refused.iter().filter(|&&refused| refused).count());
            tried += 1;
            wrong += usize::from(refused != Ok(closes));
        }
    }
    (wrong, tried)
}

#[test]
fn moves_of_directories_close_no_cycle() {
    let _injecting = INJECTING.lock();
    for mode in [Mode::Delayed, Mode::Strong] {
        for (moves, closes) in CASES.into_iter().zip([1, 1, 1, 0, 0]) {
            let (wrong, tried) = explored(mode, moves, closes);
            assert_eq!(wrong, 0, "{mode:?}, {moves:?}, of {tried}");
        }
        assert!(fault(Some(Fault::MovePassed)), "a test build has faults");
        let (wrong, tried) = explored(mode, CASES[0], 1);
        fault(None);
        assert!(wrong > 0, "this test sees nothing, of {tried} in {mode:?}");
    }
}

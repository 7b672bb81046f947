//! Names that renames tie together are after a crash as they were at one time, whatever a batch
//! began with.

mod common;

use common::{Soup, audit, clock, image};
use pmem::{Domain, Options, Pool};
use soupfs::{Node, SoupFs};
use std::collections::BTreeSet;
use std::sync::Arc;
use vfs::{FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, Time};

/// A batch takes what waits in a sixteenth of a directory. So many other files that each of them is
/// met.
const OTHERS: usize = 48;

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn mount(pool: Arc<Pool>) -> SoupFs {
    let soup = Soup {
        manual: true,
        domain: Domain::Cache,
        ..Soup::default()
    };
    soup.mount(pool, clock())
}

fn crashed(fs: &SoupFs) -> SoupFs {
    let options = Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    };
    let pool = Pool::from_bytes(&fs.pool().snapshot(), &options).expect("memory");
    mount(Arc::new(pool))
}

/// One of the operations; a path has at most one directory in it.
#[derive(Debug, Clone, Copy)]
enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Link(&'static str, &'static str),
    Move(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Whiteout(&'static str, &'static str),
    Fsync(&'static str),
}

fn place<'p>(fs: &SoupFs, path: &'p str) -> vfs::Result<(Node, &'p [u8])> {
    let root = fs.root();
    match path.split_once('/') {
        Some((dir, name)) => Ok((fs.lookup(&root, dir.as_bytes())?, name.as_bytes())),
        None => Ok((root, path.as_bytes())),
    }
}

fn find(fs: &SoupFs, path: &str) -> vfs::Result<Node> {
    let (dir, name) = place(fs, path)?;
    fs.lookup(&dir, name)
}

impl Op {
    fn run(self, fs: &SoupFs) -> vfs::Result<()> {
        let rename = |from, to, mode| {
            let ((from, name), (to, new)) = (place(fs, from)?, place(fs, to)?);
            fs.rename(Place::new(&from, name), Place::new(&to, new), mode, &|_| {
                Ok(())
            })
        };
        let make = |path, kind| {
            let (dir, name) = place(fs, path)?;
            fs.create(&dir, name, &new(kind)).map(drop)
        };
        match self {
            Op::Create(path) => make(path, NewKind::File),
            Op::Mkdir(path) => make(path, NewKind::Dir),
            Op::Unlink(path) => {
                let (dir, name) = place(fs, path)?;
                fs.unlink(&dir, name, &|_| Ok(()))
            }
            Op::Rmdir(path) => fs.rmdir(&fs.root(), path.as_bytes(), &|_| Ok(())),
            Op::Link(from, to) => {
                let (dir, name) = place(fs, to)?;
                fs.link(&find(fs, from)?, &dir, name)
            }
            Op::Move(from, to) => rename(from, to, RenameMode::Replace),
            Op::Exchange(from, to) => rename(from, to, RenameMode::Exchange),
            Op::Whiteout(from, to) => rename(from, to, RenameMode::Whiteout),
            Op::Fsync(path) => fs.fsync(&find(fs, path)?, Fsync::All),
        }
    }
}

/// What each of these names leads to.
type Names = Vec<(&'static str, Option<u64>)>;

fn names(fs: &SoupFs, of: &[&'static str]) -> Names {
    let one = |&path: &&'static str| (path, find(fs, path).ok().map(|node| fs.ino(&node)));
    of.iter().map(one).collect()
}

/// Run `durable` and sync, run `ops`, sync one of many other files, crash: the names that `ops` tie
/// are as they were after one of them, and after the last that synced one.
fn check(durable: &[Op], ops: &[Op], tied: &[&'static str]) {
    let mut wrong = BTreeSet::new();
    for i in 0..OTHERS {
        let fs = mount(image(1 << 20, Domain::Cache, Time(1)));
        durable.iter().for_each(|op| op.run(&fs).expect("runs"));
        fs.syncfs().expect("synced");
        let mut known = vec![names(&fs, tied)];
        for op in ops {
            op.run(&fs).unwrap_or_else(|e| panic!("{op:?}: {e}"));
            if let Op::Fsync(_) = op {
                known.clear();
            }
            known.push(names(&fs, tied));
        }
        let other = format!("other{i}");
        let other = fs.create(&fs.root(), other.as_bytes(), &new(NewKind::File));
        fs.fsync(&other.expect("made"), Fsync::All).expect("synced");
        let found = names(&crashed(&fs), tied);
        let pool = fs.pool().clone();
        fs.unmount().expect("unmounted");
        drop(fs);
        audit(&pool);
        if !known.contains(&found) {
            wrong.insert(format!("{found:?}, and never so in {known:?}"));
        }
    }
    let wrong = Vec::from_iter(wrong).join("\n");
    assert!(wrong.is_empty(), "{ops:?}:\n{wrong}");
}

#[test]
fn what_replaced_a_name_and_moved_on_is_not_lost_sight_of() {
    use Op::{Create, Move};
    let ops = [Move("new", "cfg"), Move("cfg", "bak")];
    check(
        &[Create("cfg"), Create("new")],
        &ops,
        &["cfg", "new", "bak"],
    );
    let ops = [Create("new"), Move("new", "cfg"), Move("cfg", "bak")];
    check(&[Create("cfg")], &ops, &["cfg", "new", "bak"]);
    let further = [Move("new", "cfg"), Move("cfg", "bak"), Move("bak", "end")];
    let all = ["cfg", "new", "bak", "end"];
    check(&[Create("cfg"), Create("new")], &further, &all);
}

#[test]
fn what_replaced_a_name_and_was_removed_is_not_lost_sight_of() {
    use Op::{Create, Move, Unlink};
    let ops = [Move("new", "cfg"), Unlink("cfg")];
    check(&[Create("cfg"), Create("new")], &ops, &["cfg", "new"]);
}

#[test]
fn what_replaced_a_name_and_was_replaced_is_not_lost_sight_of() {
    use Op::{Create, Move};
    let durable = [Create("a"), Create("b"), Create("c")];
    check(
        &durable,
        &[Move("a", "b"), Move("c", "b")],
        &["a", "b", "c"],
    );
}

#[test]
fn a_ring_of_renames_is_there_as_at_one_time() {
    use Op::{Create, Exchange, Move};
    let durable = [Create("a"), Create("b"), Create("c")];
    let ring = [Move("a", "t"), Move("b", "a"), Move("t", "b")];
    check(&durable, &ring, &["a", "b", "t"]);
    let exchanged = [Exchange("a", "b"), Exchange("b", "c"), Exchange("c", "a")];
    check(&durable, &exchanged, &["a", "b", "c"]);
}

#[test]
fn a_whiteout_comes_with_what_it_stands_for() {
    use Op::{Create, Move, Whiteout};
    let durable = [Create("a"), Create("b")];
    let ops = [Whiteout("a", "b"), Move("b", "c")];
    check(&durable, &ops, &["a", "b", "c"]);
    let ops = [Whiteout("a", "b"), Whiteout("b", "c"), Move("a", "c")];
    check(&durable, &ops, &["a", "b", "c"]);
}

#[test]
fn a_name_that_was_given_anew_before_it_moved_brings_what_it_was_before() {
    use Op::{Create, Link, Move, Unlink};
    let durable = [Create("a"), Create("other")];
    let ops = [
        Unlink("a"),
        Link("other", "a"),
        Move("a", "b"),
        Move("b", "c"),
    ];
    let known = ["a", "b", "c"];
    check(&durable, &ops, &known);
}

#[test]
fn a_name_that_is_given_again_after_a_rename_comes_with_that() {
    use Op::{Create, Move};
    let durable = [Create("unused")];
    let again = [Create("log"), Move("log", "log.1"), Create("log")];
    check(&durable, &again, &["log", "log.1"]);
}

#[test]
fn renames_through_a_directory_that_came_and_went_are_tied_still() {
    use Op::{Create, Mkdir, Move, Rmdir, Unlink};
    let durable = [Create("a"), Create("b"), Create("c")];
    let known = ["a", "b", "c"];
    let through = [Move("a", "d/x"), Move("c", "d/x"), Move("d/x", "b")];
    let ops = [&[Mkdir("d")][..], &through, &[Rmdir("d")]].concat();
    check(&durable, &ops, &known);
    let ops = [
        Mkdir("d"),
        Move("a", "d/x"),
        Move("b", "d/x"),
        Unlink("d/x"),
        Rmdir("d"),
    ];
    check(&durable, &ops, &known);
}

#[test]
fn what_was_synced_between_two_renames_stays() {
    use Op::{Create, Fsync, Move};
    let ops = [Move("new", "cfg"), Fsync("cfg"), Move("cfg", "bak")];
    let durable = [Create("cfg"), Create("new")];
    check(&durable, &ops, &["cfg", "new", "bak"]);
}

//! Situations that ACE does not have: scripts of some operations, with a sync of each kind at each
//! position; changes on two threads at once; a nearly full image.

use super::short::base;
use super::{fill_in, s, write, xattr};
use crate::engine::{Engine, Mode};
use crate::engines::{self, ffs};
use crate::op::Op;
use crate::rules::Rules;
use crate::scratch::Device;
use crate::tree::{BLOCK, Flaw};
use crate::workload::Workload;
use block::Random;
use pmem::Domain;
use vfs::{Fallocate, Fsync, RenameMode, Time};

fn held(handle: usize, at: u64, len: usize) -> Op {
    Op::WriteHeld {
        handle,
        at,
        len,
        fill: 0,
    }
}

/// Scripts on the small tree of the short workloads.
fn scripts() -> Vec<Vec<Op>> {
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    let rename = |from: &str, to: &str, mode| Op::Rename(s(from), s(to), mode);
    let mkdir = |path: &str| Op::Mkdir(s(path));
    let create = |path: &str| Op::Create(s(path));
    let unlink = |path: &str| Op::Unlink(s(path));
    let link = |from: &str, to: &str| Op::Link(s(from), s(to));
    vec![
        // Append, sparse, unaligned.
        vec![
            write("foo", None, 100),
            write("foo", Some(70_001), 3000),
            write("foo", Some(4090), 12),
            write("foo", None, 8192),
            write("foo", Some(2 << 20), 10),
        ],
        // Two handles on a file.
        vec![
            Op::Open(s("foo"), 0),
            Op::Open(s("foo"), 1),
            held(0, 0, 5000),
            held(1, 3000, 5000),
            Op::TruncateHeld(0, 4000),
            held(1, 4096, 100),
        ],
        // Unlink while open; a name again.
        vec![
            Op::Open(s("foo"), 0),
            unlink("foo"),
            held(0, 100, 9000),
            Op::TruncateHeld(0, 10),
            Op::Close(0),
            create("foo"),
        ],
        vec![
            Op::Tmpfile(s("A"), 0),
            held(0, 0, 5000),
            Op::LinkHeld(0, s("A/tmp")),
            link("A/tmp", "B/tmp"),
            unlink("A/tmp"),
            Op::Close(0),
        ],
        // Hard links across directories.
        vec![
            link("foo", "A/link"),
            link("A/link", "B/link"),
            unlink("foo"),
            unlink("A/link"),
            link("B/link", "A/C/link"),
            rename("B/link", "foo", Replace),
        ],
        // Renames: over files, a chain of them, EXCHANGE, WHITEOUT, NOREPLACE.
        vec![
            create("t"),
            rename("foo", "t", Replace),
            rename("A/foo", "foo", Replace),
            rename("t", "A/foo", Replace),
            rename("B/baz", "A/foo", Replace),
        ],
        vec![
            rename("foo", "A/foo", Exchange),
            rename("A", "B", Exchange),
            rename("B/foo", "A/baz", Exchange),
            rename("A/baz", "white", Whiteout),
            rename("white", "B/new", NoReplace),
        ],
        // Over empty directories; parents and children.
        vec![
            mkdir("D"),
            rename("A/C", "D", Replace),
            mkdir("A/C"),
            rename("D", "A/C", Replace),
            rename("A/C", "B/C", Replace),
            rename("B", "A/B", Replace),
        ],
        vec![
            rename("A", "B/A", Replace),
            rename("B/A/C", "C", Replace),
            rename("B/A", "C/A", Replace),
            rename("B", "C/A/B", Replace),
            rename("C/A/foo", "foo", Replace),
        ],
        // Moves in turn, below one another.
        vec![
            mkdir("b"),
            rename("A", "b/A", Replace),
            rename("b/A", "A", Replace),
            rename("b", "A/b", Replace),
            rename("A/b", "b", Replace),
        ],
        // Into directories that are not durable.
        vec![
            mkdir("N"),
            mkdir("N/M"),
            rename("foo", "N/M/foo", Replace),
            rename("A/C", "N/C", Replace),
            rename("N/M", "N/C/M", Replace),
            unlink("N/C/M/foo"),
        ],
        // Extended attributes.
        vec![
            xattr("foo", b'a', 20),
            xattr("foo", b'b', 5000),
            xattr("foo", b'a', 3000),
            Op::RemoveXattr(s("foo"), b'b'),
            xattr("A", b'a', 100),
            unlink("foo"),
        ],
        // Truncate, then extend; holes.
        vec![
            Op::Truncate(s("foo"), 100),
            Op::Truncate(s("foo"), 9000),
            write("foo", Some(5000), 100),
            Op::Truncate(s("foo"), 0),
            write("foo", None, 5000),
            Op::Truncate(s("foo"), 4097),
        ],
        vec![
            write("foo", Some(0), 20_000),
            Op::Fallocate(s("foo"), Fallocate::Punch, 4096, 8192),
            Op::Truncate(s("foo"), 6000),
            Op::Fallocate(s("foo"), Fallocate::Zero { keep_size: false }, 5000, 9000),
            Op::Fallocate(
                s("foo"),
                Fallocate::Allocate { keep_size: true },
                16_384,
                9000,
            ),
            write("foo", Some(18_000), 100),
        ],
        // Replacing by rename, as editors do.
        vec![
            create("foo.new"),
            write("foo.new", None, 7000),
            Op::Fsync(s("foo.new"), Fsync::Data),
            rename("foo.new", "foo", Replace),
            create("foo.new"),
            rename("foo.new", "A/foo", Replace),
        ],
        // Names in directories that come and go.
        vec![
            mkdir("N"),
            create("N/x"),
            unlink("N/x"),
            Op::Rmdir(s("N")),
            create("N"),
            Op::Rmdir(s("A/C")),
        ],
        // Directories that go, while what was in them has other names.
        vec![
            mkdir("N"),
            link("B/baz", "N/link"),
            unlink("B/baz"),
            Op::Rmdir(s("B")),
            rename("N/link", "A/link", Replace),
            Op::Rmdir(s("N")),
        ],
        vec![
            rename("B/baz", "A/C/baz", Replace),
            Op::Rmdir(s("B")),
            mkdir("B"),
            rename("A/C/baz", "B/baz", Replace),
            Op::Rmdir(s("A/C")),
        ],
        vec![
            Op::Symlink(s("link"), 4000),
            rename("link", "A/link", Replace),
            Op::Chmod(s("A"), 0o700),
            Op::Chown(s("A/foo"), 7),
            unlink("A/link"),
            Op::Touch(s("A/foo")),
        ],
        // A file loses its names in two directories, of which one is synced: the other name stays.
        vec![
            link("foo", "A/link"),
            Op::Fsync(s("A/link"), Fsync::All),
            unlink("foo"),
            create("t"),
            rename("t", "A/link", Replace),
            Op::Fsync(s("A"), Fsync::All),
        ],
        // A file is moved from a name that it lost and got again.
        vec![
            link("foo", "A/bar"),
            Op::Fsync(s("A/bar"), Fsync::All),
            unlink("A/bar"),
            link("foo", "A/bar"),
            rename("A/bar", "A/C/bar", Replace),
            Op::Fsync(s("A/C/bar"), Fsync::All),
        ],
        // A file is moved, loses that name, and gets it again from elsewhere.
        vec![
            link("foo", "B/link"),
            rename("foo", "A/bar", Replace),
            unlink("A/bar"),
            link("B/link", "A/bar"),
            Op::Fsync(s("A"), Fsync::All),
        ],
        // A name is replaced twice, with another name in between that is synced.
        vec![
            create("a"),
            rename("a", "foo", Replace),
            create("x"),
            create("b"),
            rename("b", "foo", Replace),
            Op::Fsync(s("x"), Fsync::All),
        ],
        // An old name is exchanged with a new one, or gives way to it with a whiteout.
        vec![
            create("t"),
            rename("t", "foo", Exchange),
            Op::Fsync(s("t"), Fsync::All),
        ],
        vec![
            create("t"),
            rename("t", "foo", Whiteout),
            Op::Fsync(s("t"), Fsync::All),
        ],
        // What replaced a name moves on, or is replaced, before anything of it was synced.
        vec![
            create("B/new"),
            rename("B/new", "A/foo", Replace),
            rename("A/foo", "bak", Replace),
            rename("bak", "B/bak", Replace),
        ],
        vec![
            rename("foo", "A/foo", Replace),
            rename("B/baz", "A/foo", Replace),
            unlink("A/foo"),
        ],
        vec![
            rename("foo", "A/foo", Whiteout),
            rename("A/foo", "B/baz", Exchange),
            rename("B/baz", "A/foo", Replace),
            rename("foo", "bar", Replace),
        ],
        // A name is given again each time that a rename has taken it.
        vec![
            create("log"),
            rename("log", "A/log", Replace),
            create("log"),
            rename("A/log", "B/log", Replace),
            rename("log", "A/log", Replace),
            create("log"),
        ],
        // What replaced a name moves on, through a directory that comes and goes meanwhile.
        vec![
            Op::Mkdir(s("d")),
            rename("foo", "d/x", Replace),
            rename("A/foo", "d/x", Replace),
            rename("d/x", "B/baz", Replace),
            Op::Rmdir(s("d")),
        ],
    ]
}

/// Ways to sync at a position: all of it, the last file, its directory, the root, mounting anew.
pub(super) fn sync(kind: u64, last: &Op) -> Op {
    let path = match last {
        Op::Link(_, path) | Op::Rename(_, path, _) | Op::LinkHeld(_, path) => path,
        Op::Write { path, .. } | Op::SetXattr { path, .. } | Op::Create(path) => path,
        Op::SetAcl { path, .. } | Op::Inherit { path, .. } | Op::Mknod(path, _) => path,
        Op::Mkdir(path) | Op::Truncate(path, _) | Op::Fallocate(path, ..) => path,
        _ => "foo",
    };
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    match kind {
        0 => Op::Syncfs,
        1 => Op::Fsync(s(path), Fsync::All),
        2 => Op::Fsync(s(dir), Fsync::All),
        3 => Op::Fsync(s("A"), Fsync::All),
        _ => Op::Remount,
    }
}

/// Kinds of [`sync`].
pub(super) const SYNCS: u64 = 5;
/// Positions in a script; a script that is shorter has some twice.
const POSITIONS: u64 = 6;

/// How many workloads [`script`] has.
pub fn script_count() -> u64 {
    scripts().len() as u64 * POSITIONS * SYNCS
}

/// Number of the workload with this script in this form: the sync's kind times the number of
/// positions, plus its position.
pub fn script_number(script: u64, form: u64) -> u64 {
    script + scripts().len() as u64 * form
}

/// A script with a sync at one position.
pub fn script(number: u64) -> Workload {
    let mut all = scripts();
    let count = all.len() as u64;
    let script = all.swap_remove((number % count) as usize);
    let position = (number / count % POSITIONS) as usize % script.len();
    let sync = sync(number / count / POSITIONS, &script[position]);
    let mut ops = [base(), script].concat();
    ops.insert(base().len() + position + 1, sync);
    ops.push(Op::Syncfs);
    Workload {
        setup: base().len(),
        ..Workload::new(format!("script-{number}"), fill_in(ops))
    }
}

/// Changes that commute, each pair for two threads; some are syncs.
fn pairs() -> Vec<(Op, Op)> {
    let rename = |from: &str, to: &str| Op::Rename(s(from), s(to), RenameMode::Replace);
    let fsync = |path: &str| Op::Fsync(s(path), Fsync::All);
    vec![
        (Op::Create(s("x")), Op::Create(s("A/y"))),
        (Op::Create(s("A/x")), Op::Create(s("A/y"))),
        (Op::Create(s("x")), Op::Syncfs),
        (write("foo", None, 5000), Op::Syncfs),
        (write("foo", None, 5000), fsync("A/foo")),
        (rename("foo", "A/new"), Op::Syncfs),
        (rename("foo", "A/new"), fsync("B/baz")),
        (rename("A/C", "B/C"), rename("foo", "A/foo2")),
        (rename("A/C", "C"), fsync("A/foo")),
        (Op::Link(s("foo"), s("B/link")), fsync("A")),
        (Op::Unlink(s("foo")), fsync("A/foo")),
        (Op::Unlink(s("B/baz")), Op::Syncfs),
        (Op::Unlink(s("foo")), Op::Unlink(s("A/foo"))),
        (fsync("foo"), fsync("A/foo")),
        (fsync("foo"), Op::Syncfs),
        (Op::Syncfs, Op::Syncfs),
        (Op::Truncate(s("foo"), 10), fsync("A")),
        (xattr("foo", b'a', 5000), Op::Syncfs),
    ]
}

/// What is pending when the two begin.
fn pending() -> Vec<Vec<Op>> {
    vec![
        vec![],
        vec![Op::Create(s("A/z")), write("A/foo", None, 3000)],
        vec![
            Op::Chmod(s("foo"), 0o600),
            Op::Link(s("foo"), s("A/link")),
            Op::Mkdir(s("N")),
            Op::Create(s("N/n")),
        ],
    ]
}

/// How many workloads [`both`] has.
pub fn both_count() -> u64 {
    (pairs().len() * pending().len()) as u64
}

/// Two operations on two threads at once. How they interleave is in the trace, and differs from run
/// to run.
pub fn both(number: u64) -> Workload {
    let (mut pairs, mut pending) = (pairs(), pending());
    let pair = number as usize % pairs.len();
    let before = number as usize / pairs.len() % pending.len();
    let (one, other) = pairs.swap_remove(pair);
    let mut ops = base();
    ops.extend(pending.swap_remove(before));
    ops.push(Op::Both(Box::new(one), Box::new(other)));
    ops.extend([Op::Fsync(s("A"), Fsync::All), Op::Syncfs]);
    Workload {
        setup: base().len(),
        ..Workload::new(format!("both-{number}"), fill_in(ops))
    }
}

/// On an image that is full but for a few pages. Its operations are random; most fail for lack of
/// space.
///
/// # Errors
/// The image could not be filled.
pub fn full(number: u64) -> Result<Workload, Flaw> {
    let mut random = Random::new(number ^ 0xf111);
    let engine = engines::usual();
    let empty = engine.empty(1 << 20, Mode::DELAYED);
    let device = Device::of(&empty, Rules::Lines(Domain::Cache));
    let leave = random.below(12);
    fill_up(engine, &device, (64 << 10, BLOCK as usize), leave)?;
    let mut ops = Vec::new();
    for i in 0..60 {
        ops.push(super::random::random_op(&mut random, i));
        if random.below(9) == 0 {
            ops.push(sync(random.below(4), &ops[ops.len() - 1]));
        }
    }
    Ok(Workload {
        start: Some(device.image()),
        ..Workload::new(format!("full-{number}"), ops)
    })
}

/// The same on ext2: what is removed is space again when it is durably gone, so who finds none
/// waits for what is pending. Its operations give up and take some blocks each, so that the disk
/// stays full. The image has an empty journal, for the modes that need one; others leave it alone.
///
/// # Errors
/// The image could not be filled.
pub fn full_of_blocks(number: u64) -> Result<Workload, Flaw> {
    let mut random = Random::new(number ^ 0xf112);
    let engine: &dyn Engine = &ffs::ENGINE;
    let device = Device::of(&engine.empty(192 << 10, ffs::ORDERED), Rules::Sectors);
    let leave = random.below(8);
    fill_up(engine, &device, (64 << 10, 1024), leave)?;
    let mut ops = Vec::new();
    for _ in 0..40 {
        ops.push(give_or_take(&mut random));
        if random.below(12) == 0 {
            ops.push(sync(random.below(4), &ops[ops.len() - 1]));
        }
    }
    Ok(Workload {
        engine: &ffs::ENGINE,
        mode: ffs::SOFT,
        start: Some(device.image()),
        is_full: true,
        ..Workload::new(format!("full-blocks-{number}"), fill_in(ops))
    })
}

/// An operation that gives up some blocks, or takes some, or fails.
fn give_or_take(random: &mut Random) -> Op {
    let files = ["A/foo", "A/x", "B/baz", "B/x", "x"];
    let [file, other] = [(); 2].map(|()| random.pick(&files).to_string());
    let dir = random.pick(&["A/C", "D", "B/D"]).to_string();
    let blocks = 1 + random.below(6);
    let at = 1024 * random.below(40);
    match random.below(16) {
        0 => Op::Create(file),
        1..6 => write(&file, Some(at), 1024 * blocks as usize),
        6 => write("foo", Some(at), 1024 * blocks as usize),
        7 | 8 => Op::Fallocate(s("foo"), Fallocate::Punch, at, 1024 * blocks),
        9..11 => Op::Truncate(file, random.below(3000)),
        11 | 12 => Op::Unlink(file),
        13 => Op::Rename(file, other, RenameMode::Replace),
        14 => Op::Mkdir(dir),
        _ => match random.below(3) {
            0 => Op::Rmdir(dir),
            1 => Op::Symlink(file, 900),
            _ => xattr(&file, b'a', 600),
        },
    }
}

/// Leaves so many blocks of an empty image free, or fewer. A file has the others, by writes of so
/// many bytes, and then fewer, down to those of a block.
fn fill_up(
    engine: &dyn Engine,
    device: &Device,
    (mut len, block): (usize, usize),
    leave: u64,
) -> Result<(), Flaw> {
    // Before the time of the run: numbers of inodes are used again, and generations begin there.
    let mut fs = engine.mount_at(device, Time(1))?;
    for op in base() {
        fs.run(&op).map_err(|e| format!("filling: {op}: {e}"))?;
    }
    while len >= block && fs.free() > leave {
        match fs.run(&write("foo", None, len)) {
            Ok(()) => {}
            Err(e) if e.errno() == vfs::Errno::NOSPC => len /= 2,
            Err(e) => return Err(format!("filling: {e}")),
        }
    }
    fs.unmount().map_err(|e| format!("filling: {e}"))
}

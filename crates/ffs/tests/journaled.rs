//! Crashes in the modes with a journal: what is replayed is a state between two operations, whoever
//! replays it, and has all that was synced.

mod common;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;

use block::record::{Event, Trace};
use block::{Disk, Memory, Random, Recorder};
use common::{Image, TIME, format_options, memory, mount, mount_in, problems};
use ffs::check::check;
use ffs::{Ffs, FormatOptions, Mode, MountError, Node, format};
use vfs::{
    FileSystem, Fsync, Kind, ManualClock, NewKind, NewNode, Place, RenameMode, SetAttr, XattrMode,
};

const FILE: NewNode<'static> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};
const DIR: NewNode<'static> = NewNode {
    kind: NewKind::Dir,
    perm: 0o755,
    ..FILE
};

const MODES: [Mode; 2] = [Mode::Ordered, Mode::Journal];

/// A new file system with the smallest journal.
fn formatted(journal: bool) -> Arc<Memory> {
    let device = Arc::new(Memory::new(3 << 20));
    let options = FormatOptions {
        block_size: 1024,
        bytes_per_inode: 4096,
        journal,
        ..format_options()
    };
    format(&Disk::new(device.clone()), &options).expect("formatted");
    device
}

fn mounted(disk: Disk, mode: Mode) -> Ffs {
    let clock = Arc::new(ManualClock::new(TIME));
    mount_in(disk, false, clock, mode).expect("it mounts")
}

/// What a file holds at an offset: of whom it is, and in which step it was written.
fn byte(ino: u64, step: usize, offset: u64) -> u8 {
    match offset.is_multiple_of(2) {
        true => (ino % 250) as u8 + 1,
        false => step as u8,
    }
}

fn write(fs: &Ffs, node: &Node, step: usize, offset: u64, len: u64) -> vfs::Result<()> {
    let ino = fs.ino(node);
    let bytes = offset..offset + len;
    let bytes: Vec<u8> = bytes.map(|at| byte(ino, step, at)).collect();
    fs.write(node, offset, &bytes).map(drop)
}

/// A name of a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    is_dir: bool,
    links: u32,
    perm: u16,
    size: u64,
    /// What is stored in it, but for contents.
    other: u64,
    contents: u64,
}

/// A tree by path.
type Tree = BTreeMap<Vec<u8>, Entry>;

/// All that there is. In a file nobody finds what is not its own.
fn tree(fs: &Ffs) -> vfs::Result<Tree> {
    let mut found = Tree::new();
    let mut dirs = vec![(fs.root(), Vec::new())];
    while let Some((dir, path)) = dirs.pop() {
        let mut names = Vec::new();
        fs.readdir(&dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        for name in names {
            let node = fs.lookup(&dir, &name)?;
            let path = [&path[..], b"/", &name].concat();
            let attr = fs.attr(&node);
            let mut other = DefaultHasher::new();
            for name in fs.listxattr(&node)? {
                other.write(&name);
                other.write(&fs.getxattr(&node, &name)?);
            }
            let mut hash = DefaultHasher::new();
            match attr.kind {
                Kind::Symlink => other.write(&fs.readlink(&node)?),
                Kind::File => {
                    let mut bytes = vec![0; attr.size as usize];
                    fs.read(&node, 0, &mut bytes)?;
                    let own = byte(fs.ino(&node), 0, 0);
                    let mut evens = bytes.iter().step_by(2);
                    let is_own = evens.all(|&byte| byte == 0 || byte == own);
                    assert!(is_own, "bytes of others in {:?}", path.escape_ascii());
                    hash.write(&bytes);
                }
                _ => {}
            }
            let entry = Entry {
                is_dir: attr.kind == Kind::Dir,
                links: attr.nlink,
                perm: attr.perm,
                size: attr.size,
                other: other.finish(),
                contents: hash.finish(),
            };
            if attr.kind == Kind::Dir {
                dirs.push((node, path.clone()));
            }
            found.insert(path, entry);
        }
    }
    Ok(found)
}

/// Without what is written in place, and so not with the rest.
fn but_contents(mut tree: Tree) -> Tree {
    tree.values_mut().for_each(|entry| entry.contents = 0);
    tree
}

/// A random run: what is recorded, and the trees behind each operation.
struct Run {
    trace: Trace,
    trees: Vec<Tree>,
}

impl Run {
    fn new(mode: Mode, seed: u64, steps: usize) -> Run {
        let recorder = Arc::new(Recorder::new(formatted(true)));
        let fs = mounted(Disk::new(recorder.clone()), mode);
        let mut random = Random::new(seed);
        let mut trees = vec![tree(&fs).expect("it is sound")];
        recorder.mark("synced 0");
        // Removed files among them, which somebody uses.
        let mut open = Vec::new();
        for step in 1..=steps {
            recorder.mark(format!("begun {step}"));
            change(&fs, &mut random, step, &mut open);
            trees.push(tree(&fs).expect("it is sound"));
            let _ = match random.below(20) {
                0 => fs
                    .syncfs()
                    .map(|()| recorder.mark(format!("synced {step}"))),
                1 => fs.fsync(&fs.root(), Fsync::All),
                _ => Ok(()),
            };
        }
        if random.one_in(2) {
            open.clear();
        }
        fs.unmount().expect("unmounted");
        recorder.mark(format!("synced {steps}"));
        let trace = recorder.trace();
        Run { trace, trees }
    }

    /// The trees that a crash at a point may leave.
    fn possible(&self, point: usize) -> std::ops::RangeInclusive<usize> {
        let (mut first, mut last) = (0, 0);
        for event in &self.trace.events[..point] {
            let Event::Mark(text) = event else { continue };
            let (what, step) = text.split_once(' ').expect("two words");
            let step = step.parse().expect("a number");
            match what {
                "synced" => first = step,
                _ => last = step,
            }
        }
        first..=last.max(first)
    }
}

/// A random change. What cannot be done is left undone.
fn change(fs: &Ffs, random: &mut Random, step: usize, open: &mut Vec<Node>) {
    let root = fs.root();
    let mut dirs = vec![root.clone()];
    let mut names = Vec::new();
    let mut seen = 0;
    while let Some(dir) = dirs.get(seen).cloned() {
        seen += 1;
        let mut there = Vec::new();
        let mut list = |entry: vfs::DirEntry<'_>| {
            there.push((entry.name.to_vec(), entry.kind));
            true
        };
        fs.readdir(&dir, 0, &mut list).expect("it is sound");
        // e2fsck makes that one again.
        let others = there.into_iter().filter(|there| there.0 != b"lost+found");
        for (name, kind) in others {
            if kind == Kind::Dir {
                dirs.push(fs.lookup(&dir, &name).expect("it is sound"));
            }
            names.push((dir.clone(), name));
        }
    }
    let dir = &dirs[random.below(dirs.len() as u64) as usize];
    let new = format!("n{step}-{}", "x".repeat(random.below(60) as usize));
    let new = new.as_bytes();
    let no_veto = &|_: &_| Ok(());
    let any = |random: &mut Random| &names[random.below(names.len() as u64) as usize];
    if names.is_empty() {
        fs.create(dir, new, &FILE).expect("made");
        return;
    }
    let (from, old) = any(random);
    let node = fs.lookup(from, old).expect("it was listed");
    let size = match random.below(3) {
        0 => random.below(3_000),
        1 => random.below(30_000),
        _ => random.below(300_000),
    };
    let len = 1 + random.below(20_000);
    if random.one_in(4) {
        open.push(node.clone());
    }
    if random.one_in(12) {
        open.clear();
    }
    let _ = match random.below(15) {
        0 | 1 => fs.create(dir, new, &FILE).map(drop),
        2 if fs.kind(&node) == Kind::File => write(fs, &node, step, size / 8, len),
        3 => fs.create(dir, new, &DIR).map(drop),
        4 => {
            let target = vec![b'l'; 1 + random.below(200) as usize];
            let kind = NewKind::Symlink(&target);
            fs.create(dir, new, &NewNode { kind, ..FILE }).map(drop)
        }
        5 => fs.link(&node, dir, new),
        6 | 7 if fs.kind(&node) == Kind::Dir => fs.rmdir(from, old, no_veto),
        6 | 7 => fs.unlink(from, old, no_veto),
        8 => {
            let (from, to) = (Place::new(from, old), Place::new(dir, new));
            fs.rename(from, to, RenameMode::Replace, no_veto)
        }
        9 => {
            let (dir, name) = any(random);
            let (from, to) = (Place::new(from, old), Place::new(dir, name));
            let modes = [RenameMode::Replace, RenameMode::Exchange];
            fs.rename(from, to, modes[random.below(2) as usize], no_veto)
        }
        10 | 11 if fs.kind(&node) == Kind::File => write(fs, &node, step, size, len),
        12 => {
            let set = SetAttr {
                size: Some(size / 2),
                ..SetAttr::default()
            };
            fs.setattr(&node, &set).map(drop)
        }
        13 => fs.tmpfile(dir, &FILE).and_then(|file| {
            open.push(file.clone());
            write(fs, &file, step, size / 8, len)
        }),
        _ => {
            let value = vec![5; random.below(400) as usize];
            let set = SetAttr::default();
            fs.setxattr(&node, b"user.new", &value, XattrMode::Any, &set)
        }
    };
}

/// Judges what crashes leave of a run: by a replay of ours, and some by one of e2fsck.
fn judge(run: &Run, mode: Mode, seed: u64, limit: usize, every: usize) -> Result<usize, String> {
    let image = Image::new(0);
    let mut random = Random::new(seed);
    let mut judged = 0;
    let seen_as = |tree: Tree| match mode {
        Mode::Journal => tree,
        _ => but_contents(tree),
    };
    let trees: Vec<Tree> = run.trees.iter().cloned().map(seen_as).collect();
    let has = |fs: &Ffs, point| -> Result<(), String> {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tree(fs)));
        let found = found.map_err(|_| "bytes of others".to_owned())?;
        let found = seen_as(found.map_err(|error| error.to_string())?);
        let mut possible = run.possible(point);
        match possible.any(|step| trees[step] == found) {
            true => Ok(()),
            false => {
                let possible = run.possible(point);
                let there = found.iter().collect::<BTreeSet<_>>();
                let last = trees[*possible.end()].iter().collect();
                let differ: Vec<_> = there.symmetric_difference(&last).take(6).collect();
                Err(format!("no state of {possible:?}: {differ:x?}"))
            }
        }
    };
    for point in run.trace.points().into_iter().rev().step_by(every) {
        for token in run.trace.crash(point).states(limit, seed) {
            let at = |what: String| format!("seed {seed}, {mode:?}, state {token}: {what}");
            let bytes = run.trace.replay(token).expect("a state of it");
            judged += 1;
            let fs = mount(memory(bytes.clone()), true).expect("it mounts");
            has(&fs, point).map_err(|what| at(format!("in memory: {what}")))?;
            drop(fs);
            let device = Arc::new(Memory::from_bytes(bytes.clone()));
            let fs = mounted(Disk::new(device.clone()), mode);
            has(&fs, point).map_err(at)?;
            fs.unmount().expect("unmounted");
            drop(fs);
            let report = check(&Disk::new(device.clone()), false, TIME, &|_, _, _| ());
            let report = report.expect("an image");
            if !report.findings.is_empty() {
                return Err(at(report.to_string()));
            }
            if !common::has_e2fsprogs() || !random.one_in(12) {
                continue;
            }
            std::fs::write(&image.path, device.contents()).expect("written");
            let codes = problems(&image);
            if !codes.is_empty() {
                return Err(at(format!("e2fsck, behind ours: {codes:x?}")));
            }
            std::fs::write(&image.path, &bytes).expect("written");
            let path = image.path.to_str().expect("a path");
            common::run("e2fsck", ["-E", "journal_only", "-p", path]);
            let fs = mount(memory(common::read(&image.path)), true).expect("it mounts");
            has(&fs, point).map_err(|what| at(format!("by e2fsck: {what}")))?;
            drop(fs);
            // It frees orphans before it looks, and then has nothing to say.
            let (code, text) = common::e2fsck(&image.path, "-fp");
            let codes = problems(&image);
            let is_right = code.is_some_and(|code| code <= 1) && codes.is_empty();
            if !is_right || text.contains("Inode") && text.contains("FIXED") {
                return Err(at(format!("e2fsck alone: {code:?}, {codes:x?}: {text}")));
            }
            let fs = mount(memory(common::read(&image.path)), true).expect("it mounts");
            has(&fs, point).map_err(|what| at(format!("e2fsck alone: {what}")))?;
        }
    }
    Ok(judged)
}

#[test]
fn a_crash_leaves_a_state_between_operations_and_all_that_was_synced() {
    for mode in MODES {
        for seed in common::seeds(2) {
            let run = Run::new(mode, seed, 60);
            match judge(&run, mode, seed, 6, 1) {
                Ok(judged) => assert!(judged > 50, "{judged}"),
                Err(what) => panic!("{what}: TUREEN_REPLAY={seed}"),
            }
        }
    }
}

/// The log goes round, and what leaves it goes home.
#[test]
fn a_crash_leaves_one_when_the_log_is_full_again_and_again() {
    for mode in MODES {
        for seed in common::seeds(1) {
            let run = Run::new(mode, seed, 400);
            if let Err(what) = judge(&run, mode, seed, 1, 17) {
                panic!("{what}: TUREEN_REPLAY={seed}");
            }
        }
    }
}

/// Of a file without a name that is in use a crash leaves nothing, and nobody has to check.
#[test]
fn files_without_names_are_freed_by_the_next_mount() {
    for mode in MODES {
        let recorder = Arc::new(Recorder::new(formatted(true)));
        let fs = mounted(Disk::new(recorder.clone()), mode);
        let (root, free) = (fs.root(), fs.statfs());
        let made = |name: &[u8]| {
            let file = fs.create(&root, name, &FILE).expect("made");
            write(&fs, &file, 1, 0, 40_000).expect("written");
            file
        };
        let files = [made(b"a"), made(b"b"), made(b"c")];
        let dir = fs.create(&root, b"dir", &DIR).expect("made");
        for name in [b"a", b"b", b"c"] {
            fs.unlink(&root, name, &|_| Ok(())).expect("removed");
        }
        fs.rmdir(&root, b"dir", &|_| Ok(())).expect("removed");
        let [a, b, c] = files;
        // One in the middle of their list goes, and one gets a name again.
        drop(b);
        let tmpfile = fs.tmpfile(&root, &FILE).expect("made");
        fs.syncfs().expect("synced");
        fs.link(&tmpfile, &root, b"named").expect("linked");
        fs.syncfs().expect("synced");
        let trace = recorder.trace();
        let left = trace.crash(trace.events.len());
        let left = left.image(block::record::State::Oldest).expect("a state");
        let again = mounted(memory(left), mode);
        let now = again.statfs();
        assert_eq!((now.free, now.files_free), (free.free, free.files_free - 1));
        again.unmount().expect("unmounted");
        let report = check(again.disk(), false, TIME, &|_, _, _| ()).expect("an image");
        assert!(report.findings.is_empty() && report.was_clean, "{report}");
        drop((a, c, dir));
    }
}

#[test]
fn what_a_mode_with_a_journal_cannot_do_without_is_named() {
    let clock = Arc::new(ManualClock::new(TIME));
    for mode in MODES {
        let disk = Disk::new(formatted(false));
        let error = mount_in(disk.clone(), false, clock.clone(), mode).err();
        assert!(matches!(error, Some(MountError::NoJournal)), "{error:?}");
        assert!(mount_in(disk.clone(), true, clock.clone(), mode).is_ok());
        assert!(mount_in(disk, false, clock.clone(), Mode::Soft).is_ok());
    }
}

/// Modes follow each other on one image.
#[test]
fn an_image_is_mounted_in_one_mode_after_another() {
    let device = formatted(true);
    let modes = [
        Mode::Journal,
        Mode::Soft,
        Mode::Ordered,
        Mode::Sync,
        Mode::Async,
    ];
    for (step, mode) in (1..).zip(modes.into_iter().cycle().take(10)) {
        let fs = mounted(Disk::new(device.clone()), mode);
        let name = format!("file{step}");
        let file = fs.create(&fs.root(), name.as_bytes(), &FILE).expect("made");
        write(&fs, &file, step, 0, 5000).expect("written");
        drop(file);
        if let Some(before) = step.checked_sub(3).filter(|&before| before > 0) {
            let name = format!("file{before}");
            fs.unlink(&fs.root(), name.as_bytes(), &|_| Ok(()))
                .expect("removed");
        }
        fs.unmount().expect("unmounted");
        let report = check(fs.disk(), false, TIME, &|_, _, _| ()).expect("an image");
        assert!(report.findings.is_empty() && report.was_clean, "{report}");
    }
}

/// Damage that a wave of the log must not meet: two writes of one block.
#[test]
fn a_file_that_has_blocks_of_the_journal_is_an_error_when_it_is_written() {
    needs_e2fsprogs!();
    for mode in MODES {
        let device = formatted(true);
        let fs = mounted(Disk::new(device.clone()), mode);
        let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
        fs.write(&file, 0, &[1; 1024]).expect("written");
        fs.unmount().expect("unmounted");
        let places = ffs::journal_places(&Disk::new(device.clone())).expect("there is one");
        let block = places[0].start / 1024 + 3;
        let image = Image::new(0);
        std::fs::write(&image.path, device.contents()).expect("written");
        let command = format!("sif file block[0] {block}");
        let path = image.path.to_str().expect("a path");
        common::run("debugfs", ["-w", "-R", &command, path]);
        let fs = mounted(memory(common::read(&image.path)), mode);
        let file = fs.lookup(&fs.root(), b"file").expect("it is there");
        let written = fs.write(&file, 0, &[2; 1024]).map(drop);
        let error = written.and_then(|()| fs.syncfs()).expect_err("damage");
        let what = format!("block {block}: ");
        assert!(error.to_string().contains(&what), "{error}");
    }
}

/// The transaction that freed the block would have had it as data, too.
#[test]
fn a_block_of_two_files_is_an_error_when_one_frees_it() {
    needs_e2fsprogs!();
    for mode in MODES {
        let device = formatted(true);
        let fs = mounted(Disk::new(device.clone()), mode);
        for name in ["a", "b"] {
            let file = fs.create(&fs.root(), name.as_bytes(), &FILE).expect("made");
            fs.write(&file, 0, &[1; 1024]).expect("written");
        }
        fs.unmount().expect("unmounted");
        let image = Image::new(0);
        std::fs::write(&image.path, device.contents()).expect("written");
        let path = image.path.to_str().expect("a path");
        let block = common::run("debugfs", ["-R", "bmap a 0", path]);
        let block = block.trim();
        let command = format!("sif b block[0] {block}");
        common::run("debugfs", ["-w", "-R", &command, path]);
        let fs = mounted(memory(common::read(&image.path)), mode);
        fs.unlink(&fs.root(), b"a", &|_| Ok(())).expect("removed");
        let file = fs.lookup(&fs.root(), b"b").expect("it is there");
        let written = fs.write(&file, 0, &[2; 1024]).map(drop);
        let error = written.and_then(|()| fs.syncfs()).expect_err("damage");
        let what = format!("block {block}: ");
        assert!(error.to_string().contains(&what), "{error}");
    }
}

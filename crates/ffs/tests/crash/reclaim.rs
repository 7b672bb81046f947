//! A mount behind a crash serves at once, and finds what was lost while it is in use.
//!
//! Each life begins with a state that a crash left. Two mounts of it are changed in the same way:
//! one whose reclaim takes its steps in between, at random, and one whose reclaim ended before the
//! first change. In the end they are to have the same tree, and e2fsck nothing to say. In between
//! there are further crashes.

use super::*;
use ffs::ReclaimProgress;
use vfs::{Errno, SetAttr};

/// A change, by paths.
#[derive(Debug, Clone)]
enum Op {
    Create(Vec<u8>),
    Mkdir(Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Unlink(Vec<u8>),
    Rmdir(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>),
    Write(Vec<u8>, u64, Vec<u8>),
    Truncate(Vec<u8>, u64),
    Sync,
}

/// The directory of a path, and the last name.
fn place(fs: &Ffs, path: &[u8]) -> vfs::Result<(Node, Vec<u8>)> {
    let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    let last = names.pop().expect("a name");
    let walk = |dir: Node, name: &&[u8]| fs.lookup(&dir, name);
    let dir = names.iter().try_fold(fs.root(), walk)?;
    Ok((dir, last.to_vec()))
}

fn node(fs: &Ffs, path: &[u8]) -> vfs::Result<Node> {
    let (dir, name) = place(fs, path)?;
    fs.lookup(&dir, &name)
}

impl Op {
    fn apply(&self, fs: &Ffs) -> Result<(), Errno> {
        let no_veto = &|_: &_| Ok(());
        let done = || match self {
            Op::Create(path) => {
                let (dir, name) = place(fs, path)?;
                fs.create(&dir, &name, &FILE).map(drop)
            }
            Op::Mkdir(path) => {
                let (dir, name) = place(fs, path)?;
                fs.create(&dir, &name, &DIR).map(drop)
            }
            Op::Link(path, new) => {
                let (dir, name) = place(fs, new)?;
                fs.link(&node(fs, path)?, &dir, &name)
            }
            Op::Unlink(path) => {
                let (dir, name) = place(fs, path)?;
                fs.unlink(&dir, &name, no_veto)
            }
            Op::Rmdir(path) => {
                let (dir, name) = place(fs, path)?;
                fs.rmdir(&dir, &name, no_veto)
            }
            Op::Rename(path, new) => {
                let (dir, name) = place(fs, path)?;
                let (to, new) = place(fs, new)?;
                let (from, to) = (Place::new(&dir, &name), Place::new(&to, &new));
                fs.rename(from, to, RenameMode::Replace, no_veto)
            }
            Op::Write(path, at, data) => fs.write(&node(fs, path)?, *at, data).map(drop),
            Op::Truncate(path, size) => {
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                fs.setattr(&node(fs, path)?, &set).map(drop)
            }
            Op::Sync => fs.syncfs(),
        };
        done().map_err(|error: vfs::Error| error.errno())
    }
}

/// All paths: kind, count of names, and contents.
type Tree = BTreeMap<Vec<u8>, (Kind, u64, Vec<u8>)>;

fn dump(fs: &Ffs) -> Tree {
    let (mut all, mut dirs) = (Tree::new(), vec![(fs.root(), Vec::new())]);
    while let Some((dir, path)) = dirs.pop() {
        let mut names = Vec::new();
        let listed = fs.readdir(&dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
        listed.expect("it is sound");
        for name in names {
            let node = fs.lookup(&dir, &name).expect("it was listed");
            let at = [&path[..], &name].concat();
            let attr = fs.attr(&node);
            let mut contents = vec![0; attr.size as usize];
            if fs.kind(&node) == Kind::File {
                fs.read(&node, 0, &mut contents).expect("it can be read");
            }
            if fs.kind(&node) == Kind::Dir {
                contents.clear();
                dirs.push((node.clone(), [&at[..], b"/"].concat()));
            }
            all.insert(at, (fs.kind(&node), attr.nlink.into(), contents));
        }
    }
    all
}

/// Demands that two trees are the same.
#[track_caller]
fn assert_same(one: &Tree, other: &Tree) {
    let paths: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    for path in paths {
        let [a, b] = [one, other].map(|tree| tree.get(path).map(|it| (it.0, it.1, it.2.len())));
        let path = path.escape_ascii();
        assert_eq!(a, b, "{path}");
    }
    let mut both = one.iter().zip(other.values());
    let differs = both.find(|((_, one), other)| one.2 != other.2);
    if let Some(((path, one), other)) = differs {
        let at = one.2.iter().zip(&other.2).position(|(a, b)| a != b);
        panic!("{}: contents at {at:?}", path.escape_ascii());
    }
}

/// A change that makes sense for a tree.
fn op(tree: &Tree, random: &mut Random, step: usize) -> Op {
    let of = |is: &dyn Fn(Kind) -> bool| {
        let found = tree.iter().filter(|(_, it)| is(it.0));
        found.map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    let (dirs, files) = (of(&|kind| kind == Kind::Dir), of(&|kind| kind != Kind::Dir));
    let regular = of(&|kind| kind == Kind::File);
    let any = |random: &mut Random, of: &[Vec<u8>]| match of.len() as u64 {
        0 => b"none".to_vec(),
        len => of[random.below(len) as usize].clone(),
    };
    let new = match random.below(3) {
        0 => format!("new{step}").into_bytes(),
        _ => [any(random, &dirs), format!("/new{step}").into_bytes()].concat(),
    };
    let size = match random.below(3) {
        0 => random.below(3_000),
        1 => random.below(30_000),
        _ => random.below(300_000),
    };
    match random.below(14) {
        0 | 1 => Op::Create(new),
        2 => Op::Mkdir(new),
        3 => Op::Link(any(random, &files), new),
        4 | 5 => Op::Unlink(any(random, &files)),
        6 => Op::Rmdir(any(random, &dirs)),
        7 => Op::Rename(any(random, &files), new),
        8 => Op::Rename(any(random, &dirs), new),
        9 => Op::Rename(any(random, &dirs), any(random, &dirs)),
        10 | 11 => {
            let len = 1 + random.below(5_000) as usize;
            Op::Write(any(random, &regular), size, vec![step as u8 + 1; len])
        }
        12 => Op::Truncate(any(random, &regular), size),
        _ => Op::Sync,
    }
}

/// What all lives together have met.
#[derive(Default)]
struct Met {
    lives: usize,
    deltas: u64,
    crashes_within: usize,
    ended_within: usize,
}

/// A mount of a state behind a crash, whose writes are recorded.
fn mounted(bytes: Vec<u8>) -> (Ffs, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(Arc::new(Memory::from_bytes(bytes))));
    let clock = Arc::new(ManualClock::new(TIME));
    let fs = mount_in(Disk::new(recorder.clone()), false, clock, Mode::Soft);
    (fs.expect("it mounts at once"), recorder)
}

/// A life, up to the next crash (the state that it left) or its end (`None`).
fn live(
    bytes: Vec<u8>,
    random: &mut Random,
    image: &Image,
    met: &mut Met,
    is_last: bool,
) -> Option<Vec<u8>> {
    let (fs, recorder) = mounted(bytes.clone());
    let twin = mounted(bytes).0;
    while twin.reclaim_step().expect("a step") {}
    met.lives += 1;
    met.deltas += twin.status().reclaim.deltas;
    let eager = random.below(3);
    for step in 0..20 {
        let op = op(&dump(&twin), random, step);
        let (here, there) = (op.apply(&fs), op.apply(&twin));
        assert_eq!(here, there, "{op:?}");
        for _ in 0..eager * random.below(4) {
            met.ended_within += usize::from(fs.is_reclaiming());
            fs.reclaim_step().expect("a step");
        }
    }
    if !is_last {
        met.crashes_within += usize::from(fs.is_reclaiming());
        let trace = recorder.trace();
        let points = trace.points();
        let point = points[random.below(points.len() as u64) as usize];
        let states = trace.crash(point).states(3, random.below(u64::MAX));
        let token = states[random.below(states.len() as u64) as usize];
        let left = trace.replay(token).expect("a state of it");
        std::fs::write(&image.path, &left).expect("written");
        let codes = problems(image);
        let bad = codes.iter().find(|&&code| !is_harmless(code));
        assert!(bad.is_none(), "a crash of the reclaim leaves {codes:x?}");
        return Some(left);
    }
    while fs.reclaim_step().expect("a step") {}
    assert_eq!(fs.status().reclaim.stage, "");
    assert_same(&dump(&fs), &dump(&twin));
    for (fs, is_twin) in [(&fs, false), (&twin, true)] {
        fs.unmount().expect("unmounted");
        let status = fs.status();
        let bytes = read_all(fs.disk());
        std::fs::write(&image.path, &bytes).expect("written");
        let codes = problems(image);
        assert!(codes.is_empty(), "twin: {is_twin}: {codes:x?}");
        let report = check(&memory(bytes), false, TIME, &|_, _, _| ()).expect("an image");
        assert!(report.was_clean && report.findings.is_empty(), "{report}");
        assert_eq!(report.blocks_free * 1024, status.bytes_free);
    }
    None
}

fn read_all(disk: &Disk) -> Vec<u8> {
    let into = vec![block::Buffer::zeroed(disk.len() as usize)];
    disk.read(0, into).expect("read")[0].to_vec()
}

#[test]
fn what_a_crash_lost_is_found_while_in_use() {
    needs_e2fsprogs!();
    let (image, mut met) = (Image::new(0), Met::default());
    for seed in common::seeds(2) {
        println!("TUREEN_REPLAY={seed}");
        let trace = run(Mode::Soft, seed, &MOVES[..1]);
        let mut random = Random::new(seed);
        for point in trace.points() {
            let token = trace.crash(point).states(3, random.below(u64::MAX));
            let token = token[random.below(token.len() as u64) as usize];
            println!("state {token}");
            let mut left = Some(trace.replay(token).expect("a state of it"));
            let lives = 1 + random.below(3);
            for life in 1..=lives {
                let bytes = left.take().expect("a life ends with a crash");
                if ffs::inspect(&memory(bytes.clone()))
                    .expect("an image")
                    .clean
                {
                    break;
                }
                left = live(bytes, &mut random, &image, &mut met, life == lives);
            }
        }
    }
    let is_much = met.lives > 30 && met.deltas > 50 && met.crashes_within > 5;
    assert!(
        is_much && met.ended_within > 5,
        "{} lives, {} deltas, {} crashes within a reclaim",
        met.lives,
        met.deltas,
        met.crashes_within
    );
}

/// A state of a run that needs mending.
fn some_loss() -> Vec<u8> {
    let trace = run(Mode::Soft, 1, &MOVES[..1]);
    let points = trace.points().into_iter();
    let states = points.flat_map(|point| trace.crash(point).states(4, 1));
    let mut states = states.map(|token| trace.replay(token).expect("a state of it"));
    let lost = |bytes: &Vec<u8>| {
        let report = check(&memory(bytes.clone()), false, TIME, &|_, _, _| ()).expect("an image");
        let of = |problem| report.findings.iter().any(|found| found.problem == problem);
        !report.was_clean && of(Problem::Interrupted) && of(Problem::BlockBitmap)
    };
    states.find(lost).expect("a loss")
}

/// And the judge would notice if it were.
#[test]
fn who_is_unmounted_before_all_was_found_is_not_clean() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    let (fs, _) = mounted(some_loss());
    assert!(fs.is_reclaiming() && fs.reclaim_step().expect("a step"));
    assert_ne!(fs.status().reclaim, ReclaimProgress::default());
    fs.unmount().expect("unmounted");
    assert_eq!(fs.reclaim_step(), Ok(false), "nothing is done after that");
    let bytes = read_all(fs.disk());
    std::fs::write(&image.path, &bytes).expect("written");
    assert!(
        !ffs::inspect(&memory(bytes.clone()))
            .expect("an image")
            .clean
    );
    assert!(!problems(&image).is_empty(), "something was lost");
    // The next mount begins again.
    let (fs, _) = mounted(bytes);
    while fs.reclaim_step().expect("a step") {}
    fs.unmount().expect("unmounted");
    std::fs::write(&image.path, read_all(fs.disk())).expect("written");
    assert!(problems(&image).is_empty());
}

/// A directory is moved over another one, with a whiteout: where a crash leaves both of its names
/// the reclaim gives the old one to the whiteout.
#[test]
fn the_old_name_of_a_directory_that_was_moved_goes_to_its_whiteout() {
    let no_veto = &|_: &_| Ok(());
    let (fs, recorder) = recorded(Mode::Soft);
    let root = fs.root();
    for name in [b"a", b"b"] {
        fs.create(&root, name, &DIR).expect("made");
    }
    fs.syncfs().expect("synced");
    let first = recorder.trace().events.len();
    let (from, to) = (Place::new(&root, b"a"), Place::new(&root, b"b"));
    let moved = fs.rename(from, to, RenameMode::Whiteout, no_veto);
    moved.expect("moved");
    fs.unmount().expect("unmounted");
    let trace = recorder.trace();
    let points = trace.points().into_iter().filter(|&point| point > first);
    let states = points.flat_map(|point| trace.crash(point).states(8, 1));
    let mut given = 0;
    for token in states {
        let bytes = trace.replay(token).expect("a state of it");
        if ffs::inspect(&memory(bytes.clone()))
            .expect("an image")
            .clean
        {
            continue;
        }
        let (fs, _) = mounted(bytes);
        let lookup = |name: &[u8]| fs.lookup(&fs.root(), name).expect("it is there");
        let has_two_names = fs.ino(&lookup(b"a")) == fs.ino(&lookup(b"b"));
        while fs.reclaim_step().expect("a step") {}
        let kinds = [b"a", b"b"].map(|name| fs.kind(&lookup(name)));
        assert_eq!(kinds[1], Kind::Dir);
        if has_two_names {
            assert_eq!(kinds[0], Kind::CharDev);
            assert_eq!(fs.attr(&lookup(b"a")).nlink, 1);
            given += 1;
        }
        fs.unmount().expect("unmounted");
        let bytes = read_all(fs.disk());
        let report = check(&memory(bytes), false, TIME, &|_, _, _| ()).expect("an image");
        assert!(report.was_clean && report.findings.is_empty(), "{report}");
    }
    assert!(given > 0, "no state has both names");
}

/// A directory replaces another one. Where a crash leaves both of its names, and the old `..`, it
/// keeps the new name all the same: what is above that is not moved into it, although its `..`
/// leads elsewhere.
#[test]
fn what_is_above_the_name_that_a_directory_keeps_is_not_moved_into_it() {
    let (fs, recorder) = recorded(Mode::Soft);
    for path in ["from", "from/moved", "above", "above/to", "above/to/old"] {
        Op::Mkdir(path.into()).apply(&fs).expect("made");
    }
    fs.syncfs().expect("synced");
    let first = recorder.trace().events.len();
    let moved = Op::Rename("from/moved".into(), "above/to/old".into());
    moved.apply(&fs).expect("moved");
    fs.unmount().expect("unmounted");
    let trace = recorder.trace();
    let points = trace.points().into_iter().filter(|&point| point > first);
    let states = points.flat_map(|point| trace.crash(point).states(8, 1));
    let mut met = 0;
    for token in states {
        let bytes = trace.replay(token).expect("a state of it");
        if !mounts_at_once(&memory(bytes.clone())).expect("an image") {
            continue;
        }
        let (fs, twin) = (mounted(bytes.clone()).0, mounted(bytes).0);
        while twin.reclaim_step().expect("a step") {}
        let from = node(&fs, b"from").expect("it is there");
        let new = node(&fs, b"above/to/old").expect("it is there");
        let has_two_names = node(&fs, b"from/moved").is_ok_and(|old| fs.ino(&old) == fs.ino(&new));
        let says_old = fs
            .parent(&new)
            .is_ok_and(|parent| fs.ino(&parent) == fs.ino(&from));
        met += u32::from(has_two_names && says_old);
        let below = Op::Rename("above".into(), "above/to/old/above".into());
        assert_eq!(below.apply(&fs), Err(Errno::INVAL), "state {token}");
        while fs.reclaim_step().expect("a step") {}
        assert_same(&dump(&fs), &dump(&twin));
        fs.unmount().expect("unmounted");
        let report = check(&memory(read_all(fs.disk())), false, TIME, &|_, _, _| ());
        let report = report.expect("an image");
        assert!(report.was_clean && report.findings.is_empty(), "{report}");
    }
    assert!(met > 0, "no state has both names and the old parent");
}

/// Old contents are kept for the scan only as long as there is room: then it is done at once.
#[test]
fn what_is_kept_for_the_scan_is_bounded() {
    let (fs, _) = mounted(some_loss());
    let file = fs.create(&fs.root(), b"big", &FILE).expect("made");
    let mut rounds = 0;
    while fs.status().reclaim.stage != "repairs" {
        // Blocks of pointers and of data, again and again freed and taken.
        fs.write(&file, 0, &vec![1; 700_000]).expect("written");
        fs.syncfs().expect("synced");
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(&file, &set).expect("cut");
        fs.syncfs().expect("synced");
        rounds += 1;
        assert!(rounds < 100, "nobody scans");
        if fs.status().reclaim.stage == "maps" {
            break;
        }
    }
    while fs.reclaim_step().expect("a step") {}
    fs.unmount().expect("unmounted");
    let report = check(&memory(read_all(fs.disk())), false, TIME, &|_, _, _| ());
    assert_eq!(report.expect("an image").exit_code(), 0);
}

/// A snapshot waits for the end: it has nothing that a crash left.
#[test]
fn a_snapshot_is_made_when_all_was_found() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    let (fs, _) = mounted(some_loss());
    assert!(fs.reclaim_step().expect("a step") && fs.is_reclaiming());
    fs.create_snapshot("one", false).expect("made");
    assert!(!fs.is_reclaiming());
    let snapshot = read_all(&fs.snapshot_disk("one").expect("there is one"));
    std::fs::write(&image.path, snapshot).expect("written");
    image.assert_clean();
    fs.unmount().expect("unmounted");
    std::fs::write(&image.path, read_all(fs.disk())).expect("written");
    image.assert_clean();
}

/// Of a state that no crash in mode soft leaves nothing is changed any more.
#[test]
fn what_no_crash_leaves_ends_all_changes() {
    let mut bytes = some_loss();
    // All bits of blocks are clear.
    let descriptor = &bytes[2048..2052];
    let bitmap = u32::from_le_bytes(descriptor.try_into().expect("four bytes")) as usize;
    bytes[bitmap * 1024..][..256].fill(0);
    let (fs, _) = mounted(bytes);
    let ended = std::iter::repeat_with(|| fs.reclaim_step()).find(|step| *step != Ok(true));
    assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    let made = fs.create(&fs.root(), b"late", &FILE).map(drop);
    assert_eq!(made, Err(Errno::ROFS.into()));
    assert!(fs.status().failed.is_some());
    fs.unmount().expect("unmounted");
    let report = check(&memory(read_all(fs.disk())), false, TIME, &|_, _, _| ());
    assert!(!report.expect("an image").was_clean);
    let disk = memory(read_all(fs.disk()));
    let again = mount(disk, false).map(drop);
    assert_eq!(again, Err(ffs::MountError::NotClean));
}

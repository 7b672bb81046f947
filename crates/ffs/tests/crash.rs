//! Crashes: what the disk may hold after each flush of random runs, judged by e2fsck and by a walk.

mod changes;
mod common;
#[path = "crash/foreign.rs"]
mod foreign;
#[path = "crash/reclaim.rs"]
mod reclaim;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use block::record::{State, Trace};
use block::{Disk, Memory, Random, Recorder};
use cache::{Cache, CreateOptions};
use changes::{DIR, FILE, MOVES, change, tree};
use common::{Image, TIME, format_options, memory, mount, mount_in, problems};
use e2fsprogs::is_harmless;
use ffs::check::{Problem, check};
use ffs::{Ext2Binding, Ffs, FormatOptions, Mode, Node, format, mounts_at_once};
use pmem::Pool;
use vfs::{FileSystem, Fsync, Kind, ManualClock, Place, RenameMode};

/// A new file system.
fn formatted() -> Arc<Memory> {
    let device = Arc::new(Memory::new(2 << 20));
    let options = FormatOptions {
        block_size: 1024,
        bytes_per_inode: 4096,
        ..format_options()
    };
    format(&Disk::new(device.clone()), &options).expect("formatted");
    device
}

/// One whose writes are recorded.
fn recorded(mode: Mode) -> (Ffs, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(formatted()));
    let clock = Arc::new(ManualClock::new(TIME));
    let fs = mount_in(Disk::new(recorder.clone()), false, clock, mode).expect("it mounts");
    (fs, recorder)
}

/// A random run, with rounds in between.
fn run(mode: Mode, seed: u64, moves: &[RenameMode]) -> Trace {
    let (fs, recorder) = recorded(mode);
    let mut random = Random::new(seed);
    for step in 0..60 {
        change(&fs, &mut random, step, moves);
        if random.one_in(12) {
            fs.syncfs().expect("synced");
        }
    }
    fs.unmount().expect("unmounted");
    recorder.trace()
}

/// What e2fsck has to say against states of a run: the first that is not harmless, or that has
/// names which lead nowhere.
fn judge(mode: Mode, seed: u64, limit: usize) -> Result<usize, String> {
    judge_trace(&run(mode, seed, MOVES), seed, limit)
}

/// The same, of a run that was recorded.
fn judge_trace(trace: &Trace, seed: u64, limit: usize) -> Result<usize, String> {
    let image = Image::new(0);
    let (mut judged, mut seen) = (0, BTreeSet::new());
    for point in trace.points() {
        for token in trace.crash(point).states(limit, seed) {
            let bytes = trace.replay(token).expect("a state of it");
            std::fs::write(&image.path, &bytes).expect("written");
            let codes = problems(&image);
            seen.extend(codes.iter().copied());
            judged += 1;
            if let Some(code) = codes.iter().find(|&&code| !is_harmless(code)) {
                return Err(format!("seed {seed}, state {token}: {code:#08x}"));
            }
            if let Some(what) = low_count(bytes) {
                return Err(format!("seed {seed}, state {token}: {what}"));
            }
        }
    }
    match problems_at_end(trace, &image) {
        codes if codes.is_empty() => Ok(judged),
        codes => Err(format!("seed {seed}: unmounted, and {codes:x?}")),
    }
}

/// A link count that is too low: e2fsck has the same code for one that is too high.
fn low_count(bytes: Vec<u8>) -> Option<String> {
    let report = check(&memory(bytes), false, TIME, &|_, _, _| ()).expect("an image");
    let counts = report.findings.into_iter();
    let counts = counts.filter(|finding| finding.problem == Problem::LinkCount);
    let mut details = counts.map(|finding| finding.detail);
    details.find(|detail| {
        let numbers = detail.split([' ', ',']);
        let numbers = numbers.filter_map(|word| word.parse::<u32>().ok());
        let [_, names, links] = numbers.collect::<Vec<_>>()[..] else {
            panic!("three numbers: {detail}");
        };
        links < names
    })
}

fn problems_at_end(trace: &Trace, image: &Image) -> BTreeSet<u32> {
    let end = trace.crash(trace.events.len()).image(State::Oldest);
    std::fs::write(&image.path, end.expect("a state")).expect("written");
    problems(image)
}

#[test]
fn a_crash_leaves_only_what_is_harmless() {
    needs_e2fsprogs!();
    for seed in common::seeds(6) {
        if let Err(what) = judge(Mode::Soft, seed, 5) {
            panic!("{what}: TUREEN_REPLAY={seed}");
        }
    }
}

#[test]
fn a_directory_that_was_growing_beyond_its_direct_blocks_is_whole_and_goes_on_growing() {
    let (fs, recorder) = recorded(Mode::Soft);
    // Two names in a block.
    let add = |fs: &Ffs, number: u32| {
        let name = format!("{number:0>250}");
        fs.create(&fs.root(), name.as_bytes(), &FILE).expect("made");
    };
    for number in 0..60 {
        add(&fs, number);
        if number % 3 == 0 {
            fs.syncfs().expect("synced");
        }
    }
    fs.unmount().expect("unmounted");
    let trace = recorder.trace();
    let mut left_behind = 0;
    for point in trace.points() {
        for token in trace.crash(point).states(5, 1) {
            let state = || memory(trace.replay(token).expect("a state of it"));
            let checked = |disk: &Disk| {
                let report = check(disk, true, TIME, &|_, _, _| ()).expect("an image");
                assert!(report.exit_code() <= 1, "{token}: {report}");
                report
            };
            let disk = state();
            let findings = checked(&disk).findings.into_iter();
            let is_size = |problem| problem == Problem::Size;
            left_behind += findings.filter(|one| is_size(one.problem)).count();
            assert!(checked(&disk).findings.is_empty(), "{token}");
            // In use: the directory grows before what was left is found, and behind that.
            let disk = state();
            if !mounts_at_once(&disk).expect("an image") {
                continue;
            }
            let clock = Arc::new(ManualClock::new(TIME));
            let fs = mount_in(disk, false, clock, Mode::Soft).expect("it mounts");
            (100..100 + point as u32 % 4).for_each(|number| add(&fs, number));
            while fs.reclaim_step().expect("a step") {}
            (200..204).for_each(|number| add(&fs, number));
            fs.unmount().expect("unmounted");
            assert!(checked(fs.disk()).findings.is_empty(), "{token}");
        }
    }
    assert!(left_behind > 0, "some state has a block behind the end");
}

/// A crash had left in the last block of a file what was being written behind its end. A write that
/// made the file longer there showed that when its own bytes were not there yet.
#[test]
fn what_a_crash_left_in_the_last_block_is_gone_before_the_file_grows() {
    let device = formatted();
    let mounted = |disk: Disk| {
        let clock = Arc::new(ManualClock::new(TIME));
        mount_in(disk, false, clock, Mode::Soft).expect("it mounts")
    };
    let fs = mounted(Disk::new(device.clone()));
    let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
    fs.write(&file, 0, &[7; 100]).expect("written");
    fs.unmount().expect("unmounted");
    drop((fs, file));
    let mut bytes = device.contents();
    let at = bytes.windows(100).position(|bytes| bytes == [7; 100]);
    let end = at.expect("it is there") + 100;
    bytes[end..end + 412].fill(9);

    let recorder = Arc::new(Recorder::new(Arc::new(Memory::from_bytes(bytes))));
    let fs = mounted(Disk::new(recorder.clone()));
    let file = fs.lookup(&fs.root(), b"file").expect("there");
    fs.write(&file, 10, &[8; 300]).expect("written");
    fs.fsync(&file, Fsync::All).expect("synced");
    drop((fs, file));
    let (trace, mut sizes) = (recorder.trace(), BTreeSet::new());
    for point in trace.points() {
        for token in trace.crash(point).states(32, 0) {
            let left = mount(memory(trace.replay(token).expect("a state")), true);
            let left = left.expect("it mounts");
            let file = left.lookup(&left.root(), b"file").expect("there");
            let mut held = vec![0; left.attr(&file).size as usize];
            left.read(&file, 0, &mut held).expect("read");
            assert!(!held.contains(&9), "state {token}");
            sizes.insert(held.len());
        }
    }
    assert_eq!(sizes, BTreeSet::from([100, 310]));
}

/// A mount through a cache far smaller than what it may hold, and the two media.
struct Behind {
    fs: Ffs,
    pool: Arc<Pool>,
    device: Arc<Memory>,
}

impl Behind {
    fn new(kind: cache::Kind) -> Behind {
        let device = formatted();
        let pool = Pool::anonymous(800 << 10, &pmem::Options::default()).expect("memory");
        let pool = Arc::new(pool);
        let how = CreateOptions {
            kind,
            uuid: [3; 16],
            unit: 64,
            metadata: 64 << 10,
        };
        let disk = Disk::new(device.clone());
        let cache = Cache::create(pool.clone(), disk, Arc::new(Ext2Binding), &how);
        let cache = Arc::new(cache.expect("it fits"));
        let clock = Arc::new(ManualClock::new(TIME));
        let how = common::mount_options(false, Mode::Soft);
        let fs = Ffs::mount_cached(&cache, clock, how).expect("it mounts");
        Behind { fs, pool, device }
    }

    /// What the disk has when a crash is over and another cache has given it what there is.
    fn crashed(&self) -> Arc<Memory> {
        let memory = Pool::from_bytes(&self.pool.snapshot(), &pmem::Options::default());
        let left = Arc::new(Memory::from_bytes(self.device.contents()));
        let disk = Disk::new(left.clone());
        let memory = Arc::new(memory.expect("memory"));
        let cache = Cache::open(memory, disk, Arc::new(Ext2Binding)).expect("it recovers");
        cache.flush().expect("written");
        left
    }
}

/// What e2fsck says of it.
fn problems_of(left: &Memory, image: &Image) -> BTreeSet<u32> {
    std::fs::write(&image.path, left.contents()).expect("written");
    problems(image)
}

fn is_clean(left: &Arc<Memory>) -> bool {
    let info = ffs::inspect(&Disk::new(left.clone()));
    info.expect("an image").clean
}

/// Nobody has to check it: not e2fsck, nor the next mount.
#[test]
fn behind_a_cache_a_crash_leaves_all_or_nothing() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    for seed in common::seeds(8) {
        let kind = [cache::Kind::Spindle, cache::Kind::Tinca][seed as usize % 2];
        let behind = Behind::new(kind);
        let mut random = Random::new(seed);
        for step in 0..80 {
            change(&behind.fs, &mut random, step, MOVES);
            if random.one_in(4) {
                behind.fs.syncfs().expect("synced");
            }
            let left = behind.crashed();
            let codes = problems_of(&left, &image);
            let is_right = codes.is_empty() && is_clean(&left);
            assert!(is_right, "TUREEN_REPLAY={seed}, step {step}: {codes:x?}");
        }
    }
}

/// However many write at once, what they have changed fits a transaction.
#[test]
fn behind_a_small_cache_many_may_write_at_once() {
    let behind = Behind::new(cache::Kind::Spindle);
    let fs = &behind.fs;
    std::thread::scope(|scope| {
        for thread in 0..12_u8 {
            scope.spawn(move || {
                let name = [b'a' + thread];
                let file = fs.create(&fs.root(), &name, &FILE).expect("made");
                for round in 0..20 {
                    let data = vec![thread + round; 60_000];
                    assert_eq!(fs.write(&file, 0, &data), Ok(data.len()));
                    if round % 4 == 0 {
                        fs.fsync(&file, Fsync::All).expect("synced");
                    }
                }
            });
        }
    });
    fs.unmount().expect("unmounted");
}

/// What is shut down makes nothing durable any more.
#[test]
fn behind_a_cache_nothing_is_durable_after_a_shutdown() {
    let behind = Behind::new(cache::Kind::Spindle);
    let (fs, root) = (&behind.fs, behind.fs.root());
    fs.create(&root, b"before", &FILE).expect("made");
    fs.syncfs().expect("synced");
    fs.create(&root, b"after", &FILE).expect("made");
    fs.disk().stop();
    assert!(fs.syncfs().is_err());
    let left = mount(memory(behind.crashed().contents()), true).expect("it mounts");
    assert!(left.lookup(&left.root(), b"before").is_ok());
    assert!(left.lookup(&left.root(), b"after").is_err());
}

/// Files that are in use and have no name are in the list of orphans: the next mount frees them.
#[test]
fn behind_a_cache_a_file_without_a_name_is_freed_by_the_next_mount() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    let behind = Behind::new(cache::Kind::Spindle);
    let (fs, root) = (&behind.fs, behind.fs.root());
    let free = fs.statfs().free;
    let file = fs.create(&root, b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 5000]).expect("written");
    fs.syncfs().expect("synced");
    fs.unlink(&root, b"file", &|_| Ok(())).expect("removed");
    fs.syncfs().expect("synced");
    let left = behind.crashed();
    assert!(is_clean(&left));
    let again = mount(Disk::new(left.clone()), false).expect("it mounts");
    assert_eq!(again.statfs().free, free);
    again.unmount().expect("unmounted");
    assert!(is_clean(&left) && problems_of(&left, &image).is_empty());
    drop(file);
    fs.syncfs().expect("synced");
    let left = behind.crashed();
    assert!(is_clean(&left) && problems_of(&left, &image).is_empty());
}

#[test]
fn without_an_order_the_judge_finds_what_a_crash_broke() {
    needs_e2fsprogs!();
    let found = (0..3).any(|seed| judge(Mode::Async, seed, 5).is_err());
    assert!(found, "a judge that finds nothing is none");
}

/// The names by which files can be reached that have these contents, in a state behind a crash.
fn reachable(bytes: Vec<u8>) -> BTreeMap<u8, usize> {
    reachable_on(memory(bytes))
}

fn reachable_on(disk: Disk) -> BTreeMap<u8, usize> {
    let fs = mount(disk, true).expect("it mounts");
    let mut found = BTreeMap::new();
    for (dir, name) in tree(&fs).expect("names lead to inodes").1 {
        let node = fs.lookup(&dir, &name).expect("it was listed");
        let mut contents = [0; 3000];
        if fs.kind(&node) == Kind::File && fs.read(&node, 0, &mut contents) == Ok(3000) {
            assert!(contents.iter().all(|&byte| byte == contents[0]), "torn");
            *found.entry(contents[0]).or_default() += 1;
        }
    }
    found
}

/// Checks and repairs a state that a crash left: the repaired image, of which e2fsck says nothing
/// and which can be mounted for writing.
fn mended(bytes: Vec<u8>, image: &Image) -> Result<Vec<u8>, String> {
    std::fs::write(&image.path, &bytes).expect("written");
    let report = check(&image.disk(), true, TIME, &|_, _, _| ()).map_err(|e| e.to_string())?;
    if report.exit_code() > 1 {
        return Err(format!("left: {report}"));
    }
    let codes = problems(image);
    if !codes.is_empty() {
        return Err(format!("e2fsck finds {codes:x?} behind: {report}"));
    }
    let bytes = std::fs::read(&image.path).expect("read");
    let fs = mount(memory(bytes.clone()), false).map_err(|e| e.to_string())?;
    fs.create(&fs.root(), b"made behind the crash", &FILE)
        .and_then(|_| fs.unmount())
        .map_err(|e| e.to_string())?;
    Ok(bytes)
}

#[test]
fn the_check_mends_what_a_crash_in_mode_soft_left() {
    needs_e2fsprogs!();
    let (image, mut count, mut interrupted) = (Image::new(0), 0, 0);
    for seed in common::seeds(6) {
        let trace = run(Mode::Soft, seed, MOVES);
        for point in trace.points() {
            for token in trace.crash(point).states(4, seed) {
                let bytes = trace.replay(token).expect("a state of it");
                let found = check(&memory(bytes.clone()), false, TIME, &|_, _, _| ());
                let found = found.expect("an image").findings;
                let kinds = [Problem::Interrupted, Problem::TwoNames];
                interrupted += found.iter().filter(|f| kinds.contains(&f.problem)).count();
                if let Err(what) = mended(bytes, &image) {
                    panic!("state {token}: {what}: TUREEN_REPLAY={seed}");
                }
                count += 1;
            }
        }
    }
    assert!(
        count > 20 && interrupted > 10,
        "{count} states, {interrupted}"
    );
}

/// Each of two directories gets, in the end, a place below where the other one was.
#[test]
fn directories_that_are_moved_into_each_other_stay_reachable() {
    let (fs, recorder) = recorded(Mode::Soft);
    let root = fs.root();
    let a = fs.create(&root, b"a", &DIR).expect("made");
    let b = fs.create(&a, b"b", &DIR).expect("made");
    let c = fs.create(&root, b"c", &DIR).expect("made");
    for (dir, byte) in [(&a, 1), (&b, 2)] {
        let file = fs.create(dir, b"file", &FILE).expect("made");
        fs.write(&file, 0, &[byte; 3000]).expect("written");
    }
    // Long names go into the second block of `b`, away from its `..`.
    for i in 0..5 {
        fs.create(&b, &[b'0' + i; 200], &FILE).expect("made");
    }
    fs.syncfs().expect("synced");
    let before = recorder.trace().events.len();
    let moved = |from: Place<'_, Node>, to: Place<'_, Node>| {
        fs.rename(from, to, RenameMode::Replace, &|_| Ok(()))
            .expect("moved");
    };
    moved(Place::new(&a, b"b"), Place::new(&c, b"b"));
    moved(Place::new(&root, b"a"), Place::new(&b, &[b'a'; 200]));
    // The first block, with the new `..`, waits for a new inode, and is late.
    fs.create(&b, b"new", &FILE).expect("made");
    fs.unmount().expect("unmounted");
    let trace = recorder.trace();
    for point in trace.points().into_iter().filter(|&point| point > before) {
        for token in trace.crash(point).states(200, 1) {
            let disk = memory(trace.replay(token).expect("a state of it"));
            let report = check(&disk, true, TIME, &|_, _, _| ()).expect("an image");
            assert!(report.exit_code() <= 1, "state {token}: {report}");
            let found = reachable_on(disk).into_iter().collect::<Vec<_>>();
            assert_eq!(found, [(1, 1), (2, 1)], "state {token}: {report}");
        }
    }
}

/// A new directory is moved into another one, which comes to the disk later.
#[test]
fn what_a_new_directory_lies_in_is_there_before_it_says_so() {
    needs_e2fsprogs!();
    let (fs, recorder) = recorded(Mode::Soft);
    let root = fs.root();
    fs.create(&root, b"moved", &DIR).expect("made");
    let other = fs.create(&root, b"other", &DIR).expect("made");
    fs.rename(
        Place::new(&root, b"moved"),
        Place::new(&other, b"moved"),
        RenameMode::Replace,
        &|_| Ok(()),
    )
    .expect("moved");
    drop(other);
    fs.unmount().expect("unmounted");
    judge_trace(&recorder.trace(), 0, 200).unwrap_or_else(|what| panic!("{what}"));
}

/// The disk has a directory by no name, and its inode waits for a block. The inode of one that was
/// made in it waits for that, and gets the first one below it, whose `..` waits for it. When the
/// first one is removed its inode is not to wait for its `..` before the others are there.
#[test]
fn a_directory_that_is_moved_below_what_was_made_in_it_does_not_wait_for_itself() {
    let (fs, _) = recorded(Mode::Soft);
    let root = fs.root();
    let moved = |from: Place<'_, Node>, to: Place<'_, Node>| {
        fs.rename(from, to, RenameMode::Replace, &|_| Ok(()))
            .expect("moved");
    };
    let elsewhere = fs.create(&root, b"elsewhere", &DIR).expect("made");
    fs.syncfs().expect("written");
    let first = fs.create(&root, b"first", &DIR).expect("made");
    let away = fs.create(&first, b"away", &DIR).expect("made");
    moved(Place::new(&first, b"away"), Place::new(&elsewhere, b"away"));
    // The inode of what it was made in comes before its own.
    fs.fsync(&away, Fsync::All).expect("written");
    let names = (b'a'..=b'x').map(|byte| [byte; 200]);
    for name in names.clone() {
        fs.create(&first, &name, &FILE).expect("made");
    }
    let second = fs.create(&first, b"second", &DIR).expect("made");
    moved(Place::new(&first, b"second"), Place::new(&root, b"second"));
    moved(Place::new(&root, b"first"), Place::new(&second, b"first"));
    for name in names {
        fs.unlink(&first, &name, &|_| Ok(())).expect("removed");
    }
    fs.rmdir(&second, b"first", &|_| Ok(())).expect("removed");
    drop((first, second, away));
    fs.unmount().expect("unmounted");
    assert_eq!(fs.status().out_of_order, 0);
}

/// What changes places with something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swapped {
    File,
    /// A file with another name.
    Linked,
    /// With a file in it.
    Dir,
}

impl Swapped {
    fn make(self, fs: &Ffs, dir: &Node, name: &[u8], byte: u8) -> u64 {
        let file = |dir: &Node, name: &[u8]| {
            let file = fs.create(dir, name, &FILE).expect("made");
            fs.write(&file, 0, &[byte; 3000]).expect("written");
            file
        };
        let node = match self {
            Swapped::File => file(dir, name),
            Swapped::Linked => {
                let node = file(dir, name);
                fs.link(&node, &fs.root(), &[byte]).expect("linked");
                node
            }
            Swapped::Dir => {
                let node = fs.create(dir, name, &DIR).expect("made");
                file(&node, b"in it");
                node
            }
        };
        fs.ino(&node)
    }
}

/// Names of two inodes change places, in this directory and in that one. Says in how many states
/// the disk has the one of the two by both names.
fn swapped(kinds: [Swapped; 2], apart: bool, then: fn(&Ffs, &Node)) -> u32 {
    let (fs, recorder) = recorded(Mode::Soft);
    let root = fs.root();
    let mut dirs = [b"A", b"B"].map(|name| fs.create(&root, name, &DIR).expect("made"));
    let mut paths = [(&b"A"[..], &b"x"[..]), (b"B", b"y")];
    if !apart {
        dirs[1] = dirs[0].clone();
        paths[1].0 = b"A";
    }
    let [x, y] = [0, 1].map(|i| kinds[i].make(&fs, &dirs[i], paths[i].1, 1 + i as u8));
    fs.syncfs().expect("synced");
    let before = recorder.trace().events.len();
    let (from, to) = (Place::new(&dirs[0], b"x"), Place::new(&dirs[1], b"y"));
    fs.rename(from, to, RenameMode::Exchange, &|_| Ok(()))
        .expect("exchanged");
    // What comes behind it is not seen without it.
    then(&fs, &dirs[0]);
    fs.unmount().expect("unmounted");
    let (trace, mut both) = (recorder.trace(), 0);
    for point in trace.points().into_iter().filter(|&point| point > before) {
        for token in trace.crash(point).states(60, 1) {
            let what = format!("{kinds:?}, {apart}, state {token}");
            let bytes = trace.replay(token).expect("a state of it");
            let found = |disk: Disk| {
                let fs = mount(disk, true).expect("it mounts");
                paths.map(|(dir, name)| {
                    let dir = fs.lookup(&fs.root(), dir).expect("there");
                    fs.lookup(&dir, name).map(|node| fs.ino(&node)).ok()
                })
            };
            let disk = memory(bytes);
            let was = found(disk.clone());
            both += u32::from(was == [Some(x); 2]);
            assert_ne!(was, [Some(y); 2], "{what}");
            // As long as nothing has changed it may be served without being mended.
            let is_changed = was != [Some(x), Some(y)];
            let at_once = mounts_at_once(&disk).expect("an image");
            assert!(!(is_changed && at_once), "{what}");
            let report = check(&disk, true, TIME, &|_, _, _| ()).expect("an image");
            assert!(report.exit_code() <= 1, "{what}: {report}");
            let again = check(&disk, false, TIME, &|_, _, _| ()).expect("an image");
            assert_eq!(again.exit_code(), 0, "{what}: {report}, then {again}");
            match found(disk.clone()) {
                [Some(here), Some(there)] => {
                    assert!(
                        [[x, y], [y, x]].contains(&[here, there]),
                        "{what}: {report}"
                    );
                    let files = reachable_on(disk);
                    assert_eq!(files.len(), 2, "{what}: {report}");
                }
                // It was removed behind that.
                [None, Some(there)] => assert_eq!(there, x, "{what}: {report}"),
                names => panic!("{what}: {names:?}: {report}"),
            }
        }
    }
    both
}

/// They have changed places or have not, when the check is over.
#[test]
fn names_change_places_as_a_whole() {
    let kinds = [Swapped::File, Swapped::Linked, Swapped::Dir];
    for one in kinds {
        for other in kinds {
            for apart in [false, true] {
                let both = swapped([one, other], apart, |_, _| ());
                assert!(both > 0, "{one:?}, {other:?}: no state is half-way");
            }
        }
    }
}

#[test]
fn what_changed_places_is_removed_behind_that() {
    for other in [Swapped::File, Swapped::Linked] {
        for apart in [false, true] {
            let both = swapped([Swapped::Dir, other], apart, |fs, dir| {
                fs.unlink(dir, b"x", &|_| Ok(())).expect("removed");
            });
            assert!(both > 0, "{other:?}: no state is half-way");
        }
    }
}

#[test]
fn without_an_order_the_mark_would_promise_too_much() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    let fails = |seed| {
        let trace = run(Mode::Async, seed, MOVES);
        trace.points().into_iter().any(|point| {
            trace.crash(point).states(4, seed).into_iter().any(|token| {
                let mut bytes = trace.replay(token).expect("a state of it");
                let word = |at| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
                let mark = format!(
                    "tureen soft {} {}",
                    word(1024 + 44),
                    word(1024 + 52) & 0xffff
                );
                bytes[1024 + 136..][..mark.len()].copy_from_slice(mark.as_bytes());
                mended(bytes, &image).is_err()
            })
        })
    };
    assert!((0..3).any(fails), "a judge that finds nothing is none");
}

/// Rule C3: what has a name at all times can be reached after any crash, with all its contents.
#[test]
fn what_is_moved_and_linked_about_is_never_lost() {
    for seed in common::seeds(20) {
        let (fs, recorder) = recorded(Mode::Soft);
        let (mut random, root) = (Random::new(seed), fs.root());
        for file in 1..=4u8 {
            let node = fs.create(&root, &[b'a' + file], &FILE).expect("made");
            fs.write(&node, 0, &[file; 3000]).expect("written");
        }
        fs.syncfs().expect("synced");
        let before = recorder.trace().events.len();
        for step in 0..40 {
            move_about(&fs, &mut random, step);
            if random.one_in(10) {
                fs.syncfs().expect("synced");
            }
        }
        fs.unmount().expect("unmounted");
        let trace = recorder.trace();
        for point in trace.points().into_iter().filter(|&point| point > before) {
            for token in trace.crash(point).states(12, seed) {
                let bytes = trace.replay(token).expect("a state of it");
                let found = reachable(bytes.clone());
                let all = (1..=4).all(|file| found.contains_key(&file));
                assert!(all, "state {token}: {found:?}: TUREEN_REPLAY={seed}");
                let disk = memory(bytes);
                let report = check(&disk, true, TIME, &|_, _, _| ()).expect("an image");
                assert!(
                    report.exit_code() <= 1,
                    "state {token}: {report}: TUREEN_REPLAY={seed}"
                );
                assert!(
                    check(&disk, false, TIME, &|_, _, _| ())
                        .expect("an image")
                        .findings
                        .is_empty()
                );
                let found = reachable_on(disk);
                let all = (1..=4).all(|file| found.contains_key(&file));
                assert!(
                    all,
                    "mended, state {token}: {found:?}: TUREEN_REPLAY={seed}"
                );
            }
        }
    }
}

/// Moves or links something, makes or removes a directory, or removes one of several names.
fn move_about(fs: &Ffs, random: &mut Random, step: usize) {
    let (dirs, names) = tree(fs).expect("it is sound");
    let dir = &dirs[random.below(dirs.len() as u64) as usize];
    let (from, old) = &names[random.below(names.len() as u64) as usize];
    let node = fs.lookup(from, old).expect("it was listed");
    let new = format!("new{step}");
    let new = new.as_bytes();
    let no_veto = &|_: &_| Ok(());
    let _ = match random.below(6) {
        0 => fs.create(dir, new, &DIR).map(drop),
        1 => fs.link(&node, dir, new),
        2 if fs.kind(&node) == Kind::Dir => fs.rmdir(from, old, no_veto),
        2 if fs.attr(&node).nlink > 1 => fs.unlink(from, old, no_veto),
        _ => {
            let (from, to) = (Place::new(from, old), Place::new(dir, new));
            fs.rename(from, to, RenameMode::Replace, no_veto)
        }
    };
}

/// Names that go, and are used again elsewhere in their directory before that is durable.
#[test]
fn no_name_is_twice_in_its_directory() {
    // Two of them fit a sector.
    let name = |random: &mut Random| vec![b'a' + random.below(7) as u8; 200];
    let no_veto = &|_: &_| Ok(());
    for seed in common::seeds(20) {
        let (fs, recorder) = recorded(Mode::Soft);
        let (mut random, root) = (Random::new(seed), fs.root());
        for _ in 0..60 {
            let (name, other) = (name(&mut random), name(&mut random));
            let _ = match random.below(8) {
                0..3 => fs.create(&root, &name, &FILE).map(drop),
                3..5 => fs.unlink(&root, &name, no_veto),
                5 => fs
                    .lookup(&root, &name)
                    .and_then(|node| fs.link(&node, &root, &other)),
                _ => {
                    let (from, to) = (Place::new(&root, &name), Place::new(&root, &other));
                    fs.rename(from, to, RenameMode::Replace, no_veto)
                }
            };
            if random.one_in(10) {
                fs.syncfs().expect("synced");
            }
        }
        fs.unmount().expect("unmounted");
        let trace = recorder.trace();
        for point in trace.points() {
            for token in trace.crash(point).states(12, seed) {
                let left = memory(trace.replay(token).expect("a state of it"));
                let names = tree(&mount(left, true).expect("it mounts"));
                let names = names.expect("names lead to inodes").1;
                let different: BTreeSet<_> = names.iter().map(|(_, name)| name).collect();
                assert_eq!(
                    different.len(),
                    names.len(),
                    "state {token}: TUREEN_REPLAY={seed}"
                );
            }
        }
    }
}

/// Writes and flushes that a syncfs makes of some changes.
fn cost(change: impl FnOnce(&Ffs)) -> (u64, u64) {
    let (fs, _) = recorded(Mode::Soft);
    for i in 0..5 {
        fs.create(&fs.root(), &[b'a' + i], &FILE).expect("made");
    }
    fs.unlink(&fs.root(), b"b", &|_| Ok(())).expect("removed");
    fs.syncfs().expect("synced");
    let before = fs.disk().stats();
    change(&fs);
    fs.syncfs().expect("synced");
    let after = fs.disk().stats();
    (after.writes - before.writes, after.flushes - before.flushes)
}

#[test]
fn what_is_made_and_removed_at_once_is_not_written() {
    let (writes, _) = cost(|fs| {
        let root = fs.root();
        let file = fs.create(&root, b"b", &FILE).expect("made");
        fs.write(&file, 0, &[1; 20_000]).expect("written");
        drop(file);
        fs.unlink(&root, b"b", &|_| Ok(())).expect("removed");
    });
    assert_eq!(writes, 0);
}

/// A name that never was on disk is used again for nothing; one that is moved away from there costs
/// a round, and so does one through which such an inode has passed.
#[test]
fn a_name_that_is_used_again_costs_a_round_only_if_the_disk_keeps_it() {
    let no_veto = &|_: &_| Ok(());
    let again = |name: &'static [u8]| {
        move |fs: &Ffs| {
            let (root, before) = (fs.root(), fs.disk().stats().writes);
            if name == b"new" {
                fs.create(&root, name, &FILE).expect("made");
            }
            let (from, to) = (Place::new(&root, name), Place::new(&root, b"moved"));
            fs.rename(from, to, RenameMode::Replace, no_veto)
                .expect("moved");
            fs.create(&root, name, &FILE).expect("made");
            let is_written = fs.disk().stats().writes > before;
            assert_eq!(is_written, name != b"new");
        }
    };
    cost(again(b"new"));
    cost(again(b"c"));
    cost(|fs| {
        let (root, before) = (fs.root(), fs.disk().stats().writes);
        for (from, to) in [(b"c", b"x"), (b"x", b"y")] {
            let (from, to) = (Place::new(&root, from), Place::new(&root, to));
            fs.rename(from, to, RenameMode::Replace, no_veto)
                .expect("moved");
        }
        assert_eq!(fs.disk().stats().writes, before);
        fs.create(&root, b"x", &FILE).expect("made");
        assert!(fs.disk().stats().writes > before, "the disk had it at c");
    });
}

/// What others have changed is not waited for, and what leads to it is not there.
#[test]
fn an_fsync_leaves_the_data_of_others_out() {
    let (fs, recorder) = recorded(Mode::Soft);
    let root = fs.root();
    let others = fs.create(&root, b"others", &FILE).expect("made");
    let contents: Vec<u8> = (0..300_000).map(|i| i as u8 | 1).collect();
    fs.write(&others, 0, &contents).expect("written");
    let own = fs.create(&root, b"own", &FILE).expect("made");
    fs.write(&own, 0, &[7; 5000]).expect("written");
    fs.write(&others, 300_000, &contents).expect("written");
    let before = fs.disk().stats();
    fs.fsync(&own, Fsync::All).expect("synced");
    let after = fs.disk().stats();
    let bytes = after.bytes_written - before.bytes_written;
    assert!(bytes < 60_000, "{bytes} bytes");
    assert!(after.flushes - before.flushes <= 4, "as for one create");
    let trace = recorder.trace();
    let end = *trace.points().last().expect("flushes");
    let left = trace.crash(end).image(State::Oldest).expect("a state");
    let crashed = mount(memory(left), true).expect("it mounts");
    let found = crashed.lookup(&crashed.root(), b"own");
    let found = found.expect("its name is durable");
    let mut bytes = vec![0; 6000];
    assert_eq!(crashed.read(&found, 0, &mut bytes), Ok(5000));
    assert!(bytes[..5000].iter().all(|&byte| byte == 7));
    // Nothing is left to do for it, and all is left for the others.
    let before = fs.disk().stats().writes;
    fs.fsync(&own, Fsync::All).expect("synced");
    assert_eq!(fs.disk().stats().writes, before);
    fs.fsync(&others, Fsync::All).expect("synced");
    assert!(fs.disk().stats().bytes_written - after.bytes_written >= 600_000);
    fs.unmount().expect("unmounted");
}

/// The names that lead to a file are durable with it, that of a directory that was moved too.
#[test]
fn an_fsync_takes_the_names_above_along() {
    let (fs, recorder) = recorded(Mode::Soft);
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &DIR).expect("made");
    let file = fs.create(&dir, b"file", &FILE).expect("made");
    fs.syncfs().expect("synced");
    // That takes more waves than what was written.
    let new = fs.create(&root, b"new", &DIR).expect("made");
    let (from, to) = (Place::new(&root, b"dir"), Place::new(&new, b"moved"));
    let moved = fs.rename(from, to, RenameMode::Replace, &|_| Ok(()));
    moved.expect("moved");
    fs.write(&file, 0, b"new").expect("written");
    fs.fsync(&file, Fsync::All).expect("synced");
    let trace = recorder.trace();
    let end = *trace.points().last().expect("flushes");
    let left = trace.crash(end).image(State::Oldest).expect("a state");
    let crashed = mount(memory(left), true).expect("it mounts");
    let new = crashed.lookup(&crashed.root(), b"new").expect("made");
    let dir = crashed.lookup(&new, b"moved").expect("moved");
    let file = crashed.lookup(&dir, b"file").expect("there");
    assert_eq!(crashed.attr(&file).size, 3);
    fs.unmount().expect("unmounted");
}

#[test]
fn flushes_do_not_grow_with_operations() {
    let flushes = |count: u32| {
        let make = |fs: &Ffs| {
            for i in 0..count {
                let name = format!("file{i}");
                fs.create(&fs.root(), name.as_bytes(), &FILE).expect("made");
            }
        };
        cost(make).1
    };
    assert!(flushes(1) <= 4, "{}", flushes(1));
    assert!(flushes(300) <= 6, "{}", flushes(300));
}

/// A directory that is found from the root by some random names.
fn some_dir(fs: &Ffs, random: &mut Random) -> Node {
    let mut dir = fs.root();
    for _ in 0..random.below(4) {
        let below = fs.lookup(&dir, &some_name(random));
        dir = match below {
            Ok(below) if fs.kind(&below) == Kind::Dir => below,
            _ => dir,
        };
    }
    dir
}

/// One of few, so that threads meet.
fn some_name(random: &mut Random) -> Vec<u8> {
    vec![b'a' + random.below(5) as u8]
}

/// A random change of names that others change, too. Much of that cannot be done.
fn meddle(fs: &Ffs, random: &mut Random) {
    let no_veto = &|_: &_| Ok(());
    let (dir, name) = (some_dir(fs, random), some_name(random));
    let _ = match random.below(12) {
        0..=2 => fs
            .create(&dir, &name, &FILE)
            .and_then(|file| fs.write(&file, 0, &[1; 1500]).map(drop)),
        3 | 4 => fs.create(&dir, &name, &DIR).map(drop),
        5 => fs.unlink(&dir, &name, no_veto),
        6 => fs.rmdir(&dir, &name, no_veto),
        7 => {
            let node = fs.lookup(&some_dir(fs, random), &some_name(random));
            node.and_then(|node| fs.link(&node, &dir, &name))
        }
        8 => fs.fsync(&dir, Fsync::All),
        9 if random.one_in(4) => fs.syncfs(),
        how => {
            let (from, old) = (some_dir(fs, random), some_name(random));
            let mode = MOVES[usize::from(how == 11)];
            let from = Place::new(&from, &old);
            fs.rename(from, Place::new(&dir, &name), mode, no_veto)
        }
    };
}

/// Names that three threads change at once, in directories that they share and move about.
fn run_threads(mode: Mode, seed: u64) -> Trace {
    let (fs, recorder) = recorded(mode);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let fs = &fs;
            scope.spawn(move || {
                let mut random = Random::new(3 * seed + thread);
                (0..60).for_each(|_| meddle(fs, &mut random));
            });
        }
    });
    fs.unmount().expect("unmounted");
    recorder.trace()
}

#[test]
fn what_threads_did_to_shared_names_is_harmless_after_a_crash() {
    needs_e2fsprogs!();
    // How they meet is not in the seed.
    for seed in common::seeds(12) {
        if let Err(what) = judge_trace(&run_threads(Mode::Soft, seed), seed, 3) {
            panic!("{what}: TUREEN_REPLAY={seed}");
        }
    }
    let found = (0..4).any(|seed| judge_trace(&run_threads(Mode::Async, seed), seed, 5).is_err());
    assert!(found, "a judge that finds nothing is none");
}

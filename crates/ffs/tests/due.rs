//! What is written when: by an fsync no more than it needs, and by time what has waited for long
//! enough.

mod changes;
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::record::{Change, Event, Trace};
use block::{Device, Disk, Memory, Recorder};
use changes::{DIR, FILE};
use common::{format_options, mount_options};
use ffs::{Ffs, Mode, MountOptions, format};
use vfs::{Errno, Error, FileSystem, ManualClock, Place, RenameMode, SetAttr};

/// Calls after which a change is due.
const AGE: usize = 5;

struct Mounted {
    device: Arc<Memory>,
    fs: Ffs,
}

impl Mounted {
    fn new(mode: Mode) -> Mounted {
        let device = Arc::new(Memory::new(64 << 20));
        format(&Disk::new(device.clone()), &format_options()).expect("formatted");
        let fs = mount(device.clone(), mode);
        fs.syncfs().expect("written");
        Mounted { device, fs }
    }

    fn dir(&self, name: &str) -> <Ffs as FileSystem>::Node {
        let made = self.fs.create(&self.fs.root(), name.as_bytes(), &DIR);
        made.expect("made")
    }

    /// A new file with a block of contents.
    fn file(&self, dir: &<Ffs as FileSystem>::Node, name: &str) -> <Ffs as FileSystem>::Node {
        let file = self.fs.create(dir, name.as_bytes(), &FILE).expect("made");
        self.fs.write(&file, 0, &[1; 4096]).expect("written");
        file
    }

    fn files(&self, dir: &<Ffs as FileSystem>::Node, count: usize) {
        (0..count).for_each(|number| drop(self.file(dir, &format!("f{number}"))));
    }

    /// Blocks that something writes.
    fn writes(&self, work: impl FnOnce(&Ffs) -> vfs::Result<()>) -> u64 {
        let bytes = || self.fs.disk().stats().bytes_written;
        let before = bytes();
        work(&self.fs).expect("done");
        (bytes() - before) / 4096
    }

    fn tick(&self) -> u64 {
        self.writes(Ffs::tick)
    }

    /// What is found behind a crash now.
    fn crashed(&self) -> Ffs {
        mount(
            Arc::new(Memory::from_bytes(self.device.contents())),
            Mode::Soft,
        )
    }
}

fn mount(device: Arc<dyn Device>, mode: Mode) -> Ffs {
    let options = MountOptions {
        cache_bytes: 64 << 20,
        ..mount_options(false, mode)
    };
    let clock = Arc::new(ManualClock::new(common::TIME));
    Ffs::mount(Disk::new(device), clock, options).expect("it mounts")
}

/// The file of a path has its block of contents.
fn is_whole(fs: &Ffs, dir: &str, name: &str) -> bool {
    let dir = fs.lookup(&fs.root(), dir.as_bytes()).expect("a directory");
    let found = match fs.lookup(&dir, name.as_bytes()) {
        Ok(found) => found,
        Err(Error::Errno(Errno::NOENT)) => return false,
        Err(error) => panic!("{name}: {error}"),
    };
    let mut bytes = [0; 4096];
    fs.read(&found, 0, &mut bytes).expect("read") == 4096 && bytes == [1; 4096]
}

/// Two blocks of bitmaps and one of data, one of inodes, one of names.
#[test]
fn an_fsync_writes_what_it_needs() {
    let mounted = Mounted::new(Mode::Soft);
    let (own, others) = (mounted.dir("own"), mounted.dir("others"));
    mounted.fs.syncfs().expect("written");
    mounted.files(&others, 500);
    mounted.files(&own, 20);
    let file = mounted.file(&own, "wanted");
    let before = mounted.fs.disk().stats().flushes;
    let writes = mounted.writes(|fs| fs.fsync(&file, vfs::Fsync::All));
    let waves = mounted.fs.disk().stats().flushes - before;
    println!("{writes} blocks in {waves} waves");
    assert!(
        writes <= 5 && waves <= 3,
        "{writes} blocks in {waves} waves"
    );
    let crashed = mounted.crashed();
    assert!(is_whole(&crashed, "own", "wanted"));
    assert!(!is_whole(&crashed, "others", "f0"));
    crashed.unmount().expect("unmounted");
    mounted.fs.unmount().expect("unmounted");
}

/// The names of a directory, with what they lead to.
#[test]
fn an_fsync_of_a_directory_writes_what_is_in_it() {
    let mounted = Mounted::new(Mode::Soft);
    let (own, others) = (mounted.dir("own"), mounted.dir("others"));
    mounted.fs.syncfs().expect("written");
    mounted.files(&others, 500);
    mounted.files(&own, 20);
    let writes = mounted.writes(|fs| fs.fsync(&own, vfs::Fsync::All));
    println!("{writes} blocks");
    assert!(writes <= 30, "{writes} blocks");
    let crashed = mounted.crashed();
    assert!((0..20).all(|number| is_whole(&crashed, "own", &format!("f{number}"))));
    assert!(!is_whole(&crashed, "others", "f0"));
    crashed.unmount().expect("unmounted");
    mounted.fs.unmount().expect("unmounted");
}

/// Who takes a name that the disk keeps waits for that name, and not for all that is to be written.
#[test]
fn a_name_that_is_used_again_costs_what_it_waits_for() {
    let mounted = Mounted::new(Mode::Soft);
    let (own, others) = (mounted.dir("own"), mounted.dir("others"));
    mounted.file(&own, "log");
    mounted.fs.syncfs().expect("written");
    mounted.files(&others, 500);
    let writes = mounted.writes(|fs| {
        let (from, to) = (Place::new(&own, b"log"), Place::new(&own, b"log.1"));
        fs.rename(from, to, RenameMode::Replace, &|_| Ok(()))?;
        fs.create(&own, b"log", &FILE).map(drop)
    });
    println!("{writes} blocks");
    assert!((1..=4).contains(&writes), "{writes} blocks");
    let crashed = mounted.crashed();
    assert!(is_whole(&crashed, "own", "log.1"));
    assert!(!is_whole(&crashed, "others", "f0"));
    crashed.unmount().expect("unmounted");
    mounted.fs.unmount().expect("unmounted");
}

/// Removed, made again, removed and made again: nothing of the second one was ever on disk, so the
/// third one has nothing to wait for.
#[test]
fn a_tree_that_comes_and_goes_between_two_writes_costs_none() {
    let mounted = Mounted::new(Mode::Soft);
    let root = mounted.fs.root();
    let make = || {
        let dir = mounted.dir("tree");
        let below = mounted.fs.create(&dir, b"below", &DIR).expect("made");
        mounted.file(&below, "file");
        (dir, below)
    };
    let remove = |(dir, below)| {
        let all = |_: &_| Ok(());
        mounted.fs.unlink(&below, b"file", &all).expect("removed");
        mounted.fs.rmdir(&dir, b"below", &all).expect("removed");
        mounted.fs.rmdir(&root, b"tree", &all).expect("removed");
    };
    let first = make();
    mounted.fs.syncfs().expect("written");
    let writes = mounted.writes(|_| {
        remove(first);
        remove(make());
        make();
        Ok(())
    });
    assert_eq!(writes, 0);
    mounted.fs.syncfs().expect("written");
    let crashed = mounted.crashed();
    let tree = crashed.lookup(&crashed.root(), b"tree").expect("there");
    let below = crashed.lookup(&tree, b"below").expect("there");
    assert!(crashed.lookup(&below, b"file").is_ok());
    crashed.unmount().expect("unmounted");
    mounted.fs.unmount().expect("unmounted");
}

/// What a new directory is in has to be there before.
#[test]
fn an_fsync_writes_all_that_leads_to_a_file() {
    let mounted = Mounted::new(Mode::Soft);
    let mut dir = mounted.dir("own");
    for depth in 0..30 {
        let name = format!("d{depth}");
        let below = mounted.fs.create(&dir, name.as_bytes(), &DIR);
        dir = below.expect("made");
    }
    let file = mounted.file(&dir, "deep");
    let fsync = |fs: &Ffs| fs.fsync(&file, vfs::Fsync::All);
    mounted.writes(fsync);
    let crashed = mounted.crashed();
    let mut dir = crashed.root();
    let names = (0..30).map(|depth| format!("d{depth}"));
    for name in ["own".to_owned()].into_iter().chain(names) {
        dir = crashed.lookup(&dir, name.as_bytes()).expect("it is there");
    }
    crashed.lookup(&dir, b"deep").expect("it is there");
}

#[test]
fn what_was_changed_is_written_when_it_is_due_and_not_before() {
    for mode in [Mode::Soft, Mode::Async] {
        let mounted = Mounted::new(mode);
        let own = mounted.dir("own");
        mounted.fs.syncfs().expect("written");
        mounted.tick();
        mounted.files(&own, 100);
        for _ in 1..AGE {
            assert_eq!(mounted.tick(), 0, "{mode:?}");
        }
        assert!(mounted.tick() > 100, "{mode:?}");
        if mode == Mode::Soft {
            let crashed = mounted.crashed();
            assert!((0..100).all(|number| is_whole(&crashed, "own", &format!("f{number}"))));
        }
        mounted.fs.unmount().expect("unmounted");
    }
}

/// Callers who wait all the time neither keep what is due from being written, nor make that a round
/// for all.
#[test]
fn what_is_due_is_written_beside_callers_who_wait() {
    let mounted = Mounted::new(Mode::Soft);
    let (old, young) = (mounted.dir("old"), mounted.dir("young"));
    let waited = ["w0", "w1", "w2"].map(|name| mounted.file(&mounted.fs.root(), name));
    mounted.fs.syncfs().expect("written");
    mounted.files(&old, 1000);
    for _ in 1..AGE {
        mounted.tick();
    }
    mounted.files(&young, 500);
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for file in &waited {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    mounted.fs.write(file, 4096, &[2; 4096]).expect("written");
                    mounted.fs.fsync(file, vfs::Fsync::All).expect("written");
                }
            });
        }
        let (done, crashed) = (mounted.fs.tick(), mounted.crashed());
        has_ended.store(true, Ordering::Relaxed);
        done.expect("written");
        assert!((0..1000).all(|number| is_whole(&crashed, "old", &format!("f{number}"))));
        assert!(!is_whole(&crashed, "young", "f0"));
    });
    mounted.fs.unmount().expect("unmounted");
}

/// Files that live shorter than that never reach the disk, whatever else does.
#[test]
fn what_comes_and_goes_meanwhile_costs_no_data() {
    let mounted = Mounted::new(Mode::Soft);
    let own = mounted.dir("own");
    mounted.fs.syncfs().expect("written");
    let mut writes = 0;
    for round in 0..40 {
        (0..50).for_each(|number| drop(mounted.file(&own, &format!("t{number}"))));
        mounted.file(&own, &format!("stays{round}"));
        writes += mounted.tick();
        for number in 0..50 {
            let name = format!("t{number}");
            let gone = mounted.fs.unlink(&own, name.as_bytes(), &|_| Ok(()));
            gone.expect("removed");
        }
    }
    println!("{writes} blocks for 2,000 files that went, and 40 that stay");
    assert!(writes < 400, "{writes} blocks");
    let crashed = mounted.crashed();
    assert!((0..40 - AGE).all(|round| is_whole(&crashed, "own", &format!("stays{round}"))));
    crashed.unmount().expect("unmounted");
    mounted.fs.unmount().expect("unmounted");
}

/// A name that is replaced more often than that is as new on the disk as any other.
#[test]
fn what_is_changed_again_and_again_is_due_as_well() {
    let mounted = Mounted::new(Mode::Soft);
    let own = mounted.dir("own");
    mounted.fs.syncfs().expect("written");
    for round in 0..40_u8 {
        let new = mounted.file(&own, "new");
        mounted.fs.write(&new, 0, &[round; 4096]).expect("written");
        let (from, to) = (Place::new(&own, b"new"), Place::new(&own, b"name"));
        let moved = mounted
            .fs
            .rename(from, to, RenameMode::Replace, &|_| Ok(()));
        moved.expect("moved");
        mounted.tick();
        let Some(at_least) = round.checked_sub(AGE as u8) else {
            continue;
        };
        let crashed = mounted.crashed();
        let dir = crashed.lookup(&crashed.root(), b"own").expect("there");
        let file = crashed.lookup(&dir, b"name").expect("it was due");
        let mut found = [0; 4096];
        crashed.read(&file, 0, &mut found).expect("read");
        assert!(found[0] >= at_least, "{} at {round}", found[0]);
    }
    mounted.fs.unmount().expect("unmounted");
}

/// Pointers in an indirect block are places like any: what is cut off waits in memory.
#[test]
fn a_truncate_within_an_indirect_block_writes_nothing() {
    let mounted = Mounted::new(Mode::Soft);
    let own = mounted.dir("own");
    let file = mounted.file(&own, "file");
    let contents = vec![1; 2 << 20];
    mounted.fs.write(&file, 0, &contents).expect("written");
    mounted.fs.syncfs().expect("written");
    let flushes = || mounted.fs.disk().stats().flushes;
    let before = flushes();
    let cut = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    // Behind the direct pointers, within a block and at the end of one.
    for size in [1 << 20, 900_001, 100 * 4096] {
        let writes = mounted.writes(|fs| fs.setattr(&file, &cut(size)).map(drop));
        assert_eq!((writes, flushes() - before), (0, 0), "to {size} bytes");
    }
    let len = |fs: &Ffs| {
        let dir = fs.lookup(&fs.root(), b"own").expect("there");
        fs.attr(&fs.lookup(&dir, b"file").expect("there")).size
    };
    assert_eq!(len(&mounted.crashed()), 2 << 20);
    mounted.fs.syncfs().expect("written");
    assert_eq!(len(&mounted.crashed()), 100 * 4096);
    mounted.fs.unmount().expect("unmounted");
}

/// Blocks that are written between two flushes, at most.
fn largest_wave(trace: &Trace, from: usize) -> usize {
    let (mut largest, mut wave) = (0, 0);
    for event in &trace.events[from..] {
        match event {
            Event::Submitted(Change::Write { bytes, .. }) => wave += bytes.len() / 4096,
            Event::Submitted(Change::Flush) => wave = 0,
            _ => {}
        }
        largest = largest.max(wave);
    }
    largest
}

/// So who waits for an fsync meanwhile never waits long.
#[test]
fn what_is_due_is_written_in_waves_of_bounded_size() {
    let device = Arc::new(Memory::new(64 << 20));
    format(&Disk::new(device.clone()), &format_options()).expect("formatted");
    let recorder = Arc::new(Recorder::new(device));
    let fs = mount(recorder.clone(), Mode::Soft);
    let files = (0..1500).map(|number| {
        let name = format!("f{number}");
        let file = fs.create(&fs.root(), name.as_bytes(), &FILE);
        let file = file.expect("made");
        fs.write(&file, 0, &[1; 4096]).expect("written");
    });
    files.for_each(drop);
    let from = recorder.len();
    for _ in 0..AGE {
        fs.tick().expect("written");
    }
    let largest = largest_wave(&recorder.trace(), from);
    println!("{largest} blocks");
    assert!((100..=256).contains(&largest), "{largest} blocks");
    // Who asks for all has larger ones.
    let file = fs.create(&fs.root(), b"large", &FILE).expect("made");
    fs.write(&file, 0, &vec![1; 4 << 20]).expect("written");
    let from = recorder.len();
    fs.syncfs().expect("written");
    assert!(largest_wave(&recorder.trace(), from) > 256);
    fs.unmount().expect("unmounted");
}

/// Who finds that too much waits has it written first, before his change.
#[test]
fn what_waits_is_bounded_in_number() {
    // It is known to within 512.
    const MAX: usize = 1024;
    const EXACT: usize = 512;
    let mounted = Mounted::new(Mode::Soft);
    let own = mounted.dir("own");
    mounted.fs.syncfs().expect("written");
    mounted.file(&own, "one");
    let one = mounted.fs.status().dependencies;
    mounted.files(&own, 1000);
    let without = mounted.fs.status().dependencies;
    mounted.fs.syncfs().expect("written");
    mounted.fs.bound_dependencies(MAX);
    let (mut most, before) = (0, mounted.fs.disk().stats().flushes);
    for number in 0..1500 {
        let name = format!("b{number}");
        drop(mounted.file(&own, &name));
        if number % 3 == 0 {
            let gone = mounted.fs.unlink(&own, name.as_bytes(), &|_| Ok(()));
            gone.expect("removed");
        }
        most = most.max(mounted.fs.status().dependencies);
    }
    println!("{most} at most, {one} of one change, {without} without a bound");
    let bound = MAX + EXACT + one;
    assert!(
        most <= bound && without > bound,
        "{most}, {without} without a bound"
    );
    assert!(
        mounted.fs.disk().stats().flushes > before,
        "nothing was written"
    );
    mounted.fs.unmount().expect("unmounted");
}

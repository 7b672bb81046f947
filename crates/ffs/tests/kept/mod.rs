//! What snapshots are to have, and whether they do in every state that a crash may leave.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use block::record::Trace;
use block::{Disk, Memory, Random, Recorder};
use e2fsprogs::is_harmless;
use ffs::{Ffs, FormatOptions, Mode, MountError, SnapshotError, check_keeping, format};
use vfs::{Attr, FileSystem, Kind, ManualClock};

use crate::changes::{MOVES, change};
use crate::common::{Image, TIME, format_options, mount, mount_in, problems};

/// Modes that keep snapshots, each in its own way.
pub const MODES: [Mode; 3] = [Mode::Soft, Mode::Ordered, Mode::Journal];
/// Bytes that an image has for its journal.
const JOURNAL_LEN: u64 = 2 << 20;

/// An empty file system for mounts of a mode, of so many bytes beside its journal.
pub fn formatted(len: u64, mode: Mode) -> Arc<Memory> {
    let journal = mode.is_journaled();
    let len = len + if journal { JOURNAL_LEN } else { 0 };
    let device = Arc::new(Memory::new(len));
    let options = FormatOptions {
        block_size: 1024,
        bytes_per_inode: 4096,
        journal,
        ..format_options()
    };
    format(&Disk::new(device.clone()), &options).expect("formatted");
    device
}

pub fn mounted(device: Arc<Memory>, mode: Mode) -> Ffs {
    mounted_on(Disk::new(device), mode)
}

pub fn mounted_on(disk: Disk, mode: Mode) -> Ffs {
    let clock = Arc::new(ManualClock::new(TIME));
    mount_in(disk, false, clock, mode).expect("it mounts")
}

/// Replays what a crash left, if it has a log, and repairs it.
pub fn repaired(disk: &Disk) {
    replayed(disk);
    let report = check_keeping(disk, true, TIME, &|_, _, _| ()).expect("an image");
    assert!(report.exit_code() <= 1, "{report}");
}

fn replayed(disk: &Disk) {
    let superblock = ffs::superblock(disk).expect("an image");
    ffs::recover(disk.clone(), &superblock).expect("replayed");
}

/// All that a file system has, by path: attributes, contents, extended attributes.
pub type Picture = BTreeMap<Vec<u8>, (Attr, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>)>;

pub fn picture(fs: &Ffs) -> vfs::Result<Picture> {
    let mut all = Picture::new();
    let mut todo = vec![(Vec::new(), fs.root())];
    while let Some((path, node)) = todo.pop() {
        let mut attr = fs.attr(&node);
        let contents = match attr.kind {
            Kind::File => {
                let mut contents = vec![0; attr.size as usize];
                fs.read(&node, 0, &mut contents)?;
                contents
            }
            Kind::Symlink => fs.readlink(&node)?,
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in fs.listxattr(&node)? {
            xattrs.insert(name.clone(), fs.getxattr(&node, &name)?);
        }
        if attr.kind == Kind::Dir {
            let mut names = Vec::new();
            fs.readdir(&node, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })?;
            for name in names {
                let child = fs.lookup(&node, &name)?;
                if path.is_empty() && name == b".snapshots" {
                    attr.nlink -= 1;
                    continue;
                }
                todo.push(([&path[..], b"/", &name].concat(), child));
            }
        }
        all.insert(path, (attr, contents, xattrs));
    }
    Ok(all)
}

/// What a snapshot has, mounted.
pub fn picture_of(fs: &Ffs, name: &str) -> Picture {
    let disk = fs.snapshot_disk(name).expect("there is one");
    let view = mount(disk, true).expect("it mounts");
    assert!(view.snapshots().is_empty(), "there is none in it");
    picture(&view).expect("it is sound")
}

/// The bytes of a snapshot.
pub fn bytes_of(fs: &Ffs, name: &str) -> Vec<u8> {
    let disk = fs.snapshot_disk(name).expect("there is one");
    let into = vec![block::Buffer::zeroed(disk.len() as usize)];
    disk.read(0, into).expect("read")[0].to_vec()
}

pub fn assert_same(one: &Picture, other: &Picture, what: &str) {
    for (path, here) in one {
        let path = String::from_utf8_lossy(path);
        let there = other.get(path.as_bytes());
        let Some(there) = there else {
            panic!("{what}: {path} is missing");
        };
        assert_eq!(here.0, there.0, "{what}: attributes of {path}");
        assert!(here == there, "{what}: contents of {path}");
    }
    assert_eq!(one.len(), other.len(), "{what}: names");
}
/// A random run: what was recorded, and what each snapshot has.
pub struct Run {
    mode: Mode,
    trace: Trace,
    pictures: BTreeMap<String, Picture>,
    lost: bool,
}

pub fn run(seed: u64, mode: Mode) -> Run {
    let recorder = Arc::new(Recorder::new(formatted(4 << 20, mode)));
    let fs = mounted_on(Disk::new(recorder.clone()), mode);
    let mut random = Random::new(seed);
    let mut pictures = BTreeMap::new();
    for step in 0..60 {
        change(&fs, &mut random, step, MOVES);
        if random.one_in(12) {
            fs.syncfs().expect("synced");
        }
        let there = fs.snapshots();
        if random.one_in(8) && there.len() < 4 {
            let name = format!("s{step}");
            let now = picture(&fs).expect("sound");
            match fs.create_snapshot(&name, false) {
                Ok(_) => recorder.mark(format!("made {name}")),
                Err(SnapshotError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
            pictures.insert(name, now);
        } else if random.one_in(10) && !there.is_empty() {
            let name = &there[random.below(there.len() as u64) as usize].name;
            recorder.mark(format!("deleted {name}"));
            fs.delete_snapshot(name).expect("deleted");
        } else if random.one_in(4) && !there.is_empty() {
            let name = &there[random.below(there.len() as u64) as usize].name;
            assert_same(&pictures[name], &picture_of(&fs, name), name);
        }
    }
    fs.unmount().expect("unmounted");
    let lost = fs.snapshot_counts().0.lost > 0;
    Run {
        mode,
        trace: recorder.trace(),
        pictures,
        lost,
    }
}

/// Demands that the snapshots of a mount have what they are to have.
fn assert_kept(fs: &Ffs, run: &Run, what: &str) {
    for one in fs.snapshots() {
        let here = picture_of(fs, &one.name);
        assert_same(
            &run.pictures[&one.name],
            &here,
            &format!("{what}, {}", one.name),
        );
    }
}

/// Judges the states that crashes of a random run may leave: how many snapshots there were in them.
pub fn judge(seed: u64, mode: Mode, image: &Image) -> usize {
    let mut judged = 0;
    let run = run(seed, mode);
    for (number, point) in run.trace.points().into_iter().enumerate() {
        for token in run.trace.crash(point).states(4, seed) {
            let what = format!("TUREEN_REPLAY={seed}, {mode:?}, state {token}");
            let bytes = run.trace.replay(token).expect("a state of it");
            if number % 5 == 0 {
                let settled = Arc::new(Memory::from_bytes(bytes.clone()));
                replayed(&Disk::new(settled.clone()));
                std::fs::write(&image.path, settled.contents()).expect("written");
                let codes = problems(image);
                let is_bad = |code: &&u32| mode.is_journaled() || !is_harmless(**code);
                let harmful = codes.iter().find(is_bad);
                assert_eq!(harmful, None, "{what}: {codes:x?}");
            }
            let device = Arc::new(Memory::from_bytes(bytes));
            let fs = mount(Disk::new(device.clone()), true).expect("it mounts");
            assert_kept(&fs, &run, &what);
            let names: Vec<_> = fs.snapshots().into_iter().map(|one| one.name).collect();
            let marks: Vec<_> = run.trace.marks(point).collect();
            let is_due = |name: &&str| !marks.contains(&&*format!("deleted {name}"));
            let made = marks.iter().filter_map(|mark| mark.strip_prefix("made "));
            for name in made.filter(is_due).filter(|_| !run.lost) {
                assert!(
                    names.iter().any(|one| one == name),
                    "{what}: {name} is missing"
                );
            }
            judged += names.len();
            if number % 11 == 0 && !names.is_empty() {
                std::fs::write(&image.path, bytes_of(&fs, &names[0])).expect("written");
                assert!(problems(image).is_empty(), "{what}: {}", names[0]);
            }
            drop(fs);
            if number % 8 == 0 {
                assert_goes_on(&device, &run, image, &what);
            }
        }
    }
    judged
}

/// What a crash left is refused before it is repaired, if there is no log to be replayed, then
/// mounted, changed and unmounted, and the snapshots are as they were.
fn assert_goes_on(device: &Arc<Memory>, run: &Run, image: &Image, what: &str) {
    let disk = || Disk::new(device.clone());
    let names = || {
        let fs = mount(disk(), true).expect("it mounts");
        fs.snapshots().into_iter().map(|one| one.name)
    };
    let before: Vec<_> = names().collect();
    let is_clean = ffs::inspect(&disk()).expect("an image").clean;
    if !before.is_empty() && !is_clean && !run.mode.is_journaled() {
        let early = mount(disk(), false).err();
        assert!(
            matches!(early, Some(MountError::NotClean)),
            "{what}: {early:?}"
        );
    }
    repaired(&disk());
    assert!(names().eq(before), "{what}: the check dropped a snapshot");
    let fs = mounted(device.clone(), run.mode);
    assert_kept(&fs, run, &format!("{what}, repaired"));
    let mut random = Random::new(1);
    for step in 100..110 {
        change(&fs, &mut random, step, MOVES);
    }
    fs.syncfs().expect("synced");
    assert_kept(&fs, run, &format!("{what}, changed"));
    if let Some(one) = fs.snapshots().first() {
        fs.delete_snapshot(&one.name).expect("deleted");
    }
    fs.unmount().expect("unmounted");
    assert_kept(&fs, run, &format!("{what}, unmounted"));
    std::fs::write(&image.path, device.contents()).expect("written");
    let codes = problems(image);
    assert!(codes.is_empty(), "{what}, unmounted: {codes:x?}");
}

//! Snapshots: what they hold, and that they hold it in every state that a crash may leave.

mod changes;
mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use block::record::Trace;
use block::{Disk, Memory, Random, Recorder};
use changes::{DIR, FILE, MOVES, change};
use common::{Image, TIME, format_options, mount, mount_in, problems};
use e2fsprogs::is_harmless;
use ffs::{Ffs, FormatOptions, Mode, MountError, SnapshotError, check_keeping, format};
use vfs::{Attr, Errno, FileSystem, Kind, ManualClock, SetAttr};

fn formatted(len: u64) -> Arc<Memory> {
    let device = Arc::new(Memory::new(len));
    let options = FormatOptions {
        block_size: 1024,
        bytes_per_inode: 4096,
        ..format_options()
    };
    format(&Disk::new(device.clone()), &options).expect("formatted");
    device
}

fn mounted(device: Arc<Memory>) -> Ffs {
    let clock = Arc::new(ManualClock::new(TIME));
    mount_in(Disk::new(device), false, clock, Mode::Soft).expect("it mounts")
}

/// All that a file system has, by path: attributes, contents, extended attributes.
type Picture = BTreeMap<Vec<u8>, (Attr, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>)>;

fn picture(fs: &Ffs) -> vfs::Result<Picture> {
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
fn picture_of(fs: &Ffs, name: &str) -> Picture {
    let disk = fs.snapshot_disk(name).expect("there is one");
    let view = mount(disk, true).expect("it mounts");
    assert!(view.snapshots().is_empty(), "there is none in it");
    picture(&view).expect("it is sound")
}

/// The bytes of a snapshot.
fn bytes_of(fs: &Ffs, name: &str) -> Vec<u8> {
    let disk = fs.snapshot_disk(name).expect("there is one");
    let into = vec![block::Buffer::zeroed(disk.len() as usize)];
    disk.read(0, into).expect("read")[0].to_vec()
}

fn assert_same(one: &Picture, other: &Picture, what: &str) {
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

#[test]
fn a_snapshot_has_what_there_was() {
    needs_e2fsprogs!();
    let device = formatted(8 << 20);
    let fs = mounted(device.clone());
    let root = fs.root();
    let dir = fs.create(&root, b"dir", &DIR).expect("made");
    let kept = fs.create(&dir, b"kept", &FILE).expect("made");
    fs.write(&kept, 0, &[1; 300_000]).expect("written");
    let gone = fs.create(&dir, b"gone", &FILE).expect("made");
    fs.write(&gone, 0, &[2; 100_000]).expect("written");
    let open = fs.create(&dir, b"open", &FILE).expect("made");
    fs.write(&open, 0, &[3; 50_000]).expect("written");
    fs.unlink(&dir, b"open", &|_| Ok(())).expect("removed");
    let free = fs.statfs().free;
    let stop = fs.create_snapshot("one", false).expect("made");
    assert!(stop.flushes <= 6, "{stop:?}");
    let before = picture(&fs).expect("sound");
    let image = Image::new(0);
    std::fs::write(&image.path, bytes_of(&fs, "one")).expect("written");
    image.assert_clean();
    assert_same(&before, &picture_of(&fs, "one"), "at once");

    fs.write(&kept, 1000, &[7; 200_000]).expect("written");
    drop(gone);
    fs.unlink(&dir, b"gone", &|_| Ok(())).expect("removed");
    drop(open);
    for i in 0..50 {
        let name = format!("new{i}");
        fs.create(&root, name.as_bytes(), &FILE).expect("made");
    }
    fs.syncfs().expect("synced");
    let (counts, _) = fs.snapshot_counts();
    // What was freed is claimed, but for nothing: no block of it was copied.
    assert!(counts.claimed >= 98, "{counts:?}");
    assert!(counts.copied >= 196, "{counts:?}");
    assert_same(&before, &picture_of(&fs, "one"), "changed");
    std::fs::write(&image.path, bytes_of(&fs, "one")).expect("written");
    image.assert_clean();

    fs.unmount().expect("unmounted");
    drop((fs, root, dir, kept));
    std::fs::write(&image.path, device.contents()).expect("written");
    image.assert_clean();
    let stat = common::run(
        "debugfs",
        [
            "-R".as_ref(),
            "stat /.snapshots/one".as_ref(),
            image.path.as_os_str(),
        ],
    );
    assert!(stat.contains("Size: 8388608"), "{stat}");

    let fs = mounted(device.clone());
    assert_same(&before, &picture_of(&fs, "one"), "mounted again");
    fs.delete_snapshot("one").expect("deleted");
    fs.syncfs().expect("synced");
    assert!(matches!(
        fs.snapshot_disk("one"),
        Err(SnapshotError::Missing(_))
    ));
    assert!(fs.lookup(&fs.root(), b".snapshots").is_err());
    fs.unlink(
        &fs.lookup(&fs.root(), b"dir").expect("there"),
        b"kept",
        &|_| Ok(()),
    )
    .expect("removed");
    fs.syncfs().expect("synced");
    assert!(fs.statfs().free > free, "all space is back");
    fs.unmount().expect("unmounted");
    std::fs::write(&image.path, device.contents()).expect("written");
    image.assert_clean();
}

#[test]
fn snapshots_are_not_for_everybody() {
    let device = formatted(4 << 20);
    let fs = mounted(device.clone());
    let root = fs.root();
    fs.create(&root, b"file", &FILE).expect("made");
    for i in 0..20 {
        fs.create_snapshot(&format!("s{i}"), false).expect("made");
    }
    let refused = fs.create_snapshot("more", false);
    assert!(
        matches!(refused, Err(SnapshotError::TooMany)),
        "{refused:?}"
    );
    let refused = fs.create_snapshot("a/b", false);
    assert!(
        matches!(refused, Err(SnapshotError::Name(_))),
        "{refused:?}"
    );
    fs.delete_snapshot("s7").expect("deleted");
    let refused = fs.create_snapshot("s3", false);
    assert!(
        matches!(refused, Err(SnapshotError::Exists(_))),
        "{refused:?}"
    );
    let dir = fs.lookup(&root, b".snapshots").expect("there");
    let one = fs.lookup(&dir, b"s3").expect("there");
    let refused = Err(Errno::PERM.into());
    assert_eq!(fs.write(&one, 0, b"x").map(drop), refused);
    assert_eq!(fs.unlink(&dir, b"s3", &|_| Ok(())), refused);
    assert_eq!(fs.rmdir(&root, b".snapshots", &|_| Ok(())), refused);
    assert_eq!(fs.create(&dir, b"new", &FILE).map(drop), refused);
    assert_eq!(fs.setattr(&one, &SetAttr::default()).map(drop), refused);
    let mut bytes = vec![0; 4 << 20];
    assert_eq!(fs.read(&one, 0, &mut bytes), Ok(4 << 20));
    assert!(
        bytes == bytes_of(&fs, "s3"),
        "the file reads as the snapshot"
    );
    fs.unmount().expect("unmounted");

    let clock = Arc::new(ManualClock::new(TIME));
    let disk = || Disk::new(device.clone());
    let other = mount_in(disk(), false, clock, Mode::Async);
    assert!(matches!(other.err(), Some(MountError::Snapshots)));
    let reading = mount(disk(), true).expect("it mounts");
    assert_eq!(reading.snapshots().len(), 19);
    let refused = reading.create_snapshot("more", false);
    assert!(
        matches!(refused, Err(SnapshotError::ReadOnly)),
        "{refused:?}"
    );
}

#[test]
fn temporary_ones_and_those_that_others_may_have_changed_go_with_the_next_mount() {
    needs_e2fsprogs!();
    let device = formatted(4 << 20);
    let fs = mounted(device.clone());
    fs.create_snapshot("brief", true).expect("made");
    fs.create_snapshot("long", false).expect("made");
    fs.unmount().expect("unmounted");
    drop(fs);
    let fs = mounted(device.clone());
    let names = |fs: &Ffs| -> Vec<String> {
        fs.syncfs().expect("synced");
        fs.snapshots().into_iter().map(|one| one.name).collect()
    };
    assert_eq!(names(&fs), ["long"]);
    fs.unmount().expect("unmounted");
    drop(fs);
    // As a mount by somebody else leaves it: the mount counts.
    let mut bytes = device.contents();
    bytes[1024 + 52] += 1;
    let fs = mounted(Arc::new(Memory::from_bytes(bytes)));
    assert_eq!(names(&fs), Vec::<String>::new());
    assert!(fs.lookup(&fs.root(), b".snapshots").is_err());
    fs.unmount().expect("unmounted");
}

/// A full disk costs snapshots, and nothing else.
#[test]
fn without_space_a_snapshot_is_lost_and_nothing_else() {
    needs_e2fsprogs!();
    let device = formatted(4 << 20);
    let fs = mounted(device.clone());
    let root = fs.root();
    let file = fs.create(&root, b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 2_500_000]).expect("written");
    fs.create_snapshot("old", false).expect("made");
    for round in 2..6 {
        fs.write(&file, 0, &vec![round; 2_500_000])
            .expect("written");
        fs.syncfs().expect("synced");
    }
    fs.syncfs().expect("synced");
    assert_eq!(fs.snapshot_counts().0.lost, 1);
    assert!(fs.snapshots().is_empty());
    fs.unmount().expect("unmounted");
    let image = Image::new(0);
    std::fs::write(&image.path, device.contents()).expect("written");
    image.assert_clean();
}

/// A random run: what was recorded, and what each snapshot has.
struct Run {
    trace: Trace,
    pictures: BTreeMap<String, Picture>,
    lost: bool,
}

fn run(seed: u64) -> Run {
    let recorder = Arc::new(Recorder::new(formatted(4 << 20)));
    let clock = Arc::new(ManualClock::new(TIME));
    let disk = Disk::new(recorder.clone());
    let fs = mount_in(disk, false, clock, Mode::Soft).expect("it mounts");
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
                Err(SnapshotError::Fs(vfs::Error::Errno(Errno::NOSPC))) => {}
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

#[test]
fn a_crash_leaves_each_snapshot_as_it_was() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    let mut judged = 0;
    for seed in common::seeds(3) {
        let run = run(seed);
        for (number, point) in run.trace.points().into_iter().enumerate() {
            for token in run.trace.crash(point).states(4, seed) {
                let what = format!("TUREEN_REPLAY={seed}, state {token}");
                let bytes = run.trace.replay(token).expect("a state of it");
                if number % 5 == 0 {
                    std::fs::write(&image.path, &bytes).expect("written");
                    let codes = problems(&image);
                    let harmful = codes.iter().find(|&&code| !is_harmless(code));
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
                    assert!(problems(&image).is_empty(), "{what}: {}", names[0]);
                }
                drop(fs);
                if number % 8 == 0 {
                    assert_goes_on(&device, &run, &image, &what);
                }
            }
        }
    }
    assert!(judged > 100, "{judged} snapshots were judged");
}

/// What a crash left is refused before it is repaired, then mounted, changed and unmounted, and the snapshots are as they
/// were.
fn assert_goes_on(device: &Arc<Memory>, run: &Run, image: &Image, what: &str) {
    let disk = || Disk::new(device.clone());
    let names = || {
        let fs = mount(disk(), true).expect("it mounts");
        fs.snapshots().into_iter().map(|one| one.name)
    };
    let before: Vec<_> = names().collect();
    let is_clean = ffs::inspect(&disk()).expect("an image").clean;
    if !before.is_empty() && !is_clean {
        let early = mount(disk(), false).err();
        assert!(
            matches!(early, Some(MountError::NotClean)),
            "{what}: {early:?}"
        );
    }
    let report = check_keeping(&disk(), true, TIME, &|_, _, _| ()).expect("checked");
    if report.exit_code() > 1 {
        return; // names were exchanged: it needs decisions
    }
    assert!(names().eq(before), "{what}: the check dropped a snapshot");
    let fs = mount(disk(), false).expect("it mounts");
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

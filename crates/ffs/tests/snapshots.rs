//! Snapshots: what they hold, and that they hold it in every state that a crash may leave.

mod changes;
mod common;
mod kept;

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{Disk, Fault, Faults, Memory, Recorder};
use changes::{DIR, FILE};
use common::{Image, TIME, memory, mount, mount_in};
use ffs::{Ffs, Mode, MountError, MountOptions, SnapshotError, check_keeping};
use kept::{
    MODES, Picture, assert_same, bytes_of, formatted, judge, mounted, mounted_on, picture,
    picture_of, repaired,
};
use schedule::Task;
use vfs::{Errno, FileSystem, ManualClock, SetAttr};

#[test]
fn a_snapshot_has_what_there_was() {
    needs_e2fsprogs!();
    MODES.into_iter().for_each(has_what_there_was);
}

fn has_what_there_was(mode: Mode) {
    let device = formatted(8 << 20, mode);
    let len = device.contents().len();
    let fs = mounted(device.clone(), mode);
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
    assert!(stop.flushes <= 6, "{mode:?}: {stop:?}");
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
    assert!(counts.claimed >= 98, "{mode:?}: {counts:?}");
    assert!(counts.copied >= 196, "{mode:?}: {counts:?}");
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
    assert!(stat.contains(&format!("Size: {len}")), "{stat}");

    let fs = mounted(device.clone(), mode);
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

/// The check voided the mark, and the next mount took the snapshots for those of others.
#[test]
fn a_check_of_what_is_clean_keeps_snapshots() {
    for mode in MODES {
        let device = formatted(4 << 20, mode);
        let fs = mounted(device.clone(), mode);
        fs.create_snapshot("one", false).expect("made");
        fs.unmount().expect("unmounted");
        drop(fs);
        let report = check_keeping(&Disk::new(device.clone()), true, TIME, &|_, _, _| ());
        assert_eq!(report.expect("an image").exit_code(), 0);
        let fs = mounted(device, mode);
        assert!(fs.snapshot_disk("one").is_ok());
    }
}

/// It went over the image twice to find nothing, three times to free a block, and five times to
/// remove an inode without a name.
#[test]
fn a_check_goes_over_an_image_with_snapshots_as_often_as_over_any() {
    let device = formatted(8 << 20, Mode::Soft);
    let fs = mounted(device.clone(), Mode::Soft);
    fs.create_snapshot("one", false).expect("made");
    fs.create(&fs.root(), b"nameless", &FILE).expect("made");
    fs.unmount().expect("unmounted");
    // As if it had not been: the state is not that of a clean image.
    let mut whole = device.contents();
    whole[1024 + 58] &= !1;
    // Of the only group, whose descriptor begins block 2.
    let bitmap = u32::from_le_bytes(whole[2048..2052].try_into().expect("four bytes"));
    let mut leaking = whole.clone();
    leaking[bitmap as usize * 1024 + 1000] |= 1;
    let mut nameless = leaking.clone();
    let is_name = |bytes: &[u8]| bytes == b"nameless";
    let name = whole.windows(8).position(is_name).expect("there");
    nameless[name - 8..name - 4].fill(0);

    for (what, bytes, passes, code) in [
        ("whole", whole, 1, 0),
        ("leaking", leaking, 1, 1),
        ("nameless", nameless, 2, 1),
    ] {
        let device = Arc::new(Memory::from_bytes(bytes));
        let checked = |repair| {
            let disk = Disk::new(device.clone());
            let report = check_keeping(&disk, repair, TIME, &|_, _, _| ()).expect("an image");
            (report, disk.stats().bytes_read)
        };
        let (_, once) = checked(false);
        let (report, read) = checked(true);
        assert_eq!(report.exit_code(), code, "{what}: {report}");
        // What is read of snapshots, and of bitmaps once more, is little.
        let most = passes * once + once / 2;
        assert!(
            read < most,
            "{what}: {read} bytes, of {once} that there are"
        );
        assert_eq!(checked(false).0.exit_code(), 0, "{what}");
        let fs = mounted(device.clone(), Mode::Soft);
        assert!(fs.snapshot_disk("one").is_ok(), "{what}");
    }
}

/// What a snapshot gets while it is repaired is counted in its inode, whose count is repaired, too.
#[test]
fn a_check_repairs_a_count_of_blocks_of_a_snapshot_that_gets_copies() {
    let device = formatted(4 << 20, Mode::Soft);
    let fs = mounted(device.clone(), Mode::Soft);
    let root = fs.root();
    let made = |i: u8| fs.create(&root, &[b'a' + i], &FILE).expect("made");
    let made: Vec<_> = (0..8).map(made).collect();
    // In another block of inodes than the snapshot.
    let old = fs.attr(&made[0]).ino;
    fs.create_snapshot("one", false).expect("made");
    let dir = fs.lookup(&root, b".snapshots").expect("there");
    let one = fs.attr(&fs.lookup(&dir, b"one").expect("there")).ino;
    assert!(one > old + 7, "{old} and {one}");
    fs.unmount().expect("unmounted");
    drop((root, dir, made, fs));
    let mut bytes = device.contents();
    bytes[1024 + 58] &= !1;
    let table = u32::from_le_bytes(bytes[2056..2060].try_into().expect("four bytes"));
    for ino in [old, one] {
        // The sectors of an inode.
        bytes[table as usize * 1024 + (ino - 1) as usize * 256 + 28] ^= 4;
    }
    let disk = memory(bytes);
    let reading = mount(disk.clone(), true).expect("it mounts");
    let before = picture_of(&reading, "one");
    let check = |repair| check_keeping(&disk, repair, TIME, &|_, _, _| ()).expect("an image");
    // And the counts of the group: a copy was made.
    let report = check(true);
    assert_eq!(report.findings.len(), 3, "{report}");
    let report = check(false);
    assert_eq!(report.exit_code(), 0, "{report}");
    let fs = mounted_on(disk.clone(), Mode::Soft);
    assert_same(&before, &picture_of(&fs, "one"), "repaired");
}

/// Each mode has what another one has kept, and goes on.
#[test]
fn modes_take_turns() {
    needs_e2fsprogs!();
    let device = formatted(8 << 20, Mode::Journal);
    let image = Image::new(0);
    let mut pictures: Vec<(String, Picture)> = Vec::new();
    for round in 0..9 {
        let mode = MODES[round % 3];
        let fs = mounted(device.clone(), mode);
        let root = fs.root();
        for (name, before) in &pictures {
            assert_same(before, &picture_of(&fs, name), &format!("{round}: {name}"));
        }
        let (gone, name) = (format!("file{}", round / 2), format!("file{round}"));
        if round % 2 == 1 {
            let removed = fs.unlink(&root, gone.as_bytes(), &|_| Ok(()));
            removed.expect("removed");
        }
        let file = fs.create(&root, name.as_bytes(), &FILE).expect("made");
        let contents = vec![round as u8; 50_000];
        fs.write(&file, 0, &contents).expect("written");
        let name = format!("s{round}");
        fs.create_snapshot(&name, false).expect("made");
        pictures.push((name, picture(&fs).expect("sound")));
        fs.write(&file, 10_000, &[0xEE; 20_000]).expect("written");
        if round % 3 == 2 {
            let (name, _) = pictures.swap_remove(round / 3);
            fs.delete_snapshot(&name).expect("deleted");
        }
        assert_eq!(fs.snapshot_counts().0.lost, 0, "{round}");
        fs.unmount().expect("unmounted");
        drop((root, file, fs));
        std::fs::write(&image.path, device.contents()).expect("written");
        image.assert_clean();
    }
    let fs = mount(Disk::new(device), true).expect("it mounts");
    for (name, before) in &pictures {
        assert_same(before, &picture_of(&fs, name), name);
        std::fs::write(&image.path, bytes_of(&fs, name)).expect("written");
        image.assert_clean();
    }
}

/// What each state holds that a crash may leave while `work` writes to an image.
fn crashed(bytes: Vec<u8>, work: impl FnOnce(Disk)) -> Vec<Arc<Memory>> {
    let mut states = Vec::new();
    let keep = |bytes| states.push(Arc::new(Memory::from_bytes(bytes)));
    each_crashed(bytes, work, keep);
    states
}

/// The same, one at a time.
fn each_crashed(bytes: Vec<u8>, work: impl FnOnce(Disk), mut look_at: impl FnMut(Vec<u8>)) {
    let recorder = Arc::new(Recorder::new(Arc::new(Memory::from_bytes(bytes))));
    work(Disk::new(recorder.clone()));
    let trace = recorder.trace();
    for point in trace.points() {
        for token in trace.crash(point).states(4, 1) {
            look_at(trace.replay(token).expect("a state of it"));
        }
    }
}

/// The check marked the image clean, and only then that snapshots are whole in it: the mount behind
/// a crash between dropped them all.
#[test]
fn a_check_that_is_cut_short_keeps_snapshots() {
    MODES.into_iter().for_each(cut_short_it_keeps_snapshots);
}

fn cut_short_it_keeps_snapshots(mode: Mode) {
    let device = formatted(2 << 20, mode);
    let fs = mounted(device.clone(), mode);
    fs.create(&fs.root(), b"file", &FILE).expect("made");
    fs.create_snapshot("one", false).expect("made");
    let before = picture(&fs).expect("sound");
    // It is not unmounted: a file is lost, too.
    let new = fs.tmpfile(&fs.root(), &FILE).expect("made");
    fs.write(&new, 0, &[1; 5000]).expect("written");
    fs.syncfs().expect("synced");
    let states = crashed(device.contents(), |disk| repaired(&disk));
    assert!(states.len() > 4, "{}", states.len());
    for (number, state) in states.into_iter().enumerate() {
        repaired(&Disk::new(state.clone()));
        let what = format!("{mode:?}, state {number}");
        assert_same(&before, &picture_of(&mounted(state, mode), "one"), &what);
    }
}

/// The check freed it. Copies were put there then, which waited for themselves, so the snapshot was
/// lost.
#[test]
fn what_was_freed_when_a_crash_came_is_claimed_behind_it() {
    MODES.into_iter().for_each(what_was_freed_is_claimed);
}

fn what_was_freed_is_claimed(mode: Mode) {
    let device = formatted(2 << 20, mode);
    let fs = mounted(device.clone(), mode);
    let root = fs.root();
    for name in [b"gone", b"kept"] {
        let file = fs.create(&root, name, &FILE).expect("made");
        fs.write(&file, 0, &[1; 100_000]).expect("written");
    }
    fs.create_snapshot("one", false).expect("made");
    let before = picture(&fs).expect("sound");
    fs.unmount().expect("unmounted");
    let states = crashed(device.contents(), |disk| {
        let fs = mounted_on(disk, mode);
        fs.unlink(&fs.root(), b"gone", &|_| Ok(()))
            .expect("removed");
        fs.syncfs().expect("synced");
    });
    assert!(states.len() > 4, "{}", states.len());
    for (number, state) in states.into_iter().enumerate() {
        let what = format!("{mode:?}, state {number}");
        let disk = Disk::new(state.clone());
        repaired(&disk);
        let fs = mounted(state, mode);
        let kept = fs.lookup(&fs.root(), b"kept").expect("there");
        fs.write(&kept, 0, &[2; 100_000]).expect("written");
        fs.syncfs().expect("synced");
        assert_eq!(fs.snapshot_counts().0.lost, 0, "{what}");
        assert_same(&before, &picture_of(&fs, "one"), &what);
        fs.unmount().expect("unmounted");
        drop(fs);
        let report = check_keeping(&disk, false, TIME, &|_, _, _| ()).expect("an image");
        assert_eq!(report.exit_code(), 0, "{what}: {report}");
    }
}

/// An empty directory stayed, and was in the way of the next snapshot.
#[test]
fn the_directory_of_snapshots_goes_if_a_crash_leaves_it_empty() {
    MODES.into_iter().for_each(an_empty_directory_goes);
}

fn an_empty_directory_goes(mode: Mode) {
    let mut empty = 0;
    let states = crashed(formatted(2 << 20, mode).contents(), |disk| {
        let fs = mounted_on(disk, mode);
        fs.create_snapshot("one", false).expect("made");
        fs.delete_snapshot("one").expect("deleted");
    });
    for state in states {
        repaired(&Disk::new(state.clone()));
        let fs = mount(Disk::new(state.clone()), true).expect("it mounts");
        if let Ok(dir) = fs.lookup(&fs.root(), b".snapshots") {
            let mut is_empty = true;
            let listed = fs.readdir(&dir, 0, &mut |_| {
                is_empty = false;
                true
            });
            listed.expect("it is read");
            empty += usize::from(is_empty);
        }
        let fs = mounted(state, mode);
        fs.syncfs().expect("synced");
        let is_there = fs.lookup(&fs.root(), b".snapshots").is_ok();
        assert_eq!(is_there, !fs.snapshots().is_empty());
        fs.create_snapshot("two", false).expect("made");
    }
    // What is made together is there together.
    let may_be = !mode.is_journaled();
    assert!(empty > 0 || !may_be, "no crash leaves an empty one");
}

#[test]
fn snapshots_are_not_for_everybody() {
    MODES.into_iter().for_each(are_not_for_everybody);
}

fn are_not_for_everybody(mode: Mode) {
    let device = formatted(4 << 20, mode);
    let len = device.contents().len();
    let fs = mounted(device.clone(), mode);
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
    let mut bytes = vec![0; len];
    assert_eq!(fs.read(&one, 0, &mut bytes), Ok(len));
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
    MODES.into_iter().for_each(some_go_with_the_next_mount);
}

fn some_go_with_the_next_mount(mode: Mode) {
    let device = formatted(4 << 20, mode);
    let fs = mounted(device.clone(), mode);
    fs.create_snapshot("brief", true).expect("made");
    fs.create_snapshot("long", false).expect("made");
    fs.unmount().expect("unmounted");
    drop(fs);
    let fs = mounted(device.clone(), mode);
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
    let fs = mounted(Arc::new(Memory::from_bytes(bytes)), mode);
    assert_eq!(names(&fs), Vec::<String>::new());
    assert!(fs.lookup(&fs.root(), b".snapshots").is_err());
    fs.unmount().expect("unmounted");
}

#[test]
fn who_finds_no_space_for_a_snapshot_is_told_what_to_do() {
    let fs = mounted(formatted(4 << 20, Mode::Soft), Mode::Soft);
    let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
    let full = (0..).find_map(|block| fs.write(&file, block * 4096, &[1; 4096]).err());
    assert_eq!(full, Some(Errno::NOSPC.into()));
    let refused = fs.create_snapshot("one", false).expect_err("no space");
    assert!(matches!(refused, SnapshotError::NoSpace), "{refused:?}");
    assert!(refused.to_string().contains("tureen snapshot delete"));
    fs.unlink(&fs.root(), b"file", &|_| Ok(()))
        .expect("removed");
    drop(file);
    fs.create_snapshot("one", false).expect("there is space");
    fs.unmount().expect("unmounted");
}

/// A full disk costs snapshots, and nothing else.
#[test]
fn without_space_a_snapshot_is_lost_and_nothing_else() {
    needs_e2fsprogs!();
    MODES.into_iter().for_each(without_space_it_is_lost);
}

fn without_space_it_is_lost(mode: Mode) {
    let device = formatted(4 << 20, mode);
    let fs = mounted(device.clone(), mode);
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

/// A snapshot that could not claim what was freed wants the very blocks that its own copies are put
/// into. It ended in one patch with copies that were in place before: a crash left it with those.
#[test]
fn a_snapshot_that_is_lost_is_whole_in_each_state_in_which_it_is_one() {
    // Elsewhere nothing is written before it is known what snapshots have of it.
    [Mode::Ordered, Mode::Journal]
        .into_iter()
        .for_each(is_whole_until_it_is_lost);
}

fn is_whole_until_it_is_lost(mode: Mode) {
    let device = formatted(4 << 20, mode);
    let fs = mounted(device.clone(), mode);
    let root = fs.root();
    let fill = |name: &[u8], len: usize| {
        let there = fs.lookup(&root, name);
        let file = there.unwrap_or_else(|_| fs.create(&root, name, &FILE).expect("made"));
        for at in (0..len).step_by(1024) {
            if fs.write(&file, at as u64, &[name[0]; 1024]) == Err(Errno::NOSPC.into()) {
                return;
            }
        }
    };
    fill(b"gone", 1_400_000);
    fill(b"kept", 1_300_000);
    fs.create_snapshot("one", false).expect("made");
    // It gets what else the removal changes, and then there is no space.
    fill(b"rest", 1);
    let open = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    for name in [&b"gone"[..], b"kept"] {
        let file = fs.lookup(&root, name).expect("there");
        fs.setattr(&file, &open).expect("set");
    }
    fs.syncfs().expect("synced");
    fill(b"rest", usize::MAX);
    fs.syncfs().expect("synced");
    let before = picture_of(&fs, "one");
    fs.unlink(&root, b"gone", &|_| Ok(())).expect("removed");
    fs.syncfs().expect("synced");
    let (counts, _) = fs.snapshot_counts();
    assert_eq!(counts.lost, 0, "{mode:?}");
    assert!(counts.claimed < 1000, "{mode:?}: {counts:?}");
    fs.unmount().expect("unmounted");
    drop((root, fs));
    let (mut there, mut gone) = (0, 0);
    let look_at = |state: Vec<u8>| {
        let fs = mount(memory(state), true).expect("it mounts");
        match fs.snapshots().is_empty() {
            true => gone += 1,
            false => {
                there += 1;
                assert_same(&before, &picture_of(&fs, "one"), &format!("{mode:?}"));
            }
        }
    };
    let work = |disk| {
        let fs = mounted_on(disk, mode);
        let kept = fs.lookup(&fs.root(), b"kept").expect("there");
        fs.write(&kept, 0, &[0xEE; 1_300_000]).expect("written");
        fs.syncfs().expect("synced");
        assert_eq!(fs.snapshot_counts().0.lost, 1, "{mode:?}");
    };
    each_crashed(device.contents(), work, look_at);
    assert!(there > 10 && gone > 10, "{mode:?}: {there}, {gone}");
}

/// Beside a log, where what a snapshot's own copies take is counted before it is one. The second
/// block of descriptors was none of those that had a copy.
#[test]
fn a_snapshot_has_copies_of_all_descriptors_from_the_beginning() {
    needs_e2fsprogs!();
    for mode in [Mode::Ordered, Mode::Journal] {
        // A block of descriptors is of 32 groups.
        let options = [
            "-b",
            "1024",
            "-g",
            "256",
            "-J",
            "size=1",
            "-O",
            "^resize_inode",
        ];
        let image = Image::mke2fs(12 << 20, &options);
        let device = Arc::new(Memory::from_bytes(common::read(&image.path)));
        let fs = mounted(device.clone(), mode);
        fs.create_snapshot("one", false).expect("made");
        std::fs::write(&image.path, bytes_of(&fs, "one")).expect("written");
        image.assert_clean();
        fs.unmount().expect("unmounted");
        std::fs::write(&image.path, device.contents()).expect("written");
        for at in [2, 3] {
            let command = format!("bmap /.snapshots/one {at}");
            let arguments = ["-R".as_ref(), command.as_ref(), image.path.as_os_str()];
            let copy = common::run("debugfs", arguments);
            assert_ne!(copy.trim(), "0", "{mode:?}: block {at}");
        }
    }
}

/// Who reads a snapshot while it gets a copy has what was there: it was zeros, for a moment.
#[test]
fn a_copy_is_not_read_before_it_has_been_filled() {
    [Mode::Ordered, Mode::Journal].into_iter().for_each(|mode| {
        let mut stopped = BTreeSet::new();
        for points in 0.. {
            let fs = mounted(formatted(2 << 20, mode), mode);
            let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
            fs.write(&file, 0, &[1; 4096]).expect("written");
            fs.create_snapshot("one", false).expect("made");
            let before = bytes_of(&fs, "one");
            fs.write(&file, 0, &[2; 4096]).expect("written");
            let write = || {
                fs.syncfs().expect("synced");
                Vec::new()
            };
            let tasks = vec![
                Task::stopping(points, write),
                Task::new(|| bytes_of(&fs, "one")),
            ];
            let mut ended = schedule::run(tasks);
            let read = ended.pop().expect("two tasks").result;
            let at = ended[0].stopped;
            assert!(read == before, "{mode:?}: {at:?}, {points}");
            let Some(at) = at else { break };
            stopped.insert(at);
        }
        assert!(
            stopped.contains("a snapshot leads to a copy"),
            "{stopped:?}"
        );
    });
}

/// A read that failed while the journal was looked for was taken for a journal that makes no sense:
/// until the next mount snapshots had the log as it is.
#[test]
fn a_journal_that_the_disk_fails_to_read_is_looked_for_again() {
    let device = formatted(4 << 20, Mode::Ordered);
    let fs = mounted(device.clone(), Mode::Ordered);
    let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 50_000]).expect("written");
    fs.create_snapshot("one", false).expect("made");
    fs.unmount().expect("unmounted");
    drop((file, fs));
    let reading = mount(Disk::new(device.clone()), true).expect("it mounts");
    let whole = bytes_of(&reading, "one");

    let mut failed = 0;
    for number in 0.. {
        let faults = Arc::new(Faults::new(device.clone()));
        let options = MountOptions {
            cache_bytes: 16 << 10,
            ..common::mount_options(false, Mode::Soft)
        };
        let clock = Arc::new(ManualClock::new(TIME));
        let fs = Ffs::mount(Disk::new(faults.clone()), clock, options).expect("it mounts");
        // What the mount has read of the journal goes.
        let file = fs.lookup(&fs.root(), b"file").expect("there");
        let read = fs.read(&file, 0, &mut [0; 50_000]).expect("read");
        assert_eq!(read, 50_000);
        let request = faults.seen().len() + number;
        // Who fails to read several blocks reads one.
        for request in [request, request + 1] {
            faults.plan(request, Fault::Fail(rustix::io::Errno::IO));
        }
        let disk = fs.snapshot_disk("one");
        if faults.seen().len() <= request {
            break;
        }
        failed += u32::from(disk.is_err());
        assert!(bytes_of(&fs, "one") == whole, "request {number}");
        fs.unmount().expect("unmounted");
    }
    assert!(failed > 1, "{failed} were not done");
}

/// One that could not say what it wants was waited for without end by what ends it.
#[test]
fn a_damaged_snapshot_is_lost_and_nothing_else() {
    needs_e2fsprogs!();
    MODES.into_iter().for_each(damaged_it_is_lost);
}

fn damaged_it_is_lost(mode: Mode) {
    let device = formatted(4 << 20, mode);
    let fs = mounted(device.clone(), mode);
    fs.create_snapshot("one", false).expect("made");
    fs.unmount().expect("unmounted");
    drop(fs);
    let image = Image::new(0);
    std::fs::write(&image.path, device.contents()).expect("written");
    let path = image.path.to_str().expect("a path");
    for block in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "IND"] {
        let command = format!("sif /.snapshots/one block[{block}] 99999");
        common::run("debugfs", ["-w", "-R", &command, path]);
    }
    let damaged = Arc::new(Memory::from_bytes(common::read(&image.path)));
    let fs = mounted(damaged, mode);
    let root = fs.root();
    let new = fs.create(&root, b"new", &FILE).expect("made");
    fs.write(&new, 0, &[1; 100_000]).expect("written");
    fs.syncfs().expect("synced");
    assert_eq!(fs.snapshot_counts().0.lost, 1);
    assert!(fs.snapshots().is_empty());
    if mode.is_journaled() {
        // What of its file cannot be freed stays in the list of orphans.
        fs.unmount().expect("unmounted");
        return;
    }
    // Its file is removed then, and the damage told.
    let error = fs.unmount().expect_err("damage").to_string();
    assert!(error.contains("leads to block 99999"), "{error}");
}

/// One whose bitmap says that all was in use wants its own copies, and waited for itself.
#[test]
fn a_snapshot_that_wants_its_own_copies_is_lost_and_nothing_else() {
    needs_e2fsprogs!();
    MODES.into_iter().for_each(it_wants_its_own_copies);
}

fn it_wants_its_own_copies(mode: Mode) {
    let device = formatted(2 << 20, mode);
    let fs = mounted(device.clone(), mode);
    fs.create_snapshot("one", false).expect("made");
    fs.unmount().expect("unmounted");
    drop(fs);
    let image = Image::new(0);
    let mut bytes = device.contents();
    std::fs::write(&image.path, &bytes).expect("written");
    // Of the only group, whose descriptor begins block 2.
    let bitmap = u32::from_le_bytes(bytes[2048..2052].try_into().expect("four bytes"));
    let command = format!("bmap /.snapshots/one {bitmap}");
    let path = image.path.to_str().expect("a path");
    let copy = common::run("debugfs", ["-R", &command, path]);
    let copy: usize = copy.trim().parse().expect("a number");
    bytes[copy * 1024..][..1024].fill(0xFF);
    let device = Arc::new(Memory::from_bytes(bytes));
    let fs = mounted(device.clone(), mode);
    let new = fs.create(&fs.root(), b"new", &FILE).expect("made");
    fs.write(&new, 0, &[1; 300_000]).expect("written");
    fs.syncfs().expect("synced");
    assert_eq!(fs.snapshot_counts().0.lost, 1);
    assert_eq!(fs.status().out_of_order, 0);
    fs.unmount().expect("unmounted");
    std::fs::write(&image.path, device.contents()).expect("written");
    image.assert_clean();
}

#[test]
fn a_crash_leaves_each_snapshot_as_it_was() {
    needs_e2fsprogs!();
    let image = Image::new(0);
    for mode in MODES {
        let seeds = common::seeds(3);
        let judged: usize = seeds.map(|seed| judge(seed, mode, &image)).sum();
        assert!(judged > 100, "{mode:?}: {judged} snapshots were judged");
    }
}

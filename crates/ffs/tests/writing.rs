//! Changes, judged by the cases that every engine must pass, by the reference file system, and by
//! e2fsck after each unmount.

mod common;

use std::sync::Arc;

use block::{Buffer, Disk, Memory, Random};
use common::{FOREIGN, Image, foreign, format_options, memory, mount_at, mount_in, mount_options};
use ffs::{Ffs, FormatOptions, Mode, MountOptions, format};
use model::differential::{Config, check, check_shared};
use model::{Engine, Feature};
use vfs::{
    Clock, Errno, FileSystem, Kind, ManualClock, NewKind, NewNode, Place, RenameMode, SetAttr,
    Time, XattrMode,
};

/// ext2 in memory, as the judges mount it.
#[derive(Clone)]
struct Ext2 {
    len: u64,
    options: FormatOptions,
    mode: Mode,
}

impl Default for Ext2 {
    fn default() -> Ext2 {
        Ext2 {
            len: 16 << 20,
            options: FormatOptions {
                block_size: 1024,
                bytes_per_inode: 1024,
                ..format_options()
            },
            mode: Mode::Soft,
        }
    }
}

/// A plain new file.
const FILE: NewNode<'static> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};
const LOST: &[u8] = b"lost+found";

impl Engine for Ext2 {
    type Fs = Ffs;

    fn lacks(&self, feature: Feature) -> Option<&'static str> {
        let is_early = feature == Feature::EarlyTimes;
        is_early.then_some("the format has times from 1901 on")
    }

    fn make(&self, clock: Arc<dyn Clock>) -> Ffs {
        let device = Arc::new(Memory::new(self.len));
        let options = FormatOptions {
            time: clock.now(),
            journal: self.mode.is_journaled(),
            ..self.options.clone()
        };
        format(&Disk::new(device.clone()), &options).expect("formatted");
        let fs = mount_in(Disk::new(device), false, clock, self.mode).expect("it mounts");
        // The reference has no such directory.
        fs.rmdir(&fs.root(), LOST, &|_| Ok(()))
            .expect("it is empty");
        fs
    }

    fn remount(&self, fs: Ffs) -> Ffs {
        let root = fs.attr(&fs.root());
        let lost = NewNode {
            kind: NewKind::Dir,
            perm: 0o700,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        // e2fsck wants it.
        let is_there = fs.create(&fs.root(), LOST, &lost).is_ok();
        fs.unmount().expect("unmounted");
        let (bytes, clock) = (contents(fs.disk()), fs.clock());
        drop(fs);
        if is_there && common::has_e2fsprogs() {
            let image = Image::new(bytes.len() as u64);
            std::fs::write(&image.path, &bytes).expect("written");
            image.assert_clean();
        }
        let fs = mount_in(memory(bytes), false, clock, self.mode).expect("it is clean");
        if is_there {
            fs.rmdir(&fs.root(), LOST, &|_| Ok(()))
                .expect("it is empty");
            let times = SetAttr {
                mtime: Some(root.mtime),
                ctime: Some(root.ctime),
                ..SetAttr::default()
            };
            fs.setattr(&fs.root(), &times).expect("times");
        }
        fs
    }
}

fn contents(disk: &Disk) -> Vec<u8> {
    let into = vec![Buffer::zeroed(disk.len() as usize)];
    disk.read(0, into).expect("read")[0].to_vec()
}

// The other modes keep the same structures: random sequences have them below, crashes elsewhere.

mod cases {
    use super::*;

    model::engine_cases!(Ext2::default());
}

mod cases_with_all_in_a_journal {
    use super::*;

    model::engine_cases!(Ext2 {
        mode: Mode::Journal,
        ..Ext2::default()
    });
}

/// One with room for all that a long sequence may write.
fn roomy(block_size: u32, mode: Mode) -> Ext2 {
    let engine = Ext2::default();
    Ext2 {
        len: 48 << 20,
        options: FormatOptions {
            block_size,
            bytes_per_inode: 4096,
            ..engine.options
        },
        mode,
    }
}

#[test]
fn long_sequences_are_as_the_reference_has_them() {
    check(Config::default(), 0..4, &roomy(1024, Mode::Soft));
    check(Config::default(), 4..8, &roomy(4096, Mode::Soft));
    check(Config::default(), 8..10, &roomy(1024, Mode::Ordered));
    check(Config::default(), 10..12, &roomy(1024, Mode::Journal));
    check(Config::default(), 12..13, &roomy(4096, Mode::Sync));
    check(Config::default(), 13..15, &roomy(1024, Mode::Async));
}

#[test]
fn long_sequences_of_threads_are_as_the_reference_has_them() {
    let threads = Config {
        ops: 500,
        threads: 3,
        ..Config::default()
    };
    check(threads, 0..5, &roomy(1024, Mode::Soft));
    check(threads, 5..7, &roomy(1024, Mode::Ordered));
    check(threads, 7..9, &roomy(1024, Mode::Journal));
    check(threads, 9..10, &roomy(1024, Mode::Async));
}

#[test]
fn what_threads_do_at_once_is_what_some_order_of_it_does() {
    check_shared(0..100, &Ext2::default());
}

#[test]
fn what_is_full_says_so_and_comes_back() {
    for mode in [Mode::Soft, Mode::Ordered, Mode::Journal] {
        fill(&Ext2 {
            len: 3 << 20,
            mode,
            ..Ext2::default()
        });
    }
}

fn fill(engine: &Ext2) {
    let fs = engine.make(Arc::new(ManualClock::new(common::TIME)));
    let free = fs.statfs().free;
    for round in 0..3 {
        let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
        let mut at = 0;
        let error = loop {
            match fs.write(&file, at, &[round; 5000]) {
                Ok(written) => at += written as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error, vfs::Errno::NOSPC.into());
        assert_eq!(fs.statfs().free, 0);
        fs.unlink(&fs.root(), b"file", &|_| Ok(()))
            .expect("removed");
        assert_eq!(fs.statfs().free, 0, "it is still open");
        drop(file);
        assert_eq!(fs.statfs().free, free);
    }
    drop(engine.remount(fs));
}

/// The only free inode is that of a file which was removed while it was open, and has no blocks.
#[test]
fn an_inode_that_was_in_use_without_a_name_is_there_for_who_finds_no_other() {
    for mode in [Mode::Soft, Mode::Ordered, Mode::Journal, Mode::Async] {
        let engine = Ext2 {
            options: FormatOptions {
                bytes_per_inode: 1 << 20,
                ..Ext2::default().options
            },
            mode,
            ..Ext2::default()
        };
        let fs = engine.make(Arc::new(ManualClock::new(common::TIME)));
        let root = fs.root();
        let first = fs.create(&root, b"first", &FILE).expect("made");
        let mut names = (0..).map(|number| number.to_string());
        let full = |name: &String| fs.create(&root, name.as_bytes(), &FILE).is_err();
        let last = names.find(full).expect("there is an end");
        fs.unlink(&root, b"first", &|_| Ok(())).expect("removed");
        let made = |name: &str| fs.create(&root, name.as_bytes(), &FILE).map(drop);
        assert_eq!(
            made(&last),
            Err(Errno::NOSPC.into()),
            "it is open, {mode:?}"
        );
        drop(first);
        assert_eq!(made(&last), Ok(()), "{mode:?}");
        drop(engine.remount(fs));
    }
}

/// Inodes of 128 bytes have whole seconds, from 1901 to 2038; others nanoseconds, from 1901.
#[test]
fn times_are_shown_as_the_disk_keeps_them() {
    let secs = [
        -3_000_000_000,
        -2_147_483_649,
        -2_147_483_648,
        -1,
        0,
        2_147_483_647,
        2_147_483_648,
        9_000_000_000,
    ];
    for inode_size in [128, 256] {
        let engine = Ext2 {
            options: FormatOptions {
                inode_size,
                ..Ext2::default().options
            },
            ..Ext2::default()
        };
        let now = Time::new(1_700_000_000, 123_456_789);
        let fs = engine.make(Arc::new(ManualClock::new(now)));
        let (first, last) = match inode_size {
            128 => (Time::new(-2_147_483_648, 0), Time::new(2_147_483_647, 0)),
            _ => (Time::new(-2_147_483_648, 0), Time(i64::MAX)),
        };
        let mut shown = Vec::new();
        for secs in secs {
            let name = secs.to_string().into_bytes();
            let file = fs.create(&fs.root(), &name, &FILE).expect("made");
            let time = Time::new(secs, 999_999_999);
            let set = SetAttr {
                atime: Some(time),
                mtime: Some(time),
                ..SetAttr::default()
            };
            let attr = fs.setattr(&file, &set).expect("set");
            assert!(
                (first..=last).contains(&attr.mtime),
                "{secs}: {}",
                attr.mtime
            );
            if (first..=last).contains(&time) && inode_size > 128 {
                assert_eq!(attr.mtime, time);
            }
            shown.push((name, attr));
        }
        let fs = engine.remount(fs);
        for (name, before) in shown {
            let file = fs.lookup(&fs.root(), &name).expect("it is there");
            assert_eq!(
                fs.attr(&file),
                before,
                "{inode_size}: {}",
                name.escape_ascii()
            );
        }
    }
}

/// Removes, makes, grows and moves files by the numbers of `random`.
fn change_randomly(fs: &Ffs, random: &mut Random) -> vfs::Result<()> {
    let root = fs.root();
    let mut dirs = vec![root.clone()];
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut list = |dir: &ffs::Node| {
        fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        Ok::<_, vfs::Error>(std::mem::take(&mut names))
    };
    for name in list(&root)? {
        let node = fs.lookup(&root, &name)?;
        if fs.kind(&node) == Kind::Dir {
            dirs.push(node);
        }
    }
    for step in 0..60 {
        let dir = &dirs[random.below(dirs.len() as u64) as usize];
        let there = list(dir)?;
        let new = format!("new{step}-{}", "x".repeat(random.below(100) as usize));
        let old = match there.is_empty() {
            true => continue,
            false => &there[random.below(there.len() as u64) as usize],
        };
        let result = match random.below(6) {
            0 => fs.create(dir, new.as_bytes(), &FILE).map(drop),
            1 => fs.unlink(dir, old, &|_| Ok(())),
            2 => fs.rmdir(dir, old, &|_| Ok(())),
            3 => {
                let to = &dirs[random.below(dirs.len() as u64) as usize];
                let (from, to) = (Place::new(dir, old), Place::new(to, new.as_bytes()));
                fs.rename(from, to, RenameMode::Replace, &|_| Ok(()))
            }
            4 => fs.lookup(dir, old).and_then(|node| {
                let at = random.below(400_000);
                fs.write(&node, at, &[7; 3000]).map(drop)
            }),
            _ => fs.lookup(dir, old).and_then(|node| {
                let value = vec![5; random.below(700) as usize];
                fs.setxattr(
                    &node,
                    b"user.new",
                    &value,
                    XattrMode::Any,
                    &SetAttr::default(),
                )
            }),
        };
        match result {
            Ok(()) | Err(vfs::Error::Errno(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[test]
fn images_of_others_are_clean_after_changes() {
    needs_e2fsprogs!();
    for kind in FOREIGN {
        let image = foreign(kind);
        for seed in 0..10 {
            let clock = Arc::new(ManualClock::new(common::TIME));
            let fs = mount_at(image.disk(), false, clock).expect("it is clean");
            change_randomly(&fs, &mut Random::new(seed)).expect("it is sound");
            fs.unmount().expect("unmounted");
            drop(fs);
            image.assert_clean();
        }
    }
}

/// It waited for itself.
#[test]
fn a_directory_in_itself_is_not_removed() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(1 << 20, &["-t", "ext2"]);
    let path = image.path.to_str().expect("a path");
    for command in ["mkdir dir", "link dir dir/self"] {
        common::run("debugfs", ["-w", "-R", command, path]);
    }
    let fs = common::mount(image.disk(), false).expect("it mounts");
    let dir = fs.lookup(&fs.root(), b"dir").expect("it is there");
    let removed = fs.rmdir(&dir, b"self", &|_| Ok(()));
    assert_eq!(removed, Err(Errno::NOTEMPTY.into()));
}

#[test]
fn changes_of_damaged_images_are_survived() {
    needs_e2fsprogs!();
    let images: Vec<_> = FOREIGN
        .iter()
        .map(|kind| common::read(&foreign(kind).path))
        .collect();
    for seed in common::seeds(400) {
        let mut random = Random::new(seed);
        let image = &images[random.below(images.len() as u64) as usize];
        let places: Vec<usize> = (2048..400_000).filter(|&at| image[at] > 1).collect();
        let mut bytes = image.clone();
        for _ in 0..=random.below(20) {
            let at = places[random.below(places.len() as u64) as usize];
            bytes[at] = random.number() as u8;
        }
        let survived = std::panic::catch_unwind(move || {
            let clock = Arc::new(ManualClock::new(common::TIME));
            let Ok(fs) = mount_at(memory(bytes), false, clock) else {
                return;
            };
            // Whether it is noticed depends on where it is.
            let _ = change_randomly(&fs, &mut random);
            let _ = fs.unmount();
        });
        assert!(survived.is_ok(), "a panic: TUREEN_REPLAY={seed}");
    }
}

/// What a new file waits for: its inode, its name, its block, and what of these has to be first.
#[test]
fn what_waits_of_a_thousand_files_takes_little_memory() {
    let device = Arc::new(Memory::new(64 << 20));
    format(&Disk::new(device.clone()), &format_options()).expect("formatted");
    let clock = Arc::new(ManualClock::new(common::TIME));
    let options = MountOptions {
        cache_bytes: 64 << 20,
        ..mount_options(false, Mode::Soft)
    };
    let fs = Ffs::mount(Disk::new(device), clock, options).expect("it mounts");
    for number in 0..1000 {
        let name = format!("f{number}");
        let file = fs.create(&fs.root(), name.as_bytes(), &FILE);
        fs.write(&file.expect("made"), 0, &[1; 4096])
            .expect("written");
    }
    let status = fs.status();
    println!("{}: {} bytes", status.dependencies, status.dependency_bytes);
    assert!(status.dependencies >= 2000, "an inode and a name each");
    assert!(status.dependency_bytes < 400_000, "{status:?}");
    fs.unmount().expect("unmounted");
}

/// Blocks that wait for each other are written with what the other one has to have first rolled
/// back.
#[test]
fn two_directories_that_wait_for_each_other_cost_a_roll_back() {
    let device = Arc::new(Memory::new(16 << 20));
    format(&Disk::new(device.clone()), &format_options()).expect("formatted");
    let clock = Arc::new(ManualClock::new(common::TIME));
    let options = mount_options(false, Mode::Soft);
    let fs = Ffs::mount(Disk::new(device), clock, options).expect("it mounts");
    let dir = NewNode {
        kind: NewKind::Dir,
        ..FILE
    };
    let dirs = [b"0", b"1"].map(|name| fs.create(&fs.root(), name, &dir).expect("made"));
    for (dir, name) in dirs.iter().zip([b"a", b"b"]) {
        fs.create(dir, name, &FILE).expect("made");
    }
    fs.syncfs().expect("written");
    let before = fs.status().rolled_back;
    for (from, name) in [(0, b"a"), (1, b"b")] {
        let (from, to) = (&dirs[from], &dirs[1 - from]);
        let (from, to) = (Place::new(from, name), Place::new(to, name));
        let no_veto: vfs::Veto<'_> = &|_| Ok(());
        fs.rename(from, to, RenameMode::Replace, no_veto)
            .expect("moved");
    }
    fs.syncfs().expect("written");
    assert!(fs.status().rolled_back > before);
    fs.unmount().expect("unmounted");
}

/// What is written over as a whole is not read from the disk before; a part of a block needs the
/// rest.
#[test]
fn whole_blocks_are_written_over_without_being_read() {
    let device = Arc::new(Memory::new(16 << 20));
    format(&Disk::new(device.clone()), &format_options()).expect("formatted");
    let mount = || {
        let clock = Arc::new(ManualClock::new(common::TIME));
        let options = mount_options(false, Mode::Soft);
        Ffs::mount(Disk::new(device.clone()), clock, options).expect("it mounts")
    };
    let fs = mount();
    let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
    fs.write(&file, 0, &[1; 10 * 4096]).expect("written");
    drop(file);
    fs.unmount().expect("unmounted");
    drop(fs);
    let fs = mount();
    let file = fs.lookup(&fs.root(), b"file").expect("there");
    let mut expected = vec![1; 10 * 4096];
    fs.write(&file, 0, &[1; 10]).expect("written");
    let reads = fs.disk().stats().reads;
    fs.write(&file, 4096, &[2; 8 * 4096]).expect("written");
    expected[4096..][..8 * 4096].fill(2);
    assert_eq!(fs.disk().stats().reads, reads);
    fs.write(&file, 9 * 4096 + 1, &[3; 10]).expect("written");
    expected[9 * 4096 + 1..][..10].fill(3);
    assert_eq!(fs.disk().stats().reads, reads + 1);
    drop(file);
    fs.unmount().expect("unmounted");
    drop(fs);
    let fs = mount();
    let file = fs.lookup(&fs.root(), b"file").expect("there");
    let mut found = vec![0; expected.len()];
    fs.read(&file, 0, &mut found).expect("read");
    assert!(found == expected);
}

/// The kernel's limits: it opens no longer file.
#[test]
fn no_file_is_longer_than_others_take() {
    for (block_size, max) in [
        (1024, 17_247_252_480),
        (2048, 275_415_851_008),
        (4096, 2_196_873_666_560),
    ] {
        let engine = roomy(block_size, Mode::Soft);
        let fs = engine.make(Arc::new(ManualClock::new(common::TIME)));
        assert_eq!(fs.limits().file_max, max, "blocks of {block_size}");
        let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
        assert_eq!(fs.write(&file, max - 1, b"ab"), Ok(1));
        assert_eq!(fs.write(&file, max, b"b"), Err(Errno::FBIG.into()));
        drop(file);
        drop(engine.remount(fs));
    }
}

#[test]
fn what_the_superblock_does_not_list_is_not_made() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(8 << 20, &["-b", "1024", "-O", "^large_file,^ext_attr"]);
    let fs = common::mount(image.disk(), false).expect("it mounts");
    let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
    let end = i32::MAX as u64;
    assert_eq!(fs.limits().file_max, end);
    assert_eq!(fs.write(&file, end - 1, b"ab"), Ok(1));
    assert_eq!(fs.write(&file, end, b"b"), Err(Errno::FBIG.into()));
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    assert_eq!(
        fs.setattr(&file, &size(end + 1)).map(drop),
        Err(Errno::FBIG.into())
    );
    // What has room in the inode needs no block.
    let set = |value: &[u8]| {
        let set = SetAttr::default();
        fs.setxattr(&file, b"user.name", value, XattrMode::Any, &set)
    };
    set(b"short").expect("set");
    assert_eq!(set(&[7; 300]), Err(Errno::NOSPC.into()));
    fs.unmount().expect("unmounted");
    drop((file, fs));
    image.assert_clean();
}

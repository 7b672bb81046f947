//! What a sync costs on a disk, counted: writes, flushes and bytes.

use std::sync::Arc;

use block::{Disk, Memory};
use pmem::{Options, Pool};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use vfs::{FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, SystemClock, Time};

const LEN: u64 = 256 << 20;
const FILES: u64 = 50;

type Node = <SoupFs as FileSystem>::Node;

/// A file system on a disk, with nobody but the callers who syncs.
fn mounted(mode: Mode) -> (Disk, SoupFs) {
    let disk = Disk::new(Arc::new(Memory::new(LEN)));
    let pool = Pool::on_disk(disk.clone(), &Options::default());
    let pool = Arc::new(pool.expect("memory"));
    let how = FormatOptions {
        uuid: [7; 16],
        label: String::new(),
        hash_key: [9; 16],
        time: Time(0),
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &how).expect("format");
    let options = MountOptions {
        mode,
        manual: true,
        ..MountOptions::new(Arc::new(SystemClock))
    };
    (disk, SoupFs::mount(pool, options).expect("mount"))
}

fn create(fs: &SoupFs, root: &Node, name: &str) -> Node {
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(root, name.as_bytes(), &new).expect("create")
}

/// Writes, flushes and bytes written that each of some calls makes, on average.
fn each(disk: &Disk, mut call: impl FnMut(u64)) -> [f64; 3] {
    let before = disk.stats();
    (0..FILES).for_each(&mut call);
    let done = disk.stats().since(&before);
    [done.writes, done.flushes, done.bytes_written].map(|count| count as f64 / FILES as f64)
}

fn assert_costs(what: &str, [writes, flushes, bytes]: [f64; 3], bytes_max: f64) {
    println!("{what}: {writes} writes, {flushes} flushes, {bytes} bytes");
    assert_eq!([writes, flushes], [1.0, 1.0], "{what}");
    assert!(bytes <= bytes_max, "{what}: {bytes} bytes");
}

/// While little of the journal is live: one sequential write, one flush.
#[test]
fn a_small_sync_is_one_write_and_one_flush() {
    for mode in [Mode::Delayed, Mode::Sync] {
        let (disk, fs) = mounted(mode);
        let root = fs.root();
        let first = create(&fs, &root, "first");
        fs.write(&first, 0, &[1; 4096]).expect("write");
        fs.fsync(&first, Fsync::All).expect("fsync");
        if mode == Mode::Delayed {
            let made = each(&disk, |i| {
                let node = create(&fs, &root, &format!("f{i}"));
                fs.write(&node, 0, &[2; 4096]).expect("write");
                fs.fsync(&node, Fsync::All).expect("fsync");
            });
            assert_costs("create, 4 KiB, fsync", made, 6.0 * 1024.0);
        }
        let over = each(&disk, |i| {
            fs.write(&first, 0, &[i as u8; 4096]).expect("write");
            fs.fsync(&first, Fsync::Data).expect("fsync");
        });
        assert_costs("4 KiB overwritten, fdatasync", over, 5.5 * 1024.0);
        let appended = each(&disk, |_| {
            fs.append(&first, &[3; 4096]).expect("append");
            fs.fsync(&first, Fsync::All).expect("fsync");
        });
        assert_costs("4 KiB appended, fsync", appended, 6.0 * 1024.0);
    }
}

/// Behind that commits pay for what records before them changed, too.
#[test]
fn what_many_small_syncs_write_stays_below_16_kib_each() {
    let (disk, fs) = mounted(Mode::Delayed);
    let root = fs.root();
    let sync = |i: u64| {
        let node = create(&fs, &root, &format!("f{i}"));
        fs.write(&node, 0, &[2; 4096]).expect("write");
        fs.fsync(&node, Fsync::All).expect("fsync");
    };
    (0..400).for_each(sync);
    let [writes, flushes, bytes] = each(&disk, |i| {
        (0..20).for_each(|j| sync(1000 + 20 * i + j));
    })
    .map(|count| count / 20.0);
    println!("{writes} writes, {flushes} flushes, {bytes} bytes");
    assert!(writes <= 2.0 && bytes <= 16.0 * 1024.0);
    assert_eq!(flushes, 1.0);
}

const MANY: u64 = 2000;
const NO_VETO: vfs::Veto<'static> = &|_| Ok(());

fn rename(fs: &SoupFs, from: &str, to: &str) {
    let root = fs.root();
    let (from, to) = (
        Place::new(&root, from.as_bytes()),
        Place::new(&root, to.as_bytes()),
    );
    let renamed = fs.rename(from, to, RenameMode::Replace, NO_VETO);
    renamed.expect("renamed");
}

/// Writes, flushes and bytes of an fsync that many changes of names have to be durable with; before
/// them there are files `a0`, `a1`, and so on, and `b0` if `both`.
fn sync_behind(both: bool, change: impl Fn(&SoupFs, u64) -> Option<Node>) -> [u64; 3] {
    let (disk, fs) = mounted(Mode::Delayed);
    let root = fs.root();
    for i in 0..MANY {
        create(&fs, &root, &format!("a{i}"));
        if both {
            create(&fs, &root, &format!("b{i}"));
        }
    }
    fs.syncfs().expect("synced");
    let last = (0..MANY).filter_map(|i| change(&fs, i)).last();
    let before = disk.stats();
    fs.fsync(&last.unwrap_or(root), Fsync::All).expect("fsync");
    let done = disk.stats().since(&before);
    [done.writes, done.flushes, done.bytes_written]
}

/// The record carries their entries: these are not written in place first, here and there.
#[test]
fn a_sync_behind_many_names_is_one_write_and_one_flush() {
    let over = |fs: &SoupFs, i| rename(fs, &format!("a{i}"), &format!("b{i}"));
    let other = |fs: &SoupFs, i| {
        over(fs, i);
        (i == MANY - 1).then(|| create(fs, &fs.root(), "other"))
    };
    let none = |change: &dyn Fn(&SoupFs, u64), fs: &SoupFs, i| -> Option<Node> {
        change(fs, i);
        None
    };
    let remove = |fs: &SoupFs, i| {
        let name = format!("a{i}");
        let removed = fs.unlink(&fs.root(), name.as_bytes(), NO_VETO);
        removed.expect("removed");
    };
    for (what, spent, each_max) in [
        (
            "renames",
            sync_behind(false, |fs, i| none(&over, fs, i)),
            130,
        ),
        (
            "renames over others",
            sync_behind(true, |fs, i| none(&over, fs, i)),
            160,
        ),
        (
            "renames in a directory with another file",
            sync_behind(true, other),
            160,
        ),
        (
            "removals",
            sync_behind(false, |fs, i| none(&remove, fs, i)),
            40,
        ),
    ] {
        let [writes, flushes, bytes] = spent;
        println!("{what}: {writes} writes, {flushes} flushes, {bytes} bytes");
        assert_eq!([writes, flushes], [1, 1], "{what}");
        assert!(bytes <= MANY * each_max, "{what}: {bytes} bytes");
    }
    // New inodes are more than a record carries: they are written before it, next to each other.
    let made = |fs: &SoupFs, i| Some(create(fs, &fs.root(), &format!("c{i}")));
    let dir = |fs: &SoupFs, i| made(fs, i).filter(|_| false);
    let [writes, flushes, bytes] = sync_behind(false, dir);
    println!("creates: {writes} writes, {flushes} flushes, {bytes} bytes");
    assert!(writes <= 12 && flushes == 2 && bytes <= MANY * 260);
}

//! What `st_blocks` counts: charged once, by the call that takes the space, whatever is persisted
//! and when.

mod common;

use block::Random;
use common::{Soup, audit, clock, image};
use pmem::{Domain, Pool};
use soupfs::{Node, SoupFs};
use std::sync::Arc;
use vfs::{
    Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, Result, SetAttr, Time, XattrMode,
};

const MANUAL: Soup = Soup {
    len: 0, // each test makes its own image
    mode: soupfs::Mode::Delayed,
    domain: Domain::Line,
    manual: true,
    persisters: 1,
    transactions: None,
};

fn mount(len: u64) -> (Arc<Pool>, SoupFs) {
    let pool = image(len, Domain::Line, Time(1));
    let fs = MANUAL.mount(pool.clone(), clock());
    (pool, fs)
}

fn make(fs: &SoupFs, name: &str, kind: NewKind<'_>) -> Result<Node> {
    let new = NewNode {
        kind,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[(b"user.born", b"with")],
    };
    fs.create(&fs.root(), name.as_bytes(), &new)
}

fn resize(fs: &SoupFs, file: &Node, size: u64) -> Result<()> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(file, &set).map(drop)
}

type Change = fn(&SoupFs, &Node) -> Result<()>;

/// Changes of a file, and what its blocks are then, in pages.
const CHANGES: [(Change, u64); 12] = [
    (|_, _| Ok(()), 1),
    (|fs, file| fs.append(file, &[1; 3 << 20]).map(drop), 769),
    (|fs, file| fs.write(file, 1 << 30, &[1; 10]).map(drop), 770),
    (|fs, file| fs.write(file, 0, &[2; 10_000]).map(drop), 770),
    (
        |fs, file| fs.fallocate(file, Fallocate::Punch, 4096, 8192),
        768,
    ),
    (
        |fs, file| {
            let mode = Fallocate::Allocate { keep_size: true };
            fs.fallocate(file, mode, 0, 4 << 20)
        },
        1026,
    ),
    (
        |fs, file| fs.write(file, 3 << 20, &[3; 4096]).map(drop),
        1026,
    ),
    (
        |fs, file| {
            let mode = Fallocate::Zero { keep_size: false };
            fs.fallocate(file, mode, 100, 5 << 20)
        },
        1283,
    ),
    (
        |fs, file| {
            let (mode, also) = (XattrMode::Any, SetAttr::default());
            fs.setxattr(file, b"user.a", &[1; 9000], mode, &also)
        },
        1285,
    ),
    (|fs, file| resize(fs, file, 5000), 5),
    (|fs, file| fs.removexattr(file, b"user.a"), 3),
    (|fs, file| resize(fs, file, 0), 1),
];

/// They are what the call made them: at once, when half or all of it is persisted, and after a
/// remount.
#[test]
fn blocks_are_charged_by_the_call_and_stay() {
    for synced in [0, 1, 3] {
        let (pool, mut fs) = mount(64 << 20);
        drop(make(&fs, "file", NewKind::File).expect("made"));
        for (i, (change, pages)) in CHANGES.into_iter().enumerate() {
            let file = fs.lookup(&fs.root(), b"file").expect("there");
            change(&fs, &file).expect("changed");
            let what = format!("change {i}, synced every {synced}");
            assert_eq!(fs.attr(&file).blocks, pages * 8, "{what}: at once");
            if synced > 0 && i % synced == 0 {
                fs.fsync(&file, Fsync::All).expect("synced");
                assert_eq!(fs.attr(&file).blocks, pages * 8, "{what}: persisted");
            }
            drop(file);
            if i % 4 == 3 {
                fs.unmount().expect("unmounted");
                drop(fs);
                audit(&pool);
                fs = MANUAL.mount(pool.clone(), clock());
                let file = fs.lookup(&fs.root(), b"file").expect("there");
                assert_eq!(fs.attr(&file).blocks, pages * 8, "{what}: mounted again");
            }
        }
    }
}

#[test]
fn blocks_of_what_is_no_file_stay_too() {
    let (pool, fs) = mount(64 << 20);
    let dir = make(&fs, "dir", NewKind::Dir).expect("made");
    make(&fs, "link", NewKind::Symlink(b"target")).expect("made");
    make(&fs, "fifo", NewKind::Fifo).expect("made");
    let new = NewNode {
        kind: NewKind::Fifo,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    let all = |fs: &SoupFs| {
        ["dir", "link", "fifo", "."].map(|name| {
            let node = match name {
                "." => fs.root(),
                name => fs.lookup(&fs.root(), name.as_bytes()).expect("there"),
            };
            (fs.attr(&node).blocks, fs.attr(&node).size)
        })
    };
    for i in 0..5000 {
        fs.create(&dir, format!("name{i}").as_bytes(), &new)
            .expect("made");
        if i % 1000 == 17 {
            let before = all(&fs);
            fs.syncfs().expect("synced");
            assert_eq!(all(&fs), before, "{i} names");
        }
    }
    let before = all(&fs);
    assert_eq!(before[1].0, 16);
    drop(dir);
    fs.unmount().expect("unmounted");
    drop(fs);
    audit(&pool);
    let fs = MANUAL.mount(pool.clone(), clock());
    assert_eq!(all(&fs), before);
}

/// A reservation that fails half-way, in its second part or in the first, has never been.
#[test]
fn a_reservation_that_fails_changes_nothing() {
    const GIB: u64 = 1 << 30;
    for (mode, len) in [
        (Fallocate::Allocate { keep_size: false }, 3 * GIB),
        (Fallocate::Zero { keep_size: false }, 3 * GIB),
        (Fallocate::Allocate { keep_size: true }, GIB),
        (Fallocate::Zero { keep_size: true }, GIB),
    ] {
        let (pool, fs) = mount(if len > GIB { 3 * GIB / 2 } else { GIB / 2 });
        let file = make(&fs, "file", NewKind::File).expect("made");
        let contents: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        fs.write(&file, 5000, &contents).expect("written");
        fs.write(&file, GIB / 4, &contents).expect("written");
        let reserve = Fallocate::Allocate { keep_size: true };
        fs.fallocate(&file, reserve, 1 << 20, 1 << 20)
            .expect("there is space");
        fs.syncfs().expect("synced");
        let (attr, free) = (fs.attr(&file), fs.statfs().free);
        let failed = fs.fallocate(&file, mode, 1000, len);
        assert_eq!(failed.map_err(|e| e.errno()), Err(Errno::NOSPC), "{mode:?}");
        let same = |fs: &SoupFs, file: &Node, when: &str| {
            assert_eq!(fs.attr(file), attr, "{mode:?}, {when}");
            let mut read = vec![0; contents.len() + 5000];
            fs.read(file, 0, &mut read).expect("read");
            assert!(read[..5000].iter().all(|&byte| byte == 0));
            assert_eq!(read[5000..], contents);
            let mut read = vec![0; contents.len()];
            fs.read(file, GIB / 4, &mut read).expect("read");
            assert_eq!(read, contents);
        };
        same(&fs, &file, "at once");
        assert_eq!(fs.statfs().free, free, "{mode:?}");
        fs.syncfs().expect("synced");
        same(&fs, &file, "persisted");
        drop(file);
        fs.unmount().expect("unmounted");
        drop(fs);
        audit(&pool);
        let fs = MANUAL.mount(pool.clone(), clock());
        let file = fs.lookup(&fs.root(), b"file").expect("there");
        same(&fs, &file, "mounted again");
    }
}

/// Whatever the pattern, what a sync flushes is what was written, and some lines of its own.
#[test]
fn a_sync_flushes_what_was_written_and_little_else() {
    const LEN: u64 = 128 << 20;
    let (_pool, fs) = mount(LEN + (32 << 20));
    let pool = fs.pool().clone();
    let file = make(&fs, "file", NewKind::File).expect("made");
    for i in 0..LEN >> 20 {
        fs.write(&file, i << 20, &vec![1; 1 << 20])
            .expect("written");
    }
    fs.syncfs().expect("synced");
    let mut random = Random::new(1);
    for (writes, len, stride) in [
        (100, 4096, 0),
        (257, 4096, 0),
        (300, 4096, 0),
        (2000, 4096, 0),
        (20_000, 4096, 0),
        (2000, 8, 0),
        (2000, 70, 0),
        (3000, 9000, 0),
        (1000, 64, 8192),
        (5000, 100, 100),
        (500, 64, 3 << 12),
    ] {
        let mut lines = std::collections::HashSet::new();
        for i in 0..writes {
            let at = match stride {
                0 => random.below(LEN - len),
                stride => i * stride,
            };
            fs.write(&file, at, &vec![2; len as usize])
                .expect("written");
            lines.extend(at / 64..(at + len).div_ceil(64));
        }
        let before = pool.stats();
        fs.fsync(&file, Fsync::Data).expect("synced");
        let flushed = (pool.stats() - before).flushed_lines;
        let (written, own) = (lines.len() as u64, 64);
        assert!(
            flushed <= written + own,
            "{writes} writes of {len} bytes: {flushed} lines flushed, {written} written"
        );
    }
}

//! Free space: what was removed is free again, what failed took none, and a remount finds what the
//! last mount counted.

mod common;

use common::{Soup, audit, clock, image};
use pmem::Domain;
use soupfs::{Node, SoupFs};
use vfs::{
    Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, SetAttr, SystemClock,
    XattrMode,
};

const LEN: u64 = 16 << 20;

fn make(fs: &SoupFs, dir: &Node, name: &str, kind: NewKind<'_>) -> Node {
    let new = NewNode {
        kind,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(dir, name.as_bytes(), &new).expect("create")
}

fn file(fs: &SoupFs, name: &str) -> Node {
    make(fs, &fs.root(), name, NewKind::File)
}

/// A file of this many bytes, written in pieces.
fn filled(fs: &SoupFs, name: &str, len: usize) -> Node {
    let file = file(fs, name);
    for piece in vec![1; len].chunks(300_000) {
        fs.append(&file, piece).expect("append");
    }
    file
}

fn unlink(fs: &SoupFs, name: &str) {
    let name = name.as_bytes();
    fs.unlink(&fs.root(), name, &|_| Ok(())).expect("unlink");
}

fn sync(fs: &SoupFs) {
    fs.syncfs().expect("syncfs");
}

/// Free lines once all is persisted.
fn free(fs: &SoupFs) -> u64 {
    sync(fs);
    sync(fs);
    fs.status().bytes_free / 64
}

/// Does some work on a fresh image; returns the lines that are in use for it. The next mount must
/// find as many, but for pages that this one has set aside for the table of the root.
#[track_caller]
fn used(work: impl Fn(&SoupFs)) -> u64 {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(LEN, Domain::Line, vfs::Time(0));
    let fs = soup.mount(pool.clone(), clock());
    let start = free(&fs);
    work(&fs);
    let end = free(&fs);
    fs.unmount().expect("unmount");
    drop(fs);
    audit(&pool);
    let fs = soup.mount(pool.clone(), std::sync::Arc::new(SystemClock));
    let again = free(&fs);
    assert!(
        (end..=end + 64).contains(&again),
        "{end} lines were free, {again} after a remount"
    );
    start - end
}

/// A page of the root's table stays, and a page of lines of which some are free.
const NOTHING: std::ops::RangeInclusive<u64> = 0..=128;

#[track_caller]
fn leaves_nothing(work: impl Fn(&SoupFs)) {
    let used = used(work);
    assert!(NOTHING.contains(&used), "{used} lines are used");
}

#[test]
fn files_that_were_removed_leave_nothing() {
    for synced in [false, true] {
        leaves_nothing(|fs| {
            for i in 0..40 {
                filled(fs, &i.to_string(), i * 900);
            }
            filled(fs, "big", 5 << 20);
            if synced {
                sync(fs);
            }
            (0..40).for_each(|i| unlink(fs, &i.to_string()));
            unlink(fs, "big");
        });
    }
}

#[test]
fn a_file_that_was_persisted_in_part_leaves_nothing_when_removed() {
    leaves_nothing(|fs| {
        let file = filled(fs, "a", 2 << 20);
        sync(fs);
        for _ in 0..3 {
            fs.append(&file, &[1; 1 << 20]).expect("append");
        }
        drop(file);
        unlink(fs, "a");
    });
}

#[test]
fn a_file_that_is_removed_while_open_leaves_nothing_once_it_is_closed() {
    leaves_nothing(|fs| {
        let file = filled(fs, "a", 2 << 20);
        sync(fs);
        unlink(fs, "a");
        sync(fs);
        fs.append(&file, &[1; 1 << 20]).expect("append");
        sync(fs);
        drop(file);
    });
}

#[test]
fn files_that_were_replaced_cut_or_punched_leave_nothing() {
    leaves_nothing(|fs| {
        for i in 0..50 {
            let new = filled(fs, "new", 20_000);
            if i % 3 == 0 {
                fs.fsync(&new, Fsync::All).expect("fsync");
            }
            let (root, mode) = (fs.root(), RenameMode::Replace);
            fs.rename(
                Place::new(&root, b"new"),
                Place::new(&root, b"a"),
                mode,
                &|_| Ok(()),
            )
            .expect("rename");
        }
        let file = fs.lookup(&fs.root(), b"a").expect("lookup");
        fs.write(&file, 1 << 30, &[1; 100_000]).expect("write");
        sync(fs);
        fs.fallocate(&file, Fallocate::Punch, 0, 1 << 30)
            .expect("punch");
        sync(fs);
        let size = Some(0);
        fs.setattr(
            &file,
            &SetAttr {
                size,
                ..SetAttr::default()
            },
        )
        .expect("truncate");
        drop(file);
        unlink(fs, "a");
    });
}

#[test]
fn directories_that_grew_and_were_removed_leave_nothing() {
    leaves_nothing(|fs| {
        let root = fs.root();
        for round in 0..2 {
            let dir = make(fs, &root, "dir", NewKind::Dir);
            (0..3000).for_each(|i| drop(make(fs, &dir, &i.to_string(), NewKind::Fifo)));
            if round == 0 {
                sync(fs);
            }
            for i in 0..3000 {
                fs.unlink(&dir, i.to_string().as_bytes(), &|_| Ok(()))
                    .expect("unlink");
            }
            drop(dir);
            fs.rmdir(&root, b"dir", &|_| Ok(())).expect("rmdir");
        }
    });
}

#[test]
fn extended_attributes_that_were_replaced_or_removed_leave_nothing() {
    leaves_nothing(|fs| {
        let (file, also) = (file(fs, "a"), SetAttr::default());
        for len in [10, 20_000, 100, 60_000, 5] {
            let value = vec![1; len];
            fs.setxattr(&file, b"user.a", &value, XattrMode::Any, &also)
                .expect("setxattr");
            if len > 10_000 {
                sync(fs);
            }
        }
        fs.removexattr(&file, b"user.a").expect("removexattr");
    });
}

#[test]
fn sparse_and_appended_files_use_what_the_next_mount_counts() {
    used(|fs| {
        let sparse = file(fs, "sparse");
        for i in (0..40).rev() {
            fs.write(&sparse, i << 28, &[1; 100]).expect("write");
            if i % 4 == 0 {
                sync(fs);
            }
        }
        let log = file(fs, "log");
        for _ in 0..100 {
            fs.append(&log, &[1; 12_000]).expect("append");
            fs.fsync(&log, Fsync::Data).expect("fsync");
        }
    });
}

#[test]
fn a_reservation_that_finds_no_space_takes_none() {
    leaves_nothing(|fs| {
        let file = file(fs, "a");
        fs.write(&file, 0, &[1; 100]).expect("write");
        sync(fs);
        let before = fs.attr(&file).blocks;
        for mode in [
            Fallocate::Allocate { keep_size: false },
            Fallocate::Zero { keep_size: true },
        ] {
            let failed = fs.fallocate(&file, mode, 0, 4 * LEN);
            assert_eq!(failed.expect_err("no space").errno(), Errno::NOSPC);
        }
        assert_eq!(fs.attr(&file).blocks, before);
        let mut first = [9; 100];
        fs.read(&file, 0, &mut first).expect("read");
        assert_eq!(first, [1; 100]);
        unlink(fs, "a");
    });
}

#[test]
fn writing_until_the_image_is_full_loses_nothing() {
    leaves_nothing(|fs| {
        let file = file(fs, "a");
        while fs.append(&file, &[1; 100_000]).is_ok() {}
        drop(file);
        unlink(fs, "a");
    });
}

/// Threads that together need less than the image has, but use up in turn what the others removed.
#[test]
fn space_that_is_about_to_be_free_is_enough_for_several_threads() {
    const THREADS: usize = 4;
    const PIECE: usize = 64 << 10;
    let pool = image(LEN, Domain::Line, vfs::Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    // All together hold nine tenths of what is free.
    let pieces = fs.statfs().free as usize * 4096 / PIECE / THREADS * 9 / 10;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..150 {
                    let name = format!("{thread}-{round}");
                    let file = file(fs, &name);
                    for piece in 0..pieces {
                        let mut left = PIECE;
                        while left > 0 {
                            let (_, done) = fs
                                .append(&file, &vec![1; left])
                                .unwrap_or_else(|e| panic!("{name}, piece {piece}: {e}"));
                            left -= done;
                        }
                    }
                    // Captured, so that it is free only when its removal is durable.
                    fs.fsync(&file, Fsync::Data).expect("synced");
                    drop(file);
                    unlink(fs, &name);
                }
            });
        }
    });
    fs.unmount().expect("unmounted");
    audit(&pool);
}

/// Fill the image with another file's contents after `work`, but for a byte at `last`: that ends
/// with `ENOSPC`, and all is persisted.
#[track_caller]
fn fills_up(last: u64, work: impl Fn(&SoupFs, &Node)) {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(LEN, Domain::Line, vfs::Time(0));
    let fs = soup.mount(pool.clone(), clock());
    let (file, other) = (file(&fs, "file"), file(&fs, "other"));
    let room = |left: u64| fs.statfs().free > left;
    work(&fs, &file);
    while room(200) {
        fs.append(&other, &[1; 100_000]).expect("append");
    }
    sync(&fs);
    // The last pages come while the nodes for this are only set aside.
    fs.write(&file, last, &[2; 1]).expect("write");
    let full = loop {
        match fs.append(&other, &[1; 4096]) {
            Ok((_, 4096)) => {}
            Ok(_) => break Errno::NOSPC,
            Err(e) => break e.errno(),
        }
    };
    assert_eq!((full, fs.status().failed), (Errno::NOSPC, None));
    sync(&fs);
    fs.unmount().expect("unmount");
    audit(&pool);
}

#[test]
fn nodes_for_blocks_in_front_of_a_tall_tree_are_set_aside() {
    fills_up(0, |fs, file| {
        fs.write(file, 600 * 4096, &[1; 1]).expect("write");
        sync(fs);
    });
    fills_up(0, |fs, file| {
        fs.write(file, 0, &[1; 3 << 20]).expect("write");
        sync(fs);
        let punched = fs.fallocate(file, Fallocate::Punch, 0, 2 << 20);
        punched.expect("punch");
        sync(fs);
    });
    fills_up(0, |fs, file| {
        fs.write(file, 4 << 30, &[1; 1]).expect("write");
        sync(fs);
    });
}

#[test]
fn nodes_on_top_of_a_block_without_any_are_set_aside() {
    for last in [600 << 12, 4 << 30, 1 << 40] {
        fills_up(last, |fs, file| {
            fs.write(file, 0, &[1; 1]).expect("write");
            sync(fs);
        });
    }
}

#[test]
fn zeroing_a_range_of_a_full_image_uses_the_pages_of_that_range() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(LEN, Domain::Line, vfs::Time(0));
    let fs = soup.mount(pool.clone(), clock());
    let zeroed = filled(&fs, "zeroed", 4 << 20);
    let rest = file(&fs, "rest");
    while fs.append(&rest, &[1; 4096]).is_ok() {}
    let zero = Fallocate::Zero { keep_size: false };
    fs.fallocate(&zeroed, zero, 0, 4 << 20).expect("zero");
    sync(&fs);
    fs.unmount().expect("unmount");
    audit(&pool);
}

#[test]
fn free_lines_in_a_region_without_free_pages_are_found_after_a_mount() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(300 << 20, Domain::Line, vfs::Time(0));
    let fs = soup.mount(pool.clone(), clock());
    let data = vec![1; 1 << 20];
    // The first region is full of data ...
    let first = file(&fs, "first");
    for _ in 0..130 {
        fs.append(&first, &data).expect("append");
    }
    // ... a later one of names, every other of which goes, and of data.
    let names: Vec<_> = (0..10_000).map(|i| format!("name{i}")).collect();
    names.iter().for_each(|name| drop(file(&fs, name)));
    sync(&fs);
    for name in names.iter().step_by(2) {
        fs.unlink(&fs.root(), name.as_bytes(), &|_| Ok(()))
            .expect("unlink");
    }
    let rest = file(&fs, "rest");
    while fs.append(&rest, &data).is_ok() {}
    // The very last pages are those set aside for index nodes: symbolic links take a page and need
    // none.
    sync(&fs);
    let link = NewNode {
        kind: NewKind::Symlink(b"target"),
        perm: 0o777,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    let mut links = (0..).map(|i| fs.create(&fs.root(), format!("link{i}").as_bytes(), &link));
    while links.next().is_some_and(|link| link.is_ok()) {}
    drop(links);
    fs.unmount().expect("unmount");
    drop((fs, first, rest));
    audit(&pool);

    let fs = soup.mount(pool.clone(), clock());
    (0..3000).for_each(|i| drop(file(&fs, &format!("new{i}"))));
    fs.unmount().expect("unmount");
    audit(&pool);
}

/// What statfs says is free can be written: a file of that many bytes.
#[test]
fn as_much_as_is_free_can_be_written() {
    for (len, files) in [(2, 0), (2, 10), (16, 100), (64, 3000), (600, 10)] {
        let pool = image(len << 20, Domain::Cache, vfs::Time(1));
        let soup = Soup {
            manual: true,
            ..Soup::default()
        };
        let fs = soup.mount(pool.clone(), clock());
        (0..files).for_each(|i| drop(file(&fs, &i.to_string())));
        let all = file(&fs, "all");
        let mut left = fs.statfs().free * 4096;
        let all_free = left;
        while left > 0 {
            let piece = left.min(100_000) as usize;
            let (_, done) = fs.append(&all, &vec![1; piece]).expect("it is free");
            left -= done as u64;
        }
        sync(&fs);
        assert_eq!(fs.attr(&all).size, all_free);
        // And that is nearly all that there is.
        let more = fs.append(&all, &[1; 200 << 12]).map_or(0, |(_, done)| done);
        assert!(
            more < 100 << 12,
            "{more} bytes more in an image of {len} MiB"
        );
        drop(all);
        fs.unmount().expect("unmounted");
        drop(fs);
        audit(&pool);
    }
}

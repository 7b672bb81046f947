//! Directories with damage that a search meets: it is an error of the operation, and all else goes
//! on.

mod common;

use common::{Soup, clock, image};
use pmem::{Domain, Options, Pool};
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::layout::{LINE, PAGE, dentry, index, inode, line_at, state};
use soupfs::{Node, SoupFs};
use std::sync::Arc;
use vfs::{
    Errno, Fallocate, FileSystem, Fsync, Kind, NewKind, NewNode, Place, RenameMode, SetAttr, Time,
};

const NAMES: u32 = 20;

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn mount(pool: &Pool) -> SoupFs {
    let pool = Pool::from_bytes(&pool.snapshot(), &Options::default()).expect("memory");
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    soup.mount(Arc::new(pool), clock())
}

/// An image with some names in its root.
fn with_names() -> Arc<Pool> {
    let pool = image(16 << 20, Domain::Line, Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    for i in 0..NAMES {
        fs.create(&fs.root(), format!("n{i}").as_bytes(), &new(NewKind::File))
            .expect("made");
    }
    fs.unmount().expect("unmounted");
    pool
}

/// Where the entry of a name is.
fn entry_of(pool: &Pool, name: &[u8]) -> u64 {
    let mut found = vec![0; name.len()];
    let is_it = |at: &u64| {
        let target = pool.load(at + dentry::TARGET);
        pool.read(at + dentry::NAME, &mut found);
        found == name && target >> dentry::LEN_SHIFT & 0xff == name.len() as u64
    };
    let mut lines = (0..pool.len() / 64).map(line_at);
    lines.find(is_it).expect("an entry")
}

/// Whatever is asked of it, the rest of the directory can be used and persisted.
fn is_survived(pool: &Pool) {
    let fs = mount(pool);
    let root = fs.root();
    let mut errors = 0;
    let mut tell = |result: vfs::Result<()>| match result {
        Ok(()) => {}
        Err(e) if e.errno() == Errno::NOENT => {}
        Err(e) => {
            assert_eq!(e.errno(), Errno::UCLEAN, "{e}");
            errors += 1;
        }
    };
    for i in 0..NAMES {
        tell(fs.lookup(&root, format!("n{i}").as_bytes()).map(drop));
        tell(fs.lookup(&root, format!("absent{i}").as_bytes()).map(drop));
    }
    tell(fs.readdir(&root, 0, &mut |_| true));
    for i in 0..NAMES {
        tell(
            fs.create(&root, format!("more{i}").as_bytes(), &new(NewKind::File))
                .map(drop),
        );
        tell(fs.unlink(&root, format!("n{i}").as_bytes(), &|_| Ok(())));
    }
    assert!(errors > 0, "the damage was not met");
    assert_eq!(fs.syncfs(), Ok(()));
    assert_eq!(fs.status().failed, None);
}

#[test]
fn an_entry_of_no_kind_stops_nothing_else() {
    let pool = with_names();
    let at = entry_of(&pool, b"n7") + dentry::TARGET;
    pool.store(at, pool.load(at) & !(0xf << dentry::KIND_SHIFT));
    is_survived(&pool);
}

#[test]
fn a_latest_pointer_out_of_range_stops_nothing_else() {
    let pool = with_names();
    let epoch = pool.load(state::EPOCH) + 1;
    let at = entry_of(&pool, b"n7") + dentry::LATEST_NEXT;
    pool.store(at, epoch << 40 | 0xff_ffff_ffff);
    is_survived(&pool);
}

#[test]
fn a_table_larger_than_the_image_is_damage() {
    for level in [20, 27, 28, 30, 1 << 32] {
        let pool = with_names();
        let fs = mount(&pool);
        let root = fs.attr(&fs.root()).ino;
        drop(fs);
        pool.store(line_at(root) + inode::LEVEL, level);
        let soup = Soup::default();
        let options = soupfs::MountOptions {
            manual: soup.manual,
            ..soupfs::MountOptions::new(clock())
        };
        let mounted = SoupFs::mount(pool.clone(), options);
        assert!(mounted.is_err(), "level {level}");
    }
}

/// A name that was durable or not, and was given again or not, is replaced by a whiteout; the file
/// is synced.
#[test]
fn a_whiteout_is_there_when_the_new_name_is() {
    for (durable, again) in [(true, false), (true, true), (false, true)] {
        let pool = image(16 << 20, Domain::Line, Time(1));
        let fs = Soup {
            manual: true,
            ..Soup::default()
        }
        .mount(pool.clone(), clock());
        let root = fs.root();
        let make = |name: &[u8], kind| fs.create(&root, name, &new(kind)).expect("made");
        let (from, to) = (make(b"from", NewKind::Dir), make(b"to", NewKind::Dir));
        let file = make(b"keep", NewKind::File);
        if durable {
            fs.link(&file, &from, b"old").expect("linked");
        }
        fs.syncfs().expect("synced");
        if durable && again {
            fs.unlink(&from, b"old", &|_| Ok(())).expect("unlinked");
        }
        if again {
            fs.link(&file, &from, b"old").expect("linked");
        }
        let mode = RenameMode::Whiteout;
        fs.rename(
            Place::new(&from, b"old"),
            Place::new(&to, b"new"),
            mode,
            &|_| Ok(()),
        )
        .expect("renamed");
        fs.fsync(&file, Fsync::All).expect("synced");

        let fs = mount(&pool);
        let kind = |dir: &[u8], name| {
            let dir = fs.lookup(&fs.root(), dir).expect("there");
            fs.lookup(&dir, name).map(|node| fs.kind(&node))
        };
        let found = (kind(b"from", b"old"), kind(b"to", b"new"));
        assert_eq!(
            found,
            (Ok(Kind::CharDev), Ok(Kind::File)),
            "{durable} {again}"
        );
    }
}

#[test]
fn a_pointer_that_cannot_be_harms_its_own_block_alone() {
    const BLOCK: u64 = 4096;
    let pool = image(16 << 20, Domain::Line, Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    let file = fs.create(&fs.root(), b"file", &new(NewKind::File));
    let file = file.expect("made");
    fs.write(&file, 0, &[0xab; 100 * BLOCK as usize])
        .expect("written");
    drop(file);
    fs.unmount().expect("unmounted");
    let is_leaf = |page: &u64| {
        let word = |i: u64| pool.load(page * BLOCK + i * 8);
        word(0) != 0 && (1..100).all(|i| word(i) == word(0) + (i << 12)) && word(100) == 0
    };
    let leaf = (1..pool.len() / BLOCK).find(is_leaf).expect("a leaf");
    pool.store(leaf * BLOCK + 45 * 8, !0);

    let fs = mount(&pool);
    let file = fs.lookup(&fs.root(), b"file").expect("there");
    let mut buf = vec![0; BLOCK as usize];
    for block in 0..100 {
        let done = if block == 45 {
            Err(Errno::UCLEAN)
        } else {
            Ok(buf.len())
        };
        let at = block * BLOCK;
        assert_eq!(fs.read(&file, at, &mut buf).map_err(|e| e.errno()), done);
        assert_eq!(fs.write(&file, at, &buf).map_err(|e| e.errno()), done);
    }
    // What is read at once with it fails as a whole.
    let mut all = vec![0; 60 * BLOCK as usize];
    assert_eq!(
        fs.read(&file, 0, &mut all).map_err(|e| e.errno()),
        Err(Errno::UCLEAN)
    );
    assert!(fs.status().failed.is_none());
    drop(file);
    removal_is_survived(&fs, b"file");
}

/// What a damaged inode held may stay in use; all else goes on, and the image is not marked clean.
fn removal_is_survived(fs: &SoupFs, name: &[u8]) {
    fs.unlink(&fs.root(), name, &|_| Ok(())).expect("unlink");
    assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
    let made = fs.create(&fs.root(), b"after", &new(NewKind::File));
    fs.write(&made.expect("made"), 0, &[1; 5000])
        .expect("written");
    assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
    fs.unmount().expect("unmount");
    let word = |at| fs.pool().load(at);
    assert_ne!(word(state::CLEAN_EPOCH), word(state::EPOCH), "marked clean");
}

/// An image with what `make` makes, and the number of the inode with this name.
fn holding(name: &[u8], make: impl Fn(&SoupFs)) -> (Arc<Pool>, u64) {
    let pool = image(16 << 20, Domain::Line, Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    make(&fs);
    let ino = fs.attr(&fs.lookup(&fs.root(), name).expect("there")).ino;
    fs.unmount().expect("unmounted");
    (pool, ino)
}

fn file(fs: &SoupFs, name: &[u8], len: usize) {
    let file = fs
        .create(&fs.root(), name, &new(NewKind::File))
        .expect("made");
    fs.write(&file, 0, &vec![0xab; len]).expect("written");
}

#[test]
fn an_index_that_leads_to_itself_ends() {
    let (pool, ino) = holding(b"file", |fs| file(fs, b"file", 8192));
    let root = pool.load(line_at(ino) + inode::ROOT);
    let node = root >> 12;
    for i in 0..512 {
        pool.store(node * 4096 + i * 8, node << 12);
    }
    pool.store(line_at(ino) + inode::ROOT, node << 12 | 4);
    removal_is_survived(&mount(&pool), b"file");
}

#[test]
fn attributes_that_lead_nowhere_stop_nothing_else() {
    let (pool, ino) = holding(b"file", |fs| file(fs, b"file", 100));
    pool.store(line_at(ino) + inode::XATTR, !0);
    removal_is_survived(&mount(&pool), b"file");
}

/// Somebody else may be given such a page, so nothing is changed in it, and then nothing at all.
#[test]
fn what_is_in_a_page_that_is_free_is_not_changed() {
    let pool = with_names();
    let entry = entry_of(&pool, b"n7");
    let geometry = soupfs::inspect(&pool)
        .expect("readable")
        .superblock
        .geometry;
    let (word, bit) = geometry.page_bit(entry / PAGE);
    pool.store(word, pool.load(word) & !bit);
    let fs = Soup::default().mount(pool.clone(), clock());
    fs.unlink(&fs.root(), b"n7", &|_| Ok(()))
        .expect("in memory");
    let error = fs.syncfs().expect_err("it cannot be durable");
    assert_eq!(error.errno(), Errno::UCLEAN, "{error}");
    let failed = fs.status().failed.expect("nothing goes on");
    assert!(failed.contains("in a page that is free"), "{failed}");
    drop(fs);
    let pool = Pool::from_bytes(&pool.snapshot(), &Options::default());
    let pool = Arc::new(pool.expect("memory"));
    let options = CheckOptions {
        repair: true,
        threads: 1,
    };
    let report = check(&pool, &options, &|_| ()).expect("check");
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    let fs = mount(&pool);
    for i in 0..NAMES {
        let name = format!("n{i}");
        fs.lookup(&fs.root(), name.as_bytes()).expect("it is there");
    }
}

/// A page that two files have is free once: the second to go does not give it to somebody else.
#[test]
fn a_page_that_is_free_already_is_not_given_to_two() {
    let (pool, ino) = holding(b"one", |fs| {
        file(fs, b"one", 4096);
        file(fs, b"two", 4096);
    });
    let root = pool.load(line_at(ino) + inode::ROOT);
    let other = {
        let fs = mount(&pool);
        fs.attr(&fs.lookup(&fs.root(), b"two").expect("there")).ino
    };
    pool.store(line_at(other) + inode::ROOT, root);
    let fs = mount(&pool);
    for name in [b"one", b"two"] {
        fs.unlink(&fs.root(), name, &|_| Ok(())).expect("unlink");
        fs.syncfs().expect("syncfs");
    }
    let files: Vec<_> = (0..3000u32)
        .map_while(|i| {
            let name = i.to_string();
            let file = fs
                .create(&fs.root(), name.as_bytes(), &new(NewKind::File))
                .ok()?;
            fs.write(&file, 0, &[i.to_le_bytes(); 1024].concat()).ok()?;
            Some(file)
        })
        .collect();
    assert!(files.len() > 2000);
    for (i, file) in files.iter().enumerate() {
        let mut bytes = [0; 4];
        fs.read(file, 0, &mut bytes).expect("read");
        assert_eq!(u32::from_le_bytes(bytes), i as u32, "another file's page");
    }
}

#[test]
fn a_name_of_a_removed_inode_leads_to_none() {
    let (pool, ino) = holding(b"one", |fs| {
        file(fs, b"one", 4096);
        let one = fs.lookup(&fs.root(), b"one").expect("there");
        fs.link(&one, &fs.root(), b"two").expect("link");
    });
    let at = line_at(ino) + inode::MODE_NLINK;
    pool.store(at, pool.load(at) & 0xffff_ffff | 1 << 32);
    let fs = mount(&pool);
    fs.unlink(&fs.root(), b"one", &|_| Ok(())).expect("unlink");
    fs.syncfs().expect("syncfs");
    let found = fs
        .lookup(&fs.root(), b"two")
        .map(drop)
        .map_err(|e| e.errno());
    assert_eq!(found, Err(Errno::UCLEAN));
    let removed = fs
        .unlink(&fs.root(), b"two", &|_| Ok(()))
        .map_err(|e| e.errno());
    assert_eq!(removed, Err(Errno::UCLEAN));
    assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
}

#[test]
fn a_directory_that_is_its_own_parent_is_moved_nowhere() {
    let (pool, ino) = holding(b"a", |fs| {
        for name in [b"a", b"b"] {
            fs.create(&fs.root(), name, &new(NewKind::Dir))
                .expect("mkdir");
        }
    });
    for parent in [ino, !0] {
        pool.store(line_at(ino) + inode::PARENT, parent);
        let fs = mount(&pool);
        let a = fs.lookup(&fs.root(), b"a").expect("there");
        let moved = fs.rename(
            Place::new(&fs.root(), b"b"),
            Place::new(&a, b"b"),
            RenameMode::Replace,
            &|_| Ok(()),
        );
        assert_eq!(moved.map_err(|e| e.errno()), Err(Errno::UCLEAN));
        assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
    }
}

#[test]
fn counters_of_mounts_that_contradict_each_other_are_not_believed() {
    let repair = CheckOptions {
        repair: true,
        threads: 1,
    };
    for (epoch, clean) in [(1, 2), (0, 0), (1 << 24, 2)] {
        let pool = with_names();
        pool.store(state::EPOCH, epoch);
        pool.store(state::CLEAN_EPOCH, clean);
        let options = soupfs::MountOptions::new(clock());
        let mounted = SoupFs::mount(pool.clone(), options).map(drop);
        assert_eq!(mounted, Err(soupfs::MountError::Counters));
        check(&pool, &repair, &|_| ()).expect("check");
        mount(&pool);
    }
}

#[test]
fn an_image_that_a_later_version_alone_may_write_is_only_read() {
    use soupfs::layout::superblock;
    let pool = with_names();
    let mut bytes = [0; superblock::LEN];
    pool.read(0, &mut bytes);
    bytes[superblock::AT_RO_COMPAT] = 4;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..superblock::AT_CHECKSUM]);
    bytes[superblock::AT_CHECKSUM..][..8].copy_from_slice(&sum.to_le_bytes());
    pool.write(0, &bytes);
    let options = soupfs::MountOptions::new(clock());
    let mounted = SoupFs::mount(pool.clone(), options.clone()).map(drop);
    assert_eq!(mounted, Err(soupfs::MountError::Features(4)));
    let read_only = soupfs::MountOptions {
        read_only: true,
        ..options
    };
    let fs = SoupFs::mount(pool, read_only).expect("a mount for reading");
    fs.lookup(&fs.root(), b"n7").expect("there");
}

/// The whiteout is captured alone, with its directory, which then goes, before the new name is
/// captured.
#[test]
fn a_whiteout_may_be_gone_before_the_new_name_is_captured() {
    for reuse in [false, true] {
        let pool = image(16 << 20, Domain::Line, Time(1));
        let soup = Soup {
            manual: true,
            ..Soup::default()
        };
        let fs = soup.mount(pool.clone(), clock());
        let root = fs.root();
        let make = |name: &[u8], kind| fs.create(&root, name, &new(kind)).expect("made");
        let sync = |node: &soupfs::Node| fs.fsync(node, Fsync::All).expect("synced");
        let (from, to) = (make(b"from", NewKind::Dir), make(b"to", NewKind::Dir));
        let file = make(b"keep", NewKind::File);
        fs.syncfs().expect("synced");
        fs.link(&file, &from, b"old").expect("linked");
        let mode = RenameMode::Whiteout;
        fs.rename(
            Place::new(&from, b"old"),
            Place::new(&to, b"new"),
            mode,
            &|_| Ok(()),
        )
        .expect("renamed");
        sync(&from);
        fs.unlink(&from, b"old", &|_| Ok(())).expect("unlinked");
        sync(&from);
        drop(from);
        fs.rmdir(&root, b"from", &|_| Ok(())).expect("removed");
        sync(&root);
        sync(&root); // checkpoints the removal: the directory's lines may be used again
        if reuse {
            for i in 0..100 {
                make(format!("{i}").as_bytes(), NewKind::File);
            }
        }
        assert_eq!(fs.fsync(&file, Fsync::All), Ok(()), "reuse {reuse}");
        assert_eq!(fs.status().failed, None);
        drop((file, to, root));
        fs.unmount().expect("unmounted");
        common::audit(&pool);
    }
}

/// A directory that moved over a whiteout is removed before its new name is captured: it is freed
/// all the same.
#[test]
fn a_directory_that_left_a_whiteout_is_freed() {
    let pool = image(16 << 20, Domain::Line, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let root = fs.root();
    let make =
        |dir: &soupfs::Node, name: &[u8]| fs.create(dir, name, &new(NewKind::Dir)).expect("made");
    let (from, to) = (make(&root, b"from"), make(&root, b"to"));
    fs.syncfs().expect("synced");
    drop(make(&from, b"dir"));
    let mode = RenameMode::Whiteout;
    fs.rename(
        Place::new(&from, b"dir"),
        Place::new(&to, b"dir"),
        mode,
        &|_| Ok(()),
    )
    .expect("renamed");
    fs.fsync(&from, Fsync::All).expect("synced");
    fs.rmdir(&to, b"dir", &|_| Ok(())).expect("removed");
    fs.unlink(&from, b"dir", &|_| Ok(())).expect("unlinked");
    for _ in 0..3 {
        fs.syncfs().expect("synced");
    }
    drop((from, to, root));
    assert_eq!(fs.status().inodes_cached, 3, "root, from and to");
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

/// An entry of the consistent view that looks as if its addition were pending is no reason to look
/// for that.
#[test]
fn an_entry_that_looks_pending_stops_nothing_else() {
    for op in [0, 1, 9, 1 << 39] {
        for name in [&b"n7"[..], b"n19", b"n0"] {
            let pool = with_names();
            pool.store(entry_of(&pool, name) + dentry::NEXT, dentry::PENDING | op);
            let fs = mount(&pool);
            let root = fs.root();
            fs.create(&root, b"first", &new(NewKind::File))
                .expect("made");
            for i in 0..NAMES {
                match fs.unlink(&root, format!("n{i}").as_bytes(), &|_| Ok(())) {
                    Ok(()) => {}
                    Err(e) => assert_eq!(e.errno(), Errno::UCLEAN, "{e}"),
                }
            }
            assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
        }
    }
}

#[test]
fn a_table_without_its_first_block_is_used_on() {
    for word in [0, 7, !0] {
        without_first_block(word);
    }
}

fn without_first_block(word: u64) {
    let (pool, ino) = holding(b"dir", |fs| {
        let dir = fs.create(&fs.root(), b"dir", &new(NewKind::Dir));
        let dir = dir.expect("mkdir");
        for i in 0..3000 {
            let name = i.to_string();
            fs.create(&dir, name.as_bytes(), &new(NewKind::File))
                .expect("made");
        }
    });
    let node = pool.load(line_at(ino) + inode::ROOT) >> 12;
    pool.store(node * 4096, word);
    let fs = mount(&pool);
    let dir = fs.lookup(&fs.root(), b"dir").expect("there");
    let mut names = Vec::new();
    for i in 0..500 {
        let name = format!("new {i}");
        let made = fs.create(&dir, name.as_bytes(), &new(NewKind::File));
        match made {
            Ok(_) => names.push(name),
            Err(e) => assert_eq!(e.errno(), Errno::UCLEAN, "{e}"),
        }
    }
    assert!(names.len() == 500 || word != 0 && names.len() > 50);
    assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
    for name in names {
        fs.lookup(&dir, name.as_bytes()).expect("there");
    }
}

/// Buckets that a level of damage hides do not come back in one view alone.
#[test]
fn a_table_that_is_larger_than_its_level_says_is_used_on() {
    for (level, count) in [(0, 1000), (3, 1000), (4, 12_000), (6, 12_000)] {
        let (pool, ino) = holding(b"dir", |fs| {
            let dir = fs.create(&fs.root(), b"dir", &new(NewKind::Dir));
            let dir = dir.expect("mkdir");
            for i in 0..count {
                let name = i.to_string();
                fs.create(&dir, name.as_bytes(), &new(NewKind::File))
                    .expect("made");
            }
        });
        pool.store(line_at(ino) + inode::LEVEL, level);
        let fs = mount(&pool);
        let dir = fs.lookup(&fs.root(), b"dir").expect("there");
        let name = |i: u32| format!("new {i}").into_bytes();
        for i in 0..2000 {
            fs.create(&dir, &name(i), &new(NewKind::File))
                .expect("made");
            if i % 100 < 4 {
                assert_eq!(fs.syncfs(), Ok(()), "level {level}, name {i}");
            }
        }
        for i in 0..2000 {
            fs.unlink(&dir, &name(i), &|_| Ok(())).expect("there");
            if i % 100 < 4 {
                assert_eq!(fs.syncfs(), Ok(()), "level {level}, name {i}");
            }
        }
        assert_eq!((fs.syncfs(), fs.status().failed), (Ok(()), None));
    }
}

/// Buckets are split off those that a hole in the table holds, in either view, or in none.
#[test]
fn a_table_with_a_hole_is_used_on() {
    const COUNT: u32 = 12_000;
    let name = |i: u32| i.to_string().into_bytes();
    let fill = |fs: &SoupFs, dir: &Node| {
        for i in 0..COUNT {
            fs.create(dir, &name(i), &new(NewKind::File)).expect("made");
        }
    };
    let pool = image(64 << 20, Domain::Line, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let dir = fs
        .create(&fs.root(), b"dir", &new(NewKind::Dir))
        .expect("mkdir");
    let ino = fs.attr(&dir).ino;
    fill(&fs, &dir);
    (0..COUNT).for_each(|i| fs.unlink(&dir, &name(i), &|_| Ok(())).expect("unlink"));
    drop(dir);
    fs.unmount().expect("unmounted");
    let blocks = (32 << pool.load(line_at(ino) + inode::LEVEL)) / 512;
    assert!(blocks >= 8, "{blocks}");
    // Empty buckets that are not split off, one block not there.
    let node = (pool.load(line_at(ino) + inode::ROOT) >> 12) * 4096;
    for block in 0..blocks {
        let page = (pool.load(node + block * 8) >> 12) * 4096;
        (0..512).for_each(|i| pool.store(page + i * 8, 0));
    }
    pool.store(node + 8, 0);
    let options = CheckOptions {
        repair: true,
        threads: 1,
    };
    let report = check(&pool, &options, &|_| ()).expect("check");
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    for life in 0..2 {
        let fs = soup.mount(pool.clone(), clock());
        let dir = fs.lookup(&fs.root(), b"dir").expect("there");
        if life == 0 {
            fill(&fs, &dir);
            fs.syncfs().expect("synced");
        }
        (0..COUNT).for_each(|i| drop(fs.lookup(&dir, &name(i)).expect("there")));
        drop(dir);
        fs.unmount().expect("unmounted");
        common::audit(&pool);
    }
}

#[test]
fn a_file_whose_index_cannot_be_read_is_not_changed() {
    for word in [7, !0, 1 << 12, 1 << 40 | 3, 5] {
        let (pool, ino) = holding(b"file", |fs| file(fs, b"file", 100_000));
        pool.store(line_at(ino) + inode::ROOT, word);
        let fs = mount(&pool);
        let file = fs.lookup(&fs.root(), b"file").expect("there");
        let is_refused = |done: vfs::Result<()>| {
            if let Err(e) = done {
                assert_eq!(e.errno(), Errno::UCLEAN, "{word:#x}: {e}");
            }
        };
        let size = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        for len in [5000, 200_000, 0, 1 << 40, 0] {
            is_refused(fs.setattr(&file, &size(len)).map(drop));
        }
        for at in [0, 100_000, 1 << 40] {
            is_refused(fs.write(&file, at, &[1; 5000]).map(drop));
            for mode in [Fallocate::Punch, Fallocate::Zero { keep_size: false }] {
                is_refused(fs.fallocate(&file, mode, at, 50_000));
            }
            assert_eq!(
                (fs.syncfs(), fs.status().failed),
                (Ok(()), None),
                "{word:#x} {at}"
            );
        }
        removal_is_survived(&fs, b"file");
    }
}

/// Two directories that are in each other, each removed from the other at the same time: whoever
/// has a name locked in one needs all of the other. An error, and nobody waits for ever.
#[test]
fn two_directories_that_are_in_each_other_are_not_removed_for_ever() {
    let pool = image(16 << 20, Domain::Line, Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    let a = fs
        .create(&fs.root(), b"a", &new(NewKind::Dir))
        .expect("made");
    let b = fs.create(&a, b"b", &new(NewKind::Dir)).expect("made");
    fs.create(&b, b"back-to-a", &new(NewKind::Dir))
        .expect("made");
    let (a, b) = (fs.ino(&a), fs.ino(&b));
    fs.unmount().expect("unmounted");
    let at = entry_of(&pool, b"back-to-a") + dentry::TARGET;
    pool.store(at, pool.load(at) & !soupfs::layout::LINE_MASK | a);
    pool.store(line_at(a) + inode::PARENT, b);

    let fs = mount(&pool);
    let (a, b) = (fs.node(a).expect("there"), fs.node(b).expect("there"));
    let (tell, told) = std::sync::mpsc::channel();
    let both_locked = Arc::new(std::sync::Barrier::new(2));
    for (dir, name) in [(a, &b"b"[..]), (b, &b"back-to-a"[..])] {
        let (fs, tell, both_locked) = (fs.clone(), tell.clone(), both_locked.clone());
        std::thread::spawn(move || {
            let result = fs.rmdir(&dir, name, &|_| {
                both_locked.wait();
                Ok(())
            });
            let _ = tell.send(result.map_err(|e| e.errno()));
        });
    }
    let watchdog = std::time::Duration::from_secs(60);
    let results = [0, 1].map(|_| {
        told.recv_timeout(watchdog)
            .expect("they wait for each other")
    });
    let refused = |result: &Result<(), Errno>| {
        matches!(result, Err(Errno::UCLEAN | Errno::BUSY | Errno::NOTEMPTY))
    };
    assert!(results.iter().all(refused), "{results:?}");
    assert!(
        results.iter().any(|result| *result != Err(Errno::NOTEMPTY)),
        "{results:?}"
    );
}

/// A count of names that is none does not make the table grow for them.
#[test]
fn a_damaged_count_of_names_takes_no_space() {
    for names in [0, 40, 3000] {
        let pool = image(256 << 20, Domain::Cache, Time(1));
        let root = soupfs::inspect(&pool).expect("readable").superblock.root;
        let soup = Soup {
            manual: true,
            ..Soup::default()
        };
        let make = |fs: &SoupFs, names: std::ops::Range<u32>| {
            for i in names {
                let name = format!("name{i}");
                fs.create(&fs.root(), name.as_bytes(), &new(NewKind::Fifo))
                    .expect("made");
            }
        };
        let fs = soup.mount(pool.clone(), clock());
        make(&fs, 0..names);
        fs.unmount().expect("unmounted");
        drop(fs);
        pool.store(line_at(root) + inode::SIZE, 1 << 40);
        let fs = soup.mount(pool.clone(), clock());
        let free = fs.statfs().free;
        make(&fs, names..names + 2000);
        let taken = free - fs.statfs().free;
        // An entry and an inode take three lines.
        assert!(taken < 2000 * 3 / 64 + 60, "{names} names: {taken} pages");
        for i in 0..names + 2000 {
            fs.lookup(&fs.root(), format!("name{i}").as_bytes())
                .expect("there");
        }
    }
}

/// A count of names that is right does, also after a mount.
#[test]
fn a_large_directory_goes_on_growing_after_a_mount() {
    let pool = image(64 << 20, Domain::Cache, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    for part in 0..8 {
        let fs = soup.mount(pool.clone(), clock());
        for i in 0..2500 {
            let name = format!("name{part}-{i}");
            fs.create(&fs.root(), name.as_bytes(), &new(NewKind::Fifo))
                .expect("made");
        }
        // Five entries for two buckets at the most, and 512 buckets in a page.
        let pages = fs.attr(&fs.root()).size / 4096;
        assert!(
            pages * 512 * 5 / 2 >= 2500 * (part + 1) * 9 / 10,
            "{part}: {pages}"
        );
        fs.unmount().expect("unmounted");
    }
    common::audit(&pool);
}

/// An index of a file that leads in a circle, in an image that was not unmounted: what a killed
/// process may have written to it is looked for, and that ends.
#[test]
fn an_index_in_a_circle_does_not_keep_a_sync_from_ending() {
    let pool = image(1 << 20, Domain::Line, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let file = fs
        .create(&fs.root(), b"file", &new(NewKind::File))
        .expect("made");
    fs.write(&file, 0, &[1; 9000]).expect("written");
    let ino = fs.attr(&file).ino;
    fs.syncfs().expect("synced");
    drop((file, fs));

    let root = pool.load(line_at(ino) + inode::ROOT);
    let node = root >> index::SHIFT;
    for i in 0..index::FANOUT {
        pool.store(node * PAGE + i * 8, node << index::SHIFT);
    }
    pool.store(
        line_at(ino) + inode::ROOT,
        node << index::SHIFT | index::HEIGHT_MAX,
    );
    for all in [false, true] {
        pool.store(line_at(ino) + inode::UNFLUSHED, u64::MAX);
        pool.store(state::CLEAN_EPOCH, 0);
        let fs = soup.mount(pool.clone(), clock());
        let file = fs.lookup(&fs.root(), b"file").expect("found");
        let before = pool.stats().flushed_lines;
        match all {
            true => fs.syncfs().expect("synced"),
            false => fs.fsync(&file, Fsync::All).expect("synced"),
        }
        let flushed = pool.stats().flushed_lines - before;
        assert!(flushed < 20 * pool.len() / LINE, "{flushed} lines");
        drop((file, fs));
        assert!(!soupfs::inspect(&pool).expect("an image").clean);
    }
}

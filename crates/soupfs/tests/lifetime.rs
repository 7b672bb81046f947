//! Inodes without names, and references to them.

mod common;

use common::{Soup, audit, clock, image, wait_until};
use pmem::{Domain, Options, Pool};
use soupfs::layout::LINES_PER_PAGE;
use soupfs::{MountOptions, SoupFs};
use std::sync::Arc;
use std::time::Duration;
use vfs::{
    Context, Cred, Errno, FileSystem, Files, Fsync, Kind, NewKind, NewNode, OpenFlags, Place,
    RenameMode, SetAttr, Vfs, VfsOptions,
};

const FILE: NewNode<'_> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};

#[test]
fn asking_for_an_inode_that_lost_its_last_name_neither_brings_it_back_nor_leaks_it() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(16 << 20, Domain::Line, vfs::Time(0));
    let fs = soup.mount(pool.clone(), clock());
    let used = || fs.statfs().blocks - fs.statfs().free;
    let before = used();
    let file = fs.create(&fs.root(), b"file", &FILE).expect("create");
    fs.write(&file, 0, &[1; 100_000]).expect("write");
    fs.syncfs().expect("syncfs");
    let ino = fs.ino(&file);
    drop(file);
    fs.unlink(&fs.root(), b"file", &|_| Ok(())).expect("unlink");
    // The inode waits for its removal to be persisted. Asking repeatedly must not count anything.
    for _ in 0..4 {
        assert_eq!(fs.node(ino).err().map(|e| e.errno()), Some(Errno::STALE));
    }
    fs.syncfs().expect("syncfs");
    fs.syncfs().expect("syncfs");
    assert!(used() <= before + 1, "{} pages, {before} before", used());
    fs.unmount().expect("unmount");
    audit(&pool);
}

#[test]
fn a_map_that_counts_an_inode_in_use_as_free_gives_it_to_nobody() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(16 << 20, Domain::Line, clock().now());
    let fs = soup.mount(pool.clone(), clock());
    // As many as make the root's pair be taken for an inode, not for two entries.
    fs.create(&fs.root(), &[b'n'; 60], &FILE).expect("create");
    fs.unmount().expect("unmount");
    drop(fs);
    let superblock = soupfs::inspect(&pool).expect("superblock").superblock;
    let word = superblock
        .geometry
        .line_word(superblock.root / LINES_PER_PAGE);
    let lines = 3 << (superblock.root % LINES_PER_PAGE);
    pool.store(word, pool.load(word) & !lines);
    let fs = soup.mount(pool.clone(), clock());
    let mut refused = 0;
    for n in 0..200 {
        let made = fs.create(&fs.root(), format!("file-{n}").as_bytes(), &FILE);
        refused += match made.map_err(|e| e.errno()) {
            Ok(_) => 0,
            Err(Errno::UCLEAN) => 1,
            Err(other) => panic!("{other}"),
        };
    }
    assert_eq!(refused, 1);
    assert_eq!(fs.kind(&fs.root()), Kind::Dir);
    let mut names = 0;
    let mut count = |_: vfs::DirEntry<'_>| {
        names += 1;
        true
    };
    fs.readdir(&fs.root(), 0, &mut count).expect("readdir");
    assert_eq!(names, 200);
    fs.unmount().expect("unmount");
}

#[test]
fn a_directory_with_splits_of_operations_that_failed_is_not_forgotten() {
    let pool = image(16 << 20, Domain::Line, clock().now());
    // Forgets all that it may, in every sweep.
    let options = MountOptions {
        inodes_max: 0,
        bound: Duration::from_millis(2),
        ..MountOptions::new(clock())
    };
    let fs = SoupFs::mount(pool.clone(), options).expect("mount");
    let dir = NewNode {
        kind: NewKind::Dir,
        ..FILE
    };
    let name = |n: usize| format!("file-{n}").into_bytes();
    let look = |fs: &SoupFs, what: &str| {
        let dir = fs.lookup(&fs.root(), b"dir").expect("the directory");
        for n in 0..400 {
            assert!(fs.lookup(&dir, &name(n)).is_ok(), "file-{n} is lost {what}");
        }
    };
    let made = fs.create(&fs.root(), b"dir", &dir).expect("create");
    for n in 0..400 {
        fs.create(&made, &name(n), &FILE).expect("create");
    }
    drop(made);
    fs.syncfs().expect("syncfs");
    wait_until("all but the root is forgotten", || is_forgotten(&fs));
    look(&fs, "before");

    let gone = fs.create(&fs.root(), b"gone", &FILE).expect("create");
    fs.unlink(&fs.root(), b"gone", &|_| Ok(())).expect("unlink");
    let made = fs.lookup(&fs.root(), b"dir").expect("the directory");
    for n in 0..400 {
        let linked = fs.link(&gone, &made, format!("link-{n}").as_bytes());
        assert_eq!(linked.map_err(|e| e.errno()), Err(Errno::NOENT));
    }
    drop((gone, made));
    fs.syncfs().expect("syncfs");
    wait_until("all but the root is forgotten", || is_forgotten(&fs));
    look(&fs, "after");
    fs.unmount().expect("unmount");
    audit(&pool);
    look(&read_only(pool), "for who only reads");
}

/// Whether no inode is in DRAM but the root's.
fn is_forgotten(fs: &SoupFs) -> bool {
    fs.status().inodes_cached <= 1
}

fn read_only(pool: Arc<Pool>) -> SoupFs {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::new(clock())
    };
    SoupFs::mount(pool, options).expect("a mount for reading")
}

/// Nothing of the latest view that a crash left is followed, although a mount for reading begins no
/// epoch of its own.
#[test]
fn a_mount_for_reading_shows_what_is_durable() {
    let pool = image(16 << 20, Domain::Line, clock().now());
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let name = |n: usize| format!("file-{n}").into_bytes();
    let make = |n: usize| fs.create(&fs.root(), &name(n), &FILE).map(drop);
    (0..400).try_for_each(make).expect("create");
    make(9999).expect("create");
    fs.syncfs().expect("syncfs");
    // What was removed is made free, for which the journal is emptied: a mount for reading cannot
    // replay it.
    fs.unlink(&fs.root(), &name(9999), &|_| Ok(()))
        .expect("unlink");
    fs.syncfs().expect("syncfs");
    // More names split buckets, and names move.
    (400..1200).try_for_each(make).expect("create");
    for n in 0..40 {
        let to = format!("moved-{n}").into_bytes();
        let moved = fs.rename(
            Place::new(&fs.root(), &name(n)),
            Place::new(&fs.root(), &to),
            RenameMode::Replace,
            &|_| Ok(()),
        );
        moved.expect("rename");
    }
    let pool = Pool::from_bytes(&pool.snapshot(), &Options::default()).expect("memory");
    let fs = read_only(Arc::new(pool));
    let mut names = 0;
    let count = &mut |_: vfs::DirEntry<'_>| {
        names += 1;
        true
    };
    fs.readdir(&fs.root(), 0, count).expect("readdir");
    assert_eq!(names, 400);
    for n in 0..400 {
        assert!(fs.lookup(&fs.root(), &name(n)).is_ok(), "file-{n} is lost");
    }
}

/// A crash may bring the name back; then with what was synced.
#[test]
fn an_fsync_of_a_file_that_was_just_removed_syncs_what_it_holds() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(16 << 20, Domain::Line, clock().now());
    let fs = soup.mount(pool.clone(), clock());
    let file = fs.create(&fs.root(), b"file", &FILE).expect("create");
    fs.write(&file, 0, &[1; 5000]).expect("write");
    fs.syncfs().expect("syncfs");
    fs.write(&file, 0, &[2; 9000]).expect("write");
    fs.unlink(&fs.root(), b"file", &|_| Ok(())).expect("unlink");
    fs.fsync(&file, Fsync::All).expect("fsync");

    let crashed = Pool::from_bytes(&pool.snapshot(), &Options::default()).expect("memory");
    let crashed = soup.mount(Arc::new(crashed), clock());
    if let Ok(file) = crashed.lookup(&crashed.root(), b"file") {
        let mut bytes = vec![0; 9001];
        assert_eq!(crashed.read(&file, 0, &mut bytes).expect("read"), 9000);
        assert!(bytes[..9000] == [2; 9000], "other bytes than were synced");
    }
    drop(file);
    fs.unmount().expect("unmount");
    audit(&pool);
}

#[test]
fn what_is_cut_off_a_file_without_names_is_free_while_it_is_open() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(16 << 20, Domain::Line, clock().now());
    let fs = soup.mount(pool.clone(), clock());
    let file = fs.create(&fs.root(), b"file", &FILE).expect("create");
    let before = fs.statfs().free;
    fs.write(&file, 0, &[1; 4 << 20]).expect("write");
    fs.syncfs().expect("syncfs");
    fs.unlink(&fs.root(), b"file", &|_| Ok(())).expect("unlink");
    fs.syncfs().expect("syncfs");
    let empty = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&file, &empty).expect("truncate");
    fs.syncfs().expect("syncfs");
    assert!(fs.statfs().free + 4 >= before, "4 MiB are still taken");
    drop(file);
    fs.unmount().expect("unmount");
    audit(&pool);
}

#[test]
fn no_path_leads_out_of_a_removed_directory() {
    let fs = Soup::default().mount(image(16 << 20, Domain::Line, clock().now()), clock());
    let vfs = Arc::new(Vfs::new(fs, VfsOptions::default()));
    let files = Files::new(vfs.clone(), 10);
    let ctx = Context::new(&vfs, Cred::root());
    let mut inside = ctx.clone();
    files.mkdir(&ctx, "above", 0o755).expect("mkdir");
    files.mkdir(&ctx, "above/gone", 0o755).expect("mkdir");
    files.chdir(&mut inside, "above/gone").expect("chdir");
    let dir = files.open(&inside, ".", OpenFlags::READ, 0).expect("open");
    // Its parent outlives it, or is gone as well, and its number free for another inode.
    for removed in ["above/gone", "above"] {
        files.rmdir(&ctx, removed).expect("rmdir");
        vfs.syncfs().expect("syncfs");
        for path in ["..", "../..", "../new"] {
            let found = files.stat(&inside, path);
            assert_eq!(found.err().map(|e| e.errno()), Some(Errno::NOENT), "{path}");
        }
        let listed = files.readdir(dir, |_| true);
        assert_eq!(listed.err().map(|e| e.errno()), Some(Errno::NOENT));
    }
}

#[test]
fn asking_for_the_parent_of_a_removed_directory_does_not_bring_that_back() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(image(16 << 20, Domain::Line, clock().now()), clock());
    let dir = NewNode {
        kind: NewKind::Dir,
        ..FILE
    };
    let above = fs.create(&fs.root(), b"above", &dir).expect("mkdir");
    let gone = fs.create(&above, b"gone", &dir).expect("mkdir");
    fs.syncfs().expect("syncfs");
    fs.rmdir(&above, b"gone", &|_| Ok(())).expect("rmdir");
    fs.rmdir(&fs.root(), b"above", &|_| Ok(())).expect("rmdir");
    drop(above);
    fs.syncfs().expect("syncfs");
    let parent = fs.parent(&gone).map(|_| ()).map_err(|e| e.errno());
    assert_eq!(parent, Err(Errno::NOENT));
    for n in 0..1000 {
        fs.create(&fs.root(), format!("{n}").as_bytes(), &FILE)
            .expect("create");
    }
}

/// An inode number that is used again means something else, and the generation says so.
#[test]
fn no_two_inodes_of_a_mount_have_the_same_generation() {
    let fs = Soup::default().mount(image(16 << 20, Domain::Line, clock().now()), clock());
    let mut seen = std::collections::HashSet::new();
    for thread in 0..200 {
        let make = |n: usize| {
            let name = format!("{thread}-{n}").into_bytes();
            let file = fs.create(&fs.root(), &name, &FILE).expect("create");
            fs.attr(&file).generation
        };
        let made = std::thread::scope(|s| s.spawn(|| [make(0), make(1)]).join());
        for generation in made.expect("no panic") {
            assert!(
                seen.insert(generation),
                "thread {thread}: {generation} again"
            );
        }
    }
}

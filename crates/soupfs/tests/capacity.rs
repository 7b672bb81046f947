//! Whatever is pending fits into one transaction, however its parts pull each other along.
//!
//! Each test makes far more words pending that belong together than the journal of its small image
//! holds, without a thread that persists meanwhile.

mod common;

use common::{Soup, clock, image};
use pmem::{Domain, Pool};
use soupfs::SoupFs;
use std::sync::Arc;
use vfs::{FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, SetAttr, Time};

const MANUAL: Soup = Soup {
    len: 0, // each test makes its own image
    mode: soupfs::Mode::Delayed,
    domain: Domain::Line,
    manual: true,
    persisters: 1,
    transactions: None,
};

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn mount(len: u64) -> (Arc<Pool>, SoupFs) {
    let pool = image(len, Domain::Line, Time(1));
    let fs = MANUAL.mount(pool.clone(), clock());
    (pool, fs)
}

/// Persist, unmount, audit, mount again.
fn again(pool: &Arc<Pool>, fs: SoupFs) -> SoupFs {
    fs.syncfs().expect("whatever is pending fits");
    fs.unmount().expect("unmounted");
    drop(fs);
    common::audit(pool);
    MANUAL.mount(pool.clone(), clock())
}

/// Put the root before all else that will be persisted, so that it pulls the rest along.
fn touch_first(fs: &SoupFs) {
    fs.create(&fs.root(), b"first", &new(NewKind::Fifo))
        .expect("made");
}

#[test]
fn sixty_thousand_links_of_one_file_in_as_many_directories_are_persisted() {
    const LINKS: usize = 60_000;
    let (pool, fs) = mount(257 << 20);
    let root = fs.root();
    let name = |i: usize| format!("d{i}");
    let dirs: Vec<_> = (0..LINKS)
        .map(|i| {
            fs.create(&root, name(i).as_bytes(), &new(NewKind::Dir))
                .expect("the image holds them")
        })
        .collect();
    let file = fs
        .create(&root, b"file", &new(NewKind::File))
        .expect("made");
    for dir in &dirs {
        // So that each has a table, and the link is a word in it.
        fs.create(dir, b"x", &new(NewKind::Fifo)).expect("made");
        fs.unlink(dir, b"x", &|_| Ok(())).expect("removed");
    }
    fs.syncfs().expect("synced");
    touch_first(&fs);
    for dir in &dirs {
        fs.link(&file, dir, b"link").expect("linked");
    }
    // One removal may not come before the names that are left.
    fs.unlink(&root, b"file", &|_| Ok(())).expect("removed");
    drop((dirs, file));
    let fs = again(&pool, fs);
    let dir = fs
        .lookup(&fs.root(), name(LINKS - 1).as_bytes())
        .expect("there");
    let file = fs.lookup(&dir, b"link").expect("linked");
    assert_eq!(fs.attr(&file).nlink as usize, LINKS);
}

#[test]
fn a_ring_of_renames_is_persisted_however_long_it_is() {
    const NAMES: usize = 8_000;
    let (pool, fs) = mount(4 << 20);
    let root = fs.root();
    let name = |i: usize| format!("n{}", i % NAMES);
    let inos: Vec<_> = (0..NAMES)
        .map(|i| {
            let file = fs.create(&root, name(i).as_bytes(), &new(NewKind::File));
            fs.ino(&file.expect("made"))
        })
        .collect();
    fs.syncfs().expect("synced");
    let rename = |from: &str, to: &str| {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        fs.rename(
            Place::new(&root, from),
            Place::new(&root, to),
            RenameMode::NoReplace,
            &|_| Ok(()),
        )
        .expect("renamed");
    };
    // Each file goes where the one before it was, so none may go before it.
    rename(&name(0), "aside");
    for i in 1..NAMES {
        rename(&name(i), &name(i - 1));
    }
    rename("aside", &name(NAMES - 1));
    let fs = again(&pool, fs);
    for i in 0..NAMES {
        let file = fs.lookup(&fs.root(), name(i).as_bytes()).expect("there");
        assert_eq!(fs.ino(&file), inos[(i + 1) % NAMES]);
    }
}

#[test]
fn an_fsync_of_a_directory_persists_more_names_than_the_journal_has_words() {
    const NAMES: usize = 40_000;
    let (pool, fs) = mount(16 << 20);
    let root = fs.root();
    let name = |i: usize| format!("n{i}");
    let make = || {
        for i in 0..NAMES {
            fs.create(&root, name(i).as_bytes(), &new(NewKind::Fifo))
                .expect("made");
        }
    };
    // The table is to be there: in a new one nothing needs the journal.
    make();
    fs.syncfs().expect("synced");
    for i in 0..NAMES {
        fs.unlink(&root, name(i).as_bytes(), &|_| Ok(()))
            .expect("removed");
    }
    fs.syncfs().expect("synced");
    make();
    fs.fsync(&root, Fsync::All).expect("it fits");
    let crashed = Arc::new(
        Pool::from_bytes(&pool.snapshot(), &pmem::Options::default()).expect("anonymous memory"),
    );
    let after = MANUAL.mount(crashed, clock());
    let mut count = 0;
    after
        .readdir(&after.root(), 0, &mut |_| {
            count += 1;
            true
        })
        .expect("read");
    assert_eq!(count, NAMES);
    again(&pool, fs);
}

#[test]
fn changed_attributes_of_all_that_a_move_brings_along_are_persisted() {
    const FILES: usize = 10_000;
    let (pool, fs) = mount(8 << 20);
    let root = fs.root();
    let [from, to] = ["from", "to"].map(|name| {
        fs.create(&root, name.as_bytes(), &new(NewKind::Dir))
            .expect("made")
    });
    let files: Vec<_> = (0..FILES)
        .map(|i| {
            fs.create(&from, format!("f{i}").as_bytes(), &new(NewKind::File))
                .expect("made")
        })
        .collect();
    fs.syncfs().expect("synced");
    touch_first(&fs);
    for (i, file) in files.iter().enumerate() {
        let set = SetAttr {
            perm: Some(0o600),
            uid: Some(7),
            gid: Some(7),
            atime: Some(Time(7)),
            mtime: Some(Time(7)),
            ..SetAttr::default()
        };
        fs.setattr(file, &set).expect("set");
        let name = format!("f{i}");
        let name = name.as_bytes();
        fs.rename(
            Place::new(&from, name),
            Place::new(&to, name),
            RenameMode::Replace,
            &|_| Ok(()),
        )
        .expect("moved");
    }
    // It must be empty when it goes: all moves go along.
    fs.rmdir(&root, b"from", &|_| Ok(())).expect("removed");
    drop((files, from, to));
    let fs = again(&pool, fs);
    let to = fs.lookup(&fs.root(), b"to").expect("there");
    let file = fs.lookup(&to, b"f7").expect("moved");
    assert_eq!(fs.attr(&file).uid, 7);
}

/// The removal of a further link notes two things, only the second of which may stop the caller.
/// Whichever of the two comes when it is time to look, the caller is stopped.
#[test]
fn callers_are_stopped_whatever_else_they_note_with_an_operation() {
    const LINKS: usize = 30_000;
    for odd in [false, true] {
        let (pool, fs) = mount(257 << 20);
        let root = fs.root();
        let name = |i: usize| format!("link{i}");
        let file = fs
            .create(&root, b"file", &new(NewKind::File))
            .expect("made");
        for i in 0..LINKS {
            fs.link(&file, &root, name(i).as_bytes()).expect("linked");
        }
        fs.syncfs().expect("synced");
        if odd {
            touch_first(&fs);
        }
        for i in 0..LINKS {
            fs.unlink(&root, name(i).as_bytes(), &|_| Ok(()))
                .expect("removed");
        }
        // Two words each are more than may be pending: the caller has persisted some.
        let pending = fs.status().backlog.words;
        assert!(pending < 2 * LINKS as u64, "{pending} pending, odd: {odd}");
        drop(file);
        drop(again(&pool, fs));
    }
}

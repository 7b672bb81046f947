//! The limits that a model can be given.

use std::sync::Arc;

use model::{LIMITS, Model, Options};
use vfs::{
    Errno, Fallocate, FileSystem, Limits, ManualClock, NewKind, NewNode, Place, RenameMode, Result,
    SetAttr, Time,
};

fn model(options: Options) -> Model {
    Model::with_options(Arc::new(ManualClock::new(Time(1))), options)
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

#[test]
fn a_full_file_system_takes_what_fits_and_refuses_the_rest() {
    // The root, a file, and four blocks.
    let fs = model(Options {
        capacity: Some(6),
        ..Options::default()
    });
    let root = fs.root();
    let file = fs
        .create(&root, b"file", &new(NewKind::File))
        .expect("it fits");
    assert_eq!(fs.statfs().free, 4);
    assert_eq!(fs.write(&file, 0, &[1; 6 * 4096]), Ok(4 * 4096));
    assert_eq!(fs.statfs().free, 0);
    assert_eq!(errno(fs.write(&file, 4 * 4096, b"x")), Some(Errno::NOSPC));
    assert_eq!(errno(fs.append(&file, b"x")), Some(Errno::NOSPC));
    assert_eq!(
        errno(fs.create(&root, b"more", &new(NewKind::Fifo))),
        Some(Errno::NOSPC)
    );
    let allocate = Fallocate::Allocate { keep_size: true };
    assert_eq!(
        errno(fs.fallocate(&file, allocate, 4 * 4096, 1)),
        Some(Errno::NOSPC)
    );
    assert_eq!(
        fs.write(&file, 0, &[2; 4 * 4096]),
        Ok(4 * 4096),
        "what is there can be changed"
    );

    fs.fallocate(&file, Fallocate::Punch, 0, 4096)
        .expect("punching needs no space");
    fs.create(&root, b"more", &new(NewKind::Fifo))
        .expect("there is room again");
    let whiteout = fs.rename(
        Place::new(&root, b"more"),
        Place::new(&root, b"other"),
        RenameMode::Whiteout,
        &|_| Ok(()),
    );
    assert_eq!(errno(whiteout), Some(Errno::NOSPC));
    fs.unlink(&root, b"file", &|_| Ok(()))
        .expect("removing needs no space");
    assert_eq!(fs.statfs().free, 0, "the file is held");
    drop(file);
    assert_eq!(fs.statfs().free, 4);
}

#[test]
fn the_largest_size_is_reached_and_not_exceeded() {
    let fs = model(Options::default());
    let file = fs
        .create(&fs.root(), b"file", &new(NewKind::File))
        .expect("made");
    assert_eq!(fs.write(&file, LIMITS.file_max - 1, b"xy"), Ok(1));
    assert_eq!(
        errno(fs.write(&file, LIMITS.file_max, b"x")),
        Some(Errno::FBIG)
    );
    assert_eq!(errno(fs.append(&file, b"x")), Some(Errno::FBIG));
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    assert_eq!(
        errno(fs.setattr(&file, &size(LIMITS.file_max + 1))),
        Some(Errno::FBIG)
    );
    let set = fs.setattr(&file, &size(LIMITS.file_max));
    assert_eq!(set.map(|attr| attr.size), Ok(LIMITS.file_max));
}

#[test]
fn an_inode_has_so_many_names_and_no_more() {
    let fs = model(Options {
        limits: Limits {
            link_max: 4,
            ..LIMITS
        },
        ..Options::default()
    });
    let root = fs.root();
    let file = fs.create(&root, b"1", &new(NewKind::File)).expect("made");
    for name in [b"2", b"3", b"4"] {
        fs.link(&file, &root, name).expect("linked");
    }
    assert_eq!(errno(fs.link(&file, &root, b"5")), Some(Errno::MLINK));

    let outer = fs
        .create(&root, b"outer", &new(NewKind::Dir))
        .expect("made");
    for name in [b"a", b"b"] {
        fs.create(&outer, name, &new(NewKind::Dir)).expect("made");
    }
    assert_eq!(
        errno(fs.create(&outer, b"c", &new(NewKind::Dir))),
        Some(Errno::MLINK)
    );
    fs.create(&root, b"moved", &new(NewKind::Dir))
        .expect("made");
    let rename = |mode, target: &[u8]| {
        fs.rename(
            Place::new(&root, b"moved"),
            Place::new(&outer, target),
            mode,
            &|_| Ok(()),
        )
    };
    assert_eq!(errno(rename(RenameMode::Replace, b"c")), Some(Errno::MLINK));
    rename(RenameMode::Exchange, b"a").expect("one comes, one goes");
    rename(RenameMode::Replace, b"b").expect("it takes the place of another");
    assert_eq!((fs.attr(&outer).nlink, fs.attr(&root).nlink), (4, 3));
}

#[test]
fn a_rename_is_refused_for_the_links_it_brings_and_for_nothing_else() {
    let fs = model(Options {
        limits: Limits {
            link_max: 4,
            ..LIMITS
        },
        ..Options::default()
    });
    let root = fs.root();
    let make = |dir: &_, name: &[u8], kind| fs.create(dir, name, &new(kind)).expect("made");
    let (full, other) = (
        make(&root, b"full", NewKind::Dir),
        make(&root, b"other", NewKind::Dir),
    );
    make(&make(&full, b"a", NewKind::Dir), b"x", NewKind::File);
    make(&full, b"b", NewKind::Dir);
    make(&full, b"file", NewKind::File);
    make(&other, b"dir", NewKind::Dir);
    make(&other, b"file", NewKind::File);
    let rename = |from, name: &[u8], to, new_name: &[u8], mode| {
        errno(fs.rename(
            Place::new(from, name),
            Place::new(to, new_name),
            mode,
            &|_| Ok(()),
        ))
    };
    let exchange = RenameMode::Exchange;
    let links = || (fs.attr(&full).nlink, fs.attr(&other).nlink);

    // A directory for a file: whichever side the full parent is on.
    assert_eq!(
        rename(&other, b"dir", &full, b"file", exchange),
        Some(Errno::MLINK)
    );
    assert_eq!(
        rename(&full, b"file", &other, b"dir", exchange),
        Some(Errno::MLINK)
    );
    // What is in the way tells first why it cannot give way.
    for (target, expected) in [
        (&b"file"[..], Errno::NOTDIR),
        (b"a", Errno::NOTEMPTY),
        (b"new", Errno::MLINK),
    ] {
        let result = rename(&other, b"dir", &full, target, RenameMode::Replace);
        assert_eq!(result, Some(expected));
    }
    assert_eq!(links(), (4, 3));
    // One comes for one that goes.
    assert_eq!(rename(&other, b"dir", &full, b"b", exchange), None);
    assert_eq!(rename(&full, b"b", &other, b"dir", exchange), None);
    // Within the full parent nothing comes.
    assert_eq!(rename(&full, b"b", &full, b"c", RenameMode::Replace), None);
    assert_eq!(rename(&full, b"c", &full, b"file", exchange), None);
    // The full parent gives a directory away and gets a file.
    assert_eq!(rename(&full, b"file", &other, b"file", exchange), None);
    assert_eq!(links(), (3, 4));
}

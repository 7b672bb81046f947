//! Inodes without names, space, and durability calls.

use vfs::{Errno, FileSystem, Fsync, NewKind, RenameMode, SetAttr};

use super::data::pattern;
use super::{Bed, Engine, Feature, fails, new};

pub fn an_unlinked_file_stays_usable_while_held<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file_with(&root, "file", &pattern(10_000, 1));
    bed.setxattr(&file, "user.a", b"value").expect("set");
    bed.unlink(&root, "file").expect("removed");
    assert_eq!((bed.nlink(&file), bed.size(&file)), (0, 10_000));
    assert!(bed.contents(&file) == pattern(10_000, 1));
    bed.write(&file, 9_000, &pattern(5000, 2));
    bed.truncate(&file, 12_000);
    assert_eq!(bed.fs.append(&file, b"x"), Ok((12_000, 1)));
    assert_eq!(bed.fs.getxattr(&file, b"user.a"), Ok(b"value".to_vec()));
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    bed.fs.setattr(&file, &set).expect("set");
    bed.fs.fsync(&file, Fsync::All).expect("nothing to lose");
    bed.file_with(&root, "file", b"another");
    assert_eq!(bed.read(&file, 9_000, 3000), pattern(5000, 2)[..3000]);
}

pub fn a_removed_directory_stays_harmless_while_held<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    bed.file(&dir, "file");
    bed.unlink(&dir, "file").expect("removed");
    bed.rmdir(&root, "dir").expect("removed");
    assert_eq!(bed.nlink(&dir), 0);
    let set = SetAttr {
        perm: Some(0o700),
        ..SetAttr::default()
    };
    assert_eq!(bed.fs.setattr(&dir, &set).map(|attr| attr.perm), Ok(0o700));
    let again = bed.mkdir(&root, "dir");
    assert!(!bed.same(&dir, &again));
    bed.file(&again, "file");
    assert_eq!(fails(bed.fs.lookup(&dir, b"file")), Errno::NOENT);
}

pub fn clones_keep_an_inode_alive<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file_with(&root, "file", b"kept");
    let clones = vec![file.clone(), bed.get(&root, "file"), file];
    bed.unlink(&root, "file").expect("removed");
    for clone in clones {
        assert_eq!(bed.contents(&clone), b"kept");
    }
}

pub fn a_freed_inode_is_gone<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::ByNumber) {
        return;
    }
    let root = bed.root();
    for kind in [NewKind::File, NewKind::Dir, NewKind::Symlink(b"x")] {
        let node = bed.make(&root, "it", kind);
        let ino = bed.fs.ino(&node);
        match kind {
            NewKind::Dir => bed.rmdir(&root, "it"),
            _ => bed.unlink(&root, "it"),
        }
        .expect("removed");
        assert!(bed.same(&bed.fs.node(ino).expect("it is held"), &node));
        drop(node);
        assert_eq!(fails(bed.fs.node(ino)), Errno::STALE);
    }
}

pub fn a_nameless_file_is_born_usable<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    let file = bed.fs.tmpfile(&dir, &new(NewKind::File)).expect("made");
    assert_eq!(
        (bed.nlink(&file), bed.size(&file), bed.attr(&file).perm),
        (0, 0, 0o644)
    );
    assert!(bed.ls(&dir).is_empty());
    bed.write(&file, 5000, b"data");
    assert_eq!(bed.read(&file, 5000, 10), b"data");
    bed.rmdir(&bed.root(), "dir").expect("it is empty");
    assert_eq!(
        fails(bed.fs.tmpfile(&dir, &new(NewKind::File))),
        Errno::NOENT
    );
    assert_eq!(bed.read(&file, 5000, 10), b"data");
}

pub fn a_nameless_file_can_be_named_once_and_more<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    let file = bed.fs.tmpfile(&root, &new(NewKind::File)).expect("made");
    bed.write(&file, 0, b"data");
    bed.touches(&[(&file, "c"), (&dir, "mc"), (&root, "")], || {
        bed.link(&file, &dir, "a").expect("linked");
    });
    bed.link(&file, &root, "b").expect("linked");
    assert_eq!(bed.nlink(&file), 2);
    drop(file);
    let file = bed.get(&dir, "a");
    assert_eq!(bed.contents(&file), b"data");
    bed.unlink(&dir, "a").expect("removed");
    bed.unlink(&root, "b").expect("removed");
    assert_eq!(fails(bed.link(&file, &root, "c")), Errno::NOENT);
}

pub fn nameless_files_are_regular<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file(&root, "file");
    assert_eq!(
        fails(bed.fs.tmpfile(&file, &new(NewKind::File))),
        Errno::NOTDIR
    );
}

pub fn a_replaced_file_is_freed_with_its_last_reference<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::ByNumber) {
        return;
    }
    let root = bed.root();
    bed.file(&root, "a");
    let old = bed.file_with(&root, "b", b"old");
    let ino = bed.fs.ino(&old);
    bed.rename((&root, "a"), (&root, "b"), RenameMode::Replace)
        .expect("replaced");
    assert_eq!(bed.contents(&bed.fs.node(ino).expect("it is held")), b"old");
    drop(old);
    assert_eq!(fails(bed.fs.node(ino)), Errno::STALE);
}

/// Free blocks once everything that was put off has happened.
fn free<E: Engine>(bed: &Bed<'_, E>) -> u64 {
    bed.engine.settle(&bed.fs);
    bed.fs.syncfs().expect("synced");
    bed.fs.statfs().free
}

pub fn space_comes_back_after_removal<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::Space) {
        return;
    }
    let root = bed.root();
    let round = || {
        let dir = bed.mkdir(&root, "dir");
        for at in 0..100 {
            let file = bed.file_with(&dir, &format!("file{at}"), &pattern(40_000, 1));
            let value = pattern(bed.fs.limits().xattr_size_max.min(5000), 2);
            bed.setxattr(&file, "user.a", &value).expect("set");
        }
        let used = free(bed);
        for at in 0..100 {
            bed.unlink(&dir, &format!("file{at}")).expect("removed");
        }
        drop(dir);
        bed.rmdir(&root, "dir").expect("removed");
        used
    };
    // The first round may leave structures that later ones use again.
    round();
    let before = free(bed);
    let used = round();
    assert!(
        before - used >= 1000,
        "1000 blocks of data take space: {before} to {used}"
    );
    assert_eq!(free(bed), before);
}

pub fn space_of_unlinked_files_comes_back_with_the_last_reference<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::Space) {
        return;
    }
    let root = bed.root();
    bed.file(&root, "warm");
    bed.unlink(&root, "warm").expect("removed");
    let before = free(bed);
    for nameless in [false, true] {
        let file = if nameless {
            bed.fs.tmpfile(&root, &new(NewKind::File)).expect("made")
        } else {
            bed.file(&root, "file")
        };
        bed.write(&file, 0, &pattern(400_000, 1));
        if !nameless {
            bed.unlink(&root, "file").expect("removed");
        }
        assert!(before - free(bed) >= 97, "it is in use");
        drop(file);
        assert_eq!(free(bed), before);
    }
}

pub fn syncing_works_on_every_kind<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    let file = bed.file_with(&dir, "file", &pattern(10_000, 1));
    let link = bed.make(&dir, "link", NewKind::Symlink(b"file"));
    let nameless = bed.fs.tmpfile(&dir, &new(NewKind::File)).expect("made");
    for node in [&root, &dir, &file, &link, &nameless] {
        bed.fs.fsync(node, Fsync::Data).expect("durable");
        bed.fs.fsync(node, Fsync::All).expect("durable");
        bed.fs.fsync(node, Fsync::All).expect("nothing to do");
    }
    bed.fs.syncfs().expect("durable");
    bed.unlink(&dir, "file").expect("removed");
    bed.fs
        .fsync(&file, Fsync::All)
        .expect("it has no name to keep");
    bed.fs.fsync(&dir, Fsync::All).expect("durable");
    assert_eq!(bed.ls(&dir), ["link"]);
}

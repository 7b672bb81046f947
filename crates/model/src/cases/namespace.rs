//! Names: making, finding, linking and removing.

use std::cell::RefCell;

use vfs::{Clock, Errno, FileSystem, Kind, NewKind, NewNode};

use super::{Bed, Engine, Feature, allow, fails, new};

const KINDS: [NewKind<'static>; 7] = [
    NewKind::File,
    NewKind::Dir,
    NewKind::Symlink(b"over/there"),
    NewKind::Fifo,
    NewKind::Socket,
    NewKind::CharDev(0x0503),
    NewKind::BlockDev(0x0801),
];

pub fn a_new_file_has_what_it_was_made_with<E: Engine>(bed: &Bed<'_, E>) {
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o4751,
        uid: 12,
        gid: 34,
        xattrs: &[],
    };
    let file = bed.fs.create(&bed.root(), b"file", &new).expect("made");
    let attr = bed.attr(&file);
    assert_eq!(attr.kind, Kind::File);
    assert_eq!((attr.perm, attr.uid, attr.gid), (0o4751, 12, 34));
    assert_eq!(
        (attr.nlink, attr.size, attr.rdev, attr.has_xattrs),
        (1, 0, 0, false)
    );
    assert_eq!(attr.blocks, 0);
    assert_eq!(attr.ino, bed.fs.ino(&file));
    assert!(bed.same(&file, &bed.get(&bed.root(), "file")));
    if bed.has(Feature::Clock) {
        let now = bed.clock.now();
        assert_eq!(
            (attr.atime, attr.mtime, attr.ctime, attr.btime),
            (now, now, now, now)
        );
    }
}

pub fn every_kind_can_be_made_and_removed<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    for kind in KINDS {
        let node = bed.make(&root, "it", kind);
        let attr = bed.attr(&node);
        assert_eq!(attr.kind, kind.kind());
        let rdev = if let NewKind::CharDev(rdev) | NewKind::BlockDev(rdev) = kind {
            rdev
        } else {
            0
        };
        assert_eq!(attr.rdev, rdev);
        assert_eq!(bed.ls(&root), ["it"]);
        match kind {
            NewKind::Dir => bed.rmdir(&root, "it"),
            _ => bed.unlink(&root, "it"),
        }
        .expect("removed");
        assert!(!bed.exists(&root, "it"));
        assert!(bed.ls(&root).is_empty());
    }
}

pub fn making_what_exists_fails<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    for (at, kind) in KINDS.into_iter().enumerate() {
        bed.make(&root, &format!("there{at}"), kind);
    }
    bed.unchanged(|| {
        for at in 0..KINDS.len() {
            for kind in KINDS {
                let result = bed
                    .fs
                    .create(&root, format!("there{at}").as_bytes(), &new(kind));
                assert_eq!(fails(result), Errno::EXIST);
            }
        }
    });
}

pub fn a_directory_counts_its_subdirectories<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    assert_eq!((bed.nlink(&bed.root()), bed.nlink(&dir)), (3, 2));
    for at in 0..40 {
        bed.mkdir(&dir, &format!("sub{at}"));
        bed.file(&dir, &format!("file{at}"));
    }
    assert_eq!((bed.nlink(&bed.root()), bed.nlink(&dir)), (3, 42));
    for at in 0..40 {
        bed.rmdir(&dir, &format!("sub{at}")).expect("it is empty");
    }
    assert_eq!(bed.nlink(&dir), 2);
}

pub fn lookup_fails_below_what_is_no_directory<E: Engine>(bed: &Bed<'_, E>) {
    for (at, kind) in KINDS
        .into_iter()
        .enumerate()
        .filter(|(_, kind)| *kind != NewKind::Dir)
    {
        let node = bed.make(&bed.root(), &format!("node{at}"), kind);
        bed.unchanged(|| {
            assert_eq!(fails(bed.fs.lookup(&node, b"x")), Errno::NOTDIR);
            assert_eq!(
                fails(bed.fs.create(&node, b"x", &new(NewKind::File))),
                Errno::NOTDIR
            );
            assert_eq!(
                fails(bed.fs.create(&node, b"x", &new(NewKind::Dir))),
                Errno::NOTDIR
            );
            assert_eq!(fails(bed.unlink(&node, "x")), Errno::NOTDIR);
            assert_eq!(fails(bed.rmdir(&node, "x")), Errno::NOTDIR);
            assert_eq!(fails(bed.link(&node, &node, "x")), Errno::NOTDIR);
        });
    }
}

pub fn a_missing_name_is_not_found<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    bed.file(&dir, "there");
    bed.unchanged(|| {
        for name in ["missing", "ther", "there1", "THERE"] {
            assert_eq!(fails(bed.fs.lookup(&dir, name.as_bytes())), Errno::NOENT);
            assert_eq!(fails(bed.unlink(&dir, name)), Errno::NOENT);
            assert_eq!(fails(bed.rmdir(&dir, name)), Errno::NOENT);
        }
    });
}

pub fn nothing_can_be_made_in_a_removed_directory<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (dir, file) = (bed.mkdir(&root, "dir"), bed.file(&root, "file"));
    bed.rmdir(&root, "dir").expect("it is empty");
    bed.unchanged(|| {
        for kind in KINDS {
            assert_eq!(fails(bed.fs.create(&dir, b"x", &new(kind))), Errno::NOENT);
        }
        assert_eq!(fails(bed.fs.lookup(&dir, b"x")), Errno::NOENT);
        assert_eq!(fails(bed.link(&file, &dir, "x")), Errno::NOENT);
        assert_eq!(fails(bed.unlink(&dir, "x")), Errno::NOENT);
    });
    assert_eq!((bed.nlink(&dir), bed.kind(&dir)), (0, Kind::Dir));
}

pub fn names_of_every_length_are_told_apart<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    let mut made = Vec::new();
    for len in 1..=bed.fs.limits().name_max {
        for last in ["a", "b"] {
            let name = "n".repeat(len - 1) + last;
            made.push((bed.fs.ino(&bed.file(&dir, &name)), name));
        }
    }
    for (ino, name) in &made {
        assert_eq!(bed.fs.ino(&bed.get(&dir, name)), *ino);
    }
    let mut names: Vec<_> = made.iter().map(|(_, name)| name.clone()).collect();
    names.sort();
    assert_eq!(bed.ls(&dir), names);
    for len in [1, 31, 32, 33, bed.fs.limits().name_max] {
        let name = "n".repeat(len - 1) + "a";
        bed.unlink(&dir, &name).expect("it is there");
        assert!(!bed.exists(&dir, &name));
        assert!(bed.exists(&dir, &("n".repeat(len - 1) + "b")));
    }
}

pub fn names_may_hold_any_byte<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    let bytes = || (1..=255u8).filter(|&byte| byte != b'/' && byte != b'.');
    for byte in bytes() {
        bed.fs
            .create(&dir, &[byte], &new(NewKind::File))
            .expect("made");
        bed.fs
            .create(&dir, &[b'x', byte, b'y'], &new(NewKind::File))
            .expect("made");
    }
    let all: Vec<u8> = bytes().collect();
    bed.fs
        .create(&dir, &all, &new(NewKind::Symlink(&all)))
        .expect("made");
    let entries = crate::snapshot::list(&bed.fs, &dir).expect("read");
    assert_eq!(entries.len(), 2 * all.len() + 1);
    for byte in bytes() {
        assert!(entries.iter().any(|(name, _, _)| name == &[byte]));
        assert!(
            entries
                .iter()
                .any(|(name, _, _)| name == &[b'x', byte, b'y'])
        );
    }
    let link = bed.fs.lookup(&dir, &all).expect("found");
    assert_eq!(bed.fs.readlink(&link), Ok(all));
    for name in ["...", ".x", "..x", " ", "-"] {
        bed.fs
            .create(&bed.root(), name.as_bytes(), &new(NewKind::File))
            .expect("made");
    }
}

pub fn names_that_are_too_long_are_refused<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    bed.unchanged(|| {
        let target = vec![b't'; bed.fs.limits().symlink_max + 1];
        let result = bed
            .fs
            .create(&root, b"link", &new(NewKind::Symlink(&target)));
        assert_eq!(fails(result), Errno::NAMETOOLONG);
        assert!(!bed.exists(&root, "link"));
    });
}

pub fn symbolic_links_keep_their_target<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    for len in [
        1,
        7,
        8,
        30,
        31,
        32,
        47,
        48,
        59,
        60,
        63,
        64,
        65,
        255,
        1000,
        4094,
        bed.fs.limits().symlink_max,
    ] {
        if len > bed.fs.limits().symlink_max {
            continue;
        }
        let target: Vec<u8> = (0..len).map(|at| b'a' + (at % 26) as u8).collect();
        let name = format!("link{len}");
        let link = bed.make(&root, &name, NewKind::Symlink(&target));
        assert_eq!(bed.fs.readlink(&link), Ok(target));
        assert_eq!(
            (bed.size(&link), bed.kind(&link)),
            (len as u64, Kind::Symlink)
        );
    }
    for (name, kind) in [
        ("file", NewKind::File),
        ("dir", NewKind::Dir),
        ("fifo", NewKind::Fifo),
    ] {
        let node = bed.make(&root, name, kind);
        assert_eq!(fails(bed.fs.readlink(&node)), Errno::INVAL);
    }
}

pub fn hard_links_share_the_inode<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (dir, file) = (bed.mkdir(&root, "dir"), bed.file_with(&root, "a", b"one"));
    bed.link(&file, &dir, "b").expect("linked");
    bed.link(&bed.get(&dir, "b"), &root, "c").expect("linked");
    assert_eq!(bed.nlink(&file), 3);
    assert!(bed.same(&file, &bed.get(&dir, "b")));
    bed.write(&bed.get(&root, "c"), 0, b"two");
    assert_eq!(bed.contents(&file), b"two");
    bed.unlink(&root, "a").expect("removed");
    assert_eq!(bed.nlink(&file), 2);
    bed.unlink(&root, "c").expect("removed");
    assert_eq!(
        (bed.nlink(&file), bed.contents(&bed.get(&dir, "b"))),
        (1, b"two".to_vec())
    );

    for kind in [
        NewKind::Symlink(b"x"),
        NewKind::Fifo,
        NewKind::Socket,
        NewKind::CharDev(259),
    ] {
        let node = bed.make(&dir, "other", kind);
        bed.link(&node, &root, "further").expect("linked");
        assert_eq!(bed.nlink(&node), 2);
        bed.unlink(&root, "further").expect("removed");
        bed.unlink(&dir, "other").expect("removed");
    }
}

pub fn linking_fails_where_it_must<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (dir, file) = (bed.mkdir(&root, "dir"), bed.file(&root, "file"));
    bed.unchanged(|| {
        assert_eq!(fails(bed.link(&file, &root, "file")), Errno::EXIST);
        assert_eq!(fails(bed.link(&file, &root, "dir")), Errno::EXIST);
        assert_eq!(fails(bed.link(&dir, &root, "new")), Errno::PERM);
        assert_eq!(fails(bed.link(&dir, &dir, "new")), Errno::PERM);
    });
}

pub fn an_unlinked_file_cannot_be_linked_again<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file(&root, "file");
    bed.unlink(&root, "file").expect("removed");
    assert_eq!(fails(bed.link(&file, &root, "again")), Errno::NOENT);
    assert!(bed.ls(&root).is_empty());
}

pub fn unlink_fails_where_it_must<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    bed.file(&dir, "file");
    bed.mkdir(&dir, "empty");
    bed.unchanged(|| {
        assert_eq!(fails(bed.unlink(&root, "dir")), Errno::ISDIR);
        assert_eq!(fails(bed.unlink(&dir, "empty")), Errno::ISDIR);
    });
}

pub fn rmdir_fails_where_it_must<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    for (at, kind) in KINDS
        .into_iter()
        .enumerate()
        .filter(|(_, kind)| *kind != NewKind::Dir)
    {
        bed.make(&dir, &format!("node{at}"), kind);
        bed.unchanged(|| {
            assert_eq!(fails(bed.rmdir(&dir, &format!("node{at}"))), Errno::NOTDIR);
            assert_eq!(fails(bed.rmdir(&root, "dir")), Errno::NOTEMPTY);
        });
    }
}

pub fn a_vetoed_removal_changes_nothing<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    bed.file_with(&root, "file", b"contents");
    bed.mkdir(&root, "dir");
    bed.unchanged(|| {
        let veto = &|_: &_| Err(Errno::PERM.into());
        assert_eq!(fails(bed.fs.unlink(&root, b"file", veto)), Errno::PERM);
        assert_eq!(fails(bed.fs.rmdir(&root, b"dir", veto)), Errno::PERM);
    });
    bed.unlink(&root, "file").expect("removed");
    bed.rmdir(&root, "dir").expect("removed");
}

pub fn a_veto_is_asked_about_the_victim<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (file, dir) = (bed.file(&root, "file"), bed.mkdir(&root, "dir"));
    let asked = RefCell::new(Vec::new());
    let veto = &|victim: &vfs::Rights| {
        asked.borrow_mut().push(victim.ino);
        Ok(())
    };
    bed.fs.unlink(&root, b"file", veto).expect("removed");
    bed.fs.rmdir(&root, b"dir", veto).expect("removed");
    assert_eq!(asked.into_inner(), [bed.fs.ino(&file), bed.fs.ino(&dir)]);
}

pub fn parents_are_known<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    let sub = bed.mkdir(&dir, "sub");
    let parent = |node| bed.fs.parent(node).expect("a directory has a parent");
    assert!(bed.same(&parent(&sub), &dir));
    assert!(bed.same(&parent(&dir), &root));
    assert!(bed.same(&parent(&root), &root));
    assert_eq!(fails(bed.fs.parent(&bed.file(&dir, "file"))), Errno::NOTDIR);
}

pub fn inodes_are_found_by_number<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::ByNumber) {
        return;
    }
    let root = bed.root();
    for (at, kind) in KINDS.into_iter().enumerate() {
        let node = bed.make(&root, &format!("node{at}"), kind);
        let found = bed.fs.node(bed.fs.ino(&node)).expect("it is there");
        assert_eq!(bed.attr(&found), bed.attr(&node));
    }
    let found = bed.fs.node(bed.fs.ino(&root)).expect("it is there");
    assert!(bed.same(&found, &root));
    for ino in [0, u64::MAX, u64::MAX / 2, 0x7fff_ffff_0000_0001] {
        assert_eq!(fails(bed.fs.node(ino)), Errno::STALE);
    }
}

pub fn deep_trees_work<E: Engine>(bed: &Bed<'_, E>) {
    let mut dirs = vec![bed.root()];
    for depth in 0..200 {
        dirs.push(bed.mkdir(&dirs[depth], "down"));
    }
    bed.file_with(&dirs[200], "bottom", b"found");
    for depth in 1..=200 {
        let parent = bed
            .fs
            .parent(&dirs[depth])
            .expect("a directory has a parent");
        assert!(bed.same(&parent, &dirs[depth - 1]));
    }
    assert_eq!(bed.contents(&bed.get(&dirs[200], "bottom")), b"found");
}

pub fn making_and_removing_touches_the_right_times<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    for (at, kind) in KINDS.into_iter().enumerate() {
        let name = format!("node{at}");
        bed.touches(&[(&dir, "mc"), (&root, "")], || {
            drop(bed.make(&dir, &name, kind))
        });
        let node = bed.get(&dir, &name);
        if kind == NewKind::Dir {
            bed.touches(&[(&dir, "mc"), (&node, "c"), (&root, "")], || {
                bed.fs
                    .rmdir(&dir, name.as_bytes(), &allow)
                    .expect("removed");
            });
            continue;
        }
        bed.touches(&[(&dir, ""), (&root, "mc"), (&node, "c")], || {
            bed.link(&node, &root, "further").expect("linked");
        });
        for (parent, name) in [(&dir, name.as_str()), (&root, "further")] {
            bed.touches(&[(parent, "mc"), (&node, "c")], || {
                bed.unlink(parent, name).expect("removed");
            });
        }
    }
    bed.touches(&[(&dir, "")], || {
        drop(bed.fs.tmpfile(&dir, &new(NewKind::File)))
    });
}

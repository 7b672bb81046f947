//! Attributes, and the file system's own.

use vfs::{Clock, Errno, FileSystem, Kind, NewKind, NewNode, SetAttr, Time};

use super::{Bed, Engine, Feature, fails};

const KINDS: [NewKind<'static>; 5] = [
    NewKind::File,
    NewKind::Dir,
    NewKind::Fifo,
    NewKind::Socket,
    NewKind::CharDev(259),
];

pub fn permissions_and_owner_are_set<E: Engine>(bed: &Bed<'_, E>) {
    for (at, kind) in KINDS.into_iter().enumerate() {
        let node = bed.make(&bed.root(), &format!("node{at}"), kind);
        for perm in [0, 0o7777, 0o600, 0o4755, 0o2070, 0o1777] {
            let set = SetAttr {
                perm: Some(perm),
                ..SetAttr::default()
            };
            let attr = bed.fs.setattr(&node, &set).expect("set");
            assert_eq!((attr.perm, attr.kind), (perm, kind.kind()));
            assert_eq!(attr, bed.attr(&node));
        }
        let set = SetAttr {
            uid: Some(7),
            perm: Some(0o640),
            ..SetAttr::default()
        };
        let attr = bed.fs.setattr(&node, &set).expect("set");
        assert_eq!((attr.uid, attr.gid, attr.perm), (7, 0, 0o640));
        let set = SetAttr {
            gid: Some(u32::MAX - 1),
            ..SetAttr::default()
        };
        let attr = bed.fs.setattr(&node, &set).expect("set");
        assert_eq!((attr.uid, attr.gid), (7, u32::MAX - 1));
    }
}

pub fn nothing_set_changes_nothing<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", b"abc");
    let before = bed.attr(&file);
    bed.unchanged(|| {
        assert_eq!(bed.fs.setattr(&file, &SetAttr::default()), Ok(before));
    });
}

pub fn times_are_set_exactly<E: Engine>(bed: &Bed<'_, E>) {
    let (root, dir) = (bed.root(), bed.mkdir(&bed.root(), "dir"));
    for node in [
        bed.file(&root, "file"),
        dir,
        bed.make(&root, "link", NewKind::Symlink(b"x")),
    ] {
        for nanos in [
            0,
            1,
            999_999_999,
            1_000_000_000,
            -1,
            4_102_444_800_123_456_789,
        ] {
            let (atime, mtime) = (Time(nanos), Time(nanos / 2));
            let set = SetAttr {
                atime: Some(atime),
                mtime: Some(mtime),
                ..SetAttr::default()
            };
            let attr = bed.fs.setattr(&node, &set).expect("set");
            assert_eq!((attr.atime, attr.mtime), (atime, mtime));
        }
        if bed.has(Feature::SetCtime) {
            let early = bed.has(Feature::EarlyTimes).then_some(i64::MIN);
            let first = -(1 << 31) * 1_000_000_000;
            for nanos in early.into_iter().chain([first, -5, 0, 77, i64::MAX]) {
                let time = Some(Time(nanos));
                let set = SetAttr {
                    atime: time,
                    mtime: time,
                    ctime: time,
                    ..SetAttr::default()
                };
                let attr = bed.fs.setattr(&node, &set).expect("set");
                assert_eq!([attr.atime, attr.mtime, attr.ctime], [Time(nanos); 3]);
            }
        }
    }
}

pub fn attributes_are_set_all_or_none<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (file, dir) = (bed.file(&root, "file"), bed.mkdir(&root, "dir"));
    let all = SetAttr {
        perm: Some(0o421),
        uid: Some(3),
        gid: Some(4),
        size: Some(u64::MAX),
        atime: Some(Time(5)),
        mtime: Some(Time(6)),
        ctime: None,
    };
    if !bed.has(Feature::AtomicSetattr) {
        return;
    }
    bed.unchanged(|| {
        assert_eq!(fails(bed.fs.setattr(&file, &all)), Errno::FBIG);
        let set = SetAttr {
            size: Some(0),
            ..all
        };
        assert_eq!(fails(bed.fs.setattr(&dir, &set)), Errno::ISDIR);
    });
    let set = SetAttr {
        size: Some(5000),
        ..all
    };
    let attr = bed.fs.setattr(&file, &set).expect("set");
    assert_eq!(
        (attr.perm, attr.uid, attr.gid, attr.size),
        (0o421, 3, 4, 5000)
    );
    assert_eq!((attr.atime, attr.mtime), (Time(5), Time(6)));
    assert_eq!(attr.ctime, bed.clock.now());
}

pub fn the_size_belongs_to_regular_files_only<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    for (at, kind) in KINDS.into_iter().enumerate() {
        let node = bed.make(&root, &format!("node{at}"), kind);
        let result = bed.fs.setattr(&node, &set);
        match kind.kind() {
            Kind::File => assert_eq!(result.map(|attr| attr.size), Ok(0)),
            Kind::Dir => assert_eq!(fails(result), Errno::ISDIR),
            _ => assert_eq!(fails(result), Errno::INVAL),
        }
    }
    let link = bed.make(&root, "link", NewKind::Symlink(b"node0"));
    assert_eq!(fails(bed.fs.setattr(&link, &set)), Errno::INVAL);
}

pub fn setting_touches_the_right_times<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let none = SetAttr::default();
    let times = [
        (
            SetAttr {
                perm: Some(0o700),
                ..none
            },
            "c",
        ),
        (
            SetAttr {
                uid: Some(1),
                ..none
            },
            "c",
        ),
        (
            SetAttr {
                gid: Some(1),
                ..none
            },
            "c",
        ),
        (
            SetAttr {
                atime: Some(Time(1)),
                ..none
            },
            "ac",
        ),
        (
            SetAttr {
                mtime: Some(Time(1)),
                ..none
            },
            "mc",
        ),
        (
            SetAttr {
                perm: Some(0o700),
                uid: Some(1),
                ..none
            },
            "c",
        ),
    ];
    for (at, kind) in KINDS.into_iter().enumerate() {
        let node = bed.make(&root, &format!("node{at}"), kind);
        for (set, expected) in &times {
            bed.touches(&[(&node, expected), (&root, "")], || {
                bed.fs.setattr(&node, set).expect("set");
            });
        }
    }
}

pub fn access_times_are_set_quietly<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::SetCtime) {
        return;
    }
    let root = bed.root();
    for (at, kind) in KINDS.into_iter().enumerate() {
        let node = bed.make(&root, &format!("node{at}"), kind);
        bed.touches(&[(&node, "a"), (&root, "")], || {
            bed.fs.set_atime(&node, Time(at as i64)).expect("set");
        });
        assert_eq!(bed.attr(&node).atime, Time(at as i64));
        assert_eq!(bed.fs.kind(&node), kind.kind());
    }
}

pub fn births_stay<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let born = bed.attr(&file).btime;
    bed.engine.tick(&bed.clock);
    bed.write(&file, 0, b"abc");
    let set = SetAttr {
        atime: Some(Time(1)),
        mtime: Some(Time(2)),
        ..SetAttr::default()
    };
    bed.fs.setattr(&file, &set).expect("set");
    bed.rename(
        (&bed.root(), "file"),
        (&bed.root(), "moved"),
        vfs::RenameMode::Replace,
    )
    .expect("moved");
    assert_eq!(bed.attr(&file).btime, born);
}

pub fn a_new_inode_is_born_with_extended_attributes<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::Birth) {
        return;
    }
    let xattrs: &[(&[u8], &[u8])] = &[
        (b"system.posix_acl_default", &super::acl(37)),
        (b"user.a", b"1"),
        (b"user.b", b""),
    ];
    for kind in [NewKind::File, NewKind::Dir, NewKind::Fifo] {
        let new = NewNode {
            kind,
            perm: 0o600,
            uid: 1,
            gid: 2,
            xattrs,
        };
        let node = bed.fs.create(&bed.root(), b"it", &new).expect("made");
        let found = crate::snapshot::xattrs(&bed.fs, &node).expect("read");
        let found: Vec<_> = found
            .iter()
            .map(|(n, v)| (n.as_slice(), v.as_slice()))
            .collect();
        assert_eq!(found, xattrs);
        assert!(bed.attr(&node).has_xattrs);
        let gone = format!("old{kind:?}");
        bed.rename(
            (&bed.root(), "it"),
            (&bed.root(), &gone),
            vfs::RenameMode::Replace,
        )
        .expect("moved");
    }
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 1,
        gid: 2,
        xattrs,
    };
    let node = bed.fs.tmpfile(&bed.root(), &new).expect("made");
    assert_eq!(bed.fs.getxattr(&node, b"user.a"), Ok(b"1".to_vec()));
}

pub fn statfs_is_sane<E: Engine>(bed: &Bed<'_, E>) {
    let stat = bed.fs.statfs();
    assert!(stat.block_size.is_power_of_two());
    assert!(stat.free <= stat.blocks && stat.free > 0);
    assert!(stat.files_free <= stat.files && stat.files_free > 0);
    assert_eq!(bed.fs.statfs().fsid, stat.fsid);
}

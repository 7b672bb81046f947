//! Who may do what.

mod common;

use common::{OTHER, OWNER, START, Setup, fails, setup, setup_with, user};
use vfs::{
    Access, At, Atime, Caps, Cred, Errno, Fallocate, FileSystem, NewKind, NewNodeRequest, Place,
    RenameMode, SetAttrRequest, Time, TimeOrNow, XattrMode,
};

const GROUP: u32 = 500;

/// Someone of each class, with the shift of the class's bits.
fn callers() -> [(Cred, u32); 4] {
    [
        (Cred::new(OWNER, GROUP, &[]), 6),
        (Cred::new(OTHER, GROUP, &[]), 3),
        (Cred::new(OTHER, 1, &[2, GROUP, 3]), 3),
        (Cred::new(OTHER, 1, &[2]), 0),
    ]
}

#[test]
fn every_mode_grants_each_class_its_own_bits_and_no_others() {
    let s = setup();
    for kind in [NewKind::File, NewKind::Dir] {
        let node = s.make(&s.root, &format!("{kind:?}"), kind, (OWNER, GROUP), 0);
        for perm in 0..=0o777 {
            s.chmod(&node, perm);
            for (cred, shift) in callers() {
                for want in (0..8).map(Access::from_perm) {
                    let expected = perm >> shift & want.perm() == want.perm();
                    assert_eq!(
                        s.may(&cred, &node, want),
                        expected,
                        "{perm:o} {cred:?} {want:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_superuser_may_everything_but_execute_what_nobody_may() {
    let s = setup();
    let (file, dir) = (
        s.file(&s.root, "f", (OWNER, GROUP), 0),
        s.dir(&s.root, "d", (OWNER, GROUP), 0),
    );
    for perm in 0..=0o777 {
        s.chmod(&file, perm);
        assert!(s.may(&s.su, &file, Access::R | Access::W));
        assert_eq!(
            s.may(&s.su, &file, Access::X),
            perm & 0o111 != 0,
            "{perm:o}"
        );
    }
    assert!(s.may(&s.su, &dir, Access::all()));
}

#[test]
fn the_privilege_to_read_and_search_gives_just_that() {
    let s = setup();
    let (file, dir) = (
        s.file(&s.root, "f", (OWNER, GROUP), 0),
        s.dir(&s.root, "d", (OWNER, GROUP), 0),
    );
    let backup = Cred {
        caps: Caps::DAC_READ_SEARCH,
        ..user(OTHER)
    };
    assert!(s.may(&backup, &file, Access::R));
    assert!(!s.may(&backup, &file, Access::W));
    assert!(!s.may(&backup, &file, Access::X));
    assert!(s.may(&backup, &dir, Access::R | Access::X));
    assert!(!s.may(&backup, &dir, Access::W));
}

#[test]
fn search_permission_guards_lookup_and_dots() {
    let s = setup();
    let dir = s.dir(&s.root, "d", (OWNER, OWNER), 0o600);
    s.file(&dir, "f", (OWNER, OWNER), 0o644);
    for name in [&b"f"[..], b".", b"..", b"none"] {
        fails(s.vfs.lookup(&user(OWNER), &dir, name), Errno::ACCESS);
    }
    s.chmod(&dir, 0o100);
    let found = s.vfs.lookup(&user(OWNER), &dir, b"..").unwrap();
    assert_eq!(s.vfs.fs().ino(&found), s.vfs.fs().ino(&s.root));
    fails(s.vfs.lookup(&user(OWNER), &dir, b"none"), Errno::NOENT);
    let file = s.vfs.lookup(&user(OWNER), &dir, b"f").unwrap();
    for name in [&b"f"[..], b".", b".."] {
        fails(s.vfs.lookup(&user(OTHER), &file, name), Errno::NOTDIR);
        fails(s.vfs.lookup(&s.su, &file, name), Errno::NOTDIR);
    }
}

#[test]
fn changing_names_needs_write_and_search_but_what_is_there_is_told_first() {
    let s = setup();
    for perm in [0o500, 0o300, 0o700] {
        let dir = s.dir(&s.root, &format!("{perm:o}"), (OWNER, OWNER), perm);
        s.file(&dir, "there", (OWNER, OWNER), 0o644);
        let me = user(OWNER);
        let make = |name: &[u8]| {
            s.vfs
                .create(
                    &me,
                    &dir,
                    name,
                    &NewNodeRequest::new(NewKind::File, 0o644, 0),
                )
                .map(drop)
        };
        if perm & 0o200 == 0 {
            fails(make(b"new"), Errno::ACCESS);
            fails(s.vfs.unlink(&me, &dir, b"there"), Errno::ACCESS);
            fails(s.vfs.rmdir(&me, &dir, b"none"), Errno::NOENT);
            fails(s.vfs.tmpfile(&me, &dir, 0o600, 0), Errno::ACCESS);
        } else {
            make(b"new").unwrap();
            s.vfs.unlink(&me, &dir, b"new").unwrap();
            s.vfs.tmpfile(&me, &dir, 0o600, 0).unwrap();
        }
        fails(make(b"there"), Errno::EXIST);
        fails(s.vfs.unlink(&me, &dir, b"none"), Errno::NOENT);
    }
    let blind = s.dir(&s.root, "w", (OWNER, OWNER), 0o200);
    fails(
        s.vfs.create(
            &user(OWNER),
            &blind,
            b"x",
            &NewNodeRequest::new(NewKind::File, 0, 0),
        ),
        Errno::ACCESS,
    );
}

/// Everything that removes a name, tried by `cred` on what `owner` has in `dir`.
fn removals(s: &Setup, cred: &Cred, dir: &model::Node, owner: u32) -> Vec<Result<(), Errno>> {
    let free = s.vfs.lookup(&s.su, &s.root, b"free").unwrap();
    let mine = || {
        let _ = s.vfs.unlink(&s.su, &free, b"mine");
        s.file(&free, "mine", (cred.uid, cred.uid), 0o644);
    };
    let file = || {
        let _ = s.vfs.unlink(&s.su, dir, b"f");
        s.file(dir, "f", (owner, owner), 0o644);
    };
    let _ = s.vfs.rmdir(&s.su, dir, b"d");
    s.dir(dir, "d", (owner, owner), 0o777);
    let mut results = Vec::new();
    let mut note = |result: vfs::Result<()>| results.push(result.map_err(|e| e.errno()));
    note(s.vfs.rmdir(cred, dir, b"d"));
    file();
    note(s.vfs.unlink(cred, dir, b"f"));
    file();
    let rename = |from, a: &[u8], to, b: &[u8], mode| {
        s.vfs
            .rename(cred, Place::new(from, a), Place::new(to, b), mode)
    };
    note(rename(dir, b"f", dir, b"g", RenameMode::Replace));
    let _ = s.vfs.unlink(&s.su, dir, b"g");
    file();
    note(rename(dir, b"f", &free, b"gone", RenameMode::Replace));
    file();
    mine();
    note(rename(&free, b"mine", dir, b"f", RenameMode::Replace));
    file();
    mine();
    note(rename(&free, b"mine", dir, b"f", RenameMode::Exchange));
    file();
    mine();
    note(rename(dir, b"f", &free, b"mine", RenameMode::Exchange));
    results
}

#[test]
fn in_a_sticky_directory_only_owners_remove_names() {
    let s = setup();
    s.dir(&s.root, "free", (0, 0), 0o777);
    for sticky in [false, true] {
        for dir_mine in [false, true] {
            for file_mine in [false, true] {
                let owner = |mine| if mine { OWNER } else { OTHER };
                let perm = if sticky { 0o1777 } else { 0o777 };
                let name = format!("{sticky}{dir_mine}{file_mine}");
                let dir = s.dir(&s.root, &name, (owner(dir_mine), 0), perm);
                let allowed = !sticky || dir_mine || file_mine;
                let expected = if allowed { Ok(()) } else { Err(Errno::PERM) };
                let results = removals(&s, &user(OWNER), &dir, owner(file_mine));
                assert!(
                    results.iter().all(|r| *r == expected),
                    "{name}: {results:?}"
                );
                let results = removals(&s, &s.su, &dir, owner(file_mine));
                assert!(
                    results.iter().all(Result::is_ok),
                    "root in {name}: {results:?}"
                );
            }
        }
    }
}

#[test]
fn a_directory_gets_another_parent_only_from_who_may_write_it() {
    let s = setup();
    let (a, b) = (
        s.dir(&s.root, "a", (OWNER, 0), 0o777),
        s.dir(&s.root, "b", (OWNER, 0), 0o777),
    );
    s.dir(&a, "d", (OTHER, 0), 0o755);
    s.dir(&b, "e", (OWNER, 0), 0o755);
    let me = user(OWNER);
    let go = |mode, new: &[u8]| {
        s.vfs
            .rename(&me, Place::new(&a, b"d"), Place::new(&b, new), mode)
    };
    fails(go(RenameMode::Replace, b"d"), Errno::ACCESS);
    fails(go(RenameMode::Exchange, b"e"), Errno::ACCESS);
    fails(
        s.vfs.rename(
            &me,
            Place::new(&b, b"e"),
            Place::new(&a, b"d"),
            RenameMode::Exchange,
        ),
        Errno::ACCESS,
    );
    s.vfs
        .rename(
            &me,
            Place::new(&a, b"d"),
            Place::new(&a, b"d2"),
            RenameMode::Replace,
        )
        .unwrap();
    s.vfs
        .rename(
            &me,
            Place::new(&a, b"d2"),
            Place::new(&a, b"d"),
            RenameMode::Replace,
        )
        .unwrap();
    s.chmod(&s.vfs.lookup(&me, &a, b"d").unwrap(), 0o777);
    go(RenameMode::Exchange, b"e").unwrap();
}

#[test]
fn rename_tells_what_is_there_before_what_is_allowed() {
    let s = setup();
    let (a, b) = (
        s.dir(&s.root, "a", (OWNER, 0), 0o777),
        s.dir(&s.root, "b", (OTHER, 0), 0o755),
    );
    s.file(&a, "f", (OWNER, 0), 0o644);
    s.file(&b, "g", (OWNER, 0), 0o644);
    let go = |name: &[u8], new: &[u8], mode| {
        s.vfs.rename(
            &user(OWNER),
            Place::new(&a, name),
            Place::new(&b, new),
            mode,
        )
    };
    fails(go(b"none", b"x", RenameMode::Replace), Errno::NOENT);
    fails(go(b"f", b"x", RenameMode::Replace), Errno::ACCESS);
    fails(go(b"f", b"g", RenameMode::NoReplace), Errno::EXIST);
    fails(go(b"f", b"x", RenameMode::Exchange), Errno::NOENT);
    fails(go(b".", b"x", RenameMode::Replace), Errno::BUSY);
    fails(go(b"f", b"..", RenameMode::Replace), Errno::BUSY);
}

#[test]
fn what_is_made_belongs_to_its_maker_and_to_the_group_of_a_set_gid_directory() {
    let s = setup();
    let plain = s.dir(&s.root, "plain", (0, GROUP), 0o777);
    let set_gid = s.dir(&s.root, "setgid", (0, GROUP), 0o2777);
    let me = Cred::new(OWNER, 7, &[]);
    let make = |dir, name: &[u8], kind, perm| {
        let node = s
            .vfs
            .create(&me, dir, name, &NewNodeRequest::new(kind, perm, 0o027))
            .unwrap();
        let attr = s.vfs.getattr(&node);
        assert_eq!(attr.uid, OWNER);
        (attr.gid, attr.perm)
    };
    assert_eq!(make(&plain, b"f", NewKind::File, 0o6777), (7, 0o6750));
    assert_eq!(make(&plain, b"d", NewKind::Dir, 0o7777), (7, 0o1750));
    assert_eq!(make(&set_gid, b"d", NewKind::Dir, 0o777), (GROUP, 0o2750));
    assert_eq!(
        make(&set_gid, b"s", NewKind::Symlink(b"t"), 0),
        (GROUP, 0o777)
    );
    // The group is not the maker's: no set-gid program of it for them. Without group execute the
    // bit lends nothing.
    assert_eq!(make(&set_gid, b"f", NewKind::File, 0o6777), (GROUP, 0o4750));
    assert_eq!(make(&set_gid, b"g", NewKind::File, 0o2604), (GROUP, 0o2600));
    // Group execute that was asked for counts, even if it is not granted.
    let masked = s.vfs.create(
        &me,
        &set_gid,
        b"m",
        &NewNodeRequest::new(NewKind::File, 0o2770, 0o010),
    );
    assert_eq!(s.perm(&masked.unwrap()), 0o760);
    let tmp = s
        .vfs
        .getattr(&s.vfs.tmpfile(&me, &set_gid, 0o666, 0o022).unwrap());
    assert_eq!((tmp.gid, tmp.perm, tmp.nlink), (GROUP, 0o644, 0));
}

#[test]
fn a_caller_checked_by_the_kernel_is_refused_nothing_and_owns_what_it_makes() {
    let s = setup();
    let dir = s.dir(&s.root, "d", (0, GROUP), 0o2000);
    let node = {
        let cred = Cred::checked_by_kernel(OWNER, OWNER);
        s.vfs
            .create(
                &cred,
                &dir,
                b"f",
                &NewNodeRequest::new(NewKind::File, 0o2770, 0o007),
            )
            .unwrap()
    };
    let attr = s.vfs.getattr(&node);
    assert_eq!((attr.uid, attr.gid, attr.perm), (OWNER, GROUP, 0o2770));
}

#[test]
fn devices_need_a_privilege_and_whiteouts_do_not() {
    let s = setup();
    s.chmod(&s.root, 0o777);
    let make = |name: &[u8], kind| {
        s.vfs.create(
            &user(OWNER),
            &s.root,
            name,
            &NewNodeRequest::new(kind, 0o600, 0),
        )
    };
    fails(make(b"c", NewKind::CharDev(0x103)), Errno::PERM);
    fails(make(b"b", NewKind::BlockDev(0)), Errno::PERM);
    for (name, kind) in [
        (&b"w"[..], NewKind::CharDev(0)),
        (b"p", NewKind::Fifo),
        (b"s", NewKind::Socket),
    ] {
        make(name, kind).unwrap();
    }
    s.vfs
        .create(
            &s.su,
            &s.root,
            b"c",
            &NewNodeRequest::new(NewKind::CharDev(0x103), 0o600, 0),
        )
        .unwrap();
}

#[test]
fn only_the_owner_changes_the_mode_and_set_gid_needs_the_group() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, GROUP), 0o644);
    let chmod = |cred: &Cred, node, perm| {
        s.vfs.setattr(
            cred,
            node,
            &SetAttrRequest {
                perm: Some(perm),
                ..Default::default()
            },
        )
    };
    fails(
        chmod(&Cred::new(OTHER, GROUP, &[]), &file, 0o777),
        Errno::PERM,
    );
    assert_eq!(chmod(&user(OWNER), &file, 0o7755).unwrap().perm, 0o5755);
    assert_eq!(
        chmod(&Cred::new(OWNER, 1, &[GROUP]), &file, 0o7755)
            .unwrap()
            .perm,
        0o7755
    );
    assert_eq!(chmod(&s.su, &file, 0o2711).unwrap().perm, 0o2711);
    let fowner = Cred {
        caps: Caps::FOWNER,
        ..user(OTHER)
    };
    assert_eq!(chmod(&fowner, &file, 0o2700).unwrap().perm, 0o700);
    let link = s.make(&s.root, "l", NewKind::Symlink(b"f"), (OWNER, OWNER), 0);
    fails(chmod(&s.su, &link, 0o700), Errno::OPNOTSUPP);
}

#[test]
fn only_the_privileged_give_files_away_and_owners_choose_among_their_groups() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, GROUP), 0o644);
    let chown = |cred: &Cred, uid: Option<u32>, gid: Option<u32>| {
        s.vfs
            .setattr(
                cred,
                &file,
                &SetAttrRequest {
                    uid,
                    gid,
                    ..Default::default()
                },
            )
            .map(drop)
    };
    let me = Cred::new(OWNER, GROUP, &[501]);
    fails(chown(&me, Some(OTHER), None), Errno::PERM);
    fails(chown(&me, None, Some(502)), Errno::PERM);
    fails(chown(&me, Some(OTHER), Some(501)), Errno::PERM);
    chown(&me, Some(OWNER), Some(501)).unwrap();
    chown(&me, None, Some(501)).unwrap();
    fails(
        chown(&Cred::new(OTHER, 501, &[]), None, Some(501)),
        Errno::PERM,
    );
    let outsider = user(OWNER);
    chown(&outsider, None, Some(501)).unwrap();
    fails(chown(&outsider, None, Some(GROUP)), Errno::PERM);
    fails(
        chown(
            &Cred {
                caps: Caps::FOWNER,
                ..user(OTHER)
            },
            Some(OTHER),
            None,
        ),
        Errno::PERM,
    );
    chown(
        &Cred {
            caps: Caps::CHOWN,
            ..user(OTHER)
        },
        Some(OTHER),
        Some(9),
    )
    .unwrap();
}

#[test]
fn a_file_that_changes_hands_loses_its_set_id_bits_and_a_directory_keeps_them() {
    let s = setup();
    for (perm, kept_by_group, kept_by_outsider) in [
        (0o6755, 0o755, 0o755),
        (0o6644, 0o2644, 0o644),
        (0o1777, 0o1777, 0o1777),
    ] {
        let file = s.file(&s.root, "f", (OWNER, GROUP), perm);
        let member = Cred::new(OWNER, GROUP, &[]);
        let request = SetAttrRequest {
            gid: Some(GROUP),
            ..Default::default()
        };
        assert_eq!(
            s.vfs.setattr(&member, &file, &request).unwrap().perm,
            kept_by_group
        );
        s.chmod(&file, perm);
        assert_eq!(
            s.vfs.setattr(&user(OWNER), &file, &request).unwrap().perm,
            kept_by_outsider
        );
        s.chmod(&file, perm);
        assert_eq!(
            s.vfs.setattr(&s.su, &file, &request).unwrap().perm,
            kept_by_group,
            "root"
        );
        s.vfs.unlink(&s.su, &s.root, b"f").unwrap();
    }
    let dir = s.dir(&s.root, "d", (OWNER, GROUP), 0o6755);
    s.own(&dir, (OTHER, OTHER));
    assert_eq!(s.perm(&dir), 0o6755);
}

#[test]
fn changing_contents_takes_set_id_bits_and_capabilities_away() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, GROUP), 0);
    let source = s.file(&s.root, "source", (OWNER, GROUP), 0o666);
    s.vfs.write(&s.su, &source, 0, b"data").unwrap();
    let me = user(OTHER);
    type Change<'a> = (&'a str, Box<dyn Fn(&Cred) + 'a>);
    let changes: [Change<'_>; 6] = [
        (
            "write",
            Box::new(|cred| assert!(s.vfs.write(cred, &file, 0, b"x").is_ok())),
        ),
        (
            "append",
            Box::new(|cred| assert!(s.vfs.append(cred, &file, b"x").is_ok())),
        ),
        (
            "truncate",
            Box::new(|cred| assert!(s.vfs.truncate(cred, &file, 0).is_ok())),
        ),
        (
            "truncate by name",
            Box::new(|cred| {
                let request = SetAttrRequest {
                    size: Some(0),
                    ..Default::default()
                };
                s.vfs.setattr(cred, &file, &request).unwrap();
            }),
        ),
        (
            "allocate",
            Box::new(|cred| {
                s.vfs
                    .fallocate(cred, &file, Fallocate::Allocate { keep_size: true }, 0, 1)
                    .unwrap();
            }),
        ),
        (
            "copy",
            Box::new(|cred| {
                s.vfs
                    .copy_range(cred, At::new(&source, 0), At::new(&file, 0), 4)
                    .unwrap();
            }),
        ),
    ];
    for (name, change) in &changes {
        let arm = |perm| {
            s.chmod(&file, perm);
            let set = s
                .vfs
                .setxattr(&s.su, &file, b"security.capability", b"c", XattrMode::Any);
            set.unwrap();
        };
        let armed = || s.vfs.getxattr(&s.su, &file, b"security.capability").is_ok();
        arm(0o6777);
        change(&s.su);
        assert_eq!((s.perm(&file), armed()), (0o6777, false), "{name} by root");
        arm(0o6777);
        change(&me);
        assert_eq!((s.perm(&file), armed()), (0o777, false), "{name}");
        arm(0o2766);
        change(&Cred::new(OTHER, GROUP, &[]));
        assert_eq!(s.perm(&file), 0o2766, "{name} by the group");
        change(&me);
        assert_eq!(s.perm(&file), 0o766, "{name} by others");
    }
    s.chmod(&file, 0o6777);
    s.vfs.write(&me, &file, 0, b"").unwrap();
    assert_eq!(
        s.vfs
            .copy_range(&me, At::new(&source, 0), At::new(&file, 0), 0),
        Ok(0)
    );
    assert_eq!(s.perm(&file), 0o6777, "nothing was written");
}

#[test]
fn times_are_set_by_the_owner_and_to_now_by_whoever_may_write() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, GROUP), 0o664);
    let set = |cred: &Cred, atime, mtime| {
        s.vfs.setattr(
            cred,
            &file,
            &SetAttrRequest {
                atime,
                mtime,
                ..Default::default()
            },
        )
    };
    let (now, at) = (Some(TimeOrNow::Now), Some(TimeOrNow::At(Time(5))));
    let writer = Cred::new(OTHER, GROUP, &[]);
    let stranger = user(OTHER);
    s.clock.advance(10);
    fails(set(&writer, at, at), Errno::PERM);
    fails(set(&writer, now, None), Errno::PERM);
    fails(set(&writer, now, at), Errno::PERM);
    fails(set(&stranger, now, now), Errno::ACCESS);
    fails(set(&stranger, at, at), Errno::PERM);
    let attr = set(&writer, now, now).unwrap();
    assert_eq!(
        (attr.atime, attr.mtime),
        (Time(START.0 + 10), Time(START.0 + 10))
    );
    let attr = set(&user(OWNER), None, at).unwrap();
    assert_eq!((attr.atime, attr.mtime), (Time(START.0 + 10), Time(5)));
    set(&stranger, None, None).unwrap();
}

#[test]
fn the_size_is_set_by_whoever_may_write_and_of_files_only() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o644);
    let resize = |cred: &Cred, node| {
        s.vfs.setattr(
            cred,
            node,
            &SetAttrRequest {
                size: Some(3),
                ..Default::default()
            },
        )
    };
    fails(resize(&user(OTHER), &file), Errno::ACCESS);
    assert_eq!(resize(&user(OWNER), &file).unwrap().size, 3);
    fails(resize(&user(OTHER), &s.root), Errno::ISDIR);
    let pipe = s.make(&s.root, "p", NewKind::Fifo, (0, 0), 0o666);
    fails(resize(&s.su, &pipe), Errno::INVAL);
    fails(s.vfs.truncate(&s.su, &s.root, 0), Errno::ISDIR);
}

#[test]
fn links_to_directories_are_refused() {
    let s = setup();
    let dir = s.dir(&s.root, "d", (0, 0), 0o755);
    fails(s.vfs.link(&s.su, &dir, &s.root, b"l"), Errno::PERM);
    fails(s.vfs.link(&s.su, &dir, &s.root, b"d"), Errno::EXIST);
}

#[test]
fn names_of_dots_are_refused_as_linux_does() {
    let s = setup();
    let dir = s.dir(&s.root, "d", (0, 0), 0o755);
    for name in [&b"."[..], b".."] {
        fails(
            s.vfs
                .create(&s.su, &dir, name, &NewNodeRequest::new(NewKind::Dir, 0, 0)),
            Errno::EXIST,
        );
        fails(s.vfs.unlink(&s.su, &dir, name), Errno::ISDIR);
    }
    fails(s.vfs.rmdir(&s.su, &dir, b"."), Errno::INVAL);
    fails(s.vfs.rmdir(&s.su, &dir, b".."), Errno::NOTEMPTY);
    for name in [&b"a/b"[..], b"a\0b"] {
        fails(
            s.vfs
                .create(&s.su, &dir, name, &NewNodeRequest::new(NewKind::File, 0, 0)),
            Errno::INVAL,
        );
    }
    let long = [b'n'; 256];
    fails(
        s.vfs.create(
            &s.su,
            &dir,
            &long,
            &NewNodeRequest::new(NewKind::File, 0, 0),
        ),
        Errno::NAMETOOLONG,
    );
    fails(s.vfs.lookup(&s.su, &dir, &long), Errno::NAMETOOLONG);
    fails(s.vfs.unlink(&s.su, &dir, &long), Errno::NAMETOOLONG);
    s.vfs
        .create(
            &s.su,
            &dir,
            &long[1..],
            &NewNodeRequest::new(NewKind::File, 0, 0),
        )
        .unwrap();
}

#[test]
fn mounted_read_only_nothing_changes() {
    let s = setup_with(Atime::Strict, true);
    let before = s.vfs.getattr(&s.root);
    fails(
        s.vfs.create(
            &s.su,
            &s.root,
            b"f",
            &NewNodeRequest::new(NewKind::File, 0, 0),
        ),
        Errno::ROFS,
    );
    fails(s.vfs.tmpfile(&s.su, &s.root, 0, 0), Errno::ROFS);
    fails(s.vfs.unlink(&s.su, &s.root, b"f"), Errno::ROFS);
    fails(
        s.vfs.rename(
            &s.su,
            Place::new(&s.root, b"a"),
            Place::new(&s.root, b"b"),
            RenameMode::Replace,
        ),
        Errno::ROFS,
    );
    let request = SetAttrRequest {
        perm: Some(0),
        ..Default::default()
    };
    fails(s.vfs.setattr(&s.su, &s.root, &request), Errno::ROFS);
    fails(
        s.vfs
            .setxattr(&s.su, &s.root, b"user.a", b"", XattrMode::Any),
        Errno::ROFS,
    );
    fails(s.vfs.access(&s.su, &s.root, Access::W), Errno::ROFS);
    s.vfs.access(&s.su, &s.root, Access::R | Access::X).unwrap();
    s.vfs.readdir(&s.root, 0, &mut |_| true).unwrap();
    assert_eq!(s.vfs.getattr(&s.root), before);
}

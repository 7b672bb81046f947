//! Extended attributes, access times, listings.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{OTHER, OWNER, START, fails, setup, setup_with, user};
use model::Model;
use vfs::{
    Atime, Clock, Cred, Errno, FileSystem, Kind, NewKind, SetAttrRequest, Time, TimeOrNow, Vfs,
    VfsOptions, XattrMode,
};

#[test]
fn user_attributes_follow_the_permissions_of_files_and_directories_only() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o640);
    let (me, other) = (user(OWNER), user(OTHER));
    let put =
        |cred: &Cred, node, name: &[u8]| s.vfs.setxattr(cred, node, name, b"v", XattrMode::Any);
    put(&me, &file, b"user.a").unwrap();
    assert_eq!(s.vfs.getxattr(&me, &file, b"user.a").unwrap(), b"v");
    fails(s.vfs.getxattr(&other, &file, b"user.a"), Errno::ACCESS);
    fails(put(&other, &file, b"user.a"), Errno::ACCESS);
    fails(s.vfs.removexattr(&other, &file, b"user.a"), Errno::ACCESS);
    fails(
        s.vfs
            .setxattr(&me, &file, b"user.a", b"", XattrMode::Create),
        Errno::EXIST,
    );
    fails(
        s.vfs
            .setxattr(&me, &file, b"user.b", b"", XattrMode::Replace),
        Errno::NODATA,
    );
    fails(s.vfs.removexattr(&me, &file, b"user.b"), Errno::NODATA);

    let pipe = s.make(&s.root, "p", NewKind::Fifo, (OWNER, OWNER), 0o666);
    fails(put(&me, &pipe, b"user.a"), Errno::PERM);
    fails(s.vfs.getxattr(&me, &pipe, b"user.a"), Errno::NODATA);

    let shared = s.dir(&s.root, "tmp", (OWNER, OWNER), 0o1777);
    fails(put(&other, &shared, b"user.a"), Errno::PERM);
    put(&me, &shared, b"user.a").unwrap();
    s.chmod(&shared, 0o777);
    put(&other, &shared, b"user.a").unwrap();
}

#[test]
fn trusted_attributes_are_hidden_and_security_attributes_are_read_only_for_users() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o644);
    let me = user(OWNER);
    for name in [&b"trusted.a"[..], b"security.a"] {
        fails(
            s.vfs.setxattr(&me, &file, name, b"v", XattrMode::Any),
            Errno::PERM,
        );
        s.vfs
            .setxattr(&s.su, &file, name, b"v", XattrMode::Any)
            .unwrap();
        fails(s.vfs.removexattr(&me, &file, name), Errno::PERM);
    }
    fails(s.vfs.getxattr(&me, &file, b"trusted.a"), Errno::NODATA);
    assert_eq!(s.vfs.getxattr(&me, &file, b"security.a").unwrap(), b"v");
    assert_eq!(s.vfs.listxattr(&me, &file).unwrap(), [b"security.a"]);
    assert_eq!(s.vfs.listxattr(&s.su, &file).unwrap().len(), 2);
}

#[test]
fn attribute_names_and_values_have_their_limits() {
    let s = setup();
    let put = |name: &[u8], len| {
        s.vfs
            .setxattr(&s.su, &s.root, name, &vec![0; len], XattrMode::Any)
    };
    fails(put(b"", 1), Errno::RANGE);
    fails(put(&[b"user.", &[b'n'; 251][..]].concat(), 1), Errno::RANGE);
    fails(put(b"user.", 1), Errno::INVAL);
    fails(put(b"user.a", 65537), Errno::TOOBIG);
    put(b"user.a", 65536).unwrap();
    for name in [&b"system.other"[..], b"nonsense", b"user", b"os2.x"] {
        fails(put(name, 1), Errno::OPNOTSUPP);
        fails(s.vfs.getxattr(&s.su, &s.root, name), Errno::OPNOTSUPP);
        fails(s.vfs.removexattr(&s.su, &s.root, name), Errno::OPNOTSUPP);
    }
}

#[test]
fn access_times_follow_the_policy_and_leave_ctime_alone() {
    const HOUR: i64 = 3600 * 1_000_000_000;
    for (policy, expected) in [
        (Atime::No, [0, 0, 0, 0]),
        (Atime::Relative, [1, 1, 26, 27]),
        (Atime::Strict, [1, 2, 26, 27]),
    ] {
        let s = setup_with(policy, false);
        let file = s.file(&s.root, "f", (0, 0), 0o644);
        let ctime = s.vfs.getattr(&file).ctime;
        let hours = |time: Time| (time.0 - START.0) / HOUR;
        let read = |after| {
            s.clock.advance(after * HOUR);
            s.vfs.read(&file, 0, &mut [0]).unwrap();
            hours(s.vfs.getattr(&file).atime)
        };
        let mut seen = [read(1), read(1), read(24), 0];
        assert_eq!(s.vfs.getattr(&file).ctime, ctime);
        s.vfs.write(&s.su, &file, 0, b"x").unwrap();
        seen[3] = read(1);
        assert_eq!(seen, expected, "{policy:?}");
    }
}

/// A clock that moves whenever it is looked at.
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> Time {
        Time(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

#[test]
fn times_set_to_now_by_one_call_are_the_same_time() {
    let clock = Arc::new(Ticking(AtomicI64::new(0)));
    let options = VfsOptions {
        clock: clock.clone(),
        ..VfsOptions::default()
    };
    let vfs = Vfs::new(Model::on(clock), options);
    let request = SetAttrRequest {
        atime: Some(TimeOrNow::Now),
        mtime: Some(TimeOrNow::Now),
        ..SetAttrRequest::default()
    };
    let attr = vfs
        .setattr(&Cred::root(), &vfs.fs().root(), &request)
        .unwrap();
    assert_eq!(attr.atime, attr.mtime);
}

#[test]
fn listing_begins_with_the_directory_and_its_parent_and_goes_on_anywhere() {
    let s = setup();
    let dir = s.dir(&s.root, "d", (0, 0), 0o755);
    s.file(&dir, "a", (0, 0), 0o644);
    s.dir(&dir, "b", (0, 0), 0o755);
    let list = |cookie, most: usize| {
        let mut seen = Vec::new();
        let mut emit = |entry: vfs::DirEntry<'_>| {
            let room = seen.len() < most;
            if room {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                seen.push((name, entry.ino, entry.kind, entry.cookie));
            }
            room
        };
        s.vfs.readdir(&dir, cookie, &mut emit).unwrap();
        seen
    };
    let all = list(0, 10);
    let names: Vec<_> = all.iter().map(|entry| entry.0.as_str()).collect();
    assert_eq!(names[..2], [".", ".."]);
    assert_eq!(all.len(), 4);
    assert_eq!((all[0].1, all[0].3), (s.vfs.fs().ino(&dir), 1));
    assert_eq!((all[1].1, all[1].3), (s.vfs.fs().ino(&s.root), 2));
    assert!(all[..2].iter().all(|entry| entry.2 == Kind::Dir));
    for at in 0..all.len() {
        assert_eq!(list(all[at].3, 10), all[at + 1..]);
        let cookie = if at == 0 { 0 } else { all[at - 1].3 };
        assert_eq!(list(cookie, 1), all[at..=at]);
    }
    let file = s.vfs.lookup(&s.su, &dir, b"a").unwrap();
    fails(s.vfs.readdir(&file, 0, &mut |_| true), Errno::NOTDIR);
}

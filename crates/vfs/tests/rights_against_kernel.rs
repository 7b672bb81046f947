//! What users may do to each other's files, here and in the kernel: every errno must agree, and so
//! must modes, owners and ACLs afterwards.
//!
//! One thing is left out, by never taking execute permission from a group: where nothing is left to
//! the group class, the kernel does not look at the ACL at all, so that a user whom the list names
//! counts among the others. Here, and in acl(5), such a user has no access.
//!
//! Acting as several users takes root. For anyone else there is nothing to compare with.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::setup;
use model::Model;
use proptest::prelude::*;
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::thread;
use vfs::{
    ACL_ACCESS, ACL_DEFAULT, Access, Acl, Context, Cred, Errno, Files, OpenFlags, RenameMode, Time,
    TimeOrNow, XattrMode,
};

/// User, group and further groups of those who act.
const USERS: [(u32, u32, &[u32]); 4] = [
    (0, 0, &[]),
    (1000, 1000, &[500]),
    (2000, 500, &[600]),
    (3000, 3000, &[]),
];
const PATHS: [&str; 7] = [".", "a", "b", "a/a", "a/b", "b/a", "b/b"];
const UMASKS: [u16; 4] = [0, 0o022, 0o010, 0o077];

#[derive(Debug, Clone)]
enum Op {
    Make(&'static str, u16),
    Mkdir(&'static str, u16),
    Open(&'static str, OpenFlags),
    Write(&'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str),
    Chmod(&'static str, u16),
    Chown(&'static str, Option<u32>, u32),
    Access(&'static str, Access),
    Times(&'static str, bool),
    SetAcl(&'static str, bool, Acl),
}

fn op() -> impl Strategy<Value = Op> {
    let path = || prop::sample::select(PATHS.to_vec());
    let perm = || {
        prop_oneof![
            0u16..=0o7777,
            prop::sample::select(vec![0o777, 0o1777, 0o2777, 0o6777, 0o2770, 0o755]),
        ]
        .prop_map(|perm| perm | 0o010)
    };
    let flags = prop::sample::select(vec![
        OpenFlags::READ,
        OpenFlags::WRITE,
        OpenFlags::READ | OpenFlags::WRITE,
        OpenFlags::WRITE | OpenFlags::TRUNC,
    ]);
    let uid = || prop::option::of(prop::sample::select(vec![0, 1000, 2000, 3000]));
    let gid = || prop::sample::select(vec![0, 500, 600, 1000, 3000]);
    let access = || (0u16..8).prop_map(Access::from_perm);
    let acl = (
        access(),
        access(),
        access(),
        access(),
        access(),
        access(),
        any::<bool>(),
    )
        .prop_map(|(owner, user, group, named, mask, other, minimal)| {
            let (group, mask) = (group | Access::X, mask | Access::X);
            let plain = Acl {
                owner,
                group,
                other,
                ..Acl::from_perm(0)
            };
            if minimal {
                return plain;
            }
            Acl {
                users: vec![(2000, user)],
                groups: vec![(600, named)],
                mask: Some(mask),
                ..plain
            }
        });
    prop_oneof![
        (path(), perm()).prop_map(|(p, m)| Op::Make(p, m)),
        (path(), perm()).prop_map(|(p, m)| Op::Mkdir(p, m)),
        (path(), flags).prop_map(|(p, f)| Op::Open(p, f)),
        path().prop_map(Op::Write),
        path().prop_map(Op::Unlink),
        path().prop_map(Op::Rmdir),
        (path(), path()).prop_map(|(a, b)| Op::Rename(a, b)),
        (path(), perm()).prop_map(|(p, m)| Op::Chmod(p, m)),
        (path(), uid(), gid()).prop_map(|(p, u, g)| Op::Chown(p, u, g)),
        (path(), access()).prop_map(|(p, a)| Op::Access(p, a)),
        (path(), any::<bool>()).prop_map(|(p, now)| Op::Times(p, now)),
        (path(), any::<bool>(), acl).prop_map(|(p, d, a)| Op::SetAcl(p, d, a)),
    ]
}

fn acl_name(default: bool) -> &'static [u8] {
    if default { ACL_DEFAULT } else { ACL_ACCESS }
}

fn here(files: &Files<Model>, ctx: &Context<Model>, op: &Op) -> Result<(), Errno> {
    let make = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCL;
    match op {
        Op::Make(path, perm) => files
            .open(ctx, *path, make, *perm)
            .and_then(|fd| files.close(fd)),
        Op::Mkdir(path, perm) => files.mkdir(ctx, *path, *perm),
        Op::Open(path, flags) => files
            .open(ctx, *path, *flags, 0)
            .and_then(|fd| files.close(fd)),
        Op::Write(path) => files.open(ctx, *path, OpenFlags::WRITE, 0).and_then(|fd| {
            files.write(ctx, fd, b"x")?;
            files.close(fd)
        }),
        Op::Unlink(path) => files.unlink(ctx, *path),
        Op::Rmdir(path) => files.rmdir(ctx, *path),
        Op::Rename(old, new) => files.rename(ctx, *old, *new, RenameMode::Replace),
        Op::Chmod(path, perm) => files.chmod(ctx, *path, *perm),
        Op::Chown(path, uid, gid) => files.chown(ctx, *path, *uid, Some(*gid)),
        Op::Access(path, want) => files.access(ctx, *path, *want),
        Op::Times(path, now) => {
            let time = Some(if *now {
                TimeOrNow::Now
            } else {
                TimeOrNow::At(Time(0))
            });
            files.utimens(ctx, *path, time, time)
        }
        // By descriptor, as in the kernel below: the path is of no interest here.
        Op::SetAcl(path, default, acl) => {
            let su = ctx.for_cred(Cred::root());
            files.open(&su, *path, OpenFlags::READ, 0).and_then(|fd| {
                let (name, value) = (acl_name(*default), acl.to_xattr());
                let done = files.setxattr(ctx, fd, name, &value, XattrMode::Any);
                files.close(fd)?;
                done
            })
        }
    }
    .map_err(|error| error.errno())
}

fn in_kernel(dir: &OwnedFd, user: usize, op: &Op) -> Result<(), Errno> {
    let open = |path: &str, flags| fs::openat(dir, path, flags, Mode::empty());
    if let Op::SetAcl(path, default, acl) = op {
        let file = open(path, OFlags::RDONLY)?;
        let name = str::from_utf8(acl_name(*default)).unwrap();
        return acting_as(user, || {
            fs::fsetxattr(&file, name, &acl.to_xattr(), XattrFlags::empty())
        });
    }
    let mode = |perm: &u16| Mode::from_raw_mode(u32::from(*perm));
    acting_as(user, || match op {
        Op::Make(path, perm) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            fs::openat(dir, *path, flags, mode(perm)).map(drop)
        }
        Op::Mkdir(path, perm) => fs::mkdirat(dir, *path, mode(perm)),
        Op::Open(path, flags) => {
            let both = flags.contains(OpenFlags::READ | OpenFlags::WRITE);
            let write = flags.contains(OpenFlags::WRITE);
            let way = if write {
                OFlags::WRONLY
            } else {
                OFlags::RDONLY
            };
            let mut flags_there = if both { OFlags::RDWR } else { way };
            flags_there.set(OFlags::TRUNC, flags.contains(OpenFlags::TRUNC));
            open(path, flags_there).map(drop)
        }
        Op::Write(path) => {
            let file = open(path, OFlags::WRONLY)?;
            rustix::io::write(file.as_fd(), b"x").map(drop)
        }
        Op::Unlink(path) => fs::unlinkat(dir, *path, AtFlags::empty()),
        Op::Rmdir(path) => fs::unlinkat(dir, *path, AtFlags::REMOVEDIR),
        Op::Rename(old, new) => fs::renameat(dir, *old, dir, *new),
        Op::Chmod(path, perm) => fs::chmodat(dir, *path, mode(perm), AtFlags::empty()),
        Op::Chown(path, uid, gid) => {
            let (uid, gid) = (uid.map(Uid::from_raw), Some(Gid::from_raw(*gid)));
            fs::chownat(dir, *path, uid, gid, AtFlags::empty())
        }
        Op::Access(path, want) => {
            let want = fs::Access::from_bits_retain(u32::from(want.bits()));
            fs::accessat(dir, *path, want, AtFlags::EACCESS)
        }
        Op::Times(path, now) => {
            let nanos = if *now { fs::UTIME_NOW } else { 0 };
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: nanos,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            fs::utimensat(dir, *path, &times, AtFlags::empty())
        }
        Op::SetAcl(..) => unreachable!("done above"),
    })
}

/// Runs `act` with the identity of a user. Identities are per thread, below the C library.
fn acting_as<R>(user: usize, act: impl FnOnce() -> R) -> R {
    let become_user = |(uid, gid, groups): (u32, u32, &[u32])| {
        let groups: Vec<Gid> = groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        thread::set_thread_res_uid(None, Some(Uid::ROOT), None).unwrap();
        thread::set_thread_groups(&groups).unwrap();
        thread::set_thread_res_gid(None, Some(Gid::from_raw(gid)), None).unwrap();
        thread::set_thread_res_uid(None, Some(Uid::from_raw(uid)), None).unwrap();
    };
    become_user(USERS[user]);
    let result = act();
    become_user(USERS[0]);
    result
}

/// Mode, owner, group and ACLs.
type Seen = Result<(u16, u32, u32, [Option<Vec<u8>>; 2]), Errno>;

fn seen_here(files: &Files<Model>, su: &Context<Model>, path: &str) -> Seen {
    let attr = files.stat(su, path).map_err(|error| error.errno())?;
    let acls = [ACL_ACCESS, ACL_DEFAULT].map(|name| files.getxattr(su, path, name).ok());
    Ok((attr.perm, attr.uid, attr.gid, acls))
}

fn seen_in_kernel(dir: &OwnedFd, path: &str) -> Seen {
    let file = fs::openat(dir, path, OFlags::RDONLY, Mode::empty())?;
    let stat = fs::fstat(&file)?;
    let acls = [ACL_ACCESS, ACL_DEFAULT].map(|name| {
        let mut value = [0; 1024];
        let name = str::from_utf8(name).unwrap();
        let len = fs::fgetxattr(&file, name, &mut value).ok()?;
        Some(value[..len].to_vec())
    });
    Ok((
        (stat.st_mode & 0o7777) as u16,
        stat.st_uid,
        stat.st_gid,
        acls,
    ))
}

fn play(ops: &[(usize, Op)], umask: u16) -> Result<(), TestCaseError> {
    let (files, su) = setup().files();
    files.chmod(&su, "/", 0o777).unwrap();
    // tmpfs has ACLs, and no rules of its own.
    let temp = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::chmod(temp.path(), Mode::from_raw_mode(0o777)).unwrap();
    let dir = fs::open(temp.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for (user, op) in ops {
        let (uid, gid, groups) = USERS[*user];
        let mut ctx = su.for_cred(Cred::new(uid, gid, groups));
        ctx.umask = umask;
        let (ours, theirs) = (here(&files, &ctx, op), in_kernel(&dir, *user, op));
        prop_assert_eq!(ours, theirs, "{:?} by {}", op, uid);
        for path in PATHS {
            let (ours, theirs) = (seen_here(&files, &su, path), seen_in_kernel(&dir, path));
            prop_assert_eq!(ours, theirs, "{} after {:?} by {}", path, op, uid);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn users_are_let_and_refused_as_by_the_kernel(
        ops in prop::collection::vec((0..USERS.len(), op()), 1..60),
        umask in prop::sample::select(UMASKS.to_vec()),
    ) {
        testing::needs_root!(Ok(()));
        rustix::process::umask(Mode::from_raw_mode(u32::from(umask)));
        play(&ops, umask)?;
    }
}

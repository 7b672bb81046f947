//! What programs see through the mount, above all that the kernel's long-lived caches never show
//! anything but what the file system holds.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::awkward::{Awkward, DAMAGED, Stop};
use crate::common::{Mounted, model};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, StatxFlags, XattrFlags,
};
use vfs::{Access, Acl, Clock, Errno, FileSystem, NewKind, NewNode, SystemClock};

fn mounted() -> Mounted {
    Mounted::with(|_| {})
}

/// What the kernel says of a file from its caches, and what the file system says.
fn believed_and_true(path: &Path) -> [(u32, u64, u64, u16, [i64; 4]); 2] {
    [AtFlags::empty(), AtFlags::STATX_FORCE_SYNC].map(|sync| {
        let flags = AtFlags::SYMLINK_NOFOLLOW | sync;
        let s = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS).expect("statx");
        let times = [s.stx_mtime.tv_sec, s.stx_ctime.tv_sec].into_iter().chain([
            i64::from(s.stx_mtime.tv_nsec),
            i64::from(s.stx_ctime.tv_nsec),
        ]);
        let mut all = [0; 4];
        all.iter_mut().zip(times).for_each(|(to, from)| *to = from);
        (s.stx_nlink, s.stx_size, s.stx_blocks, s.stx_mode, all)
    })
}

/// Waits until the clock of the mount shows another time.
fn tick() {
    let now = || SystemClock.now();
    let (start, since) = (now(), Instant::now());
    while now() == start {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "the clock stands still"
        );
        std::thread::yield_now();
    }
}

#[track_caller]
fn check_caches(mount: &Mounted, after: &str, names: &[&str]) {
    for name in names {
        let [believed, truth] = believed_and_true(&mount.path(name));
        assert_eq!(believed, truth, "{name} after {after}");
    }
}

#[test]
fn cached_attributes_are_true_after_every_operation() {
    let mount = mounted();
    let path = |name: &str| mount.path(name);
    let all = |after: &str, names: &[&str]| {
        // Twice: the first look may fill the cache that the second uses.
        check_caches(&mount, after, names);
        check_caches(&mount, after, names);
    };
    fs::create_dir(path("d")).expect("mkdir");
    fs::create_dir(path("e")).expect("mkdir");
    all("mkdir", &["", "d", "e"]);
    fs::write(path("a"), b"12345").expect("write");
    all("create and write", &["", "a"]);
    fs::hard_link(path("a"), path("d/b")).expect("link");
    all("link", &["", "d", "a", "d/b"]);
    fs::rename(path("d/b"), path("e/c")).expect("rename");
    all("rename", &["d", "e", "a", "e/c"]);
    fs::write(path("a"), b"longer than before").expect("write");
    all("write through the other name", &["a", "e/c"]);
    fs::remove_file(path("a")).expect("unlink");
    all("unlink of one of two names", &["", "e/c"]);
    fs::write(path("victim"), b"x").expect("write");
    fs::hard_link(path("victim"), path("survivor")).expect("link");
    fs::rename(path("e/c"), path("victim")).expect("rename over");
    all(
        "rename over a name of two",
        &["", "e", "victim", "survivor"],
    );
    fs::rename(path("d"), path("e/d")).expect("move a directory");
    all("moving a directory", &["", "e", "e/d"]);
    rustix::fs::renameat_with(CWD, path("victim"), CWD, path("e/d"), RenameFlags::EXCHANGE)
        .expect("exchange");
    all(
        "exchanging a file and a directory",
        &["", "e", "victim", "e/d"],
    );
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path("survivor"))
        .expect("open");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000).expect("fallocate");
    all("fallocate", &["survivor"]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).expect("punch");
    all("punch", &["survivor"]);
    file.set_len(10).expect("truncate");
    all("truncate", &["survivor"]);
    fs::set_permissions(path("survivor"), Permissions::from_mode(0o600)).expect("chmod");
    all("chmod", &["survivor"]);
    rustix::fs::setxattr(path("survivor"), "user.x", b"1", XattrFlags::empty()).expect("setxattr");
    all("setxattr", &["survivor"]);
    rustix::fs::removexattr(path("survivor"), "user.x").expect("removexattr");
    all("removexattr", &["survivor"]);
    fs::remove_dir(path("victim")).expect("rmdir");
    all("rmdir", &["", "e"]);
}

#[test]
fn an_open_file_outlives_its_last_name() {
    let mount = mounted();
    fs::write(mount.path("warm"), b"")
        .and_then(|()| fs::read(mount.path("warm")))
        .expect("warm");
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .open(mount.path("f"))
        .expect("open");
    file.write_all(b"still here").expect("write");
    fs::remove_file(mount.path("f")).expect("unlink");
    file.write_all(b", and growing").expect("write");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drop the cache");
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).expect("seek");
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "still here, and growing");
    assert_eq!(file.metadata().expect("fstat").nlink(), 0);
}

#[test]
fn names_come_and_go_although_absence_is_cached() {
    let mount = mounted();
    let (a, b) = (mount.path("a"), mount.path("b"));
    for _ in 0..3 {
        assert_eq!(
            fs::metadata(&a).expect_err("absent").kind(),
            ErrorKind::NotFound
        );
        fs::write(&a, b"x").expect("create");
        assert!(fs::metadata(&a).is_ok());
        assert!(fs::metadata(&b).is_err());
        fs::rename(&a, &b).expect("rename");
        assert!(fs::metadata(&a).is_err());
        assert!(fs::metadata(&b).is_ok());
        fs::remove_file(&b).expect("unlink");
        std::os::unix::fs::symlink("a", &b).expect("symlink");
        assert_eq!(fs::read_link(&b).expect("readlink"), Path::new("a"));
        fs::remove_file(&b).expect("unlink");
    }
}

#[test]
fn every_kind_of_file_can_be_made() {
    let mount = mounted();
    let make = |name: &str, kind, dev| {
        rustix::fs::mknodat(CWD, mount.path(name), kind, Mode::from_raw_mode(0o640), dev)
    };
    make("fifo", FileType::Fifo, 0).expect("mkfifo");
    make("socket", FileType::Socket, 0).expect("socket");
    make("file", FileType::RegularFile, 0).expect("file");
    let kind = |name: &str| {
        fs::symlink_metadata(mount.path(name))
            .expect("stat")
            .file_type()
    };
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket() && kind("file").is_file());
    testing::needs_root!(); // for what follows: device nodes
    make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)).expect("mknod");
    assert!(kind("null").is_char_device());
    fs::write(mount.path("null"), b"gone").expect("the device works: mounted with dev");
}

#[test]
fn rename_flags_reach_the_file_system() {
    let mount = mounted();
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, b"a")
        .and_then(|()| fs::write(&b, b"b"))
        .expect("write");
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!(fs::read(&a).expect("read"), b"b");
    assert_eq!(fs::read(&b).expect("read"), b"a");
}

#[test]
fn holes_are_found_and_ranges_copied() {
    let mount = mounted();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = options.open(mount.path("sparse")).expect("open");
    file.write_all_at(&[1; 4096], 1 << 20).expect("write");
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).expect("data");
    assert_eq!(data, 1 << 20);
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1 << 20)).expect("hole");
    assert_eq!(hole, (1 << 20) + 4096);
    let to = options.open(mount.path("copy")).expect("open");
    let (mut from_at, mut to_at) = (1 << 20, 100);
    let copied =
        rustix::fs::copy_file_range(&file, Some(&mut from_at), &to, Some(&mut to_at), 4096)
            .expect("copy");
    assert_eq!(copied, 4096);
    let mut copy = Vec::new();
    File::open(mount.path("copy"))
        .and_then(|mut f| f.read_to_end(&mut copy))
        .expect("read");
    assert_eq!(copy[..100], [0; 100]);
    assert_eq!(copy[100..], [1; 4096]);
}

#[test]
fn appends_of_many_threads_do_not_overwrite_each_other() {
    let mount = mounted();
    let path = mount.path("log");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let mut log = options.append(true).create(true).open(path).expect("open");
                for _ in 0..200 {
                    log.write_all(&[b'a' + thread; 50]).expect("append");
                }
            });
        }
    });
    let log = fs::read(&path).expect("read");
    assert_eq!(log.len(), 4 * 200 * 50);
    assert!(
        log.chunks(50)
            .all(|line| line.iter().all(|byte| *byte == line[0]))
    );
}

#[test]
fn truncating_at_open_discards_the_contents() {
    let mount = mounted();
    let path = mount.path("file");
    fs::write(&path, b"a long text").expect("write");
    fs::read(&path).expect("read");
    fs::write(&path, b"short").expect("O_TRUNC and write");
    assert_eq!(fs::read(&path).expect("read"), b"short");
}

#[test]
fn writing_takes_set_id_bits_away_from_the_unprivileged_only() {
    testing::needs_root!();
    let mount = mounted();
    fs::set_permissions(mount.root(), Permissions::from_mode(0o777)).expect("chmod");
    let path = mount.path("tool");
    let mode = || fs::metadata(&path).expect("stat").permissions().mode() & 0o7777;
    fs::write(&path, b"x").expect("write");
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("chmod");
    fs::write(&path, b"by root").expect("write");
    assert_eq!(mode(), 0o6777);
    let append = format!("echo more >> {}", path.display());
    let nobody = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            &append,
        ])
        .status()
        .expect("setpriv");
    assert!(nobody.success());
    assert_eq!(mode(), 0o777);
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("chmod");
    rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(1)), None).expect("chown");
    assert_eq!(
        mode() & 0o4000,
        0,
        "who gives a file away takes its set-uid bit away"
    );
}

#[test]
fn a_set_id_bit_that_a_change_of_contents_took_away_is_not_believed_any_more() {
    testing::needs_root!();
    for writeback in [false, true] {
        let mount = Mounted::with(|options| options.writeback = writeback);
        fs::set_permissions(mount.root(), Permissions::from_mode(0o777)).expect("chmod");
        let path = mount.path("tool");
        fs::copy("/usr/bin/id", &path).expect("copy");
        for change in [
            "echo >> tool",
            "truncate -s +1 tool",
            "fallocate -l 1M tool",
        ] {
            fs::set_permissions(&path, Permissions::from_mode(0o4777)).expect("chmod");
            fs::metadata(&path).expect("stat");
            let script = format!("cd {} && {change} && ./tool -u", mount.root().display());
            let output = Command::new("setpriv")
                .args([
                    "--reuid=65534",
                    "--regid=65534",
                    "--clear-groups",
                    "sh",
                    "-c",
                    &script,
                ])
                .output()
                .expect("setpriv");
            let ran_as = String::from_utf8_lossy(&output.stdout);
            // Only the mode is asked for: for size and times the kernel would ask us anyway.
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let stat = rustix::fs::statx(CWD, &path, flags, StatxFlags::MODE).expect("statx");
            let seen = (ran_as.trim(), stat.stx_mode & 0o7777);
            assert_eq!(seen, ("65534", 0o777), "{change}, writeback: {writeback}");
        }
    }
}

#[test]
fn permissions_are_enforced_and_new_files_belong_to_their_maker() {
    testing::needs_root!();
    let mount = mounted();
    fs::create_dir(mount.path("open")).expect("mkdir");
    fs::set_permissions(mount.path("open"), Permissions::from_mode(0o777)).expect("chmod");
    fs::write(mount.path("secret"), b"x").expect("write");
    fs::set_permissions(mount.path("secret"), Permissions::from_mode(0o600)).expect("chmod");
    let nobody = |script: &str| {
        let script = format!("cd {} && umask 027 && {script}", mount.root().display());
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            &script,
        ]);
        command
            .stderr(std::process::Stdio::null())
            .status()
            .expect("setpriv")
            .success()
    };
    assert!(nobody("echo mine > open/mine && mkdir open/dir"));
    let mine = fs::metadata(mount.path("open/mine")).expect("stat");
    assert_eq!(
        (mine.uid(), mine.gid(), mine.mode() & 0o7777),
        (65534, 65534, 0o640)
    );
    assert!(!nobody("cat secret"));
    assert!(!nobody("echo x > forbidden"));
    assert!(!nobody("rm -f secret"));
}

#[test]
fn extended_attributes_work_and_the_status_is_one_of_the_root() {
    let mount = mounted();
    let path = mount.path("f");
    fs::write(&path, b"").expect("write");
    let mut buf = [0; 64];
    rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::CREATE).expect("set");
    let again = rustix::fs::setxattr(&path, "user.a", b"v", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let size = rustix::fs::getxattr(&path, "user.a", &mut buf).expect("get");
    assert_eq!(&buf[..size], b"value");
    assert_eq!(
        rustix::fs::getxattr(&path, "user.a", &mut buf[..2]),
        Err(rustix::io::Errno::RANGE)
    );
    let size = rustix::fs::listxattr(&path, &mut buf).expect("list");
    assert_eq!(&buf[..size], b"user.a\0");
    for path in [mount.root(), &path] {
        let size = rustix::fs::getxattr(path, fuse::STATUS_XATTR, &mut buf).expect("status");
        assert_eq!(&buf[..size], b"alive");
    }
    assert_eq!(rustix::fs::listxattr(mount.root(), &mut buf), Ok(0));
}

#[test]
fn a_default_acl_decides_instead_of_the_umask() {
    let mount = mounted();
    let dir = mount.path("d");
    fs::create_dir(&dir).expect("mkdir");
    // Version 2; entries of tag, permissions, id: owner rwx, user 1 rw, group r, mask rwx, other -.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 6, 1),
        (4, 4, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_default";
    rustix::fs::setxattr(&dir, name, &acl, XattrFlags::empty()).expect("set");
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o666)
        .open(dir.join("f"))
        .expect("create");
    let mode = fs::metadata(dir.join("f")).expect("stat").mode() & 0o777;
    assert_eq!(mode, 0o660, "owner rw, mask rw, others nothing");
    let mut buf = [0; 256];
    let size = rustix::fs::getxattr(dir.join("f"), "system.posix_acl_access", &mut buf);
    assert!(size.is_ok_and(|size| size > 4), "{size:?}");
}

#[test]
fn long_names_are_refused_with_the_right_error() {
    let mount = mounted();
    let error = File::create(mount.path(&"n".repeat(256))).expect_err("too long");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())
    );
    File::create(mount.path(&"n".repeat(255))).expect("the longest name");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mount = Mounted::with(|options| options.read_only = true);
    let error = File::create(mount.path("f")).expect_err("read-only");
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn file_capabilities_go_when_contents_change_and_stay_when_set_afterwards() {
    testing::needs_root!();
    for writeback in [false, true] {
        let mount = Mounted::with(|options| options.writeback = writeback);
        let path = mount.path("tool");
        fs::write(mount.path("source"), b"text").expect("write");
        fs::write(&path, b"text").expect("write");
        let open = |name| OpenOptions::new().read(true).write(true).open(name);
        let file = open(&path).expect("open");
        let source = open(&mount.path("source")).expect("open");
        // Version 2, no capabilities: the kernel looks whether it is well formed.
        let capability = [&0x0200_0000_u32.to_le_bytes()[..], &[0; 16]].concat();
        let name = "security.capability";
        let arm = || rustix::fs::setxattr(&path, name, &capability, XattrFlags::empty());
        let armed = || rustix::fs::getxattr(&path, name, &mut [0; 64][..]).is_ok();
        let no_flags = FallocateFlags::empty();
        let changes: [(&str, &dyn Fn()); 6] = [
            ("write", &|| file.write_all_at(b"x", 0).expect("write")),
            ("truncate", &|| file.set_len(9).expect("truncate")),
            ("truncate at open", &|| {
                drop(File::create(&path).expect("open"))
            }),
            ("allocate", &|| {
                rustix::fs::fallocate(&file, no_flags, 0, 99).expect("allocate");
            }),
            ("copy", &|| {
                let (mut from, mut to) = (0, 0);
                let (from, to) = (Some(&mut from), Some(&mut to));
                rustix::fs::copy_file_range(&source, from, &file, to, 4).expect("copy");
            }),
            ("chown", &|| {
                let other = Some(rustix::fs::Uid::from_raw(1));
                rustix::fs::chown(&path, other, None).expect("chown");
            }),
        ];
        for (what, change) in changes {
            arm().expect("set");
            assert!(armed(), "{what}");
            change();
            assert!(!armed(), "{what}, writeback: {writeback}");
        }
        file.write_all_at(b"kept back", 0).expect("write");
        arm().expect("set");
        file.sync_all().expect("sync");
        assert!(armed(), "set after the write, writeback: {writeback}");
    }
}

#[test]
fn trusted_attributes_are_shown_to_root_only() {
    testing::needs_root!();
    let mount = mounted();
    fs::set_permissions(mount.root(), Permissions::from_mode(0o755)).expect("chmod");
    let path = mount.path("f");
    fs::write(&path, b"").expect("write");
    for name in ["trusted.secret", "user.known"] {
        rustix::fs::setxattr(&path, name, b"1", XattrFlags::empty()).expect("set");
    }
    let list = || {
        let mut buf = [0; 256];
        let size = rustix::fs::listxattr(&path, &mut buf).expect("list");
        String::from_utf8_lossy(&buf[..size]).into_owned()
    };
    assert!(list().contains("trusted.secret") && list().contains("user.known"));
    std::thread::scope(|scope| {
        // Identities are per thread, below the C library.
        scope.spawn(|| {
            let nobody = Some(rustix::fs::Uid::from_raw(65534));
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("become nobody");
            assert_eq!(list(), "user.known\0");
        });
    });
}

#[test]
fn a_copied_file_has_the_access_time_that_the_kernel_believes() {
    let mount = mounted();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let (from, to) = (mount.path("from"), mount.path("to"));
    let (source, target) = (options.open(&from), options.open(&to));
    let (source, target) = (source.expect("open"), target.expect("open"));
    source.write_all_at(b"text", 0).expect("write");
    let atime = |sync| {
        let stat = rustix::fs::statx(CWD, &from, sync, StatxFlags::BASIC_STATS).expect("statx");
        (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec)
    };
    atime(AtFlags::empty());
    tick();
    let copied = rustix::fs::copy_file_range(&source, None, &target, None, 4);
    assert_eq!(copied, Ok(4));
    assert_eq!(atime(AtFlags::empty()), atime(AtFlags::STATX_FORCE_SYNC));
}

#[test]
fn the_earliest_time_harms_nobody() {
    let mount = mounted();
    let path = mount.path("old");
    fs::write(&path, b"").expect("write");
    let time = rustix::fs::Timespec {
        tv_sec: i64::MIN,
        tv_nsec: 1,
    };
    let times = rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
    assert!(fs::metadata(&path).expect("stat").mtime() < 0);
}

#[test]
fn attributes_from_before_an_acl_was_set_are_not_believed_when_they_come_late() {
    let stop = Stop::default();
    let mount = Mounted::of(Awkward {
        stop_attr: stop.clone(),
        ..Awkward::new(model())
    });
    let path = mount.path("f");
    fs::write(&path, b"").expect("write");
    let list = Acl {
        users: vec![(1, Access::R)],
        mask: Some(Access::R),
        ..Acl::from_perm(0o600)
    };
    let name = "system.posix_acl_access";
    let set = |acl: &Acl| {
        let value = acl.to_xattr();
        rustix::fs::setxattr(&path, name, &value, XattrFlags::empty()).expect("set");
    };
    let remove = || rustix::fs::removexattr(&path, name).expect("remove");
    let minimal = Acl::from_perm(0o604);
    let changes: [(&str, &dyn Fn()); 3] = [
        ("a list", &|| set(&list)),
        ("no list any more", &remove),
        ("nothing but a mode", &|| set(&minimal)),
    ];
    for (what, change) in changes {
        stop.arm();
        std::thread::scope(|scope| {
            scope.spawn(|| believed_and_true(&path));
            stop.reached();
            change();
            stop.go_on();
        });
        let [believed, truth] = believed_and_true(&path);
        assert_eq!(believed, truth, "{what}");
    }
}

#[test]
fn what_is_damaged_does_not_hide_the_names_beside_it() {
    let fs = model();
    let make = |dir: &_, name: &[u8], kind| {
        let new = NewNode {
            kind,
            perm: 0o755,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        fs.create(dir, name, &new).expect("make")
    };
    let name = |n| match n {
        25 | 75 => format!("{DAMAGED} {n}"),
        _ => format!("name {n:02}"),
    };
    let mut all: Vec<String> = (0..100).map(name).collect();
    for name in &all {
        make(&fs.root(), name.as_bytes(), NewKind::File);
    }
    let dir = make(&fs.root(), b"dir", NewKind::Dir);
    make(&dir, b"inside", NewKind::File);
    let mount = Mounted::of(Awkward::new(fs));
    let list = |dir: &Path| {
        let list = fs::read_dir(dir).expect("open");
        let names = list.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    all.push("dir".to_string());
    all.sort();
    for _ in 0..2 {
        assert_eq!(list(mount.root()), all);
        assert_eq!(list(&mount.path("dir")), ["inside"]);
    }
    let error = fs::symlink_metadata(mount.path("damaged 25")).expect_err("it is damaged");
    assert_eq!(error.raw_os_error(), Some(Errno::UCLEAN.raw_os_error()));
    assert!(fs::metadata(mount.path("name 99")).is_ok());
    assert!(fs::metadata(mount.root()).is_ok());
}

#[test]
fn times_before_1970_survive_the_journey() {
    let mount = mounted();
    let path = mount.path("old");
    fs::write(&path, b"").expect("write");
    let time = rustix::fs::Timespec {
        tv_sec: -2,
        tv_nsec: 250_000_000,
    };
    let times = rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
    let [_, (.., truth)] = believed_and_true(&path);
    assert_eq!((truth[0], truth[2]), (-2, 250_000_000));
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (-2, 250_000_000));
}

#[test]
fn strictatime_sees_a_read_after_each_open() {
    let mount = Mounted::with(|options| options.atime = vfs::Atime::Strict);
    let path = mount.path("f");
    fs::write(&path, b"text").expect("write");
    let mut last = None;
    for _ in 0..3 {
        tick();
        assert_eq!(fs::read(&path).expect("read"), b"text");
        let stat = fs::metadata(&path).expect("stat");
        let atime = Some((stat.atime(), stat.atime_nsec()));
        assert!(atime > last, "{atime:?} after {last:?}");
        last = atime;
    }
}

#[test]
fn unmounting_from_outside_ends_the_mount() {
    let mut mount = mounted();
    fs::write(mount.path("f"), b"x").expect("write");
    fuse::unmount(mount.root(), false).expect("unmount");
    mount.wait().expect("a clean end");
    assert!(!mount.path("f").exists());
}

#[test]
fn a_mount_in_use_is_detached_and_ends_after_the_grace() {
    let mut mount = mounted();
    let file = File::create(mount.path("f")).expect("create");
    assert_eq!(
        fuse::unmount(mount.root(), false).expect_err("busy").kind(),
        ErrorKind::ResourceBusy
    );
    mount.unmounter().stop(Duration::from_millis(50));
    mount.wait().expect("an end");
    assert!(
        !mount.path("f").exists(),
        "the directory is the old one again"
    );
    let error = file.write_at(b"x", 0).expect_err("no longer served");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
}

#[test]
fn cached_attributes_are_true_after_calls_that_failed_halfway() {
    let fail = Arc::default();
    let mount = Mounted::of(Awkward {
        fail: Arc::clone(&fail),
        ..Awkward::new(model())
    });
    fs::write(mount.path("from"), vec![1; 20_000]).expect("write");
    let open = |name| {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true);
        file.open(mount.path(name)).expect("open")
    };
    let (from, to) = (open("from"), open("to"));
    let none = FallocateFlags::empty();
    let keep = FallocateFlags::KEEP_SIZE;
    let calls: [(&str, &dyn Fn() -> rustix::io::Result<()>); 6] = [
        ("fallocate", &|| {
            rustix::fs::fallocate(&to, none, 0, 100_000)
        }),
        ("fallocate beyond the end", &|| {
            rustix::fs::fallocate(&to, keep, 1 << 20, 100_000)
        }),
        ("punch", &|| {
            rustix::fs::fallocate(&to, FallocateFlags::PUNCH_HOLE | keep, 0, 8192)
        }),
        ("copy", &|| {
            rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 200_000), 20_000)
                .map(|_| ())
        }),
        ("truncate", &|| rustix::fs::ftruncate(&to, 5000)),
        ("write", &|| {
            rustix::io::pwrite(&to, &[1; 9000], 0).map(|_| ())
        }),
    ];
    for (what, call) in calls {
        check_caches(&mount, "before", &["from", "to"]);
        fail.store(true, SeqCst);
        assert_eq!(call(), Err(rustix::io::Errno::NOSPC), "{what}");
        fail.store(false, SeqCst);
        check_caches(&mount, what, &["from", "to"]);
    }
}

#[test]
fn cached_attributes_are_true_once_the_kernel_has_written_back() {
    let mount = Mounted::with(|options| options.writeback = true);
    fs::write(mount.path("f"), b"x").expect("write");
    check_caches(&mount, "a first write", &["f"]);
    let file = OpenOptions::new().write(true).open(mount.path("f"));
    let file = file.expect("open");
    file.write_all_at(&vec![1; 1 << 20], 0).expect("write");
    file.sync_all().expect("sync");
    check_caches(&mount, "a large one", &["f"]);
}

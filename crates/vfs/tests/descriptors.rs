//! Open files: contents, positions, directories, limits.

mod common;

use std::sync::Arc;

use common::{OWNER, fails, setup, setup_with, user};
use model::Model;
use vfs::{
    Atime, Context, Cred, Errno, Fallocate, Fd, Files, OpenFlags, SystemClock, Vfs, VfsOptions,
    Whence,
};

const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;
const NEW: OpenFlags = READ.union(WRITE).union(OpenFlags::CREATE);

fn contents(files: &Files<Model>, fd: Fd) -> Vec<u8> {
    let mut buf = [0; 64];
    let count = files.pread(fd, &mut buf, 0).unwrap();
    buf[..count].to_vec()
}

#[test]
fn reads_and_writes_move_one_position_that_duplicates_share() {
    let (files, ctx) = setup().files();
    let fd = files.open(&ctx, "f", NEW, 0o644).unwrap();
    let twin = files.dup(fd).unwrap();
    let apart = files.open(&ctx, "f", NEW, 0o644).unwrap();
    assert_eq!(files.write(&ctx, fd, b"hello ").unwrap(), 6);
    assert_eq!(files.write(&ctx, twin, b"world").unwrap(), 5);
    assert_eq!(files.write(&ctx, apart, b"J").unwrap(), 1);
    assert_eq!(contents(&files, fd), b"Jello world");
    assert_eq!(files.lseek(twin, Whence::Set(1)).unwrap(), 1);
    let mut buf = [0; 4];
    assert_eq!(files.read(fd, &mut buf).unwrap(), 4);
    assert_eq!(&buf, b"ello");
    assert_eq!(files.lseek(twin, Whence::Current(0)).unwrap(), 5);
    assert_eq!(files.pwrite(&ctx, fd, b"W", 6).unwrap(), 1);
    assert_eq!(files.lseek(fd, Whence::Current(0)).unwrap(), 5);
    files.close(fd).unwrap();
    assert_eq!(contents(&files, twin), b"Jello World");
    assert_eq!(files.lseek(twin, Whence::End(0)).unwrap(), 11);
    assert_eq!(files.read(twin, &mut buf).unwrap(), 0);
}

#[test]
fn appending_goes_to_the_end_wherever_the_position_is() {
    let (files, ctx) = setup().files();
    let a = files
        .open(&ctx, "f", NEW | OpenFlags::APPEND, 0o644)
        .unwrap();
    let b = files
        .open(&ctx, "f", NEW | OpenFlags::APPEND, 0o644)
        .unwrap();
    files.write(&ctx, a, b"1").unwrap();
    files.write(&ctx, b, b"2").unwrap();
    files.lseek(a, Whence::Set(0)).unwrap();
    files.write(&ctx, a, b"3").unwrap();
    files.pwrite(&ctx, b, b"4", 0).unwrap();
    assert_eq!(contents(&files, a), b"1234");
    assert_eq!(files.lseek(a, Whence::Current(0)).unwrap(), 3);
}

#[test]
fn threads_that_share_a_position_write_each_byte_once() {
    let (files, ctx) = setup().files();
    let fd = files.open(&ctx, "f", NEW, 0o644).unwrap();
    std::thread::scope(|scope| {
        for mark in 1..=4u8 {
            let (files, ctx) = (&files, ctx.clone());
            scope.spawn(move || {
                (0..100).for_each(|_| {
                    files.write(&ctx, fd, &[mark; 3]).unwrap();
                })
            });
        }
    });
    let mut buf = vec![0; 2000];
    assert_eq!(files.pread(fd, &mut buf, 0).unwrap(), 1200);
    assert!(
        buf[..1200]
            .chunks(3)
            .all(|c| c[0] != 0 && c.iter().all(|b| *b == c[0]))
    );
}

#[test]
fn descriptors_do_only_what_they_were_opened_for() {
    let (files, ctx) = setup().files();
    let w = files
        .open(&ctx, "f", WRITE | OpenFlags::CREATE, 0o644)
        .unwrap();
    let r = files.open(&ctx, "f", READ, 0).unwrap();
    let p = files.open(&ctx, "f", OpenFlags::PATH, 0).unwrap();
    let d = files.open(&ctx, "/", READ, 0).unwrap();
    let mut buf = [0; 4];
    for fd in [w, p, Fd(77), Fd(u32::MAX)] {
        fails(files.read(fd, &mut buf), Errno::BADF);
        fails(files.readdir(fd, |_| true), Errno::BADF);
    }
    for fd in [r, p, d, Fd(77)] {
        fails(files.write(&ctx, fd, b"x"), Errno::BADF);
        fails(files.pwrite(&ctx, fd, b"x", 0), Errno::BADF);
        let allocate = Fallocate::Allocate { keep_size: false };
        fails(files.fallocate(&ctx, fd, allocate, 0, 1), Errno::BADF);
    }
    fails(files.ftruncate(&ctx, r, 0), Errno::INVAL);
    fails(files.ftruncate(&ctx, d, 0), Errno::INVAL);
    fails(files.read(d, &mut buf), Errno::ISDIR);
    fails(files.readdir(r, |_| true), Errno::NOTDIR);
    for result in [
        files.fsync(p),
        files.ftruncate(&ctx, p, 0),
        files.lseek(p, Whence::Set(0)).map(drop),
    ] {
        fails(result, Errno::BADF);
    }
    fails(files.copy_file_range(&ctx, (w, 0), (w, 9), 1), Errno::BADF);
    fails(files.copy_file_range(&ctx, (r, 0), (r, 9), 1), Errno::BADF);
    files.close(w).unwrap();
    fails(files.close(w), Errno::BADF);
    fails(files.dup(w), Errno::BADF);
    fails(files.stat(&ctx, w), Errno::BADF);
}

#[test]
fn positions_move_to_data_and_holes_and_never_out_of_range() {
    let (files, ctx) = setup().files();
    let fd = files.open(&ctx, "f", NEW, 0o644).unwrap();
    files.pwrite(&ctx, fd, b"x", 1 << 20).unwrap();
    let data = files.lseek(fd, Whence::Data(0)).unwrap();
    assert!(data > 0 && data <= 1 << 20);
    assert_eq!(files.lseek(fd, Whence::Hole(0)).unwrap(), 0);
    assert_eq!(
        files.lseek(fd, Whence::Hole(1 << 20)).unwrap(),
        (1 << 20) + 1
    );
    for to in [
        Whence::Data(-1),
        Whence::Hole(1 << 21),
        Whence::Data((1 << 20) + 1),
    ] {
        fails(files.lseek(fd, to), Errno::NXIO);
    }
    files.lseek(fd, Whence::Set(5)).unwrap();
    fails(files.lseek(fd, Whence::Current(-6)), Errno::INVAL);
    fails(files.lseek(fd, Whence::Set(-1)), Errno::INVAL);
    fails(files.lseek(fd, Whence::End(i64::MAX)), Errno::OVERFLOW);
    assert_eq!(
        files.lseek(fd, Whence::Current(0)).unwrap(),
        5,
        "a failure moves nothing"
    );
    assert_eq!(
        files.lseek(fd, Whence::Set(i64::MAX)).unwrap(),
        i64::MAX as u64
    );
    fails(files.write(&ctx, fd, b"x"), Errno::FBIG);
    fails(files.pread(fd, &mut [0], 1 << 63), Errno::INVAL);
    fails(files.pwrite(&ctx, fd, b"x", u64::MAX), Errno::INVAL);
}

#[test]
fn sizes_ranges_and_copies_reach_the_engine() {
    let (files, ctx) = setup().files();
    let fd = files.open(&ctx, "f", NEW | OpenFlags::SYNC, 0o644).unwrap();
    files.write(&ctx, fd, b"0123456789").unwrap();
    files.ftruncate(&ctx, fd, 6).unwrap();
    fails(files.ftruncate(&ctx, fd, 1 << 63), Errno::INVAL);
    assert_eq!(files.copy_file_range(&ctx, (fd, 0), (fd, 6), 3).unwrap(), 3);
    files.fallocate(&ctx, fd, Fallocate::Punch, 2, 2).unwrap();
    assert_eq!(contents(&files, fd), b"01\0\x0045012");
    files
        .fallocate(&ctx, fd, Fallocate::Allocate { keep_size: false }, 0, 12)
        .unwrap();
    assert_eq!(files.stat(&ctx, fd).unwrap().size, 12);
    let allocate = Fallocate::Allocate { keep_size: false };
    fails(files.fallocate(&ctx, fd, allocate, 0, 0), Errno::INVAL);
    fails(
        files.fallocate(&ctx, fd, allocate, u64::MAX, 1),
        Errno::FBIG,
    );
    files.fsync(fd).unwrap();
    files.fdatasync(fd).unwrap();
    files.vfs().syncfs().unwrap();
    let again = files
        .open(&ctx, "f", WRITE | OpenFlags::TRUNC | OpenFlags::DSYNC, 0)
        .unwrap();
    assert_eq!(files.stat(&ctx, again).unwrap().size, 0);
    files.write(&ctx, again, b"x").unwrap();
}

#[test]
fn a_removed_file_lives_until_its_last_descriptor_is_closed() {
    let (files, ctx) = setup().files();
    let before = files.statfs().files;
    let fd = files.open(&ctx, "f", NEW, 0o644).unwrap();
    files.write(&ctx, fd, b"still").unwrap();
    files.unlink(&ctx, "f").unwrap();
    assert_eq!(contents(&files, fd), b"still");
    assert_eq!(files.stat(&ctx, fd).unwrap().nlink, 0);
    files.close(fd).unwrap();
    assert_eq!(files.statfs().files, before);
}

#[test]
fn directories_are_listed_in_pieces_and_from_where_the_position_is() {
    let (files, ctx) = setup().files();
    for at in 0..20 {
        files.mkdir(&ctx, format!("d{at}").as_str(), 0o755).unwrap();
    }
    let fd = files
        .open(&ctx, "/", READ | OpenFlags::DIRECTORY, 0)
        .unwrap();
    let piece = |most: usize| {
        let mut names = Vec::new();
        let emit = |entry: vfs::DirEntry<'_>| {
            names.len() < most && {
                names.push((entry.name.to_vec(), entry.cookie));
                true
            }
        };
        files.readdir(fd, emit).unwrap();
        names
    };
    let all = piece(100);
    assert_eq!(all.len(), 22);
    assert!(piece(100).is_empty());
    files.lseek(fd, Whence::Set(0)).unwrap();
    let pieces: Vec<_> = std::iter::repeat_with(|| piece(3))
        .take(8)
        .flatten()
        .collect();
    assert_eq!(pieces, all);
    files.lseek(fd, Whence::Set(all[10].1 as i64)).unwrap();
    assert_eq!(piece(100), all[11..]);
    fails(files.lseek(fd, Whence::End(0)), Errno::INVAL);
}

#[test]
fn a_full_table_refuses_and_leaves_nothing_behind() {
    let s = setup();
    let files = Files::new(s.vfs.clone(), 20);
    let ctx = Context::new(&s.vfs, Cred::root());
    let fds: Vec<Fd> = (0..20)
        .map(|_| files.open(&ctx, "/", READ, 0).unwrap())
        .collect();
    fails(files.open(&ctx, "new", NEW, 0o644), Errno::MFILE);
    fails(files.dup(fds[0]), Errno::MFILE);
    fails(files.stat(&ctx, "new"), Errno::NOENT);
    files.close(fds[7]).unwrap();
    files.open(&ctx, "new", NEW, 0o644).unwrap();
    // An open that fails gives its place back.
    files.close(fds[8]).unwrap();
    for _ in 0..30 {
        fails(files.open(&ctx, "none", READ, 0), Errno::NOENT);
    }
    files.open(&ctx, "new", READ, 0).unwrap();
}

#[test]
fn threads_open_and_close_without_mixing_up_each_others_files() {
    let (files, ctx) = setup().files();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (files, ctx) = (&files, ctx.clone());
            scope.spawn(move || {
                let name = format!("f{thread}");
                for round in 0..500u16 {
                    let fd = files.open(&ctx, name.as_str(), NEW, 0o644).unwrap();
                    files.pwrite(&ctx, fd, &[thread, round as u8], 0).unwrap();
                    assert_eq!(contents(files, fd), [thread, round as u8]);
                    files.close(fd).unwrap();
                }
            });
        }
    });
}

#[test]
fn closing_the_table_closes_all_files() {
    let s = setup();
    let ctx = Context::new(&s.vfs, Cred::root());
    let files = Files::new(s.vfs.clone(), 100);
    let before = s.vfs.statfs().files;
    for name in ["a", "b"] {
        files.open(&ctx, name, NEW, 0o644).unwrap();
        files.unlink(&ctx, name).unwrap();
    }
    drop(files);
    assert_eq!(s.vfs.statfs().files, before);
}

#[test]
fn reading_without_a_trace_leaves_the_access_time() {
    let s = setup_with(Atime::Strict, false);
    let (files, ctx) = s.files();
    let fd = files
        .open(&ctx, "f", NEW | OpenFlags::NOATIME, 0o644)
        .unwrap();
    let other = files.open(&ctx, "f", READ, 0).unwrap();
    let atime = || files.stat(&ctx, fd).unwrap().atime;
    let before = atime();
    s.clock.advance(5);
    files.read(fd, &mut [0]).unwrap();
    assert_eq!(atime(), before);
    files.read(other, &mut [0]).unwrap();
    assert_eq!(atime().0, before.0 + 5);
}

#[test]
fn listing_and_copying_without_a_trace_leave_the_access_time() {
    let s = setup_with(Atime::Strict, false);
    let (files, ctx) = s.files();
    files.mkdir(&ctx, "d", 0o755).unwrap();
    let target = files.open(&ctx, "target", NEW, 0o644).unwrap();
    let file = files.open(&ctx, "f", NEW, 0o644).unwrap();
    files.write(&ctx, file, b"text").unwrap();
    let atime = |path: &str| files.stat(&ctx, path).unwrap().atime.0;
    for (more, noted) in [(OpenFlags::NOATIME, false), (OpenFlags::empty(), true)] {
        let dir = files.open(&ctx, "d", READ | more, 0).unwrap();
        let file = files.open(&ctx, "f", READ | more, 0).unwrap();
        let before = [atime("d"), atime("f")];
        s.clock.advance(5);
        files.readdir(dir, |_| true).unwrap();
        let copied = files.copy_file_range(&ctx, (file, 0), (target, 0), 4);
        assert_eq!(copied.unwrap(), 4);
        assert_eq!(atime("d") != before[0], noted);
        assert_eq!(atime("f") != before[1], noted);
        let before = atime("f");
        s.clock.advance(5);
        assert_eq!(
            files.copy_file_range(&ctx, (file, 0), (target, 0), 0),
            Ok(0)
        );
        assert_eq!(atime("f"), before, "nothing was read");
    }
}

#[test]
fn a_table_outlives_the_threads_context_and_serves_several_users() {
    let (files, root) = setup().files();
    files.chmod(&root, "/", 0o777).unwrap();
    let me = root.for_cred(user(OWNER));
    let fd = files.open(&me, "f", NEW, 0o6755).unwrap();
    files.write(&root, fd, b"x").unwrap();
    assert_eq!(files.stat(&root, fd).unwrap().perm, 0o6755);
    files.write(&me, fd, b"x").unwrap();
    assert_eq!(
        files.stat(&root, fd).unwrap().perm,
        0o755,
        "it matters who writes"
    );
}

#[test]
fn the_system_clock_is_the_default() {
    let model = Model::on(Arc::new(SystemClock));
    let vfs = Vfs::new(model, VfsOptions::default());
    let now = vfs.now().secs();
    let real = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!((real.as_secs() as i64 - now).abs() <= 1);
}

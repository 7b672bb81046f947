//! Image files and block devices: opening, locks, full hosts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use block::{Buffer, Op, OpenError, OpenOptions, Wave};
use rustix::io::Errno;
use testing::{Loop, run};

use crate::common::{image, sectors, ways};

#[test]
fn what_is_written_is_in_the_file() {
    for way in ways() {
        let file = image(1 << 20);
        let disk = way.open(file.path()).expect("open");
        let mut wave = Wave::new();
        wave.write(512, sectors(&[1, 2, 3]));
        wave.write(65536, sectors(&[4]));
        disk.commit(wave).expect("no fault");
        let read = |at| {
            let mut byte = [0];
            file.as_file().read_exact_at(&mut byte, at).expect("read");
            byte[0]
        };
        let bytes = [0, 512, 1024, 1536, 2048, 65536, 66048].map(read);
        assert_eq!(bytes, [0, 1, 2, 3, 0, 4, 0], "{}", disk.info().how);
        assert_eq!(disk.len(), 1 << 20);
    }
}

#[test]
fn how_io_is_done_is_told() {
    let file = image(4096);
    let how = |ring, direct| {
        let options = OpenOptions {
            ring,
            direct,
            threads: 2,
            ..OpenOptions::default()
        };
        options.open(file.path()).expect("open").info().how.clone()
    };
    assert_eq!(
        how(false, false),
        "buffered, 2 threads (io_uring: not asked for)"
    );
    assert!(how(true, false).starts_with("buffered, "));
}

#[test]
fn one_process_writes_or_several_read() {
    let file = image(4096);
    let write = || OpenOptions::default().open(file.path());
    let read = || {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        options.open(file.path())
    };
    let writer = write().expect("the first");
    assert!(matches!(write(), Err(OpenError::InUse { .. })));
    assert!(matches!(read(), Err(OpenError::InUse { .. })));
    let identity = writer.info().identity;
    drop(writer);
    let readers = [read().expect("a reader"), read().expect("another")];
    assert!(
        readers
            .iter()
            .all(|reader| reader.info().identity == identity)
    );
    assert!(matches!(write(), Err(OpenError::InUse { .. })));
    assert!(readers[0].read(0, vec![Buffer::zeroed(512)]).is_ok());
    let refused = readers[0].write(0, vec![Buffer::zeroed(512)]);
    assert_eq!(refused.expect_err("for reading only").errno, Errno::BADF);
}

#[test]
fn what_is_no_device_is_refused_with_a_reason() {
    let open = |path: &Path| {
        let opened = OpenOptions::default().open(path);
        opened.map(drop).expect_err("it is none").to_string()
    };
    assert!(open(Path::new("/dev/null")).ends_with("not an image file or a block device"));
    assert!(open(Path::new("/")).ends_with("not an image file or a block device"));
    assert!(open(Path::new("/no such file")).contains("looking at it failed"));
    assert!(open(image(511).path()).contains("only 511 bytes"));
}

/// A small tmpfs; unmounted when dropped.
struct SmallTmpfs(tempfile::TempDir);

impl SmallTmpfs {
    fn mount(size: u64) -> SmallTmpfs {
        let directory = tempfile::tempdir().expect("a directory");
        let size = format!("size={size}");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(directory.path()));
        SmallTmpfs(directory)
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0.path()));
    }
}

#[test]
fn a_full_host_refuses_to_allocate_and_fails_writes() {
    testing::needs_root!();
    for way in ways() {
        let tmpfs = SmallTmpfs::mount(1 << 20);
        let path = tmpfs.0.path().join("image");
        File::create(&path)
            .and_then(|file| file.set_len(16 << 20))
            .expect("a sparse file");
        let disk = way.open(&path).expect("open");
        disk.allocate(0, 512 << 10)
            .expect("there is room for half of it");
        let refused = disk.allocate(0, 8 << 20).expect_err("there is not for all");
        assert_eq!(
            (refused.errno, refused.action.op),
            (Errno::NOSPC, Op::Allocate)
        );
        assert_eq!(disk.poisoned(), None);
        disk.write(0, vec![Buffer::zeroed(512 << 10)])
            .expect("what is allocated");
        // So long that it is cut short by the host, then refused.
        let failed = disk
            .write(0, vec![Buffer::zeroed(8 << 20)])
            .expect_err("no room");
        assert_eq!((failed.errno, failed.action.op), (Errno::NOSPC, Op::Write));
        assert_eq!(disk.flush().expect_err("poisoned"), failed);
        assert_eq!(disk.poisoned(), Some(failed));
    }
}

#[test]
fn a_host_that_cannot_zero_gets_zeros_written() {
    testing::needs_root!();
    for way in ways() {
        // A tmpfs has no call for it.
        let tmpfs = SmallTmpfs::mount(8 << 20);
        let path = tmpfs.0.path().join("image");
        File::create(&path)
            .and_then(|file| file.set_len(4 << 20))
            .expect("a sparse file");
        let disk = way.open(&path).expect("open");
        disk.write(0, vec![sectors(&[1; 6000])])
            .expect("there is room");
        disk.zero(512, 5998 * 512).expect("written");
        assert!(disk.stats().writes > 1);
        let read = disk
            .read(0, vec![Buffer::zeroed(6000 * 512)])
            .expect("no fault");
        let ones: Vec<usize> = (0..6000)
            .filter(|sector| read[0][sector * 512 + 9] == 1)
            .collect();
        assert_eq!((ones, disk.poisoned()), (vec![0, 5999], None));
    }
}

/// io_uring_setup(2), by its number on every architecture.
const IO_URING_SETUP: u32 = 425;

#[test]
fn where_rings_are_forbidden_threads_do_the_same() {
    let file = image(1 << 20);
    let path = file.path().to_owned();
    let forbidden = std::thread::spawn(move || {
        testing::raw::forbid_system_call(IO_URING_SETUP).expect("a filter");
        let disk = OpenOptions::default().open(&path).expect("open");
        let mut wave = Wave::new();
        (0..20).for_each(|i| wave.write(8192 * i, sectors(&[i as u8 + 1])));
        disk.commit(wave).expect("no fault");
        let read = disk
            .read(8192 * 7, vec![Buffer::zeroed(512)])
            .expect("no fault");
        assert_eq!(read[0][0], 8);
        disk.info().how.clone()
    });
    let how = forbidden.join().expect("no panic");
    assert!(
        how.contains("8 threads (io_uring: Operation not permitted"),
        "{how}"
    );
}

#[test]
fn a_block_device_is_written_zeroed_and_discarded() {
    testing::needs_root!();
    for way in ways() {
        let file = image(1 << 20);
        let attached = Loop::attach(file.path());
        let disk = way.open(attached.path()).expect("open");
        assert_eq!(disk.len(), 1 << 20);
        let mut wave = Wave::new();
        wave.write(4096, sectors(&[1; 24]));
        wave.write(65536, sectors(&[2; 8]));
        disk.commit(wave).expect("no fault");
        disk.allocate(0, 4096).expect("nothing to do");
        disk.zero(8192, 4096).expect("loop can");
        disk.discard(65536, 4096).expect("loop can");
        let read = disk
            .read(4096, vec![Buffer::zeroed(12288)])
            .expect("no fault");
        let bytes = [0, 4096, 8192].map(|at| read[0][at]);
        assert_eq!(bytes, [1, 0, 1], "{}", disk.info().how);
        let again = way.open(attached.path()).map(drop);
        assert!(matches!(again, Err(OpenError::InUse { .. })));
    }
}

#[test]
fn a_file_that_became_shorter_fails_a_read_of_what_is_gone() {
    for way in ways() {
        let file = image(1 << 20);
        let disk = way.open(file.path()).expect("open");
        file.as_file().set_len(4096).expect("shorter");
        let failed = disk
            .read(0, vec![Buffer::zeroed(8192)])
            .expect_err("it is gone");
        assert_eq!((failed.errno, failed.action.op), (Errno::IO, Op::Read));
        assert_eq!(disk.poisoned(), None);
    }
}

#[test]
fn holes_are_told_but_by_memory_that_is_reserved() {
    use rustix::fs::{FallocateFlags, fallocate};
    const LEN: u64 = 1 << 20;
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        testing::skip!("needs /dev/shm: the other half of what is compared");
    }
    for (dir, is_reserved, is_told) in [(memory, false, true), (memory, true, false)] {
        let file = tempfile::NamedTempFile::new_in(dir).expect("a file");
        file.as_file().set_len(LEN).expect("its length");
        if is_reserved {
            fallocate(file.as_file(), FallocateFlags::empty(), 0, LEN).expect("room");
        }
        let disk = OpenOptions::default().open(file.path()).expect("open");
        assert_eq!(disk.is_hole(4096, 4096), is_told, "reserved: {is_reserved}");
        disk.write(4096, vec![sectors(&[1; 8])]).expect("no fault");
        assert!(!disk.is_hole(4096, 4096));
    }
    // What a disk has reserved and not written is a hole, too, where the host tells any.
    let file = image(LEN);
    let is_told = |disk: &block::Disk| disk.is_hole(4096, 4096);
    let tells = is_told(&OpenOptions::default().open(file.path()).expect("open"));
    fallocate(file.as_file(), FallocateFlags::empty(), 0, LEN).expect("room");
    let disk = OpenOptions::default().open(file.path()).expect("open");
    assert_eq!(is_told(&disk), tells);
}

//! The kernel's cached pages beside what it does not see through them: direct I/O, and calls that
//! the file system answers while it lacks what is still cached.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{OFlags, SeekFrom};
use testing::raw::{fiemap, write_by_aio};

use crate::awkward::{Awkward, Stop};
use crate::common::{Mounted, model};

/// More than one page.
const LEN: usize = 640 << 10;

fn open(mount: &Mounted, name: &str, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let flags = flags.bits().cast_signed();
    let file = options.custom_flags(flags).open(mount.path(name));
    file.expect("open")
}

fn find(file: &File, what: SeekFrom) -> Option<u64> {
    match rustix::fs::seek(file, what) {
        Ok(offset) => Some(offset),
        Err(rustix::io::Errno::NXIO) => None,
        Err(errno) => panic!("{errno}"),
    }
}

#[test]
fn what_is_cached_during_an_asynchronous_direct_write_is_not_believed_after_it() {
    let stop = Stop::default();
    let mount = Mounted::of(Awkward {
        stop_write: stop.clone(),
        ..Awkward::new(model())
    });
    fs::write(mount.path("f"), vec![b'a'; LEN]).expect("write");
    let direct = open(&mount, "f", OFlags::DIRECT);
    let cached = open(&mount, "f", OFlags::empty());
    let mut read = vec![0; LEN];
    stop.arm();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_by_aio(&direct, b'b', LEN));
        stop.reached();
        // The write has not changed anything yet: what it replaces is cached.
        cached.read_exact_at(&mut read, 0).expect("read");
        assert!(read.iter().all(|byte| *byte == b'a'));
        stop.go_on();
        writer.join().expect("no panic").expect("write");
    });
    cached.read_exact_at(&mut read, 0).expect("read");
    let stale = read.iter().filter(|byte| **byte != b'b').count();
    assert_eq!(stale, 0, "stale bytes after the write is complete");
}

#[test]
fn data_that_the_kernel_keeps_with_write_back_is_no_hole() {
    let mount = Mounted::with(|options| options.writeback = true);
    let file = open(&mount, "f", OFlags::empty());
    file.write_all_at(&vec![1; 1 << 20], 0).expect("write");
    assert_eq!(find(&file, SeekFrom::Data(0)), Some(0));
    assert_eq!(find(&file, SeekFrom::Hole(0)), Some(1 << 20));
    // A copy by ranges of data, as cp makes it.
    file.set_len(3 << 20).expect("extend");
    file.write_all_at(&[2; 4096], 2 << 20).expect("write");
    for offset in [0, 1 << 19, 2 << 20] {
        assert_eq!(find(&file, SeekFrom::Data(offset)), Some(offset));
    }
    assert_eq!(find(&file, SeekFrom::Data(3 << 20)), None);
}

#[test]
fn the_kernel_has_no_fiemap_for_fuse() {
    let mount = Mounted::counted(|_| {});
    let file = open(&mount, "f", OFlags::empty());
    let mut refused = None;
    let requests = mount.requests(|| refused = fiemap(&file).err());
    let errno = refused.and_then(|error| error.raw_os_error());
    assert_eq!(errno, Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()));
    assert_eq!(requests, [], "nobody was asked");
}

//! Serving threads run where their client runs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testing::raw::MappedPage;

use crate::awkward::Awkward;
use crate::common::{Mounted, model};

/// Requests after which a client is followed, unless a pause comes in between.
const ENOUGH: u64 = 100;

const PAGE: u64 = 4096;

/// Programs that are started: more than the requests before a look.
const PROGRAMS: u8 = 100;

/// How often they are tried, since on a busy machine there are pauses.
const TRIES: usize = 1000;

/// The cores that this thread may use, one a byte pair.
fn cores() -> Vec<u8> {
    let set = sched_getaffinity(None).expect("affinity");
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
    cores.flat_map(|core| (core as u16).to_ne_bytes()).collect()
}

/// The cores that the serving thread may use.
fn of_server(mount: &Mounted) -> Vec<u8> {
    let mut cores = vec![0; 2 * CpuSet::MAX_CPU];
    let len = rustix::fs::getxattr(mount.root(), fuse::STATUS_XATTR, &mut cores[..]);
    cores.truncate(len.expect("status"));
    cores
}

/// A new file, each read and write of which is a request.
fn direct(mount: &Mounted) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(mount.path("file"))
        .expect("create")
}

/// A client that makes such requests is followed to each core.
fn is_followed(mount: &Mounted, request: impl Fn(u64)) {
    let (before, all) = (sched_getaffinity(None).expect("affinity"), cores());
    assert_eq!(of_server(mount), all);
    for core in all.chunks(2) {
        let mut one = CpuSet::new();
        one.set(u16::from_ne_bytes([core[0], core[1]]).into());
        sched_setaffinity(None, &one).expect("affinity");
        let follows = |_| {
            (0..ENOUGH).for_each(&request);
            of_server(mount) == core
        };
        assert!((0..TRIES).any(follows), "{core:?}");
    }
    sched_setaffinity(None, &before).expect("affinity");
}

#[test]
fn a_thread_serves_on_the_core_of_a_client_that_only_reads() {
    let mount = Mounted::telling(Arc::new(cores));
    let file = direct(&mount);
    file.write_all_at(&[0; PAGE as usize], 0).expect("write");
    is_followed(&mount, |_| {
        file.read_exact_at(&mut [0; PAGE as usize], 0)
            .expect("read");
    });
}

#[test]
fn a_thread_serves_on_its_clients_core_and_reads_ahead_on_any() {
    let mount = Mounted::telling(Arc::new(cores));
    let (file, all) = (direct(&mount), cores());
    is_followed(&mount, |_| {
        file.write_all_at(&[0; PAGE as usize], 0).expect("write");
    });
    let mut large = vec![0; 1 << 20];
    file.write_all_at(&large, 0).expect("write");
    file.read_exact_at(&mut large, 0).expect("read");
    assert_eq!(of_server(&mount), all);
}

/// When a program starts another one the kernel closes its files in `execve`, for which it may make
/// requests; and until that is over everybody waits who asks where the program runs.
#[test]
fn who_starts_programs_with_pages_mapped_is_not_waited_for() {
    let mount = Mounted::counted(|options| options.writeback = true);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true);
    let file = options.open(mount.path("file")).expect("create");
    file.set_len(PAGE).expect("extend");
    let mut page = MappedPage::of(&file, 0).expect("map");
    for program in 0..PROGRAMS {
        page.store(program);
        let status = Command::new("true").status().expect("start a program");
        assert!(status.success());
    }
}

/// Files of a reader: some that it reads, and some that it leaves for `execve` to close.
const READ: usize = 100;
const CLOSED: usize = 20;

/// How many readers there are, one after the other.
const READERS: u8 = 8;

/// Its reads are asked for and not waited for. The first thread of a process keeps its number in
/// `execve`, others do not: so it is no program of this one's threads.
const READER: &str = "
import mmap, os, sys
directory, read, closed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.chdir(directory)
write = [os.open(f'closed-{n}', os.O_RDWR) for n in range(closed)]
pages = [mmap.mmap(file, 4096) for file in write]
files = [os.open(f'read-{n}', os.O_RDONLY) for n in range(read)]
for page in pages:
    page[0] = 1
for file in files:
    os.posix_fadvise(file, 0, 4096, os.POSIX_FADV_WILLNEED)
os.execvp('true', ['true'])
";

/// While it closes the files in `execve`, for which requests are made, some of its reads may still
/// wait to be served. A thread that looked then where it runs would not come back.
#[test]
fn who_reads_ahead_and_starts_a_program_is_not_waited_for() {
    let slow = Awkward {
        slow_read: Duration::from_micros(500),
        ..Awkward::new(model())
    };
    let mount = Mounted::of_with(slow, |options| {
        (options.threads, options.writeback) = (Some(1), true);
    });
    for reader in 0..READERS {
        let dir = mount.path(&reader.to_string());
        fs::create_dir(&dir).expect("mkdir");
        for (name, files) in [("closed", CLOSED), ("read", READ)] {
            for n in 0..files {
                fs::write(dir.join(format!("{name}-{n}")), [0; PAGE as usize]).expect("write");
            }
        }
        mount.unmounter().write_back();
        let status = Command::new("python3")
            .args(["-c", READER])
            .arg(&dir)
            .args([READ.to_string(), CLOSED.to_string()])
            .status();
        let Ok(status) = status else {
            testing::skip!("needs python3");
        };
        assert!(status.success());
    }
}

/// Programs that lie in the mount, and how many are started at once.
const COPIES: usize = 60;
const AT_ONCE: usize = 6;

#[test]
fn programs_that_lie_in_the_mount_are_started_while_they_are_read() {
    for threads in [None, Some(1)] {
        let mount = Mounted::with(|options| {
            (options.threads, options.writeback) = (threads, threads.is_some());
        });
        for n in 0..COPIES {
            let copied = Command::new("cp")
                .args(["-L", "/bin/cat"])
                .arg(mount.path(&n.to_string()))
                .status();
            assert!(copied.expect("start cp").success());
        }
        mount.unmounter().write_back();
        let (next, root) = (AtomicUsize::new(0), mount.root());
        let start = || {
            // Each by two at about the same time, which read all of them.
            while let n @ 0..COPIES = next.fetch_add(1, Ordering::Relaxed) / 2 {
                let status = Command::new(root.join(n.to_string()))
                    .args((0..COPIES).map(|of| root.join(of.to_string())))
                    .stdout(Stdio::null())
                    .status();
                assert!(status.expect("start a program").success());
            }
        };
        thread::scope(|scope| {
            (0..AT_ONCE).for_each(|_| drop(scope.spawn(start)));
        });
    }
}

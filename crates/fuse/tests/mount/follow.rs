//! Serving threads run where their client runs.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testing::raw::MappedPage;

use crate::common::Mounted;

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

#[test]
fn a_thread_serves_on_its_clients_core_and_reads_ahead_on_any() {
    let mount = Mounted::telling(Arc::new(cores));
    let (before, all) = (sched_getaffinity(None).expect("affinity"), cores());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(mount.path("file"))
        .expect("create");
    assert_eq!(of_server(&mount), all);
    for core in all.chunks(2) {
        let mut one = CpuSet::new();
        one.set(u16::from_ne_bytes([core[0], core[1]]).into());
        sched_setaffinity(None, &one).expect("affinity");
        let follows = |_| {
            (0..ENOUGH).for_each(|_| file.write_all_at(&[0; 4096], 0).expect("write"));
            of_server(&mount) == core
        };
        assert!((0..TRIES).any(follows), "{core:?}");
    }
    sched_setaffinity(None, &before).expect("affinity");
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

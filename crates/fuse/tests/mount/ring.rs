//! Requests by io_uring, with a queue for each core.
//!
//! The kernel offers it while a parameter of its module is set, which is root's to set and holds
//! for the whole machine. So one test sets it, starts this program again for all tests with that
//! transport, and puts it back. What is asserted of queues alone runs there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use fuse::{Request, Transport};
use rustix::fs::OFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testing::RingOffered;

use crate::awkward::{Awkward, Stop};
use crate::common::{Mounted, TRANSPORT, model, transport};

/// Clients of which each makes some files.
const CLIENTS: usize = 24;
const FILES: usize = 50;

/// Cores that are tried at least, there or not.
const CORES: usize = 4;

/// A client that waits for the medium, and how many do.
const SLOW: Duration = Duration::from_secs(1);
const SLOW_ONES: usize = 8;

/// Long enough for what takes no time.
const SOON: Duration = Duration::from_secs(60);

/// This program again, for tests whose names have `filter` in them.
fn this_program(filter: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.env(TRANSPORT, "ring").arg(filter);
    program
}

fn passes(program: &mut Command) {
    let output = program.output().expect("start");
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complaint}");
}

/// The cores of this thread, each alone.
fn cores() -> Vec<CpuSet> {
    let all = sched_getaffinity(None).expect("affinity");
    let one = |core| {
        let mut one = CpuSet::new();
        one.set(core);
        one
    };
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core));
    cores.map(one).collect()
}

fn run_on(core: &CpuSet) {
    sched_setaffinity(None, core).expect("affinity");
}

#[test]
fn all_tests_of_the_mount_pass_with_requests_by_io_uring() {
    if transport() == Transport::Ring {
        return;
    }
    testing::needs_root!();
    let Some(_offered) = RingOffered::set(true) else {
        testing::skip!("the kernel has no FUSE over io_uring");
    };
    passes(&mut this_program(""));
    thread::scope(|scope| {
        scope.spawn(|| {
            // The program inherits it.
            run_on(&cores()[0]);
            passes(&mut this_program("ring::"));
            passes(&mut this_program("semantics::"));
        });
    });
}

/// Tests of queues alone, which run in the program that is started again.
macro_rules! only_with_queues {
    () => {
        if transport() != Transport::Ring {
            return;
        }
    };
}

#[test]
fn a_mount_that_is_offered_no_queues_is_served_by_the_device() {
    if transport() == Transport::Ring {
        return;
    }
    testing::needs_root!();
    let _not_offered = RingOffered::set(false);
    let mount = Mounted::with(|options| options.transport = Transport::Ring);
    fs::write(mount.path("f"), b"x").expect("it is served");
    assert_eq!(mount.monitor().transport(), Some(Transport::Device));
}

#[test]
fn requests_come_by_queues_and_what_has_no_answer_by_the_device() {
    only_with_queues!();
    let mount = Mounted::with(|_| {});
    assert_eq!(mount.monitor().transport(), Some(Transport::Ring));
    for n in 0..FILES {
        fs::write(mount.path(&n.to_string()), b"x").expect("write");
        fs::remove_file(mount.path(&n.to_string())).expect("remove");
    }
    let start = Instant::now();
    while mount.monitor().count(Request::Forget) < FILES as u64 {
        assert!(start.elapsed() < SOON, "the kernel forgets what is gone");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A mount on which the next write stops, once that is armed.
fn stopping() -> (Mounted, Stop) {
    let fs = Awkward::new(model());
    let stop = fs.stop_write.clone();
    (Mounted::of(fs), stop)
}

#[test]
fn a_request_that_waits_holds_up_nobody_on_its_core() {
    let (mount, stop) = stopping();
    let path = |n: usize| mount.root().join(n.to_string());
    let names: Vec<_> = (0..FILES).map(path).collect();
    for core in cores() {
        let file = File::create(mount.path("waits")).expect("create");
        stop.arm();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                run_on(&core);
                file.write_all_at(b"x", 0).expect("write");
            });
            stop.reached();
            let other = scope.spawn(|| {
                run_on(&core);
                for name in &names {
                    fs::create_dir(name).expect("mkdir");
                    fs::remove_dir(name).expect("rmdir");
                }
            });
            other.join().expect("it is served meanwhile");
            assert!(!writer.is_finished());
            stop.go_on();
        });
    }
}

#[test]
fn requests_from_one_core_wait_for_the_medium_side_by_side() {
    let slow = Awkward {
        slow_read: SLOW,
        ..Awkward::new(model())
    };
    let mount = Mounted::of(slow);
    let direct = |n: usize| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let direct = options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        let file = direct.open(mount.path(&n.to_string())).expect("create");
        file.write_all_at(&[0; 4096], 0).expect("write");
        file
    };
    let files: Vec<File> = (0..SLOW_ONES).map(direct).collect();
    let core = cores().remove(0);
    let start = Instant::now();
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                run_on(&core);
                file.read_exact_at(&mut [0; 4096], 0).expect("read");
            });
        }
    });
    let one_by_one = SLOW * SLOW_ONES as u32;
    assert!(start.elapsed() < one_by_one / 2, "{:?}", start.elapsed());
}

/// A program of its own that writes to a file.
fn writer(mount: &Mounted) -> Child {
    let to = mount.path("written");
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo x > \"$0\""]).arg(to);
    shell.spawn().expect("start a shell")
}

#[test]
fn a_client_that_is_killed_is_answered_first_and_others_are_served() {
    let (mount, stop) = stopping();
    stop.arm();
    let mut killed = writer(&mount);
    stop.reached();
    killed.kill().expect("kill");
    fs::create_dir(mount.path("meanwhile")).expect("mkdir");
    assert!(
        killed.try_wait().expect("wait").is_none(),
        "it waits for the answer"
    );
    stop.go_on();
    let _ = killed.wait().expect("it ends");
    fs::create_dir(mount.path("afterwards")).expect("mkdir");
    assert_eq!(fs::metadata(mount.path("written")).expect("stat").len(), 2);
}

#[test]
fn many_clients_on_all_cores_are_served_at_once() {
    let mount = Mounted::with(|_| {});
    let (root, cores) = (mount.root(), cores());
    let work = |client: usize| {
        let dir = root.join(client.to_string());
        fs::create_dir(&dir).expect("mkdir");
        for n in 0..FILES {
            // From core to core.
            run_on(&cores[(client + n) % cores.len()]);
            let (path, contents) = (dir.join(n.to_string()), vec![client as u8; 10_000]);
            fs::write(&path, &contents).expect("write");
            assert!(fs::read(&path).expect("read") == contents);
        }
        assert_eq!(fs::read_dir(&dir).expect("list").count(), FILES);
    };
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || work(client));
        }
    });
}

#[test]
fn a_client_on_a_core_that_the_server_may_not_use_is_served() {
    let mount = Mounted::with(|_| {});
    let path = mount.path("f");
    for core in 0..thread::available_parallelism()
        .map_or(1, |n| n.get())
        .max(CORES)
    {
        let mut one = CpuSet::new();
        one.set(core);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Where it may not run, or there is no such core, it runs elsewhere.
                let _ = sched_setaffinity(None, &one);
                fs::write(&path, [0; 100]).expect("write");
                assert_eq!(fs::metadata(&path).expect("stat").len(), 100);
            });
        });
    }
}

#[test]
fn a_mount_that_is_detached_ends_after_the_request_in_flight() {
    let (mut mount, stop) = stopping();
    let file = File::create(mount.path("f")).expect("create");
    stop.arm();
    thread::scope(|scope| {
        let writer = scope.spawn(move || file.write_all_at(b"x", 0));
        stop.reached();
        let root = mount.root().to_owned();
        fuse::unmount(&root, false).expect_err("it is in use");
        fuse::unmount(&root, true).expect("detach");
        stop.go_on();
        writer.join().expect("no panic").expect("write");
        mount.wait().expect("a clean end");
    });
}

#[test]
fn a_connection_that_is_cut_ends_all_that_waits() {
    testing::needs_root!();
    let (mut mount, stop) = stopping();
    let file = File::create(mount.path("f")).expect("create");
    let device = rustix::fs::minor(fs::metadata(mount.root()).expect("stat").dev());
    let control = tempfile::tempdir().expect("a directory");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", control.path(), "fusectl", flags, None).expect("fusectl");
    stop.arm();
    let writer = thread::spawn(move || file.write_all_at(b"x", 0));
    stop.reached();
    let aborted = fs::write(control.path().join(format!("{device}/abort")), "1");
    rustix::mount::unmount(control.path(), rustix::mount::UnmountFlags::DETACH).expect("unmount");
    aborted.expect("abort");
    let cut: io::Result<()> = writer.join().expect("no panic");
    cut.expect_err("nobody answers");
    stop.go_on();
    fuse::unmount(mount.root(), true).expect("detach");
    mount.wait().expect("nothing is served any more");
}

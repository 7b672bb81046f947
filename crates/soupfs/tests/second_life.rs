//! Three lives: a mount is killed, the next one works on what is visible, and a power cut takes
//! back what was not durable (M15). Domain `line`, where nobody knows which lines those are.

#[allow(dead_code, reason = "it mounts in ways of its own")]
mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use common::reclaimed;
use parking_lot::Mutex;
use pmem::{Domain, LINE, Options, Pool, Recorder, StoreKind};
use soupfs::audit::Class;
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::{FormatOptions, MountOptions, Node, SoupFs, format};
use vfs::{FileSystem, Fsync, ManualClock, NewKind, NewNode, Place, RenameMode, Time};

const L: usize = LINE as usize;
/// Every so many events of the first life it is killed.
const STEP: usize = 9;

/// What everybody sees, and what a power cut leaves at least.
#[derive(Clone)]
struct Image {
    visible: Vec<u8>,
    durable: Vec<u8>,
}

struct State {
    image: Image,
    /// Lines as they were when a thread flushed them, until its next fence.
    flushed: HashMap<(ThreadId, usize), [u8; L]>,
    /// Events until what is there is kept.
    left: Option<usize>,
    events: usize,
    kept: Option<Image>,
}

/// A medium of domain `line`.
struct Medium(Mutex<State>);

impl Medium {
    fn new(image: Image) -> Arc<Medium> {
        Arc::new(Medium(Mutex::new(State {
            image,
            flushed: HashMap::new(),
            left: None,
            events: 0,
            kept: None,
        })))
    }

    fn pool(self: &Arc<Medium>) -> Arc<Pool> {
        let visible = self.0.lock().image.visible.clone();
        memory(&visible, Some(self.clone()))
    }

    /// What a kill leaves now.
    fn image(&self) -> Image {
        self.0.lock().image.clone()
    }

    fn event(&self, change: impl FnOnce(&mut State)) {
        let state = &mut *self.0.lock();
        change(state);
        state.events += 1;
        if let Some(left) = &mut state.left {
            *left -= 1;
            if *left == 0 {
                state.left = None;
                state.kept = Some(state.image.clone());
            }
        }
    }
}

impl Recorder for Medium {
    fn store(&self, off: u64, bytes: &[u8], _: StoreKind) {
        let at = off as usize;
        self.event(|s| s.image.visible[at..at + bytes.len()].copy_from_slice(bytes));
    }

    fn flush(&self, off: u64, len: u64) {
        let by = std::thread::current().id();
        self.event(|s| {
            for line in (off / LINE) as usize..(off + len).div_ceil(LINE) as usize {
                let mut bytes = [0; L];
                bytes.copy_from_slice(&s.image.visible[line * L..][..L]);
                s.flushed.insert((by, line), bytes);
            }
        });
    }

    fn fence(&self) {
        let by = std::thread::current().id();
        self.event(|s| {
            let durable = &mut s.image.durable;
            s.flushed.retain(|&(thread, line), bytes| {
                if thread == by {
                    durable[line * L..][..L].copy_from_slice(bytes);
                }
                thread != by
            });
        });
    }

    fn mark(&self, _: &str) {}
}

fn mkfs(pool: &Arc<Pool>) {
    let options = FormatOptions {
        uuid: [7; 16],
        label: "lives".into(),
        hash_key: [9; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    format(pool, &options).expect("format");
}

/// An empty image, durable.
fn formatted(len: u64) -> Image {
    let pool = Arc::new(Pool::anonymous(len, &Options::default()).expect("memory"));
    mkfs(&pool);
    let bytes = pool.snapshot();
    Image {
        visible: bytes.clone(),
        durable: bytes,
    }
}

fn memory(bytes: &[u8], recorder: Option<Arc<dyn Recorder>>) -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Line),
        recorder,
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

fn options(time: i64) -> MountOptions {
    MountOptions {
        bound: Duration::from_secs(3600),
        ..MountOptions::new(Arc::new(ManualClock::new(Time(time))))
    }
}

fn mount(pool: &Arc<Pool>, time: i64) -> SoupFs {
    let manual = MountOptions {
        manual: true,
        ..options(time)
    };
    SoupFs::mount(pool.clone(), manual).expect("mount")
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn create(fs: &SoupFs, dir: &Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), &new(NewKind::File))
        .expect("create")
}

/// What the auditor objects to; of an image that says that it is clean, leaks as well.
fn flaws(bytes: &[u8]) -> Vec<String> {
    let options = CheckOptions {
        repair: false,
        threads: 1,
    };
    let report = check(&memory(bytes, None), &options, &|_| ()).expect("check");
    let bad =
        |f: &&soupfs::audit::Finding| f.problem.class() == Class::Violation || report.was_clean;
    report
        .left
        .iter()
        .filter(bad)
        .map(|f| f.to_string())
        .collect()
}

/// Some files that are durable, then this work, killed after `events` of its events; without them
/// at its end. How many events it has, and what the kill leaves.
fn first_life(events: Option<usize>, work: &dyn Fn(&SoupFs)) -> (usize, Image) {
    let medium = Medium::new(formatted(1 << 20));
    let pool = medium.pool();
    let fs = mount(&pool, 1000);
    for i in 0..15 {
        create(&fs, &fs.root(), &format!("old{i}"));
    }
    fs.syncfs().expect("syncfs");
    {
        let mut state = medium.0.lock();
        (state.events, state.left) = (0, events);
    }
    work(&fs);
    let (events, kept) = {
        let mut state = medium.0.lock();
        (state.events, state.kept.take())
    };
    let left = kept.unwrap_or_else(|| medium.image());
    drop(fs); // the medium no longer matters
    (events, left)
}

/// How the second life goes on.
#[derive(Debug, Clone, Copy)]
enum Then {
    Fsync,
    ReclaimAndFsync,
    ReclaimAndUnmount,
    Fsck,
}

/// Kill the work everywhere, go on, and cut the power: the image is sound, and what was synced is
/// there.
fn kill_and_cut(work: &dyn Fn(&SoupFs)) {
    let (events, _) = first_life(None, work);
    let ways = [
        Then::Fsync,
        Then::ReclaimAndFsync,
        Then::ReclaimAndUnmount,
        Then::Fsck,
    ];
    for (i, killed) in (1..=events).step_by(STEP).enumerate() {
        let (_, left) = first_life(Some(killed), work);
        assert_eq!(flaws(&left.visible), [""; 0], "killed after {killed}");
        assert_eq!(flaws(&left.durable), [""; 0], "power cut after {killed}");
        let then = ways[i % ways.len()];
        let cut = second_life(left, then);
        assert_eq!(
            flaws(&cut),
            [""; 0],
            "killed after {killed} of {events}, {then:?}"
        );
        if !matches!(then, Then::Fsck) {
            let fs = mount(&memory(&cut, None), 3000);
            let file = fs.lookup(&fs.root(), b"second").expect("it was synced");
            let mut bytes = [0; 200];
            assert_eq!(fs.read(&file, 0, &mut bytes).expect("read"), 100);
            assert_eq!(bytes[..100], [0x5a; 100], "killed after {killed}, {then:?}");
        }
    }
}

/// What a power cut at the end of the second life leaves.
fn second_life(left: Image, then: Then) -> Vec<u8> {
    let medium = Medium::new(left);
    let pool = medium.pool();
    if let Then::Fsck = then {
        let options = CheckOptions {
            repair: true,
            threads: 1,
        };
        let report = check(&pool, &options, &|_| ()).expect("fsck");
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "{report}");
        return medium.image().durable;
    }
    let fs = match then {
        Then::Fsync | Then::Fsck => mount(&pool, 2000),
        Then::ReclaimAndFsync | Then::ReclaimAndUnmount => {
            let fs = SoupFs::mount(pool.clone(), options(2000)).expect("mount");
            reclaimed(&fs);
            fs
        }
    };
    let root = fs.root();
    let file = create(&fs, &root, "second");
    fs.write(&file, 0, &[0x5a; 100]).expect("write");
    fs.fsync(&file, Fsync::All).expect("fsync");
    drop((file, root));
    if let Then::ReclaimAndUnmount = then {
        fs.unmount().expect("unmount");
        assert!(soupfs::inspect(&pool).expect("an image").clean);
    }
    let cut = medium.image().durable;
    drop(fs);
    cut
}

#[test]
fn creates_killed_anywhere_leave_what_the_next_life_may_use() {
    kill_and_cut(&|fs| {
        for i in 0..60 {
            create(fs, &fs.root(), &format!("new{i}"));
        }
        fs.syncfs().expect("syncfs");
    });
}

#[test]
fn moves_and_removals_killed_anywhere_leave_what_the_next_life_may_use() {
    kill_and_cut(&|fs| {
        let root = fs.root();
        let dir = fs.create(&root, b"dir", &new(NewKind::Dir)).expect("mkdir");
        for i in 0..5 {
            let (old, replace) = (format!("old{i}"), RenameMode::Replace);
            fs.rename(
                Place::new(&root, old.as_bytes()),
                Place::new(&dir, b"moved"),
                replace,
                &|_| Ok(()),
            )
            .expect("rename");
        }
        fs.syncfs().expect("syncfs");
        for i in 5..12 {
            fs.unlink(&root, format!("old{i}").as_bytes(), &|_| Ok(()))
                .expect("unlink");
        }
        fs.syncfs().expect("syncfs");
        for i in 0..40 {
            create(fs, &root, &format!("newer{i}"));
        }
        fs.syncfs().expect("syncfs");
    });
}

/// What a mkfs that was killed left may be mounted, if it is an image at all: then it stays one.
#[test]
fn an_image_of_a_killed_mkfs_that_was_mounted_once_can_be_mounted_after_a_power_cut() {
    let zeros = vec![0; 1 << 20];
    let blank = Image {
        visible: zeros.clone(),
        durable: zeros,
    };
    let (mut killed, mut mounted) = (0, 0);
    loop {
        killed += 1;
        let medium = Medium::new(blank.clone());
        let pool = medium.pool();
        medium.0.lock().left = Some(killed);
        mkfs(&pool);
        let Some(left) = medium.0.lock().kept.take() else {
            break; // it ended before
        };
        if soupfs::inspect(&memory(&left.visible, None)).is_err() {
            continue;
        }
        mounted += 1;
        let cut = second_life(left, Then::Fsync);
        let fs = mount(&memory(&cut, None), 3000);
        let file = fs.lookup(&fs.root(), b"second");
        assert!(file.is_ok(), "killed after {killed}");
    }
    assert!(mounted > 2, "{mounted} of {killed}");
}

/// A file of these bytes, durable; then `change`, killed. In the next life `sync`, and a power cut:
/// it holds what the next life saw.
fn bytes_are_kept(change: impl Fn(&SoupFs, &Node), sync: impl Fn(&SoupFs, &Node)) {
    let len = 5 << 18; // of two leaves
    let medium = Medium::new(formatted(4 << 20));
    let fs = mount(&medium.pool(), 1000);
    let file = create(&fs, &fs.root(), "file");
    // The second leaf from block 512 on.
    fs.write(&file, 3 << 20, &vec![1; len]).expect("write");
    fs.write(&file, 0, &[1; 9000]).expect("write");
    fs.syncfs().expect("syncfs");
    change(&fs, &file);
    let left = medium.image();
    drop((file, fs));

    let read = |fs: &SoupFs| {
        let file = fs.lookup(&fs.root(), b"file").expect("it was synced");
        let mut bytes = vec![0; (3 << 20) + len];
        let n = fs.read(&file, 0, &mut bytes).expect("read");
        bytes.truncate(n);
        (file, bytes)
    };
    let medium = Medium::new(left);
    let fs = mount(&medium.pool(), 2000);
    let (file, seen) = read(&fs);
    sync(&fs, &file);
    let cut = medium.image().durable;
    drop((file, fs));
    let (_, found) = read(&mount(&memory(&cut, None), 3000));
    assert!(seen == found, "other bytes than the second life saw");
}

#[test]
fn what_a_dead_process_wrote_is_durable_after_a_sync_of_the_next() {
    let changes: [fn(&SoupFs, &Node); 7] = [
        |fs, file| assert_eq!(fs.write(file, 100, &[2; 5000]), Ok(5000)),
        |fs, file| assert_eq!(fs.write(file, 3 << 20, &[2; 70_000]), Ok(70_000)),
        // Shorter, so that what is cut off is zeroed when it grows; killed before either is
        // persisted.
        |fs, file| {
            let punch = vfs::Fallocate::Punch;
            fs.fallocate(file, punch, 50, 1000).expect("punch");
        },
        // Written again beside the batch that has it.
        |fs, file| {
            fs.write(file, 20_000, &[2; 100]).expect("write");
            fs.fsync(file, Fsync::All).expect("fsync");
            fs.write(file, 20_000, &[3; 100]).expect("write");
        },
        |fs, file| {
            fs.write(file, 0, &[2; 100]).expect("write");
            fs.syncfs().expect("syncfs");
            fs.write(file, 4096, &[3; 100]).expect("write");
        },
        // Made to read as zeros, and written to before that is persisted: the index still says that
        // the block was written, so what is stored there is visible.
        |fs, file| {
            let zero = vfs::Fallocate::Zero { keep_size: true };
            fs.fallocate(file, zero, 0, 8192).expect("zero");
            fs.write(file, 100, &[2; 100]).expect("write");
        },
        // The same, of a block that a batch maps and the next one is to void.
        |fs, file| {
            let zero = vfs::Fallocate::Zero { keep_size: true };
            fs.write(file, 1 << 20, &[2; 4096]).expect("write");
            fs.fsync(file, Fsync::All).expect("fsync");
            fs.fallocate(file, zero, 1 << 20, 4096).expect("zero");
            fs.write(file, (1 << 20) + 50, &[3; 100]).expect("write");
        },
    ];
    let syncs: [fn(&SoupFs, &Node); 4] = [
        |fs, file| fs.fsync(file, Fsync::All).expect("fsync"),
        |fs, file| fs.fsync(file, Fsync::Data).expect("fsync"),
        |fs, _| fs.syncfs().expect("syncfs"),
        |fs, _| fs.unmount().expect("unmount"),
    ];
    for change in changes {
        for sync in syncs {
            bytes_are_kept(change, sync);
        }
    }
}

/// A file that nothing was written to in place costs nothing: an fsync flushes as many lines as it
/// did.
#[test]
fn a_file_that_is_durable_is_not_flushed_again_after_a_kill() {
    let medium = Medium::new(formatted(4 << 20));
    let fs = mount(&medium.pool(), 1000);
    let file = create(&fs, &fs.root(), "file");
    fs.write(&file, 0, &vec![1; 1 << 20]).expect("write");
    fs.write(&file, 0, &[2; 100]).expect("write");
    fs.fsync(&file, Fsync::All).expect("fsync");
    let left = medium.image();
    drop((file, fs));
    let pool = memory(&left.visible, None);
    let fs = mount(&pool, 2000);
    let file = fs.lookup(&fs.root(), b"file").expect("lookup");
    let before = pool.stats().flushed_lines;
    fs.fsync(&file, Fsync::All).expect("fsync");
    let flushed = pool.stats().flushed_lines - before;
    assert!(flushed < 10, "{flushed} lines");
}

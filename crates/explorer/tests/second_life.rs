//! Three lives: a mount is killed, the next one works on what is visible, and a power cut takes
//! back what was not durable (M15). Domain `line`, where nobody knows which lines those are.

use explorer::image::Image;
use explorer::image::Overlay;
use explorer::medium::{Lines, Medium};
use explorer::scratch::{Scratch, pool_of};
use explorer::trace::{Event, Trace};
use pmem::{Domain, Pool};
use soupfs::audit::Class;
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::{FormatOptions, MountOptions, Node, SoupFs, format};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{FileSystem, Fsync, ManualClock, NewKind, NewNode, Place, RenameMode, Time};

/// Every so many events of the first life it is killed.
const STEP: usize = 9;
/// Longer than any search for leaks here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a life leaves.
struct Left {
    medium: Lines,
    /// What a power cut leaves at least.
    durable: Image,
}

impl Left {
    /// All of an image is durable.
    fn durably(image: Image) -> Left {
        Left {
            medium: Lines::new(Domain::Line, 0),
            durable: image,
        }
    }

    /// What the next life sees.
    fn visible(&self) -> Image {
        self.durable.with(&self.medium.visible())
    }

    /// What a further life leaves that is killed behind these events.
    fn and(&self, events: &[Event]) -> Left {
        let mut medium = self.medium.clone();
        let mut scratch = Scratch::new(self.durable.clone());
        for event in events {
            medium.apply(event, &mut scratch);
        }
        medium.kill(&mut scratch);
        Left {
            medium,
            durable: scratch.image(&Overlay::new()),
        }
    }
}

/// A life on what was left: its memory, and what it does to it.
fn life(left: &Left) -> (Arc<Pool>, Arc<Trace>) {
    let trace = Trace::new(&[]);
    let pool = pool_of(&left.visible(), Domain::Line, Some(trace.clone()));
    (Arc::new(pool), trace)
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

/// An empty image.
fn formatted(len: u64) -> Image {
    let (pool, trace) = life(&Left::durably(Image::zeros(len)));
    mkfs(&pool);
    let left = Left::durably(Image::zeros(len)).and(&trace.take().0);
    left.visible()
}

fn memory(image: &Image) -> Arc<Pool> {
    Arc::new(pool_of(image, Domain::Line, None))
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
fn flaws(image: &Image) -> Vec<String> {
    let options = CheckOptions {
        repair: false,
        threads: 1,
    };
    let report = check(&memory(image), &options, &|_| ()).expect("check");
    let bad =
        |f: &&soupfs::audit::Finding| f.problem.class() == Class::Violation || report.was_clean;
    report
        .left
        .iter()
        .filter(bad)
        .map(|f| f.to_string())
        .collect()
}

/// Some files that are durable, then this work: what it begins on, all that happens to it, and how
/// much of that comes before the work.
fn first_life(work: &dyn Fn(&SoupFs)) -> (Left, Vec<Event>, usize) {
    let start = Left::durably(formatted(1 << 20));
    let (pool, trace) = life(&start);
    let fs = mount(&pool, 1000);
    for i in 0..15 {
        create(&fs, &fs.root(), &format!("old{i}"));
    }
    fs.syncfs().expect("syncfs");
    let before = trace.len();
    work(&fs);
    let events = trace.take().0;
    (start, events, before)
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
    let (start, events, before) = first_life(work);
    let ways = [
        Then::Fsync,
        Then::ReclaimAndFsync,
        Then::ReclaimAndUnmount,
        Then::Fsck,
    ];
    for (i, killed) in (before + 1..=events.len()).step_by(STEP).enumerate() {
        let left = start.and(&events[..killed]);
        assert_eq!(flaws(&left.visible()), [""; 0], "killed after {killed}");
        assert_eq!(flaws(&left.durable), [""; 0], "power cut after {killed}");
        let then = ways[i % ways.len()];
        let cut = second_life(&left, then);
        let of = events.len();
        assert_eq!(
            flaws(&cut),
            [""; 0],
            "killed after {killed} of {of}, {then:?}"
        );
        if !matches!(then, Then::Fsck) {
            let fs = mount(&memory(&cut), 3000);
            let file = fs.lookup(&fs.root(), b"second").expect("it was synced");
            let mut bytes = [0; 200];
            assert_eq!(fs.read(&file, 0, &mut bytes).expect("read"), 100);
            assert_eq!(bytes[..100], [0x5a; 100], "killed after {killed}, {then:?}");
        }
    }
}

/// What a power cut at the end of the second life leaves.
fn second_life(left: &Left, then: Then) -> Image {
    let (pool, trace) = life(left);
    if let Then::Fsck = then {
        let options = CheckOptions {
            repair: true,
            threads: 1,
        };
        let report = check(&pool, &options, &|_| ()).expect("fsck");
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "{report}");
        return left.and(&trace.take().0).durable;
    }
    let fs = match then {
        Then::Fsync | Then::Fsck => mount(&pool, 2000),
        Then::ReclaimAndFsync | Then::ReclaimAndUnmount => {
            let fs = SoupFs::mount(pool.clone(), options(2000)).expect("mount");
            let begun = Instant::now();
            while fs.status().reclaimed_lines.is_none() {
                assert!(
                    begun.elapsed() < PATIENCE,
                    "the search for leaks does not end"
                );
                std::thread::yield_now();
            }
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
    left.and(&trace.take().0).durable
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
    let blank = Left::durably(Image::zeros(1 << 20));
    let (pool, trace) = life(&blank);
    mkfs(&pool);
    let events = trace.take().0;
    let mut mounted = 0;
    for killed in 1..events.len() {
        let left = blank.and(&events[..killed]);
        if soupfs::inspect(&memory(&left.visible())).is_err() {
            continue;
        }
        mounted += 1;
        let cut = second_life(&left, Then::Fsync);
        let fs = mount(&memory(&cut), 3000);
        let file = fs.lookup(&fs.root(), b"second");
        assert!(file.is_ok(), "killed after {killed}");
    }
    assert!(mounted > 2, "{mounted} of {}", events.len());
}

/// A file of these bytes, durable; then `change`, killed. In the next life `sync`, and a power cut:
/// it holds what the next life saw.
fn bytes_are_kept(change: impl Fn(&SoupFs, &Node), sync: impl Fn(&SoupFs, &Node)) {
    let len = 5 << 18; // of two leaves
    let start = Left::durably(formatted(4 << 20));
    let (pool, trace) = life(&start);
    let fs = mount(&pool, 1000);
    let file = create(&fs, &fs.root(), "file");
    // The second leaf from block 512 on.
    fs.write(&file, 3 << 20, &vec![1; len]).expect("write");
    fs.write(&file, 0, &[1; 9000]).expect("write");
    fs.syncfs().expect("syncfs");
    change(&fs, &file);
    let left = start.and(&trace.take().0);
    drop((file, fs));

    let read = |fs: &SoupFs| {
        let file = fs.lookup(&fs.root(), b"file").expect("it was synced");
        let mut bytes = vec![0; (3 << 20) + len];
        let n = fs.read(&file, 0, &mut bytes).expect("read");
        bytes.truncate(n);
        (file, bytes)
    };
    let (pool, trace) = life(&left);
    let fs = mount(&pool, 2000);
    let (file, seen) = read(&fs);
    sync(&fs, &file);
    let cut = left.and(&trace.take().0).durable;
    drop((file, fs));
    let (_, found) = read(&mount(&memory(&cut), 3000));
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
    let start = Left::durably(formatted(4 << 20));
    let (pool, trace) = life(&start);
    let fs = mount(&pool, 1000);
    let file = create(&fs, &fs.root(), "file");
    fs.write(&file, 0, &vec![1; 1 << 20]).expect("write");
    fs.write(&file, 0, &[2; 100]).expect("write");
    fs.fsync(&file, Fsync::All).expect("fsync");
    let left = start.and(&trace.take().0);
    drop((file, fs));
    let pool = memory(&left.visible());
    let fs = mount(&pool, 2000);
    let file = fs.lookup(&fs.root(), b"file").expect("lookup");
    let before = pool.stats().flushed_lines;
    fs.fsync(&file, Fsync::All).expect("fsync");
    let flushed = pool.stats().flushed_lines - before;
    assert!(flushed < 10, "{flushed} lines");
}

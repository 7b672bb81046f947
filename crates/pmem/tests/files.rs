//! Pools on files: creating, opening, locking, space, syncs and their failures.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock, Weak};

use parking_lot::Mutex;
use pmem::{Domain, Kind, MediumError, Options, PAGE, Pool, PoolError, Syncer};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn sparse() -> Options {
    Options {
        sparse: true,
        ..Options::default()
    }
}

fn page() -> Options {
    Options {
        domain: Some(Domain::Page),
        ..Options::default()
    }
}

fn refused(result: Result<Pool, PoolError>) -> PoolError {
    result.map(|pool| pool.info()).expect_err("refused")
}

fn blocks(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).expect("metadata").blocks() * 512
}

/// A tmpfs of a given size.
struct SmallTmpfs(TempDir);

impl SmallTmpfs {
    /// `None`: this user or this machine may not mount one.
    fn mount(size: u64) -> Option<SmallTmpfs> {
        let dir = dir();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then(|| SmallTmpfs(dir))
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()),
            "cannot unmount the tmpfs"
        );
    }
}

#[test]
fn what_is_stored_is_there_after_reopening() {
    let dir = dir();
    let path = dir.path().join("image");
    let pool = Pool::create(&path, MIB - 5, &Options::default()).expect("create");
    assert_eq!(pool.len(), MIB);
    assert!(blocks(&path) >= MIB, "blocks are allocated up front");
    pool.write(5000, b"contents");
    pool.flush(5000, 8);
    pool.fence().expect("fence");
    drop(pool);

    let pool = Pool::open(&path, &Options::default()).expect("open");
    let mut found = [0; 8];
    pool.read(5000, &mut found);
    assert_eq!((&found, pool.len()), (b"contents", MIB));
    assert!(!pool.info().sparse);
}

#[test]
fn the_domain_follows_from_where_the_file_lies() {
    let dir = dir();
    let info = Pool::create(&dir.path().join("image"), PAGE, &Options::default())
        .expect("create")
        .info();
    match info.kind {
        Kind::File(_) => assert_eq!(info.domain, Domain::Page),
        Kind::MapSyncFile(_) => assert_eq!(info.domain, Domain::Line),
        Kind::Tmpfs => assert_eq!(info.domain, Domain::Cache),
        other => panic!("{other} in a temporary directory"),
    }
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        testing::skip!("needs /dev/shm");
    };
    let info = Pool::create(&dir.path().join("image"), PAGE, &Options::default())
        .expect("create")
        .info();
    assert_eq!((info.kind, info.domain), (Kind::Tmpfs, Domain::Cache));
}

#[test]
fn each_way_to_fail_opening_has_its_error_and_says_what_to_do() {
    let dir = dir();
    let path = dir.path().join("image");
    let missing = refused(Pool::open(&path, &Options::default()));
    assert!(matches!(missing, PoolError::NotFound { .. }), "{missing}");

    std::fs::write(&path, b"short").expect("write");
    let small = refused(Pool::open(&path, &Options::default()));
    assert!(
        matches!(
            small,
            PoolError::TooSmall {
                need: PAGE,
                have: 5,
                ..
            }
        ),
        "{small}"
    );
    let exists = refused(Pool::create(&path, PAGE, &Options::default()));
    assert!(matches!(exists, PoolError::Exists { .. }), "{exists}");
    assert_eq!(std::fs::read(&path).expect("read"), b"short");

    let directory = refused(Pool::open(
        dir.path(),
        &Options {
            read_only: true,
            ..Options::default()
        },
    ));
    assert!(
        matches!(directory, PoolError::Unsupported { .. }),
        "{directory}"
    );
    let device = refused(Pool::open(Path::new("/dev/zero"), &Options::default()));
    assert!(matches!(device, PoolError::Unsupported { .. }), "{device}");
    let device = refused(Pool::create(
        Path::new("/dev/zero"),
        PAGE,
        &Options::default(),
    ));
    assert!(matches!(device, PoolError::Unsupported { .. }), "{device}");
    let nowhere = refused(Pool::create(&path.join("x"), PAGE, &Options::default()));
    assert!(matches!(nowhere, PoolError::Io { .. }), "{nowhere}");
    let empty = refused(Pool::create(
        &dir.path().join("empty"),
        0,
        &Options::default(),
    ));
    assert!(matches!(empty, PoolError::TooSmall { .. }), "{empty}");
    let vast = refused(Pool::create(&dir.path().join("vast"), 1 << 62, &sparse()));
    assert!(matches!(vast, PoolError::Unsupported { .. }), "{vast}");
    let vast = refused(Pool::create(&dir.path().join("vast"), u64::MAX, &sparse()));
    assert!(matches!(vast, PoolError::NoSpace { .. }), "{vast}");
    assert!(!dir.path().join("vast").exists());
    for error in [missing, small, exists, directory, empty] {
        assert!(
            error
                .to_string()
                .starts_with(&dir.path().display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn a_pool_in_use_is_not_opened_again() {
    let dir = dir();
    let path = dir.path().join("image");
    let reader = Options {
        read_only: true,
        ..Options::default()
    };
    let unlocked = Options {
        exclusive: false,
        ..Options::default()
    };
    let pool = Pool::create(&path, PAGE, &Options::default()).expect("create");
    for options in [&Options::default(), &reader] {
        let in_use = refused(Pool::open(&path, options));
        let PoolError::InUse { pid, .. } = in_use else {
            panic!("{in_use}")
        };
        assert_eq!(pid, Some(std::process::id()), "{in_use}");
    }
    drop(Pool::open(&path, &unlocked).expect("who asks for no lock gets in"));
    drop(pool);
    let first = Pool::open(&path, &reader).expect("open");
    let second = Pool::open(&path, &reader).expect("readers share");
    assert!(matches!(
        refused(Pool::open(&path, &Options::default())),
        PoolError::InUse { .. }
    ));
    drop((first, second));
    drop(Pool::open(&path, &Options::default()).expect("open"));
}

/// What a child has between its creation and the start of its program.
fn copies_of_descriptors(path: &Path) -> Vec<OwnedFd> {
    let this = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let this = this.expect("a descriptor of this process");
    let copy = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        let same = std::fs::read_link(entry.path()).is_ok_and(|of| of == path);
        let flags = PidfdGetfdFlags::empty();
        same.then(|| rustix::process::pidfd_getfd(&this, number, flags).expect("a copy"))
    };
    let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    all.filter_map(copy).collect()
}

#[test]
fn the_lock_ends_with_the_pool_whoever_has_copies_of_its_descriptors() {
    for domain in [Domain::Cache, Domain::Page] {
        let dir = dir();
        let path = dir.path().join("image");
        let options = Options {
            domain: Some(domain),
            ..Options::default()
        };
        let pool = Pool::create(&path, PAGE, &options).expect("create");
        let copies = copies_of_descriptors(&path);
        assert!(!copies.is_empty());
        drop(pool);
        let again = Pool::open(&path, &options).map(drop);
        assert!(again.is_ok(), "{domain}: {again:?}");
    }
}

#[test]
fn a_huge_sparse_image_takes_blocks_only_where_it_is_backed() {
    let dir = dir();
    let path = dir.path().join("image");
    let len = 1 << 40;
    let pool = Pool::create(&path, len, &sparse()).expect("create");
    assert!(pool.info().sparse && blocks(&path) < MIB);
    let off = len - 10 * MIB;
    pool.back(off + 100, 3 * MIB).expect("space");
    let backed = blocks(&path);
    assert!((3 * MIB..20 * MIB).contains(&backed), "{backed}");
    pool.write(off + 100, &[1; 1000]);
    pool.back(off + 100, 3 * MIB).expect("space");
    assert_eq!(blocks(&path), backed);
    pool.unback(off + MIB, MIB);
    assert!(blocks(&path) < backed);
    pool.back(off + MIB, MIB).expect("space");
    assert!(blocks(&path) >= 3 * MIB);
    let mut kept = [0; 1000];
    pool.read(off + 100, &mut kept);
    assert_eq!(kept, [1; 1000]);
    drop(pool);
    assert!(
        Pool::open(&path, &Options::default())
            .expect("open")
            .info()
            .sparse
    );
}

#[test]
fn creating_on_a_full_file_system_says_so_and_leaves_nothing() {
    let Some(tmpfs) = SmallTmpfs::mount(4 * MIB) else {
        testing::skip!("needs root, to mount a small tmpfs");
    };
    let path = tmpfs.0.path().join("image");
    let full = refused(Pool::create(&path, 8 * MIB, &Options::default()));
    assert!(
        matches!(full, PoolError::NoSpace { need, free, .. } if need == 8 * MIB && free <= 4 * MIB)
    );
    assert!(!path.exists());
    drop(Pool::create(&path, 2 * MIB, &Options::default()).expect("create"));
}

#[test]
fn a_full_host_is_an_error_of_back_and_the_pool_goes_on() {
    let Some(tmpfs) = SmallTmpfs::mount(4 * MIB) else {
        testing::skip!("needs root, to mount a small tmpfs");
    };
    let pool = Pool::create(&tmpfs.0.path().join("image"), 64 * MIB, &sparse()).expect("create");
    // To the last page, though the last chunk fits only in part.
    let ballast = tmpfs.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; PAGE as usize]).expect("write");
    let backed = (0..64 * MIB).step_by(PAGE as usize).take_while(|&off| {
        let backed = pool.back(off, PAGE);
        if backed.is_ok() {
            pool.store(off, off + 1);
        }
        backed.is_ok()
    });
    let backed = backed.count() as u64 * PAGE;
    assert_eq!(backed, 4 * MIB - PAGE);
    let full = pool.back(backed, PAGE).expect_err("full");
    assert!(
        matches!(
            full,
            MediumError::HostFull {
                need: PAGE,
                free: 0,
                ..
            }
        ),
        "{full}"
    );
    assert!(
        full.to_string().contains("host file system is full"),
        "{full}"
    );
    assert_eq!(pool.poisoned(), None);
    pool.fence().expect("fence");

    std::fs::remove_file(&ballast).expect("remove");
    pool.back(backed, PAGE).expect("space again");
    pool.unback(0, MIB);
    pool.back(32 * MIB, MIB).expect("space given back");
    pool.store(32 * MIB, 1);
    assert_eq!(pool.load(2 * MIB), 2 * MIB + 1);
}

/// A disk whose syncs are slow: it takes the range when a sync starts, and has it at the end.
#[derive(Default)]
struct SlowDisk {
    pool: OnceLock<Weak<Pool>>,
    contents: Mutex<Vec<u8>>,
    running: AtomicBool,
    syncs: AtomicU64,
}

impl Syncer for SlowDisk {
    fn sync(&self, off: u64, len: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        assert!(
            !self.running.swap(true, Ordering::SeqCst),
            "two syncs at a time"
        );
        let mut taken = vec![0; len as usize];
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            pool.read(off, &mut taken);
        }
        // Others flush meanwhile.
        std::thread::yield_now();
        self.contents.lock()[off as usize..][..len as usize].copy_from_slice(&taken);
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.running.store(false, Ordering::SeqCst);
        medium()
    }
}

#[test]
fn each_of_concurrent_fences_returns_when_its_own_flushes_are_durable() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 200;
    let disk = Arc::new(SlowDisk::default());
    *disk.contents.lock() = vec![0; (THREADS * PAGE) as usize];
    let pool = Pool::anonymous(THREADS * PAGE, &page()).expect("memory");
    let pool = Arc::new(pool.with_syncer(disk.clone()));
    disk.pool.set(Arc::downgrade(&pool)).expect("set once");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, disk) = (&pool, &disk);
            scope.spawn(move || {
                for i in 1..=ROUNDS {
                    let off = thread * PAGE + i * 8;
                    pool.store(off, i);
                    pool.flush(off, 8);
                    pool.fence().expect("fence");
                    assert_eq!(
                        disk.contents.lock()[off as usize],
                        i as u8,
                        "thread {thread}"
                    );
                }
            });
        }
    });
    let (syncs, fences) = (pool.stats().syncs, pool.stats().fences);
    assert_eq!(
        (fences, syncs),
        (THREADS * ROUNDS, disk.syncs.load(Ordering::SeqCst))
    );
    assert!(syncs <= fences, "{syncs} syncs for {fences} fences");
}

#[test]
fn fences_of_what_was_flushed_before_all_of_them_share_one_sync() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 50;
    let pool = Pool::anonymous(THREADS * PAGE, &page()).expect("memory");
    let together = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, together) = (&pool, &together);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    pool.flush(thread * PAGE, 8);
                    together.wait();
                    pool.fence().expect("fence");
                    together.wait();
                }
            });
        }
    });
    let (syncs, fences) = (pool.stats().syncs, pool.stats().fences);
    assert_eq!((fences, syncs), (THREADS * ROUNDS, ROUNDS));
}

#[test]
fn a_fence_covers_what_another_thread_flushed_before() {
    let disk = Arc::new(SlowDisk::default());
    *disk.contents.lock() = vec![0; 16 * PAGE as usize];
    let pool = Pool::anonymous(16 * PAGE, &page()).expect("memory");
    let pool = Arc::new(pool.with_syncer(disk.clone()));
    disk.pool.set(Arc::downgrade(&pool)).expect("set once");
    for i in 1..=50 {
        std::thread::scope(|scope| {
            let flusher = scope.spawn(|| {
                pool.store(5 * PAGE, i);
                pool.flush(5 * PAGE, 8);
            });
            flusher.join().expect("flusher");
        });
        pool.fence().expect("fence");
        assert_eq!(disk.contents.lock()[5 * PAGE as usize], i as u8);
    }
}

#[test]
fn a_fence_with_nothing_gathered_syncs_nothing() {
    let pool = Pool::anonymous(PAGE, &page()).expect("memory");
    pool.store(0, 1);
    pool.fence().expect("fence");
    assert_eq!((pool.stats().fences, pool.stats().syncs), (1, 0));
    pool.flush(0, 8);
    pool.fence().expect("fence");
    pool.fence().expect("fence");
    assert_eq!(pool.stats().syncs, 1);
}

/// Fails the syncs from a given number on.
struct Failing {
    good: u64,
    syncs: AtomicU64,
}

impl Syncer for Failing {
    fn sync(&self, _: u64, _: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        if self.syncs.fetch_add(1, Ordering::SeqCst) < self.good {
            return medium();
        }
        Err(io::Error::from_raw_os_error(5))
    }
}

#[test]
fn a_failed_sync_poisons_the_pool_for_all_threads_and_for_good() {
    let dir = dir();
    let path = dir.path().join("image");
    let pool = Pool::create(&path, 16 * PAGE, &page()).expect("create");
    let pool = pool.with_syncer(Arc::new(Failing {
        good: 1,
        syncs: AtomicU64::new(0),
    }));
    let write = |off: u64| {
        pool.store(off, 1);
        pool.flush(off, 8);
        pool.fence()
    };
    write(0).expect("the first sync works");
    assert_eq!(pool.poisoned(), None);
    let error = write(5 * PAGE).expect_err("the second does not");
    let MediumError::SyncFailed { off, len, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*off, *len), (5 * PAGE, 8));
    assert!(
        error.to_string().contains(&path.display().to_string()),
        "{error}"
    );
    assert_eq!(pool.poisoned(), Some(error.clone()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (write, error) = (&write, &error);
            scope.spawn(move || assert_eq!(write(thread * PAGE).as_ref(), Err(error)));
        }
    });
    assert_eq!(pool.fence(), Err(error), "even with nothing to sync");
    let syncs = pool.stats().syncs;
    assert_eq!(
        syncs,
        1 + 2,
        "one at opening; a poisoned pool is not synced again"
    );
}

#[test]
fn waiters_of_a_failing_sync_get_its_error() {
    const THREADS: u64 = 8;
    /// Fails once all have something to sync.
    struct LateFailure(Arc<AtomicU64>);
    impl Syncer for LateFailure {
        fn sync(&self, _: u64, _: u64, _: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
            while self.0.load(Ordering::SeqCst) < THREADS {
                std::thread::yield_now();
            }
            Err(io::Error::from_raw_os_error(5))
        }
    }
    let flushed = Arc::new(AtomicU64::new(0));
    let pool = Pool::anonymous(16 * PAGE, &page())
        .expect("memory")
        .with_syncer(Arc::new(LateFailure(flushed.clone())));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, flushed) = (&pool, &flushed);
            scope.spawn(move || {
                pool.flush(thread * PAGE, 8);
                flushed.fetch_add(1, Ordering::SeqCst);
                pool.fence().expect_err("failed");
            });
        }
    });
}

#[test]
fn a_pool_can_be_poisoned_by_its_user_in_every_domain() {
    for domain in [Domain::Line, Domain::Cache, Domain::Page] {
        let options = Options {
            domain: Some(domain),
            ..Options::default()
        };
        let pool = Pool::anonymous(PAGE, &options).expect("memory");
        pool.fence().expect("fence");
        pool.poison("a worker panicked");
        pool.poison("again");
        let error = pool.fence().expect_err("poisoned");
        assert!(error.to_string().contains("a worker panicked"), "{error}");
    }
}

#[test]
fn what_is_stored_to_a_private_pool_is_not_in_the_file() {
    for domain in [Domain::Page, Domain::Cache] {
        let dir = dir();
        let path = dir.path().join("image");
        let pool = Pool::create(&path, 4 * PAGE, &sparse()).expect("create");
        pool.back(0, 2 * PAGE).expect("blocks");
        pool.write(0, b"as it was");
        drop(pool);
        let before = std::fs::read(&path).expect("read");
        let private = Options {
            private: true,
            domain: Some(domain),
            ..Options::default()
        };
        let first = Pool::open(&path, &private).expect("open");
        let second = Pool::open(&path, &private).expect("they share the file as readers do");
        for off in [0, 3 * PAGE] {
            first.back(off, 8).expect("nothing to do");
            first.store(off, 7);
            first.flush(off, 8);
        }
        first.fence().expect("nothing to sync");
        first.unback(PAGE, PAGE);
        assert_eq!((first.load(0), first.load(3 * PAGE)), (7, 7));
        assert!(!first.is_hole(3 * PAGE, PAGE), "{domain}: it was stored to");
        assert_ne!(second.load(0), 7, "{domain}");
        drop((first, second));
        assert!(std::fs::read(&path).expect("read") == before, "{domain}");
    }
}

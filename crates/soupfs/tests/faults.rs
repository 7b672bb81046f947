//! What the world can do to a mounted file system: full media, failing media, bad images.

mod common;

use common::{Soup, clock, image, reclaimed};
use pmem::{Domain, Options, Pool, Syncer};
use soupfs::{MountError, MountOptions, SoupFs, inspect};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{Errno, FileSystem, Fsync, NewKind, NewNode, Place, Time};

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// A medium whose syncs fail once it is told so.
#[derive(Default)]
struct Failing(AtomicBool);

impl Syncer for Failing {
    fn sync(&self, _: u64, _: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        match self.0.load(SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => medium(),
        }
    }
}

#[test]
fn a_failed_sync_stops_all_changes_and_the_image_stays_sound() {
    let bytes = image(8 << 20, Domain::Page, Time(1)).snapshot();
    let options = Options {
        domain: Some(Domain::Page),
        ..Options::default()
    };
    let medium = Arc::new(Failing::default());
    let pool = Pool::from_bytes(&bytes, &options)
        .expect("memory")
        .with_syncer(medium.clone());
    let pool = Arc::new(pool);
    let fs = Soup {
        manual: true,
        ..Soup::default()
    }
    .mount(pool.clone(), clock());
    let root = fs.root();
    let kept = fs
        .create(&root, b"kept", &new(NewKind::File))
        .expect("created");
    fs.fsync(&kept, Fsync::All).expect("the medium works");

    medium.0.store(true, SeqCst);
    let lost = fs
        .create(&root, b"lost", &new(NewKind::File))
        .expect("nothing is synced yet");
    assert_eq!(
        fs.fsync(&lost, Fsync::All).map_err(|e| e.errno()),
        Err(Errno::IO)
    );
    for _ in 0..2 {
        let result = fs.create(&root, b"more", &new(NewKind::File)).map(|_| ());
        assert_eq!(result.map_err(|e| e.errno()), Err(Errno::IO));
    }
    assert_eq!(fs.syncfs().map_err(|e| e.errno()), Err(Errno::IO));
    assert!(fs.lookup(&root, b"kept").is_ok(), "reading goes on");
    assert!(fs.status().failed.is_some());
    assert!(fs.unmount().is_err());

    let again = Arc::new(Pool::from_bytes(&pool.snapshot(), &options).expect("memory"));
    let fs = Soup {
        manual: true,
        ..Soup::default()
    }
    .mount(again, clock());
    assert!(fs.lookup(&fs.root(), b"kept").is_ok());
}

#[test]
fn a_full_image_refuses_and_removal_makes_room() {
    let fs = Soup {
        len: 2 << 20,
        ..Soup::default()
    }
    .mount(image(2 << 20, Domain::Line, Time(1)), clock());
    let root = fs.root();
    let free = fs.statfs().free;
    for round in 0..3 {
        let mut count = 0;
        let full = loop {
            let name = format!("file-{round}-{count}");
            let made = fs
                .create(&root, name.as_bytes(), &new(NewKind::File))
                .and_then(|file| {
                    let done = fs.write(&file, 0, &[round as u8; 8192])?;
                    assert!(done > 0);
                    Ok(done)
                });
            match made {
                Ok(8192) => count += 1,
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(full.errno(), Errno::NOSPC);
        assert!(
            count as u64 > free / 4,
            "{count} files of 2 pages in {free} pages"
        );
        let mut names = Vec::new();
        fs.readdir(&root, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .expect("read");
        for name in names {
            fs.unlink(&root, &name, &|_| Ok(()))
                .expect("removing needs no space");
        }
    }
    fs.syncfs().expect("synced");
    assert!(
        fs.statfs().free + 4 >= free,
        "{} of {free} pages are free again",
        fs.statfs().free
    );
    let pool = fs.pool().clone();
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

#[test]
fn a_zeroed_range_that_finds_no_space_leaves_the_bytes_as_they_were() {
    let fs = Soup {
        manual: true,
        ..Soup::default()
    }
    .mount(image(2 << 20, Domain::Line, Time(1)), clock());
    let root = fs.root();
    let make = |name: &[u8]| fs.create(&root, name, &new(NewKind::File)).expect("made");
    let (file, rest) = (make(b"file"), make(b"rest"));
    fs.write(&file, 0, &[7; 9000]).expect("written");
    while fs
        .append(&rest, &[1; 4096])
        .is_ok_and(|(_, done)| done == 4096)
    {}

    let zero = vfs::Fallocate::Zero { keep_size: false };
    let refused = fs.fallocate(&file, zero, 100, 1 << 20);
    assert_eq!(refused.map_err(|e| e.errno()), Err(Errno::NOSPC));
    let mut bytes = vec![0; 10_000];
    assert_eq!(fs.read(&file, 0, &mut bytes), Ok(9000));
    assert!(bytes[..9000].iter().all(|&byte| byte == 7));
}

#[test]
fn images_that_are_none_are_refused_with_a_reason() {
    let good = image(4 << 20, Domain::Line, Time(1)).snapshot();
    let mount = |bytes: &[u8]| {
        let pool = Arc::new(Pool::from_bytes(bytes, &Options::default()).expect("memory"));
        SoupFs::mount(pool, MountOptions::new(clock())).map(|_| ())
    };
    let refusal = |bytes: &[u8]| mount(bytes).expect_err("refused").to_string();
    assert!(mount(&good).is_ok());
    assert!(refusal(&vec![0; 4 << 20]).contains("not a Tureen image"));
    assert!(refusal(&good[..3 << 20]).contains("truncated"));
    let mut later = good.clone();
    later[8] = 9;
    assert!(
        matches!(mount(&later), Ok(())),
        "a damaged first superblock has a copy"
    );
    let last = later.len() - 4096;
    later[last + 8] = 9;
    assert!(refusal(&later).contains("checksum"));
}

#[test]
fn the_copy_of_the_superblock_is_used_and_the_user_is_told() {
    let mut bytes = image(4 << 20, Domain::Line, Time(1)).snapshot();
    bytes[100] ^= 1;
    let pool = Arc::new(Pool::from_bytes(&bytes, &Options::default()).expect("memory"));
    assert!(inspect(&pool).expect("readable").damaged.is_some());
    let fs = Soup::default().mount(pool, clock());
    assert!(fs.status().notice.expect("told").contains("copy"));
}

#[test]
fn an_image_that_was_mounted_too_often_asks_for_fsck() {
    use soupfs::layout::{EPOCH_MAX, state};
    let pool = image(4 << 20, Domain::Line, Time(1));
    pool.store(state::EPOCH, EPOCH_MAX);
    pool.store(state::CLEAN_EPOCH, EPOCH_MAX);
    let refused = SoupFs::mount(pool.clone(), MountOptions::new(clock())).map(|_| ());
    assert_eq!(refused, Err(MountError::Epoch));
    let options = soupfs::fsck::CheckOptions {
        repair: true,
        threads: 1,
    };
    soupfs::fsck::check(&pool, &options, &|_| ()).expect("checked");
    assert!(SoupFs::mount(pool, MountOptions::new(clock())).is_ok());
}

#[test]
fn what_a_crash_leaked_is_found_while_the_file_system_is_used() {
    let pool = image(64 << 20, Domain::Line, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let root = fs.root();
    for i in 0..200 {
        let dir = fs
            .create(&root, format!("dir{i}").as_bytes(), &new(NewKind::Dir))
            .expect("made");
        let file = fs.create(&dir, b"file", &new(NewKind::File)).expect("made");
        fs.write(&file, 0, &vec![7; 20_000]).expect("written");
    }
    fs.syncfs().expect("synced");
    let open: Vec<_> = (0..50)
        .map(|i| {
            let dir = fs
                .lookup(&root, format!("dir{i}").as_bytes())
                .expect("there");
            let file = fs.lookup(&dir, b"file").expect("there");
            fs.unlink(&dir, b"file", &|_| Ok(())).expect("unlinked");
            file
        })
        .collect();
    fs.syncfs().expect("synced");
    // A crash while the files are open: nothing leads to them any more.
    let crashed = pool.snapshot();
    drop(open);
    drop(fs);

    let pool = Arc::new(Pool::from_bytes(&crashed, &Options::default()).expect("memory"));
    let fs = Soup::default().mount(pool.clone(), clock());
    let root = fs.root();
    for i in 0..2000 {
        if fs.status().reclaimed_lines.is_some() {
            break;
        }
        let name = format!("meanwhile{i}");
        let file = fs
            .create(&root, name.as_bytes(), &new(NewKind::File))
            .expect("made");
        fs.write(&file, 0, b"meanwhile").expect("written");
        let (from, to) = (format!("dir{}", 100 + i % 100), format!("dir{}", i % 50));
        let (from, to) = (
            fs.lookup(&root, from.as_bytes()),
            fs.lookup(&root, to.as_bytes()),
        );
        if let (Ok(from), Ok(to)) = (from, to) {
            let mode = vfs::RenameMode::Replace;
            let _ = fs.rename(
                Place::new(&from, b"file"),
                Place::new(&to, name.as_bytes()),
                mode,
                &|_| Ok(()),
            );
        }
    }
    let found = reclaimed(&fs);
    assert!(
        found >= 50 * 5 * 64,
        "{found} lines of 50 files with 5 pages"
    );
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

/// An image that was in use, with bits of lines set in all its free pages: what is left of a batch
/// that a crash cut off before its bits of pages were durable.
fn with_lines_of_free_pages() -> Arc<Pool> {
    let pool = image(4 << 20, Domain::Line, Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    fs.create(&fs.root(), b"file", &new(NewKind::File))
        .expect("made");
    fs.syncfs().expect("synced");
    let pool = Pool::from_bytes(&pool.snapshot(), &Options::default()).expect("memory");
    let geometry = soupfs::layout::Geometry::for_len(pool.len());
    for page in geometry.allocatable(0) {
        let (at, bit) = geometry.page_bit(page);
        if pool.load(at) & bit == 0 {
            pool.store(geometry.line_word(page), 7);
        }
    }
    Arc::new(pool)
}

#[test]
fn lines_of_free_pages_are_forgotten() {
    let pool = with_lines_of_free_pages();
    let fs = Soup::default().mount(pool.clone(), clock());
    reclaimed(&fs);
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

#[test]
fn lines_of_free_pages_are_not_found_twice() {
    let pool = with_lines_of_free_pages();
    // Nobody searches yet; the pages are put to use.
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let make = |fs: &SoupFs, i: u32| {
        fs.create(&fs.root(), format!("{i}").as_bytes(), &new(NewKind::File))
            .expect("made");
    };
    (0..100).for_each(|i| make(&fs, i));
    fs.syncfs().expect("synced");
    let pool = Pool::from_bytes(&pool.snapshot(), &Options::default()).expect("memory");
    let pool = Arc::new(pool);
    let fs = Soup::default().mount(pool.clone(), clock());
    reclaimed(&fs);
    (100..1000).for_each(|i| make(&fs, i));
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

#[test]
fn a_deep_tree_removed_from_below_fits_into_one_small_journal() {
    // Each removal pulls the one below it into the same batch.
    let pool = image(16 << 20, Domain::Line, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let mut path = vec![fs.root()];
    for _ in 0..2500 {
        let dir = fs
            .create(&path[path.len() - 1], b"d", &new(NewKind::Dir))
            .expect("made");
        path.push(dir);
    }
    fs.syncfs().expect("synced");
    while path.len() > 1 {
        path.pop();
        fs.rmdir(&path[path.len() - 1], b"d", &|_| Ok(()))
            .expect("empty");
    }
    fs.syncfs().expect("one batch");
    drop(path);
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

#[test]
fn a_nonsensical_count_of_pages_disturbs_nobody() {
    use soupfs::layout::{inode, line_at};
    let pool = image(4 << 20, Domain::Line, Time(1));
    let root = inspect(&pool).expect("readable").superblock.root;
    pool.store(line_at(root) + inode::PAGES, u64::MAX);
    let fs = Soup {
        manual: true,
        ..Soup::default()
    }
    .mount(pool, clock());
    assert!(fs.attr(&fs.root()).size > 0);
    let file = fs
        .create(&fs.root(), b"file", &new(NewKind::File))
        .expect("created");
    fs.write(&file, 0, b"data").expect("written");
    fs.syncfs().expect("synced");
}

#[test]
fn mounting_a_new_sparse_image_finds_its_journal_allocated() {
    use std::os::unix::fs::MetadataExt;
    let path = std::env::temp_dir().join(format!("soupfs-sparse-{}", std::process::id()));
    let options = Options {
        domain: Some(Domain::Page),
        sparse: true,
        ..Options::default()
    };
    let pool = Arc::new(Pool::create(&path, 1 << 40, &options).expect("a sparse file"));
    let format = soupfs::FormatOptions {
        uuid: [7; 16],
        label: "sparse".into(),
        hash_key: [9; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    soupfs::format(&pool, &format).expect("formatted");
    drop(pool);
    let allocated = || std::fs::metadata(&path).expect("there").blocks() * 512;
    let before = allocated();
    let pool = Arc::new(Pool::open(&path, &options).expect("opened"));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool, clock());
    let after = allocated();
    drop(fs);
    std::fs::remove_file(&path).expect("removed");
    assert!(
        before >= 64 << 20,
        "{before} bytes with a journal of 64 MiB"
    );
    assert_eq!(after, before);
}

#[test]
fn the_search_for_lost_space_ends_while_callers_never_pause() {
    const FILES: u64 = 20_000;
    let pool = image(256 << 20, Domain::Line, Time(1));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    for i in 0..FILES {
        let name = format!("old{i}");
        let file = fs
            .create(&fs.root(), name.as_bytes(), &new(NewKind::File))
            .expect("made");
        fs.write(&file, 0, b"contents").expect("written");
    }
    fs.syncfs().expect("synced");
    let crashed = pool.snapshot();
    drop(fs);

    let slow = Options {
        latency: pmem::Latency {
            flush_ns: 500,
            ..pmem::Latency::default()
        },
        domain: Some(Domain::Line),
        ..Options::default()
    };
    let pool = Arc::new(Pool::from_bytes(&crashed, &slow).expect("memory"));
    let options = MountOptions {
        backlog_max: 8 << 20, // always large, as flushing is slow
        ..MountOptions::new(clock())
    };
    let fs = SoupFs::mount(pool.clone(), options).expect("mounted");
    let root = fs.root();
    let mut made = 0;
    while fs.status().reclaimed_lines.is_none() {
        fs.create(&root, format!("new{made}").as_bytes(), &new(NewKind::File))
            .expect("made");
        made += 1;
    }
    // Entries, inodes and blocks, by 4096 after each batch, and none of what is new but its
    // entries.
    let batches = fs.status().backlog.batches;
    assert!(
        batches < 6 * FILES / 4096 + 20,
        "{batches} batches, {made} operations"
    );
    fs.unmount().expect("unmounted");
    common::audit(&pool);
}

/// The system's clock; tells who asks while it is armed to wait.
#[derive(Default)]
struct Stopping {
    armed: AtomicBool,
    waiting: AtomicBool,
}

impl vfs::Clock for Stopping {
    fn now(&self) -> Time {
        while self.armed.load(SeqCst) {
            self.waiting.store(true, SeqCst);
            std::thread::yield_now();
        }
        vfs::SystemClock.now()
    }
}

#[test]
fn who_waits_for_the_backlog_is_told_that_the_medium_failed() {
    let pool = image(16 << 20, Domain::Line, Time(1));
    let clock = Arc::new(Stopping::default());
    let options = MountOptions {
        bound: std::time::Duration::from_secs(3600),
        ..MountOptions::new(clock.clone())
    };
    let fs = SoupFs::mount(pool.clone(), options).expect("mount");
    let file = fs
        .create(&fs.root(), b"file", &new(NewKind::File))
        .expect("created");
    clock.armed.store(true, SeqCst);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn({
        let fs = fs.clone();
        // Fills the backlog at once, while the medium fails.
        let len = fs.statfs().free * 4096 * 9 / 10;
        move || {
            let reserve = vfs::Fallocate::Allocate { keep_size: false };
            drop(fs.fallocate(&file, reserve, 0, len));
            drop(file);
            drop(fs);
            let _ = tell.send(());
        }
    });
    while !clock.waiting.load(SeqCst) {
        std::thread::yield_now();
    }
    pool.poison("as the search for lost space may");
    clock.armed.store(false, SeqCst);
    let long = std::time::Duration::from_secs(10);
    told.recv_timeout(long).expect("it waits for ever");
}

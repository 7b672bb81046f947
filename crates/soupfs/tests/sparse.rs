//! Sparse images: what was never used costs nothing, and a host without blocks is an error, not the
//! end.

mod common;

use common::{Soup, audit, clock, reclaimed};
use pmem::{Domain, MediumError, Options, Pool, Syncer};
use soupfs::layout::{Geometry, PAGE};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{FileSystem, NewKind, NewNode, Time};

const LEN: u64 = 1 << 40;

fn options() -> Options {
    Options {
        domain: Some(Domain::Page),
        sparse: true,
        ..Options::default()
    }
}

fn new_file() -> NewNode<'static> {
    NewNode {
        kind: NewKind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// A host that gives no blocks once it is told so.
#[derive(Default)]
struct Host {
    full: AtomicBool,
    /// It gives none for contents of files: for more than a word.
    contents: AtomicBool,
}

impl Syncer for Host {
    fn sync(&self, _: u64, _: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        medium()
    }

    fn back(
        &self,
        off: u64,
        need: u64,
        medium: &dyn Fn() -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let geometry = Geometry::for_len(LEN);
        // What was used before it was full has blocks.
        let full = self.full.load(SeqCst) && off >= geometry.map_end(0) * PAGE;
        match full || self.contents.load(SeqCst) && need > 8 {
            true => Err(MediumError::HostFull {
                pool: format!("at {off}"),
                need,
                free: 0,
            }),
            false => medium(),
        }
    }
}

/// An image of 1 TiB in which a process was killed while it had a file open that it had removed.
fn killed(path: &Path) {
    let pool = Arc::new(Pool::create(path, LEN, &options()).expect("a sparse file"));
    let format = soupfs::FormatOptions {
        uuid: [7; 16],
        label: "sparse".into(),
        hash_key: [9; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    soupfs::format(&pool, &format).expect("formatted");
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let root = fs.root();
    fs.create(&root, b"kept", &new_file()).expect("made");
    let file = fs.create(&root, b"lost", &new_file()).expect("made");
    fs.write(&file, 0, &[1; 1 << 20]).expect("written");
    fs.syncfs().expect("synced");
    fs.unlink(&root, b"lost", &|_| Ok(())).expect("removed");
    fs.syncfs().expect("synced");
    pool.poison("killed");
    fs.unmount().expect_err("a killed process unmounts nothing");
}

fn blocks(path: &Path) -> u64 {
    std::fs::metadata(path).expect("there").blocks() * 512
}

/// The search for lost space neither reads nor backs the maps of regions that were never used, and
/// free space is exact at its end, also when the host has no blocks left.
#[test]
fn a_search_for_lost_space_costs_nothing_where_nothing_was_ever_used() {
    for full in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        killed(&path);
        let before = blocks(&path);
        let host = Arc::new(Host::default());
        let pool = Pool::open(&path, &options()).expect("opened");
        let pool = Arc::new(pool.with_syncer(host.clone()));
        let soup = Soup::default();
        host.full.store(full, SeqCst);
        let fs = soup.mount(pool.clone(), clock());
        reclaimed(&fs);
        let free = fs.status().bytes_free;
        fs.unmount().expect("unmounted");
        drop(fs);
        audit(&pool);
        let grown = blocks(&path) - before;
        assert!(grown <= 2 << 20, "{grown} bytes, full: {full}");

        let fs = soup.mount(pool, clock());
        assert_eq!(fs.status().bytes_free, free);
    }
}

/// Parts of blocks are zeroed in place. A copy of an image may have holes there, for which the host
/// may have no blocks.
#[test]
fn zeroing_a_part_of_a_block_asks_for_blocks_first() {
    use vfs::{Errno, Fallocate, SetAttr};
    let host = Arc::new(Host::default());
    let bytes = common::image(16 << 20, Domain::Line, Time(1)).snapshot();
    let pool = Pool::from_bytes(&bytes, &Options::default()).expect("memory");
    let pool = Arc::new(pool.with_syncer(host.clone()));
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let fs = soup.mount(pool.clone(), clock());
    let file = fs.create(&fs.root(), b"file", &new_file()).expect("made");
    fs.write(&file, 0, &[1; 10_000]).expect("written");
    fs.syncfs().expect("synced");
    let attr = fs.attr(&file);
    let zero = Fallocate::Zero { keep_size: true };
    let size = Some(20_000);
    let grow = SetAttr {
        size,
        ..SetAttr::default()
    };
    host.contents.store(true, SeqCst);
    let refused = [
        fs.setattr(&file, &grow).map(drop),
        fs.write(&file, 20_000, &[2; 10]).map(drop),
        fs.fallocate(&file, Fallocate::Punch, 100, 50),
        fs.fallocate(&file, zero, 100, 5000),
        fs.fallocate(&file, zero, 100, 50),
    ];
    for (i, result) in refused.into_iter().enumerate() {
        let result = result.map_err(|e| e.errno());
        assert_eq!(result, Err(Errno::NOSPC), "call {i}");
    }
    let mut read = vec![0; 10_001];
    assert_eq!(fs.read(&file, 0, &mut read).expect("read"), 10_000);
    assert!(read[..10_000].iter().all(|&byte| byte == 1));
    assert_eq!(fs.attr(&file), attr);
    host.contents.store(false, SeqCst);
    fs.setattr(&file, &grow).expect("there are blocks again");
    drop(file);
    fs.unmount().expect("unmounted");
    audit(&pool);
}

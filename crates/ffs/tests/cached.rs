//! Behind a cache that is small for its disk: what one operation may change is divided.

mod common;

use std::sync::Arc;

use block::{Disk, Memory};
use cache::{Cache, CreateOptions, Kind};
use common::{Image, TIME};
use ffs::{Ext2Binding, Ffs, Mode, MountError};
use pmem::Pool;
use vfs::{
    Change, Fallocate, FileSystem, Fsync, ManualClock, NewKind, NewNode, Place, RenameMode, SetAttr,
};

const FILE: NewNode<'static> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};

/// Bytes of a disk of 144 groups, each of 256 KiB.
const DISK_LEN: u64 = 36 << 20;
/// Bytes of a file that has blocks in most of them.
const FILE_LEN: usize = 24 << 20;

/// A disk of many groups through a cache of 64 blocks of 4 KiB.
struct Behind {
    pool: Arc<Pool>,
    device: Arc<Memory>,
}

impl Behind {
    fn new(image: &Image) -> Behind {
        let device = Arc::new(Memory::from_bytes(common::read(&image.path)));
        let pool = Pool::anonymous(320 << 10, &pmem::Options::default()).expect("memory");
        Behind {
            pool: Arc::new(pool),
            device,
        }
    }

    fn mount(&self, is_new: bool) -> Result<Ffs, MountError> {
        self.mount_on(&self.cache(is_new))
    }

    fn cache(&self, is_new: bool) -> Arc<Cache> {
        let (pool, disk) = (self.pool.clone(), Disk::new(self.device.clone()));
        let how = CreateOptions {
            kind: Kind::Spindle,
            uuid: [3; 16],
            unit: 64,
            metadata: 64 << 10,
        };
        let cache = match is_new {
            true => Cache::create(pool, disk, Arc::new(Ext2Binding), &how),
            false => Cache::open(pool, disk, Arc::new(Ext2Binding)),
        };
        Arc::new(cache.expect("it is bound"))
    }

    fn mount_on(&self, cache: &Arc<Cache>) -> Result<Ffs, MountError> {
        let clock = Arc::new(ManualClock::new(TIME));
        Ffs::mount_cached(cache, clock, common::mount_options(false, Mode::Soft))
    }

    /// Lets the disk have everything, and e2fsck judge it.
    fn assert_clean(&self, image: &Image) {
        let disk = Disk::new(self.device.clone());
        let cache = Cache::open(self.pool.clone(), disk, Arc::new(Ext2Binding));
        cache.expect("it is bound").flush().expect("written");
        std::fs::write(&image.path, self.device.contents()).expect("written");
        image.assert_clean();
    }
}

fn many_groups() -> Image {
    let args = ["-t", "ext2", "-b", "1024", "-g", "256", "-I", "256"];
    Image::mke2fs(DISK_LEN, &[&args[..], &["-O", "^resize_inode"]].concat())
}

fn truncate(fs: &Ffs, node: &<Ffs as FileSystem>::Node, size: u64) {
    let change = Change {
        set: SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
        ..Change::default()
    };
    let attr = fs.apply(node, &change).expect("cut off");
    assert_eq!(attr.size, size);
}

fn fill(fs: &Ffs, name: &[u8]) -> <Ffs as FileSystem>::Node {
    let file = fs.create(&fs.root(), name, &FILE).expect("made");
    for at in (0..FILE_LEN).step_by(1 << 20) {
        let written = fs.write(&file, at as u64, &vec![at as u8 | 1; 1 << 20]);
        assert_eq!(written, Ok(1 << 20));
    }
    file
}

/// Each time more bitmaps change than the cache has blocks.
#[test]
fn a_large_file_is_cut_off_in_steps() {
    needs_e2fsprogs!();
    let image = many_groups();
    let behind = Behind::new(&image);
    let fs = behind.mount(true).expect("it mounts");
    let free = fs.statfs().free;
    let file = fill(&fs, b"file");
    let synced = |what: &str| fs.fsync(&file, Fsync::All).expect(what);
    // A hole from the middle of a block to that of another one.
    let hole = 3000..FILE_LEN as u64 - 70_000;
    fs.fallocate(&file, Fallocate::Punch, hole.start, hole.end - hole.start)
        .expect("punched");
    synced("what was punched");
    let mut read = vec![0; FILE_LEN];
    assert_eq!(fs.read(&file, 0, &mut read), Ok(FILE_LEN));
    for (at, &byte) in (0..).zip(&read) {
        let there = at as usize & !((1 << 20) - 1);
        let expected = if hole.contains(&at) {
            0
        } else {
            there as u8 | 1
        };
        assert_eq!(byte, expected, "byte {at}");
    }
    for at in (0..FILE_LEN).step_by(1 << 20) {
        fs.write(&file, at as u64, &vec![5; 1 << 20])
            .expect("written");
    }
    truncate(&fs, &file, 5000);
    synced("what was cut off");
    fs.unlink(&fs.root(), b"file", &|_| Ok(()))
        .expect("removed");
    drop(file);
    fs.syncfs().expect("synced");
    // Removed, and replaced.
    drop(fill(&fs, b"large"));
    fs.unlink(&fs.root(), b"large", &|_| Ok(()))
        .expect("removed");
    fs.syncfs().expect("synced");
    let file = fill(&fs, b"large");
    fs.create(&fs.root(), b"small", &FILE).expect("made");
    let (root, no_veto) = (fs.root(), &|_: &_| Ok(()));
    let (from, to) = (Place::new(&root, b"small"), Place::new(&root, b"large"));
    fs.rename(from, to, RenameMode::Replace, no_veto)
        .expect("renamed");
    // Somebody has it open, and then nobody.
    fs.syncfs().expect("synced");
    assert!(fs.statfs().free < free - 20_000);
    drop(file);
    fs.syncfs().expect("synced");
    assert_eq!(fs.statfs().free, free);
    fs.unmount().expect("unmounted");
    drop((root, fs));
    behind.assert_clean(&image);
}

/// What a file had before is not written over past the cache: with its old size and times it would
/// be there after a crash.
#[test]
fn only_new_blocks_go_past_the_cache() {
    needs_e2fsprogs!();
    for block_size in ["1024", "4096"] {
        let image = Image::mke2fs(8 << 20, &["-t", "ext2", "-b", block_size, "-I", "256"]);
        let behind = Behind::new(&image);
        let cache = behind.cache(true);
        cache.set_bypass(8 << 10);
        let fs = behind.mount_on(&cache).expect("it mounts");
        let file = fs.create(&fs.root(), b"file", &FILE).expect("made");
        let put = |byte: u8| {
            let written = fs.write(&file, 0, &vec![byte; 200_000]).expect("written");
            assert_eq!(written, 200_000);
            fs.fsync(&file, Fsync::All).expect("synced");
            let mut read = vec![0; 200_000];
            assert_eq!(fs.read(&file, 0, &mut read), Ok(200_000));
            assert!(read.iter().all(|&found| found == byte));
            cache.status().past
        };
        let made = put(1);
        assert!(made > 20, "{block_size}: {:?}", cache.status());
        assert_eq!(put(2), made);
        truncate(&fs, &file, 0);
        fs.syncfs().expect("synced");
        put(3);
        fs.unmount().expect("unmounted");
        drop((file, fs, cache));
        behind.assert_clean(&image);
    }
}

#[test]
fn a_cache_too_small_for_an_operation_is_refused_with_a_sentence() {
    needs_e2fsprogs!();
    // 64 groups' descriptors in a block of 1 KiB at most 16: more blocks of them than the cache.
    let args = [
        "-t",
        "ext2",
        "-b",
        "1024",
        "-g",
        "256",
        "-O",
        "^resize_inode",
    ];
    let image = Image::mke2fs(400 << 20, &[&args[..], &["-N", "13000"]].concat());
    let behind = Behind::new(&image);
    let refused = behind.mount(true).err().expect("it is refused");
    assert!(
        matches!(refused, MountError::CacheTooSmall { .. }),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("use a larger cache"),
        "{refused}"
    );
    // Nothing was changed.
    behind.assert_clean(&image);
}

//! The disks that are damaged: small, and together with everything in them that is written here.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use block::{Disk, Memory};
use ffs::{Ffs, FormatOptions, Mode, MountOptions, format};
use vfs::{FileSystem, Fsync, ManualClock, NewKind, Place, RenameMode, SetAttr, Time, XattrMode};

use crate::bytes::Bytes;
use crate::user::new;

/// Bytes of a disk, and of the smallest one that may have a journal.
const LEN: u64 = 384 << 10;
const JOURNALED_LEN: u64 = 2048 << 10;
/// Bytes of a block and of a sector.
const BLOCK: usize = 1024;
const SECTOR: usize = 512;
/// Inodes of a disk.
const INODES: u64 = 96;
/// Most edits of one input.
const EDITS_MAX: usize = 24;
/// Where the superblock is.
const SUPERBLOCK: Range<usize> = 1024..2048;
/// The time of everything.
pub const TIME: Time = Time(1_000_000_000_000_000_000);

/// A disk to start from.
pub struct Base {
    bytes: Vec<u8>,
    /// Offsets of the words that are not zero: most damage goes there.
    used: Vec<usize>,
    /// It has a journal.
    pub is_journaled: bool,
}

impl Base {
    fn new(bytes: Vec<u8>, is_journaled: bool) -> Base {
        let places = (0..bytes.len()).step_by(4);
        let used = places.filter(|&at| word(&bytes, at) != 0).collect();
        Base {
            bytes,
            used,
            is_journaled,
        }
    }
}

/// The disks: unmounted; left by a crash in mode soft; with a snapshot, larger inodes and extended
/// attributes in them; with a journal, unmounted, or left by a crash with transactions in it.
pub fn bases() -> &'static [Base; 5] {
    static BASES: OnceLock<[Base; 5]> = OnceLock::new();
    BASES.get_or_init(|| {
        let [(whole, crashed), (_, journaled)] = [Mode::Soft, Mode::Ordered].map(|mode| {
            let device = formatted(mode.is_journaled(), 128);
            populated(&device, mode);
            let whole = device.contents();
            (whole, left_by_a_crash(&device, mode))
        });
        let clean = formatted(true, 128);
        populated(&clean, Mode::Journal);
        let kept = formatted(false, 256);
        populated(&kept, Mode::Soft);
        let fs = mount(&kept, Mode::Soft);
        fs.create_snapshot("kept", false).expect("there is space");
        change(&fs);
        fs.unmount().expect("unmount");
        [
            Base::new(whole, false),
            Base::new(crashed, false),
            Base::new(kept.contents(), false),
            Base::new(clean.contents(), true),
            Base::new(journaled, true),
        ]
    })
}

/// How the target mounts.
pub fn options(mode: Mode, read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        hash_key: [9; 16],
        cache_bytes: 1 << 20,
        mode,
    }
}

/// Time stands still.
pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(TIME))
}

fn formatted(journal: bool, inode_size: u32) -> Arc<Memory> {
    let len = if journal { JOURNALED_LEN } else { LEN };
    let device = Arc::new(Memory::new(len));
    let options = FormatOptions {
        uuid: [7; 16],
        label: "fuzz".into(),
        hash_seed: [9; 16],
        time: TIME,
        owner: (0, 0),
        zeroed: true,
        block_size: BLOCK as u32,
        inode_size,
        bytes_per_inode: (len / INODES) as u32,
        journal,
    };
    format(&Disk::new(device.clone()), &options).expect("format");
    device
}

fn mount(device: &Arc<Memory>, mode: Mode) -> Ffs {
    let disk = Disk::new(device.clone());
    Ffs::mount(disk, clock(), options(mode, false)).expect("mount")
}

fn populated(device: &Arc<Memory>, mode: Mode) {
    let fs = mount(device, mode);
    let root = fs.root();
    let make = |dir, name: &[u8], kind| fs.create(dir, name, &new(kind)).expect("create");
    let sub = make(&root, b"sub", NewKind::Dir);
    let deep = make(&sub, &[b'd'; 255], NewKind::Dir);
    // Of several blocks.
    let many = make(&root, b"many", NewKind::Dir);
    for i in 0..30 {
        let name = format!("name-{i}{}", "-".repeat(5 * i));
        let file = make(&many, name.as_bytes(), NewKind::File);
        if i % 5 == 0 {
            fs.write(&file, 0, name.as_bytes()).expect("write");
            fs.link(&file, &deep, name.as_bytes()).expect("link");
        }
    }
    // With indirect blocks of each level.
    let file = make(&sub, b"file", NewKind::File);
    fs.write(&file, 0, &[1; 30 * BLOCK]).expect("write");
    let sparse = make(&sub, b"sparse", NewKind::File);
    for at in [0, 600 << 10, 100 << 20] {
        fs.write(&sparse, at, b"here").expect("write");
    }
    let (short, long) = (NewKind::Symlink(b"../to"), NewKind::Symlink(&[b't'; 900]));
    let tagged = make(&sub, b"short", short);
    make(&sub, b"long", long);
    make(&sub, b"fifo", NewKind::Fifo);
    make(&sub, b"device", NewKind::CharDev(0x103));
    let also = SetAttr::default();
    for (node, len) in [(&file, 30), (&tagged, 700), (&sub, 5)] {
        fs.setxattr(node, b"user.name", &vec![7; len], XattrMode::Any, &also)
            .expect("setxattr");
    }
    fs.unmount().expect("unmount");
}

/// Changes of all kinds.
fn change(fs: &Ffs) {
    let root = fs.root();
    let many = fs.lookup(&root, b"many").expect("many");
    for i in 0..10 {
        let name = format!("name-{i}{}", "-".repeat(5 * i));
        match i % 2 {
            0 => fs
                .unlink(&many, name.as_bytes(), &|_| Ok(()))
                .expect("unlink"),
            _ => {
                let to = format!("moved-{i}");
                let (from, to) = (
                    Place::new(&many, name.as_bytes()),
                    Place::new(&root, to.as_bytes()),
                );
                fs.rename(from, to, RenameMode::Replace, &|_| Ok(()))
                    .expect("rename");
            }
        }
    }
    let sub = fs.lookup(&root, b"sub").expect("sub");
    let file = fs.lookup(&sub, b"file").expect("file");
    fs.write(&file, 0, &[3; 3 * BLOCK]).expect("write");
}

/// A crash behind an fsync, which left what else was changed undone, or half done.
fn left_by_a_crash(device: &Arc<Memory>, mode: Mode) -> Vec<u8> {
    let fs = mount(device, mode);
    let root = fs.root();
    change(&fs);
    fs.syncfs().expect("syncfs");
    let (from, to) = (Place::new(&root, b"sub"), Place::new(&root, b"bus"));
    fs.rename(from, to, RenameMode::Replace, &|_| Ok(()))
        .expect("rename");
    let file = fs
        .create(&root, b"last", &new(NewKind::File))
        .expect("create");
    fs.write(&file, 0, &[3; 5000]).expect("write");
    fs.fsync(&file, Fsync::All).expect("fsync");
    fs.create(&root, b"lost", &new(NewKind::File))
        .expect("create");
    device.contents()
}

/// The disk with the edits that come next in the input: a count, then six bytes for each.
pub fn damaged(base: &Base, input: &mut Bytes<'_>) -> Vec<u8> {
    let mut bytes = base.bytes.clone();
    for _ in 0..input.below(EDITS_MAX + 1) {
        edit(base, &mut bytes, input);
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn store(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn edit(base: &Base, bytes: &mut [u8], input: &mut Bytes<'_>) {
    let used = |n: u64| base.used[n as usize % base.used.len()];
    let (kind, detail) = (input.below(12), u32::from(input.byte()));
    let (place, value) = (input.short(), input.short());
    let at = used(place);
    let small = value as u32;
    let blocks = (bytes.len() / BLOCK) as u32;
    match kind {
        0 => store(bytes, at, word(bytes, at) ^ 1 << (value % 32)),
        1 => bytes[at + detail as usize % 4] = value as u8,
        2 => bytes[at + detail as usize % 3..][..2].copy_from_slice(&(value as u16).to_le_bytes()),
        // A block, an inode, a value at the end of a range.
        3 => store(bytes, at, small % (blocks + 1)),
        4 => store(bytes, at, small % (INODES as u32 + 2)),
        5 => store(bytes, at, extreme(detail, small)),
        6 => store(bytes, at, word(bytes, used(value))),
        7 => copy(bytes, used(value), at, SECTOR),
        8 => copy(bytes, used(value), at, BLOCK),
        9 => insert(bytes, at, value as u8, detail as usize % 9),
        // A word next to what is used, which is mostly zero.
        10 => store(
            bytes,
            (at + detail as usize % 32 * 4).min(base.bytes.len() - 4),
            small,
        ),
        _ => {
            let field = SUPERBLOCK.start + place as usize * 4 % SUPERBLOCK.len();
            store(bytes, field, extreme(detail, small));
        }
    }
}

/// Values at the ends of ranges.
fn extreme(which: u32, value: u32) -> u32 {
    match which % 6 {
        0 => u32::MAX - value % 4,
        1 => i32::MAX as u32 - value % 4,
        2 => 1 << (value % 32),
        3 => (1 << (value % 32)) - 1,
        4 => value << 16,
        _ => 0,
    }
}

/// One aligned piece over another.
fn copy(bytes: &mut [u8], from: usize, to: usize, unit: usize) {
    let from = from / unit * unit;
    bytes.copy_within(from..from + unit, to / unit * unit);
}

/// Bytes are inserted; the rest of the block moves on.
fn insert(bytes: &mut [u8], at: usize, value: u8, count: usize) {
    let end = (at / BLOCK + 1) * BLOCK;
    let count = count.min(end - at);
    bytes.copy_within(at..end - count, at + count);
    bytes[at..at + count].fill(value);
}

//! The images that are damaged: small, and together with everything in them that the format has.

use std::sync::{Arc, OnceLock};

use pmem::{Options, Pool};
use soupfs::{FormatOptions, MountOptions, SoupFs, format};
use vfs::{
    Fallocate, FileSystem, ManualClock, NewKind, Place, RenameMode, SetAttr, Time, XattrMode,
};

use crate::user::new;

/// Length of the images, in bytes: the smallest there is.
pub const LEN: u64 = 1 << 20;

/// An image to start from.
pub struct Base {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Offsets of the words that are not zero: most damage goes there.
    pub used: Vec<u64>,
}

/// The images: unmounted; left by a crash with a record in the journal; empty.
pub fn bases() -> &'static [Base; 3] {
    static BASES: OnceLock<[Base; 3]> = OnceLock::new();
    BASES.get_or_init(|| {
        let fs = mount(fresh());
        let empty = fs.pool().snapshot();
        populate(&fs);
        fs.unmount().expect("unmount");
        let whole = fs.pool().snapshot();
        let fs = mount(Arc::new(pool(&whole)));
        change(&fs);
        let crashed = fs.pool().snapshot();
        [whole, crashed, empty].map(|bytes| {
            let used = (0..LEN)
                .step_by(8)
                .filter(|&at| word(&bytes, at) != 0)
                .collect();
            Base { bytes, used }
        })
    })
}

/// A word of an image.
pub fn word(bytes: &[u8], at: u64) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at as usize..][..8]);
    u64::from_le_bytes(word)
}

/// A pool that holds these bytes.
pub fn pool(bytes: &[u8]) -> Pool {
    Pool::from_bytes(bytes, &Options::default()).expect("memory")
}

/// How the targets mount: time stands still, and nothing happens in the background.
pub fn options() -> MountOptions {
    MountOptions {
        manual: true,
        ..MountOptions::new(Arc::new(ManualClock::new(Time(1_000_000_000))))
    }
}

fn fresh() -> Arc<Pool> {
    let pool = Arc::new(Pool::anonymous(LEN, &Options::default()).expect("memory"));
    let options = FormatOptions {
        uuid: [7; 16],
        label: "fuzz".into(),
        hash_key: [9; 16],
        time: Time(0),
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &options).expect("format");
    pool
}

fn mount(pool: Arc<Pool>) -> SoupFs {
    SoupFs::mount(pool, options()).expect("mount")
}

fn populate(fs: &SoupFs) {
    let root = fs.root();
    let make = |dir, name: &[u8], kind| fs.create(dir, name, &new(kind)).expect("create");
    let sub = make(&root, b"sub", NewKind::Dir);
    let deep = make(&sub, &[b'd'; 255], NewKind::Dir);
    // Grown, with splits.
    let many = make(&root, b"many", NewKind::Dir);
    for i in 0..100 {
        let name = format!("name-{i}{}", "-".repeat(i % 70));
        let file = make(&many, name.as_bytes(), NewKind::File);
        if i % 10 == 0 {
            fs.write(&file, 0, name.as_bytes()).expect("write");
            fs.link(&file, &deep, name.as_bytes()).expect("link");
        }
    }
    let file = make(&sub, b"file", NewKind::File);
    fs.write(&file, 0, &[1; 9000]).expect("write");
    let reserve = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&file, reserve, 9000, 20_000)
        .expect("fallocate");
    let sparse = make(&sub, b"sparse", NewKind::File);
    for at in [0, 600 << 12, 1 << 32] {
        fs.write(&sparse, at, b"here").expect("write");
    }
    let (short, long) = (NewKind::Symlink(b"../to"), NewKind::Symlink(&[b't'; 3000]));
    let tagged = make(&sub, b"short", short);
    make(&sub, b"long", long);
    make(&sub, b"fifo", NewKind::Fifo);
    make(&sub, b"device", NewKind::CharDev(0x103));
    let also = SetAttr::default();
    for (node, len) in [(&file, 100), (&tagged, 9000), (&sub, 5)] {
        fs.setxattr(node, b"user.name", &vec![7; len], XattrMode::Any, &also)
            .expect("setxattr");
    }
}

/// Changes of all kinds, the last of them in the journal only.
fn change(fs: &SoupFs) {
    let root = fs.root();
    let many = fs.lookup(&root, b"many").expect("many");
    for i in 0..20 {
        let name = format!("name-{i}{}", "-".repeat(i % 70));
        match i % 2 {
            0 => fs
                .unlink(&many, name.as_bytes(), &|_| Ok(()))
                .expect("unlink"),
            _ => {
                let to = format!("moved-{i}");
                let mode = RenameMode::Replace;
                let from = Place::new(&many, name.as_bytes());
                fs.rename(from, Place::new(&root, to.as_bytes()), mode, &|_| Ok(()))
                    .expect("rename");
            }
        }
    }
    fs.syncfs().expect("syncfs");
    let file = fs
        .create(&root, b"last", &new(NewKind::File))
        .expect("create");
    fs.write(&file, 0, &[3; 5000]).expect("write");
    fs.fsync(&file, vfs::Fsync::All).expect("fsync");
    fs.create(&root, b"lost", &new(NewKind::File))
        .expect("create");
}

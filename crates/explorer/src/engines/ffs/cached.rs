//! The file system in blocks behind a persistent cache, as the explorer knows it: on a memory and a
//! disk at once. What is written together is a transaction of the cache. So a crash leaves all that
//! was done up to some operation, bytes of files with it, and an image that says that it is clean.
//!
//! The auditor reads through the cache, and must find nothing whatever. Then the cache, on copies
//! of the two media, lets the disk have everything: the disk alone must hold what was seen through
//! the cache.

pub(crate) mod known;

use super::{DIRTY_FEW, DIRTY_MAX, clock, device, empty, format_options};
use crate::engine::{Census, Engine, LATER, Leaves, Mode, Mounted, Mounting, POISON, Thresholds};
use crate::image::Image;
use crate::op::{CacheOp, Op, Side};
use crate::rules::{CACHE_LEN, MEMORY_LEN, Rules};
use crate::scratch::Device;
use crate::tree::{Flaw, Id, Tree};
use block::Disk;
use cache::{Cache, CacheError, CreateOptions, Kind};
use ffs::check::check;
use ffs::{CacheStore, Ext2Binding, Ffs, MountOptions, format};
use parking_lot::Mutex;
use pmem::{Domain, PAGE};
use schedule::shortage::Shortage;
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{Error, Limits, Time};

/// The engine.
pub static ENGINE: CachedEngine = CachedEngine;

/// Behind a cache of the kind Spindle.
pub const SPINDLE: Mode = Mode::new("spindle", false, Leaves::Whole);
/// Behind one of the kind Tinca.
pub const TINCA: Mode = Mode::new("tinca", false, Leaves::Whole);
/// The same of a file system of which several blocks share one of the cache.
pub const SPINDLE_1K: Mode = Mode::new("spindle-1k", false, Leaves::Whole);
/// Likewise.
pub const TINCA_1K: Mode = Mode::new("tinca-1k", false, Leaves::Whole);

/// Bytes of a block: as many as of one of the cache, which is told then what is free.
const BLOCK: u32 = 4096;
/// Bytes of a small one.
const BLOCK_SMALL: u32 = 1024;
/// Bytes of metadata that replacement leaves in peace: of a quarter of the cache.
const METADATA: u64 = 64 << 10;
/// Bytes of a run of new blocks that go past the cache, where thresholds are low.
const BYPASS: u64 = 2 * BLOCK as u64;

/// ext2 through a cache.
pub struct CachedEngine;

impl Engine for CachedEngine {
    fn name(&self) -> &'static str {
        "ext2+cache"
    }

    fn modes(&self) -> &'static [Mode] {
        &[SPINDLE, TINCA, SPINDLE_1K, TINCA_1K]
    }

    fn media(&self) -> &'static [Rules] {
        &[
            Rules::Both(Domain::Line),
            Rules::Both(Domain::Cache),
            Rules::Both(Domain::Page),
        ]
    }

    fn empty(&self, len: u64, mode: Mode) -> Image {
        static MADE: Mutex<BTreeMap<(u64, &str), Image>> = Mutex::new(BTreeMap::new());
        let mut made = MADE.lock();
        made.entry((len, mode.name))
            .or_insert_with(|| with_cache(&empty(len, block_size(mode), false), kind(mode)))
            .clone()
    }

    fn format(&self, device: &Device) -> Result<(), Flaw> {
        let alone = device::disk(device.disk());
        format(&alone, &format_options(false, BLOCK, false)).map_err(|e| e.to_string())
    }

    /// A cache that is not there, or is detached, is made or attached first.
    fn mount(&self, device: &Device, how: &Mounting) -> Result<Box<dyn Mounted>, Flaw> {
        Ok(Box::new(Behind::mount(device, how, 0)?))
    }

    fn is_clean(&self, device: &Device) -> Result<bool, Flaw> {
        let info = ffs::inspect(&Opened::of(device)?.disk).map_err(|e| e.to_string())?;
        Ok(info.clean)
    }

    fn edition(&self) -> Option<u64> {
        Some(pmem::fault::all_injected())
    }

    fn audit(&self, device: &Device) -> Result<(), Flaw> {
        let copy = Device::of(&device.image(), Rules::Both(Domain::Cache));
        let opened = Opened::of(&copy)?;
        opened.free_orphans()?;
        opened.assert_clean().map_err(|e| format!("audit: {e}"))?;
        match &opened.cache {
            Some(cache) => flushed(cache, &copy),
            None => Ok(()),
        }
    }

    /// States that were judged before are not judged again: see `cached/known.rs`.
    fn sound(&self, device: &Device) -> Result<Arc<Tree>, Flaw> {
        known::sound(device, || {
            self.audit(device)?;
            (self as &dyn Engine).found(device).map(Arc::new)
        })
    }

    fn flawless(&self, device: &Device) -> Result<Census, Flaw> {
        let opened = Opened::of(device)?;
        let inodes = opened.assert_clean()?;
        let fs = opened.mount(LATER, options(true, Thresholds::Usual))?;
        let tree = Tree::of(&fs, &[])?;
        Ok(Census {
            inodes,
            names: tree.objects.values().map(|o| o.names.len() as u64).sum(),
        })
    }

    fn repair(&self, device: &Device) -> Result<(), Flaw> {
        let opened = Opened::of(device)?;
        opened.free_orphans()?;
        let report = check(&opened.disk, true, LATER, &|_, _, _| ()).map_err(|e| e.to_string())?;
        match report.exit_code() {
            0 => Ok(()),
            _ => Err(format!("fsck finds what no crash leaves:\n{report}")),
        }
    }

    /// And the cache is detached.
    fn reclaim(&self, device: &Device) -> Result<Tree, Flaw> {
        let fs = (self as &dyn Engine).mount_at(device, LATER)?;
        let tree = fs.tree()?;
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        drop(fs);
        detach(device).map_err(|e| format!("detach: {e}"))?;
        Ok(tree)
    }

    /// Access lists are stored in another form than callers have them, so they must be some.
    fn skips(&self, op: &Op, _: Mode) -> bool {
        matches!(op, Op::SetAcl { .. } | Op::Inherit { .. }) || op.is_of_snapshots()
    }

    fn place(&self, at: u64, _len: u64, _inode: &dyn Fn(u64) -> bool) -> String {
        let (medium, from) = match at < MEMORY_LEN {
            true => ("memory", 0),
            false => ("disk", MEMORY_LEN),
        };
        let at = at - from;
        format!("{medium}, block {}, byte {}", at / PAGE, at % PAGE)
    }

    fn sources(&self) -> &'static [&'static str] {
        &["crates/cache/src/"]
    }
}

fn kind(mode: Mode) -> Kind {
    match mode {
        TINCA | TINCA_1K => Kind::Tinca,
        _ => Kind::Spindle,
    }
}

fn block_size(mode: Mode) -> u32 {
    match mode {
        SPINDLE_1K | TINCA_1K => BLOCK_SMALL,
        _ => BLOCK,
    }
}

fn create_options(kind: Kind) -> CreateOptions {
    CreateOptions {
        kind,
        uuid: [3; 16],
        unit: pmem::LINE,
        metadata: METADATA,
    }
}

fn options(read_only: bool, thresholds: Thresholds) -> MountOptions {
    MountOptions {
        read_only,
        hash_key: [9; 16],
        cache_bytes: match thresholds {
            Thresholds::Usual | Thresholds::Tight => DIRTY_MAX,
            Thresholds::Crowded => DIRTY_FEW,
        },
        mode: ffs::Mode::Soft,
    }
}

/// An image of a disk behind a memory with a new cache. Nothing that leads to no block of it passes
/// for a block.
fn with_cache(disk: &Image, kind: Kind) -> Image {
    let mut image = Image::zeros(MEMORY_LEN + disk.len());
    image.fill(0..MEMORY_LEN / PAGE, POISON);
    for (page, bytes) in disk.pages() {
        image.write(MEMORY_LEN + page * PAGE, bytes);
    }
    let device = Device::of(&image, Rules::Both(Domain::Cache));
    create(&device, kind).expect("a cache fits");
    device.image()
}

fn binding() -> Arc<Ext2Binding> {
    Arc::new(Ext2Binding)
}

fn create(device: &Device, kind: Kind) -> Result<Cache, CacheError> {
    let (pool, disk) = (device.pool().clone(), device::disk(device.disk()));
    Cache::create_within(pool, CACHE_LEN, disk, binding(), &create_options(kind))
}

fn open(device: &Device) -> Result<Cache, CacheError> {
    let (pool, disk) = (device.pool().clone(), device::disk(device.disk()));
    Cache::open(pool, disk, binding())
}

fn detach(device: &Device) -> Result<(), CacheError> {
    open(device)?.detach()
}

/// What the disk of a device has alone, once its cache is given back.
///
/// # Errors
/// The cache cannot be opened or detached.
pub fn disk_alone(device: &Device) -> Result<Vec<u8>, CacheError> {
    if is_bound(device)? {
        detach(device)?;
    }
    let mut bytes = vec![0; device.disk().len() as usize];
    device.disk().read(0, &mut bytes);
    Ok(bytes)
}

/// Whether there is a cache that belongs to the disk. A crash in its making leaves none.
fn is_bound(device: &Device) -> Result<bool, CacheError> {
    match cache::is_bound(device.pool().clone()) {
        Err(CacheError::NotACache(_)) => Ok(false),
        bound => bound,
    }
}

/// The disk through its cache, if that is bound to it, and alone if not.
struct Opened {
    disk: Disk,
    cache: Option<Arc<Cache>>,
}

impl Opened {
    fn of(device: &Device) -> Result<Opened, Flaw> {
        let opened = || match is_bound(device)? {
            true => open(device).map(|cache| Some(Arc::new(cache))),
            false => Ok(None),
        };
        let cache = opened().map_err(|e| format!("opening the cache: {e}"))?;
        Ok(Opened {
            disk: match &cache {
                Some(cache) => CacheStore::disk(cache),
                None => device::disk(device.disk()),
            },
            cache,
        })
    }

    fn mount(&self, time: Time, options: MountOptions) -> Result<Ffs, Flaw> {
        let mounted = match &self.cache {
            Some(cache) => Ffs::mount_cached(cache, clock(time), options),
            None => Ffs::mount(self.disk.clone(), clock(time), options),
        };
        mounted.map_err(|e| format!("mount: {e}"))
    }

    /// Inodes that have no names, and are in the list of those, are freed by the next mount.
    fn free_orphans(&self) -> Result<(), Flaw> {
        let superblock = ffs::superblock(&self.disk).map_err(|e| e.to_string())?;
        if superblock.last_orphan.get() == 0 {
            return Ok(());
        }
        let fs = self.mount(LATER, options(false, Thresholds::Usual))?;
        fs.unmount().map_err(|e| format!("unmount: {e}"))
    }

    /// Nothing is found, not even what would be repaired without a word; how many inodes there are.
    fn assert_clean(&self) -> Result<u64, Flaw> {
        let report = check(&self.disk, false, LATER, &|_, _, _| ()).map_err(|e| e.to_string())?;
        match report.findings.is_empty() && report.was_clean {
            true => Ok(report.inodes),
            false => Err(format!("it is not clean:\n{report}")),
        }
    }
}

/// Lets the disk have everything: alone it holds what it held through the cache.
fn flushed(cache: &Cache, device: &Device) -> Result<(), Flaw> {
    let len = device.disk().len() as usize;
    let (mut shown, mut alone) = (vec![0; len], vec![0; len]);
    let failed = |e| format!("flushing the cache: {e}");
    cache.read(0, &mut shown).map_err(failed)?;
    cache.flush().map_err(failed)?;
    device.disk().read(0, &mut alone);
    let mut blocks = shown
        .chunks(BLOCK as usize)
        .zip(alone.chunks(BLOCK as usize));
    match blocks.position(|(shown, alone)| shown != alone) {
        Some(block) => Err(format!(
            "once flushed the disk has other bytes in block {block}"
        )),
        None => Ok(()),
    }
}

/// A mount behind a cache.
struct Behind {
    side: Side<Ffs>,
    cache: Arc<Cache>,
    device: Device,
    how: Mounting,
    /// Transactions of the caches before this one.
    before: u64,
}

impl Behind {
    fn mount(device: &Device, how: &Mounting, before: u64) -> Result<Behind, Flaw> {
        let (pool, disk) = (device.pool().clone(), device::disk(device.disk()));
        let cache = || match is_bound(device)? {
            true => open(device),
            false => match Cache::attach(pool, disk, binding()) {
                Err(CacheError::NotACache(_)) => create(device, kind(how.mode)),
                attached => attached,
            },
        };
        let cache = Arc::new(cache().map_err(|e| format!("the cache: {e}"))?);
        if how.thresholds != Thresholds::Usual {
            cache.set_bypass(BYPASS);
            cache.keep_reads(true);
        }
        let options = options(false, how.thresholds);
        let fs = Ffs::mount_cached(&cache, how.clock.clone(), options);
        Ok(Behind {
            side: Side::new(fs.map_err(|e| format!("mount: {e}"))?),
            cache,
            device: device.clone(),
            how: how.clone(),
            before,
        })
    }

    fn tell(&mut self, op: CacheOp) -> Result<(), CacheError> {
        match op {
            CacheOp::Flush => self.cache.flush(),
            CacheOp::Through(is_through) => self.cache.set_through(is_through),
            CacheOp::FlushUnmounted => open(&self.device)?.flush(),
            CacheOp::Detach => detach(&self.device),
            CacheOp::Renew => {
                detach(&self.device)?;
                create(&self.device, kind(self.how.mode)).map(drop)
            }
            CacheOp::Resize { is_large } => {
                let len = if is_large { MEMORY_LEN } else { CACHE_LEN };
                open(&self.device)?.resize(len).map(drop)
            }
        }
    }
}

impl Mounted for Behind {
    fn run(&mut self, op: &Op) -> vfs::Result<()> {
        let Op::Cache(told) = *op else {
            return Mounted::run(&mut self.side, op);
        };
        let unmounts = Op::Cache(told).syncs_all();
        if unmounts {
            self.let_go();
            self.unmount()?;
        }
        self.tell(told).map_err(|e| Error::medium(e.to_string()))?;
        if unmounts {
            let before = self.batches();
            *self = Behind::mount(&self.device, &self.how, before).map_err(Error::medium)?;
        }
        Ok(())
    }

    fn act(&self, op: &Op) -> vfs::Result<()> {
        Mounted::act(&self.side, op)
    }

    fn suffer(&mut self, shortage: &mut Shortage, op: &Op) -> vfs::Result<()> {
        Mounted::suffer(&mut self.side, shortage, op)
    }

    fn as_far_as_it_went(&self, op: &Op) -> Op {
        Mounted::as_far_as_it_went(&self.side, op)
    }

    fn tree(&self) -> Result<Tree, Flaw> {
        self.side.tree()
    }

    fn id(&self, path: &str) -> Option<Id> {
        self.side.id(path)
    }

    fn held(&self, handle: usize) -> Option<(Id, u32)> {
        self.side.held(handle)
    }

    fn open(&mut self, path: &str) -> vfs::Result<()> {
        Mounted::open(&mut self.side, path)
    }

    fn let_go(&mut self) {
        self.side.let_go();
    }

    fn limits(&self) -> Limits {
        self.side.limits()
    }

    fn free(&self) -> u64 {
        self.side.free()
    }

    /// Transactions of the cache.
    fn batches(&self) -> u64 {
        self.before + self.cache.status().commits
    }

    fn unmount(&self) -> vfs::Result<()> {
        Mounted::unmount(&self.side)
    }
}

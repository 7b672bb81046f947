//! The engine of ext2 in-process, on a disk of its own, alone or behind a persistent cache.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use block::{Device, Disk};
use cache::{Cache, CreateOptions, Kind, Writer};
use ffs::{Ext2Binding, Ffs, FormatOptions, Mode, MountOptions};
use pmem::{Domain, Latency, Options, Pool};
use rustix::fs::{FallocateFlags, fallocate};
use vfs::{Clock, SystemClock};

use super::{Engine, LogSetup, Result};

/// How the engine of ext2 is set up. The default is that of a mount.
#[derive(Debug, Clone)]
pub struct BlockSetup {
    /// Length of the disk: bytes.
    pub len: u64,
    /// What a crash may leave.
    pub mode: Mode,
    /// Bytes of blocks that are kept in DRAM; so many more may be there that are to be written.
    pub cache_bytes: usize,
    /// One inode for so many bytes of the disk.
    pub bytes_per_inode: u32,
    /// Make image files without blocks; they come when needed.
    pub sparse: bool,
    /// A persistent cache before the disk.
    pub cache: Option<CacheSetup>,
    /// The journal is in memory beside the disk.
    pub log: Option<LogSetup>,
}

/// How a persistent cache is set up.
#[derive(Debug, Clone)]
pub struct CacheSetup {
    /// Which protocol.
    pub kind: Kind,
    /// Length of its memory: bytes.
    pub len: u64,
    /// What the memory promises, hence what is flushed.
    pub domain: Domain,
    /// Extra latency to emulate.
    pub latency: Latency,
    /// A thread writes to the disk what has become much. Else commits do it when they must.
    pub writes_behind: bool,
    /// Bytes of a run of new blocks that go past it; 0: none does.
    pub bypass: u64,
    /// Blocks that are read are kept.
    pub keeps_reads: bool,
}

/// Bytes of metadata that are logged and changed together: a line.
const UNIT: u64 = 64;

/// The part of a cache in which replacement leaves metadata in peace, as of `tureen cache create`.
const METADATA_PART: u64 = 8;

impl Default for BlockSetup {
    fn default() -> BlockSetup {
        BlockSetup {
            len: 1 << 30,
            mode: Mode::default(),
            cache_bytes: 128 << 20,
            bytes_per_inode: 4096,
            sparse: false,
            cache: None,
            log: None,
        }
    }
}

impl CacheSetup {
    /// One of a length, of domain `line` with real flushes.
    pub fn new(kind: Kind, len: u64) -> CacheSetup {
        CacheSetup {
            kind,
            len,
            domain: Domain::Line,
            latency: Latency::default(),
            writes_behind: true,
            bypass: 0,
            keeps_reads: false,
        }
    }

    fn options(&self) -> Options {
        Options {
            domain: Some(self.domain),
            latency: self.latency,
            exclusive: false,
            ..Options::default()
        }
    }

    /// Makes an empty cache before a disk, in memory of this process.
    pub fn create(&self, disk: &Disk) -> Result<Front> {
        self.create_in(Pool::anonymous(self.len, &self.options())?, disk)
    }

    /// Makes an empty cache before a disk, in a file whose blocks come when they are written.
    pub fn create_sparse_at(&self, path: &Path, disk: &Disk) -> Result<Front> {
        let options = Options {
            sparse: true,
            ..self.options()
        };
        self.create_in(Pool::create(path, self.len, &options)?, disk)
    }

    fn create_in(&self, pool: Pool, disk: &Disk) -> Result<Front> {
        let options = CreateOptions {
            kind: self.kind,
            uuid: [3; 16],
            unit: UNIT,
            metadata: self.len / METADATA_PART,
        };
        let (pool, binding) = (Arc::new(pool), Arc::new(Ext2Binding));
        let cache = Cache::create(pool.clone(), disk.clone(), binding, &options)?;
        cache.set_bypass(self.bypass);
        cache.keep_reads(self.keeps_reads);
        let cache = Arc::new(cache);
        Ok(Front { cache, pool })
    }

    /// Opens a cache that is in a file, as after a crash.
    pub fn open_at(&self, path: &Path, disk: &Disk) -> Result<Front> {
        let pool = Arc::new(Pool::open(path, &self.options())?);
        let cache = Cache::open(pool.clone(), disk.clone(), Arc::new(Ext2Binding))?;
        let cache = Arc::new(cache);
        Ok(Front { cache, pool })
    }
}

/// A persistent cache before a disk, and its memory.
#[derive(Clone)]
pub struct Front {
    /// The cache.
    pub cache: Arc<Cache>,
    /// Its memory.
    pub pool: Arc<Pool>,
}

/// A mounted file system of ext2, and a process on it. What it keeps in DRAM goes with it: only
/// what was made durable is on the disk.
pub struct Blocks {
    /// What is called.
    pub engine: Engine<Ffs>,
    /// The disk itself, below a cache.
    pub disk: Disk,
    /// The cache before it, if there is one.
    pub front: Option<Front>,
    /// The memory of that, or of its journal.
    pub memory: Option<Arc<Pool>>,
    /// Writes what is in the cache to the disk; ends after the file system.
    writer: Option<Writer>,
}

impl Blocks {
    /// Make everything durable, and the file system clean; the disk has everything then.
    pub fn unmount(self) -> Result<Disk> {
        self.engine.fs().unmount()?;
        drop(self.writer);
        if let Some(front) = &self.front {
            front.cache.flush()?;
        }
        Ok(self.disk)
    }
}

impl BlockSetup {
    /// One in a mode.
    pub fn in_mode(mode: Mode, len: u64) -> BlockSetup {
        BlockSetup {
            len,
            mode,
            ..BlockSetup::default()
        }
    }

    /// An empty file system on a disk that reads as zeros.
    pub fn format(&self, disk: &Disk) -> Result<()> {
        let options = FormatOptions {
            uuid: [1; 16],
            label: "bench".into(),
            hash_seed: [2; 16],
            time: SystemClock.now(),
            owner: (0, 0),
            zeroed: true,
            block_size: 4096,
            inode_size: 256,
            bytes_per_inode: self.bytes_per_inode,
            journal: self.mode.is_journaled(),
        };
        Ok(ffs::format(disk, &options)?)
    }

    /// An image file with an empty file system in it.
    pub fn create(&self, image: &Path) -> Result<Disk> {
        let file = File::create_new(image)?;
        file.set_len(self.len)?;
        if !self.sparse {
            // As `tureen mkfs` does; in memory it costs what a first write would.
            fallocate(&file, FallocateFlags::empty(), 0, self.len)?;
        }
        drop(file);
        let disk = self.open(image)?;
        self.format(&disk)?;
        Ok(disk)
    }

    /// Open an image file that is there.
    pub fn open(&self, image: &Path) -> Result<Disk> {
        Ok(Disk::new(self.device(image)?))
    }

    /// The same, for layers to be put on.
    pub fn device(&self, image: &Path) -> Result<Arc<dyn Device>> {
        let options = block::OpenOptions {
            // A lock would outlive the disk for a moment in each program that is just started.
            lock: false,
            ..block::OpenOptions::default()
        };
        Ok(options.device(image)?)
    }

    /// Mounts what is on a device whose image was just made. What is to be in memory, a cache or
    /// the journal, is in that of this process.
    pub fn mount_new(&self, name: impl Into<String>, device: Arc<dyn Device>) -> Result<Blocks> {
        let Some(log) = &self.log else {
            return self.mount(name, Disk::new(device));
        };
        let (disk, memory) = log.split(device)?;
        Ok(Blocks {
            memory: Some(memory),
            ..self.mount(name, disk)?
        })
    }

    /// Mount what is on a disk; if there is to be a cache before it, that is made, in memory of
    /// this process.
    pub fn mount(&self, name: impl Into<String>, disk: Disk) -> Result<Blocks> {
        let front = self.cache.as_ref().map(|setup| setup.create(&disk));
        self.mount_behind(name, disk, front.transpose()?)
    }

    /// Mount what is on a disk, through the cache before it if there is one.
    pub fn mount_behind(
        &self,
        name: impl Into<String>,
        disk: Disk,
        front: Option<Front>,
    ) -> Result<Blocks> {
        let options = MountOptions {
            read_only: false,
            hash_key: [4; 16],
            cache_bytes: self.cache_bytes,
            mode: self.mode,
        };
        let clock = Arc::new(SystemClock);
        let fs = match &front {
            Some(front) => Ffs::mount_cached(&front.cache, clock, options)?,
            None => Ffs::mount(disk.clone(), clock, options)?,
        };
        let writes_behind = self.cache.as_ref().is_none_or(|cache| cache.writes_behind);
        let behind = front.as_ref().filter(|_| writes_behind);
        let writer = behind.map(|front| Writer::start(front.cache.clone()));
        Ok(Blocks {
            engine: Engine::of(name, fs),
            disk,
            writer: writer.transpose()?,
            memory: front.as_ref().map(|front| front.pool.clone()),
            front,
        })
    }
}

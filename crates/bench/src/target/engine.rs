//! An engine in-process, through the path layer of `vfs`; and SoupFS, on an image of its own.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pmem::{Domain, Latency, Options, Pool, Recorder};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, Status};
use thread_local::ThreadLocal;
use vfs::{
    Clock, Context, Cred, Fd, FileSystem, Files, OpenFlags, RenameMode, SystemClock, Vfs,
    VfsOptions,
};

use super::{Result, Target, all_of, write_all};

/// Names handed out at once: about as many as fit into the buffer of a `getdents` call.
const PORTION: u64 = 1024;

/// How an engine is set up. The default is what the headline figures use: domain `line` with real
/// flushes, and the defaults of a mount.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Length of the image: bytes.
    pub len: u64,
    /// Files that there will be. Engines have room for any number that the image has room for;
    /// other file systems get a device large enough for so many.
    pub files: u64,
    /// What the medium promises, hence what is flushed.
    pub domain: Domain,
    /// Extra latency to emulate.
    pub latency: Latency,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Make an image without blocks; they come when needed.
    pub sparse: bool,
    /// When operations become durable.
    pub mode: Mode,
    /// How late the consistent view may be.
    pub bound: Duration,
    /// DRAM for operations that are not persisted: bytes.
    pub backlog_max: u64,
    /// Inodes kept in DRAM beyond those in use.
    pub inodes_max: u64,
    /// Without background threads: what is pending is persisted by `sync` alone.
    pub manual: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        let mount = MountOptions::new(Arc::new(SystemClock));
        Setup {
            len: 1 << 30,
            files: 0,
            domain: Domain::Line,
            latency: Latency::default(),
            huge_pages: false,
            sparse: false,
            mode: mount.mode,
            bound: mount.bound,
            backlog_max: mount.backlog_max,
            inodes_max: mount.inodes_max,
            manual: false,
        }
    }
}

impl Setup {
    fn pool_options(&self) -> Options {
        Options {
            domain: Some(self.domain),
            latency: self.latency,
            huge_pages: self.huge_pages,
            sparse: self.sparse,
            // Nobody else opens an image in a directory of ours. A lock would outlive the pool for
            // a moment in each program that another thread is just starting (fork).
            exclusive: false,
            ended_well: soupfs::ended_well,
            ..Options::default()
        }
    }

    /// Make an image file with an empty file system in it.
    pub fn create(&self, image: &Path) -> Result<Arc<Pool>> {
        let pool = Arc::new(Pool::create(image, self.len, &self.pool_options())?);
        self.format(&pool)?;
        Ok(pool)
    }

    /// An empty file system in anonymous memory: for counts, where time does not matter.
    pub fn anonymous(&self) -> Result<Arc<Pool>> {
        let pool = Arc::new(Pool::anonymous(self.len, &self.pool_options())?);
        self.format(&pool)?;
        Ok(pool)
    }

    /// The same, with all stores seen by a recorder: for counts of another kind.
    pub fn recorded(&self, recorder: Arc<dyn Recorder>) -> Result<Arc<Pool>> {
        let options = Options {
            recorder: Some(recorder),
            ..self.pool_options()
        };
        let pool = Arc::new(Pool::anonymous(self.len, &options)?);
        self.format(&pool)?;
        Ok(pool)
    }

    fn format(&self, pool: &Arc<Pool>) -> Result<()> {
        let options = FormatOptions {
            // Fixed, so that names fall into the same buckets in each run.
            uuid: [1; 16],
            label: "bench".into(),
            hash_key: [2; 16],
            time: SystemClock.now(),
            owner: (0, 0),
            zeroed: true,
        };
        Ok(soupfs::format(pool, &options)?)
    }

    /// Open an image file that is there.
    pub fn open(&self, image: &Path) -> Result<Arc<Pool>> {
        Ok(Arc::new(Pool::open(image, &self.pool_options())?))
    }

    /// Mount the image in a pool.
    pub fn mount(&self, name: impl Into<String>, pool: Arc<Pool>) -> Result<Engine> {
        let options = MountOptions {
            mode: self.mode,
            bound: self.bound,
            backlog_max: self.backlog_max,
            inodes_max: self.inodes_max,
            manual: self.manual,
            ..MountOptions::new(Arc::new(SystemClock))
        };
        Ok(Engine::of(name, SoupFs::mount(pool, options)?))
    }
}

/// A mounted image, and a process on it.
pub struct Engine<F: FileSystem = SoupFs> {
    name: String,
    fs: F,
    files: Files<F>,
    contexts: ThreadLocal<Context<F>>,
}

impl<F: FileSystem + Clone> Engine<F> {
    /// A process on a file system that is mounted.
    pub fn of(name: impl Into<String>, fs: F) -> Engine<F> {
        let vfs = Arc::new(Vfs::new(fs.clone(), VfsOptions::default()));
        Engine {
            name: name.into(),
            contexts: ThreadLocal::new(),
            files: Files::new(vfs, 4096),
            fs,
        }
    }
}

impl<F: FileSystem> Engine<F> {
    /// What the calling thread acts with.
    #[inline]
    fn ctx(&self) -> &Context<F> {
        self.contexts
            .get_or(|| Context::new(self.files.vfs(), Cred::root()))
    }

    /// The file system itself.
    pub fn fs(&self) -> &F {
        &self.fs
    }
}

impl Engine {
    /// State and figures of the mount.
    pub fn status(&self) -> Status {
        self.fs.status()
    }

    /// The medium.
    pub fn pool(&self) -> &Arc<Pool> {
        self.fs.pool()
    }

    /// Persist everything, mark the image clean; returns the medium.
    pub fn unmount(self) -> Result<Arc<Pool>> {
        let pool = self.fs.pool().clone();
        self.fs.unmount()?;
        Ok(pool)
    }

    /// Files that the engine says can be made.
    pub fn bytes_free(&self) -> u64 {
        self.fs.status().bytes_free
    }
}

impl<F: FileSystem> Target for Engine<F> {
    type File = Fd;

    fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn create(&self, path: &CStr) -> Result<Fd> {
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCL;
        Ok(self.files.open(self.ctx(), path.to_bytes(), flags, 0o644)?)
    }

    #[inline]
    fn open(&self, path: &CStr, append: bool) -> Result<Fd> {
        let mut flags = OpenFlags::READ | OpenFlags::WRITE;
        flags.set(OpenFlags::APPEND, append);
        Ok(self.files.open(self.ctx(), path.to_bytes(), flags, 0)?)
    }

    #[inline]
    fn close(&self, file: Fd) -> Result<()> {
        Ok(self.files.close(file)?)
    }

    #[inline]
    fn unlink(&self, path: &CStr) -> Result<()> {
        Ok(self.files.unlink(self.ctx(), path.to_bytes())?)
    }

    #[inline]
    fn mkdir(&self, path: &CStr) -> Result<()> {
        Ok(self.files.mkdir(self.ctx(), path.to_bytes(), 0o755)?)
    }

    #[inline]
    fn rmdir(&self, path: &CStr) -> Result<()> {
        Ok(self.files.rmdir(self.ctx(), path.to_bytes())?)
    }

    #[inline]
    fn rename(&self, old: &CStr, new: &CStr) -> Result<()> {
        let (old, new) = (old.to_bytes(), new.to_bytes());
        Ok(self
            .files
            .rename(self.ctx(), old, new, RenameMode::Replace)?)
    }

    #[inline]
    fn stat(&self, path: &CStr) -> Result<u64> {
        Ok(self.files.stat(self.ctx(), path.to_bytes())?.size)
    }

    #[inline]
    fn write(&self, file: Fd, data: &[u8]) -> Result<()> {
        write_all(data, |rest, _| {
            Ok(self.files.write(self.ctx(), file, rest)?)
        })
    }

    #[inline]
    fn write_at(&self, file: Fd, data: &[u8], offset: u64) -> Result<()> {
        write_all(data, |rest, done| {
            Ok(self.files.pwrite(self.ctx(), file, rest, offset + done)?)
        })
    }

    #[inline]
    fn read_at(&self, file: Fd, data: &mut [u8], offset: u64) -> Result<()> {
        let asked = data.len();
        all_of(self.files.pread(file, data, offset)?, asked)
    }

    fn truncate(&self, file: Fd, size: u64) -> Result<()> {
        Ok(self.files.ftruncate(self.ctx(), file, size)?)
    }

    fn list(&self, path: &CStr) -> Result<u64> {
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let dir = self.files.open(self.ctx(), path.to_bytes(), flags, 0)?;
        let mut names = 0;
        // In portions, as getdents hands them out; the last one is empty.
        loop {
            let mut taken = 0;
            self.files.readdir(dir, |_| {
                let room = taken < PORTION;
                taken += u64::from(room);
                room
            })?;
            if taken == 0 {
                break;
            }
            names += taken;
        }
        self.files.close(dir)?;
        Ok(names)
    }

    fn fsync(&self, file: Fd) -> Result<()> {
        Ok(self.files.fsync(file)?)
    }

    fn fdatasync(&self, file: Fd) -> Result<()> {
        Ok(self.files.fdatasync(file)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.syncfs()?)
    }
}

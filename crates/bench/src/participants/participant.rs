//! One target that takes part: what is called, what the report says of it, and its counters.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use soupfs::Mode;

use super::kernel;
use super::mount::MountProcess;
use super::namespace::Attached;
use super::outside::OutsideDir;
use crate::counters::CounterSource;
use crate::plan::Plan;
use crate::report::Peer;
use crate::target::{
    BlockSetup, BlockSpec, Blocks, Directory, Engine, EngineSpec, Ext2Mount, Failure, Result,
    Setup, Target, TargetSpec, mode_name,
};

/// A target that takes part.
pub struct Participant {
    /// What is called.
    pub target: AnyTarget,
    /// What the report says of it.
    pub peer: Peer,
    /// Its counters.
    pub counters: CounterSource,
    /// Where programs find it, if a path leads there.
    pub path: Option<PathBuf>,
    /// Goes away after `target`: fields are dropped in order.
    guard: Guard,
}

/// A target of either kind.
pub enum AnyTarget {
    /// In-process.
    Engine(Box<Engine>),
    /// The engine of ext2 in-process.
    Blocks(Box<Blocks>),
    /// By system calls.
    Directory(Directory),
}

/// What lives as long as a target.
enum Guard {
    Nothing,
    Dir(#[allow(dead_code, reason = "held for its Drop")] OutsideDir),
    Mount(Box<Mutex<MountProcess>>),
    /// The file behind a loop device.
    Image(
        File,
        #[allow(dead_code, reason = "held for its Drop")] Option<Attached>,
    ),
    Attached(#[allow(dead_code, reason = "held for its Drop")] Option<Attached>),
}

impl Participant {
    /// Set up a target, with what it keeps in `dir`.
    pub(super) fn start(
        plan: &Plan,
        spec: &TargetSpec,
        setup: &Setup,
        dir: &Path,
    ) -> Result<Participant> {
        match spec {
            TargetSpec::Engine(engine) => Participant::engine(plan, engine, setup, dir),
            TargetSpec::Blocks(blocks) => Participant::blocks(blocks, setup, dir),
            TargetSpec::MountExt2(mount) => Participant::mount_ext2(plan, mount, setup, dir),
            TargetSpec::Tmpfs => Participant::tmpfs(plan, dir),
            TargetSpec::Mount(options) => {
                let process = MountProcess::new(plan, options, setup, dir)?;
                let about = format!(
                    "SoupFS by system calls through FUSE, `tureen mount -o {}`",
                    process.options()
                );
                let durability = "as SoupFS; FUSE does not forward syncfs, an attribute of the \
                                  root waits in its place";
                let peer = peer(spec.name(), about, durability).blocks(BEFOREHAND);
                Participant::mounted(process, peer)
            }
            TargetSpec::Fuse2fs => Participant::fuse2fs(setup, dir),
            TargetSpec::Null => {
                let about = "a FUSE file system that does nothing, served as the mount is";
                let peer = peer(spec.name(), about, "nothing: it keeps nothing");
                Participant::mounted(MountProcess::null(plan, dir)?, peer)
            }
            TargetSpec::Kernel(kernel) => {
                let len = setup.len.max(setup.files * kernel::BYTES_PER_FILE);
                let at = path_in(plan, dir)?;
                let device = kernel::set_up(kernel, len, dir, at.as_deref())?;
                Ok(Participant {
                    target: AnyTarget::Directory(Directory::of(spec.name(), device.root)?),
                    peer: peer(spec.name(), device.about, device.durability).blocks(blocks_in(dir)),
                    counters: CounterSource::Device(device.stat),
                    guard: Guard::Image(device.image, at.clone().map(Attached)),
                    path: at,
                })
            }
            TargetSpec::Host => Participant::host(dir),
            TargetSpec::Path(path) => Participant::path(path),
        }
    }

    /// Count what another source counts, too, if there is one.
    pub(super) fn count_also(&mut self, other: Option<CounterSource>) {
        if let Some(other) = other {
            let own = std::mem::replace(&mut self.counters, CounterSource::None);
            self.counters = CounterSource::All(vec![own, other]);
        }
    }

    /// Its directory, opened anew.
    ///
    /// # Errors
    /// If it cannot be; an engine has none.
    pub fn directory(&self) -> Result<Directory> {
        let name = self.peer.name.as_str();
        match (&self.path, &self.target) {
            (Some(path), _) => Directory::new(name, path),
            (None, AnyTarget::Directory(directory)) => directory.again(),
            (None, _) => Err("an engine in-process has no directory".into()),
        }
    }

    /// Where programs find it.
    ///
    /// # Errors
    /// If no path leads there.
    pub fn place(&self) -> Result<&Path> {
        let path = self.path.as_deref();
        path.ok_or_else(|| self.failed("no path leads there".into()))
    }

    /// Have what is read next come from the disk: a server in user space is ended and started
    /// again, and the kernel forgets the image. What [`Participant::directory`] gave before, and
    /// the target, are not to be used any more. A file's own pages are another matter
    /// ([`crate::Target::uncached`]).
    ///
    /// # Errors
    /// If it does not come back.
    pub fn chill(&self) -> Result<()> {
        match &self.guard {
            Guard::Nothing | Guard::Dir(_) | Guard::Attached(_) => Ok(()),
            Guard::Mount(process) => {
                let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
                process.restart()
            }
            Guard::Image(image, _) => {
                self.directory()?.sync()?;
                kernel::forget(image)
            }
        }
    }

    /// An error, with whose it is.
    pub fn failed(&self, why: Failure) -> Failure {
        format!("{}: {why}", self.peer.name).into()
    }

    /// A directory on the file system that images of others lie on.
    fn host(dir: &Path) -> Result<Participant> {
        let on = kernel::file_system_of(dir);
        let about = format!("a directory on the {on} that images lie on, by system calls");
        let durability = "what that file system does by itself; all of it in fsync and syncfs";
        let name = TargetSpec::Host.name();
        Ok(Participant {
            target: AnyTarget::Directory(Directory::new(name.as_str(), dir)?),
            peer: peer(name, about, durability).blocks(BY_THE_APPEND),
            counters: CounterSource::None,
            path: Some(dir.to_owned()),
            guard: Guard::Nothing,
        })
    }

    fn tmpfs(plan: &Plan, dir: &Path) -> Result<Participant> {
        let name = TargetSpec::Tmpfs.name();
        // The scratch directory's own tmpfs has a limit to its files.
        let at = path_in(plan, dir)?;
        let (directory, path, guard, what) = match kernel::tmpfs(at.as_deref()) {
            Some(root) => (
                Directory::of(name.as_str(), root)?,
                at.clone(),
                Guard::Attached(at.map(Attached)),
                "a tmpfs of its own".into(),
            ),
            None => (
                Directory::new(name.as_str(), dir)?,
                Some(dir.to_owned()),
                Guard::Nothing,
                format!("a directory on {}", kernel::file_system_of(dir)),
            ),
        };
        Ok(Participant {
            target: AnyTarget::Directory(directory),
            peer: peer(
                name,
                format!("{what}, by system calls"),
                "nothing, ever: it is memory; fsync and syncfs do nothing",
            )
            .blocks(BY_THE_APPEND),
            counters: CounterSource::None,
            path,
            guard,
        })
    }

    fn fuse2fs(setup: &Setup, dir: &Path) -> Result<Participant> {
        let process = MountProcess::fuse2fs(setup.len, dir)?;
        let on = kernel::file_system_of(dir);
        let about = format!("ext4 served by fuse2fs through FUSE, from a file on {on}");
        let durability = "what fuse2fs does by itself; all of it in fsync";
        let peer = peer(TargetSpec::Fuse2fs.name(), about, durability).blocks(blocks_in(dir));
        let own = Participant::mounted(process, peer)?;
        Ok(Participant {
            counters: CounterSource::None,
            ..own
        })
    }

    fn blocks(spec: &BlockSpec, setup: &Setup, dir: &Path) -> Result<Participant> {
        let own = for_files(spec.setup(setup.len), setup.files);
        let image = dir.join("image");
        drop(own.create(&image)?);
        let blocks = own.mount_new(spec.name(), own.device(&image)?)?;
        let cache = own.cache.as_ref().map(|cache| cache.kind.to_string());
        let behind = own.cache.as_ref().map_or(String::new(), |cache| {
            let (kind, mib) = (cache.kind, cache.len >> 20);
            format!(
                ", behind a {kind} cache of {mib} MiB, domain {}",
                cache.domain
            )
        });
        let beside = own.log.as_ref().map_or(String::new(), |log| {
            format!(", its journal in memory, domain {}", log.domain)
        });
        let about = format!(
            "our engine of ext2 in-process, mode {}, on an image file on {}{behind}{beside}; keeps \
             {} MiB of blocks in DRAM",
            spec.mode_name(),
            kernel::file_system_of(dir),
            own.cache_bytes >> 20
        );
        let durability = format!(
            "{}; without them a caller writes what has become much",
            blocks_durability(spec.mode_name(), cache.as_deref())
        );
        let disk = CounterSource::Requests(blocks.disk.clone());
        let counters = match &blocks.memory {
            Some(memory) => CounterSource::All(vec![CounterSource::Pool(memory.clone()), disk]),
            None => disk,
        };
        Ok(Participant {
            target: AnyTarget::Blocks(Box::new(blocks)),
            peer: peer(spec.name(), about, durability).blocks(match own.sparse {
                true => BY_THE_APPEND,
                false => BEFOREHAND,
            }),
            counters,
            path: None,
            guard: Guard::Nothing,
        })
    }

    fn mount_ext2(plan: &Plan, spec: &Ext2Mount, setup: &Setup, dir: &Path) -> Result<Participant> {
        let len = setup.len.max(setup.files * kernel::BYTES_PER_FILE);
        let process = MountProcess::ext2(plan, spec, len, dir)?;
        let about = format!(
            "an ext2 image of ours by system calls through FUSE, `tureen mount -o {}`{}",
            process.options(),
            match spec.cache {
                Some(kind) => format!(
                    ", with a {kind} cache of {} MiB in memory",
                    spec.cache_len(len) >> 20
                ),
                None => String::new(),
            }
        );
        let cache = spec.cache.map(|kind| kind.to_string());
        let durability = format!(
            "{}; every 5 s by itself",
            blocks_durability(spec.mode_name(), cache.as_deref())
        );
        let peer = peer(spec.name(), about, durability).blocks(BEFOREHAND);
        Participant::mounted(process, peer)
    }

    fn mounted(process: MountProcess, peer: Peer) -> Result<Participant> {
        let directory = Directory::new(peer.name.as_str(), process.root())?;
        Ok(Participant {
            target: AnyTarget::Directory(directory),
            peer,
            counters: CounterSource::Mount(process.root().to_owned()),
            path: Some(process.root().to_owned()),
            guard: Guard::Mount(Box::new(Mutex::new(process))),
        })
    }

    fn path(path: &Path) -> Result<Participant> {
        let name = path.display().to_string();
        let temp = OutsideDir::new(path)?;
        let on = kernel::file_system_of(path);
        let counters = match on.starts_with("fuse.tureen") {
            true => CounterSource::Mount(path.to_owned()),
            false => CounterSource::None,
        };
        Ok(Participant {
            target: AnyTarget::Directory(Directory::new(name.as_str(), temp.path())?),
            peer: peer(
                name,
                format!("a directory on {on}, by system calls"),
                "what that file system does by itself; fsync where the workload calls it",
            ),
            counters,
            path: Some(temp.path().to_owned()),
            guard: Guard::Dir(temp),
        })
    }

    fn engine(plan: &Plan, spec: &EngineSpec, setup: &Setup, dir: &Path) -> Result<Participant> {
        let setup = spec.setup(setup);
        let temp = spec.at.as_deref().map(OutsideDir::new).transpose()?;
        let image = temp.as_ref().map_or(dir, OutsideDir::path).join("image");
        let pool = setup.create(&image)?;
        let info = pool.info();
        let name = spec.name();
        let engine = setup.mount(name.as_str(), pool.clone())?;
        let about = format!(
            "SoupFS in-process, mode {}, domain {} on {}{}; flushes with {}",
            mode_name(setup.mode),
            info.domain,
            kernel::file_system_of(&image),
            if plan.huge_pages {
                ", huge pages asked for"
            } else {
                ""
            },
            info.flush.name(),
        );
        Ok(Participant {
            target: AnyTarget::Engine(Box::new(engine)),
            peer: peer(name, about, engine_durability(&setup)).blocks(match setup.sparse {
                true => BY_THE_APPEND,
                false => BEFOREHAND,
            }),
            counters: CounterSource::Pool(pool),
            path: None,
            guard: temp.map_or(Guard::Nothing, Guard::Dir),
        })
    }
}

/// What makes what durable in a mount of ext2, in-process or not.
fn blocks_durability(mode: &str, cache: Option<&str>) -> String {
    match cache {
        Some(kind) => format!(
            "what is written together is a transaction of a {kind} cache in memory, in fsync and \
             sync; the disk gets it later"
        ),
        None => format!("mode {mode}; all of it in fsync and sync, with flushes of the disk"),
    }
}

fn engine_durability(setup: &Setup) -> String {
    match setup.mode {
        Mode::Delayed => format!(
            "callers flush nothing; a persister flushes and fences within {} ms, and in fsync and \
             sync",
            setup.bound.as_millis()
        ),
        Mode::Sync => "each change of names and attributes is flushed and fenced before the call \
                       returns; contents by fsync"
            .into(),
        Mode::Strong => "each request, its contents with it, is flushed and fenced as a whole \
                         before the call returns and before others see it"
            .into(),
    }
}

/// An image of ext2 with room for so many files, of which the inodes stay in DRAM, as they do where
/// the kernel serves them; with none, as it was. Its blocks come when they are written: mostly the
/// length is for the number of inodes.
fn for_files(own: BlockSetup, files: u64) -> BlockSetup {
    /// Of DRAM for a file: its inode and its name, twice.
    const KEPT: u64 = 512;
    match files {
        0 => own,
        _ => BlockSetup {
            len: own.len.max(files * u64::from(own.bytes_per_inode)),
            sparse: true,
            cache_bytes: own.cache_bytes.max((files * KEPT) as usize),
            ..own
        },
    }
}

/// Where a file system of the kernel's is mounted: in a namespace of the plan's own on a path.
fn path_in(plan: &Plan, dir: &Path) -> Result<Option<PathBuf>> {
    if !plan.paths {
        return Ok(None);
    }
    let at = dir.join("root");
    std::fs::create_dir(&at)?;
    Ok(Some(at))
}

/// Where blocks of an append come from: the medium has them all, or its host allocates (and in
/// memory clears) each when it is written first.
const BEFOREHAND: &str = "allocated beforehand";
const BY_THE_APPEND: &str = "allocated by the append";

fn blocks_in(dir: &Path) -> &'static str {
    match kernel::is_allocated(dir) {
        true => BEFOREHAND,
        false => BY_THE_APPEND,
    }
}

fn peer(name: String, about: impl Into<String>, durability: impl Into<String>) -> Peer {
    Peer {
        name,
        about: about.into(),
        durability: durability.into(),
        blocks: String::new(),
        missing: None,
    }
}

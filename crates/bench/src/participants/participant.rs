//! One target that takes part: what is called, what the report says of it, and its counters.

use std::path::Path;

use soupfs::Mode;

use super::kernel;
use super::mount::MountProcess;
use super::outside::OutsideDir;
use crate::counters::CounterSource;
use crate::plan::Plan;
use crate::report::Peer;
use crate::target::{Directory, Engine, EngineSpec, Failure, Result, Setup, TargetSpec, mode_name};

/// A target that takes part.
pub struct Participant {
    /// What is called.
    pub target: AnyTarget,
    /// What the report says of it.
    pub peer: Peer,
    /// Its counters.
    pub counters: CounterSource,
    /// Goes away after `target`: fields are dropped in order.
    _guard: Guard,
}

/// A target of either kind.
pub enum AnyTarget {
    /// In-process.
    Engine(Box<Engine>),
    /// By system calls.
    Directory(Directory),
}

/// What lives as long as a target.
enum Guard {
    Nothing,
    Dir(#[allow(dead_code, reason = "held for its Drop")] OutsideDir),
    Mount(#[allow(dead_code, reason = "held for its Drop")] MountProcess),
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
            TargetSpec::Tmpfs => Participant::tmpfs(dir),
            TargetSpec::Mount(options) => {
                let process = MountProcess::new(plan, options, setup, dir)?;
                let about = format!(
                    "SoupFS by system calls through FUSE, `tureen mount -o {}`",
                    process.options()
                );
                let durability = "as SoupFS; FUSE does not forward syncfs, an attribute of the root waits in its place";
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
                let device = kernel::set_up(kernel, len, dir)?;
                Ok(Participant {
                    target: AnyTarget::Directory(Directory::of(spec.name(), device.root)?),
                    peer: peer(spec.name(), device.about, device.durability).blocks(blocks_in(dir)),
                    counters: CounterSource::Device(device.stat),
                    _guard: Guard::Nothing,
                })
            }
            TargetSpec::Path(path) => Participant::path(path),
        }
    }

    /// An error, with whose it is.
    pub fn failed(&self, why: Failure) -> Failure {
        format!("{}: {why}", self.peer.name).into()
    }

    fn tmpfs(dir: &Path) -> Result<Participant> {
        let name = TargetSpec::Tmpfs.name();
        // The scratch directory's own tmpfs has a limit to its files.
        let (directory, what) = match kernel::tmpfs() {
            Some(root) => (
                Directory::of(name.as_str(), root)?,
                "a tmpfs of its own".into(),
            ),
            None => (
                Directory::new(name.as_str(), dir)?,
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
            _guard: Guard::Nothing,
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

    fn mounted(process: MountProcess, peer: Peer) -> Result<Participant> {
        let directory = Directory::new(peer.name.as_str(), process.root())?;
        Ok(Participant {
            target: AnyTarget::Directory(directory),
            peer,
            counters: CounterSource::Mount(process.root().to_owned()),
            _guard: Guard::Mount(process),
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
            _guard: Guard::Dir(temp),
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
            _guard: temp.map_or(Guard::Nothing, Guard::Dir),
        })
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
    }
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

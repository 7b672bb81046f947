//! Who takes part: targets made from words, and taken away again.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pmem::Domain;
use soupfs::Mode;
use tempfile::TempDir;

use crate::counts::Probe;
use crate::kernel;
use crate::mounted::Mounted;
use crate::plan::Plan;
use crate::report::Peer;
use crate::target::{Directory, Engine, Failure, Result, Setup};

/// A target that somebody asked for, in words.
///
/// `soupfs[:OPTION=VALUE,...]`, `tmpfs`, `mount[:MOUNT OPTIONS]`, `nullfs`, `ext4`, `xfs`, `btrfs`, or the
/// path of a directory.
#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    /// SoupFS in-process.
    Engine(EngineSpec),
    /// A directory on the scratch file system.
    Tmpfs,
    /// SoupFS through FUSE, in a process of its own; with options of `tureen mount`.
    Mount(String),
    /// A FUSE file system that does nothing, in a process of its own.
    Null,
    /// A file system of the kernel's, on a loop device over the scratch file system.
    Kernel(&'static str),
    /// A directory that is there.
    Path(PathBuf),
}

/// What an engine in-process is asked for; what is not said is as in the headline figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSpec {
    mode: Option<Mode>,
    domain: Option<Domain>,
    flush_ns: u32,
    fence_ns: u32,
    read_ns: u32,
    bound: Option<Duration>,
    /// Directory for the image, in place of the scratch directory.
    at: Option<PathBuf>,
}

/// The kernel's file systems that can be set up.
pub const KERNEL: [&str; 3] = ["ext4", "xfs", "btrfs"];

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Spec, String> {
        if text.contains('/') && !text.starts_with("soupfs:") && !text.starts_with("mount:") {
            return Ok(Spec::Path(text.into()));
        }
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let without_options = |spec| match options {
            "" => Ok(spec),
            _ => Err(format!("{name} takes no options here, as in '{text}'")),
        };
        if let Some(kernel) = KERNEL.into_iter().find(|kernel| *kernel == name) {
            return without_options(Spec::Kernel(kernel));
        }
        match name {
            "soupfs" => Ok(Spec::Engine(options.parse()?)),
            "tmpfs" => without_options(Spec::Tmpfs),
            "mount" => Ok(Spec::Mount(options.into())),
            "nullfs" => without_options(Spec::Null),
            _ => Err(format!(
                "'{text}' is no target; use soupfs, soupfs:mode=sync, tmpfs, mount, nullfs, {}, or a directory \
                 (./DIR)",
                KERNEL.join(", ")
            )),
        }
    }
}

impl FromStr for EngineSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<EngineSpec, String> {
        let mut spec = EngineSpec::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let number = || {
                let number: std::result::Result<u32, _> = value.parse();
                number.map_err(|_| format!("'{value}' is not a number ({name})"))
            };
            match name {
                "mode" => spec.mode = Some(mode(value)?),
                "domain" => {
                    spec.domain = Some(value.parse().map_err(|why| format!("{why}"))?);
                }
                "flush_ns" | "flush" => spec.flush_ns = number()?,
                "fence_ns" | "fence" => spec.fence_ns = number()?,
                "read_ns" | "read" => spec.read_ns = number()?,
                "bound_ms" => spec.bound = Some(Duration::from_millis(number()?.into())),
                "at" => spec.at = Some(value.into()),
                _ => {
                    return Err(format!(
                        "'{option}' is no option of soupfs; it has mode=, domain=, flush_ns=, fence_ns=, \
                         read_ns=, bound_ms=, at=DIR"
                    ));
                }
            }
        }
        Ok(spec)
    }
}

/// The modes of the engine, by name.
const MODES: [(&str, Mode); 2] = [("delayed", Mode::Delayed), ("sync", Mode::Sync)];

fn mode(text: &str) -> std::result::Result<Mode, String> {
    let found = MODES.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, mode)| mode).ok_or_else(|| {
        let names = MODES.map(|(name, _)| name).join(" or ");
        format!("'{text}' is no mode; use {names}")
    })
}

impl EngineSpec {
    /// What stands in tables: what differs from the headline figures.
    fn name(&self) -> String {
        let mut name = "SoupFS".to_owned();
        let mut add = |part: String| {
            name.push(' ');
            name.push_str(&part);
        };
        if let Some((mode, _)) = MODES.into_iter().find(|(_, own)| Some(*own) == self.mode) {
            add(mode.into());
        }
        if let Some(domain) = self.domain {
            add(domain.to_string());
        }
        for (what, ns) in [
            ("flush", self.flush_ns),
            ("fence", self.fence_ns),
            ("read", self.read_ns),
        ] {
            if ns > 0 {
                add(format!("{what}+{ns}ns"));
            }
        }
        if let Some(bound) = self.bound {
            add(format!("bound {} ms", bound.as_millis()));
        }
        if let Some(at) = &self.at {
            add(format!("at {}", at.display()));
        }
        name
    }

    fn setup(&self, base: &Setup) -> Setup {
        let mut setup = base.clone();
        setup.mode = self.mode.unwrap_or(setup.mode);
        setup.domain = self.domain.unwrap_or(setup.domain);
        setup.latency.flush_ns += self.flush_ns;
        setup.latency.fence_ns += self.fence_ns;
        setup.latency.read_ns += self.read_ns;
        setup.bound = self.bound.unwrap_or(setup.bound);
        setup
    }
}

impl Spec {
    /// What stands in tables.
    pub fn name(&self) -> String {
        match self {
            Spec::Engine(engine) => engine.name(),
            Spec::Tmpfs => "tmpfs".into(),
            Spec::Mount(options) if options.is_empty() => "mount".into(),
            Spec::Mount(options) => format!("mount {options}"),
            Spec::Null => "nullfs".into(),
            Spec::Kernel(name) => (*name).into(),
            Spec::Path(path) => path.display().to_string(),
        }
    }
}

/// A target that takes part.
pub struct Contestant {
    /// Where it is called.
    pub place: Place,
    /// What the report says of it.
    pub peer: Peer,
    /// Its counters.
    pub probe: Probe,
    /// Goes away after `place`: fields are dropped in order.
    _keep: Keep,
}

/// How a target is called.
pub enum Place {
    /// In-process.
    Engine(Box<Engine>),
    /// By system calls.
    Directory(Directory),
}

/// What lives as long as a target.
pub(crate) enum Keep {
    Nothing,
    Dir(#[allow(dead_code, reason = "held for its Drop")] Outside),
    Mount(#[allow(dead_code, reason = "held for its Drop")] Mounted),
}

/// Directories of targets that lie outside of the scratch directory now.
static OUTSIDE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Directories that whoever ends this program without unwinding has to remove, beside the scratch directory.
/// As long as they are held, no target makes or removes one.
pub fn outside() -> MutexGuard<'static, Vec<PathBuf>> {
    OUTSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory of its own in one that somebody named. It goes away with the value.
pub(crate) struct Outside(PathBuf);

impl Outside {
    fn new(at: &Path) -> Result<Outside> {
        let mut all = outside();
        let made = tempfile::Builder::new()
            .prefix("tureen-bench")
            .tempdir_in(at)?
            .keep();
        all.push(made.clone());
        Ok(Outside(made))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let mut all = outside();
        // As with all that is temporary, nobody is there to be told.
        let _ = std::fs::remove_dir_all(&self.0);
        all.retain(|own| *own != self.0);
    }
}

/// All that take part in a run.
pub struct Field {
    /// In the order in which they were asked for.
    pub contestants: Vec<Contestant>,
    /// Why others do not.
    pub missing: Vec<Peer>,
    /// Where images and directories are; goes last.
    _temp: TempDir,
}

impl Field {
    /// The targets of the plan, each with room for `len` bytes.
    pub fn new(plan: &Plan, len: u64) -> Result<Field> {
        let setup = Setup {
            len,
            ..plan.setup()
        };
        Field::of(plan, &plan.targets, &setup)
    }

    /// Other targets; engines are set up like `setup` but for what their words say.
    pub fn of(plan: &Plan, specs: &[Spec], setup: &Setup) -> Result<Field> {
        let temp = plan.temp()?;
        let mut field = Field {
            contestants: Vec::new(),
            missing: Vec::new(),
            _temp: temp,
        };
        for (i, spec) in specs.iter().enumerate() {
            let dir = field._temp.path().join(i.to_string());
            std::fs::create_dir(&dir)?;
            match contestant(plan, spec, setup, &dir) {
                Ok(contestant) => field.contestants.push(contestant),
                // What nobody named, or what the machine lacks, is left out and said.
                Err(why) if matches!(spec, Spec::Kernel(_) | Spec::Mount(_) | Spec::Null) => {
                    field.missing.push(missing(spec, &why));
                }
                Err(why) => return Err(format!("{}: {why}", spec.name()).into()),
            }
        }
        match field.contestants.is_empty() {
            false => Ok(field),
            true => Err("no target is left to measure".into()),
        }
    }

    /// What the report says of them.
    pub fn peers(&self) -> Vec<Peer> {
        let own = self.contestants.iter().map(|one| one.peer.clone());
        own.chain(self.missing.iter().cloned()).collect()
    }

    /// The target to compare with: the one of the plan, or the first.
    pub fn base(&self, plan: &Plan) -> String {
        let names = || self.contestants.iter().map(|one| &one.peer.name);
        let base = names().find(|name| **name == plan.against);
        base.or(names().next()).cloned().unwrap_or_default()
    }
}

impl Contestant {
    /// An error, with whose it is.
    pub fn failed(&self, why: Failure) -> Failure {
        format!("{}: {why}", self.peer.name).into()
    }
}

fn missing(spec: &Spec, why: &Failure) -> Peer {
    Peer {
        name: spec.name(),
        about: String::new(),
        durability: String::new(),
        missing: Some(why.to_string()),
    }
}

fn contestant(plan: &Plan, spec: &Spec, setup: &Setup, dir: &Path) -> Result<Contestant> {
    let name = spec.name();
    match spec {
        Spec::Engine(engine) => in_process(plan, engine, setup, dir),
        Spec::Tmpfs => {
            // The scratch directory's own tmpfs has a limit to its files.
            let (directory, what) = match kernel::tmpfs() {
                Some(root) => (
                    Directory::of(name.as_str(), root),
                    "a tmpfs of its own".into(),
                ),
                None => (
                    Directory::new(name.as_str(), dir)?,
                    format!("a directory on {}", kernel::file_system_of(dir)),
                ),
            };
            Ok(Contestant {
                place: Place::Directory(directory),
                peer: peer(
                    name,
                    format!("{what}, by system calls"),
                    "nothing, ever: it is memory; fsync and syncfs do nothing",
                ),
                probe: Probe::None,
                _keep: Keep::Nothing,
            })
        }
        Spec::Mount(options) => {
            let mounted = Mounted::new(plan, options, setup.len, dir)?;
            Ok(Contestant {
                place: Place::Directory(Directory::new(name.as_str(), mounted.root())?),
                peer: peer(
                    name,
                    format!(
                        "SoupFS by system calls through FUSE, `tureen mount -o {}`",
                        mounted.options()
                    ),
                    "as SoupFS; FUSE does not forward syncfs, so nothing waits for its persister",
                ),
                probe: Probe::Mount(mounted.root().to_owned()),
                _keep: Keep::Mount(mounted),
            })
        }
        Spec::Null => {
            let mounted = Mounted::null(plan, dir)?;
            Ok(Contestant {
                place: Place::Directory(Directory::new(name.as_str(), mounted.root())?),
                peer: peer(
                    name,
                    "a FUSE file system that does nothing, served as the mount is",
                    "nothing: it keeps nothing",
                ),
                probe: Probe::Mount(mounted.root().to_owned()),
                _keep: Keep::Mount(mounted),
            })
        }
        Spec::Kernel(kernel) => {
            let len = setup.len.max(setup.files * kernel::BYTES_PER_FILE);
            let device = kernel::set_up(kernel, len, dir)?;
            Ok(Contestant {
                place: Place::Directory(Directory::of(name.as_str(), device.root)),
                peer: peer(name, device.about, device.durability),
                probe: Probe::Device(device.stat),
                _keep: Keep::Nothing,
            })
        }
        Spec::Path(path) => {
            let temp = Outside::new(path)?;
            let mount = path.to_owned();
            let on = kernel::file_system_of(path);
            let tureen = on.starts_with("fuse.tureen");
            Ok(Contestant {
                place: Place::Directory(Directory::new(name.as_str(), temp.path())?),
                peer: peer(
                    name,
                    format!("a directory on {on}, by system calls"),
                    "what that file system does by itself; fsync where the workload calls it",
                ),
                probe: if tureen {
                    Probe::Mount(mount)
                } else {
                    Probe::None
                },
                _keep: Keep::Dir(temp),
            })
        }
    }
}

fn in_process(plan: &Plan, spec: &EngineSpec, setup: &Setup, dir: &Path) -> Result<Contestant> {
    let setup = spec.setup(setup);
    let temp = spec.at.as_deref().map(Outside::new).transpose()?;
    let image = temp.as_ref().map_or(dir, Outside::path).join("image");
    let pool = setup.create(&image)?;
    let info = pool.info();
    let name = Spec::Engine(spec.clone()).name();
    let engine = setup.mount(name.as_str(), pool.clone())?;
    let about = format!(
        "SoupFS in-process, mode {}, domain {} on {}{}; flushes with {}",
        MODES
            .iter()
            .find(|(_, mode)| *mode == setup.mode)
            .map_or("", |(name, _)| name),
        info.domain,
        kernel::file_system_of(&image),
        if plan.huge_pages {
            ", huge pages asked for"
        } else {
            ""
        },
        info.flush.name(),
    );
    let durability = match setup.mode {
        Mode::Delayed => format!(
            "callers flush nothing; a persister flushes and fences within {} ms, and in fsync and sync",
            setup.bound.as_millis()
        ),
        Mode::Sync => {
            "each change of names and attributes is flushed and fenced before the call returns; \
                       contents by fsync"
                .into()
        }
    };
    Ok(Contestant {
        place: Place::Engine(Box::new(engine)),
        peer: peer(name, about, durability),
        probe: Probe::Pool(pool),
        _keep: temp.map_or(Keep::Nothing, Keep::Dir),
    })
}

fn peer(name: String, about: impl Into<String>, durability: impl Into<String>) -> Peer {
    Peer {
        name,
        about: about.into(),
        durability: durability.into(),
        missing: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_by_what_sets_them_apart() {
        let name = |text: &str| text.parse::<Spec>().map(|spec| spec.name());
        assert_eq!(name("soupfs"), Ok("SoupFS".into()));
        assert_eq!(
            name("soupfs:mode=sync,flush_ns=200"),
            Ok("SoupFS sync flush+200ns".into())
        );
        assert_eq!(name("mount:writeback"), Ok("mount writeback".into()));
        assert_eq!(name("btrfs"), Ok("btrfs".into()));
        assert_eq!(name("/mnt"), Ok("/mnt".into()));
    }

    #[test]
    fn words_that_are_no_target_are_refused_with_what_there_is() {
        for text in [
            "zfs",
            "soupfs:mode=fast",
            "soupfs:flush_ns=x",
            "soupfs:colour=1",
            "ext4:noatime",
            "tmpfs:huge=always",
            "nullfs:threads=2",
        ] {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
    }
}

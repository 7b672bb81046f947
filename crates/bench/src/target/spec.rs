//! Targets in words, as a command line names them.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cache::Kind;
use pmem::{Domain, Latency};
use soupfs::Mode;

use super::{BlockSetup, CacheSetup, LogSetup, Setup};

/// A target that somebody asked for, in words.
///
/// `soupfs[:OPTION=VALUE,...]`, `ffs[:OPTION=VALUE,...]`, `tmpfs`, `host`,
/// `mount[:MOUNT OPTIONS]`, `mount-ext2[:MOUNT OPTIONS]`, `nullfs`, `fuse2fs`, a file system of the
/// kernel (`ext4`, `ext3`, `ext2`, `ext4:data=journal`, `xfs`, `btrfs`), or the path of a
/// directory.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetSpec {
    /// SoupFS in-process.
    Engine(EngineSpec),
    /// The engine of ext2 in-process.
    Blocks(BlockSpec),
    /// A directory on the scratch file system.
    Tmpfs,
    /// An ext2 image of ours through FUSE, in a process of its own.
    MountExt2(Ext2Mount),
    /// SoupFS through FUSE, in a process of its own; with options of `tureen mount`.
    Mount(String),
    /// A FUSE file system that does nothing, in a process of its own.
    Null,
    /// ext4 in a file, served by fuse2fs.
    Fuse2fs,
    /// A file system of the kernel's, on a loop device over the scratch file system.
    Kernel(&'static str),
    /// The file system itself that images of others lie on.
    Host,
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
    pub at: Option<PathBuf>,
}

/// What the engine of ext2 is asked for in-process; what is not said is as a mount has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BlockSpec {
    mode: Option<&'static str>,
    cache: Option<Kind>,
    cache_mib: Option<u32>,
    has_log_in_memory: bool,
    flush_ns: u32,
    fence_ns: u32,
    read_ns: u32,
}

/// What a mount of an ext2 image is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ext2Mount {
    /// A persistent cache is made before the image.
    pub cache: Option<Kind>,
    /// Its length: MiB.
    pub cache_mib: Option<u32>,
    /// Other options of `tureen mount`.
    pub options: String,
}

/// The kernel's file systems that can be set up. One with options is another one.
pub const KERNEL: [&str; 6] = ["ext4", "ext3", "ext2", EXT4_DATA_JOURNAL, "xfs", "btrfs"];

/// ext4 with its data in the journal, the only mode of a kernel's file system here in which a
/// write is there as a whole or not at all.
pub const EXT4_DATA_JOURNAL: &str = "ext4:data=journal";

impl FromStr for TargetSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<TargetSpec, String> {
        let is_named = ["soupfs:", "mount:", "mount-ext2:"];
        if text.contains('/') && !is_named.iter().any(|name| text.starts_with(name)) {
            return Ok(TargetSpec::Path(text.into()));
        }
        if let Some(kernel) = KERNEL.into_iter().find(|kernel| *kernel == text) {
            return Ok(TargetSpec::Kernel(kernel));
        }
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let without_options = |spec| match options {
            "" => Ok(spec),
            _ => Err(format!("{name} takes no options here, as in '{text}'")),
        };
        match name {
            "soupfs" => Ok(TargetSpec::Engine(options.parse()?)),
            "tmpfs" => without_options(TargetSpec::Tmpfs),
            "host" => without_options(TargetSpec::Host),
            "mount" => Ok(TargetSpec::Mount(options.into())),
            "ffs" => Ok(TargetSpec::Blocks(options.parse()?)),
            "mount-ext2" => Ok(TargetSpec::MountExt2(options.parse()?)),
            "nullfs" => without_options(TargetSpec::Null),
            "fuse2fs" => without_options(TargetSpec::Fuse2fs),
            _ => Err(format!(
                "'{text}' is no target; use soupfs, soupfs:mode=sync, ffs, tmpfs, host, mount, \
                 mount-ext2, fuse2fs, nullfs, {}, or a directory (./DIR)",
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
            let number = || number(name, value);
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
                        "'{option}' is no option of soupfs; it has mode=, domain=, flush_ns=, \
                         fence_ns=, \
                         read_ns=, bound_ms=, at=DIR"
                    ));
                }
            }
        }
        Ok(spec)
    }
}

fn number(name: &str, value: &str) -> std::result::Result<u32, String> {
    let number = value.parse();
    number.map_err(|_| format!("'{value}' is not a number ({name})"))
}

fn kind(value: &str) -> std::result::Result<Kind, String> {
    let kinds = [Kind::Spindle, Kind::Tinca];
    let found = kinds.into_iter().find(|kind| kind.to_string() == value);
    found.ok_or_else(|| format!("'{value}' is no kind of cache; use spindle or tinca"))
}

impl FromStr for BlockSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<BlockSpec, String> {
        let mut spec = BlockSpec::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let number = || number(name, value);
            match name {
                "mode" => spec.mode = Some(block_mode(value)?.0),
                "cache" => spec.cache = Some(kind(value)?),
                "cache_mib" => spec.cache_mib = Some(number()?),
                "log" if value == "memory" => spec.has_log_in_memory = true,
                "flush_ns" | "flush" => spec.flush_ns = number()?,
                "fence_ns" | "fence" => spec.fence_ns = number()?,
                "read_ns" | "read" => spec.read_ns = number()?,
                _ => {
                    return Err(format!(
                        "'{option}' is no option of ffs; it has mode=, cache=spindle or tinca, \
                         cache_mib=, log=memory, flush_ns=, fence_ns=, read_ns="
                    ));
                }
            }
        }
        let is_journaled = matches!(spec.mode, Some("ordered" | "journal"));
        if spec.has_log_in_memory && (!is_journaled || spec.cache.is_some()) {
            return Err("log=memory is for the modes ordered and journal, without a cache".into());
        }
        Ok(spec)
    }
}

impl FromStr for Ext2Mount {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Ext2Mount, String> {
        let mut mount = Ext2Mount::default();
        let mut others = Vec::new();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("cache", value)) => mount.cache = Some(kind(value)?),
                Some((name @ "cache_mib", value)) => mount.cache_mib = Some(number(name, value)?),
                _ => others.push(option),
            }
        }
        mount.options = others.join(",");
        Ok(mount)
    }
}

/// The modes of the engine of ext2, by name.
pub const BLOCK_MODES: [(&str, ffs::Mode); 5] = [
    ("soft", ffs::Mode::Soft),
    ("async", ffs::Mode::Async),
    ("sync", ffs::Mode::Sync),
    ("ordered", ffs::Mode::Ordered),
    ("journal", ffs::Mode::Journal),
];

fn block_mode(text: &str) -> std::result::Result<(&'static str, ffs::Mode), String> {
    let found = BLOCK_MODES.into_iter().find(|(name, _)| *name == text);
    found.ok_or_else(|| {
        let names = BLOCK_MODES.map(|(name, _)| name).join(", ");
        format!("'{text}' is no mode; use {names}")
    })
}

/// The modes of SoupFS, by name.
const MODES: [(&str, Mode); 3] = [
    ("delayed", Mode::Delayed),
    ("sync", Mode::Sync),
    ("strong", Mode::Strong),
];

/// The name of a mode.
pub fn mode_name(mode: Mode) -> &'static str {
    let found = MODES.into_iter().find(|(_, own)| *own == mode);
    found.map_or("", |(name, _)| name)
}

fn mode(text: &str) -> std::result::Result<Mode, String> {
    let found = MODES.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, mode)| mode).ok_or_else(|| {
        let names = MODES.map(|(name, _)| name).join(" or ");
        format!("'{text}' is no mode; use {names}")
    })
}

impl EngineSpec {
    /// What stands in tables: what differs from the headline figures.
    pub fn name(&self) -> String {
        let mut name = "SoupFS in-process".to_owned();
        let mut add = |part: String| {
            name.push(' ');
            name.push_str(&part);
        };
        if let Some(mode) = self.mode {
            add(mode_name(mode).into());
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

    /// `base` with what was asked for.
    pub fn setup(&self, base: &Setup) -> Setup {
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

impl BlockSpec {
    /// What stands in tables: what differs from a mount with its default options.
    pub fn name(&self) -> String {
        let mut name = "FFS in-process".to_owned();
        let mut add = |part: String| {
            name.push(' ');
            name.push_str(&part);
        };
        self.mode.into_iter().for_each(|mode| add(mode.into()));
        self.cache
            .into_iter()
            .for_each(|kind| add(kind.to_string()));
        self.cache_mib
            .into_iter()
            .for_each(|mib| add(format!("{mib} MiB")));
        if self.has_log_in_memory {
            add("log in memory".into());
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
        name
    }

    /// The name of its mode.
    pub fn mode_name(&self) -> &'static str {
        self.mode.unwrap_or(BLOCK_MODES[0].0)
    }

    /// A disk of `len` bytes with what was asked for; a cache of which nobody said how large it is
    /// takes a quarter of that.
    pub fn setup(&self, len: u64) -> BlockSetup {
        let latency = Latency {
            flush_ns: self.flush_ns,
            fence_ns: self.fence_ns,
            read_ns: self.read_ns,
        };
        let cache = self.cache.map(|kind| CacheSetup {
            latency,
            ..CacheSetup::new(kind, cache_len(self.cache_mib, len))
        });
        let log = self.has_log_in_memory.then_some(LogSetup {
            domain: Domain::Line,
            latency,
        });
        let mode = self.mode.and_then(|mode| block_mode(mode).ok());
        BlockSetup {
            len,
            mode: mode.map_or(ffs::Mode::default(), |(_, mode)| mode),
            cache,
            log,
            ..BlockSetup::default()
        }
    }
}

/// Bytes of a cache before a disk of `len` bytes.
fn cache_len(mib: Option<u32>, len: u64) -> u64 {
    mib.map_or(len / 4, |mib| u64::from(mib) << 20)
}

impl Ext2Mount {
    /// What stands in tables.
    pub fn name(&self) -> String {
        let mut name = "mount ext2".to_owned();
        let kind = self.cache.map(|kind| kind.to_string()).unwrap_or_default();
        let mib = self.cache_mib.map(|mib| format!("{mib} MiB"));
        for part in [&self.options, &kind, &mib.unwrap_or_default()] {
            if !part.is_empty() {
                name.push(' ');
                name.push_str(part);
            }
        }
        name
    }

    /// The name of its mode.
    pub fn mode_name(&self) -> &str {
        let modes = self.options.split(',');
        let mut named = modes.filter_map(|option| option.strip_prefix("mode="));
        named.next_back().unwrap_or(BLOCK_MODES[0].0)
    }

    /// Its image has to have a journal.
    pub fn has_journal(&self) -> bool {
        matches!(self.mode_name(), "ordered" | "journal")
    }

    /// Its options, as the report shows them.
    pub fn shown_options(&self) -> String {
        let cache = self.cache.map(|_| "cache=CACHE".to_owned());
        let own = Some(self.options.clone()).filter(|options| !options.is_empty());
        own.into_iter().chain(cache).collect::<Vec<_>>().join(",")
    }

    /// Bytes of the cache before an image of `len` bytes.
    pub fn cache_len(&self, len: u64) -> u64 {
        cache_len(self.cache_mib, len)
    }
}

impl TargetSpec {
    /// It is a mount of ours.
    pub fn is_mount(&self) -> bool {
        matches!(self, TargetSpec::Mount(_) | TargetSpec::MountExt2(_))
    }

    /// It is left out, and that is said, where the machine lacks what it needs.
    pub fn is_optional(&self) -> bool {
        matches!(
            self,
            TargetSpec::Kernel(_)
                | TargetSpec::Mount(_)
                | TargetSpec::MountExt2(_)
                | TargetSpec::Null
                | TargetSpec::Fuse2fs
        )
    }

    /// What stands in tables.
    pub fn name(&self) -> String {
        match self {
            TargetSpec::Engine(engine) => engine.name(),
            TargetSpec::Blocks(blocks) => blocks.name(),
            TargetSpec::MountExt2(mount) => mount.name(),
            TargetSpec::Tmpfs => "tmpfs".into(),
            TargetSpec::Host => "host".into(),
            TargetSpec::Mount(options) if options.is_empty() => "mount".into(),
            TargetSpec::Mount(options) => format!("mount {options}"),
            TargetSpec::Null => "nullfs".into(),
            TargetSpec::Fuse2fs => "fuse2fs".into(),
            TargetSpec::Kernel(name) => name.replace(':', " "),
            TargetSpec::Path(path) => path.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_by_what_sets_them_apart() {
        let name = |text: &str| text.parse::<TargetSpec>().map(|spec| spec.name());
        assert_eq!(name("soupfs"), Ok("SoupFS in-process".into()));
        assert_eq!(
            name("soupfs:mode=sync,flush_ns=200"),
            Ok("SoupFS in-process sync flush+200ns".into())
        );
        assert_eq!(name("mount:writeback"), Ok("mount writeback".into()));
        assert_eq!(name("btrfs"), Ok("btrfs".into()));
        assert_eq!(name("ext4:data=journal"), Ok("ext4 data=journal".into()));
        assert_eq!(name("ffs"), Ok("FFS in-process".into()));
        assert_eq!(
            name("ffs:mode=async,cache=tinca,cache_mib=64,flush_ns=180"),
            Ok("FFS in-process async tinca 64 MiB flush+180ns".into())
        );
        assert_eq!(
            name("ffs:mode=journal,log=memory,flush_ns=180"),
            Ok("FFS in-process journal log in memory flush+180ns".into())
        );
        assert_eq!(
            name("mount-ext2:mode=async,cache=spindle"),
            Ok("mount ext2 mode=async spindle".into())
        );
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
            "ffs:mode=fast",
            "ffs:cache=bcache",
            "ffs:log=memory",
            "ffs:mode=journal,log=disk",
            "mount-ext2:cache=bcache",
            "tmpfs:huge=always",
            "host:where",
            "nullfs:threads=2",
        ] {
            assert!(text.parse::<TargetSpec>().is_err(), "{text}");
        }
    }
}

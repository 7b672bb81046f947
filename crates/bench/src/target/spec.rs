//! Targets in words, as a command line names them.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pmem::Domain;
use soupfs::Mode;

use super::Setup;

/// A target that somebody asked for, in words.
///
/// `soupfs[:OPTION=VALUE,...]`, `tmpfs`, `host`, `mount[:MOUNT OPTIONS]`, `nullfs`, `fuse2fs`,
/// `ext4`, `xfs`, `btrfs`, or the path of a directory.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetSpec {
    /// SoupFS in-process.
    Engine(EngineSpec),
    /// A directory on the scratch file system.
    Tmpfs,
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

/// The kernel's file systems that can be set up.
pub const KERNEL: [&str; 3] = ["ext4", "xfs", "btrfs"];

impl FromStr for TargetSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<TargetSpec, String> {
        if text.contains('/') && !text.starts_with("soupfs:") && !text.starts_with("mount:") {
            return Ok(TargetSpec::Path(text.into()));
        }
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let without_options = |spec| match options {
            "" => Ok(spec),
            _ => Err(format!("{name} takes no options here, as in '{text}'")),
        };
        if let Some(kernel) = KERNEL.into_iter().find(|kernel| *kernel == name) {
            return without_options(TargetSpec::Kernel(kernel));
        }
        match name {
            "soupfs" => Ok(TargetSpec::Engine(options.parse()?)),
            "tmpfs" => without_options(TargetSpec::Tmpfs),
            "host" => without_options(TargetSpec::Host),
            "mount" => Ok(TargetSpec::Mount(options.into())),
            "nullfs" => without_options(TargetSpec::Null),
            "fuse2fs" => without_options(TargetSpec::Fuse2fs),
            _ => Err(format!(
                "'{text}' is no target; use soupfs, soupfs:mode=sync, tmpfs, host, mount, \
                 fuse2fs, nullfs, {}, or a directory (./DIR)",
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

/// The modes of the engine, by name.
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

impl TargetSpec {
    /// It is left out, and that is said, where the machine lacks what it needs.
    pub fn is_optional(&self) -> bool {
        matches!(
            self,
            TargetSpec::Kernel(_) | TargetSpec::Mount(_) | TargetSpec::Null | TargetSpec::Fuse2fs
        )
    }

    /// What stands in tables.
    pub fn name(&self) -> String {
        match self {
            TargetSpec::Engine(engine) => engine.name(),
            TargetSpec::Tmpfs => "tmpfs".into(),
            TargetSpec::Host => "host".into(),
            TargetSpec::Mount(options) if options.is_empty() => "mount".into(),
            TargetSpec::Mount(options) => format!("mount {options}"),
            TargetSpec::Null => "nullfs".into(),
            TargetSpec::Fuse2fs => "fuse2fs".into(),
            TargetSpec::Kernel(name) => (*name).into(),
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
            "host:where",
            "nullfs:threads=2",
        ] {
            assert!(text.parse::<TargetSpec>().is_err(), "{text}");
        }
    }
}

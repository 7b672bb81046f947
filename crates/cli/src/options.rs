//! The options of a mount, as `-o` takes them and as fstab and mount(8) hand them over.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use pmem::Domain;
use vfs::Atime;

use crate::units::{parse_duration, parse_size};

/// The help of `-o`.
pub const HELP: &str = "\
Options of -o, separated by commas (of several that contradict each other the last one counts):
  ro, rw              refuse changes, or not (rw); with ro the image is not changed at all, what a
                      crash left is replayed in memory
  sync                every write and every change of names is durable when the call returns
  mode=delayed|sync   when changes of names and attributes become durable: within the bound, or
                      before the call returns (delayed)
  bound=TIME          how late the durable state may be, in delayed mode (1s)
  backlog=SIZE        memory for changes that are not yet durable (256M)
  persisters=N        threads that make changes durable together (one for each node of memory; only on
                      persistent memory more than one)
  noatime, relatime, strictatime
                      when reading updates access times (relatime)
  allow_other, noallow_other
                      let other users in, under the usual permissions (for root: allow_other)
  dev, nodev, suid, nosuid, exec, noexec
                      honour device nodes, set-id bits, programs (for root: all of them; for others
                      exec)
  threads=N           threads that serve requests (twice the processors, 4 to 16)
  writeback           let the kernel collect small writes: faster, but what is not yet synced may
                      be lost when tureen is killed, however old; holes of files are not found
  domain=line|cache|page
                      the persistence domain to assume, in place of the one detected
  flush_ns=N, fence_ns=N, read_ns=N
                      make the medium slower: per flushed line, per fence, per line read
  huge                use huge pages for the image where it can be had
  log=FILE            where messages go once the mount is in the background (nowhere; the last
                      error is shown by 'tureen stat DIR')
Those of mount(8) that mean nothing here (defaults, auto, nofail, user, x-...) are accepted.";

/// The names of all options, for the message about an unknown one.
const KNOWN: &str = "ro, rw, sync, mode=, bound=, backlog=, persisters=, noatime, relatime, \
    strictatime, allow_other, noallow_other, dev, nodev, suid, nosuid, exec, noexec, threads=, \
    writeback, domain=, flush_ns=, fence_ns=, read_ns=, huge, log=";

/// Options that are accepted without effect: they are for mount(8), or already the case.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "async",
    "diratime",
    "nodiratime",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "mand",
    "nomand",
    "atime",
    "default_permissions",
];

/// Beginnings of options that are accepted without effect.
const IGNORED_PREFIXES: &[&str] = &[
    "x-", "X-", "comment=", "user=", "uhelper=", "helper=", "subtype=", "fsname=",
];

/// When changes of names and attributes become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Within the bound.
    Delayed,
    /// Before the call returns.
    Sync,
}

/// How to mount, all of it decided.
#[derive(Debug, Clone, PartialEq)]
pub struct MountOptions {
    /// Refuse changes.
    pub read_only: bool,
    /// Let the kernel follow each write with an fsync.
    pub sync: bool,
    /// When changes become durable.
    pub mode: Mode,
    /// How late the durable state may be.
    pub bound: Duration,
    /// Bytes of memory for changes that are not yet durable.
    pub backlog: u64,
    /// Threads that persist; `None`: as many as there are nodes of memory.
    pub persisters: Option<usize>,
    /// When reading updates access times.
    pub atime: Atime,
    /// Let other users in.
    pub allow_other: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Honour set-id bits.
    pub suid: bool,
    /// Allow programs to be executed.
    pub exec: bool,
    /// Threads that serve requests; `None`: as many as suit the machine.
    pub threads: Option<usize>,
    /// Let the kernel collect writes.
    pub writeback: bool,
    /// The persistence domain to assume.
    pub domain: Option<Domain>,
    /// Extra latency of the medium.
    pub latency: pmem::Latency,
    /// Use huge pages.
    pub huge: bool,
    /// Where messages go in the background: an absolute path, as that is in another directory.
    pub log: Option<PathBuf>,
}

impl MountOptions {
    /// The defaults, for root or for another user.
    pub fn new(root: bool) -> MountOptions {
        MountOptions {
            read_only: false,
            sync: false,
            mode: Mode::Delayed,
            bound: Duration::from_secs(1),
            backlog: 256 << 20,
            persisters: None,
            atime: Atime::Relative,
            allow_other: root,
            dev: root,
            suid: root,
            exec: true,
            threads: None,
            writeback: false,
            domain: None,
            latency: pmem::Latency::default(),
            huge: false,
            log: None,
        }
    }

    /// Applies a list of options; with `sloppy`, what is unknown is passed over.
    pub fn apply(&mut self, list: &str, sloppy: bool) -> Result<(), String> {
        for option in list
            .split(',')
            .map(str::trim)
            .filter(|option| !option.is_empty())
        {
            if !self.apply_one(option)? && !is_ignored(option) && !sloppy {
                return Err(format!(
                    "unknown mount option '{option}'; there are: {KNOWN} (see tureen mount --help)"
                ));
            }
        }
        Ok(())
    }

    /// Applies one option; false when it is unknown.
    fn apply_one(&mut self, option: &str) -> Result<bool, String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match value {
            Some(value) => self
                .apply_value(name, value)
                .map_err(|why| format!("{name}={value}: {why}")),
            None => self.apply_flag(name),
        }
    }

    fn apply_flag(&mut self, name: &str) -> Result<bool, String> {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "sync" => (self.sync, self.mode) = (true, Mode::Sync),
            "noatime" => self.atime = Atime::No,
            "relatime" => self.atime = Atime::Relative,
            // These take back another option, and mean nothing without it.
            "async" if self.sync => (self.sync, self.mode) = (false, Mode::Delayed),
            "atime" if self.atime == Atime::No => self.atime = Atime::Relative,
            "nostrictatime" if self.atime == Atime::Strict => self.atime = Atime::Relative,
            "strictatime" => self.atime = Atime::Strict,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "writeback" => self.writeback = true,
            "huge" => self.huge = true,
            "remount" => {
                return Err(
                    "a live mount cannot be changed: unmount it and mount it again with the \
                            new options"
                        .to_string(),
                );
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn apply_value(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "mode" => {
                self.mode = match value {
                    "delayed" => Mode::Delayed,
                    "sync" => Mode::Sync,
                    _ => return Err("use delayed or sync".to_string()),
                }
            }
            "bound" => {
                self.bound = parse_duration(value)?;
                if self.bound.is_zero() {
                    return Err("for durability at return use mode=sync".to_string());
                }
            }
            "backlog" => self.backlog = parse_size(value)?,
            "persisters" => self.persisters = Some(count(value)?),
            "threads" => self.threads = Some(count(value)?),
            "domain" => self.domain = Some(value.parse().map_err(|e| format!("{e}"))?),
            "flush_ns" => self.latency.flush_ns = nanoseconds(value)?,
            "fence_ns" => self.latency.fence_ns = nanoseconds(value)?,
            "read_ns" => self.latency.read_ns = nanoseconds(value)?,
            "log" => self.log = Some(std::path::absolute(value).map_err(|e| e.to_string())?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// As `-o` takes them, but for `log`: its path may have commas.
impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = |on, yes: &'static str, no: &'static str| if on { yes } else { no };
        f.write_str(switch(self.read_only, "ro", "rw"))?;
        // Before the mode, which it sets.
        f.write_str(switch(self.sync, ",sync", ""))?;
        f.write_str(match self.mode {
            Mode::Delayed => ",mode=delayed",
            Mode::Sync => ",mode=sync",
        })?;
        write!(f, ",bound={}s", self.bound.as_secs_f64())?;
        write!(f, ",backlog={}", self.backlog)?;
        option(f, "persisters", self.persisters)?;
        f.write_str(match self.atime {
            Atime::No => ",noatime",
            Atime::Relative => ",relatime",
            Atime::Strict => ",strictatime",
        })?;
        f.write_str(switch(self.allow_other, ",allow_other", ",noallow_other"))?;
        f.write_str(switch(self.dev, ",dev", ",nodev"))?;
        f.write_str(switch(self.suid, ",suid", ",nosuid"))?;
        f.write_str(switch(self.exec, ",exec", ",noexec"))?;
        option(f, "threads", self.threads)?;
        f.write_str(switch(self.writeback, ",writeback", ""))?;
        option(f, "domain", self.domain)?;
        for (name, ns) in [
            ("flush_ns", self.latency.flush_ns),
            ("fence_ns", self.latency.fence_ns),
            ("read_ns", self.latency.read_ns),
        ] {
            option(f, name, (ns > 0).then_some(ns))?;
        }
        f.write_str(switch(self.huge, ",huge", ""))
    }
}

fn option(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    match value {
        Some(value) => write!(f, ",{name}={value}"),
        None => Ok(()),
    }
}

fn is_ignored(option: &str) -> bool {
    IGNORED.contains(&option)
        || IGNORED_PREFIXES
            .iter()
            .any(|prefix| option.starts_with(prefix))
}

fn count(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("use a number from 1 to 1024".to_string()),
    }
}

fn nanoseconds(value: &str) -> Result<u32, String> {
    value
        .parse()
        .map_err(|_| "use a number of nanoseconds".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &str) -> Result<MountOptions, String> {
        let mut options = MountOptions::new(true);
        options.apply(list, false).map(|()| options)
    }

    #[test]
    fn the_last_of_contradicting_options_counts() {
        let options = applied("ro,noatime,rw,strictatime,nodev,dev").expect("valid");
        assert!(!options.read_only && options.dev);
        assert_eq!(options.atime, Atime::Strict);
    }

    #[test]
    fn what_mount_takes_back_is_taken_back() {
        for list in ["sync,async", "noatime,atime", "strictatime,nostrictatime"] {
            assert_eq!(applied(list), Ok(MountOptions::new(true)), "{list}");
        }
        let options = applied("mode=sync,strictatime,async,atime").expect("valid");
        assert_eq!((options.mode, options.atime), (Mode::Sync, Atime::Strict));
    }

    #[test]
    fn values_are_read_with_their_units() {
        let options =
            applied("bound=250ms,backlog=1G,threads=2,persisters=3,domain=page,flush_ns=800")
                .expect("valid");
        assert_eq!(options.bound, Duration::from_millis(250));
        assert_eq!((options.backlog, options.threads), (1 << 30, Some(2)));
        assert_eq!(options.persisters, Some(3));
        assert_eq!(options.domain, Some(Domain::Page));
        assert_eq!(options.latency.flush_ns, 800);
    }

    #[test]
    fn what_is_shown_makes_the_same_options() {
        let others = "ro,bound=1234us,backlog=3M,persisters=2,noatime,noallow_other,nodev,nosuid,noexec,threads=7,\
            writeback,domain=line,flush_ns=1,fence_ns=2,read_ns=3,huge";
        for list in [
            "",
            "sync",
            "sync,mode=delayed",
            "mode=sync,strictatime",
            others,
        ] {
            let options = applied(list).expect("valid");
            assert_eq!(applied(&options.to_string()), Ok(options), "{list}");
        }
    }

    #[test]
    fn what_mount_and_fstab_add_is_accepted() {
        let list = "defaults,nofail,_netdev,noauto,user=anna,x-systemd.automount,comment=a";
        assert_eq!(applied(list), Ok(MountOptions::new(true)));
    }

    #[test]
    fn an_unknown_option_is_named_and_the_known_ones_are_listed() {
        let error = applied("rw,compress=zstd").expect_err("unknown");
        assert!(
            error.contains("'compress=zstd'") && error.contains("strictatime"),
            "{error}"
        );
        assert!(
            MountOptions::new(false).apply("compress", true).is_ok(),
            "sloppy"
        );
    }

    #[test]
    fn bad_values_say_what_would_be_right() {
        for (list, hint) in [
            ("mode=fast", "delayed or sync"),
            ("bound=0", "mode=sync"),
            ("domain=disk", "line, cache or page"),
            ("threads=0", "1 to 1024"),
            ("remount", "unmount it"),
        ] {
            let error = applied(list).expect_err(list);
            assert!(error.contains(hint), "{list}: {error}");
        }
    }

    #[test]
    fn sync_covers_data_and_names() {
        let options = applied("sync").expect("valid");
        assert!(options.sync && options.mode == Mode::Sync);
    }
}

//! The options of a mount, as `-o` takes them and as fstab and mount(8) hand them over. Those that
//! only an engine understands are carried along until it is known which one an image is for.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use fuse::Transport;
use vfs::Atime;
use volume::{Engine, Settings};

use crate::engines::ENGINES;
use crate::units::{parse_duration, parse_threads};

/// The help of `-o`.
pub fn help() -> String {
    let mut help = COMMON_HELP.to_owned();
    for engine in ENGINES.0 {
        help += &format!("\nFor {} images:\n{}", engine.name(), engine.options_help());
    }
    help + "\nThose of mount(8) that mean nothing here (defaults, auto, nofail, x-...) are \
        accepted."
}

const COMMON_HELP: &str = "\
Options of -o, separated by commas (of several that contradict each other the last one counts):
  ro, rw              refuse changes, or not (rw); with ro the image is not changed at all, what a
                      crash left is replayed in memory
  sync                every write and every change of names is durable when the call returns
  noatime, relatime, strictatime
                      when reading updates access times (relatime)
  allow_other, noallow_other
                      let other users in, under the usual permissions (for root: allow_other)
  dev, nodev, suid, nosuid, exec, noexec
                      honour device nodes, set-id bits, programs (for root: all of them; for others
                      exec)
  threads=N           threads that serve requests, at most so many at a time (16)
  transport=WAY       how requests come: device (the default), or ring, by io_uring with a queue
                      and threads= threads for each core: for several clients at once; where root
                      has the kernel offer it (fuse.enable_uring), else device
  grace=TIME          how long programs may go on using it after a signal told tureen to end (5s)
  writeback           let the kernel collect small writes: faster, but what is not yet synced may
                      be lost when tureen is killed, however old; holes of files are not found
  log=FILE            where messages go once the mount is in the background (nowhere; the last
                      error is shown by 'tureen stat DIR')";

/// How long users of a mount may finish, if nobody says.
const GRACE: Duration = Duration::from_secs(5);

/// The names of the options that every engine has, for the message about an unknown one.
const COMMON: &str = "ro, rw, sync, noatime, relatime, strictatime, allow_other, noallow_other, \
    dev, nodev, suid, nosuid, exec, noexec, threads=, transport=, grace=, \
    writeback, log=";

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

/// How to mount.
#[derive(Debug, Clone, PartialEq)]
pub struct MountOptions {
    /// Refuse changes.
    pub read_only: bool,
    /// Let the kernel follow each write with an fsync.
    pub sync: bool,
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
    /// How requests come.
    pub transport: Transport,
    /// How long users of the mount may finish after a signal told it to end.
    pub grace: Duration,
    /// Let the kernel collect writes.
    pub writeback: bool,
    /// Where messages go in the background: an absolute path, as that is in another directory.
    pub log: Option<PathBuf>,
    /// For the engine, in the order given.
    engine: Vec<ForEngine>,
}

/// What an engine is told.
#[derive(Debug, Clone, PartialEq)]
enum ForEngine {
    /// `sync`, or that it is taken back.
    Sync(bool),
    /// An option that some engine understands.
    Option(String),
}

impl MountOptions {
    /// The defaults, for root or for another user.
    pub fn new(root: bool) -> MountOptions {
        MountOptions {
            read_only: false,
            sync: false,
            atime: Atime::Relative,
            allow_other: root,
            dev: root,
            suid: root,
            exec: true,
            threads: None,
            transport: Transport::Device,
            grace: GRACE,
            writeback: false,
            log: None,
            engine: Vec::new(),
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
                let engines = ENGINES.0.iter().map(|engine| engine.option_names());
                let known = std::iter::once(COMMON).chain(engines).collect::<Vec<_>>();
                return Err(format!(
                    "unknown mount option '{option}'; there are: {} (see tureen mount --help)",
                    known.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// Applies one option; false when it is unknown.
    fn apply_one(&mut self, option: &str) -> Result<bool, String> {
        let (name, value) = parts(option);
        let common = match value {
            Some(value) => self.apply_value(name, value),
            None => self.apply_flag(name),
        };
        Ok(common.map_err(|why| wrong(option, why))? || self.apply_engine(option))
    }

    /// Keeps an option for the engine, if there is one that has it. A value that none takes is kept
    /// too: the engine of the image says which ones it has ([`MountOptions::settings`]).
    fn apply_engine(&mut self, option: &str) -> bool {
        let (name, value) = parts(option);
        let mut known = false;
        for engine in ENGINES.0 {
            let mut settings = engine.settings();
            match engine.set(&mut settings, name, value) {
                Ok(true) => {
                    // Paths in it are absolute, as the mount will be in another directory.
                    let option = match (value, settings.get(name)) {
                        (Some(_), Some(value)) => format!("{name}={value}"),
                        _ => option.to_owned(),
                    };
                    self.engine.push(ForEngine::Option(option));
                    return true;
                }
                Ok(false) => {}
                Err(_) => known = true,
            }
        }
        if known {
            self.engine.push(ForEngine::Option(option.to_owned()));
        }
        known
    }

    /// What of it is for the engine, in its words. An error for what only another one understands.
    pub fn settings(&self, engine: &dyn Engine) -> Result<Settings, String> {
        let mut settings = engine.settings();
        for told in &self.engine {
            let option = match told {
                ForEngine::Option(option) => option,
                ForEngine::Sync(on) => {
                    engine.set_sync(&mut settings, *on);
                    continue;
                }
            };
            let (name, value) = parts(option);
            let known = engine.set(&mut settings, name, value);
            if !known.map_err(|why| wrong(option, why))? {
                return Err(format!(
                    "'{option}' is no option of {} images; there are: {COMMON}, {}",
                    engine.name(),
                    engine.option_names()
                ));
            }
        }
        if self.writeback && settings.get("mode") == Some("strong") {
            return Err(
                "with 'writeback' the kernel keeps what was written, and mode=strong could not \
                 promise that it is durable: leave one of them out"
                    .to_string(),
            );
        }
        Ok(settings)
    }

    fn apply_flag(&mut self, name: &str) -> Result<bool, String> {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "sync" => self.set_sync(true),
            "noatime" => self.atime = Atime::No,
            "relatime" => self.atime = Atime::Relative,
            // These take back another option, and mean nothing without it.
            "async" if self.sync => self.set_sync(false),
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

    /// Data by an fsync of the kernel's after each write, names as far as the engine can.
    fn set_sync(&mut self, on: bool) {
        self.sync = on;
        self.engine.push(ForEngine::Sync(on));
    }

    fn apply_value(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "threads" => self.threads = Some(parse_threads(value)?),
            "transport" => self.transport = parse_transport(value)?,
            "grace" => self.grace = parse_duration(value)?,
            "log" => self.log = Some(std::path::absolute(value).map_err(|e| e.to_string())?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// As `-o` takes them, but for `log`, whose path may have commas, and for those of the engine.
impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = |on, yes: &'static str, no: &'static str| if on { yes } else { no };
        f.write_str(switch(self.read_only, "ro", "rw"))?;
        f.write_str(switch(self.sync, ",sync", ""))?;
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
        let by_ring = self.transport == Transport::Ring;
        option(f, "transport", by_ring.then(|| self.transport.name()))?;
        let grace = (self.grace != GRACE).then(|| format!("{}s", self.grace.as_secs_f64()));
        option(f, "grace", grace)?;
        f.write_str(switch(self.writeback, ",writeback", ""))
    }
}

fn option(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    match value {
        Some(value) => write!(f, ",{name}={value}"),
        None => Ok(()),
    }
}

fn parse_transport(value: &str) -> Result<Transport, String> {
    let known = Transport::ALL.into_iter().find(|(_, name)| *name == value);
    let unknown = || format!("invalid transport '{value}'; expected device or ring");
    known.map(|(transport, _)| transport).ok_or_else(unknown)
}

fn is_ignored(option: &str) -> bool {
    IGNORED.contains(&option)
        || IGNORED_PREFIXES
            .iter()
            .any(|prefix| option.starts_with(prefix))
}

/// The name of an option, and its value if it has one.
fn parts(option: &str) -> (&str, Option<&str>) {
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

fn wrong(option: &str, why: String) -> String {
    match option.contains('=') {
        true => format!("{option}: {why}"),
        false => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &str) -> Result<MountOptions, String> {
        let mut options = MountOptions::new(true);
        options.apply(list, false).map(|()| options)
    }

    /// What the engine of new images makes of a list, in its words.
    fn settings(list: &str) -> String {
        let options = applied(list).expect("valid");
        let settings = options.settings(ENGINES.default_engine());
        settings.expect("valid").to_string()
    }

    #[test]
    fn the_last_of_contradicting_options_counts() {
        let options = applied("ro,noatime,rw,strictatime,nodev,dev").expect("valid");
        assert!(!options.read_only && options.dev);
        assert_eq!(options.atime, Atime::Strict);
        assert_eq!(settings("mode=sync,mode=delayed"), settings(""));
    }

    #[test]
    fn what_mount_takes_back_is_taken_back() {
        for list in ["sync,async", "noatime,atime", "strictatime,nostrictatime"] {
            let (options, none) = (applied(list).expect("valid"), MountOptions::new(true));
            assert_eq!(options.to_string(), none.to_string(), "{list}");
            assert_eq!(settings(list), settings(""), "{list}");
        }
        let options = applied("mode=sync,strictatime,async,atime").expect("valid");
        assert_eq!(options.atime, Atime::Strict);
        assert!(settings("mode=sync,async").contains("mode=sync"));
        assert!(settings("mode=strong,sync").contains("mode=strong"));
    }

    #[test]
    fn values_are_read_with_their_units() {
        assert_eq!(applied("threads=2").expect("valid").threads, Some(2));
        let grace = applied("grace=250ms").expect("valid").grace;
        assert_eq!(grace, Duration::from_millis(250));
        let list = "bound=250ms,backlog=1G,persisters=3,domain=page,flush_ns=800,huge";
        let same = "mode=delayed,bound=0.25s,backlog=1073741824,persisters=3,domain=page,\
            flush_ns=800,huge";
        assert_eq!(settings(list), same);
    }

    #[test]
    fn what_is_shown_makes_the_same_options() {
        let others = "ro,bound=1234us,backlog=3M,persisters=2,noatime,noallow_other,nodev,\
            nosuid,noexec,threads=7,transport=ring,grace=250ms,writeback,domain=line,flush_ns=1,\
            fence_ns=2,read_ns=3,huge";
        for list in [
            "",
            "sync",
            "sync,mode=delayed",
            "mode=sync,strictatime",
            others,
        ] {
            let options = applied(list).expect("valid");
            let shown = format!("{options},{}", settings(list));
            let again = applied(&shown).expect("valid");
            assert_eq!(again.to_string(), options.to_string(), "{list}");
            assert_eq!(settings(&shown), settings(list), "{list}");
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
        for word in ["'compress=zstd'", "strictatime", "backlog="] {
            assert!(error.contains(word), "{error}");
        }
        assert!(
            MountOptions::new(false).apply("compress", true).is_ok(),
            "sloppy"
        );
    }

    #[test]
    fn an_option_of_another_engine_is_refused_once_the_image_is_known() {
        let options = applied("noatime,room=9").expect("that of the engine for tests");
        let error = options.settings(ENGINES.default_engine());
        let error = error.expect_err("not an option of this engine");
        assert!(
            error.contains("'room=9'") && error.contains("soupfs"),
            "{error}"
        );
        let engine = ENGINES.named("volatile").expect("an engine");
        let settings = options.settings(engine).expect("its own");
        assert_eq!(settings.get("room"), Some("9"));
    }

    #[test]
    fn bad_values_say_what_would_be_right() {
        for (list, hint) in [
            ("threads=0", "1 to 1024"),
            ("transport=pigeon", "device or ring"),
            ("remount", "unmount it"),
        ] {
            let error = applied(list).expect_err(list);
            assert!(error.contains(hint), "{list}: {error}");
        }
        // What is right for an engine that engine says.
        for (list, engine, hint) in [
            ("mode=fast", "soupfs", "delayed, sync or strong"),
            ("mode=fast", "ext2", "soft, sync, ordered, journal or async"),
            (
                "mode=strong",
                "ext2",
                "soft, sync, ordered, journal or async",
            ),
            ("bound=0", "soupfs", "mode=sync"),
            ("domain=disk", "soupfs", "line, cache or page"),
            ("domain=disk", "ext2", "line, cache or page"),
            ("bound=2s", "ext2", "no option of ext2 images"),
            ("flush_ns=slow", "soupfs", "nanoseconds"),
        ] {
            let options = applied(list).expect("an option of some engine");
            let engine = ENGINES.named(engine).expect("an engine");
            let error = options.settings(engine).expect_err(list);
            assert!(error.contains(hint), "{list}: {error}");
        }
    }

    #[test]
    fn what_the_kernel_keeps_is_not_strong() {
        let options = applied("writeback,mode=strong").expect("known");
        let error = options.settings(ENGINES.default_engine());
        assert!(error.expect_err("refused").contains("leave one"));
    }

    #[test]
    fn sync_covers_data_and_names() {
        assert!(applied("sync").expect("valid").sync);
        assert!(settings("sync").contains("mode=sync"));
    }
}

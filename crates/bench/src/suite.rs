//! All families, by name, and the two ways to run them: at full size, and as a quick look.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machine::{Machine, cores, today};
use crate::plan::{Clock, NoProgress, Plan};
use crate::report::Found;
use crate::runs;
use crate::target::{Result, TargetSpec};

/// Something that can be measured.
pub struct Family {
    /// The word that asks for it.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// Part of the quick look; divides sizes by so much more there.
    quick: Option<u64>,
    /// In the one run of all families: whether the kernel's file systems take part if they do at
    /// all, and how long a phase takes at most that could go on. Chosen so that the run takes 20
    /// minutes.
    all: (bool, Duration),
    /// Explanations that no program can find.
    pub text: &'static str,
    measure: fn(&Plan) -> Result<Found>,
}

/// What makes so many names before each phase that a mount would take the time of all other
/// targets' rounds: a quick look leaves it out.
const SLOW_MOUNTED: [&str; 1] = ["fxmark"];

/// How long a phase takes by default.
const LONG: Duration = Duration::from_secs(2);

/// All of them, in the order of a report.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "disk",
        about: "what the mount does on an ordinary disk, beside ext4, fuse2fs and tmpfs",
        quick: Some(5),
        all: (true, LONG),
        text: "",
        measure: runs::disk::run,
    },
    Family {
        name: "databases",
        about: "SQLite and db_bench on a disk: durable transactions",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::databases::run,
    },
    Family {
        name: "sqlite",
        about: "SQLite in images without a mount, on mounts, ext4 and tmpfs (HTMFS Fig. 10)",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::sqlite::run,
    },
    Family {
        name: "large",
        about: "512 MiB written and read back cold, and fsync beside a writer, on a disk",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::large::run,
    },
    Family {
        name: "programs",
        about: "cp, find, grep, tar, git and rm as they are, on a disk and in memory",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::programs::run,
    },
    Family {
        name: "requests",
        about: "one request of the mount after the other, beside client and server on one core",
        quick: None,
        all: (false, LONG),
        text: "",
        measure: runs::requests::run,
    },
    Family {
        name: "names",
        about: "filetest and dirtest: names made and removed, with latencies (SoupFS Fig. 9)",
        quick: Some(5),
        all: (true, LONG),
        text: include_str!("../text/names.md"),
        measure: runs::names::run,
    },
    Family {
        name: "data",
        about: "4 KiB appended, overwritten, read, made durable, beside a bare copy",
        quick: Some(4),
        all: (true, LONG),
        text: include_str!("../text/data.md"),
        measure: runs::data::run,
    },
    Family {
        name: "postmark",
        about: "PostMark: small files of a mail server (SoupFS Fig. 10)",
        quick: Some(10),
        all: (true, Duration::from_millis(1000)),
        text: "",
        measure: runs::postmark::run,
    },
    Family {
        name: "filebench",
        about: "fileserver, fileserver-1K, webproxy, varmail (SoupFS Fig. 11, 12; HTMFS Fig. 9)",
        quick: Some(10),
        all: (true, Duration::from_millis(500)),
        text: "",
        measure: runs::filebench::run,
    },
    Family {
        name: "ext2",
        about: "the engine of ext2 in-process, beside tmpfs and the kernel's ext2, ext3, ext4",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::ext2::run,
    },
    Family {
        name: "soft-updates",
        about: "soft updates beside the engine's other modes, on a modelled and on a real disk",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::soft_updates::run,
    },
    Family {
        name: "caches",
        about: "persistent caches before a disk: Spindle beside Tinca (Spindle Fig. 5, 6)",
        quick: None,
        all: (true, LONG),
        text: "",
        measure: runs::caches::run,
    },
    Family {
        name: "latency",
        about: "creates and unlinks on media with slow flushes (SoupFS Fig. 13)",
        quick: Some(10),
        all: (false, LONG),
        text: include_str!("../text/latency.md"),
        measure: runs::latency::run,
    },
    Family {
        name: "fxmark",
        about: "fourteen operations on what threads share (HTMFS Fig. 8, Table 4)",
        quick: Some(10),
        all: (false, Duration::from_millis(300)),
        text: "",
        measure: runs::fxmark::run,
    },
    Family {
        name: "strong",
        about: "mode strong: its requests, and what it takes over delayed (HTMFS Fig. 8, 9)",
        quick: None,
        all: (true, Duration::from_millis(60)),
        text: "",
        measure: runs::strong::run,
    },
    Family {
        name: "sharing",
        about: "lines that change hands between threads, counted: scaling beyond this machine",
        quick: Some(4),
        all: (false, LONG),
        text: "",
        measure: runs::sharing::run,
    },
    Family {
        name: "scaling",
        about: "cache lines that change hands, in DRAM too, and a model of up to 64 cores; needs \
         valgrind",
        quick: None,
        all: (false, LONG),
        text: include_str!("../text/scaling.md"),
        measure: runs::scaling::run,
    },
    Family {
        name: "threads",
        about: "threads on names, in directories of their own and in one",
        quick: None,
        all: (false, LONG),
        text: include_str!("../text/threads.md"),
        measure: runs::threads::run,
    },
    Family {
        name: "growth",
        about: "one directory that grows, from 10 names: both engines beside tmpfs",
        quick: Some(100),
        all: (false, LONG),
        text: include_str!("../text/growth.md"),
        measure: runs::growth::run_directory,
    },
    Family {
        name: "sizes",
        about: "one file that grows, up to 100 bytes for each of --up-to",
        quick: Some(50),
        all: (false, LONG),
        text: "",
        measure: runs::growth::run_file,
    },
    Family {
        name: "mounts",
        about: "requests through FUSE; mount and offline check among ever more files",
        quick: Some(20),
        all: (false, LONG),
        text: "",
        measure: runs::mounts::run,
    },
    Family {
        name: "persister",
        about: "what the persister takes of a sustained load, and how far behind it is",
        quick: Some(1),
        all: (false, LONG),
        text: include_str!("../text/persister.md"),
        measure: runs::backlog::run_sustained,
    },
    Family {
        name: "overload",
        about: "more creates than the medium takes",
        quick: None,
        all: (false, LONG),
        text: include_str!("../text/overload.md"),
        measure: runs::backlog::run_overload,
    },
    Family {
        name: "scale",
        about: "5,000,000 files: mounts and DRAM",
        quick: None,
        all: (false, LONG),
        text: include_str!("../text/scale.md"),
        measure: runs::scale::run,
    },
    Family {
        name: "recovery",
        about: "the offline check, and reclaim after a kill",
        quick: None,
        all: (false, LONG),
        text: include_str!("../text/recovery.md"),
        measure: runs::recovery::run,
    },
    Family {
        name: "fsck",
        about: "the offline check of an ext2 image of a million files, beside e2fsck",
        quick: None,
        all: (false, LONG),
        text: "",
        measure: runs::fsck::run,
    },
    Family {
        name: "endurance",
        about: "lines written to the medium by each operation, and how evenly (SoupFS §3.10)",
        quick: Some(5),
        all: (false, LONG),
        text: "",
        measure: runs::endurance::run,
    },
    Family {
        name: "modes",
        about: "what each mode costs caller and medium",
        quick: Some(5),
        all: (false, LONG),
        text: include_str!("../text/modes.md"),
        measure: runs::modes::run,
    },
];

/// How much to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// The papers' parameters: minutes for each family.
    Full,
    /// All families in one run: the papers' sizes, shorter phases where many targets do many of
    /// them.
    All,
    /// All that a person wants to see first, in less than two minutes.
    Quick,
}

impl Size {
    /// The families of this size.
    pub fn families(self) -> impl Iterator<Item = &'static Family> {
        let quick = self == Size::Quick;
        FAMILIES
            .iter()
            .filter(move |family| !quick || family.quick.is_some())
    }

    /// How long it may take, more or less: no more rounds are begun than are needed.
    pub fn budget(self) -> Option<Duration> {
        match self {
            Size::Full => None,
            Size::All => Some(Duration::from_secs(19 * 60)),
            Size::Quick => Some(Duration::from_secs(90)),
        }
    }

    /// The plan of this size, with all that is not a matter of size as it is by default.
    pub fn plan(self) -> Plan {
        let (rounds, window) = match self {
            Size::Full => (10, LONG),
            // The fewest that give an interval of 95 %.
            Size::All => (6, LONG),
            Size::Quick => (5, Duration::from_millis(25)),
        };
        Plan {
            scratch: PathBuf::from("/dev/shm"),
            disk: PathBuf::from("/var/tmp"),
            rounds,
            divide: 1,
            window,
            threads: powers_of_two(cores()),
            up_to: 1_000_000,
            huge_pages: false,
            clock: Clock::Wall,
            targets: vec![TargetSpec::Engine(Default::default()), TargetSpec::Tmpfs],
            baseline: TargetSpec::Tmpfs.name(),
            tureen: None,
            until: None,
            paths: false,
            progress: Arc::new(NoProgress),
        }
    }
}

/// 1, 2, 4 and so on, and the number of cores.
fn powers_of_two(cores: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|n| *n < cores)
        .collect();
    counts.push(cores);
    counts
}

/// They are on the disks of those who have a choice. What else of the kernel's can take part is
/// compared where it belongs.
const PEERS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// The file systems of `--peers`.
pub fn peers() -> impl Iterator<Item = TargetSpec> {
    PEERS.into_iter().map(TargetSpec::Kernel)
}

impl Family {
    /// The family of a name.
    pub fn of(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// Measure it; `command` is how it was asked for. Returns who took part, too.
    pub fn run(&self, plan: &Plan, size: Size, command: &str) -> Result<Found> {
        let begin = Instant::now();
        let (mut run, peers) = (self.measure)(&self.plan(plan, size))?;
        run.seconds = begin.elapsed().as_secs_f64();
        run.date = today();
        run.command = command.into();
        run.text = self.text_on(&Machine::here());
        Ok((run, peers))
    }

    /// The explanations that hold for a machine: a part of a text between `<!-- only: PROCESSOR
    /// -->` and `<!-- end -->` is for machines whose processor's name contains that.
    pub fn text_on(&self, machine: &Machine) -> String {
        text_on(self.text, &machine.processor)
    }

    /// What it does of a plan for all families: at some sizes less.
    pub fn plan(&self, plan: &Plan, size: Size) -> Plan {
        let mut plan = plan.clone();
        if size == Size::Quick {
            plan.divide *= self.quick.unwrap_or(1);
            let slow = SLOW_MOUNTED.contains(&self.name);
            plan.targets.retain(|target| !(slow && target.is_mount()));
        }
        if size == Size::All {
            let (peers, window) = self.all;
            plan.window = plan.window.min(window);
            plan.targets
                .retain(|target| peers || !matches!(target, TargetSpec::Kernel(_)));
            if !plan.takes_part(&plan.baseline) {
                plan.baseline = TargetSpec::Tmpfs.name();
            }
        }
        plan
    }
}

fn text_on(text: &str, processor: &str) -> String {
    let mut shown = true;
    let mut out = String::new();
    for line in text.lines() {
        let only = line.strip_prefix("<!-- only: ");
        match only.and_then(|rest| rest.strip_suffix(" -->")) {
            Some(other) => shown = processor.ends_with(other),
            None if line == "<!-- end -->" => shown = true,
            None if shown => {
                out += line;
                out.push('\n');
            }
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_on_one_machine_is_told_of_that_machine_only() {
        let text = "a\n<!-- only: model 2 -->\nb\n<!-- end -->\nc\n";
        assert_eq!(text_on(text, "X, family 26 model 2"), "a\nb\nc\n");
        assert_eq!(text_on(text, "X, family 26 model 21"), "a\nc\n");
        for family in FAMILIES {
            let elsewhere = text_on(family.text, "another one");
            for name in ["Xeon", "EPYC", "This machine", "this machine", "<!--"] {
                assert!(!elsewhere.contains(name), "{}: {name}", family.name);
            }
        }
    }

    #[test]
    fn counts_of_threads_end_with_all_cores() {
        assert_eq!(powers_of_two(1), [1]);
        assert_eq!(powers_of_two(2), [1, 2]);
        assert_eq!(powers_of_two(6), [1, 2, 4, 6]);
    }

    #[test]
    fn families_have_names_of_their_own() {
        for (i, family) in FAMILIES.iter().enumerate() {
            let same = FAMILIES.iter().position(|other| other.name == family.name);
            assert_eq!(same, Some(i), "{}", family.name);
        }
    }
}

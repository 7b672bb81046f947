//! The one result from which all output is made: runs of families, with who took part.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::chart::Chart;
use super::table::Table;
use super::verdict::Verdict;
use crate::machine::Machine;

/// The engine of the headline figures, as charts name it.
pub const OURS: &str = "SoupFS in-process";

/// The mount with default options, as charts name it.
pub const MOUNT: &str = "mount";

/// The mount of an ext2 image with default options, as charts name it.
pub const MOUNT_EXT2: &str = "mount ext2";

/// The engine in mode `delayed`, where a chart compares modes.
pub const DELAYED: &str = "in-process, delayed";

/// The disk's own file system, in a directory of its own there, as charts name it.
pub const HOST: &str = "host";

/// The chart of what files cost through a mount on an ordinary disk.
pub const ON_DISK: &str = "Files on a disk, by system calls";

/// The operation that commits a small new file, and what a disk takes for that much at least.
pub const DURABLE_CREATE: &str = "create, 4 KiB, fsync";
/// See [`DURABLE_CREATE`].
pub const BARE_WRITE: &str = "overwrite 8 KiB, fdatasync";

/// SoupFS in-process in mode strong, and in mode sync, as charts name them.
pub const STRONG: &str = "SoupFS in-process strong";
/// See [`STRONG`].
pub const IN_SYNC: &str = "SoupFS in-process sync";

/// The charts of mode strong: a request, and one that is followed by fsync.
pub const REQUEST: &str = "A request, domain line";
/// See [`REQUEST`].
pub const DURABLE_REQUEST: &str = "A request and fsync, domain line";

/// The charts of the engine of ext2 in-process: names, and blocks.
pub const EXT2_NAMES: &str = "Names of ext2, settled";
/// See [`EXT2_NAMES`].
pub const EXT2_BLOCKS: &str = "Per block of 4 KiB of ext2";

/// The engine of ext2 in-process, as charts name it.
pub const OUR_EXT2: &str = "FFS in-process";

/// The chart of threads that make files durable there.
pub const THREADS_ON_DISK: &str = "16 threads on a disk, by system calls";

/// The chart of what a commit in-process takes beside a bare write.
pub const IN_PROCESS_ON_DISK: &str =
    "On a disk: in-process by function calls, the disk's own by system calls";

/// The chart of a large file.
pub const LARGE: &str = "A large file on a disk, by system calls";

/// The chart of fsyncs beside a writer.
pub const SMALL_FSYNC: &str = "An fsync of 4 KiB on a disk, by system calls";

/// Half of the fsyncs with nobody beside, and 99 of 100, take at most so long.
pub const QUIET: [&str; 2] = ["quiet, median", "quiet, 99 %"];

/// The same beside a writer.
pub const BESIDE_WRITER: [&str; 2] = ["beside a writer, median", "beside a writer, 99 %"];

/// The chart of programs on a disk.
pub const PROGRAMS: &str = "Programs, images on a disk";

/// The same in memory.
pub const PROGRAMS_IN_MEMORY: &str = "Programs, images in memory";

/// Who checks images of ext2, each a process of its own, as charts name them.
pub const FSCK: &str = "tureen fsck";
/// See [`FSCK`].
pub const E2FSCK: &str = "e2fsck";

/// The chart of databases on a disk.
pub const DATABASES: &str = "Databases on a disk, by system calls";

/// A mount that shares a core with its client.
pub const ONE_CORE: &str = "mount, on its client's core";

/// The charts of requests: half of them take at most so long, and nine of ten.
pub const MEDIAN_REQUEST: &str = "A request, median";
/// See [`MEDIAN_REQUEST`].
pub const SLOW_REQUEST: &str = "A request, 90 %";

/// The chart of several clients.
pub const CLIENTS: &str = "Requests of clients on cores of their own";

/// Beside a caller's figure: what persisting its operations took.
pub const PERSIST: &str = "persist ns";

/// All that was found in one go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Who took part, and who could not.
    pub peers: Vec<Peer>,
    /// In the order of the runs.
    pub runs: Vec<Run>,
}

/// Who took part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name in charts.
    pub name: String,
    /// What it is, and how it was set up.
    pub about: String,
    /// What it flushed or synced, and what it did not.
    pub durability: String,
    /// Where the blocks of an append come from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blocks: String,
    /// Why it could not take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What a family found, and who took part.
pub type Found = (Run, Vec<Peer>);

/// What one family found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The word that asks for it.
    pub name: String,
    /// What it measures, in a sentence.
    pub about: String,
    /// The command that makes it again.
    pub command: String,
    /// The target that ratios are to.
    #[serde(rename = "base")]
    pub baseline: String,
    /// The figures.
    pub charts: Vec<Chart>,
    /// What no chart holds.
    pub tables: Vec<Table>,
    /// Beside the papers.
    pub checks: Vec<Check>,
    /// What a reader has to know to judge the figures.
    pub notes: Vec<String>,
    /// Explanations that no program can find, in Markdown.
    pub text: String,
    /// How long it took.
    pub seconds: f64,
    /// The day of it, as `2026-01-31` (UTC); empty if nobody knows.
    #[serde(default)]
    pub date: String,
}

/// A figure of a paper beside ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// Which figure, and what it shows.
    pub paper: String,
    /// What is seen here.
    pub here: String,
    /// Whether that is the same.
    pub verdict: Verdict,
    /// Why, where that is not plain.
    pub why: String,
}

impl Run {
    /// A run without figures; the suite fills in how it was called and how long it took.
    pub fn new(name: &str, about: impl Into<String>) -> Run {
        Run {
            name: name.into(),
            about: about.into(),
            command: String::new(),
            baseline: String::new(),
            charts: Vec::new(),
            tables: Vec::new(),
            checks: Vec::new(),
            notes: Vec::new(),
            text: String::new(),
            seconds: 0.0,
            date: String::new(),
        }
    }

    /// The chart with a title.
    pub fn chart(&self, title: &str) -> Option<&Chart> {
        self.charts.iter().find(|chart| chart.title == title)
    }

    /// Add the rounds of the same figures of another run.
    fn join(&mut self, other: Run) {
        for chart in other.charts {
            match self.charts.iter_mut().find(|own| own.title == chart.title) {
                Some(own) => own.join(chart),
                None => self.charts.push(chart),
            }
        }
    }

    /// All tables: those of the charts, then the others.
    pub fn all_tables(&self) -> Vec<Table> {
        let made = self.charts.iter().map(|chart| chart.table(&self.baseline));
        made.chain(self.tables.iter().cloned()).collect()
    }
}

impl Report {
    /// The days of its runs: one, or the first and the last.
    pub fn dates(&self) -> String {
        let dates = || self.runs.iter().map(|run| run.date.as_str());
        match (dates().min(), dates().max()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (Some(day), _) if !day.is_empty() => day.into(),
            _ => "an unknown date".into(),
        }
    }

    /// Add the rounds of another result to the same figures, and what is only there.
    pub fn join(&mut self, other: Report) {
        for run in other.runs {
            match self.runs.iter_mut().find(|own| own.name == run.name) {
                Some(own) => own.join(run),
                None => self.runs.push(run),
            }
        }
    }

    /// Take over what another one found: its runs in place of those with the same name.
    pub fn merge(&mut self, newer: Report) {
        for run in newer.runs {
            match self.runs.iter_mut().find(|own| own.name == run.name) {
                Some(own) => *own = run,
                None => self.runs.push(run),
            }
        }
        for peer in newer.peers {
            match self.peers.iter_mut().find(|own| own.name == peer.name) {
                Some(own) => *own = peer,
                None => self.peers.push(peer),
            }
        }
        self.machine = newer.machine;
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Here: {}.", self.paper, self.verdict)?;
        let more = [&self.here, &self.why];
        let mut more = more.into_iter().filter(|text| !text.is_empty());
        more.try_for_each(|text| write!(f, " {text}"))
    }
}

impl Peer {
    /// The same under another name.
    pub fn named(self, name: &str) -> Peer {
        Peer {
            name: name.into(),
            ..self
        }
    }

    /// The same, with where the blocks of an append come from.
    pub fn blocks(self, blocks: &str) -> Peer {
        Peer {
            blocks: blocks.into(),
            ..self
        }
    }

    /// What is to be said after its name.
    pub fn told(&self) -> String {
        match &self.missing {
            Some(why) => format!("did not take part: {why}"),
            None => {
                let blocks = match self.blocks.as_str() {
                    "" => String::new(),
                    blocks => format!(" Blocks of an append: {blocks}."),
                };
                let (about, durability) = (&self.about, &self.durability);
                format!("is {about}. Flushed and synced: {durability}.{blocks}")
            }
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "- {} {}", self.name, self.told())
    }
}

//! What an engine brings, so that its judges can be shown to notice.

use crate::engine::Mode;
use crate::halfway::Case;
use crate::rules::Rules;
use crate::workload::Workload;
use pmem::Domain;

/// All that must be known of an engine to make mutants of it.
pub struct Table {
    /// Workloads that come by the places of the engine.
    pub tours: &'static [Tour],
    /// The domains in which something is left out there.
    pub domains: &'static [Domain],
    /// Whether what is flushed at this place was stored at many.
    pub gathers: fn(&str) -> bool,
    /// What a line holds that is flushed at such a place.
    pub part: fn(&Flushed<'_>) -> &'static str,
    /// What need not be noticed.
    pub excuses: &'static [Excuse],
    /// Bugs that can be injected.
    pub bugs: fn() -> Vec<Bug>,
    /// Inject a bug, by its name, into all mounts of this process, or take it out; false if this
    /// build has none.
    pub inject: fn(Option<&str>) -> bool,
    /// Where a bug is looked for behind the families that lead to it, those first that found some
    /// before.
    pub situations: fn() -> Vec<Workload>,
}

/// Workloads that between them come by all places of an engine, as far as its modes do that these
/// are in. What is left out must be noticed in each tour by itself.
pub struct Tour {
    /// The modes.
    pub name: &'static str,
    /// The workloads, the cheap ones first.
    pub made: fn() -> Vec<Workload>,
}

/// A line that is flushed.
pub struct Flushed<'a> {
    /// Its number.
    pub line: u64,
    /// Bytes of the image.
    pub len: u64,
    /// It was last stored to in one piece, not word by word.
    pub in_one_piece: bool,
    /// Whether an inode has this number, at any time of the run.
    pub is_inode: &'a dyn Fn(u64) -> bool,
}

/// A rule of an engine that can be broken.
pub struct Bug {
    /// Its name.
    pub name: String,
    /// Media on which it can show.
    pub media: Vec<Rules>,
    /// The mode in which it shows, if not in that of any workload.
    pub mode: Option<Mode>,
    /// Families that lead to where it is, and how many of their workloads are tried before all
    /// others.
    pub reached_by: &'static [(&'static str, u64)],
    /// It is in what follows a crash, where crashes are tried as well.
    pub nests: bool,
    /// Whether it may show in a case; `Some` if it shows only where operations meet half-way.
    pub meets: Option<fn(&Case) -> bool>,
}

/// Why nobody need notice a mutant.
pub struct Excuse {
    /// What its name starts with.
    pub of: &'static str,
    /// The domains in which that is so.
    pub domains: &'static [Domain],
    /// What the reason stands on.
    pub ground: Ground,
    /// The reason.
    pub why: &'static str,
}

/// What an excuse stands on.
pub enum Ground {
    /// These assumptions of `docs/crash-model.md`, by number: the engine is right without it, in
    /// every life.
    Assumptions(&'static [u8]),
    /// The engine is wrong without it, in a life that is not explored here. The tests in this file
    /// notice.
    Tests(&'static str),
}

//! The judges can fail: with a flush, a fence or an order of the engine left out, one at a time, or
//! with a bug injected into it, some workload must be objected to; or there is a reason why not.
//!
//! - `flush F`: no flush of this place happens. `fence G`: no fence of it. `barrier B`: no barrier
//!   of a disk.
//! - `order F -> G`: what place F flushed is not durable at the fence of place G, only at the next
//!   one. So what comes behind G may reach the medium before what F flushed.
//! - `bug B`: a rule of the engine is broken, in builds with the feature `faults`.
//!
//! A place is named by the innermost functions of the engine there, the outermost last. The first
//! three are made by changing a trace; their places are those that the workloads come by. What is
//! known of an engine for all of this is its [`Table`].

mod cached;
mod document;
mod ffs;
mod hints;
mod injected;
mod left_out;
mod soupfs;
mod table;

use crate::effort::{Effort, OF_RUNS, Until};
use crate::engine::Engine;
use crate::medium::Tears;
use crate::rules::Rules;
use crate::states::Sampling;
use std::collections::BTreeMap;
use std::fmt;

pub use document::document;
pub use injected::inject_each;
pub use left_out::leave_out;
pub use table::{Bug, Excuse, Flushed, Ground, Table, Tour};

/// What must be known of an engine to show that its judges notice what is wrong.
pub fn of(engine: &dyn Engine) -> Option<Table> {
    match engine.name() {
        "soupfs" => Some(soupfs::TABLE),
        "ext2" => Some(ffs::table()),
        "ext2+cache" => Some(cached::table()),
        _ => None,
    }
}

/// What is left out, or injected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// All flushes of a place.
    Flush(String),
    /// All fences of a place.
    Fence(String),
    /// All barriers of a place.
    Barrier(String),
    /// That what the first place flushed is durable behind the fence of the second.
    Order(String, String),
    /// A bug, by its name.
    Bug(String),
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutant::Flush(site) => write!(f, "flush {site}"),
            Mutant::Fence(site) => write!(f, "fence {site}"),
            Mutant::Barrier(site) => write!(f, "barrier {site}"),
            Mutant::Order(flush, fence) => write!(f, "order {flush} -> {fence}"),
            Mutant::Bug(name) => write!(f, "bug {name}"),
        }
    }
}

/// What became of a mutant.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    /// Workloads that it was tried with.
    pub tried: u32,
    /// The workload that noticed, and what its judge said.
    pub noticed: Option<(String, String)>,
    /// Why nobody need notice, if so.
    pub excuse: Option<String>,
}

/// What became of each, on each medium on which it was tried.
pub type Fates = BTreeMap<(Mutant, Rules), Fate>;

/// Effort spent on a mutant in a workload. No crashes are nested here: each later life begins with
/// a recovery, from what a kill left, which is no less than what a power cut leaves; its crash
/// states are judged as those of the first, and the same is left out of it.
const EFFORT: Effort<'static> = Effort {
    sampling: Sampling {
        exhaustive: 64,
        samples: 12,
        at_flush: 0,
        tears: Tears::Some,
        seed: 0,
    },
    used: 31,
    nested: u64::MAX,
    reclaimed: u64::MAX,
    lives: 6 * OF_RUNS,
    others: 0,
    depth: 1,
    until: Until::Done,
};

/// Those that nobody noticed, and that have no excuse.
pub fn survivors(fates: &Fates) -> Vec<String> {
    let open = |fate: &Fate| fate.noticed.is_none() && fate.excuse.is_none();
    let open = fates.iter().filter(|(_, fate)| open(fate));
    open.map(|((mutant, rules), _)| format!("{mutant} ({rules})"))
        .collect()
}

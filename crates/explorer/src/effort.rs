//! How thorough an exploration is.

use crate::medium::Tears;
use crate::states::Sampling;

pub use crate::parallel::Until;

/// [`Effort::lives`] is for so many runs.
pub const OF_RUNS: u64 = 16;

/// How thorough an exploration is.
#[derive(Debug, Clone, Copy)]
pub struct Effort<'a> {
    /// Which states are judged.
    pub sampling: Sampling,
    /// One in so many states is also repaired and used.
    pub used: u64,
    /// One in so many is crashed again while it recovers, and while fsck repairs it.
    pub nested: u64,
    /// One in so many is reclaimed in the background, and crashed again meanwhile.
    pub reclaimed: u64,
    /// In [`OF_RUNS`] runs the process is killed so often, and others follow it.
    pub lives: u64,
    /// One in so many is shown to a judge that others made, if there is one; 0: none is.
    pub others: u64,
    /// How deep crashes in recoveries, and in fsck, are nested.
    pub depth: u32,
    /// When no more states are judged.
    pub until: Until<'a>,
}

/// Levels of effort by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For many workloads in little time.
    Quick,
    /// Of a normal test run.
    Normal,
    /// For few workloads, or much time.
    Thorough,
}

impl Level {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Level); 3] = [
        ("quick", Level::Quick),
        ("normal", Level::Normal),
        ("thorough", Level::Thorough),
    ];

    /// What it means; `seed` chooses the samples.
    pub fn effort(self, seed: u64) -> Effort<'static> {
        let (exhaustive, samples, at_flush, tears) = match self {
            Level::Quick => (16, 8, 0, Tears::Some),
            Level::Normal => (64, 20, 1, Tears::Some),
            Level::Thorough => (4096, 200, 4, Tears::All),
        };
        let sampling = Sampling {
            exhaustive,
            samples,
            at_flush,
            tears,
            seed,
        };
        let (used, nested, reclaimed, lives, depth) = match self {
            Level::Quick => (211, 499, 9973, 1, 1),
            Level::Normal => (61, 211, 1999, 4, 2),
            Level::Thorough => (61, 211, 1999, 320, 2),
        };
        Effort {
            sampling,
            used,
            nested,
            reclaimed,
            lives,
            others: 0,
            depth,
            until: Until::Done,
        }
    }
}

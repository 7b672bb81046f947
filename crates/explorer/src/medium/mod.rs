//! Media: what of each may be there after a crash, by the numbered assumptions of
//! `docs/crash-model.md`; of disks, by those of `docs/design/block.md`.
//!
//! A medium is cut into *units* that a crash leaves independently of each other: lines of a memory,
//! sectors of a disk. A unit has *versions*, from the newest that is durable for sure to the
//! latest, and a crash state is a choice of one version of each. What happens to the medium, event
//! by event, adds versions, and takes away those that are no longer possible. An image has one
//! space of addresses, so several media at once are one whose units are all of theirs.

mod both;
mod lines;
mod sectors;
mod tearing;
mod unordered;

pub use both::Both;
pub use lines::Lines;
pub use sectors::Sectors;

use crate::image::Overlay;
use crate::rules::Rules;
use crate::scratch::Scratch;
use crate::trace::Event;

/// In how many states a store is caught that is not atomic (M3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tears {
    /// A few, by chance.
    Some,
    /// All of a store within a line; of a longer one see [`Lines::thorough`].
    All,
}

impl Rules {
    /// A medium on which everything is durable. `seed` chooses how stores are torn.
    pub fn medium(self, tears: Tears, seed: u64) -> Box<dyn Medium> {
        let lines = |domain| match tears {
            Tears::Some => Lines::new(domain, seed),
            Tears::All => Lines::thorough(domain),
        };
        match self {
            Rules::Lines(domain) => Box::new(lines(domain)),
            Rules::Sectors => Box::new(Sectors::default()),
            Rules::Both(domain) => Box::new(Both::new(lines(domain))),
        }
    }
}

/// Whether a crash is to be tried before an event takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// No: what it might leave is among the states of the next point.
    No,
    /// A few states: the rest are among those of the next point.
    Early,
    /// Yes.
    Crash,
    /// Yes, and one in the middle of the event.
    Within,
}

/// A medium: what each of its units may hold. What is durable for sure is in a [`Scratch`].
pub trait Medium {
    /// Another one in the same state, for another life.
    fn again(&self) -> Box<dyn Medium>;

    /// Whether a crash is to be tried before this event.
    fn before(&self, event: &Event) -> Point;

    /// The states of a crash in the middle of an event: see [`Point::Within`].
    fn within(&mut self, _event: &Event, _scratch: &Scratch) -> Vec<Overlay> {
        Vec::new()
    }

    /// An event happens to the medium.
    fn apply(&mut self, event: &Event, scratch: &mut Scratch);

    /// Each unit that has several versions, by the number of its first line, and how many.
    fn units(&self) -> Vec<(u64, usize)>;

    /// Of two media at once, the first unit that the second one may have.
    fn border(&self) -> Option<u64> {
        None
    }

    /// Add a version of one of these units to a state; 0 is the one that is durable.
    fn put(&self, unit: u64, version: usize, overlay: &mut Overlay);

    /// The process that uses it is killed (M15).
    fn kill(&mut self, scratch: &mut Scratch);

    /// What the next process sees, as far as it is not what is durable for sure.
    fn visible(&self) -> Overlay;
}

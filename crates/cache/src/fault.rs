//! Bugs that can be injected into the cache, to prove that its tests find such.
//!
//! Without the feature `faults` nothing can be injected, and `injected` is a constant.

pub use pmem::fault::Switch;

/// A bug: a rule that is broken as long as it is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// K1 is broken: what units of metadata were is not logged.
    UndoForgotten = 1,
    /// K1 is broken: what entries said is not in the ring.
    SlotsForgotten,
    /// K2 is broken: Head moves before what it commits is durable.
    HeadEarly,
    /// K3 is broken: a block that a transaction replaces is free for the rest of it.
    ReplacedEarly,
    /// K3 is broken: a block that makes way is free before that is durable.
    EvictedEarly,
    /// K4 is broken: a record of another transaction is undone.
    StaleRecord,
    /// A slot of another lap is undone.
    StaleSlot,
    /// Recovery moves Head before Tail.
    HeadBeforeTail,
    /// Recovery leaves no lap out.
    LapKept,
    /// Recovery undoes no metadata.
    UnitsKept,
    /// Recovery takes what a killed process left visible for durable.
    VisibleBelieved,
    /// The disk does not say that it lacks what the cache has.
    Unmarked,
    /// Blocks are clean before the disk has them durably.
    CleanEarly,
    /// The disk says that it has everything before it has.
    UnmarkedEarly,
    /// K6 is broken: a transaction leads to what the disk does not have durably yet.
    PastUnflushed,
    /// K6 is broken: what is in use is written over past the cache.
    PastInUse,
    /// K7 is broken: an entry leads to a block that was read before that is durable.
    ReadKeptEarly,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 17] = [
        Fault::UndoForgotten,
        Fault::SlotsForgotten,
        Fault::HeadEarly,
        Fault::ReplacedEarly,
        Fault::EvictedEarly,
        Fault::StaleRecord,
        Fault::StaleSlot,
        Fault::HeadBeforeTail,
        Fault::LapKept,
        Fault::UnitsKept,
        Fault::VisibleBelieved,
        Fault::Unmarked,
        Fault::CleanEarly,
        Fault::UnmarkedEarly,
        Fault::PastUnflushed,
        Fault::PastInUse,
        Fault::ReadKeptEarly,
    ];
}

static INJECTED: Switch = Switch::new();

/// Inject a bug into all caches of this process, or take it out; false if this build has none.
pub fn fault(bug: Option<Fault>) -> bool {
    INJECTED.set(bug.map_or(0, |bug| bug as u8))
}

#[inline(always)]
pub(crate) fn injected(bug: Fault) -> bool {
    INJECTED.is(bug as u8)
}

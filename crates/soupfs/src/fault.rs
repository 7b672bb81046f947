//! Bugs that can be injected into the engine, to prove that its tests find such.
//!
//! Without the feature `faults` nothing can be injected, and `injected` is a constant.

use pmem::fault::Switch;

/// A bug: a rule that is broken as long as it is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A mount goes on with the epoch of the last one, and trusts its latest pointers.
    EpochReuse = 1,
    /// R1 is broken: an old name goes before the new one is there.
    OldNameFirst,
    /// R2 is broken: half of a rename comes alone, as a new name before the old one goes.
    NewNameAlone,
    /// R3 is broken: a directory is removed before its entries are.
    RemovedWithEntries,
    /// R4 is broken: what is published need not be reachable, so that a new name may lead nowhere.
    Unreachable,
    /// R5 is broken: moves of directories may cut a cycle off.
    MovesAlone,
    /// R6 is broken: a name comes before what its inode holds.
    NameBeforeContents,
    /// Link counts are stored as callers see them, not as the consistent view has them.
    LatestLinkCounts,
    /// An entry's successor is stored as callers see it, not as the consistent view has it.
    LatestNext,
    /// C2 is broken: what was withdrawn is used again before the commit is checkpointed.
    EarlyReuse,
    /// Pages are put to use without being claimed in the maps.
    Unclaimed,
    /// F3 is broken: a file that grows shows what is behind its end.
    TailNotZeroed,
    /// A word of the maps that looks as it is to be is not flushed, although a killed process may
    /// have stored it.
    ClaimUnflushed,
    /// What a killed process wrote to a file is not flushed with the file.
    InheritedUnflushed,
    /// R8 is broken: a replaced name goes, and what replaced it and has moved on does not come.
    MovedOnAlone,
    /// What a removal waits for in its stripe is taken to be there with any addition.
    AnyAddition,
    /// A sweep that is split forgets what the operations before the split pull in.
    SplitForgets,
    /// Of a name that fills several lines only the first is flushed.
    LongNameUnflushed,
    /// Extended attributes are published without being flushed.
    XattrsUnflushed,
    /// So is the target of a symbolic link.
    TargetUnflushed,
    /// A file's access time changes, and is not noted for the persister.
    AccessForgotten,
    /// What was written around the cache over a block of the tree is not noted as dirty.
    StreamedUnflushed,
    /// A link that finds no space for its entry counts nevertheless.
    FailedLinkCounts,
    /// A repair of a clean image does not say so: what has lost its name goes if it is cut short.
    RepairUnmarked,
    /// A name is not announced before it is recorded: a batch beside it does not know of it.
    Unannounced,
    /// An inode that a batch takes up again is taken with its attributes alone.
    RefreshAlone,
    /// A sweep takes the marks of what is dirty off when it has captured it, not before.
    ClearedLate,
    /// What is asked to be synced while a batch is under way is taken for served by that batch.
    ServedEarly,
    /// What is written to a file while a batch is under way counts as flushed by that batch.
    SettledDirty,
    /// A range that is made to read as zeros is not marked, although the medium has it as written
    /// and whoever writes there next marks nothing.
    ZeroedUnmarked,
    /// The search for leaks looks at the maps of the first region alone.
    FirstRegionAlone,
    /// All of a region behind the first is taken for free, whatever its maps say.
    RegionTakenForFree,
    /// An image whose repair was cut short is mounted for writing.
    RepairIgnored,
    /// The search for leaks does not know of inodes that only handles keep.
    OrphansForgotten,
    /// The search for leaks ends behind its first step through the maps.
    SearchEndsEarly,
    /// What is put to use while leaks are searched for is not marked.
    ClaimsUnmarked,
    /// The search for leaks does not look at extended attributes.
    XattrsUnmarked,
    /// Of a name that fills several lines it marks the first.
    LongNamesUnmarked,
    /// It does not mark the nodes of indexes.
    IndexesUnmarked,
    /// An image is marked clean while leaks are still searched for.
    CleanEarly,
    /// An image is marked clean although a handle keeps an inode without a name.
    CleanWithOrphans,
    /// A repair marks the image clean before it stores what follows from the rest.
    RepairMarksFirst,
    /// A repair that starts epochs over keeps the latest pointers of before.
    RepairKeepsLatest,
    /// A repair leaves the maps as they are where a page has lines.
    RepairForgetsMaps,
    /// What has lost its name is named before the entry is durable that does so.
    RescueNamesFirst,
    /// A repair does not flush what it finds, which a killed process may have stored.
    RepairKeepsNothing,
    /// Mode `strong`: what a request has changed is not committed when it returns.
    RequestUncommitted,
    /// A write commits before its times.
    TimesApart,
    /// The bytes of a write go where the consistent view shows them.
    WrittenInPlace,
    /// Others may look before it is durable.
    SeenEarly,
    /// Numbers stay even while a commit stores words in place: others see half of it.
    NoOddPhase,
    /// An inode that a batch moves to where the search for leaks has been is not looked at.
    MovedUnqueued,
    /// The search for leaks frees pages as a whole of which DRAM has free lines.
    HeldForgotten,
    /// Contents of files are flushed in place although a live record has older ones.
    CarriedComesBack,
    /// A transaction that was aborted is tried again with what it was decided upon before.
    StaleFallback,
    /// A sweep lets go of what it has captured before that is published.
    SweepLetsGo,
    /// A page is put to use although a live record has old contents of it.
    UsedWhileLogged,
    /// A node of an index of which many pointers change is changed in place, not copied.
    NodeInPlace,
    /// Who looks is not told that a commit has failed, and is shown what may never be durable.
    FailureUntold,
    /// Who moves a directory passes others that are being moved.
    MovePassed,
    /// Mode `strong`: before the size grows over bytes that a live record has, which are zeroed in
    /// place, nothing is checkpointed.
    TailLive,
    /// Void bytes and reserved pages are stored to in place although a live record has the page.
    StoredWhileLogged,
    /// Pages come back when so many wait, before the journal is checkpointed for them.
    RecycledEarly,
    /// A record leads to what is private before the fence behind the flushes of that.
    PrivateUnfenced,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 64] = [
        Fault::EpochReuse,
        Fault::OldNameFirst,
        Fault::NewNameAlone,
        Fault::RemovedWithEntries,
        Fault::Unreachable,
        Fault::MovesAlone,
        Fault::NameBeforeContents,
        Fault::LatestLinkCounts,
        Fault::LatestNext,
        Fault::EarlyReuse,
        Fault::Unclaimed,
        Fault::TailNotZeroed,
        Fault::ClaimUnflushed,
        Fault::InheritedUnflushed,
        Fault::MovedOnAlone,
        Fault::AnyAddition,
        Fault::SplitForgets,
        Fault::LongNameUnflushed,
        Fault::XattrsUnflushed,
        Fault::TargetUnflushed,
        Fault::AccessForgotten,
        Fault::StreamedUnflushed,
        Fault::FailedLinkCounts,
        Fault::RepairUnmarked,
        Fault::Unannounced,
        Fault::RefreshAlone,
        Fault::ClearedLate,
        Fault::ServedEarly,
        Fault::SettledDirty,
        Fault::ZeroedUnmarked,
        Fault::FirstRegionAlone,
        Fault::RegionTakenForFree,
        Fault::RepairIgnored,
        Fault::OrphansForgotten,
        Fault::SearchEndsEarly,
        Fault::ClaimsUnmarked,
        Fault::XattrsUnmarked,
        Fault::LongNamesUnmarked,
        Fault::IndexesUnmarked,
        Fault::CleanEarly,
        Fault::CleanWithOrphans,
        Fault::RepairMarksFirst,
        Fault::RepairKeepsLatest,
        Fault::RepairForgetsMaps,
        Fault::RescueNamesFirst,
        Fault::RepairKeepsNothing,
        Fault::RequestUncommitted,
        Fault::TimesApart,
        Fault::WrittenInPlace,
        Fault::SeenEarly,
        Fault::NoOddPhase,
        Fault::MovedUnqueued,
        Fault::HeldForgotten,
        Fault::CarriedComesBack,
        Fault::StaleFallback,
        Fault::SweepLetsGo,
        Fault::UsedWhileLogged,
        Fault::NodeInPlace,
        Fault::FailureUntold,
        Fault::MovePassed,
        Fault::TailLive,
        Fault::StoredWhileLogged,
        Fault::RecycledEarly,
        Fault::PrivateUnfenced,
    ];
}

static INJECTED: Switch = Switch::new();

/// Inject a bug into all file systems of this process, or take it out; false if this build has
/// none.
pub fn fault(bug: Option<Fault>) -> bool {
    INJECTED.set(bug.map_or(0, |bug| bug as u8))
}

#[inline(always)]
pub(crate) fn injected(bug: Fault) -> bool {
    INJECTED.is(bug as u8)
}

//! Bugs that can be injected into the engine, to prove that its tests find such.
//!
//! Each leaves one rule of `docs/design/ffs.md` out: an edge of the graph of dependencies (C1 to
//! C3), a rule of the mechanism (S1 to S5), one of the log (L1 to L4). Without the feature `faults`
//! nothing can be injected, and `injected` is a constant.

use ::cache::fault::Switch;

/// A bug: a rule that is broken as long as it is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// S2 is broken: an inode is written as it is, whatever it waits for.
    InodeShown = 1,
    /// S2 is broken: an entry of a directory is.
    EntryShown,
    /// S2 is broken: a pointer in an indirect block is.
    PointerShown,
    /// S3 is broken: a block of which a copy did not show all is not written again.
    RolledBackForgotten,
    /// S4 is broken: conditions hold when a copy was taken.
    ShownEarly,
    /// S4 is broken: there is no flush behind a wave.
    WaveUnflushed,
    /// C1 is broken: an inode does not wait for its bit.
    InodeBeforeBit,
    /// C1 is broken: a pointer does not wait for the bit of its block.
    PointerBeforeBit,
    /// C1 is broken: a pointer does not wait for the contents of its block.
    PointerBeforeContents,
    /// C1 is broken: a pointer in an indirect block waits for nothing.
    PointerUnguarded,
    /// A size that grew does not wait for the pointers in indirect blocks.
    SizeBeforePointer,
    /// C1 is broken: an inode does not wait for its block of extended attributes.
    XattrsFirst,
    /// C1 is broken: a name does not wait for its inode.
    NameBeforeInode,
    /// S5 is broken: the name of a directory does not wait for the count of its parent.
    NameBeforeCount,
    /// A name does not wait for the pointer to its block.
    NameUnreached,
    /// A name does not wait for the names of its directory.
    NameBeforeDir,
    /// C1 is broken: a name that leads to another inode does not wait for that.
    TargetBeforeInode,
    /// C1 is broken: a new directory does not wait for the one above, which its `..` names.
    InodeBeforeParent,
    /// S5 is broken: the new name of a directory does not wait for the count of its parent if that
    /// was its parent before.
    NameBeforeOldCount,
    /// C2 is broken: a size that shrank does not wait for the pointers that were cut.
    SizeBeforeCut,
    /// C2 is broken: blocks are free before the pointers to them are gone.
    BlocksFreedEarly,
    /// C2 is broken: a block of extended attributes is free before its inode has let it go.
    XattrsFreedEarly,
    /// C2 is broken: the bit of an inode is cleared before the inode is.
    InodeBitFirst,
    /// C2 is broken: an inode is freed although the disk may have names of it.
    FreedBeforeNames,
    /// C3 is broken: an old name does not wait for the new one.
    OldNameFirst,
    /// C3 is broken: a directory goes before what moved out of it is there.
    PendingForgotten,
    /// S1 is broken: who waits for a guard does not wait for what its place holds next.
    WaitersMet,
    /// A name is taken through which an inode has passed that is not there yet.
    PassedTaken,
    /// A name is taken that the disk keeps until another one is there.
    KeptForgotten,
    /// A new name takes the room of one that the disk keeps.
    KeptTaken,
    /// An entry is changed again by which the disk has a directory that callers do not see there.
    KeptChanged,
    /// A name that is used again does not wait until the disk has it no more where it was.
    NameTwice,
    /// A directory is moved or removed that the disk may have under a name that it has lost.
    MovingMoved,
    /// A `..` does not wait for the new name of its directory.
    ParentFirst,
    /// A directory that the disk has by no name gets its new name before its new `..`.
    ParentLast,
    /// A name whose room a whiteout gets is not searched for in what leads to that room.
    WhiteoutUnsearched,
    /// The old name of a directory does not wait for its `..`.
    OldNameBeforeParent,
    /// S5 is broken: a count is lowered before the name is gone.
    CountLowered,
    /// S5 is broken: the count of what is moved is not raised for its two names.
    RaiseForgotten,
    /// S5 is broken: the tag of a directory that is moved, and what counts its other name, go
    /// before that name.
    TagLowered,
    /// A directory that replaces another one has no tag of the name that it keeps.
    MoveUntagged,
    /// A whiteout that is to get the old name of a directory has no tag of it.
    WhiteoutUntagged,
    /// The name of a directory that replaces another one does not wait for the whiteout that is to
    /// get its old name.
    NameBeforeWhiteout,
    /// What changes places has no tags.
    ExchangeUntagged,
    /// A name leads to what changes places with another inode before that is promised a name.
    NameBeforePromise,
    /// A name changes places that the disk does not have.
    ExchangeUnshown,
    /// What changes places goes, by the second step that the check does, before its other names are
    /// there.
    ExchangeBeforeNames,
    /// What has changed places is moved or removed before the disk has no trace of that.
    ExchangedMoved,
    /// An fsync does not wait for names.
    FsyncWithoutNames,
    /// An fsync does not wait for the inode.
    FsyncWithoutInode,
    /// An fsync does not wait for data.
    FsyncWithoutData,
    /// The superblock says that a journal has not to be replayed any more without a flush.
    FlagEndUnflushed,
    /// A mount for writing says so without a flush.
    MountUnflushed,
    /// An unmount marks the image clean without a flush.
    UnmountUnflushed,
    /// What a reclaim found that no crash leaves is noted in the superblock without a flush.
    DamageUnflushed,
    /// What a live check found and cannot repair is noted in the superblock without a flush.
    LiveDamageUnflushed,
    /// The flags of snapshots over which others may have written are not durably cleared before the
    /// new mark is.
    StrangersFlagged,
    /// What a disk held before is not durably gone before a file system is made over it.
    FormatOldUnflushed,
    /// What a new file system consists of is not durable before its superblock.
    FormatUnflushed,
    /// A new file system's superblock is written without a flush.
    FormatEndUnflushed,
    /// A mount for writing leaves an image that says that it is clean.
    DirtyUnmarked,
    /// An image is marked clean before all is written.
    CleanFirst,
    /// A mount for writing, or a check, relies on what a killed process has written.
    KilledBelieved,
    /// A check clears bits and lowers counts together with what they are for.
    MendedTogether,
    /// A check does not flush what goes first.
    RepairUnflushed,
    /// L1 is broken: the log is used before the superblock says that it has to be replayed.
    FlagLate,
    /// L1 is broken: the superblock says that there is nothing to be replayed before the log is
    /// empty.
    FlagFirst,
    /// L2 is broken: a commit block is written beside what it stands for.
    CommitEarly,
    /// Data of mode `ordered` are written behind the commit block.
    DataLate,
    /// A commit block is written without a flush.
    CommitUnflushed,
    /// L3 is broken: what is written home is not flushed before the tail of the log moves.
    HomeUnflushed,
    /// L3 is broken: room in the log is used again before it durably begins behind that.
    TailUnflushed,
    /// L3 is broken: the tail of the log moves before the copies that it passes are home.
    TailFirst,
    /// L4 is broken: freed blocks are not revoked.
    RevokeForgotten,
    /// L4 is broken: blocks are used again before the commit of what freed them.
    NotHeld,
    /// Inodes without names are not in the list of orphans.
    OrphansUnlisted,
    /// Counts are not part of a transaction.
    CountsForgotten,
    /// Replay leaves the last transaction out.
    LastForgotten,
    /// Replay takes revoked copies home.
    RevokeIgnored,
    /// Replay empties the log before the copies are durably home.
    ReplayTailFirst,
    /// Replay says that nothing is to be replayed before it has.
    ReplayFlagFirst,
    /// Replay relies on what a killed process has written.
    ReplayUnflushed,
    /// A block is overwritten of which a snapshot wants the contents, without a copy.
    CopyForgotten,
    /// The same, before the copy is durable.
    CopyUnawaited,
    /// A block is freed that a snapshot wants, without its claim.
    ClaimForgotten,
    /// Nothing is kept any more for a snapshot that is one on disk.
    EndedEarly,
    /// A check does not give snapshots what its repairs overwrite.
    CheckUnkept,
    /// A check frees what snapshots want.
    CheckUnclaimed,
    /// A check voids the mark for snapshots, too.
    CheckUnmarked,
    /// A snapshot is one on disk before it has what it is to have.
    SealedEarly,
    /// A mount takes for a snapshot what is not one yet, or no more.
    UnsealedTaken,
    /// A mount leaves a snapshot that was for the mount before.
    BriefKept,
    /// A block that a snapshot claims is free for others.
    ClaimedFreed,
    /// What no snapshot wanted is taken for what a new one does not want.
    UnwantedStale,
    /// J1 is broken: a snapshot is taken while the log has what the disk lacks.
    UnsettledTaken,
    /// The same, but only what is committed while operations are stopped for that.
    SettledEarly,
    /// J2 is broken: copies are written behind the commit that leads to them.
    CopyLate,
    /// J3 is broken: what snapshots get is committed with what operations have changed beside it.
    PatchUnrolled,
    /// J3 is broken: what snapshots get is not counted.
    PatchUncounted,
    /// J3 is broken: what snapshots got is not in what they get next.
    PatchForgotten,
    /// A snapshot has the log as it is.
    LogShown,
    /// The reclaim looks at what blocks are, not at what they were at the mount.
    FrozenIgnored,
    /// What is freed and used again since the mount is not kept for the reclaim.
    FreedUnkept,
    /// The reclaim lowers counts and clears bits before the names and inodes that these are for are
    /// durably gone.
    MendedUnsettled,
    /// What the reclaim leaves without a name is freed although somebody uses it.
    HeldReclaimed,
    /// What is unmounted before the reclaim has ended is marked clean.
    CleanUnreclaimed,
    /// A mount that serves at once takes the mark away.
    MarkDropped,
    /// A file grows over what a crash left behind its end.
    EndsUntrimmed,
    /// A file grows before what a crash left in its last block, behind its end, is gone from the
    /// disk.
    EndUnawaited,
    /// A directory of two names is moved or removed while the reclaim goes on.
    SecondNameMoved,
    /// A second name goes although its directory's `..` is not durably that of the other one.
    SecondNameFirst,
    /// Behind a crash the counts of what is free are believed.
    CountsBelieved,
    /// What a crash has left is not counted anew when the reclaim has ended.
    GroupsUncounted,
}

impl Fault {
    /// Those of the order and of the log.
    pub const ALL: [Fault; 75] = [
        Fault::InodeShown,
        Fault::EntryShown,
        Fault::PointerShown,
        Fault::RolledBackForgotten,
        Fault::ShownEarly,
        Fault::WaveUnflushed,
        Fault::InodeBeforeBit,
        Fault::PointerBeforeBit,
        Fault::PointerBeforeContents,
        Fault::PointerUnguarded,
        Fault::SizeBeforePointer,
        Fault::XattrsFirst,
        Fault::NameBeforeInode,
        Fault::NameBeforeCount,
        Fault::NameUnreached,
        Fault::NameBeforeDir,
        Fault::TargetBeforeInode,
        Fault::InodeBeforeParent,
        Fault::NameBeforeOldCount,
        Fault::SizeBeforeCut,
        Fault::BlocksFreedEarly,
        Fault::XattrsFreedEarly,
        Fault::InodeBitFirst,
        Fault::FreedBeforeNames,
        Fault::OldNameFirst,
        Fault::PendingForgotten,
        Fault::WaitersMet,
        Fault::PassedTaken,
        Fault::KeptForgotten,
        Fault::KeptTaken,
        Fault::KeptChanged,
        Fault::NameTwice,
        Fault::MovingMoved,
        Fault::ParentFirst,
        Fault::ParentLast,
        Fault::WhiteoutUnsearched,
        Fault::OldNameBeforeParent,
        Fault::CountLowered,
        Fault::RaiseForgotten,
        Fault::TagLowered,
        Fault::MoveUntagged,
        Fault::WhiteoutUntagged,
        Fault::NameBeforeWhiteout,
        Fault::ExchangeUntagged,
        Fault::NameBeforePromise,
        Fault::ExchangeUnshown,
        Fault::ExchangeBeforeNames,
        Fault::ExchangedMoved,
        Fault::FsyncWithoutNames,
        Fault::FsyncWithoutInode,
        Fault::FsyncWithoutData,
        Fault::MountUnflushed,
        Fault::UnmountUnflushed,
        Fault::DirtyUnmarked,
        Fault::CleanFirst,
        Fault::KilledBelieved,
        Fault::MendedTogether,
        Fault::RepairUnflushed,
        Fault::FlagLate,
        Fault::FlagFirst,
        Fault::FlagEndUnflushed,
        Fault::CommitEarly,
        Fault::DataLate,
        Fault::CommitUnflushed,
        Fault::HomeUnflushed,
        Fault::TailFirst,
        Fault::RevokeForgotten,
        Fault::NotHeld,
        Fault::OrphansUnlisted,
        Fault::CountsForgotten,
        Fault::LastForgotten,
        Fault::RevokeIgnored,
        Fault::ReplayTailFirst,
        Fault::ReplayFlagFirst,
        Fault::ReplayUnflushed,
    ];

    /// One that shows only when the log has gone round, which takes minutes.
    pub const SLOW: Fault = Fault::TailUnflushed;

    /// Those of flushes that only tests of `ffs` come by, which notice them.
    pub const OF_TESTS: [Fault; 6] = [
        Fault::DamageUnflushed,
        Fault::LiveDamageUnflushed,
        Fault::StrangersFlagged,
        Fault::FormatOldUnflushed,
        Fault::FormatUnflushed,
        Fault::FormatEndUnflushed,
    ];

    /// Those of what keeps snapshots.
    pub const OF_SNAPSHOTS: [Fault; 12] = [
        Fault::CopyForgotten,
        Fault::CopyUnawaited,
        Fault::ClaimForgotten,
        Fault::EndedEarly,
        Fault::CheckUnkept,
        Fault::CheckUnclaimed,
        Fault::CheckUnmarked,
        Fault::SealedEarly,
        Fault::UnsealedTaken,
        Fault::BriefKept,
        Fault::ClaimedFreed,
        Fault::UnwantedStale,
    ];

    /// Those of what keeps them beside a log.
    pub const OF_PATCHES: [Fault; 6] = [
        Fault::UnsettledTaken,
        Fault::CopyLate,
        Fault::PatchUnrolled,
        Fault::PatchUncounted,
        Fault::PatchForgotten,
        Fault::LogShown,
    ];

    /// Those that show only beside another thread, at one moment: tests of `ffs` notice them.
    pub const OF_THREADS: [Fault; 1] = [Fault::SettledEarly];

    /// Those of a mount that serves at once, and of its reclaim.
    pub const OF_RECLAIM: [Fault; 12] = [
        Fault::FrozenIgnored,
        Fault::FreedUnkept,
        Fault::MendedUnsettled,
        Fault::HeldReclaimed,
        Fault::CleanUnreclaimed,
        Fault::MarkDropped,
        Fault::EndsUntrimmed,
        Fault::EndUnawaited,
        Fault::SecondNameMoved,
        Fault::SecondNameFirst,
        Fault::CountsBelieved,
        Fault::GroupsUncounted,
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

/// What has to be durable before something, unless the bug is that this is not waited for.
#[inline(always)]
pub(crate) fn unless<T>(bug: Fault, after: &[T]) -> &[T] {
    if injected(bug) { &[] } else { after }
}

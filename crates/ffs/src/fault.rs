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
    /// A name is taken through which an inode has passed that is not there yet.
    PassedTaken,
    /// S5 is broken: a count is lowered before the name is gone.
    CountLowered,
    /// S5 is broken: the count of what is moved is not raised for its two names.
    RaiseForgotten,
    /// A directory that replaces another one has no tag of the name that it keeps.
    MoveUntagged,
    /// A whiteout that is to get the old name of a directory has no tag of it.
    WhiteoutUntagged,
    /// An fsync does not wait for names.
    FsyncWithoutNames,
    /// An fsync does not wait for the inode.
    FsyncWithoutInode,
    /// An fsync does not wait for data.
    FsyncWithoutData,
    /// A mount for writing leaves an image that says that it is clean.
    DirtyUnmarked,
    /// An image is marked clean before all is written.
    CleanFirst,
    /// L1 is broken: the superblock says that there is nothing to be replayed before the log is
    /// empty.
    FlagFirst,
    /// L2 is broken: a commit block is written beside what it stands for.
    CommitEarly,
    /// Data of mode `ordered` are written behind the commit block.
    DataLate,
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
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 44] = [
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
        Fault::SizeBeforeCut,
        Fault::BlocksFreedEarly,
        Fault::XattrsFreedEarly,
        Fault::InodeBitFirst,
        Fault::FreedBeforeNames,
        Fault::OldNameFirst,
        Fault::PassedTaken,
        Fault::CountLowered,
        Fault::RaiseForgotten,
        Fault::MoveUntagged,
        Fault::WhiteoutUntagged,
        Fault::FsyncWithoutNames,
        Fault::FsyncWithoutInode,
        Fault::FsyncWithoutData,
        Fault::DirtyUnmarked,
        Fault::CleanFirst,
        Fault::FlagFirst,
        Fault::CommitEarly,
        Fault::DataLate,
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

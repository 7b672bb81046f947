//! What may be wrong with an image, and how it is repaired.

use std::fmt;

/// Most findings that an audit keeps of those that cut something off, and half of all; further ones
/// are counted.
pub const FINDINGS_MAX: usize = 100_000;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An invariant that holds at every crash is broken: damage, or a bug.
    Violation,
    /// Written blocks behind the end of a file, left by a crash.
    Debris,
    /// A counter that a crash leaves inexact.
    Count,
    /// Space that the maps call used and nothing reaches, left by a crash.
    Leak,
}

/// What is wrong, by kind. The letter-number is the invariant of `docs/format/soupfs.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// The superblock is damaged, and its copy is not.
    Superblock,
    /// The copy of the superblock is damaged or differs.
    SuperblockCopy,
    /// I1: the root is no directory; nothing is reached before that is repaired.
    Root,
    /// I2: a word of a bucket that the directory's level excludes, or a block of none but such.
    StrayBucket,
    /// I3: a link to the next entry that cannot be.
    BadLink,
    /// I3: a chain that belongs to another bucket.
    StrayChain,
    /// I3: an entry that cannot be read, or whose name cannot be a name.
    BadEntry,
    /// I3: an entry in a bucket that is not its home.
    Misplaced,
    /// I3: the stored hash is not the name's.
    WrongHash,
    /// I3: bits of the target word that must be clear.
    TargetBits,
    /// I3: a name that is in the directory twice.
    DuplicateName,
    /// I3: an entry of another kind than its inode, or an inode of another kind than its entry and
    /// contents.
    WrongKind,
    /// I1: an entry without a valid inode.
    Dangling,
    /// I4: a second name of a directory.
    SecondName,
    /// I4: the parent recorded in a directory is not the one that holds it.
    WrongParent,
    /// I4: a directory's count of names.
    DirectorySize,
    /// I4, I5: a link count.
    LinkCount,
    /// I6: a pointer to a page that cannot be.
    BadPointer,
    /// I6: a symbolic link without a proper target.
    BadSymlink,
    /// I2: a table level that cannot be, or other than that of the blocks. I6: the root word of a
    /// device, pipe or socket; a reserved word that is not zero.
    BadWord,
    /// I6: extended attributes that cannot be parsed.
    BadXattr,
    /// I6: a page or line that something else has as well.
    SharedSpace,
    /// I6: a written block behind the end of the file.
    BeyondEnd,
    /// I6: the size of a file that cannot be, or that leaves out blocks of an image that was clean.
    WrongSize,
    /// I7: an inode's count of pages.
    PageCount,
    /// I8: something reachable whose space the maps call free.
    Unmarked,
    /// I8: a page that is used whole and that the maps call a page of lines.
    LinesInPage,
    /// I8: bits for space that is not to be allocated.
    StrayBits,
    /// I8: space that nothing reaches and the maps call used.
    Leak,
    /// I9: a counter of a clean image.
    Counter,
    /// I9: the summary of a region in a clean image.
    Summary,
    /// I10: the mount epochs contradict each other.
    Epoch,
    /// I10: the mount epochs have run out: the latest pointers must be wiped.
    EpochsUsedUp,
    /// I10: the latest pointer of a mount that is yet to come.
    EarlyTag,
    /// The journal cannot be read.
    Journal,
    /// I1: an inode in use that no name leads to, in an image that was clean.
    Lost,
}

impl Problem {
    /// How bad that is.
    pub fn class(self) -> Class {
        match self {
            Problem::BeyondEnd => Class::Debris,
            Problem::PageCount | Problem::Counter | Problem::Summary | Problem::EpochsUsedUp => {
                Class::Count
            }
            Problem::Leak => Class::Leak,
            _ => Class::Violation,
        }
    }

    /// A short name, for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Problem::Superblock => "superblock",
            Problem::SuperblockCopy => "superblock-copy",
            Problem::Root => "root",
            Problem::StrayBucket => "stray-bucket",
            Problem::BadLink => "bad-link",
            Problem::StrayChain => "stray-chain",
            Problem::BadEntry => "bad-entry",
            Problem::Misplaced => "misplaced",
            Problem::WrongHash => "wrong-hash",
            Problem::TargetBits => "target-bits",
            Problem::DuplicateName => "duplicate-name",
            Problem::WrongKind => "wrong-kind",
            Problem::Dangling => "dangling",
            Problem::SecondName => "second-name",
            Problem::WrongParent => "wrong-parent",
            Problem::DirectorySize => "directory-size",
            Problem::LinkCount => "link-count",
            Problem::BadPointer => "bad-pointer",
            Problem::BadSymlink => "bad-symlink",
            Problem::BadWord => "bad-word",
            Problem::BadXattr => "bad-xattr",
            Problem::SharedSpace => "shared-space",
            Problem::BeyondEnd => "beyond-end",
            Problem::WrongSize => "wrong-size",
            Problem::PageCount => "page-count",
            Problem::Unmarked => "unmarked",
            Problem::LinesInPage => "lines-in-page",
            Problem::StrayBits => "stray-bits",
            Problem::Leak => "leak",
            Problem::Counter => "counter",
            Problem::Summary => "summary",
            Problem::Epoch => "epoch",
            Problem::EpochsUsedUp => "epochs-used-up",
            Problem::EarlyTag => "early-tag",
            Problem::Journal => "journal",
            Problem::Lost => "lost",
        }
    }

    /// Whether the right value depends on the rest of the image, so that it can be set only
    /// once everything else is right.
    pub(crate) fn is_derived(self) -> bool {
        use Problem::*;
        matches!(
            self,
            DirectorySize | LinkCount | PageCount | Unmarked | LinesInPage
        ) || matches!(
            self,
            StrayBits | Leak | Counter | Summary | Epoch | EpochsUsedUp
        )
    }
}

/// A word that leads to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    /// Where the word is.
    pub at: u64,
    /// Whether it is a bucket: the mark of an empty bucket is not that of the end of a chain.
    pub bucket: bool,
    /// Entries before it in the chain. Whoever takes several entries out of one chain begins
    /// with the last.
    pub depth: u32,
}

/// How a finding is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fix {
    /// Not at all.
    None,
    /// By storing a word.
    Store { at: u64, value: u64 },
    /// By letting a link lead to another entry (0: to none), if it still is `word`.
    Lead { link: Link, word: u64, to: u64 },
    /// By leading a link past an entry of its chain, if it still is `word`.
    Remove { link: Link, word: u64, line: u64 },
    /// By writing the maps and counters anew.
    Maps,
}

/// Something that is wrong.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What, by kind.
    pub problem: Problem,
    /// Byte offset of the word or structure that is wrong.
    pub at: u64,
    /// Inode that it belongs to; 0 for none.
    pub ino: u64,
    /// What, in words.
    pub detail: String,
    pub(crate) fix: Fix,
}

impl Finding {
    pub(crate) fn new(problem: Problem, ino: u64, at: u64, detail: impl Into<String>) -> Finding {
        Finding {
            problem,
            at,
            ino,
            detail: detail.into(),
            fix: Fix::None,
        }
    }

    /// Whether the repair cuts off what a damaged word leads to; others set right what is to be
    /// kept.
    pub(crate) fn cuts(&self) -> bool {
        use Problem::{BadPointer, StrayBucket};
        match self.fix {
            Fix::Lead { .. } | Fix::Remove { .. } => true,
            Fix::Store { value: 0, .. } => matches!(self.problem, BadPointer | StrayBucket),
            _ => false,
        }
    }

    pub(crate) fn fix(mut self, fix: Fix) -> Finding {
        self.fix = fix;
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ino {
            0 => write!(
                f,
                "{}: {} (at byte {:#x})",
                self.problem.name(),
                self.detail,
                self.at
            ),
            ino => write!(
                f,
                "{}: inode {ino}: {} (at byte {:#x})",
                self.problem.name(),
                self.detail,
                self.at
            ),
        }
    }
}

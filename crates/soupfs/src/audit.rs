//! The auditor: reads an image and says everything that is wrong with it.
//!
//! There is one, always compiled, and `fsck`, the tests and the crash explorer share it. It counts
//! both ways: it walks what names reach from the root and claims each line and page that it meets
//! (`walk`, `names`), then compares these claims with what the maps and counters on the medium
//! claim (`maps`). The invariants (I1 to I10) are numbered in `docs/format/soupfs.md`.
//!
//! It stores nothing, panics on no image, and ends on every image: contents are followed only by
//! whoever claims them first, so that each page is scanned once and each entry examined once,
//! whatever cycles there are. Memory: a bit for each page and two words for each page of lines, in
//! regions that are in use; 64 bytes for each directory that waits to be read, 16 for each inode
//! with several names, and at most twice [`FINDINGS_MAX`] findings.
//!
//! Work is shared by directories, and within large ones by ranges of table pages; large files by
//! subtrees of their index. What is claimed twice is not settled in that race: it is only noted,
//! and a second walk, by one thread and in a fixed order, finds all claimants, of which the one
//! with the lowest inode number stays. So the findings do not depend on the number of threads.
//!
//! # What it does not verify
//! - contents of files: they have no checksum; nor that bytes behind the end of a file are zero;
//! - plausibility of modes, owners, times and generations, and that a name is valid UTF-8;
//! - the latest view: `LATEST_NEXT` is void without its mount, which must not be yet to come;
//! - name bytes and words of a line or page that its length or kind leaves unused;
//! - whether an entry names the inode it was made for, if both are whole and of one kind;
//! - the journal's own format: that is `pmem`'s;
//! - that a file's index tree is as low as it could be, and that no block of a directory's table is
//!   missing.

mod claims;
mod maps;
mod mend;
mod names;
mod queue;
mod walk;

use crate::image::{Image, Source, Superblock};
pub(crate) use claims::Claims;
pub(crate) use maps::{is_marked, mask, pages_of, words};
pub(crate) use mend::inode as mended_inode;
pub(crate) use names::Table;
use std::collections::HashSet;
use std::fmt;
pub(crate) use walk::symlink_error;

/// Most findings that an audit keeps of those that cut something off, and half of all; further ones
/// are counted.
pub const FINDINGS_MAX: usize = 100_000;

/// More threads than this only wait for each other.
const THREADS_MAX: usize = 256;

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

/// What an audit is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Walking the names: counts inodes.
    Names,
    /// Comparing the maps: counts regions.
    Maps,
    /// Repairing: counts findings.
    Repair,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// With what.
    pub stage: Stage,
    /// How much is done.
    pub done: u64,
    /// How much there is; 0 if that is not known.
    pub total: u64,
}

/// Who is told how far an audit is; called from several threads, a thousand times or so.
pub type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

/// What is reachable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Pages in use, of lines or whole.
    pub pages: u64,
    /// Lines in use in pages of lines.
    pub lines: u64,
    /// Free lines; a free page counts as 64.
    pub free_lines: u64,
    /// Pages that the maps call used and nothing reaches.
    pub leaked_pages: u64,
    /// Lines in other pages, likewise.
    pub leaked_lines: u64,
}

/// What an audit found.
pub struct Audit {
    /// Whether the image says that it was unmounted cleanly.
    pub clean: bool,
    /// What is wrong, ordered by place.
    pub findings: Vec<Finding>,
    /// Findings that were not kept.
    pub more: u64,
    /// What is reachable.
    pub totals: Totals,
    pub(crate) claims: Claims,
    /// Pages that something else has as well: a word in one may be anybody's.
    pub(crate) contested: HashSet<u64>,
}

impl Audit {
    /// What breaks an invariant that must hold at every crash.
    pub fn violations(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|f| f.problem.class() == Class::Violation)
    }

    /// Whether the image is as it should be: after a crash leaks, debris and inexact counts are
    /// permitted, in a clean image nothing is.
    pub fn holds(&self) -> bool {
        self.more == 0
            && if self.clean {
                self.findings.is_empty()
            } else {
                self.violations().next().is_none()
            }
    }
}

/// Audit an image with `threads` threads. The caller sees to it that nothing changes meanwhile,
/// and that the journal is replayed, or `image` reads as if it were.
pub fn audit<S: Source>(
    image: &Image<'_, S>,
    sb: &Superblock,
    threads: usize,
    progress: Watch<'_>,
) -> Audit {
    let threads = threads.clamp(1, THREADS_MAX);
    let mut walked = walk::walk(image, sb, threads, None, None, progress);
    maps::find_mixed(&mut walked);
    if !walked.suspects.is_empty() {
        let known = walked.suspects.pages.clone();
        walked = walk::walk(image, sb, 1, Some(walked.suspects), None, progress);
        // What the other order met for the first time is left to the next audit.
        walked.more += walked.suspects.pages.difference(&known).count() as u64;
        walked.suspects.pages.extend(known);
    }
    maps::compare(image, walked, threads, progress)
}

/// Hand `visit` the line of each entry of a sound image, on the calling thread.
pub(crate) fn each_entry<S: Source>(
    image: &Image<'_, S>,
    sb: &Superblock,
    visit: &(dyn Fn(u64) + Sync),
) {
    walk::walk(image, sb, 1, None, Some(visit), &|_| {});
}

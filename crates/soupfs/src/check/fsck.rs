//! The offline check: replays the journal, audits, repairs, audits again.
//!
//! Nobody else may have the pool. A check that is not to repair stores nothing: it reads the pool
//! through `Replayed`, which lays the words of the journal over it.
//!
//! A journal that cannot be read is emptied: what it held is lost, and what that leaves half done
//! is found by the audit like any damage. Until that is repaired, as far as it can be, it stays as
//! it is, so that nobody mounts the image.
//!
//! A repair goes in rounds. Each audits, and puts right the worst of what the audit found:
//!
//! 1. Space with several owners. Whether a page is one of lines is for its line word to say; then
//!    the owner of the lowest inode number keeps it, and the word that leads others there is
//!    cleared. Nothing else is stored in such a round, since a word in a contested page may be
//!    somebody's data.
//! 2. What is wrong in itself, and can be told from the rest: hashes, kinds, parents, levels of
//!    tables, sizes of files. Whatever these hid is there again for the next audit.
//! 3. What has lost its name (`rescue`): in an image that was clean, inodes that the maps call used
//!    and nothing reaches are named in `lost+found`. In others nobody can tell them from what was
//!    removed before a crash: their space is free.
//! 4. What leads nowhere. Entries that are damaged, misplaced, dangling or doubled are taken out of
//!    their chain; pointers that lead nowhere, or to blocks behind the end of a file or table, are
//!    cleared. Then what has lost its name by that.
//! 5. Once nothing of that kind is left, what follows from the rest: sizes of directories, counts
//!    of links and pages, maps, summaries, counters. Then the image is marked clean, and a last
//!    audit has to find nothing.
//!
//! Crash safety: the image is marked unclean, durably, before the first store; one that was clean
//! so that this is known when the repair is run again (`REPAIRING`), and that nobody mounts it for
//! writing before. Each repair is one store of a word, after which the image is no worse, so stores
//! need no order among each other; what a new name leads to is durable before it. Only the clean
//! mark has an order: everything else is durable before it. A repair that was cut short is
//! completed by running it again.

mod repair;
mod rescue;
#[cfg(test)]
mod tests;

use crate::check::audit::{Finding, Problem, Totals, Watch, audit};
use crate::image::{BadSuperblock, Image, Source, Superblock};
use crate::layout::{Geometry, page_at, state, superblock};
use pmem::{Journal, MediumError, Pool};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How an image is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckOptions {
    /// Repair what is wrong; otherwise nothing is stored.
    pub repair: bool,
    /// Threads to use; 0 for as many as there are processors.
    pub threads: usize,
}

/// Why an image could not be checked, or a repair not be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Neither superblock nor copy can be used.
    #[error("{0}")]
    Superblock(#[from] BadSuperblock),
    /// A repair would not know what it breaks.
    #[error(
        "the image uses features this program must not write ({0:#x}); check it without repair"
    )]
    Features(u64),
    /// A repair was asked for, of a pool opened for reading.
    #[error("the image is open for reading only; open it for writing to repair it")]
    ReadOnly,
    /// The medium failed.
    #[error("{0}")]
    Medium(#[from] MediumError),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is wrong (or only what a crash leaves, in an image that was not unmounted).
    Clean,
    /// Everything that was wrong has been repaired.
    Repaired,
    /// Something is wrong still.
    ErrorsLeft,
}

/// What a check found and did.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Whether the image had been unmounted cleanly.
    pub was_clean: bool,
    /// Whether the check has marked it as such.
    pub marked_clean: bool,
    /// Words of committed records in the journal, in place or not.
    pub replayed: u64,
    /// What was repaired, in the order of the repairs.
    pub repaired: Vec<Finding>,
    /// What is wrong now.
    pub left: Vec<Finding>,
    /// Findings that were not kept, of those that are left.
    pub more: u64,
    /// What is reachable now.
    pub totals: Totals,
}

impl Report {
    /// The exit code that fsck(8) has for it: 1 for errors that were repaired, 4 for errors that
    /// are left, 5 for both.
    pub fn exit_code(&self) -> u8 {
        let repaired = u8::from(!self.repaired.is_empty());
        match self.outcome {
            Outcome::Clean | Outcome::Repaired => repaired,
            Outcome::ErrorsLeft => 4 | repaired,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.replayed > 0 {
            writeln!(f, "journal: {} words replayed", self.replayed)?;
        }
        for finding in &self.repaired {
            writeln!(f, "repaired: {finding}")?;
        }
        for finding in &self.left {
            writeln!(f, "{finding}")?;
        }
        if self.more > 0 {
            writeln!(f, "and {} more", self.more)?;
        }
        let t = &self.totals;
        writeln!(
            f,
            "{} inodes ({} directories), {} names, {} pages in use, {} lines free",
            t.inodes, t.directories, t.names, t.pages, t.free_lines
        )?;
        let state = match (self.was_clean, self.marked_clean) {
            (true, false) => "clean",
            (false, false) => "sound, not unmounted cleanly",
            (_, true) => "sound, marked clean",
        };
        match self.outcome {
            Outcome::Clean => write!(f, "{state}"),
            Outcome::Repaired => write!(f, "problems found: {}, all repaired", self.repaired.len()),
            Outcome::ErrorsLeft => {
                write!(f, "problems left: {}", self.left.len() as u64 + self.more)
            }
        }
    }
}

/// A pool as it will be once its journal is replayed.
struct Replayed<'a> {
    pool: &'a Pool,
    words: BTreeMap<u64, u64>,
}

impl Source for Replayed<'_> {
    fn load(&self, at: u64) -> u64 {
        self.words
            .get(&at)
            .copied()
            .unwrap_or_else(|| self.pool.load(at))
    }

    fn is_hole(&self, at: u64, len: u64) -> bool {
        self.words.range(at..at + len).next().is_none() && self.pool.is_hole(at, len)
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        self.pool.read(at, buf);
        let end = at + buf.len() as u64;
        for (&word, value) in self.words.range(at & !7..end) {
            for (i, byte) in (word..).zip(value.to_le_bytes()) {
                if (at..end).contains(&i) {
                    buf[(i - at) as usize] = byte;
                }
            }
        }
    }

    fn prefetch(&self, at: u64) {
        self.pool.prefetch(at);
    }

    fn check_absence(&self) -> vfs::Result<()> {
        Ok(()) // the whole check fails if anything could not be read
    }
}

/// Check the image in a pool, and repair it if asked to. `progress` is called from several
/// threads.
///
/// # Errors
/// [`CheckError`]: without a usable superblock there is nothing to check; once the medium fails a
/// repair stops, and can be run again. What is wrong with the image is no error but in the report.
pub fn check(
    pool: &Arc<Pool>,
    options: &CheckOptions,
    progress: Watch<'_>,
) -> Result<Report, CheckError> {
    if options.repair && pool.read_only() {
        return Err(CheckError::ReadOnly);
    }
    let report = check_readable(pool, options, progress);
    match pool.poisoned() {
        // Damage that was found may be what could not be read.
        Some(why) => Err(why.into()),
        None => report,
    }
}

/// The same of a medium that is read without a failure.
fn check_readable(
    pool: &Arc<Pool>,
    options: &CheckOptions,
    progress: Watch<'_>,
) -> Result<Report, CheckError> {
    let (sb, primary) = Superblock::find(pool)?;
    if let Some(why @ BadSuperblock::Unreadable(_)) = primary {
        return Err(why.into()); // the words beside it, which have no copy, cannot be read either
    }
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    let mut found = superblocks(pool, &sb, primary);
    if options.repair {
        return repair::run(pool, &sb, found, threads, progress);
    }
    let (words, replayed) = peek(pool, &sb.geometry, &mut found);
    let image = Image::new(&words, &sb.geometry);
    let audit = audit(&image, &sb, threads, progress);
    if image.was_clean() && !audit.clean {
        let detail = "a repair was cut short; run it again";
        found.push(Finding::new(Problem::Epoch, 0, state::CLEAN_EPOCH, detail));
    }
    let sound = found.is_empty() && audit.holds();
    found.extend(audit.findings);
    Ok(Report {
        outcome: if sound {
            Outcome::Clean
        } else {
            Outcome::ErrorsLeft
        },
        was_clean: audit.clean,
        marked_clean: false,
        replayed,
        repaired: Vec::new(),
        left: found,
        more: audit.more,
        totals: audit.totals,
    })
}

/// What is wrong with the two superblocks; one is valid.
fn superblocks(pool: &Pool, sb: &Superblock, primary: Option<BadSuperblock>) -> Vec<Finding> {
    let copy = sb.geometry.superblock_copy();
    if let Some(why) = primary {
        return vec![Finding::new(Problem::Superblock, 0, 0, why.to_string())];
    }
    let mut bytes = [[0; superblock::LEN]; 2];
    pool.read(0, &mut bytes[0]);
    pool.read(page_at(copy), &mut bytes[1]);
    if bytes[0] == bytes[1] {
        return Vec::new();
    }
    vec![Finding::new(
        Problem::SuperblockCopy,
        0,
        page_at(copy),
        "differs from the superblock",
    )]
}

/// The pool with the words of its journal in place, and their number.
fn peek<'a>(pool: &'a Pool, geometry: &Geometry, found: &mut Vec<Finding>) -> (Replayed<'a>, u64) {
    let (at, len) = (page_at(geometry.journal), page_at(geometry.journal_pages));
    let words = match Journal::peek(pool, at, len, |word| geometry.holds_word(word)) {
        Ok(words) => words.into_iter().collect(),
        Err(why) => {
            found.push(Finding::new(Problem::Journal, 0, at, why.to_string()));
            BTreeMap::new()
        }
    };
    let replayed = words.len() as u64;
    (Replayed { pool, words }, replayed)
}

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

mod index;
mod maps;
mod names;
mod queue;
mod report;
mod walk;
mod worker;

pub use crate::check::finding::{Class, FINDINGS_MAX, Finding, Problem};
use crate::image::{Image, Source, Superblock};
pub(crate) use maps::{is_marked, mask, pages_of, words};
pub use report::{Audit, Progress, Stage, Totals, Watch};
use walk::Walk;

/// More threads than this only wait for each other.
const THREADS_MAX: usize = 256;

/// Audit an image with `threads` threads. The caller sees to it that nothing changes meanwhile,
/// and that the journal is replayed, or `image` reads as if it were.
pub fn audit<S: Source>(
    image: &Image<'_, S>,
    sb: &Superblock,
    threads: usize,
    progress: Watch<'_>,
) -> Audit {
    let threads = threads.clamp(1, THREADS_MAX);
    let plain = Walk {
        threads,
        suspects: None,
        visit: None,
        progress,
    };
    let mut walked = walk::walk(image, sb, plain);
    maps::find_mixed(&mut walked);
    if !walked.suspects.is_empty() {
        let known = walked.suspects.pages.clone();
        let second = Walk {
            threads: 1,
            suspects: Some(walked.suspects),
            visit: None,
            progress,
        };
        walked = walk::walk(image, sb, second);
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
    let visiting = Walk {
        threads: 1,
        suspects: None,
        visit: Some(visit),
        progress: &|_| {},
    };
    walk::walk(image, sb, visiting);
}

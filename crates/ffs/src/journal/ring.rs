//! Where the blocks of the log are: those of a file, used as a ring.

use std::ops::Range;

use vfs::Result;

use crate::image::StoredInode;
use crate::map;
use crate::medium::Medium;

/// Consecutive blocks of the journal that are consecutive on the disk.
pub struct Run {
    /// The first one.
    pub first: u64,
    /// Where it is on the disk.
    pub at: u64,
    /// How many there are.
    pub len: u64,
}

/// The blocks of a journal.
pub struct Ring {
    /// All of them, in order.
    runs: Vec<Run>,
    /// Those of the log.
    log: Range<u32>,
}

/// Where the first `blocks` blocks of the journal's file are, at least one.
///
/// # Errors
/// One is a hole, or there twice, or a pointer is damaged; or the disk failed.
pub fn runs(medium: &Medium, inode: &StoredInode, blocks: u64) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    let mut first = 0;
    while first < blocks {
        let found = map::run(medium, inode, first, blocks - first)?;
        let Some(at) = found.block else {
            let what = format_args!("inode {}, the journal, has no block {first}", inode.ino);
            return Err(medium.geometry.damage(inode.at, what));
        };
        let len = found.len.min(blocks - first);
        runs.push(Run { first, at, len });
        first += len;
    }
    let mut places: Vec<_> = runs.iter().map(|run| run.at..run.at + run.len).collect();
    places.sort_unstable_by_key(|place| place.start);
    match places.windows(2).find(|two| two[1].start < two[0].end) {
        None => Ok(runs),
        Some(two) => {
            let (ino, block) = (inode.ino, two[1].start);
            let what = format_args!("inode {ino}, the journal, has block {block} twice");
            Err(medium.geometry.damage(inode.at, what))
        }
    }
}

impl Ring {
    /// A ring of the blocks `log` of a journal that lies in `runs`.
    pub fn new(runs: Vec<Run>, log: Range<u32>) -> Ring {
        Ring { runs, log }
    }

    /// Where all its blocks are, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Where a block of the journal is on the disk.
    ///
    /// # Panics
    /// If it has no such block.
    pub fn disk_block(&self, block: u32) -> u64 {
        let block = u64::from(block);
        let after = self.runs.partition_point(|run| run.first <= block);
        let run = &self.runs[after - 1];
        assert!(block < run.first + run.len, "block {block} of the journal");
        run.at + (block - run.first)
    }

    /// Whether a block of the disk is one of the journal.
    pub fn contains(&self, disk_block: u64) -> bool {
        let holds = |run: &Run| (run.at..run.at + run.len).contains(&disk_block);
        self.runs.iter().any(holds)
    }

    /// The block of the log where it begins at first.
    pub fn first(&self) -> u32 {
        self.log.start
    }

    /// Blocks of the log.
    pub fn blocks(&self) -> u32 {
        self.log.end - self.log.start
    }

    /// The block of the log that is `count` blocks behind another one.
    pub fn after(&self, block: u32, count: u32) -> u32 {
        let (from, len) = (u64::from(block - self.log.start), u64::from(self.blocks()));
        self.log.start + ((from + u64::from(count)) % len) as u32
    }
}

//! Claims: which inode owns each line and page that the walk has met.

use crate::layout::{Geometry, LINES_PER_PAGE, REGION_PAGES};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages whose lines are kept together: what a page of the map's line words covers.
const CHUNK: usize = 512;
const PAGE_WORDS: usize = (REGION_PAGES / 64) as usize;
const CHUNKS: usize = REGION_PAGES as usize / CHUNK;

/// Lines and pages that were met. Memory comes with the first claim in a region.
///
/// Relaxed accesses suffice: each bit is set by one atomic operation, which tells who was first;
/// everything else is read once the threads that set bits have ended.
pub(crate) struct Claims {
    geometry: Geometry,
    regions: Box<[OnceLock<Box<Region>>]>,
}

struct Region {
    /// Bit per page that is used whole.
    whole: [AtomicU64; PAGE_WORDS],
    chunks: [OnceLock<Box<Chunk>>; CHUNKS],
}

struct Chunk {
    /// Bit per line in use, a word for each page.
    lines: [AtomicU64; CHUNK],
    /// Bit per line at which an inode starts.
    inodes: [AtomicU64; CHUNK],
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Claims {
    pub(crate) fn new(geometry: Geometry) -> Claims {
        Claims {
            regions: (0..geometry.regions()).map(|_| OnceLock::new()).collect(),
            geometry,
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Claim a page whole; false if someone has. The page lies in the image.
    #[inline]
    pub(crate) fn page(&self, page: u64) -> bool {
        let index = (page % REGION_PAGES) as usize;
        let bit = 1 << (index % 64);
        self.region(page).whole[index / 64].fetch_or(bit, Relaxed) & bit == 0
    }

    /// Claim lines of one page; false if someone has any of them.
    #[inline]
    pub(crate) fn lines(&self, line: u64, count: u64) -> bool {
        let (chunk, page) = self.chunk(line);
        let mask = line_mask(line, count);
        chunk.lines[page].fetch_or(mask, Relaxed) & mask == 0
    }

    /// Note that a name leads to an inode; false if one did before.
    #[inline]
    pub(crate) fn inode(&self, ino: u64) -> bool {
        let (chunk, page) = self.chunk(ino);
        let bit = line_mask(ino, 1);
        chunk.inodes[page].fetch_or(bit, Relaxed) & bit == 0
    }

    fn region(&self, page: u64) -> &Region {
        self.regions[(page / REGION_PAGES) as usize].get_or_init(|| {
            Box::new(Region {
                whole: zeros(),
                chunks: std::array::from_fn(|_| OnceLock::new()),
            })
        })
    }

    fn chunk(&self, line: u64) -> (&Chunk, usize) {
        let page = line / LINES_PER_PAGE;
        let index = (page % REGION_PAGES) as usize;
        let chunk = self.region(page).chunks[index / CHUNK].get_or_init(|| {
            Box::new(Chunk {
                lines: zeros(),
                inodes: zeros(),
            })
        });
        (chunk, index % CHUNK)
    }

    /// Whether anything in this region was claimed.
    pub(crate) fn any_in(&self, region: u64) -> bool {
        self.regions[region as usize].get().is_some()
    }

    /// Of the 64 pages from `first` on those that were claimed whole.
    pub(crate) fn whole_pages(&self, first: u64) -> u64 {
        let index = (first % REGION_PAGES) as usize;
        match self.regions[(first / REGION_PAGES) as usize].get() {
            Some(region) => region.whole[index / 64].load(Relaxed),
            None => 0,
        }
    }

    /// Of the 64 pages from `first` on those with claimed lines.
    pub(crate) fn line_pages(&self, first: u64) -> u64 {
        let Some((chunk, page)) = self.known_chunk(first) else {
            return 0;
        };
        let words = &chunk.lines[page..page + 64];
        words.iter().rev().fold(0, |bits, word| {
            bits << 1 | u64::from(word.load(Relaxed) != 0)
        })
    }

    /// The lines of a page that were claimed.
    pub(crate) fn lines_of(&self, page: u64) -> u64 {
        self.known_chunk(page)
            .map_or(0, |(chunk, page)| chunk.lines[page].load(Relaxed))
    }

    fn known_chunk(&self, page: u64) -> Option<(&Chunk, usize)> {
        let index = (page % REGION_PAGES) as usize;
        let region = self.regions[(page / REGION_PAGES) as usize].get()?;
        Some((region.chunks[index / CHUNK].get()?, index % CHUNK))
    }
}

/// Bits of `count` lines from `line` on in the word of their page.
pub(crate) fn line_mask(line: u64, count: u64) -> u64 {
    ((1 << count) - 1) << (line % LINES_PER_PAGE)
}

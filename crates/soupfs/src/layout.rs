//! The format on the medium: every structure, its size and its fields, once.
//!
//! `docs/format/soupfs.md` describes the same bytes for readers of images; a test ties the two
//! together. All numbers are little-endian. Space comes in lines of 64 bytes and pages of 4 KiB;
//! a structure is named by the number of its first line or page, never by a byte offset, so that
//! 40 bits name any line of a 64 TiB image and the other 24 bits of a word are free for a tag.
//!
//! ```text
//! page 0        superblock: written once by format, checksummed
//! page 1        mount state: epoch, clean mark, counters; single words
//! pages 2..     journal
//! then          summaries: a word for each region
//! region r      pages r*32768 .. (r+1)*32768; its map is at its start (region 0: after the
//!               summaries): one page of page bits, then one word of line bits for each page
//! last page     copy of the superblock
//! ```

/// Bytes in a line, the unit of small structures.
pub const LINE: u64 = pmem::LINE;
/// Bytes in a page, the unit of tables, index nodes and data.
pub const PAGE: u64 = pmem::PAGE;
/// Lines in a page.
pub const LINES_PER_PAGE: u64 = PAGE / LINE;
/// Words in a page.
pub const WORDS_PER_PAGE: u64 = PAGE / 8;

/// Pages in a region: 128 MiB, as many as one page has bits.
pub const REGION_PAGES: u64 = PAGE * 8;
/// Smallest image that can be formatted.
pub const IMAGE_MIN: u64 = 1 << 20;
/// Largest image: 40 bits name its lines.
pub const IMAGE_MAX: u64 = 1 << 46;
/// Largest file: 512^4 pages under four levels of index would hold more; this is what is promised.
pub const FILE_MAX: u64 = 1 << 47;

/// Most names of an inode; of a directory, 2 more than its subdirectories.
pub const LINK_MAX: u32 = 65_000_000;

/// A line number fills 40 bits.
pub const LINE_BITS: u32 = 40;
/// Mask of a line number.
pub const LINE_MASK: u64 = (1 << LINE_BITS) - 1;

/// Byte offset of a line.
#[inline]
pub const fn line_at(line: u64) -> u64 {
    line * LINE
}

/// Byte offset of a page.
#[inline]
pub const fn page_at(page: u64) -> u64 {
    page * PAGE
}

/// The superblock, page 0 and the last page. Field offsets in bytes.
pub mod superblock {
    /// First word: tells the format.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"Tureen~S");
    /// The version this code writes and reads.
    pub const VERSION: u32 = 1;
    /// Features that a reader must know, or refuse.
    pub const INCOMPAT_KNOWN: u64 = 0;
    /// Features that a writer must know, or mount read-only.
    pub const RO_COMPAT_KNOWN: u64 = 0;

    /// `u64` [`MAGIC`].
    pub const AT_MAGIC: usize = 0;
    /// `u32` [`VERSION`].
    pub const AT_VERSION: usize = 8;
    /// `u32` zero.
    pub const AT_RESERVED: usize = 12;
    /// `u64` features anybody may ignore.
    pub const AT_COMPAT: usize = 16;
    /// `u64` features a writer must know.
    pub const AT_RO_COMPAT: usize = 24;
    /// `u64` features a reader must know.
    pub const AT_INCOMPAT: usize = 32;
    /// `u64` length of the image in pages.
    pub const AT_PAGES: usize = 40;
    /// `u64` first page of the journal.
    pub const AT_JOURNAL: usize = 48;
    /// `u64` length of the journal in pages.
    pub const AT_JOURNAL_PAGES: usize = 56;
    /// `u64` first page of the summaries.
    pub const AT_SUMMARIES: usize = 64;
    /// `u64` line of the root inode.
    pub const AT_ROOT: usize = 72;
    /// `i64` time of the format.
    pub const AT_CREATED: usize = 80;
    /// 16 bytes UUID.
    pub const AT_UUID: usize = 88;
    /// 16 bytes key of the name hash.
    pub const AT_HASH_KEY: usize = 104;
    /// 64 bytes label, zero-padded UTF-8.
    pub const AT_LABEL: usize = 120;
    /// `u64` XXH3 of all bytes before.
    pub const AT_CHECKSUM: usize = 184;
    /// Bytes that the superblock fills; the rest of its page is zero.
    pub const LEN: usize = 192;
    const _: () = assert!(AT_LABEL + 64 == AT_CHECKSUM && AT_CHECKSUM + 8 == LEN);
}

/// The mount state, page 1. Each field is one word, so each changes atomically.
pub mod state {
    use super::PAGE;
    /// Number of the newest mount for writing. Tags of latest pointers hold its low 24 bits.
    pub const EPOCH: u64 = PAGE;
    /// The epoch that ended with a clean unmount; the image is clean iff this equals `EPOCH`.
    pub const CLEAN_EPOCH: u64 = PAGE + 8;
    /// Set in `CLEAN_EPOCH` of an image that was clean while it is repaired: what nothing reaches
    /// there has lost its name.
    pub const REPAIRING: u64 = 1 << 63;
    /// Free lines, in a clean image (a free page counts as 64).
    pub const FREE_LINES: u64 = PAGE + 16;
}

/// The epoch's tag in a latest pointer has 24 bits and is never 0; when the next mount's would
/// wrap, mounting asks for fsck, which wipes all latest pointers and starts over.
pub const EPOCH_MAX: u64 = (1 << 24) - 1;

/// The epoch of a new image.
pub const EPOCH_FIRST: u64 = 1;

/// The inode: two lines, at a line number that is even. Its number is that line number.
pub mod inode {
    /// Lines of an inode.
    pub const LINES: u64 = 2;
    /// `u16` permissions, `u16` kind and zero bits as in `st_mode`, `u32` links: one word.
    pub const MODE_NLINK: u64 = 0;
    /// Bits of that word that are zero.
    pub const MODE_RESERVED: u64 = 0xffff << 16;
    /// `u32` owner, `u32` group: one word.
    pub const OWNER: u64 = 8;
    /// File: size in bytes. Directory: names. Symbolic link: length of the target.
    pub const SIZE: u64 = 16;
    /// Root of the index tree: page number << 12 | height; 0 when empty. Device: its number.
    pub const ROOT: u64 = 24;
    /// Last change of the contents, ns.
    pub const MTIME: u64 = 32;
    /// Last change of anything, ns.
    pub const CTIME: u64 = 40;
    /// Last access, ns.
    pub const ATIME: u64 = 48;
    /// Pages of contents or table, and of extended attributes; nodes of the index are not counted.
    pub const PAGES: u64 = 56;
    /// Birth, ns.
    pub const BTIME: u64 = 64;
    /// First page of the extended attributes, 0 for none.
    pub const XATTR: u64 = 72;
    /// Directory: line of the parent's inode (the root's is itself).
    pub const PARENT: u64 = 80;
    /// `u32` [`MAGIC`], `u32` generation: one word.
    pub const MAGIC_GENERATION: u64 = 88;
    /// Directory: the table has at most `BASE_BUCKETS << level` buckets.
    pub const LEVEL: u64 = 96;
    /// File: bit `n` is set before a byte is stored in place in a block `b` with
    /// `b / 512 % 64 == n`, and cleared once the byte is durable. It says what a killed process
    /// left that is visible and perhaps not durable, and is itself never flushed: after a power cut
    /// it means nothing.
    pub const UNFLUSHED: u64 = 104;
    /// Zero.
    pub const RESERVED: [u64; 2] = [112, 120];
    /// Low half of `MAGIC_GENERATION`.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"Tino");
    /// Bytes.
    pub const LEN: u64 = LINES * super::LINE;
    const _: () = assert!(RESERVED[1] + 8 == LEN);
}

/// A directory entry: one line, and more for a long name.
pub mod dentry {
    use super::LINE;
    /// The latest view's next entry: epoch tag << 40 | line. Void unless the tag is the mount's.
    pub const LATEST_NEXT: u64 = 0;
    /// The consistent view's next entry: line, 0 at the end. Of an entry that is not yet in the
    /// consistent view: [`PENDING`] | number of its operation.
    pub const NEXT: u64 = 8;
    /// Line of the inode | name length << 40 | kind << 48 | [`FRESH`].
    pub const TARGET: u64 = 16;
    /// SipHash-1-3 of the name.
    pub const HASH: u64 = 24;
    /// The name, or its first [`INLINE_LONG`] bytes.
    pub const NAME: u64 = 32;
    /// Of a long name: line that holds the next 56 bytes, after a word with the line after it.
    pub const MORE: u64 = 56;
    /// Longest name that fits into the entry.
    pub const INLINE: usize = 32;
    /// Bytes of a longer name in the entry itself.
    pub const INLINE_LONG: usize = 24;
    /// Bytes of a name in a further line.
    pub const PER_LINE: usize = 56;
    /// In `NEXT`: not yet in the consistent view.
    pub const PENDING: u64 = 1 << 63;
    /// In `TARGET`: not reachable in the consistent view, so its words may be stored directly.
    pub const FRESH: u64 = 1 << 63;
    /// Position of the name length in `TARGET`.
    pub const LEN_SHIFT: u32 = 40;
    /// Position of the kind (its `st_mode` bits >> 12) in `TARGET`.
    pub const KIND_SHIFT: u32 = 48;
    const _: () = assert!(NAME + INLINE as u64 == LINE && MORE + 8 == LINE);
    const _: () = assert!(NAME + INLINE_LONG as u64 == MORE && 8 + PER_LINE as u64 == LINE);

    /// Lines that a name of this length needs besides the entry's own.
    pub const fn more_lines(name_len: usize) -> usize {
        if name_len <= INLINE {
            0
        } else {
            (name_len - INLINE_LONG).div_ceil(PER_LINE)
        }
    }
}

/// The table of a directory: bucket `b` is word `b % 512` of block `b / 512` under the inode's
/// index tree.
pub mod bucket {
    /// Buckets that always exist; a stripe of the directory's lock each.
    pub const BASE: u64 = 32;
    /// Most levels of a table: one of `BASE << LEVEL_MAX` buckets would fill 32 GiB.
    pub const LEVEL_MAX: u64 = 27;
    /// An initialised bucket without entries. Zero is a bucket whose entries are still in its
    /// parent, `b` without its top bit; but a base bucket of zero is merely empty.
    pub const EMPTY: u64 = 1 << 63;

    /// Blocks of a table of this level.
    #[inline]
    pub const fn blocks(level: u32) -> u64 {
        match (BASE << level) / super::WORDS_PER_PAGE {
            0 => 1,
            blocks => blocks,
        }
    }

    /// The bucket that splits into `b` and itself.
    #[inline]
    pub const fn parent(b: u64) -> u64 {
        b & !(1 << (63 - b.leading_zeros()))
    }
}

/// A pointer in an index node or an inode's root.
pub mod index {
    /// Fan-out of a node.
    pub const FANOUT: u64 = 512;
    /// log2 of it.
    pub const FANOUT_BITS: u32 = 9;
    /// Most levels above the data.
    pub const HEIGHT_MAX: u64 = 4;
    /// In a leaf pointer: space is reserved, the contents are void and read as zeros.
    pub const UNWRITTEN: u64 = 1;
    /// Position of the page number; the bits below are flags (a leaf) or the height (a root).
    pub const SHIFT: u32 = 12;
    /// Blocks under a root of this height.
    pub const fn span(height: u64) -> u64 {
        1 << (FANOUT_BITS as u64 * height)
    }
}

/// A page of extended attributes: a chain of pages that holds one byte string,
/// `u16` name length, `u32` value length, name, value, and so on.
pub mod xattr {
    /// `u64` next page, 0 at the end.
    pub const NEXT: u64 = 0;
    /// `u64` bytes used in this page.
    pub const USED: u64 = 8;
    /// The bytes.
    pub const DATA: u64 = 16;
    /// Most bytes in a page.
    pub const CAPACITY: u64 = super::PAGE - DATA;
    /// Most pages of one inode's attributes: 16 MiB.
    pub const PAGES_MAX: u64 = 4096;
}

/// Where things are in an image of this many pages: all of it follows from the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length of the image.
    pub pages: u64,
    /// First page of the journal.
    pub journal: u64,
    /// Pages of the journal.
    pub journal_pages: u64,
    /// First page of the summaries.
    pub summaries: u64,
}

impl Geometry {
    /// The geometry that format gives an image of this length in bytes (whole pages are used).
    pub fn for_len(len: u64) -> Geometry {
        let mut pages = len / PAGE;
        // A last region too short for its map and the superblock's copy is left unused.
        if pages > REGION_PAGES && pages % REGION_PAGES < 16 {
            pages -= pages % REGION_PAGES;
        }
        // A 128th of the image: 512 pages of journal (32 batches of 4096 names) for 256 MiB.
        let journal_pages = (pages / 128).clamp(16, 16384);
        Geometry {
            pages,
            journal: 2,
            journal_pages,
            summaries: 2 + journal_pages,
        }
    }

    /// Number of regions; the last may be short.
    pub fn regions(&self) -> u64 {
        self.pages.div_ceil(REGION_PAGES)
    }

    /// Pages of the summaries.
    pub fn summary_pages(&self) -> u64 {
        self.regions().div_ceil(WORDS_PER_PAGE)
    }

    /// Byte offset of a region's summary: `u32` free pages, `u32` free lines in pages of lines.
    /// A hint, exact in a clean image.
    pub fn summary_at(&self, region: u64) -> u64 {
        page_at(self.summaries) + region * 8
    }

    /// First page of a region.
    pub fn region_start(&self, region: u64) -> u64 {
        region * REGION_PAGES
    }

    /// One past the last page of a region.
    pub fn region_end(&self, region: u64) -> u64 {
        self.pages.min((region + 1) * REGION_PAGES)
    }

    /// First page of a region's map.
    pub fn map_start(&self, region: u64) -> u64 {
        if region == 0 {
            self.summaries + self.summary_pages()
        } else {
            self.region_start(region)
        }
    }

    /// First page behind a region's map.
    pub fn map_end(&self, region: u64) -> u64 {
        let pages = self.region_end(region) - self.region_start(region);
        self.map_start(region) + 1 + pages.div_ceil(WORDS_PER_PAGE)
    }

    /// The pages of a region that can be allocated.
    pub fn allocatable(&self, region: u64) -> std::ops::Range<u64> {
        let last = region + 1 == self.regions();
        let end = self.region_end(region) - u64::from(last); // the superblock's copy
        self.map_end(region).min(end)..end
    }

    /// All pages that can be allocated.
    pub fn allocatable_pages(&self) -> u64 {
        (0..self.regions())
            .map(|r| {
                let a = self.allocatable(r);
                a.end - a.start
            })
            .sum()
    }

    /// Whether a page can be allocated, so that a pointer to it may be followed.
    #[inline]
    pub fn holds_page(&self, page: u64) -> bool {
        // Behind the longest map of any region, and behind the summaries: the common case, without
        // the arithmetic. (A summary page serves 2^24 pages; a map has at most 65.)
        let surely = page % REGION_PAGES > 65 && page > self.summaries + (self.pages >> 24) + 67;
        if surely && page < self.pages - 1 {
            return true;
        }
        self.holds_edge_page(page)
    }

    fn holds_edge_page(&self, page: u64) -> bool {
        page < self.pages && self.allocatable(page / REGION_PAGES).contains(&page)
    }

    /// Whether a line can be allocated.
    #[inline]
    pub fn holds_line(&self, line: u64) -> bool {
        self.holds_page(line / LINES_PER_PAGE)
    }

    /// Whether the journal may change the word at this byte: what is published lies in such pages,
    /// and the maps say that it is in use.
    pub fn holds_word(&self, at: u64) -> bool {
        let page = at / PAGE;
        at.is_multiple_of(8) && (self.holds_page(page) || self.is_map_page(page))
    }

    fn is_map_page(&self, page: u64) -> bool {
        let region = page / REGION_PAGES;
        page < self.pages && (self.map_start(region)..self.map_end(region)).contains(&page)
    }

    /// The word and the mask of a page's bit.
    pub fn page_bit(&self, page: u64) -> (u64, u64) {
        let (region, index) = (page / REGION_PAGES, page % REGION_PAGES);
        (
            page_at(self.map_start(region)) + index / 64 * 8,
            1 << (index % 64),
        )
    }

    /// The word of a page's lines: bit `i` is line `i` of the page.
    pub fn line_word(&self, page: u64) -> u64 {
        let (region, index) = (page / REGION_PAGES, page % REGION_PAGES);
        page_at(self.map_start(region) + 1) + index * 8
    }

    /// The page that holds the copy of the superblock.
    pub fn superblock_copy(&self) -> u64 {
        self.pages - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_never_overlap_what_can_be_allocated() {
        for len in [
            IMAGE_MIN,
            3 << 20,
            128 << 20,
            (128 << 20) + (5 << 12),
            1 << 30,
            1 << 40,
        ] {
            let g = Geometry::for_len(len);
            for r in (0..g.regions()).take(3).chain(g.regions() - 1..g.regions()) {
                let a = g.allocatable(r);
                assert!(g.map_end(r) <= a.start.max(g.map_end(r)) && a.end <= g.region_end(r));
                if a.start < a.end {
                    assert!(g.page_bit(a.end - 1).0 < page_at(g.map_start(r) + 1));
                    assert!(g.line_word(a.end - 1) < page_at(g.map_end(r)));
                }
            }
            for page in (0..g.pages.min(70_000)).chain(g.pages.saturating_sub(100)..g.pages + 2) {
                assert_eq!(g.holds_page(page), g.holds_edge_page(page), "page {page}");
            }
            assert!(
                !g.holds_page(g.superblock_copy()) && !g.holds_page(g.pages) && !g.holds_page(1)
            );
        }
    }

    #[test]
    fn a_bucket_splits_off_its_parent() {
        assert_eq!(bucket::parent(bucket::BASE), 0);
        assert_eq!(bucket::parent(0b1011_00101), 0b0011_00101);
    }
}

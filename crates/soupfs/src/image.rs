//! Words of the medium, validated into typed values: the trust boundary.
//!
//! Whatever a pool holds, nothing here panics or reads out of range: a value that cannot be is an
//! error that says what and where. The engine, fsck and the reclaimer all read through this.

mod superblock;

pub use superblock::{BadSuperblock, Superblock};

use crate::attributes::Attributes;
use crate::layout::{
    EPOCH_FIRST, EPOCH_MAX, FILE_MAX, Geometry, LINE, LINE_MASK, LINES_PER_PAGE, PAGE,
    WORDS_PER_PAGE, bucket, dentry, index, inode, line_at, page_at, state, xattr,
};
use pmem::Pool;
use std::ops::Range;
use vfs::{Error, Kind, NAME_MAX, Result};

/// What an image is read from: a pool, or a pool as it will be once its journal is replayed.
/// Offsets in bytes; an access out of range may panic.
pub trait Source: Sync {
    /// The word at an offset.
    fn load(&self, at: u64) -> u64;
    /// Copy bytes out.
    fn read(&self, at: u64, buf: &mut [u8]);
    /// Hint that a line will be needed.
    fn prefetch(&self, at: u64);
    /// Whether a range is known to be all zeros without a look at it.
    fn is_hole(&self, at: u64, len: u64) -> bool;
    /// Comes behind loads by which something is not there: the error if what was loaded may have
    /// been zeros because the medium could not be read.
    fn check_absence(&self) -> Result<()>;
}

impl Source for Pool {
    #[inline]
    fn load(&self, at: u64) -> u64 {
        Pool::load(self, at)
    }

    #[inline]
    fn read(&self, at: u64, buf: &mut [u8]) {
        Pool::read(self, at, buf);
    }

    #[inline]
    fn prefetch(&self, at: u64) {
        Pool::prefetch(self, at);
    }

    fn is_hole(&self, at: u64, len: u64) -> bool {
        Pool::is_hole(self, at, len)
    }

    #[inline]
    fn check_absence(&self) -> Result<()> {
        match self.has_blanks() {
            false => Ok(()),
            true => Err(failure(self).unwrap_or_else(|| unreachable!("a failed read poisons"))),
        }
    }
}

/// That the medium failed, if it did, for callers.
pub fn failure(pool: &Pool) -> Option<Error> {
    pool.poisoned().map(|why| Error::medium(why.to_string()))
}

/// What a caller is told of an error: of damage that was met on a medium which failed, that it
/// failed, as the damage may be a consequence.
#[cold]
pub fn cause(pool: &Pool, error: Error) -> Error {
    match error {
        Error::Corrupt(_) => failure(pool).unwrap_or(error),
        _ => error,
    }
}

/// A pool with its geometry: reads what the consistent view holds.
pub struct Image<'a, S: Source = Pool> {
    /// The medium.
    pub pool: &'a S,
    /// Where everything is.
    pub geometry: &'a Geometry,
}

/// A directory entry of either view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DentryImage {
    /// Its line.
    pub line: u64,
    /// Line of the inode it names.
    pub ino: u64,
    /// What that inode is.
    pub kind: Kind,
    /// Length of the name.
    pub name_len: usize,
    /// Hash of the name.
    pub hash: u64,
}

/// A pointer in an index node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The page it points at.
    pub page: u64,
    /// Space only: reads as zeros.
    pub unwritten: bool,
}

impl Pointer {
    /// As a word.
    pub fn encode(self) -> u64 {
        self.page << index::SHIFT | if self.unwritten { index::UNWRITTEN } else { 0 }
    }
}

/// The root of an index tree: a page under `height` levels of nodes (0: the page is block 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The top page.
    pub top: Pointer,
    /// Levels of nodes.
    pub height: u64,
}

impl Root {
    /// As a word. Only a root of height 0 can be unwritten: bits 0..3 are the height, bit 11 the
    /// flag.
    pub fn encode(self) -> u64 {
        self.top.page << index::SHIFT | u64::from(self.top.unwritten) << 11 | self.height
    }
}

impl<S: Source> Clone for Image<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Source> Copy for Image<'_, S> {}

impl<'a, S: Source> Image<'a, S> {
    /// The image in a pool.
    pub fn new(pool: &'a S, geometry: &'a Geometry) -> Image<'a, S> {
        Image { pool, geometry }
    }

    /// Some words of a page: one read, which an overlay answers sooner than so many loads.
    pub fn words(&self, page: u64, slots: Range<u64>) -> Vec<u64> {
        let mut bytes = [0; PAGE as usize];
        let bytes = &mut bytes[..(slots.end - slots.start) as usize * 8];
        self.pool.read(page_at(page) + slots.start * 8, bytes);
        let words = bytes.as_chunks().0.iter();
        words.map(|&word| u64::from_le_bytes(word)).collect()
    }

    /// Whether the last mount for writing ended well; also if a repair has begun since then.
    pub fn was_clean(&self) -> bool {
        let clean = self.pool.load(state::CLEAN_EPOCH) & !state::REPAIRING;
        clean == self.pool.load(state::EPOCH)
    }

    /// The number of the newest mount for writing, if nothing contradicts it.
    pub fn epoch(&self) -> Option<u64> {
        let epoch = self.pool.load(state::EPOCH);
        let word = self.pool.load(state::CLEAN_EPOCH);
        let clean = word & !state::REPAIRING;
        let is_known = (EPOCH_FIRST..=EPOCH_MAX).contains(&epoch);
        let agrees = clean <= epoch && (word == clean || clean == epoch);
        (is_known && agrees).then_some(epoch)
    }

    /// Whether the maps have both lines of an inode.
    pub fn is_marked(&self, ino: u64) -> bool {
        let lines = self
            .pool
            .load(self.geometry.line_word(ino / LINES_PER_PAGE));
        lines >> (ino % LINES_PER_PAGE) & 3 == 3
    }

    /// The inode at a line.
    pub fn inode(&self, ino: u64) -> Result<Attributes> {
        let inode = self.inode_as_it_is(ino, None)?;
        let impossible = |field: u64, what: String| Err(Error::corrupt(line_at(ino) + field, what));
        if inode.size > FILE_MAX {
            return impossible(inode::SIZE, format!("inode {ino} with size {}", inode.size));
        }
        if !self.has_room_for_table(inode.level) || !self.spans_table(&inode) {
            let what = format!("directory {ino} with table level {}", inode.level);
            return impossible(inode::LEVEL, what);
        }
        Ok(inode)
    }

    /// Whether a directory's level can be: a sound image has room for the whole table.
    pub fn has_room_for_table(&self, level: u32) -> bool {
        let table = |level| (bucket::BASE << level) / WORDS_PER_PAGE;
        u64::from(level) <= bucket::LEVEL_MAX && table(level) <= self.geometry.pages
    }

    /// Whether a directory's index is high enough for all blocks of its table, which are there in a
    /// sound image; without one there is at most a block.
    fn spans_table(&self, dir: &Attributes) -> bool {
        let blocks = (bucket::BASE << dir.level).div_ceil(WORDS_PER_PAGE);
        match self.root(dir.ino, dir.root) {
            Ok(Some(root)) => blocks <= index::span(root.height),
            _ => blocks == 1,
        }
    }

    /// The inode at a line that has the magic number, whatever its size and level are; without a
    /// kind it is of kind `or`. For who mends it.
    pub fn inode_as_it_is(&self, ino: u64, or: Option<Kind>) -> Result<Attributes> {
        self.inode_with(ino, or, |magic| magic == inode::MAGIC)
    }

    /// The same of one that has a number in place of the magic one that will do.
    pub fn inode_with(
        &self,
        ino: u64,
        or: Option<Kind>,
        is_magic: impl Fn(u32) -> bool,
    ) -> Result<Attributes> {
        if !ino.is_multiple_of(inode::LINES) || !self.geometry.holds_line(ino) {
            return Err(Error::corrupt(
                line_at(ino & LINE_MASK),
                format!("inode number {ino} out of range"),
            ));
        }
        let at = line_at(ino);
        let word = |field: u64| self.pool.load(at + field);
        if !is_magic(word(inode::MAGIC_GENERATION) as u32) {
            return Err(Error::corrupt(at, format!("no inode at line {ino}")));
        }
        let mode = word(inode::MODE_NLINK) as u32 & 0xffff;
        let Some(kind) = Kind::from_mode(mode).or(or) else {
            return Err(Error::corrupt(at, format!("inode {ino} of unknown kind")));
        };
        Ok(Attributes::decode(ino, kind, word))
    }

    /// The entry at a line, its name unread.
    #[inline]
    pub fn dentry(&self, line: u64) -> Result<DentryImage> {
        if !self.geometry.holds_line(line) {
            return Err(Error::corrupt(
                line_at(line & LINE_MASK),
                format!("entry at line {line} out of range"),
            ));
        }
        let at = line_at(line);
        let target = self.pool.load(at + dentry::TARGET);
        let name_len = (target >> dentry::LEN_SHIFT & 0xff) as usize;
        let kind = Kind::from_mode(((target >> dentry::KIND_SHIFT & 0xf) << 12) as u32);
        match kind {
            Some(kind) if name_len > 0 => Ok(DentryImage {
                line,
                ino: target & LINE_MASK,
                kind,
                name_len,
                hash: self.pool.load(at + dentry::HASH),
            }),
            _ => Err(Error::corrupt(at, "entry without name or kind")),
        }
    }

    /// Read the name of an entry into `buf`.
    pub fn name<'b>(&self, d: &DentryImage, buf: &'b mut [u8; NAME_MAX]) -> Result<&'b [u8]> {
        let at = line_at(d.line);
        let len = d.name_len;
        if len <= dentry::INLINE {
            self.pool.read(at + dentry::NAME, &mut buf[..len]);
            return Ok(&buf[..len]);
        }
        self.pool
            .read(at + dentry::NAME, &mut buf[..dentry::INLINE_LONG]);
        let mut done = dentry::INLINE_LONG;
        let mut link = at + dentry::MORE;
        while done < len {
            let line = self.pool.load(link);
            if !self.geometry.holds_line(line) {
                return Err(Error::corrupt(link, "name continues out of range"));
            }
            let n = (len - done).min(dentry::PER_LINE);
            self.pool.read(line_at(line) + 8, &mut buf[done..done + n]);
            done += n;
            link = line_at(line);
        }
        Ok(&buf[..len])
    }

    /// The number of what an entry names, if these are its hash and its name. Of a line that is no
    /// entry any more they are nonsense.
    #[inline]
    pub fn named(&self, line: u64, hash: u64, name: &[u8]) -> Result<Option<u64>> {
        let at = line_at(line);
        if !self.geometry.holds_line(line) || self.pool.load(at + dentry::HASH) != hash {
            return Ok(None);
        }
        let target = self.pool.load(at + dentry::TARGET);
        let len = (target >> dentry::LEN_SHIFT & 0xff) as usize;
        if len != name.len() || len > dentry::INLINE {
            let entry = self.dentry(line)?;
            let mut buf = [0; NAME_MAX];
            let same = len == name.len() && self.name(&entry, &mut buf)? == name;
            return Ok(same.then_some(entry.ino));
        }
        let (words, rest) = name.as_chunks::<8>();
        let stored = |i: usize| self.pool.load(at + dentry::NAME + 8 * i as u64);
        let same = |(i, word): (usize, &[u8; 8])| stored(i) == u64::from_le_bytes(*word);
        let same = words.iter().enumerate().all(same)
            && (rest.is_empty() || {
                let unused = 64 - 8 * rest.len();
                let last = match name.last_chunk::<8>() {
                    Some(last) => u64::from_le_bytes(*last) >> unused,
                    None => rest.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b)),
                };
                stored(words.len()) << unused == last << unused
            });
        if !same {
            return Ok(None);
        }
        match Kind::from_mode(((target >> dentry::KIND_SHIFT & 0xf) << 12) as u32) {
            Some(_) => Ok(Some(target & LINE_MASK)),
            None => Err(Error::corrupt(at, "entry without name or kind")),
        }
    }

    /// The further lines of an entry's name.
    pub fn name_lines(&self, d: &DentryImage) -> Result<Vec<u64>> {
        let mut lines = Vec::new();
        let mut link = line_at(d.line) + dentry::MORE;
        for _ in 0..dentry::more_lines(d.name_len) {
            let line = self.pool.load(link);
            if !self.geometry.holds_line(line) {
                return Err(Error::corrupt(link, "name continues out of range"));
            }
            lines.push(line);
            link = line_at(line);
        }
        Ok(lines)
    }

    /// The next entry in the consistent view, `None` at the end.
    pub fn next(&self, line: u64) -> Result<Option<u64>> {
        self.link(
            line_at(line) + dentry::NEXT,
            self.pool.load(line_at(line) + dentry::NEXT),
        )
    }

    /// The first entry of a consistent bucket word: `None` when it is empty. The caller has
    /// dealt with a word of zero.
    pub fn bucket(&self, at: u64, word: u64) -> Result<Option<u64>> {
        if word == bucket::EMPTY {
            Ok(None)
        } else {
            self.link(at, word)
        }
    }

    /// The entry that a link leads to, `None` at the end.
    pub fn link(&self, at: u64, word: u64) -> Result<Option<u64>> {
        match word {
            0 => Ok(None),
            line if self.geometry.holds_line(line) => Ok(Some(line)),
            _ => Err(Error::corrupt(
                at,
                format!("link to line {word:#x} out of range"),
            )),
        }
    }

    /// The root of an index tree, from the root word of a file, directory or symbolic link.
    pub fn root(&self, ino: u64, word: u64) -> Result<Option<Root>> {
        if word == 0 {
            return Ok(None);
        }
        let at = line_at(ino) + inode::ROOT;
        let (page, height) = (word >> index::SHIFT, word & 7);
        let unwritten = word >> 11 & 1 == 1;
        let known = 7 | 1 << 11 | !((1 << index::SHIFT) - 1);
        if word & !known != 0 || height > index::HEIGHT_MAX || (unwritten && height > 0) {
            return Err(Error::corrupt(at, format!("root word {word:#x}")));
        }
        self.page(at, page)?;
        Ok(Some(Root {
            top: Pointer { page, unwritten },
            height,
        }))
    }

    /// A pointer in an index node; `None` is a hole. `leaf`: what it points at is data.
    #[inline]
    pub fn pointer(&self, at: u64, word: u64, leaf: bool) -> Result<Option<Pointer>> {
        if word == 0 {
            return self.pool.check_absence().map(|()| None);
        }
        let unwritten = word & index::UNWRITTEN != 0;
        let page = word >> index::SHIFT;
        if word & ((1 << index::SHIFT) - 1) & !index::UNWRITTEN != 0 || (unwritten && !leaf) {
            return Err(Error::corrupt(at, format!("index pointer {word:#x}")));
        }
        self.page(at, page)?;
        Ok(Some(Pointer { page, unwritten }))
    }

    fn page(&self, at: u64, page: u64) -> Result<()> {
        if self.geometry.holds_page(page) {
            Ok(())
        } else {
            Err(Error::corrupt(
                at,
                format!("pointer to page {page} out of range"),
            ))
        }
    }

    /// The pages of an inode's extended attributes, and how many bytes are in each.
    pub fn xattr_pages(&self, ino: u64, first: u64) -> Result<Vec<(u64, u64)>> {
        crate::lock::takes_long();
        let mut pages = Vec::new();
        let (mut at, mut page) = (line_at(ino) + inode::XATTR, first);
        while page != 0 {
            self.page(at, page)?;
            at = page_at(page);
            let used = self.pool.load(at + xattr::USED);
            if used > xattr::CAPACITY || pages.len() as u64 == xattr::PAGES_MAX {
                return Err(Error::corrupt(at, "extended attributes too long"));
            }
            pages.push((page, used));
            page = self.pool.load(at + xattr::NEXT);
        }
        Ok(pages)
    }

    /// Append what is in one of them.
    pub fn xattr_data(&self, page: u64, used: u64, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + used as usize, 0);
        self.pool
            .read(page_at(page) + xattr::DATA, &mut bytes[start..]);
    }

    /// The pages and the bytes of an inode's extended attributes.
    pub fn xattr_bytes(&self, ino: u64, first: u64) -> Result<(Vec<u64>, Vec<u8>)> {
        let pages = self.xattr_pages(ino, first)?;
        let mut bytes = Vec::new();
        for &(page, used) in &pages {
            self.xattr_data(page, used, &mut bytes);
        }
        Ok((pages.into_iter().map(|(page, _)| page).collect(), bytes))
    }
}

const _: () = assert!(LINE == 64 && PAGE == 4096);

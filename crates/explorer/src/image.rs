//! Images of media: copies share what they have in common, page by page, and what was never stored
//! to takes no memory. So the image of a crash state costs what differs, however long it is.

use pmem::{LINE, PAGE};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::xxh3_128_with_seed;

const PAGE_BYTES: usize = PAGE as usize;

/// Bytes of a line.
pub const LINE_BYTES: usize = LINE as usize;
/// Bytes of a line.
pub type Line = [u8; LINE_BYTES];
/// Lines, by number, that differ from the durable image in a crash state.
pub type Overlay = Vec<(u64, Line)>;

/// Bytes of a page.
pub type Page = [u8; PAGE_BYTES];

/// What a medium holds, or may hold: whole pages. A copy costs nothing until one of both is stored
/// to, and then one page.
#[derive(Clone)]
pub struct Image {
    len: u64,
    /// By number; those that are missing are zeros.
    pages: Arc<BTreeMap<u64, Arc<Page>>>,
    /// See [`hash`](Image::hash).
    hash: OnceLock<u128>,
}

/// The hash of a line in an image; that of an image is the XOR of its lines'. Zeros have none, as
/// an image may lack them.
pub fn hash(line: u64, bytes: &Line) -> u128 {
    match bytes == &[0; LINE_BYTES] {
        true => 0,
        false => xxh3_128_with_seed(bytes, line),
    }
}

impl Image {
    /// So many bytes, all zeros.
    ///
    /// # Panics
    /// If these are no whole pages.
    pub fn zeros(len: u64) -> Image {
        assert!(len.is_multiple_of(PAGE), "{len} bytes are no whole pages");
        Image {
            len,
            pages: Arc::default(),
            hash: OnceLock::new(),
        }
    }

    /// So many bytes, all the same.
    ///
    /// # Panics
    /// If these are no whole pages.
    pub fn full_of(byte: u8, len: u64) -> Image {
        let mut image = Image::zeros(len);
        if byte != 0 {
            image.fill(0..len / PAGE, byte);
        }
        image
    }

    /// Fill pages, by number, with a byte. They share one page.
    pub fn fill(&mut self, pages: impl IntoIterator<Item = u64>, byte: u8) {
        let page = Arc::new([byte; PAGE_BYTES]);
        let pages = pages.into_iter().map(|number| (number, page.clone()));
        self.hash.take();
        Arc::make_mut(&mut self.pages).extend(pages);
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages that are not known to be zeros, by number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.iter().map(|(&number, page)| (number, &**page))
    }

    /// The pages from a number on that are not known to be zeros, as copies share them.
    pub(crate) fn shared_pages(&self, from: u64) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.pages
            .range(from..)
            .map(|(&number, page)| (number, page))
    }

    /// A page, unless it is known to be zeros.
    pub fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number).map(|page| &**page)
    }

    /// Read from a place on.
    ///
    /// # Panics
    /// If that is not in the image.
    pub fn read(&self, at: u64, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        for (number, from, part) in by_page(at, bytes.len()) {
            let to = &mut bytes[part];
            match self.page(number) {
                Some(page) => to.copy_from_slice(&page[from..][..to.len()]),
                None => to.fill(0),
            }
        }
    }

    /// A line, by number.
    ///
    /// # Panics
    /// If that is not in the image.
    pub fn line(&self, line: u64) -> Line {
        let at = line as usize * LINE_BYTES;
        self.check(at as u64, LINE_BYTES);
        let mut bytes = [0; LINE_BYTES];
        if let Some(page) = self.page((at / PAGE_BYTES) as u64) {
            bytes.copy_from_slice(&page[at % PAGE_BYTES..][..LINE_BYTES]);
        }
        bytes
    }

    /// Store from a place on.
    ///
    /// # Panics
    /// If that is not in the image.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.check(at, bytes.len());
        self.hash.take();
        let pages = Arc::make_mut(&mut self.pages);
        for (number, from, part) in by_page(at, bytes.len()) {
            let part = &bytes[part];
            let page = pages
                .entry(number)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[from..][..part.len()].copy_from_slice(part);
        }
    }

    /// The same image with some lines of its own.
    pub fn with(&self, overlay: &Overlay) -> Image {
        let mut image = self.clone();
        for (line, bytes) in overlay {
            image.write(line * LINE_BYTES as u64, bytes);
        }
        image
    }

    /// A number that two images of one length have in common if, and almost certainly only if, they
    /// hold the same. It is kept, and copies have it.
    pub fn hash(&self) -> u128 {
        let of_page = |(number, page): (u64, &Page)| {
            let (lines, _) = page.as_chunks::<LINE_BYTES>();
            let first = number * (PAGE / LINE);
            let hashes = (first..).zip(lines).map(|(line, bytes)| hash(line, bytes));
            hashes.fold(0, |all, one| all ^ one)
        };
        let hash = || self.pages().map(of_page).fold(0, |all, one| all ^ one);
        *self.hash.get_or_init(hash)
    }

    /// The hash, if it is known.
    pub(crate) fn known_hash(&self) -> Option<u128> {
        self.hash.get().copied()
    }

    /// The same image, whose hash is known.
    pub(crate) fn hashed(self, hash: u128) -> Image {
        debug_assert!(self.known_hash().is_none_or(|known| known == hash));
        Image {
            hash: hash.into(),
            ..self
        }
    }

    /// All of its bytes: for short images.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        for (number, page) in self.pages() {
            bytes[number as usize * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(page);
        }
        bytes
    }

    /// The pages, by number, that two images of one length do not share. Most of them differ.
    pub fn unshared<'a>(&'a self, other: &'a Image) -> impl Iterator<Item = u64> + 'a {
        let all_shared = Arc::ptr_eq(&self.pages, &other.pages);
        let (here, there) = match all_shared {
            true => (None, None),
            false => (Some(self.pages.iter()), Some(other.pages.keys())),
        };
        let is_shared = |number, page: &Arc<Page>| {
            let others = other.pages.get(number);
            others.is_some_and(|others| Arc::ptr_eq(page, others))
        };
        let here = here.into_iter().flatten();
        let here = here.filter(move |(number, page)| !is_shared(*number, page));
        let there = there.into_iter().flatten();
        let there = there.filter(|number| !self.pages.contains_key(number));
        here.map(|(number, _)| number).chain(there).copied()
    }

    fn check(&self, at: u64, len: usize) {
        let end = at.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {at} of {}",
            self.len
        );
    }
}

/// Of whole pages.
impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Image {
        let mut image = Image::zeros(bytes.len() as u64);
        image.write(0, &bytes);
        image
    }
}

/// Whether they hold the same bytes.
impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        const ZEROS: &Page = &[0; PAGE_BYTES];
        let page = |image: &'_ Image, number| *image.page(number).unwrap_or(ZEROS);
        let mut unshared = self.unshared(other);
        self.len == other.len && unshared.all(|number| page(self, number) == page(other, number))
    }
}

impl Eq for Image {}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (len, pages) = (self.len, self.pages.len());
        write!(f, "image of {len} bytes, {pages} pages stored to")
    }
}

/// The parts of a range by page: page, offset in it, part of the range.
fn by_page(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done as u64;
        let from = (here % PAGE) as usize;
        let part = done..len.min(done + PAGE_BYTES - from);
        done = part.end;
        (!part.is_empty()).then_some((here / PAGE, from, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes_and_shares_the_pages_that_neither_stored_to() {
        let mut image = Image::full_of(7, 16 * PAGE);
        let copy = image.clone();
        image.write(PAGE - 2, &[1, 2, 3, 4]);
        assert_eq!(image.unshared(&copy).collect::<Vec<_>>(), [0, 1]);
        let mut bytes = [0; 6];
        image.read(PAGE - 3, &mut bytes);
        assert_eq!(bytes, [7, 1, 2, 3, 4, 7]);
        assert_eq!(copy.bytes(), vec![7; 16 * PAGE_BYTES]);
        assert!(image != copy);
        image.write(PAGE - 2, &[7; 4]);
        assert!(image == copy, "the same bytes in other pages");
    }

    #[test]
    fn what_was_never_stored_to_is_zeros_and_takes_no_memory() {
        let mut image = Image::zeros(1 << 40);
        image.write((1 << 40) - 8, &[9; 8]);
        assert_eq!(image.pages().count(), 1);
        assert_eq!(image.line((1 << 34) - 1)[56..], [9; 8]);
        assert_eq!(image.line(5), [0; LINE_BYTES]);
        assert_eq!(image.unshared(&Image::zeros(1 << 40)).count(), 1);
        assert_eq!(Image::zeros(1 << 40).unshared(&image).count(), 1);
        image.write((1 << 40) - 8, &[0; 8]);
        assert!(image == Image::zeros(1 << 40), "a page of zeros is none");
    }
}

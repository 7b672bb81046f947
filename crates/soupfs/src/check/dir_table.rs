//! The table of a directory, read as a lookup reads it.

use crate::attributes::Attributes;
use crate::image::{Image, Source};
use crate::layout::{WORDS_PER_PAGE, bucket, index, page_at};

/// The initialised buckets of a directory, as a lookup sees them.
pub(crate) struct DirTable<'a, S: Source> {
    pub image: Image<'a, S>,
    pub inode: &'a Attributes,
}

impl<S: Source> DirTable<'_, S> {
    /// Where the word of a bucket is; `None` where no page is, or none that can be read.
    pub(crate) fn at(&self, b: u64) -> Option<u64> {
        let root = self.image.root(self.inode.ino, self.inode.root).ok()??;
        let block = b / WORDS_PER_PAGE;
        if root.top.unwritten || block >= index::span(root.height) {
            return None;
        }
        let mut page = root.top.page;
        for height in (1..=root.height).rev() {
            let slot = block / index::span(height - 1) % index::FANOUT;
            page = self.child(page, slot)?;
        }
        Some(page_at(page) + b % WORDS_PER_PAGE * 8)
    }

    fn child(&self, node: u64, slot: u64) -> Option<u64> {
        let at = page_at(node) + slot * 8;
        let pointer = self.image.pointer(at, self.image.pool.load(at), false);
        pointer.ok()?.map(|pointer| pointer.page)
    }

    /// The word of a bucket; 0 where there is none.
    fn word(&self, b: u64) -> u64 {
        self.at(b).map_or(0, |at| self.image.pool.load(at))
    }

    /// Blocks of the table up to the last one that is there.
    pub(crate) fn blocks(&self) -> u64 {
        let Ok(Some(root)) = self.image.root(self.inode.ino, self.inode.root) else {
            return 0;
        };
        let (mut page, mut last) = (root.top.page, 0);
        for height in (1..=root.height).rev() {
            let child = |slot| self.child(page, slot).map(|child| (slot, child));
            let Some((slot, child)) = (0..index::FANOUT).rev().find_map(child) else {
                return (last + 1) * index::span(height);
            };
            (page, last) = (child, last * index::FANOUT + slot);
        }
        last + 1
    }

    /// The bucket that a lookup for this hash ends in, if `known` is initialised.
    pub(crate) fn home(&self, hash: u64, known: u64) -> u64 {
        let mut home = hash & ((bucket::BASE << self.inode.level) - 1);
        while home != known && home >= bucket::BASE && self.word(home) == 0 {
            home = bucket::parent(home);
        }
        home
    }

    pub(crate) fn is_home(&self, hash: u64, b: u64) -> bool {
        self.home(hash, b) == b
    }
}

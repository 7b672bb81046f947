//! Building an inode of a batch: its contents, its extended attributes, a directory's table, and
//! its own words.

use crate::commit::buckets::BucketTable;
use crate::commit::copies::Copies;
use crate::commit::index::Index;
use crate::commit::member::Member;
use crate::commit::txn::Txn;
use crate::fault::{Fault, injected};
use crate::file::{Extent, FileCapture, Mapping};
use crate::image::Pointer;
use crate::inherited;
use crate::inode::Body;
use crate::layout::{PAGE, bucket, inode as layout, line_at, page_at, xattr};
use crate::tree;
use crate::xattr::XattrCapture;
use vfs::{Kind, Result};

/// Bytes that were written and are to be flushed; none while this bug is injected.
fn written_unless(bug: Fault, written: u64) -> u64 {
    if injected(bug) { 0 } else { written }
}

impl Member {
    /// The directory's table, with what this batch has added to it so far.
    pub fn table(&self) -> BucketTable {
        BucketTable {
            root: self.consistent.root,
            level: self.consistent.level,
        }
    }

    /// Contents and extended attributes: flush what is private, put it into the tree.
    pub fn build_contents(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(xattrs) = &self.xattrs {
            let XattrCapture { new, old } = &**xattrs;
            for &page in new {
                let used = txn.volume().pool.load(page_at(page) + xattr::USED);
                let written = (xattr::DATA + used).min(PAGE);
                txn.use_page(page, written_unless(Fault::XattrsUnflushed, written));
            }
            old.iter().for_each(|&page| txn.withdrawn().page(page));
            if self.inode.kind == Kind::Dir {
                // Of others the count was captured with the chain.
                let pages = self.consistent.pages + new.len() as u64;
                self.consistent.pages = pages.saturating_sub(old.len() as u64);
            }
            self.consistent.xattr = new.first().copied().unwrap_or(0);
        }
        match (&self.inode.body, &mut self.file) {
            (Body::Symlink { page }, _) if self.fresh => {
                let target = written_unless(Fault::TargetUnflushed, self.consistent.size);
                txn.use_page(*page, target);
            }
            (_, Some(file)) if !injected(Fault::NameBeforeContents) => {
                file.build(txn, &mut self.consistent.root)?
            }
            _ => {}
        }
        Ok(())
    }

    /// Bring the consistent table to the size of the latest one (D4), once in a batch.
    pub fn grow(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        if self.growth.is_some() {
            return Ok(());
        }
        let volume = txn.volume();
        let (level, mut runs) = self.inode.dir()?.take_growth();
        let c = &mut self.consistent;
        let have = if c.root == 0 {
            0
        } else {
            bucket::blocks(c.level)
        };
        // Each entry has a place in block 0 at last: were it lost, nobody could go on in this
        // directory.
        let lost = have > 0 && matches!(tree::find(txn, c.root, 0), Ok(None));
        for block in (0..u64::from(lost)).chain(have..bucket::blocks(level)) {
            if block < have {
                // None was set aside for this.
                match volume.alloc.page() {
                    Ok(page) => runs.push(page..page + 1),
                    Err(_) => continue,
                }
            }
            let none = Copies::default();
            let mut index = Index::new(txn, c.root, &mut runs, &none);
            let first = Pointer {
                page: index.fresh_page()?,
                unwritten: false,
            };
            index.map(block, first, 1, &mut Vec::new())?;
            c.root = index.root;
            c.pages += 1;
        }
        c.level = c.level.max(level);
        self.growth = Some(runs);
        Ok(())
    }

    /// All words of the inode: private for a fresh one, else those that change.
    pub fn build_words(&self, txn: &mut Txn<'_>) {
        let (mut words, inode) = (self.consistent, &self.inode);
        if injected(Fault::LatestLinkCounts) {
            words.nlink = inode.nlink();
        }
        if let Some(private) = txn.fresh_inode(inode) {
            // Callers may have set bits already, as the inode was taken up before (F6).
            if let Body::File(file) = &inode.body {
                words.unflushed = file.read().marked();
            }
            for (field, value) in (0..).step_by(8).zip(words.encode()) {
                txn.store_private(&private, field, value);
            }
            return;
        }
        let at = line_at(inode.ino);
        if self.lost_all && inode.nlink() == 0 {
            // Unreachable from the commit on. Its number is not to be believed any more; what it
            // holds still is, by who searches for lost space, while it is open.
            let gone = [
                (layout::MODE_NLINK, u64::from(words.mode())),
                (layout::ROOT, words.root),
                (layout::XATTR, words.xattr),
            ];
            set_changed(txn, at, &gone);
        } else {
            set_changed(txn, at, &words.words());
        }
    }
}

/// Set those fields of the inode at `at` that change.
fn set_changed(txn: &mut Txn<'_>, at: u64, fields: &[(u64, u64)]) {
    for &(field, value) in fields {
        if txn.volume().pool.load(at + field) != value {
            txn.set(at + field, value);
        }
    }
}

impl FileCapture {
    /// What was stored is to be durable before the commit; what was mapped or cut goes into the
    /// tree, which has the root word `root` then.
    fn build(&mut self, txn: &mut Txn<'_>, root: &mut u64) -> Result<()> {
        for range in &self.dirty {
            txn.flush_data(range.start, range.end - range.start);
        }
        let volume = txn.volume();
        // In other domains what is visible is durable since the mount, and bits that are there are
        // what a power cut left of other use.
        if volume.marks_bytes && self.inherited != 0 && !injected(Fault::InheritedUnflushed) {
            let mut flush = |at| txn.flush_data(at, PAGE);
            inherited::each_page(volume, self.root, self.inherited, &mut flush);
        }
        for (at, bytes) in self.logged.drain(..) {
            txn.write(at, bytes);
        }
        let mut old = Vec::new();
        let copies = match txn.volume().record_words {
            Some(words_max) => Copies::choose(&self.extents, &self.provided, words_max),
            None => Copies::default(),
        };
        *root = self.root;
        for &(block, Extent { len, to, .. }) in &self.extents {
            if let Mapping::Pages { first, in_tree } = to {
                let run = first.page..first.page + len;
                let written = if first.unwritten { 0 } else { len * PAGE };
                match in_tree {
                    true => txn.flush_data(page_at(run.start), written),
                    false => txn.use_pages(run, written),
                }
            }
            let mut index = Index::new(txn, *root, &mut self.nodes, &copies);
            match to {
                Mapping::Hole => index.clear(block..block + len)?,
                Mapping::Pages { first, .. } => index.map(block, first, len, &mut old)?,
            }
            *root = index.root;
            for page in old.drain(..) {
                txn.withdrawn().page(page);
            }
        }
        Ok(())
    }
}

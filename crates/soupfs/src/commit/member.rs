//! An inode in a batch: what the consistent view has of it, and what it will have.

use crate::attributes::Attributes;
use crate::commit::buckets;
use crate::commit::deferred::Withdrawn;
use crate::commit::txn::Txn;
use crate::dir::table_blocks;
use crate::fault::{Fault, injected};
use crate::file::{Extent, FileCapture, Mapping};
use crate::image::{Pointer, Root};
use crate::inherited;
use crate::inode::{Body, Inode};
use crate::inode_table::{Counted, Kept};
use crate::layout::{PAGE, index, inode as layout, line_at, page_at};
use crate::tree;
use crate::volume::Volume;
use crate::xattr::{self, XattrCapture};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::Arc;
use vfs::{Kind, Result};

/// Journal words of an inode, on average.
const INODE_WEIGHT: usize = 10;

/// An inode in a batch.
pub struct Member {
    /// The inode.
    pub inode: Arc<Inode>,
    /// The consistent view does not hold it yet.
    pub fresh: bool,
    /// What the consistent view is to have: what it has, with the latest of what callers set since
    /// the capture, and with names and contents as the batch is built.
    pub consistent: Attributes,
    /// Names in the consistent view, those of this batch included.
    pub names: i64,
    /// This batch removes the last of them.
    pub lost_all: bool,
    /// A directory that this batch removes.
    pub doomed: bool,
    // Boxed, as few inodes have any: a batch may have many members.
    file: Option<Box<FileCapture>>,
    xattrs: Option<Box<XattrCapture>>,
    /// Pages set aside for the table and not used, once it has grown.
    growth: Option<Vec<Range<u64>>>,
}

impl FileCapture {
    /// Journal words that its index pointers may need, roughly. Of a hole whole subtrees are cut by
    /// one word.
    fn weight(&self) -> usize {
        let words = |extent: &Extent| match extent.to {
            Mapping::Pages { .. } => extent.len,
            Mapping::Hole => extent.len.min(index::FANOUT),
        };
        self.extents.iter().map(|(_, e)| words(e) as usize).sum()
    }
}

/// What of an inode's contents is captured together with its attributes.
struct Contents {
    xattrs: Option<XattrCapture>,
    file: Option<FileCapture>,
}

/// Take what is pending of an inode's contents, and bring `attributes` up to date as they are at
/// the same time.
fn snapshot(inode: &Inode, attributes: &mut Attributes) -> Contents {
    let mut body = match &inode.body {
        Body::File(file) => Some(file.write()),
        _ => None,
    };
    // Those who map, cut or replace hold one of these two locks, so the count of pages is that of
    // what is captured.
    let mut meta = inode.meta.lock();
    inode.attrs.update(attributes);
    Contents {
        xattrs: meta.rare().and_then(|rare| rare.xattrs.as_mut()?.capture()),
        file: body.as_mut().and_then(|file| file.capture()),
    }
}

impl Member {
    /// Take a snapshot of an inode's attributes and its pending contents.
    pub fn capture(volume: &Volume, inode: &Arc<Inode>) -> Result<Member> {
        let fresh = !inode.is_published();
        let is_dir = inode.kind == Kind::Dir;
        let mut consistent = match fresh {
            false => volume.image().inode(inode.ino)?,
            true => Attributes {
                nlink: if is_dir { 2 } else { 0 },
                ..inode.attributes()
            },
        };
        consistent.pages = consistent.sane_pages();
        let Contents { xattrs, file } = snapshot(inode, &mut consistent);
        Ok(Member {
            fresh,
            xattrs: xattrs.map(Box::new),
            file: file.map(Box::new),
            growth: None,
            names: if is_dir {
                i64::from(!fresh)
            } else {
                i64::from(consistent.nlink)
            },
            lost_all: false,
            doomed: false,
            consistent,
            inode: inode.clone(),
        })
    }

    /// An operation captured after the inode was may have changed it: take it again, as a whole.
    /// What changed it meanwhile need not be that operation, so attributes alone could show half of
    /// another.
    pub fn refresh(&mut self, volume: &Volume) {
        let later = snapshot(&self.inode, &mut self.consistent);
        match (&mut self.xattrs, later.xattrs) {
            (Some(earlier), Some(later)) => earlier.replace(volume, later),
            (none, Some(later)) => *none = Some(Box::new(later)),
            (_, None) => {}
        }
        match (&mut self.file, later.file) {
            (Some(earlier), Some(later)) => earlier.append(later),
            (none, Some(later)) => *none = Some(Box::new(later)),
            (_, None) => {}
        }
    }

    /// Journal words that it may need, roughly; what is private needs none.
    pub fn weight(&self) -> usize {
        match self.fresh {
            true => 0,
            false => INODE_WEIGHT + self.file.as_ref().map_or(0, |file| file.weight()),
        }
    }

    /// Blocks of a file that were mapped: a word was noted for each.
    pub fn blocks(&self) -> u64 {
        let extents = self.file.iter().flat_map(|file| &file.extents);
        extents
            .map(|(_, extent)| match extent.to {
                Mapping::Pages { .. } => extent.len,
                Mapping::Hole => 0,
            })
            .sum()
    }

    /// The batch is durable and applied: tell the latest view.
    pub fn settle(&mut self, volume: &Volume) {
        let inode = &self.inode;
        match &inode.body {
            Body::File(file) => file.write().persisted(volume, inode, self.consistent.root),
            Body::Dir(dir) => dir.set_consistent(self.consistent.root, self.consistent.level),
            Body::Symlink { .. } | Body::Special { .. } => {}
        }
        inode.set_published();
        let nodes = self.file.as_mut().map(|f| std::mem::take(&mut f.nodes));
        let blocks = self.growth.take();
        for run in nodes
            .into_iter()
            .chain(blocks)
            .flatten()
            .filter(|run| !run.is_empty())
        {
            volume.alloc.free_pages(run);
        }
    }

    /// The directory's table, with what this batch has added to it so far.
    pub fn table(&self) -> buckets::Table {
        buckets::Table {
            root: self.consistent.root,
            level: self.consistent.level,
        }
    }

    /// Contents and extended attributes: flush what is private, put it into the tree.
    pub fn build_contents(&mut self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(xattrs) = &self.xattrs {
            let XattrCapture { new, old } = &**xattrs;
            if !injected(Fault::XattrsUnflushed) {
                xattr::flush(txn, new);
            }
            new.iter().for_each(|&page| txn.claim_pages(page..page + 1));
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
                if !injected(Fault::TargetUnflushed) {
                    txn.flush(page_at(*page), self.consistent.size);
                }
                txn.claim_pages(*page..page + 1);
            }
            (_, Some(file)) if !injected(Fault::NameBeforeContents) => {
                file.build(txn, &mut self.consistent)?
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
            table_blocks(c.level)
        };
        // Each entry has a place in block 0 at last: were it lost, nobody could go on in this
        // directory.
        let lost = have > 0 && matches!(tree::find(txn, &volume.image(), c.root, 0), Ok(None));
        for block in (0..u64::from(lost)).chain(have..table_blocks(level)) {
            let page = match block < have {
                // None was set aside for this.
                true => match volume.alloc.page() {
                    Ok(page) => page,
                    Err(_) => continue,
                },
                false => take_page(volume, &mut runs)?,
            };
            txn.fresh_page(page);
            let first = Pointer {
                page,
                unwritten: false,
            };
            let mut node = || take_page(volume, &mut runs);
            tree::insert(txn, &mut c.root, block, first, 1, &mut node, &mut |_| ())?;
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
        let at = line_at(inode.ino);
        if self.fresh {
            // Callers may have set bits already, as the inode was taken up before (F6).
            if let Body::File(file) = &inode.body {
                words.unflushed = file.read().marked();
            }
            for (field, value) in (0..).step_by(8).zip(words.encode()) {
                txn.store_private(at + field, value);
            }
            txn.flush(at, layout::LEN);
            txn.claim_lines(inode.ino, layout::LINES);
            return;
        }
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

/// A page from those set aside; from free space if, against F4, there are none left.
fn take_page(volume: &Volume, runs: &mut Vec<Range<u64>>) -> Result<u64> {
    while let Some(run) = runs.last_mut() {
        if let Some(page) = run.next() {
            return Ok(page);
        }
        runs.pop();
    }
    volume.alloc.page()
}

impl FileCapture {
    fn build(&mut self, txn: &mut Txn<'_>, c: &mut Attributes) -> Result<()> {
        for range in &self.dirty {
            txn.flush(range.start, range.end - range.start);
        }
        if self.inherited != 0 && !injected(Fault::InheritedUnflushed) {
            let volume = txn.volume();
            let mut flush = |at| txn.flush(at, PAGE);
            inherited::each_page(volume, self.root, self.inherited, &mut flush);
        }
        let volume = txn.volume();
        let (nodes, mut root) = (&mut self.nodes, self.root);
        for (block, extent) in &self.extents {
            match extent.to {
                Mapping::Hole => {
                    let mut cut = Vec::new();
                    tree::clear(
                        txn,
                        &mut root,
                        *block..block + extent.len,
                        &mut |top, height| cut.push((top, height)),
                    )?;
                    for (top, height) in cut {
                        txn.withdrawn().tree(top, height, 0);
                    }
                }
                Mapping::Pages { first, in_tree } => {
                    if !first.unwritten {
                        txn.flush(page_at(first.page), extent.len * PAGE);
                    }
                    if !in_tree {
                        txn.claim_pages(first.page..first.page + extent.len);
                    }
                    let mut old = Vec::new();
                    let mut node = || take_page(volume, nodes);
                    tree::insert(
                        txn,
                        &mut root,
                        *block,
                        first,
                        extent.len,
                        &mut node,
                        &mut |p| old.push(p),
                    )?;
                    for Pointer { page, .. } in old {
                        txn.withdrawn().page(page);
                    }
                }
            }
        }
        c.root = root;
        Ok(())
    }
}

/// Free an inode without names if nobody uses it, and no rename that waits depends on it (else
/// false): DRAM forgets it, and what it holds is withdrawn, or is free at once if the
/// consistent view never had it. For the persister, between batches or after the commit that
/// removed it.
pub fn free_inode(volume: &Volume, inode: Arc<Inode>, withdrawn: &mut Withdrawn) -> bool {
    let Some(inode) = Counted(inode).take_unused(&volume.table, |inode| !inode.has_ties()) else {
        return false;
    };
    let published = inode.is_published();
    match published {
        true => withdrawn.pairs.push(inode.ino),
        false => volume.alloc.free_pair(inode.ino),
    }
    let damaged = |e| {
        log::error!(
            "what a removed inode held stays in use, as it is damaged: {e}; run `tureen fsck`"
        );
        volume.lost_space.store(true, Relaxed);
    };
    let xattrs = free_xattrs(volume, &inode).map_err(damaged);
    for page in xattrs.unwrap_or_default() {
        match published {
            true => withdrawn.page(page),
            false => volume.alloc.free_pages(page..page + 1),
        }
    }
    if let Ok(Some(Root { top, height })) = take_contents(volume, &inode).map_err(damaged) {
        match (published, height) {
            (false, 0) => volume.alloc.free_pages(top.page..top.page + 1), // the target of a symbolic link
            _ => {
                let pages = inode.attrs.pages.load(Relaxed).max(0) as u64;
                withdrawn.tree(top.page, height, pages);
            }
        }
    }
    true
}

/// The pages of the extended attributes of an inode that is being freed.
fn free_xattrs(volume: &Volume, inode: &Inode) -> Result<Vec<u64>> {
    let xattrs = inode.meta.lock().rare().and_then(|rare| rare.xattrs.take());
    match xattrs {
        Some(mut xattrs) => Ok(xattrs.tear_down(volume)),
        None if inode.is_published() => {
            let first = volume.pool.load(line_at(inode.ino) + layout::XATTR);
            Ok(volume.image().xattr_bytes(inode.ino, first)?.0)
        }
        None => Ok(Vec::new()),
    }
}

/// What leads to the contents of an inode that is being freed; what is private is freed at once.
fn take_contents(volume: &Volume, inode: &Inode) -> Result<Option<Root>> {
    let root = match &inode.body {
        Body::File(file) => file.write().tear_down(volume),
        Body::Dir(dir) => {
            for run in dir.take_growth().1 {
                volume.alloc.free_pages(run);
            }
            let root = dir.consistent_root();
            dir.set_consistent(0, 0);
            root
        }
        Body::Symlink { page } => page << index::SHIFT,
        Body::Special { .. } => 0,
    };
    volume.image().root(inode.ino, root)
}

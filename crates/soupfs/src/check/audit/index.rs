//! What an inode holds: index trees, extended attributes, and its counts of them.

use super::worker::{Count, Node, Shared, Task, Worker};
use crate::attributes::Attributes;
use crate::check::contents::{parse_xattrs, symlink_error};
use crate::check::finding::{Finding, Fix, Problem};
use crate::image::{Pointer, Source};
use crate::layout::{
    FILE_MAX, PAGE, WORDS_PER_PAGE, bucket, index, inode, line_at, page_at, xattr,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use vfs::Kind;

/// Table pages in one task: half a directory page's worth of work for each entry it may hold.
const TASK_TABLE_PAGES: u64 = 32;
impl<S: Source> Worker<'_, S> {
    /// Follow the index of an inode and its extended attributes, and compare its counts: at
    /// once, or when the tasks that this makes are done.
    pub(super) fn index(&mut self, inode: &Attributes) {
        let mut count = Count {
            pages: self.xattrs(inode),
            ..Count::default()
        };
        let at = line_at(inode.ino) + inode::ROOT;
        let root = match self.walk.image.root(inode.ino, inode.root) {
            Ok(Some(root)) if inode.kind == Kind::Dir && root.top.unwritten => {
                let finding = Finding::new(Problem::BadPointer, inode.ino, at, "void table");
                self.report(finding.fix(Fix::Store { at, value: 0 }));
                None
            }
            Ok(root) => root,
            Err(why) => {
                let fix = Fix::Store { at, value: 0 };
                self.refuse(Problem::BadPointer, inode.ino, at, why, fix);
                None
            }
        };
        if let Some(root) = root
            && self.claim_page(root.top.page, inode.ino, at)
        {
            count.pages += u64::from(root.height == 0); // nodes are not counted
            let node = Node {
                page: root.top.page,
                height: root.height,
                first: 0,
            };
            let large = if inode.kind == Kind::Dir { 1 } else { 2 };
            if root.height == 0 {
                self.leaf(inode, root.top, 0, at, &mut count);
            } else if root.height < large {
                self.slots(inode, None, node, 0..index::FANOUT, &mut count);
            } else {
                self.open(*inode, node, count);
                return;
            }
        }
        self.compare(inode, count);
    }

    /// Make tasks of a tree.
    fn open(&mut self, inode: Attributes, node: Node, count: Count) {
        let tree = Arc::new(Shared {
            inode,
            count: Mutex::default(),
            open: AtomicUsize::new(1),
        });
        self.split(&tree, node);
        self.leave(&tree, count);
    }

    fn split(&mut self, tree: &Arc<Shared>, node: Node) {
        let step = if tree.inode.kind == Kind::Dir {
            TASK_TABLE_PAGES
        } else {
            index::FANOUT
        };
        for from in (0..index::FANOUT).step_by(step as usize) {
            tree.open.fetch_add(1, Relaxed);
            self.tasks.push(Task::Slots {
                tree: tree.clone(),
                node,
                slots: from..from + step,
            });
        }
    }

    /// A task of a tree is done.
    pub(super) fn leave(&mut self, tree: &Shared, count: Count) {
        tree.count.lock().add(count);
        // SeqCst: the last to leave sees what all others added.
        if tree.open.fetch_sub(1, SeqCst) == 1 {
            let count = *tree.count.lock();
            self.compare(&tree.inode, count);
        }
    }

    /// Follow pointers of a node. Lower nodes become tasks of `tree`; without one, the node is
    /// of height 1 and has none.
    pub(super) fn slots(
        &mut self,
        inode: &Attributes,
        tree: Option<&Arc<Shared>>,
        node: Node,
        slots: Range<u64>,
        count: &mut Count,
    ) {
        let words = self.walk.image.words(node.page, slots.clone());
        for (slot, word) in slots.zip(words) {
            let at = page_at(node.page) + slot * 8;
            if word == 0 {
                continue;
            }
            let leaf = node.height == 1;
            let pointer = match self
                .walk
                .image
                .pointer(at, word, leaf && inode.kind != Kind::Dir)
            {
                Ok(Some(pointer)) => pointer,
                Ok(None) => continue,
                Err(why) => {
                    let fix = Fix::Store { at, value: 0 };
                    self.refuse(Problem::BadPointer, inode.ino, at, why, fix);
                    continue;
                }
            };
            if !self.claim_page(pointer.page, inode.ino, at) {
                continue;
            }
            count.pages += u64::from(leaf);
            let first = node.first + slot * index::span(node.height - 1);
            match tree {
                Some(tree) if !leaf => {
                    let below = Node {
                        page: pointer.page,
                        height: node.height - 1,
                        first,
                    };
                    self.split(tree, below);
                }
                _ => self.leaf(inode, pointer, first, at, count),
            }
        }
    }

    /// A page that the index leads to, claimed; `at` is the pointer.
    fn leaf(&mut self, inode: &Attributes, page: Pointer, block: u64, at: u64, count: &mut Count) {
        if inode.kind == Kind::Dir {
            self.table_page(inode, page.page, block, count);
            if block >= bucket::blocks(inode.level) && self.is_zero(page.page) {
                let detail = format!("block {block} is behind the table");
                let finding = Finding::new(Problem::StrayBucket, inode.ino, at, detail);
                self.report(finding.fix(Fix::Store { at, value: 0 }));
            }
            return;
        }
        let behind = block >= inode.size.min(FILE_MAX).div_ceil(PAGE);
        if page.unwritten {
            count.reserved += u64::from(behind);
        } else if behind && !self.is_cut_off(block, page.page) {
            let detail = format!("block {block} is written, the size is {}", inode.size);
            let finding = Finding::new(Problem::BeyondEnd, inode.ino, at, detail);
            self.report(finding.fix(Fix::Store { at, value: 0 }));
        } else {
            count.end = count.end.max(block + 1);
            if behind {
                (count.behind, count.behind_at) = (count.behind + 1, at);
            }
        }
    }

    fn is_zero(&self, page: u64) -> bool {
        let words = self.walk.image.words(page, 0..WORDS_PER_PAGE);
        words.iter().all(|&word| word == 0)
    }

    /// Whether a page behind the end of a file is there because the size is wrong: a crash leaves
    /// such pages, too, but no clean image has one that its maps know.
    fn is_cut_off(&self, block: u64, page: u64) -> bool {
        let (at, bit) = self.walk.image.geometry.page_bit(page);
        self.walk.was_clean && block < FILE_MAX / PAGE && self.walk.image.pool.load(at) & bit != 0
    }

    /// Claim and parse the extended attributes; returns their pages.
    fn xattrs(&mut self, inode: &Attributes) -> u64 {
        if inode.xattr == 0 {
            return 0;
        }
        let first = line_at(inode.ino) + inode::XATTR;
        let none = Fix::Store {
            at: first,
            value: 0,
        };
        let pages = match self.walk.image.xattr_pages(inode.ino, inode.xattr) {
            Ok(pages) => pages,
            Err(why) => {
                self.refuse(Problem::BadXattr, inode.ino, first, why, none);
                return 0;
            }
        };
        let (mut at, mut bytes) = (first, Vec::new());
        for (before, &(page, used)) in (0..).zip(&pages) {
            if !self.claim_page(page, inode.ino, at) {
                return before; // who claimed it first reads it
            }
            self.walk.image.xattr_data(page, used, &mut bytes);
            at = page_at(page) + xattr::NEXT;
        }
        if let Err(what) = parse_xattrs(&bytes) {
            self.report(Finding::new(Problem::BadXattr, inode.ino, first, what).fix(none));
        }
        pages.len() as u64
    }

    /// Compare an inode's counts with what was found.
    fn compare(&mut self, inode: &Attributes, count: Count) {
        let at = line_at(inode.ino);
        if inode.kind == Kind::Dir {
            if inode.size != count.names {
                let detail = format!("{} names are counted, {} found", inode.size, count.names);
                let at = at + inode::SIZE;
                let finding = Finding::new(Problem::DirectorySize, inode.ino, at, detail);
                self.report(finding.fix(Fix::Store {
                    at,
                    value: count.names,
                }));
            }
            self.check_links(inode.ino, 2 + count.directories);
            if count.level > inode.level.into() && count.names < inode.size {
                let (at, value) = (line_at(inode.ino) + inode::LEVEL, count.level);
                let detail = format!(
                    "table level {}, its buckets are those of {value}",
                    inode.level
                );
                let finding = Finding::new(Problem::BadWord, inode.ino, at, detail);
                self.report(finding.fix(Fix::Store { at, value }));
            }
        } else if inode.kind == Kind::File {
            self.check_size(inode, &count);
        }
        if inode.pages != count.pages {
            let detail = format!("{} pages are counted, {} found", inode.pages, count.pages);
            let at = at + inode::PAGES;
            let finding = Finding::new(Problem::PageCount, inode.ino, at, detail);
            self.report(finding.fix(Fix::Store {
                at,
                value: count.pages,
            }));
        }
    }

    /// Compare a file's size with its blocks. In a clean image one written block among those that
    /// are reserved behind the end has lost its flag; else the size leaves out what is the file's.
    fn check_size(&mut self, inode: &Attributes, count: &Count) {
        if inode.size <= FILE_MAX && count.behind == 0 {
            return;
        }
        if inode.size <= FILE_MAX && count.behind == 1 && count.reserved > 0 {
            let at = count.behind_at;
            let value = self.walk.image.pool.load(at) | index::UNWRITTEN;
            let detail = format!("one block is written behind the size {}", inode.size);
            let finding = Finding::new(Problem::BeyondEnd, inode.ino, at, detail);
            return self.report(finding.fix(Fix::Store { at, value }));
        }
        let (at, value) = (line_at(inode.ino) + inode::SIZE, count.end * PAGE);
        let detail = format!("the size is {}, there are blocks up to {value}", inode.size);
        let finding = Finding::new(Problem::WrongSize, inode.ino, at, detail);
        self.report(finding.fix(Fix::Store { at, value }));
    }

    /// Check what an inode that is no directory holds; `named` by this fix.
    pub(super) fn contents(&mut self, inode: &Attributes, entry: u64, remove: Fix) {
        let device = match inode.kind {
            Kind::File | Kind::Dir => return self.index(inode),
            Kind::Symlink => {
                if let Some(what) = symlink_error(&self.walk.image, inode) {
                    let finding = Finding::new(Problem::BadSymlink, inode.ino, entry, what);
                    self.report(finding.fix(remove));
                }
                return self.index(inode);
            }
            Kind::CharDev | Kind::BlockDev => inode.root & u64::from(u32::MAX),
            Kind::Fifo | Kind::Socket => 0,
        };
        for (field, what, found, value) in [
            (inode::ROOT, "device number", inode.root, device),
            (inode::SIZE, "size", inode.size, 0),
        ] {
            if found != value {
                let at = line_at(inode.ino) + field;
                let detail = format!("{what} {found:#x} of a {:?}", inode.kind);
                let finding = Finding::new(Problem::BadWord, inode.ino, at, detail);
                self.report(finding.fix(Fix::Store { at, value }));
            }
        }
        let pages = self.xattrs(inode);
        self.compare(
            inode,
            Count {
                pages,
                ..Count::default()
            },
        );
    }

    pub(super) fn compare_links(&mut self, links: &HashMap<u64, u64>) {
        for (&ino, further) in links {
            self.check_links(ino, 1 + further);
        }
    }

    fn check_links(&mut self, ino: u64, found: u64) {
        let at = line_at(ino) + inode::MODE_NLINK;
        let word = self.walk.image.pool.load(at);
        let links = word >> 32;
        if links != found {
            let detail = format!("{links} links are counted, {found} found");
            let value = word & 0xffff_ffff | found.min(u64::from(u32::MAX)) << 32;
            let finding = Finding::new(Problem::LinkCount, ino, at, detail);
            self.report(finding.fix(Fix::Store { at, value }));
        }
    }
}

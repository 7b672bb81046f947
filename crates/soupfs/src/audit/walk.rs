//! The walk: everything that names reach from the root.
//!
//! A worker takes a task (a directory, or slots of an index node of something large) and claims
//! what it finds there. New directories are new tasks. What belongs to one inode is counted in a
//! [`Count`]; of an inode whose index is shared between tasks, in its [`Shared`].

use super::claims::{Claim, Claims, Suspects, losers};
use super::names::DirectoryName;
use super::queue::{Queue, on_threads};
use super::{FINDINGS_MAX, Finding, Fix, Problem, Progress, Stage, Totals, Watch, mend};
use crate::attributes::Attributes;
use crate::hash::NameHash;
use crate::image::{Image, Pointer, Source, Superblock};
use crate::layout::{
    FILE_MAX, LINES_PER_PAGE, PAGE, bucket, index, inode, line_at, page_at, xattr,
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use vfs::{Error, Kind, XATTR_NAME_MAX, XATTR_SIZE_MAX};

/// Table pages in one task: half a directory page's worth of work for each entry it may hold.
const TASK_TABLE_PAGES: u64 = 32;
/// Inodes between two reports of progress by one worker.
const REPORT_EVERY: u64 = 4096;

/// Told the line of each entry; by each thread of the walk.
pub(super) type Visit<'a> = &'a (dyn Fn(u64) + Sync);

/// What the walk found.
pub(super) struct Walked {
    pub claims: Claims,
    pub suspects: Suspects,
    pub findings: Vec<Finding>,
    pub more: u64,
    pub totals: Totals,
}

/// What a worker does next.
pub(super) enum Task {
    /// Read a directory, the table of which is of this level. Its inode is claimed.
    Directory { ino: u64, level: u32 },
    /// Follow pointers of an index node.
    Slots {
        tree: Arc<Shared>,
        node: Node,
        slots: Range<u64>,
    },
}

impl Task {
    pub(super) fn directory(dir: &Attributes) -> Task {
        Task::Directory {
            ino: dir.ino,
            level: dir.level,
        }
    }
}

/// A node of an index tree, its page claimed.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub page: u64,
    /// Levels below it: 1 for a node of leaf pointers.
    pub height: u64,
    /// The first block under it.
    pub first: u64,
}

/// An inode whose index several tasks follow.
pub(super) struct Shared {
    inode: Attributes,
    count: Mutex<Count>,
    /// Tasks that are not done. Whoever ends the last compares the counts.
    open: AtomicUsize,
}

/// What was found of an inode.
#[derive(Default, Clone, Copy)]
pub(super) struct Count {
    pub pages: u64,
    pub names: u64,
    pub directories: u64,
    /// The level at which buckets that the directory's excludes are in use.
    pub level: u64,
    /// Blocks up to the last written one that the file may have.
    pub end: u64,
    /// Written ones of these behind its end, and where the pointer to one is.
    pub behind: u64,
    pub behind_at: u64,
    /// Unwritten ones behind its end.
    pub reserved: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.pages += other.pages;
        self.names += other.names;
        self.directories += other.directories;
        self.level = self.level.max(other.level);
        self.end = self.end.max(other.end);
        self.behind += other.behind;
        self.behind_at = self.behind_at.max(other.behind_at);
        self.reserved += other.reserved;
    }
}

/// What all workers share.
pub(super) struct Walk<'w, S: Source> {
    pub image: Image<'w, S>,
    pub claims: Claims,
    pub hash: NameHash,
    /// Whether the maps and sizes were exact before anything was damaged.
    was_clean: bool,
    /// The latest mount, of which there may be tags; `None` if that is not known.
    pub epoch: Option<u64>,
    /// What more than one has, if this is the second walk: the pages to find all claimants of, and
    /// the directories of which to prefer the right name.
    pub suspects: Option<Suspects>,
    /// Told of each entry at home.
    pub visit: Option<Visit<'w>>,
    queue: Queue<Task>,
    done: AtomicU64,
    progress: Watch<'w>,
}

/// One thread of the walk.
pub(super) struct Worker<'w, S: Source> {
    pub walk: &'w Walk<'w, S>,
    pub tasks: Vec<Task>,
    pub totals: Totals,
    /// Names after the first, of inodes that have or claim to have several.
    pub links: HashMap<u64, u64>,
    pub suspects: Suspects,
    /// Names of directories with several that are not where `PARENT` says: when all else has been
    /// met, one counts if no other has. Only the second walk has any, and it has one thread.
    pub doubtful: Vec<DirectoryName>,
    claimed: Vec<Claim>,
    findings: Vec<Finding>,
    more: u64,
}

/// Walk an image; with `suspects`, on one thread, also find who claims what in these pages.
pub(super) fn walk<S: Source>(
    image: &Image<'_, S>,
    sb: &Superblock,
    threads: usize,
    suspects: Option<Suspects>,
    visit: Option<Visit<'_>>,
    progress: Watch<'_>,
) -> Walked {
    let walk = Walk {
        image: *image,
        claims: Claims::new(*image.geometry),
        hash: NameHash::new(sb.hash_key),
        was_clean: image.was_clean(),
        epoch: image.epoch(),
        suspects,
        visit,
        queue: Queue::new(Vec::new()),
        done: AtomicU64::new(0),
        progress,
    };
    let mut first = Worker::new(&walk);
    let root = first.root(sb.root);
    let mut parts = vec![first.finish()];
    if let Some(root) = root {
        walk.queue.push(Task::directory(&root));
        parts.extend(run(&walk, threads));
    }
    gather(walk, parts)
}

/// What one worker found.
struct Part {
    totals: Totals,
    links: HashMap<u64, u64>,
    suspects: Suspects,
    claimed: Vec<Claim>,
    findings: Vec<Finding>,
    more: u64,
}

fn run<S: Source>(walk: &Walk<'_, S>, threads: usize) -> Vec<Part> {
    on_threads(threads, || {
        let mut worker = Worker::new(walk);
        walk.queue.work(|task, own| worker.task(task, own));
        worker.finish()
    })
}

/// Put together what the workers found, and compare what only the whole can tell.
fn gather<S: Source>(walk: Walk<'_, S>, parts: Vec<Part>) -> Walked {
    let mut last = Worker::new(&walk);
    let mut claimed = Vec::new();
    let mut links = HashMap::new();
    for part in parts {
        last.totals.inodes += part.totals.inodes;
        last.totals.directories += part.totals.directories;
        last.totals.names += part.totals.names;
        part.findings.into_iter().for_each(|f| last.report(f));
        last.more += part.more;
        last.suspects.absorb(part.suspects);
        claimed.extend(part.claimed);
        for (ino, further) in part.links {
            *links.entry(ino).or_default() += further;
        }
    }
    last.compare_links(&links);
    let holds_lines = |page| walk.image.pool.load(walk.image.geometry.line_word(page)) != 0;
    for claim in losers(&mut claimed, holds_lines) {
        let detail = match claim.mask {
            u64::MAX => format!("page {} belongs to something else", claim.page),
            _ => format!("lines of page {} belong to something else", claim.page),
        };
        let finding = Finding::new(Problem::SharedSpace, claim.owner, claim.at, detail);
        last.report(finding.fix(claim.fix));
    }
    let Part {
        totals,
        suspects,
        findings,
        more,
        ..
    } = last.finish();
    Walked {
        claims: walk.claims,
        suspects,
        findings,
        more,
        totals,
    }
}

impl<'w, S: Source> Worker<'w, S> {
    fn new(walk: &'w Walk<'w, S>) -> Worker<'w, S> {
        Worker {
            walk,
            tasks: Vec::new(),
            totals: Totals::default(),
            links: HashMap::new(),
            suspects: Suspects::default(),
            doubtful: Vec::new(),
            claimed: Vec::new(),
            findings: Vec::new(),
            more: 0,
        }
    }

    fn finish(self) -> Part {
        Part {
            totals: self.totals,
            links: self.links,
            suspects: self.suspects,
            claimed: self.claimed,
            findings: self.findings,
            more: self.more,
        }
    }

    #[cold]
    pub(super) fn report(&mut self, finding: Finding) {
        // One wrong word of a directory may cut off a bucket of it each: there is room for what
        // mends that.
        let max = FINDINGS_MAX * if finding.cuts() { 1 } else { 2 };
        if self.findings.len() < max {
            self.findings.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// Report what the reader of the image refused.
    #[cold]
    pub(super) fn refuse(&mut self, problem: Problem, ino: u64, at: u64, why: Error, fix: Fix) {
        let what = match why {
            Error::Corrupt(corruption) => corruption.what,
            other => other.to_string(),
        };
        self.report(Finding::new(problem, ino, at, what).fix(fix));
    }

    /// Claim the root; `None` if there is nothing to walk before it is repaired.
    fn root(&mut self, root: u64) -> Option<Attributes> {
        let (at, image) = (line_at(root), self.walk.image);
        let (inode, mends) = match mend::inode(&image, root, Kind::Dir, None) {
            Ok(mended) => mended,
            Err(why) => {
                // In an image that was not clean, all that it led to would be taken for free space.
                let at = at + inode::MAGIC_GENERATION;
                let value = mend::with_magic(image.pool.load(at));
                let fix = match self.walk.was_clean {
                    true => Fix::Store { at, value },
                    false => Fix::None,
                };
                self.refuse(Problem::Root, root, at, why, fix);
                return None;
            }
        };
        self.walk.claims.inode(root);
        self.claim_inode(root, 0, at, Fix::None);
        self.met(&inode, mends);
        self.check_parent(&inode, root);
        Some(inode)
    }

    /// Count an inode that is met for the first time, and check what all kinds have. `mends` are
    /// what it is made whole by.
    pub(super) fn met(&mut self, inode: &Attributes, mends: Vec<Finding>) {
        let at = line_at(inode.ino) + inode::MODE_NLINK;
        let word = self.walk.image.pool.load(at);
        let value = word & !inode::MODE_RESERVED;
        if value != word && mends.iter().all(|mend| mend.at != at) {
            let finding = Finding::new(Problem::BadWord, inode.ino, at, "reserved bits in use");
            self.report(finding.fix(Fix::Store { at, value }));
        }
        mends.into_iter().for_each(|mend| self.report(mend));
        self.totals.inodes += 1;
        self.totals.directories += u64::from(inode.kind == Kind::Dir);
        if self.totals.inodes.is_multiple_of(REPORT_EVERY) {
            let done = self.walk.done.fetch_add(REPORT_EVERY, Relaxed) + REPORT_EVERY;
            (self.walk.progress)(Progress {
                stage: Stage::Names,
                done,
                total: 0,
            });
        }
        let of_others: &[u64] = match inode.kind {
            Kind::Dir => &[inode::UNFLUSHED],
            Kind::File => &[inode::LEVEL, inode::PARENT],
            _ => &[inode::LEVEL, inode::PARENT, inode::UNFLUSHED],
        };
        for &field in inode::RESERVED.iter().chain(of_others) {
            let at = line_at(inode.ino) + field;
            if self.walk.image.pool.load(at) != 0 {
                let finding = Finding::new(Problem::BadWord, inode.ino, at, "reserved word in use");
                self.report(finding.fix(Fix::Store { at, value: 0 }));
            }
        }
    }

    pub(super) fn check_parent(&mut self, inode: &Attributes, holder: u64) {
        if inode.parent != holder {
            let at = line_at(inode.ino) + inode::PARENT;
            let detail = format!("parent is {}, but {holder} holds it", inode.parent);
            let finding = Finding::new(Problem::WrongParent, inode.ino, at, detail);
            self.report(finding.fix(Fix::Store { at, value: holder }));
        }
    }

    /// Claim a page whole; false if it was claimed before, and must not be followed.
    pub(super) fn claim_page(&mut self, page: u64, owner: u64, at: u64) -> bool {
        let fix = Fix::Store { at, value: 0 };
        self.note(Claim {
            page,
            mask: u64::MAX,
            owner,
            seq: 0,
            inode: false,
            at,
            fix,
        });
        let first = self.walk.claims.page(page);
        if !first {
            self.suspects.page(page);
        }
        first
    }

    /// Claim lines for a directory's entries; false if any was claimed before.
    pub(super) fn claim_line(&mut self, line: u64, owner: u64, at: u64, fix: Fix) -> bool {
        let (page, mask) = (line / LINES_PER_PAGE, 1 << (line % LINES_PER_PAGE));
        self.note(Claim {
            page,
            mask,
            owner,
            seq: 0,
            inode: false,
            at,
            fix,
        });
        let first = self.walk.claims.lines(line, 1);
        if !first {
            self.suspects.page(page);
        }
        first
    }

    /// Claim the lines of an inode that is met for the first time.
    pub(super) fn claim_inode(&mut self, ino: u64, owner: u64, at: u64, fix: Fix) {
        self.note_inode(ino, owner, at, fix);
        if !self.walk.claims.lines(ino, inode::LINES) {
            self.suspects.page(ino / LINES_PER_PAGE);
        }
    }

    /// Another name leads to an inode, and goes if the inode goes.
    pub(super) fn note_inode(&mut self, ino: u64, owner: u64, at: u64, fix: Fix) {
        let mask = super::claims::line_mask(ino, inode::LINES);
        let page = ino / LINES_PER_PAGE;
        self.note(Claim {
            page,
            mask,
            owner,
            seq: 0,
            inode: true,
            at,
            fix,
        });
    }

    fn note(&mut self, claim: Claim) {
        let Some(suspects) = &self.walk.suspects else {
            return;
        };
        if !suspects.pages.contains(&claim.page) {
            return;
        }
        match self.claimed.len() {
            seq if seq < 2 * FINDINGS_MAX => self.claimed.push(Claim { seq, ..claim }),
            _ => self.more += 1, // for the next audit
        }
    }

    fn task(&mut self, task: Task, own: &mut Vec<Task>) {
        match task {
            Task::Directory { ino, level } => {
                // One that has yet to get its magic number back is read by the next audit.
                if let Ok(inode) = self.walk.image.inode_as_it_is(ino, Some(Kind::Dir)) {
                    let kind = Kind::Dir;
                    self.index(&Attributes {
                        kind,
                        level,
                        ..inode
                    });
                }
            }
            Task::Slots { tree, node, slots } => {
                let mut count = Count::default();
                self.slots(&tree.inode, Some(&tree), node, slots, &mut count);
                self.leave(&tree, count);
            }
        }
        own.append(&mut self.tasks);
        while own.is_empty()
            && let Some(name) = self.doubtful.pop()
        {
            self.directory(name);
            own.append(&mut self.tasks);
        }
    }

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
    fn leave(&mut self, tree: &Shared, count: Count) {
        tree.count.lock().add(count);
        // SeqCst: the last to leave sees what all others added.
        if tree.open.fetch_sub(1, SeqCst) == 1 {
            let count = *tree.count.lock();
            self.compare(&tree.inode, count);
        }
    }

    /// Follow pointers of a node. Lower nodes become tasks of `tree`; without one, the node is
    /// of height 1 and has none.
    fn slots(
        &mut self,
        inode: &Attributes,
        tree: Option<&Arc<Shared>>,
        node: Node,
        slots: Range<u64>,
        count: &mut Count,
    ) {
        for slot in slots {
            let at = page_at(node.page) + slot * 8;
            let word = self.walk.image.pool.load(at);
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
        let mut words = (page_at(page)..page_at(page + 1)).step_by(8);
        words.all(|at| self.walk.image.pool.load(at) == 0)
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

    fn compare_links(&mut self, links: &HashMap<u64, u64>) {
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
}

/// What is wrong with a symbolic link, if anything is.
pub(crate) fn symlink_error<S: Source>(
    image: &Image<'_, S>,
    inode: &Attributes,
) -> Option<&'static str> {
    if inode.size == 0 || inode.size >= PAGE {
        return Some("symbolic link with a target of impossible length");
    }
    match image.root(inode.ino, inode.root) {
        Ok(Some(root)) if root.height == 0 && !root.top.unwritten => {
            let mut target = [0; PAGE as usize];
            let target = &mut target[..inode.size as usize];
            image.pool.read(page_at(root.top.page), target);
            let zero = target.contains(&0);
            zero.then_some("symbolic link with a zero in its target")
        }
        _ => Some("symbolic link without a target"),
    }
}

/// Whether the bytes of extended attributes are records to their end, with distinct names.
fn parse_xattrs(mut bytes: &[u8]) -> Result<(), &'static str> {
    let mut names = HashSet::new();
    while !bytes.is_empty() {
        let Some((header, rest)) = bytes.split_first_chunk::<6>() else {
            return Err("extended attributes end within a header");
        };
        let name_len = usize::from(u16::from_le_bytes([header[0], header[1]]));
        let value_len = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
        if name_len == 0 || name_len > XATTR_NAME_MAX || value_len > XATTR_SIZE_MAX {
            return Err("extended attribute of impossible length");
        }
        if rest.len() < name_len + value_len {
            return Err("extended attributes end within a record");
        }
        if !names.insert(&rest[..name_len]) {
            return Err("extended attribute stored twice");
        }
        bytes = &rest[name_len + value_len..];
    }
    Ok(())
}

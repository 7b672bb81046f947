//! One thread of the walk: what it is told, what it claims, what it reports.

use super::queue::Queue;
use super::report::{Progress, Stage, Totals, Watch};
use crate::attributes::Attributes;
use crate::check::claims::{Claims, line_mask};
use crate::check::damage::contested::{Claim, Suspects};
use crate::check::finding::{FINDINGS_MAX, Finding, Fix, Link, Problem};
use crate::hash::NameHash;
use crate::image::{DentryImage, Image, Source};
use crate::layout::{LINES_PER_PAGE, inode, line_at};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use vfs::{Error, Kind};

/// Inodes between two reports of progress by one worker.
const REPORT_EVERY: u64 = 4096;

/// Told the line of each entry; by each thread of the walk.
pub(super) type Visit<'a> = &'a (dyn Fn(u64) + Sync);

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
    pub(super) page: u64,
    /// Levels below it: 1 for a node of leaf pointers.
    pub(super) height: u64,
    /// The first block under it.
    pub(super) first: u64,
}

/// An inode whose index several tasks follow.
pub(super) struct Shared {
    pub(super) inode: Attributes,
    pub(super) count: Mutex<Count>,
    /// Tasks that are not done. Whoever ends the last compares the counts.
    pub(super) open: AtomicUsize,
}

/// What was found of an inode.
#[derive(Default, Clone, Copy)]
pub(super) struct Count {
    pub(super) pages: u64,
    pub(super) names: u64,
    pub(super) directories: u64,
    /// The level at which buckets that the directory's excludes are in use.
    pub(super) level: u64,
    /// Blocks up to the last written one that the file may have.
    pub(super) end: u64,
    /// Written ones of these behind its end, and where the pointer to one is.
    pub(super) behind: u64,
    pub(super) behind_at: u64,
    /// Unwritten ones behind its end.
    pub(super) reserved: u64,
}

impl Count {
    pub(super) fn add(&mut self, other: Count) {
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

/// An entry in its place.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) line: u64,
    /// The last word before it that is at home here.
    pub(super) link: Link,
    /// That word: this entry, or the first of those that are astray before it.
    pub(super) word: u64,
}

impl Entry {
    pub(super) fn at(&self) -> u64 {
        line_at(self.line)
    }

    pub(super) fn remove(&self) -> Fix {
        Fix::Remove {
            link: self.link,
            word: self.word,
            line: self.line,
        }
    }

    /// Let what is at home before it lead to `to`.
    pub(super) fn lead(&self, to: u64) -> Fix {
        Fix::Lead {
            link: self.link,
            word: self.word,
            to,
        }
    }
}

/// A name of a directory.
pub(super) struct DirectoryName {
    pub(super) dir: Attributes,
    pub(super) entry: Entry,
    pub(super) found: DentryImage,
    pub(super) inode: Attributes,
    pub(super) mends: Vec<Finding>,
}

/// What all workers share.
pub(super) struct Work<'w, S: Source> {
    pub(super) image: Image<'w, S>,
    pub(super) claims: Claims,
    pub(super) hash: NameHash,
    /// Whether the maps and sizes were exact before anything was damaged.
    pub(super) was_clean: bool,
    /// The latest mount, of which there may be tags; `None` if that is not known.
    pub(super) epoch: Option<u64>,
    /// What more than one has, if this is the second walk: the pages to find all claimants of, and
    /// the directories of which to prefer the right name.
    pub(super) suspects: Option<Suspects>,
    /// Told of each entry at home.
    pub(super) visit: Option<Visit<'w>>,
    pub(super) queue: Queue<Task>,
    pub(super) done: AtomicU64,
    pub(super) progress: Watch<'w>,
}

/// One thread of the walk.
pub(super) struct Worker<'w, S: Source> {
    pub(super) walk: &'w Work<'w, S>,
    pub(super) tasks: Vec<Task>,
    pub(super) totals: Totals,
    /// Names after the first, of inodes that have or claim to have several.
    pub(super) links: HashMap<u64, u64>,
    pub(super) suspects: Suspects,
    /// Names of directories with several that are not where `PARENT` says: when all else has been
    /// met, one counts if no other has. Only the second walk has any, and it has one thread.
    pub(super) doubtful: Vec<DirectoryName>,
    pub(super) claimed: Vec<Claim>,
    pub(super) findings: Vec<Finding>,
    pub(super) more: u64,
}

/// What one worker found.
pub(super) struct Part {
    pub(super) totals: Totals,
    pub(super) links: HashMap<u64, u64>,
    pub(super) suspects: Suspects,
    pub(super) claimed: Vec<Claim>,
    pub(super) findings: Vec<Finding>,
    pub(super) more: u64,
}

impl<'w, S: Source> Worker<'w, S> {
    pub(super) fn new(walk: &'w Work<'w, S>) -> Worker<'w, S> {
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

    pub(super) fn finish(self) -> Part {
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
        let mask = line_mask(ino, inode::LINES);
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
}

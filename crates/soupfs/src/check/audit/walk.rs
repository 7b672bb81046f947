//! The walk: everything that names reach from the root.
//!
//! A worker takes a task (a directory, or slots of an index node of something large) and claims
//! what it finds there. New directories are new tasks. What belongs to one inode is counted in a
//! [`Count`]; of an inode whose index is shared between tasks, in its [`Shared`].

use super::queue::{Queue, on_threads};
use super::report::{Totals, Watch};
use super::worker::{Count, Part, Task, Visit, Work, Worker};
use crate::attributes::Attributes;
use crate::check::claims::Claims;
use crate::check::damage::contested::{Suspects, losers};
use crate::check::damage::inodes;
use crate::check::finding::{Finding, Fix, Problem};
use crate::hash::NameHash;
use crate::image::{Image, Source, Superblock};
use crate::layout::{inode, line_at};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use vfs::Kind;

/// How to walk.
pub(super) struct Walk<'w> {
    /// Threads; one if there are suspects.
    pub threads: usize,
    /// What more than one has, to find all claimants: this is the second walk.
    pub suspects: Option<Suspects>,
    /// Told of each entry at home.
    pub visit: Option<Visit<'w>>,
    pub progress: Watch<'w>,
}

/// What the walk found.
pub(super) struct Walked {
    pub claims: Claims,
    pub suspects: Suspects,
    pub findings: Vec<Finding>,
    pub more: u64,
    pub totals: Totals,
}

/// Walk an image.
pub(super) fn walk<S: Source>(image: &Image<'_, S>, sb: &Superblock, how: Walk<'_>) -> Walked {
    let threads = how.threads;
    let walk = Work {
        image: *image,
        claims: Claims::new(*image.geometry),
        hash: NameHash::new(sb.hash_key),
        was_clean: image.was_clean(),
        epoch: image.epoch(),
        suspects: how.suspects,
        visit: how.visit,
        queue: Queue::new(Vec::new()),
        done: AtomicU64::new(0),
        progress: how.progress,
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

fn run<S: Source>(walk: &Work<'_, S>, threads: usize) -> Vec<Part> {
    on_threads(threads, || {
        let mut worker = Worker::new(walk);
        walk.queue.work(|task, own| worker.task(task, own));
        worker.finish()
    })
}

/// Put together what the workers found, and compare what only the whole can tell.
fn gather<S: Source>(walk: Work<'_, S>, parts: Vec<Part>) -> Walked {
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

impl<S: Source> Worker<'_, S> {
    /// Claim the root; `None` if there is nothing to walk before it is repaired.
    fn root(&mut self, root: u64) -> Option<Attributes> {
        let (at, image) = (line_at(root), self.walk.image);
        let (inode, mends) = match inodes::mended(&image, root, Kind::Dir, None) {
            Ok(mended) => mended,
            Err(why) => {
                // In an image that was not clean, all that it led to would be taken for free space.
                let at = at + inode::MAGIC_GENERATION;
                let value = inodes::with_magic(image.pool.load(at));
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
}

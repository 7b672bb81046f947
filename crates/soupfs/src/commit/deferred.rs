//! Space that the consistent view no longer leads to, until it may be used again.
//!
//! A commit that withdraws something makes it unreachable, but as long as the journal may replay
//! an earlier transaction that stored into it, or that very one, it must keep its contents
//! (rule C2 of soft updates). So it waits here for the journal to checkpoint the commit. Nothing
//! callers do waits for that, except when space runs out.
//!
//! What a file held is not listed: its tree is kept here as it is, a few words for any size, and
//! freed in steps ([`DeferredFrees::free_trees`]), between which others have their turn. A crash in
//! between leaks what is left, and the reclaimer finds it. A tree is walked twice:
//! - *release* clears the bits of its pages in the maps. A bit that is clear already is damage: two
//!   pointers lead to that page, or somebody else has it. Then nothing of the tree is handed out,
//!   and no page of it can have been reused, by which more damage would be done.
//! - *hand out* gives the pages to callers, children before their node.

use crate::commit::txn::Commit;
use crate::commit::withdrawn::{Withdrawn, WithdrawnTree};
use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::layout::LINES_PER_PAGE;
use crate::tree::{Step, Walk};
use crate::volume::Volume;
use pmem::Domain;
use schedule::point;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Error, Result};

/// Work of one step through trees, in pointers: a few milliseconds at most.
const STEP: u64 = 1 << 18;
/// The same on a disk: 80 nodes, each of which may have to be read.
const STEP_ON_DISK: u64 = 40_000;
/// Work that freeing a run of pages is, in pointers.
const RUN_WORK: u64 = 32;

/// Work of one step.
#[cfg(not(test))]
fn step() -> u64 {
    STEP
}

#[cfg(test)]
std::thread_local! {
    /// Work of one step, for tests of what lies between two.
    static STEP_OF_TEST: std::cell::Cell<u64> = const { std::cell::Cell::new(STEP) };
}

#[cfg(test)]
fn step() -> u64 {
    STEP_OF_TEST.get()
}

/// A tree that is being freed.
struct Tree {
    top: u64,
    height: u64,
    walk: Walk,
    released: bool,
    /// Lines that it has, as far as known, less those handed out.
    lines: u64,
}

impl From<WithdrawnTree> for Tree {
    fn from(tree: WithdrawnTree) -> Tree {
        let WithdrawnTree { top, height, lines } = tree;
        Tree {
            top,
            height,
            walk: Walk::new(top, height),
            released: false,
            lines,
        }
    }
}

impl Withdrawn {
    /// Free all but the trees: first in the bitmaps (a crash before that is durable leaks it), then
    /// for callers.
    fn free(&self, volume: &Volume, flushes: &mut Flushes) {
        let alloc = &volume.alloc;
        // What was free already may be somebody else's by the time it is handed out again.
        let mut were_used = true;
        let mut check = |was_used: bool| {
            were_used &= was_used;
            was_used
        };
        for &line in &self.lines {
            if check(alloc.release_lines(line, 1, flushes)) {
                alloc.free_line(line);
            }
        }
        for &pair in &self.pairs {
            if check(alloc.release_lines(pair, 2, flushes)) {
                alloc.free_pair(pair);
            }
        }
        for run in &self.pages {
            if check(alloc.release_pages(run.clone(), flushes)) {
                alloc.free_pages(run.clone());
            }
        }
        if !were_used {
            log::error!(
                "what was removed was free already: the image is damaged, run `tureen fsck`"
            );
            volume.lost_space.store(true, Relaxed);
        }
    }
}

impl Tree {
    /// Go on with it; true: it is free.
    fn free(&mut self, volume: &Volume, work: &mut u64, flushes: &mut Flushes) -> Result<bool> {
        let (image, alloc) = (volume.image(), &volume.alloc);
        loop {
            match self.walk.next(&image, work)? {
                Step::Pause => return Ok(false),
                Step::End if self.released => return Ok(true),
                Step::End => {
                    point("free: released and not handed out");
                    self.released = true;
                    self.walk = Walk::new(self.top, self.height);
                }
                Step::Pages(run) if self.released => {
                    let lines = (run.end - run.start) * LINES_PER_PAGE;
                    self.lines = self.lines.saturating_sub(lines);
                    alloc.free_pages(run);
                    *work = work.saturating_sub(RUN_WORK);
                }
                Step::Pages(run) => {
                    let what = "a removed index leads to a page that is free already";
                    if !alloc.release_pages(run.clone(), flushes) {
                        return Err(Error::corrupt(run.start * crate::layout::PAGE, what));
                    }
                    *work = work.saturating_sub(RUN_WORK);
                }
            }
        }
    }
}

/// All that was withdrawn and waits, oldest first.
#[derive(Default)]
pub struct DeferredFrees {
    waiting: VecDeque<(Commit, Withdrawn)>,
    /// Pages in it, but for those of trees.
    pages: u64,
    /// Trees whose commit is checkpointed.
    trees: VecDeque<Tree>,
    /// Lines that were ever deferred, as far as known, and of these those that are free by now.
    deferred_lines: u64,
    freed: u64,
}

impl DeferredFrees {
    /// What a commit withdrew.
    pub fn defer(&mut self, commit: Commit, withdrawn: Withdrawn) {
        self.deferred_lines += withdrawn.count();
        self.pages += withdrawn.page_count();
        if !withdrawn.is_empty() {
            self.waiting.push_back((commit, withdrawn));
        }
    }

    /// Whether anything waits for a commit to be checkpointed.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Pages that wait for a commit to be checkpointed, but for those of trees.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether there are trees that may be freed.
    pub fn has_trees(&self) -> bool {
        !self.trees.is_empty()
    }

    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.trees.is_empty()
    }

    /// Lines that were ever deferred, as far as known.
    pub fn deferred_lines(&self) -> u64 {
        self.deferred_lines
    }

    /// Lines in all that waits, as far as known.
    pub fn lines(&self) -> u64 {
        self.deferred_lines - self.freed
    }

    /// Free what was withdrawn up to `checkpointed`. Trees are freed from then on. Whether anything
    /// was flushed.
    pub fn free(&mut self, volume: &Volume, checkpointed: u64) -> bool {
        let mut flushes = Flushes::default();
        while self.waiting.front().is_some_and(|(commit, _)| {
            !commit.needs_replay(checkpointed) || injected(Fault::EarlyReuse)
        }) {
            if let Some((_, withdrawn)) = self.waiting.pop_front() {
                withdrawn.free(volume, &mut flushes);
                self.pages -= withdrawn.page_count();
                let trees: u64 = withdrawn.trees.iter().map(|tree| tree.lines).sum();
                self.freed += withdrawn.count() - trees;
                self.trees
                    .extend(withdrawn.trees.into_iter().map(Tree::from));
            }
        }
        flushes.run(&volume.pool)
    }

    /// A step of freeing trees. Whether anything was flushed.
    pub fn free_trees(&mut self, volume: &Volume) -> bool {
        let (mut flushes, mut work) = (Flushes::default(), step());
        if volume.pool.domain() == Domain::Page {
            work = work.min(STEP_ON_DISK);
        }
        while work > 0
            && let Some(tree) = self.trees.front_mut()
        {
            let before = tree.lines;
            let done = tree.free(volume, &mut work, &mut flushes);
            let left = if let Ok(false) = done { tree.lines } else { 0 };
            self.freed += before - left;
            if let Err(e) = &done {
                log::error!(
                    "what a removed inode held stays in use, as it is damaged: {e}; run \
                     `tureen fsck`"
                );
                volume.lost_space.store(true, Relaxed);
            }
            if !matches!(done, Ok(false)) {
                self.trees.pop_front();
            }
        }
        flushes.run(&volume.pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Node;
    use crate::layout::{index, inode as layout, line_at, page_at};
    use crate::mount::SoupFs;
    use crate::testing::{ends_clean, mount, mounted, new};
    use pmem::{Domain, Options, Pool};
    use std::sync::Arc;
    use vfs::{FileSystem, Fsync, NewKind};

    const PIECE: usize = 64 << 10;

    /// A file whose pages lie in runs, with those of another file between them.
    fn scattered(fs: &SoupFs) -> Result<Node> {
        let root = fs.root();
        let file = fs.create(&root, b"file", &new(NewKind::File))?;
        let other = fs.create(&root, b"between", &new(NewKind::File))?;
        for _ in 0..80 {
            fs.append(&file, &[1; PIECE])?;
            fs.append(&other, &[2; 4096])?;
        }
        fs.syncfs()?;
        Ok(file)
    }

    /// What a crash leaves now: sound, and all that was lost track of is found.
    fn after_a_crash(pool: &Pool) {
        let options = Options {
            domain: Some(Domain::Cache),
            ..Options::default()
        };
        let pool = Arc::new(Pool::from_bytes(&pool.snapshot(), &options).expect("memory"));
        let fs = mount(&pool);
        let shared = &fs.shared;
        shared.reclaimer.begin(&shared.volume);
        shared.reclaimer.run(&shared.volume, &shared.persister);
        assert_ne!(shared.reclaimer.reclaimed(), None, "met damage");
        ends_clean(&pool, fs);
    }

    /// The contents of a removed file are freed in steps. Between two others allocate and persist,
    /// what will be free is counted, and a crash leaves a sound image.
    #[test]
    fn a_removed_file_is_freed_in_steps() -> Result<()> {
        STEP_OF_TEST.set(40);
        let (pool, fs) = mounted();
        let root = fs.root();
        drop(scattered(&fs)?);
        let volume = &fs.shared.volume;
        let free = volume.alloc.free_lines();
        let blocks = fs.attr(&fs.lookup(&root, b"file")?).blocks / 8;
        fs.unlink(&root, b"file", &|_| Ok(()))?;
        let promised = fs.statfs().free;
        let mut steps = 0;
        while volume.alloc.free_lines() < free + (blocks - 8) * LINES_PER_PAGE {
            fs.syncfs()?;
            let name = format!("new{steps}");
            let file = fs.create(&root, name.as_bytes(), &new(NewKind::File))?;
            fs.append(&file, &[3; 4096])?;
            fs.fsync(&file, Fsync::All)?;
            drop(file);
            fs.unlink(&root, name.as_bytes(), &|_| Ok(()))?;
            assert!(
                fs.statfs().free.abs_diff(promised) < 40,
                "after {steps} steps"
            );
            if steps % 4 == 0 {
                after_a_crash(&pool);
            }
            steps += 1;
            assert!(steps < 1000);
        }
        assert!(steps > 8, "{steps} steps");
        STEP_OF_TEST.set(STEP);
        drop(root);
        ends_clean(&pool, fs);
        Ok(())
    }

    /// A file that is freed while the image is unmounted is free in the image.
    #[test]
    fn unmounting_frees_all_that_was_removed() -> Result<()> {
        STEP_OF_TEST.set(40);
        let (pool, fs) = mounted();
        drop(scattered(&fs)?);
        fs.unlink(&fs.root(), b"file", &|_| Ok(()))?;
        ends_clean(&pool, fs);
        STEP_OF_TEST.set(STEP);
        Ok(())
    }

    /// A call that finds no space waits for a file that is freed in many steps, of which the first
    /// ones hand out nothing.
    #[test]
    fn space_that_takes_many_steps_to_free_is_waited_for() -> Result<()> {
        STEP_OF_TEST.set(3);
        let (pool, fs) = mounted();
        let root = fs.root();
        drop(scattered(&fs)?);
        let full = fs.create(&root, b"full", &new(NewKind::File))?;
        while fs.append(&full, &[4; PIECE]).is_ok() {}
        fs.unlink(&root, b"file", &|_| Ok(()))?;
        let (_, n) = fs.append(&full, &[5; PIECE])?;
        assert!(n > 0);
        STEP_OF_TEST.set(STEP);
        drop((root, full));
        ends_clean(&pool, fs);
        Ok(())
    }

    /// Damage: two pointers lead to one page. No page of that file is handed out: which could be
    /// somebody else's by the time the second pointer is met.
    #[test]
    fn a_page_with_two_pointers_is_not_handed_out_twice() -> Result<()> {
        STEP_OF_TEST.set(40);
        let (_pool, fs) = mounted();
        let file = scattered(&fs)?;
        let volume = &fs.shared.volume;
        let root = volume.pool.load(line_at(file.inode().ino) + layout::ROOT);
        let top = volume.image().root(0, root)?.expect("it has contents").top;
        let last = volume.pool.load(page_at(top.page) + 2 * 8) >> index::SHIFT;
        let first = volume.pool.load(page_at(top.page)) >> index::SHIFT;
        let pointer = volume.pool.load(page_at(first));
        volume.pool.store(page_at(last) + 200 * 8, pointer);
        drop(file);
        fs.unlink(&fs.root(), b"file", &|_| Ok(()))?;
        let free = volume.alloc.free_lines();
        for _ in 0..100 {
            fs.syncfs()?;
        }
        assert!(volume.lost_space.load(Relaxed));
        let more = volume.alloc.free_lines() - free;
        assert!(more < 10 * LINES_PER_PAGE, "{more} lines were handed out");
        STEP_OF_TEST.set(STEP);
        Ok(())
    }
}

//! Finding what a crash lost track of, while the file system is in use (SoupFS §3.9, online).
//!
//! A crash leaks: bits are set in the maps for what no name leads to. The reclaimer walks the
//! consistent view from the root, a little at a time, under the persister's lock, so that the view
//! holds still; it marks all it reaches. When nothing is left to look at it goes through the maps,
//! a little at a time as well ([`crate::alloc::Leaks`]): what is set there and not marked is free.
//!
//! Between two steps batches change the view. Why the walk finds all the same:
//! - what a batch puts to use it claims in the maps, and claiming marks;
//! - an inode that a batch names may have been moved to where the walk has been: it is queued,
//!   unless it is new, and so all that it holds was claimed;
//! - entries move within a directory only when a bucket splits, to a bucket of a higher number, and
//!   buckets are visited in ascending order;
//! - a block stays at its place in its file until it is freed, and blocks are visited in ascending
//!   order, each step descending from the root as it is then;
//! - inodes without names, which only handles keep, are walked like others once nothing else is
//!   left; what a batch leaves without a name later had one before, and so was walked.

use crate::alloc::Leaks;
use crate::attributes::Attributes;
use crate::commit::persister::Persister;
use crate::dir::CHAIN_MAX;
use crate::image::Image;
use crate::layout::{
    LINES_PER_PAGE, WORDS_PER_PAGE, bucket, index, inode as layout, line_at, page_at,
};
use crate::medium::Medium;
use crate::tree;
use crate::volume::Volume;
use schedule::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use vfs::{Error, Kind, Result};

/// Entries, inodes, pointers and bits looked at in one step: a few milliseconds.
const STEP: u64 = 16384;
/// The same while callers are slowed down by a large backlog. Then there is a step after each
/// batch, of some thousand operations, which are several times as much work.
const STEP_BEHIND: u64 = 4096;
/// Pause between steps, so that batches get their turn.
const PAUSE: Duration = Duration::from_micros(100);

/// The search for leaks of one mount.
pub struct Reclaimer {
    reclaimed: Mutex<Option<u64>>,
    stop: AtomicBool,
}

/// Where the walk is within an inode.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    ino: u64,
    generation: u32,
    /// Next bucket or block.
    next: u64,
    /// It has no name.
    orphan: bool,
}

/// The walk through the consistent view.
#[derive(Default)]
struct Walk {
    at: Option<Cursor>,
    /// Inodes without names that are to be walked.
    orphans: VecDeque<Cursor>,
    /// Number and generation of those that are, or were.
    known: HashSet<(u64, u32)>,
}

impl Reclaimer {
    /// `clean`: there is nothing to search for.
    pub fn new(clean: bool) -> Reclaimer {
        Reclaimer {
            reclaimed: Mutex::new(clean.then_some(0)),
            stop: AtomicBool::new(false),
        }
    }

    /// Lines that were found and freed; `None` until the search has ended.
    pub fn reclaimed(&self) -> Option<u64> {
        *self.reclaimed.lock()
    }

    /// Let the search end early; the next mount starts it anew.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Note from now on what is put to use. Nobody has changed anything since the mount: of an
    /// inode whose pages were claimed before, and its lines behind, the walk would believe that it
    /// has been there.
    pub fn begin(&self, volume: &Volume) {
        if self.reclaimed().is_none() {
            volume.alloc.start_marking();
            volume.alloc.with_marks(|m| m.inode(volume.superblock.root));
        }
    }

    /// Search, free, and correct the counters, after [`Reclaimer::begin`].
    pub fn run(&self, volume: &Volume, persister: &Persister) {
        if self.reclaimed().is_some() {
            return;
        }
        match self.search(volume, persister) {
            Ok(None) => {}
            Ok(Some(leaks)) => {
                volume.alloc.set_free_at_mount(&leaks);
                log::info!(
                    "reclaimed {} KiB that a crash lost track of, from {} regions",
                    leaks.lines * 64 / 1024,
                    leaks.regions
                );
                *self.reclaimed.lock() = Some(leaks.lines);
            }
            Err(e) => log::error!("the search for lost space met damage: {e}; run `tureen fsck`"),
        }
        volume.alloc.end_marking();
    }

    fn search(&self, volume: &Volume, persister: &Persister) -> Result<Option<Leaks>> {
        check_named(volume, volume.superblock.root, Kind::Dir)?;
        let budget = || match persister.is_behind() {
            true => STEP_BEHIND,
            false => STEP,
        };
        let mut walk = Walk::default();
        let mut all_marked = false;
        while !all_marked {
            if self.stop.load(Relaxed) {
                return Ok(None);
            }
            if persister.undisturbed(|| walk.advance(volume, budget()))? {
                let marked = persister.with_nothing_deferred(volume, |orphans| {
                    // A batch may have come between, and moved something to where the walk has
                    // been.
                    walk.add_orphans(volume, orphans)?;
                    walk.advance(volume, budget())
                })?;
                all_marked = marked == Some(true);
            }
            std::thread::sleep(PAUSE);
        }
        let mut leaks = Leaks::default();
        while !persister.between_batches(volume, || leaks.step(&volume.alloc, budget()))? {
            if self.stop.load(Relaxed) {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Some(leaks))
    }
}

impl Walk {
    /// Inodes without names, which nothing leads to, are in use, too.
    fn add_orphans(&mut self, medium: &Medium, orphans: &[u64]) -> Result<()> {
        for &ino in orphans {
            let generation = medium.image().inode(ino)?.generation;
            if self.known.insert((ino, generation)) {
                medium.alloc.with_marks(|m| m.lines(ino, layout::LINES));
                self.orphans.push_back(Cursor {
                    ino,
                    generation,
                    next: 0,
                    orphan: true,
                });
            }
        }
        Ok(())
    }

    /// Go on until the budget is used up; whether there is nothing left to look at.
    fn advance(&mut self, medium: &Medium, mut budget: u64) -> Result<bool> {
        while budget > 0 {
            let next = || next(medium).or_else(|| self.orphans.pop_front());
            let Some(at) = self.at.take().or_else(next) else {
                return Ok(true);
            };
            self.at = step(medium, at, &mut budget)?;
        }
        Ok(false)
    }
}

/// Begin with the next inode that is queued. One that was freed since then is passed over.
fn next(medium: &Medium) -> Option<Cursor> {
    loop {
        let ino = medium.alloc.with_marks(|m| m.queue.pop_front()).flatten()?;
        if let Ok(inode) = medium.image().inode(ino) {
            return Some(Cursor {
                ino,
                generation: inode.generation,
                next: 0,
                orphan: false,
            });
        }
    }
}

/// Look at a part of an inode; `None`: that was all.
fn step(medium: &Medium, at: Cursor, budget: &mut u64) -> Result<Option<Cursor>> {
    let image = medium.image();
    *budget = budget.saturating_sub(1);
    let Ok(inode) = image.inode(at.ino) else {
        return Ok(None);
    };
    if inode.generation != at.generation || !is_claimed(medium, at.ino) {
        return Ok(None); // freed meanwhile
    }
    if inode.kind == Kind::Dir && inode.nlink == 0 && !at.orphan {
        return Ok(None); // removed: what were its entries may be anything now
    }
    if at.next == 0 {
        *budget = budget.saturating_sub(mark_xattrs(medium, &inode)?);
    }
    let Some(root) = (match inode.kind {
        Kind::File | Kind::Dir | Kind::Symlink => image.root(at.ino, inode.root)?,
        _ => None,
    }) else {
        return Ok(None);
    };
    let has_names = inode.kind == Kind::Dir && !at.orphan;
    let end = index::span(root.height);
    let mut block = at.next;
    while block < end && *budget > 0 {
        let (pages, run) = path(&image, inode.root, block)?;
        medium
            .alloc
            .with_marks(|m| pages.iter().for_each(|&page| m.pages(page..page + 1)));
        let (pointer, run) = tree::run(&medium, inode.root, block, run)?;
        // What has no leaf is passed over at once; of a table, a page has some hundred entries.
        let run = match pointer {
            Some(_) if has_names => 1,
            _ => run,
        };
        *budget = budget.saturating_sub(pointer.map_or(1, |_| run));
        if let Some(pointer) = pointer {
            medium
                .alloc
                .with_marks(|m| m.pages(pointer.page..pointer.page + run));
            if has_names {
                table_page(medium, pointer.page, budget)?;
            }
        }
        block += run;
    }
    Ok((block < end).then_some(Cursor { next: block, ..at }))
}

/// The extended attributes of an inode are in use; returns how many pages they are in.
fn mark_xattrs(medium: &Medium, inode: &Attributes) -> Result<u64> {
    if inode.xattr == 0 {
        return Ok(0);
    }
    let pages = medium.image().xattr_pages(inode.ino, inode.xattr)?;
    medium.alloc.with_marks(|m| {
        for &(page, _) in &pages {
            m.pages(page..page + 1);
        }
    });
    Ok(pages.len() as u64)
}

/// A name leads to this inode: it counts it, is of its kind, and is in use by the maps.
fn check_named(medium: &Medium, ino: u64, kind: Kind) -> Result<()> {
    let inode = medium.image().inode(ino)?;
    if inode.nlink == 0 || inode.kind != kind || !is_claimed(medium, ino) {
        let what = "a name leads to an inode that is none of its";
        return Err(Error::corrupt(line_at(ino), what));
    }
    Ok(())
}

fn is_claimed(medium: &Medium, line: u64) -> bool {
    let word = medium
        .pool
        .load(medium.geometry().line_word(line / LINES_PER_PAGE));
    word >> (line % LINES_PER_PAGE) & 1 == 1
}

/// The index nodes above a block, and how many blocks there are to the end of its leaf.
fn path(image: &Image<'_>, root: u64, block: u64) -> Result<(Vec<u64>, u64)> {
    let mut pages = Vec::new();
    let Some(root) = image.root(0, root)? else {
        return Ok((pages, 1));
    };
    let (mut page, mut height) = (root.top.page, root.height);
    while height > 0 {
        pages.push(page);
        let span = index::span(height - 1);
        let at = page_at(page) + block / span % index::FANOUT * 8;
        match image.pointer(at, image.pool.load(at), height == 1)? {
            Some(next) if height > 1 => page = next.page,
            _ if height > 1 => return Ok((pages, span - block % span)),
            _ => {}
        }
        height -= 1;
    }
    Ok((pages, index::FANOUT - block % index::FANOUT))
}

/// All entries of a page of buckets.
fn table_page(medium: &Medium, page: u64, budget: &mut u64) -> Result<()> {
    let image = medium.image();
    for i in 0..WORDS_PER_PAGE {
        let at = page_at(page) + i * 8;
        let mut next = match medium.pool.load(at) {
            0 | bucket::EMPTY => continue,
            word => image.bucket(at, word)?,
        };
        let mut steps = 0;
        while let Some(line) = next {
            let entry = image.dentry(line)?;
            let more = image.name_lines(&entry)?;
            // Later the walk passes over what is not so, as removed meanwhile: what a name leads to
            // is not.
            check_named(medium, entry.ino, entry.kind)?;
            medium.alloc.with_marks(|m| {
                m.lines(line, 1);
                more.into_iter().for_each(|line| m.lines(line, 1));
                m.inode(entry.ino);
            });
            *budget = budget.saturating_sub(1);
            steps += 1;
            if steps > CHAIN_MAX {
                return Err(Error::corrupt(line_at(line), "directory chain without end"));
            }
            next = image.next(line)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Node;
    use crate::layout::{PAGE, REGION_PAGES};
    use crate::mount::SoupFs;
    use crate::testing::{crash, ends_clean, mounted, new};
    use pmem::Pool;
    use std::sync::Arc;
    use vfs::{FileSystem, Fsync, NewKind, SetAttr, XattrMode};

    /// What a crash left of a file system with this in it, mounted again; nobody searches yet.
    fn after_a_crash(
        prepare: impl Fn(&SoupFs, &Node) -> Result<()>,
    ) -> Result<(Arc<Pool>, SoupFs)> {
        let (pool, fs) = mounted();
        prepare(&fs, &fs.root())?;
        fs.syncfs()?;
        let (pool, fs) = crash(&pool, fs);
        fs.shared.reclaimer.begin(&fs.shared.volume);
        Ok((pool, fs))
    }

    /// Put all free space to use, so that whoever follows a pointer to it meets what is none.
    fn reuse_everything(fs: &SoupFs) -> Result<()> {
        fs.syncfs()?;
        let junk = fs.create(&fs.root(), b"junk", &new(NewKind::File))?;
        while fs.append(&junk, &[0xff; 1 << 16]).is_ok() {}
        fs.syncfs()
    }

    fn search(fs: &SoupFs) {
        let shared = &fs.shared;
        shared.reclaimer.run(&shared.volume, &shared.persister);
        assert_ne!(shared.reclaimer.reclaimed(), None, "met damage");
    }

    fn filled(fs: &SoupFs, root: &Node) -> Result<()> {
        let file = fs.create(root, b"file", &new(NewKind::File))?;
        fs.setxattr(
            &file,
            b"user.a",
            &[1; 9000],
            XattrMode::Any,
            &SetAttr::default(),
        )?;
        fs.write(&file, 0, &[2; 3 << 20]).map(drop)
    }

    /// The batch that takes the last name of an open file also changes what it holds.
    #[test]
    fn a_file_that_changed_when_it_was_removed_keeps_what_it_holds() -> Result<()> {
        let (pool, fs) = after_a_crash(filled)?;
        let root = fs.root();
        let file = fs.lookup(&root, b"file")?;
        let cut = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(&file, &cut)?;
        fs.write(&file, 0, &[3; 5000])?;
        fs.setxattr(
            &file,
            b"user.a",
            &[4; 5000],
            XattrMode::Any,
            &SetAttr::default(),
        )?;
        fs.unlink(&root, b"file", &|_| Ok(()))?;
        reuse_everything(&fs)?;
        search(&fs);
        let other = fs.create(&root, b"other", &new(NewKind::File))?;
        let _ = fs.append(&other, &[0xff; 1 << 16]); // there may be no space left, and need not be
        let mut bytes = vec![0; 5001];
        assert_eq!(fs.read(&file, 0, &mut bytes)?, 5000);
        assert_eq!(bytes[..5000], [3; 5000]);
        assert_eq!(fs.getxattr(&file, b"user.a")?, [4; 5000]);
        fs.fsync(&file, Fsync::All)?;
        drop((root, file, other));
        ends_clean(&pool, fs);
        Ok(())
    }

    /// The walk comes to a directory that was removed meanwhile, and its entries are something else
    /// now.
    #[test]
    fn a_removed_directory_that_is_open_leads_nowhere() -> Result<()> {
        let names: Vec<_> = (0..200).map(|i| format!("name{i}")).collect();
        let (pool, fs) = after_a_crash(|fs, root| {
            let dir = fs.create(root, b"dir", &new(NewKind::Dir))?;
            names.iter().try_for_each(|name| {
                fs.create(&dir, name.as_bytes(), &new(NewKind::File))
                    .map(drop)
            })
        })?;
        let (volume, root) = (&fs.shared.volume, fs.root());
        let dir = fs.lookup(&root, b"dir")?;
        let mut walk = Walk::default();
        let mut goes_on = || !walk.advance(volume, 2).expect("whole") && walk.at.is_some();
        while goes_on() {} // through the root
        for name in &names {
            fs.unlink(&dir, name.as_bytes(), &|_| Ok(()))?;
        }
        fs.rmdir(&root, b"dir", &|_| Ok(()))?;
        reuse_everything(&fs)?;
        search(&fs);
        drop((root, dir));
        ends_clean(&pool, fs);
        Ok(())
    }

    /// What the walk would pass over as removed meanwhile is damage if a name leads there: nothing
    /// below it is freed.
    #[test]
    fn what_a_name_leads_to_is_not_taken_for_removed() -> Result<()> {
        let damages: [fn(&Volume, u64); 3] = [
            |v, ino| {
                v.pool
                    .store(line_at(ino), v.pool.load(line_at(ino)) & 0xffff_ffff)
            },
            |v, ino| {
                v.pool
                    .store(line_at(ino), v.pool.load(line_at(ino)) ^ 0o020_000)
            },
            |v, ino| {
                let word = v.geometry().line_word(ino / LINES_PER_PAGE);
                v.pool.fetch_and(word, !(1 << (ino % LINES_PER_PAGE)));
            },
        ];
        for damage in damages {
            for of_root in [false, true] {
                let (_pool, fs) = after_a_crash(|fs, root| {
                    let dir = fs.create(root, b"dir", &new(NewKind::Dir))?;
                    filled(fs, &dir)
                })?;
                let (shared, root) = (&fs.shared, fs.root().inode().ino);
                let volume = &shared.volume;
                let dir = fs.lookup(&fs.root(), b"dir")?.inode().ino;
                let before = volume.alloc.free_lines();
                damage(volume, if of_root { root } else { dir });
                shared.reclaimer.run(volume, &shared.persister);
                assert_eq!(shared.reclaimer.reclaimed(), None);
                assert_eq!(volume.alloc.free_lines(), before);
            }
        }
        Ok(())
    }

    /// A caller that changes something at each step, by chance.
    struct Caller {
        seed: u64,
        /// Files that were removed, and the byte that fills each.
        open: Vec<(Node, u8)>,
        /// Names, and the byte that fills the file.
        files: Vec<(String, u8)>,
        made: u32,
    }

    impl Caller {
        fn random(&mut self, below: usize) -> usize {
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            (self.seed % below as u64) as usize
        }

        fn change(&mut self, fs: &SoupFs) -> Result<()> {
            let root = fs.root();
            let which = self.random(self.files.len() + 1);
            match (self.random(6), self.files.get(which).cloned()) {
                (0, Some((name, fill))) => {
                    self.files.remove(which);
                    let file = fs.lookup(&root, name.as_bytes())?;
                    fs.unlink(&root, name.as_bytes(), &|_| Ok(()))?;
                    if self.random(2) == 0 {
                        self.open.push((file, fill));
                    }
                }
                (1, Some((name, fill))) | (5, Some((name, fill))) if self.files.len() > 30 => {
                    let file = fs.lookup(&root, name.as_bytes())?;
                    let size = Some(0);
                    fs.setattr(
                        &file,
                        &SetAttr {
                            size,
                            ..SetAttr::default()
                        },
                    )?;
                    fs.append(&file, &vec![fill; 1 + self.random(20_000)])?;
                }
                (2, _) => {
                    let keep = 1 + self.random(4);
                    self.open.truncate(keep);
                }
                (3, _) => fs.syncfs()?,
                (4, Some((name, _))) => {
                    let file = fs.lookup(&root, name.as_bytes())?;
                    fs.fsync(&file, Fsync::All)?;
                }
                _ => {
                    self.made += 1;
                    let (name, fill) = (format!("n{}", self.made), self.made as u8);
                    let file = fs.create(&root, name.as_bytes(), &new(NewKind::File))?;
                    fs.append(&file, &vec![fill; 1 + self.random(20_000)])?;
                    self.files.push((name, fill));
                }
            }
            Ok(())
        }
    }

    /// Callers and batches go on between any two steps of the walk and of what follows it: nothing
    /// that they use is freed, all that was leaked is, and free space is counted exactly.
    #[test]
    fn leaks_are_freed_in_steps_between_which_everything_changes() -> Result<()> {
        for seed in 1..=40 {
            freed_in_steps(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        Ok(())
    }

    fn freed_in_steps(seed: u64) -> Result<()> {
        let open = std::cell::RefCell::new(Vec::new());
        let (pool, fs) = after_a_crash(|fs, root| {
            for i in 0..30 {
                let name = format!("o{i}");
                let file = fs.create(root, name.as_bytes(), &new(NewKind::File))?;
                fs.append(&file, &vec![1; 300 * i])?;
                open.borrow_mut().push(file);
            }
            fs.syncfs()?;
            (0..30)
                .step_by(2)
                .try_for_each(|i| fs.unlink(root, format!("o{i}").as_bytes(), &|_| Ok(())))
        })?;
        let shared = &fs.shared;
        let (volume, persister) = (&shared.volume, &shared.persister);
        let mut caller = Caller {
            seed: seed * 0x9e37_79b9,
            open: Vec::new(),
            files: (1..30).step_by(2).map(|i| (format!("o{i}"), 1)).collect(),
            made: 0,
        };
        // The walk finds no name of this one.
        let nameless = fs.lookup(&fs.root(), b"o29")?;
        fs.unlink(&fs.root(), b"o29", &|_| Ok(()))?;
        fs.fsync(&nameless, Fsync::All)?;
        caller.files.pop();
        caller.open.push((nameless, 1));
        fs.syncfs()?;
        let (mut walk, mut marked) = (Walk::default(), false);
        while !marked {
            caller.change(&fs)?;
            if persister.undisturbed(|| walk.advance(volume, 50))? {
                let all = persister.with_nothing_deferred(volume, |orphans| {
                    walk.add_orphans(volume, orphans)?;
                    walk.advance(volume, 50)
                })?;
                marked = all == Some(true);
            }
        }
        let mut leaks = Leaks::default();
        loop {
            let (before, budget) = (leaks.work, 1 + caller.random(400) as u64);
            let done = persister.between_batches(volume, || leaks.step(&volume.alloc, budget))?;
            // At the most the last page has 64 lines to free, or a region is begun.
            let most = budget + REGION_PAGES / 64 + LINES_PER_PAGE + 2;
            assert!(leaks.work - before <= most, "seed {seed}");
            if done {
                break;
            }
            caller.change(&fs)?;
        }
        volume.alloc.set_free_at_mount(&leaks);
        volume.alloc.end_marking();
        *shared.reclaimer.reclaimed.lock() = Some(leaks.lines);
        assert!(leaks.lines > 0, "seed {seed}");
        reuse_everything(&fs)?;
        let named = caller.files.iter().map(|(name, fill)| {
            let file = fs.lookup(&fs.root(), name.as_bytes()).expect("there");
            (file, *fill)
        });
        for (file, fill) in named.chain(caller.open) {
            let mut bytes = vec![0; fs.attr(&file).size as usize];
            fs.read(&file, 0, &mut bytes)?;
            assert!(
                bytes.iter().all(|&byte| byte == fill),
                "seed {seed}: {fill}"
            );
        }
        fs.syncfs()?;
        fs.syncfs()?;
        let free = fs.status().bytes_free;
        fs.unmount()?;
        drop(fs);
        let fs = crate::testing::mount(&pool);
        let again = fs.status().bytes_free;
        // Pages that were set aside for the table of the root have gone back.
        assert!(
            (free..=free + 2 * PAGE).contains(&again),
            "seed {seed}: {free}, {again}"
        );
        ends_clean(&pool, fs);
        Ok(())
    }
}

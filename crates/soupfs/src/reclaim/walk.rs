//! The walk through the consistent view: everything that is reachable is marked.

use crate::alloc::Allowance;
use crate::attributes::Attributes;
use crate::dir::CHAIN_MAX;
use crate::fault::{Fault, injected};
use crate::image::Image;
use crate::layout::{
    LINES_PER_PAGE, WORDS_PER_PAGE, bucket, index, inode as layout, line_at, page_at,
};
use crate::medium::Medium;
use crate::tree;
use schedule::point;
use std::collections::{HashSet, VecDeque};
use vfs::{Error, Kind, Result};

/// Where the walk is within an inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    ino: u64,
    generation: u32,
    /// The next block.
    next: u64,
    /// In a directory, the next bucket of that block.
    bucket: u64,
    /// It has no name.
    orphan: bool,
}

/// The walk through the consistent view.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) at: Option<Cursor>,
    /// Inodes without names that are to be walked.
    orphans: VecDeque<Cursor>,
    /// Number and generation of those that are, or were.
    known: HashSet<(u64, u32)>,
}

impl Walk {
    /// Inodes without names, which nothing leads to, are in use, too.
    pub(super) fn add_orphans(&mut self, medium: &Medium, orphans: &[u64]) -> Result<()> {
        for &ino in orphans {
            let generation = medium.image().inode(ino)?.generation;
            if self.known.insert((ino, generation)) {
                medium.alloc.with_marks(|m| m.lines(ino, layout::LINES));
                self.orphans.push_back(Cursor {
                    ino,
                    generation,
                    next: 0,
                    bucket: 0,
                    orphan: true,
                });
            }
        }
        Ok(())
    }

    /// Go on until the allowance is spent; whether there is nothing left to look at.
    pub(super) fn advance(
        &mut self,
        medium: &Medium,
        allowance: &mut Allowance<'_>,
    ) -> Result<bool> {
        while !allowance.is_spent() {
            let next = || next(medium).or_else(|| self.orphans.pop_front());
            let Some(at) = self.at.take().or_else(next) else {
                return Ok(true);
            };
            self.at = step(medium, at, allowance)?;
            point("search: looked at an inode");
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
                bucket: 0,
                orphan: false,
            });
        }
    }
}

/// Look at a part of an inode; `None`: that was all.
fn step(medium: &Medium, at: Cursor, allowance: &mut Allowance<'_>) -> Result<Option<Cursor>> {
    let image = medium.image();
    allowance.spend(1);
    let Ok(inode) = image.inode(at.ino) else {
        return Ok(None);
    };
    if inode.generation != at.generation || !is_claimed(medium, at.ino) {
        return Ok(None); // freed meanwhile
    }
    if inode.kind == Kind::Dir && inode.nlink == 0 && !at.orphan {
        return Ok(None); // removed: what were its entries may be anything now
    }
    if at.next == 0 && at.bucket == 0 {
        allowance.spend(mark_xattrs(medium, &inode)?);
    }
    let Some(root) = (match inode.kind {
        Kind::File | Kind::Dir | Kind::Symlink => image.root(at.ino, inode.root)?,
        _ => None,
    }) else {
        return Ok(None);
    };
    let has_names = inode.kind == Kind::Dir && !at.orphan;
    let end = index::span(root.height);
    let (mut block, mut bucket) = (at.next, at.bucket);
    while block < end {
        let (pages, run) = path(&image, inode.root, block)?;
        if !injected(Fault::IndexesUnmarked) {
            medium
                .alloc
                .with_marks(|m| pages.iter().for_each(|&page| m.pages(page..page + 1)));
        }
        let (pointer, run) = tree::run(&medium, inode.root, block, run)?;
        // What has no leaf is passed over at once; of a table, a page has some hundred entries.
        let run = match pointer {
            Some(_) if has_names => 1,
            _ => run,
        };
        allowance.spend(pointer.map_or(1, |_| run));
        bucket = match pointer {
            Some(pointer) => {
                medium
                    .alloc
                    .with_marks(|m| m.pages(pointer.page..pointer.page + run));
                match has_names {
                    true => table_page(medium, pointer.page, bucket, allowance)?,
                    false => 0,
                }
            }
            None => 0,
        };
        if bucket == 0 {
            block += run;
        }
        // Behind a block, or a bucket: whatever the allowance is, the walk goes on.
        if allowance.is_spent() {
            break;
        }
    }
    let next = Cursor {
        next: block,
        bucket,
        ..at
    };
    Ok((block < end).then_some(next))
}

/// The extended attributes of an inode are in use; returns how many pages they are in.
fn mark_xattrs(medium: &Medium, inode: &Attributes) -> Result<u64> {
    if inode.xattr == 0 || injected(Fault::XattrsUnmarked) {
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
pub(super) fn check_named(medium: &Medium, ino: u64, kind: Kind) -> Result<()> {
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

/// The entries of a page of buckets, from a bucket on, until the allowance is spent. Returns the
/// next bucket; 0 behind the last one.
fn table_page(
    medium: &Medium,
    page: u64,
    first: u64,
    allowance: &mut Allowance<'_>,
) -> Result<u64> {
    let image = medium.image();
    for i in first..WORDS_PER_PAGE {
        if i > first && allowance.is_spent() {
            return Ok(i);
        }
        let at = page_at(page) + i * 8;
        let mut next = match medium.pool.load(at) {
            0 | bucket::EMPTY => continue,
            word => image.bucket(at, word)?,
        };
        let mut steps = 0;
        while let Some(line) = next {
            let entry = image.dentry(line)?;
            let mut more = image.name_lines(&entry)?;
            if injected(Fault::LongNamesUnmarked) {
                more.clear();
            }
            // Later the walk passes over what is not so, as removed meanwhile: what a name leads to
            // is not.
            check_named(medium, entry.ino, entry.kind)?;
            medium.alloc.with_marks(|m| {
                m.lines(line, 1);
                more.into_iter().for_each(|line| m.lines(line, 1));
                m.inode(entry.ino);
            });
            allowance.spend(1);
            steps += 1;
            if steps > CHAIN_MAX {
                return Err(Error::corrupt(line_at(line), "directory chain without end"));
            }
            next = image.next(line)?;
        }
    }
    Ok(0)
}

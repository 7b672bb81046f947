//! What is there, and what of it goes into a dump.

use std::collections::BTreeMap;

use vfs::{Attr, FileSystem, Ino, Kind, Time};

use crate::record::ROOT;
use crate::{Error, Result};

/// An inode that has a name.
pub struct Seen {
    /// Whether it is a directory: those go first.
    pub is_dir: bool,
    /// Whether it goes into the dump.
    pub dumped: bool,
    /// The directory that names it, or one of them.
    pub parent: Ino,
}

/// All inodes that have names, by their numbers.
pub struct Tree {
    root: Ino,
    seen: BTreeMap<Ino, Seen>,
}

/// A directory on the way from the root to where the walk is.
struct Step {
    ino: Ino,
    /// Subdirectories that are still to be seen.
    left: Vec<Ino>,
}

impl Tree {
    /// Walks the whole tree. What changed at or after `since` is to be dumped, and so are the
    /// directories that lead there.
    ///
    /// # Errors
    /// A directory cannot be read, or a number is too large for the format.
    pub fn walk<F: FileSystem>(fs: &F, since: Option<u32>, progress: &dyn Fn(u64)) -> Result<Tree> {
        let root = fs.ino(&fs.root());
        let mut tree = Tree {
            root,
            seen: BTreeMap::new(),
        };
        tree.see(&fs.attr(&fs.root()), root, since)?;
        let mut path = vec![tree.enter(fs, root, since)?];
        while let Some(step) = path.last_mut() {
            match step.left.pop() {
                Some(dir) => {
                    let step = tree.enter(fs, dir, since)?;
                    path.push(step);
                    progress(tree.seen.len() as u64);
                }
                None => {
                    let done = path.pop().expect("there is one").ino;
                    if tree.seen[&done].dumped {
                        tree.include(path.last().map(|step| step.ino));
                    }
                }
            }
        }
        Ok(tree)
    }

    /// Sees what is in a directory.
    fn enter<F: FileSystem>(&mut self, fs: &F, dir: Ino, since: Option<u32>) -> Result<Step> {
        let (mut inos, mut left) = (Vec::new(), Vec::new());
        let fail = |error| Error::Unreadable { ino: dir, error };
        let node = fs.node(dir).map_err(fail)?;
        let mut all = |entry: vfs::DirEntry<'_>| {
            inos.push(entry.ino);
            true
        };
        fs.readdir(&node, 0, &mut all).map_err(fail)?;
        for ino in inos {
            if !self.seen.contains_key(&ino) {
                let fail = |error| Error::Unreadable { ino, error };
                let attr = fs.attr(&fs.node(ino).map_err(fail)?);
                self.see(&attr, dir, since)?;
                if attr.kind == Kind::Dir {
                    left.push(ino);
                }
            }
            let seen = &self.seen[&ino];
            if seen.dumped && !seen.is_dir {
                self.include(Some(dir));
            }
        }
        Ok(Step { ino: dir, left })
    }

    fn see(&mut self, attr: &Attr, parent: Ino, since: Option<u32>) -> Result<()> {
        if attr.ino > MAX {
            return Err(Error::Number(attr.ino));
        }
        let changed = |time: Time, since: u32| time.secs() >= i64::from(since);
        let seen = Seen {
            is_dir: attr.kind == Kind::Dir,
            dumped: since.is_none_or(|at| changed(attr.mtime, at) || changed(attr.ctime, at)),
            parent,
        };
        self.seen.insert(attr.ino, seen);
        Ok(())
    }

    fn include(&mut self, dir: Option<Ino>) {
        if let Some(dir) = dir {
            self.seen.get_mut(&dir).expect("it was entered").dumped = true;
        }
    }

    /// The number that the dump has for an inode: its own if the root has the one that dumps
    /// demand of it, as in ext2; else the others go behind that.
    pub fn number(&self, ino: Ino) -> u32 {
        match self.root == u64::from(ROOT) {
            true => ino as u32,
            false if ino == self.root => ROOT,
            false => ino as u32 + ROOT,
        }
    }

    /// The highest of these numbers.
    pub fn last(&self) -> u32 {
        let numbers = self.seen.keys().map(|&ino| self.number(ino));
        numbers.max().unwrap_or(ROOT)
    }

    /// A bit for each inode of which `what` holds, from inode 1 on.
    pub fn map(&self, what: impl Fn(&Seen) -> bool) -> Vec<u8> {
        let mut bits = vec![0; (self.last() as usize).div_ceil(8)];
        for (&ino, seen) in &self.seen {
            let bit = self.number(ino) as usize - 1;
            bits[bit / 8] |= u8::from(what(seen)) << (bit % 8);
        }
        bits
    }

    /// What goes into the dump, in the order of the dump's numbers: directories, or all else.
    pub fn dumped(&self, dirs: bool) -> Vec<(u32, Ino, &Seen)> {
        let seen = self.seen.iter();
        let seen = seen.filter(|(_, seen)| seen.dumped && seen.is_dir == dirs);
        let mut dumped: Vec<_> = seen
            .map(|(&ino, seen)| (self.number(ino), ino, seen))
            .collect();
        dumped.sort_unstable_by_key(|&(number, ..)| number);
        dumped
    }
}

/// The highest inode number that fits: readers count with signed numbers here and there.
const MAX: Ino = (i32::MAX as u32 - ROOT) as Ino;

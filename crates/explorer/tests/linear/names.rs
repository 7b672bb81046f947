//! One directory. A file is known by its permissions, which nothing changes.

use crate::{Subject, new};
use block::Random;
use model::linear::Sequential;
use soupfs::{Node, SoupFs};
use std::collections::BTreeMap;
use vfs::{Errno, FileSystem, NewKind, Place, RenameMode};

const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
/// Of the file that has another name elsewhere, and gets more.
const KEPT: u16 = 0o700;

/// An operation on names, by number.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Create(usize, u16),
    /// Another name of the file that is kept.
    Link(usize),
    Unlink(usize),
    Rename(usize, usize),
    Exchange(usize, usize),
    Look(usize),
    List,
    /// How many names the file has that is kept.
    Links,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Perm(u16),
    Names(Vec<usize>),
    Links(usize),
}

/// What each name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Names(BTreeMap<usize, u16>);

impl Names {
    fn links(&self) -> usize {
        1 + self.0.values().filter(|perm| **perm == KEPT).count()
    }

    fn make(&mut self, name: usize, perm: u16) -> Result<Answer, Errno> {
        if self.0.contains_key(&name) {
            return Err(Errno::EXIST);
        }
        self.0.insert(name, perm);
        Ok(Answer::Done)
    }

    fn find(&self, name: usize) -> Result<u16, Errno> {
        self.0.get(&name).copied().ok_or(Errno::NOENT)
    }
}

impl Sequential for Names {
    type Op = Op;
    type Answer = Result<Answer, Errno>;

    fn run(&mut self, op: &Op) -> Result<Answer, Errno> {
        match *op {
            Op::Create(name, perm) => return self.make(name, perm),
            Op::Link(name) => return self.make(name, KEPT),
            Op::Unlink(name) => {
                self.find(name)?;
                self.0.remove(&name);
            }
            Op::Rename(from, to) => {
                let perm = self.find(from)?;
                // Two names of one file both stay.
                if self.find(to) != Ok(perm) {
                    self.0.remove(&from);
                    self.0.insert(to, perm);
                }
            }
            Op::Exchange(from, to) => {
                let (one, other) = (self.find(from)?, self.find(to)?);
                self.0.insert(from, other);
                self.0.insert(to, one);
            }
            Op::Look(name) => return self.find(name).map(Answer::Perm),
            Op::List => return Ok(Answer::Names(self.0.keys().copied().collect())),
            Op::Links => return Ok(Answer::Links(self.links())),
        }
        Ok(Answer::Done)
    }
}

pub struct Dir {
    dir: Node,
    kept: Node,
}

impl Dir {
    fn names(&self, fs: &SoupFs) -> Vec<usize> {
        let mut names = Vec::new();
        let listed = fs.readdir(&self.dir, 0, &mut |entry| {
            let name = NAMES.iter().position(|name| *name == entry.name);
            names.push(name.expect("it was made"));
            true
        });
        listed.expect("listed");
        names.sort_unstable();
        names
    }

    fn look(&self, fs: &SoupFs, name: usize) -> vfs::Result<u16> {
        let node = fs.lookup(&self.dir, NAMES[name])?;
        Ok(fs.attr(&node).perm)
    }
}

impl Subject for Dir {
    type Model = Names;

    fn start() -> Names {
        Names(BTreeMap::from([(0, KEPT)]))
    }

    fn make(fs: &SoupFs, name: &str) -> Dir {
        let make = |name: &str, kind, perm| {
            let made = fs.create(&fs.root(), name.as_bytes(), &new(kind, perm));
            made.expect("made")
        };
        let dir = make(name, NewKind::Dir, 0o755);
        let kept = make(&format!("{name}-kept"), NewKind::File, KEPT);
        fs.link(&kept, &dir, NAMES[0]).expect("linked");
        Dir { dir, kept }
    }

    fn find(fs: &SoupFs, name: &str) -> Dir {
        let find = |name: &str| fs.lookup(&fs.root(), name.as_bytes()).expect("there");
        Dir {
            dir: find(name),
            kept: find(&format!("{name}-kept")),
        }
    }

    fn op(random: &mut Random, number: u64) -> Op {
        let mut name = || random.below(NAMES.len() as u64) as usize;
        let (from, to) = (name(), name());
        match random.below(14) {
            0..2 => Op::Create(from, 1 + number as u16),
            2 => Op::Link(from),
            3..5 => Op::Unlink(from),
            5..8 => Op::Rename(from, to),
            8 => Op::Exchange(from, to),
            9..11 => Op::Look(from),
            11..13 => Op::List,
            _ => Op::Links,
        }
    }

    fn run(&self, fs: &SoupFs, op: Op) -> Result<Answer, Errno> {
        let (dir, veto) = (&self.dir, &|_: &vfs::Rights| Ok(()));
        let rename = |from: usize, to: usize, mode| {
            let (from, to) = (Place::new(dir, NAMES[from]), Place::new(dir, NAMES[to]));
            fs.rename(from, to, mode, veto)
        };
        let done = match op {
            Op::Create(name, perm) => {
                let made = fs.create(dir, NAMES[name], &new(NewKind::File, perm));
                made.map(drop)
            }
            Op::Link(name) => fs.link(&self.kept, dir, NAMES[name]),
            Op::Unlink(name) => fs.unlink(dir, NAMES[name], veto),
            Op::Rename(from, to) => rename(from, to, RenameMode::Replace),
            Op::Exchange(from, to) => rename(from, to, RenameMode::Exchange),
            Op::Look(name) => {
                let found = self.look(fs, name);
                return found.map(Answer::Perm).map_err(|e| e.errno());
            }
            Op::List => return Ok(Answer::Names(self.names(fs))),
            Op::Links => return Ok(Answer::Links(fs.attr(&self.kept).nlink as usize)),
        };
        done.map(|()| Answer::Done).map_err(|e| e.errno())
    }

    fn state(&self, fs: &SoupFs) -> Names {
        let look = |name| (name, self.look(fs, name).expect("it is listed"));
        let names = Names(self.names(fs).into_iter().map(look).collect());
        assert_eq!(names.links(), fs.attr(&self.kept).nlink as usize);
        names
    }
}

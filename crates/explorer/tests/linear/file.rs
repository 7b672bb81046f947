//! One file, of words that tell who wrote them; its permissions and its owner change together.

use crate::{Subject, new};
use block::Random;
use model::linear::Sequential;
use soupfs::{Node, SoupFs};
use vfs::{FileSystem, NewKind, SetAttr};

/// Bytes of a word.
const WORD: u64 = 8;
/// Words of a file at the beginning: more than a block and no whole number of these.
const WORDS: u64 = 625;

/// An operation; offsets and lengths are in words, the last number is what each word holds.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Write(u64, u64, u64),
    Append(u64, u64),
    Truncate(u64),
    Read(u64, u64),
    /// Who may do what, and its owner: the same number.
    Own(u16),
    Stat,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// Of an append, in words.
    At(u64),
    /// The size in words, permissions, and the owner.
    Attr(u64, u16, u32),
    /// Words that are the same, and how many.
    Words(Vec<(u64, usize)>),
}

fn runs(words: &[u64]) -> Vec<(u64, usize)> {
    let same = words.chunk_by(|a, b| a == b);
    same.map(|run| (run[0], run.len())).collect()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Words {
    words: Vec<u64>,
    perm: u16,
    uid: u32,
}

impl Words {
    fn write(&mut self, at: u64, len: u64, tag: u64) {
        let (at, end) = (at as usize, (at + len) as usize);
        self.words.resize(self.words.len().max(end), 0);
        self.words[at..end].fill(tag);
    }
}

impl Sequential for Words {
    type Op = Op;
    type Answer = Answer;

    fn run(&mut self, op: &Op) -> Answer {
        let size = self.words.len() as u64;
        match *op {
            Op::Write(at, len, tag) => self.write(at, len, tag),
            Op::Append(len, tag) => {
                self.write(size, len, tag);
                return Answer::At(size);
            }
            Op::Truncate(size) => self.words.resize(size as usize, 0),
            Op::Own(owner) => (self.perm, self.uid) = (owner, owner.into()),
            Op::Read(at, len) => {
                let (at, end) = (at.min(size), (at + len).min(size));
                return Answer::Words(runs(&self.words[at as usize..end as usize]));
            }
            Op::Stat => return Answer::Attr(size, self.perm, self.uid),
        }
        Answer::Done
    }
}

pub struct File(Node);

fn bytes(len: u64, tag: u64) -> Vec<u8> {
    tag.to_ne_bytes().repeat(len as usize)
}

fn read(fs: &SoupFs, node: &Node, at: u64, len: u64) -> Vec<u64> {
    let mut bytes = vec![0; (len * WORD) as usize];
    let found = fs.read(node, at * WORD, &mut bytes).expect("read");
    let words = bytes[..found].chunks(WORD as usize);
    let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().expect("whole words"));
    words.map(word).collect()
}

impl Subject for File {
    type Model = Words;

    fn start() -> Words {
        Words {
            words: vec![1; WORDS as usize],
            perm: 0o600,
            uid: 0,
        }
    }

    fn make(fs: &SoupFs, name: &str) -> File {
        let made = fs.create(&fs.root(), name.as_bytes(), &new(NewKind::File, 0o600));
        let node = made.expect("made");
        fs.write(&node, 0, &bytes(WORDS, 1)).expect("written");
        File(node)
    }

    fn find(fs: &SoupFs, name: &str) -> File {
        File(fs.lookup(&fs.root(), name.as_bytes()).expect("there"))
    }

    fn op(random: &mut Random, number: u64) -> Op {
        let tag = 0x0101 * (number + 2);
        let (at, long) = (random.below(2 * WORDS), random.below(2 * WORDS));
        // What a record may carry, and what it may not.
        let len = 1 + match random.below(2) {
            0 => random.below(40),
            _ => long,
        };
        match random.below(11) {
            0..3 => Op::Write(at, len, tag),
            3 => Op::Append(len, tag),
            4 => Op::Truncate(at),
            5..7 => Op::Stat,
            7 => Op::Own(tag as u16 & 0o777),
            8 => Op::Read(at, long),
            _ => Op::Read(0, 4 * WORDS),
        }
    }

    fn run(&self, fs: &SoupFs, op: Op) -> Answer {
        let node = &self.0;
        match op {
            Op::Write(at, len, tag) => {
                let written = fs.write(node, at * WORD, &bytes(len, tag));
                assert_eq!(written, Ok((len * WORD) as usize));
            }
            Op::Append(len, tag) => {
                let written = fs.append(node, &bytes(len, tag));
                let (at, written) = written.expect("written");
                assert_eq!(written as u64, len * WORD);
                return Answer::At(at / WORD);
            }
            Op::Truncate(size) => {
                let set = SetAttr {
                    size: Some(size * WORD),
                    ..SetAttr::default()
                };
                fs.setattr(node, &set).expect("set");
            }
            Op::Own(owner) => {
                let set = SetAttr {
                    perm: Some(owner),
                    uid: Some(owner.into()),
                    ..SetAttr::default()
                };
                fs.setattr(node, &set).expect("set");
            }
            Op::Read(at, len) => return Answer::Words(runs(&read(fs, node, at, len))),
            Op::Stat => {
                let attr = fs.attr(node);
                return Answer::Attr(attr.size / WORD, attr.perm, attr.uid);
            }
        }
        Answer::Done
    }

    fn state(&self, fs: &SoupFs) -> Words {
        let attr = fs.attr(&self.0);
        Words {
            words: read(fs, &self.0, 0, attr.size.div_ceil(WORD)),
            perm: attr.perm,
            uid: attr.uid,
        }
    }
}

//! Indexes of names in directories, as the kernel makes them: trees in blocks of the directory
//! itself, which look like entries of nothing to who does not know them.
//!
//! ```text
//! block 0     `.` and `..`, which is as long as the rest of the block. In that rest: how names are
//!             hashed, the levels of nodes, and the root
//! a node      an entry of nothing, as long as the block. In it: hashes, and blocks with names from
//!             there on, or nodes of those
//! the others  names
//! ```
//!
//! One that is wrong is no loss: without the flag of its inode nobody looks at it. Nothing here
//! does, so in a file system that is in use it is left alone.

use std::mem::offset_of;

use vfs::Error;
use zerocopy::FromBytes;

use super::audit::{Audit, field};
use super::{Problem, parallel};
use crate::features;
use crate::image::dir::{self, hash};
use crate::layout::{Inode, InodeFlags};

/// Where the root says how names are hashed, and how long that is.
const INFO: usize = 24;
const INFO_LEN: usize = 8;
/// Bytes of an entry of a node; the first has no hash, but the room and the number of all.
const ENTRY: usize = 8;
/// Where a node's entries begin.
const NODE: usize = 8;
/// Levels of nodes below the root.
const LEVELS_MAX: u8 = 1;
/// Where a number of a block ends: others use the bits above.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

impl Audit {
    /// Looks at all indexes, before names.
    pub(super) fn indexes(&mut self) -> Result<(), Error> {
        let all = self.dirs.iter();
        let mut indexed: Vec<u32> = all
            .filter(|(_, dir)| dir.is_indexed)
            .map(|x| *x.0)
            .collect();
        indexed.sort_unstable();
        let count = indexed.len() as u32;
        let wrong = parallel::each(count, &|_| (), &|at| self.index(indexed[at as usize]))?;
        for (ino, wrong) in indexed.into_iter().zip(wrong) {
            let Err(what) = wrong else { continue };
            let place = self.place(ino);
            let bytes = self.read(place.0)?;
            let (inode, _) = Inode::read_from_prefix(&bytes[place.1..]).expect("it is whole");
            let flags = inode.flags.get() & !InodeFlags::INDEX.bits();
            let edit = field(place, offset_of!(Inode, flags), &flags.to_le_bytes());
            let detail = format!("directory {ino}: {what}");
            self.found(Problem::Index, detail, (vec![edit], None));
        }
        Ok(())
    }

    /// Looks at one: what is wrong.
    fn index(&self, ino: u32) -> Result<Result<(), String>, Error> {
        let blocks = &self.dirs[&ino].blocks;
        if self.geometry.features.compat & features::DIR_INDEX == 0 {
            return Ok(Err("there is no such feature".to_owned()));
        }
        let Some(&first) = blocks.first() else {
            return Ok(Err("there is no root".to_owned()));
        };
        let root = self.read(first.into())?;
        // What is before the root are two entries, of which the second has all that room.
        let second = [
            12,
            0,
            (root.len() - 12) as u8,
            ((root.len() - 12) >> 8) as u8,
        ];
        let info = &root[INFO..][..INFO_LEN];
        let [0, 0, 0, 0, version, len, levels, flags] = *info else {
            return Ok(Err("the root makes no sense".to_owned()));
        };
        let Some(kind) = hash::Kind::of(version) else {
            return Ok(Err(format!("hashes of kind {version}")));
        };
        let is_right = [root[4], root[5], root[16], root[17]] == second
            && usize::from(len) == INFO_LEN
            && levels <= LEVELS_MAX
            && flags & 1 == 0;
        if !is_right {
            return Ok(Err(format!("the root has {levels} levels below it")));
        }
        let mut look = Look {
            audit: self,
            blocks,
            kind,
            seen: vec![false; blocks.len()],
        };
        look.seen[0] = true;
        let at = INFO + INFO_LEN;
        if let Err(what) = look.node(&root, at, levels, (0, u32::MAX))? {
            return Ok(Err(what));
        }
        Ok(match look.seen.iter().position(|seen| !seen) {
            Some(block) => Err(format!("nothing leads to block {block}")),
            None => Ok(()),
        })
    }
}

/// A look at an index.
struct Look<'a> {
    audit: &'a Audit,
    /// Those of the directory.
    blocks: &'a [u32],
    kind: hash::Kind,
    /// Which of them the index leads to.
    seen: Vec<bool>,
}

impl Look<'_> {
    /// Looks at a node, whose entries begin at a byte of its block, and at what is below it: names
    /// with hashes from `min` to `max`.
    fn node(
        &mut self,
        bytes: &[u8],
        at: usize,
        levels: u8,
        (min, max): (u32, u32),
    ) -> Result<Result<(), String>, Error> {
        let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (limit, count) = (half(at), half(at + 2));
        if limit != (bytes.len() - at) / ENTRY || count == 0 || count > limit {
            return Ok(Err(format!(
                "a node has {count} entries, and room for {limit}"
            )));
        }
        let hash = |i: usize| match i {
            0 => min,
            i if i == count => max,
            i => word(at + ENTRY * i) & !1,
        };
        for i in 0..count {
            let (from, to) = (hash(i), hash(i + 1));
            let block = word(at + ENTRY * i + 4) & BLOCK_MASK;
            let is_new = |seen: &mut bool| !std::mem::replace(seen, true);
            if from > to {
                return Ok(Err(format!(
                    "the hashes {from:#x} and {to:#x} are in no order"
                )));
            }
            if !self.seen.get_mut(block as usize).is_some_and(is_new) {
                return Ok(Err(format!(
                    "two things lead to block {block}, or there is none"
                )));
            }
            let child = self.audit.read(self.blocks[block as usize].into())?;
            let done = match levels {
                0 => self.names(block, &child, (from, to)),
                _ if !is_node(&child) => Err(format!("block {block} is no node")),
                _ => self.node(&child, NODE, levels - 1, (from, to))?,
            };
            if done.is_err() {
                return Ok(done);
            }
        }
        Ok(Ok(()))
    }

    /// Looks at a block of names: what is no entry is told elsewhere.
    fn names(&self, block: u32, bytes: &[u8], (min, max): (u32, u32)) -> Result<(), String> {
        let at = self.blocks[block as usize];
        let entries = dir::entries(&self.audit.geometry, at.into(), bytes);
        for entry in entries.filter_map(Result::ok) {
            let hash = self.audit.hashes.of(self.kind, entry.name);
            if !(min..=max).contains(&hash) {
                let name = entry.name.escape_ascii();
                return Err(format!("'{name}' is not where its hash says"));
            }
        }
        Ok(())
    }
}

/// Whether a block is an entry of nothing.
fn is_node(bytes: &[u8]) -> bool {
    let len = bytes.len() as u16;
    bytes[..4] == [0; 4] && bytes[4..6] == len.to_le_bytes() && bytes[6] == 0
}

//! All directories at once, in the order of their blocks: whether there is nothing to say of names.
//!
//! Nearly always there is nothing. Then nobody has to follow names from the root one by one: each
//! block is read by itself, several at a time, and counts its names; in the end each directory has
//! one name, where its `..` leads, and the root is above it. No directory has a name twice: of each
//! there is a hash, and no two are alike. If anything is unusual the walk says what.

use std::collections::HashMap;
use std::hash::Hasher;

use rustc_hash::FxHasher;
use vfs::{Error, Kind};

use super::audit::Audit;
use super::{Progress, parallel};
use crate::features;
use crate::image::dir::{self, Entry};
use crate::layout::ROOT_INO;

/// Blocks of directories that a thread takes at a time.
const PIECE: usize = 128;
/// Blocks that are read at once, as far as those of directories are near each other.
const RUN: u32 = 64;
/// So many others in between are read, too.
const GAP: u32 = 2;

/// Parts of the hashes of names that are compared by a thread at a time.
const SHARDS: u32 = 16;
/// Fewer names are in one: to sort them takes less time than to start another thread.
const FEW_NAMES: usize = 4096;

/// A block of a directory: where it is, whose it is, and whether it is that one's first.
type Block = (u32, u32, bool);

/// Names of directories that were found: what is named, and in which.
#[derive(Default)]
struct Links {
    /// By their `..`, the other way round.
    parents: Vec<(u32, u32)>,
    children: Vec<(u32, u32)>,
    /// The hashes of all names.
    hashes: Vec<u64>,
}

/// A hash of a name in a directory.
pub(super) fn hash_of(dir: u32, name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u32(dir);
    hasher.write(name);
    hasher.finish()
}

impl Audit {
    /// Counts all names; false, and the counts mean nothing: something is unusual.
    pub(super) fn survey(&mut self, progress: Progress<'_>) -> Result<bool, Error> {
        // Which of two names such a directory keeps is for the walk to say.
        if !self.tags.is_empty() {
            return Ok(false);
        }
        let mut blocks: Vec<Block> = Vec::new();
        for (&dir, found) in &self.dirs {
            let all = found.blocks.iter().enumerate();
            blocks.extend(all.map(|(i, &block)| (block, dir, i == 0)));
        }
        blocks.sort_unstable();
        let pieces: Vec<&[Block]> = blocks.chunks(PIECE).collect();
        let count = pieces.len() as u32;
        let told = |number: u32| progress("names", number.into(), count.into());
        let read = parallel::each(count, &told, &|number| self.piece(pieces[number as usize]))?;
        let read: Option<Vec<Links>> = read.into_iter().collect();
        match read {
            Some(links) => Ok(are_unique(&links)? && self.are_linked(&links)),
            None => Ok(false),
        }
    }

    /// Counts the names in blocks of directories; `None`: something is unusual.
    fn piece(&self, mut blocks: &[Block]) -> Result<Option<Links>, Error> {
        let (mut runs, mut places) = (Vec::new(), Vec::new());
        while let Some(&(first, ..)) = blocks.first() {
            let is_near = |pair: &&[Block]| {
                let (here, next) = (pair[0].0, pair[1].0);
                next - here <= GAP && next - first < RUN
            };
            let len = 1 + blocks.windows(2).take_while(is_near).count();
            let (run, rest) = blocks.split_at(len);
            places.push((first.into(), run[len - 1].0 - first + 1));
            runs.push(run);
            blocks = rest;
        }
        let mut links = Links::default();
        let block_size = self.geometry.block_size as usize;
        for (run, read) in runs.into_iter().zip(self.read_all(&places)?) {
            let first = run[0].0;
            for &(block, dir, is_first) in run {
                let bytes = &read[(block - first) as usize * block_size..][..block_size];
                let counted = self.block((block, dir, is_first), bytes, &mut links);
                if counted.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(links))
    }

    fn block(&self, (block, dir, is_first): Block, bytes: &[u8], links: &mut Links) -> Option<()> {
        if dir::overlong(&self.geometry, bytes).next().is_some() {
            return None;
        }
        let mut entries = dir::entries(&self.geometry, block.into(), bytes);
        if is_first {
            let (own, parent) = (entries.next()?.ok()?, entries.next()?.ok()?);
            let is_right = own.name == b"."
                && own.ino == dir
                && parent.name == b".."
                && [&own, &parent].into_iter().all(|own| own.is_ended(bytes));
            if !is_right || self.named(&own)? != Kind::Dir || self.named(&parent)? != Kind::Dir {
                return None;
            }
            links.parents.push((dir, parent.ino));
        }
        for entry in entries {
            let entry = entry.ok()?;
            if matches!(entry.name, b"." | b"..") {
                return None;
            }
            links.hashes.push(hash_of(dir, entry.name));
            if self.named(&entry)? == Kind::Dir {
                links.children.push((entry.ino, dir));
            }
        }
        Some(())
    }

    /// What an entry names has one more name: of what kind that is.
    fn named(&self, entry: &Entry<'_>) -> Option<Kind> {
        let inode = self.inodes.get(entry.ino)?;
        let has_kinds = self.geometry.features.incompat & features::FILETYPE != 0;
        inode.name();
        inode
            .kind
            .filter(|_| !has_kinds || entry.kind == inode.kind)
    }

    /// Whether each directory has one name, where its `..` leads, and is below the root. Then it is
    /// known where.
    fn are_linked(&mut self, links: &[Links]) -> bool {
        let above: HashMap<u32, u32> = links
            .iter()
            .flat_map(|l| l.parents.iter().copied())
            .collect();
        let mut named = HashMap::with_capacity(above.len());
        named.insert(ROOT_INO, ROOT_INO);
        for &(child, dir) in links.iter().flat_map(|links| &links.children) {
            if named.insert(child, dir).is_some() {
                return false;
            }
        }
        // All have `..`, as each was read that has a block, and each has one.
        if named.len() != self.dirs.len() || named != above {
            return false;
        }
        let mut reached = HashMap::from([(ROOT_INO, 0)]);
        for (number, &dir) in (1..).zip(named.keys()) {
            let mut at = dir;
            loop {
                match reached.get(&at) {
                    // Below itself.
                    Some(&by) if by == number => return false,
                    Some(_) => break,
                    None => reached.insert(at, number),
                };
                at = named[&at];
            }
        }
        for (ino, dir) in &mut self.dirs {
            dir.parent = named[ino];
        }
        true
    }
}

/// Whether no two hashes of names are alike.
fn are_unique(links: &[Links]) -> Result<bool, Error> {
    let names: usize = links.iter().map(|links| links.hashes.len()).sum();
    let shards = match names {
        ..FEW_NAMES => 1,
        _ => SHARDS,
    };
    let shard_of = |hash: u64| ((u128::from(hash) * u128::from(shards)) >> u64::BITS) as u32;
    let unique = parallel::each(shards, &|_| (), &|shard| {
        let all = links.iter().flat_map(|links| &links.hashes).copied();
        let mut hashes: Vec<u64> = all.filter(|&hash| shard_of(hash) == shard).collect();
        hashes.sort_unstable();
        Ok(hashes.windows(2).all(|pair| pair[0] != pair[1]))
    })?;
    Ok(unique.into_iter().all(|unique| unique))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_that_is_there_twice_is_noticed_however_many_there_are() {
        for count in [10, FEW_NAMES as u64 - 1, FEW_NAMES as u64 + 1] {
            let hashes: Vec<u64> = (0..count).map(|n| hash_of(2, &n.to_le_bytes())).collect();
            let links = |hashes: &[u64]| Links {
                hashes: hashes.to_vec(),
                ..Links::default()
            };
            let (one, other) = hashes.split_at(4);
            assert_eq!(are_unique(&[links(one), links(other)]), Ok(true), "{count}");
            let twice = links(&[hashes[count as usize / 2]]);
            assert_eq!(are_unique(&[links(&hashes), twice]), Ok(false), "{count}");
        }
    }
}

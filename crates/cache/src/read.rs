//! Blocks are read, from the cache or the disk, and those of the disk kept if that is wanted.
//!
//! ```text
//! keep      blocks, in places that nothing leads to
//!           fence                                                K7
//!           entries: clean, of data
//!           fence                                                K7
//!           DRAM is told
//! ```

use std::sync::atomic::Ordering;

use block::Buffer;

use crate::fault::{Fault, injected};
use crate::layout::{FIRST, State};
use crate::map::Look;
use crate::store::count;
use crate::{BLOCK, Cache, CacheError};

/// Blocks that are read from the disk at once, at most.
const RUN_MAX: usize = 256;

/// A part of a block, to be read.
struct Piece<'a> {
    disk: u64,
    offset: usize,
    into: &'a mut [u8],
}

impl Piece<'_> {
    /// Where it is on the disk.
    fn at(&self) -> u64 {
        self.disk * BLOCK + self.offset as u64
    }

    fn end(&self) -> u64 {
        self.at() + self.into.len() as u64
    }
}

/// A range by block.
fn pieces(mut at: u64, into: &mut [u8]) -> impl Iterator<Item = Piece<'_>> {
    let first = (at.next_multiple_of(BLOCK) - at).min(into.len() as u64);
    let (first, rest) = into.split_at_mut(first as usize);
    let parts = [first].into_iter().filter(|first| !first.is_empty());
    parts
        .chain(rest.chunks_mut(BLOCK as usize))
        .map(move |into| {
            let (disk, offset) = (at / BLOCK, (at % BLOCK) as usize);
            at += into.len() as u64;
            Piece { disk, offset, into }
        })
}

/// A block as the disk has it, and the version of its part of the map before it was read.
struct Read<'a> {
    disk: u64,
    version: u64,
    bytes: &'a [u8],
}

impl Cache {
    /// Keeps blocks that are read from the disk, as far as clean ones make way for them, or not:
    /// from here on, until the cache is closed.
    pub fn keep_reads(&self, is_wanted: bool) {
        self.keeps_reads.store(is_wanted, Ordering::Relaxed);
    }

    /// Reads a range of the disk as it is through the cache.
    ///
    /// # Errors
    /// The disk failed.
    ///
    /// # Panics
    /// If the range is not of whole sectors of the disk.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), CacheError> {
        self.read_pieces(pieces(at, into))
    }

    /// Reads ranges that follow each other.
    pub(crate) fn read_buffers(&self, at: u64, into: &mut [Buffer]) -> Result<(), CacheError> {
        let mut at = at;
        let all = into.iter_mut().flat_map(|buffer| {
            let here = at;
            at += buffer.len() as u64;
            pieces(here, buffer)
        });
        self.read_pieces(all)
    }

    /// What is not cached is read by runs of neighbours.
    fn read_pieces<'a>(&self, pieces: impl Iterator<Item = Piece<'a>>) -> Result<(), CacheError> {
        let mut missed: Vec<(Piece<'a>, u64)> = Vec::new();
        for piece in pieces {
            let is_next = |(last, _): &(Piece<'_>, u64)| last.end() == piece.at();
            if missed.len() == RUN_MAX || !missed.last().is_none_or(is_next) {
                self.read_missed(std::mem::take(&mut missed))?;
            }
            match self
                .map
                .read(&self.medium, piece.disk, piece.offset, piece.into)
            {
                Look::Hit => count(&self.counters.hits, 1),
                Look::Miss(version) => missed.push((piece, version)),
            }
        }
        self.read_missed(missed)
    }

    /// Reads neighbours from the disk, each of which was not cached in this version of its part. If
    /// one has been since, what the disk had may be torn.
    fn read_missed(&self, missed: Vec<(Piece<'_>, u64)>) -> Result<(), CacheError> {
        let Some((first, _)) = missed.first() else {
            return Ok(());
        };
        let buffers = missed
            .iter()
            .map(|(piece, _)| Buffer::zeroed(piece.into.len()));
        let read = self.disk.read(first.at(), buffers.collect())?;
        let mut fresh = Vec::new();
        for ((piece, version), bytes) in missed.into_iter().zip(&read) {
            let disk = piece.disk;
            if self.map.is_unchanged(disk, version) {
                piece.into.copy_from_slice(bytes);
                count(&self.counters.misses, 1);
                let read = Read {
                    disk,
                    version,
                    bytes,
                };
                fresh.push(read);
            } else {
                self.read_alone(piece)?;
            }
        }
        if self.keeps_reads.load(Ordering::Relaxed)
            && !self.is_large(read.iter().map(|bytes| bytes.len()).sum())
            && let Err(error) = self.keep(fresh)
        {
            // What was asked for was read. The memory takes no more, and the next commit says so.
            log::error!("{error}");
        }
        Ok(())
    }

    /// Reads a part of a block that changed while it was read.
    fn read_alone(&self, piece: Piece<'_>) -> Result<(), CacheError> {
        let (disk, at) = (piece.disk, piece.at());
        loop {
            let look = self.map.read(&self.medium, disk, piece.offset, piece.into);
            let Look::Miss(version) = look else {
                count(&self.counters.hits, 1);
                return Ok(());
            };
            let read = self.disk.read(at, vec![Buffer::zeroed(piece.into.len())])?;
            if self.map.is_unchanged(disk, version) {
                piece.into.copy_from_slice(&read[0]);
                count(&self.counters.misses, 1);
                return Ok(());
            }
        }
    }

    /// Whether a run of so many bytes goes past the cache.
    fn is_large(&self, bytes: usize) -> bool {
        let bypass = self.bypass.load(Ordering::Relaxed);
        bypass > 0 && bytes as u64 >= bypass
    }

    /// Keeps blocks that were read, unless somebody commits: nobody waits for that. Clean ones make
    /// way for them.
    fn keep(&self, mut read: Vec<Read<'_>>) -> Result<(), CacheError> {
        let Some(_committing) = self.committing.try_lock() else {
            return Ok(());
        };
        self.medium.check()?;
        // From here on nothing changes, on the disk neither.
        read.retain(|read| {
            let is_whole = read.disk != FIRST && read.bytes.len() as u64 == BLOCK;
            is_whole && self.map.is_unchanged(read.disk, read.version)
        });
        let kept: Vec<(u32, u32, Read<'_>)> = {
            let mut index = self.index.lock();
            let lacking = read.len().saturating_sub(index.free_blocks.len());
            if lacking > 0 {
                let metadata_min = self.medium.geometry.metadata_min;
                let victims = index.victims(self.victims_max(lacking), metadata_min);
                count(&self.counters.evictions, victims.len() as u64);
                self.drop_entries(&mut index, &victims)?;
            }
            let places = read.into_iter().map_while(|read| {
                let block = index.free_blocks.pop()?;
                Some((index.take_entry(), block, read))
            });
            places.collect()
        };
        if kept.is_empty() {
            return Ok(());
        }
        for (_, block, read) in &kept {
            self.medium.write_block(*block, read.bytes);
        }
        if !injected(Fault::ReadKeptEarly) {
            self.medium.fence()?;
        }
        for (entry, block, read) in &kept {
            self.medium.set_disk(*entry, read.disk);
            self.medium.set_state(*entry, State::clean(*block));
        }
        self.medium.fence()?;
        let mut index = self.index.lock();
        for (entry, block, read) in &kept {
            index.set(*entry, read.disk, State::clean(*block));
            self.map.forget_uses(*entry);
        }
        count(&self.counters.reads_kept, kept.len() as u64);
        Ok(())
    }
}

//! What is to become durable together.

use std::collections::{BTreeMap, BTreeSet};

use block::{Buffer, device::SECTOR};

use crate::fault::{Fault, injected};
use crate::layout::BLOCK;

const SECTORS: u64 = BLOCK / SECTOR;

/// Of what a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Of files: written whole.
    Data,
    /// Of the file system: little of it changes at a time.
    Metadata,
}

/// Changes of the disk that become durable together.
#[derive(Debug, Default)]
pub struct Transaction {
    pub(crate) writes: BTreeMap<u64, Write>,
    pub(crate) freed: BTreeSet<u64>,
}

/// What a block is to be.
#[derive(Debug)]
pub(crate) struct Write {
    pub class: Class,
    pub bytes: Buffer,
    /// A bit for each sector that is written.
    pub sectors: u8,
    /// A bit for each sector that is nobody's until the transaction is there.
    pub new: u8,
}

impl Transaction {
    /// Bytes are to be at a byte offset of the disk. A block is of metadata if any of it is.
    ///
    /// # Panics
    /// Unless these are whole sectors.
    pub fn write(&mut self, class: Class, at: u64, bytes: &[u8]) {
        self.write_parts(class, at, bytes, false);
    }

    /// The same of data in a place that is nobody's until this is there: what the disk has there
    /// does not matter before. So the disk may get it before (K6).
    ///
    /// # Panics
    /// Likewise.
    pub fn write_new(&mut self, at: u64, bytes: &[u8]) {
        self.write_parts(Class::Data, at, bytes, true);
    }

    fn write_parts(&mut self, class: Class, at: u64, bytes: &[u8], is_new: bool) {
        let len = bytes.len() as u64;
        let is_whole = at.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
        assert!(is_whole, "{len} bytes at {at}: not whole sectors");
        let mut done = 0;
        while done < len {
            let (block, offset) = ((at + done) / BLOCK, (at + done) % BLOCK);
            let here = (BLOCK - offset).min(len - done);
            let part = &bytes[done as usize..(done + here) as usize];
            self.write_part(class, block, offset, part, is_new);
            done += here;
        }
    }

    fn write_part(&mut self, class: Class, block: u64, offset: u64, part: &[u8], is_new: bool) {
        self.freed.remove(&block);
        let write = self.writes.entry(block).or_insert_with(|| Write {
            class,
            bytes: Buffer::zeroed(BLOCK as usize),
            sectors: 0,
            new: 0,
        });
        write.class = write.class.max(class);
        write.bytes[offset as usize..offset as usize + part.len()].copy_from_slice(part);
        for sector in offset / SECTOR..(offset + part.len() as u64) / SECTOR {
            write.sectors |= 1 << sector;
            match is_new {
                true => write.new |= 1 << sector,
                false => write.new &= !(1 << sector),
            }
        }
    }

    /// Takes out what may go to the disk past the cache: blocks that are nobody's until this is
    /// there, as far as `may` says so and at least `min` of them are neighbours.
    pub(crate) fn take_past(
        &mut self,
        min: usize,
        may: impl Fn(u64) -> bool,
    ) -> Vec<(u64, Buffer)> {
        let is_one = |(disk, write): &(&u64, &Write)| write.is_new() && may(**disk);
        let all: Vec<u64> = self
            .writes
            .iter()
            .filter(is_one)
            .map(|(&disk, _)| disk)
            .collect();
        let runs = all.chunk_by(|one, next| one + 1 == *next);
        let past: Vec<u64> = runs
            .filter(|run| run.len() >= min)
            .flatten()
            .copied()
            .collect();
        let take = |disk| self.writes.remove(&disk).map(|write| (disk, write.bytes));
        past.into_iter().filter_map(take).collect()
    }

    /// A block of 4 KiB is nobody's any more: what it holds does not matter.
    pub fn free(&mut self, block: u64) {
        self.writes.remove(&block);
        self.freed.insert(block);
    }

    /// Blocks that it touches.
    pub fn len(&self) -> usize {
        self.writes.len() + self.freed.len()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Write {
    /// Fills in what is not written of a block, as it is now.
    pub fn complete(&mut self, now: &[u8]) {
        for sector in 0..SECTORS {
            if self.sectors & 1 << sector == 0 {
                let part = (sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize;
                self.bytes[part.clone()].copy_from_slice(&now[part]);
            }
        }
        self.sectors = u8::MAX;
    }

    /// Whether all of the block is nobody's until the transaction is there.
    fn is_new(&self) -> bool {
        match injected(Fault::PastInUse) {
            true => self.class == Class::Data && self.is_complete(),
            false => self.new == u8::MAX,
        }
    }

    /// Whether all of the block is written.
    pub fn is_complete(&self) -> bool {
        self.sectors == u8::MAX
    }
}

//! Bitmaps and counts, beside what is in use.

use vfs::{Error, Kind};
use zerocopy::FromBytes;

use super::audit::{Audit, Bits};
use super::{Edit, Problem, Progress, read};
use crate::layout::GroupDescriptor;

/// The bits of a group: those that should be set, of so many; behind them all are set.
fn expected(bits: &Bits, first: u64, len: u32, block_size: u32) -> Vec<u8> {
    let mut bytes = vec![0xFF_u8; block_size as usize];
    for bit in (0..len).filter(|&bit| !bits.get(first + u64::from(bit))) {
        bytes[bit as usize / 8] &= !(1 << (bit % 8));
    }
    bytes
}

/// How many of the first bits are clear.
fn clear(bytes: &[u8], len: u32) -> u32 {
    let is_clear = |bit: &u32| bytes[*bit as usize / 8] & 1 << (bit % 8) == 0;
    (0..len).filter(is_clear).count() as u32
}

impl Audit<'_> {
    /// Compares bitmaps and the counts of groups; free blocks and inodes.
    pub(super) fn maps(&mut self, progress: Progress<'_>) -> Result<(u64, u64), Error> {
        let g = self.geometry;
        let (mut blocks, mut inodes) = (0, 0);
        let mut dirs = vec![0_u32; g.groups as usize];
        for (ino, _) in self.inodes.iter().filter(|inode| inode.1.kind == Kind::Dir) {
            dirs[((ino - 1) / g.inodes_per_group) as usize] += 1;
        }
        for (number, dirs) in (0..g.groups).zip(dirs) {
            progress("maps", number.into(), g.groups.into());
            let group = self.groups[number as usize];
            let len = g.group_blocks(number);
            let right = expected(&self.blocks, g.group_start(number), len, g.block_size);
            let free_blocks = clear(&right, len);
            let what = (Problem::BlockBitmap, "blocks");
            self.bitmap(number, group.block_bitmap, (right, len), what)?;

            let len = g.inodes_per_group;
            let first = u64::from(number * len) + 1;
            let right = expected(&self.used, first, len, g.block_size);
            let free_inodes = clear(&right, len);
            let what = (Problem::InodeBitmap, "inodes");
            self.bitmap(number, group.inode_bitmap, (right, len), what)?;

            self.group_counts(number, [free_blocks, free_inodes, dirs])?;
            blocks += u64::from(free_blocks);
            inodes += u64::from(free_inodes);
        }
        Ok((blocks, inodes))
    }

    /// Compares a bitmap of a group, of which so many bits count, with what is right.
    fn bitmap(
        &mut self,
        group: u32,
        at: u64,
        (right, len): (Vec<u8>, u32),
        (problem, things): (Problem, &str),
    ) -> Result<(), Error> {
        let is = read(self.disk, self.geometry, at)?;
        let bit = |bytes: &[u8], bit: u32| bytes[bit as usize / 8] & 1 << (bit % 8) != 0;
        let wrong: Vec<u32> = (0..len)
            .filter(|&i| bit(&is, i) != bit(&right, i))
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let lost = wrong.iter().filter(|&&i| bit(&is, i)).count();
        let detail = format!(
            "group {group}: {lost} {things} are free and marked as in use, {} are in use and \
             marked as free",
            wrong.len() - lost
        );
        let edit = Edit {
            block: at,
            offset: 0,
            bytes: right,
        };
        self.found(problem, detail, vec![edit]);
        Ok(())
    }

    /// Compares what a group says is free, and how many directories it has.
    fn group_counts(&mut self, number: u32, right: [u32; 3]) -> Result<(), Error> {
        let (at, offset) = self.geometry.descriptor(number);
        let block = read(self.disk, self.geometry, at)?;
        let (stored, _) =
            GroupDescriptor::read_from_prefix(&block[offset..]).expect("descriptors are whole");
        let is = [
            stored.free_blocks_count_lo,
            stored.free_inodes_count_lo,
            stored.used_dirs_count_lo,
        ];
        if is.map(|count| u32::from(count.get())) == right {
            return Ok(());
        }
        let is = is.map(|count| count.get());
        let bytes = right.iter().flat_map(|&count| (count as u16).to_le_bytes());
        let edit = Edit {
            block: at,
            offset: offset + std::mem::offset_of!(GroupDescriptor, free_blocks_count_lo),
            bytes: bytes.collect(),
        };
        let detail = format!(
            "group {number}: free blocks, free inodes and directories are {right:?}, and counted \
             as {is:?}"
        );
        self.found(Problem::GroupCounts, detail, vec![edit]);
        Ok(())
    }
}

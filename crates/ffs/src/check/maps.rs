//! Bitmaps and counts, beside what is in use.

use vfs::{Error, Kind};
use zerocopy::FromBytes;

use super::audit::{Audit, Bits};
use super::{Delta, Edit, Problem, Progress};
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

impl Audit {
    /// Compares bitmaps and the counts of groups; free blocks and inodes.
    pub(super) fn maps(&mut self, progress: Progress<'_>) -> Result<(u64, u64), Error> {
        let groups = self.geometry.groups;
        let (mut blocks, mut inodes) = (0, 0);
        let dirs = self.dirs();
        for number in 0..groups {
            progress("maps", number.into(), groups.into());
            let free = self.maps_of(number, &dirs)?;
            (blocks, inodes) = (blocks + free.0, inodes + free.1);
        }
        Ok((blocks, inodes))
    }

    /// The directories of each group.
    pub(super) fn dirs(&self) -> Vec<u32> {
        let mut dirs = vec![0_u32; self.geometry.groups as usize];
        for (ino, _) in self.inodes.iter().filter(|inode| inode.1.kind == Kind::Dir) {
            dirs[((ino - 1) / self.geometry.inodes_per_group) as usize] += 1;
        }
        for (&group, &held) in &self.held_dirs {
            dirs[group as usize] += held;
        }
        dirs
    }

    /// Those of a group, which has so many directories.
    pub(super) fn maps_of(&mut self, number: u32, dirs: &[u32]) -> Result<(u64, u64), Error> {
        let g = self.geometry.clone();
        let dirs = dirs[number as usize];
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

        match self.counted_dirs.as_ref().map(|all| all[number as usize]) {
            Some(counted) => self.directories(number, counted, dirs),
            None => self.group_counts(number, [free_blocks, free_inodes, dirs])?,
        }
        Ok((free_blocks.into(), free_inodes.into()))
    }

    /// Compares a bitmap of a group, of which so many bits count, with what is right.
    fn bitmap(
        &mut self,
        group: u32,
        at: u64,
        (right, len): (Vec<u8>, u32),
        (problem, things): (Problem, &str),
    ) -> Result<(), Error> {
        let g = self.geometry.clone();
        let is = self.read(at)?;
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
        // Bits that are clear and should not be are no loss, but damage.
        let delta = (lost == wrong.len()).then(|| match problem {
            Problem::BlockBitmap => {
                let first = g.group_start(group);
                let blocks = wrong.iter().map(|&bit| (first + u64::from(bit)) as u32);
                Delta::Blocks {
                    bitmap: at,
                    blocks: blocks.collect(),
                }
            }
            _ => {
                let first = group * g.inodes_per_group + 1;
                Delta::Inodes(wrong.iter().map(|&bit| first + bit).collect())
            }
        });
        self.found(problem, detail, (vec![edit], delta));
        Ok(())
    }

    /// Compares how many directories a group in use counts.
    fn directories(&mut self, number: u32, counted: i64, right: u32) {
        let by = i64::from(right) - counted;
        if by != 0 {
            let detail = format!("group {number} has {right} directories, and counts {counted}");
            let delta = Delta::Dirs { group: number, by };
            self.found(Problem::GroupCounts, detail, (Vec::new(), Some(delta)));
        }
    }

    /// Compares what a group says is free, and how many directories it has.
    fn group_counts(&mut self, number: u32, right: [u32; 3]) -> Result<(), Error> {
        let (at, offset) = self.geometry.descriptor(number);
        let block = self.read(at)?;
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
        // In use, what is free is counted again.
        let by = i64::from(right[2]) - i64::from(is[2]);
        let delta = Delta::Dirs { group: number, by };
        self.found(Problem::GroupCounts, detail, (vec![edit], Some(delta)));
        Ok(())
    }
}

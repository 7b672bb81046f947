//! Bitmaps and counts, beside what is in use.

use std::mem::offset_of;

use vfs::Error;
use zerocopy::FromBytes;

use super::audit::{Audit, Findings};
use super::table::Bits;
use super::{Delta, Edit, Problem, Progress, parallel};
use crate::layout::GroupDescriptor;

/// Flags of a descriptor, with the feature `uninit_bg`: bitmaps were never written.
const BG_UNINIT: u16 = 3;

/// Whether bitmaps agree in the first so many bits.
fn are_same(a: &[u8], b: &[u8], len: u32) -> bool {
    let (whole, rest) = (len as usize / 8, len % 8);
    a[..whole] == b[..whole] && (rest == 0 || (a[whole] ^ b[whole]) & ((1 << rest) - 1) == 0)
}

/// What a group has free, and what is wrong with its bitmaps and counts.
struct Part {
    free: (u64, u64),
    findings: Findings,
}

impl Audit {
    /// Compares bitmaps and the counts of groups; free blocks and inodes.
    pub(super) fn maps(&mut self, progress: Progress<'_>) -> Result<(u64, u64), Error> {
        let groups = self.geometry.groups;
        let (mut blocks, mut inodes) = (0, 0);
        let dirs = self.dirs();
        let told = |number: u32| progress("maps", number.into(), groups.into());
        let parts = parallel::each(groups, &told, &|number| self.compare(number, &dirs))?;
        for part in parts {
            (blocks, inodes) = (blocks + part.free.0, inodes + part.free.1);
            self.findings.0.extend(part.findings.0);
        }
        Ok((blocks, inodes))
    }

    /// Blocks that are in use by their bits, and that nothing has.
    pub(super) fn unused(&self) -> Result<Vec<u64>, Error> {
        let mut unused = Vec::new();
        self.each_unused(&mut |block| unused.push(block))?;
        Ok(unused)
    }

    /// All blocks are in use that are by their bits, but for some.
    pub(super) fn use_all_but(&self, unused: &[u64]) -> Result<(), Error> {
        let left = Bits::new(self.geometry.blocks);
        for &block in unused {
            left.set(block);
        }
        self.each_unused(&mut |block| {
            if left.set(block) {
                self.blocks.set(block);
            }
        })
    }

    fn each_unused(&self, found: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let g = &*self.geometry;
        for number in 0..g.groups {
            let (first, len) = (g.group_start(number), g.group_blocks(number));
            let is = self.read(self.groups[number as usize].block_bitmap)?;
            let right = self.blocks.bitmap(first, len, g.block_size);
            for (at, (is, right)) in (0..len).step_by(8).zip(is.iter().zip(right)) {
                // Behind the last one all are set in what is right.
                let unused = is & !right;
                let bits = (0..8).filter(|bit| unused & 1 << bit != 0);
                bits.for_each(|bit| found(first + u64::from(at + bit)));
            }
        }
        Ok(())
    }

    /// The directories of each group.
    pub(super) fn dirs(&self) -> Vec<u32> {
        let mut dirs = vec![0_u32; self.geometry.groups as usize];
        for ino in self.dirs.keys() {
            dirs[((ino - 1) / self.geometry.inodes_per_group) as usize] += 1;
        }
        for (&group, &held) in &self.held_dirs {
            dirs[group as usize] += held;
        }
        dirs
    }

    /// Those of a group.
    pub(super) fn maps_of(&mut self, number: u32, dirs: &[u32]) -> Result<(u64, u64), Error> {
        let part = self.compare(number, dirs)?;
        self.findings.0.extend(part.findings.0);
        Ok(part.free)
    }

    fn compare(&self, number: u32, dirs: &[u32]) -> Result<Part, Error> {
        let g = &*self.geometry;
        let dirs = dirs[number as usize];
        let group = self.groups[number as usize];
        let mut findings = Findings::default();
        let len = g.group_blocks(number);
        let right = self.blocks.bitmap(g.group_start(number), len, g.block_size);
        let free = |right: &[u8]| right.iter().map(|byte| byte.count_zeros()).sum::<u32>();
        let free_blocks = free(&right);
        let what = (Problem::BlockBitmap, "blocks");
        self.bitmap(
            (number, group.block_bitmap),
            (right, len),
            what,
            &mut findings,
        )?;

        let len = g.inodes_per_group;
        let first = u64::from(number * len) + 1;
        let right = self.used.bitmap(first, len, g.block_size);
        let free_inodes = free(&right);
        let what = (Problem::InodeBitmap, "inodes");
        self.bitmap(
            (number, group.inode_bitmap),
            (right, len),
            what,
            &mut findings,
        )?;

        match self.counted_dirs.as_ref().map(|all| all[number as usize]) {
            Some(counted) => directories(number, counted, dirs, &mut findings),
            None => self.group_counts(number, [free_blocks, free_inodes, dirs], &mut findings)?,
        }
        Ok(Part {
            free: (free_blocks.into(), free_inodes.into()),
            findings,
        })
    }

    /// Compares a bitmap of a group, of which so many bits count, with what is right.
    fn bitmap(
        &self,
        (group, at): (u32, u64),
        (right, len): (Vec<u8>, u32),
        (problem, things): (Problem, &str),
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let g = &*self.geometry;
        let is = self.read(at)?;
        if are_same(&is, &right, len) {
            // Who uses the file system does not look at these.
            if !self.is_live && is[..] != right[..] {
                let detail = format!("group {group}: some bits behind those of {things} are clear");
                let edit = Edit::new(at, 0, right);
                findings.found(Problem::Padding, detail, (vec![edit], None));
            }
            return Ok(());
        }
        let bit = |bytes: &[u8], bit: u32| bytes[bit as usize / 8] & 1 << (bit % 8) != 0;
        let wrong: Vec<u32> = (0..len)
            .filter(|&i| bit(&is, i) != bit(&right, i))
            .collect();
        let lost = wrong.iter().filter(|&&i| bit(&is, i)).count();
        let detail = format!(
            "group {group}: {lost} {things} are free and marked as in use, {} are in use and \
             marked as free",
            wrong.len() - lost
        );
        let edit = Edit::new(at, 0, right);
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
        findings.found(problem, detail, (vec![edit], delta));
        Ok(())
    }

    /// Compares what a group says is free, and how many directories it has.
    fn group_counts(
        &self,
        number: u32,
        right: [u32; 3],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let (at, offset) = self.geometry.descriptor(number);
        let block = self.read(at)?;
        let (stored, _) =
            GroupDescriptor::read_from_prefix(&block[offset..]).expect("descriptors are whole");
        let flags = stored.flags.get() & BG_UNINIT;
        if flags != 0 && !self.is_live {
            let flags = stored.flags.get() - flags;
            let edit = Edit::new(
                at,
                offset + offset_of!(GroupDescriptor, flags),
                flags.to_le_bytes().to_vec(),
            );
            let detail = format!("group {number} has flags of a feature that is not there");
            findings.found(Problem::Field, detail, (vec![edit], None));
        }
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
        let edit = Edit::new(
            at,
            offset + offset_of!(GroupDescriptor, free_blocks_count_lo),
            bytes.collect(),
        );
        let detail = format!(
            "group {number}: free blocks, free inodes and directories are {right:?}, and counted \
             as {is:?}"
        );
        // In use, what is free is counted again.
        let by = i64::from(right[2]) - i64::from(is[2]);
        let delta = Delta::Dirs { group: number, by };
        findings.found(Problem::GroupCounts, detail, (vec![edit], Some(delta)));
        Ok(())
    }
}

/// Compares how many directories a group in use counts.
fn directories(number: u32, counted: i64, right: u32, findings: &mut Findings) {
    let by = i64::from(right) - counted;
    if by != 0 {
        let detail = format!("group {number} has {right} directories, and counts {counted}");
        let delta = Delta::Dirs { group: number, by };
        findings.found(Problem::GroupCounts, detail, (Vec::new(), Some(delta)));
    }
}

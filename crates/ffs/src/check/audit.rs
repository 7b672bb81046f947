//! What there is: the parts of groups, and the inodes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;

use block::Buffer;
use vfs::{Error, Kind, Time};
use zerocopy::FromBytes;

use super::{Delta, Edit, Finding, Problem, Progress, Report, Source};
use crate::features;
use crate::geometry::Geometry;
use crate::image::{self, Group, StoredInode};
use crate::layout::{Inode, RESIZE_INO, ROOT_INO};

/// An inode of the bad blocks.
const BAD_BLOCKS_INO: u32 = 1;

/// A bit for each block, or inode.
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(len: u64) -> Bits {
        Bits(vec![0; len.div_ceil(64) as usize])
    }

    pub(super) fn get(&self, bit: u64) -> bool {
        self.0[(bit / 64) as usize] & 1 << (bit % 64) != 0
    }

    /// Sets a bit; false: it was set.
    pub(super) fn set(&mut self, bit: u64) -> bool {
        let was = self.get(bit);
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
        !was
    }

    pub(super) fn clear(&mut self, bit: u64) {
        self.0[(bit / 64) as usize] &= !(1 << (bit % 64));
    }
}

/// An inode in use.
pub(super) struct Seen {
    /// Where it is: the block, and the byte in it.
    pub(super) place: (u64, usize),
    pub(super) kind: Kind,
    /// By what it says.
    pub(super) links: u16,
    /// Those that were found.
    pub(super) names: u32,
    /// Whether it has blocks, or a target.
    pub(super) has_contents: bool,
    /// Of a directory: its blocks.
    pub(super) blocks: Vec<u64>,
    /// Of a directory: where its name is; 0: none was found.
    pub(super) parent: u32,
    /// Of a directory that was being moved: which name it keeps. Of a whiteout that was to be left
    /// then: which name it gets.
    pub(super) tag: u32,
}

/// A check, as far as it has come.
pub(super) struct Audit {
    source: Arc<dyn Source>,
    pub(super) geometry: Arc<Geometry>,
    pub(super) now: Time,
    /// The rules of mode soft say how to mend what there is.
    pub(super) soft: bool,
    /// Of a file system that is in use: inodes without names that somebody uses. Else those in the
    /// list of orphans.
    pub(super) held: HashSet<u32>,
    /// Inodes in the list of orphans that have names: they are to be cut off at their ends.
    pub(super) cut: HashSet<u32>,
    /// Directories among those, by group.
    pub(super) held_dirs: HashMap<u32, u32>,
    /// What is found is repaired while the file system is in use: as deltas.
    pub(super) is_live: bool,
    /// Then: the directories that each group counts, if the descriptors do not tell.
    pub(super) counted_dirs: Option<Vec<i64>>,
    pub(super) groups: Vec<Group>,
    /// Blocks that something has.
    pub(super) blocks: Bits,
    /// Inodes in use, and the reserved ones.
    pub(super) used: Bits,
    pub(super) inodes: BTreeMap<u32, Seen>,
    /// Whiteouts that are to get the name of a directory that was being moved, by their tags.
    pub(super) whiteouts: HashMap<u32, u32>,
    /// Blocks of extended attributes: how many have it.
    pub(super) xattr_blocks: HashMap<u64, u32>,
    findings: Vec<Finding>,
}

impl Audit {
    /// Reads the descriptors.
    pub(super) fn new(
        source: Arc<dyn Source>,
        geometry: Geometry,
        now: Time,
        (soft, held): (bool, HashSet<u32>),
    ) -> Result<Audit, Error> {
        let geometry = Arc::new(geometry);
        let mut audit = Audit {
            source,
            geometry: geometry.clone(),
            now,
            soft,
            held,
            cut: HashSet::new(),
            held_dirs: HashMap::new(),
            is_live: false,
            counted_dirs: None,
            groups: Vec::new(),
            blocks: Bits::new(geometry.blocks),
            used: Bits::new(u64::from(geometry.inodes) + 1),
            inodes: BTreeMap::new(),
            whiteouts: HashMap::new(),
            xattr_blocks: HashMap::new(),
            findings: Vec::new(),
        };
        let mut read = None;
        for number in 0..geometry.groups {
            let (at, offset) = geometry.descriptor(number);
            let block = match read.take() {
                Some((before, block)) if before == at => block,
                _ => audit.read(at)?,
            };
            let bytes = &block[offset..][..geometry.descriptor_size as usize];
            audit
                .groups
                .push(image::group(&geometry, number, at, bytes)?);
            read = Some((at, block));
        }
        for number in 0..geometry.groups {
            audit.take_parts(number);
        }
        Ok(audit)
    }

    /// A block.
    pub(super) fn read(&self, block: u64) -> Result<Buffer, Error> {
        self.source.read(block, 1)
    }

    /// Whether there is a problem of this kind.
    pub(super) fn has_found(&self, problem: Problem) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.problem == problem)
    }

    /// Something is wrong; what repairs it, and what does while the file system is in use.
    pub(super) fn found(
        &mut self,
        problem: Problem,
        detail: String,
        (edits, delta): (Vec<Edit>, Option<Delta>),
    ) {
        self.findings.push(Finding {
            problem,
            detail,
            edits,
            delta,
        });
    }

    pub(super) fn damage(&mut self, detail: String) {
        self.found(Problem::Damage, detail, (Vec::new(), None));
    }

    /// The blocks of a group that hold no files.
    fn take_parts(&mut self, number: u32) {
        let (g, group) = (self.geometry.clone(), self.groups[number as usize]);
        let first = g.group_start(number);
        let parts = [
            (first, g.superblock_blocks(number)),
            (group.block_bitmap, 1),
            (group.inode_bitmap, 1),
            (group.inode_table, u64::from(g.table_blocks())),
        ];
        for (first, len) in parts {
            for block in first..(first + len).min(g.blocks) {
                if !self.blocks.set(block) {
                    self.damage(format!("block {block} holds two parts of groups"));
                }
            }
        }
    }

    /// Looks at all inodes, and at the blocks that they have.
    pub(super) fn inodes(&mut self, progress: Progress<'_>) -> Result<(), Error> {
        let groups = self.geometry.groups;
        for number in 0..groups {
            progress("inodes", number.into(), groups.into());
            self.inodes_of(number)?;
        }
        self.shared_xattrs()
    }

    /// Looks at the inodes of a group.
    pub(super) fn inodes_of(&mut self, number: u32) -> Result<(), Error> {
        let g = self.geometry.clone();
        let reserved = match number {
            0 => 1..g.first_ino,
            _ => 0..0,
        };
        for ino in reserved {
            self.used.set(ino.into());
        }
        let group = self.groups[number as usize];
        let per_block = g.block_size / g.inode_size;
        let runs = match self.is_live {
            // The bitmap has all that are in use (S5): no other part of the table is read.
            true => runs(
                &self.read(group.inode_bitmap)?,
                g.inodes_per_group,
                per_block,
            ),
            false => vec![(0, g.table_blocks())],
        };
        for (first, blocks) in runs {
            let at = group.inode_table + u64::from(first);
            let table = self.source.read(at, blocks)?;
            let inodes = table.chunks_exact(g.inode_size as usize);
            let from = first * per_block;
            for (index, bytes) in (from..g.inodes_per_group).zip(inodes) {
                let place = (
                    group.inode_table + u64::from(index / per_block),
                    (index % per_block * g.inode_size) as usize,
                );
                let ino = number * g.inodes_per_group + 1 + index;
                self.inode(ino, place, bytes)?;
            }
        }
        Ok(())
    }

    fn inode(&mut self, ino: u32, place: (u64, usize), bytes: &[u8]) -> Result<(), Error> {
        let (raw, _) = Inode::read_from_prefix(bytes).expect("an inode is as long at least");
        if self.held.contains(&ino) {
            return self.held(ino, place, bytes);
        }
        let stored = match image::inode(&self.geometry, ino, place.0, bytes) {
            Ok(stored) => stored,
            Err(error) => {
                self.damage(error.to_string());
                return Ok(());
            }
        };
        let Some(stored) = stored else {
            // In the list of those to be removed it is the number of the next one.
            let dtime = raw.dtime.get();
            let is_undated = dtime == 0 || self.soft && dtime < self.geometry.inodes;
            if raw.mode.get() != 0 && is_undated && ino >= self.geometry.first_ino {
                let edit = vec![self.removal_time(place)];
                let detail = format!("inode {ino} was removed at no time");
                let delta = Some(Delta::RemovalTime { ino });
                self.found(Problem::RemovalTime, detail, (edit, delta));
            }
            return Ok(());
        };
        self.used.set(ino.into());
        // Of an orphan it is the number of the next one.
        if raw.dtime.get() != 0 && !self.cut.contains(&ino) {
            let edit = field(place, offset_of!(Inode, dtime), &[0; 4]);
            let detail = format!("inode {ino} is in use, and was removed");
            self.found(Problem::RemovalTime, detail, (vec![edit], None));
        }
        match ino {
            RESIZE_INO => self.resize_inode(&stored),
            _ => self.contents(&stored, place, raw.tag()),
        }
    }

    /// One that has no names, and is in use all the same.
    fn held(&mut self, ino: u32, place: (u64, usize), bytes: &[u8]) -> Result<(), Error> {
        let (stored, _) = image::orphan(&self.geometry, ino, place.0, bytes)?;
        self.used.set(ino.into());
        if stored.attributes.has_blocks() {
            self.claim_all(&stored, place, false)?;
        }
        if stored.attributes.xattr_block != 0 {
            let holders = self.xattr_blocks.entry(stored.attributes.xattr_block);
            *holders.or_default() += 1;
        }
        if stored.attributes.kind == Kind::Dir {
            let group = (ino - 1) / self.geometry.inodes_per_group;
            *self.held_dirs.entry(group).or_default() += 1;
        }
        Ok(())
    }

    /// The inode that has the blocks kept for descriptors: those are taken already.
    fn resize_inode(&mut self, stored: &StoredInode) -> Result<(), Error> {
        if self.geometry.features.compat & features::RESIZE_INODE != 0 {
            for &pointer in stored.attributes.pointers.iter().filter(|&&p| p != 0) {
                self.claim(stored.ino, pointer.into());
            }
        }
        Ok(())
    }

    fn contents(
        &mut self,
        stored: &StoredInode,
        place: (u64, usize),
        tag: u32,
    ) -> Result<(), Error> {
        let attributes = &stored.attributes;
        let is_dir = attributes.kind == Kind::Dir;
        let claims = match attributes.has_blocks() {
            true => self.claim_all(stored, place, is_dir)?,
            false => Default::default(),
        };
        let ino = stored.ino;
        if ino != BAD_BLOCKS_INO {
            self.check_counts(stored, place, &claims);
        }
        if ino < self.geometry.first_ino && ino != ROOT_INO {
            return Ok(());
        }
        let seen = Seen {
            place,
            kind: attributes.kind,
            links: attributes.links,
            names: 0,
            has_contents: claims.blocks > 0 || attributes.size > 0,
            blocks: claims.data,
            parent: 0,
            tag,
        };
        if tag != 0 && seen.kind == Kind::CharDev {
            self.whiteouts.insert(tag, ino);
        }
        self.inodes.insert(ino, seen);
        Ok(())
    }

    /// What an inode is to say that is removed now. No time may be so small that it could be the
    /// number of an inode, in a list of those to be removed.
    pub(super) fn removal_time(&self, place: (u64, usize)) -> Edit {
        let now = (self.now.secs() as u32).max(self.geometry.inodes);
        field(place, offset_of!(Inode, dtime), &now.to_le_bytes())
    }

    pub(super) fn report(self, blocks_free: u64, was_clean: bool) -> Report {
        let kinds = self.inodes.values().map(|inode| inode.kind);
        Report {
            findings: self.findings,
            repaired: false,
            was_clean,
            in_use: self.is_live,
            orphans: match self.is_live {
                true => 0,
                false => (self.held.len() + self.cut.len()) as u64,
            },
            inodes: self.inodes.len() as u64,
            directories: kinds.filter(|&kind| kind == Kind::Dir).count() as u64,
            blocks_free,
        }
    }
}

/// The blocks of a part of the inode table in which there may be inodes in use, by a bitmap: the
/// first and the number of each run.
fn runs(bitmap: &[u8], inodes: u32, per_block: u32) -> Vec<(u32, u32)> {
    let is_set = |bit: u32| bitmap[bit as usize / 8] & 1 << (bit % 8) != 0;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for block in 0..inodes.div_ceil(per_block) {
        let end = ((block + 1) * per_block).min(inodes);
        if !(block * per_block..end).any(is_set) {
            continue;
        }
        match runs.last_mut() {
            Some((first, blocks)) if *first + *blocks == block => *blocks += 1,
            _ => runs.push((block, 1)),
        }
    }
    runs
}

/// A field of an inode.
pub(super) fn field(place: (u64, usize), offset: usize, bytes: &[u8]) -> Edit {
    Edit {
        block: place.0,
        offset: place.1 + offset,
        bytes: bytes.to_vec(),
    }
}

//! A check, as far as it has come; and what groups take of the blocks.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use block::Buffer;
use vfs::{Error, Kind, Time};

use super::journal::Known;
use super::table::{Bits, Inodes, Slot};
use super::{Delta, Edit, Finding, Problem, Report, Source};
use crate::geometry::Geometry;
use crate::image::dir::hash::Hashes;
use crate::image::{self, Group};
use crate::layout::Inode;

/// A directory.
pub(super) struct Dir {
    /// Its blocks, in their order.
    pub(super) blocks: Vec<u32>,
    /// Where its name is; 0: none was found.
    pub(super) parent: u32,
    /// It says that it has an index of its names.
    pub(super) is_indexed: bool,
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
    /// No date is so small that it could be the number of an inode.
    pub(super) has_late_dates: bool,
    /// How names are hashed in indexes.
    pub(super) hashes: Hashes,
    /// Some file has 2 GiB or more.
    pub(super) has_large: bool,
    /// What other inodes are going to be.
    pub(super) known: HashMap<u32, Known>,
    /// Directories among those without names, by group.
    pub(super) held_dirs: HashMap<u32, u32>,
    /// What is found is repaired while the file system is in use: as deltas.
    pub(super) is_live: bool,
    /// Then: the directories that each group counts, if the descriptors do not tell.
    pub(super) counted_dirs: Option<Vec<i64>>,
    pub(super) groups: Vec<Group>,
    /// Blocks that something has.
    pub(super) blocks: Bits,
    /// Two claimed the same block.
    pub(super) contested: AtomicBool,
    /// Inodes in use, and the reserved ones.
    pub(super) used: Bits,
    pub(super) inodes: Inodes,
    pub(super) dirs: HashMap<u32, Dir>,
    /// Behind a crash in mode soft, of directories that were being moved: which name they keep. Of
    /// whiteouts that were to be left then: which name they get.
    pub(super) tags: HashMap<u32, u32>,
    /// Those whiteouts, by their tags.
    pub(super) whiteouts: HashMap<u32, u32>,
    /// What was changing places: which one is promised a name, by its tag.
    pub(super) promised: HashMap<u32, u32>,
    /// Blocks of extended attributes: how many have it.
    pub(super) xattr_blocks: HashMap<u64, u32>,
    pub(super) findings: Findings,
}

/// What was found, in order.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Something is wrong; what repairs it, and what does while the file system is in use.
    pub(super) fn found(
        &mut self,
        problem: Problem,
        detail: String,
        (edits, delta): (Vec<Edit>, Option<Delta>),
    ) {
        self.0.push(Finding {
            problem,
            detail,
            edits,
            delta,
        });
    }

    pub(super) fn damage(&mut self, detail: String) {
        self.found(Problem::Damage, detail, (Vec::new(), None));
    }
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
            has_late_dates: false,
            hashes: Hashes::default(),
            has_large: false,
            known: HashMap::new(),
            held_dirs: HashMap::new(),
            is_live: false,
            counted_dirs: None,
            groups: Vec::new(),
            blocks: Bits::new(geometry.blocks),
            contested: AtomicBool::new(false),
            used: Bits::new(u64::from(geometry.inodes) + 1),
            inodes: Inodes::new(geometry.groups, geometry.inodes_per_group),
            dirs: HashMap::new(),
            tags: HashMap::new(),
            whiteouts: HashMap::new(),
            promised: HashMap::new(),
            xattr_blocks: HashMap::new(),
            findings: Findings::default(),
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

    /// Consecutive blocks.
    pub(super) fn read_run(&self, first: u64, blocks: u32) -> Result<Buffer, Error> {
        self.source.read(first, blocks)
    }

    /// Runs of consecutive blocks.
    pub(super) fn read_all(&self, runs: &[(u64, u32)]) -> Result<Vec<Buffer>, Error> {
        self.source.read_all(runs)
    }

    /// Whether consecutive blocks are known to be zeros.
    pub(super) fn is_hole(&self, first: u64, blocks: u32) -> bool {
        self.source.is_hole(first, blocks)
    }

    /// Whether there is a problem of this kind.
    pub(super) fn has_found(&self, problem: Problem) -> bool {
        let mut findings = self.findings.0.iter();
        findings.any(|finding| finding.problem == problem)
    }

    pub(super) fn found(
        &mut self,
        problem: Problem,
        detail: String,
        repair: (Vec<Edit>, Option<Delta>),
    ) {
        self.findings.found(problem, detail, repair);
    }

    pub(super) fn damage(&mut self, detail: String) {
        self.findings.damage(detail);
    }

    /// Where an inode is: the block, and the byte in it.
    pub(super) fn place(&self, ino: u32) -> (u64, usize) {
        let g = &self.geometry;
        let (group, index) = (
            (ino - 1) / g.inodes_per_group,
            (ino - 1) % g.inodes_per_group,
        );
        let per_block = g.block_size / g.inode_size;
        let table = self.groups[group as usize].inode_table;
        let offset = index % per_block * g.inode_size;
        (table + u64::from(index / per_block), offset as usize)
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

    /// What an inode is to say that is removed now. No time may be so small that it could be the
    /// number of an inode, in a list of those to be removed.
    pub(super) fn removal_time(&self, place: (u64, usize)) -> Edit {
        let now = (self.now.secs() as u32).max(self.geometry.inodes);
        field(place, offset_of!(Inode, dtime), &now.to_le_bytes())
    }

    /// What was found until now, which goes from here.
    pub(super) fn report(&mut self, blocks_free: u64, was_clean: bool) -> Report {
        let is_dir = |slot: &Slot| slot.kind == Some(Kind::Dir);
        let (mut inodes, mut directories) = (0, 0);
        for (_, slot) in self.inodes.iter() {
            inodes += 1;
            directories += u64::from(is_dir(slot));
        }
        Report {
            findings: std::mem::take(&mut self.findings.0),
            repaired: false,
            was_clean,
            in_use: self.is_live,
            orphans: match self.is_live {
                true => 0,
                false => (self.held.len() + self.cut.len()) as u64,
            },
            inodes,
            directories,
            blocks_free,
        }
    }
}

/// A field of an inode.
pub(super) fn field(place: (u64, usize), offset: usize, bytes: &[u8]) -> Edit {
    Edit::new(place.0, place.1 + offset, bytes.to_vec())
}

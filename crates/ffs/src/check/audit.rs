//! What there is: the parts of groups, and the inodes.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;

use block::Disk;
use vfs::{Error, Kind, Time};
use zerocopy::FromBytes;

use super::{Edit, Finding, Problem, Progress, Report, read, read_blocks};
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
}

/// A check, as far as it has come.
pub(super) struct Audit<'a> {
    pub(super) disk: &'a Disk,
    pub(super) geometry: &'a Geometry,
    pub(super) now: Time,
    /// A mount in mode soft crashed: its rules say how to mend what it left.
    pub(super) soft: bool,
    pub(super) groups: Vec<Group>,
    /// Blocks that something has.
    pub(super) blocks: Bits,
    /// Inodes in use, and the reserved ones.
    pub(super) used: Bits,
    pub(super) inodes: BTreeMap<u32, Seen>,
    /// Blocks of extended attributes: how many have it.
    pub(super) xattr_blocks: HashMap<u64, u32>,
    findings: Vec<Finding>,
}

impl<'a> Audit<'a> {
    /// Reads the descriptors.
    pub(super) fn new(
        disk: &'a Disk,
        geometry: &'a Geometry,
        now: Time,
        soft: bool,
    ) -> Result<Audit<'a>, Error> {
        let mut audit = Audit {
            disk,
            geometry,
            now,
            soft,
            groups: Vec::new(),
            blocks: Bits::new(geometry.blocks),
            used: Bits::new(u64::from(geometry.inodes) + 1),
            inodes: BTreeMap::new(),
            xattr_blocks: HashMap::new(),
            findings: Vec::new(),
        };
        for number in 0..geometry.groups {
            let (at, offset) = geometry.descriptor(number);
            let block = read(disk, geometry, at)?;
            let bytes = &block[offset..][..geometry.descriptor_size as usize];
            audit
                .groups
                .push(image::group(geometry, number, at, bytes)?);
        }
        for number in 0..geometry.groups {
            audit.take_parts(number);
        }
        Ok(audit)
    }

    /// Something is wrong.
    pub(super) fn found(&mut self, problem: Problem, detail: String, edits: Vec<Edit>) {
        self.findings.push(Finding {
            problem,
            detail,
            edits,
        });
    }

    pub(super) fn damage(&mut self, detail: String) {
        self.found(Problem::Damage, detail, Vec::new());
    }

    /// The blocks of a group that hold no files.
    fn take_parts(&mut self, number: u32) {
        let (g, group) = (self.geometry, self.groups[number as usize]);
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
        let g = self.geometry;
        for ino in 1..g.first_ino {
            self.used.set(ino.into());
        }
        for number in 0..g.groups {
            progress("inodes", number.into(), g.groups.into());
            let first = self.groups[number as usize].inode_table;
            let table = read_blocks(self.disk, g, first, g.table_blocks())?;
            let inodes = table.chunks_exact(g.inode_size as usize);
            let from = number * g.inodes_per_group + 1;
            for (ino, bytes) in (from..).zip(inodes.take(g.inodes_per_group as usize)) {
                let byte = u64::from(ino - from) * u64::from(g.inode_size);
                let size = u64::from(g.block_size);
                self.inode(ino, (first + byte / size, (byte % size) as usize), bytes)?;
            }
        }
        self.shared_xattrs()
    }

    fn inode(&mut self, ino: u32, place: (u64, usize), bytes: &[u8]) -> Result<(), Error> {
        let (raw, _) = Inode::read_from_prefix(bytes).expect("an inode is as long at least");
        let stored = match image::inode(self.geometry, ino, place.0, bytes) {
            Ok(stored) => stored,
            Err(error) => {
                self.damage(error.to_string());
                return Ok(());
            }
        };
        let Some(stored) = stored else {
            if raw.mode.get() != 0 && raw.dtime.get() == 0 && ino >= self.geometry.first_ino {
                let edit = vec![self.removal_time(place)];
                let detail = format!("inode {ino} was removed at no time");
                self.found(Problem::RemovalTime, detail, edit);
            }
            return Ok(());
        };
        self.used.set(ino.into());
        if raw.dtime.get() != 0 {
            let edit = field(place, offset_of!(Inode, dtime), &[0; 4]);
            let detail = format!("inode {ino} is in use, and was removed");
            self.found(Problem::RemovalTime, detail, vec![edit]);
        }
        match ino {
            RESIZE_INO => self.resize_inode(&stored),
            _ => self.contents(&stored, place),
        }
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

    fn contents(&mut self, stored: &StoredInode, place: (u64, usize)) -> Result<(), Error> {
        let attributes = &stored.attributes;
        let is_dir = attributes.kind == Kind::Dir;
        let claims = match attributes.has_blocks() {
            true => self.claim_all(stored, is_dir)?,
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
        };
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
            inodes: self.inodes.len() as u64,
            directories: kinds.filter(|&kind| kind == Kind::Dir).count() as u64,
            blocks_free,
        }
    }
}

/// A field of an inode.
pub(super) fn field(place: (u64, usize), offset: usize, bytes: &[u8]) -> Edit {
    Edit {
        block: place.0,
        offset: place.1 + offset,
        bytes: bytes.to_vec(),
    }
}

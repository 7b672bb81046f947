//! The inodes, group by group, in any order: the groups are looked at by several threads.

use std::borrow::Cow;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use vfs::{Error, Kind};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::audit::{Audit, Dir, Findings, field};
use super::claims::Claims;
use super::journal::Known;
use super::table::Slot;
use super::{Delta, Problem, Progress, parallel};
use crate::attributes::Attributes;
use crate::features;
use crate::image::{self, xattr};
use crate::layout::{Inode, InodeFlags, JOURNAL_INO, RESIZE_INO, ROOT_INO};

/// The inode of the bad blocks.
const BAD_BLOCKS_INO: u32 = 1;
/// The inode of a boot loader.
const BOOT_LOADER_INO: u32 = 5;

/// The largest file for which the superblock need not say that there are large ones.
const SMALL_FILE_MAX: u64 = i32::MAX as u64;

/// Blocks of the inode table that are read at once: they stay in the processor's cache.
const PIECE: u32 = 32;

/// What a group has.
#[derive(Default)]
struct Part {
    slots: Vec<Slot>,
    dirs: Vec<(u32, Dir)>,
    /// Inodes, with their tags.
    tags: Vec<(u32, u32)>,
    xattr_blocks: Vec<u64>,
    held_dirs: u32,
    /// Some file has 2 GiB or more.
    has_large: bool,
    findings: Findings,
}

/// A look at a group.
pub(super) struct Look<'a> {
    pub(super) audit: &'a Audit,
    number: u32,
    part: Part,
}

impl Audit {
    /// Looks at all inodes, and at the blocks that they have.
    pub(super) fn inodes(&mut self, progress: Progress<'_>) -> Result<(), Error> {
        let groups = self.geometry.groups;
        let before = self.blocks.clone();
        let told = |number: u32| progress("inodes", number.into(), groups.into());
        let mut parts = parallel::each(groups, &told, &|number| self.look(number))?;
        if self.contested.load(Ordering::Relaxed) {
            // Who has a block alone depends on who came first. In order it is told alike each time.
            self.blocks = before;
            parts = (0..groups)
                .map(|number| self.look(number))
                .collect::<Result<_, _>>()?;
        }
        for (number, part) in (0..).zip(parts) {
            self.take(number, part);
        }
        self.shared_xattrs()
    }

    /// Looks at the inodes of a group.
    pub(super) fn inodes_of(&mut self, number: u32) -> Result<(), Error> {
        let part = self.look(number)?;
        self.take(number, part);
        Ok(())
    }

    fn look(&self, number: u32) -> Result<Part, Error> {
        let mut look = Look {
            audit: self,
            number,
            part: Part::default(),
        };
        look.group()?;
        Ok(look.part)
    }

    fn take(&mut self, number: u32, part: Part) {
        self.inodes.put(number, part.slots);
        self.dirs.extend(part.dirs);
        for (ino, tag) in part.tags {
            self.tags.insert(ino, tag);
            // Only a promise has the tag of one.
            self.promised.insert(tag, ino);
            if self.inodes.get(ino).and_then(|slot| slot.kind) == Some(Kind::CharDev) {
                self.whiteouts.insert(tag, ino);
            }
        }
        for block in part.xattr_blocks {
            *self.xattr_blocks.entry(block).or_default() += 1;
        }
        self.has_large |= part.has_large;
        if part.held_dirs > 0 {
            self.held_dirs.insert(number, part.held_dirs);
        }
        self.findings.0.extend(part.findings.0);
    }
}

impl Look<'_> {
    fn group(&mut self) -> Result<(), Error> {
        let (audit, number) = (self.audit, self.number);
        let g = &*audit.geometry;
        if number == 0 {
            (1..g.first_ino).for_each(|ino| {
                audit.used.set(ino.into());
            });
        }
        let group = audit.groups[number as usize];
        let per_block = g.block_size / g.inode_size;
        let runs = match audit.is_live {
            // The bitmap has all that are in use (S5): no other part of the table is read.
            true => runs(
                &audit.read(group.inode_bitmap)?,
                g.inodes_per_group,
                per_block,
            ),
            false => pieces(g.table_blocks()),
        };
        for (first, blocks) in runs {
            let at = group.inode_table + u64::from(first);
            if audit.is_hole(at, blocks) {
                continue;
            }
            let table = audit.read_run(at, blocks)?;
            let inodes = table.chunks_exact(g.inode_size as usize);
            let from = first * per_block;
            for (index, bytes) in (from..g.inodes_per_group).zip(inodes) {
                self.inode(number * g.inodes_per_group + 1 + index, bytes)?;
            }
        }
        Ok(())
    }

    pub(super) fn found(
        &mut self,
        problem: Problem,
        detail: String,
        repair: (Vec<super::Edit>, Option<Delta>),
    ) {
        self.part.findings.found(problem, detail, repair);
    }

    pub(super) fn damage(&mut self, detail: String) {
        self.part.findings.damage(detail);
    }

    /// A file is going to have so many bytes.
    pub(super) fn will_be(&mut self, size: u64) {
        self.part.has_large |= size > SMALL_FILE_MAX;
    }

    /// An inode has this block of extended attributes, perhaps with others.
    pub(super) fn has_xattrs(&mut self, block: u64) {
        self.part.xattr_blocks.push(block);
    }

    fn inode(&mut self, ino: u32, bytes: &[u8]) -> Result<(), Error> {
        let (raw, _) = Inode::read_from_prefix(bytes).expect("an inode is as long at least");
        let audit = self.audit;
        let dtime = raw.dtime.get();
        // A mount in mode soft that crashed may have left a list of orphans half freed.
        let is_listed = audit.soft || audit.held.contains(&ino) || audit.cut.contains(&ino);
        if audit.has_late_dates && dtime != 0 && dtime < audit.geometry.inodes && !is_listed {
            self.damage(format!(
                "inode {ino} leads to {dtime}, in no list of orphans"
            ));
        }
        if ino < audit.geometry.first_ino && self.reserved(ino, &raw, bytes.len())? {
            return Ok(());
        }
        match audit.known.get(&ino) {
            Some(Known::Is(attributes)) => {
                audit.used.set(ino.into());
                return self.contents(ino, attributes, audit.place(ino), 0);
            }
            Some(Known::Cleared) => return Ok(()),
            None if raw.links_count.get() == 0 && raw.mode.get() == 0 => return Ok(()),
            None => {}
        }
        let place = audit.place(ino);
        if audit.held.contains(&ino) {
            return self.held(ino, place, bytes);
        }
        let bytes = match audit.is_live || raw.links_count.get() == 0 {
            true => Cow::Borrowed(bytes),
            false => self.mended(ino, place, bytes),
        };
        let attributes = match image::attributes(&audit.geometry, ino, place.0, &bytes) {
            Ok(attributes) => attributes,
            Err(error) => {
                self.damage(error.to_string());
                return Ok(());
            }
        };
        let Some(attributes) = attributes else {
            // In the list of those to be removed it is the number of the next one.
            let is_undated = dtime == 0 || audit.soft && dtime < audit.geometry.inodes;
            if is_undated && ino >= audit.geometry.first_ino {
                let edit = vec![audit.removal_time(place)];
                let detail = format!("inode {ino} was removed at no time");
                let delta = Some(Delta::RemovalTime { ino });
                self.found(Problem::RemovalTime, detail, (edit, delta));
            }
            return Ok(());
        };
        audit.used.set(ino.into());
        if !audit.is_live {
            let room = image::xattr_room(&audit.geometry, ino, place.0, &bytes)?;
            if let Err(error) = xattr::verify_inode(&audit.geometry, ino, place.0, room) {
                self.damage(error.to_string());
            }
        }
        // Of an orphan it is the number of the next one.
        if dtime != 0 && !audit.cut.contains(&ino) {
            let edit = field(place, offset_of!(Inode, dtime), &[0; 4]);
            let detail = format!("inode {ino} is in use, and was removed");
            self.found(Problem::RemovalTime, detail, (vec![edit], None));
        }
        if attributes.kind == Kind::File {
            self.will_be(attributes.size);
        }
        match ino {
            RESIZE_INO => self.resize_inode(&attributes, place),
            _ => self.contents(ino, &attributes, place, raw.tag()),
        }
    }

    /// One of the reserved inodes that has no kind and no names; false: it is another one.
    fn reserved(&mut self, ino: u32, raw: &Inode, len: usize) -> Result<bool, Error> {
        let pointers = raw.block.map(U32::get);
        let is_file = Kind::from_mode(raw.mode.get().into()) == Some(Kind::File);
        let is_resized = self.audit.geometry.features.compat & features::RESIZE_INODE != 0;
        match ino {
            BAD_BLOCKS_INO => {
                let others = [
                    u32::from(raw.mode.get()),
                    u32::from(raw.uid_lo.get()),
                    u32::from(raw.gid_lo.get()),
                    u32::from(raw.links_count.get()),
                    raw.file_acl_lo.get(),
                ];
                if others.iter().any(|&field| field != 0) {
                    self.damage(format!("inode {ino} has more than bad blocks"));
                }
                let place = self.audit.place(ino);
                self.claim_pointers(ino, &pointers, place, &mut Claims::default())?;
            }
            ROOT_INO | JOURNAL_INO => return Ok(false),
            RESIZE_INO if is_file || is_resized => return Ok(false),
            BOOT_LOADER_INO if is_file => return Ok(false),
            // Who uses the file system does not look at these.
            _ if self.audit.is_live => {}
            _ => self.cleared(ino, raw, len),
        }
        Ok(true)
    }

    /// One that has no names, and is in use all the same.
    fn held(&mut self, ino: u32, place: (u64, usize), bytes: &[u8]) -> Result<(), Error> {
        let audit = self.audit;
        let (stored, _) = image::orphan(&audit.geometry, ino, place.0, bytes)?;
        let attributes = &stored.attributes;
        audit.used.set(ino.into());
        if attributes.has_blocks() {
            self.claim_all(ino, attributes, place)?;
        }
        if attributes.xattr_block != 0 {
            self.has_xattrs(attributes.xattr_block);
        }
        self.part.held_dirs += u32::from(attributes.kind == Kind::Dir);
        Ok(())
    }

    fn contents(
        &mut self,
        ino: u32,
        attributes: &Attributes,
        place: (u64, usize),
        tag: u32,
    ) -> Result<(), Error> {
        let claims = match attributes.has_blocks() {
            true => self.claim_all(ino, attributes, place)?,
            false => Claims::default(),
        };
        self.check_counts(ino, attributes, place, &claims);
        if attributes.kind == Kind::Symlink {
            self.target(ino, attributes, &claims)?;
        }
        let audit = self.audit;
        if ino < audit.geometry.first_ino && ino != ROOT_INO {
            return Ok(());
        }
        let index = ((ino - 1) % audit.geometry.inodes_per_group) as usize;
        if self.part.slots.len() <= index {
            self.part.slots.resize_with(index + 1, Slot::default);
        }
        let has_contents = claims.blocks > 0 || attributes.size > 0;
        self.part.slots[index] = Slot::new(attributes.kind, has_contents, attributes.links);
        if attributes.kind == Kind::Dir {
            let dir = Dir {
                blocks: claims.data,
                parent: 0,
                is_indexed: attributes.flags.contains(InodeFlags::INDEX),
            };
            self.part.dirs.push((ino, dir));
        }
        if audit.soft && tag != 0 {
            self.part.tags.push((ino, tag));
        }
        Ok(())
    }
}

/// A part of the inode table in pieces: the first block of each, and how many there are.
fn pieces(blocks: u32) -> Vec<(u32, u32)> {
    let firsts = (0..blocks).step_by(PIECE as usize);
    firsts
        .map(|first| (first, PIECE.min(blocks - first)))
        .collect()
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

//! Which blocks an inode has.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use vfs::{Error, Kind};
use zerocopy::FromBytes;

use super::audit::{Audit, field};
use super::inodes::Look;
use super::{Delta, Edit, New, Problem};
use crate::attributes::Attributes;
use crate::features;
use crate::image::xattr;
use crate::layout::{DIRECT, Inode, POINTERS, XattrHeader};

/// What was found of an inode's blocks.
#[derive(Default)]
pub(super) struct Claims {
    /// All, with indirect ones and that of extended attributes.
    pub(super) blocks: u64,
    /// So many blocks of the file there are up to the last one that is no hole.
    pub(super) end: u64,
    /// The blocks of a directory, in their order.
    pub(super) data: Vec<u32>,
    /// It is a directory.
    is_dir: bool,
    /// The blocks that the size covers.
    covered: u64,
    /// Where the pointers are that lead to others: the block, and the byte in it.
    behind: Vec<(u64, usize)>,
    /// A pointer was wrong.
    pub(super) damaged: bool,
}

impl Look<'_> {
    /// Inode `ino` has a block. False, and damage: there is none, or somebody else has it.
    pub(super) fn claim(&mut self, ino: u32, block: u64) -> bool {
        let audit = self.audit;
        if !audit.geometry.has_block(block) {
            self.damage(format!("inode {ino} has block {block}, outside the disk"));
            return false;
        }
        if !audit.blocks.set(block) {
            audit.contested.store(true, Ordering::Relaxed);
            self.damage(format!(
                "inode {ino} has block {block}, which is not its alone"
            ));
            return false;
        }
        true
    }

    /// All blocks of an inode but that of extended attributes.
    pub(super) fn claim_all(
        &mut self,
        ino: u32,
        attributes: &Attributes,
        place: (u64, usize),
    ) -> Result<Claims, Error> {
        let geometry = &*self.audit.geometry;
        let block_size = u64::from(geometry.block_size);
        let mut claims = Claims {
            is_dir: attributes.kind == Kind::Dir,
            covered: attributes.size.div_ceil(block_size),
            ..Claims::default()
        };
        self.claim_pointers(ino, &attributes.pointers, place, &mut claims)?;
        Ok(claims)
    }

    /// What the pointers of an inode lead to.
    pub(super) fn claim_pointers(
        &mut self,
        ino: u32,
        pointers: &[u32; POINTERS],
        place: (u64, usize),
        claims: &mut Claims,
    ) -> Result<(), Error> {
        let per_block = self.audit.geometry.pointers_per_block();
        let mut logical = 0;
        let (block, start) = (place.0, place.1 + offset_of!(Inode, block));
        for (i, &pointer) in pointers.iter().enumerate() {
            let level = (i + 1).saturating_sub(DIRECT) as u32;
            let at = (block, start + 4 * i);
            self.tree(ino, (pointer, level, at), logical, claims)?;
            logical += per_block.pow(level);
        }
        Ok(())
    }

    /// What a pointer leads to that has so many levels of indirect blocks below it; and where it
    /// is.
    fn tree(
        &mut self,
        ino: u32,
        (pointer, level, at): (u32, u32, (u64, usize)),
        logical: u64,
        claims: &mut Claims,
    ) -> Result<(), Error> {
        if pointer == 0 {
            return Ok(());
        }
        if !self.claim(ino, pointer.into()) {
            claims.damaged = true;
            return Ok(());
        }
        claims.blocks += 1;
        if logical >= claims.covered {
            claims.behind.push(at);
        }
        let Some(below) = level.checked_sub(1) else {
            if claims.is_dir {
                claims.data.push(pointer);
            }
            claims.end = logical + 1;
            return Ok(());
        };
        let block = self.audit.read(pointer.into())?;
        let reach = self.audit.geometry.pointers_per_block().pow(below);
        let in_block = u64::from(pointer);
        for (i, word) in (0..).zip(block.chunks_exact(4)) {
            let pointer = u32::from_le_bytes(word.try_into().expect("four bytes"));
            let at = (in_block, 4 * i);
            let logical = logical + i as u64 * reach;
            self.tree(ino, (pointer, below, at), logical, claims)?;
        }
        Ok(())
    }

    /// Whether an inode says how many blocks it has, and how long it is.
    pub(super) fn check_counts(
        &mut self,
        ino: u32,
        attributes: &Attributes,
        place: (u64, usize),
        claims: &Claims,
    ) {
        let audit = self.audit;
        let mut blocks = claims.blocks;
        if attributes.xattr_block != 0 {
            self.has_xattrs(attributes.xattr_block);
            blocks += 1;
            if audit.geometry.features.compat & features::EXT_ATTR == 0 && !audit.is_live {
                self.damage(format!(
                    "inode {ino} has extended attributes, which is no feature here"
                ));
            }
        }
        if claims.damaged {
            return;
        }
        let block_size = u64::from(audit.geometry.block_size);
        let sectors = blocks * (block_size / 512);
        if attributes.sectors != sectors {
            let detail = format!(
                "inode {ino} has {sectors} sectors, and counts {}",
                attributes.sectors
            );
            let edit = Edit {
                block: place.0,
                offset: place.1 + offset_of!(Inode, blocks_lo),
                new: New::More(sectors.wrapping_sub(attributes.sectors) as u32),
            };
            let delta = Some(Delta::BlockCount { ino });
            self.found(Problem::BlockCount, detail, (vec![edit], delta));
        }
        let size = attributes.size;
        match attributes.kind {
            Kind::Dir if claims.data.len() as u64 != claims.end => {
                self.damage(format!("directory {ino} has holes"));
            }
            Kind::Dir if claims.end == 0 => self.damage(format!("directory {ino} has no block")),
            // Each block of a directory was one before something led to it.
            Kind::Dir if size != claims.end * block_size => {
                let end = claims.end;
                let detail = format!("directory {ino} has {end} blocks, and another size");
                let edits = set_size(place, end * block_size);
                let was_growing = audit.soft && size < end * block_size;
                let delta = was_growing.then_some(Delta::Size { ino });
                self.found(Problem::Size, detail, (edits, delta));
            }
            Kind::File if audit.cut.contains(&ino) => {}
            Kind::File if size > audit.geometry.reach() && !audit.is_live => {
                let right = claims.end * block_size;
                self.will_be(right);
                let detail = format!("inode {ino} has {size} bytes, more than there can be");
                self.found(Problem::Size, detail, (set_size(place, right), None));
            }
            // One block behind the end may be there.
            Kind::File if size < claims.end.saturating_sub(1) * block_size => {
                let right = claims.end * block_size;
                self.will_be(if audit.soft { size } else { right });
                let detail = format!("inode {ino} has {right} bytes in blocks, and says {size}");
                let edits = match audit.soft {
                    // What was being written is nobody's: it is cut off.
                    true => {
                        let cut = |&at| field(at, 0, &[0; 4]);
                        claims.behind.iter().map(cut).collect()
                    }
                    false => set_size(place, right),
                };
                // Without a crash they may be what somebody misses.
                let delta = audit.soft.then_some(Delta::Size { ino });
                self.found(Problem::Size, detail, (edits, delta));
            }
            _ => {}
        }
    }
}

/// Lets an inode have so many bytes.
fn set_size(place: (u64, usize), size: u64) -> Vec<Edit> {
    let half = |offset, half: u64| field(place, offset, &(half as u32).to_le_bytes());
    vec![
        half(offset_of!(Inode, size_lo), size),
        half(offset_of!(Inode, size_hi), size >> 32),
    ]
}

impl Audit {
    /// Blocks of extended attributes, which several inodes may have together.
    pub(super) fn shared_xattrs(&mut self) -> Result<(), Error> {
        let mut shared: Vec<_> = self.xattr_blocks.iter().map(|(&b, &n)| (b, n)).collect();
        shared.sort_unstable();
        for (block, holders) in shared {
            if !self.blocks.set(block) {
                self.damage(format!(
                    "extended attributes in block {block}, which others have"
                ));
                continue;
            }
            let bytes = self.read(block)?;
            let look = match self.is_live {
                true => xattr::in_block(&self.geometry, block, &bytes).map(drop),
                false => xattr::verify_block(&self.geometry, block, &bytes),
            };
            if let Err(error) = look {
                self.damage(error.to_string());
                continue;
            }
            let (header, _) = XattrHeader::read_from_prefix(&bytes).expect("it was read");
            let counted = header.refcount.get();
            if counted != holders {
                self.damage(format!(
                    "extended attributes in block {block}: {holders} inodes have them, and they \
                     count {counted}"
                ));
            }
        }
        Ok(())
    }
}

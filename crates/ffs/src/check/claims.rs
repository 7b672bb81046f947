//! Which blocks an inode has.

use std::mem::offset_of;

use vfs::{Error, Kind};
use zerocopy::FromBytes;

use super::audit::{Audit, field};
use super::{Delta, Problem};
use crate::image::StoredInode;
use crate::image::xattr;
use crate::layout::{DIRECT, Inode, XattrHeader};

/// What was found of an inode's blocks.
#[derive(Default)]
pub(super) struct Claims {
    /// All, with indirect ones and that of extended attributes.
    pub(super) blocks: u64,
    /// So many blocks of the file there are up to the last one that is no hole.
    pub(super) end: u64,
    /// The blocks of a directory, in their order.
    pub(super) data: Vec<u64>,
    /// They are to be listed.
    listed: bool,
    /// A pointer was wrong.
    pub(super) damaged: bool,
}

impl Audit {
    /// Inode `ino` has a block. False, and damage: there is none, or somebody else has it.
    pub(super) fn claim(&mut self, ino: u32, block: u64) -> bool {
        if !self.geometry.has_block(block) {
            self.damage(format!("inode {ino} has block {block}, outside the disk"));
            return false;
        }
        if !self.blocks.set(block) {
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
        stored: &StoredInode,
        listed: bool,
    ) -> Result<Claims, Error> {
        let mut claims = Claims {
            listed,
            ..Claims::default()
        };
        let per_block = self.geometry.pointers_per_block();
        let mut logical = 0;
        for (i, &pointer) in stored.attributes.pointers.iter().enumerate() {
            let level = (i + 1).saturating_sub(DIRECT) as u32;
            self.tree(stored.ino, (pointer, level), logical, &mut claims)?;
            logical += per_block.pow(level);
        }
        Ok(claims)
    }

    /// What a pointer leads to that has so many levels of indirect blocks below it.
    fn tree(
        &mut self,
        ino: u32,
        (pointer, level): (u32, u32),
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
        let Some(below) = level.checked_sub(1) else {
            if claims.listed {
                claims.data.push(pointer.into());
            }
            claims.end = logical + 1;
            return Ok(());
        };
        let block = self.read(pointer.into())?;
        let reach = self.geometry.pointers_per_block().pow(below);
        for (i, word) in (0..).zip(block.chunks_exact(4)) {
            let pointer = u32::from_le_bytes(word.try_into().expect("four bytes"));
            self.tree(ino, (pointer, below), logical + i * reach, claims)?;
        }
        Ok(())
    }

    /// Whether an inode says how many blocks it has, and how long it is.
    pub(super) fn check_counts(
        &mut self,
        stored: &StoredInode,
        place: (u64, usize),
        claims: &Claims,
    ) {
        let (ino, attributes) = (stored.ino, &stored.attributes);
        let mut blocks = claims.blocks;
        if attributes.xattr_block != 0 {
            *self.xattr_blocks.entry(attributes.xattr_block).or_default() += 1;
            blocks += 1;
        }
        if claims.damaged {
            return;
        }
        let block_size = u64::from(self.geometry.block_size);
        let sectors = blocks * (block_size / 512);
        if attributes.sectors != sectors {
            let detail = format!(
                "inode {ino} has {sectors} sectors, and counts {}",
                attributes.sectors
            );
            let edit = field(
                place,
                offset_of!(Inode, blocks_lo),
                &(sectors as u32).to_le_bytes(),
            );
            let delta = Some(Delta::BlockCount { ino });
            self.found(Problem::BlockCount, detail, (vec![edit], delta));
        }
        let size = attributes.size;
        match attributes.kind {
            Kind::Dir if size != claims.end * block_size => {
                let end = claims.end;
                self.damage(format!(
                    "directory {ino} has {end} blocks, and {size} bytes"
                ));
            }
            Kind::Dir if claims.data.len() as u64 != claims.end => {
                self.damage(format!("directory {ino} has holes"));
            }
            // One block behind the end may be there.
            Kind::File if size < claims.end.saturating_sub(1) * block_size => {
                let right = claims.end * block_size;
                let detail = format!("inode {ino} has {right} bytes in blocks, and says {size}");
                let edits = vec![
                    field(
                        place,
                        offset_of!(Inode, size_lo),
                        &(right as u32).to_le_bytes(),
                    ),
                    field(
                        place,
                        offset_of!(Inode, size_hi),
                        &((right >> 32) as u32).to_le_bytes(),
                    ),
                ];
                let delta = Some(Delta::Size { ino });
                self.found(Problem::Size, detail, (edits, delta));
            }
            _ => {}
        }
    }

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
            if let Err(error) = xattr::in_block(&self.geometry, block, &bytes) {
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

//! The inode that has the blocks kept for further descriptors: they are its indirect blocks, which
//! lead to those of the groups that have copies.

use vfs::{Error, Kind};

use super::Problem;
use super::audit::field;
use super::inodes::Look;
use crate::attributes::Attributes;
use crate::features;
use crate::layout::{DIRECT, Inode, POINTERS, RESIZE_INO};

impl Look<'_> {
    /// Looks at it. The blocks that are kept are taken already, as parts of groups.
    pub(super) fn resize_inode(
        &mut self,
        inode: &Attributes,
        place: (u64, usize),
    ) -> Result<(), Error> {
        let audit = self.audit;
        let g = &*audit.geometry;
        let ino = RESIZE_INO;
        let top = inode.pointers[DIRECT + 1];
        if g.features.compat & features::RESIZE_INODE == 0 {
            if inode.pointers != [0; POINTERS] || g.reserved_descriptor_blocks != 0 {
                self.damage(format!(
                    "inode {ino} keeps blocks, and there is no such feature"
                ));
            }
            return Ok(());
        }
        let others = inode.pointers.iter().enumerate();
        let has_others = others.into_iter().any(|(i, &p)| i != DIRECT + 1 && p != 0);
        if inode.kind != Kind::File || has_others || inode.xattr_block != 0 {
            self.damage(format!("inode {ino} has more than blocks for descriptors"));
            return Ok(());
        }
        // Who uses the file system does not look at what it leads to.
        if !self.claim(ino, top.into()) || audit.is_live {
            return Ok(());
        }
        let copies: Vec<u64> = (1..g.groups)
            .filter(|&group| g.has_superblock(group))
            .map(|group| u64::from(group) * u64::from(g.blocks_per_group))
            .collect();
        let kept = u64::from(g.reserved_descriptor_blocks);
        let first = g.first_block + 1 + g.descriptor_blocks();
        let top = words(&audit.read(top.into())?);
        for kept in 0..kept {
            let block = first + kept;
            let slot = (g.descriptor_blocks() + kept) % g.pointers_per_block();
            let right = copies.iter().map(|copy| block + copy);
            let is_right = u64::from(top[slot as usize]) == block
                && words(&audit.read(block)?)
                    .into_iter()
                    .map(u64::from)
                    .take(copies.len())
                    .eq(right);
            if !is_right {
                self.damage(format!(
                    "inode {ino} does not lead to block {block} as it should"
                ));
                return Ok(());
            }
        }
        let blocks = 1 + kept * (1 + copies.len() as u64);
        let sectors = blocks * u64::from(g.block_size / 512);
        if inode.sectors != sectors {
            let detail = format!(
                "inode {ino} has {sectors} sectors, and counts {}",
                inode.sectors
            );
            let offset = std::mem::offset_of!(Inode, blocks_lo);
            let edit = field(place, offset, &(sectors as u32).to_le_bytes());
            self.found(Problem::BlockCount, detail, (vec![edit], None));
        }
        Ok(())
    }
}

fn words(block: &[u8]) -> Vec<u32> {
    let words = block.chunks_exact(4);
    words
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect()
}

//! The files of a new file system: the root directory, lost+found, the inode that owns the blocks
//! for more descriptors, and the journal.

use block::Disk;
use vfs::Kind;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{FormatError, FormatOptions, Parts, Space, Writer};
use crate::attributes::Attributes;
use crate::image::dir::set_up_block;
use crate::image::journal::layout::JournalSuperblock;
use crate::image::journal::superblock;
use crate::layout::{
    DIRECT, FIRST_INO, INODE_LEN, InodeFlags, JOURNAL_INO, POINTERS, RESIZE_INO, ROOT_INO,
};

/// What was made of which the superblock tells.
pub(super) struct Files {
    /// The inode of the journal.
    pub journal: Option<Attributes>,
    /// Blocks of the journal, indirect ones aside.
    pub journal_blocks: u64,
}

/// lost+found is made this large, so that a repair need not find room.
const LOST_AND_FOUND_LEN: u32 = 16 << 10;

/// Makes all of them.
pub(super) fn make(
    disk: &Disk,
    space: &mut Space,
    out: &mut Writer<'_>,
    options: &FormatOptions,
) -> Result<Files, FormatError> {
    let mut maker = Maker {
        space,
        out,
        options,
    };
    let mut inodes = Vec::new();
    let root = maker.directory(0o755, (ROOT_INO, 1), Some((FIRST_INO, b"lost+found")))?;
    inodes.push((ROOT_INO, root));
    let blocks = (LOST_AND_FOUND_LEN / options.block_size).min(DIRECT as u32);
    let lost = maker.directory(0o700, (FIRST_INO, blocks), None)?;
    inodes.push((FIRST_INO, lost));
    inodes.push((RESIZE_INO, maker.resize_inode()?));
    let mut files = Files {
        journal: None,
        journal_blocks: 0,
    };
    if options.journal {
        let journal = maker.journal(disk)?;
        files.journal_blocks = journal.size / u64::from(options.block_size);
        files.journal = Some(journal.clone());
        inodes.push((JOURNAL_INO, journal));
    }
    maker.write_inodes(&inodes)?;
    Ok(files)
}

struct Maker<'a, 'b> {
    space: &'a mut Space,
    out: &'a mut Writer<'b>,
    options: &'a FormatOptions,
}

impl Maker<'_, '_> {
    fn inode(&self, kind: Kind, perm: u16) -> Attributes {
        let time = self.options.time;
        Attributes {
            kind,
            perm,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            sectors: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            has_fine_times: self.options.inode_size as usize > INODE_LEN,
            flags: InodeFlags::empty(),
            generation: 0,
            pointers: [0; POINTERS],
            xattr_block: 0,
        }
    }

    fn sectors(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.options.block_size / 512)
    }

    /// A directory in the root directory, of so many blocks, that may have one directory in it.
    fn directory(
        &mut self,
        perm: u16,
        (ino, blocks): (u32, u32),
        child: Option<(u32, &[u8])>,
    ) -> Result<Attributes, FormatError> {
        let (uid, gid) = self.options.owner;
        let mut inode = Attributes {
            uid,
            gid,
            links: 2 + u16::from(child.is_some()),
            size: u64::from(blocks) * u64::from(self.options.block_size),
            sectors: self.sectors(blocks.into()),
            ..self.inode(Kind::Dir, perm)
        };
        let mut names = vec![(ino, &b"."[..]), (ROOT_INO, b"..")];
        names.extend(child);
        for pointer in &mut inode.pointers[..blocks as usize] {
            *pointer = self.space.take()?;
            let mut block = vec![0; self.options.block_size as usize];
            set_up_block(&mut block, true, &names);
            self.out.write((*pointer).into(), &block)?;
            names.clear();
        }
        Ok(inode)
    }

    /// The inode that owns the blocks kept for more descriptors: those of group 0 are its indirect
    /// blocks, which lead to those of the other groups that have copies.
    fn resize_inode(&mut self) -> Result<Attributes, FormatError> {
        let g = self.space.geometry.clone();
        let per_block = g.pointers_per_block();
        let top = self.space.take()?;
        let mut pointers = vec![U32::ZERO; per_block as usize];
        let first = g.first_block + 1 + g.descriptor_blocks();
        let copies: Vec<u64> = (1..g.groups)
            .filter(|&group| g.has_superblock(group))
            .map(|group| u64::from(group) * u64::from(g.blocks_per_group))
            .collect();
        for kept in 0..u64::from(g.reserved_descriptor_blocks) {
            let block = first + kept;
            let slot = (g.descriptor_blocks() + kept) % per_block;
            pointers[slot as usize] = (block as u32).into();
            let copies = copies.iter().map(|copy| U32::new((block + copy) as u32));
            self.out
                .write(block, copies.collect::<Vec<U32>>().as_bytes())?;
        }
        self.out.write(top.into(), pointers.as_bytes())?;
        let kept = u64::from(g.reserved_descriptor_blocks);
        let reach = DIRECT as u64 + per_block + per_block * per_block;
        let mut inode = Attributes {
            size: reach * u64::from(g.block_size),
            sectors: self.sectors(1 + kept * (1 + copies.len() as u64)),
            ..self.inode(Kind::File, 0o600)
        };
        inode.pointers[DIRECT + 1] = top;
        Ok(inode)
    }

    /// An empty journal.
    fn journal(&mut self, disk: &Disk) -> Result<Attributes, FormatError> {
        let block_size = u64::from(self.options.block_size);
        let Some(len) = journal_len(self.space.geometry.blocks) else {
            return Err(FormatError::Size(disk.len(), "small"));
        };
        let blocks = (0..len).map(|_| self.space.take());
        let blocks = blocks.collect::<Result<Vec<u32>, _>>()?;
        let superblock = JournalSuperblock {
            uuid: self.options.uuid,
            ..superblock::empty(self.options.block_size, len)
        };
        self.out.write(blocks[0].into(), superblock.as_bytes())?;
        if !self.options.zeroed {
            for run in blocks[1..].chunk_by(|a, b| a + 1 == *b) {
                disk.zero(
                    u64::from(run[0]) * block_size,
                    run.len() as u64 * block_size,
                )?;
            }
        }
        let mut inode = self.inode(Kind::File, 0o600);
        inode.size = u64::from(len) * block_size;
        let (direct, mut rest) = blocks.split_at(DIRECT);
        inode.pointers[..DIRECT].copy_from_slice(direct);
        let mut indirect = 0;
        for level in 1..=3_u32 {
            let reach = self.space.geometry.pointers_per_block().pow(level);
            let (here, more) = rest.split_at(rest.len().min(reach as usize));
            if !here.is_empty() {
                let top = self.tree(here, level, &mut indirect)?;
                inode.pointers[DIRECT + level as usize - 1] = top;
            }
            rest = more;
        }
        inode.sectors = self.sectors(u64::from(len) + indirect);
        Ok(inode)
    }

    /// Indirect blocks of `levels` levels for `blocks`: the topmost. Counts them.
    fn tree(&mut self, blocks: &[u32], levels: u32, count: &mut u64) -> Result<u32, FormatError> {
        if levels == 0 {
            return Ok(blocks[0]);
        }
        let own = self.space.take()?;
        *count += 1;
        let reach = self.space.geometry.pointers_per_block().pow(levels - 1);
        let below = blocks.chunks(reach as usize);
        let pointers = below.map(|below| self.tree(below, levels - 1, count).map(U32::new));
        let pointers = pointers.collect::<Result<Vec<U32>, _>>()?;
        self.out.write(own.into(), pointers.as_bytes())?;
        Ok(own)
    }

    /// Writes the first inodes of group 0.
    fn write_inodes(&mut self, inodes: &[(u32, Attributes)]) -> Result<(), FormatError> {
        let g = &self.space.geometry;
        let (size, block_size) = (g.inode_size as usize, g.block_size as usize);
        let mut table = vec![0; (FIRST_INO as usize * size).next_multiple_of(block_size)];
        for (ino, inode) in inodes {
            let at = (*ino as usize - 1) * size;
            let bytes = &mut table[at..at + size];
            Attributes::clear(bytes);
            inode.store(bytes, 0);
        }
        let first = Parts::of(g, 0).inode_table;
        for (block, bytes) in (first..).zip(table.chunks(block_size)) {
            self.out.write(block, bytes)?;
        }
        Ok(())
    }
}

/// Blocks of the journal of a file system of so many, as mke2fs has them; `None`: it has no room.
fn journal_len(blocks: u64) -> Option<u32> {
    const LENS: [(u64, u32); 8] = [
        (32 << 10, 1 << 10),
        (256 << 10, 4 << 10),
        (512 << 10, 8 << 10),
        (4 << 20, 16 << 10),
        (8 << 20, 32 << 10),
        (16 << 20, 64 << 10),
        (32 << 20, 128 << 10),
        (u64::MAX, 256 << 10),
    ];
    let row = LENS.iter().find(|row| blocks < row.0);
    row.filter(|_| blocks >= 2048).map(|row| row.1)
}

//! The journal, which is empty here: its file, and its superblock. Where it makes no sense nothing
//! is lost, and what is in it may go.

use std::mem::offset_of;

use vfs::{Error, Kind};
use zerocopy::{FromBytes, IntoBytes};

use super::audit::{Audit, field};
use super::{Edit, Problem};
use crate::attributes::Attributes;
use crate::features;
use crate::image;
use crate::image::journal::layout::{
    INCOMPAT_ASYNC_COMMIT, INCOMPAT_KNOWN, JournalSuperblock, MAGIC, SUPERBLOCK_V1, SUPERBLOCK_V2,
};
use crate::image::journal::{BLOCKS_MIN, backup, superblock};
use crate::layout::{DIRECT, Inode, JOURNAL_INO, Superblock};

/// What is known of an inode before the table is looked at.
pub(super) enum Known {
    /// It is going to be this one.
    Is(Attributes),
    /// It is going to be free.
    Cleared,
}

/// The blocks of a journal's file, or what is wrong with it.
type Blocks = std::result::Result<Vec<u32>, String>;

impl Audit {
    /// Looks at the journal that the superblock tells of, before all inodes.
    pub(super) fn journal(&mut self, owner: &mut Superblock) -> Result<(), Error> {
        let ino = owner.journal_inum.get();
        let is_elsewhere = owner.journal_uuid != [0; 16];
        if self.geometry.features.compat & features::HAS_JOURNAL == 0 {
            if ino != 0 || owner.journal_dev.get() != 0 || is_elsewhere {
                let detail = "the superblock tells of one, and that there is none".to_owned();
                self.found(Problem::Journal, detail, (Vec::new(), None));
            }
            (owner.journal_inum, owner.journal_dev) = (0.into(), 0.into());
            owner.journal_uuid = [0; 16];
        } else if is_elsewhere || !self.may_be_the_journal(ino) {
            self.damage("the journal is not in a file: it is not looked at".to_owned());
        } else {
            self.journal_file(ino, owner)?;
            if ino == JOURNAL_INO {
                return Ok(());
            }
        }
        self.no_journal()
    }

    /// Whether it is the inode for that, or one of a file.
    fn may_be_the_journal(&self, ino: u32) -> bool {
        let is_reserved = ino < self.geometry.first_ino && ino != JOURNAL_INO;
        self.geometry.has_inode(ino) && !is_reserved
    }

    fn journal_file(&mut self, ino: u32, owner: &Superblock) -> Result<(), Error> {
        let place = self.place(ino);
        let bytes = self.inode_bytes(place)?;
        let stored = match image::attributes(&self.geometry, ino, place.0, &bytes) {
            Ok(Some(inode)) if inode.kind == Kind::File => self.journal_blocks(&inode)?,
            Ok(Some(_)) => Err("is no file".to_owned()),
            Ok(None) => Err("is free".to_owned()),
            Err(error) => Err(format!("makes no sense: {error}")),
        };
        let what = match stored {
            Ok(blocks) => return self.journal_superblock(&blocks),
            Err(what) => what,
        };
        if let Some(mut copy) = backup(owner)
            && let Ok(blocks) = self.journal_blocks(&copy)?
            && self.read(blocks[0].into())?.first_chunk() == Some(&MAGIC.to_be_bytes())
        {
            (copy.atime, copy.mtime, copy.ctime, copy.btime) =
                (self.now, self.now, self.now, self.now);
            let mut bytes = vec![0; bytes.len()];
            Attributes::clear(&mut bytes);
            copy.store(&mut bytes, 0);
            let detail = format!("inode {ino} {what}: it is what the superblock's copy says");
            self.found(
                Problem::Journal,
                detail,
                (vec![field(place, 0, &bytes)], None),
            );
            self.known.insert(ino, Known::Is(copy));
            return self.journal_superblock(&blocks);
        }
        self.damage(format!("inode {ino}, the journal, {what}"));
        Ok(())
    }

    /// The bytes of an inode.
    fn inode_bytes(&self, (block, offset): (u64, usize)) -> Result<Vec<u8>, Error> {
        let bytes = self.read(block)?;
        Ok(bytes[offset..][..self.geometry.inode_size as usize].to_vec())
    }

    /// The blocks of its file, in their order.
    fn journal_blocks(&self, inode: &Attributes) -> Result<Blocks, Error> {
        let wanted = inode.size / u64::from(self.geometry.block_size);
        if !(BLOCKS_MIN..self.geometry.blocks).contains(&wanted) {
            return Ok(Err(format!("has {wanted} blocks")));
        }
        let mut blocks = Vec::new();
        for (i, &pointer) in inode.pointers.iter().enumerate() {
            let level = (i + 1).saturating_sub(DIRECT) as u32;
            if let Err(what) = self.journal_tree(pointer, level, wanted, &mut blocks)? {
                return Ok(Err(what));
            }
        }
        Ok(Ok(blocks))
    }

    fn journal_tree(
        &self,
        pointer: u32,
        level: u32,
        wanted: u64,
        blocks: &mut Vec<u32>,
    ) -> Result<Result<(), String>, Error> {
        if blocks.len() as u64 >= wanted {
            return Ok(Ok(()));
        }
        if pointer == 0 {
            return Ok(Err(format!("has no block {}", blocks.len())));
        }
        if !self.geometry.has_block(pointer.into()) {
            return Ok(Err(format!("has block {pointer}, outside the disk")));
        }
        let Some(below) = level.checked_sub(1) else {
            blocks.push(pointer);
            return Ok(Ok(()));
        };
        for word in self.read(pointer.into())?.chunks_exact(4) {
            let pointer = u32::from_le_bytes(word.try_into().expect("four bytes"));
            if let Err(what) = self.journal_tree(pointer, below, wanted, blocks)? {
                return Ok(Err(what));
            }
        }
        Ok(Ok(()))
    }

    /// Looks at its superblock: where that makes no sense the log is begun anew.
    fn journal_superblock(&mut self, blocks: &[u32]) -> Result<(), Error> {
        let at = u64::from(blocks[0]);
        let bytes = self.read(at)?;
        let read = JournalSuperblock::read_from_prefix(&bytes);
        let (mut stored, _) = read.expect("a block is longer");
        let is_ours = stored.header.magic.get() == MAGIC;
        let is_new = is_ours && stored.header.kind.get() == SUPERBLOCK_V2;
        let unknown = [
            stored.feature_incompat.get() & !INCOMPAT_KNOWN,
            stored.feature_ro_compat.get(),
        ];
        let what = if is_ours && !is_new && stored.header.kind.get() != SUPERBLOCK_V1 {
            Some(format!(
                "has a superblock of kind {}",
                stored.header.kind.get()
            ))
        } else if is_new && unknown != [0, 0] {
            Some(format!("has unknown features {unknown:x?}"))
        } else if is_ours && stored.start.get() != 0 {
            Some("is not empty, and need not be replayed by the superblock".to_owned())
        } else {
            None
        };
        if let Some(what) = what {
            self.damage(format!("the journal in block {at} {what}"));
            return Ok(());
        }
        if is_new && stored.nr_users.get() > 1 {
            let detail = format!("block {at}: it says that others have it, too");
            let edit = Edit::new(
                at,
                offset_of!(JournalSuperblock, nr_users),
                1_u32.to_be_bytes().to_vec(),
            );
            self.found(Problem::Journal, detail, (vec![edit], None));
            stored.nr_users = 1.into();
        }
        // Others may commit so: an empty log is the same.
        let features = stored.feature_incompat.get() & !INCOMPAT_ASYNC_COMMIT;
        stored.feature_incompat = features.into();
        let blocks = blocks.len() as u64;
        if let Err(error) = superblock::check(&self.geometry, at, stored.as_bytes(), blocks) {
            let mut new = superblock::empty(self.geometry.block_size, blocks as u32);
            // No transaction of before is taken for one of this log.
            new.sequence = (self.now.secs() as u32).into();
            let mut bytes = new.as_bytes().to_vec();
            bytes.resize(self.geometry.block_size as usize, 0);
            let detail = format!("it is begun anew: {error}");
            let edit = Edit::new(at, 0, bytes);
            self.found(Problem::Journal, detail, (vec![edit], None));
        }
        Ok(())
    }

    /// Inode 8 is to be free if it is not that of the journal.
    fn no_journal(&mut self) -> Result<(), Error> {
        let place = self.place(JOURNAL_INO);
        let bytes = self.inode_bytes(place)?;
        let (inode, _) = Inode::read_from_prefix(&bytes).expect("it is as long");
        let is_used = inode.links_count.get() != 0 || inode.blocks_lo.get() != 0;
        if is_used || inode.block[0].get() != 0 {
            let detail = format!("inode {JOURNAL_INO} has contents, and is not the journal's");
            let edit = field(place, 0, &vec![0; bytes.len()]);
            self.found(Problem::Journal, detail, (vec![edit], None));
            self.known.insert(JOURNAL_INO, Known::Cleared);
        }
        Ok(())
    }
}

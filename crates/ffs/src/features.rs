//! The features that an image may have, and what is done with each: read and written, read only,
//! or refused by name.

use crate::layout::Superblock;

/// In which of the superblock's three words a feature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Others may ignore it.
    Compat,
    /// Who writes has to know it.
    RoCompat,
    /// Everybody has to know it.
    Incompat,
}

/// What is done with a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    Write,
    Read,
    Refuse,
}

use Support::{Read, Refuse, Write};
use Word::{Compat, Incompat, RoCompat};

/// `has_journal`.
pub const HAS_JOURNAL: u32 = 0x4;
/// `ext_attr`.
pub const EXT_ATTR: u32 = 0x8;
/// `resize_inode`.
pub const RESIZE_INODE: u32 = 0x10;
/// `dir_index`: directories may have indexes of their names.
pub const DIR_INDEX: u32 = 0x20;
/// `sparse_super2`: of the groups only two, which the superblock names, have copies of it.
pub const SPARSE_SUPER2: u32 = 0x200;
/// `sparse_super`: groups 0 and 1 and powers of 3, 5 and 7 have copies of the superblock.
pub const SPARSE_SUPER: u32 = 0x1;
/// `large_file`: some file has 2 GiB or more.
pub const LARGE_FILE: u32 = 0x2;
/// `huge_file`.
pub const HUGE_FILE: u32 = 0x8;
/// `metadata_csum`.
pub const METADATA_CSUM: u32 = 0x400;
/// `filetype`: directory entries have the kind of what they name.
pub const FILETYPE: u32 = 0x2;
/// `needs_recovery`: the journal holds what has to be replayed.
pub const NEEDS_RECOVERY: u32 = 0x4;
/// `extent`: pointers may be trees of extents.
pub const EXTENT: u32 = 0x40;
/// `64bit`.
pub const BIT64: u32 = 0x80;
/// `flex_bg`: a group's maps and table may lie in other groups.
pub const FLEX_BG: u32 = 0x200;

/// `tureen_cache`: the disk lacks what is in a cache before it. No other system knows it: so none
/// mistakes such a disk for a file system.
pub const TUREEN_CACHE: u32 = 0x4000_0000;

/// All features that have a name, by e2fsprogs.
const TABLE: &[(Word, u32, &str, Support)] = &[
    (Compat, 0x1, "dir_prealloc", Read),
    (Compat, 0x2, "imagic_inodes", Refuse),
    (Compat, HAS_JOURNAL, "has_journal", Write),
    (Compat, EXT_ATTR, "ext_attr", Write),
    (Compat, RESIZE_INODE, "resize_inode", Write),
    (Compat, DIR_INDEX, "dir_index", Write),
    (Compat, 0x40, "lazy_bg", Refuse),
    (Compat, 0x100, "snapshot_bitmap", Refuse),
    (Compat, SPARSE_SUPER2, "sparse_super2", Read),
    (Compat, 0x400, "fast_commit", Read),
    (Compat, 0x800, "stable_inodes", Read),
    (Compat, 0x1000, "orphan_file", Read),
    (RoCompat, SPARSE_SUPER, "sparse_super", Write),
    (RoCompat, LARGE_FILE, "large_file", Write),
    (RoCompat, 0x4, "btree_dir", Refuse),
    (RoCompat, HUGE_FILE, "huge_file", Read),
    (RoCompat, 0x10, "uninit_bg", Read),
    (RoCompat, 0x20, "dir_nlink", Read),
    (RoCompat, 0x40, "extra_isize", Read),
    (RoCompat, 0x80, "snapshot", Refuse),
    (RoCompat, 0x100, "quota", Read),
    (RoCompat, 0x200, "bigalloc", Refuse),
    (RoCompat, METADATA_CSUM, "metadata_csum", Read),
    (RoCompat, 0x800, "replica", Refuse),
    (RoCompat, 0x1000, "read-only", Read),
    (RoCompat, 0x2000, "project", Read),
    (RoCompat, 0x4000, "shared_blocks", Read),
    (RoCompat, 0x8000, "verity", Read),
    (RoCompat, 0x10000, "orphan_present", Read),
    (Incompat, 0x1, "compression", Refuse),
    (Incompat, FILETYPE, "filetype", Write),
    (Incompat, NEEDS_RECOVERY, "needs_recovery", Refuse),
    (Incompat, 0x8, "journal_dev", Refuse),
    (Incompat, 0x10, "meta_bg", Refuse),
    (Incompat, EXTENT, "extent", Read),
    (Incompat, BIT64, "64bit", Read),
    (Incompat, 0x100, "mmp", Refuse),
    (Incompat, FLEX_BG, "flex_bg", Write),
    (Incompat, 0x400, "ea_inode", Refuse),
    (Incompat, 0x1000, "dirdata", Refuse),
    (Incompat, 0x2000, "metadata_csum_seed", Read),
    (Incompat, 0x4000, "large_dir", Read),
    (Incompat, 0x8000, "inline_data", Refuse),
    (Incompat, 0x10000, "encrypt", Refuse),
    (Incompat, 0x20000, "casefold", Refuse),
    (Incompat, TUREEN_CACHE, "tureen_cache", Refuse),
];

/// The features of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that others may ignore.
    pub compat: u32,
    /// Those that a writer has to know.
    pub ro_compat: u32,
    /// Those that everybody has to know.
    pub incompat: u32,
}

impl Features {
    /// Those that the superblock lists. Revision 0 had none.
    pub fn of(superblock: &Superblock) -> Features {
        match superblock.rev_level.get() {
            0 => Features::default(),
            _ => Features::stored(superblock),
        }
    }

    /// What the superblock has in the place of the list, whatever its revision.
    pub fn stored(superblock: &Superblock) -> Features {
        Features {
            compat: superblock.feature_compat.get(),
            ro_compat: superblock.feature_ro_compat.get(),
            incompat: superblock.feature_incompat.get(),
        }
    }

    /// The names of all.
    pub fn names(&self) -> Vec<String> {
        self.which(|_, _| true)
    }

    /// Names of what forbids to mount the image at all.
    pub fn refused(&self) -> Vec<String> {
        // Without a name only a bit that readers may ignore can be harmless.
        self.which(|word, support| match support {
            Some(support) => support == Refuse,
            None => word == Incompat,
        })
    }

    /// Names of what forbids to write to it: what is refused is among it.
    pub fn read_only(&self) -> Vec<String> {
        self.which(|_, support| support != Some(Write))
    }

    fn word(&self, word: Word) -> u32 {
        match word {
            Compat => self.compat,
            RoCompat => self.ro_compat,
            Incompat => self.incompat,
        }
    }

    /// The names of those features that `wanted` says, of bits without a name the bit.
    fn which(&self, wanted: impl Fn(Word, Option<Support>) -> bool) -> Vec<String> {
        let mut names = Vec::new();
        for word in [Compat, RoCompat, Incompat] {
            for bit in (0..32).map(|shift| 1 << shift) {
                if self.word(word) & bit == 0 {
                    continue;
                }
                let known = TABLE.iter().find(|row| (row.0, row.1) == (word, bit));
                if wanted(word, known.map(|row| row.3)) {
                    names.push(match known {
                        Some(row) => row.2.to_owned(),
                        None => format!("{word:?} bit {bit:#x}").to_lowercase(),
                    });
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_written_read_or_refused_by_name() {
        let mut features = Features {
            compat: HAS_JOURNAL | EXT_ATTR,
            ro_compat: SPARSE_SUPER | LARGE_FILE,
            incompat: FILETYPE,
        };
        assert!(features.refused().is_empty() && features.read_only().is_empty());
        features.incompat |= BIT64;
        assert!(features.refused().is_empty());
        assert_eq!(features.read_only(), ["64bit"]);
        features.incompat |= 0x8000 | 0x8000_0000;
        features.compat |= 0x4000_0000;
        assert_eq!(
            features.refused(),
            ["inline_data", "incompat bit 0x80000000"]
        );
        assert_eq!(features.read_only().len(), 4);
    }

    #[test]
    fn a_feature_is_listed_once() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!(row.1.is_power_of_two(), "{}", row.2);
            let rest = &TABLE[i + 1..];
            assert!(
                rest.iter()
                    .all(|other| (other.0, other.1) != (row.0, row.1) && other.2 != row.2),
                "{}",
                row.2
            );
        }
    }
}

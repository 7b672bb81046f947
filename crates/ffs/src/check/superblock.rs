//! What the superblock says beside where everything lies.

use super::Problem;
use super::audit::Audit;
use crate::features::{self, Features};
use crate::image::dir::hash::Hashes;
use crate::layout::{FIRST_INO, FLAG_UNSIGNED_HASH, INODE_LEN, Superblock};

impl Audit {
    /// Looks at what others insist on.
    pub(super) fn superblock(&mut self, stored: &Superblock) {
        let clusters = [stored.log_cluster_size, stored.clusters_per_group];
        if clusters != [stored.log_block_size, stored.blocks_per_group] {
            self.damage("superblock: clusters that are no blocks".to_owned());
        }
        let (reserved, blocks) = (stored.r_blocks_count_lo.get(), self.geometry.blocks);
        if u64::from(reserved) > blocks / 2 {
            self.damage(format!(
                "superblock: {reserved} of {blocks} blocks are reserved"
            ));
        }
        let has_features = Features::stored(stored) != Features::default();
        if stored.rev_level.get() == 0 && has_features {
            self.damage("superblock: features, in revision 0".to_owned());
        }
        self.hashes = Hashes {
            seed: stored.hash_seed,
            is_unsigned: stored.flags.get() & FLAG_UNSIGNED_HASH != 0,
        };
        let dates = [stored.wtime, stored.mtime, stored.mkfs_time];
        let is_late = |date: u32| date == 0 || date >= self.geometry.inodes;
        self.has_late_dates = dates.iter().all(|date| is_late(date.get()));
    }

    /// Whether it says that there are large files, if there are.
    pub(super) fn large_files(&mut self, superblock: &mut Superblock) {
        let is_said = self.geometry.features.ro_compat & features::LARGE_FILE != 0;
        if is_said || !self.has_large {
            return;
        }
        let detail = "a file has 2 GiB or more, and the superblock does not say so".to_owned();
        self.found(Problem::Features, detail, (Vec::new(), None));
        superblock.feature_ro_compat |= features::LARGE_FILE;
        if superblock.rev_level.get() == 0 {
            superblock.rev_level = 1.into();
            superblock.first_ino = FIRST_INO.into();
            superblock.inode_size = (INODE_LEN as u16).into();
        }
    }
}

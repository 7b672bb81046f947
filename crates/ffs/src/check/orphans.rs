//! The list of orphans of a journal's image, as a crash left it.

use vfs::Error;

use super::Problem;
use super::audit::Audit;
use crate::image;

impl Audit {
    /// Looks at the list that begins with inode `first`, before all other inodes. What is in it is
    /// whole: it has its blocks, and without a name it is in use.
    pub(super) fn orphans(&mut self, first: u32) -> Result<(), Error> {
        let g = self.geometry.clone();
        let mut next = first;
        while next != 0 {
            let is_listed = self.held.contains(&next) || self.cut.contains(&next);
            if next < g.first_ino || !g.has_inode(next) || is_listed {
                self.damage(format!(
                    "inode {next} cannot be the next in the list of orphans"
                ));
                break;
            }
            let (block, offset) = self.place(next);
            let bytes = self.read(block)?;
            let bytes = &bytes[offset..][..g.inode_size as usize];
            let (stored, after) = match image::orphan(&g, next, block, bytes) {
                Ok(orphan) => orphan,
                Err(error) => {
                    self.damage(format!("in the list of orphans: {error}"));
                    break;
                }
            };
            let detail = match stored.attributes.links {
                0 => format!("inode {next} has no name, and is in the list of those to be freed"),
                _ => format!("inode {next} is in the list of those to be cut off at their ends"),
            };
            self.found(Problem::Orphan, detail, (Vec::new(), None));
            match stored.attributes.links {
                0 => self.held.insert(next),
                _ => self.cut.insert(next),
            };
            next = after;
        }
        Ok(())
    }
}

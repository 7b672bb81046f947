//! The extended attributes of an inode: those in it, then those in its block.

use vfs::Result;

use crate::image::StoredInode;
use crate::image::xattr::{Xattr, in_block, in_inode};
use crate::medium::Medium;

/// All extended attributes.
///
/// # Errors
/// They are damaged, or the disk failed.
pub fn all(medium: &Medium, inode: &StoredInode) -> Result<Vec<Xattr>> {
    let geometry = &medium.geometry;
    let mut all = in_inode(geometry, inode.ino, inode.at, &inode.xattrs)?;
    let block = inode.attributes.xattr_block;
    if block != 0 {
        let bytes = medium.follow(inode.at, block)?;
        all.extend(in_block(geometry, block, &bytes.bytes())?);
    }
    Ok(all)
}

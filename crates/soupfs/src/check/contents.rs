//! Contents that only look right if read: targets of symbolic links, extended attributes.

use crate::attributes::Attributes;
use crate::image::{Image, Source};
use crate::layout::{PAGE, page_at};
use std::collections::HashSet;
use vfs::{XATTR_NAME_MAX, XATTR_SIZE_MAX};

/// What is wrong with a symbolic link, if anything is.
pub(crate) fn symlink_error<S: Source>(
    image: &Image<'_, S>,
    inode: &Attributes,
) -> Option<&'static str> {
    if inode.size == 0 || inode.size >= PAGE {
        return Some("symbolic link with a target of impossible length");
    }
    match image.root(inode.ino, inode.root) {
        Ok(Some(root)) if root.height == 0 && !root.top.unwritten => {
            let mut target = [0; PAGE as usize];
            let target = &mut target[..inode.size as usize];
            image.pool.read(page_at(root.top.page), target);
            let zero = target.contains(&0);
            zero.then_some("symbolic link with a zero in its target")
        }
        _ => Some("symbolic link without a target"),
    }
}

/// Whether the bytes of extended attributes are records to their end, with distinct names.
pub(crate) fn parse_xattrs(mut bytes: &[u8]) -> Result<(), &'static str> {
    let mut names = HashSet::new();
    while !bytes.is_empty() {
        let Some((header, rest)) = bytes.split_first_chunk::<6>() else {
            return Err("extended attributes end within a header");
        };
        let name_len = usize::from(u16::from_le_bytes([header[0], header[1]]));
        let value_len = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
        if name_len == 0 || name_len > XATTR_NAME_MAX || value_len > XATTR_SIZE_MAX {
            return Err("extended attribute of impossible length");
        }
        if rest.len() < name_len + value_len {
            return Err("extended attributes end within a record");
        }
        if !names.insert(&rest[..name_len]) {
            return Err("extended attribute stored twice");
        }
        bytes = &rest[name_len + value_len..];
    }
    Ok(())
}

//! Orphans: inodes that were removed while somebody used them, or were being cut off, when a
//! journaling file system crashed. The superblock leads to the first, each to the next.
//!
//! They are freed, or cut off, by a mount for writing, as by any caller; the list is emptied when
//! that is durable. Until then the image is not clean.

use std::collections::BTreeSet;
use std::sync::Arc;

use vfs::{Change, Kind, Result, SetAttr};

use crate::inode::Node;
use crate::layout::Superblock;
use crate::volume::Volume;

/// Frees the orphans without names, and what files with names have behind their end. `between` is
/// run after each, and after each step of one that takes several. Says how many orphans there were.
///
/// # Errors
/// The list or an inode in it is damaged; the disk failed.
pub fn free(
    volume: &Arc<Volume>,
    superblock: &Superblock,
    between: &dyn Fn() -> Result<()>,
) -> Result<usize> {
    let mut orphans = Vec::new();
    let (mut next, mut seen) = (superblock.last_orphan.get(), BTreeSet::new());
    let g = &volume.medium.geometry;
    let mut holder = g.first_block;
    // All before the first: who is freed leads to nobody any more.
    while next != 0 {
        if next < g.first_ino || !g.has_inode(next) || !seen.insert(next) {
            let what = format_args!("inode {next} cannot be the next in the list of orphans");
            return Err(g.damage(holder, what));
        }
        let (orphan, after) = volume.medium.orphan(next)?;
        (holder, next) = (orphan.at, after);
        orphans.push(orphan);
    }
    let count = orphans.len();
    for orphan in orphans {
        let is_cut = orphan.attributes.links > 0;
        let node = volume.orphan(orphan)?;
        if is_cut {
            cut(volume, &node, between)?;
        }
        // The last who used it: without names it is freed.
        drop(node);
        between()?;
    }
    Ok(count)
}

/// Frees what a file has behind its end.
fn cut(volume: &Volume, node: &Node, between: &dyn Fn() -> Result<()>) -> Result<()> {
    if node.kind != Kind::File {
        return Ok(());
    }
    let size = {
        let mut state = node.state.write();
        std::mem::replace(&mut state.stored.attributes.size, volume.file_max())
    };
    let change = Change {
        set: SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
        ..Change::default()
    };
    while volume.apply(node, &change)?.is_none() {
        between()?;
    }
    Ok(())
}

//! Words of an inode that cannot be, and what they must have been.
//!
//! What an inode holds is worth more than any one of its words. As long as its magic number says that it is one,
//! what contradicts the rest is put right, and the walk goes on with what it will be then.

use super::names::Table;
use super::walk::symlink_error;
use super::{Finding, Fix, Problem};
use crate::image::{Image, InodeImage, Source};
use crate::layout::{WORDS_PER_PAGE, bucket, inode, line_at};
use vfs::{Kind, Result};

/// The inode that an entry of the directory `holder` says is of kind `named`, with its kind and level as they will be, and
/// what makes them so.
pub(super) fn inode<S: Source>(
    image: &Image<'_, S>,
    ino: u64,
    named: Kind,
    holder: u64,
) -> Result<(InodeImage, Vec<Finding>)> {
    let mut findings = Vec::new();
    let mut found = image.inode_as_it_is(ino, Some(named))?;
    let at = line_at(ino) + inode::MODE_NLINK;
    let word = image.pool.load(at);
    let own = Kind::from_mode(word as u32 & 0xffff);
    if own != Some(named) {
        let as_named = InodeImage {
            level: level(image, ino),
            kind: named,
            ..found
        };
        let is_named = || !fits(image, &found, holder) && fits(image, &as_named, holder);
        if own.is_none() || is_named() {
            found = as_named;
            let detail =
                format!("its kind is damaged, its name and what it holds are those of a {named:?}");
            let value = word & !0xf000 | u64::from(named.mode_bits());
            let finding = Finding::new(Problem::WrongKind, ino, at, detail);
            findings.push(finding.fix(Fix::Store { at, value }));
        }
    }
    if found.kind == Kind::Dir && !image.has_room_for_table(found.level) {
        let at = line_at(ino) + inode::LEVEL;
        let level = table_level(image, &found);
        let detail = format!(
            "table level {} cannot be, its blocks are those of {level}",
            found.level
        );
        let finding = Finding::new(Problem::BadWord, ino, at, detail);
        findings.push(finding.fix(Fix::Store {
            at,
            value: level.into(),
        }));
        found.level = level;
    }
    Ok((found, findings))
}

/// The level word, whatever the inode's kind.
fn level<S: Source>(image: &Image<'_, S>, ino: u64) -> u32 {
    u32::try_from(image.pool.load(line_at(ino) + inode::LEVEL)).unwrap_or(u32::MAX)
}

/// Whether what an inode holds can be that of its kind. `PARENT` is a directory's alone.
fn fits<S: Source>(image: &Image<'_, S>, inode: &InodeImage, holder: u64) -> bool {
    let root = image.root(inode.ino, inode.root);
    match inode.kind {
        Kind::Dir => {
            inode.parent == holder && root.is_ok_and(|r| r.is_none_or(|r| !r.top.unwritten))
        }
        _ if inode.parent != 0 => false,
        Kind::File => root.is_ok(),
        Kind::Symlink => symlink_error(image, inode).is_none(),
        Kind::CharDev | Kind::BlockDev => inode.size == 0 && inode.root <= u64::from(u32::MAX),
        Kind::Fifo | Kind::Socket => inode.size == 0 && inode.root == 0,
    }
}

/// The lowest level whose table has room for all blocks that a directory has. A level that is too high changes nothing:
/// buckets that are not split off are sought in their parents.
pub(super) fn table_level<S: Source>(image: &Image<'_, S>, dir: &InodeImage) -> u32 {
    let blocks = Table {
        image: *image,
        inode: dir,
    }
    .blocks();
    (0..=bucket::LEVEL_MAX as u32)
        .take_while(|&level| image.has_room_for_table(level))
        .find(|&level| bucket::BASE << level >= blocks * WORDS_PER_PAGE)
        .unwrap_or(0)
}

//! Impossible words of an inode, and the values that they must have had.
//!
//! What an inode holds is worth more than any one of its words. As long as its magic number says
//! that it is one, of which a byte may be wrong, what contradicts the rest is put right, and the
//! walk goes on with what it will be then.

use crate::attributes::Attributes;
use crate::check::contents::symlink_error;
use crate::check::dir_table::DirTable;
use crate::check::finding::{Finding, Fix, Problem};
use crate::image::{Image, Source};
use crate::layout::{FILE_MAX, WORDS_PER_PAGE, bucket, inode, line_at};
use vfs::{Error, Kind, Result};

/// The highest level with a table of one block.
const ONE_BLOCK: u32 = (WORDS_PER_PAGE / bucket::BASE).ilog2();

/// The inode that an entry of the directory `holder` says is of kind `named`, with its kind and
/// level as they will be, and what makes them so. Without a holder it is the root, of which the
/// superblock says that it is a directory.
///
/// # Errors
/// What contradicts itself in more than one way is something else by now, or was removed: whatever
/// leads there is wrong.
pub(crate) fn mended<S: Source>(
    image: &Image<'_, S>,
    ino: u64,
    named: Kind,
    holder: Option<u64>,
) -> Result<(Attributes, Vec<Finding>)> {
    let is_sure = holder.is_none() && image.was_clean();
    let holder = holder.unwrap_or(ino);
    let mut findings = Vec::new();
    let mut found = image.inode_with(ino, Some(named), is_nearly_magic)?;
    let bad_magic = magic(image, ino);
    let has_magic = bad_magic.is_none();
    findings.extend(bad_magic);
    let at = line_at(ino) + inode::MODE_NLINK;
    let word = image.pool.load(at);
    let own = Kind::from_mode(word as u32 & 0xffff);
    if own != Some(named) {
        let as_named = Attributes {
            level: level(image, ino),
            kind: named,
            ..found
        };
        let fits_itself = own.is_some() && fits(image, &found, holder);
        let is_named = own.is_none() || is_sure || fits(image, &as_named, holder);
        // Whatever fits a symbolic link hardly is anything else; of several names this may be the
        // one that is damaged.
        let is_symlink = named == Kind::Symlink && found.nlink <= 1;
        if is_named && (!fits_itself || is_sure || is_symlink) {
            found = as_named;
            let detail =
                format!("its kind is damaged, its name and what it holds are those of a {named:?}");
            let value = word & !(inode::MODE_RESERVED | 0xf000) | u64::from(named.mode_bits());
            let finding = Finding::new(Problem::WrongKind, ino, at, detail);
            findings.push(finding.fix(Fix::Store { at, value }));
        } else if !fits_itself {
            return Err(Error::corrupt(
                at,
                format!("inode {ino} is of another kind"),
            ));
        }
    }
    if !is_sure && contradictions(image, &found, word, has_magic) > 1 {
        return Err(Error::corrupt(
            at,
            format!("no inode at line {ino} any more"),
        ));
    }
    let has_table = found.kind == Kind::Dir && found.level > ONE_BLOCK;
    if has_table
        && let level = table_level(image, &found)
        && found.level > level
    {
        let at = line_at(ino) + inode::LEVEL;
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

/// Whether all bytes but one are those of the magic number.
fn is_nearly_magic(found: u32) -> bool {
    let bytes = found
        .to_le_bytes()
        .into_iter()
        .zip(inode::MAGIC.to_le_bytes());
    bytes.filter(|(found, magic)| found != magic).count() <= 1
}

/// The word of magic number and generation with the right one.
pub(crate) fn with_magic(word: u64) -> u64 {
    word & !0xffff_ffff | u64::from(inode::MAGIC)
}

/// What is wrong with the magic number, if anything is.
fn magic<S: Source>(image: &Image<'_, S>, ino: u64) -> Option<Finding> {
    let at = line_at(ino) + inode::MAGIC_GENERATION;
    let word = image.pool.load(at);
    let value = with_magic(word);
    (word != value).then(|| {
        let detail = "one byte of its magic number is wrong";
        Finding::new(Problem::BadWord, ino, at, detail).fix(Fix::Store { at, value })
    })
}

/// Words that no inode in use has. An inode that was removed has no names and, sooner or later, no
/// lines; they keep its magic number, and may be an entry's now.
fn contradictions<S: Source>(
    image: &Image<'_, S>,
    found: &Attributes,
    mode: u64,
    has_magic: bool,
) -> usize {
    let is_dir = found.kind == Kind::Dir;
    let has_tree = matches!(found.kind, Kind::Dir | Kind::File | Kind::Symlink);
    let is_nameless = found.nlink == 0;
    let has_kind = Kind::from_mode(mode as u32 & 0xffff).is_some();
    let reserved = |field| image.pool.load(line_at(found.ino) + field) != 0;
    let words = [
        !has_magic,
        is_nameless || !has_kind || mode & inode::MODE_RESERVED != 0,
        is_nameless && !image.was_clean(),
        found.size > FILE_MAX,
        is_dir && !image.has_room_for_table(found.level),
        !is_dir && found.parent != 0,
        has_tree && image.root(found.ino, found.root).is_err(),
        inode::RESERVED.into_iter().any(reserved),
    ];
    match words.into_iter().filter(|&wrong| wrong).count() {
        0 => 0, // the map, which is far away, makes no second one
        wrong => wrong + usize::from(!image.is_marked(found.ino)),
    }
}

/// The level word, whatever the inode's kind.
fn level<S: Source>(image: &Image<'_, S>, ino: u64) -> u32 {
    u32::try_from(image.pool.load(line_at(ino) + inode::LEVEL)).unwrap_or(u32::MAX)
}

/// Whether what an inode holds can be that of its kind. `PARENT` is a directory's alone.
fn fits<S: Source>(image: &Image<'_, S>, inode: &Attributes, holder: u64) -> bool {
    let root = image.root(inode.ino, inode.root);
    match inode.kind {
        Kind::Dir => {
            inode.parent == holder && root.is_ok_and(|r| r.is_none_or(|r| !r.top.unwritten))
        }
        _ if inode.parent != 0 => false,
        Kind::File => root.is_ok(),
        Kind::Symlink => inode.perm == 0o777 && symlink_error(image, inode).is_none(),
        Kind::CharDev | Kind::BlockDev => inode.size == 0 && inode.root <= u64::from(u32::MAX),
        Kind::Fifo | Kind::Socket => inode.size == 0 && inode.root == 0,
    }
}

/// The highest level whose table is all there, as far as a directory's last block tells. Where
/// names are does not depend on it: what a higher level would split off is sought in the parents.
pub(crate) fn table_level<S: Source>(image: &Image<'_, S>, dir: &Attributes) -> u32 {
    let blocks = DirTable {
        image: *image,
        inode: dir,
    }
    .blocks();
    let mut level = 0;
    while bucket::BASE << level < blocks.max(1) * WORDS_PER_PAGE
        && image.has_room_for_table(level + 1)
    {
        level += 1;
    }
    level
}

//! `docs/format/soupfs.md` says what `layout.rs` says: every constant, and its value.

use crate::layout::*;
use std::collections::{BTreeMap, BTreeSet};

const DOCUMENT: &str = include_str!("../../../../../../docs/format/soupfs.md");
const LAYOUT: &str = include_str!("../../../layout.rs");

/// Constants of a module with their values.
macro_rules! constants {
    ($all:ident, $module:ident: $($name:ident)*) => {
        $($all.insert(
            concat!(stringify!($module), "::", stringify!($name)).to_owned(),
            vec![$module::$name as u64],
        );)*
    };
    ($all:ident: $($name:ident)*) => {
        $($all.insert(stringify!($name).to_owned(), vec![$name as u64]);)*
    };
}

fn in_code() -> BTreeMap<String, Vec<u64>> {
    let mut all = BTreeMap::new();
    constants!(all: LINE PAGE LINES_PER_PAGE WORDS_PER_PAGE REGION_PAGES IMAGE_MIN IMAGE_MAX);
    constants!(all: FILE_MAX LINK_MAX LINE_BITS LINE_MASK EPOCH_FIRST EPOCH_MAX);
    constants!(all, superblock: MAGIC VERSION INCOMPAT_KNOWN RO_COMPAT_KNOWN AT_MAGIC AT_VERSION);
    constants!(all, superblock: AT_RESERVED AT_COMPAT AT_RO_COMPAT AT_INCOMPAT AT_PAGES AT_JOURNAL);
    constants!(all, superblock: AT_JOURNAL_PAGES AT_SUMMARIES AT_ROOT AT_CREATED AT_UUID);
    constants!(all, superblock: AT_HASH_KEY AT_LABEL AT_CHECKSUM LEN);
    constants!(all, state: EPOCH CLEAN_EPOCH REPAIRING FREE_LINES);
    constants!(all, inode: LINES MODE_NLINK MODE_RESERVED OWNER SIZE ROOT MTIME CTIME ATIME PAGES);
    constants!(all, inode: BTIME XATTR PARENT MAGIC_GENERATION LEVEL UNFLUSHED MAGIC LEN);
    all.insert("inode::RESERVED".to_owned(), inode::RESERVED.to_vec());
    constants!(all, dentry: LATEST_NEXT NEXT TARGET HASH NAME MORE INLINE INLINE_LONG PER_LINE);
    constants!(all, dentry: PENDING FRESH LEN_SHIFT KIND_SHIFT);
    constants!(all, bucket: BASE LEVEL_MAX EMPTY);
    constants!(all, index: FANOUT FANOUT_BITS HEIGHT_MAX UNWRITTEN SHIFT);
    constants!(all, xattr: NEXT USED DATA CAPACITY PAGES_MAX);
    all
}

/// The value that a cell of the document states.
fn value(cell: &str) -> Option<u64> {
    if let Some(text) = cell
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    {
        return Some(
            text.bytes()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(byte)),
        );
    }
    match cell.split_once('^') {
        Some(("2", power)) => match power.split_once('-') {
            Some((power, less)) => {
                Some((1 << power.parse::<u32>().ok()?) - less.parse::<u64>().ok()?)
            }
            None => Some(1 << power.parse::<u32>().ok()?),
        },
        _ => cell.parse().ok(),
    }
}

/// Rows of tables whose second column is "value": the first column's head names the module.
fn in_document() -> BTreeMap<String, Vec<u64>> {
    let mut all = BTreeMap::new();
    let mut module = None;
    for line in DOCUMENT.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.len() < 4 {
            module = None;
            continue;
        }
        let name = cells[1].trim_matches('`');
        if cells[2] == "value" {
            module = Some(if name == "constant" {
                String::new()
            } else {
                format!("{name}::")
            });
        } else if let Some(module) = module.as_ref().filter(|_| !name.starts_with("---")) {
            let values: Option<Vec<u64>> = cells[2].split(", ").map(value).collect();
            let values = values.unwrap_or_else(|| panic!("no value: {line}"));
            assert!(
                all.insert(format!("{module}{name}"), values).is_none(),
                "twice: {line}"
            );
        }
    }
    all
}

/// The names of all public constants in the source of the layout.
fn in_source() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut module = String::new();
    for line in LAYOUT.lines() {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = format!("{}::", name.trim_end_matches(" {"));
        } else if line == "}" {
            module.clear();
        } else if let Some(rest) = line.trim_start().strip_prefix("pub const ")
            && !rest.starts_with("fn ")
            && let Some((name, _)) = rest.split_once(':')
        {
            all.insert(format!("{module}{name}"));
        }
    }
    all
}

#[test]
fn the_document_has_every_constant_of_the_layout_with_its_value() {
    let code = in_code();
    assert_eq!(in_document(), code);
    assert_eq!(code.into_keys().collect::<BTreeSet<_>>(), in_source());
}

//! Making an empty file system.

use crate::attributes::Attributes;
use crate::image::Superblock;
use crate::layout::{
    EPOCH_FIRST, Geometry, IMAGE_MAX, IMAGE_MIN, LINES_PER_PAGE, PAGE, inode, line_at, page_at,
    state, superblock,
};
use pmem::{Journal, Pool};
use std::sync::Arc;
use vfs::{Kind, Time};

/// What a new file system is given.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Identifier; random.
    pub uuid: [u8; 16],
    /// A name, at most 64 bytes.
    pub label: String,
    /// Key of the name hash; random and secret.
    pub hash_key: [u8; 16],
    /// Now.
    pub time: Time,
    /// Owner of the root directory.
    pub owner: (u32, u32),
    /// The pool reads as zeros: its maps need not be cleared.
    pub zeroed: bool,
}

/// Why formatting failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too small or too large.
    #[error("an image has {IMAGE_MIN} to {IMAGE_MAX} bytes, not {0}")]
    Size(u64),
    /// Too long.
    #[error("a label has at most 64 bytes, not {0}")]
    Label(usize),
    /// The medium failed.
    #[error("medium failed: {0}")]
    Medium(#[from] pmem::MediumError),
}

/// Whether an image may have so many bytes.
///
/// # Errors
/// [`FormatError::Size`].
pub fn check_len(len: u64) -> Result<(), FormatError> {
    match (IMAGE_MIN..=IMAGE_MAX).contains(&len) {
        true => Ok(()),
        false => Err(FormatError::Size(len)),
    }
}

/// How much of a disk's beginning may say whose it is; some file systems leave their first 64 KiB
/// alone.
const SIGNATURES_LEN: u64 = 1 << 20;

/// Make an empty file system in a pool. The superblock is written last: a crash before leaves
/// what is no Tureen image.
pub fn format(pool: &Arc<Pool>, options: &FormatOptions) -> Result<(), FormatError> {
    check_len(pool.len())?;
    if options.label.len() > 64 {
        return Err(FormatError::Label(options.label.len()));
    }
    let g = Geometry::for_len(pool.len());
    // What told of another file system must not tell of it any more.
    let foreign = if options.zeroed {
        2 * PAGE
    } else {
        SIGNATURES_LEN
    };
    let foreign = foreign.min(pool.len());
    pool.back(0, page_at(g.map_end(0) + 1).max(foreign))?;
    pool.back(page_at(g.superblock_copy()), PAGE)?;
    // tmpfs clears what it allocated in advance when it is first looked at: 64 MiB of journal would
    // take the first mount 100 ms.
    for page in g.journal..g.journal + g.journal_pages {
        pool.load(page_at(page));
    }
    wipe(pool, 0, PAGE);
    wipe(pool, page_at(g.superblock_copy()), PAGE);
    pool.fence()?;

    wipe(pool, PAGE, foreign - PAGE);
    Journal::format(pool, page_at(g.journal), g.journal_pages * PAGE);
    if !options.zeroed {
        wipe(pool, page_at(g.summaries), g.summary_pages() * PAGE);
        for region in 0..g.regions() {
            let (start, end) = (
                g.map_start(region),
                g.map_end(region).min(g.region_end(region)),
            );
            wipe(pool, page_at(start), (end - start) * PAGE);
        }
    }
    let root_page = g.allocatable(0).start;
    let root = root_page * LINES_PER_PAGE;
    write_root(pool, root, options);
    let (at, bit) = g.page_bit(root_page);
    put(pool, at, bit);
    put(pool, g.line_word(root_page), (1 << inode::LINES) - 1);
    for region in 0..g.regions() {
        let pages = g.allocatable(region);
        let used = u64::from(region == 0);
        let lines = used * (LINES_PER_PAGE - inode::LINES);
        put(
            pool,
            g.summary_at(region),
            (pages.end - pages.start - used) | lines << 32,
        );
    }
    put(pool, state::EPOCH, EPOCH_FIRST);
    put(pool, state::CLEAN_EPOCH, EPOCH_FIRST);
    put(
        pool,
        state::FREE_LINES,
        g.allocatable_pages() * LINES_PER_PAGE - inode::LINES,
    );
    pool.fence()?;

    let sb = Superblock {
        geometry: g,
        root,
        ro_compat: 0,
        created: options.time,
        uuid: options.uuid,
        hash_key: options.hash_key,
        label: options.label.clone(),
    };
    for page in [g.superblock_copy(), 0] {
        pool.write(page_at(page), &sb.encode());
        pool.flush(page_at(page), superblock::LEN as u64);
        pool.fence()?;
    }
    Ok(())
}

fn put(pool: &Pool, at: u64, value: u64) {
    pool.store(at, value);
    pool.flush(at, 8);
}

fn wipe(pool: &Pool, at: u64, len: u64) {
    pool.zero(at, len);
    pool.flush(at, len);
}

fn write_root(pool: &Pool, root: u64, options: &FormatOptions) {
    let attributes = Attributes {
        perm: 0o755,
        nlink: 2,
        uid: options.owner.0,
        gid: options.owner.1,
        parent: root,
        ..Attributes::new(root, 1, Kind::Dir, options.time)
    };
    for (field, value) in (0..).step_by(8).zip(attributes.encode()) {
        put(pool, line_at(root) + field, value);
    }
}

//! Directories: entries in blocks, and in DRAM where each name is.

use std::collections::BTreeSet;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use vfs::{Errno, Kind, Result};

use crate::image::dir::entries;
use crate::image::{StoredInode, dir};
use crate::map;
use crate::medium::Medium;

/// Where the names of a directory are: by hash, the byte offset in the directory. So a lookup reads
/// the block that has the name, and hardly ever another.
pub struct Index(BTreeSet<(u64, u64)>);

/// A name's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it names.
    pub ino: u32,
    /// Of what kind that is, if the entry says so.
    pub kind: Option<Kind>,
}

/// Hash of a name. The key is secret, so that nobody can make names collide.
fn hash(key: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(name);
    hasher.finish()
}

/// Calls `visit` with each entry in use whose offset in the directory is at least `from`, and its
/// offset, until that returns false.
///
/// # Errors
/// The directory is damaged, or the disk failed.
pub fn scan(
    medium: &Medium,
    dir: &StoredInode,
    from: u64,
    visit: &mut dyn FnMut(u64, dir::Entry<'_>) -> bool,
) -> Result<()> {
    let block_size = u64::from(medium.geometry.block_size);
    for logical in from / block_size..dir.attributes.size / block_size {
        let start = logical * block_size;
        let at = block(medium, dir, logical)?;
        let bytes = medium.cache.read(at)?;
        for entry in entries(&medium.geometry, at, &bytes) {
            let entry = entry?;
            let offset = start + entry.offset as u64;
            if offset >= from && !visit(offset, entry) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The block of the disk that has block `logical` of a directory, which has no holes.
fn block(medium: &Medium, dir: &StoredInode, logical: u64) -> Result<u64> {
    let found = map::run(medium, dir, logical)?.block;
    found.ok_or_else(|| {
        let what = format_args!("directory {} has a hole at its block {logical}", dir.ino);
        medium.geometry.damage(dir.at, what)
    })
}

impl Index {
    /// Reads a directory. `key` is that of the hash.
    ///
    /// # Errors
    /// The directory is damaged, or the disk failed.
    pub fn new(medium: &Medium, dir: &StoredInode, key: &[u8; 16]) -> Result<Index> {
        let mut names = BTreeSet::new();
        scan(medium, dir, 0, &mut |offset, entry| {
            names.insert((hash(key, entry.name), offset));
            true
        })?;
        Ok(Index(names))
    }

    /// The entry of a name; `ENOENT` if there is none.
    ///
    /// # Errors
    /// That one; the directory is damaged, or the disk failed.
    pub fn find(
        &self,
        medium: &Medium,
        dir: &StoredInode,
        key: &[u8; 16],
        name: &[u8],
    ) -> Result<Found> {
        let hash = hash(key, name);
        for &(_, offset) in self.0.range((hash, 0)..=(hash, u64::MAX)) {
            let mut found = None;
            scan(medium, dir, offset, &mut |_, entry| {
                if entry.name == name {
                    found = Some(Found {
                        ino: entry.ino,
                        kind: entry.kind,
                    });
                }
                false
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(Errno::NOENT.into())
    }
}

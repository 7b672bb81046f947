//! Extended attributes: a chain of pages per inode that is replaced as a whole.
//!
//! A change writes a new chain, private until the persister swings the inode's pointer to it; so
//! any set of attributes changes atomically, and the old chain is freed when nothing leads to it.

use crate::image::{Image, Source};
use crate::layout::{page_at, xattr};
use crate::medium::Medium;
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{
    Errno, Error, Result, XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrChange, XattrMode,
};

/// Attributes by name.
#[derive(Debug, Clone, Default)]
pub struct Map(BTreeMap<Vec<u8>, Vec<u8>>);

/// The extended attributes of an inode. A change is prepared without a lock ([`Prepared`]), and put
/// into place in a few instructions, if nobody else has made one meanwhile.
#[derive(Default)]
pub struct Xattrs {
    map: Arc<Map>,
    /// The chain in the consistent view, or in the batch being persisted.
    captured: Vec<u64>,
    /// The chain that replaces it; empty for no attributes.
    latest: Option<Vec<u64>>,
}

/// A set with a chain that nothing leads to yet.
pub struct Prepared {
    map: Arc<Map>,
    pages: Vec<u64>,
}

/// What the persister takes: the new chain, and the one that it replaces.
pub struct XattrCapture {
    /// Pages of the new chain, in order.
    pub new: Vec<u64>,
    /// Pages of the old chain.
    pub old: Vec<u64>,
}

impl Map {
    /// The value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&Vec<u8>> {
        self.0.get(name)
    }

    /// All names.
    pub fn names(&self) -> Vec<Vec<u8>> {
        self.0.keys().cloned().collect()
    }

    /// All of them as they will be after these changes, if those may be made, whatever space there
    /// is.
    pub fn changed(&self, changes: &[XattrChange<'_>]) -> Result<Map> {
        let mut map = self.clone();
        for change in changes {
            map.check(change)?;
            match change.value {
                Some(value) => map.0.insert(change.name.to_vec(), value.to_vec()),
                None => map.0.remove(change.name),
            };
        }
        if changes.iter().any(|change| change.value.is_some()) {
            map.check_size()?;
        }
        Ok(map)
    }

    fn check(&self, change: &XattrChange<'_>) -> Result<()> {
        let XattrChange { name, value, mode } = *change;
        if value.is_some() && (name.is_empty() || name.len() > XATTR_NAME_MAX) {
            return Err(Errno::RANGE.into());
        }
        if value.is_some_and(|value| value.len() > XATTR_SIZE_MAX) {
            return Err(Errno::TOOBIG.into());
        }
        match (mode, self.0.contains_key(name)) {
            (XattrMode::Create, true) => Err(Errno::EXIST.into()),
            (XattrMode::Replace, false) => Err(Errno::NODATA.into()),
            _ => Ok(()),
        }
    }

    fn check_size(&self) -> Result<()> {
        let names: usize = self.0.keys().map(|name| name.len() + 1).sum();
        let bytes: usize = self.pairs().map(|(n, v)| encoded_len(n, v)).sum();
        if names > XATTR_LIST_MAX || pages_for(bytes) > xattr::PAGES_MAX {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    /// Prepare to put it into place. `ENOSPC` when there is no space for its chain.
    pub fn prepare(self, medium: &Medium) -> Result<Prepared> {
        Ok(Prepared {
            pages: write_chain(medium, &encode(self.pairs()))?,
            map: Arc::new(self),
        })
    }

    fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(n, v)| (n.as_slice(), v.as_slice()))
    }
}

impl Prepared {
    /// Free its chain.
    pub fn discard(self, medium: &Medium) {
        free(medium, &self.pages);
    }
}

impl Xattrs {
    /// Load from the consistent view.
    pub fn load(image: &Image<'_>, ino: u64, first: u64) -> Result<Xattrs> {
        let (captured, bytes) = image.xattr_bytes(ino, first)?;
        image.pool.check_absence()?; // the last of them may be missing
        Ok(Xattrs {
            map: Arc::new(Map(decode(&bytes, page_at(first))?)),
            captured,
            latest: None,
        })
    }

    /// The attributes that an inode is born with.
    pub fn fresh(medium: &Medium, pairs: &[(&[u8], &[u8])]) -> Result<Xattrs> {
        let pages = write_chain(medium, &encode(pairs.iter().copied()))?;
        let owned = |(name, value): &(&[u8], &[u8])| (name.to_vec(), value.to_vec());
        Ok(Xattrs {
            map: Arc::new(Map(pairs.iter().map(owned).collect())),
            captured: Vec::new(),
            latest: Some(pages),
        })
    }

    /// The latest set.
    pub fn map(&self) -> Arc<Map> {
        self.map.clone()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map.0.is_empty()
    }

    /// Pages of the latest chain.
    pub fn pages(&self) -> usize {
        self.latest.as_ref().unwrap_or(&self.captured).len()
    }

    /// Put a set into place that was prepared of this one. What is to be discarded comes back: what
    /// it replaces if that was private, or, as an error, itself, if another change was faster.
    pub fn put(&mut self, of: &Arc<Map>, new: Prepared) -> std::result::Result<Prepared, Prepared> {
        if !Arc::ptr_eq(&self.map, of) {
            return Err(new);
        }
        Ok(Prepared {
            map: std::mem::replace(&mut self.map, new.map),
            pages: self.latest.replace(new.pages).unwrap_or_default(),
        })
    }

    /// Take the chain that is to be persisted, if it changed.
    pub fn capture(&mut self) -> Option<XattrCapture> {
        let new = self.latest.take()?;
        let old = std::mem::replace(&mut self.captured, new.clone());
        Some(XattrCapture { new, old })
    }

    /// Free what is private, of an inode that is being freed; returns the captured chain.
    pub fn tear_down(&mut self, medium: &Medium) -> Vec<u64> {
        if let Some(private) = self.latest.take() {
            free(medium, &private);
        }
        std::mem::take(&mut self.captured)
    }
}

impl XattrCapture {
    /// The set changed once more before the batch was built: this chain is still private.
    pub fn replace(&mut self, medium: &Medium, later: XattrCapture) {
        free(medium, &std::mem::replace(&mut self.new, later.new));
    }
}

/// Write a chain that nothing leads to.
fn write_chain(medium: &Medium, bytes: &[u8]) -> Result<Vec<u64>> {
    let count = pages_for(bytes.len());
    let mut pages = Vec::new();
    while (pages.len() as u64) < count {
        match medium.alloc.pages(count - pages.len() as u64) {
            Ok(run) => pages.extend(run),
            Err(e) => {
                free(medium, &pages);
                return Err(e);
            }
        }
    }
    for (i, chunk) in bytes.chunks(xattr::CAPACITY as usize).enumerate() {
        let at = page_at(pages[i]);
        medium
            .pool
            .store(at + xattr::NEXT, pages.get(i + 1).copied().unwrap_or(0));
        medium.pool.store(at + xattr::USED, chunk.len() as u64);
        medium.pool.write(at + xattr::DATA, chunk);
    }
    Ok(pages)
}

fn pages_for(bytes: usize) -> u64 {
    bytes.div_ceil(xattr::CAPACITY as usize) as u64
}

fn free(medium: &Medium, pages: &[u64]) {
    pages
        .iter()
        .for_each(|&page| medium.alloc.free_pages(page..page + 1));
}

fn encoded_len(name: &[u8], value: &[u8]) -> usize {
    2 + 4 + name.len() + value.len()
}

fn encode<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in pairs {
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(value);
    }
    bytes
}

/// The attributes in a chain's bytes; `at` is where the chain begins, for the error.
pub fn decode(mut bytes: &[u8], at: u64) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let short = || Error::corrupt(at, "extended attribute cut short");
    let mut map = BTreeMap::new();
    while !bytes.is_empty() {
        let (name_len, rest) = bytes.split_first_chunk::<2>().ok_or_else(short)?;
        let (value_len, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let name_len = usize::from(u16::from_le_bytes(*name_len));
        let value_len = u32::from_le_bytes(*value_len) as usize;
        let (name, rest) = rest.split_at_checked(name_len).ok_or_else(short)?;
        let (value, rest) = rest.split_at_checked(value_len).ok_or_else(short)?;
        map.insert(name.to_vec(), value.to_vec());
        bytes = rest;
    }
    Ok(map)
}

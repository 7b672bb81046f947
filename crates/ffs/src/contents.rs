//! Changes of contents and attributes: one lock, that of the inode.

use std::ops::Range;

use vfs::{Also, Attr, Change, Errno, Fallocate, Kind, Result, SetAttr, XATTR_NAME_MAX, XattrMode};

use crate::attributes::Attributes;
use crate::features;
use crate::file;
use crate::image::StoredInode;
use crate::image::xattr::Xattr;
use crate::inode::Node;
use crate::medium::Medium;
use crate::namespace::modified;
use crate::volume::Volume;

/// Of a file; else what the call has for other kinds.
pub fn check_file(node: &Node) -> Result<()> {
    match node.kind {
        Kind::File => Ok(()),
        Kind::Dir => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

impl Volume {
    /// The largest size of a file, in bytes: what pointers reach, and what a count of sectors in 32
    /// bits may say.
    pub(crate) fn file_max(&self) -> u64 {
        let geometry = &self.medium.geometry;
        let bytes = geometry.reach();
        match geometry.features.ro_compat & features::HUGE_FILE {
            0 => bytes.min(geometry.countable()),
            _ => bytes.max(u64::from(u32::MAX) * u64::from(geometry.block_size)),
        }
    }

    /// The largest size that a file may get. Where the superblock does not list the feature
    /// `large_file`, there is none of 2 GiB.
    pub(crate) fn size_max(&self) -> u64 {
        match self.medium.geometry.features.ro_compat & features::LARGE_FILE {
            0 => self.file_max().min(i32::MAX as u64),
            _ => self.file_max(),
        }
    }

    /// Longest value of an extended attribute that a block has room for, whatever its name is, and
    /// longest list of their names.
    pub(crate) fn xattr_max(&self) -> (usize, usize) {
        let block_size = self.medium.geometry.block_size as usize;
        (block_size - 32 - 4 - 16 - 256, block_size)
    }

    /// Writes at an offset, or at the end: where, and how many bytes.
    pub(crate) fn write(
        &self,
        node: &Node,
        offset: Option<u64>,
        data: &[u8],
        also: Also<'_>,
    ) -> Result<(u64, usize)> {
        check_file(node)?;
        let mut state = node.state.write();
        let before = state.stored.attributes.clone();
        self.trim(&mut state)?;
        let stored = &mut state.stored;
        let offset = offset.unwrap_or(stored.attributes.size);
        let left = self.size_max().saturating_sub(offset);
        if left == 0 && !data.is_empty() {
            return Err(Errno::FBIG.into());
        }
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let max = left.min(self.medium.cache.contents_max());
        let data = &data[..data.len().min(max)];
        self.change_with(stored, also, Some(&before), |stored| {
            let written = file::write(&self.medium, &self.alloc, stored, offset, data)?;
            if written > 0 {
                modified(&mut stored.attributes, self.clock.now());
            }
            Ok((offset, written))
        })
    }

    /// Makes a hole: from where on, as one operation may not make more. The format has no way to
    /// say that blocks are reserved and read as zeros, so other modes are `EOPNOTSUPP`.
    pub(crate) fn fallocate(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<u64> {
        check_file(node)?;
        if range.is_empty() {
            return Err(Errno::INVAL.into());
        }
        if mode != Fallocate::Punch {
            return Err(Errno::OPNOTSUPP.into());
        }
        if range.end > self.file_max() {
            return Err(Errno::FBIG.into());
        }
        let mut state = node.state.write();
        self.change_with(&mut state.stored, also, None, |stored| {
            let reached = file::punch(&self.medium, &self.alloc, stored, range)?;
            modified(&mut stored.attributes, self.clock.now());
            Ok(reached)
        })
    }

    /// Changes attributes and extended attributes. `None`: something was cut off, and the rest of
    /// the change is for the next operation.
    pub(crate) fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Option<Attr>> {
        let mut state = node.state.write();
        if let Some(size) = change.set.size {
            check_file(node)?;
            if size > self.size_max() {
                return Err(Errno::FBIG.into());
            }
            self.trim(&mut state)?;
            if !self.shrink(&mut state.stored, size)? {
                return Ok(None);
            }
        }
        self.change_with(&mut state.stored, Some(change), None, |_| Ok(()))?;
        Ok(Some(state.attr()))
    }

    /// Cuts off what one operation may of a file that has more behind a size than that: `false` if
    /// there is still more.
    fn shrink(&self, stored: &mut StoredInode, size: u64) -> Result<bool> {
        let Medium { cache, .. } = &self.medium;
        // With so few blocks it is done with the rest of the change.
        let blocks = stored.attributes.sectors * 512 / cache.block_size() as u64;
        if size >= stored.attributes.size || blocks <= cache.freed_max() as u64 {
            return Ok(true);
        }
        let done = file::truncate(&self.medium, &self.alloc, stored, size);
        self.store(stored)?;
        done
    }

    /// Makes a change, and one of contents; then the inode is stored, unless it is as it was stored
    /// `before`: the clock shows one time for as long as many writes take. If the change of
    /// contents fails the other one was made.
    fn change_with<T>(
        &self,
        stored: &mut StoredInode,
        also: Also<'_>,
        before: Option<&Attributes>,
        op: impl FnOnce(&mut StoredInode) -> Result<T>,
    ) -> Result<T> {
        let changed = match also {
            Some(change) => self.change(stored, change),
            None => Ok(()),
        };
        let done = changed.and_then(|()| op(stored));
        if also.is_some() || before != Some(&stored.attributes) {
            self.store(stored)?;
        }
        done
    }

    fn change(&self, stored: &mut StoredInode, change: &Change<'_>) -> Result<()> {
        let now = self.clock.now();
        if !change.xattrs.is_empty() {
            let all = self.changed_xattrs(stored, change)?;
            self.set_xattrs(stored, &all)?;
            stored.attributes.ctime = now;
        }
        let set = &change.set;
        if *set == SetAttr::default() {
            return Ok(());
        }
        if let Some(size) = set.size {
            let is_done = file::truncate(&self.medium, &self.alloc, stored, size)?;
            assert!(
                is_done,
                "what one operation may not cut off was cut off before"
            );
            stored.attributes.mtime = now;
        }
        let attributes = &mut stored.attributes;
        attributes.perm = set.perm.map_or(attributes.perm, |perm| perm & 0o7777);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime = set.atime.unwrap_or(attributes.atime);
        attributes.mtime = set.mtime.unwrap_or(attributes.mtime);
        attributes.ctime = set.ctime.unwrap_or(now);
        Ok(())
    }

    /// The extended attributes that an inode has after a change.
    fn changed_xattrs(&self, stored: &StoredInode, change: &Change<'_>) -> Result<Vec<Xattr>> {
        let (value_max, list_max) = self.xattr_max();
        let mut all = crate::xattr::all(&self.medium, stored)?;
        for change in change.xattrs {
            if change.value.is_some_and(|value| value.len() > value_max) {
                return Err(Errno::TOOBIG.into());
            }
            check_name(change.name)?;
            let place = all.iter().position(|xattr| xattr.0 == change.name);
            match (change.mode, place) {
                (XattrMode::Create, Some(_)) => return Err(Errno::EXIST.into()),
                (XattrMode::Replace, None) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            match (change.value, place) {
                (Some(value), Some(place)) => all[place].1 = value.to_vec(),
                (Some(value), None) => all.push((change.name.to_vec(), value.to_vec())),
                (None, Some(place)) => drop(all.remove(place)),
                (None, None) => {}
            }
        }
        let listed: usize = all.iter().map(|xattr| xattr.0.len() + 1).sum();
        match listed > list_max {
            true => Err(Errno::NOSPC.into()),
            false => Ok(all),
        }
    }
}

/// A name of an extended attribute has 1 to 255 bytes.
pub fn check_name(name: &[u8]) -> Result<()> {
    match (1..=XATTR_NAME_MAX).contains(&name.len()) {
        true => Ok(()),
        false => Err(Errno::RANGE.into()),
    }
}

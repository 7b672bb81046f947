//! Changes of an inode's attributes and extended attributes: all that one request asks for, so that
//! callers and batches find all of it or nothing.
//!
//! A batch captures an inode under the lock of its contents and under `meta`. So a change that
//! concerns both holds the first throughout, and puts attributes into place under the second:
//!
//! 1. lock the contents;
//! 2. prepare a new chain of extended attributes, which nothing leads to;
//! 3. change the contents, where the request has them;
//! 4. put chain and attributes into place under `meta`, in a few instructions.
//!
//! The contents of a file are locked for every change of its extended attributes, so that nobody
//! makes another between 2 and 4. Other inodes have no such lock: there, step 4 notices, and all of
//! it is done again.

use crate::file::File;
use crate::inode::{Body, Inode, Meta};
use crate::layout::{FILE_MAX, inode as layout, line_at};
use crate::mount::SoupFs;
use crate::xattr::{Map, Prepared, Xattrs};
use schedule::point;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Change, Errno, Result, SetAttr};

impl SoupFs {
    /// Change attributes and extended attributes; returns how many blocks were cut off.
    pub(crate) fn apply_change(&self, inode: &Inode, change: &Change<'_>) -> Result<u64> {
        if let Some(size) = change.set.size {
            if size > FILE_MAX {
                return Err(Errno::FBIG.into());
            }
            inode.file()?;
            self.checkpoint_tail(inode, size)?;
        }
        let contents = change.set.size.is_some() || !change.xattrs.is_empty();
        self.change(|| {
            let mut body = match &inode.body {
                Body::File(file) if contents => Some(file.write()),
                _ => None,
            };
            self.apply_locked(inode, body.as_deref_mut(), change)
        })?
    }

    /// The same when the contents are locked: those of a file, if it gets another size or other
    /// extended attributes. After an outer error it may be tried again when space was made; an
    /// inner one is not for lack of space.
    pub(crate) fn apply_locked(
        &self,
        inode: &Inode,
        mut body: Option<&mut File>,
        change: &Change<'_>,
    ) -> Result<Result<u64>> {
        if change.is_empty() {
            return Ok(Ok(0));
        }
        let volume = &self.shared.volume;
        loop {
            let mut new = None;
            if !change.xattrs.is_empty() {
                let map = self.xattrs(inode)?;
                match map.changed(change.xattrs) {
                    Ok(changed) => new = Some((map, changed.prepare(volume)?)),
                    Err(refused) => return Ok(Err(refused)),
                }
            }
            let cut = match (body.as_deref_mut(), change.set.size) {
                (Some(file), Some(size)) => file.truncate(volume, inode, size),
                _ => Ok(0),
            };
            point("truncate: times are old");
            if let Err(e) = cut {
                new.into_iter().for_each(|(_, new)| new.discard(volume));
                return Err(e);
            }
            match self.put(inode, &change.set, new) {
                Ok(old) => {
                    old.into_iter().for_each(|old| old.discard(volume));
                    return Ok(cut);
                }
                Err(new) => new.discard(volume), // another change was faster
            }
        }
    }

    /// Put attributes into place, and extended attributes that were prepared of a set. What is to
    /// be discarded comes back: as an error the new ones, if that set is not the latest any more.
    fn put(
        &self,
        inode: &Inode,
        set: &SetAttr,
        new: Option<(std::sync::Arc<Map>, Prepared)>,
    ) -> std::result::Result<Option<Prepared>, Prepared> {
        if new.is_some() {
            point("attributes: prepared");
        }
        let (now, mut set) = (self.now(), *set);
        if set.size.is_some() {
            set.mtime.get_or_insert(now);
        }
        let mut meta = inode.meta.lock();
        let mut old = None;
        if let Some((of, new)) = new {
            let Some(xattrs) = meta.rare().and_then(|rare| rare.xattrs.as_mut()) else {
                return Err(new);
            };
            let before = xattrs.pages() as i64;
            old = Some(xattrs.put(&of, new)?);
            let more = xattrs.pages() as i64 - before;
            inode.attrs.pages.fetch_add(more, Relaxed);
            inode.has_xattrs.store(!xattrs.is_empty(), Relaxed);
        }
        inode.attrs.change(&set, now);
        Ok(old)
    }

    /// The extended attributes, loaded at first use. They are read without a lock: if nobody has
    /// loaded them meanwhile, nobody has changed them, so what was read is what there is.
    pub(crate) fn xattrs(&self, inode: &Inode) -> Result<std::sync::Arc<Map>> {
        let loaded = |meta: &mut Meta| Some(meta.rare()?.xattrs.as_ref()?.map());
        if let Some(map) = loaded(&mut inode.meta.lock()) {
            return Ok(map);
        }
        let volume = &self.shared.volume;
        let read = if inode.is_published() && inode.has_xattrs.load(Relaxed) {
            let first = volume.pool.load(line_at(inode.ino) + layout::XATTR);
            Xattrs::load(&volume.image(), inode.ino, first)
        } else {
            Ok(Xattrs::default())
        };
        let mut meta = inode.meta.lock();
        if let Some(map) = loaded(&mut meta) {
            return Ok(map);
        }
        let xattrs = read?;
        let map = xattrs.map();
        meta.make_rare().xattrs = Some(xattrs);
        Ok(map)
    }
}
